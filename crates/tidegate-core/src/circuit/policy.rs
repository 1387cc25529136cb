//! What must be the same in every worker of a circuit.

use std::time::Duration;

use super::schedule::{Backoff, CheckedBackoff};
use crate::{
    Fraction, Invalid,
    policy::{Difference, MOST_REVISION, Pinnable},
    time::{LONGEST, ceil_millis},
};

/// The most results that a strategy looks back on by number, and the most failures in a row.
pub const MOST_RESULTS: u32 = 1_000;
/// The most trial permits of half-open.
pub const MOST_PERMITS: u32 = 1_000;
/// The leader's TTL where none is given.
pub const LEADER_TTL: Duration = Duration::from_secs(2);

/// When results open a circuit, as a person writes it; checked with the policy.
///
/// Spec: CB-1, CB-12.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum Strategy {
    /// So many failures in a row; any success starts anew.
    Consecutive {
        /// How many: 1 to 1,000.
        threshold: u32,
    },
    /// A share of failures among the last calls.
    Count {
        /// The share that opens: above 0 (0.000001 at least), to 1.
        threshold: f64,
        /// How many calls it looks back on: 1 to 1,000.
        size: u32,
        /// With fewer results than this nothing opens: 1 to `size`.
        minimum_calls: u32,
    },
    /// A share of failures among the calls of the last while.
    Sampling {
        /// The share that opens: above 0 (0.000001 at least), to 1.
        threshold: f64,
        /// How long it looks back: 1 ms to 366 days.
        duration: Duration,
        /// With fewer results than this nothing opens: at least 1.
        minimum_calls: u32,
    },
    /// One's own, which processes ask about the recent results of the fleet.
    Custom {
        /// How many results are kept for it: 1 to 1,000.
        keep: u32,
    },
}

/// A strategy that has been checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CheckedStrategy {
    /// So many failures in a row.
    Consecutive {
        /// How many: 1 to 1,000.
        threshold: u32,
    },
    /// A share of failures among the last calls.
    Count {
        /// The share that opens, above 0.
        threshold: Fraction,
        /// How many calls it looks back on: 1 to 1,000.
        size: u32,
        /// With fewer results than this nothing opens: 1 to `size`.
        minimum_calls: u32,
    },
    /// A share of failures among the calls of the last while.
    Sampling {
        /// The share that opens, above 0.
        threshold: Fraction,
        /// How long it looks back, in milliseconds.
        duration_ms: u64,
        /// With fewer results than this nothing opens.
        minimum_calls: u32,
    },
    /// One's own.
    Custom {
        /// How many results are kept for it: 1 to 1,000.
        keep: u32,
    },
}

/// How an open circuit closes, as a person writes it; checked with the policy.
///
/// Spec: CB-3, CB-4, CB-10, CB-12.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Recovery {
    /// One elected process checks.
    HealthCheck {
        /// A check that takes longer has failed: above 0, to 366 days.
        check_timeout: Duration,
        /// With no call for this long the leader checks a closed circuit too: 100 ms to 366 days, or never.
        idle_interval: Option<Duration>,
    },
    /// Some real calls are let through, and all must succeed.
    HalfOpen {
        /// How many, fleet-wide: 1 to 1,000.
        permits: u32,
        /// The permit of a process that died is free after this: above 0, to 24 hours.
        permit_ttl: Duration,
    },
}

impl Recovery {
    /// A health check with the defaults: a timeout of 5 s, and no idle probes.
    pub const fn health_check() -> Self {
        Self::HealthCheck { check_timeout: Duration::from_secs(5), idle_interval: None }
    }

    /// Half-open with the defaults: one permit, with a TTL of 30 s.
    pub const fn half_open() -> Self {
        Self::HalfOpen { permits: 1, permit_ttl: Duration::from_secs(30) }
    }
}

/// A recovery that has been checked.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CheckedRecovery {
    /// One elected process checks.
    HealthCheck {
        /// A check that takes longer has failed, in milliseconds.
        check_timeout_ms: u64,
        /// With no call for this many milliseconds the leader checks a closed circuit too.
        idle_interval_ms: Option<u64>,
    },
    /// Some real calls are let through.
    HalfOpen {
        /// How many: 1 to 1,000.
        permits: u32,
        /// The permit of a process that died is free after this many milliseconds.
        permit_ttl_ms: u64,
    },
}

/// The policy of a circuit before it is checked.
#[derive(Clone, Debug)]
#[must_use]
pub struct CircuitDraft {
    revision: u32,
    strategy: Strategy,
    recovery: Recovery,
    backoff: Backoff,
    leader_ttl: Duration,
    min_reporters: u32,
}

impl CircuitDraft {
    /// The revision: 0 unless told, to 2^31 − 1. A higher one replaces the pinned policy.
    pub const fn revision(mut self, revision: u32) -> Self {
        self.revision = revision;
        self
    }

    /// How long a leader leads without renewing: 100 ms to 24 h, 2 s unless told.
    pub const fn leader_ttl(mut self, ttl: Duration) -> Self {
        self.leader_ttl = ttl;
        self
    }

    /// How many processes must have a recent failure before results open the circuit: at least 1, which it is unless
    /// told; one is no condition. It counts as at most the number of processes heard, of which up to 1,000 are told
    /// apart.
    pub const fn min_reporters(mut self, processes: u32) -> Self {
        self.min_reporters = processes;
        self
    }

    /// Checks it all; parts of a millisecond count as a whole one.
    ///
    /// # Errors
    /// [`Invalid`] for the first option that cannot be taken.
    pub fn check(&self) -> Result<CircuitPolicy, Invalid> {
        if self.revision > MOST_REVISION {
            return Err(Invalid::new("revision", self.revision, "0 to 2147483647"));
        }
        let strategy = check_strategy(&self.strategy)?;
        let recovery = check_recovery(&self.recovery)?;
        let backoff = CheckedBackoff::check(&self.backoff)?;
        if !(Duration::from_millis(100)..=Duration::from_secs(86_400)).contains(&self.leader_ttl) {
            return Err(Invalid::new("leader_ttl", self.leader_ttl, "100 ms to 24 h"));
        }
        if self.min_reporters == 0 {
            return Err(Invalid::new("min_reporters", 0, "at least 1"));
        }
        Ok(CircuitPolicy {
            revision: self.revision,
            strategy,
            recovery,
            backoff,
            leader_ttl_ms: ceil_millis(self.leader_ttl),
            min_reporters: self.min_reporters,
        })
    }
}

fn check_strategy(strategy: &Strategy) -> Result<CheckedStrategy, Invalid> {
    Ok(match *strategy {
        Strategy::Consecutive { threshold } => CheckedStrategy::Consecutive {
            threshold: count("consecutive.threshold", threshold, MOST_RESULTS, "1 to 1000")?,
        },
        Strategy::Count { threshold, size, minimum_calls } => {
            let threshold = share("count.threshold", threshold)?;
            let size = count("count.size", size, MOST_RESULTS, "1 to 1000")?;
            let minimum_calls = count("count.minimum_calls", minimum_calls, size, "1 to size")?;
            CheckedStrategy::Count { threshold, size, minimum_calls }
        }
        Strategy::Sampling { threshold, duration, minimum_calls } => CheckedStrategy::Sampling {
            threshold: share("sampling.threshold", threshold)?,
            duration_ms: span("sampling.duration", duration, Duration::from_millis(1), "1 ms to 366 days")?,
            minimum_calls: count("sampling.minimum_calls", minimum_calls, u32::MAX, "at least 1")?,
        },
        Strategy::Custom { keep } => {
            CheckedStrategy::Custom { keep: count("custom.keep", keep, MOST_RESULTS, "1 to 1000")? }
        }
    })
}

fn check_recovery(recovery: &Recovery) -> Result<CheckedRecovery, Invalid> {
    let (some, day) = (Duration::from_nanos(1), Duration::from_secs(86_400));
    Ok(match *recovery {
        Recovery::HealthCheck { check_timeout, idle_interval } => CheckedRecovery::HealthCheck {
            check_timeout_ms: span("check_timeout", check_timeout, some, "above 0, to 366 days")?,
            idle_interval_ms: idle_interval
                .map(|idle| span("idle_interval", idle, Duration::from_millis(100), "100 ms to 366 days"))
                .transpose()?,
        },
        Recovery::HalfOpen { permit_ttl, .. } if permit_ttl > day => {
            return Err(Invalid::new("half_open.permit_ttl", permit_ttl, "above 0, to 24 h"));
        }
        Recovery::HalfOpen { permits, permit_ttl } => CheckedRecovery::HalfOpen {
            permits: count("half_open.permits", permits, MOST_PERMITS, "1 to 1000")?,
            permit_ttl_ms: span("half_open.permit_ttl", permit_ttl, some, "above 0, to 24 h")?,
        },
    })
}

fn count(option: &str, value: u32, most: u32, allowed: &str) -> Result<u32, Invalid> {
    if (1..=most).contains(&value) { Ok(value) } else { Err(Invalid::new(option, value, allowed)) }
}

fn share(option: &str, value: f64) -> Result<Fraction, Invalid> {
    Fraction::new(option, value)
        .ok()
        .filter(|share| *share > Fraction::ZERO)
        .ok_or_else(|| Invalid::new(option, value, "a number above 0 (0.000001 at least), to 1"))
}

fn span(option: &str, value: Duration, least: Duration, allowed: &str) -> Result<u64, Invalid> {
    if !(least..=LONGEST).contains(&value) {
        return Err(Invalid::new(option, value, allowed));
    }
    Ok(ceil_millis(value))
}

/// The policy of a circuit: checked and complete. It is pinned on its own, apart from what gates the calls.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate_core::circuit::{Backoff, CircuitPolicy, Recovery, Strategy};
///
/// let strategy = Strategy::Count { threshold: 0.5, size: 100, minimum_calls: 20 };
/// let backoff = Backoff::Constant(Duration::from_secs(5));
/// let policy = CircuitPolicy::draft(strategy, Recovery::health_check(), backoff).min_reporters(2).check()?;
/// assert_eq!(policy.min_reporters(), 2);
/// # Ok::<(), tidegate_core::Invalid>(())
/// ```
///
/// Spec: CB-12, ST-5.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CircuitPolicy {
    revision: u32,
    strategy: CheckedStrategy,
    recovery: CheckedRecovery,
    backoff: CheckedBackoff,
    leader_ttl_ms: u64,
    min_reporters: u32,
}

impl Pinnable for CircuitPolicy {
    fn revision(&self) -> u32 {
        self.revision
    }

    fn difference(&self, offered: &Self) -> Option<Difference> {
        self.difference(offered)
    }
}

impl CircuitPolicy {
    /// A policy with every default, to be filled in and checked.
    pub const fn draft(strategy: Strategy, recovery: Recovery, backoff: Backoff) -> CircuitDraft {
        CircuitDraft { revision: 0, strategy, recovery, backoff, leader_ttl: LEADER_TTL, min_reporters: 1 }
    }

    /// The revision.
    pub const fn revision(&self) -> u32 {
        self.revision
    }

    /// When results open the circuit.
    pub const fn strategy(&self) -> &CheckedStrategy {
        &self.strategy
    }

    /// How it closes.
    pub const fn recovery(&self) -> &CheckedRecovery {
        &self.recovery
    }

    /// How long it waits before each attempt to recover.
    pub const fn backoff(&self) -> &CheckedBackoff {
        &self.backoff
    }

    /// How long a leader leads without renewing, in milliseconds.
    pub const fn leader_ttl_ms(&self) -> u64 {
        self.leader_ttl_ms
    }

    /// How many processes must have a recent failure before results open the circuit.
    pub const fn min_reporters(&self) -> u32 {
        self.min_reporters
    }

    /// The first field in which `offered` differs from this pinned policy; the revision is no such field.
    pub fn difference(&self, offered: &Self) -> Option<Difference> {
        if self == offered {
            return None;
        }
        let (pinned, offered) = (self.fields(), offered.fields());
        // Which fields there are depends on the kinds. These come first in their group, and differ before its rest do.
        pinned
            .into_iter()
            .zip(offered)
            .find(|((_, pinned), (_, offered))| pinned != offered)
            .map(|((field, pinned), (_, offered))| Difference { field: field.to_owned(), pinned, offered })
    }

    /// Seven fields or more, in one order as long as the kinds are the same.
    fn fields(&self) -> Vec<(&'static str, String)> {
        let mut fields = vec![
            ("leader_ttl", millis(self.leader_ttl_ms)),
            ("min_reporters", self.min_reporters.to_string()),
            ("strategy", self.strategy.as_str().to_owned()),
            ("recovery", self.recovery.as_str().to_owned()),
            ("backoff", self.backoff.as_str().to_owned()),
        ];
        match self.strategy {
            CheckedStrategy::Consecutive { threshold } => {
                fields.push(("consecutive.threshold", threshold.to_string()));
            }
            CheckedStrategy::Count { threshold, size, minimum_calls } => fields.extend([
                ("count.threshold", threshold.to_string()),
                ("count.size", size.to_string()),
                ("count.minimum_calls", minimum_calls.to_string()),
            ]),
            CheckedStrategy::Sampling { threshold, duration_ms, minimum_calls } => fields.extend([
                ("sampling.threshold", threshold.to_string()),
                ("sampling.duration", millis(duration_ms)),
                ("sampling.minimum_calls", minimum_calls.to_string()),
            ]),
            CheckedStrategy::Custom { keep } => fields.push(("custom.keep", keep.to_string())),
        }
        match self.recovery {
            CheckedRecovery::HealthCheck { check_timeout_ms, idle_interval_ms } => fields.extend([
                ("check_timeout", millis(check_timeout_ms)),
                ("idle_interval", idle_interval_ms.map_or_else(|| "off".to_owned(), millis)),
            ]),
            CheckedRecovery::HalfOpen { permits, permit_ttl_ms } => fields.extend([
                ("half_open.permits", permits.to_string()),
                ("half_open.permit_ttl", millis(permit_ttl_ms)),
            ]),
        }
        match self.backoff {
            CheckedBackoff::Constant(wait_ms) => fields.push(("backoff.wait", millis(wait_ms))),
            CheckedBackoff::Exponential { initial_ms, multiplier_ppm, max_ms } => fields.extend([
                ("backoff.initial", millis(initial_ms)),
                ("backoff.multiplier", (f64::from(multiplier_ppm) / 1_000_000.0).to_string()),
                ("backoff.max", millis(max_ms)),
            ]),
            CheckedBackoff::Custom => {}
        }
        fields
    }
}

impl CheckedStrategy {
    /// The name by which it is stored and shown.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Consecutive { .. } => "consecutive",
            Self::Count { .. } => "count",
            Self::Sampling { .. } => "sampling",
            Self::Custom { .. } => "custom",
        }
    }
}

impl CheckedRecovery {
    /// The name by which it is stored and shown.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::HealthCheck { .. } => "health_check",
            Self::HalfOpen { .. } => "half_open",
        }
    }
}

impl CheckedBackoff {
    /// The name by which it is stored and shown.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Constant(_) => "constant",
            Self::Exponential { .. } => "exponential",
            Self::Custom => "custom",
        }
    }
}

fn millis(ms: u64) -> String {
    format!("{ms} ms")
}
