//! Circuits with as many results and as many processes as there may be: the store does as the model does. And what is kept of a
//! circuit is bounded, listed and forgotten, and is there on a full server.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::Connection;
use tidegate_core::{
    Capability, CircuitMember, CircuitPolicy, CircuitReply, CircuitRequest, DriverId, Id, IdModel, Listener,
    OnSuperseded, Operators as _, Reply, Store as _, StoreError, Wake,
    circuit::{Backoff, Batch, Election, Position, Recovery, Reported, Run, Strategy, Trial, Verdict},
    store::{Cause, CircuitAct, CircuitDid, CircuitNews},
    time::Moment,
};
use tidegate_fleet::servers::redis::{Options, Redis};
use tidegate_redis::RedisStore;

const START: u64 = 1_700_000_000_000;

struct Lab {
    server: Redis,
    store: RedisStore,
    clock: Arc<AtomicU64>,
}

impl Lab {
    async fn start() -> Self {
        Self::with(false).await
    }

    /// With scripts alone, or with functions.
    async fn with(scripts: bool) -> Self {
        let server = Redis::standalone(&Options::new()).unwrap();
        let mut url = server.url();
        if scripts {
            let user = "ACL SETUSER tidegate on >a-secret ~* &* +@all -fcall -function";
            server.command(&user.split(' ').collect::<Vec<_>>()).unwrap();
            url = format!("redis://tidegate:a-secret@{}", server.addr());
        }
        let clock = Arc::new(AtomicU64::new(START));
        let reads = Arc::clone(&clock);
        let store = RedisStore::builder(url)
            .test_clock(move || Moment::from_millis(reads.load(Ordering::SeqCst)))
            .connect()
            .await
            .unwrap();
        Self { server, store, clock }
    }

    fn now(&self) -> u64 {
        self.clock.load(Ordering::SeqCst)
    }

    fn pass(&self, ms: u64) {
        self.clock.fetch_add(ms, Ordering::SeqCst);
    }

    fn connection(&self) -> Connection {
        self.server.connection().unwrap()
    }

    /// How often the server ran a script, and for how long.
    fn runs(&self) -> (u64, f64) {
        let stats: String = redis::cmd("INFO").arg("commandstats").query(&mut self.connection()).unwrap();
        let lines = stats
            .lines()
            .filter(|line| ["cmdstat_fcall:", "cmdstat_evalsha:"].iter().any(|name| line.starts_with(name)));
        let numbers = lines.map(|line| {
            let of = |name: &str| -> f64 {
                line.split([':', ',']).find_map(|part| part.strip_prefix(name)).unwrap().parse().unwrap()
            };
            (of("calls="), of("usec="))
        });
        let (calls, micros) = numbers.fold((0.0, 0.0), |(a, b), (c, d)| (a + c, b + d));
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // a count
        (calls as u64, micros)
    }

    async fn ask(
        &self,
        who: &CircuitMember,
        acts: Vec<CircuitAct>,
    ) -> Result<Reply<CircuitReply>, StoreError> {
        let request = CircuitRequest { acts };
        let reply = self.store.circuit(who, &request).await?;
        reply.body.check(&request).unwrap();
        Ok(reply)
    }
}

fn strategy_of(kind: usize) -> Strategy {
    let minute = Duration::from_secs(60);
    match kind {
        0 => Strategy::Consecutive { threshold: 700 },
        1 => Strategy::Count { threshold: 0.7, size: 1_000, minimum_calls: 900 },
        2 => Strategy::Sampling { threshold: 0.7, duration: minute, minimum_calls: 2_000 },
        3 => Strategy::Custom { keep: 1_000 },
        4 => Strategy::Count { threshold: 0.6, size: 77, minimum_calls: 70 },
        // These seldom open, so that much is kept.
        6 => Strategy::Count { threshold: 0.6, size: 1_000, minimum_calls: 1_000 },
        7 => Strategy::Sampling { threshold: 0.6, duration: minute, minimum_calls: 2_000 },
        8 => Strategy::Sampling { threshold: 0.6, duration: Duration::from_secs(5), minimum_calls: 2_000 },
        _ => Strategy::Sampling { threshold: 0.6, duration: Duration::from_secs(4), minimum_calls: 10 },
    }
}

fn policy(strategy: Strategy, recovery: Recovery, revision: u32, min_reporters: u32) -> Arc<CircuitPolicy> {
    let backoff = Backoff::Exponential { initial: Duration::from_millis(100), multiplier: 1.7, max: None };
    let draft =
        CircuitPolicy::draft(strategy, recovery, backoff).revision(revision).min_reporters(min_reporters);
    Arc::new(draft.check().unwrap())
}

fn member(id: &Id, driver: u128, policy: &Arc<CircuitPolicy>) -> CircuitMember {
    // Numbers that use all of their bytes, so that none is taken for another.
    let driver = DriverId((driver + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
    CircuitMember { id: id.clone(), driver, policy: Arc::clone(policy), on_superseded: OnSuperseded::Adopt }
}

fn random_batch(random: &mut fastrand::Rng, bad: u32) -> Batch {
    let runs = match random.u32(0..10) {
        0 => random.usize(300..=1_000),
        1 => 0,
        _ => random.usize(1..6),
    };
    let run = |random: &mut fastrand::Rng| {
        let times = if random.u32(0..30) == 0 { random.u32(1..=1_000_000) } else { random.u32(1..4) };
        if random.u32(0..10) < bad { Run::failures(times) } else { Run::successes(times) }
    };
    Batch::new((0..runs).map(|_| run(random)).collect()).unwrap()
}

/// Random reports, and what goes with them, of up to 1,300 processes; the same answers as the model's.
async fn agrees(lab: &Lab, seed: u64, steps: usize) {
    let mut random = fastrand::Rng::with_seed(seed);
    let id = Id::new(format!("id {seed}")).unwrap();
    let mut model = IdModel::default();
    let kind = random.usize(0..9);
    let is_calm = kind > 5;
    let recovery = if random.bool() {
        Recovery::HealthCheck {
            check_timeout: Duration::from_secs(1),
            idle_interval: Some(Duration::from_secs(2)),
        }
    } else {
        Recovery::HalfOpen { permits: 40, permit_ttl: Duration::from_secs(1) }
    };
    let min_reporters = [1, 3, 500][random.usize(0..3)];
    let mut own = policy(strategy_of(kind), recovery, 0, min_reporters);
    let processes = [3, 60, 1_300][random.usize(0..3)];
    let (mut number, mut generation, mut fence, mut attempt, mut idle) = (0, 0, 0, 0, 0);
    let mut opened = 0;
    for step in 0..steps {
        // Sometimes all at one moment, so that samples are shared, or crowded.
        match random.u32(0..12) {
            0..4 => {}
            4..11 => lab.pass(random.u64(0..if is_calm { 30 } else { 150 })),
            _ if is_calm && random.u32(0..30) > 0 => lab.pass(1),
            _ if random.u32(0..40) == 0 => {
                lab.clock.fetch_sub(random.u64(1..9_000), Ordering::SeqCst);
            }
            _ => lab.pass(random.u64(0..4_000)),
        }
        if random.u32(0..400) == 0 {
            let strategy = strategy_of(if is_calm { kind } else { random.usize(0..6) });
            own = policy(strategy, recovery, own.revision() + 1, [1, 3, 500][random.usize(0..3)]);
        }
        let who = member(&id, random.u128(0..processes), &own);
        // Long enough that all of a window is of one kind.
        let bad = if is_calm { [3, 9][step / 1_200 % 2] } else { random.u32(1..10) };
        let act = |random: &mut fastrand::Rng, number: &mut u64| match random.u32(0..30) {
            0..18 => {
                *number += 1;
                let number = number.saturating_sub(u64::from(random.u32(0..9) == 0));
                CircuitAct::Report { number, generation, batch: random_batch(random, bad) }
            }
            18 => CircuitAct::Recent,
            19 => CircuitAct::Open { generation },
            20 => CircuitAct::Elect,
            21 => CircuitAct::Renew { fence },
            22 => CircuitAct::Resign { fence },
            23 if idle > 0 && random.bool() => CircuitAct::Verdict {
                fence,
                generation,
                kind: tidegate_core::circuit::CheckKind::Idle { at_ms: idle },
                verdict: if random.bool() { Verdict::Success } else { Verdict::Failure },
            },
            23 | 24 => CircuitAct::Verdict {
                fence,
                generation,
                kind: tidegate_core::circuit::CheckKind::Recovery { attempt },
                verdict: if random.bool() { Verdict::Success } else { Verdict::Failure },
            },
            25 => CircuitAct::Schedule { generation, attempt, wait_ms: random.u64(0..500) },
            26 | 27 => CircuitAct::Trial { ask: random.u64(0..9) },
            28 => CircuitAct::RenewTrial { fence },
            _ if random.bool() => CircuitAct::GiveBack { fence },
            _ => CircuitAct::TrialResult { fence, verdict: Verdict::Success },
        };
        let mut request = CircuitRequest::default();
        for _ in 0..random.usize(0..4) {
            request.acts.push(act(&mut random, &mut number));
        }
        let clock = Moment::from_millis(lab.now());
        let (theirs, ours) = (lab.store.circuit(&who, &request).await, model.circuit(clock, &who, &request));
        assert_eq!(theirs, ours, "seed {seed}, step {step}: {request:?}");
        let Ok(reply) = ours else { continue };
        generation = reply.body.view.generation;
        attempt = reply.body.view.attempt.unwrap_or(0);
        idle = reply.body.view.next_ms.unwrap_or(0);
        for did in &reply.body.did {
            match did {
                CircuitDid::Elected(Election::Leads(leader)) => fence = leader.fence,
                CircuitDid::Trial(Trial::Granted(permit)) => fence = permit.fence,
                CircuitDid::Reported(Reported::Opened(_)) => opened += 1,
                _ => {}
            }
        }
        if !is_calm && random.u32(0..60) == 0 || reply.body.view.is_open() && random.u32(0..12) == 0 {
            let position = if reply.body.view.is_open() { Position::Closed } else { Position::Open };
            let theirs = lab.store.operators().unwrap().set_circuit(&id, position).await;
            assert_eq!(theirs, model.set_circuit(clock, position), "seed {seed}, step {step}");
        }
        if random.u32(0..20) == 0 {
            let theirs = lab.store.snapshot(&id).await.unwrap().body.and_then(|all| all.circuit);
            let ours = model.snapshot(clock, &id).unwrap().body.and_then(|all| all.circuit);
            assert_eq!(theirs, ours, "seed {seed}, step {step}");
        }
    }
    println!("seed {seed}: {kind}, {processes} processes, {opened} opened");
}

async fn agree(scripts: bool) {
    let steps: usize = std::env::var("TIDEGATE_OPERATIONS").map_or(4_000, |steps| steps.parse().unwrap());
    let seed = std::env::var("TIDEGATE_SEED")
        .map_or_else(|_| fastrand::u64(..1 << 40), |seed| seed.parse().unwrap());
    let lab = Lab::with(scripts).await;
    for seed in seed..seed + 6 {
        agrees(&lab, seed, steps.div_ceil(6)).await;
    }
}

#[tokio::test]
async fn st_16_circuits_of_any_size_are_as_the_model() {
    agree(false).await;
}

#[tokio::test]
async fn st_16_circuits_of_any_size_are_as_the_model_without_functions() {
    agree(true).await;
}

/// Reports of one run each, `report` says of whom, on the store and on the model. Gives how many were dropped, and opened it.
async fn reports_agree(
    lab: &Lab,
    id: &str,
    policy: &Arc<CircuitPolicy>,
    steps: u64,
    mut next: impl FnMut(&Lab) -> (u128, u64, Run),
) -> (u32, u32) {
    let (id, mut model) = (Id::new(id).unwrap(), IdModel::default());
    let (mut generation, mut dropped, mut opened) = (0, 0, 0);
    for step in 0..steps {
        let (driver, number, run) = next(lab);
        let who = member(&id, driver, policy);
        let request = CircuitRequest { acts: vec![report(number, generation, vec![run])] };
        let clock = Moment::from_millis(lab.now());
        let theirs = lab.store.circuit(&who, &request).await;
        let ours = model.circuit(clock, &who, &request);
        assert_eq!(theirs, ours, "{id}, step {step}");
        let ours = ours.unwrap().body;
        generation = ours.view.generation;
        dropped += u32::from(ours.did[0] == CircuitDid::Reported(Reported::Dropped));
        if ours.view.is_open() {
            opened += 1;
            let theirs = lab.store.operators().unwrap().set_circuit(&id, Position::Closed).await;
            let ours = model.set_circuit(clock, Position::Closed);
            assert_eq!(theirs, ours);
            generation += 1;
        }
    }
    (dropped, opened)
}

#[tokio::test]
async fn cb_1_samples_are_shared_where_they_are_crowded_as_in_the_model() {
    let lab = Lab::start().await;
    let seed =
        std::env::var("TIDEGATE_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let strategy =
        Strategy::Sampling { threshold: 0.5, duration: Duration::from_secs(1), minimum_calls: 700 };
    let policy = policy(strategy, Recovery::health_check(), 0, 1);
    let mut opened = 0;
    for round in 0..4 {
        // The share of failures is now and then just what opens, or one less.
        let next = |lab: &Lab| {
            lab.pass(1);
            let fails = random.u32(0..100) < 49;
            (1, lab.now(), if fails { Run::failures(1) } else { Run::successes(1) })
        };
        opened += reports_agree(&lab, &format!("crowded {round}"), &policy, 3_000, next).await.1;
    }
    assert!(opened > 1, "{opened}");
}

#[tokio::test]
async fn cb_9_of_too_many_processes_those_are_told_apart_that_the_model_does() {
    let lab = Lab::start().await;
    let seed =
        std::env::var("TIDEGATE_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let policy = policy(Strategy::Custom { keep: 10 }, Recovery::health_check(), 0, 1);
    // Each says the same again and again: it counts once, and once more whenever the process was forgotten.
    let next = |lab: &Lab| {
        // Many at one moment, so that nothing but their numbers tells them apart.
        if random.u32(0..50) == 0 {
            lab.pass(80);
        }
        let run = if random.u32(0..3) == 0 { Run::failures(1) } else { Run::successes(1) };
        (random.u128(0..1_100), 1, run)
    };
    let (dropped, _) = reports_agree(&lab, "too many", &policy, 6_000, next).await;
    // Some were forgotten, and most were not.
    assert!((3_000..6_000 - 1_100).contains(&dropped), "{dropped}");
}

fn failing() -> Arc<CircuitPolicy> {
    policy(Strategy::Consecutive { threshold: 2 }, Recovery::health_check(), 0, 1)
}

fn report(number: u64, generation: u64, runs: Vec<Run>) -> CircuitAct {
    CircuitAct::Report { number, generation, batch: Batch::new(runs).unwrap() }
}

#[tokio::test]
async fn cb_8_a_request_is_one_run_of_a_script_whatever_it_says() {
    let lab = Lab::start().await;
    let who = member(&Id::new("one run").unwrap(), 1, &failing());
    let first = lab.ask(&who, Vec::new()).await.unwrap();
    let generation = first.body.view.generation;
    let (before, _) = lab.runs();
    for number in 1..=10 {
        let acts = vec![
            report(number, generation, vec![Run::successes(3), Run::failures(1)]),
            CircuitAct::Elect,
            CircuitAct::Recent,
            CircuitAct::Trial { ask: number },
        ];
        lab.ask(&who, acts).await.unwrap();
    }
    assert_eq!(lab.runs().0 - before, 10);
}

/// What is pushed, in its order.
#[derive(Default)]
struct Heard(Mutex<Vec<Wake>>);

impl Listener for Heard {
    fn wake(&self, wake: Wake) {
        self.0.lock().unwrap().push(wake);
    }
}

impl Heard {
    fn news(&self) -> Vec<CircuitNews> {
        let wakes = self.0.lock().unwrap();
        wakes
            .iter()
            .filter_map(|wake| match wake {
                Wake::Circuit(news) => Some(*news),
                _ => None,
            })
            .collect()
    }

    async fn until(&self, what: impl Fn(&Self) -> bool) {
        let heard = async {
            while !what(self) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), heard).await.expect("it is told in time");
    }
}

#[tokio::test]
async fn cb_2_what_changes_a_circuit_is_pushed_as_it_stands() {
    let lab = Lab::start().await;
    let id = Id::new("pushed").unwrap();
    let who = member(&id, u128::MAX - 7, &failing());
    let heard = Arc::new(Heard::default());
    let subscription = lab.store.subscribe(&id, DriverId(9), Arc::clone(&heard) as Arc<dyn Listener>);
    assert!(subscription.is_some() && lab.store.capabilities().has(Capability::Circuit));
    heard.until(|heard| heard.0.lock().unwrap().contains(&Wake::Gap)).await;
    let reply = lab.ask(&who, vec![CircuitAct::Elect]).await.unwrap();
    let CircuitDid::Elected(Election::Leads(leader)) = reply.body.did[0] else { panic!("{reply:?}") };
    let generation = reply.body.view.generation;
    lab.pass(5);
    let opened = lab.ask(&who, vec![report(1, generation, vec![Run::failures(2)])]).await.unwrap();
    let resigned = lab.ask(&who, vec![CircuitAct::Resign { fence: leader.fence }]).await.unwrap();
    heard.until(|heard| heard.news().len() >= 2).await;
    let expected =
        [opened, resigned].map(|reply| CircuitNews { view: reply.body.view, now: reply.head.now.unwrap() });
    // Election alone told nobody anything.
    assert_eq!(heard.news(), expected);
    assert_eq!((expected[0].view.leader, expected[1].view.leader), (Some(leader), None));
}

#[tokio::test]
async fn st_20_an_id_that_has_only_a_circuit_is_listed_once_shown_and_forgotten() {
    let lab = Lab::start().await;
    let operators = lab.store.operators().unwrap();
    let id = Id::new("only a circuit").unwrap();
    let who = member(&id, 1, &failing());
    let reply = lab.ask(&who, vec![CircuitAct::Elect]).await.unwrap();
    let CircuitDid::Elected(Election::Leads(leader)) = reply.body.did[0] else { panic!("{reply:?}") };
    assert_eq!(operators.ids(None, 10).await.unwrap().body.items, std::slice::from_ref(&id));
    assert_eq!(operators.forget(&id).await, Err(StoreError::LeasesLive { held: 1 }));
    lab.store.pause(&id, Duration::from_secs(1)).await.unwrap();
    assert_eq!(operators.ids(None, 10).await.unwrap().body.items, std::slice::from_ref(&id));
    let shown = operators.snapshot(&id).await.unwrap().body.unwrap().circuit.unwrap();
    assert_eq!((shown.view, shown.policy), (reply.body.view, failing()));
    lab.ask(&who, vec![CircuitAct::Resign { fence: leader.fence }]).await.unwrap();
    assert!(operators.forget(&id).await.unwrap().body);
    assert!(!operators.forget(&id).await.unwrap().body);
    assert_eq!(redis::cmd("DBSIZE").query::<u64>(&mut lab.connection()).unwrap(), 0);
}

#[tokio::test]
async fn st_17_what_a_circuit_keeps_is_bounded_and_over_in_time() {
    let lab = Lab::start().await;
    let mut connection = lab.connection();
    for kind in 0..4 {
        let id = Id::new(format!("bounded {kind}")).unwrap();
        let policy = policy(strategy_of(kind), Recovery::health_check(), 0, 2_000);
        let key = format!("tidegate:{{{id}}}:c");
        let generation = lab.ask(&member(&id, 0, &policy), Vec::new()).await.unwrap().body.view.generation;
        let mut fields = 0;
        for step in 0..2_600 {
            lab.pass(if step % 40 == 0 { 40 } else { 3 });
            let batch = vec![if step % 2 == 0 { Run::successes(1) } else { Run::failures(1) }];
            lab.ask(&member(&id, step, &policy), vec![report(1, generation, batch)]).await.unwrap();
            if step % 20 == 19 {
                fields = fields.max(redis::cmd("HLEN").arg(&key).query(&mut connection).unwrap());
            }
        }
        // 1,000 processes, blocks of 32 for 1,024 results and one that is begun, and five others.
        assert!((1_004..=1_000 + 34 + 6).contains(&fields), "kind {kind}: {fields} fields");
        let life: u64 = redis::cmd("PTTL").arg(&key).query(&mut connection).unwrap();
        let day = 24 * 60 * 60 * 1_000;
        assert!((30 * day..=33 * day).contains(&life), "{life}");
        // Who is silent is forgotten when somebody looks.
        lab.pass(70_000);
        lab.ask(&member(&id, 0, &policy), vec![report(9, generation, vec![Run::failures(1)])]).await.unwrap();
        let shown = lab.store.snapshot(&id).await.unwrap().body.unwrap().circuit.unwrap();
        let left: u64 = redis::cmd("HLEN").arg(&key).query(&mut connection).unwrap();
        assert_eq!((shown.heard, shown.failing), (1, 1));
        // The last results of a `Count`, and those for a strategy of one's own, are as old as they are.
        let blocks = if kind % 2 == 1 { 33 } else { 1 };
        assert!(left <= 6 + blocks, "kind {kind}: {left} fields are left");
        // After 30 days without use it starts anew.
        lab.pass(30 * day);
        assert_eq!(lab.store.snapshot(&id).await.unwrap().body, None);
    }
}

#[tokio::test]
async fn un_3_a_full_server_keeps_and_frees_what_a_circuit_has_and_takes_nothing_new() {
    for scripts in [false, true] {
        let lab = Lab::with(scripts).await;
        let who = member(&Id::new("full").unwrap(), 1, &failing());
        let acts = vec![CircuitAct::Elect];
        let reply = lab.ask(&who, acts).await.unwrap();
        let CircuitDid::Elected(Election::Leads(leader)) = reply.body.did[0] else { panic!("{reply:?}") };
        let generation = reply.body.view.generation;
        lab.ask(&who, vec![report(1, generation, vec![Run::failures(2)])]).await.unwrap();
        redis::cmd("CONFIG").arg("SET").arg("maxmemory").arg("1mb").exec(&mut lab.connection()).unwrap();
        let refused = lab.ask(&who, vec![report(2, generation, vec![Run::failures(2)])]).await;
        assert!(matches!(refused, Err(StoreError::Unavailable { cause: Cause::Refused, .. })), "{refused:?}");
        lab.pass(100);
        let kind = tidegate_core::circuit::CheckKind::Recovery { attempt: 1 };
        let (fence, verdict) = (leader.fence, Verdict::Success);
        let acts = vec![
            CircuitAct::Renew { fence },
            CircuitAct::Verdict { fence, generation: generation + 1, kind, verdict },
            CircuitAct::Resign { fence },
        ];
        let reply = lab.ask(&who, acts).await.unwrap();
        assert_eq!((reply.body.view.is_open(), reply.body.view.leader), (false, None));
        assert!(matches!(reply.body.did[0], CircuitDid::Renewed(Some(_))));
    }
}

#[tokio::test]
#[ignore = "a measurement"]
async fn what_a_request_costs_the_server() {
    for scripts in [false, true] {
        let lab = Lab::with(scripts).await;
        for (name, kind, processes, runs) in [
            ("Consecutive, 1 process", 0, 1, 3),
            ("Consecutive, 256 processes", 0, 256, 3),
            ("Count of 1,000, 1 process", 1, 1, 3),
            ("Count of 1,000, 256 processes", 1, 256, 3),
            ("Count of 1,000, 256 processes, 40 runs", 1, 256, 40),
            ("Sampling of 60 s, 1 process", 2, 1, 3),
            ("Sampling of 60 s, 256 processes", 2, 256, 3),
            ("Custom of 1,000, 256 processes, and the recent", 3, 256, 3),
            ("Count of 1,000, 1 process, 1,000 runs", 1, 1, 1_000),
            ("Consecutive, 1,000 processes", 0, 1_000, 3),
        ] {
            let id = Id::new(format!("{name} {scripts}")).unwrap();
            let policy = policy(strategy_of(kind), Recovery::health_check(), 0, 3);
            let generation =
                lab.ask(&member(&id, 0, &policy), Vec::new()).await.unwrap().body.view.generation;
            let mut at = (0, 0.0);
            for step in 0..4_000_u64 {
                if step == 2_000 {
                    at = lab.runs();
                }
                lab.pass(if kind == 2 { 60 } else { 1 });
                let run = |at: u64| if at % 3 == 2 { Run::failures(1) } else { Run::successes(1) };
                let mut acts = vec![report(step + 1, generation, (0..runs).map(run).collect())];
                if kind == 3 {
                    acts.push(CircuitAct::Recent);
                }
                lab.ask(&member(&id, u128::from(step % processes), &policy), acts).await.unwrap();
            }
            let now = lab.runs();
            #[allow(clippy::cast_precision_loss)] // thousands
            let each = (now.1 - at.1) / (now.0 - at.0) as f64;
            println!("{}: {name}: {each:.1} us", if scripts { "scripts" } else { "functions" });
        }
        let slow: Vec<redis::Value> = redis::cmd("SLOWLOG").arg("GET").query(&mut lab.connection()).unwrap();
        println!("{} above 10 ms", slow.len());
    }
}
