//! Running a health check: with a timeout, and only as long as it can count.
//!
//! A check is dropped, uncounted, when the breaker stops, when this process does not lead any more by its own clock, when
//! the circuit has changed since, and an idle probe also when there was a call. So no check goes on past the leader's
//! deadline, also in a process that wakes after it was frozen.
//!
//! Spec: CB-3, CB-10.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    task::Poll,
};

use tidegate_core::{
    CircuitAct,
    circuit::{self, Position, Verdict},
    time::Moment,
};

use super::{
    CheckKind,
    circuit::{Circuit, State},
    notice::Notice,
    recovery::Checking,
};
use crate::{error::CheckError, hooks::said};

/// A check that runs.
pub(super) struct Running {
    kind: circuit::CheckKind,
    generation: u64,
    began: Moment,
    timeout_at: Moment,
    checking: Checking,
}

impl Circuit {
    /// The check that is due next, and when, for a leader that has none running.
    pub(super) fn next_check(&self, state: &State) -> Option<(circuit::CheckKind, Moment)> {
        let (seen, leads) = (state.seen.as_ref()?, state.leads.as_ref()?);
        if state.judging || !state.is_running() || state.away.is_some() || leads.until <= self.clock.now() {
            return None;
        }
        let at = seen.next()?;
        match (seen.view.position, seen.view.attempt, self.recovery.idle_interval) {
            (Position::Open, Some(attempt), _) => Some((circuit::CheckKind::Recovery { attempt }, at)),
            (Position::Closed, _, Some(interval)) => {
                let own = state.stirred.map_or(at, |stirred| stirred.plus(interval));
                Some((circuit::CheckKind::Idle { at_ms: seen.view.next_ms? }, at.max(own)))
            }
            _ => None,
        }
    }

    /// Whether the leader looks at the store before it probes: another process may have called since it last did.
    pub(super) fn looks_first(state: &State, kind: circuit::CheckKind, due: Moment) -> bool {
        matches!(kind, circuit::CheckKind::Idle { .. }) && state.seen.is_none_or(|seen| seen.at < due)
    }

    /// Begins a check; none where the user's code panics over it, which is a failed one.
    pub(super) fn begin_check(&self, kind: circuit::CheckKind) -> Option<Running> {
        let check = self.recovery.check.clone()?;
        let began = self.clock.now();
        let generation = {
            let mut state = self.lock();
            state.probing = matches!(kind, circuit::CheckKind::Idle { .. });
            state.generation()
        };
        let told = told(kind);
        match catch_unwind(AssertUnwindSafe(|| check(told))) {
            Ok(checking) => {
                let timeout_at = began.plus(self.recovery.check_timeout);
                Some(Running { kind, generation, began, timeout_at, checking })
            }
            Err(panic) => {
                let failed = Some(CheckError::Panicked(said(&*panic).to_owned()));
                self.judge(kind, generation, began, failed);
                None
            }
        }
    }

    /// Drops a check that can count in nothing any more.
    pub(super) fn cancel_in_vain(&self, check: &mut Option<Running>) {
        let Some(running) = check else { return };
        let now = self.clock.now();
        let counts = {
            let state = self.lock();
            let leads = state.is_running() && state.leads.as_ref().is_some_and(|leads| now < leads.until);
            let still = state.seen.is_some_and(|seen| match running.kind {
                circuit::CheckKind::Recovery { attempt } => seen.view.attempt == Some(attempt),
                circuit::CheckKind::Idle { at_ms } => {
                    !seen.view.is_open()
                        && seen.view.next_ms == Some(at_ms)
                        && state.stirred.is_none_or(|stirred| stirred < running.began)
                }
            });
            leads && still && state.generation() == running.generation
        };
        if !counts {
            let dropped = check.take();
            self.hooks.guard(&self.member.id, "health check", || drop(dropped));
        }
    }

    /// When leading must be looked at again, whatever else happens: a leader's own deadline, and the end of a check's time.
    pub(super) fn duty_ends(&self, check: Option<&Running>) -> Option<Moment> {
        let until = self.lock().leads.as_ref().map(|leads| leads.until);
        until.into_iter().chain(check.map(|running| running.timeout_at)).min()
    }

    /// Completes when the check does, or its time is up; never without one. The verdict is then to be told.
    pub(super) async fn checked(&self, check: &mut Option<Running>) {
        let ended = poll_fn(|context| {
            self.cancel_in_vain(check);
            let Some(running) = check else { return Poll::Pending };
            if self.clock.now() >= running.timeout_at {
                return Poll::Ready(Some(CheckError::Timeout(self.recovery.check_timeout)));
            }
            match catch_unwind(AssertUnwindSafe(|| running.checking.as_mut().poll(context))) {
                Ok(Poll::Pending) => Poll::Pending,
                Ok(Poll::Ready(Ok(()))) => Poll::Ready(None),
                Ok(Poll::Ready(Err(error))) => Poll::Ready(Some(CheckError::Failed(error.into()))),
                Err(panic) => Poll::Ready(Some(CheckError::Panicked(said(&*panic).to_owned()))),
            }
        });
        let failed = ended.await;
        if let Some(Running { kind, generation, began, checking, .. }) = check.take() {
            self.judge(kind, generation, began, failed);
            self.hooks.guard(&self.member.id, "health check", || drop(checking));
        }
    }

    fn judge(&self, kind: circuit::CheckKind, generation: u64, began: Moment, failed: Option<CheckError>) {
        let verdict = if failed.is_some() { Verdict::Failure } else { Verdict::Success };
        let took = self.clock.now().since(began);
        let mut state = self.lock();
        let Some(fence) = state.leads.as_ref().map(|leads| leads.fence) else { return };
        state.judging = true;
        state.outbox.push_back(CircuitAct::Verdict { fence, generation, kind, verdict });
        state.notices.push_back(Notice::Checked { kind: told(kind), took, failed });
    }
}

/// What the user's code is told of a check.
const fn told(kind: circuit::CheckKind) -> CheckKind {
    match kind {
        circuit::CheckKind::Recovery { .. } => CheckKind::Recovery,
        circuit::CheckKind::Idle { .. } => CheckKind::Idle,
    }
}
