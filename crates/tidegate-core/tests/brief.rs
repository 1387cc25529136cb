//! A release that looks at no clock comes to the same as one that does, and is not done where it could come to something
//! else.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::expect_used)]

use std::{sync::Arc, time::Duration};

use proptest::{collection::vec, prelude::*};
use tidegate_core::{
    AcquireRequest, Bound, DriverId, Id, IdModel, Invalid, Job, Line, Member, OnSuperseded, Outcome, Owner,
    Policy, Release, Token,
    limit::{Aimd, Growth, LimitPolicy},
    time::Moment,
};

const MAX: u32 = 3;

fn member(tolerance: f64) -> Result<Member, Invalid> {
    let aimd = Aimd::new().window(Duration::from_millis(500)).tolerance(tolerance);
    let limit = LimitPolicy::check(1, MAX, &aimd, Duration::from_millis(100), Growth::Additive)?;
    let policy = Policy::draft().bound(Bound::Adaptive(limit)).lease_ttl(Duration::from_secs(1)).check()?;
    Ok(Member {
        id: Id::new("brief")?,
        driver: DriverId(1),
        owner: Owner::new("test")?,
        policy: Arc::new(policy),
        on_superseded: OnSuperseded::Adopt,
        initial_limit: 2,
    })
}

fn at(ms: u64) -> Moment {
    Moment::from_millis(1_000_000 + ms)
}

fn ask(waiting: u32) -> AcquireRequest {
    AcquireRequest { class: None, jobs: vec![Job::default()], line: Line { waiting, waited_ms: 0 } }
}

fn acquire(model: &mut IdModel, ms: u64, member: &Member, waiting: u32) -> (Option<Token>, u64) {
    let reply = model.acquire(at(ms), member, &ask(waiting)).expect("nothing in it can be refused");
    // What a brief answer calls seen, from one that changes nothing.
    let none = Release { token: NOBODYS, outcome: Outcome::Failure, retry_after_ms: None };
    let seen = model.release_one(at(ms), &none, 0).expect("a release is always taken").seen;
    (reply.body.grants.first().and_then(|grant| grant.lease), seen)
}

const NOBODYS: Token = Token { epoch: tidegate_core::Epoch(0), slot: 0, fence: 0 };

fn release(token: Token, outcome: Outcome) -> Release {
    Release { token, outcome, retry_after_ms: None }
}

#[test]
fn st_14_a_release_at_the_last_moment_frees_the_slot_at_once() -> Result<(), Invalid> {
    let (mut model, member) = (IdModel::default(), member(0.0)?);
    let (token, seen) = acquire(&mut model, 0, &member, 0);
    let token = token.expect("there is room");
    let brief = model.release_at_last(&release(token, Outcome::Success), seen).expect("nothing is amiss");
    assert_eq!((brief.now, brief.seen, brief.head), (at(0), seen, None));
    assert_eq!(acquire(&mut model, 1, &member, 0).0.map(|token| token.slot), Some(token.slot));
    // It is not done twice.
    assert_eq!(model.release_at_last(&release(token, Outcome::Success), seen), None);
    Ok(())
}

#[test]
fn st_14_a_release_looks_at_the_clock_where_it_could_make_a_difference() -> Result<(), Invalid> {
    let (mut model, strict) = (IdModel::default(), member(0.0)?);
    let (token, seen) = acquire(&mut model, 0, &strict, 0);
    let (other, _) = acquire(&mut model, 0, &strict, 0);
    let (token, other) = (token.expect("there is room"), other.expect("there is room"));
    let success = release(token, Outcome::Success);
    assert_eq!(model.release_at_last(&release(token, Outcome::Throttled), seen), None, "the slot rests");
    assert_eq!(model.release_at_last(&success, seen + 1), None, "there is something new to say");
    assert_eq!(acquire(&mut model, 10, &strict, 0).0, None);
    assert_eq!(model.release_at_last(&success, seen), None, "there was demand, so the limit may rise");
    assert_eq!(acquire(&mut model, 20, &strict, 1).0, None);
    acquire(&mut model, 600, &strict, 1);
    assert_eq!(model.release_at_last(&success, seen), None, "someone waits");
    assert!(model.release_one(at(600), &success, seen).is_some());
    assert!(model.release_one(at(600), &release(other, Outcome::Failure), seen).is_some());

    let (mut model, tolerant) = (IdModel::default(), member(0.1)?);
    let (token, seen) = acquire(&mut model, 0, &tolerant, 0);
    let success = release(token.expect("there is room"), Outcome::Success);
    assert_eq!(model.release_at_last(&success, seen), None, "releases are counted by windows");
    Ok(())
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Acquire,
    /// The lease at this place, among those of which it is not known that they are released.
    Release(usize, Outcome),
}

fn step() -> impl Strategy<Value = (u64, Step)> {
    let outcome = prop_oneof![
        8 => Just(Outcome::Success), 1 => Just(Outcome::Throttled), 3 => Just(Outcome::Failure)
    ];
    let step = prop_oneof![
        4 => Just(Step::Acquire),
        3 => (0..4_usize, outcome).prop_map(|(place, outcome)| Step::Release(place, outcome)),
    ];
    (prop_oneof![4 => 0..20_u64, 2 => 20..700_u64, 1 => 700..3_000_u64], step)
}

proptest! {
    /// Whatever comes later is answered as if every release had looked at the clock.
    #[test]
    fn st_14_a_release_at_the_last_moment_comes_to_the_same(steps in vec(step(), 1..120)) {
        let member = member(0.0).expect("these are within bounds");
        let (mut looks, mut looks_not) = (IdModel::default(), IdModel::default());
        let (mut now, mut seen) = (0, 0);
        let mut held = Vec::new();
        for (later, step) in steps {
            now += later;
            match step {
                Step::Acquire => {
                    let (expected, known) = acquire(&mut looks, now, &member, 0);
                    prop_assert_eq!(acquire(&mut looks_not, now, &member, 0), (expected, known));
                    held.extend(expected);
                    seen = known;
                }
                Step::Release(place, outcome) if !held.is_empty() => {
                    let release = release(held.swap_remove(place % held.len()), outcome);
                    let expected = looks.release_one(at(now), &release, seen).map(|brief| (brief.seen, brief.head));
                    let brief = looks_not.release_at_last(&release, seen);
                    let brief = brief.or_else(|| looks_not.release_one(at(now), &release, seen));
                    prop_assert_eq!(brief.map(|brief| (brief.seen, brief.head)), expected);
                }
                Step::Release(..) => {}
            }
        }
        let snapshot = |model: &mut IdModel| model.snapshot(at(now), &member.id);
        prop_assert_eq!(snapshot(&mut looks), snapshot(&mut looks_not));
    }
}
