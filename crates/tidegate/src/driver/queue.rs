//! The line of one tier: who waits in it, in which order, and until when it is known that asking is in vain.
//!
//! Jobs without scopes stand in one line, and its head decides for all. Jobs with scopes are held up only by their own
//! identities: a job that was denied is parked under what denied it, and the jobs behind it that meet the same are
//! parked with it, without asking.
//!
//! Spec: VA-2, VA-3.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use tidegate_core::{Identity, Policy, ScopedJob, store::MOST_JOBS, store::MOST_SCOPED_JOBS, time::Moment};

use crate::LastCause;

/// A waiter's place: by priority, then by arrival. The last part is its key.
pub(super) type Place = (Reverse<i32>, u64, usize);

/// The most level states that one scoped request touches.
const MOST_STATES: usize = 512;

pub(super) enum Line {
    Ordered(Ordered),
    Scoped(Scoped),
}

#[derive(Default)]
pub(super) struct Ordered {
    places: BTreeSet<Place>,
    blocked: Option<(Moment, LastCause)>,
}

/// What a parked job waits for: a rule with its identity, or a slot.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Obstacle {
    Slots,
    Rule(usize, Option<Identity>),
}

#[derive(Default)]
pub(super) struct Scoped {
    ready: BTreeSet<Place>,
    parked: HashMap<Obstacle, Parked>,
    /// Where each parked job is.
    under: HashMap<usize, Obstacle>,
    timers: BTreeSet<(Moment, Obstacle)>,
    /// A pause holds all.
    paused_until: Option<Moment>,
}

#[derive(Default)]
struct Parked {
    jobs: BTreeMap<Place, Waits>,
    retry_at: Option<Moment>,
    /// How many are tried at once when it is time; doubles while all of them are granted.
    batch: usize,
    /// Those that are being tried.
    tried: BTreeSet<Place>,
}

#[derive(Clone, Copy)]
struct Waits {
    until: Moment,
    cost: u64,
    /// From when on nobody may pass it any more.
    passed_until: Moment,
}

impl Line {
    pub(super) fn new(policy: &Policy) -> Self {
        if policy.is_scoped() { Self::Scoped(Scoped::default()) } else { Self::Ordered(Ordered::default()) }
    }

    /// Adds a job; one that meets a known obstacle does not ask in vain.
    pub(super) fn push(&mut self, place: Place, job: &ScopedJob, policy: &Policy, now: Moment) {
        match self {
            Self::Ordered(ordered) => {
                let first = ordered.places.first().is_none_or(|first| place < *first);
                ordered.places.insert(place);
                // A new head may be let in where the old one was not.
                if first && ordered.blocked.is_some_and(|(_, cause)| cause == LastCause::Rate) {
                    ordered.blocked = None;
                }
            }
            Self::Scoped(scoped) => scoped.push(place, job, policy, now),
        }
    }

    pub(super) fn remove(&mut self, place: Place) {
        match self {
            Self::Ordered(ordered) => {
                let was_first = ordered.places.first() == Some(&place);
                ordered.places.remove(&place);
                let head_left =
                    was_first && ordered.blocked.is_some_and(|(_, cause)| cause == LastCause::Rate);
                if ordered.places.is_empty() || head_left {
                    ordered.blocked = None;
                }
            }
            Self::Scoped(scoped) => scoped.remove(place),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        match self {
            Self::Ordered(ordered) => ordered.places.is_empty(),
            Self::Scoped(scoped) => scoped.ready.is_empty() && scoped.under.is_empty(),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Ordered(ordered) => ordered.places.len(),
            Self::Scoped(scoped) => scoped.ready.len() + scoped.under.len(),
        }
    }

    /// The one that waits longest among those of the highest priority.
    pub(super) fn head(&self) -> Option<usize> {
        match self {
            Self::Ordered(ordered) => ordered.places.first().map(|place| place.2),
            Self::Scoped(scoped) => {
                let parked = scoped.parked.values().filter_map(|parked| parked.jobs.keys().next());
                scoped.ready.first().into_iter().chain(parked).min().map(|place| place.2)
            }
        }
    }

    /// Whether a job that tries once would ask in vain, and why.
    pub(super) fn blocked(&self, now: Moment) -> Option<(Moment, LastCause)> {
        match self {
            Self::Ordered(ordered) => ordered.blocked.filter(|(until, _)| *until > now),
            Self::Scoped(_) => None,
        }
    }

    /// Whether there is something to ask the store.
    pub(super) fn is_due(&self, now: Moment) -> bool {
        match self {
            Self::Ordered(ordered) => !ordered.places.is_empty() && self.blocked(now).is_none(),
            Self::Scoped(scoped) => {
                scoped.paused_until.is_none_or(|until| until <= now)
                    && (!scoped.ready.is_empty() || scoped.timers.first().is_some_and(|(at, _)| *at <= now))
            }
        }
    }

    /// When there will be something to ask, if nothing else happens.
    pub(super) fn next_due(&self) -> Option<Moment> {
        match self {
            Self::Ordered(ordered) => {
                ordered.blocked.map(|(until, _)| until).filter(|_| !ordered.places.is_empty())
            }
            Self::Scoped(scoped) => {
                let first =
                    if scoped.ready.is_empty() { scoped.timers.first().map(|(at, _)| *at) } else { None };
                let paused = scoped.paused_until.filter(|_| !self.is_empty());
                first.into_iter().chain(paused).max()
            }
        }
    }

    /// The jobs to ask for now, in order, at most `most`.
    pub(super) fn ask<'a>(
        &mut self,
        now: Moment,
        most: usize,
        rules: usize,
        job: impl Fn(usize) -> Option<&'a ScopedJob>,
    ) -> Vec<usize> {
        match self {
            Self::Ordered(ordered) => {
                ordered.blocked = None;
                ordered.places.iter().take(most.min(MOST_JOBS)).map(|place| place.2).collect()
            }
            Self::Scoped(scoped) => {
                scoped.paused_until = None;
                scoped.unpark_due(now);
                let by_states = MOST_STATES / rules.max(1);
                let most = most.min(MOST_SCOPED_JOBS).min(by_states.max(1));
                let places = scoped.ready.iter().filter(|place| job(place.2).is_some());
                places.take(most).map(|place| place.2).collect()
            }
        }
    }

    /// Notes that the head was denied until then.
    pub(super) fn block(&mut self, until: Moment, cause: LastCause) {
        match self {
            Self::Ordered(ordered) => {
                if !ordered.places.is_empty() {
                    ordered.blocked = Some((until, cause));
                }
            }
            Self::Scoped(scoped) => {
                if cause == LastCause::Pause {
                    scoped.paused_until = Some(until);
                }
            }
        }
    }

    /// Notes that a scoped job was denied until then by `obstacle`, with what it costs there.
    pub(super) fn park(
        &mut self,
        place: Place,
        obstacle: Obstacle,
        cost: u64,
        until: Moment,
        passed_until: Moment,
        now: Moment,
    ) {
        if let Self::Scoped(scoped) = self {
            scoped.park(place, obstacle, Waits { until, cost, passed_until }, now);
        }
    }

    /// After an answer: those behind jobs that were all granted are tried at once.
    pub(super) fn answered(&mut self, now: Moment) {
        if let Self::Scoped(scoped) = self {
            scoped.answered(now);
        }
    }

    /// There is room for a job: asks again, whatever was known of slots.
    pub(super) fn room(&mut self, now: Moment) {
        match self {
            Self::Ordered(ordered) => {
                if ordered.blocked.is_some_and(|(_, cause)| cause == LastCause::Slots) {
                    ordered.blocked = None;
                }
            }
            Self::Scoped(scoped) => {
                if let Some(parked) = scoped.parked.get_mut(&Obstacle::Slots) {
                    parked.retry_at.iter().for_each(|at| {
                        scoped.timers.remove(&(*at, Obstacle::Slots));
                    });
                    parked.retry_at = Some(now);
                    scoped.timers.insert((now, Obstacle::Slots));
                    parked.jobs.values_mut().for_each(|waits| waits.until = waits.until.min(now));
                }
            }
        }
    }

    /// Whatever was known counts no longer.
    pub(super) fn unblock(&mut self, cause: Option<LastCause>) {
        match self {
            Self::Ordered(ordered) => {
                if cause.is_none() || ordered.blocked.map(|(_, blocked)| blocked) == cause {
                    ordered.blocked = None;
                }
            }
            Self::Scoped(scoped) => {
                if cause.is_none_or(|cause| cause == LastCause::Pause) {
                    scoped.paused_until = None;
                }
                if cause.is_none() {
                    for (_, parked) in scoped.parked.drain() {
                        scoped.ready.extend(parked.jobs.into_keys());
                    }
                    scoped.under.clear();
                    scoped.timers.clear();
                }
            }
        }
    }
}

impl Parked {
    /// When each of the first jobs is worth asking for: not before its own time, nor before that of a job ahead of it
    /// that asks for no more or that nobody may pass.
    fn times(&self, now: Moment) -> Vec<(Place, Moment)> {
        let mut ahead: Vec<Waits> = Vec::new();
        let mut times = Vec::with_capacity(self.jobs.len().min(WATCHED));
        for (place, waits) in self.jobs.iter().take(WATCHED) {
            let holds = |other: &&Waits| other.cost <= waits.cost || other.passed_until <= now;
            let until = ahead.iter().filter(holds).map(|other| other.until).fold(waits.until, Moment::max);
            times.push((*place, until));
            let holds_more = ahead.iter().all(|other| waits.cost < other.cost || until > other.until);
            if until > now && holds_more {
                ahead.push(Waits { until, ..*waits });
            }
        }
        times
    }
}

impl Scoped {
    fn push(&mut self, place: Place, job: &ScopedJob, policy: &Policy, now: Moment) {
        if let Some((obstacle, waits)) = self.known_obstacle(place, job, policy, now) {
            self.put(place, obstacle, waits, now);
        } else {
            self.ready.insert(place);
        }
    }

    /// An obstacle that this job would meet as well: someone before it was denied for the same or less, or waits there
    /// so long that nobody may pass any more.
    fn known_obstacle(
        &self,
        place: Place,
        job: &ScopedJob,
        policy: &Policy,
        now: Moment,
    ) -> Option<(Obstacle, Waits)> {
        if self.parked.is_empty() {
            return None;
        }
        for (index, rule) in policy.rules().iter().enumerate() {
            let obstacle = Obstacle::Rule(index, job.identity(rule).cloned());
            let Some(parked) = self.parked.get(&obstacle) else { continue };
            let cost = job.costs.of(rule.name());
            let before = |other: &Place| *other < place;
            let meets =
                |other: &Waits| other.until > now && (other.cost <= cost || other.passed_until <= now);
            let met = parked.jobs.iter().find(|(other, waits)| before(other) && meets(waits));
            if let Some((_, waits)) = met {
                let passed_until = now.plus(Duration::from_millis(rule.interval_ms()));
                return Some((obstacle, Waits { cost, passed_until, ..*waits }));
            }
        }
        None
    }

    fn park(&mut self, place: Place, obstacle: Obstacle, waits: Waits, now: Moment) {
        self.ready.remove(&place);
        if let Some(parked) = self.parked.get_mut(&obstacle) {
            parked.batch = 1;
            parked.tried.remove(&place);
        }
        self.put(place, obstacle, waits, now);
    }

    fn put(&mut self, place: Place, obstacle: Obstacle, waits: Waits, now: Moment) {
        self.under.insert(place.2, obstacle.clone());
        let parked = self.parked.entry(obstacle.clone()).or_default();
        parked.batch = parked.batch.max(1);
        parked.jobs.insert(place, waits);
        let retry_at = parked.times(now).iter().map(|(_, until)| *until).min();
        Self::retime(&mut self.timers, parked, &obstacle, retry_at);
    }

    fn retime(
        timers: &mut BTreeSet<(Moment, Obstacle)>,
        parked: &mut Parked,
        obstacle: &Obstacle,
        retry_at: Option<Moment>,
    ) {
        if parked.retry_at == retry_at {
            return;
        }
        if let Some(at) = parked.retry_at {
            timers.remove(&(at, obstacle.clone()));
        }
        if let Some(at) = retry_at {
            timers.insert((at, obstacle.clone()));
        }
        parked.retry_at = retry_at;
    }

    fn remove(&mut self, place: Place) {
        self.ready.remove(&place);
        if let Some(obstacle) = self.under.remove(&place.2)
            && let Some(parked) = self.parked.get_mut(&obstacle)
        {
            parked.jobs.remove(&place);
            if parked.jobs.is_empty() && parked.tried.is_empty() {
                Self::retime(&mut self.timers, parked, &obstacle, None);
                self.parked.remove(&obstacle);
            }
        }
    }

    /// Makes those ready whose time has come: a batch for each obstacle.
    fn unpark_due(&mut self, now: Moment) {
        while let Some((_, obstacle)) = self.timers.first().filter(|(at, _)| *at <= now).cloned() {
            self.unpark(&obstacle, now);
        }
    }

    fn unpark(&mut self, obstacle: &Obstacle, now: Moment) {
        let Some(parked) = self.parked.get_mut(obstacle) else { return };
        let times = parked.times(now);
        let due: Vec<Place> = times
            .iter()
            .filter(|(_, until)| *until <= now)
            .take(parked.batch)
            .map(|(place, _)| *place)
            .collect();
        for place in &due {
            parked.jobs.remove(place);
            parked.tried.insert(*place);
            self.under.remove(&place.2);
            self.ready.insert(*place);
        }
        // Those left behind wait for what comes of the batch, or for their own time.
        let later = times.iter().map(|(_, until)| *until).filter(|until| *until > now).min();
        Self::retime(&mut self.timers, parked, obstacle, later);
    }

    fn answered(&mut self, now: Moment) {
        let ready = &self.ready;
        let mut next = Vec::new();
        self.parked.retain(|obstacle, parked| {
            if parked.tried.is_empty() {
                return !parked.jobs.is_empty();
            }
            let before = parked.tried.len();
            parked.tried.retain(|place| ready.contains(place));
            if before > 0 && parked.tried.is_empty() && !parked.jobs.is_empty() {
                next.push(obstacle.clone());
            }
            !parked.jobs.is_empty() || !parked.tried.is_empty()
        });
        for obstacle in next {
            let Some(parked) = self.parked.get_mut(&obstacle) else { continue };
            let denied_again = parked.batch == 1 && parked.retry_at.is_some_and(|at| at > now);
            if denied_again {
                continue;
            }
            parked.batch = parked.batch.saturating_mul(2).min(MOST_SCOPED_JOBS);
            self.unpark(&obstacle, now);
        }
    }
}

/// How far down a line of parked jobs is looked in one step.
const WATCHED: usize = 256;
