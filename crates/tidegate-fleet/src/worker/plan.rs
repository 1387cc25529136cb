//! What a worker is to do, as one line of JSON.

use std::time::Duration;

use fastrand::Rng;
use serde::{Deserialize, Serialize};
use tidegate::{Aimd, Outcome, Rule};

/// What a worker is to do. Every field may be set; [`new`](Self::new) has the defaults.
///
/// # Examples
/// ```
/// use tidegate_fleet::worker::{Gate, Outcomes, Plan, Span};
///
/// let plan = Plan {
///     tasks: 16,
///     hold_ms: Span(1, 20),
///     outcomes: Outcomes { success: 8, throttled: 1, failure: 1, dropped: 0 },
///     ..Plan::new("memory://", "my-provider-api", Gate::Semaphore { initial: 4, min: 1, max: 10 })
/// };
/// assert_eq!(Plan::from_json(&plan.to_json()?)?, plan);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Plan {
    /// The URL of the store.
    pub store: String,
    /// The id.
    pub id: String,
    /// What gives the permits.
    pub gate: Gate,
    /// The lease TTL.
    pub ttl_ms: u64,
    /// How long one operation of the store may take.
    pub op_timeout_ms: u64,
    /// How many calls run at once while the store is away; none fails closed.
    pub fallback: Option<u32>,
    /// The revision of the policy.
    pub revision: u32,
    /// How many tasks take permits side by side.
    pub tasks: u32,
    /// How many jobs there are in all; none has no end.
    pub jobs: Option<u64>,
    /// How long a job waits for a permit; 0 tries once.
    pub timeout_ms: u64,
    /// How long a permit is held.
    pub hold_ms: Span,
    /// How long a task waits before its next job.
    pub think_ms: Span,
    /// What a job costs in each rule.
    pub cost: Span,
    /// How many identities there are of each scope.
    pub identities: u32,
    /// With which outcomes permits are handed back.
    pub outcomes: Outcomes,
    /// How many of a hundred jobs are cancelled while they wait.
    pub abandon: u32,
    /// After how long.
    pub abandon_ms: Span,
    /// The window and the cooldown of a semaphore's limit.
    pub window_ms: u64,
    /// From what the random choices come.
    pub seed: u64,
    /// The circuit breaker that stands before the calls; then the gate is not asked.
    pub breaker: Option<BreakerPlan>,
}

/// A circuit breaker, as a plan writes it. The tasks, and how long they hold and think, are those of the plan.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BreakerPlan {
    /// After how many failures in a row it opens.
    pub threshold: u32,
    /// How long it waits before each attempt to recover.
    pub backoff_ms: u64,
    /// How it recovers.
    pub recovery: RecoveryPlan,
    /// How long a leader leads without renewing.
    pub leader_ttl_ms: u64,
    /// The limit of the semaphore that gates the calls; none where they are not gated.
    pub limit: Option<u32>,
    /// The dependency is down while there is a file of this name.
    pub down: String,
}

/// How a circuit recovers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecoveryPlan {
    /// By health checks.
    HealthCheck {
        /// How long each takes.
        takes_ms: u64,
    },
    /// By one trial call.
    HalfOpen {
        /// After how long the permit of one that died is free.
        permit_ttl_ms: u64,
    },
}

impl BreakerPlan {
    /// Opens after 3 failures in a row, and checks each second; with the defaults of a breaker, and no gate.
    pub fn new(down: impl Into<String>) -> Self {
        Self {
            threshold: 3,
            backoff_ms: 1_000,
            recovery: RecoveryPlan::HealthCheck { takes_ms: 0 },
            leader_ttl_ms: 2_000,
            limit: None,
            down: down.into(),
        }
    }
}

/// From the first to the second, both included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Span(pub u64, pub u64);

impl Span {
    pub(super) fn pick(self, random: &mut Rng) -> u64 {
        random.u64(self.0..=self.1.max(self.0))
    }

    /// In milliseconds.
    pub(super) fn pick_duration(self, random: &mut Rng) -> Duration {
        Duration::from_millis(self.pick(random))
    }
}

/// What gives the permits.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gate {
    /// An adaptive semaphore.
    Semaphore {
        /// Its limit at the start.
        initial: u32,
        /// The floor.
        min: u32,
        /// The ceiling.
        max: u32,
    },
    /// A valve with a bound on concurrency and nothing else.
    Global {
        /// How many at once.
        limit: u32,
    },
    /// A valve with rules, and with a bound where there is one.
    Valve {
        /// The rules.
        rules: Vec<RulePlan>,
        /// How many at once.
        limit: Option<u32>,
    },
}

/// A rule, as a plan writes it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct RulePlan {
    /// How it counts.
    pub algorithm: Algorithm,
    /// How much in an interval.
    pub limit: u64,
    /// The interval.
    pub interval_ms: u64,
    /// What a bucket holds, where that is not its limit.
    pub burst: Option<u64>,
    /// Its name.
    pub name: Option<String>,
    /// Its scope.
    pub scope: Option<String>,
}

/// How a rule counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs)]
pub enum Algorithm {
    TokenBucket,
    FixedWindow,
    SlidingWindow,
}

impl RulePlan {
    /// A rule without a name, a scope, or a burst of its own.
    pub fn new(algorithm: Algorithm, limit: u64, interval: Duration) -> Self {
        let interval_ms = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
        Self { algorithm, limit, interval_ms, burst: None, name: None, scope: None }
    }

    /// The rule.
    pub fn rule(&self) -> Rule {
        let interval = Duration::from_millis(self.interval_ms);
        let mut rule = match self.algorithm {
            Algorithm::TokenBucket => Rule::token_bucket(self.limit, interval),
            Algorithm::FixedWindow => Rule::fixed_window(self.limit, interval),
            Algorithm::SlidingWindow => Rule::sliding_window(self.limit, interval),
        };
        if let Some(burst) = self.burst {
            rule = rule.burst(burst);
        }
        if let Some(name) = &self.name {
            rule = rule.named(name.as_str());
        }
        if let Some(scope) = &self.scope {
            rule = rule.scoped(scope.as_str());
        }
        rule
    }
}

/// How often each outcome comes, in parts of their sum.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Outcomes {
    /// It went well.
    pub success: u32,
    /// The remote pushed back.
    pub throttled: u32,
    /// It failed.
    pub failure: u32,
    /// The permit is dropped without a word.
    pub dropped: u32,
}

impl Outcomes {
    /// One of them; none is a drop.
    pub(super) fn pick(self, random: &mut Rng) -> Option<Outcome> {
        let parts = [
            (self.success, Some(Outcome::Success)),
            (self.throttled, Some(Outcome::Throttled)),
            (self.failure, Some(Outcome::Failure)),
            (self.dropped, None),
        ];
        let sum: u64 = parts.iter().map(|(part, _)| u64::from(*part)).sum();
        let mut at = random.u64(0..sum.max(1));
        for (part, outcome) in parts {
            let part = u64::from(part);
            if at < part {
                return outcome;
            }
            at -= part;
        }
        Some(Outcome::Success)
    }
}

impl Plan {
    /// Four tasks that hold a permit for 1 to 20 ms and wait for it for 10 s, under a TTL of 2 s, with nothing but success.
    pub fn new(store: impl Into<String>, id: impl Into<String>, gate: Gate) -> Self {
        Self {
            store: store.into(),
            id: id.into(),
            gate,
            ttl_ms: 2_000,
            op_timeout_ms: 1_000,
            fallback: None,
            revision: 0,
            tasks: 4,
            jobs: None,
            timeout_ms: 10_000,
            hold_ms: Span(1, 20),
            think_ms: Span(0, 0),
            cost: Span(1, 1),
            identities: 1,
            outcomes: Outcomes { success: 1, throttled: 0, failure: 0, dropped: 0 },
            abandon: 0,
            abandon_ms: Span(0, 50),
            window_ms: 500,
            seed: 0,
            breaker: None,
        }
    }

    /// The lease TTL.
    pub const fn lease_ttl(&self) -> Duration {
        Duration::from_millis(self.ttl_ms)
    }

    /// How long one operation of the store may take.
    pub const fn op_timeout(&self) -> Duration {
        Duration::from_millis(self.op_timeout_ms)
    }

    pub(super) fn aimd(&self) -> Aimd {
        let window = Duration::from_millis(self.window_ms);
        Aimd::new().window(window).cooldown(window)
    }

    /// The line of it.
    ///
    /// # Errors
    /// What `serde_json` says; none is known.
    pub fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }

    /// Reads a line.
    ///
    /// # Errors
    /// What is no plan.
    pub fn from_json(line: &str) -> serde_json::Result<Self> {
        serde_json::from_str(line)
    }
}
