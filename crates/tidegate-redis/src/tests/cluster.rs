//! Shows that keys of a cluster are found while their slots are moved.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use redis::Value;
use tidegate_core::Cause;

use super::{
    call, cause, counting,
    fixture::{Server, cluster, node_name, until},
    heals, run, scanned, wire,
};
use crate::wire::{Lane, Wire, slot_of};

fn open(nodes: &[Server]) -> Wire {
    // A seed that is gone does no harm.
    wire(&format!("redis+cluster://127.0.0.1:1,127.0.0.1:{}", nodes[1].port))
}

/// Moves a slot, key by key.
pub(super) fn move_slot(from: &Server, to: &Server, others: &[&Server], slot: u16) {
    let slot = slot.to_string();
    to.ask(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &node_name(from)]);
    from.ask(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &node_name(to)]);
    let port = to.port.to_string();
    loop {
        let Value::Array(keys) = from.ask(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]) else { panic!() };
        if keys.is_empty() {
            break;
        }
        for key in keys {
            let key: String = redis::from_redis_value(key).unwrap();
            from.ask(&["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"]);
        }
    }
    for node in [to, from].iter().chain(others) {
        node.ask(&["CLUSTER", "SETSLOT", &slot, "NODE", &node_name(to)]);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_30_keys_are_found_wherever_they_are() {
    let nodes = cluster();
    let wire = open(&nodes);
    for number in 0..100 {
        let key = format!("tidegate:{{id {number} ü}}");
        assert_eq!(call(&wire, &key).await.unwrap(), 1);
        run(&wire, Lane::Renewals, &counting(), &key).await.unwrap();
    }
    for node in &nodes {
        assert!(matches!(node.ask(&["DBSIZE"]), Value::Int(size) if size > 10));
        node.ask(&["SCRIPT", "FLUSH"]);
        node.ask(&["FUNCTION", "FLUSH"]);
    }
    let keys: BTreeSet<Vec<u8>> = scanned(&wire, b"tidegate:*").await.into_iter().collect();
    assert_eq!(keys.len(), 100);
    assert_eq!(call(&wire, "tidegate:{id 1 ü}").await.unwrap(), 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_30_a_slot_is_moved_to_and_fro_under_load() {
    let nodes = cluster();
    let wire = open(&nodes);
    let key = "tidegate:{moved}";
    let slot = slot_of(key.as_bytes());
    let owner = usize::from(slot / 5461).min(2);
    let other = (owner + 1) % 3;
    let bystander = &nodes[(owner + 2) % 3];
    let done = Arc::new(AtomicBool::new(false));
    let mut tasks = Vec::new();
    for task in 0..4 {
        let (wire, done) = (wire.clone(), done.clone());
        tasks.push(tokio::spawn(async move {
            let mut count = 0;
            while !done.load(Ordering::Relaxed) {
                call(&wire, key).await.unwrap_or_else(|error| panic!("{task}: {error}"));
                // A key that is made while its slot is on its way is made where the slot goes.
                call(&wire, &format!("tidegate:{{moved}}{task}{}", count % 20)).await.unwrap();
                count += 1;
                tokio::task::yield_now().await;
            }
            count
        }));
    }
    let mover = wire.clone();
    for round in 0..4 {
        let (from, to) = if round % 2 == 0 { (owner, other) } else { (other, owner) };
        let (from, to) = (&nodes[from], &nodes[to]);
        move_slot(from, to, &[bystander], slot);
        let start = std::time::Instant::now();
        while start.elapsed() < Duration::from_millis(200) {
            call(&mover, "tidegate:{still}").await.unwrap();
        }
    }
    done.store(true, Ordering::Relaxed);
    let mut total = 0;
    for task in tasks {
        total += task.await.unwrap();
    }
    assert!(total > 4);
    assert_eq!(call(&wire, key).await.unwrap(), total + 1, "each call counted once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_are_apart_while_a_slot_moves_are_waited_for() {
    let nodes = cluster();
    let wire = open(&nodes);
    let keys = [b"{pair}a".to_vec(), b"{pair}b".to_vec()];
    let slot = slot_of(&keys[0]);
    let owner = usize::from(slot / 5461).min(2);
    let (from, to) = (&nodes[owner], &nodes[(owner + 1) % 3]);
    let script = crate::scripts::Script::of(&["return redis.call('EXISTS', KEYS[1], KEYS[2])"]);
    let both = || crate::wire::Call { script: &script, keys: &keys, args: &[], lane: Lane::Commands };
    call(&wire, "{pair}a").await.unwrap();
    let text = slot.to_string();
    to.ask(&["CLUSTER", "SETSLOT", &text, "IMPORTING", &node_name(from)]);
    from.ask(&["CLUSTER", "SETSLOT", &text, "MIGRATING", &node_name(to)]);
    // One key is there and one is not: nobody serves both.
    let error = wire.run(both()).await.unwrap_err();
    assert_eq!(cause(&error), Cause::Migrating, "{error}");
    let waiting = tokio::spawn({
        let (wire, keys, script) = (wire.clone(), keys.clone(), script.clone());
        async move {
            let call = crate::wire::Call { script: &script, keys: &keys, args: &[], lane: Lane::Commands };
            wire.run(call).await
        }
    });
    from.ask(&["CLUSTER", "SETSLOT", &text, "STABLE"]);
    to.ask(&["CLUSTER", "SETSLOT", &text, "STABLE"]);
    assert_eq!(waiting.await.unwrap().unwrap(), Value::Int(1));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn un_3_a_replica_that_takes_over_is_followed() {
    let mut nodes = cluster();
    let settings = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"];
    let replica = Server::start(&settings);
    replica.ask(&["CLUSTER", "MEET", "127.0.0.1", &nodes[0].port.to_string()]);
    let first = node_name(&nodes[0]);
    until("the replica replicates", || replica.try_ask(&["CLUSTER", "REPLICATE", &first]).is_ok());
    until("the replica follows", || replica.info("master_link_status").as_deref() == Some("up"));
    let wire = open(&nodes);
    let key = (0..).map(|number| format!("{{{number}}}")).find(|key| slot_of(key.as_bytes()) < 5461).unwrap();
    let elsewhere =
        (0..).map(|number| format!("{{{number}}}")).find(|key| slot_of(key.as_bytes()) > 5461).unwrap();
    call(&wire, &key).await.unwrap();
    nodes[0].end();
    call(&wire, &key).await.unwrap_err();
    // The others are served meanwhile, as long as they see themselves as a cluster.
    call(&wire, &elsewhere).await.unwrap();
    heals(&wire, &key, Duration::from_secs(20)).await;
    assert_eq!(replica.info("role").as_deref(), Some("master"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_31_a_frozen_node_does_not_hold_up_the_others() {
    let nodes = cluster();
    let wire = open(&nodes);
    let in_slots = |from: u16, to: u16| {
        let keys = (0..).map(|number| format!("{{{number}}}"));
        keys.into_iter().find(|key| (from..to).contains(&slot_of(key.as_bytes()))).unwrap()
    };
    let (frozen, other) = (in_slots(0, 5461), in_slots(5461, 10923));
    call(&wire, &frozen).await.unwrap();
    call(&wire, &other).await.unwrap();
    nodes[0].freeze();
    // Nodes see the cluster as whole for as long as their timeout.
    let error = call(&wire, &frozen).await.unwrap_err();
    assert_eq!(cause(&error), Cause::NoAnswer, "{error}");
    call(&wire, &other).await.unwrap();
    nodes[0].thaw();
    heals(&wire, &frozen, Duration::from_secs(10)).await;
    heals(&wire, &other, Duration::from_secs(10)).await;
}

#[tokio::test]
async fn what_a_url_calls_a_cluster_must_be_one() {
    let single = Server::start(&[]);
    let error = call(&wire(&format!("redis+cluster://127.0.0.1:{}", single.port)), "k").await.unwrap_err();
    assert_eq!(cause(&error), Cause::Refused);
    assert!(error.to_string().contains("no cluster"), "{error}");
    let node = Server::start(&["--cluster-enabled", "yes"]);
    let error = call(&wire(&node.url()), "k").await.unwrap_err();
    assert_eq!(cause(&error), Cause::Refused);
    assert!(error.to_string().contains("redis+cluster://"), "{error}");
}
