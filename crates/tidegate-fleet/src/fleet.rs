//! Many workers, each a process: started, killed, frozen, told to pause or to stop, and asked what they saw.

use std::{
    ffi::OsStr,
    io::{self, BufRead, BufReader, Write},
    path::PathBuf,
    process::{ChildStdin, Command, Stdio},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crate::{
    clock,
    record::{Event, Record},
    servers::Process,
    worker::{Order, Plan},
};

/// Why a fleet does not do as it should.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FleetError {
    /// A worker's program was not built.
    #[error("{0} is missing: build it with `cargo build -p tidegate-fleet`")]
    NoProgram(PathBuf),
    /// A process could not be started, or told something.
    #[error("worker {worker}: {what}")]
    Io {
        /// Which.
        worker: u32,
        /// What was tried.
        what: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The plan cannot be written.
    #[error("the plan cannot be written")]
    Plan(#[source] serde_json::Error),
    /// There is no worker of this number, or it has ended.
    #[error("worker {0} does not run")]
    NotRunning(u32),
    /// What was waited for did not come to be.
    #[error("{what}: not within {within:?}; {seen}")]
    NotInTime {
        /// What.
        what: String,
        /// How long.
        within: Duration,
        /// What was seen instead.
        seen: String,
    },
}

/// What all workers have written so far.
#[derive(Debug, Default)]
struct Written(Mutex<Vec<Record>>);

/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(2);

impl Written {
    fn lock(&self) -> MutexGuard<'_, Vec<Record>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `enough` says so of all records. It is not asked at each of them, which would hold up those that write.
    fn until(&self, within: Duration, mut enough: impl FnMut(&[Record]) -> bool) -> bool {
        let start = Instant::now();
        while !enough(&self.lock()) {
            if start.elapsed() > within {
                return false;
            }
            std::thread::sleep(LOOK);
        }
        true
    }
}

#[derive(Debug)]
struct One {
    process: Process,
    orders: Option<ChildStdin>,
    reader: Option<JoinHandle<()>>,
}

/// Worker processes of one plan. Dropping it kills those that still run.
#[derive(Debug)]
pub struct Fleet {
    program: PathBuf,
    plan: Plan,
    workers: Vec<Option<One>>,
    written: Arc<Written>,
}

impl Fleet {
    /// Starts so many workers. `program` is `env!("CARGO_BIN_EXE_tidegate-worker")` in the tests of this crate, and
    /// [`worker_program`] in others.
    ///
    /// # Errors
    /// [`FleetError::NoProgram`] where the program was not built.
    pub fn start(program: impl AsRef<OsStr>, plan: &Plan, workers: u32) -> Result<Self, FleetError> {
        let program = PathBuf::from(program.as_ref());
        let written = Arc::<Written>::default();
        let mut fleet = Self { program, plan: plan.clone(), workers: Vec::new(), written };
        for _ in 0..workers {
            fleet.add()?;
        }
        Ok(fleet)
    }

    /// Starts one more, and says its number: a dead one is replaced by another, never started again.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn add(&mut self) -> Result<u32, FleetError> {
        let plan = self.plan.clone();
        self.add_with(&plan)
    }

    /// As [`add`](Self::add), by another plan: another revision, for one.
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn add_with(&mut self, plan: &Plan) -> Result<u32, FleetError> {
        let number = u32::try_from(self.workers.len()).unwrap_or(u32::MAX);
        let plan = plan.to_json().map_err(FleetError::Plan)?;
        let mut command = Command::new(&self.program);
        command.arg(plan).arg(number.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = Process::start(&mut command, None).map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => FleetError::NoProgram(self.program.clone()),
            _ => FleetError::Io { worker: number, what: "start", source },
        })?;
        let orders = process.child().stdin.take();
        let reader = process.child().stdout.take().map(|out| {
            let written = Arc::clone(&self.written);
            std::thread::spawn(move || {
                // The last line of one that was killed may be half a line; a log of a library is none.
                let lines = BufReader::new(out).lines().map_while(Result::ok);
                lines
                    .filter_map(|line| Record::from_line(&line).ok())
                    .for_each(|record| written.lock().push(record));
            })
        });
        self.workers.push(Some(One { process, orders, reader }));
        Ok(number)
    }

    fn one(&mut self, worker: u32) -> Result<&mut One, FleetError> {
        let one = usize::try_from(worker).ok().and_then(|at| self.workers.get_mut(at));
        one.and_then(Option::as_mut).ok_or(FleetError::NotRunning(worker))
    }

    /// Ends a worker at once, as a crash would (SIGKILL), and returns when all that it has written is read.
    ///
    /// # Errors
    /// Where it does not run.
    pub fn kill(&mut self, worker: u32) -> Result<(), FleetError> {
        let at = usize::try_from(worker).ok().and_then(|at| self.workers.get_mut(at));
        // Dropping it kills it.
        drop(at.and_then(Option::take).ok_or(FleetError::NotRunning(worker))?);
        // It has lived until now at most: what it asked for may have been carried out until then.
        self.written.lock().push(Record { at: clock::now(), worker, event: Event::Killed });
        Ok(())
    }

    /// Freezes a worker (SIGSTOP), and returns when it stands still.
    ///
    /// # Errors
    /// Where it does not run.
    pub fn freeze(&mut self, worker: u32) -> Result<(), FleetError> {
        let one = self.one(worker)?;
        one.process.freeze().map_err(|source| FleetError::Io { worker, what: "freeze", source })
    }

    /// Lets a frozen worker go on.
    ///
    /// # Errors
    /// Where it does not run.
    pub fn thaw(&mut self, worker: u32) -> Result<(), FleetError> {
        self.one(worker)?.process.thaw().map_err(|source| FleetError::Io { worker, what: "thaw", source })
    }

    /// Tells a worker something.
    ///
    /// # Errors
    /// Where it does not run.
    pub fn order(&mut self, worker: u32, order: Order) -> Result<(), FleetError> {
        let orders = self.one(worker)?.orders.as_mut().ok_or(FleetError::NotRunning(worker))?;
        writeln!(orders, "{}", order.as_str())
            .and_then(|()| orders.flush())
            .map_err(|source| FleetError::Io { worker, what: "order", source })
    }

    /// The process of a worker.
    ///
    /// # Errors
    /// Where it does not run.
    pub fn pid(&mut self, worker: u32) -> Result<u32, FleetError> {
        self.one(worker).map(|one| one.process.pid())
    }

    /// What was written so far.
    pub fn records(&self) -> Vec<Record> {
        self.written.lock().clone()
    }

    /// Waits until so many more permits were granted, in all.
    ///
    /// # Errors
    /// [`FleetError::NotInTime`].
    pub fn wait_for_grants(&self, grants: usize, within: Duration) -> Result<(), FleetError> {
        let (mut looked_at, mut seen) = (self.written.lock().len(), 0);
        let is_grant = |record: &Record| matches!(record.event, Event::Granted { .. });
        let what = format!("{grants} grants");
        self.wait_until(&what, within, |records| {
            seen += records[looked_at..].iter().filter(|record| is_grant(record)).count();
            looked_at = records.len();
            seen >= grants
        })
    }

    /// Waits until the records of all are as they should be.
    ///
    /// # Errors
    /// [`FleetError::NotInTime`].
    pub fn wait_until(
        &self,
        what: &str,
        within: Duration,
        is_so: impl FnMut(&[Record]) -> bool,
    ) -> Result<(), FleetError> {
        if self.written.until(within, is_so) {
            return Ok(());
        }
        let seen = summary(&self.written.lock());
        Err(FleetError::NotInTime { what: what.to_owned(), within, seen })
    }

    /// Stops all that run, in order, and gives all records. One that is frozen is thawed first; one that does not end
    /// within `patience` is killed, and its records end as those of a dead one.
    ///
    /// # Errors
    /// None for now; a worker that has ended by itself shows in the records.
    pub fn stop(mut self, patience: Duration) -> Result<Vec<Record>, FleetError> {
        let start = Instant::now();
        for one in self.workers.iter_mut().flatten() {
            // Both fail where it has ended already.
            let _ = one.process.thaw();
            if let Some(orders) = &mut one.orders {
                let _ = writeln!(orders, "{}", Order::Stop.as_str()).and_then(|()| orders.flush());
            }
        }
        for one in self.workers.iter_mut().flatten() {
            while !one.process.has_ended() && start.elapsed() < patience {
                std::thread::sleep(LOOK);
            }
        }
        let late: Vec<u32> = (0..)
            .zip(&mut self.workers)
            .filter_map(|(number, one)| {
                one.as_mut().is_some_and(|one| !one.process.has_ended()).then_some(number)
            })
            .collect();
        for worker in late {
            self.kill(worker)?;
        }
        self.workers.clear();
        Ok(self.records())
    }
}

/// What records say in a line: how many there are, and the last words of those that went wrong.
fn summary(records: &[Record]) -> String {
    let grants = records.iter().filter(|record| matches!(record.event, Event::Granted { .. })).count();
    let last_words = records.iter().rev().find_map(|record| match &record.event {
        Event::Refused { why, .. } | Event::Trouble { why, .. } => Some(why.as_str()),
        _ => None,
    });
    format!(
        "{grants} grants in all, {} records; the last words: {}",
        records.len(),
        last_words.unwrap_or("none")
    )
}

impl Drop for One {
    fn drop(&mut self) {
        self.process.kill();
        if let Some(reader) = self.reader.take() {
            // A panic there was shown there.
            let _ = reader.join();
        }
    }
}

/// Where the program `tidegate-worker` is, by where the test that asks is: it was built next to it, or it is missing.
///
/// # Errors
/// [`FleetError::NoProgram`] where it is not there.
pub fn worker_program() -> Result<PathBuf, FleetError> {
    const NAME: &str = "tidegate-worker";
    let own = std::env::current_exe().unwrap_or_default();
    // A test is one folder below what is built beside it.
    let found = own.ancestors().skip(1).take(2).map(|folder| folder.join(NAME)).find(|path| path.is_file());
    found.ok_or_else(|| FleetError::NoProgram(own.with_file_name(NAME)))
}
