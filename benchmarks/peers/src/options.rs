//! What a contender is asked to do.

use std::time::Duration;

use clap::{Parser, ValueEnum};

#[derive(Parser)]
#[command(about = "Runs one contender of the benchmarks")]
pub(crate) struct Options {
    pub(crate) peer: Peer,
    pub(crate) work: Work,
    /// The server
    #[arg(long, value_name = "URL", default_value = "redis://127.0.0.1:6379")]
    pub(crate) redis: String,
    /// What is limited; contenders with the same key share it
    #[arg(long, default_value = "peer")]
    pub(crate) key: String,
    /// Loops that run at the same time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) tasks: u32,
    /// How many may hold at the same time
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) limit: u32,
    /// How long to work
    #[arg(long, value_name = "S", default_value = "2", value_parser = seconds)]
    pub(crate) seconds: Duration,
    /// How long each span holds
    #[arg(long, value_name = "MS", default_value = "0", value_parser = milliseconds)]
    pub(crate) hold_ms: Duration,
    /// How long a task waits between its spans
    #[arg(long, value_name = "MS", default_value = "0", value_parser = milliseconds)]
    pub(crate) think_ms: Duration,
    /// Over how many keys the admissions go
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) keys: u32,
    /// Under how many rules each admission is
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rules: u32,
    /// Which end of the work `publish`
    #[arg(long, default_value = "sender")]
    pub(crate) role: Role,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Peer {
    DistributedLock,
    Limitador,
    LimitadorCached,
    Throttled,
    FloorBare,
    FloorTwoCalls,
    FloorPublish,
    Tidegate,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Work {
    /// Acquire and release, again and again
    Pairs,
    /// Acquire, hold, release, and say when
    Spans,
    /// Admissions of 1 that are never denied
    Rate,
    /// Round trips, one at a time
    Latency,
    /// From a script that publishes to a task that waits
    Publish,
    /// Asks for more than `limit` jobs, and counts what was admitted
    Exact,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Role {
    Sender,
    Listener,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    Duration::try_from_secs_f64(seconds).map_err(|error| error.to_string())
}

fn milliseconds(text: &str) -> Result<Duration, String> {
    seconds(text).map(|thousandfold| thousandfold / 1_000)
}
