//! The memory store keeps the contract: it passes the whole conformance kit, and answers as the model does.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::sync::Arc;

use tidegate::{
    MemoryStore,
    clock::{Clock, Pace, Sleep},
    contract::time::Moment,
};
use tidegate_testkit::{Kit, Subject, clock::SettableClock, model_test};

/// The kit's clock as one that a store can be built on.
struct Settable(SettableClock);

impl Clock for Settable {
    fn now(&self) -> Moment {
        self.0.now()
    }

    fn sleep_until(&self, _: Moment) -> Sleep {
        Box::pin(std::future::pending())
    }

    fn pace(&self) -> Pace {
        Pace::Set
    }
}

fn subject() -> Subject {
    let clock = SettableClock::default();
    let store = Arc::new(MemoryStore::with_clock(Settable(clock.clone())));
    let wiped = Arc::clone(&store);
    let planted = Arc::clone(&store);
    Subject::new(MemoryStore::clone(&store))
        .clock(&clock)
        .wipe(move || {
            wiped.wipe();
            std::future::ready(())
        })
        .plant_layout(move |id, layout| {
            planted.plant_layout(&id, layout);
            std::future::ready(())
        })
}

#[test]
fn st_16_the_memory_store_passes_the_kit_on_a_set_clock() {
    let report = Kit::new(subject).run_blocking();
    println!("{report}");
    report.assert();
    let skipped: Vec<_> = report.skipped().filter(|(_, why)| !why.contains("declares")).collect();
    assert_eq!(skipped.len(), 1, "only what needs damaged state: {skipped:?}");
}

#[test]
fn st_16_the_memory_store_passes_the_kit_on_the_machines_clock() {
    Kit::new(|| Subject::new(MemoryStore::new())).run_blocking().assert();
}

#[test]
fn st_16_the_memory_store_answers_as_the_model_does() {
    for seed in [1, 2, 3] {
        let options = model_test::Options::seeded(seed).operations(20_000);
        if let Err(difference) = model_test::run_blocking(&subject, &options) {
            panic!("seed {seed}:\n{difference}");
        }
    }
}
