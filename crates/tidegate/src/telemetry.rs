//! What people see: metrics through the `metrics` facade, or a recorder of their own.
//!
//! What is recorded, under which names: [`Metrics`].
//!
//! Spec: OB-1.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use metrics::{Counter, Gauge, Histogram, Label, Unit};
use tidegate_core::{Id, Invalid, Name, Outcome, circuit::Position};

use crate::{CheckKind, LastCause, Role};

mod circuit;

pub(crate) use circuit::CircuitFacade;

/// How an acquire ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum AcquireResult {
    /// With a permit.
    Granted,
    /// Without room until its timeout, or refused at once for want of it.
    Timeout,
    /// Without an answer of the store, or with a refusal.
    Unavailable,
    /// By closing.
    Closed,
    /// Dropped by its caller.
    Cancelled,
}

impl AcquireResult {
    const ALL: [Self; 5] = [Self::Granted, Self::Timeout, Self::Unavailable, Self::Closed, Self::Cancelled];

    /// Its name in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Granted => "granted",
            Self::Timeout => "timeout",
            Self::Unavailable => "unavailable",
            Self::Closed => "closed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// How a call or a health check ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CallResult {
    /// It worked.
    Success,
    /// It did not.
    Failure,
}

impl CallResult {
    const ALL: [Self; 2] = [Self::Success, Self::Failure];

    /// Its name in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Failure => "failure",
        }
    }
}

/// Which way a limit went.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Direction {
    /// Up.
    Increase,
    /// Down.
    Decrease,
    /// It was seen for the first time.
    Init,
}

impl Direction {
    /// Its name in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Increase => "increase",
            Self::Decrease => "decrease",
            Self::Init => "init",
        }
    }
}

/// Takes what happens, for anything but the `metrics` facade. Everything has an empty default.
///
/// It is called outside every lock, often, and from many threads; a panic in it is caught and reported.
pub trait Recorder: Send + Sync {
    /// An acquire ended after `waited`.
    fn acquired(&self, _class: Option<&str>, _result: AcquireResult, _waited: Duration) {}
    /// A permit was released after `held`.
    fn released(&self, _class: Option<&str>, _outcome: Outcome, _held: Duration) {}
    /// A job was denied, and waits or gives up.
    fn denied(&self, _cause: LastCause) {}
    /// A pause began.
    fn paused(&self) {}
    /// The limit is now `limit`.
    fn limit(&self, _limit: u32, _direction: Direction) {}
    /// So many permits are held in this process, and so many jobs wait.
    fn load(&self, _class: Option<&str>, _in_flight: u32, _queued: u32) {}
    /// An exchange with the store took `took`.
    fn exchanged(&self, _took: Duration) {}
    /// An exchange with the store failed.
    fn store_error(&self) {}
    /// A call under a circuit ended after `took`.
    fn called(&self, _result: CallResult, _took: Duration) {}
    /// A call was blocked by an open circuit.
    fn blocked(&self) {}
    /// A health check ended after `took`.
    fn checked(&self, _kind: CheckKind, _result: CallResult, _took: Duration) {}
    /// The circuit is now in this position; `changed` where it was in the other before.
    fn circuit(&self, _position: Position, _changed: bool) {}
    /// This process now has this role in the circuit.
    fn role(&self, _role: Role) {}
}

impl<R: Recorder + ?Sized> Recorder for Arc<R> {
    fn acquired(&self, class: Option<&str>, result: AcquireResult, waited: Duration) {
        (**self).acquired(class, result, waited);
    }

    fn released(&self, class: Option<&str>, outcome: Outcome, held: Duration) {
        (**self).released(class, outcome, held);
    }

    fn denied(&self, cause: LastCause) {
        (**self).denied(cause);
    }

    fn paused(&self) {
        (**self).paused();
    }

    fn limit(&self, limit: u32, direction: Direction) {
        (**self).limit(limit, direction);
    }

    fn load(&self, class: Option<&str>, in_flight: u32, queued: u32) {
        (**self).load(class, in_flight, queued);
    }

    fn exchanged(&self, took: Duration) {
        (**self).exchanged(took);
    }

    fn store_error(&self) {
        (**self).store_error();
    }

    fn called(&self, result: CallResult, took: Duration) {
        (**self).called(result, took);
    }

    fn blocked(&self) {
        (**self).blocked();
    }

    fn checked(&self, kind: CheckKind, result: CallResult, took: Duration) {
        (**self).checked(kind, result, took);
    }

    fn circuit(&self, position: Position, changed: bool) {
        (**self).circuit(position, changed);
    }

    fn role(&self, role: Role) {
        (**self).role(role);
    }
}

/// The `metrics` facade, with a prefix and constant labels of one's own.
///
/// | metric | kind | labels | what |
/// |---|---|---|---|
/// | `tidegate_acquire_wait_seconds` | histogram | `id`, `class`, `result` | how long an acquire took, by how it ended |
/// | `tidegate_lease_hold_seconds` | histogram | `id`, `class`, `outcome` | how long a permit was held, by how it ended |
/// | `tidegate_acquires_total` | counter | `id`, `class`, `result` | acquires, by how they ended; not those of a job that cannot be taken |
/// | `tidegate_releases_total` | counter | `id`, `class`, `outcome` | releases, by outcome |
/// | `tidegate_throttles_total` | counter | `id` | throttled releases, those that changed nothing too |
/// | `tidegate_denials_total` | counter | `id`, `type` | jobs denied, by what denied them first: `slots`, `rate` or `pause` |
/// | `tidegate_pauses_total` | counter | `id` | pauses that this process saw begin |
/// | `tidegate_limit_changes_total` | counter | `id`, `type` | changes of the limit seen: `increase`, `decrease`, `init` |
/// | `tidegate_store_errors_total` | counter | `id` | operations of the store that failed |
/// | `tidegate_store_round_trip_seconds` | histogram | `id` | how long an exchange with the store took |
/// | `tidegate_limit` | gauge | `id` | the fleet's limit of concurrency, as this process knows it; not there without one |
/// | `tidegate_in_flight` | gauge | `id`, `class` | permits held in this process |
/// | `tidegate_queued` | gauge | `id`, `class` | jobs waiting in this process |
///
/// A circuit breaker has the last two of the store, and these:
///
/// | metric | kind | labels | what |
/// |---|---|---|---|
/// | `tidegate_call_duration_seconds` | histogram | `id`, `result` | how long a call took, without its wait for a permit |
/// | `tidegate_blocked_total` | counter | `id` | calls that an open circuit blocked |
/// | `tidegate_health_check_seconds` | histogram | `id`, `type`, `result` | how long a health check of this process took |
/// | `tidegate_health_checks_total` | counter | `id`, `type`, `result` | health checks of this process: `recovery` or `idle` |
/// | `tidegate_circuit_changes_total` | counter | `id`, `type` | changes of the circuit seen: `open`, `closed` |
/// | `tidegate_circuit_open` | gauge | `id` | 1 while the circuit is open, as this process knows it; else 0 |
/// | `tidegate_circuit_leader` | gauge | `id` | 1 while this process leads; else 0 |
///
/// `result` of an acquire is `granted`, `timeout` (no room in time, or a full queue), `unavailable` (no answer of the store,
/// or a policy that it refuses), `closed` or `cancelled`, that of a call or check `success` or `failure`; `outcome` is `success`, `throttled` or `failure`; `class` is empty for jobs
/// without one.
///
/// The exporter (Prometheus, OTLP, StatsD, ...) is the program's choice. Install it before a primitive is built: everything
/// is registered then, with counters at 0.
///
/// # Examples
/// ```
/// use tidegate::{AdaptiveSemaphore, MemoryStore, Metrics};
///
/// let semaphore = AdaptiveSemaphore::builder("my-provider-api", 10)
///     .metrics(Metrics::new().prefix("billing_gate").label("region", "eu"))
///     .build(MemoryStore::new())?;
/// # Ok::<(), tidegate::BuildError>(())
/// ```
///
/// Spec: OB-1.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Metrics {
    prefix: String,
    labels: Vec<(String, String)>,
}

impl Metrics {
    /// The prefix `tidegate` and no constant labels.
    pub fn new() -> Self {
        Self { prefix: "tidegate".to_owned(), labels: Vec::new() }
    }

    /// What each name begins with, before a `_`: `tidegate` unless told; 1 to 64 of `A-Z a-z 0-9 _ . -`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// A label that is the same on all: its name is 1 to 64 of `A-Z a-z 0-9 _ . -`, and none of those that are set here.
    pub fn label(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.labels.push((name.into(), value.into()));
        self
    }

    pub(crate) fn check(&self) -> Result<(), Invalid> {
        Name::new("metrics.prefix", &self.prefix)?;
        for (at, (name, _)) in self.labels.iter().enumerate() {
            Name::new("metrics.label", name)?;
            let twice = self.labels.iter().take(at).any(|(earlier, _)| earlier == name);
            if twice || OWN_LABELS.contains(&name.as_str()) {
                let allowed = format!("each name once, and none of {}", OWN_LABELS.join(", "));
                return Err(Invalid::new("metrics.label", name, allowed));
            }
        }
        Ok(())
    }
}

/// The labels that are set here.
const OWN_LABELS: [&str; 5] = ["id", "class", "outcome", "result", "type"];

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

/// The handles of one primitive.
pub(crate) struct Facade {
    tiers: Vec<Tier>,
    throttles: Counter,
    denials: [Counter; 3],
    pauses: Counter,
    limit_changes: [Counter; 3],
    limit: Option<Gauge>,
    store_errors: Counter,
    round_trip: Histogram,
}

struct Tier {
    class: Option<String>,
    wait: [Histogram; 5],
    acquires: [Counter; 5],
    hold: [Histogram; 3],
    releases: [Counter; 3],
    in_flight: Share,
    queued: Share,
}

/// This primitive's part of a gauge: another of the same id and labels in this process adds its own.
struct Share {
    gauge: Gauge,
    part: AtomicU32,
}

impl Share {
    const fn new(gauge: Gauge) -> Self {
        Self { gauge, part: AtomicU32::new(0) }
    }

    fn set(&self, part: u32) {
        let before = self.part.swap(part, Ordering::Relaxed);
        if part > before {
            self.gauge.increment(f64::from(part - before));
        } else if part < before {
            self.gauge.decrement(f64::from(before - part));
        }
    }
}

const OUTCOMES: [Outcome; 3] = [Outcome::Success, Outcome::Throttled, Outcome::Failure];
const CAUSES: [LastCause; 3] = [LastCause::Slots, LastCause::Rate, LastCause::Pause];
const DIRECTIONS: [Direction; 3] = [Direction::Increase, Direction::Decrease, Direction::Init];

impl Facade {
    /// Registers everything, counters at 0. `classes` are the primitive's, with none for jobs without; `limit` is what it
    /// takes the fleet's limit for until it knows, where there is one.
    pub(crate) fn new(
        metrics: &Metrics,
        id: &Id,
        classes: impl Iterator<Item = Option<String>>,
        limit: Option<u32>,
    ) -> Self {
        let names = Names { metrics, id };
        names.describe(&HELP);
        Self {
            tiers: classes.map(|class| Tier::new(&names, class)).collect(),
            throttles: names.counter("throttles_total", &[]),
            denials: CAUSES.map(|cause| names.counter("denials_total", &[("type", cause.as_str())])),
            pauses: names.counter("pauses_total", &[]),
            limit_changes: DIRECTIONS
                .map(|way| names.counter("limit_changes_total", &[("type", way.as_str())])),
            limit: limit.map(|limit| {
                let gauge = names.gauge("limit", &[]);
                gauge.set(f64::from(limit));
                gauge
            }),
            store_errors: names.counter("store_errors_total", &[]),
            round_trip: names.histogram("store_round_trip_seconds", &[]),
        }
    }

    fn tier(&self, class: Option<&str>) -> Option<&Tier> {
        self.tiers.iter().find(|tier| tier.class.as_deref() == class)
    }
}

impl Tier {
    fn new(names: &Names<'_>, class: Option<String>) -> Self {
        let label = class.as_deref().unwrap_or("");
        let result = |result: AcquireResult| [("class", label), ("result", result.as_str())];
        let outcome = |outcome: Outcome| [("class", label), ("outcome", outcome.as_str())];
        Self {
            wait: AcquireResult::ALL.map(|ended| names.histogram("acquire_wait_seconds", &result(ended))),
            acquires: AcquireResult::ALL.map(|ended| names.counter("acquires_total", &result(ended))),
            hold: OUTCOMES.map(|ended| names.histogram("lease_hold_seconds", &outcome(ended))),
            releases: OUTCOMES.map(|ended| names.counter("releases_total", &outcome(ended))),
            in_flight: Share::new(names.gauge("in_flight", &[("class", label)])),
            queued: Share::new(names.gauge("queued", &[("class", label)])),
            class,
        }
    }
}

/// The names of one primitive's metrics.
struct Names<'a> {
    metrics: &'a Metrics,
    id: &'a Id,
}

impl Names<'_> {
    /// Tells the exporter what each is.
    fn describe(&self, help: &[(Kind, &str, &'static str)]) {
        for (kind, name, what) in help {
            let name = format!("{}_{name}", self.metrics.prefix);
            metrics::with_recorder(|recorder| match kind {
                Kind::Counter => recorder.describe_counter(name.into(), None, (*what).into()),
                Kind::Gauge => recorder.describe_gauge(name.into(), None, (*what).into()),
                Kind::Seconds => {
                    recorder.describe_histogram(name.into(), Some(Unit::Seconds), (*what).into())
                }
            });
        }
    }

    fn key(&self, name: &str, labels: &[(&str, &str)]) -> metrics::Key {
        let mut all = vec![Label::new("id", self.id.as_str().to_owned())];
        all.extend(labels.iter().map(|(name, value)| Label::new((*name).to_owned(), (*value).to_owned())));
        all.extend(self.metrics.labels.iter().map(|(name, value)| Label::new(name.clone(), value.clone())));
        metrics::Key::from_parts(format!("{}_{name}", self.metrics.prefix), all)
    }

    fn counter(&self, name: &str, labels: &[(&str, &str)]) -> Counter {
        let counter =
            metrics::with_recorder(|recorder| recorder.register_counter(&self.key(name, labels), &META));
        counter.increment(0);
        counter
    }

    fn gauge(&self, name: &str, labels: &[(&str, &str)]) -> Gauge {
        metrics::with_recorder(|recorder| recorder.register_gauge(&self.key(name, labels), &META))
    }

    fn histogram(&self, name: &str, labels: &[(&str, &str)]) -> Histogram {
        metrics::with_recorder(|recorder| recorder.register_histogram(&self.key(name, labels), &META))
    }
}

enum Kind {
    Counter,
    Gauge,
    Seconds,
}

const HELP: [(Kind, &str, &str); 13] = [
    (Kind::Seconds, "acquire_wait_seconds", "How long an acquire took, by how it ended"),
    (Kind::Seconds, "lease_hold_seconds", "How long a permit was held, by how it ended"),
    (Kind::Counter, "acquires_total", "Acquires, by how they ended"),
    (Kind::Counter, "releases_total", "Releases, by outcome"),
    (Kind::Counter, "throttles_total", "Throttled releases, those that changed nothing too"),
    (Kind::Counter, "denials_total", "Jobs denied, by what denied them first"),
    (Kind::Counter, "pauses_total", "Pauses that this process saw begin"),
    (Kind::Counter, "limit_changes_total", "Changes of the limit that this process saw"),
    (Kind::Counter, "store_errors_total", "Operations of the store that failed"),
    (Kind::Seconds, "store_round_trip_seconds", "How long an exchange with the store took"),
    (Kind::Gauge, "limit", "The fleet's limit of concurrency, as this process knows it"),
    (Kind::Gauge, "in_flight", "Permits held in this process"),
    (Kind::Gauge, "queued", "Jobs waiting in this process"),
];

const META: metrics::Metadata<'static> =
    metrics::Metadata::new("tidegate", metrics::Level::INFO, Some(module_path!()));

impl Recorder for Facade {
    fn acquired(&self, class: Option<&str>, result: AcquireResult, waited: Duration) {
        let Some(tier) = self.tier(class) else { return };
        let (wait, acquires) = (&tier.wait[result as usize], &tier.acquires[result as usize]);
        wait.record(waited);
        acquires.increment(1);
    }

    fn released(&self, class: Option<&str>, outcome: Outcome, held: Duration) {
        let Some(tier) = self.tier(class) else { return };
        tier.hold[outcome as usize].record(held);
        tier.releases[outcome as usize].increment(1);
        if outcome == Outcome::Throttled {
            self.throttles.increment(1);
        }
    }

    fn denied(&self, cause: LastCause) {
        self.denials[cause as usize].increment(1);
    }

    fn paused(&self) {
        self.pauses.increment(1);
    }

    fn limit(&self, limit: u32, direction: Direction) {
        self.limit.iter().for_each(|gauge| gauge.set(f64::from(limit)));
        self.limit_changes[direction as usize].increment(1);
    }

    fn load(&self, class: Option<&str>, in_flight: u32, queued: u32) {
        let Some(tier) = self.tier(class) else { return };
        tier.in_flight.set(in_flight);
        tier.queued.set(queued);
    }

    fn exchanged(&self, took: Duration) {
        self.round_trip.record(took);
    }

    fn store_error(&self) {
        self.store_errors.increment(1);
    }
}
