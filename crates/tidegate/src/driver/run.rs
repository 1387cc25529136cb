//! The task of a driver: exchanges with a store that answers later, timers, and what the store pushes.

use std::{
    convert::Infallible,
    sync::{Arc, atomic::Ordering},
    task::Waker,
    time::Duration,
};

use tidegate_core::{Wake, time::Moment};

use super::{
    Control, Driver,
    state::{Flight, State},
    task::Guard,
};
use crate::clock::Task;

/// A driver that is told of changes looks for itself this often, and one that is not this often.
const REFRESH: (Duration, Duration) = (Duration::from_secs(30), Duration::from_secs(2));

/// Runs until there are no handles, no waiters, no permits and nothing to deliver.
pub(super) fn run(driver: Arc<Driver>, guard: Guard) -> Task {
    Box::pin(run_on(driver, guard))
}

async fn run_on(driver: Arc<Driver>, guard: Guard) {
    driver.subscribe();
    loop {
        // Pushes may come as fast as they are taken; the others on this thread have their turn all the same.
        tokio::task::coop::consume_budget().await;
        driver.pay_owed().await;
        let flight = {
            let now = driver.clock.now();
            let pushed = std::mem::take(&mut *driver.inbox.lock());
            let mut state = driver.lock();
            driver.take_pushed(&mut state, pushed, now);
            driver.end_pause(&mut state, now);
            driver.look_again(&mut state, now);
            if driver.decides_now(&state) {
                driver.pump(&mut state);
            }
            let flight = driver.next_flight(&mut state, now);
            if flight.is_none() && driver.is_over(&state) {
                state.running = false;
                state.subscription = None;
                driver.unlock(state);
                driver.delivered.notify_waiters();
                guard.done();
                return;
            }
            driver.unlock(state);
            flight
        };
        match flight {
            Some(flight) => driver.fly(&flight).await,
            None => driver.rest().await,
        }
    }
}

/// Has whoever waits start the task again.
pub(super) fn gone(driver: &Driver) {
    let mut state = driver.lock();
    state.running = false;
    state.subscription = None;
    let wakers = state.waiters.iter_mut().filter_map(|(_, waiter)| waiter.waker.take());
    let wakers: Vec<_> = wakers.collect();
    drop(state);
    wakers.into_iter().for_each(Waker::wake);
    driver.delivered.notify_waiters();
}

impl Driver {
    fn subscribe(self: &Arc<Self>) {
        let listener: Arc<dyn tidegate_core::Listener> = Arc::clone(self) as _;
        let subscription = self.link.subscribe(&self.member, self.member.driver, listener);
        self.lock().subscription = subscription;
    }

    /// Whether no handle is left.
    pub(super) fn is_left(&self) -> bool {
        self.handles.load(Ordering::Acquire) == 0
    }

    /// Whether nothing is left to do, and no one to do it for.
    fn is_over(&self, state: &State) -> bool {
        let done = state.waiters.is_empty() && state.permits() == 0 && state.owed.is_none();
        self.is_left() && done && state.is_delivered()
    }

    fn take_pushed(&self, state: &mut State, pushed: Vec<Wake>, now: Moment) {
        for wake in pushed {
            match wake {
                Wake::Room { class } => {
                    let tier = self.member.policy.tier(class.as_ref());
                    let line = tier.and_then(|tier| state.lines.get_mut(tier));
                    // Where no one here waits for it any more, whoever is next is told.
                    state.room_wanted |= !line.is_some_and(|line| line.room(now));
                }
                Wake::Paused { left_ms } => {
                    self.note_pause(state, now.plus(Duration::from_millis(left_ms)), now)
                }
                Wake::Resumed => self.note_resumed(state),
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
        if let Some(away) = &state.away {
            if away.probe_at > now {
                return None;
            }
            if let Some(lost) = &state.flying {
                return Some(Arc::clone(lost));
            }
            return Some(Arc::new(Flight::single(now)));
        }
        if let Some(lost) = &state.flying {
            return Some(Arc::clone(lost));
        }
        if self.link.sync().is_some() {
            return None;
        }
        let flight = Arc::new(self.build(state, now)?);
        state.flying = Some(Arc::clone(&flight));
        Some(flight)
    }

    async fn fly(&self, flight: &Arc<Flight>) {
        let answer = tokio::select! {
            biased;
            answer = self.link.exchange(&self.member, &flight.exchange) => answer,
            never = self.keep_time() => match never {},
        };
        let unsent_pause = {
            let mut state = self.lock();
            let was_away = state.away.is_some();
            // An answer that was lost is asked for again under the same number.
            let lost = flight.exchange.sequence.is_some()
                && answer.as_ref().is_err_and(tidegate_core::StoreError::is_unavailable);
            if !lost {
                state.flying = None;
            }
            self.apply(&mut state, flight, answer);
            let now = self.clock.now();
            let pause = state.unsent_pause.filter(|_| was_away && state.away.is_none());
            if pause.is_some() {
                state.unsent_pause = None;
            }
            self.unlock(state);
            pause.map(|until| until.since(now)).filter(|left| !left.is_zero())
        };
        self.delivered.notify_waiters();
        if let Some(left) = unsent_pause {
            // The fleet hears of it now; trouble comes back here and is kept for the next time.
            let _ = self.pause_now(left).await;
        }
    }

    /// Ends what a caller began and did not wait for. Trouble is kept for when the store is back.
    async fn pay_owed(&self) {
        let (owed, left) = {
            let mut state = self.lock();
            let left = state.unsent_pause.map(|until| until.since(self.clock.now()));
            (state.owed.take(), left.filter(|left| !left.is_zero()))
        };
        match (owed, left) {
            (Some(Control::Pause), Some(left)) => drop(self.pause_now(left).await),
            (Some(Control::Resume), _) => drop(self.resume_now().await),
            _ => {}
        }
    }

    /// Sees to what must not wait for as long as an exchange takes: the ends of waits and of a pause, and what this
    /// process decides alone.
    async fn keep_time(&self) -> Infallible {
        loop {
            let next = {
                let mut state = self.lock();
                let now = self.clock.now();
                self.end_pause(&mut state, now);
                if self.decides_now(&state) {
                    self.pump(&mut state);
                } else {
                    self.expire(&mut state, now);
                }
                let next = self.next_here(&state, now, state.local.is_some());
                self.unlock(state);
                next
            };
            self.rest_until(next).await;
        }
    }

    /// Waits for a reason to look again.
    async fn rest(&self) {
        let wake_at = {
            let state = self.lock();
            self.next_look(&state, self.clock.now())
        };
        self.rest_until(wake_at).await;
    }

    async fn rest_until(&self, wake_at: Option<Moment>) {
        match wake_at {
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
    fn next_look(&self, state: &State, now: Moment) -> Option<Moment> {
        let away = state.away.as_ref().map(|away| away.probe_at);
        let serves = state.away.is_none() || state.local.is_some();
        let refresh = state.refresh_at.filter(|_| state.away.is_none());
        self.next_here(state, now, serves).into_iter().chain(away).chain(refresh).min()
    }

    /// When there is something to do for those that wait here, or for a pause.
    fn next_here(&self, state: &State, now: Moment, serves: bool) -> Option<Moment> {
        let free = self.local_limit.is_none_or(|limit| state.permits() < limit);
        let lines = state.lines.iter().filter(|_| serves && free).filter_map(super::queue::Line::next_due);
        lines.chain(state.next_deadline(now)).chain(state.paused_until).min()
    }
}

impl Flight {
    /// An exchange that asks for nothing.
    pub(super) fn single(sent: Moment) -> Self {
        let exchange = tidegate_core::Exchange::default();
        Self { exchange, asked: Vec::new(), handed: Vec::new(), sent, local: false }
    }
}
