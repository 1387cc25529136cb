//! How much may start per unit of time, and how much of it at once.
//!
//! A [`Valve`] joins rate rules, an optional bound on concurrency, a pause that the whole fleet shares, and a queue in
//! this process. All of it is decided in one atomic step of the store, so a job spends in every rule or in none.

use std::{future::Future, sync::Arc, time::Duration};

use tidegate_core::{
    Bound, Class, Costs, Identity, Invalid, Name, Policy, ScopedJob, Store, Token, policy::Draft, rule::Rule,
    time::LONGEST,
};
use tokio::sync::broadcast;

use crate::{
    AcquireError, BuildError, ControlError, LeaseLost, Release,
    call::{AlwaysFailure, Start, WithPermit},
    driver::{Acquiring, Admitting, Ask, Face, Fallback, Permit as DriverPermit},
    event::Event,
    handle::{Handle, Options, queue_setters},
    semaphore::{Adaptive, TIMEOUT},
};

/// How many jobs of a valve may run at once.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Concurrency {
    /// So many in this process (1 to 1,000,000), whatever the fleet does. No policy.
    Local(u32),
    /// So many in the whole fleet: 1 to 1,000,000.
    Global(u32),
    /// As many in the whole fleet as the outcomes show to be right.
    Adaptive(Adaptive),
}

/// Rate rules, concurrency, a pause and a queue, together. A cheap clone of one thing.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate::{Job, MemoryStore, Outcome, Rule, Valve};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// const MINUTE: Duration = Duration::from_secs(60);
/// let valve = Valve::builder("llm-provider")
///     .rule(Rule::token_bucket(500, MINUTE).named("requests"))
///     .rule(Rule::sliding_window(200_000, MINUTE).named("tokens"))
///     .build(MemoryStore::new())?;
///
/// let permit = valve.acquire(Job::new().cost("tokens", 1_800)).await?;
/// // The call is made here; it used less than was thought.
/// permit.settle("tokens", 1_204).release(Outcome::Success);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Valve {
    handle: Handle,
    max_pause: Duration,
}

/// Builds a [`Valve`].
#[must_use]
pub struct ValveBuilder {
    options: Options,
    draft: Draft,
    classes: Vec<Class>,
    concurrency: Option<Concurrency>,
    fallback_limit: Option<u32>,
    fallback_rules: Vec<Rule>,
    max_pause: Duration,
}

/// A pause is cut to this, unless told.
const MAX_PAUSE: Duration = Duration::from_secs(3_600);

impl Valve {
    /// A valve for `id`: 1 to 200 bytes, no control characters, no braces.
    pub fn builder(id: impl Into<String>) -> ValveBuilder {
        ValveBuilder {
            options: Options::new(id.into()),
            draft: Policy::draft(),
            classes: Vec::new(),
            concurrency: None,
            fallback_limit: None,
            fallback_rules: Vec::new(),
            max_pause: MAX_PAUSE,
        }
    }

    /// Waits for a permit.
    ///
    /// # Errors
    /// [`AcquireError::Timeout`] where there was no room in time, [`AcquireError::QueueFull`] where too many wait
    /// already, [`AcquireError::CostExceedsLimit`] for a job that could never fit, [`AcquireError::Unavailable`] where
    /// the store gave no answer; refusals of the job or the policy.
    ///
    /// # Cancel safety
    /// Dropping the future at any moment leaks nothing: a grant that has arrived goes to the next job that asks for the
    /// same, or its slot and its cost go back to the store at once.
    ///
    /// Spec: VA-1, VA-2, VA-8.
    pub fn acquire(&self, job: Job) -> impl Future<Output = Result<Permit, AcquireError>> + Send {
        Admitting::new(&self.handle, self.ask(&job, job.timeout))
    }

    /// Tries once, whatever the job's timeout: it waits for no room, only for the store's answer.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    ///
    /// Spec: VA-1.
    pub fn try_acquire(&self, job: Job) -> impl Future<Output = Result<Permit, AcquireError>> + Send {
        Admitting::new(&self.handle, self.ask(&job, Duration::ZERO))
    }

    /// Waits for a permit and runs `call` under it: one attempt, no retries. Each attempt of a retry around it is
    /// admitted on its own.
    ///
    /// # Errors
    /// [`CallError::Acquire`](crate::CallError::Acquire) where there was no permit, and then the call never ran;
    /// [`CallError::Call`](crate::CallError::Call) with the call's own error, unchanged.
    ///
    /// # Cancel safety
    /// Dropping the future while it waits leaks nothing; dropping it while the call runs drops the call and releases as
    /// a failure. So does a panic.
    ///
    /// Spec: VA-1.
    pub fn run<F, T, E, Fut>(&self, job: Job, call: F) -> WithPermit<F, AlwaysFailure<E>>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        WithPermit::new(Start { handle: self.handle.clone(), acquiring: self.acquiring(job) }, call)
    }

    /// A wait for a permit; it outlives this handle.
    pub(crate) fn acquiring(&self, job: Job) -> Result<Acquiring, AcquireError> {
        self.ask(&job, job.timeout).map(|ask| self.handle.acquire(ask))
    }

    /// Looks at the job where it is: moving it about takes as long as what the store decides.
    #[inline]
    fn ask(&self, job: &Job, timeout: Duration) -> Result<Ask, AcquireError> {
        if job.each == 1 && job.named.is_empty() && job.scopes.is_empty() && job.class.is_none() {
            return Ok(Ask { job: None, class: None, priority: job.priority, timeout });
        }
        self.ask_in_full(job, timeout)
    }

    fn ask_in_full(&self, job: &Job, timeout: Duration) -> Result<Ask, AcquireError> {
        let refused = |invalid: Invalid| AcquireError::from_store(&self.handle.member.id, invalid.into());
        let class = job.class.as_ref().map(|class| Name::new("class", class)).transpose().map_err(refused)?;
        let is_unit = job.each == 1 && job.named.is_empty() && job.scopes.is_empty();
        let job_spec = if is_unit {
            None
        } else {
            let mut costs = Costs { each: job.each, named: Vec::with_capacity(job.named.len()) };
            for (rule, cost) in &job.named {
                costs.named.push((Name::new("cost", rule).map_err(refused)?, *cost));
            }
            let mut scopes = Vec::with_capacity(job.scopes.len());
            for (scope, identity) in &job.scopes {
                let scope = Name::new("scope", scope).map_err(refused)?;
                scopes.push((scope, Identity::new(identity).map_err(refused)?));
            }
            Some(Arc::new(ScopedJob { costs, scopes }))
        };
        Ok(Ask { job: job_spec, class, priority: job.priority, timeout })
    }

    /// Pauses the whole fleet, and this process even when the store is away. Never shortens a running pause. One that is
    /// longer than `max_pause` is cut to it, and the answer says so.
    ///
    /// # Errors
    /// [`ControlError::InvalidOptions`] for a length of zero; [`ControlError::Unavailable`] where the store gave no
    /// answer: this process keeps the pause all the same, and tells the fleet when the store is back.
    ///
    /// # Cancel safety
    /// Once it has been polled it is carried out, also when the future is dropped.
    ///
    /// Spec: VA-4.
    pub async fn pause(&self, length: Duration) -> Result<Pause, ControlError> {
        let id = || self.handle.member.id.clone();
        if length.is_zero() {
            let source = Invalid::new("pause", length, "above 0").into();
            return Err(ControlError::InvalidOptions { id: id(), source });
        }
        let cut = length > self.max_pause;
        let answer = self.handle.pause(length.min(self.max_pause)).await;
        let reply = answer.map_err(|error| ControlError::from_store(&self.handle.member.id, error))?;
        Ok(Pause { left: Duration::from_millis(reply.body.left_ms), cut, extended: reply.body.extended })
    }

    /// Ends a pause, for the whole fleet. Says whether there was one.
    ///
    /// # Errors
    /// [`ControlError::Unavailable`] where the store gave no answer.
    ///
    /// # Cancel safety
    /// Once it has been polled it is carried out, also when the future is dropped.
    ///
    /// Spec: VA-4.
    pub async fn resume(&self) -> Result<bool, ControlError> {
        let answer = self.handle.resume().await;
        answer
            .map(|reply| reply.body)
            .map_err(|error| ControlError::from_store(&self.handle.member.id, error))
    }

    /// What this process sees.
    ///
    /// Spec: VA-5.
    pub fn stats(&self) -> ValveStats {
        let view = self.handle.view();
        let [slots, rate, pause] = view.denied;
        ValveStats {
            queued: view.waiting,
            in_flight: view.in_flight,
            paused_for: view.paused_for,
            limit: self.handle.member.policy.bound().map(|_| view.limit),
            granted: view.granted,
            denied: DeniedBy { slots, rate, pause },
            store_away: view.away,
        }
    }

    /// What happens from now on. A reader that falls behind by more than 256 misses the oldest.
    ///
    /// Spec: VA-5.
    pub fn events(&self) -> Events {
        Events { receiver: self.handle.events() }
    }

    /// Looks at the store once, so that [`stats`](Self::stats) is of now.
    ///
    /// # Errors
    /// [`ControlError::Unavailable`] where the store gave no answer.
    pub async fn refresh(&self) -> Result<(), ControlError> {
        self.handle.refresh().await.map_err(|error| ControlError::from_store(&self.handle.member.id, error))
    }

    /// Completes when the store has all that was released and settled so far.
    pub async fn flush(&self) {
        self.handle.flush().await;
    }

    /// Ends the waits of this handle and its clones with `Closed`, refuses later ones, and flushes, for two operation
    /// timeouts at most. Optional and idempotent. The store stays open.
    pub async fn close(&self) {
        self.handle.close();
        self.handle.flush_or_give_up().await;
    }
}

impl std::fmt::Debug for Valve {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Valve")
            .field("id", &self.handle.member.id)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

impl ValveBuilder {
    queue_setters!();

    /// Adds a rate rule; at most 16.
    ///
    /// Spec: RU-4.
    pub fn rule(mut self, rule: Rule) -> Self {
        self.draft = self.draft.rule(rule);
        self
    }

    /// Bounds how many jobs run at once; no bound unless told.
    pub fn concurrency(mut self, concurrency: Concurrency) -> Self {
        self.concurrency = Some(concurrency);
        self
    }

    /// The most jobs that may wait in this process: 10,000 unless told, 1 at least. No policy.
    ///
    /// Spec: VA-2.
    pub fn max_queue(mut self, max_queue: usize) -> Self {
        self.options.max_queue = max_queue;
        self
    }

    /// The longest pause that is taken: 1 h unless told, 1 ms to 366 days. Bounds what a wrong `Retry-After` can do. No
    /// policy.
    ///
    /// Spec: VA-4.
    pub fn max_pause(mut self, max_pause: Duration) -> Self {
        self.max_pause = max_pause;
        self
    }

    /// Refuses a job at once whose hint is later than its timeout, instead of letting it wait in vain. Off unless called.
    ///
    /// Spec: VA-10.
    pub fn fail_fast(mut self) -> Self {
        self.options.fail_fast = true;
        self
    }

    /// While the store is away, at most `limit` (1 to 1,000,000) jobs of this process run at once, instead of none.
    ///
    /// Spec: VA-7.
    pub fn fallback_local(mut self, limit: u32) -> Self {
        self.fallback_limit = Some(limit);
        self
    }

    /// While the store is away, this process keeps to this rule by itself; any number of them, with or without
    /// [`fallback_local`](Self::fallback_local).
    ///
    /// Spec: VA-7.
    pub fn fallback_rule(mut self, rule: Rule) -> Self {
        self.fallback_rules.push(rule);
        self
    }

    /// Builds it. Asks nothing of the store.
    ///
    /// # Errors
    /// [`BuildError`] for an option that cannot be taken, and for a store that lacks what the valve needs.
    pub fn build(self, store: impl Store) -> Result<Valve, BuildError> {
        let id = self.options.common.id.clone();
        let refused = |invalid| BuildError::new(id.clone(), invalid);
        if !(Duration::from_millis(1)..=LONGEST).contains(&self.max_pause) {
            return Err(refused(Invalid::new("max_pause", self.max_pause, "1 ms to 366 days")));
        }
        let mut initial = 1;
        let mut local = None;
        let mut draft = self.draft;
        match &self.concurrency {
            None => {}
            Some(Concurrency::Local(limit)) => {
                if !(1..=tidegate_core::policy::MOST_LEASES).contains(limit) {
                    return Err(refused(Invalid::new("concurrency", limit, "1 to 1000000")));
                }
                local = Some(*limit);
            }
            Some(Concurrency::Global(limit)) => draft = draft.bound(Bound::Fixed(*limit)),
            Some(Concurrency::Adaptive(adaptive)) => {
                draft = draft.bound(Bound::Adaptive(adaptive.check().map_err(refused)?));
                initial = adaptive.initial;
            }
        }
        let policy = self.classes.iter().cloned().fold(draft, Draft::class).check().map_err(refused)?;
        let falls_back = self.fallback_limit.is_some() || !self.fallback_rules.is_empty();
        let fallback = falls_back.then(|| {
            let rules = self.fallback_rules.into_iter().fold(Policy::draft(), Draft::rule);
            Fallback::check(&policy, rules, self.classes, self.fallback_limit).map_err(|invalid| {
                let option = format!("fallback: {}", invalid.option);
                invalid.of(option)
            })
        });
        let fallback = fallback.transpose().map_err(refused)?;
        let handle = self.options.build(policy, initial, local, fallback, store)?;
        Ok(Valve { handle, max_pause: self.max_pause })
    }
}

impl std::fmt::Debug for ValveBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ValveBuilder").field("id", &self.options.common.id).finish_non_exhaustive()
    }
}

/// One unit of work that asks to start. Checked when it is offered to a valve.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Job {
    each: u64,
    named: Vec<(String, u64)>,
    scopes: Vec<(String, String)>,
    class: Option<String>,
    priority: i32,
    timeout: Duration,
}

impl Job {
    /// A job that costs 1 in every rule, of priority 0, in no class, and waits 10 s at most.
    pub const fn new() -> Self {
        Self { each: 1, named: Vec::new(), scopes: Vec::new(), class: None, priority: 0, timeout: TIMEOUT }
    }

    /// What it costs in every rule that has no cost of its own: 1 unless told. 0 passes without spending.
    pub const fn cost_each(mut self, cost: u64) -> Self {
        self.each = cost;
        self
    }

    /// What it costs in the rule of this name.
    ///
    /// Spec: RU-2.
    pub fn cost(mut self, rule: impl Into<String>, cost: u64) -> Self {
        self.named.push((rule.into(), cost));
        self
    }

    /// Its identity in a scope: any UTF-8 of 1 to 256 bytes. One for every scope that a rule uses.
    ///
    /// Spec: ST-10.
    pub fn scope(mut self, scope: impl Into<String>, identity: impl Into<String>) -> Self {
        self.scopes.push((scope.into(), identity.into()));
        self
    }

    /// Its class.
    pub fn class(mut self, class: impl Into<String>) -> Self {
        self.class = Some(class.into());
        self
    }

    /// Its place in this process's queue: 0 unless told, higher first.
    pub const fn priority(mut self, priority: i32) -> Self {
        self.priority = priority;
        self
    }

    /// How long it waits: 10 s unless told; zero is exactly one try, and over 366 days has no end.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

impl Default for Job {
    fn default() -> Self {
        Self::new()
    }
}

/// What came of a pause.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Pause {
    /// What is left of it.
    pub left: Duration,
    /// Whether it was cut to `max_pause`.
    pub cut: bool,
    /// Whether one was running already.
    pub extended: bool,
}

/// What a process sees of a valve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct ValveStats {
    /// Jobs that wait in this process.
    pub queued: u32,
    /// Permits held in this process.
    pub in_flight: u32,
    /// What is left of a pause; zero where there is none.
    pub paused_for: Duration,
    /// The fleet's limit, where concurrency is bounded fleet-wide.
    pub limit: Option<u32>,
    /// Jobs granted in this process.
    pub granted: u64,
    /// Jobs that were denied, by what denied them first.
    pub denied: DeniedBy,
    /// Whether the store is away.
    pub store_away: bool,
}

/// Jobs denied, by what denied them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct DeniedBy {
    /// Full slots.
    pub slots: u64,
    /// A rate rule.
    pub rate: u64,
    /// A pause.
    pub pause: u64,
}

/// A stream of what happens to a valve.
#[derive(Debug)]
pub struct Events {
    receiver: broadcast::Receiver<Event>,
}

impl Events {
    /// The next event; none when the valve is gone.
    ///
    /// # Cancel safety
    /// Can be dropped and asked again; no event is lost by that.
    pub async fn next(&mut self) -> Option<Event> {
        loop {
            match self.receiver.recv().await {
                Ok(event) => return Some(event),
                Err(broadcast::error::RecvError::Lagged(_)) => {}
                Err(broadcast::error::RecvError::Closed) => return None,
            }
        }
    }
}

/// A job's admission. It carries a lease where concurrency is bounded fleet-wide; dropping it without a release is a
/// failure.
#[must_use = "dropping a permit releases it as a failure"]
pub struct Permit {
    permit: DriverPermit,
}

impl Face for Permit {
    fn of(permit: DriverPermit) -> Self {
        Self { permit }
    }
}

impl Permit {
    /// Ends the job, with what came of it. Does not wait, cannot fail, and happens once.
    pub fn release(self, release: impl Into<Release>) {
        let Release { outcome, retry_after } = release.into();
        self.permit.release(outcome, retry_after);
    }

    /// Corrects what the job spent in a rule to what it really used: 0 to 10^12, once per rule. The rule is named by its
    /// name, or by its key where it has none. Never fails: what cannot be taken is reported through `on_error`.
    ///
    /// Spec: VA-6, ST-12.
    pub fn settle(mut self, rule: &str, actual: u64) -> Self {
        self.permit.settle(rule, actual);
        self
    }

    /// Tells what the server says of its own quota: `remaining` now, until `reset` from now. The fleet's level is lowered
    /// to that, never raised. Never fails: what cannot be taken is reported through `on_error`.
    ///
    /// Spec: VA-9.
    pub fn observe(mut self, rule: &str, remaining: u64, reset: Duration) -> Self {
        self.permit.observe(rule, remaining, reset);
        self
    }

    /// The slot of its lease; none without one, and for a local permit.
    pub fn slot(&self) -> Option<u32> {
        self.permit.token().map(|token| token.slot)
    }

    /// The fence of its lease; none without one, and for a local permit.
    pub fn fence(&self) -> Option<u64> {
        self.permit.token().map(|token| token.fence)
    }

    /// The token of its lease; none without one, and for a local permit.
    pub fn token(&self) -> Option<Token> {
        self.permit.token()
    }

    /// Whether this process granted it alone, while the store was away.
    pub fn is_local(&self) -> bool {
        self.permit.is_local()
    }

    /// Whether its lease is certainly still its own; always so without one.
    ///
    /// Spec: AS-6.
    pub fn is_live(&self) -> bool {
        self.permit.is_live()
    }

    /// Completes when its lease is lost; never without one.
    ///
    /// # Cancel safety
    /// Can be dropped and asked again.
    pub async fn lost(&self) -> LeaseLost {
        self.permit.lost().await
    }
}

impl std::fmt::Debug for Permit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Permit")
            .field("id", self.permit.id())
            .field("token", &self.token())
            .field("local", &self.is_local())
            .finish()
    }
}
