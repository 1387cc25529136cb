//! What can be asked of the command, and what is refused before anything starts.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::time::Duration;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use hyper::Uri;
use serde::{Deserialize, Serialize};

/// Keeps a fleet of processes inside the limits of what they call and do not control
#[derive(Debug, Parser)]
#[command(name = "tidegate", version, max_term_width = 110)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Show a fleet finding the hidden ceiling of a real HTTP provider, and keeping to it
    #[command(long_about = DEMO_ABOUT, after_long_help = DEMO_EXAMPLES)]
    Demo(Box<DemoArgs>),
    /// A process of the fleet of `demo`, which starts it and speaks with it
    #[command(name = WORKER_COMMAND, hide = true)]
    DemoWorker,
}

/// The command that `demo` starts its processes with.
pub(crate) const WORKER_COMMAND: &str = "demo-worker";

const DEMO_ABOUT: &str = "\
Show a fleet finding the hidden ceiling of a real HTTP provider, and keeping to it.

Starts an HTTP provider on a free port of 127.0.0.1 that serves only so many calls at once and answers 429 \
above that. It tells nobody how many. A fleet of workers calls it over real connections as fast as it can, \
bounded by one adaptive semaphore: the limit grows while all goes well and falls when a call is throttled.

The workers are in one process, and so is what they share. With --store they are in as many processes as you \
like, with that store between them.

In a terminal the limit is drawn live against the ceiling; elsewhere there is a plain line a second. \
At the end comes a summary: what was served, what was throttled, and whether the limit was ever exceeded.";

const DEMO_EXAMPLES: &str = "\
Examples:
  tidegate demo
          20 seconds against a hidden ceiling of 20

  tidegate demo --growth probe --seconds 60
          The growth that stays close under the ceiling

  tidegate demo --change-ceiling 10s:8 --change-ceiling 20s:30 --seconds 30
          The provider gets weaker, then stronger; watch the limit follow

  tidegate demo --store redis://127.0.0.1:6379 --processes 4
          The same fleet in four processes on one Redis; kill one of them and see its slots come back

  tidegate demo --breaker
          The provider fails for a while; the circuit opens for all, one process probes, and all resume

  tidegate demo --plot limit.svg
          Also draw the limit and the ceiling into a file

  tidegate demo --json --seconds 5 | jq .goodput_ratio
          One JSON object on stdout; progress goes to stderr

  tidegate demo --url http://127.0.0.1:8080/work --workers 40
          Call a provider of your own instead

Exit codes:
  0    done
  1    something went wrong, or a guarantee did not hold
  64   bad input; nothing was started
  130  ended early by Ctrl-C, with the summary so far";

/// How the limit grows while nothing is throttled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum GrowthArg {
    /// One more in every clean window
    Aimd,
    /// Doubles in every clean window until the first throttled call, then one more
    SlowStart,
    /// Starts like slow-start, then returns quickly to just under what last worked
    Probe,
}

/// A change of the provider's ceiling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CeilingChange {
    /// When, from the start.
    pub(crate) at: Duration,
    /// To how many calls at once.
    pub(crate) ceiling: u32,
}

#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// How long the fleet calls, in seconds: 1 to 3600
    #[arg(long, value_name = "N", default_value = "20", allow_hyphen_values = true, value_parser = seconds)]
    pub(crate) seconds: u32,

    /// How many workers call at once: 1 to 10000 [default: three for each place of the highest ceiling, or 60]
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = workers)]
    pub(crate) workers: Option<u32>,

    /// Where the fleet keeps what it shares: memory, or the URL of a Redis, such as redis://127.0.0.1:6379. What the
    /// demo writes there is under an id of its own, and is forgotten at the end
    #[arg(long, value_name = "STORE", default_value = "memory", allow_hyphen_values = true)]
    pub(crate) store: String,

    /// How many processes the workers are in: 1 to 64. More than 1 need a --store that they can share
    #[arg(
        long,
        value_name = "N",
        default_value = "1",
        allow_hyphen_values = true,
        value_parser = processes
    )]
    pub(crate) processes: u32,

    /// How many calls the provider serves at once, which it tells nobody: 1 to 1000
    #[arg(
        long,
        value_name = "N",
        default_value = "20",
        allow_hyphen_values = true,
        value_parser = limit,
        conflicts_with = "url"
    )]
    pub(crate) ceiling: u32,

    /// Change the ceiling on the way, as moment:ceiling, such as 10s:8; may be given many times
    #[arg(
        long,
        value_name = "AT:N",
        allow_hyphen_values = true,
        value_parser = ceiling_change,
        conflicts_with = "url"
    )]
    pub(crate) change_ceiling: Vec<CeilingChange>,

    /// How long the provider takes for a call, on average: 1ms to 1m. Each call takes between half and one and
    /// a half of that
    #[arg(
        long,
        value_name = "DURATION",
        default_value = "50ms",
        allow_hyphen_values = true,
        value_parser = latency,
        conflicts_with = "url"
    )]
    pub(crate) latency: Duration,

    /// How the limit grows while nothing is throttled
    #[arg(long, value_enum, value_name = "GROWTH", default_value = "aimd", allow_hyphen_values = true)]
    pub(crate) growth: GrowthArg,

    /// The limit to start with: 1 to 1000
    #[arg(long, value_name = "N", default_value = "10", allow_hyphen_values = true, value_parser = limit)]
    pub(crate) initial: u32,

    /// At most one increase of the limit in this time: 10ms to 1h
    #[arg(long, value_name = "DURATION", default_value = "1s", allow_hyphen_values = true, value_parser = pace)]
    pub(crate) window: Duration,

    /// At most one decrease of the limit in this time: 10ms to 1h
    #[arg(long, value_name = "DURATION", default_value = "2s", allow_hyphen_values = true, value_parser = pace)]
    pub(crate) cooldown: Duration,

    /// Call this provider with GET instead of the built-in one. Its ceiling is not known, so what is measured
    /// against the ceiling is null in --json
    #[arg(long, value_name = "URL", allow_hyphen_values = true, value_parser = url)]
    pub(crate) url: Option<Uri>,

    /// Put a circuit breaker before the calls, and have the provider fail for a while: the fleet stops calling it,
    /// one process looks whether it is back, and all resume
    #[arg(long)]
    pub(crate) breaker: bool,

    /// When the provider begins to fail [default: after 40 % of the run]
    #[arg(
        long,
        value_name = "DURATION",
        allow_hyphen_values = true,
        value_parser = moment,
        requires = "breaker",
        conflicts_with = "url"
    )]
    pub(crate) outage_at: Option<Duration>,

    /// For how long it fails [default: 20 % of the run]
    #[arg(
        long,
        value_name = "DURATION",
        allow_hyphen_values = true,
        value_parser = moment,
        requires = "breaker",
        conflicts_with = "url"
    )]
    pub(crate) outage_for: Option<Duration>,

    /// Also draw the limit, the ceiling and the throttled calls into this SVG file
    #[arg(long, value_name = "FILE.svg", allow_hyphen_values = true)]
    pub(crate) plot: Option<PathBuf>,

    /// Print one JSON object on stdout instead of the summary; progress goes to stderr
    #[arg(long, long_help = DEMO_JSON)]
    pub(crate) json: bool,
}

const DEMO_JSON: &str = "\
Print one JSON object on stdout instead of the summary; progress goes to stderr.

calls, ok, throttled and failed count the calls answered within the time. goodput_ratio is ok over what the \
provider could have served at its ceiling in that time, at the mean service time that it measured. \
over_admission is how far live leases ever exceeded the limit in force at a grant, and leases_left what the \
store still holds at the end: both are 0. leases_left is null where the store does not say. store_away (how \
often the store did not answer a worker) and processes_lost are there only where they are not 0.

With --breaker there are also: blocked, the calls that the open circuit blocked; opened_at_s and closed_at_s, \
when it first opened and last closed; calls_while_open, those that began when every process knew that it was \
open (0, as it should be); and open_reached_all_ms, from the opening until the last process knew.";

/// The error for a value of `demo` that does not fit together with the rest.
pub(crate) fn refuse_demo(option: &str, value: impl Display, allowed: impl Display) -> clap::Error {
    let mut root = Cli::command();
    root.build();
    let message = format!("invalid value '{value}' for '{option}': {allowed}");
    match root.find_subcommand_mut("demo") {
        Some(demo) => demo.error(ErrorKind::ValueValidation, message),
        None => root.error(ErrorKind::ValueValidation, message),
    }
}

fn seconds(text: &str) -> Result<u32, String> {
    whole(text, 1..=3_600)
}

fn workers(text: &str) -> Result<u32, String> {
    whole(text, 1..=10_000)
}

fn processes(text: &str) -> Result<u32, String> {
    whole(text, 1..=64)
}

fn limit(text: &str) -> Result<u32, String> {
    whole(text, 1..=1_000)
}

fn latency(text: &str) -> Result<Duration, String> {
    duration(text, Duration::from_millis(1)..=Duration::from_secs(60))
}

fn pace(text: &str) -> Result<Duration, String> {
    duration(text, Duration::from_millis(10)..=Duration::from_secs(3_600))
}

fn moment(text: &str) -> Result<Duration, String> {
    duration(text, Duration::from_millis(100)..=Duration::from_secs(3_600))
}

fn whole(text: &str, range: RangeInclusive<u32>) -> Result<u32, String> {
    match text.parse() {
        Ok(number) if range.contains(&number) => Ok(number),
        _ => Err(format!("allowed is a whole number from {} to {}", range.start(), range.end())),
    }
}

fn duration(text: &str, range: RangeInclusive<Duration>) -> Result<Duration, String> {
    match humantime::parse_duration(text) {
        Ok(duration) if range.contains(&duration) => Ok(duration),
        _ => Err(format!(
            "allowed is a duration with its unit, such as 50ms or 2s, from {} to {}",
            humantime::format_duration(*range.start()),
            humantime::format_duration(*range.end()),
        )),
    }
}

fn ceiling_change(text: &str) -> Result<CeilingChange, String> {
    let allowed = "allowed is moment:ceiling, such as 10s:8";
    let (at, ceiling) = text.split_once(':').ok_or(allowed)?;
    let at = humantime::parse_duration(at).map_err(|error| format!("{allowed}; the moment: {error}"))?;
    if at.is_zero() {
        return Err(format!("{allowed}; the moment is after 0s (the ceiling at the start is --ceiling)"));
    }
    let ceiling = limit(ceiling).map_err(|error| format!("{allowed}; the ceiling: {error}"))?;
    Ok(CeilingChange { at, ceiling })
}

fn url(text: &str) -> Result<Uri, String> {
    let allowed = "allowed is an http:// URL, such as http://127.0.0.1:8080/work";
    let url: Uri = text.parse().map_err(|error| format!("{allowed} ({error})"))?;
    match url.scheme_str() {
        Some("http") => {}
        Some("https") => return Err(format!("{allowed}; https is not built in")),
        _ => return Err(allowed.into()),
    }
    let authority = url.authority().map_or("", |authority| authority.as_str());
    if authority.contains('@') {
        return Err(format!("{allowed}; a user and password would not be sent"));
    }
    let host = url.host().unwrap_or_default();
    // What follows the host is a port, and one that is no port would be taken for the default one.
    let odd_port = authority.len() > host.len() && url.port_u16().is_none_or(|port| port == 0);
    if host.is_empty() || odd_port {
        return Err(allowed.into());
    }
    Ok(url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_holds_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_ceiling_change_is_a_moment_and_a_ceiling() {
        let change = CeilingChange { at: Duration::from_millis(1_500), ceiling: 8 };
        assert_eq!(ceiling_change("1500ms:8"), Ok(change));
        for bad in
            ["", ":", "10s", "10s:", ":8", "10:8", "0s:8", "10s:0", "10s:1001", "10s:-3", "10s:8:9", "-1s:8"]
        {
            let message = ceiling_change(bad).unwrap_err();
            assert!(message.contains("moment:ceiling"), "{bad}: {message}");
        }
    }

    #[test]
    fn a_duration_has_a_unit_and_a_range() {
        assert_eq!(latency("50ms"), Ok(Duration::from_millis(50)));
        assert_eq!(latency("1s"), Ok(Duration::from_secs(1)));
        assert_eq!(latency("1m"), Ok(Duration::from_secs(60)));
        for bad in ["", "50", "0ms", "-1s", "61s", "1us", "NaN", "99999999999999999999s"] {
            assert!(latency(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_url_is_plain_http_with_a_host() {
        assert!(url("http://localhost/").is_ok());
        assert!(url("http://[::1]:8080/work?x=1").is_ok());
        for bad in [
            "",
            "localhost",
            "/work",
            "ftp://a/",
            "https://a/",
            "http://",
            "http:///x",
            "http://a:b/",
            "http://u:p@a/",
            "http://a:99999/",
        ] {
            assert!(url(bad).is_err(), "{bad}");
        }
    }
}
