//! What can go wrong, by the question that a caller asks.
//!
//! Spec: BI-5, UN-5.

use std::{error::Error, sync::Arc, time::Duration};

use tidegate_core::{Id, Invalid, Name, StoreError, Token, rule::RuleKey, time::Moment};

use crate::CheckKind;

/// A primitive that cannot be built: an option that cannot be taken, or a store that lacks what it needs. Nothing was
/// started, and nothing was asked of the store.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("cannot build {:?}", shown(id))]
pub struct BuildError {
    /// The id, as it was given.
    pub id: String,
    /// Which option, what it was given, and what it takes.
    #[source]
    pub invalid: Invalid,
}

impl BuildError {
    pub(crate) fn new(id: impl Into<String>, invalid: Invalid) -> Self {
        Self { id: id.into(), invalid }
    }

    /// A stable word for the kind of error: `invalid_options`.
    pub const fn code(&self) -> &'static str {
        "invalid_options"
    }

    /// The option that cannot be taken.
    pub fn option(&self) -> &str {
        &self.invalid.option
    }
}

/// The longest part of an id that cannot be taken that an error repeats, in characters: no good id is longer.
const SHOWN: usize = 200;

fn shown(id: &str) -> &str {
    id.char_indices().nth(SHOWN).map_or(id, |(end, _)| &id[..end])
}

/// Why a job got no permit.
///
/// An outage is never reported as a limit, nor a limit as an outage: [`Timeout`](Self::Timeout) says that the store
/// answered and there was no room, [`Unavailable`](Self::Unavailable) that it gave no answer about this job.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// A part of the job, or of this worker's policy, cannot be taken.
    #[error("{id}: invalid options")]
    InvalidOptions {
        /// The id.
        id: Id,
        /// What exactly; for a policy that differs from the pinned one, the field and both values.
        source: StoreError,
    },
    /// A newer policy is pinned, and this worker will not adopt it.
    #[error("{id}: policy revision {own} is superseded by revision {pinned}")]
    PolicySuperseded {
        /// The id.
        id: Id,
        /// This worker's revision.
        own: u32,
        /// The pinned revision.
        pinned: u32,
    },
    /// There was no room until the timeout.
    #[error("{id}: no room within {timeout:?} ({last})")]
    Timeout {
        /// The id.
        id: Id,
        /// The timeout.
        timeout: Duration,
        /// The job's class.
        class: Option<Name>,
        /// How long it waited.
        waited: Duration,
        /// What denied it last.
        last: LastCause,
        /// The earliest useful retry from now, where it is known.
        hint: Option<Duration>,
        /// Whether it was decided by this process alone, while the store was away.
        local: bool,
    },
    /// The store gave no answer about this job.
    #[error("{id}: store unavailable")]
    Unavailable {
        /// The id.
        id: Id,
        /// In which way.
        source: StoreError,
    },
    /// The primitive was closed.
    #[error("{id}: closed")]
    Closed {
        /// The id.
        id: Id,
    },
    /// As many jobs as the queue takes wait already.
    #[error("{id}: {max_queue} jobs wait already")]
    QueueFull {
        /// The id.
        id: Id,
        /// The most that may wait in this process.
        max_queue: usize,
    },
    /// The job costs more than a rule can ever hold; it would wait for ever.
    #[error("{id}: cost {cost} exceeds what rule {rule} can ever hold: {most}")]
    CostExceedsLimit {
        /// The id.
        id: Id,
        /// The rule.
        rule: RuleKey,
        /// The job's cost in it.
        cost: u64,
        /// The most that it can hold.
        most: u64,
    },
}

/// What denied a job last.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LastCause {
    /// Full slots.
    Slots,
    /// A rate rule.
    Rate,
    /// A pause.
    Pause,
}

impl LastCause {
    /// Its name in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Slots => "slots",
            Self::Rate => "rate",
            Self::Pause => "pause",
        }
    }
}

impl std::fmt::Display for LastCause {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

impl AcquireError {
    /// A stable word for the kind of error.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::InvalidOptions { .. } => "invalid_options",
            Self::PolicySuperseded { .. } => "policy_superseded",
            Self::Timeout { .. } => "timeout",
            Self::Unavailable { .. } => "unavailable",
            Self::Closed { .. } => "closed",
            Self::QueueFull { .. } => "queue_full",
            Self::CostExceedsLimit { .. } => "cost_exceeds_limit",
        }
    }

    /// The id.
    pub const fn id(&self) -> &Id {
        match self {
            Self::InvalidOptions { id, .. }
            | Self::PolicySuperseded { id, .. }
            | Self::Timeout { id, .. }
            | Self::Unavailable { id, .. }
            | Self::Closed { id }
            | Self::QueueFull { id, .. }
            | Self::CostExceedsLimit { id, .. } => id,
        }
    }

    /// What a store's refusal of a job means to the job's caller.
    pub(crate) fn from_store(id: &Id, error: StoreError) -> Self {
        let id = id.clone();
        match error {
            StoreError::Superseded { own, pinned } => Self::PolicySuperseded { id, own, pinned },
            StoreError::CostExceedsLimit { rule, cost, most, .. } => {
                Self::CostExceedsLimit { id, rule, cost, most }
            }
            source @ (StoreError::Invalid(_)
            | StoreError::PolicyDiffers { .. }
            | StoreError::Unsupported(_)) => Self::InvalidOptions { id, source },
            source => Self::Unavailable { id, source },
        }
    }
}

/// Why a store did not do what a control asked.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ControlError {
    /// The store refused it.
    #[error("{id}: invalid options")]
    InvalidOptions {
        /// The id.
        id: Id,
        /// Why.
        source: StoreError,
    },
    /// The store gave no answer.
    #[error("{id}: store unavailable")]
    Unavailable {
        /// The id.
        id: Id,
        /// In which way.
        source: StoreError,
    },
}

impl ControlError {
    pub(crate) fn from_store(id: &Id, source: StoreError) -> Self {
        let id = id.clone();
        if source.is_unavailable() {
            Self::Unavailable { id, source }
        } else {
            Self::InvalidOptions { id, source }
        }
    }

    /// A stable word for the kind of error.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::InvalidOptions { .. } => "invalid_options",
            Self::Unavailable { .. } => "unavailable",
        }
    }

    /// The id.
    pub const fn id(&self) -> &Id {
        match self {
            Self::InvalidOptions { id, .. } | Self::Unavailable { id, .. } => id,
        }
    }
}

/// The error of a call that was made under a permit: either there was no permit, and the call never ran, or it is the
/// call's own, unchanged.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum CallError<E> {
    /// There was no permit; the call never ran.
    #[error(transparent)]
    Acquire(AcquireError),
    /// The call's own error.
    #[error(transparent)]
    Call(E),
}

impl<E> CallError<E> {
    /// A stable word for the kind of error: that of the acquire, or `call` for the call's own.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Acquire(error) => error.code(),
            Self::Call(_) => "call",
        }
    }

    /// The call's own error, or that of the acquire as one: for an error type that takes both, `anyhow::Error` for one.
    ///
    /// # Examples
    /// ```
    /// use tidegate::{Acquire, AdaptiveSemaphore, CallError, MemoryStore};
    ///
    /// type AnyError = Box<dyn std::error::Error + Send + Sync>;
    ///
    /// async fn call_provider() -> Result<u32, AnyError> {
    ///     Ok(7)
    /// }
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), AnyError> {
    /// let semaphore = AdaptiveSemaphore::builder("my-provider-api", 10).build(MemoryStore::new())?;
    /// let answer = semaphore.with_lease(Acquire::new(), call_provider).await.map_err(CallError::into_inner)?;
    /// assert_eq!(answer, 7);
    /// # Ok(())
    /// # }
    /// ```
    pub fn into_inner(self) -> E
    where
        E: From<AcquireError>,
    {
        match self {
            Self::Acquire(error) => error.into(),
            Self::Call(error) => error,
        }
    }
}

/// Why a breaker did not start.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The store refused this worker's policy.
    #[error("{id}: invalid options")]
    InvalidOptions {
        /// The id.
        id: Id,
        /// What exactly; for a policy that differs from the pinned one, the field and both values.
        source: StoreError,
    },
    /// A newer policy is pinned, and this worker will not adopt it.
    #[error("{id}: policy revision {own} is superseded by revision {pinned}")]
    PolicySuperseded {
        /// The id.
        id: Id,
        /// This worker's revision.
        own: u32,
        /// The pinned revision.
        pinned: u32,
    },
}

impl StartError {
    pub(crate) fn from_store(id: &Id, error: StoreError) -> Self {
        let id = id.clone();
        match error {
            StoreError::Superseded { own, pinned } => Self::PolicySuperseded { id, own, pinned },
            source => Self::InvalidOptions { id, source },
        }
    }

    /// A stable word for the kind of error.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::InvalidOptions { .. } => "invalid_options",
            Self::PolicySuperseded { .. } => "policy_superseded",
        }
    }

    /// The id.
    pub const fn id(&self) -> &Id {
        match self {
            Self::InvalidOptions { id, .. } | Self::PolicySuperseded { id, .. } => id,
        }
    }
}

/// The error of a call under a circuit: either the call never ran, or it is the call's own, unchanged.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExecuteError<E> {
    /// The circuit is open; the call never ran.
    #[error("{id}: circuit open")]
    CircuitOpen {
        /// The id.
        id: Id,
        /// Since when, by the store's clock.
        since: Moment,
    },
    /// The breaker is not started, or is stopped; the call never ran.
    #[error("{id}: circuit breaker not started")]
    NotStarted {
        /// The id.
        id: Id,
    },
    /// There was no permit, of the semaphore or valve that gates calls; the call never ran.
    #[error(transparent)]
    Acquire(AcquireError),
    /// The call's own error.
    #[error(transparent)]
    Call(E),
}

impl<E> ExecuteError<E> {
    /// A stable word for the kind of error: that of the acquire where it is one, or `call` for the call's own.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::CircuitOpen { .. } => "circuit_open",
            Self::NotStarted { .. } => "not_started",
            Self::Acquire(error) => error.code(),
            Self::Call(_) => "call",
        }
    }

    /// The call's own error, where it is that.
    pub fn call(self) -> Option<E> {
        match self {
            Self::Call(error) => Some(error),
            _ => None,
        }
    }
}

/// How a health check failed.
///
/// Spec: CB-3.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// It had no answer in time.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// Its own error.
    #[error("failed")]
    Failed(#[source] Arc<dyn Error + Send + Sync>),
    /// It panicked.
    #[error("panicked: {0}")]
    Panicked(String),
}

impl PartialEq for CheckError {
    /// Same kind and same data; for the check's own errors, the same text.
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Timeout(a), Self::Timeout(b)) => a == b,
            (Self::Failed(a), Self::Failed(b)) => a.to_string() == b.to_string(),
            (Self::Panicked(a), Self::Panicked(b)) => a == b,
            _ => false,
        }
    }
}

/// A lease that ended while it was held: its TTL ran out, or the store no longer knows it. Another may hold the slot.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{id}: lease {token} was lost")]
pub struct LeaseLost {
    /// The id.
    pub id: Id,
    /// Its token.
    pub token: Token,
    /// Its slot.
    pub slot: u32,
    /// Its fence.
    pub fence: u64,
}

impl LeaseLost {
    pub(crate) fn new(id: &Id, token: Token) -> Self {
        Self { id: id.clone(), token, slot: token.slot, fence: token.fence }
    }

    /// A stable word for the kind of error: `lease_lost`.
    pub const fn code(&self) -> &'static str {
        "lease_lost"
    }
}

/// What a primitive reports through `on_error`: trouble that no caller is waiting to hear of.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Trouble {
    /// The store went away; reported once, not once per call.
    #[error("{id}: the store went away")]
    StoreAway {
        /// The id.
        id: Id,
        /// In which way.
        source: StoreError,
    },
    /// The store is back.
    #[error("{id}: the store is back after {away:?}")]
    StoreBack {
        /// The id.
        id: Id,
        /// How long it was away.
        away: Duration,
    },
    /// The store refused something that was sent in the background.
    #[error("{id}: the store refused {what}")]
    Refused {
        /// The id.
        id: Id,
        /// What.
        what: &'static str,
        /// Why.
        source: StoreError,
    },
    /// A lease ended while it was held.
    #[error("{id}: a lease was lost while it was held")]
    LeaseLost {
        /// The id.
        id: Id,
        /// Which.
        source: LeaseLost,
    },
    /// The store lost its state; what this process knows of it is being restored.
    #[error("{id}: the store lost its state")]
    StateLost {
        /// The id.
        id: Id,
    },
    /// The store is set up so that it may lose state silently.
    ///
    /// Spec: UN-6.
    #[error("{id}: the store may lose state silently: {risk}")]
    StoreAtRisk {
        /// The id.
        id: Id,
        /// What was found, and what to do about it.
        risk: String,
    },
    /// The store's clock was set back, and stored moments with it.
    #[error("{id}: the store's clock was set back by {by:?}")]
    ClockSetBack {
        /// The id.
        id: Id,
        /// By how much.
        by: Duration,
    },
    /// A settlement went further into debt than a rule keeps.
    #[error("{id}: {cut} of a settlement was cut off: the debt is as deep as it gets")]
    DebtCut {
        /// The id.
        id: Id,
        /// How much was cut off.
        cut: u64,
    },
    /// A settlement or an observation that could not be taken.
    #[error("{id}: not settled")]
    NotSettled {
        /// The id.
        id: Id,
        /// Why.
        source: Invalid,
    },
    /// Releases or corrections were given up. Either more wait to be delivered to the store than are kept, and the oldest
    /// go, or it is not known whether the store has them, and no correction is delivered twice. Slots are back by their
    /// TTL.
    #[error("{id}: {dropped} undelivered releases or corrections were dropped")]
    Undelivered {
        /// The id.
        id: Id,
        /// How many.
        dropped: usize,
    },
    /// A health check of this process failed.
    #[error("{id}: {} check failed", kind.as_str())]
    CheckFailed {
        /// The id.
        id: Id,
        /// What it was for.
        kind: CheckKind,
        /// How.
        source: CheckError,
    },
    /// Code of the user panicked; nothing else was changed by that.
    #[error("{id}: {place} panicked: {message}")]
    Panicked {
        /// The id.
        id: Id,
        /// Which callback.
        place: &'static str,
        /// What it said.
        message: String,
    },
}

impl Trouble {
    /// A stable word for the kind of trouble.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::StoreAway { .. } => "unavailable",
            Self::StoreBack { .. } => "available",
            Self::Refused { source, .. } => source.code(),
            Self::LeaseLost { .. } => "lease_lost",
            Self::StateLost { .. } => "state_lost",
            Self::StoreAtRisk { .. } => "store_at_risk",
            Self::ClockSetBack { .. } => "clock_set_back",
            Self::DebtCut { .. } => "debt_cut",
            Self::NotSettled { .. } => "invalid_options",
            Self::Undelivered { .. } => "undelivered",
            Self::CheckFailed { .. } => "check_failed",
            Self::Panicked { .. } => "panicked",
        }
    }

    /// The id.
    pub const fn id(&self) -> &Id {
        match self {
            Self::StoreAway { id, .. }
            | Self::StoreBack { id, .. }
            | Self::Refused { id, .. }
            | Self::LeaseLost { id, .. }
            | Self::StateLost { id }
            | Self::StoreAtRisk { id, .. }
            | Self::ClockSetBack { id, .. }
            | Self::DebtCut { id, .. }
            | Self::NotSettled { id, .. }
            | Self::Undelivered { id, .. }
            | Self::CheckFailed { id, .. }
            | Self::Panicked { id, .. } => id,
        }
    }
}
