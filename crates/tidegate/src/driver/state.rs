//! What a driver keeps, and what changes in it alone.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, VecDeque},
    sync::Arc,
    task::Waker,
    time::Duration,
};

use tidegate_core::{
    Epoch, Exchange, Limit, Marks, Member, Policy, ScopedJob, Subscription, Token, time::LONGEST,
    time::Moment,
};

use super::{
    Ask, View,
    local::Local,
    notice::Notice,
    outbox::Outbox,
    queue::{Line, Place},
    table::Table,
};
use crate::{AcquireError, LastCause};

pub(super) struct State {
    pub(super) lines: Vec<Line>,
    pub(super) waiters: Table<Waiter>,
    /// How many of each line try once.
    pub(super) trying: Vec<usize>,
    deadlines: BTreeSet<(Moment, usize)>,
    /// Until when at the latest each job waits that the store owes a first answer: its timeout is no longer than one
    /// operation, or over already.
    owed: BTreeSet<(Moment, usize)>,
    arrivals: u64,
    pub(super) held: Table<Held>,
    /// What is known of the permits that were handed out.
    pub(super) issued: Table<Granted>,
    pub(super) in_flight: Vec<u32>,
    pub(super) outbox: Outbox,
    /// The exchange under way, or the one whose answer was lost.
    pub(super) flying: Option<Arc<Flight>>,
    pub(super) number: u64,
    /// While an answer is waited for: when the task looks up from that.
    pub(super) looks_up_at: Option<Moment>,
    pub(super) away: Option<Away>,
    /// Whether the store was asked what it found of itself since it last began to answer, and how much that was.
    pub(super) opened: bool,
    pub(super) risks: usize,
    /// While the store is away: what decides in its place.
    pub(super) local: Option<Local>,
    /// Until it goes away again: what decided in its place.
    pub(super) resting: Option<Local>,
    /// Leases granted here that the store is to count.
    pub(super) unhanded: Vec<(usize, u64)>,
    /// Until when the fleet is to be paused by the word of this process, as long as the store does not have it.
    pub(super) unsent_pause: Option<Moment>,
    /// How many callers are telling the store of a pause or its end.
    pub(super) telling: usize,
    /// Whether the fleet is to go on by the word of this process, as long as the store may not have it.
    pub(super) unsent_resume: bool,
    /// What the store lost and this process knows, until the store has it again.
    pub(super) restore: Option<tidegate_core::Restore>,
    /// Leases to be renewed with that.
    pub(super) unrestored: Vec<(usize, u64)>,
    /// What the last brief answer of the synchronous path said.
    pub(super) seen: u64,
    pub(super) epoch: Option<Epoch>,
    /// When this process learnt of that epoch.
    pub(super) epoch_since: Moment,
    pub(super) limit: Option<Limit>,
    pub(super) lease_ttl: Duration,
    /// The store's clock at some moment of ours.
    pub(super) store_clock: Option<(Moment, Moment)>,
    pub(super) paused_until: Option<Moment>,
    /// When this process learnt of the pause.
    pub(super) paused_since: Moment,
    /// When this process learnt that the last pause was ended.
    pub(super) resumed_at: Moment,
    pub(super) closed: bool,
    pub(super) running: bool,
    pub(super) renewing: bool,
    pub(super) subscription: Option<Subscription>,
    pub(super) refresh_at: Option<Moment>,
    /// Who is to be woken when the lock is free again.
    pub(super) wakers: Vec<Waker>,
    pub(super) notices: VecDeque<Notice>,
    pub(super) delivering: bool,
    pub(super) granted: u64,
    pub(super) denied: [u64; 3],
    pub(super) seeded_limit: u32,
    /// A line may have become due without anyone asking.
    pub(super) room_wanted: bool,
}

/// A job that waits.
pub(super) struct Waiter {
    /// Tells one waiter from the next that has its key.
    pub(super) stamp: u64,
    pub(super) tier: usize,
    pub(super) priority: i32,
    pub(super) job: Arc<ScopedJob>,
    pub(super) timeout: Duration,
    pub(super) since: Moment,
    pub(super) deadline: Option<Moment>,
    /// Until when it waits for the first answer, where that is what it waits for.
    owed_until: Option<Moment>,
    /// When it was first denied.
    pub(super) denied_at: Option<Moment>,
    pub(super) last: Option<LastCause>,
    pub(super) hint_at: Option<Moment>,
    /// Whether an answer about it is outstanding.
    pub(super) asked: bool,
    /// Whether it was denied by this process alone.
    pub(super) local: bool,
    pub(super) ended: Option<Result<Granted, AcquireError>>,
    pub(super) waker: Option<Waker>,
}

impl Waiter {
    pub(super) fn place(&self, key: usize) -> Place {
        (Reverse(self.priority), self.stamp, key)
    }

    pub(super) const fn tries_once(&self) -> bool {
        self.timeout.is_zero()
    }
}

/// What is known of a permit while it lasts. It is kept here and not in the permit, which is moved about.
pub(super) struct Granted {
    pub(super) tier: usize,
    /// None for the job of unit cost.
    pub(super) job: Option<Arc<ScopedJob>>,
    /// Where its lease is among those that this process holds.
    pub(super) held: Option<usize>,
    pub(super) limit: u32,
    pub(super) local: bool,
    /// On the store's clock.
    pub(super) granted_at: Option<Moment>,
    /// On ours.
    pub(super) since: Moment,
    pub(super) marks: Marks,
    /// Rules that were settled, a bit each: there are at most 16.
    pub(super) settled: u16,
}

/// A lease that this process holds.
pub(super) struct Held {
    pub(super) stamp: u64,
    pub(super) tier: usize,
    pub(super) token: Token,
    /// Granted by this process alone, and not yet counted by the store.
    pub(super) local: bool,
    pub(super) deadline: Moment,
    pub(super) lost: bool,
    pub(super) wakers: Vec<Waker>,
}

/// The store is away.
pub(super) struct Away {
    pub(super) since: Moment,
    pub(super) probe_at: Moment,
    /// How many probes were in vain since.
    pub(super) probes: u64,
    pub(super) error: tidegate_core::StoreError,
}

/// An exchange, and who asked for what in it.
pub(super) struct Flight {
    pub(super) exchange: Exchange,
    /// For each acquire, its tier and its jobs: key and stamp.
    pub(super) asked: Vec<(usize, Vec<(usize, u64)>)>,
    /// For each hand-over, the lease: key and stamp.
    pub(super) handed: Vec<(usize, u64)>,
    /// For each release, when it was handed over.
    pub(super) released: Vec<Moment>,
    pub(super) sent: Moment,
    /// Whether it is decided by this process alone.
    pub(super) local: bool,
}

impl State {
    pub(super) fn new(member: &Member) -> Self {
        let policy = &member.policy;
        let tiers = policy.classes().len() + 1;
        let initial = match policy.bound() {
            Some(tidegate_core::Bound::Fixed(limit)) => *limit,
            _ => member.initial_limit,
        };
        Self {
            lines: (0..tiers).map(|_| Line::new(policy)).collect(),
            waiters: Table::new(),
            trying: vec![0; tiers],
            deadlines: BTreeSet::new(),
            owed: BTreeSet::new(),
            arrivals: 0,
            held: Table::new(),
            issued: Table::new(),
            in_flight: vec![0; tiers],
            outbox: Outbox::default(),
            flying: None,
            number: 0,
            looks_up_at: None,
            away: None,
            opened: false,
            risks: 0,
            local: None,
            resting: None,
            unhanded: Vec::new(),
            unsent_pause: None,
            telling: 0,
            unsent_resume: false,
            restore: None,
            unrestored: Vec::new(),
            seen: 0,
            epoch: None,
            epoch_since: Moment::default(),
            limit: None,
            lease_ttl: Duration::from_millis(policy.lease_ttl_ms()),
            store_clock: None,
            paused_until: None,
            paused_since: Moment::default(),
            resumed_at: Moment::default(),
            closed: false,
            running: false,
            renewing: false,
            subscription: None,
            refresh_at: None,
            wakers: Vec::new(),
            notices: VecDeque::new(),
            delivering: false,
            granted: 0,
            denied: [0; 3],
            seeded_limit: initial,
            room_wanted: false,
        }
    }

    /// Where the lease of a permit is, where it has one.
    pub(super) fn lease_of(&self, permit: usize) -> Option<usize> {
        self.issued.get(permit).and_then(|granted| granted.held)
    }

    pub(super) fn stamp(&mut self) -> u64 {
        self.arrivals += 1;
        self.arrivals
    }

    /// Puts a job into its line. Its first answer may take as long as `op_timeout`.
    pub(super) fn enqueue(
        &mut self,
        ask: &Ask,
        job: &Arc<ScopedJob>,
        tier: usize,
        op_timeout: Duration,
        now: Moment,
    ) -> usize {
        let stamp = self.stamp();
        let deadline = (ask.timeout <= LONGEST).then(|| now.plus(ask.timeout));
        let key = self.waiters.insert(Waiter {
            stamp,
            tier,
            priority: ask.priority,
            job: Arc::clone(job),
            timeout: ask.timeout,
            since: now,
            deadline,
            owed_until: None,
            denied_at: None,
            last: None,
            hint_at: None,
            asked: false,
            local: false,
            ended: None,
            waker: None,
        });
        if ask.timeout.is_zero() {
            self.trying[tier] += 1;
            self.defer(key, now.plus(op_timeout));
        } else if let Some(at) = deadline {
            self.deadlines.insert((at, key));
        }
        let place = (Reverse(ask.priority), stamp, key);
        if let Some(line) = self.lines.get_mut(tier) {
            line.push(place, job);
        }
        key
    }

    pub(super) fn waiter(&mut self, (key, stamp): (usize, u64)) -> Option<&mut Waiter> {
        self.waiters.get_mut(key).filter(|waiter| waiter.stamp == stamp && waiter.ended.is_none())
    }

    /// Takes a job out of its line; its waiter stays.
    fn leave(&mut self, key: usize) {
        let Some(waiter) = self.waiters.get(key) else { return };
        let place = waiter.place(key);
        if let Some(line) = self.lines.get_mut(waiter.tier) {
            line.remove(place);
        }
        if waiter.tries_once() {
            self.trying[waiter.tier] -= 1;
        }
        if let Some(at) = waiter.owed_until {
            self.owed.remove(&(at, key));
        } else if let Some(at) = waiter.deadline {
            self.deadlines.remove(&(at, key));
        }
    }

    /// Ends a job's wait.
    pub(super) fn resolve(&mut self, key: usize, ended: Result<Granted, AcquireError>) {
        if self.waiters.get(key).is_none_or(|waiter| waiter.ended.is_some()) {
            return;
        }
        self.leave(key);
        if let Some(waiter) = self.waiters.get_mut(key) {
            waiter.ended = Some(ended);
            self.wakers.extend(waiter.waker.take());
        }
    }

    /// Takes a waiter away, with what came of it.
    pub(super) fn take(&mut self, key: usize) -> Option<Waiter> {
        if self.waiters.get(key).is_some_and(|waiter| waiter.ended.is_none()) {
            self.leave(key);
        }
        self.waiters.remove(key)
    }

    /// Those whose timeout is over, but for those that are owed an answer.
    pub(super) fn past_deadline(&self, now: Moment) -> Vec<usize> {
        self.deadlines.iter().take_while(|(at, _)| *at <= now).map(|(_, key)| *key).collect()
    }

    /// Lets a job wait until then for the first answer about it, whatever its timeout.
    pub(super) fn defer(&mut self, key: usize, until: Moment) {
        let Some(waiter) = self.waiters.get_mut(key) else { return };
        waiter.owed_until = Some(until);
        if let Some(at) = waiter.deadline {
            self.deadlines.remove(&(at, key));
        }
        self.owed.insert((until, key));
    }

    /// Those that are owed an answer, the one that has waited longest first.
    pub(super) fn owed(&self) -> impl Iterator<Item = (Moment, usize)> + '_ {
        self.owed.iter().copied()
    }

    /// When the next wait is over.
    pub(super) fn next_deadline(&self) -> Option<Moment> {
        let first = |set: &BTreeSet<(Moment, usize)>| set.first().map(|(at, _)| *at);
        first(&self.deadlines).into_iter().chain(first(&self.owed)).min()
    }

    /// Leases that the store counts, or did before it lost its state.
    pub(super) fn counted(&self) -> impl Iterator<Item = (usize, &Held)> {
        self.held.iter().filter(|(_, held)| !held.lost && !held.local)
    }

    pub(super) fn is_delivered(&self) -> bool {
        self.outbox.is_empty() && self.flying.is_none() && self.unhanded.is_empty()
    }

    pub(super) fn permits(&self) -> u32 {
        self.in_flight.iter().sum()
    }

    /// Whether nothing is amiss that would keep a job from being asked for on the spot.
    pub(super) const fn is_calm(&self) -> bool {
        !self.closed && self.away.is_none() && self.unsent_pause.is_none()
    }

    /// Whether no one waits in a tier.
    pub(super) fn is_nobody_ahead(&self, tier: usize) -> bool {
        self.waiters.is_empty() || self.lines.get(tier).is_some_and(Line::is_empty)
    }

    pub(super) fn view(&self, policy: &Policy, now: Moment) -> View {
        let by_class = self.lines.iter().zip(&self.in_flight).enumerate().map(|(tier, (line, in_flight))| {
            (policy.class(tier).cloned(), *in_flight, u32::try_from(line.len()).unwrap_or(u32::MAX))
        });
        let by_class: Vec<_> = by_class.collect();
        View {
            limit: self.limit.map_or(self.seeded_limit, |limit| limit.value),
            in_flight: self.permits(),
            waiting: by_class.iter().map(|(_, _, waiting)| waiting).sum(),
            by_class,
            paused_for: self.paused_until.map_or(Duration::ZERO, |until| until.since(now)),
            away: self.away.is_some(),
            granted: self.granted,
            denied: self.denied,
        }
    }

    /// Has the recorders told how a tier stands.
    pub(super) fn note_load(&mut self, tier: usize) {
        let in_flight = self.in_flight.get(tier).copied().unwrap_or(0);
        let queued = self.lines.get(tier).map_or(0, Line::len);
        let queued = u32::try_from(queued).unwrap_or(u32::MAX);
        self.notices.push_back(Notice::Load { tier, in_flight, queued });
    }
}
