//! One run, from the first call to the last lease that is given back.

use std::{
    cell::{Cell, RefCell},
    future::Future,
    ops::RangeInclusive,
    pin::pin,
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use fastrand::Rng;
use tidegate::{AcquireError, AdaptiveSemaphore, BuildError, Id, MemoryStore, Operators, StoreError};

use crate::{
    Report, SimulationBuilder,
    audit::Audited,
    builder::{Bound, ID},
    fleet::{Fleet, Worker},
    log::Log,
    provider::{Behaviour, Provider},
    report::Seen,
    timeline::{Timeline, VirtualClock},
};

/// A simulation that can be run: the same each time.
#[derive(Clone, Debug)]
pub struct Simulation {
    pub(crate) processes: usize,
    pub(crate) workers: usize,
    pub(crate) duration: Duration,
    pub(crate) seed: u64,
    pub(crate) patience: Duration,
    pub(crate) think_time: RangeInclusive<Duration>,
    pub(crate) behaviour: Behaviour,
    pub(crate) bound: Bound,
}

/// A run that did not come to its end: a fault of the library or of the simulator, never of the options.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SimulationError {
    /// An acquire failed for another reason than want of room.
    #[error("a worker could not go on")]
    Acquire(#[from] AcquireError),
    /// A semaphore could not be built.
    #[error("a process has no semaphore")]
    Build(#[from] BuildError),
    /// The store did not say what it holds.
    #[error("the store did not say what it holds")]
    Store(#[from] StoreError),
    /// Somebody waits for what never comes.
    #[error("at {at:?} nothing was left to happen, and {working} workers had not ended")]
    Stalled {
        /// When, from the start.
        at: Duration,
        /// How many workers wait.
        working: usize,
    },
}

impl Simulation {
    /// A simulation against a provider that takes `ceiling` calls at once.
    pub fn builder(ceiling: u32) -> SimulationBuilder {
        SimulationBuilder::new(ceiling)
    }

    /// Runs it, on this thread.
    ///
    /// # Errors
    /// [`SimulationError`] for a run that did not come to its end.
    pub fn run(&self) -> Result<Report, SimulationError> {
        let _chance = Chance::seed(self.seed);
        let mut timeline = Timeline::new();
        let clock = timeline.clock();
        let store = Audited::new(MemoryStore::with_clock(clock.clone()));
        let semaphores = self.semaphores(&clock, &store)?;
        let fleet = self.fleet(&clock);
        let mut seeds = Rng::with_seed(self.seed);
        for number in 0..self.workers {
            let Some(semaphore) = semaphores.get(number % self.processes).cloned() else { continue };
            let worker = Worker { fleet: Rc::clone(&fleet), semaphore, number, rng: seeds.fork() };
            timeline.spawn(worker.run());
        }
        timeline.run_until(VirtualClock::moment(self.duration));
        let provider_max_in_flight = fleet.provider.max_in_flight();
        for semaphore in semaphores {
            timeline.spawn(async move { semaphore.close().await });
        }
        let stalled = |_| SimulationError::Stalled { at: clock.elapsed(), working: fleet.working.get() };
        timeline.run_while(|| fleet.working.get() > 0).map_err(stalled)?;
        // The last slots may rest still.
        timeline.run_until(VirtualClock::moment(clock.elapsed() + self.bound.longest_rest()));
        if let Some(error) = fleet.broken.borrow_mut().take() {
            return Err(error.into());
        }
        let leases_left = leases_left(store.store())?;
        let book = store.book();
        let seen = Seen {
            log: &fleet.log.borrow(),
            book: &book,
            profile: &self.behaviour.profile,
            duration: self.duration,
            provider_max_in_flight,
            leases_left,
        };
        Ok(Report::new(&seen))
    }

    /// One for each process.
    fn semaphores(
        &self,
        clock: &VirtualClock,
        store: &Audited,
    ) -> Result<Vec<AdaptiveSemaphore>, BuildError> {
        (0..self.processes)
            .map(|process| {
                let semaphore = self.bound.semaphore().owner(format!("process {process}"));
                semaphore.clock(clock.clone()).build(store.clone())
            })
            .collect()
    }

    fn fleet(&self, clock: &VirtualClock) -> Rc<Fleet> {
        let log = Log::new(self.duration, &self.behaviour.profile, self.workers);
        Rc::new(Fleet {
            clock: clock.clone(),
            provider: Provider::new(clock.clone(), self.behaviour.clone(), self.seed),
            log: RefCell::new(log),
            patience: self.patience,
            think_time: self.think_time.clone(),
            end: self.duration,
            working: Cell::new(self.workers),
            broken: RefCell::default(),
        })
    }
}

/// How many leases the store still holds.
fn leases_left(store: &MemoryStore) -> Result<u32, StoreError> {
    let id = Id::new(ID)?;
    let snapshot = pin!(store.snapshot(&id));
    match Future::poll(snapshot, &mut Context::from_waker(Waker::noop())) {
        Poll::Ready(reply) => Ok(reply?.body.map_or(0, |snapshot| snapshot.held)),
        // A store in this process answers at once.
        Poll::Pending => Ok(0),
    }
}

/// What the primitives draw their jitter from is this thread's generator: seeded for a run, and afterwards as it was.
struct Chance {
    before: u64,
}

impl Chance {
    fn seed(seed: u64) -> Self {
        let before = fastrand::get_seed();
        fastrand::seed(seed);
        Self { before }
    }
}

impl Drop for Chance {
    fn drop(&mut self) {
        fastrand::seed(self.before);
    }
}
