//! Keeps a part of the limit for those who wait on a screen: `cargo run -p tidegate --example priority_classes`.
//!
//! A batch asks for everything that there is. A quarter of the limit is reserved for the class `interactive`, and is
//! never lent out; so whoever comes in it has a slot at once, with the batch still running.

use tidegate::{Acquire, AdaptiveSemaphore, Class, MemoryStore, Outcome};

#[tokio::main]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let semaphore = AdaptiveSemaphore::builder("my-provider-api", 20)
        .class(Class::reserved("interactive", 0.25))
        .class(Class::unreserved("background"))
        .build(MemoryStore::new())?;

    let mut batch = Vec::new();
    while let Ok(lease) = semaphore.acquire(Acquire::once().in_class("background")).await {
        batch.push(lease);
    }
    println!("the batch has {} of {} slots, and no more", batch.len(), semaphore.state().limit);

    let mut screens = Vec::new();
    while let Ok(lease) = semaphore.acquire(Acquire::once().in_class("interactive")).await {
        screens.push(lease);
    }
    println!("{} slots were free at once for those who wait on a screen", screens.len());

    for lease in batch.into_iter().chain(screens) {
        lease.release(Outcome::Success);
    }
    Ok(())
}
