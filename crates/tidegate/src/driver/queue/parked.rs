//! Those that wait behind one obstacle, and what is known of it.
//!
//! What is known are denials: from a cost on, until a moment. When that moment has come, the first in line ask: one at
//! first, twice as many while all of them are let in, and as many as were let in where some were not. So a long line
//! costs few questions for each job that goes, and a wide opening is used quickly.
//!
//! A job that costs less than what is known to be denied may pass those ahead of it. One that has been denied for an
//! interval of its rule is *old*, and nobody passes it any more: others go when it has gone, or along with it where they
//! cost as much, since then they are denied where it is.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet},
};

use tidegate_core::{store::MOST_SCOPED_JOBS, time::Moment};

use super::Place;

#[derive(Default)]
pub(super) struct Parked {
    waiting: BTreeMap<Place, Waits>,
    by_cost: BTreeSet<(u64, Place)>,
    /// Those that may be passed, by when that ends.
    young: BTreeSet<(Moment, Place)>,
    /// Those that nobody passes any more.
    old: BTreeSet<Place>,
    /// Who costs this much or more is denied until then. Both grow.
    denied: BTreeMap<u64, Moment>,
    /// Those that are being tried: none of them waits.
    tried: BTreeMap<Place, Waits>,
    /// How many are tried at once.
    batch: usize,
    /// Of those that were tried: how many are gone, and whether one was denied again.
    gone: usize,
    refused: bool,
    /// When the scoped line looks at this again.
    pub(super) look_at: Option<Moment>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Waits {
    pub(super) cost: u64,
    /// Nobody passes it from then on; none for one that was not denied here.
    pub(super) passed_until: Option<Moment>,
}

impl Waits {
    /// Whether nobody passes it any more.
    fn is_old(&self, now: Moment) -> bool {
        self.passed_until.is_some_and(|at| at <= now)
    }
}

/// Before every place.
const FIRST: Place = (Reverse(i32::MAX), 0, 0);

impl Parked {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.tried.is_empty()
    }

    /// How many wait here, without those that are being tried.
    pub(super) fn waiting(&self) -> usize {
        self.waiting.len()
    }

    pub(super) fn first(&self) -> Option<Place> {
        self.waiting.keys().next().copied()
    }

    pub(super) fn is_tried(&self, place: &Place) -> bool {
        self.tried.contains_key(place)
    }

    /// Everyone, also those that are being tried.
    pub(super) fn into_places(self) -> impl Iterator<Item = Place> {
        self.waiting.into_keys()
    }

    /// Notes that so much, or more, is denied until then.
    pub(super) fn deny(&mut self, cost: u64, until: Moment) {
        if self.denied.range(..=cost).next_back().is_some_and(|(_, known)| *known >= until) {
            return;
        }
        self.denied.retain(|known_cost, known| *known_cost < cost || *known > until);
        self.denied.insert(cost, until);
    }

    /// Whatever was denied may be let in now.
    pub(super) fn forget_denials(&mut self) {
        self.denied.clear();
    }

    /// Until when a cost is known to be denied.
    pub(super) fn denied_until(&self, cost: u64, now: Moment) -> Option<Moment> {
        self.denied.range(..=cost).next_back().map(|(_, until)| *until).filter(|until| *until > now)
    }

    /// The lowest cost that is known to be denied.
    fn least_denied(&self, now: Moment) -> Option<u64> {
        self.denied.iter().find(|(_, until)| **until > now).map(|(cost, _)| *cost)
    }

    /// Whether a job that is not known to be denied has to let those go first that wait here. Says until when.
    pub(super) fn goes_after(&self, place: Place, cost: u64, now: Moment) -> Option<Moment> {
        if self.is_tried(&place) {
            return None;
        }
        if let Some(barrier) = self.barrier(now).filter(|barrier| *barrier < place) {
            return Some(self.denied_until(self.cost(&barrier), now).unwrap_or(now));
        }
        let is_behind =
            |other: &Place, waits: &Waits| *other < place && waits.is_old(now) && waits.cost > cost;
        let behind_tried = self.tried.iter().any(|(other, waits)| is_behind(other, waits));
        let someones_turn = || match self.least_denied(now) {
            None => self.waiting.keys().next().is_some_and(|other| *other < place),
            Some(cost) => self.by_cost.range(..(cost, FIRST)).any(|(_, other)| *other < place),
        };
        (behind_tried || someones_turn()).then_some(now)
    }

    /// Until when one that waits here does so at least.
    pub(super) fn waits_until(&self, place: Place, now: Moment) -> Option<Moment> {
        let cost = self.waiting.get(&place)?.cost;
        Some(self.denied_until(cost, now).or_else(|| self.goes_after(place, cost, now)).unwrap_or(now))
    }

    /// The first of those that wait and that nobody passes.
    fn barrier(&self, now: Moment) -> Option<Place> {
        let aged = self.young.iter().take_while(|(at, _)| *at <= now).map(|(_, place)| *place);
        self.old.first().copied().into_iter().chain(aged).min()
    }

    /// Notes who has become old.
    fn age(&mut self, now: Moment) {
        while let Some((_, place)) = self.young.first().copied().filter(|(at, _)| *at <= now) {
            self.young.pop_first();
            self.old.insert(place);
        }
    }

    pub(super) fn put(&mut self, place: Place, waits: Waits, now: Moment) {
        self.waiting.insert(place, waits);
        self.by_cost.insert((waits.cost, place));
        if let Some(at) = waits.passed_until {
            self.young.insert((at, place));
        }
        self.age(now);
    }

    /// Takes away one that waits. Says whether others may go now that could not.
    pub(super) fn remove(&mut self, place: Place) -> bool {
        let was_barrier = self.old.first() == Some(&place);
        let Some(waits) = self.waiting.remove(&place) else { return false };
        self.by_cost.remove(&(waits.cost, place));
        self.old.remove(&place);
        if let Some(at) = waits.passed_until {
            self.young.remove(&(at, place));
        }
        was_barrier
    }

    /// One that was tried is gone, or waits again. Says whether it was the last of them.
    pub(super) fn end_try(&mut self, place: Place, refused: bool) -> bool {
        if self.tried.remove(&place).is_none() {
            return false;
        }
        if refused {
            self.refused = true;
        } else {
            self.gone += 1;
        }
        if !self.tried.is_empty() {
            return false;
        }
        let gone = std::mem::take(&mut self.gone);
        self.batch = if std::mem::take(&mut self.refused) { gone } else { self.batch.saturating_mul(2) };
        true
    }

    /// The next that are tried, in order; none while others are.
    pub(super) fn take_batch(&mut self, now: Moment) -> Vec<Place> {
        self.age(now);
        self.denied.retain(|_, until| *until > now);
        if !self.tried.is_empty() {
            return Vec::new();
        }
        self.batch = self.batch.clamp(1, MOST_SCOPED_JOBS);
        let least_denied = self.least_denied(now);
        let mut next: Vec<Place> = match least_denied {
            None => self.waiting.keys().copied().take(self.batch).collect(),
            Some(cost) => self.by_cost.range(..(cost, FIRST)).map(|(_, place)| *place).collect(),
        };
        next.sort_unstable();
        next.truncate(self.batch);
        // Nobody passes an old one that is denied; nor one that goes along, for which it must cost as much at least.
        let is_denied = |place: &&Place| self.cost(place) >= least_denied.unwrap_or(u64::MAX);
        let barrier = self.old.iter().find(is_denied).copied();
        let mut least = 0;
        for place in next {
            let Some(waits) = self.waiting.get(&place).copied() else { continue };
            if barrier.is_some_and(|barrier| barrier < place) || waits.cost < least {
                break;
            }
            if waits.is_old(now) {
                least = least.max(waits.cost);
            }
            self.remove(place);
            self.tried.insert(place, waits);
        }
        self.tried.keys().copied().collect()
    }

    fn cost(&self, place: &Place) -> u64 {
        self.waiting.get(place).map_or(0, |waits| waits.cost)
    }

    /// When the next of those that wait can go, if nothing else happens; none while others are tried, since that shows.
    pub(super) fn next_look(&self, now: Moment) -> Option<Moment> {
        if !self.tried.is_empty() {
            return None;
        }
        let least = match self.old.first() {
            None => self.by_cost.first().map(|(cost, _)| *cost),
            Some(barrier) => self.waiting.range(..=barrier).map(|(_, waits)| waits.cost).min(),
        };
        least.map(|cost| self.denied_until(cost, now).unwrap_or(now))
    }

    /// The same without looking down the line: it may be too early, never too late.
    pub(super) fn soonest_look(&self, now: Moment) -> Option<Moment> {
        let least = self.by_cost.first().filter(|_| self.tried.is_empty());
        least.map(|(cost, _)| self.denied_until(*cost, now).unwrap_or(now))
    }
}

#[cfg(test)]
impl Parked {
    pub(super) fn places(&self) -> impl Iterator<Item = Place> {
        self.waiting.keys().chain(self.tried.keys()).copied()
    }

    pub(super) fn audit(&self) {
        assert_eq!(self.by_cost.len(), self.waiting.len());
        assert!(self.waiting.iter().all(|(place, waits)| self.by_cost.contains(&(waits.cost, *place))));
        let may_be_passed = self.waiting.values().filter(|waits| waits.passed_until.is_some()).count();
        assert_eq!(self.young.len() + self.old.len(), may_be_passed);
        let untils: Vec<Moment> = self.denied.values().copied().collect();
        assert!(untils.is_sorted_by(|one, next| one < next), "{untils:?}");
    }
}
