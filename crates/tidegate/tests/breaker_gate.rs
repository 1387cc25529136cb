//! A breaker that gates itself through a semaphore or a valve, in paused time.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    future::{Future, IntoFuture, pending, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::Poll,
    time::Duration,
};

use tidegate::{
    Acquire, AcquireError, AdaptiveSemaphore, BreakerBuilder, CallResult, CircuitBreaker, Class, Concurrency,
    Consecutive, Constant, ExecuteError, HalfOpen, HealthCheck, Id, Job, MemoryStore, Operators, Outcome,
    Recorder, Rule, Store, Valve,
    clock::TokioClock,
    contract::{CircuitMember, CircuitPolicy, CircuitRequest, DriverId, OnSuperseded, circuit},
};
use tidegate_testkit::faulty::{Fault, Faulty};
use tokio::time::{Instant, sleep};

const ID: &str = "api";
const SECOND: Duration = Duration::from_secs(1);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// What a breaker counted.
#[derive(Default)]
struct Counts {
    successes: AtomicU32,
    failures: AtomicU32,
    blocked: AtomicU32,
}

impl Counts {
    fn all(&self) -> (u32, u32, u32) {
        let [successes, failures, blocked] =
            [&self.successes, &self.failures, &self.blocked].map(|count| count.load(Ordering::SeqCst));
        (successes, failures, blocked)
    }
}

struct Counting(Arc<Counts>);

impl Recorder for Counting {
    fn called(&self, result: CallResult, _: Duration) {
        let count = if result == CallResult::Success { &self.0.successes } else { &self.0.failures };
        count.fetch_add(1, Ordering::SeqCst);
    }

    fn blocked(&self) {
        self.0.blocked.fetch_add(1, Ordering::SeqCst);
    }
}

struct World {
    clock: TokioClock,
    store: MemoryStore,
    counts: Arc<Counts>,
}

impl World {
    fn new() -> Self {
        let clock = TokioClock::new();
        Self { clock, store: MemoryStore::with_clock(clock), counts: Arc::default() }
    }

    fn semaphore(&self, limit: u32) -> AdaptiveSemaphore {
        AdaptiveSemaphore::builder(ID, limit)
            .max_limit(limit)
            .class(Class::unreserved("fast"))
            .class(Class::unreserved("slow"))
            .clock(self.clock)
            .build(self.store.clone())
            .unwrap()
    }

    /// Opens after two failures; its check never ends.
    fn builder(&self) -> BreakerBuilder {
        CircuitBreaker::builder(ID)
            .clock(self.clock)
            .strategy(Consecutive::new(2))
            .recovery(
                HealthCheck::new(Constant::every(SECOND), |_| pending::<Result<(), &str>>())
                    .timeout(SECOND * 3_600),
            )
            .recorder(Counting(Arc::clone(&self.counts)))
    }

    /// A hand that opens and closes the circuit.
    async fn set(&self, position: circuit::Position) {
        self.store.set_circuit(&Id::new(ID).unwrap(), position).await.unwrap();
        sleep(ms(1)).await;
    }

    async fn held(&self) -> u32 {
        let snapshot = self.store.snapshot(&Id::new(ID).unwrap()).await.unwrap().body;
        snapshot.map_or(0, |snapshot| snapshot.held)
    }
}

async fn fine() -> Result<u8, &'static str> {
    Ok(7)
}

async fn no() -> Result<u8, &'static str> {
    Err("no")
}

async fn never_runs() -> Result<u8, &'static str> {
    panic!("it ran")
}

async fn once_polled<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

fn is_open<T: std::fmt::Debug, E: std::fmt::Debug>(result: &Result<T, ExecuteError<E>>) -> bool {
    matches!(result, Err(ExecuteError::CircuitOpen { .. }))
}

#[tokio::test(start_paused = true)]
async fn co_1_an_open_circuit_blocks_before_a_slot_is_waited_for_or_consumed() {
    let world = World::new();
    let semaphore = world.semaphore(1);
    let breaker = world.builder().gate(semaphore.clone()).build(world.store.clone()).unwrap();
    breaker.start().await.unwrap();
    assert_eq!(breaker.execute(fine).await, Ok(7));
    for _ in 0..2 {
        assert_eq!(breaker.execute(no).await, Err(ExecuteError::Call("no")));
    }
    sleep(ms(5)).await;
    // The slot is held by another: a caller that waited for it would wait for long.
    let held = semaphore.acquire(Acquire::once()).await.unwrap();
    let fence = held.fence().unwrap();
    let before = Instant::now();
    for _ in 0..50 {
        assert!(is_open(&breaker.execute(never_runs).await));
    }
    assert_eq!(before.elapsed(), Duration::ZERO);
    assert_eq!(semaphore.state().waiting, 0);
    drop(held);
    for _ in 0..50 {
        assert!(is_open(&breaker.execute(never_runs).await));
    }
    assert_eq!(world.held().await, 0);
    let next = semaphore.acquire(Acquire::once()).await.unwrap().fence();
    assert_eq!(next, Some(fence + 1), "none was consumed in between");
    assert_eq!(world.counts.all(), (1, 2, 100));
}

#[tokio::test(start_paused = true)]
async fn co_2_a_failed_acquire_is_no_failure_no_block_and_no_call() {
    let world = World::new();
    let semaphore = world.semaphore(1);
    let breaker = world
        .builder()
        .gate(semaphore.clone())
        .timeout(ms(50))
        .class("fast")
        .build(world.store.clone())
        .unwrap();
    breaker.start().await.unwrap();
    let held = semaphore.acquire(Acquire::once()).await.unwrap();
    for _ in 0..20 {
        let result = breaker.execute(never_runs).await;
        assert!(matches!(result, Err(ExecuteError::Acquire(AcquireError::Timeout { .. }))), "{result:?}");
    }
    let unknown = breaker.execute(never_runs).class("unknown").await;
    assert!(
        matches!(unknown, Err(ExecuteError::Acquire(AcquireError::InvalidOptions { .. }))),
        "{unknown:?}"
    );
    semaphore.close().await;
    let closed = breaker.execute(never_runs).await;
    assert!(matches!(closed, Err(ExecuteError::Acquire(AcquireError::Closed { .. }))), "{closed:?}");
    sleep(SECOND).await;
    assert_eq!(world.counts.all(), (0, 0, 0));
    assert!(!breaker.is_open());
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn co_2_a_semaphore_that_is_full_for_a_minute_opens_nothing_and_calls_are_timed_from_the_grant() {
    let world = World::new();
    let semaphore = world.semaphore(2);
    let breaker =
        world.builder().gate(semaphore.clone()).timeout(ms(100)).build(world.store.clone()).unwrap();
    breaker.start().await.unwrap();
    let held = [
        semaphore.acquire(Acquire::once()).await.unwrap(),
        semaphore.acquire(Acquire::once()).await.unwrap(),
    ];
    let until = Instant::now() + SECOND * 60;
    let callers: Vec<_> = (0..8)
        .map(|_| {
            let breaker = breaker.clone();
            tokio::spawn(async move {
                let mut timeouts = 0;
                while Instant::now() < until {
                    let result = breaker.execute(never_runs).await;
                    assert!(matches!(result, Err(ExecuteError::Acquire(_))), "{result:?}");
                    timeouts += 1;
                }
                timeouts
            })
        })
        .collect();
    for caller in callers {
        assert!(caller.await.unwrap() >= 590);
    }
    assert!(!breaker.is_open());
    assert_eq!(breaker.state().generation, breaker.state().since.unwrap().millis(), "it never changed");
    assert_eq!(world.counts.all(), (0, 0, 0));
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn co_3_a_circuit_that_opens_ends_the_wait_at_once() {
    let world = World::new();
    let semaphore = world.semaphore(1);
    let breaker = world.builder().gate(semaphore.clone()).build(world.store.clone()).unwrap();
    breaker.start().await.unwrap();
    let held = semaphore.acquire(Acquire::once()).await.unwrap();
    let waits: Vec<_> = (0..3)
        .map(|_| {
            let breaker = breaker.clone();
            tokio::spawn(async move { (breaker.execute(never_runs).await, Instant::now()) })
        })
        .collect();
    sleep(ms(300)).await;
    assert_eq!(semaphore.state().waiting, 3);
    assert!(waits.iter().all(|wait| !wait.is_finished()));
    let at = Instant::now();
    world.set(circuit::Position::Open).await;
    for wait in waits {
        let (result, ended) = wait.await.unwrap();
        assert!(is_open(&result));
        assert!(ended - at <= ms(1), "{:?}", ended - at);
    }
    assert_eq!(semaphore.state().waiting, 0);
    assert_eq!(world.counts.all(), (0, 0, 3));
    // One that waits through an opening and a closing that it never saw goes on.
    drop(held);
    world.set(circuit::Position::Closed).await;
    assert_eq!(breaker.execute(fine).await, Ok(7));
}

#[tokio::test(start_paused = true)]
async fn co_4_a_grant_that_comes_after_the_opening_goes_back_unused() {
    let world = World::new();
    // The answer to each acquire takes a while.
    let slow = Faulty::new(world.store.clone()).sleeping(sleep);
    let handle = slow.handle();
    let slow = Arc::new(slow);
    let valve = Valve::builder(ID)
        .rule(Rule::token_bucket(10, SECOND * 3_600))
        .concurrency(Concurrency::Global(1))
        .clock(world.clock)
        .op_timeout(SECOND * 10)
        .build(Arc::clone(&slow))
        .unwrap();
    let breaker = world.builder().gate_valve(valve.clone()).build(world.store.clone()).unwrap();
    breaker.start().await.unwrap();
    assert_eq!(breaker.execute(fine).await, Ok(7));
    valve.flush().await;
    let level = |world: &World| {
        let store = world.store.clone();
        async move {
            let snapshot = store.snapshot(&Id::new(ID).unwrap()).await.unwrap().body.unwrap();
            (snapshot.held, snapshot.rules[0].level.unwrap())
        }
    };
    let before = level(&world).await;
    assert_eq!(before, (0, 9));
    handle.fail_next(1, Fault::SlowReply(ms(400)));
    let mut call = pin!(breaker.execute(never_runs).into_future());
    assert!(once_polled(call.as_mut()).await.is_none());
    sleep(ms(100)).await;
    assert_eq!(level(&world).await, (1, 8), "granted, and the answer is on its way");
    // The wait ends at once; what comes is nobody's.
    world.set(circuit::Position::Open).await;
    assert!(is_open(&once_polled(call.as_mut()).await.unwrap()));
    sleep(SECOND).await;
    valve.flush().await;
    assert_eq!(level(&world).await, (0, 9));
    assert_eq!(world.counts.all(), (1, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn co_4_a_grant_in_the_instant_of_the_opening_is_released_as_a_failure_and_settled_back() {
    let world = World::new();
    let released: Arc<parking_lot::Mutex<Vec<Outcome>>> = Arc::default();
    struct Outcomes(Arc<parking_lot::Mutex<Vec<Outcome>>>);
    impl Recorder for Outcomes {
        fn released(&self, _: Option<&str>, outcome: Outcome, _: Duration) {
            self.0.lock().push(outcome);
        }
    }
    let valve = Valve::builder(ID)
        .rule(Rule::token_bucket(10, SECOND * 3_600))
        .concurrency(Concurrency::Global(1))
        .clock(world.clock)
        .recorder(Outcomes(Arc::clone(&released)))
        .build(world.store.clone())
        .unwrap();
    let breaker = world.builder().gate_valve(valve.clone()).build(world.store.clone()).unwrap();
    breaker.start().await.unwrap();
    let held = valve.acquire(Job::new()).await.unwrap();
    let mut call = pin!(breaker.execute(never_runs).into_future());
    assert!(once_polled(call.as_mut()).await.is_none());
    sleep(ms(10)).await;
    // Both happen before the call is looked at again: its grant is there, and so is the opening.
    held.release(Outcome::Success);
    sleep(ms(10)).await;
    assert_eq!(world.held().await, 1, "it has its grant");
    world.set(circuit::Position::Open).await;
    assert!(is_open(&once_polled(call.as_mut()).await.unwrap()));
    valve.flush().await;
    sleep(ms(10)).await;
    let snapshot = world.store.snapshot(&Id::new(ID).unwrap()).await.unwrap().body.unwrap();
    assert_eq!((snapshot.held, snapshot.rules[0].level), (0, Some(9)));
    assert_eq!(*released.lock(), [Outcome::Success, Outcome::Failure]);
    assert_eq!(world.counts.all(), (0, 0, 1));
}

#[tokio::test(start_paused = true)]
async fn co_5_the_call_is_judged_by_the_breaker_and_the_lease_by_its_own_classifier() {
    let world = World::new();
    let semaphore = AdaptiveSemaphore::builder(ID, 8).clock(world.clock).build(world.store.clone()).unwrap();
    let gated = || {
        world.builder().semaphore(semaphore.clone(), |error: &&str| {
            if *error == "429" { Outcome::Throttled } else { Outcome::Failure }
        })
    };
    let breaker = gated().build(world.store.clone()).unwrap();
    breaker.start().await.unwrap();
    // A throttle is a failure for the circuit too, unless told.
    assert_eq!(breaker.execute(|| async { Err::<(), _>("429") }).await, Err(ExecuteError::Call("429")));
    sleep(ms(200)).await;
    assert_eq!(semaphore.state().limit, 4, "the lease was throttled");
    assert_eq!(breaker.execute(no).await, Err(ExecuteError::Call("no")));
    sleep(ms(200)).await;
    assert!(breaker.is_open());
    assert_eq!(semaphore.state().limit, 4);
    assert_eq!(world.counts.all(), (0, 2, 0));
    world.set(circuit::Position::Closed).await;
    breaker.stop().await;

    let breaker = gated().ignore_throttled().build(world.store.clone()).unwrap();
    breaker.start().await.unwrap();
    for _ in 0..5 {
        assert_eq!(breaker.execute(|| async { Err::<(), _>("429") }).await, Err(ExecuteError::Call("429")));
    }
    sleep(ms(200)).await;
    assert!(!breaker.is_open());
    assert_eq!(world.counts.all(), (0, 2, 0), "they count in nothing");
    // A call's own word, for this call alone.
    for _ in 0..2 {
        let failed = breaker
            .execute(|| async { Err::<(), _>("429") })
            .outcome_on_error(|_: &&str| Outcome::Failure)
            .await;
        assert_eq!(failed, Err(ExecuteError::Call("429")));
    }
    sleep(ms(200)).await;
    assert!(breaker.is_open());
}

#[tokio::test(start_paused = true)]
async fn co_5_class_timeout_and_classifier_have_defaults_and_a_call_overrides_each_alone() {
    let world = World::new();
    let classes: Arc<parking_lot::Mutex<Vec<(String, Outcome)>>> = Arc::default();
    struct Classes(Arc<parking_lot::Mutex<Vec<(String, Outcome)>>>);
    impl Recorder for Classes {
        fn released(&self, class: Option<&str>, outcome: Outcome, _: Duration) {
            self.0.lock().push((class.unwrap_or("").to_owned(), outcome));
        }
    }
    let semaphore = AdaptiveSemaphore::builder(ID, 9)
        .class(Class::unreserved("fast"))
        .class(Class::unreserved("slow"))
        .clock(world.clock)
        .recorder(Classes(Arc::clone(&classes)))
        .build(world.store.clone())
        .unwrap();
    let breaker = world
        .builder()
        .strategy(Consecutive::new(100))
        .semaphore(semaphore.clone(), |_: &&str| Outcome::Throttled)
        .class("fast")
        .timeout(ms(500))
        .build(world.store.clone())
        .unwrap();
    breaker.start().await.unwrap();
    let told = || std::mem::take(&mut *classes.lock());
    let _ = breaker.execute(no).await;
    assert_eq!(told(), [("fast".to_owned(), Outcome::Throttled)]);
    let _ = breaker.execute(no).class("slow").await;
    assert_eq!(told(), [("slow".to_owned(), Outcome::Throttled)]);
    let _ = breaker.execute(no).outcome_on_error(|_: &&str| Outcome::Failure).await;
    assert_eq!(told(), [("fast".to_owned(), Outcome::Failure)]);
    assert_eq!(breaker.execute(fine).await, Ok(7));
    assert_eq!(told(), [("fast".to_owned(), Outcome::Success)]);
    // Timeouts: the breaker's, and a call's own.
    let held: Vec<_> = (0..semaphore.state().limit).collect();
    let mut leases = Vec::new();
    for _ in held {
        leases.push(semaphore.acquire(Acquire::within(SECOND)).await.unwrap());
    }
    for (timeout, waited) in [(None, ms(500)), (Some(ms(30)), ms(30)), (Some(Duration::ZERO), Duration::ZERO)]
    {
        let before = Instant::now();
        let call = breaker.execute(never_runs);
        let call = match timeout {
            Some(timeout) => call.timeout(timeout),
            None => call,
        };
        let result = call.await;
        assert!(matches!(result, Err(ExecuteError::Acquire(AcquireError::Timeout { .. }))), "{result:?}");
        let took = before.elapsed();
        assert!(took >= waited && took <= waited + ms(2), "{took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn co_5_a_valve_gates_with_the_job_of_the_breaker_or_of_the_call() {
    let world = World::new();
    let valve = Valve::builder(ID)
        .rule(Rule::token_bucket(10, SECOND * 3_600).named("tokens"))
        .clock(world.clock)
        .build(world.store.clone())
        .unwrap();
    let job = Job::new().cost("tokens", 3).timeout(Duration::ZERO);
    let breaker = world
        .builder()
        .valve(valve, |_: &&str| Outcome::Failure)
        .job(job)
        .build(world.store.clone())
        .unwrap();
    breaker.start().await.unwrap();
    assert_eq!(breaker.execute(fine).await, Ok(7));
    assert_eq!(breaker.execute(fine).job(Job::new().cost("tokens", 6)).await, Ok(7));
    // One is left.
    let result = breaker.execute(never_runs).await;
    assert!(matches!(result, Err(ExecuteError::Acquire(AcquireError::Timeout { .. }))), "{result:?}");
    assert_eq!(breaker.execute(fine).job(Job::new()).await, Ok(7));
}

#[tokio::test(start_paused = true)]
async fn co_5_a_call_can_be_told_of_its_lease() {
    let world = World::new();
    let semaphore = world.semaphore(2);
    let breaker = world.builder().gate(semaphore.clone()).build(world.store.clone()).unwrap();
    breaker.start().await.unwrap();
    let other = semaphore.acquire(Acquire::once()).await.unwrap();
    let call = breaker.execute_with(|held| async move {
        assert!(held.is_live());
        Ok::<_, &str>(held)
    });
    let held = call.await.unwrap();
    let token = held.token().unwrap();
    assert_eq!((token.slot, held.limit(), held.fence()), (1, 2, Some(token.fence)));
    assert!(token.fence > other.fence().unwrap());
    assert!(!held.is_live(), "it was given back with the end of the call");
    // Another's lease in the same place is not this one's.
    let next = semaphore.acquire(Acquire::once()).await.unwrap();
    assert!(next.is_live() && !held.is_live());
    let mut lost = pin!(held.lost());
    assert!(poll_fn(|context| Poll::Ready(lost.as_mut().poll(context).is_pending())).await);
}

#[tokio::test(start_paused = true)]
async fn co_5_a_call_is_told_that_its_lease_is_lost() {
    let world = World::new();
    let semaphore = world.semaphore(1);
    let breaker = world.builder().gate(semaphore.clone()).build(world.store.clone()).unwrap();
    breaker.start().await.unwrap();
    let call = breaker.execute_with(|held| async move {
        let operators = world.store.operators().unwrap();
        assert!(operators.evict(&Id::new(ID).unwrap(), held.token().unwrap()).await.unwrap().body);
        assert!(held.is_live(), "as far as this process knows");
        let lost = held.lost().await;
        assert_eq!((Some(lost.token), held.is_live()), (held.token(), false));
        Ok::<_, &str>(7)
    });
    assert_eq!(call.await, Ok(7));
}

#[tokio::test(start_paused = true)]
async fn co_6_the_breaker_never_closes_the_semaphore() {
    let world = World::new();
    let semaphore = world.semaphore(2);
    let breaker = world.builder().gate(semaphore.clone()).build(world.store.clone()).unwrap();
    breaker.start().await.unwrap();
    assert_eq!(breaker.execute(fine).await, Ok(7));
    breaker.stop().await;
    let stopped = breaker.execute(never_runs).await;
    assert!(matches!(stopped, Err(ExecuteError::NotStarted { .. })), "{stopped:?}");
    drop(semaphore.acquire(Acquire::once()).await.unwrap());
    drop(breaker);
    sleep(ms(10)).await;
    drop(semaphore.acquire(Acquire::once()).await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn cb_4_the_permit_of_a_trial_is_taken_before_the_lease_and_given_back_where_none_comes() {
    let world = World::new();
    let semaphore = world.semaphore(1);
    let breaker = world
        .builder()
        .recovery(HalfOpen::new(Constant::every(SECOND)))
        .gate(semaphore.clone())
        .timeout(ms(200))
        .build(world.store.clone())
        .unwrap();
    let other =
        world.builder().recovery(HalfOpen::new(Constant::every(SECOND))).build(world.store.clone()).unwrap();
    breaker.start().await.unwrap();
    other.start().await.unwrap();
    world.set(circuit::Position::Open).await;
    sleep(SECOND).await;
    let held = semaphore.acquire(Acquire::once()).await.unwrap();
    let mut call = pin!(breaker.execute(never_runs).into_future());
    assert!(once_polled(call.as_mut()).await.is_none());
    sleep(ms(50)).await;
    // The one permit is out, though there is no lease.
    assert!(is_open(&other.execute(never_runs).await));
    let result = call.await;
    assert!(matches!(result, Err(ExecuteError::Acquire(AcquireError::Timeout { .. }))), "{result:?}");
    sleep(ms(100)).await;
    // It is free at once, and nothing was counted by it.
    assert_eq!(other.execute(fine).await, Ok(7));
    sleep(ms(5)).await;
    assert!(!breaker.is_open());
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn co_6_a_breaker_and_what_gates_it_may_share_an_id_and_forget_nothing_of_each_other() {
    let world = World::new();
    let semaphore = world.semaphore(3);
    let breaker = world.builder().gate(semaphore.clone()).build(world.store.clone()).unwrap();
    breaker.start().await.unwrap();
    for _ in 0..2 {
        let _ = breaker.execute(no).await;
    }
    sleep(ms(5)).await;
    let snapshot = world.store.snapshot(&Id::new(ID).unwrap()).await.unwrap().body.unwrap();
    assert_eq!(snapshot.limit.unwrap().value, 3);
    let kept = snapshot.circuit.unwrap();
    assert!(kept.view.is_open() && kept.view.leader.is_some());
    // Another policy of the circuit is refused, though the semaphore's is the same.
    let wait = circuit::Backoff::Constant(SECOND);
    let policy = CircuitPolicy::draft(
        circuit::Strategy::Consecutive { threshold: 3 },
        circuit::Recovery::half_open(),
        wait,
    );
    let member = CircuitMember {
        id: Id::new(ID).unwrap(),
        driver: DriverId(9),
        policy: Arc::new(policy.check().unwrap()),
        on_superseded: OnSuperseded::Adopt,
    };
    let refused = world.store.circuit(&member, &CircuitRequest::default()).await;
    assert_eq!(refused.unwrap_err().code(), "invalid_options");
}

/// How a call goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    Ok,
    Err,
    Slow,
    Never,
    Panic,
}

async fn goes(way: Way) -> Result<u8, &'static str> {
    match way {
        Way::Ok => Ok(7),
        Way::Err => Err("no"),
        Way::Slow => {
            sleep(ms(30)).await;
            Ok(7)
        }
        Way::Never => pending().await,
        Way::Panic => panic!("oh no"),
    }
}

#[tokio::test(start_paused = true)]
async fn co_4_a_call_that_is_dropped_at_any_poll_leaks_no_slot_and_no_trial() {
    for way in [Way::Ok, Way::Err, Way::Slow, Way::Never, Way::Panic] {
        for half_open in [false, true] {
            for polls in 0..5 {
                let world = World::new();
                let semaphore = world.semaphore(1);
                let builder = if half_open {
                    world.builder().recovery(HalfOpen::new(Constant::every(SECOND)))
                } else {
                    world.builder()
                };
                let breaker = builder.gate(semaphore.clone()).build(world.store.clone()).unwrap();
                breaker.start().await.unwrap();
                if half_open {
                    world.set(circuit::Position::Open).await;
                    sleep(ms(1_010)).await;
                }
                // The slot is taken at first, so that there is a wait to be dropped in.
                let held = semaphore.acquire(Acquire::once()).await.unwrap();
                let call = {
                    let breaker = breaker.clone();
                    tokio::spawn(async move {
                        let mut call = pin!(breaker.execute(move || goes(way)).into_future());
                        for _ in 0..polls {
                            if once_polled(call.as_mut()).await.is_some() {
                                return;
                            }
                            sleep(ms(20)).await;
                        }
                    })
                };
                sleep(ms(25)).await;
                drop(held);
                let panicked = call.await.is_err_and(|error| error.is_panic());
                assert!(!panicked || way == Way::Panic);
                sleep(ms(300)).await;
                let at = format!("{way:?}, half-open {half_open}, {polls} polls");
                assert_eq!(world.held().await, 0, "{at}");
                assert_eq!((semaphore.state().in_flight, semaphore.state().waiting), (0, 0), "{at}");
                let snapshot = world.store.snapshot(&Id::new(ID).unwrap()).await.unwrap().body.unwrap();
                assert_eq!(snapshot.circuit.unwrap().trials, 0, "{at}");
                // It goes on as if nothing had been.
                sleep(SECOND * 3).await;
                assert_eq!(breaker.execute(fine).await, Ok(7), "{at}");
                breaker.stop().await;
            }
        }
    }
}
