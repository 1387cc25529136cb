//! What is granted, what is denied, and when to come again.
//!
//! Spec: ST-2, ST-3, ST-4, ST-6, ST-7, ST-8.

use std::time::Duration;

use tidegate_core::{Capability, Denial, Outcome, rule::Rule, time::EXACT};

use super::{
    Failure, Need, ensure,
    lab::{
        DAY, Lab, Worker, fixed, job_with, jobs, jobs_of_one, key, ms, policy, queue, refused, ruled, slots,
    },
    same, trials_of_rules,
};
use crate::subject::Hook;

const LEASES: Need = Need::Has(Capability::Leases);
const CLOCK: Need = Need::Hook(Hook::Clock);

trials_of_rules! {
    "ST-2 the clock is the store's own" [CLOCK] => st_2_own_clock;
    "ST-2 a clock up to a second behind stands still" [CLOCK] => st_2_stands_still;
    "ST-2 what is stored moves back with a clock that is set back" [CLOCK] => st_2_moves_back;
    "ST-2 leases keep their time when the clock is set back" [LEASES, CLOCK] => st_2_leases;
    "ST-3 grants strictly in order" => st_3_in_order;
    "ST-3 stops at the first job that has no slot" [LEASES] => st_3_slots;
    "ST-3 takes 1 to 512 jobs" => st_3_how_many;
    "ST-4 a job that one rule denies spends nothing in another" => st_4_rules;
    "ST-4 a job without a slot spends nothing" [LEASES] => st_4_slots;
    "ST-4 a job that a rule denies takes no lease" [LEASES] => st_4_leases;
    "ST-6 a hint is exact for a token bucket" [CLOCK] => st_6_token_bucket;
    "ST-6 a hint is exact for a fixed window" [CLOCK] => st_6_fixed_window;
    "ST-6 a hint is exact for a sliding window" [CLOCK] => st_6_sliding_window;
    "ST-6 a hint is for the first denied job" [CLOCK] => st_6_first_denied;
    "ST-6 a hint waits for the last of several rules" [CLOCK] => st_6_several_rules;
    "ST-6 a hint is positive and below 2^53 at any rate" => st_6_bounds;
    "ST-6 a hint for slots ends with the first lease" [LEASES, CLOCK] => st_6_slots;
    "ST-6 a hint for slots is no longer than the lease TTL" [LEASES] => st_6_ttl;
    "ST-7 full slots are told from a rate" [LEASES] => st_7_told_apart;
    "ST-7 where both deny it is a rate denial" [LEASES] => st_7_both;
    "VA-3 an answer says how many others wait for a rate" => va_3_others;
    "ST-8 nothing is granted during a pause" => st_8_nothing;
    "ST-8 a pause ends by itself to the millisecond" [CLOCK] => st_8_ends;
    "ST-8 a pause of months is one of months" [CLOCK] => st_8_months;
    "ST-8 a pause is never shortened" => st_8_never_shortened;
    "ST-8 resume ends a pause, and says whether there was one" => st_8_resume;
    "ST-8 a pause is of one id, in every process" => st_8_one_id;
    "ST-8 a pause spends nothing and pins no more than before" => st_8_before_the_pin;
    "ST-8 leases are kept and given back during a pause" [LEASES] => st_8_leases;
    "ST-8 a pause is above 0 and at most 366 days" => st_8_bounds;
}

async fn st_2_own_clock(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(2, ms(DAY))))?;
    for ahead_ms in [0, 1, 3_600_000] {
        lab.advance(ahead_ms).await;
        let head = worker.acquire(1).await?.head;
        ensure(
            head.now.is_none_or(|now| now == lab.now()),
            format_args!("now is {:?}, and the store's clock shows {:?}", head.now, lab.now()),
        )?;
        same(head.stepped_back_ms, 0, "how far a clock that only ran on was set back")?;
    }
    Ok(())
}

async fn st_2_stands_still(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::token_bucket(10, ms(10_000))))?;
    same(worker.granted(10).await?, 10, "grants of a full bucket")?;
    lab.step_back(1_000).await;
    let reply = worker.acquire(1).await?;
    same(reply.head.stepped_back_ms, 0, "how far a clock a second behind was set back")?;
    same(hint(reply.body.denied)?, 1_000, "the hint while the clock is behind")?;
    lab.advance(1_999).await;
    same(worker.granted(1).await?, 0, "grants a millisecond before the first token")?;
    lab.advance(1).await;
    same(worker.granted(2).await?, 1, "grants when the first token has come")
}

async fn st_2_moves_back(lab: &Lab) -> Result<(), Failure> {
    let rules = [
        ("bucket", Rule::token_bucket(5, ms(5_000)), 1_000),
        ("fixed", Rule::fixed_window(5, ms(5_000)), 5_000),
        ("sliding", Rule::sliding_window(5, ms(5_000)), 5_000),
    ];
    for (id, rule, hint_ms) in rules {
        let worker = lab.worker_of(id, &ruled(rule))?;
        ensure(worker.spends(5).await?, "all that a rule holds")?;
        for back_ms in [3_600_000, 1_001] {
            lab.step_back(back_ms).await;
            let reply = worker.acquire(1).await?;
            let head = reply.head;
            ensure(
                head.now.is_none_or(|now| now == lab.now()),
                format_args!("the clock was set back to {:?}, and now is {:?}", lab.now(), head.now),
            )?;
            same(head.stepped_back_ms, back_ms, "how far the clock was found to be set back")?;
            same(hint(reply.body.denied)?, hint_ms, format_args!("the hint of {id} after that"))?;
            same(
                worker.acquire(1).await?.head.stepped_back_ms,
                0,
                "how far it was set back when asked again",
            )?;
        }
        hint_is_exact(lab, &worker, 1, id).await?;
    }
    let worker = lab.worker_of("paused", &policy())?;
    worker.pause(5_000).await?;
    lab.step_back(3_600_000).await;
    let head = worker.acquire(1).await?.head;
    same((head.paused_ms, head.stepped_back_ms), (5_000, 3_600_000), "what is left of a pause")?;
    lab.advance(5_000).await;
    same(worker.granted(1).await?, 1, "grants when the pause is over")
}

async fn st_2_leases(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(1).lease_ttl(ms(10_000)))?;
    let token = worker.lease().await?;
    lab.advance(4_000).await;
    same(worker.granted(1).await?, 0, "grants above the limit")?;
    lab.step_back(7_200_000).await;
    same(worker.granted(1).await?, 0, "grants after the clock was set back")?;
    lab.advance(5_999).await;
    same(worker.granted(1).await?, 0, "grants a millisecond before the lease ends")?;
    lab.step_back(3_600_000).await;
    same(worker.granted(1).await?, 0, "grants after the clock was set back again")?;
    lab.advance(1).await;
    let next = worker.lease().await?;
    ensure(next.fence > token.fence, "a fence fell with the clock")
}

async fn st_3_in_order(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::token_bucket(5, ms(365 * DAY))))?;
    let reply = worker.ask(&jobs(&[2, 2, 2, 1])).await?;
    same(reply.body.grants.len(), 2, "grants of 2, 2, 2, 1 out of 5")?;
    ensure(reply.body.denied.is_some(), "the third job is denied")?;
    let reply = worker.ask(&jobs(&[2, 0, 1])).await?;
    same(reply.body.grants.len(), 0, "grants behind a job that does not fit, also of those that would")?;
    let reply = worker.ask(&jobs(&[0, 1, 0])).await?;
    same(reply.body.grants.len(), 3, "grants of 0, 1, 0 out of 1")?;
    ensure(reply.body.denied.is_none(), "where all are granted nothing is denied")
}

async fn st_3_slots(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(3))?;
    let reply = worker.acquire(5).await?;
    same(reply.body.grants.len(), 3, "grants of 5 jobs under a limit of 3")?;
    ensure(reply.body.denied.is_some_and(|denial| denial.lease_blocked), "the fourth is denied for slots")?;
    let tokens: Vec<_> = reply.body.grants.iter().filter_map(|grant| grant.lease).collect();
    slots(&tokens, &[0, 1, 2], "slots in the order of the jobs")?;
    ensure(tokens.windows(2).all(|pair| pair[0].fence < pair[1].fence), "fences in the order of the jobs")
}

async fn st_3_how_many(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(600, ms(DAY))))?;
    for wrong in [0, 513, 5_000] {
        refused(
            worker.ask(&jobs_of_one(wrong)).await,
            "invalid_options",
            format_args!("an acquire of {wrong} jobs"),
        )?;
    }
    same(worker.granted(512).await?, 512, "grants of 512 jobs")?;
    same(worker.granted(100).await?, 88, "grants of what is left")
}

async fn st_4_rules(lab: &Lab) -> Result<(), Failure> {
    let rules = policy()
        .rule(Rule::token_bucket(10, ms(365 * DAY)).named("a"))
        .rule(Rule::fixed_window(3, ms(DAY)).named("b"))
        .rule(Rule::sliding_window(10, ms(DAY)).named("c"));
    let worker = lab.worker(&rules)?;
    same(worker.granted(2).await?, 2, "grants of cost 1")?;
    for _ in 0..3 {
        let denied = worker.ask(&job_with(5, &[("b", 2)])?).await?.body.denied;
        same(denied.and_then(|denial| denial.rule), Some(key("named:b")), "the rule that denies")?;
    }
    let reply = worker.ask(&job_with(8, &[("b", 1)])?).await?;
    same(reply.body.grants.len(), 1, "grants of all that the other rules have left")?;
    let denied = worker.ask(&job_with(1, &[("b", 0)])?).await?.body.denied;
    ensure(denied.is_some(), "and nothing more is left of them")
}

async fn st_4_slots(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(1).rule(Rule::fixed_window(10, ms(DAY))))?;
    let token = worker.lease().await?;
    for _ in 0..5 {
        ensure(worker.denied(4).await?.lease_blocked, "full slots deny")?;
    }
    worker.release(&[token]).await?;
    ensure(worker.spends(9).await?, "all that is left of the rule is there after denials for slots")?;
    ensure(!worker.denied(1).await?.lease_blocked, "and nothing more")
}

async fn st_4_leases(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(3).rule(Rule::fixed_window(10, ms(DAY))))?;
    ensure(worker.spends(8).await?, "8 of 10")?;
    for _ in 0..5 {
        ensure(!worker.denied(3).await?.lease_blocked, "the rule denies 3 more")?;
    }
    let tokens = worker.leases(2).await?;
    slots(&tokens, &[1, 2], "slots after denials by a rule")
}

// ---- hints ---------------------------------------------------------------------------------------------------------

pub(super) fn hint(denied: Option<Denial>) -> Result<u64, Failure> {
    denied.map(|denial| denial.hint_ms).ok_or_else(|| Failure("granted, and should be denied".to_owned()))
}

/// A job is denied now, and again a millisecond before its hint has passed, and granted when it has.
pub(super) async fn hint_is_exact(lab: &Lab, worker: &Worker, cost: u64, what: &str) -> Result<u64, Failure> {
    let hint_ms = worker.denied(cost).await?.hint_ms;
    lab.advance(hint_ms.saturating_sub(1)).await;
    if hint_ms > 1 {
        let early = worker.denied(cost).await.map_err(|failure| {
            Failure(format!("{what}: a millisecond before the hint of {hint_ms} ms: {}", failure.0))
        })?;
        same(
            early.hint_ms,
            1,
            format_args!("{what}: the hint a millisecond before the hint of {hint_ms} ms"),
        )?;
    }
    lab.advance(1).await;
    ensure(
        worker.spends(cost).await?,
        format_args!("{what}: after the hint of {hint_ms} ms a job of cost {cost} is denied"),
    )?;
    Ok(hint_ms)
}

async fn st_6_token_bucket(lab: &Lab) -> Result<(), Failure> {
    // Limit, interval, burst, and the costs of jobs.
    let cases: &[(u64, u64, u64, &[u64])] = &[
        (10, 1_000, 10, &[1, 7, 10]),
        (3, 1_000, 3, &[1, 1, 1, 2, 3]),
        (7, 10_000, 20, &[1, 13, 20, 1]),
        (1, DAY, 1, &[1, 1]),
        (1_000, 1, 5_000, &[1, 4_999, 5_000]),
        (999_983, 1_000_003, 999_983, &[1, 2, 999_983]),
        (1_000_000, 1_000, 1, &[1, 1]),
    ];
    for (index, (limit, interval_ms, burst, costs)) in cases.iter().enumerate() {
        let rule = Rule::token_bucket(*limit, ms(*interval_ms)).burst(*burst);
        let worker = lab.worker_of(&format!("bucket {index}"), &ruled(rule))?;
        ensure(worker.spends(*burst).await?, "a full bucket holds its burst")?;
        for cost in *costs {
            let what = format!("{limit} per {interval_ms} ms, burst {burst}");
            hint_is_exact(lab, &worker, *cost, &what).await?;
        }
    }
    Ok(())
}

async fn st_6_fixed_window(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(5, ms(1_000))))?;
    ensure(worker.spends(3).await?, "3 of 5")?;
    lab.advance(400).await;
    ensure(worker.spends(2).await?, "2 of 5")?;
    same(worker.denied(1).await?.hint_ms, 600, "the hint of a window that began 400 ms ago")?;
    same(
        hint_is_exact(lab, &worker, 5, "5 per s").await?,
        600,
        "the hint of a job that takes a whole window",
    )?;
    hint_is_exact(lab, &worker, 1, "5 per s").await?;
    Ok(())
}

async fn st_6_sliding_window(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::sliding_window(5, ms(1_000))))?;
    for (after_ms, cost) in [(0, 2), (10, 1), (300, 2)] {
        lab.advance(after_ms).await;
        ensure(worker.spends(cost).await?, format_args!("{cost} of what is left"))?;
    }
    // 2 at 0, 1 at 10, 2 at 310: now is 310.
    for (cost, hint_ms) in [(1, 690), (2, 690), (3, 700), (4, 1_000), (5, 1_000)] {
        same(worker.denied(cost).await?.hint_ms, hint_ms, format_args!("the hint of a job of cost {cost}"))?;
    }
    hint_is_exact(lab, &worker, 3, "5 in any second").await?;
    hint_is_exact(lab, &worker, 5, "5 in any second").await?;
    hint_is_exact(lab, &worker, 1, "5 in any second").await?;
    Ok(())
}

async fn st_6_first_denied(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::token_bucket(10, ms(1_000)).burst(20)))?;
    ensure(worker.spends(15).await?, "15 of 20")?;
    let reply = worker.ask(&jobs(&[5, 4, 20])).await?;
    same(reply.body.grants.len(), 1, "grants of 5, 4, 20 out of 5")?;
    same(hint(reply.body.denied)?, 400, "the hint, which is for the job of cost 4")
}

async fn st_6_several_rules(lab: &Lab) -> Result<(), Failure> {
    let rules = policy()
        .rule(Rule::token_bucket(1, ms(1_000)).named("fast"))
        .rule(Rule::fixed_window(1, ms(10_000)).named("slow"))
        .rule(Rule::sliding_window(9, ms(60_000)).named("wide"));
    let worker = lab.worker(&rules)?;
    same(worker.granted(1).await?, 1, "grants of the first job")?;
    let denial = worker.denied(1).await?;
    same(denial.hint_ms, 10_000, "the hint of the slowest rule")?;
    same(denial.rule, Some(key("named:slow")), "the rule that set the hint")?;
    hint_is_exact(lab, &worker, 1, "three rules").await?;
    Ok(())
}

async fn st_6_bounds(lab: &Lab) -> Result<(), Failure> {
    let year = 366 * DAY;
    let most = 1_000_000_000_000;
    let cases = [
        Rule::token_bucket(1, ms(year)),
        Rule::token_bucket(1, ms(year)).burst(1_000),
        Rule::token_bucket(most, ms(1)).burst(1),
        Rule::token_bucket(most, ms(1)),
        Rule::fixed_window(most, ms(year)),
        Rule::sliding_window(1, ms(year)),
        Rule::sliding_window(most, ms(year)),
    ];
    for (index, rule) in cases.into_iter().enumerate() {
        let worker = lab.worker_of(&format!("extreme {index}"), &ruled(rule.clone()))?;
        let burst = rule.check()?.most();
        ensure(worker.spends(burst).await?, format_args!("all that {rule:?} can hold fits at first"))?;
        if let Some(denial) = worker.ask(&jobs(&[burst])).await?.body.denied {
            ensure(
                (1..EXACT).contains(&denial.hint_ms),
                format_args!("the hint of {rule:?} is {} ms", denial.hint_ms),
            )?;
        }
    }
    Ok(())
}

async fn st_6_slots(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(2).lease_ttl(ms(10_000)))?;
    let first = worker.lease().await?;
    lab.advance(3_000).await;
    worker.lease().await?;
    let hint_ms = worker.denied(1).await?.hint_ms;
    ensure(hint_ms <= 7_000, format_args!("the hint is {hint_ms} ms, and a lease ends in 7,000"))?;
    same(worker.renew(&[first]).await?, vec![true], "the renewal of the first lease")?;
    let hint_ms = worker.denied(1).await?.hint_ms;
    ensure(hint_ms <= 10_000, format_args!("the hint is {hint_ms} ms, and both leases end in 10,000"))?;
    lab.advance(9_999).await;
    let hint_ms = worker.denied(1).await?.hint_ms;
    same(hint_ms, 1, "the hint a millisecond before the leases end")?;
    lab.advance(1).await;
    same(worker.granted(3).await?, 2, "grants when both leases have ended")
}

async fn st_6_ttl(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(1).lease_ttl(ms(86_400_000)))?;
    worker.lease().await?;
    let denial = worker.denied(1).await?;
    ensure(
        (1..=86_400_000).contains(&denial.hint_ms),
        format_args!("the hint is {} ms, and the lease TTL 86,400,000", denial.hint_ms),
    )
}

async fn st_7_told_apart(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(1).rule(Rule::fixed_window(5, ms(DAY))))?;
    let token = worker.lease().await?;
    let denial = worker.denied(1).await?;
    ensure(denial.lease_blocked, "full slots are said to be the cause")?;
    same(denial.rule, None, "the rule of a denial for slots")?;
    worker.release(&[token]).await?;
    let denial = worker.denied(5).await?;
    ensure(!denial.lease_blocked, "a rule is said to be the cause where slots are free")?;
    same(denial.rule, Some(key(&format!("fixed_window:{DAY}"))), "the rule of a rate denial")
}

async fn st_7_both(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(1).lease_ttl(ms(100)).rule(Rule::fixed_window(1, ms(DAY))))?;
    worker.lease().await?;
    let denial = worker.denied(1).await?;
    ensure(!denial.lease_blocked, "where slots and a rule deny, it is a rate denial")?;
    ensure(denial.hint_ms > DAY / 2, format_args!("with the rate's hint, not {} ms", denial.hint_ms))?;
    same(denial.rule, Some(key(&format!("fixed_window:{DAY}"))), "the rule of the denial")
}

async fn va_3_others(lab: &Lab) -> Result<(), Failure> {
    let draft = ruled(Rule::fixed_window(2, ms(DAY)));
    let (first, second, third) = (lab.worker(&draft)?, lab.worker(&draft)?, lab.worker(&draft)?);
    let others = async |worker: &Worker, waiting| {
        Ok::<_, Failure>(worker.ask(&queue(1, waiting, 0)).await?.body.others)
    };
    same(others(&first, 1).await?, 0, "others that wait where the first is granted")?;
    same(first.granted(1).await?, 1, "grants of all there is")?;
    same(others(&first, 1).await?, 0, "others that wait beside the first")?;
    same(others(&second, 5).await?, 1, "others that wait beside the second, however many jobs it has")?;
    same(others(&third, 0).await?, 2, "others that wait beside one that tries once")?;
    same(
        others(&first, 1).await?,
        1,
        "others that wait beside the first, the one that tried once not among them",
    )?;
    // One that waits no longer is not counted.
    same(others(&second, 0).await?, 1, "others that wait beside the second, which gives up")?;
    same(others(&first, 1).await?, 0, "others that wait beside the first then")
}

// ---- pauses --------------------------------------------------------------------------------------------------------

async fn st_8_nothing(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(5, ms(DAY))))?;
    same(worker.granted(1).await?, 1, "grants before the pause")?;
    let head = worker.pause(DAY).await?;
    ensure(head.paused_ms > 0 && head.paused_ms <= DAY, "a pause says what is left of it")?;
    for cost in [1, 0] {
        let reply = worker.ask(&jobs(&[cost, 0])).await?;
        same(reply.body.grants.len(), 0, "grants during a pause")?;
        ensure((1..=DAY).contains(&reply.head.paused_ms), "the result says what is left of the pause")?;
        let denial = reply.body.denied.ok_or_else(|| Failure("a pause denies".to_owned()))?;
        same(denial.hint_ms, reply.head.paused_ms, "the hint in a pause")?;
    }
    worker.resume().await?;
    same(worker.granted(5).await?, 4, "grants after the pause, which has spent nothing")
}

async fn st_8_ends(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(5, ms(DAY))))?;
    worker.pause(1_500).await?;
    let reply = worker.acquire(1).await?;
    same((hint(reply.body.denied)?, reply.head.paused_ms), (1_500, 1_500), "what is left of 1,500 ms")?;
    lab.advance(1_499).await;
    let reply = worker.acquire(1).await?;
    same(
        (hint(reply.body.denied)?, reply.head.paused_ms),
        (1, 1),
        "what is left a millisecond before the end",
    )?;
    lab.advance(1).await;
    let reply = worker.acquire(1).await?;
    same((reply.body.grants.len(), reply.head.paused_ms), (1, 0), "grants at the end, and what is left")?;
    // Part of a millisecond counts as a whole one: a pause is never cut short.
    let left = worker.store.pause(worker.id(), Duration::from_micros(1)).await?.body;
    same((left.left_ms, left.extended), (1, false), "what is left of a pause of a microsecond")
}

async fn st_8_months(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(5, ms(DAY))))?;
    same(worker.granted(1).await?, 1, "grants before the pause")?;
    worker.pause(366 * DAY).await?;
    lab.advance(366 * DAY - 1).await;
    same(worker.granted(1).await?, 0, "grants a millisecond before 366 days are over")?;
    lab.advance(1).await;
    same(worker.granted(9).await?, 5, "grants when they are")
}

async fn st_8_never_shortened(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(5, ms(DAY))))?;
    let first = worker.store.pause(worker.id(), ms(DAY)).await?.body;
    ensure(!first.extended, "the first pause extends none")?;
    let shorter = worker.store.pause(worker.id(), ms(1_000)).await?.body;
    ensure(shorter.extended, "a second pause meets the first")?;
    ensure(shorter.left_ms > DAY / 2, format_args!("a shorter pause left {} ms", shorter.left_ms))?;
    let longer = worker.store.pause(worker.id(), ms(2 * DAY)).await?.body;
    ensure(longer.extended, "a longer pause extends")?;
    ensure(longer.left_ms > DAY * 3 / 2, format_args!("a longer pause left {} ms", longer.left_ms))?;
    let head = worker.acquire(1).await?.head;
    ensure(head.paused_ms > DAY * 3 / 2, format_args!("{} ms are left of two days", head.paused_ms))
}

async fn st_8_resume(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(5, ms(DAY))))?;
    same(worker.store.resume(worker.id()).await?.body, false, "a resume of an id that is not known")?;
    worker.pause(DAY).await?;
    same(worker.granted(1).await?, 0, "grants during a pause")?;
    let resumed = worker.store.resume(worker.id()).await?;
    same((resumed.body, resumed.head.paused_ms), (true, 0), "a resume, and what is left")?;
    same(worker.store.resume(worker.id()).await?.body, false, "a second resume")?;
    same(worker.granted(1).await?, 1, "grants after it")?;
    let again = worker.store.pause(worker.id(), ms(1_000)).await?.body;
    ensure(!again.extended && again.left_ms <= 1_000, "a pause after a resume is a new one")
}

async fn st_8_one_id(lab: &Lab) -> Result<(), Failure> {
    let draft = ruled(Rule::fixed_window(5, ms(DAY)));
    let (worker, other) = (lab.worker(&draft)?, lab.worker_of("trial2", &draft)?);
    let peer = lab.peer_of(&worker)?;
    peer.pause(DAY).await?;
    same(worker.granted(1).await?, 0, "grants of the paused id in another process")?;
    same(other.granted(1).await?, 1, "grants of another id")?;
    worker.resume().await?;
    same(peer.granted(1).await?, 1, "grants in the process that paused, after another has resumed")
}

async fn st_8_before_the_pin(lab: &Lab) -> Result<(), Failure> {
    let paused = lab.worker(&ruled(Rule::fixed_window(1, ms(DAY))))?;
    paused.pause(DAY).await?;
    same(paused.granted(1).await?, 0, "grants during a pause")?;
    paused.resume().await?;
    same(paused.granted(2).await?, 1, "grants after a pause of an id that was never used")?;
    let other = lab.worker_of("trial2", &ruled(Rule::fixed_window(2, ms(DAY))))?;
    other.pause(DAY).await?;
    other.resume().await?;
    same(
        other.granted(9).await?,
        2,
        "grants of an id that was only paused, under the first policy that comes",
    )
}

async fn st_8_leases(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(2))?;
    let tokens = worker.leases(2).await?;
    worker.pause(DAY).await?;
    same(worker.renew(&tokens).await?, vec![true, true], "renewals during a pause")?;
    let head = worker.report(&tokens[..1], Outcome::Success).await?;
    ensure(head.held.is_none_or(|held| held == 1), format_args!("{:?} held after a release", head.held))?;
    same(worker.granted(1).await?, 0, "grants of a free slot during a pause")?;
    worker.resume().await?;
    same(worker.granted(2).await?, 1, "grants of the free slot after it")
}

async fn st_8_bounds(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(9, ms(DAY))))?;
    let year = Duration::from_secs(366 * 86_400);
    for wrong in [Duration::ZERO, year + Duration::from_nanos(1), Duration::MAX] {
        refused(
            worker.store.pause(worker.id(), wrong).await,
            "invalid_options",
            format_args!("a pause of {wrong:?}"),
        )?;
        same(worker.granted(1).await?, 1, "grants after a pause that was refused")?;
    }
    let left_ms = worker.store.pause(worker.id(), year).await?.body.left_ms;
    ensure(left_ms > 365 * DAY && left_ms <= 366 * DAY, format_args!("{left_ms} ms are left of 366 days"))
}
