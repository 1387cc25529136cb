//! Half-open: asking the fleet for a trial call, and the permit of one.
//!
//! One question at a time goes to the store from a process, and none for 100 ms after it was denied. The permit of a call
//! that was dropped, or that comes to nothing, is given back at once; one that takes long is kept.
//!
//! Spec: CB-4.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use tidegate_core::{
    CircuitAct,
    circuit::{Trial, TrialPermit, Verdict},
    time::Moment,
};

use super::circuit::{Circuit, State};

/// No question goes to the store for so long after a denial.
const DENIED_FOR: Duration = Duration::from_millis(100);

/// A question for a trial call.
pub(super) struct Asking {
    pub(super) number: u64,
    /// Whether it is in a request.
    pub(super) sent: bool,
    /// Whether someone waits for the answer.
    wanted: bool,
    waker: Option<Waker>,
    /// What came of it: a fence and the generation it is of, where the call may be made.
    ended: Option<Option<(u64, u64)>>,
}

/// The permit of a trial call that this process holds.
pub(super) struct HeldTrial {
    pub(super) fence: u64,
    pub(super) renew_at: Moment,
}

impl HeldTrial {
    fn new(fence: u64, sent: Moment, lives: Duration) -> Self {
        Self { fence, renew_at: sent.plus(lives / 3) }
    }
}

/// Waits for the answer to a question.
pub(super) struct Ticket {
    circuit: Arc<Circuit>,
    number: u64,
}

impl Future for Ticket {
    type Output = Option<Pass>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Pass>> {
        let mut state = self.circuit.lock();
        let mine = |asking: &&mut Asking| asking.number == self.number;
        let Some(asking) = state.asking.as_mut().filter(mine) else { return Poll::Ready(None) };
        let Some(ended) = asking.ended else {
            asking.waker = Some(context.waker().clone());
            return Poll::Pending;
        };
        state.asking = None;
        let circuit = Arc::clone(&self.circuit);
        Poll::Ready(ended.map(|(fence, generation)| Pass { circuit: Some(circuit), fence, generation }))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut state = self.circuit.lock();
        let Some(asking) = state.asking.as_mut().filter(|asking| asking.number == self.number) else {
            return;
        };
        match asking.ended {
            // The answer finds nobody, and is given back.
            None if asking.sent => asking.wanted = false,
            None | Some(None) => state.asking = None,
            Some(Some((fence, _))) => {
                state.asking = None;
                self.circuit.give_back(&mut state, fence);
                drop(state);
                self.circuit.bell.notify_one();
            }
        }
    }
}

/// A trial call may be made. Dropping it gives the permit back.
pub(super) struct Pass {
    /// None when it has ended.
    circuit: Option<Arc<Circuit>>,
    fence: u64,
    pub(super) generation: u64,
}

impl Pass {
    /// Tells what came of the call.
    pub(super) fn end(mut self, verdict: Verdict) {
        let Some(circuit) = self.circuit.take() else { return };
        let mut state = circuit.lock();
        state.trials.retain(|trial| trial.fence != self.fence);
        circuit.say(&mut state, CircuitAct::TrialResult { fence: self.fence, verdict });
        drop(state);
        circuit.bell.notify_one();
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        let Some(circuit) = self.circuit.take() else { return };
        let mut state = circuit.lock();
        circuit.give_back(&mut state, self.fence);
        drop(state);
        circuit.bell.notify_one();
    }
}

impl Circuit {
    /// Asks for a trial call, where that is of use now; none where the call is blocked.
    pub(super) fn ask(&self) -> Option<Ticket> {
        if self.recovery.check.is_some() {
            return None;
        }
        let circuit = self.me()?;
        let now = self.clock.now();
        let mut state = self.lock();
        let open = state.seen.filter(|seen| seen.view.is_open())?;
        let due = open.next().is_some_and(|at| at <= now);
        if !due
            || !state.is_running()
            || state.away.is_some()
            || state.asking.is_some()
            || now < state.ask_not_before
        {
            return None;
        }
        state.asks += 1;
        let number = state.asks;
        state.asking = Some(Asking { number, sent: false, wanted: true, waker: None, ended: None });
        self.ensure_running(&mut state);
        drop(state);
        self.bell.notify_one();
        Some(Ticket { circuit, number })
    }

    /// Takes in what the store said to question `number`.
    pub(super) fn take_trial(
        &self,
        state: &mut State,
        number: u64,
        trial: Trial,
        store_now: Moment,
        sent: Moment,
    ) {
        let granted = match trial {
            Trial::Granted(permit) => Some(permit),
            _ => {
                state.ask_not_before = self.clock.now().plus(DENIED_FOR);
                None
            }
        };
        if let Some(TrialPermit { fence, until_ms, .. }) = granted {
            let lives = Moment::from_millis(until_ms).since(store_now);
            state.trials.push(HeldTrial::new(fence, sent, lives));
        }
        let mine = |asking: &&Asking| asking.number == number && asking.ended.is_none();
        if state.asking.as_ref().filter(mine).is_some_and(|asking| asking.wanted) {
            return self.answer(state, granted.map(|permit| (permit.fence, permit.generation)));
        }
        // Nobody waits for it any more.
        state.asking.take_if(|asking| asking.number == number && asking.ended.is_none());
        if let Some(permit) = granted {
            self.give_back(state, permit.fence);
        }
    }

    /// Ends a question without a permit: the store cannot be asked.
    pub(super) fn refuse_trial(&self, state: &mut State) {
        match &state.asking {
            Some(asking) if asking.ended.is_none() && asking.wanted => self.answer(state, None),
            Some(asking) if asking.ended.is_none() => state.asking = None,
            _ => {}
        }
    }

    fn answer(&self, state: &mut State, ended: Option<(u64, u64)>) {
        if let Some(asking) = state.asking.as_mut() {
            asking.ended = Some(ended);
            let waker = asking.waker.take();
            state.wakers.extend(waker);
        }
    }

    fn give_back(&self, state: &mut State, fence: u64) {
        state.trials.retain(|trial| trial.fence != fence);
        self.say(state, CircuitAct::GiveBack { fence });
    }

    /// Takes in how long a trial call's permit lives now.
    pub(super) fn take_trial_renewed(
        &self,
        state: &mut State,
        fence: u64,
        until_ms: Option<u64>,
        store_now: Moment,
        sent: Moment,
    ) {
        let lives = until_ms.map(|until_ms| Moment::from_millis(until_ms).since(store_now));
        match (state.trials.iter_mut().find(|trial| trial.fence == fence), lives) {
            (Some(trial), Some(lives)) => *trial = HeldTrial::new(fence, sent, lives),
            _ => state.trials.retain(|trial| trial.fence != fence),
        }
    }
}
