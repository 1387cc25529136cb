//! What the valve promises, rule by rule, to several processes over one store.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error as _,
    future::Future,
    pin::pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tidegate::{
    AcquireError, Adaptive, Aimd, BuildError, CallError, Capability, Class, Concurrency, ControlError, Event,
    Events, Job, LastCause, MemoryStore, OnSuperseded, Operators, Outcome, Permit, Rule, Store, StoreError,
    Trouble, Valve, ValveBuilder,
    clock::{Clock, Pace, Sleep, TokioClock},
    contract::time::Moment,
};
use tokio::{
    task::JoinHandle,
    time::{advance, sleep},
};

#[path = "support/asks.rs"]
mod asks;
#[path = "support/fleet.rs"]
mod fleet;

use asks::Asks;
use fleet::{Fleet, ID, Mode, Remote, Troubles, Wire, id, ms, poll_once, ready, settled, until};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);

fn builder(fleet: &Fleet) -> ValveBuilder {
    Valve::builder(ID).clock(fleet.clock)
}

/// A process with one rule, on the store itself.
fn process(fleet: &Fleet, rule: Rule) -> Valve {
    builder(fleet).rule(rule).build(fleet.store.clone()).unwrap()
}

/// A rule of one job per second, without a burst.
fn one_per(interval: Duration) -> Rule {
    Rule::token_bucket(1, interval)
}

type Waiting = JoinHandle<Result<Permit, AcquireError>>;

/// A job that waits by now, or has its answer.
async fn begun(valve: &Valve, job: Job) -> Waiting {
    let handle = valve.clone();
    let waiting = tokio::spawn(async move { handle.acquire(job).await });
    settled().await;
    waiting
}

async fn granted(waiting: Waiting) -> Permit {
    waiting.await.expect("no panic").expect("a permit")
}

async fn refused(waiting: Waiting) -> AcquireError {
    waiting.await.expect("no panic").map(drop).expect_err("no permit")
}

async fn try_one(valve: &Valve) -> Result<Permit, AcquireError> {
    valve.try_acquire(Job::new()).await
}

/// Takes so many at once.
async fn take(valve: &Valve, count: usize) -> Vec<Permit> {
    let mut permits = Vec::with_capacity(count);
    for _ in 0..count {
        permits.push(try_one(valve).await.expect("there is room"));
    }
    permits
}

/// Why there was no room, and the hint.
#[track_caller]
fn no_room(result: Result<Permit, AcquireError>) -> (LastCause, Option<Duration>) {
    match result {
        Err(AcquireError::Timeout { last, hint, .. }) => (last, hint),
        other => panic!("there should be no room: {other:?}"),
    }
}

fn level(fleet: &Fleet) -> i64 {
    fleet.snapshot().rules[0].level.expect("a rule without a scope")
}

/// What a listener has heard so far.
#[derive(Clone)]
struct Heard(Arc<Mutex<Vec<Event>>>);

impl Heard {
    fn on(valve: &Valve) -> Self {
        let heard = Self(Arc::default());
        let all = Arc::clone(&heard.0);
        let mut events = valve.events();
        tokio::spawn(async move {
            while let Some(event) = events.next().await {
                all.lock().unwrap().push(event);
            }
        });
        heard
    }

    fn all(&self) -> Vec<Event> {
        self.0.lock().unwrap().clone()
    }

    fn count(&self, is: impl Fn(&Event) -> bool) -> usize {
        self.all().iter().filter(|event| is(event)).count()
    }

    /// How often a pause began, and how often one ended.
    fn pauses(&self) -> (usize, usize) {
        let paused = self.count(|event| matches!(event, Event::Paused { .. }));
        (paused, self.count(|event| *event == Event::Resumed))
    }
}

// ---- VA-1 ----------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn va_1_run_waits_for_a_permit_and_runs_the_call_under_it() {
    let fleet = Fleet::new();
    let valve = builder(&fleet)
        .rule(one_per(SECOND))
        .concurrency(Concurrency::Global(1))
        .build(fleet.store.clone())
        .unwrap();
    let calls = AtomicUsize::new(0);
    let call = || async {
        calls.fetch_add(1, Ordering::SeqCst);
        assert_eq!((valve.stats().in_flight, fleet.held()), (1, 1));
        Ok::<_, &str>("done")
    };
    assert_eq!(valve.run(Job::new(), call).await, Ok("done"));
    let (second, took) = fleet.timed(async { valve.run(Job::new(), call).await }).await;
    assert_eq!((second, took), (Ok("done"), SECOND));
    assert_eq!(calls.load(Ordering::SeqCst), 2);
    assert_eq!((valve.stats().in_flight, fleet.held()), (0, 0));
}

#[tokio::test(start_paused = true)]
async fn va_1_run_gives_back_the_call_s_own_error_and_never_calls_without_a_permit() {
    let fleet = Fleet::new();
    let valve = process(&fleet, one_per(SECOND));
    let failed = valve.run(Job::new(), || async { Err::<(), _>(418) }).await;
    assert_eq!(failed, Err(CallError::Call(418)));
    let no_permit =
        valve.run(Job::new().timeout(ms(999)), || async { Err::<(), u32>(panic!("it was called")) }).await;
    assert!(matches!(no_permit, Err(CallError::Acquire(AcquireError::Timeout { .. }))), "{no_permit:?}");
}

#[tokio::test(start_paused = true)]
async fn va_1_a_try_never_waits_and_says_when_to_come_again() {
    let fleet = Fleet::new();
    let valve = process(&fleet, one_per(SECOND));
    drop(take(&valve, 1).await);
    let start = fleet.now();
    advance(ms(400)).await;
    assert_eq!(no_room(try_one(&valve).await), (LastCause::Rate, Some(ms(600))));
    assert_eq!(fleet.now().since(start), ms(400), "it did not wait");
    advance(ms(599)).await;
    assert_eq!(no_room(try_one(&valve).await), (LastCause::Rate, Some(ms(1))));
    advance(ms(1)).await;
    drop(try_one(&valve).await.expect("there is room again"));
}

#[tokio::test(start_paused = true)]
async fn va_1_a_try_behind_others_never_waits_whatever_holds_them_up() {
    for wire in [None, Some(Wire::Yields), Some(Wire::Takes(ms(20)))] {
        let fleet = Fleet::new();
        let rules = || builder(&fleet).rule(Rule::token_bucket(1, HOUR).scoped("tenant"));
        let valve = match wire {
            None => rules().build(fleet.store.clone()).unwrap(),
            Some(wire) => rules().build(Remote::new(&fleet, wire)).unwrap(),
        };
        let of = |tenant: &str| Job::new().scope("tenant", tenant);
        drop(valve.acquire(of("acme")).await.unwrap());
        let waits = begun(&valve, of("acme").timeout(HOUR)).await;
        sleep(ms(100)).await;
        let (tried, took) = fleet.timed(valve.try_acquire(of("acme"))).await;
        let (cause, hint) = no_room(tried);
        assert_eq!(cause, LastCause::Rate, "{wire:?}");
        assert!(hint.is_some_and(|hint| hint > HOUR - SECOND && hint < HOUR), "{wire:?}: {hint:?}");
        assert!(took <= ms(80), "{wire:?}: it waited for {took:?}");
        // Nobody else is held up by that.
        let (other, took) = fleet.timed(valve.try_acquire(of("umbrella"))).await;
        drop(other.expect("another tenant has room"));
        assert!(took <= ms(80), "{wire:?}: it waited for {took:?}");
        // In a pause, no one is let in, and no one who tries once waits.
        valve.pause(MINUTE).await.unwrap();
        let (tried, took) = fleet.timed(valve.try_acquire(of("initech"))).await;
        assert_eq!(no_room(tried).0, LastCause::Pause, "{wire:?}");
        assert!(took <= ms(80), "{wire:?}: it waited for {took:?}");
        waits.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn va_1_a_try_that_comes_while_the_store_is_asked_is_not_left_behind() {
    for scoped in [false, true] {
        let fleet = Fleet::new();
        let rule = Rule::token_bucket(1, HOUR);
        let rule = if scoped { rule.scoped("tenant") } else { rule };
        let job = || if scoped { Job::new().scope("tenant", "acme") } else { Job::new() };
        let valve = builder(&fleet).rule(rule).build(Remote::new(&fleet, Wire::Takes(ms(50)))).unwrap();
        drop(valve.acquire(job()).await.unwrap());
        // The first is on its way to the store, where it is denied for an hour; the try has no place in that exchange.
        let waits = begun(&valve, job().timeout(HOUR)).await;
        let (tried, took) = fleet.timed(valve.try_acquire(job())).await;
        assert_eq!(no_room(tried).0, LastCause::Rate, "scoped: {scoped}");
        assert!(took <= ms(200), "scoped: {scoped}: it waited for {took:?}");
        waits.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn va_1_a_try_does_not_overtake_but_may_go_first_by_priority() {
    let fleet = Fleet::new();
    let valve = process(&fleet, Rule::token_bucket(10, SECOND));
    drop(valve.try_acquire(Job::new().cost_each(6)).await.unwrap());
    let large = begun(&valve, Job::new().cost_each(10)).await;
    // There are 4 left, and the head of the line wants 10.
    assert_eq!(no_room(try_one(&valve).await), (LastCause::Rate, Some(ms(600))));
    drop(valve.try_acquire(Job::new().cost_each(4).priority(1)).await.expect("it goes first, and fits"));
    assert_eq!(no_room(valve.try_acquire(Job::new().priority(1)).await).0, LastCause::Rate);
    drop(granted(large).await);
}

#[tokio::test(start_paused = true)]
async fn va_1_a_timeout_of_zero_is_exactly_one_try() {
    let fleet = Fleet::new();
    let asks = Asks::new(&fleet, Wire::Yields);
    let valve = builder(&fleet).rule(one_per(HOUR)).build(asks.clone()).unwrap();
    drop(try_one(&valve).await.unwrap());
    asks.take();
    assert_eq!(no_room(valve.acquire(Job::new().timeout(Duration::ZERO)).await).0, LastCause::Rate);
    assert_eq!(asks.jobs(), 1);
    advance(MINUTE).await;
    settled().await;
    assert_eq!(asks.jobs(), 0, "nothing is left of it");
    assert_eq!(valve.stats().queued, 0);
}

// ---- VA-2 ----------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn va_2_jobs_go_by_priority_and_within_one_in_order_of_arrival() {
    for wire in [None, Some(Wire::Yields)] {
        let fleet = Fleet::new();
        let rules = || builder(&fleet).rule(one_per(SECOND));
        let valve = match wire {
            None => rules().build(fleet.store.clone()).unwrap(),
            Some(wire) => rules().build(Remote::new(&fleet, wire)).unwrap(),
        };
        drop(try_one(&valve).await.unwrap());
        let order = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = Vec::new();
        for (name, priority) in [("a", 0), ("b", 5), ("c", 0), ("d", -3), ("e", 5), ("f", 1)] {
            let (valve, order) = (valve.clone(), Arc::clone(&order));
            waiting.push(tokio::spawn(async move {
                drop(valve.acquire(Job::new().priority(priority)).await.unwrap());
                order.lock().unwrap().push(name);
            }));
            settled().await;
        }
        assert_eq!(valve.stats().queued, 6);
        let ((), took) = fleet
            .timed(async {
                for job in waiting {
                    job.await.unwrap();
                }
            })
            .await;
        assert_eq!(*order.lock().unwrap(), ["b", "e", "f", "a", "c", "d"], "{wire:?}");
        assert_eq!(took, SECOND * 6);
    }
}

#[tokio::test(start_paused = true)]
async fn va_2_the_queue_is_bounded_and_the_next_job_is_told_so() {
    let fleet = Fleet::new();
    let valve = builder(&fleet).rule(one_per(HOUR)).max_queue(3).build(fleet.store.clone()).unwrap();
    drop(try_one(&valve).await.unwrap());
    let mut waiting = Vec::new();
    for _ in 0..3 {
        waiting.push(begun(&valve, Job::new()).await);
    }
    assert_eq!(valve.stats().queued, 3);
    let error = valve.acquire(Job::new()).await.map(drop).unwrap_err();
    assert_eq!(error, AcquireError::QueueFull { id: id(), max_queue: 3 });
    assert_eq!(error.code(), "queue_full");
    // One that does not wait needs no place.
    assert_eq!(no_room(try_one(&valve).await).0, LastCause::Rate);
    waiting.pop().unwrap().abort();
    until(|| valve.stats().queued == 2).await;
    let next = begun(&valve, Job::new()).await;
    assert_eq!(valve.stats().queued, 3);
    next.abort();
}

#[tokio::test(start_paused = true)]
async fn va_2_each_job_has_a_timeout_of_its_own() {
    let fleet = Fleet::new();
    let valve = process(&fleet, one_per(SECOND * 10));
    drop(try_one(&valve).await.unwrap());
    advance(ms(1)).await;
    let short = begun(&valve, Job::new().timeout(ms(1_500))).await;
    let by_default = begun(&valve, Job::new()).await;
    let error = refused(short).await;
    let AcquireError::Timeout { timeout, waited, last, hint, class, local, .. } = error else {
        panic!("{error:?}")
    };
    assert_eq!((timeout, waited), (ms(1_500), ms(1_500)));
    assert_eq!((last, hint), (LastCause::Rate, Some(ms(8_499))));
    assert_eq!((class, local), (None, false));
    // Ten seconds are just long enough, and a millisecond less than is left is not.
    drop(granted(by_default).await);
    let early = begun(&valve, Job::new().timeout(ms(9_999))).await;
    let in_time = begun(&valve, Job::new().timeout(ms(10_001))).await;
    assert!(matches!(refused(early).await, AcquireError::Timeout { .. }));
    drop(granted(in_time).await);
}

#[tokio::test(start_paused = true)]
async fn va_2_without_scopes_the_head_of_the_line_holds_up_all_behind_it() {
    let fleet = Fleet::new();
    let valve = process(&fleet, Rule::token_bucket(10, SECOND));
    drop(take(&valve, 10).await);
    let large = begun(&valve, Job::new().cost_each(10)).await;
    let small = begun(&valve, Job::new()).await;
    advance(ms(500)).await;
    settled().await;
    assert_eq!((level(&fleet), valve.stats().queued), (5, 2), "there is enough for the small one");
    let (permit, took) = fleet.timed(granted(large)).await;
    assert_eq!(took, ms(500));
    drop(permit);
    let (permit, took) = fleet.timed(granted(small)).await;
    assert_eq!(took, ms(100));
    drop(permit);
}

/// A valve with a rule for each tenant.
fn per_tenant(fleet: &Fleet, limit: u64, interval: Duration) -> Valve {
    process(fleet, Rule::token_bucket(limit, interval).scoped("tenant"))
}

fn of(tenant: &str) -> Job {
    Job::new().scope("tenant", tenant)
}

#[tokio::test(start_paused = true)]
async fn va_2_a_job_that_its_own_tenant_blocks_does_not_hold_up_others() {
    let fleet = Fleet::new();
    let valve = per_tenant(&fleet, 2, SECOND);
    let mut acme = Vec::new();
    for _ in 0..6 {
        acme.push(begun(&valve, of("acme")).await);
    }
    assert_eq!(valve.stats().queued, 4);
    for tenant in ["umbrella", "initech", "umbrella"] {
        let ((), took) = fleet.timed(async { drop(valve.acquire(of(tenant)).await.unwrap()) }).await;
        assert_eq!(took, Duration::ZERO, "{tenant}");
    }
    let mut ends = Vec::new();
    let start = fleet.now();
    for job in acme {
        drop(granted(job).await);
        ends.push(fleet.now().since(start));
    }
    assert_eq!(ends, [ms(0), ms(0), ms(500), ms(1_000), ms(1_500), ms(2_000)]);
}

#[tokio::test(start_paused = true)]
async fn va_2_what_is_known_of_a_tenant_is_not_asked_again() {
    let fleet = Fleet::new();
    let asks = Asks::new(&fleet, Wire::Yields);
    let valve =
        builder(&fleet).rule(Rule::token_bucket(1, MINUTE).scoped("tenant")).build(asks.clone()).unwrap();
    drop(valve.acquire(of("acme")).await.unwrap());
    let mut waiting = vec![begun(&valve, of("acme").timeout(HOUR)).await];
    asks.take();
    for arrival in 0..100 {
        waiting.push(begun(&valve, of("acme").priority(arrival % 3).timeout(HOUR)).await);
    }
    assert_eq!(asks.jobs(), 0, "it is known until when the tenant is blocked");
    drop(valve.acquire(of("umbrella")).await.unwrap());
    assert_eq!(asks.jobs(), 1);
    // A grant costs the question of the one that goes, and few more to learn until when the others wait.
    for turn in 1..=5 {
        advance(MINUTE).await;
        until(|| valve.stats().granted == 2 + turn).await;
        settled().await;
        let jobs = asks.jobs();
        assert!(jobs <= 3, "{jobs} questions for one grant");
    }
    waiting.iter().for_each(JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn va_2_a_large_job_is_passed_over_for_one_interval_of_its_rule_and_no_longer() {
    let fleet = Fleet::new();
    let valve = per_tenant(&fleet, 10, SECOND);
    drop(valve.acquire(of("acme").cost_each(10)).await.unwrap());
    let large = begun(&valve, of("acme").cost_each(10).timeout(MINUTE)).await;
    let mut small = Vec::new();
    let mut passed = None;
    // A small job of the same tenant comes with every unit that does.
    for _ in 0..25 {
        advance(ms(100)).await;
        small.push(begun(&valve, of("acme").timeout(MINUTE)).await);
        drop(valve.try_acquire(of("umbrella")).await.expect("another tenant is not held up"));
        if large.is_finished() && passed.is_none() {
            passed = Some(small.iter().filter(|job| job.is_finished()).count());
        }
    }
    let passed = passed.expect("the large one has gone");
    assert!((9..=10).contains(&passed), "{passed} passed it within its second");
    drop(granted(large).await);
    for job in small {
        drop(granted(job).await);
    }
}

#[tokio::test(start_paused = true)]
async fn va_2_ten_thousand_jobs_of_one_tenant_wait_and_go_in_order() {
    let fleet = Fleet::new();
    let asks = Asks::new(&fleet, Wire::Short);
    let rule = Rule::token_bucket(1, SECOND).scoped("tenant");
    let valve = builder(&fleet).rule(rule).build(asks.clone()).unwrap();
    drop(valve.acquire(of("acme")).await.unwrap());
    let order = Arc::new(Mutex::new(Vec::new()));
    let waiting: Vec<_> = (0..10_000)
        .map(|index| {
            let (valve, order) = (valve.clone(), Arc::clone(&order));
            tokio::spawn(async move {
                if valve.acquire(of("acme").timeout(DAY)).await.is_ok() {
                    order.lock().unwrap().push(index);
                }
            })
        })
        .collect();
    until(|| valve.stats().queued == 10_000).await;
    settled().await;
    asks.take();
    for second in 1..=10 {
        advance(SECOND).await;
        until(|| order.lock().unwrap().len() == second).await;
    }
    settled().await;
    assert!(order.lock().unwrap().iter().copied().eq(0..10));
    let jobs = asks.jobs();
    assert!(jobs <= 30, "{jobs} questions for 10 grants");
    waiting.iter().for_each(JoinHandle::abort);
}

#[tokio::test(start_paused = true)]
async fn va_2_jobs_that_come_while_slots_are_full_do_not_each_ask() {
    for scoped in [false, true] {
        let fleet = Fleet::new();
        let asks = Asks::new(&fleet, Wire::Yields);
        let rule = Rule::token_bucket(1_000, SECOND);
        let rule = if scoped { rule.scoped("tenant") } else { rule };
        let job = |index: usize| {
            let job = Job::new().timeout(MINUTE);
            if scoped { job.scope("tenant", ["a", "b", "c"][index % 3]) } else { job }
        };
        let valve =
            builder(&fleet).rule(rule).concurrency(Concurrency::Global(1)).build(asks.clone()).unwrap();
        let holder = valve.acquire(job(0)).await.unwrap();
        let mut waiting = vec![begun(&valve, job(0)).await];
        asks.take();
        for index in 1..50 {
            waiting.push(begun(&valve, job(index)).await);
        }
        assert_eq!((asks.jobs(), valve.stats().queued), (0, 50), "scoped: {scoped}");
        assert_eq!(valve.stats().denied.slots, 50);
        // Room is used at once, in order.
        holder.release(Outcome::Success);
        until(|| waiting[0].is_finished()).await;
        assert_eq!(valve.stats().queued, 49);
        waiting.iter().for_each(JoinHandle::abort);
    }
}

// ---- VA-3 ----------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn va_3_a_waiting_job_costs_no_polling_while_a_rate_hint_runs() {
    for scoped in [false, true] {
        let fleet = Fleet::new();
        let asks = Asks::new(&fleet, Wire::Yields);
        let rule = Rule::token_bucket(1, MINUTE);
        let rule = if scoped { rule.scoped("tenant") } else { rule };
        let job = |turn: i32| {
            let job = Job::new().timeout(HOUR).priority(turn % 5);
            if scoped { job.scope("tenant", "acme") } else { job }
        };
        let valve = builder(&fleet).rule(rule).build(asks.clone()).unwrap();
        drop(valve.acquire(job(0)).await.unwrap());
        let start = fleet.now();
        let mut waiting = vec![begun(&valve, job(0)).await];
        asks.take();
        // Others come and go meanwhile, and higher priorities too.
        for turn in 0..59 {
            sleep(SECOND).await;
            waiting.push(begun(&valve, job(turn)).await);
            if turn % 7 == 0 {
                waiting.swap_remove(0).abort();
            }
        }
        assert_eq!(asks.take(), [], "scoped: {scoped}");
        sleep(ms(999)).await;
        assert_eq!(asks.take(), [], "scoped: {scoped}");
        sleep(ms(1)).await;
        settled().await;
        let asked = asks.take();
        assert!(!asked.is_empty() && asked.iter().all(|ask| ask.at.since(start) == MINUTE), "{asked:?}");
        assert_eq!(valve.stats().granted, 2);
        waiting.iter().for_each(JoinHandle::abort);
    }
}

#[tokio::test(start_paused = true)]
async fn va_3_a_waiting_job_costs_no_polling_while_a_pause_runs() {
    for scoped in [false, true] {
        let fleet = Fleet::new();
        let asks = Asks::new(&fleet, Wire::Yields);
        let rule = Rule::token_bucket(100, SECOND);
        let rule = if scoped { rule.scoped("tenant") } else { rule };
        let job = || if scoped { of("acme").timeout(HOUR) } else { Job::new().timeout(HOUR) };
        let valve = builder(&fleet).rule(rule).build(asks.clone()).unwrap();
        drop(valve.acquire(job()).await.unwrap());
        valve.pause(MINUTE).await.unwrap();
        let start = fleet.now();
        let mut waiting = vec![begun(&valve, job()).await];
        asks.take();
        for _ in 0..59 {
            sleep(SECOND).await;
            waiting.push(begun(&valve, job()).await);
        }
        assert_eq!(asks.take(), [], "scoped: {scoped}");
        for job in waiting {
            drop(granted(job).await);
        }
        let took = fleet.now().since(start);
        assert!(took >= MINUTE && took <= MINUTE + SECOND, "{took:?}");
        assert!(asks.take().iter().all(|ask| ask.at.since(start) >= MINUTE));
    }
}

/// A clock that counts how many wait on it.
#[derive(Clone)]
struct Timers {
    clock: TokioClock,
    running: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

struct Running(Arc<AtomicUsize>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Clock for Timers {
    fn now(&self) -> Moment {
        self.clock.now()
    }

    fn sleep_until(&self, at: Moment) -> Sleep {
        let running = self.running.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(running, Ordering::SeqCst);
        let guard = Running(Arc::clone(&self.running));
        let sleep = self.clock.sleep_until(at);
        Box::pin(async move {
            let _guard = guard;
            sleep.await;
        })
    }

    fn pace(&self) -> Pace {
        Pace::Set
    }
}

#[tokio::test(start_paused = true)]
async fn va_3_one_timer_serves_all_jobs_of_a_valve() {
    for jobs in [1, 1_000] {
        let fleet = Fleet::new();
        let timers = Timers { clock: fleet.clock, running: Arc::default(), most: Arc::default() };
        let builder = Valve::builder(ID).clock(timers.clone()).rule(one_per(SECOND));
        let valve = builder.build(fleet.store.clone()).unwrap();
        drop(try_one(&valve).await.unwrap());
        let mut waiting = Vec::new();
        for index in 0..jobs {
            let valve = valve.clone();
            let job = Job::new().timeout(ms(5_000 + index));
            waiting.push(tokio::spawn(async move { valve.acquire(job).await }));
        }
        settled().await;
        assert_eq!(u64::from(valve.stats().queued), jobs);
        assert_eq!(timers.running.load(Ordering::SeqCst), 1);
        sleep(ms(3_500)).await;
        assert_eq!(timers.most.load(Ordering::SeqCst), 1, "{jobs} jobs");
        waiting.iter().for_each(JoinHandle::abort);
    }
}

/// When the processes that were denied one after the other by one rule came back.
async fn returns(rule: Rule, processes: usize) -> (Duration, Vec<Duration>) {
    let fleet = Fleet::new();
    drop(try_one(&process(&fleet, rule.clone())).await.unwrap());
    let start = fleet.now();
    let mut all = Vec::new();
    for _ in 0..processes {
        let asks = Asks::new(&fleet, Wire::Short);
        let valve = builder(&fleet).rule(rule.clone()).build(asks.clone()).unwrap();
        let waits = begun(&valve, Job::new().timeout(DAY)).await;
        assert_eq!(asks.jobs(), 1);
        all.push((asks, waits, valve));
    }
    let (_, hint) = no_room(try_one(&process(&fleet, rule)).await);
    let hint = hint.expect("a hint");
    assert_eq!(fleet.now(), start);
    sleep(hint + SECOND * 2).await;
    let first = all.iter().map(|(asks, ..)| asks.take()[0].at.since(start)).collect();
    all.iter().for_each(|(_, waits, _)| waits.abort());
    (hint, first)
}

#[tokio::test(start_paused = true)]
async fn va_3_a_process_that_waits_alone_comes_exactly_at_the_hint() {
    let (hint, returns) = returns(one_per(SECOND), 1).await;
    assert_eq!((hint, returns), (SECOND, vec![SECOND]));
}

#[tokio::test(start_paused = true)]
async fn va_3_processes_that_wait_with_others_come_back_spread_by_their_number() {
    let each = ms(20);
    let (hint, returns) = returns(one_per(each), 20).await;
    assert_eq!(hint, each);
    for (others, at) in (0..20).zip(&returns) {
        assert!(*at >= hint && *at <= hint + each * others, "with {others} others, it came at {at:?}");
    }
    let different: BTreeSet<_> = returns.iter().collect();
    assert!(different.len() > 10, "they come together: {returns:?}");
    assert!(returns.iter().any(|at| *at > hint + each * 2), "{returns:?}");
}

#[tokio::test(start_paused = true)]
async fn va_3_the_spread_is_a_second_at_most() {
    let (hint, returns) = returns(one_per(MINUTE), 20).await;
    assert_eq!((hint, returns[0]), (MINUTE, MINUTE));
    assert!(returns.iter().all(|at| (hint..=hint + SECOND).contains(at)), "{returns:?}");
    assert!(returns.iter().any(|at| *at > hint + ms(300)), "{returns:?}");
}

// ---- VA-4 ----------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn va_4_a_pause_acts_on_the_whole_fleet_at_once_and_so_does_a_resume() {
    let fleet = Fleet::new();
    let rule = || Rule::token_bucket(1_000, SECOND);
    let processes: Vec<Valve> = (0..3).map(|_| process(&fleet, rule())).collect();
    let far = builder(&fleet).rule(rule()).build(Remote::new(&fleet, Wire::Yields)).unwrap();
    let all = [processes.as_slice(), &[far]].concat();
    let heard: Vec<Heard> = all.iter().map(Heard::on).collect();
    for valve in &all {
        drop(try_one(valve).await.unwrap());
    }
    settled().await;
    let pause = all[0].pause(MINUTE).await.unwrap();
    assert_eq!((pause.left, pause.cut, pause.extended), (MINUTE, false, false));
    settled().await;
    for (index, valve) in all.iter().enumerate() {
        assert_eq!(valve.stats().paused_for, MINUTE, "process {index}");
        assert_eq!(no_room(try_one(valve).await), (LastCause::Pause, Some(MINUTE)), "process {index}");
        assert_eq!(heard[index].all(), [Event::Paused { length: MINUTE }], "process {index}");
    }
    let waiting = [begun(&all[1], Job::new().timeout(HOUR)).await, begun(&all[3], Job::new()).await];
    advance(SECOND).await;
    let start = fleet.now();
    assert!(all[2].resume().await.unwrap());
    for job in waiting {
        drop(granted(job).await);
    }
    assert_eq!(fleet.now(), start, "those that wait go at once");
    for (valve, heard) in all.iter().zip(&heard) {
        drop(try_one(valve).await.expect("nobody is paused"));
        settled().await;
        assert_eq!(valve.stats().paused_for, Duration::ZERO);
        assert_eq!(heard.pauses(), (1, 1));
    }
    assert!(!all[0].resume().await.unwrap(), "there is none to end");
    settled().await;
    assert!(heard.iter().all(|heard| heard.pauses() == (1, 1)));
}

#[tokio::test(start_paused = true)]
async fn va_4_every_worker_tells_of_a_pause_once_and_of_its_end_once() {
    let fleet = Fleet::new();
    let rule = || Rule::token_bucket(1_000, SECOND);
    // Workers that only listen, and one that has no subscription and learns of it from its next result.
    let listens = process(&fleet, rule());
    let works = process(&fleet, rule());
    let asks = Remote::new(&fleet, Wire::Yields).without(Capability::Wake);
    let told_late = builder(&fleet).rule(rule()).build(asks).unwrap();
    let all = [listens, works, told_late];
    let heard: Vec<Heard> = all.iter().map(Heard::on).collect();
    drop(try_one(&all[1]).await.unwrap());
    drop(try_one(&all[2]).await.unwrap());
    settled().await;
    all[1].pause(SECOND * 10).await.unwrap();
    settled().await;
    assert_eq!(heard[0].pauses(), (1, 0));
    assert_eq!(heard[1].pauses(), (1, 0));
    assert_eq!(no_room(try_one(&all[2]).await).0, LastCause::Pause);
    settled().await;
    assert_eq!(heard[2].pauses(), (1, 0));
    // However often it is met and extended, it is one pause.
    for _ in 0..5 {
        advance(SECOND).await;
        all[1].pause(SECOND * 10).await.unwrap();
        settled().await;
        for valve in &all {
            assert_eq!(no_room(try_one(valve).await).0, LastCause::Pause);
        }
    }
    settled().await;
    assert!(heard.iter().all(|heard| heard.pauses() == (1, 0)));
    sleep(SECOND * 12).await;
    assert!(heard.iter().all(|heard| heard.pauses() == (1, 1)), "{:?}", heard.iter().map(Heard::all).collect::<Vec<_>>());
    // The next is another.
    all[0].pause(SECOND).await.unwrap();
    sleep(SECOND * 3).await;
    assert_eq!(heard[0].pauses(), (2, 2));
    assert_eq!(heard[1].pauses(), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn va_4_an_extension_is_published_when_it_is_over_a_second_later() {
    let fleet = Fleet::new();
    let (one, other) = (process(&fleet, one_per(SECOND)), process(&fleet, one_per(SECOND)));
    let heard = Heard::on(&other);
    settled().await;
    one.pause(SECOND * 10).await.unwrap();
    settled().await;
    let pause = one.pause(SECOND * 11).await.unwrap();
    assert_eq!((pause.left, pause.extended), (SECOND * 11, true));
    settled().await;
    assert_eq!(one.stats().paused_for, SECOND * 11);
    assert_eq!(other.stats().paused_for, SECOND * 10, "a second more is not worth telling");
    one.pause(ms(12_001)).await.unwrap();
    settled().await;
    assert_eq!(other.stats().paused_for, ms(12_001));
    assert_eq!(heard.pauses(), (1, 0));
    // Shorter than what runs: nothing changes.
    let pause = other.pause(SECOND).await.unwrap();
    assert_eq!((pause.left, pause.extended), (ms(12_001), true));
    assert_eq!(other.stats().paused_for, ms(12_001));
}

#[tokio::test(start_paused = true)]
async fn va_4_jobs_that_wait_wait_out_an_extension_without_asking() {
    let fleet = Fleet::new();
    let asks = Asks::new(&fleet, Wire::Yields);
    let valve = builder(&fleet).rule(Rule::token_bucket(9, SECOND)).build(asks.clone()).unwrap();
    drop(try_one(&valve).await.unwrap());
    valve.pause(SECOND * 5).await.unwrap();
    let start = fleet.now();
    let waits = begun(&valve, Job::new().timeout(HOUR)).await;
    sleep(SECOND * 4).await;
    valve.pause(SECOND * 20).await.unwrap();
    asks.take();
    drop(granted(waits).await);
    let took = fleet.now().since(start);
    assert!(took >= SECOND * 24 && took <= SECOND * 25, "{took:?}");
    assert_eq!(asks.take().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn va_4_a_pause_while_the_store_is_away_keeps_this_process_and_reaches_the_fleet_later() {
    for mode in [Mode::Down, Mode::Hangs] {
        let fleet = Fleet::new();
        let remote = Remote::new(&fleet, Wire::Yields);
        let rules = || builder(&fleet).rule(Rule::token_bucket(1_000, SECOND));
        let cut_off = rules().fallback_local(5).build(remote.clone()).unwrap();
        let other = rules().build(fleet.store.clone()).unwrap();
        let (heard, heard_there) = (Heard::on(&cut_off), Heard::on(&other));
        drop(try_one(&cut_off).await.unwrap());
        drop(try_one(&other).await.unwrap());
        remote.set(mode);
        let error = cut_off.pause(MINUTE).await.unwrap_err();
        assert!(matches!(error, ControlError::Unavailable { .. }), "{error:?}");
        settled().await;
        assert_eq!(heard.pauses(), (1, 0));
        assert!(cut_off.stats().paused_for > SECOND * 58);
        // It keeps the pause by itself, though it would be let in by its own limit.
        assert_eq!(no_room(try_one(&cut_off).await).0, LastCause::Pause, "{mode:?}");
        drop(try_one(&other).await.expect("the fleet does not know yet"));
        sleep(SECOND * 5).await;
        assert_eq!(no_room(try_one(&cut_off).await).0, LastCause::Pause, "{mode:?}");
        assert_eq!(heard_there.pauses(), (0, 0));
        remote.set(Mode::Up);
        sleep(SECOND * 4).await;
        let left = other.stats().paused_for;
        assert!(left > SECOND * 48 && left <= SECOND * 52, "{mode:?}: what is left of it: {left:?}");
        assert_eq!(no_room(try_one(&other).await).0, LastCause::Pause);
        assert_eq!(no_room(try_one(&cut_off).await).0, LastCause::Pause);
        assert_eq!((heard.pauses(), heard_there.pauses()), ((1, 0), (1, 0)), "{mode:?}");
        sleep(MINUTE).await;
        drop(try_one(&cut_off).await.unwrap());
        assert_eq!((heard.pauses(), heard_there.pauses()), ((1, 1), (1, 1)), "{mode:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn va_4_a_resume_acts_here_even_when_the_store_is_away() {
    let fleet = Fleet::new();
    let remote = Remote::new(&fleet, Wire::Yields);
    let rule = Rule::token_bucket(1_000, SECOND);
    let valve = builder(&fleet).rule(rule).fallback_local(1).build(remote.clone()).unwrap();
    remote.set(Mode::Down);
    assert!(valve.pause(MINUTE).await.is_err());
    assert_eq!(no_room(try_one(&valve).await).0, LastCause::Pause);
    let waits = begun(&valve, Job::new()).await;
    assert!(matches!(valve.resume().await, Err(ControlError::Unavailable { .. })));
    assert!(granted(waits).await.is_local());
    remote.set(Mode::Up);
    sleep(SECOND * 5).await;
    assert_eq!(fleet.snapshot().paused_ms, 0, "what was ended here is not told to the fleet");
}

#[tokio::test(start_paused = true)]
async fn va_4_a_pause_is_cut_to_the_longest_and_says_so() {
    let fleet = Fleet::new();
    let by_default = process(&fleet, one_per(SECOND));
    for (asked, left, cut) in [(HOUR, HOUR, false), (HOUR + ms(1), HOUR, true), (Duration::MAX, HOUR, true)] {
        let pause = by_default.pause(asked).await.unwrap();
        assert_eq!((pause.left, pause.cut), (left, cut), "{asked:?}");
        assert!(by_default.resume().await.unwrap());
    }
    let brief =
        builder(&fleet).rule(one_per(SECOND)).max_pause(SECOND * 30).build(fleet.store.clone()).unwrap();
    let pause = brief.pause(DAY).await.unwrap();
    assert_eq!((pause.left, pause.cut), (SECOND * 30, true));
    assert_eq!(by_default.stats().paused_for.max(SECOND * 30), SECOND * 30);
    let error = brief.pause(Duration::ZERO).await.unwrap_err();
    assert_eq!(error.code(), "invalid_options");
    assert!(error.source().unwrap().to_string().contains("pause"), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn va_4_workers_resume_spread_over_a_tenth_of_the_pause_and_a_second_at_most() {
    for (pause, most) in [(SECOND, ms(100)), (MINUTE, SECOND), (ms(10), ms(1))] {
        for remote in [false, true] {
            let fleet = Fleet::new();
            let mut waiting = Vec::new();
            let rule = || Rule::token_bucket(1_000_000, SECOND);
            let processes: Vec<Valve> = (0..20)
                .map(|_| match remote {
                    true => builder(&fleet).rule(rule()).build(Remote::new(&fleet, Wire::Short)).unwrap(),
                    false => process(&fleet, rule()),
                })
                .collect();
            processes[0].pause(pause).await.unwrap();
            let start = fleet.now();
            for valve in &processes {
                let (valve, clock) = (valve.clone(), fleet.clock);
                waiting.push(tokio::spawn(async move {
                    drop(valve.acquire(Job::new().timeout(HOUR)).await.unwrap());
                    clock.now().since(start)
                }));
            }
            let mut at = Vec::new();
            for job in waiting {
                at.push(job.await.unwrap());
            }
            // The runtime's timers have a grain of a millisecond.
            let latest = pause + most + ms(1);
            assert!(at.iter().all(|at| *at >= pause && *at <= latest), "{pause:?}: {at:?}");
            let different: BTreeSet<_> = at.iter().collect();
            assert!(most < ms(10) || different.len() > 5, "{pause:?}: they come together: {at:?}");
        }
    }
}
