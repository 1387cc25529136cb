//! A Redis that will not serve for a while: the error says why, it is there in time, and all works again without a restart.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests may say what they expect, too

use std::time::{Duration, Instant};

use tidegate::{AcquireError, Concurrency, Job, StoreError, Valve, contract::Cause};
use tidegate_fleet::servers::redis::{Cluster, Options, Redis};
use tidegate_redis::RedisStore;
use tokio::time::sleep;

/// How long a call may wait for the store here, by default.
const OP_TIMEOUT: Duration = Duration::from_secs(1);

/// What a machine that is busy with other tests adds.
const SLACK: Duration = Duration::from_millis(500);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn valve(url: &str) -> Valve {
    let builder = Valve::builder("provider").concurrency(Concurrency::Global(50)).lease_ttl(ms(5_000));
    builder.build(RedisStore::lazy(url).unwrap()).unwrap()
}

/// One try: none where it was admitted, else the cause with what was said. It is over in time.
async fn fault(valve: &Valve) -> Option<(Cause, String)> {
    let start = Instant::now();
    let tried = valve.try_acquire(Job::new()).await;
    assert!(start.elapsed() < OP_TIMEOUT + SLACK, "a try took {:?}", start.elapsed());
    match tried {
        Ok(_) => None,
        Err(AcquireError::Unavailable { source: StoreError::Unavailable { cause, detail, .. }, .. }) => {
            Some((cause, detail))
        }
        Err(other) => panic!("{other:?}"),
    }
}

/// Tries until there is a fault of this cause with these words. Others may come before it, while things break.
async fn until_refused(valve: &Valve, cause: Cause, words: &str) {
    let start = Instant::now();
    let mut seen = Vec::new();
    loop {
        let fault = fault(valve).await;
        if fault.as_ref().is_some_and(|(is, said)| *is == cause && said.contains(words)) {
            return;
        }
        seen.extend(fault);
        assert!(start.elapsed() < ms(8_000), "{cause:?} with {words:?} was never said, but {seen:?}");
        sleep(ms(10)).await;
    }
}

/// Tries until it is admitted, by the same valve over the same store.
async fn until_healed(valve: &Valve) -> Duration {
    let start = Instant::now();
    while let Some(fault) = fault(valve).await {
        assert!(start.elapsed() < ms(6_000), "it does not heal: {fault:?}");
        sleep(ms(10)).await;
    }
    start.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn un_3_a_read_only_server_is_told_and_healed() {
    let server = Redis::standalone(&Options::new()).unwrap();
    let valve = valve(&server.url());
    assert_eq!(fault(&valve).await, None);
    for _ in 0..2 {
        server.command(&["REPLICAOF", "127.0.0.1", "1"]).unwrap();
        until_refused(&valve, Cause::Refused, "replica").await;
        server.command(&["REPLICAOF", "NO", "ONE"]).unwrap();
        println!("healed after {:?}", until_healed(&valve).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn un_1_a_busy_server_is_told_in_time_and_healed() {
    let server = Redis::standalone(&Options::new().set("lua-time-limit", "50")).unwrap();
    let valve = valve(&server.url());
    assert_eq!(fault(&valve).await, None);
    let mut connection = server.connection().unwrap();
    let spinning = std::thread::spawn(move || {
        let script = "while true do end";
        redis::cmd("EVAL").arg(script).arg(0).exec(&mut connection).unwrap_err()
    });
    until_refused(&valve, Cause::Refused, "SCRIPT KILL").await;
    // It is an operator's to end, not ours.
    assert!(!spinning.is_finished());
    server.command(&["SCRIPT", "KILL"]).unwrap();
    spinning.join().unwrap();
    println!("healed after {:?}", until_healed(&valve).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn un_3_a_full_server_is_told_and_healed() {
    let server = Redis::standalone(&Options::new().set("maxmemory-policy", "noeviction")).unwrap();
    let valve = valve(&server.url());
    assert_eq!(fault(&valve).await, None);
    server.config_set("maxmemory", "1").unwrap();
    until_refused(&valve, Cause::Refused, "maxmemory").await;
    server.config_set("maxmemory", "0").unwrap();
    println!("healed after {:?}", until_healed(&valve).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn un_3_a_server_that_reads_its_data_set_is_told_and_healed() {
    // A key takes 200 us to be read, so that reading takes some seconds.
    let options = Options::new().set("appendonly", "yes").set("appendfsync", "no");
    let mut server = Redis::standalone(&options.set("key-load-delay", "200")).unwrap();
    let valve = valve(&server.url());
    assert_eq!(fault(&valve).await, None);
    {
        let mut connection = server.connection().unwrap();
        let mut many = redis::pipe();
        for number in 0..10_000 {
            many.cmd("SET").arg(format!("key {number}")).arg(1).ignore();
        }
        many.exec(&mut connection).unwrap();
    }
    let restarted = std::thread::spawn(move || {
        server.restart().unwrap();
        server
    });
    until_refused(&valve, Cause::Refused, "reads its data set").await;
    assert!(!restarted.is_finished());
    let _server = restarted.join().unwrap();
    println!("healed after {:?}", until_healed(&valve).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn un_1_a_slot_that_is_half_moved_is_told_in_time_and_healed() {
    let cluster = Cluster::start(3).unwrap();
    let valve = valve(&cluster.url());
    assert_eq!(fault(&valve).await, None);
    let slot = cluster.slot_of("{provider}").unwrap();
    for _ in 0..2 {
        let from = cluster.owner_of(slot).unwrap();
        let moving = cluster.begin_move(slot, from, (from + 1) % 3).unwrap();
        assert_eq!(cluster.move_keys(moving, 1).unwrap(), 1);
        // The id's own key is on one side, and the last answer to this process on the other.
        until_refused(&valve, Cause::Migrating, "TRYAGAIN").await;
        while cluster.move_keys(moving, 1).unwrap() > 0 {}
        // All is on the other side, which serves whoever asks in the words for it.
        println!("served on the way after {:?}", until_healed(&valve).await);
        cluster.end_move(moving).unwrap();
        println!("served after the move after {:?}", until_healed(&valve).await);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn un_3_a_slot_that_has_moved_is_followed_by_the_call_that_finds_it_gone() {
    let cluster = Cluster::start(3).unwrap();
    let valve = valve(&cluster.url());
    assert_eq!(fault(&valve).await, None);
    let slot = cluster.slot_of("{provider}").unwrap();
    for _ in 0..3 {
        let from = cluster.owner_of(slot).unwrap();
        cluster.move_slot(slot, from, (from + 1) % 3).unwrap();
        assert_eq!(fault(&valve).await, None, "MOVED was seen by a caller");
    }
}
