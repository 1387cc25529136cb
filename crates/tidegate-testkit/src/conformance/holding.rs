//! Leases: slots, fences, tokens, time, and whose slice is whose.
//!
//! Spec: ST-9, ST-17, AS-4, AS-5, UN-3.

use std::collections::BTreeSet;

use tidegate_core::{Capability, Class, HandOver, Name, Outcome, Token, rule::Rule, share};

use super::{
    Failure, Need, ensure,
    lab::{
        DAY, Lab, Worker, adaptive, fixed, jobs, ms, name, policy, refused, releases, renewals, ruled, slots,
    },
    same, trials_of_rules,
};
use crate::subject::Hook;

const LEASES: Need = Need::Has(Capability::Leases);
const ADAPTIVE: Need = Need::Has(Capability::Adaptive);
const SCOPED: Need = Need::Has(Capability::Scoped);
const EPOCH: Need = Need::Has(Capability::Epoch);
const CLOCK: Need = Need::Hook(Hook::Clock);
const WIPE: Need = Need::Hook(Hook::Wipe);

trials_of_rules! {
    "ST-9 a grant takes the lowest free slot" [LEASES] => st_9_lowest_slot;
    "ST-9 a fence grows from grant to grant" [LEASES] => st_9_fences;
    "ST-9 a fence is the store's time, or one more than the last" [LEASES, CLOCK] => st_9_fence_is_time;
    "ST-9 a fence grows across a clock that is set back" [LEASES, CLOCK] => st_9_fence_set_back;
    "ST-9 a fence grows across lost state" [LEASES, WIPE] => st_9_fence_lost;
    "ST-9 a token is unique and names its epoch" [LEASES, EPOCH] => st_9_token;
    "ST-9 only a bound on concurrency gives leases" [LEASES] => st_9_unbounded;
    "ST-9 a release frees its own slot, once" [LEASES] => st_9_release_once;
    "ST-9 an unknown token changes nobody's slot" [LEASES] => st_9_unknown;
    "ST-9 a token of another id changes nothing" [LEASES] => st_9_other_id;
    "ST-9 a lease ends with its TTL to the millisecond" [LEASES, CLOCK] => st_9_ttl;
    "ST-9 a renewed lease lives one TTL more" [LEASES, CLOCK] => st_9_renewed;
    "ST-9 a renewal never moves an expiry backwards" [LEASES, CLOCK] => st_9_never_backwards;
    "ST-9 renew says of each lease whether it lives, and the TTL in force" [LEASES] => st_9_renew_says;
    "ST-9 an expired lease is neither renewed nor released" [LEASES, CLOCK] => st_9_expired;
    "ST-9 release and renew take up to 1,000 tokens" [LEASES] => st_9_how_many;
    "ST-17 what has ended is found whenever it is needed" [LEASES, CLOCK] => st_17_leases;
    "ST-17 ended leases count in no class" [LEASES, CLOCK] => st_17_classes;
    "ST-17 idle identities never change an answer" [SCOPED, CLOCK] => st_17_identities;
    "AS-4 no grant while live leases are at or above the limit" [LEASES, ADAPTIVE] => as_4_exact_bound;
    "AS-5 a reserved slice is never lent" [LEASES] => as_5_never_lent;
    "AS-5 with one reserved class that class may use all" [LEASES] => as_5_one_class;
    "AS-5 no class is locked out" [LEASES] => as_5_not_locked_out;
    "AS-5 every grant is as the formula says" [LEASES] => as_5_formula;
    "AS-5 a class that is not in the policy is refused" [LEASES] => as_5_unknown_class;
    "UN-3 leases granted locally are counted, above the limit too" [LEASES] => un_3_hand_over;
    "UN-3 leases handed over count in their classes" [LEASES] => un_3_classes;
    "UN-3 a hand-over needs a bound, and takes up to 1,000" [LEASES] => un_3_bounds;
}

async fn st_9_lowest_slot(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(150))?;
    let tokens = worker.leases(130).await?;
    slots(&tokens, &(0..130).collect::<Vec<_>>(), "slots of 130 grants")?;
    worker.release(&[tokens[70], tokens[3], tokens[129], tokens[64]]).await?;
    let again = worker.leases(5).await?;
    slots(&again, &[3, 64, 70, 129, 130], "slots after four were released")
}

async fn st_9_fences(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(5))?;
    let peer = lab.peer_of(&worker)?;
    let mut last = 0;
    for round in 0..20 {
        let tokens = if round % 2 == 0 { worker.leases(5).await? } else { peer.leases(5).await? };
        for token in &tokens {
            ensure(token.fence > last, format_args!("fence {} came after {last}", token.fence))?;
            last = token.fence;
        }
        worker.release(&tokens).await?;
    }
    Ok(())
}

async fn st_9_fence_is_time(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(9))?;
    worker.lease().await?;
    lab.advance(5).await;
    let micros = lab.now().micros();
    let fences: Vec<u64> = worker.leases(3).await?.iter().map(|token| token.fence).collect();
    same(fences, vec![micros, micros + 1, micros + 2], "fences of three grants at one moment")?;
    lab.set(lab.now().plus(std::time::Duration::from_micros(2))).await;
    let fence = worker.lease().await?.fence;
    same(fence, micros + 3, "a fence while the store's time is at the last")?;
    lab.set(lab.now().plus(std::time::Duration::from_micros(2))).await;
    let fence = worker.lease().await?.fence;
    same(fence, micros + 4, "a fence when the store's time is one past the last")
}

async fn st_9_fence_set_back(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(9))?;
    let first = worker.lease().await?;
    lab.step_back(3_600_000).await;
    let second = worker.lease().await?;
    same(second.fence, first.fence + 1, "the fence after the clock was set back an hour")
}

async fn st_9_fence_lost(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(9))?;
    let mut last = 0;
    for _ in 0..3 {
        for token in worker.leases(3).await? {
            ensure(token.fence > last, format_args!("fence {} came after {last}", token.fence))?;
            last = token.fence;
        }
        lab.lose_all().await;
    }
    Ok(())
}

async fn st_9_token(lab: &Lab) -> Result<(), Failure> {
    let (worker, other) = (lab.worker(&fixed(3))?, lab.worker_of("trial2", &fixed(3))?);
    let mut seen = BTreeSet::new();
    for _ in 0..10 {
        let reply = worker.acquire(3).await?;
        let epoch = reply.head.epoch.ok_or_else(|| Failure("an answer without its epoch".to_owned()))?;
        let tokens: Vec<Token> = reply.body.grants.iter().filter_map(|grant| grant.lease).collect();
        for token in &tokens {
            same(token.epoch, epoch, "the epoch of a token")?;
            ensure(seen.insert(*token), format_args!("the token {token} was given twice"))?;
        }
        worker.release(&tokens).await?;
    }
    same(other.lease().await?.slot, 0, "the first slot of another id")
}

async fn st_9_unbounded(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(9, ms(DAY))))?;
    let reply = worker.acquire(2).await?;
    ensure(reply.body.grants.iter().all(|grant| grant.lease.is_none()), "a rule alone gives no lease")?;
    same(reply.head.limit, None, "the limit of an id without a bound")
}

async fn st_9_release_once(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(2))?;
    let tokens = worker.leases(2).await?;
    worker.release(&[tokens[0], tokens[0]]).await?;
    let next = worker.lease().await?;
    same(next.slot, 0, "the slot that was released")?;
    // The old token names the same slot, and not this lease.
    worker.report(&[tokens[0]], Outcome::Success).await?;
    same(worker.granted(1).await?, 0, "grants after a lease was released a second time")?;
    same(worker.renew(&[tokens[0], tokens[1], next]).await?, vec![false, true, true], "who lives")
}

async fn st_9_unknown(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(2))?;
    let tokens = worker.leases(2).await?;
    let token = tokens[1];
    let wrong = [
        Token { fence: token.fence + 1, ..token },
        Token { fence: token.fence.saturating_sub(1), ..token },
        Token { fence: u64::MAX, ..token },
        Token { fence: 0, ..token },
        Token { slot: 0, ..token },
        Token { slot: 2, ..token },
        Token { slot: u32::MAX, ..token },
        Token { epoch: tidegate_core::Epoch(token.epoch.0 + 1), ..token },
        Token { epoch: tidegate_core::Epoch(0), ..token },
    ];
    worker.release(&wrong).await?;
    same(worker.renew(&wrong).await?, vec![false; wrong.len()], "renewals of tokens that were never given")?;
    same(worker.granted(1).await?, 0, "grants after a release of tokens that were never given")?;
    same(worker.renew(&tokens).await?, vec![true, true], "renewals of those that were")?;
    let unused = lab.worker_of("unused", &fixed(2))?;
    unused.release(&tokens).await?;
    same(unused.renew(&tokens).await?, vec![false, false], "renewals on an id that was never used")
}

async fn st_9_other_id(lab: &Lab) -> Result<(), Failure> {
    let (worker, other) = (lab.worker(&fixed(1))?, lab.worker_of("trial2", &fixed(1))?);
    let (token, theirs) = (worker.lease().await?, other.lease().await?);
    if token != theirs {
        other.release(&[token]).await?;
        same(other.renew(&[token]).await?, vec![false], "the renewal of a token of another id")?;
    }
    same(other.granted(1).await?, 0, "grants of the other id")?;
    worker.release(&[token]).await?;
    same(other.renew(&[theirs]).await?, vec![true], "the renewal of the other id's own token")?;
    same((worker.granted(1).await?, other.granted(1).await?), (1, 0), "grants of both")
}

async fn st_9_ttl(lab: &Lab) -> Result<(), Failure> {
    for (id, ttl_ms) in [("short", 100), ("middle", 30_000), ("long", 86_400_000)] {
        let worker = lab.worker_of(id, &fixed(1).lease_ttl(ms(ttl_ms)))?;
        worker.lease().await?;
        lab.advance(ttl_ms - 1).await;
        same(
            worker.granted(1).await?,
            0,
            format_args!("grants a millisecond before a TTL of {ttl_ms} ms is over"),
        )?;
        lab.advance(1).await;
        same(worker.granted(1).await?, 1, format_args!("grants when a TTL of {ttl_ms} ms is over"))?;
    }
    Ok(())
}

async fn st_9_renewed(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(1).lease_ttl(ms(10_000)))?;
    let token = worker.lease().await?;
    for _ in 0..5 {
        lab.advance(9_999).await;
        same(worker.renew(&[token]).await?, vec![true], "a renewal a millisecond before the end")?;
        same(worker.granted(1).await?, 0, "grants while the lease is renewed")?;
    }
    lab.advance(9_999).await;
    same(worker.granted(1).await?, 0, "grants a millisecond before the end of the last renewal")?;
    lab.advance(1).await;
    same(worker.lease().await?.slot, 0, "the slot of a lease that was no longer renewed")
}

async fn st_9_never_backwards(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(1).lease_ttl(ms(60_000)))?;
    let shorter = lab.worker(&fixed(1).lease_ttl(ms(1_000)).revision(1))?;
    let token = worker.lease().await?;
    same(shorter.granted(1).await?, 0, "grants under a revision with a shorter TTL")?;
    same(shorter.renew(&[token]).await?, vec![true], "a renewal under the shorter TTL")?;
    lab.advance(59_999).await;
    same(shorter.granted(1).await?, 0, "grants a millisecond before the end that was given first")?;
    same(shorter.renew(&[token]).await?, vec![true], "a renewal then, which is for the shorter TTL")?;
    lab.advance(999).await;
    same(shorter.granted(1).await?, 0, "grants a millisecond before the end of that")?;
    lab.advance(1).await;
    same(shorter.granted(1).await?, 1, "grants at the end of it")
}

async fn st_9_renew_says(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(4).lease_ttl(ms(45_000)))?;
    let tokens = worker.leases(4).await?;
    worker.release(&tokens[1..3]).await?;
    let reply = worker.store.renew(&worker.member, None, &renewals(&tokens)).await?;
    same(reply.body.live, vec![true, false, false, true], "who lives of four, two of which were released")?;
    ensure(reply.head.lease_ttl_ms.is_none_or(|ttl| ttl == 45_000), "a renewal says the TTL in force")?;
    same(worker.renew(&[]).await?, vec![], "answers to no renewal")
}

async fn st_9_expired(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(1).lease_ttl(ms(1_000)))?;
    let old = worker.lease().await?;
    lab.advance(1_000).await;
    same(worker.renew(&[old]).await?, vec![false], "the renewal of a lease at its end")?;
    let new = worker.lease().await?;
    worker.release(&[old]).await?;
    same(worker.granted(1).await?, 0, "grants after a release of a lease that had ended")?;
    same(worker.renew(&[old, new]).await?, vec![false, true], "who lives")
}

async fn st_9_how_many(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(1_001))?;
    let tokens = worker.leases(1_001).await?;
    let too_many = worker.store.release(&worker.member, &releases(&tokens, Outcome::Success)).await;
    refused(too_many, "invalid_options", "a release of 1,001")?;
    same(worker.granted(1).await?, 0, "grants after a release that was refused")?;
    refused(
        worker.store.renew(&worker.member, None, &renewals(&tokens)).await,
        "invalid_options",
        "a renewal of 1,001",
    )?;
    same(worker.renew(&tokens[..1_000]).await?, vec![true; 1_000], "renewals of 1,000")?;
    worker.release(&tokens[1..]).await?;
    same(worker.leases(1_000).await?.len(), 1_000, "grants after a release of 1,000")?;
    same(worker.granted(1).await?, 0, "and no more")
}

// ---- sweeping ------------------------------------------------------------------------------------------------------

async fn st_17_leases(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(3_000).lease_ttl(ms(1_000)))?;
    worker.leases(3_000).await?;
    same(worker.granted(1).await?, 0, "grants above the limit")?;
    lab.advance(999).await;
    same(worker.granted(1).await?, 0, "grants a millisecond before 3,000 leases end")?;
    lab.advance(1).await;
    for call in 0..5 {
        same(
            worker.granted(512).await?,
            512,
            format_args!("grants of call {call} after 3,000 leases have ended"),
        )?;
    }
    same(worker.granted(512).await?, 440, "grants of what is left of 3,000")
}

async fn st_17_classes(lab: &Lab) -> Result<(), Failure> {
    let draft =
        fixed(400).lease_ttl(ms(1_000)).class(Class::reserved("a", 0.5)).class(Class::unreserved("b"));
    let worker = lab.worker(&draft)?;
    let (a, b) = (name("a")?, name("b")?);
    same(worker.granted_as(Some(&b), 512).await?, 200, "grants of an unreserved class")?;
    lab.advance(500).await;
    same(worker.granted_as(Some(&a), 512).await?, 200, "grants of a reserved class")?;
    lab.advance(500).await;
    same(
        worker.granted_as(Some(&a), 512).await?,
        200,
        "grants when the leases of the other class have ended",
    )?;
    same(worker.granted_as(Some(&b), 512).await?, 0, "grants of the other class, with none left")?;
    lab.advance(500).await;
    same(worker.granted_as(Some(&b), 512).await?, 200, "grants when half of the first class have ended")
}

async fn st_17_identities(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(1, ms(1_000)).scoped("tenant")))?;
    let identities: Vec<String> = (0..700).map(|number| format!("tenant {number}")).collect();
    for round in 0..3 {
        for (expected, what) in [(128, "at first"), (0, "again")] {
            for batch in identities.chunks(128) {
                let granted = super::scoped::granted_to(&worker, "tenant", batch).await?;
                let expected = if expected == 0 { 0 } else { batch.len() };
                same(granted, expected, format_args!("grants {what} in round {round}"))?;
            }
        }
        lab.advance(999).await;
        same(
            super::scoped::granted_to(&worker, "tenant", &identities[..128]).await?,
            0,
            "grants a millisecond before the windows are over",
        )?;
        lab.advance(1).await;
    }
    Ok(())
}

// ---- the limit, and slices of it -----------------------------------------------------------------------------------

async fn as_4_exact_bound(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&adaptive(1, 50)?)?.starting_at(8);
    let tokens = worker.leases(8).await?;
    same(worker.granted(1).await?, 0, "grants at the limit")?;
    let head = worker.report(&tokens[..1], Outcome::Throttled).await?;
    same(head.limit.map(|limit| limit.value), Some(4), "the limit after a throttle")?;
    same(
        worker.renew(&tokens[1..]).await?,
        vec![true; 7],
        "holders above the new limit, who are not preempted",
    )?;
    for held in (4..7).rev() {
        same(worker.granted(1).await?, 0, format_args!("grants with {} held under a limit of 4", held + 1))?;
        worker.release(&tokens[held..=held]).await?;
    }
    same(worker.granted(1).await?, 0, "grants with 4 held under a limit of 4")?;
    worker.release(&tokens[1..2]).await?;
    same(worker.granted(2).await?, 1, "grants with 3 held")
}

async fn as_5_never_lent(lab: &Lab) -> Result<(), Failure> {
    let draft = fixed(20)
        .class(Class::reserved("a", 0.25))
        .class(Class::reserved("b", 0.25))
        .class(Class::unreserved("c"));
    let worker = lab.worker(&draft)?;
    let (a, b, c) = (name("a")?, name("b")?, name("c")?);
    same(worker.granted_as(Some(&b), 20).await?, 15, "grants of b, which leaves the slice of a")?;
    same(worker.granted_as(Some(&c), 20).await?, 0, "grants of an unreserved class")?;
    same(worker.granted_as(None, 20).await?, 0, "grants without a class")?;
    same(worker.granted_as(Some(&a), 20).await?, 5, "grants of a, whose slice is whole")?;
    same(worker.granted_as(Some(&a), 1).await?, 0, "grants above the limit")
}

async fn as_5_one_class(lab: &Lab) -> Result<(), Failure> {
    let draft = fixed(10).class(Class::reserved("a", 0.3));
    let worker = lab.worker(&draft)?;
    same(worker.granted_as(Some(&name("a")?), 20).await?, 10, "grants of the only reserved class")?;
    let other = lab.worker_of("trial2", &draft)?;
    same(other.granted_as(None, 20).await?, 7, "grants without a class beside it")?;
    same(other.granted_as(Some(&name("a")?), 20).await?, 3, "grants of its slice")
}

async fn as_5_not_locked_out(lab: &Lab) -> Result<(), Failure> {
    // Slices of 1, 1 and 1 out of 2: nobody has room by the formula.
    let draft = fixed(2)
        .class(Class::reserved("a", 0.3))
        .class(Class::reserved("b", 0.3))
        .class(Class::reserved("c", 0.3));
    let worker = lab.worker(&draft)?;
    same(worker.granted_as(None, 2).await?, 1, "grants without a class, which may hold one")?;
    same(worker.granted_as(None, 1).await?, 0, "a second one")?;
    same(worker.granted_as(Some(&name("b")?), 2).await?, 1, "grants of a class")?;
    same(worker.granted_as(Some(&name("c")?), 1).await?, 0, "grants above the limit")
}

/// Random arrivals and departures of four tiers; each answer is what `share::room` says.
async fn as_5_formula(lab: &Lab) -> Result<(), Failure> {
    let mut random = fastrand::Rng::with_seed(5);
    for (id, limit) in [("wide", 23), ("narrow", 4), ("one", 1)] {
        let draft = fixed(limit)
            .class(Class::reserved("a", 0.2))
            .class(Class::reserved("b", 0.35))
            .class(Class::unreserved("c"));
        let worker = lab.worker_of(id, &draft)?;
        let classes = [Some(name("a")?), Some(name("b")?), Some(name("c")?), None];
        let mut held: [Vec<Token>; 4] = Default::default();
        for step in 0..150 {
            let tier = random.usize(..4);
            if random.bool() {
                let wanted = random.usize(1..6);
                let counts = held.each_ref().map(|tokens| u32::try_from(tokens.len()).unwrap_or(u32::MAX));
                let room = share::room(limit, worker.member.policy.shares().zip(counts), tier);
                let expected = wanted.min(room as usize);
                let reply = acquire_as(&worker, classes[tier].as_ref(), wanted).await?;
                same(
                    reply.len(),
                    expected,
                    format_args!("grants of tier {tier} in step {step} under {limit}, with {counts:?} held"),
                )?;
                held[tier].extend(reply);
            } else if !held[tier].is_empty() {
                let released = held[tier].swap_remove(random.usize(..held[tier].len()));
                worker.release(&[released]).await?;
            }
        }
    }
    Ok(())
}

async fn acquire_as(worker: &Worker, class: Option<&Name>, jobs: usize) -> Result<Vec<Token>, Failure> {
    let request = tidegate_core::AcquireRequest { class: class.cloned(), ..super::lab::jobs_of_one(jobs) };
    Ok(worker.ask(&request).await?.body.grants.iter().filter_map(|grant| grant.lease).collect())
}

async fn as_5_unknown_class(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(4).class(Class::reserved("a", 0.5)))?;
    same(worker.granted_as(Some(&name("a")?), 1).await?, 1, "grants of a class of the policy")?;
    let before = worker.traces().await?;
    let request = tidegate_core::AcquireRequest { class: Some(name("z")?), ..jobs(&[1]) };
    refused(worker.ask(&request).await, "invalid_options", "a class that is not in the policy")?;
    same(worker.traces().await?, before, "the id after a request that was refused")
}

// ---- hand-over -----------------------------------------------------------------------------------------------------

fn hand_overs(classes: &[Option<&Name>]) -> Vec<HandOver> {
    classes.iter().map(|class| HandOver { class: class.cloned() }).collect()
}

async fn un_3_hand_over(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(3))?;
    let own = worker.leases(2).await?;
    let reply = worker.store.hand_over(&worker.member, &hand_overs(&[None; 4])).await?;
    slots(&reply.body, &[2, 3, 4, 5], "slots of four leases that are handed over above a limit of 3")?;
    ensure(reply.head.held.is_none_or(|held| held == 6), format_args!("{:?} held of 6", reply.head.held))?;
    let live = worker.renew(&reply.body).await?;
    same(live, vec![true; 4], "renewals of what was handed over")?;
    same(worker.granted(1).await?, 0, "grants with 6 held under a limit of 3")?;
    worker.release(&own).await?;
    worker.release(&reply.body[..1]).await?;
    same(worker.granted(1).await?, 0, "grants with 3 held")?;
    worker.release(&reply.body[1..2]).await?;
    same(worker.granted(2).await?, 1, "grants with 2 held")?;
    let fresh = lab.worker_of("fresh", &fixed(1))?;
    let reply = fresh.store.hand_over(&fresh.member, &hand_overs(&[None; 2])).await?;
    slots(&reply.body, &[0, 1], "slots of two leases that are handed over to an id without state")?;
    same(fresh.granted(1).await?, 0, "grants above its limit")
}

async fn un_3_classes(lab: &Lab) -> Result<(), Failure> {
    let draft = fixed(10).class(Class::reserved("a", 0.5));
    let worker = lab.worker(&draft)?;
    let a = name("a")?;
    worker.store.hand_over(&worker.member, &hand_overs(&[Some(&a), Some(&a), None])).await?;
    // 3 of the slice of 5 are still to be left, and 3 are held.
    same(worker.granted_as(None, 10).await?, 4, "grants without a class")?;
    same(worker.granted_as(Some(&a), 10).await?, 3, "grants of the class")
}

async fn un_3_bounds(lab: &Lab) -> Result<(), Failure> {
    let free = lab.worker_of("free", &policy())?;
    let answer = free.store.hand_over(&free.member, &hand_overs(&[None])).await;
    refused(answer, "invalid_options", "a hand-over without a bound on concurrency")?;
    let worker = lab.worker(&fixed(3))?;
    let answer = worker.store.hand_over(&worker.member, &hand_overs(&[None; 1_001])).await;
    refused(answer, "invalid_options", "a hand-over of 1,001")?;
    same(worker.granted(9).await?, 3, "grants after a hand-over that was refused")?;
    let other = lab.worker(&fixed(4))?;
    let answer = other.store.hand_over(&other.member, &hand_overs(&[None])).await;
    refused(answer, "invalid_options", "a hand-over under another policy")?;
    Ok(())
}
