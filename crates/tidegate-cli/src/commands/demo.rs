//! `tidegate demo`: a fleet finds the hidden ceiling of a real HTTP provider, and keeps to it.

mod audit;
mod chart;
mod circuit;
mod crew;
mod fleet;
mod lines;
mod plot;
mod processes;
mod progress;
mod provider;
mod schedule;
mod store;
mod summary;
pub(crate) mod worker;

use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use hyper::Uri;
use tokio::net::TcpStream;
use tokio::time;

use self::circuit::Outage;
use self::fleet::{BreakerSetup, Fleet, Setup};
use self::plot::Picture;
use self::progress::Progress;
use self::provider::Provider;
use self::schedule::Schedule;
use self::store::Place;
use self::summary::{Known, Report};
use crate::args::{DemoArgs, GrowthArg, refuse_demo};
use crate::output::{self, Exit};

/// Workers for each place of the highest ceiling, unless told: more than can ever be served at once.
const WORKERS_PER_PLACE: u32 = 3;
/// Workers against a provider whose ceiling is not known, unless told.
const WORKERS: u32 = 60;
/// What a call takes at most, if the provider is not slower on purpose.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// How long calls under way may take at the end, at most.
const GRACE: Duration = Duration::from_secs(5);

/// Runs the demo to its end, or to Ctrl-C.
///
/// # Errors
///
/// A [`clap::Error`] for options that do not fit together; else what went wrong on the way.
pub(crate) fn run(args: &DemoArgs) -> anyhow::Result<Exit> {
    let plan = Plan::new(args)?;
    // Every call has two ends here. Where the limit of open files cannot be raised, calls will fail and say so.
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("no runtime")?;
    runtime.block_on(plan.carry_out())
}

/// A demo whose options make sense.
struct Plan {
    target: Target,
    store: Place,
    processes: u32,
    setup: Setup,
    plot: Option<PathBuf>,
    json: bool,
}

/// Who is called.
enum Target {
    BuiltIn { schedule: Schedule, latency: Duration, outage: Option<Outage> },
    Url(Uri),
}

impl Plan {
    fn new(args: &DemoArgs) -> Result<Self, clap::Error> {
        let run_for = Duration::from_secs(u64::from(args.seconds));
        let mut changes: Vec<_> =
            args.change_ceiling.iter().map(|change| (change.at, change.ceiling)).collect();
        changes.sort_by_key(|&(at, _)| at);
        for &(at, ceiling) in &changes {
            if at >= run_for {
                let value = format!("{}:{ceiling}", humantime::format_duration(at));
                let allowed =
                    format!("allowed is a moment before the end, which is after {} s", args.seconds);
                return Err(refuse_demo("--change-ceiling <AT:N>", value, allowed));
            }
        }
        if let Some(twice) = changes.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            let at = humantime::format_duration(twice[1].0);
            let value = format!("{at}:{}", twice[1].1);
            let allowed =
                format!("allowed is one change at a moment, and there is one to {} then", twice[0].1);
            return Err(refuse_demo("--change-ceiling <AT:N>", value, allowed));
        }
        let store = Place::read(&args.store).map_err(|invalid| {
            let allowed = format!("{}; or memory", invalid.allowed);
            refuse_demo("--store <STORE>", invalid.given.trim_matches('"'), allowed)
        })?;
        if store == Place::Memory && args.processes > 1 {
            let allowed = "allowed is 1 with --store memory; more processes need a store that they can share, such \
                           as --store redis://127.0.0.1:6379";
            return Err(refuse_demo("--processes <N>", args.processes, allowed));
        }
        if let Some(path) = &args.plot {
            plot::check(path).map_err(|why| refuse_demo("--plot <FILE.svg>", path.display(), why))?;
        }
        let outage = outage(args, run_for)?;
        let schedule = Schedule::new(args.ceiling, changes);
        let (target, workers, slowest) = match &args.url {
            Some(url) => (Target::Url(url.clone()), WORKERS, Duration::ZERO),
            None => {
                let workers = schedule.highest().saturating_mul(WORKERS_PER_PLACE);
                (Target::BuiltIn { schedule, latency: args.latency, outage }, workers, args.latency * 2)
            }
        };
        let workers = args.workers.unwrap_or(workers.max(args.processes));
        if workers < args.processes {
            let allowed = format!("allowed is at most one for each worker, and there are {workers}");
            return Err(refuse_demo("--processes <N>", args.processes, allowed));
        }
        let health = match target {
            Target::BuiltIn { .. } => Some(provider::HEALTH.to_owned()),
            Target::Url(_) => None,
        };
        let setup = Setup {
            breaker: args.breaker.then_some(BreakerSetup { health }),
            workers,
            initial: args.initial,
            growth: args.growth,
            window: args.window,
            cooldown: args.cooldown,
            call_timeout: CALL_TIMEOUT.max(slowest),
            run_for,
        };
        Ok(Self { target, store, processes: args.processes, setup, plot: args.plot.clone(), json: args.json })
    }

    async fn carry_out(self) -> anyhow::Result<Exit> {
        if let Target::Url(url) = &self.target {
            reach(url).await.with_context(|| format!("no connection to {url}"))?;
        }
        let mut fleet = Fleet::open(&self.store, self.processes, &self.setup).await?;
        let start = Instant::now();
        let (provider, url) = match &self.target {
            Target::BuiltIn { schedule, latency, outage } => {
                let provider = Provider::start(schedule.clone(), *latency, *outage, start)
                    .await
                    .context("the provider found no free port of 127.0.0.1")?;
                let url =
                    format!("http://{}/", provider.address()).parse().context("the provider's address")?;
                (Some(provider), url)
            }
            Target::Url(url) => (None, url.clone()),
        };
        let mut progress =
            Progress::open(self.title(), self.setup.run_for, self.schedule().cloned(), self.json);
        progress.introduce(fleet.pids()).context("stdout cannot be written to")?;
        fleet.call(&self.setup, start, &url).await?;

        let shown = watch(&fleet, &mut progress, start, self.setup.run_for).await;
        let lasted = start.elapsed().min(self.setup.run_for);
        if matches!(shown, Ok(Exit::Interrupted)) {
            tokio::spawn(leave_at_once());
        }

        // Whatever happened, all that was started ends first.
        let log = Arc::clone(fleet.log());
        let ended = fleet.end(GRACE).await;
        let counts = match provider {
            Some(provider) => Some(provider.stop().await),
            None => None,
        };
        let exit = shown.context("stdout cannot be written to")?;
        self.tell(exit, lasted, counts, &log, ended?)
    }

    /// Prints the result, then draws the plot.
    fn tell(
        &self,
        exit: Exit,
        lasted: Duration,
        counts: Option<provider::Counts>,
        log: &fleet::Log,
        ended: fleet::Ended,
    ) -> anyhow::Result<Exit> {
        let known = match (&self.target, counts) {
            (Target::BuiltIn { schedule, latency, .. }, Some(counts)) => {
                Some(Known { schedule, latency: *latency, counts })
            }
            _ => None,
        };
        let limits = log.limits();
        let open = log.open(lasted);
        let report = Report::new(self.setup.workers, lasted, known.as_ref(), &limits, ended);
        let text = if self.json {
            serde_json::to_string(&report)?
        } else {
            format!("\n{report}").trim_end().to_owned()
        };
        output::print(&format!("{text}\n")).context("stdout cannot be written to")?;
        if let Some(path) = &self.plot {
            let picture = Picture {
                title: &self.title(),
                span: lasted,
                limits: &limits,
                ceiling: self.schedule(),
                throttles: &log.throttles(),
                open: &open,
            };
            plot::write(path, &picture).with_context(|| format!("the plot {}", path.display()))?;
        }
        match report.fault() {
            Some(fault) => {
                output::note(&format!("error: {fault}"));
                Ok(if exit == Exit::Done { Exit::Failed } else { exit })
            }
            None => Ok(exit),
        }
    }

    fn schedule(&self) -> Option<&Schedule> {
        match &self.target {
            Target::BuiltIn { schedule, .. } => Some(schedule),
            Target::Url(_) => None,
        }
    }

    fn title(&self) -> String {
        let growth = match self.setup.growth {
            GrowthArg::Aimd => "aimd",
            GrowthArg::SlowStart => "slow-start",
            GrowthArg::Probe => "probe",
        };
        let provider = match &self.target {
            Target::BuiltIn { .. } => "a provider with a hidden ceiling".to_owned(),
            Target::Url(url) => url.to_string(),
        };
        let processes = match self.processes {
            1 => String::new(),
            many => format!(" in {many} processes"),
        };
        let breaker = if self.setup.breaker.is_some() { ", with a breaker" } else { "" };
        format!("{} workers{processes} against {provider}, growth {growth}{breaker}", self.setup.workers)
    }
}

/// When the provider fails: where that is not said, for a fifth of the run, from two fifths on.
fn outage(args: &DemoArgs, run_for: Duration) -> Result<Option<Outage>, clap::Error> {
    if !args.breaker {
        return Ok(None);
    }
    let at = args.outage_at.unwrap_or(run_for * 2 / 5);
    if at >= run_for {
        let allowed = format!("allowed is a moment before the end, which is after {} s", args.seconds);
        return Err(refuse_demo("--outage-at <DURATION>", humantime::format_duration(at), allowed));
    }
    let lasts = args.outage_for.unwrap_or_else(|| (run_for / 5).min(run_for - at));
    if lasts > run_for - at {
        let left = humantime::format_duration(run_for - at);
        let allowed = format!("allowed is at most what is left of the run then, {left}");
        return Err(refuse_demo("--outage-for <DURATION>", humantime::format_duration(lasts), allowed));
    }
    Ok(Some(Outage { at, lasts }))
}

/// Shows the fleet until the end of the run, or Ctrl-C.
async fn watch(
    fleet: &Fleet,
    progress: &mut Progress,
    start: Instant,
    run_for: Duration,
) -> io::Result<Exit> {
    let begun = time::Instant::from_std(start);
    let mut ticks = time::interval_at(begun + progress.pace(), progress.pace());
    ticks.set_missed_tick_behavior(time::MissedTickBehavior::Skip);
    let mut end = pin!(time::sleep_until(begun + run_for));
    let mut ctrl_c = pin!(tokio::signal::ctrl_c());
    let exit = loop {
        tokio::select! {
            biased;
            _ = &mut ctrl_c => break Exit::Interrupted,
            () = &mut end => break Exit::Done,
            _ = ticks.tick() => {
                progress.show(start.elapsed(), fleet)?;
                if fleet.is_over() {
                    return Ok(Exit::Done);
                }
            }
        }
    };
    progress.show(start.elapsed().min(run_for), fleet)?;
    Ok(exit)
}

/// Whether anyone listens at `url`. It makes no call.
async fn reach(url: &Uri) -> io::Result<()> {
    let host = url.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let connect = TcpStream::connect((host, url.port_u16().unwrap_or(80)));
    match time::timeout(CALL_TIMEOUT, connect).await {
        Ok(connected) => connected.map(drop),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// A second Ctrl-C does not wait for anything.
async fn leave_at_once() {
    if tokio::signal::ctrl_c().await.is_ok() {
        std::process::exit(i32::from(Exit::Interrupted.code()));
    }
}
