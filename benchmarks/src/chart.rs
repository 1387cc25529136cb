//! Charts of a report, as SVG that reads on light and on dark.

use std::{fs, path::Path};

use anyhow::{Context as _, Result};
use plotters::prelude::*;

use crate::figure::{Measured, Report};

/// Reads on white and on black.
const INK: RGBColor = RGBColor(128, 128, 128);
const OWN: RGBColor = RGBColor(46, 134, 193);
const OTHER: RGBColor = RGBColor(160, 160, 160);

const WIDTH: u32 = 760;
const ROW: u32 = 26;
const HEAD: u32 = 40;
const LABELS: u32 = 200;
/// Room for a value behind the longest bar.
const VALUES: u32 = 110;

/// A chart of one work after another, a bar for each contender.
struct Chart {
    file: &'static str,
    title: &'static str,
    unit: &'static str,
    works: Vec<(&'static str, String)>,
    /// Each number is ten times the one before it, where they lie far apart.
    logarithmic: bool,
}

pub(crate) fn write(folder: &Path, report: &Report) -> Result<()> {
    fs::create_dir_all(folder)?;
    let pairs = |tasks: u32, limit: u32| format!("pairs, {tasks} tasks under a limit of {limit}");
    let hand_off = "hand-off between two processes at a limit of 1";
    let exchange = |what: &str| format!("an exchange, {what}, Redis");
    let charts = [
        Chart {
            file: "pairs.svg",
            title: "Acquire and release on Redis, one process: pairs per second (more is better)",
            unit: "per s",
            works: vec![
                ("1 task", pairs(1, 64)),
                ("64 tasks", pairs(64, 64)),
                ("512 tasks", pairs(512, 512)),
            ],
            logarithmic: true,
        },
        Chart {
            file: "hand-off.svg",
            title: "From a release in one process to the grant in another: microseconds (less is better)",
            unit: "us",
            works: vec![("p50", format!("{hand_off}: p50")), ("p99", format!("{hand_off}: p99"))],
            logarithmic: true,
        },
        Chart {
            file: "growth.svg",
            title: "One exchange as things grow: microseconds of the Redis server (flat is better)",
            unit: "us",
            works: ["ids", "leases of one id", "processes", "idle identities", "rules"]
                .map(|what| (what, exchange(what)))
                .into(),
            logarithmic: false,
        },
    ];
    for chart in charts {
        chart.write(folder, report).with_context(|| chart.file)?;
    }
    Ok(())
}

impl Chart {
    fn write(&self, folder: &Path, report: &Report) -> Result<()> {
        let groups: Vec<(&str, Vec<&Measured>)> = self
            .works
            .iter()
            .map(|(name, work)| (*name, report.measured.iter().filter(|known| known.work == *work).collect()))
            .filter(|(_, bars): &(&str, Vec<&Measured>)| !bars.is_empty())
            .collect();
        if groups.is_empty() {
            return Ok(());
        }
        let rows: usize = groups.iter().map(|(_, bars)| bars.len() + 1).sum();
        let height = HEAD + ROW * u32::try_from(rows)?;
        let most = groups.iter().flat_map(|(_, bars)| bars).map(|bar| bar.value).fold(0.0, f64::max);
        let least = groups.iter().flat_map(|(_, bars)| bars).map(|bar| bar.value).fold(most, f64::min);
        let path = folder.join(self.file);
        let area = SVGBackend::new(&path, (WIDTH, height)).into_drawing_area();
        let text = |size: u32| ("sans-serif", size).into_font().color(&INK);
        let at = |x: u32, y: u32| Ok::<_, anyhow::Error>((i32::try_from(x)?, i32::try_from(y)?));
        area.draw(&Text::new(self.title, at(8, 10)?, text(15)))?;
        let mut y = HEAD;
        for (name, bars) in &groups {
            area.draw(&Text::new(*name, at(8, y + 6)?, text(14)))?;
            y += ROW;
            for bar in bars {
                let length = self.length(bar.value, least, most);
                let own = bar.contender == "tidegate" || self.file == "growth.svg";
                let color = if own { OWN } else { OTHER };
                area.draw(&Text::new(bar.contender.as_str(), at(24, y + 6)?, text(13)))?;
                area.draw(&Rectangle::new(
                    [at(LABELS, y + 3)?, at(LABELS + length, y + ROW - 5)?],
                    color.filled(),
                ))?;
                let value = format!("{} {}", grouped(bar.value), self.unit);
                area.draw(&Text::new(value, at(LABELS + length + 8, y + 6)?, text(13)))?;
                y += ROW;
            }
        }
        if self.logarithmic {
            let note = "bars on a logarithmic scale";
            area.draw(&Text::new(note, at(WIDTH - 180, HEAD - 10)?, text(11)))?;
        }
        area.present()?;
        Ok(())
    }

    /// How long the bar of a value is.
    fn length(&self, value: f64, least: f64, most: f64) -> u32 {
        let part = if self.logarithmic {
            // The least still has a bar.
            let zero = (least / 4.0).ln();
            (value.ln() - zero) / (most.ln() - zero)
        } else {
            value / most
        };
        // A part of a few hundred points.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let length = (part * f64::from(WIDTH - LABELS - VALUES)).round().max(1.0) as u32;
        length
    }
}

/// A whole number with its thousands apart.
fn grouped(value: f64) -> String {
    if value < 100.0 {
        return format!("{value:.1}");
    }
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
