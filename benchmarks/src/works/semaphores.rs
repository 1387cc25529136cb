//! Semaphores on Redis: alone, together, handed over, and held.

use std::collections::HashMap;

use anyhow::Result;
use serde::Deserialize;
use tidegate_fleet::servers::redis::{Options, Redis};

use super::Suite;
use crate::{
    contender::{Contender, Counted, Spans, together},
    figure::{Bound, Report},
    stats::{float, jain, median, percentile},
};

/// How long one holds, and how long it waits before it asks again, in each round: no multiples of each other, since a peer
/// that polls would fall into step with them.
const HAND_OFFS: [(u32, u32); 5] = [(33, 21), (30, 27), (37, 19), (31, 23), (35, 26)];

#[derive(Deserialize)]
struct Latencies {
    latencies_ns: Vec<f64>,
}

fn p50_us(answer: Latencies) -> f64 {
    median(&answer.latencies_ns) / 1_000.0
}

/// One acquire at a time with nothing else under way, beside a bare script; then where the time of it goes.
pub(super) fn alone(suite: &Suite<'_>, report: &mut Report) -> Result<()> {
    let pinned = Redis::standalone(&Options::new())?;
    let core =
        std::thread::available_parallelism().map_or(0, |cores| u32::try_from(cores.get()).unwrap_or(1) - 1);
    if let Some(pid) = pinned.pid() {
        std::process::Command::new("taskset").args(["-cp", &core.to_string(), &pid.to_string()]).output()?;
    }
    for (server, core, name, most) in [
        (suite.server, None, "acquire, one at a time", 1.25),
        (&pinned, Some(core), "the same on one core", 2.5),
    ] {
        let (own, bare) = (Contender::built("tidegate")?.on(core), Contender::built("floor-bare")?.on(core));
        let options = || suite.options_at(&server.url(), "latency", &[("seconds", &suite.scale.seconds)]);
        let all = suite.alternate(&[(&own, &options), (&bare, &options)], p50_us)?;
        let [own, bare] = all.as_slice() else { return Ok(()) };
        report.ratio("T1", format!("{name}, p50 over a bare EVALSHA"), Bound::AtMost(most), own, bare);
        report.measured(format!("{name}: p50"), "tidegate", "us", own);
        report.measured(format!("{name}: p50"), "bare EVALSHA", "us", bare);
        profile(suite, report, server, name, (median(own), median(bare)))?;
    }
    Ok(())
}

/// Where the time of a lone acquire goes: what the server says that it took for the call, what a bare call takes beside
/// its script, and the rest, which is this process.
fn profile(
    suite: &Suite<'_>,
    report: &mut Report,
    server: &Redis,
    name: &str,
    (own, bare): (f64, f64),
) -> Result<()> {
    let script = |contender: &'static str| -> Result<f64> {
        server.command(&["CONFIG", "RESETSTAT"])?;
        let options = suite.options_at(&server.url(), "latency", &[("seconds", &suite.scale.seconds)]);
        let _: Latencies = Contender::built(contender)?.run(&options)?;
        Ok(server_micros(server)?.0)
    };
    let (own_script, bare_script) = (script("tidegate")?, script("floor-bare")?);
    let wire = bare - bare_script;
    let work = format!("where {name} goes");
    report.measured(&work, "script", "us", &[own_script]);
    report.measured(&work, "wire", "us", &[wire]);
    report.measured(&work, "client", "us", &[own - own_script - wire]);
    Ok(())
}

/// Microseconds of the server for each call of a script or function, and how many there were.
pub(super) fn server_micros(server: &Redis) -> Result<(f64, f64)> {
    let mut connection = server.connection()?;
    let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut connection)?;
    let (mut calls, mut micros) = (0.0, 0.0);
    for line in stats
        .lines()
        .filter(|line| ["cmdstat_fcall:", "cmdstat_evalsha:"].iter().any(|name| line.starts_with(name)))
    {
        let part = |name: &str| -> f64 {
            let value = line.split([':', ',']).find_map(|part| part.strip_prefix(name));
            value.and_then(|value| value.parse().ok()).unwrap_or(0.0)
        };
        calls += part("calls=");
        micros += part("usec=");
    }
    Ok((micros / f64::max(calls, 1.0), calls))
}

/// Pairs of acquire and release: one at a time, 64 and 512 tasks, and four processes.
pub(super) fn pairs(suite: &Suite<'_>, report: &mut Report) -> Result<()> {
    let built = ["tidegate", "floor-two-calls", "distributed-lock"].map(Contender::built);
    let [own, floor, lock] = built;
    let (own, floor, lock) = (own?, floor?, lock?);
    let node = [&suite.node.redis_semaphore, &suite.node.bottleneck];
    let contenders: Vec<&Contender> =
        [&own, &floor].into_iter().chain(node.into_iter().flatten()).chain([&lock]).collect();
    let mut three = Vec::new();
    for tasks in [1, 64, 512] {
        let limit = tasks.max(64);
        let options = || {
            suite.options("pairs", &[("tasks", &tasks), ("limit", &limit), ("seconds", &suite.scale.seconds)])
        };
        let turns: Vec<(&Contender, &dyn Fn() -> Vec<String>)> =
            contenders.iter().map(|contender| (*contender, &options as &dyn Fn() -> Vec<String>)).collect();
        let all = suite.alternate(&turns, |counted: Counted| counted.per_second())?;
        let of: HashMap<&str, &Vec<f64>> =
            contenders.iter().map(|contender| contender.name).zip(&all).collect();
        let work = format!("pairs, {tasks} tasks under a limit of {limit}");
        for (contender, rounds) in contenders.iter().zip(&all) {
            report.measured(&work, contender.name, "per s", rounds);
        }
        let own = of["tidegate"];
        let mut against = |id, peer: &str, least| {
            if let Some(peers) = of.get(peer) {
                report.ratio(id, format!("{work}, over {peer}"), Bound::AtLeast(least), own, peers);
            }
        };
        match tasks {
            1 => against("T2", "redis-semaphore", 1.8),
            64 => {
                against("T3", "redis-semaphore", 2.7);
                against("T3", "floor-two-calls", 1.4);
                three.clone_from(own);
            }
            _ => against("T4", "floor-two-calls", 1.6),
        }
    }
    four_processes(suite, report, &own, &three)
}

/// Four processes with 64 tasks each on one id: as fast as one, and never more than the limit.
fn four_processes(suite: &Suite<'_>, report: &mut Report, own: &Contender, three: &[f64]) -> Result<()> {
    let mut rounds = Vec::new();
    for _ in 0..suite.scale.rounds {
        let options =
            suite.options("pairs", &[("tasks", &64), ("limit", &256), ("seconds", &suite.scale.seconds)]);
        let all: Vec<Counted> = together(&vec![(own, options); 4])?;
        rounds.push(all.iter().map(Counted::per_second).sum());
    }
    let work = "pairs, 4 processes of 64 tasks, one id";
    report.measured(work, own.name, "per s", &rounds);
    report.ratio("T5", format!("{work}, over one process of 64"), Bound::AtLeast(1.0), &rounds, three);
    // Apart from what is timed, since writing it down takes its time.
    let limit = 64;
    let options = suite.options("spans", &[("tasks", &64), ("limit", &limit), ("seconds", &1)]);
    let all: Vec<Spans> = together(&vec![(own, options); 4])?;
    let most = most_at_once(all.iter().flat_map(|spans| &spans.spans));
    let over = float(u64::try_from((most - limit).max(0))?);
    report.figure(
        "T5",
        "leases over the limit at once, 4 processes of 64 tasks under 64",
        "leases",
        Bound::AtMost(0.0),
        &[over],
    );
    Ok(())
}

fn most_at_once<'a>(spans: impl Iterator<Item = &'a (u32, i64, i64, i64)>) -> i64 {
    let mut edges: Vec<(i64, i64)> =
        spans.flat_map(|(_, _, granted, released)| [(*granted, 1), (*released, -1)]).collect();
    // One that ends at a moment frees its place for one that begins at it.
    edges.sort_unstable();
    let (mut now, mut most) = (0, 0);
    for (_, change) in edges {
        now += change;
        most = most.max(now);
    }
    most
}

#[derive(Deserialize)]
struct Moments {
    moments: Vec<f64>,
}

/// From a release in one process to the grant in another, at a limit of 1, beside a publish that another process hears.
pub(super) fn hand_off(suite: &Suite<'_>, report: &mut Report) -> Result<()> {
    let (own, floor) = (Contender::built("tidegate")?, Contender::built("floor-publish")?);
    let mut contenders = vec![&own];
    contenders.extend([&suite.node.bottleneck, &suite.node.redis_semaphore].into_iter().flatten());
    let mut published = (Vec::new(), Vec::new());
    let mut handed = vec![(Vec::new(), Vec::new()); contenders.len()];
    let rounds = suite.scale.rounds.min(5);
    for (hold, think) in HAND_OFFS.into_iter().take(usize::try_from(rounds)?) {
        let listens = suite.options("publish", &[("role", &"listener"), ("seconds", &suite.scale.long)]);
        let mut sends = listens.clone();
        for word in &mut sends {
            if word == "listener" {
                *word = "sender".to_owned();
            }
        }
        let all: Vec<Moments> = together(&[(&floor, listens), (&floor, sends)])?;
        let [heard, sent] = all.as_slice() else { return Ok(()) };
        let times = follows(&sent.moments, &heard.moments);
        published.0.push(percentile(&times, 0.5));
        published.1.push(percentile(&times, 0.99));
        for (contender, (p50, p99)) in contenders.iter().zip(&mut handed) {
            let options = suite.options(
                "spans",
                &[
                    ("tasks", &1),
                    ("limit", &1),
                    ("hold-ms", &hold),
                    ("think-ms", &think),
                    ("seconds", &suite.scale.long),
                ],
            );
            let both: Vec<Spans> = together(&vec![(*contender, options); 2])?;
            let times = hand_offs(&both);
            p50.push(percentile(&times, 0.5));
            p99.push(percentile(&times, 0.99));
        }
    }
    let work = "hand-off between two processes at a limit of 1";
    report.measured(format!("{work}: p50"), "publish alone", "us", &published.0);
    report.measured(format!("{work}: p99"), "publish alone", "us", &published.1);
    for (contender, (p50, p99)) in contenders.iter().zip(&handed) {
        report.measured(format!("{work}: p50"), contender.name, "us", p50);
        report.measured(format!("{work}: p99"), contender.name, "us", p99);
    }
    report.ratio("T6", format!("{work}, p50 over a publish"), Bound::AtMost(3.0), &handed[0].0, &published.0);
    if suite.node.bottleneck.is_some() {
        let what = format!("{work}, p99 over the p50 of bottleneck");
        report.ratio("T6", what, Bound::AtMost(1.0), &handed[0].1, &handed[1].0);
    }
    Ok(())
}

/// From each moment to the first of the others after it, in microseconds.
fn follows(sent: &[f64], heard: &[f64]) -> Vec<f64> {
    let times = sent.iter().filter_map(|sent| {
        let heard = heard.iter().find(|heard| *heard >= sent)?;
        Some((heard - sent) / 1_000.0)
    });
    times.collect()
}

/// From each release of one process to the next grant, where that is of the other and it waited by then; in
/// microseconds.
fn hand_offs(both: &[Spans]) -> Vec<f64> {
    let mut all: Vec<(usize, i64, i64, i64)> = Vec::new();
    for (process, spans) in both.iter().enumerate() {
        all.extend(
            spans.spans.iter().map(|(_, asked, granted, released)| (process, *asked, *granted, *released)),
        );
    }
    all.sort_unstable_by_key(|(_, _, granted, _)| *granted);
    let pairs = all.windows(2).filter_map(|pair| {
        let [(one, _, _, released), (other, asked, granted, _)] = pair else { return None };
        // A span of hundreds of microseconds is told exactly.
        #[allow(clippy::cast_precision_loss)]
        let time = (granted - released) as f64 / 1_000.0;
        (one != other && asked < released).then_some(time)
    });
    pairs.collect()
}

/// What came of tasks that hold for a while.
struct Held {
    used: f64,
    p99_ms: f64,
    jain: f64,
}

fn held_by(all: &[Spans], limit: u32) -> Held {
    let seconds = all.iter().map(|spans| spans.seconds).fold(0.0, f64::max);
    let (mut held, mut waits, mut served) = (0.0, Vec::new(), HashMap::new());
    // Whole nanoseconds of a few seconds are told exactly.
    #[allow(clippy::cast_precision_loss)]
    for (process, spans) in all.iter().enumerate() {
        for (task, asked, granted, released) in &spans.spans {
            held += (released - granted) as f64 / 1e9;
            waits.push((granted - asked) as f64 / 1e6);
            *served.entry((process, task)).or_insert(0.0) += 1.0;
        }
    }
    let served: Vec<f64> = served.into_values().collect();
    Held { used: held / (seconds * f64::from(limit)), p99_ms: percentile(&waits, 0.99), jain: jain(&served) }
}

/// Tasks that hold for a while: how much of the limit is in use, how long the longest wait, how alike they fare.
pub(super) fn held(suite: &Suite<'_>, report: &mut Report) -> Result<()> {
    let own = Contender::built("tidegate")?;
    let mut contenders = vec![&own];
    contenders.extend([&suite.node.redis_semaphore, &suite.node.bottleneck].into_iter().flatten());
    let shapes = [("T7", 1, 128, 64, 5), ("T8", 4, 4, 4, 20)];
    for (id, processes, tasks, limit, hold) in shapes {
        // A process of bottleneck that ends disturbs the others, who then fail.
        contenders.retain(|contender| processes == 1 || contender.name != "bottleneck");
        let mut rounds: Vec<Vec<Held>> = contenders.iter().map(|_| Vec::new()).collect();
        for _ in 0..suite.scale.rounds.min(5) {
            for (contender, rounds) in contenders.iter().zip(&mut rounds) {
                let options = suite.options(
                    "spans",
                    &[
                        ("tasks", &tasks),
                        ("limit", &limit),
                        ("hold-ms", &hold),
                        ("seconds", &(suite.scale.seconds * 4.0)),
                    ],
                );
                let all: Vec<Spans> = together(&vec![(*contender, options); processes])?;
                rounds.push(held_by(&all, limit));
            }
        }
        let work = format!("{tasks} tasks in {processes} processes, limit {limit}, hold {hold} ms");
        for (contender, rounds) in contenders.iter().zip(&rounds) {
            let of = |part: fn(&Held) -> f64| rounds.iter().map(part).collect::<Vec<f64>>();
            report.measured(format!("{work}: slots in use"), contender.name, "of 1", &of(|held| held.used));
            report.measured(format!("{work}: wait p99"), contender.name, "ms", &of(|held| held.p99_ms));
            report.measured(format!("{work}: Jain's index"), contender.name, "of 1", &of(|held| held.jain));
        }
        let of = |part: fn(&Held) -> f64| rounds[0].iter().map(part).collect::<Vec<f64>>();
        let used = of(|held| held.used);
        if id == "T7" {
            report.figure(id, format!("{work}: slots in use"), "of 1", Bound::AtLeast(0.93), &used);
        } else {
            report.figure(id, format!("{work}: slots in use"), "of 1", Bound::AtLeast(0.97), &used);
            report.figure(
                id,
                format!("{work}: wait p99"),
                "ms",
                Bound::AtMost(100.0),
                &of(|held| held.p99_ms),
            );
            report.figure(
                id,
                format!("{work}: Jain's index"),
                "of 1",
                Bound::AtLeast(0.98),
                &of(|held| held.jain),
            );
        }
    }
    Ok(())
}
