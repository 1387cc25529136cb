//! How a simulation is set up.

use std::{fmt::Debug, ops::RangeInclusive, time::Duration};

use tidegate::{AdaptiveSemaphore, Aimd, Growth, Invalid, MemoryStore, SemaphoreBuilder};
use tidegate_core::time::LONGEST;

use crate::{Simulation, profile::Profile, provider::Behaviour};

/// Builds a [`Simulation`].
///
/// | option | default | bounds |
/// |---|---|---|
/// | `ceiling` | required | 1 to 1,000,000 |
/// | `ceiling_at` | none | later than the one before, and before the end; 1 to 1,000,000 |
/// | `processes`, `workers` | 4, 200 | 1 to 10,000, 1 to 100,000 |
/// | `duration` | 1 h | 1 ms to 366 days |
/// | `seed` | 0 | any |
/// | `service` | 50 to 200 ms | 1 ms to 24 h |
/// | `think_time` | none | 0 to 24 h |
/// | `reject_time` | 5 ms | 1 ms to 24 h |
/// | `release_delay` | none | 0 to 24 h |
/// | `unrelated_throttles`, `failures` | 0, 0 | from 0 and below 1 |
/// | `patience` | 10 s | 1 ms at least |
/// | `initial_limit` and what follows it | as a semaphore's; 10 | as a semaphore's |
#[derive(Clone, Debug)]
#[must_use]
pub struct SimulationBuilder {
    processes: usize,
    workers: usize,
    duration: Duration,
    seed: u64,
    patience: Duration,
    think_time: RangeInclusive<Duration>,
    behaviour: Behaviour,
    bound: Bound,
}

/// The options of the semaphores.
#[derive(Clone, Debug)]
pub(crate) struct Bound {
    initial: u32,
    min: u32,
    max: u32,
    aimd: Aimd,
    growth: Growth,
    throttle_rest: Duration,
    lease_ttl: Duration,
}

/// The id of the provider in the store.
pub(crate) const ID: &str = "provider";

impl Bound {
    /// How long a slot may rest after a throttled release.
    pub(crate) const fn longest_rest(&self) -> Duration {
        self.throttle_rest
    }

    /// A semaphore of one process, to be built.
    pub(crate) fn semaphore(&self) -> SemaphoreBuilder {
        AdaptiveSemaphore::builder(ID, self.initial)
            .min_limit(self.min)
            .max_limit(self.max)
            .aimd(self.aimd)
            .growth(self.growth)
            .throttle_rest(self.throttle_rest)
            .lease_ttl(self.lease_ttl)
    }
}

const MS: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
const MOST_PLACES: u32 = 1_000_000;

impl SimulationBuilder {
    pub(crate) fn new(ceiling: u32) -> Self {
        Self {
            processes: 4,
            workers: 200,
            duration: Duration::from_secs(3_600),
            seed: 0,
            patience: Duration::from_secs(10),
            think_time: Duration::ZERO..=Duration::ZERO,
            behaviour: Behaviour {
                profile: Profile::new(ceiling),
                service: MS * 50..=MS * 200,
                reject_time: MS * 5,
                release_delay: Duration::ZERO,
                unrelated_throttles: 0.0,
                failures: 0.0,
            },
            bound: Bound {
                initial: 10,
                min: 1,
                max: 1_000,
                aimd: Aimd::new(),
                growth: Growth::Additive,
                throttle_rest: MS * 100,
                lease_ttl: Duration::from_secs(30),
            },
        }
    }

    /// From `at` on, counted from the start, the ceiling is `ceiling`: may be told again for each change, in order.
    pub fn ceiling_at(mut self, at: Duration, ceiling: u32) -> Self {
        self.behaviour.profile.change(at, ceiling);
        self
    }

    /// How many processes there are; the workers are dealt out to them in turn. 4 unless told.
    pub const fn processes(mut self, processes: usize) -> Self {
        self.processes = processes;
        self
    }

    /// How many workers there are in all. 200 unless told.
    pub const fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// How long the workers work, in virtual time. An hour unless told.
    pub const fn duration(mut self, duration: Duration) -> Self {
        self.duration = duration;
        self
    }

    /// What all chance comes from. 0 unless told.
    pub const fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// How long the provider takes for a call, every length as likely. 50 to 200 ms unless told.
    pub const fn service(mut self, service: RangeInclusive<Duration>) -> Self {
        self.behaviour.service = service;
        self
    }

    /// How long a worker rests between two calls, every length as likely. Not at all unless told.
    pub const fn think_time(mut self, think_time: RangeInclusive<Duration>) -> Self {
        self.think_time = think_time;
        self
    }

    /// How long the provider takes to turn a call away. 5 ms unless told.
    pub const fn reject_time(mut self, reject_time: Duration) -> Self {
        self.behaviour.reject_time = reject_time;
        self
    }

    /// How long after the answer is out the provider frees its place. None unless told: it frees it before the last byte.
    pub const fn release_delay(mut self, release_delay: Duration) -> Self {
        self.behaviour.release_delay = release_delay;
        self
    }

    /// The share of calls that are throttled for reasons that have nothing to do with the ceiling. None unless told.
    pub const fn unrelated_throttles(mut self, share: f64) -> Self {
        self.behaviour.unrelated_throttles = share;
        self
    }

    /// The share of the calls served that fail. None unless told.
    pub const fn failures(mut self, share: f64) -> Self {
        self.behaviour.failures = share;
        self
    }

    /// How long a worker waits for a lease before it counts that and asks again. 10 s unless told.
    pub const fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The limit that the first acquire seeds. 10 unless told.
    pub const fn initial_limit(mut self, initial: u32) -> Self {
        self.bound.initial = initial;
        self
    }

    /// The floor of the limit. 1 unless told.
    pub const fn min_limit(mut self, min: u32) -> Self {
        self.bound.min = min;
        self
    }

    /// The ceiling of the limit. 1,000 unless told.
    pub const fn max_limit(mut self, max: u32) -> Self {
        self.bound.max = max;
        self
    }

    /// The constants of increase and decrease.
    pub const fn aimd(mut self, aimd: Aimd) -> Self {
        self.bound.aimd = aimd;
        self
    }

    /// How the limit grows: additively unless told.
    pub const fn growth(mut self, growth: Growth) -> Self {
        self.bound.growth = growth;
        self
    }

    /// How long the slot of a throttled release rests. 100 ms unless told.
    pub const fn throttle_rest(mut self, rest: Duration) -> Self {
        self.bound.throttle_rest = rest;
        self
    }

    /// The TTL of a lease. 30 s unless told.
    pub const fn lease_ttl(mut self, ttl: Duration) -> Self {
        self.bound.lease_ttl = ttl;
        self
    }

    /// Checks it all. Runs nothing.
    ///
    /// # Errors
    /// [`Invalid`] that names the first option that cannot be taken, what it was given and what it takes.
    pub fn build(self) -> Result<Simulation, Invalid> {
        check(self.duration, "duration", MS..=LONGEST, "1 ms to 366 days")?;
        self.check_profile()?;
        check(self.processes, "processes", 1..=10_000, "1 to 10000")?;
        check(self.workers, "workers", 1..=100_000, "1 to 100000")?;
        let behaviour = &self.behaviour;
        check_range(&behaviour.service, "service", MS..=DAY, "1 ms to 24 h, the shortest first")?;
        check_range(&self.think_time, "think_time", Duration::ZERO..=DAY, "0 to 24 h, the shortest first")?;
        check(behaviour.reject_time, "reject_time", MS..=DAY, "1 ms to 24 h")?;
        check(behaviour.release_delay, "release_delay", Duration::ZERO..=DAY, "0 to 24 h")?;
        for (option, share) in
            [("unrelated_throttles", behaviour.unrelated_throttles), ("failures", behaviour.failures)]
        {
            if !(0.0..1.0).contains(&share) {
                return Err(Invalid::new(option, share, "a number from 0 and below 1"));
            }
        }
        check(self.patience, "patience", MS..=Duration::MAX, "1 ms at least")?;
        // The semaphore knows its own bounds.
        self.bound.semaphore().build(MemoryStore::new()).map_err(|error| error.invalid)?;
        Ok(Simulation {
            processes: self.processes,
            workers: self.workers,
            duration: self.duration,
            seed: self.seed,
            patience: self.patience,
            think_time: self.think_time,
            behaviour: self.behaviour,
            bound: self.bound,
        })
    }

    fn check_profile(&self) -> Result<(), Invalid> {
        let steps = self.behaviour.profile.steps();
        for (index, (at, ceiling)) in steps.iter().enumerate() {
            let option = if index == 0 { "ceiling" } else { "ceiling_at" };
            check(*ceiling, option, 1..=MOST_PLACES, "1 to 1000000")?;
            if index > 0 && *at >= self.duration {
                return Err(Invalid::new(option, at, format!("before the end, {:?}", self.duration)));
            }
        }
        let disorder = steps.windows(2).find(|pair| pair[0].0 >= pair[1].0);
        match disorder {
            Some(pair) => Err(Invalid::new("ceiling_at", pair[1].0, format!("later than {:?}", pair[0].0))),
            None => Ok(()),
        }
    }
}

fn check<T: PartialOrd + Debug>(
    value: T,
    option: &str,
    bounds: RangeInclusive<T>,
    allowed: &str,
) -> Result<(), Invalid> {
    if bounds.contains(&value) { Ok(()) } else { Err(Invalid::new(option, value, allowed)) }
}

fn check_range(
    range: &RangeInclusive<Duration>,
    option: &str,
    bounds: RangeInclusive<Duration>,
    allowed: &str,
) -> Result<(), Invalid> {
    let fits = range.start() <= range.end() && bounds.contains(range.start()) && bounds.contains(range.end());
    if fits { Ok(()) } else { Err(Invalid::new(option, range, allowed)) }
}
