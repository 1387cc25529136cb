//! The others that work inside one process, for a comparison there: each function gives a closure that does one
//! operation, and whose clones share what they limit.
//!
//! All of them always admit. One that did not would be measured refusing, so it panics.

// A measurement that cannot be made may stop.
#![allow(clippy::expect_used)]

use std::{
    cell::{Cell, RefCell},
    convert::Infallible,
    future::{Ready, ready},
    num::NonZeroU32,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tower::Service;
use tower_resilience::{
    bulkhead::BulkheadLayer, circuitbreaker::CircuitBreakerLayer, ratelimiter::RateLimiterLayer,
};

/// Whether limitador was built in.
pub const HAS_LIMITADOR: bool = cfg!(feature = "limitador");

const SECOND: Duration = Duration::from_secs(1);
const PERMITS: usize = 1_000;
const PLENTY: NonZeroU32 = NonZeroU32::MIN.saturating_add(1_000_000_000);

/// Takes a permit of tokio's semaphore and gives it back.
pub fn tokio_semaphore() -> impl Fn() + Clone + Send + 'static {
    let semaphore = Arc::new(tokio::sync::Semaphore::new(PERMITS));
    move || drop(semaphore.try_acquire().expect("there are permits"))
}

/// Asks governor for one cell under one quota.
pub fn governor() -> impl Fn() + Clone + Send + 'static {
    let limiter = Arc::new(governor::RateLimiter::direct(governor::Quota::per_second(PLENTY)));
    move || limiter.check().expect("there is plenty")
}

/// Asks governor for one cell of one of so many names, one after another.
pub fn governor_keyed(keys: usize) -> impl Fn() + Clone + Send + 'static {
    let limiter = Arc::new(governor::RateLimiter::keyed(governor::Quota::per_second(PLENTY)));
    let keys: Arc<[String]> = (0..keys.max(1)).map(|key| format!("tenant-{key}")).collect();
    let next = Cell::new(0);
    move || {
        let at = next.get();
        next.set(if at + 1 == keys.len() { 0 } else { at + 1 });
        limiter.check_key(&keys[at]).expect("there is plenty");
    }
}

/// Calls a service through the bulkhead of tower-resilience.
///
/// It is in its mode of backpressure, which is how tower means a limit: a permit is taken when the service is asked
/// whether it is ready. The mode that refuses sets up a timer for each call.
pub fn tower_resilience_bulkhead() -> impl Fn() + Clone + Send + 'static {
    let layer = BulkheadLayer::builder().max_concurrent_calls(PERMITS).backpressure().build();
    through(tower::Layer::layer(&layer.expect("it is valid"), Inner))
}

/// Calls a service through the rate limiter of tower-resilience, with its fixed window, which it calls the most
/// efficient.
pub fn tower_resilience_ratelimit() -> impl Fn() + Clone + Send + 'static {
    let limit = usize::try_from(PLENTY.get()).expect("it fits");
    let layer = RateLimiterLayer::builder().limit_for_period(limit).refresh_period(SECOND).build();
    through(tower::Layer::layer(&layer.expect("it is valid"), Inner))
}

/// Calls a service through the circuit breaker of tower-resilience, closed, with its own defaults.
pub fn tower_resilience_circuit_breaker() -> impl Fn() + Clone + Send + 'static {
    let layer = CircuitBreakerLayer::builder().build().expect("it is valid");
    through(tower::Layer::layer(&layer, Inner))
}

/// Calls a function through recloser, closed.
pub fn recloser() -> impl Fn() + Clone + Send + 'static {
    let breaker = Arc::new(recloser::Recloser::custom().error_rate(0.5).closed_len(100).build());
    move || breaker.call(|| Ok::<(), ()>(())).expect("it is closed")
}

/// Calls a function through failsafe, closed.
pub fn failsafe() -> impl Fn() + Clone + Send + 'static {
    let policy = failsafe::failure_policy::consecutive_failures(5, failsafe::backoff::constant(SECOND));
    let breaker = failsafe::Config::new().failure_policy(policy).build();
    move || failsafe::CircuitBreaker::call(&breaker, || Ok::<(), ()>(())).expect("it is closed")
}

/// A service that is always ready, and whose answer is there at once.
#[derive(Clone)]
struct Inner;

impl Service<()> for Inner {
    type Response = ();
    type Error = Infallible;
    type Future = Ready<Result<(), Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, (): ()) -> Self::Future {
        ready(Ok(()))
    }
}

/// Readies a service and calls it, as tower asks for both. A clone of the closure has its own clone of the service.
fn through<S>(service: S) -> impl Fn() + Clone + Send + 'static
where
    S: Service<(), Response = (), Error: std::fmt::Debug> + Clone + Send + 'static,
{
    let service = RefCell::new(service);
    move || {
        let mut service = service.borrow_mut();
        let mut context = Context::from_waker(Waker::noop());
        drive(|| service.poll_ready(&mut context)).expect("it is ready");
        let mut answer = pin!(service.call(()));
        drive(|| answer.as_mut().poll(&mut context)).expect("it admits");
    }
}

/// Polls until it is done. Nothing here waits for a time or for an input, only, for an instant, for another thread
/// that is inside: asking again is then the quickest that an executor could do.
fn drive<T>(mut poll: impl FnMut() -> Poll<T>) -> T {
    loop {
        match poll() {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::yield_now(),
        }
    }
}
