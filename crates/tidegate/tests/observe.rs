//! What people see: metrics, recorders, events of `tracing`, and a store that can be asked.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use metrics::{Counter, Gauge, Histogram, HistogramFn, Key, KeyName, SharedString, Unit};
use tidegate::{
    Acquire, AcquireError, AcquireResult, Adaptive, AdaptiveSemaphore, Aimd, BreakerBuilder, CircuitBreaker,
    Class, Concurrency, Consecutive, Constant, Direction, Event, ExecuteError, HealthCheck, Job, LastCause,
    MemoryStore, Metrics, Outcome, Recorder, Rule, Store, StoreError, Valve, ValveBuilder,
    contract::{Bound, Id, Page, Policy, limit::LimitPolicy},
};
use tokio::time::{advance, sleep};

#[path = "support/fleet.rs"]
mod fleet;

use fleet::{Fleet, ID, Mode, Remote, Troubles, Wire, id, ms, poll_once, ready, settled, until};

const MINUTE: Duration = Duration::from_secs(60);

// ---- an exporter -------------------------------------------------------------------------------------------------------

/// An exporter that keeps everything.
#[derive(Clone, Default)]
struct Exporter(Arc<Mutex<Kept>>);

#[derive(Default)]
struct Kept {
    numbers: BTreeMap<Series, Arc<AtomicU64>>,
    times: BTreeMap<Series, Arc<Times>>,
    described: BTreeMap<String, (Option<Unit>, String)>,
}

/// A name, a kind, and labels in their order.
type Series = (String, &'static str, BTreeMap<String, String>);

#[derive(Default)]
struct Times(Mutex<Vec<f64>>);

impl HistogramFn for Times {
    fn record(&self, value: f64) {
        self.0.lock().unwrap().push(value);
    }
}

impl Exporter {
    /// Builds a primitive while this is the exporter of the thread.
    fn with<T>(&self, build: impl FnOnce() -> T) -> T {
        metrics::with_local_recorder(self, build)
    }

    fn number(&self, key: &Key, kind: &'static str) -> Arc<AtomicU64> {
        Arc::clone(self.0.lock().unwrap().numbers.entry(series(key, kind)).or_default())
    }

    fn describe(&self, name: &KeyName, unit: Option<Unit>, what: &SharedString) {
        let what = (unit, what.to_string());
        self.0.lock().unwrap().described.insert(name.as_str().to_owned(), what);
    }

    /// All series, with what kind each is.
    fn all(&self) -> Vec<Series> {
        let kept = self.0.lock().unwrap();
        kept.numbers.keys().chain(kept.times.keys()).cloned().collect()
    }

    fn names(&self) -> BTreeSet<String> {
        self.all().into_iter().map(|(name, ..)| name).collect()
    }

    fn value(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        let all = self.0.lock().unwrap();
        let found = all.numbers.iter().filter(|((known, _, of), _)| known == name && has(of, labels));
        let found: Vec<_> = found.map(|(_, value)| value.load(Ordering::SeqCst)).collect();
        assert_eq!(found.len(), 1, "{name} with {labels:?}");
        found[0]
    }

    fn counter(&self, name: &str, labels: &[(&str, &str)]) -> u64 {
        self.value(&format!("tidegate_{name}"), labels)
    }

    fn gauge(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        f64::from_bits(self.value(&format!("tidegate_{name}"), labels))
    }

    fn times(&self, name: &str, labels: &[(&str, &str)]) -> Vec<f64> {
        let all = self.0.lock().unwrap();
        let name = format!("tidegate_{name}");
        let mut found = all.times.iter().filter(|((known, _, of), _)| *known == name && has(of, labels));
        let times = found.next().expect("a histogram").1.0.lock().unwrap().clone();
        assert!(found.next().is_none(), "several of {name} with {labels:?}");
        times
    }

    /// How acquires of a class ended, in the order of the documentation.
    fn acquires(&self, class: &str) -> [u64; 5] {
        RESULTS.map(|result| self.counter("acquires_total", &[("class", class), ("result", result)]))
    }

    fn denials(&self) -> [u64; 3] {
        ["slots", "rate", "pause"].map(|cause| self.counter("denials_total", &[("type", cause)]))
    }

    fn limit_changes(&self) -> [u64; 3] {
        ["increase", "decrease", "init"].map(|way| self.counter("limit_changes_total", &[("type", way)]))
    }
}

const RESULTS: [&str; 5] = ["granted", "timeout", "unavailable", "closed", "cancelled"];

fn series(key: &Key, kind: &'static str) -> Series {
    let labels = key.labels().map(|label| (label.key().to_owned(), label.value().to_owned()));
    (key.name().to_owned(), kind, labels.collect())
}

fn has(labels: &BTreeMap<String, String>, wanted: &[(&str, &str)]) -> bool {
    wanted.iter().all(|(name, value)| labels.get(*name).is_some_and(|is| is == value))
}

impl metrics::Recorder for Exporter {
    fn describe_counter(&self, name: KeyName, unit: Option<Unit>, what: SharedString) {
        self.describe(&name, unit, &what);
    }

    fn describe_gauge(&self, name: KeyName, unit: Option<Unit>, what: SharedString) {
        self.describe(&name, unit, &what);
    }

    fn describe_histogram(&self, name: KeyName, unit: Option<Unit>, what: SharedString) {
        self.describe(&name, unit, &what);
    }

    fn register_counter(&self, key: &Key, _: &metrics::Metadata<'_>) -> Counter {
        Counter::from_arc(self.number(key, "counter"))
    }

    fn register_gauge(&self, key: &Key, _: &metrics::Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.number(key, "gauge"))
    }

    fn register_histogram(&self, key: &Key, _: &metrics::Metadata<'_>) -> Histogram {
        let mut kept = self.0.lock().unwrap();
        Histogram::from_arc(Arc::clone(kept.times.entry(series(key, "histogram")).or_default()))
    }
}

// ---- OB-1: metrics -----------------------------------------------------------------------------------------------------

/// A metric as the documentation has it: its kind, its labels and what it is.
struct Documented {
    kind: String,
    labels: BTreeSet<String>,
}

/// The table in the documentation of `Metrics`.
fn documented() -> BTreeMap<String, Documented> {
    let rows = include_str!("../src/telemetry.rs").lines().filter(|line| line.starts_with("/// | `"));
    rows.map(|row| {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        let [_, name, kind, labels, what, _] = cells[..] else { panic!("a row of four: {row}") };
        assert!(!what.is_empty(), "{row}");
        let labels = labels.split(',').map(|label| label.trim().trim_matches('`').to_owned());
        let documented = Documented { kind: kind.to_owned(), labels: labels.collect() };
        (name.trim_matches('`').to_owned(), documented)
    })
    .collect()
}

#[tokio::test(start_paused = true)]
async fn ob_1_the_documentation_and_the_code_name_the_same_metrics() {
    let (fleet, exporter) = (Fleet::new(), Exporter::default());
    let builder = fleet.builder(5).class(Class::reserved("interactive", 0.2)).metrics(Metrics::new());
    let _semaphore = exporter.with(|| builder.build(fleet.store.clone())).unwrap();
    let _breaker = exporter.with(|| breaker().build(fleet.store.clone())).unwrap();
    let documented = documented();
    assert_eq!(documented.len(), 20, "both tables were read");
    assert_eq!(exporter.names(), documented.keys().cloned().collect::<BTreeSet<_>>());
    for (name, kind, labels) in exporter.all() {
        let documented = &documented[&name];
        assert_eq!(kind, documented.kind, "{name}");
        assert_eq!(labels.into_keys().collect::<BTreeSet<_>>(), documented.labels, "{name}");
        let suffix = match kind {
            "counter" => "_total",
            "histogram" => "_seconds",
            _ => "",
        };
        assert!(name.ends_with(suffix), "{name} is a {kind}");
    }
}

fn breaker() -> BreakerBuilder {
    let health = HealthCheck::new(Constant::every(ms(100)), |_| async { Err::<(), _>("down") });
    CircuitBreaker::builder(ID).strategy(Consecutive::new(2)).recovery(health).metrics(Metrics::new())
}

#[tokio::test(start_paused = true)]
async fn ob_1_a_breaker_counts_from_0_and_shows_calls_blocks_checks_and_state() {
    let (fleet, exporter) = (Fleet::new(), Exporter::default());
    let builder = breaker().clock(fleet.clock);
    let breaker = exporter.with(|| builder.build(fleet.store.clone())).unwrap();
    let named = |kind, result| [("id", ID), ("type", kind), ("result", result)];
    let counts = || {
        let checks = ["recovery", "idle"].map(|kind| {
            ["success", "failure"].map(|result| exporter.counter("health_checks_total", &named(kind, result)))
        });
        let changes = ["open", "closed"].map(|to| exporter.counter("circuit_changes_total", &[("type", to)]));
        (exporter.counter("blocked_total", &[("id", ID)]), checks, changes)
    };
    assert_eq!(counts(), (0, [[0; 2]; 2], [0; 2]));
    assert_eq!(exporter.gauge("circuit_open", &[]), 0.0);
    breaker.start().await.unwrap();
    assert_eq!(breaker.execute(|| async { Ok::<u8, &str>(1) }).await, Ok(1));
    for _ in 0..2 {
        assert_eq!(breaker.execute(|| async { Err::<(), _>("no") }).await, Err(ExecuteError::Call("no")));
    }
    sleep(ms(20)).await;
    assert_eq!(exporter.gauge("circuit_open", &[]), 1.0);
    assert!(breaker.execute(|| async { Ok::<u8, &str>(1) }).await.is_err());
    sleep(ms(100)).await;
    assert_eq!(counts(), (1, [[0, 1], [0, 0]], [1, 0]));
    assert_eq!(exporter.gauge("circuit_leader", &[]), 1.0);
    assert_eq!(exporter.times("call_duration_seconds", &[("result", "failure")]).len(), 2);
    assert_eq!(exporter.times("call_duration_seconds", &[("result", "success")]).len(), 1);
    breaker.stop().await;
    assert_eq!(exporter.gauge("circuit_leader", &[]), 0.0);
}

#[tokio::test(start_paused = true)]
async fn ob_1_an_exporter_is_told_what_each_metric_is() {
    let (fleet, exporter) = (Fleet::new(), Exporter::default());
    let _semaphore =
        exporter.with(|| fleet.builder(5).metrics(Metrics::new()).build(fleet.store.clone())).unwrap();
    let described = exporter.0.lock().unwrap().described.clone();
    assert_eq!(described.keys().cloned().collect::<BTreeSet<_>>(), exporter.names());
    for (name, (unit, what)) in described {
        assert_eq!(unit, name.ends_with("_seconds").then_some(Unit::Seconds), "{name}");
        assert!(what.len() > 10, "{name}: {what}");
    }
}

#[tokio::test(start_paused = true)]
async fn ob_1_counters_are_at_0_and_the_limit_is_there_when_a_primitive_is_built() {
    let (fleet, exporter) = (Fleet::new(), Exporter::default());
    let builder = fleet
        .builder(5)
        .class(Class::reserved("interactive", 0.2))
        .class(Class::unreserved("batch"))
        .metrics(Metrics::new());
    let _semaphore = exporter.with(|| builder.build(fleet.store.clone())).unwrap();
    for class in ["", "interactive", "batch"] {
        assert_eq!(exporter.acquires(class), [0; 5]);
        for outcome in ["success", "throttled", "failure"] {
            assert_eq!(exporter.counter("releases_total", &[("class", class), ("outcome", outcome)]), 0);
        }
    }
    assert_eq!(exporter.denials(), [0; 3]);
    assert_eq!(exporter.limit_changes(), [0; 3]);
    for name in ["throttles_total", "pauses_total", "store_errors_total"] {
        assert_eq!(exporter.counter(name, &[("id", ID)]), 0);
    }
    assert_eq!(exporter.gauge("limit", &[("id", ID)]), 5.0);

    let exporter = Exporter::default();
    let valve = Valve::builder("rates").rule(Rule::token_bucket(5, MINUTE)).metrics(Metrics::new());
    let _valve = exporter.with(|| valve.build(fleet.store.clone())).unwrap();
    assert_eq!(exporter.acquires(""), [0; 5]);
    assert!(!exporter.names().contains("tidegate_limit"), "there is no limit of concurrency");
    let valve = |concurrency| {
        let exporter = Exporter::default();
        let valve = Valve::builder("calls").concurrency(concurrency).metrics(Metrics::new());
        let _valve = exporter.with(|| valve.build(fleet.store.clone())).unwrap();
        exporter
    };
    assert_eq!(valve(Concurrency::Global(7)).gauge("limit", &[("id", "calls")]), 7.0);
    assert_eq!(valve(Concurrency::Adaptive(Adaptive::new(9))).gauge("limit", &[("id", "calls")]), 9.0);
    assert!(!valve(Concurrency::Local(7)).names().contains("tidegate_limit"));
}

#[tokio::test(start_paused = true)]
async fn ob_1_the_prefix_and_constant_labels_are_set_per_primitive() {
    let (fleet, exporter) = (Fleet::new(), Exporter::default());
    let metrics = Metrics::new().prefix("billing_gate").label("region", "eu").label("tier", "gold");
    let (one, other) = (
        fleet.builder(5).metrics(metrics),
        AdaptiveSemaphore::builder("other", 5).clock(fleet.clock).metrics(Metrics::new()),
    );
    let one = exporter.with(|| one.build(fleet.store.clone())).unwrap();
    let _other = exporter.with(|| other.build(fleet.store.clone())).unwrap();
    one.try_acquire().await.unwrap().release(Outcome::Success);
    for (name, _, labels) in exporter.all() {
        let (mine, marked) =
            (name.starts_with("billing_gate_"), has(&labels, &[("region", "eu"), ("tier", "gold")]));
        assert_eq!(has(&labels, &[("id", ID)]), mine, "{name}");
        assert_eq!(marked, mine, "{name}");
        assert_eq!(name.starts_with("tidegate_"), !mine, "{name}");
    }
    assert_eq!(exporter.value("billing_gate_acquires_total", &[("result", "granted"), ("region", "eu")]), 1);
    assert_eq!(exporter.acquires(""), [0; 5]);
}

#[tokio::test(start_paused = true)]
async fn ob_1_acquires_are_told_apart_by_how_they_end_and_timed() {
    let (fleet, exporter) = (Fleet::new(), Exporter::default());
    let builder = fleet.builder(1).max_limit(1).class(Class::unreserved("batch")).metrics(Metrics::new());
    let semaphore = exporter.with(|| builder.build(fleet.store.clone())).unwrap();

    let lease = semaphore.acquire(Acquire::class("batch")).await.unwrap();
    assert_eq!(exporter.acquires("batch"), [1, 0, 0, 0, 0]);
    let refused = semaphore.acquire(Acquire::class("batch").timeout(ms(300))).await.unwrap_err();
    assert_eq!(refused.code(), "timeout");
    assert_eq!(exporter.acquires("batch"), [1, 1, 0, 0, 0]);

    let mut waits = Box::pin(semaphore.acquire(Acquire::class("batch")));
    assert!(poll_once(waits.as_mut()).is_pending());
    advance(ms(20)).await;
    drop(waits);
    assert_eq!(exporter.acquires("batch"), [1, 1, 0, 0, 1]);

    let waiter = semaphore.clone();
    let waits = tokio::spawn(async move { waiter.acquire(Acquire::class("batch")).await });
    until(|| semaphore.state().waiting == 1).await;
    advance(ms(50)).await;
    semaphore.close().await;
    assert_eq!(waits.await.unwrap().unwrap_err().code(), "closed");
    assert_eq!(exporter.acquires("batch"), [1, 1, 0, 1, 1]);
    assert_eq!(exporter.acquires(""), [0; 5], "no one came without a class");

    let times = |result| exporter.times("acquire_wait_seconds", &[("class", "batch"), ("result", result)]);
    assert_eq!(times("granted"), [0.0]);
    assert_eq!(times("timeout"), [0.3]);
    assert_eq!(times("cancelled"), [0.02]);
    assert_eq!(times("closed"), [0.05]);
    assert!(times("unavailable").is_empty());
    lease.release(Outcome::Success);
}

#[tokio::test(start_paused = true)]
async fn ob_1_an_outage_is_unavailable_and_counted_among_store_errors() {
    let (fleet, exporter) = (Fleet::new(), Exporter::default());
    let remote = Remote::new(&fleet, Wire::Takes(ms(3)));
    let builder = fleet.builder(5).op_timeout(ms(500)).metrics(Metrics::new());
    let semaphore = exporter.with(|| builder.build(remote.clone())).unwrap();
    semaphore.try_acquire().await.unwrap().release(Outcome::Success);
    semaphore.flush().await;
    let trips = exporter.times("store_round_trip_seconds", &[("id", ID)]);
    assert!(trips.len() >= 2 && trips.iter().all(|trip| *trip == 0.006), "{trips:?}");
    assert_eq!(exporter.counter("store_errors_total", &[("id", ID)]), 0);

    remote.set(Mode::Hangs);
    assert_eq!(semaphore.try_acquire().await.unwrap_err().code(), "unavailable");
    assert_eq!(exporter.acquires(""), [1, 0, 1, 0, 0]);
    let after_one = exporter.counter("store_errors_total", &[("id", ID)]);
    assert!(after_one >= 1, "{after_one}");
    assert_eq!(semaphore.refresh().await.unwrap_err().code(), "unavailable");
    assert!(exporter.counter("store_errors_total", &[("id", ID)]) > after_one);
    assert_eq!(exporter.denials(), [0; 3], "an outage is no denial");
}

#[tokio::test(start_paused = true)]
async fn ob_1_a_renewal_that_fails_is_a_store_error() {
    let (fleet, exporter) = (Fleet::new(), Exporter::default());
    let remote = Remote::new(&fleet, Wire::Short);
    let builder = fleet.builder(5).lease_ttl(ms(900)).op_timeout(ms(50)).metrics(Metrics::new());
    let semaphore = exporter.with(|| builder.build(remote.clone())).unwrap();
    let lease = semaphore.try_acquire().await.unwrap();
    let renewals = remote.tries().len();
    remote.set(Mode::Down);
    until_time(|| remote.tries().len() > renewals).await;
    settled().await;
    assert!(exporter.counter("store_errors_total", &[("id", ID)]) >= 1);
    remote.set(Mode::Up);
    drop(lease);
}

/// Lets time pass until something holds.
async fn until_time(mut holds: impl FnMut() -> bool) {
    for _ in 0..10_000 {
        if holds() {
            return;
        }
        sleep(ms(1)).await;
    }
    panic!("it does not come");
}

#[tokio::test(start_paused = true)]
async fn ob_1_what_cannot_be_taken_is_no_acquire() {
    let (fleet, exporter) = (Fleet::new(), Exporter::default());
    let builder = fleet.builder(5).class(Class::unreserved("a")).metrics(Metrics::new());
    let semaphore = exporter.with(|| builder.build(fleet.store.clone())).unwrap();
    assert_eq!(semaphore.acquire(Acquire::class("nobody")).await.unwrap_err().code(), "invalid_options");
    assert_eq!(exporter.acquires(""), [0; 5]);
    assert_eq!(exporter.acquires("a"), [0; 5]);
    // What the store refuses is no answer about the job.
    let other = fleet.builder(5).class(Class::unreserved("b")).metrics(Metrics::new());
    let other = exporter.with(|| other.build(fleet.store.clone())).unwrap();
    let lease = semaphore.acquire(Acquire::class("a")).await.unwrap();
    assert_eq!(other.acquire(Acquire::class("b")).await.unwrap_err().code(), "invalid_options");
    assert_eq!(exporter.acquires("a"), [1, 0, 0, 0, 0]);
    assert_eq!(exporter.acquires("b"), [0, 0, 1, 0, 0]);
    drop(lease);
}

#[tokio::test(start_paused = true)]
async fn ob_1_releases_are_told_apart_by_outcome_and_timed() {
    let (fleet, exporter) = (Fleet::new(), Exporter::default());
    let semaphore =
        exporter.with(|| fleet.builder(9).metrics(Metrics::new()).build(fleet.store.clone())).unwrap();
    for (outcome, held) in [(Outcome::Success, 10), (Outcome::Failure, 20), (Outcome::Throttled, 30)] {
        let lease = semaphore.try_acquire().await.unwrap();
        advance(ms(held)).await;
        lease.release(outcome);
    }
    let dropped = semaphore.try_acquire().await.unwrap();
    advance(ms(40)).await;
    drop(dropped);
    let count = |outcome| exporter.counter("releases_total", &[("class", ""), ("outcome", outcome)]);
    assert_eq!(["success", "throttled", "failure"].map(count), [1, 1, 2]);
    let times = |outcome| exporter.times("lease_hold_seconds", &[("class", ""), ("outcome", outcome)]);
    assert_eq!(times("success"), [0.01]);
    assert_eq!(times("throttled"), [0.03]);
    assert_eq!(times("failure"), [0.02, 0.04]);
}

#[tokio::test(start_paused = true)]
async fn ob_1_throttles_count_those_that_change_nothing_too() {
    let (fleet, exporter) = (Fleet::new(), Exporter::default());
    let semaphore =
        exporter.with(|| fleet.builder(16).metrics(Metrics::new()).build(fleet.store.clone())).unwrap();
    let mut leases = Vec::new();
    for _ in 0..5 {
        leases.push(semaphore.try_acquire().await.unwrap());
    }
    for lease in leases {
        lease.release(Outcome::Throttled);
    }
    assert_eq!(exporter.counter("throttles_total", &[("id", ID)]), 5);
    assert_eq!(exporter.limit_changes(), [0, 1, 1], "one decrease in a cooldown");
    assert_eq!(exporter.gauge("limit", &[("id", ID)]), 8.0);
}

#[tokio::test(start_paused = true)]
async fn ob_1_denials_are_counted_once_per_job_by_what_denied_it_first() {
    let (fleet, exporter) = (Fleet::new(), Exporter::default());
    let valve = Valve::builder(ID)
        .clock(fleet.clock)
        .rule(Rule::fixed_window(2, MINUTE))
        .concurrency(Concurrency::Global(1))
        .metrics(Metrics::new());
    let valve = exporter.with(|| valve.build(fleet.store.clone())).unwrap();
    let denials = || {
        let denied = valve.stats().denied;
        assert_eq!(exporter.denials(), [denied.slots, denied.rate, denied.pause], "statistics agree");
        exporter.denials()
    };
    let permit = valve.try_acquire(Job::new()).await.unwrap();
    assert_eq!(denials(), [0, 0, 0]);
    assert_eq!(valve.try_acquire(Job::new()).await.unwrap_err().code(), "timeout");
    assert_eq!(denials(), [1, 0, 0]);
    // One that waits asks many times, and was denied once.
    assert_eq!(valve.acquire(Job::new().timeout(ms(4_000))).await.unwrap_err().code(), "timeout");
    assert_eq!(denials(), [2, 0, 0]);
    permit.release(Outcome::Success);
    valve.try_acquire(Job::new()).await.unwrap().release(Outcome::Success);
    assert_eq!(valve.try_acquire(Job::new()).await.unwrap_err().code(), "timeout");
    assert_eq!(denials(), [2, 1, 0]);
    valve.pause(ms(500)).await.unwrap();
    assert_eq!(valve.try_acquire(Job::new()).await.unwrap_err().code(), "timeout");
    assert_eq!(denials(), [2, 1, 1]);
    // Behind one that waits, a job that tries once is denied without asking.
    let waiter = valve.clone();
    let waits = tokio::spawn(async move { waiter.acquire(Job::new().timeout(ms(200))).await });
    until(|| valve.stats().queued == 1).await;
    assert_eq!(denials(), [2, 1, 2]);
    assert_eq!(valve.try_acquire(Job::new()).await.unwrap_err().code(), "timeout");
    assert_eq!(denials(), [2, 1, 3]);
    // So is one that waits behind it in vain.
    assert_eq!(valve.acquire(Job::new().timeout(ms(100))).await.unwrap_err().code(), "timeout");
    assert_eq!(denials(), [2, 1, 4]);
    assert_eq!(waits.await.unwrap().unwrap_err().code(), "timeout");
    assert_eq!(denials(), [2, 1, 4]);
}

#[tokio::test(start_paused = true)]
async fn ob_1_pauses_are_counted_once_each_in_every_process() {
    let fleet = Fleet::new();
    let build = || {
        let exporter = Exporter::default();
        let valve =
            Valve::builder(ID).clock(fleet.clock).rule(Rule::fixed_window(9, MINUTE)).metrics(Metrics::new());
        (exporter.with(|| valve.build(fleet.store.clone())).unwrap(), exporter)
    };
    let ((one, seen_by_one), (other, seen_by_other)) = (build(), build());
    other.refresh().await.unwrap();
    one.pause(ms(800)).await.unwrap();
    one.pause(ms(3_000)).await.unwrap();
    let pauses = |exporter: &Exporter| exporter.counter("pauses_total", &[("id", ID)]);
    until(|| pauses(&seen_by_other) == 1).await;
    assert_eq!(pauses(&seen_by_one), 1, "an extension is the same pause");
    sleep(ms(4_000)).await;
    other.pause(ms(100)).await.unwrap();
    until(|| pauses(&seen_by_one) == 2).await;
    assert_eq!(pauses(&seen_by_other), 2);
}

#[tokio::test(start_paused = true)]
async fn ob_1_the_gauge_of_the_limit_is_right_in_a_process_that_only_watches() {
    let (fleet, exporter) = (Fleet::new(), Exporter::default());
    let worker = fleet.process(20);
    worker.try_acquire().await.unwrap().release(Outcome::Throttled);
    assert_eq!(fleet.limit(), 10);

    let watcher = fleet.builder(20).metrics(Metrics::new());
    let watcher = exporter.with(|| watcher.build(fleet.store.clone())).unwrap();
    let gauge = || exporter.gauge("limit", &[("id", ID)]);
    assert_eq!(gauge(), 20.0, "what it takes the limit for until it knows");
    watcher.refresh().await.unwrap();
    assert_eq!(gauge(), 10.0);
    assert_eq!(exporter.limit_changes(), [0, 0, 1]);

    sleep(ms(11_000)).await;
    worker.try_acquire().await.unwrap().release(Outcome::Throttled);
    until(|| gauge() == 5.0).await;
    assert_eq!(exporter.limit_changes(), [0, 1, 1]);
    fleet.set_limit(40);
    until(|| gauge() == 40.0).await;
    assert_eq!(exporter.limit_changes(), [1, 1, 1]);
    assert_eq!(watcher.state().limit, 40);
    assert_eq!(exporter.acquires(""), [0; 5], "it only watched");
}

#[tokio::test(start_paused = true)]
async fn ob_1_the_gauge_follows_a_limit_that_was_lost_and_seeded_again() {
    let (fleet, exporter) = (Fleet::new(), Exporter::default());
    let changes = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&changes);
    let watcher = fleet
        .builder(20)
        .metrics(Metrics::new())
        .on_limit_change(move |limit| told.lock().unwrap().push(limit));
    let watcher = exporter.with(|| watcher.build(fleet.store.clone())).unwrap();
    let worker = fleet.process(20);
    let lease = worker.try_acquire().await.unwrap();
    watcher.refresh().await.unwrap();
    lease.release(Outcome::Throttled);
    until(|| exporter.gauge("limit", &[("id", ID)]) == 10.0).await;
    fleet.store.wipe();
    let late = fleet.process(7);
    late.try_acquire().await.unwrap().release(Outcome::Success);
    assert_eq!(fleet.limit(), 7);
    watcher.refresh().await.unwrap();
    settled().await;
    // It knew a newer limit than the one that was seeded, and gave it back.
    assert_eq!(fleet.limit(), 10);
    assert_eq!(exporter.gauge("limit", &[("id", ID)]), 10.0);
    assert_eq!(watcher.state().limit, 10);
    assert_eq!(*changes.lock().unwrap(), [10, 7, 10], "every change of its view, and not the first load");
    assert_eq!(exporter.limit_changes(), [1, 2, 1]);
}

#[tokio::test(start_paused = true)]
async fn ob_1_what_is_in_flight_and_what_is_queued_is_right_while_jobs_wait() {
    let (fleet, exporter) = (Fleet::new(), Exporter::default());
    let builder = fleet.builder(2).max_limit(2).class(Class::unreserved("batch")).metrics(Metrics::new());
    let semaphore = exporter.with(|| builder.build(fleet.store.clone())).unwrap();
    let load = |class: &str| {
        ["in_flight", "queued"].map(|name| exporter.gauge(name, &[("id", ID), ("class", class)]))
    };
    let first = semaphore.try_acquire().await.unwrap();
    let second = semaphore.acquire(Acquire::class("batch")).await.unwrap();
    assert_eq!((load(""), load("batch")), ([1.0, 0.0], [1.0, 0.0]));
    let mut waiting: Vec<_> = (0..3).map(|_| Box::pin(semaphore.acquire(Acquire::class("batch")))).collect();
    for waits in &mut waiting {
        assert!(poll_once(waits.as_mut()).is_pending());
    }
    assert_eq!((load(""), load("batch")), ([1.0, 0.0], [1.0, 3.0]));
    drop(waiting.pop());
    assert_eq!(load("batch"), [1.0, 2.0]);
    first.release(Outcome::Success);
    let third = waiting.remove(0).await.unwrap();
    assert_eq!((load(""), load("batch")), ([0.0, 0.0], [2.0, 1.0]));
    drop((second, third));
    drop(waiting);
    assert_eq!((load(""), load("batch")), ([0.0, 0.0], [0.0, 0.0]));
}

#[tokio::test(start_paused = true)]
async fn ob_1_two_primitives_of_one_id_add_up_in_one_process() {
    let (fleet, exporter) = (Fleet::new(), Exporter::default());
    let build =
        || exporter.with(|| fleet.builder(9).metrics(Metrics::new()).build(fleet.store.clone())).unwrap();
    let (one, other) = (build(), build());
    let gauge = || exporter.gauge("in_flight", &[("id", ID), ("class", "")]);
    let (first, second, third) = (
        one.try_acquire().await.unwrap(),
        other.try_acquire().await.unwrap(),
        other.try_acquire().await.unwrap(),
    );
    assert_eq!(gauge(), 3.0);
    drop(first);
    assert_eq!(gauge(), 2.0);
    drop((second, third));
    assert_eq!(gauge(), 0.0);
    assert_eq!(exporter.acquires(""), [3, 0, 0, 0, 0]);
}

#[test]
fn ob_1_gauges_end_right_after_a_stampede_of_threads() {
    let exporter = Exporter::default();
    let builder = AdaptiveSemaphore::builder(ID, 2).max_limit(2).metrics(Metrics::new());
    let semaphore = exporter.with(|| builder.build(MemoryStore::new())).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
                runtime.block_on(async {
                    for turn in 0..200_u32 {
                        let lease = semaphore.acquire(Acquire::within(MINUTE)).await.unwrap();
                        if turn.is_multiple_of(3) {
                            tokio::task::yield_now().await;
                        }
                        lease.release(Outcome::Success);
                    }
                });
            });
        }
    });
    let gauge = |name| exporter.gauge(name, &[("id", ID), ("class", "")]);
    assert_eq!([gauge("in_flight"), gauge("queued")], [0.0, 0.0]);
    assert_eq!(exporter.acquires(""), [800, 0, 0, 0, 0]);
    assert_eq!(exporter.counter("releases_total", &[("outcome", "success")]), 800);
}

// ---- OB-1: recorders ---------------------------------------------------------------------------------------------------

/// Takes nothing.
struct Nothing;

impl Recorder for Nothing {}

/// Takes everything, as text.
#[derive(Clone, Default)]
struct Diary(Arc<Mutex<Vec<String>>>);

impl Diary {
    fn note(&self, entry: String) {
        self.0.lock().unwrap().push(entry);
    }

    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl Recorder for Diary {
    fn acquired(&self, class: Option<&str>, result: AcquireResult, waited: Duration) {
        self.note(format!("{} in {class:?} after {waited:?}", result.as_str()));
    }

    fn released(&self, class: Option<&str>, outcome: Outcome, held: Duration) {
        self.note(format!("{} in {class:?} after {held:?}", outcome.as_str()));
    }

    fn denied(&self, cause: LastCause) {
        self.note(format!("denied: {cause}"));
    }

    fn paused(&self) {
        self.note("paused".to_owned());
    }

    fn limit(&self, limit: u32, direction: Direction) {
        self.note(format!("limit {limit}: {}", direction.as_str()));
    }

    fn load(&self, class: Option<&str>, in_flight: u32, queued: u32) {
        self.note(format!("{in_flight} in flight, {queued} queued in {class:?}"));
    }

    fn exchanged(&self, took: Duration) {
        self.note(format!("exchange: {took:?}"));
    }

    fn store_error(&self) {
        self.note("store error".to_owned());
    }
}

#[tokio::test(start_paused = true)]
async fn ob_1_several_recorders_are_told_the_same_and_one_may_take_nothing() {
    let (fleet, exporter) = (Fleet::new(), Exporter::default());
    let (diary, copy) = (Diary::default(), Arc::new(Diary::default()));
    let builder = fleet
        .builder(1)
        .max_limit(1)
        .recorder(Nothing)
        .recorder(diary.clone())
        .metrics(Metrics::new())
        .recorder(Arc::clone(&copy));
    let semaphore = exporter.with(|| builder.build(fleet.store.clone())).unwrap();
    let lease = semaphore.try_acquire().await.unwrap();
    assert!(semaphore.try_acquire().await.is_err());
    advance(ms(7)).await;
    lease.release(Outcome::Throttled);
    let written = diary.take();
    assert_eq!(
        written,
        [
            "limit 1: init",
            "1 in flight, 0 queued in None",
            "granted in None after 0ns",
            "denied: slots",
            "1 in flight, 0 queued in None",
            "timeout in None after 0ns",
            "0 in flight, 0 queued in None",
            "throttled in None after 7ms",
        ]
    );
    assert_eq!(copy.take(), written);
    assert_eq!(exporter.acquires(""), [1, 1, 0, 0, 0]);
}

// ---- OB-2: tracing -----------------------------------------------------------------------------------------------------

/// A subscriber that keeps every event, with the spans that it lies in.
#[derive(Clone, Default)]
struct Journal(Arc<Mutex<Written>>);

#[derive(Default)]
struct Written {
    spans: Vec<String>,
    open: Vec<u64>,
    events: Vec<Line>,
}

#[derive(Clone, Debug)]
struct Line {
    level: tracing::Level,
    text: String,
    within: Vec<String>,
}

/// The fields of an event or a span as `name=value`, in their order.
#[derive(Default)]
struct Text(String);

impl tracing::field::Visit for Text {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
        use fmt::Write as _;
        let space = if self.0.is_empty() { "" } else { " " };
        write!(self.0, "{space}{}={value:?}", field.name()).unwrap();
    }
}

impl tracing::Subscriber for Journal {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("tidegate") || metadata.target() == module_path!()
    }

    fn new_span(&self, span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        let mut text = Text::default();
        span.record(&mut text);
        let mut written = self.0.lock().unwrap();
        written.spans.push(format!("{}{{{}}}", span.metadata().name(), text.0));
        tracing::span::Id::from_u64(written.spans.len() as u64)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = Text::default();
        event.record(&mut text);
        let mut written = self.0.lock().unwrap();
        let name = |id: &u64| written.spans[usize::try_from(*id).unwrap() - 1].clone();
        let within = written.open.iter().map(name).collect();
        written.events.push(Line { level: *event.metadata().level(), text: text.0, within });
    }

    fn enter(&self, span: &tracing::span::Id) {
        self.0.lock().unwrap().open.push(span.into_u64());
    }

    fn exit(&self, span: &tracing::span::Id) {
        let mut written = self.0.lock().unwrap();
        let at = written.open.iter().rposition(|open| *open == span.into_u64());
        written.open.remove(at.expect("a span that was entered"));
    }
}

impl Journal {
    /// Keeps what this thread writes from now on.
    fn open(&self) -> tracing::subscriber::DefaultGuard {
        tracing::subscriber::set_default(self.clone())
    }

    fn take(&self) -> Vec<Line> {
        std::mem::take(&mut self.0.lock().unwrap().events)
    }

    fn texts(&self) -> Vec<String> {
        self.take().into_iter().map(|line| format!("{} {}", line.level, line.text)).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn ob_2_changes_of_the_limit_and_of_pauses_are_events() {
    let (fleet, journal) = (Fleet::new(), Journal::default());
    let _open = journal.open();
    let concurrency = Concurrency::Adaptive(Adaptive::new(8).aimd(Aimd::new().cooldown(ms(1_000))));
    let builder = || Valve::builder(ID).clock(fleet.clock).concurrency(concurrency.clone());
    let valve = builder().build(fleet.store.clone()).unwrap();
    valve.try_acquire(Job::new()).await.unwrap().release(Outcome::Throttled);
    assert_eq!(
        journal.texts(),
        [
            "DEBUG message=limit id=provider limit=8 direction=\"init\"",
            "DEBUG message=limit id=provider limit=4 direction=\"decrease\"",
        ]
    );
    valve.pause(ms(2_000)).await.unwrap();
    valve.pause(ms(2_500)).await.unwrap();
    assert_eq!(journal.texts(), ["INFO message=paused id=provider length=2s"]);
    valve.resume().await.unwrap();
    valve.resume().await.unwrap();
    assert_eq!(journal.texts(), ["INFO message=resumed id=provider"]);
    valve.pause(ms(700)).await.unwrap();
    sleep(ms(1_000)).await;
    assert_eq!(
        journal.texts(),
        ["INFO message=paused id=provider length=700ms", "INFO message=resumed id=provider"]
    );
}

#[tokio::test(start_paused = true)]
async fn ob_2_a_change_of_mode_is_one_event_whether_errors_are_listened_to_or_not() {
    for listens in [true, false] {
        for falls_back in [true, false] {
            let (fleet, journal, troubles) = (Fleet::new(), Journal::default(), Troubles::default());
            let _open = journal.open();
            let remote = Remote::new(&fleet, Wire::Short);
            let mut builder = fleet.builder(5);
            if listens {
                builder = builder.on_error(troubles.note());
            }
            if falls_back {
                builder = builder.fallback_local(3);
            }
            let semaphore = builder.build(remote.clone()).unwrap();
            semaphore.try_acquire().await.unwrap().release(Outcome::Success);
            semaphore.flush().await;
            journal.take();
            remote.set(Mode::Down);
            for _ in 0..5 {
                assert_eq!(semaphore.try_acquire().await.is_ok(), falls_back);
            }
            let mode = if falls_back { "local" } else { "closed" };
            let went = format!(
                "WARN message=the store went away id=provider mode=\"{mode}\" \
                 source=store unavailable: disconnected: the wire is cut"
            );
            assert_eq!(journal.texts(), [went], "listens: {listens}");
            remote.set(Mode::Up);
            until_time(|| !journal.0.lock().unwrap().events.is_empty()).await;
            let back = journal.texts();
            assert_eq!(back.len(), 1, "{back:?}");
            assert!(
                back[0].starts_with("INFO message=the store is back id=provider mode=\"shared\" away="),
                "{back:?}"
            );
            let codes = if listens { vec!["unavailable", "available"] } else { vec![] };
            assert_eq!(troubles.codes(), codes);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn ob_2_a_call_is_no_event_above_trace() {
    for wire in [None, Some(Wire::Short), Some(Wire::Takes(ms(2)))] {
        let (fleet, journal) = (Fleet::new(), Journal::default());
        let builder = Valve::builder(ID)
            .clock(fleet.clock)
            .rule(Rule::token_bucket(100, MINUTE))
            .concurrency(Concurrency::Adaptive(Adaptive::new(3).max_limit(3)));
        let valve = match wire {
            None => builder.build(fleet.store.clone()),
            Some(wire) => builder.build(Remote::new(&fleet, wire)),
        }
        .unwrap();
        valve.try_acquire(Job::new()).await.unwrap().release(Outcome::Success);
        let _open = journal.open();
        let (mut granted, mut denied) = (0, 0);
        for _ in 0..100 {
            match valve.try_acquire(Job::new()).await {
                Ok(permit) => {
                    granted += 1;
                    permit.settle("token_bucket:60000", 2).release(Outcome::Failure);
                }
                Err(AcquireError::Timeout { .. }) => denied += 1,
                Err(error) => panic!("{error}"),
            }
            let call = || async { Err::<(), _>("failed") };
            let _ = valve.run(Job::new().timeout(ms(1)), call).await;
        }
        valve.flush().await;
        assert!(granted > 10 && denied > 10, "{granted} granted, {denied} denied");
        let loud = journal.take().into_iter().filter(|line| line.level < tracing::Level::TRACE);
        let loud: Vec<_> = loud.collect();
        assert!(loud.is_empty(), "{loud:?}");
        assert!(journal.0.lock().unwrap().spans.is_empty(), "nor a span");
    }
}

#[tokio::test(start_paused = true)]
async fn ob_2_what_callbacks_log_lies_in_a_span_with_the_id() {
    let (fleet, journal) = (Fleet::new(), Journal::default());
    let _open = journal.open();
    let semaphore = fleet
        .builder(8)
        .on_limit_change(|limit| tracing::info!(limit, "my own"))
        .on_error(|trouble| tracing::info!(code = trouble.code(), "my own"))
        .build(fleet.store.clone())
        .unwrap();
    semaphore.try_acquire().await.unwrap().release(Outcome::Throttled);
    let lease = semaphore.try_acquire().await.unwrap();
    fleet.evict(lease.token().unwrap());
    lease.lost().await;
    tracing::info!("outside");
    let lines = journal.take();
    let own: Vec<_> = lines.iter().filter(|line| line.text.starts_with("message=my own")).collect();
    assert_eq!(own.len(), 2, "{lines:?}");
    for line in own {
        assert_eq!(line.within, ["tidegate{id=provider}"]);
    }
    assert!(lines.last().unwrap().within.is_empty());
}

// ---- OB-3: a store can be asked ----------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn ob_3_a_snapshot_says_how_an_id_stands() {
    let fleet = Fleet::new();
    let valve = Valve::builder(ID)
        .clock(fleet.clock)
        .rule(Rule::token_bucket(10, MINUTE).named("requests"))
        .rule(Rule::sliding_window(10, MINUTE).scoped("tenant").named("each"))
        .concurrency(Concurrency::Adaptive(Adaptive::new(3)))
        .class(Class::unreserved("batch"))
        .build(fleet.store.clone())
        .unwrap();
    assert_eq!(ready(operators(&fleet).snapshot(&id())).unwrap().body, None, "building asks nothing");
    let job = |tenant: &str| Job::new().scope("tenant", tenant);
    let (first, second) = (
        valve.try_acquire(job("a")).await.unwrap(),
        valve.try_acquire(job("b").class("batch")).await.unwrap(),
    );
    let third = valve.try_acquire(job("b")).await.unwrap();
    let mut waits = Box::pin(valve.acquire(job("c")));
    assert!(poll_once(waits.as_mut()).is_pending());
    first.release(tidegate::Release::throttled_for(ms(5_000)));
    valve.pause(ms(2_000)).await.unwrap();
    let seen = fleet.snapshot();
    assert_eq!(seen.id, id());
    assert_eq!(seen.limit.unwrap().value, 1);
    assert_eq!((seen.held, seen.resting, seen.waiting), (3, 1, 1));
    let by_class: Vec<_> =
        seen.by_class.iter().map(|(class, held)| (class.as_ref().map(|name| name.as_str()), *held)).collect();
    assert_eq!(by_class, [(Some("batch"), 1), (None, 2)]);
    assert_eq!(seen.paused_ms, 2_000);
    let rules: Vec<_> =
        seen.rules.iter().map(|rule| (rule.rule.as_str(), rule.level, rule.identities.unwrap())).collect();
    assert_eq!(rules, [("named:each", None, 2), ("named:requests", Some(7), 0)]);
    assert!(matches!(seen.policy.unwrap().bound(), Some(Bound::Adaptive(_))));
    drop((waits, second, third));
}

#[tokio::test(start_paused = true)]
async fn ob_3_leases_are_listed_in_pages_by_slot_with_owner_and_age() {
    let fleet = Fleet::new();
    let one = fleet.builder(9).owner("one").class(Class::unreserved("batch")).build(fleet.store.clone());
    let other = fleet.builder(9).owner("other").class(Class::unreserved("batch")).build(fleet.store.clone());
    let (one, other) = (one.unwrap(), other.unwrap());
    let first = one.try_acquire().await.unwrap();
    advance(ms(40)).await;
    let second = other.acquire(Acquire::class("batch")).await.unwrap();
    let third = one.try_acquire().await.unwrap();
    advance(ms(2)).await;
    let page = |after, most| ready(operators(&fleet).leases(&id(), after, most)).unwrap().body;
    let seen: Vec<_> = page(None, 1_000)
        .items
        .into_iter()
        .map(|lease| {
            let class = lease.class.map(|class| class.to_string());
            (lease.token.slot, lease.owner.to_string(), class, lease.age_ms, lease.left_ms, lease.resting)
        })
        .collect();
    let batch = || Some("batch".to_owned());
    assert_eq!(
        seen,
        [
            (0, "one".to_owned(), None, 42, 29_958, false),
            (1, "other".to_owned(), batch(), 2, 29_998, false),
            (2, "one".to_owned(), None, 2, 29_998, false),
        ]
    );
    let slots = |page: &Page<tidegate::contract::LeaseView>| -> Vec<u32> {
        page.items.iter().map(|lease| lease.token.slot).collect()
    };
    let (head, tail) = (page(None, 2), page(Some(1), 2));
    assert_eq!((slots(&head), head.more), (vec![0, 1], true));
    assert_eq!((slots(&tail), tail.more), (vec![2], false));
    for most in [0, 1_001] {
        let refused = ready(operators(&fleet).leases(&id(), None, most)).unwrap_err();
        assert!(matches!(&refused, StoreError::Invalid(invalid) if invalid.option == "most"), "{refused}");
    }
    drop((first, second, third));
}

#[tokio::test(start_paused = true)]
async fn ob_3_ids_are_listed_in_pages_in_their_order() {
    let fleet = Fleet::new();
    for name in ["b", "a", "d", "c"] {
        let semaphore = AdaptiveSemaphore::builder(name, 5).clock(fleet.clock).build(fleet.store.clone());
        semaphore.unwrap().try_acquire().await.unwrap().release(Outcome::Success);
    }
    let page = |after: Option<&str>, most| {
        let after = after.map(|after| Id::new(after).unwrap());
        let page = ready(operators(&fleet).ids(after.as_ref(), most)).unwrap().body;
        (page.items.iter().map(|id| id.as_str().to_owned()).collect::<Vec<_>>(), page.more)
    };
    assert_eq!(page(None, 3), (vec!["a".to_owned(), "b".to_owned(), "c".to_owned()], true));
    assert_eq!(page(Some("c"), 3), (vec!["d".to_owned()], false));
    assert_eq!(page(Some("bb"), 1), (vec!["c".to_owned()], true));
    assert_eq!(page(Some("d"), 1), (vec![], false));
    for most in [0, 1_001] {
        assert_eq!(ready(operators(&fleet).ids(None, most)).unwrap_err().code(), "invalid_options");
    }
}

#[tokio::test(start_paused = true)]
async fn ob_3_an_evicted_lease_is_lost_and_its_slot_free() {
    let (fleet, troubles) = (Fleet::new(), Troubles::default());
    let semaphore =
        fleet.builder(1).max_limit(1).on_error(troubles.note()).build(fleet.store.clone()).unwrap();
    let lease = semaphore.try_acquire().await.unwrap();
    let token = lease.token().unwrap();
    let stranger = tidegate::Token { fence: token.fence + 1, ..token };
    assert!(!fleet.evict(stranger));
    assert_eq!(fleet.held(), 1);
    assert!(fleet.evict(token));
    assert!(!fleet.evict(token), "it is gone");
    let next = semaphore.try_acquire().await.unwrap();
    assert_eq!(next.slot(), lease.slot());
    let lost = lease.lost().await;
    assert_eq!(lost.token, token);
    assert!(!lease.is_live() && next.is_live());
    assert_eq!(troubles.codes(), ["lease_lost"]);
    lease.release(Outcome::Success);
    assert_eq!(fleet.held(), 1, "a lease that was lost releases no other");
}

#[tokio::test(start_paused = true)]
async fn ob_3_a_limit_is_set_within_the_bounds_and_every_process_learns_of_it() {
    let fleet = Fleet::new();
    let changes = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&changes);
    let builder = fleet.builder(5).min_limit(2).max_limit(9);
    let semaphore = builder
        .on_limit_change(move |limit| told.lock().unwrap().push(limit))
        .build(fleet.store.clone())
        .unwrap();
    let refused = ready(operators(&fleet).set_limit(&id(), 5)).unwrap_err();
    assert_eq!(refused.code(), "invalid_options", "nothing is kept of the id yet");
    semaphore.refresh().await.unwrap();
    semaphore.try_acquire().await.unwrap().release(Outcome::Success);
    for limit in [1, 10, 0, u32::MAX] {
        let refused = ready(operators(&fleet).set_limit(&id(), limit)).unwrap_err();
        let StoreError::Invalid(invalid) = refused else { panic!("{refused}") };
        assert_eq!((invalid.option.as_str(), invalid.given), ("limit", limit.to_string()));
        assert!(invalid.allowed.starts_with("2 to 9"), "{}", invalid.allowed);
    }
    assert_eq!(fleet.limit(), 5);
    for limit in [2, 9] {
        assert_eq!(ready(operators(&fleet).set_limit(&id(), limit)).unwrap().body, limit);
        until(|| semaphore.state().limit == limit).await;
    }
    assert_eq!(*changes.lock().unwrap(), [2, 9]);
}

#[tokio::test(start_paused = true)]
async fn ob_3_a_policy_is_replaced_by_one_of_a_higher_revision() {
    let fleet = Fleet::new();
    let valve = |limit| Valve::builder(ID).clock(fleet.clock).concurrency(Concurrency::Global(limit));
    let build = |builder: ValveBuilder| builder.build(fleet.store.clone()).unwrap();
    let worker = build(valve(1));
    let held = worker.try_acquire(Job::new()).await.unwrap();
    assert!(worker.try_acquire(Job::new()).await.is_err());
    let policy = |limit, revision| {
        Arc::new(Policy::draft().bound(Bound::Fixed(limit)).revision(revision).check().unwrap())
    };
    let refused = ready(operators(&fleet).replace_policy(&id(), policy(2, 0))).unwrap_err();
    assert!(matches!(&refused, StoreError::Invalid(invalid) if invalid.option == "revision"), "{refused}");
    assert_eq!(fleet.snapshot().limit.unwrap().value, 1);
    ready(operators(&fleet).replace_policy(&id(), policy(2, 1))).unwrap();
    assert_eq!(fleet.snapshot().policy.unwrap().revision(), 1);
    assert_eq!(fleet.held(), 1, "leases are kept");
    let second = worker.try_acquire(Job::new()).await.unwrap();
    assert_eq!(worker.stats().limit, Some(2));
    drop((held, second));
    let unknown = Id::new("unknown").unwrap();
    let refused = ready(operators(&fleet).replace_policy(&unknown, policy(2, 1))).unwrap_err();
    assert_eq!(refused.code(), "invalid_options");
    // An adaptive one, that a semaphore then works under.
    let adaptive = LimitPolicy::check(1, 9, &Aimd::new(), ms(100), tidegate::Growth::Additive).unwrap();
    let adaptive = Policy::draft().bound(Bound::Adaptive(adaptive)).revision(2).check().unwrap();
    ready(operators(&fleet).replace_policy(&id(), Arc::new(adaptive))).unwrap();
    assert_eq!(fleet.limit(), 2, "the limit that was known goes on");
}

#[tokio::test(start_paused = true)]
async fn ob_3_an_id_is_forgotten_when_no_lease_lives() {
    let fleet = Fleet::new();
    let semaphore = fleet.process(5);
    assert!(!ready(operators(&fleet).forget(&id())).unwrap().body, "there is nothing to forget");
    let lease = semaphore.try_acquire().await.unwrap();
    let refused = ready(operators(&fleet).forget(&id())).unwrap_err();
    assert_eq!(refused, StoreError::LeasesLive { held: 1 });
    assert_eq!(fleet.held(), 1);
    lease.release(Outcome::Success);
    assert!(ready(operators(&fleet).forget(&id())).unwrap().body);
    assert_eq!(ready(operators(&fleet).snapshot(&id())).unwrap().body, None);
    assert!(ready(operators(&fleet).ids(None, 10)).unwrap().body.items.is_empty());
    // Another policy can be pinned now.
    let other = fleet.builder(3).lease_ttl(ms(5_000)).build(fleet.store.clone()).unwrap();
    other.try_acquire().await.unwrap().release(Outcome::Success);
    assert_eq!(fleet.limit(), 3);
}

fn operators(fleet: &Fleet) -> &dyn tidegate::Operators {
    fleet.store.operators().expect("the memory store has operators")
}

#[tokio::test(start_paused = true)]
async fn ob_3_events_of_a_valve_tell_what_happens_once_each() {
    let fleet = Fleet::new();
    let concurrency = Concurrency::Adaptive(Adaptive::new(8));
    let valve =
        Valve::builder(ID).clock(fleet.clock).concurrency(concurrency).build(fleet.store.clone()).unwrap();
    let mut events = valve.events();
    valve.try_acquire(Job::new()).await.unwrap().release(Outcome::Throttled);
    valve.pause(ms(1_000)).await.unwrap();
    valve.resume().await.unwrap();
    assert_eq!(events.next().await, Some(Event::LimitChanged { limit: 4 }));
    assert_eq!(events.next().await, Some(Event::Paused { length: ms(1_000) }));
    assert_eq!(events.next().await, Some(Event::Resumed));
    drop(valve);
    assert_eq!(events.next().await, None);
}
