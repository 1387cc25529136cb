//! Cases from practice on real Redis servers: what went wrong for others, and the right result here.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // helpers of tests may say what they expect, too

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tidegate::{
    AcquireError, Concurrency, Id, Job, Operators as _, Outcome, Permit, Rule, Store as _, StoreError, Token,
    Valve,
    clock::{Clock, Pace, Sleep, SystemClock},
    contract::{
        AcquireRequest, Bound, Cause, Costs, DriverId, Exchange, Identity, Line, Member, Name, OnSuperseded,
        Owner, Policy, Release, Renewal, ScopedJob, ScopedRequest, Sequence, time::Moment,
    },
};
use tidegate_fleet::{
    fleet::Fleet,
    proxy::{Proxy, Way, Which},
    record::Event,
    servers::redis::{Cluster, Options, Redis},
    worker::{Algorithm, Gate, Plan, RulePlan, Span},
};
use tidegate_redis::RedisStore;
use tokio::time::{sleep, timeout};

const PROGRAM: &str = env!("CARGO_BIN_EXE_tidegate-worker");
const PATIENCE: Duration = Duration::from_secs(30);

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn store(url: &str) -> RedisStore {
    RedisStore::lazy(url).unwrap()
}

/// A bound on concurrency alone.
fn bounded(url: &str, limit: u32, ttl: Duration) -> Valve {
    let builder = Valve::builder("provider").concurrency(Concurrency::Global(limit)).lease_ttl(ttl);
    builder.build(store(url)).unwrap()
}

async fn held(store: &RedisStore) -> u32 {
    let snapshot = store.snapshot(&Id::new("provider").unwrap()).await.unwrap().body;
    snapshot.map_or(0, |snapshot| snapshot.held)
}

/// Looks until it is so; says how long that took.
async fn until(what: &str, within: Duration, mut is_so: impl AsyncFnMut() -> bool) -> Duration {
    let start = Instant::now();
    while !is_so().await {
        assert!(start.elapsed() < within, "not within {within:?}: {what}");
        sleep(ms(5)).await;
    }
    start.elapsed()
}

fn random() -> fastrand::Rng {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    fastrand::Rng::with_seed(seed)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_4_a_holder_that_cannot_renew_knows_before_the_next_has_its_slot() {
    let server = Redis::standalone(&Options::new()).unwrap();
    let proxy = Proxy::to(server.addr()).unwrap();
    let ttl = ms(1_000);
    let (holder, other) = (bounded(&server.url_at(proxy.addr()), 1, ttl), bounded(&server.url(), 1, ttl));
    let permit = Arc::new(holder.acquire(Job::new()).await.unwrap());
    // Three TTLs of work, which its renewals cover.
    let start = Instant::now();
    while start.elapsed() < ttl * 3 {
        let denied = other.acquire(Job::new().timeout(ms(200))).await;
        assert!(matches!(denied, Err(AcquireError::Timeout { .. })), "{denied:?}");
        assert!(permit.is_live());
    }
    let cut = Instant::now();
    proxy.blackhole(Way::Both);
    let held = Arc::clone(&permit);
    let next = tokio::spawn(async move {
        let permit = other.acquire(Job::new()).await.unwrap();
        // Whoever looks knows by the clock, however late a busy machine wakes whoever waits for it.
        let is_held = held.is_live();
        (Instant::now(), permit, is_held)
    });
    timeout(ttl * 2, permit.lost()).await.expect("the holder hears of it");
    let heard = Instant::now();
    assert!(!permit.is_live());
    assert!(heard < cut + ttl + ms(100), "{:?} after the last success at the latest", heard - cut);
    let (granted, _next, was_held) = next.await.unwrap();
    assert!(!was_held, "the next had the slot before the holder knew");
    assert!(granted < cut + ttl + ms(1_000), "the slot came back after {:?}", granted - cut);
}

/// The machine's clock, set wrong.
struct Shifted {
    clock: SystemClock,
    ahead_ms: i64,
}

impl Shifted {
    fn shift(moment: Moment, by_ms: i64) -> Moment {
        let micros = i64::try_from(moment.micros()).unwrap() + by_ms * 1_000;
        Moment::from_micros(u64::try_from(micros).unwrap())
    }
}

impl Clock for Shifted {
    fn now(&self) -> Moment {
        Self::shift(self.clock.now(), self.ahead_ms)
    }

    fn sleep_until(&self, at: Moment) -> Sleep {
        self.clock.sleep_until(Self::shift(at, -self.ahead_ms))
    }

    fn pace(&self) -> Pace {
        Pace::Real
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_7_wrong_wall_clocks_change_nothing() {
    let minutes = |minutes: i64| minutes * 60_000;
    for shifts in [[0; 4], [minutes(-10), minutes(-1), minutes(1), minutes(10)]] {
        let server = Redis::standalone(&Options::new()).unwrap();
        let interval = ms(500);
        let valves = shifts.map(|ahead_ms| {
            Valve::builder("provider")
                .rule(Rule::sliding_window(10, interval))
                .concurrency(Concurrency::Global(3))
                .lease_ttl(ms(400))
                .clock(Shifted { clock: SystemClock::new(), ahead_ms })
                .build(store(&server.url()))
                .unwrap()
        });
        let start = Instant::now();
        let mut tasks = Vec::new();
        for valve in valves.iter().chain(&valves) {
            let valve = valve.clone();
            tasks.push(tokio::spawn(async move {
                let mut granted = Vec::new();
                while start.elapsed() < interval * 4 {
                    let asked = start.elapsed();
                    if let Ok(permit) = valve.acquire(Job::new().timeout(interval * 2)).await {
                        granted.push((asked, start.elapsed()));
                        assert!(permit.is_live(), "a lease is live, whatever the clock");
                    }
                }
                granted
            }));
        }
        let mut granted = Vec::new();
        for task in tasks {
            granted.extend(task.await.unwrap());
        }
        // In the span up to here at most so many windows fit, and so many were filled.
        let last = granted.iter().map(|(_, at)| *at).max().unwrap();
        let windows = usize::try_from(last.as_millis() / interval.as_millis()).unwrap() + 1;
        assert!(granted.len() <= windows * 10, "{} in {last:?}: {shifts:?}", granted.len());
        assert!(granted.len() >= 4 * 10, "{} in {last:?}: {shifts:?}", granted.len());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_11_the_first_window_after_an_outage_admits_exactly_its_limit() {
    let server = Redis::standalone(&Options::new()).unwrap();
    let proxy = Proxy::to(server.addr()).unwrap();
    let interval = ms(1_000);
    let valve = Valve::builder("provider")
        .rule(Rule::fixed_window(5, interval))
        .fallback_rule(Rule::fixed_window(5, interval))
        .op_timeout(ms(200))
        .build(store(&server.url_at(proxy.addr())))
        .unwrap();
    let one =
        || async { valve.acquire(Job::new().timeout(ms(50))).await.ok().map(|permit| permit.is_local()) };
    assert_eq!(one().await, Some(false));
    proxy.refuse();
    proxy.cut();
    let start = Instant::now();
    let mut alone = 0;
    while start.elapsed() < interval * 3 / 2 {
        alone += usize::from(one().await == Some(true));
    }
    assert!((5..=15).contains(&alone), "{alone} were admitted alone");
    proxy.heal();
    let first = until("the store decides again", PATIENCE, async || one().await == Some(false)).await;
    println!("the store decided again after {first:?}");
    let start = Instant::now();
    let mut after = Vec::new();
    while start.elapsed() < interval * 5 / 2 {
        match one().await {
            Some(true) => panic!("admitted alone while the store is there"),
            Some(false) => after.push(start.elapsed()),
            None => {}
        }
    }
    // The first one opened the window.
    let in_first = 1 + after.iter().filter(|at| **at < interval - ms(20)).count();
    assert_eq!(in_first, 5, "{after:?}");
    let in_second =
        after.iter().filter(|at| (interval - ms(20)..interval * 2 - ms(20)).contains(*at)).count();
    assert_eq!(in_second, 5, "{after:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_16_dropped_and_panicked_work_frees_its_slots_at_once_and_killed_work_within_one_ttl() {
    let server = Redis::standalone(&Options::new()).unwrap();
    let ttl = ms(3_000);
    let plan = Plan {
        ttl_ms: 3_000,
        tasks: 1,
        hold_ms: Span(600_000, 600_000),
        ..Plan::new(server.url(), "provider", Gate::Global { limit: 10 })
    };
    let mut fleet = Fleet::start(PROGRAM, &plan, 3).unwrap();
    fleet.wait_for_grants(3, PATIENCE).unwrap();
    let (valve, other) = (bounded(&server.url(), 10, ttl), bounded(&server.url(), 10, ttl));
    let mut tasks = Vec::new();
    for number in 0..7 {
        let valve = valve.clone();
        let (started, has_started) = tokio::sync::oneshot::channel();
        let (go, gone) = tokio::sync::oneshot::channel::<()>();
        let task = tokio::spawn(async move {
            let permit = valve.acquire(Job::new()).await.unwrap();
            started.send(()).unwrap();
            gone.await.unwrap();
            // The permit is dropped by what unwinds.
            let _held = permit;
            panic!("number {number} panics with its permit");
        });
        has_started.await.unwrap();
        tasks.push((task, go));
    }
    let full = other.try_acquire(Job::new()).await;
    assert!(matches!(full, Err(AcquireError::Timeout { .. })), "{full:?}");
    for worker in 0..3 {
        fleet.kill(worker).unwrap();
    }
    let killed = Instant::now();
    for (number, (task, go)) in tasks.into_iter().enumerate() {
        // Four futures are dropped where they stand; three panic.
        if number < 4 {
            task.abort();
            assert!(task.await.unwrap_err().is_cancelled());
        } else {
            go.send(()).unwrap();
            assert!(task.await.unwrap_err().is_panic());
        }
    }
    let mut permits = Vec::new();
    for _ in 0..7 {
        permits.push(other.acquire(Job::new().timeout(ms(1_000))).await.expect("a slot that was given back"));
    }
    assert!(killed.elapsed() < ttl / 3, "at once: {:?}", killed.elapsed());
    for _ in 0..3 {
        permits.push(other.acquire(Job::new().timeout(ttl * 2)).await.expect("a slot of a dead process"));
        // Renewed 80 % of a TTL before at the earliest, so not free before a fifth of it.
        assert!(
            killed.elapsed() > ttl / 5,
            "a slot of a dead process came back after {:?}",
            killed.elapsed()
        );
    }
    assert!(killed.elapsed() < ttl + ms(700), "within one TTL: {:?}", killed.elapsed());
    let mut slots: Vec<_> = permits.iter().map(|permit| permit.slot().unwrap()).collect();
    slots.sort_unstable();
    assert_eq!(slots, (0..10).collect::<Vec<_>>());
}

/// The keys of a server, each with how long it lives on, in milliseconds.
fn lives(server: &Redis) -> BTreeMap<String, i64> {
    let mut connection = server.connection().unwrap();
    let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
    let life = |key: Vec<u8>| {
        let left: i64 = redis::cmd("PTTL").arg(&key).query(&mut connection).unwrap();
        (key.escape_ascii().to_string(), left)
    };
    keys.into_iter().map(life).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_19_killed_clients_leave_no_key_without_an_expiry_and_no_identity_shut() {
    let server = Redis::standalone(&Options::new()).unwrap();
    let interval = ms(500);
    let rule = |algorithm, name: &str| RulePlan {
        name: Some(name.to_owned()),
        scope: Some("tenant".to_owned()),
        ..RulePlan::new(algorithm, 40, interval)
    };
    let rules = vec![rule(Algorithm::SlidingWindow, "calls"), rule(Algorithm::TokenBucket, "bucket")];
    let identities = 20;
    let plan = Plan {
        ttl_ms: 1_000,
        tasks: 8,
        hold_ms: Span(0, 5),
        timeout_ms: 300,
        identities,
        abandon: 10,
        abandon_ms: Span(0, 5),
        seed: random().u64(..),
        ..Plan::new(server.url(), "provider", Gate::Valve { rules: rules.clone(), limit: Some(30) })
    };
    let mut fleet = Fleet::start(PROGRAM, &plan, 3).unwrap();
    let mut kills = 0;
    let calls = |fleet: &Fleet| {
        fleet.records().iter().filter(|record| matches!(record.event, Event::Called { .. })).count()
    };
    while calls(&fleet) < 10_000 {
        fleet.wait_for_grants(200, PATIENCE).unwrap();
        fleet.kill(kills).unwrap();
        fleet.add().unwrap();
        kills += 1;
    }
    assert!(kills > 5, "{kills}");
    drop(fleet);
    let keys = lives(&server);
    println!("{kills} kills, {} keys", keys.len());
    assert!(keys.len() > 3, "{keys:?}");
    for (key, left) in &keys {
        // A pin is kept for 30 days, and the key a day longer than whatever it holds.
        assert!((1..=33 * 86_400_000).contains(left), "{key} lives for {left} ms");
        let is_pin = key == "tidegate:{provider}";
        assert!(is_pin || *left <= 62_000, "{key} lives for {left} ms");
    }
    sleep(interval + plan.lease_ttl()).await;
    let builder = Valve::builder("provider").concurrency(Concurrency::Global(30)).lease_ttl(plan.lease_ttl());
    let valve = rules.iter().fold(builder, |builder, rule| builder.rule(rule.rule()));
    let valve = valve.build(store(&server.url())).unwrap();
    let start = Instant::now();
    for identity in 0..identities {
        for _ in 0..30 {
            let job = Job::new().scope("tenant", format!("tenant {identity}"));
            let permit = valve.try_acquire(job).await;
            drop(permit.unwrap_or_else(|error| panic!("tenant {identity}: {error:?}")));
        }
    }
    println!("all identities admitted again in {:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_20_cancelled_acquires_leak_no_lease_while_the_store_is_slow() {
    let server = Redis::standalone(&Options::new()).unwrap();
    let proxy = Proxy::to(server.addr()).unwrap();
    let delay = ms(8);
    proxy.delay(Way::Both, delay);
    let ttl = Duration::from_secs(60);
    let valve = bounded(&server.url_at(proxy.addr()), 40, ttl);
    // Connecting through the proxy takes its time, and is not what this is about.
    until("it is connected", PATIENCE, async || valve.acquire(Job::new()).await.is_ok()).await;
    let mut seeds = random();
    let granted = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for _ in 0..100 {
        let (valve, granted) = (valve.clone(), Arc::clone(&granted));
        let mut random = seeds.fork();
        tasks.push(tokio::spawn(async move {
            for _ in 0..100 {
                let patience = ms(random.u64(0..=50));
                match timeout(patience, valve.acquire(Job::new())).await {
                    Ok(Ok(permit)) => {
                        granted.fetch_add(1, Ordering::Relaxed);
                        // Half of them are dropped in the same instant, the others are held into the next acquires.
                        if random.bool() {
                            sleep(ms(random.u64(0..20))).await;
                        }
                        drop(permit);
                    }
                    // A store that is away on a busy machine is back before long.
                    Ok(Err(_)) => sleep(patience).await,
                    Err(_) => {}
                }
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    let granted = granted.load(Ordering::Relaxed);
    assert!((100..9_900).contains(&granted), "{granted} of 10,000 were not cancelled");
    let direct = store(&server.url());
    let took = until("no lease lives", ms(1_000) + delay * 2, async || held(&direct).await == 0).await;
    println!("{granted} granted; no lease after {took:?}");
    // And the room is there.
    let mut permits: Vec<Permit> = Vec::new();
    for _ in 0..40 {
        permits.push(valve.acquire(Job::new()).await.unwrap());
    }
    assert_eq!(held(&direct).await, 40);
}

fn member(policy: &Arc<Policy>, driver: u128) -> Member {
    Member {
        id: Id::new("provider").unwrap(),
        driver: DriverId(driver),
        owner: Owner::new("a client").unwrap(),
        policy: Arc::clone(policy),
        on_superseded: OnSuperseded::Adopt,
        initial_limit: 1,
    }
}

fn exchange(number: u64, identity: &str) -> Exchange {
    let scopes = vec![(Name::new("scope", "tenant").unwrap(), Identity::new(identity).unwrap())];
    let acquire = ScopedRequest {
        class: None,
        jobs: vec![ScopedJob { costs: Costs::default(), scopes }],
        line: Line { waiting: 1, waited_ms: 10 },
    };
    Exchange {
        sequence: Some(Sequence { number, not_after: None }),
        acquires: vec![tidegate::contract::Acquire::Scoped(acquire)],
        ..Exchange::default()
    }
}

#[tokio::test]
async fn case_22_clients_that_come_and_die_all_day_leave_nothing_that_grows() {
    let server = Redis::standalone(&Options::new()).unwrap();
    let now = Arc::new(AtomicU64::new(1_700_000_000_000_000));
    let reads = Arc::clone(&now);
    let builder = RedisStore::builder(server.url());
    let store = builder.test_clock(move || Moment::from_micros(reads.load(Ordering::SeqCst))).lazy().unwrap();
    let rules = [
        Rule::sliding_window(50, ms(60_000)).named("tenant").scoped("tenant"),
        Rule::token_bucket(1_000, ms(1_000)).named("all"),
    ];
    let draft = Policy::draft().bound(Bound::Fixed(20)).lease_ttl(ms(30_000));
    let policy = Arc::new(rules.into_iter().fold(draft, |draft, rule| draft.rule(rule)).check().unwrap());
    let mut connection = server.connection().unwrap();
    let main = "tidegate:{provider}";
    let mut random = random();
    let mut days = Vec::new();
    // A minute each: a hundred clients ask twice and die with what they hold. Every tenth minute of a day is one of these.
    for minute in 0..144_u64 {
        redis::cmd("CONFIG").arg("RESETSTAT").exec(&mut connection).unwrap();
        for client in 0..100 {
            let member = member(&policy, u128::from(minute * 1_000 + client + 1));
            let identity = format!("t{}", random.u32(0..30));
            for number in 1..=random.u64(1..=2) {
                store.exchange(&member, &exchange(number, &identity)).await.unwrap();
            }
            now.fetch_add(600_000, Ordering::SeqCst);
        }
        let fields: u64 = redis::cmd("HLEN").arg(main).query(&mut connection).unwrap();
        let bytes: u64 =
            redis::cmd("MEMORY").arg(&["USAGE", main, "SAMPLES", "0"]).query(&mut connection).unwrap();
        let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut connection).unwrap();
        let count = |command: &str| -> u64 {
            let line = stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")));
            line.and_then(|line| line.split(',').next()?.parse().ok()).unwrap_or(0)
        };
        let inside: u64 =
            ["hmget", "hget", "hset", "hdel", "get", "set", "del", "pexpire"].map(count).iter().sum();
        days.push((fields, bytes, inside * 100 / count("fcall")));
        // Their last answers live for a minute, and then are gone; here the server's clock stands nearly still.
        let keys: Vec<String> = redis::cmd("KEYS").arg(format!("{main}:x:*")).query(&mut connection).unwrap();
        assert!(keys.len() <= 100, "{}", keys.len());
        keys.iter().for_each(|key| redis::cmd("DEL").arg(key).exec(&mut connection).unwrap());
        now.fetch_add(9 * 60_000_000, Ordering::SeqCst);
    }
    let most = |days: &[(u64, u64, u64)]| {
        let of = |pick: fn(&(u64, u64, u64)) -> u64| days.iter().map(pick).max().unwrap();
        (of(|day| day.0), of(|day| day.1), of(|day| day.2))
    };
    let (early, late) = (most(&days[..24]), most(&days[120..]));
    println!("fields, bytes, commands in 100 calls: {early:?} at first, {late:?} at last");
    assert!(
        late.0 <= early.0 + 2 && late.1 <= early.1 + 256 && late.2 <= early.2 + 10,
        "{early:?}, {late:?}"
    );
    let all = lives(&server);
    assert!(all.len() <= 1 + 30, "{} keys", all.len());
    assert!(all.values().all(|left| *left > 0), "{all:?}");
}

#[tokio::test]
async fn st_17_a_call_sweeps_no_more_than_it_may_and_answers_as_if_all_was_swept() {
    let server = Redis::standalone(&Options::new()).unwrap();
    let now = Arc::new(AtomicU64::new(1_700_000_000_000_000));
    let reads = Arc::clone(&now);
    let builder = RedisStore::builder(server.url());
    let store = builder.test_clock(move || Moment::from_micros(reads.load(Ordering::SeqCst))).lazy().unwrap();
    let policy = Policy::draft().bound(Bound::Fixed(5_000)).lease_ttl(ms(30_000)).check().unwrap();
    let member = member(&Arc::new(policy), 1);
    let jobs = AcquireRequest { class: None, jobs: vec![Default::default(); 500], line: Line::default() };
    for _ in 0..10 {
        assert_eq!(store.acquire(&member, &jobs).await.unwrap().body.grants.len(), 500);
    }
    assert_eq!(store.acquire(&member, &jobs).await.unwrap().body.grants.len(), 0, "all is taken");
    now.fetch_add(30_000_000, Ordering::SeqCst);
    // All have ended: whoever asks now is served, though most are yet to be swept.
    let reply = store.acquire(&member, &jobs).await.unwrap();
    assert_eq!(reply.body.grants.len(), 500);
    let mut held = reply.head.held.unwrap();
    assert!((3_500..=4_500).contains(&held), "{held} after the first call");
    let mut calls = 1;
    while held > 500 {
        let next = store.release(&member, &[]).await.unwrap().head.held.unwrap();
        assert!(next < held && held - next <= 1_000, "{held} before a call, {next} after it");
        held = next;
        calls += 1;
    }
    assert!(held == 500 && calls <= 6, "{calls} calls");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_30_any_identity_and_any_id_pass_on_a_cluster() {
    let cluster = Cluster::start(3).unwrap();
    let ids = ["provider", "a b", "ü:x:y", "日本 語", "🦀", "*?[]^\\", "a:i:4:calls:b", "'\"; DROP"];
    let identities = [
        "{a}",
        "}{",
        "{",
        "}",
        "{}",
        "a b",
        " ",
        "ü",
        "日本語",
        "🦀🦀",
        "a:b",
        "*",
        "?",
        "\\",
        "\0",
        "\r\n",
        "{provider}",
        "x:00000000000000000000000000000001",
    ];
    for id in ids {
        let valve = Valve::builder(id)
            .rule(Rule::fixed_window(3, ms(86_400_000)).named("calls").scoped("tenant"))
            .rule(Rule::sliding_window(1, ms(86_400_000)).named("once").scoped("user"))
            .concurrency(Concurrency::Global(4))
            .build(store(&cluster.url()))
            .unwrap();
        for (number, identity) in identities.iter().enumerate() {
            for turn in 0..4 {
                let job =
                    Job::new().scope("tenant", *identity).scope("user", format!("{identity}{number}{turn}"));
                let admitted = valve.try_acquire(job).await;
                match (turn, &admitted) {
                    (0..3, Ok(_)) | (3, Err(AcquireError::Timeout { .. })) => {}
                    _ => panic!("{id:?}, {identity:?}, turn {turn}: {admitted:?}"),
                }
            }
        }
    }
    let asked = store(&cluster.url());
    let mut listed: Vec<String> =
        asked.ids(None, 100).await.unwrap().body.items.iter().map(ToString::to_string).collect();
    listed.sort();
    let mut expected = ids.map(str::to_owned);
    expected.sort();
    assert_eq!(listed, expected);
    let spread = cluster.nodes().iter().filter(|node| !lives(node).is_empty()).count();
    assert!(spread > 1, "ids lie on several shards");
}

fn refused(error: &StoreError) {
    match error {
        StoreError::Unavailable { cause: Cause::Refused, detail, .. } => {
            assert!(detail.contains("maxmemory"), "{detail}");
        }
        other => panic!("{other}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_32_a_full_server_refuses_in_words_changes_nothing_and_lets_go_all_the_same() {
    let server = Redis::standalone(&Options::new().set("maxmemory-policy", "noeviction")).unwrap();
    let store = store(&server.url());
    let policy =
        Policy::draft().bound(Bound::Fixed(5)).rule(Rule::token_bucket(100, ms(1_000))).lease_ttl(ms(30_000));
    let member = member(&Arc::new(policy.check().unwrap()), 1);
    let jobs =
        |count| AcquireRequest { class: None, jobs: vec![Default::default(); count], line: Line::default() };
    let reply = store.acquire(&member, &jobs(3)).await.unwrap().body;
    let tokens: Vec<Token> = reply.grants.iter().map(|grant| grant.lease.unwrap()).collect();
    assert_eq!(tokens.len(), 3);

    let kept = || -> BTreeMap<Vec<u8>, Vec<u8>> {
        let mut fields: BTreeMap<Vec<u8>, Vec<u8>> = redis::cmd("HGETALL")
            .arg("tidegate:{provider}")
            .query(&mut server.connection().unwrap())
            .unwrap();
        // It has the moment of the last look, and counts that the answers show.
        fields.remove(b"s".as_slice()).unwrap();
        fields
    };
    let before = kept();
    server.config_set("maxmemory", "1").unwrap();
    refused(&store.acquire(&member, &jobs(1)).await.unwrap_err());
    assert_eq!(kept(), before, "a refusal changes nothing");
    refused(&store.pause(&member.id, ms(1_000)).await.unwrap_err());
    assert_eq!(kept(), before);
    let snapshot = store.snapshot(&member.id).await.unwrap().body.unwrap();
    assert_eq!((snapshot.held, snapshot.paused_ms), (3, 0));

    // What only gives back or keeps is done all the same.
    let renewals: Vec<Renewal> = tokens.iter().map(|token| Renewal { token: *token, class: None }).collect();
    assert_eq!(store.renew(&member, None, &renewals).await.unwrap().body.live, [true; 3]);
    let release = |token: &Token| Release { token: *token, outcome: Outcome::Success, retry_after_ms: None };
    let reply = store.release(&member, &[release(&tokens[0])]).await.unwrap();
    assert_eq!(reply.head.held, Some(2));
    // In one exchange, the release is done and the acquire alone is refused.
    let both = Exchange {
        sequence: Some(Sequence { number: 1, not_after: None }),
        releases: vec![release(&tokens[1])],
        acquires: vec![tidegate::contract::Acquire::Prefix(jobs(1))],
        ..Exchange::default()
    };
    let reply = store.exchange(&member, &both).await.unwrap();
    assert_eq!(reply.head.held, Some(1));
    refused(reply.body.acquired[0].as_ref().unwrap_err());
    // The same under the same number is answered the same; what is asked anew finds the room.
    server.config_set("maxmemory", "0").unwrap();
    let again = store.exchange(&member, &both).await.unwrap();
    assert_eq!(again.body, reply.body);
    let reply = store.acquire(&member, &jobs(5)).await.unwrap();
    assert!(!reply.body.grants.is_empty() && reply.head.held == Some(5), "{reply:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_32_permits_are_kept_and_given_back_while_the_server_is_full() {
    let server = Redis::standalone(&Options::new().set("maxmemory-policy", "noeviction")).unwrap();
    let ttl = ms(800);
    let valve = bounded(&server.url(), 3, ttl);
    let (kept, dropped) =
        (valve.acquire(Job::new()).await.unwrap(), valve.acquire(Job::new()).await.unwrap());
    server.config_set("maxmemory", "1").unwrap();
    let start = Instant::now();
    let error = valve.acquire(Job::new()).await.unwrap_err();
    assert!(start.elapsed() < ms(1_500), "{:?}", start.elapsed());
    match &error {
        AcquireError::Unavailable { source, .. } => refused(source),
        other => panic!("{other:?}"),
    }
    drop(dropped);
    let direct = store(&server.url());
    until("what was dropped is free", ms(1_000), async || held(&direct).await == 1).await;
    while start.elapsed() < ttl * 3 {
        assert!(kept.is_live(), "a lease was lost {:?} after the server was full", start.elapsed());
        sleep(ms(20)).await;
    }
    server.config_set("maxmemory", "0").unwrap();
    let again = async || valve.acquire(Job::new().timeout(ms(500))).await.is_ok();
    until("it works again", ms(5_000), again).await;
    assert!(kept.is_live());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn case_33_a_waiter_is_granted_within_the_polling_bound_without_its_subscription() {
    let server = Redis::standalone(&Options::new()).unwrap();
    let proxy = Proxy::to(server.addr()).unwrap();
    let ttl = Duration::from_secs(30);
    let (holder, waiter) = (bounded(&server.url(), 1, ttl), bounded(&server.url_at(proxy.addr()), 1, ttl));
    let mut slowest = Duration::ZERO;
    for round in 0..12 {
        let permit = holder.acquire(Job::new().timeout(ms(2_000))).await.unwrap();
        let waits = waiter.clone();
        let waiting = tokio::spawn(async move {
            let permit = waits.acquire(Job::new()).await.unwrap();
            (Instant::now(), permit)
        });
        until("the waiter waits", PATIENCE, async || waiter.stats().queued == 1).await;
        if round > 0 {
            until("it has subscribed", PATIENCE, async || proxy.subscribed() > 0).await;
        }
        sleep(ms(30)).await;
        let cut = proxy.cut_only(Which::Subscribed);
        assert!(cut > 0 || round == 0, "there was a subscription to cut");
        let released = Instant::now();
        drop(permit);
        let (granted, _) = timeout(ms(5_000), waiting).await.expect("it is granted").unwrap();
        slowest = slowest.max(granted - released);
    }
    println!("the slowest took {slowest:?}");
    // Polls come every 100 to 500 ms.
    assert!(slowest < ms(900), "{slowest:?}");
}
