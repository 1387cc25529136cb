//! The future of one acquire.
//!
//! It can be dropped at any moment: a job that waits leaves its line, and a grant that it has not taken goes to the next
//! that asks for the same, or back to the store at once.
//!
//! Spec: AS-8, VA-8.

use std::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use tidegate_core::{
    AcquireRequest, Denial, Grant, Invalid, Job, Line as LineState, ScopedRequest, time::Moment,
};

use super::{
    Ask, Driver, Permit,
    apply::{Grounds, failure},
    state::{Granted, State},
};
use crate::{
    AcquireError, AcquireResult, LastCause,
    link::{Failed, check_one, check_one_scoped},
};

/// Waits for a permit.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Acquiring {
    /// None when it has ended: a permit takes it along.
    driver: Option<Arc<Driver>>,
    stage: Stage,
    tier: usize,
}

enum Stage {
    New(Ask),
    /// What was asked for is nothing that can be.
    Refused(Box<AcquireError>),
    Waiting {
        key: usize,
        since: Moment,
    },
}

impl Acquiring {
    #[inline]
    pub(super) fn new(driver: Arc<Driver>, ask: Ask) -> Self {
        Self { driver: Some(driver), stage: Stage::New(ask), tier: 0 }
    }

    /// Takes the common job's straight way. None where it takes more than that.
    #[inline]
    fn at_once(&mut self) -> Option<Permit> {
        let (Some(driver), Stage::New(ask)) = (&self.driver, &self.stage) else { return None };
        let mut state = driver.lock();
        let (key, tier) = driver.at_once(&mut state, ask)?;
        driver.note_load(&mut state, tier);
        driver.unlock(state);
        self.tier = tier;
        if driver.hooks.records() {
            self.record(driver, AcquireResult::Granted, Duration::ZERO);
        }
        self.driver.take().map(|driver| Permit::new(driver, key))
    }

    fn go_on(&mut self, context: &Context<'_>) -> Poll<Result<Permit, AcquireError>> {
        if let Stage::Refused(error) = &self.stage {
            self.driver = None;
            return Poll::Ready(Err((**error).clone()));
        }
        match self.begin() {
            Begun::Ended(ended) => return self.end(ended),
            Begun::Refused(error) => {
                self.driver = None;
                return Poll::Ready(Err(error));
            }
            Begun::Waits => {}
        }
        match self.look(context) {
            Some(ended) => self.end(ended),
            None => Poll::Pending,
        }
    }

    /// Decides a job on the spot where that can be; where not, it waits from now on.
    fn begin(&mut self) -> Begun {
        let (Some(driver), Stage::New(ask)) = (&self.driver, &self.stage) else { return Begun::Waits };
        let mut state = driver.lock();
        self.tier = match driver.check(ask) {
            Ok(tier) => tier,
            Err(error) => return Begun::Refused(error),
        };
        let begun = match driver.begin(&mut state, ask, self.tier) {
            Ok(ended) => Begun::Ended(ended.map(|granted| state.issued.insert(granted))),
            Err(key) => {
                let since = state.waiters.get(key).map_or_else(Moment::default, |waiter| waiter.since);
                self.stage = Stage::Waiting { key, since };
                driver.stir(&mut state);
                Begun::Waits
            }
        };
        driver.note_load(&mut state, self.tier);
        driver.unlock(state);
        begun
    }

    /// Looks whether the wait has ended.
    fn look(&self, context: &Context<'_>) -> Option<Result<usize, AcquireError>> {
        let (Some(driver), Stage::Waiting { key, .. }) = (&self.driver, &self.stage) else { return None };
        let mut state = driver.lock();
        let ended = state.waiters.get_mut(*key).is_some_and(|waiter| {
            if waiter.ended.is_none()
                && waiter.waker.as_ref().is_none_or(|known| !known.will_wake(context.waker()))
            {
                waiter.waker = Some(context.waker().clone());
            }
            waiter.ended.is_some()
        });
        if !ended {
            // The runtime that the task ran on may have ended since.
            driver.ensure_running(&mut state);
            driver.unlock(state);
            return None;
        }
        let ended = state.take(*key).and_then(|waiter| waiter.ended);
        let ended = ended.unwrap_or_else(|| Err(AcquireError::Closed { id: driver.member.id.clone() }));
        let ended = ended.map(|granted| state.issued.insert(granted));
        driver.note_load(&mut state, self.tier);
        driver.unlock(state);
        Some(ended)
    }

    /// Ends with what came of it.
    fn end(&mut self, ended: Result<usize, AcquireError>) -> Poll<Result<Permit, AcquireError>> {
        let Some(driver) = self.driver.take() else { return Poll::Pending };
        if driver.hooks.records() {
            self.record_end(&driver, &ended);
        }
        Poll::Ready(ended.map(|key| Permit::new(driver, key)))
    }

    fn record_end(&self, driver: &Driver, ended: &Result<usize, AcquireError>) {
        let waited = match &self.stage {
            Stage::New(_) | Stage::Refused(_) => Duration::ZERO,
            Stage::Waiting { since, .. } => driver.clock.now().since(*since),
        };
        let ended = match ended {
            Ok(_) => AcquireResult::Granted,
            Err(AcquireError::Timeout { .. } | AcquireError::QueueFull { .. }) => AcquireResult::Timeout,
            Err(AcquireError::Closed { .. }) => AcquireResult::Closed,
            Err(_) => AcquireResult::Unavailable,
        };
        self.record(driver, ended, waited);
    }

    fn record(&self, driver: &Driver, ended: AcquireResult, waited: Duration) {
        let class = driver.member.policy.class(self.tier).map(tidegate_core::Name::as_str);
        driver.hooks.record(&driver.member.id, |recorder| recorder.acquired(class, ended, waited));
    }
}

impl Future for Acquiring {
    type Output = Result<Permit, AcquireError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.at_once() {
            Some(permit) => Poll::Ready(Ok(permit)),
            None => self.go_on(context),
        }
    }
}

/// A permit as people see it.
pub(crate) trait Face {
    fn of(permit: Permit) -> Self;
}

/// The wait for one. An async function would keep its arguments beside it, and move it about.
#[must_use = "futures do nothing unless polled"]
pub(crate) struct Admitting<P> {
    acquiring: Acquiring,
    permit: PhantomData<fn() -> P>,
}

impl<P> Admitting<P> {
    /// Asks for a permit, where what was asked for can be. Nothing is done before the first poll.
    #[inline]
    pub(crate) fn new(driver: &Arc<Driver>, asked: Result<Ask, AcquireError>) -> Self {
        let stage = match asked {
            Ok(ask) => Stage::New(ask),
            Err(error) => Stage::Refused(Box::new(error)),
        };
        let acquiring = Acquiring { driver: Some(Arc::clone(driver)), stage, tier: 0 };
        Self { acquiring, permit: PhantomData }
    }
}

impl<P: Face> Future for Admitting<P> {
    type Output = Result<P, AcquireError>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Pin::new(&mut self.acquiring).poll(context).map_ok(P::of)
    }
}

impl Drop for Acquiring {
    fn drop(&mut self) {
        let (Some(driver), Stage::Waiting { key, since }) = (&self.driver, &self.stage) else { return };
        let mut state = driver.lock();
        let now = driver.clock.now();
        if let Some(waiter) = state.take(*key)
            && let Some(Ok(granted)) = waiter.ended
        {
            driver.pass_on(&mut state, granted, now);
        }
        driver.stir(&mut state);
        driver.note_load(&mut state, self.tier);
        driver.unlock(state);
        if driver.hooks.records() {
            self.record(driver, AcquireResult::Cancelled, now.since(*since));
        }
    }
}

/// What came of the first look at a job.
enum Begun {
    /// The job cannot be taken: nothing was tried.
    Refused(AcquireError),
    /// With a permit under this key, where it is granted.
    Ended(Result<usize, AcquireError>),
    Waits,
}

impl Driver {
    /// Grants the common job on the spot: one of unit cost, on a store that answers in brief, with nothing amiss and nobody
    /// ahead. None where it takes more than that.
    /// Says under which key the permit is, and of which tier.
    #[inline]
    fn at_once(&self, state: &mut State, ask: &Ask) -> Option<(usize, usize)> {
        let store = self.brief.as_deref().filter(|_| ask.job.is_none())?;
        let tier = self.member.policy.tier(ask.class.as_ref())?;
        let is_free = self.local_limit.is_none_or(|limit| state.permits() < limit);
        if !is_free || !state.is_calm() || !state.is_nobody_ahead(tier) || self.member.policy.is_scoped() {
            return None;
        }
        // Taken apart where it is: moving it would take as long as the store did.
        let mut brief = store.acquire_one(&self.member, tier, state.seen);
        let brief = brief.as_mut()?;
        self.take_brief(state, brief);
        self.ensure_running(state);
        let now = brief.now;
        let grounds = Grounds { sent: now, now, granted_at: Some(now), limit: None, local: false };
        let granted = self.taken(state, grounds, ask, tier, brief.grant.as_mut()?);
        Some((state.issued.insert(granted), tier))
    }

    /// Decides a job on the spot where that can be, and puts it into its line where not: then under this key.
    fn begin(
        &self,
        state: &mut State,
        ask: &Ask,
        tier: usize,
    ) -> Result<Result<Granted, AcquireError>, usize> {
        let id = || self.member.id.clone();
        if state.closed {
            return Ok(Err(AcquireError::Closed { id: id() }));
        }
        if let Some(away) = state.away.as_ref().filter(|_| self.fallback.is_none()) {
            let source = away.error.clone();
            // The runtime that the task ran on may have ended, and someone has to probe.
            self.ensure_running(state);
            return Ok(Err(AcquireError::Unavailable { id: id(), source }));
        }
        let job = self.job_of(ask.job.as_ref());
        let nobody_waits = state.is_nobody_ahead(tier);
        let decided = if nobody_waits { self.decide(state, ask, tier) } else { None };
        let (mut first, mut answer) = (None, None);
        match decided {
            Some(Decided::Granted(granted)) => return Ok(Ok(granted)),
            Some(Decided::Refused(error)) => return Ok(Err(error)),
            Some(Decided::Denied { denial, cause, hint_at, until }) => {
                first = Some((cause, hint_at));
                answer = Some((denial, cause, until));
            }
            None => {}
        }
        let now = self.clock.now();
        let place = super::queue::next_place(ask.priority);
        let policy = self.deciding(state);
        let line = state.lines.get(tier).filter(|_| !nobody_waits);
        let in_vain = line.and_then(|line| line.meets(place, job, policy, now));
        let held_back = state.unsent_pause.filter(|_| Self::holds_back(state, now));
        let in_vain = held_back.map(|until| (until, LastCause::Pause)).or(in_vain);
        if let Some((until, cause)) = in_vain {
            // Behind others that were denied, asking would be in vain.
            let wait = until.since(now);
            if ask.timeout.is_zero() || self.is_hopeless(cause, wait, ask.timeout) {
                self.note_denied(state, cause);
                return Ok(Err(AcquireError::Timeout {
                    id: id(),
                    timeout: ask.timeout,
                    class: ask.class.clone(),
                    waited: Duration::ZERO,
                    last: cause,
                    hint: Some(wait).filter(|wait| !wait.is_zero()),
                    local: state.away.is_some(),
                }));
            }
        }
        let waiting: usize = state.lines.iter().map(super::queue::Line::len).sum();
        if waiting >= self.max_queue && !ask.timeout.is_zero() {
            return Ok(Err(AcquireError::QueueFull { id: id(), max_queue: self.max_queue }));
        }
        if let Some((until, cause)) = in_vain {
            // Whoever comes while something holds up those ahead is held up with them, and need not ask to know it.
            self.note_denied(state, cause);
            first = Some((cause, until));
        }
        let key = state.enqueue(ask, job, tier, self.op_timeout, now);
        let alone = state.away.is_some();
        if let Some((cause, hint_at)) = first
            && let Some(waiter) = state.waiters.get_mut(key)
        {
            waiter.denied_at = Some(now);
            waiter.last = Some(cause);
            waiter.hint_at = Some(hint_at);
            waiter.local = alone;
        }
        if let Some((denial, cause, until)) = answer {
            let place = state.waiters.get(key).map_or(place, |waiter| waiter.place(key));
            self.block(state, tier, (place, job), &denial, cause, until, now);
        }
        Err(key)
    }

    /// Refuses what can never be, before anything is asked.
    fn check(&self, ask: &Ask) -> Result<usize, AcquireError> {
        let id = || self.member.id.clone();
        let policy = &self.member.policy;
        let Some(tier) = policy.tier(ask.class.as_ref()) else {
            let names: Vec<&str> = policy.classes().iter().map(|class| class.name.as_str()).collect();
            let allowed = if names.is_empty() {
                "none: no classes are configured".to_owned()
            } else {
                names.join(", ")
            };
            let class = ask.class.as_ref().map_or("", tidegate_core::Name::as_str);
            let source = Invalid::new("class", class, allowed).into();
            return Err(AcquireError::InvalidOptions { id: id(), source });
        };
        let job = self.job_of(ask.job.as_ref());
        let checked = job.costs.check(policy, policy, 0).and_then(|()| job.check_scopes(policy, policy));
        checked.map_err(|error| AcquireError::from_store(&self.member.id, error)).map(|()| tier)
    }

    /// Asks the store on the spot, where it decides without waiting and no one is ahead.
    fn decide(&self, state: &mut State, ask: &Ask, tier: usize) -> Option<Decided> {
        let sync = self.link.sync().filter(|_| state.away.is_none())?;
        let free = self.local_limit.is_none_or(|limit| state.permits() < limit);
        if !free || state.unsent_pause.is_some() {
            return None;
        }
        let sent = if self.on_store_clock { None } else { Some(self.clock.now()) };
        let job = self.job_of(ask.job.as_ref());
        let scoped = self.member.policy.is_scoped();
        let waiting = u32::from(!ask.timeout.is_zero());
        let answer = if scoped {
            let line = LineState { waiting, waited_ms: 0 };
            let request = ScopedRequest { class: ask.class.clone(), jobs: vec![(**job).clone()], line };
            sync.acquire_scoped(&self.member, &request).map_err(Failed::from).and_then(|reply| {
                check_one_scoped(&reply)?;
                Ok(reply.map(|body| {
                    let grant = body.grants.into_iter().next().map(|granted| granted.grant);
                    (grant, body.denied.into_iter().next().map(|denied| denied.denial), body.others)
                }))
            })
        } else {
            let single = self.singles.get(tier)?.get(waiting as usize)?;
            let built;
            let request = if ask.job.is_none() {
                single
            } else {
                let jobs = vec![Job { costs: job.costs.clone() }];
                built = AcquireRequest { class: single.class.clone(), jobs, line: single.line };
                &built
            };
            sync.acquire(&self.member, request).map_err(Failed::from).and_then(|reply| {
                check_one(&reply)?;
                Ok(reply.map(|body| (body.grants.into_iter().next(), body.denied, body.others)))
            })
        };
        let reply = match answer {
            Ok(reply) => reply,
            Err(Failed { error, leases }) => {
                if error.is_unavailable() {
                    self.note_store_error(state);
                    let now = self.clock.now();
                    for token in leases {
                        state.outbox.release(failure(token), now);
                    }
                    self.went_away(state, error.clone(), now);
                    if self.fallback.is_some() {
                        return None;
                    }
                }
                return Some(Decided::Refused(AcquireError::from_store(&self.member.id, error)));
            }
        };
        // On the store's own clock, the moment of the decision is that of the request.
        let now = self.now_of(&reply.head);
        let sent = sent.unwrap_or(now);
        self.take_head(state, &reply.head, sent, now);
        // From the first answer on, this process watches.
        self.ensure_running(state);
        let (grant, denial, others) = reply.body;
        if let Some(mut grant) = grant {
            let grounds =
                Grounds { sent, now, granted_at: reply.head.now, limit: reply.head.limit, local: false };
            let granted = self.taken(state, grounds, ask, tier, &mut grant);
            return Some(Decided::Granted(granted));
        }
        let denial = denial?;
        let cause = super::apply::cause_of(&denial, &reply.head);
        let hint = Duration::from_millis(denial.hint_ms);
        self.note_denied(state, cause);
        if ask.timeout.is_zero() || self.is_hopeless(cause, hint, ask.timeout) {
            return Some(Decided::Refused(AcquireError::Timeout {
                id: self.member.id.clone(),
                timeout: ask.timeout,
                class: ask.class.clone(),
                waited: Duration::ZERO,
                last: cause,
                hint: Some(hint),
                local: false,
            }));
        }
        let until = self.retry_at(state, &denial, cause, others, now);
        Some(Decided::Denied { denial, cause, hint_at: now.plus(hint), until })
    }

    pub(super) fn note_load(&self, state: &mut State, tier: usize) {
        if self.hooks.records() {
            state.note_load(tier);
        }
    }

    /// Counts a grant that its asker takes at once.
    #[inline(always)]
    fn taken(
        &self,
        state: &mut State,
        grounds: Grounds,
        ask: &Ask,
        tier: usize,
        grant: &mut Grant,
    ) -> Granted {
        state.in_flight[tier] += 1;
        state.granted += 1;
        self.granted(state, grounds, tier, ask.job.clone(), grant)
    }

    /// A grant whose waiter is gone goes to the next that waits for the same, or back.
    fn pass_on(&self, state: &mut State, granted: Granted, now: Moment) {
        let job = self.job_of(granted.job.as_ref());
        let next = state.waiters.iter().filter(|(_, waiter)| {
            waiter.ended.is_none() && waiter.tier == granted.tier && *waiter.job == **job
        });
        let next = next.min_by_key(|(key, waiter)| waiter.place(*key)).map(|(key, _)| key);
        match next {
            Some(key) => state.resolve(key, Ok(granted)),
            None => {
                state.in_flight[granted.tier] -= 1;
                self.give_back(state, granted, now);
            }
        }
    }
}

enum Decided {
    Granted(Granted),
    Refused(AcquireError),
    Denied { denial: Denial, cause: LastCause, hint_at: Moment, until: Moment },
}
