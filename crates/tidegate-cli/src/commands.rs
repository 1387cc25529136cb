//! One file for each command.

mod demo;

use crate::args::{Cli, Command};
use crate::output::Exit;

/// Runs the command that was asked for.
///
/// # Errors
///
/// What the command ran into; bad input as a [`clap::Error`].
pub(crate) fn run(cli: &Cli) -> anyhow::Result<Exit> {
    match &cli.command {
        Command::Demo(args) => demo::run(args),
        Command::DemoWorker => demo::worker::run(),
    }
}
