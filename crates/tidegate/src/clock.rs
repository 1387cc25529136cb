//! The one seam of time: what now is, and waiting until a moment.
//!
//! A driver and a memory store take a [`Clock`]; tests and the simulator give them one that they set.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use tidegate_core::{
    SyncPath,
    time::{LAST, Moment},
};

use crate::background;

/// Waits until a moment of its clock.
pub type Sleep = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What goes on in the background of a primitive.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What now is, and waiting. Never runs back.
pub trait Clock: Send + Sync + 'static {
    /// Now.
    fn now(&self) -> Moment;

    /// Completes at `at`, or a little later.
    fn sleep_until(&self, at: Moment) -> Sleep;

    /// Whether this clock goes by itself. Renewals have a thread of their own on one that does, and are a task on one
    /// that is set.
    fn pace(&self) -> Pace;

    /// Runs a task, where the clock is that of an executor which is no tokio runtime; gives it back where it is not, and
    /// then it runs on the caller's runtime.
    ///
    /// # Errors
    /// The task, unchanged.
    fn spawn(&self, task: Task) -> Result<(), Task> {
        Err(task)
    }
}

/// How a clock goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pace {
    /// By itself, whatever this process does.
    Real,
    /// As a test or a simulation sets it.
    Set,
}

/// The machine's clock: it starts at the time of day and then runs on evenly, through suspend too, whatever is done to
/// the time of day.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock {
    /// Time of day less the time since boot, in microseconds, when this clock was made.
    anchor: u64,
}

impl SystemClock {
    /// A clock that starts at the time of day.
    pub fn new() -> Self {
        let day = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let day = u64::try_from(day.as_micros()).unwrap_or(0);
        Self { anchor: day.saturating_sub(since_boot()) }
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Moment {
        Moment::from_micros(self.anchor + since_boot())
    }

    fn sleep_until(&self, at: Moment) -> Sleep {
        background::sleep(at.since(self.now()))
    }

    fn pace(&self) -> Pace {
        Pace::Real
    }
}

/// Microseconds since boot, time in suspend included where the system counts it.
fn since_boot() -> u64 {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let clock = rustix::time::ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let clock = rustix::time::ClockId::Monotonic;
    let at = rustix::time::clock_gettime(clock);
    let seconds = u64::try_from(at.tv_sec).unwrap_or(0);
    let micros = u64::try_from(at.tv_nsec).unwrap_or(0) / 1_000;
    seconds * 1_000_000 + micros
}

/// A clock that comes from outside: it never shows more than the last moment there is.
pub(crate) struct Bounded<C>(pub(crate) C);

impl<C: Clock> Clock for Bounded<C> {
    fn now(&self) -> Moment {
        self.0.now().min(LAST)
    }

    fn sleep_until(&self, at: Moment) -> Sleep {
        self.0.sleep_until(at)
    }

    fn pace(&self) -> Pace {
        self.0.pace()
    }

    fn spawn(&self, task: Task) -> Result<(), Task> {
        self.0.spawn(task)
    }
}

/// The clock of a store in this process, so that one look serves both.
pub(crate) struct StoreClock {
    sync: Arc<dyn SyncPath>,
}

impl StoreClock {
    pub(crate) fn new(sync: Arc<dyn SyncPath>) -> Self {
        Self { sync }
    }
}

impl Clock for StoreClock {
    fn now(&self) -> Moment {
        self.sync.now().min(LAST)
    }

    fn sleep_until(&self, at: Moment) -> Sleep {
        background::sleep(at.since(self.now()))
    }

    fn pace(&self) -> Pace {
        Pace::Real
    }
}

/// The clock of a tokio runtime, which a test can pause: it starts at zero plus an hour when it is made.
#[derive(Clone, Copy, Debug)]
pub struct TokioClock {
    start: tokio::time::Instant,
}

/// So that nothing a test does goes below the clock's zero.
const AN_HOUR: Duration = Duration::from_secs(3_600);

impl TokioClock {
    /// A clock that starts now.
    pub fn new() -> Self {
        Self { start: tokio::time::Instant::now() }
    }
}

impl Default for TokioClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for TokioClock {
    fn now(&self) -> Moment {
        Moment::default().plus(AN_HOUR + self.start.elapsed())
    }

    fn sleep_until(&self, at: Moment) -> Sleep {
        let after = at.since(Moment::default().plus(AN_HOUR));
        match self.start.checked_add(after) {
            Some(at) => Box::pin(tokio::time::sleep_until(at)),
            None => Box::pin(std::future::pending()),
        }
    }

    fn pace(&self) -> Pace {
        Pace::Set
    }
}

impl<C: Clock> Clock for Arc<C> {
    fn now(&self) -> Moment {
        (**self).now()
    }

    fn sleep_until(&self, at: Moment) -> Sleep {
        (**self).sleep_until(at)
    }

    fn pace(&self) -> Pace {
        (**self).pace()
    }

    fn spawn(&self, task: Task) -> Result<(), Task> {
        (**self).spawn(task)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_6_the_machine_clock_counts_on_and_never_back() {
        let clock = SystemClock::new();
        let moments: Vec<Moment> = (0..1_000).map(|_| clock.now()).collect();
        assert!(moments.windows(2).all(|pair| pair[0] <= pair[1]));
        let day = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let apart = clock.now().since(Moment::default()).abs_diff(day);
        assert!(apart < Duration::from_secs(5), "{apart:?} from the time of day");
    }
}
