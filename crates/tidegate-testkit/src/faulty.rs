//! A store that fails on purpose: it stands in for a remote one, and for the network on the way.
//!
//! [`Faulty`] wraps a store. Its [`Handle`] says what goes wrong, by a script, at random from a seed, or as long as the
//! store is away, and counts what came and what was carried out.
//!
//! # Examples
//! ```
//! use tidegate_core::{Id, Store};
//! use tidegate_testkit::{block_on, faulty::{Fault, Faulty, Operation}, reference::ModelStore};
//!
//! let store = Faulty::new(ModelStore::default());
//! let handle = store.handle();
//! handle.script([Fault::None, Fault::LostThenError]);
//!
//! let id = Id::new("my-provider-api")?;
//! assert!(block_on(store.resume(&id)).is_ok());
//! assert!(block_on(store.resume(&id)).is_err());
//! assert_eq!(handle.carried_out(Operation::Resume), 2);
//! # Ok::<(), tidegate_core::Invalid>(())
//! ```

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    future::Future,
    sync::{
        Arc, Mutex, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tidegate_core::{
    AcquireReply, AcquireRequest, Answer, Capabilities, Capability, Cause, CircuitMember, CircuitReply,
    CircuitRequest, DriverId, Exchange, ExchangeReply, HandOver, Id, Listener, Member, Observation,
    Operators, PauseReply, Release, Renewal, Renewed, Reply, Restore, ScopedReply, ScopedRequest, Settled,
    Settlement, Store, StoreError, Subscription, SyncPath, Token, Wake,
};

use crate::task::{Task, lock, real_sleep};

mod garbage;

pub use garbage::Garbage;

/// What goes wrong with one operation.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing.
    None,
    /// It is not carried out, and answered by this error.
    Error(StoreError),
    /// It is not carried out, and never answered.
    Hang,
    /// It is carried out after this long. One that is dropped meanwhile never arrives.
    SlowRequest(Duration),
    /// It is carried out at once, and answered after this long.
    SlowReply(Duration),
    /// It is carried out, and its answer is lost: an error comes instead.
    LostThenError,
    /// It is carried out, and never answered.
    LostThenHang,
    /// It is never answered, and carried out when [`Handle::deliver`] says so, also where it was dropped meanwhile.
    Late,
    /// It is delivered twice and carried out twice; the second answer comes back.
    Twice,
    /// It is carried out, and its answer breaks the contract. One that cannot be broken in this way comes back as it is.
    Garbage(Garbage),
}

impl Fault {
    /// Not carried out; the connection is said to be cut.
    pub fn disconnected() -> Self {
        Self::Error(StoreError::unavailable(Cause::Disconnected, "cut on purpose"))
    }
}

/// An operation of a store, as faults and counts know it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[non_exhaustive]
pub enum Operation {
    /// [`Store::acquire`].
    Acquire,
    /// [`Store::acquire_scoped`].
    AcquireScoped,
    /// [`Store::release`].
    Release,
    /// [`Store::renew`].
    Renew,
    /// [`Store::hand_over`].
    HandOver,
    /// [`Store::settle`].
    Settle,
    /// [`Store::observe`].
    Observe,
    /// [`Store::exchange`].
    Exchange,
    /// [`Store::pause`].
    Pause,
    /// [`Store::resume`].
    Resume,
    /// [`Store::circuit`].
    Circuit,
}

impl Operation {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Acquire,
        Self::AcquireScoped,
        Self::Release,
        Self::Renew,
        Self::HandOver,
        Self::Settle,
        Self::Observe,
        Self::Exchange,
        Self::Pause,
        Self::Resume,
        Self::Circuit,
    ];
}

type Sleep = dyn Fn(Duration) -> Task<'static> + Send + Sync;

/// A store that does what another does, as well as its [`Handle`] lets it.
///
/// It has no synchronous path unless it is asked to: a remote store has none. Operators pass through, and never fail.
pub struct Faulty<S> {
    inner: Arc<S>,
    shared: Arc<Shared>,
    sleep: Arc<Sleep>,
    passes_sync_path: bool,
}

impl<S> Clone for Faulty<S> {
    /// The same store, under the same handle.
    fn clone(&self) -> Self {
        Self {
            inner: Arc::clone(&self.inner),
            shared: Arc::clone(&self.shared),
            sleep: Arc::clone(&self.sleep),
            passes_sync_path: self.passes_sync_path,
        }
    }
}

impl<S: Store> Faulty<S> {
    /// A store that does nothing wrong yet. What is slow takes real time.
    pub fn new(inner: S) -> Self {
        Self {
            inner: Arc::new(inner),
            shared: Arc::default(),
            sleep: Arc::new(real_sleep),
            passes_sync_path: false,
        }
    }

    /// What is slow waits by this: `tokio::time::sleep`, for one, so that it takes tokio's time, paused or not.
    #[must_use]
    pub fn sleeping<F, T>(mut self, sleep: F) -> Self
    where
        F: Fn(Duration) -> T + Send + Sync + 'static,
        T: Future<Output = ()> + Send + 'static,
    {
        self.sleep = Arc::new(move |length| Box::pin(sleep(length)));
        self
    }

    /// Passes the synchronous path of the store through. Nothing goes wrong on it.
    #[must_use]
    pub fn with_sync_path(mut self) -> Self {
        self.passes_sync_path = true;
        self
    }

    /// What controls it. A cheap clone, which goes on controlling it from anywhere.
    pub fn handle(&self) -> Handle {
        Handle(Arc::clone(&self.shared))
    }

    /// The store that it wraps.
    pub fn inner(&self) -> &S {
        &self.inner
    }
}

impl<S> fmt::Debug for Faulty<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Faulty").field("handle", &Handle(Arc::clone(&self.shared))).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Shared {
    plan: Mutex<Plan>,
    counts: Mutex<Counts>,
    /// Operations that are still on their way, in the order in which they came.
    late: Mutex<VecDeque<Task<'static>>>,
    gates: Mutex<Vec<Weak<Gate>>>,
    is_cut: Arc<AtomicBool>,
}

#[derive(Default)]
struct Plan {
    script: VecDeque<(Option<Operation>, Fault)>,
    away: Option<Fault>,
    random: Option<Random>,
}

struct Random {
    random: fastrand::Rng,
    one_in: u32,
    faults: Vec<Fault>,
}

#[derive(Default)]
struct Counts {
    calls: HashMap<Operation, u64>,
    carried_out: HashMap<Operation, u64>,
}

impl Shared {
    /// Counts a call, and says what goes wrong with it.
    fn meet(&self, operation: Operation) -> Fault {
        *lock(&self.counts).calls.entry(operation).or_default() += 1;
        let mut plan = lock(&self.plan);
        let scripted = plan.script.iter().position(|(of, _)| of.is_none_or(|of| of == operation));
        if let Some((_, fault)) = scripted.and_then(|at| plan.script.remove(at)) {
            return fault;
        }
        if let Some(fault) = &plan.away {
            return fault.clone();
        }
        plan.random.as_mut().map_or(Fault::None, Random::draw)
    }

    fn carry_out(&self, operation: Operation) {
        *lock(&self.counts).carried_out.entry(operation).or_default() += 1;
    }
}

impl Random {
    fn draw(&mut self) -> Fault {
        if self.faults.is_empty() || self.random.u32(..self.one_in) > 0 {
            return Fault::None;
        }
        self.faults.get(self.random.usize(..self.faults.len())).cloned().unwrap_or(Fault::None)
    }
}

/// Controls a [`Faulty`] store, and counts what came to it. A cheap clone of one thing.
#[derive(Clone)]
pub struct Handle(Arc<Shared>);

impl Handle {
    /// These faults befall the next operations, one each, whatever they are; after what is scripted already.
    pub fn script(&self, faults: impl IntoIterator<Item = Fault>) {
        lock(&self.0.plan).script.extend(faults.into_iter().map(|fault| (None, fault)));
    }

    /// These faults befall the next operations of one kind, one each; after what is scripted already.
    pub fn script_of(&self, operation: Operation, faults: impl IntoIterator<Item = Fault>) {
        lock(&self.0.plan).script.extend(faults.into_iter().map(|fault| (Some(operation), fault)));
    }

    /// This fault befalls so many of the next operations.
    pub fn fail_next(&self, operations: usize, fault: Fault) {
        self.script(std::iter::repeat_n(fault, operations));
    }

    /// This fault befalls every operation that nothing else is scripted for, until the store is [`back`](Self::back).
    pub fn away_with(&self, fault: Fault) {
        lock(&self.0.plan).away = Some(fault);
    }

    /// The connection is cut for every operation that nothing else is scripted for, until the store is
    /// [`back`](Self::back).
    pub fn away(&self) {
        self.away_with(Fault::disconnected());
    }

    /// The store is there again.
    pub fn back(&self) {
        lock(&self.0.plan).away = None;
    }

    /// One in so many operations meets one of these faults, drawn from the seed, as long as nothing else is scripted for
    /// it; 1 is each of them.
    pub fn at_random(&self, seed: u64, one_in: u32, faults: impl IntoIterator<Item = Fault>) {
        let faults = faults.into_iter().collect();
        let random = fastrand::Rng::with_seed(seed);
        lock(&self.0.plan).random = Some(Random { random, one_in: one_in.max(1), faults });
    }

    /// Nothing goes wrong any more: no script, no absence, no chance. What is cut stays cut, and what is late stays late.
    pub fn heal(&self) {
        *lock(&self.0.plan) = Plan::default();
    }

    /// How many faults are scripted and have not befallen anything yet.
    pub fn scripted(&self) -> usize {
        lock(&self.0.plan).script.len()
    }

    /// How often an operation was asked for.
    pub fn calls(&self, operation: Operation) -> u64 {
        lock(&self.0.counts).calls.get(&operation).copied().unwrap_or(0)
    }

    /// How often any operation was asked for.
    pub fn all_calls(&self) -> u64 {
        lock(&self.0.counts).calls.values().sum()
    }

    /// How often an operation reached the store behind.
    pub fn carried_out(&self, operation: Operation) -> u64 {
        lock(&self.0.counts).carried_out.get(&operation).copied().unwrap_or(0)
    }

    /// How many operations are still on their way ([`Fault::Late`]).
    pub fn late(&self) -> usize {
        lock(&self.0.late).len()
    }

    /// Lets all operations arrive that are still on their way, in the order in which they were sent. Says how many.
    pub async fn deliver(&self) -> usize {
        let mut delivered = 0;
        loop {
            let Some(operation) = lock(&self.0.late).pop_front() else { return delivered };
            operation.await;
            delivered += 1;
        }
    }

    /// Cuts all subscriptions, present and coming: what happens is not pushed. The store does not notice.
    pub fn cut(&self) {
        self.0.is_cut.store(true, Ordering::SeqCst);
    }

    /// Mends the subscriptions, which are told of the gap.
    pub fn mend(&self) {
        self.0.is_cut.store(false, Ordering::SeqCst);
        let gates: Vec<_> = {
            let mut gates = lock(&self.0.gates);
            gates.retain(|gate| gate.strong_count() > 0);
            gates.iter().filter_map(Weak::upgrade).collect()
        };
        for gate in gates {
            gate.wake(Wake::Gap);
        }
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handle")
            .field("calls", &self.all_calls())
            .field("scripted", &self.scripted())
            .field("late", &self.late())
            .finish_non_exhaustive()
    }
}

/// A listener as long as it is not cut off.
struct Gate {
    listener: Arc<dyn Listener>,
    is_cut: Arc<AtomicBool>,
}

impl Listener for Gate {
    fn wake(&self, wake: Wake) {
        if !self.is_cut.load(Ordering::SeqCst) {
            self.listener.wake(wake);
        }
    }
}

impl<S: Store> Faulty<S> {
    /// One operation, as well as it goes.
    async fn meet<'a, T: Send + 'a>(
        &'a self,
        operation: Operation,
        call: impl Fn() -> Answer<'a, T> + Send + 'a,
        late: impl FnOnce(Arc<S>) -> Task<'static> + Send + 'a,
        spoil: impl FnOnce(&mut Reply<T>, Garbage) + Send + 'a,
    ) -> Result<Reply<T>, StoreError> {
        let carried_out = || {
            self.shared.carry_out(operation);
            call()
        };
        match self.shared.meet(operation) {
            Fault::None => carried_out().await,
            Fault::Error(error) => Err(error),
            Fault::Hang => std::future::pending().await,
            Fault::SlowRequest(length) => {
                (self.sleep)(length).await;
                carried_out().await
            }
            Fault::SlowReply(length) => {
                let answer = carried_out().await;
                (self.sleep)(length).await;
                answer
            }
            Fault::LostThenError => {
                drop(carried_out().await);
                Err(StoreError::unavailable(Cause::NoAnswer, "its answer was lost on purpose"))
            }
            Fault::LostThenHang => {
                drop(carried_out().await);
                std::future::pending().await
            }
            Fault::Late => {
                let (shared, arrives) = (Arc::clone(&self.shared), late(Arc::clone(&self.inner)));
                lock(&self.shared.late).push_back(Box::pin(async move {
                    shared.carry_out(operation);
                    arrives.await;
                }));
                std::future::pending().await
            }
            Fault::Twice => {
                drop(carried_out().await);
                carried_out().await
            }
            Fault::Garbage(garbage) => {
                let mut reply = carried_out().await?;
                spoil(&mut reply, garbage);
                Ok(reply)
            }
        }
    }
}

/// An answer that cannot be spoiled.
fn sound<T>(_: &mut Reply<T>, _: Garbage) {}

impl<S: Store> Store for Faulty<S> {
    fn capabilities(&self) -> Capabilities {
        let capabilities = self.inner.capabilities();
        if self.passes_sync_path { capabilities } else { capabilities.without(Capability::Sync) }
    }

    fn acquire<'a>(&'a self, member: &'a Member, request: &'a AcquireRequest) -> Answer<'a, AcquireReply> {
        Box::pin(self.meet(
            Operation::Acquire,
            || self.inner.acquire(member, request),
            |inner| {
                let (member, request) = (member.clone(), request.clone());
                Box::pin(async move { drop(inner.acquire(&member, &request).await) })
            },
            |reply, garbage| garbage.spoil_prefix(reply, member, request.jobs.len()),
        ))
    }

    fn acquire_scoped<'a>(
        &'a self,
        member: &'a Member,
        request: &'a ScopedRequest,
    ) -> Answer<'a, ScopedReply> {
        Box::pin(self.meet(
            Operation::AcquireScoped,
            || self.inner.acquire_scoped(member, request),
            |inner| {
                let (member, request) = (member.clone(), request.clone());
                Box::pin(async move { drop(inner.acquire_scoped(&member, &request).await) })
            },
            |reply, garbage| garbage.spoil_scoped(reply, member, request.jobs.len()),
        ))
    }

    fn release<'a>(&'a self, member: &'a Member, releases: &'a [Release]) -> Answer<'a, ()> {
        Box::pin(self.meet(
            Operation::Release,
            || self.inner.release(member, releases),
            |inner| {
                let (member, releases) = (member.clone(), releases.to_vec());
                Box::pin(async move { drop(inner.release(&member, &releases).await) })
            },
            sound,
        ))
    }

    fn renew<'a>(
        &'a self,
        member: &'a Member,
        restore: Option<&'a Restore>,
        renewals: &'a [Renewal],
    ) -> Answer<'a, Renewed> {
        Box::pin(self.meet(
            Operation::Renew,
            move || self.inner.renew(member, restore, renewals),
            move |inner| {
                let (member, restore, renewals) = (member.clone(), restore.copied(), renewals.to_vec());
                Box::pin(async move { drop(inner.renew(&member, restore.as_ref(), &renewals).await) })
            },
            sound,
        ))
    }

    fn hand_over<'a>(&'a self, member: &'a Member, hand_overs: &'a [HandOver]) -> Answer<'a, Vec<Token>> {
        Box::pin(self.meet(
            Operation::HandOver,
            || self.inner.hand_over(member, hand_overs),
            |inner| {
                let (member, hand_overs) = (member.clone(), hand_overs.to_vec());
                Box::pin(async move { drop(inner.hand_over(&member, &hand_overs).await) })
            },
            sound,
        ))
    }

    fn settle<'a>(&'a self, member: &'a Member, settlements: &'a [Settlement]) -> Answer<'a, Vec<Settled>> {
        Box::pin(self.meet(
            Operation::Settle,
            || self.inner.settle(member, settlements),
            |inner| {
                let (member, settlements) = (member.clone(), settlements.to_vec());
                Box::pin(async move { drop(inner.settle(&member, &settlements).await) })
            },
            sound,
        ))
    }

    fn observe<'a>(&'a self, member: &'a Member, observations: &'a [Observation]) -> Answer<'a, Vec<bool>> {
        Box::pin(self.meet(
            Operation::Observe,
            || self.inner.observe(member, observations),
            |inner| {
                let (member, observations) = (member.clone(), observations.to_vec());
                Box::pin(async move { drop(inner.observe(&member, &observations).await) })
            },
            sound,
        ))
    }

    fn exchange<'a>(&'a self, member: &'a Member, exchange: &'a Exchange) -> Answer<'a, ExchangeReply> {
        Box::pin(self.meet(
            Operation::Exchange,
            || self.inner.exchange(member, exchange),
            |inner| {
                let (member, exchange) = (member.clone(), exchange.clone());
                Box::pin(async move { drop(inner.exchange(&member, &exchange).await) })
            },
            |reply, garbage| garbage.spoil_exchange(reply, member, exchange),
        ))
    }

    fn pause<'a>(&'a self, id: &'a Id, length: Duration) -> Answer<'a, PauseReply> {
        Box::pin(self.meet(
            Operation::Pause,
            move || self.inner.pause(id, length),
            move |inner| {
                let id = id.clone();
                Box::pin(async move { drop(inner.pause(&id, length).await) })
            },
            sound,
        ))
    }

    fn resume<'a>(&'a self, id: &'a Id) -> Answer<'a, bool> {
        Box::pin(self.meet(
            Operation::Resume,
            || self.inner.resume(id),
            |inner| {
                let id = id.clone();
                Box::pin(async move { drop(inner.resume(&id).await) })
            },
            sound,
        ))
    }

    fn circuit<'a>(
        &'a self,
        member: &'a CircuitMember,
        request: &'a CircuitRequest,
    ) -> Answer<'a, CircuitReply> {
        Box::pin(self.meet(
            Operation::Circuit,
            || self.inner.circuit(member, request),
            |inner| {
                let (member, request) = (member.clone(), request.clone());
                Box::pin(async move { drop(inner.circuit(&member, &request).await) })
            },
            |reply, garbage| garbage.spoil_circuit(reply),
        ))
    }

    fn sync_path(&self, id: &Id) -> Option<Arc<dyn SyncPath>> {
        if self.passes_sync_path { self.inner.sync_path(id) } else { None }
    }

    fn subscribe(&self, id: &Id, driver: DriverId, listener: Arc<dyn Listener>) -> Option<Subscription> {
        let gate = Arc::new(Gate { listener, is_cut: Arc::clone(&self.shared.is_cut) });
        let known = Arc::downgrade(&gate);
        let subscription = self.inner.subscribe(id, driver, gate)?;
        lock(&self.shared.gates).push(known);
        Some(subscription)
    }

    fn risks(&self) -> Vec<String> {
        self.inner.risks()
    }

    fn operators(&self) -> Option<&dyn Operators> {
        self.inner.operators()
    }
}
