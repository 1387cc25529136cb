//! Rate admission over Redis: one rule and four, one key and many.

use std::collections::HashMap;

use anyhow::Result;

use super::Suite;
use crate::{
    contender::{Contender, Counted, together},
    figure::{Bound, Report},
};

#[derive(serde::Deserialize)]
struct Exact {
    count: f64,
}

/// Admissions by 64 tasks: one rule, four rules in one step, and 100,000 keys; then whether they are exact.
pub(super) fn admissions(suite: &Suite<'_>, report: &mut Report) -> Result<()> {
    let own = Contender::built("tidegate")?;
    let throttled = Contender::built("throttled")?;
    let mut limitador = Vec::new();
    if tidegate_benchmarks_peers::HAS_LIMITADOR {
        limitador = vec![Contender::built("limitador")?, Contender::built("limitador-cached")?];
    } else {
        report.leave_out("limitador: it was not built, since RocksDB or libclang is missing");
    }
    let node = suite.node.rate_limiter_flexible.as_ref();
    let mut one = Vec::new();
    for (tasks, rules, keys) in [(1, 1, 1), (64, 1, 1), (64, 4, 1), (64, 1, 100_000)] {
        let mut contenders = vec![&own];
        if rules == 1 {
            contenders.push(&throttled);
        }
        // The cache of limitador stops for good with many keys.
        let able = |peer: &&Contender| keys == 1 || peer.name != "limitador-cached";
        contenders.extend(node.into_iter().chain(&limitador).filter(able));
        let options = || {
            suite.options(
                "rate",
                &[("tasks", &tasks), ("rules", &rules), ("keys", &keys), ("seconds", &suite.scale.seconds)],
            )
        };
        let turns: Vec<(&Contender, &dyn Fn() -> Vec<String>)> =
            contenders.iter().map(|contender| (*contender, &options as &dyn Fn() -> Vec<String>)).collect();
        let all = suite.alternate(&turns, |counted: Counted| counted.per_second())?;
        let of: HashMap<&str, &Vec<f64>> =
            contenders.iter().map(|contender| contender.name).zip(&all).collect();
        let work = format!("admissions, {tasks} tasks, {rules} rules, {keys} keys");
        for (contender, rounds) in contenders.iter().zip(&all) {
            report.measured(&work, contender.name, "per s", rounds);
        }
        match (tasks, rules, keys) {
            (64, 1, 1) => {
                one.clone_from(of["throttled"]);
                report.ratio(
                    "T9",
                    format!("{work}, over throttled"),
                    Bound::AtLeast(2.0),
                    of["tidegate"],
                    &one,
                );
            }
            (64, 4, 1) => {
                let what = format!("{work}, over throttled with one rule");
                report.ratio("T9", what, Bound::AtLeast(1.0), of["tidegate"], &one);
            }
            _ => {}
        }
    }
    exact(suite, report, &own)
}

/// Four processes ask for more than a rule admits: how far the sum is from what it admits.
fn exact(suite: &Suite<'_>, report: &mut Report, own: &Contender) -> Result<()> {
    let limit = 10_000;
    let options = suite.options("exact", &[("tasks", &64), ("limit", &limit), ("seconds", &2)]);
    let all: Vec<Exact> = together(&vec![(own, options); 4])?;
    let off = (all.iter().map(|exact| exact.count).sum::<f64>() - f64::from(limit)).abs();
    report.figure(
        "T9",
        "admitted by 4 processes, off what the rule admits",
        "jobs",
        Bound::AtMost(0.0),
        &[off],
    );
    Ok(())
}
