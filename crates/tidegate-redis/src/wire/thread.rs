//! The thread that lives whatever the caller's runtimes do.
//!
//! Spec: AS-14.

use std::{future::Future, io, sync::mpsc, thread};

use tidegate_core::{Cause, StoreError};
use tokio::{
    runtime::{Builder, Handle},
    sync::oneshot,
};

/// A thread with a runtime of its own; it ends when this is dropped.
pub(crate) struct Thread {
    runtime: Handle,
    /// Dropped with this: the thread waits for it.
    _open: oneshot::Sender<()>,
}

impl Thread {
    pub(crate) fn start() -> Result<Self, StoreError> {
        let failed = |error: io::Error| {
            StoreError::unavailable(
                Cause::Disconnected,
                format!("the thread for renewals cannot start: {error}"),
            )
        };
        let (open, closed) = oneshot::channel::<()>();
        let (made, runtime) = mpsc::sync_channel(1);
        thread::Builder::new()
            .name("tidegate-redis".to_owned())
            // The runtime is made and dropped on the thread: dropping one may block.
            .spawn(move || match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => {
                    made.send(Ok(runtime.handle().clone())).ok();
                    // Nothing is ever sent: the error is what tells of the end.
                    runtime.block_on(closed).err();
                }
                Err(error) => drop(made.send(Err(error))),
            })
            .map_err(failed)?;
        let runtime = runtime.recv().map_err(|_| failed(io::ErrorKind::Other.into()))?.map_err(failed)?;
        Ok(Self { runtime, _open: open })
    }

    /// Has the thread do something on its own.
    pub(crate) fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(work);
    }

    /// Has the thread do something while this is waited for, and no longer.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, StoreError> {
        let (mut answer, answered) = oneshot::channel();
        self.spawn(async move {
            tokio::select! {
                outcome = work => drop(answer.send(outcome)),
                () = answer.closed() => {}
            }
        });
        answered
            .await
            .map_err(|_| StoreError::unavailable(Cause::Disconnected, "the thread for renewals has ended"))
    }
}
