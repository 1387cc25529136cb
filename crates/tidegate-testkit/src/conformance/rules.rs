//! Rate rules.
//!
//! Spec: RU-1 to RU-5.

use tidegate_core::{
    AcquireRequest, Costs, Job, Line, StoreError,
    policy::Draft,
    rule::{CheckedRule, Rule},
};

use super::{
    Failure, Need, ensure,
    lab::{DAY, Lab, Worker, job_with, jobs, jobs_of_one, key, ms, name, policy, refused, ruled},
    same, trials_of_rules,
};
use crate::subject::Hook;

const CLOCK: Need = Need::Hook(Hook::Clock);

trials_of_rules! {
    "RU-1 a rule is named by its key" => ru_1_keys;
    "RU-1 rules of different keys are kept apart" => ru_1_apart;
    "RU-2 a job has one cost for all rules, and another for a named one" => ru_2_costs;
    "RU-2 a cost for a rule that does not exist is refused" => ru_2_unknown;
    "RU-2 a cost of 0 passes without spending" => ru_2_zero;
    "RU-2 a cost above what a rule can ever hold is refused at once" => ru_2_too_dear;
    "RU-3 the largest and the smallest rules are exact" => ru_3_extremes;
    "RU-3 a level is exact at any rate" [CLOCK] => ru_3_exact;
    "RU-4 sixteen rules hold at once" => ru_4_sixteen;
    "RU-4 nothing drifts in an hour of saturated use" [CLOCK] => ru_4_no_drift;
    "RU-5 a token bucket refills at its rate and holds its burst" [CLOCK] => ru_5_token_bucket;
    "RU-5 a fixed window starts with the first job" [CLOCK] => ru_5_fixed_window;
    "RU-5 a sliding window bounds every span" [CLOCK] => ru_5_sliding_window;
    "RU-5 a sliding window is exact up to 512 jobs per interval" [CLOCK] => ru_5_up_to_512;
    "RU-5 a sliding window of many jobs is never laxer, and hardly stricter" [CLOCK] => ru_5_many_jobs;
}

async fn ru_1_keys(lab: &Lab) -> Result<(), Failure> {
    let rules = [
        ("bucket", Rule::token_bucket(2, ms(365 * DAY)), format!("token_bucket:{}", 365 * DAY)),
        ("fixed", Rule::fixed_window(2, ms(DAY)), format!("fixed_window:{DAY}")),
        ("sliding", Rule::sliding_window(2, ms(DAY)), format!("sliding_window:{DAY}")),
        (
            "named",
            Rule::sliding_window(2, ms(DAY)).named("Tokens_per.day-1"),
            "named:Tokens_per.day-1".to_owned(),
        ),
    ];
    for (id, rule, expected) in rules {
        let worker = lab.worker_of(id, &ruled(rule))?;
        same(worker.granted(2).await?, 2, "grants of a level that is full")?;
        same(worker.denied(1).await?.rule, Some(key(&expected)), "the rule of the denial")?;
    }
    Ok(())
}

async fn ru_1_apart(lab: &Lab) -> Result<(), Failure> {
    let rules = policy()
        .rule(Rule::fixed_window(3, ms(DAY)))
        .rule(Rule::fixed_window(4, ms(DAY - 1)))
        .rule(Rule::sliding_window(5, ms(DAY)))
        .rule(Rule::fixed_window(6, ms(DAY)).named("fixed_window"))
        .rule(Rule::fixed_window(7, ms(DAY)).named("86400000"));
    let worker = lab.worker(&rules)?;
    same(worker.granted(9).await?, 3, "grants of the tightest of rules that look alike")?;
    let wider = lab.worker(&rules.rule(Rule::fixed_window(8, ms(DAY)).named("a")).revision(1))?;
    same(wider.granted(9).await?, 0, "grants after another rule was added")
}

async fn ru_2_costs(lab: &Lab) -> Result<(), Failure> {
    let rules = policy()
        .rule(Rule::fixed_window(10, ms(DAY)))
        .rule(Rule::token_bucket(5_000, ms(365 * DAY)).named("tokens"));
    let worker = lab.worker(&rules)?;
    // One request, 1,800 tokens.
    for left in [3_200, 1_400] {
        same(
            worker.ask(&job_with(1, &[("tokens", 1_800)])?).await?.body.grants.len(),
            1,
            "grants of 1,800 tokens",
        )?;
        let denied = worker.ask(&job_with(1, &[("tokens", left + 1)])?).await?.body.denied;
        same(
            denied.and_then(|denial| denial.rule),
            Some(key("named:tokens")),
            "the rule that denies more than is left",
        )?;
    }
    same(
        worker.ask(&job_with(8, &[("tokens", 1_400)])?).await?.body.grants.len(),
        1,
        "grants of all that is left",
    )?;
    let denied = worker.ask(&job_with(1, &[("tokens", 0)])?).await?.body.denied;
    same(
        denied.and_then(|denial| denial.rule),
        Some(key(&format!("fixed_window:{DAY}"))),
        "the rule that denies then",
    )?;
    // A job without a cost of its own for the rule spends the common one there.
    let plain = lab.worker_of("plain", &ruled(Rule::fixed_window(10, ms(DAY)).named("tokens")))?;
    same(plain.ask(&jobs(&[4, 4, 4])).await?.body.grants.len(), 2, "grants of cost 4 in a named rule")
}

async fn ru_2_unknown(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(
        &policy().rule(Rule::fixed_window(9, ms(DAY)).named("a")).rule(Rule::token_bucket(9, ms(365 * DAY))),
    )?;
    let unknown = job_with(1, &[("b", 1)])?;
    refused(worker.ask(&unknown).await, "invalid_options", "a cost for a rule that does not exist")?;
    refused(
        worker.ask(&job_with(1, &[("A", 0)])?).await,
        "invalid_options",
        "a cost of 0 for one that does not exist",
    )?;
    refused(
        worker.ask(&job_with(1, &[("a", 1), ("a", 1)])?).await,
        "invalid_options",
        "two costs for one rule",
    )?;
    let mut second = jobs_of_one(1);
    second.jobs.extend(unknown.jobs);
    refused(worker.ask(&second).await, "invalid_options", "a cost for an unknown rule in the second job")?;
    same(worker.granted(20).await?, 9, "grants that the refused requests have left")
}

async fn ru_2_zero(lab: &Lab) -> Result<(), Failure> {
    let rules = [
        ("bucket", Rule::token_bucket(3, ms(365 * DAY)).named("a")),
        ("fixed", Rule::fixed_window(3, ms(DAY)).named("a")),
        ("sliding", Rule::sliding_window(3, ms(DAY)).named("a")),
    ];
    for (id, rule) in rules {
        let worker = lab.worker_of(id, &ruled(rule))?;
        same(
            worker.ask(&jobs(&[0; 100])).await?.body.grants.len(),
            100,
            format_args!("{id}: grants of cost 0"),
        )?;
        same(
            worker.granted(9).await?,
            3,
            format_args!("{id}: grants of a level that these have left whole"),
        )?;
        same(
            worker.ask(&jobs(&[0, 0])).await?.body.grants.len(),
            2,
            format_args!("{id}: grants of cost 0 when it is empty"),
        )?;
        same(
            worker.ask(&job_with(1, &[("a", 0)])?).await?.body.grants.len(),
            1,
            format_args!("{id}: grants of a job that costs nothing in this rule"),
        )?;
    }
    Ok(())
}

async fn ru_2_too_dear(lab: &Lab) -> Result<(), Failure> {
    let rules = policy()
        .rule(Rule::token_bucket(100, ms(365 * DAY)).burst(3).named("a"))
        .rule(Rule::fixed_window(50, ms(DAY)).named("b"));
    let worker = lab.worker(&rules)?;
    let error =
        refused(worker.ask(&jobs(&[1, 4])).await, "cost_exceeds_limit", "a cost of 4, where the burst is 3")?;
    let StoreError::CostExceedsLimit { index, rule, cost, most } = &error else {
        return Err(Failure(format!("expected that the cost exceeds the limit, got: {error}")));
    };
    same(
        (*index, rule, *cost, *most),
        (1, &key("named:a"), 4, 3),
        "the job, the rule, the cost and the most",
    )?;
    for (cost, what) in [(51, "above the limit of a window"), (u64::MAX, "of 2^64 - 1"), (1 << 53, "of 2^53")]
    {
        let answer = worker.ask(&job_with(0, &[("b", cost)])?).await;
        refused(answer, "cost_exceeds_limit", format_args!("a cost {what}"))?;
    }
    same(
        worker.ask(&jobs(&[3])).await?.body.grants.len(),
        1,
        "grants of a cost of 3, which all is left for",
    )?;
    // Full or empty, it is refused and not denied.
    refused(worker.ask(&jobs(&[4])).await, "cost_exceeds_limit", "a cost of 4 when the bucket is empty")?;
    worker.pause(DAY).await?;
    refused(worker.ask(&jobs(&[4])).await, "cost_exceeds_limit", "a cost of 4 during a pause")?;
    Ok(())
}

async fn ru_3_extremes(lab: &Lab) -> Result<(), Failure> {
    let (most, year) = (1_000_000_000_000, ms(366 * DAY));
    let rules = [
        Rule::fixed_window(most, year),
        Rule::sliding_window(most, year),
        Rule::token_bucket(most, year).burst(most / 1_000_000),
        Rule::token_bucket(1, year).burst(20_000),
        Rule::fixed_window(1, year),
    ];
    for (index, rule) in rules.into_iter().enumerate() {
        let largest = rule.check()?.most();
        let worker = lab.worker_of(&format!("extreme {index}"), &ruled(rule.clone()))?;
        if largest > 1 {
            ensure(worker.spends(largest - 1).await?, format_args!("all but one of {rule:?}"))?;
            ensure(
                !worker.spends(2).await? || index == 2,
                format_args!("two where one is left of {rule:?}"),
            )?;
        }
        ensure(worker.spends(1).await?, format_args!("the last one of {rule:?}"))?;
        ensure(!worker.spends(1).await? || index == 2, format_args!("one where none is left of {rule:?}"))?;
        refused(
            worker.ask(&jobs(&[largest + 1])).await,
            "cost_exceeds_limit",
            format_args!("one more than {rule:?} holds"),
        )?;
    }
    Ok(())
}

/// A bucket in parts of 1/interval of a token, in whole numbers that cannot overflow.
pub(super) struct ExactBucket {
    parts: u128,
    limit: u128,
    interval: u128,
    burst: u128,
}

impl ExactBucket {
    pub(super) fn full(rule: &CheckedRule) -> Self {
        let (limit, interval, burst) =
            (u128::from(rule.limit()), u128::from(rule.interval_ms()), u128::from(rule.burst()));
        Self { parts: burst * interval, limit, interval, burst }
    }

    pub(super) fn pass(&mut self, elapsed_ms: u64) {
        let come = self.limit.saturating_mul(u128::from(elapsed_ms));
        self.parts = self.parts.saturating_add(come).min(self.burst * self.interval);
    }

    /// Takes this out if it is there.
    pub(super) fn take(&mut self, cost: u64) -> bool {
        let needed = u128::from(cost) * self.interval;
        let fits = self.parts >= needed;
        if fits {
            self.parts -= needed;
        }
        fits
    }

    /// How many whole milliseconds until this is there.
    pub(super) fn hint_ms(&self, cost: u64) -> u128 {
        (u128::from(cost) * self.interval).saturating_sub(self.parts).div_ceil(self.limit)
    }
}

async fn ru_3_exact(lab: &Lab) -> Result<(), Failure> {
    let mut random = fastrand::Rng::with_seed(3);
    let rules = [
        (7, 3_000, 11),
        (999_999_937, 1_000, 2_000_000_000),
        (1_000_000_000_000, 366 * DAY, 40_000),
        (1, 366 * DAY, 2),
        (13, 86_399_999, 5),
    ];
    for (index, (limit, interval_ms, burst)) in rules.into_iter().enumerate() {
        let rule = Rule::token_bucket(limit, ms(interval_ms)).burst(burst);
        let worker = lab.worker_of(&format!("exact {index}"), &ruled(rule.clone()))?;
        let mut exact = ExactBucket::full(&rule.check()?);
        for step in 0..60 {
            let cost = random.u64(1..=burst);
            let reply = worker.ask(&jobs(&[cost])).await?;
            let what = || format!("step {step} of {limit} per {interval_ms} ms, burst {burst}, cost {cost}");
            same(reply.body.denied.is_none(), exact.take(cost), format_args!("granted in {}", what()))?;
            let mut after_ms = random.u64(0..2_000);
            if let Some(denial) = reply.body.denied {
                same(
                    u128::from(denial.hint_ms),
                    exact.hint_ms(cost),
                    format_args!("the hint in {}", what()),
                )?;
                // Near the hint, where an error of one part would show.
                after_ms = denial.hint_ms - random.u64(0..=1);
            }
            exact.pass(after_ms);
            while after_ms > 20 * DAY {
                // So that the pin does not lapse meanwhile.
                lab.advance(20 * DAY).await;
                after_ms -= 20 * DAY;
                ensure(worker.spends(0).await?, "a cost of 0 passes")?;
            }
            lab.advance(after_ms).await;
        }
    }
    Ok(())
}

fn sixteen(rule: impl Fn(u64) -> Rule) -> Draft {
    (0..16).fold(policy(), |draft, number| draft.rule(rule(number).named(format!("rule{number}"))))
}

async fn ru_4_sixteen(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&sixteen(|number| match number % 3 {
        0 => Rule::token_bucket(100, ms(365 * DAY)),
        1 => Rule::fixed_window(100, ms(DAY)),
        _ => Rule::sliding_window(100, ms(DAY)),
    }))?;
    // A job that costs more in one rule, for each in turn.
    for number in 0..16 {
        let named = vec![(name(&format!("rule{number}"))?, 85)];
        let job = Job { costs: Costs { each: 1, named } };
        let request = AcquireRequest { class: None, jobs: vec![job.clone()], line: Line::default() };
        same(
            worker.ask(&request).await?.body.grants.len(),
            1,
            format_args!("grants of 85 in rule {number}"),
        )?;
    }
    // 100 of each rule are used.
    let denied = worker.denied(1).await?;
    ensure(denied.rule.is_some(), "a rule denies")?;
    same(worker.granted(1).await?, 0, "grants when all sixteen rules are spent")
}

/// Asks again and again, each time when the hint says so, for an hour; counts what is admitted.
async fn saturate(lab: &Lab, worker: &Worker, hour_ms: u64) -> Result<u64, Failure> {
    let (mut left_ms, mut admitted) = (hour_ms, 0);
    loop {
        let reply = worker.acquire(16).await?;
        admitted += u64::try_from(reply.body.grants.len()).unwrap_or(u64::MAX);
        let Some(denial) = reply.body.denied else { continue };
        if denial.hint_ms > left_ms {
            lab.advance(left_ms).await;
            return Ok(admitted);
        }
        left_ms -= denial.hint_ms;
        lab.advance(denial.hint_ms).await;
    }
}

async fn ru_4_no_drift(lab: &Lab) -> Result<(), Failure> {
    let hour = 3_600_000;
    // Limit, interval, burst, and what an hour admits: the burst and what came in.
    for (index, (limit, interval_ms, burst)) in
        [(7, 60_000, 3), (1_000, 3_600_007, 1), (11, 77_777, 11), (3, 999_983, 2)].into_iter().enumerate()
    {
        let rule = Rule::token_bucket(limit, ms(interval_ms)).burst(burst);
        let worker = lab.worker_of(&format!("bucket {index}"), &ruled(rule))?;
        let expected = burst + hour * limit / interval_ms;
        let admitted = saturate(lab, &worker, hour).await?;
        same(admitted, expected, format_args!("what {limit} per {interval_ms} ms admits in an hour"))?;
    }
    let worker = lab.worker_of("fixed", &ruled(Rule::fixed_window(7, ms(7_000))))?;
    same(
        saturate(lab, &worker, hour).await?,
        7 * (hour / 7_000 + 1),
        "what 7 in windows of 7 s admit in an hour",
    )?;
    let worker = lab.worker_of("sliding", &ruled(Rule::sliding_window(7, ms(7_000))))?;
    same(saturate(lab, &worker, hour).await?, 7 * (hour / 7_000 + 1), "what 7 in any 7 s admit in an hour")
}

async fn ru_5_token_bucket(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::token_bucket(10, ms(1_000)).burst(15)))?;
    same(worker.granted(20).await?, 15, "grants of a full bucket")?;
    for (after_ms, granted) in [(99, 0), (1, 1), (350, 3), (50, 1), (1_000, 10), (1_499, 14), (100_000, 15)] {
        lab.advance(after_ms).await;
        same(worker.granted(20).await?, granted, format_args!("grants {after_ms} ms later"))?;
    }
    let plain = lab.worker_of("plain", &ruled(Rule::token_bucket(4, ms(1_000))))?;
    same(plain.granted(9).await?, 4, "grants of a bucket whose burst is its limit")
}

async fn ru_5_fixed_window(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(5, ms(1_000))))?;
    // Not aligned to anything: the window starts with the first job.
    lab.advance(123).await;
    same(worker.granted(2).await?, 2, "grants that start a window")?;
    lab.advance(999).await;
    same(worker.granted(9).await?, 3, "grants a millisecond before its end")?;
    lab.advance(1).await;
    same(worker.granted(9).await?, 5, "grants at its end, which start the next")?;
    lab.advance(999).await;
    same(worker.granted(9).await?, 0, "grants a millisecond before the end of that")?;
    lab.advance(5_000).await;
    same(worker.granted(1).await?, 1, "grants long after, which start another")?;
    lab.advance(999).await;
    same(worker.granted(9).await?, 4, "grants a millisecond before its end")
}

async fn ru_5_sliding_window(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::sliding_window(5, ms(1_000))))?;
    let mut random = fastrand::Rng::with_seed(5);
    let mut log: Vec<(u64, u64)> = Vec::new();
    let mut now_ms = 0;
    for _ in 0..300 {
        let cost = random.u64(1..=3);
        let used: u64 = log.iter().filter(|(at, _)| at + 1_000 > now_ms).map(|(_, cost)| cost).sum();
        let granted = worker.spends(cost).await?;
        same(
            granted,
            used + cost <= 5,
            format_args!("granted {cost} at {now_ms} ms, with {used} in the last second"),
        )?;
        if granted {
            log.push((now_ms, cost));
        }
        let after_ms = random.u64(0..400);
        now_ms += after_ms;
        lab.advance(after_ms).await;
    }
    Ok(())
}

async fn ru_5_up_to_512(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::sliding_window(512, ms(100_000))))?;
    for job in 0..512 {
        ensure(worker.spends(1).await?, format_args!("job {job} of 512"))?;
        lab.advance(7).await;
    }
    // Each comes back a whole interval after it was spent, to the millisecond.
    let first_ms = 100_000 - 512 * 7;
    same(worker.denied(1).await?.hint_ms, first_ms, "the hint of the first to come back")?;
    lab.advance(first_ms).await;
    for job in 0..20 {
        ensure(worker.spends(1).await?, format_args!("job {job} when the first have come back"))?;
        same(worker.denied(1).await?.hint_ms, 7, "the hint of the next")?;
        lab.advance(6).await;
        ensure(!worker.spends(1).await?, "a job a millisecond before the next comes back")?;
        lab.advance(1).await;
    }
    Ok(())
}

/// 2,000 jobs in an interval: never more than the limit in any span, and no job waits longer than by 1/512 of it.
async fn ru_5_many_jobs(lab: &Lab) -> Result<(), Failure> {
    let (limit, interval_ms) = (2_000_usize, 51_200);
    let worker = lab.worker(&ruled(Rule::sliding_window(2_000, ms(interval_ms))))?;
    let mut admitted: Vec<u64> = Vec::new();
    let mut now_ms = 0;
    let slack_ms = interval_ms / 512;
    for step in 0..900_u64 {
        let jobs = 7;
        let granted = worker.granted(jobs).await?;
        let within = |span_ms| admitted.len() - admitted.partition_point(|at| at + span_ms <= now_ms);
        ensure(
            within(interval_ms) + granted <= limit,
            format_args!("step {step}: {} were admitted in one interval", within(interval_ms) + granted),
        )?;
        let at_least = jobs.min(limit.saturating_sub(within(interval_ms + slack_ms)));
        ensure(
            granted >= at_least,
            format_args!("step {step}: {granted} were granted, and {at_least} had to be"),
        )?;
        admitted.extend(std::iter::repeat_n(now_ms, granted));
        now_ms += 97;
        lab.advance(97).await;
    }
    Ok(())
}
