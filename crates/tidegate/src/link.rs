//! The only caller of a store: it bounds every operation in time, and checks every answer against the contract.
//!
//! An answer that breaks it is a store error; the leases in it come back with the error, for the driver to release.
//!
//! Spec: UN-1.

use std::{
    future::poll_fn,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use tidegate_core::{
    AcquireReply, Acquired, Answer, Capabilities, Cause, CircuitMember, CircuitReply, CircuitRequest,
    DriverId, Exchange, ExchangeReply, Id, Listener, Member, PauseReply, Renewal, Renewed, Reply, Restore,
    ScopedReply, Store, StoreError, Subscription, SyncPath, Token, time::EXACT,
};

use crate::{clock::Clock, hooks::said};

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

    /// What the store found of itself, with nothing where it panics over it.
    pub(crate) fn risks(&self) -> Vec<String> {
        caught(|| self.store.risks()).unwrap_or_default()
    }

    /// The path that decides without waiting, where the store has one.
    pub(crate) fn sync(&self) -> Option<&dyn SyncPath> {
        self.sync.as_deref()
    }

    pub(crate) fn subscribe(
        &self,
        id: &Id,
        driver: DriverId,
        listener: Arc<dyn Listener>,
    ) -> Option<Subscription> {
        self.store.subscribe(id, driver, listener)
    }

    /// One exchange.
    pub(crate) async fn exchange(
        &self,
        member: &Member,
        exchange: &Exchange,
    ) -> Result<Reply<ExchangeReply>, Failed> {
        let reply = self.within(self.op_timeout, || self.store.exchange(member, exchange)).await?;
        checked(member, exchange, reply)
    }

    /// One exchange on the spot; none where the store does not decide without waiting.
    pub(crate) fn exchange_now(
        &self,
        member: &Member,
        exchange: &Exchange,
    ) -> Option<Result<Reply<ExchangeReply>, Failed>> {
        let answer = self.sync.as_deref()?.exchange(member, exchange);
        Some(answer.map_err(Failed::from).and_then(|reply| checked(member, exchange, reply)))
    }

    pub(crate) async fn renew(
        &self,
        member: &Member,
        restore: Option<&Restore>,
        renewals: &[Renewal],
        within: Duration,
    ) -> Result<Reply<Renewed>, StoreError> {
        let reply = self.within(within, || self.store.renew(member, restore, renewals)).await?;
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
        self.within(self.op_timeout, || self.store.pause(&member.id, length)).await
    }

    pub(crate) async fn resume(&self, member: &Member) -> Result<Reply<bool>, StoreError> {
        self.within(self.op_timeout, || self.store.resume(&member.id)).await
    }

    /// One request of a circuit.
    pub(crate) async fn circuit(
        &self,
        member: &CircuitMember,
        request: &CircuitRequest,
    ) -> Result<Reply<CircuitReply>, StoreError> {
        let reply = self.within(self.op_timeout, || self.store.circuit(member, request)).await?;
        if reply.head.now.is_none() {
            return Err(StoreError::unavailable(Cause::Broken, "an answer about a circuit without a time"));
        }
        reply.body.check(request)?;
        Ok(reply)
    }

    /// Waits for an answer, but no longer than `limit`.
    async fn within<'a, T>(
        &self,
        limit: Duration,
        ask: impl FnOnce() -> Answer<'a, T>,
    ) -> Result<Reply<T>, StoreError> {
        let until = self.clock.now().plus(limit);
        let mut answer = caught(ask)?;
        let answer = poll_fn(move |context| {
            caught(|| answer.as_mut().poll(context)).unwrap_or_else(|panicked| Poll::Ready(Err(panicked)))
        });
        tokio::select! {
            biased;
            answer = answer => answer,
            () = self.clock.sleep_until(until) => {
                Err(StoreError::unavailable(Cause::NoAnswer, format!("no answer within {limit:?}")))
            }
        }
    }
}

/// An exchange that failed.
#[derive(Debug)]
pub(crate) struct Failed {
    pub(crate) error: StoreError,
    /// The leases of an answer that broke the contract: they are to be given back.
    pub(crate) leases: Vec<Token>,
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        Self { error, leases: Vec::new() }
    }
}

impl Failed {
    /// Whether the answer was lost, and will be the same when it is asked for again.
    pub(crate) const fn is_lost(&self) -> bool {
        is_lost(&self.error)
    }
}

/// Whether an answer was lost, and will be the same when it is asked for again.
pub(crate) const fn is_lost(error: &StoreError) -> bool {
    error.is_unavailable() && !matches!(error, StoreError::Unavailable { cause: Cause::Broken, .. })
}

/// A store that panics has broken the contract; whoever waits for its answer lives on.
fn caught<T>(code: impl FnOnce() -> T) -> Result<T, StoreError> {
    // What the store left half done is its own; nothing of ours is borrowed by it.
    catch_unwind(AssertUnwindSafe(code)).map_err(|panic| {
        StoreError::unavailable(Cause::Broken, format!("the store panicked: {}", said(&*panic)))
    })
}

fn checked(
    member: &Member,
    exchange: &Exchange,
    reply: Reply<ExchangeReply>,
) -> Result<Reply<ExchangeReply>, Failed> {
    // Whether leases belong to the grants is only known under the member's own revision.
    let own = reply.head.revision.is_none_or(|revision| revision == member.policy.revision());
    match exchange.check(own.then(|| member.policy.bound().is_some()), &reply) {
        Ok(()) => Ok(reply),
        Err(error) => Err(Failed { error, leases: leases_of(&reply.body) }),
    }
}

fn leases_of(body: &ExchangeReply) -> Vec<Token> {
    let granted = body.acquired.iter().flatten().flat_map(Acquired::grants);
    let granted = granted.filter_map(|(_, grant)| grant.lease);
    let mut leases: Vec<Token> = body.handed_over.iter().flatten().copied().chain(granted).collect();
    leases.sort_unstable();
    leases.dedup();
    leases
}

/// Checks the answer about a single job, of the synchronous path.
pub(crate) fn check_one(reply: &Reply<AcquireReply>) -> Result<(), Failed> {
    let AcquireReply { grants, denied, .. } = &reply.body;
    let answers = grants.len() + usize::from(denied.is_some());
    let hint_ms = denied.as_ref().map_or(1, |denial| denial.hint_ms);
    let granted = grants.iter().map(|grant| grant.lease);
    one_answer(answers, hint_ms, reply.head.paused_ms > 0, granted)
}

/// As [`check_one`], for a job with scopes.
pub(crate) fn check_one_scoped(reply: &Reply<ScopedReply>) -> Result<(), Failed> {
    let ScopedReply { grants, denied, .. } = &reply.body;
    let hint_ms = denied.first().map_or(1, |denied| denied.denial.hint_ms);
    let granted = grants.iter().map(|granted| granted.grant.lease);
    one_answer(grants.len() + denied.len(), hint_ms, reply.head.paused_ms > 0, granted)
}

fn one_answer(
    answers: usize,
    hint_ms: u64,
    paused: bool,
    mut granted: impl ExactSizeIterator<Item = Option<Token>>,
) -> Result<(), Failed> {
    let what = if answers != 1 {
        "one answer for a job"
    } else if hint_ms == 0 || hint_ms >= EXACT {
        "a hint out of range"
    } else if paused && granted.len() > 0 {
        "a grant during a pause"
    } else {
        return Ok(());
    };
    let leases = granted.by_ref().flatten().collect();
    Err(Failed { error: StoreError::unavailable(Cause::Broken, what), leases })
}
