//! A line in which a job is held up only by what denied it, or would deny it as well.
//!
//! A job is *ready* to be asked for, or *parked* under one obstacle. When an obstacle's time has come, the first of those
//! parked there are ready again; before any ready job is asked for, it is held against every obstacle that it could meet.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use tidegate_core::{Policy, ScopedJob, store::MOST_SCOPED_JOBS, time::Moment};

use super::{
    Asked, Denied, Known, Obstacle, Place, fits_pause,
    parked::{Parked, Waits},
};
use crate::LastCause;

/// The most level states that one scoped request touches.
const MOST_STATES: usize = 512;

#[derive(Default)]
pub(in super::super) struct Scoped {
    jobs: BTreeMap<Place, Entry>,
    ready: BTreeSet<Place>,
    parked: HashMap<Obstacle, Parked>,
    /// Under what each job waits, or is being tried.
    under: HashMap<usize, Obstacle>,
    timers: BTreeSet<(Moment, Obstacle)>,
    /// A pause holds all.
    paused_until: Option<Moment>,
}

struct Entry {
    job: Arc<ScopedJob>,
    /// By which rules it was denied, and since when.
    denied_since: Vec<(usize, Moment)>,
}

impl Entry {
    /// Until when a job that this rule denies may be passed.
    fn passed_until(&mut self, rule: usize, passed_for: Duration, now: Moment) -> Moment {
        let known = self.denied_since.iter().find(|(known, _)| *known == rule).map(|(_, since)| *since);
        let since = known.unwrap_or_else(|| {
            self.denied_since.push((rule, now));
            now
        });
        since.plus(passed_for)
    }
}

/// What holds a job up.
struct Meets {
    obstacle: Obstacle,
    cost: u64,
    until: Moment,
    /// How long others may pass it; none where it is not denied, but lets others go first.
    passed_for: Option<Duration>,
}

impl Scoped {
    pub(super) fn push(&mut self, place: Place, job: &Arc<ScopedJob>) {
        self.jobs.insert(place, Entry { job: Arc::clone(job), denied_since: Vec::new() });
        self.ready.insert(place);
    }

    pub(super) fn remove(&mut self, place: Place) {
        if self.jobs.remove(&place).is_none() {
            return;
        }
        self.ready.remove(&place);
        if let Some(obstacle) = self.under.remove(&place.2) {
            self.leave(&obstacle, place);
        }
        if self.jobs.is_empty() {
            self.paused_until = None;
        }
    }

    /// Takes one that is gone from under its obstacle.
    fn leave(&mut self, obstacle: &Obstacle, place: Place) {
        let Some(parked) = self.parked.get_mut(obstacle) else { return };
        let others_may_go = parked.end_try(place, false) || parked.remove(place);
        if parked.is_empty() {
            self.set_timer(obstacle, None);
            self.parked.remove(obstacle);
        } else if others_may_go {
            // What it is worth shows when it is looked at.
            self.set_timer(obstacle, Some(Moment::default()));
        }
    }

    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }

    pub(super) fn head(&self) -> Option<usize> {
        let waits = self.parked.get(&Obstacle::Slots).and_then(Parked::first);
        self.ready.first().copied().into_iter().chain(waits).min().map(|place| place.2)
    }

    pub(super) fn takers(&self) -> usize {
        self.ready.len() + self.parked.get(&Obstacle::Slots).map_or(0, Parked::waiting)
    }

    pub(super) fn waits_for_slots(&self) -> bool {
        self.parked.contains_key(&Obstacle::Slots)
    }

    pub(super) fn known(&self, place: Place, now: Moment) -> Option<Known> {
        let paused = self.paused_until.map(|until| (until, LastCause::Pause));
        paused.or_else(|| {
            let obstacle = self.under.get(&place.2).filter(|_| !self.ready.contains(&place))?;
            let until = self.parked.get(obstacle)?.waits_until(place, now)?;
            Some((until, obstacle.cause()))
        })
    }

    fn paused(&self, now: Moment) -> Option<Known> {
        let until = self.paused_until.filter(|until| *until > now && !self.jobs.is_empty());
        until.map(|until| (until, LastCause::Pause))
    }

    pub(super) fn meets(&self, place: Place, job: &ScopedJob, policy: &Policy, now: Moment) -> Option<Known> {
        let paused = self.paused(now);
        paused.or_else(|| self.obstacle(place, job, policy, now).map(|met| (met.until, met.obstacle.cause())))
    }

    pub(super) fn is_due(&self, now: Moment) -> bool {
        self.paused_until.is_none_or(|until| until <= now)
            && (!self.ready.is_empty() || self.timers.first().is_some_and(|(at, _)| *at <= now))
    }

    pub(super) fn next_due(&self) -> Option<Moment> {
        let timer = self.timers.first().map(|(at, _)| *at).filter(|_| self.ready.is_empty());
        let paused = self.paused_until.filter(|_| !self.jobs.is_empty());
        timer.into_iter().chain(paused).max()
    }

    pub(super) fn ask(&mut self, now: Moment, most: usize, policy: &Policy) -> Asked {
        self.paused_until = None;
        let by_states = MOST_STATES / policy.rules().len().max(1);
        let most = most.min(MOST_SCOPED_JOBS).min(by_states.max(1));
        let (mut jobs, mut denied) = (Vec::new(), BTreeMap::new());
        // Each turn parks someone, or is the last. The count is never met: it guards the lock that this runs under.
        let mut turns = 2 * self.jobs.len();
        loop {
            self.look_at_timers(now);
            let mut held = Vec::new();
            for place in &self.ready {
                if jobs.len() == most {
                    break;
                }
                let Some(entry) = self.jobs.get(place) else { continue };
                match self.obstacle(*place, &entry.job, policy, now) {
                    Some(meets) => held.push((*place, meets)),
                    None => jobs.push(place.2),
                }
            }
            let nobody_goes = jobs.is_empty() && !held.is_empty();
            for (place, meets) in held {
                denied.insert(place.2, (meets.until, meets.obstacle.cause()));
                self.park(place, meets, now);
            }
            turns = turns.saturating_sub(1);
            if !nobody_goes || turns == 0 {
                debug_assert!(!nobody_goes, "jobs go from obstacle to obstacle");
                // Some only had to wait for their turn, and it has come.
                denied.retain(|key, _| !jobs.contains(key));
                return Asked { jobs, denied: denied.into_iter().collect() };
            }
        }
    }

    /// What a job would meet, where that is known: the obstacle that holds it longest.
    fn obstacle(&self, place: Place, job: &ScopedJob, policy: &Policy, now: Moment) -> Option<Meets> {
        if self.parked.is_empty() {
            return None;
        }
        let rules = policy.rules().iter().enumerate().filter_map(|(index, rule)| {
            let cost = job.costs.of(rule.name());
            let obstacle = Obstacle::Rule(index, job.identity(rule).cloned());
            // A cost of nothing passes a rule.
            let parked = self.parked.get(&obstacle).filter(|_| cost > 0)?;
            let passed_for = Duration::from_millis(rule.interval_ms());
            Self::held(obstacle, parked, place, cost, Some(passed_for), now)
        });
        let slots = self.parked.get(&Obstacle::Slots);
        let slots = slots.and_then(|parked| Self::held(Obstacle::Slots, parked, place, 0, None, now));
        rules.chain(slots).reduce(|longest, other| if other.until > longest.until { other } else { longest })
    }

    fn held(
        obstacle: Obstacle,
        parked: &Parked,
        place: Place,
        cost: u64,
        passed_for: Option<Duration>,
        now: Moment,
    ) -> Option<Meets> {
        match parked.denied_until(cost, now) {
            Some(until) => Some(Meets { obstacle, cost, until, passed_for }),
            None => {
                let until = parked.goes_after(place, cost, now)?;
                Some(Meets { obstacle, cost, until, passed_for: None })
            }
        }
    }

    fn park(&mut self, place: Place, meets: Meets, now: Moment) {
        let Meets { obstacle, cost, passed_for, .. } = meets;
        let Some(entry) = self.jobs.get_mut(&place) else { return };
        let passed_until = match (&obstacle, passed_for) {
            (Obstacle::Rule(rule, _), Some(passed_for)) => Some(entry.passed_until(*rule, passed_for, now)),
            _ => None,
        };
        self.ready.remove(&place);
        let parked = self.parked.entry(obstacle.clone()).or_default();
        let was = self.under.insert(place.2, obstacle.clone());
        if was.as_ref() == Some(&obstacle) {
            parked.end_try(place, true);
            parked.remove(place);
        }
        parked.put(place, Waits { cost, passed_until }, now);
        let at = parked.soonest_look(now);
        self.set_timer(&obstacle, at);
        if let Some(was) = was.filter(|was| *was != obstacle) {
            self.leave(&was, place);
        }
    }

    pub(super) fn deny(&mut self, place: Place, denied: Denied, now: Moment) {
        let Denied { obstacle, cost, until, passed_for, .. } = denied;
        if !self.jobs.contains_key(&place) {
            // It is gone by now; what is known of the obstacle counts for those that wait there.
            if let Some(parked) = self.parked.get_mut(&obstacle) {
                parked.deny(cost, until);
            }
            return;
        }
        self.parked.entry(obstacle.clone()).or_default().deny(cost, until);
        self.park(place, Meets { obstacle, cost, until, passed_for: Some(passed_for) }, now);
    }

    fn set_timer(&mut self, obstacle: &Obstacle, at: Option<Moment>) {
        let Some(parked) = self.parked.get_mut(obstacle).filter(|parked| parked.look_at != at) else {
            return;
        };
        let before = std::mem::replace(&mut parked.look_at, at);
        if let Some(before) = before {
            self.timers.remove(&(before, obstacle.clone()));
        }
        if let Some(at) = at {
            self.timers.insert((at, obstacle.clone()));
        }
    }

    /// Makes those ready whose time has come: a batch for each obstacle.
    fn look_at_timers(&mut self, now: Moment) {
        while let Some((_, obstacle)) = self.timers.first().filter(|(at, _)| *at <= now).cloned() {
            let Some(parked) = self.parked.get_mut(&obstacle) else {
                self.timers.pop_first();
                continue;
            };
            let batch = parked.take_batch(now);
            let next = parked.next_look(now);
            self.ready.extend(batch);
            self.set_timer(&obstacle, next);
        }
    }

    pub(super) fn pause(&mut self, until: Moment, resumes_at: Moment) {
        if !self.jobs.is_empty() && !self.paused_until.is_some_and(|known| fits_pause(known, until)) {
            self.paused_until = Some(resumes_at);
        }
    }

    pub(super) fn resume(&mut self) {
        self.paused_until = None;
    }

    pub(super) fn room(&mut self, now: Moment) -> bool {
        if let Some(parked) = self.parked.get_mut(&Obstacle::Slots) {
            parked.forget_denials();
            let at = parked.soonest_look(now);
            self.set_timer(&Obstacle::Slots, at);
            return true;
        }
        !self.ready.is_empty()
    }

    pub(super) fn unblock(&mut self) {
        self.paused_until = None;
        for (_, parked) in self.parked.drain() {
            self.ready.extend(parked.into_places());
        }
        self.under.clear();
        self.timers.clear();
        // Rules may have other places in the policy that decides from now on.
        self.jobs.values_mut().for_each(|entry| entry.denied_since.clear());
    }
}

#[cfg(test)]
impl Scoped {
    /// That every job is at exactly one place, and will be looked at again.
    pub(super) fn audit(&self) {
        let mut waiting = Vec::new();
        for (obstacle, parked) in &self.parked {
            assert!(!parked.is_empty(), "nobody is parked under {obstacle:?}");
            parked.audit();
            for place in parked.places() {
                assert_eq!(self.under.get(&place.2), Some(obstacle), "{place:?}");
                if parked.is_tried(&place) {
                    assert!(self.ready.contains(&place), "{place:?} is tried and cannot be asked for");
                } else {
                    assert!(!self.ready.contains(&place), "{place:?} is parked and ready");
                    waiting.push(place);
                }
            }
            let timer = parked.look_at.map(|at| self.timers.contains(&(at, obstacle.clone())));
            let is_tried = parked.places().any(|place| parked.is_tried(&place));
            assert!(timer.unwrap_or(is_tried), "nobody looks at {obstacle:?} again");
        }
        let timers = self.parked.values().filter(|parked| parked.look_at.is_some()).count();
        assert_eq!(self.timers.len(), timers);
        let mut places: Vec<Place> = self.ready.iter().copied().chain(waiting).collect();
        places.sort_unstable();
        assert!(self.jobs.keys().eq(&places), "{places:?}");
        assert!(self.under.len() <= self.jobs.len());
    }
}
