//! One line, whose head decides for all.

use std::{collections::BTreeMap, sync::Arc};

use tidegate_core::{Name, ScopedJob, store::MOST_JOBS, time::Moment};

use super::{Asked, Denied, Known, Obstacle, Place, fits_pause};
use crate::LastCause;

#[derive(Default)]
pub(in super::super) struct Ordered {
    jobs: BTreeMap<Place, Arc<ScopedJob>>,
    blocked: Option<Blocked>,
}

/// That the head was denied.
struct Blocked {
    until: Moment,
    cause: LastCause,
    whom: Whom,
}

/// Which head would be denied as well.
enum Whom {
    All,
    /// One that costs as much in the rule of this name.
    Costs(Option<Name>, u64),
    /// Only the one that was.
    Only(Place),
}

impl Blocked {
    fn meets(&self, place: Place, job: &ScopedJob) -> bool {
        match &self.whom {
            Whom::All => true,
            Whom::Costs(rule, least) => job.costs.of(rule.as_ref()) >= *least,
            Whom::Only(denied) => *denied == place,
        }
    }
}

impl Ordered {
    pub(super) fn push(&mut self, place: Place, job: &Arc<ScopedJob>) {
        self.jobs.insert(place, Arc::clone(job));
    }

    pub(super) fn remove(&mut self, place: Place) {
        self.jobs.remove(&place);
        if self.jobs.is_empty() {
            self.blocked = None;
        }
    }

    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }

    pub(super) fn head(&self) -> Option<usize> {
        self.jobs.keys().next().map(|place| place.2)
    }

    /// The denial that counts for the head, whenever it ends.
    fn blocking(&self) -> Option<&Blocked> {
        let (place, job) = self.jobs.iter().next()?;
        self.blocked.as_ref().filter(|blocked| blocked.meets(*place, job))
    }

    pub(super) fn known(&self) -> Option<Known> {
        self.blocking().map(|blocked| (blocked.until, blocked.cause))
    }

    fn blocked(&self, now: Moment) -> Option<Known> {
        self.known().filter(|(until, _)| *until > now)
    }

    pub(super) fn waits_for_slots(&self) -> bool {
        self.blocking().is_some_and(|blocked| blocked.cause == LastCause::Slots)
    }

    pub(super) fn meets(&self, place: Place, job: &ScopedJob, now: Moment) -> Option<Known> {
        if self.jobs.keys().next().is_some_and(|head| *head < place) {
            return self.blocked(now);
        }
        // It would be the head itself.
        let blocked = self.blocked.as_ref().filter(|_| !self.jobs.is_empty())?;
        (blocked.until > now && blocked.meets(place, job)).then_some((blocked.until, blocked.cause))
    }

    pub(super) fn is_due(&self, now: Moment) -> bool {
        !self.jobs.is_empty() && self.blocked(now).is_none()
    }

    pub(super) fn next_due(&self) -> Option<Moment> {
        self.blocking().map(|blocked| blocked.until)
    }

    pub(super) fn ask(&mut self, most: usize) -> Asked {
        self.blocked = None;
        let jobs = self.jobs.keys().take(most.min(MOST_JOBS)).map(|place| place.2).collect();
        Asked { jobs, denied: Vec::new() }
    }

    pub(super) fn deny(&mut self, place: Place, denied: Denied) {
        // It counts for the next head too, where the one that was denied is gone by now.
        if self.jobs.is_empty() {
            return;
        }
        let whom = match &denied.obstacle {
            Obstacle::Slots => Whom::All,
            Obstacle::Rule(..) => Whom::Costs(denied.rule, denied.cost),
            Obstacle::Unknown(_) => Whom::Only(place),
        };
        self.blocked = Some(Blocked { until: denied.until, cause: denied.obstacle.cause(), whom });
    }

    pub(super) fn pause(&mut self, until: Moment, resumes_at: Moment) {
        let is_pause = |blocked: &Blocked| blocked.cause == LastCause::Pause;
        let known = self.blocked.as_ref().filter(|blocked| is_pause(blocked));
        if !self.jobs.is_empty() && !known.is_some_and(|known| fits_pause(known.until, until)) {
            self.blocked = Some(Blocked { until: resumes_at, cause: LastCause::Pause, whom: Whom::All });
        }
    }

    fn unblock_from(&mut self, cause: LastCause) {
        self.blocked.take_if(|blocked| blocked.cause == cause);
    }

    pub(super) fn resume(&mut self) {
        self.unblock_from(LastCause::Pause);
    }

    pub(super) fn room(&mut self) -> bool {
        self.unblock_from(LastCause::Slots);
        !self.jobs.is_empty() && self.blocking().is_none()
    }

    pub(super) fn unblock(&mut self) {
        self.blocked = None;
    }
}
