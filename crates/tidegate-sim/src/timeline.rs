//! Virtual time: an executor of one thread whose clock jumps to the next moment at which anything is to happen.
//!
//! What is ready runs in the order in which it became ready, at a moment that stands still; then the earliest sleeper is
//! woken. Nothing here depends on the machine, so the same tasks do the same things in the same order each time.

use std::{
    collections::{BTreeMap, VecDeque},
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use tidegate::clock::{Clock, Pace, Sleep, Task};
use tidegate_core::time::{LONGEST, Moment};

/// So that nothing that counts back from now goes below the clock's zero.
const START: Moment = Moment::from_millis(3_600_000);

/// The clock of a timeline. A cheap clone of one thing.
#[derive(Clone)]
pub(crate) struct VirtualClock {
    shared: Arc<Shared>,
}

struct Shared {
    /// Microseconds.
    now: AtomicU64,
    sleepers: Mutex<Sleepers>,
    ready: Mutex<VecDeque<usize>>,
    /// Tasks that were handed over and have no place yet.
    spawned: Mutex<Vec<Task>>,
}

#[derive(Default)]
struct Sleepers {
    /// By moment, then by the order in which they went to sleep.
    by_moment: BTreeMap<(Moment, u64), Waker>,
    stamp: u64,
}

/// There is but one thread, and what is changed under a lock is changed by one statement.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl VirtualClock {
    /// Time since the start.
    pub(crate) fn elapsed(&self) -> Duration {
        self.now().since(START)
    }

    /// Waits for so long.
    pub(crate) fn wait(&self, length: Duration) -> Waiting {
        self.wait_until(self.now().plus(length))
    }

    fn wait_until(&self, at: Moment) -> Waiting {
        Waiting { shared: Arc::clone(&self.shared), at, stamp: None }
    }

    /// The moment so long after the start.
    pub(crate) fn moment(after_start: Duration) -> Moment {
        START.plus(after_start)
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Moment {
        Moment::from_micros(self.shared.now.load(Relaxed))
    }

    fn sleep_until(&self, at: Moment) -> Sleep {
        Box::pin(self.wait_until(at))
    }

    fn pace(&self) -> Pace {
        Pace::Set
    }

    fn spawn(&self, task: Task) -> Result<(), Task> {
        locked(&self.shared.spawned).push(task);
        Ok(())
    }
}

/// Waits until a moment. Dropping it forgets it.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Waiting {
    shared: Arc<Shared>,
    at: Moment,
    /// Which sleeper it is, once it sleeps.
    stamp: Option<u64>,
}

impl Future for Waiting {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let now = Moment::from_micros(self.shared.now.load(Relaxed));
        if now >= self.at {
            self.wake_up();
            return Poll::Ready(());
        }
        if self.at.since(now) > LONGEST {
            // No end: it is not to make time jump there when there is nothing else to do.
            return Poll::Pending;
        }
        let mut sleepers = locked(&self.shared.sleepers);
        let stamp = self.stamp.unwrap_or_else(|| {
            sleepers.stamp += 1;
            sleepers.stamp
        });
        sleepers.by_moment.insert((self.at, stamp), context.waker().clone());
        drop(sleepers);
        self.stamp = Some(stamp);
        Poll::Pending
    }
}

impl Waiting {
    fn wake_up(&mut self) {
        if let Some(stamp) = self.stamp.take() {
            locked(&self.shared.sleepers).by_moment.remove(&(self.at, stamp));
        }
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.wake_up();
    }
}

/// Puts a task among those that are ready, once however often it is woken.
struct Place {
    index: usize,
    is_ready: AtomicBool,
    shared: Arc<Shared>,
}

impl Wake for Place {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_ready.swap(true, Relaxed) {
            locked(&self.shared.ready).push_back(self.index);
        }
    }
}

/// Nothing is ready and nobody sleeps, so that what is waited for never comes.
#[derive(Debug)]
pub(crate) struct Stalled;

/// Runs tasks in virtual time.
pub(crate) struct Timeline {
    clock: VirtualClock,
    /// A place is never given twice, so that a late wake-up reaches nobody else.
    tasks: Vec<Option<Running>>,
}

struct Running {
    future: Pin<Box<dyn Future<Output = ()>>>,
    place: Arc<Place>,
    waker: Waker,
}

impl Timeline {
    pub(crate) fn new() -> Self {
        let shared = Shared {
            now: AtomicU64::new(START.micros()),
            sleepers: Mutex::default(),
            ready: Mutex::default(),
            spawned: Mutex::default(),
        };
        Self { clock: VirtualClock { shared: Arc::new(shared) }, tasks: Vec::new() }
    }

    pub(crate) fn clock(&self) -> VirtualClock {
        self.clock.clone()
    }

    /// Has a task run, from now on.
    pub(crate) fn spawn(&mut self, task: impl Future<Output = ()> + 'static) {
        self.place(Box::pin(task));
    }

    fn place(&mut self, future: Pin<Box<dyn Future<Output = ()>>>) {
        let index = self.tasks.len();
        let shared = Arc::clone(&self.clock.shared);
        let place = Arc::new(Place { index, is_ready: AtomicBool::new(false), shared });
        place.wake_by_ref();
        let waker = Waker::from(Arc::clone(&place));
        self.tasks.push(Some(Running { future, place, waker }));
    }

    /// Runs until a moment, everything that happens at it included.
    pub(crate) fn run_until(&mut self, at: Moment) {
        loop {
            self.run_ready();
            if !self.wake_next(at) {
                self.clock.shared.now.fetch_max(at.micros(), Relaxed);
                return;
            }
        }
    }

    /// Runs as long as a condition holds.
    ///
    /// # Errors
    /// [`Stalled`] where it would hold for ever.
    pub(crate) fn run_while(&mut self, condition: impl Fn() -> bool) -> Result<(), Stalled> {
        while condition() {
            self.run_ready();
            if condition() && !self.wake_next(Moment::from_micros(u64::MAX)) {
                return Err(Stalled);
            }
        }
        Ok(())
    }

    /// Runs what is ready, at the moment that it is.
    fn run_ready(&mut self) {
        loop {
            let spawned = std::mem::take(&mut *locked(&self.clock.shared.spawned));
            for task in spawned {
                self.place(task);
            }
            let next = locked(&self.clock.shared.ready).pop_front();
            match next {
                Some(index) => self.poll(index),
                None => return,
            }
        }
    }

    fn poll(&mut self, index: usize) {
        let Some(slot) = self.tasks.get_mut(index) else { return };
        let Some(task) = slot else { return };
        task.place.is_ready.store(false, Relaxed);
        if task.future.as_mut().poll(&mut Context::from_waker(&task.waker)).is_ready() {
            *slot = None;
        }
    }

    /// Goes on to the next moment at which somebody wakes, if that is `at` or earlier, and wakes the first of them.
    fn wake_next(&mut self, at: Moment) -> bool {
        let mut sleepers = locked(&self.clock.shared.sleepers);
        let Some(first) = sleepers.by_moment.first_entry().filter(|first| first.key().0 <= at) else {
            return false;
        };
        let ((moment, _), waker) = first.remove_entry();
        drop(sleepers);
        self.clock.shared.now.fetch_max(moment.micros(), Relaxed);
        waker.wake();
        true
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        // Tasks hold the clock, and the clock those that it was handed.
        self.tasks.clear();
        locked(&self.clock.shared.spawned).clear();
    }
}

#[cfg(test)]
mod tests {
    use std::{cell::RefCell, rc::Rc};

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn sleepers_wake_by_moment_and_then_in_the_order_in_which_they_went_to_sleep() {
        let mut timeline = Timeline::new();
        let clock = timeline.clock();
        let seen = Rc::new(RefCell::new(Vec::new()));
        for (name, length) in [("c", 5), ("a", 2), ("d", 5), ("b", 2)] {
            let (clock, seen) = (clock.clone(), Rc::clone(&seen));
            timeline.spawn(async move {
                clock.wait(MS * length).await;
                seen.borrow_mut().push((name, clock.elapsed()));
            });
        }
        timeline.run_until(VirtualClock::moment(MS * 4));
        assert_eq!(*seen.borrow(), [("a", MS * 2), ("b", MS * 2)]);
        assert_eq!(clock.elapsed(), MS * 4);
        timeline.run_until(VirtualClock::moment(MS * 5));
        assert_eq!(seen.borrow()[2..], [("c", MS * 5), ("d", MS * 5)]);
    }

    #[test]
    fn a_sleep_that_is_dropped_makes_no_time_pass() {
        let mut timeline = Timeline::new();
        let clock = timeline.clock();
        let short = clock.clone();
        timeline.spawn(async move {
            let mut long = Box::pin(short.wait(MS * 1_000));
            std::future::poll_fn(|context| {
                assert!(long.as_mut().poll(context).is_pending());
                Poll::Ready(())
            })
            .await;
            drop(long);
            short.wait(MS).await;
        });
        let forever = clock.clone();
        timeline.spawn(async move { forever.wait(Duration::MAX).await });
        assert!(timeline.run_while(|| true).is_err(), "nothing is left to happen");
        assert_eq!(clock.elapsed(), MS);
    }

    #[test]
    fn a_task_that_the_clock_is_handed_runs_at_the_same_moment() {
        let mut timeline = Timeline::new();
        let clock = timeline.clock();
        let (outer, ran) = (clock.clone(), Arc::new(AtomicBool::new(false)));
        let inner = Arc::clone(&ran);
        timeline.spawn(async move {
            outer.wait(MS).await;
            let handed: Task = Box::pin(async move { inner.store(true, Relaxed) });
            assert!(outer.spawn(handed).is_ok());
        });
        timeline.run_until(VirtualClock::moment(MS));
        assert!(ran.load(Relaxed));
    }
}
