//! Bounds a fleet's calls to an API whose ceiling nobody knows: `cargo run -p tidegate --example semaphore`.
//!
//! Two hundred calls go to a provider that takes 6 at once and pushes back above that. The semaphore starts at 2, grows
//! while there is demand, and is cut in half each time the provider says that it is too much.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use tidegate::{Acquire, AdaptiveSemaphore, Aimd, MemoryStore, Outcome};

#[tokio::main]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    // With a Redis at hand this is a RedisStore, and the limit that of the whole fleet; nothing else changes.
    let store = MemoryStore::new();
    let semaphore = AdaptiveSemaphore::builder("my-provider-api", 2)
        .fallback_local(2) // while the store is away; fail closed unless told
        .aimd(Aimd::new().window(Duration::from_millis(40)).cooldown(Duration::from_millis(40)))
        .on_limit_change(|limit| println!("the limit is now {limit}"))
        .build(store)?;

    let calls: Vec<_> = (0..200).map(|_| tokio::spawn(one_call(semaphore.clone()))).collect();
    let mut went_well = 0;
    for call in calls {
        went_well += u32::from(call.await?);
    }
    println!("{went_well} of 200 calls went well, at a limit of {} in the end", semaphore.state().limit);

    // Or hold the lease yourself.
    let lease = semaphore.acquire(Acquire::within(Duration::from_secs(5))).await?;
    let result = call_provider().await;
    lease.release(if result.is_ok() { Outcome::Success } else { Outcome::Failure });

    semaphore.close().await; // optional, on shutdown: flushes
    Ok(())
}

/// Whether a call went well.
async fn one_call(semaphore: AdaptiveSemaphore) -> bool {
    let answer = semaphore
        .with_lease(Acquire::within(Duration::from_secs(30)), call_provider)
        .outcome_on_error(|e: &ProviderError| match e {
            ProviderError::TooManyRequests => Outcome::Throttled,
        })
        .await;
    answer.is_ok()
}

#[derive(Debug)]
enum ProviderError {
    TooManyRequests,
}

/// Stands in for the provider: it takes 6 calls at once, and nobody was told so.
async fn call_provider() -> Result<(), ProviderError> {
    static RUNNING: AtomicU32 = AtomicU32::new(0);
    let running = RUNNING.fetch_add(1, Ordering::SeqCst) + 1;
    tokio::time::sleep(Duration::from_millis(10)).await;
    RUNNING.fetch_sub(1, Ordering::SeqCst);
    if running <= 6 { Ok(()) } else { Err(ProviderError::TooManyRequests) }
}
