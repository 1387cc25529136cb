//! The workers of one process: each calls a provider as fast as it is let, all bounded by one adaptive semaphore.

use std::future::IntoFuture as _;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use http_body_util::{BodyExt as _, Empty};
use hyper::body::Bytes;
use hyper::header::{HeaderMap, RETRY_AFTER};
use hyper::{StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use tidegate::{
    Acquire, AcquireError, AdaptiveSemaphore, Aimd, BuildError, CircuitBreaker, Consecutive, Constant,
    ExecuteError, Gated, Growth, HealthCheck, Lease, OnCancel, Outcome, OutcomeOnError, Position, Release,
    Store,
};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::audit::Held;
use super::circuit::Turn;
use super::fleet::{Answer, Call, Event, Setup, View, locked};
use super::lines::to_wall;
use super::store;
use crate::args::GrowthArg;

/// The highest limit that the fleet will ever try.
const MAX_LIMIT: u32 = 1_000;
/// Short, so that within a run the slots of a process that was killed are seen to come back.
pub(super) const LEASE_TTL: Duration = Duration::from_secs(5);
/// How long a worker waits for a lease before it counts that and asks again.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a worker rests after a call that failed, or a store that did not answer, so that neither is stormed.
const REST_AFTER_FAILURE: Duration = Duration::from_millis(100);
/// How long a store that is away is waited for at the end.
const FLUSH: Duration = Duration::from_secs(2);

/// The circuit opens after so many failures in a row, of the whole fleet.
const FAILURES: u32 = 5;
/// How long after an opening, or a check that failed, the next check comes.
const CHECK_EVERY: Duration = Duration::from_millis(500);
/// What a check takes at most.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);

/// Stands before the calls of a process.
pub(super) type Breaker = CircuitBreaker<Gated<AdaptiveSemaphore, OutcomeOnError<Refusal>>>;

/// Who is told what happens.
pub(super) type Sink = Arc<dyn Fn(Event) + Send + Sync>;

/// The workers of this process.
pub(super) struct Crew {
    semaphore: AdaptiveSemaphore,
    breaker: Option<Breaker>,
    phase: watch::Sender<Phase>,
    workers: JoinSet<()>,
    sink: Sink,
}

/// What the workers are to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Phase {
    /// Call on and on.
    Run,
    /// Finish the call that is under way, and stop.
    Finish,
    /// Stop now.
    Cut,
}

/// The semaphore of the fleet, the same in every process.
///
/// # Errors
///
/// The semaphore refused its options.
pub(super) fn semaphore(
    setup: &Setup,
    id: &str,
    store: impl Store,
    on_limit_change: impl Fn(u32) + Send + Sync + 'static,
) -> Result<AdaptiveSemaphore, BuildError> {
    AdaptiveSemaphore::builder(id, setup.initial)
        .min_limit(1)
        .max_limit(MAX_LIMIT)
        .lease_ttl(LEASE_TTL)
        .aimd(Aimd::default().window(setup.window).cooldown(setup.cooldown))
        .growth(match setup.growth {
            GrowthArg::Aimd => Growth::Additive,
            GrowthArg::SlowStart => Growth::SlowStart,
            GrowthArg::Probe => Growth::Probe,
        })
        .on_limit_change(on_limit_change)
        .build(store)
}

/// The breaker of a process, started, where the fleet has one.
///
/// # Errors
///
/// The breaker refused its options, or the store refused the breaker.
pub(super) async fn breaker(
    setup: &Setup,
    id: &str,
    store: impl Store,
    semaphore: &AdaptiveSemaphore,
    start: Instant,
    target: &Uri,
    sink: &Sink,
) -> anyhow::Result<Option<Breaker>> {
    let Some(wanted) = &setup.breaker else { return Ok(None) };
    let health = match &wanted.health {
        Some(path) => Uri::builder()
            .scheme("http")
            .authority(target.authority().map_or("", |authority| authority.as_str()))
            .path_and_query(path.as_str())
            .build()?,
        None => target.clone(),
    };
    let client = client(CHECK_TIMEOUT);
    let check = HealthCheck::new(Constant::every(CHECK_EVERY), move |_kind| {
        let (client, health) = (client.clone(), health.clone());
        async move {
            let (status, _) = exchange(&client, health).await?;
            if status.is_success() { Ok(()) } else { Err(anyhow::anyhow!("answered {status}")) }
        }
    });
    let sink = Arc::clone(sink);
    let origin = to_wall(start).duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let breaker = CircuitBreaker::builder(id)
        .strategy(Consecutive::new(FAILURES))
        .recovery(check.timeout(CHECK_TIMEOUT))
        .on_cancel(OnCancel::Ignore)
        // A failed check is no trouble here, but what is to be seen.
        .on_error(|_| {})
        .on_state_change(move |change| {
            let decided = Duration::from_micros(change.at.micros()).saturating_sub(origin);
            let seen = start.elapsed().max(decided);
            let (open, generation) = (change.to == Position::Open, change.generation);
            sink(Event::Circuit(Turn { open, generation, decided, seen }));
        })
        .semaphore(semaphore.clone(), |refusal: &Refusal| match refusal {
            Refusal::Throttled { rest: Some(rest) } => Release::throttled_for(*rest),
            Refusal::Throttled { rest: None } => Outcome::Throttled.into(),
            Refusal::Failed { .. } | Refusal::Cut => Outcome::Failure.into(),
        })
        .timeout(PATIENCE)
        .ignore_throttled()
        .build(store)?;
    breaker.start().await?;
    Ok(Some(breaker))
}

/// Why a call under a breaker was not served.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("throttled")]
    Throttled {
        /// How long the provider is left alone, where it asks for that.
        rest: Option<Duration>,
    },
    #[error("{why}")]
    Failed { why: String },
    #[error("cut")]
    Cut,
}

fn client(connect_timeout: Duration) -> Client<HttpConnector, Empty<Bytes>> {
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    connector.set_connect_timeout(Some(connect_timeout));
    Client::builder(TokioExecutor::new()).pool_timer(TokioTimer::new()).build(connector)
}

impl Crew {
    /// Lets workers call `target`. Moments are counted from `start`.
    pub(super) fn start(
        setup: &Setup,
        semaphore: AdaptiveSemaphore,
        breaker: Option<Breaker>,
        start: Instant,
        target: &Uri,
        sink: &Sink,
    ) -> Self {
        let client = client(setup.call_timeout);
        let phase = watch::Sender::new(Phase::Run);
        let mut workers = JoinSet::new();
        for _ in 0..setup.workers {
            let worker = Worker {
                semaphore: semaphore.clone(),
                breaker: breaker.clone(),
                client: client.clone(),
                target: target.clone(),
                sink: Arc::clone(sink),
                start,
                phase: phase.subscribe(),
                call_timeout: setup.call_timeout,
                run_for: setup.run_for,
            };
            workers.spawn(worker.run());
        }
        Self { semaphore, breaker, phase, workers, sink: Arc::clone(sink) }
    }

    /// How it stands, without what it has counted.
    pub(super) fn view(&self) -> View {
        view(&self.semaphore)
    }

    /// What the workers are told to do.
    pub(super) fn phase(&self) -> &watch::Sender<Phase> {
        &self.phase
    }

    /// Returns when all workers have stopped, which they do when told to.
    ///
    /// # Cancel safety
    ///
    /// Can be dropped and asked again.
    pub(super) async fn stopped(&mut self) {
        while let Some(done) = self.workers.join_next().await {
            if let Err(error) = done {
                (self.sink)(Event::Broken { why: error.to_string() });
            }
        }
    }

    /// Gives everything back to the store, as far as that answers.
    pub(super) async fn give_back(self) {
        if let Some(breaker) = &self.breaker {
            breaker.stop().await;
        }
        let _ = tokio::time::timeout(FLUSH, self.semaphore.flush()).await;
        self.semaphore.close().await;
    }
}

/// How the part of a fleet that uses `semaphore` stands.
pub(super) fn view(semaphore: &AdaptiveSemaphore) -> View {
    let state = semaphore.state();
    View { limit: state.limit, in_flight: state.in_flight, waiting: state.waiting, ..View::default() }
}

/// One worker.
struct Worker {
    semaphore: AdaptiveSemaphore,
    breaker: Option<Breaker>,
    client: Client<HttpConnector, Empty<Bytes>>,
    target: Uri,
    sink: Sink,
    start: Instant,
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
    async fn run(mut self) {
        while *self.phase.borrow() == Phase::Run {
            let asked = self.start.elapsed();
            if let Some(breaker) = self.breaker.clone() {
                match self.execute(&breaker, asked).await {
                    Next::Goes => {}
                    Next::Rests => self.rest().await,
                    Next::Ends => break,
                }
                continue;
            }
            let lease = tokio::select! {
                biased;
                () = reached(&mut self.phase, Phase::Finish) => break,
                lease = self.semaphore.acquire(Acquire::within(PATIENCE)) => lease,
            };
            let lease = match lease {
                Ok(lease) => lease,
                Err(AcquireError::Timeout { .. }) => {
                    (self.sink)(Event::Timeout);
                    continue;
                }
                Err(AcquireError::Unavailable { source, .. }) => {
                    (self.sink)(Event::Away { why: store::said(&source) });
                    self.rest().await;
                    continue;
                }
                Err(error) => {
                    (self.sink)(Event::Broken { why: format!("{:#}", anyhow::Error::from(error)) });
                    break;
                }
            };
            let call = self.call_with(lease, asked).await;
            (self.sink)(Event::Call(call));
            if call.answer == Answer::Failed {
                self.rest().await;
            }
        }
    }

    /// One call under the breaker, which gates it by the semaphore.
    async fn execute(&mut self, breaker: &Breaker, asked: Duration) -> Next {
        let worker = &*self;
        // What it held: the lease goes back before the breaker answers.
        let made: Mutex<Option<Made>> = Mutex::default();
        let call = breaker.execute_with(|holding| {
            let granted = worker.start.elapsed();
            let lease = holding.fence().map(|fence| Held {
                fence,
                limit: holding.limit(),
                granted,
                released: granted,
            });
            *locked(&made) = Some(Made { lease, granted, answered: granted });
            async {
                let holding = holding;
                let result = worker.refused_or_served().await;
                // Looked at first: a lease that was lost was held for certain at its grant only.
                let live = holding.is_live();
                if let Some(made) = &mut *locked(&made) {
                    made.answered = worker.start.elapsed();
                    if let Some(lease) = made.lease.as_mut().filter(|_| live) {
                        lease.released = made.answered;
                    }
                }
                result
            }
        });
        let mut phase = self.phase.clone();
        let result = tokio::select! {
            biased;
            () = reached(&mut phase, Phase::Finish), if locked(&made).is_none() => return Next::Ends,
            result = call.into_future() => result,
        };
        let (answer, next) = match result {
            Ok(()) => (Answer::Ok, Next::Goes),
            Err(ExecuteError::Call(Refusal::Throttled { .. })) => (Answer::Throttled, Next::Goes),
            Err(ExecuteError::Call(Refusal::Failed { why })) => {
                (self.sink)(Event::Failure { why });
                (Answer::Failed, Next::Rests)
            }
            Err(ExecuteError::Call(Refusal::Cut)) => (Answer::Cut, Next::Goes),
            Err(ExecuteError::CircuitOpen { .. }) => {
                (self.sink)(Event::Blocked);
                return Next::Rests;
            }
            Err(ExecuteError::Acquire(AcquireError::Timeout { .. })) => {
                (self.sink)(Event::Timeout);
                return Next::Goes;
            }
            Err(ExecuteError::Acquire(AcquireError::Unavailable { source, .. })) => {
                (self.sink)(Event::Away { why: store::said(&source) });
                return Next::Rests;
            }
            Err(error) => {
                (self.sink)(Event::Broken { why: format!("{:#}", anyhow::Error::from(error)) });
                return Next::Ends;
            }
        };
        let Some(Made { lease, granted, answered }) = locked(&made).take() else { return next };
        (self.sink)(Event::Call(Call { waited: granted.saturating_sub(asked), lease, answered, answer }));
        next
    }

    /// One call, as a breaker takes it.
    async fn refused_or_served(&self) -> Result<(), Refusal> {
        let mut phase = self.phase.clone();
        let reply = tokio::select! {
            biased;
            () = reached(&mut phase, Phase::Cut) => Reply::Cut,
            reply = self.call() => reply,
        };
        match reply {
            Reply::Ok => Ok(()),
            Reply::Throttled { retry_after } => {
                // Not past the end of the run.
                let left = self.run_for.saturating_sub(self.start.elapsed());
                let rest = retry_after.map(|rest| rest.min(left).max(Duration::from_millis(1)));
                Err(Refusal::Throttled { rest })
            }
            Reply::Failed { why } => Err(Refusal::Failed { why }),
            Reply::Cut => Err(Refusal::Cut),
        }
    }

    /// Does nothing for a moment, which the end of the run cuts short.
    async fn rest(&mut self) {
        tokio::select! {
            () = reached(&mut self.phase, Phase::Finish) => {}
            () = tokio::time::sleep(REST_AFTER_FAILURE) => {}
        }
    }

    /// One call under `lease`, which it gives back.
    async fn call_with(&self, lease: Lease, asked: Duration) -> Call {
        let granted = self.start.elapsed();
        let mut phase = self.phase.clone();
        let (fence, limit) = (lease.fence(), lease.limit());
        let reply = tokio::select! {
            biased;
            () = reached(&mut phase, Phase::Cut) => Reply::Cut,
            reply = self.call() => reply,
        };
        // A lease that was lost meanwhile, to a suspended machine, was held for certain at its grant only.
        let live = lease.is_live();
        let released = self.start.elapsed();
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
                (self.sink)(Event::Failure { why });
                Answer::Failed
            }
            Reply::Cut => {
                drop(lease);
                Answer::Cut
            }
        };
        let released_at = if live { released } else { granted };
        let lease = fence.map(|fence| Held { fence, limit, granted, released: released_at });
        Call { waited: granted.saturating_sub(asked), lease, answered: released, answer }
    }

    /// One call, to the last byte of its answer.
    async fn call(&self) -> Reply {
        match tokio::time::timeout(self.call_timeout, exchange(&self.client, self.target.clone())).await {
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
}

/// A call that was begun under the breaker.
struct Made {
    lease: Option<Held>,
    granted: Duration,
    answered: Duration,
}

/// What a worker does after a call.
enum Next {
    Goes,
    Rests,
    Ends,
}

async fn exchange(
    client: &Client<HttpConnector, Empty<Bytes>>,
    target: Uri,
) -> anyhow::Result<(StatusCode, HeaderMap)> {
    let (head, mut body) = client.get(target).await?.into_parts();
    while let Some(part) = body.frame().await {
        part?;
    }
    Ok((head.status, head.headers))
}

/// Returns when the phase is `phase` or a later one, or nobody is left to say so.
async fn reached(receiver: &mut watch::Receiver<Phase>, phase: Phase) {
    let _ = receiver.wait_for(|&now| now >= phase).await;
}

/// The `Retry-After` of an answer, where it is a number of seconds.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok().map(Duration::from_secs)
}
