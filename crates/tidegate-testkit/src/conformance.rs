//! The conformance kit: every rule of the store contract as named trials, against any store.
//!
//! Each trial opens a store of its own and asks it for what one rule promises, on both sides of each bound. A trial that
//! needs a capability that the store does not declare, or a [`Hook`] that was not given, is skipped, and the report says
//! so. That the store refuses what it does not declare is a trial as well.
//!
//! Without a settable clock, time passes as it likes: trials then use rules of a day, in which nothing comes back.
//!
//! Spec: ST-16.

use std::fmt;

use tidegate_core::{Capability, Invalid, StoreError};

use crate::{
    subject::{Factory, Hook},
    task::{Task, block_on, caught},
};

mod adaptive;
mod bad_input;
mod cases;
mod circuit;
mod circuit_agreeing;
mod circuit_lab;
mod circuit_recovery;
mod concurrency;
mod corrections;
mod deciding;
mod epoch;
mod exchange;
mod holding;
mod lab;
mod operators;
mod policy;
mod rules;
mod scoped;
mod undeclared;
mod waking;

use lab::Lab;

/// Something that a trial needs of the store it runs on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Need {
    /// The store declares this.
    Has(Capability),
    /// The store does not declare this.
    Lacks(Capability),
    /// The subject has this hook.
    Hook(Hook),
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Has(capability) => write!(f, "the store does not declare {capability}"),
            Self::Lacks(capability) => write!(f, "the store declares {capability}"),
            Self::Hook(hook) => write!(f, "the subject has no hook {}", hook.as_str()),
        }
    }
}

type Run = for<'a> fn(&'a Lab) -> Task<'a, Result<(), Failure>>;

/// One thing that a rule promises, as an experiment.
#[derive(Clone, Copy)]
#[non_exhaustive]
pub struct Trial {
    /// Its name, which begins with that of its rule.
    pub name: &'static str,
    /// What it needs; it is skipped where that is not there.
    pub needs: &'static [Need],
    run: Run,
}

impl Trial {
    /// The name of its rule, as in `ST-3`.
    pub fn rule(&self) -> &'static str {
        self.name.split(' ').next().unwrap_or(self.name)
    }

    /// Runs it on a fresh store.
    pub async fn run(&self, factory: &impl Factory) -> Verdict {
        let subject = match caught(factory.open()).await {
            Ok(subject) => subject,
            Err(panic) => return Verdict::Failed(format!("no store could be opened: {panic}")),
        };
        let lab = Lab::new(subject);
        if let Some(missing) = self.needs.iter().find(|need| !lab.meets(**need)) {
            return Verdict::Skipped(missing.to_string());
        }
        let run = async {
            lab.start().await;
            (self.run)(&lab).await
        };
        match caught(run).await {
            Ok(Ok(())) => Verdict::Passed,
            Ok(Err(failure)) => Verdict::Failed(failure.0),
            Err(panic) => Verdict::Failed(format!("it panicked: {panic}")),
        }
    }
}

impl fmt::Debug for Trial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Trial").field("name", &self.name).field("needs", &self.needs).finish_non_exhaustive()
    }
}

/// All trials, in the order of the rules.
pub fn trials() -> Vec<Trial> {
    [
        concurrency::TRIALS,
        deciding::TRIALS,
        policy::TRIALS,
        holding::TRIALS,
        scoped::TRIALS,
        corrections::TRIALS,
        waking::TRIALS,
        exchange::TRIALS,
        epoch::TRIALS,
        undeclared::TRIALS,
        operators::TRIALS,
        rules::TRIALS,
        adaptive::TRIALS,
        bad_input::TRIALS,
        circuit::TRIALS,
        circuit_recovery::TRIALS,
        circuit_agreeing::TRIALS,
        cases::TRIALS,
    ]
    .concat()
}

/// The kit, for stores of one kind.
///
/// # Examples
/// ```
/// use tidegate_testkit::{Kit, reference::ModelStore};
///
/// Kit::new(|| ModelStore::default().subject()).filter("ST-3").run_blocking().assert();
/// ```
#[must_use]
pub struct Kit<F> {
    factory: F,
    filter: Option<String>,
    excepted: Vec<(String, String)>,
}

impl<F: Factory> Kit<F> {
    /// The kit for stores of this factory.
    pub fn new(factory: F) -> Self {
        Self { factory, filter: None, excepted: Vec::new() }
    }

    /// Runs the trials of this rule (`ST-3`), or else those that have this text in their names.
    pub fn filter(mut self, text: impl Into<String>) -> Self {
        self.filter = Some(text.into());
        self
    }

    /// Skips the trials that have this text in their names, with the reason in the report.
    pub fn except(mut self, text: impl Into<String>, reason: impl Into<String>) -> Self {
        self.excepted.push((text.into(), reason.into()));
        self
    }

    /// The trials that it runs.
    pub fn trials(&self) -> Vec<Trial> {
        let mut chosen = trials();
        if let Some(text) = self.filter.as_deref() {
            let is_rule = chosen.iter().any(|trial| trial.rule() == text);
            chosen.retain(|trial| if is_rule { trial.rule() == text } else { trial.name.contains(text) });
        }
        chosen
    }

    /// Runs them, one after the other.
    pub async fn run(&self) -> Report {
        let mut results = Vec::new();
        for trial in self.trials() {
            let excepted = self.excepted.iter().find(|(text, _)| trial.name.contains(text.as_str()));
            let verdict = match excepted {
                Some((_, reason)) => Verdict::Skipped(reason.clone()),
                None => trial.run(&self.factory).await,
            };
            results.push(TrialResult { name: trial.name, verdict });
        }
        Report { results }
    }

    /// Runs them on this thread, for a store that needs no runtime.
    pub fn run_blocking(&self) -> Report {
        block_on(self.run())
    }
}

impl<F> fmt::Debug for Kit<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kit").field("filter", &self.filter).finish_non_exhaustive()
    }
}

/// What came of a trial.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verdict {
    /// The store does what the rule says.
    Passed,
    /// It does not, and this is what it did.
    Failed(String),
    /// The trial could not be held, for this reason.
    Skipped(String),
}

/// A trial, and what came of it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct TrialResult {
    /// Which trial.
    pub name: &'static str,
    /// What came of it.
    pub verdict: Verdict,
}

/// What came of all trials. To be read by people: it prints a line for each.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
#[non_exhaustive]
pub struct Report {
    /// The trials, in their order.
    pub results: Vec<TrialResult>,
}

impl Report {
    /// The names of the trials that passed.
    pub fn passed(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.results.iter().filter(|result| result.verdict == Verdict::Passed).map(|result| result.name)
    }

    /// The trials that failed, with what the store did.
    pub fn failed(&self) -> impl Iterator<Item = (&'static str, &str)> + '_ {
        self.results.iter().filter_map(|result| match &result.verdict {
            Verdict::Failed(message) => Some((result.name, message.as_str())),
            _ => None,
        })
    }

    /// The trials that were skipped, with the reason.
    pub fn skipped(&self) -> impl Iterator<Item = (&'static str, &str)> + '_ {
        self.results.iter().filter_map(|result| match &result.verdict {
            Verdict::Skipped(reason) => Some((result.name, reason.as_str())),
            _ => None,
        })
    }

    /// Whether at least one trial passed, and none failed.
    pub fn is_ok(&self) -> bool {
        self.passed().next().is_some() && self.failed().next().is_none()
    }

    /// For a test: fails it where the store failed a trial, or where no trial was held at all.
    ///
    /// # Panics
    /// With the whole report, unless it [`is_ok`](Self::is_ok).
    #[track_caller]
    // This is what fails a test.
    #[allow(clippy::panic)]
    pub fn assert(&self) {
        if !self.is_ok() {
            panic!("the store does not keep the contract\n{self}");
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for result in &self.results {
            match &result.verdict {
                Verdict::Passed => writeln!(f, "ok       {}", result.name)?,
                Verdict::Failed(message) => writeln!(f, "FAILED   {}\n         {message}", result.name)?,
                Verdict::Skipped(reason) => writeln!(f, "skipped  {}: {reason}", result.name)?,
            }
        }
        let (passed, failed, skipped) =
            (self.passed().count(), self.failed().count(), self.skipped().count());
        write!(f, "{passed} passed, {failed} failed, {skipped} skipped")
    }
}

/// Why a trial failed: what was expected, and what the store did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Failure(pub(crate) String);

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        Self(format!("the store answered with an error: {error}"))
    }
}

impl From<Invalid> for Failure {
    fn from(error: Invalid) -> Self {
        Self(format!("the kit made something that is not allowed: {error}"))
    }
}

/// Fails unless `got` is `expected`.
fn same<T: PartialEq + fmt::Debug>(got: T, expected: T, what: impl fmt::Display) -> Result<(), Failure> {
    if got == expected { Ok(()) } else { Err(Failure(format!("{what}: expected {expected:?}, got {got:?}"))) }
}

/// Fails unless `holds`.
fn ensure(holds: bool, what: impl fmt::Display) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(Failure(what.to_string())) }
}

/// A list of trials: a name, what it needs, and the function that holds it.
macro_rules! trials_of_rules {
    ($($name:literal $([$($need:expr),* $(,)?])? => $run:ident;)*) => {
        pub(super) const TRIALS: &[super::Trial] = &[$(super::Trial {
            name: $name,
            needs: &[$($($need),*)?],
            run: |lab| Box::pin($run(lab)),
        }),*];
    };
}
use trials_of_rules;
