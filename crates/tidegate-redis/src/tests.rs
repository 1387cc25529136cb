//! Shows what becomes of connections, on real servers that are cut, frozen, failed over and moved.

mod calls;
mod cluster;
mod fixture;
mod sentinel;
mod waking;

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use tidegate_core::{Cause, StoreError};

use crate::{
    scripts::{Library, Script},
    wire::{Call, Lane, Options, Place, Wire},
};

const COUNTS: &str = "return redis.call('INCR', KEYS[1])";

/// A script that counts in its key.
fn counting() -> Script {
    Script::of(&[COUNTS])
}

/// The same, as a function where the server has them.
fn counting_function() -> Script {
    let library = Library::of(&[], &[("count", COUNTS, false)]);
    counting().with(library.function("count", None))
}

fn wire(url: &str) -> Wire {
    Wire::to(Place::read(url).unwrap(), Options::default())
}

async fn run(wire: &Wire, lane: Lane, script: &Script, key: &str) -> Result<redis::Value, StoreError> {
    wire.run(Call { script, keys: &[key.as_bytes().to_vec()], args: &[], lane }).await
}

/// One call within a caller's patience.
async fn call(wire: &Wire, key: &str) -> Result<i64, StoreError> {
    let patience = Duration::from_secs(1);
    match tokio::time::timeout(patience, run(wire, Lane::Commands, &counting_function(), key)).await {
        Ok(Ok(redis::Value::Int(count))) => Ok(count),
        Ok(Ok(other)) => panic!("{other:?}"),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(StoreError::unavailable(Cause::NoAnswer, "the caller gave up")),
    }
}

/// Calls until one succeeds; says how long it took.
async fn heals(wire: &Wire, key: &str, within: Duration) -> Duration {
    let start = Instant::now();
    loop {
        match call(wire, key).await {
            Ok(_) => return start.elapsed(),
            Err(error) => assert!(start.elapsed() < within, "after {:?}: {error}", start.elapsed()),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// The keys that match.
async fn scanned(wire: &Wire, pattern: &[u8]) -> Vec<Vec<u8>> {
    let keys = Arc::new(Mutex::new(Vec::new()));
    let found = Arc::clone(&keys);
    wire.scan(pattern, move |key| found.lock().unwrap().push(key)).await.unwrap();
    let keys = keys.lock().unwrap();
    keys.clone()
}

fn cause(error: &StoreError) -> Cause {
    match error {
        StoreError::Unavailable { cause, .. } => *cause,
        other => panic!("{other}"),
    }
}
