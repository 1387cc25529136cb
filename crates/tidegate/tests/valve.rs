//! What the valve promises, rule by rule, to several processes over one store.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::{
    collections::{BTreeMap, BTreeSet},
    error::Error as _,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tidegate::{
    AcquireError, Adaptive, Aimd, BuildError, CallError, Capability, Class, Concurrency, ControlError, Event,
    Job, LastCause, MemoryStore, Outcome, Permit, Rule, StoreError, Trouble, Valve, ValveBuilder,
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
use fleet::{Fleet, ID, Mode, Remote, Troubles, Wire, id, ms, poll_once, settled, until};

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
    let called = AtomicUsize::new(0);
    let call = || async {
        called.fetch_add(1, Ordering::SeqCst);
        Ok::<_, u32>(())
    };
    let no_permit = valve.run(Job::new().timeout(ms(999)), call).await;
    assert!(matches!(no_permit, Err(CallError::Acquire(AcquireError::Timeout { .. }))), "{no_permit:?}");
    assert_eq!(called.load(Ordering::SeqCst), 0);
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
    assert!(
        heard.iter().all(|heard| heard.pauses() == (1, 1)),
        "{:?}",
        heard.iter().map(Heard::all).collect::<Vec<_>>()
    );
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
    drop(try_one(&valve).await.unwrap());
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

#[tokio::test(start_paused = true)]
async fn va_4_no_job_is_let_in_before_a_pause_is_over() {
    let fleet = Fleet::new();
    let valve = process(&fleet, Rule::token_bucket(1_000, SECOND));
    drop(try_one(&valve).await.unwrap());
    valve.pause(SECOND).await.unwrap();
    let gives_up = begun(&valve, Job::new().timeout(ms(999))).await;
    let waits = begun(&valve, Job::new().timeout(SECOND * 2)).await;
    let error = refused(gives_up).await;
    let AcquireError::Timeout { last, hint, waited, .. } = &error else { panic!("{error:?}") };
    assert_eq!((*last, *waited), (LastCause::Pause, ms(999)));
    assert!(hint.is_some_and(|hint| hint >= ms(1) && hint <= ms(101)), "{error:?}");
    let start = fleet.now();
    drop(granted(waits).await);
    assert!(fleet.now().since(start) >= ms(1));
}

// ---- VA-5 ----------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn va_5_stats_say_what_waits_what_runs_and_what_denied_it() {
    let fleet = Fleet::new();
    let valve = builder(&fleet)
        .rule(Rule::token_bucket(2, MINUTE))
        .concurrency(Concurrency::Global(1))
        .build(fleet.store.clone())
        .unwrap();
    let stats = valve.stats();
    assert_eq!((stats.queued, stats.in_flight, stats.granted, stats.limit), (0, 0, 0, Some(1)));
    assert_eq!((stats.paused_for, stats.store_away), (Duration::ZERO, false));
    let permit = try_one(&valve).await.unwrap();
    assert_eq!(no_room(try_one(&valve).await).0, LastCause::Slots);
    permit.release(Outcome::Success);
    drop(try_one(&valve).await.unwrap());
    assert_eq!(no_room(try_one(&valve).await).0, LastCause::Rate);
    assert_eq!(no_room(try_one(&valve).await).0, LastCause::Rate);
    valve.pause(SECOND).await.unwrap();
    for _ in 0..3 {
        assert_eq!(no_room(try_one(&valve).await).0, LastCause::Pause);
    }
    let waits = begun(&valve, Job::new()).await;
    let stats = valve.stats();
    assert_eq!((stats.queued, stats.in_flight, stats.granted), (1, 0, 2));
    assert_eq!((stats.denied.slots, stats.denied.rate, stats.denied.pause), (1, 2, 4));
    assert_eq!(stats.paused_for, SECOND);
    // It counts once, by what denied it at first, however often and by what it is denied.
    assert!(matches!(refused(waits).await, AcquireError::Timeout { last: LastCause::Rate, .. }));
    let stats = valve.stats();
    assert_eq!((stats.denied.slots, stats.denied.rate, stats.denied.pause), (1, 2, 4));
    assert_eq!(process(&Fleet::new(), one_per(SECOND)).stats().limit, None);
}

#[tokio::test(start_paused = true)]
async fn va_5_events_tell_of_pauses_limits_and_a_store_that_comes_and_goes() {
    let fleet = Fleet::new();
    let remote = Remote::new(&fleet, Wire::Yields);
    let adaptive = Adaptive::new(8).max_limit(8);
    let valve = builder(&fleet)
        .concurrency(Concurrency::Adaptive(adaptive))
        .fallback_local(2)
        .build(remote.clone())
        .unwrap();
    let heard = Heard::on(&valve);
    try_one(&valve).await.unwrap().release(Outcome::Throttled);
    valve.flush().await;
    settled().await;
    assert_eq!(heard.all(), [Event::LimitChanged { limit: 4 }]);
    assert_eq!(valve.stats().limit, Some(4));
    remote.set(Mode::Down);
    drop(try_one(&valve).await.unwrap());
    settled().await;
    assert!(valve.stats().store_away);
    remote.set(Mode::Up);
    sleep(SECOND * 5).await;
    assert!(!valve.stats().store_away);
    valve.pause(SECOND).await.unwrap();
    sleep(SECOND * 2).await;
    let expected = [
        Event::LimitChanged { limit: 4 },
        Event::StoreAway,
        Event::StoreBack,
        Event::Paused { length: SECOND },
        Event::Resumed,
    ];
    assert_eq!(heard.all(), expected);
}

#[tokio::test(start_paused = true)]
async fn va_5_events_end_with_the_valve() {
    let fleet = Fleet::new();
    let valve = process(&fleet, one_per(SECOND));
    let mut events = valve.events();
    drop(try_one(&valve).await.unwrap());
    drop(valve);
    assert_eq!(tokio::time::timeout(MINUTE, events.next()).await, Ok(None));
}

// ---- VA-6 ----------------------------------------------------------------------------------------------------------

/// A process whose reports are kept.
fn reporting(fleet: &Fleet, rules: impl IntoIterator<Item = Rule>) -> (Valve, Troubles) {
    let troubles = Troubles::default();
    let builder = rules.into_iter().fold(builder(fleet), ValveBuilder::rule);
    (builder.on_error(troubles.note()).build(fleet.store.clone()).unwrap(), troubles)
}

#[tokio::test(start_paused = true)]
async fn va_6_what_was_not_used_is_credited_and_what_was_used_beyond_is_debited() {
    let rules = [
        Rule::token_bucket(1_000, MINUTE).named("tokens"),
        Rule::fixed_window(1_000, MINUTE).named("tokens"),
        Rule::sliding_window(1_000, MINUTE).named("tokens"),
    ];
    for rule in rules {
        let fleet = Fleet::new();
        let (valve, troubles) = reporting(&fleet, [rule.clone()]);
        let job = || Job::new().cost("tokens", 600);
        let permit = valve.acquire(job()).await.unwrap();
        assert_eq!(level(&fleet), 400);
        permit.settle("tokens", 250).release(Outcome::Success);
        assert_eq!(level(&fleet), 750, "{rule:?}: credited");
        let permit = valve.acquire(job()).await.unwrap();
        assert_eq!(level(&fleet), 150);
        permit.settle("tokens", 1_600).release(Outcome::Success);
        assert_eq!(level(&fleet), -850, "{rule:?}: a debt");
        // The debt is waited out: by a bucket at its rate, by a window until what is over it has left.
        let (_, hint) = no_room(valve.try_acquire(Job::new().cost("tokens", 50)).await);
        let expected = if format!("{rule:?}").contains("TokenBucket") { SECOND * 54 } else { MINUTE };
        assert_eq!(hint, Some(expected), "{rule:?}");
        sleep(expected).await;
        drop(valve.try_acquire(Job::new().cost("tokens", 50)).await.expect("the debt is paid"));
        assert_eq!(troubles.codes(), [""; 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn va_6_a_credit_is_never_above_the_burst_nor_past_its_window() {
    let fleet = Fleet::new();
    let (valve, _) = reporting(&fleet, [Rule::token_bucket(1_000, SECOND).burst(500).named("tokens")]);
    let permit = valve.acquire(Job::new().cost("tokens", 400)).await.unwrap();
    advance(SECOND).await;
    permit.settle("tokens", 0).release(Outcome::Success);
    assert_eq!(level(&fleet), 500);
    let fleet = Fleet::new();
    let (valve, _) = reporting(&fleet, [Rule::fixed_window(500, SECOND).named("tokens")]);
    let permit = valve.acquire(Job::new().cost("tokens", 400)).await.unwrap();
    advance(SECOND).await;
    drop(valve.acquire(Job::new().cost("tokens", 100)).await.unwrap());
    permit.settle("tokens", 0).release(Outcome::Success);
    assert_eq!(level(&fleet), 400, "what was spent in the last window says nothing of this one");
}

#[tokio::test(start_paused = true)]
async fn va_6_once_per_permit_and_rule_and_a_bad_one_is_reported_and_fails_nothing() {
    let fleet = Fleet::new();
    let rules = [
        Rule::token_bucket(1_000, HOUR).named("tokens"),
        Rule::fixed_window(1_000, HOUR).named("requests"),
        Rule::sliding_window(1_000, HOUR),
    ];
    let (valve, troubles) = reporting(&fleet, rules);
    let levels = || {
        let rules = fleet.snapshot().rules;
        rules.into_iter().map(|rule| (rule.rule.to_string(), rule.level.unwrap())).collect::<BTreeMap<_, _>>()
    };
    let permit = valve.acquire(Job::new().cost_each(10)).await.unwrap();
    permit
        .settle("tokens", 5)
        .settle("tokens", 900)
        .settle("requests", 20)
        .settle("sliding_window:3600000", 0)
        .settle("nobody", 1)
        .settle("named:tokens", 1)
        .release(Outcome::Success);
    let expected = [("named:requests", 980), ("named:tokens", 995), ("sliding_window:3600000", 1_000)];
    assert_eq!(levels(), expected.map(|(rule, level)| (rule.to_owned(), level)).into());
    assert_eq!(troubles.codes(), ["invalid_options"; 3]);
    let said: Vec<String> = troubles
        .all()
        .iter()
        .map(|trouble| match trouble {
            Trouble::NotSettled { source, .. } => source.to_string(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(said[0].contains("once per permit and rule"), "{said:?}");
    assert!(said[1].contains("nobody") && said[1].contains("named:tokens"), "{said:?}");
    // Another permit may settle the same rule; 10^12 is the most.
    let permit = valve.acquire(Job::new()).await.unwrap();
    drop(permit.settle("tokens", 1_000_000_000_001));
    assert_eq!((troubles.codes().len(), levels()["named:tokens"]), (4, 994));
    let permit = valve.acquire(Job::new()).await.unwrap();
    drop(permit.settle("tokens", 1_000_000_000_000));
    assert_eq!(levels()["named:tokens"], -10_000, "debt is cut at ten bursts");
    assert_eq!(troubles.codes()[4..], ["debt_cut"]);
    let Trouble::DebtCut { cut, .. } = &troubles.all()[4] else { panic!("{:?}", troubles.all()) };
    assert_eq!(*cut, 1_000_000_000_000 - 1 - 10_993);
}

#[tokio::test(start_paused = true)]
async fn va_6_a_scoped_rule_is_settled_for_the_job_s_own_identity() {
    let fleet = Fleet::new();
    let rule = Rule::token_bucket(100, HOUR).named("tokens").scoped("tenant");
    let (valve, _) = reporting(&fleet, [rule]);
    let permit = valve.acquire(of("acme").cost("tokens", 60)).await.unwrap();
    drop(valve.acquire(of("umbrella").cost("tokens", 60)).await.unwrap());
    permit.settle("tokens", 10).release(Outcome::Success);
    drop(valve.try_acquire(of("acme").cost("tokens", 90)).await.expect("50 came back"));
    no_room(valve.try_acquire(of("acme").cost("tokens", 1)).await);
    no_room(valve.try_acquire(of("umbrella").cost("tokens", 41)).await);
    drop(valve.try_acquire(of("umbrella").cost("tokens", 40)).await.expect("as before"));
}

#[tokio::test(start_paused = true)]
async fn va_6_a_settlement_is_delivered_when_the_store_is_back_and_once() {
    let fleet = Fleet::new();
    let remote = Remote::new(&fleet, Wire::Yields);
    let rule = Rule::token_bucket(1_000, DAY).named("tokens");
    let valve = builder(&fleet).rule(rule).build(remote.clone()).unwrap();
    let permit = valve.acquire(Job::new().cost("tokens", 600)).await.unwrap();
    // It is carried out, and its answer is lost.
    remote.set(Mode::Mute);
    permit.settle("tokens", 900).release(Outcome::Success);
    sleep(SECOND * 3).await;
    remote.set(Mode::Up);
    valve.flush().await;
    assert_eq!(level(&fleet), 100);
}

// ---- VA-7 ----------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn va_7_without_a_fallback_a_job_is_unavailable_at_once_with_the_cause() {
    let fleet = Fleet::new();
    let remote = Remote::new(&fleet, Wire::Yields);
    let valve = builder(&fleet).rule(one_per(SECOND)).build(remote.clone()).unwrap();
    drop(try_one(&valve).await.unwrap());
    let waits = begun(&valve, Job::new().timeout(HOUR)).await;
    remote.set(Mode::Down);
    let (error, took) = fleet.timed(refused(waits)).await;
    assert_eq!((error.code(), took), ("unavailable", SECOND), "when it was to ask again");
    assert!(error.source().unwrap().to_string().contains("the wire is cut"));
    let (error, took) = fleet.timed(async { valve.acquire(Job::new()).await.map(drop) }).await;
    assert_eq!((error.unwrap_err().code(), took), ("unavailable", Duration::ZERO));
}

#[tokio::test(start_paused = true)]
async fn va_7_fallback_rules_and_a_fallback_limit_are_kept_by_each_process_alone() {
    let fleet = Fleet::new();
    let remote = Remote::new(&fleet, Wire::Yields);
    let troubles = Troubles::default();
    let valve = || {
        builder(&fleet)
            .rule(Rule::token_bucket(1_000, SECOND).named("requests"))
            .concurrency(Concurrency::Global(100))
            .fallback_rule(Rule::token_bucket(4, SECOND * 4).named("requests"))
            .fallback_local(3)
            .on_error(troubles.note())
            .build(remote.clone())
            .unwrap()
    };
    let (valve, other) = (valve(), valve());
    drop(take(&valve, 20).await);
    remote.set(Mode::Down);
    let mut held = take(&valve, 3).await;
    for permit in &held {
        assert!(permit.is_local() && permit.is_live());
        assert_eq!((permit.slot(), permit.fence(), permit.token()), (None, None, None));
    }
    assert_eq!(no_room(try_one(&valve).await).0, LastCause::Slots, "the local limit");
    held.pop().unwrap().settle("requests", 0).release(Outcome::Success);
    held.extend(take(&valve, 1).await);
    held.clear();
    // The local rule, waited for like the real one.
    let error = valve.try_acquire(Job::new()).await.map(drop).unwrap_err();
    let AcquireError::Timeout { last, hint, local, .. } = error else { panic!("{error:?}") };
    assert_eq!((last, hint, local), (LastCause::Rate, Some(SECOND), true));
    let (permit, took) = fleet.timed(async { valve.acquire(Job::new()).await.unwrap() }).await;
    assert!(permit.is_local() && took == SECOND, "{took:?}");
    // Another process has a share of its own.
    drop(take(&other, 3).await);
    assert_eq!(troubles.codes(), ["unavailable"; 2], "each change of mode is told once");
    let waits = begun(&valve, Job::new().cost("requests", 4).timeout(HOUR)).await;
    remote.set(Mode::Up);
    let permit = granted(waits).await;
    assert!(!permit.is_local() && permit.slot().is_some(), "it goes back to the store with those that wait");
}

#[tokio::test(start_paused = true)]
async fn va_7_fallback_rules_without_a_limit_bound_no_concurrency_and_may_be_scoped() {
    let fleet = Fleet::new();
    let remote = Remote::new(&fleet, Wire::Yields);
    let valve = builder(&fleet)
        .rule(Rule::token_bucket(1_000, SECOND).scoped("tenant"))
        .concurrency(Concurrency::Global(1))
        .fallback_rule(Rule::fixed_window(5, MINUTE).scoped("tenant"))
        .build(remote.clone())
        .unwrap();
    remote.set(Mode::Down);
    let mut held = Vec::new();
    for tenant in ["acme", "umbrella"] {
        for _ in 0..5 {
            held.push(valve.try_acquire(of(tenant)).await.expect("there is no limit"));
        }
        assert_eq!(no_room(valve.try_acquire(of(tenant)).await), (LastCause::Rate, Some(MINUTE)));
    }
    // One that is not scoped, for a valve that is.
    let unscoped = builder(&fleet)
        .rule(Rule::token_bucket(1_000, SECOND).scoped("tenant"))
        .concurrency(Concurrency::Global(1))
        .fallback_rule(one_per(SECOND))
        .build(remote.clone())
        .unwrap();
    let waiting = [
        begun(&unscoped, of("acme")).await,
        begun(&unscoped, of("umbrella")).await,
        begun(&unscoped, of("initech")).await,
    ];
    let start = fleet.now();
    for (job, second) in waiting.into_iter().zip(0..) {
        held.push(granted(job).await);
        assert_eq!(fleet.now().since(start), SECOND * second);
    }
    assert!(held.iter().all(Permit::is_local));
}

// ---- VA-8 ----------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn va_8_a_grant_for_a_job_that_is_gone_goes_to_the_next_that_fits() {
    for wire in [None, Some(Wire::Takes(ms(10)))] {
        let fleet = Fleet::new();
        let rules = || builder(&fleet).rule(Rule::token_bucket(1, SECOND).burst(2));
        let valve = match wire {
            None => rules().build(fleet.store.clone()).unwrap(),
            Some(wire) => rules().build(Remote::new(&fleet, wire)).unwrap(),
        };
        drop(valve.acquire(Job::new().cost_each(2)).await.unwrap());
        let mut first = Box::pin(valve.acquire(Job::new().timeout(MINUTE)));
        assert!(poll_once(first.as_mut()).is_pending());
        sleep(ms(50)).await;
        let large = begun(&valve, Job::new().cost_each(2).timeout(MINUTE)).await;
        let next = begun(&valve, Job::new().timeout(MINUTE)).await;
        let granted_before = valve.stats().granted;
        // The grant arrives for the first, who does not look; or is on its way.
        if wire.is_none() {
            sleep(SECOND).await;
            assert_eq!(valve.stats().granted, granted_before + 1);
        } else {
            sleep(ms(975)).await;
        }
        drop(first);
        let start = fleet.now();
        drop(granted(next).await);
        assert!(fleet.now().since(start) <= ms(30), "{wire:?}: the next of the same cost takes it");
        assert!(!large.is_finished());
        assert_eq!(level(&fleet), 0, "{wire:?}");
        large.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn va_8_a_grant_that_no_one_wants_is_settled_back_with_its_slot() {
    for (wire, after) in
        [(None, ms(0)), (Some(Wire::Takes(ms(10))), ms(5)), (Some(Wire::Takes(ms(10))), ms(15))]
    {
        let fleet = Fleet::new();
        let rules = || {
            builder(&fleet)
                .rule(Rule::token_bucket(100, DAY).named("tokens"))
                .rule(Rule::fixed_window(100, DAY).scoped("tenant"))
                .concurrency(Concurrency::Global(2))
        };
        let job = || of("acme").cost("tokens", 40);
        let valve = match wire {
            None => rules().build(fleet.store.clone()).unwrap(),
            Some(wire) => rules().build(Remote::new(&fleet, wire)).unwrap(),
        };
        let held = [valve.acquire(job()).await.unwrap(), valve.acquire(of("umbrella")).await.unwrap()];
        {
            // It waits for a slot, and leaves at the moment when it gets one, or after its question was sent.
            let mut waits = Box::pin(valve.acquire(job()));
            assert!(poll_once(waits.as_mut()).is_pending());
            settled().await;
            drop(held);
            settled().await;
            sleep(after).await;
        }
        sleep(ms(100)).await;
        valve.flush().await;
        let snapshot = fleet.snapshot();
        assert_eq!((snapshot.held, valve.stats().in_flight, valve.stats().queued), (0, 0, 0), "{wire:?}");
        let tokens = snapshot.rules.iter().find(|rule| rule.rule == *"named:tokens").unwrap();
        assert_eq!(tokens.level, Some(59), "{wire:?} after {after:?}: what was spent in vain is back");
        for _ in 0..99 {
            let permit =
                valve.try_acquire(of("acme").cost("tokens", 0)).await.expect("its tenant has it back");
            permit.release(Outcome::Success);
            valve.flush().await;
        }
        assert_eq!(no_room(valve.try_acquire(of("acme").cost("tokens", 0)).await).0, LastCause::Rate);
    }
}

#[tokio::test(start_paused = true)]
async fn va_8_a_job_that_times_out_while_its_grant_is_on_its_way_leaves_nothing() {
    let fleet = Fleet::new();
    let rule = Rule::token_bucket(10, DAY);
    let valve = builder(&fleet)
        .rule(rule)
        .concurrency(Concurrency::Global(1))
        .build(Remote::new(&fleet, Wire::Takes(ms(30))))
        .unwrap();
    let holder = valve.acquire(Job::new()).await.unwrap();
    let start = fleet.now();
    let waits = begun(&valve, Job::new().timeout(ms(200))).await;
    sleep(ms(180)).await;
    holder.release(Outcome::Success);
    let error = refused(waits).await;
    assert_eq!((error.code(), fleet.now().since(start)), ("timeout", ms(200)));
    sleep(ms(500)).await;
    valve.flush().await;
    assert_eq!((fleet.held(), level(&fleet), valve.stats().in_flight), (0, 9, 0));
}

// ---- VA-9 ----------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn va_9_what_the_server_says_lowers_the_level_less_what_was_admitted_since_and_never_raises_it() {
    for rule in [
        Rule::token_bucket(100, DAY).named("requests"),
        Rule::fixed_window(100, DAY).named("requests"),
        Rule::sliding_window(100, DAY).named("requests"),
    ] {
        let fleet = Fleet::new();
        let (valve, troubles) = reporting(&fleet, [rule.clone()]);
        let (first, second) = (try_one(&valve).await.unwrap(), try_one(&valve).await.unwrap());
        drop(take(&valve, 8).await);
        assert_eq!(level(&fleet), 90);
        // Nine were admitted since that permit.
        first.observe("requests", 50, HOUR).release(Outcome::Success);
        assert_eq!(level(&fleet), 41, "{rule:?}");
        second.observe("requests", 80, HOUR).release(Outcome::Success);
        assert_eq!(level(&fleet), 41, "{rule:?}: never raised");
        // Newer ones count, older ones no more.
        let (third, fourth) = (try_one(&valve).await.unwrap(), try_one(&valve).await.unwrap());
        fourth.observe("requests", 20, HOUR).release(Outcome::Success);
        assert_eq!(level(&fleet), 20, "{rule:?}");
        third.observe("requests", 5, HOUR).release(Outcome::Success);
        assert_eq!(level(&fleet), 20, "{rule:?}: a newer one is there");
        let last = try_one(&valve).await.unwrap();
        last.observe("requests", 0, HOUR).release(Outcome::Success);
        assert_eq!(level(&fleet), 0, "{rule:?}");
        assert_eq!(no_room(try_one(&valve).await).0, LastCause::Rate);
        assert_eq!(troubles.codes(), [""; 0]);
    }
}

#[tokio::test(start_paused = true)]
async fn va_9_an_observation_is_ignored_once_its_reset_has_passed() {
    let fleet = Fleet::new();
    let remote = Remote::new(&fleet, Wire::Takes(ms(50)));
    let rule = Rule::fixed_window(100, DAY).named("requests");
    let valve = builder(&fleet).rule(rule).build(remote).unwrap();
    let permits = [valve.acquire(Job::new()).await.unwrap(), valve.acquire(Job::new()).await.unwrap()];
    let [early, late] = permits;
    early.observe("requests", 10, ms(40)).release(Outcome::Success);
    valve.flush().await;
    assert_eq!(level(&fleet), 98, "the reset passed on the way");
    late.observe("requests", 10, ms(300)).release(Outcome::Success);
    valve.flush().await;
    assert_eq!(level(&fleet), 10);
}

#[tokio::test(start_paused = true)]
async fn va_9_an_observation_of_a_scoped_rule_is_of_the_job_s_own_identity_and_a_bad_one_is_reported() {
    let fleet = Fleet::new();
    let (valve, troubles) =
        reporting(&fleet, [Rule::token_bucket(100, DAY).named("requests").scoped("tenant")]);
    let permit = valve.acquire(of("acme")).await.unwrap();
    drop(permit.observe("requests", 0, HOUR).observe("nobody", 0, HOUR).observe(
        "requests",
        u64::MAX,
        Duration::MAX,
    ));
    no_room(valve.try_acquire(of("acme")).await);
    drop(
        valve.try_acquire(of("umbrella").cost("requests", 100)).await.expect("another tenant's is as it was"),
    );
    assert_eq!(troubles.codes(), ["invalid_options"]);
}

// ---- VA-10 ---------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn va_10_a_job_whose_hint_is_later_than_its_timeout_is_refused_at_once() {
    for (wire, scoped) in [(false, false), (false, true), (true, false), (true, true)] {
        let fleet = Fleet::new();
        let rule = one_per(SECOND * 10);
        let rule = if scoped { rule.scoped("tenant") } else { rule };
        let job = || if scoped { of("acme") } else { Job::new() };
        let build = |builder: ValveBuilder| match wire {
            true => builder.build(Remote::new(&fleet, Wire::Yields)).unwrap(),
            false => builder.build(fleet.store.clone()).unwrap(),
        };
        let valve = build(builder(&fleet).rule(rule.clone()).fail_fast());
        let patient = build(builder(&fleet).rule(rule));
        drop(valve.acquire(job()).await.unwrap());
        let (failed, took) = fleet.timed(valve.acquire(job().timeout(ms(9_999)))).await;
        let AcquireError::Timeout { last, hint, timeout, waited, .. } = failed.map(drop).unwrap_err() else {
            panic!("not a timeout")
        };
        assert_eq!((last, hint, timeout), (LastCause::Rate, Some(SECOND * 10), ms(9_999)));
        assert_eq!((took, waited), (Duration::ZERO, Duration::ZERO));
        // Without it, it waits in vain.
        let (failed, took) = fleet.timed(patient.acquire(job().timeout(ms(999)))).await;
        no_room(failed);
        assert_eq!(took, ms(999));
        // One whose hint is not later than its timeout waits.
        let hint = no_room(valve.try_acquire(job()).await).1.expect("a hint");
        let just = begun(&valve, job().timeout(hint)).await;
        assert_eq!(valve.stats().queued, 1);
        just.abort();
        until(|| valve.stats().queued == 0).await;
        // With time to spare: since the other process waited too, this one may ask a little after the hint.
        let waits = begun(&valve, job().timeout(SECOND * 20)).await;
        assert_eq!(valve.stats().queued, 1);
        // Behind it, one that would not be served in time is refused though nobody asks for it.
        let (failed, took) = fleet.timed(valve.acquire(job().timeout(SECOND * 2))).await;
        assert_eq!((no_room(failed).0, took), (LastCause::Rate, Duration::ZERO));
        drop(granted(waits).await);
    }
}

#[tokio::test(start_paused = true)]
async fn va_10_a_pause_that_is_too_long_is_refused_and_a_wait_for_a_slot_is_not() {
    let fleet = Fleet::new();
    let valve =
        builder(&fleet).concurrency(Concurrency::Global(1)).fail_fast().build(fleet.store.clone()).unwrap();
    let holder = try_one(&valve).await.unwrap();
    // The lease lasts half a minute, but its slot may be free at any moment.
    let waits = begun(&valve, Job::new().timeout(SECOND * 5)).await;
    let behind = begun(&valve, Job::new().timeout(SECOND * 5)).await;
    advance(SECOND).await;
    holder.release(Outcome::Success);
    drop(granted(waits).await);
    drop(granted(behind).await);
    valve.pause(MINUTE).await.unwrap();
    let (failed, took) = fleet.timed(valve.acquire(Job::new().timeout(SECOND * 59))).await;
    assert_eq!((no_room(failed), took), ((LastCause::Pause, Some(MINUTE)), Duration::ZERO));
    let waits = begun(&valve, Job::new().timeout(MINUTE + SECOND * 2)).await;
    assert_eq!(valve.stats().queued, 1);
    drop(granted(waits).await);
}

// ---- VA-11 ---------------------------------------------------------------------------------------------------------

#[track_caller]
fn bad(builder: ValveBuilder) -> BuildError {
    builder.build(MemoryStore::new()).map(drop).expect_err("it cannot be built")
}

#[test]
fn va_11_every_option_is_held_within_its_bounds() {
    let valve = || Valve::builder(ID);
    let adaptive = |adaptive: Adaptive| valve().concurrency(Concurrency::Adaptive(adaptive));
    let class = |share| valve().concurrency(Concurrency::Global(9)).class(Class::reserved("a", share));
    let rules = |count: u64| (1..=count).map(ms).map(one_per).fold(valve(), ValveBuilder::rule);
    let year = DAY * 366;
    let nano = Duration::from_nanos(1);
    let refused = [
        (Valve::builder(""), "id", "200 bytes"),
        (Valve::builder("x".repeat(201)), "id", "200 bytes"),
        (Valve::builder("a{b"), "id", "200 bytes"),
        (valve().owner(""), "owner", "1 to 128"),
        (valve().owner("x".repeat(129)), "owner", "1 to 128"),
        (valve().max_queue(0), "max_queue", "1"),
        (valve().max_pause(ms(1) - nano), "max_pause", "1 ms to 366 days"),
        (valve().max_pause(year + nano), "max_pause", "1 ms to 366 days"),
        (valve().op_timeout(ms(1) - nano), "op_timeout", "1 ms"),
        (valve().op_timeout(Duration::MAX), "op_timeout", "366 days"),
        (valve().lease_ttl(ms(100) - nano), "lease_ttl", "100 ms to 24 h"),
        (valve().lease_ttl(DAY + nano), "lease_ttl", "100 ms to 24 h"),
        (valve().revision(2_147_483_648), "revision", "2147483647"),
        (valve().concurrency(Concurrency::Local(0)), "concurrency", "1 to 1000000"),
        (valve().concurrency(Concurrency::Local(1_000_001)), "concurrency", "1 to 1000000"),
        (valve().concurrency(Concurrency::Global(0)), "limit", "1 to 1000000"),
        (valve().concurrency(Concurrency::Global(1_000_001)), "limit", "1 to 1000000"),
        (adaptive(Adaptive::new(0)), "initial_limit", "1 to 1000"),
        (adaptive(Adaptive::new(1_001)), "initial_limit", "1 to 1000"),
        (adaptive(Adaptive::new(5).min_limit(0)), "min_limit", "1"),
        (adaptive(Adaptive::new(5).aimd(Aimd::default().window(Duration::ZERO))), "aimd.window", "0"),
        (class(0.0), "class a: share", "below 1"),
        (class(1.0), "class a: share", "below 1"),
        (class(f64::NAN), "class a: share", "below 1"),
        (class(0.5).class(Class::reserved("b", 0.5)), "classes: sum of shares", "below 1"),
        (class(0.5).class(Class::unreserved("a")), "class", "once"),
        (valve().class(Class::unreserved("a")), "class", "bound on concurrency"),
        (rules(17), "rules", "16"),
        (valve().rule(one_per(SECOND)).rule(one_per(SECOND)), "rules", "keys"),
        (valve().fallback_local(0), "fallback", "1 to 1000000"),
        (valve().fallback_local(1_000_001), "fallback", "1 to 1000000"),
        (valve().fallback_rule(one_per(Duration::ZERO)), "fallback", "1 ms to 366 days"),
    ];
    for (builder, option, allowed) in refused {
        let error = bad(builder);
        assert!(error.option().contains(option), "{error:?}, not {option}");
        assert!(error.invalid.allowed.contains(allowed), "{error:?}, not {allowed}");
        assert!(!error.invalid.given.is_empty() || option == "id" || option == "owner", "{error:?}");
        assert_eq!(error.code(), "invalid_options");
        let text = error.source().expect("says what").to_string();
        assert!(text.contains(&error.invalid.allowed), "{text}");
    }
    let taken = [
        Valve::builder("x".repeat(200)),
        valve().owner("x".repeat(128)),
        valve().max_queue(1),
        valve().max_queue(usize::MAX),
        valve().max_pause(ms(1)),
        valve().max_pause(year),
        valve().op_timeout(ms(1)),
        valve().op_timeout(year),
        valve().lease_ttl(ms(100)),
        valve().lease_ttl(DAY),
        valve().revision(2_147_483_647),
        valve().concurrency(Concurrency::Local(1_000_000)),
        valve().concurrency(Concurrency::Global(1_000_000)),
        valve().concurrency(Concurrency::Global(1)),
        adaptive(Adaptive::new(1)),
        adaptive(Adaptive::new(1_000)),
        class(0.000_001),
        class(0.999_999),
        rules(16),
        rules(0),
        valve().fallback_local(1),
        valve().fallback_local(1_000_000),
    ];
    for builder in taken {
        let valve = builder.build(MemoryStore::new());
        assert!(valve.is_ok(), "{valve:?}");
    }
}

#[test]
fn va_11_a_store_that_lacks_what_a_valve_needs_is_refused_by_name() {
    let fleet_less = |capability| {
        let store = MemoryStore::new();
        Remote::over(&store, TokioClock::new(), Wire::Short).without(capability)
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _entered = runtime.enter();
    let valve = || Valve::builder(ID).rule(one_per(SECOND));
    let adaptive = || Concurrency::Adaptive(Adaptive::new(4));
    for (builder, lacks) in [
        (valve().concurrency(Concurrency::Global(4)), Capability::Leases),
        (valve().concurrency(adaptive()), Capability::Leases),
        (valve().concurrency(adaptive()), Capability::Adaptive),
        (Valve::builder(ID).rule(one_per(SECOND).scoped("tenant")), Capability::Scoped),
    ] {
        let error = builder.build(fleet_less(lacks)).map(drop).expect_err("it lacks that");
        assert_eq!(error.option(), "store");
        assert!(error.invalid.allowed.contains(lacks.as_str()), "{error:?}");
    }
    // What it does not need is not asked for.
    for lacks in [Capability::Leases, Capability::Scoped, Capability::Corrections, Capability::Wake] {
        assert!(valve().concurrency(Concurrency::Local(4)).build(fleet_less(lacks)).is_ok(), "{lacks}");
    }
}

#[tokio::test(start_paused = true)]
async fn va_11_a_job_waits_ten_seconds_unless_told_and_the_queue_takes_ten_thousand() {
    let fleet = Fleet::new();
    let valve = process(&fleet, one_per(HOUR));
    drop(try_one(&valve).await.unwrap());
    let waiting: Vec<Waiting> = (0..10_000)
        .map(|_| {
            let valve = valve.clone();
            tokio::spawn(async move { valve.acquire(Job::new()).await })
        })
        .collect();
    until(|| valve.stats().queued == 10_000).await;
    let full = valve.acquire(Job::new()).await.map(drop).unwrap_err();
    assert!(matches!(full, AcquireError::QueueFull { max_queue: 10_000, .. }), "{full:?}");
    for job in waiting {
        let AcquireError::Timeout { waited, .. } = refused(job).await else { panic!("not a timeout") };
        assert_eq!(waited, SECOND * 10);
    }
}

#[tokio::test(start_paused = true)]
async fn va_11_an_operation_has_a_second_unless_told() {
    for (op_timeout, most) in [(None, SECOND), (Some(ms(200)), ms(200))] {
        let fleet = Fleet::new();
        let remote = Remote::new(&fleet, Wire::Yields);
        let builder = builder(&fleet).rule(one_per(SECOND));
        let builder = op_timeout.into_iter().fold(builder, ValveBuilder::op_timeout);
        let valve = builder.build(remote.clone()).unwrap();
        remote.set(Mode::Hangs);
        let (failed, took) = fleet.timed(valve.acquire(Job::new())).await;
        assert_eq!((failed.map(drop).unwrap_err().code(), took), ("unavailable", most));
    }
}

// ---- concurrency, classes ------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn va_11_a_local_bound_is_of_each_process_a_global_one_of_all() {
    let fleet = Fleet::new();
    let build = |concurrency| builder(&fleet).concurrency(concurrency).build(fleet.store.clone()).unwrap();
    let (one, other) = (build(Concurrency::Local(2)), build(Concurrency::Local(3)));
    let held = [take(&one, 2).await, take(&other, 3).await].concat_all();
    assert_eq!(no_room(try_one(&one).await).0, LastCause::Slots);
    assert_eq!(no_room(try_one(&other).await).0, LastCause::Slots);
    assert_eq!((held[0].token(), one.stats().limit), (None, None), "no leases of the fleet");
    let waits = begun(&one, Job::new()).await;
    let next = begun(&one, Job::new()).await;
    let mut held = held.into_iter();
    drop(held.next());
    let permit = granted(waits).await;
    settled().await;
    assert!(!next.is_finished());
    drop(permit);
    drop(granted(next).await);
    drop(held);

    let fleet = Fleet::new();
    let build = |concurrency| builder(&fleet).concurrency(concurrency).build(fleet.store.clone()).unwrap();
    let (one, other) = (build(Concurrency::Global(3)), build(Concurrency::Global(3)));
    let held = [take(&one, 2).await, take(&other, 1).await].concat_all();
    assert_eq!(no_room(try_one(&one).await).0, LastCause::Slots);
    assert_eq!(no_room(try_one(&other).await).0, LastCause::Slots);
    let slots: BTreeSet<_> = held.iter().map(|permit| permit.slot().unwrap()).collect();
    assert_eq!(slots, [0, 1, 2].into());
    let waits = begun(&other, Job::new()).await;
    let mut held = held.into_iter();
    let start = fleet.now();
    drop(held.next());
    drop(granted(waits).await);
    assert_eq!(fleet.now(), start, "room goes to whoever waits, in any process");
}

/// Joins what was taken.
trait ConcatAll {
    fn concat_all(self) -> Vec<Permit>;
}

impl<const N: usize> ConcatAll for [Vec<Permit>; N] {
    fn concat_all(self) -> Vec<Permit> {
        self.into_iter().flatten().collect()
    }
}

#[tokio::test(start_paused = true)]
async fn va_11_an_adaptive_bound_moves_with_the_outcomes_of_the_valve() {
    let fleet = Fleet::new();
    let aimd = Aimd::default().window(SECOND).cooldown(SECOND);
    let build = || {
        let adaptive = Adaptive::new(8).max_limit(20).aimd(aimd).throttle_rest(Duration::ZERO);
        let builder = builder(&fleet).rule(Rule::token_bucket(1_000_000, SECOND));
        builder.concurrency(Concurrency::Adaptive(adaptive)).build(fleet.store.clone()).unwrap()
    };
    let (one, other) = (build(), build());
    let throttled =
        one.run(Job::new(), || async { Err::<(), _>(429) }).outcome_on_error(|_| Outcome::Throttled);
    assert_eq!(throttled.await, Err(CallError::Call(429)));
    assert_eq!(fleet.limit(), 4);
    let held = [take(&one, 2).await, take(&other, 2).await].concat_all();
    assert_eq!(no_room(try_one(&other).await).0, LastCause::Slots);
    advance(SECOND * 2).await;
    no_room(try_one(&other).await);
    held.into_iter().for_each(|permit| permit.release(Outcome::Success));
    assert_eq!(fleet.limit(), 5);
    other.refresh().await.unwrap();
    assert_eq!((one.stats().limit, other.stats().limit), (Some(5), Some(5)));
}

#[tokio::test(start_paused = true)]
async fn as_5_classes_of_a_valve_keep_their_slices() {
    let fleet = Fleet::new();
    let valve = builder(&fleet)
        .rule(Rule::token_bucket(1_000, SECOND).scoped("tenant"))
        .concurrency(Concurrency::Global(8))
        .class(Class::reserved("interactive", 0.25))
        .class(Class::unreserved("batch"))
        .build(fleet.store.clone())
        .unwrap();
    let mut held = Vec::new();
    for _ in 0..6 {
        held.push(valve.try_acquire(of("acme").class("batch")).await.expect("all but the slice"));
    }
    assert_eq!(no_room(valve.try_acquire(of("acme").class("batch")).await).0, LastCause::Slots);
    let batch = begun(&valve, of("umbrella").class("batch")).await;
    let unclassed = begun(&valve, of("umbrella")).await;
    for _ in 0..2 {
        held.push(valve.try_acquire(of("acme").class("interactive")).await.expect("its slice"));
    }
    let error = valve.try_acquire(of("acme").class("nobody")).await.map(drop).unwrap_err();
    assert_eq!(error.code(), "invalid_options");
    assert!(error.source().unwrap().to_string().contains("interactive"), "{error:?}");
    assert!(!batch.is_finished() && !unclassed.is_finished());
    held.clear();
    drop((granted(batch).await, granted(unclassed).await));
}

// ---- scopes --------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn st_10_rules_for_each_tenant_and_for_all_hold_together() {
    let fleet = Fleet::new();
    let build = || {
        builder(&fleet)
            .rule(Rule::fixed_window(4, MINUTE).scoped("tenant"))
            .rule(Rule::sliding_window(10, MINUTE))
            .rule(Rule::token_bucket(6, MINUTE).named("model").scoped("model"))
            .build(fleet.store.clone())
            .unwrap()
    };
    let (one, other) = (build(), build());
    let job = |tenant: &str, model: &str| Job::new().scope("tenant", tenant).scope("model", model);
    let mut granted = Vec::new();
    for tenant in ["a", "b", "c", "d"] {
        for (turn, valve) in [&one, &other, &one, &other, &one].into_iter().enumerate() {
            let model = if turn < 2 { "small" } else { "large" };
            if valve.try_acquire(job(tenant, model)).await.is_ok() {
                granted.push((tenant, model));
            }
        }
    }
    let count = |of: &str| granted.iter().filter(|(tenant, model)| *tenant == of || *model == of).count();
    assert_eq!(granted.len(), 10, "{granted:?}");
    assert_eq!(["a", "b", "c", "d"].map(count), [4, 4, 2, 0]);
    assert!(count("small") == 6 && count("large") == 4, "{granted:?}");
}

#[tokio::test(start_paused = true)]
async fn st_10_a_scope_that_is_missing_unknown_or_there_twice_is_refused() {
    let fleet = Fleet::new();
    let scoped = per_tenant(&fleet, 5, SECOND);
    let fleet_two = Fleet::new();
    let unscoped = process(&fleet_two, one_per(SECOND));
    let jobs = [
        (&scoped, Job::new(), "scope tenant"),
        (&scoped, of("acme").scope("model", "large"), "scope model"),
        (&scoped, of("acme").scope("tenant", "umbrella"), "scope tenant"),
        (&scoped, of(""), "identity"),
        (&scoped, of(&"x".repeat(257)), "identity"),
        (&scoped, Job::new().scope("ten ant", "acme"), "scope"),
        (&unscoped, of("acme"), "scope tenant"),
    ];
    for (valve, job, option) in jobs {
        let error = valve.acquire(job.clone()).await.map(drop).unwrap_err();
        let AcquireError::InvalidOptions { source: StoreError::Invalid(invalid), .. } = &error else {
            panic!("{error:?}")
        };
        assert_eq!((invalid.option.as_str(), error.code()), (option, "invalid_options"), "{job:?}");
        // The same from a call that never runs.
        let ran = valve.run(job, || async { Ok::<(), u32>(()) }).await;
        assert_eq!(ran, Err(CallError::Acquire(error)));
    }
    assert_eq!((scoped.stats().queued, scoped.stats().granted), (0, 0));
    for _ in 0..5 {
        drop(scoped.try_acquire(of(&"x".repeat(256))).await.expect("nothing was spent"));
    }
}

#[tokio::test(start_paused = true)]
async fn st_10_a_request_touches_no_more_than_512_states() {
    for (rules, most) in [(16, 32), (8, 64), (4, 128), (1, 128)] {
        let fleet = Fleet::new();
        let asks = Asks::new(&fleet, Wire::Yields);
        let rules = (0..rules)
            .map(|index| Rule::fixed_window(500, MINUTE).named(format!("r{index}")).scoped("tenant"));
        let valve = rules.fold(builder(&fleet), ValveBuilder::rule).build(asks.clone()).unwrap();
        let waiting: Vec<Waiting> = (0..400)
            .map(|index| {
                let (valve, job) = (valve.clone(), of(&format!("{index}")));
                tokio::spawn(async move { valve.acquire(job).await })
            })
            .collect();
        for job in waiting {
            drop(granted(job).await);
        }
        let asked = asks.take();
        assert_eq!(asked.iter().map(|ask| ask.jobs).max(), Some(most), "{asked:?}");
        assert_eq!(asked.iter().map(|ask| ask.jobs).sum::<usize>(), 400);
    }
}

#[tokio::test(start_paused = true)]
async fn va_11_a_local_bound_and_rules_for_each_tenant_hold_together() {
    for remote in [false, true] {
        let fleet = Fleet::new();
        let rule = Rule::token_bucket(2, SECOND).scoped("tenant");
        let builder = builder(&fleet).rule(rule).concurrency(Concurrency::Local(3));
        let valve = match remote {
            true => builder.build(Remote::new(&fleet, Wire::Yields)).unwrap(),
            false => builder.build(fleet.store.clone()).unwrap(),
        };
        let mut held = Vec::new();
        for tenant in ["a", "a", "b"] {
            held.push(valve.acquire(of(tenant)).await.unwrap());
        }
        // No room here, whatever the rates say; and then it is a rate again.
        assert_eq!(no_room(valve.try_acquire(of("b")).await).0, LastCause::Slots);
        let waiting = [begun(&valve, of("a")).await, begun(&valve, of("c")).await];
        assert_eq!(valve.stats().queued, 2);
        held.pop();
        let [a, c] = waiting;
        settled().await;
        assert!(!a.is_finished() && c.is_finished(), "its tenant has nothing left, which holds up no other");
        held.push(granted(c).await);
        let start = fleet.now();
        held.pop();
        drop(granted(a).await);
        assert_eq!(fleet.now().since(start), ms(500));
        assert_eq!(valve.stats().queued, 0);
    }
}

// ---- policies ------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn st_5_valves_of_one_id_agree_whatever_the_order_of_rules_and_classes() {
    let fleet = Fleet::new();
    let rules = [
        Rule::token_bucket(50, MINUTE).named("requests"),
        Rule::sliding_window(900, MINUTE).named("tokens"),
        Rule::fixed_window(9, SECOND).scoped("tenant"),
    ];
    let classes = [Class::reserved("a", 0.5), Class::unreserved("b"), Class::reserved("c", 0.25)];
    let build = |rules: &mut dyn Iterator<Item = &Rule>, classes: &mut dyn Iterator<Item = &Class>| {
        let builder = rules.cloned().fold(builder(&fleet), ValveBuilder::rule);
        let builder = classes.cloned().fold(builder, ValveBuilder::class);
        builder.concurrency(Concurrency::Global(8)).build(fleet.store.clone()).unwrap()
    };
    let one = build(&mut rules.iter(), &mut classes.iter());
    let other = build(&mut rules.iter().rev(), &mut classes.iter().rev());
    let job = || of("acme").cost("tokens", 300).class("a");
    let held = [one.try_acquire(job()).await.unwrap(), other.try_acquire(job()).await.unwrap()];
    drop(one.try_acquire(job()).await.unwrap());
    assert_eq!(no_room(other.try_acquire(job()).await).0, LastCause::Rate, "the tokens of both");
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn st_5_a_policy_that_differs_is_refused_with_the_field_and_changes_nothing() {
    let fleet = Fleet::new();
    let base = || builder(&fleet).rule(Rule::token_bucket(10, SECOND).named("requests"));
    let pinned = base().concurrency(Concurrency::Global(4)).build(fleet.store.clone()).unwrap();
    let permit = pinned.try_acquire(Job::new()).await.unwrap();
    let with = |rule: Rule| builder(&fleet).rule(rule).concurrency(Concurrency::Global(4));
    let requests = || Rule::token_bucket(10, SECOND).named("requests");
    let differ = [
        (with(Rule::token_bucket(11, SECOND).named("requests")), "rule named:requests: limit", "10", "11"),
        (with(requests().burst(9)), "rule named:requests: burst", "10", "9"),
        (
            with(Rule::token_bucket(10, ms(999)).named("requests")),
            "rule named:requests: interval",
            "1000 ms",
            "999 ms",
        ),
        (
            with(Rule::fixed_window(10, SECOND).named("requests")),
            "rule named:requests: algorithm",
            "token_bucket",
            "fixed_window",
        ),
        (
            with(requests()).rule(one_per(HOUR)),
            "rule token_bucket:3600000: algorithm",
            "none",
            "token_bucket",
        ),
        (with(requests()).lease_ttl(SECOND), "lease_ttl", "30000 ms", "1000 ms"),
        (base(), "concurrency", "fixed", "none"),
        (base().concurrency(Concurrency::Global(5)), "limit", "4", "5"),
        (with(requests()).class(Class::unreserved("a")), "class a: share", "none", "unreserved"),
    ];
    for (builder, field, pinned_value, offered_value) in differ {
        let other = builder.build(fleet.store.clone()).unwrap();
        let error = try_one(&other).await.map(drop).unwrap_err();
        let AcquireError::InvalidOptions { source, .. } = &error else { panic!("{error:?}") };
        let StoreError::PolicyDiffers { field: named, pinned, offered } = source else { panic!("{error:?}") };
        assert_eq!((named.as_str(), pinned.as_str(), offered.as_str()), (field, pinned_value, offered_value));
    }
    // A scope is asked for first, where it is the rule that differs.
    let other = with(requests().scoped("tenant")).build(fleet.store.clone()).unwrap();
    let error = other.try_acquire(of("acme")).await.map(drop).unwrap_err();
    assert!(error.source().unwrap().to_string().contains("rule named:requests: scope"), "{error:?}");
    // What concerns one process is no part of it.
    let same = with(requests()).owner("me").max_queue(7).fail_fast().fallback_local(3).max_pause(SECOND);
    let same = same.op_timeout(ms(100)).build(fleet.store.clone()).unwrap();
    drop(try_one(&same).await.unwrap());
    assert_eq!((level(&fleet), fleet.held()), (8, 1));
    drop(permit);
}

#[tokio::test(start_paused = true)]
async fn st_5_a_rolling_deploy_neither_stops_the_fleet_nor_runs_two_policies() {
    for remote in [false, true] {
        let fleet = Fleet::new();
        let build = |limit: u64, revision: u32| {
            let builder = builder(&fleet).rule(Rule::fixed_window(limit, SECOND)).revision(revision);
            match remote {
                true => builder.build(Remote::new(&fleet, Wire::Yields)).unwrap(),
                false => builder.build(fleet.store.clone()).unwrap(),
            }
        };
        let mut workers: Vec<Valve> = (0..4).map(|_| build(10, 1)).collect();
        let window = async |workers: &[Valve]| {
            let mut admitted = 0;
            for turn in 0..60 {
                match try_one(&workers[turn % workers.len()]).await {
                    Ok(_) => admitted += 1,
                    Err(AcquireError::Timeout { .. }) => {}
                    Err(other) => panic!("the fleet stops: {other:?}"),
                }
            }
            sleep(SECOND).await;
            admitted
        };
        assert_eq!(window(&workers).await, 10);
        // One worker after the other is started anew, with a higher limit.
        for at in 0..4 {
            workers[at] = build(25, 2);
            drop(begun(&workers[at], Job::new()).await);
            sleep(SECOND).await;
            assert_eq!(window(&workers).await, 25, "after {} of 4, remote: {remote}", at + 1);
        }
        // A rollback is a higher revision.
        workers[0] = build(10, 3);
        drop(try_one(&workers[0]).await.unwrap());
        sleep(SECOND).await;
        assert_eq!(window(&workers).await, 10);
        // One that was left behind adopts what it finds.
        assert_eq!(window(&[build(25, 2), build(10, 1)]).await, 10);
    }
}

#[tokio::test(start_paused = true)]
async fn st_5_a_worker_that_waits_under_an_older_policy_goes_on_under_the_newer() {
    for remote in [false, true] {
        let fleet = Fleet::new();
        let build = |limit: u64, revision: u32| {
            let builder = builder(&fleet).rule(Rule::token_bucket(limit, HOUR)).revision(revision);
            match remote {
                true => builder.build(Remote::new(&fleet, Wire::Yields)).unwrap(),
                false => builder.build(fleet.store.clone()).unwrap(),
            }
        };
        let old = build(1, 1);
        drop(try_one(&old).await.unwrap());
        let waits = begun(&old, Job::new().timeout(HOUR * 2)).await;
        // A thousand times the rate: whoever waits hears of it, and asks again.
        let new = build(1_000, 2);
        sleep(ms(3_600)).await;
        no_room(try_one(&new).await);
        let start = fleet.now();
        drop(granted(waits).await);
        let took = fleet.now().since(start);
        assert!(took <= SECOND * 40, "remote: {remote}: {took:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn st_5_a_rule_that_only_the_newer_policy_has_holds_up_no_one_but_whom_it_denies() {
    let fleet = Fleet::new();
    let old = builder(&fleet).rule(Rule::token_bucket(1_000, SECOND).scoped("tenant")).revision(1);
    let old = old.build(Remote::new(&fleet, Wire::Yields)).unwrap();
    drop(old.acquire(of("acme")).await.unwrap());
    let new = builder(&fleet)
        .rule(Rule::token_bucket(1_000, SECOND).scoped("tenant"))
        .rule(Rule::fixed_window(1, MINUTE).named("hourly").scoped("tenant"))
        .revision(2)
        .build(fleet.store.clone())
        .unwrap();
    drop(new.acquire(of("acme")).await.unwrap());
    let waits = begun(&old, of("acme").timeout(HOUR)).await;
    let (other, took) = fleet.timed(old.acquire(of("umbrella"))).await;
    drop(other.unwrap());
    assert_eq!(took, Duration::ZERO);
    let start = fleet.now();
    drop(granted(waits).await);
    let took = fleet.now().since(start);
    assert!(took >= SECOND * 50 && took <= MINUTE + SECOND, "{took:?}");
}

// ---- life ----------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn as_10_closing_a_valve_ends_its_waits_and_leaves_the_store_open() {
    let fleet = Fleet::new();
    let valve = builder(&fleet).concurrency(Concurrency::Global(1)).build(fleet.store.clone()).unwrap();
    let other = builder(&fleet).concurrency(Concurrency::Global(1)).build(fleet.store.clone()).unwrap();
    let permit = try_one(&valve).await.unwrap();
    let waits = begun(&valve, Job::new()).await;
    valve.close().await;
    valve.close().await;
    assert_eq!(refused(waits).await.code(), "closed");
    assert_eq!(try_one(&valve).await.map(drop).unwrap_err().code(), "closed");
    no_room(try_one(&other).await);
    assert!(permit.is_live());
    permit.release(Outcome::Success);
    drop(try_one(&other).await.unwrap());
}

// ---- all together --------------------------------------------------------------------------------------------------

/// One job's life, as a process does what it likes with it.
async fn live(
    valve: Valve,
    clock: TokioClock,
    mut rng: fastrand::Rng,
    log: Arc<Mutex<Vec<(Moment, usize, u64)>>>,
) {
    sleep(ms(rng.u64(0..8_000))).await;
    let tenant = rng.usize(0..4);
    let cost = if rng.u8(0..10) == 0 { rng.u64(5..=10) } else { rng.u64(1..=2) };
    let patience = [Duration::ZERO, ms(rng.u64(1..3_000)), HOUR][rng.usize(0..3)];
    let job = of(&tenant.to_string()).cost("tokens", cost).priority(rng.i32(0..3)).timeout(patience);
    let start = clock.now();
    let acquiring = valve.acquire(job);
    // Some are dropped while they wait.
    let cut = if rng.u8(0..4) == 0 { ms(rng.u64(0..2_000)) } else { DAY };
    let Ok(result) = tokio::time::timeout(cut, acquiring).await else { return };
    let took = clock.now().since(start);
    match result {
        Ok(permit) => {
            log.lock().unwrap().push((clock.now(), tenant, cost));
            sleep(ms(rng.u64(0..300))).await;
            match rng.u8(0..3) {
                0 => drop(permit),
                1 => permit.release(Outcome::Success),
                _ => permit.release(Outcome::Throttled),
            }
        }
        Err(AcquireError::Timeout { timeout, .. }) => {
            assert_eq!(timeout, patience);
            assert!(took <= patience + SECOND, "it waited for {took:?} of {patience:?}");
        }
        Err(other) => panic!("{other:?}"),
    }
    assert!(patience > MINUTE || took <= patience + SECOND);
}

#[tokio::test(start_paused = true)]
async fn va_2_whatever_jobs_do_the_rules_hold_and_nobody_is_forgotten() {
    let first = fastrand::u64(..);
    println!("seeds from {first}");
    for seed in (0..12).map(|life| first.wrapping_add(life)) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let fleet = Fleet::new();
        let build = |index: u64| {
            let builder = builder(&fleet)
                .rule(Rule::token_bucket(6, SECOND).burst(10).named("tokens").scoped("tenant"))
                .rule(Rule::token_bucket(15, SECOND).named("all"))
                .concurrency(Concurrency::Global(4));
            match index {
                0 => builder.build(fleet.store.clone()).unwrap(),
                1 => builder.build(Remote::new(&fleet, Wire::Short)).unwrap(),
                _ => builder.build(Remote::new(&fleet, Wire::Yields)).unwrap(),
            }
        };
        let processes: Vec<Valve> = (0..3).map(build).collect();
        let log = Arc::new(Mutex::new(Vec::new()));
        let lives: Vec<_> = (0..250)
            .map(|_| {
                let valve = processes[rng.usize(0..3)].clone();
                tokio::spawn(live(valve, fleet.clock, rng.fork(), Arc::clone(&log)))
            })
            .collect();
        let pauses = {
            let (valve, mut rng) = (processes[1].clone(), rng.fork());
            tokio::spawn(async move {
                for _ in 0..3 {
                    sleep(ms(rng.u64(500..3_000))).await;
                    valve.pause(ms(rng.u64(1..1_500))).await.unwrap();
                    if rng.bool() {
                        sleep(ms(rng.u64(1..800))).await;
                        valve.resume().await.unwrap();
                    }
                }
            })
        };
        for life in lives {
            // Nobody has to wait for longer than there are jobs, at the rate of the slowest rule.
            let life = tokio::time::timeout(MINUTE * 10, life).await;
            life.unwrap_or_else(|_| panic!("seed {seed}: a job hangs"))
                .unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        }
        pauses.await.unwrap();
        for valve in &processes {
            valve.flush().await;
            let stats = valve.stats();
            assert_eq!((stats.queued, stats.in_flight), (0, 0), "seed {seed}");
        }
        sleep(SECOND).await;
        assert_eq!(fleet.held(), 0, "seed {seed}");
        let log = log.lock().unwrap();
        for tenant in 0..4 {
            let spent: Vec<_> = log.iter().filter(|entry| entry.1 == tenant).collect();
            for (from, first) in spent.iter().enumerate() {
                let mut sum = 0;
                for entry in spent.iter().skip(from) {
                    sum += entry.2;
                    let span = u64::try_from(entry.0.since(first.0).as_millis()).unwrap();
                    assert!(sum * 1_000 <= 10_000 + 6 * span, "seed {seed}: {sum} within {span} ms");
                }
            }
        }
    }
}
