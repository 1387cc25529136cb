//! The sliding window: a log of what was admitted, and its sum over the last interval.
//!
//! The log is exact up to 512 entries. From there on, jobs that follow each other within 1/512 of the interval share an
//! entry, which leaves with the last of them: stricter by at most that, never laxer.
//!
//! # At most 1,024 entries
//! Let W be the interval and s = ⌊W / 512⌋, so that 512 × (s + 1) > W. Let f and l be the first and the last moment of
//! an entry. Call an entry *spaced* if its push found 512 others: it came at least s + 1 after the f of the one before,
//! else it would have joined that. Jobs of other moments join an entry only within s of its f, so l ≤ f + s.
//!
//! Let e be the newest entry that is not spaced. With it there were at most 512 entries, and only spaced ones since:
//!
//! - While there are at most 511 of these, there are at most 1,023 entries.
//! - When the 512th comes, 512 × (s + 1) > W have passed since the f of e. All before e have left: at most 513 remain.
//! - When the 513th comes, 513 × (s + 1) − s > W have passed since the l of e, and e has left too. In the same way each
//!   spaced one has left when the 513th after it comes, so there are never more than 513 from here on.
//!
//! An entry that leaves early, because all of its cost was given back, only makes the gaps wider.

use std::collections::VecDeque;

use super::{CheckedRule, Counts};

/// With fewer live entries than this, jobs of different moments never share one.
const CROWDED: usize = 512;

/// Jobs that share an entry lie within this part of the interval.
const PART: u64 = 512;

/// What was admitted within the last interval.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SlidingWindow {
    /// Oldest first. No two entries overlap.
    log: VecDeque<Entry>,
    /// The sum over the log.
    total: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    first_ms: u64,
    /// One interval after this, the whole entry leaves.
    last_ms: u64,
    /// Above 0.
    sum: u64,
}

impl Entry {
    const fn leaves_at(&self, rule: &CheckedRule) -> u64 {
        self.last_ms.saturating_add(rule.interval_ms())
    }
}

impl Counts for SlidingWindow {
    fn advance(&mut self, rule: &CheckedRule, now_ms: u64) {
        while let Some(oldest) = self.log.front()
            && now_ms >= oldest.leaves_at(rule)
        {
            self.total = self.total.saturating_sub(oldest.sum);
            self.log.pop_front();
        }
    }

    fn used(&self) -> u64 {
        self.total
    }

    fn rests(&self) -> bool {
        self.log.is_empty()
    }

    fn frees_in(&self, rule: &CheckedRule, now_ms: u64, amount: u64) -> u64 {
        let mut freed: u64 = 0;
        let frees = |entry: &&Entry| {
            freed = freed.saturating_add(entry.sum);
            freed >= amount
        };
        let last = self.log.iter().find(frees).or(self.log.back());
        last.map_or(0, |entry| entry.leaves_at(rule)).saturating_sub(now_ms)
    }

    fn add(&mut self, rule: &CheckedRule, now_ms: u64, amount: u64) {
        self.total = self.total.saturating_add(amount);
        let crowded = self.log.len() >= CROWDED;
        let apart = rule.interval_ms() / PART;
        match self.log.back_mut() {
            Some(entry) if entry.last_ms >= now_ms || crowded && now_ms - entry.first_ms <= apart => {
                entry.last_ms = entry.last_ms.max(now_ms);
                entry.sum = entry.sum.saturating_add(amount);
            }
            _ => self.log.push_back(Entry { first_ms: now_ms, last_ms: now_ms, sum: amount }),
        }
    }

    fn give_back(&mut self, granted_ms: u64, amount: u64) {
        let place = self.log.partition_point(|entry| entry.last_ms < granted_ms);
        let Some(entry) = self.log.get_mut(place).filter(|entry| entry.first_ms <= granted_ms) else {
            return;
        };
        let given = amount.min(entry.sum);
        entry.sum -= given;
        self.total = self.total.saturating_sub(given);
        if entry.sum == 0 {
            self.log.remove(place);
        }
    }

    fn rests_at(&self, rule: &CheckedRule) -> u64 {
        self.log.back().map_or(0, |newest| newest.leaves_at(rule))
    }

    fn shift_back(&mut self, ms: u64) {
        for entry in &mut self.log {
            entry.first_ms = entry.first_ms.saturating_sub(ms);
            entry.last_ms = entry.last_ms.saturating_sub(ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Rule;
    use super::*;

    fn rule(interval_ms: u64) -> CheckedRule {
        Rule::sliding_window(1_000_000_000_000, Duration::from_millis(interval_ms)).check().unwrap()
    }

    /// A window into which something was put at each of these moments.
    fn filled(rule: &CheckedRule, moments: impl IntoIterator<Item = u64>) -> (SlidingWindow, usize) {
        let (mut window, mut longest) = (SlidingWindow::default(), 0);
        for now_ms in moments {
            window.advance(rule, now_ms);
            window.add(rule, now_ms, 1);
            longest = longest.max(window.log.len());
        }
        assert_eq!(window.total, window.log.iter().map(|entry| entry.sum).sum::<u64>());
        (window, longest)
    }

    #[test]
    fn ru_5_sliding_window_shares_no_entry_up_to_512_jobs() {
        let (mut window, _) = filled(&rule(1_000_000), 0..512);
        assert_eq!(window.log.len(), 512);
        window.add(&rule(1_000_000), 512, 1);
        assert_eq!(window.log.len(), 512);
        assert_eq!(window.log.back(), Some(&Entry { first_ms: 511, last_ms: 512, sum: 2 }));
    }

    #[test]
    fn ru_5_sliding_window_joins_jobs_within_a_512th_of_the_interval() {
        let rule = rule(512 * 10 + 511);
        let (mut window, _) = filled(&rule, 0..512);
        window.add(&rule, 521, 1);
        assert_eq!(window.log.len(), 512);
        window.add(&rule, 522, 1);
        assert_eq!(window.log.len(), 513);
    }

    #[test]
    fn ru_5_sliding_window_keeps_at_most_1024_entries() {
        for interval_ms in [1, 2, 511, 512, 513, 1_023, 1_024, 1_025, 5_000, 51_199, 51_200, 100_000] {
            let (rule, part) = (rule(interval_ms), interval_ms / PART);
            for step in [1, 2, 3, part.max(1), part + 1] {
                let (_, longest) = filled(&rule, (0..4_000).map(|job| job * step));
                assert!(longest <= 1_024, "{longest} entries of {interval_ms} ms, one every {step} ms");
            }
            let (_, longest) = filled(&rule, worst(part + 1));
            assert!(longest <= 1_024, "{longest} entries of {interval_ms} ms");
        }
        assert_eq!(filled(&rule(100_000), worst(196)).1, 1_019);
    }

    /// As many as can be at once, then each as soon as it does not join the one before.
    fn worst(apart: u64) -> impl Iterator<Item = u64> {
        (0..511).chain((0..2_000).map(move |job| 511 + job * apart))
    }

    #[test]
    fn st_6_sliding_window_hint_waits_for_as_many_entries_as_it_takes() {
        let rule = rule(1_000);
        let (window, _) = filled(&rule, [0, 0, 10, 300]);
        assert_eq!(window.frees_in(&rule, 400, 1), 600);
        assert_eq!(window.frees_in(&rule, 400, 2), 600);
        assert_eq!(window.frees_in(&rule, 400, 3), 610);
        assert_eq!(window.frees_in(&rule, 400, 4), 900);
        assert_eq!(window.frees_in(&rule, 400, 5), 900);
    }

    #[test]
    fn st_12_sliding_window_credits_the_entry_that_was_charged() {
        let rule = rule(1_000);
        let (mut window, _) = filled(&rule, [0, 10, 10, 300]);
        window.give_back(5, 1);
        assert_eq!(window.total, 4);
        window.give_back(10, 1);
        assert_eq!(window.log.get(1), Some(&Entry { first_ms: 10, last_ms: 10, sum: 1 }));
        window.give_back(0, 9);
        assert_eq!((window.total, window.log.len()), (2, 2));
        window.advance(&rule, 1_010);
        window.give_back(10, 1);
        assert_eq!((window.total, window.log.len()), (1, 1));
    }
}
