//! The only caller of a store: it bounds every operation in time, and checks every answer against the contract.
//!
//! Spec: UN-1.

use std::{future::Future, sync::Arc, time::Duration};

use tidegate_core::{
    Capabilities, Cause, DriverId, Exchange, ExchangeReply, Listener, Member, Outcome, PauseReply, Release,
    Renewal, Renewed, Reply, Restore, Store, StoreError, Subscription, SyncPath,
};

use crate::clock::Clock;

/// A store, as one driver talks to it.
pub(crate) struct Link {
    store: Arc<dyn Store>,
    sync: Option<Arc<dyn SyncPath>>,
    clock: Arc<dyn Clock>,
    op_timeout: Duration,
}

impl Link {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        sync: Option<Arc<dyn SyncPath>>,
        clock: Arc<dyn Clock>,
        op_timeout: Duration,
    ) -> Self {
        Self { store, sync, clock, op_timeout }
    }

    pub(crate) fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    /// The path that decides without waiting, where the store has one.
    pub(crate) fn sync(&self) -> Option<&dyn SyncPath> {
        self.sync.as_deref()
    }

    pub(crate) fn subscribe(
        &self,
        member: &Member,
        driver: DriverId,
        listener: Arc<dyn Listener>,
    ) -> Option<Subscription> {
        self.store.subscribe(&member.id, driver, listener)
    }

    /// One exchange. Leases in an answer that breaks the contract are given back.
    pub(crate) async fn exchange(
        &self,
        member: &Member,
        exchange: &Exchange,
    ) -> Result<Reply<ExchangeReply>, StoreError> {
        let reply = self.within(self.op_timeout, self.store.exchange(member, exchange)).await?;
        if let Err(broken) = check(member, exchange, &reply) {
            self.give_back(member, &reply.body).await;
            return Err(broken);
        }
        Ok(reply)
    }

    pub(crate) async fn renew(
        &self,
        member: &Member,
        restore: Option<&Restore>,
        renewals: &[Renewal],
        within: Duration,
    ) -> Result<Reply<Renewed>, StoreError> {
        let reply = self.within(within, self.store.renew(member, restore, renewals)).await?;
        if reply.body.live.len() == renewals.len() {
            Ok(reply)
        } else {
            Err(StoreError::unavailable(Cause::Broken, "one answer for each renewal"))
        }
    }

    pub(crate) async fn pause(
        &self,
        member: &Member,
        length: Duration,
    ) -> Result<Reply<PauseReply>, StoreError> {
        self.within(self.op_timeout, self.store.pause(&member.id, length)).await
    }

    pub(crate) async fn resume(&self, member: &Member) -> Result<Reply<bool>, StoreError> {
        self.within(self.op_timeout, self.store.resume(&member.id)).await
    }

    async fn give_back(&self, member: &Member, body: &ExchangeReply) {
        let mut tokens: Vec<_> = body.handed_over.iter().flatten().copied().collect();
        let granted = body.acquired.iter().flatten().flat_map(tidegate_core::Acquired::grants);
        tokens.extend(granted.filter_map(|(_, grant)| grant.lease));
        tokens.truncate(tidegate_core::store::MOST_TOKENS);
        if tokens.is_empty() {
            return;
        }
        let release = |token| Release { token, outcome: Outcome::Failure, retry_after_ms: None };
        let releases: Vec<Release> = tokens.into_iter().map(release).collect();
        // A store that cannot do that either has them back by their TTL.
        let _ = self.within(self.op_timeout, self.store.release(member, &releases)).await;
    }

    async fn within<T>(
        &self,
        limit: Duration,
        answer: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let until = self.clock.now().plus(limit);
        tokio::select! {
            biased;
            answer = answer => answer,
            () = self.clock.sleep_until(until) => {
                Err(StoreError::unavailable(Cause::NoAnswer, format!("no answer within {limit:?}")))
            }
        }
    }
}

/// Checks an answer; whether leases belong to the grants is only known under the member's own revision.
fn check(member: &Member, exchange: &Exchange, reply: &Reply<ExchangeReply>) -> Result<(), StoreError> {
    let own = reply.head.revision.is_none_or(|revision| revision == member.policy.revision());
    exchange.check(own.then(|| member.policy.bound().is_some()), reply)
}
