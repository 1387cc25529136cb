//! What cannot be taken is refused whole, before anything changes; and odd names stay apart.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::{
    error::Error,
    fmt::Debug,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use tidegate::{
    AcquireError, Adaptive, AdaptiveSemaphore, Aimd, BuildError, Capability, Class, Concurrency, Invalid,
    Job, MemoryStore, Metrics, Outcome, Rule, SemaphoreBuilder, Store, StoreError, Trouble, Valve,
    ValveBuilder, contract::Id,
};

#[path = "support/fleet.rs"]
mod fleet;

use fleet::{Fleet, ID, Remote, Troubles, Wire, id, ms, ready, settled};

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
        for (at, identity) in odd.iter().enumerate() {
            let job = Job::new().scope("tenant", format!("{at} of them")).scope("model", *identity);
            assert!(valve.try_acquire(job).await.is_ok(), "{id}: {identity:?} is new as a model");
        }
        let seen = ready(fleet.store.operators().unwrap().snapshot(&Id::new(id).unwrap())).unwrap();
        let identities: Vec<usize> =
            seen.body.unwrap().rules.iter().map(|rule| rule.identities.unwrap()).collect();
        assert_eq!(identities, [odd.len() * 2, odd.len() * 2]);
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
