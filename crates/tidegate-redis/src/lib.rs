//! The Redis and Valkey store of Tidegate.

mod scripts;
mod wire;
