//! Damage to stored state: each key and each field is deleted or overwritten singly while work runs, and work goes on.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::Connection;
use tidegate_core::{
    Acquire, Acquired, Bound, CircuitMember, CircuitPolicy, CircuitRequest, Class, Costs, DriverId, Epoch,
    Exchange, Head, Id, Identity, Limit, Line, Member, Name, OnSuperseded, Operators as _, Outcome, Owner,
    Policy, Queue, Release, Renewal, Restore, Rule, ScopedJob, ScopedRequest, Sequence, Store as _,
    StoreError, Token,
    circuit::{Backoff, Batch, Election, Leader, Recovery, Run, Strategy, Trial, TrialPermit, Verdict},
    limit::{Aimd, Growth, LimitPolicy},
    store::{Cause, CircuitAct, CircuitDid, CircuitView},
    time::Moment,
};
use tidegate_fleet::servers::redis::{Options, Redis};
use tidegate_redis::RedisStore;

const TTL: u64 = 10_000;
const STEP: u64 = 1_000;
const MOST: u32 = 6;

fn policy() -> Arc<Policy> {
    let second = Duration::from_secs(1);
    let aimd = Aimd::new().decrease_factor(0.9).window(second).cooldown(second * 2);
    let limit = LimitPolicy::check(2, MOST, &aimd, second, Growth::Additive).unwrap();
    let draft = Policy::draft()
        .bound(Bound::Adaptive(limit))
        .lease_ttl(Duration::from_millis(TTL))
        .class(Class::reserved("a", 0.25))
        .class(Class::unreserved("b"))
        .rule(Rule::token_bucket(50, second).named("own").scoped("tenant"))
        .rule(Rule::sliding_window(8, second).named("all"))
        .rule(Rule::fixed_window(9, second).named("window"));
    Arc::new(draft.check().unwrap())
}

/// One process, as far as a store sees it.
struct Driver {
    member: Member,
    class: Option<Name>,
    number: u64,
    epoch: Option<Epoch>,
    limit: Option<Limit>,
    /// Each with the moment when it was last known to live.
    held: BTreeMap<(u64, u32), (Token, u64)>,
}

impl Driver {
    fn new(id: &Id, number: u128, class: Option<&str>, policy: &Arc<Policy>) -> Self {
        let member = Member {
            id: id.clone(),
            driver: DriverId(number),
            owner: Owner::new(format!("owner {number}")).unwrap(),
            policy: Arc::clone(policy),
            on_superseded: OnSuperseded::Adopt,
            initial_limit: 4,
        };
        let class = class.map(|class| Name::new("class", class).unwrap());
        Self { member, class, number: 0, epoch: None, limit: None, held: BTreeMap::new() }
    }

    fn live(&self, now: u64) -> usize {
        self.held.values().filter(|(_, seen)| now < seen + TTL).count()
    }

    /// All in one exchange: what is held is kept, `released` is given back, and so many jobs are asked for.
    async fn work(
        &mut self,
        store: &RedisStore,
        now: u64,
        released: usize,
        outcome: Outcome,
        asked: usize,
    ) -> Result<usize, StoreError> {
        self.number += 1;
        let releases: Vec<Token> = self.held.values().take(released).map(|(token, _)| *token).collect();
        for token in &releases {
            self.held.remove(&(token.fence, token.slot));
        }
        let kept: Vec<Token> = self.held.values().map(|(token, _)| *token).collect();
        let tenant = Name::new("scope", "tenant").unwrap();
        let job = |at: usize| ScopedJob {
            costs: Costs::default(),
            scopes: vec![(tenant.clone(), Identity::new(format!("t {{}} {}", at % 2)).unwrap())],
        };
        let line = Line { waiting: u32::try_from(asked).unwrap(), waited_ms: 100 };
        let acquires = (asked > 0).then(|| {
            Acquire::Scoped(ScopedRequest {
                class: self.class.clone(),
                jobs: (0..asked).map(job).collect(),
                line,
            })
        });
        let exchange = Exchange {
            sequence: Some(Sequence { number: self.number, not_after: None }),
            restore: self.epoch.map(|epoch| Restore { epoch, limit: self.limit, paused_ms: 0 }),
            releases: releases
                .into_iter()
                .map(|token| Release { token, outcome, retry_after_ms: None })
                .collect(),
            renewals: kept.iter().map(|token| Renewal { token: *token, class: self.class.clone() }).collect(),
            acquires: acquires.into_iter().collect(),
            queues: vec![Queue { class: self.class.clone(), line }],
            ..Exchange::default()
        };
        let answer = tokio::time::timeout(Duration::from_secs(5), store.exchange(&self.member, &exchange));
        let reply = answer.await.expect("an answer in time")?;
        self.note(&reply.head);
        for (token, live) in kept.iter().zip(reply.body.renewed?.live) {
            match live {
                true => self.held.insert((token.fence, token.slot), (*token, now)),
                false => self.held.remove(&(token.fence, token.slot)),
            };
        }
        let mut granted = 0;
        for acquired in reply.body.acquired {
            let acquired: Acquired = acquired?;
            for (_, grant) in acquired.grants() {
                let token = grant.lease.unwrap();
                self.held.insert((token.fence, token.slot), (token, now));
                granted += 1;
            }
        }
        Ok(granted)
    }

    fn note(&mut self, head: &Head) {
        self.epoch = head.epoch.or(self.epoch);
        self.limit = head.limit.or(self.limit);
    }
}

/// What is done to a value.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Delete,
    Empty,
    Noise(usize),
    NoiseOfItsLength,
    Half,
    Flip,
    Lengthened,
    Ones,
    Zeroes,
    OtherType,
}

const DAMAGES: [Damage; 12] = [
    Damage::Delete,
    Damage::Empty,
    Damage::Noise(1),
    Damage::Noise(8),
    Damage::Noise(300),
    Damage::NoiseOfItsLength,
    Damage::Half,
    Damage::Flip,
    Damage::Lengthened,
    Damage::Ones,
    Damage::Zeroes,
    Damage::OtherType,
];

impl Damage {
    /// What becomes of a value; none where it is gone.
    fn of(self, value: &[u8], random: &mut fastrand::Rng) -> Option<Vec<u8>> {
        let mut noise = |length: usize| -> Vec<u8> { (0..length).map(|_| random.u8(..)).collect() };
        Some(match self {
            Self::Delete | Self::OtherType => return None,
            Self::Empty => Vec::new(),
            Self::Noise(length) => noise(length),
            Self::NoiseOfItsLength => noise(value.len()),
            Self::Half => value[..value.len() / 2].to_vec(),
            Self::Flip => {
                let mut value = value.to_vec();
                if !value.is_empty() {
                    let at = random.usize(..value.len());
                    value[at] ^= 1 << random.u8(..8);
                }
                value
            }
            Self::Lengthened => [value, &noise(9)].concat(),
            Self::Ones => vec![0xff; value.len()],
            Self::Zeroes => vec![0; value.len()],
        })
    }
}

/// What is damaged: a key, or a field of a hash.
#[derive(Clone, Debug)]
enum Target {
    Key(Vec<u8>),
    Field(Vec<u8>, Vec<u8>),
}

impl Target {
    /// All keys of an id, and all fields of the hash that its name and `hash` make.
    fn all(connection: &mut Connection, id: &Id, hash: &str) -> Vec<Self> {
        let main = format!("tidegate:{{{id}}}");
        let mut keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg(format!("{main}*")).query(connection).unwrap();
        keys.sort();
        let hash = main + hash;
        let mut fields: Vec<Vec<u8>> = redis::cmd("HKEYS").arg(&hash).query(connection).unwrap();
        fields.sort();
        let fields = fields.into_iter().map(|field| Self::Field(hash.clone().into_bytes(), field));
        keys.into_iter().map(Self::Key).chain(fields).collect()
    }

    /// Whether it is a layout that now reads as a newer one, which is refused on purpose (ST-21).
    fn is_newer_layout(&self, connection: &mut Connection) -> bool {
        let Self::Field(key, field) = self else { return false };
        let left: Option<Vec<u8>> = redis::cmd("HGET").arg(key).arg(field).query(connection).unwrap_or(None);
        let layout = left.and_then(|left| String::from_utf8(left).ok()?.trim().parse::<f64>().ok());
        field == b"v" && layout.is_some_and(|layout| layout > 1.0)
    }

    fn damage(&self, damage: Damage, connection: &mut Connection, random: &mut fastrand::Rng) -> String {
        let shown = |bytes: &[u8]| bytes.escape_ascii().to_string();
        match self {
            Self::Field(key, field) => {
                let value: Vec<u8> = redis::cmd("HGET").arg(key).arg(field).query(connection).unwrap();
                let new = damage.of(&value, random);
                match &new {
                    None => redis::cmd("HDEL").arg(key).arg(field).exec(connection).unwrap(),
                    Some(new) => redis::cmd("HSET").arg(key).arg(field).arg(new).exec(connection).unwrap(),
                }
                let new = new.map(|new| shown(&new));
                format!("{damage:?} of field {}: {} to {new:?}", shown(field), shown(&value))
            }
            Self::Key(key) => {
                let value: Vec<u8> = redis::cmd("GET").arg(key).query(connection).unwrap_or_default();
                redis::cmd("DEL").arg(key).exec(connection).unwrap();
                match (damage, damage.of(&value, random)) {
                    (Damage::OtherType, _) => {
                        redis::cmd("LPUSH").arg(key).arg("odd").exec(connection).unwrap();
                    }
                    (_, Some(new)) => redis::cmd("SET").arg(key).arg(&new).exec(connection).unwrap(),
                    (_, None) => {}
                }
                format!("{damage:?} of key {}: {}", shown(key), shown(&value))
            }
        }
    }
}

struct Lab {
    server: Redis,
    store: RedisStore,
    clock: Arc<AtomicU64>,
    policy: Arc<Policy>,
}

impl Lab {
    async fn start() -> Self {
        let server = Redis::standalone(&Options::new()).unwrap();
        let clock = Arc::new(AtomicU64::new(1_700_000_000_000));
        let reads = Arc::clone(&clock);
        let store = RedisStore::builder(server.url())
            .test_clock(move || Moment::from_micros(reads.load(Ordering::SeqCst) * 1_000))
            .connect()
            .await
            .unwrap();
        Self { server, store, clock, policy: policy() }
    }

    fn now(&self) -> u64 {
        self.clock.load(Ordering::SeqCst)
    }

    fn pass(&self, ms: u64) {
        self.clock.fetch_add(ms, Ordering::SeqCst);
    }

    /// Three processes at work: leases, one of them resting, places in the queue, levels, and answers that are kept.
    async fn at_work(&self, id: &Id) -> [Driver; 3] {
        let mut drivers = [(1, Some("a")), (2, Some("b")), (3, None)]
            .map(|(n, class)| Driver::new(id, n, class, &self.policy));
        for (driver, asked) in drivers.iter_mut().zip([2, 2, 3]) {
            driver.work(&self.store, self.now(), 0, Outcome::Success, asked).await.unwrap();
            self.pass(3);
        }
        drivers[0].work(&self.store, self.now(), 1, Outcome::Throttled, 1).await.unwrap();
        self.pass(3);
        drivers[1].work(&self.store, self.now(), 1, Outcome::Success, 1).await.unwrap();
        drivers[2].work(&self.store, self.now(), 0, Outcome::Success, 3).await.unwrap();
        drivers
    }

    /// One damage to one part, and two and a half TTLs of work after it.
    async fn trial(&self, id: &Id, drivers: &mut [Driver; 3], seen: &mut Seen) -> Result<(), String> {
        let damaged_at = self.now();
        let before: usize = drivers.iter().map(|driver| driver.live(damaged_at)).sum();
        let mut granted_at = Vec::new();
        let mut corruptions = 0;
        let mut tell = |answer: Result<usize, StoreError>| match answer {
            Ok(granted) => Ok(granted),
            Err(StoreError::Unavailable { cause: Cause::Corrupt, .. }) => {
                corruptions += 1;
                Ok(0)
            }
            Err(error) => Err(error.to_string()),
        };
        while self.now() < damaged_at + TTL * 5 / 2 {
            for driver in drivers.iter_mut() {
                self.pass(STEP / 3);
                let now = self.now();
                let live = driver.live(now);
                // One holds on to what it has, which is kept up all the time; the others come and go.
                let holds = driver.member.driver.0 == 1 && now < damaged_at + TTL;
                let (released, asked) = if holds { (0, usize::from(live == 0)) } else { (live.min(1), 2) };
                let granted = tell(driver.work(&self.store, now, released, Outcome::Success, asked).await)?;
                if granted > 0 {
                    granted_at.push(now);
                }
            }
            tell(self.store.snapshot(id).await.map(|_| 0))?;
            tell(self.store.leases(id, None, 100).await.map(|_| 0))?;
            let now = self.now();
            let live: usize = drivers.iter().map(|driver| driver.live(now)).sum();
            let bound = usize::try_from(MOST).unwrap() + if now < damaged_at + TTL { before } else { 0 };
            ensure(live <= bound, || format!("{live} live, {bound} may be, {} ms after", now - damaged_at))?;
            seen.most = seen.most.max(live);
        }
        let first = granted_at.first().ok_or("nothing was granted any more")? - damaged_at;
        ensure(first <= TTL + STEP, || format!("nothing was granted for {first} ms"))?;
        ensure(granted_at.len() > 15, || format!("only {} grants", granted_at.len()))?;
        let last = self.now() - granted_at.last().unwrap_or(&0);
        ensure(last < 2 * STEP, || format!("nothing was granted in the last {last} ms"))?;
        ensure(corruptions <= 3, || format!("{corruptions} answers were of corruption"))?;
        seen.corruptions += corruptions;
        // In the end what the store counts and what is held are the same, but for what rests.
        let now = self.now();
        let live: usize = drivers.iter().map(|driver| driver.live(now)).sum();
        let snapshot = self.store.snapshot(id).await.unwrap().body.expect("the id is in use");
        let counted = usize::try_from(snapshot.held).unwrap();
        ensure(counted == live, || format!("the store counts {counted}, {live} are held"))
    }
}

fn ensure(is_so: bool, fault: impl Fn() -> String) -> Result<(), String> {
    if is_so { Ok(()) } else { Err(fault()) }
}

#[derive(Default)]
struct Seen {
    trials: usize,
    corruptions: usize,
    most: usize,
}

/// `TIDEGATE_DAMAGES` has each part damaged in more ways.
#[tokio::test]
async fn case_17_each_key_and_field_is_deleted_or_overwritten_singly_while_work_runs() {
    let rounds: u32 = std::env::var("TIDEGATE_DAMAGES").map_or(1, |rounds| rounds.parse().unwrap());
    let seed =
        std::env::var("TIDEGATE_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let lab = Lab::start().await;
    let mut connection = lab.server.connection().unwrap();
    let first = Id::new("looked at").unwrap();
    lab.at_work(&first).await;
    let parts = Target::all(&mut connection, &first, "").len();
    assert!(parts > 20, "only {parts} parts are kept");
    let mut seen = Seen::default();
    let mut faults = Vec::new();
    let mut names = std::collections::BTreeSet::new();
    for round in 0..rounds {
        for part in 0..parts {
            for damage in DAMAGES {
                let id = Id::new(format!("{round}.{part}.{damage:?}")).unwrap();
                let mut drivers = lab.at_work(&id).await;
                let all = Target::all(&mut connection, &id, "");
                // Fences differ, and nothing else that is kept.
                assert_eq!(all.len(), parts);
                let what = all[part].damage(damage, &mut connection, &mut random);
                if let Target::Field(_, field) = &all[part] {
                    names.insert(field.clone());
                }
                if all[part].is_newer_layout(&mut connection) {
                    continue;
                }
                let outcome = lab.trial(&id, &mut drivers, &mut seen).await;
                // A layout that reads as a newer one is refused as that, and left alone: it cannot be told from one.
                let is_layout = matches!(&all[part], Target::Field(_, field) if field == b"v");
                if let Err(fault) = outcome
                    && !(is_layout && fault.contains("stored state has layout"))
                {
                    faults.push(format!("{fault}: {}", what.chars().take(200).collect::<String>()));
                }
                seen.trials += 1;
            }
        }
        redis::cmd("FLUSHALL").exec(&mut connection).unwrap();
    }
    println!("{} trials, {} corruptions, {} live at most", seen.trials, seen.corruptions, seen.most);
    let names: Vec<String> = names.iter().map(|name| name.escape_ascii().to_string()).collect();
    println!("fields: {}", names.join(" "));
    assert!(faults.is_empty(), "seed {seed}, {} faults:\n{}", faults.len(), faults.join("\n"));
    // What is damaged is mostly noticed, and what was lost was granted anew.
    assert!(seen.corruptions > seen.trials / 3, "{} of {}", seen.corruptions, seen.trials);
}

const PERMITS: u32 = 3;

/// Circuits of three processes, each with a policy of its own kind.
struct Circuits {
    lab: Lab,
    policies: [Arc<CircuitPolicy>; 3],
}

impl Circuits {
    async fn start() -> Self {
        let recovery = Recovery::HalfOpen { permits: PERMITS, permit_ttl: Duration::from_secs(2) };
        let backoff = Backoff::Constant(Duration::from_millis(500));
        let policies = [
            Strategy::Consecutive { threshold: 20 },
            Strategy::Count { threshold: 0.5, size: 100, minimum_calls: 20 },
            Strategy::Sampling { threshold: 0.5, duration: Duration::from_secs(5), minimum_calls: 20 },
        ]
        .map(|strategy| {
            let draft = CircuitPolicy::draft(strategy, recovery, backoff).min_reporters(2);
            Arc::new(draft.check().unwrap())
        });
        Self { lab: Lab::start().await, policies }
    }

    fn processes(&self, id: &Id, kind: usize) -> [Process; 3] {
        [1, 2, 3].map(|driver| Process {
            member: CircuitMember {
                id: id.clone(),
                driver: DriverId(driver << 100 | driver),
                policy: Arc::clone(&self.policies[kind]),
                on_superseded: OnSuperseded::Adopt,
            },
            number: 0,
            view: None,
            trials: Vec::new(),
            leads: None,
        })
    }

    async fn ask(&self, process: &mut Process, acts: Vec<CircuitAct>) -> Result<Vec<CircuitDid>, StoreError> {
        let request = CircuitRequest { acts };
        let answer = self.lab.store.circuit(&process.member, &request);
        let reply = tokio::time::timeout(Duration::from_secs(5), answer).await.expect("an answer in time")?;
        reply.body.check(&request)?;
        process.view = Some(reply.body.view);
        Ok(reply.body.did)
    }

    /// What a process of a breaker says: what its calls came to, that it leads or would, and a trial call where it is open.
    async fn work(&self, process: &mut Process, runs: &[Run]) -> Result<(), StoreError> {
        process.number += 1;
        let generation = process.view.map_or(0, |view| view.generation);
        let batch = Batch::new(runs.to_vec()).unwrap();
        let acts = vec![CircuitAct::Report { number: process.number, generation, batch }, CircuitAct::Elect];
        let did = self.ask(process, acts).await?;
        process.leads = match did[1] {
            CircuitDid::Elected(Election::Leads(leader)) => Some(leader),
            _ => None,
        };
        let now = self.lab.now();
        process.trials.retain(|permit| now < permit.until_ms);
        if process.view.is_some_and(|view| view.is_open()) && process.trials.is_empty() {
            process.number += 1;
            let did = self.ask(process, vec![CircuitAct::Trial { ask: process.number }]).await?;
            if let CircuitDid::Trial(Trial::Granted(permit)) = did[0] {
                process.trials.push(permit);
            }
        }
        Ok(())
    }

    /// A circuit at work: closed, with results in several blocks, or open, with trial calls out.
    async fn at_work(&self, id: &Id, kind: usize, open: bool) -> [Process; 3] {
        let mut processes = self.processes(id, kind);
        for round in 0..40 {
            for process in &mut processes {
                self.lab.pass(7);
                let runs = [Run::successes(1), Run::failures(u32::from(round % 3 == 0)), Run::successes(1)];
                let runs: Vec<Run> = runs.into_iter().filter(|run| run.times > 0).collect();
                self.work(process, &runs).await.unwrap();
            }
        }
        while open && processes.iter().map(|process| process.trials.len()).sum::<usize>() < 2 {
            for process in &mut processes {
                self.lab.pass(90);
                self.work(process, &[Run::failures(40)]).await.unwrap();
            }
        }
        processes
    }

    /// One damage, and work after it: a circuit that opens, closes again, and has one leader and no more trials than it may.
    async fn trial(&self, id: &Id, processes: &mut [Process; 3]) -> Result<usize, String> {
        let damaged_at = self.lab.now();
        let before: usize = processes.iter().map(|process| process.trials.len()).sum();
        let mut corruptions = 0;
        let mut changes = [0, 0];
        while self.lab.now() < damaged_at + 16_000 {
            let fails = (self.lab.now() - damaged_at) % 8_000 < 4_000;
            let mut leaders = Vec::new();
            for process in processes.iter_mut() {
                self.lab.pass(STEP / 10);
                let runs = if fails { [Run::failures(15)] } else { [Run::successes(15)] };
                let was_open = process.view.is_some_and(|view| view.is_open());
                let mut outcome = self.work(process, &runs).await;
                if let Some(permit) = process.trials.pop_if(|_| !fails) {
                    let acts =
                        vec![CircuitAct::TrialResult { fence: permit.fence, verdict: Verdict::Success }];
                    outcome = outcome.and(self.ask(process, acts).await.map(drop));
                }
                match outcome {
                    Ok(()) => {}
                    Err(StoreError::Unavailable { cause: Cause::Corrupt, .. }) => corruptions += 1,
                    Err(error) => return Err(error.to_string()),
                }
                let is_open = process.view.is_some_and(|view| view.is_open());
                changes[usize::from(is_open)] += usize::from(was_open != is_open);
                leaders.extend(process.leads.filter(|leader| self.lab.now() < leader.until_ms));
            }
            let live: usize = processes.iter().map(|process| process.trials.len()).sum();
            let most = usize::try_from(PERMITS).unwrap()
                + if self.lab.now() < damaged_at + 2_000 { before } else { 0 };
            ensure(live <= most, || format!("{live} trial calls, {most} may be"))?;
            // Leadership that was lost with the state ends with its lease.
            ensure(leaders.len() <= 1 || self.lab.now() < damaged_at + 2_500, || format!("{leaders:?}"))?;
            match self.lab.store.snapshot(id).await {
                Err(StoreError::Unavailable { cause: Cause::Corrupt, .. }) => corruptions += 1,
                Err(error) => return Err(error.to_string()),
                Ok(_) => {}
            }
        }
        ensure(changes.iter().all(|times| *times >= 2), || format!("closed and opened {changes:?} times"))?;
        ensure(corruptions <= 2, || format!("{corruptions} answers were of corruption"))?;
        Ok(corruptions)
    }
}

/// One process of a breaker, as far as a store sees it.
struct Process {
    member: CircuitMember,
    number: u64,
    view: Option<CircuitView>,
    trials: Vec<TrialPermit>,
    leads: Option<Leader>,
}

#[tokio::test]
async fn case_17_each_field_of_a_circuit_is_deleted_or_overwritten_singly_while_it_works() {
    let rounds: u32 = std::env::var("TIDEGATE_DAMAGES").map_or(1, |rounds| rounds.parse().unwrap());
    let seed =
        std::env::var("TIDEGATE_SEED").map_or_else(|_| fastrand::u64(..), |seed| seed.parse().unwrap());
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    let circuits = Circuits::start().await;
    let mut connection = circuits.lab.server.connection().unwrap();
    let (mut trials, mut corruptions, mut faults) = (0, 0, Vec::new());
    let mut names = std::collections::BTreeSet::new();
    let kinds = (0..rounds).flat_map(|_| [(0, false), (1, false), (2, false), (0, true)]);
    for (kind, open) in kinds {
        let first = Id::new("looked at").unwrap();
        circuits.at_work(&first, kind, open).await;
        let parts = Target::all(&mut connection, &first, ":c").len();
        for (part, damage) in (0..parts).flat_map(|part| DAMAGES.map(|damage| (part, damage))) {
            let id = Id::new(format!("{kind}.{open}.{part}.{damage:?}")).unwrap();
            let mut processes = circuits.at_work(&id, kind, open).await;
            let all = Target::all(&mut connection, &id, ":c");
            let target = &all[part.min(all.len() - 1)];
            if let Target::Field(_, field) = target {
                names.insert(field.clone());
            }
            let what = target.damage(damage, &mut connection, &mut random);
            trials += 1;
            if target.is_newer_layout(&mut connection) {
                continue;
            }
            match circuits.trial(&id, &mut processes).await {
                Ok(seen) => corruptions += seen,
                Err(fault) => {
                    let what: String = what.chars().take(200).collect();
                    faults.push(format!("{kind}, open {open}: {fault}: {what}"));
                }
            }
        }
        redis::cmd("FLUSHALL").exec(&mut connection).unwrap();
    }
    println!("{trials} trials, {corruptions} corruptions");
    let names: Vec<String> = names.iter().map(|name| name.escape_ascii().to_string()).collect();
    println!("fields: {}", names.join(" "));
    assert!(names.len() >= 11, "only {names:?}");
    assert!(faults.is_empty(), "seed {seed}, {} faults:\n{}", faults.len(), faults.join("\n"));
    assert!(corruptions > trials / 2, "{corruptions} of {trials}");
}
