//! The same simulation gives the same report to the last bit, whatever else its thread has done; another seed another.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use tidegate::{Aimd, Growth};
use tidegate_sim::{Report, Simulation};

/// With chance in every part of it.
fn simulation(seed: u64) -> Simulation {
    let second = Duration::from_secs(1);
    Simulation::builder(8)
        .processes(3)
        .workers(25)
        .duration(second * 60)
        .ceiling_at(second * 30, 3)
        .think_time(Duration::ZERO..=Duration::from_millis(20))
        .release_delay(Duration::from_millis(1))
        .unrelated_throttles(0.002)
        .failures(0.05)
        .aimd(Aimd::new().window(second).cooldown(second * 2))
        .growth(Growth::Probe)
        .seed(seed)
        .build()
        .unwrap()
}

fn run(seed: u64) -> Report {
    simulation(seed).run().unwrap()
}

#[test]
fn the_same_seed_gives_the_same_report() {
    let first = run(7);
    assert!(first.throttled > 0 && first.failed > 0 && first.limits.len() > 3, "{first:?}");
    fastrand::seed(99);
    assert_eq!(run(7), first);
    let elsewhere = std::thread::spawn(|| run(7)).join().unwrap();
    assert_eq!(elsewhere, first);
    assert_eq!(elsewhere.goodput_ratio.to_bits(), first.goodput_ratio.to_bits());
}

#[test]
fn another_seed_gives_another_report() {
    let (one, other) = (run(7), run(8));
    assert_ne!(one.wait, other.wait);
    assert_ne!(one, other);
}

#[test]
fn a_run_leaves_the_chance_of_its_thread_as_it_was() {
    let simulation = simulation(7);
    fastrand::seed(5);
    let undisturbed = fastrand::u64(..);
    fastrand::seed(5);
    simulation.run().unwrap();
    assert_eq!(fastrand::u64(..), undisturbed);
}
