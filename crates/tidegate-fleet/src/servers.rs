//! Throw-away servers: on free loopback ports, in folders of their own, ended with the test.
//!
//! A server ends when its value is dropped. It also ends when the test is killed and drops nothing: a watchdog holds the
//! other end of a pipe, and does what was left undone when the pipe breaks.

pub mod redis;

mod process;

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::PathBuf,
    time::{Duration, Instant},
};

pub(crate) use process::Process;

/// Why a server is not as it should be.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerError {
    /// The program is not installed.
    #[error(
        "{program} is missing: install the package {package} (on Debian and Ubuntu: apt-get install {package})"
    )]
    Missing {
        /// The program.
        program: &'static str,
        /// The package that has it.
        package: &'static str,
    },
    /// The server ended by itself.
    #[error("{what} ended by itself; the end of its log:\n{log}")]
    Ended {
        /// Which.
        what: String,
        /// The end of its log.
        log: String,
    },
    /// It did not come to be as it should within the time for that.
    #[error("{what}: not within {after:?}; at last: {last}")]
    NotInTime {
        /// What was waited for.
        what: String,
        /// How long.
        after: Duration,
        /// What was seen last.
        last: String,
    },
    /// The server refused a command, or gave no answer.
    #[error("{command}")]
    Command {
        /// What it was told.
        command: String,
        /// What it said.
        #[source]
        source: ::redis::RedisError,
    },
    /// A file, a folder, a port or a process.
    #[error("{what}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

impl ServerError {
    pub(crate) fn io(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::Io { what, source }
    }
}

/// How long anything that a server does may take. Long, since it bounds only what would fail anyway.
const PATIENCE: Duration = Duration::from_secs(20);

/// How often it is looked whether something has come to be.
const LOOK: Duration = Duration::from_millis(5);

/// A port of loopback that nobody listens on. Another may take it first, so whoever asks must be ready to ask again.
fn free_port() -> Result<u16, ServerError> {
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(ServerError::io("find a free port"))?;
    let addr = listener.local_addr().map_err(ServerError::io("find a free port"))?;
    Ok(addr.port())
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

/// Looks until `look` finds it, and says what it saw last where it never does.
fn until<T>(
    what: &str,
    mut look: impl FnMut() -> Result<Result<T, String>, ServerError>,
) -> Result<T, ServerError> {
    let start = Instant::now();
    loop {
        match look()? {
            Ok(found) => return Ok(found),
            Err(last) if start.elapsed() > PATIENCE => {
                return Err(ServerError::NotInTime { what: what.to_owned(), after: PATIENCE, last });
            }
            Err(_) => std::thread::sleep(LOOK),
        }
    }
}

/// The end of a log, for an error to show.
fn tail(log: &PathBuf) -> String {
    let text = std::fs::read_to_string(log).unwrap_or_else(|error| format!("(no log: {error})"));
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(12)..].join("\n")
}
