//! Shows whether a store keeps the contract of [Tidegate](https://docs.rs/tidegate), and what stands on a store does
//! when it does not.
//!
//! Anyone can write a [`Store`](tidegate_core::Store). This crate is for those who do:
//!
//! - [`Kit`] holds a trial for every rule of the contract, on both sides of each bound;
//! - [`model_test`] does the same random operations on a store and on the model, and shrinks the first difference.
//!
//! And for those who build on one:
//!
//! - [`faulty`] wraps a store that then fails as a remote one does;
//! - [`clock`] is a clock that is set by hand, and [`mod@reference`] the model as a store at that clock.
//!
//! Nothing here needs a runtime, or minds one.
//!
//! # Example: a store of one's own
//! ```
#![doc = include_str!("../examples/own_store.rs")]
//! ```
//!
//! In a test, the last part is all there is to write: `Kit::new(..).run().await.assert()`, or `run_blocking` without a
//! runtime. A rule is run alone with [`Kit::filter`]. What the kit does not run it says, with the reason.
//!
//! # What is asked of a subject
//! A [`Subject`] is the store, and what its test can do to it besides: set its clock, make it lose all it keeps, mark
//! its state as of another layout, damage it, open a second handle. Each hook is optional, and what needs one that is not
//! there is skipped. With the clock, nothing sleeps: a store that reads the time in a script or a query has that part
//! replaced in its tests.

pub mod clock;
pub mod conformance;
pub mod faulty;
mod hearing;
pub mod model_test;
pub mod reference;
mod subject;
mod task;

pub use conformance::Kit;
pub use subject::{Factory, Hook, Subject};
pub use task::{Task, block_on};
