//! Many processes on one Redis, with everything that can happen to either: what was promised is kept all the same.

#![allow(clippy::unwrap_used)] // helpers of tests may say what they expect, too

use std::time::{Duration, Instant};

use tidegate_fleet::{
    clock,
    fleet::Fleet,
    history::{Bound, Check, History, Rate},
    proxy::{Proxy, Way, Which},
    record::{Event, Record},
    servers::redis::{Cluster, Options, Redis, Sentinel},
    worker::{Algorithm, Gate, Outcomes, Plan, RulePlan, Span},
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

const PROGRAM: &str = env!("CARGO_BIN_EXE_tidegate-worker");
const PATIENCE: Duration = Duration::from_secs(30);

/// A plan with a seed of its own, which the test's output shows where it fails.
fn plan(url: String, gate: Gate) -> Plan {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    Plan { seed, ..Plan::new(url, "provider", gate) }
}

fn count(records: &[Record], is: impl Fn(&Event) -> bool) -> usize {
    records.iter().filter(|record| is(&record.event)).count()
}

fn is_grant(event: &Event) -> bool {
    matches!(event, Event::Granted { .. })
}

/// A span of time, for a check that allows for what was done in it.
fn during<T>(doing: impl FnOnce() -> T) -> (u64, u64, T) {
    let from = clock::now();
    let done = doing();
    (from, clock::now(), done)
}

#[test]
fn as_4_the_bound_holds_in_many_processes() -> Outcome {
    let server = Redis::standalone(&Options::new())?;
    let plan = Plan {
        tasks: 8,
        hold_ms: Span(0, 10),
        outcomes: Outcomes { success: 6, throttled: 0, failure: 1, dropped: 1 },
        abandon: 10,
        abandon_ms: Span(0, 10),
        ..plan(server.url(), Gate::Global { limit: 5 })
    };
    let fleet = Fleet::start(PROGRAM, &plan, 4)?;
    fleet.wait_for_grants(2_000, PATIENCE)?;
    let records = fleet.stop(PATIENCE)?;
    assert_eq!(count(&records, |event| *event == Event::Stopped), 4);
    let history = History::of(&records);
    Check::new(Bound::Fixed(5), plan.lease_ttl()).run(&history).expect_none();
    // It was used to the full: the same history breaks a bound of one less.
    assert!(!Check::new(Bound::Fixed(4), plan.lease_ttl()).run(&history).is_empty());
    Ok(())
}

#[test]
fn as_6_slots_of_killed_processes_come_back_within_one_ttl_and_not_before() -> Outcome {
    let server = Redis::standalone(&Options::new())?;
    let plan = Plan {
        ttl_ms: 1_000,
        tasks: 2,
        hold_ms: Span(50, 150),
        timeout_ms: 4_000,
        ..plan(server.url(), Gate::Global { limit: 4 })
    };
    let mut fleet = Fleet::start(PROGRAM, &plan, 6)?;
    for worker in 0..3 {
        fleet.wait_for_grants(20, PATIENCE)?;
        fleet.kill(worker)?;
    }
    // For longer than a TTL, so that what the dead held is granted anew.
    let start = Instant::now();
    while start.elapsed() < plan.lease_ttl() * 2 {
        fleet.wait_for_grants(20, PATIENCE)?;
    }
    let history = History::of(&fleet.stop(PATIENCE)?);
    Check::new(Bound::Fixed(4), plan.lease_ttl()).run(&history).expect_none();
    Ok(())
}

#[test]
fn as_6_a_frozen_process_holds_nothing_for_longer_than_a_ttl() -> Outcome {
    let server = Redis::standalone(&Options::new())?;
    let plan = Plan {
        ttl_ms: 500,
        tasks: 3,
        hold_ms: Span(20, 60),
        ..plan(server.url(), Gate::Global { limit: 3 })
    };
    let mut fleet = Fleet::start(PROGRAM, &plan, 3)?;
    fleet.wait_for_grants(50, PATIENCE)?;
    for worker in [0, 1, 0] {
        fleet.freeze(worker)?;
        let start = Instant::now();
        while start.elapsed() < plan.lease_ttl() * 2 {
            fleet.wait_for_grants(5, PATIENCE)?;
        }
        fleet.thaw(worker)?;
        fleet.wait_for_grants(20, PATIENCE)?;
    }
    let history = History::of(&fleet.stop(PATIENCE)?);
    Check::new(Bound::Fixed(3), plan.lease_ttl()).run(&history).expect_none();
    Ok(())
}

#[test]
fn un_4_lost_answers_and_cut_lines_grant_nothing_twice() -> Outcome {
    let server = Redis::standalone(&Options::new())?;
    let proxy = Proxy::to(server.addr())?;
    let bucket =
        RulePlan { burst: Some(30), ..RulePlan::new(Algorithm::TokenBucket, 300, Duration::from_secs(1)) };
    let plan = Plan {
        tasks: 6,
        op_timeout_ms: 300,
        hold_ms: Span(0, 10),
        ..plan(server.url_at(proxy.addr()), Gate::Valve { rules: vec![bucket.clone()], limit: Some(4) })
    };
    let fleet = Fleet::start(PROGRAM, &plan, 3)?;
    fleet.wait_for_grants(50, PATIENCE)?;
    for _ in 0..10 {
        proxy.drop_replies(2);
        fleet.wait_for_grants(20, PATIENCE)?;
        proxy.cut();
        fleet.wait_for_grants(20, PATIENCE)?;
        proxy.cut_only(Which::Subscribed);
        fleet.wait_for_grants(20, PATIENCE)?;
    }
    assert!(proxy.dropped_replies() > 5, "only {} answers were lost", proxy.dropped_replies());
    let history = History::of(&fleet.stop(PATIENCE)?);
    let key = bucket.rule().check()?;
    Check::new(Bound::Fixed(4), plan.lease_ttl())
        .rate(key.key().as_str(), Rate::of(&bucket.rule())?)
        .run(&history)
        .expect_none();
    Ok(())
}

#[test]
fn un_1_a_held_up_line_and_a_frozen_store_break_no_bound() -> Outcome {
    let server = Redis::standalone(&Options::new())?;
    let proxy = Proxy::to(server.addr())?;
    let plan = Plan {
        ttl_ms: 1_000,
        tasks: 4,
        op_timeout_ms: 200,
        hold_ms: Span(1, 30),
        timeout_ms: 1_000,
        ..plan(server.url_at(proxy.addr()), Gate::Global { limit: 4 })
    };
    let fleet = Fleet::start(PROGRAM, &plan, 3)?;
    let mut check = Check::new(Bound::Fixed(4), plan.lease_ttl()).lag(Duration::from_secs(3));
    for way in [Way::Requests, Way::Replies, Way::Both] {
        fleet.wait_for_grants(50, PATIENCE)?;
        let (from, until, ()) = during(|| {
            proxy.blackhole(way);
            // Longer than a TTL, for everything to be lost that can be.
            std::thread::sleep(plan.lease_ttl() * 3 / 2);
            proxy.heal();
        });
        check = check.outage(from, until);
    }
    fleet.wait_for_grants(50, PATIENCE)?;
    let (from, until, frozen) = during(|| {
        server.freeze()?;
        std::thread::sleep(plan.lease_ttl() * 3 / 2);
        server.thaw()
    });
    frozen?;
    fleet.wait_for_grants(50, PATIENCE)?;
    let records = fleet.stop(PATIENCE)?;
    assert!(
        count(&records, |event| matches!(event, Event::Refused { code, .. } if code == "unavailable")) > 0
    );
    check.outage(from, until).run(&History::of(&records)).expect_none();
    Ok(())
}

#[test]
fn st_18_a_flush_exceeds_the_bound_as_far_as_is_allowed() -> Outcome {
    let server = Redis::standalone(&Options::new())?;
    let plan = Plan {
        ttl_ms: 1_000,
        tasks: 4,
        hold_ms: Span(20, 200),
        ..plan(server.url(), Gate::Global { limit: 6 })
    };
    let fleet = Fleet::start(PROGRAM, &plan, 3)?;
    let mut losses = Vec::new();
    for _ in 0..3 {
        fleet.wait_for_grants(60, PATIENCE)?;
        let (from, until, flushed) = during(|| server.flush());
        flushed?;
        losses.push((from, until));
        let start = Instant::now();
        while start.elapsed() < plan.lease_ttl() {
            fleet.wait_for_grants(10, PATIENCE)?;
        }
    }
    let history = History::of(&fleet.stop(PATIENCE)?);
    let check = Check::new(Bound::Fixed(6), plan.lease_ttl());
    let check = losses.iter().fold(check, |check, (from, until)| check.lost_state(&history, *from, *until));
    check.run(&history).expect_none();
    Ok(())
}

/// What one change did to the store: when it was made, until when it may have been found.
struct Damaged {
    from: u64,
    until: u64,
    what: String,
}

#[test]
fn case_17_a_fleet_works_on_while_what_is_kept_is_deleted_and_overwritten() -> Outcome {
    let server = Redis::standalone(&Options::new())?;
    let plan = Plan {
        ttl_ms: 700,
        tasks: 4,
        hold_ms: Span(5, 60),
        outcomes: Outcomes { success: 8, throttled: 1, failure: 1, dropped: 1 },
        ..plan(server.url(), Gate::Semaphore { initial: 5, min: 3, max: 6 })
    };
    let mut random = fastrand::Rng::with_seed(plan.seed);
    let fleet = Fleet::start(PROGRAM, &plan, 3)?;
    let mut connection = server.connection()?;
    let main = "tidegate:{provider}";
    let mut damaged = Vec::new();
    fleet.wait_for_grants(50, PATIENCE)?;
    // Each field but those of one letter, of which there is one each: some lease, some cohort, some answer.
    let parts = ["s", "p", "d", "l", "q", "z", "v", "m0", "c", "k", "0", "1", "x", "all"];
    for (part, deletes) in parts.into_iter().flat_map(|part| [(part, true), (part, false)]) {
        let noise: Vec<u8> = (0..random.usize(0..200)).map(|_| random.u8(..)).collect();
        let fields: Vec<String> = redis::cmd("HKEYS").arg(main).query(&mut connection)?;
        let answers: Vec<String> =
            redis::cmd("KEYS").arg("tidegate:{provider}:x:*").query(&mut connection)?;
        let starting = |start: &str| fields.iter().find(|field| field.starts_with(start)).cloned();
        let (from, until, done) = during(|| match part {
            "all" if deletes => redis::cmd("DEL").arg(main).exec(&mut connection),
            "all" => redis::cmd("SET").arg(main).arg(&noise).exec(&mut connection),
            "x" if deletes => redis::cmd("DEL").arg(&answers).exec(&mut connection),
            "x" => answers
                .iter()
                .try_for_each(|key| redis::cmd("SET").arg(key).arg(&noise).exec(&mut connection)),
            start => {
                let field = starting(start).unwrap_or_else(|| start.to_owned());
                match deletes {
                    true => redis::cmd("HDEL").arg(main).arg(field).exec(&mut connection),
                    false => redis::cmd("HSET").arg(main).arg(field).arg(&noise).exec(&mut connection),
                }
            }
        });
        done?;
        // What a lease or a cohort has lost is found when it ends, a TTL later.
        let ttl = u64::from(u32::try_from(plan.ttl_ms)?) * 1_000;
        damaged.push(Damaged { from, until: until + ttl, what: format!("{part}, deleted: {deletes}") });
        let start = Instant::now();
        fleet.wait_for_grants(20, plan.lease_ttl()).map_err(|error| format!("{part}, {deletes}: {error}"))?;
        std::thread::sleep(plan.lease_ttl().saturating_sub(start.elapsed()));
    }
    let records = fleet.stop(PATIENCE)?;
    let codes: Vec<&str> = records
        .iter()
        .filter_map(|record| match &record.event {
            Event::Refused { code, why, .. } if code != "cancelled" => Some(why.as_str()),
            _ => None,
        })
        .collect();
    assert!(codes.iter().any(|why| why.contains("it was cleared")), "corruption is told: {codes:?}");
    assert!(codes.iter().all(|why| why.contains("it was cleared") || why.contains("no room")), "{codes:?}");
    let history = History::of(&records);
    let check = Check::new(Bound::Adaptive { min: 3 }, plan.lease_ttl());
    let check = damaged.iter().fold(check, |check, damage| {
        check.lost_state(&history, damage.from, damage.until).outage(damage.from, damage.until)
    });
    let findings = check.run(&history);
    let damaged: Vec<String> = damaged.iter().map(|it| format!("{}: {}", it.from, it.what)).collect();
    assert!(findings.is_empty(), "{findings}\n{}", damaged.join("\n"));
    Ok(())
}

#[test]
fn case_31_a_store_that_is_frozen_for_ten_seconds_keeps_no_caller_and_loses_no_slot() -> Outcome {
    let server = Redis::standalone(&Options::new())?;
    let plan = Plan {
        ttl_ms: 1_500,
        tasks: 3,
        hold_ms: Span(5, 50),
        timeout_ms: 3_000,
        op_timeout_ms: 500,
        ..plan(server.url(), Gate::Global { limit: 4 })
    };
    let fleet = Fleet::start(PROGRAM, &plan, 3)?;
    fleet.wait_for_grants(100, PATIENCE)?;
    let (from, until, frozen) = during(|| {
        server.freeze()?;
        std::thread::sleep(Duration::from_secs(10));
        server.thaw()
    });
    frozen?;
    // All four slots are in use again within one TTL, by those that wait for them.
    let start = Instant::now();
    fleet.wait_for_grants(100, plan.lease_ttl() * 2)?;
    println!("100 grants {:?} after the thaw", start.elapsed());
    let start = Instant::now();
    while start.elapsed() < plan.lease_ttl() * 2 {
        fleet.wait_for_grants(20, PATIENCE)?;
    }
    let records = fleet.stop(PATIENCE)?;
    let mut called = std::collections::HashMap::new();
    let mut unavailable = 0;
    for record in &records {
        match &record.event {
            Event::Called { job } => drop(called.insert((record.worker, *job), record.at)),
            Event::Refused { job, code, .. } if code != "cancelled" => {
                let took = record.at - called[&(record.worker, *job)];
                assert!(took < 3_500_000, "a caller with 3 s was held for {took} us");
                unavailable += usize::from(code == "unavailable");
            }
            _ => {}
        }
    }
    assert!(unavailable > 9, "{unavailable} callers were told");
    Check::new(Bound::Fixed(4), plan.lease_ttl())
        .lag(Duration::from_secs(11))
        .outage(from, until + 1_500_000)
        .run(&History::of(&records))
        .expect_none();
    Ok(())
}

#[test]
fn case_28_flushed_scripts_and_a_restart_are_seen_by_no_caller() -> Outcome {
    let mut server = Redis::standalone(&Options::new().append_only())?;
    let plan = Plan {
        tasks: 4,
        hold_ms: Span(1, 20),
        op_timeout_ms: 500,
        ..plan(server.url(), Gate::Global { limit: 4 })
    };
    let fleet = Fleet::start(PROGRAM, &plan, 3)?;
    fleet.wait_for_grants(20, PATIENCE)?;
    let codes = |records: &[Record]| -> Vec<String> {
        let code = |record: &Record| match &record.event {
            Event::Refused { code, .. } if code != "cancelled" => Some(code.clone()),
            _ => None,
        };
        records.iter().filter_map(code).collect()
    };
    for _ in 0..20 {
        server.flush_scripts()?;
        fleet.wait_for_grants(20, PATIENCE)?;
    }
    assert_eq!(codes(&fleet.records()), Vec::<String>::new(), "a missing script was seen by a caller");
    let (from, until, restarted) = during(|| server.restart());
    restarted?;
    fleet.wait_for_grants(200, PATIENCE)?;
    let records = fleet.stop(PATIENCE)?;
    assert!(codes(&records).iter().all(|code| code == "unavailable"), "{:?}", codes(&records));
    Check::new(Bound::Fixed(4), plan.lease_ttl())
        .outage(from, until)
        .run(&History::of(&records))
        .expect_none();
    assert!(count(&records, is_grant) > 600);
    Ok(())
}

#[test]
fn case_29_a_fail_over_with_the_old_primary_alive_is_survived() -> Outcome {
    let group = Sentinel::start()?;
    let plan = Plan {
        ttl_ms: 1_000,
        tasks: 4,
        hold_ms: Span(5, 50),
        op_timeout_ms: 500,
        ..plan(group.url(), Gate::Global { limit: 4 })
    };
    let fleet = Fleet::start(PROGRAM, &plan, 3)?;
    let mut over = Vec::new();
    for _ in 0..2 {
        fleet.wait_for_grants(100, PATIENCE)?;
        let (from, until, failed_over) = during(|| group.failover());
        failed_over?;
        fleet.wait_for_grants(200, PATIENCE)?;
        over.push((from, until));
    }
    let records = fleet.stop(PATIENCE)?;
    let history = History::of(&records);
    // What was not replicated yet is lost.
    let check = over.iter().fold(Check::new(Bound::Fixed(4), plan.lease_ttl()), |check, (from, until)| {
        check.lost_state(&history, *from, *until).outage(*from, *until)
    });
    check.run(&history).expect_none();
    Ok(())
}

#[test]
fn case_30_slots_that_move_under_load_lose_and_double_nothing() -> Outcome {
    let cluster = Cluster::start(3)?;
    let plan = Plan {
        tasks: 4,
        hold_ms: Span(1, 20),
        op_timeout_ms: 500,
        ..plan(cluster.url(), Gate::Global { limit: 4 })
    };
    let fleet = Fleet::start(PROGRAM, &plan, 3)?;
    fleet.wait_for_grants(50, PATIENCE)?;
    let slot = cluster.slot_of("{provider}")?;
    for _ in 0..4 {
        let from = cluster.owner_of(slot)?;
        let moving = cluster.begin_move(slot, from, (from + 1) % 3)?;
        fleet.wait_for_grants(20, PATIENCE)?;
        // One key at a time: what needs a key on each side has to wait until the move is over.
        while cluster.move_keys(moving, 1)? > 0 {}
        cluster.end_move(moving)?;
        fleet.wait_for_grants(50, PATIENCE)?;
    }
    let records = fleet.stop(PATIENCE)?;
    let history = History::of(&records);
    Check::new(Bound::Fixed(4), plan.lease_ttl()).run(&history).expect_none();
    Ok(())
}
