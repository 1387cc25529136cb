//! Tidegate itself, among its peers.

use std::{sync::Arc, time::Instant};

use anyhow::{Result, ensure};
use serde_json::{Value, json};
use tidegate::{Acquire, AdaptiveSemaphore, Job, Lease, Outcome, Rule, Valve};
use tidegate_redis::RedisStore;
use tokio::task::JoinSet;

use crate::{
    options::Options,
    works::{Limiter, Semaphore, wait_for_go},
};

const PLENTY: u64 = 1_000_000_000;
const SCOPE: &str = "tenant";

pub(crate) fn semaphore(options: &Options) -> Result<AdaptiveSemaphore> {
    let store = RedisStore::lazy(&options.redis)?;
    let limit = options.limit;
    // A limit that stands still, as those of the peers do.
    Ok(AdaptiveSemaphore::builder(&options.key, limit).min_limit(limit).max_limit(limit).build(store)?)
}

impl Semaphore for AdaptiveSemaphore {
    type Held = Lease;

    async fn acquire(&self) -> Result<Lease> {
        Ok(Self::acquire(self, Acquire::new()).await?)
    }

    /// Not waited for: nor has its caller to.
    async fn release(&self, lease: Lease) -> Result<()> {
        lease.release(Outcome::Success);
        Ok(())
    }

    async fn finish(&self) {
        self.close().await;
    }
}

/// A valve under rules that always admit, with a scope where there are many keys.
#[derive(Clone)]
pub(crate) struct Rules {
    valve: Valve,
    keyed: bool,
}

impl Rules {
    pub(crate) fn new(options: &Options) -> Result<Self> {
        let keyed = options.keys > 1;
        let mut valve = Valve::builder(&options.key);
        for rule in 1..=options.rules {
            let rule = Rule::token_bucket(PLENTY, std::time::Duration::from_secs(60) * rule);
            valve = valve.rule(if keyed { rule.scoped(SCOPE) } else { rule });
        }
        Ok(Self { valve: valve.build(RedisStore::lazy(&options.redis)?)?, keyed })
    }
}

impl Limiter for Rules {
    async fn admit(&self, key: &str) -> Result<()> {
        let job = if self.keyed { Job::new().scope(SCOPE, key) } else { Job::new() };
        self.valve.acquire(job).await?.release(Outcome::Success);
        Ok(())
    }
}

/// Acquires one at a time, with nothing else under way, and gives how long each took.
pub(crate) async fn latency(options: &Options) -> Result<Value> {
    let semaphore = semaphore(options)?;
    Semaphore::acquire(&semaphore).await?.release(Outcome::Success);
    semaphore.flush().await;
    wait_for_go()?;
    let until = Instant::now() + options.seconds;
    let acquires = tokio::spawn(async move {
        let mut latencies = Vec::new();
        while Instant::now() < until {
            let start = Instant::now();
            let lease = Semaphore::acquire(&semaphore).await?;
            latencies.push(start.elapsed().as_nanos());
            lease.release(Outcome::Success);
            semaphore.flush().await;
        }
        anyhow::Ok(latencies)
    });
    Ok(json!({ "latencies_ns": acquires.await?? }))
}

/// Asks for more than a rule admits, and gives how much it admitted.
pub(crate) async fn exact(options: &Options) -> Result<Value> {
    let rule = Rule::fixed_window(options.limit.into(), std::time::Duration::from_secs(86_400));
    let valve = Arc::new(Valve::builder(&options.key).rule(rule).build(RedisStore::lazy(&options.redis)?)?);
    valve.refresh().await?;
    wait_for_go()?;
    let until = Instant::now() + options.seconds;
    let tasks = (0..options.tasks).map(|_| {
        let valve = Arc::clone(&valve);
        async move {
            let mut admitted = 0_u64;
            while Instant::now() < until {
                match valve.acquire(Job::new().timeout(std::time::Duration::ZERO)).await {
                    Ok(permit) => {
                        permit.release(Outcome::Success);
                        admitted += 1;
                    }
                    Err(tidegate::AcquireError::Timeout { .. }) => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(admitted)
        }
    });
    let mut tasks: JoinSet<_> = tasks.collect();
    let mut admitted = 0;
    while let Some(count) = tasks.join_next().await {
        admitted += count??;
    }
    ensure!(admitted > 0 || options.limit == 0, "nothing was admitted");
    Ok(json!({ "count": admitted }))
}
