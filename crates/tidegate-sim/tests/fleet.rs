//! What holds in every run: the bound, every lease back, the same for all workers, and figures that add up.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use fastrand::Rng;
use tidegate::{Aimd, Growth};
use tidegate_sim::{Report, Simulation, SimulationBuilder};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);

fn done(run: SimulationBuilder) -> Report {
    run.build().unwrap().run().unwrap()
}

/// A fleet of any kind.
fn any(rng: &mut Rng) -> SimulationBuilder {
    let growth = [Growth::Additive, Growth::SlowStart, Growth::Probe][rng.usize(0..3)];
    let window = SECOND * rng.u32(1..4);
    let run = Simulation::builder(rng.u32(1..30))
        .processes(rng.usize(1..12))
        .workers(rng.usize(1..60))
        .duration(SECOND * 40)
        .seed(rng.u64(..))
        .service(MS * rng.u32(1..50)..=MS * rng.u32(50..400))
        .think_time(Duration::ZERO..=MS * rng.u32(0..200))
        .reject_time(MS * rng.u32(1..20))
        .release_delay(MS * rng.u32(0..3))
        .unrelated_throttles(rng.f64() * 0.01)
        .failures(rng.f64() * 0.2)
        .patience(MS * rng.u32(1..20_000))
        .growth(growth)
        .initial_limit(rng.u32(1..40))
        .aimd(Aimd::new().window(window).cooldown(window * 2).decrease_factor(0.3 + rng.f64() * 0.6))
        .throttle_rest(MS * rng.u32(0..3_000))
        .lease_ttl(MS * rng.u32(100..5_000));
    run.ceiling_at(SECOND * 20, rng.u32(1..30))
}

#[test]
fn as_4_live_leases_never_exceed_the_limit_at_a_grant_and_as_7_all_are_back_at_the_end() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = Rng::with_seed(seed);
    for _ in 0..8 {
        let run = any(&mut rng);
        let shown = format!("seed {seed}: {run:?}");
        let report = done(run);
        assert!(report.calls > 0, "{shown}");
        assert_eq!(report.over_admission, 0, "{shown}");
        assert_eq!(report.leases_left, 0, "{shown}");
        assert_eq!(report.ok + report.throttled + report.failed, report.calls, "{shown}");
        assert!(report.goodput_ratio > 0.0 && report.goodput_ratio < 1.02, "{shown}");
        assert!(report.wait.p50 <= report.wait.p99 && report.wait.p99 <= report.wait.max, "{shown}");
        assert!((1..30).contains(&report.provider_max_in_flight), "{shown}");
    }
}

#[test]
fn as_6_a_call_that_outlasts_its_ttl_many_times_keeps_its_lease() {
    let report = done(
        Simulation::builder(5)
            .workers(10)
            .processes(2)
            .duration(SECOND * 60)
            .service(SECOND * 2..=SECOND * 3)
            .lease_ttl(MS * 200)
            .initial_limit(5)
            .max_limit(5),
    );
    // A slot that went to another meanwhile would be granted twice, and the provider would turn a call away.
    assert_eq!((report.over_admission, report.throttled), (0, 0));
    assert!(report.goodput_ratio > 0.95, "{}", report.goodput_ratio);
}

#[test]
fn as_12_workers_fare_alike_in_one_process_in_some_and_in_one_each() {
    let run = || Simulation::builder(10).workers(40).duration(SECOND * 60).initial_limit(10).max_limit(10);
    for processes in [1, 4, 13, 40] {
        let report = done(run().processes(processes));
        assert!(report.fairness > 0.99, "{processes} processes: {}", report.fairness);
        assert_eq!(report.timeouts, 0, "{processes} processes");
        // First come, first served: nobody waits for much longer than 30 others take on 10 places.
        assert!(report.wait.p99 < SECOND, "{processes} processes: {:?}", report.wait);
        assert!(report.wait.p50 > MS * 200, "{processes} processes: {:?}", report.wait);
        assert!(report.goodput_ratio > 0.99, "{processes} processes: {}", report.goodput_ratio);
    }
}

#[test]
fn the_provider_sees_its_ceiling_reached_but_never_exceeded() {
    let report = done(Simulation::builder(7).workers(30).duration(SECOND * 60).initial_limit(30));
    assert_eq!(report.provider_max_in_flight, 7);
    assert!(report.throttled > 0);
}
