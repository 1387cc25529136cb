//! What a store declares, and that it refuses the rest.
//!
//! Spec: ST-19.

use std::{fmt::Debug, sync::Arc};

use tidegate_core::{
    Acquire, Capability, CircuitAct, Epoch, Exchange, HandOver, Identity, Listener, Observation, Outcome,
    Reply, Restore, Settlement, StoreError, Token, Wake, circuit::Position, rule::Rule,
};

use super::{
    Failure, Need,
    circuit_lab::in_a_row,
    ensure,
    lab::{
        DAY, Lab, adaptive, fixed, jobs, jobs_of_one, key, ms, refused, releases, renewals, ruled,
        scoped_job, scoped_jobs,
    },
    same, trials_of_rules,
};

const LEASES: Need = Need::Has(Capability::Leases);
const SCOPED: Need = Need::Has(Capability::Scoped);

trials_of_rules! {
    "ST-19 an adaptive limit is declared with leases alone" => st_19_adaptive_needs_leases;
    "ST-19 what is declared is the same on every handle" => st_19_same_everywhere;
    "ST-19 optimisations are required by nothing" => st_19_optimisations;
    "ST-19 leases that are not declared are refused" [Need::Lacks(Capability::Leases)] => st_19_leases;
    "ST-19 an adaptive limit that is not declared is refused"
        [LEASES, Need::Lacks(Capability::Adaptive)] => st_19_adaptive;
    "ST-19 scoped jobs that are not declared are refused" [Need::Lacks(Capability::Scoped)] => st_19_scoped;
    "ST-19 corrections that are not declared are refused" [Need::Lacks(Capability::Corrections)] => st_19_corrections;
    "ST-19 an epoch that is not declared is refused" [LEASES, Need::Lacks(Capability::Epoch)] => st_19_epoch;
    "ST-19 a circuit that is not declared is refused" [Need::Lacks(Capability::Circuit)] => st_19_circuit;
    "ST-19 operators that are not declared are not there" [Need::Lacks(Capability::Operators)] => st_19_operators;
    "ST-19 a subscription that is not declared is not there" [Need::Lacks(Capability::Wake)] => st_19_wake;
    "ST-19 a synchronous path that is not declared is not there" [Need::Lacks(Capability::Sync)] => st_19_sync;
    "ST-19 a scoped rule is no secret to a store without scopes" [Need::Lacks(Capability::Scoped)] => st_19_scoped_rule;
    "ST-19 operators that are declared are there" [Need::Has(Capability::Operators)] => st_19_has_operators;
    "ST-19 scoped jobs that are declared are taken" [SCOPED] => st_19_has_scoped;
}

/// Fails unless the operation is refused because the capability is not declared.
fn unsupported<T: Debug>(
    answer: Result<Reply<T>, StoreError>,
    capability: Capability,
    what: &str,
) -> Result<(), Failure> {
    match answer {
        Err(StoreError::Unsupported(named)) if named == capability => Ok(()),
        Err(error) => {
            Err(Failure(format!("{what}: expected that {capability} is not supported, got: {error}")))
        }
        Ok(reply) => {
            Err(Failure(format!("{what}: expected that {capability} is not supported, got {:?}", reply.body)))
        }
    }
}

async fn st_19_adaptive_needs_leases(lab: &Lab) -> Result<(), Failure> {
    ensure(
        !lab.has(Capability::Adaptive) || lab.has(Capability::Leases),
        "an adaptive limit is declared without leases, which it needs",
    )
}

async fn st_19_same_everywhere(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(1, ms(DAY))))?;
    let peer = lab.peer_of(&worker)?;
    same(peer.store.capabilities(), worker.store.capabilities(), "what another handle declares")
}

async fn st_19_optimisations(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(3, ms(DAY))))?;
    let exchange = Exchange { acquires: vec![Acquire::Prefix(jobs_of_one(2))], ..Exchange::default() };
    let reply = worker.exchange(&exchange).await?;
    same(reply.body.acquired.len(), 1, "answers to one acquire of an exchange, declared or not")?;
    same(worker.granted(9).await?, 1, "grants that it has left")
}

async fn st_19_leases(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(3, ms(DAY))))?;
    let token = Token { epoch: Epoch(1), slot: 0, fence: 1 };
    let (store, member) = (&worker.store, &worker.member);
    let capability = Capability::Leases;
    unsupported(store.release(member, &releases(&[token], Outcome::Success)).await, capability, "a release")?;
    unsupported(store.renew(member, None, &renewals(&[token])).await, capability, "a renewal")?;
    unsupported(store.hand_over(member, &[HandOver { class: None }]).await, capability, "a hand-over")?;
    let bounded = lab.worker_of("bounded", &fixed(3))?;
    refused(bounded.ask(&jobs(&[1])).await, "invalid_options", "a bound on concurrency, without leases")?;
    let exchange = Exchange { releases: releases(&[token], Outcome::Success), ..Exchange::default() };
    match worker.exchange(&exchange).await {
        Err(StoreError::Unsupported(Capability::Leases)) => {}
        Err(error) => return Err(Failure(format!("a release in an exchange: {error}"))),
        Ok(reply) => {
            let part = reply.body.released.map(|body| Reply { head: reply.head, body });
            unsupported(part, capability, "a release in an exchange")?;
        }
    }
    same(worker.granted(9).await?, 3, "grants that this has left")
}

async fn st_19_adaptive(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&adaptive(1, 9)?)?;
    refused(
        worker.ask(&jobs(&[1])).await,
        "invalid_options",
        "a limit that moves, without an adaptive limit",
    )?;
    Ok(())
}

async fn st_19_scoped(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(3, ms(DAY)).scoped("tenant")))?;
    let request = scoped_jobs(None, vec![scoped_job(1, &[("tenant", "a")])?]);
    unsupported(worker.ask_scoped(&request).await, Capability::Scoped, "a scoped acquire")
}

async fn st_19_scoped_rule(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(3, ms(DAY)).scoped("tenant")))?;
    refused(worker.ask(&jobs(&[1])).await, "invalid_options", "a scoped rule, without scopes")?;
    Ok(())
}

async fn st_19_corrections(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(3, ms(DAY)).named("a")))?;
    let at = worker.acquire(1).await?.head.now.unwrap_or_else(|| lab.now());
    let settlement = Settlement { rule: key("named:a"), identity: None, granted_at: at, cost: 1, actual: 0 };
    let answer = worker.store.settle(&worker.member, &[settlement]).await;
    unsupported(answer, Capability::Corrections, "a settlement")?;
    let observation = Observation {
        rule: key("named:a"),
        identity: Some(Identity::new("a")?),
        remaining: 0,
        reset_at: at.plus(ms(DAY)),
        granted_at: at,
        mark: 1,
    };
    let answer = worker.store.observe(&worker.member, &[observation]).await;
    unsupported(answer, Capability::Corrections, "an observation")?;
    same(worker.granted(9).await?, 2, "grants that this has left")
}

async fn st_19_epoch(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(3))?;
    let reply = worker.acquire(1).await?;
    same(reply.head.epoch, None, "the epoch of an answer")?;
    let restore = Restore { epoch: Epoch(1), limit: None, paused_ms: DAY };
    let answer = worker.store.renew(&worker.member, Some(&restore), &[]).await;
    unsupported(answer, Capability::Epoch, "a restore")?;
    same(worker.granted(9).await?, 2, "grants that this has left")
}

async fn st_19_circuit(lab: &Lab) -> Result<(), Failure> {
    let process = lab.process_of(&in_a_row(1))?;
    unsupported(process.ask(&[]).await, Capability::Circuit, "a look at a circuit")?;
    unsupported(process.ask(&[CircuitAct::Elect]).await, Capability::Circuit, "an election")?;
    if let Some(operators) = lab.store().operators() {
        for position in [Position::Open, Position::Closed] {
            let answer = operators.set_circuit(process.id(), position).await;
            unsupported(answer, Capability::Circuit, "a circuit that is set by hand")?;
        }
    }
    Ok(())
}

async fn st_19_operators(lab: &Lab) -> Result<(), Failure> {
    ensure(lab.store().operators().is_none(), "there are operators, and they are not declared")
}

async fn st_19_has_operators(lab: &Lab) -> Result<(), Failure> {
    ensure(lab.store().operators().is_some(), "operators are declared, and there are none")
}

async fn st_19_has_scoped(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(3, ms(DAY)).scoped("tenant")))?;
    let request = scoped_jobs(None, vec![scoped_job(1, &[("tenant", "a")])?]);
    same(worker.ask_scoped(&request).await?.body.grants.len(), 1, "grants of one scoped job")
}

async fn st_19_wake(lab: &Lab) -> Result<(), Failure> {
    struct Deaf;
    impl Listener for Deaf {
        fn wake(&self, _: Wake) {}
    }
    let worker = lab.worker(&ruled(Rule::fixed_window(3, ms(DAY))))?;
    let subscription = worker.store.subscribe(worker.id(), worker.member.driver, Arc::new(Deaf));
    ensure(subscription.is_none(), "there is a subscription, and wake is not declared")
}

async fn st_19_sync(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(3, ms(DAY))))?;
    let path = worker.store.sync_path(worker.id());
    ensure(path.is_none(), "there is a synchronous path, and it is not declared")
}
