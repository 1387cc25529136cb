//! Rates: for every span of time, what was certainly spent in it against what may be.

use tidegate_core::{
    Invalid, Rule,
    rule::{Algorithm, CheckedRule},
};

use super::{Findings, History, Violation, tally::Highest};

/// What a rule may admit in a span of time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rate {
    kind: Kind,
    limit: u64,
    interval: u64,
    burst: u64,
    /// What a state that was lost admits over again.
    again: u64,
    grain: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Burst and rate.
    Linear,
    /// So much within less than an interval.
    Window,
}

/// Stores count in whole milliseconds: two moments may be so much less apart than they are there.
const GRAIN: u64 = 1_000;

impl Rate {
    /// What a rule says. Windows that start with a job hold twice their limit where two meet.
    ///
    /// # Errors
    /// For a rule that no policy can have.
    pub fn of(rule: &Rule) -> Result<Self, Invalid> {
        rule.check().map(|rule| Self::of_checked(&rule))
    }

    fn of_checked(rule: &CheckedRule) -> Self {
        let (kind, burst, again) = match rule.algorithm() {
            Algorithm::TokenBucket => (Kind::Linear, rule.burst(), rule.burst()),
            Algorithm::FixedWindow => (Kind::Linear, rule.limit().saturating_mul(2), rule.limit()),
            Algorithm::SlidingWindow => (Kind::Window, rule.limit(), rule.limit()),
        };
        let interval = rule.interval_ms().saturating_mul(1_000);
        Self { kind, limit: rule.limit(), interval, burst, again, grain: GRAIN }
    }

    /// For a store that counts in other steps than whole milliseconds: in microseconds.
    #[must_use]
    pub const fn grain(mut self, micros: u64) -> Self {
        self.grain = micros;
        self
    }

    /// Whether a span of so many microseconds is bounded at all.
    const fn bounds(&self, micros: u64) -> bool {
        match self.kind {
            Kind::Linear => true,
            Kind::Window => micros.saturating_add(self.grain) < self.interval,
        }
    }

    /// The most that may be spent in a span of so many microseconds, times the interval.
    fn most_scaled(&self, micros: u64) -> i128 {
        let burst = i128::from(self.burst) * i128::from(self.interval);
        match self.kind {
            Kind::Linear => burst + i128::from(self.limit) * i128::from(micros.saturating_add(self.grain)),
            Kind::Window => burst,
        }
    }
}

/// What changes the sums over spans when the end of the span passes it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// Counts in spans that begin no later than this moment.
    Spent { asked: u64, cost: u64 },
    /// May have made room, in spans that begin no later than this moment.
    Room { until: u64, amount: u64 },
}

/// A sweep over the ends of spans. For each beginning a tree keeps what was spent since; the largest of them tells whether
/// any span that ends here holds too much.
pub(super) fn check(
    rule: &str,
    rate: Rate,
    losses: &[(u64, u64)],
    history: &History,
    findings: &mut Findings,
) {
    let admissions = || history.admissions.iter().filter(|admission| admission.rule == rule);
    let mut beginnings: Vec<u64> = admissions().map(|admission| admission.asked).collect();
    beginnings.sort_unstable();
    beginnings.dedup();
    let interval = i128::from(rate.interval);
    let slope = if rate.kind == Kind::Linear { i128::from(rate.limit) } else { 0 };
    let at_rest: Vec<i128> = beginnings.iter().map(|&at| slope * i128::from(at)).collect();
    let mut spent = Highest::new(&at_rest);

    let mut steps: Vec<(u64, Step)> =
        admissions()
            .map(|a| (a.granted, Step::Spent { asked: a.asked, cost: a.cost }))
            .chain(
                history.credits.iter().filter(|credit| credit.rule == rule).map(|credit| {
                    (credit.sent, Step::Room { until: credit.answered, amount: credit.amount })
                }),
            )
            // A state that is lost admits one burst more in spans around that.
            .chain(losses.iter().map(|&(from, until)| (from, Step::Room { until, amount: rate.again })))
            .collect();
    // What makes room goes first where it comes at the same time.
    steps.sort_by_key(|&(at, step)| (at, matches!(step, Step::Spent { .. })));

    for (end, step) in steps {
        let (until, cost) = match step {
            Step::Room { until, amount } => (until, -i128::from(amount)),
            Step::Spent { asked, cost } => (asked, i128::from(cost)),
        };
        let places = beginnings.partition_point(|&at| at <= until);
        spent.add_to_first(places, cost * interval);
        if cost <= 0 {
            continue;
        }
        let first = match rate.kind {
            Kind::Linear => 0,
            Kind::Window => beginnings.partition_point(|&at| !rate.bounds(end.saturating_sub(at))),
        };
        let last = beginnings.partition_point(|&at| at <= end);
        let Some((most, at)) = spent.in_span(first..last.max(first)) else { continue };
        if most - slope * i128::from(end) > rate.most_scaled(0) {
            let from = beginnings[at];
            let sum = admissions().filter(|a| a.asked >= from && a.granted <= end).map(|a| a.cost).sum();
            let most = rate.most_scaled(end - from) / interval;
            findings.0.push(Violation::TooMuch {
                rule: rule.to_owned(),
                from,
                until: end,
                spent: sum,
                most: u64::try_from(most).unwrap_or(u64::MAX),
            });
            // The first says it; those after it are mostly the same excess again.
            return;
        }
    }
}
