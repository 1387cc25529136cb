//! A call under a permit: one attempt, released by what came of it.
//!
//! Spec: AS-9, VA-1.

use std::{
    future::{Future, IntoFuture},
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use pin_project_lite::pin_project;
use tidegate_core::Outcome;

use crate::{
    AcquireError, CallError,
    driver::{Acquiring, Driver, Permit},
    handle::Handle,
};

/// What a permit is released with: an outcome, and how long the remote asked to be left alone, where it said so.
///
/// An [`Outcome`] is one by itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Release {
    pub(crate) outcome: Outcome,
    pub(crate) retry_after: Option<Duration>,
}

impl Release {
    /// Throttled, with the time that the remote asked for: the slot rests that long, up to one cooldown.
    pub const fn throttled_for(retry_after: Duration) -> Self {
        Self { outcome: Outcome::Throttled, retry_after: Some(retry_after) }
    }

    /// The outcome.
    pub const fn outcome(&self) -> Outcome {
        self.outcome
    }
}

impl From<Outcome> for Release {
    fn from(outcome: Outcome) -> Self {
        Self { outcome, retry_after: None }
    }
}

/// A call that will be made once there is a permit. Awaiting it acquires, calls and releases.
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct WithPermit<F, C> {
    acquiring: Start,
    call: F,
    classify: C,
}

/// The beginning of a call: it may have been refused already.
pub(crate) struct Start {
    pub(crate) handle: Handle,
    pub(crate) acquiring: Result<Acquiring, AcquireError>,
}

impl std::fmt::Debug for Start {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Start").field("id", &self.handle.member.id).finish_non_exhaustive()
    }
}

/// Every error is a failure, unless told.
pub type AlwaysFailure<E> = fn(&E) -> Outcome;

impl<F, T, E, Fut> WithPermit<F, AlwaysFailure<E>>
where
    F: FnOnce() -> Fut,
    Fut: Future<Output = Result<T, E>>,
{
    pub(crate) fn new(acquiring: Start, call: F) -> Self {
        Self { acquiring, call, classify: |_| Outcome::Failure }
    }

    /// What an error of the call means for the permit: `Failure` unless told. A panic in it is a failure, and reported.
    pub fn outcome_on_error<C, R>(self, classify: C) -> WithPermit<F, C>
    where
        C: FnOnce(&E) -> R,
        R: Into<Release>,
    {
        WithPermit { acquiring: self.acquiring, call: self.call, classify }
    }
}

impl<F, C, T, E, Fut, R> IntoFuture for WithPermit<F, C>
where
    F: FnOnce() -> Fut,
    Fut: Future<Output = Result<T, E>>,
    C: FnOnce(&E) -> R,
    R: Into<Release>,
{
    type Output = Result<T, CallError<E>>;
    type IntoFuture = Calling<F, Fut, C>;

    fn into_future(self) -> Self::IntoFuture {
        let Start { handle, acquiring } = self.acquiring;
        let stage = match acquiring {
            Ok(acquiring) => Stage::Acquiring { acquiring, call: Some(self.call) },
            Err(error) => Stage::Refused { error: Some(error) },
        };
        Calling { handle, classify: Some(self.classify), stage }
    }
}

pin_project! {
    /// The future of a [`WithPermit`]. Dropping it at any moment leaks nothing: a call that is cut off releases as a failure.
    #[must_use = "futures do nothing unless polled"]
    pub struct Calling<F, Fut, C> {
        // A call outlives the handle that it was made through.
        handle: Handle,
        classify: Option<C>,
        #[pin]
        stage: Stage<F, Fut>,
    }
}

impl<F, Fut, C> std::fmt::Debug for Calling<F, Fut, C> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Calling").field("id", &self.handle.member.id).finish_non_exhaustive()
    }
}

pin_project! {
    #[project = StageProjection]
    enum Stage<F, Fut> {
        Refused { error: Option<AcquireError> },
        Acquiring { acquiring: Acquiring, call: Option<F> },
        Calling { #[pin] call: Fut, permit: Option<Permit> },
        Done,
    }
}

impl<F, C, T, E, Fut, R> Future for Calling<F, Fut, C>
where
    F: FnOnce() -> Fut,
    Fut: Future<Output = Result<T, E>>,
    C: FnOnce(&E) -> R,
    R: Into<Release>,
{
    type Output = Result<T, CallError<E>>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let mut this = self.project();
        loop {
            match this.stage.as_mut().project() {
                StageProjection::Refused { error } => {
                    let error = error.take();
                    this.stage.set(Stage::Done);
                    return match error {
                        Some(error) => Poll::Ready(Err(CallError::Acquire(error))),
                        None => Poll::Pending,
                    };
                }
                StageProjection::Acquiring { acquiring, call } => {
                    let acquired = ready!(Pin::new(acquiring).poll(context));
                    let call = call.take();
                    match (acquired, call) {
                        (Ok(permit), Some(call)) => {
                            // A panic here drops the permit: a failure, and it goes on unwinding.
                            let call = call();
                            this.stage.set(Stage::Calling { call, permit: Some(permit) });
                        }
                        (acquired, _) => {
                            this.stage.set(Stage::Done);
                            return match acquired {
                                Ok(_) => Poll::Pending,
                                Err(error) => Poll::Ready(Err(CallError::Acquire(error))),
                            };
                        }
                    }
                }
                StageProjection::Calling { call, permit } => {
                    let result = ready!(call.poll(context));
                    let permit = permit.take();
                    let release = match &result {
                        Ok(_) => Outcome::Success.into(),
                        Err(error) => judged(this.handle, this.classify.take(), error),
                    };
                    if let Some(permit) = permit {
                        permit.release(release.outcome, release.retry_after);
                    }
                    this.stage.set(Stage::Done);
                    return Poll::Ready(result.map_err(CallError::Call));
                }
                StageProjection::Done => return Poll::Pending,
            }
        }
    }
}

fn judged<E, R: Into<Release>>(
    driver: &Driver,
    classify: Option<impl FnOnce(&E) -> R>,
    error: &E,
) -> Release {
    let id = &driver.member.id;
    let judged = classify.and_then(|classify| {
        driver.hooks().guard(id, "outcome_on_error", || -> Release { classify(error).into() })
    });
    judged.unwrap_or_else(|| Outcome::Failure.into())
}
