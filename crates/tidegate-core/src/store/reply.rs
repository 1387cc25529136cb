//! What a store answers.

use crate::{Epoch, Token, rule::RuleKey, time::Moment};

/// An answer, with what every answer carries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reply<T> {
    /// How the id stands after the step.
    pub head: Head,
    /// The answer itself.
    pub body: T,
}

impl<T> Reply<T> {
    /// The same head over another body.
    pub fn map<U>(self, body: impl FnOnce(T) -> U) -> Reply<U> {
        Reply { head: self.head, body: body(self.body) }
    }
}

/// How an id stands after a step. What a store does not know, or does not keep, is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Head {
    /// The life of the id's state.
    pub epoch: Option<Epoch>,
    /// The store's clock.
    pub now: Option<Moment>,
    /// The limit in force.
    pub limit: Option<Limit>,
    /// How many slots are taken, resting ones too.
    pub held: Option<u32>,
    /// What is left of a pause, in milliseconds; 0 where there is none.
    pub paused_ms: u64,
    /// The pinned revision.
    pub revision: Option<u32>,
    /// The lease TTL in force, in milliseconds.
    pub lease_ttl_ms: Option<u64>,
    /// How far the store's clock was found to have been set back in this step, in milliseconds; 0 almost always.
    pub stepped_back_ms: u64,
}

/// A limit, and when it was last moved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Limit {
    /// How many leases may be live at once.
    pub value: u32,
    /// When it was moved to that; the clock's zero for one that is as it was seeded.
    pub moved_at: Moment,
}

/// One permit.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The lease, where concurrency is bounded.
    pub lease: Option<Token>,
    /// What each rule had admitted in all right after this job, in the order of the pinned policy's rules.
    pub marks: Marks,
}

/// A number for each rule, in the order of the policy's rules. The first few need no allocation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Marks {
    first: [u64; FEW_MARKS],
    more: Vec<u64>,
    len: usize,
}

const FEW_MARKS: usize = 4;

impl Marks {
    /// The mark of the rule at `index`.
    pub fn get(&self, index: usize) -> Option<u64> {
        let mark = self.first.get(index).or_else(|| self.more.get(index - FEW_MARKS))?;
        (index < self.len).then_some(*mark)
    }

    /// Adds the mark of the next rule.
    #[inline]
    pub fn push(&mut self, mark: u64) {
        match self.first.get_mut(self.len) {
            Some(place) => *place = mark,
            None => self.more.push(mark),
        }
        self.len += 1;
    }
}

impl FromIterator<u64> for Marks {
    fn from_iter<I: IntoIterator<Item = u64>>(marks: I) -> Self {
        let mut all = Self::default();
        marks.into_iter().for_each(|mark| all.push(mark));
        all
    }
}

/// An answer of the synchronous path with no more than is new.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Brief {
    /// The moment of the step: the store's clock, or for a release that comes to the same at any moment the last one
    /// that the store has seen.
    pub now: Moment,
    /// The permit, for an acquire.
    pub grant: Option<Grant>,
    /// Changes with everything in a head but `now` and `held`.
    pub seen: u64,
    /// How the id stands, where that changed from what is known.
    pub head: Option<Box<Head>>,
}

/// Why a job was not granted, and when to come again.
///
/// Spec: ST-6, ST-7.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Denial {
    /// The earliest useful retry, in milliseconds from now; above 0 and below 2^53.
    pub hint_ms: u64,
    /// Whether full slots, not a rate rule, denied it.
    pub lease_blocked: bool,
    /// The rule that set the hint, for a rate denial.
    pub rule: Option<RuleKey>,
}

/// What came of the head of a queue.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct AcquireReply {
    /// One for each job granted, from the first.
    pub grants: Vec<Grant>,
    /// Why the first job that is left was denied; none where all were granted. In a pause the hint is what is left of it.
    pub denied: Option<Denial>,
    /// How many other drivers wait for a rate.
    pub others: u32,
}

/// What came of scoped jobs: each index exactly once among grants and denials. A pause denies all.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ScopedReply {
    /// The jobs granted.
    pub grants: Vec<ScopedGrant>,
    /// The jobs denied.
    pub denied: Vec<ScopedDenial>,
    /// How many other drivers wait for a rate.
    pub others: u32,
}

/// A job of a scoped request that was granted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScopedGrant {
    /// Its place in the request.
    pub index: usize,
    /// Its permit.
    pub grant: Grant,
}

/// A job of a scoped request that was denied.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScopedDenial {
    /// Its place in the request.
    pub index: usize,
    /// Why, and when to come again.
    pub denial: Denial,
}

/// What came of a renewal: for each token, in order, whether it lives.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Renewed {
    /// Whether each lives, for one TTL from now at least.
    pub live: Vec<bool>,
}

/// What came of a settlement.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Settled {
    /// How much debt was cut off; 0 almost always.
    pub cut: u64,
}

/// What came of a pause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PauseReply {
    /// What is left of it, in milliseconds.
    pub left_ms: u64,
    /// Whether one was running.
    pub extended: bool,
}
