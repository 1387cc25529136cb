//! The hidden ceiling over time: a step series.

use std::time::Duration;

/// The ceiling, and when it changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Profile {
    /// From when on, and how much; the first is from the start. In order.
    steps: Vec<(Duration, u32)>,
}

impl Profile {
    pub(crate) fn new(ceiling: u32) -> Self {
        Self { steps: vec![(Duration::ZERO, ceiling)] }
    }

    pub(crate) fn change(&mut self, at: Duration, ceiling: u32) {
        self.steps.push((at, ceiling));
    }

    pub(crate) fn steps(&self) -> &[(Duration, u32)] {
        &self.steps
    }

    /// The ceiling in force.
    pub(crate) fn at(&self, at: Duration) -> u32 {
        let after = self.steps.partition_point(|(from, _)| *from <= at);
        after.checked_sub(1).and_then(|index| self.steps.get(index)).map_or(0, |(_, ceiling)| *ceiling)
    }

    /// What each ceiling adds up to until the next, or until `end`, in places times microseconds.
    pub(crate) fn place_micros(&self, end: Duration) -> impl Iterator<Item = u128> + '_ {
        let ends = self.steps.iter().skip(1).map(|(at, _)| *at).chain([end]);
        let pieces = self.steps.iter().zip(ends);
        pieces.map(|((from, ceiling), to)| u128::from(*ceiling) * to.saturating_sub(*from).as_micros())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_holds_from_its_moment_on() {
        let second = Duration::from_secs(1);
        let mut profile = Profile::new(40);
        profile.change(second * 10, 12);
        assert_eq!(profile.at(Duration::ZERO), 40);
        assert_eq!(profile.at(second * 10 - Duration::from_micros(1)), 40);
        assert_eq!(profile.at(second * 10), 12);
        assert_eq!(profile.place_micros(second * 15).collect::<Vec<_>>(), [400_000_000, 60_000_000]);
    }
}
