//! What a process has to report, until it is: results in their order, as runs, and how many reports it may send.
//!
//! Failures go at once as long as the budget lasts; successes wait a little for company. In the long run a process sends
//! 20 reports a second at most, whatever its rate of calls.
//!
//! Spec: CB-8.

use std::{collections::VecDeque, time::Duration};

use tidegate_core::{
    circuit::{Batch, MOST_RUNS, MOST_TIMES, Run, Verdict},
    time::Moment,
};

/// How many reports may go at once after a quiet time.
const BURST: u64 = 20;
/// The budget gains one report in so many microseconds.
const EVERY_MICROS: u64 = 50_000;
/// Successes wait so long for company.
const GATHERED: Duration = Duration::from_millis(100);

/// How many reports may be sent.
#[derive(Clone, Copy, Debug)]
struct Budget {
    /// What is left, in microseconds: a report takes [`EVERY_MICROS`].
    left: u64,
    seen: Moment,
}

impl Budget {
    fn refill(&mut self, now: Moment) {
        let gained = now.micros().saturating_sub(self.seen.micros());
        self.left = self.left.saturating_add(gained).min(BURST * EVERY_MICROS);
        self.seen = self.seen.max(now);
    }

    /// When there is one.
    fn next(&self) -> Moment {
        let missing = EVERY_MICROS.saturating_sub(self.left);
        self.seen.plus(Duration::from_micros(missing))
    }
}

/// Results that wait to be reported, all of calls that began under one generation.
#[derive(Debug)]
struct Pending {
    generation: u64,
    runs: VecDeque<Run>,
    since: Moment,
    /// Whether there is a failure among them.
    urgent: bool,
}

/// What a process has to report.
#[derive(Debug)]
pub(super) struct Reports {
    /// Oldest generation first; few at any time.
    pending: Vec<Pending>,
    budget: Budget,
    number: u64,
}

/// Results of older generations than these are of no use to anyone.
const GENERATIONS: usize = 4;

impl Reports {
    pub(super) const fn new() -> Self {
        let budget = Budget { left: BURST * EVERY_MICROS, seen: Moment::from_micros(0) };
        Self { pending: Vec::new(), budget, number: 0 }
    }

    /// Takes what came of a call. Says whether the task is to look at it now: at the first of a batch, and at its first
    /// failure.
    pub(super) fn add(&mut self, generation: u64, verdict: Verdict, now: impl FnOnce() -> Moment) -> bool {
        let at = match self.pending.iter().rposition(|pending| pending.generation == generation) {
            Some(at) => at,
            None => {
                if self.pending.len() >= GENERATIONS {
                    self.pending.remove(0);
                }
                let runs = VecDeque::new();
                self.pending.push(Pending { generation, runs, since: now(), urgent: false });
                self.pending.len() - 1
            }
        };
        let Some(pending) = self.pending.get_mut(at) else { return false };
        let first = pending.runs.is_empty();
        match pending.runs.back_mut() {
            Some(run) if run.verdict == verdict && run.times < MOST_TIMES => run.times += 1,
            _ => {
                // Only the newest results are of use where calls alternate faster than reports may go.
                if pending.runs.len() >= MOST_RUNS {
                    pending.runs.pop_front();
                }
                pending.runs.push_back(Run { verdict, times: 1 });
            }
        }
        let rings = first || verdict == Verdict::Failure && !pending.urgent;
        pending.urgent |= verdict == Verdict::Failure;
        rings
    }

    pub(super) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    /// How many results there are.
    pub(super) fn results(&self) -> usize {
        self.pending.iter().map(|pending| results(&pending.runs)).sum()
    }

    pub(super) fn clear(&mut self) {
        self.pending.clear();
    }

    /// When the next report is due; none where there is nothing to report.
    pub(super) fn due(&self) -> Option<Moment> {
        let gathered = |pending: &Pending| {
            if pending.urgent { pending.since } else { pending.since.plus(GATHERED) }
        };
        let due = self.pending.iter().map(gathered).min()?;
        Some(due.max(self.budget.next()))
    }

    /// Takes the next report, if one is due, or `anyway`: its number, its generation and its results.
    pub(super) fn take(&mut self, now: Moment, anyway: bool) -> Option<(u64, u64, Batch)> {
        self.budget.refill(now);
        if self.pending.is_empty() || !anyway && self.due().is_none_or(|due| due > now) {
            return None;
        }
        let pending = self.pending.remove(0);
        self.budget.left = self.budget.left.saturating_sub(EVERY_MICROS);
        self.number += 1;
        // Runs are made within the bounds of a batch.
        let batch = Batch::new(pending.runs.into()).unwrap_or_default();
        Some((self.number, pending.generation, batch))
    }
}

/// How many results runs are.
pub(super) fn results<'a>(runs: impl IntoIterator<Item = &'a Run>) -> usize {
    runs.into_iter().map(|run| usize::try_from(run.times).unwrap_or(usize::MAX)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Moment {
        Moment::from_millis(1_000_000 + ms)
    }

    fn add(reports: &mut Reports, verdict: Verdict, ms: u64) -> bool {
        reports.add(7, verdict, || at(ms))
    }

    #[test]
    fn cb_8_successes_gather_and_failures_go_at_once() {
        let mut reports = Reports::new();
        assert_eq!(reports.due(), None);
        assert!(add(&mut reports, Verdict::Success, 0));
        assert!(!add(&mut reports, Verdict::Success, 10));
        assert_eq!(reports.due(), Some(at(100)));
        assert_eq!(reports.take(at(99), false), None);
        let (number, generation, batch) = reports.take(at(100), false).unwrap();
        assert_eq!((number, generation, batch.runs()), (1, 7, &[Run::successes(2)][..]));
        assert!(add(&mut reports, Verdict::Success, 101));
        assert!(add(&mut reports, Verdict::Failure, 102));
        assert!(!add(&mut reports, Verdict::Failure, 103));
        let (number, _, batch) = reports.take(at(103), false).unwrap();
        assert_eq!((number, batch.runs()), (2, &[Run::successes(1), Run::failures(2)][..]));
        assert!(reports.is_empty());
    }

    #[test]
    fn cb_8_a_burst_of_20_goes_at_once_then_20_a_second() {
        let mut reports = Reports::new();
        let mut sent = Vec::new();
        for ms in 0..5_000 {
            add(&mut reports, Verdict::Failure, ms);
            sent.extend(reports.take(at(ms), false).map(|_| ms));
        }
        assert!(sent[..20].iter().copied().eq(0..20));
        assert!((119..=120).contains(&sent.len()), "{}", sent.len());
        assert!(sent[21..].windows(2).all(|pair| pair[1] - pair[0] == 50));
        // Quiet for long gains no more than the burst.
        for ms in 100_000..100_050 {
            add(&mut reports, Verdict::Failure, ms);
            sent.extend(reports.take(at(ms), false).map(|_| ms));
        }
        let burst = sent.iter().filter(|ms| **ms >= 100_000).count();
        assert!((20..=21).contains(&burst), "{burst}");
    }

    #[test]
    fn cb_8_a_batch_stays_within_its_bounds_and_keeps_the_newest() {
        let mut reports = Reports::new();
        for call in 0..5_001 {
            let verdict = if call % 2 == 0 { Verdict::Failure } else { Verdict::Success };
            add(&mut reports, verdict, 0);
        }
        let (_, _, batch) = reports.take(at(0), false).unwrap();
        assert_eq!(batch.runs().len(), MOST_RUNS);
        assert_eq!(batch.runs().last(), Some(&Run::failures(1)));
        for _ in 0..=MOST_TIMES {
            add(&mut reports, Verdict::Success, 1);
        }
        let (_, _, batch) = reports.take(at(200), false).unwrap();
        assert_eq!(batch.runs(), [Run::successes(MOST_TIMES), Run::successes(1)]);
    }

    #[test]
    fn cb_7_results_are_reported_under_the_generation_of_their_calls() {
        let mut reports = Reports::new();
        for generation in [1, 2, 1, 3, 4, 5] {
            reports.add(generation, Verdict::Failure, || at(0));
        }
        let told: Vec<u64> =
            std::iter::from_fn(|| reports.take(at(0), false)).map(|(_, generation, _)| generation).collect();
        assert_eq!(told, [2, 3, 4, 5]);
    }
}
