//! The store does as the model does: the conformance kit and the random model test, on one server.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

#[path = "support/server.rs"]
mod server;

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use redis::Connection;
use server::Server;
use tidegate_core::{Id, time::Moment};
use tidegate_redis::RedisStore;
use tidegate_testkit::{
    Kit, Subject,
    model_test::{Options, run_blocking},
};

fn keys(connection: &mut Connection, prefix: &str) -> Vec<Vec<u8>> {
    redis::cmd("KEYS").arg(format!("{prefix}:*")).query(connection).unwrap()
}

/// A store that holds nothing, on a clock that is set.
fn subject(server: &Arc<Server>) -> Subject {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let prefix = format!("t{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let clock = Arc::new(AtomicU64::new(1_700_000_000_000_000));
    let open = || {
        let reads = Arc::clone(&clock);
        RedisStore::builder(server.url())
            .prefix(&prefix)
            .test_clock(move || Moment::from_micros(reads.load(Ordering::SeqCst)))
            .lazy()
            .unwrap()
    };
    let main = {
        let prefix = prefix.clone();
        move |id: &Id| format!("{prefix}:{{{id}}}")
    };
    let corrupted = main.clone();
    let (wiped, planted, damaged) = (Arc::clone(server), Arc::clone(server), Arc::clone(server));
    Subject::new(open())
        .peer(open())
        .set_clock(move |now: Moment| {
            clock.store(now.micros(), Ordering::SeqCst);
            std::future::ready(())
        })
        .wipe(move || {
            let mut connection = wiped.connection();
            for key in keys(&mut connection, &prefix) {
                redis::cmd("DEL").arg(key).exec(&mut connection).unwrap();
            }
            std::future::ready(())
        })
        .plant_layout(move |id, layout| {
            redis::cmd("HSET").arg(main(&id)).arg("v").arg(layout).exec(&mut planted.connection()).unwrap();
            std::future::ready(())
        })
        .corrupt(move |id| {
            let key = corrupted(&id);
            redis::cmd("HSET").arg(key).arg("s").arg("nonsense").exec(&mut damaged.connection()).unwrap();
            std::future::ready(())
        })
}

#[test]
fn st_16_the_store_passes_the_conformance_kit() {
    let server = Arc::new(Server::start(&[]));
    let report = Kit::new(move || subject(&server)).run_blocking();
    println!("{report}");
    report.assert();
}

/// `TIDEGATE_OPERATIONS` has it do more.
#[test]
fn st_16_the_store_does_as_the_model() {
    let operations = std::env::var("TIDEGATE_OPERATIONS").map_or(6_000, |count| count.parse().unwrap());
    let server = Arc::new(Server::start(&[]));
    let each = 3_000;
    for seed in 0..(operations / each).max(1) {
        let options = Options::seeded(seed as u64).operations(each);
        match run_blocking(&|| subject(&server), &options) {
            Ok(stats) => assert_eq!(stats.operations, each),
            Err(difference) => panic!("{difference}"),
        }
    }
}
