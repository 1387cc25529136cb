//! The store of one process: the default, with nothing to install.
//!
//! A lock per id, the model of that id behind it, and a clock. Everything that the contract knows, it can do.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    ops::Bound::{Excluded, Unbounded},
    sync::{Arc, Weak, mpsc},
    time::Duration,
};

use parking_lot::{Mutex, MutexGuard, RwLock};
use tidegate_core::{
    AcquireReply, AcquireRequest, Answer, Brief, Capabilities, Capability, CircuitMember, CircuitReply,
    CircuitRequest, DriverId, Exchange, ExchangeReply, HandOver, Id, IdModel, LeaseView, Listener, Member,
    Observation, Operators, Page, PauseReply, Policy, Release, Renewal, Renewed, Reply, Restore, ScopedReply,
    ScopedRequest, Settled, Settlement, Snapshot, Store, StoreError, Subscription, SyncPath, Token, Wake,
    circuit::Position, store, time::Moment,
};

use crate::clock::{Bounded, Clock, Pace, SystemClock};

/// Keeps everything in this process. A cheap clone of one thing.
///
/// Primitives that are built on clones of one store share its state, as processes share a remote store.
///
/// # Examples
/// ```
/// use tidegate::{AdaptiveSemaphore, MemoryStore};
///
/// let store = MemoryStore::new();
/// let semaphore = AdaptiveSemaphore::builder("my-provider-api", 10).build(store.clone())?;
/// assert_eq!(semaphore.state().limit, 10);
/// # Ok::<(), tidegate::BuildError>(())
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    inner: Arc<Inner>,
}

struct Inner {
    clock: Arc<dyn Clock>,
    ids: RwLock<BTreeMap<Id, Arc<One>>>,
    /// Wakes the sweeper for an id that has begun to keep levels; none until there is one.
    sweeper: Mutex<Option<mpsc::Sender<Weak<One>>>>,
}

/// One id.
struct One {
    me: Weak<Self>,
    clock: Arc<dyn Clock>,
    store: Weak<Inner>,
    guarded: Mutex<Guarded>,
    /// Held by whoever tells the listeners.
    telling: Mutex<()>,
}

#[derive(Default)]
struct Guarded {
    model: IdModel,
    /// In a fixed order, so that a simulation goes the same way each time.
    listeners: BTreeMap<DriverId, Arc<dyn Listener>>,
    /// What happened and was not told yet.
    pushes: VecDeque<(Arc<dyn Listener>, Wake)>,
    /// Whether the sweeper looks after this id.
    swept: bool,
}

impl MemoryStore {
    /// A store that holds nothing, on the machine's clock.
    pub fn new() -> Self {
        Self::with_clock(SystemClock::new())
    }

    /// A store that holds nothing, on a clock of its own.
    pub fn with_clock(clock: impl Clock) -> Self {
        let inner =
            Inner { clock: Arc::new(Bounded(clock)), ids: RwLock::default(), sweeper: Mutex::default() };
        Self { inner: Arc::new(inner) }
    }

    /// Drops everything that is kept, as a flush of a remote store would: for tests of what a fleet does then.
    pub fn wipe(&self) {
        for one in self.inner.ids.read().values() {
            one.guarded.lock().model.wipe();
        }
    }

    /// Marks what is kept of an id as written by another version: for tests of what happens then.
    #[doc(hidden)]
    pub fn plant_layout(&self, id: &Id, layout: u32) {
        self.one(id).guarded.lock().model.plant_layout(layout);
    }

    fn one(&self, id: &Id) -> Arc<One> {
        if let Some(one) = self.inner.ids.read().get(id) {
            return Arc::clone(one);
        }
        let mut ids = self.inner.ids.write();
        let one = ids.entry(id.clone()).or_insert_with(|| {
            Arc::new_cyclic(|me| One {
                me: me.clone(),
                clock: Arc::clone(&self.inner.clock),
                store: Arc::downgrade(&self.inner),
                guarded: Mutex::default(),
                telling: Mutex::default(),
            })
        });
        Arc::clone(one)
    }

    fn step<'a, T: Send + 'a>(
        &self,
        id: &Id,
        step: impl FnOnce(&mut IdModel, Moment) -> Result<T, StoreError>,
    ) -> std::future::Ready<Result<T, StoreError>> {
        std::future::ready(self.one(id).step(step))
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("ids", &self.inner.ids.read().len()).finish_non_exhaustive()
    }
}

impl One {
    /// One step on the id; what is to be pushed is pushed when the lock is free again.
    fn step<T>(
        &self,
        step: impl FnOnce(&mut IdModel, Moment) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut guarded = self.guarded.lock();
        let now = self.clock.now();
        let answer = step(&mut guarded.model, now);
        if guarded.model.has_wakes() {
            self.push(guarded);
        }
        answer
    }

    /// Pushes what happened, in the order in which it happened, when the id's lock is free again.
    #[cold]
    fn push(&self, mut guarded: MutexGuard<'_, Guarded>) {
        let Guarded { model, listeners, pushes, .. } = &mut *guarded;
        for (to, wake) in model.take_wakes() {
            match to {
                Some(driver) => {
                    pushes.extend(listeners.get(&driver).map(|listener| (Arc::clone(listener), wake)));
                }
                None => {
                    pushes.extend(listeners.values().map(|listener| (Arc::clone(listener), wake.clone())));
                }
            }
        }
        drop(guarded);
        // Whoever tells already tells this too; it looks once more after it has let go.
        while let Some(telling) = self.telling.try_lock() {
            while let Some((listener, wake)) = self.next_push() {
                listener.wake(wake);
            }
            drop(telling);
            if self.guarded.lock().pushes.is_empty() {
                return;
            }
        }
    }

    fn next_push(&self) -> Option<(Arc<dyn Listener>, Wake)> {
        self.guarded.lock().pushes.pop_front()
    }

    /// Has the sweeper look after this id, if it is not already.
    fn look_after(&self) {
        let mut guarded = self.guarded.lock();
        if guarded.swept || self.clock.pace() == Pace::Set {
            return;
        }
        if let Some(store) = self.store.upgrade() {
            guarded.swept = store.look_after(self.me.clone());
        }
    }
}

impl Inner {
    fn look_after(&self, one: Weak<One>) -> bool {
        let mut sweeper = self.sweeper.lock();
        let one = match sweeper.as_ref().map(|sender| sender.send(one.clone())) {
            Some(Ok(())) => return true,
            Some(Err(mpsc::SendError(one))) => one,
            None => one,
        };
        let (sender, receiver) = mpsc::channel();
        let started = std::thread::Builder::new()
            .name("tidegate-sweeper".to_owned())
            .spawn(move || sweep(&receiver))
            .is_ok();
        let known = sender.send(one).is_ok();
        *sweeper = Some(sender);
        started && known
    }
}

/// How often the sweeper looks at the ids that it looks after.
const SWEPT_EVERY: Duration = Duration::from_millis(500);
/// The most steps that the sweeper spends on one id in one go.
const SWEPT_STEPS: usize = 64;

/// Forgets identities that rest, on a thread of its own, so that an idle store empties itself. Ends with the store.
fn sweep(ids: &mpsc::Receiver<Weak<One>>) {
    let mut looked_after: Vec<Weak<One>> = Vec::new();
    loop {
        match ids.recv_timeout(SWEPT_EVERY) {
            Ok(one) => {
                looked_after.push(one);
                continue;
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
        }
        looked_after.retain(|one| {
            let Some(one) = one.upgrade() else { return false };
            for _ in 0..SWEPT_STEPS {
                let mut guarded = one.guarded.lock();
                let now = one.clock.now();
                match guarded.model.sweep(now) {
                    None => {
                        guarded.swept = false;
                        return false;
                    }
                    Some(Duration::ZERO) => {}
                    Some(_) => return true,
                }
            }
            true
        });
        if looked_after.is_empty() {
            // Nothing to do until an id sends itself; a store that is gone ends the wait.
            match ids.recv() {
                Ok(one) => looked_after.push(one),
                Err(mpsc::RecvError) => return,
            }
        }
    }
}

impl SyncPath for One {
    fn now(&self) -> Moment {
        self.clock.now()
    }

    fn acquire(&self, member: &Member, request: &AcquireRequest) -> Result<Reply<AcquireReply>, StoreError> {
        self.step(|model, now| model.acquire(now, member, request))
    }

    fn acquire_one(&self, member: &Member, tier: usize, known: u64) -> Option<Brief> {
        let mut guarded = self.guarded.lock();
        let now = self.clock.now();
        guarded.model.acquire_one(now, member, tier, known)
    }

    fn release_one(&self, release: &Release, known: u64) -> Option<Brief> {
        let mut guarded = self.guarded.lock();
        // A look at the clock takes as long as all the rest, and mostly makes no difference.
        if let Some(brief) = guarded.model.release_at_last(release, known) {
            return Some(brief);
        }
        let now = self.clock.now();
        let brief = guarded.model.release_one(now, release, known);
        if guarded.model.has_wakes() {
            self.push(guarded);
        }
        brief
    }

    fn acquire_scoped(
        &self,
        member: &Member,
        request: &ScopedRequest,
    ) -> Result<Reply<ScopedReply>, StoreError> {
        let answer = self.step(|model, now| model.acquire_scoped(now, member, request));
        self.look_after();
        answer
    }

    fn release(&self, _: &Member, releases: &[Release]) -> Result<Reply<()>, StoreError> {
        self.step(|model, now| model.release(now, releases))
    }

    fn exchange(&self, member: &Member, exchange: &Exchange) -> Result<Reply<ExchangeReply>, StoreError> {
        let answer = self.step(|model, now| model.exchange(now, member, exchange));
        if exchange.sequence.is_some() || member.policy.is_scoped() {
            self.look_after();
        }
        answer
    }
}

impl Store for MemoryStore {
    fn capabilities(&self) -> Capabilities {
        Capability::ALL.into_iter().collect()
    }

    fn acquire<'a>(&'a self, member: &'a Member, request: &'a AcquireRequest) -> Answer<'a, AcquireReply> {
        Box::pin(std::future::ready(self.one(&member.id).acquire(member, request)))
    }

    fn pause<'a>(&'a self, id: &'a Id, length: Duration) -> Answer<'a, PauseReply> {
        Box::pin(self.step(id, |model, now| model.pause(now, length)))
    }

    fn resume<'a>(&'a self, id: &'a Id) -> Answer<'a, bool> {
        Box::pin(self.step(id, IdModel::resume))
    }

    fn acquire_scoped<'a>(
        &'a self,
        member: &'a Member,
        request: &'a ScopedRequest,
    ) -> Answer<'a, ScopedReply> {
        Box::pin(std::future::ready(self.one(&member.id).acquire_scoped(member, request)))
    }

    fn release<'a>(&'a self, member: &'a Member, releases: &'a [Release]) -> Answer<'a, ()> {
        Box::pin(self.step(&member.id, |model, now| model.release(now, releases)))
    }

    fn renew<'a>(
        &'a self,
        member: &'a Member,
        restore: Option<&'a Restore>,
        renewals: &'a [Renewal],
    ) -> Answer<'a, Renewed> {
        Box::pin(self.step(&member.id, |model, now| model.renew(now, member, restore, renewals)))
    }

    fn hand_over<'a>(&'a self, member: &'a Member, hand_overs: &'a [HandOver]) -> Answer<'a, Vec<Token>> {
        Box::pin(self.step(&member.id, |model, now| model.hand_over(now, member, hand_overs)))
    }

    fn settle<'a>(&'a self, member: &'a Member, settlements: &'a [Settlement]) -> Answer<'a, Vec<Settled>> {
        Box::pin(self.step(&member.id, |model, now| model.settle(now, settlements)))
    }

    fn observe<'a>(&'a self, member: &'a Member, observations: &'a [Observation]) -> Answer<'a, Vec<bool>> {
        Box::pin(self.step(&member.id, |model, now| model.observe(now, observations)))
    }

    fn exchange<'a>(&'a self, member: &'a Member, exchange: &'a Exchange) -> Answer<'a, ExchangeReply> {
        Box::pin(std::future::ready(self.one(&member.id).exchange(member, exchange)))
    }

    fn circuit<'a>(
        &'a self,
        member: &'a CircuitMember,
        request: &'a CircuitRequest,
    ) -> Answer<'a, CircuitReply> {
        Box::pin(self.step(&member.id, |model, now| model.circuit(now, member, request)))
    }

    fn sync_path(&self, id: &Id) -> Option<Arc<dyn SyncPath>> {
        Some(self.one(id))
    }

    fn subscribe(&self, id: &Id, driver: DriverId, listener: Arc<dyn Listener>) -> Option<Subscription> {
        let one = self.one(id);
        let mut guarded = one.guarded.lock();
        guarded.model.listen(driver);
        guarded.listeners.insert(driver, listener);
        drop(guarded);
        Some(Subscription::new(move || {
            let mut guarded = one.guarded.lock();
            guarded.model.unlisten(driver);
            guarded.listeners.remove(&driver);
        }))
    }

    fn operators(&self) -> Option<&dyn Operators> {
        Some(self)
    }
}

impl Operators for MemoryStore {
    fn ids<'a>(&'a self, after: Option<&'a Id>, most: usize) -> Answer<'a, Page<Id>> {
        let from = after.map_or(Unbounded, Excluded);
        let page = store::page_size(most).map(|()| {
            let ids = self.inner.ids.read();
            let mut there = ids
                .range::<Id, _>((from, Unbounded))
                .filter(|(_, one)| one.guarded.lock().model.is_used())
                .map(|(id, _)| id.clone());
            let items = there.by_ref().take(most).collect();
            let page = Page { items, more: there.next().is_some() };
            Reply { head: tidegate_core::Head::default(), body: page }
        });
        Box::pin(std::future::ready(page))
    }

    fn snapshot<'a>(&'a self, id: &'a Id) -> Answer<'a, Option<Snapshot>> {
        Box::pin(self.step(id, |model, now| model.snapshot(now, id)))
    }

    fn leases<'a>(&'a self, id: &'a Id, after: Option<u32>, most: usize) -> Answer<'a, Page<LeaseView>> {
        Box::pin(self.step(id, |model, now| model.leases(now, after, most)))
    }

    fn evict<'a>(&'a self, id: &'a Id, token: Token) -> Answer<'a, bool> {
        Box::pin(self.step(id, |model, now| model.evict(now, token)))
    }

    fn set_limit<'a>(&'a self, id: &'a Id, limit: u32) -> Answer<'a, u32> {
        Box::pin(self.step(id, |model, now| model.set_limit(now, limit)))
    }

    fn replace_policy<'a>(&'a self, id: &'a Id, policy: Arc<Policy>) -> Answer<'a, ()> {
        Box::pin(self.step(id, |model, now| model.replace_policy(now, &policy)))
    }

    fn set_circuit<'a>(&'a self, id: &'a Id, position: Position) -> Answer<'a, bool> {
        Box::pin(self.step(id, |model, now| model.set_circuit(now, position)))
    }

    fn forget<'a>(&'a self, id: &'a Id) -> Answer<'a, bool> {
        let forgotten = self.one(id).step(IdModel::forget);
        if forgotten.is_ok() {
            // What nobody has a hand on any more is not even kept as an empty place.
            let mut ids = self.inner.ids.write();
            if ids
                .get(id)
                .is_some_and(|one| Arc::strong_count(one) == 1 && one.guarded.lock().model.is_empty())
            {
                ids.remove(id);
            }
        }
        Box::pin(std::future::ready(forgotten))
    }
}
