//! What came of a run: figures, the targets that they are held against, and how both are shown.

use std::{collections::BTreeMap, fmt};

use anyhow::Result;
use serde::Serialize;

use crate::stats::median;

/// What a figure may be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Bound {
    AtMost(f64),
    AtLeast(f64),
}

impl Bound {
    fn holds(self, reached: f64) -> bool {
        match self {
            Self::AtMost(bound) => reached <= bound,
            Self::AtLeast(bound) => reached >= bound,
        }
    }
}

/// A figure that is held against a target.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    /// As `T3`.
    pub(crate) id: &'static str,
    pub(crate) what: String,
    /// Empty for a ratio.
    pub(crate) unit: &'static str,
    pub(crate) target: Bound,
    /// The median of all rounds.
    pub(crate) reached: f64,
    /// The least and the most of all rounds.
    pub(crate) spread: (f64, f64),
    pub(crate) holds: bool,
}

/// A measurement without a target: what a ratio was made of, or a peer beside it.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measured {
    /// What was done, as `pairs, 64 tasks`.
    pub(crate) work: String,
    pub(crate) contender: String,
    pub(crate) unit: &'static str,
    pub(crate) value: f64,
    pub(crate) spread: (f64, f64),
}

#[derive(Debug, Default, Serialize)]
pub(crate) struct Report {
    quick: bool,
    pub(crate) machine: BTreeMap<&'static str, String>,
    pub(crate) figures: Vec<Figure>,
    pub(crate) measured: Vec<Measured>,
    /// What was left out, and why.
    pub(crate) left_out: Vec<String>,
}

fn spread(rounds: &[f64]) -> (f64, f64) {
    let least = rounds.iter().copied().fold(f64::INFINITY, f64::min);
    (least, rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max))
}

impl Report {
    pub(crate) fn new(quick: bool) -> Self {
        Self { quick, machine: crate::contender::machine(), ..Self::default() }
    }

    /// A figure of some rounds, held against its target.
    pub(crate) fn figure(
        &mut self,
        id: &'static str,
        what: impl Into<String>,
        unit: &'static str,
        target: Bound,
        rounds: &[f64],
    ) {
        let (what, reached) = (what.into(), median(rounds));
        let figure =
            Figure { id, what, unit, target, reached, spread: spread(rounds), holds: target.holds(reached) };
        eprintln!("{figure}");
        self.figures.push(figure);
    }

    /// The ratio of two contenders, turn by turn.
    pub(crate) fn ratio(
        &mut self,
        id: &'static str,
        what: impl Into<String>,
        target: Bound,
        of: &[f64],
        to: &[f64],
    ) {
        let ratios: Vec<f64> = of.iter().zip(to).map(|(of, to)| of / to).collect();
        self.figure(id, what, "", target, &ratios);
    }

    pub(crate) fn measured(
        &mut self,
        work: impl Into<String>,
        contender: impl Into<String>,
        unit: &'static str,
        rounds: &[f64],
    ) {
        let measured = Measured {
            work: work.into(),
            contender: contender.into(),
            unit,
            value: median(rounds),
            spread: spread(rounds),
        };
        eprintln!("     {}: {}", measured.work, told(&measured));
        self.measured.push(measured);
    }

    pub(crate) fn leave_out(&mut self, what: impl Into<String>) {
        let what = what.into();
        if !self.left_out.contains(&what) {
            eprintln!("left out: {what}");
            self.left_out.push(what);
        }
    }

    /// Whether every target holds.
    pub(crate) fn holds(&self) -> bool {
        self.figures.iter().all(|figure| figure.holds)
    }

    pub(crate) fn json(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)?)
    }
}

fn told(measured: &Measured) -> String {
    let Measured { contender, unit, value, spread: (least, most), .. } = measured;
    format!("{contender} {} {unit} ({} to {})", short(*value), short(*least), short(*most))
}

/// A number in about three digits.
fn short(value: f64) -> String {
    match value.abs() {
        least if least >= 100.0 => format!("{value:.0}"),
        least if least >= 10.0 => format!("{value:.1}"),
        least if least >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}

impl fmt::Display for Figure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (sign, bound) = match self.target {
            Bound::AtMost(bound) => ("<=", bound),
            Bound::AtLeast(bound) => (">=", bound),
        };
        let unit = if self.unit.is_empty() { "x" } else { self.unit };
        let verdict = if self.holds { "holds" } else { "FALLS SHORT" };
        let (least, most) = self.spread;
        write!(
            f,
            "{:4} {}: {} {unit} ({} to {}), target {sign} {}: {verdict}",
            self.id,
            self.what,
            short(self.reached),
            short(least),
            short(most),
            short(bound),
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (what, is) in &self.machine {
            writeln!(f, "{what}: {is}")?;
        }
        writeln!(f)?;
        for figure in &self.figures {
            writeln!(f, "{figure}")?;
        }
        let mut work = "";
        for measured in &self.measured {
            if measured.work != work {
                work = &measured.work;
                writeln!(f, "\n{work}")?;
            }
            writeln!(f, "  {}", told(measured))?;
        }
        for what in &self.left_out {
            writeln!(f, "\nleft out: {what}")?;
        }
        let short = self.figures.iter().filter(|figure| !figure.holds).count();
        writeln!(f, "\n{} figures, {short} fall short of their targets", self.figures.len())
    }
}
