//! What is forgotten by itself, and when it is worth another look.
//!
//! Every identity's level and every kept answer has exactly one entry here; when its time comes it is forgotten, or put
//! back for later. So a step sweeps a bounded number, however many there are.
//!
//! Spec: ST-11, ST-17.

use std::{
    cmp::{Ordering, Reverse},
    collections::BinaryHeap,
};

use crate::{DriverId, Identity};

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Item {
    Level { generation: u32, identity: Identity },
    Answer(DriverId),
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Entry {
    at_ms: u64,
    item: Item,
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        self.at_ms.cmp(&other.at_ms)
    }
}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Due {
    heap: BinaryHeap<Reverse<Entry>>,
}

impl Due {
    pub(super) fn put(&mut self, at_ms: u64, item: Item) {
        self.heap.push(Reverse(Entry { at_ms, item }));
    }

    /// The next item whose time has come.
    pub(super) fn pop(&mut self, now_ms: u64) -> Option<Item> {
        if self.heap.peek()?.0.at_ms > now_ms {
            return None;
        }
        let item = self.heap.pop()?.0.item;
        if self.heap.capacity() > 1_024 && self.heap.len() < self.heap.capacity() / 4 {
            self.heap.shrink_to(self.heap.len() * 2);
        }
        Some(item)
    }

    pub(super) fn next(&self) -> Option<u64> {
        self.heap.peek().map(|entry| entry.0.at_ms)
    }

    pub(super) fn shift_back(&mut self, ms: u64) {
        let entries = std::mem::take(&mut self.heap).into_vec();
        self.heap = entries
            .into_iter()
            .map(|Reverse(entry)| Reverse(Entry { at_ms: entry.at_ms.saturating_sub(ms), ..entry }))
            .collect();
    }
}
