//! A clock that is set by hand.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tidegate_core::time::Moment;

/// A clock that stands still until it is set. A cheap clone of one thing, for a store and for its test.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate_core::time::Moment;
/// use tidegate_testkit::clock::SettableClock;
///
/// let clock = SettableClock::at(Moment::from_millis(1_000));
/// let of_the_store = clock.clone();
/// clock.advance(Duration::from_millis(5));
/// assert_eq!(of_the_store.now(), Moment::from_millis(1_005));
/// ```
#[derive(Clone, Debug)]
pub struct SettableClock(Arc<AtomicU64>);

impl SettableClock {
    /// A clock that shows `now`.
    pub fn at(now: Moment) -> Self {
        Self(Arc::new(AtomicU64::new(now.micros())))
    }

    /// What it shows.
    pub fn now(&self) -> Moment {
        Moment::from_micros(self.0.load(Ordering::SeqCst))
    }

    /// Sets it, forwards or backwards.
    pub fn set(&self, now: Moment) {
        self.0.store(now.micros(), Ordering::SeqCst);
    }

    /// Sets it forward; saturates.
    pub fn advance(&self, by: Duration) {
        self.shift(|now| now.plus(by));
    }

    /// Sets it back; saturates.
    pub fn step_back(&self, by: Duration) {
        let by = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
        self.shift(|now| Moment::from_micros(now.micros().saturating_sub(by)));
    }

    fn shift(&self, to: impl Fn(Moment) -> Moment) {
        let shifted = |micros| Some(to(Moment::from_micros(micros)).micros());
        // It always has a next value, so it never fails.
        let _ = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, shifted);
    }
}

impl Default for SettableClock {
    /// Shows a moment like those of a real store.
    fn default() -> Self {
        Self::at(START)
    }
}

/// Where the clock of a trial starts: in June 2025.
pub(crate) const START: Moment = Moment::from_millis(1_750_000_000_000);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_set_in_both_directions_and_saturates() {
        let clock = SettableClock::default();
        clock.step_back(Duration::from_millis(3));
        assert_eq!(clock.now(), Moment::from_millis(START.millis() - 3));
        clock.step_back(Duration::MAX);
        assert_eq!(clock.now(), Moment::default());
        clock.advance(Duration::MAX);
        assert_eq!(clock.now(), Moment::from_micros(u64::MAX));
    }
}
