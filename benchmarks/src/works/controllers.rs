//! Controllers against a hidden ceiling, simulated: an hour of virtual time for each seed.

use std::{thread, time::Duration};

use anyhow::{Result, anyhow, ensure};
use tidegate::Growth;
use tidegate_sim::{Report as Outcome, Simulation, SimulationBuilder};

use super::Suite;
use crate::{
    figure::{Bound, Report},
    stats::float,
};

const HOUR: Duration = Duration::from_secs(3_600);

fn fleet(growth: Growth, seed: u64) -> SimulationBuilder {
    Simulation::builder(40).workers(200).processes(4).growth(growth).seed(seed).duration(HOUR)
}

/// Runs them on threads of their own, where no runtime is: a simulation has one itself.
fn run_all(simulations: impl Iterator<Item = SimulationBuilder>) -> Result<Vec<Outcome>> {
    let simulations = simulations.map(SimulationBuilder::build).collect::<Result<Vec<_>, _>>()?;
    let cores = thread::available_parallelism()?.get();
    let outcomes = thread::scope(|scope| {
        let shares = simulations.chunks(simulations.len().div_ceil(cores));
        let threads: Vec<_> = shares
            .map(|share| scope.spawn(|| share.iter().map(Simulation::run).collect::<Result<Vec<_>, _>>()))
            .collect();
        let join =
            |thread: thread::ScopedJoinHandle<'_, _>| thread.join().map_err(|_| anyhow!("it panicked"));
        threads.into_iter().map(join).collect::<Result<Vec<_>>>()
    })?;
    let outcomes = outcomes.into_iter().collect::<Result<Vec<_>, _>>()?.concat();
    for outcome in &outcomes {
        ensure!(outcome.over_admission == 0 && outcome.leases_left == 0, "the bound is broken: {outcome:?}");
    }
    Ok(outcomes)
}

pub(super) fn all(suite: &Suite<'_>, report: &mut Report) -> Result<()> {
    let seeds = 0..suite.scale.seeds;
    let steady = |growth| run_all(seeds.clone().map(move |seed| fleet(growth, seed)));
    let percent = |outcomes: &[Outcome], of: fn(&Outcome) -> f64| {
        outcomes.iter().map(|outcome| of(outcome) * 100.0).collect::<Vec<f64>>()
    };
    let probe = steady(Growth::Probe)?;
    let aimd = steady(Growth::Additive)?;
    report.figure(
        "T16",
        "probe: goodput of the ceiling",
        "%",
        Bound::AtLeast(95.0),
        &percent(&probe, |o| o.goodput_ratio),
    );
    report.figure(
        "T16",
        "probe: calls throttled",
        "%",
        Bound::AtMost(0.05),
        &percent(&probe, |o| o.throttled_ratio),
    );
    report.figure(
        "T16",
        "aimd: goodput of the ceiling",
        "%",
        Bound::AtLeast(73.0),
        &percent(&aimd, |o| o.goodput_ratio),
    );
    let changed = |seed| fleet(Growth::Probe, seed).ceiling_at(HOUR / 3, 12).ceiling_at(HOUR * 2 / 3, 40);
    let changed = run_all(seeds.map(changed))?;
    let never = HOUR.as_secs_f64();
    let followed = |which: usize| {
        let after =
            changed.iter().map(|outcome| outcome.changes.get(which).and_then(|change| change.followed_after));
        after.map(|after| after.map_or(never, |after| after.as_secs_f64())).collect::<Vec<f64>>()
    };
    report.figure(
        "T16",
        "probe: a drop from 40 to 12 is followed after",
        "s",
        Bound::AtMost(15.0),
        &followed(0),
    );
    let throttled = changed
        .iter()
        .filter_map(|outcome| Some(float(outcome.changes.first()?.throttled) / float(outcome.calls) * 100.0));
    let throttled: Vec<f64> = throttled.collect();
    report.figure(
        "T16",
        "probe: calls of the hour throttled in the drop",
        "%",
        Bound::AtMost(0.5),
        &throttled,
    );
    report.figure(
        "T16",
        "probe: a rise from 12 to 40 is followed after",
        "s",
        Bound::AtMost(45.0),
        &followed(1),
    );
    Ok(())
}
