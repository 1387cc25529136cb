//! The works, over whatever a peer has for a semaphore or a limiter.

use std::{
    future::Future,
    io::Write as _,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tokio::{task::JoinSet, time::sleep};

use crate::{clock, options::Options};

/// Something that is held and given back.
pub(crate) trait Semaphore: Clone + Send + Sync + 'static {
    type Held: Send;

    fn acquire(&self) -> impl Future<Output = Result<Self::Held>> + Send;
    fn release(&self, held: Self::Held) -> impl Future<Output = Result<()>> + Send;

    /// Has all delivered that was given back, before the process ends.
    fn finish(&self) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }
}

/// Something that admits, under rules so high that it always does: a denial is an error.
pub(crate) trait Limiter: Clone + Send + Sync + 'static {
    fn admit(&self, key: &str) -> impl Future<Output = Result<()>> + Send;
}

/// Says that all is set up, and waits until told to work.
///
/// It blocks the thread of `main`, which is none of the runtime's workers.
pub(crate) fn wait_for_go() -> Result<()> {
    println!("ready");
    std::io::stdout().flush()?;
    let read = std::io::stdin().read_line(&mut String::new())?;
    ensure!(read > 0, "the input ended before it said to go");
    Ok(())
}

/// Runs a loop per task, and gives what each came to and how long it all took.
async fn together<T, F>(options: &Options, work: impl Fn(u32, Instant) -> F) -> Result<(Vec<T>, Duration)>
where
    T: Send + 'static,
    F: Future<Output = Result<T>> + Send + 'static,
{
    wait_for_go()?;
    let start = Instant::now();
    let mut all: JoinSet<_> = (0..options.tasks).map(|task| work(task, start + options.seconds)).collect();
    let mut results = Vec::new();
    while let Some(result) = all.join_next().await {
        results.push(result??);
    }
    Ok((results, start.elapsed()))
}

fn counted((counts, took): (Vec<u64>, Duration)) -> Value {
    json!({ "count": counts.iter().sum::<u64>(), "seconds": took.as_secs_f64() })
}

pub(crate) async fn pairs<S: Semaphore>(options: &Options, semaphore: S) -> Result<Value> {
    let warm = semaphore.acquire().await?;
    semaphore.release(warm).await?;
    let counts = together(options, |_, until| {
        let semaphore = semaphore.clone();
        async move {
            let mut count = 0_u64;
            while Instant::now() < until {
                let held = semaphore.acquire().await?;
                semaphore.release(held).await?;
                count += 1;
            }
            Ok(count)
        }
    });
    let counts = counts.await?;
    semaphore.finish().await;
    Ok(counted(counts))
}

pub(crate) async fn spans<S: Semaphore>(options: &Options, semaphore: S) -> Result<Value> {
    let warm = semaphore.acquire().await?;
    semaphore.release(warm).await?;
    let (hold, think) = (options.hold_ms, options.think_ms);
    let (spans, took) = together(options, |task, until| {
        let semaphore = semaphore.clone();
        async move {
            let mut spans = Vec::new();
            while Instant::now() < until {
                let asked = clock::now();
                let held = semaphore.acquire().await?;
                let granted = clock::now();
                if !hold.is_zero() {
                    sleep(hold).await;
                }
                let released = clock::now();
                semaphore.release(held).await?;
                spans.push((task, asked, granted, released));
                if !think.is_zero() {
                    sleep(think).await;
                }
            }
            Ok(spans)
        }
    })
    .await?;
    semaphore.finish().await;
    Ok(json!({ "seconds": took.as_secs_f64(), "spans": spans.concat() }))
}

pub(crate) async fn rate<L: Limiter>(options: &Options, limiter: L) -> Result<Value> {
    limiter.admit(&options.key).await?;
    let keys = options.keys;
    let counts = together(options, |_, until| {
        let (limiter, key) = (limiter.clone(), options.key.clone());
        async move {
            let mut count = 0_u64;
            while Instant::now() < until {
                if keys == 1 {
                    limiter.admit(&key).await?;
                } else {
                    limiter.admit(&format!("{key}-{}", fastrand::u32(..keys))).await?;
                }
                count += 1;
            }
            Ok(count)
        }
    });
    Ok(counted(counts.await?))
}
