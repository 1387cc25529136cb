//! Everything that a store keeps of one id, and every step on it.
//!
//! A step begins by settling what *now* is and sweeping a bounded number of what is over; it checks the whole request;
//! then it changes things. What is to be pushed gathers in `wakes`.

use std::{collections::HashMap, sync::Arc, time::Duration};

use crate::{
    Bound, DriverId, Epoch, Id, Identity, Invalid, LeaseView, Member, Name, Policy, Token,
    circuit::Position,
    lease::{Leases, Terms},
    limit::LimitState,
    policy::MOST_CLASSES,
    rule::{CheckedRule, Observed, RuleKey},
    share,
    store::{
        self, Acquire, AcquireReply, AcquireRequest, Acquired, Brief, CircuitMember, CircuitNews,
        CircuitReply, CircuitRequest, Costs, Denial, Exchange, ExchangeReply, Grant, HandOver, Head, Limit,
        Line, MOST_TOKENS, Marks, Observation, Outcome, Page, PauseReply, Release, Renewal, Renewed, Reply,
        Restore, ScopedDenial, ScopedGrant, ScopedJob, ScopedReply, ScopedRequest, Settled, Settlement,
        Snapshot, StoreError, Wake, at_most, pause_millis,
    },
    time::{LAST, Moment},
};

use super::{
    circuit::CircuitModel,
    due::{Due, Item},
    levels::{Changed, Levels},
    places::{PerTier, Places},
};

/// The layout of stored state that this version writes.
///
/// Spec: ST-21.
pub const LAYOUT: u32 = 1;

/// A pin without use is forgotten after this long.
///
/// Spec: ST-5.
pub const PIN_TTL: Duration = Duration::from_millis(PIN_TTL_MS);
pub(super) const PIN_TTL_MS: u64 = 30 * 24 * 60 * 60 * 1_000;

/// The clock may be this far behind the last moment seen before stored moments move back with it.
pub(super) const BEHIND_MICROS: u64 = 1_000_000;
/// Ended leases that one step sweeps at most.
const SWEPT_LEASES: usize = 1_000;
/// Resting levels and old answers that one step sweeps at most.
const SWEPT_ITEMS: usize = 256;
/// An answer is kept at least this long for a repeat.
const ANSWER_KEPT_MS: u64 = 60_000;
/// A process keeps its own freed slot while no other has waited this much longer than its own head.
const OWN_FIRST_MS: u64 = 10;
/// An extension of a pause is published when it is longer than this.
const PUBLISHED_MS: u64 = 1_000;

/// What a job costs unless told.
static UNIT: Costs = Costs { each: 1, named: Vec::new() };

/// A push, and whom it is for: one driver, or all that listen.
pub type Push = (Option<DriverId>, Wake);

/// One id of a store, as a value.
#[derive(Clone, Debug, Default)]
pub struct IdModel {
    layout: Option<u32>,
    last: Moment,
    life: Option<Life>,
    circuit: CircuitModel,
    /// No fence and no epoch is given twice, not even after everything else was forgotten.
    last_fence: u64,
    answers: HashMap<DriverId, Kept>,
    due: Due,
    /// Counts changes of what a head says.
    seen: u64,
    listening: Vec<DriverId>,
    wakes: Vec<Push>,
}

/// What is lost when the state is lost.
#[derive(Clone, Debug)]
struct Life {
    epoch: Epoch,
    born_ms: u64,
    pinned: Option<Pinned>,
    paused_until_ms: u64,
}

/// What belongs to the pinned policy.
#[derive(Clone, Debug)]
struct Pinned {
    policy: Arc<Policy>,
    used_ms: u64,
    limit: Option<LimitState>,
    moved_at: Moment,
    levels: Levels,
    leases: Leases,
    places: Places,
    /// Drivers denied by a rate, and until when that counts.
    rate_waiters: Vec<(DriverId, u64)>,
}

#[derive(Clone, Debug)]
struct Kept {
    number: u64,
    until_ms: u64,
    answer: Result<Reply<ExchangeReply>, StoreError>,
}

#[derive(Clone, Copy)]
struct Step {
    now: Moment,
    ms: u64,
    stepped_back_ms: u64,
}

impl Step {
    /// The first whole millisecond that is so long from now: nothing that is promised for a time ends before it.
    const fn after(self, ms: u64) -> u64 {
        self.now.micros().div_ceil(1_000).saturating_add(ms)
    }
}

impl IdModel {
    // ---- listening -------------------------------------------------------------------------------------------------

    /// Notes that pushes reach this driver.
    pub fn listen(&mut self, driver: DriverId) {
        if !self.listening.contains(&driver) {
            self.listening.push(driver);
        }
    }

    /// Notes that pushes reach this driver no longer.
    pub fn unlisten(&mut self, driver: DriverId) {
        self.listening.retain(|known| *known != driver);
    }

    /// Whether something is to be pushed.
    pub fn has_wakes(&self) -> bool {
        !self.wakes.is_empty()
    }

    /// Takes what is to be pushed, in order.
    pub fn take_wakes(&mut self) -> Vec<Push> {
        std::mem::take(&mut self.wakes)
    }

    /// Notes a change that all are told of.
    fn push(&mut self, wake: Wake) {
        self.seen += 1;
        if !self.listening.is_empty() {
            self.wakes.push((None, wake));
        }
    }

    // ---- operations ------------------------------------------------------------------------------------------------

    /// As [`Store::acquire`](crate::Store::acquire), at `clock`.
    ///
    /// # Errors
    /// As there.
    pub fn acquire(
        &mut self,
        clock: Moment,
        member: &Member,
        request: &AcquireRequest,
    ) -> Result<Reply<AcquireReply>, StoreError> {
        let step = self.begin(clock)?;
        let body = self.acquire_step(step, member, request, 0)?;
        self.offer_room(step);
        Ok(self.answer(step, body))
    }

    /// As [`Store::acquire_scoped`](crate::Store::acquire_scoped), at `clock`.
    ///
    /// # Errors
    /// As there.
    pub fn acquire_scoped(
        &mut self,
        clock: Moment,
        member: &Member,
        request: &ScopedRequest,
    ) -> Result<Reply<ScopedReply>, StoreError> {
        let step = self.begin(clock)?;
        let body = self.scoped_step(step, member, request, 0)?;
        self.offer_room(step);
        Ok(self.answer(step, body))
    }

    /// As [`Store::release`](crate::Store::release), at `clock`.
    ///
    /// # Errors
    /// As there.
    pub fn release(&mut self, clock: Moment, releases: &[Release]) -> Result<Reply<()>, StoreError> {
        let step = self.begin(clock)?;
        self.release_step(step, releases)?;
        self.offer_room(step);
        Ok(self.answer(step, ()))
    }

    /// As [`Store::renew`](crate::Store::renew), at `clock`.
    ///
    /// # Errors
    /// As there.
    pub fn renew(
        &mut self,
        clock: Moment,
        member: &Member,
        restore: Option<&Restore>,
        renewals: &[Renewal],
    ) -> Result<Reply<Renewed>, StoreError> {
        let step = self.begin(clock)?;
        at_most("renewals", renewals.len(), MOST_TOKENS)?;
        let lost = restore.is_some_and(|restore| self.restore_step(step, member, restore));
        let body = self.renew_step(step, member, lost, renewals);
        self.offer_room(step);
        Ok(self.answer(step, body))
    }

    /// As [`Store::hand_over`](crate::Store::hand_over), at `clock`.
    ///
    /// # Errors
    /// As there.
    pub fn hand_over(
        &mut self,
        clock: Moment,
        member: &Member,
        hand_overs: &[HandOver],
    ) -> Result<Reply<Vec<Token>>, StoreError> {
        let step = self.begin(clock)?;
        let body = self.hand_over_step(step, member, hand_overs)?;
        self.offer_room(step);
        Ok(self.answer(step, body))
    }

    /// As [`Store::settle`](crate::Store::settle), at `clock`.
    ///
    /// # Errors
    /// As there.
    pub fn settle(
        &mut self,
        clock: Moment,
        settlements: &[Settlement],
    ) -> Result<Reply<Vec<Settled>>, StoreError> {
        let step = self.begin(clock)?;
        let body = self.settle_step(step, settlements)?;
        self.offer_room(step);
        Ok(self.answer(step, body))
    }

    /// As [`Store::observe`](crate::Store::observe), at `clock`.
    ///
    /// # Errors
    /// As there.
    pub fn observe(
        &mut self,
        clock: Moment,
        observations: &[Observation],
    ) -> Result<Reply<Vec<bool>>, StoreError> {
        let step = self.begin(clock)?;
        let body = self.observe_step(step, observations)?;
        self.offer_room(step);
        Ok(self.answer(step, body))
    }

    /// As [`Store::exchange`](crate::Store::exchange), at `clock`.
    ///
    /// # Errors
    /// As there.
    pub fn exchange(
        &mut self,
        clock: Moment,
        member: &Member,
        exchange: &Exchange,
    ) -> Result<Reply<ExchangeReply>, StoreError> {
        let step = self.begin(clock)?;
        let Some(sequence) = exchange.sequence else { return self.exchange_step(step, member, exchange) };
        match self.answers.get(&member.driver) {
            Some(kept) if kept.number == sequence.number => return kept.answer.clone(),
            Some(kept) if kept.number > sequence.number => {
                return Err(StoreError::TooLate { number: sequence.number, last: kept.number });
            }
            _ => {}
        }
        if sequence.not_after.is_some_and(|not_after| step.now > not_after) {
            let last = self.answers.get(&member.driver).map_or(0, |kept| kept.number);
            return Err(StoreError::TooLate { number: sequence.number, last });
        }
        let answer = self.exchange_step(step, member, exchange);
        self.keep_answer(step, member, sequence.number, answer.clone());
        answer
    }

    /// As [`Store::circuit`](crate::Store::circuit), at `clock`.
    ///
    /// # Errors
    /// As there.
    pub fn circuit(
        &mut self,
        clock: Moment,
        member: &CircuitMember,
        request: &CircuitRequest,
    ) -> Result<Reply<CircuitReply>, StoreError> {
        let (reply, news) = self.circuit.request(clock, member, request)?;
        self.push_circuit(news);
        Ok(reply)
    }

    fn push_circuit(&mut self, news: Option<CircuitNews>) {
        if let Some(news) = news.filter(|_| !self.listening.is_empty()) {
            self.wakes.push((None, Wake::Circuit(news)));
        }
    }

    /// As [`Store::pause`](crate::Store::pause), at `clock`.
    ///
    /// # Errors
    /// As there.
    pub fn pause(&mut self, clock: Moment, length: Duration) -> Result<Reply<PauseReply>, StoreError> {
        let step = self.begin(clock)?;
        let length_ms = pause_millis(length)?;
        let body = self.pause_step(step, length_ms);
        Ok(self.answer(step, body))
    }

    /// As [`Store::resume`](crate::Store::resume), at `clock`.
    ///
    /// # Errors
    /// As there.
    pub fn resume(&mut self, clock: Moment) -> Result<Reply<bool>, StoreError> {
        let step = self.begin(clock)?;
        let was_paused = self.paused_ms(step.ms) > 0;
        if let Some(life) = &mut self.life {
            life.paused_until_ms = 0;
        }
        if was_paused {
            self.push(Wake::Resumed);
            self.offer_room(step);
        }
        Ok(self.answer(step, was_paused))
    }

    // ---- in brief --------------------------------------------------------------------------------------------------

    /// As [`SyncPath::acquire_one`](crate::SyncPath::acquire_one), at `clock`.
    #[inline]
    pub fn acquire_one(&mut self, clock: Moment, member: &Member, tier: usize, known: u64) -> Option<Brief> {
        let pinned = self.pinned()?;
        let plain = tier <= member.policy.classes().len()
            && Arc::ptr_eq(&pinned.policy, &member.policy)
            && !pinned.policy.safe_start()
            && pinned.places.is_empty()
            && pinned.rate_waiters.is_empty();
        // A clock that was set back is reported by the answer in full.
        if !plain || self.is_far_behind(clock) || self.check_layout().is_err() {
            return None;
        }
        let step = self.come_to(clock);
        let life = self.life.as_mut()?;
        let pinned = life.pinned.as_mut()?;
        let policy = &*member.policy;
        let leased = policy.bound().is_some();
        if life.paused_until_ms > step.ms || leased && pinned.room(tier, &PerTier::default()) == 0 {
            return None;
        }
        for (index, rule) in policy.rules().iter().enumerate() {
            pinned.levels.own(index)?.room(rule, step.ms, 1).ok()?;
        }
        let mut marks = Marks::default();
        pinned.spend(step.ms, policy, &UNIT, &mut marks);
        pinned.used_ms = step.ms;
        let lease = if leased {
            let ends_ms = step.after(policy.lease_ttl_ms());
            let terms = Terms { tier, owner: &member.owner, now_ms: step.ms, ends_ms };
            let lease = pinned.leases.grant(life.epoch, step.now.micros(), terms);
            self.last_fence = lease.fence;
            Some(lease)
        } else {
            None
        };
        let head = self.news(step, known);
        Some(Brief { now: step.now, grant: Some(Grant { lease, marks }), seen: self.seen, head })
    }

    /// As [`SyncPath::release_one`](crate::SyncPath::release_one), at `clock`.
    pub fn release_one(&mut self, clock: Moment, release: &Release, known: u64) -> Option<Brief> {
        let step = self.begin(clock).ok()?;
        self.release_step(step, std::slice::from_ref(release)).ok()?;
        self.offer_room(step);
        Some(Brief { now: step.now, grant: None, seen: self.seen, head: self.news(step, known) })
    }

    /// As [`release_one`](Self::release_one), at the last moment that was seen. None, with nothing changed, where it could
    /// come to something else at a later one: where someone waits, where the limit may move or the slot rests, and where
    /// the lease is not live.
    #[inline]
    pub fn release_at_last(&mut self, release: &Release, known: u64) -> Option<Brief> {
        if self.seen != known || self.check_layout().is_err() {
            return None;
        }
        let (now, seen) = (self.last, self.seen);
        let pinned = self.pinned_mut()?;
        let quiet = release.outcome != Outcome::Throttled
            && pinned.places.is_empty()
            && match (&pinned.limit, pinned.policy.adaptive()) {
                (Some(limit), Some(adaptive)) => limit.is_quiet(adaptive, now.millis()),
                _ => true,
            };
        let released = quiet && pinned.leases.release(release.token, now.millis(), 0);
        released.then_some(Brief { now, grant: None, seen, head: None })
    }

    /// How the id stands, where that is not what is known.
    #[inline]
    fn news(&self, step: Step, known: u64) -> Option<Box<Head>> {
        let is_new = self.seen != known || step.stepped_back_ms > 0;
        is_new.then(|| Box::new(self.head(step)))
    }

    // ---- operators -------------------------------------------------------------------------------------------------

    /// As [`Operators::snapshot`](crate::Operators::snapshot), at `clock`.
    ///
    /// # Errors
    /// As there.
    pub fn snapshot(&mut self, clock: Moment, id: &Id) -> Result<Reply<Option<Snapshot>>, StoreError> {
        let step = self.begin(clock)?;
        let limit = self.limit();
        let paused_ms = self.paused_ms(step.ms);
        let circuit = self.circuit.snapshot(clock)?;
        if self.life.is_none() && circuit.is_none() {
            return Ok(self.answer(step, None));
        }
        let mut snapshot = Snapshot {
            id: id.clone(),
            epoch: self.life.as_ref().map(|life| life.epoch),
            policy: None,
            limit,
            held: 0,
            resting: 0,
            by_class: Vec::new(),
            waiting: 0,
            paused_ms,
            rules: Vec::new(),
            circuit,
        };
        if let Some(pinned) = self.pinned_mut() {
            snapshot.policy = Some(Arc::clone(&pinned.policy));
            snapshot.held = pinned.leases.count();
            snapshot.resting = pinned.leases.resting();
            let by_tier = pinned.leases.by_tier().iter().enumerate();
            snapshot.by_class =
                by_tier.map(|(tier, held)| (pinned.policy.class(tier).cloned(), *held)).collect();
            snapshot.waiting = pinned.places.jobs(step.ms);
            snapshot.rules = pinned.levels.view(&pinned.policy, step.ms);
        }
        Ok(self.answer(step, Some(snapshot)))
    }

    /// As [`Operators::leases`](crate::Operators::leases), at `clock`.
    ///
    /// # Errors
    /// As there.
    pub fn leases(
        &mut self,
        clock: Moment,
        after: Option<u32>,
        most: usize,
    ) -> Result<Reply<Page<LeaseView>>, StoreError> {
        let step = self.begin(clock)?;
        store::page_size(most)?;
        let from = after.map_or(0, |after| after.saturating_add(1));
        let mut items = Vec::new();
        let mut more = false;
        if let Some(pinned) = self.pinned() {
            let mut views =
                pinned.leases.iter(from).filter_map(|(token, owner, tier, granted, ends, resting)| {
                    Some(LeaseView {
                        token,
                        owner: owner?.clone(),
                        class: pinned.policy.class(tier).cloned(),
                        age_ms: step.ms.saturating_sub(granted),
                        left_ms: ends.saturating_sub(step.after(0)),
                        resting,
                    })
                });
            items.extend(views.by_ref().take(most));
            more = views.next().is_some();
        }
        Ok(self.answer(step, Page { items, more }))
    }

    /// As [`Operators::evict`](crate::Operators::evict), at `clock`.
    ///
    /// # Errors
    /// As there.
    pub fn evict(&mut self, clock: Moment, token: Token) -> Result<Reply<bool>, StoreError> {
        let step = self.begin(clock)?;
        let there = self.pinned_mut().is_some_and(|pinned| pinned.leases.evict(token));
        self.offer_room(step);
        Ok(self.answer(step, there))
    }

    /// As [`Operators::set_limit`](crate::Operators::set_limit), at `clock`.
    ///
    /// # Errors
    /// As there.
    pub fn set_limit(&mut self, clock: Moment, value: u32) -> Result<Reply<u32>, StoreError> {
        let step = self.begin(clock)?;
        let refused = |allowed: String| Err(Invalid::new("limit", value, allowed).into());
        let Some(pinned) = self.pinned_mut() else {
            return refused("a limit of an id that is in use".to_owned());
        };
        let policy = Arc::clone(&pinned.policy);
        let (Some(adaptive), Some(limit)) = (policy.adaptive(), pinned.limit.as_mut()) else {
            return refused(
                "an adaptive limit; a fixed one is set by a policy of a higher revision".to_owned(),
            );
        };
        if !(adaptive.min..=adaptive.max).contains(&value) {
            return refused(format!("{} to {}, as the policy says", adaptive.min, adaptive.max));
        }
        let before = limit.value();
        limit.set(adaptive, value, step.ms);
        self.limit_moved(step, before);
        self.offer_room(step);
        Ok(self.answer(step, value))
    }

    /// As [`Operators::replace_policy`](crate::Operators::replace_policy), at `clock`.
    ///
    /// # Errors
    /// As there.
    pub fn replace_policy(&mut self, clock: Moment, policy: &Arc<Policy>) -> Result<Reply<()>, StoreError> {
        let step = self.begin(clock)?;
        let Some(pinned) = self.pinned() else {
            return Err(Invalid::new("id", "an id without a policy", "an id that is in use").into());
        };
        let revision = pinned.policy.revision();
        if policy.revision() <= revision {
            return Err(Invalid::new(
                "revision",
                policy.revision(),
                format!("above {revision}, which is pinned"),
            )
            .into());
        }
        self.install(step, policy, None);
        self.offer_room(step);
        Ok(self.answer(step, ()))
    }

    /// As [`Operators::forget`](crate::Operators::forget), at `clock`.
    ///
    /// # Errors
    /// As there.
    pub fn forget(&mut self, clock: Moment) -> Result<Reply<bool>, StoreError> {
        let step = self.begin(clock)?;
        let mut held = self.circuit.leases(clock)?;
        if let Some(pinned) = self.pinned_mut() {
            while pinned.leases.sweep(step.ms, SWEPT_LEASES) > 0 {}
            held += pinned.leases.count();
        }
        if held > 0 {
            return Err(StoreError::LeasesLive { held });
        }
        let there = self.is_used();
        self.wipe();
        Ok(self.answer(step, there))
    }

    /// As [`Operators::set_circuit`](crate::Operators::set_circuit), at `clock`.
    ///
    /// # Errors
    /// As there.
    pub fn set_circuit(&mut self, clock: Moment, position: Position) -> Result<Reply<bool>, StoreError> {
        let (reply, news) = self.circuit.set(clock, position)?;
        self.push_circuit(news);
        Ok(reply)
    }

    /// Drops all that is kept, as a flush of a store would.
    pub fn wipe(&mut self) {
        self.lose();
        self.circuit.wipe();
    }

    /// Drops all but the circuit.
    fn lose(&mut self) {
        self.seen += 1;
        self.life = None;
        self.answers.clear();
        self.due = Due::default();
        self.layout = None;
    }

    /// Marks the stored state as written by another version, for tests of what happens then.
    pub fn plant_layout(&mut self, layout: u32) {
        self.layout = Some(layout);
        self.circuit.plant_layout(layout);
    }

    /// Sweeps a bounded number of what is over, without a request. Says when to come again.
    pub fn sweep(&mut self, clock: Moment) -> Option<Duration> {
        let step = self.begin(clock).ok()?;
        let next_ms = self.due.next()?;
        Some(Duration::from_millis(next_ms.saturating_sub(step.ms)))
    }

    /// Whether it has state that operators can look at.
    pub const fn is_used(&self) -> bool {
        self.life.is_some() || self.circuit.is_used()
    }

    /// Whether there is nothing to keep.
    pub fn is_empty(&self) -> bool {
        !self.is_used() && self.answers.is_empty() && self.listening.is_empty()
    }

    // ---- steps -----------------------------------------------------------------------------------------------------

    /// Settles what now is, and sweeps.
    fn begin(&mut self, clock: Moment) -> Result<Step, StoreError> {
        self.check_layout()?;
        Ok(self.come_to(clock))
    }

    fn check_layout(&self) -> Result<(), StoreError> {
        match self.layout {
            Some(found) if found > LAYOUT => Err(StoreError::NewerLayout { found, known: LAYOUT }),
            _ => Ok(()),
        }
    }

    #[inline]
    fn come_to(&mut self, clock: Moment) -> Step {
        let clock = clock.min(LAST);
        let stepped_back_ms = if self.is_far_behind(clock) {
            self.step_back(clock)
        } else {
            self.last = self.last.max(clock);
            0
        };
        let step = Step { now: self.last, ms: self.last.millis(), stepped_back_ms };
        if let Some(pinned) = self.pinned_mut() {
            pinned.leases.sweep(step.ms, SWEPT_LEASES);
        }
        if self.due.next().is_some_and(|at_ms| at_ms <= step.ms) {
            self.sweep_items(step.ms);
        }
        if self.is_outlived(step.ms) {
            self.lose();
        }
        step
    }

    fn is_far_behind(&self, clock: Moment) -> bool {
        self.last.micros() > clock.micros().saturating_add(BEHIND_MICROS)
    }

    /// Moves all stored moments back with the clock. Says how far.
    #[cold]
    fn step_back(&mut self, clock: Moment) -> u64 {
        let ms = crate::time::ceil_millis(self.last.since(clock));
        self.shift_back(ms);
        self.last = clock;
        ms
    }

    /// Whether the pin was without use for so long that it is forgotten. It outlives rate state: a level that is not at
    /// rest and a pause keep it, however long they take.
    #[inline]
    fn is_outlived(&self, now_ms: u64) -> bool {
        let Some(life) = &self.life else { return false };
        let used_ms = life.pinned.as_ref().map_or(life.born_ms, |pinned| pinned.used_ms);
        now_ms.saturating_sub(used_ms) >= PIN_TTL_MS
            && life.paused_until_ms <= now_ms
            && life
                .pinned
                .as_ref()
                .is_none_or(|pinned| pinned.leases.count() == 0 && pinned.levels.rest(&pinned.policy, now_ms))
    }

    fn sweep_items(&mut self, now_ms: u64) {
        for _ in 0..SWEPT_ITEMS {
            let Some(item) = self.due.pop(now_ms) else { return };
            match item {
                Item::Level { generation, identity } => {
                    let pinned = self.life.as_mut().and_then(|life| life.pinned.as_mut());
                    let again =
                        pinned.and_then(|pinned| pinned.levels.forget_resting(generation, &identity, now_ms));
                    if let Some((at_ms, generation)) = again {
                        self.due.put(at_ms, Item::Level { generation, identity });
                    }
                }
                Item::Answer(driver) => match self.answers.get(&driver).map(|kept| kept.until_ms) {
                    Some(until_ms) if until_ms > now_ms => self.due.put(until_ms, Item::Answer(driver)),
                    _ => {
                        self.answers.remove(&driver);
                    }
                },
            }
        }
    }

    fn shift_back(&mut self, ms: u64) {
        for kept in self.answers.values_mut() {
            kept.until_ms = kept.until_ms.saturating_sub(ms);
        }
        self.due.shift_back(ms);
        let Some(life) = &mut self.life else { return };
        life.born_ms = life.born_ms.saturating_sub(ms);
        life.paused_until_ms = life.paused_until_ms.saturating_sub(ms);
        let Some(pinned) = &mut life.pinned else { return };
        pinned.used_ms = pinned.used_ms.saturating_sub(ms);
        pinned.limit.iter_mut().for_each(|limit| limit.shift_back(ms));
        pinned.levels.shift_back(ms);
        pinned.leases.shift_back(ms);
        pinned.places.shift_back(ms);
        for (_, until_ms) in &mut pinned.rate_waiters {
            *until_ms = until_ms.saturating_sub(ms);
        }
    }

    fn exchange_step(
        &mut self,
        step: Step,
        member: &Member,
        exchange: &Exchange,
    ) -> Result<Reply<ExchangeReply>, StoreError> {
        let mut body = ExchangeReply::default();
        let lost = exchange.restore.as_ref().is_some_and(|restore| self.restore_step(step, member, restore));
        let held_before = self.pinned().map_or(0, |pinned| pinned.leases.count());
        body.released = self.release_step(step, &exchange.releases);
        let held_after = self.pinned().map_or(0, |pinned| pinned.leases.count());
        let mut freed = held_before.saturating_sub(held_after);
        body.settled = self.settle_step(step, &exchange.settlements);
        body.observed = self.observe_step(step, &exchange.observations);
        body.renewed = at_most("renewals", exchange.renewals.len(), MOST_TOKENS)
            .map_err(StoreError::from)
            .map(|()| self.renew_step(step, member, lost, &exchange.renewals));
        body.handed_over = if exchange.hand_overs.is_empty() {
            Ok(Vec::new())
        } else {
            self.hand_over_step(step, member, &exchange.hand_overs)
        };
        self.queues_step(step, member, exchange);
        for (index, acquire) in exchange.acquires.iter().enumerate() {
            // There is no more than one for each class and one without, so this looks at few.
            let again = index > MOST_CLASSES
                || exchange.acquires.iter().take(index).any(|earlier| earlier.class() == acquire.class());
            let acquired = if again {
                Err(Invalid::new("acquires", index, "at most one for each class").into())
            } else {
                match acquire {
                    Acquire::Prefix(request) => {
                        self.acquire_step(step, member, request, freed).map(Acquired::Prefix)
                    }
                    Acquire::Scoped(request) => {
                        self.scoped_step(step, member, request, freed).map(Acquired::Scoped)
                    }
                }
            };
            if let Ok(acquired) = &acquired {
                freed = freed.saturating_sub(u32::try_from(acquired.grants().count()).unwrap_or(u32::MAX));
            }
            body.acquired.push(acquired);
        }
        self.offer_room(step);
        Ok(self.answer(step, body))
    }

    fn keep_answer(
        &mut self,
        step: Step,
        member: &Member,
        number: u64,
        answer: Result<Reply<ExchangeReply>, StoreError>,
    ) {
        // Where nothing is kept of the id, nothing was done that must not be done twice.
        if self.life.is_none() {
            return;
        }
        let ttl_ms = self.pinned().map_or(0, |pinned| pinned.policy.lease_ttl_ms()).max(ANSWER_KEPT_MS);
        let until_ms = step.ms.saturating_add(ttl_ms);
        if self.answers.insert(member.driver, Kept { number, until_ms, answer }).is_none() {
            self.due.put(until_ms, Item::Answer(member.driver));
        }
    }

    fn pause_step(&mut self, step: Step, length_ms: u64) -> PauseReply {
        self.seen += 1;
        let before_ms = self.paused_ms(step.ms);
        let until_ms = step.ms.saturating_add(length_ms);
        let life = self.live(step);
        life.paused_until_ms = life.paused_until_ms.max(until_ms);
        let left_ms = life.paused_until_ms - step.ms;
        if before_ms == 0 || left_ms > before_ms.saturating_add(PUBLISHED_MS) {
            self.push(Wake::Paused { left_ms });
        }
        PauseReply { left_ms, extended: before_ms > 0 }
    }

    fn release_step(&mut self, step: Step, releases: &[Release]) -> Result<(), StoreError> {
        at_most("releases", releases.len(), MOST_TOKENS)?;
        let Some(pinned) = self.pinned_mut() else { return Ok(()) };
        let before = pinned.limit.as_ref().map(LimitState::value);
        for release in releases {
            pinned.release(step.ms, release);
        }
        if let Some(before) = before {
            self.limit_moved(step, before);
        }
        Ok(())
    }

    /// Restores what the member knows into a state that is not the one it knew. True where it is another.
    fn restore_step(&mut self, step: Step, member: &Member, restore: &Restore) -> bool {
        if self.life.as_ref().is_some_and(|life| life.epoch == restore.epoch) {
            return false;
        }
        if restore.paused_ms > 0 {
            let most_ms = crate::time::ceil_millis(crate::time::LONGEST);
            self.pause_step(step, restore.paused_ms.min(most_ms));
        }
        if self.pinned().is_none() {
            self.install(step, &member.policy, Some(member.initial_limit));
        }
        let Some(pinned) = self.pinned_mut() else { return true };
        let policy = Arc::clone(&pinned.policy);
        if let (Some(known), Some(adaptive), Some(limit)) =
            (restore.limit, policy.adaptive(), pinned.limit.as_mut())
        {
            // A limit as it was seeded counts as older than any that a holder knows.
            let known_at = known.moved_at.max(Moment::from_micros(1)).min(step.now);
            if known_at > pinned.moved_at {
                let before = limit.value();
                limit.set(adaptive, known.value, step.ms);
                pinned.moved_at = known_at;
                let now = Limit { value: limit.value(), moved_at: known_at };
                self.seen += 1;
                if now.value != before {
                    self.push(Wake::Limit(now));
                }
            }
        }
        true
    }

    fn renew_step(&mut self, step: Step, member: &Member, lost: bool, renewals: &[Renewal]) -> Renewed {
        let Some(pinned) = self.pinned_mut() else { return Renewed { live: vec![false; renewals.len()] } };
        pinned.used_ms = step.ms;
        let ends_ms = step.after(pinned.policy.lease_ttl_ms());
        let live = renewals.iter().map(|renewal| {
            if pinned.leases.renew(renewal.token, step.ms, ends_ms) {
                return true;
            }
            let tier = pinned.tier_or_last(renewal.class.as_ref());
            let terms = Terms { tier, owner: &member.owner, now_ms: step.ms, ends_ms };
            lost && pinned.room(tier, &PerTier::default()) > 0 && pinned.leases.take_up(renewal.token, terms)
        });
        let live = live.collect();
        let last_fence = pinned.leases.last_fence();
        self.last_fence = self.last_fence.max(last_fence);
        Renewed { live }
    }

    fn hand_over_step(
        &mut self,
        step: Step,
        member: &Member,
        hand_overs: &[HandOver],
    ) -> Result<Vec<Token>, StoreError> {
        at_most("hand_overs", hand_overs.len(), MOST_TOKENS)?;
        HandOver::check(hand_overs, &*self.policy_for(member)?)?;
        self.adopt(step, member);
        let epoch = self.live(step).epoch;
        let Some(pinned) = self.pinned_mut() else { return Ok(Vec::new()) };
        let ends_ms = step.after(pinned.policy.lease_ttl_ms());
        let tokens = hand_overs
            .iter()
            .map(|hand_over| {
                let tier = pinned.tier_or_last(hand_over.class.as_ref());
                let terms = Terms { tier, owner: &member.owner, now_ms: step.ms, ends_ms };
                pinned.leases.grant(epoch, step.now.micros(), terms)
            })
            .collect();
        self.last_fence = self.last_fence.max(self.pinned().map_or(0, |pinned| pinned.leases.last_fence()));
        Ok(tokens)
    }

    fn settle_step(&mut self, step: Step, settlements: &[Settlement]) -> Result<Vec<Settled>, StoreError> {
        Settlement::check(settlements)?;
        let settled = settlements.iter().map(|settlement| {
            let correct = |rule: &CheckedRule, level: &mut crate::rule::RuleState| {
                let granted_ms = settlement.granted_at.millis();
                let cut = level.settle(rule, step.ms, granted_ms, settlement.cost, settlement.actual);
                (cut, Changed::Yes)
            };
            let cut = self.with_level(step, &settlement.rule, settlement.identity.as_ref(), correct);
            Settled { cut: cut.unwrap_or(0) }
        });
        Ok(settled.collect())
    }

    fn observe_step(&mut self, step: Step, observations: &[Observation]) -> Result<Vec<bool>, StoreError> {
        at_most("observations", observations.len(), MOST_TOKENS)?;
        let lowered = observations.iter().map(|seen| {
            let lower = |rule: &CheckedRule, level: &mut crate::rule::RuleState| {
                let observed = Observed {
                    remaining: seen.remaining,
                    reset_ms: seen.reset_at.millis(),
                    granted_ms: seen.granted_at.millis(),
                    mark: seen.mark,
                };
                let lowered = level.observe(rule, step.ms, &observed);
                (lowered, if lowered { Changed::Yes } else { Changed::No })
            };
            self.with_level(step, &seen.rule, seen.identity.as_ref(), lower).unwrap_or(false)
        });
        Ok(lowered.collect())
    }

    /// Calls `with` on a level named from outside; passed over where the policy has no such rule, or has it with another
    /// scope.
    fn with_level<T>(
        &mut self,
        step: Step,
        key: &RuleKey,
        identity: Option<&Identity>,
        with: impl FnOnce(&CheckedRule, &mut crate::rule::RuleState) -> (T, Changed),
    ) -> Option<T> {
        let pinned = self.life.as_mut()?.pinned.as_mut()?;
        let index = pinned.policy.rules().iter().position(|rule| rule.key() == key)?;
        let rule = pinned.policy.rules().get(index)?;
        match (rule.scope(), identity) {
            (None, None) => Some(with(rule, pinned.levels.own(index)?).0),
            (Some(_), Some(identity)) => {
                pinned.levels.with_identity(index, identity, step.ms, &mut self.due, with)
            }
            _ => None,
        }
    }

    /// Notes the queues that acquire nothing, and gives up the places of those that are empty.
    fn queues_step(&mut self, step: Step, member: &Member, exchange: &Exchange) {
        let Some(pinned) = self.pinned_mut() else { return };
        let policy = Arc::clone(&pinned.policy);
        for tier in 0..=policy.classes().len() {
            let class = policy.class(tier);
            if exchange.acquires.iter().any(|acquire| acquire.class() == class) {
                continue;
            }
            match exchange.queues.iter().find(|queue| queue.class.as_ref() == class) {
                Some(queue) if queue.line.waiting > 0 => {
                    pinned.wait(step.ms, member.driver, tier, queue.line, 0);
                    if pinned.room(tier, &PerTier::default()) == 0
                        && let Some(limit) = &mut pinned.limit
                    {
                        limit.demand(step.ms);
                    }
                }
                _ => pinned.places.leave(member.driver, tier),
            }
        }
    }

    fn acquire_step(
        &mut self,
        step: Step,
        member: &Member,
        request: &AcquireRequest,
        freed: u32,
    ) -> Result<AcquireReply, StoreError> {
        request.check_size()?;
        let jobs = request.jobs.len();
        let policy = self.policy_for(member)?;
        let tier = request.check(&member.policy, &policy)?;
        self.adopt(step, member);
        if let Some(denial) = self.pause_denial(step.ms) {
            return Ok(AcquireReply { denied: Some(denial), ..AcquireReply::default() });
        }
        let withheld = self.withhold(step, member.driver, request.line, freed);
        let epoch = self.live(step).epoch;
        let safe_start_ms = self.safe_start_left(step.ms);
        let Some(pinned) = self.pinned_mut() else { return Ok(AcquireReply::default()) };
        let leased = policy.bound().is_some();
        let room = if safe_start_ms > 0 { 0 } else { pinned.room(tier, &withheld) as usize };
        let terms = Terms {
            tier,
            owner: &member.owner,
            now_ms: step.ms,
            ends_ms: step.after(pinned.policy.lease_ttl_ms()),
        };
        let mut reply = AcquireReply {
            grants: Vec::with_capacity(if leased { jobs.min(room) } else { 1 }),
            ..AcquireReply::default()
        };
        for job in &request.jobs {
            let denied = pinned.rate_denial(step.ms, &policy, &job.costs);
            if denied.is_some() {
                reply.denied = denied;
                break;
            }
            if leased && reply.grants.len() >= room {
                reply.denied = Some(pinned.slot_denial(step.after(0), safe_start_ms));
                break;
            }
            let mut marks = Marks::default();
            pinned.spend(step.ms, &policy, &job.costs, &mut marks);
            let lease = leased.then(|| pinned.leases.grant(epoch, step.now.micros(), terms));
            reply.grants.push(Grant { lease, marks });
        }
        let last_fence = pinned.leases.last_fence();
        let granted = u32::try_from(reply.grants.len()).unwrap_or(u32::MAX);
        reply.others =
            pinned.after_acquire(step.ms, member.driver, tier, request.line, granted, reply.denied.as_ref());
        self.last_fence = self.last_fence.max(last_fence);
        Ok(reply)
    }

    fn scoped_step(
        &mut self,
        step: Step,
        member: &Member,
        request: &ScopedRequest,
        freed: u32,
    ) -> Result<ScopedReply, StoreError> {
        request.check_size()?;
        let jobs = request.jobs.len();
        let policy = self.policy_for(member)?;
        let tier = request.check(&member.policy, &policy)?;
        self.adopt(step, member);
        if let Some(denial) = self.pause_denial(step.ms) {
            let denied = (0..jobs).map(|index| ScopedDenial { index, denial: denial.clone() }).collect();
            return Ok(ScopedReply { denied, ..ScopedReply::default() });
        }
        let withheld = self.withhold(step, member.driver, request.line, freed);
        let epoch = self.live(step).epoch;
        let safe_start_ms = self.safe_start_left(step.ms);
        let due = &mut self.due;
        let Some(pinned) = self.life.as_mut().and_then(|life| life.pinned.as_mut()) else {
            return Ok(ScopedReply::default());
        };
        let leased = policy.bound().is_some();
        let room = if safe_start_ms > 0 { 0 } else { pinned.room(tier, &withheld) as usize };
        let terms = Terms {
            tier,
            owner: &member.owner,
            now_ms: step.ms,
            ends_ms: step.after(pinned.policy.lease_ttl_ms()),
        };
        let mut reply = ScopedReply::default();
        for (index, job) in request.jobs.iter().enumerate() {
            let denied = pinned.scoped_rate_denial(step.ms, &policy, job, due).or_else(|| {
                (leased && reply.grants.len() >= room)
                    .then(|| pinned.slot_denial(step.after(0), safe_start_ms))
            });
            if let Some(denial) = denied {
                reply.denied.push(ScopedDenial { index, denial });
                continue;
            }
            let marks = pinned.scoped_spend(step.ms, &policy, job, due);
            let lease = leased.then(|| pinned.leases.grant(epoch, step.now.micros(), terms));
            reply.grants.push(ScopedGrant { index, grant: Grant { lease, marks } });
        }
        let last_fence = pinned.leases.last_fence();
        let granted = u32::try_from(reply.grants.len()).unwrap_or(u32::MAX);
        // Where slots denied any of them, the queue waits for slots.
        let denials = || reply.denied.iter().map(|denied| &denied.denial);
        let denied = denials().find(|denial| denial.lease_blocked).or_else(|| denials().next()).cloned();
        reply.others =
            pinned.after_acquire(step.ms, member.driver, tier, request.line, granted, denied.as_ref());
        self.last_fence = self.last_fence.max(last_fence);
        Ok(reply)
    }

    // ---- policy ----------------------------------------------------------------------------------------------------

    /// The policy that a request of this member is decided by. Changes nothing.
    fn policy_for(&self, member: &Member) -> Result<Arc<Policy>, StoreError> {
        member.deciding(self.pinned().map(|pinned| &pinned.policy))
    }

    /// Pins the member's policy where there is none, or a lower revision.
    fn adopt(&mut self, step: Step, member: &Member) {
        let newer = self.pinned().is_none_or(|pinned| member.policy.revision() > pinned.policy.revision());
        if newer {
            self.install(step, &member.policy, Some(member.initial_limit));
        }
        if let Some(pinned) = self.pinned_mut() {
            pinned.used_ms = step.ms;
        }
    }

    /// Pins a policy, carrying over what there is.
    fn install(&mut self, step: Step, policy: &Arc<Policy>, initial_limit: Option<u32>) {
        let last_fence = self.last_fence;
        let pinned = self.live(step).pinned.take();
        let replaced = pinned.is_some();
        let before = pinned.as_ref().and_then(Pinned::limit_value);
        let pinned = match pinned {
            Some(pinned) => pinned.carry(step, policy, initial_limit),
            None => Pinned::new(step, policy, initial_limit, last_fence),
        };
        let after = pinned.limit_value();
        self.live(step).pinned = Some(pinned);
        self.seen += 1;
        if replaced {
            self.push(Wake::Policy { revision: policy.revision() });
            if let (Some(limit), true) = (self.limit(), before != after) {
                self.push(Wake::Limit(limit));
            }
        }
    }

    // ---- small things ----------------------------------------------------------------------------------------------

    fn pinned(&self) -> Option<&Pinned> {
        self.life.as_ref()?.pinned.as_ref()
    }

    fn pinned_mut(&mut self) -> Option<&mut Pinned> {
        self.life.as_mut()?.pinned.as_mut()
    }

    /// The state, made where there is none.
    fn live(&mut self, step: Step) -> &mut Life {
        let last_fence = &mut self.last_fence;
        self.life.get_or_insert_with(|| {
            *last_fence = (*last_fence + 1).max(step.now.micros());
            Life { epoch: Epoch(*last_fence), born_ms: step.after(0), pinned: None, paused_until_ms: 0 }
        })
    }

    fn paused_ms(&self, now_ms: u64) -> u64 {
        self.life.as_ref().map_or(0, |life| life.paused_until_ms.saturating_sub(now_ms))
    }

    fn pause_denial(&self, now_ms: u64) -> Option<Denial> {
        let hint_ms = self.paused_ms(now_ms);
        (hint_ms > 0).then_some(Denial { hint_ms, lease_blocked: false, rule: None })
    }

    /// What is left of the TTL that a safe start waits.
    fn safe_start_left(&self, now_ms: u64) -> u64 {
        let Some(life) = &self.life else { return 0 };
        let safe = life.pinned.as_ref().map(|pinned| &pinned.policy).filter(|policy| policy.safe_start());
        safe.map_or(0, |policy| life.born_ms.saturating_add(policy.lease_ttl_ms()).saturating_sub(now_ms))
    }

    fn limit(&self) -> Option<Limit> {
        let pinned = self.pinned()?;
        Some(Limit { value: pinned.limit_value()?, moved_at: pinned.moved_at })
    }

    /// Notes and pushes a limit that is no longer what it was.
    fn limit_moved(&mut self, step: Step, before: u32) {
        let Some(pinned) = self.pinned_mut() else { return };
        if pinned.limit_value().is_some_and(|now| now != before) {
            // Later than any move that anyone can know of.
            pinned.moved_at = step.now.max(Moment::from_micros(pinned.moved_at.micros() + 1));
            if let Some(limit) = self.limit() {
                self.push(Wake::Limit(limit));
            }
        }
    }

    /// Offers room that was freed in this exchange to those that have waited clearly longer than the asking driver.
    /// Says what room is theirs: that which was offered to them before as well, and which they have not come for yet.
    fn withhold(&mut self, step: Step, driver: DriverId, line: Line, freed: u32) -> PerTier {
        let before = step.ms.saturating_sub(line.waited_ms).saturating_sub(OWN_FIRST_MS);
        if freed > 0 {
            self.offer(step, before, freed, Some(driver));
        }
        let places = self.pinned().map(|pinned| &pinned.places);
        places.map_or_else(PerTier::default, |places| places.offered_to_others(step.ms, before, driver))
    }

    fn offer_room(&mut self, step: Step) {
        self.offer(step, u64::MAX, u32::MAX, None);
    }

    fn offer(&mut self, step: Step, before: u64, most: u32, except: Option<DriverId>) {
        // What nobody is granted yet is offered to nobody.
        let holds_back = self.safe_start_left(step.ms) > 0;
        let listening = &self.listening;
        let wakes = &mut self.wakes;
        let Some(life) = &mut self.life else { return };
        let Some(pinned) = &mut life.pinned else { return };
        if pinned.places.is_empty() || life.paused_until_ms > step.ms || holds_back {
            return;
        }
        let Some(limit) = pinned.limit_value() else { return };
        let Pinned { policy, leases, places, .. } = pinned;
        places.offer(
            step.ms,
            before,
            most,
            |driver| except == Some(driver) || !listening.contains(&driver),
            |tier, offered| room(limit, policy, leases, offered, tier) > 0,
            |driver, tier| wakes.push((Some(driver), Wake::Room { class: policy.class(tier).cloned() })),
        );
    }

    fn answer<T>(&self, step: Step, body: T) -> Reply<T> {
        Reply { head: self.head(step), body }
    }

    fn head(&self, step: Step) -> Head {
        let pinned = self.pinned();
        Head {
            epoch: self.life.as_ref().map(|life| life.epoch),
            now: Some(step.now),
            limit: self.limit(),
            held: pinned.map(|pinned| pinned.leases.count()),
            paused_ms: self.paused_ms(step.ms),
            revision: pinned.map(|pinned| pinned.policy.revision()),
            lease_ttl_ms: pinned.map(|pinned| pinned.policy.lease_ttl_ms()),
            stepped_back_ms: step.stepped_back_ms,
        }
    }
}

impl Pinned {
    fn new(step: Step, policy: &Arc<Policy>, initial_limit: Option<u32>, last_fence: u64) -> Self {
        let limit = policy
            .adaptive()
            .map(|adaptive| LimitState::seed(adaptive, initial_limit.unwrap_or(adaptive.min), step.ms));
        Self {
            policy: Arc::clone(policy),
            used_ms: step.ms,
            limit,
            moved_at: Moment::default(),
            levels: Levels::new(policy, step.ms),
            leases: Leases::new(policy.classes().len() + 1, last_fence),
            places: Places::default(),
            rate_waiters: Vec::new(),
        }
    }

    fn carry(mut self, step: Step, policy: &Arc<Policy>, initial_limit: Option<u32>) -> Self {
        let before = self.limit_value();
        self.limit = policy.adaptive().map(|adaptive| match (self.limit.take(), self.policy.adaptive()) {
            (Some(mut limit), Some(was)) => {
                limit.carry(was, adaptive, step.ms);
                limit
            }
            _ => LimitState::seed(adaptive, initial_limit.or(before).unwrap_or(adaptive.min), step.ms),
        });
        self.levels.carry(&self.policy, policy, step.ms);
        let last = policy.classes().len();
        self.leases.retier(last + 1, |tier| {
            self.policy.class(tier).and_then(|class| policy.tier(Some(class))).unwrap_or(last)
        });
        // Whoever waits comes back within its polling time.
        self.places = Places::default();
        self.policy = Arc::clone(policy);
        if self.limit_value() != before {
            self.moved_at = step.now;
        }
        self
    }

    fn limit_value(&self) -> Option<u32> {
        match self.policy.bound()? {
            Bound::Fixed(limit) => Some(*limit),
            Bound::Adaptive(_) => self.limit.as_ref().map(LimitState::value),
        }
    }

    /// How many more leases a tier may take, with `withheld` counted as taken.
    #[inline]
    fn room(&self, tier: usize, withheld: &PerTier) -> u32 {
        let limit = self.limit_value().unwrap_or(u32::MAX);
        if let ([], [withheld, ..]) = (self.policy.classes(), withheld) {
            // Nothing is reserved for anyone.
            return limit.saturating_sub(self.leases.count().saturating_add(*withheld));
        }
        room(limit, &self.policy, &self.leases, withheld, tier)
    }

    fn tier_or_last(&self, class: Option<&Name>) -> usize {
        self.policy.tier(class).unwrap_or(self.policy.classes().len())
    }

    fn release(&mut self, now_ms: u64, release: &Release) {
        let adaptive = self.policy.adaptive();
        let throttled = release.outcome == Outcome::Throttled;
        let rest_ms = adaptive.filter(|_| throttled).map_or(0, |adaptive| {
            release.retry_after_ms.map_or(adaptive.throttle_rest_ms, |asked| asked.min(adaptive.cooldown_ms))
        });
        let was_live = self.leases.release(release.token, now_ms, rest_ms);
        let (Some(adaptive), Some(limit)) = (adaptive, self.limit.as_mut()) else { return };
        match release.outcome {
            Outcome::Throttled => {
                limit.throttled(adaptive, now_ms);
            }
            Outcome::Success if was_live => {
                limit.success(adaptive, now_ms);
            }
            Outcome::Failure if was_live => limit.failure(adaptive, now_ms),
            Outcome::Success | Outcome::Failure => {}
        }
    }

    /// Why the rates deny a job; the longest hint counts, since all of them must fit.
    fn rate_denial(&mut self, now_ms: u64, policy: &Policy, costs: &Costs) -> Option<Denial> {
        let mut longest: Option<(u64, &CheckedRule)> = None;
        for (index, rule) in policy.rules().iter().enumerate() {
            let hint = self
                .levels
                .own(index)
                .and_then(|level| level.room(rule, now_ms, costs.of(rule.name())).err());
            longest = longer(longest, hint.map(|hint| (hint, rule)));
        }
        longest.map(rate_denial)
    }

    #[inline]
    fn spend(&mut self, now_ms: u64, policy: &Policy, costs: &Costs, marks: &mut Marks) {
        for (index, rule) in policy.rules().iter().enumerate() {
            marks.push(self.levels.own(index).map_or(0, |level| {
                level.spend(rule, now_ms, costs.of(rule.name()));
                level.mark()
            }));
        }
    }

    fn scoped_rate_denial(
        &mut self,
        now_ms: u64,
        policy: &Policy,
        job: &ScopedJob,
        due: &mut Due,
    ) -> Option<Denial> {
        let mut longest: Option<(u64, &CheckedRule)> = None;
        for (index, rule) in policy.rules().iter().enumerate() {
            let cost = job.costs.of(rule.name());
            let hint = match job.identity(rule) {
                None => self.levels.own(index).and_then(|level| level.room(rule, now_ms, cost).err()),
                Some(identity) => self
                    .levels
                    .with_identity(index, identity, now_ms, due, |rule, level| {
                        (level.room(rule, now_ms, cost).err(), Changed::No)
                    })
                    .flatten(),
            };
            longest = longer(longest, hint.map(|hint| (hint, rule)));
        }
        longest.map(rate_denial)
    }

    fn scoped_spend(&mut self, now_ms: u64, policy: &Policy, job: &ScopedJob, due: &mut Due) -> Marks {
        let rules = policy.rules().iter().enumerate();
        rules
            .map(|(index, rule)| {
                let cost = job.costs.of(rule.name());
                let spend = |rule: &CheckedRule, level: &mut crate::rule::RuleState| {
                    level.spend(rule, now_ms, cost);
                    (level.mark(), if cost > 0 { Changed::Yes } else { Changed::No })
                };
                match job.identity(rule) {
                    None => self.levels.own(index).map(|level| spend(rule, level).0),
                    Some(identity) => self.levels.with_identity(index, identity, now_ms, due, spend),
                }
                .unwrap_or(0)
            })
            .collect()
    }

    fn slot_denial(&self, now_ms: u64, safe_start_ms: u64) -> Denial {
        let hint_ms = if safe_start_ms > 0 {
            safe_start_ms
        } else {
            let ends = self.leases.next_end();
            ends.map_or(self.policy.lease_ttl_ms(), |end_ms| end_ms.saturating_sub(now_ms).max(1))
        };
        Denial { hint_ms, lease_blocked: true, rule: None }
    }

    /// Notes demand and places after an acquire; says how many other drivers wait for a rate.
    fn after_acquire(
        &mut self,
        now_ms: u64,
        driver: DriverId,
        tier: usize,
        line: Line,
        granted: u32,
        denied: Option<&Denial>,
    ) -> u32 {
        let slots_short = denied.is_some_and(|denial| denial.lease_blocked);
        let left_waiting = line.waiting > granted;
        let behind_full = || denied.is_none() && left_waiting && self.room(tier, &PerTier::default()) == 0;
        if (slots_short || behind_full())
            && let Some(limit) = &mut self.limit
        {
            limit.demand(now_ms);
        }
        if slots_short && left_waiting {
            self.wait(now_ms, driver, tier, line, granted);
        } else {
            self.places.leave(driver, tier);
        }
        let rate_hint_ms = denied.filter(|denial| !denial.lease_blocked).map(|denial| denial.hint_ms);
        self.rate_waiting(now_ms, driver, rate_hint_ms.filter(|_| left_waiting))
    }

    fn wait(&mut self, now_ms: u64, driver: DriverId, tier: usize, line: Line, granted: u32) {
        let since_ms = now_ms.saturating_sub(line.waited_ms);
        self.places.keep(driver, tier, since_ms, line.waiting.saturating_sub(granted), now_ms);
    }

    fn rate_waiting(&mut self, now_ms: u64, driver: DriverId, hint_ms: Option<u64>) -> u32 {
        if self.rate_waiters.is_empty() && hint_ms.is_none() {
            return 0;
        }
        self.rate_waiters.retain(|(known, until_ms)| *known != driver && *until_ms > now_ms);
        let others = u32::try_from(self.rate_waiters.len()).unwrap_or(u32::MAX);
        if let Some(hint_ms) = hint_ms {
            self.rate_waiters
                .push((driver, now_ms.saturating_add(hint_ms).saturating_add(super::places::LAPSES_MS)));
        }
        others
    }
}

fn room(limit: u32, policy: &Policy, leases: &Leases, withheld: &PerTier, tier: usize) -> u32 {
    let held = leases.by_tier().iter().zip(withheld).map(|(held, withheld)| held + withheld);
    share::room(limit, policy.shares().zip(held), tier)
}

fn longer<'a>(
    longest: Option<(u64, &'a CheckedRule)>,
    other: Option<(u64, &'a CheckedRule)>,
) -> Option<(u64, &'a CheckedRule)> {
    match (longest, other) {
        (Some(longest), Some(other)) if other.0 > longest.0 => Some(other),
        (None, other) => other,
        (longest, _) => longest,
    }
}

fn rate_denial((hint_ms, rule): (u64, &CheckedRule)) -> Denial {
    Denial { hint_ms, lease_blocked: false, rule: Some(rule.key().clone()) }
}
