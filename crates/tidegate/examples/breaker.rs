//! A circuit breaker that gates itself through a semaphore: `cargo run -p tidegate --example breaker`.
//!
//! Twenty workers call a service that goes down for a while. After five failures in a row the circuit opens for all of them
//! at once: they use what they have in their cache, and take no slots. A health check finds the service up again, and all
//! resume.

use std::{
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::Duration,
};

use tidegate::{
    AdaptiveSemaphore, CircuitBreaker, Consecutive, Constant, ExecuteError, Gated, HealthCheck, MemoryStore,
    Outcome, OutcomeOnError,
};

static UP: AtomicBool = AtomicBool::new(true);
static SERVED: AtomicU32 = AtomicU32::new(0);
static FAILED: AtomicU32 = AtomicU32::new(0);
static CACHED: AtomicU32 = AtomicU32::new(0);

/// A breaker whose calls are made under leases, with what an error of the service means for them.
type Breaker = CircuitBreaker<Gated<AdaptiveSemaphore, OutcomeOnError<ServiceError>>>;

#[tokio::main]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // With a Redis at hand this is a RedisStore, and the circuit that of the whole fleet; nothing else changes.
    let store = MemoryStore::new();
    let semaphore = AdaptiveSemaphore::builder("my-service-api", 8).build(store.clone())?;
    let breaker = CircuitBreaker::builder("my-service-api")
        .strategy(Consecutive::new(5))
        .recovery(HealthCheck::new(Constant::every(Duration::from_millis(50)), |_kind| call_service()))
        .semaphore(semaphore, |error: &ServiceError| match error {
            ServiceError::TooManyRequests => Outcome::Throttled,
            ServiceError::Down => Outcome::Failure,
        })
        .on_state_change(|change| println!("the circuit is {:?}, by {:?}", change.to, change.why))
        .build(store)?;
    breaker.start().await?;

    let workers: Vec<_> = (0..20).map(|_| tokio::spawn(work(breaker.clone()))).collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    UP.store(false, Ordering::Relaxed);
    tokio::time::sleep(Duration::from_millis(200)).await;
    UP.store(true, Ordering::Relaxed);
    for worker in workers {
        worker.await??;
    }
    let [served, failed, cached] = [&SERVED, &FAILED, &CACHED].map(|count| count.load(Ordering::Relaxed));
    println!("{served} calls were served, {failed} failed, {cached} were answered from the cache");

    breaker.stop().await;
    Ok(())
}

async fn work(breaker: Breaker) -> Result<(), ExecuteError<ServiceError>> {
    for _ in 0..40 {
        match breaker.execute(call_service).await {
            Ok(()) => SERVED.fetch_add(1, Ordering::Relaxed),
            Err(ExecuteError::Call(_)) => FAILED.fetch_add(1, Ordering::Relaxed),
            Err(ExecuteError::CircuitOpen { .. }) => {
                tokio::time::sleep(Duration::from_millis(10)).await;
                CACHED.fetch_add(1, Ordering::Relaxed)
            }
            Err(other) => return Err(other),
        };
    }
    Ok(())
}

#[derive(Debug, thiserror::Error)]
enum ServiceError {
    #[error("too many requests")]
    #[allow(dead_code)] // this service never says so
    TooManyRequests,
    #[error("down")]
    Down,
}

/// Stands in for the service.
async fn call_service() -> Result<(), ServiceError> {
    tokio::time::sleep(Duration::from_millis(10)).await;
    if UP.load(Ordering::Relaxed) { Ok(()) } else { Err(ServiceError::Down) }
}
