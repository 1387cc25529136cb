//! Shows whether a store of Tidegate keeps the contract.

#![allow(missing_docs)]

pub mod clock;
pub mod conformance;
pub mod reference;
mod subject;
mod task;

pub use conformance::Kit;
pub use subject::{Factory, Hook, Subject};
pub use task::{Task, block_on};
