//! The crate `distributed-lock`: its semaphore on Redis, a sorted set asked again and again with growing waits.

use std::sync::Arc;

use anyhow::Result;
use distributed_lock_core::traits::{DistributedSemaphore as _, LockHandle as _, SemaphoreProvider as _};
use distributed_lock_redis::{RedisDistributedSemaphore, RedisLockProvider, RedisSemaphoreHandle};

use crate::{options::Options, works::Semaphore};

#[derive(Clone)]
pub(crate) struct DistributedLock(Arc<RedisDistributedSemaphore>);

/// As its documentation shows it: one provider for the process, one semaphore from it that all tasks share. Its
/// connection pipelines by itself, and neither its lease times nor its waits change what a pair costs.
pub(crate) async fn connect(options: &Options) -> Result<DistributedLock> {
    let provider = RedisLockProvider::builder().url(&options.redis).build().await?;
    Ok(DistributedLock(Arc::new(provider.create_semaphore(&options.key, options.limit))))
}

impl Semaphore for DistributedLock {
    type Held = RedisSemaphoreHandle;

    async fn acquire(&self) -> Result<RedisSemaphoreHandle> {
        Ok(self.0.acquire(None).await?)
    }

    async fn release(&self, held: RedisSemaphoreHandle) -> Result<()> {
        Ok(held.release().await?)
    }
}
