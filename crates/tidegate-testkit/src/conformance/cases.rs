//! What went wrong for people elsewhere, as experiments.

use std::collections::BTreeSet;

use tidegate_core::{Capability, Class, Outcome, StoreError, Token, rule::Rule};

use super::{
    Failure, Need, concurrency,
    deciding::hint_is_exact,
    ensure,
    lab::{
        DAY, Lab, adaptive, fixed, jobs, jobs_of_one, ms, name, policy, refused, releases, ruled, scoped_job,
        scoped_jobs,
    },
    rules::ExactBucket,
    same, trials_of_rules,
};
use crate::subject::Hook;

const LEASES: Need = Need::Has(Capability::Leases);
const ADAPTIVE: Need = Need::Has(Capability::Adaptive);
const CLOCK: Need = Need::Hook(Hook::Clock);

trials_of_rules! {
    "CASE-1 events with equal timestamps do not fold into one" [CLOCK] => case_1;
    "CASE-2 a bucket does not snap to full at period ends" [CLOCK] => case_2;
    "CASE-3 one handle gets distinct leases" [LEASES] => case_3;
    "CASE-5 twenty successes at once are one increase, forty throttles one decrease" [LEASES, ADAPTIVE, CLOCK] => case_5;
    "CASE-6 a class gets its slice at once" [LEASES] => case_6;
    "CASE-14 the same options a second time change nothing" [CLOCK] => case_14;
    "CASE-15 a newer revision stays" => case_15;
    "CASE-23 a high rate admits no more than it says" [CLOCK] => case_23;
    "CASE-23 rates and bursts against exact arithmetic" [CLOCK] => case_23_grid;
    "CASE-25 a hint that is waited for succeeds a thousand times" [CLOCK] => case_25;
    "CASE-26 what can never fit is impossible, and consumes nothing" => case_26;
    "CASE-35 pauses below a second" [CLOCK] => case_35_pauses;
    "CASE-35 counters beyond 2^53" => case_35_counters;
    "CASE-35 ten thousand items in one request" => case_35_items;
}

async fn case_1(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::sliding_window(5, ms(1_000))))?;
    same(concurrency::granted_at_once(lab, &worker, 25).await?, 5, "grants of 200 requests at one moment")?;
    if lab.has(Capability::Operators) {
        let levels: Vec<_> =
            worker.snapshot().await?.into_iter().flat_map(|snapshot| snapshot.rules).collect();
        same(levels.iter().map(|rule| rule.level).collect(), vec![Some(0)], "what the window has left")?;
    }
    lab.advance(999).await;
    same(worker.granted(9).await?, 0, "grants a millisecond before a second is over")?;
    lab.advance(1).await;
    same(worker.granted(9).await?, 5, "grants when it is")
}

async fn case_2(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::token_bucket(3, ms(1_000))))?;
    let mut admitted = Vec::new();
    for request in 0..200_u64 {
        if worker.spends(1).await? {
            admitted.push(request * 100);
        }
        lab.advance(100).await;
    }
    for (index, from) in admitted.iter().enumerate() {
        for (count, to) in (1_u64..).zip(&admitted[index..]) {
            // count ≤ burst + rate · Δt, in thousandths.
            ensure(
                count * 1_000 <= 3_000 + 3 * (to - from),
                format_args!("{count} were admitted between {from} and {to} ms"),
            )?;
        }
    }
    ensure(admitted.len() <= 63, format_args!("{} were admitted in 20 s", admitted.len()))?;
    ensure(admitted.len() >= 60, format_args!("only {} were admitted in 20 s", admitted.len()))
}

async fn case_3(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(5))?;
    let (mut tokens, mut denials) = (BTreeSet::<Token>::new(), 0);
    for _ in 0..20 {
        let body = worker.acquire(1).await?.body;
        tokens.extend(body.grants.iter().filter_map(|grant| grant.lease));
        denials += usize::from(body.denied.is_some_and(|denial| denial.lease_blocked));
    }
    same((tokens.len(), denials), (5, 15), "distinct leases, and denials")?;
    let slots: Vec<u32> = tokens.iter().map(|token| token.slot).collect();
    same(slots, vec![0, 1, 2, 3, 4], "their slots")
}

async fn case_5(lab: &Lab) -> Result<(), Failure> {
    let draft = adaptive(1, 100)?;
    let limit = |head: tidegate_core::Head| head.limit.map(|limit| limit.value);
    let processes = (0..4)
        .map(|_| Ok(lab.worker_of("up", &draft)?.starting_at(20)))
        .collect::<Result<Vec<_>, Failure>>()?;
    let mut held = Vec::new();
    for process in &processes {
        held.push(process.leases(5).await?);
    }
    lab.advance(1_000).await;
    let mut last = None;
    for process in &processes {
        same(process.granted(1).await?, 0, "grants above the limit")?;
    }
    for (process, tokens) in processes.iter().zip(&held) {
        for token in tokens {
            last = limit(process.report(&[*token], Outcome::Success).await?);
        }
    }
    same(last, Some(21), "the limit after twenty successes in a saturated window")?;

    let worker = lab.worker_of("down", &draft)?.starting_at(64);
    let tokens = worker.leases(40).await?;
    for token in &tokens {
        lab.advance(49).await;
        last = limit(worker.report(&[*token], Outcome::Throttled).await?);
    }
    same(last, Some(32), "the limit after forty throttles inside one cooldown")?;

    let worker = lab.worker_of("quiet", &draft)?.starting_at(20);
    for _ in 0..20 {
        let tokens = worker.leases(3).await?;
        lab.advance(1_000).await;
        last = limit(worker.report(&tokens, Outcome::Success).await?);
    }
    same(last, Some(20), "the limit of one that was never saturated")
}

async fn case_6(lab: &Lab) -> Result<(), Failure> {
    let draft = fixed(20)
        .class(Class::reserved("a", 0.25))
        .class(Class::reserved("b", 0.25))
        .class(Class::unreserved("c"));
    let (a, b, c) = (name("a")?, name("b")?, name("c")?);
    let worker = lab.worker_of("greedy", &draft)?;
    same(worker.granted_as(Some(&b), 512).await?, 15, "grants of b, which takes all it can")?;
    same(worker.granted_as(Some(&a), 5).await?, 5, "grants of a, at once")?;
    let worker = lab.worker_of("beside", &draft)?;
    same(worker.granted_as(Some(&a), 10).await?, 10, "grants of a")?;
    same(
        worker.granted_as(Some(&c), 512).await?,
        5,
        "grants of an unreserved class, which leaves b's slice whole",
    )?;
    same(worker.granted_as(Some(&b), 512).await?, 5, "grants of b")
}

async fn case_14(lab: &Lab) -> Result<(), Failure> {
    let draft = ruled(Rule::token_bucket(1, ms(1_000)).burst(5));
    let worker = lab.worker(&draft)?;
    same(worker.granted(9).await?, 5, "grants of a full bucket")?;
    lab.advance(2_500).await;
    let again = lab.worker(&draft)?;
    ensure(again.spends(0).await?, "a cost of 0 passes")?;
    lab.advance(2_500).await;
    same(again.granted(9).await?, 5, "grants 5 s later, to a worker that came in between")?;
    let third = lab.worker(&draft)?;
    same(third.granted(9).await?, 0, "grants of one that comes at once")
}

async fn case_15(lab: &Lab) -> Result<(), Failure> {
    let draft = |revision, limit| ruled(Rule::fixed_window(limit, ms(DAY))).revision(revision);
    let (a, b) = (lab.worker(&draft(1, 10))?, lab.worker(&draft(2, 25))?);
    same(a.granted(5).await?, 5, "grants of the first worker")?;
    same(b.granted(1).await?, 1, "grants of the second")?;
    same(a.granted(4).await?, 4, "grants of the first, which works on")?;
    let restarted = lab.worker(&draft(1, 10))?;
    same(restarted.granted(512).await?, 15, "grants of the first after a restart: it stays 25")?;
    let error =
        refused(restarted.refusing().ask(&jobs(&[1])).await, "policy_superseded", "one that does not adopt")?;
    ensure(
        matches!(error, StoreError::Superseded { own: 1, pinned: 2 }),
        format_args!("revisions 1 and 2: {error}"),
    )
}

async fn case_23(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::token_bucket(6_000, ms(1_000))))?;
    let mut admitted = 0;
    for step in 0..100 {
        if step > 0 {
            lab.advance(1).await;
        }
        admitted += worker.granted(200).await?;
    }
    // The burst, and 6 for each of 99 ms.
    same(admitted, 6_000 + 99 * 6, "what is admitted of 20,000 calls in 100 ms")
}

async fn case_23_grid(lab: &Lab) -> Result<(), Failure> {
    let mut random = fastrand::Rng::with_seed(23);
    for (limit, interval_ms) in [(1, DAY), (17, 3_600_000), (5, 1_000), (333, 1_000), (1_000_000, 1_000)] {
        for burst in [1, 2, 1_000, 999_983, 1_000_000_000] {
            // A slow rate would take years to fill a large burst, and is refused when it could not stay exact.
            let rule = Rule::token_bucket(limit, ms(interval_ms)).burst(burst);
            let Ok(checked) = rule.check() else { continue };
            let worker = lab.worker_of(&format!("{limit} per {interval_ms}, {burst}"), &ruled(rule))?;
            let mut exact = ExactBucket::full(&checked);
            for _ in 0..6 {
                // As much as there is, or a little beside it.
                let cost = (burst - random.u64(0..burst.min(3))).max(1);
                let reply = worker.ask(&jobs(&[cost])).await?;
                let what = format!("{limit} per {interval_ms} ms, burst {burst}, cost {cost}");
                same(reply.body.denied.is_none(), exact.take(cost), format_args!("granted at {what}"))?;
                let hint_ms = reply.body.denied.map_or(0, |denial| denial.hint_ms);
                if hint_ms > 0 {
                    same(u128::from(hint_ms), exact.hint_ms(cost), format_args!("the hint at {what}"))?;
                }
                let after_ms = (hint_ms + random.u64(0..=2)).saturating_sub(1).min(20 * DAY);
                lab.advance(after_ms).await;
                exact.pass(after_ms);
            }
        }
    }
    Ok(())
}

async fn case_25(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::token_bucket(5, ms(1_000)).burst(1)))?;
    ensure(worker.spends(1).await?, "the first job")?;
    for round in 0..1_000 {
        let hint_ms = worker.denied(1).await?.hint_ms;
        ensure((1..=200).contains(&hint_ms), format_args!("the hint is {hint_ms} ms in round {round}"))?;
        lab.advance(hint_ms - 20).await;
        ensure(!worker.spends(1).await?, format_args!("granted 20 ms before the hint in round {round}"))?;
        lab.advance(20).await;
        ensure(worker.spends(1).await?, format_args!("denied after the hint in round {round}"))?;
    }
    hint_is_exact(lab, &worker, 1, "5 per s, burst 1").await?;
    Ok(())
}

async fn case_26(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::token_bucket(100, ms(365 * DAY)).burst(3)))?;
    refused(worker.ask(&jobs(&[4])).await, "cost_exceeds_limit", "a job of cost 4")?;
    ensure(worker.spends(3).await?, "a job of cost 3 passes")
}

async fn case_35_pauses(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&policy())?;
    for (micros, pause_ms) in [(1_000, 1), (999_000, 999), (1, 1), (1_500, 2), (250_001, 251)] {
        let length = std::time::Duration::from_micros(micros);
        let left_ms = worker.store.pause(worker.id(), length).await?.body.left_ms;
        same(left_ms, pause_ms, format_args!("what is left of a pause of {micros} µs"))?;
        lab.advance(pause_ms - 1).await;
        same(worker.granted(1).await?, 0, format_args!("grants a millisecond before {micros} µs are over"))?;
        lab.advance(1).await;
        same(worker.granted(1).await?, 1, format_args!("grants when {micros} µs are over"))?;
    }
    Ok(())
}

async fn case_35_counters(lab: &Lab) -> Result<(), Failure> {
    let most = 1_000_000_000_000;
    let rules = policy()
        .rule(Rule::fixed_window(most, ms(DAY)).named("a"))
        .rule(Rule::sliding_window(most, ms(DAY)).named("b"))
        .rule(Rule::token_bucket(most, ms(366 * DAY)).burst(1_000).named("c"));
    let worker = lab.worker(&rules)?;
    for cost in [(1 << 53) - 1, 1 << 53, (1 << 53) + 1, u64::MAX] {
        refused(worker.ask(&jobs(&[cost])).await, "cost_exceeds_limit", format_args!("a cost of {cost}"))?;
    }
    // Odd numbers near the bound, of which none may be lost to rounding.
    let request = super::lab::job_with(most - 1, &[("c", 0)])?;
    same(worker.ask(&request).await?.body.grants.len(), 1, "grants of all but one")?;
    let request = super::lab::job_with(2, &[("c", 0)])?;
    same(worker.ask(&request).await?.body.grants.len(), 0, "grants of two where one is left")?;
    let request = super::lab::job_with(1, &[("c", 0)])?;
    same(worker.ask(&request).await?.body.grants.len(), 1, "grants of the last one")?;
    same(worker.ask(&request).await?.body.grants.len(), 0, "grants where none is left")
}

async fn case_35_items(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(10, ms(DAY))))?;
    refused(worker.ask(&jobs_of_one(10_000)).await, "invalid_options", "10,000 jobs")?;
    same(worker.granted(512).await?, 10, "grants of 512 jobs, of which none was dropped")?;
    if lab.has(Capability::Scoped) {
        let request = scoped_jobs(None, vec![scoped_job(1, &[])?; 10_000]);
        refused(worker.ask_scoped(&request).await, "invalid_options", "10,000 scoped jobs")?;
    }
    if lab.has(Capability::Leases) {
        let held = lab.worker_of("held", &fixed(2_000))?;
        let tokens = held.leases(1_500).await?;
        let many: Vec<Token> = tokens.iter().copied().cycle().take(10_000).collect();
        let answer = held.store.release(&held.member, &releases(&many, Outcome::Success)).await;
        refused(answer, "invalid_options", "10,000 releases")?;
        same(held.granted(512).await?, 500, "grants beside 1,500 leases that are still held")?;
    }
    Ok(())
}
