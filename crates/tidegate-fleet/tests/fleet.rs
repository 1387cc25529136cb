//! Workers in this process and as processes, judged by what they wrote: a right store passes, and faults are found.

#![allow(clippy::unwrap_used)] // helpers of tests may say what they expect, too

use std::{process::Stdio, sync::Arc, time::Duration};

use tidegate::{Id, MemoryStore, Store};
use tidegate_fleet::{
    clock,
    fleet::{Fleet, FleetError, worker_program},
    history::{Bound, Check, History, Rate, Violation},
    record::{Event, Record},
    worker::{Algorithm, Gate, Journal, Order, Outcomes, Plan, RulePlan, Span, run},
};
use tokio::sync::watch;

type Outcome = Result<(), Box<dyn std::error::Error>>;

const PROGRAM: &str = env!("CARGO_BIN_EXE_tidegate-worker");
const PATIENCE: Duration = Duration::from_secs(20);

/// A plan with a seed of its own, which the test's output shows where it fails.
fn plan(gate: Gate) -> Plan {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    Plan { seed, ..Plan::new("memory://", "provider", gate) }
}

/// Several workers in this process, on one store. `meanwhile` may do things to the store.
async fn work_together<Fut: Future<Output = ()>>(
    plan: &Plan,
    workers: u32,
    store: &MemoryStore,
    meanwhile: Fut,
) -> Vec<Record> {
    let journal = Journal::new();
    let (order, orders) = watch::channel(Order::Work);
    let mut running = tokio::task::JoinSet::new();
    for number in 0..workers {
        let (plan, log, orders) = (plan.clone(), journal.log(number), orders.clone());
        let store: Arc<dyn Store> = Arc::new(store.clone());
        running.spawn(async move { run(&plan, number, store, log, orders).await });
    }
    meanwhile.await;
    if plan.jobs.is_none() {
        order.send_replace(Order::Stop);
    }
    while let Some(ended) = running.join_next().await {
        ended.unwrap().unwrap();
    }
    drop(order);
    journal.records()
}

fn count(records: &[Record], is: impl Fn(&Event) -> bool) -> usize {
    records.iter().filter(|record| is(&record.event)).count()
}

fn grants(records: &[Record]) -> usize {
    count(records, |event| matches!(event, Event::Granted { .. }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_4_workers_on_one_store_keep_its_bound() -> Outcome {
    let plan = Plan {
        tasks: 8,
        jobs: Some(300),
        hold_ms: Span(0, 3),
        outcomes: Outcomes { success: 6, throttled: 0, failure: 1, dropped: 1 },
        abandon: 20,
        abandon_ms: Span(0, 3),
        ..plan(Gate::Global { limit: 3 })
    };
    let records = work_together(&plan, 3, &MemoryStore::new(), async {}).await;
    let history = History::of(&records);
    assert_eq!(count(&records, |event| matches!(event, Event::Called { .. })), 900);
    assert_eq!(count(&records, |event| *event == Event::Stopped), 3);
    let cancelled = |event: &Event| matches!(event, Event::Refused { code, .. } if code == "cancelled");
    assert_eq!(grants(&records) + count(&records, cancelled), 900);
    assert!(count(&records, cancelled) > 0 && !history.uses.is_empty());
    assert!(history.held.iter().all(|held| held.freed.is_some()), "all is given back");

    Check::new(Bound::Fixed(3), plan.lease_ttl()).run(&history).expect_none();
    // The same history under a bound that it was not made under: the checker can say no.
    let findings = Check::new(Bound::Fixed(2), plan.lease_ttl()).run(&history);
    assert!(!findings.is_empty(), "three were held at once, and nobody saw it");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_4_an_adaptive_limit_holds_at_every_grant() {
    let plan = Plan {
        tasks: 8,
        hold_ms: Span(0, 4),
        window_ms: 50,
        outcomes: Outcomes { success: 200, throttled: 1, failure: 0, dropped: 0 },
        ..plan(Gate::Semaphore { initial: 4, min: 2, max: 12 })
    };
    let records =
        work_together(&plan, 2, &MemoryStore::new(), tokio::time::sleep(Duration::from_secs(1))).await;
    let history = History::of(&records);
    let limits: std::collections::BTreeSet<_> = history.held.iter().filter_map(|held| held.limit).collect();
    assert!(limits.len() > 1, "the limit never moved: {limits:?}");
    Check::new(Bound::Adaptive { min: 2 }, plan.lease_ttl()).run(&history).expect_none();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ru_5_rates_hold_in_every_span() -> Outcome {
    const SECOND: Duration = Duration::from_secs(1);
    let bucket = RulePlan { burst: Some(20), ..RulePlan::new(Algorithm::TokenBucket, 200, SECOND) };
    let window = RulePlan {
        name: Some("tokens".into()),
        scope: Some("tenant".into()),
        ..RulePlan::new(Algorithm::SlidingWindow, 60, SECOND)
    };
    let rules = vec![bucket.clone(), window.clone()];
    let plan = Plan {
        tasks: 20,
        hold_ms: Span(0, 0),
        identities: 2,
        cost: Span(1, 3),
        ..plan(Gate::Valve { rules, limit: Some(50) })
    };
    let records = work_together(&plan, 2, &MemoryStore::new(), tokio::time::sleep(SECOND * 2)).await;
    let history = History::of(&records);
    let check = |bucket: &RulePlan, window: &RulePlan| -> Result<Check, Box<dyn std::error::Error>> {
        Ok(Check::new(Bound::Fixed(50), plan.lease_ttl())
            .rate(bucket.rule().check()?.key().as_str(), Rate::of(&bucket.rule())?)
            .rate("named:tokens/tenant 0", Rate::of(&window.rule())?)
            .rate("named:tokens/tenant 1", Rate::of(&window.rule())?))
    };
    check(&bucket, &window)?.run(&history).expect_none();
    // Both are used so far that a little less would have been too little.
    let less = RulePlan { limit: 40, ..window.clone() };
    let findings = check(&bucket, &less)?.run(&history);
    assert_eq!(findings.0.len(), 2, "{findings}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn st_18_a_wiped_store_exceeds_the_bound_as_far_as_is_allowed() {
    let store = MemoryStore::new();
    let plan = Plan { tasks: 8, hold_ms: Span(100, 300), ttl_ms: 500, ..plan(Gate::Global { limit: 6 }) };
    let mut wiped = (0, 0);
    let records = work_together(&plan, 3, &store, async {
        tokio::time::sleep(Duration::from_millis(700)).await;
        wiped.0 = clock::now();
        store.wipe();
        wiped.1 = clock::now();
        tokio::time::sleep(Duration::from_millis(700)).await;
    })
    .await;
    let history = History::of(&records);
    let check = || Check::new(Bound::Fixed(6), plan.lease_ttl());
    check().lost_state(&history, wiped.0, wiped.1).run(&history).expect_none();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn st_9_a_slot_that_was_taken_from_its_holder_is_found() -> Outcome {
    let store = MemoryStore::new();
    let plan = Plan { hold_ms: Span(300, 400), ..plan(Gate::Global { limit: 2 }) };
    let id = Id::new(&plan.id)?;
    // An operator who evicts a live lease is as good as a store that ends it too early.
    let records = work_together(&plan, 2, &store, async {
        loop {
            let first = store.operators().unwrap().leases(&id, None, 1).await.unwrap().body;
            if let Some(lease) = first.items.first().filter(|lease| lease.age_ms > 50 && lease.age_ms < 100) {
                assert!(store.operators().unwrap().evict(&id, lease.token).await.unwrap().body);
                break;
            }
            tokio::task::yield_now().await;
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    })
    .await;
    let findings = Check::new(Bound::Fixed(2), plan.lease_ttl()).run(&History::of(&records));
    let is = |of: fn(&Violation) -> bool| findings.0.iter().any(of);
    assert!(is(|violation| matches!(violation, Violation::Overfull { held: 3, .. })), "{findings}");
    assert!(is(|violation| matches!(violation, Violation::SlotTwice { .. })), "{findings}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn as_12_who_is_refused_was_refused_rightly() {
    let plan = Plan {
        tasks: 6,
        jobs: Some(60),
        hold_ms: Span(10, 30),
        timeout_ms: 40,
        ..plan(Gate::Global { limit: 2 })
    };
    let records = work_together(&plan, 2, &MemoryStore::new(), async {}).await;
    let history = History::of(&records);
    assert!(history.refusals.len() > 10, "only {} waited in vain", history.refusals.len());
    Check::new(Bound::Fixed(2), plan.lease_ttl()).run(&history).expect_none();
    // Had there been more room, they would all have waited in vain while there was some.
    let findings = Check::new(Bound::Fixed(30), plan.lease_ttl()).run(&history);
    assert_eq!(findings.0.len(), history.refusals.len(), "{findings}");
}

#[test]
fn a_process_works_pauses_and_stops() -> Outcome {
    let plan = plan(Gate::Global { limit: 2 });
    let mut fleet = Fleet::start(PROGRAM, &plan, 1)?;
    fleet.wait_for_grants(20, PATIENCE)?;
    fleet.order(0, Order::Pause)?;
    // What was called before the order is granted and released; then nothing comes any more.
    let is_quiet = |records: &[Record]| {
        let ended = |event: &Event| matches!(event, Event::Released { .. } | Event::Refused { .. });
        count(records, |event| matches!(event, Event::Called { .. })) == count(records, ended)
    };
    fleet.wait_until("a worker at rest", PATIENCE, is_quiet)?;
    let nothing = fleet.wait_for_grants(1, Duration::from_millis(50)).unwrap_err().to_string();
    assert!(nothing.contains("grants in all") && nothing.contains("last words: none"), "{nothing}");
    fleet.order(0, Order::Work)?;
    fleet.wait_for_grants(20, PATIENCE)?;
    let records = fleet.stop(PATIENCE)?;
    assert_eq!(count(&records, |event| *event == Event::Stopped), 1);
    let history = History::of(&records);
    assert!(history.held.len() >= 40);
    Check::new(Bound::Fixed(2), plan.lease_ttl()).run(&history).expect_none();
    Ok(())
}

#[test]
fn processes_that_share_no_store_are_found_out() -> Outcome {
    // Each opens a memory of its own: what a store that does not share would be like.
    let plan = Plan { hold_ms: Span(20, 40), ..plan(Gate::Global { limit: 2 }) };
    let fleet = Fleet::start(PROGRAM, &plan, 3)?;
    fleet.wait_until("grants of all", PATIENCE, |records| {
        (0..3).all(|worker| {
            let own = records.iter().filter(|record| record.worker == worker);
            own.filter(|record| matches!(record.event, Event::Granted { .. })).count() > 5
        })
    })?;
    let records = fleet.stop(PATIENCE)?;
    let findings = Check::new(Bound::Fixed(2), plan.lease_ttl()).run(&History::of(&records));
    let is = |of: fn(&Violation) -> bool| findings.0.iter().any(of);
    assert!(is(|violation| matches!(violation, Violation::Overfull { .. })), "{findings}");
    assert!(is(|violation| matches!(violation, Violation::SlotTwice { .. })), "{findings}");
    for worker in 0..3 {
        let own: Vec<Record> = records.iter().filter(|record| record.worker == worker).cloned().collect();
        Check::new(Bound::Fixed(2), plan.lease_ttl()).run(&History::of(&own)).expect_none();
    }
    Ok(())
}

#[test]
fn as_6_a_frozen_process_finds_its_leases_dead_when_it_thaws() -> Outcome {
    let plan =
        Plan { ttl_ms: 300, tasks: 2, hold_ms: Span(60_000, 60_000), ..plan(Gate::Global { limit: 2 }) };
    let mut fleet = Fleet::start(PROGRAM, &plan, 1)?;
    fleet.wait_for_grants(2, PATIENCE)?;
    fleet.wait_until("renewals", PATIENCE, |records| {
        count(records, |event| matches!(event, Event::Renewed { .. })) >= 2
    })?;
    fleet.freeze(0)?;
    let frozen = fleet.records();
    // The deadlines pass while it stands still: this is a wait for time itself.
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(fleet.records().len(), frozen.len(), "a frozen process writes nothing");
    let thawed = clock::now();
    fleet.thaw(0)?;
    fleet.wait_until("losses", PATIENCE, |records| {
        count(records, |event| matches!(event, Event::Lost { .. })) >= 2
    })?;
    let records = fleet.stop(PATIENCE)?;
    let history = History::of(&records);
    let first_two = history.uses.iter().filter(|of| of.granted < thawed);
    assert!(first_two.into_iter().all(|of| of.live < thawed), "nobody took a dead lease for live");
    Check::new(Bound::Fixed(2), plan.lease_ttl()).run(&history).expect_none();
    Ok(())
}

#[test]
fn a_killed_process_leaves_records_that_can_be_judged() -> Outcome {
    let plan = Plan { hold_ms: Span(1, 5), ..plan(Gate::Global { limit: 2 }) };
    let mut fleet = Fleet::start(PROGRAM, &plan, 1)?;
    fleet.wait_for_grants(50, PATIENCE)?;
    let pid = fleet.pid(0)?;
    fleet.kill(0)?;
    assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    assert!(matches!(fleet.order(0, Order::Work), Err(FleetError::NotRunning(0))));
    assert!(matches!(fleet.kill(7), Err(FleetError::NotRunning(7))));
    let killed = fleet.records();
    assert_eq!(killed.last().map(|record| &record.event), Some(&Event::Killed));
    assert_eq!(fleet.add()?, 1, "another takes its place, under a number of its own");
    fleet.wait_for_grants(10, PATIENCE)?;
    drop(fleet);

    let history = History::of(&killed);
    Check::new(Bound::Fixed(2), plan.lease_ttl()).run(&history).expect_none();
    assert!(
        !history.unseen.is_empty(),
        "two of four tasks always wait, and what they asked for is not known"
    );
    Ok(())
}

#[test]
fn a_worker_without_a_store_or_a_program_says_so() -> Outcome {
    let unknown = Plan { store: "gopher://127.0.0.1".into(), ..plan(Gate::Global { limit: 1 }) };
    // Its orders stay open until it has ended: it would end with them.
    let mut said = std::process::Command::new(PROGRAM)
        .args([&unknown.to_json()?, "0"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let orders = said.stdin.take();
    let said = said.wait_with_output()?;
    drop(orders);
    assert!(!said.status.success());
    assert!(String::from_utf8_lossy(&said.stderr).contains("gopher"));

    let missing = Fleet::start("/nowhere/tidegate-worker", &unknown, 1).unwrap_err();
    assert!(missing.to_string().contains("cargo build -p tidegate-fleet"), "{missing}");
    assert_eq!(worker_program()?.canonicalize()?, std::path::Path::new(PROGRAM).canonicalize()?);
    Ok(())
}
