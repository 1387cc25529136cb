//! Who waits for a slot, and who is told of room.
//!
//! A place is kept per driver and tier from the moment its oldest job was first denied. Room goes to the oldest places
//! that it fits; a place that was offered room is passed over until its driver has come back.
//!
//! Spec: AS-12.

use std::collections::{BTreeMap, HashMap};

use crate::{DriverId, policy::MOST_CLASSES};

/// A place lapses after this long without an exchange of its driver.
pub(super) const LAPSES_MS: u64 = 2_000;

/// A number per tier, on the stack.
pub(super) type PerTier = [u32; MOST_CLASSES + 1];

#[derive(Clone, Debug)]
struct Place {
    jobs: u32,
    offered: u32,
    lapses_ms: u64,
}

type Key = (u64, DriverId, usize);

#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    by_age: BTreeMap<Key, Place>,
    since: HashMap<(DriverId, usize), u64>,
    offered: PerTier,
}

impl Places {
    pub(super) fn is_empty(&self) -> bool {
        self.by_age.is_empty()
    }

    /// How many jobs wait in all.
    pub(super) fn jobs(&self, now_ms: u64) -> u32 {
        let waiting = self.by_age.values().filter(|place| place.lapses_ms > now_ms);
        waiting.fold(0, |sum: u32, place| sum.saturating_add(place.jobs))
    }

    /// Takes a driver's place, or keeps it, with so many jobs and no offer outstanding.
    pub(super) fn keep(&mut self, driver: DriverId, tier: usize, since_ms: u64, jobs: u32, now_ms: u64) {
        self.leave(driver, tier);
        if jobs > 0 {
            self.since.insert((driver, tier), since_ms);
            let place = Place { jobs, offered: 0, lapses_ms: now_ms.saturating_add(LAPSES_MS) };
            self.by_age.insert((since_ms, driver, tier), place);
        }
    }

    /// Gives a driver's place up.
    pub(super) fn leave(&mut self, driver: DriverId, tier: usize) {
        if self.since.is_empty() {
            return;
        }
        if let Some(since_ms) = self.since.remove(&(driver, tier)) {
            self.drop_place((since_ms, driver, tier));
        }
    }

    fn drop_place(&mut self, key: Key) {
        if let Some(place) = self.by_age.remove(&key) {
            self.offered[key.2] -= place.offered;
        }
    }

    /// Offers room to the oldest places, one job at a time, as long as `fits` says that one more of a tier fits beyond
    /// what was offered already, and calls `tell` for each. Stops at places that began at `before` or later. Lapsed
    /// places are dropped; those that are to be passed over are.
    pub(super) fn offer(
        &mut self,
        now_ms: u64,
        before: u64,
        mut most: u32,
        passed_over: impl Fn(DriverId) -> bool,
        fits: impl Fn(usize, &PerTier) -> bool,
        mut tell: impl FnMut(DriverId, usize),
    ) {
        self.drop_lapsed(now_ms);
        // What does not fit once does not fit later on: no offer makes room.
        let mut full = [false; MOST_CLASSES + 1];
        for (key, place) in &mut self.by_age {
            let (since_ms, driver, tier) = *key;
            if since_ms >= before || most == 0 {
                break;
            }
            if full[tier] || passed_over(driver) {
                continue;
            }
            while most > 0 && place.offered < place.jobs {
                if !fits(tier, &self.offered) {
                    full[tier] = true;
                    break;
                }
                place.offered += 1;
                self.offered[tier] += 1;
                most -= 1;
                tell(driver, tier);
            }
        }
    }

    fn drop_lapsed(&mut self, now_ms: u64) {
        let lapsed = self.by_age.iter().filter(|(_, place)| place.lapses_ms <= now_ms);
        for key in lapsed.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.since.remove(&(key.1, key.2));
            self.drop_place(key);
        }
    }

    /// The offers outstanding to other drivers, at places that began before `before`.
    pub(super) fn offered_to_others(&self, now_ms: u64, before: u64, driver: DriverId) -> PerTier {
        let mut theirs = PerTier::default();
        if self.offered.iter().any(|offered| *offered > 0) {
            let older = self.by_age.iter().take_while(|(key, _)| key.0 < before);
            for (key, place) in older.filter(|(key, place)| key.1 != driver && place.lapses_ms > now_ms) {
                theirs[key.2] += place.offered;
            }
        }
        theirs
    }

    pub(super) fn shift_back(&mut self, ms: u64) {
        let places = std::mem::take(&mut self.by_age);
        for ((since_ms, driver, tier), mut place) in places {
            let since_ms = since_ms.saturating_sub(ms);
            place.lapses_ms = place.lapses_ms.saturating_sub(ms);
            self.since.insert((driver, tier), since_ms);
            self.by_age.insert((since_ms, driver, tier), place);
        }
    }
}
