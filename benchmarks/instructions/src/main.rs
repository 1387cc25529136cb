//! Runs one hot path a number of times, and nothing else: `tidegate-instructions PATH TIMES`. Without arguments it names
//! the paths, a line each.
//!
//! `scripts/instructions` runs each under callgrind with two numbers of times; the difference is what the path takes.

use std::{
    error::Error,
    future::{Future, IntoFuture},
    hint::black_box,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tidegate::{
    Acquire as Wait, AdaptiveSemaphore, CircuitBreaker, Consecutive, Constant, HealthCheck, Job as ValveJob,
    MemoryStore, Outcome, Rule, Valve,
};
use tidegate_core::{
    Acquire, AcquireRequest, Acquired, Bound, DriverId, Exchange, Id, IdModel, Job, Line, Member,
    OnSuperseded, Owner, Policy, Release, Sequence, Token,
    limit::{Aimd, Growth, LimitPolicy, LimitState},
    time::Moment,
};
use tokio::runtime::{self, Runtime};

type Done = Result<(), Box<dyn Error>>;
type Path = fn(&Runtime, u64) -> Done;

/// The names are those of the table that figures are compared with.
const PATHS: [(&str, Path); 8] = [
    ("semaphore-pair", semaphore_pair),
    ("valve-one-rule", |_, times| valve(1, times)),
    ("valve-four-rules", |_, times| valve(4, times)),
    ("valve-scoped-rule", valve_scoped),
    ("breaker-closed", breaker_closed),
    ("queue-of-64", queue_of_64),
    ("exchange-decision", exchange_decision),
    ("limit-on-release", limit_on_release),
];

const SECOND: Duration = Duration::from_secs(1);
/// More than is ever run.
const PLENTY: u64 = 1_000_000_000;

fn main() -> Done {
    let mut arguments = std::env::args().skip(1);
    let Some(name) = arguments.next() else {
        PATHS.iter().for_each(|(name, _)| println!("{name}"));
        return Ok(());
    };
    let times: u64 = arguments.next().ok_or("how many times?")?.parse()?;
    let (_, path) = PATHS.iter().find(|(known, _)| *known == name).ok_or("no path has that name")?;
    // A runtime that only runs while it is waited on, so that what goes on in the background is not counted too.
    let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
    let _entered = runtime.enter();
    path(&runtime, times)
}

/// On the memory store the first poll decides.
fn now<T>(future: impl Future<Output = T>) -> Result<T, &'static str> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Ok(value),
        Poll::Pending => Err("it had to wait"),
    }
}

fn semaphore_pair(_: &Runtime, times: u64) -> Done {
    let semaphore = AdaptiveSemaphore::builder("hot", 1_000).build(MemoryStore::new())?;
    for _ in 0..times {
        now(semaphore.try_acquire())??.release(Outcome::Success);
    }
    Ok(())
}

fn valve(rules: u32, times: u64) -> Done {
    let builder = (1..=rules).fold(Valve::builder("hot"), |builder, rule| {
        builder.rule(Rule::token_bucket(PLENTY, SECOND.saturating_mul(rule)))
    });
    let valve = builder.build(MemoryStore::new())?;
    for _ in 0..times {
        now(valve.try_acquire(ValveJob::new()))??.release(Outcome::Success);
    }
    Ok(())
}

fn valve_scoped(_: &Runtime, times: u64) -> Done {
    let rule = Rule::token_bucket(PLENTY, SECOND).scoped("tenant");
    let valve = Valve::builder("hot").rule(rule).build(MemoryStore::new())?;
    for _ in 0..times {
        now(valve.try_acquire(ValveJob::new().scope("tenant", "acme")))??.release(Outcome::Success);
    }
    Ok(())
}

fn breaker_closed(runtime: &Runtime, times: u64) -> Done {
    let check = HealthCheck::new(Constant::every(SECOND), |_| async { Ok::<(), String>(()) });
    let breaker = CircuitBreaker::builder("hot")
        .strategy(Consecutive::new(5))
        .recovery(check)
        .build(MemoryStore::new())?;
    runtime.block_on(breaker.start())?;
    for _ in 0..times {
        now(breaker.execute(|| async { Ok::<(), ()>(()) }).into_future())?
            .map_err(|_| "a closed circuit let a call fail")?;
    }
    Ok(())
}

/// 64 tasks of one runtime share one slot, so all but one of them wait: each release wakes the next in the line.
fn queue_of_64(runtime: &Runtime, times: u64) -> Done {
    const TASKS: u64 = 64;
    let semaphore = AdaptiveSemaphore::builder("hot", 1).max_limit(1).build(MemoryStore::new())?;
    runtime.block_on(async move {
        let tasks = (0..TASKS).map(|task| {
            let semaphore = semaphore.clone();
            let turns = times / TASKS + u64::from(task < times % TASKS);
            tokio::spawn(async move {
                for _ in 0..turns {
                    let lease = semaphore.acquire(Wait::within(SECOND * 3_600)).await?;
                    tokio::task::yield_now().await;
                    lease.release(Outcome::Success);
                }
                Ok::<(), tidegate::AcquireError>(())
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await??;
        }
        Ok(())
    })
}

/// One release and one acquire, numbered, as a driver sends them to a store that is far away.
fn exchange_decision(_: &Runtime, times: u64) -> Done {
    let limit = LimitPolicy::check(1, 1_000, &Aimd::new(), Duration::ZERO, Growth::Additive)?;
    let policy = Policy::draft().bound(Bound::Adaptive(limit)).rule(Rule::token_bucket(PLENTY, SECOND));
    let member = Member {
        id: Id::new("hot")?,
        driver: DriverId(1),
        owner: Owner::new("owner")?,
        policy: Arc::new(policy.check()?),
        on_superseded: OnSuperseded::Adopt,
        initial_limit: 1_000,
    };
    let request = AcquireRequest { class: None, jobs: vec![Job::default()], line: Line::default() };
    let mut exchange = Exchange { acquires: vec![Acquire::Prefix(request)], ..Exchange::default() };
    let mut model = IdModel::default();
    for number in 1..=times {
        exchange.sequence = Some(Sequence { number, not_after: None });
        let at = Moment::from_millis(PLENTY + number);
        let reply = model.exchange(at, &member, black_box(&exchange))?;
        let granted: Option<Token> = reply
            .body
            .acquired
            .iter()
            .flatten()
            .flat_map(Acquired::grants)
            .next()
            .and_then(|(_, grant)| grant.lease);
        let token = granted.ok_or("there was room, and nothing was granted")?;
        exchange.releases.clear();
        exchange.releases.push(Release { token, outcome: Outcome::Success, retry_after_ms: None });
    }
    Ok(())
}

/// What the controller of a limit does on each release while there is demand.
fn limit_on_release(_: &Runtime, times: u64) -> Done {
    let aimd = Aimd::new().tolerance(0.01);
    let policy = LimitPolicy::check(1, 1_000_000, &aimd, Duration::ZERO, Growth::Probe)?;
    let mut limit = LimitState::seed(&policy, 100, 0);
    for now_ms in 1..=times {
        limit.demand(now_ms);
        black_box(limit.success(black_box(&policy), black_box(now_ms)));
    }
    Ok(())
}
