//! `tidegate demo` in processes of its own on a real Redis: one limit for all, and whatever is killed.

#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::panic, reason = "helpers of tests say what they expect as tests do")]

#[path = "support/redis.rs"]
mod redis;
#[path = "support/run.rs"]
mod run;

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, ChildStderr, Command};

use redis::{Redis, until};
use run::{Ran, checked, finish_reading, number, report, run, share, start};
use serde_json::Value;

/// A fast controller, so that a few seconds show something.
const PACE: [&str; 6] = ["--window", "100ms", "--cooldown", "300ms", "--latency", "20ms"];

/// What a demo keeps for its fleet, without what lapses by itself.
const LASTING: &str = "tidegate:{demo-*}";

/// A demo that is under way.
struct Running {
    child: Child,
    err: BufReader<ChildStderr>,
    pids: Vec<String>,
}

impl Running {
    /// Starts one with `--json` and waits until its workers have called for a second.
    fn start(redis: &Redis, arguments: &[&str]) -> Self {
        let mut child = start(&[&["--store", &redis.url(), "--json"], arguments].concat());
        let mut err = BufReader::new(child.stderr.take().unwrap());
        let mut pids = String::new();
        err.read_line(&mut pids).unwrap();
        let Some(list) = pids.strip_prefix("pids: ") else { panic!("no pids: {pids}") };
        let pids = list.split_whitespace().map(str::to_owned).collect();
        let mut first = String::new();
        err.read_line(&mut first).unwrap();
        assert!(first.starts_with("t=1s "), "{first}");
        assert!(!first.contains(" ok/s=0 "), "{first}");
        Self { child, err, pids }
    }

    /// Reads progress until it says this.
    fn until(&mut self, part: &str) {
        let mut line = String::new();
        while !line.contains(part) {
            line.clear();
            assert!(self.err.read_line(&mut line).unwrap() > 0, "it ended without{part}");
        }
    }

    fn finish(self) -> Ran {
        finish_reading(self.child, self.err)
    }
}

fn signal(signal: &str, pid: &str) {
    assert!(Command::new("kill").args([signal, pid]).status().unwrap().success());
}

/// Whether a process has ended. One that nobody has waited for yet has.
fn has_ended(pid: &str) -> bool {
    let output = Command::new("ps").args(["-o", "stat=", "-p", pid]).output().unwrap();
    let state = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    state.is_empty() || state.starts_with('Z')
}

/// The report of a run that lost something on purpose.
fn parsed(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout)
        .unwrap_or_else(|error| panic!("{error}: {}\n{}", ran.stdout, ran.stderr))
}

#[test]
fn four_processes_keep_to_one_limit_and_leave_nothing() {
    let redis = Redis::start();
    let more = ["--store", &redis.url(), "--processes", "4", "--seconds", "4"];
    let report = report(&[&more[..], &PACE].concat());
    assert_eq!((number(&report, "processes"), number(&report, "workers")), (4, 60));
    assert_eq!((number(&report, "limit_first"), number(&report, "failed")), (10, 0));
    assert!(number(&report, "limit_max") > 10, "{report}");
    // More than the first limit at once, so one process alone did not make it; and never more than the ceiling.
    let at_once = number(&report, "provider_max_in_flight");
    assert!((11..=20).contains(&at_once), "{report}");
    // A sawtooth between half of the ceiling and all of it, on a machine that may be busy.
    let goodput = share(&report, "goodput_ratio");
    assert!(goodput > 0.3 && goodput <= 1.05, "{report}");
    assert!(share(&report, "throttled_ratio") < 0.2, "{report}");
    assert_eq!(redis.keys(LASTING), Vec::<String>::new());
    for key in redis.keys("*") {
        let left: i64 = redis.ask(&format!("TTL {key}")).unwrap()[0].trim_start_matches(':').parse().unwrap();
        assert!(left != -1, "{key} never lapses");
    }
}

#[test]
fn a_circuit_that_opens_stops_all_processes_and_one_that_closes_lets_all_resume() {
    let redis = Redis::start();
    let more = ["--store", &redis.url(), "--processes", "4", "--seconds", "5", "--breaker"];
    let report = report(&[&more[..], &PACE].concat());
    assert_eq!(number(&report, "processes"), 4);
    run::opened_and_closed(&report, 5.0);
    assert_eq!(redis.keys(LASTING), Vec::<String>::new());
}

#[test]
fn a_limit_above_the_ceiling_comes_down_for_all() {
    let redis = Redis::start();
    let arguments =
        ["--processes", "3", "--seconds", "2", "--ceiling", "4", "--initial", "16", "--cooldown", "200ms"];
    let report = report(&[&["--store", &redis.url(), "--workers", "24"], &arguments[..]].concat());
    assert!(number(&report, "throttled") > 0, "{report}");
    assert!(number(&report, "limit_min") <= 4, "{report}");
    assert_eq!((number(&report, "limit_first"), number(&report, "provider_max_in_flight")), (16, 4));
}

#[test]
fn a_change_of_the_ceiling_is_followed_by_all() {
    let redis = Redis::start();
    let changes = ["--ceiling", "12", "--initial", "12", "--change-ceiling", "1500ms:4"];
    let more = ["--store", &redis.url(), "--processes", "2", "--seconds", "3", "--cooldown", "100ms"];
    let report = report(&[&changes[..], &more, &["--latency", "20ms"]].concat());
    assert!(number(&report, "throttled") > 0, "{report}");
    assert!(number(&report, "limit_min") <= 6, "{report}");
}

#[test]
fn demos_on_one_redis_do_not_meet() {
    let redis = Redis::start();
    // Policies that differ would be refused under one id.
    let one = Running::start(&redis, &["--seconds", "6", "--window", "100ms", "--latency", "20ms"]);
    let two =
        Running::start(&redis, &["--seconds", "2", "--window", "5s", "--latency", "20ms", "--initial", "3"]);
    assert_eq!(redis.keys(LASTING).len(), 2);
    let (two, one) = (checked(&two.finish()), checked(&one.finish()));
    assert!(number(&one, "limit_max") > 10, "{one}");
    assert_eq!((number(&two, "limit_max"), number(&two, "limit_min")), (3, 3), "{two}");
    assert_eq!(redis.keys(LASTING), Vec::<String>::new());
}

#[test]
fn a_killed_process_stops_nobody_and_its_slots_come_back() {
    let redis = Redis::start();
    // Calls of a second on average, and a worker for each slot: every process holds some all the time.
    let slow = ["--processes", "4", "--seconds", "4", "--latency", "1s", "--workers", "8", "--initial", "8"];
    let demo = Running::start(&redis, &slow);
    signal("-KILL", &demo.pids[1]);
    let ran = demo.finish();
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("error: 1 of 4 processes ended early"), "{}", ran.stderr);
    assert!(ran.stderr.contains("signal: 9"), "{}", ran.stderr);
    let report = parsed(&ran);
    assert_eq!((number(&report, "processes"), number(&report, "processes_lost")), (4, 1));
    assert_eq!((number(&report, "over_admission"), number(&report, "leases_left")), (0, 0), "{report}");
    assert_eq!(number(&report, "seconds"), 4);
    // Six workers went on after the kill, each with a call of 1.5 s at most.
    assert!(number(&report, "ok") >= 6, "{report}");
    assert_eq!(redis.keys(LASTING), Vec::<String>::new());
}

#[test]
fn a_process_that_is_suspended_past_its_ttl_is_never_taken_for_over_admission() {
    for breaker in [&[][..], &["--breaker", "--outage-at", "9s", "--outage-for", "500ms"]] {
        let redis = Redis::start();
        let more = ["--processes", "3", "--seconds", "12", "--latency", "100ms", "--workers", "30"];
        let mut demo = Running::start(&redis, &[&more[..], breaker].concat());
        signal("-STOP", &demo.pids[1]);
        // Its leases end after 5 s, and the others take them.
        demo.until("t=8s ");
        signal("-CONT", &demo.pids[1]);
        let report = checked(&demo.finish());
        assert_eq!((number(&report, "over_admission"), number(&report, "leases_left")), (0, 0), "{report}");
        assert!(number(&report, "provider_max_in_flight") <= 20, "{report}");
    }
}

#[test]
fn without_processes_it_is_over() {
    let redis = Redis::start();
    let demo = Running::start(&redis, &["--processes", "2", "--seconds", "3000"]);
    for pid in &demo.pids {
        signal("-KILL", pid);
    }
    let ran = demo.finish();
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("error: 2 of 2 processes ended early"), "{}", ran.stderr);
    let report = parsed(&ran);
    assert!(report["seconds"].as_f64().is_some_and(|seconds| seconds < 100.0), "{report}");
    assert_eq!((number(&report, "processes_lost"), number(&report, "leases_left")), (2, 0), "{report}");
}

#[test]
fn processes_end_with_the_one_that_started_them() {
    let redis = Redis::start();
    let mut demo = Running::start(&redis, &["--processes", "3", "--seconds", "3000"]);
    assert!(demo.pids.len() == 3 && !demo.pids.iter().any(|pid| has_ended(pid)));
    demo.child.kill().unwrap();
    demo.child.wait().unwrap();
    until("all processes have ended", || demo.pids.iter().all(|pid| has_ended(pid)));
    // They gave back what they held, and the last one left nothing.
    assert_eq!(redis.keys(LASTING), Vec::<String>::new());
}

#[test]
fn ctrl_c_ends_all_with_the_summary() {
    let redis = Redis::start();
    let demo = Running::start(&redis, &["--processes", "3", "--seconds", "3000"]);
    let pids = demo.pids.clone();
    signal("-INT", &demo.child.id().to_string());
    let ran = demo.finish();
    assert_eq!(ran.code, Some(130), "{}", ran.stderr);
    let report = checked(&ran);
    assert!(report["seconds"].as_f64().is_some_and(|seconds| (0.9..60.0).contains(&seconds)), "{report}");
    assert!(pids.len() == 3 && pids.iter().all(|pid| has_ended(pid)));
    assert_eq!(redis.keys(LASTING), Vec::<String>::new());
}

#[test]
fn a_store_that_dies_is_said_so() {
    for json in [true, false] {
        let mut redis = Redis::start();
        let ran = if json {
            let demo = Running::start(&redis, &["--processes", "2", "--seconds", "3"]);
            redis.end();
            demo.finish()
        } else {
            let mut child = start(&["--store", &redis.url(), "--processes", "2", "--seconds", "3"]);
            let mut out = BufReader::new(child.stdout.as_mut().unwrap());
            let mut line = String::new();
            while !line.starts_with("t=1s ") {
                line.clear();
                assert!(out.read_line(&mut line).unwrap() > 0);
            }
            redis.end();
            run::finish(child)
        };
        assert_eq!(ran.code, Some(1), "{}\n{}", ran.stdout, ran.stderr);
        assert!(ran.stderr.contains("error: the store does not say what it still holds"), "{}", ran.stderr);
        if json {
            let report = parsed(&ran);
            assert!(report["leases_left"].is_null() && number(&report, "store_away") > 0, "{report}");
            assert_eq!((number(&report, "over_admission"), number(&report, "seconds")), (0, 3), "{report}");
            assert!(number(&report, "ok") > 0, "{report}");
        } else {
            assert!(ran.stdout.contains("leases left      unknown"), "{}", ran.stdout);
            assert!(ran.stdout.contains("times the store did not answer a worker"), "{}", ran.stdout);
        }
    }
}

#[test]
fn a_store_that_comes_back_empty_is_used_again() {
    let mut redis = Redis::start();
    let arguments = ["--processes", "2", "--seconds", "8", "--latency", "20ms"];
    let mut demo = Running::start(&redis, &arguments);
    redis.end();
    // Until nothing is held, so that a limit that is seeded anew cannot be exceeded by leases from before.
    demo.until(" in_flight=0 ");
    redis.begin();
    until("the fleet is back", || !redis.keys(LASTING).is_empty());
    let ran = demo.finish();
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.stdout, ran.stderr);
    let report = parsed(&ran);
    assert_eq!((number(&report, "leases_left"), number(&report, "over_admission")), (0, 0), "{report}");
    assert!(number(&report, "store_away") > 0, "{report}");
    assert_eq!(redis.keys(LASTING), Vec::<String>::new());
}

#[test]
fn a_store_that_cannot_be_used_is_said_in_one_line_with_what_to_do() {
    let guarded = Redis::guarded("a-password");
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let other = TcpListener::bind("127.0.0.1:0").unwrap();
    let answers = other.local_addr().unwrap();
    std::thread::spawn(move || other.incoming().flatten().for_each(no_redis));
    let wrong = guarded.url().replace("//", "//:another@");
    let cases = [
        (format!("redis://{nobody}"), "refused", "is a server running there?"),
        (wrong, "WRONGPASS", "check the user and password of the URL"),
        (guarded.url(), "NOAUTH", "check the user and password of the URL"),
        (format!("redis://{answers}"), &*answers.to_string(), "is it a Redis that answers there?"),
    ];
    for (url, what, advice) in cases {
        let ran = run(&["--store", &url, "--processes", "4"]);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), ""), "{url}: {}", ran.stderr);
        assert_eq!(ran.stderr.lines().count(), 1, "{url}: {}", ran.stderr);
        for part in ["error: ", what, advice] {
            assert!(ran.stderr.contains(part), "{url} without {part}: {}", ran.stderr);
        }
        assert!(!ran.stderr.contains("another"), "{}", ran.stderr);
    }
}

/// Answers as something else does.
fn no_redis(mut stream: TcpStream) {
    let _ = stream.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n");
}

#[test]
fn the_login_of_the_url_is_used_by_every_process() {
    let redis = Redis::guarded("a-password");
    let url = redis.url().replace("//", "//:a-password@");
    let report = report(&["--store", &url, "--processes", "2", "--seconds", "1"]);
    assert_eq!(number(&report, "processes"), 2);
}

#[test]
fn a_process_of_the_fleet_is_not_for_people() {
    let output = Command::new(env!("CARGO_BIN_EXE_tidegate"))
        .arg("demo-worker")
        .stdin(std::process::Stdio::null())
        .output()
        .unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(1), &b""[..]));
    assert!(String::from_utf8_lossy(&output.stderr).contains("tidegate demo"));
}
