//! A contender: Tidegate, one of the others, or a floor, doing one work against a Redis server.
//!
//! It is set up and warmed, says `ready`, waits for a line on its input, works, and says what came of it in one line
//! of JSON. All else goes to standard error.

// It is a program, and its output is the point.
#![allow(clippy::print_stdout)]

mod clock;
mod distributed_lock;
mod floors;
#[cfg(feature = "limitador")]
mod limitador;
mod options;
mod throttled;
mod tidegate;
mod works;

use std::process::ExitCode;

use anyhow::{Result, bail};
use clap::Parser as _;
use serde_json::Value;

use crate::options::{Options, Peer, Work};

fn main() -> ExitCode {
    match run() {
        Ok(result) => {
            println!("{result}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("peer: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<Value> {
    let options = Options::parse();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(contend(&options))
}

async fn contend(options: &Options) -> Result<Value> {
    match (options.peer, options.work) {
        (Peer::DistributedLock, Work::Pairs) => {
            works::pairs(options, distributed_lock::connect(options).await?).await
        }
        (Peer::DistributedLock, Work::Spans) => {
            works::spans(options, distributed_lock::connect(options).await?).await
        }
        (Peer::Throttled, Work::Rate) => works::rate(options, throttled::connect(options).await?).await,
        #[cfg(feature = "limitador")]
        (Peer::Limitador, Work::Rate) => works::rate(options, limitador::exact(options).await?).await,
        #[cfg(feature = "limitador")]
        (Peer::LimitadorCached, Work::Rate) => works::rate(options, limitador::cached(options).await?).await,
        #[cfg(not(feature = "limitador"))]
        (Peer::Limitador | Peer::LimitadorCached, Work::Rate) => {
            bail!("built without the feature `limitador`")
        }
        (Peer::FloorBare, Work::Latency) => floors::bare(options).await,
        (Peer::FloorTwoCalls, Work::Pairs) => {
            works::pairs(options, floors::TwoCalls::connect(options).await?).await
        }
        (Peer::FloorPublish, Work::Publish) => floors::publish(options).await,
        (Peer::Tidegate, Work::Pairs) => works::pairs(options, tidegate::semaphore(options)?).await,
        (Peer::Tidegate, Work::Spans) => works::spans(options, tidegate::semaphore(options)?).await,
        (Peer::Tidegate, Work::Latency) => tidegate::latency(options).await,
        (Peer::Tidegate, Work::Rate) => works::rate(options, tidegate::Rules::new(options)?).await,
        (Peer::Tidegate, Work::Exact) => tidegate::exact(options).await,
        (peer, work) => bail!("{peer:?} has no work {work:?}"),
    }
}
