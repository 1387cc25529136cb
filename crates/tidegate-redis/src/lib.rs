//! The Redis and Valkey store of Tidegate.

mod connect;
mod error;
mod scripts;
mod wake;
mod wire;

#[cfg(test)]
mod tests;

pub use connect::{Builder, RedisStore};
