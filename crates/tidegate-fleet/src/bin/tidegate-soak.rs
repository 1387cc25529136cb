//! A fleet over Redis Sentinel for a minute, with everything that can happen to it: `tidegate-soak [SECONDS [SEED]]`.
//!
//! The server is flushed, failed over, killed and frozen, and workers are killed all the while. What was promised is then
//! held against what was seen. It prints one summary, and fails where anything was not kept.

use std::{
    collections::BTreeMap,
    error::Error,
    process::ExitCode,
    time::{Duration, Instant},
};

use fastrand::Rng;
use tidegate_fleet::{
    clock,
    fleet::{Fleet, worker_program},
    history::{Bound, Check, History, Violation},
    record::{Event, Record},
    servers::redis::Sentinel,
    worker::{Gate, Outcomes, Plan, Span},
};

type Outcome<T> = Result<T, Box<dyn Error>>;

const PROCESSES: u32 = 16;
const TASKS: u32 = 8;
const LIMIT: u32 = 24;
const TTL: Duration = Duration::from_secs(2);
const FROZEN: Duration = Duration::from_secs(10);

/// How long a request may be under way after it was given up, at most: what was sent to a frozen server is carried out when
/// it thaws.
const LAG: Duration = Duration::from_secs(11);

/// How long after a fault a process may yet find the new primary, in microseconds.
const SETTLED: u64 = 2_000_000;

const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Fault {
    Flushed,
    FailedOver,
    Killed,
    Frozen,
    WorkerKilled,
}

impl Fault {
    const fn name(self) -> &'static str {
        match self {
            Self::Flushed => "server flushed",
            Self::FailedOver => "failed over",
            Self::Killed => "server killed and started again",
            Self::Frozen => "server frozen for 10 s",
            Self::WorkerKilled => "worker killed",
        }
    }
}

/// When a fault came and when it was over.
struct Suffered {
    fault: Fault,
    from: u64,
    until: u64,
}

struct Soak {
    group: Sentinel,
    fleet: Fleet,
    random: Rng,
    alive: Vec<u32>,
    faults: Vec<Suffered>,
}

impl Soak {
    fn start(seed: u64) -> Outcome<Self> {
        let group = Sentinel::start()?;
        let plan = Plan {
            ttl_ms: u64::try_from(TTL.as_millis())?,
            op_timeout_ms: 500,
            tasks: TASKS,
            hold_ms: Span(5, 60),
            timeout_ms: 4_000,
            outcomes: Outcomes { success: 8, throttled: 0, failure: 1, dropped: 1 },
            abandon: 3,
            seed,
            ..Plan::new(group.url(), "provider", Gate::Global { limit: LIMIT })
        };
        let fleet = Fleet::start(worker_program()?, &plan, PROCESSES)?;
        Ok(Self {
            group,
            fleet,
            random: Rng::with_seed(seed),
            alive: (0..PROCESSES).collect(),
            faults: Vec::new(),
        })
    }

    /// Which of the two servers is the primary.
    fn primary(&mut self) -> Outcome<usize> {
        let addr = self.group.primary()?.addr();
        let at = self.group.servers().iter().position(|server| server.addr() == addr);
        Ok(at.ok_or("the sentinels name another server")?)
    }

    fn suffer(&mut self, fault: Fault) -> Outcome<()> {
        let from = clock::now();
        match fault {
            Fault::Flushed => self.group.primary()?.flush()?,
            Fault::FailedOver => self.group.failover()?,
            Fault::Killed => {
                let at = self.primary()?;
                let old = self.group.servers()[at].addr().port();
                self.group.servers()[at].kill();
                self.group.until_primary_is_not(old)?;
                self.group.servers()[at].resume()?;
            }
            Fault::Frozen => {
                let at = self.primary()?;
                let old = self.group.servers()[at].addr().port();
                let start = Instant::now();
                self.group.servers()[at].freeze()?;
                self.group.until_primary_is_not(old)?;
                std::thread::sleep(FROZEN.saturating_sub(start.elapsed()));
                self.group.servers()[at].thaw()?;
            }
            Fault::WorkerKilled => {
                let at = self.random.usize(..self.alive.len());
                let worker = self.alive.swap_remove(at);
                self.fleet.kill(worker)?;
                self.alive.push(self.fleet.add()?);
            }
        }
        self.faults.push(Suffered { fault, from, until: clock::now() });
        Ok(())
    }

    /// Lets all be for a while, but for workers that are killed now and then.
    fn pass(&mut self, length: Duration) -> Outcome<()> {
        let start = Instant::now();
        while start.elapsed() < length {
            std::thread::sleep(Duration::from_millis(self.random.u64(300..900)).min(length));
            self.suffer(Fault::WorkerKilled)?;
        }
        Ok(())
    }

    fn run(&mut self, length: Duration) -> Outcome<()> {
        self.fleet.wait_for_grants(200, PATIENCE)?;
        let start = Instant::now();
        self.pass(TTL)?;
        'all: loop {
            let mut faults = [Fault::Flushed, Fault::FailedOver, Fault::Killed, Fault::Frozen];
            self.random.shuffle(&mut faults);
            for fault in faults {
                if start.elapsed() >= length {
                    break 'all;
                }
                println!("{:>5.1} s: {}", start.elapsed().as_secs_f64(), fault.name());
                self.suffer(fault)?;
                // Over a TTL, so that what one loss allows is over before the next.
                self.pass(TTL * 3 / 2)?;
            }
        }
        Ok(())
    }
}

/// What is promised, with what each loss allows.
fn check(faults: &[Suffered], history: &History) -> Check {
    let check = Check::new(Bound::Fixed(LIMIT), TTL).lag(LAG);
    faults.iter().fold(check, |check, it| match it.fault {
        Fault::WorkerKilled => check,
        // No more lived at that moment than may: each of two primaries has its own bound.
        _ => {
            let settled = it.until + SETTLED;
            check.lost_at_most(history, it.from, it.until, LIMIT).outage(it.from, settled)
        }
    })
}

fn count(records: &[Record], is: impl Fn(&Event) -> bool) -> usize {
    records.iter().filter(|record| is(&record.event)).count()
}

fn soak() -> Outcome<bool> {
    let mut arguments = std::env::args().skip(1);
    let length = Duration::from_secs(arguments.next().map_or(Ok(60), |seconds| seconds.parse())?);
    let seed = arguments.next().map_or_else(|| Ok(fastrand::u64(..)), |seed| seed.parse())?;
    println!("seed {seed}: {PROCESSES} processes x {TASKS} tasks, a limit of {LIMIT}, a TTL of {TTL:?}");
    let mut soak = Soak::start(seed)?;
    soak.run(length)?;
    let Soak { group, fleet, faults: suffered, .. } = soak;
    let records = fleet.stop(PATIENCE)?;
    drop(group);
    let history = History::of(&records);
    let check = check(&suffered, &history);
    let (findings, peaks) = (check.run(&history), check.peaks(&history));
    let refused = |wanted: &str| {
        count(&records, |event| matches!(event, Event::Refused { code, .. } if code == wanted))
    };
    let mut faults: BTreeMap<Fault, usize> = BTreeMap::new();
    suffered.iter().for_each(|span| *faults.entry(span.fault).or_default() += 1);
    let faults: Vec<String> =
        faults.iter().map(|(fault, times)| format!("{}: {times}", fault.name())).collect();
    let overtime = findings.0.iter().filter(|it| matches!(it, Violation::LiveTooLong { .. })).count();
    println!("grants               {}", count(&records, |event| matches!(event, Event::Granted { .. })));
    println!("faults               {}", faults.join(", "));
    println!("held at most         {} of {LIMIT}, where nothing was lost", peaks.strict);
    println!("held at most         {} of {} allowed, within a TTL of a loss", peaks.allowed, LIMIT * 2);
    println!("leases past a TTL    {overtime}");
    println!("unavailable          {}", refused("unavailable"));
    println!("no room in time      {}", refused("timeout"));
    println!("violations           {}", findings.0.len());
    if !findings.is_empty() {
        println!("{findings}");
    }
    Ok(findings.is_empty() && peaks.strict <= LIMIT && peaks.allowed <= LIMIT * 2)
}

fn main() -> ExitCode {
    match soak() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("tidegate-soak: {error}");
            ExitCode::FAILURE
        }
    }
}
