//! The fleet: workers that call a provider as fast as they are let, all bounded by one adaptive semaphore. They are in
//! this process, on a store in its memory; or in processes of their own, on a store that these share.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::bail;
use hyper::Uri;
use serde::{Deserialize, Serialize};
use tidegate::MemoryStore;

use super::audit::Held;
use super::circuit::{self, Turn};
use super::crew::{self, Crew, Phase, Sink};
use super::processes::Processes;
use super::store::{self, Place};
use crate::args::GrowthArg;

/// Throttled calls closer together than this are one mark.
const THROTTLES_APART: Duration = Duration::from_millis(10);

/// How a fleet is set up.
#[derive(Debug, Clone, Serialize, Deserialize)]
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
    /// Whether a circuit breaker stands before the calls.
    pub(super) breaker: Option<BreakerSetup>,
}

/// How a breaker is set up.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct BreakerSetup {
    /// The path under which the provider says whether it works; what is called, where there is none.
    pub(super) health: Option<String>,
}

/// How a call ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Call {
    /// How long its worker waited for the lease.
    pub(super) waited: Duration,
    /// The lease it held.
    pub(super) lease: Option<Held>,
    /// When it was answered.
    pub(super) answered: Duration,
    pub(super) answer: Answer,
}

/// What happens in a fleet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Event {
    Call(Call),
    Limit {
        at: Duration,
        limit: u32,
    },
    /// A process saw the circuit change.
    Circuit(Turn),
    /// A call was blocked by the circuit.
    Blocked,
    /// A worker got no lease in time.
    Timeout,
    /// A call failed.
    Failure {
        why: String,
    },
    /// The store did not answer a worker.
    Away {
        why: String,
    },
    /// A worker stopped before the end.
    Broken {
        why: String,
    },
    /// A process ended before the end.
    Lost {
        why: String,
    },
}

/// The fleet as it stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct View {
    pub(super) limit: u32,
    pub(super) in_flight: u32,
    pub(super) waiting: u32,
    pub(super) ok: u64,
    pub(super) throttled: u64,
    pub(super) failed: u64,
    /// Calls that the circuit blocked, and whether it is open; nothing of both without a breaker.
    #[serde(default)]
    pub(super) blocked: u64,
    #[serde(default)]
    pub(super) open: bool,
}

/// What a fleet leaves behind.
#[derive(Debug)]
pub(super) struct Ended {
    pub(super) processes: u32,
    pub(super) calls: Vec<Call>,
    /// How often a worker got no lease in time.
    pub(super) timeouts: u64,
    /// What the circuit came to, where there is one.
    pub(super) circuit: Option<circuit::Outcome>,
    /// Leases that the store still holds, or why it did not say so.
    pub(super) leases_left: Result<u32, String>,
    /// Why a call failed, of the last one that did.
    pub(super) last_failure: Option<String>,
    /// How often the store did not answer a worker, and why the last time.
    pub(super) away: Option<(u64, String)>,
    /// Why processes ended early.
    pub(super) lost: Vec<String>,
}

/// A running fleet.
pub(super) struct Fleet {
    log: Arc<Log>,
    id: String,
    rooms: Rooms,
    breaks: bool,
}

/// Where the workers are.
enum Rooms {
    Here { store: MemoryStore, crew: Option<Crew> },
    Apart(Box<Processes>),
}

impl Fleet {
    /// A fleet without workers yet. What it shares is under an id of its own, so that fleets do not meet.
    ///
    /// # Errors
    ///
    /// The store cannot be reached, or a process did not start.
    pub(super) async fn open(place: &Place, processes: u32, setup: &Setup) -> anyhow::Result<Self> {
        let id = format!("demo-{:016x}", fastrand::u64(..));
        let rooms = match place {
            Place::Memory => Rooms::Here { store: MemoryStore::new(), crew: None },
            Place::Redis(url) => Rooms::Apart(Box::new(Processes::open(url, &id, processes).await?)),
        };
        let breaks = setup.breaker.is_some();
        Ok(Self { log: Arc::new(Log::new(setup.initial)), id, rooms, breaks })
    }

    /// The processes that the workers are in, where those are not this one.
    pub(super) fn pids(&self) -> &[u32] {
        match &self.rooms {
            Rooms::Here { .. } => &[],
            Rooms::Apart(processes) => processes.pids(),
        }
    }

    /// Lets the workers call `target`. Moments are counted from `start`.
    ///
    /// # Errors
    ///
    /// The semaphore refused its options.
    pub(super) async fn call(&mut self, setup: &Setup, start: Instant, target: &Uri) -> anyhow::Result<()> {
        match &mut self.rooms {
            Rooms::Here { store, crew } => {
                let log = Arc::clone(&self.log);
                let sink: Sink = Arc::new(move |event| log.take(event));
                let told = Arc::clone(&sink);
                let semaphore = crew::semaphore(setup, &self.id, store.clone(), move |limit| {
                    told(Event::Limit { at: start.elapsed(), limit });
                })?;
                let breaker =
                    crew::breaker(setup, &self.id, store.clone(), &semaphore, start, target, &sink).await?;
                *crew = Some(Crew::start(setup, semaphore, breaker, start, target, &sink));
            }
            Rooms::Apart(processes) => processes.call(setup, start, target, &self.log).await?,
        }
        Ok(())
    }

    /// How it stands.
    pub(super) fn view(&self) -> View {
        let view = match &self.rooms {
            Rooms::Here { crew, .. } => crew.as_ref().map(Crew::view).unwrap_or_default(),
            Rooms::Apart(processes) => processes.view(),
        };
        View {
            ok: self.log.ok.load(Ordering::Relaxed),
            throttled: self.log.throttled.load(Ordering::Relaxed),
            failed: self.log.failed.load(Ordering::Relaxed),
            blocked: self.log.blocked.load(Ordering::Relaxed),
            open: self.breaks && self.log.is_open(),
            ..view
        }
    }

    /// Whether a breaker stands before its calls.
    pub(super) const fn breaks(&self) -> bool {
        self.breaks
    }

    /// Whether nobody is left to call.
    pub(super) fn is_over(&self) -> bool {
        match &self.rooms {
            Rooms::Here { .. } => false,
            Rooms::Apart(processes) => processes.are_over(),
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
    /// A worker stopped before the end.
    pub(super) async fn end(self, grace: Duration) -> anyhow::Result<Ended> {
        let log = self.log;
        let (processes, leases_left) = match self.rooms {
            Rooms::Here { store, crew } => {
                if let Some(crew) = crew {
                    end_here(crew, grace).await;
                }
                (1, store::all_back(&store, &self.id).await)
            }
            Rooms::Apart(processes) => processes.end(grace, &log).await,
        };
        if let Some(why) = locked(&log.broken).take() {
            bail!("a worker stopped: {why}");
        }
        let calls = std::mem::take(&mut *locked(&log.calls));
        let circuit = self
            .breaks
            .then(|| circuit::Outcome::new(log.blocked.load(Ordering::Relaxed), &locked(&log.turns), &calls));
        let away = locked(&log.last_away).take().map(|why| (log.away.load(Ordering::Relaxed), why));
        Ok(Ended {
            processes,
            calls,
            timeouts: log.timeouts.load(Ordering::Relaxed),
            circuit,
            leases_left,
            last_failure: locked(&log.last_failure).take(),
            away,
            lost: std::mem::take(&mut *locked(&log.lost)),
        })
    }
}

async fn end_here(mut crew: Crew, grace: Duration) {
    crew.phase().send_replace(Phase::Finish);
    if tokio::time::timeout(grace, crew.stopped()).await.is_err() {
        crew.phase().send_replace(Phase::Cut);
        crew.stopped().await;
    }
    crew.give_back().await;
}

/// What is written down while a fleet runs.
pub(super) struct Log {
    limits: Mutex<Vec<(Duration, u32)>>,
    throttles: Mutex<Vec<Duration>>,
    calls: Mutex<Vec<Call>>,
    turns: Mutex<Vec<Turn>>,
    blocked: AtomicU64,
    ok: AtomicU64,
    throttled: AtomicU64,
    failed: AtomicU64,
    timeouts: AtomicU64,
    away: AtomicU64,
    last_failure: Mutex<Option<String>>,
    last_away: Mutex<Option<String>>,
    broken: Mutex<Option<String>>,
    lost: Mutex<Vec<String>>,
}

/// What is written by one statement is whole, so a panic elsewhere has not torn it.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Log {
    fn new(initial: u32) -> Self {
        Self {
            limits: Mutex::new(vec![(Duration::ZERO, initial)]),
            throttles: Mutex::default(),
            calls: Mutex::default(),
            turns: Mutex::default(),
            blocked: AtomicU64::new(0),
            ok: AtomicU64::new(0),
            throttled: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            timeouts: AtomicU64::new(0),
            away: AtomicU64::new(0),
            last_failure: Mutex::default(),
            last_away: Mutex::default(),
            broken: Mutex::default(),
            lost: Mutex::default(),
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

    /// When the circuit was open, up to `end`.
    pub(super) fn open(&self, end: Duration) -> Vec<(Duration, Duration)> {
        let openings = circuit::openings(&locked(&self.turns));
        openings.iter().map(|opening| (opening.from, opening.to.unwrap_or(end).min(end))).collect()
    }

    fn is_open(&self) -> bool {
        circuit::openings(&locked(&self.turns)).last().is_some_and(|opening| opening.to.is_none())
    }

    /// Writes down what happened.
    pub(super) fn take(&self, event: Event) {
        let one_more = |counter: &AtomicU64| {
            counter.fetch_add(1, Ordering::Relaxed);
        };
        match event {
            Event::Call(call) => {
                match call.answer {
                    Answer::Ok => one_more(&self.ok),
                    Answer::Throttled => {
                        self.throttle(call.answered);
                        one_more(&self.throttled);
                    }
                    Answer::Failed => one_more(&self.failed),
                    Answer::Cut => {}
                }
                locked(&self.calls).push(call);
            }
            Event::Limit { at, limit } => locked(&self.limits).push((at, limit)),
            Event::Circuit(turn) => locked(&self.turns).push(turn),
            Event::Blocked => one_more(&self.blocked),
            Event::Timeout => one_more(&self.timeouts),
            Event::Failure { why } => *locked(&self.last_failure) = Some(why),
            Event::Away { why } => {
                one_more(&self.away);
                *locked(&self.last_away) = Some(why);
            }
            Event::Broken { why } => *locked(&self.broken) = Some(why),
            Event::Lost { why } => locked(&self.lost).push(why),
        }
    }

    fn throttle(&self, at: Duration) {
        let mut throttles = locked(&self.throttles);
        if throttles.last().is_none_or(|&last| at >= last + THROTTLES_APART) {
            throttles.push(at);
        }
    }
}
