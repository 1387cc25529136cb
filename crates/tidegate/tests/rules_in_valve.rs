//! What rate rules promise, as a valve's user meets them.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::time::Duration;

use tidegate::{
    AcquireError, BuildError, Job, LastCause, MemoryStore, Permit, Rule, StoreError, Valve, ValveBuilder,
};
use tokio::time::advance;

#[path = "support/fleet.rs"]
mod fleet;

use fleet::{Fleet, ID, Remote, Wire, ms, settled};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3_600);
const DAY: Duration = Duration::from_secs(86_400);
const MOST: u64 = 1_000_000_000_000;

fn process(fleet: &Fleet, rules: impl IntoIterator<Item = Rule>) -> Valve {
    let builder = rules.into_iter().fold(Valve::builder(ID).clock(fleet.clock), ValveBuilder::rule);
    builder.build(fleet.store.clone()).unwrap()
}

async fn try_for(valve: &Valve, cost: u64) -> Result<Permit, AcquireError> {
    valve.try_acquire(Job::new().cost_each(cost)).await
}

/// Asserts that so much is there and no more, and spends it.
async fn spend_all(valve: &Valve, cost: u64) {
    let more = try_for(valve, cost + 1).await.map(drop).expect_err("there is no more");
    assert!(matches!(more.code(), "timeout" | "cost_exceeds_limit"), "{more:?}");
    drop(try_for(valve, cost).await.expect("so much is there"));
}

#[track_caller]
fn hint(result: Result<Permit, AcquireError>) -> Duration {
    match result {
        Err(AcquireError::Timeout { last: LastCause::Rate, hint: Some(hint), .. }) => hint,
        other => panic!("no denial with a hint: {other:?}"),
    }
}

/// The levels by rule.
fn levels(fleet: &Fleet) -> Vec<(String, i64)> {
    let rules = fleet.snapshot().rules;
    rules.into_iter().map(|rule| (rule.rule.to_string(), rule.level.expect("no scope"))).collect()
}

fn build(rules: impl IntoIterator<Item = Rule>) -> Result<Valve, BuildError> {
    rules.into_iter().fold(Valve::builder(ID), ValveBuilder::rule).build(MemoryStore::new())
}

#[track_caller]
fn refused(rules: impl IntoIterator<Item = Rule>) -> (String, String) {
    let error = build(rules).map(drop).expect_err("it cannot be built");
    (error.invalid.option, error.invalid.allowed)
}

// ---- RU-1 ----------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn ru_1_a_rule_is_known_by_its_name_or_by_its_algorithm_and_interval() {
    let fleet = Fleet::new();
    let rules = [
        Rule::token_bucket(7, SECOND),
        Rule::token_bucket(7, MINUTE),
        Rule::fixed_window(7, SECOND),
        Rule::sliding_window(7, SECOND).named("tokens"),
        Rule::sliding_window(7, ms(1)),
    ];
    let valve = process(&fleet, rules);
    drop(try_for(&valve, 2).await.unwrap());
    let keys: Vec<String> = levels(&fleet).into_iter().map(|(key, _)| key).collect();
    let expected =
        ["fixed_window:1000", "named:tokens", "sliding_window:1", "token_bucket:1000", "token_bucket:60000"];
    assert_eq!(keys, expected);
    // A denial names the rule that set the hint.
    let error = try_for(&valve, 8).await.map(drop).unwrap_err();
    assert!(
        matches!(&error, AcquireError::CostExceedsLimit { rule, .. } if expected.contains(&rule.as_str()))
    );
}

#[test]
fn ru_1_two_rules_of_one_key_are_refused() {
    let bucket = || Rule::token_bucket(1, SECOND);
    for twins in [
        [bucket(), Rule::token_bucket(2, SECOND)],
        [bucket(), bucket().scoped("tenant")],
        [bucket().named("a"), Rule::fixed_window(1, MINUTE).named("a")],
        [bucket().named("a").scoped("tenant"), bucket().named("a").scoped("model")],
    ] {
        let (option, allowed) = refused(twins);
        assert_eq!(option, "rules");
        assert!(allowed.contains("name one of the two"), "{allowed}");
    }
    for fine in [
        [bucket(), Rule::token_bucket(1, ms(1_001))],
        [bucket(), Rule::fixed_window(1, SECOND)],
        [bucket(), bucket().named("a").scoped("tenant")],
        [bucket().named("a"), bucket().named("b")],
    ] {
        assert!(build(fine).is_ok());
    }
}

#[test]
fn ru_1_a_burst_on_a_window_is_refused() {
    for window in [Rule::fixed_window(5, SECOND), Rule::sliding_window(5, SECOND)] {
        let (option, allowed) = refused([window.clone().burst(5)]);
        assert_eq!(option, "rule.burst");
        assert!(allowed.contains("none on a"), "{allowed}");
        assert!(build([window]).is_ok());
    }
    assert!(build([Rule::token_bucket(5, SECOND).burst(9)]).is_ok());
}

// ---- RU-2 ----------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn ru_2_a_job_costs_one_in_every_rule_unless_told() {
    let fleet = Fleet::new();
    let valve = process(
        &fleet,
        [
            Rule::token_bucket(500, MINUTE).named("requests"),
            Rule::sliding_window(200_000, MINUTE).named("tokens"),
            Rule::fixed_window(600, MINUTE),
        ],
    );
    let left = || levels(&fleet).into_iter().map(|(_, level)| level).collect::<Vec<_>>();
    drop(valve.acquire(Job::new()).await.unwrap());
    assert_eq!(left(), [599, 499, 199_999], "fixed window, requests, tokens");
    drop(valve.acquire(Job::new().cost("tokens", 1_800)).await.unwrap());
    assert_eq!(left(), [598, 498, 198_199]);
    drop(valve.acquire(Job::new().cost_each(3).cost("tokens", 0)).await.unwrap());
    assert_eq!(left(), [595, 495, 198_199]);
}

#[tokio::test(start_paused = true)]
async fn ru_2_a_cost_for_a_rule_that_is_not_there_is_refused() {
    let fleet = Fleet::new();
    let valve =
        process(&fleet, [Rule::token_bucket(5, SECOND).named("requests"), Rule::fixed_window(5, MINUTE)]);
    for (job, option) in [
        (Job::new().cost("tokens", 1), "cost of tokens"),
        (Job::new().cost("fixed_window-60000", 1), "cost of fixed_window-60000"),
        (Job::new().cost("requests", 1).cost("requests", 1), "cost of requests"),
        (Job::new().cost("not a name", 1), "cost"),
        (Job::new().cost("", 1), "cost"),
    ] {
        let error = valve.acquire(job).await.map(drop).unwrap_err();
        let AcquireError::InvalidOptions { source: StoreError::Invalid(invalid), .. } = &error else {
            panic!("{error:?}")
        };
        assert_eq!(invalid.option, option);
        assert_eq!(error.code(), "invalid_options");
    }
    spend_all(&valve, 5).await;
}

#[tokio::test(start_paused = true)]
async fn ru_2_a_cost_of_nothing_passes_a_rule_that_is_spent() {
    for remote in [false, true] {
        let fleet = Fleet::new();
        let rules = [
            Rule::token_bucket(5, DAY).named("bucket"),
            Rule::fixed_window(5, DAY).named("fixed"),
            Rule::sliding_window(5, DAY).named("sliding"),
        ];
        let builder = rules.into_iter().fold(Valve::builder(ID).clock(fleet.clock), ValveBuilder::rule);
        let valve = match remote {
            true => builder.build(Remote::new(&fleet, Wire::Yields)).unwrap(),
            false => builder.build(fleet.store.clone()).unwrap(),
        };
        for _ in 0..3 {
            drop(try_for(&valve, 0).await.unwrap());
        }
        assert!(levels(&fleet).iter().all(|(_, level)| *level == 5), "nothing is spent");
        drop(try_for(&valve, 5).await.unwrap());
        drop(try_for(&valve, 0).await.expect("it passes all three"));
        let one = Job::new().cost_each(0).cost("fixed", 1);
        hint(valve.try_acquire(one).await);
    }
}

#[tokio::test(start_paused = true)]
async fn ru_2_a_cost_that_can_never_fit_is_refused_at_once_and_spends_nothing() {
    let rules = [
        (Rule::token_bucket(10, HOUR).burst(4).named("a"), 4),
        (Rule::token_bucket(3, HOUR).burst(20).named("a"), 20),
        (Rule::fixed_window(7, HOUR).named("a"), 7),
        (Rule::sliding_window(9, HOUR).named("a"), 9),
    ];
    for (rule, most) in rules {
        let fleet = Fleet::new();
        let valve = process(&fleet, [rule, Rule::fixed_window(100, HOUR).named("other")]);
        for cost in [most + 1, MOST, u64::MAX] {
            let job = Job::new().cost("a", cost).timeout(DAY);
            let (error, took) = fleet.timed(valve.acquire(job)).await;
            let error = error.map(drop).unwrap_err();
            let AcquireError::CostExceedsLimit { rule, cost: named, most: can, .. } = &error else {
                panic!("{error:?}")
            };
            assert_eq!((rule.as_str(), *named, *can), ("named:a", cost, most));
            assert_eq!((error.code(), took), ("cost_exceeds_limit", Duration::ZERO));
        }
        assert_eq!(valve.stats().queued, 0, "it was never queued");
        drop(
            valve
                .try_acquire(Job::new().cost("a", most))
                .await
                .expect("the most that fits, and nothing was spent"),
        );
        let other = levels(&fleet).into_iter().find(|(key, _)| key == "named:other");
        assert_eq!(other, Some(("named:other".to_owned(), 99)));
    }
}

#[tokio::test(start_paused = true)]
async fn ru_2_jobs_that_wait_are_not_disturbed_by_one_that_can_never_fit() {
    let fleet = Fleet::new();
    let valve = process(&fleet, [Rule::token_bucket(1, SECOND)]);
    drop(try_for(&valve, 1).await.unwrap());
    let handle = valve.clone();
    let waits = tokio::spawn(async move { handle.acquire(Job::new()).await.map(drop) });
    settled().await;
    let error = valve.acquire(Job::new().cost_each(2).priority(9)).await.map(drop).unwrap_err();
    assert_eq!(error.code(), "cost_exceeds_limit");
    let (done, took) = fleet.timed(waits).await;
    done.unwrap().unwrap();
    assert_eq!(took, SECOND);
}

// ---- RU-3 ----------------------------------------------------------------------------------------------------------

#[test]
fn ru_3_limits_and_intervals_are_held_within_their_bounds() {
    let nano = Duration::from_nanos(1);
    let year = DAY * 366;
    let each: [fn(u64, Duration) -> Rule; 3] = [Rule::token_bucket, Rule::fixed_window, Rule::sliding_window];
    for rule in each {
        for (limit, interval, option) in [
            (0, SECOND, "rule.limit"),
            (MOST + 1, SECOND, "rule.limit"),
            (5, Duration::ZERO, "rule.interval"),
            (5, ms(1) - nano, "rule.interval"),
            (5, ms(1) + nano, "rule.interval"),
            (5, year + ms(1), "rule.interval"),
            (5, Duration::MAX, "rule.interval"),
        ] {
            assert_eq!(refused([rule(limit, interval)]).0, option, "{limit} per {interval:?}");
        }
        for (limit, interval) in [(1, SECOND), (MOST, SECOND), (5, ms(1)), (5, year)] {
            assert!(build([rule(limit, interval)]).is_ok(), "{limit} per {interval:?}");
        }
    }
    assert_eq!(refused([Rule::token_bucket(5, SECOND).burst(0)]).0, "rule.burst");
    assert_eq!(refused([Rule::token_bucket(5, SECOND).burst(MOST + 1)]).0, "rule.burst");
    assert!(build([Rule::token_bucket(1_000_000, SECOND).burst(MOST)]).is_ok());
    for name in ["", "a b", "ä", &"x".repeat(65)] {
        assert_eq!(refused([Rule::token_bucket(5, SECOND).named(name)]).0, "rule.name");
        assert_eq!(refused([Rule::token_bucket(5, SECOND).scoped(name)]).0, "rule.scope");
    }
    assert!(build([Rule::token_bucket(5, SECOND).named("x".repeat(64)).scoped("A-z_0.9")]).is_ok());
}

#[test]
fn ru_3_what_could_not_stay_exact_is_refused_when_it_is_built() {
    // A rate of lowest terms so large that a level's parts would pass 2^53, and one that reduces.
    let year_ms = 366 * 86_400_000;
    let prime = 999_999_999_989;
    let (option, allowed) = refused([Rule::token_bucket(prime, ms(year_ms))]);
    assert_eq!(option, "rule.limit");
    assert!(allowed.contains("lowest terms") && allowed.contains("2^53"), "{allowed}");
    assert!(build([Rule::token_bucket(31_622_400_000, ms(year_ms))]).is_ok());
    // Windows only count.
    assert!(
        build([Rule::fixed_window(prime, ms(year_ms)), Rule::sliding_window(prime, ms(year_ms))]).is_ok()
    );
    // A burst that would take longer than a double counts to come back.
    let (option, allowed) = refused([Rule::token_bucket(1, DAY).burst(9_500_000)]);
    assert_eq!(option, "rule.burst");
    assert!(allowed.contains("2^53"), "{allowed}");
    assert!(build([Rule::token_bucket(1, DAY).burst(9_400_000)]).is_ok());
}

#[tokio::test(start_paused = true)]
async fn ru_3_fractions_of_a_unit_are_kept_exactly() {
    // 7 per 3 s: in 3,000 ms exactly 7, at whatever odd moments the level is looked at.
    let fleet = Fleet::new();
    let valve = process(&fleet, [Rule::token_bucket(7, SECOND * 3)]);
    drop(try_for(&valve, 7).await.unwrap());
    let start = fleet.now();
    let mut granted = 0;
    for step in [1, 427, 428, 429, 1, 856, 857, 1] {
        advance(ms(step)).await;
        while try_for(&valve, 1).await.is_ok() {
            granted += 1;
            let passed = u64::try_from(fleet.now().since(start).as_millis()).unwrap();
            assert!(granted * 3_000 <= 7 * passed, "{granted} after {passed} ms");
        }
    }
    assert_eq!((granted, fleet.now().since(start)), (7, SECOND * 3));
}

// ---- RU-4 ----------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn ru_4_sixteen_rules_hold_together_and_a_seventeenth_is_refused() {
    let rules = |count: u64| {
        (1..=count).map(|index| Rule::fixed_window(100 + index, MINUTE).named(format!("r{index}")))
    };
    assert!(build(rules(16)).is_ok());
    let (option, allowed) = refused(rules(17));
    assert_eq!(option, "rules");
    assert!(allowed.contains("16"), "{allowed}");
    let fleet = Fleet::new();
    let valve = process(&fleet, rules(16));
    drop(try_for(&valve, 0).await.unwrap());
    // Each of them alone can deny, and then none is spent.
    let left = |name: &str| {
        let key = format!("named:{name}");
        levels(&fleet).into_iter().find(|(known, _)| *known == key).map(|(_, level)| level)
    };
    for index in 1..=16 {
        let name = format!("r{index}");
        let other = if index == 16 { "r1" } else { "r16" };
        let before = left(other);
        drop(valve.try_acquire(Job::new().cost_each(0).cost(&name, 100 + index)).await.unwrap());
        hint(valve.try_acquire(Job::new().cost_each(0).cost(&name, 1).cost(other, 1)).await);
        assert_eq!((left(&name), left(other)), (Some(0), before));
    }
}

#[tokio::test(start_paused = true)]
async fn ru_4_nothing_drifts_in_an_hour_of_saturated_use() {
    let fleet = Fleet::new();
    let rules = [
        (Rule::token_bucket(7, SECOND).named("a"), 7 + 7 * 3_600),
        (Rule::token_bucket(11, SECOND * 3).burst(2).named("a"), 2 + 11 * 1_200),
        (Rule::fixed_window(5, SECOND).named("a"), 5 * 3_601),
        (Rule::sliding_window(5, SECOND).named("a"), 5 * 3_601),
    ];
    for (rule, expected) in rules {
        let fleet = Fleet { store: MemoryStore::with_clock(fleet.clock), ..fleet.clone() };
        let valve = process(&fleet, [rule.clone()]);
        let start = fleet.now();
        let mut admitted: u64 = 0;
        // Whoever is denied comes at the hint, and takes whatever is there.
        loop {
            match try_for(&valve, 1).await {
                Ok(_) => admitted += 1,
                denied => {
                    let wait = hint(denied);
                    if fleet.now().since(start) + wait > HOUR {
                        break;
                    }
                    advance(wait).await;
                }
            }
        }
        assert_eq!(admitted, expected, "{rule:?}");
    }
}

// ---- RU-5 ----------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn ru_5_a_token_bucket_fills_steadily_and_holds_its_burst() {
    let fleet = Fleet::new();
    let valve = process(&fleet, [Rule::token_bucket(10, SECOND).burst(25)]);
    spend_all(&valve, 25).await;
    advance(ms(99)).await;
    assert_eq!(hint(try_for(&valve, 1).await), ms(1));
    advance(ms(1)).await;
    spend_all(&valve, 1).await;
    advance(SECOND).await;
    spend_all(&valve, 10).await;
    advance(HOUR).await;
    spend_all(&valve, 25).await;
    // Without a burst of its own it holds its limit.
    let fleet = Fleet::new();
    let valve = process(&fleet, [Rule::token_bucket(10, SECOND)]);
    advance(HOUR).await;
    spend_all(&valve, 10).await;
}

#[tokio::test(start_paused = true)]
async fn ru_5_a_fixed_window_starts_with_its_first_job() {
    let fleet = Fleet::new();
    let valve = process(&fleet, [Rule::fixed_window(10, SECOND)]);
    advance(ms(700)).await;
    drop(try_for(&valve, 4).await.unwrap());
    advance(ms(999)).await;
    assert_eq!(hint(try_for(&valve, 7).await), ms(1));
    spend_all(&valve, 6).await;
    advance(ms(1)).await;
    // The end of one and the beginning of the next may be close: that is what this algorithm admits.
    spend_all(&valve, 10).await;
    assert_eq!(hint(try_for(&valve, 1).await), SECOND);
}

#[tokio::test(start_paused = true)]
async fn ru_5_a_sliding_window_holds_over_every_span_of_its_interval() {
    let fleet = Fleet::new();
    let valve = process(&fleet, [Rule::sliding_window(10, SECOND)]);
    let mut admitted: Vec<(u64, u64)> = Vec::new();
    let start = fleet.now();
    for step in 0..400_u64 {
        let cost = step % 4;
        let at = u64::try_from(fleet.now().since(start).as_millis()).unwrap();
        let used: u64 = admitted.iter().filter(|(then, _)| then + 1_000 > at).map(|(_, cost)| cost).sum();
        let fits = cost == 0 || used + cost <= 10;
        let granted = try_for(&valve, cost).await;
        assert_eq!(granted.is_ok(), fits, "{cost} at {at} ms with {used} used");
        if fits {
            admitted.push((at, cost));
        }
        advance(ms(37 + step % 11)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn ru_5_a_job_fits_all_rules_or_spends_in_none() {
    let fleet = Fleet::new();
    let valve = process(
        &fleet,
        [Rule::token_bucket(100, SECOND).named("fast"), Rule::fixed_window(3, MINUTE).named("slow")],
    );
    for _ in 0..3 {
        drop(try_for(&valve, 1).await.unwrap());
    }
    for _ in 0..50 {
        assert_eq!(hint(try_for(&valve, 1).await), MINUTE, "the longest of the hints");
    }
    assert_eq!(levels(&fleet), [("named:fast".to_owned(), 97), ("named:slow".to_owned(), 0)]);
}
