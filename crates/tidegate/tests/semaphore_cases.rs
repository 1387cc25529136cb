//! Cases from practice, as experiments on the adaptive semaphore, and a fleet under stress.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicUsize, Ordering},
    },
    time::Duration,
};

use fastrand::Rng;
use tidegate::{
    Acquire, AcquireError, AdaptiveSemaphore, Aimd, Capability, Class, Concurrency, Direction, Job,
    LastCause, Lease, MemoryStore, Outcome, Recorder, Rule, SemaphoreBuilder, Store, Valve,
    clock::SystemClock,
    contract::{AcquireRequest, DriverId, Job as StoreJob, Line, Member, OnSuperseded, Owner},
};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

#[path = "support/fleet.rs"]
mod fleet;

use fleet::{Fleet, ID, Mode, Remote, Troubles, Wire, id, ms, settled, snapshot, until};

const HOUR: Duration = Duration::from_secs(3_600);

/// A process on the store itself, or at the end of a wire.
fn build(fleet: &Fleet, wire: Option<Wire>, builder: SemaphoreBuilder) -> AdaptiveSemaphore {
    match wire {
        None => builder.build(fleet.store.clone()).unwrap(),
        Some(wire) => builder.build(Remote::new(fleet, wire)).unwrap(),
    }
}

async fn hold(semaphore: &AdaptiveSemaphore, count: usize) -> Vec<Lease> {
    let mut leases = Vec::with_capacity(count);
    for _ in 0..count {
        leases.push(semaphore.try_acquire().await.expect("there is room"));
    }
    leases
}

fn release_all(leases: Vec<Lease>, outcome: Outcome) {
    leases.into_iter().for_each(|lease| lease.release(outcome));
}

#[track_caller]
fn full(answer: Result<Lease, AcquireError>) {
    let error = answer.expect_err("there should be no room");
    assert!(matches!(error, AcquireError::Timeout { last: LastCause::Slots, .. }), "{error:?}");
}

async fn try_in(semaphore: &AdaptiveSemaphore, class: &str) -> Result<Lease, AcquireError> {
    semaphore.acquire(Acquire::once().in_class(class)).await
}

/// A seed that is shown where a test fails; what the library draws on this thread comes of it too.
fn seeded() -> Rng {
    let seed = fastrand::u64(..);
    eprintln!("seed {seed}");
    fastrand::seed(seed);
    Rng::with_seed(seed)
}

// ---- cases ---------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn case_3_twenty_acquires_without_a_release_are_five_leases_and_fifteen_denials() {
    for wire in [None, Some(Wire::Yields), Some(Wire::Takes(ms(10)))] {
        let fleet = Fleet::new();
        let process = build(&fleet, wire, fleet.builder(5));
        let mut tries = JoinSet::new();
        for _ in 0..20 {
            let process = process.clone();
            tries.spawn(async move { process.acquire(Acquire::once()).await });
        }
        let answers = tries.join_all().await;
        let (leases, denials): (Vec<_>, Vec<_>) = answers.into_iter().partition(Result::is_ok);
        denials.into_iter().for_each(full);
        let mut tokens: Vec<_> = leases.iter().flatten().filter_map(Lease::token).collect();
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!((leases.len(), tokens.len(), fleet.held()), (5, 5, 5), "{wire:?}");
        let mut slots: Vec<_> = tokens.iter().map(|token| token.slot).collect();
        slots.sort_unstable();
        assert_eq!(slots, [0, 1, 2, 3, 4]);
    }
}

/// Four processes that hold five each, of a limit of twenty.
async fn four_with_five(fleet: &Fleet) -> (Vec<AdaptiveSemaphore>, Vec<Lease>) {
    let processes: Vec<_> = (0..4).map(|_| fleet.process(20)).collect();
    let mut leases = Vec::new();
    for process in &processes {
        leases.extend(hold(process, 5).await);
    }
    (processes, leases)
}

#[tokio::test(start_paused = true)]
async fn case_5_twenty_saturated_successes_at_once_are_one_step() {
    let fleet = Fleet::new();
    let (processes, leases) = four_with_five(&fleet).await;
    sleep(ms(5_000)).await;
    for process in &processes {
        full(process.try_acquire().await);
    }
    release_all(leases, Outcome::Success);
    assert_eq!(fleet.limit(), 21);
}

#[tokio::test(start_paused = true)]
async fn case_5_forty_throttles_inside_one_cooldown_are_one_decrease() {
    let fleet = Fleet::new();
    let (processes, leases) = four_with_five(&fleet).await;
    release_all(leases, Outcome::Throttled);
    let mut throttled = 20;
    // The slots rest first, and the limit is ten now.
    while throttled < 40 {
        sleep(ms(200)).await;
        for process in &processes {
            release_all(hold(process, 1).await, Outcome::Throttled);
            throttled += 1;
        }
    }
    assert_eq!(fleet.limit(), 10);
    sleep(ms(10_000)).await;
    release_all(hold(&processes[0], 1).await, Outcome::Throttled);
    assert_eq!(fleet.limit(), 5, "the next cooldown");
}

#[tokio::test(start_paused = true)]
async fn case_5_what_was_never_saturated_never_grows() {
    let fleet = Fleet::new();
    let processes: Vec<_> = (0..4).map(|_| fleet.process(20)).collect();
    for _ in 0..20 {
        for process in &processes {
            release_all(hold(process, 5).await, Outcome::Success);
        }
        sleep(ms(1_000)).await;
    }
    assert_eq!(fleet.limit(), 20);
}

#[tokio::test(start_paused = true)]
async fn case_6_a_class_gets_its_slice_at_once_whatever_others_take() {
    let fleet = Fleet::new();
    let classes = [Class::reserved("a", 0.25), Class::reserved("b", 0.25), Class::unreserved("c")];
    let (one, other) = (fleet.process_with(20, &classes), fleet.process_with(20, &classes));
    let mut of_b = Vec::new();
    while let Ok(lease) = try_in(&one, "b").await {
        of_b.push(lease);
    }
    assert_eq!(of_b.len(), 15, "all that leaves the slice of a whole");
    let mut of_a = Vec::new();
    for _ in 0..5 {
        of_a.push(try_in(&other, "a").await.expect("its own five, at once"));
    }
    full(try_in(&other, "a").await);
    drop((of_a, of_b));

    let mut of_a = Vec::new();
    for _ in 0..10 {
        of_a.push(try_in(&one, "a").await.unwrap());
    }
    let mut unreserved = Vec::new();
    while let Ok(lease) = try_in(&other, "c").await {
        unreserved.push(lease);
    }
    assert_eq!(unreserved.len(), 5, "what leaves the slice of b whole, and no less");
    for _ in 0..5 {
        unreserved.push(try_in(&one, "b").await.expect("its own five, at once"));
    }
    full(try_in(&one, "b").await);
}

/// The last limit that was told, as a gauge would show it.
#[derive(Clone, Default)]
struct Gauge(Arc<AtomicU32>);

impl Recorder for Gauge {
    fn limit(&self, limit: u32, _: Direction) {
        self.0.store(limit, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn case_13_a_raised_limit_is_known_shown_and_enforced_everywhere_within_one_refresh() {
    let fleet = Fleet::new();
    let remotes = [
        Remote::new(&fleet, Wire::Yields),
        Remote::new(&fleet, Wire::Takes(ms(10))),
        Remote::new(&fleet, Wire::Yields).without(Capability::Wake),
    ];
    let mut processes = Vec::new();
    for remote in remotes.into_iter().map(Some).chain([None, None]) {
        let gauge = Gauge::default();
        let builder = fleet.builder(10).recorder(gauge.clone());
        let process = match remote {
            Some(remote) => builder.build(remote).unwrap(),
            None => builder.build(fleet.store.clone()).unwrap(),
        };
        processes.push((process, gauge));
    }
    // One of them has never asked for anything.
    let (idle, idle_gauge) = processes.pop().unwrap();
    for (process, gauge) in &processes {
        drop(process.acquire(Acquire::new()).await.unwrap());
        process.flush().await;
        assert_eq!((process.state().limit, gauge.0.load(Ordering::SeqCst)), (10, 10));
    }
    settled().await;
    let seen = || -> Vec<(u32, u32)> {
        processes
            .iter()
            .map(|(process, gauge)| (process.state().limit, gauge.0.load(Ordering::SeqCst)))
            .collect()
    };

    fleet.set_limit(20);
    settled().await;
    assert_eq!(seen(), [(20, 20), (20, 20), (10, 10), (20, 20)], "those that are told know at once");
    sleep(ms(2_000)).await;
    settled().await;
    assert_eq!(seen(), [(20, 20); 4], "one that is not told looks by itself");
    idle.refresh().await.unwrap();
    assert_eq!((idle.state().limit, idle_gauge.0.load(Ordering::SeqCst)), (20, 20));

    let leases = hold(&idle, 20).await;
    for (process, _) in &processes {
        full(process.try_acquire().await);
    }
    drop(leases);
}

#[tokio::test(start_paused = true)]
async fn case_16_slots_of_dropped_futures_and_panics_are_back_at_once_and_of_dead_processes_within_one_ttl() {
    for wire in [None, Some(Wire::Takes(ms(5)))] {
        let fleet = Fleet::new();
        let builder = || fleet.builder(10).lease_ttl(ms(3_000));
        let process = build(&fleet, wire, builder());
        let other = builder().build(fleet.store.clone()).unwrap();
        drop(other.try_acquire().await.unwrap());
        // Three processes that die without a word: nobody renews for them.
        for name in 1..=3_u128 {
            let dead = Member {
                id: id(),
                driver: DriverId(name),
                owner: Owner::new("dead").unwrap(),
                policy: fleet.snapshot().policy.unwrap(),
                on_superseded: OnSuperseded::Adopt,
                initial_limit: 10,
            };
            let line = Line::default();
            let request = AcquireRequest { class: None, jobs: vec![StoreJob::default()], line };
            assert_eq!(Store::acquire(&fleet.store, &dead, &request).await.unwrap().body.grants.len(), 1);
        }
        let died = fleet.now();
        let mut calls = JoinSet::new();
        for panics in [false, false, false, false, true, true, true] {
            let process = process.clone();
            calls.spawn(async move {
                let call = || async move {
                    sleep(ms(500)).await;
                    assert!(!panics, "on purpose");
                    std::future::pending::<Result<(), ()>>().await
                };
                process.with_lease(Acquire::new(), call).await
            });
        }
        sleep(ms(100)).await;
        assert_eq!(fleet.held(), 10);
        full(other.try_acquire().await);
        sleep(ms(1_000)).await;
        calls.abort_all();
        let mut ends = Vec::new();
        while let Some(end) = calls.join_next().await {
            ends.push(end.unwrap_err());
        }
        assert_eq!(ends.iter().filter(|end| end.is_panic()).count(), 3);
        assert_eq!(ends.iter().filter(|end| end.is_cancelled()).count(), 4);
        process.flush().await;
        assert_eq!((process.state().in_flight, fleet.held()), (0, 3), "seven are back at once");
        let leases = hold(&other, 7).await;
        full(other.try_acquire().await);

        sleep(died.plus(ms(2_999)).since(fleet.now())).await;
        full(other.try_acquire().await);
        sleep(ms(1)).await;
        let rest = hold(&other, 3).await;
        full(other.try_acquire().await);
        drop((leases, rest));
    }
}

/// Waits of `rounds` jobs that expire around the instant of a release, on a capacity of eight.
async fn waits_around_a_release(wire: Option<Wire>, rounds: usize) {
    const TOGETHER: usize = 40;
    let mut random = seeded();
    // An answer about a release takes so long.
    let trip = if let Some(Wire::Takes(each_way)) = wire { 2 * each_way } else { Duration::ZERO };
    let fleet = Fleet::new();
    let process = build(&fleet, wire, fleet.builder(8));
    let (mut granted, mut timed_out) = (0, 0);
    while granted + timed_out < rounds {
        let mut leases = Vec::with_capacity(8);
        for _ in 0..8 {
            leases.push(process.acquire(Acquire::once()).await.expect("eight are free"));
        }
        let mut waits = JoinSet::new();
        for _ in 0..TOGETHER {
            let process = process.clone();
            let acquire = Acquire::within(trip + ms(random.u64(3..=5)));
            waits.spawn(async move { process.acquire(acquire).await.map(drop) });
        }
        sleep(ms(4)).await;
        release_all(leases, Outcome::Failure);
        while let Some(wait) = waits.join_next().await {
            match wait.unwrap() {
                Ok(()) => granted += 1,
                error => {
                    let timeout = matches!(error, Err(AcquireError::Timeout { last: LastCause::Slots, .. }));
                    assert!(timeout, "{error:?}");
                    timed_out += 1;
                }
            }
        }
        process.flush().await;
        let state = process.state();
        assert_eq!((fleet.held(), state.in_flight, state.waiting), (0, 0, 0));
    }
    let tenth = rounds / 10;
    assert!(granted > tenth && timed_out > tenth, "both happen: {granted} granted, {timed_out} timed out");
    let all = hold(&process, 8).await;
    full(process.try_acquire().await);
    drop(all);
}

#[tokio::test(start_paused = true)]
async fn case_21_waits_that_expire_around_a_release_leave_eight_free() {
    waits_around_a_release(None, 100_000).await;
}

#[tokio::test(start_paused = true)]
async fn case_21_waits_that_expire_around_a_release_leave_eight_free_at_the_end_of_a_wire() {
    waits_around_a_release(Some(Wire::Yields), 5_000).await;
    waits_around_a_release(Some(Wire::Takes(ms(1))), 5_000).await;
}

#[tokio::test(start_paused = true)]
async fn case_34_a_limit_that_is_reached_does_not_consult_the_fallback() {
    let fleet = Fleet::new();
    let troubles = Troubles::default();
    let builder = fleet.builder(2).fallback_local(25).on_error(troubles.note());
    let process = build(&fleet, Some(Wire::Yields), builder);
    let _held = hold(&process, 2).await;
    for acquire in [Acquire::once(), Acquire::within(ms(700))] {
        let error = process.acquire(acquire).await.unwrap_err();
        let AcquireError::Timeout { last: LastCause::Slots, hint, local: false, .. } = error else {
            panic!("{error:?}");
        };
        assert!(hint.is_some_and(|hint| !hint.is_zero()));
    }
    assert_eq!((fleet.held(), troubles.codes().len()), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn case_34_without_a_fallback_an_outage_is_unavailable_and_no_limit() {
    let fleet = Fleet::new();
    let troubles = Troubles::default();
    let remote = Remote::new(&fleet, Wire::Yields);
    let process = fleet.builder(2).on_error(troubles.note()).build(remote.clone()).unwrap();
    remote.set(Mode::Down);
    for acquire in [Acquire::once(), Acquire::new(), Acquire::within(HOUR)] {
        let (answer, took) = fleet.timed(process.acquire(acquire)).await;
        let error = answer.unwrap_err();
        assert!(matches!(error, AcquireError::Unavailable { .. }), "{error:?}");
        assert_eq!((error.code(), took), ("unavailable", Duration::ZERO));
        assert!(
            std::error::Error::source(&error)
                .is_some_and(|cause| cause.to_string().contains("the wire is cut"))
        );
    }
    assert_eq!(troubles.codes(), ["unavailable"], "told once, not once per call");
    sleep(ms(30_000)).await;
    assert!(remote.operations() < 30, "it is probed now and then: {}", remote.operations());

    remote.set(Mode::Up);
    sleep(ms(2_000)).await;
    drop(hold(&process, 2).await);
    assert_eq!(troubles.codes(), ["unavailable", "available"]);
}

#[tokio::test(start_paused = true)]
async fn case_34_with_a_fallback_an_outage_is_decided_locally_flagged_and_counted() {
    let fleet = Fleet::new();
    let troubles = Troubles::default();
    let remote = Remote::new(&fleet, Wire::Yields);
    let builder = fleet.builder(2).fallback_local(4).on_error(troubles.note());
    let process = builder.class(Class::reserved("interactive", 0.5)).build(remote.clone()).unwrap();
    remote.set(Mode::Down);
    let mut leases = hold(&process, 2).await;
    full(process.try_acquire().await);
    leases.push(try_in(&process, "interactive").await.unwrap());
    leases.push(try_in(&process, "interactive").await.unwrap());
    for lease in &leases {
        assert!(lease.is_local() && lease.is_live());
        assert_eq!((lease.slot(), lease.fence(), lease.token()), (None, None, None));
    }
    let error = process.acquire(Acquire::within(ms(50))).await.unwrap_err();
    assert!(matches!(error, AcquireError::Timeout { last: LastCause::Slots, local: true, .. }), "{error:?}");
    assert_eq!((process.state().in_flight, troubles.codes()), (4, vec!["unavailable"]));

    // It is waited for like the real one.
    let waits = {
        let process = process.clone();
        tokio::spawn(async move { process.acquire(Acquire::new()).await })
    };
    until(|| process.state().waiting == 1).await;
    leases.remove(0).release(Outcome::Success);
    let (lease, took) = fleet.timed(waits).await;
    leases.push(lease.unwrap().unwrap());
    assert_eq!(took, Duration::ZERO);

    // The store counts them when it is back, above the limit too.
    remote.set(Mode::Up);
    sleep(ms(2_000)).await;
    process.flush().await;
    assert_eq!((fleet.held(), fleet.limit(), troubles.codes()), (4, 2, vec!["unavailable", "available"]));
    while leases.len() > 2 {
        full(process.try_acquire().await);
        leases.pop().unwrap().release(Outcome::Success);
        process.flush().await;
    }
    leases.clear();
    process.flush().await;
    let lease = process.try_acquire().await.unwrap();
    assert!(!lease.is_local() && lease.token().is_some());
    assert_eq!(fleet.held(), 1);
}

#[tokio::test(start_paused = true)]
async fn case_34_a_fallback_is_kept_to_on_time_while_a_probe_hangs() {
    let fleet = Fleet::new();
    let remote = Remote::new(&fleet, Wire::Yields);
    let valve = Valve::builder(ID)
        .clock(fleet.clock)
        .rule(Rule::token_bucket(1_000, ms(1_000)))
        .fallback_rule(Rule::token_bucket(1, ms(100)))
        .build(remote.clone())
        .unwrap();
    remote.set(Mode::Hangs);
    let first = valve.acquire(Job::new()).await.unwrap();
    assert!(first.is_local());
    let start = fleet.now();
    for turn in 1..=50 {
        let permit = valve.acquire(Job::new()).await.unwrap();
        assert!(permit.is_local());
        assert_eq!(fleet.now().since(start), ms(100 * turn));
    }
}

#[tokio::test(start_paused = true)]
async fn un_3_a_valve_whose_first_word_met_an_outage_comes_back_by_itself() {
    for fallback in [false, true] {
        let fleet = Fleet::new();
        let remote = Remote::new(&fleet, Wire::Yields);
        let builder = Valve::builder(ID).clock(fleet.clock).concurrency(Concurrency::Global(2));
        let builder = if fallback { builder.fallback_local(1) } else { builder };
        let valve = builder.build(remote.clone()).unwrap();
        remote.set(Mode::Down);
        valve.pause(ms(10)).await.unwrap_err();
        remote.set(Mode::Up);
        sleep(ms(2_000)).await;
        let permit = valve.try_acquire(Job::new()).await.unwrap();
        assert!(!permit.is_local());
    }
}

// ---- stress --------------------------------------------------------------------------------------------------------

/// Guards each slot as a resource would, and counts what is certainly held.
#[derive(Default)]
struct Guarded {
    held: AtomicUsize,
    most: AtomicUsize,
    grants: AtomicUsize,
    slots: [Mutex<Slot>; LIMIT],
}

#[derive(Default)]
struct Slot {
    fence: u64,
    taken: bool,
}

const LIMIT: usize = 8;

impl Guarded {
    fn take(&self, lease: &Lease) {
        let held = self.held.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(held, Ordering::SeqCst);
        self.grants.fetch_add(1, Ordering::SeqCst);
        let at = usize::try_from(lease.slot().unwrap()).unwrap();
        let fence = lease.fence().unwrap();
        let mut slot = self.slots.get(at).expect("no slot beyond the limit").lock().unwrap();
        assert!(!slot.taken, "slot {at} is held twice");
        assert!(fence > slot.fence, "slot {at}: fence {fence} after {}", slot.fence);
        *slot = Slot { fence, taken: true };
    }

    fn give_back(&self, lease: &Lease) {
        let at = usize::try_from(lease.slot().unwrap()).unwrap();
        self.slots[at].lock().unwrap().taken = false;
        self.held.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Holds a lease for a while and ends it somehow; also where the task is cut off.
struct Uses<'a>(&'a Guarded, Option<Lease>);

impl Uses<'_> {
    fn end(mut self, outcome: Outcome) {
        if let Some(lease) = self.1.take() {
            self.0.give_back(&lease);
            lease.release(outcome);
        }
    }
}

impl Drop for Uses<'_> {
    fn drop(&mut self) {
        if let Some(lease) = self.1.take() {
            self.0.give_back(&lease);
        }
    }
}

async fn use_it(process: &AdaptiveSemaphore, guarded: &Guarded, random: &mut Rng) {
    let acquire = match random.u32(0..4) {
        0 => Acquire::once(),
        1 => Acquire::new(),
        _ => Acquire::within(Duration::from_micros(random.u64(1..20_000))),
    };
    let acquire = if random.bool() { acquire.in_class("reserved") } else { acquire };
    let lease = match process.acquire(acquire).await {
        Ok(lease) => lease,
        Err(AcquireError::Timeout { .. }) => return,
        Err(error) => panic!("{error:?}"),
    };
    guarded.take(&lease);
    let uses = Uses(guarded, Some(lease));
    for _ in 0..random.u32(0..4) {
        tokio::task::yield_now().await;
    }
    if random.u32(0..4) == 0 {
        sleep(Duration::from_micros(random.u64(0..1_500))).await;
    }
    match random.u32(0..4) {
        0 => uses.end(Outcome::Success),
        1 => uses.end(Outcome::Failure),
        2 => uses.end(Outcome::Throttled),
        _ => drop(uses),
    }
}

#[test]
fn as_4_under_stress_never_more_than_the_limit_are_held_and_nothing_is_left() {
    let mut random = seeded();
    let store = MemoryStore::new();
    let build = |wire: Option<Wire>| {
        let builder =
            AdaptiveSemaphore::builder(ID, 8).min_limit(8).max_limit(8).throttle_rest(Duration::ZERO);
        let builder =
            builder.aimd(Aimd::new().window(ms(1)).cooldown(ms(1))).class(Class::reserved("reserved", 0.25));
        match wire {
            None => builder.build(store.clone()).unwrap(),
            Some(wire) => builder.build(Remote::over(&store, SystemClock::new(), wire)).unwrap(),
        }
    };
    let processes = [None, None, Some(Wire::Yields), Some(Wire::Takes(ms(1)))].map(build);
    let guarded = Arc::new(Guarded::default());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async {
        let until = tokio::time::Instant::now() + ms(1_200);
        let mut tasks = JoinSet::new();
        for task in 0..64 {
            let process = processes[task % processes.len()].clone();
            let guarded = Arc::clone(&guarded);
            let mut random = random.fork();
            tasks.spawn(async move {
                while tokio::time::Instant::now() < until {
                    let patience = Duration::from_micros(random.u64(0..6_000));
                    let mut inner = random.fork();
                    let uses = use_it(&process, &guarded, &mut inner);
                    match random.u32(0..3) {
                        0 => drop(timeout(patience, uses).await),
                        _ => uses.await,
                    }
                }
            });
        }
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
        }
        for process in &processes {
            timeout(ms(5_000), process.flush()).await.expect("it is all delivered");
        }
    });
    let (most, grants) = (guarded.most.load(Ordering::SeqCst), guarded.grants.load(Ordering::SeqCst));
    assert!(most <= LIMIT, "{most} were held at once");
    assert!(most == LIMIT && grants > 100, "it was busy: {grants} grants, {most} at once");
    assert_eq!(guarded.held.load(Ordering::SeqCst), 0);
    for process in &processes {
        let state = process.state();
        assert_eq!((state.in_flight, state.waiting, state.limit), (0, 0, 8));
    }
    assert_eq!(snapshot(&store).held, 0);
}
