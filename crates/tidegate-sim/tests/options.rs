//! Every option is checked before anything runs, and a refusal names the option, the value and what is allowed.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use tidegate::{Aimd, Invalid};
use tidegate_sim::{Simulation, SimulationBuilder};

const SECOND: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

fn base() -> SimulationBuilder {
    Simulation::builder(10)
}

#[track_caller]
fn refused(run: SimulationBuilder, option: &str, given: &str, allowed: &str) {
    let Invalid { option: found, given: value, allowed: says, .. } = run.build().unwrap_err();
    assert_eq!((found.as_str(), value.as_str()), (option, given));
    assert!(says.contains(allowed), "{option}: {says:?} does not say {allowed:?}");
}

#[test]
fn bi_1_a_number_out_of_its_bounds_is_refused() {
    refused(Simulation::builder(0), "ceiling", "0", "1 to 1000000");
    refused(Simulation::builder(1_000_001), "ceiling", "1000001", "1 to 1000000");
    refused(base().processes(0), "processes", "0", "1 to 10000");
    refused(base().processes(10_001), "processes", "10001", "1 to 10000");
    refused(base().workers(0), "workers", "0", "1 to 100000");
    refused(base().workers(100_001), "workers", "100001", "1 to 100000");
}

#[test]
fn bi_1_a_duration_out_of_its_bounds_is_refused() {
    refused(base().duration(Duration::ZERO), "duration", "0ns", "1 ms to 366 days");
    refused(base().duration(Duration::MAX), "duration", "18446744073709551615.999999999s", "366 days");
    refused(base().service(MS * 9..=MS * 8), "service", "9ms..=8ms", "the shortest first");
    refused(base().service(Duration::ZERO..=MS), "service", "0ns..=1ms", "1 ms to 24 h");
    refused(base().service(MS..=DAY + MS), "service", "1ms..=86400.001s", "24 h");
    refused(
        base().think_time(MS..=Duration::MAX),
        "think_time",
        "1ms..=18446744073709551615.999999999s",
        "24 h",
    );
    refused(base().reject_time(Duration::ZERO), "reject_time", "0ns", "1 ms to 24 h");
    refused(base().release_delay(DAY * 2), "release_delay", "172800s", "0 to 24 h");
    refused(base().patience(Duration::ZERO), "patience", "0ns", "1 ms at least");
}

#[test]
fn bi_1_a_share_that_is_none_is_refused() {
    for (share, given) in [(-0.1, "-0.1"), (1.0, "1.0"), (f64::NAN, "NaN"), (f64::INFINITY, "inf")] {
        refused(base().unrelated_throttles(share), "unrelated_throttles", given, "from 0 and below 1");
        refused(base().failures(share), "failures", given, "from 0 and below 1");
    }
}

#[test]
fn bi_1_a_ceiling_that_changes_out_of_order_or_after_the_end_is_refused() {
    let base = || base().duration(SECOND * 10);
    refused(base().ceiling_at(SECOND, 0), "ceiling_at", "0", "1 to 1000000");
    refused(base().ceiling_at(Duration::ZERO, 5), "ceiling_at", "0ns", "later than 0ns");
    refused(base().ceiling_at(SECOND * 2, 5).ceiling_at(SECOND * 2, 6), "ceiling_at", "2s", "later than 2s");
    refused(base().ceiling_at(SECOND * 10, 5), "ceiling_at", "10s", "before the end, 10s");
    assert!(base().ceiling_at(SECOND, 5).ceiling_at(SECOND * 10 - MS, 6).build().is_ok());
}

#[test]
fn bi_1_what_a_semaphore_would_refuse_is_refused_as_the_semaphore_does() {
    refused(base().initial_limit(0), "initial_limit", "0", "1 to 1000");
    refused(base().max_limit(0), "max_limit", "0", "1 to 1000000");
    refused(base().min_limit(2_000), "min_limit", "2000", "1 to max_limit");
    refused(base().aimd(Aimd::new().decrease_factor(1.0)), "aimd.decrease_factor", "1.0", "0.999999");
    refused(base().throttle_rest(DAY * 2), "throttle_rest", "172800s", "24 hours");
    refused(base().lease_ttl(MS), "lease_ttl", "1ms", "100 ms");
}

#[test]
fn what_is_at_its_bounds_is_taken() {
    let least = Simulation::builder(1)
        .processes(1)
        .workers(1)
        .duration(MS)
        .service(MS..=MS)
        .reject_time(MS)
        .patience(MS);
    assert!(least.build().is_ok());
    let most = Simulation::builder(1_000_000)
        .processes(10_000)
        .workers(100_000)
        .duration(Duration::from_secs(366 * 24 * 60 * 60))
        .service(DAY..=DAY)
        .think_time(DAY..=DAY)
        .reject_time(DAY)
        .release_delay(DAY)
        .unrelated_throttles(0.999_999)
        .failures(0.999_999)
        .patience(Duration::MAX);
    assert!(most.build().is_ok());
}
