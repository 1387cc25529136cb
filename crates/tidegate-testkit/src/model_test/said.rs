//! What the processes of a circuit say, by what they were told before.
//!
//! A fence, a generation, an attempt or a number is named by how long ago it was: so it means the same on both sides,
//! and still means something where operations were taken out.

use std::fmt;

use tidegate_core::{
    CircuitAct, CircuitDid, CircuitReply, CircuitRequest, CircuitView,
    circuit::{Batch, CheckKind, Election, Judged, Position, Reported, Run, Trial, TrialPermit, Verdict},
};

use super::world::{CIRCUIT_DRIVERS, Who};

/// With a step of the clock no longer than this, what is in use stays in use.
pub(super) const SURELY_KEPT_MICROS: u64 = 86_400_000_000;

/// How much of each kind is remembered.
const REMEMBERED: usize = 12;

#[derive(Clone, Debug)]
pub(super) enum Said {
    Report { number: Count, generation: Past, batch: Batch },
    Open { generation: Past },
    Recent,
    Elect,
    Renew { fence: Fence },
    Resign { fence: Fence },
    Verdict { fence: Fence, generation: Past, kind: Kind, verdict: Verdict },
    Schedule { generation: Past, attempt: Past, wait_ms: u64 },
    Trial { ask: Count },
    RenewTrial { fence: Fence },
    GiveBack { fence: Fence },
    TrialResult { fence: Fence, verdict: Verdict },
}

/// Something that was answered so many answers ago, or what never was.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Past {
    Ago(usize),
    Never(u64),
}

/// A fence of this driver, so many ago: the leader's, or a trial's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Fence {
    Leader { of: usize, ago: usize },
    Trial { of: usize, ago: usize },
    Never(u64),
}

/// A number that a process counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Count {
    Next,
    Again,
    Lower,
    Exactly(u64),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Recovery(Past),
    Idle(Past),
}

/// What the processes of one circuit were told.
#[derive(Default)]
pub(super) struct Heard {
    /// Whether the circuit was ever asked for.
    pub(super) is_known: bool,
    /// Whether it is surely kept.
    pub(super) is_settled: bool,
    pub(super) view: Option<CircuitView>,
    /// The driver that was granted a trial last.
    pub(super) tries: Option<usize>,
    generations: Vec<u64>,
    attempts: Vec<u64>,
    /// When an idle probe was to come.
    idle: Vec<u64>,
    leaders: [Vec<u64>; CIRCUIT_DRIVERS],
    permits: [Vec<u64>; CIRCUIT_DRIVERS],
    reports: [u64; CIRCUIT_DRIVERS],
    asks: [u64; CIRCUIT_DRIVERS],
}

impl Heard {
    /// Where nothing is kept of a circuit, no store can know that its clock ran back.
    pub(super) const fn knows_time(&self) -> bool {
        self.is_settled || !self.is_known
    }

    /// How many permits the driver was given, as far as they are remembered.
    pub(super) fn permits(&self, driver: usize) -> usize {
        self.permits[driver].len()
    }

    pub(super) fn request(&self, who: Who, said: &[Said]) -> CircuitRequest {
        let (mut report, mut ask) = (self.reports[who.driver], self.asks[who.driver]);
        let acts = said.iter().map(|one| self.act(one, &mut report, &mut ask)).collect();
        CircuitRequest { acts }
    }

    fn act(&self, said: &Said, report: &mut u64, ask: &mut u64) -> CircuitAct {
        let generation = |past| past_of(&self.generations, past);
        match said {
            Said::Report { number, generation: of, batch } => {
                *report = number.of(*report);
                CircuitAct::Report { number: *report, generation: generation(*of), batch: batch.clone() }
            }
            Said::Open { generation: of } => CircuitAct::Open { generation: generation(*of) },
            Said::Recent => CircuitAct::Recent,
            Said::Elect => CircuitAct::Elect,
            Said::Renew { fence } => CircuitAct::Renew { fence: self.fence(*fence) },
            Said::Resign { fence } => CircuitAct::Resign { fence: self.fence(*fence) },
            Said::Verdict { fence, generation: of, kind, verdict } => CircuitAct::Verdict {
                fence: self.fence(*fence),
                generation: generation(*of),
                kind: match *kind {
                    Kind::Recovery(past) => CheckKind::Recovery { attempt: past_of(&self.attempts, past) },
                    Kind::Idle(past) => CheckKind::Idle { at_ms: past_of(&self.idle, past) },
                },
                verdict: *verdict,
            },
            Said::Schedule { generation: of, attempt, wait_ms } => CircuitAct::Schedule {
                generation: generation(*of),
                attempt: past_of(&self.attempts, *attempt),
                wait_ms: *wait_ms,
            },
            Said::Trial { ask: number } => {
                *ask = number.of(*ask);
                CircuitAct::Trial { ask: *ask }
            }
            Said::RenewTrial { fence } => CircuitAct::RenewTrial { fence: self.fence(*fence) },
            Said::GiveBack { fence } => CircuitAct::GiveBack { fence: self.fence(*fence) },
            Said::TrialResult { fence, verdict } => {
                CircuitAct::TrialResult { fence: self.fence(*fence), verdict: *verdict }
            }
        }
    }

    fn fence(&self, fence: Fence) -> u64 {
        match fence {
            Fence::Leader { of, ago } => past_of(&self.leaders[of], Past::Ago(ago)),
            Fence::Trial { of, ago } => past_of(&self.permits[of], Past::Ago(ago)),
            Fence::Never(fence) => fence,
        }
    }

    /// Notes what came of a request.
    pub(super) fn answered(&mut self, who: Who, request: &CircuitRequest, reply: &CircuitReply) {
        for (act, did) in request.acts.iter().zip(&reply.did) {
            match (act, did) {
                (CircuitAct::Report { number, .. }, _) => self.reports[who.driver] = *number,
                (CircuitAct::Trial { ask }, CircuitDid::Trial(trial)) => {
                    self.asks[who.driver] = *ask;
                    if let Trial::Granted(TrialPermit { fence, .. }) = trial {
                        note(&mut self.permits[who.driver], *fence);
                        self.tries = Some(who.driver);
                    }
                }
                (_, CircuitDid::Elected(Election::Leads(leader))) => {
                    note(&mut self.leaders[who.driver], leader.fence);
                }
                _ => {}
            }
        }
        let view = reply.view;
        note(&mut self.generations, view.generation);
        if let Some(attempt) = view.attempt {
            note(&mut self.attempts, attempt);
        }
        if let (Position::Closed, Some(at_ms)) = (view.position, view.next_ms) {
            note(&mut self.idle, at_ms);
        }
        self.view = Some(view);
    }
}

impl Count {
    const fn of(self, last: u64) -> u64 {
        match self {
            Self::Next => last.saturating_add(1),
            Self::Again => last,
            Self::Lower => last.saturating_sub(1),
            Self::Exactly(number) => number,
        }
    }
}

/// Keeps the newest last, each once in a row.
fn note(known: &mut Vec<u64>, new: u64) {
    if known.last() != Some(&new) {
        known.push(new);
    }
    if known.len() > REMEMBERED {
        known.remove(0);
    }
}

fn past_of(known: &[u64], past: Past) -> u64 {
    match past {
        Past::Ago(ago) => known.iter().rev().nth(ago).copied().unwrap_or(1),
        Past::Never(value) => value,
    }
}

impl Said {
    /// The same with less in it, one way each.
    pub(super) fn simpler(&self) -> impl Iterator<Item = Self> {
        let mut all = Vec::new();
        if let Self::Report { number, generation, batch } = self {
            let runs = batch.runs();
            let mut with = |runs: Vec<Run>| {
                if let Ok(batch) = Batch::new(runs) {
                    all.push(Self::Report { number: *number, generation: *generation, batch });
                }
            };
            if !runs.is_empty() {
                with(runs[..runs.len() - 1].to_vec());
                with(runs[1..].to_vec());
            }
            for (at, run) in runs.iter().enumerate().filter(|(_, run)| run.times > 1) {
                let mut runs = runs.to_vec();
                runs[at].times = run.times / 2;
                with(runs);
            }
        }
        all.into_iter()
    }
}

/// What kinds of answers these are, for statistics.
pub(super) fn kinds(request: &CircuitRequest, reply: &CircuitReply) -> Vec<&'static str> {
    let each = request.acts.iter().zip(&reply.did);
    each.map(|(act, did)| match (act, did) {
        (_, CircuitDid::Reported(Reported::Dropped)) => "report dropped",
        (_, CircuitDid::Reported(Reported::Counted)) => "report counted",
        (_, CircuitDid::Reported(Reported::Opened(_))) => "report opened",
        (_, CircuitDid::Opened(Some(_))) => "strategy opened",
        (_, CircuitDid::Opened(None)) => "strategy did not open",
        (_, CircuitDid::Recent { runs, .. }) if runs.is_empty() => "no recent results",
        (_, CircuitDid::Recent { .. }) => "recent results",
        (_, CircuitDid::Elected(Election::Leads(_))) => "leads",
        (_, CircuitDid::Elected(Election::Follows { .. })) => "follows",
        (_, CircuitDid::Renewed(Some(_))) => "renewed",
        (_, CircuitDid::Renewed(None)) => "leads no more",
        (_, CircuitDid::Resigned(true)) => "resigned",
        (_, CircuitDid::Resigned(false)) => "nothing to resign",
        (CircuitAct::TrialResult { .. }, CircuitDid::Judged(judged)) => match judged {
            Judged::Stale => "trial stale",
            Judged::Counted => "trial counted",
            Judged::Changed(_) => "trial closed",
        },
        (CircuitAct::Verdict { kind: CheckKind::Idle { .. }, .. }, CircuitDid::Judged(judged)) => {
            match judged {
                Judged::Stale => "idle probe stale",
                Judged::Counted => "idle probe counted",
                Judged::Changed(_) => "idle probe opened",
            }
        }
        (_, CircuitDid::Judged(Judged::Stale)) => "check stale",
        (_, CircuitDid::Judged(Judged::Counted)) => "check counted",
        (_, CircuitDid::Judged(Judged::Changed(_))) => "check closed",
        (_, CircuitDid::Scheduled(Some(_))) => "scheduled",
        (_, CircuitDid::Scheduled(None)) => "nothing to schedule",
        (_, CircuitDid::Trial(trial)) => match trial {
            Trial::Granted(_) => "trial granted",
            Trial::TooEarly { .. } => "trial too early",
            Trial::Unscheduled { .. } => "trial unscheduled",
            Trial::Full { .. } => "trials full",
            Trial::NotOffered => "trial not offered",
        },
        (_, CircuitDid::RenewedTrial(Some(_))) => "trial renewed",
        (_, CircuitDid::RenewedTrial(None)) => "trial lost",
        (_, CircuitDid::GaveBack(true)) => "gave back",
        (_, CircuitDid::GaveBack(false)) => "nothing to give back",
    })
    .collect()
}

// ---- reading -------------------------------------------------------------------------------------------------------

impl fmt::Display for Past {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ago(0) => f.write_str("the newest"),
            Self::Ago(ago) => write!(f, "that of {ago} ago"),
            Self::Never(value) => write!(f, "{value}"),
        }
    }
}

impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leader { of, ago } => write!(f, "driver {of}'s leading fence, {}", Past::Ago(*ago)),
            Self::Trial { of, ago } => write!(f, "driver {of}'s permit, {}", Past::Ago(*ago)),
            Self::Never(fence) => write!(f, "the fence {fence}"),
        }
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Next => f.write_str("the next number"),
            Self::Again => f.write_str("the same number"),
            Self::Lower => f.write_str("a lower number"),
            Self::Exactly(number) => write!(f, "number {number}"),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Recovery(past) => write!(f, "recovery, attempt {past}"),
            Self::Idle(past) => write!(f, "idle, moment {past}"),
        }
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Report { number, generation, batch } => {
                write!(f, "reports under {number}, generation {generation}:")?;
                batch.runs().iter().try_for_each(|run| match run.verdict {
                    Verdict::Success => write!(f, " +{}", run.times),
                    Verdict::Failure => write!(f, " -{}", run.times),
                })
            }
            Self::Open { generation } => write!(f, "opens generation {generation}"),
            Self::Recent => f.write_str("asks for what is recent"),
            Self::Elect => f.write_str("stands for election"),
            Self::Renew { fence } => write!(f, "renews {fence}"),
            Self::Resign { fence } => write!(f, "resigns {fence}"),
            Self::Verdict { fence, generation, kind, verdict } => {
                write!(f, "{verdict:?} of a check ({kind}) under {fence}, generation {generation}")
            }
            Self::Schedule { generation, attempt, wait_ms } => {
                write!(f, "schedules attempt {attempt} of generation {generation} in {wait_ms} ms")
            }
            Self::Trial { ask } => write!(f, "asks for a trial under {ask}"),
            Self::RenewTrial { fence } => write!(f, "renews {fence}"),
            Self::GiveBack { fence } => write!(f, "gives back {fence}"),
            Self::TrialResult { fence, verdict } => write!(f, "{verdict:?} of the trial call under {fence}"),
        }
    }
}
