//! The workers: each asks for a lease, calls the provider under it, and asks again.

use std::{
    cell::{Cell, RefCell},
    ops::RangeInclusive,
    rc::Rc,
    time::Duration,
};

use fastrand::Rng;
use tidegate::{Acquire, AcquireError, AdaptiveSemaphore, Outcome};

use crate::{
    log::Log,
    provider::{Answer, Provider, within},
    timeline::VirtualClock,
};

/// What the workers share.
pub(crate) struct Fleet {
    pub(crate) clock: VirtualClock,
    pub(crate) provider: Provider,
    pub(crate) log: RefCell<Log>,
    pub(crate) patience: Duration,
    pub(crate) think_time: RangeInclusive<Duration>,
    pub(crate) end: Duration,
    /// Workers that have not ended.
    pub(crate) working: Cell<usize>,
    /// Why a worker could not go on.
    pub(crate) broken: RefCell<Option<AcquireError>>,
}

/// One worker.
pub(crate) struct Worker {
    pub(crate) fleet: Rc<Fleet>,
    pub(crate) semaphore: AdaptiveSemaphore,
    pub(crate) number: usize,
    pub(crate) rng: Rng,
}

impl Worker {
    /// Works until the end of the run; a call that is under way then is finished.
    pub(crate) async fn run(mut self) {
        let fleet = Rc::clone(&self.fleet);
        while fleet.clock.elapsed() < fleet.end {
            match self.call().await {
                Ok(()) => {}
                Err(AcquireError::Timeout { .. }) => fleet.log.borrow_mut().timeouts += 1,
                // Closed at the end of the run.
                Err(AcquireError::Closed { .. }) => break,
                Err(error) => {
                    fleet.broken.borrow_mut().get_or_insert(error);
                    break;
                }
            }
            let pause = within(&mut self.rng, &fleet.think_time);
            if !pause.is_zero() {
                fleet.clock.wait(pause).await;
            }
        }
        fleet.working.set(fleet.working.get() - 1);
    }

    /// One call under a lease.
    async fn call(&self) -> Result<(), AcquireError> {
        let fleet = &*self.fleet;
        let asked = fleet.clock.elapsed();
        let lease = self.semaphore.acquire(Acquire::within(fleet.patience)).await?;
        let waited = fleet.clock.elapsed().saturating_sub(asked);
        let answer = fleet.provider.call().await;
        lease.release(match answer {
            Answer::Ok { .. } => Outcome::Success,
            Answer::Throttled => Outcome::Throttled,
            Answer::Failed => Outcome::Failure,
        });
        fleet.log.borrow_mut().answered(self.number, waited, answer, fleet.clock.elapsed());
        Ok(())
    }
}
