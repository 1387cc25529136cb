//! The fleet in processes of its own, seen from the one that started them.

use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use hyper::Uri;
use tidegate::contract::Snapshot;
use tidegate::{AdaptiveSemaphore, Id, Operators as _};
use tidegate_redis::RedisStore;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time;

use super::crew;
use super::fleet::{Event, Log, Setup, View, locked};
use super::lines::{Order, Word, to_wall};
use super::store;
use crate::args::WORKER_COMMAND;
use crate::output;

/// How long a process may take to start and to open the store.
const START: Duration = Duration::from_secs(20);
/// How often the store is looked at, should a push of it be lost.
const LOOK: Duration = Duration::from_millis(100);
/// How long the store may take to answer a look.
const ANSWER: Duration = Duration::from_secs(1);
/// How long a process may take to end after it was told to stop at once.
const END: Duration = Duration::from_secs(6);

/// The processes of a fleet.
pub(super) struct Processes {
    store: RedisStore,
    id: String,
    pids: Vec<u32>,
    /// Until they are told to call.
    ready: Vec<Process>,
    inputs: Vec<ChildStdin>,
    readers: JoinSet<()>,
    /// How each of them stands.
    views: Arc<Vec<Mutex<View>>>,
    alive: Arc<AtomicU32>,
    watcher: Option<Watcher>,
}

/// Sees what becomes of the limit, and never acquires.
struct Watcher {
    semaphore: AdaptiveSemaphore,
    /// The limit and what is held, of one moment; none while the store does not answer.
    seen: Arc<Mutex<Option<Snapshot>>>,
    looks: JoinHandle<()>,
}

/// One that waits for its orders.
struct Process {
    child: Child,
    input: ChildStdin,
    words: Words,
}

type Words = Lines<BufReader<ChildStdout>>;

impl Processes {
    /// Starts `count` processes, and has each of them open the store.
    ///
    /// # Errors
    ///
    /// The store cannot be reached, or a process did not start.
    pub(super) async fn open(url: &str, id: &str, count: u32) -> anyhow::Result<Self> {
        // The first to connect says what is wrong, once and not once for each process.
        let store = store::connect(url).await?;
        for risk in store.risks() {
            output::note(&format!("note: {risk}"));
        }
        let mut ready = (0..count).map(|_| Process::start()).collect::<anyhow::Result<Vec<_>>>()?;
        for process in &mut ready {
            give(&mut process.input, &Order::Open { url: url.to_owned() }).await;
        }
        for process in &mut ready {
            process.is_ready().await?;
        }
        Ok(Self {
            store,
            id: id.to_owned(),
            pids: ready.iter().filter_map(|process| process.child.id()).collect(),
            views: Arc::new(ready.iter().map(|_| Mutex::default()).collect()),
            alive: Arc::new(AtomicU32::new(count)),
            ready,
            inputs: Vec::new(),
            readers: JoinSet::new(),
            watcher: None,
        })
    }

    pub(super) fn pids(&self) -> &[u32] {
        &self.pids
    }

    /// Lets the workers of all processes call `target`.
    ///
    /// # Errors
    ///
    /// The semaphore refused its options.
    pub(super) async fn call(
        &mut self,
        setup: &Setup,
        start: Instant,
        target: &Uri,
        log: &Arc<Log>,
    ) -> anyhow::Result<()> {
        // One that only watches sees the limit in order. Processes see it one by one, each a little later.
        let history = Arc::clone(log);
        let watcher = crew::semaphore(setup, &self.id, self.store.clone(), move |limit| {
            history.take(Event::Limit { at: start.elapsed(), limit });
        })?;
        let seen = Arc::default();
        let id = Id::new(&self.id)?;
        let looks = tokio::spawn(look(watcher.clone(), self.store.clone(), id, Arc::clone(&seen)));
        self.watcher = Some(Watcher { semaphore: watcher, seen, looks });
        let count = self.ready.len();
        for (place, mut process) in std::mem::take(&mut self.ready).into_iter().enumerate() {
            let order = Order::Call {
                setup: Setup { workers: part(setup.workers, count, place), ..setup.clone() },
                id: self.id.clone(),
                target: target.to_string(),
                start: to_wall(start),
            };
            give(&mut process.input, &order).await;
            self.inputs.push(process.input);
            let (log, views, alive) = (Arc::clone(log), Arc::clone(&self.views), Arc::clone(&self.alive));
            self.readers.spawn(async move {
                let lost = listen(process.child, process.words, &log, &views[place]).await;
                *locked(&views[place]) = View::default();
                if let Some(why) = lost {
                    log.take(Event::Lost { why });
                }
                alive.fetch_sub(1, Ordering::Relaxed);
            });
        }
        Ok(())
    }

    pub(super) fn view(&self) -> View {
        let views = self.views.iter().map(|view| *locked(view));
        let sum = views.fold(View::default(), |sum, view| View {
            in_flight: sum.in_flight + view.in_flight,
            waiting: sum.waiting + view.waiting,
            ..sum
        });
        let Some(watcher) = &self.watcher else { return sum };
        // Processes say how they stand one by one, so what they say does not add up to any moment. The store does.
        let seen = locked(&watcher.seen);
        let seen =
            seen.as_ref().and_then(|seen| Some((seen.limit?.value, seen.held - seen.resting.min(seen.held))));
        let (limit, in_flight) =
            seen.unwrap_or_else(|| (crew::view(&watcher.semaphore).limit, sum.in_flight));
        View { limit, in_flight, ..sum }
    }

    pub(super) fn are_over(&self) -> bool {
        self.alive.load(Ordering::Relaxed) == 0
    }

    /// Ends them, and says how many there were and what the store still holds.
    pub(super) async fn end(mut self, grace: Duration, log: &Log) -> (u32, Result<u32, String>) {
        // Those that were never told to call have nothing to give back.
        self.ready.clear();
        self.tell(&Order::Finish).await;
        if !self.ended_within(grace).await {
            self.tell(&Order::Cut).await;
            self.ended_within(END).await;
        }
        for _ in 0..self.readers.len() {
            log.take(Event::Lost { why: "it did not end, and was killed".to_owned() });
        }
        self.readers.shutdown().await;
        if let Some(Watcher { semaphore, looks, .. }) = self.watcher.take() {
            // After this nobody here speaks of the id any more, so that it can be forgotten for good.
            looks.abort();
            let _ = looks.await;
            semaphore.close().await;
        }
        let left = store::all_back(&self.store, &self.id).await;
        if left == Ok(0) {
            store::forget(&self.store, &self.id).await;
        }
        let count = u32::try_from(self.views.len()).unwrap_or(u32::MAX);
        (count, left)
    }

    async fn tell(&mut self, order: &Order) {
        for input in &mut self.inputs {
            give(input, order).await;
        }
    }

    async fn ended_within(&mut self, time: Duration) -> bool {
        let all = async { while self.readers.join_next().await.is_some() {} };
        time::timeout(time, all).await.is_ok()
    }
}

impl Process {
    fn start() -> anyhow::Result<Self> {
        let own = std::env::current_exe().context("the path of this program is not known")?;
        let mut command = Command::new(own);
        command.arg(WORKER_COMMAND).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        // Ctrl-C is for the one that started it, which tells the others.
        #[cfg(unix)]
        command.process_group(0);
        let mut child = command.spawn().context("a process of the fleet did not start")?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            bail!("a process of the fleet has no pipes");
        };
        Ok(Self { child, input, words: BufReader::new(output).lines() })
    }

    async fn is_ready(&mut self) -> anyhow::Result<()> {
        match time::timeout(START, word(&mut self.words)).await {
            Ok(Ok(Some(Word::Ready))) => Ok(()),
            Ok(Ok(Some(Word::Refused { why }))) => bail!("a process of the fleet: {why}"),
            Ok(Ok(_)) => bail!("a process of the fleet ended before it began"),
            Ok(Err(why)) => bail!("a process of the fleet said {why}"),
            Err(_) => bail!("a process of the fleet was not ready within {START:?}"),
        }
    }
}

/// Looks at the store again and again, so that the limit is of now.
async fn look(watcher: AdaptiveSemaphore, store: RedisStore, id: Id, seen: Arc<Mutex<Option<Snapshot>>>) {
    let mut ticks = time::interval(LOOK);
    ticks.set_missed_tick_behavior(time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // That the store is away is what the workers say.
        let _ = watcher.refresh().await;
        let snapshot = time::timeout(ANSWER, store.snapshot(&id)).await;
        *locked(&seen) = snapshot.ok().and_then(Result::ok).and_then(|reply| reply.body);
    }
}

/// Takes in all that a process says, until it ends. Says why, where that was before it was done.
async fn listen(mut child: Child, mut words: Words, log: &Log, view: &Mutex<View>) -> Option<String> {
    let mut done = false;
    let mut refused = None;
    loop {
        match word(&mut words).await {
            Ok(Some(Word::Event(event))) => log.take(event),
            Ok(Some(Word::View(now))) => *locked(view) = now,
            Ok(Some(Word::Done)) => done = true,
            Ok(Some(Word::Refused { why })) => refused = Some(why),
            Ok(Some(Word::Ready)) => {}
            Ok(None) => break,
            Err(why) => {
                // It cannot be understood any more; the drop kills it.
                return Some(format!("it said {why}"));
            }
        }
    }
    let status = child.wait().await;
    if refused.is_some() {
        return refused;
    }
    (!done).then(|| status.map_or_else(|error| error.to_string(), |status| status.to_string()))
}

/// The next thing that a process says; none when it has ended.
async fn word(words: &mut Words) -> Result<Option<Word>, String> {
    // A pipe that breaks is an end like any other.
    let Ok(Some(line)) = words.next_line().await else { return Ok(None) };
    serde_json::from_str(&line).map(Some).map_err(|error| format!("what nobody understands: {error}"))
}

/// Tells a process something. That one is gone is seen where it is listened to.
async fn give(input: &mut ChildStdin, order: &Order) {
    if let Ok(mut line) = serde_json::to_vec(order) {
        line.push(b'\n');
        let _ = input.write_all(&line).await;
    }
}

/// The part of `all` that falls to a place among `count`: as even as can be.
fn part(all: u32, count: usize, place: usize) -> u32 {
    let count = u32::try_from(count).unwrap_or(u32::MAX).max(1);
    let place = u32::try_from(place).unwrap_or(u32::MAX);
    all / count + u32::from(place < all % count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_even_and_make_the_whole() {
        for (all, count) in [(60, 4), (61, 4), (63, 4), (4, 4), (1, 1), (10_000, 64)] {
            let parts: Vec<u32> = (0..count).map(|place| part(all, count, place)).collect();
            assert_eq!(parts.iter().sum::<u32>(), all);
            assert!(parts.iter().max().unwrap() - parts.iter().min().unwrap() <= 1, "{parts:?}");
        }
    }
}
