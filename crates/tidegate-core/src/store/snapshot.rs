//! What operators see.
//!
//! Spec: ST-20.

use std::sync::Arc;

use super::{CircuitSnapshot, Limit, MOST_TOKENS, StoreError};
use crate::{Epoch, Id, Invalid, Name, Policy, rule::RuleKey};

/// A page of a longer list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Page<T> {
    /// What is on it.
    pub items: Vec<T>,
    /// Whether more come after it.
    pub more: bool,
}

/// An id at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Snapshot {
    /// Which.
    pub id: Id,
    /// The life of its state; none where there is only a circuit.
    pub epoch: Option<Epoch>,
    /// The pinned policy; none for an id that was only paused, or has only a circuit.
    pub policy: Option<Arc<Policy>>,
    /// The limit in force, where concurrency is bounded.
    pub limit: Option<Limit>,
    /// How many slots are taken, resting ones too.
    pub held: u32,
    /// How many of them rest after a throttled release.
    pub resting: u32,
    /// Slots taken by each class, in the order of the policy; the last is that of jobs without a class.
    pub by_class: Vec<(Option<Name>, u32)>,
    /// How many jobs wait for a slot, as far as the store was told.
    pub waiting: u32,
    /// What is left of a pause, in milliseconds.
    pub paused_ms: u64,
    /// The level of each rule.
    pub rules: Vec<RuleLevel>,
    /// The circuit, where there is one.
    pub circuit: Option<CircuitSnapshot>,
}

/// A rule at one moment.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RuleLevel {
    /// Its key.
    pub rule: RuleKey,
    /// What could be spent now; below zero for a debt; none for a scoped rule, which has a level for each identity.
    pub level: Option<i64>,
    /// How many identities have a level of their own; none where the store does not count them.
    pub identities: Option<usize>,
}

/// Checks the size of a page: 1 to 1,000.
///
/// # Errors
/// `Invalid` for another.
pub fn page_size(most: usize) -> Result<(), StoreError> {
    if (1..=MOST_TOKENS).contains(&most) {
        Ok(())
    } else {
        Err(Invalid::new("most", most, "1 to 1000").into())
    }
}
