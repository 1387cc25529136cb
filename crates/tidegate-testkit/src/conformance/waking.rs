//! What is pushed, and who is woken; and the path that needs no waiting.
//!
//! Spec: ST-13, ST-14, AS-12.

use std::time::Duration;

use tidegate_core::{
    Acquire, AcquireRequest, Capability, Class, Exchange, Head, Line, Outcome, Queue, SafeStart, Wake,
    rule::Rule,
};

use super::{
    Failure, Need, ensure,
    lab::{
        DAY, Lab, Worker, adaptive, fixed, jobs, jobs_of_one, ms, name, policy, queue, refused, releases,
        ruled, scoped_job, scoped_jobs,
    },
    same, trials_of_rules,
};
use crate::{
    subject::Hook,
    task::{Task, real_sleep},
};

const WAKE: Need = Need::Has(Capability::Wake);
const LEASES: Need = Need::Has(Capability::Leases);
const ADAPTIVE: Need = Need::Has(Capability::Adaptive);
const SCOPED: Need = Need::Has(Capability::Scoped);
const SYNC: Need = Need::Has(Capability::Sync);
const EXCHANGE: Need = Need::Has(Capability::Exchange);
const OPERATORS: Need = Need::Has(Capability::Operators);
const CLOCK: Need = Need::Hook(Hook::Clock);

trials_of_rules! {
    "ST-13 a pause and its end are pushed" [WAKE] => st_13_pause;
    "ST-13 an extension is pushed only when it is over a second later" [WAKE, CLOCK] => st_13_extension;
    "ST-13 a limit that moved is pushed" [WAKE, LEASES, ADAPTIVE] => st_13_limit;
    "ST-13 another policy is pushed" [WAKE] => st_13_policy;
    "ST-13 room is pushed to those who wait" [WAKE, LEASES] => st_13_room;
    "ST-13 what happens to one id is pushed to its listeners alone" [WAKE] => st_13_one_id;
    "ST-13 what happens is pushed in its order" [WAKE] => st_13_in_order;
    "ST-13 a subscription that was dropped hears nothing" [WAKE] => st_13_dropped;
    "ST-13 all works without a subscription" [LEASES] => st_13_without;
    "ST-14 the synchronous path decides on the same state" [SYNC] => st_14_same_state;
    "ST-14 the synchronous path holds the same leases" [SYNC, LEASES] => st_14_leases;
    "ST-14 the synchronous path takes scoped jobs" [SYNC, SCOPED] => st_14_scoped;
    "ST-14 the synchronous path refuses the same" [SYNC] => st_14_refuses;
    "ST-14 the synchronous path exchanges" [SYNC, LEASES] => st_14_exchange;
    "ST-14 what is granted in brief is granted once" [SYNC] => st_14_brief;
    "ST-14 a brief answer holds a lease like any other" [SYNC, LEASES] => st_14_brief_lease;
    "ST-14 a brief answer says what has changed" [SYNC, LEASES, ADAPTIVE] => st_14_brief_head;
    "ST-14 a clock that was set back is reported after a job in brief" [SYNC, CLOCK] => st_14_brief_clock;
    "AS-12 room goes to the one that waits longest" [WAKE, LEASES] => as_12_longest;
    "AS-12 as many are woken as there is room" [WAKE, LEASES] => as_12_as_many;
    "AS-12 one whose message reaches no one is skipped" [WAKE, LEASES] => as_12_skipped;
    "AS-12 one that cannot use the room is passed over" [WAKE, LEASES] => as_12_class;
    "AS-12 one that does not use the room passes it on" [WAKE, LEASES] => as_12_passes_on;
    "AS-12 a place lapses after two seconds" [WAKE, LEASES, CLOCK] => as_12_lapses;
    "AS-12 a raised limit wakes" [WAKE, LEASES, ADAPTIVE, OPERATORS] => as_12_raised;
    "AS-12 the end of a pause wakes" [WAKE, LEASES] => as_12_resumed;
    "AS-12 one that tries once is not woken" [WAKE, LEASES] => as_12_tries_once;
    "AS-12 a driver that names no queue waits no longer" [WAKE, LEASES, EXCHANGE] => as_12_no_queue;
    "AS-12 a process keeps its own slot unless another waited clearly longer"
        [WAKE, LEASES, EXCHANGE] => as_12_own_first;
    "AS-12 room that was offered is not taken by one that came later"
        [WAKE, LEASES] => as_12_offered_room;
    "AS-12 room that a safe start holds back is offered to nobody" [WAKE, LEASES, CLOCK] => as_12_safe_start;
}

fn is_paused(wake: &Wake) -> bool {
    matches!(wake, Wake::Paused { .. })
}

async fn st_13_pause(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&policy())?;
    let ear = lab.listen(&worker).await?;
    let peer = lab.peer_of(&worker)?;
    peer.pause(5_000).await?;
    let wake = ear.expect("a pause", is_paused).await?;
    let Wake::Paused { left_ms } = wake else { return Ok(()) };
    ensure((1..=5_000).contains(&left_ms), format_args!("{left_ms} ms are left of 5,000"))?;
    ear.forget();
    peer.resume().await?;
    ear.expect("the end of a pause", |wake| *wake == Wake::Resumed).await?;
    Ok(())
}

async fn st_13_extension(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&policy())?;
    let ear = lab.listen(&worker).await?;
    worker.pause(10_000).await?;
    ear.expect("a pause", is_paused).await?;
    ear.forget();
    worker.pause(5_000).await?;
    worker.pause(11_000).await?;
    worker.pause(12_001).await?;
    let wake = ear.expect("an extension by over a second", is_paused).await?;
    same(wake, Wake::Paused { left_ms: 12_001 }, "the first extension that is pushed")
}

async fn st_13_limit(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&adaptive(1, 50)?)?.starting_at(8);
    let ear = lab.listen(&worker).await?;
    let token = worker.lease().await?;
    let head = worker.report(&[token], Outcome::Throttled).await?;
    let limit = head.limit.ok_or_else(|| Failure("an answer without the limit".to_owned()))?;
    same(limit.value, 4, "the limit after a throttle")?;
    ear.expect("the limit", |wake| *wake == Wake::Limit(limit)).await?;
    Ok(())
}

async fn st_13_policy(lab: &Lab) -> Result<(), Failure> {
    let draft = |revision| ruled(Rule::fixed_window(5, ms(DAY))).revision(revision);
    let (old, new) = (lab.worker(&draft(0))?, lab.worker(&draft(3))?);
    let ear = lab.listen(&old).await?;
    old.granted(1).await?;
    new.granted(1).await?;
    ear.expect("another policy", |wake| *wake == Wake::Policy { revision: 3 }).await?;
    Ok(())
}

async fn st_13_room(lab: &Lab) -> Result<(), Failure> {
    let (holder, waiter) = (lab.worker(&fixed(1))?, lab.worker(&fixed(1))?);
    let ear = lab.listen(&waiter).await?;
    let token = holder.lease().await?;
    waiter.ask(&queue(1, 1, 0)).await?;
    holder.release(&[token]).await?;
    ear.expect("room", |wake| *wake == Wake::Room { class: None }).await?;
    same(waiter.granted(1).await?, 1, "grants of the one that was woken")
}

async fn st_13_one_id(lab: &Lab) -> Result<(), Failure> {
    let (worker, other) = (lab.worker(&policy())?, lab.worker_of("trial2", &policy())?);
    let (ear, others) = (lab.listen(&worker).await?, lab.listen(&other).await?);
    worker.pause(5_000).await?;
    ear.expect("a pause", is_paused).await?;
    other.pause(DAY).await?;
    let wake = others.expect("a pause of the other id", is_paused).await?;
    let Wake::Paused { left_ms } = wake else { return Ok(()) };
    ensure(left_ms > 5_000, "a listener was told of a pause of another id")
}

/// Many pause and resume at once. Each pause that is pushed began one, and each end ended it: they take turns.
async fn st_13_in_order(lab: &Lab) -> Result<(), Failure> {
    let draft = |revision| policy().revision(revision);
    let worker = lab.worker(&draft(0))?;
    worker.granted(1).await?;
    let ear = lab.listen(&worker).await?;
    let mut tasks: Vec<Task<'static, Result<(), Failure>>> = Vec::new();
    for number in 0..8 {
        let process = if number % 2 == 0 { lab.peer_of(&worker)? } else { worker.clone() };
        tasks.push(Box::pin(async move {
            for _ in 0..100 {
                process.pause(DAY).await?;
                process.resume().await?;
            }
            Ok(())
        }));
    }
    lab.at_once(tasks).await?;
    lab.worker(&draft(9))?.granted(1).await?;
    ear.expect("the last of all changes", |wake| *wake == Wake::Policy { revision: 9 }).await?;
    let wakes: Vec<bool> = ear
        .take()
        .iter()
        .filter_map(|wake| match wake {
            Wake::Paused { .. } => Some(true),
            Wake::Resumed => Some(false),
            _ => None,
        })
        .collect();
    ensure(wakes.len() >= 2, format_args!("{} pauses and ends were pushed", wakes.len()))?;
    let out_of_turn = wakes.iter().enumerate().find(|(at, is_pause)| **is_pause != at.is_multiple_of(2));
    ensure(out_of_turn.is_none(), format_args!("push {out_of_turn:?} came out of turn (true is a pause)"))
}

async fn st_13_dropped(lab: &Lab) -> Result<(), Failure> {
    let (worker, other) = (lab.worker(&policy())?, lab.worker(&policy())?);
    let (mut ear, control) = (lab.listen(&worker).await?, lab.listen(&other).await?);
    worker.pause(5_000).await?;
    ear.expect("a pause", is_paused).await?;
    control.expect("a pause", is_paused).await?;
    worker.resume().await?;
    control.expect("the end of a pause", |wake| *wake == Wake::Resumed).await?;
    ear.expect("the end of a pause", |wake| *wake == Wake::Resumed).await?;
    ear.unsubscribe();
    ear.forget();
    control.forget();
    worker.pause(5_000).await?;
    control.expect("a pause", is_paused).await?;
    same(ear.take(), vec![], "what a listener was told whose subscription was dropped")
}

async fn st_13_without(lab: &Lab) -> Result<(), Failure> {
    let (holder, waiter) = (lab.worker(&fixed(1))?, lab.worker(&fixed(1))?);
    let token = holder.lease().await?;
    for waited_ms in 0..3 {
        same(
            waiter.ask(&queue(1, 1, waited_ms)).await?.body.grants.len(),
            0,
            "grants while the slot is held",
        )?;
    }
    holder.release(&[token]).await?;
    same(waiter.ask(&queue(1, 1, 5)).await?.body.grants.len(), 1, "grants of one that comes again by itself")
}

// ---- the synchronous path ------------------------------------------------------------------------------------------

fn sync_path(worker: &Worker) -> Result<std::sync::Arc<dyn tidegate_core::SyncPath>, Failure> {
    let path = worker.store.sync_path(worker.id());
    path.ok_or_else(|| Failure("the synchronous path is declared, and there is none".to_owned()))
}

async fn st_14_same_state(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(10, ms(DAY))))?;
    let path = sync_path(&worker)?;
    same(
        path.acquire(&worker.member, &jobs_of_one(4))?.body.grants.len(),
        4,
        "grants of the synchronous path",
    )?;
    same(worker.granted(4).await?, 4, "grants of the other one")?;
    let reply = path.acquire(&worker.member, &jobs_of_one(4))?;
    same(reply.body.grants.len(), 2, "grants of what both have left")?;
    ensure(reply.body.denied.is_some_and(|denial| denial.hint_ms > 0), "with a hint for the next")?;
    worker.pause(DAY).await?;
    let reply = path.acquire(&worker.member, &jobs(&[0]))?;
    same(reply.body.grants.len(), 0, "grants of the synchronous path during a pause")?;
    ensure(reply.head.paused_ms > 0, "which says what is left of it")
}

async fn st_14_leases(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(2))?;
    let path = sync_path(&worker)?;
    let reply = path.acquire(&worker.member, &jobs_of_one(1))?;
    let first: Vec<_> = reply.body.grants.iter().filter_map(|grant| grant.lease).collect();
    let second = worker.lease().await?;
    same((first.len(), second.slot), (1, 1), "leases of the synchronous path, and the next slot")?;
    same(worker.granted(1).await?, 0, "grants above the limit")?;
    path.release(&worker.member, &releases(&[second], Outcome::Success))?;
    worker.release(&first).await?;
    same(
        path.acquire(&worker.member, &jobs_of_one(3))?.body.grants.len(),
        2,
        "grants when both were released",
    )
}

async fn st_14_scoped(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(2, ms(DAY)).scoped("tenant")))?;
    let path = sync_path(&worker)?;
    let request =
        scoped_jobs(None, vec![scoped_job(1, &[("tenant", "a")])?, scoped_job(1, &[("tenant", "b")])?]);
    let reply = path.acquire_scoped(&worker.member, &request)?;
    same(reply.body.grants.len(), 2, "grants of the synchronous path")?;
    same(worker.ask_scoped(&request).await?.body.grants.len(), 2, "grants of the other one")?;
    let reply = path.acquire_scoped(&worker.member, &request)?;
    same((reply.body.grants.len(), reply.body.denied.len()), (0, 2), "grants and denials when all is spent")
}

async fn st_14_refuses(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(3, ms(DAY))))?;
    let path = sync_path(&worker)?;
    let other = lab.worker(&ruled(Rule::fixed_window(4, ms(DAY))))?;
    same(worker.granted(1).await?, 1, "grants that pin the policy")?;
    refused(path.acquire(&other.member, &jobs_of_one(1)), "invalid_options", "another policy")?;
    refused(path.acquire(&worker.member, &jobs_of_one(0)), "invalid_options", "an acquire of no job")?;
    refused(path.acquire(&worker.member, &jobs(&[4])), "cost_exceeds_limit", "a cost above the limit")?;
    same(path.acquire(&worker.member, &jobs_of_one(3))?.body.grants.len(), 2, "grants that these have left")
}

async fn st_14_exchange(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(1))?;
    let path = sync_path(&worker)?;
    let token = worker.lease().await?;
    let exchange = Exchange {
        releases: releases(&[token], Outcome::Success),
        acquires: vec![Acquire::Prefix(jobs_of_one(2))],
        ..Exchange::default()
    };
    let reply = path.exchange(&worker.member, &exchange)?;
    exchange.check(Some(true), &reply)?;
    let granted: usize = reply
        .body
        .acquired
        .iter()
        .filter_map(|part| part.as_ref().ok())
        .map(|part| part.grants().count())
        .sum();
    same(granted, 1, "grants of the slot that the same exchange freed")?;
    same(worker.granted(1).await?, 0, "grants above the limit")
}

async fn st_14_brief(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(5, ms(DAY))))?;
    same(worker.granted(1).await?, 1, "grants that pin the policy")?;
    let path = sync_path(&worker)?;
    let mut granted = 1;
    for _ in 0..20 {
        // Where it says nothing, nothing has changed, and the job is asked for in full.
        granted += match path.acquire_one(&worker.member, 0, 0) {
            Some(brief) => usize::from(brief.grant.is_some()),
            None => path.acquire(&worker.member, &jobs_of_one(1))?.body.grants.len(),
        };
    }
    same(granted, 5, "grants in all")?;
    worker.pause(DAY).await?;
    let brief = path.acquire_one(&worker.member, 0, 0);
    ensure(brief.is_none_or(|brief| brief.grant.is_none()), "a job was granted in brief during a pause")?;
    let other = lab.worker_of("trial", &ruled(Rule::fixed_window(9, ms(DAY))))?;
    worker.resume().await?;
    let brief = path.acquire_one(&other.member, 0, 0);
    ensure(brief.is_none_or(|brief| brief.grant.is_none()), "a job was granted in brief under another policy")
}

async fn st_14_brief_lease(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(2).class(Class::reserved("a", 0.5)))?;
    let first = worker.lease().await?;
    let path = sync_path(&worker)?;
    // The slice of the class, which is the first tier, is not lent to jobs without one.
    let brief = path.acquire_one(&worker.member, 1, 0);
    ensure(brief.is_none_or(|brief| brief.grant.is_none()), "a slice was lent in brief")?;
    let Some(brief) = path.acquire_one(&worker.member, 0, 0) else { return Ok(()) };
    let lease = brief.grant.and_then(|grant| grant.lease);
    let lease = lease.ok_or_else(|| Failure("a grant in brief came without its lease".to_owned()))?;
    same(lease.slot, 1, "the slot of a grant in brief")?;
    ensure(lease.fence > first.fence, "its fence is higher than the last")?;
    same(worker.renew(&[first, lease]).await?, vec![true, true], "who lives")?;
    for release in releases(&[lease, lease], Outcome::Success) {
        if path.release_one(&release, 0).is_none() {
            path.release(&worker.member, &[release])?;
        }
    }
    same(worker.renew(&[first, lease]).await?, vec![true, false], "who lives after a release in brief")?;
    same(worker.granted_as(Some(&name("a")?), 2).await?, 1, "grants of the slot that it freed")
}

async fn st_14_brief_head(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&adaptive(1, 50)?)?.starting_at(16);
    let tokens = worker.leases(3).await?;
    let path = sync_path(&worker)?;
    let Some(brief) = path.acquire_one(&worker.member, 0, 0) else { return Ok(()) };
    let Some(head) = brief.head else {
        return Err(Failure("a first brief answer says how the id stands".to_owned()));
    };
    same(head.limit.map(|limit| limit.value), Some(16), "the limit in a brief answer")?;
    worker.report(&tokens[..1], Outcome::Throttled).await?;
    let Some(again) = path.acquire_one(&worker.member, 0, brief.seen) else { return Ok(()) };
    let limit = again.head.as_deref().and_then(|head| head.limit).map(|limit| limit.value);
    same(limit, Some(8), "the limit in a brief answer after it has moved")?;
    let release = &releases(&tokens[1..2], Outcome::Success)[0];
    let head = path.release_one(release, again.seen).and_then(|brief| brief.head);
    if let Some(Head { limit, .. }) = head.as_deref() {
        same(limit.map(|limit| limit.value), Some(8), "the limit in a brief answer to a release")?;
    }
    Ok(())
}

async fn st_14_brief_clock(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(1, ms(DAY))))?;
    same(worker.granted(1).await?, 1, "grants of all there is")?;
    let path = sync_path(&worker)?;
    lab.step_back(3_600_000).await;
    let reported = match path.acquire_one(&worker.member, 0, 0) {
        Some(brief) => brief.head,
        None => Some(Box::new(path.acquire(&worker.member, &jobs_of_one(1))?.head)),
    };
    same(reported.map(|head| head.stepped_back_ms), Some(3_600_000), "how far the clock was set back")
}

// ---- waking --------------------------------------------------------------------------------------------------------

/// A driver that was denied for slots, and waits with so many jobs, the oldest for so long.
async fn waits(worker: &Worker, jobs: u32, waited_ms: u64) -> Result<(), Failure> {
    let reply = worker.ask(&queue(jobs as usize, jobs, waited_ms)).await?;
    same(reply.body.grants.len(), 0, "grants of a driver that is to wait")
}

async fn as_12_longest(lab: &Lab) -> Result<(), Failure> {
    let (holder, young, old) = (lab.worker(&fixed(2))?, lab.worker(&fixed(2))?, lab.worker(&fixed(2))?);
    let (youngs, olds) = (lab.listen(&young).await?, lab.listen(&old).await?);
    let tokens = holder.leases(2).await?;
    waits(&young, 1, 0).await?;
    waits(&old, 1, 1_000).await?;
    holder.release(&tokens[..1]).await?;
    olds.expect_room("room for the one that waits longest").await?;
    same(youngs.rooms(&young).await?, 0, "how often the other one was woken")?;
    same(old.granted(1).await?, 1, "grants of the one that was woken")
}

async fn as_12_as_many(lab: &Lab) -> Result<(), Failure> {
    let draft = fixed(4);
    let (holder, first, second, third) =
        (lab.worker(&draft)?, lab.worker(&draft)?, lab.worker(&draft)?, lab.worker(&draft)?);
    let (ear1, ear2, ear3) =
        (lab.listen(&first).await?, lab.listen(&second).await?, lab.listen(&third).await?);
    let tokens = holder.leases(4).await?;
    waits(&first, 2, 900).await?;
    waits(&second, 1, 800).await?;
    waits(&third, 5, 700).await?;
    holder.release(&tokens[..2]).await?;
    ear1.expect_room("room for the first").await?;
    same(ear1.rooms(&first).await?, 2, "how often the first was woken, with two jobs")?;
    same((ear2.rooms(&second).await?, ear3.rooms(&third).await?), (0, 0), "how often the others were woken")?;
    holder.release(&tokens[2..]).await?;
    ear2.expect_room("room for the second").await?;
    ear3.expect_room("room for the third").await?;
    same(ear1.rooms(&first).await?, 0, "how often the first was woken again, without having come back")
}

async fn as_12_skipped(lab: &Lab) -> Result<(), Failure> {
    let (holder, deaf, hears) = (lab.worker(&fixed(1))?, lab.worker(&fixed(1))?, lab.worker(&fixed(1))?);
    let mut unheard = lab.listen(&deaf).await?;
    let ear = lab.listen(&hears).await?;
    let token = holder.lease().await?;
    waits(&deaf, 1, 1_000).await?;
    waits(&hears, 1, 0).await?;
    unheard.unsubscribe();
    // A remote store hears of that a moment later, and nothing shows when.
    real_sleep(Duration::from_millis(300)).await;
    holder.release(&[token]).await?;
    ear.expect_room("room for the next, where the first does not listen").await
}

async fn as_12_class(lab: &Lab) -> Result<(), Failure> {
    let draft = fixed(4).class(Class::reserved("a", 0.5));
    let (holder, plain, classed) = (lab.worker(&draft)?, lab.worker(&draft)?, lab.worker(&draft)?);
    let (plains, classeds) = (lab.listen(&plain).await?, lab.listen(&classed).await?);
    let a = name("a")?;
    let tokens = holder.leases_as(Some(&a), 2).await?;
    holder.leases(2).await?;
    waits(&plain, 1, 1_000).await?;
    let request = AcquireRequest { class: Some(a.clone()), ..queue(1, 1, 0) };
    same(classed.ask(&request).await?.body.grants.len(), 0, "grants above the limit")?;
    // Only the class may use what is left of its own slice.
    holder.release(&tokens[..1]).await?;
    classeds.expect("room of the class", |wake| *wake == Wake::Room { class: Some(a.clone()) }).await?;
    same(plains.rooms(&plain).await?, 0, "how often the one without a class was woken")
}

async fn as_12_passes_on(lab: &Lab) -> Result<(), Failure> {
    let draft = fixed(1).rule(Rule::fixed_window(5, ms(DAY)));
    let (holder, first, second) = (lab.worker(&draft)?, lab.worker(&draft)?, lab.worker(&draft)?);
    let (ear1, ear2) = (lab.listen(&first).await?, lab.listen(&second).await?);
    let token = holder.lease().await?;
    waits(&first, 1, 1_000).await?;
    waits(&second, 1, 0).await?;
    holder.release(&[token]).await?;
    ear1.expect_room("room for the first").await?;
    // Its job turns out to cost more than the rule has left.
    let reply =
        first.ask(&AcquireRequest { line: Line { waiting: 1, waited_ms: 1_000 }, ..jobs(&[5]) }).await?;
    same(reply.body.grants.len(), 0, "grants of a job that a rule denies")?;
    ear2.expect_room("room for the second").await?;
    same(second.granted(1).await?, 1, "grants of the second")
}

async fn as_12_lapses(lab: &Lab) -> Result<(), Failure> {
    for (id, after_ms, first_is_woken) in [("in time", 1_999, true), ("too late", 2_000, false)] {
        let draft = fixed(1);
        let (holder, first, second) =
            (lab.worker_of(id, &draft)?, lab.worker_of(id, &draft)?, lab.worker_of(id, &draft)?);
        let (ear1, ear2) = (lab.listen(&first).await?, lab.listen(&second).await?);
        let token = holder.lease().await?;
        waits(&first, 1, 0).await?;
        lab.advance(after_ms).await;
        waits(&second, 1, 0).await?;
        holder.release(&[token]).await?;
        if first_is_woken {
            ear1.expect_room("room for the first").await?;
            same(ear2.rooms(&second).await?, 0, "how often the second was woken")?;
        } else {
            ear2.expect_room("room for the second").await?;
            same(ear1.rooms(&first).await?, 0, "how often one was woken whose place has lapsed")?;
        }
    }
    Ok(())
}

async fn as_12_raised(lab: &Lab) -> Result<(), Failure> {
    let draft = adaptive(1, 50)?;
    let (holder, waiter) = (lab.worker(&draft)?.starting_at(1), lab.worker(&draft)?);
    let ear = lab.listen(&waiter).await?;
    holder.lease().await?;
    waits(&waiter, 3, 0).await?;
    same(lab.operators()?.set_limit(waiter.id(), 3).await?.body, 3, "the limit that was set")?;
    ear.expect_room("room under a raised limit").await?;
    same(ear.rooms(&waiter).await?, 2, "how often it was woken")
}

async fn as_12_resumed(lab: &Lab) -> Result<(), Failure> {
    let (holder, waiter) = (lab.worker(&fixed(1))?, lab.worker(&fixed(1))?);
    let ear = lab.listen(&waiter).await?;
    let token = holder.lease().await?;
    waits(&waiter, 1, 0).await?;
    holder.pause(DAY).await?;
    holder.release(&[token]).await?;
    ear.expect("a pause", is_paused).await?;
    same(
        ear.take().iter().filter(|wake| matches!(wake, Wake::Room { .. })).count(),
        0,
        "rooms during a pause",
    )?;
    holder.resume().await?;
    ear.expect_room("room when the pause has ended").await
}

async fn as_12_tries_once(lab: &Lab) -> Result<(), Failure> {
    let (holder, once, waiter) = (lab.worker(&fixed(1))?, lab.worker(&fixed(1))?, lab.worker(&fixed(1))?);
    let (onces, ear) = (lab.listen(&once).await?, lab.listen(&waiter).await?);
    let token = holder.lease().await?;
    waits(&once, 1, 1_000).await?;
    same(once.ask(&queue(1, 0, 0)).await?.body.grants.len(), 0, "grants of one that tries once")?;
    waits(&waiter, 1, 0).await?;
    holder.release(&[token]).await?;
    ear.expect_room("room for the one that waits").await?;
    same(onces.rooms(&once).await?, 0, "how often one was woken that tried once")
}

async fn as_12_no_queue(lab: &Lab) -> Result<(), Failure> {
    let (holder, gone, waiter) = (lab.worker(&fixed(1))?, lab.worker(&fixed(1))?, lab.worker(&fixed(1))?);
    let (gones, ear) = (lab.listen(&gone).await?, lab.listen(&waiter).await?);
    let token = holder.lease().await?;
    waits(&gone, 1, 1_000).await?;
    gone.exchange(&Exchange::default()).await?;
    // A queue that acquires nothing now keeps its place, or takes one.
    let line = Line { waiting: 1, waited_ms: 500 };
    let queues = vec![Queue { class: None, line }];
    waiter.exchange(&Exchange { queues, ..Exchange::default() }).await?;
    holder.release(&[token]).await?;
    ear.expect_room("room for the one that waits").await?;
    same(gones.rooms(&gone).await?, 0, "how often one was woken that waits no longer")
}

async fn as_12_own_first(lab: &Lab) -> Result<(), Failure> {
    // How long the other has waited beyond the holder's own head, and whether the holder keeps its slot.
    for (id, longer_ms, keeps) in [("equal", 0, true), ("barely", 10, true), ("clearly", 1_000, false)] {
        let (holder, other) = (lab.worker_of(id, &fixed(1))?, lab.worker_of(id, &fixed(1))?);
        let ear = lab.listen(&other).await?;
        let token = holder.lease().await?;
        waits(&other, 1, 100 + longer_ms).await?;
        let request = queue(1, 1, 100);
        let exchange = Exchange {
            releases: releases(&[token], Outcome::Success),
            acquires: vec![Acquire::Prefix(request)],
            ..Exchange::default()
        };
        let reply = holder.exchange(&exchange).await?;
        let granted: usize = reply
            .body
            .acquired
            .iter()
            .filter_map(|part| part.as_ref().ok())
            .map(|part| part.grants().count())
            .sum();
        if keeps && (longer_ms == 0 || lab.is_timed()) {
            same(granted, 1, format_args!("{id}: grants of the process that freed the slot"))?;
            same(ear.rooms(&other).await?, 0, format_args!("{id}: how often the other was woken"))?;
        } else if !keeps {
            same(granted, 0, format_args!("{id}: grants of the process that freed the slot"))?;
            ear.expect_room("room for the one that waited clearly longer").await?;
        }
    }
    if lab.is_timed() {
        let (holder, other) = (lab.worker_of("just", &fixed(1))?, lab.worker_of("just", &fixed(1))?);
        let ear = lab.listen(&other).await?;
        let token = holder.lease().await?;
        waits(&other, 1, 111).await?;
        let exchange = Exchange {
            releases: releases(&[token], Outcome::Success),
            acquires: vec![Acquire::Prefix(queue(1, 1, 100))],
            ..Exchange::default()
        };
        holder.exchange(&exchange).await?;
        ear.expect_room("room for one that waited 11 ms longer").await?;
    }
    Ok(())
}

async fn as_12_offered_room(lab: &Lab) -> Result<(), Failure> {
    // How long one that comes while the room is on offer has waited by then, and whether it is served.
    for (id, waited_ms, waiting, served) in [
        ("tries once", 0, 0, false),
        ("waits", 0, 1, false),
        ("came later", 900, 1, false),
        ("came first", 5_000, 1, true),
    ] {
        let draft = fixed(2);
        let (holder, waiter, comer) =
            (lab.worker_of(id, &draft)?, lab.worker_of(id, &draft)?, lab.worker_of(id, &draft)?);
        let ear = lab.listen(&waiter).await?;
        let tokens = holder.leases(2).await?;
        waits(&waiter, 1, 1_000).await?;
        holder.release(&tokens[..1]).await?;
        ear.expect_room("room for the one that waits").await?;
        let reply = comer.ask(&queue(1, waiting, waited_ms)).await?.body;
        same(reply.grants.len(), usize::from(served), format_args!("{id}: grants of the one that comes"))?;
        if !served {
            let blocked = reply.denied.is_some_and(|denial| denial.lease_blocked);
            ensure(blocked, format_args!("{id}: it is denied for want of a slot"))?;
        }
        let left = usize::from(!served);
        same(waiter.granted(1).await?, left, format_args!("{id}: grants of the one that was woken"))?;
    }
    // Room beyond what is on offer is anyone's.
    let (holder, waiter, comer) = (
        lab.worker_of("more", &fixed(2))?,
        lab.worker_of("more", &fixed(2))?,
        lab.worker_of("more", &fixed(2))?,
    );
    let ear = lab.listen(&waiter).await?;
    let tokens = holder.leases(2).await?;
    waits(&waiter, 1, 1_000).await?;
    holder.release(&tokens).await?;
    ear.expect_room("room for the one that waits").await?;
    same(comer.granted(2).await?, 1, "grants of all but what is on offer")?;
    same(waiter.granted(2).await?, 1, "grants of what was on offer")
}

async fn as_12_safe_start(lab: &Lab) -> Result<(), Failure> {
    let draft = fixed(1).lease_ttl(ms(1_000)).safe_start(SafeStart::On);
    let (waiter, peer) = (lab.worker(&draft)?, lab.worker(&draft)?);
    let ear = lab.listen(&waiter).await?;
    waits(&waiter, 1, 0).await?;
    peer.pause(DAY).await?;
    peer.resume().await?;
    same(ear.rooms(&waiter).await?, 0, "how often it was woken for what is granted to nobody yet")?;
    lab.advance(1_000).await;
    peer.pause(DAY).await?;
    peer.resume().await?;
    ear.expect_room("room when the safe start is over").await?;
    same(waiter.granted(1).await?, 1, "grants when the safe start is over")
}
