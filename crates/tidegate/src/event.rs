//! What a valve tells those who listen.
//!
//! Spec: VA-4, VA-5.

use std::time::Duration;

/// Something that this process saw happen to an id.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Event {
    /// The fleet is paused, for this long from now. Once per pause, however often it is extended.
    Paused {
        /// What is left of it.
        length: Duration,
    },
    /// The pause is over.
    Resumed,
    /// The limit of concurrency is now this.
    LimitChanged {
        /// The limit.
        limit: u32,
    },
    /// The store went away; jobs are refused, or decided by this process alone.
    StoreAway,
    /// The store is back.
    StoreBack,
}
