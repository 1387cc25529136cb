//! Who reports: how many processes were heard lately, and how many of them have a recent failure.

use std::collections::BTreeMap;

use crate::DriverId;

/// A process counts as heard for this long. Spec: CB-8, CB-9.
pub const HEARD_MS: u64 = 10_000;
/// The most processes that are told apart. With more, each batch puts one result into a `Count` all the same.
pub const MOST_REPORTERS: usize = 1_000;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Reporters(BTreeMap<DriverId, Reporter>);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Reporter {
    heard_ms: u64,
    /// The last report that counted.
    number: u64,
    /// Its last failure that counts, since the last change of state.
    failed_ms: Option<u64>,
}

impl Reporters {
    /// A process has been heard; whether this report of it is a new one. Where there are too many, the one that matters least is forgotten: it has no failure
    /// or the oldest, and of these it has been silent for the longest.
    pub(super) fn hear(&mut self, driver: DriverId, number: u64, now_ms: u64) -> bool {
        if self.0.len() >= MOST_REPORTERS && !self.0.contains_key(&driver) {
            let least = self.0.iter().min_by_key(|(driver, who)| (who.failed_ms, who.heard_ms, **driver));
            if let Some(least) = least.map(|(driver, _)| *driver) {
                self.0.remove(&least);
            }
        }
        let who = self.0.entry(driver).or_insert(Reporter { heard_ms: now_ms, number: 0, failed_ms: None });
        who.heard_ms = who.heard_ms.max(now_ms);
        let is_new = number > who.number;
        who.number = who.number.max(number);
        is_new
    }

    /// A process that was just heard has a failure.
    pub(super) fn fail(&mut self, driver: DriverId, now_ms: u64) {
        if let Some(who) = self.0.get_mut(&driver) {
            who.failed_ms = who.failed_ms.max(Some(now_ms));
        }
    }

    /// How many were heard in the last 10 s.
    pub(super) fn heard(&self, now_ms: u64) -> u32 {
        count(self.0.values().filter(|who| is_within(who.heard_ms, HEARD_MS, now_ms)))
    }

    /// How many have a failure within the last `span_ms`.
    pub(super) fn failing(&self, span_ms: u64, now_ms: u64) -> u32 {
        count(self.0.values().filter(|who| who.failed_ms.is_some_and(|ms| is_within(ms, span_ms, now_ms))))
    }

    /// Failures from before a change of state are of no meaning after it.
    pub(super) fn forgive(&mut self) {
        for who in self.0.values_mut() {
            who.failed_ms = None;
        }
    }

    /// Forgets those that count in nothing any more.
    pub(super) fn sweep(&mut self, span_ms: u64, now_ms: u64) {
        self.0.retain(|_, who| {
            is_within(who.heard_ms, HEARD_MS, now_ms)
                || who.failed_ms.is_some_and(|ms| is_within(ms, span_ms, now_ms))
        });
    }

    pub(super) fn shift_back(&mut self, ms: u64) {
        for who in self.0.values_mut() {
            who.heard_ms = who.heard_ms.saturating_sub(ms);
            who.failed_ms = who.failed_ms.map(|failed| failed.saturating_sub(ms));
        }
    }
}

/// Whether a moment lies in `(now − span, now]`.
fn is_within(moment_ms: u64, span_ms: u64, now_ms: u64) -> bool {
    now_ms.saturating_sub(moment_ms) < span_ms
}

fn count<T>(of: impl Iterator<Item = T>) -> u32 {
    // At most 1,000.
    u32::try_from(of.count()).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cb_9_processes_are_bounded_and_those_that_fail_stay() {
        let mut reporters = Reporters::default();
        reporters.hear(DriverId(0), 1, 0);
        reporters.fail(DriverId(0), 0);
        for driver in 1..3_000 {
            reporters.hear(DriverId(driver), 1, 1);
        }
        assert_eq!((reporters.0.len(), reporters.heard(1)), (MOST_REPORTERS, 1_000));
        assert_eq!(reporters.failing(HEARD_MS, 9_999), 1);
        assert_eq!(reporters.failing(HEARD_MS, 10_000), 0);
    }

    #[test]
    fn cb_9_processes_are_swept_when_they_count_in_nothing() {
        let mut reporters = Reporters::default();
        reporters.hear(DriverId(1), 1, 0);
        reporters.hear(DriverId(2), 1, 0);
        reporters.fail(DriverId(2), 0);
        reporters.sweep(60_000, 9_999);
        assert_eq!(reporters.0.len(), 2);
        reporters.sweep(60_000, 10_000);
        assert_eq!((reporters.0.len(), reporters.heard(10_000)), (1, 0));
        reporters.sweep(60_000, 60_000);
        assert_eq!(reporters.0.len(), 0);
    }
}
