//! What can go wrong between a driver and its store.

use std::{error::Error, fmt, sync::Arc};

use super::Capability;
use crate::{Invalid, rule::RuleKey};

/// Why a store did not do what it was asked. Nothing has been changed, except where it says that it is not known.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A part of the request cannot be taken.
    #[error(transparent)]
    Invalid(#[from] Invalid),

    /// The id is pinned to another policy of the same revision.
    #[error("policy differs from the pinned one in {field}: pinned is {pinned}, offered was {offered}")]
    PolicyDiffers {
        /// The first field that differs.
        field: String,
        /// What the id is pinned to.
        pinned: String,
        /// What was offered.
        offered: String,
    },

    /// The id is pinned to a higher revision, and the request will not adopt it.
    #[error("policy revision {own} is superseded by revision {pinned}")]
    Superseded {
        /// The revision of the request.
        own: u32,
        /// The pinned revision.
        pinned: u32,
    },

    /// A job costs more than a rule can ever hold.
    #[error("cost {cost} of job {index} exceeds what rule {rule} can ever hold: {most}")]
    CostExceedsLimit {
        /// Which job of the request.
        index: usize,
        /// The rule.
        rule: RuleKey,
        /// The job's cost in it.
        cost: u64,
        /// The most that it can hold.
        most: u64,
    },

    /// The store does not declare what this needs.
    #[error("the store does not have the capability: {0}")]
    Unsupported(Capability),

    /// The id cannot be forgotten while leases of it live.
    #[error("{held} leases are live: release or evict them first")]
    LeasesLive {
        /// How many.
        held: u32,
    },

    /// An exchange that came after a later one of the same driver, or after its own time.
    #[error("exchange {number} comes too late: the last one was {last}")]
    TooLate {
        /// Its number.
        number: u64,
        /// The last number that was carried out.
        last: u64,
    },

    /// The stored state was written by a newer version.
    #[error("stored state has layout {found}; this version knows {known} at most")]
    NewerLayout {
        /// The stored layout number.
        found: u32,
        /// The highest that is known here.
        known: u32,
    },

    /// The store cannot be asked, or gave no answer.
    #[error("store unavailable: {cause}: {detail}")]
    Unavailable {
        /// In which way.
        cause: Cause,
        /// What exactly happened.
        detail: String,
        /// What the client said.
        #[source]
        source: Option<Arc<dyn Error + Send + Sync>>,
    },
}

/// In which way a store is unavailable.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Cause {
    /// No answer in time: what was asked may still have been done.
    NoAnswer,
    /// The connection was refused or cut.
    Disconnected,
    /// The store refused to serve now: loading, busy, read-only, full.
    Refused,
    /// The state is being moved elsewhere.
    Migrating,
    /// The stored state made no sense; it was cleared.
    Corrupt,
    /// The answer broke the contract.
    Broken,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::NoAnswer => "no answer",
            Self::Disconnected => "disconnected",
            Self::Refused => "refused",
            Self::Migrating => "migrating",
            Self::Corrupt => "corrupt",
            Self::Broken => "broken answer",
        })
    }
}

impl StoreError {
    /// The store is unavailable in this way.
    pub fn unavailable(cause: Cause, detail: impl Into<String>) -> Self {
        Self::Unavailable { cause, detail: detail.into(), source: None }
    }

    /// A stable word for the kind of error.
    pub const fn code(&self) -> &'static str {
        match self {
            Self::Invalid(_) | Self::PolicyDiffers { .. } | Self::Unsupported(_) => "invalid_options",
            Self::Superseded { .. } => "policy_superseded",
            Self::CostExceedsLimit { .. } => "cost_exceeds_limit",
            Self::LeasesLive { .. } => "leases_live",
            Self::TooLate { .. } => "too_late",
            Self::NewerLayout { .. } => "newer_layout",
            Self::Unavailable { .. } => "unavailable",
        }
    }

    /// Whether the store is away, rather than having refused this one request.
    pub const fn is_unavailable(&self) -> bool {
        matches!(self, Self::Unavailable { .. } | Self::NewerLayout { .. })
    }
}

impl PartialEq for StoreError {
    /// Same kind and same data; the client's own cause does not count.
    fn eq(&self, other: &Self) -> bool {
        self.code() == other.code() && self.to_string() == other.to_string()
    }
}
