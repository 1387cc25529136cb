//! Where the fleet keeps what it shares.

use std::time::{Duration, Instant};

use anyhow::anyhow;
use tidegate::contract::Cause;
use tidegate::{Id, Invalid, Operators, StoreError};
use tidegate_redis::RedisStore;
use tokio::time;

use super::crew::LEASE_TTL;

/// How long the store may take until it has all leases back: those of a process that was killed lapse on their own.
const GIVE_BACK: Duration = LEASE_TTL.saturating_add(Duration::from_secs(2));
/// How long a store that does not answer is asked again.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(5);

/// Which store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Place {
    /// In the memory of this process.
    Memory,
    /// At a URL.
    Redis(String),
}

impl Place {
    /// Reads what `--store` was given. Connects to nothing.
    pub(super) fn read(text: &str) -> Result<Self, Invalid> {
        if text == "memory" {
            return Ok(Self::Memory);
        }
        match RedisStore::lazy(text) {
            Err(StoreError::Invalid(invalid)) => Err(invalid),
            // What else is wrong is said when it is opened.
            _ => Ok(Self::Redis(text.to_owned())),
        }
    }
}

/// Connects to a Redis.
///
/// # Errors
///
/// It cannot be reached, or refused; with what to do about that.
pub(super) async fn connect(url: &str) -> anyhow::Result<RedisStore> {
    match time::timeout(CONNECT, RedisStore::connect(url)).await {
        Ok(Ok(store)) => Ok(store),
        Ok(Err(error)) => Err(explained(&error)),
        Err(_) => Err(anyhow!("the store did not answer within {CONNECT:?}; check the host of --store")),
    }
}

fn explained(error: &StoreError) -> anyhow::Error {
    // The source says the same in other words, so it is left out.
    let advice = match error {
        StoreError::Unavailable { cause: Cause::Disconnected, .. } => {
            "; is a server running there? One that keeps nothing is started with: redis-server --save ''"
        }
        StoreError::Unavailable { cause: Cause::NoAnswer, .. } => "; check the host and port of --store",
        StoreError::Unavailable { cause: Cause::Broken, .. } => {
            "; is it a Redis that answers there? Check the scheme and the port of --store"
        }
        _ => "",
    };
    anyhow!("--store: {}{advice}", said(error))
}

/// What a store that is away said, without that it is away.
pub(super) fn said(error: &StoreError) -> String {
    match error {
        StoreError::Unavailable { cause, detail, .. } => one_line(&format!("{cause}: {detail}")),
        other => one_line(&other.to_string()),
    }
}

/// What is said in several lines, in one.
fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// How many leases of `id` the store still holds, those that rest too, once none is left or it had its time.
pub(super) async fn all_back(store: &impl Operators, id: &str) -> Result<u32, String> {
    let id = Id::new(id).map_err(|error| error.to_string())?;
    let end = Instant::now() + GIVE_BACK;
    let mut answered = Instant::now();
    loop {
        let silent = match time::timeout(PATIENCE, store.snapshot(&id)).await {
            Ok(Ok(snapshot)) => {
                let left = snapshot.body.map_or(0, |snapshot| snapshot.held);
                if left == 0 || Instant::now() >= end {
                    return Ok(left);
                }
                answered = Instant::now();
                None
            }
            Ok(Err(error)) => Some(said(&error)),
            Err(_) => Some("no answer".to_owned()),
        };
        if let Some(why) = silent.filter(|_| answered.elapsed() >= PATIENCE) {
            return Err(why);
        }
        time::sleep(Duration::from_millis(10)).await;
    }
}

/// Leaves nothing of `id` behind, as far as the store answers and no lease lives.
pub(super) async fn forget(store: &impl Operators, id: &str) {
    if let Ok(id) = Id::new(id) {
        let _ = time::timeout(PATIENCE, store.forget(&id)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_memory_or_a_redis() {
        assert_eq!(Place::read("memory"), Ok(Place::Memory));
        let url = "redis://127.0.0.1:6379/1";
        assert_eq!(Place::read(url), Ok(Place::Redis(url.to_owned())));
        for bad in ["", "Memory", "redis", "127.0.0.1:6379", "postgres://localhost", "redis://h:x"] {
            assert!(Place::read(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_password_is_not_repeated() {
        let invalid = Place::read("redis://user:secret@host:x").unwrap_err();
        assert!(!invalid.to_string().contains("secret"), "{invalid}");
    }
}
