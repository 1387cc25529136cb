//! The model behind a lock: a store with any capabilities, at a clock that is set by hand.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    future::ready,
    sync::{Arc, Mutex},
    time::Duration,
};

use tidegate_core::{
    Acquire, AcquireReply, AcquireRequest, Answer, Brief, Capabilities, Capability, CircuitMember,
    CircuitReply, CircuitRequest, DriverId, Exchange, ExchangeReply, HandOver, Head, Id, IdModel, LeaseView,
    Listener, Member, Model, Observation, Operators, Page, PauseReply, Policy, Release, Renewal, Renewed,
    Reply, Restore, ScopedReply, ScopedRequest, Settled, Settlement, Snapshot, Store, StoreError,
    Subscription, SyncPath, Token, circuit::Position, model::Push, time::Moment,
};

use crate::{clock::SettableClock, subject::Subject, task::lock};

/// The reference as a store, for tests of what stands on a store and of the kit itself. A cheap clone of one state.
///
/// It does what it declares, and refuses the rest.
///
/// # Examples
/// ```
/// use tidegate_core::Capabilities;
/// use tidegate_testkit::{Kit, reference::ModelStore};
///
/// let minimal = || ModelStore::default().declaring(Capabilities::NONE).subject();
/// Kit::new(minimal).filter("ST-3").run_blocking().assert();
/// ```
#[derive(Clone)]
pub struct ModelStore {
    shared: Arc<Shared>,
    capabilities: Capabilities,
}

#[derive(Default)]
struct Shared {
    clock: SettableClock,
    model: Mutex<Model>,
    listeners: Mutex<Listeners>,
    /// What is to be told, in the order in which it happened.
    outbox: Mutex<VecDeque<(Id, Push)>>,
    /// Held while telling, so that the order is kept.
    telling: Mutex<()>,
}

#[derive(Default)]
struct Listeners {
    next: u64,
    by_id: HashMap<Id, Vec<Known>>,
}

/// A subscription by its number: whose it is, and who is told.
type Known = (u64, DriverId, Arc<dyn Listener>);

impl Default for ModelStore {
    /// All capabilities, and a clock of its own.
    fn default() -> Self {
        Self { shared: Arc::default(), capabilities: Capability::ALL.into_iter().collect() }
    }
}

impl ModelStore {
    /// With all capabilities, at this clock.
    pub fn at(clock: &SettableClock) -> Self {
        Self { shared: Arc::new(Shared { clock: clock.clone(), ..Shared::default() }), ..Self::default() }
    }

    /// Declares these capabilities alone.
    #[must_use]
    pub fn declaring(mut self, capabilities: Capabilities) -> Self {
        self.capabilities = capabilities;
        self
    }

    /// Does not declare this one.
    #[must_use]
    pub fn without(mut self, capability: Capability) -> Self {
        self.capabilities = self.capabilities.without(capability);
        self
    }

    /// Its clock.
    pub fn clock(&self) -> &SettableClock {
        &self.shared.clock
    }

    /// Drops all that is kept, as a flush of a store would.
    pub fn wipe(&self) {
        lock(&self.shared.model).wipe();
    }

    /// Marks the stored state of an id as written in another layout.
    pub fn plant_layout(&self, id: &Id, layout: u32) {
        lock(&self.shared.model).id(id).plant_layout(layout);
    }

    /// Hands it over to a test, with every hook but the one for damaged state: a value is never damaged.
    pub fn subject(&self) -> Subject {
        let (wiped, planted) = (self.clone(), self.clone());
        Subject::new(self.clone())
            .clock(self.clock())
            .wipe(move || {
                wiped.wipe();
                ready(())
            })
            .plant_layout(move |id, layout| {
                planted.plant_layout(&id, layout);
                ready(())
            })
    }

    fn need(&self, capability: Capability) -> Result<(), StoreError> {
        if self.capabilities.has(capability) { Ok(()) } else { Err(StoreError::Unsupported(capability)) }
    }

    /// Refuses a policy whose bound could not be kept.
    fn need_for(&self, policy: &Policy) -> Result<(), StoreError> {
        if policy.bound().is_some() {
            self.need(Capability::Leases)?;
        }
        if policy.adaptive().is_some() {
            self.need(Capability::Adaptive)?;
        }
        Ok(())
    }

    /// One step on an id; what is to be pushed is pushed after it.
    fn with<T>(&self, id: &Id, step: impl FnOnce(&mut IdModel, Moment) -> T) -> T {
        let (answer, pushes) = {
            let mut model = lock(&self.shared.model);
            let one = model.id(id);
            let answer = step(one, self.shared.clock.now());
            if one.has_wakes() {
                let wakes = one.take_wakes().into_iter().map(|push| (id.clone(), push));
                lock(&self.shared.outbox).extend(wakes);
                (answer, true)
            } else {
                (answer, false)
            }
        };
        if pushes {
            self.tell();
        }
        answer
    }

    fn step<T>(
        &self,
        id: &Id,
        step: impl FnOnce(&mut IdModel, Moment) -> Result<Reply<T>, StoreError>,
    ) -> Result<Reply<T>, StoreError> {
        let mut reply = self.with(id, step)?;
        self.hide(&mut reply.head);
        Ok(reply)
    }

    /// Leaves out what is not declared.
    fn hide(&self, head: &mut Head) {
        if !self.capabilities.has(Capability::Epoch) {
            head.epoch = None;
        }
    }

    fn tell(&self) {
        let _in_order = lock(&self.shared.telling);
        loop {
            let Some((id, (whom, wake))) = lock(&self.shared.outbox).pop_front() else { return };
            let known = lock(&self.shared.listeners).by_id.get(&id).cloned().unwrap_or_default();
            for (_, driver, listener) in known {
                if whom.is_none_or(|whom| whom == driver) {
                    listener.wake(wake.clone());
                }
            }
        }
    }

    fn unlisten(&self, id: &Id, number: u64) {
        let gone = {
            let mut listeners = lock(&self.shared.listeners);
            let Some(known) = listeners.by_id.get_mut(id) else { return };
            let Some(at) = known.iter().position(|(known, _, _)| *known == number) else { return };
            let (_, driver, _) = known.swap_remove(at);
            let others = known.iter().any(|(_, other, _)| *other == driver);
            (!others).then_some(driver)
        };
        if let Some(driver) = gone {
            lock(&self.shared.model).id(id).unlisten(driver);
        }
    }

    fn acquire_now(
        &self,
        member: &Member,
        request: &AcquireRequest,
    ) -> Result<Reply<AcquireReply>, StoreError> {
        self.need_for(&member.policy)?;
        self.step(&member.id, |one, now| one.acquire(now, member, request))
    }

    fn scoped_now(&self, member: &Member, request: &ScopedRequest) -> Result<Reply<ScopedReply>, StoreError> {
        self.need(Capability::Scoped)?;
        self.need_for(&member.policy)?;
        self.step(&member.id, |one, now| one.acquire_scoped(now, member, request))
    }

    fn release_now(&self, id: &Id, releases: &[Release]) -> Result<Reply<()>, StoreError> {
        self.need(Capability::Leases)?;
        self.step(id, |one, now| one.release(now, releases))
    }

    fn renew_now(
        &self,
        member: &Member,
        restore: Option<&Restore>,
        renewals: &[Renewal],
    ) -> Result<Reply<Renewed>, StoreError> {
        self.need(Capability::Leases)?;
        if restore.is_some() {
            self.need(Capability::Epoch)?;
            self.need_for(&member.policy)?;
        }
        self.step(&member.id, |one, now| one.renew(now, member, restore, renewals))
    }

    /// Takes out the parts that are not declared, and answers them by that.
    fn exchange_now(&self, member: &Member, exchange: &Exchange) -> Result<Reply<ExchangeReply>, StoreError> {
        let mut declared = exchange.clone();
        let leases = self.need(Capability::Leases);
        let corrections = self.need(Capability::Corrections);
        let restore = if exchange.restore.is_some() { self.need(Capability::Epoch) } else { Ok(()) };
        let renewals = leases.clone().and(restore);
        let policy = self.need_for(&member.policy);
        let hand_overs = leases.clone().and(policy.clone());
        if leases.is_err() {
            declared.releases.clear();
        }
        if renewals.is_err() {
            declared.renewals.clear();
            declared.restore = None;
        }
        if hand_overs.is_err() {
            declared.hand_overs.clear();
        }
        if corrections.is_err() {
            declared.settlements.clear();
            declared.observations.clear();
        }
        let refusal = |acquire: &Acquire| match acquire {
            Acquire::Prefix(_) => policy.clone(),
            Acquire::Scoped(_) => self.need(Capability::Scoped).and(policy.clone()),
        };
        declared.acquires.retain(|acquire| refusal(acquire).is_ok());
        let mut reply = self.step(&member.id, |one, now| one.exchange(now, member, &declared))?;
        let body = &mut reply.body;
        if let (Err(error), false) = (&leases, exchange.releases.is_empty()) {
            body.released = Err(error.clone());
        }
        if let (Err(error), true) = (&renewals, !exchange.renewals.is_empty() || exchange.restore.is_some()) {
            body.renewed = Err(error.clone());
        }
        if let (Err(error), false) = (&hand_overs, exchange.hand_overs.is_empty()) {
            body.handed_over = Err(error.clone());
        }
        if let (Err(error), false) = (&corrections, exchange.settlements.is_empty()) {
            body.settled = Err(error.clone());
        }
        if let (Err(error), false) = (&corrections, exchange.observations.is_empty()) {
            body.observed = Err(error.clone());
        }
        for (index, acquire) in exchange.acquires.iter().enumerate() {
            if let Err(error) = refusal(acquire) {
                body.acquired.insert(index, Err(error));
            }
        }
        Ok(reply)
    }
}

/// An answer that is there at once.
fn now<'a, T: Send + 'a>(answer: Result<Reply<T>, StoreError>) -> Answer<'a, T> {
    Box::pin(ready(answer))
}

impl Store for ModelStore {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn acquire<'a>(&'a self, member: &'a Member, request: &'a AcquireRequest) -> Answer<'a, AcquireReply> {
        Box::pin(async move { self.acquire_now(member, request) })
    }

    fn pause<'a>(&'a self, id: &'a Id, length: Duration) -> Answer<'a, PauseReply> {
        Box::pin(async move { self.step(id, |one, now| one.pause(now, length)) })
    }

    fn resume<'a>(&'a self, id: &'a Id) -> Answer<'a, bool> {
        Box::pin(async move { self.step(id, IdModel::resume) })
    }

    fn acquire_scoped<'a>(
        &'a self,
        member: &'a Member,
        request: &'a ScopedRequest,
    ) -> Answer<'a, ScopedReply> {
        Box::pin(async move { self.scoped_now(member, request) })
    }

    fn release<'a>(&'a self, member: &'a Member, releases: &'a [Release]) -> Answer<'a, ()> {
        Box::pin(async move { self.release_now(&member.id, releases) })
    }

    fn renew<'a>(
        &'a self,
        member: &'a Member,
        restore: Option<&'a Restore>,
        renewals: &'a [Renewal],
    ) -> Answer<'a, Renewed> {
        Box::pin(async move { self.renew_now(member, restore, renewals) })
    }

    fn hand_over<'a>(&'a self, member: &'a Member, hand_overs: &'a [HandOver]) -> Answer<'a, Vec<Token>> {
        Box::pin(async move {
            self.need(Capability::Leases)?;
            self.need_for(&member.policy)?;
            self.step(&member.id, |one, now| one.hand_over(now, member, hand_overs))
        })
    }

    fn settle<'a>(&'a self, member: &'a Member, settlements: &'a [Settlement]) -> Answer<'a, Vec<Settled>> {
        Box::pin(async move {
            self.need(Capability::Corrections)?;
            self.step(&member.id, |one, now| one.settle(now, settlements))
        })
    }

    fn observe<'a>(&'a self, member: &'a Member, observations: &'a [Observation]) -> Answer<'a, Vec<bool>> {
        Box::pin(async move {
            self.need(Capability::Corrections)?;
            self.step(&member.id, |one, now| one.observe(now, observations))
        })
    }

    fn exchange<'a>(&'a self, member: &'a Member, exchange: &'a Exchange) -> Answer<'a, ExchangeReply> {
        if self.capabilities.has(Capability::Exchange) {
            return Box::pin(async move { self.exchange_now(member, exchange) });
        }
        let parts = OneByOne(self.clone());
        Box::pin(async move { parts.exchange(member, exchange).await })
    }

    fn circuit<'a>(
        &'a self,
        member: &'a CircuitMember,
        request: &'a CircuitRequest,
    ) -> Answer<'a, CircuitReply> {
        Box::pin(async move {
            self.need(Capability::Circuit)?;
            self.step(&member.id, |one, now| one.circuit(now, member, request))
        })
    }

    fn sync_path(&self, id: &Id) -> Option<Arc<dyn SyncPath>> {
        let path = || Arc::new(Path { store: self.clone(), id: id.clone() }) as Arc<dyn SyncPath>;
        self.capabilities.has(Capability::Sync).then(path)
    }

    fn subscribe(&self, id: &Id, driver: DriverId, listener: Arc<dyn Listener>) -> Option<Subscription> {
        if !self.capabilities.has(Capability::Wake) {
            return None;
        }
        let number = {
            let mut listeners = lock(&self.shared.listeners);
            listeners.next += 1;
            let number = listeners.next;
            listeners.by_id.entry(id.clone()).or_default().push((number, driver, listener));
            number
        };
        lock(&self.shared.model).id(id).listen(driver);
        let (store, id) = (self.clone(), id.clone());
        Some(Subscription::new(move || store.unlisten(&id, number)))
    }

    fn operators(&self) -> Option<&dyn Operators> {
        if self.capabilities.has(Capability::Operators) { Some(self) } else { None }
    }
}

/// The synchronous path of one id.
struct Path {
    store: ModelStore,
    id: Id,
}

impl SyncPath for Path {
    fn now(&self) -> Moment {
        self.store.shared.clock.now()
    }

    fn acquire_one(&self, member: &Member, tier: usize, known: u64) -> Option<Brief> {
        self.store.need_for(&member.policy).ok()?;
        self.brief(|one, now| one.acquire_one(now, member, tier, known))
    }

    fn release_one(&self, release: &Release, known: u64) -> Option<Brief> {
        self.store.need(Capability::Leases).ok()?;
        self.brief(|one, now| one.release_one(now, release, known))
    }

    fn acquire(&self, member: &Member, request: &AcquireRequest) -> Result<Reply<AcquireReply>, StoreError> {
        self.store.acquire_now(member, request)
    }

    fn acquire_scoped(
        &self,
        member: &Member,
        request: &ScopedRequest,
    ) -> Result<Reply<ScopedReply>, StoreError> {
        self.store.scoped_now(member, request)
    }

    fn release(&self, member: &Member, releases: &[Release]) -> Result<Reply<()>, StoreError> {
        self.store.release_now(&member.id, releases)
    }

    fn exchange(&self, member: &Member, exchange: &Exchange) -> Result<Reply<ExchangeReply>, StoreError> {
        self.store.exchange_now(member, exchange)
    }
}

impl Path {
    fn brief(&self, step: impl FnOnce(&mut IdModel, Moment) -> Option<Brief>) -> Option<Brief> {
        let mut brief = self.store.with(&self.id, step)?;
        if let Some(head) = &mut brief.head {
            self.store.hide(head);
        }
        Some(brief)
    }
}

impl Operators for ModelStore {
    fn ids<'a>(&'a self, after: Option<&'a Id>, most: usize) -> Answer<'a, Page<Id>> {
        let page = lock(&self.shared.model).ids(after, most);
        now(page.map(|body| Reply { head: Head::default(), body }))
    }

    fn snapshot<'a>(&'a self, id: &'a Id) -> Answer<'a, Option<Snapshot>> {
        now(self.step(id, |one, now| one.snapshot(now, id)))
    }

    fn leases<'a>(&'a self, id: &'a Id, after: Option<u32>, most: usize) -> Answer<'a, Page<LeaseView>> {
        now(self.step(id, |one, now| one.leases(now, after, most)))
    }

    fn evict<'a>(&'a self, id: &'a Id, token: Token) -> Answer<'a, bool> {
        now(self.step(id, |one, now| one.evict(now, token)))
    }

    fn set_limit<'a>(&'a self, id: &'a Id, limit: u32) -> Answer<'a, u32> {
        now(self.step(id, |one, now| one.set_limit(now, limit)))
    }

    fn replace_policy<'a>(&'a self, id: &'a Id, policy: Arc<Policy>) -> Answer<'a, ()> {
        now(self.step(id, |one, now| one.replace_policy(now, &policy)))
    }

    fn set_circuit<'a>(&'a self, id: &'a Id, position: Position) -> Answer<'a, bool> {
        let declared = self.need(Capability::Circuit);
        now(declared.and_then(|()| self.step(id, |one, now| one.set_circuit(now, position))))
    }

    fn forget<'a>(&'a self, id: &'a Id) -> Answer<'a, bool> {
        now(self.step(id, |one, now| one.forget(now)))
    }
}

impl fmt::Debug for ModelStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ModelStore")
            .field("capabilities", &self.capabilities)
            .field("clock", &self.shared.clock.now())
            .finish_non_exhaustive()
    }
}

/// The same store with the contract's own exchange, which does the parts one by one.
struct OneByOne(ModelStore);

impl Store for OneByOne {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities
    }

    fn acquire<'a>(&'a self, member: &'a Member, request: &'a AcquireRequest) -> Answer<'a, AcquireReply> {
        self.0.acquire(member, request)
    }

    fn pause<'a>(&'a self, id: &'a Id, length: Duration) -> Answer<'a, PauseReply> {
        self.0.pause(id, length)
    }

    fn resume<'a>(&'a self, id: &'a Id) -> Answer<'a, bool> {
        self.0.resume(id)
    }

    fn acquire_scoped<'a>(
        &'a self,
        member: &'a Member,
        request: &'a ScopedRequest,
    ) -> Answer<'a, ScopedReply> {
        self.0.acquire_scoped(member, request)
    }

    fn release<'a>(&'a self, member: &'a Member, releases: &'a [Release]) -> Answer<'a, ()> {
        self.0.release(member, releases)
    }

    fn renew<'a>(
        &'a self,
        member: &'a Member,
        restore: Option<&'a Restore>,
        renewals: &'a [Renewal],
    ) -> Answer<'a, Renewed> {
        self.0.renew(member, restore, renewals)
    }

    fn hand_over<'a>(&'a self, member: &'a Member, hand_overs: &'a [HandOver]) -> Answer<'a, Vec<Token>> {
        self.0.hand_over(member, hand_overs)
    }

    fn settle<'a>(&'a self, member: &'a Member, settlements: &'a [Settlement]) -> Answer<'a, Vec<Settled>> {
        self.0.settle(member, settlements)
    }

    fn observe<'a>(&'a self, member: &'a Member, observations: &'a [Observation]) -> Answer<'a, Vec<bool>> {
        self.0.observe(member, observations)
    }
}
