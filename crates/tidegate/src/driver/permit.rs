//! A job's admission, while it lasts.
//!
//! Dropping it hands it back: no blocking, no spawning, nothing to wait for.

use std::{
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tidegate_core::{
    Capability, Invalid, Observation, Outcome, Release, Settlement, Token, rule::MOST_UNITS, time,
};

use super::{
    Driver,
    state::{Granted, State},
};
use crate::{LeaseLost, Trouble};

/// No more than where to look, so that moving it costs nothing.
pub(crate) struct Permit {
    driver: Arc<Driver>,
    /// Where it is among those that were issued; [`RELEASED`] when it is not any more.
    key: usize,
}

const RELEASED: usize = usize::MAX;

/// Whether what a permit admits was begun.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Made,
    Unmade,
}

impl Permit {
    pub(super) fn new(driver: Arc<Driver>, key: usize) -> Self {
        Self { driver, key }
    }

    pub(crate) fn id(&self) -> &tidegate_core::Id {
        &self.driver.member.id
    }

    pub(crate) fn class(&self) -> Option<&tidegate_core::Name> {
        let tier = self.known(|granted| granted.tier)?;
        self.driver.member.policy.class(tier)
    }

    pub(crate) fn token(&self) -> Option<Token> {
        let state = self.driver.lock();
        let granted = state.issued.get(self.key).filter(|granted| !granted.local)?;
        state.held.get(granted.held?).map(|held| held.token)
    }

    pub(crate) fn limit(&self) -> u32 {
        self.known(|granted| granted.limit).unwrap_or(0)
    }

    pub(crate) fn is_local(&self) -> bool {
        self.known(|granted| granted.local).unwrap_or(false)
    }

    /// Looks at what is known of it: something, as long as it is not released.
    fn known<T>(&self, look: impl FnOnce(&Granted) -> T) -> Option<T> {
        self.driver.lock().issued.get(self.key).map(look)
    }

    /// Whether the lease is certainly this process's own now; a permit without one always is.
    pub(crate) fn is_live(&self) -> bool {
        let state = self.driver.lock();
        let Some(key) = state.lease_of(self.key) else { return true };
        let now = self.driver.clock.now();
        state.held.get(key).is_some_and(|held| held.is_live(now))
    }

    pub(crate) const fn lost(&self) -> Lost<'_> {
        Lost { driver: &self.driver, key: self.key, token: None }
    }

    /// What can be asked of it by another than its holder.
    pub(crate) fn watch(&self) -> Watch {
        Watch { driver: Arc::clone(&self.driver), key: self.key, token: self.token() }
    }

    #[inline]
    pub(crate) fn release(mut self, outcome: Outcome, retry_after: Option<Duration>) {
        self.end(outcome, retry_after, Use::Made);
    }

    /// Gives it back unused: its slot as a failure, and what it cost.
    pub(crate) fn decline(mut self) {
        self.end(Outcome::Failure, None, Use::Unmade);
    }

    fn end(&mut self, outcome: Outcome, retry_after: Option<Duration>, made: Use) {
        let key = std::mem::replace(&mut self.key, RELEASED);
        if key == RELEASED {
            return;
        }
        let driver = &*self.driver;
        let mut state = driver.lock();
        let Some(granted) = state.issued.get(key) else { return };
        let (tier, lease, since) = (granted.tier, granted.held, granted.since);
        state.in_flight[tier] -= 1;
        driver.note_load(&mut state, tier);
        if made == Use::Unmade {
            if let Some(granted) = state.issued.remove(key) {
                driver.settle_back(&mut state, &granted);
            }
            driver.stir(&mut state);
        } else {
            // Where it is: moving it out would take as long as the store does.
            state.issued.clear(key);
        }
        let held = lease.and_then(|key| state.held.get(key).map(|held| (key, held.token, held.local)));
        if let Some((key, token, local)) = held {
            state.held.clear(key);
            let retry_after_ms = retry_after.map(time::ceil_millis);
            driver.let_go(&mut state, local, Release { token, outcome, retry_after_ms });
        } else if (driver.local_limit.is_some() || state.local.is_some()) && !state.waiters.is_empty() {
            let now = driver.clock.now();
            for line in &mut state.lines {
                line.room(now);
            }
            driver.stir(&mut state);
        }
        driver.unlock(state);
        if driver.is_left() {
            // No one else will: the task ends with the last permit.
            driver.bell.notify_one();
        }
        if driver.hooks.records() {
            let class = driver.member.policy.class(tier).map(tidegate_core::Name::as_str);
            let hold = driver.clock.now().since(since);
            driver.hooks.record(&driver.member.id, |recorder| recorder.released(class, outcome, hold));
        }
    }

    /// Corrects the cost in a rule. Never fails for the caller: what cannot be taken is reported.
    pub(crate) fn settle(&mut self, rule: &str, actual: u64) {
        let policy = Arc::clone(&self.driver.member.policy);
        let Some((index, checked)) = find_rule(&policy, rule) else {
            return self.refuse(Invalid::new("settle: rule", rule, rules_of(&policy)));
        };
        if actual > MOST_UNITS {
            return self.refuse(Invalid::new(format!("settle {rule}"), actual, "0 to 10^12"));
        }
        let driver = &*self.driver;
        let mut state = driver.lock();
        let Some(granted) = state.issued.get_mut(self.key) else { return };
        let before = granted.settled;
        granted.settled |= 1 << index;
        if before == granted.settled {
            drop(state);
            return self.refuse(Invalid::new(format!("settle {rule}"), actual, "once per permit and rule"));
        }
        let Some(granted_at) = granted.granted_at else { return };
        let job = driver.job_of(granted.job.as_ref());
        let settlement = Settlement {
            rule: checked.key().clone(),
            identity: job.identity(checked).cloned(),
            granted_at,
            cost: job.costs.of(checked.name()),
            actual,
        };
        if settlement.cost != actual && self.corrects() {
            state.outbox.settle(settlement);
            driver.stir(&mut state);
            driver.unlock(state);
        }
    }

    /// Tells what the server said of its quota. Never fails for the caller.
    pub(crate) fn observe(&mut self, rule: &str, remaining: u64, reset: Duration) {
        let policy = Arc::clone(&self.driver.member.policy);
        let Some((index, checked)) = find_rule(&policy, rule) else {
            return self.refuse(Invalid::new("observe: rule", rule, rules_of(&policy)));
        };
        let driver = &*self.driver;
        let mut state = driver.lock();
        let Some(granted) = state.issued.get(self.key).filter(|_| self.corrects()) else { return };
        let Some(granted_at) = granted.granted_at else { return };
        let since = driver.clock.now().since(granted.since);
        let observation = Observation {
            rule: checked.key().clone(),
            identity: driver.job_of(granted.job.as_ref()).identity(checked).cloned(),
            remaining: remaining.min(MOST_UNITS),
            reset_at: granted_at.plus(since).plus(reset.min(time::LONGEST)),
            granted_at,
            mark: granted.marks.get(index).unwrap_or(0),
        };
        state.outbox.observe(observation);
        driver.stir(&mut state);
        driver.unlock(state);
    }

    fn corrects(&self) -> bool {
        self.driver.link.capabilities().has(Capability::Corrections)
    }

    fn refuse(&self, source: Invalid) {
        self.driver.hooks.report(&Trouble::NotSettled { id: self.id().clone(), source });
    }
}

impl Driver {
    /// Has a lease given back: on the spot, where the store decides on the spot and nobody waits.
    #[inline]
    fn let_go(&self, state: &mut State, local: bool, release: Release) {
        let alone = state.waiters.is_empty() && state.away.is_none() && state.outbox.is_empty() && !local;
        let in_brief = self.brief.as_deref().filter(|_| alone);
        if let Some(brief) = in_brief.and_then(|store| store.release_one(&release, state.seen)) {
            return self.take_brief(state, &brief);
        }
        let sync = self.link.sync().filter(|_| alone);
        let given_back = sync.map(|sync| sync.release(&self.member, &[release]));
        if let Some(Ok(reply)) = given_back {
            let now = self.now_of(&reply.head);
            self.take_head(state, &reply.head, now, now);
        } else {
            let now = self.clock.now();
            self.release_held(state, local, release, now);
            self.stir(state);
        }
    }
}

/// A rule by its name, or by its key where it has none.
fn find_rule<'a>(
    policy: &'a tidegate_core::Policy,
    rule: &str,
) -> Option<(usize, &'a tidegate_core::rule::CheckedRule)> {
    let named = |checked: &tidegate_core::rule::CheckedRule| {
        checked.name().is_some_and(|name| name.as_str() == rule) || checked.key().as_str() == rule
    };
    policy.rules().iter().enumerate().find(|(_, checked)| named(checked))
}

fn rules_of(policy: &tidegate_core::Policy) -> String {
    let names: Vec<&str> = policy.rules().iter().map(|rule| rule.key().as_str()).collect();
    if names.is_empty() { "none: the policy has no rules".to_owned() } else { names.join(", ") }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.end(Outcome::Failure, None, Use::Made);
    }
}

/// A look at a permit, which may be released meanwhile.
#[derive(Clone)]
pub(crate) struct Watch {
    driver: Arc<Driver>,
    key: usize,
    /// Its key may be another's by now; its token is not.
    token: Option<Token>,
}

impl Watch {
    pub(crate) const fn token(&self) -> Option<Token> {
        self.token
    }

    /// Whether the lease is certainly held now; a permit without one always is.
    pub(crate) fn is_live(&self) -> bool {
        let Some(token) = self.token else { return true };
        let state = self.driver.lock();
        let now = self.driver.clock.now();
        let held = state.lease_of(self.key).and_then(|key| state.held.get(key));
        held.is_some_and(|held| held.token == token && held.is_live(now))
    }

    pub(crate) const fn lost(&self) -> Lost<'_> {
        Lost { driver: &self.driver, key: self.key, token: self.token }
    }
}

/// Completes when a lease is lost; never for a permit without one, nor once it was released.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Lost<'a> {
    driver: &'a Arc<Driver>,
    key: usize,
    /// The lease that is meant, where the key may be another's.
    token: Option<Token>,
}

impl Future for Lost<'_> {
    type Output = LeaseLost;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<LeaseLost> {
        let driver = self.driver;
        let mut state = driver.lock();
        let Some(key) = state.lease_of(self.key) else { return Poll::Pending };
        let now = driver.clock.now();
        let Some(held) = state.held.get_mut(key) else { return Poll::Pending };
        let token = held.token;
        if self.token.is_some_and(|meant| meant != token) {
            return Poll::Pending;
        }
        if held.is_live(now) {
            if !held.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                held.wakers.push(context.waker().clone());
            }
            driver.ensure_renewing(&mut state);
            return Poll::Pending;
        }
        state.lose(key);
        driver.unlock(state);
        Poll::Ready(LeaseLost::new(&driver.member.id, token))
    }
}
