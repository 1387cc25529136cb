//! What the client's errors mean to a caller.

use std::sync::Arc;

use redis::{ErrorKind, RedisError, ServerErrorKind};
use tidegate_core::{Cause, StoreError};

/// Says in which way the store is unavailable, and what to do about it. `place` is the server that was asked.
pub(crate) fn unavailable(error: RedisError, place: &str) -> StoreError {
    let (cause, advice) = meaning(&error);
    let said = said(&error);
    let detail = match advice {
        Some(advice) => format!("{place}: {said}; {advice}"),
        None => format!("{place}: {said}"),
    };
    StoreError::Unavailable { cause, detail, source: Some(Arc::new(error)) }
}

/// A server's refusal in words of our own.
pub(crate) fn refused(place: &str, detail: &str) -> StoreError {
    StoreError::unavailable(Cause::Refused, format!("{place}: {detail}"))
}

/// Nothing was heard in time.
pub(crate) fn no_answer(place: &str, what: &str) -> StoreError {
    StoreError::unavailable(Cause::NoAnswer, format!("{place}: no answer in time to {what}"))
}

/// Whether the connection is of no use any more.
pub(crate) fn is_cut(error: &RedisError) -> bool {
    error.is_connection_dropped()
        || (error.is_io_error() && !error.is_timeout())
        || error.kind() == ErrorKind::Parse
}

fn said(error: &RedisError) -> String {
    match (error.code(), error.detail()) {
        (Some(code), Some(detail)) => format!("{code} {detail}"),
        _ => error.to_string(),
    }
}

fn meaning(error: &RedisError) -> (Cause, Option<&'static str>) {
    match error.kind() {
        ErrorKind::Server(kind) => of_server(kind, error.detail().unwrap_or_default()),
        ErrorKind::Extension => of_code(error.code().unwrap_or_default()),
        ErrorKind::AuthenticationFailed => (Cause::Refused, Some(LOGIN)),
        ErrorKind::RESP3NotSupported => (Cause::Refused, Some(TOO_OLD)),
        ErrorKind::InvalidClientConfig => (Cause::Refused, None),
        ErrorKind::Io if error.is_timeout() => (Cause::NoAnswer, None),
        ErrorKind::Io | ErrorKind::ClusterConnectionNotFound => (Cause::Disconnected, None),
        _ => (Cause::Broken, None),
    }
}

const LOGIN: &str = "check the user and password of the URL";
const TOO_OLD: &str = "Redis 6.2 or later, or Valkey, is needed, and nothing between that hides HELLO";
const READ_ONLY: &str =
    "this is a replica: point the URL at its primary, or use redis+sentinel:// to follow it";

fn of_server(kind: ServerErrorKind, detail: &str) -> (Cause, Option<&'static str>) {
    match kind {
        ServerErrorKind::BusyLoading => (Cause::Refused, Some("the server reads its data set; wait")),
        ServerErrorKind::ReadOnly => (Cause::Refused, Some(READ_ONLY)),
        ServerErrorKind::MasterDown => {
            (Cause::Refused, Some("this is a replica whose primary is down: wait for the fail-over"))
        }
        ServerErrorKind::NoPerm => (
            Cause::Refused,
            Some("give the user the commands that RedisStore lists, on its keys and channels"),
        ),
        ServerErrorKind::Moved
        | ServerErrorKind::Ask
        | ServerErrorKind::TryAgain
        | ServerErrorKind::ClusterDown => (Cause::Migrating, None),
        ServerErrorKind::ResponseError if detail.starts_with("DB index") => {
            (Cause::Refused, Some("the database at the end of the URL is not there"))
        }
        // Redis wraps what a command inside a script was refused for in a plain error.
        ServerErrorKind::ResponseError => match INSIDE.iter().find(|code| detail.contains(*code)) {
            Some(code) => of_code(code),
            None => (Cause::Broken, None),
        },
        _ => (Cause::Broken, None),
    }
}

/// The refusals that a plain error may carry in its text.
const INSIDE: [&str; 6] = ["READONLY", "-OOM", "NOREPLICAS", "MISCONF", "NOAUTH", "MASTERDOWN"];

fn of_code(code: &str) -> (Cause, Option<&'static str>) {
    match code.trim_start_matches('-') {
        "OOM" => (Cause::Refused, Some("the server is full: raise its maxmemory or free some")),
        "BUSY" => (
            Cause::Refused,
            Some(
                "another client's script runs too long: end it with SCRIPT KILL or FUNCTION KILL, which is never done from here",
            ),
        ),
        "NOAUTH" | "WRONGPASS" | "DENIED" => (Cause::Refused, Some(LOGIN)),
        "MISCONF" => (Cause::Refused, Some("the server cannot save its data set: see its log")),
        "NOREPLICAS" => (Cause::Refused, Some("too few replicas are in touch with the primary")),
        "READONLY" => (Cause::Refused, Some(READ_ONLY)),
        "NOPROTO" => (Cause::Refused, Some(TOO_OLD)),
        "MASTERDOWN" => (Cause::Refused, Some("wait for the fail-over")),
        _ => (Cause::Broken, None),
    }
}
