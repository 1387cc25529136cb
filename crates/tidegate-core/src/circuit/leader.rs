//! The leader: the one process that checks, by a lease with a fence.

use crate::DriverId;

/// The lease of a leader.
///
/// Spec: CB-3, AS-6.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leader {
    /// Who leads.
    pub driver: DriverId,
    /// Grows with every election, and across lost state.
    pub fence: u64,
    /// It leads as long as now is before this, in ms of the store's clock.
    pub until_ms: u64,
}

impl Leader {
    /// Whether the lease still lives.
    pub const fn is_live(&self, now_ms: u64) -> bool {
        now_ms < self.until_ms
    }
}

/// What came of standing for election.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Election {
    /// This process leads, newly or still.
    Leads(Leader),
    /// Another one leads; the seat can be free after this many milliseconds, at least 1.
    Follows {
        /// How long its lease still lives.
        retry_ms: u64,
    },
}
