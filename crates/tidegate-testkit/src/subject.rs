//! How a store is handed over to its tests.

use std::{
    fmt,
    future::{Future, IntoFuture, Ready, ready},
    sync::Arc,
};

use tidegate_core::{Id, Store, time::Moment};

use crate::{
    clock::SettableClock,
    task::{Task, on_threads},
};

/// Makes a fresh, empty store, as often as it is asked to.
///
/// Every closure that returns a [`Subject`], or a future of one, is a factory. One that cannot open its store panics:
/// that is reported with the trial that asked.
pub trait Factory: Send + Sync {
    /// Opens a store that holds nothing.
    fn open(&self) -> Task<'_, Subject>;
}

impl<F, T> Factory for F
where
    F: Fn() -> T + Send + Sync,
    T: IntoFuture<Output = Subject>,
    T::IntoFuture: Send,
{
    fn open(&self) -> Task<'_, Subject> {
        // Made when it is first polled, so that a factory that panics does so where that is caught.
        Box::pin(async move { self().await })
    }
}

type SetClock = dyn Fn(Moment) -> Task<'static> + Send + Sync;
type Wipe = dyn Fn() -> Task<'static> + Send + Sync;
type PlantLayout = dyn Fn(Id, u32) -> Task<'static> + Send + Sync;
type Corrupt = dyn Fn(Id) -> Task<'static> + Send + Sync;
type RunAll = dyn Fn(Vec<Task<'static>>) -> Task<'static> + Send + Sync;

/// A store under test, with what its test can do to it besides.
///
/// Only the store is required. What needs a hook that is not given is skipped, and the report says so. A hook that
/// fails panics, which fails the trial.
#[derive(Clone)]
#[must_use]
pub struct Subject {
    store: Arc<dyn Store>,
    peer: Arc<dyn Store>,
    set_clock: Option<Arc<SetClock>>,
    wipe: Option<Arc<Wipe>>,
    plant_layout: Option<Arc<PlantLayout>>,
    corrupt: Option<Arc<Corrupt>>,
    run_all: Arc<RunAll>,
}

impl Subject {
    /// A store without any hook.
    pub fn new(store: impl Store) -> Self {
        Self::shared(Arc::new(store))
    }

    /// As [`new`](Self::new), for a store that is shared already.
    pub fn shared(store: Arc<dyn Store>) -> Self {
        Self {
            peer: Arc::clone(&store),
            store,
            set_clock: None,
            wipe: None,
            plant_layout: None,
            corrupt: None,
            run_all: Arc::new(on_threads),
        }
    }

    /// A second handle to the same state, as another process has one; the same handle unless told.
    pub fn peer(mut self, peer: impl Store) -> Self {
        self.peer = Arc::new(peer);
        self
    }

    /// The store goes by this clock.
    pub fn clock(self, clock: &SettableClock) -> Self {
        let clock = clock.clone();
        self.set_clock(move |now| {
            clock.set(now);
            ready(())
        })
    }

    /// How the store's clock is set, forwards or backwards. Between two calls it must stand still.
    pub fn set_clock<F, T>(mut self, set_clock: F) -> Self
    where
        F: Fn(Moment) -> T + Send + Sync + 'static,
        T: Future<Output = ()> + Send + 'static,
    {
        self.set_clock = Some(Arc::new(move |now| Box::pin(set_clock(now))));
        self
    }

    /// How the store is made to lose all that it keeps, as by a flush; subscriptions may live on.
    pub fn wipe<F, T>(mut self, wipe: F) -> Self
    where
        F: Fn() -> T + Send + Sync + 'static,
        T: Future<Output = ()> + Send + 'static,
    {
        self.wipe = Some(Arc::new(move || Box::pin(wipe())));
        self
    }

    /// How the stored state of an id is marked as written in another layout.
    pub fn plant_layout<F, T>(mut self, plant: F) -> Self
    where
        F: Fn(Id, u32) -> T + Send + Sync + 'static,
        T: Future<Output = ()> + Send + 'static,
    {
        self.plant_layout = Some(Arc::new(move |id, layout| Box::pin(plant(id, layout))));
        self
    }

    /// How the stored state of an id is made to make no sense.
    pub fn corrupt<F, T>(mut self, corrupt: F) -> Self
    where
        F: Fn(Id) -> T + Send + Sync + 'static,
        T: Future<Output = ()> + Send + 'static,
    {
        self.corrupt = Some(Arc::new(move |id| Box::pin(corrupt(id))));
        self
    }

    /// How tasks are run at the same time; each on a thread of its own unless told. A store whose futures need a runtime
    /// spawns them there. Done when all tasks are.
    pub fn run_all<F, T>(mut self, run_all: F) -> Self
    where
        F: Fn(Vec<Task<'static>>) -> T + Send + Sync + 'static,
        T: Future<Output = ()> + Send + 'static,
    {
        self.run_all = Arc::new(move |tasks| Box::pin(run_all(tasks)));
        self
    }

    /// Whether there is this hook.
    pub fn has(&self, hook: Hook) -> bool {
        match hook {
            Hook::Clock => self.set_clock.is_some(),
            Hook::Wipe => self.wipe.is_some(),
            Hook::Layout => self.plant_layout.is_some(),
            Hook::Corrupt => self.corrupt.is_some(),
        }
    }

    pub(crate) fn store(&self) -> &Arc<dyn Store> {
        &self.store
    }

    pub(crate) fn other_handle(&self) -> &Arc<dyn Store> {
        &self.peer
    }

    pub(crate) async fn set_clock_to(&self, now: Moment) {
        if let Some(set_clock) = &self.set_clock {
            set_clock(now).await;
        }
    }

    pub(crate) async fn lose_all(&self) {
        if let Some(wipe) = &self.wipe {
            wipe().await;
        }
    }

    pub(crate) async fn plant(&self, id: &Id, layout: u32) {
        if let Some(plant) = &self.plant_layout {
            plant(id.clone(), layout).await;
        }
    }

    pub(crate) async fn damage(&self, id: &Id) {
        if let Some(corrupt) = &self.corrupt {
            corrupt(id.clone()).await;
        }
    }

    pub(crate) async fn at_once(&self, tasks: Vec<Task<'static>>) {
        (self.run_all)(tasks).await;
    }
}

impl IntoFuture for Subject {
    type Output = Self;
    type IntoFuture = Ready<Self>;

    /// So that a factory may return one as it is.
    fn into_future(self) -> Ready<Self> {
        ready(self)
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hooks: Vec<&str> =
            Hook::ALL.into_iter().filter(|hook| self.has(*hook)).map(Hook::as_str).collect();
        f.debug_struct("Subject")
            .field("capabilities", &self.store.capabilities())
            .field("hooks", &hooks)
            .finish_non_exhaustive()
    }
}

/// Something that a test can do to a store, from outside of its contract.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Hook {
    /// Set its clock.
    Clock,
    /// Make it lose all that it keeps.
    Wipe,
    /// Mark stored state as of another layout.
    Layout,
    /// Damage stored state.
    Corrupt,
}

impl Hook {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Clock, Self::Wipe, Self::Layout, Self::Corrupt];

    /// What it is called in a report.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Clock => "clock",
            Self::Wipe => "wipe",
            Self::Layout => "plant_layout",
            Self::Corrupt => "corrupt",
        }
    }
}
