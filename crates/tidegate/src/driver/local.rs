//! Deciding alone while the store is away: the same model, with a policy of this process's own.
//!
//! Spec: UN-2, VA-7.

use std::{sync::Arc, time::Duration};

use tidegate_core::{
    Bound, DriverId, Exchange, ExchangeReply, IdModel, Member, Policy, Reply, StoreError, policy::Draft,
    time::Moment,
};

/// What a process decides by when the store is away.
#[derive(Clone, Debug)]
pub(crate) struct Fallback {
    pub(crate) policy: Arc<Policy>,
}

impl Fallback {
    /// A fixed limit per process, with the shares of `classes`, and rules of its own; both may be absent.
    pub(crate) fn check(draft: Draft, limit: Option<u32>) -> Result<Self, tidegate_core::Invalid> {
        let draft = match limit {
            Some(limit) => draft.bound(Bound::Fixed(limit)),
            None => draft,
        };
        Ok(Self { policy: Arc::new(draft.check()?) })
    }
}

/// The local state, made anew each time the store goes away.
pub(super) struct Local {
    model: IdModel,
    member: Member,
}

impl Local {
    pub(super) fn new(member: &Member, fallback: &Fallback) -> Self {
        let member = Member { policy: Arc::clone(&fallback.policy), driver: DriverId(0), ..member.clone() };
        Self { model: IdModel::default(), member }
    }

    pub(super) fn exchange(
        &mut self,
        now: Moment,
        exchange: &Exchange,
    ) -> Result<Reply<ExchangeReply>, StoreError> {
        self.model.exchange(now, &self.member, exchange)
    }

    /// Keeps to the pause that this process knows of.
    pub(super) fn pause_until(&mut self, now: Moment, until: Option<Moment>) {
        let left = until.map_or(Duration::ZERO, |until| until.since(now));
        // The local model takes both: a length is above 0, and within what a valve lets through.
        let _ = self.model.resume(now);
        if !left.is_zero() {
            let _ = self.model.pause(now, left);
        }
    }

    pub(super) fn policy(&self) -> &Policy {
        &self.member.policy
    }
}
