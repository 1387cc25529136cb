//! The tasks of a driver, and noticing when one is gone before its end: its runtime was shut down, perhaps before the
//! first step, or while it was being started.

use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

use tokio::runtime::Handle;

use super::Driver;
use crate::clock::Task;

/// Goes with a task. Does what is to be done when the task is dropped before it is [`done`](Self::done).
pub(super) struct Guard {
    driver: Option<Arc<Driver>>,
    gone: fn(&Driver),
    /// Set by the first to come of this and the task's starter.
    met: Arc<AtomicBool>,
}

impl Guard {
    pub(super) fn done(mut self) {
        self.driver = None;
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(driver) = self.driver.take() else { return };
        // A task that was never taken is dropped under its starter's lock: the starter sees to it.
        if self.met.swap(true, Ordering::AcqRel) {
            (self.gone)(&driver);
        }
    }
}

impl Driver {
    /// Starts a task, with the clock of this driver or on a runtime. Says whether it was taken: a runtime that is
    /// shutting down drops what it is given.
    pub(super) fn start(
        &self,
        task: fn(Arc<Self>, Guard) -> Task,
        gone: fn(&Self),
        runtime: impl FnOnce() -> Option<Handle>,
    ) -> bool {
        let Some(me) = self.me.upgrade() else { return false };
        let met = Arc::new(AtomicBool::new(false));
        let guard = Guard { driver: Some(Arc::clone(&me)), gone, met: Arc::clone(&met) };
        if let Err(task) = self.clock.spawn(task(me, guard)) {
            let Some(runtime) = runtime() else { return false };
            runtime.spawn(task);
        }
        !met.swap(true, Ordering::AcqRel)
    }
}
