//! `tidegate demo` as people run it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests say what they expect as tests do")]

#[path = "support/run.rs"]
mod run;

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use run::{finish, number, run, share, start};
use serde_json::Value;

/// Runs with `--json` and checks what holds for every run.
fn report(arguments: &[&str]) -> Value {
    let report = run::report(arguments);
    assert_eq!(report["processes"], 1);
    report
}

/// An empty folder of this process.
fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("tidegate-demo-{}-{name}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn the_limit_grows_towards_the_ceiling() {
    let report = report(&["--seconds", "3", "--window", "100ms", "--cooldown", "300ms", "--latency", "20ms"]);
    assert_eq!(
        (number(&report, "ceiling"), number(&report, "workers"), number(&report, "seconds")),
        (20, 60, 3)
    );
    assert_eq!((number(&report, "limit_first"), number(&report, "failed")), (10, 0));
    assert!(number(&report, "limit_max") > 10, "{report}");
    assert!(number(&report, "provider_max_in_flight") <= 20, "{report}");
    let goodput = share(&report, "goodput_ratio");
    assert!(goodput > 0.3 && goodput <= 1.05, "{report}");
    assert!(share(&report, "throttled_ratio") < 0.2, "{report}");
}

#[test]
fn a_limit_above_the_ceiling_comes_down() {
    let report = report(&[
        "--seconds",
        "2",
        "--ceiling",
        "4",
        "--initial",
        "16",
        "--workers",
        "24",
        "--cooldown",
        "200ms",
    ]);
    assert!(number(&report, "throttled") > 0, "{report}");
    assert_eq!(number(&report, "limit_first"), 16);
    assert!(number(&report, "limit_min") <= 4, "{report}");
    assert_eq!(number(&report, "provider_max_in_flight"), 4);
}

#[test]
fn a_change_of_the_ceiling_is_followed() {
    let changes = ["--change-ceiling", "1500ms:4", "--change-ceiling", "2500ms:30"];
    let pace =
        ["--seconds", "3", "--initial", "12", "--ceiling", "12", "--cooldown", "100ms", "--latency", "20ms"];
    let report = report(&[&changes[..], &pace].concat());
    assert!(number(&report, "throttled") > 0, "{report}");
    assert!(number(&report, "limit_min") <= 6, "{report}");
    // Three workers for each place of the highest ceiling.
    assert_eq!((number(&report, "ceiling"), number(&report, "workers")), (12, 90));
}

#[test]
fn a_provider_that_fails_opens_the_circuit_and_all_resume() {
    let report = report(&["--breaker", "--seconds", "5"]);
    run::opened_and_closed(&report, 5.0);
    let plain = run::report(&["--seconds", "1"]);
    assert!(plain.get("blocked").is_none(), "{plain}");
    // An outage of one's own, past which nothing is left to call.
    let folder = folder("breaker");
    let plot = folder.join("open.svg");
    let at = ["--breaker", "--seconds", "2", "--outage-at", "1s", "--outage-for", "1s", "--plot"];
    let ran = run(&[&at[..], &[plot.to_str().unwrap()]].concat());
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
    assert!(ran.stdout.contains("circuit=open blocked="), "{}", ran.stdout);
    assert!(ran.stdout.contains("still open at the end"), "{}", ran.stdout);
    let svg = std::fs::read_to_string(&plot).unwrap();
    assert!(svg.contains(">circuit open</text>"), "{svg}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn every_growth_runs() {
    for growth in ["aimd", "slow-start", "probe"] {
        let report =
            report(&["--seconds", "1", "--growth", growth, "--window", "100ms", "--latency", "10ms"]);
        assert!(number(&report, "limit_max") > 10, "{growth}: {report}");
    }
}

#[test]
fn without_a_terminal_there_are_plain_lines_and_a_summary() {
    let ran = run(&["--seconds", "2"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""), "{}", ran.stdout);
    assert!(!ran.stdout.contains('\u{1b}'), "{}", ran.stdout);
    let lines: Vec<_> = ran.stdout.lines().filter(|line| line.starts_with("t=")).collect();
    assert!(lines[0].contains("s limit=1") && lines[0].contains(" ceiling=20 in_flight="), "{lines:?}");
    assert!(lines.len() <= 2 && lines[lines.len() - 1].starts_with("t=2s "), "{lines:?}");
    for part in ["over-admission         0", "leases left            0", "under a ceiling of 20", "goodput"] {
        assert!(ran.stdout.contains(part), "{part}: {}", ran.stdout);
    }
}

#[test]
fn json_keeps_progress_off_stdout() {
    let ran = run(&["--seconds", "1", "--json"]);
    assert!(ran.stdout.starts_with('{') && ran.stdout.ends_with("}\n"), "{}", ran.stdout);
    assert!(ran.stderr.starts_with("t=1s limit="), "{}", ran.stderr);
}

#[test]
fn a_plot_is_drawn() {
    let folder = folder("plot");
    let file = folder.join("limit.svg");
    let ran = run(&["--seconds", "1", "--plot", file.to_str().unwrap()]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let svg = std::fs::read_to_string(&file).unwrap();
    assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"), "{svg}");
    assert!(svg.contains("hidden ceiling") && svg.contains("prefers-color-scheme: dark"));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn bad_input_names_option_value_and_what_is_allowed_and_starts_nothing() {
    let folder = folder("bad");
    let none = folder.join("none").join("limit.svg");
    let bitmap = folder.join("limit.png");
    let (none, bitmap) = (none.to_str().unwrap(), bitmap.to_str().unwrap());
    let cases: &[(&[&str], &[&str])] = &[
        (&["--seconds", "0"], &["--seconds", "'0'", "from 1 to 3600"]),
        (&["--seconds", "3601"], &["--seconds", "'3601'", "from 1 to 3600"]),
        (&["--seconds", "-1"], &["--seconds", "'-1'", "from 1 to 3600"]),
        (&["--seconds", "2.5"], &["--seconds", "'2.5'", "whole number"]),
        (&["--seconds", ""], &["--seconds", "from 1 to 3600"]),
        (&["--seconds"], &["--seconds", "value"]),
        (&["--workers", "0"], &["--workers", "'0'", "from 1 to 10000"]),
        (&["--workers", "10001"], &["--workers", "'10001'", "from 1 to 10000"]),
        (&["--workers", "99999999999999999999"], &["--workers", "from 1 to 10000"]),
        (&["--ceiling", "0"], &["--ceiling", "'0'", "from 1 to 1000"]),
        (&["--ceiling", "1001"], &["--ceiling", "'1001'", "from 1 to 1000"]),
        (&["--change-ceiling", "10s"], &["--change-ceiling", "'10s'", "moment:ceiling"]),
        (&["--change-ceiling", "10s:0"], &["--change-ceiling", "'10s:0'", "from 1 to 1000"]),
        (&["--change-ceiling", "0s:8"], &["--change-ceiling", "'0s:8'", "after 0s"]),
        (&["--change-ceiling", "x:8"], &["--change-ceiling", "'x:8'", "moment:ceiling"]),
        (&["--change-ceiling", "20s:8"], &["--change-ceiling", "'20s:8'", "before the end", "20 s"]),
        (
            &["--seconds", "5", "--change-ceiling", "10s:8"],
            &["--change-ceiling", "'10s:8'", "before the end"],
        ),
        (
            &["--change-ceiling", "3s:8", "--change-ceiling", "3s:9"],
            &["--change-ceiling", "'3s:9'", "one change"],
        ),
        (&["--outage-at", "1s"], &["--breaker"]),
        (&["--outage-for", "1s"], &["--breaker"]),
        (&["--breaker", "--outage-at", "20s"], &["--outage-at", "'20s'", "before the end", "20 s"]),
        (&["--breaker", "--outage-at", "0s"], &["--outage-at", "'0s'", "from 100ms to 1h"]),
        (
            &["--breaker", "--outage-at", "15s", "--outage-for", "6s"],
            &["--outage-for", "'6s'", "at most", "5s"],
        ),
        (&["--latency", "0ms"], &["--latency", "'0ms'", "from 1ms to 1m"]),
        (&["--latency", "61s"], &["--latency", "'61s'", "from 1ms to 1m"]),
        (&["--latency", "50"], &["--latency", "'50'", "with its unit"]),
        (&["--latency", "-5ms"], &["--latency", "'-5ms'", "from 1ms to 1m"]),
        (&["--growth", "fast"], &["--growth", "'fast'", "aimd, slow-start, probe"]),
        (&["--initial", "0"], &["--initial", "'0'", "from 1 to 1000"]),
        (&["--initial", "1001"], &["--initial", "'1001'", "from 1 to 1000"]),
        (&["--window", "0s"], &["--window", "'0s'", "from 10ms to 1h"]),
        (&["--window", "2h"], &["--window", "'2h'", "from 10ms to 1h"]),
        (&["--cooldown", "0s"], &["--cooldown", "'0s'", "from 10ms to 1h"]),
        (&["--cooldown", "soon"], &["--cooldown", "'soon'", "from 10ms to 1h"]),
        (&["--url", "not a url"], &["--url", "'not a url'", "http://"]),
        (&["--url", "localhost:80"], &["--url", "'localhost:80'", "http://"]),
        (&["--url", "https://example.com/"], &["--url", "'https://example.com/'", "https is not built in"]),
        (&["--url", "http://127.0.0.1:1/", "--ceiling", "5"], &["--url", "--ceiling", "cannot be used with"]),
        (
            &["--url", "http://127.0.0.1:1/", "--latency", "5ms"],
            &["--url", "--latency", "cannot be used with"],
        ),
        (
            &["--url", "http://127.0.0.1:1/", "--change-ceiling", "5s:5"],
            &["--url", "--change-ceiling", "cannot be used with"],
        ),
        (&["--processes", "0"], &["--processes", "'0'", "from 1 to 64"]),
        (&["--processes", "65"], &["--processes", "'65'", "from 1 to 64"]),
        (&["--processes", "2"], &["--processes", "'2'", "1 with --store memory", "redis://"]),
        (
            &["--store", "redis://127.0.0.1:1", "--processes", "4", "--workers", "3"],
            &["--processes", "'4'", "one for each worker", "3"],
        ),
        (&["--store", "disk"], &["--store", "'disk'", "redis://", "or memory"]),
        (&["--store", "postgres://127.0.0.1"], &["--store", "'postgres://127.0.0.1'", "redis://"]),
        (&["--store", "redis://me:secret@127.0.0.1:x"], &["--store", "127.0.0.1:x", "redis://"]),
        (&["--store", ""], &["--store", "value"]),
        (&["--plot", none], &["--plot", none, "ends in .svg"]),
        (&["--plot", bitmap], &["--plot", bitmap, "ends in .svg"]),
        (&["--plot", ""], &["--plot", "value"]),
        (&["--json=yes"], &["--json", "'yes'"]),
        (&["--colour"], &["'--colour'"]),
        (&["fast"], &["'fast'"]),
    ];
    for (arguments, parts) in cases {
        let ran = run(arguments);
        assert_eq!(ran.code, Some(64), "{arguments:?}: {}", ran.stderr);
        assert_eq!(ran.stdout, "", "{arguments:?}");
        assert!(!ran.stderr.contains("secret"), "{arguments:?}: {}", ran.stderr);
        for part in *parts {
            assert!(ran.stderr.contains(part), "{arguments:?} without {part}: {}", ran.stderr);
        }
    }
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn help_is_no_error_and_teaches() {
    let ran = run(&["--help"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    assert!(!ran.stdout.contains("demo-worker"), "{}", ran.stdout);
    for part in [
        "--change-ceiling",
        "--store",
        "--processes",
        "Examples:",
        "tidegate demo --growth probe",
        "tidegate demo --breaker",
        "Exit codes:",
    ] {
        assert!(ran.stdout.contains(part), "{part}: {}", ran.stdout);
    }
    let bare = |arguments: &[&str]| {
        let output = Command::new(env!("CARGO_BIN_EXE_tidegate")).args(arguments).output().unwrap();
        output.status.code()
    };
    assert_eq!(bare(&["--version"]), Some(0));
    assert_eq!(bare(&["--help"]), Some(0));
    assert_eq!(bare(&[]), Some(64));
    assert_eq!(bare(&["dance"]), Some(64));
}

/// A provider that is not built in: it answers every call with `answer`, until its listener is gone with the test.
fn provider(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve(stream, answer));
        }
    });
    format!("http://{address}/work")
}

/// Answers a request for every blank line, which ends a request without a body.
fn serve(mut stream: TcpStream, answer: &str) {
    let mut request = Vec::new();
    let mut part = [0; 1_024];
    while let Ok(read @ 1..) = stream.read(&mut part) {
        request.extend_from_slice(&part[..read]);
        if request.ends_with(b"\r\n\r\n") {
            request.clear();
            std::thread::sleep(Duration::from_millis(5));
            if stream.write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }
}

#[test]
fn an_own_provider_can_be_called() {
    let url = provider("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok");
    let report = report(&["--seconds", "1", "--url", &url, "--workers", "8", "--initial", "4"]);
    assert_eq!(number(&report, "workers"), 8);
    for unknown in ["ceiling", "goodput_ratio", "provider_max_in_flight"] {
        assert!(report[unknown].is_null(), "{unknown} of {report}");
    }
}

#[test]
fn a_provider_that_only_throttles_is_left_in_peace() {
    let url = provider("HTTP/1.1 503 Busy\r\ncontent-length: 0\r\nretry-after: 1\r\n\r\n");
    let ran = run(&["--seconds", "2", "--url", &url, "--workers", "8", "--initial", "4", "--json"]);
    let report: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(
        (number(&report, "ok"), number(&report, "limit_min"), number(&report, "leases_left")),
        (0, 2, 0)
    );
    // Four slots that rest a second each, and the limit falls.
    assert!((4..=10).contains(&number(&report, "throttled")), "{report}");
}

#[test]
fn a_provider_that_fails_every_call_is_said_so() {
    let url = provider("HTTP/1.1 500 Oops\r\ncontent-length: 0\r\n\r\n");
    let ran = run(&["--seconds", "1", "--url", &url, "--workers", "4"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("no call succeeded") && ran.stderr.contains("500"), "{}", ran.stderr);
}

#[test]
fn a_provider_that_is_not_there_is_said_so() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let ran = run(&["--url", &format!("http://{free}/")]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""));
    assert!(ran.stderr.contains("no connection to http://127.0.0.1"), "{}", ran.stderr);
}

#[test]
fn a_reader_that_leaves_ends_it_quietly() {
    let mut child = start(&["--seconds", "30"]);
    drop(child.stdout.take());
    let started = Instant::now();
    let ran = finish(child);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(0), ""));
    assert!(started.elapsed() < Duration::from_secs(20));
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_it_early_with_the_summary() {
    for arguments in [&["--seconds", "3000"][..], &["--seconds", "3000", "--json"]] {
        let mut child = start(arguments);
        // The first line of progress says that it is under way.
        let first = if arguments.contains(&"--json") {
            child.stderr.as_mut().unwrap().read(&mut [0; 1_024])
        } else {
            child.stdout.as_mut().unwrap().read(&mut [0; 1_024])
        };
        assert!(first.unwrap() > 0);
        let told = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        assert!(told.success());
        let ran = finish(child);
        assert_eq!(ran.code, Some(130), "{}", ran.stderr);
        if arguments.contains(&"--json") {
            let report: Value = serde_json::from_str(&ran.stdout).unwrap();
            assert!(
                report["seconds"].as_f64().is_some_and(|seconds| (0.9..60.0).contains(&seconds)),
                "{report}"
            );
            assert_eq!((number(&report, "over_admission"), number(&report, "leases_left")), (0, 0));
        } else {
            assert!(ran.stdout.contains("leases left            0"), "{}", ran.stdout);
        }
    }
}
