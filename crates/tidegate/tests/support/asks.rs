//! A store at the end of a wire that notes when it is asked for how many jobs.

// Each test file uses a part of this.
#![allow(dead_code)]

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use tidegate::{
    Capabilities, Id, Operators, Store, Token,
    clock::{Clock, TokioClock},
    contract::{
        AcquireReply, AcquireRequest, Answer, DriverId, Exchange, ExchangeReply, HandOver, Listener, Member,
        Observation, PauseReply, Release, Renewal, Renewed, Restore, ScopedReply, ScopedRequest, Settled,
        Settlement, Subscription, time::Moment,
    },
};

use super::fleet::{Fleet, Remote, Wire};

/// One process's way to the store.
#[derive(Clone)]
pub(crate) struct Asks {
    pub(crate) remote: Remote,
    clock: TokioClock,
    noted: Arc<Mutex<Vec<Ask>>>,
}

/// A question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Ask {
    pub(crate) at: Moment,
    pub(crate) jobs: usize,
}

impl Asks {
    pub(crate) fn new(fleet: &Fleet, wire: Wire) -> Self {
        Self::over(Remote::new(fleet, wire), fleet)
    }

    pub(crate) fn over(remote: Remote, fleet: &Fleet) -> Self {
        Self { remote, clock: fleet.clock, noted: Arc::default() }
    }

    /// The questions since this was last asked.
    pub(crate) fn take(&self) -> Vec<Ask> {
        std::mem::take(&mut *self.noted.lock().expect("no panic"))
    }

    /// How many jobs were asked for since this was last asked.
    pub(crate) fn jobs(&self) -> usize {
        self.take().iter().map(|ask| ask.jobs).sum()
    }

    fn note(&self, jobs: usize) {
        if jobs > 0 {
            self.noted.lock().expect("no panic").push(Ask { at: self.clock.now(), jobs });
        }
    }
}

impl Store for Asks {
    fn capabilities(&self) -> Capabilities {
        self.remote.capabilities()
    }

    fn acquire<'a>(&'a self, member: &'a Member, request: &'a AcquireRequest) -> Answer<'a, AcquireReply> {
        self.note(request.jobs.len());
        self.remote.acquire(member, request)
    }

    fn pause<'a>(&'a self, id: &'a Id, length: Duration) -> Answer<'a, PauseReply> {
        self.remote.pause(id, length)
    }

    fn resume<'a>(&'a self, id: &'a Id) -> Answer<'a, bool> {
        self.remote.resume(id)
    }

    fn acquire_scoped<'a>(
        &'a self,
        member: &'a Member,
        request: &'a ScopedRequest,
    ) -> Answer<'a, ScopedReply> {
        self.note(request.jobs.len());
        self.remote.acquire_scoped(member, request)
    }

    fn release<'a>(&'a self, member: &'a Member, releases: &'a [Release]) -> Answer<'a, ()> {
        self.remote.release(member, releases)
    }

    fn renew<'a>(
        &'a self,
        member: &'a Member,
        restore: Option<&'a Restore>,
        renewals: &'a [Renewal],
    ) -> Answer<'a, Renewed> {
        self.remote.renew(member, restore, renewals)
    }

    fn hand_over<'a>(&'a self, member: &'a Member, hand_overs: &'a [HandOver]) -> Answer<'a, Vec<Token>> {
        self.remote.hand_over(member, hand_overs)
    }

    fn settle<'a>(&'a self, member: &'a Member, settlements: &'a [Settlement]) -> Answer<'a, Vec<Settled>> {
        self.remote.settle(member, settlements)
    }

    fn observe<'a>(&'a self, member: &'a Member, observations: &'a [Observation]) -> Answer<'a, Vec<bool>> {
        self.remote.observe(member, observations)
    }

    fn exchange<'a>(&'a self, member: &'a Member, exchange: &'a Exchange) -> Answer<'a, ExchangeReply> {
        self.note(exchange.acquires.iter().map(tidegate::contract::Acquire::jobs).sum());
        self.remote.exchange(member, exchange)
    }

    fn subscribe(&self, id: &Id, driver: DriverId, listener: Arc<dyn Listener>) -> Option<Subscription> {
        self.remote.subscribe(id, driver, listener)
    }

    fn operators(&self) -> Option<&dyn Operators> {
        self.remote.operators()
    }
}
