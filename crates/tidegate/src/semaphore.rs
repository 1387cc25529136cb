//! How many calls may run at once, fleet-wide, when nobody knows the real ceiling.
//!
//! An [`AdaptiveSemaphore`] keeps one limit for a whole fleet and moves it by what callers report: a throttled call cuts
//! it, a window of demand without one lifts it. The steady state lies just under what the remote takes.

use std::{collections::BTreeMap, future::Future, time::Duration};

use tidegate_core::{Bound, Class, Invalid, Name, Policy, Store, Token, limit::LimitPolicy, policy::Draft};

use crate::{
    AcquireError, Aimd, BuildError, Growth, LeaseLost, Release,
    call::{AlwaysFailure, Start, WithPermit},
    driver::{Acquiring, Admitting, Ask, Face, Fallback, Permit},
    handle::{Handle, Options, queue_setters},
};

/// How an adaptive limit starts and moves.
///
/// Spec: AS-16.
#[derive(Clone, Debug)]
#[must_use]
pub struct Adaptive {
    pub(crate) initial: u32,
    min: u32,
    max: u32,
    aimd: Aimd,
    throttle_rest: Duration,
    growth: Growth,
}

/// The slot of a throttled release rests this long, unless told.
const THROTTLE_REST: Duration = Duration::from_millis(100);

impl Adaptive {
    /// A limit that starts at `initial`, within `min_limit` and `max_limit`.
    pub fn new(initial: u32) -> Self {
        Self {
            initial,
            min: 1,
            max: 1_000,
            aimd: Aimd::default(),
            throttle_rest: THROTTLE_REST,
            growth: Growth::default(),
        }
    }

    /// The floor of the limit: 1 unless told, 1 at least.
    pub const fn min_limit(mut self, min: u32) -> Self {
        self.min = min;
        self
    }

    /// The ceiling of the limit: 1,000 unless told, at most 1,000,000. A guard, not a tuning knob.
    pub const fn max_limit(mut self, max: u32) -> Self {
        self.max = max;
        self
    }

    /// The constants of increase and decrease.
    pub fn aimd(mut self, aimd: Aimd) -> Self {
        self.aimd = aimd;
        self
    }

    /// How long the slot of a throttled release rests: 100 ms unless told, 0 to 24 h.
    pub const fn throttle_rest(mut self, rest: Duration) -> Self {
        self.throttle_rest = rest;
        self
    }

    /// How the limit grows: additively unless told.
    ///
    /// Spec: AS-13.
    pub const fn growth(mut self, growth: Growth) -> Self {
        self.growth = growth;
        self
    }

    pub(crate) fn check(&self) -> Result<LimitPolicy, Invalid> {
        let policy = LimitPolicy::check(self.min, self.max, &self.aimd, self.throttle_rest, self.growth)?;
        if (self.min..=self.max).contains(&self.initial) {
            Ok(policy)
        } else {
            let allowed = format!("{} to {}, from min_limit to max_limit", self.min, self.max);
            Err(Invalid::new("initial_limit", self.initial, allowed))
        }
    }
}

/// A fleet-wide bound on concurrency that finds its limit by itself. A cheap clone of one thing.
///
/// Building one asks nothing of the store; the first acquire seeds the limit, or adopts the one that is there.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate::{Acquire, AdaptiveSemaphore, MemoryStore, Outcome};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let semaphore = AdaptiveSemaphore::builder("my-provider-api", 10).build(MemoryStore::new())?;
///
/// let lease = semaphore.acquire(Acquire::within(Duration::from_secs(30))).await?;
/// let answer: Result<&str, &str> = Ok("called the provider");
/// lease.release(if answer.is_ok() { Outcome::Success } else { Outcome::Failure });
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct AdaptiveSemaphore {
    handle: Handle,
}

/// Builds an [`AdaptiveSemaphore`].
#[must_use]
pub struct SemaphoreBuilder {
    options: Options,
    draft: Draft,
    adaptive: Adaptive,
    classes: Vec<Class>,
    fallback: Option<u32>,
}

impl AdaptiveSemaphore {
    /// A semaphore for `id` (1 to 200 bytes, no control characters, no braces), whose limit starts at `initial_limit`
    /// where the store has none.
    pub fn builder(id: impl Into<String>, initial_limit: u32) -> SemaphoreBuilder {
        SemaphoreBuilder {
            options: Options::new(id.into()),
            draft: Policy::draft(),
            adaptive: Adaptive::new(initial_limit),
            classes: Vec::new(),
            fallback: None,
        }
    }

    /// Waits for a slot.
    ///
    /// # Errors
    /// [`AcquireError::Timeout`] where there was no room in time, [`AcquireError::Unavailable`] where the store gave no
    /// answer, [`AcquireError::Closed`] after [`close`](Self::close); refusals of the class or the policy.
    ///
    /// # Cancel safety
    /// Dropping the future at any moment leaks nothing: a grant that has arrived goes to the next waiter, or back to the
    /// store at once.
    ///
    /// Spec: AS-8, AS-12.
    pub fn acquire(&self, acquire: Acquire) -> impl Future<Output = Result<Lease, AcquireError>> + Send {
        Admitting::new(&self.handle, self.ask(acquire))
    }

    /// Tries once, in no class: it waits for no room, only for the store's answer. It does not overtake those that wait.
    ///
    /// # Errors
    /// As [`acquire`](Self::acquire).
    ///
    /// # Cancel safety
    /// As [`acquire`](Self::acquire).
    pub fn try_acquire(&self) -> impl Future<Output = Result<Lease, AcquireError>> + Send {
        let ask = Ask { job: None, class: None, priority: 0, timeout: Duration::ZERO };
        Admitting::new(&self.handle, Ok(ask))
    }

    /// Runs `call` while holding a lease: one attempt, no retries. Releases with `Success`, or with what
    /// [`outcome_on_error`](WithPermit::outcome_on_error) says of the error.
    ///
    /// # Errors
    /// [`CallError::Acquire`](crate::CallError::Acquire) where there was no lease, and then the call never ran;
    /// [`CallError::Call`](crate::CallError::Call) with the call's own error, unchanged.
    ///
    /// # Cancel safety
    /// Dropping the future while it waits leaks nothing; dropping it while the call runs drops the call and releases as
    /// a failure. So does a panic.
    ///
    /// # Examples
    /// ```
    /// use tidegate::{Acquire, AdaptiveSemaphore, CallError, MemoryStore, Outcome};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let semaphore = AdaptiveSemaphore::builder("my-provider-api", 10).build(MemoryStore::new())?;
    /// let answer: Result<(), CallError<&str>> = semaphore
    ///     .with_lease(Acquire::new(), || async { Err("429 too many requests") })
    ///     .outcome_on_error(|e| if e.starts_with("429") { Outcome::Throttled } else { Outcome::Failure })
    ///     .await;
    /// assert_eq!(answer, Err(CallError::Call("429 too many requests")));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// Spec: AS-9.
    pub fn with_lease<F, T, E, Fut>(&self, acquire: Acquire, call: F) -> WithPermit<F, AlwaysFailure<E>>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        WithPermit::new(Start { handle: self.handle.clone(), acquiring: self.acquiring(acquire) }, call)
    }

    /// A wait for a permit; it outlives this handle.
    pub(crate) fn acquiring(&self, acquire: Acquire) -> Result<Acquiring, AcquireError> {
        self.ask(acquire).map(|ask| self.handle.acquire(ask))
    }

    fn ask(&self, acquire: Acquire) -> Result<Ask, AcquireError> {
        let id = &self.handle.member.id;
        let class = acquire.class.map(|class| Name::new("class", class)).transpose();
        let class = class.map_err(|error| AcquireError::from_store(id, error.into()))?;
        Ok(Ask { job: None, class, priority: 0, timeout: acquire.timeout })
    }

    /// This process's view.
    ///
    /// Spec: AS-11.
    pub fn state(&self) -> SemaphoreState {
        let view = self.handle.view();
        SemaphoreState {
            limit: view.limit,
            in_flight: view.in_flight,
            waiting: view.waiting,
            by_class: view
                .by_class
                .into_iter()
                .filter_map(|(class, in_flight, _)| Some((class?.to_string(), in_flight)))
                .collect(),
        }
    }

    /// Looks at the store once, so that [`state`](Self::state) is of now, in a process that only watches too.
    ///
    /// # Errors
    /// [`AcquireError::Unavailable`] where the store gave no answer.
    pub async fn refresh(&self) -> Result<(), AcquireError> {
        self.handle.refresh().await.map_err(|error| AcquireError::from_store(&self.handle.member.id, error))
    }

    /// Completes when the store has all that was released so far. Wrap it in a timeout where the store may be away for
    /// long.
    ///
    /// Spec: AS-7.
    pub async fn flush(&self) {
        self.handle.flush().await;
    }

    /// Ends the waits of this handle and its clones with `Closed`, refuses later ones, and flushes, for two operation
    /// timeouts at most. Optional and idempotent. Leases that are held go on being renewed until they are released. The
    /// store stays open.
    ///
    /// Spec: AS-10.
    pub async fn close(&self) {
        self.handle.close();
        self.handle.flush_or_give_up().await;
    }
}

impl std::fmt::Debug for AdaptiveSemaphore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AdaptiveSemaphore")
            .field("id", &self.handle.member.id)
            .field("state", &self.state())
            .finish()
    }
}

impl SemaphoreBuilder {
    queue_setters!();

    /// The floor of the limit: 1 unless told, 1 at least.
    pub fn min_limit(mut self, min: u32) -> Self {
        self.adaptive = self.adaptive.min_limit(min);
        self
    }

    /// The ceiling of the limit: 1,000 unless told, at most 1,000,000. A guard, not a tuning knob.
    pub fn max_limit(mut self, max: u32) -> Self {
        self.adaptive = self.adaptive.max_limit(max);
        self
    }

    /// The constants of increase and decrease.
    ///
    /// Spec: AS-1, AS-2.
    pub fn aimd(mut self, aimd: Aimd) -> Self {
        self.adaptive = self.adaptive.aimd(aimd);
        self
    }

    /// How long the slot of a throttled release rests: 100 ms unless told, 0 to 24 h.
    pub fn throttle_rest(mut self, rest: Duration) -> Self {
        self.adaptive = self.adaptive.throttle_rest(rest);
        self
    }

    /// How the limit grows: additively unless told.
    ///
    /// Spec: AS-13.
    pub fn growth(mut self, growth: Growth) -> Self {
        self.adaptive = self.adaptive.growth(growth);
        self
    }

    /// While the store is away, at most `limit` (1 to 1,000,000) calls of this process run at once, instead of none.
    ///
    /// Spec: UN-2.
    pub fn fallback_local(mut self, limit: u32) -> Self {
        self.fallback = Some(limit);
        self
    }

    /// Builds it. Asks nothing of the store.
    ///
    /// # Errors
    /// [`BuildError`] for an option that cannot be taken, and for a store without leases or adaptive limits.
    pub fn build(self, store: impl Store) -> Result<AdaptiveSemaphore, BuildError> {
        let id = self.options.common.id.clone();
        let refused = |invalid| BuildError::new(id.clone(), invalid);
        let adaptive = self.adaptive.check().map_err(refused)?;
        let draft =
            self.classes.iter().cloned().fold(self.draft.bound(Bound::Adaptive(adaptive)), Draft::class);
        let policy = draft.check().map_err(refused)?;
        let fallback = self.fallback.map(|limit| {
            Fallback::check(&policy, Policy::draft(), self.classes, Some(limit))
                .map_err(|invalid| invalid.of("fallback_local"))
        });
        let fallback = fallback.transpose().map_err(refused)?;
        let handle = self.options.build(policy, self.adaptive.initial, None, fallback, store)?;
        Ok(AdaptiveSemaphore { handle })
    }
}

impl std::fmt::Debug for SemaphoreBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SemaphoreBuilder").field("id", &self.options.common.id).finish_non_exhaustive()
    }
}

/// What an acquire asks for: how long it may wait, and in which class.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Acquire {
    class: Option<String>,
    timeout: Duration,
}

/// How long a job waits, unless told.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

impl Acquire {
    /// Waits 10 s at most, in no class.
    pub const fn new() -> Self {
        Self { class: None, timeout: TIMEOUT }
    }

    /// Waits this long at most; zero is exactly one try, and over 366 days has no end.
    pub const fn within(timeout: Duration) -> Self {
        Self { class: None, timeout }
    }

    /// In a class that is configured, waiting 10 s at most.
    pub fn class(class: impl Into<String>) -> Self {
        Self { class: Some(class.into()), timeout: TIMEOUT }
    }

    /// Exactly one try.
    pub const fn once() -> Self {
        Self::within(Duration::ZERO)
    }

    /// In this class.
    pub fn in_class(mut self, class: impl Into<String>) -> Self {
        self.class = Some(class.into());
        self
    }

    /// Waits this long at most; zero is exactly one try, and over 366 days has no end.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }
}

impl Default for Acquire {
    fn default() -> Self {
        Self::new()
    }
}

/// This process's view of a semaphore.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct SemaphoreState {
    /// The limit in force; the initial one before the first answer of the store.
    pub limit: u32,
    /// Leases held in this process.
    pub in_flight: u32,
    /// Those of each class.
    pub by_class: BTreeMap<String, u32>,
    /// Acquires that wait in this process.
    pub waiting: u32,
}

/// A held slot. Renewed while it lives; dropping it without a release is a failure.
#[must_use = "dropping a lease releases it as a failure"]
pub struct Lease {
    permit: Permit,
}

impl Face for Lease {
    fn of(permit: Permit) -> Self {
        Self { permit }
    }
}

impl Lease {
    /// Hands the slot back, with what came of the call. Does not wait, cannot fail, and happens once; a lease that was
    /// lost releases harmlessly.
    ///
    /// Spec: AS-7.
    pub fn release(self, release: impl Into<Release>) {
        let Release { outcome, retry_after } = release.into();
        self.permit.release(outcome, retry_after);
    }

    /// The lowest number, from 0, that no other live lease of the id had at the grant; none for a local lease.
    ///
    /// Spec: ST-9.
    pub fn slot(&self) -> Option<u32> {
        self.permit.token().map(|token| token.slot)
    }

    /// Grows from grant to grant of the id. A resource guards a slot by refusing any fence below the highest it has seen
    /// for it. None for a local lease.
    ///
    /// Spec: ST-9.
    pub fn fence(&self) -> Option<u64> {
        self.permit.token().map(|token| token.fence)
    }

    /// Its unique name; none for a local lease.
    pub fn token(&self) -> Option<Token> {
        self.permit.token()
    }

    /// The limit in force at the grant.
    pub fn limit(&self) -> u32 {
        self.permit.limit()
    }

    /// Its class.
    pub fn class(&self) -> Option<&str> {
        self.permit.class().map(Name::as_str)
    }

    /// Whether this process granted it alone, while the store was away.
    ///
    /// Spec: UN-2.
    pub fn is_local(&self) -> bool {
        self.permit.is_local()
    }

    /// Whether the slot is certainly still this lease's own. Does not wait; after a freeze longer than the TTL it says
    /// no before anything else.
    ///
    /// Spec: AS-6.
    pub fn is_live(&self) -> bool {
        self.permit.is_live()
    }

    /// Completes when the lease is lost, also when the store cannot be reached and its time has passed.
    ///
    /// # Cancel safety
    /// Can be dropped and asked again.
    ///
    /// Spec: AS-6.
    pub async fn lost(&self) -> LeaseLost {
        self.permit.lost().await
    }
}

impl std::fmt::Debug for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lease")
            .field("id", self.permit.id())
            .field("token", &self.token())
            .field("class", &self.class())
            .field("local", &self.is_local())
            .finish()
    }
}
