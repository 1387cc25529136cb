//! Tasks in the background, and noticing when one is gone before its end: its runtime was shut down, perhaps before the
//! first step, or while it was being started.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::runtime::Handle;

use crate::clock::{Clock, Task};

/// Goes with a task. Does what is to be done when the task is dropped before it is [`done`](Self::done).
pub(crate) struct Guard<T> {
    owner: Option<Arc<T>>,
    gone: fn(&T),
    /// Set by the first to come of this and the task's starter.
    met: Arc<AtomicBool>,
}

impl<T> Guard<T> {
    pub(crate) fn done(mut self) {
        self.owner = None;
    }
}

impl<T> Drop for Guard<T> {
    fn drop(&mut self) {
        let Some(owner) = self.owner.take() else { return };
        // A task that was never taken is dropped under its starter's lock: the starter sees to it.
        if self.met.swap(true, Ordering::AcqRel) {
            (self.gone)(&owner);
        }
    }
}

/// Starts a task of `owner`, with a clock or on a runtime. Says whether it was taken: a runtime that is shutting down drops
/// what it is given.
pub(crate) fn start<T>(
    owner: &Arc<T>,
    clock: &dyn Clock,
    task: fn(Arc<T>, Guard<T>) -> Task,
    gone: fn(&T),
    runtime: impl FnOnce() -> Option<Handle>,
) -> bool {
    let met = Arc::new(AtomicBool::new(false));
    let guard = Guard { owner: Some(Arc::clone(owner)), gone, met: Arc::clone(&met) };
    if let Err(task) = clock.spawn(task(Arc::clone(owner), guard)) {
        let Some(runtime) = runtime() else { return false };
        runtime.spawn(task);
    }
    !met.swap(true, Ordering::AcqRel)
}
