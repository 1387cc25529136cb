//! The checker itself: every kind of violation is found in a history made by hand, every legal history passes, and random
//! ones are judged as by a checker that looks at everything.

#![allow(clippy::unwrap_used)] // helpers of tests may say what they expect, too

use std::{collections::BTreeSet, time::Duration};

use fastrand::Rng;
use tidegate::Rule;
use tidegate_fleet::history::{
    Admission, Bound, Check, Credit, Findings, Held, History, Lease, Peaks, Rate, Refusal, Unseen, Use,
    Violation,
};

const SECOND: Duration = Duration::from_secs(1);
/// The TTL of all leases here, in microseconds.
const TTL: u64 = 1_000_000;

fn held(slot: u32, fence: u64, asked: u64, granted: u64, released: u64) -> Held {
    Held {
        worker: 0,
        lease: Lease { epoch: 1, slot, fence },
        asked,
        granted,
        deadline: asked + TTL,
        kept: granted,
        releasing: Some(released),
        freed: Some(released + 5),
        gone: None,
        limit: None,
        handed_over: false,
    }
}

/// One whose holder died: nothing was sent, and the TTL ends it.
fn dead(slot: u32, fence: u64, asked: u64, granted: u64) -> Held {
    Held { releasing: None, freed: None, ..held(slot, fence, asked, granted, 0) }
}

fn of(held: impl IntoIterator<Item = Held>) -> History {
    History { held: held.into_iter().collect(), ..History::default() }
}

fn fixed(bound: u32) -> Check {
    Check::new(Bound::Fixed(bound), SECOND).lag(Duration::ZERO).patience(Duration::from_micros(50))
}

fn kinds(findings: &Findings) -> Vec<&'static str> {
    let kind = |violation: &Violation| match violation {
        Violation::Overfull { .. } => "overfull",
        Violation::SlotTwice { .. } => "slot twice",
        Violation::FenceBack { .. } => "fence back",
        Violation::GrantedTwice { .. } => "granted twice",
        Violation::LiveTooLong { .. } => "live too long",
        Violation::RefusedWithRoom { .. } => "refused with room",
        Violation::TooMuch { .. } => "too much",
        _ => "another",
    };
    findings.0.iter().map(kind).collect()
}

#[test]
fn as_4_a_full_bound_is_kept_and_one_more_is_found() {
    let two = [held(0, 1, 0, 10, 100), held(1, 2, 5, 20, 200)];
    fixed(2).run(&of(two.clone())).expect_none();
    // The first is on its way back when the third is asked for: the store may have it before.
    let after = held(0, 3, 90, 101, 300);
    fixed(2).run(&of(two.clone().into_iter().chain([after]))).expect_none();
    // Here the answer to the third is there before the first is let go.
    let third = held(2, 3, 30, 99, 300);
    let findings = fixed(2).run(&of(two.into_iter().chain([third.clone()])));
    let expected = Violation::Overfull { at: 99, held: 3, bound: 2, lease: third.lease };
    assert_eq!(findings.0, [expected]);
}

#[test]
fn as_4_the_order_is_the_stores_and_not_that_of_the_answers() {
    // The answer to the first grant came last; the store made it into nothing.
    fixed(1).run(&of([held(0, 1, 0, 50, 60), held(0, 2, 61, 70, 80)])).expect_none();
    // The one of the higher fence had its answer first: the other was there before it, and was not given back.
    let findings = fixed(1).run(&of([held(1, 2, 0, 40, 200), held(0, 1, 0, 50, 200)]));
    assert!(kinds(&findings).iter().all(|kind| *kind == "overfull") && !findings.is_empty(), "{findings}");
}

#[test]
fn as_4_a_lower_limit_is_broken_only_by_a_new_grant() {
    let with = |limit, held: Held| Held { limit: Some(limit), ..held };
    let check = Check::new(Bound::Adaptive { min: 1 }, SECOND);
    let old = (0..4).map(|n| with(4, held(n, u64::from(n) + 1, 0, 10, 1_000)));
    check.run(&of(old.clone())).expect_none();
    let one_more = with(2, held(4, 9, 500, 510, 600));
    let findings = check.run(&of(old.clone().chain([one_more])));
    assert_eq!(kinds(&findings), ["overfull"]);
    check.run(&of(old.chain([with(5, held(4, 9, 500, 510, 600))]))).expect_none();
}

#[test]
fn as_6_a_dead_holders_slot_is_given_anew_at_its_deadline_and_not_before() {
    let early = fixed(1).run(&of([dead(0, 1, 0, 10), held(0, 2, TTL - 30, TTL - 1, TTL + 9)]));
    assert_eq!(kinds(&early), ["overfull", "slot twice"]);
    fixed(1).run(&of([dead(0, 1, 0, 10), held(0, 2, TTL - 30, TTL, TTL + 9)])).expect_none();
    // One that was renewed lives on.
    let renewed = Held { deadline: 3 * TTL, kept: 2 * TTL, ..dead(0, 1, 0, 10) };
    let early = fixed(2).run(&of([renewed, held(0, 2, 2 * TTL, 2 * TTL + 1, 2 * TTL + 2)]));
    assert_eq!(kinds(&early), ["slot twice"]);
}

#[test]
fn as_6_who_takes_a_lease_for_live_past_its_deadline_is_found() {
    let seen = |live| History {
        uses: vec![Use { worker: 0, job: 3, lease: dead(0, 1, 0, 10).lease, granted: 10, live }],
        ..of([dead(0, 1, 0, 10)])
    };
    fixed(1).run(&seen(TTL)).expect_none();
    assert_eq!(kinds(&fixed(1).run(&seen(TTL + 1))), ["live too long"]);
}

#[test]
fn st_9_a_slot_is_given_anew_after_its_release() {
    fixed(9).run(&of([held(4, 1, 0, 10, 50), held(4, 2, 40, 50, 60)])).expect_none();
    let findings = fixed(9).run(&of([held(4, 1, 0, 10, 50), held(4, 2, 40, 49, 60)]));
    assert_eq!(kinds(&findings), ["slot twice"]);
    fixed(9).run(&of([held(4, 1, 0, 10, 50), held(5, 2, 40, 49, 60)])).expect_none();
}

#[test]
fn st_9_fences_grow_where_the_order_is_certain() {
    let back = fixed(9).run(&of([held(0, 7, 0, 10, 20), held(1, 6, 30, 40, 50)]));
    assert_eq!(kinds(&back), ["fence back"]);
    let same = fixed(9).run(&of([held(0, 7, 0, 10, 20), held(1, 7, 30, 40, 50)]));
    assert_eq!(kinds(&same), ["fence back"]);
    // Asked for while the other was on its way: either may be first.
    fixed(9).run(&of([held(0, 7, 0, 10, 20), held(1, 6, 10, 40, 50)])).expect_none();
}

#[test]
fn st_9_a_token_is_one_grants_and_one_jobs() {
    let twice = fixed(9).run(&of([held(0, 7, 0, 10, 90), held(0, 7, 5, 20, 80)]));
    assert_eq!(kinds(&twice), ["granted twice"]);
    let job = |job| Use { worker: 0, job, lease: held(0, 7, 0, 10, 90).lease, granted: 11, live: 12 };
    let history = History { uses: vec![job(1), job(2)], ..of([held(0, 7, 0, 10, 90)]) };
    assert_eq!(kinds(&fixed(9).run(&history)), ["granted twice"]);
}

#[test]
fn un_3_what_was_handed_over_counts_and_is_no_fault() {
    let over = |slot, fence| Held { handed_over: true, ..held(slot, fence, 0, 10, 500) };
    fixed(1).run(&of([over(0, 1), over(1, 2), over(2, 3)])).expect_none();
    let findings = fixed(1).run(&of([over(0, 1), over(1, 2), held(2, 3, 20, 30, 40)]));
    assert_eq!(kinds(&findings), ["overfull"]);
}

fn refused(called: u64, refused: u64) -> Refusal {
    Refusal { worker: 1, job: 8, called, refused, single: false }
}

#[test]
fn as_12_who_waits_in_vain_while_there_is_room_is_found() {
    let with = |refusal| History { refusals: vec![refusal], ..of([held(0, 1, 100, 110, 300)]) };
    // Held, for all that is known, from 100 to 305.
    fixed(1).run(&with(refused(120, 305))).expect_none();
    fixed(1).run(&with(refused(120, 354))).expect_none();
    let findings = fixed(1).run(&with(refused(120, 355)));
    let expected = Violation::RefusedWithRoom { worker: 1, job: 8, from: 305, until: 355 };
    assert_eq!(findings.0, [expected], "50 us of room are enough");
    assert_eq!(kinds(&fixed(2).run(&with(refused(120, 170)))), ["refused with room"]);
    fixed(1).outage(300, 400).run(&with(refused(120, 355))).expect_none();
    // What a request without an answer may have taken counts until its TTL.
    let unseen = Unseen { from: 290, until: 400, leases: 1 };
    let history = History { unseen: vec![unseen], ..with(refused(120, 355)) };
    fixed(1).run(&history).expect_none();
    let late = History { refusals: vec![refused(120, 400 + TTL + 50)], ..history };
    assert_eq!(kinds(&fixed(1).run(&late)), ["refused with room"]);
}

#[test]
fn as_6_a_dead_holders_slot_is_back_within_one_ttl() {
    let with = |refusal| History { refusals: vec![refusal], ..of([dead(0, 1, 0, 10)]) };
    fixed(1).run(&with(refused(20, 10 + TTL + 49))).expect_none();
    assert_eq!(kinds(&fixed(1).run(&with(refused(20, 10 + TTL + 50)))), ["refused with room"]);
}

#[test]
fn a_single_try_is_judged_where_nobody_waits() {
    let single = |called, until| History {
        refusals: vec![Refusal { single: true, ..refused(called, until) }],
        ..of([held(0, 1, 100, 110, 300)])
    };
    fixed(1).run(&single(400, 410)).expect_none();
    assert_eq!(kinds(&fixed(1).single_tries().run(&single(400, 410))), ["refused with room"]);
    fixed(1).single_tries().run(&single(304, 410)).expect_none();
}

#[test]
fn st_18_after_a_loss_as_many_more_are_held_as_lived_before() {
    let before = [held(0, 1, 0, 10, TTL), held(1, 2, 0, 10, TTL)];
    let after = [held(0, 11, 510, 520, 700), held(1, 12, 510, 520, 700)];
    let history = of(before.into_iter().chain(after.clone()));
    assert!(!fixed(2).run(&history).is_empty());
    fixed(2).lost_state(&history, 500, 505).run(&history).expect_none();
    // No more than that, and not for longer than they would have lived.
    let one_more = of(history.held.iter().cloned().chain([held(2, 13, 510, 530, 700)]));
    let findings = fixed(2).lost_state(&history, 500, 505).run(&one_more);
    assert_eq!(kinds(&findings), ["overfull"]);
    let later = of(history
        .held
        .iter()
        .cloned()
        .chain([held(5, 20, TTL + 10, TTL + 20, TTL + 90), held(6, 21, TTL + 10, TTL + 21, TTL + 90)])
        .chain([held(7, 22, TTL + 10, TTL + 22, TTL + 90)]));
    let findings = fixed(2).lost_state(&history, 500, 505).run(&later);
    assert_eq!(kinds(&findings), ["overfull"]);
}

fn spend(asked: u64, granted: u64, cost: u64) -> Admission {
    Admission { rule: "r".into(), asked, granted, cost }
}

fn spent(admissions: impl IntoIterator<Item = Admission>) -> History {
    History { admissions: admissions.into_iter().collect(), ..History::default() }
}

fn rated(rate: Rate) -> Check {
    Check::new(Bound::None, SECOND).rate("r", rate.grain(0))
}

/// 10 a second, 3 at once: one every 100 ms.
fn bucket() -> Rate {
    Rate::of(&Rule::token_bucket(10, SECOND).burst(3)).unwrap()
}

#[test]
fn ru_5_a_bucket_admits_its_burst_and_its_rate() {
    const MS: u64 = 1_000;
    let burst = [spend(0, 1, 1), spend(0, 1, 2)];
    let then = |at| spend(at, at, 1);
    rated(bucket()).run(&spent(burst.clone().into_iter().chain([then(100 * MS)]))).expect_none();
    let early = spent(burst.clone().into_iter().chain([then(100 * MS - 1)]));
    assert_eq!(kinds(&rated(bucket()).run(&early)), ["too much"]);
    // The grain of the store's clock is allowed for, and no more.
    let coarse = |grain| Check::new(Bound::None, SECOND).rate("r", bucket().grain(grain));
    coarse(1).run(&early).expect_none();
    // An hour later it holds no more than its burst.
    let hour = 3_600_000 * MS;
    let four = spent(burst.into_iter().chain((0..4).map(|_| then(hour))));
    assert_eq!(kinds(&rated(bucket()).run(&four)), ["too much"]);
    // Only what certainly lies within a span counts in it.
    rated(bucket()).run(&spent([spend(0, 1, 3), spend(0, 200 * MS, 1)])).expect_none();
    // Another rule's admissions are nobody's business here.
    let other = Admission { rule: "s".into(), ..spend(0, 1, 9) };
    rated(bucket()).run(&spent([other])).expect_none();
}

#[test]
fn ru_5_a_sliding_window_admits_its_limit_in_every_span() {
    let window = || rated(Rate::of(&Rule::sliding_window(3, SECOND)).unwrap());
    let three = [spend(0, 0, 1), spend(400_000, 400_000, 1), spend(800_000, 800_000, 1)];
    let with = |at| spent(three.clone().into_iter().chain([spend(at, at, 1)]));
    window().run(&with(1_000_000)).expect_none();
    assert_eq!(kinds(&window().run(&with(999_999))), ["too much"]);
    let two_more =
        spent(three.into_iter().chain([spend(1_000_000, 1_000_000, 1), spend(1_399_999, 1_399_999, 1)]));
    assert_eq!(kinds(&window().run(&two_more)), ["too much"]);
}

#[test]
fn ru_5_two_fixed_windows_may_meet_and_three_may_not() {
    let window = || rated(Rate::of(&Rule::fixed_window(3, SECOND)).unwrap());
    let six = [spend(0, 0, 3), spend(1, 1, 3)];
    window().run(&spent(six.clone())).expect_none();
    assert_eq!(kinds(&window().run(&spent(six.into_iter().chain([spend(2, 2, 1)])))), ["too much"]);
}

#[test]
fn st_18_a_loss_admits_one_burst_more() {
    let twice = spent([spend(0, 1, 3), spend(50, 51, 3)]);
    assert_eq!(kinds(&rated(bucket()).run(&twice)), ["too much"]);
    rated(bucket()).lost_state(&twice, 20, 30).run(&twice).expect_none();
    // Not before it, not after it, and once.
    for (from, until) in [(60, 70), (200, 300)] {
        assert_eq!(kinds(&rated(bucket()).lost_state(&twice, from, until).run(&twice)), ["too much"]);
    }
    let thrice = spent([spend(0, 1, 3), spend(50, 51, 3), spend(60, 61, 3)]);
    assert_eq!(kinds(&rated(bucket()).lost_state(&thrice, 20, 30).run(&thrice)), ["too much"]);
}

#[test]
fn st_12_what_was_credited_may_be_spent_again() {
    let credit = Credit { rule: "r".into(), sent: 20, answered: 30, amount: 2 };
    let with =
        |cost| History { credits: vec![credit.clone()], ..spent([spend(0, 1, 3), spend(50, 51, cost)]) };
    rated(bucket()).run(&with(2)).expect_none();
    assert_eq!(kinds(&rated(bucket()).run(&with(3))), ["too much"]);
}

/// The same judgement, by looking at everything: word for word as it is defined.
mod naive {
    use super::*;

    /// How many are held at each grant, by fence, where that is too many; by lease.
    pub(crate) fn overfull(bound: u32, extra: impl Fn(u64, u64) -> u32, held: &[Held]) -> BTreeSet<Lease> {
        // Of two in one moment the one that is written down first is first.
        let all = || held.iter().enumerate();
        let by_fence = |at: usize, g: &Held| {
            let earlier =
                all().filter(|(of, h)| (h.lease.fence, h.granted, *of) < (g.lease.fence, g.granted, at));
            earlier.filter(|(_, h)| h.certainly_until() > g.granted).count()
        };
        let by_time = |at: usize, g: &Held| {
            let before = all().filter(|(of, h)| (h.granted, *of) <= (g.granted, at));
            before.filter(|(_, h)| h.certainly_until() > g.granted).count()
        };
        let most = |from, until| usize::try_from(bound + extra(from, until)).unwrap();
        let too_many = |(at, g): &(usize, &Held)| {
            by_fence(*at, g) + 1 > most(g.asked, g.granted)
                || (g.certainly_until() > g.granted && by_time(*at, g) > most(g.granted, g.granted))
        };
        all().filter(too_many).map(|(_, g)| g.lease).collect()
    }

    pub(crate) fn slot_twice(held: &[Held]) -> BTreeSet<Lease> {
        let taken = |second: &&Held| {
            held.iter().any(|first| {
                first.lease.slot == second.lease.slot
                    && first.lease.fence < second.lease.fence
                    && first.certainly_until() > second.granted
            })
        };
        held.iter().filter(taken).map(|second| second.lease).collect()
    }

    pub(crate) fn fence_back(held: &[Held]) -> BTreeSet<Lease> {
        let back = |after: &&Held| {
            held.iter().any(|before| before.granted < after.asked && before.lease.fence >= after.lease.fence)
        };
        held.iter().filter(back).map(|after| after.lease).collect()
    }

    /// Moments are few here, so each is looked at.
    pub(crate) fn refused_with_room(bound: usize, patience: u64, history: &History) -> BTreeSet<u64> {
        let possibly = |at: u64| {
            let until = |h: &Held| h.freed.map_or(h.kept + TTL, |freed| freed.min(h.kept + TTL));
            history.held.iter().filter(|h| h.asked <= at && at < until(h)).count()
        };
        let with_room = |refusal: &&Refusal| {
            let mut room = 0;
            let mut longest = 0;
            for at in refusal.called..refusal.refused {
                room = if possibly(at) < bound { room + 1 } else { 0 };
                longest = longest.max(room);
            }
            longest >= patience.min(refusal.refused - refusal.called)
        };
        history.refusals.iter().filter(with_room).map(|refusal| refusal.job).collect()
    }

    /// Every span from an asking to an answer.
    pub(crate) fn too_much(rate: Spec, loss: Option<(u64, u64)>, admissions: &[Admission]) -> bool {
        let spans = admissions.iter().flat_map(|a| admissions.iter().map(move |b| (a.asked, b.granted)));
        spans.into_iter().filter(|(from, until)| from <= until).any(|(from, until)| {
            let within = admissions.iter().filter(|a| a.asked >= from && a.granted <= until);
            let sum: u64 = within.map(|a| a.cost).sum();
            let lost = loss.is_some_and(|(first, last)| from <= last && first <= until);
            match rate {
                Spec::Bucket { limit, interval, burst } => {
                    let most = burst * (1 + u64::from(lost)) * interval + limit * (until - from);
                    sum * interval > most
                }
                Spec::Window { limit, interval } => {
                    until - from < interval && sum > limit * (1 + u64::from(lost))
                }
            }
        })
    }
}

#[derive(Clone, Copy, Debug)]
enum Spec {
    Bucket { limit: u64, interval: u64, burst: u64 },
    Window { limit: u64, interval: u64 },
}

/// Leases by a store that mostly does as it should: some answers are late, some grants are one too many.
fn random_leases(random: &mut Rng, bound: u32) -> Vec<Held> {
    let mut held: Vec<Held> = Vec::new();
    let mut fence = 0;
    for _ in 0..random.usize(0..30) {
        let asked = random.u64(0..150);
        let granted = asked + random.u64(0..20);
        fence += random.u64(0..3);
        let slot = random.u32(0..bound + 2);
        let made = held_for(random, slot, fence, asked, granted);
        // One token for two grants is another matter.
        if held.iter().all(|known| known.lease != made.lease) {
            held.push(made);
        }
    }
    held
}

fn held_for(random: &mut Rng, slot: u32, fence: u64, asked: u64, granted: u64) -> Held {
    if random.u32(0..4) == 0 {
        let deadline = granted + random.u64(0..40);
        return Held { deadline, ..dead(slot, fence, asked, granted) };
    }
    let released = granted + random.u64(0..60);
    let freed = random.bool().then(|| released + random.u64(0..10));
    Held { freed, ..held(slot, fence, asked, granted, released) }
}

fn leases_of(findings: &Findings, pick: impl Fn(&Violation) -> Option<Lease>) -> BTreeSet<Lease> {
    findings.0.iter().filter_map(pick).collect()
}

#[test]
fn random_leases_are_judged_as_by_looking_at_all() {
    let seed = fastrand::u64(..);
    let mut random = Rng::with_seed(seed);
    let (mut faulty, mut legal) = (0, 0);
    for round in 0..3_000 {
        let bound = random.u32(1..6);
        let history = of(random_leases(&mut random, bound));
        let allowed = random.bool().then(|| {
            let from = random.u64(0..150);
            (from, from + random.u64(0..40), random.u32(1..4))
        });
        let mut check = fixed(bound);
        if let Some((from, until, extra)) = allowed {
            check = check.allow(from, until, extra);
        }
        let findings = check.run(&history);
        let shown = || {
            format!(
                "seed {seed}, round {round}, bound {bound}, allowed {allowed:?}: {history:#?}\n{findings}"
            )
        };

        let extra = |first: u64, last: u64| {
            allowed.and_then(|(from, until, extra)| (from <= last && first <= until).then_some(extra))
        };
        let overfull = leases_of(&findings, |v| match v {
            Violation::Overfull { lease, .. } => Some(*lease),
            _ => None,
        });
        let expected = naive::overfull(bound, |first, last| extra(first, last).unwrap_or(0), &history.held);
        assert_eq!(overfull, expected, "{}", shown());
        let slots = leases_of(&findings, |v| match v {
            Violation::SlotTwice { second, .. } => Some(*second),
            _ => None,
        });
        let expected: BTreeSet<Lease> = naive::slot_twice(&history.held)
            .into_iter()
            .filter(|lease| {
                history.held.iter().any(|g| g.lease == *lease && extra(g.asked, g.granted).is_none())
            })
            .collect();
        assert_eq!(slots, expected, "{}", shown());
        let fences = leases_of(&findings, |v| match v {
            Violation::FenceBack { after, .. } => Some(*after),
            _ => None,
        });
        assert_eq!(fences, naive::fence_back(&history.held), "{}", shown());
        if findings.is_empty() { legal += 1 } else { faulty += 1 }
    }
    assert!(faulty > 100 && legal > 100, "{faulty} faulty, {legal} legal: one side is hardly tried");
}

#[test]
fn random_refusals_are_judged_as_by_looking_at_all() {
    let seed = fastrand::u64(..);
    let mut random = Rng::with_seed(seed);
    let (mut found, mut none) = (0, 0);
    for round in 0..2_000 {
        let bound = random.u32(1..4);
        let patience = random.u64(1..40);
        let mut history = of(random_leases(&mut random, bound));
        history.refusals = (0..8)
            .map(|job| {
                let called = random.u64(0..200);
                Refusal { job, ..refused(called, called + random.u64(1..80)) }
            })
            .collect();
        let findings = fixed(bound).patience(Duration::from_micros(patience)).run(&history);
        let jobs: BTreeSet<u64> = findings
            .0
            .iter()
            .filter_map(|v| match v {
                Violation::RefusedWithRoom { job, .. } => Some(*job),
                _ => None,
            })
            .collect();
        let expected = naive::refused_with_room(usize::try_from(bound).unwrap(), patience, &history);
        assert_eq!(jobs, expected, "seed {seed}, round {round}, bound {bound}, {patience}: {history:#?}");
        found += jobs.len();
        none += history.refusals.len() - jobs.len();
    }
    assert!(found > 500 && none > 500, "{found} found, {none} not: one side is hardly tried");
}

#[test]
fn random_rates_are_judged_as_by_looking_at_all() {
    const MS: u64 = 1_000;
    let seed = fastrand::u64(..);
    let mut random = Rng::with_seed(seed);
    let (mut found, mut none) = (0, 0);
    for round in 0..3_000 {
        let (limit, interval, burst) = (random.u64(1..6), random.u64(1..20) * MS, random.u64(1..8));
        let length = Duration::from_micros(interval);
        let (rule, spec) = if random.bool() {
            (Rule::token_bucket(limit, length).burst(burst), Spec::Bucket { limit, interval, burst })
        } else {
            (Rule::sliding_window(limit, length), Spec::Window { limit, interval })
        };
        let admissions: Vec<Admission> = (0..random.usize(0..12))
            .map(|_| {
                let asked = random.u64(0..40) * MS + random.u64(0..3);
                spend(asked, asked + random.u64(0..3), random.u64(0..4))
            })
            .collect();
        let loss = random.bool().then(|| {
            let from = random.u64(0..40) * MS;
            (from, from + random.u64(0..10) * MS)
        });
        let history = spent(admissions);
        let mut check = rated(Rate::of(&rule).unwrap());
        if let Some((from, until)) = loss {
            check = check.lost_state(&history, from, until);
        }
        let findings = check.run(&history);
        let expected = naive::too_much(spec, loss, &history.admissions);
        assert_eq!(
            !findings.is_empty(),
            expected,
            "seed {seed}, round {round}, {spec:?}, {loss:?}: {history:#?}"
        );
        if expected { found += 1 } else { none += 1 }
    }
    assert!(found > 300 && none > 300, "{found} found, {none} not: one side is hardly tried");
}

#[test]
fn a_long_history_is_judged_by_a_sweep() {
    // Looking at all pairs of these would be 10^10 looks.
    let leases = (0..100_000_u64).map(|n| {
        let slot = u32::try_from(n % 10).unwrap();
        held(slot, n + 1, 10 * n, 10 * n + 1, 10 * n + 100)
    });
    let admissions = (0..100_000).map(|n| spend(100_000 * n, 100_000 * n + 5, 1)).collect();
    let refusals = (0..100_000).map(|n| refused(10 * n + 100, 10 * n + 140)).collect();
    let history = History { admissions, refusals, ..of(leases) };
    let check = fixed(10).rate("r", bucket());
    let findings = check.run(&history);
    // The last ones wait when nobody comes any more.
    assert!(kinds(&findings).iter().all(|kind| *kind == "refused with room"), "{findings}");
    assert!(findings.0.len() < 20, "{findings}");
}

#[test]
fn peaks_tell_what_was_held_within_an_allowance_from_what_was_held_without_one() {
    let history = of([held(0, 1, 90, 100, 300), held(1, 2, 90, 100, 200), held(2, 3, 190, 200, 300)]);
    let check = fixed(2);
    assert_eq!(check.peaks(&history), Peaks { strict: 2, allowed: 0 });
    let history = of([held(0, 1, 90, 100, 300), held(1, 2, 90, 100, 900), held(0, 3, 490, 500, 900)]);
    assert_eq!(check.clone().allow(450, 600, 1).peaks(&history), Peaks { strict: 2, allowed: 2 });
    assert_eq!(check.peaks(&History::default()), Peaks::default());
}

#[test]
fn a_loss_allows_no_more_than_could_live_at_that_moment() {
    // One after the other, in a span of which only the ends are known; the last of them lives on beside three more.
    let before = (0_u32..5).map(|turn| {
        let at = 100 + u64::from(turn) * 10;
        held(9, u64::from(turn) + 1, at, at + 1, if turn == 4 { 400 } else { at + 5 })
    });
    let after = (0_u32..3).map(|slot| held(slot, u64::from(slot) + 10, 160, 161, 400));
    let history = of(before.chain(after));
    fixed(1).lost_state(&history, 90, 158).run(&history).expect_none();
    let findings = fixed(1).lost_at_most(&history, 90, 158, 2).run(&history);
    assert!(kinds(&findings).contains(&"overfull"), "{findings}");
    fixed(1).lost_at_most(&history, 90, 158, 3).run(&history).expect_none();
}
