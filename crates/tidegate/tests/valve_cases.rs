//! What went wrong for people with other tools, as experiments on the valve: inputs, then the right result.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tidegate::{
    AcquireError, Capability, Concurrency, Job, LastCause, MemoryStore, OnSuperseded, Operators, Outcome,
    Permit, Release, Rule, Store, StoreError, Valve, ValveBuilder,
    clock::{Clock, Pace, Sleep},
    contract::{
        AcquireRequest, Costs, DriverId, Id, Identity, Line, Member, Name, Owner, Policy,
        Release as StoreRelease, ScopedJob, ScopedRequest, Settlement, time::Moment,
    },
};
use tokio::time::{advance, sleep};

#[path = "support/asks.rs"]
mod asks;
#[path = "support/fleet.rs"]
mod fleet;

use asks::Asks;
use fleet::{Fleet, ID, Remote, Troubles, Wire, id, ms, ready, settled, until};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);

fn builder(fleet: &Fleet) -> ValveBuilder {
    Valve::builder(ID).clock(fleet.clock)
}

fn process(fleet: &Fleet, rule: Rule) -> Valve {
    builder(fleet).rule(rule).build(fleet.store.clone()).unwrap()
}

async fn try_one(valve: &Valve) -> Result<Permit, AcquireError> {
    valve.try_acquire(Job::new()).await
}

/// How many of so many tries are let in.
async fn admitted(valve: &Valve, tries: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..tries {
        match try_one(valve).await {
            Ok(_) => admitted += 1,
            Err(AcquireError::Timeout { last: LastCause::Rate, .. }) => {}
            Err(other) => panic!("{other:?}"),
        }
    }
    admitted
}

#[track_caller]
fn hint(result: Result<Permit, AcquireError>) -> Duration {
    match result {
        Err(AcquireError::Timeout { last: LastCause::Rate, hint: Some(hint), .. }) => hint,
        other => panic!("no denial with a hint: {other:?}"),
    }
}

/// A clock that a test sets.
#[derive(Clone, Default)]
struct Hand(Arc<AtomicU64>);

impl Hand {
    fn advance(&self, by: Duration) {
        self.0.fetch_add(u64::try_from(by.as_micros()).unwrap(), Ordering::SeqCst);
    }
}

impl Clock for Hand {
    fn now(&self) -> Moment {
        Moment::from_millis(1_000_000).plus(Duration::from_micros(self.0.load(Ordering::SeqCst)))
    }

    fn sleep_until(&self, _: Moment) -> Sleep {
        Box::pin(std::future::pending())
    }

    fn pace(&self) -> Pace {
        Pace::Set
    }
}

#[tokio::test(start_paused = true)]
async fn case_1_two_hundred_at_one_instant_from_eight_processes_are_five() {
    let fleet = Fleet::new();
    let rule = || Rule::sliding_window(5, SECOND);
    let processes: Vec<Valve> = (0..8)
        .map(|index| match index % 2 {
            0 => process(&fleet, rule()),
            _ => builder(&fleet).rule(rule()).build(Remote::new(&fleet, Wire::Yields)).unwrap(),
        })
        .collect();
    let start = fleet.now();
    let tries: Vec<_> = (0..200)
        .map(|index| {
            let valve = processes[index % 8].clone();
            tokio::spawn(async move { try_one(&valve).await.is_ok() })
        })
        .collect();
    let mut admitted = 0;
    for tried in tries {
        admitted += usize::from(tried.await.unwrap());
    }
    assert_eq!((admitted, fleet.now()), (5, start));
    assert_eq!(fleet.snapshot().rules[0].level, Some(0), "5 of 5 are used");
    advance(ms(999)).await;
    assert!(try_one(&processes[1]).await.is_err());
    advance(ms(1)).await;
    assert!(try_one(&processes[1]).await.is_ok());
}

#[test]
fn case_1_two_hundred_from_eight_threads_are_five() {
    let store = MemoryStore::new();
    let admitted = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                let rule = Rule::sliding_window(5, Duration::from_secs(3_600));
                let valve = Valve::builder(ID).rule(rule).build(store.clone()).unwrap();
                for _ in 0..25 {
                    let granted = runtime.block_on(try_one(&valve)).is_ok();
                    admitted.fetch_add(usize::from(granted), Ordering::SeqCst);
                }
            });
        }
    });
    assert_eq!(admitted.into_inner(), 5);
}

#[tokio::test(start_paused = true)]
async fn case_2_a_bucket_never_snaps_to_full() {
    let fleet = Fleet::new();
    let valve = process(&fleet, Rule::token_bucket(3, SECOND));
    let mut at = Vec::new();
    for tick in 0..200_u64 {
        if try_one(&valve).await.is_ok() {
            at.push(tick * 100);
        }
        advance(ms(100)).await;
    }
    for (first, from) in at.iter().enumerate() {
        for (last, to) in at.iter().enumerate().skip(first) {
            let (admitted, span) = ((last - first + 1) as u64, to - from);
            assert!(admitted * 1_000 <= 3_000 + 3 * span, "{admitted} within {span} ms");
        }
    }
    assert!((62..=63).contains(&at.len()), "{} in 20 s", at.len());
}

#[tokio::test(start_paused = true)]
async fn case_8_every_attempt_of_a_retry_is_admitted_on_its_own() {
    let fleet = Fleet::new();
    let valve = process(&fleet, Rule::fixed_window(3, MINUTE));
    let calls = Mutex::new(Vec::new());
    let start = fleet.now();
    let mut attempts = 0;
    while attempts < 7 {
        attempts += 1;
        let call = || async {
            calls.lock().unwrap().push(fleet.now().since(start));
            Err::<(), _>("503")
        };
        let result = valve.run(Job::new().timeout(DAY), call).await;
        assert!(result.is_err());
    }
    let (zero, one, two) = (Duration::ZERO, MINUTE, MINUTE * 2);
    assert_eq!(*calls.lock().unwrap(), [zero, zero, zero, one, one, one, two]);
}

#[tokio::test(start_paused = true)]
async fn case_12_six_waiters_go_one_each_second_and_none_hangs() {
    let fleet = Fleet::new();
    let rule = || Rule::token_bucket(1, SECOND);
    let valve = process(&fleet, rule());
    let start = fleet.now();
    let waiting: Vec<_> = (0..6)
        .map(|_| {
            let (valve, clock) = (valve.clone(), fleet.clock);
            tokio::spawn(async move {
                drop(valve.acquire(Job::new()).await.unwrap());
                clock.now().since(start)
            })
        })
        .collect();
    for (second, done) in (0..).zip(waiting) {
        assert_eq!(done.await.unwrap(), SECOND * second);
    }
    // The same from six processes, which come back spread by up to a second.
    let fleet = Fleet::new();
    let start = fleet.now();
    let waiting: Vec<_> = (0..6)
        .map(|index| {
            let valve = match index % 2 {
                0 => process(&fleet, rule()),
                _ => builder(&fleet).rule(rule()).build(Remote::new(&fleet, Wire::Yields)).unwrap(),
            };
            let clock = fleet.clock;
            tokio::spawn(async move {
                drop(valve.acquire(Job::new().timeout(MINUTE)).await.unwrap());
                clock.now().since(start)
            })
        })
        .collect();
    let mut done = Vec::new();
    for waits in waiting {
        done.push(waits.await.unwrap());
    }
    done.sort();
    for (turn, at) in (0..).zip(&done) {
        assert!(*at >= SECOND * turn && *at <= SECOND * (2 * turn + 1), "{done:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn case_14_the_same_options_a_second_time_change_nothing() {
    let fleet = Fleet::new();
    let valve = || process(&fleet, Rule::token_bucket(1, SECOND).burst(5));
    let first = valve();
    assert_eq!(admitted(&first, 10).await, 5);
    advance(ms(2_500)).await;
    let second = valve();
    assert_eq!(admitted(&second, 10).await, 2);
    let third = valve();
    assert_eq!(admitted(&third, 10).await, 0, "it is not full because it is new");
    advance(SECOND * 5).await;
    drop(valve());
    assert_eq!(admitted(&first, 10).await, 5);
    assert_eq!(admitted(&valve(), 10).await, 0);
}

#[tokio::test(start_paused = true)]
async fn case_15_an_older_worker_adopts_the_newer_policy_or_is_told() {
    for on_superseded in [OnSuperseded::Adopt, OnSuperseded::Refuse] {
        let fleet = Fleet::new();
        let build = |limit, revision| {
            let builder = builder(&fleet).rule(Rule::fixed_window(limit, SECOND)).revision(revision);
            builder.on_superseded(on_superseded).build(fleet.store.clone()).unwrap()
        };
        let a = build(10, 1);
        assert_eq!(admitted(&a, 30).await, 10);
        let b = build(25, 2);
        drop(try_one(&b).await);
        advance(SECOND).await;
        let restarted = build(10, 1);
        for worker in [&a, &restarted] {
            match on_superseded {
                OnSuperseded::Adopt => assert_eq!(admitted(worker, 40).await, 25),
                OnSuperseded::Refuse => {
                    let error = try_one(worker).await.map(drop).unwrap_err();
                    assert_eq!(error, AcquireError::PolicySuperseded { id: id(), own: 1, pinned: 2 });
                    assert_eq!(error.code(), "policy_superseded");
                }
            }
            advance(SECOND).await;
        }
        assert_eq!(admitted(&b, 40).await, 25, "it stays 25");
    }
}

/// The memory of this process, in bytes.
fn resident() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: u64 = statm.split_whitespace().nth(1).expect("resident pages").parse().expect("a number");
    pages * 4_096
}

fn member(id: &str, policy: Policy) -> Member {
    Member {
        id: Id::new(id).unwrap(),
        driver: DriverId(7),
        owner: Owner::new("test").unwrap(),
        policy: Arc::new(policy),
        on_superseded: OnSuperseded::Adopt,
        initial_limit: 1,
    }
}

/// How many users come at once, and how often so many others do: a million of them in an optimized build.
const USERS: usize = if cfg!(debug_assertions) { 60_000 } else { 250_000 };
const WAVES: usize = 4;

#[tokio::test]
async fn case_18_a_million_identities_leave_no_memory_behind() {
    const WINDOW: Duration = SECOND;
    let clock = Hand::default();
    let store = MemoryStore::with_clock(clock.clone());
    let rule = || Rule::sliding_window(5, WINDOW).scoped("user");
    let valve = Valve::builder(ID).clock(clock.clone()).rule(rule()).build(store.clone()).unwrap();
    let member = member(ID, Policy::draft().rule(rule()).check().unwrap());
    let scope = Name::new("scope", "user").unwrap();
    let identities = || {
        let snapshot = ready(Operators::snapshot(&store, &id())).unwrap().body.expect("in use");
        snapshot.rules[0].identities.unwrap()
    };
    let begin = resident();
    let (mut full, mut empty) = (Vec::new(), Vec::new());
    for wave in 0..WAVES {
        // A part through the valve, and the rest as a driver asks for many: 125 in a request.
        let through = USERS / 20;
        for user in 0..through {
            drop(valve.try_acquire(Job::new().scope("user", format!("{wave}.{user}"))).await.unwrap());
        }
        for batch in 0..(USERS - through) / 125 {
            let jobs = (0..125).map(|job| {
                let identity = Identity::new(format!("{wave}:{batch}:{job}")).unwrap();
                ScopedJob { costs: Costs::default(), scopes: vec![(scope.clone(), identity)] }
            });
            let request = ScopedRequest { class: None, jobs: jobs.collect(), line: Line::default() };
            let reply = ready(store.acquire_scoped(&member, &request)).unwrap().body;
            assert_eq!(reply.grants.len(), 125);
        }
        assert_eq!(identities(), USERS);
        full.push(resident().saturating_sub(begin) >> 20);
        clock.advance(WINDOW * 2);
        // Sweeping takes many calls, each of which does little.
        let mut calls = 0;
        while identities() > 0 {
            calls += 1;
            assert!(calls < USERS, "{} are left", identities());
        }
        assert!(calls > 100, "all of it went in {calls} calls");
        empty.push(resident().saturating_sub(begin) >> 20);
    }
    println!("MiB with all: {full:?}, and after each wave: {empty:?}");
    // The allocator keeps much of what was freed, but that is used again.
    assert!(full[WAVES - 1] < full[0] * 3 / 2 + 16, "it grows: {full:?}");
    assert!(empty[WAVES - 1] < empty[0] * 3 / 2 + 16, "it grows: {empty:?}");
    drop(valve.try_acquire(Job::new().scope("user", "0.1").cost_each(5)).await.expect("all is as new"));
}

#[tokio::test]
async fn case_18_an_idle_store_empties_itself() {
    let store = MemoryStore::new();
    let rule = Rule::fixed_window(1, ms(50)).scoped("user");
    let valve = Valve::builder(ID).rule(rule).build(store.clone()).unwrap();
    for user in 0..1_000 {
        drop(valve.try_acquire(Job::new().scope("user", format!("{user}"))).await.unwrap());
    }
    let identities = || {
        // Looking sweeps as well, but only a part.
        let snapshot = ready(Operators::snapshot(&store, &id())).unwrap().body.expect("in use");
        snapshot.rules[0].identities.unwrap()
    };
    // Nobody calls while it sweeps: only the last look does.
    sleep(ms(1_500)).await;
    assert_eq!(identities(), 0);
}

#[tokio::test(start_paused = true)]
async fn case_23_twenty_thousand_calls_in_a_tenth_of_a_second_are_the_burst_and_a_tenth_of_the_rate() {
    let fleet = Fleet::new();
    let valve = process(&fleet, Rule::token_bucket(6_000, SECOND));
    let mut all = 0;
    for _ in 0..100 {
        all += admitted(&valve, 200).await;
        advance(ms(1)).await;
    }
    assert!((6_594..=6_601).contains(&all), "{all}");
}

/// A bucket in exact rational arithmetic: its level in parts of an interval.
struct Exact {
    limit: u128,
    interval_ms: u128,
    burst: u128,
    level: u128,
}

impl Exact {
    fn pass(&mut self, ms: u64) {
        let full = self.burst * self.interval_ms;
        self.level = (self.level + u128::from(ms) * self.limit).min(full);
    }

    /// Lets a cost in, or says how many milliseconds are missing.
    fn take(&mut self, cost: u64) -> Result<(), u64> {
        let cost = u128::from(cost) * self.interval_ms;
        match cost.checked_sub(self.level) {
            None | Some(0) => {
                self.level -= cost;
                Ok(())
            }
            Some(short) => Err(u64::try_from(short.div_ceil(self.limit)).unwrap()),
        }
    }
}

#[tokio::test]
async fn case_23_a_grid_of_rates_and_bursts_agrees_with_exact_arithmetic() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut rng = fastrand::Rng::with_seed(seed);
    let rates = [
        (1, DAY),
        (1, MINUTE * 60),
        (7, MINUTE * 60),
        (13, MINUTE),
        (500, MINUTE),
        (3, SECOND),
        (999, SECOND),
        (1_000_000, SECOND),
        (200_000, MINUTE),
        (1, ms(7)),
    ];
    for (limit, interval) in rates {
        for burst in [1, 2, 3, 1_000, 999_983, 1_000_000_000] {
            let clock = Hand::default();
            let store = MemoryStore::with_clock(clock.clone());
            let rule = Rule::token_bucket(limit, interval).burst(burst);
            let built = Valve::builder(ID).clock(clock.clone()).rule(rule).build(store);
            let interval_ms = interval.as_millis();
            let longest = 11 * u128::from(burst) * interval_ms / u128::from(limit);
            let Ok(valve) = built else {
                assert!(longest > 1 << 52, "{built:?}");
                continue;
            };
            assert!(longest < 1 << 53, "{valve:?} cannot stay exact");
            let level = u128::from(burst) * interval_ms;
            let mut exact = Exact { limit: limit.into(), interval_ms, burst: burst.into(), level };
            let mut wait = None;
            for step in 0..60 {
                let cost = if rng.bool() { rng.u64(0..=burst) } else { rng.u64(0..=burst.min(3)) };
                let case = format!("{limit} per {interval:?}, burst {burst}, step {step}, cost {cost}");
                let said = valve.try_acquire(Job::new().cost_each(cost)).await;
                match exact.take(cost) {
                    Ok(()) => drop(said.expect(&case)),
                    Err(missing) => {
                        assert_eq!(hint(said), ms(missing), "{case}");
                        wait = Some(missing);
                    }
                }
                let pass = match rng.u8(0..3) {
                    0 => 0,
                    1 => rng.u64(0..2 * u64::try_from(interval_ms).unwrap()),
                    _ => wait.take().map_or(1, |wait| wait - u64::from(rng.bool())),
                };
                // A store's clock ends after some hundred years.
                let pass = pass.min(50 * 86_400_000);
                clock.advance(ms(pass));
                exact.pass(pass);
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn case_25_a_hint_is_just_long_enough_a_thousand_times() {
    let fleet = Fleet::new();
    let valve = process(&fleet, Rule::token_bucket(5, SECOND).burst(1));
    drop(try_one(&valve).await.unwrap());
    for turn in 0..1_000_u64 {
        // Comes at odd moments.
        advance(ms(turn * 7 % 180)).await;
        let wait = hint(try_one(&valve).await);
        assert!(wait > Duration::ZERO && wait <= ms(200), "{wait:?}");
        let early = ms(20).min(wait - ms(1));
        advance(wait - early).await;
        if !early.is_zero() {
            assert_eq!(hint(try_one(&valve).await), early);
            advance(early).await;
        }
        drop(try_one(&valve).await.unwrap_or_else(|error| panic!("turn {turn}: {error:?}")));
    }
}

#[tokio::test(start_paused = true)]
async fn case_26_an_impossible_cost_is_refused_at_once_and_spends_nothing() {
    for remote in [false, true] {
        let fleet = Fleet::new();
        let builder = builder(&fleet).rule(Rule::token_bucket(1, SECOND).burst(3));
        let valve = match remote {
            true => builder.build(Remote::new(&fleet, Wire::Yields)).unwrap(),
            false => builder.build(fleet.store.clone()).unwrap(),
        };
        let start = fleet.now();
        let error = valve.acquire(Job::new().cost_each(4)).await.map(drop).unwrap_err();
        let AcquireError::CostExceedsLimit { rule, cost, most, .. } = &error else { panic!("{error:?}") };
        assert_eq!((rule.as_str(), *cost, *most), ("token_bucket:1000", 4, 3));
        assert_eq!((error.code(), fleet.now()), ("cost_exceeds_limit", start));
        drop(valve.try_acquire(Job::new().cost_each(3)).await.expect("nothing was spent"));
    }
}

#[tokio::test(start_paused = true)]
async fn case_27_a_wait_of_thirty_days_is_thirty_days() {
    const MONTH: Duration = Duration::from_secs(30 * 86_400);
    for remote in [false, true] {
        let fleet = Fleet::new();
        let builder = builder(&fleet).rule(Rule::token_bucket(1, MONTH)).max_pause(DAY * 366);
        let valve = match remote {
            true => builder.build(Remote::new(&fleet, Wire::Yields)).unwrap(),
            false => builder.build(fleet.store.clone()).unwrap(),
        };
        drop(try_one(&valve).await.unwrap());
        let start = fleet.now();
        let gives_up = valve.acquire(Job::new().timeout(MONTH - ms(1)));
        let gives_up = async { (gives_up.await.map(drop), fleet.now().since(start)) };
        let has_no_end = valve.acquire(Job::new().timeout(Duration::MAX));
        let has_no_end = async { (has_no_end.await.map(drop), fleet.now().since(start)) };
        let ((failed, gave_up_at), (granted, granted_at)) = tokio::join!(gives_up, has_no_end);
        assert_eq!((failed.unwrap_err().code(), gave_up_at), ("timeout", MONTH - ms(1)));
        assert_eq!((granted, granted_at), (Ok(()), MONTH));
        if !remote {
            let pause = valve.pause(MONTH).await.unwrap();
            assert_eq!((pause.left, pause.cut), (MONTH, false));
            let (permit, took) = fleet.timed(valve.acquire(Job::new().timeout(DAY * 366))).await;
            drop(permit.unwrap());
            assert!(took >= MONTH && took <= MONTH + SECOND * 2, "a pause: {took:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn case_35_a_pause_of_less_than_a_millisecond_is_one() {
    let fleet = Fleet::new();
    let valve = process(&fleet, Rule::token_bucket(100, SECOND));
    for asked in [Duration::from_nanos(1), Duration::from_micros(300), ms(1)] {
        let pause = valve.pause(asked).await.unwrap();
        assert_eq!((pause.left, pause.cut), (ms(1), false), "{asked:?}");
        let error = try_one(&valve).await.map(drop).unwrap_err();
        assert!(matches!(error, AcquireError::Timeout { last: LastCause::Pause, .. }), "{error:?}");
        advance(ms(2)).await;
        settled().await;
        drop(try_one(&valve).await.expect("it is over"));
    }
    // What the remote asks for with a throttled call rests as long, rounded up.
    let semaphore = tidegate::AdaptiveSemaphore::builder("other", 1).clock(fleet.clock);
    let semaphore = semaphore.build(fleet.store.clone()).unwrap();
    let lease = semaphore.try_acquire().await.unwrap();
    lease.release(Release::throttled_for(Duration::from_nanos(1)));
    assert!(semaphore.try_acquire().await.is_err(), "the slot rests");
    advance(ms(1)).await;
    drop(semaphore.try_acquire().await.expect("not longer than it was asked for"));
}

#[tokio::test(start_paused = true)]
async fn case_35_numbers_beyond_two_to_the_fifty_third_are_refused_or_right() {
    const MOST: u64 = 1_000_000_000_000;
    let fleet = Fleet::new();
    for bad in [MOST + 1, 1 << 53, (1 << 53) + 1, u64::MAX] {
        for rule in [
            Rule::token_bucket(bad, SECOND),
            Rule::fixed_window(bad, SECOND),
            Rule::sliding_window(bad, SECOND),
            Rule::token_bucket(5, SECOND).burst(bad),
        ] {
            let error = builder(&fleet).rule(rule).build(MemoryStore::new()).map(drop).unwrap_err();
            assert!(error.option().starts_with("rule."), "{error:?}");
            assert_eq!(
                (error.invalid.given.as_str(), error.invalid.allowed.as_str()),
                (&*bad.to_string(), "1 to 10^12")
            );
        }
    }
    let troubles = Troubles::default();
    let rule = Rule::sliding_window(MOST, DAY).named("tokens");
    let valve = builder(&fleet).rule(rule).on_error(troubles.note()).build(fleet.store.clone()).unwrap();
    let level = || fleet.snapshot().rules[0].level.unwrap();
    for bad in [MOST + 1, 1 << 53, u64::MAX] {
        let error = valve.acquire(Job::new().cost_each(bad)).await.map(drop).unwrap_err();
        assert!(matches!(error, AcquireError::CostExceedsLimit { cost, most: MOST, .. } if cost == bad));
    }
    let permit = valve.acquire(Job::new().cost_each(MOST - 1)).await.unwrap();
    assert_eq!(level(), 1);
    drop(permit.settle("tokens", u64::MAX));
    assert_eq!((level(), troubles.codes()), (1, vec!["invalid_options"]));
    // Ten windows of debt and the one that is spent: each number on the way is exact.
    for turn in 1..=11 {
        let permit = valve.acquire(Job::new().cost_each(0)).await.unwrap();
        drop(permit.settle("tokens", MOST - 1));
        assert_eq!(
            level(),
            1 - i64::try_from(turn * (MOST - 1)).unwrap().min(10_000_000_000_001),
            "turn {turn}"
        );
    }
    drop(valve.acquire(Job::new().cost_each(0)).await.unwrap().observe("tokens", u64::MAX, Duration::MAX));
    assert_eq!(level(), -10_000_000_000_000);
}

#[tokio::test(start_paused = true)]
async fn case_35_ten_thousand_items_in_one_request_are_refused_or_served_in_parts() {
    let fleet = Fleet::new();
    let store = &fleet.store;
    let policy = || Policy::draft().rule(Rule::fixed_window(100_000, SECOND)).check().unwrap();
    let refused = |error: StoreError, allowed: &str| match error {
        StoreError::Invalid(invalid) => {
            assert_eq!((invalid.given.as_str(), invalid.allowed.as_str()), ("10000", allowed));
        }
        other => panic!("{other:?}"),
    };
    let member_of = member("request", policy());
    let jobs = vec![tidegate::contract::Job::default(); 10_000];
    let request = AcquireRequest { class: None, jobs, line: Line::default() };
    refused(ready(store.acquire(&member_of, &request)).unwrap_err(), "1 to 512");
    let scoped = Policy::draft().rule(Rule::fixed_window(100_000, SECOND).scoped("user")).check().unwrap();
    let scopes = vec![(Name::new("scope", "user").unwrap(), Identity::new("one").unwrap())];
    let jobs = vec![ScopedJob { costs: Costs::default(), scopes }; 10_000];
    let request = ScopedRequest { class: None, jobs, line: Line::default() };
    refused(ready(store.acquire_scoped(&member("scoped", scoped), &request)).unwrap_err(), "1 to 128");
    let leased = builder(&fleet).concurrency(Concurrency::Global(5)).build(store.clone()).unwrap();
    let held = try_one(&leased).await.unwrap();
    let release =
        StoreRelease { token: held.token().unwrap(), outcome: Outcome::Success, retry_after_ms: None };
    let member_of_lease = member(ID, Policy::draft().check().unwrap());
    refused(ready(store.release(&member_of_lease, &vec![release; 10_000])).unwrap_err(), "at most 1000");
    assert_eq!(fleet.held(), 1);
    let settlement = Settlement {
        rule: "fixed_window:1000".into(),
        identity: None,
        granted_at: fleet.now(),
        cost: 1,
        actual: 2,
    };
    refused(ready(store.settle(&member_of, &vec![settlement; 10_000])).unwrap_err(), "at most 1000");

    // A valve with as many jobs asks in parts, and serves them all.
    for scoped in [false, true] {
        let fleet = Fleet::new();
        let rule = Rule::fixed_window(100_000, SECOND);
        let rule = if scoped { rule.scoped("user") } else { rule };
        let asks = Asks::over(Remote::new(&fleet, Wire::Yields).without(Capability::Sync), &fleet);
        let valve = builder(&fleet).rule(rule).max_queue(20_000).build(asks.clone()).unwrap();
        let waiting: Vec<_> = (0..10_000)
            .map(|user| {
                let valve = valve.clone();
                let job = if scoped { Job::new().scope("user", format!("{user}")) } else { Job::new() };
                tokio::spawn(async move { valve.acquire(job).await.map(drop) })
            })
            .collect();
        until(|| valve.stats().granted == 10_000).await;
        for job in waiting {
            job.await.unwrap().unwrap();
        }
        let asked = asks.take();
        let most = if scoped { 128 } else { 512 };
        assert_eq!(asked.iter().map(|ask| ask.jobs).sum::<usize>(), 10_000);
        assert!(asked.iter().all(|ask| ask.jobs <= most), "{asked:?}");
        assert!(asked.iter().any(|ask| ask.jobs == most), "{asked:?}");
    }
}
