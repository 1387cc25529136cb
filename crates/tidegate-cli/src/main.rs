//! The command `tidegate`: what the library does, from a shell.

mod args;
mod commands;
mod output;

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    let done = match args::Cli::try_parse() {
        Ok(cli) => commands::run(&cli),
        Err(error) => Err(error.into()),
    };
    match done {
        Ok(exit) => exit.into(),
        Err(error) => output::explain(&error).into(),
    }
}
