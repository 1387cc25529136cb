//! Keeping leases alive: all of a driver in one batch, on a thread of its own.
//!
//! A lease is renewed when it is between one and two thirds of its TTL old, and tried again within the rest, each try at
//! most a quarter of what is left. Its deadline counts from the moment when the request was sent. A lease whose deadline
//! has passed is lost, whether the store could be reached or not.
//!
//! Spec: AS-6, AS-14.

use std::{sync::Arc, time::Duration};

use tidegate_core::{Epoch, Renewal, Restore, Token, store::MOST_TOKENS, time::Moment};

use super::{
    Driver,
    state::{Held, State},
};
use crate::{clock::Task, task::Guard};

impl Held {
    pub(super) fn is_live(&self, now: Moment) -> bool {
        !self.lost && (self.local || now < self.deadline)
    }
}

/// Renews until nothing is held.
pub(super) fn renew(driver: Arc<Driver>, guard: Guard<Driver>) -> Task {
    Box::pin(renew_on(driver, guard))
}

async fn renew_on(driver: Arc<Driver>, guard: Guard<Driver>) {
    loop {
        match driver.next_renewal() {
            Next::Nothing => {
                guard.done();
                return;
            }
            Next::Sleep(until) => driver.clock.sleep_until(until).await,
            Next::Renew(batch) => {
                if let Some(pause) = driver.renew_batch(&batch).await {
                    driver.clock.sleep_until(driver.clock.now().plus(pause)).await;
                }
            }
        }
    }
}

/// What renewals do next.
enum Next {
    Nothing,
    Sleep(Moment),
    Renew(Batch),
}

struct Batch {
    renewals: Vec<Renewal>,
    restore: Option<Restore>,
    /// The epoch that was known when it was put together.
    epoch: Option<Epoch>,
    /// What is left until the first of them is over.
    left: Duration,
}

/// Lets renewals be started again.
pub(super) fn gone(driver: &Driver) {
    driver.lock().renewing = false;
}

/// A lease is due when a third of its TTL has passed.
fn earliest_renewal(deadline: Moment, ttl: Duration) -> Moment {
    let before = u64::try_from((ttl * 2 / 3).as_micros()).unwrap_or(u64::MAX);
    Moment::from_micros(deadline.micros().saturating_sub(before))
}

impl Driver {
    fn next_renewal(&self) -> Next {
        let now = self.clock.now();
        let mut state = self.lock();
        self.drop_lost(&mut state, now);
        let ttl = state.lease_ttl;
        let next = match state.earliest_deadline() {
            None => {
                state.renewing = false;
                Next::Nothing
            }
            Some(earliest) => {
                let due_at = earliest_renewal(earliest, ttl);
                if due_at > now {
                    Next::Sleep(due_at.min(now.plus(ttl / 3)))
                } else {
                    let renewals = self.due_renewals(&state, now, ttl);
                    let restore = self.restore(&state, now);
                    Next::Renew(Batch { renewals, restore, epoch: state.epoch, left: earliest.since(now) })
                }
            }
        };
        self.unlock(state);
        next
    }

    /// Renews a batch; says how long to wait before the next try where that failed.
    async fn renew_batch(&self, batch: &Batch) -> Option<Duration> {
        let Batch { renewals, restore, epoch, left } = batch;
        let again = (*left / 16).clamp(Duration::from_millis(1), Duration::from_secs(1));
        let try_for = (*left / 4).clamp(Duration::from_millis(1), self.op_timeout);
        let sent = self.clock.now();
        let answer = self.link.renew(&self.member, restore.as_ref(), renewals, try_for).await;
        let Ok(reply) = answer else {
            let mut state = self.lock();
            self.note_store_error(&mut state);
            self.unlock(state);
            return Some(again);
        };
        let now = self.clock.now();
        let mut state = self.lock();
        self.answers_again(&mut state, now);
        self.take_head(&mut state, &reply.head, sent, now);
        // Leases that a new state does not know are taken up by the next try, which says what was lost.
        let lost_meanwhile = epoch.is_some() && reply.head.epoch != *epoch && restore.is_none();
        if !lost_meanwhile {
            let live: Vec<(Token, bool)> =
                renewals.iter().map(|renewal| renewal.token).zip(reply.body.live).collect();
            self.take_renewed(&mut state, &live, sent);
        }
        self.unlock(state);
        lost_meanwhile.then_some(again)
    }

    /// What is due now, and what would be due before long, in one batch.
    fn due_renewals(&self, state: &State, now: Moment, ttl: Duration) -> Vec<Renewal> {
        let soon = now.plus(ttl / 6);
        let due = state
            .held
            .iter()
            .filter(|(_, held)| !held.lost && !held.local && earliest_renewal(held.deadline, ttl) <= soon);
        due.take(MOST_TOKENS)
            .map(|(_, held)| Renewal {
                token: held.token,
                class: self.member.policy.class(held.tier).cloned(),
            })
            .collect()
    }

    /// Notes those whose deadline has passed.
    pub(super) fn drop_lost(&self, state: &mut State, now: Moment) {
        let over = state.held.iter().filter(|(_, held)| !held.lost && !held.is_live(now)).map(|(key, _)| key);
        for key in over.collect::<Vec<_>>() {
            state.lose(key);
        }
    }
}

impl State {
    fn earliest_deadline(&self) -> Option<Moment> {
        let live = self.held.iter().filter(|(_, held)| !held.lost && !held.local);
        live.map(|(_, held)| held.deadline).min()
    }
}
