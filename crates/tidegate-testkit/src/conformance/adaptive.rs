//! Limits that move.
//!
//! Spec: AS-1, AS-2, AS-3, AS-13.

use tidegate_core::{
    Bound, Capability, Outcome, Release, Token,
    limit::{Aimd, Growth, LimitPolicy, LimitState},
    rule::Rule,
};

use super::{
    Failure, Need, ensure,
    lab::{DAY, Lab, Worker, adaptive, growing, jobs, ms, policy, queue},
    same, trials_of_rules,
};
use crate::subject::Hook;

const LEASES: Need = Need::Has(Capability::Leases);
const ADAPTIVE: Need = Need::Has(Capability::Adaptive);
const CLOCK: Need = Need::Hook(Hook::Clock);

trials_of_rules! {
    "AS-1 a throttle lowers the limit, at most once per cooldown" [LEASES, ADAPTIVE, CLOCK] => as_1_decrease;
    "AS-1 a throttle that came with a lost lease counts" [LEASES, ADAPTIVE, CLOCK] => as_1_lost_lease;
    "AS-2 a success raises the limit, at most once per window" [LEASES, ADAPTIVE, CLOCK] => as_2_increase;
    "AS-2 the limit does not rise without demand" [LEASES, ADAPTIVE, CLOCK] => as_2_demand;
    "AS-2 a rate or a pause is no demand" [LEASES, ADAPTIVE, CLOCK] => as_2_no_demand;
    "AS-2 a job that waits while slots are full is demand" [LEASES, ADAPTIVE, CLOCK] => as_2_waiting;
    "AS-2 the limit does not rise in a window with a throttle" [LEASES, ADAPTIVE, CLOCK] => as_2_throttle;
    "AS-3 a failure moves nothing" [LEASES, ADAPTIVE, CLOCK] => as_3_neutral;
    "AS-16 the slot of a throttled release rests" [LEASES, ADAPTIVE, CLOCK] => as_16_rest;
    "AS-13 additive growth follows its rule" [LEASES, ADAPTIVE, CLOCK] => as_13_additive;
    "AS-13 a slow start follows its rule" [LEASES, ADAPTIVE, CLOCK] => as_13_slow_start;
    "AS-13 a probe follows its rule" [LEASES, ADAPTIVE, CLOCK] => as_13_probe;
    "AS-13 a tolerance follows its rule" [LEASES, ADAPTIVE, CLOCK] => as_13_tolerance;
}

/// A worker that knows how many leases it holds.
struct Caller {
    worker: Worker,
    held: Vec<Token>,
}

impl Caller {
    fn new(worker: Worker) -> Self {
        Self { worker, held: Vec::new() }
    }

    /// Takes all there is and one more, which is demand. Gives the limit.
    async fn saturate(&mut self) -> Result<u32, Failure> {
        loop {
            let reply = self.worker.acquire(64).await?;
            self.held.extend(reply.body.grants.iter().filter_map(|grant| grant.lease));
            if reply.body.denied.is_some() {
                return limit(reply.head);
            }
        }
    }

    /// Gives a lease back. Gives the limit.
    async fn report(&mut self, outcome: Outcome) -> Result<u32, Failure> {
        let token =
            self.held.pop().ok_or_else(|| Failure("no lease is held that could be given back".to_owned()))?;
        limit(self.worker.report(&[token], outcome).await?)
    }
}

fn limit(head: tidegate_core::Head) -> Result<u32, Failure> {
    head.limit.map(|limit| limit.value).ok_or_else(|| Failure("an answer without the limit".to_owned()))
}

async fn as_1_decrease(lab: &Lab) -> Result<(), Failure> {
    let mut caller = Caller::new(lab.worker(&adaptive(3, 100)?)?.starting_at(65));
    same(caller.saturate().await?, 65, "the limit at first")?;
    for (after_ms, expected) in
        [(0, 32), (0, 32), (1_999, 32), (1, 16), (1_999, 16), (1, 8), (2_000, 4), (2_000, 3), (2_000, 3)]
    {
        lab.advance(after_ms).await;
        let now = caller.report(Outcome::Throttled).await?;
        same(now, expected, format_args!("the limit after a throttle {after_ms} ms later"))?;
    }
    Ok(())
}

async fn as_1_lost_lease(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&adaptive(1, 100)?)?.starting_at(64);
    let token = worker.lease().await?;
    lab.advance(30_000).await;
    same(
        limit(worker.report(&[token], Outcome::Throttled).await?)?,
        32,
        "the limit after a throttle of a lost lease",
    )
}

async fn as_2_increase(lab: &Lab) -> Result<(), Failure> {
    let mut caller = Caller::new(lab.worker(&adaptive(1, 6)?)?.starting_at(4));
    caller.saturate().await?;
    for (after_ms, expected) in [(999, 4), (1, 5), (0, 5), (999, 5), (1, 6), (1_000, 6)] {
        lab.advance(after_ms).await;
        caller.saturate().await?;
        let now = caller.report(Outcome::Success).await?;
        same(now, expected, format_args!("the limit after a success {after_ms} ms later"))?;
    }
    Ok(())
}

async fn as_2_demand(lab: &Lab) -> Result<(), Failure> {
    let mut caller = Caller::new(lab.worker(&adaptive(1, 20)?)?.starting_at(4));
    caller.held.extend(caller.worker.leases(4).await?);
    lab.advance(5_000).await;
    same(caller.report(Outcome::Success).await?, 4, "the limit at the cap, with nobody denied")?;
    caller.saturate().await?;
    lab.advance(1_000).await;
    same(caller.report(Outcome::Success).await?, 4, "the limit when the last demand is a window ago")?;
    caller.saturate().await?;
    lab.advance(999).await;
    same(caller.report(Outcome::Success).await?, 5, "the limit when it is a millisecond less")
}

async fn as_2_no_demand(lab: &Lab) -> Result<(), Failure> {
    let draft = adaptive(1, 20)?.rule(Rule::fixed_window(3, ms(DAY)));
    let mut caller = Caller::new(lab.worker(&draft)?.starting_at(4));
    caller.held.extend(caller.worker.leases(3).await?);
    lab.advance(5_000).await;
    ensure(!caller.worker.denied(1).await?.lease_blocked, "the rule denies")?;
    same(caller.report(Outcome::Success).await?, 4, "the limit where only a rule denied")?;
    caller.worker.pause(1_000).await?;
    same(caller.worker.granted(1).await?, 0, "grants during a pause")?;
    same(caller.report(Outcome::Success).await?, 4, "the limit where only a pause denied")
}

async fn as_2_waiting(lab: &Lab) -> Result<(), Failure> {
    let mut caller = Caller::new(lab.worker(&adaptive(1, 20)?)?.starting_at(2));
    lab.advance(5_000).await;
    let reply = caller.worker.ask(&queue(2, 2, 0)).await?;
    caller.held.extend(reply.body.grants.iter().filter_map(|grant| grant.lease));
    lab.advance(5_000).await;
    same(caller.report(Outcome::Success).await?, 2, "the limit where nobody waits behind the last slot")?;
    let reply = caller.worker.ask(&queue(1, 2, 0)).await?;
    caller.held.extend(reply.body.grants.iter().filter_map(|grant| grant.lease));
    same(caller.report(Outcome::Success).await?, 3, "the limit where one does")
}

async fn as_2_throttle(lab: &Lab) -> Result<(), Failure> {
    let mut caller = Caller::new(lab.worker(&adaptive(1, 20)?)?.starting_at(8));
    lab.advance(1_000).await;
    caller.saturate().await?;
    same(caller.report(Outcome::Throttled).await?, 4, "the limit after a throttle")?;
    lab.advance(999).await;
    caller.saturate().await?;
    same(caller.report(Outcome::Success).await?, 4, "the limit within a window of it")?;
    lab.advance(1).await;
    same(caller.report(Outcome::Throttled).await?, 4, "the limit after one that the cooldown suppresses")?;
    lab.advance(999).await;
    caller.saturate().await?;
    same(caller.report(Outcome::Success).await?, 4, "the limit within a window of that")?;
    lab.advance(1).await;
    caller.saturate().await?;
    same(caller.report(Outcome::Success).await?, 5, "the limit a window later")
}

async fn as_3_neutral(lab: &Lab) -> Result<(), Failure> {
    let mut caller = Caller::new(lab.worker(&adaptive(1, 20)?)?.starting_at(4));
    for _ in 0..5 {
        lab.advance(3_000).await;
        caller.saturate().await?;
        same(caller.report(Outcome::Failure).await?, 4, "the limit after a failure")?;
    }
    // Nor does it spoil a clean window.
    caller.saturate().await?;
    same(caller.report(Outcome::Success).await?, 5, "the limit after a success beside it")
}

async fn as_16_rest(lab: &Lab) -> Result<(), Failure> {
    let bound = LimitPolicy::check(1, 9, &Aimd::new().cooldown(ms(2_000)), ms(100), Growth::Additive)?;
    // What the remote asked for, and how long the slot rests.
    for (id, retry_after_ms, rest_ms) in [
        ("default", None, 100),
        ("asked", Some(700), 700),
        ("at most a cooldown", Some(60_000), 2_000),
        ("none", Some(0), 0),
    ] {
        let worker = lab.worker_of(id, &policy().bound(Bound::Adaptive(bound.clone())))?.starting_at(2);
        let token = worker.lease().await?;
        let release = Release { token, outcome: Outcome::Throttled, retry_after_ms };
        worker.store.release(&worker.member, &[release]).await?;
        same(
            worker.renew(&[token]).await?,
            vec![false],
            format_args!("{id}: the renewal of what was released"),
        )?;
        if rest_ms > 0 {
            let hint_ms = worker.denied(1).await?.hint_ms;
            ensure(
                hint_ms <= rest_ms,
                format_args!("{id}: the hint is {hint_ms} ms, and the slot rests {rest_ms}"),
            )?;
            lab.advance(rest_ms - 1).await;
            same(
                worker.granted(1).await?,
                0,
                format_args!("{id}: grants a millisecond before the rest is over"),
            )?;
            lab.advance(1).await;
        }
        same(worker.granted(2).await?, 1, format_args!("{id}: grants when the rest is over"))?;
    }
    // A success rests not at all, whatever came with it.
    let worker = lab.worker_of("success", &policy().bound(Bound::Adaptive(bound)))?.starting_at(1);
    let token = worker.lease().await?;
    let release = Release { token, outcome: Outcome::Success, retry_after_ms: Some(500) };
    worker.store.release(&worker.member, &[release]).await?;
    ensure(worker.ask(&jobs(&[1])).await?.body.denied.is_none(), "the slot of a success is free at once")
}

/// A random life of a limit: it stands where `LimitState` says.
async fn follows(lab: &Lab, bound: LimitPolicy, seed: u64) -> Result<(), Failure> {
    let worker = lab.worker_of(&format!("seed {seed}"), &policy().bound(Bound::Adaptive(bound.clone())))?;
    let mut caller = Caller::new(worker.starting_at(5));
    let mut now_ms = lab.now().millis();
    let mut expected = LimitState::seed(&bound, 5, now_ms);
    let mut random = fastrand::Rng::with_seed(seed);
    // Long clean stretches, so that a growth comes to show what it does.
    for step in 0..300 {
        same(caller.saturate().await?, expected.value(), format_args!("the limit in step {step}"))?;
        expected.demand(now_ms);
        let outcome = match random.u32(0..40) {
            0..=1 => Outcome::Throttled,
            2..=5 => Outcome::Failure,
            _ => Outcome::Success,
        };
        match outcome {
            Outcome::Throttled => {
                expected.throttled(&bound, now_ms);
            }
            Outcome::Failure => expected.failure(&bound, now_ms),
            Outcome::Success => {
                expected.success(&bound, now_ms);
            }
        }
        let now = caller.report(outcome).await?;
        same(now, expected.value(), format_args!("the limit after {} in step {step}", outcome.as_str()))?;
        let after_ms = if random.bool() { 1_000 } else { random.u64(0..1_200) };
        now_ms += after_ms;
        lab.advance(after_ms).await;
        // No lease runs out meanwhile.
        for batch in caller.held.chunks(1_000) {
            caller.worker.renew(batch).await?;
        }
    }
    Ok(())
}

async fn as_13_of(lab: &Lab, growth: Growth) -> Result<(), Failure> {
    let policy = growing(2, 300, growth)?.check()?;
    let bound = policy.adaptive().ok_or_else(|| Failure("a limit that does not move".to_owned()))?;
    for seed in 0..2 {
        follows(lab, bound.clone(), seed).await?;
    }
    Ok(())
}

async fn as_13_additive(lab: &Lab) -> Result<(), Failure> {
    as_13_of(lab, Growth::Additive).await
}

async fn as_13_slow_start(lab: &Lab) -> Result<(), Failure> {
    as_13_of(lab, Growth::SlowStart).await
}

async fn as_13_probe(lab: &Lab) -> Result<(), Failure> {
    as_13_of(lab, Growth::Probe).await
}

async fn as_13_tolerance(lab: &Lab) -> Result<(), Failure> {
    let aimd = Aimd::new()
        .window(ms(5_000))
        .cooldown(ms(2_000))
        .tolerance(0.1)
        .increase_step(3)
        .decrease_factor(0.7);
    for seed in 0..2 {
        follows(lab, LimitPolicy::check(2, 300, &aimd, ms(0), Growth::Additive)?, seed).await?;
    }
    Ok(())
}
