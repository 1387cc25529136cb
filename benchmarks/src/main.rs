//! Tidegate against the others and against floors, in one run: ratios with their spread, held against targets.
//!
//! `benchmarks/run` builds and installs all that it needs. Each work is done by each contender in turn, again and again, and
//! a ratio is that of two turns that stood next to each other: the machine's mood changes slower than that.

// It is a program, and its output is the point.
#![allow(clippy::print_stdout, clippy::print_stderr)]

mod chart;
mod contender;
mod figure;
mod node;
mod stats;
mod works;

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context as _, Result};
use clap::Parser;
use tidegate_fleet::servers::redis::{Options as ServerOptions, Redis};

use crate::{figure::Report, node::Node, works::Suite};

#[derive(Parser)]
#[command(about = "Measures Tidegate beside the others, in one run, and holds it against its targets")]
struct Arguments {
    /// A few minutes: fewer rounds, shorter turns
    #[arg(long)]
    quick: bool,
    /// The figures as JSON on standard output; progress goes to standard error
    #[arg(long)]
    json: bool,
    /// Only the works that give these targets, as T1,T9
    #[arg(long, value_name = "TARGETS", value_delimiter = ',')]
    only: Vec<String>,
    /// Writes the charts into this folder
    #[arg(long, value_name = "FOLDER")]
    charts: Option<PathBuf>,
    /// Where the peers in JavaScript are installed; without it they are left out
    #[arg(long, value_name = "FOLDER")]
    node: Option<PathBuf>,
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let report = runtime.block_on(run(&arguments))?;
    if let Some(folder) = &arguments.charts {
        chart::write(folder, &report)?;
    }
    if arguments.json {
        println!("{}", report.json()?)
    } else {
        print!("{report}")
    }
    Ok(if report.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn run(arguments: &Arguments) -> Result<Report> {
    let server = Redis::standalone(&ServerOptions::new()).context("no Redis to measure on")?;
    let mut report = Report::new(arguments.quick);
    let suite = Suite {
        server: &server,
        node: Node::at(arguments.node.as_deref(), &mut report),
        scale: if arguments.quick { works::QUICK } else { works::FULL },
        only: &arguments.only,
    };
    suite.run(&mut report).await?;
    Ok(report)
}
