//! When a store fails: what becomes of an exchange without an answer, and of those who wait for one.
//!
//! A store that fails is *away*. Then whoever waits is refused, or served by this process alone; what is to be delivered
//! is kept; and the store is probed from time to time, first with the exchange whose answer was lost, under the same
//! number, so that nothing is carried out twice.
//!
//! Spec: ST-15, UN-1, UN-2, UN-4, UN-8.

use std::time::Duration;

use tidegate_core::{Cause, ExchangeReply, Grant, StoreError, backoff::Doubling, time::Moment};

use super::{
    Driver,
    apply::failure,
    local::Local,
    notice::Notice,
    state::{Away, Flight, State},
};
use crate::{AcquireError, link::Failed};

/// The first probe of a store that is away, and the longest wait between two.
const PROBE: Doubling = Doubling::new(Duration::from_millis(100), Duration::from_secs(2));
/// A store keeps an answer at least this long for one that asks again.
const ANSWER_KEPT: Duration = Duration::from_secs(60);

impl Driver {
    // ---- waiting for an answer -------------------------------------------------------------------------------------

    /// Whether an answer to what was sent then is so late that it says little of now. Only one that was lost and asked
    /// for again can be.
    pub(super) fn is_late(&self, sent: Moment, now: Moment) -> bool {
        now.since(sent) > self.op_timeout.saturating_mul(2)
    }

    /// Whether a grant came too late for anyone to use it.
    pub(super) fn is_in_vain(&self, state: &State, flight: &Flight, grant: &Grant, now: Moment) -> bool {
        let over = grant.lease.is_some() && flight.sent.plus(state.lease_ttl) <= now;
        !flight.local && (over || self.is_late(flight.sent, now))
    }

    /// Whether a store that carried out an exchange would still answer for it.
    pub(super) fn is_remembered(&self, flight: &Flight, now: Moment) -> bool {
        flight.exchange.sequence.is_some() && now.since(flight.sent) < ANSWER_KEPT
    }

    /// Whether this process keeps to a pause that it has declared and the store may not know of.
    pub(super) fn holds_back(state: &State, now: Moment) -> bool {
        state.local.is_none() && state.unsent_pause.is_some_and(|until| until > now)
    }

    /// Ends the waits whose time is up.
    pub(super) fn expire(&self, state: &mut State, now: Moment) {
        for key in state.past_deadline(now) {
            let since = state.waiters.get(key).map_or(now, |waiter| waiter.since);
            let until = since.plus(self.op_timeout);
            if self.is_owed(state, key, now) && (until > now || state.local.is_some()) {
                state.defer(key, until);
            } else {
                self.run_out(state, key, now);
            }
        }
        let over = state.owed().take_while(|(until, _)| *until <= now).map(|(_, key)| key);
        // What this process decides alone, it decides at once.
        let over = over.filter(|key| state.local.is_none() || !self.is_owed(state, *key, now));
        for key in over.collect::<Vec<_>>() {
            self.run_out(state, key, now);
        }
    }

    /// Ends the waits of those whose time was up when the store had not said anything about them, and has now.
    pub(super) fn expire_owed(&self, state: &mut State, now: Moment) {
        let answered = state.owed().filter(|(_, key)| !self.is_owed(state, *key, now));
        for (_, key) in answered.collect::<Vec<_>>() {
            self.run_out(state, key, now);
        }
    }

    /// Whether nothing is known about a job, because it was asked for and there is no answer yet, or is about to be.
    fn is_owed(&self, state: &State, key: usize, now: Moment) -> bool {
        let Some(waiter) = state.waiters.get(key) else { return false };
        if waiter.last.is_some() || waiter.ended.is_some() {
            return false;
        }
        let held_up = || {
            let known = state.lines.get(waiter.tier).and_then(|line| line.known(waiter.place(key), now));
            known.is_some_and(|(until, _)| until > now)
        };
        let will_be_asked = || self.free_here(state) > 0 && !held_up() && !Self::holds_back(state, now);
        waiter.asked || will_be_asked()
    }

    /// Ends a wait whose time is up: for want of room, or for want of an answer.
    fn run_out(&self, state: &mut State, key: usize, now: Moment) {
        if self.is_owed(state, key, now) {
            let detail = format!("no answer within {:?}", self.op_timeout);
            let error = StoreError::unavailable(Cause::NoAnswer, detail);
            state.resolve(key, Err(AcquireError::from_store(&self.member.id, error)));
        } else {
            self.time_out(state, key, now);
        }
    }

    // ---- failing ---------------------------------------------------------------------------------------------------

    /// An exchange failed as a whole.
    pub(super) fn failed(&self, state: &mut State, flight: &Flight, failed: Failed, now: Moment) {
        self.note_store_error(state);
        for token in &failed.leases {
            state.outbox.release(failure(*token), now);
        }
        let lost = failed.is_lost();
        let mut error = failed.error;
        if let StoreError::TooLate { last, .. } = error {
            state.number = state.number.max(last);
            if state.store_clock.take().is_some() {
                self.came_back(state, now);
                return self.take_back(state, flight, self.is_remembered(flight, now));
            }
            // It set itself no limit that it could have been late for.
            error = StoreError::unavailable(Cause::Broken, error.to_string());
        }
        if !error.is_unavailable() {
            // The whole exchange was refused, acquires and all: another would fare no better.
            self.came_back(state, now);
            if flight.exchange.restore.is_some() {
                state.give_up_restoring();
            }
            for (_, jobs) in &flight.asked {
                self.refuse(state, jobs, &error);
            }
            state.notices.push_back(Notice::Refused("exchange", error));
            return;
        }
        if flight.exchange.sequence.is_none() || !lost {
            self.take_back(state, flight, was_not_done(&error));
        }
        self.store_failed(state, error, now);
    }

    /// Keeps what an exchange did not deliver for another. Corrections are not delivered twice: where they may have been
    /// carried out, they are given up.
    pub(super) fn take_back(&self, state: &mut State, flight: &Flight, undone: bool) {
        let exchange = &flight.exchange;
        state.outbox.put_back_releases(&exchange.releases, &flight.released);
        if undone {
            state.outbox.put_back_settlements(&exchange.settlements);
            state.outbox.put_back_observations(&exchange.observations);
        } else {
            state.outbox.give_up(exchange.settlements.len() + exchange.observations.len());
        }
        state.unhanded.extend(&flight.handed);
        if exchange.restore.is_some() {
            state.restore_all();
        }
        self.report_dropped(state, false);
    }

    /// Takes in which parts of an exchange were refused, or not answered.
    pub(super) fn take_refusals(&self, state: &mut State, flight: &Flight, body: &ExchangeReply) {
        let Flight { exchange, .. } = flight;
        let refused = |state: &mut State, what, error: &StoreError| {
            if !error.is_unavailable() {
                state.notices.push_back(Notice::Refused(what, error.clone()));
            }
            error.is_unavailable()
        };
        if let Err(error) = &body.released
            && refused(state, "releases", error)
        {
            state.outbox.put_back_releases(&exchange.releases, &flight.released);
        }
        if let Err(error) = &body.settled
            && refused(state, "settlements", error)
        {
            if was_not_done(error) {
                state.outbox.put_back_settlements(&exchange.settlements);
            } else {
                state.outbox.give_up(exchange.settlements.len());
            }
        }
        if let Err(error) = &body.observed
            && refused(state, "observations", error)
        {
            if was_not_done(error) {
                state.outbox.put_back_observations(&exchange.observations);
            } else {
                state.outbox.give_up(exchange.observations.len());
            }
        }
        if let Err(error) = &body.renewed {
            if refused(state, "renewals", error) {
                state.restore_all();
            } else {
                state.give_up_restoring();
            }
        }
        if let Err(error) = &body.handed_over
            && refused(state, "hand-overs", error)
        {
            state.unhanded.extend(&flight.handed);
        }
        self.report_dropped(state, false);
    }

    /// Says what was dropped: at once when it begins, and the rest when the store is back.
    pub(super) fn report_dropped(&self, state: &mut State, delivered: bool) {
        if let Some(dropped) = state.outbox.dropped(delivered) {
            state.notices.push_back(Notice::Undelivered(dropped));
        }
    }

    // ---- away ------------------------------------------------------------------------------------------------------

    /// An exchange found the store away, or still away.
    pub(super) fn store_failed(&self, state: &mut State, error: StoreError, now: Moment) {
        if let Some(away) = &mut state.away {
            away.probes = away.probes.saturating_add(1);
            away.probe_at = now.plus(PROBE.spread(away.probes, fastrand::u32(..)));
        }
        self.went_away(state, error, now);
    }

    /// The store is away: whoever waits is refused, or served by this process alone.
    pub(super) fn went_away(&self, state: &mut State, error: StoreError, now: Moment) {
        match &mut state.away {
            Some(away) => away.error = error.clone(),
            None => {
                let probe_at = now.plus(PROBE.spread(0, fastrand::u32(..)));
                state.away = Some(Away { since: now, probe_at, probes: 0, error: error.clone() });
                state.notices.push_back(Notice::Away(error.clone()));
                let resting = state.resting.take();
                let begin = |fallback| resting.unwrap_or_else(|| Local::new(&self.member, fallback));
                state.local = self.fallback.as_ref().map(begin);
                for line in &mut state.lines {
                    line.unblock();
                }
                // Someone has to probe.
                self.ensure_running(state);
                self.bell.notify_one();
            }
        }
        if self.fallback.is_none() {
            let waiting = state.waiters.iter().filter(|(_, waiter)| waiter.ended.is_none());
            for key in waiting.map(|(key, _)| key).collect::<Vec<_>>() {
                state.resolve(key, Err(AcquireError::from_store(&self.member.id, error.clone())));
            }
        }
    }

    /// The store answered something outside of exchanges: it is probed at once.
    pub(super) fn answers_again(&self, state: &mut State, now: Moment) {
        if let Some(away) = &mut state.away
            && away.probe_at > now
        {
            away.probe_at = now;
            self.bell.notify_one();
        }
    }

    /// The store answers again: those who wait go back to it, and what was granted without it is handed over.
    pub(super) fn came_back(&self, state: &mut State, now: Moment) {
        let Some(away) = state.away.take() else { return };
        state.notices.push_back(Notice::Back(now.since(away.since)));
        state.opened = false;
        state.resting = state.local.take();
        for line in &mut state.lines {
            line.unblock();
        }
        let local = state.held.iter().filter(|(_, held)| held.local).map(|(key, held)| (key, held.stamp));
        let local: Vec<_> = local.collect();
        state.unhanded.extend(local);
        self.report_dropped(state, true);
    }

    /// Whether nothing is left to do and no one to do it for, but to deliver what no store would make any use of any more.
    pub(super) fn is_moot(&self, state: &State, now: Moment) -> bool {
        let worth = state.lease_ttl.max(ANSWER_KEPT);
        state.away.as_ref().is_some_and(|away| now.since(away.since) > worth)
    }
}

/// The first part of an answer that the store went away before.
pub(super) fn unanswered(body: &ExchangeReply) -> Option<&StoreError> {
    let parts = [
        body.released.as_ref().err(),
        body.settled.as_ref().err(),
        body.observed.as_ref().err(),
        body.renewed.as_ref().err(),
        body.handed_over.as_ref().err(),
    ];
    let acquires = body.acquired.iter().map(|acquired| acquired.as_ref().err());
    parts.into_iter().chain(acquires).flatten().find(|error| error.is_unavailable())
}

/// Whether the store says that it did not do what it was asked.
const fn was_not_done(error: &StoreError) -> bool {
    matches!(
        error,
        StoreError::NewerLayout { .. }
            | StoreError::Unavailable { cause: Cause::Refused | Cause::Migrating, .. }
    )
}
