//! What a circuit breaker does for a fleet on Redis, and what it costs the store.

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail, ensure};
use tidegate::{CircuitBreaker, Consecutive, Constant, ExecuteError, HealthCheck, Id, Operators, Position};
use tidegate_fleet::{
    clock,
    fleet::{Fleet, worker_program},
    record::{Event, Record},
    servers::redis::Redis,
    worker::{BreakerPlan, Gate, Plan, Span},
};
use tidegate_redis::RedisStore;

use super::{Suite, semaphores::server_micros};
use crate::{
    figure::{Bound, Report},
    stats::{float, percentile},
};

const PATIENCE: Duration = Duration::from_secs(30);

fn check() -> Result<(), String> {
    Ok(())
}

/// A health check that comes only after a long while: the circuit closes by hand.
fn health() -> HealthCheck {
    let backoff = Constant::every(Duration::from_secs(3_600));
    HealthCheck::new(backoff, |_| async { check() }).timeout(Duration::from_secs(60))
}

/// Whether some of the calls fail: one in 10 ms and process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fails {
    None,
    Some,
}

/// Requests to the store a second and process, at 100,000 calls a second in all.
pub(super) async fn writes(suite: &Suite<'_>, report: &mut Report) -> Result<()> {
    for (breakers, fails) in [(1, Fails::None), (1, Fails::Some), (4, Fails::Some)] {
        let (asked, calls) = load(suite.server, breakers, fails).await?;
        let what = match fails {
            Fails::None => format!("store requests of each of {breakers} breakers"),
            Fails::Some => format!("store requests of each of {breakers} breakers, failures among the calls"),
        };
        // A budget of 20 a second whose edges may both fall into the 5 s that are looked at.
        report.figure("T11", what, "per s", Bound::AtMost(20.5), &[asked]);
        report.measured("calls while store requests were counted", "in all", "per s", &[calls]);
    }
    Ok(())
}

async fn load(server: &Redis, breakers: u32, fails: Fails) -> Result<(f64, f64)> {
    let seconds = 8_u32;
    let mut all = Vec::new();
    for _ in 0..breakers {
        // A store of its own: what is one process to the server.
        let store = RedisStore::connect(&server.url()).await?;
        let breaker = CircuitBreaker::builder(format!("load-{breakers}-{fails:?}"))
            .strategy(Consecutive::new(1_000))
            .recovery(health())
            .build(store)?;
        breaker.start().await?;
        all.push(breaker);
    }
    let each = 100_000 / breakers;
    let calls = |breaker: CircuitBreaker| async move {
        let mut rounds = 0_u32;
        let start = Instant::now();
        // One that is late makes up for it.
        let mut ticks = tokio::time::interval(Duration::from_millis(1));
        while start.elapsed() < Duration::from_secs(u64::from(seconds)) {
            ticks.tick().await;
            for call in 0..each / 1_000 {
                let failed = fails == Fails::Some && call == 0 && rounds.is_multiple_of(10);
                let _ = breaker.execute(|| async move { if failed { Err(()) } else { Ok(()) } }).await;
            }
            rounds += 1;
        }
        rounds * (each / 1_000)
    };
    let tasks: Vec<_> = all.iter().cloned().map(|breaker| tokio::spawn(calls(breaker))).collect();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (before, from) = (server_micros(server)?.1, Instant::now());
    tokio::time::sleep(Duration::from_secs(5)).await;
    let asked = (server_micros(server)?.1 - before) / from.elapsed().as_secs_f64() / f64::from(breakers);
    let mut calls = 0;
    for task in tasks {
        calls += task.await?;
    }
    for breaker in all {
        breaker.stop().await;
    }
    Ok((asked, f64::from(calls) / f64::from(seconds)))
}

/// How soon all processes know that the circuit is open, and how soon another leads.
pub(super) async fn changes(suite: &Suite<'_>, report: &mut Report) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let down = folder.path().join("down");
    for (workers, bounds) in [(4, &[(0.5, 1.5), (0.99, 6.0)][..]), (16, &[(0.99, 15.0)])] {
        let rounds = if suite.scale.openings > 100 { 3 } else { 1 };
        let mut took = Vec::new();
        for round in 0..rounds {
            let id = format!("reach-{workers}-{round}");
            took.push(reach(suite.server, &id, workers, &down, suite.scale.openings).await?);
        }
        for (part, most) in bounds {
            let what = format!("open in all of {workers} processes, p{:.0}", part * 100.0);
            let of: Vec<f64> = took.iter().map(|took| percentile(took, *part)).collect();
            report.figure("T12", what, "ms", Bound::AtMost(*most), &of);
        }
    }
    let took = follow(suite.server, &down, suite.scale.kills)?;
    report.measured("another leader after SIGKILL: p50", "tidegate", "s", &[percentile(&took, 0.5)]);
    report.figure(
        "T13",
        "another leader after SIGKILL, the longest",
        "s",
        Bound::AtMost(2.5),
        &[percentile(&took, 1.0)],
    );
    Ok(())
}

fn plan(server: &Redis, id: &str, down: &Path) -> Plan {
    let breaker = BreakerPlan { backoff_ms: 3_600_000, ..BreakerPlan::new(down.to_string_lossy()) };
    let gate = Gate::Global { limit: 1 };
    Plan { tasks: 0, breaker: Some(breaker), ..Plan::new(server.url(), id, gate) }
}

fn who(records: &[Record], is: impl Fn(&Event) -> bool) -> BTreeSet<u32> {
    records.iter().filter(|record| is(&record.event)).map(|record| record.worker).collect()
}

fn started(fleet: &Fleet, workers: usize) -> Result<()> {
    fleet.wait_until("all started", PATIENCE, |records| {
        who(records, |event| matches!(event, Event::Started { .. })).len() == workers
    })?;
    Ok(())
}

/// From the call whose failure opens the circuit to the last process that knows, in ms. One process calls, and the others
/// watch.
async fn reach(server: &Redis, id: &str, workers: u32, down: &Path, openings: usize) -> Result<Vec<f64>> {
    let plan = plan(server, id, down);
    // The caller is a process of the fleet, too.
    let others = usize::try_from(workers)? - 1;
    let fleet = Fleet::start(worker_program()?, &plan, workers - 1)?;
    started(&fleet, others)?;
    let store = RedisStore::connect(&server.url()).await?;
    // What this process is told, and when: it does not look, which would take a core from the others.
    let (told, mut news) = tokio::sync::mpsc::unbounded_channel();
    let breaker = CircuitBreaker::builder(id)
        .strategy(Consecutive::new(3))
        .recovery(health())
        .on_state_change(move |change| {
            let _ = told.send((change.to, clock::now()));
        })
        .build(store.clone())?;
    breaker.start().await?;
    let id = Id::new(id)?;
    let mut took = Vec::new();
    for _ in 0..openings {
        let at = fleet.records().len();
        let mut last = 0;
        for _ in 0..3 {
            // The moment at which the call fails.
            let failed = breaker.execute(|| async { Err::<(), u64>(clock::now()) }).await;
            last = failed.err().and_then(ExecuteError::call).context("it ran")?;
        }
        let Some((Position::Open, own)) = news.recv().await else { bail!("it was to open") };
        let open = |records: &[Record]| {
            let is = |record: &&Record| matches!(record.event, Event::Circuit { open: true, .. });
            records[at..].iter().filter(is).map(|record| record.at).collect::<Vec<_>>()
        };
        fleet.wait_until("open", PATIENCE, |records| open(records).len() == others)?;
        let knew = open(&fleet.records()).into_iter().chain([own]).max().unwrap_or(own);
        took.push(float(knew.saturating_sub(last)) / 1_000.0);
        let at = fleet.records().len();
        store.set_circuit(&id, Position::Closed).await?;
        fleet.wait_until("closed", PATIENCE, |records| {
            who(&records[at..], |event| matches!(event, Event::Circuit { open: false, .. })).len() == others
        })?;
        let Some((Position::Closed, _)) = news.recv().await else { bail!("it was to close") };
        // Its budget of reports fills again.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    breaker.stop().await;
    fleet.stop(PATIENCE)?;
    Ok(took)
}

/// From SIGKILL of a leader to the next one, in seconds. Defaults: a leader's TTL of 2 s.
fn follow(server: &Redis, down: &Path, kills: usize) -> Result<Vec<f64>> {
    fs::write(down, "")?;
    let mut plan = plan(server, "follow", down);
    plan.tasks = 1;
    plan.think_ms = Span(20, 40);
    let mut fleet = Fleet::start(worker_program()?, &plan, 4)?;
    started(&fleet, 4)?;
    let leads = |event: &Event| *event == Event::Role { leads: true };
    let mut took = Vec::new();
    let mut at = 0;
    for kill in 0..=kills {
        fleet.wait_until("one leads", PATIENCE, |records| !who(&records[at..], leads).is_empty())?;
        let records = fleet.records();
        let led = records[at..].iter().find(|record| leads(&record.event)).context("one leads")?;
        if kill > 0 {
            let killed = records.iter().rev().find(|record| record.event == Event::Killed);
            let killed = killed.context("one was killed")?;
            ensure!(led.at >= killed.at, "one led before the kill");
            took.push(float(led.at - killed.at) / 1e6);
        }
        let leader = led.worker;
        std::thread::sleep(Duration::from_millis(fastrand::u64(200..1_500)));
        at = fleet.records().len();
        fleet.kill(leader)?;
        fleet.add()?;
    }
    fleet.stop(PATIENCE)?;
    fs::remove_file(down)?;
    Ok(took)
}
