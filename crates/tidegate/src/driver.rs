//! One driver per primitive: the queue of this process for an id, and all that goes between it and the store.
//!
//! Everything that changes is behind one lock, which is never held across an await. Callers enqueue and cancel under it;
//! a task does what takes time: exchanges with a remote store, timers, what the store pushes. On a store that decides
//! without waiting, callers decide for themselves, under the same lock, and the task only keeps time.
//!
//! ```text
//! caller ── acquire ──► line ──► exchange: [releases · settlements · acquires] ──► store
//!    ▲                    ▲                                                          │
//!    └────── permit ◄─────┴─────────────── grants, hints, limit, pause ◄─────────────┘
//! ```
//!
//! Lock order: a driver's lock, then an id's lock in the memory store; never the other way. What a store pushes lands in
//! an inbox with a lock of its own.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard};
use tidegate_core::{
    AcquireRequest, Costs, Head, Job, Line as LineState, Listener, Member, Name, Policy, Reply, ScopedJob,
    Store, StoreError, SyncPath, Wake,
    store::PauseReply,
    time::{Moment, ceil_millis},
};
use tokio::sync::{Notify, broadcast};

use crate::{
    AcquireError, LastCause, background,
    clock::{Clock, Pace, StoreClock, SystemClock},
    event::Event,
    hooks::Hooks,
    link::Link,
    task,
};

mod acquiring;
mod apply;
mod away;
mod local;
mod notice;
mod outbox;
mod permit;
mod queue;
mod renew;
mod restore;
mod run;
mod state;
mod table;

pub(crate) use acquiring::{Acquiring, Admitting, Face};
pub(crate) use local::Fallback;
pub(crate) use permit::{Permit, Watch};

use local::Standing;
use state::{State, Waiter};

/// What a driver is built from.
pub(crate) struct Config {
    pub(crate) member: Member,
    /// The store's own, or the machine's, where none is given.
    pub(crate) clock: Option<Arc<dyn Clock>>,
    pub(crate) op_timeout: Duration,
    pub(crate) fallback: Option<Fallback>,
    /// How many permits this process may hold at once, whatever the fleet does.
    pub(crate) local_limit: Option<u32>,
    pub(crate) max_queue: usize,
    pub(crate) fail_fast: bool,
    pub(crate) hooks: Hooks,
}

/// What a caller asks for.
pub(crate) struct Ask {
    /// None for the job of unit cost.
    pub(crate) job: Option<Arc<ScopedJob>>,
    pub(crate) class: Option<Name>,
    pub(crate) priority: i32,
    /// Zero is one try.
    pub(crate) timeout: Duration,
}

/// This process's view.
#[derive(Clone, Debug)]
pub(crate) struct View {
    pub(crate) limit: u32,
    pub(crate) in_flight: u32,
    pub(crate) waiting: u32,
    pub(crate) by_class: Vec<(Option<Name>, u32, u32)>,
    pub(crate) paused_for: Duration,
    pub(crate) away: bool,
    pub(crate) granted: u64,
    pub(crate) denied: [u64; 3],
}

pub(crate) struct Driver {
    me: Weak<Self>,
    pub(crate) member: Member,
    link: Link,
    clock: Arc<dyn Clock>,
    /// Whether that is the store's own clock: then an answer says what now is, and no one need look again.
    on_store_clock: bool,
    op_timeout: Duration,
    fallback: Option<Fallback>,
    local_limit: Option<u32>,
    max_queue: usize,
    fail_fast: bool,
    hooks: Hooks,
    state: Mutex<State>,
    /// What the store pushed and nobody has looked at.
    inbox: Mutex<Vec<Wake>>,
    /// Something for the task to do.
    bell: Notify,
    /// Something was delivered.
    delivered: Notify,
    handles: AtomicUsize,
    events: broadcast::Sender<Event>,
    /// A request for one job of unit cost, per tier, so that the common case builds nothing: one that tries, one that
    /// waits.
    singles: Vec<[AcquireRequest; 2]>,
    unit: Arc<ScopedJob>,
    /// The store's brief path, where this driver can use it: on the store's own clock.
    brief: Option<Arc<dyn SyncPath>>,
}

/// How many events a slow reader may fall behind.
const EVENTS_KEPT: usize = 256;

impl Driver {
    pub(crate) fn new(config: Config, store: Arc<dyn Store>) -> Arc<Self> {
        let Config { member, clock, op_timeout, fallback, local_limit, max_queue, fail_fast, hooks } = config;
        let sync = store.sync_path(&member.id);
        let on_store_clock = clock.is_none() && sync.is_some();
        let brief = sync.clone().filter(|_| on_store_clock);
        let clock = clock.unwrap_or_else(|| match &sync {
            Some(sync) => Arc::new(StoreClock::new(Arc::clone(sync))),
            None => Arc::new(SystemClock::new()),
        });
        let link = Link::new(store, sync, Arc::clone(&clock), op_timeout);
        let singles = (0..=member.policy.classes().len()).map(|tier| singles(&member.policy, tier)).collect();
        let state = State::new(&member);
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            link,
            clock,
            on_store_clock,
            op_timeout,
            fallback,
            local_limit,
            max_queue,
            fail_fast,
            hooks,
            state: Mutex::new(state),
            inbox: Mutex::default(),
            bell: Notify::new(),
            delivered: Notify::new(),
            handles: AtomicUsize::new(0),
            events: broadcast::Sender::new(EVENTS_KEPT),
            singles,
            unit: Arc::new(ScopedJob { costs: Costs::default(), scopes: Vec::new() }),
            brief,
            member,
        })
    }

    /// A job; where none is given, the one of unit cost without scopes.
    fn job_of<'a>(&'a self, job: Option<&'a Arc<ScopedJob>>) -> &'a Arc<ScopedJob> {
        job.unwrap_or(&self.unit)
    }

    pub(crate) fn hooks(&self) -> &Hooks {
        &self.hooks
    }

    pub(crate) fn events(&self) -> broadcast::Receiver<Event> {
        let mut state = self.lock();
        // Whoever listens hears of what others do, though this process may do nothing itself.
        self.ensure_running(&mut state);
        self.unlock(state);
        self.events.subscribe()
    }

    /// Asks for a permit. Everything that needs no waiting is done by the first poll.
    #[inline]
    pub(crate) fn acquire(self: &Arc<Self>, ask: Ask) -> Acquiring {
        Acquiring::new(Arc::clone(self), ask)
    }

    pub(crate) fn view(&self) -> View {
        let now = self.clock.now();
        self.lock().view(&self.member.policy, now)
    }

    /// Stops acquires of this handle and its clones: those that wait end with `Closed`, later ones are refused.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        if !state.closed {
            state.closed = true;
            let keys: Vec<usize> = state.waiters.iter().map(|(key, _)| key).collect();
            for key in keys {
                state.resolve(key, Err(AcquireError::Closed { id: self.member.id.clone() }));
            }
        }
        self.unlock(state);
        self.bell.notify_one();
    }

    /// Completes when the store has all that was handed over so far.
    pub(crate) async fn flush(&self) {
        loop {
            let delivered = self.delivered.notified();
            tokio::pin!(delivered);
            delivered.as_mut().enable();
            if self.is_delivered() {
                return;
            }
            delivered.await;
        }
    }

    /// Whether the store has it all; has it delivered where not.
    fn is_delivered(&self) -> bool {
        let mut state = self.lock();
        let delivered = state.is_delivered();
        if !delivered {
            self.ensure_running(&mut state);
            self.bell.notify_one();
        }
        self.unlock(state);
        delivered
    }

    /// Completes when all is delivered, or when the store has had its time.
    pub(crate) async fn flush_or_give_up(&self) {
        let until = self.clock.now().plus(self.op_timeout.saturating_mul(2));
        tokio::select! {
            biased;
            () = self.flush() => {}
            () = self.clock.sleep_until(until) => {}
        }
    }

    /// Looks at the store once, and takes over what it says.
    pub(crate) async fn refresh(&self) -> Result<(), StoreError> {
        let sent = self.clock.now();
        let mut exchange = tidegate_core::Exchange::default();
        // Who names no queue gives up its place.
        self.queues(&self.lock(), &mut exchange, sent);
        let answer = self.link.exchange(&self.member, &exchange).await;
        let now = self.clock.now();
        let mut state = self.lock();
        let answer = match answer {
            Ok(reply) => {
                self.answers_again(&mut state, now);
                self.take_head(&mut state, &reply.head, sent, now);
                Ok(())
            }
            Err(failed) => {
                self.note_store_error(&mut state);
                Err(failed.error)
            }
        };
        self.ensure_running(&mut state);
        self.unlock(state);
        answer
    }

    /// Pauses the fleet; this process at once, even when the store is away.
    pub(crate) async fn pause(&self, length: Duration) -> Result<Reply<PauseReply>, StoreError> {
        let sent = self.clock.now();
        let until = sent.plus(length);
        let _telling = self.tell_store(|state| {
            // Whoever knows of it sets it again, until the store has it.
            state.unsent_pause = state.unsent_pause.max(Some(until));
            state.unsent_resume = false;
            self.note_pause(state, until, sent);
        });
        let answer = self.link.pause(&self.member, length).await;
        let mut state = self.lock();
        self.take_paused(&mut state, until, sent, &answer);
        self.unlock(state);
        answer
    }

    /// Begins to tell the store of a pause or its end: this process knows of it at once.
    fn tell_store(&self, know: impl FnOnce(&mut State)) -> Telling<'_> {
        let mut state = self.lock();
        know(&mut state);
        state.telling += 1;
        self.unlock(state);
        Telling { driver: self }
    }

    /// Takes in what came of telling the store of a pause.
    fn take_paused(
        &self,
        state: &mut State,
        until: Moment,
        sent: Moment,
        answer: &Result<Reply<PauseReply>, StoreError>,
    ) {
        let now = self.clock.now();
        if answer.is_err() {
            self.note_store_error(state);
        }
        match answer {
            Err(error) if error.is_unavailable() => return self.went_away(state, error.clone(), now),
            Err(_) => {}
            Ok(reply) => {
                self.answers_again(state, now);
                if sent >= state.resumed_at {
                    self.note_pause(state, now.plus(Duration::from_millis(reply.body.left_ms)), now);
                }
            }
        }
        state.unsent_pause = state.unsent_pause.filter(|unsent| *unsent > until);
    }

    /// Ends a pause: for this process at once.
    pub(crate) async fn resume(&self) -> Result<Reply<bool>, StoreError> {
        let _telling = self.tell_store(|state| {
            state.unsent_pause = None;
            state.unsent_resume = true;
            self.note_resumed(state, self.clock.now());
        });
        self.bell.notify_one();
        let answer = self.link.resume(&self.member).await;
        let mut state = self.lock();
        self.take_resumed(&mut state, &answer);
        // Its caller knows whether it was done.
        state.unsent_resume = false;
        self.unlock(state);
        answer
    }

    /// Takes in what came of telling the store that a pause is ended.
    fn take_resumed(&self, state: &mut State, answer: &Result<Reply<bool>, StoreError>) {
        let now = self.clock.now();
        if answer.is_err() {
            self.note_store_error(state);
        }
        match answer {
            Err(error) if error.is_unavailable() => return self.went_away(state, error.clone(), now),
            Err(_) => {}
            Ok(_) => {
                self.answers_again(state, now);
                self.note_resumed(state, now);
                self.pump(state);
            }
        }
        state.unsent_resume = false;
    }

    pub(crate) fn add_handle(&self) {
        self.handles.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn drop_handle(&self) {
        if self.handles.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.close();
        }
    }

    /// Now, as an answer says it where that is this driver's clock too.
    fn now_of(&self, head: &Head) -> Moment {
        head.now.filter(|_| self.on_store_clock).unwrap_or_else(|| self.clock.now())
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Lets go of the lock, then wakes and tells whoever is to be woken and told.
    fn unlock<'a>(&'a self, state: MutexGuard<'a, State>) {
        if !state.wakers.is_empty() || !state.notices.is_empty() {
            self.unlock_and_tell(state);
        }
    }

    #[cold]
    fn unlock_and_tell<'a>(&'a self, mut state: MutexGuard<'a, State>) {
        let wakers = std::mem::take(&mut state.wakers);
        if !wakers.is_empty() {
            drop(state);
            wakers.into_iter().for_each(std::task::Waker::wake);
            state = self.lock();
        }
        if state.notices.is_empty() || state.delivering {
            return;
        }
        // One at a time, so that everyone hears of things in the order in which they happened.
        state.delivering = true;
        while let Some(notice) = state.notices.pop_front() {
            drop(state);
            self.tell(notice);
            state = self.lock();
        }
        state.delivering = false;
    }

    /// Has a task for this driver: with its clock, on the caller's runtime or on our own.
    fn ensure_running(&self, state: &mut State) {
        if !state.running {
            self.run(state);
        }
    }

    #[cold]
    fn run(&self, state: &mut State) {
        let Some(me) = self.me.upgrade() else { return };
        let ours = || background::handle().cloned();
        state.running = task::start(&me, &*self.clock, run::run, run::gone, background::callers)
            || task::start(&me, &*self.clock, run::run, run::gone, ours);
    }

    /// Has the renewals of this driver running.
    fn ensure_renewing(&self, state: &mut State) {
        if !state.renewing {
            self.renew(state);
        }
    }

    #[cold]
    fn renew(&self, state: &mut State) {
        let Some(me) = self.me.upgrade() else { return };
        state.renewing =
            task::start(&me, &*self.clock, renew::renew, renew::gone, || match self.clock.pace() {
                Pace::Real => background::handle().cloned(),
                Pace::Set => tokio::runtime::Handle::try_current().ok(),
            });
    }

    /// Everything that can be decided without waiting is decided.
    fn pump(&self, state: &mut State) {
        while self.decides_now(state) {
            let now = self.clock.now();
            let Some(flight) = self.build(state, now) else { return };
            let answer = match &mut state.local {
                Some(local) if flight.local => {
                    let paused_ms = state.paused_until.map_or(0, |until| ceil_millis(until.since(now)));
                    let standing = Standing { now, in_flight: &state.in_flight, paused_ms };
                    Ok(local.exchange(standing, &flight.exchange))
                }
                _ => match self.link.exchange_now(&self.member, &flight.exchange) {
                    Some(answer) => answer,
                    None => return,
                },
            };
            self.apply(state, &flight, answer);
        }
    }

    /// Whether an exchange is decided on the spot: by the store's synchronous path, or by this process alone.
    fn decides_now(&self, state: &State) -> bool {
        if state.away.is_some() { state.local.is_some() } else { self.link.sync().is_some() }
    }

    /// Has what was changed taken up: on the spot where that is possible, else by the task.
    fn stir(&self, state: &mut State) {
        self.report_dropped(state, false);
        if self.decides_now(state) {
            self.pump(state);
            // The task keeps the time for whoever still waits.
            if state.waiters.is_empty() && state.outbox.is_empty() {
                return;
            }
        }
        self.ensure_running(state);
        // A task that waits for an answer takes all else up after it, but for what is due before that.
        let looks_up_at = state.looks_up_at.filter(|_| state.local.is_none());
        if looks_up_at.is_none_or(|at| state.next_deadline().is_some_and(|due| due < at)) {
            self.bell.notify_one();
        }
    }
}

/// Notes when a caller is done with telling the store of a pause or its end. Where it went away before, the task does
/// it.
struct Telling<'a> {
    driver: &'a Driver,
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        let mut state = self.driver.lock();
        state.telling -= 1;
        if state.unsent_pause.is_some() || state.unsent_resume {
            self.driver.ensure_running(&mut state);
            self.driver.bell.notify_one();
        }
        self.driver.unlock(state);
    }
}

fn singles(policy: &Policy, tier: usize) -> [AcquireRequest; 2] {
    [0, 1].map(|waiting| AcquireRequest {
        class: policy.class(tier).cloned(),
        jobs: vec![Job::default()],
        line: LineState { waiting, waited_ms: 0 },
    })
}

impl Listener for Driver {
    fn wake(&self, wake: Wake) {
        self.inbox.lock().push(wake);
        self.bell.notify_one();
    }
}
