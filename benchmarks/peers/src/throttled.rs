//! The crate `throttled`: GCRA in one script, one rule an admission.

use std::{num::NonZeroU32, sync::Arc};

use anyhow::{Result, ensure};
use redis::aio::ConnectionManager;
use throttled::{Quota, RateLimiter as _, RedisRateLimiter};

use crate::{options::Options, works::Limiter};

#[derive(Clone)]
pub(crate) struct Throttled {
    limiter: Arc<RedisRateLimiter>,
    quota: Quota,
}

/// As its documentation shows it, over a connection manager, which is all that it takes. Its finest interval is a
/// microsecond, so the burst is what never denies.
pub(crate) async fn connect(options: &Options) -> Result<Throttled> {
    ensure!(options.rules == 1, "throttled admits under one rule at a time");
    let manager = ConnectionManager::new(redis::Client::open(options.redis.as_str())?).await?;
    let plenty = NonZeroU32::MIN.saturating_add(1_000_000_000);
    let quota = Quota::per_minute(plenty).with_burst(plenty);
    Ok(Throttled { limiter: Arc::new(RedisRateLimiter::new(manager)), quota })
}

impl Limiter for Throttled {
    async fn admit(&self, key: &str) -> Result<()> {
        ensure!(self.limiter.check(key, self.quota).await?.is_allowed(), "it was denied");
        Ok(())
    }
}
