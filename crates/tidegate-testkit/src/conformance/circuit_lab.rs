//! What trials of circuits are written with: processes of a circuit, and what they say.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tidegate_core::{
    Capability, CircuitAct, CircuitDid, CircuitMember, CircuitPolicy, CircuitReply, CircuitRequest,
    CircuitSnapshot, CircuitView, Id, OnSuperseded, Reply, Store, StoreError, Wake,
    circuit::{
        Backoff, Batch, Change, CheckKind, CircuitDraft, Election, Judged, Leader, Recovery, Reported, Run,
        Strategy, Trial, TrialPermit, Verdict,
    },
};

use super::{
    Failure, Need,
    lab::{DAY, Ear, Lab, ms, policy},
};
use crate::subject::Hook;

pub(super) const CIRCUIT: Need = Need::Has(Capability::Circuit);
pub(super) const CLOCK: Need = Need::Hook(Hook::Clock);

/// A process of a circuit.
#[derive(Clone)]
pub(super) struct Process {
    pub(super) store: Arc<dyn Store>,
    pub(super) member: CircuitMember,
    /// The number of its last report.
    pub(super) number: Arc<AtomicU64>,
}

impl Lab {
    /// A process of the circuit of the id `trial`.
    pub(super) fn process_of(&self, draft: &CircuitDraft) -> Result<Process, Failure> {
        self.process_at("trial", draft)
    }

    pub(super) fn process_at(&self, id: &str, draft: &CircuitDraft) -> Result<Process, Failure> {
        Ok(Process {
            store: self.handle(false),
            member: CircuitMember {
                id: Id::new(id)?,
                driver: self.process(),
                policy: Arc::new(draft.check()?),
                on_superseded: OnSuperseded::Adopt,
            },
            number: Arc::default(),
        })
    }

    /// Another process of the same circuit, at the store's other handle.
    pub(super) fn beside(&self, process: &Process) -> Process {
        Process {
            store: self.handle(true),
            member: CircuitMember { driver: self.process(), ..process.member.clone() },
            number: Arc::default(),
        }
    }

    /// Has a process told what happens.
    pub(super) async fn hears(&self, process: &Process) -> Result<Ear, Failure> {
        let mut worker = self.worker_of(process.member.id.as_str(), &policy())?;
        worker.store = Arc::clone(&process.store);
        worker.member.driver = process.member.driver;
        self.listen(&worker).await
    }
}

impl Process {
    pub(super) fn id(&self) -> &Id {
        &self.member.id
    }

    /// The same process with another policy.
    pub(super) fn with(&self, draft: &CircuitDraft) -> Result<Self, Failure> {
        let policy = Arc::new(draft.check()?);
        Ok(Self { member: CircuitMember { policy, ..self.member.clone() }, ..self.clone() })
    }

    pub(super) fn refusing(mut self) -> Self {
        self.member.on_superseded = OnSuperseded::Refuse;
        self
    }

    pub(super) async fn ask(&self, acts: &[CircuitAct]) -> Result<Reply<CircuitReply>, StoreError> {
        let request = CircuitRequest { acts: acts.to_vec() };
        let reply = self.store.circuit(&self.member, &request).await?;
        reply.body.check(&request)?;
        Ok(reply)
    }

    /// What came of one act.
    pub(super) async fn does(&self, act: CircuitAct) -> Result<CircuitDid, Failure> {
        let did = self.ask(&[act]).await?.body.did;
        did.into_iter().next().ok_or_else(|| Failure("an act was not answered".to_owned()))
    }

    /// How the circuit stands.
    pub(super) async fn view(&self) -> Result<CircuitView, Failure> {
        Ok(self.ask(&[]).await?.body.view)
    }

    /// What is left until the next attempt or idle probe.
    pub(super) async fn next_in(&self) -> Result<Option<u64>, Failure> {
        let reply = self.ask(&[]).await?;
        let now_ms = now_of(&reply)?;
        Ok(reply.body.view.next_ms.map(|next_ms| next_ms.saturating_sub(now_ms)))
    }

    pub(super) async fn snapshot(&self) -> Result<Option<CircuitSnapshot>, Failure> {
        let Some(operators) = self.store.operators() else {
            return Err(Failure("operators are declared, and there are none".to_owned()));
        };
        Ok(operators.snapshot(self.id()).await?.body.and_then(|snapshot| snapshot.circuit))
    }

    // ---- reporting -------------------------------------------------------------------------------------------------

    pub(super) fn report(&self, generation: u64, runs: &[Run]) -> Result<CircuitAct, Failure> {
        let number = self.number.fetch_add(1, Ordering::SeqCst) + 1;
        Ok(CircuitAct::Report { number, generation, batch: Batch::new(runs.to_vec())? })
    }

    /// Reports results of calls that began just now.
    pub(super) async fn reports(&self, runs: &[Run]) -> Result<Reported, Failure> {
        let generation = self.view().await?.generation;
        self.reports_of(generation, runs).await
    }

    pub(super) async fn reports_of(&self, generation: u64, runs: &[Run]) -> Result<Reported, Failure> {
        let act = self.report(generation, runs)?;
        self.reported(act).await
    }

    /// Under this very number.
    pub(super) async fn reports_as(&self, number: u64, runs: &[Run]) -> Result<Reported, Failure> {
        let generation = self.view().await?.generation;
        let batch = Batch::new(runs.to_vec())?;
        self.reported(CircuitAct::Report { number, generation, batch }).await
    }

    async fn reported(&self, act: CircuitAct) -> Result<Reported, Failure> {
        match self.does(act).await? {
            CircuitDid::Reported(reported) => Ok(reported),
            did => Err(odd(&did)),
        }
    }

    /// Opens the circuit by so many failures.
    pub(super) async fn opens(&self, failures: u32) -> Result<Change, Failure> {
        match self.reports(&[Run::failures(failures)]).await? {
            Reported::Opened(change) => Ok(change),
            reported => {
                Err(Failure(format!("{failures} failures open the circuit, and came to {reported:?}")))
            }
        }
    }

    pub(super) async fn recent(&self) -> Result<(u64, Vec<Run>), Failure> {
        match self.does(CircuitAct::Recent).await? {
            CircuitDid::Recent { generation, runs } => Ok((generation, runs)),
            did => Err(odd(&did)),
        }
    }

    // ---- leading ---------------------------------------------------------------------------------------------------

    pub(super) async fn elects(&self) -> Result<Election, Failure> {
        match self.does(CircuitAct::Elect).await? {
            CircuitDid::Elected(election) => Ok(election),
            did => Err(odd(&did)),
        }
    }

    pub(super) async fn leads(&self) -> Result<Leader, Failure> {
        match self.elects().await? {
            Election::Leads(leader) => Ok(leader),
            Election::Follows { retry_ms } => {
                Err(Failure(format!("the seat is free, and it follows for {retry_ms} ms")))
            }
        }
    }

    /// For how long it is to follow.
    pub(super) async fn follows(&self) -> Result<u64, Failure> {
        match self.elects().await? {
            Election::Follows { retry_ms } => Ok(retry_ms),
            Election::Leads(leader) => {
                Err(Failure(format!("another one leads, and it is elected: {leader:?}")))
            }
        }
    }

    pub(super) async fn renews(&self, fence: u64) -> Result<Option<u64>, Failure> {
        match self.does(CircuitAct::Renew { fence }).await? {
            CircuitDid::Renewed(until_ms) => Ok(until_ms),
            did => Err(odd(&did)),
        }
    }

    pub(super) async fn resigns(&self, fence: u64) -> Result<bool, Failure> {
        match self.does(CircuitAct::Resign { fence }).await? {
            CircuitDid::Resigned(held) => Ok(held),
            did => Err(odd(&did)),
        }
    }

    /// The verdict of the check that is next.
    pub(super) async fn checked(&self, fence: u64, verdict: Verdict) -> Result<Judged, Failure> {
        let view = self.view().await?;
        let kind = match view.attempt {
            Some(attempt) => CheckKind::Recovery { attempt },
            None => CheckKind::Idle { at_ms: view.next_ms.unwrap_or(0) },
        };
        self.checks(fence, view.generation, kind, verdict).await
    }

    pub(super) async fn checks(
        &self,
        fence: u64,
        generation: u64,
        kind: CheckKind,
        verdict: Verdict,
    ) -> Result<Judged, Failure> {
        self.judged(CircuitAct::Verdict { fence, generation, kind, verdict }).await
    }

    async fn judged(&self, act: CircuitAct) -> Result<Judged, Failure> {
        match self.does(act).await? {
            CircuitDid::Judged(judged) => Ok(judged),
            did => Err(odd(&did)),
        }
    }

    pub(super) async fn schedules(
        &self,
        generation: u64,
        attempt: u64,
        wait_ms: u64,
    ) -> Result<Option<u64>, Failure> {
        match self.does(CircuitAct::Schedule { generation, attempt, wait_ms }).await? {
            CircuitDid::Scheduled(at_ms) => Ok(at_ms),
            did => Err(odd(&did)),
        }
    }

    // ---- trying ----------------------------------------------------------------------------------------------------

    pub(super) async fn tries(&self, ask: u64) -> Result<Trial, Failure> {
        match self.does(CircuitAct::Trial { ask }).await? {
            CircuitDid::Trial(trial) => Ok(trial),
            did => Err(odd(&did)),
        }
    }

    pub(super) async fn permit(&self, ask: u64) -> Result<TrialPermit, Failure> {
        match self.tries(ask).await? {
            Trial::Granted(permit) => Ok(permit),
            trial => Err(Failure(format!("a trial call is offered, and came to {trial:?}"))),
        }
    }

    pub(super) async fn tried(&self, fence: u64, verdict: Verdict) -> Result<Judged, Failure> {
        self.judged(CircuitAct::TrialResult { fence, verdict }).await
    }

    pub(super) async fn keeps(&self, fence: u64) -> Result<Option<u64>, Failure> {
        match self.does(CircuitAct::RenewTrial { fence }).await? {
            CircuitDid::RenewedTrial(until_ms) => Ok(until_ms),
            did => Err(odd(&did)),
        }
    }

    pub(super) async fn gives_back(&self, fence: u64) -> Result<bool, Failure> {
        match self.does(CircuitAct::GiveBack { fence }).await? {
            CircuitDid::GaveBack(held) => Ok(held),
            did => Err(odd(&did)),
        }
    }
}

impl Ear {
    /// Waits until it is told that the circuit stands so, or fails.
    pub(super) async fn circuit(
        &self,
        what: &str,
        is_it: impl Fn(&CircuitView) -> bool + Send + Sync,
    ) -> Result<CircuitView, Failure> {
        let is_it = move |wake: &Wake| matches!(wake, Wake::Circuit(news) if is_it(&news.view));
        match self.expect(what, is_it).await? {
            Wake::Circuit(news) => Ok(news.view),
            _ => Err(Failure(format!("{what} was not pushed"))),
        }
    }
}

fn odd(did: &CircuitDid) -> Failure {
    Failure(format!("an act was answered by {did:?}"))
}

/// The store's clock, which an answer about a circuit always says.
pub(super) fn now_of(reply: &Reply<CircuitReply>) -> Result<u64, Failure> {
    let now =
        reply.head.now.ok_or_else(|| Failure("an answer about a circuit does not say when".to_owned()))?;
    Ok(now.millis())
}

// ---- policies ------------------------------------------------------------------------------------------------------

/// Opens after so many failures in a row. A leader leads for a day, and the first check is due at once.
pub(super) fn in_a_row(threshold: u32) -> CircuitDraft {
    strategy(Strategy::Consecutive { threshold })
}

pub(super) fn strategy(strategy: Strategy) -> CircuitDraft {
    CircuitPolicy::draft(strategy, Recovery::health_check(), Backoff::Constant(Duration::ZERO))
        .leader_ttl(ms(DAY))
}

pub(super) fn share(threshold: f64, size: u32, minimum_calls: u32) -> CircuitDraft {
    strategy(Strategy::Count { threshold, size, minimum_calls })
}

/// Opens after two failures in a row, and recovers with this backoff.
pub(super) fn waiting(backoff: Backoff) -> CircuitDraft {
    CircuitPolicy::draft(Strategy::Consecutive { threshold: 2 }, Recovery::health_check(), backoff)
        .leader_ttl(ms(DAY))
}

/// Opens after two failures in a row, and lets so many calls try it then.
pub(super) fn half_open(permits: u32, permit_ttl_ms: u64, backoff: Backoff) -> CircuitDraft {
    let recovery = Recovery::HalfOpen { permits, permit_ttl: ms(permit_ttl_ms) };
    CircuitPolicy::draft(Strategy::Consecutive { threshold: 2 }, recovery, backoff)
}

/// Probes when nobody has called for so long, and opens after a million failures in a sample of them otherwise.
pub(super) fn idle(interval_ms: u64) -> CircuitDraft {
    let recovery = Recovery::HealthCheck { check_timeout: ms(1_000), idle_interval: Some(ms(interval_ms)) };
    CircuitPolicy::draft(
        Strategy::Count { threshold: 1.0, size: 1_000, minimum_calls: 1_000 },
        recovery,
        Backoff::Constant(ms(100)),
    )
    .leader_ttl(ms(DAY))
    .min_reporters(5)
}

pub(super) const fn constant(wait_ms: u64) -> Backoff {
    Backoff::Constant(Duration::from_millis(wait_ms))
}
