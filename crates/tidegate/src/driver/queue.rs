//! The line of one tier: who waits in it, in which order, and until when it is known that asking is in vain.
//!
//! Jobs without scopes stand in one line, and its head decides for all. Jobs with scopes are held up only by what denied
//! them, or would deny them as well: a rule with an identity, or full slots. Such a job is parked under its obstacle
//! without asking.
//!
//! Spec: VA-2, VA-3.

mod ordered;
mod parked;
mod scoped;
#[cfg(test)]
mod tests;

use std::{cmp::Reverse, sync::Arc, time::Duration};

use tidegate_core::{Identity, Name, Policy, ScopedJob, time::Moment};

use self::{ordered::Ordered, scoped::Scoped};
use crate::LastCause;

/// A waiter's place: by priority, then by arrival. The last part is its key.
pub(super) type Place = (Reverse<i32>, u64, usize);

/// The place of whoever would come next with this priority.
pub(super) const fn next_place(priority: i32) -> Place {
    (Reverse(priority), u64::MAX, usize::MAX)
}

/// That asking is in vain: until when, and why. Until now, where only others come first.
pub(super) type Known = (Moment, LastCause);

/// What a job waits for.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Obstacle {
    /// A slot.
    Slots,
    /// A rule of the policy that decides, by its place there, with the identity where it has a scope.
    Rule(usize, Option<Identity>),
    /// Something that this process knows nothing of, as a rule of a newer policy. It holds up no one else.
    Unknown(usize),
}

impl Obstacle {
    const fn cause(&self) -> LastCause {
        match self {
            Self::Slots => LastCause::Slots,
            Self::Rule(..) | Self::Unknown(_) => LastCause::Rate,
        }
    }
}

/// A denial for want of a slot or of a rate, as a line takes it in.
#[derive(Clone, Debug)]
pub(super) struct Denied {
    pub(super) obstacle: Obstacle,
    /// The name of the rule, where it has one.
    pub(super) rule: Option<Name>,
    /// What the job costs there.
    pub(super) cost: u64,
    /// When it is worth asking again.
    pub(super) until: Moment,
    /// How long others may pass it.
    pub(super) passed_for: Duration,
}

/// What a line has to ask.
#[derive(Default, Debug)]
pub(super) struct Asked {
    /// In order.
    pub(super) jobs: Vec<usize>,
    /// Those that would ask in vain.
    pub(super) denied: Vec<(usize, Known)>,
}

pub(super) enum Line {
    Ordered(Ordered),
    Scoped(Box<Scoped>),
}

impl Line {
    pub(super) fn new(policy: &Policy) -> Self {
        if policy.is_scoped() { Self::Scoped(Box::default()) } else { Self::Ordered(Ordered::default()) }
    }

    pub(super) fn push(&mut self, place: Place, job: &Arc<ScopedJob>) {
        match self {
            Self::Ordered(ordered) => ordered.push(place, job),
            Self::Scoped(scoped) => scoped.push(place, job),
        }
    }

    pub(super) fn remove(&mut self, place: Place) {
        match self {
            Self::Ordered(ordered) => ordered.remove(place),
            Self::Scoped(scoped) => scoped.remove(place),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Ordered(ordered) => ordered.len(),
            Self::Scoped(scoped) => scoped.len(),
        }
    }

    /// The first of those that would take a slot: who waits for a rate would not.
    pub(super) fn head(&self) -> Option<usize> {
        match self {
            Self::Ordered(ordered) => ordered.head(),
            Self::Scoped(scoped) => scoped.head(),
        }
    }

    /// How many would take a slot.
    pub(super) fn takers(&self) -> usize {
        match self {
            Self::Ordered(ordered) => ordered.len(),
            Self::Scoped(scoped) => scoped.takers(),
        }
    }

    /// Whether someone waits for a slot, as far as is known: a rate or a pause is no demand for slots.
    pub(super) fn waits_for_slots(&self) -> bool {
        match self {
            Self::Ordered(ordered) => ordered.waits_for_slots(),
            Self::Scoped(scoped) => scoped.waits_for_slots(),
        }
    }

    /// What the one at this place waits for, where it is known, and until when at least: its time may have come.
    pub(super) fn known(&self, place: Place, now: Moment) -> Option<Known> {
        match self {
            Self::Ordered(ordered) => ordered.known(),
            Self::Scoped(scoped) => scoped.known(place, now),
        }
    }

    /// Whether a job at this place would ask in vain, or has to let others go first.
    pub(super) fn meets(&self, place: Place, job: &ScopedJob, policy: &Policy, now: Moment) -> Option<Known> {
        match self {
            Self::Ordered(ordered) => ordered.meets(place, job, now),
            Self::Scoped(scoped) => scoped.meets(place, job, policy, now),
        }
    }

    /// Whether there is something to ask, or to find out about those that wait.
    pub(super) fn is_due(&self, now: Moment) -> bool {
        match self {
            Self::Ordered(ordered) => ordered.is_due(now),
            Self::Scoped(scoped) => scoped.is_due(now),
        }
    }

    /// When there will be, if nothing else happens and there is nothing now.
    pub(super) fn next_due(&self) -> Option<Moment> {
        match self {
            Self::Ordered(ordered) => ordered.next_due(),
            Self::Scoped(scoped) => scoped.next_due(),
        }
    }

    /// The jobs to ask for now, in order, at most `most`; `policy` is the one that decides.
    pub(super) fn ask(&mut self, now: Moment, most: usize, policy: &Policy) -> Asked {
        match self {
            Self::Ordered(ordered) => ordered.ask(most),
            Self::Scoped(scoped) => scoped.ask(now, most, policy),
        }
    }

    /// Notes that a job was denied.
    pub(super) fn deny(&mut self, place: Place, denied: Denied, now: Moment) {
        match self {
            Self::Ordered(ordered) => ordered.deny(place, denied),
            Self::Scoped(scoped) => scoped.deny(place, denied, now),
        }
    }

    /// Notes a pause that ends at `until`, after which this process comes back at `resumes_at`. One that is known stays
    /// as it is.
    pub(super) fn pause(&mut self, until: Moment, resumes_at: Moment) {
        match self {
            Self::Ordered(ordered) => ordered.pause(until, resumes_at),
            Self::Scoped(scoped) => scoped.pause(until, resumes_at),
        }
    }

    /// A pause is over.
    pub(super) fn resume(&mut self) {
        match self {
            Self::Ordered(ordered) => ordered.resume(),
            Self::Scoped(scoped) => scoped.resume(),
        }
    }

    /// There is room for a job. Says whether someone here can use it.
    pub(super) fn room(&mut self, now: Moment) -> bool {
        match self {
            Self::Ordered(ordered) => ordered.room(),
            Self::Scoped(scoped) => scoped.room(now),
        }
    }

    /// Whatever was known counts no longer.
    pub(super) fn unblock(&mut self) {
        match self {
            Self::Ordered(ordered) => ordered.unblock(),
            Self::Scoped(scoped) => scoped.unblock(),
        }
    }
}

/// Whether one who comes back then has waited out a pause that ends at `until`, and not much longer.
fn fits_pause(resumes_at: Moment, until: Moment) -> bool {
    resumes_at >= until && resumes_at.since(until) <= Duration::from_secs(1)
}
