//! Circuits by their rules, and against naive logs of what happened.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use proptest::{prelude::*, strategy::Strategy as _};
use tidegate_core::{
    DriverId, Invalid,
    circuit::{Strategy, *},
};

/// A moment like those of a real store: 2025, in ms.
const NOW: u64 = 1_750_000_000_000;
const A: DriverId = DriverId(1);
const B: DriverId = DriverId(2);
const C: DriverId = DriverId(3);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn consecutive(threshold: u32) -> Strategy {
    Strategy::Consecutive { threshold }
}

fn count(threshold: f64, size: u32, minimum_calls: u32) -> Strategy {
    Strategy::Count { threshold, size, minimum_calls }
}

fn sampling(threshold: f64, duration_ms: u64, minimum_calls: u32) -> Strategy {
    Strategy::Sampling { threshold, duration: ms(duration_ms), minimum_calls }
}

/// Health checks, first after 1 s, then 2 s, and so on up to 5 s.
fn draft(strategy: Strategy) -> CircuitDraft {
    CircuitPolicy::draft(strategy, Recovery::health_check(), doubling())
}

fn doubling() -> Backoff {
    Backoff::Exponential { initial: ms(1_000), multiplier: 2.0, max: Some(ms(5_000)) }
}

fn policy(strategy: Strategy) -> CircuitPolicy {
    draft(strategy).check().unwrap()
}

fn idle(interval_ms: u64) -> CircuitPolicy {
    let recovery = Recovery::HealthCheck { check_timeout: ms(500), idle_interval: Some(ms(interval_ms)) };
    CircuitPolicy::draft(consecutive(3), recovery, doubling()).min_reporters(9).check().unwrap()
}

fn half_open(permits: u32) -> CircuitPolicy {
    let recovery = Recovery::HalfOpen { permits, permit_ttl: ms(3_000) };
    CircuitPolicy::draft(consecutive(1), recovery, doubling()).check().unwrap()
}

fn batch(runs: &[Run]) -> Batch {
    Batch::new(runs.to_vec()).unwrap()
}

fn ok(times: u32) -> Run {
    Run::successes(times)
}

fn bad(times: u32) -> Run {
    Run::failures(times)
}

/// The idle probe that comes next; one that is none where there are no idle probes.
fn idle_now(state: &CircuitState, policy: &CircuitPolicy) -> CheckKind {
    state.next_check(policy).map_or(CheckKind::Idle { at_ms: 0 }, |check| check.kind)
}

/// A number that was not used before.
fn another() -> u64 {
    static LAST: AtomicU64 = AtomicU64::new(0);
    LAST.fetch_add(1, Ordering::Relaxed) + 1
}

/// Reports under the present generation.
fn report(
    state: &mut CircuitState,
    policy: &CircuitPolicy,
    who: DriverId,
    runs: &[Run],
    now: u64,
) -> Reported {
    state.report(policy, who, another(), state.generation(), &batch(runs), now)
}

/// Whether these runs, one a report, open a new circuit, and with which of them.
fn opens_with(policy: &CircuitPolicy, runs: &[Run]) -> Option<usize> {
    let mut state = CircuitState::new(policy, NOW);
    runs.iter().position(|run| {
        report(&mut state, policy, A, &[*run], NOW);
        state.is_open()
    })
}

/// A circuit that opened at `NOW`.
fn opened(policy: &CircuitPolicy) -> CircuitState {
    let mut state = CircuitState::new(policy, NOW - 10);
    assert!(state.force_open(policy, NOW).is_some());
    state
}

fn elected(state: &mut CircuitState, policy: &CircuitPolicy, who: DriverId, now: u64) -> Leader {
    match state.elect(policy, who, now) {
        Election::Leads(leader) => leader,
        Election::Follows { retry_ms } => panic!("another leads for {retry_ms} ms"),
    }
}

/// The leader's verdict on the attempt that is next.
fn checked(state: &mut CircuitState, policy: &CircuitPolicy, verdict: Verdict, now: u64) -> Judged {
    let leader = elected(state, policy, A, now);
    let kind = idle_now(state, policy);
    state.check_verdict(policy, A, leader.fence, state.generation(), kind, verdict, now)
}

fn granted(state: &mut CircuitState, policy: &CircuitPolicy, who: DriverId, now: u64) -> TrialPermit {
    match state.try_half_open(policy, who, another(), now) {
        Trial::Granted(permit) => permit,
        other => panic!("{other:?}"),
    }
}

#[test]
fn cb_1_consecutive_opens_at_exactly_its_threshold_and_any_success_starts_anew() {
    let policy = policy(consecutive(3));
    assert_eq!(opens_with(&policy, &[bad(1), bad(1), bad(1)]), Some(2));
    assert_eq!(opens_with(&policy, &[bad(2), ok(1), bad(2), ok(1), bad(2)]), None);
    assert_eq!(opens_with(&policy, &[bad(2), ok(1), bad(3)]), Some(2));
    assert_eq!(opens_with(&policy, &[]), None);
}

#[test]
fn cb_1_failures_of_different_processes_count_together_in_the_order_they_arrive() {
    let policy = policy(consecutive(3));
    let mut state = CircuitState::new(&policy, NOW);
    for who in [A, B] {
        assert_eq!(report(&mut state, &policy, who, &[bad(1)], NOW), Reported::Counted);
    }
    let generation = state.generation() + 1;
    let change = Change { to: Position::Open, why: Why::Results, generation };
    assert_eq!(report(&mut state, &policy, C, &[bad(1)], NOW + 5), Reported::Opened(change));
    assert_eq!((state.generation(), state.since_ms()), (generation, NOW + 5));
}

#[test]
fn cb_1_count_opens_at_exactly_its_share_once_there_are_minimum_calls() {
    let policy = policy(count(0.5, 10, 4));
    assert_eq!(opens_with(&policy, &[bad(3)]), None);
    assert_eq!(opens_with(&policy, &[bad(4)]), Some(0));
    assert_eq!(opens_with(&policy, &[bad(2), ok(1), ok(1)]), Some(2));
    assert_eq!(opens_with(&policy, &[ok(3), bad(2)]), None);
    assert_eq!(opens_with(&policy, &[ok(3), bad(2), bad(1)]), Some(2));
    // Five of the last ten: the oldest failures have left.
    assert_eq!(opens_with(&policy, &[ok(9), bad(1), ok(6), bad(3), bad(1)]), None);
    assert_eq!(opens_with(&policy, &[ok(9), bad(1), ok(5), bad(3), bad(1)]), Some(4));
}

#[test]
fn cb_1_sampling_looks_back_for_exactly_its_duration() {
    let policy = policy(sampling(0.5, 1_000, 2));
    for (apart, opens) in [(999, true), (1_000, false)] {
        let mut state = CircuitState::new(&policy, NOW);
        report(&mut state, &policy, A, &[bad(1)], NOW);
        report(&mut state, &policy, A, &[bad(1)], NOW + apart);
        assert_eq!(state.is_open(), opens, "{apart} ms apart");
    }
}

#[test]
fn cb_1_a_success_can_bring_the_minimum_of_calls_and_time_alone_opens_nothing() {
    let policy = policy(sampling(0.5, 1_000, 4));
    let mut state = CircuitState::new(&policy, NOW);
    report(&mut state, &policy, A, &[bad(2)], NOW);
    report(&mut state, &policy, A, &[ok(1)], NOW + 1);
    state.sweep(&policy, NOW + 900);
    assert!(!state.is_open());
    report(&mut state, &policy, A, &[ok(1)], NOW + 900);
    assert!(state.is_open());
}

#[test]
fn cb_1_a_strategy_of_ones_own_sees_the_fleets_results_since_the_last_change() {
    let policy = policy(Strategy::Custom { keep: 5 });
    let mut state = CircuitState::new(&policy, NOW);
    assert_eq!(state.strategy_opens(&policy, state.generation(), NOW), None);
    report(&mut state, &policy, A, &[bad(2), ok(1)], NOW);
    report(&mut state, &policy, B, &[ok(1), bad(2)], NOW);
    assert_eq!(state.recent().collect::<Vec<_>>(), [bad(1), ok(2), bad(2)]);
    assert_eq!(state.strategy_opens(&policy, state.generation() - 1, NOW), None);
    let change = state.strategy_opens(&policy, state.generation(), NOW).unwrap();
    assert_eq!(
        (change.to, change.why, change.generation),
        (Position::Open, Why::Results, state.generation())
    );
    assert_eq!(state.strategy_opens(&policy, state.generation(), NOW), None);
    state.force_close(&policy, NOW + 1);
    assert_eq!(state.recent().count(), 0);
}

#[test]
fn cb_2_the_fleet_opens_once_and_what_comes_after_changes_nothing() {
    let policy = policy(consecutive(2));
    let mut state = CircuitState::new(&policy, NOW);
    let began = state.generation();
    assert!(matches!(report(&mut state, &policy, A, &[bad(2), bad(5)], NOW), Reported::Opened(_)));
    for generation in [began, began + 1, began + 2] {
        assert_eq!(
            state.report(&policy, B, another(), generation, &batch(&[bad(9)]), NOW + 1),
            Reported::Dropped
        );
    }
    assert_eq!((state.generation(), state.since_ms(), state.attempt()), (began + 1, NOW, Some(1)));
    assert_eq!(state.force_open(&policy, NOW + 2), None);
}

#[test]
fn cb_3_attempt_1_waits_too_and_later_ones_by_the_schedule() {
    let policy = policy(consecutive(3));
    let mut state = opened(&policy);
    let mut now = NOW;
    for (attempt, wait) in [(1, 1_000), (2, 2_000), (3, 4_000), (4, 5_000), (5, 5_000)] {
        let kind = CheckKind::Recovery { attempt };
        let next = NextCheck { kind, at_ms: Some(now + wait) };
        assert_eq!((state.next_check(&policy), state.due_ms(&policy) <= next.at_ms), (Some(next), true));
        now += wait + 17;
        assert_eq!(checked(&mut state, &policy, Verdict::Failure, now), Judged::Counted);
    }
    assert_eq!((state.is_open(), state.since_ms()), (true, NOW));
}

#[test]
fn cb_3_the_first_success_closes_for_all_and_attempts_count_from_1_at_each_opening() {
    let policy = policy(consecutive(3));
    let mut state = opened(&policy);
    checked(&mut state, &policy, Verdict::Failure, NOW + 1_000);
    let Judged::Changed(change) = checked(&mut state, &policy, Verdict::Success, NOW + 3_000) else {
        panic!("{state:?}")
    };
    assert_eq!((change.to, change.why), (Position::Closed, Why::Check));
    assert_eq!((state.is_open(), state.attempt(), state.since_ms()), (false, None, NOW + 3_000));
    state.force_open(&policy, NOW + 9_000);
    assert_eq!((state.attempt(), state.next_attempt_ms()), (Some(1), Some(NOW + 10_000)));
}

#[test]
fn cb_3_one_leads_until_its_lease_ends_and_a_new_one_goes_on_with_the_schedule() {
    let policy = policy(consecutive(3));
    let mut state = opened(&policy);
    let first = elected(&mut state, &policy, A, NOW);
    assert_eq!(state.elect(&policy, B, NOW + 1_999), Election::Follows { retry_ms: 1 });
    assert_eq!(
        state.check_verdict(
            &policy,
            A,
            first.fence,
            state.generation(),
            CheckKind::Recovery { attempt: 1 },
            Verdict::Failure,
            NOW + 1_500,
        ),
        Judged::Counted
    );
    let second = elected(&mut state, &policy, B, NOW + 2_000);
    assert!(second.fence > first.fence);
    assert_eq!((state.attempt(), state.next_attempt_ms()), (Some(2), Some(NOW + 3_500)));
    // The first one is late: neither its lease nor its verdict is worth anything.
    assert_eq!(state.renew(&policy, A, first.fence, NOW + 2_001), None);
    assert!(!state.resign(A, first.fence, NOW + 2_001));
    let kind = CheckKind::Recovery { attempt: 2 };
    for (who, fence) in [(A, first.fence), (A, second.fence), (B, first.fence)] {
        let judged =
            state.check_verdict(&policy, who, fence, state.generation(), kind, Verdict::Success, NOW + 2_001);
        assert_eq!(judged, Judged::Stale);
    }
    assert!(state.is_open());
}

#[test]
fn cb_3_a_leader_is_renewed_as_long_as_it_lives_and_never_backwards() {
    let policy = policy(consecutive(3));
    let mut state = CircuitState::new(&policy, NOW);
    let leader = elected(&mut state, &policy, A, NOW);
    assert_eq!(leader.until_ms, NOW + 2_000);
    assert_eq!(state.renew(&policy, A, leader.fence, NOW + 1_999), Some(NOW + 3_999));
    assert_eq!(state.renew(&policy, A, leader.fence, NOW), Some(NOW + 3_999));
    assert_eq!(elected(&mut state, &policy, A, NOW + 3_998), Leader { until_ms: NOW + 5_998, ..leader });
    assert_eq!(state.renew(&policy, A, leader.fence, NOW + 5_998), None);
    assert_eq!(state.leader(NOW + 5_998), None);
    assert!(elected(&mut state, &policy, A, NOW + 5_998).fence > leader.fence);
}

#[test]
fn cb_3_a_verdict_of_the_past_or_told_twice_changes_nothing() {
    let policy = policy(consecutive(3));
    let mut state = opened(&policy);
    let leader = elected(&mut state, &policy, A, NOW + 1_000);
    let generation = state.generation();
    let first = CheckKind::Recovery { attempt: 1 };
    let say = |state: &mut CircuitState, generation, kind| {
        state.check_verdict(&policy, A, leader.fence, generation, kind, Verdict::Failure, NOW + 1_001)
    };
    assert_eq!(say(&mut state, generation, first), Judged::Counted);
    let before = state.clone();
    assert_eq!(say(&mut state, generation, first), Judged::Stale);
    assert_eq!(say(&mut state, generation - 1, CheckKind::Recovery { attempt: 2 }), Judged::Stale);
    assert_eq!(say(&mut state, generation + 1, CheckKind::Recovery { attempt: 2 }), Judged::Stale);
    assert_eq!(say(&mut state, generation, CheckKind::Idle { at_ms: NOW }), Judged::Stale);
    assert_eq!(state, before);
}

#[test]
fn cb_3_a_backoff_of_ones_own_is_said_once_for_each_attempt() {
    let policy =
        CircuitPolicy::draft(consecutive(3), Recovery::health_check(), Backoff::Custom).check().unwrap();
    let mut state = opened(&policy);
    let generation = state.generation();
    assert_eq!(state.next_attempt_ms(), None);
    assert_eq!(state.schedule(generation, 2, 5, NOW), None);
    assert_eq!(state.schedule(generation - 1, 1, 5, NOW), None);
    assert_eq!(state.schedule(generation, 1, 700, NOW), Some(NOW + 700));
    assert_eq!(state.schedule(generation, 1, 5, NOW + 1), Some(NOW + 700));
    checked(&mut state, &policy, Verdict::Failure, NOW + 700);
    assert_eq!((state.attempt(), state.next_attempt_ms()), (Some(2), None));
    assert_eq!(state.schedule(generation, 2, 900, NOW + 701), Some(NOW + 1_601));
    state.force_close(&policy, NOW + 702);
    assert_eq!(state.schedule(state.generation(), 1, 5, NOW + 703), None);
}

#[test]
fn cb_4_permits_are_counted_over_the_whole_fleet_and_all_must_succeed() {
    let policy = half_open(2);
    let mut state = opened(&policy);
    assert_eq!(state.try_half_open(&policy, A, another(), NOW + 999), Trial::TooEarly { retry_ms: 1 });
    let one = granted(&mut state, &policy, A, NOW + 1_000);
    let two = granted(&mut state, &policy, B, NOW + 1_100);
    assert!(two.fence > one.fence);
    assert_eq!(state.try_half_open(&policy, C, another(), NOW + 1_200), Trial::Full { retry_ms: 2_800 });
    assert_eq!(state.half_open_result(&policy, A, one.fence, Verdict::Success, NOW + 1_300), Judged::Counted);
    // One has succeeded and one is out, so there is still no room.
    assert_eq!(state.try_half_open(&policy, C, another(), NOW + 1_300), Trial::Full { retry_ms: 2_800 });
    let Judged::Changed(change) =
        state.half_open_result(&policy, B, two.fence, Verdict::Success, NOW + 1_400)
    else {
        panic!("{state:?}")
    };
    assert_eq!((change.to, change.why), (Position::Closed, Why::Trials));
    assert_eq!(state.try_half_open(&policy, C, another(), NOW + 1_500), Trial::NotOffered);
}

#[test]
fn cb_4_the_first_failure_ends_all_trials_and_the_next_come_after_the_next_backoff() {
    let policy = half_open(3);
    let mut state = opened(&policy);
    let permits = [A, B, C].map(|who| granted(&mut state, &policy, who, NOW + 1_000));
    let results = [Verdict::Success, Verdict::Failure, Verdict::Success];
    let judged: Vec<_> = permits
        .iter()
        .zip(results)
        .map(|(permit, verdict)| {
            state.half_open_result(&policy, permit.driver, permit.fence, verdict, NOW + 1_500)
        })
        .collect();
    assert_eq!(judged, [Judged::Counted, Judged::Counted, Judged::Stale]);
    assert_eq!((state.attempt(), state.next_attempt_ms()), (Some(2), Some(NOW + 3_500)));
    assert_eq!(state.try_half_open(&policy, A, another(), NOW + 3_499), Trial::TooEarly { retry_ms: 1 });
    // The success from before does not count: three are asked for again.
    for _ in 0..3 {
        assert!(state.is_open());
        let permit = granted(&mut state, &policy, A, NOW + 3_500);
        state.half_open_result(&policy, A, permit.fence, Verdict::Success, NOW + 3_501);
    }
    assert!(!state.is_open());
}

#[test]
fn case_9_a_trial_given_back_is_free_at_once_and_that_of_a_dead_process_within_its_ttl() {
    let policy = half_open(1);
    let mut state = opened(&policy);
    let unused = granted(&mut state, &policy, A, NOW + 1_000);
    assert!(!state.give_back(B, unused.fence, NOW + 1_000) && state.give_back(A, unused.fence, NOW + 1_000));
    assert!(!state.give_back(A, unused.fence, NOW + 1_000));
    let dead = granted(&mut state, &policy, A, NOW + 1_000);
    assert_eq!(state.try_half_open(&policy, B, another(), NOW + 3_999), Trial::Full { retry_ms: 1 });
    assert_eq!(state.due_ms(&policy), Some(NOW + 4_000));
    let next = granted(&mut state, &policy, B, NOW + 4_000);
    assert_eq!(state.half_open_result(&policy, A, dead.fence, Verdict::Failure, NOW + 4_001), Judged::Stale);
    assert_eq!(state.trials(), [next]);
}

#[test]
fn cb_4_the_permit_of_a_long_trial_is_kept_by_renewing() {
    let policy = half_open(1);
    let mut state = opened(&policy);
    let permit = granted(&mut state, &policy, A, NOW + 1_000);
    assert_eq!(state.renew_trial(&policy, A, permit.fence, NOW + 3_999), Some(NOW + 6_999));
    assert_eq!(state.renew_trial(&policy, A, permit.fence, NOW + 1_000), Some(NOW + 6_999));
    assert_eq!(state.renew_trial(&policy, B, permit.fence, NOW + 3_999), None);
    assert_eq!(state.try_half_open(&policy, B, another(), NOW + 6_998), Trial::Full { retry_ms: 1 });
    assert_eq!(state.renew_trial(&policy, A, permit.fence, NOW + 6_999), None);
}

#[test]
fn cb_4_a_question_gets_its_permit_again_while_that_is_out_and_not_after() {
    let policy = half_open(2);
    let mut state = opened(&policy);
    let permit = |trial| match trial {
        Trial::Granted(permit) => permit,
        other => panic!("{other:?}"),
    };
    let first = permit(state.try_half_open(&policy, A, 7, NOW + 1_000));
    assert_eq!(state.try_half_open(&policy, A, 7, NOW + 1_500), Trial::Granted(first));
    // The same number of another process is another question.
    let other = permit(state.try_half_open(&policy, B, 7, NOW + 2_000));
    assert_ne!(other.fence, first.fence);
    // Also where all are out, to the last millisecond; a question that is new is not granted then.
    assert_eq!(state.try_half_open(&policy, A, 7, NOW + 3_999), Trial::Granted(first));
    assert_eq!(state.try_half_open(&policy, A, 8, NOW + 3_999), Trial::Full { retry_ms: 1 });
    let second = permit(state.try_half_open(&policy, A, 7, NOW + 4_000));
    assert!(second.fence > other.fence);
    assert_eq!(second.until_ms, NOW + 7_000);
    // Neither is one that was given back, or whose call has ended.
    assert!(state.give_back(A, second.fence, NOW + 4_001));
    let third = permit(state.try_half_open(&policy, A, 7, NOW + 4_001));
    assert!(third.fence > second.fence);
    let counted = state.half_open_result(&policy, A, third.fence, Verdict::Success, NOW + 4_002);
    assert_eq!(counted, Judged::Counted);
    assert_eq!(state.try_half_open(&policy, A, 7, NOW + 4_002), Trial::Full { retry_ms: 998 });
}

#[test]
fn case_10_a_fleet_that_looks_all_the_time_tries_first_when_the_backoff_ends() {
    let policy = half_open(1);
    let mut state = opened(&policy);
    let first = (0..2_000).step_by(50).find_map(|after| {
        (0..32).find_map(|who| match state.try_half_open(&policy, DriverId(who), another(), NOW + after) {
            Trial::Granted(_) => Some(after),
            _ => None,
        })
    });
    assert_eq!((first, state.trials().len(), state.since_ms()), (Some(1_000), 1, NOW));
}

#[test]
fn cb_7_results_from_before_a_change_never_reopen() {
    let policy = policy(consecutive(1));
    let mut state = CircuitState::new(&policy, NOW);
    let began = state.generation();
    report(&mut state, &policy, A, &[bad(1)], NOW + 1);
    checked(&mut state, &policy, Verdict::Success, NOW + 1_001);
    for generation in [0, began, began + 1, began + 3, u64::MAX] {
        assert_eq!(
            state.report(&policy, A, another(), generation, &batch(&[bad(9)]), NOW + 1_002),
            Reported::Dropped
        );
    }
    assert!(!state.is_open());
    assert!(matches!(
        state.report(&policy, A, another(), began + 2, &batch(&[bad(1)]), NOW + 1_003),
        Reported::Opened(_)
    ));
}

#[test]
fn cb_7_results_from_before_the_state_was_lost_never_open() {
    let policy = policy(consecutive(1));
    let mut lost = CircuitState::new(&policy, NOW);
    for now in NOW..NOW + 500 {
        lost.force_open(&policy, now);
        lost.force_close(&policy, now);
    }
    let fence = elected(&mut lost, &policy, A, NOW + 500).fence;
    let mut anew = CircuitState::new(&policy, NOW + 2_000);
    assert!(anew.generation() > lost.generation());
    assert_eq!(
        anew.report(&policy, A, another(), lost.generation(), &batch(&[bad(9)]), NOW + 2_000),
        Reported::Dropped
    );
    assert!(elected(&mut anew, &policy, B, NOW + 2_000).fence > fence);
}

#[test]
fn cb_8_a_batch_is_judged_after_each_run_in_its_order() {
    let policy = policy(consecutive(3));
    for (runs, opens) in [
        (vec![bad(2), ok(1), bad(2)], false),
        (vec![ok(5), bad(3), ok(5)], true),
        (vec![bad(1), ok(1), bad(3)], true),
    ] {
        let mut state = CircuitState::new(&policy, NOW);
        report(&mut state, &policy, A, &runs, NOW);
        assert_eq!(state.is_open(), opens, "{runs:?}");
    }
}

#[test]
fn cb_8_one_busy_process_does_not_fill_a_count_alone() {
    let policy = policy(count(0.5, 100, 100));
    for (others, failures) in [(0, 100), (1, 50), (2, 34), (3, 25), (99, 1), (500, 1)] {
        let mut state = CircuitState::new(&policy, NOW);
        report(&mut state, &policy, A, &[ok(100)], NOW);
        for other in 0..others {
            state.report(&policy, DriverId(100 + other), another(), 0, &Batch::default(), NOW);
        }
        report(&mut state, &policy, A, &[bad(1_000)], NOW + 9_999);
        let failed: u32 =
            state.recent().filter(|run| run.verdict == Verdict::Failure).map(|run| run.times).sum();
        // Half of a hundred opens it, and then nothing is left.
        let expected = if failures >= 50 { 0 } else { failures };
        assert_eq!((failed, state.is_open()), (expected, failures >= 50), "{others} others");
    }
}

#[test]
fn cb_8_a_process_counts_as_heard_for_10_seconds() {
    let policy = policy(count(1.0, 10, 10));
    for (later, left) in [(9_999, 5), (10_000, 10)] {
        let mut state = CircuitState::new(&policy, NOW);
        report(&mut state, &policy, B, &[], NOW);
        report(&mut state, &policy, A, &[ok(1_000)], NOW + later);
        assert_eq!(state.recent().map(|run| run.times).sum::<u32>(), left, "{later} ms later");
    }
}

#[test]
fn cb_8_a_reports_number_counts_once_and_a_lower_one_not_at_all() {
    let policy = policy(consecutive(4));
    let mut state = CircuitState::new(&policy, NOW);
    let generation = state.generation();
    let mut told = |who, number| state.report(&policy, who, number, generation, &batch(&[bad(1)]), NOW);
    assert_eq!(told(A, 5), Reported::Counted);
    // Told again, of before, and none at all, which is what a process that was never heard of has told.
    assert_eq!([5, 4, 0].map(|number| told(A, number)), [Reported::Dropped; 3]);
    assert_eq!(told(B, 0), Reported::Dropped);
    assert_eq!((told(B, 5), told(A, 6)), (Reported::Counted, Reported::Counted));
    // The fourth failure that counts, and no earlier one.
    assert!(matches!(told(A, 1_000), Reported::Opened(_)));
    assert_eq!(told(A, 1_001), Reported::Dropped);
}

#[test]
fn cb_8_a_number_is_kept_as_long_as_its_process_is_heard() {
    let policy = policy(consecutive(9));
    let calls = batch(&[bad(1)]);
    for (silent_ms, expected) in [(9_999, Reported::Dropped), (10_000, Reported::Counted)] {
        let mut state = CircuitState::new(&policy, NOW);
        let generation = state.generation();
        // Without a failure, the process is known by what is heard of it alone.
        state.report(&policy, A, 7, generation, &batch(&[ok(1)]), NOW);
        // What counts in nothing is heard all the same.
        assert_eq!(state.report(&policy, A, 7, generation, &calls, NOW + 9_000), Reported::Dropped);
        let later = NOW + 9_000 + silent_ms;
        assert_eq!(state.report(&policy, A, 1, generation, &calls, later), expected, "{silent_ms} ms");
    }
}

#[test]
fn cb_9_one_bad_machine_does_not_open_and_a_second_one_does() {
    let policy = draft(consecutive(3)).min_reporters(2).check().unwrap();
    let mut state = CircuitState::new(&policy, NOW);
    report(&mut state, &policy, B, &[ok(1)], NOW);
    assert_eq!(report(&mut state, &policy, A, &[bad(50)], NOW + 1), Reported::Counted);
    assert_eq!(state.failing(&policy, NOW + 1), 1);
    assert!(matches!(report(&mut state, &policy, B, &[bad(1)], NOW + 2), Reported::Opened(_)));
}

#[test]
fn cb_9_a_failure_is_recent_for_10_seconds_or_the_strategys_duration() {
    for (strategy, span) in [(consecutive(2), 10_000), (sampling(0.5, 3_000, 1), 3_000)] {
        let policy = draft(strategy).min_reporters(2).check().unwrap();
        for (later, opens) in [(span - 1, true), (span, false)] {
            let mut state = CircuitState::new(&policy, NOW);
            // Both are there all the time, so that the number asked for stays two.
            report(&mut state, &policy, B, &[], NOW);
            report(&mut state, &policy, A, &[bad(1)], NOW);
            report(&mut state, &policy, B, &[], NOW + span - 1);
            report(&mut state, &policy, A, &[], NOW + span - 1);
            report(&mut state, &policy, B, &[bad(5)], NOW + later);
            assert_eq!(state.is_open(), opens, "{strategy:?}: {later} ms later");
        }
    }
}

#[test]
fn cb_9_no_more_reporters_are_asked_for_than_there_are() {
    let policy = draft(consecutive(2)).min_reporters(5).check().unwrap();
    let mut state = CircuitState::new(&policy, NOW);
    assert!(matches!(report(&mut state, &policy, A, &[bad(2)], NOW), Reported::Opened(_)));
    let mut state = CircuitState::new(&policy, NOW);
    report(&mut state, &policy, B, &[], NOW);
    assert_eq!(report(&mut state, &policy, A, &[bad(2)], NOW + 9_999), Reported::Counted);
    assert!(matches!(report(&mut state, &policy, A, &[bad(1)], NOW + 10_000), Reported::Opened(_)));
}

#[test]
fn cb_9_one_reporter_is_no_condition_however_old_its_failures_are() {
    for (reporters, opens) in [(1, true), (2, false)] {
        let policy = draft(count(0.5, 10, 4)).min_reporters(reporters).check().unwrap();
        let mut state = CircuitState::new(&policy, NOW);
        report(&mut state, &policy, A, &[bad(2)], NOW);
        report(&mut state, &policy, A, &[ok(1)], NOW + 60_000);
        report(&mut state, &policy, B, &[], NOW + 60_000);
        report(&mut state, &policy, A, &[ok(1)], NOW + 60_000);
        assert_eq!(state.is_open(), opens, "{reporters} reporters");
    }
}

#[test]
fn cb_9_failures_from_before_a_change_are_no_recent_failures() {
    let policy = draft(consecutive(2)).min_reporters(2).check().unwrap();
    let mut state = CircuitState::new(&policy, NOW);
    report(&mut state, &policy, A, &[bad(1)], NOW);
    report(&mut state, &policy, B, &[bad(1)], NOW);
    assert!(state.is_open());
    state.force_close(&policy, NOW + 1);
    report(&mut state, &policy, A, &[bad(9)], NOW + 2);
    assert!(!state.is_open());
}

#[test]
fn cb_10_idle_probes_come_one_interval_after_the_last_call_closing_start_or_probe() {
    let policy = idle(500);
    let mut state = CircuitState::new(&policy, NOW);
    let at = |state: &CircuitState| {
        let next = state.next_check(&policy).unwrap();
        assert_eq!(next.kind, CheckKind::Idle { at_ms: next.at_ms.unwrap() });
        next.at_ms.unwrap() - NOW
    };
    assert_eq!(at(&state), 500);
    report(&mut state, &policy, A, &[ok(1)], NOW + 100);
    assert_eq!(at(&state), 600);
    // No call: a process that only says it is there, and one of a call that began before the last change.
    report(&mut state, &policy, B, &[], NOW + 200);
    assert_eq!(at(&state), 600);
    state.report(&policy, B, another(), 0, &batch(&[ok(1)]), NOW + 300);
    assert_eq!(at(&state), 800);
    assert_eq!(checked(&mut state, &policy, Verdict::Success, NOW + 800), Judged::Counted);
    assert_eq!(at(&state), 1_300);
    state.force_open(&policy, NOW + 900);
    state.force_close(&policy, NOW + 1_000);
    assert_eq!(at(&state), 1_500);
}

#[test]
fn cb_10_a_failing_idle_probe_opens_at_once_whatever_strategy_and_reporters() {
    let policy = idle(500);
    let mut state = CircuitState::new(&policy, NOW);
    report(&mut state, &policy, B, &[ok(1)], NOW);
    report(&mut state, &policy, C, &[ok(1)], NOW);
    let Judged::Changed(change) = checked(&mut state, &policy, Verdict::Failure, NOW + 600) else {
        panic!("{state:?}")
    };
    assert_eq!((change.to, change.why), (Position::Open, Why::Check));
    assert_eq!((state.attempt(), state.next_attempt_ms()), (Some(1), Some(NOW + 1_600)));
}

#[test]
fn cb_10_a_probe_that_was_put_off_is_stale() {
    let policy = idle(500);
    for verdict in [Verdict::Success, Verdict::Failure] {
        let mut state = CircuitState::new(&policy, NOW);
        let (generation, begun) = (state.generation(), idle_now(&state, &policy));
        let leader = elected(&mut state, &policy, A, NOW + 500);
        let told = |state: &mut CircuitState, kind, now| {
            state.check_verdict(&policy, A, leader.fence, generation, kind, verdict, now)
        };
        // A report without a call puts nothing off; a call does, whatever its results are good for.
        report(&mut state, &policy, B, &[], NOW + 501);
        assert_eq!(idle_now(&state, &policy), begun);
        state.report(&policy, B, another(), generation - 1, &batch(&[ok(1)]), NOW + 502);
        let put_off = CheckKind::Idle { at_ms: NOW + 1_002 };
        assert_eq!(idle_now(&state, &policy), put_off);
        let before = state.clone();
        assert_eq!(told(&mut state, begun, NOW + 503), Judged::Stale);
        assert_eq!(state, before);
        // The one that it was put off to counts.
        assert_ne!(told(&mut state, put_off, NOW + 1_002), Judged::Stale);
        assert_eq!(state.is_open(), verdict == Verdict::Failure);
        assert_eq!(told(&mut state, put_off, NOW + 1_003), Judged::Stale);
    }
}

#[test]
fn cb_10_without_an_interval_there_is_no_idle_probe() {
    let policy = policy(consecutive(1));
    let mut state = CircuitState::new(&policy, NOW);
    assert_eq!((state.next_check(&policy), state.due_ms(&policy)), (None, None));
    assert_eq!(checked(&mut state, &policy, Verdict::Failure, NOW), Judged::Stale);
    let half_open = half_open(1);
    let mut state = opened(&half_open);
    assert_eq!((state.next_check(&half_open), state.due_ms(&half_open)), (None, Some(NOW + 1_000)));
    assert_eq!(checked(&mut state, &half_open, Verdict::Success, NOW), Judged::Stale);
}

#[test]
fn cb_11_leadership_that_is_given_away_is_free_at_once() {
    let policy = policy(consecutive(1));
    let mut state = CircuitState::new(&policy, NOW);
    let first = elected(&mut state, &policy, A, NOW);
    assert!(!state.resign(B, first.fence, NOW) && state.resign(A, first.fence, NOW));
    assert!(elected(&mut state, &policy, B, NOW).fence > first.fence);
}

#[test]
fn st_5_a_newer_revision_carries_the_state_over() {
    let old = policy(count(0.5, 10, 4));
    let mut state = CircuitState::new(&old, NOW);
    report(&mut state, &old, A, &[bad(3)], NOW);
    let stricter = draft(count(0.5, 10, 3)).revision(1).check().unwrap();
    let mut kept = state.clone();
    kept.carry(&old, &stricter, NOW);
    report(&mut kept, &stricter, A, &[ok(1)], NOW);
    assert!(kept.is_open());
    let other = draft(consecutive(3)).revision(1).check().unwrap();
    state.carry(&old, &other, NOW);
    report(&mut state, &other, A, &[bad(2)], NOW);
    assert!(!state.is_open());
    report(&mut state, &other, A, &[bad(1)], NOW);
    assert!(state.is_open());
    let quick = CircuitPolicy::draft(consecutive(3), Recovery::half_open(), Backoff::Constant(ms(200)))
        .revision(2)
        .check()
        .unwrap();
    let generation = state.generation();
    state.carry(&other, &quick, NOW + 100);
    assert_eq!((state.attempt(), state.next_attempt_ms()), (Some(1), Some(NOW + 300)));
    assert_eq!(state.generation(), generation);
    assert!(matches!(state.try_half_open(&quick, A, another(), NOW + 300), Trial::Granted(_)));
}

#[test]
fn st_5_the_first_field_that_differs_is_named() {
    let pinned = draft(count(0.5, 10, 4)).check().unwrap();
    let differs = |offered: CircuitDraft| {
        pinned.difference(&offered.check().unwrap()).map(|d| (d.field, d.pinned, d.offered))
    };
    let said = |field: &str, pinned: &str, offered: &str| Some((field.into(), pinned.into(), offered.into()));
    assert_eq!(differs(draft(count(0.5, 10, 4)).revision(7)), None);
    assert_eq!(differs(draft(count(0.25, 10, 4))), said("count.threshold", "0.5", "0.25"));
    assert_eq!(differs(draft(count(0.5, 20, 4))), said("count.size", "10", "20"));
    assert_eq!(differs(draft(count(0.5, 10, 5))), said("count.minimum_calls", "4", "5"));
    assert_eq!(differs(draft(consecutive(4))), said("strategy", "count", "consecutive"));
    assert_eq!(differs(draft(count(0.5, 10, 4)).min_reporters(2)), said("min_reporters", "1", "2"));
    let ttl = draft(count(0.5, 10, 4)).leader_ttl(ms(3_000));
    assert_eq!(differs(ttl), said("leader_ttl", "2000 ms", "3000 ms"));
    let with = |recovery, backoff| CircuitPolicy::draft(count(0.5, 10, 4), recovery, backoff);
    assert_eq!(
        differs(with(Recovery::half_open(), doubling())),
        said("recovery", "health_check", "half_open")
    );
    let probing = Recovery::HealthCheck { check_timeout: ms(5_000), idle_interval: Some(ms(100)) };
    assert_eq!(differs(with(probing, doubling())), said("idle_interval", "off", "100 ms"));
    let slower = Backoff::Exponential { initial: ms(1_000), multiplier: 2.5, max: Some(ms(5_000)) };
    assert_eq!(differs(with(Recovery::health_check(), slower)), said("backoff.multiplier", "2", "2.5"));
    assert_eq!(
        differs(with(Recovery::health_check(), Backoff::Custom)),
        said("backoff", "exponential", "custom")
    );
}

#[test]
fn st_5_another_backoff_keeps_the_number_of_the_attempt_and_only_brings_it_nearer() {
    let old = policy(consecutive(3));
    let with = |initial| {
        let backoff = Backoff::Exponential { initial: ms(initial), multiplier: 2.0, max: None };
        CircuitPolicy::draft(consecutive(3), Recovery::health_check(), backoff).check().unwrap()
    };
    // The second attempt would come 2 s after the first.
    for (initial, next) in [(100, NOW + 1_600), (9_000, NOW + 3_000)] {
        let mut state = opened(&old);
        checked(&mut state, &old, Verdict::Failure, NOW + 1_000);
        let new = with(initial);
        state.carry(&old, &new, NOW + 1_500);
        assert_eq!((state.attempt(), state.next_attempt_ms()), (Some(2), Some(next)));
        checked(&mut state, &new, Verdict::Failure, next);
        assert_eq!((state.attempt(), state.next_attempt_ms()), (Some(3), Some(next + 2 * initial)));
    }
}

#[test]
fn st_5_results_start_anew_where_the_strategy_keeps_others() {
    for (old, new, kept) in [
        (count(0.5, 10, 4), count(1.0, 10, 4), true),
        (count(0.5, 10, 4), count(0.5, 11, 4), false),
        (sampling(0.5, 500, 4), sampling(1.0, 500, 4), true),
        (sampling(0.5, 500, 4), sampling(0.5, 501, 4), false),
        (consecutive(7), consecutive(4), true),
        (count(0.5, 10, 4), sampling(0.5, 500, 4), false),
    ] {
        let (old, new) = (policy(old), policy(new));
        let mut state = CircuitState::new(&old, NOW);
        report(&mut state, &old, A, &[bad(3)], NOW);
        state.carry(&old, &new, NOW);
        report(&mut state, &new, A, &[bad(1)], NOW);
        assert_eq!(state.is_open(), kept, "{old:?} to {new:?}");
    }
}

#[test]
fn st_5_trials_start_anew_under_another_recovery() {
    let (old, new) = (half_open(2), half_open(1));
    let mut state = opened(&old);
    let before = granted(&mut state, &old, A, NOW + 1_000);
    let out = granted(&mut state, &old, A, NOW + 1_000);
    state.half_open_result(&old, A, before.fence, Verdict::Success, NOW + 1_001);
    state.carry(&old, &new, NOW + 1_002);
    assert_eq!(state.half_open_result(&new, A, out.fence, Verdict::Success, NOW + 1_003), Judged::Stale);
    let after = granted(&mut state, &new, B, NOW + 1_004);
    state.half_open_result(&new, B, after.fence, Verdict::Success, NOW + 1_005);
    assert!(!state.is_open());
}

/// What a policy is refused with: the option, and what is allowed.
fn refused(draft: &CircuitDraft) -> String {
    let Invalid { option, given, allowed, .. } = draft.check().unwrap_err();
    assert!(!given.is_empty() && !allowed.is_empty());
    option
}

#[test]
fn bi_1_each_option_is_refused_by_its_name_on_both_sides_of_its_bounds() {
    let day = 86_400_000;
    let year = 366 * day;
    let strategy = |given| refused(&draft(given));
    let recovery = |given| refused(&CircuitPolicy::draft(consecutive(1), given, doubling()));
    let backoff = |given| refused(&CircuitPolicy::draft(consecutive(1), Recovery::health_check(), given));
    for threshold in [0, 1_001] {
        assert_eq!(strategy(consecutive(threshold)), "consecutive.threshold");
    }
    for threshold in [0.0, 0.000_000_4, -0.5, 1.000_001, f64::NAN, f64::INFINITY] {
        assert_eq!(strategy(count(threshold, 10, 1)), "count.threshold");
        assert_eq!(strategy(sampling(threshold, 10, 1)), "sampling.threshold");
    }
    for size in [0, 1_001] {
        assert_eq!(strategy(count(0.5, size, 1)), "count.size");
    }
    for minimum_calls in [0, 11] {
        assert_eq!(strategy(count(0.5, 10, minimum_calls)), "count.minimum_calls");
    }
    let short = Strategy::Sampling { threshold: 0.5, duration: Duration::from_micros(999), minimum_calls: 1 };
    assert_eq!(strategy(short), "sampling.duration");
    assert_eq!(strategy(sampling(0.5, year + 1, 1)), "sampling.duration");
    assert_eq!(strategy(sampling(0.5, 10, 0)), "sampling.minimum_calls");
    for keep in [0, 1_001] {
        assert_eq!(strategy(Strategy::Custom { keep }), "custom.keep");
    }
    for check_timeout in [Duration::ZERO, ms(year + 1), Duration::MAX] {
        assert_eq!(recovery(Recovery::HealthCheck { check_timeout, idle_interval: None }), "check_timeout");
    }
    for interval in [ms(99), ms(year + 1)] {
        let idle_interval = Some(interval);
        assert_eq!(recovery(Recovery::HealthCheck { check_timeout: ms(1), idle_interval }), "idle_interval");
    }
    for permits in [0, 1_001] {
        assert_eq!(recovery(Recovery::HalfOpen { permits, permit_ttl: ms(1) }), "half_open.permits");
    }
    for permit_ttl in [Duration::ZERO, ms(day + 1), Duration::MAX] {
        assert_eq!(recovery(Recovery::HalfOpen { permits: 1, permit_ttl }), "half_open.permit_ttl");
    }
    let exponential = |initial, multiplier, max| Backoff::Exponential { initial, multiplier, max };
    assert_eq!(backoff(Backoff::Constant(ms(year + 1))), "backoff");
    assert_eq!(backoff(exponential(Duration::MAX, 2.0, None)), "backoff.initial");
    assert_eq!(backoff(exponential(ms(1), 2.0, Some(ms(year + 1)))), "backoff.max");
    for multiplier in [0.999, 1_000.1, f64::NAN, f64::INFINITY, -2.0] {
        assert_eq!(backoff(exponential(ms(1), multiplier, None)), "backoff.multiplier");
    }
    for ttl in [99, day + 1] {
        assert_eq!(refused(&draft(consecutive(1)).leader_ttl(ms(ttl))), "leader_ttl");
    }
    assert_eq!(refused(&draft(consecutive(1)).min_reporters(0)), "min_reporters");
    assert_eq!(refused(&draft(consecutive(1)).revision(1 << 31)), "revision");
}

#[test]
fn cb_12_each_option_is_taken_up_to_its_bounds() {
    let day = 86_400_000;
    for strategy in [
        consecutive(1),
        consecutive(1_000),
        count(0.000_001, 1, 1),
        count(1.0, 1_000, 1_000),
        sampling(0.000_001, 1, 1),
        sampling(1.0, 366 * day, u32::MAX),
        Strategy::Custom { keep: 1 },
        Strategy::Custom { keep: 1_000 },
    ] {
        for ttl in [100, day] {
            assert!(
                draft(strategy).leader_ttl(ms(ttl)).min_reporters(u32::MAX).check().is_ok(),
                "{strategy:?}"
            );
        }
    }
    let widest = Recovery::HealthCheck { check_timeout: ms(366 * day), idle_interval: Some(ms(100)) };
    let half_open = Recovery::HalfOpen { permits: 1_000, permit_ttl: ms(day) };
    for recovery in [widest, half_open, Recovery::half_open(), Recovery::health_check()] {
        for backoff in [
            Backoff::Constant(Duration::ZERO),
            Backoff::Exponential { initial: Duration::ZERO, multiplier: 1.0, max: None },
            Backoff::Exponential { initial: ms(366 * day), multiplier: 1_000.0, max: Some(Duration::ZERO) },
        ] {
            assert!(CircuitPolicy::draft(consecutive(1), recovery, backoff).check().is_ok());
        }
    }
}

#[test]
fn bi_1_a_batch_is_refused_whole() {
    assert_eq!(Batch::new(vec![ok(1); MOST_RUNS + 1]).unwrap_err().option, "runs");
    assert!(Batch::new(vec![ok(MOST_TIMES); MOST_RUNS]).is_ok());
    for times in [0, MOST_TIMES + 1, u32::MAX] {
        assert_eq!(Batch::new(vec![ok(1), bad(times)]).unwrap_err().option, "run.times");
    }
}

#[test]
fn bi_2_no_moment_and_no_number_panics() {
    let widest = batch(&vec![bad(MOST_TIMES); MOST_RUNS]);
    let keep = Strategy::Custom { keep: 1_000 };
    for strategy in [consecutive(1_000), count(1.0, 1_000, 1_000), sampling(1.0, 1, u32::MAX), keep] {
        for policy in [policy(strategy), half_open(1_000), idle(100)] {
            let mut state = CircuitState::new(&policy, u64::MAX);
            for now in [0, u64::MAX, NOW, u64::MAX, 1] {
                state.report(&policy, A, another(), state.generation(), &widest, now);
                state.elect(&policy, DriverId(u128::from(now)), now);
                checked_any(&mut state, &policy, now);
                state.schedule(state.generation(), 1, u64::MAX, now);
                state.try_half_open(&policy, A, another(), now);
                state.sweep(&policy, now);
                state.force_open(&policy, now);
                state.carry(&policy, &policy, now);
                assert!(state.due_ms(&policy).is_none_or(|due| due < 1 << 53));
                state.force_close(&policy, now);
                state.shift_back(u64::MAX);
            }
        }
    }
}

fn checked_any(state: &mut CircuitState, policy: &CircuitPolicy, now: u64) {
    for verdict in [Verdict::Failure, Verdict::Success] {
        for kind in
            [idle_now(state, policy), CheckKind::Recovery { attempt: 1 }, CheckKind::Recovery { attempt: 0 }]
        {
            state.check_verdict(policy, A, now, u64::MAX, kind, verdict, now);
        }
        state.half_open_result(policy, A, u64::MAX, verdict, now);
    }
}

#[test]
fn case_24_waits_of_10_million_attempts_are_finite_monotone_and_within_the_cap() {
    let year = 366 * 86_400_000;
    for (initial, multiplier, max) in [
        (ms(0), 2.0, None),
        (ms(1), 1.0, None),
        (ms(1), 1.000_001, None),
        (ms(1), 1.5, Some(ms(60_000))),
        (ms(100), 2.0, Some(ms(50))),
        (Duration::from_nanos(1), 1_000.0, None),
        (ms(year), 1_000.0, None),
    ] {
        let backoff = CheckedBackoff::check(&Backoff::Exponential { initial, multiplier, max }).unwrap();
        let cap = max.map_or(year, |max| u64::try_from(max.as_millis()).unwrap());
        let mut wait = backoff.first_ms().unwrap();
        for attempt in 1..=10_000_000_u64 {
            let next = backoff.after_ms(wait).unwrap();
            assert!(
                wait <= next && next <= cap,
                "{multiplier}: attempt {attempt} waits {wait}, then {next} ms"
            );
            assert!(next > wait || wait == cap || multiplier == 1.0 || initial.is_zero());
            wait = next;
        }
        assert_eq!(backoff.wait_ms(10_000_001), Some(wait));
        assert!(backoff.wait_ms(u64::MAX).unwrap() <= cap);
        assert_eq!((backoff.wait_ms(0), backoff.wait_ms(1)), (backoff.first_ms(), backoff.first_ms()));
    }
}

/// A strategy with small numbers, so that random results meet its bounds.
fn any_strategy() -> impl proptest::strategy::Strategy<Value = Strategy> {
    prop_oneof![
        (1..6_u32).prop_map(consecutive),
        (1..=100_u32, 1..12_u32, 1..12_u32).prop_map(|(percent, size, least)| count(
            f64::from(percent) / 100.0,
            size,
            least.min(size)
        )),
        (1..=100_u32, 1..3_000_u64, 1..12_u32).prop_map(|(percent, duration, least)| sampling(
            f64::from(percent) / 100.0,
            duration,
            least
        )),
    ]
}

fn any_runs() -> impl proptest::strategy::Strategy<Value = Vec<Run>> {
    proptest::collection::vec((any::<bool>(), 1..6_u32), 0..4).prop_map(|runs| {
        runs.into_iter().map(|(failed, times)| if failed { bad(times) } else { ok(times) }).collect()
    })
}

/// Every result that ever counted since the last change, with its moment, and who was heard and failed when.
struct Naive {
    strategy: Strategy,
    min_reporters: usize,
    results: Vec<(u64, bool)>,
    heard: Vec<(DriverId, u64)>,
    failed: Vec<(DriverId, u64)>,
}

impl Naive {
    fn new(strategy: Strategy, min_reporters: usize) -> Self {
        Self { strategy, min_reporters, results: vec![], heard: vec![], failed: vec![] }
    }

    fn among(log: &[(DriverId, u64)], span: u64, now: u64) -> usize {
        let mut recent: Vec<_> =
            log.iter().filter(|(_, at)| at + span > now).map(|(driver, _)| *driver).collect();
        recent.sort_unstable();
        recent.dedup();
        recent.len()
    }

    /// The rule as it is written, with fractions as they are.
    fn strategy_opens(&self, now: u64) -> bool {
        let rate = |calls: &[(u64, bool)], percent: f64, least: u32| {
            let failures = calls.iter().filter(|(_, failed)| *failed).count() * 1_000_000;
            // A whole number of percent.
            #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
            let ppm = (percent * 1_000_000.0).round() as usize;
            calls.len() >= least as usize && failures >= calls.len() * ppm
        };
        match self.strategy {
            Strategy::Consecutive { threshold } => {
                self.results.iter().rev().take_while(|(_, failed)| *failed).count() >= threshold as usize
            }
            Strategy::Count { threshold, size, minimum_calls } => {
                let from = self.results.len().saturating_sub(size as usize);
                rate(&self.results[from..], threshold, minimum_calls)
            }
            Strategy::Sampling { threshold, duration, minimum_calls } => {
                let span = u64::try_from(duration.as_millis()).unwrap();
                let from = self.results.partition_point(|(at, _)| at + span <= now);
                rate(&self.results[from..], threshold, minimum_calls)
            }
            _ => false,
        }
    }

    /// Whether a `Sampling` opens however its samples are shared: failures that a 512th less would still see, against
    /// successes that a 512th more would.
    fn certainly_opens(&self, now: u64) -> bool {
        let Strategy::Sampling { threshold, duration, minimum_calls } = self.strategy else { return false };
        let span = u64::try_from(duration.as_millis()).unwrap();
        let apart = span / 512;
        let certain = &self.results[self.results.partition_point(|(at, _)| at + span - apart <= now)..];
        let possible = &self.results[self.results.partition_point(|(at, _)| at + span + apart <= now)..];
        let failures = certain.iter().filter(|(_, failed)| *failed).count();
        let successes = possible.iter().filter(|(_, failed)| !failed).count();
        // A whole number of percent.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let ppm = (threshold * 1_000_000.0).round() as usize;
        certain.len() >= minimum_calls as usize && failures * 1_000_000 >= (failures + successes) * ppm
    }

    fn opens(&self, now: u64) -> bool {
        let span = match self.strategy {
            Strategy::Sampling { duration, .. } => u64::try_from(duration.as_millis()).unwrap(),
            _ => 10_000,
        };
        let needed = self.min_reporters.min(Self::among(&self.heard, 10_000, now));
        self.strategy_opens(now) && (needed <= 1 || Self::among(&self.failed, span, now) >= needed)
    }
}

/// Takes one step of a few kinds, and says what came of it, without fences.
fn taken(
    state: &mut CircuitState,
    policy: &CircuitPolicy,
    (step, who, _, failed): (u8, u128, u64, bool),
    now: u64,
) -> String {
    let driver = DriverId(who);
    let verdict = if failed { Verdict::Failure } else { Verdict::Success };
    match step {
        0..=3 => {
            let run = if failed { bad(2) } else { ok(1) };
            format!("{:?}", report(state, policy, driver, &[run], now))
        }
        4 => matches!(state.elect(policy, driver, now), Election::Leads(_)).to_string(),
        5 => match state.leader(now) {
            Some(leader) => {
                let kind = idle_now(state, policy);
                let generation = state.generation();
                let judged =
                    state.check_verdict(policy, leader.driver, leader.fence, generation, kind, verdict, now);
                format!("{judged:?}")
            }
            None => "nobody leads".to_owned(),
        },
        6 | 7 => match state.try_half_open(policy, driver, another(), now) {
            Trial::Granted(permit) => format!("for {} ms", permit.until_ms - now),
            other => format!("{other:?}"),
        },
        _ => match state.trials().first().copied() {
            Some(permit) => {
                format!("{:?}", state.half_open_result(policy, permit.driver, permit.fence, verdict, now))
            }
            None => "no trials".to_owned(),
        },
    }
}

proptest! {
    /// Up to 512 moments nothing is coalesced, so the state opens at exactly the run at which the log does. Batches are
    /// of one process at a time and as long as a `Count` takes from it.
    #[test]
    fn cb_1_a_circuit_opens_exactly_when_a_naive_log_does(
        strategy in any_strategy(),
        min_reporters in 1..4_u32,
        steps in proptest::collection::vec((0..3_u128, 0..4_000_u64, any_runs()), 1..120),
    ) {
        let policy = draft(strategy).min_reporters(min_reporters).check().unwrap();
        let mut state = CircuitState::new(&policy, NOW);
        let mut naive = Naive::new(strategy, min_reporters as usize);
        let mut now = NOW;
        for (who, pause, runs) in steps {
            let driver = DriverId(who);
            now += pause * pause / 4_000;
            naive.heard.push((driver, now));
            let heard = u32::try_from(Naive::among(&naive.heard, 10_000, now)).unwrap();
            let fits = match strategy {
                Strategy::Count { size, .. } => size.div_ceil(heard),
                _ => u32::MAX,
            };
            let mut room = fits;
            let runs: Vec<_> = runs
                .into_iter()
                .map_while(|run| {
                    let times = run.times.min(room);
                    room -= times;
                    (times > 0).then_some(Run { times, ..run })
                })
                .collect();
            let mut opens = false;
            for run in &runs {
                let failed = run.verdict == Verdict::Failure;
                naive.results.extend((0..run.times).map(|_| (now, failed)));
                if failed {
                    naive.failed.push((driver, now));
                }
                if naive.opens(now) {
                    opens = true;
                    break;
                }
            }
            let generation = state.generation();
            let reported = report(&mut state, &policy, driver, &runs, now);
            prop_assert_eq!(state.heard(now), heard);
            if opens {
                prop_assert!(matches!(reported, Reported::Opened(_)), "{:?} at {}", reported, now - NOW);
                prop_assert_eq!(state.generation(), generation + 1);
                state.force_close(&policy, now);
                naive.results.clear();
                naive.failed.clear();
            } else {
                prop_assert_eq!(reported, Reported::Counted, "at {}", now - NOW);
            }
        }
    }

    /// A clock that is set back moves what is stored with it, and every later answer is the same, as much earlier.
    #[test]
    fn st_2_moments_move_back_with_the_clock_and_answers_stay(
        which in 0..4_usize,
        back in 1..NOW / 2,
        before in proptest::collection::vec((0..9_u8, 0..3_u128, 0..900_u64, any::<bool>()), 1..60),
        after in proptest::collection::vec((0..9_u8, 0..3_u128, 0..900_u64, any::<bool>()), 1..60),
    ) {
        let policy = match which {
            0 => idle(500),
            1 => half_open(2),
            2 => draft(sampling(0.5, 2_000, 6)).min_reporters(2).check().unwrap(),
            _ => draft(count(0.6, 10, 3)).min_reporters(3).check().unwrap(),
        };
        let mut here = CircuitState::new(&policy, NOW);
        let mut now = NOW;
        for step in before {
            now += step.2;
            taken(&mut here, &policy, step, now);
        }
        let mut there = here.clone();
        there.shift_back(back);
        prop_assert_eq!(there.generation(), here.generation());
        for step in after {
            now += step.2;
            prop_assert_eq!(taken(&mut there, &policy, step, now - back), taken(&mut here, &policy, step, now));
            prop_assert_eq!(there.since_ms() + back, here.since_ms());
            prop_assert_eq!(there.due_ms(&policy).map(|due| due + back), here.due_ms(&policy));
            prop_assert_eq!(there.next_attempt_ms().map(|next| next + back), here.next_attempt_ms());
            prop_assert_eq!(there.heard(now - back), here.heard(now));
            prop_assert_eq!(there.failing(&policy, now - back), here.failing(&policy, now));
            prop_assert_eq!(there.recent().collect::<Vec<_>>(), here.recent().collect::<Vec<_>>());
            prop_assert_eq!(there.is_open(), here.is_open());
        }
    }

    /// Whatever comes in whatever order: one leader at a time, fences and generations only grow, only what bears the
    /// present ones changes the state, and trials never exceed their permits.
    #[test]
    fn cb_3_random_runs_obey_a_small_state_machine(
        health in any::<bool>(),
        steps in proptest::collection::vec(
            (0..10_u8, 0..3_u128, 0..1_500_u64, any::<bool>(), 0..3_u64, 0..3_u64),
            1..200,
        ),
    ) {
        let policy = if health { idle(500) } else { half_open(2) };
        let mut state = CircuitState::new(&policy, NOW);
        let mut now = NOW;
        let mut leader: Option<Leader> = None;
        let mut out: Vec<TrialPermit> = vec![];
        let (mut succeeded, mut fence, mut attempt) = (0, 0, 0);
        for (step, who, pause, failed, behind, aside) in steps {
            now += pause;
            let driver = DriverId(who);
            let (was_open, generation, since) = (state.is_open(), state.generation(), state.since_ms());
            let verdict = if failed { Verdict::Failure } else { Verdict::Success };
            leader = leader.filter(|leader| now < leader.until_ms);
            out.retain(|permit| now < permit.until_ms);
            // What may change the state now, and whether it must.
            let mut changes = false;
            match step {
                0 => {
                    let told = generation - behind.min(generation);
                    let reported = state.report(&policy, driver, another(), told, &batch(&[bad(1), ok(1)]), now);
                    changes = !health && behind == 0 && !was_open;
                    prop_assert_eq!(changes, matches!(reported, Reported::Opened(_)));
                }
                1 | 2 => match state.elect(&policy, driver, now) {
                    Election::Leads(elected) => {
                        prop_assert!(leader.is_none_or(|l| (l.driver, l.fence) == (driver, elected.fence)));
                        prop_assert!(leader.is_some() || elected.fence > fence);
                        fence = fence.max(elected.fence);
                        leader = Some(elected);
                    }
                    Election::Follows { retry_ms } => {
                        let leads = leader.unwrap();
                        prop_assert!(leads.driver != driver && leads.until_ms == now + retry_ms);
                    }
                },
                3 => {
                    let renewed = state.renew(&policy, driver, fence - aside.min(fence), now);
                    prop_assert_eq!(
                        renewed.is_some(),
                        leader.is_some_and(|l| l.driver == driver && l.fence == fence - aside.min(fence))
                    );
                    if let (Some(until_ms), Some(leads)) = (renewed, leader.as_mut()) {
                        leads.until_ms = until_ms;
                    }
                }
                4 => {
                    let fence = fence - aside.min(fence);
                    let held = leader.is_some_and(|l| (l.driver, l.fence) == (driver, fence));
                    prop_assert_eq!(state.resign(driver, fence, now), held);
                    leader = leader.filter(|_| !held);
                }
                5 | 6 => {
                    let fence = leader.map_or(fence, |leader| leader.fence) - aside.min(fence);
                    let at = state.attempt().unwrap_or(1);
                    let kind = if was_open { CheckKind::Recovery { attempt: at } } else { idle_now(&state, &policy) };
                    let told = generation - behind.min(generation);
                    let counts = health
                        && behind == 0
                        && leader.is_some_and(|l| (l.driver, l.fence) == (driver, fence));
                    let judged = state.check_verdict(&policy, driver, fence, told, kind, verdict, now);
                    changes = counts && was_open != failed;
                    prop_assert_eq!(counts, judged != Judged::Stale);
                    prop_assert_eq!(changes, matches!(judged, Judged::Changed(_)));
                    attempt += u64::from(counts && was_open && failed);
                }
                7 => match state.try_half_open(&policy, driver, another(), now) {
                    Trial::Granted(permit) => {
                        prop_assert!(was_open && !health && state.next_attempt_ms() <= Some(now));
                        prop_assert!(out.len() + succeeded < 2 && permit.fence > fence);
                        fence = permit.fence;
                        out.push(permit);
                    }
                    Trial::Full { retry_ms } => {
                        prop_assert_eq!(out.len() + succeeded, 2);
                        prop_assert!(out.iter().any(|permit| permit.until_ms == now + retry_ms));
                    }
                    Trial::TooEarly { retry_ms } => {
                        prop_assert_eq!(state.next_attempt_ms(), Some(now + retry_ms));
                    }
                    Trial::NotOffered => prop_assert!(health || !was_open),
                    Trial::Unscheduled { .. } => prop_assert!(false),
                },
                8 => {
                    let permit = out.first().copied().filter(|_| aside == 0);
                    let (who, fence) = permit.map_or((driver, 7), |permit| (permit.driver, permit.fence));
                    if behind == 0 {
                        prop_assert_eq!(state.give_back(who, fence, now), permit.is_some());
                    } else {
                        let judged = state.half_open_result(&policy, who, fence, verdict, now);
                        prop_assert_eq!(judged != Judged::Stale, permit.is_some());
                        succeeded += usize::from(permit.is_some() && !failed);
                        changes = succeeded == 2;
                        prop_assert_eq!(changes, matches!(judged, Judged::Changed(_)));
                        if permit.is_some() && failed {
                            (out, succeeded) = (vec![], 0);
                            attempt += 1;
                        }
                    }
                    out.retain(|permit| permit.fence != fence);
                }
                _ if aside == 0 => {
                    changes = true;
                    let change = if was_open { state.force_close(&policy, now) } else { state.force_open(&policy, now) };
                    prop_assert_eq!(change.unwrap().why, Why::Operator);
                }
                _ => state.sweep(&policy, now),
            }
            prop_assert_eq!(state.is_open(), was_open != changes);
            prop_assert_eq!(state.generation(), generation + u64::from(changes));
            prop_assert_eq!(state.since_ms(), if changes { now } else { since });
            if changes {
                (out, succeeded, attempt) = (vec![], 0, 1);
            }
            prop_assert_eq!(state.attempt(), state.is_open().then_some(attempt));
            prop_assert_eq!(state.leader(now), leader);
        }
    }
}

proptest! {
    // Each of them looks through thousands of results at every step.
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// With thousands of moments samples are shared. Then the state may open later than the log, and never earlier; and
    /// it opens where the log would also with a 512th of the duration less for failures, and more for successes.
    #[test]
    fn cb_1_sampling_never_opens_earlier_than_a_naive_log(
        percent in 20..=90_u32,
        duration in 1_000..2_500_u64,
        least in 400..900_u32,
        seed in any::<u64>(),
    ) {
        let strategy = sampling(f64::from(percent) / 100.0, duration, least);
        let policy = draft(strategy).check().unwrap();
        let mut state = CircuitState::new(&policy, NOW);
        let mut naive = Naive::new(strategy, 1);
        let (mut dice, mut now, mut opened) = (seed | 1, NOW, 0);
        for step in 0..4_000_u32 {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            // Calls come faster and slower, and failures rise slowly from below the threshold to above it.
            now += dice % if step / 900 % 2 == 0 { 3 } else { 5 };
            let wave = percent - 15 + step / 40 % 25;
            let run = if (dice >> 32) % 100 < u64::from(wave) { bad(1) } else { ok(1) };
            naive.results.push((now, run.verdict == Verdict::Failure));
            report(&mut state, &policy, A, &[run], now);
            if state.is_open() {
                opened += 1;
                prop_assert!(naive.strategy_opens(now), "step {}", step);
                state.force_close(&policy, now);
                naive.results.clear();
            } else {
                // What is older than two durations counts in nothing.
                if step % 500 == 0 {
                    naive.results.retain(|(at, _)| at + 2 * duration > now);
                }
                prop_assert!(!naive.certainly_opens(now), "step {}", step);
            }
        }
        prop_assert!(opened < 4_000);
    }
}
