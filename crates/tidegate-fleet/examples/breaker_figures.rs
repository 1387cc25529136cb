//! What a circuit breaker does for a fleet on Redis, and what it costs the store: in a run of its own, on a server of its own.
//!
//! `cargo run --release -p tidegate-fleet --example breaker_figures`, after `cargo build --release -p tidegate-fleet`.
//! What a call costs in its own process is measured by `cargo bench -p tidegate --bench memory -- closed`.

// A measurement that cannot be made may stop.
#![allow(clippy::expect_used, clippy::unwrap_used, clippy::panic)]

use std::{
    collections::BTreeSet,
    fs,
    path::Path,
    time::{Duration, Instant},
};

use tidegate::{CircuitBreaker, Consecutive, Constant, ExecuteError, HealthCheck, Id, Operators, Position};
use tidegate_fleet::{
    clock,
    fleet::{Fleet, worker_program},
    record::{Event, Record},
    servers::redis::{Options, Redis},
    worker::{BreakerPlan, Gate, Plan, Span},
};
use tidegate_redis::RedisStore;

const PATIENCE: Duration = Duration::from_secs(30);
const OPENINGS: usize = 150;
const KILLS: usize = 10;

fn plan(server: &Redis, id: &str, down: &Path) -> Plan {
    // A check comes only after an hour: the circuit closes by hand.
    let breaker = BreakerPlan { backoff_ms: 3_600_000, ..BreakerPlan::new(down.to_str().unwrap()) };
    let gate = Gate::Global { limit: 1 };
    Plan { tasks: 0, breaker: Some(breaker), ..Plan::new(server.url(), id, gate) }
}

/// Where a part of what was sorted lies.
fn percentile(sorted: &[u64], percent: usize) -> f64 {
    let at = (sorted.len() * percent).div_ceil(100).clamp(1, sorted.len()) - 1;
    sorted[at] as f64 / 1_000.0
}

fn who(records: &[Record], is: impl Fn(&Event) -> bool) -> BTreeSet<u32> {
    records.iter().filter(|record| is(&record.event)).map(|record| record.worker).collect()
}

fn started(fleet: &Fleet, workers: usize) {
    fleet
        .wait_until("all started", PATIENCE, |records| {
            who(records, |event| matches!(event, Event::Started { .. })).len() == workers
        })
        .expect("they start");
}

/// From the call whose failure opens the circuit to the last process that knows: the median and the 99th percentile, in
/// ms. One process calls, and the others watch.
async fn reach(server: &Redis, workers: u32, down: &Path) -> (f64, f64) {
    let id = format!("reach-{workers}");
    let plan = plan(server, &id, down);
    // The caller is a process of the fleet, too.
    let fleet = Fleet::start(worker_program().expect("built"), &plan, workers - 1).expect("they start");
    started(&fleet, usize::try_from(workers).unwrap() - 1);
    let store = RedisStore::connect(&server.url()).await.expect("the server is there");
    let backoff = Constant::every(Duration::from_secs(3_600));
    let health =
        HealthCheck::new(backoff, |_| async { Ok::<(), String>(()) }).timeout(Duration::from_secs(60));
    // What this process is told, and when: it does not look, which would take a core from the others.
    let (told, mut news) = tokio::sync::mpsc::unbounded_channel();
    let breaker = CircuitBreaker::builder(&id)
        .strategy(Consecutive::new(3))
        .recovery(health)
        .on_state_change(move |change| {
            let _ = told.send((change.to, clock::now()));
        })
        .build(store.clone())
        .unwrap();
    breaker.start().await.unwrap();
    let id = Id::new(&id).unwrap();
    let mut took = Vec::new();
    for _ in 0..OPENINGS {
        let at = fleet.records().len();
        let mut last = 0;
        for _ in 0..3 {
            // The moment at which the call fails.
            let failed = breaker.execute(|| async { Err::<(), u64>(clock::now()) }).await;
            last = failed.err().and_then(ExecuteError::call).expect("it ran");
        }
        let Some((Position::Open, own)) = news.recv().await else { panic!("it opens") };
        let open = |records: &[Record]| {
            let is = |record: &&Record| matches!(record.event, Event::Circuit { open: true, .. });
            records[at..].iter().filter(is).map(|record| record.at).collect::<Vec<_>>()
        };
        let others = usize::try_from(workers).unwrap() - 1;
        fleet.wait_until("open", PATIENCE, |records| open(records).len() == others).expect("all know");
        let knew = open(&fleet.records()).into_iter().chain([own]).max().unwrap();
        took.push(knew - last);
        let at = fleet.records().len();
        store.set_circuit(&id, Position::Closed).await.unwrap();
        fleet
            .wait_until("closed", PATIENCE, |records| {
                who(&records[at..], |event| matches!(event, Event::Circuit { open: false, .. })).len()
                    == others
            })
            .expect("all know");
        let Some((Position::Closed, _)) = news.recv().await else { panic!("it closes") };
        // Its budget of reports fills again.
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    breaker.stop().await;
    fleet.stop(PATIENCE).unwrap();
    took.sort_unstable();
    (percentile(&took, 50), percentile(&took, 99))
}

/// From SIGKILL of a leader to the next one, in ms: the median and the longest. Defaults: a leader's TTL of 2 s.
fn follow(server: &Redis, down: &Path) -> (f64, f64) {
    fs::write(down, "").unwrap();
    let mut plan = plan(server, "follow", down);
    plan.tasks = 1;
    plan.think_ms = Span(20, 40);
    let mut fleet = Fleet::start(worker_program().expect("built"), &plan, 4).expect("they start");
    started(&fleet, 4);
    let leads = |event: &Event| *event == Event::Role { leads: true };
    let mut took = Vec::new();
    let mut at = 0;
    for kill in 0..=KILLS {
        fleet
            .wait_until("one leads", PATIENCE, |records| !who(&records[at..], leads).is_empty())
            .expect("one leads");
        let records = fleet.records();
        let led = records[at..].iter().find(|record| leads(&record.event)).unwrap();
        if kill > 0 {
            let killed = records.iter().rev().find(|record| record.event == Event::Killed).unwrap();
            took.push(led.at - killed.at);
        }
        let leader = led.worker;
        std::thread::sleep(Duration::from_millis(fastrand::u64(200..1_500)));
        at = fleet.records().len();
        fleet.kill(leader).unwrap();
        fleet.add().unwrap();
    }
    fleet.stop(PATIENCE).unwrap();
    fs::remove_file(down).unwrap();
    took.sort_unstable();
    (percentile(&took, 50), percentile(&took, 100))
}

/// Whether some of the calls fail: one in 10 ms and process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fails {
    None,
    Some,
}

/// Requests to the store a second and process, and calls a second in all, when the first burst is over.
async fn load(server: &Redis, processes: usize, fails: Fails) -> (f64, f64) {
    let seconds = 8_u32;
    let asked = || {
        let mut connection = server.connection().unwrap();
        let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut connection).unwrap();
        let calls = |name: &str| {
            let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{name}:calls=")));
            line.and_then(|line| line.split(['=', ',']).nth(1)).map_or(0_u64, |calls| calls.parse().unwrap())
        };
        calls("fcall") + calls("evalsha")
    };
    let mut breakers = Vec::new();
    for _ in 0..processes {
        // A store of its own: what is one process to the server.
        let store = RedisStore::connect(&server.url()).await.expect("the server is there");
        let health =
            HealthCheck::new(Constant::every(Duration::from_secs(60)), |_| async { Ok::<(), String>(()) });
        let id = format!("load-{processes}-{fails:?}");
        let breaker = CircuitBreaker::builder(id)
            .strategy(Consecutive::new(1_000))
            .recovery(health)
            .build(store)
            .unwrap();
        breaker.start().await.unwrap();
        breakers.push(breaker);
    }
    let each = 100_000 / u32::try_from(processes).unwrap();
    let tasks: Vec<_> = breakers
        .iter()
        .cloned()
        .map(|breaker| {
            tokio::spawn(async move {
                let mut calls = 0_u32;
                let start = Instant::now();
                // One that is late makes up for it.
                let mut ticks = tokio::time::interval(Duration::from_millis(1));
                while start.elapsed() < Duration::from_secs(u64::from(seconds)) {
                    ticks.tick().await;
                    for call in 0..each / 1_000 {
                        let failed = fails == Fails::Some && call == 0 && calls.is_multiple_of(10);
                        let _ =
                            breaker.execute(|| async move { if failed { Err(()) } else { Ok(()) } }).await;
                    }
                    calls += 1;
                }
                calls * (each / 1_000)
            })
        })
        .collect();
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (before, from) = (asked(), Instant::now());
    tokio::time::sleep(Duration::from_secs(5)).await;
    let per_process = (asked() - before) as f64 / from.elapsed().as_secs_f64() / processes as f64;
    let mut calls = 0;
    for task in tasks {
        calls += task.await.unwrap();
    }
    for breaker in breakers {
        breaker.stop().await;
    }
    (per_process, f64::from(calls) / f64::from(seconds))
}

#[tokio::main]
async fn main() {
    let folder = tempfile::tempdir().unwrap();
    let down = folder.path().join("down");
    let server = Redis::standalone(&Options::new()).expect("redis-server starts");
    for (processes, fails) in [(1, Fails::None), (1, Fails::Some), (4, Fails::Some)] {
        let (asked, calls) = load(&server, processes, fails).await;
        println!(
            "{processes} processes, {calls:.0} calls a second in all, failures {fails:?}: {asked:.1} store requests a \
             second each"
        );
    }
    for workers in [4, 16] {
        let (p50, p99) = reach(&server, workers, &down).await;
        println!(
            "open in all of {workers} processes after the deciding call: p50 {p50:.2} ms, p99 {p99:.2} ms"
        );
    }
    let (p50, most) = follow(&server, &down);
    println!("another leader after SIGKILL, {KILLS} times: p50 {p50:.0} ms, at most {most:.0} ms");
}
