//! A fleet on one memory store, with or without a wire between, and what the tests do to it.

// Each test file uses a part of this.
#![allow(dead_code)]

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use tidegate::{
    AdaptiveSemaphore, Capabilities, Capability, Class, Concurrency, Id, MemoryStore, Operators,
    SemaphoreBuilder, Store, StoreError, Token, Trouble, Valve,
    clock::{Clock, TokioClock},
    contract::{
        AcquireReply, AcquireRequest, Answer, Cause, DriverId, Exchange, ExchangeReply, HandOver, LeaseView,
        Listener, Member, Observation, PauseReply, Release, Renewal, Renewed, Restore, ScopedReply,
        ScopedRequest, Settled, Settlement, Snapshot, Subscription, time::Moment,
    },
};

/// The id that all tests work on.
pub(crate) const ID: &str = "provider";

pub(crate) fn id() -> Id {
    Id::new(ID).expect("a good id")
}

pub(crate) const fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A store and a clock that every process of a fleet shares. Made within a runtime whose time is paused.
#[derive(Clone)]
pub(crate) struct Fleet {
    pub(crate) clock: TokioClock,
    pub(crate) store: MemoryStore,
}

impl Fleet {
    pub(crate) fn new() -> Self {
        let clock = TokioClock::new();
        Self { clock, store: MemoryStore::with_clock(clock) }
    }

    /// A semaphore of the one id, on the fleet's clock.
    pub(crate) fn builder(&self, initial: u32) -> SemaphoreBuilder {
        AdaptiveSemaphore::builder(ID, initial).clock(self.clock)
    }

    /// A process of its own.
    pub(crate) fn process(&self, initial: u32) -> AdaptiveSemaphore {
        self.builder(initial).build(self.store.clone()).expect("good options")
    }

    /// Processes with a class for each share.
    pub(crate) fn process_with(&self, initial: u32, classes: &[Class]) -> AdaptiveSemaphore {
        let builder = classes.iter().cloned().fold(self.builder(initial), SemaphoreBuilder::class);
        builder.build(self.store.clone()).expect("good options")
    }

    /// A valve of the one id with a global bound, as a process of its own.
    pub(crate) fn process_valve(&self, limit: u32) -> Valve {
        let builder = Valve::builder(ID).concurrency(Concurrency::Global(limit));
        builder.clock(self.clock).build(self.store.clone()).expect("good options")
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        snapshot(&self.store)
    }

    pub(crate) fn limit(&self) -> u32 {
        self.snapshot().limit.expect("a limit").value
    }

    pub(crate) fn held(&self) -> u32 {
        self.snapshot().held
    }

    pub(crate) fn leases(&self) -> Vec<LeaseView> {
        ready(Operators::leases(&self.store, &id(), None, 1_000)).expect("leases").body.items
    }

    pub(crate) fn evict(&self, token: Token) -> bool {
        ready(Operators::evict(&self.store, &id(), token)).expect("evict").body
    }

    pub(crate) fn set_limit(&self, limit: u32) {
        ready(Operators::set_limit(&self.store, &id(), limit)).expect("a limit within bounds");
    }

    /// How long something takes on the fleet's clock.
    pub(crate) async fn timed<T>(&self, future: impl Future<Output = T>) -> (T, Duration) {
        let start = self.now();
        let value = future.await;
        (value, self.now().since(start))
    }
}

pub(crate) fn snapshot(store: &MemoryStore) -> Snapshot {
    ready(Operators::snapshot(store, &id())).expect("snapshot").body.expect("the id is in use")
}

/// The value of a future that needs no waiting, as those of the memory store.
pub(crate) fn ready<T>(future: impl Future<Output = T>) -> T {
    match poll_once(pin!(future)) {
        Poll::Ready(value) => value,
        Poll::Pending => panic!("it waits"),
    }
}

/// Polls once, with a waker that wakes nobody.
pub(crate) fn poll_once<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
    future.poll(&mut Context::from_waker(Waker::noop()))
}

/// Lets everyone run until something holds, without letting time pass.
#[track_caller]
pub(crate) fn until<F: FnMut() -> bool>(mut holds: F) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        for _ in 0..1_000 {
            if holds() {
                return;
            }
            tokio::task::yield_now().await;
        }
        panic!("what {caller} waits for does not come by itself");
    }
}

/// Lets everyone run who can, without letting time pass: for what must not happen.
pub(crate) async fn settled() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

/// What was reported through `on_error`.
#[derive(Clone, Default)]
pub(crate) struct Troubles(Arc<Mutex<Vec<Trouble>>>);

impl Troubles {
    pub(crate) fn note(&self) -> impl Fn(&Trouble) + Send + Sync + 'static {
        let all = Arc::clone(&self.0);
        move |trouble| all.lock().expect("no panic").push(trouble.clone())
    }

    pub(crate) fn codes(&self) -> Vec<&'static str> {
        self.all().iter().map(Trouble::code).collect()
    }

    pub(crate) fn all(&self) -> Vec<Trouble> {
        self.0.lock().expect("no panic").clone()
    }
}

/// How long the wire takes, each way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wire {
    /// No time at all.
    Short,
    /// A turn of the scheduler.
    Yields,
    /// So long.
    Takes(Duration),
}

/// What becomes of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mode {
    Up,
    /// Refused at once.
    Down,
    /// Never carried out, never answered.
    Hangs,
    /// Carried out, never answered.
    Mute,
}

/// The memory store at the end of a wire: no synchronous path, answers that take their time, or none at all.
#[derive(Clone)]
pub(crate) struct Remote {
    inner: MemoryStore,
    wire: Wire,
    mode: Arc<Mutex<Mode>>,
    operations: Arc<AtomicUsize>,
    tries: Arc<Mutex<Vec<Try>>>,
    capabilities: Capabilities,
    clock: Arc<dyn Clock>,
}

/// One renewal: how many tokens, when it was sent, and when it was answered or given up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Try {
    pub(crate) tokens: usize,
    pub(crate) sent: Moment,
    pub(crate) ended: Option<Moment>,
}

impl Remote {
    pub(crate) fn new(fleet: &Fleet, wire: Wire) -> Self {
        Self::over(&fleet.store, fleet.clock, wire)
    }

    pub(crate) fn over(store: &MemoryStore, clock: impl Clock, wire: Wire) -> Self {
        Self {
            inner: store.clone(),
            wire,
            mode: Arc::new(Mutex::new(Mode::Up)),
            operations: Arc::default(),
            tries: Arc::default(),
            capabilities: store.capabilities().without(Capability::Sync),
            clock: Arc::new(clock),
        }
    }

    /// One that cannot do this.
    pub(crate) fn without(mut self, capability: Capability) -> Self {
        self.capabilities = self.capabilities.without(capability);
        self
    }

    pub(crate) fn set(&self, mode: Mode) {
        *self.mode.lock().expect("no panic") = mode;
    }

    /// How many operations were asked for.
    pub(crate) fn operations(&self) -> usize {
        self.operations.load(Ordering::SeqCst)
    }

    pub(crate) fn tries(&self) -> Vec<Try> {
        self.tries.lock().expect("no panic").clone()
    }

    fn mode(&self) -> Mode {
        *self.mode.lock().expect("no panic")
    }

    async fn travel(&self) {
        match self.wire {
            Wire::Short => {}
            Wire::Yields => tokio::task::yield_now().await,
            Wire::Takes(time) => tokio::time::sleep(time).await,
        }
    }

    async fn there(&self) -> Result<(), StoreError> {
        self.operations.fetch_add(1, Ordering::SeqCst);
        self.travel().await;
        match self.mode() {
            Mode::Down => Err(StoreError::unavailable(Cause::Disconnected, "the wire is cut")),
            Mode::Hangs => std::future::pending().await,
            Mode::Up | Mode::Mute => Ok(()),
        }
    }

    async fn back(&self) {
        if self.mode() == Mode::Mute {
            std::future::pending::<()>().await;
        }
        self.travel().await;
    }

    fn begin(&self, tokens: usize) -> Ends<'_> {
        let mut tries = self.tries.lock().expect("no panic");
        tries.push(Try { tokens, sent: self.clock.now(), ended: None });
        Ends { remote: self, at: tries.len() - 1 }
    }
}

/// Notes when a renewal ends, also where it is given up.
struct Ends<'a> {
    remote: &'a Remote,
    at: usize,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        let now = self.remote.clock.now();
        if let Ok(mut tries) = self.remote.tries.lock() {
            tries[self.at].ended = Some(now);
        }
    }
}

/// The inner store does its work when it is asked, not when it is awaited: so it is asked on arrival.
macro_rules! over_the_wire {
    ($remote:ident, $operation:expr) => {
        Box::pin(async move {
            $remote.there().await?;
            let answer = $operation.await;
            $remote.back().await;
            answer
        })
    };
}

impl Store for Remote {
    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    fn acquire<'a>(&'a self, member: &'a Member, request: &'a AcquireRequest) -> Answer<'a, AcquireReply> {
        over_the_wire!(self, self.inner.acquire(member, request))
    }

    fn pause<'a>(&'a self, id: &'a Id, length: Duration) -> Answer<'a, PauseReply> {
        over_the_wire!(self, self.inner.pause(id, length))
    }

    fn resume<'a>(&'a self, id: &'a Id) -> Answer<'a, bool> {
        over_the_wire!(self, self.inner.resume(id))
    }

    fn acquire_scoped<'a>(
        &'a self,
        member: &'a Member,
        request: &'a ScopedRequest,
    ) -> Answer<'a, ScopedReply> {
        over_the_wire!(self, self.inner.acquire_scoped(member, request))
    }

    fn release<'a>(&'a self, member: &'a Member, releases: &'a [Release]) -> Answer<'a, ()> {
        over_the_wire!(self, self.inner.release(member, releases))
    }

    fn renew<'a>(
        &'a self,
        member: &'a Member,
        restore: Option<&'a Restore>,
        renewals: &'a [Renewal],
    ) -> Answer<'a, Renewed> {
        Box::pin(async move {
            let _ends = self.begin(renewals.len());
            self.there().await?;
            let answer = self.inner.renew(member, restore, renewals).await;
            self.back().await;
            answer
        })
    }

    fn hand_over<'a>(&'a self, member: &'a Member, hand_overs: &'a [HandOver]) -> Answer<'a, Vec<Token>> {
        over_the_wire!(self, self.inner.hand_over(member, hand_overs))
    }

    fn settle<'a>(&'a self, member: &'a Member, settlements: &'a [Settlement]) -> Answer<'a, Vec<Settled>> {
        over_the_wire!(self, self.inner.settle(member, settlements))
    }

    fn observe<'a>(&'a self, member: &'a Member, observations: &'a [Observation]) -> Answer<'a, Vec<bool>> {
        over_the_wire!(self, self.inner.observe(member, observations))
    }

    fn exchange<'a>(&'a self, member: &'a Member, exchange: &'a Exchange) -> Answer<'a, ExchangeReply> {
        over_the_wire!(self, self.inner.exchange(member, exchange))
    }

    fn subscribe(&self, id: &Id, driver: DriverId, listener: Arc<dyn Listener>) -> Option<Subscription> {
        if self.capabilities.has(Capability::Wake) {
            self.inner.subscribe(id, driver, listener)
        } else {
            None
        }
    }

    fn operators(&self) -> Option<&dyn Operators> {
        self.inner.operators()
    }
}
