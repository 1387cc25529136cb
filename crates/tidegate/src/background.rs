//! A thread of our own, for what must go on whatever the caller's executor does.
//!
//! Renewals run here, so that code which blocks every executor thread for many TTLs keeps its leases; and so does the
//! driver of a caller that has no executor. It is one thread for the process, started when it is first needed: it holds
//! no state of any id, only tasks.
//!
//! Spec: AS-14.

use std::{panic::catch_unwind, sync::OnceLock, thread, time::Duration};

use tokio::runtime::{Builder, Handle};

use crate::clock::Sleep;

/// The caller's runtime, where there is one that keeps time: one without timers would panic at the first.
pub(crate) fn callers() -> Option<Handle> {
    let callers = Handle::try_current().ok()?;
    catch_unwind(|| drop(tokio::time::sleep(Duration::ZERO))).is_ok().then_some(callers)
}

/// A timer of the caller's runtime, or of ours where the caller has none.
pub(crate) fn sleep(length: Duration) -> Sleep {
    if callers().is_some() {
        return Box::pin(tokio::time::sleep(length));
    }
    let Some(ours) = handle() else { return Box::pin(std::future::pending()) };
    let _entered = ours.enter();
    Box::pin(tokio::time::sleep(length))
}

/// The runtime of the thread; none where the system would not start one.
pub(crate) fn handle() -> Option<&'static Handle> {
    static HANDLE: OnceLock<Option<Handle>> = OnceLock::new();
    HANDLE
        .get_or_init(|| {
            let runtime = Builder::new_current_thread().enable_all().build().ok()?;
            let handle = runtime.handle().clone();
            let run = move || runtime.block_on(std::future::pending::<()>());
            thread::Builder::new().name("tidegate-background".to_owned()).spawn(run).ok()?;
            Some(handle)
        })
        .as_ref()
}
