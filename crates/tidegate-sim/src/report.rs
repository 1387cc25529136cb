//! What came of a run, in figures.

use std::time::Duration;

use crate::{audit::Book, log::Log, profile::Profile, timeline::VirtualClock};

/// What came of a run. Calls count that were answered within its duration; all of it counts from the start.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Report {
    /// How long the workers worked.
    pub duration: Duration,
    /// Calls that were answered.
    pub calls: u64,
    /// Calls that were served.
    pub ok: u64,
    /// Calls that were turned away.
    pub throttled: u64,
    /// Calls that were served and failed.
    pub failed: u64,
    /// Acquires that ended without a lease, since no slot came free in time.
    pub timeouts: u64,
    /// What the provider did over what it could have done at its ceiling: the time for which calls that ended well had a
    /// place, summed, over the ceiling, summed over the time. A place is taken from the arrival of a call until the
    /// provider frees it.
    pub goodput_ratio: f64,
    /// Throttled calls over all calls.
    pub throttled_ratio: f64,
    /// The most calls that the provider ever served at once.
    pub provider_max_in_flight: u32,
    /// Each limit, and since when it was in force: a step series.
    pub limits: Vec<(Duration, u32)>,
    /// When calls were throttled; those within 10 ms of the one before are left out.
    pub throttles: Vec<Duration>,
    /// How long it took at the start until the limit first was at 90 % of the ceiling or more; none if it never was, or
    /// not before the ceiling changed.
    pub reached_after: Option<Duration>,
    /// How the changes of the ceiling were followed, in order.
    pub changes: Vec<Change>,
    /// How far live leases ever exceeded the limit in force at a grant, counted from what passes between the processes
    /// and the store. Always 0, or the bound is broken.
    pub over_admission: u32,
    /// How long workers waited for a lease.
    pub wait: Wait,
    /// How evenly the calls that ended well fell on the workers (Jain's index): 1 when all had as many, 1 over the number
    /// of workers when one had all.
    pub fairness: f64,
    /// Leases that the store holds when all workers have ended. Always 0, or some were lost.
    pub leases_left: u32,
}

/// How a change of the ceiling was followed.
#[derive(Clone, PartialEq, Debug)]
#[non_exhaustive]
pub struct Change {
    /// When it came.
    pub at: Duration,
    /// The ceiling before.
    pub from: u32,
    /// The ceiling from then on.
    pub to: u32,
    /// How long it took, after a drop, until the limit first was at the new ceiling or below, and after a rise, until it
    /// first was at 90 % of the new ceiling or more. None if it never was, or not before the next change.
    pub followed_after: Option<Duration>,
    /// Calls answered from the change until the next, or the end.
    pub calls: u64,
    /// Those of them that were throttled.
    pub throttled: u64,
    /// The goodput of that time, as [`Report::goodput_ratio`] is that of the whole.
    pub goodput_ratio: f64,
}

/// How long workers waited for a lease: what half of them, and 99 of 100, did not exceed, to within one per cent above,
/// and the longest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Wait {
    /// The median.
    pub p50: Duration,
    /// The wait of one in a hundred, or longer.
    pub p99: Duration,
    /// The longest.
    pub max: Duration,
}

/// What a run left behind.
pub(crate) struct Seen<'a> {
    pub(crate) log: &'a Log,
    pub(crate) book: &'a Book,
    pub(crate) profile: &'a Profile,
    pub(crate) duration: Duration,
    pub(crate) provider_max_in_flight: u32,
    pub(crate) leases_left: u32,
}

impl Report {
    pub(crate) fn new(seen: &Seen<'_>) -> Self {
        let Seen { log, book, profile, duration, .. } = *seen;
        let limits: Vec<(Duration, u32)> = book
            .limits
            .iter()
            .map(|(at, limit)| (at.since(VirtualClock::moment(Duration::ZERO)), *limit))
            .take_while(|(at, _)| *at <= duration)
            .collect();
        let calls = log.stretches().map(|stretch| stretch.calls).sum();
        let throttled = log.stretches().map(|stretch| stretch.throttled).sum();
        let first_end = profile.steps().get(1).map_or(duration, |(at, _)| *at);
        let ceiling = profile.at(Duration::ZERO);
        Self {
            duration,
            calls,
            ok: log.ok_by_worker.iter().sum(),
            throttled,
            failed: log.failed,
            timeouts: log.timeouts,
            goodput_ratio: ratio(
                log.stretches().map(|stretch| stretch.served_micros).sum(),
                profile.place_micros(duration).sum(),
            ),
            throttled_ratio: ratio(throttled.into(), u128::from(calls)),
            provider_max_in_flight: seen.provider_max_in_flight,
            reached_after: first(&limits, Duration::ZERO, first_end, |limit| nearly(limit, ceiling)),
            changes: changes(seen, &limits),
            limits,
            throttles: log.throttles.clone(),
            over_admission: book.over_admission,
            wait: Wait {
                p50: log.waits.percentile(50),
                p99: log.waits.percentile(99),
                max: log.waits.longest(),
            },
            fairness: jain(&log.ok_by_worker),
            leases_left: seen.leases_left,
        }
    }

    /// The limit in force at a moment; none before the first acquire.
    pub fn limit_at(&self, at: Duration) -> Option<u32> {
        let after = self.limits.partition_point(|(since, _)| *since <= at);
        self.limits.get(after.checked_sub(1)?).map(|(_, limit)| *limit)
    }
}

fn changes(seen: &Seen<'_>, limits: &[(Duration, u32)]) -> Vec<Change> {
    let steps = seen.profile.steps();
    let ends = steps.iter().skip(2).map(|(at, _)| *at).chain([seen.duration]);
    let stretches = seen.log.stretches().zip(seen.profile.place_micros(seen.duration)).skip(1);
    steps
        .windows(2)
        .zip(ends)
        .zip(stretches)
        .filter_map(|((pair, end), (stretch, could))| {
            let [(_, from), (at, to)] = *pair else { return None };
            let followed = |limit: u32| if to < from { limit <= to } else { nearly(limit, to) };
            Some(Change {
                at,
                from,
                to,
                followed_after: first(limits, at, end, followed),
                calls: stretch.calls,
                throttled: stretch.throttled,
                goodput_ratio: ratio(stretch.served_micros, could),
            })
        })
        .collect()
}

/// How long after `from` a limit in force first is as is wanted, before `end`.
fn first(
    limits: &[(Duration, u32)],
    from: Duration,
    end: Duration,
    wanted: impl Fn(u32) -> bool,
) -> Option<Duration> {
    let in_force = limits.partition_point(|(at, _)| *at <= from).saturating_sub(1);
    let later = limits.iter().skip(in_force).take_while(|(at, _)| *at < end);
    later.clone().find(|(_, limit)| wanted(*limit)).map(|(at, _)| at.saturating_sub(from))
}

/// Whether a limit is at nine tenths of a ceiling, or more.
fn nearly(limit: u32, ceiling: u32) -> bool {
    u64::from(limit) * 10 >= u64::from(ceiling) * 9
}

/// Jain's index of fairness.
fn jain(shares: &[u64]) -> f64 {
    let sum: u128 = shares.iter().map(|share| u128::from(*share)).sum();
    let squares: u128 = shares.iter().map(|share| u128::from(*share).pow(2)).sum();
    if squares == 0 {
        return 1.0;
    }
    ratio(sum.pow(2), squares * shares.len() as u128)
}

/// As near as a double comes; nothing over nothing is nothing.
fn ratio(part: u128, whole: u128) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn fairness_is_one_when_all_have_as_many_and_its_least_when_one_has_all() {
        assert_eq!(jain(&[7, 7, 7, 7]), 1.0);
        assert_eq!(jain(&[9, 0, 0, 0]), 0.25);
        assert_eq!(jain(&[0, 0]), 1.0);
        assert_eq!(jain(&[u64::MAX >> 20; 3]), 1.0);
    }

    #[test]
    fn a_limit_that_is_right_already_follows_at_once() {
        let limits = [(Duration::ZERO, 10), (SECOND * 5, 20), (SECOND * 8, 9)];
        let low = |limit| limit <= 10;
        assert_eq!(first(&limits, SECOND, SECOND * 60, low), Some(Duration::ZERO));
        assert_eq!(first(&limits, SECOND * 6, SECOND * 60, low), Some(SECOND * 2));
        assert_eq!(first(&limits, SECOND * 6, SECOND * 8, low), None, "the next change came first");
        assert!(nearly(36, 40) && !nearly(35, 40) && nearly(90, 100) && !nearly(89, 100));
    }
}
