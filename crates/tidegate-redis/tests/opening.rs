//! What a server is found to be when it is opened reaches whoever built on it.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::sync::{Arc, Mutex};

use tidegate::{AdaptiveSemaphore, Outcome, Store, Trouble};
use tidegate_fleet::servers::redis::{Options, Redis};
use tidegate_redis::RedisStore;

/// What a semaphore on a server with this eviction policy is told of it.
async fn risks(policy: &str) -> (Vec<String>, Vec<String>) {
    let options = Options::new().set("maxmemory", "100mb").set("maxmemory-policy", policy);
    let server = Redis::standalone(&options).unwrap();
    let store = RedisStore::lazy(&server.url()).unwrap();
    assert_eq!(Store::risks(&store), Vec::<String>::new(), "nothing was asked yet");
    let told = Arc::new(Mutex::new(Vec::new()));
    let hears = Arc::clone(&told);
    let semaphore = AdaptiveSemaphore::builder("provider", 5)
        .on_error(move |trouble: &Trouble| {
            if trouble.code() == "store_at_risk" {
                hears.lock().unwrap().push(trouble.to_string());
            }
        })
        .build(store.clone())
        .unwrap();
    for _ in 0..3 {
        semaphore.acquire(tidegate::Acquire::once()).await.unwrap().release(Outcome::Success);
        semaphore.flush().await;
    }
    let told = told.lock().unwrap().clone();
    (told, Store::risks(&store))
}

#[tokio::test]
async fn un_6_a_server_that_may_evict_is_reported_once_when_it_is_opened() {
    let (told, found) = risks("allkeys-lru").await;
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!(told.len(), 1, "{told:?}");
    assert!(told[0].contains("provider") && told[0].contains("allkeys-lru"), "{told:?}");
}

#[tokio::test]
async fn un_6_a_server_that_keeps_what_it_has_is_not_reported() {
    let (told, found) = risks("noeviction").await;
    assert_eq!((told, found), (Vec::new(), Vec::new()));
}
