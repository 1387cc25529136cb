//! Building an exchange from what waits, and taking in what came of it.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tidegate_core::{
    Acquire, AcquireRequest, Acquired, Brief, Capability, Costs, Denial, Epoch, Exchange, ExchangeReply,
    Grant, Head, Job, Limit, Line as LineState, Outcome, Policy, Queue, Release, Reply, ScopedJob,
    ScopedRequest, Sequence, Settlement, StoreError, Token,
    time::{Moment, ceil_millis},
};

use super::{
    Driver, LastCause,
    away::unanswered,
    local::Local,
    notice::Notice,
    queue::{Asked, Denied, Line, Obstacle, Place},
    state::{Flight, Granted, Held, State},
};
use crate::{AcquireError, Direction, link::Failed};

/// An answer, as it is taken apart.
#[derive(Clone, Copy)]
struct Seen<'a> {
    flight: &'a Flight,
    head: &'a Head,
    now: Moment,
}

/// When a grant was asked for, on our clock, and given, on both; and whether by this process alone.
#[derive(Clone, Copy)]
pub(super) struct Grounds {
    pub(super) sent: Moment,
    pub(super) now: Moment,
    pub(super) granted_at: Option<Moment>,
    /// The limit that the answer came with. What is known here may have been pushed after the grant.
    pub(super) limit: Option<Limit>,
    pub(super) local: bool,
}

/// A job that waits for a slot asks again after this long at the latest, and not before the shorter.
const POLL: (Duration, Duration) = (Duration::from_millis(100), Duration::from_millis(500));
/// How many jobs are asked for at once where the next exchange follows on the spot.
const FEW_JOBS: usize = 8;
/// The longest that is added to a hint so that processes do not all come back at once.
const MOST_SPREAD: Duration = Duration::from_secs(1);
/// A fixed limit has no cooldown; outcomes mean nothing to it.
const OLD_OUTCOME: Duration = Duration::from_secs(3_600);
/// The token of a lease that the store does not count: it names none.
const UNCOUNTED: Token = Token { epoch: Epoch(0), slot: 0, fence: 0 };

impl Driver {
    /// The next exchange, where there is something to exchange.
    pub(super) fn build(&self, state: &mut State, now: Moment) -> Option<Flight> {
        self.expire(state, now);
        if state.asks_nothing(now) {
            return None;
        }
        let local = state.away.is_some();
        let mut exchange = Exchange::default();
        let mut asked = Vec::new();
        let mut free = self.free_here(state);
        // What this process says is paused need not be asked of a store that does not know it yet.
        let tiers = if Self::holds_back(state, now) { 0 } else { state.lines.len() };
        for tier in 0..tiers {
            // Alone, classes may count for nothing; an exchange takes one acquire for each that does.
            let class = self.deciding(state).class(tier);
            if exchange.acquires.iter().any(|acquire: &Acquire| acquire.class() == class) {
                continue;
            }
            let Some((acquire, jobs)) = self.ask(state, tier, free, now) else { continue };
            free -= jobs.len();
            exchange.acquires.push(acquire);
            asked.push((tier, jobs));
        }
        let mut handed = Vec::new();
        let mut released = Vec::new();
        if !local {
            released = state.outbox.fill(&mut exchange, self.old(now));
            self.restore_into(state, &mut exchange, now);
            handed = self.hand_overs(state, &mut exchange);
        }
        let looks = std::mem::take(&mut state.room_wanted);
        if exchange.is_empty() && !looks {
            return None;
        }
        self.queues(state, &mut exchange, now);
        for (tier, jobs) in &asked {
            debug_assert!(!jobs.is_empty() && *tier < state.lines.len());
            for job in jobs {
                if let Some(waiter) = state.waiter(*job) {
                    waiter.asked = true;
                }
            }
        }
        if !local && self.link.sync().is_none() && self.link.capabilities().has(Capability::Exchange) {
            state.number = state.number.saturating_add(1);
            let store_now = state.store_clock.map(|(theirs, ours)| theirs.plus(now.since(ours)));
            let not_after = store_now.map(|store_now| store_now.plus(self.op_timeout.saturating_mul(2)));
            exchange.sequence = Some(Sequence { number: state.number, not_after });
        }
        Some(Flight { exchange, asked, handed, released, sent: now, local })
    }

    /// The policy that decides now: this process's own while the store is away.
    pub(super) fn deciding<'a>(&'a self, state: &'a State) -> &'a Policy {
        state.local.as_ref().map_or(&*self.member.policy, Local::policy)
    }

    /// How many more permits this process may ask for.
    pub(super) fn free_here(&self, state: &State) -> usize {
        match self.local_limit {
            None => usize::MAX,
            Some(limit) => limit.saturating_sub(state.permits()) as usize,
        }
    }

    /// What a line asks for now. Jobs that try once and cannot be asked for are denied on the spot.
    fn ask(
        &self,
        state: &mut State,
        tier: usize,
        free: usize,
        now: Moment,
    ) -> Option<(Acquire, Vec<(usize, u64)>)> {
        let most = if self.decides_now(state) { free.min(FEW_JOBS) } else { free };
        let State { lines, waiters, local, trying, .. } = &mut *state;
        let at = lines.get_mut(tier).filter(|line| !line.is_empty())?;
        if !at.is_due(now) {
            // Nothing is asked before those ahead are worth another try.
            self.deny_tries(state, tier, now, |_| true);
            return None;
        }
        let policy = local.as_ref().map_or(&*self.member.policy, Local::policy);
        let Asked { jobs: keys, denied } =
            if most > 0 { at.ask(now, most, policy) } else { Asked::default() };
        let stamped = |key: &usize| Some((*key, waiters.get(*key)?.stamp));
        let denied: Vec<_> = denied.iter().filter_map(|(key, known)| Some((stamped(key)?, *known))).collect();
        let asked: Vec<(usize, u64)> =
            keys.iter().filter_map(|key| Some((*key, waiters.get(*key)?.stamp))).collect();
        let acquire = (!asked.is_empty()).then(|| {
            let jobs = asked.iter().filter_map(|(key, _)| waiters.get(*key).map(|waiter| &waiter.job));
            let class = policy.class(tier).cloned();
            let line = line_state(at, trying[tier], waiters, now);
            if matches!(at, Line::Scoped(_)) {
                let jobs = jobs.map(|job| fitted(job, policy)).collect();
                Acquire::Scoped(ScopedRequest { class, jobs, line })
            } else {
                let mut asks_for = Vec::with_capacity(asked.len());
                asks_for.extend(jobs.map(|job| Job { costs: fitted_costs(&job.costs, policy) }));
                Acquire::Prefix(AcquireRequest { class, jobs: asks_for, line })
            }
        });
        for (job, (until, cause)) in denied {
            self.take_denial(state, job, cause, until, state.away.is_some(), now);
        }
        // Those that only one exchange has no place for are asked for by the next.
        if keys.len() >= free {
            self.deny_tries(state, tier, now, |key| !keys.contains(&key));
        }
        Some((acquire?, asked))
    }

    /// Ends those jobs that try once and for which asking is in vain.
    fn deny_tries(&self, state: &mut State, tier: usize, now: Moment, in_vain: impl Fn(usize) -> bool) {
        if state.trying[tier] == 0 {
            return;
        }
        let tries = state.waiters.iter().filter(|(key, waiter)| {
            let tries = waiter.tier == tier && waiter.tries_once() && waiter.ended.is_none() && !waiter.asked;
            tries && in_vain(*key)
        });
        for key in tries.map(|(key, _)| key).collect::<Vec<_>>() {
            self.time_out(state, key, now);
        }
    }

    /// Says how the lines stand that ask for nothing now.
    pub(super) fn queues(&self, state: &State, exchange: &mut Exchange, now: Moment) {
        for (tier, line) in state.lines.iter().enumerate().filter(|(_, line)| !line.is_empty()) {
            let class = self.member.policy.class(tier);
            if exchange.acquires.iter().any(|acquire| acquire.class() == class) {
                continue;
            }
            if line.waits_for_slots() {
                let line = line_state(line, state.trying[tier], &state.waiters, now);
                exchange.queues.push(Queue { class: class.cloned(), line });
            }
        }
    }

    /// Outcomes from before this moment say nothing of now.
    fn old(&self, now: Moment) -> Moment {
        let cooldown =
            self.member.policy.adaptive().map(|adaptive| Duration::from_millis(adaptive.cooldown_ms));
        let ago = cooldown.unwrap_or(OLD_OUTCOME);
        Moment::from_micros(now.micros().saturating_sub(u64::try_from(ago.as_micros()).unwrap_or(u64::MAX)))
    }

    // ---- taking in -------------------------------------------------------------------------------------------------

    /// Takes in what came of an exchange.
    pub(super) fn apply(
        &self,
        state: &mut State,
        flight: &Flight,
        answer: Result<Reply<ExchangeReply>, Failed>,
    ) {
        let now = answer.as_ref().map_or_else(|_| self.clock.now(), |reply| self.now_of(&reply.head));
        for (_, jobs) in &flight.asked {
            for job in jobs {
                if let Some(waiter) = state.waiter(*job) {
                    waiter.asked = false;
                }
            }
        }
        match answer {
            Ok(reply) if flight.local => self.take_all_acquired(state, flight, reply, now),
            Ok(reply) => self.take_reply(state, flight, reply, now),
            Err(failed) => self.failed(state, flight, failed, now),
        }
        self.expire_owed(state, now);
        self.delivered.notify_waiters();
    }

    /// Takes in what a store found of itself when it was opened.
    fn take_risks(&self, state: &mut State) {
        if !state.opened {
            state.opened = true;
            let risks = self.link.risks();
            let known = std::mem::replace(&mut state.risks, risks.len());
            state.notices.extend(risks.into_iter().skip(known).map(Notice::AtRisk));
        }
    }

    /// Takes in a store's answer, part by part.
    fn take_reply(&self, state: &mut State, flight: &Flight, reply: Reply<ExchangeReply>, now: Moment) {
        if self.hooks.records() && self.link.sync().is_none() {
            state.notices.push_back(Notice::Exchanged(now.since(flight.sent)));
        }
        let unanswered = unanswered(&reply.body).cloned();
        if unanswered.is_none() {
            self.came_back(state, now);
            self.take_risks(state);
        }
        let stale = self.is_stale(state, &reply.head, flight.sent);
        let head = reply.head;
        self.take_head(state, &head, flight.sent, now);
        self.take_corrections(state, flight, &reply.body, now);
        self.take_restored(state, flight, &reply);
        self.take_all_acquired(state, flight, reply, now);
        if stale {
            self.take_up_later(state, &head);
        }
        if let Some(error) = unanswered {
            self.note_store_error(state);
            self.store_failed(state, error, now);
        }
    }

    fn take_all_acquired(
        &self,
        state: &mut State,
        flight: &Flight,
        reply: Reply<ExchangeReply>,
        now: Moment,
    ) {
        let seen = Seen { flight, head: &reply.head, now };
        for ((tier, jobs), acquired) in flight.asked.iter().zip(reply.body.acquired) {
            match acquired {
                Ok(acquired) => self.take_acquired(state, seen, *tier, jobs, acquired),
                Err(error) if error.is_unavailable() => {}
                Err(error) => self.refuse(state, jobs, &error),
            }
        }
    }

    /// Takes in how the id stands.
    pub(super) fn take_head(&self, state: &mut State, head: &Head, sent: Moment, now: Moment) {
        // An answer that was lost and asked for again says what the clock was then.
        if let Some(store_now) = head.now.filter(|_| now.since(sent) <= self.op_timeout) {
            state.store_clock = Some((store_now, now));
        }
        if head.stepped_back_ms > 0 {
            state.notices.push_back(Notice::SetBack(Duration::from_millis(head.stepped_back_ms)));
        }
        if self.is_stale(state, head, sent) {
            return;
        }
        if let Some(ttl_ms) = head.lease_ttl_ms {
            state.lease_ttl = Duration::from_millis(ttl_ms);
        }
        self.take_epoch(state, head.epoch, sent, now);
        self.take_limit(state, head.limit);
        if self.is_late(sent, now) {
            return;
        }
        // What was asked before a pause began, or was ended, knows nothing of it.
        if head.paused_ms > 0 {
            if sent >= state.resumed_at {
                self.note_pause(state, now.plus(Duration::from_millis(head.paused_ms)), now);
            }
        } else if head.epoch.is_some()
            && state.unsent_pause.is_none()
            && state.restore.is_none()
            && sent >= state.paused_since
        {
            self.note_resumed(state, now);
        }
    }

    /// Takes in a limit, unless a newer one is known that the store has not lost.
    pub(super) fn take_limit(&self, state: &mut State, limit: Option<Limit>) {
        let Some(limit) = limit else { return };
        let outdated = state.limit.is_some_and(|known| known.moved_at > limit.moved_at);
        if !outdated || state.restore.is_some() {
            self.set_limit(state, limit);
        }
    }

    pub(super) fn set_limit(&self, state: &mut State, limit: Limit) {
        let direction = match state.limit.replace(limit) {
            None => Direction::Init,
            Some(before) if before.value < limit.value => Direction::Increase,
            Some(before) if before.value > limit.value => Direction::Decrease,
            Some(_) => return,
        };
        state.notices.push_back(Notice::Limit { limit: limit.value, direction });
    }

    pub(super) fn note_pause(&self, state: &mut State, until: Moment, now: Moment) {
        if until <= now {
            return;
        }
        let running = state.paused_until.filter(|running| *running > now);
        if running.is_none() {
            state.paused_since = now;
            // Someone has to say when it is over.
            self.ensure_running(state);
            self.bell.notify_one();
            state.notices.push_back(Notice::Paused(until.since(now)));
        }
        if running.is_none_or(|running| until > running || running.since(until) > MOST_SPREAD) {
            state.paused_until = Some(until);
        }
        let until = state.paused_until.unwrap_or(until);
        let resumes_at = until.plus(resume_spread(until.since(now)));
        for line in &mut state.lines {
            line.pause(until, resumes_at);
        }
    }

    pub(super) fn note_resumed(&self, state: &mut State, now: Moment) {
        if state.paused_until.take().is_some() {
            state.resumed_at = now;
            state.notices.push_back(Notice::Resumed);
            for line in &mut state.lines {
                line.resume();
            }
        }
    }

    /// Ends a pause whose time is over.
    pub(super) fn end_pause(&self, state: &mut State, now: Moment) {
        if state.paused_until.is_some_and(|until| until <= now) {
            state.paused_until = None;
            state.notices.push_back(Notice::Resumed);
        }
        state.unsent_pause = state.unsent_pause.filter(|until| *until > now);
    }

    fn take_corrections(&self, state: &mut State, flight: &Flight, body: &ExchangeReply, now: Moment) {
        self.take_refusals(state, flight, body);
        if let Ok(settled) = &body.settled {
            let cut: u64 = settled.iter().map(|settled| settled.cut).sum();
            if cut > 0 {
                state.notices.push_back(Notice::DebtCut(cut));
            }
        }
        if let Ok(renewed) = &body.renewed {
            let live = flight.exchange.renewals.iter().zip(&renewed.live);
            let live: Vec<_> = live.map(|(renewal, live)| (renewal.token, *live)).collect();
            self.take_renewed(state, &live, flight.sent);
        }
        if let Ok(tokens) = &body.handed_over {
            self.take_handed_over(state, flight, tokens, now);
        }
    }

    pub(super) fn take_renewed(
        &self,
        state: &mut State,
        live: &[(tidegate_core::Token, bool)],
        sent: Moment,
    ) {
        let deadline = sent.plus(state.lease_ttl);
        let live: HashMap<_, _> = live.iter().copied().collect();
        let mut lost = Vec::new();
        for (key, held) in state.held.iter_mut() {
            match live.get(&held.token) {
                Some(true) => held.deadline = held.deadline.max(deadline),
                Some(false) if !held.lost => lost.push(key),
                _ => {}
            }
        }
        for key in lost {
            state.lose(key);
        }
    }

    fn take_acquired(
        &self,
        state: &mut State,
        seen: Seen<'_>,
        tier: usize,
        jobs: &[(usize, u64)],
        acquired: Acquired,
    ) {
        let Seen { flight, head, now } = seen;
        // What was denied long ago may be granted now: it is asked for again.
        let late = !flight.local && self.is_late(flight.sent, now);
        let denials: Vec<(usize, Denial)> =
            acquired.denials().filter(|_| !late).map(|(index, denial)| (index, denial.clone())).collect();
        let others = match &acquired {
            Acquired::Prefix(reply) => reply.others,
            Acquired::Scoped(reply) => reply.others,
        };
        let grants: Vec<(usize, Grant)> = match acquired {
            Acquired::Prefix(reply) => reply.grants.into_iter().enumerate().collect(),
            Acquired::Scoped(reply) => {
                reply.grants.into_iter().map(|granted| (granted.index, granted.grant)).collect()
            }
        };
        // Those whose asker is gone come last: then it is known who of those that asked with it has none.
        let grants = grants.into_iter().filter_map(|(index, grant)| Some((*jobs.get(index)?, grant)));
        let (gone, there): (Vec<_>, Vec<_>) = grants.partition(|(job, _)| state.waiter(*job).is_none());
        for (job, grant) in there.into_iter().chain(gone) {
            self.take_grant(state, seen, tier, job, grant);
        }
        let scoped = matches!(state.lines.get(tier), Some(Line::Scoped(_)));
        for (index, denial) in denials {
            let Some(job) = jobs.get(index) else { continue };
            let cause = cause_of(&denial, head);
            let until = self.retry_at(state, &denial, cause, others, now);
            let hint_at = now.plus(Duration::from_millis(denial.hint_ms));
            let asked = state.waiter(*job).map(|waiter| (waiter.place(job.0), Arc::clone(&waiter.job)));
            let denied = if scoped { jobs.get(index..=index) } else { jobs.get(index..) };
            for job in denied.unwrap_or_default() {
                self.take_denial(state, *job, cause, hint_at, flight.local, now);
            }
            // One that is gone says nothing of those that are left: they ask for themselves.
            let Some((place, job)) = asked else { continue };
            self.block(state, tier, (place, &job), &denial, cause, until, now);
        }
    }

    /// Has a line remember a denial.
    #[allow(clippy::too_many_arguments)] // A denial, and whom it met.
    pub(super) fn block(
        &self,
        state: &mut State,
        tier: usize,
        (place, job): (Place, &ScopedJob),
        denial: &Denial,
        cause: LastCause,
        until: Moment,
        now: Moment,
    ) {
        let denied = met(self.deciding(state), (place.2, job), denial, cause, until);
        let Some(line) = state.lines.get_mut(tier) else { return };
        match denied {
            Some(denied) => line.deny(place, denied, now),
            None => line.pause(state.paused_until.unwrap_or(until).min(until), until),
        }
    }

    fn take_grant(
        &self,
        state: &mut State,
        seen: Seen<'_>,
        tier: usize,
        job: (usize, u64),
        mut grant: Grant,
    ) {
        let Seen { flight, head, now } = seen;
        let limit = head.limit.filter(|_| !flight.local);
        let grounds = Grounds { sent: flight.sent, now, granted_at: head.now, limit, local: flight.local };
        if self.is_in_vain(state, flight, &grant, now) {
            let granted = self.granted(state, grounds, tier, flight.job(tier, job), &mut grant);
            return self.give_back(state, granted, now);
        }
        let asked = state.waiter(job).map(|waiter| Arc::clone(&waiter.job));
        // Whoever asked is gone: the next that asks for the same takes it.
        let (key, spec) = match asked {
            Some(spec) => (Some(job.0), Some(spec)),
            None => match state.heir(flight, tier, job) {
                Some((key, spec)) => (Some(key), Some(spec)),
                None => (None, flight.job(tier, job)),
            },
        };
        let granted = self.granted(state, grounds, tier, spec, &mut grant);
        match key {
            Some(key) => {
                state.in_flight[tier] += 1;
                state.granted += 1;
                state.resolve(key, Ok(granted));
            }
            None => self.give_back(state, granted, now),
        }
    }

    /// Makes a grant into what a permit is made of, and begins to look after its lease.
    #[inline(always)]
    pub(super) fn granted(
        &self,
        state: &mut State,
        grounds: Grounds,
        tier: usize,
        job: Option<Arc<ScopedJob>>,
        grant: &mut Grant,
    ) -> Granted {
        let Grounds { sent, now, granted_at, limit, local } = grounds;
        // Alone, nobody counts leases; but a store that comes back will.
        let uncounted = self.member.policy.bound().map(|_| UNCOUNTED);
        let lease = if local { uncounted } else { grant.lease };
        let mut held = None;
        if let Some(token) = lease {
            if !local {
                self.ensure_renewing(state);
            }
            let stamp = state.stamp();
            let deadline = sent.plus(state.lease_ttl);
            let lease = Held { stamp, tier, token, local, deadline, lost: false, wakers: Vec::new() };
            held = Some(state.held.insert(lease));
        }
        Granted {
            tier,
            job,
            held,
            limit: limit.or(state.limit).map_or(state.seeded_limit, |limit| limit.value),
            local,
            granted_at: granted_at.filter(|_| !local),
            since: now,
            marks: std::mem::take(&mut grant.marks),
            settled: 0,
        }
    }

    /// Takes in a brief answer.
    #[inline]
    pub(super) fn take_brief(&self, state: &mut State, brief: &Brief) {
        if let Some(head) = brief.head.as_deref() {
            self.take_head(state, head, brief.now, brief.now);
        }
        state.seen = brief.seen;
    }

    /// Gives back a grant that no one took: its slot at once, and its cost.
    pub(super) fn give_back(&self, state: &mut State, granted: Granted, now: Moment) {
        self.settle_back(state, &granted);
        if let Some(held) = granted.held.and_then(|key| state.held.remove(key)) {
            self.release_held(state, held.local, failure(held.token), now);
        }
    }

    pub(super) fn settle_back(&self, state: &mut State, granted: &Granted) {
        let job = self.job_of(granted.job.as_ref());
        if granted.local {
            if let Some(local) = &mut state.local {
                local.settle_back(self.clock.now(), job, granted.since);
            }
            return;
        }
        if !self.link.capabilities().has(Capability::Corrections) {
            return;
        }
        let Some(granted_at) = granted.granted_at else { return };
        for rule in self.member.policy.rules() {
            let cost = job.costs.of(rule.name());
            if cost > 0 {
                state.outbox.settle(Settlement {
                    rule: rule.key().clone(),
                    identity: job.identity(rule).cloned(),
                    granted_at,
                    cost,
                    actual: 0,
                });
            }
        }
    }

    /// Has a lease released.
    pub(super) fn release_held(&self, state: &mut State, local: bool, release: Release, now: Moment) {
        if !local {
            state.outbox.release(release, now);
        } else if release.outcome == Outcome::Throttled && self.member.policy.adaptive().is_some() {
            // The store never knew of the lease, but the fleet is to know that the remote pushed back.
            state.outbox.release(Release { token: UNCOUNTED, retry_after_ms: None, ..release }, now);
        }
        // The slot serves those that wait here in the same exchange, as far as that is fair.
        for line in &mut state.lines {
            line.room(now);
        }
    }

    fn take_denial(
        &self,
        state: &mut State,
        job: (usize, u64),
        cause: LastCause,
        hint_at: Moment,
        local: bool,
        now: Moment,
    ) {
        let Some(waiter) = state.waiter(job) else { return };
        let first = waiter.denied_at.is_none();
        waiter.denied_at.get_or_insert(now);
        waiter.last = Some(cause);
        waiter.hint_at = Some(hint_at);
        waiter.local = local;
        let left = waiter.deadline.map_or(Duration::MAX, |deadline| deadline.since(now));
        let over = waiter.tries_once() || left.is_zero() || self.is_hopeless(cause, hint_at.since(now), left);
        if first {
            self.note_denied(state, cause);
        }
        if over {
            self.time_out(state, job.0, now);
        }
    }

    /// Whether a job that is told to come again after `hint` is refused, because by then its time is up. A slot can be
    /// free at any moment, so no one waits for one in vain.
    pub(super) fn is_hopeless(&self, cause: LastCause, hint: Duration, left: Duration) -> bool {
        self.fail_fast && cause != LastCause::Slots && hint > left
    }

    /// When a denied job asks again.
    pub(super) fn retry_at(
        &self,
        state: &State,
        denial: &Denial,
        cause: LastCause,
        others: u32,
        now: Moment,
    ) -> Moment {
        let hint = Duration::from_millis(denial.hint_ms);
        match cause {
            LastCause::Slots => now.plus(hint.min(between(POLL.0, POLL.1))),
            LastCause::Pause => {
                state.paused_until.unwrap_or_else(|| now.plus(hint)).plus(resume_spread(hint))
            }
            LastCause::Rate => {
                let rules = self.member.policy.rules();
                let rule = denial.rule.as_ref().and_then(|key| rules.iter().find(|rule| rule.key() == key));
                let each = rule.map_or(Duration::ZERO, |rule| {
                    Duration::from_micros(rule.interval_ms().saturating_mul(1_000) / rule.limit().max(1))
                });
                let spread = each.saturating_mul(others).min(MOST_SPREAD);
                now.plus(hint).plus(between(Duration::ZERO, spread))
            }
        }
    }

    pub(super) fn time_out(&self, state: &mut State, key: usize, now: Moment) {
        let Some(waiter) = state.waiters.get(key) else { return };
        // A job that has not asked was held up by what is known, else by others.
        let line = state.lines.get(waiter.tier);
        let (until, held_up) = line.and_then(|line| line.known(waiter.place(key), now)).unzip();
        let held_back = || Self::holds_back(state, now).then_some(LastCause::Pause);
        let last = held_up.or(waiter.last).or_else(held_back).unwrap_or(LastCause::Slots);
        let never_denied = waiter.denied_at.is_none();
        let error = AcquireError::Timeout {
            id: self.member.id.clone(),
            timeout: waiter.timeout,
            class: self.member.policy.class(waiter.tier).cloned(),
            waited: now.since(waiter.since),
            last,
            hint: waiter.hint_at.or(until).map(|at| at.since(now)).filter(|hint| !hint.is_zero()),
            local: waiter.local || state.away.is_some(),
        };
        if never_denied {
            self.note_denied(state, last);
        }
        state.resolve(key, Err(error));
    }

    /// Counts a job that is denied.
    pub(super) fn note_denied(&self, state: &mut State, cause: LastCause) {
        state.denied[cause as usize] += 1;
        if self.hooks.records() {
            state.notices.push_back(Notice::Denied(cause));
        }
    }

    /// Counts an operation of the store that failed.
    pub(super) fn note_store_error(&self, state: &mut State) {
        if self.hooks.records() {
            state.notices.push_back(Notice::StoreError);
        }
    }

    // ---- refusing --------------------------------------------------------------------------------------------------

    /// An acquire was refused: the one job that can never fit, or all of them.
    pub(super) fn refuse(&self, state: &mut State, jobs: &[(usize, u64)], error: &StoreError) {
        let refused = match error {
            StoreError::CostExceedsLimit { index, .. } => jobs.get(*index..=*index).unwrap_or(jobs),
            _ => jobs,
        };
        for job in refused {
            if state.waiter(*job).is_some() {
                state.resolve(job.0, Err(AcquireError::from_store(&self.member.id, error.clone())));
            }
        }
    }
}

impl State {
    /// Whether there is nothing to exchange, which can be seen before anything is made.
    fn asks_nothing(&self, now: Moment) -> bool {
        self.outbox.is_empty()
            && self.unhanded.is_empty()
            && self.restore.is_none()
            && !self.room_wanted
            && self.trying.iter().all(|trying| *trying == 0)
            && !self.lines.iter().any(|line| line.is_due(now))
    }

    /// A lease is gone: its holder is told.
    pub(super) fn lose(&mut self, key: usize) {
        let Some(held) = self.held.get_mut(key).filter(|held| !held.lost) else { return };
        held.lost = true;
        let token = held.token;
        self.wakers.append(&mut held.wakers);
        self.notices.push_back(Notice::Lost(token));
    }

    /// Who may take a grant whose asker is gone: the first of its line that waits for the same.
    fn heir(&self, flight: &Flight, tier: usize, gone: (usize, u64)) -> Option<(usize, Arc<ScopedJob>)> {
        let job = flight.job(tier, gone)?;
        let waiting = self
            .waiters
            .iter()
            .filter(|(_, waiter)| waiter.ended.is_none() && waiter.tier == tier && *waiter.job == *job);
        waiting
            .min_by_key(|(key, waiter)| waiter.place(*key))
            .map(|(key, waiter)| (key, Arc::clone(&waiter.job)))
    }
}

impl Flight {
    /// What a job of this exchange asked for.
    fn job(&self, tier: usize, job: (usize, u64)) -> Option<Arc<ScopedJob>> {
        let (at, jobs) = self
            .asked
            .iter()
            .enumerate()
            .find(|(_, (of, _))| *of == tier)
            .map(|(at, (_, jobs))| (at, jobs))?;
        let index = jobs.iter().position(|asked| *asked == job)?;
        match self.exchange.acquires.get(at)? {
            Acquire::Prefix(request) => {
                let costs = request.jobs.get(index)?.costs.clone();
                Some(Arc::new(ScopedJob { costs, scopes: Vec::new() }))
            }
            Acquire::Scoped(request) => request.jobs.get(index).cloned().map(Arc::new),
        }
    }
}

pub(super) fn failure(token: tidegate_core::Token) -> Release {
    Release { token, outcome: Outcome::Failure, retry_after_ms: None }
}

pub(super) fn cause_of(denial: &Denial, head: &Head) -> LastCause {
    if head.paused_ms > 0 {
        LastCause::Pause
    } else if denial.lease_blocked {
        LastCause::Slots
    } else {
        LastCause::Rate
    }
}

/// A denial, as a line takes it in; none for a pause. `policy` is the one that decided.
fn met(
    policy: &Policy,
    (key, job): (usize, &ScopedJob),
    denial: &Denial,
    cause: LastCause,
    until: Moment,
) -> Option<Denied> {
    let rules = policy.rules().iter().enumerate();
    let rule = denial.rule.as_ref().and_then(|key| rules.into_iter().find(|(_, rule)| rule.key() == key));
    match (cause, rule) {
        (LastCause::Pause, _) => None,
        (LastCause::Slots, _) => {
            let passed_for = Duration::ZERO;
            Some(Denied { obstacle: Obstacle::Slots, rule: None, cost: 0, until, passed_for })
        }
        (LastCause::Rate, Some((index, rule))) => Some(Denied {
            obstacle: Obstacle::Rule(index, job.identity(rule).cloned()),
            rule: rule.name().cloned(),
            cost: job.costs.of(rule.name()),
            until,
            passed_for: Duration::from_millis(rule.interval_ms()),
        }),
        (LastCause::Rate, None) => {
            let passed_for = Duration::ZERO;
            Some(Denied { obstacle: Obstacle::Unknown(key), rule: None, cost: 0, until, passed_for })
        }
    }
}

fn line_state(
    line: &Line,
    trying: usize,
    waiters: &super::table::Table<super::Waiter>,
    now: Moment,
) -> LineState {
    let head = line.head().and_then(|key| waiters.get(key));
    let denied_at = head.and_then(|waiter| waiter.denied_at);
    LineState {
        waiting: u32::try_from(line.takers().saturating_sub(trying)).unwrap_or(u32::MAX),
        waited_ms: denied_at.map_or(0, |at| ceil_millis(now.since(at))),
    }
}

/// A job with only what a policy knows of: the local one may have fewer rules.
fn fitted(job: &ScopedJob, policy: &Policy) -> ScopedJob {
    let known = |scope| policy.rules().iter().any(|rule| rule.scope() == Some(scope));
    let scopes = job.scopes.iter().filter(|(scope, _)| known(scope)).cloned().collect();
    ScopedJob { costs: fitted_costs(&job.costs, policy), scopes }
}

fn fitted_costs(costs: &Costs, policy: &Policy) -> Costs {
    let known = |name| policy.rules().iter().any(|rule| rule.name() == Some(name));
    let named = costs.named.iter().filter(|(name, _)| known(name)).cloned().collect();
    Costs { each: costs.each, named }
}

/// Workers resume spread over at most a tenth of the pause, and at most a second.
fn resume_spread(pause: Duration) -> Duration {
    between(Duration::ZERO, (pause / 10).min(MOST_SPREAD))
}

fn between(least: Duration, most: Duration) -> Duration {
    let span = u64::try_from(most.saturating_sub(least).as_micros()).unwrap_or(u64::MAX - 1);
    least + Duration::from_micros(fastrand::u64(0..=span))
}
