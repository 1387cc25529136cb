//! A subscriber of `tracing` is the user's code too: it hears what `on_error` does not, and a panic in it changes nothing.
//!
//! Apart from the other tests: what `tracing` remembers of who listens is shared by all threads of a process.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::{
    fmt::Debug,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tidegate::{Outcome, Trouble};

#[path = "support/fleet.rs"]
mod fleet;

use fleet::{Fleet, Troubles, id};

/// One of these tests at a time.
fn alone() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn panics(troubles: &Troubles) -> Vec<(&'static str, String)> {
    let panicked = |trouble| match trouble {
        Trouble::Panicked { id: of, place, message } => {
            assert_eq!(of, id());
            Some((place, message))
        }
        _ => None,
    };
    troubles.all().into_iter().filter_map(panicked).collect()
}

/// Keeps the events at or above `WARN`, or panics at them.
#[derive(Clone, Default)]
struct Loud {
    seen: Arc<Mutex<Vec<String>>>,
    explodes: bool,
}

impl tracing::field::Visit for &Loud {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn Debug) {
        self.seen.lock().unwrap().last_mut().unwrap().push_str(&format!(" {}={value:?}", field.name()));
    }
}

impl tracing::Subscriber for Loud {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().starts_with("tidegate")
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let level = *event.metadata().level();
        if level <= tracing::Level::WARN {
            self.seen.lock().unwrap().push(level.to_string());
            event.record(&mut &*self);
        }
        assert!(!self.explodes, "a subscriber of its own mind");
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[tokio::test(start_paused = true)]
// Held throughout, by a test that has its thread for itself.
#[allow(clippy::await_holding_lock)]
async fn bi_4_on_error_that_panics_goes_to_tracing() {
    let _turn = alone();
    let (fleet, loud) = (Fleet::new(), Loud::default());
    let _open = tracing::subscriber::set_default(loud.clone());
    let semaphore = fleet
        .builder(16)
        .on_limit_change(|limit| panic!("limit {limit}"))
        .on_error(|trouble| panic!("cannot hear of {}", trouble.code()))
        .build(fleet.store.clone())
        .unwrap();
    semaphore.try_acquire().await.unwrap().release(Outcome::Throttled);
    let lease = semaphore.try_acquire().await.unwrap();
    fleet.evict(lease.token().unwrap());
    lease.lost().await;
    let line = |trouble: &str, of: &str| {
        format!("ERROR message={trouble} code=\"panicked\" place=\"on_error\" panic=\"cannot hear of {of}\"")
    };
    assert_eq!(
        *loud.seen.lock().unwrap(),
        [
            line("provider: on_limit_change panicked: limit 8", "panicked"),
            line("provider: a lease was lost while it was held", "lease_lost"),
        ]
    );
    assert_eq!(semaphore.state().limit, 8);
}

#[tokio::test(start_paused = true)]
// Held throughout, by a test that has its thread for itself.
#[allow(clippy::await_holding_lock)]
async fn bi_4_without_on_error_trouble_goes_to_tracing() {
    let _turn = alone();
    let (fleet, loud) = (Fleet::new(), Loud::default());
    let _open = tracing::subscriber::set_default(loud.clone());
    let semaphore = fleet.process(16);
    let lease = semaphore.try_acquire().await.unwrap();
    let token = lease.token().unwrap();
    fleet.evict(token);
    lease.lost().await;
    assert_eq!(
        *loud.seen.lock().unwrap(),
        [format!(
            "WARN message=provider: a lease was lost while it was held code=\"lease_lost\" \
             source=provider: lease {token} was lost"
        )]
    );
}

#[tokio::test(start_paused = true)]
// Held throughout, by a test that has its thread for itself.
#[allow(clippy::await_holding_lock)]
async fn bi_4_a_subscriber_of_tracing_that_panics_changes_nothing() {
    let _turn = alone();
    for listens in [true, false] {
        let (fleet, troubles) = (Fleet::new(), Troubles::default());
        let loud = Loud { explodes: true, ..Loud::default() };
        let _open = tracing::subscriber::set_default(loud);
        let mut builder = fleet.builder(16);
        if listens {
            builder = builder.on_error(troubles.note());
        }
        let semaphore = builder.build(fleet.store.clone()).unwrap();
        semaphore.try_acquire().await.unwrap().release(Outcome::Throttled);
        let lease = semaphore.try_acquire().await.unwrap();
        fleet.evict(lease.token().unwrap());
        lease.lost().await;
        assert_eq!((semaphore.state().limit, semaphore.state().in_flight), (8, 1));
        if listens {
            let said = panics(&troubles);
            assert!(said.iter().all(|(place, _)| *place == "tracing subscriber"), "{said:?}");
            assert_eq!(said.len(), 2, "the first load and the change");
            assert!(troubles.codes().contains(&"lease_lost"), "what comes after is told");
        }
    }
}
