//! How a limit moves: by the rules one at a time, by random sequences, and in a loop with a ceiling that it cannot see.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::expect_used)]

use std::time::Duration;

use proptest::{collection::vec, prelude::*};
use tidegate_core::{
    Invalid,
    limit::{Aimd, Change, Growth, LimitPolicy, LimitState, Throttle},
};

const WINDOW: u64 = 5_000;
const COOLDOWN: u64 = 10_000;
const REST: Duration = Duration::from_millis(100);
const GROWTHS: [Growth; 3] = [Growth::Additive, Growth::SlowStart, Growth::Probe];

fn check(min: u32, max: u32, aimd: Aimd, growth: Growth) -> Result<LimitPolicy, Invalid> {
    LimitPolicy::check(min, max, &aimd, REST, growth)
}

/// A limit with its policy and a clock.
struct Bench {
    policy: LimitPolicy,
    limit: LimitState,
    now: u64,
}

impl Bench {
    fn new(policy: LimitPolicy, initial: u32) -> Self {
        let now = 1_000_000;
        Self { limit: LimitState::seed(&policy, initial, now), policy, now }
    }

    fn with(growth: Growth, initial: u32) -> Self {
        Self::new(check(1, 1_000, Aimd::new(), growth).expect("these are within bounds"), initial)
    }

    fn value(&self) -> u32 {
        self.limit.value()
    }

    fn wait(&mut self, ms: u64) -> &mut Self {
        self.now += ms;
        self
    }

    fn demand(&mut self) -> &mut Self {
        self.limit.demand(self.now);
        self
    }

    fn set(&mut self, value: u32) {
        self.limit.set(&self.policy, value, self.now);
    }

    fn carry(&mut self, to: LimitPolicy) {
        self.limit.carry(&self.policy, &to, self.now);
        self.policy = to;
    }

    fn success(&mut self) -> Option<Change> {
        self.limit.success(&self.policy, self.now)
    }

    fn throttled(&mut self) -> Throttle {
        self.limit.throttled(&self.policy, self.now)
    }

    /// One whole window with demand, ended by a success.
    fn clean_window(&mut self) -> u32 {
        self.wait(WINDOW).demand().success();
        self.value()
    }

    /// A throttle when no cooldown runs any more.
    fn fresh_throttle(&mut self) -> u32 {
        self.wait(COOLDOWN).throttled();
        self.value()
    }
}

#[test]
fn as_1_a_throttle_lowers_by_the_factor_and_never_below_the_minimum() {
    let policy = check(3, 1_000, Aimd::new().decrease_factor(0.7), Growth::Additive).unwrap();
    let mut bench = Bench::new(policy, 10);
    assert_eq!(bench.throttled(), Throttle::Decreased);
    assert_eq!(bench.value(), 7);
    assert_eq!([bench.fresh_throttle(), bench.fresh_throttle()], [4, 3]);
    assert_eq!(bench.wait(COOLDOWN).throttled(), Throttle::Suppressed);
    assert_eq!(bench.value(), 3);
}

#[test]
fn as_1_decrease_is_at_most_once_per_cooldown() {
    let mut bench = Bench::with(Growth::Additive, 40);
    assert_eq!(bench.throttled(), Throttle::Decreased);
    assert_eq!(bench.wait(COOLDOWN - 1).throttled(), Throttle::Suppressed);
    assert_eq!(bench.value(), 20);
    assert_eq!(bench.wait(1).throttled(), Throttle::Decreased);
    assert_eq!(bench.value(), 10);
}

#[test]
fn as_1_a_throttle_at_the_minimum_starts_no_cooldown() {
    let mut bench = Bench::with(Growth::Additive, 1);
    assert_eq!(bench.throttled(), Throttle::Suppressed);
    assert_eq!(bench.clean_window(), 2);
    assert_eq!(bench.throttled(), Throttle::Decreased);
}

#[test]
fn as_2_increase_needs_demand_within_the_window() {
    let mut bench = Bench::with(Growth::Additive, 10);
    bench.demand();
    assert_eq!(bench.wait(WINDOW).success(), None, "that demand is a whole window old");
    bench.demand();
    assert_eq!(bench.wait(WINDOW - 1).success(), Some(Change::Increase));
    assert_eq!(bench.value(), 11);
}

#[test]
fn as_2_increase_is_at_most_once_per_window() {
    let mut bench = Bench::with(Growth::Additive, 10);
    assert_eq!(bench.wait(WINDOW - 1).demand().success(), None, "the seed starts a window");
    assert_eq!(bench.wait(1).demand().success(), Some(Change::Increase));
    assert_eq!(bench.demand().success(), None);
    assert_eq!(bench.wait(WINDOW - 1).demand().success(), None);
    assert_eq!(bench.wait(1).success(), Some(Change::Increase));
    assert_eq!(bench.value(), 12);
}

#[test]
fn as_2_quiet_traffic_never_inflates() {
    for growth in GROWTHS {
        let mut bench = Bench::with(growth, 10);
        for _ in 0..1_000 {
            bench.wait(WINDOW).success();
        }
        assert_eq!(bench.value(), 10);
    }
}

#[test]
fn as_2_a_suppressed_throttle_spoils_the_window() {
    let mut bench = Bench::with(Growth::Additive, 40);
    bench.throttled();
    assert_eq!(bench.wait(4_000).throttled(), Throttle::Suppressed);
    assert_eq!(bench.wait(4_999).demand().success(), None);
    assert_eq!(bench.wait(1).success(), Some(Change::Increase));
    assert_eq!(bench.value(), 21);
}

#[test]
fn as_2_the_window_restarts_at_every_decrease() {
    let mut bench = Bench::with(Growth::Additive, 40);
    bench.wait(3 * WINDOW).throttled();
    assert_eq!(bench.wait(WINDOW - 1).demand().success(), None);
    assert_eq!(bench.wait(1).success(), Some(Change::Increase));
}

#[test]
fn as_2_growth_ends_at_the_maximum() {
    for growth in GROWTHS {
        let mut bench = Bench::new(check(1, 12, Aimd::new().increase_step(5), growth).unwrap(), 10);
        assert_eq!([bench.clean_window(), bench.clean_window()], [12, 12]);
    }
}

#[test]
fn as_2_tolerated_throttles_spoil_no_window() {
    let policy = check(1, 1_000, Aimd::new().tolerance(0.1), Growth::Additive).unwrap();
    let mut bench = Bench::new(policy, 20);
    for _ in 0..9 {
        bench.success();
    }
    assert_eq!(bench.throttled(), Throttle::Tolerated, "one of ten");
    assert_eq!(bench.clean_window(), 21);
    for _ in 0..8 {
        bench.success();
    }
    assert_eq!(bench.throttled(), Throttle::Tolerated, "two of twenty, over this window and the last");
    assert_eq!(bench.throttled(), Throttle::Decreased, "three of 21");
    assert_eq!(bench.value(), 10);
}

#[test]
fn as_2_tolerance_forgets_what_is_two_windows_old_or_answered() {
    let aimd = Aimd::new().tolerance(0.1).cooldown(Duration::from_millis(1));
    let mut bench = Bench::new(check(1, 1_000, aimd, Growth::Additive).unwrap(), 20);
    for _ in 0..99 {
        bench.limit.failure(&bench.policy, bench.now);
    }
    for _ in 0..11 {
        assert_eq!(bench.throttled(), Throttle::Tolerated);
    }
    assert_eq!(bench.throttled(), Throttle::Decreased, "twelve of 111");
    assert_eq!(bench.throttled(), Throttle::Tolerated, "the decrease has answered the others");
    assert_eq!(bench.wait(WINDOW).throttled(), Throttle::Tolerated, "two of 113 in two windows");
    assert_eq!(bench.wait(2 * WINDOW).throttled(), Throttle::Decreased, "one of one");
}

#[test]
fn as_3_failure_moves_nothing() {
    for growth in GROWTHS {
        let mut bench = Bench::with(growth, 10);
        for _ in 0..100 {
            bench.wait(WINDOW).demand();
            bench.limit.failure(&bench.policy, bench.now);
        }
        assert_eq!(bench.value(), 10);
        assert_eq!(bench.success(), Some(Change::Increase), "and takes nothing from the window");
    }
}

#[test]
fn as_13_slow_start_doubles_until_the_first_throttle_and_returns() {
    let mut bench = Bench::with(Growth::SlowStart, 10);
    assert_eq!([bench.clean_window(), bench.clean_window(), bench.clean_window()], [20, 40, 80]);
    assert_eq!(bench.throttled(), Throttle::Decreased);
    assert_eq!(bench.value(), 40);
    assert_eq!([bench.clean_window(), bench.clean_window()], [41, 42]);
    assert_eq!(bench.fresh_throttle(), 21);
}

#[test]
fn as_13_slow_start_that_never_doubled_falls_by_the_factor() {
    let mut bench = Bench::with(Growth::SlowStart, 10);
    bench.throttled();
    assert_eq!([bench.value(), bench.clean_window()], [5, 6]);
}

#[test]
fn as_13_slow_start_is_over_after_a_throttle_at_the_minimum() {
    let mut bench = Bench::with(Growth::SlowStart, 1);
    assert_eq!(bench.throttled(), Throttle::Suppressed);
    assert_eq!([bench.clean_window(), bench.clean_window(), bench.clean_window()], [2, 3, 4]);
}

#[test]
fn as_13_slow_start_goes_on_through_tolerated_throttles() {
    let policy = check(1, 1_000, Aimd::new().tolerance(0.5), Growth::SlowStart).unwrap();
    let mut bench = Bench::new(policy, 10);
    bench.clean_window();
    assert_eq!(bench.throttled(), Throttle::Tolerated);
    assert_eq!(bench.clean_window(), 40);
}

#[test]
fn as_13_slow_start_returns_from_the_maximum_to_before_the_last_doubling() {
    let mut bench = Bench::new(check(1, 60, Aimd::new(), Growth::SlowStart).unwrap(), 20);
    assert_eq!([bench.clean_window(), bench.clean_window(), bench.clean_window()], [40, 60, 60]);
    assert_eq!(bench.fresh_throttle(), 40);
}

#[test]
fn as_13_probe_returns_to_what_was_good_rests_and_searches_on() {
    let mut bench = Bench::with(Growth::Probe, 10);
    assert_eq!([bench.clean_window(), bench.clean_window(), bench.clean_window()], [20, 40, 80]);
    assert_eq!(bench.fresh_throttle(), 40, "as a slow start; 40 is good, and the way back is done");
    for window in 0..26 {
        assert_eq!(bench.clean_window(), 40, "two lifts of nothing and a rest, {window}");
    }
    let search: Vec<u32> = (0..4).map(|_| bench.clean_window()).collect();
    assert_eq!(search, [41, 43, 47, 55]);
    assert_eq!(bench.fresh_throttle(), 27);
    assert_eq!([bench.clean_window(), bench.clean_window()], [45, 47], "47 was good: 47 - (47 - 27) / 8");
    for _ in 0..24 {
        assert_eq!(bench.clean_window(), 47);
    }
    assert_eq!(bench.clean_window(), 48);
}

#[test]
fn as_13_probe_returns_to_one_less_where_nothing_was_good() {
    let mut bench = Bench::with(Growth::Probe, 40);
    assert_eq!(bench.fresh_throttle(), 20);
    assert_eq!(bench.fresh_throttle(), 10);
    assert_eq!([bench.clean_window(), bench.clean_window()], [18, 19], "19 - (19 - 10) / 8");
}

#[test]
fn as_13_probe_returns_to_one_less_where_what_was_good_is_throttled_now() {
    let mut bench = Bench::new(check(1, 80, Aimd::new(), Growth::Probe).unwrap(), 40);
    assert_eq!([bench.clean_window(), bench.clean_window()], [80, 80]);
    assert_eq!(bench.fresh_throttle(), 40);
    assert_eq!([bench.clean_window(), bench.clean_window()], [75, 79]);
}

#[test]
fn as_13_probe_never_falls_in_a_clean_window() {
    let mut bench =
        Bench::new(check(1, 1_000, Aimd::new().decrease_factor(0.95), Growth::Probe).unwrap(), 100);
    bench.set(100);
    for _ in 0..24 {
        bench.clean_window();
    }
    let search: Vec<u32> = (0..6).map(|_| bench.clean_window()).collect();
    assert_eq!(search, [101, 103, 107, 115, 131, 163]);
    assert_eq!(bench.fresh_throttle(), 154, "above 131, the last good one");
    assert_eq!([bench.clean_window(), bench.clean_window()], [154, 154]);
}

#[test]
fn as_13_probe_searches_by_at_most_the_limit() {
    let mut bench = Bench::with(Growth::Probe, 2);
    bench.set(2);
    for _ in 0..24 {
        assert_eq!(bench.clean_window(), 2);
    }
    let search: Vec<u32> = (0..5).map(|_| bench.clean_window()).collect();
    assert_eq!(search, [3, 5, 9, 17, 33]);
    bench.carry(check(1, 4, Aimd::new(), Growth::Probe).unwrap());
    bench.carry(check(1, 20, Aimd::new(), Growth::Probe).unwrap());
    let search: Vec<u32> = (0..4).map(|_| bench.clean_window()).collect();
    assert_eq!(search, [8, 16, 20, 20], "and within the maximum");

    let mut bench = Bench::with(Growth::Probe, 1);
    bench.throttled();
    for _ in 0..26 {
        assert_eq!(bench.clean_window(), 1);
    }
    let search: Vec<u32> = (0..4).map(|_| bench.clean_window()).collect();
    assert_eq!(search, [2, 4, 8, 16]);
}

#[test]
fn as_13_a_limit_that_was_set_is_not_doubled() {
    let mut bench = Bench::with(Growth::SlowStart, 10);
    bench.set(5_000);
    assert_eq!(bench.value(), 1_000);
    bench.set(80);
    assert_eq!(bench.demand().success(), None, "a window starts");
    assert_eq!(bench.clean_window(), 81);
    assert_eq!(bench.fresh_throttle(), 40);

    let mut bench = Bench::with(Growth::Probe, 10);
    bench.set(80);
    for _ in 0..24 {
        assert_eq!(bench.clean_window(), 80);
    }
    assert_eq!([bench.clean_window(), bench.clean_window()], [81, 83]);
}

#[test]
fn st_5_a_new_revision_clamps_and_another_growth_starts_anew() {
    let mut bench = Bench::with(Growth::Additive, 100);
    bench.wait(WINDOW).carry(check(1, 50, Aimd::new(), Growth::Additive).unwrap());
    assert_eq!(bench.value(), 50);
    bench.carry(check(55, 60, Aimd::new(), Growth::Additive).unwrap());
    assert_eq!(bench.value(), 55);
    assert_eq!(bench.demand().success(), None, "it moved, so a window starts");
    bench.carry(check(60, 500, Aimd::new(), Growth::SlowStart).unwrap());
    assert_eq!([bench.value(), bench.clean_window(), bench.clean_window()], [60, 120, 240]);
    let before = bench.limit.clone();
    bench.wait(1).carry(check(60, 500, Aimd::new().increase_step(2), Growth::SlowStart).unwrap());
    assert_eq!(bench.limit, before, "and the same growth goes on where it is");
    assert_eq!(bench.throttled(), Throttle::Decreased);
    assert_eq!([bench.value(), bench.clean_window()], [120, 122]);
}

#[test]
fn st_5_a_limit_returns_to_no_less_than_a_raised_minimum() {
    let mut bench = Bench::with(Growth::SlowStart, 20);
    assert_eq!(bench.clean_window(), 40);
    bench.carry(check(30, 1_000, Aimd::new(), Growth::SlowStart).unwrap());
    assert_eq!(bench.fresh_throttle(), 30);
}

#[test]
fn st_2_moments_move_back_with_the_clock() {
    let mut bench = Bench::with(Growth::Additive, 40);
    bench.throttled();
    bench.wait(4_000).demand();
    bench.limit.shift_back(500_000);
    bench.now -= 500_000;
    assert_eq!(bench.wait(999).success(), None);
    assert_eq!(bench.wait(1).success(), Some(Change::Increase));
    assert_eq!(bench.wait(4_999).throttled(), Throttle::Suppressed);
    assert_eq!(bench.wait(1).throttled(), Throttle::Decreased);
    bench.limit.shift_back(u64::MAX);
    assert_eq!(bench.value(), 10);

    let mut bench = Bench::new(check(1, 100, Aimd::new().tolerance(0.1), Growth::Additive).unwrap(), 40);
    for _ in 0..99 {
        bench.success();
    }
    bench.limit.shift_back(500_000);
    bench.now -= 500_000;
    assert_eq!(bench.throttled(), Throttle::Tolerated);
    assert_eq!(bench.wait(2 * WINDOW).throttled(), Throttle::Decreased);
}

#[test]
fn bi_1_every_option_of_a_limit_is_refused_by_name() {
    let (ms, day) = (Duration::from_millis(1), Duration::from_secs(86_400));
    let nan = f64::NAN;
    let of = |aimd| check(1, 10, aimd, Growth::Additive);
    let bad = [
        ("min_limit", check(0, 10, Aimd::new(), Growth::Additive)),
        ("min_limit", check(11, 10, Aimd::new(), Growth::Additive)),
        ("max_limit", check(1, 0, Aimd::new(), Growth::Additive)),
        ("max_limit", check(1, 1_000_001, Aimd::new(), Growth::Additive)),
        ("aimd.decrease_factor", of(Aimd::new().decrease_factor(0.0))),
        ("aimd.decrease_factor", of(Aimd::new().decrease_factor(1.0))),
        ("aimd.decrease_factor", of(Aimd::new().decrease_factor(0.000_000_1))),
        ("aimd.decrease_factor", of(Aimd::new().decrease_factor(0.999_999_9))),
        ("aimd.decrease_factor", of(Aimd::new().decrease_factor(nan))),
        ("aimd.increase_step", of(Aimd::new().increase_step(0))),
        ("aimd.increase_step", of(Aimd::new().increase_step(u32::MAX))),
        ("aimd.window", of(Aimd::new().window(Duration::ZERO))),
        ("aimd.window", of(Aimd::new().window(Duration::MAX))),
        ("aimd.cooldown", of(Aimd::new().cooldown(Duration::ZERO))),
        ("aimd.cooldown", of(Aimd::new().cooldown(366 * day + ms))),
        ("aimd.tolerance", of(Aimd::new().tolerance(1.0))),
        ("aimd.tolerance", of(Aimd::new().tolerance(-0.1))),
        ("aimd.tolerance", of(Aimd::new().tolerance(f64::INFINITY))),
        ("throttle_rest", LimitPolicy::check(1, 10, &Aimd::new(), day + ms, Growth::Additive)),
    ];
    for (option, refused) in bad {
        assert_eq!(refused.unwrap_err().option, option);
    }
    let widest = Aimd::new().window(366 * day).cooldown(Duration::from_nanos(1)).increase_step(1_000_000);
    let policy = LimitPolicy::check(1_000_000, 1_000_000, &widest, Duration::ZERO, Growth::Probe).unwrap();
    assert_eq!((policy.cooldown_ms, policy.throttle_rest_ms), (1, 0), "part of a millisecond is a whole one");
}

#[test]
fn as_16_the_defaults_are_those_of_the_table() {
    let policy = check(1, 1_000, Aimd::default(), Growth::default()).unwrap();
    assert_eq!((policy.decrease_factor.ppm(), policy.increase_step), (500_000, 1));
    assert_eq!((policy.window_ms, policy.cooldown_ms, policy.tolerance.ppm()), (5_000, 10_000, 0));
    assert_eq!(GROWTHS.map(Growth::as_str), ["additive", "slow_start", "probe"]);
    assert_eq!(policy.growth, Growth::Additive);
}

#[test]
fn case_5_one_step_per_window_and_one_decrease_per_cooldown() {
    let mut bench = Bench::with(Growth::Additive, 20);
    bench.wait(WINDOW).demand();
    for _ in 0..20 {
        bench.success();
    }
    assert_eq!(bench.value(), 21);

    let mut bench = Bench::with(Growth::Additive, 20);
    for _ in 0..40 {
        bench.wait(COOLDOWN / 41).throttled();
    }
    assert_eq!(bench.value(), 10);
}

/// What can happen to a limit.
#[derive(Clone, Copy, Debug)]
enum Event {
    Demand,
    Success,
    Failure,
    Throttled,
    Set(u32),
}

fn events() -> impl Strategy<Value = Vec<(u64, Event)>> {
    let event = prop_oneof![
        4 => Just(Event::Demand),
        8 => Just(Event::Success),
        1 => Just(Event::Failure),
        1 => Just(Event::Throttled),
    ];
    vec((prop_oneof![Just(0_u64), 0..50_u64, 0..600_u64], event), 1..200)
}

fn policies() -> impl Strategy<Value = LimitPolicy> {
    let constants = (0.000_001..0.999_999, 1..50_u32, 1..1_000_u64, 1..1_000_u64);
    (1..100_u32, 0..1_000_u32, constants, 0_usize..3).prop_map(|(min, more, constants, growth)| {
        let (factor, step, window, cooldown) = constants;
        let aimd = Aimd::new().decrease_factor(factor).increase_step(step);
        let aimd = aimd.window(Duration::from_millis(window)).cooldown(Duration::from_millis(cooldown));
        check(min, min + more, aimd, GROWTHS[growth]).expect("these are within bounds")
    })
}

fn happens(limit: &mut LimitState, policy: &LimitPolicy, event: Event, now: u64) -> Option<Change> {
    match event {
        Event::Demand => limit.demand(now),
        Event::Success => return limit.success(policy, now),
        Event::Failure => limit.failure(policy, now),
        Event::Throttled if limit.throttled(policy, now) == Throttle::Decreased => {
            return Some(Change::Decrease);
        }
        Event::Throttled => {}
        Event::Set(value) => limit.set(policy, value, now),
    }
    None
}

proptest! {
    #[test]
    fn as_13_every_growth_keeps_bounds_window_and_cooldown(
        policy in policies(), tolerance in prop_oneof![Just(0.0), 0.0..0.9], initial in 0..2_000_u32, events in events(),
        set in (0..200_usize, 0..2_000_u32),
    ) {
        let mut policy = policy;
        policy.tolerance = tidegate_core::Fraction::new("tolerance", tolerance).unwrap();
        let mut limit = LimitState::seed(&policy, initial, 0);
        let (mut now, mut rise, mut fall, mut demand) = (0, 0, None, None);
        for (index, (after, event)) in events.into_iter().enumerate() {
            now += after;
            let event = if index == set.0 { Event::Set(set.1) } else { event };
            let before = limit.value();
            let change = happens(&mut limit, &policy, event, now);
            let value = limit.value();
            prop_assert!((policy.min..=policy.max).contains(&value));
            match (change, event) {
                (Some(Change::Increase), Event::Success) => {
                    prop_assert!(value > before);
                    prop_assert!(now - rise >= policy.window_ms);
                    prop_assert!(demand.is_some_and(|at| now - at < policy.window_ms));
                    rise = now;
                }
                (Some(Change::Decrease), Event::Throttled) => {
                    prop_assert!(value < before);
                    prop_assert!(fall.is_none_or(|at| now - at >= policy.cooldown_ms));
                    (fall, rise) = (Some(now), now);
                }
                (None, Event::Set(_)) => rise = now,
                (None, _) => prop_assert_eq!(value, before),
                other => prop_assert!(false, "{:?}", other),
            }
            if matches!(event, Event::Demand) {
                demand = Some(now);
            }
        }
    }

    /// The words of the rule, read off the whole history.
    #[test]
    fn as_2_additive_growth_is_what_the_rule_says_of_the_whole_history(policy in policies(), events in events()) {
        let policy = LimitPolicy::check(
            policy.min,
            policy.max,
            &Aimd::new()
                .increase_step(policy.increase_step)
                .window(Duration::from_millis(policy.window_ms))
                .cooldown(Duration::from_millis(policy.cooldown_ms)),
            REST,
            Growth::Additive,
        ).unwrap();
        let mut limit = LimitState::seed(&policy, 50, 0);
        let mut expected = 50.clamp(policy.min, policy.max);
        // (when, whether it was demand or a throttle); the windows that started; the decreases.
        let (mut seen, mut starts, mut falls) = (Vec::new(), vec![0], Vec::new());
        let mut now = 0_u64;
        for (after, event) in events {
            now += after;
            let recent = |at: &u64, span: u64| at + span > now;
            match event {
                Event::Demand => seen.push((now, true)),
                Event::Success => {
                    let any = |demand| seen.iter().any(|(at, is)| *is == demand && recent(at, policy.window_ms));
                    if any(true) && !any(false) && !starts.iter().any(|at| recent(at, policy.window_ms)) {
                        expected = (expected + policy.increase_step).min(policy.max);
                        starts.push(now);
                    }
                }
                Event::Throttled => {
                    seen.push((now, false));
                    let next = (expected / 2).max(policy.min);
                    if next < expected && !falls.iter().any(|at| recent(at, policy.cooldown_ms)) {
                        expected = next;
                        starts.push(now);
                        falls.push(now);
                    }
                }
                Event::Failure | Event::Set(_) => {}
            }
            happens(&mut limit, &policy, event, now);
            prop_assert_eq!(limit.value(), expected);
        }
    }
}

/// A saturated fleet against a ceiling that it cannot see: every second it makes as many calls as the limit allows, and
/// those above the ceiling are throttled.
struct Loop {
    bench: Bench,
    served: u64,
    possible: u64,
    throttled: u64,
}

impl Loop {
    fn new(growth: Growth) -> Self {
        Self { bench: Bench::with(growth, 5), served: 0, possible: 0, throttled: 0 }
    }

    fn run(&mut self, seconds: u64, ceiling: u32) {
        for _ in 0..seconds {
            let calls = self.bench.wait(1_000).demand().value();
            for call in 0..calls {
                if call < ceiling {
                    self.bench.success();
                } else {
                    self.bench.throttled();
                }
            }
            self.served += u64::from(calls.min(ceiling));
            self.possible += u64::from(ceiling);
            self.throttled += u64::from(calls.saturating_sub(ceiling));
        }
    }

    /// Per mille of what the ceiling would have allowed, and calls throttled per 100,000 served.
    fn score(&self) -> (u64, u64) {
        (self.served * 1_000 / self.possible, self.throttled * 100_000 / self.served)
    }
}

#[test]
fn as_13_each_growth_finds_a_hidden_ceiling() {
    let mut additive = Loop::new(Growth::Additive);
    additive.run(3_600, 40);
    let mut slow_start = Loop::new(Growth::SlowStart);
    slow_start.run(3_600, 40);
    let mut probe = Loop::new(Growth::Probe);
    probe.run(3_600, 40);
    let (additive, slow_start, probe) = (additive.score(), slow_start.score(), probe.score());
    assert!((700..800).contains(&additive.0), "the sawtooth: {additive:?}");
    assert!(slow_start.0 >= additive.0, "{slow_start:?}");
    assert!(probe.0 >= 950 && probe.1 <= 50, "{probe:?}");
}

#[test]
fn as_13_probe_follows_a_ceiling_that_falls_and_one_that_rises() {
    let mut probe = Loop::new(Growth::Probe);
    probe.run(1_800, 40);
    probe.run(30, 12);
    assert!(probe.bench.value() <= 12, "{}", probe.bench.value());
    probe.run(1_800, 12);
    assert!((9..=13).contains(&probe.bench.value()), "{}", probe.bench.value());
    probe.run(300, 80);
    assert!(probe.bench.value() > 40, "{}", probe.bench.value());
}
