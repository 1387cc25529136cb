//! The Redis and Valkey store of Tidegate.

mod connect;
mod error;
mod scripts;
mod wake;
mod wire;

pub use connect::{Builder, RedisStore};
