//! What one operation costs within one process, on the memory store and in the in-process peers.

use std::{
    future::{Future, IntoFuture},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    task::{Context, Poll, Waker},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, anyhow};
use tidegate::{
    AdaptiveSemaphore, CircuitBreaker, Consecutive, Constant, HealthCheck, Job, MemoryStore, Outcome, Rule,
    Valve,
};
use tidegate_benchmarks_peers as peers;

use super::Suite;
use crate::{
    contender::Counted,
    figure::{Bound, Report},
    stats::median,
};

const SECOND: Duration = Duration::from_secs(1);
const PLENTY: u64 = 1_000_000_000;
const KEYS: usize = 10_000;

/// On the memory store the first poll decides.
fn now<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}

/// One operation, which says whether it was admitted.
type Work = Box<dyn FnMut() -> bool + Send>;

/// Makes the same work for another thread.
type Make = Box<dyn Fn() -> Work + Send>;

struct Candidate {
    name: String,
    /// What one thread may take, and what two may, contended.
    most: Option<(f64, f64)>,
    id: &'static str,
    make: Make,
}

fn candidate<F>(name: &str, id: &'static str, most: Option<(f64, f64)>, work: F) -> Candidate
where
    F: FnMut() -> bool + Clone + Send + 'static,
{
    Candidate { name: name.to_owned(), most, id, make: Box::new(move || Box::new(work.clone())) }
}

fn peer(name: &str, work: impl Fn() + Clone + Send + 'static) -> Candidate {
    candidate(name, "", None, move || {
        work();
        true
    })
}

fn valve(rules: u32) -> Result<impl FnMut() -> bool + Clone + Send + 'static> {
    let mut builder = Valve::builder("bench");
    for rule in 1..=rules {
        builder = builder.rule(Rule::token_bucket(PLENTY, SECOND * rule));
    }
    let valve = builder.build(MemoryStore::new())?;
    Ok(move || {
        now(valve.try_acquire(Job::new()))
            .is_some_and(|permit| permit.map(|permit| permit.release(Outcome::Success)).is_ok())
    })
}

fn keyed() -> Result<impl FnMut() -> bool + Clone + Send + 'static> {
    let rule = Rule::token_bucket(PLENTY, SECOND).scoped("tenant");
    let valve = Valve::builder("bench").rule(rule).build(MemoryStore::new())?;
    let keys: Arc<[String]> = (0..KEYS).map(|key| format!("tenant-{key}")).collect();
    let mut next = 0;
    Ok(move || {
        next = (next + 1) % keys.len();
        let job = Job::new().scope("tenant", &*keys[next]);
        now(valve.try_acquire(job))
            .is_some_and(|permit| permit.map(|permit| permit.release(Outcome::Success)).is_ok())
    })
}

async fn candidates() -> Result<Vec<Candidate>> {
    let semaphore = AdaptiveSemaphore::builder("bench", 1_000).build(MemoryStore::new())?;
    let breaker = CircuitBreaker::builder("bench")
        .strategy(Consecutive::new(5))
        .recovery(HealthCheck::new(Constant::every(SECOND), |_| async { Ok::<(), String>(()) }))
        .build(MemoryStore::new())?;
    breaker.start().await?;
    let pair = move || {
        now(semaphore.try_acquire())
            .is_some_and(|lease| lease.map(|lease| lease.release(Outcome::Success)).is_ok())
    };
    let execute = move || {
        now(breaker.execute(|| async { Ok::<(), ()>(()) }).into_future()).is_some_and(|done| done.is_ok())
    };
    Ok(vec![
        candidate("semaphore pair", "T10", Some((100.0, 500.0)), pair),
        peer("tokio::sync::Semaphore", peers::tokio_semaphore()),
        peer("tower-resilience bulkhead", peers::tower_resilience_bulkhead()),
        candidate("valve, one rule", "T10", Some((100.0, 500.0)), valve(1)?),
        candidate("valve, four rules", "T10", Some((250.0, 500.0)), valve(4)?),
        candidate("valve, one rule with 10,000 identities", "", None, keyed()?),
        peer("governor", peers::governor()),
        peer("governor, 10,000 keys", peers::governor_keyed(KEYS)),
        peer("tower-resilience rate limiter", peers::tower_resilience_ratelimit()),
        candidate("breaker, execute while closed", "T11", Some((150.0, 500.0)), execute),
        peer("recloser", peers::recloser()),
        peer("failsafe", peers::failsafe()),
        peer("tower-resilience circuit breaker", peers::tower_resilience_circuit_breaker()),
    ])
}

/// How long one candidate is measured in one round.
const TURN: Duration = Duration::from_millis(120);

/// Nanoseconds of one operation: the median of batches of a tenth of a millisecond or more.
fn nanos(work: &mut Work) -> Result<f64> {
    let end = Instant::now() + TURN;
    let mut size = 16_u32;
    let mut times = Vec::new();
    while times.is_empty() || Instant::now() < end {
        let start = Instant::now();
        batch(work, size)?;
        let took = start.elapsed();
        if took < Duration::from_micros(100) {
            size *= 2;
        } else {
            times.push(took.as_secs_f64() * 1e9 / f64::from(size));
        }
    }
    Ok(median(&times))
}

fn batch(work: &mut Work, size: u32) -> Result<()> {
    let mut admitted = true;
    for _ in 0..size {
        admitted &= work();
    }
    admitted.then_some(()).context("it was to be admitted")
}

/// The same while another thread does it all the time.
fn contended(candidate: &Candidate) -> Result<f64> {
    let stop = Arc::new(AtomicBool::new(false));
    let mut other = (candidate.make)();
    let stops = Arc::clone(&stop);
    let thread = std::thread::spawn(move || {
        while !stops.load(Relaxed) {
            other();
        }
    });
    let result = nanos(&mut (candidate.make)());
    stop.store(true, Relaxed);
    let _ = thread.join();
    result
}

pub(super) async fn all(suite: &Suite<'_>, report: &mut Report) -> Result<()> {
    let candidates = candidates().await?;
    let (rounds, runtime) = (suite.scale.rounds, tokio::runtime::Handle::current());
    // On a thread that runs no task: one has a budget, and what tokio makes is not ready any more once that is spent.
    let measured = std::thread::spawn(move || {
        let _entered = runtime.enter();
        let mut times: Vec<(Vec<f64>, Vec<f64>)> = vec![Default::default(); candidates.len()];
        for _ in 0..rounds {
            for (candidate, (one, two)) in candidates.iter().zip(&mut times) {
                one.push(nanos(&mut (candidate.make)())?);
                two.push(contended(candidate)?);
            }
        }
        anyhow::Ok((candidates, times))
    });
    let (candidates, times) = measured.join().map_err(|_| anyhow!("a candidate panicked"))??;
    for (candidate, (one, two)) in candidates.iter().zip(&times) {
        let name = &candidate.name;
        report.measured("in one process, one thread", name, "ns", one);
        report.measured("in one process, two threads contended", name, "ns", two);
        if let Some((alone, both)) = candidate.most {
            report.figure(candidate.id, format!("{name}, one thread"), "ns", Bound::AtMost(alone), one);
            report.figure(candidate.id, format!("{name}, two threads"), "ns", Bound::AtMost(both), two);
        }
    }
    if let Some(opossum) = &suite.node.opossum {
        let options = || suite.options("execute", &[("seconds", &suite.scale.seconds)]);
        let all = suite.alternate(&[(opossum, &options)], |counted: Counted| 1e9 / counted.per_second())?;
        report.measured("in one process, one thread", opossum.name, "ns", &all[0]);
    }
    Ok(())
}
