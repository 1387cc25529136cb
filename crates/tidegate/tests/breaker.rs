//! The circuit breaker on the memory store, in paused time: strategies, recovery, calls and life.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tidegate::{
    CheckKind, CircuitBreaker, Consecutive, Constant, ExecuteError, HalfOpen, HealthCheck, MemoryStore,
    Position, Role, StateChange, clock::TokioClock,
};

const SECOND: Duration = Duration::from_secs(1);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A store and a dependency, on one clock.
#[derive(Clone)]
struct World {
    store: MemoryStore,
    clock: Arc<TokioClock>,
    up: Arc<AtomicBool>,
    checks: Arc<AtomicU32>,
}

impl World {
    fn new() -> Self {
        let clock = Arc::new(TokioClock::new());
        let store = MemoryStore::with_clock(Arc::clone(&clock));
        Self { store, clock, up: Arc::new(AtomicBool::new(true)), checks: Arc::default() }
    }

    fn health(&self, backoff: Duration) -> HealthCheck {
        let (up, checks) = (Arc::clone(&self.up), Arc::clone(&self.checks));
        HealthCheck::new(Constant::every(backoff), move |_: CheckKind| {
            let (up, checks) = (Arc::clone(&up), Arc::clone(&checks));
            async move {
                checks.fetch_add(1, Ordering::Relaxed);
                if up.load(Ordering::Relaxed) { Ok(()) } else { Err("down") }
            }
        })
    }

    fn builder(&self) -> tidegate::BreakerBuilder {
        CircuitBreaker::builder("api").clock(Arc::clone(&self.clock)).strategy(Consecutive::new(3))
    }
}

async fn fails(breaker: &CircuitBreaker, times: u32) {
    for _ in 0..times {
        let result: Result<(), _> = breaker.execute(|| async { Err::<(), _>("no") }).await;
        assert!(matches!(result, Err(ExecuteError::Call("no"))), "{result:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn cb_2_an_opening_blocks_every_process_and_a_check_closes_it_for_all() {
    let world = World::new();
    let changes: Arc<Mutex<Vec<StateChange>>> = Arc::default();
    let breakers: Vec<CircuitBreaker> = (0..4)
        .map(|_| {
            let changes = Arc::clone(&changes);
            world
                .builder()
                .recovery(world.health(SECOND))
                .on_state_change(move |change| changes.lock().push(change))
                .build(world.store.clone())
                .unwrap()
        })
        .collect();
    for breaker in &breakers {
        breaker.start().await.unwrap();
    }
    world.up.store(false, Ordering::Relaxed);
    fails(&breakers[0], 2).await;
    fails(&breakers[1], 1).await;
    tokio::time::sleep(ms(5)).await;
    for breaker in &breakers {
        assert!(breaker.is_open());
        let blocked: Result<(), ExecuteError<()>> = breaker.execute(|| async { panic!("it ran") }).await;
        assert!(matches!(blocked, Err(ExecuteError::CircuitOpen { .. })), "{blocked:?}");
        assert_eq!(breaker.state().blocked, 1);
    }
    tokio::time::sleep(ms(2_500)).await;
    assert_eq!(world.checks.load(Ordering::Relaxed), 2);
    assert_eq!(breakers.iter().filter(|breaker| breaker.role() == Role::Leader).count(), 1);
    world.up.store(true, Ordering::Relaxed);
    tokio::time::sleep(ms(1_000)).await;
    assert!(breakers.iter().all(|breaker| !breaker.is_open()));
    assert_eq!(world.checks.load(Ordering::Relaxed), 3);
    assert_eq!(breakers.iter().filter(|breaker| breaker.role() == Role::Leader).count(), 0);
    let changes = changes.lock();
    assert_eq!(changes.iter().filter(|change| change.to == Position::Open).count(), 4);
    assert_eq!(changes.iter().filter(|change| change.to == Position::Closed).count(), 4);
}

#[tokio::test(start_paused = true)]
async fn cb_4_half_open_lets_one_call_try() {
    let world = World::new();
    let breaker =
        world.builder().recovery(HalfOpen::new(Constant::every(SECOND))).build(world.store.clone()).unwrap();
    breaker.start().await.unwrap();
    fails(&breaker, 3).await;
    tokio::time::sleep(ms(5)).await;
    assert!(breaker.is_open());
    tokio::time::sleep(ms(1_100)).await;
    // It fails, and the next one comes after another wait.
    fails(&breaker, 1).await;
    tokio::time::sleep(ms(5)).await;
    let blocked: Result<(), ExecuteError<()>> = breaker.execute(|| async { panic!("it ran") }).await;
    assert!(matches!(blocked, Err(ExecuteError::CircuitOpen { .. })), "{blocked:?}");
    tokio::time::sleep(ms(1_100)).await;
    let answer: Result<u32, ExecuteError<()>> = breaker.execute(|| async { Ok(7) }).await;
    assert_eq!(answer, Ok(7));
    tokio::time::sleep(ms(5)).await;
    assert!(!breaker.is_open());
    breaker.stop().await;
    let late: Result<(), ExecuteError<()>> = breaker.execute(|| async { panic!("it ran") }).await;
    assert!(matches!(late, Err(ExecuteError::NotStarted { .. })), "{late:?}");
}
