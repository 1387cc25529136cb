//! A worker: it takes permits, holds them for a while, gives them back, and writes down all that it sees.
//!
//! [`run`] is one in this process, on whatever store; the program `tidegate-worker` is one as a process, which
//! [`Fleet`](crate::fleet::Fleet) starts. What is written is a [`Record`] at a time, and [`History`](crate::history::History)
//! reads it.

mod breaker;
mod plan;
mod watched;

use std::{
    error::Error,
    io::Write,
    pin::pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use fastrand::Rng;
use tidegate::{
    Acquire, AcquireError, AdaptiveSemaphore, BuildError, Concurrency, Job, LeaseLost, Outcome, Permit,
    Store, Trouble, Valve,
};
use tokio::{sync::watch, task::JoinSet, time};

pub use self::plan::{Algorithm, BreakerPlan, Gate, Outcomes, Plan, RecoveryPlan, RulePlan, Span};
use self::watched::{Shared, Watched};
use crate::{
    clock::{self, micros},
    record::{Event, Lease, Record},
};

/// What a worker is told while it works.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// Ask for permits.
    Work,
    /// Ask for no more, and hold what is held.
    Pause,
    /// End what is held, give everything back, and end.
    Stop,
}

impl Order {
    /// The line that a worker's program takes for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Work => "work",
            Self::Pause => "pause",
            Self::Stop => "stop",
        }
    }

    /// Reads a line.
    pub fn parse(line: &str) -> Option<Self> {
        [Self::Work, Self::Pause, Self::Stop].into_iter().find(|order| order.as_str() == line.trim())
    }
}

/// Where a worker writes. A cheap clone of one thing.
#[derive(Clone)]
pub struct Log {
    worker: u32,
    sink: Arc<Mutex<dyn FnMut(Record) + Send>>,
}

impl Log {
    /// Writes lines to `out`, each whole and at once, so that a process which is killed has written all but the last.
    pub fn lines(worker: u32, mut out: impl Write + Send + 'static) -> Self {
        Self::to(worker, move |record| {
            // A controller that is gone reads nothing, and ends this process by closing its orders.
            let _ = record.to_line().map(|line| out.write_all(line.as_bytes()).and_then(|()| out.flush()));
        })
    }

    fn to(worker: u32, sink: impl FnMut(Record) + Send + 'static) -> Self {
        Self { worker, sink: Arc::new(Mutex::new(sink)) }
    }

    /// Writes down what is so now.
    fn write(&self, event: Event) {
        self.write_at(clock::now(), event);
    }

    fn write_at(&self, at: u64, event: Event) {
        (self.sink.lock().unwrap_or_else(PoisonError::into_inner))(Record { at, worker: self.worker, event });
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Log").field("worker", &self.worker).finish_non_exhaustive()
    }
}

/// The records of workers in this process. A cheap clone of one thing.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    records: Arc<Mutex<Vec<Record>>>,
}

impl Journal {
    /// An empty one.
    pub fn new() -> Self {
        Self::default()
    }

    /// Where the worker of this number writes.
    pub fn log(&self, worker: u32) -> Log {
        let records = Arc::clone(&self.records);
        Log::to(worker, move |record| records.lock().unwrap_or_else(PoisonError::into_inner).push(record))
    }

    /// What was written so far.
    pub fn records(&self) -> Vec<Record> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Works as planned until it is ordered to stop, or the plan's jobs are done.
///
/// # Errors
/// Where what the plan wants cannot be built on this store, or the store refuses it.
pub async fn run(
    plan: &Plan,
    number: u32,
    store: Arc<dyn Store>,
    log: Log,
    orders: watch::Receiver<Order>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    if let Some(breaker) = &plan.breaker {
        return breaker::run(plan, breaker, number, store, log, orders).await;
    }
    let watched = Arc::new(Watched::new(store, log.clone()));
    let gate = Built::new(plan, Shared(Arc::clone(&watched)), &log)?;
    log.write(Event::Started { pid: std::process::id() });
    let worker = Arc::new(Worker { plan: plan.clone(), gate, watched, log, jobs: AtomicU64::new(0) });
    let mut tasks = JoinSet::new();
    for task in 0..plan.tasks {
        // A seed of its own for each task, so that a run goes the same way whatever the order of the others.
        let seed = plan.seed ^ (u64::from(number) << 32) ^ u64::from(task);
        let worker = Arc::clone(&worker);
        let orders = orders.clone();
        tasks.spawn(async move { worker.work(Rng::with_seed(seed), orders).await });
    }
    while tasks.join_next().await.is_some() {}
    // What could not be given back is the TTL's to end, and then this worker has not stopped in order.
    let flushed = time::timeout(plan.op_timeout() * 4, worker.gate.flush()).await;
    if flushed.is_ok() {
        worker.log.write(Event::Stopped);
    }
    Ok(())
}

/// What is asked for permits.
enum Built {
    Semaphore(AdaptiveSemaphore),
    Valve(Valve),
}

impl Built {
    fn new(plan: &Plan, store: Shared, log: &Log) -> Result<Self, BuildError> {
        let log = log.clone();
        let on_error = move |trouble: &Trouble| {
            log.write(Event::Trouble { code: trouble.code().to_owned(), why: chain(trouble) });
        };
        match &plan.gate {
            Gate::Semaphore { initial, min, max } => {
                let mut builder = AdaptiveSemaphore::builder(plan.id.as_str(), *initial)
                    .min_limit(*min)
                    .max_limit(*max)
                    .aimd(plan.aimd())
                    .lease_ttl(plan.lease_ttl())
                    .op_timeout(plan.op_timeout())
                    .revision(plan.revision)
                    .on_error(on_error);
                if let Some(limit) = plan.fallback {
                    builder = builder.fallback_local(limit);
                }
                builder.build(store).map(Self::Semaphore)
            }
            Gate::Global { limit } => Self::valve(plan, &[], Some(*limit), store, on_error),
            Gate::Valve { rules, limit } => Self::valve(plan, rules, *limit, store, on_error),
        }
    }

    fn valve(
        plan: &Plan,
        rules: &[RulePlan],
        limit: Option<u32>,
        store: Shared,
        on_error: impl Fn(&Trouble) + Send + Sync + 'static,
    ) -> Result<Self, BuildError> {
        let mut builder = Valve::builder(plan.id.as_str())
            .lease_ttl(plan.lease_ttl())
            .op_timeout(plan.op_timeout())
            .revision(plan.revision)
            .on_error(on_error);
        if let Some(limit) = limit {
            builder = builder.concurrency(Concurrency::Global(limit));
        }
        if let Some(limit) = plan.fallback {
            builder = builder.fallback_local(limit);
        }
        rules.iter().fold(builder, |builder, rule| builder.rule(rule.rule())).build(store).map(Self::Valve)
    }

    async fn flush(&self) {
        match self {
            Self::Semaphore(semaphore) => semaphore.flush().await,
            Self::Valve(valve) => valve.flush().await,
        }
    }

    async fn acquire(&self, plan: &Plan, random: &mut Rng) -> Result<Taken, AcquireError> {
        let timeout = Duration::from_millis(plan.timeout_ms);
        match self {
            Self::Semaphore(semaphore) => semaphore.acquire(Acquire::within(timeout)).await.map(Taken::Lease),
            Self::Valve(valve) => {
                let mut job = Job::new().timeout(timeout).cost_each(plan.cost.pick(random));
                if let Gate::Valve { rules, .. } = &plan.gate {
                    let mut scopes: Vec<&str> =
                        rules.iter().filter_map(|rule| rule.scope.as_deref()).collect();
                    scopes.sort_unstable();
                    scopes.dedup();
                    for scope in scopes {
                        let identity = random.u32(0..plan.identities.max(1));
                        job = job.scope(scope, format!("{scope} {identity}"));
                    }
                }
                valve.acquire(job).await.map(Taken::Permit)
            }
        }
    }
}

/// A permit of either kind.
enum Taken {
    Lease(tidegate::Lease),
    Permit(Permit),
}

impl Taken {
    fn lease(&self) -> Option<Lease> {
        let token = match self {
            Self::Lease(lease) => lease.token(),
            Self::Permit(permit) => permit.token(),
        };
        token.map(Lease::from)
    }

    fn is_local(&self) -> bool {
        match self {
            Self::Lease(lease) => lease.is_local(),
            Self::Permit(permit) => permit.is_local(),
        }
    }

    fn limit(&self) -> Option<u32> {
        match self {
            Self::Lease(lease) => Some(lease.limit()),
            Self::Permit(_) => None,
        }
    }

    fn is_live(&self) -> bool {
        match self {
            Self::Lease(lease) => lease.is_live(),
            Self::Permit(permit) => permit.is_live(),
        }
    }

    async fn lost(&self) -> LeaseLost {
        match self {
            Self::Lease(lease) => lease.lost().await,
            Self::Permit(permit) => permit.lost().await,
        }
    }

    fn release(self, outcome: Outcome) {
        match self {
            Self::Lease(lease) => lease.release(outcome),
            Self::Permit(permit) => permit.release(outcome),
        }
    }
}

struct Worker {
    plan: Plan,
    gate: Built,
    watched: Arc<Watched>,
    log: Log,
    jobs: AtomicU64,
}

impl Worker {
    /// One task: a job after the other.
    async fn work(&self, mut random: Rng, mut orders: watch::Receiver<Order>) {
        loop {
            // A sender that is gone orders nothing any more.
            let Ok(order) = orders.wait_for(|order| *order != Order::Pause).await.map(|order| *order) else {
                return;
            };
            let job = self.jobs.fetch_add(1, Ordering::Relaxed);
            if order == Order::Stop || self.plan.jobs.is_some_and(|most| job >= most) {
                return;
            }
            let think = self.plan.think_ms.pick_duration(&mut random);
            if !think.is_zero() {
                let _ = time::timeout(think, stopped(&mut orders)).await;
            }
            self.job(job, &mut random, &mut orders).await;
        }
    }

    async fn job(&self, job: u64, random: &mut Rng, orders: &mut watch::Receiver<Order>) {
        self.log.write(Event::Called { job });
        let abandoned =
            (random.u32(0..100) < self.plan.abandon).then(|| self.plan.abandon_ms.pick_duration(random));
        let granted = {
            let mut acquire = pin!(self.gate.acquire(&self.plan, random));
            tokio::select! {
                biased;
                granted = &mut acquire => Some(granted),
                () = stopped(orders) => None,
                () = after(abandoned) => None,
            }
        };
        match granted {
            Some(Ok(taken)) => self.hold(job, taken, random, orders).await,
            Some(Err(error)) => self.refused(job, &error).await,
            None => self.not_granted(job, ("cancelled", String::new()), None, false),
        }
    }

    async fn refused(&self, job: u64, error: &AcquireError) {
        let (cause, local) = match error {
            AcquireError::Timeout { last, local, .. } => (Some(last.as_str()), *local),
            _ => (None, false),
        };
        self.not_granted(job, (error.code(), chain(error)), cause, local);
        // One who is refused at once would ask again at once.
        time::sleep(Duration::from_millis(5)).await;
    }

    fn not_granted(&self, job: u64, (code, why): (&str, String), cause: Option<&str>, local: bool) {
        let timeout = micros(Duration::from_millis(self.plan.timeout_ms));
        let cause = cause.map(str::to_owned);
        self.log.write(Event::Refused { job, code: code.to_owned(), why, cause, local, timeout });
    }

    /// Holds a permit, looks now and then whether it lives, and hands it back.
    async fn hold(&self, job: u64, taken: Taken, random: &mut Rng, orders: &mut watch::Receiver<Order>) {
        let lease = taken.lease();
        self.log.write(Event::Granted {
            job,
            lease,
            local: taken.is_local(),
            limit: taken.limit(),
            deadline: lease.and_then(|lease| self.watched.deadline(lease)),
        });
        let looks = (self.plan.lease_ttl() / 8).max(Duration::from_millis(1));
        let mut left = self.plan.hold_ms.pick_duration(random);
        let mut lost = false;
        loop {
            self.look(job, &taken);
            let part = left.min(looks);
            left = left.saturating_sub(part);
            tokio::select! {
                biased;
                _ = taken.lost(), if !lost => {
                    lost = true;
                    self.log.write(Event::Lost { job });
                }
                () = stopped(orders) => break,
                () = time::sleep(part) => {}
            }
            if left.is_zero() || lost {
                break;
            }
        }
        self.look(job, &taken);
        let outcome = self.plan.outcomes.pick(random);
        let named = outcome.map_or("dropped", Outcome::as_str);
        self.log.write(Event::Released { job, outcome: named.to_owned() });
        match outcome {
            Some(outcome) => taken.release(outcome),
            None => drop(taken),
        }
    }

    /// Writes down that a lease lives: the moment is taken before the look, so that it certainly says so then or later.
    fn look(&self, job: u64, taken: &Taken) {
        let at = clock::now();
        if taken.lease().is_some() && taken.is_live() {
            self.log.write_at(at, Event::Live { job });
        }
    }
}

/// What an error says, with its causes.
fn chain(error: &dyn Error) -> String {
    let mut said = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        said = format!("{said}: {error}");
        cause = error.source();
    }
    said
}

/// Completes when there is nothing more to be done.
async fn stopped(orders: &mut watch::Receiver<Order>) {
    // A sender that is gone orders nothing any more.
    let _ = orders.wait_for(|order| *order == Order::Stop).await;
}

/// Completes after a while, or never.
async fn after(length: Option<Duration>) {
    match length {
        Some(length) => time::sleep(length).await,
        None => std::future::pending().await,
    }
}
