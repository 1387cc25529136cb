//! The works, and the targets that each gives.

mod breaker;
mod controllers;
mod growth;
mod in_process;
mod rates;
mod semaphores;

use std::{
    fmt::Display,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use anyhow::Result;
use serde::de::DeserializeOwned;
use tidegate_fleet::servers::redis::Redis;

use crate::{contender::Contender, figure::Report, node::Node};

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    /// How often each contender has its turn.
    pub(crate) rounds: u32,
    /// How long a turn takes.
    pub(crate) seconds: f64,
    /// How long one takes that gathers waits.
    pub(crate) long: f64,
    pub(crate) openings: usize,
    pub(crate) kills: usize,
    pub(crate) seeds: u64,
}

pub(crate) const QUICK: Scale =
    Scale { rounds: 3, seconds: 1.0, long: 4.0, openings: 60, kills: 5, seeds: 3 };
pub(crate) const FULL: Scale =
    Scale { rounds: 7, seconds: 2.0, long: 20.0, openings: 150, kills: 10, seeds: 10 };

/// All that a work needs.
pub(crate) struct Suite<'a> {
    pub(crate) server: &'a Redis,
    pub(crate) node: Node,
    pub(crate) scale: Scale,
    pub(crate) only: &'a [String],
}

impl Suite<'_> {
    pub(crate) async fn run(&self, report: &mut Report) -> Result<()> {
        if self.wants(&["T1"]) {
            semaphores::alone(self, report)?;
        }
        if self.wants(&["T2", "T3", "T4", "T5"]) {
            semaphores::pairs(self, report)?;
        }
        if self.wants(&["T6"]) {
            semaphores::hand_off(self, report)?;
        }
        if self.wants(&["T7", "T8"]) {
            semaphores::held(self, report)?;
        }
        if self.wants(&["T9"]) {
            rates::admissions(self, report)?;
        }
        if self.wants(&["T10", "T11"]) {
            in_process::all(self, report).await?;
        }
        if self.wants(&["T11"]) {
            breaker::writes(self, report).await?;
        }
        if self.wants(&["T12", "T13"]) {
            breaker::changes(self, report).await?;
        }
        if self.wants(&["T14"]) {
            report.leave_out("T14: there is no store on PostgreSQL in this version");
        }
        if self.wants(&["T15"]) {
            growth::all(self, report).await?;
        }
        if self.wants(&["T16"]) {
            controllers::all(self, report)?;
        }
        Ok(())
    }

    /// Whether one of these targets is asked for.
    fn wants(&self, targets: &[&str]) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| targets.contains(&only.as_str()))
    }

    /// What a work is told, with an id of its own.
    fn options(&self, work: &str, more: &[(&str, &dyn Display)]) -> Vec<String> {
        self.options_at(&self.server.url(), work, more)
    }

    fn options_at(&self, url: &str, work: &str, more: &[(&str, &dyn Display)]) -> Vec<String> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let key = format!("bench-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let mut options: Vec<String> = [work, "--redis", url, "--key", &key].map(str::to_owned).into();
        for (name, value) in more {
            options.extend([format!("--{name}"), value.to_string()]);
        }
        options
    }

    /// Has each contender do the same work in turn, round after round, and makes a number of each answer. What came of a
    /// contender is in the order of the rounds.
    fn alternate<T: DeserializeOwned>(
        &self,
        turns: &[(&Contender, &dyn Fn() -> Vec<String>)],
        number: impl Fn(T) -> f64,
    ) -> Result<Vec<Vec<f64>>> {
        let mut all = vec![Vec::new(); turns.len()];
        for _ in 0..self.scale.rounds {
            for ((contender, options), rounds) in turns.iter().zip(&mut all) {
                rounds.push(number(contender.run(&options())?));
            }
        }
        Ok(all)
    }
}
