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
    Capability, Invalid, Observation, Outcome, Release, ScopedJob, Settlement, Token, rule::MOST_UNITS, time,
};

use super::{
    Driver,
    state::{Granted, Held, State},
};
use crate::{LeaseLost, Trouble};

pub(crate) struct Permit {
    driver: Arc<Driver>,
    granted: Granted,
    /// Rules that were settled, a bit each: there are at most 16.
    settled: u16,
    released: bool,
}

impl Permit {
    pub(super) fn new(driver: Arc<Driver>, granted: Granted) -> Self {
        Self { driver, granted, settled: 0, released: false }
    }

    pub(crate) fn id(&self) -> &tidegate_core::Id {
        &self.driver.member.id
    }

    pub(crate) fn class(&self) -> Option<&tidegate_core::Name> {
        self.driver.member.policy.class(self.granted.tier)
    }

    pub(crate) const fn token(&self) -> Option<Token> {
        match self.granted.held {
            Some((_, token)) if !self.granted.local => Some(token),
            _ => None,
        }
    }

    pub(crate) const fn limit(&self) -> u32 {
        self.granted.limit
    }

    pub(crate) const fn is_local(&self) -> bool {
        self.granted.local
    }

    /// Whether the lease is certainly this process's own now; a permit without one always is.
    pub(crate) fn is_live(&self) -> bool {
        let Some(key) = self.granted.key() else { return true };
        let now = self.driver.clock.now();
        let state = self.driver.lock();
        state.held.get(key).is_some_and(|held| held.is_live(now))
    }

    pub(crate) const fn lost(&self) -> Lost<'_> {
        Lost { permit: self }
    }

    pub(crate) fn release(mut self, outcome: Outcome, retry_after: Option<Duration>) {
        self.end(outcome, retry_after);
    }

    fn end(&mut self, outcome: Outcome, retry_after: Option<Duration>) {
        if std::mem::replace(&mut self.released, true) {
            return;
        }
        let driver = &self.driver;
        let tier = self.granted.tier;
        let records = driver.hooks.records();
        let mut state = driver.lock();
        state.in_flight[tier] -= 1;
        if records {
            state.note_load(tier);
        }
        let held = self.granted.key().and_then(|key| state.held.try_remove(key));
        if let Some(held) = held {
            let retry_after_ms = retry_after.map(time::ceil_millis);
            let release = Release { token: held.token, outcome, retry_after_ms };
            driver.let_go(&mut state, &held, release);
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
        if records {
            let class = driver.member.policy.class(tier).map(tidegate_core::Name::as_str);
            let hold = driver.clock.now().since(self.granted.since);
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
        let before = self.settled;
        self.settled |= 1 << index;
        if before == self.settled {
            return self.refuse(Invalid::new(format!("settle {rule}"), actual, "once per permit and rule"));
        }
        let Some(granted_at) = self.granted.granted_at else { return };
        let settlement = Settlement {
            rule: checked.key().clone(),
            identity: self.job().identity(checked).cloned(),
            granted_at,
            cost: self.job().costs.of(checked.name()),
            actual,
        };
        if settlement.cost != actual && self.corrects() {
            let mut state = self.driver.lock();
            state.outbox.settle(settlement);
            self.driver.stir(&mut state);
            self.driver.unlock(state);
        }
    }

    /// Tells what the server said of its quota. Never fails for the caller.
    pub(crate) fn observe(&mut self, rule: &str, remaining: u64, reset: Duration) {
        let policy = Arc::clone(&self.driver.member.policy);
        let Some((index, checked)) = find_rule(&policy, rule) else {
            return self.refuse(Invalid::new("observe: rule", rule, rules_of(&policy)));
        };
        let Some(granted_at) = self.granted.granted_at else { return };
        let since = self.driver.clock.now().since(self.granted.since);
        let observation = Observation {
            rule: checked.key().clone(),
            identity: self.job().identity(checked).cloned(),
            remaining: remaining.min(MOST_UNITS),
            reset_at: granted_at.plus(since).plus(reset.min(time::LONGEST)),
            granted_at,
            mark: self.granted.marks.get(index).unwrap_or(0),
        };
        if self.corrects() {
            let mut state = self.driver.lock();
            state.outbox.observe(observation);
            self.driver.stir(&mut state);
            self.driver.unlock(state);
        }
    }

    fn job(&self) -> &ScopedJob {
        self.driver.job_of(self.granted.job.as_ref())
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
    fn let_go(&self, state: &mut State, held: &Held, release: Release) {
        let alone =
            state.waiters.is_empty() && state.away.is_none() && state.outbox.is_empty() && !held.local;
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
            self.release_held(state, held, release, now);
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
        self.end(Outcome::Failure, None);
    }
}

/// Completes when a lease is lost; never for a permit without one.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Lost<'a> {
    permit: &'a Permit,
}

impl Future for Lost<'_> {
    type Output = LeaseLost;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<LeaseLost> {
        let permit = self.permit;
        let Some(key) = permit.granted.key() else { return Poll::Pending };
        let driver = &permit.driver;
        let now = driver.clock.now();
        let mut state = driver.lock();
        let Some(held) = state.held.get_mut(key) else { return Poll::Pending };
        let token = held.token;
        if held.is_live(now) {
            if !held.wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                held.wakers.push(context.waker().clone());
            }
            driver.ensure_renewing(&mut state);
            return Poll::Pending;
        }
        state.lose(key);
        driver.unlock(state);
        Poll::Ready(LeaseLost::new(permit.id(), token))
    }
}
