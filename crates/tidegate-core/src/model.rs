//! A whole store as a value: the reference that every store is held against.
//!
//! A [`Model`] decides exactly as the specification says, with time as an argument, and keeps everything in plain maps.
//! The memory store is an [`IdModel`] per id behind a lock with a clock; every other store is compared with this.

use std::{
    collections::BTreeMap,
    ops::Bound::{Excluded, Unbounded},
};

use crate::{
    Id,
    store::{self, Page, StoreError},
};

mod circuit;
mod due;
mod levels;
mod one;
mod places;

pub use one::{IdModel, LAYOUT, PIN_TTL, Push};

/// A whole store, as a value.
#[derive(Clone, Debug, Default)]
pub struct Model {
    ids: BTreeMap<Id, IdModel>,
}

impl Model {
    /// A store that holds nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Everything that is kept of an id; made empty where there is nothing.
    pub fn id(&mut self, id: &Id) -> &mut IdModel {
        self.ids.entry(id.clone()).or_default()
    }

    /// As [`Operators::ids`](crate::Operators::ids).
    ///
    /// # Errors
    /// As there.
    pub fn ids(&self, after: Option<&Id>, most: usize) -> Result<Page<Id>, StoreError> {
        store::page_size(most)?;
        let from = after.map_or(Unbounded, Excluded);
        let mut there = self
            .ids
            .range::<Id, _>((from, Unbounded))
            .filter(|(_, one)| one.is_used())
            .map(|(id, _)| id.clone());
        let items = there.by_ref().take(most).collect();
        Ok(Page { items, more: there.next().is_some() })
    }

    /// Drops everything, as a flush of a store would.
    pub fn wipe(&mut self) {
        self.ids.values_mut().for_each(IdModel::wipe);
    }
}
