//! What cannot be taken is refused whole, nothing that comes from outside makes anything panic, odd names stay apart, and
//! code of the user's own can do what it likes.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::{
    error::Error,
    fmt::Debug,
    future::Future,
    panic::panic_any,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use tidegate::{
    Acquire, AcquireError, AcquireResult, Adaptive, AdaptiveSemaphore, Aimd, BuildError, Capability, Class,
    Concurrency, Direction, Growth, Invalid, Job, LastCause, Lease, MemoryStore, Metrics, Outcome, Permit,
    Recorder, Release, Rule, SafeStart, SemaphoreBuilder, Store, StoreError, Trouble, Valve, ValveBuilder,
    clock::{Clock, Pace, Sleep},
    contract::{
        self, Bound, DriverId, Exchange, Fraction, HandOver, Id, IdModel, Identity, Limit, Line, Member,
        Name, Observation, OnSuperseded, Owner, Policy, Queue, Renewal, Restore, RuleKey, ScopedJob,
        ScopedRequest, Sequence, Settlement, Snapshot, Token,
        limit::{LimitPolicy, LimitState},
        policy::Draft,
        rule::{Observed, RuleState},
        share,
        time::Moment,
    },
};

#[path = "support/fleet.rs"]
mod fleet;

use fleet::{Fleet, ID, Mode, Remote, Troubles, Wire, id, ms, poll_once, ready, settled};

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);
const NANO: Duration = Duration::from_nanos(1);

// ---- BI-1: refused before anything changes -----------------------------------------------------------------------------

/// A refusal names the option, shows what was given and says what is allowed.
#[track_caller]
fn says(invalid: &Invalid, option: &str, given: &str) {
    assert_eq!(invalid.option, option);
    assert_eq!(invalid.given, given, "{option}");
    assert!(!invalid.allowed.is_empty(), "{option}");
}

/// A change of a builder that is to be taken or refused.
struct Trial<B> {
    option: &'static str,
    given: String,
    set: fn(B) -> B,
}

fn trial<B>(option: &'static str, given: impl Debug, set: fn(B) -> B) -> Trial<B> {
    Trial { option, given: format!("{given:?}"), set }
}

fn aimd(of: fn(Aimd) -> Aimd) -> Aimd {
    of(Aimd::new())
}

fn of_semaphore(
    option: &'static str,
    given: impl Debug,
    set: fn(SemaphoreBuilder) -> SemaphoreBuilder,
) -> Trial<SemaphoreBuilder> {
    trial(option, given, set)
}

fn of_valve(
    option: &'static str,
    given: impl Debug,
    set: fn(ValveBuilder) -> ValveBuilder,
) -> Trial<ValveBuilder> {
    trial(option, given, set)
}

/// What both builders refuse.
macro_rules! wrong_for_both {
    ($trial:ident) => {
        vec![
            $trial("owner", "", |b| b.owner("")),
            $trial("owner", "x".repeat(129), |b| b.owner("x".repeat(129))).cut(),
            $trial("owner", "a\nb", |b| b.owner("a\nb")),
            $trial("revision", 2_147_483_648_u32, |b| b.revision(2_147_483_648)),
            $trial("op_timeout", Duration::from_micros(999), |b| b.op_timeout(Duration::from_micros(999))),
            $trial("op_timeout", DAY * 366 + NANO, |b| b.op_timeout(DAY * 366 + NANO)),
            $trial("lease_ttl", ms(100) - NANO, |b| b.lease_ttl(ms(100) - NANO)),
            $trial("lease_ttl", DAY + NANO, |b| b.lease_ttl(DAY + NANO)),
            $trial("lease_ttl", Duration::MAX, |b| b.lease_ttl(Duration::MAX)),
            $trial("class", "a b", |b| b.class(Class::unreserved("a b"))),
            $trial("class", "twice", |b| {
                b.class(Class::unreserved("twice")).class(Class::reserved("twice", 0.1))
            }),
            $trial("class a: share", 0.0, |b| b.class(Class::reserved("a", 0.0))),
            $trial("class a: share", 1.0, |b| b.class(Class::reserved("a", 1.0))),
            $trial("class a: share", f64::NAN, |b| b.class(Class::reserved("a", f64::NAN))),
            $trial("class a: share", f64::INFINITY, |b| b.class(Class::reserved("a", f64::INFINITY))),
            $trial("classes: sum of shares", 1.0, |b| {
                b.class(Class::reserved("a", 0.5)).class(Class::reserved("b", 0.5))
            }),
            $trial("classes", 17, |b| (0..17).fold(b, |b, at| b.class(Class::unreserved(format!("c{at}"))))),
            $trial("metrics.prefix", "", |b| b.metrics(Metrics::new().prefix(""))),
            $trial("metrics.prefix", "two words", |b| b.metrics(Metrics::new().prefix("two words"))),
            $trial("metrics.label", "", |b| b.metrics(Metrics::new().label("", "x"))),
            $trial("metrics.label", "id", |b| b.metrics(Metrics::new().label("id", "x"))),
            $trial("metrics.label", "type", |b| b.metrics(Metrics::new().label("type", "x"))),
            $trial("metrics.label", "a", |b| b.metrics(Metrics::new().label("a", "x").label("a", "y"))),
        ]
    };
}
fn wrong_for_a_semaphore() -> Vec<Trial<SemaphoreBuilder>> {
    let mut trials = vec![
        of_semaphore("min_limit", 0, |b| b.min_limit(0)),
        of_semaphore("min_limit", 1_001, |b| b.min_limit(1_001)),
        of_semaphore("max_limit", 0, |b| b.max_limit(0)),
        of_semaphore("max_limit", 1_000_001, |b| b.max_limit(1_000_001)),
        of_semaphore("initial_limit", 10, |b| b.max_limit(9)),
        of_semaphore("initial_limit", 10, |b| b.min_limit(11)),
        of_semaphore("aimd.decrease_factor", 0.0, |b| b.aimd(aimd(|a| a.decrease_factor(0.0)))),
        of_semaphore("aimd.decrease_factor", 1.0, |b| b.aimd(aimd(|a| a.decrease_factor(1.0)))),
        of_semaphore("aimd.decrease_factor", f64::NAN, |b| b.aimd(aimd(|a| a.decrease_factor(f64::NAN)))),
        of_semaphore("aimd.decrease_factor", -0.5, |b| b.aimd(aimd(|a| a.decrease_factor(-0.5)))),
        of_semaphore("aimd.increase_step", 0, |b| b.aimd(aimd(|a| a.increase_step(0)))),
        of_semaphore("aimd.increase_step", 1_000_001, |b| b.aimd(aimd(|a| a.increase_step(1_000_001)))),
        of_semaphore("aimd.window", Duration::ZERO, |b| b.aimd(aimd(|a| a.window(Duration::ZERO)))),
        of_semaphore("aimd.window", DAY * 366 + NANO, |b| b.aimd(aimd(|a| a.window(DAY * 366 + NANO)))),
        of_semaphore("aimd.cooldown", Duration::ZERO, |b| b.aimd(aimd(|a| a.cooldown(Duration::ZERO)))),
        of_semaphore("aimd.cooldown", Duration::MAX, |b| b.aimd(aimd(|a| a.cooldown(Duration::MAX)))),
        of_semaphore("aimd.tolerance", 1.0, |b| b.aimd(aimd(|a| a.tolerance(1.0)))),
        of_semaphore("aimd.tolerance", -0.1, |b| b.aimd(aimd(|a| a.tolerance(-0.1)))),
        of_semaphore("throttle_rest", DAY + NANO, |b| b.throttle_rest(DAY + NANO)),
        of_semaphore("fallback_local", 0, |b| b.fallback_local(0)),
        of_semaphore("fallback_local", 1_000_001, |b| b.fallback_local(1_000_001)),
    ];
    trials.extend(wrong_for_both!(of_semaphore));
    trials
}

fn wrong_for_a_valve() -> Vec<Trial<ValveBuilder>> {
    let mut trials = vec![
        of_valve("max_pause", Duration::ZERO, |b| b.max_pause(Duration::ZERO)),
        of_valve("max_pause", DAY * 366 + NANO, |b| b.max_pause(DAY * 366 + NANO)),
        of_valve("max_queue", 0, |b| b.max_queue(0)),
        of_valve("concurrency", 0, |b| b.concurrency(Concurrency::Local(0))),
        of_valve("concurrency", 1_000_001, |b| b.concurrency(Concurrency::Local(1_000_001))),
        of_valve("limit", 0, |b| b.concurrency(Concurrency::Global(0))),
        of_valve("limit", 1_000_001, |b| b.concurrency(Concurrency::Global(1_000_001))),
        of_valve("initial_limit", 0, |b| b.concurrency(Concurrency::Adaptive(Adaptive::new(0)))),
        of_valve("rule.limit", 0, |b| b.rule(Rule::token_bucket(0, MINUTE))),
        of_valve("rule.limit", 1_000_000_000_001_u64, |b| {
            b.rule(Rule::fixed_window(1_000_000_000_001, MINUTE))
        }),
        of_valve("rule.interval", Duration::ZERO, |b| b.rule(Rule::sliding_window(5, Duration::ZERO))),
        of_valve("rule.interval", Duration::from_micros(1_500), |b| {
            b.rule(Rule::sliding_window(5, Duration::from_micros(1_500)))
        }),
        of_valve("rule.interval", Duration::MAX, |b| b.rule(Rule::sliding_window(5, Duration::MAX))),
        of_valve("rule.burst", 0, |b| b.rule(Rule::token_bucket(5, MINUTE).burst(0))),
        of_valve("rule.burst", u64::MAX, |b| b.rule(Rule::token_bucket(5, MINUTE).burst(u64::MAX))),
        of_valve("rule.burst", 7, |b| b.rule(Rule::fixed_window(5, MINUTE).burst(7))),
        of_valve("rule.name", "", |b| b.rule(Rule::fixed_window(5, MINUTE).named(""))),
        of_valve("rule.name", "a:b", |b| b.rule(Rule::fixed_window(5, MINUTE).named("a:b"))),
        of_valve("rule.scope", "ten ant", |b| b.rule(Rule::fixed_window(5, MINUTE).scoped("ten ant"))),
        of_valve("rules", "fixed_window:60000", |b| {
            b.rule(Rule::fixed_window(5, MINUTE)).rule(Rule::fixed_window(6, MINUTE).scoped("tenant"))
        }),
        of_valve("rules", 17, |b| {
            (1..=17).fold(b, |b, seconds| b.rule(Rule::fixed_window(5, Duration::from_secs(seconds))))
        }),
        of_valve("fallback: limit", 0, |b| b.fallback_local(0)),
        of_valve("fallback: rule.limit", 0, |b| b.fallback_rule(Rule::token_bucket(0, MINUTE))),
    ];
    trials.extend(wrong_for_both!(of_valve));
    trials
}

impl<B> Trial<B> {
    /// What is given is too long to be shown whole.
    fn cut(mut self) -> Self {
        self.given = format!("{}…", self.given.chars().take(120).collect::<String>());
        self
    }
}

fn refused<T>(built: Result<T, BuildError>) -> BuildError {
    built.err().expect("a refusal")
}

#[test]
fn bi_1_a_semaphore_with_a_bad_option_is_not_built() {
    let store = MemoryStore::new();
    for Trial { option, given, set } in wrong_for_a_semaphore() {
        let error = refused(set(AdaptiveSemaphore::builder(ID, 10)).build(store.clone()));
        assert_eq!((error.id.as_str(), error.code(), error.option()), (ID, "invalid_options", option));
        says(&error.invalid, option, &given);
    }
    for bad in [0, 1_001] {
        let error = refused(AdaptiveSemaphore::builder(ID, bad).build(store.clone()));
        says(&error.invalid, "initial_limit", &bad.to_string());
    }
    assert_eq!(ready(store.operators().unwrap().ids(None, 10)).unwrap().body.items, [], "nothing was asked");
}

#[test]
fn bi_1_a_valve_with_a_bad_option_is_not_built() {
    let store = MemoryStore::new();
    for Trial { option, given, set } in wrong_for_a_valve() {
        // Classes need a bound, and it is the class that is wrong.
        let builder = Valve::builder(ID);
        let builder =
            if option.starts_with("class") { builder.concurrency(Concurrency::Global(5)) } else { builder };
        let error = refused(set(builder).build(store.clone()));
        assert_eq!((error.id.as_str(), error.code(), error.option()), (ID, "invalid_options", option));
        says(&error.invalid, option, &given);
    }
    let classes = refused(Valve::builder(ID).class(Class::unreserved("a")).build(store.clone()));
    says(&classes.invalid, "class", "\"a\"");
    assert_eq!(ready(store.operators().unwrap().ids(None, 10)).unwrap().body.items, [], "nothing was asked");
}

#[test]
fn bi_1_an_id_that_is_none_is_refused_by_both() {
    let long = "x".repeat(201);
    for bad in ["", "a{b", "a}b", "a\u{0}", "a\nb", "a\u{7f}", "\u{85}", &long] {
        let semaphore = refused(AdaptiveSemaphore::builder(bad, 10).build(MemoryStore::new()));
        let valve = refused(Valve::builder(bad).build(MemoryStore::new()));
        for error in [semaphore, valve] {
            assert_eq!((error.id.as_str(), error.option()), (bad, "id"));
        }
    }
}

/// The same bounds from within.
#[test]
fn bi_1_what_lies_just_within_the_bounds_is_taken() {
    let semaphore: [fn(SemaphoreBuilder) -> SemaphoreBuilder; 16] = [
        |b| b.min_limit(1).max_limit(1_000_000),
        |b| b.min_limit(10).max_limit(10),
        |b| b.aimd(aimd(|a| a.decrease_factor(0.000_001).increase_step(1))),
        |b| b.aimd(aimd(|a| a.decrease_factor(0.999_999).increase_step(1_000_000))),
        |b| b.aimd(aimd(|a| a.window(NANO).cooldown(NANO))),
        |b| b.aimd(aimd(|a| a.window(DAY * 366).cooldown(DAY * 366))),
        |b| b.aimd(aimd(|a| a.tolerance(0.999_999))),
        |b| b.throttle_rest(DAY),
        |b| b.throttle_rest(Duration::ZERO),
        |b| b.fallback_local(1),
        |b| b.fallback_local(1_000_000),
        |b| b.owner("x".repeat(128)).revision(2_147_483_647),
        |b| b.op_timeout(ms(1)),
        |b| b.op_timeout(DAY * 366),
        |b| {
            b.lease_ttl(ms(100)).class(Class::reserved("a", 0.000_001)).class(Class::reserved("b", 0.999_998))
        },
        |b| (0..16).fold(b, |b, at| b.class(Class::unreserved(format!("c{at}")))).lease_ttl(DAY),
    ];
    for set in semaphore {
        set(AdaptiveSemaphore::builder("x".repeat(200), 10)).build(MemoryStore::new()).unwrap();
    }
    let valve: [fn(ValveBuilder) -> ValveBuilder; 10] = [
        |b| b,
        |b| b.max_pause(ms(1)).max_queue(1),
        |b| b.max_pause(DAY * 366).max_queue(usize::MAX),
        |b| b.concurrency(Concurrency::Local(1_000_000)),
        |b| b.concurrency(Concurrency::Global(1_000_000)),
        |b| b.rule(Rule::fixed_window(1_000_000_000_000, DAY * 366)),
        |b| b.rule(Rule::sliding_window(1, ms(1)).named("x".repeat(64)).scoped("y".repeat(64))),
        |b| b.rule(Rule::token_bucket(1_000_000_000_000, MINUTE)),
        |b| (1..=16).fold(b, |b, seconds| b.rule(Rule::fixed_window(5, Duration::from_secs(seconds)))),
        |b| b.metrics(Metrics::new().prefix("a.b-c_D9").label("region", "any {text}\n")),
    ];
    for set in valve {
        set(Valve::builder(ID)).build(MemoryStore::new()).unwrap();
    }
}

#[test]
fn bi_1_a_store_that_lacks_what_is_needed_is_refused_by_name() {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    let _entered = runtime.enter();
    let fleet = Fleet::new();
    let without = |capability| Remote::new(&fleet, Wire::Short).without(capability);
    let semaphore = |capability| fleet.builder(5).build(without(capability)).map(drop);
    let valve = |builder: ValveBuilder, capability| builder.build(without(capability)).map(drop);
    let bounded = || Valve::builder(ID).concurrency(Concurrency::Global(5));
    let scoped = || Valve::builder(ID).rule(Rule::fixed_window(5, MINUTE).scoped("tenant"));
    let rates = || Valve::builder(ID).rule(Rule::fixed_window(5, MINUTE));
    for (built, capability) in [
        (semaphore(Capability::Leases), "leases"),
        (semaphore(Capability::Adaptive), "adaptive limit"),
        (valve(bounded(), Capability::Leases), "leases"),
        (valve(scoped(), Capability::Scoped), "scoped"),
    ] {
        let error = refused(built);
        assert_eq!(error.option(), "store");
        assert!(error.invalid.allowed.contains(capability), "{}", error.invalid);
    }
    for unneeded in [Capability::Wake, Capability::Exchange, Capability::Corrections, Capability::Operators] {
        semaphore(unneeded).unwrap();
    }
    for unneeded in [Capability::Leases, Capability::Adaptive, Capability::Scoped] {
        valve(rates(), unneeded).unwrap();
    }
}

/// A valve that uses everything, with something in every state of it.
fn busy_valve(fleet: &Fleet, troubles: &Troubles) -> Valve {
    Valve::builder(ID)
        .clock(fleet.clock)
        .rule(Rule::token_bucket(1_000, MINUTE).burst(100).named("tokens"))
        .rule(Rule::fixed_window(50, MINUTE).named("each").scoped("tenant"))
        .rule(Rule::sliding_window(60, MINUTE))
        .concurrency(Concurrency::Adaptive(Adaptive::new(8)))
        .class(Class::reserved("interactive", 0.25))
        .on_error(troubles.note())
        .build(fleet.store.clone())
        .unwrap()
}

fn tenant() -> Job {
    Job::new().scope("tenant", "acme")
}

#[tokio::test(start_paused = true)]
async fn bi_1_a_bad_job_is_refused_and_changes_nothing() {
    let (fleet, troubles) = (Fleet::new(), Troubles::default());
    let valve = busy_valve(&fleet, &troubles);
    let held = valve.try_acquire(tenant().cost("tokens", 7)).await.unwrap();
    settled().await;
    let before = (fleet.snapshot(), fleet.leases(), valve.stats());
    let long = "x".repeat(100_000);
    let wrong = [
        (Job::new(), "scope tenant", "\"none\""),
        (tenant().scope("tenant", "other"), "scope tenant", "\"other\""),
        (tenant().scope("region", "eu"), "scope region", "\"eu\""),
        (tenant().scope("two words", "eu"), "scope", "\"two words\""),
        (Job::new().scope("tenant", ""), "identity", "\"\""),
        (tenant().cost("unknown", 1), "cost of unknown", "1"),
        (tenant().cost("tokens", 1).cost("tokens", 2), "cost of tokens", "2"),
        (tenant().cost("", 1), "cost", "\"\""),
        (tenant().cost("sliding_window:60000", 1), "cost", "\"sliding_window:60000\""),
        (tenant().class("nobody"), "class", "\"nobody\""),
        (tenant().class(""), "class", "\"\""),
        (tenant().class("inter\u{0}active"), "class", "\"inter\\0active\""),
    ];
    for (job, option, given) in wrong {
        for answer in
            [valve.try_acquire(job.clone()).await.map(drop), valve.acquire(job.clone()).await.map(drop)]
        {
            let error = answer.unwrap_err();
            let AcquireError::InvalidOptions { id: of, source: StoreError::Invalid(invalid) } = &error else {
                panic!("{error:?}")
            };
            assert_eq!(*of, id());
            says(invalid, option, given);
        }
        let called = AtomicBool::new(false);
        let answer = valve
            .run(job, || async {
                called.store(true, Ordering::SeqCst);
                Ok::<(), StoreError>(())
            })
            .await;
        assert_eq!(answer.unwrap_err().code(), "invalid_options");
        assert!(!called.load(Ordering::SeqCst));
    }
    for job in
        [Job::new().scope("tenant", long.clone()), tenant().cost(long.clone(), 1), tenant().class(long)]
    {
        let error = valve.try_acquire(job).await.unwrap_err();
        let shown = error.source().unwrap().to_string();
        assert!(shown.len() < 400, "{} bytes", shown.len());
    }
    for dear in [tenant().cost("tokens", 101), tenant().cost_each(u64::MAX), tenant().cost_each(51)] {
        assert_eq!(valve.acquire(dear).await.unwrap_err().code(), "cost_exceeds_limit");
    }
    settled().await;
    assert_eq!((fleet.snapshot(), fleet.leases(), valve.stats()), before);
    assert_eq!(troubles.codes(), [""; 0], "the caller was told");
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn bi_1_what_is_refused_pins_nothing() {
    let (fleet, troubles) = (Fleet::new(), Troubles::default());
    let valve = busy_valve(&fleet, &troubles);
    assert_eq!(valve.try_acquire(Job::new()).await.unwrap_err().code(), "invalid_options");
    assert_eq!(valve.try_acquire(tenant().cost_each(51)).await.unwrap_err().code(), "cost_exceeds_limit");
    assert_eq!(valve.pause(Duration::ZERO).await.unwrap_err().code(), "invalid_options");
    assert_eq!(ready(fleet.store.operators().unwrap().snapshot(&id())).unwrap().body, None);
    // So another policy is taken.
    let other = fleet.process(3);
    other.try_acquire().await.unwrap().release(Outcome::Success);
    assert_eq!(fleet.limit(), 3);
    // And the first one is refused now, and changes nothing either.
    let before = fleet.snapshot();
    assert_eq!(valve.try_acquire(tenant()).await.unwrap_err().code(), "invalid_options");
    assert_eq!(fleet.snapshot(), before);
}

#[tokio::test(start_paused = true)]
async fn bi_1_a_correction_that_cannot_be_taken_is_reported_and_changes_nothing() {
    let (fleet, troubles) = (Fleet::new(), Troubles::default());
    let valve = busy_valve(&fleet, &troubles);
    let permit = valve.try_acquire(tenant().cost("tokens", 40)).await.unwrap();
    let before = fleet.snapshot().rules;
    let permit = permit
        .settle("unknown", 1)
        .settle("tokens", 1_000_000_000_001)
        .settle("", u64::MAX)
        .settle(&"x".repeat(100_000), 1)
        .observe("unknown", 1, MINUTE);
    assert_eq!(fleet.snapshot().rules, before);
    let options: Vec<(String, String)> = troubles
        .all()
        .into_iter()
        .map(|trouble| match trouble {
            Trouble::NotSettled { source, .. } => {
                assert!(source.to_string().len() < 400, "{source}");
                (source.option, source.given.chars().take(20).collect())
            }
            other => panic!("{other}"),
        })
        .collect();
    let expected = [
        ("settle: rule", "\"unknown\""),
        ("settle tokens", "1000000000001"),
        ("settle: rule", "\"\""),
        ("settle: rule", "\"xxxxxxxxxxxxxxxxxxx"),
        ("observe: rule", "\"unknown\""),
    ];
    assert_eq!(options, expected.map(|(option, given)| (option.to_owned(), given.to_owned())));
    // A good one still counts, once.
    let permit = permit.settle("tokens", 30).settle("tokens", 99);
    let level = |fleet: &Fleet| {
        fleet.snapshot().rules.iter().find(|rule| &rule.rule == "named:tokens").unwrap().level
    };
    assert_eq!(level(&fleet), Some(70));
    assert_eq!(troubles.all().len(), 6);
    permit.release(Outcome::Success);
}

#[tokio::test(start_paused = true)]
async fn bi_1_a_pause_is_refused_at_nothing_and_cut_at_its_longest() {
    let fleet = Fleet::new();
    let valve = Valve::builder(ID).clock(fleet.clock).max_pause(MINUTE).build(fleet.store.clone()).unwrap();
    valve.try_acquire(Job::new()).await.unwrap().release(Outcome::Success);
    let before = fleet.snapshot();
    assert_eq!(valve.pause(Duration::ZERO).await.unwrap_err().code(), "invalid_options");
    assert_eq!((fleet.snapshot(), valve.stats().paused_for), (before, Duration::ZERO));
    let least = valve.pause(NANO).await.unwrap();
    assert_eq!((least.left, least.cut), (ms(1), false));
    let most = valve.pause(Duration::MAX).await.unwrap();
    assert_eq!((most.left, most.cut), (MINUTE, true));
    assert_eq!(fleet.snapshot().paused_ms, 60_000);
}

// ---- BI-2: no panic, whatever the value --------------------------------------------------------------------------------

/// Random values that lie at the ends of what can be said, with the seed that they come from.
struct Dice {
    rng: fastrand::Rng,
    seed: u64,
}

impl Dice {
    fn new() -> Self {
        let given = std::env::var("TIDEGATE_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| fastrand::u64(..));
        Self { rng: fastrand::Rng::with_seed(seed), seed }
    }

    fn below(&mut self, end: usize) -> usize {
        self.rng.usize(..end)
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }

    fn often(&mut self) -> bool {
        self.rng.u8(..) < 200
    }

    fn u64(&mut self) -> u64 {
        const ENDS: [u64; 14] = [
            0,
            1,
            2,
            10,
            1_000,
            999_999_999_999,
            1_000_000_000_000,
            1_000_000_000_001,
            (1 << 53) - 1,
            1 << 53,
            u64::MAX / 1_000,
            u64::MAX / 2,
            u64::MAX - 1,
            u64::MAX,
        ];
        if self.rng.bool() { self.one(&ENDS) } else { self.rng.u64(..) >> self.rng.u32(..64) }
    }

    fn u32(&mut self) -> u32 {
        let ends = [0, 1, 2, 10, 1_000, 999_999, 1_000_000, 1_000_001, u32::MAX / 2, u32::MAX - 1, u32::MAX];
        if self.rng.bool() { self.one(&ends) } else { self.rng.u32(..) >> self.rng.u32(..32) }
    }

    fn f64(&mut self) -> f64 {
        let ends = [
            0.0,
            -0.0,
            f64::MIN_POSITIVE,
            1e-7,
            1e-6,
            0.5,
            1.0 - f64::EPSILON,
            1.0,
            -1.0,
            f64::MAX,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
        ];
        if self.rng.bool() { self.one(&ends) } else { self.rng.f64() }
    }

    fn duration(&mut self) -> Duration {
        let ends = [
            Duration::ZERO,
            NANO,
            ms(1),
            ms(100),
            Duration::from_secs(1),
            DAY,
            DAY * 366,
            DAY * 366 + NANO,
            Duration::from_micros(u64::MAX),
            Duration::from_millis(u64::MAX),
            Duration::MAX,
        ];
        if self.rng.bool() { self.one(&ends) } else { Duration::from_nanos(self.u64()) }
    }

    fn text(&mut self) -> String {
        let ends = ["", "a", "batch", "tenant", "a:b", "{a}", "\u{0}", "🦀", "a\nb", "named:a", "%s\"';--"];
        let text = self.one(&ends);
        let times = self.one(&[1, 1, 1, 2, 64, 65, 200, 256, 257, 5_000]);
        text.repeat(times)
    }

    /// A name that is good, most of the time.
    fn name(&mut self) -> String {
        if self.often() { self.one(&["a", "b", "c", "tenant"]).to_owned() } else { self.text() }
    }

    fn moment(&mut self) -> Moment {
        Moment::from_micros(self.u64())
    }
}

impl Drop for Dice {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed: TIDEGATE_SEED={}", self.seed);
        }
    }
}

/// A clock that is set, to anything.
#[derive(Clone)]
struct SetClock(tokio::sync::watch::Sender<u64>);

impl SetClock {
    fn at(micros: u64) -> Self {
        Self(tokio::sync::watch::Sender::new(micros))
    }

    fn set(&self, micros: u64) {
        self.0.send_replace(micros);
    }
}

impl Clock for SetClock {
    fn now(&self) -> Moment {
        Moment::from_micros(*self.0.borrow())
    }

    fn sleep_until(&self, at: Moment) -> Sleep {
        let mut changes = self.0.subscribe();
        Box::pin(async move {
            let _ = changes.wait_for(|now| *now >= at.micros()).await;
        })
    }

    fn pace(&self) -> Pace {
        Pace::Set
    }
}

fn any_rule(dice: &mut Dice) -> Rule {
    let (limit, interval) = (dice.u64(), dice.duration());
    let make = dice.one(&[Rule::token_bucket, Rule::fixed_window, Rule::sliding_window]);
    let mut rule =
        if dice.often() { make(limit % 50 + 1, ms(limit % 5_000 + 1)) } else { make(limit, interval) };
    if dice.rng.bool() {
        rule = rule.named(dice.name());
    }
    if dice.rng.bool() {
        rule = rule.scoped(dice.name());
    }
    if dice.below(4) == 0 {
        rule = rule.burst(dice.u64());
    }
    rule
}

fn any_aimd(dice: &mut Dice) -> Aimd {
    let aimd = Aimd::new();
    if dice.often() {
        return aimd;
    }
    aimd.decrease_factor(dice.f64())
        .increase_step(dice.u32())
        .window(dice.duration())
        .cooldown(dice.duration())
        .tolerance(dice.f64())
}

fn any_adaptive(dice: &mut Dice) -> Adaptive {
    let mut adaptive = Adaptive::new(if dice.often() { 5 } else { dice.u32() }).aimd(any_aimd(dice));
    adaptive = adaptive.growth(dice.one(&[Growth::Additive, Growth::SlowStart, Growth::Probe]));
    if dice.below(4) == 0 {
        adaptive = adaptive.min_limit(dice.u32()).max_limit(dice.u32()).throttle_rest(dice.duration());
    }
    adaptive
}

fn any_class(dice: &mut Dice) -> Class {
    let name = dice.name();
    if dice.rng.bool() { Class::unreserved(name) } else { Class::reserved(name, dice.f64()) }
}

fn any_valve(dice: &mut Dice) -> ValveBuilder {
    let mut builder = Valve::builder(if dice.often() { ID.to_owned() } else { dice.text() });
    for _ in 0..dice.below(4) {
        builder = builder.rule(any_rule(dice));
    }
    let fixed = if dice.often() { 3 } else { dice.u32() };
    builder = match dice.below(4) {
        0 => builder,
        1 => builder.concurrency(Concurrency::Local(fixed)),
        2 => builder.concurrency(Concurrency::Global(fixed)),
        _ => builder.concurrency(Concurrency::Adaptive(any_adaptive(dice))),
    };
    for _ in 0..dice.one(&[0, 0, 1, 2]) {
        builder = builder.class(any_class(dice));
    }
    if dice.below(3) == 0 {
        builder = builder.max_queue(dice.one(&[0, 1, 2, usize::MAX]));
    }
    if dice.below(6) == 0 {
        builder = builder.max_pause(dice.duration()).op_timeout(dice.duration());
    }
    if dice.below(6) == 0 {
        builder = builder.lease_ttl(dice.duration()).owner(dice.text()).revision(dice.u32());
    }
    if dice.below(6) == 0 {
        builder = builder.safe_start(SafeStart::On);
    }
    if dice.below(6) == 0 {
        builder = builder.metrics(Metrics::new().prefix(dice.text()).label(dice.text(), dice.text()));
    }
    if dice.below(4) == 0 {
        builder = builder.fallback_local(dice.u32()).fallback_rule(any_rule(dice));
    }
    builder
}

fn any_job(dice: &mut Dice) -> Job {
    let mut job = Job::new();
    if dice.below(4) == 0 {
        job = job.cost_each(dice.u64());
    }
    for _ in 0..dice.one(&[0, 0, 1, 2]) {
        job = job.cost(dice.name(), dice.u64());
    }
    for _ in 0..dice.one(&[0, 1, 1, 2]) {
        job = job.scope(dice.name(), dice.text());
    }
    if dice.below(4) == 0 {
        job = job.class(dice.name());
    }
    job.priority(dice.one(&[0, 1, -1, i32::MIN, i32::MAX])).timeout(dice.duration())
}

fn any_release(dice: &mut Dice) -> Release {
    match dice.below(4) {
        0 => Outcome::Success.into(),
        1 => Outcome::Failure.into(),
        2 => Outcome::Throttled.into(),
        _ => Release::throttled_for(dice.duration()),
    }
}

/// Polls a few times, letting the others run in between; what does not end is dropped.
async fn try_for_a_while<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..4 {
        if let Poll::Ready(value) = poll_once(future.as_mut()) {
            return Some(value);
        }
        tokio::task::yield_now().await;
    }
    None
}

async fn hammer(valve: &Valve, clocks: &[SetClock], dice: &mut Dice) {
    let mut permits: Vec<Permit> = Vec::new();
    let mut waiting: Vec<Pin<Box<dyn Future<Output = Result<Permit, AcquireError>>>>> = Vec::new();
    for _ in 0..40 {
        match dice.below(12) {
            0..=3 => {
                if let Some(Ok(permit)) = try_for_a_while(valve.acquire(any_job(dice))).await {
                    permits.push(permit);
                }
            }
            4 => {
                let (valve, job) = (valve.clone(), any_job(dice));
                let mut waits: Pin<Box<dyn Future<Output = _>>> =
                    Box::pin(async move { valve.acquire(job).await });
                if let Poll::Ready(Ok(permit)) = poll_once(Pin::new(&mut waits)) {
                    permits.push(permit);
                } else if waiting.len() < 5 {
                    waiting.push(waits);
                }
            }
            5..=6 => {
                if let Some(mut permit) = permits.pop() {
                    let (rule, other) =
                        (dice.one(&["named:a", "a", "token_bucket:60000", "", "🦀"]), dice.name());
                    if dice.rng.bool() {
                        permit = permit.settle(rule, dice.u64()).settle(&other, dice.u64());
                    }
                    if dice.rng.bool() {
                        permit = permit.observe(rule, dice.u64(), dice.duration());
                    }
                    let _ = (permit.is_live(), permit.slot(), format!("{permit:?}"));
                    permit.release(any_release(dice));
                }
            }
            7 => {
                let _ = try_for_a_while(valve.pause(dice.duration())).await;
            }
            8 => {
                let _ = try_for_a_while(valve.resume()).await;
                let _ = try_for_a_while(valve.refresh()).await;
            }
            9 => {
                let clock = dice.one(clocks);
                clock.set(dice.u64());
            }
            10 => {
                let _ = (valve.stats(), format!("{valve:?}"));
                if dice.below(20) == 0 {
                    let _ = try_for_a_while(valve.close()).await;
                }
            }
            _ => {
                if !waiting.is_empty() {
                    let mut waits = waiting.swap_remove(dice.below(waiting.len()));
                    if let Poll::Ready(Ok(permit)) = poll_once(Pin::new(&mut waits)) {
                        permits.push(permit);
                    }
                }
            }
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test(start_paused = true)]
async fn bi_2_no_value_makes_a_valve_panic() {
    let mut dice = Dice::new();
    let mut built = 0;
    for round in 0..600 {
        let clocks = [SetClock::at(dice.u64()), SetClock::at(dice.u64())];
        let store = MemoryStore::with_clock(clocks[0].clone());
        let mut builder = any_valve(&mut dice);
        if dice.rng.bool() {
            builder = builder.clock(clocks[usize::from(dice.rng.bool())].clone());
        }
        let valve = if round % 2 == 0 {
            builder.build(store)
        } else {
            let remote = Remote::over(&store, clocks[0].clone(), Wire::Yields);
            if dice.below(3) == 0 {
                remote.set(dice.one(&[Mode::Down, Mode::Hangs, Mode::Mute]));
            }
            builder.build(remote)
        };
        let Ok(valve) = valve else { continue };
        built += 1;
        hammer(&valve, &clocks, &mut dice).await;
    }
    assert!(built > 60, "{built} of 600 were built; seed {}", dice.seed);
}

#[tokio::test(start_paused = true)]
async fn bi_2_no_value_makes_a_semaphore_panic() {
    let mut dice = Dice::new();
    let mut built = 0;
    for _ in 0..400 {
        let clock = SetClock::at(dice.u64());
        let mut builder = AdaptiveSemaphore::builder(dice.name(), dice.u32() % 12)
            .aimd(any_aimd(&mut dice))
            .growth(dice.one(&[Growth::Additive, Growth::SlowStart, Growth::Probe]));
        if dice.below(3) == 0 {
            builder = builder.min_limit(dice.u32()).max_limit(dice.u32()).throttle_rest(dice.duration());
        }
        if dice.rng.bool() {
            builder = builder.class(any_class(&mut dice));
        }
        let store = MemoryStore::with_clock(clock.clone());
        let Ok(semaphore) = builder.build(store.clone()) else { continue };
        built += 1;
        let mut leases: Vec<Lease> = Vec::new();
        for _ in 0..40 {
            let mut acquire = Acquire::within(dice.duration());
            if dice.below(4) == 0 {
                acquire = acquire.in_class(dice.name());
            }
            match dice.below(6) {
                0..=2 => {
                    leases.extend(try_for_a_while(semaphore.acquire(acquire)).await.and_then(Result::ok))
                }
                3 => {
                    if let Some(lease) = leases.pop() {
                        lease.release(any_release(&mut dice));
                    }
                }
                4 => clock.set(dice.u64()),
                _ => {
                    let call = semaphore
                        .with_lease(acquire, || async { Err::<(), _>(StoreError::LeasesLive { held: 1 }) })
                        .outcome_on_error(|_| any_release(&mut Dice::new()));
                    let _ = try_for_a_while(call.into_future()).await;
                    let operators = store.operators().unwrap();
                    let _ = ready(operators.set_limit(&id(), dice.u32()));
                    let token =
                        Token { epoch: contract::Epoch(dice.u64()), slot: dice.u32(), fence: dice.u64() };
                    let _ = ready(operators.evict(&id(), token));
                    let _ = (semaphore.state(), format!("{semaphore:?}"));
                }
            }
            tokio::task::yield_now().await;
        }
    }
    assert!(built > 40, "{built} of 400 were built; seed {}", dice.seed);
}

/// What a store is asked, at its ends.
struct Hostile {
    members: Vec<Member>,
    tokens: Vec<Token>,
}

impl Hostile {
    fn new(dice: &mut Dice) -> Self {
        let mut members = Vec::new();
        while members.len() < 3 {
            let mut draft = Policy::draft().revision(if dice.often() { 0 } else { dice.u32() });
            for _ in 0..dice.below(4) {
                draft = draft.rule(any_rule(dice));
            }
            draft = match dice.below(3) {
                0 => draft,
                1 => draft.bound(Bound::Fixed(dice.u32())),
                _ => {
                    let growth = dice.one(&[Growth::Additive, Growth::SlowStart, Growth::Probe]);
                    match LimitPolicy::check(1, 9, &any_aimd(dice), ms(5), growth) {
                        Ok(adaptive) => draft.bound(Bound::Adaptive(adaptive)).class(any_class(dice)),
                        Err(_) => continue,
                    }
                }
            };
            let Ok(policy) = draft.safe_start(dice.one(&[SafeStart::Off, SafeStart::On])).check() else {
                continue;
            };
            let policy = if members.is_empty() || dice.rng.bool() {
                Arc::new(policy)
            } else {
                Arc::clone(&Member::clone(&members[0]).policy)
            };
            members.push(Member {
                id: id(),
                driver: DriverId(u128::from(dice.u64())),
                owner: Owner::new("hostile").unwrap(),
                policy,
                on_superseded: dice.one(&[OnSuperseded::Adopt, OnSuperseded::Refuse]),
                initial_limit: dice.u32(),
            });
        }
        Self { members, tokens: Vec::new() }
    }

    fn member(&self, dice: &mut Dice) -> Member {
        dice.one(&self.members)
    }

    fn token(&self, dice: &mut Dice) -> Token {
        if !self.tokens.is_empty() && dice.rng.bool() {
            let known = dice.one(&self.tokens);
            return if dice.often() { known } else { Token { fence: dice.u64(), ..known } };
        }
        // Far slots make a table long, which is right and slow.
        let slot = dice.one(&[0, 1, 7, 63, 64, 1_000, 1_000_000, u32::MAX]);
        Token { epoch: contract::Epoch(dice.u64()), slot, fence: dice.u64() }
    }

    fn class(&self, dice: &mut Dice) -> Option<Name> {
        Name::new("class", dice.name()).ok().filter(|_| dice.below(3) == 0)
    }

    fn costs(&self, dice: &mut Dice) -> contract::Costs {
        let named = 0..dice.one(&[0, 0, 1, 2, 20]);
        let named = named.filter_map(|_| Some((Name::new("cost", dice.name()).ok()?, dice.u64()))).collect();
        contract::Costs { each: if dice.often() { 1 } else { dice.u64() }, named }
    }

    fn line(&self, dice: &mut Dice) -> Line {
        Line { waiting: dice.one(&[0, 1, 1_000]), waited_ms: dice.u64() }
    }

    fn acquire(&self, dice: &mut Dice) -> contract::AcquireRequest {
        let jobs = dice.one(&[0, 1, 1, 1, 3, 512, 513]);
        let jobs = (0..jobs).map(|_| contract::Job { costs: self.costs(dice) }).collect();
        contract::AcquireRequest { class: self.class(dice), jobs, line: self.line(dice) }
    }

    fn scoped(&self, dice: &mut Dice) -> ScopedRequest {
        let jobs = dice.one(&[0, 1, 1, 1, 3, 128, 129]);
        let job = |dice: &mut Dice| {
            let scopes = 0..dice.one(&[0, 1, 1, 2]);
            let scopes = scopes.filter_map(|_| {
                Some((Name::new("scope", dice.name()).ok()?, Identity::new(dice.text()).ok()?))
            });
            let scopes = scopes.collect();
            ScopedJob { costs: self.costs(dice), scopes }
        };
        let jobs = (0..jobs).map(|_| job(dice)).collect();
        ScopedRequest { class: self.class(dice), jobs, line: self.line(dice) }
    }

    fn key(&self, dice: &mut Dice) -> RuleKey {
        let policy = &self.members[0].policy;
        if dice.often() && !policy.rules().is_empty() {
            let rule = dice.below(policy.rules().len());
            return policy.rules()[rule].key().clone();
        }
        RuleKey::from(dice.text().as_str())
    }

    fn identity(&self, dice: &mut Dice) -> Option<Identity> {
        Identity::new(dice.text()).ok().filter(|_| dice.rng.bool())
    }

    fn exchange(&self, dice: &mut Dice) -> Exchange {
        let many = |dice: &mut Dice| dice.one(&[0, 0, 1, 2, 1_001]);
        let mut exchange = Exchange::default();
        if dice.rng.bool() {
            let not_after = Some(dice.moment()).filter(|_| dice.rng.bool());
            exchange.sequence = Some(Sequence { number: dice.u64(), not_after });
        }
        if dice.below(4) == 0 {
            exchange.restore = Some(self.restore(dice));
        }
        exchange.releases = (0..many(dice)).map(|_| self.release(dice)).collect();
        exchange.settlements = (0..many(dice)).map(|_| self.settlement(dice)).collect();
        exchange.observations = (0..many(dice)).map(|_| self.observation(dice)).collect();
        exchange.renewals = (0..many(dice)).map(|_| self.renewal(dice)).collect();
        exchange.hand_overs = (0..many(dice)).map(|_| HandOver { class: self.class(dice) }).collect();
        exchange.acquires = (0..dice.below(4))
            .map(|_| match dice.below(2) {
                0 => contract::Acquire::Prefix(self.acquire(dice)),
                _ => contract::Acquire::Scoped(self.scoped(dice)),
            })
            .collect();
        let queues = 0..dice.below(3);
        exchange.queues = queues.map(|_| Queue { class: self.class(dice), line: self.line(dice) }).collect();
        exchange
    }

    fn restore(&self, dice: &mut Dice) -> Restore {
        let limit = Some(Limit { value: dice.u32(), moved_at: dice.moment() }).filter(|_| dice.rng.bool());
        Restore { epoch: contract::Epoch(dice.u64()), limit, paused_ms: dice.u64() }
    }

    fn release(&self, dice: &mut Dice) -> contract::Release {
        let outcome = dice.one(&[Outcome::Success, Outcome::Throttled, Outcome::Failure]);
        let retry_after_ms = Some(dice.u64()).filter(|_| dice.rng.bool());
        contract::Release { token: self.token(dice), outcome, retry_after_ms }
    }

    fn settlement(&self, dice: &mut Dice) -> Settlement {
        let (cost, actual) = if dice.often() { (1, dice.u64() % 20) } else { (dice.u64(), dice.u64()) };
        let (rule, identity) = (self.key(dice), self.identity(dice));
        Settlement { rule, identity, granted_at: dice.moment(), cost, actual }
    }

    fn observation(&self, dice: &mut Dice) -> Observation {
        Observation {
            rule: self.key(dice),
            identity: self.identity(dice),
            remaining: dice.u64(),
            reset_at: dice.moment(),
            granted_at: dice.moment(),
            mark: dice.u64(),
        }
    }

    fn renewal(&self, dice: &mut Dice) -> Renewal {
        Renewal { token: self.token(dice), class: self.class(dice) }
    }

    /// One step on a model at some moment.
    fn step(&mut self, model: &mut IdModel, dice: &mut Dice) {
        let (member, now) = (self.member(dice), dice.moment());
        match dice.below(20) {
            0..=4 => {
                if let Ok(reply) = model.acquire(now, &member, &self.acquire(dice)) {
                    self.tokens.extend(reply.body.grants.iter().filter_map(|grant| grant.lease));
                }
            }
            5..=6 => {
                if let Ok(reply) = model.acquire_scoped(now, &member, &self.scoped(dice)) {
                    self.tokens.extend(reply.body.grants.iter().filter_map(|granted| granted.grant.lease));
                }
            }
            7 => {
                let tier = dice.one(&[0, 1, 2, 17, usize::MAX]);
                if let Some(brief) = model.acquire_one(now, &member, tier, dice.u64()) {
                    self.tokens.extend(brief.grant.and_then(|grant| grant.lease));
                }
            }
            8 => {
                let _ = model.release_one(now, &self.release(dice), dice.u64());
            }
            9 => {
                let releases: Vec<_> = (0..dice.below(4)).map(|_| self.release(dice)).collect();
                let _ = model.release(now, &releases);
            }
            10 => {
                let renewals: Vec<_> = (0..dice.below(4)).map(|_| self.renewal(dice)).collect();
                let restore = Some(self.restore(dice)).filter(|_| dice.rng.bool());
                let _ = model.renew(now, &member, restore.as_ref(), &renewals);
            }
            11 => {
                let hand_overs = vec![HandOver { class: self.class(dice) }; dice.below(3)];
                let _ = model.hand_over(now, &member, &hand_overs);
            }
            12 => {
                let settlements: Vec<_> = (0..dice.below(4)).map(|_| self.settlement(dice)).collect();
                let _ = model.settle(now, &settlements);
            }
            13 => {
                let observations: Vec<_> = (0..dice.below(4)).map(|_| self.observation(dice)).collect();
                let _ = model.observe(now, &observations);
            }
            14..=15 => {
                let exchange = self.exchange(dice);
                if let Ok(reply) = model.exchange(now, &member, &exchange) {
                    let _ = exchange.check(None, &reply);
                    let granted = reply.body.acquired.iter().flatten().flat_map(contract::Acquired::grants);
                    self.tokens.extend(granted.filter_map(|(_, grant)| grant.lease));
                }
            }
            16 => {
                let _ = model.pause(now, dice.duration());
                let _ = model.resume(dice.moment());
            }
            17 => {
                let _ = model.set_limit(now, dice.u32());
                let _ = model.leases(now, Some(dice.u32()), dice.one(&[0, 1, 1_000, usize::MAX]));
                let _ = model.evict(now, self.token(dice));
            }
            18 => {
                let _ = model.replace_policy(now, &member.policy);
                let _ = model.sweep(now);
            }
            _ => match dice.below(8) {
                0 => model.wipe(),
                1 => {
                    let _ = model.forget(now);
                }
                2 => model.listen(member.driver),
                _ => model.unlisten(member.driver),
            },
        }
        let _ = model.take_wakes();
    }
}

/// What must hold of an id, whatever it was asked.
fn sane(model: &mut IdModel, now: Moment) {
    let Ok(reply) = model.snapshot(now, &id()) else { return };
    let head = reply.head;
    let Some(seen) = reply.body else { return };
    let held: u32 = seen.by_class.iter().map(|(_, held)| held).sum();
    assert_eq!(held, seen.held, "each lease has a class, or none");
    assert!(seen.resting <= seen.held);
    assert_eq!(head.held.unwrap_or(0), seen.held);
    if let (Some(limit), Some(policy)) = (seen.limit, &seen.policy) {
        let bounds = match policy.bound().unwrap() {
            Bound::Fixed(fixed) => *fixed..=*fixed,
            Bound::Adaptive(adaptive) => adaptive.min..=adaptive.max,
        };
        assert!(bounds.contains(&limit.value), "{limit:?} within {bounds:?}");
    }
}

#[test]
fn bi_2_no_request_makes_a_store_panic() {
    let mut dice = Dice::new();
    for _ in 0..60 {
        let mut hostile = Hostile::new(&mut dice);
        let mut model = IdModel::default();
        for _ in 0..120 {
            hostile.step(&mut model, &mut dice);
            hostile.tokens.truncate(50);
            sane(&mut model, dice.moment());
        }
    }
}

/// As above, at times as they are: so that state is kept, and not swept by the next step.
#[test]
fn bi_2_no_request_makes_a_store_panic_that_has_a_good_clock() {
    let mut dice = Dice::new();
    for _ in 0..60 {
        let mut hostile = Hostile::new(&mut dice);
        let clock = SetClock::at(1_700_000_000_000_000);
        let store = MemoryStore::with_clock(clock.clone());
        for _ in 0..120 {
            clock.set(clock.now().micros() + dice.rng.u64(..30_000));
            let member = hostile.member(&mut dice);
            let exchange = hostile.exchange(&mut dice);
            if let Ok(reply) = ready(store.exchange(&member, &exchange)) {
                exchange.check(None, &reply).unwrap_or_else(|error| panic!("{error}; seed {}", dice.seed));
                let granted = reply.body.acquired.iter().flatten().flat_map(contract::Acquired::grants);
                hostile.tokens.extend(granted.filter_map(|(_, grant)| grant.lease));
                hostile.tokens.truncate(50);
            }
            let (scoped, restore) = (hostile.scoped(&mut dice), hostile.restore(&mut dice));
            let _ = ready(store.acquire_scoped(&member, &scoped));
            let renewals = [hostile.renewal(&mut dice)];
            let _ = ready(store.renew(&member, Some(&restore), &renewals));
            if dice.below(30) == 0 {
                store.wipe();
            }
        }
    }
}

#[test]
fn bi_2_a_clock_at_either_end_serves() {
    for now in [0, 1, 999, (1 << 53) - 1, 1 << 53, u64::MAX - 1, u64::MAX] {
        let clock = SetClock::at(now);
        let store = MemoryStore::with_clock(clock.clone());
        let valve = Valve::builder(ID)
            .clock(clock)
            .rule(Rule::token_bucket(3, MINUTE).named("a"))
            .rule(Rule::fixed_window(3, MINUTE).named("b"))
            .rule(Rule::sliding_window(3, MINUTE).named("c"))
            .concurrency(Concurrency::Global(3))
            .build(store.clone())
            .unwrap();
        let grants: Vec<Permit> = (0..5).filter_map(|_| ready(valve.try_acquire(Job::new())).ok()).collect();
        assert_eq!(grants.len(), 3, "at {now} µs");
        let mut fences: Vec<_> = grants.iter().map(|permit| permit.fence().unwrap()).collect();
        fences.dedup();
        assert_eq!(fences.len(), 3, "fences grow at {now} µs");
        assert!(fences.is_sorted());
        grants.into_iter().for_each(|permit| permit.settle("a", 0).release(Outcome::Success));
        let seen: Snapshot = ready(store.operators().unwrap().snapshot(&id())).unwrap().body.unwrap();
        assert_eq!(seen.held, 0);
        let levels: Vec<_> = seen.rules.iter().map(|rule| rule.level).collect();
        assert_eq!(levels, [Some(3), Some(0), Some(0)], "at {now} µs");
    }
}

#[test]
fn bi_2_a_fence_from_outside_never_uses_up_those_to_come() {
    let mut model = IdModel::default();
    let policy = Arc::new(Policy::draft().bound(Bound::Fixed(9)).check().unwrap());
    let (driver, owner) = (DriverId(1), Owner::new("hostile").unwrap());
    let member =
        Member { id: id(), driver, owner, policy, on_superseded: OnSuperseded::Adopt, initial_limit: 1 };
    let now = Moment::from_millis(5);
    let restore = Restore { epoch: contract::Epoch(3), limit: None, paused_ms: 0 };
    for fence in [u64::MAX, u64::MAX - 1, 1 << 53] {
        let token = Token { epoch: contract::Epoch(3), slot: 2, fence };
        let renewals = [Renewal { token, class: None }];
        assert_eq!(model.renew(now, &member, Some(&restore), &renewals).unwrap().body.live, [false]);
    }
    let token = Token { epoch: contract::Epoch(3), slot: 2, fence: (1 << 53) - 1 };
    let renewals = [Renewal { token, class: None }];
    assert_eq!(model.renew(now, &member, Some(&restore), &renewals).unwrap().body.live, [true]);
    let jobs = vec![contract::Job::default(); 3];
    let request = contract::AcquireRequest { class: None, jobs, line: Line::default() };
    let grants = model.acquire(now, &member, &request).unwrap().body.grants;
    let fences: Vec<u64> = grants.iter().map(|grant| grant.lease.unwrap().fence).collect();
    assert_eq!(fences, [1 << 53, (1 << 53) + 1, (1 << 53) + 2]);
}

#[test]
fn bi_2_requests_of_any_size_are_answered_soon() {
    let store = MemoryStore::new();
    let policy = Policy::draft().bound(Bound::Fixed(5)).check().unwrap();
    let (driver, owner) = (DriverId(1), Owner::new("hostile").unwrap());
    let on_superseded = OnSuperseded::Adopt;
    let member =
        Member { id: id(), driver, owner, policy: Arc::new(policy), on_superseded, initial_limit: 1 };
    let token = Token { epoch: contract::Epoch(1), slot: 0, fence: 1 };
    let many = 200_000;
    let jobs = vec![contract::Job::default(); many];
    let request = contract::AcquireRequest { class: None, jobs, line: Line::default() };
    assert_eq!(ready(store.acquire(&member, &request)).unwrap_err().code(), "invalid_options");
    let release = contract::Release { token, outcome: Outcome::Success, retry_after_ms: None };
    let exchange = Exchange {
        releases: vec![release; many],
        renewals: vec![Renewal { token, class: None }; many],
        hand_overs: vec![HandOver { class: None }; many],
        acquires: vec![
            contract::Acquire::Prefix(contract::AcquireRequest {
                class: None,
                jobs: vec![contract::Job::default()],
                line: Line::default(),
            });
            many
        ],
        queues: vec![Queue { class: None, line: Line::default() }; many],
        ..Exchange::default()
    };
    let body = ready(store.exchange(&member, &exchange)).unwrap().body;
    assert_eq!(body.released.unwrap_err().code(), "invalid_options");
    assert_eq!(body.renewed.unwrap_err().code(), "invalid_options");
    assert_eq!(body.handed_over.unwrap_err().code(), "invalid_options");
    assert_eq!(body.acquired.len(), many);
    assert_eq!(body.acquired.iter().filter(|acquired| acquired.is_ok()).count(), 1, "one for each class");
    assert_eq!(ready(store.operators().unwrap().snapshot(&id())).unwrap().body.unwrap().held, 1);
}

#[test]
fn bi_2_the_decisions_take_any_number() {
    let mut dice = Dice::new();
    for _ in 0..20_000 {
        let (Ok(rule), Ok(other)) = (any_rule(&mut dice).check(), any_rule(&mut dice).check()) else {
            continue;
        };
        let mut state = RuleState::resting(&rule, dice.u64());
        if dice.rng.bool() {
            state = RuleState::spent_out(&rule, dice.u64());
        }
        for _ in 0..6 {
            let (now, cost) = (dice.u64(), dice.u64());
            match dice.below(7) {
                0 => {
                    let hint = state.room(&rule, now, cost);
                    assert!(hint.is_ok() || hint.is_err_and(|hint| (1..1 << 53).contains(&hint)));
                }
                1 => state.spend(&rule, now, cost),
                2 => {
                    state.settle(&rule, now, dice.u64(), cost, dice.u64());
                }
                3 => {
                    let (reset_ms, granted_ms, mark) = (dice.u64(), dice.u64(), dice.u64());
                    state.observe(&rule, now, &Observed { remaining: cost, reset_ms, granted_ms, mark });
                }
                4 => {
                    let _ = (state.level(&rule, now), state.rests_at(&rule), state.mark());
                }
                5 => state.shift_back(now),
                _ => state = state.carry(&rule, &other, now).carry(&other, &rule, dice.u64()),
            }
        }
    }
    for _ in 0..5_000 {
        let growth = dice.one(&[Growth::Additive, Growth::SlowStart, Growth::Probe]);
        let (min, max, rest) = (dice.u32(), dice.u32(), dice.duration());
        let Ok(policy) = LimitPolicy::check(min, max, &any_aimd(&mut dice), rest, growth) else { continue };
        let mut limit = LimitState::seed(&policy, dice.u32(), dice.u64());
        for _ in 0..12 {
            let now = dice.u64();
            match dice.below(6) {
                0 => limit.demand(now),
                1 => drop(limit.success(&policy, now)),
                2 => limit.failure(&policy, now),
                3 => drop(limit.throttled(&policy, now)),
                4 => limit.set(&policy, dice.u32(), now),
                _ => limit.shift_back(now),
            }
            assert!((policy.min..=policy.max).contains(&limit.value()), "seed {}", dice.seed);
        }
    }
    for _ in 0..5_000 {
        let classes: Vec<(Fraction, u32)> =
            (0..dice.below(18)).map(|_| (Fraction::from_ppm(dice.u32()), dice.u32())).collect();
        let limit = dice.u32();
        let room = share::room(limit, classes.iter().copied(), dice.one(&[0, 1, 17, usize::MAX]));
        assert!(room <= limit, "seed {}", dice.seed);
        let _ = Fraction::new("share", dice.f64());
        let _ = dice.text().parse::<Token>();
        let _ = format!("{}-{}-{}", dice.u64(), dice.u64(), dice.text()).parse::<Token>();
        let _ = (Id::new(dice.text()), Name::new("class", dice.text()), Identity::new(dice.text()));
        let _ = Owner::new(dice.text());
        let _ = dice.moment().plus(dice.duration()).since(dice.moment());
        let _ = Invalid::new(dice.text(), dice.text(), dice.text()).to_string();
    }
}

#[test]
fn bi_2_a_policy_of_any_values_is_refused_or_compares_with_itself() {
    let mut dice = Dice::new();
    let mut checked = 0;
    for _ in 0..3_000 {
        let mut draft: Draft = Policy::draft();
        for _ in 0..dice.below(18) {
            draft = draft.rule(any_rule(&mut dice));
        }
        for _ in 0..dice.one(&[0, 0, 1, 17]) {
            draft = draft.class(any_class(&mut dice));
        }
        if dice.rng.bool() {
            draft = draft.bound(Bound::Fixed(dice.u32()));
        }
        if dice.below(4) == 0 {
            draft = draft.lease_ttl(dice.duration()).revision(dice.u32());
        }
        if let Ok(policy) = draft.check() {
            checked += 1;
            assert_eq!(policy.difference(&policy), None);
            assert!(policy.tier(None).is_some() && policy.class(usize::MAX).is_none());
        }
    }
    assert!(checked > 100, "{checked} of 3,000; seed {}", dice.seed);
}

// ---- BI-3: odd names stay apart ----------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn bi_3_an_odd_id_never_addresses_another_ids_state() {
    let fleet = Fleet::new();
    let long = "x".repeat(200);
    let odd = [
        "a",
        "A",
        "a ",
        " a",
        "a:b",
        "a::b",
        "a:",
        ":a",
        "a/b",
        "a\\b",
        "*",
        "a*",
        "?",
        "[a]",
        "'a'",
        "\"a\"",
        "a;b",
        "--",
        "null",
        "0",
        "00",
        "é",
        "e\u{301}",
        "🦀",
        "\u{200b}a",
        "a\u{a0}",
        &long[..199],
        &long,
    ];
    let valves: Vec<Valve> = odd
        .iter()
        .map(|id| {
            Valve::builder(*id)
                .clock(fleet.clock)
                .rule(Rule::fixed_window(2, MINUTE))
                .concurrency(Concurrency::Global(1))
                .build(fleet.store.clone())
                .unwrap()
        })
        .collect();
    for (at, valve) in valves.iter().enumerate() {
        let permit = valve.try_acquire(Job::new()).await.unwrap_or_else(|error| panic!("{at}: {error}"));
        assert!(valve.try_acquire(Job::new()).await.is_err(), "its one slot is taken");
        permit.release(Outcome::Success);
        let last = valve.try_acquire(Job::new()).await.unwrap();
        valve.pause(MINUTE).await.unwrap();
        // It goes on holding its slot while all that follow have theirs.
        std::mem::forget(last);
    }
    let page = ready(fleet.store.operators().unwrap().ids(None, 1_000)).unwrap().body;
    assert_eq!(page.items.len(), odd.len());
    for id in &page.items {
        let seen = ready(fleet.store.operators().unwrap().snapshot(id)).unwrap().body.unwrap();
        assert_eq!((seen.held, seen.rules[0].level), (1, Some(0)), "{id}");
    }
}

#[tokio::test(start_paused = true)]
async fn bi_3_an_odd_identity_never_addresses_another_identity_or_rule() {
    let fleet = Fleet::new();
    let build = |id: &str| {
        Valve::builder(id)
            .clock(fleet.clock)
            .rule(Rule::fixed_window(1, MINUTE).named("a").scoped("tenant"))
            .rule(Rule::fixed_window(1, MINUTE).named("b").scoped("model"))
            .build(fleet.store.clone())
            .unwrap()
    };
    let long = "x".repeat(256);
    let odd = [
        "a",
        "A",
        "a ",
        " a",
        "a:b",
        "a:",
        ":a",
        "{a}",
        "{",
        "}",
        "\u{0}",
        "\n",
        "a\u{0}b",
        "named:a",
        "1:a",
        "é",
        "e\u{301}",
        "🦀",
        "*",
        "'",
        "\"",
        "\\",
        "tenant",
        &long[..255],
        &long,
    ];
    for id in ["one", "one:tenant"] {
        let valve = build(id);
        for (at, identity) in odd.iter().enumerate() {
            // The model is never the same, so that only the tenant denies.
            let job = |model: &str| Job::new().scope("tenant", *identity).scope("model", model.to_owned());
            let first = valve.try_acquire(job(&format!("{at}"))).await;
            assert!(first.is_ok(), "{id}: {identity:?} is new");
            assert!(valve.try_acquire(job(&format!("{at} again"))).await.is_err(), "{identity:?} is spent");
        }
        // A tenant is no model, whatever both are called.
        for identity in odd {
            let job =
                Job::new().scope("tenant", format!("t{identity}x").chars().take(60).collect::<String>());
            let granted = valve.try_acquire(job.scope("model", identity)).await;
            assert!(granted.is_ok(), "{id}: {identity:?} is new as a model");
        }
        let seen = ready(fleet.store.operators().unwrap().snapshot(&Id::new(id).unwrap())).unwrap();
        let identities: Vec<usize> = seen.body.unwrap().rules.iter().map(|rule| rule.identities).collect();
        assert_eq!(identities, [odd.len() * 2 - 1, odd.len() * 2]);
    }
}

#[tokio::test(start_paused = true)]
async fn bi_3_a_lease_of_one_id_is_nothing_to_another() {
    let fleet = Fleet::new();
    let build = |name: &str| {
        AdaptiveSemaphore::builder(name, 5).clock(fleet.clock).build(fleet.store.clone()).unwrap()
    };
    let (one, other) = (build("one"), build("other"));
    let (mine, theirs) = (one.try_acquire().await.unwrap(), other.try_acquire().await.unwrap());
    let operators = fleet.store.operators().unwrap();
    let evict = |id: &str, token| ready(operators.evict(&Id::new(id).unwrap(), token)).unwrap().body;
    // Both were granted at the same moment, so all but the id can be the same.
    let same = mine.token() == theirs.token();
    if !same {
        assert!(!evict("other", mine.token().unwrap()));
    }
    assert!(evict("one", mine.token().unwrap()));
    assert!(theirs.is_live());
    assert!(evict("other", theirs.token().unwrap()), "it was still there");
}

// ---- BI-4: the user's own code -----------------------------------------------------------------------------------------

/// Runs a test on a thread of its own; a deadlock is a failure, and not a test that never ends.
fn without_deadlock(test: impl FnOnce() + Send + 'static) {
    let (ended, ends) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        let _ = ended.send(());
    });
    match ends.recv_timeout(Duration::from_secs(30)) {
        Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => thread.join().expect("the test passes"),
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("a deadlock"),
    }
}

fn paused_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

/// A way back to a semaphore from code that was given to it before it was there.
#[derive(Clone, Default)]
struct WayBack {
    semaphore: Arc<OnceLock<AdaptiveSemaphore>>,
    visits: Arc<AtomicUsize>,
    inside: Arc<AtomicBool>,
}

impl WayBack {
    /// Does all that can be done without waiting.
    fn visit(&self) {
        let Some(semaphore) = self.semaphore.get() else { return };
        if self.inside.swap(true, Ordering::SeqCst) {
            return;
        }
        self.visits.fetch_add(1, Ordering::SeqCst);
        let _ = (semaphore.state(), format!("{semaphore:?}"), semaphore.clone());
        if let Poll::Ready(Ok(lease)) = poll_once(pin!(semaphore.try_acquire())) {
            let _ = lease.is_live();
            lease.release(Outcome::Success);
        }
        let mut waits = Box::pin(semaphore.acquire(Acquire::new()));
        let _ = poll_once(waits.as_mut());
        drop(waits);
        let _ = poll_once(pin!(semaphore.flush()));
        let _ = poll_once(pin!(semaphore.refresh()));
        self.inside.store(false, Ordering::SeqCst);
    }

    fn visits(&self) -> usize {
        self.visits.load(Ordering::SeqCst)
    }
}

impl Recorder for WayBack {
    fn acquired(&self, _: Option<&str>, _: AcquireResult, _: Duration) {
        self.visit();
    }

    fn released(&self, _: Option<&str>, _: Outcome, _: Duration) {
        self.visit();
    }

    fn denied(&self, _: LastCause) {
        self.visit();
    }

    fn limit(&self, _: u32, _: Direction) {
        self.visit();
    }

    fn load(&self, _: Option<&str>, _: u32, _: u32) {
        self.visit();
    }

    fn exchanged(&self, _: Duration) {
        self.visit();
    }

    fn store_error(&self) {
        self.visit();
    }
}

#[test]
fn bi_4_code_of_the_user_can_call_back_into_what_called_it() {
    for remote in [false, true] {
        without_deadlock(move || {
            paused_runtime().block_on(async {
                let fleet = Fleet::new();
                let ways: [WayBack; 4] = Default::default();
                let [recorder, on_change, on_error, classifier] = ways.clone();
                let builder = fleet
                    .builder(4)
                    .fallback_local(2)
                    .recorder(recorder)
                    .on_limit_change(move |_| on_change.visit())
                    .on_error(move |_| on_error.visit());
                let wire = Remote::new(&fleet, Wire::Yields);
                let semaphore = match remote {
                    true => builder.build(wire.clone()).unwrap(),
                    false => builder.build(fleet.store.clone()).unwrap(),
                };
                ways.iter().for_each(|way| assert!(way.semaphore.set(semaphore.clone()).is_ok()));
                for _ in 0..3 {
                    let call = || async { Err::<(), _>(()) };
                    let _ = semaphore
                        .with_lease(Acquire::new(), call)
                        .outcome_on_error(|()| {
                            classifier.visit();
                            Outcome::Throttled
                        })
                        .await;
                    tokio::time::sleep(ms(11_000)).await;
                }
                let lease = semaphore.acquire(Acquire::new()).await.unwrap();
                fleet.evict(lease.token().unwrap());
                lease.lost().await;
                if remote {
                    wire.set(Mode::Down);
                    drop(semaphore.acquire(Acquire::new()).await.unwrap());
                    wire.set(Mode::Up);
                    tokio::time::sleep(ms(5_000)).await;
                }
                settled().await;
                let visits = ways.each_ref().map(WayBack::visits);
                assert!(visits.iter().all(|visits| *visits > 0), "{visits:?}");
                tokio::time::timeout(ms(5_000), semaphore.flush()).await.unwrap();
                assert_eq!((semaphore.state().waiting, semaphore.state().in_flight), (0, 1));
                drop(lease);
                settled().await;
                assert_eq!(fleet.held(), 0);
            });
        });
    }
}

/// A waker that looks at the semaphore before it wakes anyone.
struct Curious {
    way: WayBack,
    waker: Waker,
}

impl Wake for Curious {
    fn wake(self: Arc<Self>) {
        self.way.visit();
        self.waker.wake_by_ref();
    }
}

#[test]
fn bi_4_a_waker_can_call_back_too() {
    without_deadlock(|| {
        paused_runtime().block_on(async {
            let fleet = Fleet::new();
            let semaphore = fleet.builder(1).max_limit(1).build(fleet.store.clone()).unwrap();
            let way = WayBack::default();
            assert!(way.semaphore.set(semaphore.clone()).is_ok());
            let held = semaphore.try_acquire().await.unwrap();
            let mut waits = Box::pin(semaphore.acquire(Acquire::new()));
            let got = std::future::poll_fn(|context| {
                let curious = Curious { way: way.clone(), waker: context.waker().clone() };
                waits.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::new(curious))))
            });
            let got = tokio::join!(got, async {
                settled().await;
                held.release(Outcome::Success);
            })
            .0
            .unwrap();
            // And one that waits for the loss of a lease.
            let mut lost = Box::pin(got.lost());
            let lost = std::future::poll_fn(|context| {
                let curious = Curious { way: way.clone(), waker: context.waker().clone() };
                lost.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::new(curious))))
            });
            let before = way.visits();
            assert!(before > 0);
            let _ = tokio::join!(lost, async {
                settled().await;
                fleet.evict(got.token().unwrap());
            });
            assert!(way.visits() > before);
        });
    });
}

/// Panics at each thing that it is told, and counts them.
#[derive(Clone, Default)]
struct Explosive(Arc<AtomicUsize>);

impl Explosive {
    fn explode(&self, what: &str) -> ! {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("recorder: {what}")
    }
}

impl Recorder for Explosive {
    fn acquired(&self, _: Option<&str>, _: AcquireResult, _: Duration) {
        self.explode("acquired")
    }

    fn released(&self, _: Option<&str>, _: Outcome, _: Duration) {
        self.explode("released")
    }

    fn denied(&self, _: LastCause) {
        self.explode("denied")
    }

    fn paused(&self) {
        self.explode("paused")
    }

    fn limit(&self, _: u32, _: Direction) {
        self.explode("limit")
    }

    fn load(&self, _: Option<&str>, _: u32, _: u32) {
        self.explode("load")
    }

    fn exchanged(&self, _: Duration) {
        self.explode("exchanged")
    }

    fn store_error(&self) {
        self.explode("store error")
    }
}

/// Counts what it is told.
#[derive(Clone, Default)]
struct Counting(Arc<AtomicUsize>);

impl Recorder for Counting {
    fn acquired(&self, _: Option<&str>, _: AcquireResult, _: Duration) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn panics(troubles: &Troubles) -> Vec<(&'static str, String)> {
    let panicked = |trouble| match trouble {
        Trouble::Panicked { id: of, place, message } => {
            assert_eq!(of, id());
            Some((place, message))
        }
        _ => None,
    };
    troubles.all().into_iter().filter_map(panicked).collect()
}

#[tokio::test(start_paused = true)]
async fn bi_4_a_recorder_that_panics_is_reported_and_changes_nothing_else() {
    for over_a_wire in [false, true] {
        let (fleet, troubles) = (Fleet::new(), Troubles::default());
        let (explosive, counting) = (Explosive::default(), Counting::default());
        let builder = Valve::builder(ID)
            .clock(fleet.clock)
            .concurrency(Concurrency::Adaptive(Adaptive::new(1)))
            .recorder(explosive.clone())
            .recorder(counting.clone())
            .on_error(troubles.note());
        let wire = Remote::new(&fleet, Wire::Short);
        let valve = match over_a_wire {
            true => builder.build(wire.clone()).unwrap(),
            false => builder.build(fleet.store.clone()).unwrap(),
        };
        let mut events = valve.events();
        let permit = valve.try_acquire(Job::new()).await.unwrap();
        assert!(valve.try_acquire(Job::new()).await.is_err());
        permit.release(Outcome::Throttled);
        valve.flush().await;
        valve.pause(ms(500)).await.unwrap();
        tokio::time::sleep(ms(5_000)).await;
        assert_eq!(events.next().await, Some(tidegate::Event::Paused { length: ms(500) }));
        assert_eq!(events.next().await, Some(tidegate::Event::Resumed), "events go on");
        if over_a_wire {
            wire.set(Mode::Down);
            assert_eq!(valve.refresh().await.unwrap_err().code(), "unavailable");
            wire.set(Mode::Up);
        }
        let said = panics(&troubles);
        assert_eq!(said.len(), explosive.0.load(Ordering::SeqCst), "each is reported");
        assert!(said.iter().all(|(place, _)| *place == "recorder"));
        let mut expected = vec!["acquired", "released", "denied", "paused", "limit", "load"];
        if over_a_wire {
            expected.extend(["exchanged", "store error"]);
        }
        for what in expected {
            assert!(
                said.iter().any(|(_, message)| *message == format!("recorder: {what}")),
                "{what}: {said:?}"
            );
        }
        assert_eq!(counting.0.load(Ordering::SeqCst), 2, "the next recorder is told all the same");
        valve.try_acquire(Job::new()).await.unwrap().release(Outcome::Success);
        valve.flush().await;
        assert_eq!((fleet.held(), valve.stats().in_flight, valve.stats().granted), (0, 0, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn bi_4_a_callback_that_panics_is_reported_and_told_again_the_next_time() {
    let (fleet, troubles) = (Fleet::new(), Troubles::default());
    let semaphore = fleet
        .builder(16)
        .on_limit_change(|limit| panic!("limit {limit}"))
        .on_error(troubles.note())
        .build(fleet.store.clone())
        .unwrap();
    for _ in 0..2 {
        semaphore.try_acquire().await.unwrap().release(Outcome::Throttled);
        tokio::time::sleep(ms(11_000)).await;
    }
    let expected = [("on_limit_change", "limit 8".to_owned()), ("on_limit_change", "limit 4".to_owned())];
    assert_eq!(panics(&troubles), expected);
    assert_eq!(semaphore.state().limit, 4);
}

#[tokio::test(start_paused = true)]
async fn bi_4_a_classifier_that_panics_is_a_failure_and_the_error_comes_back() {
    struct Indecisive;
    impl From<Indecisive> for Release {
        fn from(_: Indecisive) -> Self {
            panic!("no idea")
        }
    }
    let (fleet, troubles) = (Fleet::new(), Troubles::default());
    let released = Arc::new(Mutex::new(Vec::new()));
    struct Outcomes(Arc<Mutex<Vec<Outcome>>>);
    impl Recorder for Outcomes {
        fn released(&self, _: Option<&str>, outcome: Outcome, _: Duration) {
            self.0.lock().unwrap().push(outcome);
        }
    }
    let recorder = Outcomes(Arc::clone(&released));
    let semaphore =
        fleet.builder(16).recorder(recorder).on_error(troubles.note()).build(fleet.store.clone()).unwrap();
    let call = || async { Err::<(), _>("mine") };
    let answer = semaphore
        .with_lease(Acquire::new(), call)
        .outcome_on_error(|error| -> Outcome { panic!("at {error}") })
        .await;
    assert_eq!(answer, Err(tidegate::CallError::Call("mine")));
    let answer = semaphore.with_lease(Acquire::new(), call).outcome_on_error(|_| Indecisive).await;
    assert_eq!(answer, Err(tidegate::CallError::Call("mine")));
    let expected = [("outcome_on_error", "at mine".to_owned()), ("outcome_on_error", "no idea".to_owned())];
    assert_eq!(panics(&troubles), expected);
    assert_eq!(*released.lock().unwrap(), [Outcome::Failure, Outcome::Failure]);
    assert_eq!((semaphore.state().limit, fleet.held()), (16, 0));
}

#[tokio::test(start_paused = true)]
async fn bi_4_a_panic_while_a_call_unwinds_lets_it_go_on_unwinding() {
    let (fleet, troubles) = (Fleet::new(), Troubles::default());
    let explosive = Explosive::default();
    let semaphore = fleet
        .builder(16)
        .recorder(explosive.clone())
        .on_error(troubles.note())
        .build(fleet.store.clone())
        .unwrap();
    let caller = semaphore.clone();
    let call = tokio::spawn(async move {
        let call = || async { panic!("the call's own") };
        let _: Result<(), tidegate::CallError<()>> = caller.with_lease(Acquire::new(), call).await;
    });
    let panic = call.await.unwrap_err().into_panic();
    assert_eq!(*panic.downcast_ref::<&str>().unwrap(), "the call's own");
    assert!(panics(&troubles).iter().any(|(_, message)| message == "recorder: released"));
    assert_eq!((semaphore.state().in_flight, fleet.held()), (0, 0));
}

/// A bomb that goes off when it is thrown away.
struct Bomb(Arc<AtomicUsize>);

impl Drop for Bomb {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("and another one")
    }
}

#[tokio::test(start_paused = true)]
async fn bi_4_whatever_is_thrown_is_caught() {
    let (fleet, troubles) = (Fleet::new(), Troubles::default());
    let dropped = Arc::new(AtomicUsize::new(0));
    let bombs = Arc::clone(&dropped);
    let semaphore = fleet
        .builder(16)
        .on_limit_change(move |limit| match limit {
            8 => panic_any(Bomb(Arc::clone(&bombs))),
            _ => panic_any(7_u32),
        })
        .on_error(troubles.note())
        .build(fleet.store.clone())
        .unwrap();
    for _ in 0..2 {
        semaphore.try_acquire().await.unwrap().release(Outcome::Throttled);
        tokio::time::sleep(ms(11_000)).await;
    }
    let expected =
        [("on_limit_change", "no message".to_owned()), ("on_limit_change", "no message".to_owned())];
    assert_eq!(panics(&troubles), expected);
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
    assert_eq!(semaphore.state().limit, 4);
}

/// Keeps the events at or above `WARN`, or panics at them.
#[derive(Clone, Default)]
struct Loud {
    seen: Arc<Mutex<Vec<String>>>,
    explodes: bool,
}

impl tracing::field::Visit for &Loud {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn Debug) {
        self.seen.lock().unwrap().last_mut().unwrap().push_str(&format!(" {}={value:?}", field.name()));
    }
}

impl tracing::Subscriber for Loud {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("tidegate")
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let level = *event.metadata().level();
        if level <= tracing::Level::WARN {
            self.seen.lock().unwrap().push(level.to_string());
            event.record(&mut &*self);
        }
        assert!(!self.explodes, "a subscriber of its own mind");
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn bi_4_on_error_that_panics_goes_to_tracing() {
    let (fleet, loud) = (Fleet::new(), Loud::default());
    let _open = tracing::subscriber::set_default(loud.clone());
    let semaphore = fleet
        .builder(16)
        .on_limit_change(|limit| panic!("limit {limit}"))
        .on_error(|trouble| panic!("cannot hear of {}", trouble.code()))
        .build(fleet.store.clone())
        .unwrap();
    semaphore.try_acquire().await.unwrap().release(Outcome::Throttled);
    let lease = semaphore.try_acquire().await.unwrap();
    fleet.evict(lease.token().unwrap());
    lease.lost().await;
    let line = |trouble: &str, of: &str| {
        format!("ERROR message={trouble} code=\"panicked\" place=\"on_error\" panic=\"cannot hear of {of}\"")
    };
    assert_eq!(
        *loud.seen.lock().unwrap(),
        [
            line("provider: on_limit_change panicked: limit 8", "panicked"),
            line("provider: a lease was lost while it was held", "lease_lost"),
        ]
    );
    assert_eq!(semaphore.state().limit, 8);
}

#[tokio::test(start_paused = true)]
async fn bi_4_without_on_error_trouble_goes_to_tracing() {
    let (fleet, loud) = (Fleet::new(), Loud::default());
    let _open = tracing::subscriber::set_default(loud.clone());
    let semaphore = fleet.process(16);
    let lease = semaphore.try_acquire().await.unwrap();
    let token = lease.token().unwrap();
    fleet.evict(token);
    lease.lost().await;
    assert_eq!(
        *loud.seen.lock().unwrap(),
        [format!(
            "WARN message=provider: a lease was lost while it was held code=\"lease_lost\" \
             source=provider: lease {token} was lost"
        )]
    );
}

#[tokio::test(start_paused = true)]
async fn bi_4_a_subscriber_of_tracing_that_panics_changes_nothing() {
    for listens in [true, false] {
        let (fleet, troubles) = (Fleet::new(), Troubles::default());
        let loud = Loud { explodes: true, ..Loud::default() };
        let _open = tracing::subscriber::set_default(loud);
        let mut builder = fleet.builder(16);
        if listens {
            builder = builder.on_error(troubles.note());
        }
        let semaphore = builder.build(fleet.store.clone()).unwrap();
        semaphore.try_acquire().await.unwrap().release(Outcome::Throttled);
        let lease = semaphore.try_acquire().await.unwrap();
        fleet.evict(lease.token().unwrap());
        lease.lost().await;
        assert_eq!((semaphore.state().limit, semaphore.state().in_flight), (8, 1));
        if listens {
            let said = panics(&troubles);
            assert!(said.iter().all(|(place, _)| *place == "tracing subscriber"), "{said:?}");
            assert_eq!(said.len(), 2, "the first load and the change");
            assert!(troubles.codes().contains(&"lease_lost"), "what comes after is told");
        }
    }
}
