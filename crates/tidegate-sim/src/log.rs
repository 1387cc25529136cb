//! What happens, written down as it happens, in a space that does not grow with the calls.

use std::time::Duration;

use crate::{profile::Profile, provider::Answer};

/// Throttled calls closer together than this are one mark.
const APART: Duration = Duration::from_millis(10);

/// The calls of a run.
pub(crate) struct Log {
    end: Duration,
    /// From when on each ceiling holds, and the calls of its time.
    stretches: Vec<(Duration, Stretch)>,
    pub(crate) failed: u64,
    pub(crate) timeouts: u64,
    pub(crate) waits: Waits,
    pub(crate) ok_by_worker: Vec<u64>,
    pub(crate) throttles: Vec<Duration>,
}

/// The calls answered while one ceiling held.
#[derive(Clone, Copy, Default)]
pub(crate) struct Stretch {
    pub(crate) calls: u64,
    pub(crate) throttled: u64,
    /// Place time of the calls that ended well, in microseconds.
    pub(crate) served_micros: u128,
}

impl Log {
    pub(crate) fn new(end: Duration, profile: &Profile, workers: usize) -> Self {
        Self {
            end,
            stretches: profile.steps().iter().map(|(from, _)| (*from, Stretch::default())).collect(),
            failed: 0,
            timeouts: 0,
            waits: Waits::new(),
            ok_by_worker: vec![0; workers],
            throttles: Vec::new(),
        }
    }

    /// A call of `worker` that had waited so long for its lease was answered now. Later than the end it does not count.
    pub(crate) fn answered(&mut self, worker: usize, waited: Duration, answer: Answer, now: Duration) {
        if now > self.end {
            return;
        }
        self.waits.add(waited);
        let Some((_, stretch)) = self.stretches.iter_mut().rev().find(|(from, _)| *from <= now) else {
            return;
        };
        stretch.calls += 1;
        match answer {
            Answer::Ok { from, to } => {
                stretch.served_micros += to.min(self.end).saturating_sub(from).as_micros();
                if let Some(ok) = self.ok_by_worker.get_mut(worker) {
                    *ok += 1;
                }
            }
            Answer::Failed => self.failed += 1,
            Answer::Throttled => {
                stretch.throttled += 1;
                if self.throttles.last().is_none_or(|last| now >= *last + APART) {
                    self.throttles.push(now);
                }
            }
        }
    }

    /// The calls of the time of each ceiling, in order.
    pub(crate) fn stretches(&self) -> impl Iterator<Item = Stretch> + '_ {
        self.stretches.iter().map(|(_, stretch)| *stretch)
    }
}

/// How long acquires waited, counted in steps of less than one per cent.
#[derive(Clone)]
pub(crate) struct Waits {
    counts: Vec<u64>,
    total: u64,
    longest: Duration,
}

/// Steps to a doubling, as a power of two.
const FINE: u32 = 7;

impl Waits {
    pub(crate) fn new() -> Self {
        Self { counts: Vec::new(), total: 0, longest: Duration::ZERO }
    }

    pub(crate) fn add(&mut self, wait: Duration) {
        let at = step(u64::try_from(wait.as_micros()).unwrap_or(u64::MAX));
        if self.counts.len() <= at {
            self.counts.resize(at + 1, 0);
        }
        if let Some(count) = self.counts.get_mut(at) {
            *count += 1;
        }
        self.total += 1;
        self.longest = self.longest.max(wait);
    }

    /// The wait that `percent` of all did not exceed, to within one per cent above.
    pub(crate) fn percentile(&self, percent: u64) -> Duration {
        let rank = (u128::from(self.total) * u128::from(percent)).div_ceil(100);
        let mut seen = 0u128;
        for (at, count) in self.counts.iter().enumerate() {
            seen += u128::from(*count);
            if *count > 0 && seen >= rank {
                return Duration::from_micros(highest(at)).min(self.longest);
            }
        }
        Duration::ZERO
    }

    pub(crate) const fn longest(&self) -> Duration {
        self.longest
    }
}

/// Which step a number falls into: the numbers below 2^FINE each have one, and each doubling above has 2^FINE.
fn step(micros: u64) -> usize {
    let shift = (u64::BITS - micros.leading_zeros()).saturating_sub(FINE + 1);
    // At most 57 × 128 + 255.
    usize::try_from((u64::from(shift) << FINE) + (micros >> shift)).unwrap_or(usize::MAX)
}

/// The highest number of a step.
fn highest(step: usize) -> u64 {
    let step = step as u64;
    let shift = (step >> FINE).saturating_sub(1);
    let top = step - (shift << FINE);
    ((top + 1) << shift).wrapping_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_in_order_and_less_than_a_hundredth_wide() {
        for exponent in 0..63u32 {
            for micros in [1u64 << exponent, (1 << exponent) + (1 << exponent) / 3, (2 << exponent) - 1] {
                let above = highest(step(micros));
                assert!(above >= micros && above - micros <= micros / 100, "{micros}: {above}");
                assert_eq!(step(above), step(micros));
                assert_eq!(step(above + 1), step(micros) + 1);
            }
        }
        assert_eq!(highest(step(u64::MAX)), u64::MAX);
    }

    #[test]
    fn percentiles_are_those_of_the_waits() {
        let mut waits = Waits::new();
        assert_eq!(waits.percentile(99), Duration::ZERO);
        (1..=1_000).for_each(|ms| waits.add(Duration::from_millis(ms)));
        for (percent, ms) in [(50, 500), (99, 990), (100, 1_000)] {
            let (found, exact) = (waits.percentile(percent), Duration::from_millis(ms));
            assert!(found >= exact && found <= exact * 101 / 100, "{percent} %: {found:?}");
        }
        assert_eq!(waits.percentile(100), Duration::from_secs(1));
    }

    #[test]
    fn a_call_that_is_answered_after_the_end_does_not_count() {
        let second = Duration::from_secs(1);
        let mut log = Log::new(second, &Profile::new(1), 1);
        let served = Answer::Ok { from: second / 2, to: second * 2 };
        log.answered(0, Duration::ZERO, served, second);
        log.answered(0, Duration::ZERO, served, second * 2);
        assert_eq!(log.ok_by_worker, [1]);
        assert_eq!(
            log.stretches().map(|stretch| stretch.served_micros).sum::<u128>(),
            500_000,
            "a place counts until the end"
        );
    }
}
