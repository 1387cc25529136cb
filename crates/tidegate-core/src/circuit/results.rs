//! What a circuit remembers of calls, and what it makes of that.

use std::collections::VecDeque;

use super::{
    policy::{CheckedStrategy, MOST_RESULTS},
    sampling::Samples,
};
use crate::{Fraction, Invalid, time::EXACT};

/// The most runs of one batch.
pub const MOST_RUNS: usize = 1_000;
/// The most results of one run.
pub const MOST_TIMES: u32 = 1_000_000;

/// What is said of a call or a check.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Verdict {
    /// It worked.
    Success,
    /// It did not.
    Failure,
}

/// Results of the same kind that follow each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// What all of them were.
    pub verdict: Verdict,
    /// How many: 1 to 1,000,000.
    pub times: u32,
}

impl Run {
    /// So many successes.
    pub const fn successes(times: u32) -> Self {
        Self { verdict: Verdict::Success, times }
    }

    /// So many failures.
    pub const fn failures(times: u32) -> Self {
        Self { verdict: Verdict::Failure, times }
    }

    fn failed(&self) -> u64 {
        if self.verdict == Verdict::Failure { self.times.into() } else { 0 }
    }
}

/// The results that one process reports at once, in the order in which its calls ended.
///
/// Spec: CB-8.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Batch(Vec<Run>);

impl Batch {
    /// Checks a batch: at most 1,000 runs, each of 1 to 1,000,000 results. An empty one says only that the process is
    /// there.
    ///
    /// # Errors
    /// [`Invalid`] for more runs, and for a run out of its bounds.
    pub fn new(runs: Vec<Run>) -> Result<Self, Invalid> {
        if runs.len() > MOST_RUNS {
            return Err(Invalid::new("runs", runs.len(), "at most 1000 runs"));
        }
        match runs.iter().find(|run| !(1..=MOST_TIMES).contains(&run.times)) {
            Some(run) => Err(Invalid::new("run.times", run.times, "1 to 1000000")),
            None => Ok(Self(runs)),
        }
    }

    /// Its runs, oldest first.
    pub fn runs(&self) -> &[Run] {
        &self.0
    }

    /// The runs as at most `most` results, with their order and the share of failures kept. Rounding makes failures
    /// more, and none comes later than it did. A run of which nothing is left has no results.
    ///
    /// With N results, F of them failures, `⌈F × most / N⌉` failures and the rest successes are left. Of the first f
    /// failures `⌈f × most / N⌉` are, and of the first s successes the whole part of their share.
    pub(super) fn thinned(&self, most: u32) -> impl Iterator<Item = Run> {
        let all: u64 = self.0.iter().map(|run| u64::from(run.times)).sum();
        let failed: u64 = self.0.iter().map(Run::failed).sum();
        // At most 10^9 results. Only a `Count` cuts them, to at most 1,000: so no product passes 10^12.
        let most = u64::from(most).min(all);
        let failures = move |f: u64| if most == all { f } else { (f * most).div_ceil(all) };
        let (worked, left) = (all - failed, most - failures(failed));
        let successes = move |s: u64| if most == all { s } else { s * left / worked };
        let (mut f, mut s) = (0, 0);
        self.0.iter().map(move |run| {
            let (seen, kept): (&mut u64, &dyn Fn(u64) -> u64) = match run.verdict {
                Verdict::Failure => (&mut f, &failures),
                Verdict::Success => (&mut s, &successes),
            };
            let before = kept(*seen);
            *seen += u64::from(run.times);
            // No more than the run had, since neither share is above one.
            let times = u32::try_from(kept(*seen) - before).unwrap_or(run.times);
            Run { verdict: run.verdict, times }
        })
    }
}

/// Whether `failures` of `calls` are at least the threshold; exactly, for any numbers below 2^53.
pub(super) fn reaches(threshold: Fraction, failures: u64, calls: u64) -> bool {
    let (ppm, million) = (u64::from(threshold.ppm()), u64::from(Fraction::ONE.ppm()));
    // In two parts, so that neither product passes 2^53.
    failures >= calls / million * ppm + (calls % million * ppm).div_ceil(million)
}

/// The last results, up to a number, oldest first.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Recent {
    runs: VecDeque<Run>,
    calls: u32,
    failures: u32,
}

impl Recent {
    fn add(&mut self, run: Run, size: u32) {
        let times = run.times.min(size);
        match self.runs.back_mut() {
            Some(last) if last.verdict == run.verdict => last.times += times,
            _ => self.runs.push_back(Run { times, ..run }),
        }
        self.calls += times;
        self.failures += if run.verdict == Verdict::Failure { times } else { 0 };
        while self.calls > size
            && let Some(oldest) = self.runs.front_mut()
        {
            let gone = oldest.times.min(self.calls - size);
            oldest.times -= gone;
            self.calls -= gone;
            self.failures -= if oldest.verdict == Verdict::Failure { gone } else { 0 };
            if oldest.times == 0 {
                self.runs.pop_front();
            }
        }
    }
}

/// What a strategy keeps.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Results {
    /// Failures since the last success.
    Consecutive(u32),
    Count(Recent),
    Sampling(Samples),
    Custom(Recent),
}

impl Results {
    pub(super) fn new(strategy: &CheckedStrategy) -> Self {
        match strategy {
            CheckedStrategy::Consecutive { .. } => Self::Consecutive(0),
            CheckedStrategy::Count { .. } => Self::Count(Recent::default()),
            CheckedStrategy::Sampling { .. } => Self::Sampling(Samples::default()),
            CheckedStrategy::Custom { .. } => Self::Custom(Recent::default()),
        }
    }

    /// Takes in a run, and says whether the strategy opens after it.
    ///
    /// Spec: CB-1.
    pub(super) fn add(&mut self, strategy: &CheckedStrategy, run: Run, now_ms: u64) -> bool {
        match (self, strategy) {
            (Self::Consecutive(failures), CheckedStrategy::Consecutive { threshold }) => {
                *failures = match run.verdict {
                    Verdict::Success => 0,
                    Verdict::Failure => failures.saturating_add(run.times).min(MOST_RESULTS),
                };
                *failures >= *threshold
            }
            (Self::Count(recent), CheckedStrategy::Count { threshold, size, minimum_calls }) => {
                recent.add(run, *size);
                recent.calls >= *minimum_calls
                    && reaches(*threshold, recent.failures.into(), recent.calls.into())
            }
            (
                Self::Sampling(samples),
                CheckedStrategy::Sampling { threshold, duration_ms, minimum_calls },
            ) => {
                samples.add(*duration_ms, run, now_ms);
                let seen = samples.seen(*duration_ms, now_ms);
                seen.certain >= u64::from(*minimum_calls)
                    && reaches(*threshold, seen.failures, (seen.failures + seen.successes).min(EXACT - 1))
            }
            (Self::Custom(recent), CheckedStrategy::Custom { keep }) => {
                recent.add(run, *keep);
                false
            }
            // A state is carried before it is used under another strategy.
            _ => false,
        }
    }

    /// Whether what is kept under one strategy is of use under another.
    pub(super) fn fits(from: &CheckedStrategy, to: &CheckedStrategy) -> bool {
        use CheckedStrategy as S;
        match (from, to) {
            (S::Consecutive { .. }, S::Consecutive { .. }) => true,
            (S::Count { size: a, .. }, S::Count { size: b, .. }) => a == b,
            (S::Sampling { duration_ms: a, .. }, S::Sampling { duration_ms: b, .. }) => a == b,
            (S::Custom { keep: a }, S::Custom { keep: b }) => a == b,
            _ => false,
        }
    }

    /// The results themselves, where they are kept one by one.
    pub(super) fn recent(&self) -> impl Iterator<Item = Run> {
        let runs = match self {
            Self::Count(recent) | Self::Custom(recent) => Some(&recent.runs),
            Self::Consecutive(_) | Self::Sampling(_) => None,
        };
        runs.into_iter().flatten().copied()
    }

    pub(super) fn sweep(&mut self, strategy: &CheckedStrategy, now_ms: u64) {
        if let (Self::Sampling(samples), CheckedStrategy::Sampling { duration_ms, .. }) = (self, strategy) {
            samples.advance(*duration_ms, now_ms);
        }
    }

    pub(super) fn shift_back(&mut self, ms: u64) {
        if let Self::Sampling(samples) = self {
            samples.shift_back(ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn left(runs: &[Run], most: u32) -> Vec<Run> {
        Batch::new(runs.to_vec()).unwrap().thinned(most).collect()
    }

    #[test]
    fn cb_8_a_batch_is_thinned_in_its_order_with_its_share_of_failures_rounded_up() {
        let runs = [Run::successes(90), Run::failures(10)];
        assert_eq!(left(&runs, 100), runs);
        assert_eq!(left(&runs, 10), [Run::successes(9), Run::failures(1)]);
        assert_eq!(left(&runs, 15), [Run::successes(13), Run::failures(2)]);
        assert_eq!(left(&runs, 1), [Run::successes(0), Run::failures(1)]);
        assert_eq!(left(&[Run::successes(90)], 7), [Run::successes(7)]);
        assert_eq!(left(&[Run::failures(MOST_TIMES)], 7), [Run::failures(7)]);
        assert_eq!(left(&[], 7), []);
        let mixed = [Run::failures(1), Run::successes(1), Run::failures(1), Run::successes(1)];
        assert_eq!(left(&mixed, 2).iter().map(|run| run.times).sum::<u32>(), 2);
        assert_eq!(left(&mixed, 3).iter().map(|run| u64::from(run.times)).sum::<u64>(), 3);
    }

    #[test]
    fn cb_8_a_thinned_batch_has_exactly_its_number_and_at_every_point_its_share_of_failures() {
        for (a, b, c, most) in (1..9).flat_map(|a| {
            (1..9).flat_map(move |b| (1..9).flat_map(move |c| (1..30).map(move |most| (a, b, c, most))))
        }) {
            let runs = [Run::successes(a), Run::failures(b), Run::successes(c), Run::failures(a)];
            let (all, failed) = (2 * a + b + c, a + b);
            let thin = left(&runs, most);
            assert_eq!(thin.iter().map(|run| run.times).sum::<u32>(), most.min(all));
            assert!(runs.iter().zip(&thin).all(|(run, thin)| thin.times <= run.times));
            let most = most.min(all);
            assert_eq!(thin[1].times, (b * most).div_ceil(all));
            assert_eq!(thin[1].times + thin[3].times, (failed * most).div_ceil(all));
            assert_eq!(thin[0].times, a * thin.iter().step_by(2).map(|run| run.times).sum::<u32>() / (a + c));
        }
    }

    #[test]
    fn cb_1_exactly_the_threshold_opens_also_where_numbers_are_large() {
        let threshold = Fraction::from_ppm(333_333);
        let calls = EXACT - 1;
        let least = u64::try_from((u128::from(calls) * 333_333).div_ceil(1_000_000)).unwrap();
        assert!(reaches(threshold, least, calls) && !reaches(threshold, least - 1, calls));
        assert!(reaches(Fraction::HALF, 2, 4) && !reaches(Fraction::HALF, 2, 5));
        assert!(reaches(Fraction::ONE, calls, calls) && !reaches(Fraction::ONE, calls - 1, calls));
    }

    #[test]
    fn cb_8_the_last_results_are_kept_as_runs() {
        let mut recent = Recent::default();
        for run in [Run::failures(3), Run::successes(4), Run::successes(2), Run::failures(1)] {
            recent.add(run, 8);
        }
        assert_eq!(recent.runs, [Run::failures(1), Run::successes(6), Run::failures(1)]);
        assert_eq!((recent.calls, recent.failures), (8, 2));
        recent.add(Run::failures(MOST_TIMES), 8);
        assert_eq!((recent.runs.len(), recent.calls, recent.failures), (1, 8, 8));
    }
}
