//! The ceiling over time.

use std::time::Duration;

/// A ceiling that changes at fixed moments, counted from the start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Schedule {
    first: u32,
    /// In order of time.
    changes: Vec<(Duration, u32)>,
}

impl Schedule {
    /// A ceiling that never changes.
    #[cfg(test)]
    pub(super) fn constant(ceiling: u32) -> Self {
        Self::new(ceiling, [])
    }

    /// A ceiling of `first` until the first of `changes`.
    pub(super) fn new(first: u32, changes: impl IntoIterator<Item = (Duration, u32)>) -> Self {
        let mut changes: Vec<_> = changes.into_iter().collect();
        changes.sort_by_key(|&(at, _)| at);
        Self { first, changes }
    }

    /// The ceiling at a moment.
    pub(super) fn at(&self, moment: Duration) -> u32 {
        let passed = self.changes.partition_point(|&(at, _)| at <= moment);
        passed.checked_sub(1).map_or(self.first, |last| self.changes[last].1)
    }

    /// The highest ceiling there ever is.
    pub(super) fn highest(&self) -> u32 {
        self.changes.iter().map(|&(_, ceiling)| ceiling).fold(self.first, u32::max)
    }

    /// The ceilings with the moments that each began.
    pub(super) fn steps(&self) -> Vec<(Duration, u32)> {
        std::iter::once((Duration::ZERO, self.first)).chain(self.changes.iter().copied()).collect()
    }

    /// The places that there are until `end`, in seconds of one place.
    pub(super) fn place_seconds(&self, end: Duration) -> f64 {
        let mut sum = 0.0;
        let mut from = Duration::ZERO;
        let mut ceiling = self.first;
        for &(at, next) in self.changes.iter().take_while(|&&(at, _)| at < end) {
            sum += f64::from(ceiling) * (at - from).as_secs_f64();
            (from, ceiling) = (at, next);
        }
        sum + f64::from(ceiling) * (end - from).as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_change_counts_from_its_moment() {
        let schedule = Schedule::new(20, [(SECOND * 15, 30), (SECOND * 10, 8)]);
        assert_eq!(schedule.at(Duration::ZERO), 20);
        assert_eq!(schedule.at(SECOND * 10 - Duration::from_nanos(1)), 20);
        assert_eq!(schedule.at(SECOND * 10), 8);
        assert_eq!(schedule.at(SECOND * 99), 30);
        assert_eq!(schedule.highest(), 30);
    }

    #[test]
    fn places_add_up_over_the_changes() {
        let schedule = Schedule::new(20, [(SECOND * 10, 8), (SECOND * 15, 30)]);
        assert_eq!(schedule.place_seconds(SECOND * 5), 100.0);
        assert_eq!(schedule.place_seconds(SECOND * 12), 216.0);
        assert_eq!(schedule.place_seconds(SECOND * 20), 200.0 + 40.0 + 150.0);
    }
}
