//! The way to the servers: the only place that sends a command.

use redis::Value;
use tidegate_core::StoreError;

use crate::scripts::Script;

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
    /// Whether it only reads.
    pub(crate) lane: Lane,
}

/// Connections to the servers of one store. A cheap clone.
#[derive(Clone)]
pub(crate) struct Wire {}

impl Wire {
    /// Runs a script where the keys are, and loads it where it is missing.
    pub(crate) async fn run(&self, _call: Call<'_>) -> Result<Value, StoreError> {
        todo!()
    }
}
