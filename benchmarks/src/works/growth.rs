//! What one exchange costs as things grow, on the memory store and on Redis: ids, leases, processes, rules, identities.
//!
//! The clients are simulated: each is a driver to the store, and speaks the contract itself. On Redis the server says how
//! long it was at work; the memory store is timed.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use tidegate::{MemoryStore, Outcome, Rule, Store};
use tidegate_core::{
    Acquire, AcquireRequest, Acquired, Bound as Leases, DriverId, Exchange, Id, Identity, Job, Line, Member,
    Name, OnSuperseded, Owner, Policy, Release, ScopedJob, ScopedRequest, Sequence, Token,
};
use tidegate_fleet::servers::redis::{Options, Redis};
use tidegate_redis::RedisStore;

use super::{Suite, semaphores::server_micros};
use crate::{
    figure::{Bound, Report},
    stats::{float, median},
};

const LONG: Duration = Duration::from_secs(3_600);
const SCOPE: &str = "tenant";

/// A driver of one id, without a process of its own.
struct Client {
    member: Member,
    number: u64,
    held: Vec<Token>,
    /// Of how many identities its jobs are, where its policy has a scope.
    identities: Option<u64>,
}

impl Client {
    fn new(id: &str, driver: u128, policy: &Arc<Policy>, identities: Option<u64>) -> Result<Self> {
        let member = Member {
            id: Id::new(id)?,
            driver: DriverId(driver),
            owner: Owner::new("growth")?,
            policy: Arc::clone(policy),
            initial_limit: 1,
            on_superseded: OnSuperseded::Adopt,
        };
        Ok(Self { member, number: 0, held: Vec::new(), identities })
    }

    /// Gives back the newest lease, if it has one and `releases`, and asks for so many jobs.
    async fn step(&mut self, store: &dyn Store, releases: bool, jobs: usize) -> Result<()> {
        let acquire = match self.identities {
            None => Acquire::Prefix(AcquireRequest {
                class: None,
                jobs: vec![Job::default(); jobs],
                line: Line::default(),
            }),
            Some(count) => scoped((0..jobs).map(|_| fastrand::u64(..count)))?,
        };
        self.exchange(store, releases, acquire).await
    }

    async fn exchange(&mut self, store: &dyn Store, releases: bool, acquire: Acquire) -> Result<()> {
        self.number += 1;
        let back = self.held.pop_if(|_| releases);
        let release = |token| Release { token, outcome: Outcome::Success, retry_after_ms: None };
        let exchange = Exchange {
            sequence: Some(Sequence { number: self.number, not_after: None }),
            releases: back.map(release).into_iter().collect(),
            acquires: vec![acquire],
            ..Exchange::default()
        };
        let mut reply = store.exchange(&self.member, &exchange).await?;
        match reply.body.acquired.pop().context("one answer")?? {
            Acquired::Prefix(reply) => self.held.extend(reply.grants.iter().filter_map(|grant| grant.lease)),
            Acquired::Scoped(reply) => anyhow::ensure!(reply.denied.is_empty(), "it was to be admitted"),
        }
        Ok(())
    }
}

fn scoped(identities: impl Iterator<Item = u64>) -> Result<Acquire> {
    let scope = Name::new("scope", SCOPE)?;
    let jobs = identities.map(|identity| {
        let identity = Identity::new(format!("identity-{identity}"))?;
        Ok(ScopedJob { costs: tidegate_core::Costs::default(), scopes: vec![(scope.clone(), identity)] })
    });
    let jobs = jobs.collect::<Result<Vec<_>>>()?;
    Ok(Acquire::Scoped(ScopedRequest { class: None, jobs, line: Line::default() }))
}

fn leased(limit: u32) -> Result<Arc<Policy>> {
    Ok(Arc::new(Policy::draft().bound(Leases::Fixed(limit)).lease_ttl(LONG).check()?))
}

fn ruled(rules: u32) -> Result<Arc<Policy>> {
    let mut draft = Policy::draft();
    for rule in 1..=rules {
        draft = draft.rule(Rule::token_bucket(1_000_000_000, Duration::from_secs(60) * rule));
    }
    Ok(Arc::new(draft.check()?))
}

/// Where it is measured: a store, and its server where it has one.
struct Place {
    store: Arc<dyn Store>,
    server: Option<Redis>,
}

impl Place {
    fn memory() -> Self {
        Self { store: Arc::new(MemoryStore::new()), server: None }
    }

    async fn redis() -> Result<Self> {
        let server = Redis::standalone(&Options::new())?;
        let store = Arc::new(RedisStore::connect(&server.url()).await?);
        Ok(Self { store, server: Some(server) })
    }

    /// How much memory its server has in use.
    fn bytes(server: &Redis) -> Result<f64> {
        let info: String = redis::cmd("INFO").arg("memory").query(&mut server.connection()?)?;
        let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
        Ok(line.context("it says how much memory is in use")?.trim().parse()?)
    }

    /// Microseconds of one exchange of one of the first `of` of these clients, drawn at random.
    async fn cost(&self, clients: &mut [Client], of: usize, times: u32) -> Result<f64> {
        if let Some(server) = &self.server {
            server.command(&["CONFIG", "RESETSTAT"])?;
        }
        let start = Instant::now();
        for _ in 0..times {
            let at = fastrand::usize(..of.min(clients.len()));
            clients[at].step(&*self.store, true, 1).await?;
        }
        let took = start.elapsed().as_secs_f64() * 1e6 / f64::from(times);
        match &self.server {
            Some(server) => Ok(server_micros(server)?.0),
            None => Ok(took),
        }
    }
}

/// Something that grows, at one of its sizes.
enum Size {
    Ids(u128),
    Leases(usize),
    Processes(u128),
    Rules(u32),
    Identities(u64),
}

impl Size {
    fn count(&self) -> f64 {
        // At most a million.
        #[allow(clippy::cast_precision_loss)]
        match self {
            Self::Ids(count) | Self::Processes(count) => *count as f64,
            Self::Leases(count) => *count as f64,
            Self::Rules(count) => f64::from(*count),
            Self::Identities(count) => *count as f64,
        }
    }

    /// Brings a place to that size, and returns those who go on from there.
    async fn reach(&self, place: &Place) -> Result<Vec<Client>> {
        match *self {
            Self::Ids(count) => {
                let policy = leased(10)?;
                let clients = (0..count).map(|id| Client::new(&format!("id-{id}"), id + 1, &policy, None));
                each(place, clients.collect::<Result<Vec<_>>>()?).await
            }
            Self::Processes(count) => {
                let policy = leased(1_000)?;
                let clients = (0..count).map(|driver| Client::new("processes", driver + 1, &policy, None));
                each(place, clients.collect::<Result<Vec<_>>>()?).await
            }
            Self::Leases(count) => {
                let policy = leased(20_000)?;
                let mut holder = Client::new("leases", 1, &policy, None)?;
                while holder.held.len() < count {
                    let missing = (count - holder.held.len()).min(500);
                    holder.step(&*place.store, false, missing).await?;
                }
                each(place, vec![Client::new("leases", 2, &policy, None)?]).await
            }
            Self::Rules(count) => Ok(vec![Client::new("rules", 1, &ruled(count)?, None)?]),
            Self::Identities(count) => {
                let rule = Rule::token_bucket(1_000_000, LONG).scoped(SCOPE);
                let policy = Arc::new(Policy::draft().rule(rule).check()?);
                let mut client = Client::new("identities", 1, &policy, Some(count))?;
                for from in (0..count).step_by(100) {
                    let acquire = scoped(from..(from + 100).min(count))?;
                    client.exchange(&*place.store, false, acquire).await?;
                }
                Ok(vec![client])
            }
        }
    }
}

/// Has each client take a lease, some at the same time.
async fn each(place: &Place, clients: Vec<Client>) -> Result<Vec<Client>> {
    let steps = clients.into_iter().map(|mut client| async move {
        client.step(&*place.store, false, 1).await?;
        anyhow::Ok(client)
    });
    stream::iter(steps).buffer_unordered(64).try_collect().await
}

/// One size, set up.
struct Grown {
    place: Place,
    clients: Vec<Client>,
    costs: Vec<f64>,
    /// The same with all clients asking, where there are more than those that are compared.
    spread_out: Vec<f64>,
}

/// So many ids are in use at both sizes: what is compared is what the others cost that only exist. What a machine's caches
/// do when all of them ask at random is measured beside it.
const BUSY_IDS: usize = 10;

impl Grown {
    async fn of(size: &Size, redis: bool) -> Result<Self> {
        let place = if redis { Place::redis().await? } else { Place::memory() };
        let clients = size.reach(&place).await?;
        Ok(Self { place, clients, costs: Vec::new(), spread_out: Vec::new() })
    }
}

/// Sets up each size in a place of its own, and measures them in turn.
async fn compare(
    suite: &Suite<'_>,
    report: &mut Report,
    what: &str,
    sizes: &[Size],
    redis: bool,
) -> Result<Vec<Vec<f64>>> {
    let mut all = Vec::new();
    for size in sizes {
        let grown = Grown::of(size, redis).await?;
        // With fewer, what the server itself takes would be most of it.
        if let (Size::Identities(count @ 100_000..), Some(server)) = (size, &grown.place.server) {
            let bytes = Place::bytes(server)? / float(*count);
            report.measured(
                "bytes of the Redis server for an identity of a scoped rule",
                format!("at {count}"),
                "bytes",
                &[bytes],
            );
        }
        all.push(grown);
    }
    let times = if redis { 1_000 } else { 20_000 };
    // The first round warms.
    for round in 0..=suite.scale.rounds {
        for (size_of, grown) in sizes.iter().zip(&mut all) {
            let all = grown.clients.len();
            let of = if matches!(size_of, Size::Ids(_)) { BUSY_IDS } else { all };
            let cost = grown.place.cost(&mut grown.clients, of, times).await?;
            grown.costs.extend((round > 0).then_some(cost));
            if of < all {
                let cost = grown.place.cost(&mut grown.clients, all, times).await?;
                grown.spread_out.extend((round > 0).then_some(cost));
            }
        }
    }
    let (store, unit) = if redis { ("Redis", "us of the server") } else { ("memory", "us") };
    for (size, grown) in sizes.iter().zip(&all) {
        report.measured(
            format!("an exchange, {what}, {store}"),
            format!("{}", size.count()),
            unit,
            &grown.costs,
        );
        if !grown.spread_out.is_empty() {
            let name = format!("{}, all at random", size.count());
            report.measured(format!("an exchange, {what}, {store}"), name, unit, &grown.spread_out);
        }
    }
    Ok(all.into_iter().map(|grown| grown.costs).collect())
}

pub(super) async fn all(suite: &Suite<'_>, report: &mut Report) -> Result<()> {
    for redis in [false, true] {
        let store = if redis { "Redis" } else { "memory" };
        let few_and_many = [
            ("ids", Size::Ids(10), Size::Ids(100_000)),
            ("leases of one id", Size::Leases(10), Size::Leases(10_000)),
            ("processes", Size::Processes(1), Size::Processes(256)),
            ("idle identities", Size::Identities(10), Size::Identities(1_000_000)),
        ];
        for (what, few, many) in few_and_many {
            let name = format!("an exchange at {} {what}, over {}, {store}", many.count(), few.count());
            let all = compare(suite, report, what, &[few, many], redis).await?;
            report.ratio("T15", name, Bound::AtMost(1.5), &all[1], &all[0]);
        }
        let all = compare(suite, report, "rules", &[Size::Rules(1), Size::Rules(4), Size::Rules(16)], redis)
            .await?;
        let [one, four, sixteen] = [0, 1, 2].map(|at| median(&all[at]));
        // Linear: another rule costs as much among 16 as it does among 4.
        let per_rule = ((sixteen - one) / 15.0, (four - one) / 3.0);
        let name = format!("another rule among 16, over one among 4, {store}");
        report.figure("T15", name, "", Bound::AtMost(1.5), &[per_rule.0 / per_rule.1]);
    }
    Ok(())
}
