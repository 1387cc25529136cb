//! Shows that a primary is followed as the sentinels say.

use std::time::Duration;

use redis::Value;

use super::{
    call,
    fixture::{Server, until},
    heals, wire,
};
use crate::wire::Wire;

struct Setting {
    first: Server,
    second: Server,
    sentinel: Server,
}

fn setting() -> Setting {
    let first = Server::start(&[]);
    let second = Server::start(&["--replicaof", "127.0.0.1", &first.port.to_string()]);
    until("the replica follows", || {
        second.info("master_link_status").as_deref() == Some("up")
            && first.info("connected_slaves").as_deref() == Some("1")
    });
    let sentinel = Server::sentinel(first.port);
    until("the sentinel knows the replica", || {
        let known = sentinel.ask(&["SENTINEL", "REPLICAS", "main"]);
        matches!(known, Value::Array(replicas) if !replicas.is_empty())
    });
    Setting { first, second, sentinel }
}

impl Setting {
    fn wire(&self) -> Wire {
        // The first of the sentinels is not there.
        wire(&format!("redis+sentinel://127.0.0.1:1,127.0.0.1:{}/main", self.sentinel.port))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_29_a_manual_fail_over_is_followed_with_the_old_primary_alive() {
    let setting = setting();
    let wire = setting.wire();
    assert_eq!(call(&wire, "k").await.unwrap(), 1);
    // A sentinel refuses until it has heard of the replica's state.
    until("the fail-over begins", || setting.sentinel.try_ask(&["SENTINEL", "FAILOVER", "main"]).is_ok());
    until("the replica is promoted", || setting.second.info("role").as_deref() == Some("master"));
    // Calls during the fail-over may go to the old primary, and are lost with it.
    let mut healed = Duration::ZERO;
    while setting.second.try_ask(&["EXISTS", "after"]).ok() != Some(Value::Int(1)) {
        assert!(healed < Duration::from_secs(10));
        healed += heals(&wire, "after", Duration::from_secs(10)).await + Duration::from_millis(50);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    until("the old primary is demoted", || setting.first.info("role").as_deref() == Some("slave"));
    for _ in 0..10 {
        heals(&wire, "after", Duration::from_secs(2)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn un_3_the_new_primary_is_found_when_the_old_one_dies() {
    let mut setting = setting();
    let wire = setting.wire();
    call(&wire, "k").await.unwrap();
    setting.first.end();
    heals(&wire, "k", Duration::from_secs(20)).await;
    assert_eq!(setting.second.info("role").as_deref(), Some("master"));
}

#[tokio::test]
async fn a_wrong_name_is_told() {
    let setting = setting();
    let wrong = wire(&format!("redis+sentinel://127.0.0.1:{}/other", setting.sentinel.port));
    let error = call(&wrong, "k").await.unwrap_err();
    assert!(error.to_string().contains("\"other\""), "{error}");
    let wrong = wire(&format!("redis://127.0.0.1:{}", setting.sentinel.port));
    let error = call(&wrong, "k").await.unwrap_err();
    assert!(error.to_string().contains("redis+sentinel://"), "{error}");
}
