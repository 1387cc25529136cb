//! Every error says which id, what kind, with which data, and why: and none says anything twice.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::{error::Error, fmt::Debug, sync::Arc, time::Duration};

use tidegate::{
    Acquire, AcquireError, AdaptiveSemaphore, BuildError, CallError, Capability, CheckError, CheckKind,
    Class, Concurrency, ControlError, ExecuteError, Invalid, Job, LastCause, LeaseLost, MemoryStore,
    OnSuperseded, Outcome, Rule, StartError, StoreError, Token, Trouble, Valve, ValveBuilder,
    contract::{Cause, Epoch, Name, RuleKey, time::Moment},
};
use tokio::time::advance;

#[path = "support/fleet.rs"]
mod fleet;

use fleet::{Fleet, ID, Mode, Remote, Troubles, Wire, id, ms, poll_once, settled, until};

const MINUTE: Duration = Duration::from_secs(60);

// ---- BI-5: how an error reads ------------------------------------------------------------------------------------------

fn invalid() -> Invalid {
    Invalid::new("lease_ttl", Duration::from_millis(1), "100 ms to 24 h")
}

fn away() -> StoreError {
    StoreError::unavailable(Cause::Disconnected, "the wire is cut")
}

fn token() -> Token {
    Token { epoch: Epoch(7), slot: 3, fence: 9 }
}

fn lost() -> LeaseLost {
    LeaseLost { id: id(), token: token(), slot: 3, fence: 9 }
}

/// One of each kind, with its code.
fn acquire_errors() -> Vec<(AcquireError, &'static str)> {
    let class = Some(Name::new("class", "batch").unwrap());
    let (timeout, waited, hint, last) = (ms(500), ms(501), Some(ms(30)), LastCause::Slots);
    vec![
        (AcquireError::InvalidOptions { id: id(), source: invalid().into() }, "invalid_options"),
        (AcquireError::PolicySuperseded { id: id(), own: 1, pinned: 2 }, "policy_superseded"),
        (AcquireError::Timeout { id: id(), timeout, class, waited, last, hint, local: false }, "timeout"),
        (AcquireError::Unavailable { id: id(), source: away() }, "unavailable"),
        (AcquireError::Closed { id: id() }, "closed"),
        (AcquireError::QueueFull { id: id(), max_queue: 5 }, "queue_full"),
        (
            AcquireError::CostExceedsLimit { id: id(), rule: RuleKey::from("named:a"), cost: 9, most: 3 },
            "cost_exceeds_limit",
        ),
    ]
}

fn start_errors() -> Vec<(StartError, &'static str)> {
    vec![
        (StartError::InvalidOptions { id: id(), source: invalid().into() }, "invalid_options"),
        (StartError::PolicySuperseded { id: id(), own: 1, pinned: 2 }, "policy_superseded"),
    ]
}

/// Those of its own; the others are those of an acquire, and the call's.
fn execute_errors() -> Vec<(ExecuteError<LeaseLost>, &'static str)> {
    vec![
        (ExecuteError::CircuitOpen { id: id(), since: Moment::from_millis(7) }, "circuit_open"),
        (ExecuteError::NotStarted { id: id() }, "not_started"),
    ]
}

fn check_errors() -> Vec<CheckError> {
    vec![
        CheckError::Timeout(ms(500)),
        CheckError::Failed(Arc::new(lost())),
        CheckError::Panicked("oh no".into()),
    ]
}

fn control_errors() -> Vec<(ControlError, &'static str)> {
    vec![
        (ControlError::InvalidOptions { id: id(), source: invalid().into() }, "invalid_options"),
        (ControlError::Unavailable { id: id(), source: away() }, "unavailable"),
    ]
}

fn troubles() -> Vec<(Trouble, &'static str)> {
    vec![
        (Trouble::StoreAway { id: id(), source: away() }, "unavailable"),
        (Trouble::StoreBack { id: id(), away: ms(700) }, "available"),
        (Trouble::Refused { id: id(), what: "releases", source: invalid().into() }, "invalid_options"),
        (Trouble::LeaseLost { id: id(), source: lost() }, "lease_lost"),
        (Trouble::StateLost { id: id() }, "state_lost"),
        (Trouble::StoreAtRisk { id: id(), risk: "maxmemory-policy may evict".into() }, "store_at_risk"),
        (Trouble::ClockSetBack { id: id(), by: ms(2_000) }, "clock_set_back"),
        (Trouble::DebtCut { id: id(), cut: 12 }, "debt_cut"),
        (Trouble::NotSettled { id: id(), source: invalid() }, "invalid_options"),
        (Trouble::Undelivered { id: id(), dropped: 4 }, "undelivered"),
        (
            Trouble::CheckFailed { id: id(), kind: CheckKind::Idle, source: CheckError::Timeout(ms(500)) },
            "check_failed",
        ),
        (Trouble::Panicked { id: id(), place: "on_limit_change", message: "oh no".into() }, "panicked"),
    ]
}

fn store_errors() -> Vec<(StoreError, &'static str)> {
    let (field, pinned, offered) = ("min_limit".into(), "1".into(), "2".into());
    vec![
        (invalid().into(), "invalid_options"),
        (StoreError::PolicyDiffers { field, pinned, offered }, "invalid_options"),
        (StoreError::Superseded { own: 1, pinned: 2 }, "policy_superseded"),
        (
            StoreError::CostExceedsLimit { index: 0, rule: RuleKey::from("named:a"), cost: 9, most: 3 },
            "cost_exceeds_limit",
        ),
        (StoreError::Unsupported(Capability::Scoped), "invalid_options"),
        (StoreError::LeasesLive { held: 3 }, "leases_live"),
        (StoreError::TooLate { number: 3, last: 4 }, "too_late"),
        (StoreError::NewerLayout { found: 2, known: 1 }, "newer_layout"),
        (away(), "unavailable"),
    ]
}

/// A text in lower case, on one line, that repeats nothing of what lies under it.
fn reads_well(error: &(dyn Error + 'static)) {
    let text = error.to_string();
    let after_id = text.strip_prefix(&format!("{ID}: ")).unwrap_or(&text);
    let first = after_id.chars().next().expect("a text");
    assert!(!first.is_uppercase(), "{text}");
    assert!(!text.ends_with(['.', '!', ':', ' ']) && !text.contains('\n'), "{text}");
    let mut under = error.source();
    while let Some(source) = under {
        assert!(!text.contains(&source.to_string()), "{text:?} repeats {:?}", source.to_string());
        reads_well(source);
        under = source.source();
    }
}

/// How many kinds of error a file defines.
fn kinds(file: &str) -> usize {
    file.lines().filter(|line| line.trim_start().starts_with("#[error(")).count()
}

#[test]
fn bi_5_every_error_reads_in_lower_case_and_repeats_nothing_of_its_source() {
    let mut read = 0;
    let mut check = |error: &(dyn Error + 'static)| {
        read += 1;
        reads_well(error);
    };
    check(&BuildError { id: ID.to_owned(), invalid: invalid() });
    check(&lost());
    check(&CallError::<LeaseLost>::Acquire(AcquireError::Closed { id: id() }));
    check(&CallError::Call(lost()));
    acquire_errors().iter().for_each(|(error, _)| check(error));
    control_errors().iter().for_each(|(error, _)| check(error));
    start_errors().iter().for_each(|(error, _)| check(error));
    execute_errors().iter().for_each(|(error, _)| check(error));
    check(&ExecuteError::<LeaseLost>::Acquire(AcquireError::Closed { id: id() }));
    check(&ExecuteError::Call(lost()));
    check_errors().iter().for_each(|error| check(error));
    troubles().iter().for_each(|(error, _)| check(error));
    assert_eq!(read, kinds(include_str!("../src/error.rs")), "every kind that there is");
    read = 0;
    let mut check = |error: &(dyn Error + 'static)| {
        read += 1;
        reads_well(error);
    };
    store_errors().iter().for_each(|(error, _)| check(error));
    assert_eq!(
        read,
        kinds(include_str!("../../tidegate-core/src/store/error.rs")),
        "every kind that there is"
    );
    reads_well(&invalid());
}

#[test]
fn bi_5_every_error_has_the_id_and_a_stable_code() {
    fn check<E: Error>(errors: Vec<(E, &str)>, code: fn(&E) -> &'static str) {
        for (error, expected) in errors {
            assert_eq!(code(&error), expected, "{error}");
            assert!(error.to_string().starts_with(&format!("{ID}: ")), "{error}");
        }
    }
    for (error, code) in store_errors() {
        // Which id it is about is known to whoever asked; what wraps it says so.
        assert_eq!(error.code(), code);
    }
    assert!(acquire_errors().iter().all(|(error, _)| *error.id() == id()));
    assert!(control_errors().iter().all(|(error, _)| *error.id() == id()));
    assert!(start_errors().iter().all(|(error, _)| *error.id() == id()));
    for (error, code) in acquire_errors() {
        assert_eq!(ExecuteError::<LeaseLost>::Acquire(error).code(), code);
    }
    assert_eq!(ExecuteError::Call(lost()).code(), "call");
    assert_eq!(ExecuteError::Call(lost()).call(), Some(lost()));
    check(start_errors(), StartError::code);
    check(execute_errors(), ExecuteError::code);
    assert!(troubles().iter().all(|(error, _)| *error.id() == id()));
    for (error, code) in acquire_errors() {
        assert_eq!(CallError::<LeaseLost>::Acquire(error).code(), code);
    }
    check(acquire_errors(), AcquireError::code);
    check(control_errors(), ControlError::code);
    check(troubles(), Trouble::code);
    check(vec![(lost(), "lease_lost")], LeaseLost::code);
    let build = BuildError { id: ID.to_owned(), invalid: invalid() };
    assert_eq!((build.code(), build.option()), ("invalid_options", "lease_ttl"));
    assert_eq!(build.to_string(), format!("cannot build {ID:?}"));
    assert_eq!(CallError::Call(lost()).code(), "call");
}

#[test]
fn bi_5_the_cause_is_the_source() {
    let source = |error: &dyn Error| error.source().map(ToString::to_string);
    assert_eq!(
        source(&BuildError { id: ID.to_owned(), invalid: invalid() }).unwrap(),
        "lease_ttl: 1ms is not allowed: 100 ms to 24 h"
    );
    for (error, code) in acquire_errors() {
        let expected = match code {
            "invalid_options" => Some(invalid().to_string()),
            "unavailable" => Some("store unavailable: disconnected: the wire is cut".to_owned()),
            _ => None,
        };
        assert_eq!(source(&error), expected);
        // A call passes the acquire's error through as it is.
        let call = CallError::<LeaseLost>::Acquire(error.clone());
        assert_eq!((call.to_string(), source(&call)), (error.to_string(), source(&error)));
    }
    assert_eq!(source(&Trouble::LeaseLost { id: id(), source: lost() }), Some(lost().to_string()));
    let client = std::io::Error::other("connection reset by peer");
    let error = StoreError::Unavailable {
        cause: Cause::Disconnected,
        detail: "EVALSHA".into(),
        source: Some(std::sync::Arc::new(client)),
    };
    assert_eq!(source(&error).unwrap(), "connection reset by peer");
    reads_well(&AcquireError::Unavailable { id: id(), source: error });
}

#[test]
fn bi_5_an_error_repeats_only_the_beginning_of_what_is_long() {
    let long = "x".repeat(1_000_000);
    let error = AdaptiveSemaphore::builder(long.clone(), 5).build(MemoryStore::new()).unwrap_err();
    assert!(error.to_string().len() < 300, "{} bytes", error.to_string().len());
    let invalid = error.source().unwrap().to_string();
    assert!(invalid.len() < 300, "{} bytes", invalid.len());
    assert_eq!(error.id, long, "as data it is whole");
}

// ---- BI-5: the data, where they come from ------------------------------------------------------------------------------

fn valve(fleet: &Fleet) -> ValveBuilder {
    Valve::builder(ID).clock(fleet.clock)
}

/// A timeout, taken apart.
#[derive(PartialEq, Debug)]
struct TimedOut {
    timeout: Duration,
    class: Option<String>,
    waited: Duration,
    last: LastCause,
    hint: Option<Duration>,
    local: bool,
}

#[track_caller]
fn timed_out<T: Debug>(result: Result<T, AcquireError>) -> TimedOut {
    match result {
        Err(AcquireError::Timeout { id: of, timeout, class, waited, last, hint, local }) => {
            assert_eq!(of, id());
            let class = class.map(|class| class.to_string());
            TimedOut { timeout, class, waited, last, hint, local }
        }
        other => panic!("{other:?}"),
    }
}

#[tokio::test(start_paused = true)]
async fn bi_5_a_timeout_says_how_long_in_which_class_and_what_denied_it_last() {
    let fleet = Fleet::new();
    let valve = valve(&fleet)
        .rule(Rule::fixed_window(3, MINUTE))
        .concurrency(Concurrency::Global(2))
        .class(Class::unreserved("batch"))
        .lease_ttl(ms(5_000))
        .build(fleet.store.clone())
        .unwrap();
    let (first, second) =
        (valve.try_acquire(Job::new()).await.unwrap(), valve.try_acquire(Job::new()).await.unwrap());
    let once = timed_out(valve.try_acquire(Job::new().class("batch")).await);
    let expected = TimedOut {
        timeout: ms(0),
        class: Some("batch".to_owned()),
        waited: ms(0),
        last: LastCause::Slots,
        hint: Some(ms(5_000)),
        local: false,
    };
    assert_eq!(once, expected);
    let waited = timed_out(valve.acquire(Job::new().timeout(ms(800))).await);
    assert_eq!((waited.timeout, waited.waited, waited.class), (ms(800), ms(800), None));
    assert_eq!(waited.last, LastCause::Slots);
    let hint = waited.hint.expect("until the earliest lease could expire");
    assert!(hint <= ms(5_000), "{hint:?}");
    first.release(Outcome::Success);
    second.release(Outcome::Success);

    valve.try_acquire(Job::new()).await.unwrap().release(Outcome::Success);
    let rate = timed_out(valve.try_acquire(Job::new()).await);
    assert_eq!((rate.last, rate.hint), (LastCause::Rate, Some(MINUTE - ms(800))));
    valve.pause(ms(3_000)).await.unwrap();
    let paused = timed_out(valve.try_acquire(Job::new()).await);
    assert_eq!((paused.last, paused.hint), (LastCause::Pause, Some(ms(3_000))));
}

#[tokio::test(start_paused = true)]
async fn bi_5_a_timeout_without_the_store_says_that_it_was_decided_here() {
    let fleet = Fleet::new();
    let remote = Remote::new(&fleet, Wire::Short);
    let semaphore = fleet.builder(5).fallback_local(1).build(remote.clone()).unwrap();
    remote.set(Mode::Down);
    let lease = semaphore.try_acquire().await.unwrap();
    assert!(lease.is_local());
    let denied = timed_out(semaphore.acquire(Acquire::within(ms(50))).await);
    assert_eq!((denied.last, denied.local, denied.waited), (LastCause::Slots, true, ms(50)));
    lease.release(Outcome::Success);
}

/// Jobs that stand behind one that is held up are never asked for; their timeouts still say why.
#[tokio::test(start_paused = true)]
async fn un_5_a_job_behind_others_says_what_holds_them_up() {
    for remote in [false, true] {
        let fleet = Fleet::new();
        let builder = valve(&fleet).rule(Rule::fixed_window(1, MINUTE));
        let valve = if remote {
            builder.build(Remote::new(&fleet, Wire::Short))
        } else {
            builder.build(fleet.store.clone())
        }
        .unwrap();
        valve.acquire(Job::new()).await.unwrap().release(Outcome::Success);
        let head = tokio::spawn({
            let valve = valve.clone();
            async move { valve.acquire(Job::new()).await }
        });
        until(|| valve.stats().denied.rate == 1).await;
        let behind = timed_out(valve.acquire(Job::new().timeout(ms(200))).await);
        assert_eq!((behind.last, behind.hint), (LastCause::Rate, Some(MINUTE - ms(200))), "remote: {remote}");
        assert_eq!(timed_out(valve.try_acquire(Job::new()).await).last, LastCause::Rate);
        valve.pause(ms(10_000)).await.unwrap();
        settled().await;
        let behind = timed_out(valve.acquire(Job::new().timeout(ms(200))).await);
        assert_eq!(behind.last, LastCause::Pause, "remote: {remote}");
        head.abort();
    }
}

#[tokio::test(start_paused = true)]
async fn un_5_a_scoped_job_behind_its_own_tenant_says_what_holds_it_up() {
    let fleet = Fleet::new();
    let valve = valve(&fleet)
        .rule(Rule::fixed_window(1, MINUTE).scoped("tenant"))
        .build(fleet.store.clone())
        .unwrap();
    let job = |tenant: &str| Job::new().scope("tenant", tenant);
    valve.acquire(job("a")).await.unwrap().release(Outcome::Success);
    let mut head = Box::pin(valve.acquire(job("a")));
    assert!(poll_once(head.as_mut()).is_pending());
    let behind = timed_out(valve.acquire(job("a").timeout(ms(200))).await);
    assert_eq!(behind.last, LastCause::Rate);
    assert!(behind.hint.is_some_and(|hint| hint > ms(50_000)), "{behind:?}");
    assert_eq!(timed_out(valve.try_acquire(job("a")).await).last, LastCause::Rate);
    valve.try_acquire(job("b")).await.unwrap().release(Outcome::Success);
}

/// A try that comes while others are asked for ends with the answer to them, and not when it is their turn again.
#[tokio::test(start_paused = true)]
async fn un_5_a_try_behind_an_exchange_under_way_says_what_came_of_it() {
    for scoped in [false, true] {
        let fleet = Fleet::new();
        let rule = Rule::fixed_window(1, MINUTE);
        let rule = if scoped { rule.scoped("tenant") } else { rule };
        let job = || if scoped { Job::new().scope("tenant", "a") } else { Job::new() };
        let valve = valve(&fleet).rule(rule).build(Remote::new(&fleet, Wire::Takes(ms(5)))).unwrap();
        valve.acquire(job()).await.unwrap().release(Outcome::Success);
        let head = tokio::spawn({
            let (valve, job) = (valve.clone(), job());
            async move { valve.acquire(job).await }
        });
        settled().await;
        let (tried, took) = fleet.timed(valve.try_acquire(job())).await;
        assert_eq!(timed_out(tried).last, LastCause::Rate);
        assert!(took <= ms(20), "{took:?}");
        head.abort();
    }
}

/// More tries at once than one exchange takes are no denials.
#[tokio::test(start_paused = true)]
async fn un_5_a_crowd_of_tries_has_all_the_room_there_is() {
    let fleet = Fleet::new();
    let semaphore = fleet.builder(900).build(Remote::new(&fleet, Wire::Takes(ms(1)))).unwrap();
    let tries: Vec<_> = (0..1_000)
        .map(|_| {
            let semaphore = semaphore.clone();
            tokio::spawn(async move { semaphore.try_acquire().await })
        })
        .collect();
    let mut leases = Vec::new();
    for tried in tries {
        leases.extend(tried.await.unwrap());
    }
    assert_eq!(leases.len(), 900);
}

#[tokio::test(start_paused = true)]
async fn bi_5_unavailable_says_in_which_way() {
    for (mode, expected) in [(Mode::Down, Cause::Disconnected), (Mode::Hangs, Cause::NoAnswer)] {
        let fleet = Fleet::new();
        let remote = Remote::new(&fleet, Wire::Short);
        let semaphore = fleet.builder(5).build(remote.clone()).unwrap();
        remote.set(mode);
        let error = semaphore.try_acquire().await.unwrap_err();
        let AcquireError::Unavailable { source: StoreError::Unavailable { cause, .. }, .. } = &error else {
            panic!("{error:?}")
        };
        assert_eq!(*cause, expected);
        reads_well(&error);
    }
}

#[tokio::test(start_paused = true)]
async fn bi_5_a_full_queue_says_how_many_it_takes() {
    let fleet = Fleet::new();
    let valve =
        valve(&fleet).concurrency(Concurrency::Global(1)).max_queue(2).build(fleet.store.clone()).unwrap();
    let _held = valve.try_acquire(Job::new()).await.unwrap();
    let mut waiting: Vec<_> = (0..2).map(|_| Box::pin(valve.acquire(Job::new()))).collect();
    waiting.iter_mut().for_each(|waits| assert!(poll_once(waits.as_mut()).is_pending()));
    let error = valve.acquire(Job::new()).await.unwrap_err();
    assert_eq!(error, AcquireError::QueueFull { id: id(), max_queue: 2 });
    assert_eq!(error.to_string(), "provider: 2 jobs wait already");
    drop(waiting.pop());
    assert!(poll_once(Box::pin(valve.acquire(Job::new())).as_mut()).is_pending());
}

#[tokio::test(start_paused = true)]
async fn bi_5_a_cost_that_never_fits_says_in_which_rule_and_how_much_would() {
    let fleet = Fleet::new();
    let valve = valve(&fleet)
        .rule(Rule::token_bucket(100, MINUTE).burst(30).named("tokens"))
        .rule(Rule::token_bucket(10, MINUTE))
        .build(fleet.store.clone())
        .unwrap();
    let error = valve.acquire(Job::new().cost("tokens", 31)).await.unwrap_err();
    let expected =
        AcquireError::CostExceedsLimit { id: id(), rule: RuleKey::from("named:tokens"), cost: 31, most: 30 };
    assert_eq!(error, expected);
    let error = valve.acquire(Job::new().cost_each(11).cost("tokens", 30)).await.unwrap_err();
    let rule = RuleKey::from("token_bucket:60000");
    assert_eq!(error, AcquireError::CostExceedsLimit { id: id(), rule, cost: 11, most: 10 });
    valve.try_acquire(Job::new().cost("tokens", 30)).await.unwrap().release(Outcome::Success);
}

#[tokio::test(start_paused = true)]
async fn bi_5_a_policy_that_differs_is_told_by_field_and_both_values() {
    let fleet = Fleet::new();
    let pinned = fleet.builder(5).build(fleet.store.clone()).unwrap();
    pinned.try_acquire().await.unwrap().release(Outcome::Success);
    let other = fleet.builder(5).max_limit(77).build(fleet.store.clone()).unwrap();
    let error = other.try_acquire().await.unwrap_err();
    assert_eq!(error.code(), "invalid_options");
    let AcquireError::InvalidOptions { source: StoreError::PolicyDiffers { field, pinned, offered }, .. } =
        error
    else {
        panic!("{error:?}")
    };
    assert_eq!((field.as_str(), pinned.as_str(), offered.as_str()), ("max_limit", "1000", "77"));
}

#[tokio::test(start_paused = true)]
async fn bi_5_a_superseded_policy_says_both_revisions() {
    let fleet = Fleet::new();
    let build = |revision| {
        let builder = fleet.builder(5).revision(revision).on_superseded(OnSuperseded::Refuse);
        builder.build(fleet.store.clone()).unwrap()
    };
    build(7).try_acquire().await.unwrap().release(Outcome::Success);
    let error = build(3).try_acquire().await.unwrap_err();
    assert_eq!(error, AcquireError::PolicySuperseded { id: id(), own: 3, pinned: 7 });
    assert_eq!(error.to_string(), "provider: policy revision 3 is superseded by revision 7");
}

#[tokio::test(start_paused = true)]
async fn bi_5_a_lost_lease_says_its_token_slot_and_fence() {
    let (fleet, troubles) = (Fleet::new(), Troubles::default());
    let semaphore = fleet.builder(5).on_error(troubles.note()).build(fleet.store.clone()).unwrap();
    let lease = semaphore.try_acquire().await.unwrap();
    let token = lease.token().unwrap();
    fleet.evict(token);
    let lost = lease.lost().await;
    assert_eq!(lost, LeaseLost { id: id(), token, slot: token.slot, fence: token.fence });
    assert_eq!(lost.to_string(), format!("provider: lease {token} was lost"));
    assert_eq!(troubles.all(), [Trouble::LeaseLost { id: id(), source: lost }]);
}

#[tokio::test(start_paused = true)]
async fn bi_5_what_is_closed_says_so() {
    let fleet = Fleet::new();
    let semaphore = fleet.process(5);
    semaphore.close().await;
    assert_eq!(semaphore.try_acquire().await.unwrap_err(), AcquireError::Closed { id: id() });
}

#[tokio::test(start_paused = true)]
async fn bi_5_a_control_that_is_refused_says_which_option() {
    let fleet = Fleet::new();
    let valve = valve(&fleet).rule(Rule::fixed_window(1, MINUTE)).build(fleet.store.clone()).unwrap();
    let error = valve.pause(Duration::ZERO).await.unwrap_err();
    let ControlError::InvalidOptions { source: StoreError::Invalid(invalid), .. } = &error else {
        panic!("{error:?}")
    };
    assert_eq!((invalid.option.as_str(), invalid.given.as_str()), ("pause", "0ns"));
    reads_well(&error);
}

// ---- the forms in which callers meet them ------------------------------------------------------------------------------

#[derive(Clone, PartialEq, Debug, thiserror::Error)]
enum ProviderError {
    #[error("too many requests")]
    TooManyRequests,
    #[error("broken pipe")]
    Broken,
}

async fn call_provider(answer: Result<u32, ProviderError>) -> Result<u32, ProviderError> {
    answer
}

/// The call of the quick start, in a function that returns any error.
async fn quick_start(
    semaphore: &AdaptiveSemaphore,
    answer: Result<u32, ProviderError>,
) -> Result<u32, Box<dyn Error + Send + Sync>> {
    let answer = semaphore
        .with_lease(Acquire::within(Duration::from_secs(30)), || call_provider(answer))
        .outcome_on_error(|e: &ProviderError| match e {
            ProviderError::TooManyRequests => Outcome::Throttled,
            _ => Outcome::Failure,
        })
        .await?;
    Ok(answer)
}

#[tokio::test(start_paused = true)]
async fn as_9_a_call_under_a_lease_reads_as_in_the_quick_start() {
    let fleet = Fleet::new();
    let semaphore = fleet.process(8);
    assert_eq!(quick_start(&semaphore, Ok(7)).await.unwrap(), 7);
    let error = quick_start(&semaphore, Err(ProviderError::TooManyRequests)).await.unwrap_err();
    let call: &CallError<ProviderError> = error.downcast_ref().expect("a call's error");
    assert_eq!(*call, CallError::Call(ProviderError::TooManyRequests));
    assert_eq!(call.to_string(), "too many requests");
    assert_eq!(semaphore.state().limit, 4, "it was throttled");
    semaphore.close().await;
    let error = quick_start(&semaphore, Ok(7)).await.unwrap_err();
    assert_eq!(error.to_string(), "provider: closed");
}

#[tokio::test(start_paused = true)]
async fn as_9_a_call_error_becomes_the_callers_own() {
    #[derive(Debug, PartialEq, thiserror::Error)]
    enum OwnError {
        #[error("at the gate")]
        Gate(#[from] AcquireError),
        #[error("at the provider")]
        Provider(#[from] ProviderError),
    }
    let fleet = Fleet::new();
    let semaphore = fleet.process(8);
    let run = |answer: Result<u32, ProviderError>| {
        let call = move || async move { Ok::<u32, OwnError>(call_provider(answer).await?) };
        let call = semaphore.with_lease(Acquire::new(), call);
        async move { call.await.map_err(CallError::into_inner) }
    };
    assert_eq!(run(Ok(7)).await, Ok(7));
    assert_eq!(run(Err(ProviderError::Broken)).await, Err(OwnError::Provider(ProviderError::Broken)));
    semaphore.close().await;
    assert_eq!(run(Ok(7)).await, Err(OwnError::Gate(AcquireError::Closed { id: id() })));
}

#[tokio::test(start_paused = true)]
async fn as_9_a_call_can_be_bounded_joined_and_spawned() {
    let fleet = Fleet::new();
    let semaphore = fleet.process(8);
    let call = || semaphore.with_lease(Acquire::new(), || async { Ok::<_, ProviderError>(7) });
    let (one, other) = tokio::join!(call(), call());
    assert_eq!((one, other), (Ok(7), Ok(7)));
    let slow = semaphore.with_lease(Acquire::new(), || async {
        tokio::time::sleep(MINUTE).await;
        Ok::<_, ProviderError>(7)
    });
    assert!(tokio::time::timeout(ms(50), slow).await.is_err());
    assert_eq!(semaphore.state().in_flight, 0, "what is dropped is released");
    let spawned = tokio::spawn(call().into_future());
    assert_eq!(spawned.await.unwrap(), Ok(7));
}

#[tokio::test(start_paused = true)]
async fn va_1_a_permit_reads_as_in_the_quick_start() {
    struct Reply {
        total_tokens: u64,
    }
    let fleet = Fleet::new();
    let valve = valve(&fleet)
        .rule(Rule::token_bucket(500, MINUTE).named("requests"))
        .rule(Rule::sliding_window(200_000, MINUTE).named("tokens"))
        .rule(Rule::fixed_window(60, MINUTE).scoped("tenant"))
        .concurrency(Concurrency::Global(40))
        .build(fleet.store.clone())
        .unwrap();
    let answers = [Ok(Reply { total_tokens: 1_204 }), Err(Some(ms(3_000))), Err(None)];
    for answer in answers {
        let job = Job::new().scope("tenant", "acme").cost("tokens", 1_800).timeout(Duration::from_secs(20));
        let permit = valve.acquire(job).await.unwrap();
        match &answer {
            Ok(reply) => permit.settle("tokens", reply.total_tokens).release(Outcome::Success),
            Err(retry_after) => {
                if let Some(wait) = *retry_after {
                    valve.pause(wait).await.unwrap();
                }
                permit.release(Outcome::Throttled);
            }
        }
    }
    let tokens = fleet.snapshot().rules.into_iter().find(|rule| &rule.rule == "named:tokens").unwrap();
    assert_eq!(tokens.level, Some(200_000 - 1_204 - 2 * 1_800));
    advance(ms(1)).await;
}
