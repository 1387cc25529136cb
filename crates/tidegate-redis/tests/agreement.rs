//! The store does as the model does: the conformance kit and the random model test, on one server, on a cluster, and as
//! a user who may do no more than is documented.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use redis::{Cmd, FromRedisValue};
use tidegate_core::{Id, time::Moment};
use tidegate_fleet::servers::redis::{Cluster, Options as Settings, Redis};
use tidegate_redis::RedisStore;
use tidegate_testkit::{
    Kit, Subject,
    model_test::{Options, run_blocking},
};

/// The servers of a store, and how they are reached: by whoever runs the tests, and by the store.
enum Servers {
    One(Redis, String),
    Shards(Cluster),
}

impl Servers {
    fn one() -> Self {
        let server = Redis::standalone(&Settings::new()).unwrap();
        let url = server.url();
        Self::One(server, url)
    }

    fn url(&self) -> String {
        match self {
            Self::One(_, url) => url.clone(),
            Self::Shards(cluster) => cluster.url(),
        }
    }

    fn all(&self) -> &[Redis] {
        match self {
            Self::One(server, _) => std::slice::from_ref(server),
            Self::Shards(cluster) => cluster.nodes(),
        }
    }

    /// Asks the server that has the key of a command.
    fn ask<T: FromRedisValue>(&self, command: &Cmd) -> T {
        for server in self.all() {
            match command.query(&mut server.connection().unwrap()) {
                Err(error) if error.code() == Some("MOVED") => {}
                answer => return answer.unwrap(),
            }
        }
        panic!("nobody has the key")
    }

    fn wipe(&self, prefix: &str) {
        for server in self.all() {
            let mut connection = server.connection().unwrap();
            let keys: Vec<Vec<u8>> =
                redis::cmd("KEYS").arg(format!("{prefix}:*")).query(&mut connection).unwrap();
            for key in keys {
                redis::cmd("DEL").arg(key).exec(&mut connection).unwrap();
            }
        }
    }

    /// How many scripts each server has run.
    fn runs(&self) -> Vec<u64> {
        let calls = |server: &Redis| -> u64 {
            let stats: String =
                redis::cmd("INFO").arg("commandstats").query(&mut server.connection().unwrap()).unwrap();
            let calls = |name: &str| -> u64 {
                let line = stats.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":calls="));
                line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
            };
            calls("cmdstat_fcall") + calls("cmdstat_evalsha")
        };
        self.all().iter().map(calls).collect()
    }
}

/// A store that holds nothing, on a clock that is set.
fn subject(servers: &Arc<Servers>) -> Subject {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    // The prefix that the documented user may use, and one's own behind it.
    let prefix = format!("tidegate:t{}", NUMBER.fetch_add(1, Ordering::Relaxed));
    let clock = Arc::new(AtomicU64::new(1_700_000_000_000_000));
    let open = || {
        let reads = Arc::clone(&clock);
        RedisStore::builder(servers.url())
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
    let (wiped, planted, damaged) = (Arc::clone(servers), Arc::clone(servers), Arc::clone(servers));
    Subject::new(open())
        .peer(open())
        .set_clock(move |now: Moment| {
            clock.store(now.micros(), Ordering::SeqCst);
            std::future::ready(())
        })
        .wipe(move || {
            wiped.wipe(&prefix);
            std::future::ready(())
        })
        .plant_layout(move |id, layout| {
            for key in [main(&id), main(&id) + ":c"] {
                let _: u32 = planted.ask(redis::cmd("HSET").arg(key).arg("v").arg(layout));
            }
            std::future::ready(())
        })
        .corrupt(move |id| {
            for key in [corrupted(&id), corrupted(&id) + ":c"] {
                if damaged.ask(redis::cmd("EXISTS").arg(&key)) {
                    let _: u32 = damaged.ask(redis::cmd("HSET").arg(key).arg("s").arg("nonsense"));
                }
            }
            std::future::ready(())
        })
}

fn run_kit(servers: &Arc<Servers>) {
    let servers = Arc::clone(servers);
    let report = Kit::new(move || subject(&servers)).run_blocking();
    println!("{report}");
    report.assert();
}

/// Does random operations, as many as `TIDEGATE_OPERATIONS` says.
fn run_model_test(servers: &Arc<Servers>, unless_told: usize) {
    let operations = std::env::var("TIDEGATE_OPERATIONS").map_or(unless_told, |count| count.parse().unwrap());
    let each = operations.min(3_000);
    for seed in 0..operations.div_ceil(each) {
        let options = Options::seeded(seed as u64).operations(each);
        match run_blocking(&|| subject(servers), &options) {
            Ok(stats) => assert_eq!(stats.operations, each),
            Err(difference) => panic!("seed {seed}: {difference}"),
        }
    }
}

#[test]
fn st_16_the_store_passes_the_conformance_kit() {
    run_kit(&Arc::new(Servers::one()));
}

#[test]
fn st_16_the_store_passes_the_conformance_kit_on_a_cluster() {
    let servers = Arc::new(Servers::Shards(Cluster::start(3).unwrap()));
    run_kit(&servers);
    let runs = servers.runs();
    assert!(runs.iter().all(|runs| *runs > 10), "every shard had its part: {runs:?}");
}

#[test]
fn st_16_the_store_does_as_the_model() {
    run_model_test(&Arc::new(Servers::one()), 6_000);
}

#[test]
fn st_16_the_store_does_as_the_model_on_a_cluster() {
    let servers = Arc::new(Servers::Shards(Cluster::start(3).unwrap()));
    run_model_test(&servers, 3_000);
    let runs = servers.runs();
    assert!(runs.iter().filter(|runs| **runs > 100).count() > 1, "ids lie on several shards: {runs:?}");
}

/// A server whose users may not call functions, as one before Redis 7.0: scripts do the same there.
fn without_functions() -> Arc<Servers> {
    let server = Redis::standalone(&Settings::new()).unwrap();
    let user = "ACL SETUSER tidegate on >a-secret ~* &* +@all -fcall -function";
    server.command(&user.split(' ').collect::<Vec<_>>()).unwrap();
    let url = format!("redis://tidegate:a-secret@{}", server.addr());
    Arc::new(Servers::One(server, url))
}

#[test]
fn st_16_the_store_passes_the_conformance_kit_without_functions() {
    run_kit(&without_functions());
}

#[test]
fn st_16_the_store_does_as_the_model_without_functions() {
    run_model_test(&without_functions(), 3_000);
}

/// The line of the documentation, word by word.
fn documented_user() -> Vec<&'static str> {
    let lines = include_str!("../src/connect.rs").lines();
    let mut lines = lines.filter_map(|line| line.strip_prefix("/// ")).map(str::trim);
    let first =
        lines.find(|line| line.starts_with("ACL SETUSER")).expect("the documentation has a line for it");
    let rest = lines.take_while(|line| !line.starts_with("```"));
    std::iter::once(first).chain(rest).flat_map(str::split_whitespace).filter(|word| *word != "\\").collect()
}

#[test]
fn a_user_with_the_documented_commands_can_do_all() {
    let server = Redis::standalone(&Settings::new()).unwrap();
    let line = documented_user();
    assert!(line.len() > 20, "{line:?}");
    server.command(&line).unwrap();
    let url = format!("redis://tidegate:a-secret@{}", server.addr());
    let servers = Arc::new(Servers::One(server, url));
    run_kit(&servers);
    let server = &servers.all()[0];
    let log: Vec<redis::Value> =
        redis::cmd("ACL").arg("LOG").query(&mut server.connection().unwrap()).unwrap();
    assert!(log.is_empty(), "the server refused something: {log:?}");
    // With a word less it cannot, so the list is what lets it.
    for word in ["-hset", "+hset -spublish", "+spublish -pexpire"] {
        let line: Vec<&str> = ["ACL", "SETUSER", "tidegate"].into_iter().chain(word.split(' ')).collect();
        server.command(&line).unwrap();
        let fresh = Arc::clone(&servers);
        assert!(!Kit::new(move || subject(&fresh)).filter("ST-13").run_blocking().is_ok(), "{word}");
    }
}
