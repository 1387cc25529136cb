//! Looking into a store, and setting it right.
//!
//! Spec: ST-20.

use std::sync::Arc;

use tidegate_core::{
    Bound, Capability, Class, Id, Outcome, StoreError, Token,
    limit::{Aimd, Growth, LimitPolicy},
    rule::Rule,
};

use super::{
    Failure, Need, ensure,
    lab::{
        DAY, Lab, adaptive, fixed, jobs, key, ms, name, policy, refused, ruled, scoped_job, scoped_jobs,
        slots,
    },
    same, trials_of_rules,
};
use crate::subject::Hook;

const OPERATORS: Need = Need::Has(Capability::Operators);
const LEASES: Need = Need::Has(Capability::Leases);
const ADAPTIVE: Need = Need::Has(Capability::Adaptive);
const SCOPED: Need = Need::Has(Capability::Scoped);
const CLOCK: Need = Need::Hook(Hook::Clock);

trials_of_rules! {
    "ST-20 ids come in pages, in their order" [OPERATORS] => st_20_ids;
    "ST-20 a page has 1 to 1,000" [OPERATORS, LEASES] => st_20_page_size;
    "ST-20 a snapshot of an id that is not known is none" [OPERATORS] => st_20_unknown;
    "ST-20 a snapshot shows policy, levels and pause" [OPERATORS] => st_20_snapshot;
    "ST-20 a snapshot shows limit and classes" [OPERATORS, LEASES] => st_20_snapshot_leases;
    "ST-20 a snapshot counts identities" [OPERATORS, SCOPED] => st_20_snapshot_scoped;
    "ST-20 a snapshot shows debt below zero" [OPERATORS, Need::Has(Capability::Corrections)] => st_20_debt;
    "ST-20 leases come in pages, in the order of their slots" [OPERATORS, LEASES] => st_20_leases;
    "ST-20 a lease shows its age and what is left" [OPERATORS, LEASES, CLOCK] => st_20_ages;
    "ST-20 a slot that rests is shown" [OPERATORS, LEASES, ADAPTIVE, CLOCK] => st_20_resting;
    "ST-20 a lease is evicted at once" [OPERATORS, LEASES] => st_20_evict;
    "ST-20 a limit is set within its bounds" [OPERATORS, LEASES, ADAPTIVE] => st_20_set_limit;
    "ST-20 a limit that does not move is not set" [OPERATORS, LEASES] => st_20_set_fixed_limit;
    "ST-20 a policy is replaced by a higher revision" [OPERATORS] => st_20_replace;
    "ST-20 to look changes nothing" [OPERATORS] => st_20_only_looks;
}

async fn st_20_ids(lab: &Lab) -> Result<(), Failure> {
    let operators = lab.operators()?;
    let draft = ruled(Rule::fixed_window(9, ms(DAY)));
    let mut expected = Vec::new();
    for text in ["b", "a", "a:b", "a b", "B", "é", "10", "9", "a\u{10ffff}", "aa"] {
        let worker = lab.worker_of(text, &draft)?;
        same(worker.granted(1).await?, 1, "grants of an id")?;
        expected.push(worker.id().clone());
    }
    expected.sort_unstable();
    same(operators.ids(None, 1_000).await?.body.items, expected.clone(), "all ids on one page")?;
    for most in [1, 3, 5, 10] {
        let (mut ids, mut after): (Vec<Id>, Option<Id>) = (Vec::new(), None);
        loop {
            let page = operators.ids(after.as_ref(), most).await?.body;
            ensure(page.items.len() <= most, format_args!("{} ids on a page of {most}", page.items.len()))?;
            after = page.items.last().cloned();
            ids.extend(page.items);
            if !page.more || ids.len() > expected.len() {
                break;
            }
            ensure(after.is_some(), "a page is empty, and more are said to come")?;
        }
        same(ids, expected.clone(), format_args!("ids by pages of {most}"))?;
    }
    let (here, not_there) = (Id::new("a")?, Id::new("a!")?);
    let page = operators.ids(Some(&here), 2).await?.body;
    same(
        (page.items, page.more),
        (vec![Id::new("a b")?, Id::new("a:b")?], true),
        "two ids after one of them",
    )?;
    let page = operators.ids(Some(&not_there), 1).await?.body;
    same((page.items, page.more), (vec![Id::new("a:b")?], true), "the first id after one that is not there")?;
    let last = expected.last().cloned();
    let page = operators.ids(last.as_ref(), 5).await?.body;
    same((page.items.len(), page.more), (0, false), "ids after the last")
}

async fn st_20_page_size(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(3))?;
    worker.leases(1).await?;
    let operators = lab.operators()?;
    for most in [0, 1_001, usize::MAX] {
        refused(operators.ids(None, most).await, "invalid_options", format_args!("a page of {most} ids"))?;
        refused(
            operators.leases(worker.id(), None, most).await,
            "invalid_options",
            format_args!("a page of {most} leases"),
        )?;
    }
    Ok(())
}

async fn st_20_unknown(lab: &Lab) -> Result<(), Failure> {
    let (operators, id) = (lab.operators()?, Id::new("never seen")?);
    same(operators.snapshot(&id).await?.body, None, "the snapshot of an id that is not known")?;
    let page = operators.leases(&id, None, 10).await?.body;
    same((page.items.len(), page.more), (0, false), "leases of an id that is not known")?;
    let token = Token { epoch: tidegate_core::Epoch(1), slot: 0, fence: 1 };
    same(operators.evict(&id, token).await?.body, false, "whether a lease of it was there")?;
    same(operators.forget(&id).await?.body, false, "whether there was anything to forget")?;
    refused(operators.set_limit(&id, 3).await, "invalid_options", "a limit of an id that is not known")?;
    let answer = operators.replace_policy(&id, Arc::new(policy().check()?)).await;
    refused(answer, "invalid_options", "a policy of an id that is not known")?;
    same(operators.ids(None, 10).await?.body.items, vec![], "ids after looking at one that is not known")
}

async fn st_20_snapshot(lab: &Lab) -> Result<(), Failure> {
    let draft = policy()
        .rule(Rule::fixed_window(10, ms(DAY)).named("b"))
        .rule(Rule::token_bucket(20, ms(365 * DAY)).named("a"))
        .revision(3);
    let worker = lab.worker(&draft)?;
    same(worker.granted(4).await?, 4, "grants")?;
    let snapshot =
        worker.snapshot().await?.ok_or_else(|| Failure("no snapshot of an id in use".to_owned()))?;
    same(&snapshot.id, worker.id(), "the id")?;
    same(snapshot.policy.as_deref(), Some(&*worker.member.policy), "the policy")?;
    let levels: Vec<_> = snapshot.rules.iter().map(|rule| (rule.rule.clone(), rule.level)).collect();
    same(
        levels,
        vec![(key("named:a"), Some(16)), (key("named:b"), Some(6))],
        "the levels, in the order of the policy",
    )?;
    same((snapshot.paused_ms, snapshot.limit, snapshot.held), (0, None, 0), "pause, limit and leases")?;
    worker.pause(DAY).await?;
    let paused_ms = worker.snapshot().await?.map_or(0, |snapshot| snapshot.paused_ms);
    ensure((1..=DAY).contains(&paused_ms), format_args!("{paused_ms} ms are left of a pause of a day"))?;
    let paused = lab.worker_of("paused", &draft)?;
    paused.pause(DAY).await?;
    let snapshot =
        paused.snapshot().await?.ok_or_else(|| Failure("no snapshot of a paused id".to_owned()))?;
    same(snapshot.policy, None, "the policy of an id that was only paused")
}

async fn st_20_snapshot_leases(lab: &Lab) -> Result<(), Failure> {
    let draft = fixed(9).class(Class::reserved("b", 0.5)).class(Class::unreserved("a"));
    let worker = lab.worker(&draft)?;
    let (a, b) = (name("a")?, name("b")?);
    worker.leases_as(Some(&b), 3).await?;
    worker.leases_as(Some(&a), 2).await?;
    worker.leases(1).await?;
    let snapshot =
        worker.snapshot().await?.ok_or_else(|| Failure("no snapshot of an id in use".to_owned()))?;
    same(snapshot.limit.map(|limit| limit.value), Some(9), "the limit")?;
    same((snapshot.held, snapshot.resting), (6, 0), "leases that are held, and slots that rest")?;
    same(snapshot.by_class, vec![(Some(a), 2), (Some(b), 3), (None, 1)], "leases by class")
}

async fn st_20_snapshot_scoped(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(9, ms(DAY)).scoped("tenant").named("a")))?;
    let jobs = vec![scoped_job(1, &[("tenant", "x")])?, scoped_job(1, &[("tenant", "y")])?];
    worker.ask_scoped(&scoped_jobs(None, jobs)).await?;
    let snapshot =
        worker.snapshot().await?.ok_or_else(|| Failure("no snapshot of an id in use".to_owned()))?;
    let levels: Vec<_> = snapshot
        .rules
        .into_iter()
        .map(|rule| (rule.rule, rule.level, rule.identities.unwrap_or(2)))
        .collect();
    same(
        levels,
        vec![(key("named:a"), None, 2)],
        "the level of a scoped rule, and how many identities it has",
    )
}

async fn st_20_debt(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(10, ms(DAY)).named("a")))?;
    let granted_at = worker.ask(&jobs(&[4])).await?.head.now.unwrap_or_else(|| lab.now());
    let rule = key("named:a");
    worker
        .settle(tidegate_core::Settlement { rule, identity: None, granted_at, cost: 4, actual: 17 })
        .await?;
    let levels = worker.snapshot().await?.map(|snapshot| snapshot.rules).unwrap_or_default();
    same(levels.iter().map(|rule| rule.level).collect(), vec![Some(-7)], "the level in debt")
}

async fn st_20_leases(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(9).class(Class::unreserved("a")))?;
    let other = lab.worker(&fixed(9).class(Class::unreserved("a")))?;
    let a = name("a")?;
    let mut tokens = worker.leases_as(Some(&a), 3).await?;
    tokens.extend(other.leases(3).await?);
    worker.release(&tokens[1..2]).await?;
    tokens.remove(1);
    let operators = lab.operators()?;
    let page = operators.leases(worker.id(), None, 1_000).await?.body;
    ensure(!page.more, "all leases are on one page")?;
    same(page.items.iter().map(|view| view.token).collect::<Vec<_>>(), tokens.clone(), "the tokens")?;
    for view in &page.items {
        let mine = view.token.slot < 3;
        let owner = if mine { &worker.member.owner } else { &other.member.owner };
        same(&view.owner, owner, format_args!("the owner of slot {}", view.token.slot))?;
        same(view.class.as_ref(), mine.then_some(&a), format_args!("the class of slot {}", view.token.slot))?;
        ensure(!view.resting, "no slot rests")?;
        ensure(view.left_ms <= 30_000, format_args!("{} ms are left of a TTL of 30,000", view.left_ms))?;
    }
    let page = operators.leases(worker.id(), None, 2).await?.body;
    ensure(page.more, "more come after a page of two out of five")?;
    let first: Vec<Token> = page.items.iter().map(|view| view.token).collect();
    slots(&first, &[0, 2], "slots of the first page")?;
    let page = operators.leases(worker.id(), Some(2), 2).await?.body;
    let second: Vec<Token> = page.items.iter().map(|view| view.token).collect();
    slots(&second, &[3, 4], "slots of the second page")?;
    let page = operators.leases(worker.id(), Some(4), 2).await?.body;
    same((page.items.len(), page.more), (1, false), "leases of the last page")?;
    let page = operators.leases(worker.id(), Some(u32::MAX), 2).await?.body;
    same((page.items.len(), page.more), (0, false), "leases after the last slot there could be")
}

async fn st_20_ages(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(9).lease_ttl(ms(10_000)))?;
    let token = worker.lease().await?;
    lab.advance(4_000).await;
    worker.lease().await?;
    lab.advance(1_000).await;
    let ages = |views: Vec<tidegate_core::LeaseView>| -> Vec<(u64, u64)> {
        views.iter().map(|view| (view.age_ms, view.left_ms)).collect()
    };
    same(
        ages(worker.views().await?),
        vec![(5_000, 5_000), (1_000, 9_000)],
        "age, and what is left, of two leases",
    )?;
    worker.renew(&[token]).await?;
    same(ages(worker.views().await?), vec![(5_000, 10_000), (1_000, 9_000)], "the same after a renewal")?;
    lab.advance(9_000).await;
    same(ages(worker.views().await?), vec![(14_000, 1_000)], "what lives when the second has ended")
}

async fn st_20_resting(lab: &Lab) -> Result<(), Failure> {
    let limit = LimitPolicy::check(1, 9, &Aimd::new(), ms(500), Growth::Additive)?;
    let worker = lab.worker(&policy().bound(Bound::Adaptive(limit)))?.starting_at(4);
    let token = worker.lease().await?;
    worker.report(&[token], Outcome::Throttled).await?;
    let views = worker.views().await?;
    same(
        views.iter().map(|view| (view.resting, view.left_ms)).collect(),
        vec![(true, 500)],
        "a slot that rests",
    )?;
    let snapshot =
        worker.snapshot().await?.ok_or_else(|| Failure("no snapshot of an id in use".to_owned()))?;
    same((snapshot.held, snapshot.resting), (1, 1), "slots that are taken, and those that rest")?;
    lab.advance(500).await;
    same(worker.views().await?.len(), 0, "leases when the rest is over")
}

async fn st_20_evict(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(2))?;
    let tokens = worker.leases(2).await?;
    let operators = lab.operators()?;
    same(operators.evict(worker.id(), tokens[0]).await?.body, true, "whether a lease was there")?;
    same(operators.evict(worker.id(), tokens[0]).await?.body, false, "whether it was there again")?;
    same(worker.renew(&tokens).await?, vec![false, true], "who lives")?;
    let new = worker.lease().await?;
    same(new.slot, 0, "the slot of a lease that was evicted")?;
    same(
        operators.evict(worker.id(), tokens[0]).await?.body,
        false,
        "whether a token that named its slot is there",
    )?;
    same(worker.renew(&[new]).await?, vec![true], "the renewal of the new lease")
}

async fn st_20_set_limit(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&adaptive(2, 20)?)?.starting_at(4);
    let tokens = worker.leases(4).await?;
    let operators = lab.operators()?;
    for wrong in [0, 1, 21, u32::MAX] {
        refused(
            operators.set_limit(worker.id(), wrong).await,
            "invalid_options",
            format_args!("a limit of {wrong}"),
        )?;
    }
    same(worker.granted(1).await?, 0, "grants after a limit that was refused")?;
    same(operators.set_limit(worker.id(), 6).await?.body, 6, "the limit that was set")?;
    let reply = worker.acquire(5).await?;
    same(reply.head.limit.map(|limit| limit.value), Some(6), "the limit in an answer")?;
    same(reply.body.grants.len(), 2, "grants under it")?;
    same(operators.set_limit(worker.id(), 2).await?.body, 2, "the limit that was set")?;
    worker.release(&tokens).await?;
    same(worker.granted(5).await?, 0, "grants with two held under a limit of 2")
}

async fn st_20_set_fixed_limit(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(4))?;
    worker.leases(1).await?;
    refused(
        lab.operators()?.set_limit(worker.id(), 6).await,
        "invalid_options",
        "a limit that does not move",
    )?;
    same(worker.granted(9).await?, 3, "grants after it")
}

async fn st_20_replace(lab: &Lab) -> Result<(), Failure> {
    let draft = |revision, limit| ruled(Rule::fixed_window(limit, ms(DAY))).revision(revision);
    let worker = lab.worker(&draft(2, 5))?;
    same(worker.granted(4).await?, 4, "grants under the first policy")?;
    let operators = lab.operators()?;
    for revision in [0, 1, 2] {
        let answer = operators.replace_policy(worker.id(), Arc::new(draft(revision, 9).check()?)).await;
        refused(answer, "invalid_options", format_args!("revision {revision} instead of 2"))?;
    }
    operators.replace_policy(worker.id(), Arc::new(draft(3, 9).check()?)).await?;
    same(worker.granted(9).await?, 5, "grants under the policy that replaced it")?;
    let refuses = worker.clone().refusing();
    let error =
        refused(refuses.ask(&jobs(&[1])).await, "policy_superseded", "a worker that refuses a newer policy")?;
    ensure(
        matches!(error, StoreError::Superseded { own: 2, pinned: 3 }),
        format_args!("own and pinned revision are 2 and 3: {error}"),
    )
}

async fn st_20_only_looks(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(5, ms(DAY))))?;
    same(worker.granted(1).await?, 1, "grants")?;
    for _ in 0..10 {
        worker.snapshot().await?;
        worker.views().await?;
        lab.operators()?.ids(None, 10).await?;
    }
    same(worker.granted(9).await?, 4, "grants after looking")
}
