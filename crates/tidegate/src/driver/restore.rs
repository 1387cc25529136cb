//! What a process gives back to a store that has lost its state, and hands over to one that was away.
//!
//! A store that answers under another epoch has lost its state. This process then renews all its leases there, with the
//! newest limit and the pause that it knows, until the store has it all.
//!
//! Spec: ST-18, UN-3.

use tidegate_core::{
    Epoch, Exchange, ExchangeReply, HandOver, Head, Limit, Renewal, Reply, Restore, Token,
    store::MOST_TOKENS,
    time::{Moment, ceil_millis},
};

use super::{
    Driver,
    apply::failure,
    notice::Notice,
    state::{Flight, State},
};

impl Driver {
    /// Whether an answer is of a state that was lost since it was given.
    pub(super) fn is_stale(&self, state: &State, head: &Head, sent: Moment) -> bool {
        let older = |epoch: Epoch| state.epoch.is_some_and(|known| epoch < known);
        head.epoch.is_some_and(older) && sent <= state.epoch_since
    }

    /// Takes in which state an answer is of.
    pub(super) fn take_epoch(&self, state: &mut State, epoch: Option<Epoch>, sent: Moment, now: Moment) {
        match (state.epoch, epoch) {
            (Some(known), Some(epoch)) if known != epoch => self.lost_state(state, known),
            // Nothing is kept of the id. That is a loss to whoever holds something there.
            (Some(known), None) if sent > state.epoch_since && state.has_a_stake(now) => {
                self.lost_state(state, known);
                state.epoch = None;
                return;
            }
            (Some(_), _) | (None, None) => return,
            (None, Some(_)) => {}
        }
        state.epoch = epoch;
        state.epoch_since = now;
    }

    /// The store has lost its state: what is known of it is given back to it.
    fn lost_state(&self, state: &mut State, known: Epoch) {
        let pending = state.restore.and_then(|restore| restore.limit);
        let limit = newest(state.limit, pending);
        state.restore = Some(Restore { epoch: known, limit, paused_ms: 0 });
        state.restore_all();
        state.notices.push_back(Notice::StateLost);
        self.ensure_running(state);
        self.bell.notify_one();
    }

    /// Leases that were granted in a state that was lost by now are taken up in the new one, or lost.
    pub(super) fn take_up_later(&self, state: &mut State, head: &Head) {
        let Some(epoch) = head.epoch else { return };
        let theirs = state.counted().filter(|(_, held)| held.token.epoch == epoch);
        let theirs: Vec<_> = theirs.map(|(key, held)| (key, held.stamp)).collect();
        if !theirs.is_empty() {
            state.unrestored.extend(theirs);
            state.restore.get_or_insert(Restore { epoch, limit: head.limit, paused_ms: 0 });
            state.room_wanted = true;
        }
    }

    /// What is to be restored, as it is now.
    pub(super) fn restore(&self, state: &State, now: Moment) -> Option<Restore> {
        let paused_ms = state.paused_until.map_or(0, |until| ceil_millis(until.since(now)));
        state.restore.map(|restore| Restore { paused_ms, ..restore })
    }

    /// Puts what is to be restored into an exchange, with as many leases as it takes.
    pub(super) fn restore_into(&self, state: &mut State, exchange: &mut Exchange, now: Moment) {
        exchange.restore = self.restore(state, now);
        if exchange.restore.is_none() {
            return;
        }
        let most = state.unrestored.len().min(MOST_TOKENS);
        let renewed: Vec<(usize, u64)> = state.unrestored.drain(..most).collect();
        let held = renewed.iter().filter_map(|(key, stamp)| {
            state.held.get(*key).filter(|held| held.stamp == *stamp && !held.lost && !held.local)
        });
        exchange.renewals = held
            .map(|held| Renewal { token: held.token, class: self.member.policy.class(held.tier).cloned() })
            .collect();
    }

    /// Notes that the store has what an exchange restored.
    pub(super) fn take_restored(&self, state: &mut State, flight: &Flight, reply: &Reply<ExchangeReply>) {
        let (Some(sent), Ok(_)) = (flight.exchange.restore, &reply.body.renewed) else { return };
        if state.restore.is_none_or(|pending| pending.epoch != sent.epoch) {
            // Another loss was seen since.
            return;
        }
        if !state.unrestored.is_empty() {
            state.room_wanted = true;
            return;
        }
        state.restore = None;
        if let Some(limit) = reply.head.limit {
            self.set_limit(state, limit);
        }
    }

    /// Hands over leases that this process granted alone.
    pub(super) fn hand_overs(&self, state: &mut State, exchange: &mut Exchange) -> Vec<(usize, u64)> {
        if state.unhanded.is_empty() {
            return Vec::new();
        }
        // A lease may have been noted for each time that the store came back.
        state.unhanded.sort_unstable();
        state.unhanded.dedup();
        let most = state.unhanded.len().min(MOST_TOKENS);
        let mut handed: Vec<(usize, u64)> = state.unhanded.drain(..most).collect();
        handed.retain(|(key, stamp)| {
            state.held.get(*key).is_some_and(|held| held.stamp == *stamp && held.local)
        });
        let class = |(key, _): &(usize, u64)| {
            state.held.get(*key).and_then(|held| self.member.policy.class(held.tier)).cloned()
        };
        exchange.hand_overs = handed.iter().map(|held| HandOver { class: class(held) }).collect();
        handed
    }

    /// Takes in the tokens of leases that the store counts from now on.
    pub(super) fn take_handed_over(&self, state: &mut State, flight: &Flight, tokens: &[Token], now: Moment) {
        let deadline = flight.sent.plus(state.lease_ttl);
        for ((key, stamp), token) in flight.handed.iter().zip(tokens) {
            match state.held.get_mut(*key).filter(|held| held.stamp == *stamp) {
                // The answer came so late that the store counts it no more.
                Some(held) if held.local && deadline <= now => state.unhanded.push((*key, *stamp)),
                Some(held) => {
                    held.token = *token;
                    held.local = false;
                    held.deadline = deadline;
                    self.ensure_renewing(state);
                }
                // Released meanwhile.
                None => state.outbox.release(failure(*token), now),
            }
        }
    }
}

impl State {
    /// Has all leases renewed with what is to be restored.
    pub(super) fn restore_all(&mut self) {
        if self.restore.is_some() {
            self.unrestored = self.counted().map(|(key, held)| (key, held.stamp)).collect();
            self.room_wanted = true;
        }
    }

    /// A store that refuses to take back what it lost is not asked again.
    pub(super) fn give_up_restoring(&mut self) {
        self.restore = None;
        self.unrestored.clear();
    }

    /// Whether something of this process is kept in the store.
    fn has_a_stake(&self, now: Moment) -> bool {
        self.counted().next().is_some() || self.paused_until.is_some_and(|until| until > now)
    }
}

fn newest(one: Option<Limit>, other: Option<Limit>) -> Option<Limit> {
    one.into_iter().chain(other).max_by_key(|limit| limit.moved_at)
}
