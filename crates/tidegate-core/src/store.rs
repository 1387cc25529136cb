//! The contract of a store, which anyone can write.
//!
//! A store keeps rule levels, the shared pause, leases, adaptive limits and the circuit of every id, and decides on them
//! in one indivisible step each. Three operations are required: [`Store::acquire`], which also pins the policy,
//! [`Store::pause`] and [`Store::resume`]. Everything else is declared in [`Store::capabilities`], and an operation
//! that is not declared refuses with [`StoreError::Unsupported`], as the defaults here do.
//!
//! [`Model`](crate::Model) is the reference: the same operations at the same times give the same answers on every store.
//! The conformance kit in `tidegate-testkit` shows whether they do.
//!
//! A decision is a value, never an error: granted, denied with a hint, paused. Errors are for what went wrong.
//!
//! Spec: section 1.

use std::{future::Future, pin::Pin, sync::Arc, time::Duration};

use crate::{DriverId, Id, Member, Policy, Token, circuit::Position};

mod capability;
mod circuit;
mod error;
mod exchange;
mod reply;
pub(crate) mod request;
mod snapshot;
mod wake;

pub use capability::{Capabilities, Capability};
pub use circuit::{
    CircuitAct, CircuitDid, CircuitMember, CircuitNews, CircuitReply, CircuitRequest, CircuitSnapshot,
    CircuitView, MOST_ACTS,
};
pub use error::{Cause, StoreError};
pub use exchange::{Acquire, Acquired, Exchange, ExchangeReply, Queue, Sequence};
pub use reply::{
    AcquireReply, Brief, Denial, Grant, Head, Limit, Marks, PauseReply, Renewed, Reply, ScopedDenial,
    ScopedGrant, ScopedReply, Settled,
};
pub use request::{
    AcquireRequest, Costs, HandOver, Job, Line, MOST_JOBS, MOST_SCOPED_JOBS, MOST_TOKENS, Observation,
    Outcome, Release, Renewal, Restore, ScopedJob, ScopedRequest, Settlement, at_most, pause_millis,
};
pub use snapshot::{Page, RuleLevel, Snapshot, page_size};
pub use wake::{Listener, Subscription, Wake};

/// What an operation of a store comes to: its answer with what every answer carries, or what went wrong.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<Reply<T>, StoreError>> + Send + 'a>>;

/// Refuses an operation that the store does not declare.
pub fn unsupported<'a, T: Send + 'a>(capability: Capability) -> Answer<'a, T> {
    Box::pin(std::future::ready(Err(StoreError::Unsupported(capability))))
}

/// The shared state of a fleet, behind atomic operations.
///
/// Each operation is one indivisible step across all processes, on the store's own clock (`ST-1`, `ST-2`). Each checks
/// its whole request before it changes anything (`BI-1`). Dropping the future of an operation leaves it done or not done,
/// never half done.
pub trait Store: Send + Sync + 'static {
    /// What this store can do beyond the required operations.
    fn capabilities(&self) -> Capabilities;

    /// Grants the head of one class's queue, in order, as far as it fits, and pins the policy of an id that has none.
    ///
    /// Spec: ST-1 to ST-8.
    fn acquire<'a>(&'a self, member: &'a Member, request: &'a AcquireRequest) -> Answer<'a, AcquireReply>;

    /// Pauses an id, fleet-wide, for `length` from now; never shortens a running pause.
    ///
    /// Spec: ST-8.
    fn pause<'a>(&'a self, id: &'a Id, length: Duration) -> Answer<'a, PauseReply>;

    /// Ends a pause. Says whether there was one.
    ///
    /// Spec: ST-8.
    fn resume<'a>(&'a self, id: &'a Id) -> Answer<'a, bool>;

    /// Grants those of the jobs that fit, each with costs and identities of its own. Needs [`Capability::Scoped`].
    ///
    /// Spec: ST-10.
    fn acquire_scoped<'a>(&'a self, _: &'a Member, _: &'a ScopedRequest) -> Answer<'a, ScopedReply> {
        unsupported(Capability::Scoped)
    }

    /// Gives leases back, with outcomes; at most [`MOST_TOKENS`]. Needs [`Capability::Leases`]. A token that is unknown,
    /// expired or already released is no error.
    ///
    /// Spec: ST-9.
    fn release<'a>(&'a self, _: &'a Member, _: &'a [Release]) -> Answer<'a, ()> {
        unsupported(Capability::Leases)
    }

    /// Renews leases, or takes them up again after a loss; at most [`MOST_TOKENS`]. Needs [`Capability::Leases`], and
    /// [`Capability::Epoch`] for a restore.
    ///
    /// Spec: ST-9, ST-18.
    fn renew<'a>(&'a self, _: &'a Member, _: Option<&'a Restore>, _: &'a [Renewal]) -> Answer<'a, Renewed> {
        unsupported(Capability::Leases)
    }

    /// Counts leases that a process granted by itself while the store was away, above the limit too; at most
    /// [`MOST_TOKENS`]. Needs [`Capability::Leases`].
    ///
    /// Spec: UN-3.
    fn hand_over<'a>(&'a self, _: &'a Member, _: &'a [HandOver]) -> Answer<'a, Vec<Token>> {
        unsupported(Capability::Leases)
    }

    /// Corrects costs to what was really used. Needs [`Capability::Corrections`].
    ///
    /// Spec: ST-12.
    fn settle<'a>(&'a self, _: &'a Member, _: &'a [Settlement]) -> Answer<'a, Vec<Settled>> {
        unsupported(Capability::Corrections)
    }

    /// Lowers levels to what the server says is left; says for each whether it was lowered. Needs
    /// [`Capability::Corrections`].
    ///
    /// Spec: VA-9.
    fn observe<'a>(&'a self, _: &'a Member, _: &'a [Observation]) -> Answer<'a, Vec<bool>> {
        unsupported(Capability::Corrections)
    }

    /// Carries out all that a driver has for an id in one go: restore, releases, settlements, observations, renewals,
    /// hand-overs, then at most one acquire per class, which the slots freed by it serve first.
    ///
    /// An exchange that has nothing to do is a look: it asks the store all the same, so that its answer shows whether the
    /// store is there.
    ///
    /// The default does them one by one. A store that declares [`Capability::Exchange`] does them in one step, carries
    /// out each sequence number once and answers a repeat with the same answer.
    ///
    /// Spec: ST-15.
    fn exchange<'a>(&'a self, member: &'a Member, exchange: &'a Exchange) -> Answer<'a, ExchangeReply> {
        Box::pin(exchange::one_by_one(self, member, exchange))
    }

    /// Carries out what a process has to say about a circuit, in one step, and pins the circuit's policy where there is
    /// none. Needs [`Capability::Circuit`].
    ///
    /// Spec: section 4.
    fn circuit<'a>(&'a self, _: &'a CircuitMember, _: &'a CircuitRequest) -> Answer<'a, CircuitReply> {
        unsupported(Capability::Circuit)
    }

    /// The synchronous path of one id, where the store can decide without waiting. Same semantics.
    ///
    /// Spec: ST-14.
    fn sync_path(&self, _: &Id) -> Option<Arc<dyn SyncPath>> {
        None
    }

    /// Has `listener` told what happens to an id, until the subscription is dropped. An optimisation: everything works
    /// without, slower.
    ///
    /// Spec: ST-13.
    fn subscribe(&self, _: &Id, _: DriverId, _: Arc<dyn Listener>) -> Option<Subscription> {
        None
    }

    /// What was found so far that lets the store lose state silently (a cache that may evict, a replica, a primary without
    /// the replicas that it needs), a sentence each. The list grows when the store is opened, and opened anew.
    ///
    /// Spec: UN-6.
    fn risks(&self) -> Vec<String> {
        Vec::new()
    }

    /// What operators use, where the store has it ([`Capability::Operators`]).
    fn operators(&self) -> Option<&dyn Operators> {
        None
    }
}

/// A shared store is a store.
impl<S: Store + ?Sized> Store for Arc<S> {
    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }

    fn acquire<'a>(&'a self, member: &'a Member, request: &'a AcquireRequest) -> Answer<'a, AcquireReply> {
        (**self).acquire(member, request)
    }

    fn pause<'a>(&'a self, id: &'a Id, length: Duration) -> Answer<'a, PauseReply> {
        (**self).pause(id, length)
    }

    fn resume<'a>(&'a self, id: &'a Id) -> Answer<'a, bool> {
        (**self).resume(id)
    }

    fn acquire_scoped<'a>(
        &'a self,
        member: &'a Member,
        request: &'a ScopedRequest,
    ) -> Answer<'a, ScopedReply> {
        (**self).acquire_scoped(member, request)
    }

    fn release<'a>(&'a self, member: &'a Member, releases: &'a [Release]) -> Answer<'a, ()> {
        (**self).release(member, releases)
    }

    fn renew<'a>(
        &'a self,
        member: &'a Member,
        restore: Option<&'a Restore>,
        renewals: &'a [Renewal],
    ) -> Answer<'a, Renewed> {
        (**self).renew(member, restore, renewals)
    }

    fn hand_over<'a>(&'a self, member: &'a Member, hand_overs: &'a [HandOver]) -> Answer<'a, Vec<Token>> {
        (**self).hand_over(member, hand_overs)
    }

    fn settle<'a>(&'a self, member: &'a Member, settlements: &'a [Settlement]) -> Answer<'a, Vec<Settled>> {
        (**self).settle(member, settlements)
    }

    fn observe<'a>(&'a self, member: &'a Member, observations: &'a [Observation]) -> Answer<'a, Vec<bool>> {
        (**self).observe(member, observations)
    }

    fn exchange<'a>(&'a self, member: &'a Member, exchange: &'a Exchange) -> Answer<'a, ExchangeReply> {
        (**self).exchange(member, exchange)
    }

    fn circuit<'a>(
        &'a self,
        member: &'a CircuitMember,
        request: &'a CircuitRequest,
    ) -> Answer<'a, CircuitReply> {
        (**self).circuit(member, request)
    }

    fn sync_path(&self, id: &Id) -> Option<Arc<dyn SyncPath>> {
        (**self).sync_path(id)
    }

    fn subscribe(&self, id: &Id, driver: DriverId, listener: Arc<dyn Listener>) -> Option<Subscription> {
        (**self).subscribe(id, driver, listener)
    }

    fn risks(&self) -> Vec<String> {
        (**self).risks()
    }

    fn operators(&self) -> Option<&dyn Operators> {
        (**self).operators()
    }
}

/// Deciding on one id without waiting.
///
/// Spec: ST-14.
pub trait SyncPath: Send + Sync {
    /// The store's clock, for a driver in the same process that has none of its own.
    fn now(&self) -> crate::time::Moment;

    /// [`acquire`](Self::acquire) for one job that costs 1 in every rule and that nobody waits ahead of, in the tier of a
    /// class, with no more of an answer than is new: `known` is what the last [`Brief`] said. None, with nothing changed,
    /// where the job is not granted or takes more than that; it is then asked for in full.
    fn acquire_one(&self, _member: &Member, _tier: usize, _known: u64) -> Option<Brief> {
        None
    }

    /// [`release`](Self::release) for one lease, likewise. Where it comes to the same at any moment from the last that the
    /// store has seen, it need not look at the clock: the next step sees what has passed.
    fn release_one(&self, _release: &Release, _known: u64) -> Option<Brief> {
        None
    }

    /// As [`Store::acquire`].
    ///
    /// # Errors
    /// As [`Store::acquire`].
    fn acquire(&self, member: &Member, request: &AcquireRequest) -> Result<Reply<AcquireReply>, StoreError>;

    /// As [`Store::acquire_scoped`].
    ///
    /// # Errors
    /// As [`Store::acquire_scoped`].
    fn acquire_scoped(
        &self,
        member: &Member,
        request: &ScopedRequest,
    ) -> Result<Reply<ScopedReply>, StoreError>;

    /// As [`Store::release`].
    ///
    /// # Errors
    /// As [`Store::release`].
    fn release(&self, member: &Member, releases: &[Release]) -> Result<Reply<()>, StoreError>;

    /// As [`Store::exchange`].
    ///
    /// # Errors
    /// As [`Store::exchange`].
    fn exchange(&self, member: &Member, exchange: &Exchange) -> Result<Reply<ExchangeReply>, StoreError>;
}

/// Looking into a store, and setting it right.
///
/// Spec: ST-20.
pub trait Operators: Send + Sync {
    /// At most `most` (1 to 1,000) ids in their order, from the first after `after`.
    fn ids<'a>(&'a self, after: Option<&'a Id>, most: usize) -> Answer<'a, Page<Id>>;

    /// What is known of an id; none where there is nothing.
    fn snapshot<'a>(&'a self, id: &'a Id) -> Answer<'a, Option<Snapshot>>;

    /// At most `most` (1 to 1,000) leases of an id in the order of their slots, from the first after slot `after`.
    fn leases<'a>(
        &'a self,
        id: &'a Id,
        after: Option<u32>,
        most: usize,
    ) -> Answer<'a, Page<crate::LeaseView>>;

    /// Ends a lease at once. Says whether it was there.
    fn evict<'a>(&'a self, id: &'a Id, token: Token) -> Answer<'a, bool>;

    /// Sets an adaptive limit, within the policy's bounds. Says what it is now.
    fn set_limit<'a>(&'a self, id: &'a Id, limit: u32) -> Answer<'a, u32>;

    /// Replaces the pinned policy by one of a higher revision.
    fn replace_policy<'a>(&'a self, id: &'a Id, policy: Arc<Policy>) -> Answer<'a, ()>;

    /// Opens or closes a circuit by hand; an open one recovers as from any other opening. Says whether that changed it:
    /// a circuit that nobody has built is not made. Needs [`Capability::Circuit`].
    fn set_circuit<'a>(&'a self, _: &'a Id, _: Position) -> Answer<'a, bool> {
        unsupported(Capability::Circuit)
    }

    /// Forgets an id: its pin, its limit, its levels, its circuit. Refused while leases live, a leader's and those of
    /// trial calls too. Says whether there was anything.
    fn forget<'a>(&'a self, id: &'a Id) -> Answer<'a, bool>;
}
