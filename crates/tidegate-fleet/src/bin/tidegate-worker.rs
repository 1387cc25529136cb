//! A worker as a process: `tidegate-worker PLAN NUMBER`, with the plan as JSON.
//!
//! It takes orders as lines on its standard input (`pause`, `work`, `stop`), and writes records as lines of JSON to its
//! standard output. It ends when its input does, since then nobody is there to stop it.

use std::{
    error::Error,
    io::{self, BufRead},
    process::ExitCode,
};

use tidegate_fleet::{
    store::open_store,
    worker::{Log, Order, Plan, run},
};
use tokio::sync::watch;

fn main() -> ExitCode {
    match work() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidegate-worker: {error}");
            let mut cause = error.source();
            while let Some(error) = cause {
                eprintln!("  because: {error}");
                cause = error.source();
            }
            ExitCode::FAILURE
        }
    }
}

fn work() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let plan = Plan::from_json(&arguments.next().ok_or("usage: tidegate-worker PLAN NUMBER")?)?;
    let number = arguments.next().ok_or("usage: tidegate-worker PLAN NUMBER")?.parse()?;

    let (order, orders) = watch::channel(Order::Work);
    std::thread::Builder::new().name("orders".to_owned()).spawn(move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            if let Some(given) = Order::parse(&line) {
                // Nobody listens any more where this fails, and then there is nothing to order.
                let _ = order.send(given);
            }
        }
        // Whoever started this is gone, or wants it gone.
        std::process::exit(1);
    })?;

    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let store = open_store(&plan.store)?;
        run(&plan, number, store, Log::lines(number, io::stdout()), orders)
            .await
            .map_err(|error| error as Box<dyn Error>)
    })
}
