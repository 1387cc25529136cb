//! The contract of Tidegate's stores, and the decisions behind it.
//!
//! Everything here is pure: no runtime, no I/O, no lock, and no clock, since time is an argument. The library people add
//! is [`tidegate`](https://docs.rs/tidegate); this crate is for those who write a store of their own.
//!
//! - [`Store`] is the contract, with its optional capabilities;
//! - [`Model`] is the reference: a whole store as a value;
//! - [`Policy`] is what must be the same in every worker of an id;
//! - [`rule`], [`limit`], [`share`] and [`circuit`] hold the decisions.

pub mod backoff;
pub mod circuit;
mod fraction;
mod id;
mod invalid;
mod lease;
pub mod limit;
pub mod model;
pub mod policy;
pub mod rule;
pub mod share;
pub mod store;
pub mod time;

pub use circuit::{CircuitPolicy, CircuitState};
pub use fraction::Fraction;
pub use id::{Id, Identity, Name, Owner};
pub use invalid::Invalid;
pub use lease::{Epoch, LeaseView, Token};
pub use model::{IdModel, Model};
pub use policy::{Bound, Class, DriverId, Member, OnSuperseded, Policy, SafeStart};
pub use rule::{Rule, RuleKey};
pub use store::{
    Acquire, AcquireReply, AcquireRequest, Acquired, Answer, Brief, Capabilities, Capability, Cause,
    CircuitAct, CircuitDid, CircuitMember, CircuitNews, CircuitReply, CircuitRequest, CircuitSnapshot,
    CircuitView, Costs, Denial, Exchange, ExchangeReply, Grant, HandOver, Head, Job, Limit, Line, Listener,
    Marks, Observation, Operators, Outcome, Page, PauseReply, Queue, Release, Renewal, Renewed, Reply,
    Restore, RuleLevel, ScopedDenial, ScopedGrant, ScopedJob, ScopedReply, ScopedRequest, Sequence, Settled,
    Settlement, Snapshot, Store, StoreError, Subscription, SyncPath, Wake,
};
