//! The task of a driver: exchanges with a store that answers later, timers, and what the store pushes.

use std::{
    future::Future,
    pin::pin,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use parking_lot::MutexGuard;
use tidegate_core::{Wake, time::Moment};

use super::{
    Driver,
    notice::Notice,
    state::{Flight, State},
};
use crate::{clock::Task, link::Failed, task::Guard};

/// A driver that is told of changes looks for itself this often, and one that is not this often.
const REFRESH: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(2));

/// Runs until there are no handles, no waiters, no permits and nothing to deliver.
pub(super) fn run(driver: Arc<Driver>, guard: Guard<Driver>) -> Task {
    Box::pin(run_on(driver, guard))
}

async fn run_on(driver: Arc<Driver>, guard: Guard<Driver>) {
    driver.subscribe();
    loop {
        // Pushes may come as fast as they are taken; the others on this thread have their turn all the same.
        tokio::task::coop::consume_budget().await;
        match driver.turn() {
            Turn::Fly(flight) => driver.fly(&flight).await,
            Turn::Pause(until) => driver.send_pause(until).await,
            Turn::Resume => driver.send_resume().await,
            Turn::Rest => driver.rest().await,
            Turn::Over => {
                guard.done();
                return;
            }
        }
    }
}

/// What the task does next.
enum Turn {
    /// Sends an exchange.
    Fly(Arc<Flight>),
    /// Tells the store of a pause.
    Pause(Moment),
    /// Tells the store that a pause is ended.
    Resume,
    /// Waits for something to do.
    Rest,
    /// Ends.
    Over,
}

/// Has whoever waits start the task again.
pub(super) fn gone(driver: &Driver) {
    let mut state = driver.lock();
    state.running = false;
    state.looks_up_at = None;
    state.subscription = None;
    if let Some(flight) = state.flying.take_if(|flight| flight.exchange.sequence.is_none()) {
        // Without a number it is not sent again.
        for job in flight.asked.iter().flat_map(|(_, jobs)| jobs) {
            if let Some(waiter) = state.waiter(*job) {
                waiter.asked = false;
            }
        }
        driver.take_back(&mut state, &flight, false);
    }
    let wakers = state.waiters.iter_mut().filter_map(|(_, waiter)| waiter.waker.take());
    let wakers: Vec<_> = wakers.collect();
    state.wakers.extend(wakers);
    driver.unlock(state);
    driver.delivered.notify_waiters();
}

impl Driver {
    fn subscribe(self: &Arc<Self>) {
        let listener: Arc<dyn tidegate_core::Listener> = Arc::clone(self) as _;
        let subscription = self.link.subscribe(&self.member.id, self.member.driver, listener);
        self.lock().subscription = subscription;
    }

    /// Sees to what is due, and says what to do next.
    fn turn(&self) -> Turn {
        let now = self.clock.now();
        let mut state = self.see_to_it(now);
        // Unless a caller does.
        let tells = state.away.is_none() && state.telling == 0;
        let turn = if let Some(flight) = self.next_flight(&mut state, now) {
            Turn::Fly(flight)
        } else if let Some(until) = state.unsent_pause.filter(|_| tells) {
            Turn::Pause(until)
        } else if state.unsent_resume && tells {
            Turn::Resume
        } else if self.is_over(&mut state, now) {
            state.running = false;
            state.subscription = None;
            Turn::Over
        } else {
            Turn::Rest
        };
        self.unlock(state);
        if matches!(turn, Turn::Over) {
            self.delivered.notify_waiters();
        }
        turn
    }

    /// Sees to what is due and needs no answer of a store that lets one wait.
    fn see_to_it(&self, now: Moment) -> MutexGuard<'_, State> {
        let pushed = std::mem::take(&mut *self.inbox.lock());
        let mut state = self.lock();
        self.take_pushed(&mut state, pushed, now);
        self.end_pause(&mut state, now);
        self.look_again(&mut state, now);
        self.expire(&mut state, now);
        self.pump(&mut state);
        state
    }

    /// Whether no handle is left.
    pub(super) fn is_left(&self) -> bool {
        self.handles.load(Ordering::Acquire) == 0
    }

    /// Whether nothing is left to do, and no one to do it for.
    fn is_over(&self, state: &mut State, now: Moment) -> bool {
        if !self.is_left() || !state.waiters.is_empty() || state.permits() > 0 {
            return false;
        }
        if state.is_delivered() && state.unsent_pause.is_none() && !state.unsent_resume {
            return true;
        }
        let moot = self.is_moot(state, now);
        if moot && !state.outbox.is_empty() {
            state.notices.push_back(Notice::Undelivered(state.outbox.len()));
        }
        moot
    }

    fn take_pushed(&self, state: &mut State, pushed: Vec<Wake>, now: Moment) {
        for wake in pushed {
            match wake {
                // Of whoever has a breaker for this id.
                Wake::Circuit(_) => {}
                Wake::Room { class } => {
                    let tier = self.member.policy.tier(class.as_ref());
                    let line = tier.and_then(|tier| state.lines.get_mut(tier));
                    // Where no one here waits for it any more, whoever is next is told.
                    state.room_wanted |= !line.is_some_and(|line| line.room(now));
                }
                Wake::Paused { left_ms } => {
                    self.note_pause(state, now.plus(Duration::from_millis(left_ms)), now)
                }
                Wake::Resumed => self.note_resumed(state, now),
                Wake::Limit(limit) => self.take_limit(state, Some(limit)),
                Wake::Policy { .. } => {
                    for line in &mut state.lines {
                        line.unblock();
                    }
                }
                _ => state.refresh_at = Some(now),
            }
        }
    }

    /// Looks at the store from time to time, in case a push was lost or there are none.
    fn look_again(&self, state: &mut State, now: Moment) {
        let due = state.refresh_at.is_none_or(|at| at <= now);
        if !due || state.away.is_some() {
            return;
        }
        // The first look is after subscribing: whatever was seen before may have changed since.
        state.room_wanted = true;
        let every = if state.subscription.is_some() { REFRESH.0 } else { REFRESH.1 };
        state.refresh_at = Some(now.plus(every));
    }

    /// What to send next: the exchange whose answer was lost, or a new one; a probe where the store is away.
    fn next_flight(&self, state: &mut State, now: Moment) -> Option<Arc<Flight>> {
        if state.away.as_ref().is_some_and(|away| away.probe_at > now) {
            return None;
        }
        if let Some(lost) = &state.flying {
            if self.is_remembered(lost, now) {
                return Some(Arc::clone(lost));
            }
            let lost = Arc::clone(lost);
            state.flying = None;
            self.take_back(state, &lost, false);
        }
        if state.away.is_some() {
            return Some(Arc::new(Flight::single(now)));
        }
        if self.link.sync().is_some() {
            return None;
        }
        let flight = Arc::new(self.build(state, now)?);
        state.flying = Some(Arc::clone(&flight));
        Some(flight)
    }

    async fn fly(&self, flight: &Arc<Flight>) {
        let answer = self.meanwhile(self.link.exchange(&self.member, &flight.exchange)).await;
        let mut state = self.lock();
        // An answer that was lost is asked for again under the same number.
        let lost = flight.exchange.sequence.is_some() && answer.as_ref().is_err_and(Failed::is_lost);
        if !lost {
            state.flying = None;
        }
        self.apply(&mut state, flight, answer);
        self.unlock(state);
    }

    async fn send_pause(&self, until: Moment) {
        let sent = self.clock.now();
        let answer = self.meanwhile(self.link.pause(&self.member, until.since(sent))).await;
        let mut state = self.lock();
        self.take_paused(&mut state, until, sent, &answer);
        self.unlock(state);
    }

    async fn send_resume(&self) {
        let answer = self.meanwhile(self.link.resume(&self.member)).await;
        let mut state = self.lock();
        self.take_resumed(&mut state, &answer);
        self.unlock(state);
    }

    /// Waits for an answer, and sees to everything else meanwhile: no one's time is up later for it.
    async fn meanwhile<T>(&self, answer: impl Future<Output = T>) -> T {
        let mut answer = pin!(answer);
        let over_at = self.clock.now().plus(self.op_timeout);
        loop {
            let looks_up_at = {
                let mut state = self.lock();
                let next = self.next_look(&state, Waits::ForAnAnswer).filter(|at| *at < over_at);
                state.looks_up_at = Some(next.unwrap_or(over_at));
                next
            };
            let answer = tokio::select! {
                biased;
                answer = answer.as_mut() => Some(answer),
                () = self.called(looks_up_at) => None,
            };
            self.lock().looks_up_at = None;
            if let Some(answer) = answer {
                return answer;
            }
            let state = self.see_to_it(self.clock.now());
            self.unlock(state);
        }
    }

    /// Waits for a reason to look again.
    async fn rest(&self) {
        let looks_up_at = self.next_look(&self.lock(), Waits::ForSomethingToDo);
        self.called(looks_up_at).await;
    }

    /// Waits until someone rings, and no longer than that.
    async fn called(&self, until: Option<Moment>) {
        match until {
            None => self.bell.notified().await,
            Some(at) => {
                tokio::select! {
                    biased;
                    () = self.bell.notified() => {}
                    () = self.clock.sleep_until(at) => {}
                }
            }
        }
    }

    /// When there is something to do, if nothing else happens: one timer for all that waits.
    fn next_look(&self, state: &State, waits: Waits) -> Option<Moment> {
        let idle = waits == Waits::ForSomethingToDo;
        let away = state.away.as_ref().map(|away| away.probe_at).filter(|_| idle);
        let refresh = state.refresh_at.filter(|_| idle && state.away.is_none());
        // Lines are not looked at while the store cannot be asked.
        let serves = state.local.is_some() || (idle && state.away.is_none() && state.unsent_pause.is_none());
        let here = self.local_limit.is_none_or(|limit| state.permits() < limit);
        let lines = state.lines.iter().filter(|_| serves && here).filter_map(super::queue::Line::next_due);
        let pauses = state.paused_until.into_iter().chain(state.unsent_pause);
        let due = lines.chain(state.next_deadline()).chain(pauses).chain(away).chain(refresh);
        due.min()
    }
}

/// What the task waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waits {
    ForSomethingToDo,
    ForAnAnswer,
}

impl Flight {
    /// An exchange that asks for nothing.
    pub(super) fn single(sent: Moment) -> Self {
        let exchange = tidegate_core::Exchange::default();
        Self { exchange, asked: Vec::new(), handed: Vec::new(), released: Vec::new(), sent, local: false }
    }
}
