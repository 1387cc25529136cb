//! How the three growths do against a hidden ceiling: an hour of virtual time for each, as Markdown tables on stdout.
//!
//! ```console
//! $ cargo run --release -p tidegate-sim --example controllers
//! $ cargo run --release -p tidegate-sim --example controllers -- --quick
//! ```
//!
//! 200 workers in 4 processes call again at once; a call takes 50 to 200 ms, a 429 takes 5 ms. The ceiling is 40; in the
//! runs with a change it drops to 12 after 20 minutes and rises to 40 again after 40. Each figure is the median of all
//! seeds, with the least and the most in brackets where they differ.

use std::{
    error::Error,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use tidegate::{Aimd, Growth, Invalid};
use tidegate_sim::{Report, Simulation, SimulationBuilder};

/// The ceiling, and what it drops to.
const CEILING: (u32, u32) = (40, 12);

const GROWTHS: [(&str, Growth); 3] =
    [("aimd", Growth::Additive), ("slow-start", Growth::SlowStart), ("probe", Growth::Probe)];

/// A provider, and what is told to the controller that has to do with it.
struct Provider {
    name: &'static str,
    release_delay: Duration,
    unrelated_throttles: f64,
    tolerance: f64,
}

const fn late(name: &'static str, ms: u64, tolerance: f64) -> Provider {
    Provider { name, release_delay: Duration::from_millis(ms), unrelated_throttles: 0.0, tolerance }
}

const fn noisy(name: &'static str, tolerance: f64) -> Provider {
    Provider { name, release_delay: Duration::ZERO, unrelated_throttles: 0.001, tolerance }
}

const PROVIDERS: [Provider; 7] = [
    late("frees its place before the last byte", 0, 0.0),
    late("2 ms late", 2, 0.0),
    late("10 ms late", 10, 0.0),
    noisy("0.1 % throttled for other reasons", 0.0),
    late("2 ms late, tolerance 0.01", 2, 0.01),
    late("10 ms late, tolerance 0.01", 10, 0.01),
    noisy("0.1 % for other reasons, tolerance 0.01", 0.01),
];

/// How much is run.
struct Scale {
    hour: Duration,
    seeds: u64,
    /// How many moments of a rise are tried.
    rises: u32,
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut scale = Scale { hour: Duration::from_secs(3_600), seeds: 10, rises: 30 };
    for argument in std::env::args().skip(1) {
        match argument.as_str() {
            "--quick" => scale = Scale { hour: Duration::from_secs(600), seeds: 2, rises: 6 },
            other => return Err(format!("{other}: is not allowed: --quick, or nothing").into()),
        }
    }
    let begun = Instant::now();
    controllers(&scale)?;
    rises(&scale)?;
    eprintln!("{:.0} s", begun.elapsed().as_secs_f64());
    Ok(())
}

/// What every run has in common.
fn fleet(growth: Growth, seed: u64, hour: Duration) -> SimulationBuilder {
    Simulation::builder(CEILING.0).workers(200).processes(4).growth(growth).seed(seed).duration(hour)
}

/// The table of goodput and of changes; what is known of a provider is printed as soon as it is.
fn controllers(scale: &Scale) -> Result<(), Box<dyn Error>> {
    println!(
        "| provider | growth | goodput | calls throttled | 90 % after | drop followed after | throttled in the drop \
         | rise followed after | goodput after the rise |\n|---|---|---|---|---|---|---|---|---|"
    );
    let seeds = usize::try_from(scale.seeds)?;
    for provider in &PROVIDERS {
        let reports = run_all(&runs_against(provider, scale)?)?;
        for ((growth, _), reports) in GROWTHS.iter().zip(reports.chunks(2 * seeds)) {
            let (constant, changed) = reports.split_at(seeds);
            println!(
                "| {} | {growth} | {} | {} | {} | {} | {} | {} | {} |",
                provider.name,
                spread(constant, |report| Some(report.goodput_ratio * 100.0), 1, " %"),
                spread(constant, |report| Some(report.throttled_ratio * 100.0), 3, " %"),
                spread(constant, |report| seconds(report.reached_after), 0, " s"),
                spread(changed, |report| seconds(report.changes.first()?.followed_after), 1, " s"),
                spread(changed, throttled_in_the_drop, 3, " %"),
                spread(changed, |report| seconds(report.changes.last()?.followed_after), 0, " s"),
                spread(changed, |report| Some(report.changes.last()?.goodput_ratio * 100.0), 1, " %"),
            );
        }
    }
    println!();
    Ok(())
}

/// For each growth, every seed under a constant ceiling, and then under one that changes.
fn runs_against(provider: &Provider, scale: &Scale) -> Result<Vec<Simulation>, Invalid> {
    let mut runs = Vec::new();
    for (_, growth) in GROWTHS {
        for changes in [false, true] {
            for seed in 0..scale.seeds {
                let run = fleet(growth, seed, scale.hour)
                    .release_delay(provider.release_delay)
                    .unrelated_throttles(provider.unrelated_throttles)
                    .aimd(Aimd::new().tolerance(provider.tolerance));
                runs.push(if changes { dropped(run, scale.hour, scale.hour * 2 / 3) } else { run }.build()?);
            }
        }
    }
    Ok(runs)
}

/// The table of how long a rise takes to be followed, whenever it comes.
fn rises(scale: &Scale) -> Result<(), Box<dyn Error>> {
    println!("| growth | a rise from 12 to 40, at moments spread over 150 s, is followed after |\n|---|---|");
    for (name, growth) in GROWTHS {
        // Over more than one rest of `probe`, which is 24 windows of 5 s and the way back to it.
        let moment = |step| scale.hour * 2 / 3 + Duration::from_secs(150) * step / scale.rises;
        let runs = (0..scale.rises)
            .map(|step| dropped(fleet(growth, step.into(), scale.hour), scale.hour, moment(step)).build());
        let reports = run_all(&runs.collect::<Result<Vec<_>, _>>()?)?;
        println!(
            "| {name} | {} |",
            spread(&reports, |report| seconds(report.changes.last()?.followed_after), 0, " s")
        );
    }
    Ok(())
}

/// The ceiling drops after a third of the hour, and rises again.
fn dropped(run: SimulationBuilder, hour: Duration, rise: Duration) -> SimulationBuilder {
    run.ceiling_at(hour / 3, CEILING.1).ceiling_at(rise, CEILING.0)
}

/// Calls throttled while the ceiling was low, in hundredths of all calls of the hour.
fn throttled_in_the_drop(report: &Report) -> Option<f64> {
    let throttled = u32::try_from(report.changes.first()?.throttled).ok()?;
    let calls = u32::try_from(report.calls).ok()?;
    Some(f64::from(throttled) / f64::from(calls) * 100.0)
}

fn seconds(duration: Option<Duration>) -> Option<f64> {
    duration.map(|duration| duration.as_secs_f64())
}

/// The median, and the least and the most where they differ.
fn spread(reports: &[Report], of: impl Fn(&Report) -> Option<f64>, digits: usize, unit: &str) -> String {
    let found: Vec<Option<f64>> = reports.iter().map(of).collect();
    let never = found.iter().filter(|figure| figure.is_none()).count();
    let mut found: Vec<f64> = found.into_iter().flatten().collect();
    found.sort_unstable_by(f64::total_cmp);
    let show = |figure: &f64| format!("{figure:.digits$}");
    let (Some(least), Some(most)) = (found.first().map(show), found.last().map(show)) else {
        return "never".to_owned();
    };
    let middle = match (found.get((found.len() - 1) / 2), found.get(found.len() / 2)) {
        (Some(below), Some(above)) => show(&((below + above) / 2.0)),
        _ => least.clone(),
    };
    let range = if least == most { String::new() } else { format!(" ({least} to {most})") };
    let never = if never == 0 { String::new() } else { format!("; never in {never} of {}", reports.len()) };
    format!("{middle}{unit}{range}{never}")
}

/// Runs them all, as many at once as there are cores; each is on one thread and knows nothing of the others.
fn run_all(runs: &[Simulation]) -> Result<Vec<Report>, Box<dyn Error>> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let cores = thread::available_parallelism()?.get();
    thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(run) = runs.get(index) else { return };
                    let report = run.run();
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((index, report));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(index, _)| *index);
    let mut reports = Vec::with_capacity(done.len());
    for (index, report) in done {
        let report = report.map_err(|error| format!("run {index}: {error}"))?;
        if report.over_admission > 0 || report.leases_left > 0 {
            return Err(format!("run {index}: the bound is broken, or leases are lost: {report:?}").into());
        }
        reports.push(report);
    }
    Ok(reports)
}
