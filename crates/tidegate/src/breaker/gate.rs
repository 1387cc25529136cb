//! What stands before the calls of a breaker: nothing, a semaphore or a valve. And what an error of a call means, for the
//! circuit and for the permit.
//!
//! Spec: CO-1 to CO-6.

use std::{fmt, sync::Arc, time::Duration};

use crate::{Acquire, AcquireError, AdaptiveSemaphore, Job, Outcome, Release, Valve, driver::Acquiring};

/// Nothing stands before the calls.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Ungated;

/// Each call is made under a permit of a semaphore or a valve.
///
/// Spec: section 5.
#[derive(Clone)]
pub struct Gated<P: Primitive, C = AnyFailure> {
    pub(super) primitive: P,
    pub(super) ask: P::Ask,
    pub(super) classify: C,
    pub(super) throttled: Throttled,
}

impl<P: Primitive, C> Gated<P, C> {
    pub(super) fn new(primitive: P, classify: C) -> Self {
        Self { primitive, ask: P::Ask::default(), classify, throttled: Throttled::Counts }
    }
}

impl<P: Primitive, C> fmt::Debug for Gated<P, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gated").field("ask", &self.ask).finish_non_exhaustive()
    }
}

/// Whether a call that the permit's classifier calls throttled counts for the circuit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Throttled {
    Counts,
    Ignored,
}

/// A primitive that gives permits.
pub trait Primitive: Clone + Send + Sync + sealed::Seeks + 'static {}

impl Primitive for AdaptiveSemaphore {}
impl Primitive for Valve {}

/// What stands before the calls of a breaker: [`Ungated`] or [`Gated`].
pub trait Gate<E>: sealed::Stands<E> {}

impl<E, G: sealed::Stands<E>> Gate<E> for G {}

/// What an error of a call means for the circuit.
pub trait Judge<E> {
    /// Whether it is a failure.
    fn is_failure(&self, error: &E) -> bool;
}

/// What an error of a call means for its permit.
pub trait Classify<E> {
    /// What the permit is released with.
    fn release(&self, error: &E) -> Release;
}

/// Every error is a failure: for the circuit, and for the permit.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct AnyFailure;

impl<E> Judge<E> for AnyFailure {
    fn is_failure(&self, _: &E) -> bool {
        true
    }
}

impl<E> Classify<E> for AnyFailure {
    fn release(&self, _: &E) -> Release {
        Outcome::Failure.into()
    }
}

/// One's own word on which errors are failures. A cheap clone.
pub struct FailureWhen<E>(Arc<dyn Fn(&E) -> bool + Send + Sync>);

impl<E> FailureWhen<E> {
    pub(super) fn new(is_failure: impl Fn(&E) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(is_failure))
    }
}

impl<E> Judge<E> for FailureWhen<E> {
    fn is_failure(&self, error: &E) -> bool {
        (self.0)(error)
    }
}

impl<E> Clone for FailureWhen<E> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<E> fmt::Debug for FailureWhen<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("FailureWhen")
    }
}

/// One's own word on what an error means for the permit. A cheap clone.
pub struct OutcomeOnError<E>(Arc<dyn Fn(&E) -> Release + Send + Sync>);

impl<E> OutcomeOnError<E> {
    pub(super) fn new<R: Into<Release>>(classify: impl Fn(&E) -> R + Send + Sync + 'static) -> Self {
        Self(Arc::new(move |error| classify(error).into()))
    }
}

impl<E> Classify<E> for OutcomeOnError<E> {
    fn release(&self, error: &E) -> Release {
        (self.0)(error)
    }
}

impl<E> Clone for OutcomeOnError<E> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<E> fmt::Debug for OutcomeOnError<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("OutcomeOnError")
    }
}

/// The word of one call.
#[derive(Clone, Copy)]
pub struct Once<F>(pub(super) F);

impl<F> fmt::Debug for Once<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Once")
    }
}

impl<E, F: Fn(&E) -> bool> Judge<E> for Once<F> {
    fn is_failure(&self, error: &E) -> bool {
        (self.0)(error)
    }
}

impl<E, R: Into<Release>, F: Fn(&E) -> R> Classify<E> for Once<F> {
    fn release(&self, error: &E) -> Release {
        (self.0)(error).into()
    }
}

pub(super) mod sealed {
    use std::time::Duration;

    use super::{AcquireError, Acquiring, Release};

    /// A wait for a permit that begins.
    pub struct Seeking(pub(crate) Result<Acquiring, AcquireError>);

    pub trait Seeks {
        /// What it is asked with.
        type Ask: Asks + Clone + std::fmt::Debug + Default + Send + Sync + 'static;

        fn seek(&self, ask: &Self::Ask) -> Seeking;
    }

    /// A class and a timeout, in what either primitive is asked with.
    pub trait Asks: Sized {
        fn with_class(self, class: String) -> Self;
        fn with_timeout(self, timeout: Duration) -> Self;
    }

    pub trait Stands<E> {
        /// None where nothing is waited for.
        fn seek(&self) -> Option<Seeking>;

        /// What the permit of a call with this error is released with.
        fn release(&self, error: &E) -> Release;

        fn ignores_throttled(&self) -> bool;
    }
}

use sealed::{Asks, Seeking, Seeks, Stands};

impl Seeks for AdaptiveSemaphore {
    type Ask = Acquire;

    fn seek(&self, ask: &Acquire) -> Seeking {
        Seeking(self.acquiring(ask.clone()))
    }
}

impl Seeks for Valve {
    type Ask = Job;

    fn seek(&self, ask: &Job) -> Seeking {
        Seeking(self.acquiring(ask.clone()))
    }
}

impl<E> Stands<E> for Ungated {
    fn seek(&self) -> Option<Seeking> {
        None
    }

    fn release(&self, _: &E) -> Release {
        Outcome::Failure.into()
    }

    fn ignores_throttled(&self) -> bool {
        false
    }
}

impl<E, P: Primitive, C: Classify<E>> Stands<E> for Gated<P, C> {
    fn seek(&self) -> Option<Seeking> {
        Some(self.primitive.seek(&self.ask))
    }

    fn release(&self, error: &E) -> Release {
        self.classify.release(error)
    }

    fn ignores_throttled(&self) -> bool {
        self.throttled == Throttled::Ignored
    }
}

impl Asks for Acquire {
    fn with_class(self, class: String) -> Self {
        self.in_class(class)
    }

    fn with_timeout(self, timeout: Duration) -> Self {
        self.timeout(timeout)
    }
}

impl Asks for Job {
    fn with_class(self, class: String) -> Self {
        self.class(class)
    }

    fn with_timeout(self, timeout: Duration) -> Self {
        self.timeout(timeout)
    }
}
