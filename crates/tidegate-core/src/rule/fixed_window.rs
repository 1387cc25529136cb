//! The fixed window: a count that starts with the first job and is dropped whole when the window is over.

use super::{CheckedRule, Counts};

/// The window that runs, if one does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct FixedWindow {
    /// The moment of the first job. The window ends one interval later; that millisecond belongs to the next one.
    start_ms: Option<u64>,
    /// What the window has admitted, corrected.
    count: u64,
}

impl Counts for FixedWindow {
    fn advance(&mut self, rule: &CheckedRule, now_ms: u64) {
        if now_ms >= self.rests_at(rule) {
            *self = Self::default();
        }
    }

    fn used(&self) -> u64 {
        self.count
    }

    fn rests(&self) -> bool {
        self.start_ms.is_none()
    }

    fn frees_in(&self, rule: &CheckedRule, now_ms: u64, _amount: u64) -> u64 {
        self.rests_at(rule).saturating_sub(now_ms)
    }

    fn add(&mut self, _rule: &CheckedRule, now_ms: u64, amount: u64) {
        self.start_ms.get_or_insert(now_ms);
        self.count = self.count.saturating_add(amount);
    }

    fn give_back(&mut self, granted_ms: u64, amount: u64) {
        // The window goes on even where nothing is left in it: its end does not depend on what its jobs turn out to be.
        if self.start_ms.is_some_and(|start_ms| start_ms <= granted_ms) {
            self.count = self.count.saturating_sub(amount);
        }
    }

    fn rests_at(&self, rule: &CheckedRule) -> u64 {
        self.start_ms.map_or(0, |start_ms| start_ms.saturating_add(rule.interval_ms()))
    }

    fn shift_back(&mut self, ms: u64) {
        self.start_ms = self.start_ms.map(|start_ms| start_ms.saturating_sub(ms));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{Rule, RuleState};
    use super::*;

    fn rule() -> CheckedRule {
        Rule::fixed_window(5, Duration::from_secs(1)).check().unwrap()
    }

    #[test]
    fn ru_5_fixed_window_starts_with_the_first_job() {
        let (rule, mut state) = (rule(), RuleState::resting(&rule(), 0));
        assert_eq!(state.room(&rule, 700, 5), Ok(()));
        state.spend(&rule, 700, 5);
        assert_eq!(state.room(&rule, 700, 1), Err(1_000));
        assert_eq!(state.room(&rule, 1_699, 5), Err(1));
        assert_eq!(state.room(&rule, 1_700, 5), Ok(()));
    }

    #[test]
    fn ru_2_a_cost_of_nothing_starts_no_fixed_window() {
        let (rule, mut state) = (rule(), RuleState::resting(&rule(), 0));
        state.spend(&rule, 100, 0);
        state.spend(&rule, 900, 1);
        assert_eq!(state.rests_at(&rule), 1_900);
    }

    #[test]
    fn st_12_fixed_window_credits_only_the_window_that_was_charged() {
        let (rule, mut state) = (rule(), RuleState::resting(&rule(), 0));
        state.spend(&rule, 0, 5);
        assert_eq!(state.settle(&rule, 500, 0, 5, 2), 0);
        assert_eq!(state.level(&rule, 500), 3);
        state.spend(&rule, 1_200, 4);
        assert_eq!(state.settle(&rule, 1_300, 500, 3, 0), 0);
        assert_eq!(state.level(&rule, 1_300), 1);
    }

    #[test]
    fn st_12_fixed_window_can_go_over_its_limit_by_ten_limits() {
        let (rule, mut state) = (rule(), RuleState::resting(&rule(), 0));
        state.spend(&rule, 0, 5);
        assert_eq!(state.settle(&rule, 100, 0, 5, 54), 0);
        assert_eq!(state.settle(&rule, 100, 0, 5, 54), 48);
        assert_eq!(state.level(&rule, 100), -50);
        assert_eq!(state.room(&rule, 100, 1), Err(900));
        // What comes after the end starts a window of its own.
        assert_eq!(state.settle(&rule, 1_000, 0, 5, 6), 0);
        assert_eq!(state.rests_at(&rule), 2_000);
    }
}
