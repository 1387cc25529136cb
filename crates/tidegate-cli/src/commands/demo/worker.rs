//! One process of the fleet. It does as it is told over stdin, and says on stdout what happens.

use std::io::{self, BufRead as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Sender};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use tidegate_redis::RedisStore;
use tokio::runtime::Runtime;
use tokio::sync::watch;
use tokio::time;

use super::crew::{self, Crew, Phase, Sink};
use super::lines::{Order, Word, from_wall};
use super::store;
use crate::output::Exit;

/// How often it says how it stands.
const PACE: Duration = Duration::from_millis(100);
/// How long it may take to end once its parent is gone.
const ALONE: Duration = Duration::from_secs(4);

/// Runs a process of the fleet to its end.
///
/// # Errors
///
/// It was not started by the demo, or its parent is gone before it began.
pub(crate) fn run() -> anyhow::Result<Exit> {
    let Order::Open { url } = next_order()? else { bail!("another order was expected first") };
    let _ = rlimit::increase_nofile_limit(u64::MAX);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("no runtime")?;
    let (said, words) = mpsc::channel();
    let mouth = thread::spawn(move || speak(&words));
    let done = work(&runtime, url, &said);
    let exit = if done.is_ok() { Exit::Done } else { Exit::Failed };
    if let Err(why) = done {
        // The parent tells it.
        let _ = said.send(Word::Refused { why: format!("{why:#}") });
    }
    let _ = said.send(Word::Done);
    let _ = mouth.join();
    Ok(exit)
}

fn work(runtime: &Runtime, url: String, said: &Sender<Word>) -> anyhow::Result<()> {
    let store = runtime.block_on(store::connect(&url))?;
    said.send(Word::Ready)?;
    let Order::Call { setup, id, target, start } = next_order()? else {
        bail!("an order to call was expected")
    };
    let target = target.parse().context("the provider's address")?;
    runtime.block_on(async {
        let start = from_wall(start);
        let events = said.clone();
        let sink: Sink = Arc::new(move |event| {
            // Without a reader there is nobody to tell.
            let _ = events.send(Word::Event(event));
        });
        let semaphore = crew::semaphore(&setup, &id, store.clone(), |_| {})?;
        let breaker = crew::breaker(&setup, &id, store.clone(), &semaphore, start, &target, &sink).await?;
        let crew = Crew::start(&setup, semaphore, breaker, start, &target, &sink);
        call(crew, &store, &id, said).await;
        Ok(())
    })
}

/// Has the workers call until the orders say otherwise, then gives everything back.
async fn call(mut crew: Crew, store: &RedisStore, id: &str, said: &Sender<Word>) {
    let alone = Arc::new(AtomicBool::new(false));
    let phase = crew.phase().clone();
    let left = Arc::clone(&alone);
    // A thread, since a read of stdin cannot be given up, and since it must be able to end a process that hangs.
    thread::spawn(move || obey(&phase, &left));
    let mut ticks = time::interval(PACE);
    loop {
        tokio::select! {
            () = crew.stopped() => break,
            _ = ticks.tick() => {}
        }
        let _ = said.send(Word::View(crew.view()));
    }
    crew.give_back().await;
    if alone.load(Ordering::Relaxed) {
        // Nobody else will. It is refused while another process holds a lease, which then does it.
        store::forget(store, id).await;
    }
}

/// Does what is said on stdin, until nobody is left to say anything.
fn obey(phase: &watch::Sender<Phase>, alone: &AtomicBool) {
    while let Ok(order) = next_order() {
        match order {
            Order::Finish => phase.send_replace(Phase::Finish),
            Order::Cut => phase.send_replace(Phase::Cut),
            Order::Open { .. } | Order::Call { .. } => continue,
        };
    }
    alone.store(true, Ordering::Relaxed);
    phase.send_replace(Phase::Cut);
    thread::sleep(ALONE);
    std::process::exit(i32::from(Exit::Failed.code()));
}

fn next_order() -> anyhow::Result<Order> {
    let mut line = String::new();
    if io::stdin().lock().read_line(&mut line).context("no orders")? == 0 {
        return Err(anyhow!("this is a part of `tidegate demo`, which starts it"));
    }
    serde_json::from_str(&line).context("an order that cannot be understood")
}

/// Writes down what is said, many words at once where they come fast.
fn speak(words: &mpsc::Receiver<Word>) {
    let mut out = io::BufWriter::new(io::stdout().lock());
    let mut next = words.recv().ok();
    while let Some(word) = next {
        let last = matches!(word, Word::Done);
        let written = serde_json::to_writer(&mut out, &word).map_err(io::Error::from);
        if written.and_then(|()| out.write_all(b"\n")).is_err() {
            return;
        }
        next = words.try_recv().ok().filter(|_| !last);
        if next.is_none() {
            if out.flush().is_err() || last {
                return;
            }
            next = words.recv().ok();
        }
    }
}
