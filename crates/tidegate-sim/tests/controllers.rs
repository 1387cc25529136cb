//! What the controllers do with the limit of a whole fleet, seen over minutes.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use tidegate::{Aimd, Growth};
use tidegate_sim::{Report, Simulation, SimulationBuilder};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
const WINDOW: Duration = SECOND;
const COOLDOWN: Duration = Duration::from_secs(2);
const GROWTHS: [Growth; 3] = [Growth::Additive, Growth::SlowStart, Growth::Probe];

/// Windows of a second, so that minutes show what hours show.
fn quick() -> Aimd {
    Aimd::new().window(WINDOW).cooldown(COOLDOWN)
}

fn fleet(ceiling: u32, growth: Growth) -> SimulationBuilder {
    Simulation::builder(ceiling)
        .processes(3)
        .workers(30)
        .service(MS * 200..=MS * 400)
        .duration(SECOND * 120)
        .initial_limit(3)
        .aimd(quick())
        .growth(growth)
}

/// A report of a run in which nothing was lost and the bound held.
#[track_caller]
fn done(run: SimulationBuilder) -> Report {
    let report = run.build().unwrap().run().unwrap();
    assert_eq!((report.over_admission, report.leases_left), (0, 0));
    report
}

/// Each move of the limit: when, from, to, and how long it had stood.
fn moves(report: &Report) -> impl Iterator<Item = (Duration, u32, u32, Duration)> + '_ {
    report.limits.windows(2).map(|pair| (pair[1].0, pair[0].1, pair[1].1, pair[1].0 - pair[0].0))
}

fn values(report: &Report) -> Vec<u32> {
    report.limits.iter().map(|(_, limit)| *limit).collect()
}

#[test]
fn as_1_every_decrease_is_a_halving_and_they_are_a_cooldown_apart() {
    let report = done(fleet(9, Growth::Additive).unrelated_throttles(0.01));
    let decreases: Vec<_> = moves(&report).filter(|(_, from, to, _)| to < from).collect();
    assert!(decreases.len() > 5, "{:?}", report.limits);
    for (at, from, to, _) in &decreases {
        assert_eq!(*to, from / 2, "at {at:?}");
    }
    // Moments of the store are whole milliseconds.
    let apart = decreases.windows(2).map(|pair| pair[1].0 - pair[0].0);
    assert!(apart.clone().all(|apart| apart > COOLDOWN - MS), "{:?}", report.limits);
    assert!(apart.min() < Some(COOLDOWN + SECOND), "the cooldown was never tried: {:?}", report.limits);
}

#[test]
fn as_2_every_increase_is_one_step_and_comes_after_a_window() {
    let report = done(fleet(9, Growth::Additive).aimd(quick().increase_step(2)));
    let increases: Vec<_> = moves(&report).filter(|(_, from, to, _)| to > from).collect();
    assert!(increases.len() > 20, "{:?}", report.limits);
    for (at, from, to, stood) in increases {
        assert_eq!(to, from + 2, "at {at:?}");
        assert!(stood > WINDOW - MS, "at {at:?}: {stood:?}");
    }
}

#[test]
fn as_2_quiet_traffic_never_inflates_the_limit_and_busy_traffic_does() {
    for growth in GROWTHS {
        let quiet = done(fleet(100, growth).workers(10).initial_limit(10).duration(SECOND * 60));
        assert_eq!(values(&quiet), [10], "{growth:?}");
        assert!(quiet.calls > 1_500 && quiet.wait.max == Duration::ZERO, "{growth:?}");
        let busy = done(fleet(100, growth).workers(11).initial_limit(10).duration(SECOND * 30));
        assert!(values(&busy).ends_with(&[11]) || values(&busy).ends_with(&[20]), "{growth:?}: {busy:?}");
    }
}

#[test]
fn as_2_tolerance_passes_over_throttles_that_have_nothing_to_do_with_the_ceiling() {
    let run = |tolerance| {
        done(fleet(12, Growth::Additive).unrelated_throttles(0.02).aimd(quick().tolerance(tolerance)))
    };
    let (strict, tolerant) = (run(0.0), run(0.1));
    assert!(strict.goodput_ratio < 0.5, "{}", strict.goodput_ratio);
    assert!(tolerant.goodput_ratio > 0.65, "{}", tolerant.goodput_ratio);
}

#[test]
fn as_3_failures_never_lower_the_limit() {
    let report = done(fleet(100, Growth::Additive).failures(0.5));
    assert!(report.failed > report.calls / 3);
    assert!(moves(&report).all(|(_, from, to, _)| to == from + 1), "{:?}", report.limits);
    assert!(report.limits.len() > 20);
}

#[test]
fn as_13_every_growth_finds_the_ceiling_and_probe_stays_just_below_it() {
    for (growth, goodput) in
        [(Growth::Additive, 0.65..0.85), (Growth::SlowStart, 0.65..0.85), (Growth::Probe, 0.88..1.0)]
    {
        let report = done(fleet(12, growth).duration(SECOND * 180));
        assert!(goodput.contains(&report.goodput_ratio), "{growth:?}: {}", report.goodput_ratio);
        assert!(report.reached_after.is_some_and(|after| after < SECOND * 12), "{growth:?}: {report:?}");
        assert!(report.throttled > 0 && report.throttled_ratio < 0.01, "{growth:?}: {report:?}");
        assert_eq!(report.provider_max_in_flight, 12, "{growth:?}");
    }
}

#[test]
fn as_13_slow_start_doubles_until_the_first_throttle_and_then_goes_by_steps() {
    let report = done(fleet(13, Growth::SlowStart).duration(SECOND * 30));
    let values = values(&report);
    assert!(values.starts_with(&[3, 6, 12, 24, 12]), "{values:?}");
    let later = values.get(4..).unwrap();
    assert!(later.len() > 5, "{values:?}");
    assert!(later.windows(2).all(|pair| pair[1] == pair[0] + 1 || pair[1] == pair[0] / 2), "{values:?}");
}

#[test]
fn as_13_probe_returns_to_what_last_worked_rests_there_and_searches_on() {
    let report = done(fleet(10, Growth::Probe).duration(SECOND * 240));
    let moves: Vec<_> = moves(&report).collect();
    // It knows where the ceiling is when it has been thrown back from just above it.
    let cycle = moves.windows(4).find(|moves| moves[0].1 == 11).unwrap();
    let steps: Vec<(u32, u32)> = cycle.iter().map(|(_, from, to, _)| (*from, *to)).collect();
    assert_eq!(steps, [(11, 5), (5, 10), (10, 11), (11, 5)], "{moves:?}");
    let rest = cycle[2].3;
    // The second window of the return, 24 of rest, and one before the step.
    assert!(rest > WINDOW * 25 && rest < WINDOW * 28, "{rest:?}");
}

#[test]
fn as_13_a_drop_and_a_rise_are_followed_by_every_growth() {
    for growth in GROWTHS {
        let run = fleet(20, growth).initial_limit(18).ceiling_at(SECOND * 40, 5).ceiling_at(SECOND * 80, 20);
        let report = done(run);
        let [drop, rise] = report.changes.as_slice() else { panic!("{report:?}") };
        assert_eq!((drop.from, drop.to, rise.from, rise.to), (20, 5, 5, 20));
        assert!(drop.followed_after.is_some_and(|after| after <= COOLDOWN * 3), "{growth:?}: {drop:?}");
        assert!(drop.throttled > 0 && drop.throttled < drop.calls / 4, "{growth:?}: {drop:?}");
        assert!(rise.followed_after.is_some_and(|after| after <= WINDOW * 34), "{growth:?}: {rise:?}");
    }
}

#[test]
fn as_16_the_limit_stays_within_its_bounds_and_reaches_both() {
    for growth in GROWTHS {
        let high = done(fleet(20, growth).max_limit(7).duration(SECOND * 60));
        assert_eq!(values(&high).iter().max(), Some(&7), "{growth:?}");
        assert_eq!(high.throttled, 0, "{growth:?}");
        let low = done(
            fleet(20, growth).min_limit(3).initial_limit(9).unrelated_throttles(0.05).duration(SECOND * 60),
        );
        assert_eq!(values(&low).iter().min(), Some(&3), "{growth:?}");
    }
}
