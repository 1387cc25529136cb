//! The pinned policy and its revisions.
//!
//! Spec: ST-5.

use std::time::Duration;

use tidegate_core::{
    Bound, Capability, Class, Outcome, SafeStart, StoreError,
    limit::{Aimd, Growth, LimitPolicy},
    policy::Draft,
    rule::Rule,
};

use super::{
    Failure, Need, ensure,
    lab::{DAY, Lab, adaptive, fixed, jobs, key, ms, policy, refused, ruled},
    same, trials_of_rules,
};
use crate::subject::Hook;

const LEASES: Need = Need::Has(Capability::Leases);
const ADAPTIVE: Need = Need::Has(Capability::Adaptive);
const SCOPED: Need = Need::Has(Capability::Scoped);
const CORRECTIONS: Need = Need::Has(Capability::Corrections);
const OPERATORS: Need = Need::Has(Capability::Operators);
const CLOCK: Need = Need::Hook(Hook::Clock);

trials_of_rules! {
    "ST-5 the first request pins the policy" => st_5_pins;
    "ST-5 a rule that differs is named" => st_5_rules_differ;
    "ST-5 a bound that differs is named" [LEASES] => st_5_bounds_differ;
    "ST-5 a class that differs is named" [LEASES] => st_5_classes_differ;
    "ST-5 every field of an adaptive limit is compared" [LEASES, ADAPTIVE] => st_5_adaptive_differs;
    "ST-5 a scope that differs is named" [SCOPED] => st_5_scope_differs;
    "ST-5 the order of rules, and what is a default, do not count" => st_5_same_policy;
    "ST-5 the order of classes does not count" [LEASES] => st_5_same_classes;
    "ST-5 a higher revision replaces the policy" => st_5_higher;
    "ST-5 a higher revision reaches every process" => st_5_peers;
    "ST-5 a refused request of a higher revision replaces nothing" => st_5_higher_refused;
    "ST-5 a worker of a lower revision adopts the newer policy" => st_5_adopts;
    "ST-5 a worker of a lower revision can refuse" => st_5_refuses;
    "ST-5 levels are carried over, within the new burst" => st_5_levels;
    "ST-5 a rule whose interval or algorithm changed starts anew" => st_5_anew;
    "ST-5 leases are carried over a revision" [LEASES] => st_5_leases;
    "ST-5 a limit is carried over a revision, within the new bounds" [LEASES, ADAPTIVE] => st_5_limit;
    "ST-5 release and renew never check the policy" [LEASES] => st_5_unchecked_leases;
    "ST-5 settle never checks the policy" [CORRECTIONS] => st_5_unchecked_settle;
    "ST-5 the pin outlives rate state and is forgotten after 30 days without use" [CLOCK] => st_5_pin_ttl;
    "ST-5 the pin outlives a level that is not at rest" [CLOCK] => st_5_pin_outlives_levels;
    "ST-5 the pin outlives a debt" [CLOCK, CORRECTIONS] => st_5_pin_outlives_debt;
    "ST-5 the initial limit only seeds" [LEASES, ADAPTIVE] => st_5_initial_limit;
    "ST-5 a limit is kept as long as the pin" [LEASES, ADAPTIVE, CLOCK] => st_5_limit_ttl;
    "ST-5 forget drops the pin" [OPERATORS] => st_5_forget;
    "ST-5 forget is refused while leases live" [OPERATORS, LEASES] => st_5_forget_refused;
    "ST-5 forget drops the limit" [OPERATORS, LEASES, ADAPTIVE] => st_5_forget_limit;
}

async fn st_5_pins(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(5, ms(DAY))))?;
    let other = lab.peer_of(&lab.worker(&ruled(Rule::fixed_window(6, ms(DAY))))?)?;
    same(worker.granted(2).await?, 2, "grants of the first worker")?;
    for _ in 0..3 {
        let answer = other.ask(&jobs(&[1])).await;
        let error = refused(answer, "invalid_options", "another policy of the same revision")?;
        let StoreError::PolicyDiffers { field, pinned, offered } = &error else {
            return Err(Failure(format!("expected that the policy differs, got: {error}")));
        };
        ensure(field.contains("limit"), format_args!("the field is limit, not {field}"))?;
        ensure(pinned.contains('5') && offered.contains('6'), format_args!("5 and 6 are named in: {error}"))?;
    }
    same(worker.granted(5).await?, 3, "grants that the refused requests have left")
}

/// Every draft differs from `pinned` in the field of that name, and is refused by it; nothing is changed.
async fn differ(lab: &Lab, id: &str, pinned: &Draft, others: Vec<(&str, Draft)>) -> Result<(), Failure> {
    let worker = lab.worker_of(id, pinned)?;
    let before = {
        worker.acquire(1).await?;
        worker.traces().await?
    };
    for (field, draft) in others {
        let other = lab.worker_of(id, &draft)?;
        let answer = other.ask(&jobs(&[1])).await;
        let error = refused(answer, "invalid_options", format_args!("a policy with another {field}"))?;
        match &error {
            StoreError::PolicyDiffers { field: named, .. } if named.contains(field) => {}
            error => return Err(Failure(format!("expected that {field} differs, got: {error}"))),
        }
        same(
            worker.traces().await?,
            before.clone(),
            format_args!("the id after a policy with another {field}"),
        )?;
    }
    Ok(())
}

async fn st_5_rules_differ(lab: &Lab) -> Result<(), Failure> {
    let bucket = || Rule::token_bucket(10, ms(365 * DAY)).burst(20).named("a");
    let window = || Rule::fixed_window(10, ms(DAY));
    let with = |rule: Rule| policy().rule(rule).rule(window());
    let others = vec![
        ("limit", with(Rule::token_bucket(11, ms(365 * DAY)).burst(20).named("a"))),
        ("interval", with(Rule::token_bucket(10, ms(364 * DAY)).burst(20).named("a"))),
        ("burst", with(Rule::token_bucket(10, ms(365 * DAY)).burst(21).named("a"))),
        ("algorithm", with(Rule::sliding_window(10, ms(365 * DAY)).named("a"))),
        ("rule", policy().rule(bucket())),
        ("rule", policy().rule(bucket()).rule(window()).rule(Rule::sliding_window(1, ms(DAY)))),
        ("rule", policy().rule(bucket()).rule(Rule::sliding_window(10, ms(DAY)))),
        ("lease_ttl", with(bucket()).lease_ttl(ms(29_000))),
        ("safe_start", with(bucket()).safe_start(SafeStart::On)),
    ];
    differ(lab, "trial", &with(bucket()), others).await
}

async fn st_5_bounds_differ(lab: &Lab) -> Result<(), Failure> {
    differ(lab, "a", &fixed(5), vec![("limit", fixed(6)), ("concurrency", policy())]).await?;
    differ(lab, "b", &policy(), vec![("concurrency", fixed(5))]).await
}

async fn st_5_classes_differ(lab: &Lab) -> Result<(), Failure> {
    let classes = |share| fixed(9).class(Class::reserved("a", share)).class(Class::unreserved("b"));
    let others = vec![
        ("class a", classes(0.250_001)),
        ("class b", fixed(9).class(Class::reserved("a", 0.25))),
        ("class b", fixed(9).class(Class::reserved("a", 0.25)).class(Class::reserved("b", 0.1))),
        ("class c", classes(0.25).class(Class::unreserved("c"))),
    ];
    differ(lab, "trial", &classes(0.25), others).await
}

async fn st_5_adaptive_differs(lab: &Lab) -> Result<(), Failure> {
    let bound = |min, max, aimd: Aimd, rest_ms, growth| -> Result<Draft, Failure> {
        let limit = LimitPolicy::check(min, max, &aimd, ms(rest_ms), growth)?;
        Ok(policy().bound(Bound::Adaptive(limit)))
    };
    let with = |aimd: Aimd| bound(1, 10, aimd, 100, Growth::Additive);
    let others = vec![
        ("min_limit", bound(2, 10, Aimd::new(), 100, Growth::Additive)?),
        ("max_limit", bound(1, 11, Aimd::new(), 100, Growth::Additive)?),
        ("decrease_factor", with(Aimd::new().decrease_factor(0.500_001))?),
        ("increase_step", with(Aimd::new().increase_step(2))?),
        ("window", with(Aimd::new().window(ms(5_001)))?),
        ("cooldown", with(Aimd::new().cooldown(ms(10_001)))?),
        ("tolerance", with(Aimd::new().tolerance(0.01))?),
        ("throttle_rest", bound(1, 10, Aimd::new(), 101, Growth::Additive)?),
        ("growth", bound(1, 10, Aimd::new(), 100, Growth::Probe)?),
        ("growth", bound(1, 10, Aimd::new(), 100, Growth::SlowStart)?),
        ("concurrency", fixed(10)),
    ];
    differ(lab, "trial", &with(Aimd::new())?, others).await
}

async fn st_5_scope_differs(lab: &Lab) -> Result<(), Failure> {
    let rule = || Rule::fixed_window(5, ms(DAY)).named("a");
    let others = vec![("scope", ruled(rule().scoped("tenant")))];
    differ(lab, "trial", &ruled(rule()), others).await
}

async fn st_5_same_policy(lab: &Lab) -> Result<(), Failure> {
    let one = || Rule::token_bucket(10, ms(365 * DAY));
    let two = || Rule::fixed_window(20, ms(DAY)).named("b");
    let worker = lab.worker(&policy().rule(one()).rule(two()))?;
    let turned = lab.worker(&policy().rule(two()).rule(one().burst(10)).lease_ttl(ms(30_000)))?;
    same(worker.granted(6).await?, 6, "grants of the first worker")?;
    same(turned.granted(6).await?, 4, "grants of one that means the same policy")
}

async fn st_5_same_classes(lab: &Lab) -> Result<(), Failure> {
    let (a, b) = (|| Class::reserved("a", 0.25), || Class::unreserved("b"));
    let worker = lab.worker(&fixed(8).class(a()).class(b()))?;
    let turned = lab.worker(&fixed(8).class(b()).class(a()))?;
    same(worker.granted(4).await?, 4, "grants of the first worker")?;
    same(turned.granted(9).await?, 2, "grants of one that means the same policy")
}

// ---- revisions -----------------------------------------------------------------------------------------------------

fn windowed(revision: u32, limit: u64) -> Draft {
    ruled(Rule::fixed_window(limit, ms(DAY))).revision(revision)
}

async fn st_5_higher(lab: &Lab) -> Result<(), Failure> {
    let (old, new) = (lab.worker(&windowed(0, 5))?, lab.worker(&windowed(7, 9))?);
    same(old.granted(9).await?, 5, "grants under the first policy")?;
    let reply = new.acquire(9).await?;
    same(reply.body.grants.len(), 4, "grants under the higher revision, which carries the count over")?;
    ensure(
        reply.head.revision.is_none_or(|revision| revision == 7),
        "the answer says which revision is pinned",
    )?;
    let other = lab.worker(&windowed(7, 10))?;
    refused(
        other.ask(&jobs(&[1])).await,
        "invalid_options",
        "another policy of the revision that is pinned now",
    )?;
    let highest = lab.worker(&windowed(i32::MAX.unsigned_abs(), 20))?;
    same(highest.granted(20).await?, 11, "grants under the highest revision")
}

async fn st_5_peers(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&windowed(1, 5))?;
    same(worker.granted(9).await?, 5, "grants under the first policy")?;
    let newer = lab.peer_of(&lab.worker(&windowed(2, 8))?)?;
    same(newer.granted(1).await?, 1, "grants of another process under the second")?;
    same(worker.granted(9).await?, 2, "grants of the first process, under the second policy too")
}

async fn st_5_higher_refused(lab: &Lab) -> Result<(), Failure> {
    let (old, new) = (lab.worker(&windowed(0, 5))?, lab.worker(&windowed(1, 9))?);
    same(old.granted(1).await?, 1, "grants under the first policy")?;
    refused(new.ask(&jobs(&[10])).await, "cost_exceeds_limit", "a cost above the new limit")?;
    refused(new.ask(&jobs(&[])).await, "invalid_options", "an acquire of no job")?;
    let reply = old.acquire(9).await?;
    same(reply.body.grants.len(), 4, "grants under the first policy, which is still pinned")?;
    ensure(reply.head.revision.is_none_or(|revision| revision == 0), "the first revision is still pinned")
}

async fn st_5_adopts(lab: &Lab) -> Result<(), Failure> {
    let (old, new) = (lab.worker(&windowed(1, 5))?, lab.worker(&windowed(2, 3))?);
    same(new.granted(1).await?, 1, "grants under the newer policy")?;
    let reply = old.acquire(9).await?;
    same(reply.body.grants.len(), 2, "grants of the older worker, under the newer policy")?;
    ensure(
        reply.head.revision.is_none_or(|revision| revision == 2),
        "the answer says which revision decided",
    )?;
    let error =
        refused(old.ask(&jobs(&[4])).await, "cost_exceeds_limit", "a cost above what the newer one holds")?;
    ensure(
        matches!(error, StoreError::CostExceedsLimit { most: 3, .. }),
        format_args!("the most is that of the newer policy: {error}"),
    )?;
    let lower = lab.worker(&windowed(0, 100))?;
    same(lower.granted(1).await?, 0, "grants of a worker that is lower still")
}

async fn st_5_refuses(lab: &Lab) -> Result<(), Failure> {
    let (old, new) = (lab.worker(&windowed(3, 5))?.refusing(), lab.worker(&windowed(4, 5))?.refusing());
    same(old.granted(1).await?, 1, "grants under the first policy")?;
    same(new.granted(1).await?, 1, "grants under the newer policy")?;
    // Also where the two differ in nothing else.
    let error =
        refused(old.ask(&jobs(&[1])).await, "policy_superseded", "a worker that refuses a newer policy")?;
    ensure(
        matches!(error, StoreError::Superseded { own: 3, pinned: 4 }),
        format_args!("own and pinned revision are 3 and 4: {error}"),
    )?;
    same(new.granted(9).await?, 3, "grants that the refused request has left")
}

async fn st_5_levels(lab: &Lab) -> Result<(), Failure> {
    let year = ms(365 * DAY);
    let draft =
        |revision, limit, burst| ruled(Rule::token_bucket(limit, year).burst(burst)).revision(revision);
    let worker = lab.worker_of("bucket", &draft(0, 10, 10))?;
    same(worker.granted(4).await?, 4, "grants of a full bucket")?;
    // A level of 6 stays 6 in a larger bucket, and is cut in a smaller one.
    let larger = lab.worker_of("bucket", &draft(1, 20, 20))?;
    ensure(larger.spends(0).await?, "a cost of 0 passes")?;
    same(larger.ask(&jobs(&[5])).await?.body.grants.len(), 1, "grants of 5 out of 6")?;
    let smaller = lab.worker_of("bucket", &draft(2, 20, 5))?;
    same(smaller.granted(9).await?, 1, "grants of what is left in a smaller bucket")?;

    let worker = lab.worker_of("cut", &draft(0, 10, 10))?;
    same(worker.granted(2).await?, 2, "grants of a full bucket")?;
    let smaller = lab.worker_of("cut", &draft(1, 10, 5))?;
    same(smaller.granted(9).await?, 5, "grants of a level of 8 in a bucket of 5")?;

    for (id, rule) in
        [("fixed", Rule::fixed_window as fn(u64, Duration) -> Rule), ("sliding", Rule::sliding_window)]
    {
        let worker = lab.worker_of(id, &ruled(rule(10, ms(DAY))))?;
        same(worker.granted(7).await?, 7, "grants of a window")?;
        let smaller = lab.worker_of(id, &ruled(rule(5, ms(DAY))).revision(1))?;
        same(smaller.granted(1).await?, 0, "grants of a window that has admitted more than its new limit")?;
        let larger = lab.worker_of(id, &ruled(rule(9, ms(DAY))).revision(2))?;
        same(larger.granted(9).await?, 2, "grants of a window of a larger limit, which keeps its count")?;
    }
    Ok(())
}

async fn st_5_anew(lab: &Lab) -> Result<(), Failure> {
    let rule = |revision, rule: Rule| ruled(rule.named("a")).revision(revision);
    let first = lab.worker(&rule(0, Rule::fixed_window(5, ms(DAY))))?;
    same(first.granted(9).await?, 5, "grants of the first rule")?;
    let second = lab.worker(&rule(1, Rule::fixed_window(5, ms(2 * DAY))))?;
    same(second.granted(9).await?, 5, "grants after the interval changed")?;
    let third = lab.worker(&rule(2, Rule::sliding_window(5, ms(2 * DAY))))?;
    same(third.granted(9).await?, 5, "grants after the algorithm changed")?;
    let fourth = lab.worker(&policy().revision(3))?;
    same(fourth.granted(9).await?, 9, "grants without any rule")?;
    let fifth = lab.worker(&rule(4, Rule::sliding_window(5, ms(2 * DAY))))?;
    same(fifth.granted(9).await?, 5, "grants of a rule that was gone for a revision")
}

async fn st_5_leases(lab: &Lab) -> Result<(), Failure> {
    let (old, new) = (lab.worker(&fixed(3))?, lab.worker(&fixed(2).revision(1))?);
    let tokens = old.leases(3).await?;
    same(new.granted(1).await?, 0, "grants above the new limit")?;
    same(new.renew(&tokens).await?, vec![true, true, true], "renewals of leases above the new limit")?;
    old.release(&tokens[..1]).await?;
    same(new.granted(1).await?, 0, "grants at the new limit")?;
    old.release(&tokens[1..2]).await?;
    same(new.granted(2).await?, 1, "grants below it")?;
    let wider = lab.worker(&fixed(5).revision(2))?;
    same(wider.granted(9).await?, 3, "grants under a limit that was raised")?;
    let free = lab.worker(&policy().revision(3))?;
    same(free.granted(3).await?, 3, "grants without a bound")?;
    ensure(free.renew(&tokens[2..]).await? == [true], "a lease lives on where the bound was taken away")
}

async fn st_5_limit(lab: &Lab) -> Result<(), Failure> {
    let limit = |head: tidegate_core::Head| head.limit.map(|limit| limit.value);
    let first = lab.worker(&adaptive(1, 20)?)?.starting_at(15);
    same(limit(first.acquire(1).await?.head), Some(15), "the limit that was seeded")?;
    let second = lab.worker(&adaptive(1, 8)?.revision(1))?.starting_at(3);
    same(limit(second.acquire(1).await?.head), Some(8), "the limit within a lower maximum")?;
    let third = lab.worker(&adaptive(12, 30)?.revision(2))?.starting_at(3);
    same(limit(third.acquire(1).await?.head), Some(12), "the limit within a higher minimum")?;
    let fourth = lab.worker(&fixed(4).revision(3))?;
    same(limit(fourth.acquire(1).await?.head), Some(4), "a limit that is known instead")?;
    let fifth = lab.worker(&adaptive(1, 30)?.revision(4))?.starting_at(7);
    same(limit(fifth.acquire(1).await?.head), Some(7), "a limit that moves again")
}

async fn st_5_unchecked_leases(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(2))?;
    let other = lab.worker(&fixed(9))?;
    let lower = lab.worker(&fixed(2).revision(0))?.refusing();
    let tokens = worker.leases(2).await?;
    refused(other.ask(&jobs(&[1])).await, "invalid_options", "another policy")?;
    same(other.renew(&tokens).await?, vec![true, true], "renewals by a worker of another policy")?;
    other.release(&tokens[..1]).await?;
    let newer = lab.worker(&fixed(2).revision(1))?;
    same(newer.granted(9).await?, 1, "grants after a release by a worker of another policy")?;
    same(
        lower.renew(&tokens).await?,
        vec![false, true],
        "renewals by a worker that refuses the newer policy",
    )?;
    lower.report(&tokens[1..], Outcome::Success).await?;
    same(newer.granted(9).await?, 1, "grants after its release")
}

async fn st_5_unchecked_settle(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&windowed(0, 9))?;
    let other = lab.worker(&windowed(0, 90))?;
    let reply = worker.ask(&jobs(&[5])).await?;
    let granted_at = reply.head.now.unwrap_or_else(|| lab.now());
    let rule = key(&format!("fixed_window:{DAY}"));
    let settlement = tidegate_core::Settlement { rule, identity: None, granted_at, cost: 5, actual: 1 };
    same(other.settle(settlement).await?, 0, "what was cut of a settlement by a worker of another policy")?;
    same(worker.granted(20).await?, 8, "grants after it")
}

// ---- forgetting ----------------------------------------------------------------------------------------------------

async fn st_5_pin_ttl(lab: &Lab) -> Result<(), Failure> {
    let second = ruled(Rule::fixed_window(5, ms(1_000)));
    let (worker, other) = (lab.worker(&second)?, lab.worker(&ruled(Rule::fixed_window(6, ms(1_000))))?);
    same(worker.granted(1).await?, 1, "grants of the first worker")?;
    lab.advance(30 * DAY - 1).await;
    refused(
        other.ask(&jobs(&[1])).await,
        "invalid_options",
        "another policy a millisecond before the pin lapses",
    )?;
    same(worker.granted(1).await?, 1, "grants of the first worker, which is a use")?;
    lab.advance(30 * DAY - 1).await;
    refused(other.ask(&jobs(&[1])).await, "invalid_options", "another policy so long after that use")?;
    lab.advance(1).await;
    same(other.granted(9).await?, 6, "grants of another policy after 30 days without use")?;
    refused(worker.ask(&jobs(&[1])).await, "invalid_options", "the policy that was forgotten")?;
    Ok(())
}

async fn st_5_pin_outlives_levels(lab: &Lab) -> Result<(), Failure> {
    let rules = [
        ("bucket", Rule::token_bucket(2, ms(120 * DAY)), 1),
        ("fixed", Rule::fixed_window(2, ms(60 * DAY)), 2),
        ("sliding", Rule::sliding_window(2, ms(60 * DAY)), 2),
    ];
    for (id, rule, granted) in rules {
        let worker = lab.worker_of(id, &ruled(rule))?;
        let other = lab.worker_of(id, &ruled(Rule::fixed_window(9, ms(1_000))))?;
        same(worker.granted(9).await?, 2, format_args!("{id}: grants of a level that is full"))?;
        lab.advance(60 * DAY - 1).await;
        refused(
            other.ask(&jobs(&[1])).await,
            "invalid_options",
            "another policy while a level is not at rest",
        )?;
        same(worker.granted(9).await?, 0, format_args!("{id}: grants a millisecond before any comes back"))?;
        lab.advance(1).await;
        same(worker.granted(9).await?, granted, format_args!("{id}: grants when it has"))?;
    }
    Ok(())
}

async fn st_5_pin_outlives_debt(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::token_bucket(10, ms(10 * DAY)).named("a")))?;
    let granted_at = worker.ask(&jobs(&[10])).await?.head.now.unwrap_or_else(|| lab.now());
    let rule = key("named:a");
    worker
        .settle(tidegate_core::Settlement { rule, identity: None, granted_at, cost: 10, actual: 50 })
        .await?;
    lab.advance(41 * DAY - 1).await;
    same(worker.granted(1).await?, 0, "grants a millisecond before a debt of 40 days is paid")?;
    lab.advance(1).await;
    same(worker.granted(9).await?, 1, "grants when it is")
}

async fn st_5_initial_limit(lab: &Lab) -> Result<(), Failure> {
    let first = lab.worker(&adaptive(1, 50)?)?.starting_at(3);
    let second = lab.peer_of(&first)?.starting_at(9);
    let head = first.acquire(1).await?.head;
    same(head.limit.map(|limit| limit.value), Some(3), "the limit that the first worker seeds")?;
    let head = second.acquire(1).await?.head;
    same(head.limit.map(|limit| limit.value), Some(3), "the limit that a later worker finds")?;
    same(second.granted(9).await?, 1, "grants up to it")?;
    let above = lab.worker_of("above", &adaptive(2, 5)?)?.starting_at(9);
    same(above.granted(9).await?, 5, "grants under an initial limit above the maximum")?;
    let below = lab.worker_of("below", &adaptive(2, 5)?)?.starting_at(1);
    same(below.granted(9).await?, 2, "grants under an initial limit below the minimum")
}

async fn st_5_limit_ttl(lab: &Lab) -> Result<(), Failure> {
    let first = lab.worker(&adaptive(1, 50)?)?.starting_at(8);
    let token = first.lease().await?;
    first.report(&[token], Outcome::Throttled).await?;
    let later = lab.worker(&adaptive(1, 50)?)?.starting_at(9);
    lab.advance(30 * DAY - 1).await;
    same(
        later.granted(9).await?,
        4,
        "grants under the limit that was found, after 30 days less a millisecond",
    )?;
    lab.advance(30 * DAY + 30_000).await;
    same(later.granted(20).await?, 9, "grants under a limit that is seeded again")
}

async fn st_5_forget(lab: &Lab) -> Result<(), Failure> {
    let (worker, other) = (lab.worker(&windowed(0, 5))?, lab.worker(&windowed(0, 6))?);
    let operators = lab.operators()?;
    same(
        operators.forget(worker.id()).await?.body,
        false,
        "whether there was anything before the first use",
    )?;
    same(worker.granted(2).await?, 2, "grants of the first worker")?;
    worker.pause(DAY).await?;
    same(operators.forget(worker.id()).await?.body, true, "whether there was anything")?;
    same(
        operators.snapshot(worker.id()).await?.body.and_then(|snapshot| snapshot.policy),
        None,
        "the policy after it",
    )?;
    same(other.granted(9).await?, 6, "grants of another policy, unpaused and from a fresh level")?;
    refused(worker.ask(&jobs(&[1])).await, "invalid_options", "the policy that was forgotten")?;
    Ok(())
}

async fn st_5_forget_refused(lab: &Lab) -> Result<(), Failure> {
    let (worker, other) = (lab.worker(&fixed(2))?, lab.worker(&fixed(3))?);
    let tokens = worker.leases(2).await?;
    let before = worker.traces().await?;
    let error =
        refused(lab.operators()?.forget(worker.id()).await, "leases_live", "to forget an id with leases")?;
    ensure(matches!(error, StoreError::LeasesLive { held: 2 }), format_args!("2 leases live: {error}"))?;
    same(worker.traces().await?, before, "the id that was not forgotten")?;
    same(worker.renew(&tokens).await?, vec![true, true], "renewals of its leases")?;
    worker.release(&tokens).await?;
    same(lab.operators()?.forget(worker.id()).await?.body, true, "whether there was anything to forget")?;
    same(other.granted(9).await?, 3, "grants of another policy")
}

async fn st_5_forget_limit(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&adaptive(1, 50)?)?.starting_at(8);
    let token = worker.lease().await?;
    worker.report(&[token], Outcome::Throttled).await?;
    same(lab.operators()?.forget(worker.id()).await?.body, true, "whether there was anything to forget")?;
    same(worker.granted(20).await?, 8, "grants under a limit that is seeded again")
}
