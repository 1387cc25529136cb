//! What a run comes to, for a person and for a program.

use std::fmt::{self, Display};
use std::time::Duration;

use serde::Serialize;
use serde_json::Number;

use super::audit::{self, Held};
use super::circuit;
use super::fleet::{Answer, Call, Ended};
use super::provider::Counts;
use super::schedule::Schedule;

/// What is known of the provider. Of one that is not built in: nothing.
#[derive(Debug)]
pub(super) struct Known<'a> {
    pub(super) schedule: &'a Schedule,
    /// The service time that was asked for.
    pub(super) latency: Duration,
    pub(super) counts: Counts,
}

/// A run in figures: the object that `--json` prints. What cannot be known is null.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    ceiling: Option<u32>,
    workers: u32,
    processes: u32,
    seconds: Number,
    calls: usize,
    ok: usize,
    throttled: usize,
    failed: usize,
    goodput_ratio: Option<f64>,
    throttled_ratio: f64,
    provider_max_in_flight: Option<u32>,
    limit_first: u32,
    limit_last: u32,
    limit_min: u32,
    limit_max: u32,
    over_admission: u32,
    acquire_wait_ms: Wait,
    leases_left: Option<u32>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    circuit: Option<circuit::Outcome>,
    #[serde(skip_serializing_if = "is_zero")]
    store_away: u64,
    #[serde(skip_serializing_if = "is_zero")]
    processes_lost: u64,
    #[serde(skip)]
    highest_ceiling: Option<u32>,
    #[serde(skip)]
    lasted: Duration,
    #[serde(skip)]
    timeouts: u64,
    #[serde(skip)]
    last_failure: Option<String>,
    /// Why the store did not answer a worker, the last time.
    #[serde(skip)]
    last_away: Option<String>,
    /// Why it does not say what it holds.
    #[serde(skip)]
    silent: Option<String>,
    /// Why processes ended early.
    #[serde(skip)]
    lost: Vec<String>,
}

/// For what is only worth a word when it happened.
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks so")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// How long workers waited for a lease, in milliseconds.
#[derive(Debug, Serialize)]
struct Wait {
    p50: f64,
    p99: f64,
}

impl Report {
    /// The figures of a run that lasted `lasted`. Calls that were answered later do not count; the leases of all
    /// calls are held against the limit.
    pub(super) fn new(
        workers: u32,
        lasted: Duration,
        known: Option<&Known<'_>>,
        limits: &[(Duration, u32)],
        ended: Ended,
    ) -> Self {
        let leases: Vec<Held> = ended.calls.iter().filter_map(|call| call.lease).collect();
        let calls: Vec<Call> = ended
            .calls
            .into_iter()
            .filter(|call| call.answer != Answer::Cut && call.answered <= lasted)
            .collect();
        let count = |answer| calls.iter().filter(|call| call.answer == answer).count();
        let (ok, throttled) = (count(Answer::Ok), count(Answer::Throttled));
        let limits: Vec<u32> =
            limits.iter().filter(|&&(at, _)| at <= lasted).map(|&(_, limit)| limit).collect();
        let limit =
            |pick: fn(std::slice::Iter<'_, u32>) -> Option<&u32>| pick(limits.iter()).copied().unwrap_or(0);
        let (store_away, last_away) = ended.away.unzip();
        let store_away = store_away.unwrap_or(0);
        let (leases_left, silent) = match ended.leases_left {
            Ok(left) => (Some(left), None),
            Err(why) => (None, Some(why)),
        };
        Self {
            ceiling: known.map(|known| known.schedule.at(Duration::ZERO)),
            workers,
            processes: ended.processes,
            seconds: whole_or_fraction(lasted),
            calls: calls.len(),
            ok,
            throttled,
            failed: count(Answer::Failed),
            goodput_ratio: known.map(|known| rounded(known.goodput(ok, lasted))),
            throttled_ratio: rounded(ratio(real(throttled), real(calls.len()))),
            provider_max_in_flight: known.map(|known| known.counts.max_in_flight),
            limit_first: limit(|mut all| all.next()),
            limit_last: limit(|all| all.last()),
            limit_min: limit(|all| all.min()),
            limit_max: limit(|all| all.max()),
            over_admission: audit::over_admission(&leases),
            acquire_wait_ms: Wait::of(calls.iter().map(|call| call.waited).collect()),
            leases_left,
            circuit: ended.circuit,
            store_away,
            processes_lost: u64::try_from(ended.lost.len()).unwrap_or(u64::MAX),
            highest_ceiling: known.map(|known| known.schedule.highest()),
            lasted,
            timeouts: ended.timeouts,
            last_failure: ended.last_failure,
            last_away,
            silent,
            lost: ended.lost,
        }
    }

    /// What is wrong with the run, if anything is.
    pub(super) fn fault(&self) -> Option<String> {
        if self.over_admission > 0 {
            return Some(format!("live leases exceeded the limit by {}", self.over_admission));
        }
        if let Some(left) = self.leases_left.filter(|&left| left > 0) {
            return Some(format!("the store still holds {left} leases"));
        }
        if let Some(why) = &self.silent {
            return Some(format!("the store does not say what it still holds: {why}"));
        }
        if let Some(why) = self.lost.first() {
            let (lost, all) = (self.lost.len(), self.processes);
            return Some(format!("{lost} of {all} processes ended early; the first: {why}"));
        }
        if let Some(why) = self.last_away.as_ref().filter(|_| self.ok == 0) {
            return Some(format!("no call succeeded; the store was away: {why}"));
        }
        let why = self.last_failure.as_ref().filter(|_| self.ok == 0)?;
        Some(format!("no call succeeded; the last failure: {why}"))
    }
}

impl Known<'_> {
    /// The calls that were served over those that could have been: all places of the ceiling in use all the time,
    /// each call in the mean service time that the provider measured (the one asked for, before it served any).
    fn goodput(&self, ok: usize, lasted: Duration) -> f64 {
        let service = self.counts.mean_service().unwrap_or(self.latency);
        ratio(real(ok) * service.as_secs_f64(), self.schedule.place_seconds(lasted))
    }
}

impl Wait {
    fn of(mut waits: Vec<Duration>) -> Self {
        waits.sort_unstable();
        // The smallest wait that this share of all waits does not exceed.
        let percentile = |percent: usize| {
            let rank = (waits.len() * percent).div_ceil(100).saturating_sub(1);
            let wait = waits.get(rank).copied().unwrap_or_default();
            (wait.as_secs_f64() * 1e6).round() / 1e3
        };
        Self { p50: percentile(50), p99: percentile(99) }
    }
}

impl Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let row = |f: &mut fmt::Formatter<'_>, name: &str, value: String, rest: String| {
            let line = format!("  {name:<15}{value:>9}   {rest}");
            writeln!(f, "{}", line.trim_end())
        };
        let seconds = self.lasted.as_secs_f64();
        writeln!(
            f,
            "In {} s, {} workers{} made {} calls to a provider whose ceiling nobody told them.\n",
            self.seconds,
            grouped(self.workers),
            if self.processes == 1 { String::new() } else { format!(" in {} processes", self.processes) },
            grouped(self.calls)
        )?;
        let rate = format!("{:.0} per second", ratio(real(self.ok), seconds));
        row(f, "served", grouped(self.ok), rate)?;
        let share = format!("{} of all calls", percent(self.throttled_ratio));
        row(f, "throttled", grouped(self.throttled), share)?;
        let why = self.last_failure.as_ref().map(|why| format!("the last one: {why}")).unwrap_or_default();
        row(f, "failed", grouped(self.failed), why)?;
        if let Some(goodput) = self.goodput_ratio {
            row(f, "goodput", percent(goodput), "of what the provider could serve at its ceiling".into())?;
        }
        let moved = format!(
            "at the end; {} at first, from {} to {} on the way",
            self.limit_first, self.limit_min, self.limit_max
        );
        row(f, "limit", grouped(self.limit_last), moved)?;
        if let (Some(most), Some(first), Some(highest)) =
            (self.provider_max_in_flight, self.ceiling, self.highest_ceiling)
        {
            let ceiling = if first == highest {
                format!("calls at once at most, under a ceiling of {first}")
            } else {
                format!("calls at once at most, under a ceiling of at most {highest}")
            };
            row(f, "provider", grouped(most), ceiling)?;
        }
        let wait =
            format!("for a lease at the median, {:.1} ms at the 99th percentile", self.acquire_wait_ms.p99);
        row(f, "wait", format!("{:.1} ms", self.acquire_wait_ms.p50), wait)?;
        if self.timeouts > 0 {
            row(
                f,
                "gave up",
                grouped(self.timeouts),
                "times a worker got no lease in 10 s, and asked again".into(),
            )?;
        }
        if let Some(circuit) = &self.circuit {
            let opened = match (circuit.opened_at_s, circuit.open_reached_all_ms) {
                (Some(opened), Some(reached)) => {
                    let closed = match circuit.closed_at_s {
                        Some(closed) => format!("closed at {closed:.1} s"),
                        None => "still open at the end".to_owned(),
                    };
                    format!("open at {opened:.1} s, everywhere within {reached:.1} ms; {closed}")
                }
                _ => "it never opened".to_owned(),
            };
            row(f, "circuit", grouped(circuit.blocked), format!("calls blocked; {opened}"))?;
            let rest = "calls began while every process knew that it was open".to_owned();
            row(f, "while open", grouped(circuit.calls_while_open), rest)?;
        }
        if let Some(why) = &self.last_away {
            let times = format!("times the store did not answer a worker; the last: {why}");
            row(f, "store away", grouped(self.store_away), times)?;
        }
        if let Some(why) = self.lost.first() {
            row(f, "lost", grouped(self.processes_lost), format!("processes ended early; the first: {why}"))?;
        }
        let held = match self.over_admission {
            0 => "live leases never exceeded the limit",
            _ => "live leases more than the limit allowed",
        };
        row(f, "over-admission", grouped(self.over_admission), held.into())?;
        let (left, said) = match self.leases_left {
            Some(0) => ("0".to_owned(), "every lease was given back"),
            Some(left) => (grouped(left), "leases that the store still holds"),
            None => ("unknown".to_owned(), "the store does not answer"),
        };
        row(f, "leases left", left, said.into())
    }
}

/// Counts of a run are far below 2^53, up to which this is exact.
fn real(count: usize) -> f64 {
    count as f64
}

/// `part / whole`, and 0 of nothing.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

/// Six digits after the point.
fn rounded(ratio: f64) -> f64 {
    (ratio * 1e6).round() / 1e6
}

/// A share in per cent, with more digits where it is small.
fn percent(ratio: f64) -> String {
    let percent = ratio * 100.0;
    if percent > 0.0 && percent < 1.0 { format!("{percent:.2} %") } else { format!("{percent:.1} %") }
}

/// Seconds as a whole number where they are one, else with three digits after the point.
fn whole_or_fraction(duration: Duration) -> Number {
    let fraction = (duration.as_secs_f64() * 1e3).round() / 1e3;
    match duration.subsec_nanos() {
        0 => Number::from(duration.as_secs()),
        _ => Number::from_f64(fraction).unwrap_or_else(|| Number::from(duration.as_secs())),
    }
}

/// A whole number with a comma between its thousands.
fn grouped(number: impl Display) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(answer: Answer, answered: u64) -> Call {
        let answered = Duration::from_millis(answered);
        Call { waited: answered / 10, lease: None, answered, answer }
    }

    fn ended(calls: Vec<Call>) -> Ended {
        Ended {
            processes: 1,
            calls,
            timeouts: 0,
            circuit: None,
            leases_left: Ok(0),
            last_failure: None,
            away: None,
            lost: Vec::new(),
        }
    }

    #[test]
    fn goodput_is_measured_against_the_places_of_the_ceiling() {
        let schedule = Schedule::new(2, [(Duration::from_secs(1), 4)]);
        let busy = Duration::from_millis(90 * 50);
        let counts = Counts { served: 90, max_in_flight: 4, busy, ..Counts::default() };
        let known = Known { schedule: &schedule, latency: Duration::from_secs(9), counts };
        let calls =
            (0..90).map(|_| call(Answer::Ok, 1_000)).chain([call(Answer::Throttled, 5); 10]).collect();
        let limits = [(Duration::ZERO, 3), (Duration::from_millis(5), 1), (Duration::from_secs(1), 2)];
        let report = Report::new(8, Duration::from_secs(2), Some(&known), &limits, ended(calls));
        // 90 calls of 50 ms, of two places for a second and four for another.
        assert_eq!(report.goodput_ratio, Some(0.75));
        assert_eq!((report.calls, report.ok, report.throttled, report.throttled_ratio), (100, 90, 10, 0.1));
        assert_eq!((report.limit_first, report.limit_last, report.limit_min, report.limit_max), (3, 2, 1, 3));
        assert_eq!(report.fault(), None);
        let text = report.to_string();
        assert!(text.contains("goodput           75.0 %"), "{text}");
        assert!(text.contains("4   calls at once at most, under a ceiling of at most 4"), "{text}");
    }

    #[test]
    fn what_came_after_the_end_does_not_count() {
        let calls = vec![call(Answer::Ok, 900), call(Answer::Ok, 1_001), call(Answer::Cut, 500)];
        let limits = [(Duration::ZERO, 10), (Duration::from_millis(1_001), 5)];
        let report = Report::new(1, Duration::from_secs(1), None, &limits, ended(calls));
        assert_eq!((report.calls, report.ok, report.limit_last), (1, 1, 10));
    }

    #[test]
    fn what_is_unknown_is_null_and_the_keys_are_these() {
        let report =
            Report::new(4, Duration::from_millis(1_500), None, &[(Duration::ZERO, 10)], ended(vec![]));
        let json = serde_json::to_string(&report).unwrap();
        assert_eq!(
            json,
            "{\"ceiling\":null,\"workers\":4,\"processes\":1,\"seconds\":1.5,\"calls\":0,\"ok\":0,\"throttled\":0,\
             \"failed\":0,\"goodput_ratio\":null,\"throttled_ratio\":0.0,\"provider_max_in_flight\":null,\
             \"limit_first\":10,\"limit_last\":10,\"limit_min\":10,\"limit_max\":10,\"over_admission\":0,\
             \"acquire_wait_ms\":{\"p50\":0.0,\"p99\":0.0},\"leases_left\":0}"
        );
    }

    #[test]
    fn a_broken_guarantee_is_a_fault() {
        let held =
            |fence| Held { fence, limit: 1, granted: Duration::ZERO, released: Duration::from_secs(1) };
        let calls = (1..=2).map(|fence| Call { lease: Some(held(fence)), ..call(Answer::Ok, 500) }).collect();
        let report = Report::new(1, Duration::from_secs(1), None, &[], ended(calls));
        assert!(report.fault().is_some_and(|fault| fault.contains("exceeded the limit by 1")));
        let left = Ended { leases_left: Ok(2), ..ended(vec![]) };
        let report = Report::new(1, Duration::from_secs(1), None, &[], left);
        assert!(report.fault().is_some_and(|fault| fault.contains("still holds 2 leases")));
    }

    #[test]
    fn a_store_that_is_away_and_a_lost_process_are_said() {
        let away = || Some((3, "disconnected".to_owned()));
        let silent = Ended { leases_left: Err("refused".into()), away: away(), ..ended(vec![]) };
        let report = Report::new(1, Duration::from_secs(1), None, &[], silent);
        assert!(
            report.fault().is_some_and(|fault| fault.contains("does not say what it still holds: refused"))
        );
        let text = report.to_string();
        assert!(text.contains("store away             3   times the store did not answer"), "{text}");
        assert!(text.contains("leases left      unknown"), "{text}");
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!((json["leases_left"].is_null(), json["store_away"].as_u64()), (true, Some(3)));

        // One that came back has done no harm.
        let back = Ended { away: away(), ..ended(vec![call(Answer::Ok, 500)]) };
        let report = Report::new(1, Duration::from_secs(1), None, &[], back);
        assert_eq!(report.fault(), None);

        let killed = Ended { processes: 4, lost: vec!["signal: 9 (SIGKILL)".into()], ..ended(vec![]) };
        let report = Report::new(1, Duration::from_secs(1), None, &[], killed);
        let fault = report.fault().unwrap();
        assert_eq!(fault, "1 of 4 processes ended early; the first: signal: 9 (SIGKILL)");
        assert!(report.to_string().contains("1 workers in 4 processes made"));
        assert_eq!(serde_json::to_value(&report).unwrap()["processes_lost"], 1);
    }

    #[test]
    fn percentiles_are_waits_that_happened() {
        let wait = Wait::of((1..=200).map(Duration::from_millis).collect());
        assert_eq!((wait.p50, wait.p99), (100.0, 198.0));
        let one = Wait::of(vec![Duration::from_micros(1_234)]);
        assert_eq!((one.p50, one.p99), (1.234, 1.234));
    }

    #[test]
    fn numbers_are_easy_to_read() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(percent(0.0004), "0.04 %");
        assert_eq!(percent(0.8161), "81.6 %");
    }
}
