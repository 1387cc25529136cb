//! A contender: a program of its own that does one work, or some of them at the same time.

use std::{
    collections::BTreeMap,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::{Context as _, Result, bail, ensure};
use serde::{Deserialize, de::DeserializeOwned};

/// A contender's name, as it is shown, and the program.
#[derive(Clone, Debug)]
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    program: PathBuf,
    /// What stands before the work.
    arguments: Vec<String>,
    /// The core that it is to run on.
    core: Option<u32>,
}

/// What a work counts.
#[derive(Debug, Deserialize)]
pub(crate) struct Counted {
    count: f64,
    seconds: f64,
}

impl Counted {
    pub(crate) fn per_second(&self) -> f64 {
        self.count / self.seconds
    }
}

/// When something was asked for, granted and released, in nanoseconds, by which task.
#[derive(Debug, Deserialize)]
pub(crate) struct Spans {
    pub(crate) seconds: f64,
    pub(crate) spans: Vec<(u32, i64, i64, i64)>,
}

impl Contender {
    pub(crate) fn new(name: &'static str, program: impl Into<PathBuf>, arguments: &[&str]) -> Self {
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        Self { name, program: program.into(), arguments, core: None }
    }

    /// One of the program that has the peers in Rust, the floors, and Tidegate.
    pub(crate) fn built(name: &'static str) -> Result<Self> {
        let own = std::env::current_exe().context("where this program is")?;
        Ok(Self::new(name, own.with_file_name("contender"), &[name]))
    }

    /// On one core alone.
    pub(crate) fn on(&self, core: Option<u32>) -> Self {
        Self { core, ..self.clone() }
    }

    fn start(&self, options: &[String]) -> Result<Running> {
        let mut command = match self.core {
            Some(core) => {
                let mut taskset = Command::new("taskset");
                taskset.args(["-c", &core.to_string()]).arg(&self.program);
                taskset
            }
            None => Command::new(&self.program),
        };
        command.args(&self.arguments).args(options).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().with_context(|| format!("start {}", self.program.display()))?;
        let (Some(tell), Some(hear)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("{} has no pipes", self.name)
        };
        Ok(Running { name: self.name, child, tell, hear: BufReader::new(hear) })
    }

    /// Does a work once.
    pub(crate) fn run<T: DeserializeOwned>(&self, options: &[String]) -> Result<T> {
        let mut all = together(&[(self, options.to_vec())])?;
        all.pop().context("one answer")
    }
}

/// Has some start, waits until all are ready, and has them work at the same time.
pub(crate) fn together<T: DeserializeOwned>(works: &[(&Contender, Vec<String>)]) -> Result<Vec<T>> {
    let mut all = Vec::new();
    for (contender, options) in works {
        let mut running = contender.start(options)?;
        running.expect_ready()?;
        all.push(running);
    }
    for running in &mut all {
        writeln!(running.tell, "go").with_context(|| running.name.to_owned())?;
    }
    all.into_iter().map(Running::finish).collect()
}

struct Running {
    name: &'static str,
    child: Child,
    tell: ChildStdin,
    hear: BufReader<ChildStdout>,
}

impl Running {
    fn expect_ready(&mut self) -> Result<()> {
        let mut line = String::new();
        self.hear.read_line(&mut line)?;
        ensure!(line.trim() == "ready", "{} was to be ready, and said {line:?}", self.name);
        Ok(())
    }

    fn finish<T: DeserializeOwned>(mut self) -> Result<T> {
        let mut answer = String::new();
        self.hear.read_to_string(&mut answer)?;
        let status = self.child.wait()?;
        ensure!(status.success(), "{} ended with {status}", self.name);
        serde_json::from_str(answer.trim()).with_context(|| format!("what {} said", self.name))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // One that was not waited for has failed, or another has. It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the figures were measured on.
pub(crate) fn machine() -> BTreeMap<&'static str, String> {
    let said = |program: &str, argument: &str| {
        let output = Command::new(program).arg(argument).output().ok()?;
        Some(String::from_utf8_lossy(&output.stdout).lines().next()?.to_owned())
    };
    let cpu = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split(':').nth(1)?.trim().to_owned())
    });
    let cores = std::thread::available_parallelism().map(|cores| cores.to_string()).ok();
    let date = said("date", "-u");
    let facts = [
        ("cpu", cpu),
        ("cores", cores),
        ("date", date),
        ("redis", said("redis-server", "--version")),
        ("rustc", said("rustc", "--version")),
        ("node", said("node", "--version")),
    ];
    facts.into_iter().filter_map(|(name, fact)| Some((name, fact?))).collect()
}
