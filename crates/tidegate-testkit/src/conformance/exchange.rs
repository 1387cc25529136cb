//! All of a driver's work in one call.
//!
//! Spec: ST-15.

use tidegate_core::{
    Acquire, AcquireRequest, Acquired, Capability, Class, Exchange, ExchangeReply, HandOver, Outcome, Reply,
    Sequence, StoreError, Token, rule::Rule, time::Moment,
};

use super::{
    Failure, Need, ensure,
    lab::{
        DAY, Lab, Worker, adaptive, fixed, jobs, jobs_of_one, key, ms, name, policy, refused, releases,
        renewals, ruled, scoped_job, scoped_jobs,
    },
    same, trials_of_rules,
};
use crate::subject::Hook;

const EXCHANGE: Need = Need::Has(Capability::Exchange);
const LEASES: Need = Need::Has(Capability::Leases);
const ADAPTIVE: Need = Need::Has(Capability::Adaptive);
const SCOPED: Need = Need::Has(Capability::Scoped);
const CORRECTIONS: Need = Need::Has(Capability::Corrections);
const CLOCK: Need = Need::Hook(Hook::Clock);

trials_of_rules! {
    "ST-15 an exchange acquires" => st_15_acquires;
    "ST-15 slots freed by an exchange serve its own acquires" [LEASES] => st_15_own_slots;
    "ST-15 settlements come before the acquires" [CORRECTIONS] => st_15_settles_first;
    "ST-15 releases, renewals and hand-overs go together" [LEASES] => st_15_together;
    "ST-15 scoped jobs in an exchange" [SCOPED] => st_15_scoped;
    "ST-15 a refused acquire undoes no release" [LEASES] => st_15_refused_acquire;
    "ST-15 each part answers for itself" [LEASES, CORRECTIONS] => st_15_parts;
    "ST-15 one acquire of each class" [LEASES] => st_15_classes;
    "ST-15 a second acquire of a class is refused" [EXCHANGE, LEASES] => st_15_twice_a_class;
    "ST-15 an empty exchange only looks" [EXCHANGE] => st_15_empty;
    "ST-15 a number is carried out once, and a repeat answered alike" [EXCHANGE] => st_15_repeat;
    "ST-15 a repeated grant is the same lease" [EXCHANGE, LEASES] => st_15_repeated_grant;
    "ST-15 a repeated release moves the limit once" [EXCHANGE, LEASES, ADAPTIVE] => st_15_repeated_release;
    "ST-15 a repeat through another handle is answered alike" [EXCHANGE] => st_15_repeat_elsewhere;
    "ST-15 a refused part is refused alike when repeated" [EXCHANGE, LEASES] => st_15_repeated_refusal;
    "ST-15 a lower number is refused" [EXCHANGE] => st_15_lower;
    "ST-15 each driver has numbers of its own, for each id" [EXCHANGE] => st_15_drivers;
    "ST-15 an exchange past its time is refused" [EXCHANGE, CLOCK] => st_15_not_after;
    "ST-15 an answer is kept for a minute, or as long as the TTL" [EXCHANGE, CLOCK] => st_15_kept;
}

fn acquiring(request: AcquireRequest) -> Exchange {
    Exchange { acquires: vec![Acquire::Prefix(request)], ..Exchange::default() }
}

fn numbered(number: u64, exchange: Exchange) -> Exchange {
    Exchange { sequence: Some(Sequence { number, not_after: None }), ..exchange }
}

fn until(number: u64, not_after: Moment, exchange: Exchange) -> Exchange {
    Exchange { sequence: Some(Sequence { number, not_after: Some(not_after) }), ..exchange }
}

/// How many jobs were granted in all.
fn granted(reply: &Reply<ExchangeReply>) -> usize {
    reply.body.acquired.iter().filter_map(|part| part.as_ref().ok()).map(|part| part.grants().count()).sum()
}

fn tokens(reply: &Reply<ExchangeReply>) -> Vec<Token> {
    let parts = reply.body.acquired.iter().filter_map(|part| part.as_ref().ok());
    parts.flat_map(Acquired::grants).filter_map(|(_, grant)| grant.lease).collect()
}

/// Fails unless a part was refused with this code.
fn part_refused<T>(part: &Result<T, StoreError>, code: &str, what: &str) -> Result<(), Failure> {
    let got = part.as_ref().err().map(StoreError::code);
    same(got, Some(code), format_args!("the error of {what}"))
}

async fn st_15_acquires(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(5, ms(DAY))))?;
    let reply = worker.exchange(&acquiring(jobs_of_one(3))).await?;
    same(granted(&reply), 3, "grants of an exchange")?;
    let reply = worker.exchange(&acquiring(jobs_of_one(3))).await?;
    same(granted(&reply), 2, "grants of what is left")?;
    same(worker.granted(1).await?, 0, "grants after that")?;
    worker.pause(DAY).await?;
    let reply = worker.exchange(&acquiring(jobs(&[0]))).await?;
    same(granted(&reply), 0, "grants during a pause")?;
    ensure(reply.head.paused_ms > 0, "the rest of the pause is in the result")
}

async fn st_15_own_slots(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(2))?;
    let held = worker.leases(2).await?;
    let exchange = Exchange { releases: releases(&held[..1], Outcome::Success), ..acquiring(jobs_of_one(2)) };
    let reply = worker.exchange(&exchange).await?;
    let new = tokens(&reply);
    same(new.iter().map(|token| token.slot).collect(), vec![0], "slots that an exchange got")?;
    ensure(reply.head.held.is_none_or(|held| held == 2), "two slots are held after it")?;
    same(worker.renew(&[held[0], held[1], new[0]]).await?, vec![false, true, true], "who lives")
}

async fn st_15_settles_first(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(10, ms(DAY)).named("a")))?;
    let reply = worker.ask(&jobs(&[10])).await?;
    let granted_at = reply.head.now.unwrap_or_else(|| lab.now());
    let settlement =
        tidegate_core::Settlement { rule: key("named:a"), identity: None, granted_at, cost: 10, actual: 4 };
    let exchange = Exchange { settlements: vec![settlement], ..acquiring(jobs(&[5, 2])) };
    let reply = worker.exchange(&exchange).await?;
    same(granted(&reply), 1, "grants of 5 and 2 out of the 6 that the same exchange gave back")?;
    same(reply.body.settled.map(|settled| settled.len()).ok(), Some(1), "answers to one settlement")
}

async fn st_15_together(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(4))?;
    let held = worker.leases(4).await?;
    let exchange = Exchange {
        releases: releases(&held[..2], Outcome::Success),
        renewals: renewals(&held[1..]),
        hand_overs: vec![HandOver { class: None }],
        ..acquiring(jobs_of_one(4))
    };
    let reply = worker.exchange(&exchange).await?;
    same(reply.body.released.clone().ok(), Some(()), "the answer to the releases")?;
    let live = reply.body.renewed.as_ref().map(|renewed| renewed.live.clone()).ok();
    same(live, Some(vec![false, true, true]), "the answer to the renewals, which come after the releases")?;
    let handed = reply.body.handed_over.clone().unwrap_or_default();
    same(handed.iter().map(|token| token.slot).collect(), vec![0], "the slot of the hand-over")?;
    let new = tokens(&reply);
    same(new.iter().map(|token| token.slot).collect(), vec![1], "the slot that was left for the acquire")
}

async fn st_15_scoped(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(2, ms(DAY)).scoped("tenant")))?;
    let job = |tenant| scoped_job(1, &[("tenant", tenant)]);
    let request = scoped_jobs(None, vec![job("a")?, job("a")?, job("a")?, job("b")?]);
    let exchange = Exchange { acquires: vec![Acquire::Scoped(request)], ..Exchange::default() };
    same(granted(&worker.exchange(&exchange).await?), 3, "grants of an exchange")?;
    same(granted(&worker.exchange(&exchange).await?), 1, "grants of what is left")
}

async fn st_15_refused_acquire(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(2).rule(Rule::fixed_window(9, ms(DAY))))?;
    let held = worker.leases(2).await?;
    let wrong = [
        ("a cost above the limit", "cost_exceeds_limit", jobs(&[1, 10])),
        ("no job", "invalid_options", jobs(&[])),
        (
            "a class that is not in the policy",
            "invalid_options",
            AcquireRequest { class: Some(name("z")?), ..jobs_of_one(1) },
        ),
    ];
    for (index, (what, code, request)) in wrong.into_iter().enumerate() {
        let given_back = held.get(index).map_or(&[] as &[Token], std::slice::from_ref);
        let exchange = Exchange { releases: releases(given_back, Outcome::Success), ..acquiring(request) };
        let reply = worker.exchange(&exchange).await?;
        same(reply.body.released.clone().ok(), Some(()), "the answer to the release")?;
        same(reply.body.acquired.len(), 1, "answers to one acquire")?;
        for part in &reply.body.acquired {
            part_refused(part, code, what)?;
        }
    }
    let other = lab.worker(&fixed(3))?;
    let reply = other.exchange(&acquiring(jobs_of_one(1))).await?;
    for part in &reply.body.acquired {
        part_refused(part, "invalid_options", "another policy")?;
    }
    same(worker.granted(9).await?, 2, "grants of both slots that were given back")
}

async fn st_15_parts(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(3).rule(Rule::fixed_window(9, ms(DAY)).named("a")))?;
    let held = worker.leases(2).await?;
    let at = worker.acquire(1).await?.head.now.unwrap_or_else(|| lab.now());
    let settlement = |actual| tidegate_core::Settlement {
        rule: key("named:a"),
        identity: None,
        granted_at: at,
        cost: 1,
        actual,
    };
    let exchange = Exchange {
        releases: releases(&held[..1], Outcome::Success),
        settlements: vec![settlement(0), settlement(u64::MAX)],
        renewals: vec![renewals(&held[1..]).remove(0); 1_001],
        ..acquiring(jobs_of_one(3))
    };
    let reply = worker.exchange(&exchange).await?;
    same(reply.body.released.clone().ok(), Some(()), "the answer to the releases")?;
    part_refused(&reply.body.settled, "invalid_options", "settlements of too much")?;
    part_refused(&reply.body.renewed, "invalid_options", "1,001 renewals")?;
    same(granted(&reply), 1, "grants of the slot that was freed")?;
    // Four were granted of 9, and nothing was given back.
    worker.release(&held).await?;
    worker.release(&tokens(&reply)).await?;
    ensure(!worker.denied(6).await?.lease_blocked, "6 of 5 that are left")?;
    ensure(worker.spends(5).await?, "5 of 5 that are left")
}

async fn st_15_classes(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(6).class(Class::reserved("a", 0.5)).class(Class::unreserved("b")))?;
    let of = |class: Option<&str>| -> Result<Acquire, Failure> {
        let class = class.map(name).transpose()?;
        Ok(Acquire::Prefix(AcquireRequest { class, ..jobs_of_one(2) }))
    };
    let exchange =
        Exchange { acquires: vec![of(Some("b"))?, of(Some("a"))?, of(None)?], ..Exchange::default() };
    let reply = worker.exchange(&exchange).await?;
    let grants: Vec<usize> = reply
        .body
        .acquired
        .iter()
        .map(|part| part.as_ref().map_or(usize::MAX, |part| part.grants().count()))
        .collect();
    same(grants, vec![2, 2, 1], "grants of each class, in the order of the exchange")
}

async fn st_15_twice_a_class(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(6).class(Class::unreserved("b")))?;
    let none = || Acquire::Prefix(jobs_of_one(1));
    let class = || -> Result<Acquire, Failure> {
        Ok(Acquire::Prefix(AcquireRequest { class: Some(name("b")?), ..jobs_of_one(1) }))
    };
    let exchange = Exchange { acquires: vec![none(), class()?, none(), class()?], ..Exchange::default() };
    let reply = worker.exchange(&exchange).await?;
    let codes: Vec<_> =
        reply.body.acquired.iter().map(|part| part.as_ref().err().map(StoreError::code)).collect();
    let refused = Some("invalid_options");
    same(codes, vec![None, None, refused, refused], "which acquires were refused")?;
    same(worker.granted(9).await?, 4, "grants of what two acquires have left")
}

async fn st_15_empty(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(5, ms(DAY))))?;
    same(worker.granted(2).await?, 2, "grants of the first worker")?;
    let other = lab.worker(&ruled(Rule::fixed_window(6, ms(DAY))))?;
    let reply = other.exchange(&Exchange::default()).await?;
    same(reply.body.acquired.len(), 0, "answers to no acquire")?;
    ensure(reply.head.revision.is_none_or(|revision| revision == 0), "the pinned revision is in the answer")?;
    same(worker.granted(9).await?, 3, "grants after it")
}

// ---- numbers -------------------------------------------------------------------------------------------------------

async fn st_15_repeat(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(10, ms(DAY))))?;
    let first = numbered(1, acquiring(jobs_of_one(3)));
    let reply = worker.exchange(&first).await?;
    same(granted(&reply), 3, "grants of an exchange")?;
    for _ in 0..3 {
        same(worker.exchange(&first).await?.body, reply.body.clone(), "the answer to a repeat")?;
    }
    // A number is carried out once, whatever else comes under it.
    let other = numbered(1, acquiring(jobs_of_one(5)));
    same(
        worker.store.exchange(&worker.member, &other).await?.body,
        reply.body,
        "the answer to the same number",
    )?;
    let second = numbered(2, acquiring(jobs_of_one(3)));
    same(granted(&worker.exchange(&second).await?), 3, "grants of the next number")?;
    same(worker.granted(9).await?, 4, "grants of what two exchanges have left")?;
    // Numbers need not be without gaps.
    let later = numbered(1_000, acquiring(jobs(&[0])));
    same(granted(&worker.exchange(&later).await?), 1, "grants of a much higher number")
}

async fn st_15_repeated_grant(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(3))?;
    let held = worker.leases(1).await?;
    let exchange = numbered(
        7,
        Exchange {
            releases: releases(&held, Outcome::Success),
            hand_overs: vec![HandOver { class: None }],
            ..acquiring(jobs_of_one(1))
        },
    );
    let reply = worker.exchange(&exchange).await?;
    let again = worker.exchange(&exchange).await?;
    same(again.body, reply.body.clone(), "the answer to a repeat")?;
    same(worker.granted(3).await?, 1, "grants beside one lease and one hand-over, each counted once")?;
    // What the first one granted may have been given back since: a repeat says what it came to then.
    worker.release(&tokens(&reply)).await?;
    same(worker.exchange(&exchange).await?.body, reply.body, "the answer to a repeat after a release")?;
    same(worker.granted(3).await?, 1, "grants of the slot that was given back")
}

async fn st_15_repeated_release(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&adaptive(1, 100)?)?.starting_at(64);
    let held = worker.leases(2).await?;
    let exchange =
        numbered(1, Exchange { releases: releases(&held, Outcome::Throttled), ..Exchange::default() });
    worker.exchange(&exchange).await?;
    if lab.is_timed() {
        lab.advance(2_000).await;
    }
    worker.exchange(&exchange).await?;
    let head = worker.exchange(&Exchange::default()).await?.head;
    same(head.limit.map(|limit| limit.value), Some(32), "the limit after a throttle that was reported twice")
}

async fn st_15_repeat_elsewhere(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(10, ms(DAY))))?;
    let peer = Worker { member: worker.member.clone(), ..lab.peer_of(&worker)? };
    let exchange = numbered(1, acquiring(jobs_of_one(3)));
    let reply = worker.exchange(&exchange).await?;
    same(peer.exchange(&exchange).await?.body, reply.body, "the answer to a repeat through another handle")?;
    same(worker.granted(20).await?, 7, "grants of what is left")
}

async fn st_15_repeated_refusal(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(2).rule(Rule::fixed_window(9, ms(DAY))))?;
    let held = worker.leases(2).await?;
    let exchange =
        numbered(1, Exchange { releases: releases(&held[..1], Outcome::Success), ..acquiring(jobs(&[10])) });
    let reply = worker.exchange(&exchange).await?;
    for part in &reply.body.acquired {
        part_refused(part, "cost_exceeds_limit", "a cost above the limit")?;
    }
    same(worker.exchange(&exchange).await?.body, reply.body, "the answer to a repeat")
}

async fn st_15_lower(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(10, ms(DAY))))?;
    same(granted(&worker.exchange(&numbered(5, acquiring(jobs_of_one(1)))).await?), 1, "grants of number 5")?;
    for number in [4, 1, 0] {
        let answer = worker.exchange(&numbered(number, acquiring(jobs_of_one(1)))).await;
        let error = refused(answer, "too_late", format_args!("number {number} after 5"))?;
        ensure(
            matches!(error, StoreError::TooLate { number: own, last: 5 } if own == number),
            format_args!("number {number} and the last one, 5, are named: {error}"),
        )?;
    }
    same(worker.granted(20).await?, 9, "grants that the refused exchanges have left")
}

async fn st_15_drivers(lab: &Lab) -> Result<(), Failure> {
    let draft = ruled(Rule::fixed_window(10, ms(DAY)));
    let (worker, other) = (lab.worker(&draft)?, lab.worker(&draft)?);
    let mut elsewhere = lab.worker_of("trial2", &draft)?;
    elsewhere.member.driver = worker.member.driver;
    let exchange = |jobs| numbered(5, acquiring(jobs_of_one(jobs)));
    same(granted(&worker.exchange(&exchange(2)).await?), 2, "grants of the first driver")?;
    same(granted(&other.exchange(&exchange(3)).await?), 3, "grants of another driver under the same number")?;
    same(granted(&elsewhere.exchange(&exchange(4)).await?), 4, "grants of the first driver on another id")?;
    let lower = numbered(1, acquiring(jobs_of_one(1)));
    let third = lab.worker(&draft)?;
    same(granted(&third.exchange(&lower).await?), 1, "grants of a driver that begins to count later")?;
    same(worker.granted(20).await?, 4, "grants of what three drivers have left")
}

async fn st_15_not_after(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(10, ms(DAY))))?;
    let one = || acquiring(jobs_of_one(1));
    let moment = lab.now().plus(ms(500));
    lab.set(moment).await;
    same(granted(&worker.exchange(&until(1, moment, one())).await?), 1, "grants at the last moment")?;
    lab.set(moment.plus(std::time::Duration::from_micros(1))).await;
    let answer = worker.exchange(&until(2, moment, one())).await;
    refused(answer, "too_late", "an exchange a microsecond past its time")?;
    same(worker.exchange(&until(1, moment, one())).await?.head.now, Some(moment), "a repeat past its time")?;
    // A refused number was not carried out, and can come again with more time.
    let later = lab.now().plus(ms(1_000));
    same(
        granted(&worker.exchange(&until(2, later, one())).await?),
        1,
        "grants of the same number with more time",
    )?;
    same(worker.granted(20).await?, 8, "grants of what two exchanges have left")
}

async fn st_15_kept(lab: &Lab) -> Result<(), Failure> {
    for (id, ttl_ms, kept_ms) in [("short", 30_000, 60_000), ("long", 100_000, 100_000)] {
        let draft = policy().rule(Rule::fixed_window(10, ms(DAY))).lease_ttl(ms(ttl_ms));
        let worker = lab.worker_of(id, &draft)?;
        let exchange = numbered(3, acquiring(jobs_of_one(2)));
        let reply = worker.exchange(&exchange).await?;
        lab.advance(kept_ms - 1).await;
        let again = worker.exchange(&exchange).await?;
        same(again.body, reply.body, format_args!("the answer to a repeat {} ms later", kept_ms - 1))?;
        let answer = worker.exchange(&numbered(2, acquiring(jobs_of_one(2)))).await;
        refused(answer, "too_late", "a lower number so long after")?;
        same(worker.granted(20).await?, 8, "grants of what is left")?;
    }
    Ok(())
}
