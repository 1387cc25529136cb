//! A store of one's own, put through the kit: `cargo run --example own_store`.

use std::{
    future::{Ready, ready},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tidegate_core::{
    AcquireReply, AcquireRequest, Answer, Capabilities, Capability, HandOver, Id, Member, Model, PauseReply,
    Release, Renewal, Renewed, Restore, Store, Token, time::Moment,
};
use tidegate_testkit::{
    Kit, Subject,
    clock::SettableClock,
    model_test::{self, Options},
};

/// Keeps all in memory, has leases and limits that move, and goes by a clock that its test can set.
#[derive(Default)]
struct OwnStore {
    model: Mutex<Model>,
    clock: SettableClock,
}

fn main() {
    // How a fresh store is made, and what a test can do to it besides.
    let factory = || {
        let store = Arc::new(OwnStore::default());
        let clock = store.clock.clone();
        Subject::shared(store.clone()).clock(&clock).wipe(move || store.step(|model, _| model.wipe()))
    };

    // Every rule of the contract. In a test it ends with `.assert()`.
    let report = Kit::new(factory).run_blocking();
    println!("{report}");

    // 2,000 random operations, on this store and on the model.
    match model_test::run_blocking(&factory, &Options::seeded(7)) {
        Ok(stats) => println!("the model agrees: {stats:?}"),
        Err(difference) => println!("{difference}"),
    }
}

impl OwnStore {
    fn step<T>(&self, step: impl FnOnce(&mut Model, Moment) -> T) -> Ready<T> {
        let mut model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        ready(step(&mut model, self.clock.now()))
    }
}

impl Store for OwnStore {
    fn capabilities(&self) -> Capabilities {
        [Capability::Leases, Capability::Adaptive, Capability::Epoch].into_iter().collect()
    }

    fn acquire<'a>(&'a self, member: &'a Member, request: &'a AcquireRequest) -> Answer<'a, AcquireReply> {
        Box::pin(self.step(|model, now| model.id(&member.id).acquire(now, member, request)))
    }

    fn pause<'a>(&'a self, id: &'a Id, length: Duration) -> Answer<'a, PauseReply> {
        Box::pin(self.step(|model, now| model.id(id).pause(now, length)))
    }

    fn resume<'a>(&'a self, id: &'a Id) -> Answer<'a, bool> {
        Box::pin(self.step(|model, now| model.id(id).resume(now)))
    }

    fn release<'a>(&'a self, member: &'a Member, releases: &'a [Release]) -> Answer<'a, ()> {
        Box::pin(self.step(|model, now| model.id(&member.id).release(now, releases)))
    }

    fn renew<'a>(
        &'a self,
        member: &'a Member,
        restore: Option<&'a Restore>,
        renewals: &'a [Renewal],
    ) -> Answer<'a, Renewed> {
        Box::pin(self.step(|model, now| model.id(&member.id).renew(now, member, restore, renewals)))
    }

    fn hand_over<'a>(&'a self, member: &'a Member, hand_overs: &'a [HandOver]) -> Answer<'a, Vec<Token>> {
        Box::pin(self.step(|model, now| model.id(&member.id).hand_over(now, member, hand_overs)))
    }
}
