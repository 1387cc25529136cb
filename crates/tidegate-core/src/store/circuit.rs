//! What the processes of a circuit ask of a store, and what it answers.
//!
//! A process says all that it has to say in one request: a list of acts, which are carried out in order, in one step.
//! Each act answers for itself, and every answer shows how the circuit stands after all of them. Each can be told again
//! where its answer was lost: it then changes nothing more.
//!
//! Spec: section 4.

use std::sync::Arc;

use super::{Cause, StoreError, at_most};
use crate::{
    CircuitPolicy, DriverId, Id, Invalid, OnSuperseded,
    circuit::{
        Batch, Change, CheckKind, CircuitState, Election, Judged, Leader, MOST_RUNS, Position, Reported, Run,
        Trial, Verdict, Why,
    },
    policy::deciding,
    time::{EXACT, LONGEST, Moment, ceil_millis},
};

/// The most acts of one request.
pub const MOST_ACTS: usize = 64;

/// Who speaks for a process about a circuit.
#[derive(Clone, Debug)]
pub struct CircuitMember {
    /// The id.
    pub id: Id,
    /// The process.
    pub driver: DriverId,
    /// The circuit's policy as this process has it. It is pinned on its own, apart from what gates the calls.
    pub policy: Arc<CircuitPolicy>,
    /// What to do where a newer revision is pinned.
    pub on_superseded: OnSuperseded,
}

impl CircuitMember {
    /// The policy that decides on this member's requests, given the pinned one.
    ///
    /// # Errors
    /// `PolicyDiffers` for another policy of the same revision, `Superseded` for a lower revision that will not adopt.
    ///
    /// Spec: ST-5.
    pub fn deciding(&self, pinned: Option<&Arc<CircuitPolicy>>) -> Result<Arc<CircuitPolicy>, StoreError> {
        deciding(&self.policy, pinned, self.on_superseded)
    }
}

/// What a process has to say about a circuit; without acts it is a look.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CircuitRequest {
    /// At most [`MOST_ACTS`], carried out in order.
    pub acts: Vec<CircuitAct>,
}

/// One thing that a process says. Each is a step of [`CircuitState`], where it is told what it does.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CircuitAct {
    /// [`CircuitState::report`].
    Report {
        /// Grows from report to report of this process, from 1.
        number: u64,
        /// The generation under which the calls began.
        generation: u64,
        /// What came of them.
        batch: Batch,
    },
    /// [`CircuitState::strategy_opens`].
    Open {
        /// The generation whose results the strategy has seen.
        generation: u64,
    },
    /// The [recent](CircuitState::recent) results of the fleet.
    Recent,
    /// [`CircuitState::elect`].
    Elect,
    /// [`CircuitState::renew`].
    Renew {
        /// The leader's fence.
        fence: u64,
    },
    /// [`CircuitState::resign`].
    Resign {
        /// The leader's fence.
        fence: u64,
    },
    /// [`CircuitState::check_verdict`].
    Verdict {
        /// The leader's fence.
        fence: u64,
        /// The generation under which the check began.
        generation: u64,
        /// Which check.
        kind: CheckKind,
        /// What came of it.
        verdict: Verdict,
    },
    /// [`CircuitState::schedule`].
    Schedule {
        /// The generation of the opening.
        generation: u64,
        /// Which attempt.
        attempt: u64,
        /// How long the wait before it is, from now: at most 366 days.
        wait_ms: u64,
    },
    /// [`CircuitState::try_half_open`].
    Trial {
        /// Another number for each trial call that this process asks for.
        ask: u64,
    },
    /// [`CircuitState::renew_trial`].
    RenewTrial {
        /// The permit's fence.
        fence: u64,
    },
    /// [`CircuitState::give_back`].
    GiveBack {
        /// The permit's fence.
        fence: u64,
    },
    /// [`CircuitState::half_open_result`].
    TrialResult {
        /// The permit's fence.
        fence: u64,
        /// What came of the call.
        verdict: Verdict,
    },
}

/// What came of an act, in the order of the request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CircuitDid {
    /// Of a report.
    Reported(Reported),
    /// Of an opening by a strategy of one's own; none where it did not open.
    Opened(Option<Change>),
    /// The results of the fleet since the last change, oldest first.
    Recent {
        /// The generation that they are of.
        generation: u64,
        /// The results.
        runs: Vec<Run>,
    },
    /// Of standing for election.
    Elected(Election),
    /// Until when the leader's lease lives, in ms of the store's clock; none where it does not.
    Renewed(Option<u64>),
    /// Whether leadership was held.
    Resigned(bool),
    /// Of a verdict, or of the result of a trial call.
    Judged(Judged),
    /// When the attempt comes, in ms of the store's clock; none where it is another, or nothing was to be said.
    Scheduled(Option<u64>),
    /// Of asking for a trial call.
    Trial(Trial),
    /// Until when the trial's permit lives, in ms of the store's clock; none where it does not.
    RenewedTrial(Option<u64>),
    /// Whether the permit was held.
    GaveBack(bool),
}

/// How a circuit stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CircuitView {
    /// Grows by one with each change.
    pub generation: u64,
    /// Closed or open.
    pub position: Position,
    /// What the last change was for; none before the first.
    pub why: Option<Why>,
    /// The moment of the last change, or of the start, in ms of the store's clock.
    pub since_ms: u64,
    /// The next attempt to recover, while it is open.
    pub attempt: Option<u64>,
    /// The moment of the next attempt, or of the next idle probe while it is closed; none where there is none, or
    /// nobody has scheduled it.
    pub next_ms: Option<u64>,
    /// Who leads, if anyone does.
    pub leader: Option<Leader>,
}

impl CircuitView {
    /// How `state` stands at `now_ms`.
    pub fn of(state: &CircuitState, policy: &CircuitPolicy, now_ms: u64) -> Self {
        let next_ms = match state.position() {
            Position::Open => state.next_attempt_ms(),
            Position::Closed => state.next_check(policy).and_then(|check| check.at_ms),
        };
        Self {
            generation: state.generation(),
            position: state.position(),
            why: state.why(),
            since_ms: state.since_ms(),
            attempt: state.attempt(),
            next_ms,
            leader: state.leader(now_ms),
        }
    }

    /// Whether calls are blocked.
    pub fn is_open(&self) -> bool {
        self.position == Position::Open
    }
}

/// What a store answers to a process of a circuit. The head says no more than the store's clock and the revision of the
/// circuit's policy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CircuitReply {
    /// How the circuit stands after the step.
    pub view: CircuitView,
    /// One for each act.
    pub did: Vec<CircuitDid>,
}

/// A circuit at one moment, as operators see it.
///
/// Spec: ST-20.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CircuitSnapshot {
    /// The pinned policy.
    pub policy: Arc<CircuitPolicy>,
    /// How it stands.
    pub view: CircuitView,
    /// How many processes were heard in the last 10 s; up to 1,000.
    pub heard: u32,
    /// How many of them have a recent failure.
    pub failing: u32,
    /// How many permits of trial calls are out.
    pub trials: u32,
}

impl CircuitRequest {
    /// Checks the whole request.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] for too many acts or runs, and for a number that no store could keep.
    ///
    /// Spec: BI-1.
    pub fn check(&self) -> Result<(), StoreError> {
        at_most("acts", self.acts.len(), MOST_ACTS)?;
        let runs = self.acts.iter().map(|act| match act {
            CircuitAct::Report { batch, .. } => batch.runs().len(),
            _ => 0,
        });
        at_most("runs", runs.sum(), MOST_RUNS)?;
        self.acts.iter().try_for_each(CircuitAct::check)
    }
}

impl CircuitAct {
    fn check(&self) -> Result<(), StoreError> {
        match *self {
            Self::Report { number, generation, .. } => {
                exact(&[("number", number), ("generation", generation)])
            }
            Self::Open { generation } => exact(&[("generation", generation)]),
            Self::Recent | Self::Elect => Ok(()),
            Self::Renew { fence }
            | Self::Resign { fence }
            | Self::RenewTrial { fence }
            | Self::GiveBack { fence }
            | Self::TrialResult { fence, .. } => exact(&[("fence", fence)]),
            Self::Verdict { fence, generation, kind, .. } => {
                let kind = match kind {
                    CheckKind::Recovery { attempt } => ("attempt", attempt),
                    CheckKind::Idle { at_ms } => ("at_ms", at_ms),
                };
                exact(&[("fence", fence), ("generation", generation), kind])
            }
            Self::Schedule { wait_ms, .. } if wait_ms > ceil_millis(LONGEST) => {
                Err(Invalid::new("wait_ms", wait_ms, "at most 366 days").into())
            }
            Self::Schedule { generation, attempt, .. } => {
                exact(&[("generation", generation), ("attempt", attempt)])
            }
            Self::Trial { ask } => exact(&[("ask", ask)]),
        }
    }
}

/// Refuses numbers that Lua and SQL would not keep exactly.
fn exact(numbers: &[(&str, u64)]) -> Result<(), StoreError> {
    match numbers.iter().find(|(_, number)| *number >= EXACT) {
        Some((option, number)) => Err(Invalid::new(*option, number, "below 2^53").into()),
        None => Ok(()),
    }
}

impl CircuitReply {
    /// Checks this answer against what was asked.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] with [`Cause::Broken`] for one answer too many or too few, one
    /// of another kind, or a view that makes no sense.
    ///
    /// Spec: UN-1.
    pub fn check(&self, request: &CircuitRequest) -> Result<(), StoreError> {
        let broken = |what: &str| Err(StoreError::unavailable(Cause::Broken, what));
        if self.did.len() != request.acts.len()
            || !request.acts.iter().zip(&self.did).all(|(act, did)| did.answers(act))
        {
            return broken("one answer for each act of a circuit");
        }
        if self.view.is_open() != self.view.attempt.is_some() || self.view.generation == 0 {
            return broken("a circuit that is open with an attempt to come, or closed");
        }
        Ok(())
    }
}

impl CircuitDid {
    const fn answers(&self, act: &CircuitAct) -> bool {
        use CircuitAct as A;
        matches!(
            (act, self),
            (A::Report { .. }, Self::Reported(_))
                | (A::Open { .. }, Self::Opened(_))
                | (A::Recent, Self::Recent { .. })
                | (A::Elect, Self::Elected(_))
                | (A::Renew { .. }, Self::Renewed(_))
                | (A::Resign { .. }, Self::Resigned(_))
                | (A::Verdict { .. } | A::TrialResult { .. }, Self::Judged(_))
                | (A::Schedule { .. }, Self::Scheduled(_))
                | (A::Trial { .. }, Self::Trial(_))
                | (A::RenewTrial { .. }, Self::RenewedTrial(_))
                | (A::GiveBack { .. }, Self::GaveBack(_))
        )
    }
}

/// What a push says of a circuit: how it stands, and when that was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CircuitNews {
    /// How it stands.
    pub view: CircuitView,
    /// The store's clock.
    pub now: Moment,
}
