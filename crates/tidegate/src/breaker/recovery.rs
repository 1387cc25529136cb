//! How an open circuit closes, as people choose it.
//!
//! Spec: CB-3, CB-4, CB-10.

use std::{error::Error, fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use tidegate_core::circuit;

/// The same wait before each attempt to recover.
///
/// Spec: CB-3.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub struct Constant(Duration);

impl Constant {
    /// This long: 0 to 366 days.
    pub const fn every(wait: Duration) -> Self {
        Self(wait)
    }
}

/// Waits that grow from attempt to attempt.
///
/// Spec: CB-3.
#[derive(Clone, Copy, PartialEq, Debug)]
#[must_use]
pub struct Exponential {
    initial: Duration,
    multiplier: f64,
    max: Option<Duration>,
}

impl Exponential {
    /// `initial` (0 to 366 days) before attempt 1, and `multiplier` (1 to 1,000) times as long for each later one.
    pub const fn new(initial: Duration, multiplier: f64) -> Self {
        Self { initial, multiplier, max: None }
    }

    /// No wait is longer than this: 366 days unless told.
    pub const fn max(mut self, max: Duration) -> Self {
        self.max = Some(max);
        self
    }
}

/// How long to wait before an attempt, counted from 1 at each opening.
type Wait = Arc<dyn Fn(u64) -> Duration + Send + Sync>;

/// How long to wait before each attempt to recover.
#[derive(Clone)]
#[must_use]
pub struct Backoff {
    pinned: circuit::Backoff,
    own: Option<Wait>,
}

impl Backoff {
    /// One's own: `wait` says how long the wait before an attempt is, counted from 1 at each opening. More than 366 days
    /// counts as so much. It is called outside every lock; a panic in it is caught, reported, and counts as a wait of
    /// 10 s.
    pub fn own(wait: impl Fn(u64) -> Duration + Send + Sync + 'static) -> Self {
        Self { pinned: circuit::Backoff::Custom, own: Some(Arc::new(wait)) }
    }
}

impl fmt::Debug for Backoff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.pinned.fmt(f)
    }
}

impl From<Constant> for Backoff {
    fn from(Constant(wait): Constant) -> Self {
        Self { pinned: circuit::Backoff::Constant(wait), own: None }
    }
}

impl From<Exponential> for Backoff {
    fn from(Exponential { initial, multiplier, max }: Exponential) -> Self {
        Self { pinned: circuit::Backoff::Exponential { initial, multiplier, max }, own: None }
    }
}

/// What a health check is for.
///
/// Spec: CB-3.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CheckKind {
    /// To see whether an open circuit can close.
    Recovery,
    /// To see whether what nobody has called for a while still works.
    Idle,
}

impl CheckKind {
    pub(crate) const ALL: [Self; 2] = [Self::Recovery, Self::Idle];

    /// Its name in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Recovery => "recovery",
            Self::Idle => "idle",
        }
    }
}

pub(crate) type BoxError = Box<dyn Error + Send + Sync>;
pub(super) type Checking = Pin<Box<dyn Future<Output = Result<(), BoxError>> + Send>>;
pub(super) type Check = Arc<dyn Fn(CheckKind) -> Checking + Send + Sync>;

/// One elected process checks an open circuit; the first success closes it for all.
///
/// Spec: CB-3, CB-10.
#[derive(Clone)]
#[must_use]
pub struct HealthCheck {
    backoff: Backoff,
    check: Check,
    timeout: Duration,
    idle_interval: Option<Duration>,
}

impl HealthCheck {
    /// Runs `check` after each wait of `backoff`, also before attempt 1. An error of it is a failed check; so is a
    /// panic. It is dropped where the process stops, or is not the leader any more.
    pub fn new<C, Fut, T, E>(backoff: impl Into<Backoff>, check: C) -> Self
    where
        C: Fn(CheckKind) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, E>> + Send + 'static,
        E: Into<BoxError>,
    {
        let check = move |kind| -> Checking {
            let checking = check(kind);
            Box::pin(async move { checking.await.map(drop).map_err(Into::into) })
        };
        Self {
            backoff: backoff.into(),
            check: Arc::new(check),
            timeout: Duration::from_secs(5),
            idle_interval: None,
        }
    }

    /// A check that takes longer has failed: 5 s unless told, above 0 and up to 366 days.
    pub const fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Checks a closed circuit too, where no process has called for this long: never unless told, 100 ms to 366 days. A
    /// check that fails opens the circuit at once.
    ///
    /// Spec: CB-10.
    pub const fn idle_interval(mut self, interval: Duration) -> Self {
        self.idle_interval = Some(interval);
        self
    }
}

impl fmt::Debug for HealthCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HealthCheck")
            .field("backoff", &self.backoff)
            .field("timeout", &self.timeout)
            .field("idle_interval", &self.idle_interval)
            .finish_non_exhaustive()
    }
}

/// Lets some real calls through instead of a health check; all must succeed, and the first failure leads to the next
/// wait.
///
/// Spec: CB-4.
#[derive(Clone, Debug)]
#[must_use]
pub struct HalfOpen {
    backoff: Backoff,
    permits: u32,
    permit_ttl: Duration,
}

impl HalfOpen {
    /// One call after each wait of `backoff`.
    pub fn new(backoff: impl Into<Backoff>) -> Self {
        Self { backoff: backoff.into(), permits: 1, permit_ttl: Duration::from_secs(30) }
    }

    /// How many calls, fleet-wide: 1 unless told, to 1,000.
    pub const fn permits(mut self, permits: u32) -> Self {
        self.permits = permits;
        self
    }

    /// The permit of a process that died is free after this: 30 s unless told, above 0 and up to 24 h.
    pub const fn permit_ttl(mut self, ttl: Duration) -> Self {
        self.permit_ttl = ttl;
        self
    }
}

/// How an open circuit closes.
#[derive(Clone, Debug)]
#[must_use]
pub struct Recovery {
    pub(super) pinned: circuit::Recovery,
    pub(super) backoff: circuit::Backoff,
    pub(super) own: Own,
}

/// What of the recovery is this process's own.
#[derive(Clone)]
pub(super) struct Own {
    pub(super) wait: Option<Wait>,
    /// None for half-open.
    pub(super) check: Option<Check>,
    pub(super) check_timeout: Duration,
    pub(super) idle_interval: Option<Duration>,
}

impl fmt::Debug for Own {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Own")
    }
}

impl From<HealthCheck> for Recovery {
    fn from(given: HealthCheck) -> Self {
        let HealthCheck { backoff, check, timeout, idle_interval } = given;
        Self {
            pinned: circuit::Recovery::HealthCheck { check_timeout: timeout, idle_interval },
            backoff: backoff.pinned,
            own: Own { wait: backoff.own, check: Some(check), check_timeout: timeout, idle_interval },
        }
    }
}

impl From<HalfOpen> for Recovery {
    fn from(given: HalfOpen) -> Self {
        let HalfOpen { backoff, permits, permit_ttl } = given;
        Self {
            pinned: circuit::Recovery::HalfOpen { permits, permit_ttl },
            backoff: backoff.pinned,
            own: Own { wait: backoff.own, check: None, check_timeout: Duration::ZERO, idle_interval: None },
        }
    }
}
