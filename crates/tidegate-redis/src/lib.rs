//! The Redis and Valkey store of Tidegate.

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
