//! Time as the stores count it.
//!
//! Nothing in this crate reads a clock: every decision takes *now* as an argument. A [`Moment`] is a point on one
//! store's own clock, in whole microseconds; rates and deadlines are decided in whole milliseconds, and only fences
//! use the microseconds.

use std::time::Duration;

/// Below this every whole number is exact in a double, which is what Lua and JSON count with.
pub const EXACT: u64 = 1 << 53;

/// The longest interval, pause or TTL that is taken, 366 days; a longer wait means "no end".
pub const LONGEST: Duration = Duration::from_secs(366 * 24 * 60 * 60);

/// A point on a store's own clock, in whole microseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Moment(u64);

impl Moment {
    /// The moment this many microseconds after the clock's zero.
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    /// The moment this many milliseconds after the clock's zero; one that is out of range is the last there is.
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000))
    }

    /// Microseconds since the clock's zero.
    pub const fn micros(self) -> u64 {
        self.0
    }

    /// Whole milliseconds since the clock's zero, rounded down.
    pub const fn millis(self) -> u64 {
        self.0 / 1_000
    }

    /// This moment and `after` more; saturates.
    #[must_use]
    pub fn plus(self, after: Duration) -> Self {
        let whole = after.as_secs().saturating_mul(1_000_000);
        Self(self.0.saturating_add(whole).saturating_add(u64::from(after.subsec_micros())))
    }

    /// How long after `earlier` this is; zero where it is not after it.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(self.0.saturating_sub(earlier.0))
    }
}

/// The last moment that a clock is taken to show, 285 years after its zero. One that is further on stands still here, so
/// that deadlines and fences always have room above it.
pub const LAST: Moment = Moment(EXACT - 1);

/// Whole milliseconds of a duration, rounded up, so that a wait is never cut short; saturates.
pub fn ceil_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn part_of_a_millisecond_counts_as_a_whole_one() {
        assert_eq!(ceil_millis(Duration::from_nanos(1)), 1);
        assert_eq!(ceil_millis(Duration::from_millis(7)), 7);
        assert_eq!(ceil_millis(Duration::ZERO), 0);
        assert_eq!(ceil_millis(Duration::MAX), u64::MAX);
    }
}
