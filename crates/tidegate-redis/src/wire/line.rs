//! One connection, and what is known of its health.

use std::{
    collections::HashMap,
    future::Future,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use redis::{Cmd, Pipeline, RedisError, RedisResult, Value, aio::MultiplexedConnection};
use tidegate_core::{Cause, StoreError};
use tokio::{
    runtime::{Handle, Id},
    sync::watch,
};

use crate::error;

use super::url::Address;

/// How long a connection may leave a call without any answer before the next call opens another one. Slower than any
/// script, and not longer than a caller's usual patience, so that few calls meet a server that hangs.
const SILENCE: Duration = Duration::from_secs(1);

/// How long after a failed attempt the next one waits: callers get its error meanwhile, so that many of them make no
/// storm.
const PAUSE: Duration = Duration::from_millis(50);

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A connection to one server.
pub(crate) struct Line {
    connection: MultiplexedConnection,
    address: Address,
    /// Set when the task that drives the connection ends, whatever ends it: the server, the network, its runtime.
    gone: Arc<AtomicBool>,
    /// When the connection was made: the zero of `since`.
    start: Instant,
    /// How many calls were sent.
    sent: AtomicU64,
    /// The newest call that was answered. Answers come in the order of the calls.
    answered: AtomicU64,
    /// Since when, in milliseconds, the oldest unanswered call has been waited for at most.
    since: AtomicU64,
    /// Whether functions cannot be used over it: the server has none, or the user may not.
    lacks_functions: AtomicBool,
}

/// Says that a connection's task has ended, when it is dropped with it.
pub(crate) struct Ends(pub(crate) Arc<AtomicBool>);

impl Drop for Ends {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

impl Line {
    pub(crate) fn new(connection: MultiplexedConnection, address: Address, gone: Arc<AtomicBool>) -> Self {
        Self {
            connection,
            address,
            gone,
            start: Instant::now(),
            sent: AtomicU64::new(0),
            answered: AtomicU64::new(0),
            since: AtomicU64::new(0),
            lacks_functions: AtomicBool::new(false),
        }
    }

    /// Whether functions can be used over it, as far as is known.
    pub(super) fn has_functions(&self) -> bool {
        !self.lacks_functions.load(Relaxed)
    }

    /// Has the next calls use scripts alone.
    pub(super) fn without_functions(&self) {
        self.lacks_functions.store(true, Relaxed);
    }

    pub(crate) fn address(&self) -> &Address {
        &self.address
    }

    /// Has the next call open another connection. Calls that are under way go on.
    pub(crate) fn retire(&self) {
        self.gone.store(true, Relaxed);
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Relaxed)
    }

    /// Whether a call was left without an answer for too long, and nothing was heard since. Calls that their callers
    /// gave up count too: that is how a server that hangs is noticed.
    fn is_silent(&self) -> bool {
        self.answered.load(Relaxed) < self.sent.load(Relaxed)
            && self.age().saturating_sub(self.since.load(Relaxed)) > millis(SILENCE)
    }

    fn is_usable(&self) -> bool {
        !self.is_gone() && !self.is_silent()
    }

    fn age(&self) -> u64 {
        millis(self.start.elapsed())
    }

    fn asks(&self) -> u64 {
        let number = self.sent.fetch_add(1, Relaxed);
        if self.answered.load(Relaxed) >= number {
            self.since.store(self.age(), Relaxed);
        }
        number + 1
    }

    fn hears<T>(&self, number: u64, result: RedisResult<T>) -> RedisResult<T> {
        self.answered.fetch_max(number, Relaxed);
        self.since.store(self.age(), Relaxed);
        if result.as_ref().is_err_and(error::is_cut) {
            self.retire();
        }
        result
    }

    /// Sends a command. Dropping the future leaves it sent or not sent, and the connection usable.
    pub(crate) async fn ask(&self, command: &Cmd) -> RedisResult<Value> {
        let number = self.asks();
        let mut connection = self.connection.clone();
        let result = connection.send_packed_command(command).await;
        self.hears(number, result.and_then(plain))
    }

    /// Sends commands at once and returns the answers from the first after `skipped`, errors among them.
    pub(crate) async fn ask_all(
        &self,
        commands: &Pipeline,
        skipped: usize,
        kept: usize,
    ) -> RedisResult<Vec<Value>> {
        let number = self.asks();
        let mut connection = self.connection.clone();
        let result = connection.send_packed_commands(commands, skipped, kept).await;
        self.hears(number, result)
    }
}

/// An error reply as an error.
pub(crate) fn plain(value: Value) -> RedisResult<Value> {
    match value {
        Value::ServerError(error) => Err(RedisError::from(error)),
        value => Ok(value),
    }
}

pub(crate) fn millis(length: Duration) -> u64 {
    u64::try_from(length.as_millis()).unwrap_or(u64::MAX)
}

/// Work that callers of one runtime share while it is under way. It runs as a task, so that callers who give up early
/// do not keep it from ever being done.
pub(crate) struct Flight<T> {
    under_way: Mutex<HashMap<Id, watch::Receiver<Option<T>>>>,
}

impl<T: Clone + Send + Sync + 'static> Flight<T> {
    pub(crate) fn new() -> Self {
        Self { under_way: Mutex::new(HashMap::new()) }
    }

    /// Joins the work of this runtime, or begins it. None where the runtime ended meanwhile.
    pub(crate) async fn join<F>(&self, begin: impl FnOnce() -> F) -> Option<T>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let mut result = self.joined(begin)?;
        result.wait_for(Option::is_some).await.ok()?.clone()
    }

    fn joined<F>(&self, begin: impl FnOnce() -> F) -> Option<watch::Receiver<Option<T>>>
    where
        F: Future<Output = T> + Send + 'static,
    {
        let runtime = Handle::try_current().ok()?;
        let mut under_way = lock(&self.under_way);
        // A channel whose sender is gone belongs to work that is done, or to a runtime that has ended.
        under_way.retain(|_, result| result.has_changed().is_ok());
        if let Some(result) = under_way.get(&runtime.id()) {
            return Some(result.clone());
        }
        let (done, result) = watch::channel(None);
        under_way.insert(runtime.id(), result.clone());
        let work = begin();
        runtime.spawn(async move {
            let outcome = work.await;
            done.send_replace(Some(outcome));
        });
        Some(result)
    }
}

/// The connections to one server, one for each runtime that uses it.
pub(crate) struct Slot {
    lines: Mutex<HashMap<Id, Known>>,
    flight: Flight<Result<Arc<Line>, StoreError>>,
}

enum Known {
    Open(Arc<Line>),
    Failed(Instant, StoreError),
}

impl Slot {
    pub(crate) fn new() -> Self {
        Self { lines: Mutex::new(HashMap::new()), flight: Flight::new() }
    }

    /// The connection of the caller's runtime, opened by `dial` where there is none that works.
    pub(crate) async fn line<F>(self: &Arc<Self>, dial: impl FnOnce() -> F) -> Result<Arc<Line>, StoreError>
    where
        F: Future<Output = Result<Line, StoreError>> + Send + 'static,
    {
        let Ok(runtime) = Handle::try_current() else { return Err(without_runtime()) };
        let id = runtime.id();
        match lock(&self.lines).get(&id) {
            Some(Known::Open(line)) if line.is_usable() => return Ok(line.clone()),
            Some(Known::Failed(when, error)) if when.elapsed() < PAUSE => return Err(error.clone()),
            _ => {}
        }
        let opened = self.flight.join(|| {
            let slot = self.clone();
            let dialled = dial();
            async move {
                let opened = dialled.await.map(Arc::new);
                let known = match &opened {
                    Ok(line) => Known::Open(line.clone()),
                    Err(error) => Known::Failed(Instant::now(), error.clone()),
                };
                let mut lines = lock(&slot.lines);
                lines.retain(|_, known| matches!(known, Known::Open(line) if !line.is_gone()));
                lines.insert(id, known);
                opened
            }
        });
        opened.await.unwrap_or_else(|| Err(without_runtime()))
    }

    /// Has the next calls open other connections.
    pub(crate) fn retire(&self, unless: impl Fn(&Line) -> bool) {
        for known in lock(&self.lines).values() {
            if let Known::Open(line) = known
                && !unless(line)
            {
                line.retire();
            }
        }
    }
}

fn without_runtime() -> StoreError {
    StoreError::unavailable(Cause::Disconnected, "the tokio runtime of the connection has ended")
}
