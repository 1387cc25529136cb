//! The Redis and Valkey store of Tidegate: what a fleet of processes shares.
//!
//! # What problem
//! Fifty processes call an API that takes twenty calls at once. Each of them alone knows nothing of the others; a limit of
//! its own is too low when it is alone and too high when it is not. With a [`RedisStore`] they decide together: every
//! semaphore, valve and circuit of an id, in whichever process, is decided on by one server in one atomic step, on its clock.
//!
//! # First code
//! ```no_run
//! use tidegate::{Acquire, AdaptiveSemaphore, Outcome};
//! use tidegate_redis::RedisStore;
//!
//! # async fn call() -> Result<(), Box<dyn std::error::Error>> {
//! let store = RedisStore::connect("redis://127.0.0.1:6379").await?;
//! let semaphore = AdaptiveSemaphore::builder("my-provider-api", 10).build(store)?;
//! let lease = semaphore.acquire(Acquire::new()).await?;
//! // ... call the provider ...
//! lease.release(Outcome::Success);
//! # Ok(())
//! # }
//! ```
//!
//! # What is guaranteed
//! All of the contract, by the conformance kit of `tidegate-testkit` and a random comparison with the model of
//! `tidegate-core`, on one server and on a cluster. Never more live leases than the limit in force, and never a rate above
//! its rule, however many processes are killed, frozen or cut off.
//!
//! # How it fails
//! Every call has an answer or a typed error in time. A server that restarts empty, or fails over to one that lags, has
//! lost state: processes then give back what they know of (leases, limit, pause), and until then the excess is at most what
//! lived before, for one lease TTL. A circuit that was lost is closed, and opens again by what comes next. What a server is at risk of is found when it is opened: [`RedisStore::risks`].
//!
//! # What it costs
//! One round trip for an exchange, and an exchange carries whatever a process has: at 64 tasks that is a thirtieth of a
//! round trip for a pair of acquire and release. An idle identity of a scoped rule costs nothing after its interval. The
//! figures are in the README of the project, with the command that measures them.

mod circuit;
mod connect;
mod error;
mod keys;
mod operators;
mod pack;
mod policy;
mod reply;
mod request;
mod scripts;
mod store;
mod wake;
mod wire;

#[cfg(test)]
mod tests;

pub use connect::{Builder, RedisStore};
