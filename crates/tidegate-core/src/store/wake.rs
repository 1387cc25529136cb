//! What a store pushes. An optimisation: everything works, slower, with a lost or absent subscription.
//!
//! Spec: ST-13.

use std::fmt;

use super::{CircuitNews, Limit};
use crate::Name;

/// Something that happened to an id.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Wake {
    /// There is room for a job of this class, and this driver has waited longest for it.
    Room {
        /// The class; none for jobs without.
        class: Option<Name>,
    },
    /// The id is paused, for this many milliseconds from now.
    Paused {
        /// What is left.
        left_ms: u64,
    },
    /// The pause was ended.
    Resumed,
    /// The limit moved.
    Limit(Limit),
    /// Another policy is pinned.
    Policy {
        /// Its revision.
        revision: u32,
    },
    /// The circuit was opened or closed, its next attempt was set, or nobody leads it any more.
    Circuit(CircuitNews),
    /// The subscription was cut for a while; what it would have said meanwhile is lost.
    Gap,
}

/// What is told of an id. Called in order, on any thread: it notes what it is told and returns at once.
pub trait Listener: Send + Sync {
    /// Takes what happened.
    fn wake(&self, wake: Wake);
}

/// A subscription; dropping it ends it.
#[must_use]
pub struct Subscription(Option<Box<dyn FnOnce() + Send + Sync>>);

impl Subscription {
    /// One that does `end` when it is dropped.
    pub fn new(end: impl FnOnce() + Send + Sync + 'static) -> Self {
        Self(Some(Box::new(end)))
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        if let Some(end) = self.0.take() {
            end();
        }
    }
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Subscription")
    }
}
