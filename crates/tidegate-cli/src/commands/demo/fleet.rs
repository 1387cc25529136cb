//! The fleet: workers that call a provider as fast as they are let, all bounded by one adaptive semaphore.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper::header::{HeaderMap, RETRY_AFTER};
use hyper::{StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tidegate::{
    Acquire, AcquireError, AdaptiveSemaphore, Aimd, Growth, Id, Lease, MemoryStore, Operators as _, Outcome,
    Release,
};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::audit::Held;
use crate::args::GrowthArg;

/// The id of the provider in the store.
const ID: &str = "demo-provider";
/// The highest limit that the fleet will ever try.
const MAX_LIMIT: u32 = 1_000;
/// How long a worker waits for a lease before it counts that and asks again.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a worker rests after a call that failed, so that a provider that is down is not stormed.
const REST_AFTER_FAILURE: Duration = Duration::from_millis(100);
/// How long the store may take until it has all leases back.
const GIVE_BACK: Duration = Duration::from_secs(5);
/// Throttled calls closer together than this are one mark.
const THROTTLES_APART: Duration = Duration::from_millis(10);

/// How a fleet is set up.
#[derive(Debug, Clone)]
pub(super) struct Setup {
    pub(super) workers: u32,
    pub(super) initial: u32,
    pub(super) growth: GrowthArg,
    pub(super) window: Duration,
    pub(super) cooldown: Duration,
    /// What a call takes at most; a call that takes longer has failed.
    pub(super) call_timeout: Duration,
    /// How long the fleet calls.
    pub(super) run_for: Duration,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Answer {
    /// Answered 2xx.
    Ok,
    /// Answered 429 or 503.
    Throttled,
    /// Anything else.
    Failed,
    /// Given up at the end of the run, before an answer.
    Cut,
}

/// One call. Moments are counted from the start.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call {
    /// How long its worker waited for the lease.
    pub(super) waited: Duration,
    /// The lease it held.
    pub(super) lease: Option<Held>,
    /// When it was answered.
    pub(super) answered: Duration,
    pub(super) answer: Answer,
}

/// The fleet as it stands.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct View {
    pub(super) limit: u32,
    pub(super) in_flight: u32,
    pub(super) waiting: u32,
    pub(super) ok: u64,
    pub(super) throttled: u64,
    pub(super) failed: u64,
}

/// What a fleet leaves behind.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) calls: Vec<Call>,
    /// How often a worker got no lease in time.
    pub(super) timeouts: u64,
    /// Leases that the store still holds.
    pub(super) leases_left: u32,
    /// Why a call failed, of the last one that did.
    pub(super) last_failure: Option<String>,
}

/// A running fleet.
pub(super) struct Fleet {
    store: MemoryStore,
    semaphore: AdaptiveSemaphore,
    log: Arc<Log>,
    phase: watch::Sender<Phase>,
    workers: JoinSet<Vec<Call>>,
}

/// What the workers are to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    /// Call on and on.
    Run,
    /// Finish the call that is under way, and stop.
    Finish,
    /// Stop now.
    Cut,
}

impl Fleet {
    /// A fleet without workers yet. Moments are counted from `start`.
    ///
    /// # Errors
    ///
    /// The semaphore refused its options.
    pub(super) fn new(setup: &Setup, start: Instant) -> anyhow::Result<Self> {
        let log = Arc::new(Log::new(start, setup.initial));
        let history = Arc::clone(&log);
        let store = MemoryStore::new();
        let semaphore = AdaptiveSemaphore::builder(ID, setup.initial)
            .min_limit(1)
            .max_limit(MAX_LIMIT)
            .aimd(Aimd::default().window(setup.window).cooldown(setup.cooldown))
            .growth(match setup.growth {
                GrowthArg::Aimd => Growth::Additive,
                GrowthArg::SlowStart => Growth::SlowStart,
                GrowthArg::Probe => Growth::Probe,
            })
            .on_limit_change(move |limit: u32| history.limit(limit))
            .build(store.clone())?;
        Ok(Self { store, semaphore, log, phase: watch::Sender::new(Phase::Run), workers: JoinSet::new() })
    }

    /// Lets the workers call `target`.
    pub(super) fn call(&mut self, setup: &Setup, target: &Uri) {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(setup.call_timeout));
        let client = Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector);
        for _ in 0..setup.workers {
            let worker = Worker {
                semaphore: self.semaphore.clone(),
                client: client.clone(),
                target: target.clone(),
                log: Arc::clone(&self.log),
                phase: self.phase.subscribe(),
                call_timeout: setup.call_timeout,
                run_for: setup.run_for,
            };
            self.workers.spawn(worker.run());
        }
    }

    /// How it stands.
    pub(super) fn view(&self) -> View {
        let state = self.semaphore.state();
        View {
            limit: state.limit,
            in_flight: state.in_flight,
            waiting: state.waiting,
            ok: self.log.ok.load(Ordering::Relaxed),
            throttled: self.log.throttled.load(Ordering::Relaxed),
            failed: self.log.failed.load(Ordering::Relaxed),
        }
    }

    /// What happened to the limit, and when calls were throttled.
    pub(super) fn log(&self) -> &Arc<Log> {
        &self.log
    }

    /// Ends it: no new calls, `grace` for those under way, then everything goes back to the store.
    ///
    /// # Errors
    ///
    /// A worker stopped before the end, or the store did not say what it holds.
    pub(super) async fn end(mut self, grace: Duration) -> anyhow::Result<Ended> {
        self.phase.send_replace(Phase::Finish);
        let mut calls = Vec::new();
        let cut = tokio::time::sleep(grace);
        tokio::pin!(cut);
        loop {
            tokio::select! {
                done = self.workers.join_next() => match done {
                    Some(Ok(of_one)) => calls.extend(of_one),
                    Some(Err(error)) => self.log.broken(error.to_string()),
                    None => break,
                },
                () = &mut cut, if *self.phase.borrow() == Phase::Finish => {
                    self.phase.send_replace(Phase::Cut);
                }
            }
        }
        self.semaphore.flush().await;
        self.semaphore.close().await;
        if let Some(why) = locked(&self.log.broken).take() {
            bail!("a worker stopped: {why}");
        }
        Ok(Ended {
            calls,
            timeouts: self.log.timeouts.load(Ordering::Relaxed),
            leases_left: all_back(&self.store).await?,
            last_failure: locked(&self.log.last_failure).take(),
        })
    }
}

/// How many leases the store still holds, once none is left or it had its time. The slot of a throttled call
/// rests before it is free again.
async fn all_back(store: &MemoryStore) -> anyhow::Result<u32> {
    let id = Id::new(ID)?;
    let until = Instant::now() + GIVE_BACK;
    loop {
        let left = leases_left(store, &id).await?;
        if left == 0 || Instant::now() >= until {
            return Ok(left);
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// How many leases of `id` the store holds now, those that rest too.
async fn leases_left(store: &MemoryStore, id: &Id) -> anyhow::Result<u32> {
    let snapshot = store.snapshot(id).await.context("the store did not say what it holds")?;
    Ok(snapshot.body.map_or(0, |snapshot| snapshot.held))
}

/// What the fleet writes down while it runs.
pub(super) struct Log {
    start: Instant,
    limits: Mutex<Vec<(Duration, u32)>>,
    throttles: Mutex<Vec<Duration>>,
    ok: AtomicU64,
    throttled: AtomicU64,
    failed: AtomicU64,
    timeouts: AtomicU64,
    last_failure: Mutex<Option<String>>,
    /// Why a worker stopped before the end.
    broken: Mutex<Option<String>>,
}

/// What is written by one statement is whole, so a panic elsewhere has not torn it.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Log {
    fn new(start: Instant, initial: u32) -> Self {
        Self {
            start,
            limits: Mutex::new(vec![(Duration::ZERO, initial)]),
            throttles: Mutex::default(),
            ok: AtomicU64::new(0),
            throttled: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            timeouts: AtomicU64::new(0),
            last_failure: Mutex::default(),
            broken: Mutex::default(),
        }
    }

    /// The limits with the moments that each began.
    pub(super) fn limits(&self) -> Vec<(Duration, u32)> {
        locked(&self.limits).clone()
    }

    /// When calls were throttled, as far as moments can be told apart in a picture.
    pub(super) fn throttles(&self) -> Vec<Duration> {
        locked(&self.throttles).clone()
    }

    fn now(&self) -> Duration {
        self.start.elapsed()
    }

    fn limit(&self, limit: u32) {
        let mut limits = locked(&self.limits);
        limits.push((self.now(), limit));
    }

    fn answer(&self, answer: Answer, at: Duration) {
        let counter = match answer {
            Answer::Ok => &self.ok,
            Answer::Throttled => {
                let mut throttles = locked(&self.throttles);
                if throttles.last().is_none_or(|&last| at >= last + THROTTLES_APART) {
                    throttles.push(at);
                }
                &self.throttled
            }
            Answer::Failed => &self.failed,
            Answer::Cut => return,
        };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    fn failure(&self, why: String) {
        *locked(&self.last_failure) = Some(why);
    }

    fn broken(&self, why: String) {
        *locked(&self.broken) = Some(why);
    }
}

/// One worker.
struct Worker {
    semaphore: AdaptiveSemaphore,
    client: Client<HttpConnector, Empty<Bytes>>,
    target: Uri,
    log: Arc<Log>,
    phase: watch::Receiver<Phase>,
    call_timeout: Duration,
    run_for: Duration,
}

/// What came back from the provider.
enum Reply {
    Ok,
    Throttled { retry_after: Option<Duration> },
    Failed { why: String },
    Cut,
}

impl Worker {
    /// Calls until told to stop, and says what became of every call.
    async fn run(mut self) -> Vec<Call> {
        let mut calls = Vec::new();
        while *self.phase.borrow() == Phase::Run {
            let asked = self.log.now();
            let lease = tokio::select! {
                biased;
                () = reached(&mut self.phase, Phase::Finish) => break,
                lease = self.semaphore.acquire(Acquire::within(PATIENCE)) => lease,
            };
            let lease = match lease {
                Ok(lease) => lease,
                Err(AcquireError::Timeout { .. }) => {
                    self.log.timeouts.fetch_add(1, Ordering::Relaxed);
                    continue;
                }
                Err(error) => {
                    self.log.broken(format!("{:#}", anyhow::Error::from(error)));
                    break;
                }
            };
            calls.push(self.call_with(lease, asked).await);
        }
        calls
    }

    /// One call under `lease`, which it gives back.
    async fn call_with(&self, lease: Lease, asked: Duration) -> Call {
        let granted = self.log.now();
        let mut phase = self.phase.clone();
        let (fence, limit) = (lease.fence(), lease.limit());
        let reply = tokio::select! {
            biased;
            () = reached(&mut phase, Phase::Cut) => Reply::Cut,
            reply = self.call() => reply,
        };
        // A lease that was lost meanwhile, to a suspended machine, was held for certain at its grant only.
        let live = lease.is_live();
        let released = self.log.now();
        let answer = match reply {
            Reply::Ok => {
                lease.release(Outcome::Success);
                Answer::Ok
            }
            Reply::Throttled { retry_after: None } => {
                lease.release(Outcome::Throttled);
                Answer::Throttled
            }
            Reply::Throttled { retry_after: Some(rest) } => {
                // The slot rests as long as the provider asks (the semaphore caps that at its cooldown), but not
                // past the end of the run.
                let left = self.run_for.saturating_sub(released);
                lease.release(Release::throttled_for(rest.min(left).max(Duration::from_millis(1))));
                Answer::Throttled
            }
            Reply::Failed { why } => {
                lease.release(Outcome::Failure);
                self.log.failure(why);
                Answer::Failed
            }
            Reply::Cut => {
                drop(lease);
                Answer::Cut
            }
        };
        self.log.answer(answer, released);
        if answer == Answer::Failed {
            tokio::select! {
                () = reached(&mut phase, Phase::Finish) => {}
                () = tokio::time::sleep(REST_AFTER_FAILURE) => {}
            }
        }
        let released_at = if live { released } else { granted };
        let lease = fence.map(|fence| Held { fence, limit, granted, released: released_at });
        Call { waited: granted.saturating_sub(asked), lease, answered: released, answer }
    }

    /// One call, to the last byte of its answer.
    async fn call(&self) -> Reply {
        match tokio::time::timeout(self.call_timeout, self.exchange()).await {
            Ok(Ok((status, _))) if status.is_success() => Reply::Ok,
            Ok(Ok((StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE, headers))) => {
                Reply::Throttled { retry_after: retry_after(&headers) }
            }
            Ok(Ok((status, _))) => Reply::Failed { why: format!("answered {status}") },
            Ok(Err(error)) => Reply::Failed { why: format!("{error:#}") },
            Err(_) => {
                let limit = humantime::format_duration(self.call_timeout);
                Reply::Failed { why: format!("no answer within {limit}") }
            }
        }
    }

    async fn exchange(&self) -> anyhow::Result<(StatusCode, HeaderMap)> {
        let (head, mut body) = self.client.get(self.target.clone()).await?.into_parts();
        while let Some(part) = body.frame().await {
            part?;
        }
        Ok((head.status, head.headers))
    }
}

/// Returns when the phase is `phase` or a later one, or nobody is left to say so.
async fn reached(receiver: &mut watch::Receiver<Phase>, phase: Phase) {
    let _ = receiver.wait_for(|&now| now >= phase).await;
}

/// The `Retry-After` of an answer, where it is a number of seconds.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}
