//! A virtual fleet of processes and workers against a provider with a hidden, changeable ceiling, in virtual time.
//!
//! The fleet goes through the real primitives: every virtual process has an [`AdaptiveSemaphore`](tidegate::AdaptiveSemaphore)
//! of its own, all of them on clones of one store. Only time, the provider and the network between are made up. An hour
//! with 200 workers takes a few seconds, and the same seed gives the same report to the last bit, so that a controller
//! can be judged by what it does in a day, and a change of it by what it does to the same day.
//!
//! # Examples
//! ```
//! use std::time::Duration;
//! use tidegate::Growth;
//! use tidegate_sim::Simulation;
//!
//! let report = Simulation::builder(12)
//!     .workers(20)
//!     .service(Duration::from_millis(200)..=Duration::from_millis(400))
//!     .duration(Duration::from_secs(300))
//!     .growth(Growth::Probe)
//!     .build()?
//!     .run()?;
//!
//! assert!(report.goodput_ratio > 0.8);
//! assert_eq!(report.over_admission, 0);
//! assert_eq!(report.leases_left, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod audit;
mod builder;
mod fleet;
mod log;
mod profile;
mod provider;
mod report;
mod simulation;
mod timeline;

pub use builder::SimulationBuilder;
pub use report::{Change, Report, Wait};
pub use simulation::{Simulation, SimulationError};
