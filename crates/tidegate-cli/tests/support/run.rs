//! Running `tidegate demo`, and what holds for every run.

#![allow(
    dead_code,
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests say what they expect as tests do"
)]

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// What a run of a few seconds takes at the very most, on a machine that is busy with other tests.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) const KEYS: [&str; 18] = [
    "ceiling",
    "workers",
    "processes",
    "seconds",
    "calls",
    "ok",
    "throttled",
    "failed",
    "goodput_ratio",
    "throttled_ratio",
    "provider_max_in_flight",
    "limit_first",
    "limit_last",
    "limit_min",
    "limit_max",
    "over_admission",
    "acquire_wait_ms",
    "leases_left",
];

pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

pub(crate) fn start(arguments: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("demo")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

pub(crate) fn finish(mut child: Child) -> Ran {
    let err = child.stderr.take().unwrap();
    finish_reading(child, err)
}

/// Waits for the end, with what is left of stderr.
pub(crate) fn finish_reading(mut child: Child, mut err: impl Read + Send + 'static) -> Ran {
    let mut out = child.stdout.take();
    let stdout = std::thread::spawn(move || {
        let mut text = String::new();
        if let Some(out) = &mut out {
            out.read_to_string(&mut text).unwrap();
        }
        text
    });
    let stderr = std::thread::spawn(move || {
        let mut text = String::new();
        err.read_to_string(&mut text).unwrap();
        text
    });
    let until = Instant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() > until {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("the demo did not end: {}", stdout.join().unwrap());
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    Ran { code: status.code(), stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
}

pub(crate) fn run(arguments: &[&str]) -> Ran {
    finish(start(arguments))
}

/// Runs with `--json` and checks what holds for every run.
pub(crate) fn report(arguments: &[&str]) -> Value {
    let ran = run(&[arguments, &["--json"]].concat());
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
    checked(&ran)
}

/// What `--breaker` adds.
pub(crate) const CIRCUIT_KEYS: [&str; 5] =
    ["blocked", "opened_at_s", "closed_at_s", "calls_while_open", "open_reached_all_ms"];

/// What holds of a circuit whose provider failed for the middle fifth of so many seconds.
pub(crate) fn opened_and_closed(report: &Value, seconds: f64) {
    let moment = |key: &str| share(report, key);
    let (opened, closed) = (moment("opened_at_s"), moment("closed_at_s"));
    // A check each half second; a busy machine is late.
    assert!((seconds * 0.4..seconds * 0.4 + 1.0).contains(&opened), "{report}");
    assert!((seconds * 0.6..seconds * 0.6 + 1.5).contains(&closed), "{report}");
    assert_eq!(number(report, "calls_while_open"), 0, "{report}");
    assert!(number(report, "blocked") > 0, "{report}");
    assert!(number(report, "failed") >= 5, "the failures that opened it: {report}");
    let reached = moment("open_reached_all_ms");
    assert!((0.0..1_000.0).contains(&reached), "{report}");
}

/// The report of a run, with what holds for every one that did not lose anything.
pub(crate) fn checked(ran: &Ran) -> Value {
    assert_eq!(ran.stdout.lines().count(), 1, "{}", ran.stdout);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    let keys: Vec<_> = report.as_object().unwrap().keys().map(String::as_str).collect();
    let mut expected = KEYS.to_vec();
    if report.get("blocked").is_some() {
        expected.extend(CIRCUIT_KEYS);
    }
    expected.sort_unstable();
    assert_eq!(keys, expected);
    assert_eq!(report["over_admission"], 0, "{report}");
    assert_eq!(report["leases_left"], 0, "{report}");
    assert_eq!(
        number(&report, "calls"),
        number(&report, "ok") + number(&report, "throttled") + number(&report, "failed")
    );
    assert!(number(&report, "ok") > 0, "{report}");
    let wait = &report["acquire_wait_ms"];
    assert!(wait["p50"].as_f64().unwrap() <= wait["p99"].as_f64().unwrap(), "{report}");
    report
}

pub(crate) fn number(report: &Value, key: &str) -> u64 {
    report[key].as_u64().unwrap_or_else(|| panic!("{key} of {report}"))
}

pub(crate) fn share(report: &Value, key: &str) -> f64 {
    report[key].as_f64().unwrap_or_else(|| panic!("{key} of {report}"))
}
