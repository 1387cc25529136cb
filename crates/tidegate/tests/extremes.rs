//! No value that comes from outside makes anything panic: not in a primitive, not in a store, not in a decision.
//!
//! The values are random, and mostly from the ends of what can be said. `TIDEGATE_SEED` repeats a run that failed.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::{
    future::Future,
    pin::{Pin, pin},
    sync::Arc,
    task::Poll,
    time::Duration,
};

use tidegate::{
    Acquire, AcquireError, Adaptive, AdaptiveSemaphore, Aimd, Class, Concurrency, Growth, Invalid, Job,
    Lease, MemoryStore, Metrics, Outcome, Permit, Release, Rule, SafeStart, Store, Valve, ValveBuilder,
    clock::{Clock, Pace, Sleep},
    contract::{
        self, Bound, DriverId, Exchange, Fraction, HandOver, Id, IdModel, Identity, Limit, Line, Member,
        Name, Observation, OnSuperseded, Owner, Policy, Queue, Renewal, Restore, RuleKey, ScopedJob,
        ScopedRequest, Sequence, Settlement, Snapshot, Token,
        limit::{LimitPolicy, LimitState},
        policy::Draft,
        rule::{Observed, RuleState},
        share,
        time::Moment,
    },
};

#[path = "support/fleet.rs"]
mod fleet;

use fleet::{Fleet, ID, Mode, Remote, Wire, id, ms, poll_once, ready};

const MINUTE: Duration = Duration::from_secs(60);
const DAY: Duration = Duration::from_secs(86_400);
const NANO: Duration = Duration::from_nanos(1);

/// Random values that lie at the ends of what can be said, with the seed that they come from.
struct Dice {
    rng: fastrand::Rng,
    seed: u64,
}

impl Dice {
    fn new() -> Self {
        let given = std::env::var("TIDEGATE_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = given.unwrap_or_else(|| fastrand::u64(..));
        // At once, for one that does not end. It is shown where the test fails.
        eprintln!("seed: TIDEGATE_SEED={seed}");
        Self { rng: fastrand::Rng::with_seed(seed), seed }
    }

    fn below(&mut self, end: usize) -> usize {
        self.rng.usize(..end)
    }

    fn one<T: Clone>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())].clone()
    }

    fn often(&mut self) -> bool {
        self.rng.u8(..) < 200
    }

    fn u64(&mut self) -> u64 {
        const ENDS: [u64; 14] = [
            0,
            1,
            2,
            10,
            1_000,
            999_999_999_999,
            1_000_000_000_000,
            1_000_000_000_001,
            (1 << 53) - 1,
            1 << 53,
            u64::MAX / 1_000,
            u64::MAX / 2,
            u64::MAX - 1,
            u64::MAX,
        ];
        if self.rng.bool() { self.one(&ENDS) } else { self.rng.u64(..) >> self.rng.u32(..64) }
    }

    fn u32(&mut self) -> u32 {
        let ends = [0, 1, 2, 10, 1_000, 999_999, 1_000_000, 1_000_001, u32::MAX / 2, u32::MAX - 1, u32::MAX];
        if self.rng.bool() { self.one(&ends) } else { self.rng.u32(..) >> self.rng.u32(..32) }
    }

    fn f64(&mut self) -> f64 {
        let ends = [
            0.0,
            -0.0,
            f64::MIN_POSITIVE,
            1e-7,
            1e-6,
            0.5,
            1.0 - f64::EPSILON,
            1.0,
            -1.0,
            f64::MAX,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
        ];
        if self.rng.bool() { self.one(&ends) } else { self.rng.f64() }
    }

    fn duration(&mut self) -> Duration {
        let ends = [
            Duration::ZERO,
            NANO,
            ms(1),
            ms(100),
            Duration::from_secs(1),
            DAY,
            DAY * 366,
            DAY * 366 + NANO,
            Duration::from_micros(u64::MAX),
            Duration::from_millis(u64::MAX),
            Duration::MAX,
        ];
        if self.rng.bool() { self.one(&ends) } else { Duration::from_nanos(self.u64()) }
    }

    fn text(&mut self) -> String {
        let ends = ["", "a", "batch", "tenant", "a:b", "{a}", "\u{0}", "🦀", "a\nb", "named:a", "%s\"';--"];
        let text = self.one(&ends);
        let times = self.one(&[1, 1, 1, 1, 1, 1, 1, 2, 64, 65, 200, 257]);
        text.repeat(times)
    }

    /// A name that is good, most of the time.
    fn name(&mut self) -> String {
        if self.often() { self.one(&["a", "b", "c", "tenant"]).to_owned() } else { self.text() }
    }

    fn moment(&mut self) -> Moment {
        Moment::from_micros(self.u64())
    }
}

/// A clock that is set, to anything.
#[derive(Clone)]
struct SetClock(tokio::sync::watch::Sender<u64>);

impl SetClock {
    fn at(micros: u64) -> Self {
        Self(tokio::sync::watch::Sender::new(micros))
    }

    fn set(&self, micros: u64) {
        self.0.send_replace(micros);
    }
}

impl Clock for SetClock {
    fn now(&self) -> Moment {
        Moment::from_micros(*self.0.borrow())
    }

    fn sleep_until(&self, at: Moment) -> Sleep {
        let mut changes = self.0.subscribe();
        Box::pin(async move {
            let _ = changes.wait_for(|now| *now >= at.micros()).await;
        })
    }

    fn pace(&self) -> Pace {
        Pace::Set
    }
}

fn any_rule(dice: &mut Dice) -> Rule {
    let (limit, interval) = (dice.u64(), dice.duration());
    let make = dice.one(&[Rule::token_bucket, Rule::fixed_window, Rule::sliding_window]);
    let mut rule =
        if dice.often() { make(limit % 50 + 1, ms(limit % 5_000 + 1)) } else { make(limit, interval) };
    if dice.rng.bool() {
        rule = rule.named(dice.name());
    }
    if dice.rng.bool() {
        rule = rule.scoped(dice.name());
    }
    if dice.below(4) == 0 {
        rule = rule.burst(dice.u64());
    }
    rule
}

fn any_aimd(dice: &mut Dice) -> Aimd {
    let aimd = Aimd::new();
    if dice.often() {
        return aimd;
    }
    aimd.decrease_factor(dice.f64())
        .increase_step(dice.u32())
        .window(dice.duration())
        .cooldown(dice.duration())
        .tolerance(dice.f64())
}

fn any_adaptive(dice: &mut Dice) -> Adaptive {
    let mut adaptive = Adaptive::new(if dice.often() { 5 } else { dice.u32() }).aimd(any_aimd(dice));
    adaptive = adaptive.growth(dice.one(&[Growth::Additive, Growth::SlowStart, Growth::Probe]));
    if dice.below(4) == 0 {
        adaptive = adaptive.min_limit(dice.u32()).max_limit(dice.u32()).throttle_rest(dice.duration());
    }
    adaptive
}

fn any_class(dice: &mut Dice) -> Class {
    let name = dice.name();
    if dice.rng.bool() { Class::unreserved(name) } else { Class::reserved(name, dice.f64()) }
}

fn any_valve(dice: &mut Dice) -> ValveBuilder {
    let mut builder = Valve::builder(if dice.often() { ID.to_owned() } else { dice.text() });
    for _ in 0..dice.below(4) {
        builder = builder.rule(any_rule(dice));
    }
    let fixed = if dice.often() { 3 } else { dice.u32() };
    builder = match dice.below(4) {
        0 => builder,
        1 => builder.concurrency(Concurrency::Local(fixed)),
        2 => builder.concurrency(Concurrency::Global(fixed)),
        _ => builder.concurrency(Concurrency::Adaptive(any_adaptive(dice))),
    };
    for _ in 0..dice.one(&[0, 0, 1, 2]) {
        builder = builder.class(any_class(dice));
    }
    if dice.below(3) == 0 {
        builder = builder.max_queue(dice.one(&[0, 1, 2, usize::MAX]));
    }
    if dice.below(6) == 0 {
        builder = builder.max_pause(dice.duration()).op_timeout(dice.duration());
    }
    if dice.below(6) == 0 {
        builder = builder.lease_ttl(dice.duration()).owner(dice.text()).revision(dice.u32());
    }
    if dice.below(6) == 0 {
        builder = builder.safe_start(SafeStart::On);
    }
    if dice.below(6) == 0 {
        builder = builder.metrics(Metrics::new().prefix(dice.text()).label(dice.text(), dice.text()));
    }
    if dice.below(4) == 0 {
        builder = builder.fallback_local(dice.u32()).fallback_rule(any_rule(dice));
    }
    builder
}

fn any_job(dice: &mut Dice) -> Job {
    let mut job = Job::new();
    if dice.below(4) == 0 {
        job = job.cost_each(dice.u64());
    }
    for _ in 0..dice.one(&[0, 0, 1, 2]) {
        job = job.cost(dice.name(), dice.u64());
    }
    for _ in 0..dice.one(&[0, 1, 1, 2]) {
        job = job.scope(dice.name(), dice.text());
    }
    if dice.below(4) == 0 {
        job = job.class(dice.name());
    }
    job.priority(dice.one(&[0, 1, -1, i32::MIN, i32::MAX])).timeout(dice.duration())
}

fn any_release(dice: &mut Dice) -> Release {
    match dice.below(4) {
        0 => Outcome::Success.into(),
        1 => Outcome::Failure.into(),
        2 => Outcome::Throttled.into(),
        _ => Release::throttled_for(dice.duration()),
    }
}

/// Polls a few times, letting the others run in between; what does not end is dropped.
async fn try_for_a_while<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    for _ in 0..4 {
        if let Poll::Ready(value) = poll_once(future.as_mut()) {
            return Some(value);
        }
        tokio::task::yield_now().await;
    }
    None
}

/// An acquire that is under way.
type Waiting = Pin<Box<dyn Future<Output = Result<Permit, AcquireError>>>>;

async fn hammer(valve: &Valve, clocks: &[SetClock], dice: &mut Dice) {
    let mut permits: Vec<Permit> = Vec::new();
    let mut waiting: Vec<Waiting> = Vec::new();
    for _ in 0..40 {
        match dice.below(12) {
            0..=3 => {
                if let Some(Ok(permit)) = try_for_a_while(valve.acquire(any_job(dice))).await {
                    permits.push(permit);
                }
            }
            4 => {
                let (valve, job) = (valve.clone(), any_job(dice));
                let mut waits: Waiting = Box::pin(async move { valve.acquire(job).await });
                match poll_once(Pin::new(&mut waits)) {
                    Poll::Ready(answer) => permits.extend(answer),
                    Poll::Pending => waiting.push(waits),
                }
            }
            5..=6 => {
                if let Some(mut permit) = permits.pop() {
                    let (rule, other) =
                        (dice.one(&["named:a", "a", "token_bucket:60000", "", "🦀"]), dice.name());
                    if dice.rng.bool() {
                        permit = permit.settle(rule, dice.u64()).settle(&other, dice.u64());
                    }
                    if dice.rng.bool() {
                        permit = permit.observe(rule, dice.u64(), dice.duration());
                    }
                    let _ = (permit.is_live(), permit.slot(), format!("{permit:?}"));
                    permit.release(any_release(dice));
                }
            }
            7 => {
                let _ = try_for_a_while(valve.pause(dice.duration())).await;
            }
            8 => {
                let _ = try_for_a_while(valve.resume()).await;
                let _ = try_for_a_while(valve.refresh()).await;
            }
            9 => {
                let clock = dice.one(clocks);
                clock.set(dice.u64());
            }
            10 => {
                let _ = (valve.stats(), format!("{valve:?}"));
                if dice.below(20) == 0 {
                    let _ = try_for_a_while(valve.close()).await;
                }
            }
            _ => {
                if !waiting.is_empty() {
                    let mut waits = waiting.swap_remove(dice.below(waiting.len()));
                    if let Poll::Ready(answer) = poll_once(Pin::new(&mut waits)) {
                        permits.extend(answer);
                    }
                }
            }
        }
        tokio::task::yield_now().await;
    }
}

/// A runtime of its own, so that nothing of one round goes on in the next.
fn in_a_round<T>(round: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    runtime.unwrap().block_on(round)
}

#[test]
fn bi_2_no_value_makes_a_valve_panic() {
    let mut dice = Dice::new();
    let rounds: Vec<bool> =
        (0..1_000).map(|round| in_a_round(valve_round(&mut dice, round % 2 == 0))).collect();
    let built = rounds.iter().filter(|built| **built).count();
    assert!(built > 20, "{built} of 1,000 were built; seed {}", dice.seed);
}

async fn valve_round(dice: &mut Dice, remote: bool) -> bool {
    let clocks = [SetClock::at(dice.u64()), SetClock::at(dice.u64())];
    let store = MemoryStore::with_clock(clocks[0].clone());
    let mut builder = any_valve(dice);
    if dice.rng.bool() {
        builder = builder.clock(clocks[usize::from(dice.rng.bool())].clone());
    }
    let valve = if remote {
        let remote = Remote::over(&store, clocks[0].clone(), Wire::Yields);
        if dice.below(3) == 0 {
            remote.set(dice.one(&[Mode::Down, Mode::Hangs, Mode::Mute]));
        }
        builder.build(remote)
    } else {
        builder.build(store)
    };
    let Ok(valve) = valve else { return false };
    hammer(&valve, &clocks, dice).await;
    true
}

#[test]
fn bi_2_no_value_makes_a_semaphore_panic() {
    let mut dice = Dice::new();
    let rounds: Vec<bool> = (0..200).map(|_| in_a_round(semaphore_round(&mut dice))).collect();
    let built = rounds.iter().filter(|built| **built).count();
    assert!(built > 10, "{built} of 200 were built; seed {}", dice.seed);
}

async fn semaphore_round(dice: &mut Dice) -> bool {
    let clock = SetClock::at(dice.u64());
    let mut builder = AdaptiveSemaphore::builder(dice.name(), dice.u32() % 12).aimd(any_aimd(dice));
    builder = builder.growth(dice.one(&[Growth::Additive, Growth::SlowStart, Growth::Probe]));
    if dice.below(3) == 0 {
        builder = builder.min_limit(dice.u32()).max_limit(dice.u32()).throttle_rest(dice.duration());
    }
    if dice.rng.bool() {
        builder = builder.class(any_class(dice));
    }
    let store = MemoryStore::with_clock(clock.clone());
    let Ok(semaphore) = builder.build(store.clone()) else { return false };
    let operators = store.operators().unwrap();
    let mut leases: Vec<Lease> = Vec::new();
    for _ in 0..40 {
        let mut acquire = Acquire::within(dice.duration());
        if dice.below(4) == 0 {
            acquire = acquire.in_class(dice.name());
        }
        match dice.below(6) {
            0..=2 => leases.extend(try_for_a_while(semaphore.acquire(acquire)).await.and_then(Result::ok)),
            3 => {
                if let Some(lease) = leases.pop() {
                    lease.release(any_release(dice));
                }
            }
            4 => clock.set(dice.u64()),
            _ => {
                let release = any_release(dice);
                let call = semaphore.with_lease(acquire, || async { Err::<(), _>(()) });
                let _ = try_for_a_while(call.outcome_on_error(|()| release).into_future()).await;
                let _ = ready(operators.set_limit(&id(), dice.u32()));
                let token = Token { epoch: contract::Epoch(dice.u64()), slot: dice.u32(), fence: dice.u64() };
                let _ = ready(operators.evict(&id(), token));
                let _ = (semaphore.state(), format!("{semaphore:?}"));
            }
        }
        tokio::task::yield_now().await;
    }
    true
}

/// What a store is asked, at its ends.
struct Hostile {
    members: Vec<Member>,
    tokens: Vec<Token>,
}

impl Hostile {
    fn new(dice: &mut Dice) -> Self {
        let mut members = Vec::new();
        while members.len() < 3 {
            let mut draft = Policy::draft().revision(if dice.often() { 0 } else { dice.u32() });
            for _ in 0..dice.below(4) {
                draft = draft.rule(any_rule(dice));
            }
            draft = match dice.below(3) {
                0 => draft,
                1 => draft.bound(Bound::Fixed(dice.u32())),
                _ => {
                    let growth = dice.one(&[Growth::Additive, Growth::SlowStart, Growth::Probe]);
                    match LimitPolicy::check(1, 9, &any_aimd(dice), ms(5), growth) {
                        Ok(adaptive) => draft.bound(Bound::Adaptive(adaptive)).class(any_class(dice)),
                        Err(_) => continue,
                    }
                }
            };
            let Ok(policy) = draft.safe_start(dice.one(&[SafeStart::Off, SafeStart::On])).check() else {
                continue;
            };
            let policy = if members.is_empty() || dice.rng.bool() {
                Arc::new(policy)
            } else {
                Arc::clone(&Member::clone(&members[0]).policy)
            };
            members.push(Member {
                id: id(),
                driver: DriverId(u128::from(dice.u64())),
                owner: Owner::new("hostile").unwrap(),
                policy,
                on_superseded: dice.one(&[OnSuperseded::Adopt, OnSuperseded::Refuse]),
                initial_limit: dice.u32(),
            });
        }
        Self { members, tokens: Vec::new() }
    }

    fn member(&self, dice: &mut Dice) -> Member {
        dice.one(&self.members)
    }

    fn token(&self, dice: &mut Dice) -> Token {
        if !self.tokens.is_empty() && dice.rng.bool() {
            let known = dice.one(&self.tokens);
            return if dice.often() { known } else { Token { fence: dice.u64(), ..known } };
        }
        // Far slots make a table long, which is right and slow.
        let slot = dice.one(&[0, 1, 7, 63, 64, 1_000, 1_000_000, u32::MAX]);
        Token { epoch: contract::Epoch(dice.u64()), slot, fence: dice.u64() }
    }

    fn class(&self, dice: &mut Dice) -> Option<Name> {
        Name::new("class", dice.name()).ok().filter(|_| dice.below(3) == 0)
    }

    fn costs(&self, dice: &mut Dice) -> contract::Costs {
        let named = 0..dice.one(&[0, 0, 1, 2, 20]);
        let named = named.filter_map(|_| Some((Name::new("cost", dice.name()).ok()?, dice.u64()))).collect();
        contract::Costs { each: if dice.often() { 1 } else { dice.u64() }, named }
    }

    fn line(&self, dice: &mut Dice) -> Line {
        Line { waiting: dice.one(&[0, 1, 1_000]), waited_ms: dice.u64() }
    }

    fn acquire(&self, dice: &mut Dice) -> contract::AcquireRequest {
        let jobs = if dice.below(50) == 0 { dice.one(&[512, 513]) } else { dice.below(4) };
        let jobs = (0..jobs).map(|_| contract::Job { costs: self.costs(dice) }).collect();
        contract::AcquireRequest { class: self.class(dice), jobs, line: self.line(dice) }
    }

    fn scoped(&self, dice: &mut Dice) -> ScopedRequest {
        let jobs = if dice.below(20) == 0 { dice.one(&[128, 129]) } else { dice.below(4) };
        let job = |dice: &mut Dice| {
            let scopes = 0..dice.one(&[0, 1, 1, 2]);
            let scopes = scopes.filter_map(|_| {
                Some((Name::new("scope", dice.name()).ok()?, Identity::new(dice.text()).ok()?))
            });
            let scopes = scopes.collect();
            ScopedJob { costs: self.costs(dice), scopes }
        };
        let jobs = (0..jobs).map(|_| job(dice)).collect();
        ScopedRequest { class: self.class(dice), jobs, line: self.line(dice) }
    }

    fn key(&self, dice: &mut Dice) -> RuleKey {
        let policy = &self.members[0].policy;
        if dice.often() && !policy.rules().is_empty() {
            let rule = dice.below(policy.rules().len());
            return policy.rules()[rule].key().clone();
        }
        RuleKey::from(dice.text().as_str())
    }

    fn identity(&self, dice: &mut Dice) -> Option<Identity> {
        Identity::new(dice.text()).ok().filter(|_| dice.rng.bool())
    }

    fn exchange(&self, dice: &mut Dice) -> Exchange {
        let many = |dice: &mut Dice| if dice.below(50) == 0 { 1_001 } else { dice.below(3) };
        let mut exchange = Exchange::default();
        if dice.rng.bool() {
            let not_after = Some(dice.moment()).filter(|_| dice.rng.bool());
            exchange.sequence = Some(Sequence { number: dice.u64(), not_after });
        }
        if dice.below(4) == 0 {
            exchange.restore = Some(self.restore(dice));
        }
        exchange.releases = (0..many(dice)).map(|_| self.release(dice)).collect();
        exchange.settlements = (0..many(dice)).map(|_| self.settlement(dice)).collect();
        exchange.observations = (0..many(dice)).map(|_| self.observation(dice)).collect();
        exchange.renewals = (0..many(dice)).map(|_| self.renewal(dice)).collect();
        exchange.hand_overs = (0..many(dice)).map(|_| HandOver { class: self.class(dice) }).collect();
        exchange.acquires = (0..dice.below(4))
            .map(|_| match dice.below(2) {
                0 => contract::Acquire::Prefix(self.acquire(dice)),
                _ => contract::Acquire::Scoped(self.scoped(dice)),
            })
            .collect();
        let queues = 0..dice.below(3);
        exchange.queues = queues.map(|_| Queue { class: self.class(dice), line: self.line(dice) }).collect();
        exchange
    }

    fn restore(&self, dice: &mut Dice) -> Restore {
        let limit = Some(Limit { value: dice.u32(), moved_at: dice.moment() }).filter(|_| dice.rng.bool());
        Restore { epoch: contract::Epoch(dice.u64()), limit, paused_ms: dice.u64() }
    }

    fn release(&self, dice: &mut Dice) -> contract::Release {
        let outcome = dice.one(&[Outcome::Success, Outcome::Throttled, Outcome::Failure]);
        let retry_after_ms = Some(dice.u64()).filter(|_| dice.rng.bool());
        contract::Release { token: self.token(dice), outcome, retry_after_ms }
    }

    fn settlement(&self, dice: &mut Dice) -> Settlement {
        let (cost, actual) = if dice.often() { (1, dice.u64() % 20) } else { (dice.u64(), dice.u64()) };
        let (rule, identity) = (self.key(dice), self.identity(dice));
        Settlement { rule, identity, granted_at: dice.moment(), cost, actual }
    }

    fn observation(&self, dice: &mut Dice) -> Observation {
        Observation {
            rule: self.key(dice),
            identity: self.identity(dice),
            remaining: dice.u64(),
            reset_at: dice.moment(),
            granted_at: dice.moment(),
            mark: dice.u64(),
        }
    }

    fn renewal(&self, dice: &mut Dice) -> Renewal {
        Renewal { token: self.token(dice), class: self.class(dice) }
    }

    /// One step on a model at some moment.
    fn step(&mut self, model: &mut IdModel, dice: &mut Dice) {
        let (member, now) = (self.member(dice), dice.moment());
        match dice.below(20) {
            0..=4 => {
                if let Ok(reply) = model.acquire(now, &member, &self.acquire(dice)) {
                    self.tokens.extend(reply.body.grants.iter().filter_map(|grant| grant.lease));
                }
            }
            5..=6 => {
                if let Ok(reply) = model.acquire_scoped(now, &member, &self.scoped(dice)) {
                    self.tokens.extend(reply.body.grants.iter().filter_map(|granted| granted.grant.lease));
                }
            }
            7 => {
                let tier = dice.one(&[0, 1, 2, 17, usize::MAX]);
                if let Some(brief) = model.acquire_one(now, &member, tier, dice.u64()) {
                    self.tokens.extend(brief.grant.and_then(|grant| grant.lease));
                }
            }
            8 => {
                let _ = model.release_one(now, &self.release(dice), dice.u64());
            }
            9 => {
                let releases: Vec<_> = (0..dice.below(4)).map(|_| self.release(dice)).collect();
                let _ = model.release(now, &releases);
            }
            10 => {
                let renewals: Vec<_> = (0..dice.below(4)).map(|_| self.renewal(dice)).collect();
                let restore = Some(self.restore(dice)).filter(|_| dice.rng.bool());
                let _ = model.renew(now, &member, restore.as_ref(), &renewals);
            }
            11 => {
                let hand_overs = vec![HandOver { class: self.class(dice) }; dice.below(3)];
                let _ = model.hand_over(now, &member, &hand_overs);
            }
            12 => {
                let settlements: Vec<_> = (0..dice.below(4)).map(|_| self.settlement(dice)).collect();
                let _ = model.settle(now, &settlements);
            }
            13 => {
                let observations: Vec<_> = (0..dice.below(4)).map(|_| self.observation(dice)).collect();
                let _ = model.observe(now, &observations);
            }
            14..=15 => {
                let exchange = self.exchange(dice);
                if let Ok(reply) = model.exchange(now, &member, &exchange) {
                    let _ = exchange.check(None, &reply);
                    let granted = reply.body.acquired.iter().flatten().flat_map(contract::Acquired::grants);
                    self.tokens.extend(granted.filter_map(|(_, grant)| grant.lease));
                }
            }
            16 => {
                let _ = model.pause(now, dice.duration());
                let _ = model.resume(dice.moment());
            }
            17 => {
                let _ = model.set_limit(now, dice.u32());
                let _ = model.leases(now, Some(dice.u32()), dice.one(&[0, 1, 1_000, usize::MAX]));
                let _ = model.evict(now, self.token(dice));
            }
            18 => {
                let _ = model.replace_policy(now, &member.policy);
                let _ = model.sweep(now);
            }
            _ => match dice.below(8) {
                0 => model.wipe(),
                1 => {
                    let _ = model.forget(now);
                }
                2 => model.listen(member.driver),
                _ => model.unlisten(member.driver),
            },
        }
        let _ = model.take_wakes();
    }
}

/// What must hold of an id, whatever it was asked.
fn sane(model: &mut IdModel, now: Moment) {
    let Ok(reply) = model.snapshot(now, &id()) else { return };
    let head = reply.head;
    let Some(seen) = reply.body else { return };
    let held: u32 = seen.by_class.iter().map(|(_, held)| held).sum();
    assert_eq!(held, seen.held, "each lease has a class, or none");
    assert!(seen.resting <= seen.held);
    assert_eq!(head.held.unwrap_or(0), seen.held);
    if let (Some(limit), Some(policy)) = (seen.limit, &seen.policy) {
        let bounds = match policy.bound().unwrap() {
            Bound::Fixed(fixed) => *fixed..=*fixed,
            Bound::Adaptive(adaptive) => adaptive.min..=adaptive.max,
        };
        assert!(bounds.contains(&limit.value), "{limit:?} within {bounds:?}");
    }
}

#[test]
fn bi_2_no_request_makes_a_store_panic() {
    let mut dice = Dice::new();
    for _ in 0..30 {
        let mut hostile = Hostile::new(&mut dice);
        let mut model = IdModel::default();
        for _ in 0..80 {
            hostile.step(&mut model, &mut dice);
            hostile.tokens.truncate(50);
            sane(&mut model, dice.moment());
        }
    }
}

/// As above, at times as they are: so that state is kept, and not swept by the next step.
#[test]
fn bi_2_no_request_makes_a_store_panic_that_has_a_good_clock() {
    let mut dice = Dice::new();
    for _ in 0..30 {
        let mut hostile = Hostile::new(&mut dice);
        let clock = SetClock::at(1_700_000_000_000_000);
        let store = MemoryStore::with_clock(clock.clone());
        for _ in 0..80 {
            clock.set(clock.now().micros() + dice.rng.u64(..30_000));
            let member = hostile.member(&mut dice);
            let exchange = hostile.exchange(&mut dice);
            if let Ok(reply) = ready(store.exchange(&member, &exchange)) {
                // A number that comes again is answered as the first time, whatever came with it.
                if exchange.sequence.is_none() {
                    exchange.check(None, &reply).unwrap();
                }
                let granted = reply.body.acquired.iter().flatten().flat_map(contract::Acquired::grants);
                hostile.tokens.extend(granted.filter_map(|(_, grant)| grant.lease));
                hostile.tokens.truncate(50);
            }
            let (scoped, restore) = (hostile.scoped(&mut dice), hostile.restore(&mut dice));
            let _ = ready(store.acquire_scoped(&member, &scoped));
            let renewals = [hostile.renewal(&mut dice)];
            let _ = ready(store.renew(&member, Some(&restore), &renewals));
            if dice.below(30) == 0 {
                store.wipe();
            }
        }
    }
}

#[test]
fn bi_2_a_clock_at_either_end_serves() {
    for now in [0, 1, 999, (1 << 53) - 1, 1 << 53, u64::MAX - 1, u64::MAX] {
        let clock = SetClock::at(now);
        let store = MemoryStore::with_clock(clock.clone());
        let valve = Valve::builder(ID)
            .clock(clock)
            .rule(Rule::token_bucket(3, MINUTE).named("a"))
            .rule(Rule::fixed_window(3, MINUTE).named("b"))
            .rule(Rule::sliding_window(3, MINUTE).named("c"))
            .concurrency(Concurrency::Global(3))
            .build(store.clone())
            .unwrap();
        let grants: Vec<Permit> = (0..5).filter_map(|_| ready(valve.try_acquire(Job::new())).ok()).collect();
        assert_eq!(grants.len(), 3, "at {now} µs");
        let mut fences: Vec<_> = grants.iter().map(|permit| permit.fence().unwrap()).collect();
        fences.dedup();
        assert_eq!(fences.len(), 3, "fences grow at {now} µs");
        assert!(fences.is_sorted());
        grants.into_iter().for_each(|permit| permit.settle("a", 0).release(Outcome::Success));
        let seen: Snapshot = ready(store.operators().unwrap().snapshot(&id())).unwrap().body.unwrap();
        assert_eq!(seen.held, 0);
        let levels: Vec<_> = seen.rules.iter().map(|rule| rule.level).collect();
        assert_eq!(levels, [Some(3), Some(0), Some(0)], "at {now} µs");
    }
}

#[test]
fn bi_2_a_fence_from_outside_never_uses_up_those_to_come() {
    let mut model = IdModel::default();
    let policy = Arc::new(Policy::draft().bound(Bound::Fixed(9)).check().unwrap());
    let (driver, owner) = (DriverId(1), Owner::new("hostile").unwrap());
    let member =
        Member { id: id(), driver, owner, policy, on_superseded: OnSuperseded::Adopt, initial_limit: 1 };
    let now = Moment::from_millis(5);
    let restore = Restore { epoch: contract::Epoch(3), limit: None, paused_ms: 0 };
    for fence in [u64::MAX, u64::MAX - 1, 1 << 53] {
        let token = Token { epoch: contract::Epoch(3), slot: 2, fence };
        let renewals = [Renewal { token, class: None }];
        assert_eq!(model.renew(now, &member, Some(&restore), &renewals).unwrap().body.live, [false]);
    }
    let token = Token { epoch: contract::Epoch(3), slot: 2, fence: (1 << 53) - 1 };
    let renewals = [Renewal { token, class: None }];
    assert_eq!(model.renew(now, &member, Some(&restore), &renewals).unwrap().body.live, [true]);
    let jobs = vec![contract::Job::default(); 3];
    let request = contract::AcquireRequest { class: None, jobs, line: Line::default() };
    let grants = model.acquire(now, &member, &request).unwrap().body.grants;
    let fences: Vec<u64> = grants.iter().map(|grant| grant.lease.unwrap().fence).collect();
    assert_eq!(fences, [1 << 53, (1 << 53) + 1, (1 << 53) + 2]);
}

#[test]
fn bi_2_a_tier_that_the_policy_has_not_is_not_decided_in_brief() {
    let mut model = IdModel::default();
    let policy = Policy::draft().bound(Bound::Fixed(9)).class(Class::unreserved("a")).check().unwrap();
    let (driver, owner, policy) = (DriverId(1), Owner::new("hostile").unwrap(), Arc::new(policy));
    let member =
        Member { id: id(), driver, owner, policy, on_superseded: OnSuperseded::Adopt, initial_limit: 1 };
    let now = Moment::from_millis(5);
    let request =
        contract::AcquireRequest { class: None, jobs: vec![contract::Job::default()], line: Line::default() };
    model.acquire(now, &member, &request).unwrap();
    for tier in [2, 3, usize::MAX] {
        assert_eq!(model.acquire_one(now, &member, tier, 0), None);
    }
    for tier in [0, 1] {
        assert!(model.acquire_one(now, &member, tier, 0).is_some());
    }
}

#[test]
fn bi_2_requests_of_any_size_are_answered_soon() {
    let store = MemoryStore::new();
    let policy = Policy::draft().bound(Bound::Fixed(5)).check().unwrap();
    let (driver, owner) = (DriverId(1), Owner::new("hostile").unwrap());
    let on_superseded = OnSuperseded::Adopt;
    let member =
        Member { id: id(), driver, owner, policy: Arc::new(policy), on_superseded, initial_limit: 1 };
    let token = Token { epoch: contract::Epoch(1), slot: 0, fence: 1 };
    let many = 200_000;
    let jobs = vec![contract::Job::default(); many];
    let request = contract::AcquireRequest { class: None, jobs, line: Line::default() };
    assert_eq!(ready(store.acquire(&member, &request)).unwrap_err().code(), "invalid_options");
    let release = contract::Release { token, outcome: Outcome::Success, retry_after_ms: None };
    let exchange = Exchange {
        releases: vec![release; many],
        renewals: vec![Renewal { token, class: None }; many],
        hand_overs: vec![HandOver { class: None }; many],
        acquires: vec![
            contract::Acquire::Prefix(contract::AcquireRequest {
                class: None,
                jobs: vec![contract::Job::default()],
                line: Line::default(),
            });
            many
        ],
        queues: vec![Queue { class: None, line: Line::default() }; many],
        ..Exchange::default()
    };
    let body = ready(store.exchange(&member, &exchange)).unwrap().body;
    assert_eq!(body.released.unwrap_err().code(), "invalid_options");
    assert_eq!(body.renewed.unwrap_err().code(), "invalid_options");
    assert_eq!(body.handed_over.unwrap_err().code(), "invalid_options");
    assert_eq!(body.acquired.len(), many);
    assert_eq!(body.acquired.iter().filter(|acquired| acquired.is_ok()).count(), 1, "one for each class");
    assert_eq!(ready(store.operators().unwrap().snapshot(&id())).unwrap().body.unwrap().held, 1);
}

#[test]
fn bi_2_the_decisions_take_any_number() {
    let mut dice = Dice::new();
    for _ in 0..20_000 {
        let (Ok(rule), Ok(other)) = (any_rule(&mut dice).check(), any_rule(&mut dice).check()) else {
            continue;
        };
        let mut state = RuleState::resting(&rule, dice.u64());
        if dice.rng.bool() {
            state = RuleState::spent_out(&rule, dice.u64());
        }
        for _ in 0..6 {
            let (now, cost) = (dice.u64(), dice.u64());
            match dice.below(7) {
                0 => {
                    let hint = state.room(&rule, now, cost);
                    assert!(hint.is_ok() || hint.is_err_and(|hint| (1..1 << 53).contains(&hint)));
                }
                1 => state.spend(&rule, now, cost),
                2 => {
                    state.settle(&rule, now, dice.u64(), cost, dice.u64());
                }
                3 => {
                    let (reset_ms, granted_ms, mark) = (dice.u64(), dice.u64(), dice.u64());
                    state.observe(&rule, now, &Observed { remaining: cost, reset_ms, granted_ms, mark });
                }
                4 => {
                    let _ = (state.level(&rule, now), state.rests_at(&rule), state.mark());
                }
                5 => state.shift_back(now),
                _ => state = state.carry(&rule, &other, now).carry(&other, &rule, dice.u64()),
            }
        }
    }
    for _ in 0..5_000 {
        let growth = dice.one(&[Growth::Additive, Growth::SlowStart, Growth::Probe]);
        let (min, max, rest) = (dice.u32(), dice.u32(), dice.duration());
        let Ok(policy) = LimitPolicy::check(min, max, &any_aimd(&mut dice), rest, growth) else { continue };
        let mut limit = LimitState::seed(&policy, dice.u32(), dice.u64());
        for _ in 0..12 {
            let now = dice.u64();
            match dice.below(6) {
                0 => limit.demand(now),
                1 => drop(limit.success(&policy, now)),
                2 => limit.failure(&policy, now),
                3 => drop(limit.throttled(&policy, now)),
                4 => limit.set(&policy, dice.u32(), now),
                _ => limit.shift_back(now),
            }
            assert!((policy.min..=policy.max).contains(&limit.value()), "seed {}", dice.seed);
        }
    }
    for _ in 0..5_000 {
        let classes: Vec<(Fraction, u32)> =
            (0..dice.below(18)).map(|_| (Fraction::from_ppm(dice.u32()), dice.u32())).collect();
        let limit = dice.u32();
        let room = share::room(limit, classes.iter().copied(), dice.one(&[0, 1, 17, usize::MAX]));
        assert!(room <= limit, "seed {}", dice.seed);
        let _ = Fraction::new("share", dice.f64());
        let _ = dice.text().parse::<Token>();
        let _ = format!("{}-{}-{}", dice.u64(), dice.u64(), dice.text()).parse::<Token>();
        let _ = (Id::new(dice.text()), Name::new("class", dice.text()), Identity::new(dice.text()));
        let _ = Owner::new(dice.text());
        let _ = dice.moment().plus(dice.duration()).since(dice.moment());
        let _ = Invalid::new(dice.text(), dice.text(), dice.text()).to_string();
    }
}

#[test]
fn bi_2_a_policy_of_any_values_is_refused_or_compares_with_itself() {
    let mut dice = Dice::new();
    let mut checked = 0;
    for _ in 0..3_000 {
        let mut draft: Draft = Policy::draft();
        for _ in 0..dice.below(18) {
            draft = draft.rule(any_rule(&mut dice));
        }
        for _ in 0..dice.one(&[0, 0, 1, 17]) {
            draft = draft.class(any_class(&mut dice));
        }
        if dice.rng.bool() {
            draft = draft.bound(Bound::Fixed(dice.u32()));
        }
        if dice.below(4) == 0 {
            draft = draft.lease_ttl(dice.duration()).revision(dice.u32());
        }
        if let Ok(policy) = draft.check() {
            checked += 1;
            assert_eq!(policy.difference(&policy), None);
            assert!(policy.tier(None).is_some() && policy.class(usize::MAX).is_none());
        }
    }
    assert!(checked > 20, "{checked} of 3,000; seed {}", dice.seed);
}

// ---- what these tests found --------------------------------------------------------------------------------------------

/// Room that a safe start holds back was offered to whoever waited, who asked in vain, and was offered it again.
#[tokio::test(start_paused = true)]
async fn st_18_a_safe_start_offers_no_room_before_its_time() {
    let fleet = Fleet::new();
    let remote = Remote::new(&fleet, Wire::Short);
    let valve = Valve::builder(ID)
        .clock(fleet.clock)
        .concurrency(Concurrency::Global(5))
        .lease_ttl(ms(2_000))
        .safe_start(SafeStart::On)
        .build(remote.clone())
        .unwrap();
    let (permit, took) = fleet.timed(valve.acquire(Job::new())).await;
    permit.unwrap().release(Outcome::Success);
    assert!((ms(2_000)..ms(2_500)).contains(&took), "{took:?}");
    let asked = remote.operations();
    assert!(asked <= 30, "{asked} operations in {took:?}, which polling every 100 ms or more does not need");
}
