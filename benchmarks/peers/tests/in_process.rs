//! Shows that each peer of a process admits more often than it has permits, in two threads at a time, and that a
//! contender that cannot do a work says so.

use std::process::Command;

use tidegate_benchmarks_peers as peers;

fn admits(work: impl Fn() + Clone + Send + 'static) {
    let other = std::thread::spawn({
        let work = work.clone();
        move || (0..20_000).for_each(|_| work())
    });
    (0..20_000).for_each(|_| work());
    assert!(other.join().is_ok());
}

#[test]
fn the_limiters_admit_again_and_again() {
    admits(peers::tokio_semaphore());
    admits(peers::governor());
    admits(peers::governor_keyed(1));
    admits(peers::governor_keyed(1_000));
    admits(peers::tower_resilience_bulkhead());
    admits(peers::tower_resilience_ratelimit());
}

#[test]
fn the_breakers_stay_closed() {
    admits(peers::tower_resilience_circuit_breaker());
    admits(peers::recloser());
    admits(peers::failsafe());
}

#[test]
fn a_work_that_a_peer_has_not_is_refused() {
    let output = Command::new(env!("CARGO_BIN_EXE_peer")).args(["throttled", "pairs"]).output().unwrap();
    assert!(!output.status.success());
    assert!(output.stdout.is_empty());
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("Throttled has no work Pairs"), "{said}");
}
