//! The little that is needed to wait without a runtime.

use std::{
    any::Any,
    future::Future,
    panic::{AssertUnwindSafe, catch_unwind},
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

/// A future on the heap, as the hooks of a subject and the sleep of a faulty store are.
pub type Task<'a, T = ()> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Waits for a future on this thread.
///
/// For stores whose futures need no runtime. A future of a runtime's own I/O or timers belongs into that runtime.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// What a lock holds, also after a panic under it: nothing here is left half done.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs each task on a thread of its own, and is done when all are.
pub(crate) fn on_threads(tasks: Vec<Task<'static>>) -> Task<'static> {
    let done = Arc::new(Countdown { left: AtomicUsize::new(tasks.len()), waiting: Mutex::default() });
    for task in tasks {
        let done = Arc::clone(&done);
        thread::spawn(move || {
            // Counts down after a panic as well.
            let _done = CountsDown(done);
            block_on(task);
        });
    }
    Box::pin(std::future::poll_fn(move |context| {
        *lock(&done.waiting) = Some(context.waker().clone());
        if done.left.load(Ordering::SeqCst) == 0 { Poll::Ready(()) } else { Poll::Pending }
    }))
}

struct Countdown {
    left: AtomicUsize,
    waiting: Mutex<Option<Waker>>,
}

struct CountsDown(Arc<Countdown>);

impl Drop for CountsDown {
    fn drop(&mut self) {
        self.0.left.fetch_sub(1, Ordering::SeqCst);
        if let Some(waker) = lock(&self.0.waiting).take() {
            waker.wake();
        }
    }
}

/// Waits for real time on a thread of its own: for the rare wait that a test has without a runtime.
pub(crate) fn real_sleep(length: Duration) -> Task<'static> {
    on_threads(vec![Box::pin(async move { thread::sleep(length) })])
}

/// Runs a future to its end, or to its panic, which is an error with its message.
pub(crate) async fn caught<T>(future: impl Future<Output = T>) -> Result<T, String> {
    let mut future = pin!(future);
    std::future::poll_fn(|context| {
        // After a panic the future is not polled again.
        match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(context))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(value)) => Poll::Ready(Ok(value)),
            Err(panic) => Poll::Ready(Err(message(&*panic))),
        }
    })
    .await
}

fn message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no message".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tasks_on_threads_are_waited_for_also_after_a_panic() {
        let count = Arc::new(AtomicUsize::new(0));
        let task = |fails: bool| -> Task<'static> {
            let count = Arc::clone(&count);
            Box::pin(async move {
                assert!(!fails, "on purpose");
                count.fetch_add(1, Ordering::SeqCst);
            })
        };
        block_on(on_threads(vec![task(false), task(true), task(false)]));
        assert_eq!(count.load(Ordering::SeqCst), 2);
        block_on(on_threads(Vec::new()));
    }

    #[test]
    fn a_panic_is_caught_with_its_message() {
        assert_eq!(block_on(caught(async { 7 })), Ok(7));
        assert_eq!(block_on(caught(async { panic!("at {}", 7) })), Err::<(), _>("at 7".to_owned()));
    }
}
