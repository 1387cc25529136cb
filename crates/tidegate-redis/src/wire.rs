//! The way to the servers: the only place that sends a command.
//!
//! A connection belongs to the runtime that opened it, since the task that drives it runs there. So each runtime that
//! uses a store has one connection to each primary, and the thread for renewals is one more runtime.

use std::sync::{Arc, Mutex};

use redis::{Cmd, ErrorKind, RedisResult, ServerErrorKind, Value};
use tidegate_core::{Cause, StoreError};
use tokio::runtime::Handle;

use crate::{
    error,
    scripts::{Function, Script},
};

mod check;
mod cluster;
mod given;
mod line;
mod sentinel;
mod servers;
mod slots;
mod thread;
mod url;

pub(crate) use given::{Given, Shareable};
pub(crate) use line::{Line, lock};
pub(crate) use servers::{Options, Servers};
pub(crate) use slots::{redirection, slot_of};
pub(crate) use thread::Thread;
pub(crate) use url::{Address, Login, Place, Topology};

use line::plain;

/// Which connection a call goes over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lane {
    /// The one for commands, on the caller's runtime.
    Commands,
    /// The one for renewals, on a thread of its own.
    Renewals,
}

/// One run of a script. All keys have one hash tag.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Call<'a> {
    pub(crate) script: &'a Script,
    pub(crate) keys: &'a [Vec<u8>],
    pub(crate) args: &'a [Vec<u8>],
    pub(crate) lane: Lane,
}

impl Call<'_> {
    /// The command that runs the script under its name.
    fn by_name(&self) -> Cmd {
        self.command("EVALSHA", self.script.sha())
    }

    /// The command that runs the script and leaves it loaded.
    fn by_source(&self) -> Cmd {
        self.command("EVAL", self.script.source())
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let size = self.keys.iter().chain(self.args).map(Vec::len).sum::<usize>();
        let count = 3 + self.keys.len() + self.args.len();
        let mut command = Cmd::with_capacity(count, name.len() + script.len() + 8 + size);
        command.arg(name).arg(script).arg(self.keys.len());
        for part in self.keys.iter().chain(self.args) {
            command.arg(part.as_slice());
        }
        command
    }

    /// Runs the script over a connection, and loads it where it is missing: as a function where the server has functions.
    /// `asking` says that the server is to serve a slot that is on its way to it.
    async fn over(&self, line: &Line, asking: bool) -> RedisResult<Value> {
        if let Some(function) = self.script.function()
            && line.has_functions()
            && let Some(outcome) = self.as_function(function, line, asking).await
        {
            return outcome;
        }
        match send(line, self.by_name(), asking).await {
            // Sent with its source at once, since a flush between loading and running would undo the loading.
            Err(error) if is_unknown_script(&error) => send(line, self.by_source(), asking).await,
            outcome => outcome,
        }
    }
}

impl Call<'_> {
    /// Calls the function, and loads its library where it is missing. None where it cannot be had: nothing was done then.
    async fn as_function(
        &self,
        function: &Function,
        line: &Line,
        asking: bool,
    ) -> Option<RedisResult<Value>> {
        let call = |name: &str| send(line, self.command("FCALL", name), asking);
        let mut outcome = call(&function.name).await;
        if outcome.as_ref().is_err_and(is_unknown_function) {
            let mut load = redis::cmd("FUNCTION");
            load.arg("LOAD").arg(&*function.library);
            match line.ask(&load).await {
                Err(error) if lacks_functions(&error) => {
                    line.without_functions();
                    return None;
                }
                // It may be that another has loaded it meanwhile, or that it cannot be loaded now: the call tells.
                _ => outcome = call(&function.name).await,
            }
        }
        if let Some(name) = &function.when_full
            && outcome.as_ref().is_err_and(is_full)
        {
            outcome = call(name).await;
        }
        match outcome {
            Err(error) if lacks_functions(&error) => {
                line.without_functions();
                None
            }
            // It was dropped as soon as it was loaded, or could not be loaded. A script goes with its source.
            Err(error) if is_unknown_function(&error) => None,
            outcome => Some(outcome),
        }
    }
}

fn is_plain(error: &redis::RedisError, begins: &str) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::ResponseError)
        && error.detail().is_some_and(|detail| detail.starts_with(begins))
}

fn is_unknown_function(error: &redis::RedisError) -> bool {
    is_plain(error, "Function not found")
}

/// Whether the server has no functions, or the user may not use them. What a function was refused itself is another thing:
/// it may have done half of its work.
fn lacks_functions(error: &redis::RedisError) -> bool {
    let refused = error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm)
        && error
            .detail()
            .is_some_and(|detail| ["'fcall'", "'function"].iter().any(|name| detail.contains(name)));
    refused || is_plain(error, "unknown command") || is_plain(error, "Unknown subcommand")
}

fn is_full(error: &redis::RedisError) -> bool {
    error.code() == Some("OOM")
}

fn is_unknown_script(error: &redis::RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::NoScript)
}

async fn send(line: &Line, command: Cmd, asking: bool) -> RedisResult<Value> {
    if !asking {
        return line.ask(&command).await;
    }
    let mut both = redis::pipe();
    both.cmd("ASKING").add_command(command);
    // ASKING counts for the next command of its connection only, so both go in one write.
    let answers = line.ask_all(&both, 1, 1).await?;
    answers.into_iter().next().map_or(Ok(Value::Nil), plain)
}

/// The way to the servers of one store. A cheap clone.
#[derive(Clone)]
pub(crate) struct Wire(Arc<Inner>);

struct Inner {
    way: Way,
    /// Started at first use.
    thread: Mutex<Option<Arc<Thread>>>,
}

enum Way {
    /// Connections are opened and replaced as needed.
    Own(Arc<Servers>),
    /// Commands go over a connection that was there before; the rest over own ones, where it is known how to open them.
    Given(Given, Option<Arc<Servers>>),
}

impl Wire {
    /// Opens connections itself, when they are needed.
    pub(crate) fn to(place: Place, options: Options) -> Self {
        Self::over(Way::Own(Servers::new(place, options)))
    }

    /// Uses a connection that is there.
    pub(crate) fn given(given: Given, place: Option<Place>, options: Options) -> Self {
        let servers = place.map(|place| Servers::new(place, options));
        Self::over(Way::Given(given, servers))
    }

    fn over(way: Way) -> Self {
        Self(Arc::new(Inner { way, thread: Mutex::new(None) }))
    }

    /// Runs a script where the keys are, and loads it where it is missing.
    ///
    /// # Cancel safety
    /// Dropping the future leaves the script run or not run. A server that has answered nothing for a while is given up
    /// by the next call, which opens another connection.
    pub(crate) async fn run(&self, call: Call<'_>) -> Result<Value, StoreError> {
        match (&self.0.way, call.lane) {
            (Way::Given(given, _), Lane::Commands) | (Way::Given(given, None), _) => given.run(call).await,
            (Way::Own(servers), Lane::Commands) if Handle::try_current().is_ok() => {
                if servers.needs_watch() {
                    self.thread()?;
                }
                servers.run(call).await
            }
            (Way::Own(servers) | Way::Given(_, Some(servers)), _) => self.run_apart(servers, call).await,
        }
    }

    async fn run_apart(&self, servers: &Arc<Servers>, call: Call<'_>) -> Result<Value, StoreError> {
        let servers = servers.clone();
        let (script, keys, args) = (call.script.clone(), call.keys.to_vec(), call.args.to_vec());
        let lane = call.lane;
        let work = async move { servers.run(Call { script: &script, keys: &keys, args: &args, lane }).await };
        self.thread()?.run(work).await?
    }

    /// The thread of this store.
    pub(crate) fn thread(&self) -> Result<Arc<Thread>, StoreError> {
        let mut thread = lock(&self.0.thread);
        if let Some(thread) = &*thread {
            return Ok(thread.clone());
        }
        let started = Arc::new(Thread::start()?);
        if let Some(servers) = self.servers() {
            started.spawn(servers.clone().watch());
        }
        *thread = Some(started.clone());
        Ok(started)
    }

    /// Connects and makes the checks of opening.
    pub(crate) async fn open(&self) -> Result<(), StoreError> {
        match &self.0.way {
            Way::Own(servers) => servers.open().await,
            Way::Given(given, servers) => {
                given.open().await?;
                match servers {
                    Some(servers) => servers.open().await,
                    None => Ok(()),
                }
            }
        }
    }

    /// What was found that may lose state silently, so far.
    pub(crate) fn risks(&self) -> Vec<String> {
        match &self.0.way {
            Way::Own(servers) | Way::Given(_, Some(servers)) => servers.risks(),
            Way::Given(given, None) => given.risks(),
        }
    }

    /// What subscriptions are opened with, where it is known.
    pub(crate) fn servers(&self) -> Option<&Arc<Servers>> {
        match &self.0.way {
            Way::Own(servers) | Way::Given(_, Some(servers)) => Some(servers),
            Way::Given(_, None) => None,
        }
    }

    /// Hands over every key that matches, on every primary. A key may come twice, and one that comes or goes meanwhile
    /// may be missed.
    pub(crate) async fn scan(
        &self,
        pattern: &[u8],
        mut each: impl FnMut(Vec<u8>) + Send + 'static,
    ) -> Result<(), StoreError> {
        match &self.0.way {
            Way::Own(servers) if Handle::try_current().is_ok() => scan_all(servers, pattern, each).await,
            Way::Own(servers) | Way::Given(_, Some(servers)) => {
                let (servers, pattern) = (servers.clone(), pattern.to_vec());
                self.thread()?.run(async move { scan_all(&servers, &pattern, each).await }).await?
            }
            Way::Given(given, None) => given.scan(pattern, &mut each).await,
        }
    }
}

async fn scan_all(
    servers: &Arc<Servers>,
    pattern: &[u8],
    mut each: impl FnMut(Vec<u8>) + Send,
) -> Result<(), StoreError> {
    for line in servers.primaries().await? {
        let mut cursor = first_cursor();
        while let Some(at) = cursor {
            let answer = line.ask(&scan_from(&at, pattern)).await;
            let answer = answer.map_err(|error| error::unavailable(error, &line.address().to_string()))?;
            cursor = take_keys(answer, &mut each)?;
        }
    }
    Ok(())
}

/// How many keys a server looks at in one step of a scan: well under a millisecond.
const STEP: usize = 500;

fn first_cursor() -> Option<Vec<u8>> {
    Some(b"0".to_vec())
}

fn scan_from(cursor: &[u8], pattern: &[u8]) -> Cmd {
    let mut command = redis::cmd("SCAN");
    command.arg(cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(STEP);
    command
}

/// Hands over the keys of one step; returns where the next one begins, if there is one.
fn take_keys(answer: Value, each: &mut (dyn FnMut(Vec<u8>) + Send)) -> Result<Option<Vec<u8>>, StoreError> {
    let broken = || StoreError::unavailable(Cause::Broken, "the answer to SCAN cannot be read");
    let Value::Array(parts) = answer else { return Err(broken()) };
    let Ok([Value::BulkString(cursor), Value::Array(keys)]) = <[Value; 2]>::try_from(parts) else {
        return Err(broken());
    };
    for key in keys {
        match key {
            Value::BulkString(key) => each(key),
            _ => return Err(broken()),
        }
    }
    Ok((cursor != b"0").then_some(cursor))
}
