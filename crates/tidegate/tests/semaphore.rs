//! What the adaptive semaphore promises, rule by rule, to several processes over one memory store.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, Wake as WakeTask, Waker},
    thread,
    time::Duration,
};

use tidegate::{
    Acquire, AcquireError, Adaptive, AdaptiveSemaphore, Aimd, BuildError, CallError, Capabilities,
    Capability, Class, Concurrency, Growth, Invalid, Job, LastCause, Lease, MemoryStore, Operators, Outcome,
    Recorder, Release, Rule, SemaphoreBuilder, Store, StoreError, Trouble, Valve,
    clock::{Clock, Pace, Sleep, SystemClock, TokioClock},
    contract::{
        AcquireReply, AcquireRequest, Answer, DriverId, Id, Line, Listener, Member, OnSuperseded, Owner,
        PauseReply, Wake, time::Moment,
    },
};
use tokio::{
    task::JoinHandle,
    time::{advance, sleep},
};

#[path = "support/fleet.rs"]
mod fleet;

use fleet::{Fleet, ID, Mode, Remote, Troubles, Wire, id, ms, poll_once, ready, settled, snapshot, until};

const HOUR: Duration = Duration::from_secs(3_600);

/// Takes so many leases, each at the first try.
async fn hold(semaphore: &AdaptiveSemaphore, count: usize) -> Vec<Lease> {
    let mut leases = Vec::with_capacity(count);
    for _ in 0..count {
        leases.push(semaphore.try_acquire().await.expect("there is room"));
    }
    leases
}

async fn hold_in(semaphore: &AdaptiveSemaphore, class: &str, count: usize) -> Vec<Lease> {
    let mut leases = Vec::with_capacity(count);
    for _ in 0..count {
        leases.push(try_in(semaphore, class).await.expect("there is room"));
    }
    leases
}

async fn try_in(semaphore: &AdaptiveSemaphore, class: &str) -> Result<Lease, AcquireError> {
    semaphore.acquire(Acquire::once().in_class(class)).await
}

fn release_all(leases: Vec<Lease>, outcome: Outcome) {
    leases.into_iter().for_each(|lease| lease.release(outcome));
}

/// Asserts that there is no room now.
#[track_caller]
fn full(answer: Result<Lease, AcquireError>) {
    let error = answer.expect_err("there should be no room");
    assert!(matches!(error, AcquireError::Timeout { last: LastCause::Slots, .. }), "{error:?}");
}

/// A task that waits, and waits already.
async fn waiter(semaphore: &AdaptiveSemaphore, acquire: Acquire) -> JoinHandle<Result<Lease, AcquireError>> {
    let before = semaphore.state().waiting;
    let its_own = semaphore.clone();
    let task = tokio::spawn(async move { its_own.acquire(acquire).await });
    until(|| semaphore.state().waiting > before).await;
    task
}

async fn patient(semaphore: &AdaptiveSemaphore) -> JoinHandle<Result<Lease, AcquireError>> {
    waiter(semaphore, Acquire::within(HOUR)).await
}

/// The lease of a task that must have it by now.
async fn granted(task: JoinHandle<Result<Lease, AcquireError>>) -> Lease {
    task.await.expect("no panic").expect("a lease")
}

/// A process that has no more than its hand on a store in use: it neither listens nor renews.
fn stranger(fleet: &Fleet, initial: u32) -> Member {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    let policy = fleet.snapshot().policy.expect("pinned");
    Member {
        id: id(),
        driver: DriverId(u128::from(NEXT.fetch_add(1, Ordering::SeqCst))),
        owner: Owner::new("a stranger").unwrap(),
        policy,
        on_superseded: OnSuperseded::Adopt,
        initial_limit: initial,
    }
}

fn request(waiting: u32) -> AcquireRequest {
    let jobs = vec![tidegate::contract::Job::default()];
    AcquireRequest { class: None, jobs, line: Line { waiting, waited_ms: 0 } }
}

// ---- AS-1 ----------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn as_1_decrease_is_at_most_once_per_cooldown_fleet_wide() {
    let fleet = Fleet::new();
    let (a, b) = (fleet.process(20), fleet.process(20));
    let (of_a, of_b) = (hold(&a, 5).await, hold(&b, 5).await);

    release_all(of_a, Outcome::Throttled);
    release_all(of_b, Outcome::Throttled);
    assert_eq!(fleet.limit(), 10, "ten throttles at once are one event");

    sleep(ms(9_999)).await;
    release_all(hold(&b, 2).await, Outcome::Throttled);
    assert_eq!(fleet.limit(), 10, "the cooldown runs");

    sleep(ms(1)).await;
    release_all(hold(&a, 1).await, Outcome::Throttled);
    assert_eq!(fleet.limit(), 5, "the cooldown is over");
}

#[tokio::test(start_paused = true)]
async fn as_1_the_limit_is_floored_and_never_below_the_minimum() {
    let fleet = Fleet::new();
    let aimd = Aimd::new().decrease_factor(0.7);
    let process = fleet.builder(10).min_limit(4).aimd(aimd).build(fleet.store.clone()).unwrap();
    let mut seen = Vec::new();
    for _ in 0..4 {
        release_all(hold(&process, 1).await, Outcome::Throttled);
        seen.push(fleet.limit());
        sleep(ms(10_000)).await;
    }
    assert_eq!(seen, [7, 4, 4, 4]);
}

// ---- AS-2 ----------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn as_2_growth_needs_demand_and_a_whole_window() {
    let fleet = Fleet::new();
    let (a, b) = (fleet.process(3), fleet.process(3));
    let mut leases = hold(&a, 3).await;
    sleep(ms(4_999)).await;
    full(b.try_acquire().await);
    leases.pop().unwrap().release(Outcome::Success);
    assert_eq!(fleet.limit(), 3, "the window is not over");
    sleep(ms(1)).await;
    leases.pop().unwrap().release(Outcome::Success);
    assert_eq!(fleet.limit(), 4, "a try that was denied is demand");
    leases.pop().unwrap().release(Outcome::Success);
    assert_eq!(fleet.limit(), 4, "once per window");
}

#[tokio::test(start_paused = true)]
async fn as_2_the_limit_does_not_grow_while_traffic_is_quiet() {
    let fleet = Fleet::new();
    let process = fleet.process(3);
    for _ in 0..10 {
        // At the limit, but nobody was denied.
        let leases = hold(&process, 3).await;
        sleep(ms(5_000)).await;
        release_all(leases, Outcome::Success);
    }
    assert_eq!(fleet.limit(), 3);
}

#[tokio::test(start_paused = true)]
async fn as_2_demand_counts_for_one_window() {
    for (ago, after) in [(4_999, 3), (5_000, 2)] {
        let fleet = Fleet::new();
        let process = fleet.process(2);
        let mut leases = hold(&process, 2).await;
        sleep(ms(5_000)).await;
        full(process.try_acquire().await);
        sleep(ms(ago)).await;
        leases.pop().unwrap().release(Outcome::Success);
        assert_eq!(fleet.limit(), after, "demand {ago} ms ago");
    }
}

#[tokio::test(start_paused = true)]
async fn as_2_growth_is_at_most_once_per_window_fleet_wide() {
    let fleet = Fleet::new();
    let (a, b) = (fleet.process(4), fleet.process(4));
    let (of_a, of_b) = (hold(&a, 2).await, hold(&b, 2).await);
    full(a.try_acquire().await);
    full(b.try_acquire().await);
    sleep(ms(4_990)).await;
    full(b.try_acquire().await);
    sleep(ms(10)).await;
    release_all(of_a, Outcome::Success);
    release_all(of_b, Outcome::Success);
    assert_eq!(fleet.limit(), 5);

    let mut leases = hold(&a, 5).await;
    full(b.try_acquire().await);
    sleep(ms(4_999)).await;
    full(b.try_acquire().await);
    leases.pop().unwrap().release(Outcome::Success);
    assert_eq!(fleet.limit(), 5);
    sleep(ms(1)).await;
    leases.pop().unwrap().release(Outcome::Success);
    assert_eq!(fleet.limit(), 6);
}

#[tokio::test(start_paused = true)]
async fn as_2_a_job_that_waits_is_demand() {
    for wire in [None, Some(Wire::Yields)] {
        let fleet = Fleet::new();
        let build = |initial| match wire {
            None => fleet.process(initial),
            Some(wire) => fleet.builder(initial).build(Remote::new(&fleet, wire)).unwrap(),
        };
        let (a, b) = (build(1), build(1));
        let lease = a.try_acquire().await.unwrap();
        let waits = patient(&b).await;
        sleep(ms(5_000)).await;
        lease.release(Outcome::Success);
        a.flush().await;
        assert_eq!(fleet.limit(), 2, "{wire:?}");
        drop(granted(waits).await);
    }
}

#[tokio::test(start_paused = true)]
async fn as_2_a_denial_by_the_bound_of_a_class_is_demand() {
    let fleet = Fleet::new();
    let classes = [Class::reserved("interactive", 0.5), Class::unreserved("background")];
    let process = fleet.process_with(4, &classes);
    let leases = hold_in(&process, "background", 2).await;
    sleep(ms(5_000)).await;
    full(try_in(&process, "background").await);
    assert_eq!(fleet.held(), 2, "below the limit");
    release_all(leases, Outcome::Success);
    assert_eq!(fleet.limit(), 5);
}

#[tokio::test(start_paused = true)]
async fn as_2_a_rate_or_a_pause_is_no_demand() {
    // How many tokens the rule holds, whether the id is paused, what a try is denied by, and the limit after.
    let cases = [
        (100, false, LastCause::Slots, 3),
        (2, false, LastCause::Rate, 2), // The slots are full as well: the rate comes first.
        (100, true, LastCause::Pause, 2),
    ];
    for (tokens, paused, cause, after) in cases {
        let fleet = Fleet::new();
        let valve = Valve::builder(ID)
            .rule(Rule::token_bucket(tokens, HOUR))
            .concurrency(Concurrency::Adaptive(Adaptive::new(2)))
            .clock(fleet.clock)
            .build(fleet.store.clone())
            .unwrap();
        let held = [valve.acquire(Job::new()).await.unwrap(), valve.acquire(Job::new()).await.unwrap()];
        sleep(ms(5_000)).await;
        if paused {
            valve.pause(ms(1_000)).await.unwrap();
        }
        let denied = valve.try_acquire(Job::new()).await.unwrap_err();
        assert!(matches!(denied, AcquireError::Timeout { last, .. } if last == cause), "{denied:?}");
        held.into_iter().for_each(|permit| permit.release(Outcome::Success));
        assert_eq!(fleet.limit(), after, "denied by {cause}");
    }
}

#[tokio::test(start_paused = true)]
async fn as_2_a_throttle_bars_growth_for_a_window_also_one_that_moved_nothing() {
    let aimd = Aimd::new().window(ms(2_000)).cooldown(ms(10_000));
    for lost in [false, true] {
        let fleet = Fleet::new();
        let builder = fleet.builder(8).aimd(aimd).throttle_rest(Duration::ZERO);
        let process = builder.build(fleet.store.clone()).unwrap();
        release_all(hold(&process, 1).await, Outcome::Throttled);
        assert_eq!(fleet.limit(), 4);

        sleep(ms(3_000)).await;
        let suppressed = process.try_acquire().await.unwrap();
        if lost {
            assert!(fleet.evict(suppressed.token().unwrap()));
        }
        suppressed.release(Outcome::Throttled);
        assert_eq!(fleet.limit(), 4, "the cooldown runs");

        let mut leases = hold(&process, 4).await;
        sleep(ms(1_999)).await;
        full(process.try_acquire().await);
        leases.pop().unwrap().release(Outcome::Success);
        assert_eq!(fleet.limit(), 4, "the window has seen a throttle");
        sleep(ms(1)).await;
        leases.pop().unwrap().release(Outcome::Success);
        assert_eq!(fleet.limit(), 5);
    }
}

#[tokio::test(start_paused = true)]
async fn as_2_the_window_restarts_at_a_decrease() {
    let fleet = Fleet::new();
    let process = fleet.builder(8).throttle_rest(Duration::ZERO).build(fleet.store.clone()).unwrap();
    sleep(ms(5_000)).await;
    let mut leases = hold(&process, 8).await;
    sleep(ms(4_000)).await;
    leases.pop().unwrap().release(Outcome::Throttled);
    sleep(ms(4_999)).await;
    full(process.try_acquire().await);
    leases.pop().unwrap().release(Outcome::Success);
    assert_eq!(fleet.limit(), 4);
    sleep(ms(1)).await;
    leases.pop().unwrap().release(Outcome::Success);
    assert_eq!(fleet.limit(), 5);
}

#[tokio::test(start_paused = true)]
async fn as_2_growth_takes_its_step_and_stops_at_the_maximum() {
    let fleet = Fleet::new();
    let aimd = Aimd::new().increase_step(3);
    let process = fleet.builder(2).max_limit(7).aimd(aimd).build(fleet.store.clone()).unwrap();
    let mut seen = Vec::new();
    for _ in 0..4 {
        let leases = hold(&process, known_limit(&process)).await;
        sleep(ms(5_000)).await;
        full(process.try_acquire().await);
        release_all(leases, Outcome::Success);
        seen.push(fleet.limit());
    }
    assert_eq!(seen, [5, 7, 7, 7]);
}

fn known_limit(process: &AdaptiveSemaphore) -> usize {
    process.state().limit as usize
}

// ---- AS-3 ----------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn as_3_failure_moves_nothing() {
    let fleet = Fleet::new();
    let process = fleet.process(2);
    let mut leases = hold(&process, 2).await;
    sleep(ms(5_000)).await;
    full(process.try_acquire().await);
    leases.pop().unwrap().release(Outcome::Failure);
    assert_eq!(fleet.limit(), 2, "no growth");
    leases.pop().unwrap().release(Outcome::Success);
    assert_eq!(fleet.limit(), 3, "and it took nothing from the window");
}

#[tokio::test(start_paused = true)]
async fn as_3_a_dropped_lease_is_a_failure_released_in_the_background() {
    let fleet = Fleet::new();
    let outcomes = Outcomes::default();
    let remote = Remote::new(&fleet, Wire::Takes(ms(5)));
    let process = fleet.builder(2).recorder(outcomes.clone()).build(remote).unwrap();
    let lease = process.try_acquire().await.unwrap();
    assert_eq!(fleet.held(), 1);

    let start = fleet.now();
    drop(lease);
    assert_eq!(fleet.now(), start, "a drop does not wait");
    assert_eq!(outcomes.all(), [Outcome::Failure]);
    process.flush().await;
    assert_eq!((fleet.held(), fleet.limit()), (0, 2));
}

/// A recorder of outcomes.
#[derive(Clone, Default)]
struct Outcomes(Arc<Mutex<Vec<Outcome>>>);

impl Outcomes {
    fn all(&self) -> Vec<Outcome> {
        self.0.lock().unwrap().clone()
    }
}

impl Recorder for Outcomes {
    fn released(&self, _: Option<&str>, outcome: Outcome, _: Duration) {
        self.0.lock().unwrap().push(outcome);
    }
}

// ---- AS-4 ----------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn as_4_no_grant_at_or_above_the_limit() {
    let fleet = Fleet::new();
    let (a, b) = (fleet.process(3), fleet.process(3));
    let held = [hold(&a, 2).await, hold(&b, 1).await];
    full(a.try_acquire().await);
    full(b.try_acquire().await);
    assert_eq!(fleet.held(), 3);
    let slots: Vec<_> = held.iter().flatten().filter_map(Lease::slot).collect();
    assert_eq!(slots, [0, 1, 2]);
}

#[tokio::test(start_paused = true)]
async fn as_4_after_a_decrease_nobody_is_preempted_and_grants_wait() {
    let fleet = Fleet::new();
    let builder = || fleet.builder(8).throttle_rest(Duration::ZERO);
    let (a, b) =
        (builder().build(fleet.store.clone()).unwrap(), builder().build(fleet.store.clone()).unwrap());
    let mut leases = hold(&a, 8).await;
    leases.pop().unwrap().release(Outcome::Throttled);
    assert_eq!((fleet.limit(), fleet.held()), (4, 7));

    let waits = patient(&b).await;
    sleep(ms(60_000)).await;
    assert!(leases.iter().all(Lease::is_live), "holders keep what they have");
    while leases.len() > 4 {
        leases.pop().unwrap().release(Outcome::Failure);
        settled().await;
        full(b.try_acquire().await);
        assert_eq!(b.state().in_flight, 0, "{} are held, the limit is 4", leases.len());
    }
    leases.pop().unwrap().release(Outcome::Failure);
    drop(granted(waits).await);
}

// ---- AS-5 ----------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn as_5_a_reserved_slice_is_never_lent_in_any_order_of_arrival() {
    let classes = [Class::reserved("a", 0.25), Class::reserved("b", 0.25), Class::unreserved("c")];
    // Who takes all it can get, in which order, and how much each gets of 20.
    let orders =
        [(["a", "b", "c"], [15, 5, 0]), (["c", "a", "b"], [10, 5, 5]), (["b", "c", "a"], [15, 0, 5])];
    for (order, expected) in orders {
        let fleet = Fleet::new();
        let processes = [fleet.process_with(20, &classes), fleet.process_with(20, &classes)];
        let mut held = Vec::new();
        let mut counts = Vec::new();
        for class in order {
            let mut of_class = 0;
            while let Ok(lease) = try_in(&processes[of_class % 2], class).await {
                held.push(lease);
                of_class += 1;
            }
            full(try_in(&processes[0], class).await);
            counts.push(of_class);
        }
        assert_eq!(counts, expected, "{order:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn as_5_one_reserved_class_may_use_the_whole_limit() {
    let fleet = Fleet::new();
    let classes = [Class::reserved("interactive", 0.25), Class::unreserved("background")];
    let process = fleet.process_with(20, &classes);
    let background = hold_in(&process, "background", 15).await;
    full(try_in(&process, "background").await);
    full(process.try_acquire().await);
    let interactive = hold_in(&process, "interactive", 5).await;
    release_all(background, Outcome::Failure);
    let more = hold_in(&process, "interactive", 15).await;
    full(try_in(&process, "interactive").await);
    assert_eq!(fleet.held(), 20);
    assert_eq!(process.state().by_class["interactive"], 20);
    drop((interactive, more));
}

#[tokio::test(start_paused = true)]
async fn as_5_no_class_is_locked_out() {
    let fleet = Fleet::new();
    let classes = [Class::reserved("a", 0.4), Class::reserved("b", 0.4), Class::unreserved("c")];
    // The slices of the others take up all of it.
    let process = fleet.process_with(2, &classes);
    let one = hold_in(&process, "c", 1).await;
    full(try_in(&process, "c").await);
    release_all(one, Outcome::Failure);
    let both = [hold_in(&process, "a", 1).await, hold_in(&process, "b", 1).await];
    full(try_in(&process, "c").await);
    both.into_iter().for_each(|leases| release_all(leases, Outcome::Failure));
    drop(process.try_acquire().await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn as_5_the_promise_holds_again_when_the_leases_of_the_old_limit_leave_room() {
    let fleet = Fleet::new();
    let classes = [Class::reserved("interactive", 0.5), Class::unreserved("background")];
    let process = fleet.process_with(8, &classes);
    let mut background = hold_in(&process, "background", 4).await;
    fleet.set_limit(4);
    full(try_in(&process, "interactive").await);
    while background.len() > 2 {
        full(try_in(&process, "background").await);
        background.pop().unwrap().release(Outcome::Failure);
    }
    full(try_in(&process, "background").await);
    let interactive = hold_in(&process, "interactive", 2).await;
    drop((interactive, background));
}

// ---- AS-6 ----------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn as_6_leases_are_renewed_while_held_in_one_batch_before_four_fifths_of_the_ttl() {
    let fleet = Fleet::new();
    let remote = Remote::new(&fleet, Wire::Takes(ms(3)));
    let builder = || fleet.builder(50).lease_ttl(ms(1_000));
    let a = builder().build(remote.clone()).unwrap();
    let b = builder().build(fleet.store.clone()).unwrap();
    let mut leases = Vec::new();
    for _ in 0..50 {
        leases.push(a.acquire(Acquire::new()).await.unwrap());
    }
    let held_since = fleet.now();
    let waits = patient(&b).await;
    sleep(ms(60_000)).await;
    assert_eq!(b.state().in_flight, 0, "no slot came free in 60 TTLs");
    assert!(leases.iter().all(Lease::is_live));
    assert_eq!(fleet.held(), 50);

    let whole: Vec<_> =
        remote.tries().into_iter().filter(|renewal| renewal.sent > held_since.plus(ms(1_000))).collect();
    assert!(whole.len() >= 60, "{} renewals", whole.len());
    for pair in whole.windows(2) {
        let apart = pair[1].sent.since(pair[0].sent);
        assert!(apart <= ms(800), "renewals {apart:?} apart");
        assert_eq!(pair[1].tokens, 50, "one batch for all");
    }
    drop(leases);
    drop(granted(waits).await);
}

#[tokio::test(start_paused = true)]
async fn as_6_a_crashed_holder_s_slot_returns_within_one_ttl_and_never_before_it() {
    let fleet = Fleet::new();
    let b = fleet.builder(1).lease_ttl(ms(3_000)).build(fleet.store.clone()).unwrap();
    drop(b.try_acquire().await.unwrap());
    let crashed = stranger(&fleet, 1);
    let reply = Store::acquire(&fleet.store, &crashed, &request(0)).await.unwrap();
    assert_eq!(reply.body.grants.len(), 1);
    let (lease, took) = fleet.timed(b.acquire(Acquire::new())).await;
    drop(lease.unwrap());
    assert_eq!(took, ms(3_000));
}

#[test]
fn as_6_the_leases_of_a_process_that_dies_lapse_by_their_ttl() {
    const TTL: Duration = Duration::from_millis(400);
    let store = MemoryStore::new();
    let start = std::time::Instant::now();
    // On a clock that is set, renewals are a task of the runtime, and die with it.
    let dies = thread::spawn({
        let store = store.clone();
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let clock = AsIfSet(TokioClock::new());
                let builder = AdaptiveSemaphore::builder(ID, 1).lease_ttl(TTL).clock(clock);
                let process = builder.build(store).unwrap();
                let lease = process.try_acquire().await.unwrap();
                sleep(TTL * 2).await;
                assert!(lease.is_live(), "it is renewed while the process lives");
                // It goes without a word.
                std::mem::forget(lease);
                std::mem::forget(process);
            });
        }
    });
    dies.join().unwrap();
    let died = std::time::Instant::now();
    assert!(died.duration_since(start) >= TTL * 2);
    let lease = block_on(async {
        let process = AdaptiveSemaphore::builder(ID, 1).lease_ttl(TTL).build(store).unwrap();
        process.acquire(Acquire::new()).await.unwrap()
    });
    let after = died.elapsed();
    // The last renewal was at most two thirds of a TTL before the end.
    assert!(after >= TTL / 4, "{after:?}: before its TTL");
    assert!(after <= TTL + ms(250), "{after:?}: long after its TTL");
    drop(lease);
}

/// A clock that goes by itself, and says that it does not.
struct AsIfSet(TokioClock);

impl Clock for AsIfSet {
    fn now(&self) -> Moment {
        self.0.now()
    }

    fn sleep_until(&self, at: Moment) -> Sleep {
        self.0.sleep_until(at)
    }

    fn pace(&self) -> Pace {
        Pace::Set
    }
}

#[tokio::test(start_paused = true)]
async fn as_6_a_lost_lease_is_told_and_released_harmlessly() {
    let fleet = Fleet::new();
    let troubles = Troubles::default();
    let a = fleet.builder(1).on_error(troubles.note()).build(fleet.store.clone()).unwrap();
    let b = fleet.process(1);
    let lease = a.try_acquire().await.unwrap();
    {
        let mut lost = pin!(lease.lost());
        assert!(poll_once(lost.as_mut()).is_pending());
        assert!(fleet.evict(lease.token().unwrap()));
        let (lost, took) = fleet.timed(lost).await;
        assert_eq!(
            (Some(lost.token), Some(lost.slot), Some(lost.fence)),
            (lease.token(), lease.slot(), lease.fence())
        );
        assert!(took <= ms(24_000), "it was noticed by the next renewal: {took:?}");
    }
    assert!(!lease.is_live());
    assert!(poll_once(pin!(lease.lost())).is_ready(), "asked again, it says so at once");
    assert_eq!(troubles.codes(), ["lease_lost"], "once");

    let next = b.try_acquire().await.unwrap();
    assert_eq!(next.slot(), Some(0));
    lease.release(Outcome::Success);
    a.flush().await;
    assert_eq!((fleet.held(), fleet.limit()), (1, 1));
    assert!(next.is_live());
    full(a.try_acquire().await);
}

#[tokio::test(start_paused = true)]
async fn as_6_a_lease_is_lost_at_its_own_deadline_when_the_store_cannot_be_reached() {
    for mode in [Mode::Down, Mode::Hangs, Mode::Mute] {
        let fleet = Fleet::new();
        let troubles = Troubles::default();
        let remote = Remote::new(&fleet, Wire::Takes(ms(100)));
        let builder = fleet.builder(1).lease_ttl(ms(8_000)).on_error(troubles.note());
        let process = builder.build(remote.clone()).unwrap();
        let sent = fleet.now();
        let lease = process.acquire(Acquire::new()).await.unwrap();
        assert_eq!(fleet.now().since(sent), ms(200));
        let other = fleet.builder(1).lease_ttl(ms(8_000)).build(fleet.store.clone()).unwrap();
        let waits = patient(&other).await;
        remote.set(mode);

        // The store's own count began when the request arrived, so the holder knows first.
        let lost = lease.lost().await;
        assert_eq!(Some(lost.token), lease.token());
        let own_deadline = sent.plus(ms(8_000));
        if mode == Mode::Mute {
            // Renewals that were carried out but not answered are none.
            assert!(fleet.leases()[0].left_ms > 0);
        }
        assert!(!lease.is_live());
        assert_eq!(fleet.now(), own_deadline, "{mode:?}");
        settled().await;
        assert!(!waits.is_finished(), "{mode:?}: nobody has the slot before its holder knows");
        drop(granted(waits).await);
        assert_eq!(troubles.codes(), ["lease_lost"], "{mode:?}");

        let tries: Vec<_> =
            remote.tries().into_iter().filter(|renewal| renewal.sent < own_deadline).collect();
        assert!(tries.len() > 4, "{mode:?}: it is tried again within the rest: {}", tries.len());
        for renewal in tries {
            let left = own_deadline.since(renewal.sent);
            let took = renewal.ended.unwrap().since(renewal.sent);
            // Timers count in milliseconds.
            assert!(took <= left / 4 + ms(1), "{mode:?}: tried for {took:?} with {left:?} left");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn as_6_more_leases_than_one_request_takes_are_renewed_and_released_too() {
    const MANY: usize = 2_500;
    let fleet = Fleet::new();
    let remote = Remote::new(&fleet, Wire::Takes(ms(2)));
    let builder = fleet.builder(3_000).max_limit(3_000).lease_ttl(ms(3_000));
    let process = builder.build(remote.clone()).unwrap();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..MANY {
        let process = process.clone();
        tasks.spawn(async move { process.acquire(Acquire::new()).await.unwrap() });
    }
    let leases = tasks.join_all().await;
    sleep(ms(10_000)).await;
    assert!(leases.iter().all(Lease::is_live));
    assert_eq!(fleet.held() as usize, MANY);
    assert!(remote.tries().iter().all(|renewal| renewal.tokens <= 1_000));
    drop(leases);
    process.flush().await;
    assert_eq!(fleet.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn as_6_a_renewal_that_fails_for_a_while_loses_nothing() {
    let fleet = Fleet::new();
    let remote = Remote::new(&fleet, Wire::Yields);
    let process = fleet.builder(1).lease_ttl(ms(3_000)).build(remote.clone()).unwrap();
    let lease = process.acquire(Acquire::new()).await.unwrap();
    for _ in 0..5 {
        remote.set(Mode::Down);
        sleep(ms(1_800)).await;
        remote.set(Mode::Up);
        sleep(ms(1_200)).await;
        assert!(lease.is_live());
        assert_eq!(fleet.held(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn as_6_after_a_freeze_longer_than_the_ttl_a_lease_is_not_live_before_anything_else() {
    let fleet = Fleet::new();
    let leap = Arc::new(AtomicU64::new(0));
    let clock = Leaping { clock: fleet.clock, leap: Arc::clone(&leap) };
    for (frozen, live) in [(ms(9_999), true), (ms(10_000), false)] {
        leap.store(0, Ordering::SeqCst);
        let store = MemoryStore::with_clock(fleet.clock);
        let builder = fleet.builder(1).lease_ttl(ms(10_000)).clock(clock.clone());
        let process = builder.build(store).unwrap();
        let lease = process.try_acquire().await.unwrap();
        leap.store(u64::try_from(frozen.as_micros()).unwrap(), Ordering::SeqCst);
        assert_eq!(lease.is_live(), live, "frozen for {frozen:?}");
        assert_eq!(poll_once(pin!(lease.lost())).is_ready(), !live);
    }
}

/// A clock that can jump ahead, as that of a process that was stopped.
#[derive(Clone)]
struct Leaping {
    clock: TokioClock,
    leap: Arc<AtomicU64>,
}

impl Clock for Leaping {
    fn now(&self) -> Moment {
        self.clock.now().plus(Duration::from_micros(self.leap.load(Ordering::SeqCst)))
    }

    fn sleep_until(&self, at: Moment) -> Sleep {
        self.clock.sleep_until(at)
    }

    fn pace(&self) -> Pace {
        Pace::Set
    }
}

#[tokio::test(start_paused = true)]
async fn as_6_leases_outlive_a_store_that_lost_its_state() {
    let fleet = Fleet::new();
    let troubles = Troubles::default();
    let a = fleet.builder(2).on_error(troubles.note()).build(fleet.store.clone()).unwrap();
    let b = fleet.process(2);
    let mut leases = hold(&a, 2).await;
    fleet.store.wipe();
    // Whoever comes first may have the slot of one of them; the other is taken up again.
    let taken = b.try_acquire().await.unwrap();
    assert_eq!(taken.slot(), Some(0));
    sleep(ms(30_000)).await;
    let lost = leases.remove(0);
    assert!(!lost.is_live() && leases[0].is_live() && taken.is_live());
    assert_eq!(troubles.codes().iter().filter(|code| **code == "lease_lost").count(), 1);
    assert_eq!(fleet.held(), 2);
    full(b.try_acquire().await);
}

// ---- AS-14 ---------------------------------------------------------------------------------------------------------

#[test]
fn as_14_code_that_blocks_every_executor_thread_keeps_its_leases() {
    const TTL: Duration = Duration::from_millis(200);
    let store = MemoryStore::new();
    let build =
        |store: &MemoryStore| AdaptiveSemaphore::builder(ID, 1).lease_ttl(TTL).build(store.clone()).unwrap();
    let holder = build(&store);
    let over = Arc::new(AtomicBool::new(false));
    let grants = Arc::new(AtomicUsize::new(0));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (watcher, lease) = runtime.block_on(async {
        let lease = holder.try_acquire().await.unwrap();
        let watcher = thread::spawn({
            let (other, over, grants) = (build(&store), Arc::clone(&over), Arc::clone(&grants));
            move || {
                let mut tries = 0;
                while !over.load(Ordering::SeqCst) {
                    let within = Acquire::within(TTL / 4);
                    grants.fetch_add(usize::from(block_on(other.acquire(within)).is_ok()), Ordering::SeqCst);
                    tries += 1;
                }
                tries
            }
        });
        // No task of this runtime runs meanwhile.
        thread::sleep(TTL * 6);
        assert!(lease.is_live());
        assert_eq!(ready(Operators::leases(&store, &id(), None, 10)).unwrap().body.items.len(), 1);
        assert!(poll_once(pin!(lease.lost())).is_pending());
        over.store(true, Ordering::SeqCst);
        (watcher, lease)
    });
    let tries = watcher.join().unwrap();
    assert!(tries > 6, "{tries} tries over 6 TTLs");
    assert_eq!(grants.load(Ordering::SeqCst), 0, "the slot was given to another");
    drop(lease);
}

// ---- AS-7 ----------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn as_7_release_never_waits_and_flush_waits_until_the_store_has_it_all() {
    let fleet = Fleet::new();
    let remote = Remote::new(&fleet, Wire::Takes(ms(40)));
    let process = fleet.builder(3).build(remote.clone()).unwrap();
    let mut leases = Vec::new();
    for _ in 0..3 {
        leases.push(process.acquire(Acquire::new()).await.unwrap());
    }
    assert!(poll_once(pin!(process.flush())).is_ready(), "there is nothing to deliver");

    let start = fleet.now();
    release_all(leases, Outcome::Success);
    assert_eq!((fleet.now(), fleet.held(), process.state().in_flight), (start, 3, 0));
    let ((), took) = fleet.timed(process.flush()).await;
    assert_eq!((took, fleet.held()), (ms(80), 0));
}

#[tokio::test(start_paused = true)]
async fn as_7_what_a_store_that_is_away_did_not_take_is_delivered_when_it_is_back() {
    for mode in [Mode::Down, Mode::Hangs, Mode::Mute] {
        let fleet = Fleet::new();
        let remote = Remote::new(&fleet, Wire::Yields);
        let process = fleet.builder(2).build(remote.clone()).unwrap();
        let lease = process.acquire(Acquire::new()).await.unwrap();
        remote.set(mode);
        lease.release(Outcome::Success);
        {
            let mut flush = pin!(process.flush());
            let timed_out = tokio::time::timeout(ms(5_000), flush.as_mut()).await;
            assert!(timed_out.is_err(), "{mode:?}");
            remote.set(Mode::Up);
            let ((), took) = fleet.timed(flush).await;
            assert!(took <= ms(3_000), "{mode:?}: {took:?} until the next probe");
        }
        assert_eq!(fleet.held(), 0, "{mode:?}");
        hold(&process, 2).await;
    }
}

// ---- AS-8 ----------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn as_8_a_grant_for_a_waiter_that_is_gone_goes_to_the_next_at_once() {
    let fleet = Fleet::new();
    let process = fleet.process(1);
    let lease = process.try_acquire().await.unwrap();
    let (woken, waker) = CountsWakes::new();
    let mut first = Box::pin(process.acquire(Acquire::new()));
    assert!(first.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let second = patient(&process).await;
    let start = fleet.now();
    lease.release(Outcome::Failure);
    until(|| woken.count() > 0).await;
    // It was granted, and does not know yet.
    assert_eq!((process.state().in_flight, fleet.held()), (1, 1));
    drop(first);
    drop(granted(second).await);
    assert_eq!(fleet.now(), start);
    assert_eq!((process.state().in_flight, process.state().waiting, fleet.held()), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn as_8_a_grant_that_nobody_takes_goes_back_to_the_store_at_once_and_on_to_another_process() {
    let fleet = Fleet::new();
    let (a, b) = (fleet.process(1), fleet.process(1));
    let lease = a.try_acquire().await.unwrap();
    let (woken, waker) = CountsWakes::new();
    let mut dropped = Box::pin(a.acquire(Acquire::new()));
    assert!(dropped.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    sleep(ms(20)).await;
    let other = patient(&b).await;
    let start = fleet.now();
    lease.release(Outcome::Failure);
    until(|| woken.count() > 0).await;
    drop(dropped);
    let lease = granted(other).await;
    assert_eq!(fleet.now(), start);
    assert_eq!((a.state().in_flight, a.state().waiting), (0, 0));
    drop(lease);
    assert_eq!(fleet.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn as_8_a_grant_that_was_under_way_for_a_dropped_waiter_goes_to_the_oldest_that_was_left_out() {
    let fleet = Fleet::new();
    let remote = Remote::new(&fleet, Wire::Takes(ms(10)));
    let a = fleet.process(1);
    let b = fleet.builder(1).build(remote).unwrap();
    let lease = a.try_acquire().await.unwrap();
    // The first two wait in b, and are asked for together when the slot comes free.
    let first = patient(&b).await;
    let second = patient(&b).await;
    sleep(ms(30)).await;
    lease.release(Outcome::Failure);
    sleep(ms(5)).await;
    // Now their question is on its way; it will find one slot.
    first.abort();
    until(|| b.state().waiting == 1).await;
    let third = patient(&b).await;
    let second = granted(second).await;
    assert!(!third.is_finished(), "the younger one must not overtake");
    drop(second);
    drop(granted(third).await);
    b.flush().await;
    assert_eq!(fleet.held(), 0);
}

/// A waker that counts.
struct CountsWakes(AtomicUsize);

impl CountsWakes {
    fn new() -> (Arc<Self>, Waker) {
        let counts = Arc::new(Self(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&counts));
        (counts, waker)
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }
}

impl WakeTask for CountsWakes {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

// ---- AS-9 ----------------------------------------------------------------------------------------------------------

#[derive(Clone, PartialEq, Debug)]
enum Answer429 {
    TooMany,
    Broken(String),
}

#[tokio::test(start_paused = true)]
async fn as_9_with_lease_releases_by_what_came_of_the_call_and_hands_it_on_unchanged() {
    let fleet = Fleet::new();
    let outcomes = Outcomes::default();
    let process = fleet.builder(8).recorder(outcomes.clone()).build(fleet.store.clone()).unwrap();

    let value: Result<u32, CallError<Answer429>> = process
        .with_lease(Acquire::new(), || async {
            assert_eq!(fleet.held(), 1, "it runs while it holds the lease");
            Ok(7)
        })
        .await;
    assert_eq!(value, Ok(7));

    let broken = Answer429::Broken("exactly this".to_owned());
    let call = || async { Err::<(), _>(broken.clone()) };
    let error = process.with_lease(Acquire::new(), call).await;
    assert_eq!(error, Err(CallError::Call(broken.clone())));

    let judged = process.with_lease(Acquire::new(), || async { Err::<(), _>(Answer429::TooMany) });
    let judged = judged.outcome_on_error(|error: &Answer429| match error {
        Answer429::TooMany => Outcome::Throttled,
        Answer429::Broken(_) => Outcome::Failure,
    });
    assert_eq!(judged.await, Err(CallError::Call(Answer429::TooMany)));
    assert_eq!(fleet.limit(), 4);

    let forgiven =
        process.with_lease(Acquire::new(), call).outcome_on_error(|_: &Answer429| Outcome::Success);
    assert_eq!(forgiven.await, Err(CallError::Call(broken.clone())));
    use Outcome::{Failure, Success, Throttled};
    assert_eq!(outcomes.all(), [Success, Failure, Throttled, Success]);
}

#[tokio::test(start_paused = true)]
async fn as_9_the_call_never_runs_without_a_lease() {
    let fleet = Fleet::new();
    let troubles = Troubles::default();
    let process = fleet.builder(1).on_error(troubles.note()).build(fleet.store.clone()).unwrap();
    let _lease = process.try_acquire().await.unwrap();
    let runs = AtomicUsize::new(0);
    let call = || async {
        runs.fetch_add(1, Ordering::SeqCst);
        Ok::<(), Answer429>(())
    };
    let (answer, took) = fleet.timed(process.with_lease(Acquire::within(ms(50)), call).into_future()).await;
    assert!(matches!(answer, Err(CallError::Acquire(AcquireError::Timeout { .. }))), "{answer:?}");
    assert_eq!(took, ms(50));
    let answer = process.with_lease(Acquire::class("unknown"), call).await;
    assert!(matches!(answer, Err(CallError::Acquire(AcquireError::InvalidOptions { .. }))), "{answer:?}");
    let answer = process.with_lease(Acquire::class("no name"), call).await;
    assert!(matches!(answer, Err(CallError::Acquire(AcquireError::InvalidOptions { .. }))), "{answer:?}");
    process.close().await;
    let answer = process.with_lease(Acquire::new(), call).await;
    assert!(matches!(answer, Err(CallError::Acquire(AcquireError::Closed { .. }))), "{answer:?}");
    assert_eq!(runs.load(Ordering::SeqCst), 0);
    assert!(troubles.codes().is_empty());
}

#[tokio::test(start_paused = true)]
async fn as_9_a_panic_in_the_call_releases_as_a_failure_and_goes_on() {
    let fleet = Fleet::new();
    let outcomes = Outcomes::default();
    let process = fleet.builder(2).recorder(outcomes.clone()).build(fleet.store.clone()).unwrap();
    let at_once = {
        let process = process.clone();
        tokio::spawn(async move {
            let call =
                || -> std::future::Ready<Result<(), Answer429>> { panic!("on purpose: making the call") };
            process.with_lease(Acquire::new(), call).await
        })
    };
    assert!(at_once.await.unwrap_err().is_panic());
    let later = {
        let process = process.clone();
        tokio::spawn(async move {
            let call = || async {
                tokio::task::yield_now().await;
                panic!("on purpose: in the call");
                #[allow(unreachable_code)] // It says of what type the call is.
                Ok::<(), Answer429>(())
            };
            process.with_lease(Acquire::new(), call).await
        })
    };
    assert!(later.await.unwrap_err().is_panic());
    assert_eq!(outcomes.all(), [Outcome::Failure, Outcome::Failure]);
    assert_eq!((fleet.held(), process.state().in_flight), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn as_9_a_panic_in_the_classifier_is_a_failure_and_reported() {
    let fleet = Fleet::new();
    let outcomes = Outcomes::default();
    let troubles = Troubles::default();
    let builder = fleet.builder(2).recorder(outcomes.clone()).on_error(troubles.note());
    let process = builder.build(fleet.store.clone()).unwrap();
    let judged = process
        .with_lease(Acquire::new(), || async { Err::<(), _>(Answer429::TooMany) })
        .outcome_on_error(|_: &Answer429| -> Outcome { panic!("on purpose: judging") });
    assert_eq!(judged.await, Err(CallError::Call(Answer429::TooMany)));
    assert_eq!(outcomes.all(), [Outcome::Failure]);
    assert_eq!((fleet.held(), fleet.limit()), (0, 2));
    let troubles = troubles.all();
    assert_eq!(troubles.len(), 1);
    assert!(
        matches!(&troubles[0], Trouble::Panicked { place: "outcome_on_error", message, .. }
            if message == "on purpose: judging"),
        "{troubles:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn as_9_a_call_that_is_dropped_releases_as_a_failure_after_it_is_gone() {
    let fleet = Fleet::new();
    let outcomes = Outcomes::default();
    let process = fleet.builder(2).recorder(outcomes.clone()).build(fleet.store.clone()).unwrap();
    let held_at_its_end = AtomicU32::new(u32::MAX);
    struct AtEnd<F: FnMut()>(F);
    impl<F: FnMut()> Drop for AtEnd<F> {
        fn drop(&mut self) {
            (self.0)();
        }
    }
    let call = || async {
        let _at_end = AtEnd(|| held_at_its_end.store(fleet.held(), Ordering::SeqCst));
        std::future::pending::<Result<(), Answer429>>().await
    };
    {
        let mut calling = Box::pin(process.with_lease(Acquire::new(), call).into_future());
        assert!(poll_once(calling.as_mut()).is_pending());
        assert_eq!(fleet.held(), 1);
    }
    assert_eq!(held_at_its_end.load(Ordering::SeqCst), 1, "the slot is free only when the call is gone");
    assert_eq!((fleet.held(), outcomes.all()), (0, vec![Outcome::Failure]));
}

// ---- AS-10 ---------------------------------------------------------------------------------------------------------

fn is_closed(answer: &Result<Lease, AcquireError>) -> bool {
    matches!(answer, Err(AcquireError::Closed { .. }))
}

#[tokio::test(start_paused = true)]
async fn as_10_close_ends_the_waits_of_all_clones_and_refuses_later_ones() {
    let fleet = Fleet::new();
    let (a, b) = (fleet.process(1), fleet.process(1));
    let clone = a.clone();
    let lease = b.try_acquire().await.unwrap();
    let waits = [patient(&a).await, patient(&clone).await];
    let of_b = patient(&b).await;
    let ((), took) = fleet.timed(a.close()).await;
    assert_eq!(took, Duration::ZERO);
    for wait in waits {
        assert!(is_closed(&wait.await.unwrap()));
    }
    assert!(is_closed(&a.acquire(Acquire::new()).await) && is_closed(&clone.try_acquire().await));
    a.close().await;
    clone.close().await;

    assert!(!of_b.is_finished(), "another process is not closed, nor is the store");
    lease.release(Outcome::Success);
    drop(granted(of_b).await);
}

#[tokio::test(start_paused = true)]
async fn as_10_leases_that_are_held_go_on_after_close() {
    let fleet = Fleet::new();
    let a = fleet.builder(2).lease_ttl(ms(1_000)).build(fleet.store.clone()).unwrap();
    let b = fleet.builder(2).lease_ttl(ms(1_000)).build(fleet.store.clone()).unwrap();
    let mut leases = hold(&a, 2).await;
    a.close().await;
    sleep(ms(10_000)).await;
    assert!(leases.iter().all(Lease::is_live));
    full(b.try_acquire().await);
    drop(a);
    sleep(ms(10_000)).await;
    assert!(leases.iter().all(Lease::is_live), "nor does dropping the last handle end them");
    full(b.try_acquire().await);
    leases.pop().unwrap().release(Outcome::Success);
    leases.clear();
    hold(&b, 2).await;
}

#[tokio::test(start_paused = true)]
async fn as_10_a_call_outlives_the_handle_that_it_was_made_through() {
    let fleet = Fleet::new();
    let (a, b) = (fleet.process(1), fleet.process(1));
    let lease = b.try_acquire().await.unwrap();
    let call = a.with_lease(Acquire::within(HOUR), || async { Ok::<_, ()>(7) });
    drop(a);
    let calls = tokio::spawn(call.into_future());
    settled().await;
    lease.release(Outcome::Success);
    assert_eq!(calls.await.unwrap(), Ok(7));
}

#[tokio::test(start_paused = true)]
async fn as_10_dropping_the_last_handle_ends_what_goes_on_in_the_background() {
    for wire in [None, Some(Wire::Takes(ms(10)))] {
        let fleet = Fleet::new();
        let alive = Arc::new(());
        let builder = fleet.builder(2).on_limit_change({
            let alive = Arc::clone(&alive);
            move |_| assert!(Arc::strong_count(&alive) > 0)
        });
        let process = match wire {
            None => builder.build(fleet.store.clone()).unwrap(),
            Some(wire) => builder.build(Remote::new(&fleet, wire)).unwrap(),
        };
        let lease = process.acquire(Acquire::new()).await.unwrap();
        let clone = process.clone();
        drop(process);
        drop(clone.acquire(Acquire::new()).await.unwrap());
        drop(clone);
        sleep(ms(120_000)).await;
        assert!(lease.is_live(), "a lease that is held goes on");
        assert_eq!(Arc::strong_count(&alive), 2);
        lease.release(Outcome::Success);
        sleep(ms(120_000)).await;
        assert_eq!((fleet.held(), Arc::strong_count(&alive)), (0, 1), "{wire:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn as_10_close_flushes_and_gives_up_on_a_store_that_is_away() {
    let fleet = Fleet::new();
    let remote = Remote::new(&fleet, Wire::Takes(ms(30)));
    let process = fleet.builder(2).build(remote.clone()).unwrap();
    let (first, second) =
        (process.acquire(Acquire::new()).await.unwrap(), process.acquire(Acquire::new()).await.unwrap());
    first.release(Outcome::Success);
    let ((), took) = fleet.timed(process.close()).await;
    assert_eq!((took, fleet.held()), (ms(60), 1));

    remote.set(Mode::Hangs);
    second.release(Outcome::Success);
    let ((), took) = fleet.timed(process.close()).await;
    assert_eq!((took, fleet.held()), (ms(2_000), 1), "two operation timeouts");
}

// ---- AS-11 ---------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn as_11_state_is_this_process_s_view() {
    let fleet = Fleet::new();
    let classes = [Class::reserved("interactive", 0.25), Class::unreserved("background")];
    let (a, b) = (fleet.process_with(4, &classes), fleet.process_with(4, &classes));
    let seen = fleet.process_with(3, &classes);
    assert_eq!((seen.state().limit, a.state().limit), (3, 4), "the initial limit before the first exchange");
    let held = (hold_in(&a, "interactive", 1).await, hold(&a, 2).await, hold_in(&b, "interactive", 1).await);
    full(seen.try_acquire().await);
    assert_eq!(seen.state().limit, 4, "the one that is there after it");

    let waits = waiter(&a, Acquire::class("background")).await;
    let state = a.state();
    assert_eq!((state.limit, state.in_flight, state.waiting), (4, 3, 1));
    let by_class: Vec<_> = state.by_class.iter().map(|(class, held)| (class.as_str(), *held)).collect();
    assert_eq!(by_class, [("background", 0), ("interactive", 1)]);
    assert_eq!((b.state().in_flight, b.state().waiting, seen.state().in_flight), (1, 0, 0));
    waits.abort();
    until(|| a.state().waiting == 0).await;
    drop(held);
    assert_eq!(a.state().in_flight, 0);
}

#[tokio::test(start_paused = true)]
async fn as_11_a_change_of_the_limit_is_told_in_every_process_once_and_not_the_first_load() {
    let fleet = Fleet::new();
    let told: [Arc<Mutex<Vec<u32>>>; 3] = Default::default();
    let process = |told: &Arc<Mutex<Vec<u32>>>| {
        let told = Arc::clone(told);
        let builder = fleet.builder(8).on_limit_change(move |limit| told.lock().unwrap().push(limit));
        builder.build(fleet.store.clone()).unwrap()
    };
    let [a, b, idle] = [process(&told[0]), process(&told[1]), process(&told[2])];
    let mut leases = hold(&a, 8).await;
    let waits = patient(&b).await;
    settled().await;
    assert!(told.iter().all(|told| told.lock().unwrap().is_empty()), "the first load is no change");

    leases.pop().unwrap().release(Outcome::Throttled);
    leases.pop().unwrap().release(Outcome::Throttled);
    settled().await;
    assert_eq!(*told[0].lock().unwrap(), [4]);
    assert_eq!(*told[1].lock().unwrap(), [4], "b was told without asking");
    assert_eq!(b.state().limit, 4);
    fleet.set_limit(6);
    idle.refresh().await.unwrap();
    assert!(told[2].lock().unwrap().is_empty(), "its first load is of now");
    sleep(ms(1_000)).await;
    fleet.set_limit(5);
    idle.refresh().await.unwrap();
    sleep(ms(1_000)).await;
    let told = told.map(|told| told.lock().unwrap().clone());
    assert_eq!((&told[1][..], &told[2][..]), (&[4, 6, 5][..], &[5][..]));
    a.refresh().await.unwrap();
    assert_eq!((a.state().limit, b.state().limit, idle.state().limit), (5, 5, 5));
    waits.abort();
}

// ---- AS-12 ---------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn as_12_waiters_of_a_class_are_served_in_order_of_arrival() {
    for wire in [None, Some(Wire::Yields), Some(Wire::Takes(ms(7)))] {
        let fleet = Fleet::new();
        let build = || match wire {
            None => fleet.process(3),
            Some(wire) => fleet.builder(3).build(Remote::new(&fleet, wire)).unwrap(),
        };
        let (a, b) = (build(), build());
        let mut leases = Vec::new();
        for _ in 0..3 {
            leases.push(b.acquire(Acquire::new()).await.unwrap());
        }
        let served = Arc::new(Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for turn in 0..20 {
            let (its_own, served) = (a.clone(), Arc::clone(&served));
            tasks.push(tokio::spawn(async move {
                let lease = its_own.acquire(Acquire::within(HOUR)).await.unwrap();
                served.lock().unwrap().push(turn);
                sleep(ms(3)).await;
                lease.release(Outcome::Success);
            }));
            until(|| a.state().waiting == turn + 1).await;
        }
        for lease in leases {
            sleep(ms(25)).await;
            lease.release(Outcome::Failure);
        }
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*served.lock().unwrap(), (0..20).collect::<Vec<_>>(), "{wire:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn as_12_a_try_does_not_overtake_those_that_wait() {
    let fleet = Fleet::new();
    let (a, b) = (fleet.process(1), fleet.process(1));
    let lease = b.try_acquire().await.unwrap();
    let waits = patient(&a).await;
    lease.release(Outcome::Failure);
    // The slot is free, and the one that waits has not been told yet.
    assert_eq!(fleet.held(), 0);
    full(ready(a.try_acquire()));
    let lease = granted(waits).await;
    full(ready(a.try_acquire()));
    drop(lease);
    assert!(ready(a.try_acquire()).is_ok());
}

#[tokio::test(start_paused = true)]
async fn as_12_room_wakes_the_longest_waiting_process_at_once() {
    let fleet = Fleet::new();
    let holder = fleet.process(1);
    let mut lease = holder.try_acquire().await.unwrap();
    let mut waits = Vec::new();
    for _ in 0..4 {
        let process = fleet.process(1);
        waits.push((patient(&process).await, process));
        sleep(ms(20)).await;
    }
    for (wait, _process) in waits {
        let start = fleet.now();
        lease.release(Outcome::Failure);
        lease = granted(wait).await;
        assert_eq!(fleet.now(), start, "the hand-off takes no time");
    }
}

#[tokio::test(start_paused = true)]
async fn as_12_a_raised_limit_wakes_as_many_as_fit_in_the_order_of_their_waiting() {
    let fleet = Fleet::new();
    let holder = fleet.process(1);
    let _lease = holder.try_acquire().await.unwrap();
    let mut waits = Vec::new();
    for _ in 0..3 {
        let process = fleet.process(1);
        waits.push((patient(&process).await, process));
        sleep(ms(20)).await;
    }
    fleet.set_limit(3);
    let start = fleet.now();
    let youngest = waits.pop().unwrap();
    for (wait, _process) in waits {
        // They keep what they get.
        std::mem::forget(granted(wait).await);
    }
    assert_eq!(fleet.now(), start);
    settled().await;
    assert!(!youngest.0.is_finished());
    youngest.0.abort();
}

#[tokio::test(start_paused = true)]
async fn as_12_room_goes_past_those_that_it_does_not_fit() {
    let fleet = Fleet::new();
    let classes = [Class::reserved("interactive", 0.5), Class::unreserved("background")];
    let (a, b, c) =
        (fleet.process_with(2, &classes), fleet.process_with(2, &classes), fleet.process_with(2, &classes));
    let _background = hold_in(&a, "background", 1).await;
    let mut interactive = hold_in(&a, "interactive", 1).await;
    let older = waiter(&b, Acquire::class("background").timeout(HOUR)).await;
    sleep(ms(50)).await;
    let younger = waiter(&c, Acquire::class("interactive").timeout(HOUR)).await;
    let start = fleet.now();
    interactive.pop().unwrap().release(Outcome::Failure);
    let _lease = granted(younger).await;
    assert_eq!(fleet.now(), start);
    assert!(!older.is_finished());
    older.abort();
}

#[tokio::test(start_paused = true)]
async fn as_12_a_process_keeps_its_own_freed_slot_while_no_other_waited_clearly_longer() {
    // How much longer another has waited than the head of its own queue, and whether that one gets the slot.
    for (longer, goes_to_the_other) in [(0, false), (10, false), (11, true), (40, true)] {
        for wire in [None, Some(Wire::Short)] {
            let fleet = Fleet::new();
            let build = || match wire {
                None => fleet.process(1),
                Some(wire) => fleet.builder(1).build(Remote::new(&fleet, wire)).unwrap(),
            };
            let (a, b) = (build(), build());
            let lease = a.acquire(Acquire::new()).await.unwrap();
            let other = patient(&b).await;
            // Until the store has noted its place.
            until(|| fleet.snapshot().waiting == 1).await;
            sleep(ms(longer)).await;
            let own = patient(&a).await;
            until(|| fleet.snapshot().waiting == 2).await;
            sleep(ms(40)).await;
            let start = fleet.now();
            lease.release(Outcome::Failure);
            until(|| own.is_finished() || other.is_finished()).await;
            settled().await;
            let finished = (own.is_finished(), other.is_finished());
            assert_eq!(finished, (!goes_to_the_other, goes_to_the_other), "{longer} ms, {wire:?}");
            assert_eq!(fleet.now(), start);
            own.abort();
            other.abort();
        }
    }
}

#[tokio::test(start_paused = true)]
async fn as_12_one_that_cannot_use_the_room_passes_it_on_at_once() {
    for wire in [None, Some(Wire::Short), Some(Wire::Yields)] {
        let fleet = Fleet::new();
        let build = || match wire {
            None => fleet.process(1),
            Some(wire) => fleet.builder(1).build(Remote::new(&fleet, wire)).unwrap(),
        };
        let (a, b, c) = (build(), build(), build());
        let lease = a.acquire(Acquire::new()).await.unwrap();
        let mut gone = Box::pin(b.acquire(Acquire::new()));
        assert!(poll_once(gone.as_mut()).is_pending());
        // Its process listens from when its driver first runs.
        settled().await;
        sleep(ms(30)).await;
        let waits = patient(&c).await;
        settled().await;
        let start = fleet.now();
        lease.release(Outcome::Failure);
        // The room is offered to b, which has no use for it any more.
        drop(gone);
        drop(granted(waits).await);
        assert_eq!(fleet.now(), start, "{wire:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn as_12_the_one_that_polled_last_is_woken() {
    let fleet = Fleet::new();
    let (a, b) = (fleet.process(1), fleet.process(1));
    let lease = a.try_acquire().await.unwrap();
    let mut waits = Box::pin(b.acquire(Acquire::new()));
    let [(before, earlier), (now, later)] = [CountsWakes::new(), CountsWakes::new()];
    for waker in [&earlier, &later] {
        assert!(waits.as_mut().poll(&mut Context::from_waker(waker)).is_pending());
    }
    settled().await;
    lease.release(Outcome::Failure);
    until(|| now.count() > 0).await;
    assert_eq!((before.count(), now.count()), (0, 1));
    assert!(matches!(poll_once(waits.as_mut()), Poll::Ready(Ok(_))));
}

#[tokio::test(start_paused = true)]
async fn as_12_one_whose_wait_timed_out_passes_room_on_at_once() {
    for wire in [None, Some(Wire::Yields)] {
        let fleet = Fleet::new();
        let build = || match wire {
            None => fleet.process(1),
            Some(wire) => fleet.builder(1).build(Remote::new(&fleet, wire)).unwrap(),
        };
        let (a, b, c) = (build(), build(), build());
        let lease = a.acquire(Acquire::new()).await.unwrap();
        let timed_out = waiter(&b, Acquire::within(ms(40))).await;
        sleep(ms(30)).await;
        let waits = patient(&c).await;
        sleep(ms(20)).await;
        full(timed_out.await.unwrap());
        let start = fleet.now();
        lease.release(Outcome::Failure);
        drop(granted(waits).await);
        assert_eq!(fleet.now(), start, "{wire:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn as_12_one_whose_message_reaches_no_one_is_passed_over() {
    let fleet = Fleet::new();
    let (a, b) = (fleet.process(1), fleet.process(1));
    let lease = a.try_acquire().await.unwrap();
    let deaf = stranger(&fleet, 1);
    assert!(Store::acquire(&fleet.store, &deaf, &request(1)).await.unwrap().body.grants.is_empty());
    sleep(ms(50)).await;
    let waits = patient(&b).await;
    let start = fleet.now();
    lease.release(Outcome::Failure);
    drop(granted(waits).await);
    assert_eq!(fleet.now(), start);
}

#[tokio::test(start_paused = true)]
async fn as_12_a_place_lapses_after_two_seconds_without_an_exchange() {
    struct Hears(AtomicUsize);
    impl Listener for Hears {
        fn wake(&self, wake: Wake) {
            self.0.fetch_add(usize::from(matches!(wake, Wake::Room { .. })), Ordering::SeqCst);
        }
    }
    for (after, lapsed) in [(1_999, false), (2_000, true)] {
        let fleet = Fleet::new();
        let (a, b) = (fleet.process(1), fleet.process(1));
        let lease = a.try_acquire().await.unwrap();
        // It listens, and never comes back.
        let frozen = stranger(&fleet, 1);
        let hears = Arc::new(Hears(AtomicUsize::new(0)));
        let _subscription = fleet.store.subscribe(&id(), frozen.driver, Arc::clone(&hears) as _);
        assert!(Store::acquire(&fleet.store, &frozen, &request(1)).await.unwrap().body.grants.is_empty());
        sleep(ms(50)).await;
        let waits = patient(&b).await;
        sleep(ms(after - 50)).await;
        lease.release(Outcome::Failure);
        assert_eq!(hears.0.load(Ordering::SeqCst), usize::from(!lapsed));
        let (lease, took) = fleet.timed(granted(waits)).await;
        drop(lease);
        if lapsed {
            assert_eq!(took, Duration::ZERO);
        } else {
            // Polling finds what no message told of.
            assert!(Duration::ZERO < took && took <= ms(500), "{took:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn as_12_polling_finds_room_where_nothing_is_pushed() {
    let fleet = Fleet::new();
    let build = || {
        let remote = Remote::new(&fleet, Wire::Yields).without(Capability::Wake);
        fleet.builder(1).build(remote).unwrap()
    };
    let (a, b) = (build(), build());
    let mut waited = Vec::new();
    for _ in 0..20 {
        let lease = a.acquire(Acquire::new()).await.unwrap();
        let waits = patient(&b).await;
        settled().await;
        lease.release(Outcome::Failure);
        a.flush().await;
        let (lease, took) = fleet.timed(granted(waits)).await;
        drop(lease);
        b.flush().await;
        waited.push(took);
    }
    assert!(waited.iter().all(|took| (ms(100)..=ms(500)).contains(took)), "{waited:?}");
    assert!(waited.iter().any(|took| *took != waited[0]), "it is jittered: {waited:?}");
}

#[tokio::test(start_paused = true)]
async fn as_12_a_process_serves_its_own_queue_in_the_exchange_of_its_release() {
    let fleet = Fleet::new();
    let remote = Remote::new(&fleet, Wire::Takes(ms(10))).without(Capability::Wake);
    let process = fleet.builder(1).build(remote.clone()).unwrap();
    let lease = process.acquire(Acquire::new()).await.unwrap();
    let waits = patient(&process).await;
    sleep(ms(50)).await;
    let before = remote.operations();
    lease.release(Outcome::Failure);
    let (lease, took) = fleet.timed(granted(waits)).await;
    assert_eq!((took, remote.operations() - before), (ms(20), 1), "one round trip");
    drop(lease);
}

// ---- AS-13 ---------------------------------------------------------------------------------------------------------

/// One clean window at the cap.
async fn clean_window(process: &AdaptiveSemaphore) {
    let mut leases = hold(process, known_limit(process)).await;
    sleep(ms(1_000)).await;
    full(process.try_acquire().await);
    leases.pop().unwrap().release(Outcome::Success);
    release_all(leases, Outcome::Failure);
}

async fn throttle(process: &AdaptiveSemaphore) {
    process.try_acquire().await.unwrap().release(Outcome::Throttled);
    sleep(ms(1_000)).await;
}

fn growing(fleet: &Fleet, growth: Growth) -> AdaptiveSemaphore {
    let aimd = Aimd::new().window(ms(1_000)).cooldown(ms(1_000));
    let builder = fleet.builder(4).aimd(aimd).growth(growth).throttle_rest(Duration::ZERO);
    builder.build(fleet.store.clone()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn as_13_slow_start_doubles_until_the_first_throttle() {
    let fleet = Fleet::new();
    let process = growing(&fleet, Growth::SlowStart);
    let mut seen = Vec::new();
    for _ in 0..3 {
        clean_window(&process).await;
        seen.push(fleet.limit());
    }
    throttle(&process).await;
    seen.push(fleet.limit());
    clean_window(&process).await;
    seen.push(fleet.limit());
    throttle(&process).await;
    seen.push(fleet.limit());
    assert_eq!(seen, [8, 16, 32, 16, 17, 8]);
}

#[tokio::test(start_paused = true)]
async fn as_13_probe_returns_quickly_to_what_last_worked_and_rests_there() {
    let fleet = Fleet::new();
    let process = growing(&fleet, Growth::Probe);
    for _ in 0..3 {
        clean_window(&process).await;
    }
    throttle(&process).await;
    // 16 had lasted a window before it was doubled.
    let mut seen = vec![fleet.limit()];
    for _ in 0..2 + 24 + 3 {
        clean_window(&process).await;
        seen.push(fleet.limit());
    }
    let mut expected = vec![16; 1 + 2 + 24];
    expected.extend([17, 19, 23]);
    assert_eq!(seen, expected);

    throttle(&process).await;
    assert_eq!(fleet.limit(), 11);
    // 19 had lasted a window: back to just under it, then to it.
    clean_window(&process).await;
    assert_eq!(fleet.limit(), 18);
    clean_window(&process).await;
    assert_eq!(fleet.limit(), 19);
}

// ---- AS-15 ---------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn as_15_construction_asks_nothing_and_the_first_acquire_seeds() {
    let fleet = Fleet::new();
    let remote = Remote::new(&fleet, Wire::Yields);
    let process = fleet.builder(7).build(remote.clone()).unwrap();
    let (seven, nine) = (fleet.process(7), fleet.process(9));
    let state = process.state();
    assert_eq!((state.limit, state.in_flight, state.waiting), (7, 0, 0));
    sleep(ms(120_000)).await;
    assert_eq!(remote.operations(), 0);
    assert!(ready(Operators::ids(&fleet.store, None, 10)).unwrap().body.items.is_empty());

    drop(nine.try_acquire().await.unwrap());
    assert_eq!((fleet.limit(), seven.state().limit), (9, 7));
    drop(seven.try_acquire().await.unwrap());
    drop(process.acquire(Acquire::new()).await.unwrap());
    assert_eq!(
        (fleet.limit(), seven.state().limit, process.state().limit),
        (9, 9, 9),
        "it adopts what is there"
    );
    process.close().await;
}

#[test]
fn as_15_construction_needs_no_runtime() {
    let store = MemoryStore::new();
    let built: Vec<_> =
        (0..3).map(|_| AdaptiveSemaphore::builder(ID, 5).build(store.clone()).unwrap()).collect();
    drop(built);
    assert!(ready(Operators::ids(&store, None, 10)).unwrap().body.items.is_empty());
}

// ---- AS-16 ---------------------------------------------------------------------------------------------------------

type Change = Box<dyn Fn(SemaphoreBuilder) -> SemaphoreBuilder>;

fn with(change: impl Fn(SemaphoreBuilder) -> SemaphoreBuilder + 'static) -> Change {
    Box::new(change)
}

fn aimd(change: impl Fn(Aimd) -> Aimd + 'static) -> Change {
    with(move |builder| builder.aimd(change(Aimd::new())))
}

fn classes(classes: &[(&str, f64)]) -> Change {
    let classes: Vec<_> = classes
        .iter()
        .map(|(name, share)| match *share {
            0.0 => Class::unreserved(*name),
            share => Class::reserved(*name, share),
        })
        .collect();
    with(move |builder| classes.iter().cloned().fold(builder, SemaphoreBuilder::class))
}

fn build(change: &Change) -> Result<AdaptiveSemaphore, BuildError> {
    change(AdaptiveSemaphore::builder(ID, 10)).build(MemoryStore::new())
}

const YEAR: Duration = Duration::from_secs(366 * 86_400);
const DAY: Duration = Duration::from_secs(86_400);
const NANO: Duration = Duration::from_nanos(1);

#[test]
fn as_16_what_is_out_of_bounds_is_refused_by_name_value_and_what_is_allowed() {
    let day = DAY + NANO;
    let year = YEAR + NANO;
    let seventeen: Vec<(String, f64)> = (0..17).map(|n| (format!("class{n}"), 0.0)).collect();
    let seventeen: Vec<(&str, f64)> = seventeen.iter().map(|(name, share)| (name.as_str(), *share)).collect();
    let long = "n".repeat(65);
    // Which option, as it was given, and how it comes about.
    let cases: Vec<(&str, String, Change)> = vec![
        ("min_limit", "0".into(), with(|b| b.min_limit(0))),
        ("min_limit", "11".into(), with(|b| b.min_limit(11).max_limit(10))),
        ("max_limit", "0".into(), with(|b| b.max_limit(0))),
        ("max_limit", "1000001".into(), with(|b| b.max_limit(1_000_001))),
        ("initial_limit", "10".into(), with(|b| b.min_limit(11))),
        ("initial_limit", "10".into(), with(|b| b.max_limit(9))),
        ("lease_ttl", "99.999999ms".into(), with(|b| b.lease_ttl(ms(100) - NANO))),
        ("lease_ttl", format!("{day:?}"), with(move |b| b.lease_ttl(day))),
        ("lease_ttl", "0ns".into(), with(|b| b.lease_ttl(Duration::ZERO))),
        ("lease_ttl", format!("{:?}", Duration::MAX), with(|b| b.lease_ttl(Duration::MAX))),
        ("aimd.decrease_factor", "0".into(), aimd(|a| a.decrease_factor(0.0))),
        ("aimd.decrease_factor", "1".into(), aimd(|a| a.decrease_factor(1.0))),
        ("aimd.decrease_factor", "-0.5".into(), aimd(|a| a.decrease_factor(-0.5))),
        ("aimd.decrease_factor", "NaN".into(), aimd(|a| a.decrease_factor(f64::NAN))),
        ("aimd.decrease_factor", "inf".into(), aimd(|a| a.decrease_factor(f64::INFINITY))),
        ("aimd.increase_step", "0".into(), aimd(|a| a.increase_step(0))),
        ("aimd.increase_step", u32::MAX.to_string(), aimd(|a| a.increase_step(u32::MAX))),
        ("aimd.window", "0ns".into(), aimd(|a| a.window(Duration::ZERO))),
        ("aimd.window", format!("{year:?}"), aimd(move |a| a.window(year))),
        ("aimd.cooldown", "0ns".into(), aimd(|a| a.cooldown(Duration::ZERO))),
        ("aimd.cooldown", format!("{year:?}"), aimd(move |a| a.cooldown(year))),
        ("aimd.tolerance", "-0.1".into(), aimd(|a| a.tolerance(-0.1))),
        ("aimd.tolerance", "1".into(), aimd(|a| a.tolerance(1.0))),
        ("aimd.tolerance", "NaN".into(), aimd(|a| a.tolerance(f64::NAN))),
        ("throttle_rest", format!("{day:?}"), with(move |b| b.throttle_rest(day))),
        ("fallback_local", "0".into(), with(|b| b.fallback_local(0))),
        ("fallback_local", "1000001".into(), with(|b| b.fallback_local(1_000_001))),
        ("revision", "2147483648".into(), with(|b| b.revision(1 << 31))),
        ("op_timeout", "0ns".into(), with(|b| b.op_timeout(Duration::ZERO))),
        ("op_timeout", format!("{year:?}"), with(move |b| b.op_timeout(year))),
        ("owner", String::new(), with(|b| b.owner(""))),
        ("owner", "o".repeat(129), with(|b| b.owner("o".repeat(129)))),
        ("classes", "17".into(), classes(&seventeen)),
        ("class a: share", "1".into(), classes(&[("a", 1.0)])),
        ("class a: share", "-0.1".into(), classes(&[("a", -0.1)])),
        ("class a: share", "NaN".into(), classes(&[("a", f64::NAN)])),
        ("class a: share", "0".into(), with(|b| b.class(Class::reserved("a", 0.0)))),
        ("classes: sum of shares", "1".into(), classes(&[("a", 0.5), ("b", 0.5)])),
        ("class", "a".into(), classes(&[("a", 0.1), ("b", 0.1), ("a", 0.0)])),
        ("class", String::new(), classes(&[("", 0.0)])),
        ("class", "no spaces".into(), classes(&[("no spaces", 0.0)])),
        ("class", long.clone(), classes(&[(long.as_str(), 0.0)])),
    ];
    for (option, given, change) in &cases {
        let error = build(change).expect_err(&format!("{option} of {given:?} must be refused"));
        let Invalid { option: named, given: shown, allowed, .. } = &error.invalid;
        assert_eq!((named.as_str(), error.option()), (*option, *option));
        let start: String = given.chars().take(60).collect();
        assert!(shown.contains(&start), "{option}: given {given:?}, shown {shown:?}");
        assert!(!allowed.is_empty(), "{option}");
        assert_eq!((error.code(), error.id.as_str()), ("invalid_options", ID));
        let source = std::error::Error::source(&error).expect("the cause").to_string();
        assert!(source.contains(option) && source.contains(allowed.as_str()), "{source}");
        assert!(!error.to_string().contains(allowed.as_str()), "the cause is not said twice");
    }
}

#[test]
fn as_16_ids_that_are_none_are_refused() {
    let long = "x".repeat(201);
    let wide = "é".repeat(101);
    for bad in ["", "a{b", "a}b", "line\nbreak", "nul\0", "del\u{7f}", &long, &wide] {
        let error = AdaptiveSemaphore::builder(bad, 10).build(MemoryStore::new()).expect_err(bad);
        assert_eq!((error.option(), error.id.as_str()), ("id", bad));
    }
    for good in ["x", "a:b/c d", &long[1..], &wide[2..]] {
        assert!(AdaptiveSemaphore::builder(good, 10).build(MemoryStore::new()).is_ok(), "{good}");
    }
}

#[test]
fn as_16_what_lies_on_a_bound_is_taken() {
    let sixteen: Vec<(String, f64)> = (0..16).map(|n| (format!("class{n}"), 0.06)).collect();
    let sixteen: Vec<(&str, f64)> = sixteen.iter().map(|(name, share)| (name.as_str(), *share)).collect();
    let longest = "n".repeat(64);
    let cases: Vec<Change> = vec![
        with(|b| b.min_limit(1).max_limit(1_000_000)),
        with(|b| b.min_limit(10).max_limit(10)),
        with(|b| b.lease_ttl(ms(100))),
        with(|b| b.lease_ttl(DAY)),
        aimd(|a| a.decrease_factor(0.000_001)),
        aimd(|a| a.decrease_factor(0.999_999)),
        aimd(|a| a.increase_step(1_000_000)),
        aimd(|a| a.window(NANO).cooldown(NANO)),
        aimd(|a| a.window(YEAR).cooldown(YEAR)),
        aimd(|a| a.tolerance(0.0)),
        aimd(|a| a.tolerance(0.999_999)),
        with(|b| b.throttle_rest(Duration::ZERO)),
        with(|b| b.throttle_rest(DAY)),
        with(|b| b.fallback_local(1)),
        with(|b| b.fallback_local(1_000_000)),
        with(|b| b.revision((1 << 31) - 1)),
        with(|b| b.op_timeout(ms(1))),
        with(|b| b.op_timeout(YEAR)),
        with(|b| b.owner("o".repeat(128))),
        classes(&sixteen),
        classes(&[("a", 0.000_001), ("B.c-d_9", 0.999_998), (longest.as_str(), 0.0)]),
    ];
    for (case, change) in cases.iter().enumerate() {
        if let Err(error) = build(change) {
            panic!("case {case}: {}", error.invalid);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn as_16_the_defaults() {
    let fleet = Fleet::new();
    drop(fleet.process(10).try_acquire().await.unwrap());
    let policy = fleet.snapshot().policy.unwrap();
    let adaptive = policy.adaptive().unwrap();
    assert_eq!((adaptive.min, adaptive.max, adaptive.increase_step), (1, 1_000, 1));
    assert_eq!((adaptive.window_ms, adaptive.cooldown_ms, adaptive.throttle_rest_ms), (5_000, 10_000, 100));
    assert_eq!((adaptive.decrease_factor.ppm(), adaptive.tolerance.ppm()), (500_000, 0));
    assert_eq!(
        (adaptive.growth, policy.lease_ttl_ms(), policy.classes().len()),
        (Growth::Additive, 30_000, 0)
    );
    assert_eq!((policy.revision(), policy.safe_start()), (0, false));

    let process = fleet.process(10);
    let _all = hold(&process, 10).await;
    let (answer, took) = fleet.timed(process.acquire(Acquire::new())).await;
    assert_eq!(took, ms(10_000), "an acquire waits 10 s");
    full(answer);
    let (answer, took) = fleet.timed(process.acquire(Acquire::within(Duration::ZERO))).await;
    assert_eq!(took, Duration::ZERO, "zero is one try");
    full(answer);
}

#[tokio::test(start_paused = true)]
async fn as_16_a_timeout_says_what_it_waited_for() {
    let fleet = Fleet::new();
    let classes = [Class::reserved("interactive", 0.5), Class::unreserved("background")];
    let process = fleet.process_with(2, &classes);
    let _held = hold_in(&process, "background", 1).await;
    let error = process.acquire(Acquire::class("background").timeout(ms(250))).await.unwrap_err();
    let AcquireError::Timeout { id, timeout, class, waited, last, hint, local } = &error else {
        panic!("{error:?}");
    };
    assert_eq!(
        (id.as_str(), *timeout, *waited, *last, *local),
        (ID, ms(250), ms(250), LastCause::Slots, false)
    );
    assert_eq!(class.as_ref().map(|class| class.as_str()), Some("background"));
    assert!(hint.is_some());
    assert_eq!(error.code(), "timeout");
}

#[tokio::test(start_paused = true)]
async fn as_16_a_wait_ends_at_its_timeout_while_the_store_gives_no_answer() {
    for mode in [Mode::Hangs, Mode::Mute] {
        let fleet = Fleet::new();
        let remote = Remote::new(&fleet, Wire::Yields);
        let process = fleet.builder(1).op_timeout(ms(20_000)).build(remote.clone()).unwrap();
        let _lease = process.acquire(Acquire::new()).await.unwrap();
        let start = fleet.now();
        let waits = [ms(3_000), ms(5_000)].map(|timeout| waiter(&process, Acquire::within(timeout)));
        let [shorter, longer] = waits;
        let (shorter, longer) = (shorter.await, longer.await);
        sleep(ms(1_000)).await;
        remote.set(mode);
        // Polls are at most half a second apart, so one is under way when the waits end.
        full(shorter.await.unwrap());
        assert_eq!(fleet.now().since(start), ms(3_000), "{mode:?}");
        full(longer.await.unwrap());
        assert_eq!(fleet.now().since(start), ms(5_000), "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn as_16_a_wait_has_an_end_up_to_366_days_and_none_beyond() {
    let fleet = Fleet::new();
    let (a, b) = (fleet.builder(1).lease_ttl(DAY), fleet.builder(1).lease_ttl(DAY));
    let (a, b) = (a.build(fleet.store.clone()).unwrap(), b.build(fleet.store.clone()).unwrap());
    let lease = a.try_acquire().await.unwrap();
    let endless = [
        waiter(&b, Acquire::within(Duration::MAX)).await,
        waiter(&b, Acquire::within(YEAR + ms(1))).await,
        waiter(&b, Acquire::within(YEAR)).await,
        waiter(&b, Acquire::within(DAY * 30)).await,
    ];
    // A wait of 30 days is none of 1 ms.
    sleep(ms(60_000)).await;
    assert!(endless.iter().all(|wait| !wait.is_finished()));
    lease.release(Outcome::Success);
    for wait in endless {
        drop(granted(wait).await);
    }
}

#[tokio::test(start_paused = true)]
async fn as_16_an_unknown_class_is_refused_and_changes_nothing() {
    let fleet = Fleet::new();
    let process = fleet.process_with(2, &[Class::unreserved("background"), Class::unreserved("interactive")]);
    for bad in ["nightly", "", "no spaces"] {
        let error = try_in(&process, bad).await.unwrap_err();
        let AcquireError::InvalidOptions { source: StoreError::Invalid(invalid), .. } = &error else {
            panic!("{error:?}");
        };
        assert_eq!(invalid.option, "class");
        assert!(invalid.given.contains(bad), "{invalid:?}");
        assert_eq!(error.code(), "invalid_options");
    }
    let error = try_in(&process, "nightly").await.unwrap_err();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(source.contains("background, interactive"), "{source}");
    assert!(ready(Operators::ids(&fleet.store, None, 10)).unwrap().body.items.is_empty());
}

#[tokio::test(start_paused = true)]
async fn as_16_the_slot_of_a_throttled_release_rests() {
    // What it is released with, and how long the slot rests.
    let cases = [
        (Release::from(Outcome::Throttled), ms(100)),
        (Release::throttled_for(ms(3_000)), ms(3_000)),
        (Release::throttled_for(Duration::ZERO), Duration::ZERO),
        (Release::throttled_for(HOUR), ms(10_000)), // One cooldown at most.
        (Release::from(Outcome::Failure), Duration::ZERO),
    ];
    for (release, rests) in cases {
        let fleet = Fleet::new();
        let process = fleet.process(1);
        process.try_acquire().await.unwrap().release(release);
        let (lease, took) = fleet.timed(process.acquire(Acquire::within(HOUR))).await;
        drop(lease.unwrap());
        assert_eq!(took, rests, "{release:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn as_16_throttles_within_the_tolerance_change_nothing() {
    let fleet = Fleet::new();
    let builder = fleet.builder(20).aimd(Aimd::new().tolerance(0.1)).throttle_rest(Duration::ZERO);
    let process = builder.build(fleet.store.clone()).unwrap();
    release_all(hold(&process, 9).await, Outcome::Success);
    release_all(hold(&process, 1).await, Outcome::Throttled);
    assert_eq!(fleet.limit(), 20, "one of ten");
    release_all(hold(&process, 1).await, Outcome::Throttled);
    assert_eq!(fleet.limit(), 10, "two of eleven");
}

#[test]
fn as_16_a_store_without_leases_or_adaptive_limits_is_refused() {
    struct Bare(Capabilities);
    impl Store for Bare {
        fn capabilities(&self) -> Capabilities {
            self.0
        }
        fn acquire<'a>(&'a self, _: &'a Member, _: &'a AcquireRequest) -> Answer<'a, AcquireReply> {
            tidegate::contract::store::unsupported(Capability::Leases)
        }
        fn pause<'a>(&'a self, _: &'a Id, _: Duration) -> Answer<'a, PauseReply> {
            tidegate::contract::store::unsupported(Capability::Leases)
        }
        fn resume<'a>(&'a self, _: &'a Id) -> Answer<'a, bool> {
            tidegate::contract::store::unsupported(Capability::Leases)
        }
    }
    let leases = Capabilities::NONE.with(Capability::Leases);
    let refused = |has| AdaptiveSemaphore::builder(ID, 1).build(Bare(has)).err().map(|error| error.invalid);
    let without = refused(Capabilities::NONE).unwrap();
    assert_eq!((without.option.as_str(), without.allowed.contains("leases")), ("store", true));
    let without = refused(leases).unwrap();
    assert_eq!((without.option.as_str(), without.allowed.contains("adaptive")), ("store", true));
    assert_eq!(refused(leases.with(Capability::Adaptive)), None);
}

#[tokio::test(start_paused = true)]
async fn as_12_a_jump_of_the_store_s_clock_stops_nobody() {
    let fleet = Fleet::new();
    let leap = Arc::new(AtomicU64::new(0));
    let store = MemoryStore::with_clock(Leaping { clock: fleet.clock, leap: Arc::clone(&leap) });
    let remote = Remote::over(&store, fleet.clock, Wire::Takes(ms(5)));
    let process = fleet.builder(2).build(remote.clone()).unwrap();
    for jump in [ms(10_000), ms(60_000), ms(20_000), Duration::ZERO] {
        drop(process.acquire(Acquire::new()).await.unwrap());
        process.flush().await;
        leap.store(u64::try_from(jump.as_micros()).unwrap(), Ordering::SeqCst);
        let before = remote.operations();
        let (lease, took) = fleet.timed(process.acquire(Acquire::new())).await;
        drop(lease.unwrap());
        assert!(took <= ms(30), "{took:?}");
        assert!(remote.operations() - before <= 3);
        process.flush().await;
        assert_eq!(snapshot(&store).held, 0);
    }
}

// ---- any caller ----------------------------------------------------------------------------------------------------

/// Waits for a future on this thread, with nothing but the standard library.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(thread::Thread);
    impl WakeTask for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut context = Context::from_waker(&waker);
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(value) => return value,
            Poll::Pending => thread::park(),
        }
    }
}

#[test]
fn as_12_a_caller_without_a_runtime_is_served_too() {
    let store = MemoryStore::new();
    let build = || AdaptiveSemaphore::builder(ID, 1).build(store.clone()).unwrap();
    let (a, b) = (build(), build());
    let lease = block_on(a.acquire(Acquire::new())).unwrap();
    full(block_on(b.acquire(Acquire::within(ms(30)))));
    full(block_on(b.try_acquire()));

    let waits = thread::spawn({
        let b = b.clone();
        move || block_on(b.with_lease(Acquire::new(), || async { Ok::<_, ()>(7) }).into_future())
    });
    while snapshot(&store).waiting == 0 {
        thread::yield_now();
    }
    lease.release(Outcome::Success);
    assert_eq!(waits.join().unwrap(), Ok(7));

    block_on(b.refresh()).unwrap();
    block_on(b.flush());
    block_on(b.close());
    assert!(is_closed(&block_on(b.try_acquire())));
    block_on(a.close());
    assert_eq!(snapshot(&store).held, 0);
}

#[test]
fn as_12_a_caller_on_a_runtime_without_timers_is_served_too() {
    let store = MemoryStore::new();
    let build = || AdaptiveSemaphore::builder(ID, 1).build(store.clone()).unwrap();
    let (a, b) = (build(), build());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let lease = a.acquire(Acquire::new()).await.unwrap();
        full(b.acquire(Acquire::within(ms(30))).await);
        let waits = {
            let b = b.clone();
            tokio::spawn(async move { b.acquire(Acquire::new()).await })
        };
        while b.state().waiting == 0 {
            tokio::task::yield_now().await;
        }
        lease.release(Outcome::Success);
        drop(granted(waits).await);
        b.close().await;
    });
    assert_eq!(snapshot(&store).held, 0);
}

#[test]
fn as_3_a_lease_that_outlives_its_runtime_is_released_when_it_is_dropped() {
    let store = MemoryStore::new();
    let remote = Remote::over(&store, SystemClock::new(), Wire::Short);
    let process = AdaptiveSemaphore::builder(ID, 2).build(remote).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let leases = runtime.block_on(async { hold(&process, 2).await });
    drop(runtime);
    assert_eq!(snapshot(&store).held, 2);
    drop(leases);
    block_on(process.flush());
    assert_eq!(snapshot(&store).held, 0);
    drop(block_on(process.acquire(Acquire::new())).unwrap());
}

/// How the runtime that began to drive ends.
#[derive(Clone, Copy, Debug)]
enum Ends {
    /// After its task has run.
    Used,
    /// Before its task ever ran.
    Unused,
    /// While one of its tasks asks.
    InADrop,
}

#[test]
fn as_8_a_driver_whose_runtime_ended_is_started_again_for_whoever_waits() {
    for ends in [Ends::Used, Ends::Unused, Ends::InADrop] {
        let store = MemoryStore::new();
        let build = || AdaptiveSemaphore::builder(ID, 1).build(store.clone()).unwrap();
        let (holder, process) = (build(), build());
        let lease = block_on(holder.try_acquire()).unwrap();

        let first = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let mut abandoned = Box::pin(process.acquire(Acquire::new()));
        first.block_on(async {
            match ends {
                Ends::Used => {
                    assert!(poll_once(abandoned.as_mut()).is_pending());
                    settled().await;
                }
                Ends::Unused => assert!(poll_once(abandoned.as_mut()).is_pending()),
                Ends::InADrop => {
                    let process = process.clone();
                    tokio::spawn(async move {
                        let _asks = AsksWhenDropped(process);
                        std::future::pending::<()>().await;
                    });
                    settled().await;
                }
            }
        });
        let second =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let waits = second.spawn({
            let process = process.clone();
            async move { process.acquire(Acquire::within(HOUR)).await }
        });
        if !matches!(ends, Ends::InADrop) {
            while process.state().waiting < 2 {
                thread::yield_now();
            }
        }
        drop(first);
        drop(abandoned);
        lease.release(Outcome::Failure);
        let granted = second.block_on(async { tokio::time::timeout(ms(3_000), waits).await });
        drop(granted.unwrap_or_else(|_| panic!("{ends:?}: nobody drives")).unwrap().unwrap());
        block_on(process.flush());
        assert_eq!(snapshot(&store).held, 0, "{ends:?}");
    }
}

/// Asks for a lease when it is dropped, and drops the question.
struct AsksWhenDropped(AdaptiveSemaphore);

impl Drop for AsksWhenDropped {
    fn drop(&mut self) {
        let asking = pin!(self.0.acquire(Acquire::new()));
        assert!(poll_once(asking).is_pending());
    }
}

#[tokio::test(start_paused = true)]
async fn as_12_time_that_is_driven_by_hand_is_enough() {
    let fleet = Fleet::new();
    let (a, b) = (fleet.process(1), fleet.process(1));
    let _lease = a.try_acquire().await.unwrap();
    let waits = waiter(&b, Acquire::within(ms(700))).await;
    advance(ms(699)).await;
    settled().await;
    assert!(!waits.is_finished());
    advance(ms(1)).await;
    until(|| waits.is_finished()).await;
    full(waits.await.unwrap());
}

#[tokio::test(start_paused = true)]
async fn as_4_a_lease_knows_the_limit_that_it_was_granted_under() {
    let fleet = Fleet::new();
    let remote = Remote::new(&fleet, Wire::Takes(ms(50)));
    let process = fleet.builder(10).build(remote).unwrap();
    // From the first grant on, the limit is pushed, and a push is there at once.
    let first = process.acquire(Acquire::new()).await.unwrap();
    let asking = tokio::spawn({
        let process = process.clone();
        async move { process.acquire(Acquire::new()).await }
    });
    // Granted after 50 ms, and answered after 100.
    sleep(ms(75)).await;
    assert_eq!(fleet.held(), 2);
    fleet.set_limit(4);
    sleep(ms(5)).await;
    assert_eq!(process.state().limit, 4, "pushed before the answer is there");
    let lease = asking.await.unwrap().unwrap();
    assert_eq!((first.limit(), lease.limit(), process.state().limit), (10, 10, 4));
    let later = process.acquire(Acquire::new()).await.unwrap();
    assert_eq!(later.limit(), 4);
}
