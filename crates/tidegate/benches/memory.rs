//! What the primitives cost on the memory store, beside the in-process peers, in one run.
//!
//! `cargo bench -p tidegate --bench memory`

// A measurement that cannot be made may stop.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used, missing_docs)]

use std::{
    future::{Future, IntoFuture},
    num::NonZeroU32,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use criterion::{Criterion, criterion_group, criterion_main};
use tidegate::{
    AdaptiveSemaphore, CircuitBreaker, Consecutive, Constant, HealthCheck, Job, MemoryStore, Outcome, Rule,
    Valve,
};

/// On the memory store the first poll decides.
fn now<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it had to wait"),
    }
}

const SECOND: Duration = Duration::from_secs(1);
const PLENTY: u64 = 1_000_000_000;

fn semaphore() -> impl Fn() + Clone + Send + 'static {
    let semaphore = AdaptiveSemaphore::builder("bench", 1_000).build(MemoryStore::new()).unwrap();
    move || now(semaphore.try_acquire()).unwrap().release(Outcome::Success)
}

fn valve(rules: u64) -> impl Fn() + Clone + Send + 'static {
    let mut builder = Valve::builder("bench");
    for rule in 1..=rules {
        builder = builder.rule(Rule::token_bucket(PLENTY, SECOND * u32::try_from(rule).unwrap()));
    }
    let valve = builder.build(MemoryStore::new()).unwrap();
    move || now(valve.try_acquire(Job::new())).unwrap().release(Outcome::Success)
}

fn tokio_semaphore() -> impl Fn() + Clone + Send + 'static {
    let semaphore = Arc::new(tokio::sync::Semaphore::new(1_000));
    move || drop(semaphore.try_acquire().unwrap())
}

fn governor() -> impl Fn() + Clone + Send + 'static {
    let quota = governor::Quota::per_second(NonZeroU32::new(1_000_000_000).unwrap());
    let limiter = Arc::new(governor::RateLimiter::direct(quota));
    move || limiter.check().unwrap()
}

fn breaker(runtime: &tokio::runtime::Runtime) -> impl Fn() + Clone + Send + 'static {
    let breaker = CircuitBreaker::builder("bench")
        .strategy(Consecutive::new(5))
        .recovery(HealthCheck::new(Constant::every(SECOND), |_| async { Ok::<(), String>(()) }))
        .build(MemoryStore::new())
        .unwrap();
    runtime.block_on(breaker.start()).unwrap();
    move || now(breaker.execute(|| async { Ok::<(), ()>(()) }).into_future()).unwrap()
}

fn recloser() -> impl Fn() + Clone + Send + 'static {
    let breaker = Arc::new(recloser::Recloser::custom().error_rate(0.5).closed_len(100).build());
    move || breaker.call(|| Ok::<(), ()>(())).unwrap()
}

fn failsafe() -> impl Fn() + Clone + Send + 'static {
    let backoff = failsafe::backoff::constant(SECOND);
    let policy = failsafe::failure_policy::consecutive_failures(5, backoff);
    let breaker = failsafe::Config::new().failure_policy(policy).build();
    move || failsafe::CircuitBreaker::call(&breaker, || Ok::<(), ()>(())).unwrap()
}

/// With another thread that does the same all the time.
fn contended(work: impl Fn() + Clone + Send + 'static, measure: impl FnOnce(&dyn Fn())) {
    let stop = Arc::new(AtomicBool::new(false));
    let other = std::thread::spawn({
        let (stop, work) = (Arc::clone(&stop), work.clone());
        move || {
            while !stop.load(Ordering::Relaxed) {
                work();
            }
        }
    });
    measure(&work);
    stop.store(true, Ordering::Relaxed);
    other.join().unwrap();
}

fn one_and_two(c: &mut Criterion, name: &str, work: impl Fn() + Clone + Send + 'static) {
    c.bench_function(&format!("one thread/{name}"), |b| b.iter(&work));
    contended(work, |work| {
        c.bench_function(&format!("two threads/{name}"), |b| b.iter(work));
    });
}

fn benches(c: &mut Criterion) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let _entered = runtime.enter();
    one_and_two(c, "tidegate semaphore pair", semaphore());
    one_and_two(c, "tokio semaphore pair", tokio_semaphore());
    one_and_two(c, "tidegate valve, one rule", valve(1));
    one_and_two(c, "governor, one rule", governor());
    one_and_two(c, "tidegate valve, four rules", valve(4));
    one_and_two(c, "tidegate breaker, closed", breaker(&runtime));
    one_and_two(c, "recloser, closed", recloser());
    one_and_two(c, "failsafe, closed", failsafe());
}

criterion_group! {
    name = memory;
    config = Criterion::default().warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    targets = benches
}
criterion_main!(memory);
