//! Every future of the library, dropped at every one of its polls: nothing leaks, and what never ran is settled back.
//!
//! Each cell of the matrix is a world of its own with paused time. A future is polled by hand up to `k` times and then
//! dropped, for every `k` until it ends by itself. Between two polls the runtime runs for a turn, for a millisecond, or
//! until the future is woken. Before it is dropped it may be woken once more, so that it has what it did not yet take.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::{
    future::Future,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use tidegate::{
    Acquire, AcquireError, AdaptiveSemaphore, CallError, Concurrency, Job, LastCause, Lease, Operators,
    Outcome, Rule, Valve,
};
use tokio::{
    sync::Notify,
    task::JoinHandle,
    time::{advance, sleep, timeout},
};

#[path = "support/fleet.rs"]
mod fleet;

use fleet::{Fleet, ID, Remote, Wire, id, ms, ready, until};

const HOUR: Duration = Duration::from_secs(3_600);
/// Longer than anything here takes that does not wait for an hour.
const FOR_EVER: Duration = ms(300);
/// So many may run at once.
const SLOTS: u32 = 2;

// ---- the matrix ----------------------------------------------------------------------------------------------------

/// How a store is reached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Path {
    /// It decides on the spot.
    Sync,
    /// It has no synchronous path.
    Over(Wire),
}

const PATHS: [Path; 3] = [Path::Sync, Path::Over(Wire::Yields), Path::Over(Wire::Takes(ms(2)))];

/// What happens between two polls.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Between {
    /// One turn of the scheduler.
    Turn,
    /// One millisecond.
    Milli,
    /// All that happens until the future is woken.
    Woken,
}

impl Path {
    /// What makes a difference there.
    const fn between(self) -> [Between; 2] {
        match self {
            Self::Over(Wire::Takes(_)) => [Between::Milli, Between::Woken],
            _ => [Between::Turn, Between::Woken],
        }
    }
}

impl Between {
    /// By so many polls each has come as far as it comes: turns alone move no clock.
    const fn most_polls(self) -> usize {
        match self {
            Self::Turn => 10,
            Self::Milli => 26,
            Self::Woken => usize::MAX,
        }
    }
}

/// When it is dropped, after its last poll.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Dropped {
    AtOnce,
    /// When it has been woken, and would be polled again.
    OnceWoken,
}

/// A place in the matrix.
#[derive(Clone, Copy, Debug)]
struct Cell {
    path: Path,
    between: Between,
    dropped: Dropped,
    polls: usize,
}

/// How a future ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum End {
    ByItself,
    /// It was dropped, and could have gone on.
    Dropped,
    /// It was dropped, and nothing would have woken it.
    Stuck,
}

/// Plays a scenario in every cell. One that is polled whenever it is woken must come to `end`.
fn matrix<F: Future<Output = End>>(end: End, scenario: impl Fn(Cell) -> F) {
    for path in PATHS {
        for between in path.between() {
            for dropped in [Dropped::AtOnce, Dropped::OnceWoken] {
                let mut last = End::Dropped;
                for polls in 0..=between.most_polls() {
                    let cell = Cell { path, between, dropped, polls };
                    let tells = Tells(cell);
                    let mut runtime = tokio::runtime::Builder::new_current_thread();
                    last = runtime.enable_all().start_paused(true).build().unwrap().block_on(scenario(cell));
                    std::mem::forget(tells);
                    if last != End::Dropped {
                        break;
                    }
                }
                assert!(between != Between::Woken || last == end, "{path:?}, {dropped:?}: {last:?}");
            }
        }
    }
}

/// Says in which cell it went wrong.
struct Tells(Cell);

impl Drop for Tells {
    fn drop(&mut self) {
        eprintln!("in {:?}", self.0);
    }
}

impl Cell {
    /// Polls a future as this cell says, and drops it. Says how it ended, with its value where it did so by itself.
    async fn run<F: Future>(self, future: F) -> (End, Option<F::Output>) {
        let mut future = pin!(future);
        let woken = Arc::new(Woken::default());
        let waker = Waker::from(Arc::clone(&woken));
        for turn in 1..=self.polls {
            woken.forget();
            if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
                return (End::ByItself, Some(value));
            }
            let is_last = turn == self.polls;
            match (self.between, self.dropped) {
                (_, Dropped::AtOnce) if is_last => {}
                (Between::Turn, _) if !is_last => tokio::task::yield_now().await,
                (Between::Milli, _) if !is_last => advance(ms(1)).await,
                _ if timeout(FOR_EVER, woken.0.notified()).await.is_err() => return (End::Stuck, None),
                _ => {}
            }
        }
        (End::Dropped, None)
    }
}

#[derive(Default)]
struct Woken(Notify);

impl Woken {
    fn forget(&self) {
        let _ = fleet::poll_once(pin!(self.0.notified()));
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

// ---- the call, and the room for it ---------------------------------------------------------------------------------

/// What becomes of the call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Call {
    Ok,
    Error,
    Slow,
    Never,
}

const CALLS: [Call; 4] = [Call::Ok, Call::Error, Call::Slow, Call::Never];

impl Call {
    /// Makes the call, and notes that it was made.
    async fn make(self, made: &AtomicBool) -> Result<u32, &'static str> {
        made.store(true, Ordering::SeqCst);
        match self {
            Self::Ok => Ok(7),
            Self::Error => Err("no"),
            Self::Slow => {
                tokio::task::yield_now().await;
                sleep(ms(3)).await;
                Ok(7)
            }
            Self::Never => std::future::pending().await,
        }
    }

    fn end(self, room: Room) -> End {
        if self == Self::Never && room != Room::Never { End::Stuck } else { End::ByItself }
    }

    /// Asserts that an answer is what this comes to, or that there was no room.
    fn check(self, room: Room, made: bool, answer: &Result<u32, CallError<&'static str>>) {
        match answer {
            Ok(value) => assert!(made && matches!(self, Self::Ok | Self::Slow) && *value == 7),
            Err(CallError::Call(error)) => assert!(made && self == Self::Error && *error == "no"),
            Err(CallError::Acquire(error)) => {
                assert!(!made);
                room.check_error(error);
            }
        }
    }
}

/// When there is room.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Room {
    AtOnce,
    /// When another process gives its slots back.
    Later,
    /// When this process gives its own back.
    Own,
    Never,
    /// When a pause is over.
    Paused,
}

const ROOMS: [Room; 4] = [Room::AtOnce, Room::Later, Room::Own, Room::Never];

/// Slots are given back after this long, and a pause ends.
const LATER: Duration = ms(8);

impl Room {
    const fn patience(self) -> Duration {
        match self {
            Self::Never => ms(20),
            _ => HOUR,
        }
    }

    fn check_error(self, error: &AcquireError) {
        assert_eq!(self, Self::Never, "{error:?}");
        assert!(matches!(error, AcquireError::Timeout { last: LastCause::Slots, .. }), "{error:?}");
    }
}

/// Lets go of what is held when it is time.
fn lets_go<T: Send + 'static>(held: Vec<T>, room: Room) -> JoinHandle<()> {
    tokio::spawn(async move {
        sleep(if room == Room::Never { FOR_EVER * 2 } else { LATER }).await;
        drop(held);
    })
}

async fn over(holder: Option<JoinHandle<()>>) {
    if let Some(holder) = holder {
        holder.await.unwrap();
    }
}

/// How many leases the store holds.
fn held(fleet: &Fleet) -> u32 {
    ready(Operators::snapshot(&fleet.store, &id())).unwrap().body.map_or(0, |snapshot| snapshot.held)
}

// ---- the semaphore -------------------------------------------------------------------------------------------------

/// A fleet of two processes: the one that is looked at, and another.
struct Semaphores {
    fleet: Fleet,
    ours: AdaptiveSemaphore,
    theirs: AdaptiveSemaphore,
}

impl Semaphores {
    fn new(path: Path) -> Self {
        let fleet = Fleet::new();
        let ours = match path {
            Path::Sync => fleet.process(SLOTS),
            Path::Over(wire) => fleet.builder(SLOTS).build(Remote::new(&fleet, wire)).unwrap(),
        };
        let theirs = fleet.process(SLOTS);
        Self { fleet, ours, theirs }
    }

    /// Sees to it that there is as much room as there should be.
    async fn set(&self, room: Room) -> Option<JoinHandle<()>> {
        let holder = match room {
            Room::AtOnce | Room::Paused => return None,
            Room::Later | Room::Never => &self.theirs,
            Room::Own => &self.ours,
        };
        let mut held = Vec::new();
        for _ in 0..SLOTS {
            held.push(holder.acquire(Acquire::once()).await.unwrap());
        }
        Some(lets_go(held, room))
    }

    /// Nothing is held, nobody waits, and the whole capacity can be had at once.
    async fn check(&self) {
        let Self { fleet, ours, theirs } = self;
        for process in [ours, theirs] {
            timeout(FOR_EVER, process.flush()).await.expect("the store has it all before long");
            let state = process.state();
            assert_eq!((state.in_flight, state.waiting), (0, 0), "in a process");
        }
        assert_eq!(held(fleet), 0, "in the store");
        for process in [ours, theirs] {
            let mut leases = Vec::new();
            for _ in 0..SLOTS {
                leases.push(process.acquire(Acquire::once()).await.expect("the whole capacity is free"));
            }
            assert!(process.acquire(Acquire::once()).await.is_err(), "and no more than that");
            // A success could lift the limit here.
            leases.into_iter().for_each(|lease| lease.release(Outcome::Failure));
            process.flush().await;
            assert_eq!((held(fleet), process.state().in_flight), (0, 0));
        }
    }
}

#[test]
fn as_8_an_acquire_can_be_dropped_at_any_poll() {
    for room in ROOMS {
        matrix(End::ByItself, |cell| async move {
            let world = Semaphores::new(cell.path);
            let holder = world.set(room).await;
            let (end, answer) = cell.run(world.ours.acquire(Acquire::within(room.patience()))).await;
            match answer {
                Some(Ok(lease)) => {
                    assert!(world.ours.state().in_flight >= 1 && lease.is_live());
                    drop(lease);
                }
                Some(Err(error)) => room.check_error(&error),
                None => {}
            }
            over(holder).await;
            world.check().await;
            end
        });
    }
}

#[test]
fn as_8_a_try_can_be_dropped_at_any_poll() {
    for room in ROOMS {
        matrix(End::ByItself, |cell| async move {
            let world = Semaphores::new(cell.path);
            let holder = world.set(room).await;
            let (end, answer) = cell.run(world.ours.try_acquire()).await;
            match answer {
                Some(Ok(lease)) => lease.release(Outcome::Success),
                Some(Err(error)) => {
                    assert!(
                        room != Room::AtOnce && matches!(error, AcquireError::Timeout { .. }),
                        "{error:?}"
                    );
                }
                None => {}
            }
            over(holder).await;
            world.check().await;
            end
        });
    }
}

#[test]
fn as_8_a_call_under_a_lease_can_be_dropped_at_any_poll() {
    for call in CALLS {
        for room in ROOMS {
            matrix(call.end(room), |cell| async move {
                let world = Semaphores::new(cell.path);
                let holder = world.set(room).await;
                let made = AtomicBool::new(false);
                let acquire = Acquire::within(room.patience());
                let calling = world.ours.with_lease(acquire, || call.make(&made)).into_future();
                let (end, answer) = cell.run(calling).await;
                if let Some(answer) = &answer {
                    call.check(room, made.load(Ordering::SeqCst), answer);
                }
                over(holder).await;
                world.check().await;
                end
            });
        }
    }
}

#[test]
fn as_8_one_waiter_among_others_can_be_dropped_at_any_poll() {
    for comes_first in [true, false] {
        matrix(End::ByItself, |cell| async move {
            let world = Semaphores::new(cell.path);
            let holder = world.set(Room::Own).await;
            let others: Vec<_> = (0..4)
                .map(|_| {
                    let ours = world.ours.clone();
                    tokio::spawn(async move {
                        let lease = ours.acquire(Acquire::within(HOUR)).await.unwrap();
                        sleep(ms(1)).await;
                        lease.release(Outcome::Success);
                    })
                })
                .collect();
            if !comes_first {
                until(|| world.ours.state().waiting == 4).await;
            }
            let (end, answer) = cell.run(world.ours.acquire(Acquire::within(HOUR))).await;
            drop(answer);
            for other in others {
                timeout(FOR_EVER, other).await.expect("the others are served").unwrap();
            }
            over(holder).await;
            world.check().await;
            end
        });
    }
}

#[test]
fn as_7_a_flush_can_be_dropped_at_any_poll_and_the_release_is_delivered_all_the_same() {
    for outcome in [Some(Outcome::Success), Some(Outcome::Failure), None] {
        matrix(End::ByItself, |cell| async move {
            let world = Semaphores::new(cell.path);
            let lease = world.ours.acquire(Acquire::new()).await.unwrap();
            match outcome {
                Some(outcome) => lease.release(outcome),
                None => drop(lease),
            }
            let (end, _) = cell.run(world.ours.flush()).await;
            assert!(end != End::ByItself || held(&world.fleet) == 0);
            sleep(ms(20)).await;
            assert_eq!(held(&world.fleet), 0, "nobody flushes any more, and still it comes");
            world.check().await;
            end
        });
    }
}

#[test]
fn as_10_a_close_can_be_dropped_at_any_poll() {
    matrix(End::ByItself, |cell| async move {
        let Semaphores { fleet, ours, theirs } = Semaphores::new(cell.path);
        let released = ours.acquire(Acquire::new()).await.unwrap();
        let kept = ours.acquire(Acquire::new()).await.unwrap();
        let waits = {
            let ours = ours.clone();
            tokio::spawn(async move { ours.acquire(Acquire::within(HOUR)).await })
        };
        until(|| ours.state().waiting == 1).await;
        released.release(Outcome::Failure);
        let (end, _) = cell.run(ours.close()).await;
        // It may have been served before anyone closed; if not, it is over for it.
        if cell.polls == 0 {
            ours.close().await;
        }
        match waits.await.unwrap() {
            Ok(lease) => drop(lease),
            Err(error) => assert!(matches!(error, AcquireError::Closed { .. }), "{error:?}"),
        }
        let refused = ours.try_acquire().await;
        assert!(matches!(refused, Err(AcquireError::Closed { .. })), "{refused:?}");
        assert!(kept.is_live());
        drop(kept);
        timeout(FOR_EVER, ours.flush()).await.unwrap();
        assert_eq!((held(&fleet), ours.state().in_flight, ours.state().waiting), (0, 0, 0));
        Semaphores { fleet, ours: theirs.clone(), theirs }.check().await;
        end
    });
}

#[test]
fn as_6_lost_can_be_dropped_at_any_poll_and_asked_again() {
    // It is told by the next renewal, which is past what counts as for ever here.
    for (evicted, end) in [(true, End::Stuck), (false, End::ByItself)] {
        matrix(end, |cell| async move {
            let world = Semaphores::new(cell.path);
            let lease: Lease = world.ours.acquire(Acquire::new()).await.unwrap();
            assert!(world.fleet.evict(lease.token().unwrap()));
            if !evicted {
                lease.lost().await;
            }
            let (end, _) = cell.run(lease.lost()).await;
            let lost = timeout(HOUR, lease.lost()).await.unwrap();
            assert_eq!(Some(lost.token), lease.token());
            drop(lease);
            world.check().await;
            end
        });
    }
}

#[test]
fn as_11_a_refresh_can_be_dropped_at_any_poll() {
    matrix(End::ByItself, |cell| async move {
        let world = Semaphores::new(cell.path);
        let (end, answer) = cell.run(world.ours.refresh()).await;
        assert!(answer.is_none_or(|answer| answer.is_ok()));
        world.check().await;
        end
    });
}

// ---- the valve -----------------------------------------------------------------------------------------------------

/// What bounds a valve, besides its rules.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Ordered,
    Scoped,
    Local,
}

const KINDS: [Kind; 3] = [Kind::Ordered, Kind::Scoped, Kind::Local];
const VALVE_ROOMS: [Room; 5] = [Room::AtOnce, Room::Later, Room::Own, Room::Never, Room::Paused];
/// What each rule holds.
const BURST: u64 = 10;
/// What a job costs in the bucket, and in every other rule.
const COSTS: (u64, u64) = (3, 2);

struct Valves {
    fleet: Fleet,
    kind: Kind,
    ours: Valve,
    theirs: Valve,
}

impl Valves {
    fn new(path: Path, kind: Kind) -> Self {
        let fleet = Fleet::new();
        let ours = Self::build(&fleet, path, kind);
        let theirs = Self::build(&fleet, Path::Sync, kind);
        Self { fleet, kind, ours, theirs }
    }

    fn build(fleet: &Fleet, path: Path, kind: Kind) -> Valve {
        let builder = Valve::builder(ID)
            .clock(fleet.clock)
            .rule(Rule::token_bucket(BURST, HOUR).named("bucket"))
            .rule(Rule::fixed_window(BURST, HOUR).named("window"))
            .rule(Rule::sliding_window(BURST, HOUR));
        let builder = match kind {
            Kind::Ordered => builder.concurrency(Concurrency::Global(SLOTS)),
            Kind::Scoped => builder
                .rule(Rule::fixed_window(BURST, HOUR).named("own").scoped("tenant"))
                .concurrency(Concurrency::Global(SLOTS)),
            Kind::Local => builder.concurrency(Concurrency::Local(SLOTS)),
        };
        match path {
            Path::Sync => builder.build(fleet.store.clone()).unwrap(),
            Path::Over(wire) => builder.build(Remote::new(fleet, wire)).unwrap(),
        }
    }

    /// A job that spends so much in the bucket, and so much in every other rule.
    fn job(&self, (in_the_bucket, elsewhere): (u64, u64)) -> Job {
        let job = Job::new().cost_each(elsewhere).cost("bucket", in_the_bucket);
        if self.kind == Kind::Scoped { job.scope("tenant", "acme") } else { job }
    }

    /// One that spends nothing.
    fn free(&self) -> Job {
        self.job((0, 0))
    }

    async fn set(&self, room: Room) -> Option<JoinHandle<()>> {
        let holder = match room {
            Room::AtOnce => return None,
            Room::Paused => {
                self.theirs.pause(LATER).await.unwrap();
                return Some(tokio::spawn(sleep(LATER)));
            }
            Room::Later | Room::Never if self.kind != Kind::Local => &self.theirs,
            _ => &self.ours,
        };
        let mut held = Vec::new();
        for _ in 0..SLOTS {
            held.push(holder.try_acquire(self.free()).await.unwrap());
        }
        Some(lets_go(held, room))
    }

    /// Nothing is held, nobody waits, and exactly what was not spent can be spent at once.
    async fn check(&self, spent: bool) {
        let Self { fleet, kind, ours, theirs } = self;
        for valve in [ours, theirs] {
            timeout(FOR_EVER, valve.flush()).await.expect("the store has it all before long");
            assert_eq!((valve.stats().in_flight, valve.stats().queued), (0, 0), "in a process");
        }
        assert_eq!(held(fleet), 0, "in the store");
        let left = if spent { (BURST - COSTS.0, BURST - COSTS.1) } else { (BURST, BURST) };
        if let Some(snapshot) = ready(Operators::snapshot(&fleet.store, &id())).unwrap().body {
            for rule in &snapshot.rules {
                let expected = match rule.rule.as_str() {
                    "named:bucket" => Some(left.0),
                    "named:own" => None,
                    _ => Some(left.1),
                };
                let level = rule.level.map(|level| u64::try_from(level).unwrap());
                assert_eq!(level, expected, "level of {}, and the job was made: {spent}", rule.rule);
            }
        }
        let fresh = Self::build(fleet, Path::Sync, *kind);
        let all = fresh.try_acquire(self.job(left)).await.expect("what was not spent is there");
        let other = fresh.try_acquire(self.free()).await.expect("so are all slots");
        assert!(fresh.try_acquire(self.free()).await.is_err(), "and no more than that");
        drop(other);
        for costs in [(1, 0), (0, 1)] {
            assert!(fresh.try_acquire(self.job(costs)).await.is_err(), "nothing is left");
        }
        drop(all);
        assert_eq!(held(fleet), 0);
    }
}

#[test]
fn va_8_an_acquire_can_be_dropped_at_any_poll() {
    for kind in KINDS {
        for room in VALVE_ROOMS {
            matrix(End::ByItself, |cell| async move {
                let world = Valves::new(cell.path, kind);
                let holder = world.set(room).await;
                let job = world.job(COSTS).timeout(room.patience());
                let (end, answer) = cell.run(world.ours.acquire(job)).await;
                let spent = matches!(answer, Some(Ok(_)));
                if let Some(Err(error)) = &answer {
                    room.check_error(error);
                }
                drop(answer);
                over(holder).await;
                world.check(spent).await;
                end
            });
        }
    }
}

#[test]
fn va_8_a_call_can_be_dropped_at_any_poll() {
    for call in CALLS {
        for room in VALVE_ROOMS {
            matrix(call.end(room), |cell| async move {
                let world = Valves::new(cell.path, Kind::Ordered);
                let holder = world.set(room).await;
                let made = AtomicBool::new(false);
                let job = world.job(COSTS).timeout(room.patience());
                let (end, answer) = cell.run(world.ours.run(job, || call.make(&made)).into_future()).await;
                let made = made.load(Ordering::SeqCst);
                if let Some(answer) = &answer {
                    call.check(room, made, answer);
                }
                over(holder).await;
                world.check(made).await;
                end
            });
        }
    }
}

#[test]
fn va_8_one_that_waits_for_a_rate_can_be_dropped_at_any_poll() {
    matrix(End::ByItself, |cell| async move {
        let fleet = Fleet::new();
        let build = |path| {
            let builder = Valve::builder(ID).clock(fleet.clock).rule(Rule::token_bucket(2, ms(20)));
            match path {
                Path::Sync => builder.build(fleet.store.clone()).unwrap(),
                Path::Over(wire) => builder.build(Remote::new(&fleet, wire)).unwrap(),
            }
        };
        let (ours, theirs) = (build(cell.path), build(Path::Sync));
        drop(theirs.try_acquire(Job::new().cost_each(2)).await.unwrap());
        let (end, answer) = cell.run(ours.acquire(Job::new().cost_each(2).timeout(HOUR))).await;
        let spent = answer.is_some();
        assert!(answer.is_none_or(|answer| answer.is_ok()));
        let stats = ours.stats();
        assert_eq!((stats.in_flight, stats.queued), (0, 0));
        ours.flush().await;
        let full_at = if spent { ms(20) } else { Duration::ZERO };
        // What was spent by the one that holds nothing any more is back by its rate, and nothing else is missing.
        sleep(full_at + ms(20)).await;
        drop(theirs.try_acquire(Job::new().cost_each(2)).await.unwrap());
        assert!(theirs.try_acquire(Job::new()).await.is_err());
        end
    });
}

#[test]
fn va_6_what_was_settled_is_delivered_when_the_flush_is_dropped_at_any_poll() {
    for kind in KINDS {
        matrix(End::ByItself, |cell| async move {
            let world = Valves::new(cell.path, kind);
            let permit = world.ours.acquire(world.job((COSTS.0 + 4, COSTS.1))).await.unwrap();
            permit.settle("bucket", COSTS.0).release(Outcome::Success);
            let (end, _) = cell.run(world.ours.flush()).await;
            sleep(ms(20)).await;
            assert_eq!(held(&world.fleet), 0, "nobody flushes any more, and still it comes");
            world.check(true).await;
            end
        });
    }
}

#[test]
fn va_1_a_close_can_be_dropped_at_any_poll() {
    matrix(End::ByItself, |cell| async move {
        let world = Valves::new(cell.path, Kind::Ordered);
        let permit = world.ours.acquire(world.job(COSTS)).await.unwrap();
        permit.release(Outcome::Success);
        let (end, _) = cell.run(world.ours.close()).await;
        let after = world.ours.try_acquire(world.free()).await;
        assert_eq!(matches!(after, Err(AcquireError::Closed { .. })), cell.polls > 0);
        drop(after);
        world.check(true).await;
        end
    });
}

/// Whether the store is paused, asserting that both processes know it.
fn is_paused(world: &Valves) -> bool {
    let paused = world.fleet.snapshot().paused_ms > 0;
    let known = [&world.ours, &world.theirs].map(|valve| !valve.stats().paused_for.is_zero());
    assert_eq!(known, [paused, paused], "in our process and in theirs");
    paused
}

#[test]
fn va_4_a_pause_whose_future_is_dropped_holds_for_the_whole_fleet_from_its_first_poll() {
    for kind in KINDS {
        matrix(End::ByItself, |cell| async move {
            let world = Valves::new(cell.path, kind);
            drop(world.theirs.try_acquire(world.free()).await.unwrap());
            drop(world.ours.try_acquire(world.free()).await.unwrap());
            let (end, answer) = cell.run(world.ours.pause(HOUR)).await;
            assert!(answer.is_none_or(|answer| answer.is_ok()));
            sleep(ms(20)).await;
            assert_eq!(is_paused(&world), cell.polls > 0);
            let tried = world.ours.acquire(world.free().timeout(ms(30))).await;
            assert_eq!(tried.is_err(), cell.polls > 0);
            drop(tried);
            assert_eq!(world.ours.resume().await.unwrap(), cell.polls > 0);
            world.check(false).await;
            end
        });
    }
}

#[test]
fn va_4_a_resume_whose_future_is_dropped_holds_for_the_whole_fleet_from_its_first_poll() {
    for kind in KINDS {
        matrix(End::ByItself, |cell| async move {
            let world = Valves::new(cell.path, kind);
            drop(world.theirs.try_acquire(world.free()).await.unwrap());
            drop(world.ours.try_acquire(world.free()).await.unwrap());
            world.ours.pause(HOUR).await.unwrap();
            let (end, answer) = cell.run(world.ours.resume()).await;
            assert!(answer.is_none_or(|answer| answer.unwrap()));
            sleep(ms(20)).await;
            assert_eq!(is_paused(&world), cell.polls == 0);
            assert_eq!(world.theirs.resume().await.unwrap(), cell.polls == 0);
            sleep(ms(20)).await;
            world.check(false).await;
            end
        });
    }
}
