//! What the Redis store costs, beside floors that are measured in the same run:
//! `cargo run --release -p tidegate-fleet --example redis_figures`.
//!
//! A server is started for it, without persistence. With `taskset -c 0` in front, all of it runs on one core.

// It is a program, and its output is the point.
#![allow(clippy::print_stdout, clippy::expect_used, clippy::unwrap_used, clippy::panic)]

use std::{
    process::{Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use redis::{Client, aio::MultiplexedConnection};
use tidegate::{Acquire, AdaptiveSemaphore, Job, Outcome, Rule, Valve};
use tidegate_fleet::servers::redis::{Options, Redis};
use tidegate_redis::RedisStore;
use tokio::{task::JoinSet, time::sleep};

const BARE: &str = "return 1";
const TAKE: &str = "local t = redis.call('TIME') \
    local now = t[1] * 1000 + math.floor(t[2] / 1000) \
    redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now) \
    if redis.call('ZCARD', KEYS[1]) < tonumber(ARGV[1]) then \
    redis.call('ZADD', KEYS[1], now + 30000, ARGV[2]) return 1 end return 0";
const GIVE: &str = "return redis.call('ZREM', KEYS[1], ARGV[1])";

struct Bench {
    server: Redis,
    url: String,
    ids: AtomicU64,
}

impl Bench {
    fn info(&self, section: &str, field: &str) -> f64 {
        let mut connection = Client::open(self.url.as_str()).unwrap().get_connection().unwrap();
        let info: String = redis::cmd("INFO").arg(section).query(&mut connection).unwrap();
        let line = info.lines().find(|line| line.starts_with(field)).unwrap_or_default().to_owned();
        let value = line.rsplit(':').next().unwrap_or("0");
        let value = value.split(',').next().unwrap_or("0").trim_start_matches("calls=");
        value.trim().parse().unwrap_or(0.0)
    }

    fn round_trips(&self) -> f64 {
        self.info("commandstats", "cmdstat_fcall:")
    }

    fn cpu(&self) -> f64 {
        self.info("cpu", "used_cpu_user:") + self.info("cpu", "used_cpu_sys:")
    }

    async fn connection(&self) -> MultiplexedConnection {
        Client::open(self.url.as_str()).unwrap().get_multiplexed_async_connection().await.unwrap()
    }

    fn id(&self) -> String {
        format!("bench-{}", self.ids.fetch_add(1, Ordering::Relaxed))
    }

    fn semaphore(&self, id: &str, limit: u32) -> AdaptiveSemaphore {
        let store = RedisStore::lazy(&self.url).unwrap();
        AdaptiveSemaphore::builder(id, limit).max_limit(limit).min_limit(limit).build(store).unwrap()
    }
}

fn percentile(times: &mut [Duration], part: f64) -> Duration {
    times.sort_unstable();
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    let at = ((times.len() - 1) as f64 * part) as usize;
    times[at]
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

async fn load(connection: &mut MultiplexedConnection, script: &str) -> String {
    redis::cmd("SCRIPT").arg("LOAD").arg(script).query_async(connection).await.unwrap()
}

async fn bare(bench: &Bench) -> Duration {
    let mut connection = bench.connection().await;
    let sha = load(&mut connection, BARE).await;
    let mut times = Vec::new();
    for _ in 0..4_000 {
        let start = Instant::now();
        let _: i64 = redis::cmd("EVALSHA").arg(&sha).arg(0).query_async(&mut connection).await.unwrap();
        times.push(start.elapsed());
    }
    percentile(&mut times, 0.5)
}

/// Acquires one at a time with nothing else under way; and pairs whose release is not waited for.
async fn alone(bench: &Bench) -> (Duration, f64, f64) {
    let semaphore = bench.semaphore(&bench.id(), 10);
    semaphore.acquire(Acquire::new()).await.unwrap().release(Outcome::Success);
    semaphore.flush().await;
    let mut times = Vec::new();
    for _ in 0..4_000 {
        let start = Instant::now();
        let lease = semaphore.acquire(Acquire::new()).await.unwrap();
        times.push(start.elapsed());
        lease.release(Outcome::Success);
        semaphore.flush().await;
    }
    let (trips, start) = (bench.round_trips(), Instant::now());
    let pairs = 8_000;
    for _ in 0..pairs {
        semaphore.acquire(Acquire::new()).await.unwrap().release(Outcome::Success);
    }
    semaphore.flush().await;
    let pairs = f64::from(pairs);
    let rate = pairs / start.elapsed().as_secs_f64();
    (percentile(&mut times, 0.5), rate, (bench.round_trips() - trips) / pairs)
}

/// Pairs per second of as many tasks as the limit; round trips and microseconds of the server for each.
async fn together(bench: &Bench, tasks: u32, seconds: f64) -> (f64, f64, f64) {
    let semaphore = bench.semaphore(&bench.id(), tasks);
    let (trips, cpu) = (bench.round_trips(), bench.cpu());
    let pairs = pairs_of(&semaphore, tasks, seconds).await;
    semaphore.flush().await;
    let pairs = pairs.max(1.0);
    (pairs / seconds, (bench.round_trips() - trips) / pairs, (bench.cpu() - cpu) * 1e6 / pairs)
}

async fn pairs_of(semaphore: &AdaptiveSemaphore, tasks: u32, seconds: f64) -> f64 {
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    let mut all = JoinSet::new();
    for _ in 0..tasks {
        let semaphore = semaphore.clone();
        all.spawn(async move {
            let mut pairs = 0_u32;
            while Instant::now() < until {
                semaphore.acquire(Acquire::new()).await.unwrap().release(Outcome::Success);
                pairs += 1;
            }
            pairs
        });
    }
    all.join_all().await.into_iter().map(f64::from).sum()
}

/// As a process of its own: says how many pairs it came to.
async fn child(url: &str, id: &str, tasks: u32, seconds: f64) {
    let store = RedisStore::lazy(url).unwrap();
    let limit = tasks * 4;
    let semaphore =
        AdaptiveSemaphore::builder(id, limit).max_limit(limit).min_limit(limit).build(store).unwrap();
    println!("{}", pairs_of(&semaphore, tasks, seconds).await);
    semaphore.close().await;
}

fn processes(bench: &Bench, tasks: u32, seconds: f64) -> f64 {
    let (id, me) = (bench.id(), std::env::current_exe().unwrap());
    let children = (0..4).map(|_| {
        Command::new(&me)
            .args(["child", &bench.url, &id, &tasks.to_string(), &seconds.to_string()])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    });
    let children: Vec<_> = children.collect();
    let pairs = children.into_iter().map(|child| {
        let output = child.wait_with_output().unwrap();
        String::from_utf8_lossy(&output.stdout).trim().parse::<f64>().unwrap()
    });
    pairs.sum::<f64>() / seconds
}

/// The same with the simplest script on a sorted set, a call to take and a call to give back.
async fn two_calls(bench: &Bench, tasks: u32, seconds: f64) -> f64 {
    let mut connection = bench.connection().await;
    let (take, give) = (load(&mut connection, TAKE).await, load(&mut connection, GIVE).await);
    let (key, until) = (bench.id(), Instant::now() + Duration::from_secs_f64(seconds));
    let mut all = JoinSet::new();
    for task in 0..tasks {
        let (mut connection, take, give, key) = (connection.clone(), take.clone(), give.clone(), key.clone());
        all.spawn(async move {
            let mut pairs = 0_u32;
            while Instant::now() < until {
                let member = format!("{task}-{pairs}");
                let mut ask = redis::cmd("EVALSHA");
                ask.arg(&take).arg(1).arg(&key).arg(tasks).arg(&member);
                let granted: i64 = ask.query_async(&mut connection).await.unwrap();
                let mut ask = redis::cmd("EVALSHA");
                ask.arg(&give).arg(1).arg(&key).arg(&member);
                let _: i64 = ask.query_async(&mut connection).await.unwrap();
                pairs += u32::try_from(granted).unwrap();
            }
            pairs
        });
    }
    all.join_all().await.into_iter().map(f64::from).sum::<f64>() / seconds
}

/// From a release over one store to the grant over another, at a limit of 1.
async fn hand_off(bench: &Bench) -> (Duration, Duration) {
    let id = bench.id();
    let (one, other) = (bench.semaphore(&id, 1), bench.semaphore(&id, 1));
    let mut times = Vec::new();
    let mut lease = one.acquire(Acquire::new()).await.unwrap();
    sleep(Duration::from_millis(200)).await;
    for turn in 0..600 {
        let next = if turn % 2 == 0 { other.clone() } else { one.clone() };
        let waiting = tokio::spawn(async move {
            let lease = next.acquire(Acquire::new()).await.unwrap();
            (lease, Instant::now())
        });
        sleep(Duration::from_millis(15)).await;
        let start = Instant::now();
        lease.release(Outcome::Success);
        let (granted, at) = waiting.await.unwrap();
        times.push(at - start);
        lease = granted;
    }
    (percentile(&mut times, 0.5), percentile(&mut times, 0.99))
}

/// From a script that publishes to a task that waits for that.
async fn publish(bench: &Bench) -> (Duration, Duration) {
    let client = Client::open(bench.url.as_str()).unwrap();
    let (mut sink, mut stream) = client.get_async_pubsub().await.unwrap().split();
    sink.subscribe("figures").await.unwrap();
    let (sends, mut hears) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        use futures_util::StreamExt as _;
        while stream.next().await.is_some() {
            if sends.send(Instant::now()).is_err() {
                return;
            }
        }
    });
    let mut connection = bench.connection().await;
    let sha = load(&mut connection, "return redis.call('PUBLISH', 'figures', '1')").await;
    let mut times = Vec::new();
    for _ in 0..600 {
        sleep(Duration::from_millis(5)).await;
        let start = Instant::now();
        let _: i64 = redis::cmd("EVALSHA").arg(&sha).arg(0).query_async(&mut connection).await.unwrap();
        times.push(hears.recv().await.unwrap() - start);
    }
    (percentile(&mut times, 0.5), percentile(&mut times, 0.99))
}

/// Tasks that hold for a while, over some stores: the share of the slots in use, the longest waits, and how alike
/// (Jain's index) the tasks were served.
async fn holding(
    bench: &Bench,
    stores: usize,
    tasks: usize,
    limit: u32,
    hold: Duration,
) -> (f64, Duration, f64) {
    let id = bench.id();
    let semaphores: Vec<_> = (0..stores).map(|_| bench.semaphore(&id, limit)).collect();
    for semaphore in &semaphores {
        semaphore.acquire(Acquire::new()).await.unwrap().release(Outcome::Success);
    }
    sleep(Duration::from_millis(200)).await;
    let seconds = 4.0;
    let (start, waits) = (Instant::now(), Arc::new(Mutex::new(Vec::new())));
    let until = start + Duration::from_secs_f64(seconds);
    let mut all = JoinSet::new();
    for task in 0..tasks {
        let (semaphore, waits) = (semaphores[task % stores].clone(), Arc::clone(&waits));
        all.spawn(async move {
            let (mut served, mut held) = (0_u32, Duration::ZERO);
            while Instant::now() < until {
                let asked = Instant::now();
                let lease = semaphore.acquire(Acquire::new()).await.unwrap();
                let granted = Instant::now();
                waits.lock().unwrap().push(granted - asked);
                sleep(hold).await;
                held += granted.elapsed().min(until.saturating_duration_since(granted));
                lease.release(Outcome::Success);
                served += 1;
            }
            (f64::from(served), held.as_secs_f64())
        });
    }
    let served = all.join_all().await;
    let (sum, squares) = served.iter().fold((0.0, 0.0), |(sum, squares), (n, _)| (sum + n, squares + n * n));
    #[allow(clippy::cast_precision_loss)]
    let jain = sum * sum / (served.len() as f64 * squares);
    let held: f64 = served.iter().map(|(_, held)| held).sum();
    let p99 = percentile(&mut waits.lock().unwrap(), 0.99);
    (held / (seconds * f64::from(limit)), p99, jain)
}

/// Jobs per second that a valve admits, with so many rules that never deny.
async fn rates(bench: &Bench, rules: u64, tasks: u32, seconds: f64) -> f64 {
    let mut valve = Valve::builder(bench.id());
    for rule in 0..rules {
        valve = valve.rule(Rule::token_bucket(1_000_000_000, Duration::from_secs(60 + rule)));
    }
    let valve = valve.build(RedisStore::lazy(&bench.url).unwrap()).unwrap();
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    let mut all = JoinSet::new();
    for _ in 0..tasks {
        let valve = valve.clone();
        all.spawn(async move {
            let mut jobs = 0_u32;
            while Instant::now() < until {
                valve.acquire(Job::new()).await.unwrap().release(Outcome::Success);
                jobs += 1;
            }
            jobs
        });
    }
    all.join_all().await.into_iter().map(f64::from).sum::<f64>() / seconds
}

/// Bytes of the server for each identity of a scoped rule while it counts, and after that.
async fn identities(bench: &Bench) -> (f64, f64) {
    let store = RedisStore::lazy(&bench.url).unwrap();
    let rule = Rule::token_bucket(5, Duration::from_secs(6)).scoped("tenant");
    let valve = Valve::builder(bench.id()).rule(rule).max_queue(100_000).build(store).unwrap();
    valve.acquire(Job::new().scope("tenant", "first")).await.unwrap().release(Outcome::Success);
    let before = bench.info("memory", "used_memory:");
    let count = 50_000;
    let mut all = JoinSet::new();
    for task in 0..500 {
        let valve = valve.clone();
        all.spawn(async move {
            for number in 0..count / 500 {
                let job = Job::new().scope("tenant", format!("tenant-{task}-{number}"));
                valve.acquire(job).await.unwrap().release(Outcome::Success);
            }
        });
    }
    all.join_all().await;
    let during = bench.info("memory", "used_memory:");
    sleep(Duration::from_secs(8)).await;
    let after = bench.info("memory", "used_memory:");
    ((during - before) / f64::from(count), (after - before) / f64::from(count))
}

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().collect();
    if let [_, mode, url, id, tasks, seconds] = args.as_slice()
        && mode == "child"
    {
        return child(url, id, tasks.parse().unwrap(), seconds.parse().unwrap()).await;
    }
    let server = Redis::standalone(&Options::new()).expect("redis-server starts");
    let url = server.url();
    let bench = Bench { server, url, ids: AtomicU64::new(0) };
    let seconds = 2.0;
    let floor = bare(&bench).await;
    println!("bare EVALSHA, one at a time: p50 {:.0} us", micros(floor));
    let (p50, rate, trips) = alone(&bench).await;
    println!(
        "acquire, one at a time: p50 {:.0} us, {:.2} x the bare EVALSHA",
        micros(p50),
        micros(p50) / micros(floor)
    );
    println!("pairs, one at a time: {rate:.0} per s, {trips:.2} round trips each");
    for tasks in [64, 512] {
        let two = two_calls(&bench, tasks, seconds).await;
        let (pairs, trips, cpu) = together(&bench, tasks, seconds).await;
        println!(
            "pairs, {tasks} tasks under a limit of {tasks}: {pairs:.0} per s, {:.2} x two calls on a sorted set \
             ({two:.0}); {trips:.3} round trips and {cpu:.1} us of the server each",
            pairs / two
        );
    }
    println!("pairs, 4 processes x 64 tasks: {:.0} per s", processes(&bench, 64, seconds));
    for rules in [1, 4] {
        println!("admissions, 64 tasks, {rules} rules: {:.0} per s", rates(&bench, rules, 64, seconds).await);
    }
    let ((pub50, pub99), (p50, p99)) = (publish(&bench).await, hand_off(&bench).await);
    println!(
        "hand-off between two stores at a limit of 1: p50 {:.0} us, p99 {:.0} us; a publish alone {:.0} and {:.0} us \
         ({:.2} x)",
        micros(p50),
        micros(p99),
        micros(pub50),
        micros(pub99),
        micros(p50) / micros(pub50)
    );
    let (used, p99, _) = holding(&bench, 1, 128, 64, Duration::from_millis(5)).await;
    println!("128 tasks, limit 64, hold 5 ms: {used:.3} of the slots in use, wait p99 {p99:.1?}");
    let (used, p99, jain) = holding(&bench, 4, 16, 4, Duration::from_millis(20)).await;
    println!(
        "16 tasks in 4 stores, limit 4, hold 20 ms: {used:.3} of the slots in use, wait p99 {p99:.1?}, Jain {jain:.3}"
    );
    let (during, after) = identities(&bench).await;
    println!("an identity of a scoped rule: {during:.0} bytes while it counts, {after:.1} after");
    drop(bench.server);
}
