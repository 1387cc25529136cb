//! The task of a breaker: everything that is said to the store, the leader's duties, and telling people.
//!
//! One request is under way at a time. What its answer was lost of is said again before anything else, as it was: each
//! act can be told twice. A report is not, once the store may have forgotten that it had it.
//!
//! Spec: CB-3, CB-7, CB-8, CB-10, CB-11.

use std::{pin::pin, sync::Arc, time::Duration};

use tidegate_core::{
    CircuitAct, CircuitDid, CircuitReply, CircuitRequest, Listener, Reply, StoreError,
    backoff::Doubling,
    circuit::{self, Election, HEARD_MS},
    store::MOST_ACTS,
    time::{LONGEST, Moment, ceil_millis},
};

use super::{
    Leadership, Recent, Role,
    check::Running,
    circuit::{Away, By, Circuit, Flight, Phase, State},
    notice::Notice,
    reports,
};
use crate::{clock::Task, link::is_lost, task::Guard};

/// A breaker that is told of changes looks for itself this often, and one that is not this often.
const LOOK: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(2));
/// The first probe of a store that is away, and the longest wait between two.
const PROBE: Doubling = Doubling::new(Duration::from_millis(100), Duration::from_secs(2));
/// A store knows a process, and the number of its last report, for so long. What could come later than that is not
/// reported again.
const REMEMBERED: Duration = Duration::from_millis(HEARD_MS);
/// The wait before an attempt for which the user's own backoff has none.
const NO_WAIT: Duration = Duration::from_secs(10);

/// Runs until the breaker has stopped.
pub(super) fn run(circuit: Arc<Circuit>, guard: Guard<Circuit>) -> Task {
    Box::pin(run_on(circuit, guard))
}

/// The task is gone before its end: whoever calls next starts it again.
pub(super) fn gone(circuit: &Circuit) {
    let mut state = circuit.lock();
    state.running = false;
    state.subscription = None;
    if let Phase::Stopping(_) = state.phase {
        circuit.stopped(&mut state);
    }
    circuit.refuse_trial(&mut state);
    circuit.unlock(state);
}

async fn run_on(circuit: Arc<Circuit>, guard: Guard<Circuit>) {
    circuit.subscribe();
    let mut check = None;
    loop {
        // Pushes may come as fast as they are taken; the others on this thread have their turn all the same.
        tokio::task::coop::consume_budget().await;
        circuit.cancel_in_vain(&mut check);
        let turn = circuit.turn(check.is_some());
        // What is known by now is told before any wait.
        circuit.tell();
        match turn {
            Turn::Judge(generation, recent) => circuit.ask_strategy(generation, &recent),
            Turn::Schedule { generation, attempt } => circuit.ask_backoff(generation, attempt),
            Turn::Check(kind) => check = circuit.begin_check(kind),
            Turn::Send(request) => circuit.send(&request, &mut check).await,
            Turn::Rest(until) => circuit.rest(until, &mut check).await,
            Turn::Over => {
                guard.done();
                return;
            }
        }
    }
}

/// What the task does next.
enum Turn {
    /// Asks a strategy of one's own.
    Judge(u64, Recent),
    /// Asks a backoff of one's own.
    Schedule { generation: u64, attempt: u64 },
    /// Begins a check.
    Check(circuit::CheckKind),
    /// Says something to the store.
    Send(CircuitRequest),
    /// Waits for something to do.
    Rest(Option<Moment>),
    /// Ends.
    Over,
}

impl Circuit {
    fn subscribe(self: &Arc<Self>) {
        let listener: Arc<dyn Listener> = Arc::clone(self) as _;
        let subscription = self.link.subscribe(&self.member.id, self.member.driver, listener);
        let mut state = self.lock();
        state.subscription = subscription;
        // Whatever was seen before may have changed since.
        state.look_at = Some(self.clock.now());
    }

    /// Says what to do next.
    fn turn(&self, checking: bool) -> Turn {
        let mut state = self.lock();
        let turn = self.next_turn(&mut state, checking);
        self.unlock(state);
        turn
    }

    fn next_turn(&self, state: &mut State, checking: bool) -> Turn {
        let now = self.clock.now();
        if state.leads.as_ref().is_some_and(|leads| leads.until <= now) {
            self.follow(state);
        }
        match state.phase {
            Phase::Running(_) => {}
            Phase::Stopping(until) if now < until && self.has_to_say(state) => {}
            Phase::Stopping(_) | Phase::Stopped => return self.end(state),
        }
        if state.away.as_ref().is_some_and(|away| now < away.probe_at) {
            return Turn::Rest(self.next_due(state, checking));
        }
        if let Some((generation, runs)) = state.recent.take() {
            return Turn::Judge(generation, Recent::new(runs));
        }
        if let Some((generation, attempt)) = self.to_schedule(state) {
            state.scheduled = Some((generation, attempt));
            return Turn::Schedule { generation, attempt };
        }
        if let Some(request) = self.next_request(state, now) {
            return Turn::Send(request);
        }
        if !checking
            && let Some((kind, due)) = self.next_check(state)
            && due <= now
        {
            return Turn::Check(kind);
        }
        Turn::Rest(self.next_due(state, checking))
    }

    /// Whether something is left to say before it stops.
    fn has_to_say(&self, state: &State) -> bool {
        let said = state.reports.is_empty() && state.outbox.is_empty() && state.flying.is_none();
        !said || state.leads.is_some()
    }

    fn end(&self, state: &mut State) -> Turn {
        self.follow(state);
        let flying = state.flying.take().map(|flight| flight.request.acts).unwrap_or_default();
        let dropped = flying.iter().map(results_of).sum::<usize>() + state.reports.results();
        if dropped > 0 {
            state.notices.push_back(Notice::Undelivered(dropped));
        }
        state.outbox.clear();
        state.reports.clear();
        if !state.notices.is_empty() {
            // They are told first.
            return Turn::Rest(Some(Moment::default()));
        }
        state.running = false;
        self.stopped(state);
        Turn::Over
    }

    /// This process leads no more where its own deadline has passed, also while it waits for an answer.
    fn lapse(&self) {
        let now = self.clock.now();
        let mut state = self.lock();
        if state.leads.as_ref().is_some_and(|leads| leads.until <= now) {
            self.follow(&mut state);
        }
    }

    /// This process leads no more.
    fn follow(&self, state: &mut State) {
        if state.leads.take().is_some() {
            state.judging = false;
            state.notices.push_back(Notice::Role(Role::Follower));
        }
    }

    // ---- what is to be said ------------------------------------------------------------------------------------------

    /// The request that is to be sent now: the one whose answer was lost, or a new one.
    fn next_request(&self, state: &mut State, now: Moment) -> Option<CircuitRequest> {
        if let Some(lost) = &mut state.flying {
            lost.sent = now;
            if now.since(lost.first_sent).saturating_add(self.op_timeout) < REMEMBERED {
                return Some(lost.request.clone());
            }
            let acts = std::mem::take(&mut lost.request.acts);
            state.flying = None;
            let dropped = acts.iter().map(results_of).sum();
            if dropped > 0 {
                state.notices.push_back(Notice::Undelivered(dropped));
            }
            for act in acts.into_iter().rev().filter(is_said_later) {
                state.outbox.push_front(act);
            }
        }
        let acts = self.acts(state, now);
        let looks = state.look_at.is_some_and(|at| at <= now) || state.away.is_some();
        if acts.is_empty() && !looks {
            return None;
        }
        let request = CircuitRequest { acts };
        state.flying = Some(Flight { request: request.clone(), first_sent: now, sent: now });
        Some(request)
    }

    fn acts(&self, state: &mut State, now: Moment) -> Vec<CircuitAct> {
        let stops = !state.is_running();
        let mut acts = Vec::new();
        while let Some((number, generation, batch)) = state.reports.take(now, stops) {
            acts.push(CircuitAct::Report { number, generation, batch });
            if acts.len() >= 2 {
                break;
            }
        }
        if !acts.is_empty() && self.strategy.is_some() {
            acts.push(CircuitAct::Recent);
        }
        // Room is left for what follows.
        let room = MOST_ACTS / 2;
        acts.extend(state.outbox.drain(..state.outbox.len().min(room)));
        let leads = self.leads(state, now, stops);
        if let Some(CircuitAct::Resign { .. }) = leads {
            // Another may lead before the answer is here.
            self.follow(state);
        }
        acts.extend(leads);
        let due = state.trials.iter().filter(|trial| trial.renew_at <= now).take(MOST_ACTS / 4);
        acts.extend(due.map(|trial| CircuitAct::RenewTrial { fence: trial.fence }));
        if let Some(asking) = state.asking.as_mut().filter(|asking| !asking.sent) {
            asking.sent = true;
            acts.push(CircuitAct::Trial { ask: asking.number });
        }
        acts
    }

    /// What is to be said of leading.
    fn leads(&self, state: &State, now: Moment, stops: bool) -> Option<CircuitAct> {
        let wanted = !stops && self.wants_to_lead(state);
        match &state.leads {
            Some(leads) if !wanted => Some(CircuitAct::Resign { fence: leads.fence }),
            Some(leads) => {
                let fence = leads.fence;
                let looks = self
                    .next_check(state)
                    .is_some_and(|(kind, due)| due <= now && Self::looks_first(state, kind, due));
                (leads.renew_at <= now || looks).then_some(CircuitAct::Renew { fence })
            }
            None if wanted && state.elect_at.is_none_or(|at| at <= now) => Some(CircuitAct::Elect),
            None => None,
        }
    }

    /// Whether there is something for a leader to do, and this process can.
    fn wants_to_lead(&self, state: &State) -> bool {
        self.recovery.check.is_some()
            && state.seen.is_some()
            && (state.is_open() || self.recovery.idle_interval.is_some())
    }

    /// The attempt whose wait this process has to say: the leader's to do, or anyone's in half-open.
    fn to_schedule(&self, state: &State) -> Option<(u64, u64)> {
        self.recovery.wait.as_ref()?;
        let view = state.seen.filter(|seen| seen.view.is_open() && seen.view.next_ms.is_none())?.view;
        let attempt = (view.generation, view.attempt?);
        let mine = self.recovery.check.is_none() || state.leads.is_some();
        (mine && state.is_running() && state.scheduled != Some(attempt)).then_some(attempt)
    }

    /// When there is something to do, if nothing else happens.
    fn next_due(&self, state: &State, checking: bool) -> Option<Moment> {
        let leads_until = state.leads.as_ref().map(|leads| leads.until);
        let stops = match state.phase {
            Phase::Stopping(until) => Some(until),
            _ => None,
        };
        if let Some(away) = &state.away {
            return [Some(away.probe_at), leads_until, stops].into_iter().flatten().min();
        }
        let elect = state
            .elect_at
            .filter(|_| state.leads.is_none() && state.is_running() && self.wants_to_lead(state));
        let renew = state.leads.as_ref().map(|leads| leads.renew_at);
        let check = self.next_check(state).filter(|_| !checking).map(|(_, due)| due);
        let trials = state.trials.iter().map(|trial| trial.renew_at).min();
        [state.reports.due(), state.look_at, elect, renew, leads_until, check, trials, stops]
            .into_iter()
            .flatten()
            .min()
    }

    // ---- saying it -----------------------------------------------------------------------------------------------------

    /// Sends a request, takes its answer in, and looks after the check meanwhile.
    async fn send(&self, request: &CircuitRequest, check: &mut Option<Running>) {
        let mut answer = pin!(self.link.circuit(&self.member, request));
        let answer = loop {
            tokio::select! {
                biased;
                answer = answer.as_mut() => break answer,
                () = self.rest(None, check) => {}
            }
            self.lapse();
            self.cancel_in_vain(check);
            self.tell();
        };
        let mut state = self.lock();
        match answer {
            Ok(reply) => self.take_reply(&mut state, request, reply),
            Err(error) => self.take_error(&mut state, error),
        }
        self.unlock(state);
    }

    /// Waits until there may be something to do.
    async fn rest(&self, until: Option<Moment>, check: &mut Option<Running>) {
        let until = self.duty_ends(check.as_ref()).into_iter().chain(until).min();
        let due = async {
            match until {
                Some(at) => self.clock.sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            () = self.checked(check) => {}
            () = self.bell.notified() => {}
            () = due => {}
        }
    }

    fn take_reply(&self, state: &mut State, request: &CircuitRequest, reply: Reply<CircuitReply>) {
        let now = self.clock.now();
        let sent = state.flying.take().map_or(now, |flight| flight.sent);
        if let Some(away) = state.away.take() {
            state.notices.push_back(Notice::Back(now.since(away.since)));
        }
        if self.hooks.records() {
            state.notices.push_back(Notice::Exchanged(now.since(sent)));
        }
        if !state.loaded {
            let risks = self.link.risks();
            let known = std::mem::replace(&mut state.risks, risks.len());
            state.notices.extend(risks.into_iter().skip(known).map(Notice::AtRisk));
        }
        let Reply { head, body } = reply;
        if head.stepped_back_ms > 0 {
            state.notices.push_back(Notice::SetBack(Duration::from_millis(head.stepped_back_ms)));
        }
        let store_now = head.now.unwrap_or_default();
        self.take_view(state, body.view, store_now, By::Answer);
        let took = Took { sent, store_now };
        for (act, did) in request.acts.iter().zip(body.did) {
            self.take_did(state, act, did, took);
        }
        let every = if state.subscription.is_some() { LOOK.0 } else { LOOK.1 };
        state.look_at = Some(now.plus(every));
    }

    fn take_did(&self, state: &mut State, act: &CircuitAct, did: CircuitDid, took: Took) {
        match (act, did) {
            (_, CircuitDid::Recent { generation, runs }) if !runs.is_empty() => {
                state.recent = Some((generation, runs)).filter(|_| generation == state.generation());
            }
            (_, CircuitDid::Elected(Election::Leads(leader))) => {
                if state.leads.is_none() {
                    state.notices.push_back(Notice::Role(Role::Leader));
                }
                state.leads = Some(took.leadership(leader.fence, leader.until_ms));
            }
            (CircuitAct::Renew { fence }, CircuitDid::Renewed(Some(until_ms)))
                if state.leads.as_ref().is_some_and(|leads| leads.fence == *fence) =>
            {
                state.leads = Some(took.leadership(*fence, until_ms));
            }
            (CircuitAct::Renew { fence }, CircuitDid::Renewed(None))
                if state.leads.as_ref().is_some_and(|leads| leads.fence == *fence) =>
            {
                self.follow(state);
            }
            (CircuitAct::Verdict { .. }, CircuitDid::Judged(_)) => state.judging = false,
            (CircuitAct::Trial { ask }, CircuitDid::Trial(trial)) => {
                self.take_trial(state, *ask, trial, took.store_now, took.sent);
            }
            (CircuitAct::RenewTrial { fence }, CircuitDid::RenewedTrial(until_ms)) => {
                self.take_trial_renewed(state, *fence, until_ms, took.store_now, took.sent);
            }
            _ => {}
        }
    }

    fn take_error(&self, state: &mut State, error: StoreError) {
        let now = self.clock.now();
        state.notices.push_back(Notice::StoreError);
        if !is_lost(&error) {
            // What was asked for is not done, and not asked for again as it was.
            let acts = state.flying.take().map(|flight| flight.request.acts).unwrap_or_default();
            let dropped = acts.iter().map(results_of).sum();
            if dropped > 0 {
                state.notices.push_back(Notice::Undelivered(dropped));
            }
            state.judging = false;
            state.scheduled = None;
        }
        self.refuse_trial(state);
        let refused = !error.is_unavailable();
        if refused && !state.loaded && state.is_running() {
            state.refused = Some(error);
            state.phase = Phase::Stopping(now);
            return self.show(state);
        }
        let part = fastrand::u32(..);
        match &mut state.away {
            Some(away) => {
                away.attempts += 1;
                away.probe_at = now.plus(PROBE.spread(away.attempts, part));
            }
            None => {
                state.away =
                    Some(Away { since: now, attempts: 0, probe_at: now.plus(PROBE.spread(0, part)) });
                state.notices.push_back(if refused { Notice::Refused(error) } else { Notice::Away(error) });
            }
        }
    }

    // ---- the user's own ------------------------------------------------------------------------------------------------

    fn ask_strategy(&self, generation: u64, recent: &Recent) {
        let Some(strategy) = &self.strategy else { return };
        let opens = self.hooks.guard(&self.member.id, "strategy", || strategy.opens(recent));
        if opens == Some(true) {
            self.lock().outbox.push_back(CircuitAct::Open { generation });
        }
    }

    fn ask_backoff(&self, generation: u64, attempt: u64) {
        let Some(wait) = &self.recovery.wait else { return };
        let wait = self.hooks.guard(&self.member.id, "backoff", || wait(attempt)).unwrap_or(NO_WAIT);
        let wait_ms = ceil_millis(wait.min(LONGEST));
        self.lock().outbox.push_back(CircuitAct::Schedule { generation, attempt, wait_ms });
    }
}

/// When an answer was asked for, and what the store's clock showed.
#[derive(Clone, Copy)]
struct Took {
    sent: Moment,
    store_now: Moment,
}

impl Took {
    /// A leader's own deadline counts from when it asked.
    fn leadership(self, fence: u64, until_ms: u64) -> Leadership {
        let lives = Moment::from_millis(until_ms).since(self.store_now);
        Leadership { fence, renew_at: self.sent.plus(lives / 3), until: self.sent.plus(lives) }
    }
}

/// Whether an act that was lost for long is still to be said; what was asked for is asked anew, if it is still wanted.
const fn is_said_later(act: &CircuitAct) -> bool {
    matches!(
        act,
        CircuitAct::Open { .. }
            | CircuitAct::Resign { .. }
            | CircuitAct::Verdict { .. }
            | CircuitAct::Schedule { .. }
            | CircuitAct::GiveBack { .. }
            | CircuitAct::TrialResult { .. }
    )
}

/// How many results an act reports.
fn results_of(act: &CircuitAct) -> usize {
    let CircuitAct::Report { batch, .. } = act else { return 0 };
    reports::results(batch.runs())
}
