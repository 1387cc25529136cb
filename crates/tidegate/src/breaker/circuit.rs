//! What a process knows of a circuit, and what it has to say about it: everything that handles, calls and the task of a
//! breaker share.
//!
//! Whether calls run is one word that a call looks at without a lock. All else is behind one short lock, which is never
//! held across an await nor while the user's code runs.
//!
//! Spec: CB-2, CB-5, CB-7, CB-11.

use std::{
    collections::VecDeque,
    sync::{
        Arc, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::Waker,
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tidegate_core::{
    CircuitAct, CircuitMember, CircuitNews, CircuitRequest, CircuitView, Listener, StoreError, Subscription,
    Wake,
    circuit::{Run, Verdict},
    time::Moment,
};
use tokio::sync::Notify;

use super::{
    Leadership, OnCancel,
    notice::Notice,
    recovery::Own,
    reports::Reports,
    run,
    strategy::OpensWhen,
    trial::{Asking, HeldTrial},
};
use crate::{background, clock::Clock, hooks::Hooks, link::Link, task};

/// What a breaker is built from.
pub(crate) struct Config {
    pub(super) member: CircuitMember,
    pub(super) strategy: Option<Arc<dyn OpensWhen>>,
    pub(super) recovery: Own,
    pub(super) on_cancel: OnCancel,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) op_timeout: Duration,
    pub(super) link: Link,
    pub(super) hooks: Hooks,
}

/// One breaker of this process.
pub(crate) struct Circuit {
    me: Weak<Self>,
    pub(super) member: CircuitMember,
    pub(super) strategy: Option<Arc<dyn OpensWhen>>,
    pub(super) recovery: Own,
    pub(super) on_cancel: OnCancel,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) op_timeout: Duration,
    pub(super) link: Link,
    pub(super) hooks: Hooks,
    /// See [`Standing`].
    word: AtomicU64,
    blocked: AtomicU64,
    handles: AtomicUsize,
    state: Mutex<State>,
    /// Something for the task to do.
    pub(super) bell: Notify,
    /// The word has changed.
    pub(super) moved: Notify,
    /// The phase has changed, or the state was loaded.
    pub(super) changed: Notify,
}

/// What a call is to do: the circuit in a word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Standing {
    /// The breaker does not run.
    NotStarted,
    /// Run, and report under this generation.
    Closed(u64),
    /// Block; unless a trial call of this generation may be made.
    Open(u64),
}

impl Standing {
    const STARTED: u64 = 0b01;
    const OPEN: u64 = 0b10;

    const fn word(self) -> u64 {
        // A generation is below 2^53.
        match self {
            Self::NotStarted => 0,
            Self::Closed(generation) => generation << 2 | Self::STARTED,
            Self::Open(generation) => generation << 2 | Self::STARTED | Self::OPEN,
        }
    }

    const fn of(word: u64) -> Self {
        if word & Self::STARTED == 0 {
            Self::NotStarted
        } else if word & Self::OPEN == 0 {
            Self::Closed(word >> 2)
        } else {
            Self::Open(word >> 2)
        }
    }
}

/// Where a breaker is between start and stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Stopped,
    /// With when it was started.
    Running(Moment),
    /// With when it stops, whatever is left to say.
    Stopping(Moment),
}

/// How the circuit was seen last, and when.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) view: CircuitView,
    /// By the store's clock.
    pub(super) now: Moment,
    /// By this process's.
    pub(super) at: Moment,
}

impl Seen {
    /// A moment of the store, in ms, on this process's clock: never earlier than it is.
    pub(super) fn local(&self, moment_ms: u64) -> Moment {
        self.at.plus(Moment::from_millis(moment_ms).since(self.now))
    }

    /// When the next attempt or idle probe comes, if anyone has said.
    pub(super) fn next(&self) -> Option<Moment> {
        self.view.next_ms.map(|next_ms| self.local(next_ms))
    }
}

/// A request that is under way, or whose answer was lost.
#[derive(Debug)]
pub(super) struct Flight {
    pub(super) request: CircuitRequest,
    /// When it was sent first.
    pub(super) first_sent: Moment,
    /// When it was sent last: deadlines count from here.
    pub(super) sent: Moment,
}

/// The store gives no answer.
#[derive(Debug)]
pub(super) struct Away {
    pub(super) since: Moment,
    pub(super) attempts: u64,
    pub(super) probe_at: Moment,
}

pub(super) struct State {
    pub(super) phase: Phase,
    /// Whether there is a task.
    pub(super) running: bool,
    /// Whether the store has answered since the start.
    pub(super) loaded: bool,
    /// Why the store would not have this breaker.
    pub(super) refused: Option<StoreError>,
    pub(super) reports: Reports,
    /// What else is to be said, in order.
    pub(super) outbox: VecDeque<CircuitAct>,
    pub(super) flying: Option<Flight>,
    pub(super) seen: Option<Seen>,
    pub(super) away: Option<Away>,
    pub(super) look_at: Option<Moment>,
    pub(super) leads: Option<Leadership>,
    pub(super) elect_at: Option<Moment>,
    /// A verdict is on its way, and no check begins.
    pub(super) judging: bool,
    /// The last call of this process, where idle probes come.
    pub(super) stirred: Option<Moment>,
    /// Whether an idle probe runs.
    pub(super) probing: bool,
    /// Results that a strategy of one's own has not seen yet.
    pub(super) recent: Option<(u64, Vec<Run>)>,
    /// The attempt whose wait was said, and under which generation.
    pub(super) scheduled: Option<(u64, u64)>,
    pub(super) asking: Option<Asking>,
    pub(super) asks: u64,
    pub(super) ask_not_before: Moment,
    pub(super) trials: Vec<HeldTrial>,
    pub(super) subscription: Option<Subscription>,
    pub(super) risks: usize,
    pub(super) notices: VecDeque<Notice>,
    pub(super) wakers: Vec<Waker>,
}

impl State {
    fn new() -> Self {
        Self {
            phase: Phase::Stopped,
            running: false,
            loaded: false,
            refused: None,
            reports: Reports::new(),
            outbox: VecDeque::new(),
            flying: None,
            seen: None,
            away: None,
            look_at: None,
            leads: None,
            elect_at: None,
            judging: false,
            stirred: None,
            probing: false,
            recent: None,
            scheduled: None,
            asking: None,
            asks: 0,
            ask_not_before: Moment::default(),
            trials: Vec::new(),
            subscription: None,
            risks: 0,
            notices: VecDeque::new(),
            wakers: Vec::new(),
        }
    }

    pub(super) const fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Running(_))
    }

    pub(super) fn is_open(&self) -> bool {
        self.seen.is_some_and(|seen| seen.view.is_open())
    }

    pub(super) fn generation(&self) -> u64 {
        self.seen.map_or(0, |seen| seen.view.generation)
    }

    /// Forgets everything of the time between a start and a stop.
    fn reset(&mut self) {
        self.loaded = false;
        self.reports.clear();
        self.outbox.clear();
        self.flying = None;
        self.seen = None;
        self.away = None;
        self.look_at = None;
        self.leads = None;
        self.elect_at = None;
        self.judging = false;
        self.stirred = None;
        self.recent = None;
        self.scheduled = None;
        self.trials.clear();
        self.subscription = None;
    }
}

impl Circuit {
    pub(super) fn new(config: Config) -> Arc<Self> {
        let Config { member, strategy, recovery, on_cancel, clock, op_timeout, link, hooks } = config;
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            member,
            strategy,
            recovery,
            on_cancel,
            clock,
            op_timeout,
            link,
            hooks,
            word: AtomicU64::new(Standing::NotStarted.word()),
            blocked: AtomicU64::new(0),
            handles: AtomicUsize::new(0),
            state: Mutex::new(State::new()),
            bell: Notify::new(),
            moved: Notify::new(),
            changed: Notify::new(),
        })
    }

    #[inline]
    pub(super) fn standing(&self) -> Standing {
        Standing::of(self.word.load(Ordering::Acquire))
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Frees the lock, and wakes whoever is to be woken.
    pub(super) fn unlock(&self, mut state: MutexGuard<'_, State>) {
        let wakers = std::mem::take(&mut state.wakers);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Tells callers how things stand.
    pub(super) fn show(&self, state: &State) {
        let standing = match (state.phase, &state.seen) {
            (Phase::Running(_), Some(seen)) if seen.view.is_open() => Standing::Open(seen.view.generation),
            (Phase::Running(_), seen) => Standing::Closed(seen.map_or(0, |seen| seen.view.generation)),
            _ => Standing::NotStarted,
        };
        if self.word.swap(standing.word(), Ordering::AcqRel) != standing.word() {
            self.moved.notify_waiters();
        }
    }

    // ---- life ------------------------------------------------------------------------------------------------------

    pub(super) fn add_handle(&self) {
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    /// The last handle stops the breaker.
    pub(super) fn drop_handle(&self) {
        if self.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.begin_stop();
        }
    }

    /// Starts what is stopped. Says whether it did.
    pub(super) fn begin_start(&self) -> bool {
        let now = self.clock.now();
        let mut state = self.lock();
        let starts = state.phase == Phase::Stopped;
        if starts {
            state.reset();
            state.refused = None;
            state.phase = Phase::Running(now);
            state.look_at = Some(now);
            self.show(&state);
            self.ensure_running(&mut state);
        }
        self.unlock(state);
        starts
    }

    /// Has what runs stop.
    pub(super) fn begin_stop(&self) {
        let now = self.clock.now();
        let mut state = self.lock();
        if state.is_running() {
            state.phase = Phase::Stopping(now.plus(self.op_timeout.saturating_mul(2)));
            self.show(&state);
            self.refuse_trial(&mut state);
            // What comes of trial calls that run on is told to nobody: others may try at once.
            for trial in std::mem::take(&mut state.trials) {
                state.outbox.push_back(CircuitAct::GiveBack { fence: trial.fence });
            }
            self.ensure_running(&mut state);
        }
        self.unlock(state);
        self.bell.notify_one();
    }

    /// The task has said all there was to say, or its time is up.
    pub(super) fn stopped(&self, state: &mut State) {
        state.phase = Phase::Stopped;
        self.show(state);
        self.refuse_trial(state);
        state.reset();
        self.changed.notify_waiters();
    }

    /// Has a task for this breaker: with its clock, on the caller's runtime or on our own.
    pub(super) fn ensure_running(&self, state: &mut State) {
        if state.running {
            return;
        }
        let Some(me) = self.me.upgrade() else { return };
        let ours = || background::handle().cloned();
        state.running = task::start(&me, &*self.clock, run::run, run::gone, background::callers)
            || task::start(&me, &*self.clock, run::run, run::gone, ours);
    }

    pub(super) fn me(&self) -> Option<Arc<Self>> {
        self.me.upgrade()
    }

    // ---- calls -----------------------------------------------------------------------------------------------------

    /// A call begins: a running idle probe is cancelled.
    #[inline]
    pub(super) fn stir(&self) {
        if self.recovery.idle_interval.is_some() {
            let now = self.clock.now();
            let mut state = self.lock();
            state.stirred = Some(now);
            let probing = std::mem::take(&mut state.probing);
            drop(state);
            if probing {
                self.bell.notify_one();
            }
        }
    }

    /// Takes what came of a call that began under a generation.
    pub(super) fn record(&self, generation: u64, verdict: Verdict) {
        let mut state = self.lock();
        if !state.is_running() {
            return;
        }
        let rings = state.reports.add(generation, verdict, || self.clock.now());
        self.ensure_running(&mut state);
        drop(state);
        if rings {
            self.bell.notify_one();
        }
    }

    /// Has a task where the runtime of the last one has ended: without one an open circuit would stay open.
    pub(super) fn look_after(&self) {
        let mut state = self.lock();
        if state.phase != Phase::Stopped {
            self.ensure_running(&mut state);
        }
    }

    /// Counts a call that was blocked.
    pub(super) fn count_blocked(&self) {
        self.blocked.fetch_add(1, Ordering::Relaxed);
        self.hooks.record(&self.member.id, |recorder| recorder.blocked());
    }

    pub(super) fn blocked(&self) -> u64 {
        self.blocked.load(Ordering::Relaxed)
    }

    /// The moment since when the circuit stands as it does, by the store's clock.
    pub(super) fn since(&self) -> Moment {
        self.lock().seen.map_or_else(Moment::default, |seen| Moment::from_millis(seen.view.since_ms))
    }

    /// Has the task say something.
    pub(super) fn say(&self, state: &mut State, act: CircuitAct) {
        if state.phase != Phase::Stopped {
            state.outbox.push_back(act);
            self.ensure_running(state);
        }
    }

    // ---- the circuit as it is seen -----------------------------------------------------------------------------------

    /// Takes in how the circuit stands, where that is news. An answer is believed also where its clock was set back for
    /// good.
    pub(super) fn take_view(&self, state: &mut State, view: CircuitView, now: Moment, by: By) {
        /// A clock that lies further behind was set back.
        const BEHIND: Duration = Duration::from_secs(1);
        let at = self.clock.now();
        if let Some(seen) = &state.seen {
            let behind = seen.now.since(now);
            let newer = view.generation > seen.view.generation;
            let set_back = by == By::Answer && behind > BEHIND;
            if !behind.is_zero() && !newer && !set_back {
                return;
            }
        }
        let known = state.seen.replace(Seen { view, now, at });
        let first = !state.loaded;
        state.loaded = true;
        match known {
            _ if first => {
                state.notices.push_back(Notice::Loaded(view.position));
                self.changed.notify_waiters();
            }
            Some(known) if known.view.position != view.position => {
                state.notices.push_back(Notice::Changed(view));
            }
            _ => {}
        }
        if known.is_none_or(|known| known.view.generation != view.generation) {
            state.scheduled = None;
            state.recent = None;
        }
        // Whoever leads is asked again when its lease could end; where nobody does, now.
        let another = view.leader.filter(|leader| leader.driver != self.member.driver);
        state.elect_at = another.zip(state.seen).map(|(leader, seen)| seen.local(leader.until_ms));
        self.show(state);
    }
}

/// Who says how a circuit stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum By {
    Answer,
    Push,
}

impl Listener for Circuit {
    fn wake(&self, wake: Wake) {
        let mut state = self.lock();
        if !state.is_running() {
            return;
        }
        match wake {
            Wake::Circuit(CircuitNews { view, now }) => self.take_view(&mut state, view, now, By::Push),
            // Of whoever gates calls under this id.
            Wake::Room { .. }
            | Wake::Paused { .. }
            | Wake::Resumed
            | Wake::Limit(_)
            | Wake::Policy { .. } => {
                return;
            }
            _ => state.look_at = Some(self.clock.now()),
        }
        self.unlock(state);
        self.bell.notify_one();
    }
}

/// A counted handle on a circuit: the last one stops it.
pub(crate) struct Handle(Arc<Circuit>);

impl Handle {
    pub(super) fn new(circuit: Arc<Circuit>) -> Self {
        circuit.add_handle();
        Self(circuit)
    }
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.0))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.drop_handle();
    }
}

impl std::ops::Deref for Handle {
    type Target = Arc<Circuit>;

    fn deref(&self) -> &Arc<Circuit> {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cb_5_a_word_says_all_that_a_call_needs() {
        for generation in [0, 1, 7, (1 << 53) - 1] {
            for standing in [Standing::NotStarted, Standing::Closed(generation), Standing::Open(generation)] {
                assert_eq!(Standing::of(standing.word()), standing);
            }
        }
    }

    #[test]
    fn role_of_a_new_state_is_that_of_a_follower() {
        assert!(State::new().leads.is_none());
        assert_eq!(super::super::Role::default(), super::super::Role::Follower);
    }
}
