//! The crate `limitador`: counters of fixed windows, on Redis for every admission or written there later.

use std::{collections::HashMap, sync::Arc};

use anyhow::{Result, anyhow, ensure};
use limitador::{
    AsyncRateLimiter,
    limit::{Context, Limit, Namespace},
    storage::{
        AsyncCounterStorage,
        redis::{AsyncRedisStorage, CachedRedisStorageBuilder},
    },
};

use crate::{options::Options, works::Limiter};

const PLENTY: u64 = 1_000_000_000;

#[derive(Clone)]
pub(crate) struct Limitador {
    limiter: Arc<AsyncRateLimiter>,
    namespace: Namespace,
    /// Whether a limit counts for each key: it then has a variable, which costs an evaluation for each admission.
    keyed: bool,
}

/// Every admission asks Redis: it reads all counters in one script, and adds to them in a second round trip.
pub(crate) async fn exact(options: &Options) -> Result<Limitador> {
    Limitador::over(options, Box::new(AsyncRedisStorage::new(&options.redis).await?))
}

/// An admission asks only this process, which writes to Redis behind it: with its own defaults, a write a second.
pub(crate) async fn cached(options: &Options) -> Result<Limitador> {
    // With 1,000 keys its process stopped for good: it can wait for a permit while it holds a lock of its counters.
    ensure!(options.keys == 1, "limitador's cache stops for good when many keys are new at once");
    Limitador::over(options, Box::new(CachedRedisStorageBuilder::new(&options.redis).build().await?))
}

impl Limitador {
    fn over(options: &Options, storage: Box<dyn AsyncCounterStorage>) -> Result<Self> {
        let limiter = AsyncRateLimiter::new_with_storage(storage);
        let keyed = options.keys > 1;
        for rule in 0..options.rules {
            let variables = if keyed { vec!["key".try_into()?] } else { Vec::new() };
            let limit = Limit::new(options.key.as_str(), PLENTY, 60 + u64::from(rule), Vec::new(), variables);
            ensure!(limiter.add_limit(limit), "a rule was not taken");
        }
        Ok(Self { limiter: Arc::new(limiter), namespace: options.key.as_str().into(), keyed })
    }
}

impl Limiter for Limitador {
    async fn admit(&self, key: &str) -> Result<()> {
        let context = if self.keyed {
            Context::from(HashMap::from([("key".to_owned(), key.to_owned())]))
        } else {
            Context::default()
        };
        let result = self.limiter.check_rate_limited_and_update(&self.namespace, &context, 1).await;
        // Its error cannot cross threads, so only its text goes on.
        let result = result.map_err(|error| anyhow!("{error}"))?;
        ensure!(!result.limited, "it was denied");
        Ok(())
    }
}
