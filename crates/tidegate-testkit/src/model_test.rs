//! The random model test: the same operations, at the same moments, on a store and on the model.
//!
//! A run draws operations from a seed, does each on both, and compares the answers whole: grants, denials and hints,
//! slots, marks, limits, pauses, errors, and what every answer carries. Other epochs and fences are allowed, as long as
//! each of the store's stands for exactly one of the model's, and grows as it does. The first difference is shrunk to as
//! few operations as show it.
//!
//! Several ids with policies of all kinds, several revisions and drivers of each, small limits and short times: so that
//! what is rare in the world is common here. Time only passes between operations, also backwards.
//!
//! # Examples
//! ```
//! use tidegate_core::Capabilities;
//! use tidegate_testkit::{
//!     model_test::{self, Options},
//!     reference::ModelStore,
//! };
//!
//! let minimal = || ModelStore::default().declaring(Capabilities::NONE).subject();
//! let stats = model_test::run_blocking(&minimal, &Options::seeded(1).operations(500))?;
//! assert_eq!(stats.operations, 500);
//! # Ok::<(), model_test::Difference>(())
//! ```
//!
//! Spec: ST-16.

use std::{collections::BTreeMap, fmt};

use crate::{
    subject::{Factory, Hook, Subject},
    task::{block_on, caught},
};

mod generate;
mod operation;
mod pair;
mod said;
mod shrink;
mod translate;
mod world;

use generate::Generator;
use pair::{Mismatch, Pair};
use world::World;

/// What is to be drawn, and how long.
#[derive(Clone, Debug)]
#[must_use]
pub struct Options {
    seed: u64,
    operations: usize,
    replays: usize,
    pushes: bool,
    steps_back: bool,
    losses: bool,
}

impl Options {
    /// 2,000 operations of all kinds, drawn from this seed.
    pub const fn seeded(seed: u64) -> Self {
        Self { seed, operations: 2_000, replays: 1_500, pushes: false, steps_back: true, losses: true }
    }

    /// How many operations; 2,000 unless told.
    pub const fn operations(mut self, operations: usize) -> Self {
        self.operations = operations;
        self
    }

    /// How often a difference may be replayed to shrink it; 1,500 unless told.
    pub const fn replays(mut self, replays: usize) -> Self {
        self.replays = replays;
        self
    }

    /// Compares what is pushed as well, for a store that pushes before an operation is answered.
    pub const fn comparing_pushes(mut self) -> Self {
        self.pushes = true;
        self
    }

    /// Never sets the clock back.
    pub const fn without_steps_back(mut self) -> Self {
        self.steps_back = false;
        self
    }

    /// Never forgets an id, and never loses state.
    pub const fn without_losses(mut self) -> Self {
        self.losses = false;
        self
    }
}

/// What a run came to that found no difference.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Stats {
    /// How many operations were done.
    pub operations: usize,
    /// How often each kind was done.
    pub by_kind: BTreeMap<&'static str, usize>,
    /// Jobs granted.
    pub granted: usize,
    /// Answers with a denial.
    pub denied: usize,
    /// Operations, or parts of an exchange, that were refused.
    pub refused: usize,
    /// How often each kind of answer came from a circuit.
    pub circuit: BTreeMap<&'static str, usize>,
}

/// The first operation that a store answers otherwise than the model. To be read by people.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Difference {
    /// What the operations were drawn from.
    pub seed: u64,
    /// The operations that are left, a line each; the last one is answered differently.
    pub operations: Vec<String>,
    /// How many there were before they were shrunk.
    pub drawn: usize,
    /// What the model answers.
    pub model: String,
    /// What the store answers, with the model's epochs and fences where they stand for each other.
    pub store: String,
}

impl Difference {
    fn none(seed: u64, why: impl Into<String>) -> Self {
        Self { seed, operations: Vec::new(), drawn: 0, model: String::new(), store: why.into() }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "seed {}: the store differs from the model at the last of {} operations, shrunk from {}",
            self.seed,
            self.operations.len(),
            self.drawn
        )?;
        for operation in &self.operations {
            writeln!(f, "{operation}")?;
        }
        writeln!(f, "model: {}", self.model)?;
        write!(f, "store: {}", self.store)
    }
}

impl std::error::Error for Difference {}

/// Runs it.
///
/// # Errors
/// The first [`Difference`], shrunk. One without operations says that the test could not be held: its subject cannot be
/// opened, or its clock cannot be set.
pub async fn run(factory: &impl Factory, options: &Options) -> Result<Stats, Difference> {
    let subject = open(factory, options.seed).await?;
    let capabilities = subject.store().capabilities();
    let world = World::new(capabilities)
        .map_err(|invalid| Difference::none(options.seed, format!("the test's own policies: {invalid}")))?;
    let mut generator = Generator::new(options, capabilities, subject.has(Hook::Wipe));
    let mut pair = Pair::new(&world, subject, options.pushes).await;
    let mut steps = Vec::with_capacity(options.operations);
    for _ in 0..options.operations {
        let step = generator.next(&world, &pair);
        let done = answered(caught(pair.perform(&world, &step)).await);
        steps.push(step);
        if let Err(mismatch) = done {
            return Err(shrink::shrunk(factory, options, &world, steps, mismatch).await);
        }
    }
    Ok(pair.into_stats())
}

/// As [`run`], on this thread, for a store that needs no runtime.
///
/// # Errors
/// As [`run`].
pub fn run_blocking(factory: &impl Factory, options: &Options) -> Result<Stats, Difference> {
    block_on(run(factory, options))
}

async fn open(factory: &impl Factory, seed: u64) -> Result<Subject, Difference> {
    let opened = caught(factory.open()).await;
    let subject =
        opened.map_err(|panic| Difference::none(seed, format!("no store could be opened: {panic}")))?;
    if subject.has(Hook::Clock) {
        Ok(subject)
    } else {
        Err(Difference::none(seed, "the subject has no hook clock, and the same moments are needed"))
    }
}

/// A panic of the store is an answer that the model does not give.
fn answered(done: Result<Result<(), Mismatch>, String>) -> Result<(), Mismatch> {
    done.unwrap_or_else(|panic| {
        Err(Mismatch { model: "an answer".to_owned(), store: format!("it panicked: {panic}") })
    })
}
