//! The results of the last while, in at most 1,024 samples.
//!
//! It is the log of the sliding window: exact up to 512 samples, and from there on results that follow each other within
//! 1/512 of the duration share one. The proof that there are never more than 1,024 is there.
//!
//! # It errs towards closed
//! A sample that spans some time is partly too old for a while. Then its failures no longer count, its successes still
//! do, and neither counts towards the minimum of calls. So what is seen has no failure that the rule has not, every
//! success that it has, and no more calls: wherever this opens, the rule opens too. It can open later, by at most 1/512
//! of the duration.

use std::collections::VecDeque;

use super::results::{Run, Verdict};
use crate::time::EXACT;

/// With fewer samples than this, results of different moments never share one.
const CROWDED: usize = 512;
/// Results that share a sample lie within this part of the duration.
const PART: u64 = 512;

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Samples {
    /// Oldest first. No two overlap, so at most the first is partly too old.
    log: VecDeque<Sample>,
    /// All in the log, below 2^53.
    successes: u64,
    failures: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Sample {
    first_ms: u64,
    last_ms: u64,
    successes: u64,
    failures: u64,
}

/// What counts of the samples at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Seen {
    /// Successes that may lie within the duration.
    pub(super) successes: u64,
    /// Failures that certainly do.
    pub(super) failures: u64,
    /// Calls that certainly do.
    pub(super) certain: u64,
}

impl Samples {
    /// Lets go what is too old as a whole.
    pub(super) fn advance(&mut self, duration_ms: u64, now_ms: u64) {
        while let Some(oldest) = self.log.front()
            && is_over(oldest.last_ms, duration_ms, now_ms)
        {
            self.successes = self.successes.saturating_sub(oldest.successes);
            self.failures = self.failures.saturating_sub(oldest.failures);
            self.log.pop_front();
        }
    }

    pub(super) fn add(&mut self, duration_ms: u64, run: Run, now_ms: u64) {
        self.advance(duration_ms, now_ms);
        let times = u64::from(run.times).min((EXACT - 1).saturating_sub(self.successes + self.failures));
        let (successes, failures) = match run.verdict {
            Verdict::Success => (times, 0),
            Verdict::Failure => (0, times),
        };
        self.successes += successes;
        self.failures += failures;
        let crowded = self.log.len() >= CROWDED;
        let apart = duration_ms / PART;
        match self.log.back_mut() {
            Some(last)
                if last.last_ms >= now_ms || crowded && now_ms.saturating_sub(last.first_ms) <= apart =>
            {
                last.last_ms = last.last_ms.max(now_ms);
                last.successes += successes;
                last.failures += failures;
            }
            _ => self.log.push_back(Sample { first_ms: now_ms, last_ms: now_ms, successes, failures }),
        }
    }

    /// What counts now; [`advance`](Self::advance) came first.
    pub(super) fn seen(&self, duration_ms: u64, now_ms: u64) -> Seen {
        let calls = self.successes + self.failures;
        let (failures, old) = match self.log.front() {
            Some(oldest) if is_over(oldest.first_ms, duration_ms, now_ms) => {
                (oldest.failures, oldest.failures + oldest.successes)
            }
            _ => (0, 0),
        };
        Seen {
            successes: self.successes,
            failures: self.failures.saturating_sub(failures),
            certain: calls.saturating_sub(old),
        }
    }

    pub(super) fn shift_back(&mut self, ms: u64) {
        for sample in &mut self.log {
            sample.first_ms = sample.first_ms.saturating_sub(ms);
            sample.last_ms = sample.last_ms.saturating_sub(ms);
        }
    }
}

/// Whether a moment does not lie in `(now − span, now]`.
fn is_over(moment_ms: u64, span_ms: u64, now_ms: u64) -> bool {
    now_ms.saturating_sub(moment_ms) >= span_ms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cb_1_sampling_keeps_at_most_1024_samples() {
        for duration_ms in [1, 2, 511, 512, 513, 1_023, 1_024, 5_000, 51_199, 51_200, 100_000] {
            let part = duration_ms / PART;
            let even = |step: u64| (0..4_000).map(move |call| call * step);
            let worst = (0..511).chain((0..2_000).map(|call| 511 + call * (part + 1)));
            let mut longest = 0;
            for moments in [
                even(1).collect::<Vec<_>>(),
                even(part.max(1)).collect(),
                even(part + 1).collect(),
                worst.collect(),
            ] {
                let mut samples = Samples::default();
                for now_ms in moments {
                    samples.add(duration_ms, Run::failures(1), now_ms);
                    longest = longest.max(samples.log.len());
                }
                assert_eq!(samples.failures, samples.log.iter().map(|s| s.failures).sum::<u64>());
            }
            assert!(longest <= 1_024, "{longest} samples of {duration_ms} ms");
        }
    }

    #[test]
    fn cb_1_a_sample_that_is_partly_too_old_errs_towards_closed() {
        let duration_ms = 512 * 10;
        let mut samples = Samples::default();
        // Crowded with successes, the last of which are shared over 10 ms.
        for now_ms in 0..512 {
            samples.add(duration_ms, Run::successes(1), now_ms);
        }
        samples.add(duration_ms, Run::failures(1), 515);
        samples.add(duration_ms, Run::successes(1), 521);
        assert_eq!(samples.log.len(), 512);
        let at = 511 + duration_ms;
        samples.advance(duration_ms, at - 1);
        let all = samples.seen(duration_ms, at - 1);
        assert_eq!((all.successes, all.failures, all.certain), (2, 1, 3));
        samples.advance(duration_ms, at);
        let part = samples.seen(duration_ms, at);
        assert_eq!((part.successes, part.failures, part.certain), (2, 0, 0));
        samples.advance(duration_ms, 521 + duration_ms);
        let none = samples.seen(duration_ms, 521 + duration_ms);
        assert_eq!((none.successes, none.failures, none.certain), (0, 0, 0));
    }

    #[test]
    fn bi_2_counts_stay_below_2_to_the_53() {
        let mut samples = Samples { log: VecDeque::new(), successes: 0, failures: EXACT - 3 };
        samples.log.push_back(Sample { first_ms: 5, last_ms: 5, successes: 0, failures: EXACT - 3 });
        samples.add(10, Run::successes(9), 5);
        assert_eq!((samples.successes, samples.failures), (2, EXACT - 3));
        samples.advance(10, 15);
        assert_eq!((samples.successes, samples.failures), (0, 0));
    }
}
