//! A fleet whose stores fail at random, each process in its own way: the bounds hold, every error is of the right kind,
//! and when all is quiet nothing is left behind. `TIDEGATE_SEEDS` says how many seeds run, and `TIDEGATE_SEED` the first.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

#[path = "support/fleet.rs"]
mod fleet;
#[path = "support/recorded.rs"]
mod recorded;

use std::{
    env,
    ops::Range,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use fastrand::Rng;
use fleet::{Fleet, ms};
use recorded::{Book, Bound, Hold, Recorded, What, check_holds, check_rule};
use tidegate::{
    Acquire, AcquireError, Adaptive, AdaptiveSemaphore, Aimd, Concurrency, Job, LastCause, Lease, Operators,
    Outcome, Permit, Rule, SafeStart, StoreError, Valve,
    contract::{Cause, rule::RuleKey, time::Moment},
};
use tidegate_testkit::faulty::{Fault, Faulty, Garbage, Handle};
use tokio::time::{sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);
const OP_TIMEOUT: Duration = Duration::from_millis(500);
/// How long each fleet runs, on its clock.
const LASTS: Duration = Duration::from_secs(30);
/// An error may come of a fault so long ago: an operation, the longest wait for a probe, and a probe.
const AFTERMATH: Duration = Duration::from_secs(4);

/// What a fleet shares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Semaphores, and valves with the same limit.
    Adaptive,
    /// A fixed limit and two rules.
    Bounded,
    /// Two rules.
    Ruled,
}

/// What one fleet is.
#[derive(Clone, Copy, Debug)]
struct Plan {
    seed: u64,
    kind: Kind,
    falls_back: bool,
    safe: bool,
    /// Whether the store loses its state now and then.
    wipes: bool,
    /// Leases outlive what goes wrong, so that what is given back by their TTL alone shows.
    patient: bool,
}

impl Plan {
    fn of(seed: u64) -> Self {
        let mut random = Rng::with_seed(seed);
        let kind = [Kind::Adaptive, Kind::Bounded, Kind::Ruled][random.usize(..3)];
        let patient = random.u8(..3) == 0;
        let (safe, wipes) = (!patient && random.u8(..4) == 0, !patient && random.bool());
        Self { seed, kind, falls_back: random.bool(), safe, wipes, patient }
    }

    fn ttl(self) -> Duration {
        if self.patient { SECOND * 25 } else { SECOND * 2 }
    }

    /// The rules, and how much they let through.
    fn rules(self) -> Vec<(Rule, &'static str, Bound)> {
        if self.kind == Kind::Adaptive {
            return Vec::new();
        }
        let bucket = Rule::token_bucket(20, SECOND).burst(15).named("bucket");
        let window = Rule::sliding_window(60, SECOND * 4).named("window");
        vec![
            (bucket, "named:bucket", Bound::Bucket { burst: 15, limit: 20, interval: SECOND }),
            (window, "named:window", Bound::Window { limit: 60, interval: SECOND * 4 }),
        ]
    }
}

enum Gate {
    Semaphore(AdaptiveSemaphore),
    Valve(Valve),
}

enum Held {
    Lease(Lease),
    Permit(Permit),
}

impl Gate {
    fn build(plan: Plan, process: usize, fleet: &Fleet, store: Faulty<Recorded>) -> Self {
        let safe = if plan.safe { SafeStart::On } else { SafeStart::Off };
        let aimd = || Aimd::new().window(SECOND).cooldown(SECOND);
        if plan.kind == Kind::Adaptive && process.is_multiple_of(2) {
            let builder = AdaptiveSemaphore::builder(fleet::ID, 6).max_limit(12).aimd(aimd());
            let builder = if plan.falls_back { builder.fallback_local(2) } else { builder };
            let builder =
                builder.lease_ttl(plan.ttl()).op_timeout(OP_TIMEOUT).safe_start(safe).clock(fleet.clock);
            return Self::Semaphore(builder.build(store).unwrap());
        }
        let builder = Valve::builder(fleet::ID);
        let builder = plan.rules().into_iter().fold(builder, |builder, (rule, ..)| builder.rule(rule));
        let builder = match plan.kind {
            Kind::Adaptive => builder
                .concurrency(Concurrency::Adaptive(Adaptive::new(6).min_limit(1).max_limit(12).aimd(aimd()))),
            Kind::Bounded => builder.concurrency(Concurrency::Global(4)),
            Kind::Ruled => builder,
        };
        let builder = match (plan.falls_back, plan.kind) {
            (false, _) => builder,
            (true, Kind::Ruled) => builder.fallback_rule(Rule::token_bucket(5, SECOND).named("bucket")),
            (true, _) => builder.fallback_local(2),
        };
        let builder =
            builder.lease_ttl(plan.ttl()).op_timeout(OP_TIMEOUT).safe_start(safe).clock(fleet.clock);
        Self::Valve(builder.build(store).unwrap())
    }

    async fn acquire(&self, cost: u64, timeout: Duration) -> Result<Held, AcquireError> {
        match self {
            Self::Semaphore(semaphore) => semaphore.acquire(Acquire::within(timeout)).await.map(Held::Lease),
            Self::Valve(valve) => {
                valve.acquire(Job::new().cost_each(cost).timeout(timeout)).await.map(Held::Permit)
            }
        }
    }

    async fn flush(&self) {
        match self {
            Self::Semaphore(semaphore) => semaphore.flush().await,
            Self::Valve(valve) => valve.flush().await,
        }
    }

    /// How many wait and how many are held here.
    fn load(&self) -> (u32, u32) {
        match self {
            Self::Semaphore(semaphore) => (semaphore.state().waiting, semaphore.state().in_flight),
            Self::Valve(valve) => (valve.stats().queued, valve.stats().in_flight),
        }
    }
}

impl Held {
    fn is_local(&self) -> bool {
        match self {
            Self::Lease(lease) => lease.is_local(),
            Self::Permit(permit) => permit.is_local(),
        }
    }

    fn is_live(&self) -> bool {
        match self {
            Self::Lease(lease) => lease.is_live(),
            Self::Permit(permit) => permit.is_live(),
        }
    }

    fn place(&self) -> Option<(u32, u64)> {
        match self {
            Self::Lease(lease) => lease.slot().zip(lease.fence()),
            Self::Permit(permit) => permit.slot().zip(permit.fence()),
        }
    }

    async fn lost(&self) {
        match self {
            Self::Lease(lease) => drop(lease.lost().await),
            Self::Permit(permit) => drop(permit.lost().await),
        }
    }

    fn settle(self, actual: u64) -> Self {
        match self {
            Self::Lease(lease) => Self::Lease(lease),
            Self::Permit(permit) => Self::Permit(permit.settle("bucket", actual)),
        }
    }

    fn release(self, outcome: Outcome) {
        match self {
            Self::Lease(lease) => lease.release(outcome),
            Self::Permit(permit) => permit.release(outcome),
        }
    }
}

/// What a job met.
#[derive(Debug)]
struct Failed {
    process: usize,
    from: Moment,
    at: Moment,
    error: AcquireError,
}

/// What all that runs in a fleet knows.
struct World {
    plan: Plan,
    fleet: Fleet,
    book: Book,
    gates: Vec<Gate>,
    handles: Vec<Handle>,
    over: AtomicBool,
    holds: Mutex<Vec<Hold>>,
    failed: Mutex<Vec<Failed>>,
    /// When each process's way to the store was bad.
    storms: Mutex<Vec<(usize, Moment, Moment)>>,
    /// When a process said that the fleet is paused, until when, whether the store heard it or not.
    paused: Mutex<Vec<(Moment, Moment)>>,
    local: Mutex<Vec<(usize, Moment)>>,
    wiped: Mutex<Vec<Moment>>,
    admitted: AtomicU64,
}

impl World {
    fn new(plan: Plan) -> Arc<Self> {
        let mut random = Rng::with_seed(plan.seed ^ 0x5eed);
        let fleet = Fleet::new();
        let book = Book::default();
        let mut gates = Vec::new();
        let mut handles = Vec::new();
        for process in 0..random.usize(2..=5) {
            let recorded = Recorded { inner: fleet.store.clone(), book: book.clone(), process };
            let store = Faulty::new(recorded).sleeping(tokio::time::sleep);
            handles.push(store.handle());
            gates.push(Gate::build(plan, process, &fleet, store));
        }
        Arc::new(Self {
            plan,
            fleet,
            book,
            gates,
            handles,
            over: AtomicBool::new(false),
            holds: Mutex::default(),
            failed: Mutex::default(),
            storms: Mutex::default(),
            paused: Mutex::default(),
            local: Mutex::default(),
            wiped: Mutex::default(),
            admitted: AtomicU64::new(0),
        })
    }

    fn now(&self) -> Moment {
        self.fleet.now()
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Whether the store lost its state shortly before.
    fn was_wiped(&self, at: Moment) -> bool {
        let wiped = self.wiped.lock().unwrap();
        wiped.iter().any(|wiped| *wiped <= at && wiped.plus(self.plan.ttl()) >= at)
    }

    fn was_bad(&self, process: usize, from: Moment, at: Moment) -> bool {
        let storms = self.storms.lock().unwrap();
        storms
            .iter()
            .any(|(of, began, ended)| *of == process && *began <= at && ended.plus(AFTERMATH) >= from)
    }
}

fn up_to(random: &mut Rng, most: u64) -> Duration {
    ms(random.u64(0..=most))
}

/// Anything that can go wrong.
fn faults(random: &mut Rng, plan: Plan) -> Vec<Fault> {
    let error = |cause| Fault::Error(StoreError::unavailable(cause, "failed on purpose"));
    let mut faults = vec![
        Fault::disconnected(),
        error(Cause::NoAnswer),
        error(Cause::Refused),
        error(Cause::Migrating),
        Fault::Hang,
        Fault::SlowRequest(up_to(random, 700)),
        Fault::SlowReply(up_to(random, 700)),
        Fault::LostThenError,
        Fault::LostThenHang,
        Fault::Late,
        Fault::Twice,
    ];
    if !plan.patient {
        // An exchange that the store chokes on is not sent again: what it granted lapses.
        faults.push(error(Cause::Broken));
    }
    // Where there are no tokens, a grant that the store never made is like any other.
    let shows = |garbage: &Garbage| match garbage {
        Garbage::TokenTwice => plan.kind != Kind::Ruled && !plan.patient,
        // Nobody can give back a lease that no answer names.
        Garbage::IndexMissing | Garbage::ZeroHint => !plan.patient,
        _ => true,
    };
    faults.extend(Garbage::ALL.into_iter().filter(shows).map(Fault::Garbage));
    random.shuffle(&mut faults);
    faults.truncate(random.usize(1..=faults.len()));
    faults
}

/// One caller of a process, over and over.
async fn calls(world: Arc<World>, process: usize, mut random: Rng) {
    let gate = &world.gates[process];
    while !world.is_over() {
        sleep(up_to(&mut random, 200)).await;
        let cost = random.u64(1..=3);
        let waits = ms([0, 0, 30, 300, 1_000, 4_000][random.usize(..6)]);
        let from = world.now();
        let asking = gate.acquire(cost, waits);
        let asked = if random.u8(..4) == 0 {
            let Ok(asked) = timeout(up_to(&mut random, 600), asking).await else { continue };
            asked
        } else {
            asking.await
        };
        let at = world.now();
        let took = at.since(from);
        assert!(took <= waits.max(OP_TIMEOUT) + ms(2), "{process}: {took:?} for a timeout of {waits:?}");
        match asked {
            Ok(held) => holds(&world, process, held, cost, &mut random).await,
            Err(error) => world.failed.lock().unwrap().push(Failed { process, from, at, error }),
        }
    }
}

async fn holds(world: &World, process: usize, held: Held, cost: u64, random: &mut Rng) {
    if held.is_local() {
        assert!(world.plan.falls_back, "{process}: there is no fallback");
        world.local.lock().unwrap().push((process, world.now()));
    } else {
        world.admitted.fetch_add(1, Ordering::SeqCst);
    }
    let longest = if random.u8(..10) == 0 { 6_000 } else { 400 };
    let ends = world.now().plus(up_to(random, longest));
    let mut until = world.now();
    let mut lives = held.is_live();
    assert!(
        lives || world.was_wiped(until),
        "{process}: what was just granted lives, unless the store lost it"
    );
    while lives && until < ends {
        sleep(ends.since(until).min(ms(20))).await;
        lives = held.is_live();
        if lives {
            until = world.now();
        }
    }
    // One that was granted here alone has no place.
    if let Some((slot, fence)) = held.place() {
        world.holds.lock().unwrap().push(Hold { slot, fence, until });
    }
    if !lives {
        timeout(ms(200), held.lost()).await.expect("who holds a lease hears that it is lost");
    }
    let held = if random.u8(..5) == 0 { held.settle(random.u64(1..=cost + 1)) } else { held };
    match random.u8(..8) {
        0 => held.release(Outcome::Throttled),
        1 => held.release(Outcome::Failure),
        2 => drop(held),
        _ => held.release(Outcome::Success),
    }
}

/// Pauses now and then, and mostly takes it back.
async fn pauses(world: Arc<World>, process: usize, mut random: Rng) {
    let Gate::Valve(valve) = &world.gates[process] else { return };
    while !world.is_over() {
        sleep(up_to(&mut random, 8_000)).await;
        let length = ms(random.u64(100..=1_500));
        let until = world.now().plus(length);
        world.paused.lock().unwrap().push((world.now(), until));
        // Given up by its caller now and then.
        let _ = timeout(up_to(&mut random, 2_000), valve.pause(length)).await;
        sleep(up_to(&mut random, 500)).await;
        if random.bool() {
            let _ = timeout(up_to(&mut random, 2_000), valve.resume()).await;
        }
    }
}

/// The way of one process to the store: good for a while, bad for a while.
async fn weather(world: Arc<World>, process: usize, mut random: Rng) {
    let handle = &world.handles[process];
    while !world.is_over() {
        sleep(up_to(&mut random, 8_000)).await;
        let began = world.now();
        let faults = faults(&mut random, world.plan);
        let storm = world.storms.lock().unwrap().len();
        world.storms.lock().unwrap().push((process, began, Moment::from_micros(u64::MAX)));
        if random.bool() {
            handle.at_random(random.u64(..), random.u32(1..=4), faults);
        } else {
            handle.away_with(faults[0].clone());
        }
        if random.bool() {
            handle.cut();
        }
        sleep(up_to(&mut random, 5_000)).await;
        if random.bool() {
            handle.deliver().await;
        }
        handle.heal();
        handle.mend();
        handle.deliver().await;
        // What is slow is still under way.
        world.storms.lock().unwrap()[storm].2 = world.now().plus(OP_TIMEOUT * 2);
    }
}

/// What befalls the store itself.
async fn fate(world: Arc<World>, mut random: Rng) {
    while !world.is_over() {
        sleep(up_to(&mut random, 10_000)).await;
        if world.plan.wipes && random.bool() {
            world.book.note(world.now(), What::Wiped);
            world.wiped.lock().unwrap().push(world.now());
            world.fleet.store.wipe();
        } else if world.plan.kind == Kind::Adaptive {
            let limit = random.u32(1..=12);
            // Refused where nothing is pinned yet.
            drop(fleet::ready(Operators::set_limit(&world.fleet.store, &fleet::id(), limit)));
        }
    }
}

async fn run(plan: Plan) -> Sum {
    fastrand::seed(plan.seed);
    let world = World::new(plan);
    let mut random = Rng::with_seed(plan.seed ^ 0xfa17);
    let mut all = Vec::new();
    for process in 0..world.gates.len() {
        all.push(tokio::spawn(weather(Arc::clone(&world), process, random.fork())));
        all.push(tokio::spawn(pauses(Arc::clone(&world), process, random.fork())));
        for _ in 0..random.usize(2..=6) {
            all.push(tokio::spawn(calls(Arc::clone(&world), process, random.fork())));
        }
    }
    all.push(tokio::spawn(fate(Arc::clone(&world), random.fork())));
    sleep(LASTS).await;
    world.over.store(true, Ordering::SeqCst);
    for task in all {
        timeout(SECOND * 30, task).await.expect("no one waits for ever").expect("nothing panics");
    }
    grows_quiet(&world).await;
    check(&world)
}

/// When all is quiet nothing is left behind, and everyone is served again.
async fn grows_quiet(world: &World) {
    let resting = SECOND;
    sleep(if world.plan.patient { AFTERMATH } else { world.plan.ttl() + AFTERMATH } + resting).await;
    for (process, gate) in world.gates.iter().enumerate() {
        timeout(SECOND * 5, gate.flush()).await.unwrap_or_else(|_| panic!("{process} does not flush"));
        assert_eq!(gate.load(), (0, 0), "{process}: who waits, and what is held");
    }
    if world.plan.kind != Kind::Ruled {
        let leases = world.fleet.leases();
        assert!(leases.is_empty(), "left behind: {leases:?}");
    }
    for (process, gate) in world.gates.iter().enumerate() {
        let held = gate.acquire(1, SECOND * 10).await;
        let held = held.unwrap_or_else(|error| panic!("{process} is not served: {error:?}"));
        assert!(!held.is_local(), "{process} goes back to the store");
        world.admitted.fetch_add(1, Ordering::SeqCst);
        held.release(Outcome::Success);
        timeout(SECOND, gate.flush()).await.expect("at once");
    }
}

/// Checks what was written down.
fn check(world: &World) -> Sum {
    let plan = world.plan;
    let events = world.book.events();
    let holds = world.holds.lock().unwrap();
    let mut near = check_holds(&events, &holds, plan.ttl(), plan.safe).unwrap();
    for (_, key, bound) in plan.rules() {
        let used = check_rule(&events, key, bound, plan.safe);
        near = near.max(used.unwrap_or_else(|error| panic!("{key}: {error}")));
    }
    let granted = events.iter().filter(|(_, what)| matches!(what, What::Granted { .. })).count();
    // What was given back to a state that was lost then is given back once more.
    let in_vain = events.iter().filter(|(_, what)| {
        let bucket = |rule: &RuleKey| rule.as_str() == "named:bucket" && !plan.wipes;
        matches!(what, What::GivenBack { rule, all: true, .. } if bucket(rule))
    });
    let in_vain = in_vain.count();
    let admitted = usize::try_from(world.admitted.load(Ordering::SeqCst)).unwrap();
    assert!(admitted + in_vain <= granted, "{admitted} admitted and {in_vain} given back of {granted}");
    for failed in world.failed.lock().unwrap().iter() {
        assert!(is_right(world, &events, failed), "the wrong kind of error: {failed:?}");
    }
    for (process, at) in world.local.lock().unwrap().iter() {
        assert!(world.was_bad(*process, *at, *at), "{process}: decided alone at {at:?} without need");
    }
    Sum { granted, near }
}

/// What came of a fleet: how many jobs the store granted, and how near it came to a bound, in parts per hundred.
#[derive(Clone, Copy, Debug)]
struct Sum {
    granted: usize,
    near: u64,
}

/// Whether an error tells what happened.
fn is_right(world: &World, events: &[(Moment, What)], failed: &Failed) -> bool {
    let Failed { process, from, at, error } = failed;
    let (from, at) = (*from, *at);
    // What was said before it came may have been on its way, or known in its line.
    let recent = OP_TIMEOUT * 3;
    let denied = |of_slots: bool| {
        events.iter().any(|(when, what)| match what {
            What::Denied { process: of, slots, until } => {
                let last = if of_slots { *when } else { until.plus(SECOND) };
                of == process && *slots == of_slots && *when <= at && last.plus(recent) >= from
            }
            _ => false,
        })
    };
    match error {
        AcquireError::Unavailable { .. } => world.was_bad(*process, from, at),
        AcquireError::Timeout { local: true, .. } => {
            world.plan.falls_back && world.was_bad(*process, from, at)
        }
        AcquireError::Timeout { last: LastCause::Slots, .. } => denied(true),
        AcquireError::Timeout { last: LastCause::Rate, .. } => denied(false),
        AcquireError::Timeout { last: LastCause::Pause, .. } => {
            let said = world
                .paused
                .lock()
                .unwrap()
                .iter()
                .any(|(began, until)| *began <= at && until.plus(SECOND + recent) >= from);
            let stored = events.iter().any(|(when, what)| match what {
                What::Paused(until) => *when <= at && until.plus(SECOND + recent) >= from,
                _ => false,
            });
            said || stored
        }
        _ => false,
    }
}

fn seeds() -> Range<u64> {
    let number = |name| env::var(name).ok().and_then(|given: String| given.parse::<u64>().ok());
    let first = number("TIDEGATE_SEED");
    let seeds = number("TIDEGATE_SEEDS").unwrap_or(if first.is_some() { 1 } else { 30 });
    let first = first.unwrap_or(0);
    first..first.saturating_add(seeds)
}

#[test]
fn un_5_a_fleet_whose_stores_fail_at_random_keeps_its_bounds_and_its_word() {
    let mut sums = Vec::new();
    for seed in seeds() {
        let plan = Plan::of(seed);
        println!("TIDEGATE_SEED={seed}: {plan:?}");
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().unwrap();
        sums.push(runtime.block_on(run(plan)));
    }
    println!("{sums:?}");
    assert!(sums.iter().all(|sum| sum.granted > 10), "none is empty");
    let full = sums.iter().filter(|sum| sum.near == 100).count();
    assert!(full * 2 >= sums.len(), "most come up to a bound, {full} of {}", sums.len());
}
