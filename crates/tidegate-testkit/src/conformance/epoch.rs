//! Lost state, damaged state, and state of another layout.
//!
//! Spec: ST-18, ST-21.

use tidegate_core::{
    Acquire, Capability, Cause, Class, Epoch, Exchange, HandOver, Limit, Outcome, Renewal, Restore,
    SafeStart, Settlement, StoreError, Token, rule::Rule, time::Moment,
};

use super::{
    Failure, Need, ensure,
    lab::{
        DAY, Lab, Worker, adaptive, fixed, jobs, ms, name, refused, releases, renewals, ruled, scoped_job,
        scoped_jobs,
    },
    same, trials_of_rules,
};
use crate::subject::Hook;

const LEASES: Need = Need::Has(Capability::Leases);
const EPOCH: Need = Need::Has(Capability::Epoch);
const ADAPTIVE: Need = Need::Has(Capability::Adaptive);
const SCOPED: Need = Need::Has(Capability::Scoped);
const EXCHANGE: Need = Need::Has(Capability::Exchange);
const CLOCK: Need = Need::Hook(Hook::Clock);
const WIPE: Need = Need::Hook(Hook::Wipe);
const LAYOUT: Need = Need::Hook(Hook::Layout);
const CORRUPT: Need = Need::Hook(Hook::Corrupt);

trials_of_rules! {
    "ST-18 every answer carries the epoch" [EPOCH] => st_18_every_answer;
    "ST-18 lost state has another epoch" [EPOCH, WIPE] => st_18_another;
    "ST-18 what has expired keeps the epoch" [EPOCH, LEASES, CLOCK] => st_18_expired;
    "ST-18 leases are taken up with slot, fence and class" [EPOCH, LEASES, WIPE] => st_18_taken_up;
    "ST-18 nothing is taken up without a restore" [EPOCH, LEASES, WIPE] => st_18_without_restore;
    "ST-18 nothing is restored into the same epoch" [EPOCH, LEASES] => st_18_same_epoch;
    "ST-18 a lease is lost whose slot is taken" [EPOCH, LEASES, WIPE] => st_18_slot_taken;
    "ST-18 a lease is lost whose slot has a higher fence" [EPOCH, LEASES, WIPE] => st_18_higher_fence;
    "ST-18 no lease is taken up above the limit" [EPOCH, LEASES, WIPE] => st_18_limit;
    "ST-18 no lease is taken up out of another class's slice" [EPOCH, LEASES, WIPE] => st_18_class_bounds;
    "ST-18 a lease that was taken up lives one TTL" [EPOCH, LEASES, WIPE, CLOCK] => st_18_taken_up_ttl;
    "ST-18 the newest limit is restored" [EPOCH, LEASES, ADAPTIVE, WIPE] => st_18_newest_limit;
    "ST-18 a restored limit lies within the bounds" [EPOCH, LEASES, ADAPTIVE, WIPE] => st_18_limit_bounds;
    "ST-18 a running pause is restored, and never shortened" [EPOCH, LEASES, WIPE] => st_18_pause;
    "ST-18 live leases exceed the limit by at most those of before" [EPOCH, LEASES, WIPE, CLOCK] => st_18_excess;
    "ST-18 a rule admits at most one extra burst" [WIPE] => st_18_extra_burst;
    "ST-18 an exchange restores before anything else" [EPOCH, LEASES, EXCHANGE, WIPE] => st_18_exchange;
    "ST-18 a safe start waits one TTL" [LEASES, CLOCK] => st_18_safe_leases;
    "ST-18 a safe start begins with empty buckets and full windows" [CLOCK] => st_18_safe_rules;
    "ST-18 a safe start holds for identities" [SCOPED, CLOCK] => st_18_safe_identities;
    "ST-18 a safe start takes leases up" [EPOCH, LEASES, WIPE, CLOCK] => st_18_safe_taken_up;
    "ST-18 damaged state is reported, cleared and taken for lost" [CORRUPT] => st_18_corrupt;
    "ST-21 a newer layout is refused" [LAYOUT] => st_21_newer;
    "ST-21 a newer layout is refused for what is held as well" [LAYOUT, LEASES] => st_21_leases;
}

fn restore(epoch: Epoch) -> Restore {
    Restore { epoch, limit: None, paused_ms: 0 }
}

/// Loses everything, and gives the epoch that was.
async fn lose(lab: &Lab, worker: &Worker) -> Result<Epoch, Failure> {
    let epoch = worker.epoch().await?;
    lab.lose_all().await;
    Ok(epoch)
}

async fn st_18_every_answer(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(9, ms(DAY))))?;
    let first = worker.acquire(1).await?.head.epoch;
    ensure(first.is_some(), "an acquire carries the epoch")?;
    same(worker.pause(1_000).await?.epoch, first, "the epoch of a pause")?;
    same(worker.resume().await?.epoch, first, "the epoch of a resume")?;
    same(
        worker
            .exchange(&Exchange { acquires: vec![Acquire::Prefix(jobs(&[1]))], ..Exchange::default() })
            .await?
            .head
            .epoch,
        first,
        "the epoch of an exchange",
    )?;
    same(worker.acquire(9).await?.head.epoch, first, "the epoch of a denial")?;
    if lab.has(Capability::Leases) {
        same(worker.release(&[]).await?.epoch, first, "the epoch of a release")?;
        same(
            worker.store.renew(&worker.member, None, &[]).await?.head.epoch,
            first,
            "the epoch of a renewal",
        )?;
    }
    if lab.has(Capability::Corrections) {
        same(worker.store.settle(&worker.member, &[]).await?.head.epoch, first, "the epoch of a settlement")?;
        same(
            worker.store.observe(&worker.member, &[]).await?.head.epoch,
            first,
            "the epoch of an observation",
        )?;
    }
    Ok(())
}

async fn st_18_another(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(9, ms(DAY))))?;
    let mut seen = Vec::new();
    for _ in 0..3 {
        let epoch = worker.acquire(1).await?.head.epoch;
        ensure(!seen.contains(&epoch), format_args!("the epoch {epoch:?} came again after a loss"))?;
        same(worker.acquire(1).await?.head.epoch, epoch, "the epoch as long as nothing is lost")?;
        seen.push(epoch);
        lab.lose_all().await;
    }
    Ok(())
}

async fn st_18_expired(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(2).rule(Rule::fixed_window(9, ms(1_000))))?;
    worker.leases(2).await?;
    let epoch = worker.epoch().await?;
    lab.advance(29 * DAY).await;
    same(worker.epoch().await?, epoch, "the epoch when leases and windows are long over")?;
    same(worker.granted(3).await?, 2, "grants after that")
}

async fn st_18_taken_up(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(8).class(Class::reserved("a", 0.5)))?;
    let a = name("a")?;
    let (classed, plain) = (worker.leases_as(Some(&a), 2).await?, worker.leases(3).await?);
    let epoch = lose(lab, &worker).await?;
    let mut asked: Vec<Renewal> =
        classed.iter().map(|token| Renewal { token: *token, class: Some(a.clone()) }).collect();
    asked.extend(renewals(&plain[1..]));
    let reply = worker.store.renew(&worker.member, Some(&restore(epoch)), &asked).await?;
    same(reply.body.live, vec![true; 4], "leases that are taken up")?;
    ensure(reply.head.held.is_none_or(|held| held == 4), format_args!("{:?} held of 4", reply.head.held))?;
    // They are what they were: renewed and released by the same tokens, in the same slots, in the same class.
    same(worker.renew(&classed).await?, vec![true, true], "renewals of what was taken up")?;
    let new = worker.leases(1).await?;
    same(new.first().map(|token| token.slot), Some(2), "the slot that nobody took up")?;
    ensure(
        new.iter().all(|new| plain.iter().all(|old| new.fence > old.fence)),
        "fences go on above those taken up",
    )?;
    same(worker.granted(8).await?, 1, "grants beside three without a class and a slice of four")?;
    worker.release(&plain[1..2]).await?;
    same(worker.granted(8).await?, 1, "grants of a slot that was taken up and released")
}

async fn st_18_without_restore(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(3))?;
    let tokens = worker.leases(3).await?;
    lab.lose_all().await;
    same(worker.renew(&tokens).await?, vec![false; 3], "renewals on state that was lost")?;
    same(worker.granted(9).await?, 3, "grants of a limit that holds nothing")
}

async fn st_18_same_epoch(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(3))?;
    let tokens = worker.leases(2).await?;
    let epoch = worker.epoch().await?;
    worker.release(&tokens[..1]).await?;
    let known = Restore { epoch, limit: None, paused_ms: DAY };
    same(
        worker.take_up(&known, &tokens).await?,
        vec![false, true],
        "what is taken up where nothing was lost",
    )?;
    same(worker.granted(3).await?, 2, "grants, also unpaused")
}

async fn st_18_slot_taken(lab: &Lab) -> Result<(), Failure> {
    let (worker, other) = (lab.worker(&fixed(5))?, lab.worker(&fixed(5))?);
    let tokens = worker.leases(3).await?;
    let epoch = lose(lab, &worker).await?;
    let new = other.leases(1).await?;
    same(new.first().map(|token| token.slot), Some(0), "the first slot after the loss")?;
    let live = worker.take_up(&restore(epoch), &tokens).await?;
    same(live, vec![false, true, true], "what is taken up beside a new lease in slot 0")?;
    same(other.renew(&new).await?, vec![true], "the renewal of the new lease")?;
    same(worker.granted(5).await?, 2, "grants beside three leases")
}

async fn st_18_higher_fence(lab: &Lab) -> Result<(), Failure> {
    let (worker, other) = (lab.worker(&fixed(5))?, lab.worker(&fixed(5))?);
    let tokens = worker.leases(2).await?;
    let epoch = lose(lab, &worker).await?;
    let new = other.leases(1).await?;
    other.release(&new).await?;
    let live = worker.take_up(&restore(epoch), &tokens).await?;
    same(live, vec![false, true], "what is taken up where slot 0 is free and had a higher fence")?;
    same(worker.granted(9).await?, 4, "grants beside one lease")
}

async fn st_18_limit(lab: &Lab) -> Result<(), Failure> {
    let (worker, other) = (lab.worker(&fixed(4))?, lab.worker(&fixed(4))?);
    // Slots 1 to 3 are the worker's, and slot 0 somebody's who is gone.
    let tokens = worker.leases(4).await?;
    let epoch = lose(lab, &worker).await?;
    let handed = vec![HandOver { class: None }; 1];
    other.store.hand_over(&other.member, &handed).await?;
    other.leases(1).await?;
    let live = worker.take_up(&restore(epoch), &tokens[2..]).await?;
    same(live, vec![true, true], "what is taken up below the limit")?;
    let third = lab.worker_of("full", &fixed(2))?;
    let tokens = third.leases(2).await?;
    let above: Vec<Token> = tokens.iter().map(|token| Token { slot: token.slot + 5, ..*token }).collect();
    let epoch = lose(lab, &third).await?;
    third.leases(1).await?;
    same(
        third.take_up(&restore(epoch), &above).await?,
        vec![true, false],
        "what is taken up until the limit is reached",
    )?;
    same(third.granted(1).await?, 0, "grants above the limit")
}

async fn st_18_class_bounds(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(4).class(Class::reserved("a", 0.5)))?;
    let a = name("a")?;
    let tokens = worker.leases_as(Some(&a), 4).await?;
    let epoch = lose(lab, &worker).await?;
    // They say now that they are of no class: two may be, and two are the slice of the class.
    let live = worker.take_up(&restore(epoch), &tokens).await?;
    same(live, vec![true, true, false, false], "what is taken up without a class")?;
    same(worker.granted_as(Some(&a), 4).await?, 2, "grants of the class")
}

async fn st_18_taken_up_ttl(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(1).lease_ttl(ms(10_000)))?;
    let token = worker.lease().await?;
    lab.advance(5_000).await;
    let epoch = lose(lab, &worker).await?;
    same(worker.take_up(&restore(epoch), &[token]).await?, vec![true], "what is taken up")?;
    lab.advance(9_999).await;
    same(worker.granted(1).await?, 0, "grants a millisecond before one TTL is over")?;
    lab.advance(1).await;
    same(worker.granted(1).await?, 1, "grants when one TTL is over")
}

// ---- what else is restored -----------------------------------------------------------------------------------------

async fn st_18_newest_limit(lab: &Lab) -> Result<(), Failure> {
    let draft = adaptive(1, 100)?;
    let worker = lab.worker(&draft)?.starting_at(64);
    let token = worker.lease().await?;
    let older = worker.report(&[token], Outcome::Throttled).await?.limit;
    same(older.map(|limit| limit.value), Some(32), "the limit after a throttle")?;
    if lab.is_timed() {
        lab.advance(2_000).await;
    }
    let Some(older) = older else { return Ok(()) };
    let newer = Limit { value: 27, moved_at: Moment::from_micros(older.moved_at.micros() + 1) };
    let epoch = lose(lab, &worker).await?;
    let know = |limit| Restore { limit: Some(limit), ..restore(epoch) };
    let limit = |reply: tidegate_core::Head| reply.limit.map(|limit| limit.value);
    // Whoever comes first seeds it; each who knows of a newer one brings it.
    let fresh = lab.worker(&draft)?.starting_at(5);
    same(limit(fresh.acquire(1).await?.head), Some(5), "the limit before anybody restored it")?;
    for (known, expected, what) in [
        (older, 32, "the limit that the first knows"),
        (newer, 27, "a newer limit"),
        (older, 27, "the older one, when the newer is there"),
    ] {
        worker.take_up(&know(known), &[]).await?;
        same(limit(worker.acquire(1).await?.head), Some(expected), what)?;
    }
    let seeded = Limit { value: 90, moved_at: Moment::default() };
    worker.take_up(&know(seeded), &[]).await?;
    same(
        limit(worker.acquire(1).await?.head),
        Some(27),
        "a limit that was only seeded counts as older than any",
    )
}

async fn st_18_limit_bounds(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&adaptive(3, 20)?)?.starting_at(9);
    worker.acquire(1).await?;
    for (known, expected) in [(1_000_000, 20), (u32::MAX, 20), (0, 3), (1, 3), (7, 7)] {
        let now = worker.acquire(1).await?.head.now.unwrap_or_else(|| lab.now());
        let epoch = lose(lab, &worker).await?;
        let limit = Some(Limit { value: known, moved_at: now });
        worker.take_up(&Restore { limit, ..restore(epoch) }, &[]).await?;
        let head = worker.acquire(1).await?.head;
        same(
            head.limit.map(|limit| limit.value),
            Some(expected),
            format_args!("the limit restored from {known}"),
        )?;
    }
    Ok(())
}

async fn st_18_pause(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(2))?;
    worker.leases(1).await?;
    worker.pause(DAY).await?;
    let epoch = lose(lab, &worker).await?;
    worker.take_up(&Restore { paused_ms: DAY, ..restore(epoch) }, &[]).await?;
    let reply = worker.acquire(1).await?;
    same(reply.body.grants.len(), 0, "grants during a pause that was restored")?;
    ensure(reply.head.paused_ms > DAY / 2, format_args!("{} ms are left of a day", reply.head.paused_ms))?;
    worker.take_up(&Restore { paused_ms: 1_000, ..restore(epoch) }, &[]).await?;
    let left_ms = worker.acquire(1).await?.head.paused_ms;
    ensure(left_ms > DAY / 2, format_args!("a shorter pause that was restored left {left_ms} ms"))?;
    worker.resume().await?;
    same(worker.granted(3).await?, 2, "grants after it")
}

async fn st_18_excess(lab: &Lab) -> Result<(), Failure> {
    let (worker, other) =
        (lab.worker(&fixed(4).lease_ttl(ms(10_000)))?, lab.worker(&fixed(4).lease_ttl(ms(10_000)))?);
    let tokens = worker.leases(4).await?;
    let epoch = lose(lab, &worker).await?;
    same(other.granted(9).await?, 4, "grants after a loss")?;
    same(worker.take_up(&restore(epoch), &tokens).await?, vec![false; 4], "what is taken up beside them")?;
    lab.advance(10_000).await;
    same(worker.granted(9).await?, 4, "grants one TTL later")
}

async fn st_18_extra_burst(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(7, ms(DAY))))?;
    same(worker.granted(9).await?, 7, "grants of a window")?;
    lab.lose_all().await;
    same(worker.granted(9).await?, 7, "grants of the window that a loss adds")?;
    same(worker.granted(9).await?, 0, "grants after that")
}

async fn st_18_exchange(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(3))?;
    let tokens = worker.leases(3).await?;
    let epoch = lose(lab, &worker).await?;
    let exchange = Exchange {
        restore: Some(restore(epoch)),
        releases: releases(&tokens[2..], Outcome::Success),
        renewals: renewals(&tokens[..2]),
        acquires: vec![Acquire::Prefix(jobs(&[1, 1]))],
        ..Exchange::default()
    };
    let reply = worker.exchange(&exchange).await?;
    let live = reply.body.renewed.as_ref().map(|renewed| renewed.live.clone()).ok();
    same(live, Some(vec![true, true]), "what is taken up")?;
    let granted: usize = reply
        .body
        .acquired
        .iter()
        .filter_map(|part| part.as_ref().ok())
        .map(|part| part.grants().count())
        .sum();
    same(granted, 1, "grants beside two leases that were taken up")
}

// ---- a safe start --------------------------------------------------------------------------------------------------

async fn st_18_safe_leases(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(2).lease_ttl(ms(10_000)).safe_start(SafeStart::On))?;
    let denial = worker.denied(1).await?;
    ensure(denial.lease_blocked, "slots deny during a safe start")?;
    ensure(denial.hint_ms <= 10_000, format_args!("the hint is {} ms of a TTL of 10,000", denial.hint_ms))?;
    lab.advance(9_999).await;
    same(worker.granted(1).await?, 0, "grants a millisecond before one TTL is over")?;
    lab.advance(1).await;
    same(worker.granted(3).await?, 2, "grants when one TTL is over")
}

async fn st_18_safe_rules(lab: &Lab) -> Result<(), Failure> {
    let rules = [
        ("bucket", Rule::token_bucket(5, ms(60_000)), 12_000, 1),
        ("fixed", Rule::fixed_window(5, ms(60_000)), 60_000, 5),
        ("sliding", Rule::sliding_window(5, ms(60_000)), 60_000, 5),
    ];
    for (id, rule, hint_ms, granted) in rules {
        let worker = lab.worker_of(id, &ruled(rule).safe_start(SafeStart::On))?;
        same(worker.denied(1).await?.hint_ms, hint_ms, format_args!("{id}: the hint of the first job"))?;
        lab.advance(hint_ms - 1).await;
        same(worker.granted(1).await?, 0, format_args!("{id}: grants a millisecond before that"))?;
        lab.advance(1).await;
        same(worker.granted(9).await?, granted, format_args!("{id}: grants then"))?;
    }
    Ok(())
}

async fn st_18_safe_identities(lab: &Lab) -> Result<(), Failure> {
    let rule = Rule::fixed_window(5, ms(60_000)).scoped("tenant");
    let worker = lab.worker(&ruled(rule).safe_start(SafeStart::On))?;
    let ask = |tenant: &'static str| {
        let worker = worker.clone();
        async move {
            let request = scoped_jobs(None, vec![scoped_job(5, &[("tenant", tenant)])?]);
            Ok::<_, Failure>(worker.ask_scoped(&request).await?.body.grants.len())
        }
    };
    same(ask("a").await?, 0, "grants of an identity at first")?;
    lab.advance(30_000).await;
    same(ask("b").await?, 0, "grants of another one later")?;
    lab.advance(29_999).await;
    same((ask("a").await?, ask("c").await?), (0, 0), "grants a millisecond before the windows are over")?;
    lab.advance(1).await;
    same((ask("a").await?, ask("b").await?, ask("d").await?), (1, 1, 1), "grants then")
}

async fn st_18_safe_taken_up(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(2).lease_ttl(ms(10_000)).safe_start(SafeStart::On))?;
    worker.denied(1).await?;
    lab.advance(10_000).await;
    let tokens = worker.leases(2).await?;
    let epoch = lose(lab, &worker).await?;
    same(worker.granted(1).await?, 0, "grants after a loss")?;
    same(worker.take_up(&restore(epoch), &tokens[1..]).await?, vec![true], "what is taken up meanwhile")?;
    lab.advance(9_999).await;
    same(worker.renew(&tokens[1..]).await?, vec![true], "the renewal of what was taken up")?;
    same(worker.granted(1).await?, 0, "grants a millisecond before one TTL is over")?;
    lab.advance(1).await;
    same(worker.granted(3).await?, 1, "grants beside it when one TTL is over")
}

// ---- damage --------------------------------------------------------------------------------------------------------

async fn st_18_corrupt(lab: &Lab) -> Result<(), Failure> {
    let mut draft = ruled(Rule::fixed_window(5, ms(DAY)));
    if lab.has(Capability::Leases) {
        draft = draft.bound(tidegate_core::Bound::Fixed(3));
    }
    let worker = lab.worker(&draft)?;
    let untouched = lab.worker_of("trial2", &draft)?;
    let before = worker.acquire(2).await?.head.epoch;
    same(untouched.granted(1).await?, 1, "grants of another id")?;
    lab.advance(100).await;
    lab.damage(worker.id()).await;
    let answer = worker.ask(&jobs(&[1])).await;
    let error = refused(answer, "unavailable", "an acquire on damaged state")?;
    ensure(
        matches!(error, StoreError::Unavailable { cause: Cause::Corrupt, .. }),
        format_args!("the cause is that the state is corrupt: {error}"),
    )?;
    let reply = worker.acquire(9).await?;
    ensure(!reply.body.grants.is_empty(), "the damaged state was cleared, so that grants go on")?;
    if lab.has(Capability::Epoch) {
        ensure(reply.head.epoch != before, "cleared state is lost state, with another epoch")?;
    }
    ensure(untouched.spends(3).await?, "3 of the other id")?;
    ensure(!untouched.spends(2).await?, "the other id has kept its state")
}

async fn st_21_newer(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(5, ms(DAY))))?;
    let other = lab.worker_of("trial2", &ruled(Rule::fixed_window(5, ms(DAY))))?;
    same(worker.granted(2).await?, 2, "grants under the own layout")?;
    lab.plant_layout(worker.id(), 1_000_000).await;
    let error = refused(worker.ask(&jobs(&[1])).await, "newer_layout", "an acquire on a newer layout")?;
    ensure(
        matches!(error, StoreError::NewerLayout { found: 1_000_000, known } if known < 1_000_000),
        format_args!("the layout that was found, and the highest known one, are named: {error}"),
    )?;
    refused(worker.store.pause(worker.id(), ms(1_000)).await, "newer_layout", "a pause on a newer layout")?;
    refused(worker.store.resume(worker.id()).await, "newer_layout", "a resume on a newer layout")?;
    if lab.has(Capability::Scoped) {
        let request = scoped_jobs(None, vec![scoped_job(1, &[])?]);
        refused(worker.ask_scoped(&request).await, "newer_layout", "a scoped acquire on a newer layout")?;
    }
    if lab.has(Capability::Corrections) {
        let rule = super::lab::key(&format!("fixed_window:{DAY}"));
        let settlement = Settlement { rule, identity: None, granted_at: lab.now(), cost: 1, actual: 0 };
        let answer = worker.store.settle(&worker.member, &[settlement]).await;
        refused(answer, "newer_layout", "a settlement on a newer layout")?;
    }
    if lab.has(Capability::Exchange) {
        let exchange = Exchange { acquires: vec![Acquire::Prefix(jobs(&[1]))], ..Exchange::default() };
        refused(worker.exchange(&exchange).await, "newer_layout", "an exchange on a newer layout")?;
    }
    if lab.has(Capability::Operators) {
        refused(
            lab.operators()?.snapshot(worker.id()).await,
            "newer_layout",
            "a snapshot of a newer layout",
        )?;
        refused(lab.operators()?.forget(worker.id()).await, "newer_layout", "to forget a newer layout")?;
    }
    same(other.granted(9).await?, 5, "grants of another id")
}

async fn st_21_leases(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(2))?;
    let tokens = worker.leases(1).await?;
    lab.plant_layout(worker.id(), 1_000_000).await;
    let answer = worker.store.renew(&worker.member, None, &renewals(&tokens)).await;
    refused(answer, "newer_layout", "a renewal on a newer layout")?;
    let answer = worker.store.release(&worker.member, &releases(&tokens, Outcome::Success)).await;
    refused(answer, "newer_layout", "a release on a newer layout")?;
    let answer = worker.store.hand_over(&worker.member, &[HandOver { class: None }]).await;
    refused(answer, "newer_layout", "a hand-over on a newer layout")?;
    Ok(())
}
