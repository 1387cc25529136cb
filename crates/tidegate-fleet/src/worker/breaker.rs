//! A worker whose calls stand behind a circuit breaker.
//!
//! The dependency is down as long as a file is there: so whoever made the plan can let it fail for all processes at once.

use std::{
    error::Error,
    future::Future,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use fastrand::Rng;
use tidegate::{
    AdaptiveSemaphore, BreakerBuilder, CircuitBreaker, Consecutive, Constant, ExecuteError, Gated, HalfOpen,
    HealthCheck, OnCancel, Position, Role, Store, Trouble,
};
use tokio::{sync::watch, task::JoinSet, time};

use super::{
    Log, Order, chain,
    plan::{BreakerPlan, Plan, RecoveryPlan},
    stopped,
};
use crate::record::Event;

/// Calls as planned until it is ordered to stop.
///
/// # Errors
/// Where the breaker, or what gates it, cannot be built on this store, or the store refuses it.
pub(super) async fn run(
    plan: &Plan,
    breaker: &BreakerPlan,
    number: u32,
    store: Arc<dyn Store>,
    log: Log,
    mut orders: watch::Receiver<Order>,
) -> Result<(), Box<dyn Error + Send + Sync>> {
    let builder = builder(plan, breaker, &log);
    let caller = match breaker.limit {
        None => Caller::Plain(builder.build(Arc::clone(&store))?),
        Some(limit) => {
            let semaphore = AdaptiveSemaphore::builder(plan.id.as_str(), limit)
                .max_limit(limit)
                .lease_ttl(plan.lease_ttl())
                .op_timeout(plan.op_timeout())
                .build(Arc::clone(&store))?;
            let timeout = Duration::from_millis(plan.timeout_ms);
            Caller::Gated(builder.gate(semaphore).timeout(timeout).build(store)?)
        }
    };
    caller.start().await?;
    log.write(Event::Started { pid: std::process::id() });
    let worker = Arc::new(Worker {
        plan: plan.clone(),
        down: PathBuf::from(&breaker.down),
        caller,
        log,
        jobs: AtomicU64::new(0),
    });
    let mut tasks = JoinSet::new();
    for task in 0..plan.tasks {
        let random = Rng::with_seed(plan.seed ^ (u64::from(number) << 32) ^ u64::from(task));
        tasks.spawn(Arc::clone(&worker).work(random, orders.clone()));
    }
    while tasks.join_next().await.is_some() {}
    // One that only watches.
    stopped(&mut orders).await;
    worker.caller.stop().await;
    worker.log.write(Event::Stopped);
    Ok(())
}

fn builder(plan: &Plan, breaker: &BreakerPlan, log: &Log) -> BreakerBuilder {
    let backoff = Constant::every(Duration::from_millis(breaker.backoff_ms));
    let (changes, roles, troubles) = (log.clone(), log.clone(), log.clone());
    let builder = CircuitBreaker::builder(plan.id.as_str())
        .strategy(Consecutive::new(breaker.threshold))
        .op_timeout(plan.op_timeout())
        .revision(plan.revision)
        .leader_ttl(Duration::from_millis(breaker.leader_ttl_ms))
        .on_cancel(OnCancel::Ignore)
        .on_state_change(move |change| {
            changes.write(Event::Circuit {
                open: change.to == Position::Open,
                decided: change.at.micros(),
                generation: change.generation,
                why: format!("{:?}", change.why),
            });
        })
        .on_role_change(move |role| roles.write(Event::Role { leads: role == Role::Leader }))
        .on_error(move |trouble: &Trouble| {
            troubles.write(Event::Trouble { code: trouble.code().to_owned(), why: chain(trouble) });
        });
    match breaker.recovery {
        RecoveryPlan::HealthCheck { takes_ms } => {
            let (down, log) = (PathBuf::from(&breaker.down), log.clone());
            let check = HealthCheck::new(backoff, move |_| {
                let (down, log) = (down.clone(), log.clone());
                async move {
                    let mut checking = Checking { log, ok: None };
                    checking.log.write(Event::Checking);
                    time::sleep(Duration::from_millis(takes_ms)).await;
                    let up = is_up(&down);
                    checking.ok = Some(up);
                    if up { Ok(()) } else { Err("down") }
                }
            });
            builder.recovery(check.timeout(Duration::from_secs(60)))
        }
        RecoveryPlan::HalfOpen { permit_ttl_ms } => {
            let ttl = Duration::from_millis(permit_ttl_ms);
            builder.recovery(HalfOpen::new(backoff).permit_ttl(ttl))
        }
    }
}

fn is_up(down: &Path) -> bool {
    !down.exists()
}

/// Writes down how a check ends, also where it is dropped.
struct Checking {
    log: Log,
    ok: Option<bool>,
}

impl Drop for Checking {
    fn drop(&mut self) {
        self.log.write(Event::Checked { ok: self.ok });
    }
}

enum Caller {
    Plain(CircuitBreaker),
    Gated(CircuitBreaker<Gated<AdaptiveSemaphore>>),
}

impl Caller {
    async fn start(&self) -> Result<(), tidegate::StartError> {
        match self {
            Self::Plain(breaker) => breaker.start().await,
            Self::Gated(breaker) => breaker.start().await,
        }
    }

    async fn stop(&self) {
        match self {
            Self::Plain(breaker) => breaker.stop().await,
            Self::Gated(breaker) => breaker.stop().await,
        }
    }

    fn generation(&self) -> u64 {
        match self {
            Self::Plain(breaker) => breaker.state().generation,
            Self::Gated(breaker) => breaker.state().generation,
        }
    }

    async fn execute<F, Fut>(&self, call: F) -> Result<(), ExecuteError<&'static str>>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<(), &'static str>>,
    {
        match self {
            Self::Plain(breaker) => breaker.execute(call).await,
            Self::Gated(breaker) => breaker.execute(call).await,
        }
    }
}

struct Worker {
    plan: Plan,
    down: PathBuf,
    caller: Caller,
    log: Log,
    jobs: AtomicU64,
}

impl Worker {
    async fn work(self: Arc<Self>, mut random: Rng, orders: watch::Receiver<Order>) {
        let mut given = orders.clone();
        while *given.borrow_and_update() != Order::Stop {
            if *given.borrow() == Order::Pause {
                if given.changed().await.is_err() {
                    return;
                }
                continue;
            }
            let hold = self.plan.hold_ms.pick_duration(&mut random);
            let dropped = random.u32(0..100) < self.plan.abandon;
            let after = self.plan.abandon_ms.pick_duration(&mut random);
            let call = self.call(hold);
            if dropped {
                let _ = time::timeout(after, call).await;
            } else {
                call.await;
            }
            let think = self.plan.think_ms.pick_duration(&mut random);
            if !think.is_zero() {
                time::sleep(think).await;
            }
        }
    }

    async fn call(&self, hold: Duration) {
        let job = self.jobs.fetch_add(1, Ordering::Relaxed);
        let result = self
            .caller
            .execute(|| {
                self.log.write(Event::Begun { job, generation: self.caller.generation() });
                async move {
                    if !hold.is_zero() {
                        time::sleep(hold).await;
                    }
                    let up = is_up(&self.down);
                    self.log.write(Event::Ended { job, failed: !up });
                    if up { Ok(()) } else { Err("down") }
                }
            })
            .await;
        match result {
            Ok(()) | Err(ExecuteError::Call(_)) => {}
            Err(ExecuteError::CircuitOpen { .. }) => {
                self.log.write(Event::Blocked { job });
                // As a caller would, that has another answer.
                time::sleep(Duration::from_millis(5)).await;
            }
            Err(error) => {
                let (code, why) = (error.code().to_owned(), error.to_string());
                self.log.write(Event::Trouble { code, why });
                time::sleep(Duration::from_millis(5)).await;
            }
        }
    }
}
