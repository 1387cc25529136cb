//! Keeps a fleet of processes inside the limits of something they call and do not control: a third-party API, a licence
//! server, a database.
//!
//! # Which primitive
//!
//! - [`AdaptiveSemaphore`]: how many calls may run at once, when nobody knows the real ceiling.
//! - [`Valve`]: how much may start per unit of time, by several rules at once, per tenant where asked, with an optional
//!   bound on concurrency, a shared pause and a queue.
//! - [`CircuitBreaker`]: whether to call at all, when the dependency is failing; alone, or before one of the others.
//!
//! All share one store between all processes. [`MemoryStore`] serves one process and needs nothing installed.

pub mod clock;

mod background;
mod breaker;
mod call;
mod driver;
mod error;
mod event;
mod handle;
mod hooks;
mod link;
mod memory;
mod semaphore;
mod task;
mod telemetry;
mod valve;

/// The contract of a store, for those who write their own.
pub use tidegate_core as contract;
pub use tidegate_core::{
    Capabilities, Capability, Class, Id, Invalid, OnSuperseded, Operators, Outcome, Rule, SafeStart, Store,
    StoreError, Token,
    circuit::{Position, Verdict, Why},
    limit::{Aimd, Growth},
};

pub use breaker::{
    AnyFailure, Backoff, BreakerBuilder, BreakerState, CheckKind, CircuitBreaker, Classify, Consecutive,
    Constant, Count, Execute, Executing, Exponential, FailureWhen, Gate, Gated, HalfOpen, HealthCheck,
    Holding, Judge, OnCancel, Once, OpensWhen, OutcomeOnError, Plain, Primitive, Recent, Recovery, Role,
    Sampling, Starts, StateChange, Strategy, Told, Ungated,
};
pub use call::{AlwaysFailure, Calling, Release, WithPermit};
pub use error::{
    AcquireError, BuildError, CallError, CheckError, ControlError, ExecuteError, LastCause, LeaseLost,
    StartError, Trouble,
};
pub use event::Event;
pub use memory::MemoryStore;
pub use semaphore::{Acquire, Adaptive, AdaptiveSemaphore, Lease, SemaphoreBuilder, SemaphoreState};
pub use telemetry::{AcquireResult, CallResult, Direction, Metrics, Recorder};
pub use valve::{Concurrency, DeniedBy, Events, Job, Pause, Permit, Valve, ValveBuilder, ValveStats};
