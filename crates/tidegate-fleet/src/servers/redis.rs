//! Redis: one server, one watched by sentinels, one split into shards.
//!
//! What is started is `redis-server`, or what the variable `TIDEGATE_REDIS_SERVER` names: another version (6.2 or later), or
//! Valkey.

mod cluster;
mod sentinel;

use std::{
    fmt::Write as _,
    fs::File,
    io,
    net::SocketAddr,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use redis::{Connection, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo, Value};
use tempfile::TempDir;

pub use self::{
    cluster::{Cluster, Move},
    sentinel::Sentinel,
};
use super::{Process, ServerError, free_port, local, tail, until};

const PROGRAM: &str = "redis-server";

/// Names another program to start, so that the same tests run on another version, or on Valkey.
const PROGRAM_VARIABLE: &str = "TIDEGATE_REDIS_SERVER";

const PACKAGE: &str = "redis-server";

/// How long the control of a server waits for an answer. Commands that freeze it are not sent through it.
const ANSWER: Duration = Duration::from_secs(5);

/// How a server may be asked to end before it is made to.
const GRACE: Duration = Duration::from_secs(5);

/// How a server is set up. It keeps nothing on disk unless told.
///
/// # Examples
/// ```
/// use tidegate_fleet::servers::redis::Options;
///
/// let full = Options::new().set("maxmemory", "4mb").set("maxmemory-policy", "noeviction");
/// let locked = Options::new().password("a secret").set("user", "tide on >word ~* &* +@all");
/// let kept = Options::new().append_only();
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Options {
    lines: Vec<(String, String)>,
    password: Option<String>,
}

impl Options {
    /// A server that keeps nothing on disk, and asks for no password.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a line to the configuration, in its own syntax: what has blanks in it needs quotes, where it is one value.
    pub fn set(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.lines.push((name.into(), value.into()));
        self
    }

    /// Asks for a password (`requirepass`): any text without quotes and control characters.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(password.into());
        self
    }

    /// Keeps every write, so that a restart loses nothing.
    pub fn append_only(self) -> Self {
        self.set("appendonly", "yes").set("appendfsync", "always")
    }
}

/// One server. Dropping it ends it, and removes what it kept.
#[derive(Debug)]
pub struct Redis {
    // Ended before its folder goes.
    process: Option<Process>,
    port: u16,
    password: Option<String>,
    role: Role,
    dir: TempDir,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Role {
    Data,
    Sentinel,
}

impl Redis {
    /// Starts a server alone, and returns when it answers.
    ///
    /// # Errors
    /// [`ServerError::Missing`] where it is not installed, [`ServerError::Ended`] where it does not take the options.
    pub fn standalone(options: &Options) -> Result<Self, ServerError> {
        Self::start(options, Role::Data, free_port)
    }

    fn start(
        options: &Options,
        role: Role,
        port: impl Fn() -> Result<u16, ServerError>,
    ) -> Result<Self, ServerError> {
        // Between finding a free port and taking it another may take it.
        let mut tries = 5;
        loop {
            tries -= 1;
            let mut server = Self::set_up(options, role, port()?)?;
            match server.resume() {
                Err(ServerError::Ended { log, .. })
                    if tries > 0 && log.contains("Address already in use") => {}
                Err(error) => return Err(error),
                Ok(()) => return Ok(server),
            }
        }
    }

    fn set_up(options: &Options, role: Role, port: u16) -> Result<Self, ServerError> {
        let dir = tempfile::Builder::new().prefix("tidegate-redis-").tempdir();
        let dir = dir.map_err(ServerError::io("make a folder for a server"))?;
        let mut config = format!("bind 127.0.0.1\nport {port}\ndaemonize no\nsupervised no\n");
        if role == Role::Data {
            // Nothing is saved unless told; a later line of the same name goes before this one.
            config.push_str("save \"\"\nappendonly no\n");
        }
        for (name, value) in &options.lines {
            // Writing to a string cannot fail.
            let _ = writeln!(config, "{name} {value}");
        }
        if let Some(password) = &options.password {
            let _ = writeln!(config, "requirepass \"{password}\"\nmasterauth \"{password}\"");
        }
        std::fs::write(dir.path().join("server.conf"), config)
            .map_err(ServerError::io("write server.conf"))?;
        Ok(Self { process: None, port, password: options.password.clone(), role, dir })
    }

    /// Starts a server that was stopped or killed, at the same address and with what it has on disk, and returns when it
    /// answers. Does nothing where it runs.
    ///
    /// # Errors
    /// [`ServerError`] where it does not come up.
    pub fn resume(&mut self) -> Result<(), ServerError> {
        if self.process.is_some() {
            return Ok(());
        }
        let log = File::options().create(true).append(true).open(self.log());
        let log = log.map_err(ServerError::io("open a server's log"))?;
        let also = log.try_clone().map_err(ServerError::io("open a server's log"))?;
        let mut command = Command::new(std::env::var_os(PROGRAM_VARIABLE).unwrap_or(PROGRAM.into()));
        command.arg("server.conf").current_dir(self.dir.path());
        if self.role == Role::Sentinel {
            command.arg("--sentinel");
        }
        command.stdin(Stdio::null()).stdout(log).stderr(also);
        let process =
            Process::start(&mut command, Some(self.dir.path())).map_err(|source| match source.kind() {
                io::ErrorKind::NotFound => ServerError::Missing { program: PROGRAM, package: PACKAGE },
                _ => ServerError::Io { what: format!("start {PROGRAM}"), source },
            })?;
        self.process = Some(process);
        until("a server that answers", || {
            if self.process.as_mut().is_none_or(Process::has_ended) {
                self.process = None;
                return Err(ServerError::Ended { what: PROGRAM.to_owned(), log: tail(&self.log()) });
            }
            // It refuses connections, and then commands while it loads.
            Ok(self.try_command(&["PING"]).map_err(|error| error.to_string()))
        })?;
        Ok(())
    }

    /// Stops the server as an operator would, so that it writes what it keeps.
    pub fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.end(GRACE);
        }
    }

    /// Stops it and starts it again, at the same address.
    ///
    /// # Errors
    /// As [`resume`](Self::resume).
    pub fn restart(&mut self) -> Result<(), ServerError> {
        self.stop();
        self.resume()
    }

    /// Ends it at once, as a crash would. [`resume`](Self::resume) starts it again.
    pub fn kill(&mut self) {
        // Dropping it is SIGKILL.
        self.process = None;
    }

    /// Freezes it: its connections stay open, and nothing is answered until [`thaw`](Self::thaw).
    ///
    /// # Errors
    /// Where it does not run.
    pub fn freeze(&self) -> Result<(), ServerError> {
        self.running()?.freeze().map_err(ServerError::io("freeze a server"))
    }

    /// Lets a frozen server go on, with all that it was sent meanwhile.
    ///
    /// # Errors
    /// Where it does not run.
    pub fn thaw(&self) -> Result<(), ServerError> {
        self.running()?.thaw().map_err(ServerError::io("thaw a server"))
    }

    fn running(&self) -> Result<&Process, ServerError> {
        self.process.as_ref().ok_or_else(|| ServerError::Ended {
            what: "a server that was stopped".to_owned(),
            log: tail(&self.log()),
        })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        local(self.port)
    }

    /// Its URL, with its password.
    pub fn url(&self) -> String {
        self.url_at(self.addr())
    }

    /// Its URL by way of another address: that of a proxy.
    pub fn url_at(&self, addr: SocketAddr) -> String {
        let password = self.password.as_deref().map(|p| format!(":{}@", percent(p))).unwrap_or_default();
        format!("redis://{password}{addr}/")
    }

    /// The process, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// Tells the server something, over a connection of its own.
    ///
    /// # Errors
    /// [`ServerError::Command`] for what it refuses, and where it gives no answer within some seconds.
    pub fn command(&self, words: &[&str]) -> Result<Value, ServerError> {
        self.try_command(words).map_err(|source| ServerError::Command {
            command: format!("{}: {}", self.addr(), words.join(" ")),
            source,
        })
    }

    /// As [`command`](Self::command), for an answer that is text or a list of texts: one text a line.
    pub(crate) fn text(&self, words: &[&str]) -> Result<String, ServerError> {
        self.command(words).map(|value| text_of(&value))
    }

    fn try_command(&self, words: &[&str]) -> Result<Value, redis::RedisError> {
        let mut command = redis::Cmd::new();
        words.iter().for_each(|word| {
            command.arg(word);
        });
        command.query(&mut self.try_connect()?)
    }

    /// A connection for whatever a test asks by itself, that waits some seconds for an answer.
    ///
    /// # Errors
    /// [`ServerError::Command`] where it cannot be made.
    pub fn connection(&self) -> Result<Connection, ServerError> {
        self.try_connect()
            .map_err(|source| ServerError::Command { command: format!("{}: connect", self.addr()), source })
    }

    fn try_connect(&self) -> Result<Connection, redis::RedisError> {
        let connection = redis::Client::open(self.info()?)?.get_connection_with_timeout(ANSWER)?;
        connection.set_read_timeout(Some(ANSWER))?;
        connection.set_write_timeout(Some(ANSWER))?;
        Ok(connection)
    }

    fn info(&self) -> Result<ConnectionInfo, redis::RedisError> {
        let addr = ConnectionAddr::Tcp(self.addr().ip().to_string(), self.port);
        let info = addr.into_connection_info()?;
        let mut login = RedisConnectionInfo::default().set_skip_set_lib_name();
        if let Some(password) = &self.password {
            login = login.set_password(password);
        }
        Ok(info.set_redis_settings(login))
    }

    /// Drops all that it holds (`FLUSHALL`).
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub fn flush(&self) -> Result<(), ServerError> {
        self.command(&["FLUSHALL"]).map(drop)
    }

    /// Drops the scripts and the functions that it knows.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub fn flush_scripts(&self) -> Result<(), ServerError> {
        self.command(&["SCRIPT", "FLUSH"])?;
        self.command(&["FUNCTION", "FLUSH"]).map(drop)
    }

    /// Changes a setting while it runs.
    ///
    /// # Errors
    /// As [`command`](Self::command).
    pub fn config_set(&self, name: &str, value: &str) -> Result<(), ServerError> {
        self.command(&["CONFIG", "SET", name, value]).map(drop)
    }

    fn log(&self) -> PathBuf {
        self.dir.path().join("server.log")
    }
}

/// Addresses, as a URL takes them.
fn list(addrs: &[SocketAddr]) -> String {
    addrs.iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",")
}

/// A password, as a URL takes it.
fn percent(text: &str) -> String {
    text.bytes().fold(String::new(), |mut url, byte| {
        if byte.is_ascii_alphanumeric() {
            url.push(char::from(byte));
        } else {
            // Writing to a string cannot fail.
            let _ = write!(url, "%{byte:02X}");
        }
        url
    })
}

fn text_of(value: &Value) -> String {
    match value {
        Value::SimpleString(text) => text.clone(),
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        Value::VerbatimString { text, .. } => text.clone(),
        Value::Okay => "OK".to_owned(),
        Value::Int(number) => number.to_string(),
        Value::Array(values) => values.iter().map(text_of).collect::<Vec<_>>().join("\n"),
        Value::Map(pairs) => pairs
            .iter()
            .map(|(k, v)| format!("{}\n{}", text_of(k), text_of(v)))
            .collect::<Vec<_>>()
            .join("\n"),
        other => format!("{other:?}"),
    }
}
