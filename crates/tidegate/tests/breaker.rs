//! The circuit breaker on the memory store, in paused time: when it opens, how it closes, and what it costs the store.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::{
    future::{Future, IntoFuture, pending, poll_fn},
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    task::Poll,
    time::Duration,
};

use parking_lot::Mutex;
use tidegate::{
    Backoff, BreakerBuilder, CheckError, CheckKind, CircuitBreaker, Consecutive, Constant, Count,
    ExecuteError, Exponential, HalfOpen, HealthCheck, MemoryStore, OnCancel, OnSuperseded, OpensWhen,
    Position, Recent, Role, Sampling, StartError, StateChange, Store, Strategy, Trouble, Verdict, Why,
    clock::TokioClock,
};
use tidegate_testkit::faulty::{Fault, Faulty, Handle, Operation};
use tokio::time::{Instant, sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

type Failed = Arc<Mutex<Vec<Trouble>>>;

/// A store and a dependency, on one clock.
#[derive(Clone)]
struct World {
    clock: TokioClock,
    store: MemoryStore,
    up: Arc<AtomicBool>,
    /// When each check began.
    checks: Arc<Mutex<Vec<(CheckKind, Instant)>>>,
    troubles: Failed,
}

impl World {
    fn new() -> Self {
        let clock = TokioClock::new();
        let store = MemoryStore::with_clock(clock);
        let up = Arc::new(AtomicBool::new(true));
        Self { clock, store, up, checks: Arc::default(), troubles: Arc::default() }
    }

    fn set_up(&self, up: bool) {
        self.up.store(up, Ordering::SeqCst);
    }

    fn health(&self, backoff: impl Into<Backoff>) -> HealthCheck {
        let (up, checks) = (Arc::clone(&self.up), Arc::clone(&self.checks));
        HealthCheck::new(backoff, move |kind| {
            let (up, checks) = (Arc::clone(&up), Arc::clone(&checks));
            async move {
                checks.lock().push((kind, Instant::now()));
                if up.load(Ordering::SeqCst) { Ok(()) } else { Err("down") }
            }
        })
    }

    /// When each check began, in ms after a moment; and it is forgotten.
    fn checked(&self, since: Instant) -> Vec<u64> {
        let checks = std::mem::take(&mut *self.checks.lock());
        checks.iter().map(|(_, at)| u64::try_from((*at - since).as_millis()).unwrap()).collect()
    }

    fn builder(&self) -> BreakerBuilder {
        let troubles = Arc::clone(&self.troubles);
        CircuitBreaker::builder("api")
            .clock(self.clock)
            .strategy(Consecutive::new(3))
            .recovery(self.health(Constant::every(SECOND)))
            .on_error(move |trouble| troubles.lock().push(trouble.clone()))
    }

    async fn started(&self, builder: BreakerBuilder) -> CircuitBreaker {
        self.started_on(builder, self.store.clone()).await
    }

    async fn started_on(&self, builder: BreakerBuilder, store: impl Store) -> CircuitBreaker {
        let breaker = builder.build(store).unwrap();
        breaker.start().await.unwrap();
        breaker
    }

    fn faulty(&self) -> (Arc<Faulty<MemoryStore>>, Handle) {
        let store = Faulty::new(self.store.clone()).sleeping(sleep);
        let handle = store.handle();
        (Arc::new(store), handle)
    }

    fn codes(&self) -> Vec<&'static str> {
        std::mem::take(&mut *self.troubles.lock()).iter().map(Trouble::code).collect()
    }
}

async fn fails(breaker: &CircuitBreaker, times: u32) {
    for _ in 0..times {
        let result = breaker.execute(|| async { Err::<(), _>("no") }).await;
        assert_eq!(result, Err(ExecuteError::Call("no")));
    }
}

async fn works(breaker: &CircuitBreaker, times: u32) {
    for _ in 0..times {
        assert_eq!(breaker.execute(|| async { Ok::<_, &str>(7) }).await, Ok(7));
    }
}

async fn is_blocked(breaker: &CircuitBreaker) -> bool {
    let result = breaker.execute(|| async { Err::<(), _>("it ran") }).await;
    matches!(result, Err(ExecuteError::CircuitOpen { .. }))
}

/// Long enough for what was said to reach the store, and all others.
async fn told() {
    sleep(ms(150)).await;
}

async fn once_polled<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    poll_fn(|context| match future.as_mut().poll(context) {
        Poll::Ready(value) => Poll::Ready(Some(value)),
        Poll::Pending => Poll::Ready(None),
    })
    .await
}

fn leaders(breakers: &[CircuitBreaker]) -> Vec<usize> {
    let leads =
        |(index, breaker): (usize, &CircuitBreaker)| (breaker.role() == Role::Leader).then_some(index);
    breakers.iter().enumerate().filter_map(leads).collect()
}

// ---- CB-1, CB-2, CB-9: when it opens -----------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn cb_1_failures_in_a_row_of_all_processes_open_at_exactly_the_threshold() {
    let world = World::new();
    let (a, b) = (world.started(world.builder()).await, world.started(world.builder()).await);
    fails(&a, 2).await;
    told().await;
    works(&b, 1).await;
    told().await;
    fails(&a, 1).await;
    fails(&b, 1).await;
    told().await;
    assert!(!a.is_open() && !b.is_open(), "a success of another process starts anew");
    fails(&b, 1).await;
    told().await;
    assert!(a.is_open() && b.is_open());
    assert_eq!(a.state().why, Some(Why::Results));
}

#[tokio::test(start_paused = true)]
async fn cb_1_count_and_sampling_open_at_exactly_their_share() {
    for strategy in [Strategy::from(Count::new(0.5, 10, 4)), Sampling::new(0.5, SECOND * 10, 4).into()] {
        let world = World::new();
        let breaker = world.started(world.builder().strategy(strategy)).await;
        works(&breaker, 2).await;
        told().await;
        fails(&breaker, 1).await;
        told().await;
        assert!(!breaker.is_open(), "three calls, where four are needed");
        fails(&breaker, 1).await;
        told().await;
        assert!(breaker.is_open(), "two of four");
    }
    // What lies further back than the duration counts no more.
    let world = World::new();
    let breaker = world.started(world.builder().strategy(Sampling::new(0.5, SECOND * 10, 4))).await;
    works(&breaker, 2).await;
    fails(&breaker, 1).await;
    sleep(SECOND * 10).await;
    fails(&breaker, 1).await;
    told().await;
    assert!(!breaker.is_open());
}

/// Opens at three failures among the last five, whoever had them.
struct ThreeOfFive(Arc<Mutex<Vec<Vec<Verdict>>>>);

impl OpensWhen for ThreeOfFive {
    fn looks_at(&self) -> u32 {
        5
    }

    fn opens(&self, recent: &Recent) -> bool {
        self.0.lock().push(recent.iter().collect());
        recent.failures() >= 3
    }
}

#[tokio::test(start_paused = true)]
async fn cb_1_a_strategy_of_ones_own_sees_the_results_of_the_fleet_oldest_first() {
    use Verdict::{Failure as F, Success as S};
    let (world, seen) = (World::new(), Arc::new(Mutex::new(Vec::new())));
    let builder = || world.builder().strategy(Strategy::own(ThreeOfFive(Arc::clone(&seen))));
    let (a, b) = (world.started(builder()).await, world.started(builder()).await);
    fails(&a, 1).await;
    told().await;
    works(&b, 1).await;
    told().await;
    fails(&b, 1).await;
    told().await;
    assert!(!a.is_open());
    assert_eq!(seen.lock().last().unwrap(), &[F, S, F]);
    works(&a, 3).await;
    told().await;
    assert_eq!(seen.lock().last().unwrap(), &[S, F, S, S, S]);
    fails(&a, 2).await;
    told().await;
    assert_eq!(seen.lock().last().unwrap(), &[S, S, S, F, F]);
    assert!(!a.is_open());
    fails(&b, 1).await;
    told().await;
    assert!(a.is_open() && b.is_open());
}

#[tokio::test(start_paused = true)]
async fn cb_2_an_opening_blocks_every_process_and_a_check_closes_it_for_all() {
    let world = World::new();
    let changes: Arc<Mutex<Vec<(usize, StateChange)>>> = Arc::default();
    let mut breakers = Vec::new();
    for process in 0..4 {
        let changes = Arc::clone(&changes);
        let builder = world.builder().on_state_change(move |change| changes.lock().push((process, change)));
        breakers.push(world.started(builder).await);
    }
    world.set_up(false);
    fails(&breakers[0], 2).await;
    fails(&breakers[1], 1).await;
    // Failures go at once.
    sleep(ms(5)).await;
    for breaker in &breakers {
        assert!(is_blocked(breaker).await);
        assert_eq!(breaker.state().blocked, 1);
    }
    sleep(ms(2_500)).await;
    assert_eq!(leaders(&breakers).len(), 1);
    world.set_up(true);
    sleep(SECOND).await;
    assert!(breakers.iter().all(|breaker| !breaker.is_open()));
    assert_eq!(leaders(&breakers).len(), 0, "there is nothing to check");
    // Once in each process, and all agree on when.
    let changes = changes.lock();
    for to in [Position::Open, Position::Closed] {
        let told: Vec<_> = changes.iter().filter(|(_, change)| change.to == to).collect();
        let mut who: Vec<usize> = told.iter().map(|(process, _)| *process).collect();
        who.sort_unstable();
        assert_eq!(who, [0, 1, 2, 3]);
        assert!(told.iter().all(|(_, change)| change.at == told[0].1.at));
    }
}

#[tokio::test(start_paused = true)]
async fn cb_9_one_bad_machine_opens_nothing_where_two_are_asked_for() {
    let world = World::new();
    let (a, b) = (
        world.started(world.builder().min_reporters(2)).await,
        world.started(world.builder().min_reporters(2)).await,
    );
    works(&b, 1).await;
    told().await;
    fails(&a, 20).await;
    told().await;
    assert!(!a.is_open());
    fails(&b, 1).await;
    told().await;
    assert!(a.is_open());
    // Alone for 10 s, one is enough.
    let world = World::new();
    let alone = world.started(world.builder().min_reporters(2)).await;
    fails(&alone, 3).await;
    told().await;
    assert!(alone.is_open());
}

// ---- CB-3: recovery by checks ------------------------------------------------------------------------------------------

async fn open_at(world: &World, breaker: &CircuitBreaker) -> Instant {
    world.set_up(false);
    world.checks.lock().clear();
    fails(breaker, 3).await;
    sleep(ms(1)).await;
    assert!(breaker.is_open());
    Instant::now() - ms(1)
}

#[tokio::test(start_paused = true)]
async fn cb_3_checks_come_by_the_backoff_and_attempt_1_waits_too() {
    let own = Backoff::own(|attempt| ms(100 * attempt * attempt));
    let cases: [(Backoff, [u64; 4]); 3] = [
        (Constant::every(ms(500)).into(), [500, 1_000, 1_500, 2_000]),
        (Exponential::new(ms(100), 2.0).max(ms(300)).into(), [100, 300, 600, 900]),
        (own, [100, 500, 1_400, 3_000]),
    ];
    for (backoff, expected) in cases {
        let world = World::new();
        let breaker = world.started(world.builder().recovery(world.health(backoff))).await;
        let opened = open_at(&world, &breaker).await;
        sleep(ms(expected[3] + 50)).await;
        let checked = world.checked(opened);
        assert_eq!(checked.len(), 4, "{checked:?}");
        for (at, expected) in checked.iter().zip(expected) {
            assert!((expected..expected + 15).contains(at), "{checked:?}");
        }
        assert_eq!(breaker.state().attempt, Some(5));
    }
}

#[tokio::test(start_paused = true)]
async fn cb_3_an_error_a_timeout_and_a_panic_are_failed_checks_and_reported() {
    let world = World::new();
    let number = Arc::new(AtomicU32::new(0));
    let check = {
        let number = Arc::clone(&number);
        move |_: CheckKind| {
            let number = number.fetch_add(1, Ordering::SeqCst);
            async move {
                match number {
                    0 => Err("no"),
                    1 => pending().await,
                    2 => panic!("oh no"),
                    _ => Ok(()),
                }
            }
        }
    };
    let check = HealthCheck::new(Constant::every(ms(100)), check).timeout(ms(300));
    let breaker = world.started(world.builder().recovery(check)).await;
    fails(&breaker, 3).await;
    sleep(ms(690)).await;
    assert!(breaker.is_open());
    sleep(ms(60)).await;
    assert!(!breaker.is_open());
    assert_eq!(number.load(Ordering::SeqCst), 4);
    let failed: Vec<_> = world.troubles.lock().iter().cloned().collect();
    let [Trouble::CheckFailed { kind, source: CheckError::Failed(error), .. }, timed_out, panicked] =
        &failed[..]
    else {
        panic!("{failed:?}");
    };
    assert_eq!((*kind, error.to_string().as_str()), (CheckKind::Recovery, "no"));
    assert!(
        matches!(timed_out, Trouble::CheckFailed { source: CheckError::Timeout(after), .. } if *after == ms(300))
    );
    assert!(
        matches!(panicked, Trouble::CheckFailed { source: CheckError::Panicked(said), .. } if said == "oh no")
    );
}

#[tokio::test(start_paused = true)]
async fn cb_3_a_new_leader_goes_on_with_number_and_moment() {
    let world = World::new();
    let mut breakers = Vec::new();
    for _ in 0..3 {
        breakers.push(world.started(world.builder()).await);
    }
    let opened = open_at(&world, &breakers[0]).await;
    sleep(ms(2_400)).await;
    assert_eq!(world.checked(opened).len(), 2);
    let [first] = leaders(&breakers)[..] else { panic!("one leads") };
    // Given away by stop at once, not after a TTL.
    breakers[first].stop().await;
    sleep(ms(5)).await;
    let [second] = leaders(&breakers)[..] else { panic!("one leads") };
    assert_ne!(first, second);
    assert_eq!(breakers[second].state().attempt, Some(3));
    sleep(ms(1_000)).await;
    let checked = world.checked(opened);
    assert_eq!(checked.len(), 1);
    assert!((3_000..3_030).contains(&checked[0]), "{checked:?}");
}

#[tokio::test(start_paused = true)]
async fn cb_3_a_leader_that_is_gone_is_followed_within_its_ttl_and_checks_no_more() {
    let world = World::new();
    let (faulty, handle) = world.faulty();
    // Its check takes as long as it may.
    let dropped = Arc::new(AtomicU32::new(0));
    struct Dropped(Arc<AtomicU32>, Arc<Mutex<Vec<Instant>>>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
            self.1.lock().push(Instant::now());
        }
    }
    let ended: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let check = {
        let (dropped, ended) = (Arc::clone(&dropped), Arc::clone(&ended));
        move |_: CheckKind| {
            let held = Dropped(Arc::clone(&dropped), Arc::clone(&ended));
            async move {
                let _held = held;
                pending::<Result<(), &str>>().await
            }
        }
    };
    let stuck = HealthCheck::new(Constant::every(SECOND), check).timeout(SECOND * 60);
    let troubles = Arc::clone(&world.troubles);
    let first = CircuitBreaker::builder("api")
        .clock(world.clock)
        .strategy(Consecutive::new(3))
        .recovery(stuck)
        .on_error(move |trouble| troubles.lock().push(trouble.clone()));
    // The policies are the same: what a check does is none of it, but its timeout is.
    let first = world.started_on(first, Arc::clone(&faulty)).await;
    let other = world.health(Constant::every(SECOND)).timeout(SECOND * 60);
    fails(&first, 3).await;
    sleep(ms(5)).await;
    let second = world.started(world.builder().recovery(other)).await;
    sleep(ms(1_500)).await;
    assert_eq!((first.role(), second.role()), (Role::Leader, Role::Follower));
    assert_eq!(dropped.load(Ordering::SeqCst), 0, "its check runs");
    // The store is gone, for it alone.
    handle.away_with(Fault::Hang);
    let gone = Instant::now();
    sleep(ms(1_300)).await;
    assert_eq!(dropped.load(Ordering::SeqCst), 0, "it leads, as far as it knows");
    assert_eq!(second.role(), Role::Follower);
    sleep(ms(720)).await;
    assert_eq!(dropped.load(Ordering::SeqCst), 1, "its check was dropped by its own clock");
    assert_eq!(first.role(), Role::Follower);
    assert!(ended.lock()[0] - gone <= SECOND * 2);
    sleep(ms(50)).await;
    // Never a failed check: it is uncounted.
    assert!(world.codes().iter().all(|code| *code == "unavailable"));
    assert_eq!(world.checked(gone).len(), 1);
    assert!(!second.is_open(), "the other leads, its check was due, and went well");
    handle.back();
    sleep(SECOND * 3).await;
    assert!(!first.is_open());
}

// ---- CB-4: half-open -----------------------------------------------------------------------------------------------------

fn half_open(world: &World, permits: u32) -> BreakerBuilder {
    world.builder().recovery(HalfOpen::new(Constant::every(SECOND)).permits(permits).permit_ttl(SECOND * 3))
}

#[tokio::test(start_paused = true)]
async fn cb_4_so_many_calls_try_fleet_wide_and_the_first_failure_reopens() {
    let world = World::new();
    let (a, b) = (world.started(half_open(&world, 2)).await, world.started(half_open(&world, 2)).await);
    let opened = open_at(&world, &a).await;
    sleep(ms(990)).await;
    assert!(is_blocked(&a).await && is_blocked(&b).await, "it is too early");
    sleep(ms(20)).await;
    assert!(opened.elapsed() < ms(1_100));
    let slow = || async {
        sleep(ms(400)).await;
        Ok::<_, &str>(7)
    };
    let (mut one, mut two) = (pin!(a.execute(slow).into_future()), pin!(b.execute(slow).into_future()));
    assert!(once_polled(one.as_mut()).await.is_none() && once_polled(two.as_mut()).await.is_none());
    sleep(ms(10)).await;
    assert!(once_polled(one.as_mut()).await.is_none() && once_polled(two.as_mut()).await.is_none());
    assert!(is_blocked(&a).await && is_blocked(&b).await, "both permits are out");
    assert_eq!(one.await, Ok(7));
    sleep(ms(1)).await;
    assert!(a.is_open(), "one of two");
    assert_eq!(two.await, Ok(7));
    sleep(ms(5)).await;
    assert!(!a.is_open() && !b.is_open());
    assert_eq!(a.state().why, Some(Why::Trials));
    // A failure ends the attempt.
    open_at(&world, &a).await;
    sleep(ms(1_010)).await;
    fails(&a, 1).await;
    sleep(ms(500)).await;
    assert!(is_blocked(&b).await);
    assert_eq!(a.state().attempt, Some(2));
    sleep(ms(510)).await;
    works(&a, 1).await;
    sleep(ms(110)).await;
    works(&b, 1).await;
    sleep(ms(5)).await;
    assert!(!a.is_open());
}

#[tokio::test(start_paused = true)]
async fn case_9_a_trial_that_is_ignored_or_dropped_is_free_at_once_and_one_of_a_dead_process_by_its_ttl() {
    let world = World::new();
    let ignores = || half_open(&world, 1).on_cancel(OnCancel::Ignore);
    let (faulty, handle) = world.faulty();
    let (a, b) = (world.started_on(ignores(), faulty).await, world.started(ignores()).await);
    open_at(&world, &b).await;
    sleep(ms(1_010)).await;
    {
        // Dropped while it runs, and by the rule of this breaker ignored.
        let mut call = pin!(a.execute(pending::<Result<(), &str>>).into_future());
        assert!(once_polled(call.as_mut()).await.is_none());
        sleep(ms(5)).await;
        assert!(once_polled(call.as_mut()).await.is_none());
        assert!(is_blocked(&b).await);
    }
    sleep(ms(105)).await;
    {
        // Dropped before its answer is taken.
        let mut call = pin!(b.execute(|| async { Ok::<_, &str>(7) }).into_future());
        assert!(once_polled(call.as_mut()).await.is_none());
        sleep(ms(5)).await;
    }
    sleep(ms(5)).await;
    let mut held = Box::pin(a.execute(pending::<Result<(), &str>>).into_future());
    assert!(once_polled(held.as_mut()).await.is_none());
    sleep(ms(5)).await;
    assert!(once_polled(held.as_mut()).await.is_none());
    assert!(is_blocked(&b).await, "the permit was free, and is taken again");
    // A long trial keeps its permit beyond the TTL.
    sleep(SECOND * 10).await;
    assert!(is_blocked(&b).await);
    // Its process dies.
    handle.away_with(Fault::Hang);
    sleep(ms(1_900)).await;
    assert!(is_blocked(&b).await);
    sleep(ms(1_200)).await;
    works(&b, 1).await;
    sleep(ms(5)).await;
    assert!(!b.is_open());
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn cb_11_a_process_that_stops_in_a_trial_leaves_it_to_others_at_once() {
    let world = World::new();
    let (a, b) = (world.started(half_open(&world, 1)).await, world.started(half_open(&world, 1)).await);
    open_at(&world, &b).await;
    sleep(ms(1_010)).await;
    let mut held = Box::pin(a.execute(pending::<Result<(), &str>>).into_future());
    assert!(once_polled(held.as_mut()).await.is_none());
    sleep(ms(5)).await;
    assert!(once_polled(held.as_mut()).await.is_none());
    assert!(is_blocked(&b).await);
    a.stop().await;
    sleep(ms(110)).await;
    works(&b, 1).await;
    sleep(ms(5)).await;
    assert!(!b.is_open());
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn cb_7_a_circuit_that_was_lost_is_closed_and_what_was_known_of_it_opens_nothing() {
    let world = World::new();
    let (a, b) = (world.started(world.builder()).await, world.started(world.builder()).await);
    let late = {
        let b = b.clone();
        tokio::spawn(async move {
            b.execute(|| async {
                sleep(SECOND * 3).await;
                Err::<(), _>("no")
            })
            .await
        })
    };
    sleep(ms(1)).await;
    fails(&a, 2).await;
    told().await;
    world.store.wipe();
    // What was counted is lost, and what began before the loss counts no more.
    assert_eq!(late.await.unwrap(), Err(ExecuteError::Call("no")));
    told().await;
    fails(&a, 2).await;
    told().await;
    assert!(!a.is_open());
    let before = a.state().generation;
    fails(&a, 3).await;
    told().await;
    assert!(a.is_open() && b.is_open());
    assert!(a.state().generation > before);
    // Open, and lost: all processes find it closed when they look, and it opens again if it must.
    world.store.wipe();
    sleep(SECOND * 31).await;
    assert!(!a.is_open() && !b.is_open());
    fails(&b, 3).await;
    told().await;
    assert!(a.is_open());
}

#[tokio::test(start_paused = true)]
async fn cb_4_one_question_at_a_time_and_none_for_100_ms_after_a_denial() {
    let world = World::new();
    let (faulty, handle) = world.faulty();
    let a = world.started_on(half_open(&world, 1), faulty).await;
    let b = world.started(half_open(&world, 1)).await;
    open_at(&world, &b).await;
    sleep(ms(1_010)).await;
    let mut held = Box::pin(b.execute(pending::<Result<(), &str>>).into_future());
    assert!(once_polled(held.as_mut()).await.is_none());
    sleep(ms(5)).await;
    assert!(once_polled(held.as_mut()).await.is_none());
    let before = handle.calls(Operation::Circuit);
    for _ in 0..100 {
        assert!(is_blocked(&a).await);
        sleep(ms(10)).await;
    }
    let asked = handle.calls(Operation::Circuit) - before;
    assert!((8..=11).contains(&asked), "{asked} questions in a second");
}

// ---- CB-5: a call --------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn cb_5_what_counts_as_a_failure_is_the_callers_to_say() {
    let world = World::new();
    let troubles = Arc::clone(&world.troubles);
    let builder = world.builder().failure_when(move |error: &u16| {
        assert_ne!(*error, 999, "oh no");
        *error >= 500
    });
    let breaker = builder
        .on_error(move |trouble| troubles.lock().push(trouble.clone()))
        .build(world.store.clone())
        .unwrap();
    breaker.start().await.unwrap();
    for _ in 0..9 {
        assert_eq!(breaker.execute(|| async { Err::<(), u16>(404) }).await, Err(ExecuteError::Call(404)));
    }
    // A panic in the classifier is a failure, and reported.
    for status in [500, 999] {
        assert_eq!(
            breaker.execute(|| async { Err::<(), u16>(status) }).await,
            Err(ExecuteError::Call(status))
        );
    }
    told().await;
    assert!(!breaker.is_open());
    assert_eq!(world.codes(), ["panicked"]);
    let strict = breaker.execute(|| async { Err::<(), u16>(404) }).failure_when(|_: &u16| true).await;
    assert_eq!(strict, Err(ExecuteError::Call(404)));
    told().await;
    assert!(breaker.is_open());
}

#[tokio::test(start_paused = true)]
async fn cb_5_a_panic_is_a_failure_and_goes_on_unwinding() {
    let world = World::new();
    let breaker = world.started(world.builder()).await;
    for early in [true, false, true] {
        let breaker = breaker.clone();
        let call = tokio::spawn(async move {
            let call = || {
                assert!(!early, "oh no");
                async { panic!("oh no") }
            };
            let _: Result<(), ExecuteError<()>> = breaker.execute(call).await;
        });
        assert!(call.await.unwrap_err().is_panic());
    }
    told().await;
    assert!(breaker.is_open());
}

#[tokio::test(start_paused = true)]
async fn cb_5_a_call_that_is_dropped_counts_as_it_was_told() {
    let cases = [
        (OnCancel::Ignore, ms(5_000), false),
        (OnCancel::Failure, ms(0), true),
        (OnCancel::FailureAfter(ms(500)), ms(499), false),
        (OnCancel::FailureAfter(ms(500)), ms(500), true),
    ];
    for (on_cancel, ran, opens) in cases {
        let world = World::new();
        let breaker = world.started(world.builder().on_cancel(on_cancel)).await;
        for _ in 0..3 {
            let call = breaker.execute(pending::<Result<(), &str>>);
            assert!(timeout(ran, call.into_future()).await.is_err());
        }
        told().await;
        assert_eq!(breaker.is_open(), opens, "{on_cancel:?} after {ran:?}");
    }
}

// ---- CB-6, CB-11: life ---------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn cb_6_becoming_leader_is_a_change_and_so_is_stop() {
    let world = World::new();
    let roles: Arc<Mutex<Vec<Role>>> = Arc::default();
    let told_roles = Arc::clone(&roles);
    let changes = Arc::new(AtomicU32::new(0));
    let told_changes = Arc::clone(&changes);
    let builder =
        world.builder().on_role_change(move |role| told_roles.lock().push(role)).on_state_change(move |_| {
            told_changes.fetch_add(1, Ordering::SeqCst);
        });
    let breaker = world.started(builder).await;
    assert_eq!(breaker.role(), Role::Follower);
    assert!(roles.lock().is_empty());
    open_at(&world, &breaker).await;
    assert_eq!(*roles.lock(), [Role::Leader]);
    breaker.stop().await;
    assert_eq!(*roles.lock(), [Role::Leader, Role::Follower]);
    assert_eq!(changes.load(Ordering::SeqCst), 1);
    // It is open when it is loaded: no change.
    breaker.start().await.unwrap();
    assert!(breaker.is_open());
    sleep(ms(5)).await;
    assert_eq!(changes.load(Ordering::SeqCst), 1);
    assert_eq!(roles.lock().last(), Some(&Role::Leader));
}

#[tokio::test(start_paused = true)]
async fn cb_11_start_and_stop_come_in_any_order_and_from_many_tasks() {
    let world = World::new();
    let breaker = world.builder().build(world.store.clone()).unwrap();
    breaker.stop().await;
    let early = breaker.execute(|| async { Ok::<(), ()>(()) }).await;
    assert!(matches!(early, Err(ExecuteError::NotStarted { .. })), "{early:?}");
    for round in 0..50 {
        let tasks: Vec<_> = (0..6)
            .map(|task| {
                let breaker = breaker.clone();
                tokio::spawn(async move {
                    if (task + round) % 2 == 0 {
                        breaker.start().await.unwrap();
                    } else {
                        breaker.stop().await;
                    }
                })
            })
            .collect();
        for task in tasks {
            timeout(SECOND * 10, task).await.expect("it ends").unwrap();
        }
    }
    breaker.start().await.unwrap();
    breaker.start().await.unwrap();
    works(&breaker, 1).await;
    // Stop delivers what was recorded.
    fails(&breaker, 2).await;
    breaker.stop().await;
    let other = world.started(world.builder()).await;
    fails(&other, 1).await;
    told().await;
    assert!(other.is_open());
}

#[tokio::test(start_paused = true)]
async fn cb_11_dropping_the_last_handle_is_stop() {
    let world = World::new();
    let (a, b) = (world.started(world.builder()).await, world.started(world.builder()).await);
    let clone = a.clone();
    open_at(&world, &a).await;
    assert_eq!(a.role(), Role::Leader);
    drop(a);
    sleep(ms(50)).await;
    assert_eq!(clone.role(), Role::Leader);
    drop(clone);
    sleep(ms(50)).await;
    assert_eq!(b.role(), Role::Leader, "it was given away at once");
}

#[tokio::test(start_paused = true)]
async fn cb_11_a_start_without_a_store_is_closed_and_loaded_later() {
    let world = World::new();
    let opener = world.started(world.builder()).await;
    open_at(&world, &opener).await;
    let (faulty, handle) = world.faulty();
    handle.away_with(Fault::Hang);
    let breaker = world.builder().op_timeout(ms(700)).build(faulty).unwrap();
    let before = Instant::now();
    breaker.start().await.unwrap();
    assert!((ms(700)..ms(710)).contains(&before.elapsed()), "{:?}", before.elapsed());
    works(&breaker, 1).await;
    sleep(ms(5)).await;
    assert_eq!(world.codes(), ["unavailable"]);
    handle.back();
    sleep(SECOND * 2).await;
    assert!(world.codes().contains(&"available"));
    // The opener's leader has failed checks meanwhile; here it is seen as it is.
    assert!(breaker.is_open() && is_blocked(&breaker).await);
}

#[tokio::test(start_paused = true)]
async fn cb_11_a_start_that_the_store_refuses_is_none() {
    let world = World::new();
    let _first = world.started(world.builder().revision(3)).await;
    let differs =
        world.builder().revision(3).strategy(Consecutive::new(4)).build(world.store.clone()).unwrap();
    let error = differs.start().await.unwrap_err();
    assert!(
        matches!(&error, StartError::InvalidOptions { source, .. } if source.to_string().contains("threshold")),
        "{error:?}"
    );
    let old =
        world.builder().revision(2).on_superseded(OnSuperseded::Refuse).build(world.store.clone()).unwrap();
    assert!(matches!(old.start().await, Err(StartError::PolicySuperseded { own: 2, pinned: 3, .. })));
    for breaker in [&differs, &old] {
        let result = breaker.execute(|| async { Ok::<(), ()>(()) }).await;
        assert!(matches!(result, Err(ExecuteError::NotStarted { .. })), "{result:?}");
    }
    let adopts = world.builder().revision(2).build(world.store.clone()).unwrap();
    adopts.start().await.unwrap();
    works(&adopts, 1).await;
}

// ---- CB-7: results of the past, and a store that is away ---------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn cb_7_results_of_calls_from_before_a_change_never_reopen() {
    let world = World::new();
    let breaker = world.started(world.builder()).await;
    let slow = || async {
        sleep(SECOND * 2).await;
        Err::<(), _>("no")
    };
    let late: Vec<_> = (0..10)
        .map(|_| {
            let breaker = breaker.clone();
            tokio::spawn(async move { breaker.execute(slow).await })
        })
        .collect();
    sleep(ms(1)).await;
    open_at(&world, &breaker).await;
    world.set_up(true);
    sleep(ms(1_200)).await;
    assert!(!breaker.is_open());
    for call in late {
        assert_eq!(call.await.unwrap(), Err(ExecuteError::Call("no")));
    }
    told().await;
    assert!(!breaker.is_open());
    fails(&breaker, 3).await;
    told().await;
    assert!(breaker.is_open(), "newer ones do");
}

#[tokio::test(start_paused = true)]
async fn cb_7_a_store_that_is_away_keeps_the_last_known_state_and_heals() {
    let world = World::new();
    let (faulty, handle) = world.faulty();
    let breaker = world.started_on(world.builder(), faulty).await;
    handle.away();
    fails(&breaker, 9).await;
    sleep(SECOND * 5).await;
    works(&breaker, 1).await;
    assert_eq!(world.codes(), ["unavailable"], "reported once");
    handle.back();
    sleep(SECOND * 3).await;
    assert_eq!(world.codes(), ["available"]);
    // What a stop could not deliver is said.
    let (cut, cut_handle) = world.faulty();
    let stopping = world.started_on(world.builder(), cut).await;
    cut_handle.away();
    fails(&stopping, 2).await;
    let before = Instant::now();
    stopping.stop().await;
    assert!(before.elapsed() <= ms(2_050), "two operation timeouts at most: {:?}", before.elapsed());
    assert_eq!(world.codes(), ["unavailable", "undelivered"]);
    world.set_up(false);
    fails(&breaker, 3).await;
    told().await;
    assert!(breaker.is_open());
    world.codes();
    handle.away();
    world.set_up(true);
    sleep(SECOND * 20).await;
    assert!(is_blocked(&breaker).await, "the last known state");
    handle.back();
    sleep(SECOND * 6).await;
    assert!(!breaker.is_open());
}

#[tokio::test(start_paused = true)]
async fn cb_7_a_report_whose_answer_was_lost_counts_once() {
    for lost in [Fault::LostThenError, Fault::disconnected(), Fault::SlowReply(SECOND * 3)] {
        let world = World::new();
        let (faulty, handle) = world.faulty();
        let breaker = world.started_on(world.builder(), faulty).await;
        fails(&breaker, 1).await;
        told().await;
        handle.fail_next(1, lost.clone());
        fails(&breaker, 1).await;
        sleep(SECOND * 5).await;
        assert!(!breaker.is_open(), "{lost:?}: two failures");
        fails(&breaker, 1).await;
        sleep(SECOND).await;
        assert!(!world.codes().is_empty());
        let opened = breaker.state().generation != 0 && breaker.state().why == Some(Why::Results);
        assert!(opened, "{lost:?}: three failures");
    }
}

// ---- CB-8: what it costs ------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn cb_8_at_most_20_requests_a_second_go_to_the_store_whatever_the_rate() {
    let world = World::new();
    let (faulty, handle) = world.faulty();
    let breaker = world.started_on(world.builder().strategy(Count::new(1.0, 1_000, 1_000)), faulty).await;
    let sent = |handle: &Handle| handle.calls(Operation::Circuit);
    let before = sent(&handle);
    sleep(SECOND * 25).await;
    assert_eq!(sent(&handle) - before, 0, "nothing to say, nothing said");
    for (rate, most) in [(1, 10), (100, 10), (1_000, 10)] {
        let before = sent(&handle);
        for _ in 0..10_000 / rate {
            works(&breaker, rate).await;
            sleep(ms(1)).await;
        }
        let seconds = f64::from(10_000 / rate) / 1_000.0;
        let asked = sent(&handle) - before;
        let asked = f64::from(u32::try_from(asked).unwrap());
        assert!(asked <= f64::from(most) * seconds + 1.0, "{asked} in {seconds} s");
        assert!(asked >= 1.0 || seconds < 0.2, "{asked} in {seconds} s");
    }
    let before = sent(&handle);
    for _ in 0..10_000 {
        works(&breaker, 1).await;
        fails(&breaker, 1).await;
        sleep(ms(1)).await;
    }
    let asked = sent(&handle) - before;
    assert!((200..=222).contains(&asked), "{asked} in 10 s of failures, with a burst of 20");
}

// ---- CB-10: idle probes ---------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn cb_10_idle_probes_come_an_interval_after_the_last_call_of_any_process() {
    let world = World::new();
    let idle = || {
        world
            .builder()
            .recovery(world.health(Constant::every(SECOND)).idle_interval(SECOND * 2))
            .min_reporters(9)
    };
    let start = Instant::now();
    let (a, b) = (world.started(idle()).await, world.started(idle()).await);
    sleep(ms(4_100)).await;
    let checks = world.checked(start);
    assert_eq!(checks.len(), 2, "{checks:?}");
    assert!((2_000..2_020).contains(&checks[0]) && (4_000..4_040).contains(&checks[1]), "{checks:?}");
    // A call of either puts it off.
    for _ in 0..10 {
        sleep(ms(800)).await;
        works(&a, 1).await;
        sleep(ms(800)).await;
        works(&b, 1).await;
    }
    assert_eq!(world.checked(start).len(), 0);
    let last = Instant::now();
    sleep(ms(1_990)).await;
    assert_eq!(world.checked(last).len(), 0);
    sleep(ms(150)).await;
    assert_eq!(world.checked(last).len(), 1);
    // One that fails opens at once, whatever the strategy and the reporters.
    world.set_up(false);
    sleep(SECOND * 2).await;
    assert!(a.is_open() && b.is_open());
    assert_eq!(a.state().why, Some(Why::Check));
    assert!(world.codes().contains(&"check_failed"));
}

#[tokio::test(start_paused = true)]
async fn cb_10_a_call_cancels_a_running_probe_and_starts_the_wait_anew() {
    let world = World::new();
    let (began, ended) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let check = {
        let (began, ended) = (Arc::clone(&began), Arc::clone(&ended));
        move |_: CheckKind| {
            began.fetch_add(1, Ordering::SeqCst);
            let ended = Arc::clone(&ended);
            async move {
                sleep(SECOND).await;
                ended.fetch_add(1, Ordering::SeqCst);
                Err::<(), _>("down")
            }
        }
    };
    let check = HealthCheck::new(Constant::every(SECOND), check).idle_interval(SECOND * 2);
    let breaker = world.started(world.builder().recovery(check)).await;
    sleep(ms(2_500)).await;
    assert_eq!((began.load(Ordering::SeqCst), ended.load(Ordering::SeqCst)), (1, 0));
    works(&breaker, 1).await;
    sleep(ms(1_900)).await;
    assert_eq!((began.load(Ordering::SeqCst), ended.load(Ordering::SeqCst)), (1, 0), "cancelled, uncounted");
    assert!(!breaker.is_open());
    sleep(ms(1_400)).await;
    assert_eq!((began.load(Ordering::SeqCst), ended.load(Ordering::SeqCst)), (2, 1));
    assert!(breaker.is_open());
}

// ---- CB-12, BI: bad input and user code ---------------------------------------------------------------------------------

#[test]
fn cb_12_every_option_out_of_its_bounds_is_refused_by_name() {
    let world_free = || {
        CircuitBreaker::builder("api")
            .strategy(Consecutive::new(3))
            .recovery(HalfOpen::new(Constant::every(SECOND)))
    };
    let check = || HealthCheck::new(Constant::every(SECOND), |_| async { Ok::<(), String>(()) });
    let far = Duration::MAX;
    let cases: Vec<(BreakerBuilder, &str)> = vec![
        (CircuitBreaker::builder("").strategy(Consecutive::new(3)).recovery(check()), "id"),
        (CircuitBreaker::builder("api").recovery(check()), "strategy"),
        (CircuitBreaker::builder("api").strategy(Consecutive::new(3)), "recovery"),
        (world_free().strategy(Consecutive::new(0)), "consecutive.threshold"),
        (world_free().strategy(Consecutive::new(1_001)), "consecutive.threshold"),
        (world_free().strategy(Count::new(0.0, 10, 1)), "count.threshold"),
        (world_free().strategy(Count::new(1.1, 10, 1)), "count.threshold"),
        (world_free().strategy(Count::new(f64::NAN, 10, 1)), "count.threshold"),
        (world_free().strategy(Count::new(0.5, 0, 1)), "count.size"),
        (world_free().strategy(Count::new(0.5, 1_001, 1)), "count.size"),
        (world_free().strategy(Count::new(0.5, 10, 11)), "count.minimum_calls"),
        (world_free().strategy(Count::new(0.5, 10, 0)), "count.minimum_calls"),
        (world_free().strategy(Sampling::new(-0.5, SECOND, 1)), "sampling.threshold"),
        (world_free().strategy(Sampling::new(0.5, Duration::ZERO, 1)), "sampling.duration"),
        (world_free().strategy(Sampling::new(0.5, far, 1)), "sampling.duration"),
        (world_free().strategy(Sampling::new(0.5, SECOND, 0)), "sampling.minimum_calls"),
        (world_free().recovery(HalfOpen::new(Constant::every(far))), "backoff"),
        (world_free().recovery(HalfOpen::new(Exponential::new(SECOND, 0.9))), "backoff.multiplier"),
        (world_free().recovery(HalfOpen::new(Exponential::new(SECOND, f64::INFINITY))), "backoff.multiplier"),
        (world_free().recovery(HalfOpen::new(Exponential::new(far, 2.0))), "backoff.initial"),
        (world_free().recovery(HalfOpen::new(Exponential::new(SECOND, 2.0).max(far))), "backoff.max"),
        (world_free().recovery(HalfOpen::new(Constant::every(SECOND)).permits(0)), "half_open.permits"),
        (
            world_free().recovery(HalfOpen::new(Constant::every(SECOND)).permit_ttl(Duration::ZERO)),
            "half_open.permit_ttl",
        ),
        (
            world_free().recovery(HalfOpen::new(Constant::every(SECOND)).permit_ttl(far)),
            "half_open.permit_ttl",
        ),
        (world_free().recovery(check().timeout(Duration::ZERO)), "check_timeout"),
        (world_free().recovery(check().idle_interval(ms(99))), "idle_interval"),
        (world_free().leader_ttl(ms(99)), "leader_ttl"),
        (world_free().leader_ttl(far), "leader_ttl"),
        (world_free().min_reporters(0), "min_reporters"),
        (world_free().revision(u32::MAX), "revision"),
        (world_free().op_timeout(Duration::ZERO), "op_timeout"),
    ];
    for (builder, option) in cases {
        let error = builder.build(MemoryStore::new()).unwrap_err();
        assert_eq!(error.option(), option, "{error}: {}", error.invalid);
        assert!(!error.invalid.allowed.is_empty());
    }
    // The bounds themselves are taken.
    let widest = world_free()
        .strategy(Count::new(1.0, 1_000, 1_000))
        .recovery(
            HalfOpen::new(Exponential::new(Duration::ZERO, 1.0)).permits(1_000).permit_ttl(SECOND * 86_400),
        )
        .leader_ttl(ms(100))
        .min_reporters(u32::MAX)
        .on_cancel(OnCancel::FailureAfter(far))
        .op_timeout(ms(1));
    assert!(widest.build(MemoryStore::new()).is_ok());
}

struct Panics;

impl OpensWhen for Panics {
    fn opens(&self, _: &Recent) -> bool {
        panic!("oh no")
    }
}

#[tokio::test(start_paused = true)]
async fn bi_4_a_panic_in_code_of_the_user_is_caught_reported_and_changes_nothing_else() {
    let world = World::new();
    let breaker = world.started(world.builder().strategy(Strategy::own(Panics))).await;
    fails(&breaker, 5).await;
    told().await;
    assert!(!breaker.is_open());
    let codes = world.codes();
    assert!(!codes.is_empty() && codes.iter().all(|code| *code == "panicked"), "{codes:?}");

    let world = World::new();
    let builder = world
        .builder()
        .recovery(world.health(Backoff::own(|_| panic!("oh no"))))
        .on_state_change(|_| panic!("oh no"))
        .on_role_change(|_| panic!("oh no"));
    let breaker = world.started(builder).await;
    let opened = open_at(&world, &breaker).await;
    world.set_up(true);
    sleep(ms(9_900)).await;
    assert!(breaker.is_open());
    sleep(ms(200)).await;
    assert!(!breaker.is_open(), "a backoff that panics is a wait of 10 s");
    assert_eq!(world.checked(opened).len(), 1);
    assert!(world.codes().len() >= 4);
}
