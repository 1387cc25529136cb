//! The instruments for tests of every store, with real processes, real sockets and real faults.
//!
//! A store that is right alone may be wrong in a fleet: when a process dies between two lines, when an answer is lost and
//! the request was not, when a server comes back with another memory than it left with. This crate makes such things
//! happen on purpose, and says afterwards whether what was promised was kept.
//!
//! - [`servers`] starts throw-away servers on loopback, each in a folder of its own, and ends them with the test, also
//!   with one that is killed. They can be killed, frozen, started again, failed over, and made to move a slot.
//! - [`proxy`] stands between a client and a server and delays, holds up, cuts, or loses an answer.
//! - [`worker`] takes permits, holds and releases them as its [`Plan`](worker::Plan) says, and writes down all that it
//!   sees. The program `tidegate-worker` is one as a process.
//! - [`fleet`] starts many of those programs, kills or freezes some, and collects what they wrote.
//! - [`history`] judges what was written: by what is certain, so that a fault that it names is one.
//! - [`store`] opens a store by its URL, and is the one place that knows which there are.
//!
//! # A test of a store
//!
//! ```no_run
//! use std::time::Duration;
//! use tidegate_fleet::{
//!     fleet::{Fleet, worker_program},
//!     history::{Bound, Check, History},
//!     proxy::Proxy,
//!     servers::redis::{Options, Redis},
//!     worker::{Gate, Plan},
//! };
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let server = Redis::standalone(&Options::new())?;
//! let proxy = Proxy::to(server.addr())?;
//! let plan = Plan::new(format!("redis://{}", proxy.addr()), "my-provider-api", Gate::Global { limit: 4 });
//!
//! let mut fleet = Fleet::start(worker_program()?, &plan, 3)?;
//! fleet.wait_for_grants(100, Duration::from_secs(10))?;
//! fleet.kill(0)?;
//! proxy.cut();
//! fleet.wait_for_grants(100, Duration::from_secs(10))?;
//! let records = fleet.stop(Duration::from_secs(10))?;
//!
//! let history = History::of(&records);
//! Check::new(Bound::Fixed(4), plan.lease_ttl()).run(&history).expect_none();
//! # Ok(())
//! # }
//! ```
//!
//! [`fleet::worker_program`] finds the worker's program next to the test's own, once it was built: by
//! `cargo build -p tidegate-fleet`, or with the rest by `cargo test --workspace`. Tests of this crate name it as
//! `env!("CARGO_BIN_EXE_tidegate-worker")`, and then cargo has built it.

pub mod circuits;
pub mod clock;
pub mod fleet;
pub mod history;
pub mod proxy;
pub mod record;
pub mod servers;
pub mod store;
pub mod worker;

/// The front page of the project, so that its code is compiled: here, where every crate is known.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
