//! The least that a call, a pair or a message can cost over Redis: what any contender is above.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use futures_util::StreamExt as _;
use redis::{Client, aio::MultiplexedConnection};
use serde_json::{Value, json};
use tokio::time::{MissedTickBehavior, interval, sleep, sleep_until};

use crate::{
    clock,
    options::{Options, Role},
    works::{Semaphore, wait_for_go},
};

const BARE: &str = "return 1";
const TAKE: &str = "local t = redis.call('TIME') \
    local now = t[1] * 1000 + math.floor(t[2] / 1000) \
    redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now) \
    if redis.call('ZCARD', KEYS[1]) < tonumber(ARGV[1]) then \
    redis.call('ZADD', KEYS[1], now + 30000, ARGV[2]) return 1 end return 0";
const GIVE: &str = "return redis.call('ZREM', KEYS[1], ARGV[1])";
const PUBLISH: &str = "return redis.call('PUBLISH', KEYS[1], '1')";

async fn connection(options: &Options) -> Result<MultiplexedConnection> {
    Ok(Client::open(options.redis.as_str())?.get_multiplexed_async_connection().await?)
}

async fn load(connection: &mut MultiplexedConnection, script: &str) -> Result<Arc<str>> {
    let sha: String = redis::cmd("SCRIPT").arg("LOAD").arg(script).query_async(connection).await?;
    Ok(sha.into())
}

/// A script that does nothing, one call at a time, in a task as an application's would be.
pub(crate) async fn bare(options: &Options) -> Result<Value> {
    let mut connection = connection(options).await?;
    let sha = load(&mut connection, BARE).await?;
    let mut call = redis::cmd("EVALSHA");
    call.arg(&*sha).arg(0);
    let _: i64 = call.query_async(&mut connection).await?;
    wait_for_go()?;
    let until = Instant::now() + options.seconds;
    let latencies = tokio::spawn(async move {
        let mut latencies = Vec::new();
        while Instant::now() < until {
            let asked = clock::now();
            let _: i64 = call.query_async(&mut connection).await?;
            latencies.push(clock::now() - asked);
        }
        anyhow::Ok(latencies)
    });
    Ok(json!({ "latencies_ns": latencies.await?? }))
}

/// The simplest script on a sorted set that takes, and one that gives back: two round trips a pair, each of one lease.
#[derive(Clone)]
pub(crate) struct TwoCalls {
    connection: MultiplexedConnection,
    take: Arc<str>,
    give: Arc<str>,
    key: Arc<str>,
    limit: u32,
    /// Members are told apart by the process and a number.
    members: Arc<AtomicU64>,
}

impl TwoCalls {
    pub(crate) async fn connect(options: &Options) -> Result<Self> {
        let mut connection = connection(options).await?;
        let take = load(&mut connection, TAKE).await?;
        let give = load(&mut connection, GIVE).await?;
        let key = options.key.as_str().into();
        Ok(Self { connection, take, give, key, limit: options.limit, members: Arc::default() })
    }
}

impl Semaphore for TwoCalls {
    type Held = String;

    async fn acquire(&self) -> Result<String> {
        let member = format!("{}-{}", std::process::id(), self.members.fetch_add(1, Ordering::Relaxed));
        let mut call = redis::cmd("EVALSHA");
        call.arg(&*self.take).arg(1).arg(&*self.key).arg(self.limit).arg(&member);
        let mut connection = self.connection.clone();
        while call.query_async::<i64>(&mut connection).await? == 0 {
            // Only with more tasks than the limit, where this is no floor any more.
            sleep(Duration::from_millis(1)).await;
        }
        Ok(member)
    }

    async fn release(&self, member: String) -> Result<()> {
        let mut call = redis::cmd("EVALSHA");
        call.arg(&*self.give).arg(1).arg(&*self.key).arg(&member);
        let removed: i64 = call.query_async(&mut self.connection.clone()).await?;
        ensure!(removed == 1, "the member was gone");
        Ok(())
    }
}

pub(crate) async fn publish(options: &Options) -> Result<Value> {
    let moments = match options.role {
        Role::Sender => send(options).await?,
        Role::Listener => listen(options).await?,
    };
    Ok(json!({ "moments": moments }))
}

/// Publishes every 50 ms, and gives the moments just before.
async fn send(options: &Options) -> Result<Vec<i64>> {
    let mut connection = connection(options).await?;
    let sha = load(&mut connection, PUBLISH).await?;
    let publish = |channel: &str| {
        let mut call = redis::cmd("EVALSHA");
        call.arg(&*sha).arg(1).arg(channel);
        call
    };
    // To a channel that nobody hears, so that no listener counts it.
    let _: i64 = publish(&format!("{}-warm", options.key)).query_async(&mut connection).await?;
    let call = publish(&options.key);
    wait_for_go()?;
    let until = Instant::now() + options.seconds;
    let sends = tokio::spawn(async move {
        let mut ticks = interval(Duration::from_millis(50));
        // A late tick is no reason to hurry: a message that waits behind another tells nothing.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        ticks.tick().await;
        let mut moments = Vec::new();
        while Instant::now() < until {
            ticks.tick().await;
            let moment = clock::now();
            let _: i64 = call.query_async(&mut connection).await?;
            moments.push(moment);
        }
        anyhow::Ok(moments)
    });
    sends.await?
}

/// Gives the moments at which the task that waits has a message.
async fn listen(options: &Options) -> Result<Vec<i64>> {
    let client = Client::open(options.redis.as_str())?;
    let (mut sink, stream) = client.get_async_pubsub().await?.split();
    sink.subscribe(&options.key).await?;
    wait_for_go()?;
    let until = tokio::time::Instant::now() + options.seconds;
    let hears = tokio::spawn(async move {
        let mut moments = Vec::new();
        let mut stream = stream.take_until(Box::pin(sleep_until(until)));
        while stream.next().await.is_some() {
            moments.push(clock::now());
        }
        ensure!(stream.is_stopped(), "the subscription ended");
        Ok(moments)
    });
    let moments = hears.await?;
    // It ends the subscription, so it must live until now.
    drop(sink);
    moments
}
