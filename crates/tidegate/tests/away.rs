//! What a process does while its store is away, answers late, twice, or nonsense: the faulty store of the kit stands in
//! for a remote one.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

#[path = "support/fleet.rs"]
mod fleet;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use fleet::{Fleet, ms};
use tidegate::{
    Acquire, AcquireError, AdaptiveSemaphore, Aimd, Class, Concurrency, Job, LastCause, MemoryStore, Outcome,
    Rule, SemaphoreBuilder, Trouble, Valve,
};
use tidegate_testkit::faulty::{Fault, Faulty, Garbage, Handle, Operation};
use tokio::time::{Instant, sleep};

/// A store that stands in for a remote one, and what is done to it.
fn remote(fleet: &Fleet) -> (Faulty<MemoryStore>, Handle) {
    let store = Faulty::new(fleet.store.clone()).sleeping(tokio::time::sleep);
    let handle = store.handle();
    (store, handle)
}

fn process(fleet: &Fleet, initial: u32) -> (AdaptiveSemaphore, Handle) {
    process_with(fleet, initial, |builder| builder)
}

fn process_with(
    fleet: &Fleet,
    initial: u32,
    with: impl FnOnce(SemaphoreBuilder) -> SemaphoreBuilder,
) -> (AdaptiveSemaphore, Handle) {
    let (store, handle) = remote(fleet);
    (with(fleet.builder(initial)).build(store).unwrap(), handle)
}

fn within(timeout: u64) -> Acquire {
    Acquire::within(ms(timeout))
}

fn is_unavailable(error: &AcquireError) -> bool {
    matches!(error, AcquireError::Unavailable { .. })
}

const SECOND: Duration = Duration::from_secs(1);

#[tokio::test(start_paused = true)]
async fn un_1_no_acquire_outlives_its_timeout_or_its_one_try() {
    for (timeout, at_most) in [(0, 1_000), (300, 1_000), (5_000, 5_000)] {
        let fleet = Fleet::new();
        let (semaphore, handle) = process(&fleet, 5);
        handle.away_with(Fault::Hang);
        let start = Instant::now();
        let error = semaphore.acquire(within(timeout)).await.unwrap_err();
        assert!(is_unavailable(&error), "{error:?}");
        assert!(start.elapsed() <= ms(at_most), "{timeout} ms took {:?}", start.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn un_1_an_answer_that_breaks_the_contract_is_a_store_error_and_its_leases_are_released() {
    for garbage in [Garbage::MoreGrants, Garbage::TokenTwice, Garbage::GrantInPause] {
        let fleet = Fleet::new();
        let (semaphore, handle) = process(&fleet, 5);
        handle.script_of(Operation::Exchange, [Fault::Garbage(garbage)]);
        let error = semaphore.acquire(within(5_000)).await.unwrap_err();
        assert!(is_unavailable(&error), "{garbage:?}: {error:?}");
        sleep(SECOND * 3).await;
        assert_eq!(fleet.held(), 0, "{garbage:?}: its leases are given back");
        semaphore.acquire(within(5_000)).await.unwrap().release(Outcome::Success);
    }
}

#[tokio::test(start_paused = true)]
async fn un_2_it_fails_closed_at_once_and_the_store_is_probed_not_asked_by_each_call() {
    let fleet = Fleet::new();
    let (semaphore, handle) = process(&fleet, 5);
    semaphore.acquire(within(1_000)).await.unwrap().release(Outcome::Success);
    semaphore.flush().await;
    handle.away();
    assert!(is_unavailable(&semaphore.acquire(within(10_000)).await.unwrap_err()));
    let (start, before) = (Instant::now(), handle.calls(Operation::Exchange));
    for _ in 0..1_000 {
        assert!(is_unavailable(&semaphore.acquire(within(10_000)).await.unwrap_err()));
    }
    assert_eq!(start.elapsed(), Duration::ZERO, "at once");
    assert_eq!(handle.calls(Operation::Exchange), before, "no call asked the store");
    sleep(SECOND * 20).await;
    let probes = handle.calls(Operation::Exchange) - before;
    assert!((10..=25).contains(&probes), "doubling from 100 ms to 2 s, {probes} in 20 s");
    handle.back();
    sleep(SECOND * 3).await;
    semaphore.acquire(within(1_000)).await.unwrap().release(Outcome::Success);
}

#[tokio::test(start_paused = true)]
async fn un_2_a_fallback_is_a_limit_of_this_process_and_marked_local() {
    let fleet = Fleet::new();
    let (semaphore, handle) = process_with(&fleet, 5, |builder| {
        builder
            .fallback_local(4)
            .class(Class::reserved("interactive", 0.25))
            .class(Class::unreserved("background"))
    });
    handle.away();
    let mut background = Vec::new();
    while let Ok(lease) = semaphore.acquire(Acquire::once().in_class("background")).await {
        assert!(lease.is_local() && lease.slot().is_none() && lease.fence().is_none() && lease.is_live());
        background.push(lease);
    }
    assert_eq!(background.len(), 3, "shares apply to it");
    let interactive = semaphore.acquire(Acquire::once().in_class("interactive")).await.unwrap();
    let waits = tokio::spawn({
        let semaphore = semaphore.clone();
        async move { semaphore.acquire(Acquire::class("background")).await }
    });
    sleep(ms(10)).await;
    assert!(!waits.is_finished(), "waited for like the real one");
    background.pop().unwrap().release(Outcome::Success);
    assert!(waits.await.unwrap().unwrap().is_local());
    drop((background, interactive));
}

#[tokio::test(start_paused = true)]
async fn un_2_each_change_of_mode_is_reported_once() {
    let fleet = Fleet::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&seen);
    let (semaphore, handle) = process_with(&fleet, 5, |builder| {
        builder.on_error(move |trouble: &Trouble| told.lock().unwrap().push(trouble.code()))
    });
    for _ in 0..2 {
        handle.away();
        for _ in 0..10 {
            semaphore.acquire(within(1_000)).await.unwrap_err();
        }
        sleep(SECOND * 10).await;
        handle.back();
        sleep(SECOND * 3).await;
        semaphore.acquire(within(1_000)).await.unwrap().release(Outcome::Success);
    }
    assert_eq!(*seen.lock().unwrap(), ["unavailable", "available", "unavailable", "available"]);
}

#[tokio::test(start_paused = true)]
async fn un_3_what_was_granted_alone_is_handed_over_and_counted_above_the_limit_too() {
    let fleet = Fleet::new();
    let (semaphore, handle) = process_with(&fleet, 2, |builder| builder.fallback_local(5));
    handle.away();
    let mut alone = Vec::new();
    for _ in 0..5 {
        alone.push(semaphore.acquire(within(1_000)).await.unwrap());
    }
    handle.back();
    sleep(SECOND * 3).await;
    assert_eq!(fleet.held(), 5, "counted, above the limit of 2");
    let other = fleet.process(2);
    assert!(other.try_acquire().await.is_err(), "no grants until below");
    alone.drain(..4).for_each(|lease| lease.release(Outcome::Success));
    semaphore.flush().await;
    drop(other.try_acquire().await.unwrap());
    assert!(alone[0].is_live());
}

#[tokio::test(start_paused = true)]
async fn un_3_a_state_that_was_wiped_is_restored_by_whoever_holds() {
    let fleet = Fleet::new();
    let aimd = || Aimd::new().window(SECOND).cooldown(SECOND);
    let (holder, _) = process_with(&fleet, 8, |builder| builder.aimd(aimd()).min_limit(1));
    let leases = [holder.acquire(within(1_000)).await.unwrap(), holder.acquire(within(1_000)).await.unwrap()];
    holder.acquire(within(1_000)).await.unwrap().release(Outcome::Throttled);
    holder.flush().await;
    assert_eq!(fleet.limit(), 4);
    sleep(SECOND * 2).await;
    fleet.store.wipe();
    sleep(SECOND).await;
    let newcomer = fleet.builder(8).aimd(aimd()).min_limit(1).build(fleet.store.clone()).unwrap();
    newcomer.try_acquire().await.unwrap().release(Outcome::Success);
    assert_eq!(fleet.limit(), 8, "seeded by who came first");
    sleep(SECOND * 15).await;
    assert_eq!(fleet.limit(), 4, "the newest that a holder knows");
    // The newcomer was given slot 0 meanwhile, under a newer fence; slot 1 is taken up again.
    assert_eq!(leases.each_ref().map(tidegate::Lease::is_live), [false, true]);
    assert_eq!(fleet.held(), 1);
}

#[tokio::test(start_paused = true)]
async fn un_4_an_answer_that_was_lost_is_found_out_and_nothing_is_granted_twice() {
    for fault in [Fault::LostThenError, Fault::LostThenHang, Fault::Twice] {
        let fleet = Fleet::new();
        let (semaphore, handle) = process(&fleet, 5);
        handle.script_of(Operation::Exchange, [fault.clone()]);
        let first = semaphore.acquire(within(5_000)).await;
        sleep(SECOND * 5).await;
        let held = u32::from(first.is_ok());
        assert_eq!(fleet.held(), held, "{fault:?}: what was granted in vain is back");
        drop(first);
        semaphore.flush().await;
        assert_eq!(fleet.held(), 0, "{fault:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn un_4_a_settlement_whose_answer_was_lost_counts_once() {
    let fleet = Fleet::new();
    let (store, handle) = remote(&fleet);
    let rule = Rule::token_bucket(100, Duration::from_secs(86_400)).named("tokens");
    let valve = Valve::builder("provider").rule(rule).clock(fleet.clock).build(store).unwrap();
    let permit = valve.acquire(Job::new().cost("tokens", 10)).await.unwrap();
    handle.script_of(Operation::Exchange, [Fault::LostThenError]);
    permit.settle("tokens", 40).release(Outcome::Success);
    sleep(SECOND * 5).await;
    let level = fleet.snapshot().rules[0].level;
    assert_eq!(level, Some(60));
}

#[tokio::test(start_paused = true)]
async fn un_5_an_outage_is_never_a_limit_nor_a_limit_an_outage() {
    let fleet = Fleet::new();
    let (semaphore, handle) = process(&fleet, 1);
    let lease = semaphore.acquire(within(1_000)).await.unwrap();
    let full = semaphore.acquire(within(1_000)).await.unwrap_err();
    assert!(matches!(full, AcquireError::Timeout { last: LastCause::Slots, local: false, .. }), "{full:?}");
    handle.away();
    sleep(SECOND * 40).await;
    let away = semaphore.acquire(within(1_000)).await.unwrap_err();
    assert!(is_unavailable(&away), "{away:?}");
    assert!(!lease.is_live(), "its time has passed");
    assert_eq!(lease.lost().await.slot, 0);
}

#[tokio::test(start_paused = true)]
async fn un_7_a_store_that_was_never_reachable_is_a_store_that_is_away() {
    let fleet = Fleet::new();
    let (store, handle) = remote(&fleet);
    handle.away();
    let semaphore = fleet.builder(5).build(store).expect("building asks nothing");
    assert_eq!(handle.all_calls(), 0);
    assert!(is_unavailable(&semaphore.acquire(within(1_000)).await.unwrap_err()));
    handle.back();
    sleep(SECOND * 3).await;
    semaphore.acquire(within(1_000)).await.unwrap().release(Outcome::Success);
}

#[tokio::test(start_paused = true)]
async fn un_8_a_release_never_fails_is_kept_and_is_sent_when_the_store_answers() {
    let fleet = Fleet::new();
    let (semaphore, handle) = process(&fleet, 5);
    let kept = semaphore.acquire(within(1_000)).await.unwrap();
    let dropped = semaphore.acquire(within(1_000)).await.unwrap();
    handle.away();
    kept.release(Outcome::Success);
    drop(dropped);
    assert_eq!(semaphore.state().in_flight, 0);
    sleep(SECOND * 2).await;
    assert_eq!(fleet.held(), 2, "not delivered yet");
    handle.back();
    semaphore.flush().await;
    assert_eq!(fleet.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn un_8_an_outcome_older_than_the_cooldown_is_dropped() {
    for (away_for, limit) in [(5, 5), (15, 10)] {
        let fleet = Fleet::new();
        let (semaphore, handle) = process(&fleet, 10);
        let lease = semaphore.acquire(within(1_000)).await.unwrap();
        handle.away();
        lease.release(Outcome::Throttled);
        sleep(SECOND * away_for).await;
        handle.back();
        semaphore.flush().await;
        assert_eq!(fleet.limit(), limit, "delivered after {away_for} s, with a cooldown of 10 s");
    }
}

#[tokio::test(start_paused = true)]
async fn case_4_a_holder_learns_that_its_lease_is_lost_before_anyone_else_has_its_slot() {
    let fleet = Fleet::new();
    let (holder, handle) = process_with(&fleet, 1, |builder| builder.lease_ttl(SECOND * 2));
    let other = fleet.builder(1).lease_ttl(SECOND * 2).build(fleet.store.clone()).unwrap();
    let lease = holder.acquire(within(1_000)).await.unwrap();
    sleep(SECOND * 20).await;
    assert!(lease.is_live() && other.try_acquire().await.is_err(), "renewals are fine");
    handle.away_with(Fault::Hang);
    let cut = Instant::now();
    let (lost, granted) = tokio::join!(
        async {
            lease.lost().await;
            cut.elapsed()
        },
        async {
            let lease = other.acquire(within(10_000)).await;
            (cut.elapsed(), lease)
        }
    );
    assert!(lost <= SECOND * 2, "within one TTL, {lost:?}");
    assert!(granted.1.is_ok() && lost <= granted.0, "{lost:?} before {:?}", granted.0);
}

#[tokio::test(start_paused = true)]
async fn case_31_a_store_that_is_frozen_for_ten_seconds_costs_no_slot() {
    let fleet = Fleet::new();
    let (semaphore, handle) = process(&fleet, 4);
    handle.away_with(Fault::Hang);
    let calls: Vec<_> = (0..8)
        .map(|_| {
            let semaphore = semaphore.clone();
            tokio::spawn(async move { semaphore.acquire(within(3_000)).await })
        })
        .collect();
    let start = Instant::now();
    for call in calls {
        assert!(is_unavailable(&call.await.unwrap().unwrap_err()));
    }
    assert!(start.elapsed() <= SECOND * 3);
    sleep(SECOND * 10).await;
    handle.back();
    sleep(SECOND * 30).await;
    let all: Vec<_> = futures(&semaphore, 4).await;
    assert_eq!(all.len(), 4, "no slot is missing for longer than one TTL");
    assert!(semaphore.try_acquire().await.is_err(), "and the bound holds");
}

async fn futures(semaphore: &AdaptiveSemaphore, leases: usize) -> Vec<tidegate::Lease> {
    let mut all = Vec::new();
    for _ in 0..leases {
        all.push(semaphore.acquire(within(1_000)).await.unwrap());
    }
    all
}

#[tokio::test(start_paused = true)]
async fn case_11_after_an_outage_with_a_fallback_the_first_full_window_admits_exactly_its_limit() {
    let fleet = Fleet::new();
    let (store, handle) = remote(&fleet);
    let rule = Rule::fixed_window(5, SECOND * 10);
    let valve = Valve::builder("provider")
        .rule(rule.clone())
        .fallback_rule(rule)
        .clock(fleet.clock)
        .build(store)
        .unwrap();
    handle.away();
    assert!(valve.acquire(Job::new()).await.unwrap().is_local());
    sleep(SECOND * 15).await;
    handle.back();
    sleep(SECOND * 3).await;
    let mut granted = 0;
    while let Ok(permit) = valve.try_acquire(Job::new()).await {
        assert!(!permit.is_local());
        granted += 1;
    }
    assert_eq!(granted, 5);
}

#[tokio::test(start_paused = true)]
async fn case_34_a_limit_is_denied_and_an_outage_is_decided_by_the_fallback_alone() {
    let fleet = Fleet::new();
    let (store, handle) = remote(&fleet);
    let valve = Valve::builder("provider")
        .concurrency(Concurrency::Global(1))
        .fallback_local(2)
        .clock(fleet.clock)
        .build(store)
        .unwrap();
    let held = valve.acquire(Job::new()).await.unwrap();
    let error = valve.try_acquire(Job::new()).await.unwrap_err();
    assert!(
        matches!(error, AcquireError::Timeout { local: false, .. }),
        "the fallback is not consulted: {error:?}"
    );
    handle.away();
    sleep(SECOND * 35).await;
    let permit = valve.acquire(Job::new()).await.unwrap();
    assert!(permit.is_local() && !held.is_local());
    drop((permit, held));
}
