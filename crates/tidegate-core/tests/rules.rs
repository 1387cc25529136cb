//! The rules against naive models: exact rational arithmetic for the bucket, a full log for the windows.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use proptest::prelude::*;
use tidegate_core::{
    Invalid,
    rule::{Algorithm, CheckedRule, Observed, Rule, RuleState, check_all},
};

const TOP: u64 = 1_000_000_000_000;
const EXACT: u128 = 1 << 53;
const DAY: u64 = 86_400_000;
/// A moment like those of a real store: 2025, in ms.
const NOW: u64 = 1_750_000_000_000;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn bucket(limit: u64, interval_ms: u64, burst: u64) -> CheckedRule {
    Rule::token_bucket(limit, ms(interval_ms)).burst(burst).check().unwrap()
}

fn fixed(limit: u64, interval_ms: u64) -> CheckedRule {
    Rule::fixed_window(limit, ms(interval_ms)).check().unwrap()
}

fn sliding(limit: u64, interval_ms: u64) -> CheckedRule {
    Rule::sliding_window(limit, ms(interval_ms)).check().unwrap()
}

/// Admits a job if it fits.
fn admit(state: &mut RuleState, rule: &CheckedRule, now_ms: u64, cost: u64) -> Result<(), u64> {
    state.room(rule, now_ms, cost)?;
    state.spend(rule, now_ms, cost);
    Ok(())
}

/// The level of a window.
fn left(limit: u64, used: u64) -> i64 {
    i64::try_from(limit).unwrap() - i64::try_from(used).unwrap()
}

fn refusal(rule: &Rule) -> Invalid {
    rule.check().unwrap_err()
}

/// Rules of all algorithms, small enough that random jobs meet their bounds.
fn any_rule() -> impl Strategy<Value = CheckedRule> {
    (0..3_u8, 1..60_u64, 1..3_000_u64, 1..60_u64).prop_map(|(algorithm, limit, interval_ms, burst)| {
        match algorithm {
            0 => bucket(limit, interval_ms, burst),
            1 => fixed(limit, interval_ms),
            _ => sliding(limit, interval_ms),
        }
    })
}

/// What happens to a state: so long after the last thing, a job or a correction of an earlier one.
#[derive(Clone, Debug)]
enum Step {
    Job { after_ms: u64, cost: u64 },
    Settle { after_ms: u64, earlier: prop::sample::Index, actual: u64 },
    Observe { after_ms: u64, earlier: prop::sample::Index, remaining: u64, reset_ms: u64 },
}

impl Step {
    fn after_ms(&self) -> u64 {
        match self {
            Self::Job { after_ms, .. } | Self::Settle { after_ms, .. } | Self::Observe { after_ms, .. } => {
                *after_ms
            }
        }
    }
}

fn pauses() -> impl Strategy<Value = u64> {
    prop_oneof![4 => Just(0), 6 => 1..50_u64, 2 => 50..1_000_u64, 1 => 1_000..10_000_u64]
}

fn job() -> impl Strategy<Value = Step> {
    (pauses(), 0..20_u64).prop_map(|(after_ms, cost)| Step::Job { after_ms, cost })
}

fn settlement() -> impl Strategy<Value = Step> {
    let actual = prop_oneof![8 => 0..40_u64, 1 => 0..2_000_u64];
    (pauses(), any::<prop::sample::Index>(), actual).prop_map(|(after_ms, earlier, actual)| Step::Settle {
        after_ms,
        earlier,
        actual,
    })
}

fn observation() -> impl Strategy<Value = Step> {
    (pauses(), any::<prop::sample::Index>(), 0..80_u64, 0..3_000_u64).prop_map(
        |(after_ms, earlier, remaining, reset_ms)| Step::Observe { after_ms, earlier, remaining, reset_ms },
    )
}

fn jobs_with_settlements() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(prop_oneof![4 => job(), 1 => settlement()], 1..150)
}

fn anything() -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(prop_oneof![4 => job(), 1 => settlement(), 1 => observation()], 1..150)
}

/// A job that was admitted, and not settled yet.
#[derive(Clone, Copy, Debug)]
struct Admitted {
    at_ms: u64,
    cost: u64,
    mark: u64,
}

/// A token bucket in parts of 1/interval of a token, in whole numbers that cannot overflow.
struct ExactBucket {
    parts: i128,
    at_ms: u64,
    limit: i128,
    interval: i128,
    burst: i128,
}

impl ExactBucket {
    fn new(rule: &CheckedRule, at_ms: u64) -> Self {
        let (limit, interval, burst) = (rule.limit().into(), rule.interval_ms().into(), rule.burst().into());
        Self { parts: burst * interval, at_ms, limit, interval, burst }
    }

    fn advance(&mut self, now_ms: u64) {
        let come = i128::from(now_ms - self.at_ms) * self.limit;
        self.parts = (self.parts + come).min(self.burst * self.interval);
        self.at_ms = now_ms;
    }

    fn level(&self) -> i128 {
        self.parts.div_euclid(self.interval)
    }

    /// 0 where the cost fits, else after how many ms it does.
    fn fits_in(&self, cost: u64) -> u64 {
        let short = i128::from(cost) * self.interval - self.parts;
        if cost == 0 || short <= 0 {
            0
        } else {
            u64::try_from((short + self.limit - 1) / self.limit).unwrap()
        }
    }

    fn change(&mut self, by: i128) {
        self.parts = (self.parts + by * self.interval).min(self.burst * self.interval);
    }

    /// Takes `extra` out, as far as the debt stays within ten bursts, and says what was cut.
    fn debit(&mut self, extra: u64) -> u64 {
        let deepest = (self.parts + 10 * self.burst * self.interval).div_euclid(self.interval);
        let debited = i128::from(extra).min(deepest);
        self.change(-debited);
        u64::try_from(i128::from(extra) - debited).unwrap()
    }
}

/// Asserts that both give the same level and the same answer, and says whether the cost fits.
fn same_answer(
    state: &mut RuleState,
    model: &mut ExactBucket,
    rule: &CheckedRule,
    now_ms: u64,
    cost: u64,
) -> bool {
    model.advance(now_ms);
    let wait = model.fits_in(cost);
    let expected = if wait == 0 { Ok(()) } else { Err(wait) };
    assert_eq!(state.room(rule, now_ms, cost), expected, "cost {cost} at {now_ms} of {rule:?}");
    assert_eq!(i128::from(state.level(rule, now_ms)), model.level(), "at {now_ms} of {rule:?}");
    wait == 0
}

// RU-1: keys.

#[test]
fn ru_1_keys_tell_rules_apart() {
    let (second, minute) = (ms(1_000), ms(60_000));
    let rules = [
        Rule::token_bucket(5, minute),
        Rule::fixed_window(5, second),
        Rule::sliding_window(5, second),
        Rule::token_bucket(9, second).named("tokens").scoped("tenant"),
    ];
    let checked = check_all(&rules).unwrap();
    let keys: Vec<_> = checked.iter().map(CheckedRule::key).collect();
    assert_eq!(keys, ["fixed_window:1000", "named:tokens", "sliding_window:1000", "token_bucket:60000"]);
    assert_eq!(checked[1].scope().map(|scope| scope.as_str()), Some("tenant"));
    assert_eq!(checked[1].name().map(|name| name.as_str()), Some("tokens"));

    let mut turned = rules;
    turned.reverse();
    assert_eq!(check_all(&turned).unwrap(), checked);
}

#[test]
fn ru_1_two_rules_of_one_key_are_refused() {
    let one = Rule::token_bucket(5, ms(1_000));
    let two = Rule::token_bucket(50, ms(1_000)).scoped("tenant");
    let error = check_all(&[one.clone(), two.clone()]).unwrap_err();
    assert_eq!((error.option.as_str(), error.given.as_str()), ("rules", "\"token_bucket:1000\""));
    assert!(error.allowed.contains("name one of the two"));
    assert!(check_all(&[one.clone(), two.clone().named("tenant")]).is_ok());
    assert!(check_all(&[one.named("a"), two.named("a")]).is_err());
}

#[test]
fn ru_1_a_burst_on_a_window_is_refused() {
    for window in [Rule::fixed_window(5, ms(1_000)), Rule::sliding_window(5, ms(1_000))] {
        assert_eq!(refusal(&window.clone().burst(5)).option, "rule.burst");
        assert_eq!(window.check().unwrap().burst(), 5);
    }
}

#[test]
fn bi_1_a_bad_name_or_scope_is_refused() {
    let rule = Rule::fixed_window(5, ms(1_000));
    assert_eq!(refusal(&rule.clone().named("")).option, "rule.name");
    assert_eq!(refusal(&rule.clone().named("a:b")).option, "rule.name");
    assert_eq!(refusal(&rule.scoped("a b")).option, "rule.scope");
}

// RU-2: costs.

#[test]
fn ru_2_the_most_is_the_burst_or_the_limit() {
    assert_eq!(bucket(5, 1_000, 3).most(), 3);
    assert_eq!(Rule::token_bucket(5, ms(1_000)).check().unwrap().most(), 5);
    assert_eq!(fixed(7, 1_000).most(), 7);
    assert_eq!(sliding(9, 1_000).most(), 9);
}

proptest! {
    #[test]
    fn ru_2_a_cost_of_0_passes_and_spends_nothing(rule in any_rule(), now_ms in 0..NOW) {
        for mut state in [RuleState::resting(&rule, now_ms), RuleState::spent_out(&rule, now_ms)] {
            let before = state.clone();
            prop_assert_eq!(admit(&mut state, &rule, now_ms, 0), Ok(()));
            prop_assert_eq!(&state, &before);
            state.settle(&rule, now_ms, now_ms, 0, 10_000_000);
            prop_assert_eq!(state.room(&rule, now_ms, 0), Ok(()));
        }
    }
}

// RU-3: bounds, and exactness below 2^53.

#[test]
fn ru_3_bounds_of_limit_interval_and_burst() {
    let second = ms(1_000);
    let year = Duration::from_secs(366 * 24 * 60 * 60);
    for limit in [0, TOP + 1, u64::MAX] {
        assert_eq!(refusal(&Rule::sliding_window(limit, second)).option, "rule.limit");
        assert_eq!(refusal(&Rule::token_bucket(5, second).burst(limit)).option, "rule.burst");
    }
    let odd =
        [Duration::ZERO, Duration::from_nanos(1), Duration::from_micros(1_500), year + ms(1), Duration::MAX];
    for interval in odd {
        assert_eq!(refusal(&Rule::fixed_window(5, interval)).option, "rule.interval");
    }
    for interval in [ms(1), year] {
        for limit in [1, TOP] {
            assert!(Rule::fixed_window(limit, interval).check().is_ok());
            assert!(Rule::sliding_window(limit, interval).check().is_ok());
        }
    }
    assert!(Rule::token_bucket(TOP, ms(1)).check().is_ok());
    assert!(Rule::token_bucket(1, year).check().is_ok());
}

#[test]
fn ru_3_what_cannot_stay_exact_is_refused() {
    // 10^12 − 1 per day: in lowest terms still 10^11 per 10^7 ms and more.
    let error = refusal(&Rule::token_bucket(TOP - 1, ms(DAY)));
    assert_eq!(error.option, "rule.limit");
    assert!(error.allowed.contains("larger common divisor"), "{error}");
    assert!(Rule::token_bucket(TOP, ms(DAY)).check().is_ok());

    // A burst that would take longer to come back than can be counted; the error says how much is allowed.
    let daily = Rule::token_bucket(1, ms(DAY));
    let error = refusal(&daily.clone().burst(TOP));
    assert_eq!(error.option, "rule.burst");
    let most = 9_477_271;
    assert!(error.allowed.starts_with(&format!("1 to {most} ")), "{error}");
    assert!(daily.clone().burst(most).check().is_ok());
    assert!(daily.burst(most + 1).check().is_err());

    // On the edges: (n + 1) × d, and a time to come back, of just 2^53.
    let edge = ((1 << 53) - 1) / 10_007;
    assert!(Rule::token_bucket(edge, ms(10_007)).check().is_err());
    assert!(Rule::token_bucket(edge - 1, ms(10_007)).check().is_ok());
    let eleven = Rule::token_bucket(11, ms(1 << 20));
    assert!(eleven.clone().burst(1 << 33).check().is_err());
    assert!(eleven.burst((1 << 33) - 1).check().is_ok());
}

/// What must hold of a bucket that was built, or not, in arithmetic that cannot overflow.
fn can_stay_exact(limit: u64, interval_ms: u64, burst: u64) -> bool {
    let (mut a, mut b) = (u128::from(limit), u128::from(interval_ms));
    while b != 0 {
        (a, b) = (b, a % b);
    }
    let (n, d) = (u128::from(limit) / a, u128::from(interval_ms) / a);
    n * d + d < EXACT && (11 * u128::from(burst) * d).div_ceil(n) < EXACT
}

proptest! {
    #[test]
    fn ru_3_is_refused_exactly_where_it_cannot_stay_exact(
        limit in 1..=TOP,
        interval_ms in 1..=366 * DAY,
        burst in 1..=TOP,
        shifts in (0..40_u32, 0..35_u32, 0..40_u32),
    ) {
        let limit = (limit >> shifts.0).max(1);
        let interval_ms = (interval_ms >> shifts.1).max(1);
        let burst = (burst >> shifts.2).max(1);
        let checked = Rule::token_bucket(limit, ms(interval_ms)).burst(burst).check();
        prop_assert_eq!(checked.is_ok(), can_stay_exact(limit, interval_ms, burst));
        if let Ok(rule) = checked {
            // The longest wait that there can be is that of an empty bucket in its deepest debt.
            let mut state = RuleState::resting(&rule, NOW);
            prop_assert_eq!(state.settle(&rule, NOW, NOW, 0, u64::MAX), u64::MAX - 11 * burst);
            let hint = state.room(&rule, NOW, burst).unwrap_err();
            prop_assert!(u128::from(hint) < EXACT);
            prop_assert!(state.room(&rule, NOW + hint - 1, burst).is_err());
            prop_assert_eq!(state.room(&rule, NOW + hint, burst), Ok(()));
        }
    }
}

// RU-4: number of rules, and no drift.

#[test]
fn ru_4_at_most_16_rules() {
    let rules: Vec<_> = (1..=17).map(|n| Rule::fixed_window(1, ms(n))).collect();
    assert_eq!(check_all(&rules[..16]).unwrap().len(), 16);
    assert_eq!(check_all(&rules).unwrap_err().option, "rules");
    assert_eq!(check_all(&[]).unwrap(), []);
}

/// How much a caller gets in `span_ms` that always takes what fits and waits out each hint.
fn saturated(rule: &CheckedRule, span_ms: u64) -> u64 {
    let (mut state, mut now_ms, mut admitted) = (RuleState::resting(rule, NOW), NOW, 0);
    while now_ms < NOW + span_ms {
        match admit(&mut state, rule, now_ms, 1) {
            Ok(()) => admitted += 1,
            Err(hint) => now_ms += hint,
        }
    }
    admitted
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn ru_4_no_drift_over_an_hour_of_saturated_use(
        limit in 1..12_u64,
        interval_ms in 4_000..20_000_u64,
        burst in 2..50_u64,
    ) {
        // All that comes before the hour is over; what comes with its last millisecond is for the next one.
        let hour = 3_600_000;
        let come = (hour - 1) * limit / interval_ms;
        prop_assert_eq!(saturated(&bucket(limit, interval_ms, burst), hour), burst + come);
        // A bucket of one is full with one: what comes in the rest of that millisecond finds no place.
        let one_each = interval_ms.div_ceil(limit);
        prop_assert_eq!(saturated(&bucket(limit, interval_ms, 1), hour), 1 + (hour - 1) / one_each);
        let windows = hour.div_ceil(interval_ms);
        prop_assert_eq!(saturated(&fixed(limit, interval_ms), hour), limit * windows);
        prop_assert_eq!(saturated(&sliding(limit, interval_ms), hour), limit * windows);
    }
}

// RU-5: the algorithms.

proptest! {
    #[test]
    fn ru_5_token_bucket_is_exact_rational_arithmetic(
        limit in 1..60_u64,
        interval_ms in 1..3_000_u64,
        burst in 1..60_u64,
        steps in jobs_with_settlements(),
    ) {
        let rule = bucket(limit, interval_ms, burst);
        let (mut state, mut model) = (RuleState::resting(&rule, NOW), ExactBucket::new(&rule, NOW));
        let mut now_ms = NOW;
        let mut running: Vec<Admitted> = Vec::new();
        for step in &steps {
            now_ms += step.after_ms();
            match step {
                &Step::Job { cost, .. }
                    if cost <= burst && same_answer(&mut state, &mut model, &rule, now_ms, cost) =>
                {
                    state.spend(&rule, now_ms, cost);
                    model.change(-i128::from(cost));
                    running.push(Admitted { at_ms: now_ms, cost, mark: state.mark() });
                }
                Step::Settle { earlier, actual, .. } if !running.is_empty() => {
                    let job = running.swap_remove(earlier.index(running.len()));
                    model.advance(now_ms);
                    let cut = state.settle(&rule, now_ms, job.at_ms, job.cost, *actual);
                    model.change(i128::from(job.cost.saturating_sub(*actual)));
                    prop_assert_eq!(cut, model.debit(actual.saturating_sub(job.cost)));
                }
                _ => {}
            }
            same_answer(&mut state, &mut model, &rule, now_ms, burst);
        }
    }

    #[test]
    fn ru_5_fixed_window_starts_with_the_first_job_and_ends_after_one_interval(
        limit in 1..60_u64,
        interval_ms in 1..3_000_u64,
        steps in jobs_with_settlements(),
    ) {
        let rule = fixed(limit, interval_ms);
        let (mut state, mut now_ms) = (RuleState::resting(&rule, NOW), NOW);
        // The window that was started last, and all that was put into it.
        let (mut start_ms, mut window): (Option<u64>, Vec<Admitted>) = (None, Vec::new());
        let mut running: Vec<Admitted> = Vec::new();
        for step in &steps {
            now_ms += step.after_ms();
            if start_ms.is_some_and(|start_ms| now_ms >= start_ms + interval_ms) {
                (start_ms, window) = (None, Vec::new());
            }
            let used: u64 = window.iter().map(|job| job.cost).sum();
            match step {
                &Step::Job { cost, .. } if cost <= limit => {
                    let full = cost > 0 && used + cost > limit;
                    let ends_in = start_ms.map(|start_ms| start_ms + interval_ms - now_ms);
                    let expected = ends_in.filter(|_| full).map_or(Ok(()), Err);
                    prop_assert_eq!(admit(&mut state, &rule, now_ms, cost), expected);
                    if expected.is_ok() {
                        let job = Admitted { at_ms: now_ms, cost, mark: state.mark() };
                        running.push(job);
                        if cost > 0 {
                            start_ms.get_or_insert(now_ms);
                            window.push(job);
                        }
                    }
                }
                Step::Settle { earlier, actual, .. } if !running.is_empty() => {
                    let job = running.swap_remove(earlier.index(running.len()));
                    let extra = actual.saturating_sub(job.cost);
                    let debited = extra.min(11 * limit - used);
                    let cut = state.settle(&rule, now_ms, job.at_ms, job.cost, *actual);
                    prop_assert_eq!(cut, extra - debited);
                    if debited > 0 {
                        start_ms.get_or_insert(now_ms);
                        window.push(Admitted { at_ms: now_ms, cost: debited, mark: 0 });
                    }
                    let same = |there: &&mut Admitted| (there.at_ms, there.mark) == (job.at_ms, job.mark);
                    if job.cost > 0
                        && let Some(there) = window.iter_mut().find(same)
                    {
                        there.cost = there.cost.min(*actual);
                    }
                }
                _ => {}
            }
            let used: u64 = window.iter().map(|job| job.cost).sum();
            prop_assert_eq!(state.level(&rule, now_ms), left(limit, used));
            prop_assert_eq!(state.rests_at(&rule), start_ms.map_or(0, |start_ms| start_ms + interval_ms));
        }
    }
}

/// Every job in its own entry, never dropped.
#[derive(Default)]
struct FullLog(Vec<Admitted>);

impl FullLog {
    /// What is used in the span of `span_ms` that ends with `now_ms`.
    fn used(&self, now_ms: u64, span_ms: u64) -> u64 {
        self.0.iter().filter(|job| job.at_ms + span_ms > now_ms).map(|job| job.cost).sum()
    }

    /// After how many ms `cost` fits: the shortest wait that a lone caller could find by trying.
    fn fits_in(&self, limit: u64, now_ms: u64, span_ms: u64, cost: u64) -> u64 {
        let leaves = self.0.iter().map(|job| (job.at_ms + span_ms).saturating_sub(now_ms));
        let fits = |wait: &u64| self.used(now_ms + wait, span_ms) + cost <= limit;
        leaves.chain([0]).filter(fits).min().unwrap_or_default()
    }
}

proptest! {
    #[test]
    fn ru_5_sliding_window_is_strict_in_every_span(
        limit in 1..60_u64,
        interval_ms in 1..3_000_u64,
        steps in jobs_with_settlements(),
    ) {
        let rule = sliding(limit, interval_ms);
        let (mut state, mut now_ms) = (RuleState::resting(&rule, NOW), NOW);
        let mut log = FullLog::default();
        // The places of jobs in it: of those that can be settled, and of all that cost something.
        let (mut running, mut paid) = (Vec::<usize>::new(), Vec::<usize>::new());
        for step in &steps {
            now_ms += step.after_ms();
            let used = log.used(now_ms, interval_ms);
            match step {
                &Step::Job { cost, .. } if cost <= limit => {
                    let wait = if cost == 0 { 0 } else { log.fits_in(limit, now_ms, interval_ms, cost) };
                    let expected = if wait == 0 { Ok(()) } else { Err(wait) };
                    prop_assert_eq!(admit(&mut state, &rule, now_ms, cost), expected);
                    if wait == 0 {
                        running.push(log.0.len());
                        paid.extend((cost > 0).then_some(log.0.len()));
                        log.0.push(Admitted { at_ms: now_ms, cost, mark: state.mark() });
                    }
                }
                Step::Settle { earlier, actual, .. } if !running.is_empty() => {
                    let place = running.swap_remove(earlier.index(running.len()));
                    let job = log.0[place];
                    let extra = actual.saturating_sub(job.cost);
                    let debited = extra.min(11 * limit - used);
                    let cut = state.settle(&rule, now_ms, job.at_ms, job.cost, *actual);
                    prop_assert_eq!(cut, extra - debited);
                    log.0[place].cost = job.cost.min(*actual);
                    log.0.push(Admitted { at_ms: now_ms, cost: debited, mark: 0 });
                }
                _ => {}
            }
            prop_assert_eq!(state.level(&rule, now_ms), left(limit, log.used(now_ms, interval_ms)));
        }
        // A span that is too full would be so when the last of its jobs was admitted, after which it can only get less.
        for place in paid {
            let end_ms = log.0[place].at_ms;
            let span = log.0[..=place].iter().filter(|job| job.at_ms + interval_ms > end_ms);
            prop_assert!(span.map(|job| job.cost).sum::<u64>() <= limit, "in the span that ends at {end_ms}");
        }
    }

    /// So many jobs that they share entries: never laxer than the full log, nor stricter by more than 1/512 of the
    /// interval.
    #[test]
    fn ru_5_sliding_window_that_shares_entries_is_stricter_by_a_512th_at_most(
        limit in 1_000..4_000_u64,
        interval_ms in 1_000..6_000_u64,
        jobs in prop::collection::vec((0..6_u64, 1..6_u64), 3_000),
    ) {
        let rule = sliding(limit, interval_ms);
        let part = interval_ms / 512;
        let (mut state, mut now_ms) = (RuleState::resting(&rule, NOW), NOW);
        let mut admitted: Vec<(u64, u64)> = Vec::new();
        // Where the two spans begin in `admitted`, and their sums.
        let (mut begin, mut sum, mut wide_begin, mut wide_sum) = (0, 0, 0, 0);
        for (after_ms, cost) in jobs {
            now_ms += after_ms;
            while begin < admitted.len() && admitted[begin].0 + interval_ms <= now_ms {
                sum -= admitted[begin].1;
                begin += 1;
            }
            while wide_begin < admitted.len() && admitted[wide_begin].0 + interval_ms + part <= now_ms {
                wide_sum -= admitted[wide_begin].1;
                wide_begin += 1;
            }
            match admit(&mut state, &rule, now_ms, cost) {
                Ok(()) => {
                    sum += cost;
                    wide_sum += cost;
                    admitted.push((now_ms, cost));
                    prop_assert!(sum <= limit, "laxer at {now_ms}: {sum}");
                }
                Err(_) => prop_assert!(wide_sum + cost > limit, "too strict at {now_ms}: {wide_sum}"),
            }
        }
    }
}

// ST-2, ST-5, ST-6, ST-12, ST-17, ST-18, VA-9: what a store asks of the state.

/// Carries out a step, and gives all that can be seen of it.
fn carry_out(
    step: &Step,
    state: &mut RuleState,
    rule: &CheckedRule,
    now_ms: u64,
    running: &[Admitted],
) -> (Option<Admitted>, String) {
    match step {
        &Step::Job { cost, .. } => {
            let cost = cost.min(rule.most());
            let answer = admit(state, rule, now_ms, cost);
            let job = answer.is_ok().then(|| Admitted { at_ms: now_ms, cost, mark: state.mark() });
            (job, format!("{answer:?} {}", state.level(rule, now_ms)))
        }
        Step::Settle { earlier, actual, .. } if !running.is_empty() => {
            let job = running[earlier.index(running.len())];
            let cut = state.settle(rule, now_ms, job.at_ms, job.cost, *actual);
            (None, format!("{cut} {}", state.level(rule, now_ms)))
        }
        Step::Observe { earlier, remaining, reset_ms, .. } if !running.is_empty() => {
            let job = running[earlier.index(running.len())];
            let reset_ms = job.at_ms + reset_ms;
            let seen = Observed { remaining: *remaining, reset_ms, granted_ms: job.at_ms, mark: job.mark };
            let lowered = state.observe(rule, now_ms, &seen);
            (None, format!("{lowered} {}", state.level(rule, now_ms)))
        }
        _ => (None, state.level(rule, now_ms).to_string()),
    }
}

proptest! {
    #[test]
    fn st_6_hint_is_exact_to_the_millisecond(rule in any_rule(), steps in anything(), cost in 1..60_u64) {
        let cost = cost.min(rule.most());
        let (mut state, mut now_ms, mut running) = (RuleState::resting(&rule, NOW), NOW, Vec::new());
        for step in &steps {
            now_ms += step.after_ms();
            running.extend(carry_out(step, &mut state, &rule, now_ms, &running).0);
            if let Err(hint) = state.clone().room(&rule, now_ms, cost) {
                prop_assert!(hint >= 1);
                prop_assert_eq!(state.clone().room(&rule, now_ms + hint - 1, cost), Err(1));
                prop_assert_eq!(state.clone().room(&rule, now_ms + hint, cost), Ok(()));
            }
        }
    }

    /// A state that can be forgotten is forgotten in one history and kept in the other; nobody can tell.
    #[test]
    fn st_17_forgetting_a_state_at_rest_changes_no_answer(rule in any_rule(), steps in anything()) {
        let (mut kept, mut now_ms, mut running) = (RuleState::resting(&rule, NOW), NOW, Vec::new());
        let mut swept = kept.clone();
        for step in &steps {
            now_ms += step.after_ms();
            if swept.rests_at(&rule) <= now_ms {
                swept = RuleState::resting(&rule, now_ms);
            }
            let (job, of_kept) = carry_out(step, &mut kept, &rule, now_ms, &running);
            let (_, of_swept) = carry_out(step, &mut swept, &rule, now_ms, &running);
            prop_assert_eq!(of_kept, of_swept, "{:?} at {}", step, now_ms);
            prop_assert_eq!(kept.mark(), swept.mark());
            running.extend(job);
        }
        // The same of a new revision: the old rule's full bucket is a full one of the new rule.
        let wider = Rule::token_bucket(rule.limit() + 1, ms(rule.interval_ms())).burst(100).check().unwrap();
        if rule.algorithm() == Algorithm::TokenBucket && kept.rests_at(&rule) <= now_ms {
            let forgotten = RuleState::resting(&wider, now_ms);
            prop_assert_eq!(kept.carry(&rule, &wider, now_ms), forgotten);
        }
    }

    #[test]
    fn st_11_a_state_rests_from_the_moment_it_says(rule in any_rule(), steps in anything()) {
        let (mut state, mut now_ms, mut running) = (RuleState::resting(&rule, NOW), NOW, Vec::new());
        for step in &steps {
            now_ms += step.after_ms();
            running.extend(carry_out(step, &mut state, &rule, now_ms, &running).0);
        }
        let rests_at = state.rests_at(&rule);
        if rests_at > now_ms {
            let mut early = state.clone();
            early.level(&rule, rests_at - 1);
            prop_assert_ne!(early, RuleState::resting(&rule, rests_at - 1));
        }
        let now_ms = rests_at.max(now_ms);
        state.level(&rule, now_ms);
        prop_assert_eq!(state, RuleState::resting(&rule, now_ms));
    }

    #[test]
    fn st_2_a_clock_that_was_set_back_changes_no_answer(
        rule in any_rule(),
        steps in anything(),
        back_ms in 0..NOW / 2,
    ) {
        let (mut state, mut now_ms, mut running) = (RuleState::resting(&rule, NOW), NOW, Vec::new());
        for step in &steps {
            now_ms += step.after_ms();
            running.extend(carry_out(step, &mut state, &rule, now_ms, &running).0);
        }
        let mut back = state.clone();
        back.shift_back(back_ms);
        for _ in 0..3 {
            prop_assert_eq!(back.level(&rule, now_ms - back_ms), state.level(&rule, now_ms));
            let hint = state.room(&rule, now_ms, rule.most());
            prop_assert_eq!(back.room(&rule, now_ms - back_ms, rule.most()), hint);
            now_ms += hint.err().unwrap_or(1) / 2;
        }
    }

    /// Any value of anything: an answer, and a finite hint.
    #[test]
    fn bi_2_no_number_makes_a_rule_panic(
        rule in any_rule(),
        other in any_rule(),
        numbers in prop::collection::vec(prop_oneof![any::<u64>(), 0..200_u64, Just(u64::MAX)], 12),
    ) {
        let [now_ms, a, b, c, d, e, f, g, h, i, j, k] = numbers[..] else { unreachable!() };
        for mut state in [RuleState::resting(&rule, now_ms), RuleState::spent_out(&rule, now_ms)] {
            // Of another rule, too; and at moments that run back.
            for rule in [&rule, &other] {
                if let Err(hint) = state.room(rule, a, b) {
                    prop_assert!(hint >= 1 && u128::from(hint) < EXACT);
                }
                state.spend(rule, a, b);
                state.settle(rule, c, d, e, f);
                state.observe(rule, g, &Observed { remaining: h, reset_ms: i, granted_ms: j, mark: k });
                state.level(rule, k);
                state.shift_back(f);
                state.rests_at(rule);
            }
            let mut carried = state.carry(&rule, &other, now_ms);
            if let Err(hint) = carried.room(&other, now_ms, 1) {
                prop_assert!(hint >= 1 && u128::from(hint) < EXACT);
            }
        }
    }
}

#[test]
fn st_6_a_cost_that_never_fits_still_has_a_finite_hint() {
    for rule in [bucket(3, 1_000, 3), fixed(3, 1_000), sliding(3, 1_000)] {
        for mut state in [RuleState::resting(&rule, NOW), RuleState::spent_out(&rule, NOW)] {
            for cost in [4, 1_000, u64::MAX] {
                let hint = state.room(&rule, NOW, cost).unwrap_err();
                assert!(hint >= 1 && u128::from(hint) < EXACT, "{hint} for {cost}");
            }
        }
    }
}

#[test]
fn st_12_debt_is_waited_out_and_cut_at_ten_bursts() {
    let rule = bucket(10, 1_000, 10);
    let mut state = RuleState::resting(&rule, NOW);
    assert_eq!(admit(&mut state, &rule, NOW, 4), Ok(()));
    assert_eq!(state.settle(&rule, NOW, NOW, 4, 30), 0);
    assert_eq!(state.level(&rule, NOW), -20);
    assert_eq!(state.room(&rule, NOW, 1), Err(2_100));
    assert_eq!(state.settle(&rule, NOW, NOW, 0, TOP), TOP - 80);
    assert_eq!(state.level(&rule, NOW), -100);
    assert_eq!(state.room(&rule, NOW, 10), Err(11_000));
}

#[test]
fn st_12_a_credit_is_never_above_the_burst() {
    let rule = bucket(10, 1_000, 10);
    let mut state = RuleState::resting(&rule, NOW);
    assert_eq!(admit(&mut state, &rule, NOW, 8), Ok(()));
    assert_eq!(state.settle(&rule, NOW + 500, NOW, 8, 0), 0);
    assert_eq!(state.level(&rule, NOW + 500), 10);
}

#[test]
fn st_18_a_safe_start_admits_nothing_twice() {
    for rule in [bucket(10, 1_000, 10), fixed(10, 1_000), sliding(10, 1_000)] {
        let mut state = RuleState::spent_out(&rule, NOW);
        assert_eq!((state.level(&rule, NOW), state.mark()), (0, 0));
        assert_eq!(state.room(&rule, NOW, 10), Err(1_000));
        assert_eq!(state.room(&rule, NOW + 1_000, 10), Ok(()));
    }
}

#[test]
fn st_5_a_new_revision_keeps_levels_and_starts_anew_where_it_must() {
    let rule = sliding(10, 1_000);
    let mut state = RuleState::resting(&rule, NOW);
    assert_eq!(admit(&mut state, &rule, NOW, 8), Ok(()));
    let more = sliding(20, 1_000);
    assert_eq!(state.clone().carry(&rule, &more, NOW).level(&more, NOW), 12);
    let less = sliding(5, 1_000);
    let mut carried = state.clone().carry(&rule, &less, NOW);
    assert_eq!(carried.level(&less, NOW), -3);
    assert_eq!(carried.room(&less, NOW, 5), Err(1_000));
    for anew in [sliding(10, 2_000), fixed(10, 1_000), bucket(10, 1_000, 10)] {
        assert_eq!(state.clone().carry(&rule, &anew, NOW), RuleState::resting(&anew, NOW));
    }
}

#[test]
fn st_5_a_bucket_under_a_new_revision_stays_within_its_bounds() {
    let rule = bucket(3, 1_000, 10);
    let mut state = RuleState::spent_out(&rule, NOW);
    state.settle(&rule, NOW, NOW, 0, 100);
    // Debt is cut at ten of the new bursts.
    let smaller = bucket(3, 1_000, 1);
    assert_eq!(state.clone().carry(&rule, &smaller, NOW).level(&smaller, NOW), -10);
    // 999 parts of 1,000 are no number of parts of 200, and given up.
    let faster = bucket(5, 1_000, 10);
    let mut carried = state.carry(&rule, &faster, NOW + 333);
    assert_eq!(carried.level(&faster, NOW + 333), -100);
    assert_eq!(carried.room(&faster, NOW + 333, 1), Err(101 * 200));
}

#[test]
fn va_9_an_observation_leaves_no_part_of_a_token() {
    let rule = bucket(3, 1_000, 10);
    let mut state = RuleState::spent_out(&rule, NOW);
    let seen = Observed { remaining: 0, reset_ms: NOW + 1_000, granted_ms: NOW, mark: 0 };
    assert!(state.observe(&rule, NOW + 400, &seen));
    assert_eq!(state.room(&rule, NOW + 400, 1), Err(334));
}

#[test]
fn va_9_a_mark_stays_exact_however_much_is_admitted() {
    let rule = sliding(TOP, 2);
    let mut state = RuleState::resting(&rule, NOW);
    for after_ms in 0..20_000 {
        assert_eq!(admit(&mut state, &rule, NOW + after_ms, TOP / 2), Ok(()));
        assert!(u128::from(state.mark()) < EXACT);
    }
}

#[test]
fn va_9_an_observation_lowers_by_what_was_admitted_since() {
    for rule in [bucket(100, 100_000, 100), fixed(100, 100_000), sliding(100, 100_000)] {
        let mut state = RuleState::resting(&rule, NOW);
        assert_eq!(admit(&mut state, &rule, NOW, 10), Ok(()));
        let first = Observed { remaining: 60, reset_ms: NOW + 500, granted_ms: NOW, mark: state.mark() };
        assert_eq!(admit(&mut state, &rule, NOW, 15), Ok(()));
        let newer = Observed { remaining: 70, mark: state.mark(), ..first };

        let mut late = state.clone();
        assert!(!late.observe(&rule, NOW + 500, &first), "its reset has passed");
        assert!(state.observe(&rule, NOW, &first));
        assert_eq!(state.level(&rule, NOW), 60 - 15);
        assert!(!state.observe(&rule, NOW, &newer), "it would raise");
        assert_eq!(state.level(&rule, NOW), 45);
        assert!(!state.observe(&rule, NOW, &Observed { remaining: 0, ..first }), "a newer one is there");
        assert!(state.observe(&rule, NOW, &Observed { remaining: 3, ..newer }));
        assert_eq!(state.level(&rule, NOW), 3);
    }
}

#[test]
fn va_9_a_state_that_began_after_the_grant_counts_all_it_admitted() {
    for rule in [bucket(100, 1_000, 100), fixed(100, 1_000), sliding(100, 1_000)] {
        let mut state = RuleState::resting(&rule, NOW);
        assert_eq!(admit(&mut state, &rule, NOW, 40), Ok(()));
        let seen = Observed { remaining: 90, reset_ms: NOW + 60_000, granted_ms: NOW, mark: state.mark() };
        let later = NOW + 5_000;
        assert_eq!(admit(&mut state, &rule, later, 50), Ok(()));
        assert!(state.observe(&rule, later, &seen));
        assert_eq!(state.level(&rule, later), 40);
    }
}

#[test]
fn va_9_an_observation_of_before_the_clock_was_set_back_does_not_outrank_the_next() {
    let rule = sliding(100, 60_000);
    let mut state = RuleState::resting(&rule, NOW);
    assert_eq!(admit(&mut state, &rule, NOW, 1), Ok(()));
    let old = Observed { remaining: 80, reset_ms: NOW + 10_000, granted_ms: NOW, mark: state.mark() };
    let back = NOW - 3_600_000;
    state.shift_back(3_600_000);
    assert!(state.observe(&rule, back, &old));
    assert_eq!(admit(&mut state, &rule, back + 10, 1), Ok(()));
    let next = Observed { remaining: 20, reset_ms: back + 10_000, granted_ms: back + 10, mark: state.mark() };
    assert!(state.observe(&rule, back + 20, &next));
    assert_eq!(state.level(&rule, back + 20), 20);
}

// Cases from practice.

#[test]
fn case_1_jobs_of_one_moment_do_not_fold_into_one() {
    let rule = sliding(5, 1_000);
    let mut state = RuleState::resting(&rule, NOW);
    let admitted = (0..200).filter(|_| admit(&mut state, &rule, NOW, 1).is_ok()).count();
    assert_eq!((admitted, state.level(&rule, NOW)), (5, 0));
}

#[test]
fn case_2_a_bucket_does_not_snap_to_full_when_a_period_ends() {
    let rule = bucket(3, 1_000, 3);
    let mut state = RuleState::resting(&rule, NOW);
    let admitted: Vec<_> =
        (0..200).map(|call| NOW + call * 100).filter(|&at| admit(&mut state, &rule, at, 1).is_ok()).collect();
    assert!(admitted.len() <= 63, "{}", admitted.len());
    for (first, from) in admitted.iter().enumerate() {
        for (last, to) in admitted.iter().enumerate().skip(first) {
            let jobs = u64::try_from(last - first + 1).unwrap();
            assert!(jobs * 1_000 <= 3 * 1_000 + 3 * (to - from), "{jobs} from {from} to {to}");
        }
    }
}

#[test]
fn case_14_the_same_options_again_change_nothing() {
    let rule = bucket(1, 1_000, 5);
    let mut state = RuleState::resting(&rule, NOW);
    let drain =
        |state: &mut RuleState, now_ms| (0..9).filter(|_| admit(state, &rule, now_ms, 1).is_ok()).count();
    assert_eq!(drain(&mut state, NOW), 5);
    let again = state.clone().carry(&rule, &rule, NOW);
    assert_eq!(again, state);
    let mut state = again;
    assert_eq!(drain(&mut state, NOW), 0);
    assert_eq!(drain(&mut state, NOW + 5_000), 5);
}

#[test]
fn case_23_a_burst_at_its_rate_admits_no_more_than_both() {
    let rule = bucket(6_000, 1_000, 6_000);
    let mut state = RuleState::resting(&rule, NOW);
    // One call every 5 µs, and one after exactly 100 ms. 6 come each millisecond; the last one finds one of its 6.
    let calls = (0..=20_000_u64).map(|call| NOW + call * 5 / 1_000);
    let admitted = calls.filter(|&at| admit(&mut state, &rule, at, 1).is_ok()).count();
    assert!(admitted <= 6_601, "{admitted}");
    assert_eq!(admitted, 6_000 + 99 * 6 + 1);
}

#[test]
fn case_23_every_rate_and_burst_is_exact_or_refused() {
    let rates = [
        (1, DAY),
        (1, DAY / 24),
        (7, 60_000),
        (1, 1_000),
        (3, 1_000),
        (999, 1_000),
        (6_000, 1_000),
        (99_991, 1_000),
        (999_983, 1_000),
        (1_000_000, 1_000),
        (999_999_999_989, DAY),
        (86_399_999, DAY),
    ];
    let bursts =
        [1, 2, 3, 10, 97, 1_000, 6_000, 99_991, 1_000_000, 9_477_271, 9_477_272, 999_999_937, 1_000_000_000];
    let (mut built, mut random) = (0, 0x5DEE_CE66_D1CE_4E5B_u64);
    let mut below = |most: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (random >> 16) % most.max(1)
    };
    for (limit, interval_ms) in rates {
        for burst in bursts {
            let checked = Rule::token_bucket(limit, ms(interval_ms)).burst(burst).check();
            assert_eq!(
                checked.is_ok(),
                can_stay_exact(limit, interval_ms, burst),
                "{limit} per {interval_ms}, {burst}"
            );
            let Ok(rule) = checked else { continue };
            built += 1;
            let (mut state, mut model, mut now_ms) =
                (RuleState::resting(&rule, NOW), ExactBucket::new(&rule, NOW), NOW);
            for _ in 0..100 {
                let cost = 1 + below(burst);
                if same_answer(&mut state, &mut model, &rule, now_ms, cost) {
                    state.spend(&rule, now_ms, cost);
                    model.change(-i128::from(cost));
                } else {
                    // Sometimes too early, sometimes just in time.
                    now_ms += below(2 * model.fits_in(cost));
                    model.advance(now_ms);
                    now_ms += model.fits_in(cost) * below(2);
                }
            }
        }
    }
    assert!(built > 100, "{built}");
}

#[test]
fn case_25_waiting_the_hint_succeeds_every_time() {
    let rule = bucket(5, 1_000, 1);
    let (mut state, mut now_ms) = (RuleState::resting(&rule, NOW), NOW);
    assert_eq!(admit(&mut state, &rule, now_ms, 1), Ok(()));
    for _ in 0..1_000 {
        let hint = admit(&mut state, &rule, now_ms, 1).unwrap_err();
        assert!((1..=200).contains(&hint), "{hint}");
        assert_eq!(admit(&mut state, &rule, now_ms + hint - 20, 1), Err(20));
        now_ms += hint;
        assert_eq!(admit(&mut state, &rule, now_ms, 1), Ok(()));
    }
}

#[test]
fn case_26_what_can_never_fit_is_known_and_consumes_nothing() {
    let rule = bucket(10, 1_000, 3);
    assert_eq!(rule.most(), 3);
    let mut state = RuleState::resting(&rule, NOW);
    assert!(state.room(&rule, NOW, 4).is_err());
    assert_eq!(admit(&mut state, &rule, NOW, 3), Ok(()));
}
