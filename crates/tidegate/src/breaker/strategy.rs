//! When results open a circuit, as people choose it.
//!
//! Spec: CB-1.

use std::{fmt, sync::Arc, time::Duration};

use tidegate_core::circuit::{self, MOST_RESULTS, Run, Verdict};

/// Opens after so many failures in a row, of the whole fleet; any success starts anew.
///
/// Spec: CB-1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Consecutive(u32);

impl Consecutive {
    /// How many: 1 to 1,000.
    pub const fn new(threshold: u32) -> Self {
        Self(threshold)
    }
}

/// Opens at a share of failures among the last calls of the fleet.
///
/// Spec: CB-1.
#[derive(Clone, Copy, PartialEq, Debug)]
#[must_use]
pub struct Count {
    threshold: f64,
    size: u32,
    minimum_calls: u32,
}

impl Count {
    /// A share above 0 and up to 1 of the last `size` (1 to 1,000) calls opens, once there are `minimum_calls` (1 to
    /// `size`).
    pub const fn new(threshold: f64, size: u32, minimum_calls: u32) -> Self {
        Self { threshold, size, minimum_calls }
    }
}

/// Opens at a share of failures among the calls of the fleet in the last while.
///
/// Spec: CB-1.
#[derive(Clone, Copy, PartialEq, Debug)]
#[must_use]
pub struct Sampling {
    threshold: f64,
    duration: Duration,
    minimum_calls: u32,
}

impl Sampling {
    /// A share above 0 and up to 1 of the calls in the last `duration` (1 ms to 366 days) opens, once there are
    /// `minimum_calls` (at least 1).
    pub const fn new(threshold: f64, duration: Duration, minimum_calls: u32) -> Self {
        Self { threshold, duration, minimum_calls }
    }
}

/// A strategy of one's own.
///
/// It is asked in each process after results of that process have reached the store, and sees those of the whole fleet.
/// So it costs what the others do not: results travel to every process.
///
/// Spec: CB-1.
pub trait OpensWhen: Send + Sync + 'static {
    /// How many of the last results it looks at: 1 to 1,000, which it is unless told. Part of the policy.
    fn looks_at(&self) -> u32 {
        MOST_RESULTS
    }

    /// Whether these results open the circuit. Called outside every lock; a panic in it is caught, reported, and opens
    /// nothing.
    fn opens(&self, recent: &Recent) -> bool;
}

/// The recent results of the whole fleet since the last change of state, oldest first.
///
/// Spec: CB-1.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Recent {
    runs: Vec<Run>,
}

impl Recent {
    pub(super) const fn new(runs: Vec<Run>) -> Self {
        Self { runs }
    }

    /// How many results there are; at least 1.
    pub fn calls(&self) -> u64 {
        self.runs.iter().map(|run| u64::from(run.times)).sum()
    }

    /// How many of them are failures.
    pub fn failures(&self) -> u64 {
        let failures = self.runs.iter().filter(|run| run.verdict == Verdict::Failure);
        failures.map(|run| u64::from(run.times)).sum()
    }

    /// The results, oldest first; true for a failure.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Verdict> {
        self.runs.iter().flat_map(|run| {
            let times = usize::try_from(run.times).unwrap_or(usize::MAX);
            std::iter::repeat_n(run.verdict, times)
        })
    }
}

/// When results open a circuit.
#[derive(Clone)]
#[must_use]
pub struct Strategy {
    pub(super) pinned: circuit::Strategy,
    pub(super) own: Option<Arc<dyn OpensWhen>>,
}

impl Strategy {
    /// One's own.
    pub fn own(strategy: impl OpensWhen) -> Self {
        Self {
            pinned: circuit::Strategy::Custom { keep: strategy.looks_at() },
            own: Some(Arc::new(strategy)),
        }
    }
}

impl fmt::Debug for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pinned.fmt(f)
    }
}

impl From<Consecutive> for Strategy {
    fn from(Consecutive(threshold): Consecutive) -> Self {
        Self { pinned: circuit::Strategy::Consecutive { threshold }, own: None }
    }
}

impl From<Count> for Strategy {
    fn from(Count { threshold, size, minimum_calls }: Count) -> Self {
        Self { pinned: circuit::Strategy::Count { threshold, size, minimum_calls }, own: None }
    }
}

impl From<Sampling> for Strategy {
    fn from(Sampling { threshold, duration, minimum_calls }: Sampling) -> Self {
        Self { pinned: circuit::Strategy::Sampling { threshold, duration, minimum_calls }, own: None }
    }
}
