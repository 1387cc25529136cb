//! Whether to call at all, when the dependency is failing: one circuit for the whole fleet, closed or open.
//!
//! A [`CircuitBreaker`] reports what came of its calls, and the store decides, for all processes at once, when to open.
//! While it is open no process calls; one elected process checks, or some calls are let through to try, and the first good
//! news closes it for all. Calls look at what this process knows: no network is on their path.
//!
//! # What it costs
//! A call looks at one word and notes its result: tens of nanoseconds, and no lock is held while it runs. Each process
//! sends the store at most 20 requests a second, whatever its rate of calls, and none while there is nothing to say.
//!
//! # When the store is away
//! The last known state stays: calls run, or are blocked, as they were. That is reported once, and heals by itself. An
//! open circuit cannot close meanwhile.
//!
//! Spec: sections 4 and 5.

use std::{fmt, future::Future, pin::pin, sync::Arc, time::Duration};

use tidegate_core::{
    Capability, CircuitMember, CircuitPolicy, CircuitView, DriverId, Invalid, Store,
    circuit::{CircuitDraft, Position, Why},
    time::Moment,
};

use crate::{
    AdaptiveSemaphore, BuildError, Job, Release, StartError, Valve,
    clock::{Clock, StoreClock, SystemClock},
    handle::{Common, common_setters},
    link::Link,
    telemetry::CircuitFacade,
};

mod check;
mod circuit;
mod execute;
mod gate;
mod notice;
mod recovery;
mod reports;
mod run;
mod strategy;
mod trial;

pub use execute::{Execute, Executing, Holding, Plain, Starts, Told};
pub use gate::{
    AnyFailure, Classify, FailureWhen, Gate, Gated, Judge, Once, OutcomeOnError, Primitive, Ungated,
};
pub use recovery::{Backoff, CheckKind, Constant, Exponential, HalfOpen, HealthCheck, Recovery};
pub use strategy::{Consecutive, Count, OpensWhen, Recent, Sampling, Strategy};

use circuit::{Circuit, Config, Handle, Phase};
use gate::{Throttled, sealed::Asks};

/// A fleet-wide circuit breaker. A cheap clone of one thing; dropping the last clone stops it.
///
/// It works between [`start`](Self::start) and [`stop`](Self::stop). `G` is what stands before the calls: nothing, or a
/// semaphore or valve; `J` is what an error means.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate::{CircuitBreaker, Consecutive, Constant, ExecuteError, HealthCheck, MemoryStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # async fn ping() -> Result<(), std::io::Error> { Ok(()) }
/// # async fn call_provider() -> Result<u32, std::io::Error> { Ok(7) }
/// let breaker = CircuitBreaker::builder("my-service-api")
///     .strategy(Consecutive::new(5))
///     .recovery(HealthCheck::new(Constant::every(Duration::from_secs(5)), |_kind| ping()))
///     .build(MemoryStore::new())?;
/// breaker.start().await?;
///
/// let answer = match breaker.execute(call_provider).await {
///     Err(ExecuteError::CircuitOpen { .. }) => 0, // a cached answer
///     other => other?,
/// };
/// assert_eq!(answer, 7);
/// breaker.stop().await;
/// # Ok(())
/// # }
/// ```
///
/// Spec: section 4.
#[derive(Clone)]
pub struct CircuitBreaker<G = Ungated, J = AnyFailure> {
    handle: Handle,
    gate: G,
    judge: J,
}

impl CircuitBreaker {
    /// A breaker for `id` (1 to 200 bytes, no control characters, no braces). It may share its id with a semaphore or
    /// valve. A strategy and a recovery are required.
    pub fn builder(id: impl Into<String>) -> BreakerBuilder {
        BreakerBuilder {
            common: Common::new(id.into()),
            draft: Draft::default(),
            strategy: None,
            recovery: None,
            on_cancel: OnCancel::FailureAfter(Duration::from_secs(1)),
            gate: Ungated,
            judge: AnyFailure,
        }
    }
}

impl<G, J> CircuitBreaker<G, J> {
    /// Begins: loads the circuit, subscribes to it, and does its part in what the fleet has to do. Idempotent, from any
    /// number of tasks; what was stopped can start again. The work goes on in the background of the runtime that this is
    /// called on.
    ///
    /// Returns when the circuit is loaded, or after one operation timeout where the store is away: then it counts as
    /// closed, that is reported, and it is loaded later.
    ///
    /// # Errors
    /// [`StartError`] where the store refuses this breaker's policy; then it is not started.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the breaker starting.
    ///
    /// Spec: CB-11.
    pub async fn start(&self) -> Result<(), StartError> {
        let circuit = &*self.handle;
        let mut began = false;
        loop {
            let mut changed = pin!(circuit.changed.notified());
            changed.as_mut().enable();
            let now = circuit.clock.now();
            let until = {
                let state = circuit.lock();
                match (state.phase, &state.refused) {
                    (Phase::Running(_), _) if state.loaded => return Ok(()),
                    (Phase::Running(since), _) => {
                        let until = since.plus(circuit.op_timeout);
                        if until <= now {
                            return Ok(());
                        }
                        Some(until)
                    }
                    (Phase::Stopping(_), _) => Some(now.plus(circuit.op_timeout)),
                    (Phase::Stopped, Some(refused)) if began => {
                        return Err(StartError::from_store(&circuit.member.id, refused.clone()));
                    }
                    // Another has stopped it meanwhile.
                    (Phase::Stopped, _) if began => return Ok(()),
                    (Phase::Stopped, _) => None,
                }
            };
            match until {
                None => {
                    circuit.begin_start();
                    began = true;
                }
                Some(until) => {
                    tokio::select! {
                        () = changed => {}
                        () = circuit.clock.sleep_until(until) => {}
                    }
                }
            }
        }
    }

    /// Ends: what was recorded is delivered, leadership is given away at once, and a running check is dropped; for two
    /// operation timeouts at most. Idempotent. Calls that run go on, uncounted; later ones are
    /// [`NotStarted`](crate::ExecuteError::NotStarted). What could not be delivered is reported; the permits of trial calls
    /// that still run are given back, so that others may try at once.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the breaker stopping.
    ///
    /// Spec: CB-11.
    pub async fn stop(&self) {
        let circuit = &*self.handle;
        circuit.begin_stop();
        loop {
            let mut changed = pin!(circuit.changed.notified());
            changed.as_mut().enable();
            if !matches!(circuit.lock().phase, Phase::Stopping(_)) {
                return;
            }
            let again = circuit.clock.now().plus(circuit.op_timeout);
            tokio::select! {
                () = changed => {}
                () = circuit.clock.sleep_until(again) => {}
            }
        }
    }

    /// Runs `call` unless the circuit is open: one attempt, no retries.
    ///
    /// # Errors
    /// [`CircuitOpen`](crate::ExecuteError::CircuitOpen) at once, [`NotStarted`](crate::ExecuteError::NotStarted), or
    /// [`Acquire`](crate::ExecuteError::Acquire) where it is gated and there was no permit: in all of these the call never
    /// ran. [`Call`](crate::ExecuteError::Call) with the call's own error, unchanged.
    ///
    /// # Cancel safety
    /// Dropping the future while it waits leaks nothing; dropping it while the call runs drops the call, which counts as
    /// [`on_cancel`](BreakerBuilder::on_cancel) says.
    ///
    /// Spec: CB-5, CO-1 to CO-5.
    pub fn execute<F, Fut, T, E>(&self, call: F) -> Execute<Plain<F>, G, J>
    where
        F: FnOnce() -> Fut,
        Fut: Future<Output = Result<T, E>>,
        G: Clone,
        J: Clone,
    {
        self.executing(Plain(call))
    }

    fn executing<F>(&self, call: F) -> Execute<F, G, J>
    where
        G: Clone,
        J: Clone,
    {
        let circuit = Arc::clone(&self.handle);
        Execute { circuit, call, gate: self.gate.clone(), judge: self.judge.clone() }
    }

    /// How this process knows the circuit.
    ///
    /// Spec: CB-6.
    pub fn state(&self) -> BreakerState {
        let now = self.handle.clock.now();
        let state = self.handle.lock();
        let view = state.seen.map(|seen| seen.view);
        let leads = state.leads.as_ref().is_some_and(|leads| now < leads.until);
        BreakerState {
            position: view.map_or(Position::Closed, |view| view.position),
            since: view.map(|view| Moment::from_millis(view.since_ms)),
            why: view.and_then(|view| view.why),
            generation: view.map_or(0, |view| view.generation),
            attempt: view.and_then(|view| view.attempt),
            role: if leads { Role::Leader } else { Role::Follower },
            blocked: self.handle.blocked(),
            running: state.is_running(),
        }
    }

    /// Whether calls are blocked, as far as this process knows.
    pub fn is_open(&self) -> bool {
        self.handle.lock().is_open()
    }

    /// Whether this process leads. One does while there is something to check: the circuit is open, or idle probes are
    /// asked for.
    ///
    /// Spec: CB-6.
    pub fn role(&self) -> Role {
        self.state().role
    }
}

impl<P: Primitive, C: Clone, J: Clone> CircuitBreaker<Gated<P, C>, J> {
    /// As [`execute`](Self::execute), with a call that is told of its permit: its fence guards what the call touches.
    ///
    /// # Errors
    /// As [`execute`](Self::execute).
    ///
    /// # Cancel safety
    /// As [`execute`](Self::execute).
    pub fn execute_with<F, Fut, T, E>(&self, call: F) -> Execute<Told<F>, Gated<P, C>, J>
    where
        F: FnOnce(Holding) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        self.executing(Told(call))
    }
}

impl<G, J> fmt::Debug for CircuitBreaker<G, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CircuitBreaker")
            .field("id", &self.handle.member.id)
            .field("state", &self.state())
            .finish_non_exhaustive()
    }
}

/// How a process knows its circuit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct BreakerState {
    /// Closed or open; closed before it is loaded.
    pub position: Position,
    /// The moment of the last change, by the store's clock: the same in every process. None before it is loaded.
    pub since: Option<Moment>,
    /// What the last change was for.
    pub why: Option<Why>,
    /// Grows with each change; 0 before it is loaded.
    pub generation: u64,
    /// The next attempt to recover, while it is open.
    pub attempt: Option<u64>,
    /// Whether this process leads.
    pub role: Role,
    /// How many calls of this process were blocked.
    pub blocked: u64,
    /// Whether it is started, and not stopped.
    pub running: bool,
}

/// A change of the circuit.
///
/// Spec: CB-6.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StateChange {
    /// What it became.
    pub to: Position,
    /// Why; none where the store lost what it knew.
    pub why: Option<Why>,
    /// When, by the store's clock: the same in every process.
    pub at: Moment,
    /// The generation that begins with it.
    pub generation: u64,
}

impl StateChange {
    const fn of(view: &CircuitView) -> Self {
        Self {
            to: view.position,
            why: view.why,
            at: Moment::from_millis(view.since_ms),
            generation: view.generation,
        }
    }
}

/// What a process is to its circuit.
///
/// Spec: CB-3, CB-6.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Role {
    /// It does what all do.
    #[default]
    Follower,
    /// It checks for all.
    Leader,
}

impl Role {
    /// Its name in logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Follower => "follower",
            Self::Leader => "leader",
        }
    }
}

/// The lease of leading, on this process's clock.
#[derive(Clone, Copy, Debug)]
struct Leadership {
    fence: u64,
    renew_at: Moment,
    until: Moment,
}

/// What becomes of a call that is dropped before its end: an outer timeout is not to hide a dependency that hangs.
///
/// Spec: CB-5.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnCancel {
    /// It counts in nothing.
    Ignore,
    /// It is a failure.
    Failure,
    /// It is a failure where it had run for so long.
    FailureAfter(Duration),
}

/// Builds a [`CircuitBreaker`].
#[must_use]
pub struct BreakerBuilder<G = Ungated, J = AnyFailure> {
    common: Common,
    draft: Draft,
    strategy: Option<Strategy>,
    recovery: Option<Recovery>,
    on_cancel: OnCancel,
    gate: G,
    judge: J,
}

/// What is set of the policy before its strategy and recovery are there.
#[derive(Default)]
struct Draft {
    revision: Option<u32>,
    leader_ttl: Option<Duration>,
    min_reporters: Option<u32>,
}

impl Draft {
    const fn revision(mut self, revision: u32) -> Self {
        self.revision = Some(revision);
        self
    }

    fn fill(&self, mut draft: CircuitDraft) -> CircuitDraft {
        if let Some(revision) = self.revision {
            draft = draft.revision(revision);
        }
        if let Some(ttl) = self.leader_ttl {
            draft = draft.leader_ttl(ttl);
        }
        if let Some(processes) = self.min_reporters {
            draft = draft.min_reporters(processes);
        }
        draft
    }
}

impl<G, J> BreakerBuilder<G, J> {
    common_setters!(common);

    /// When results open the circuit: [`Consecutive`], [`Count`], [`Sampling`], or [one's own](Strategy::own). Required.
    ///
    /// Spec: CB-1.
    pub fn strategy(mut self, strategy: impl Into<Strategy>) -> Self {
        self.strategy = Some(strategy.into());
        self
    }

    /// How an open circuit closes: a [`HealthCheck`], or [`HalfOpen`]. Required.
    ///
    /// Spec: CB-3, CB-4.
    pub fn recovery(mut self, recovery: impl Into<Recovery>) -> Self {
        self.recovery = Some(recovery.into());
        self
    }

    /// How long a leader leads without renewing: 2 s unless told, 100 ms to 24 h. One that died is followed within this.
    ///
    /// Spec: CB-3.
    pub fn leader_ttl(mut self, ttl: Duration) -> Self {
        self.draft.leader_ttl = Some(ttl);
        self
    }

    /// How many processes must have a recent failure before results open the circuit, so that one bad machine does not:
    /// at least 1, which it is unless told. It counts as at most the number of processes heard in the last 10 s.
    ///
    /// Spec: CB-9.
    pub fn min_reporters(mut self, processes: u32) -> Self {
        self.draft.min_reporters = Some(processes);
        self
    }

    /// What becomes of a call that is dropped before its end: a failure where it had run for 1 s, unless told.
    ///
    /// Spec: CB-5.
    pub const fn on_cancel(mut self, on_cancel: OnCancel) -> Self {
        self.on_cancel = on_cancel;
        self
    }

    /// Is told of each change of the circuit in this process's view, but not of the first load.
    ///
    /// Spec: CB-6.
    pub fn on_state_change(mut self, on_state_change: impl Fn(StateChange) + Send + Sync + 'static) -> Self {
        self.common.hooks.on_state_change = Some(Arc::new(on_state_change));
        self
    }

    /// Is told when this process begins to lead, or leads no more.
    ///
    /// Spec: CB-6.
    pub fn on_role_change(mut self, on_role_change: impl Fn(Role) + Send + Sync + 'static) -> Self {
        self.common.hooks.on_role_change = Some(Arc::new(on_role_change));
        self
    }

    /// Which errors are failures of the dependency: any, unless told. Those that are not count as successes. A panic in
    /// it is a failure, and reported.
    ///
    /// Spec: CB-5.
    pub fn failure_when<E>(
        self,
        is_failure: impl Fn(&E) -> bool + Send + Sync + 'static,
    ) -> BreakerBuilder<G, FailureWhen<E>> {
        let Self { common, draft, strategy, recovery, on_cancel, gate, .. } = self;
        let judge = FailureWhen::new(is_failure);
        BreakerBuilder { common, draft, strategy, recovery, on_cancel, gate, judge }
    }

    fn gated<H>(self, gate: H) -> BreakerBuilder<H, J> {
        let Self { common, draft, strategy, recovery, on_cancel, judge, .. } = self;
        BreakerBuilder { common, draft, strategy, recovery, on_cancel, gate, judge }
    }

    /// Builds it. Asks nothing of the store.
    ///
    /// # Errors
    /// [`BuildError`] for an option that is missing or cannot be taken, and for a store without circuits.
    pub fn build(self, store: impl Store) -> Result<CircuitBreaker<G, J>, BuildError> {
        let Self { mut common, draft, strategy, recovery, on_cancel, gate, judge } = self;
        let given = common.id.clone();
        let refused = |invalid| BuildError::new(given.clone(), invalid);
        let missing = |option, allowed: &str| refused(Invalid::new(option, "none", allowed));
        let strategy = strategy.ok_or_else(|| {
            missing("strategy", "required: `Consecutive`, `Count`, `Sampling` or one's own")
        })?;
        let recovery =
            recovery.ok_or_else(|| missing("recovery", "required: a `HealthCheck` or `HalfOpen`"))?;
        let policy = CircuitPolicy::draft(strategy.pinned, recovery.pinned, recovery.backoff);
        let policy = draft.fill(policy).check().map_err(refused)?;
        let id = common.check([Capability::Circuit], &store)?;
        if let Some(metrics) = &common.metrics {
            common.hooks.recorders.push(Arc::new(CircuitFacade::new(metrics, &id)));
        }
        let store: Arc<dyn Store> = Arc::new(store);
        let clock: Arc<dyn Clock> = match (common.clock, store.sync_path(&id)) {
            (Some(clock), _) => clock,
            (None, Some(sync)) => Arc::new(StoreClock::new(sync)),
            (None, None) => Arc::new(SystemClock::new()),
        };
        let driver = DriverId(fastrand::u128(1..));
        let member =
            CircuitMember { id, driver, policy: Arc::new(policy), on_superseded: common.on_superseded };
        let circuit = Circuit::new(Config {
            member,
            strategy: strategy.own,
            recovery: recovery.own,
            on_cancel,
            link: Link::new(store, None, Arc::clone(&clock), common.op_timeout),
            clock,
            op_timeout: common.op_timeout,
            hooks: common.hooks,
        });
        Ok(CircuitBreaker { handle: Handle::new(circuit), gate, judge })
    }
}

impl<J> BreakerBuilder<Ungated, J> {
    /// Each call is made under a lease of `semaphore`, which stays open whatever the breaker does; every error of the
    /// call releases it as a failure, unless told.
    ///
    /// Spec: section 5.
    pub fn gate(self, semaphore: AdaptiveSemaphore) -> BreakerBuilder<Gated<AdaptiveSemaphore>, J> {
        self.gated(Gated::new(semaphore, AnyFailure))
    }

    /// As [`gate`](Self::gate), with what an error of the call means for the lease.
    ///
    /// Spec: section 5.
    pub fn semaphore<E, R: Into<Release>>(
        self,
        semaphore: AdaptiveSemaphore,
        outcome_on_error: impl Fn(&E) -> R + Send + Sync + 'static,
    ) -> BreakerBuilder<Gated<AdaptiveSemaphore, OutcomeOnError<E>>, J> {
        self.gated(Gated::new(semaphore, OutcomeOnError::new(outcome_on_error)))
    }

    /// Each call is made under a permit of `valve`, which stays open whatever the breaker does; every error of the call
    /// releases it as a failure, unless told.
    ///
    /// Spec: section 5.
    pub fn gate_valve(self, valve: Valve) -> BreakerBuilder<Gated<Valve>, J> {
        self.gated(Gated::new(valve, AnyFailure))
    }

    /// As [`gate_valve`](Self::gate_valve), with what an error of the call means for the permit.
    ///
    /// Spec: section 5.
    pub fn valve<E, R: Into<Release>>(
        self,
        valve: Valve,
        outcome_on_error: impl Fn(&E) -> R + Send + Sync + 'static,
    ) -> BreakerBuilder<Gated<Valve, OutcomeOnError<E>>, J> {
        self.gated(Gated::new(valve, OutcomeOnError::new(outcome_on_error)))
    }
}

impl<P: Primitive, C, J> BreakerBuilder<Gated<P, C>, J> {
    /// The class of calls, where a call has none of its own.
    pub fn class(mut self, class: impl Into<String>) -> Self {
        self.gate.ask = self.gate.ask.with_class(class.into());
        self
    }

    /// How long calls may wait for a permit, where a call does not say: 10 s unless told; zero is exactly one try.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.gate.ask = self.gate.ask.with_timeout(timeout);
        self
    }

    /// A call whose error means `Throttled` for its permit counts in nothing for the circuit; it does, unless told.
    ///
    /// Spec: CB-5.
    pub fn ignore_throttled(mut self) -> Self {
        self.gate.throttled = Throttled::Ignored;
        self
    }
}

impl<C, J> BreakerBuilder<Gated<Valve, C>, J> {
    /// The job of calls, with its costs, scopes, class, priority and timeout, where a call has none of its own.
    pub fn job(mut self, job: Job) -> Self {
        self.gate.ask = job;
        self
    }
}

impl<G, J> fmt::Debug for BreakerBuilder<G, J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BreakerBuilder").field("id", &self.common.id).finish_non_exhaustive()
    }
}
