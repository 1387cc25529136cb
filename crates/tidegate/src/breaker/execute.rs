//! A call under a circuit, and under a permit where calls are gated.
//!
//! In this order: the circuit is looked at; in half-open the fleet is asked for a trial; a permit is waited for, and the
//! wait ends when the circuit opens; the circuit is looked at once more; the call runs. What came of it is recorded
//! under the generation that was seen last.
//!
//! Spec: CB-4, CB-5, CB-7, CO-1 to CO-5.

use std::{
    future::{Future, IntoFuture},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;
use tidegate_core::{Outcome, Token, circuit::Verdict, time::Moment};

use super::{
    OnCancel,
    circuit::{Circuit, Standing},
    gate::{
        Gate, Gated, Judge, Once, Primitive,
        sealed::{Asks, Seeking},
    },
    trial::{Pass, Ticket},
};
use crate::{
    CallResult, ExecuteError, Job, LeaseLost, Release, Valve,
    driver::{Acquiring, Permit, Watch},
};

/// A call that will be made if the circuit lets it. Awaiting it looks, waits where calls are gated, calls and records.
///
/// The class, timeout and classifier of a permit are there to be set only where calls are gated; without a gate this does
/// not compile:
/// ```compile_fail
/// # async fn call(breaker: tidegate::CircuitBreaker) {
/// let _ = breaker.execute(|| async { Ok::<(), String>(()) }).class("interactive").await;
/// # }
/// ```
/// and with one it does:
/// ```
/// # async fn call(breaker: tidegate::CircuitBreaker<tidegate::Gated<tidegate::AdaptiveSemaphore>>) {
/// let _ = breaker.execute(|| async { Ok::<(), String>(()) }).class("interactive").await;
/// # }
/// ```
///
/// Spec: CO-6.
#[must_use = "futures do nothing unless awaited"]
pub struct Execute<F, G, J> {
    pub(super) circuit: Arc<Circuit>,
    pub(super) call: F,
    pub(super) gate: G,
    pub(super) judge: J,
}

impl<F, G, J> std::fmt::Debug for Execute<F, G, J> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Execute").field("id", &self.circuit.member.id).finish_non_exhaustive()
    }
}

impl<F, G, J> Execute<F, G, J> {
    /// Which errors of this call are failures of the dependency, instead of what the breaker has: any, unless told. A
    /// panic in it is a failure, and reported.
    ///
    /// Spec: CB-5.
    pub fn failure_when<E, C>(self, is_failure: C) -> Execute<F, G, Once<C>>
    where
        C: Fn(&E) -> bool,
    {
        let Self { circuit, call, gate, .. } = self;
        Execute { circuit, call, gate, judge: Once(is_failure) }
    }
}

impl<F, P: Primitive, C, J> Execute<F, Gated<P, C>, J> {
    /// The class of this call, instead of the breaker's own.
    ///
    /// Spec: section 5.
    pub fn class(mut self, class: impl Into<String>) -> Self {
        self.gate.ask = self.gate.ask.with_class(class.into());
        self
    }

    /// How long this call may wait for its permit, instead of what the breaker has; zero is exactly one try.
    ///
    /// Spec: section 5.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.gate.ask = self.gate.ask.with_timeout(timeout);
        self
    }

    /// What an error of this call means for its permit, instead of what the breaker has. A panic in it is a failure,
    /// and reported.
    ///
    /// Spec: CO-5.
    pub fn outcome_on_error<E, R, D>(self, classify: D) -> Execute<F, Gated<P, Once<D>>, J>
    where
        D: Fn(&E) -> R,
        R: Into<Release>,
    {
        let Self { circuit, call, gate: Gated { primitive, ask, throttled, .. }, judge } = self;
        let gate = Gated { primitive, ask, throttled, classify: Once(classify) };
        Execute { circuit, call, gate, judge }
    }
}

impl<F, C, J> Execute<F, Gated<Valve, C>, J> {
    /// The job of this call, with its costs, scopes, class, priority and timeout, instead of the breaker's own.
    pub fn job(mut self, job: Job) -> Self {
        self.gate.ask = job;
        self
    }
}

/// What a call may know of its permit: enough to guard what it touches, and to stop when the slot is another's. A cheap
/// clone, which keeps nothing held.
///
/// Spec: ST-9, AS-6.
#[derive(Clone)]
pub struct Holding {
    /// None where nothing stands before the call.
    watch: Option<Watch>,
    limit: u32,
}

impl Holding {
    fn of(permit: &Permit) -> Self {
        Self { watch: Some(permit.watch()), limit: permit.limit() }
    }

    /// The lease's unique name; none where concurrency is not bounded, and for a permit that this process granted alone.
    pub fn token(&self) -> Option<Token> {
        self.watch.as_ref().and_then(Watch::token)
    }

    /// Grows from grant to grant of the id. None where there is no [`token`](Self::token).
    pub fn fence(&self) -> Option<u64> {
        self.token().map(|token| token.fence)
    }

    /// The limit in force at the grant; 0 where there is none.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Whether the slot is certainly still this call's own: not after the call has ended. Does not wait; after a freeze
    /// longer than the TTL it says no before anything else. Always, where there is no [`token`](Self::token).
    pub fn is_live(&self) -> bool {
        self.watch.as_ref().is_none_or(Watch::is_live)
    }

    /// Completes when the lease is lost while the call runs, also when the store cannot be reached and its time has
    /// passed. Never where there is no [`token`](Self::token).
    ///
    /// # Cancel safety
    /// Can be dropped and asked again.
    pub async fn lost(&self) -> LeaseLost {
        match &self.watch {
            Some(watch) => watch.lost().await,
            None => std::future::pending().await,
        }
    }
}

impl std::fmt::Debug for Holding {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Holding").field("token", &self.token()).field("limit", &self.limit).finish()
    }
}

/// A call that is told nothing of its permit.
#[derive(Clone, Copy)]
pub struct Plain<F>(pub(super) F);

/// A call that is told of its permit.
#[derive(Clone, Copy)]
pub struct Told<F>(pub(super) F);

/// How a call begins.
pub trait Starts {
    /// The call, running.
    type Call;

    /// Begins it.
    fn start(self, permit: impl FnOnce() -> Option<Holding>) -> Self::Call;
}

impl<F: FnOnce() -> Fut, Fut> Starts for Plain<F> {
    type Call = Fut;

    fn start(self, _: impl FnOnce() -> Option<Holding>) -> Fut {
        (self.0)()
    }
}

impl<F: FnOnce(Holding) -> Fut, Fut> Starts for Told<F> {
    type Call = Fut;

    fn start(self, permit: impl FnOnce() -> Option<Holding>) -> Fut {
        (self.0)(permit().unwrap_or(Holding { watch: None, limit: 0 }))
    }
}

impl<F, Fut, T, E, G, J> IntoFuture for Execute<F, G, J>
where
    F: Starts<Call = Fut>,
    Fut: Future<Output = Result<T, E>>,
    G: Gate<E>,
    J: Judge<E>,
{
    type Output = Result<T, ExecuteError<E>>;
    type IntoFuture = Executing<F, Fut, G, J>;

    fn into_future(self) -> Self::IntoFuture {
        let Self { circuit, call, gate, judge } = self;
        let call = Some(call);
        Executing { circuit, gate, judge, call, pass: None, permit: None, begun: None, stage: Stage::New }
    }
}

/// A call that runs.
struct Begun {
    generation: u64,
    /// None where nobody asks for how long.
    at: Option<Moment>,
    /// Whether it is being polled: if it is when it is dropped, it panicked.
    polled: bool,
}

pin_project! {
    /// The future of an [`Execute`]. Dropping it at any moment leaks nothing; a call that is cut off counts as
    /// [`OnCancel`] says.
    #[must_use = "futures do nothing unless polled"]
    pub struct Executing<F, Fut, G, J> {
        circuit: Arc<Circuit>,
        gate: G,
        judge: J,
        call: Option<F>,
        pass: Option<Pass>,
        permit: Option<Permit>,
        begun: Option<Begun>,
        #[pin]
        stage: Stage<Fut>,
    }

    impl<F, Fut, G, J> PinnedDrop for Executing<F, Fut, G, J> {
        fn drop(this: Pin<&mut Self>) {
            let this = this.project();
            if let Some(begun) = this.begun.take() {
                cut_off(this.circuit, begun, this.pass.take());
            }
        }
    }
}

pin_project! {
    #[project = StageProjection]
    enum Stage<Fut> {
        New,
        Asking { ticket: Ticket },
        Acquiring { acquiring: Acquiring, moved: Option<Pin<Box<dyn Future<Output = ()> + Send>>> },
        Calling { #[pin] call: Fut },
        Done,
    }
}

impl<F, Fut, G, J> std::fmt::Debug for Executing<F, Fut, G, J> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Executing").field("id", &self.circuit.member.id).finish_non_exhaustive()
    }
}

impl<F, Fut, T, E, G, J> Future for Executing<F, Fut, G, J>
where
    F: Starts<Call = Fut>,
    Fut: Future<Output = Result<T, E>>,
    G: Gate<E>,
    J: Judge<E>,
{
    type Output = Result<T, ExecuteError<E>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        let circuit = &**this.circuit;
        loop {
            // What is said of a call that does not run.
            let ended = match this.stage.as_mut().project() {
                StageProjection::New => match circuit.standing() {
                    Standing::NotStarted => circuit.not_started(),
                    Standing::Closed(generation) => match this.gate.seek() {
                        None => {
                            begin(circuit, generation, this.begun, this.call, this.permit, &mut this.stage);
                            continue;
                        }
                        Some(Seeking(Ok(acquiring))) => {
                            this.stage.set(Stage::Acquiring { acquiring, moved: None });
                            continue;
                        }
                        Some(Seeking(Err(error))) => ExecuteError::Acquire(error),
                    },
                    Standing::Open(_) => match circuit.ask() {
                        Some(ticket) => {
                            this.stage.set(Stage::Asking { ticket });
                            continue;
                        }
                        None => circuit.block(),
                    },
                },
                StageProjection::Asking { ticket } => {
                    let Some(pass) = ready!(Pin::new(ticket).poll(context)) else {
                        // It may have closed meanwhile, or stopped.
                        if !matches!(circuit.standing(), Standing::Open(_)) {
                            this.stage.set(Stage::New);
                            continue;
                        }
                        this.stage.set(Stage::Done);
                        return Poll::Ready(Err(circuit.block()));
                    };
                    let generation = pass.generation;
                    *this.pass = Some(pass);
                    match this.gate.seek() {
                        None => {
                            begin(circuit, generation, this.begun, this.call, this.permit, &mut this.stage);
                            continue;
                        }
                        Some(Seeking(Ok(acquiring))) => {
                            this.stage.set(Stage::Acquiring { acquiring, moved: None });
                            continue;
                        }
                        Some(Seeking(Err(error))) => ExecuteError::Acquire(error),
                    }
                }
                StageProjection::Acquiring { acquiring, moved } => {
                    match Pin::new(acquiring).poll(context) {
                        Poll::Ready(Err(error)) => ExecuteError::Acquire(error),
                        Poll::Ready(Ok(permit)) => match circuit.may_run(this.pass) {
                            Ok(generation) => {
                                *this.permit = Some(permit);
                                begin(
                                    circuit,
                                    generation,
                                    this.begun,
                                    this.call,
                                    this.permit,
                                    &mut this.stage,
                                );
                                continue;
                            }
                            Err(error) => {
                                permit.decline();
                                error
                            }
                        },
                        Poll::Pending => {
                            // It looks after it listens, so that no change is missed.
                            let listens = moved.get_or_insert_with(|| circuit.moves());
                            let has_moved = listens.as_mut().poll(context).is_ready();
                            match circuit.may_run(this.pass) {
                                Err(error) => error,
                                Ok(_) if has_moved => {
                                    *moved = None;
                                    continue;
                                }
                                Ok(_) => return Poll::Pending,
                            }
                        }
                    }
                }
                StageProjection::Calling { call } => {
                    let polled = |polled: bool, begun: &mut Option<Begun>| {
                        if let Some(begun) = begun {
                            begun.polled = polled;
                        }
                    };
                    polled(true, this.begun);
                    let result = call.poll(context);
                    polled(false, this.begun);
                    let result = ready!(result);
                    let (pass, permit) = (this.pass.take(), this.permit.take());
                    if let Some(begun) = this.begun.take() {
                        finish(circuit, this.gate, this.judge, begun, pass, permit, result.as_ref().err());
                    }
                    this.stage.set(Stage::Done);
                    return Poll::Ready(result.map_err(ExecuteError::Call));
                }
                StageProjection::Done => return Poll::Pending,
            };
            // A permit to try that was not used is free at once.
            *this.pass = None;
            this.stage.set(Stage::Done);
            return Poll::Ready(Err(ended));
        }
    }
}

impl Circuit {
    #[cold]
    fn not_started<E>(&self) -> ExecuteError<E> {
        ExecuteError::NotStarted { id: self.member.id.clone() }
    }

    /// A call is blocked.
    #[cold]
    fn block<E>(&self) -> ExecuteError<E> {
        self.look_after();
        self.count_blocked();
        ExecuteError::CircuitOpen { id: self.member.id.clone(), since: self.since() }
    }

    /// Whether a call may run that waits for its permit, and under which generation. A pass counts only in its own.
    fn may_run<E>(&self, pass: &mut Option<Pass>) -> Result<u64, ExecuteError<E>> {
        match self.standing() {
            Standing::NotStarted => Err(self.not_started()),
            Standing::Closed(generation) => {
                // What it was to try is known already.
                *pass = None;
                Ok(generation)
            }
            Standing::Open(generation) if pass.as_ref().is_some_and(|pass| pass.generation == generation) => {
                Ok(generation)
            }
            Standing::Open(_) => Err(self.block()),
        }
    }

    /// Completes when the circuit has changed.
    fn moves(&self) -> Pin<Box<dyn Future<Output = ()> + Send>> {
        let circuit = self.me();
        Box::pin(async move {
            match circuit {
                Some(circuit) => circuit.moved.notified().await,
                None => std::future::pending().await,
            }
        })
    }
}

/// The call begins.
#[inline]
fn begin<F, Fut>(
    circuit: &Circuit,
    generation: u64,
    begun: &mut Option<Begun>,
    call: &mut Option<F>,
    permit: &Option<Permit>,
    stage: &mut Pin<&mut Stage<Fut>>,
) where
    F: Starts<Call = Fut>,
{
    circuit.stir();
    let times = matches!(circuit.on_cancel, OnCancel::FailureAfter(_)) || circuit.hooks.records();
    let at = times.then(|| circuit.clock.now());
    // A panic of the call itself is a failure, and goes on unwinding.
    *begun = Some(Begun { generation, at, polled: true });
    match call.take() {
        Some(call) => {
            let call = call.start(|| permit.as_ref().map(Holding::of));
            if let Some(begun) = begun {
                begun.polled = false;
            }
            stage.set(Stage::Calling { call });
        }
        None => {
            *begun = None;
            stage.set(Stage::Done);
        }
    }
}

/// Takes what came of a call.
#[inline]
fn finish<E, G: Gate<E>, J: Judge<E>>(
    circuit: &Circuit,
    gate: &G,
    judge: &J,
    begun: Begun,
    pass: Option<Pass>,
    permit: Option<Permit>,
    error: Option<&E>,
) {
    let id = &circuit.member.id;
    let verdict = match error {
        None => Some(Verdict::Success),
        Some(error) => {
            let failed = circuit.hooks.guard(id, "failure_when", || judge.is_failure(error)).unwrap_or(true);
            Some(if failed { Verdict::Failure } else { Verdict::Success })
        }
    };
    let mut throttled = false;
    if let Some(permit) = permit {
        let release = match error {
            None => Outcome::Success.into(),
            Some(error) => circuit
                .hooks
                .guard(id, "outcome_on_error", || gate.release(error))
                .unwrap_or_else(|| Outcome::Failure.into()),
        };
        throttled = release.outcome == Outcome::Throttled;
        permit.release(release.outcome, release.retry_after);
    }
    let verdict = verdict.filter(|_| !(throttled && gate.ignores_throttled()));
    told(circuit, &begun, pass, verdict);
}

/// Records what came of a call, if it counts, and for how long it ran.
#[inline]
fn told(circuit: &Circuit, begun: &Begun, pass: Option<Pass>, verdict: Option<Verdict>) {
    let Some(verdict) = verdict else { return };
    match pass {
        Some(pass) => pass.end(verdict),
        None => circuit.record(begun.generation, verdict),
    }
    if circuit.hooks.records()
        && let Some(at) = begun.at
    {
        let took = circuit.clock.now().since(at);
        let result = match verdict {
            Verdict::Success => CallResult::Success,
            Verdict::Failure => CallResult::Failure,
        };
        circuit.hooks.record(&circuit.member.id, |recorder| recorder.called(result, took));
    }
}

/// A call was dropped before its end, or it panicked.
#[cold]
fn cut_off(circuit: &Circuit, begun: Begun, pass: Option<Pass>) {
    let ran = || begun.at.map_or(Duration::ZERO, |at| circuit.clock.now().since(at));
    let failed = begun.polled
        || match circuit.on_cancel {
            OnCancel::Ignore => false,
            OnCancel::Failure => true,
            OnCancel::FailureAfter(after) => ran() >= after,
        };
    told(circuit, &begun, pass, failed.then_some(Verdict::Failure));
}
