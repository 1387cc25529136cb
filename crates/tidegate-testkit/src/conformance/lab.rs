//! What trials are written with: a fresh store, workers on it, and its clock.

use std::{
    fmt::Debug,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tidegate_core::{
    Acquire, AcquireReply, AcquireRequest, Acquired, Bound, Capability, Costs, Denial, DriverId, Epoch,
    Exchange, ExchangeReply, Head, Id, Identity, Job, LeaseView, Line, Listener, Member, Name, OnSuperseded,
    Operators, Outcome, Owner, Policy, Release, Renewal, Reply, Restore, RuleKey, ScopedJob, ScopedReply,
    ScopedRequest, Settlement, Snapshot, Store, StoreError, Subscription, Token, Wake,
    limit::{Aimd, Growth, LimitPolicy},
    policy::Draft,
    rule::Rule,
    time::Moment,
};

use super::{Failure, Need, ensure, same};
use crate::{
    clock::START,
    hearing::Hearing,
    subject::{Hook, Subject},
    task::{Task, lock},
};

/// A day, in milliseconds: nothing of a rule comes back while a trial runs on a real clock.
pub(super) const DAY: u64 = 86_400_000;

/// How long a push may take until a trial no longer waits for it.
const PUSHED_WITHIN: Duration = Duration::from_secs(2);

/// A fresh store, and all that a trial can do to it.
pub(super) struct Lab {
    subject: Subject,
    now: AtomicU64,
    drivers: AtomicU64,
}

impl Lab {
    pub(super) fn new(subject: Subject) -> Self {
        Self { subject, now: AtomicU64::new(START.micros()), drivers: AtomicU64::new(1) }
    }

    pub(super) fn meets(&self, need: Need) -> bool {
        match need {
            Need::Has(capability) => self.has(capability),
            Need::Lacks(capability) => !self.has(capability),
            Need::Hook(hook) => self.subject.has(hook),
        }
    }

    pub(super) fn has(&self, capability: Capability) -> bool {
        self.store().capabilities().has(capability)
    }

    pub(super) fn is_timed(&self) -> bool {
        self.subject.has(Hook::Clock)
    }

    pub(super) async fn start(&self) {
        self.subject.set_clock_to(START).await;
    }

    pub(super) fn store(&self) -> &Arc<dyn Store> {
        self.subject.store()
    }

    pub(super) fn operators(&self) -> Result<&dyn Operators, Failure> {
        self.store()
            .operators()
            .ok_or_else(|| Failure("operators are declared, and there are none".to_owned()))
    }

    // ---- time ------------------------------------------------------------------------------------------------------

    /// What the store's clock shows, where it can be set.
    pub(super) fn now(&self) -> Moment {
        Moment::from_micros(self.now.load(Ordering::SeqCst))
    }

    pub(super) async fn set(&self, now: Moment) {
        self.now.store(now.micros(), Ordering::SeqCst);
        self.subject.set_clock_to(now).await;
    }

    pub(super) async fn advance(&self, ms: u64) {
        self.set(self.now().plus(Duration::from_millis(ms))).await;
    }

    pub(super) async fn step_back(&self, ms: u64) {
        self.set(Moment::from_micros(self.now().micros().saturating_sub(ms.saturating_mul(1_000)))).await;
    }

    // ---- harm ------------------------------------------------------------------------------------------------------

    /// Makes the store lose all that it keeps. The clock moves on, so that no fence can come twice.
    pub(super) async fn lose_all(&self) {
        self.advance(100).await;
        self.subject.lose_all().await;
    }

    pub(super) async fn plant_layout(&self, id: &Id, layout: u32) {
        self.subject.plant(id, layout).await;
    }

    pub(super) async fn damage(&self, id: &Id) {
        self.subject.damage(id).await;
    }

    // ---- workers ---------------------------------------------------------------------------------------------------

    /// A worker of the id `trial`, with a driver of its own.
    pub(super) fn worker(&self, draft: &Draft) -> Result<Worker, Failure> {
        self.worker_of("trial", draft)
    }

    pub(super) fn worker_of(&self, id: &str, draft: &Draft) -> Result<Worker, Failure> {
        self.on(self.store(), id, Arc::new(draft.check()?))
    }

    /// The same id and policy in another process, at the store's other handle.
    pub(super) fn peer_of(&self, worker: &Worker) -> Result<Worker, Failure> {
        let peer =
            self.on(self.subject.other_handle(), worker.id().as_str(), Arc::clone(&worker.member.policy))?;
        Ok(peer.starting_at(worker.member.initial_limit))
    }

    fn on(&self, store: &Arc<dyn Store>, id: &str, policy: Arc<Policy>) -> Result<Worker, Failure> {
        let driver = self.process();
        Ok(Worker {
            store: Arc::clone(store),
            member: Member {
                id: Id::new(id)?,
                driver,
                owner: Owner::new(format!("kit:{}", driver.0 >> 64))?,
                policy,
                on_superseded: OnSuperseded::Adopt,
                initial_limit: 10,
            },
        })
    }

    /// The handle of this process, or that of another one.
    pub(super) fn handle(&self, other: bool) -> Arc<dyn Store> {
        Arc::clone(if other { self.subject.other_handle() } else { self.store() })
    }

    /// A process of its own.
    pub(super) fn process(&self) -> DriverId {
        DriverId(u128::from(self.drivers.fetch_add(1, Ordering::SeqCst)) << 64 | 0x5EED)
    }

    /// Runs tasks at the same time; the first failure counts.
    pub(super) async fn at_once(
        &self,
        tasks: Vec<Task<'static, Result<(), Failure>>>,
    ) -> Result<(), Failure> {
        let expected = tasks.len();
        let results = Arc::new(Mutex::new(Vec::new()));
        let tasks = tasks.into_iter().map(|task| -> Task<'static> {
            let results = Arc::clone(&results);
            Box::pin(async move {
                let result = task.await;
                lock(&results).push(result);
            })
        });
        self.subject.at_once(tasks.collect()).await;
        let results = std::mem::take(&mut *lock(&results));
        same(results.len(), expected, "tasks that came to their end")?;
        results.into_iter().collect()
    }

    // ---- pushes ----------------------------------------------------------------------------------------------------

    /// Has a worker's driver told what happens, and waits until pushes reach it.
    pub(super) async fn listen(&self, worker: &Worker) -> Result<Ear, Failure> {
        let ear = Arc::new(Hearing::default());
        let subscription = worker
            .store
            .subscribe(worker.id(), worker.member.driver, Arc::clone(&ear) as Arc<dyn Listener>)
            .ok_or_else(|| Failure("wake is declared, and there is no subscription".to_owned()))?;
        let ear = Ear { hearing: ear, subscription: Some(subscription) };
        for _ in 0..20 {
            worker.pause(DAY).await?;
            let heard =
                ear.within(Duration::from_millis(100), |wake| matches!(wake, Wake::Paused { .. })).await;
            // What was pushed before that pause is old news, and not to be taken for its end.
            ear.forget();
            worker.resume().await?;
            if heard.is_some() {
                ear.expect("a resumed id", |wake| matches!(wake, Wake::Resumed)).await?;
                ear.forget();
                return Ok(ear);
            }
        }
        Err(Failure("a listener was never told of a pause".to_owned()))
    }
}

/// A driver of one id.
#[derive(Clone)]
pub(super) struct Worker {
    pub(super) store: Arc<dyn Store>,
    pub(super) member: Member,
}

impl Worker {
    pub(super) fn id(&self) -> &Id {
        &self.member.id
    }

    pub(super) fn starting_at(mut self, initial_limit: u32) -> Self {
        self.member.initial_limit = initial_limit;
        self
    }

    pub(super) fn refusing(mut self) -> Self {
        self.member.on_superseded = OnSuperseded::Refuse;
        self
    }

    fn is_leased(&self) -> bool {
        self.member.policy.bound().is_some()
    }

    // ---- acquiring -------------------------------------------------------------------------------------------------

    /// Asks as it is told, and checks the answer against the contract.
    pub(super) async fn ask(&self, request: &AcquireRequest) -> Result<Reply<AcquireReply>, StoreError> {
        let reply = self.store.acquire(&self.member, request).await?;
        let asked = Exchange { acquires: vec![Acquire::Prefix(request.clone())], ..Exchange::default() };
        self.check(&asked, &reply, |body| Acquired::Prefix(body.clone()))?;
        Ok(reply)
    }

    pub(super) async fn ask_scoped(&self, request: &ScopedRequest) -> Result<Reply<ScopedReply>, StoreError> {
        let reply = self.store.acquire_scoped(&self.member, request).await?;
        let asked = Exchange { acquires: vec![Acquire::Scoped(request.clone())], ..Exchange::default() };
        self.check(&asked, &reply, |body| Acquired::Scoped(body.clone()))?;
        Ok(reply)
    }

    fn check<T>(
        &self,
        asked: &Exchange,
        reply: &Reply<T>,
        acquired: impl Fn(&T) -> Acquired,
    ) -> Result<(), StoreError> {
        if reply.head.revision.is_some_and(|revision| revision != self.member.policy.revision()) {
            return Ok(()); // Decided by another policy than this worker's.
        }
        let body = ExchangeReply { acquired: vec![Ok(acquired(&reply.body))], ..ExchangeReply::default() };
        asked.check(Some(self.is_leased()), &Reply { head: reply.head, body })
    }

    /// So many jobs of cost 1.
    pub(super) async fn acquire(&self, jobs: usize) -> Result<Reply<AcquireReply>, Failure> {
        Ok(self.ask(&jobs_of_one(jobs)).await?)
    }

    /// How many of so many jobs of cost 1 are granted.
    pub(super) async fn granted(&self, jobs: usize) -> Result<usize, Failure> {
        Ok(self.acquire(jobs).await?.body.grants.len())
    }

    /// Whether one job of this cost is granted.
    pub(super) async fn spends(&self, cost: u64) -> Result<bool, Failure> {
        Ok(self.ask(&jobs(&[cost])).await?.body.denied.is_none())
    }

    /// The denial of one job of this cost.
    pub(super) async fn denied(&self, cost: u64) -> Result<Denial, Failure> {
        let reply = self.ask(&jobs(&[cost])).await?;
        reply
            .body
            .denied
            .ok_or_else(|| Failure(format!("a job of cost {cost} was granted, and should not be")))
    }

    /// The leases of so many jobs, which must all be granted.
    pub(super) async fn leases(&self, jobs: usize) -> Result<Vec<Token>, Failure> {
        self.leases_as(None, jobs).await
    }

    pub(super) async fn leases_as(&self, class: Option<&Name>, jobs: usize) -> Result<Vec<Token>, Failure> {
        let mut tokens = Vec::with_capacity(jobs);
        while tokens.len() < jobs {
            let request =
                AcquireRequest { class: class.cloned(), ..jobs_of_one((jobs - tokens.len()).min(512)) };
            let reply = self.ask(&request).await?;
            ensure(
                !reply.body.grants.is_empty(),
                format_args!("{jobs} leases were free, and only {} were granted", tokens.len()),
            )?;
            tokens.extend(reply.body.grants.iter().filter_map(|grant| grant.lease));
        }
        Ok(tokens)
    }

    pub(super) async fn lease(&self) -> Result<Token, Failure> {
        let tokens = self.leases(1).await?;
        tokens.first().copied().ok_or_else(|| Failure("a grant came without a lease".to_owned()))
    }

    /// How many jobs of a class are granted out of so many.
    pub(super) async fn granted_as(&self, class: Option<&Name>, jobs: usize) -> Result<usize, Failure> {
        let request = AcquireRequest { class: class.cloned(), ..jobs_of_one(jobs) };
        Ok(self.ask(&request).await?.body.grants.len())
    }

    // ---- holding ---------------------------------------------------------------------------------------------------

    pub(super) async fn release(&self, tokens: &[Token]) -> Result<Head, Failure> {
        self.report(tokens, Outcome::Failure).await
    }

    pub(super) async fn report(&self, tokens: &[Token], outcome: Outcome) -> Result<Head, Failure> {
        Ok(self.store.release(&self.member, &releases(tokens, outcome)).await?.head)
    }

    /// Whether each of these lives.
    pub(super) async fn renew(&self, tokens: &[Token]) -> Result<Vec<bool>, Failure> {
        Ok(self.store.renew(&self.member, None, &renewals(tokens)).await?.body.live)
    }

    /// Takes leases up again after a loss.
    pub(super) async fn take_up(&self, restore: &Restore, tokens: &[Token]) -> Result<Vec<bool>, Failure> {
        Ok(self.store.renew(&self.member, Some(restore), &renewals(tokens)).await?.body.live)
    }

    // ---- the rest --------------------------------------------------------------------------------------------------

    pub(super) async fn pause(&self, ms: u64) -> Result<Head, Failure> {
        Ok(self.store.pause(self.id(), Duration::from_millis(ms)).await?.head)
    }

    pub(super) async fn resume(&self) -> Result<Head, Failure> {
        Ok(self.store.resume(self.id()).await?.head)
    }

    pub(super) async fn settle(&self, settlement: Settlement) -> Result<u64, Failure> {
        let settled = self.store.settle(&self.member, &[settlement]).await?.body;
        match settled.as_slice() {
            [settled] => Ok(settled.cut),
            _ => Err(Failure(format!("one settlement was answered by {}", settled.len()))),
        }
    }

    pub(super) async fn exchange(&self, exchange: &Exchange) -> Result<Reply<ExchangeReply>, StoreError> {
        let reply = self.store.exchange(&self.member, exchange).await?;
        if reply.head.revision.is_none_or(|revision| revision == self.member.policy.revision()) {
            exchange.check(Some(self.is_leased()), &reply)?;
        }
        Ok(reply)
    }

    pub(super) async fn snapshot(&self) -> Result<Option<Snapshot>, Failure> {
        let operators = self
            .store
            .operators()
            .ok_or_else(|| Failure("operators are declared, and there are none".to_owned()))?;
        Ok(operators.snapshot(self.id()).await?.body)
    }

    pub(super) async fn views(&self) -> Result<Vec<LeaseView>, Failure> {
        let operators = self
            .store
            .operators()
            .ok_or_else(|| Failure("operators are declared, and there are none".to_owned()))?;
        Ok(operators.leases(self.id(), None, 1_000).await?.body.items)
    }

    /// The epoch, by an operation that changes nothing.
    pub(super) async fn epoch(&self) -> Result<Epoch, Failure> {
        let head = self.store.renew(&self.member, None, &[]).await?.head;
        head.epoch.ok_or_else(|| Failure("an answer without an epoch, which is declared".to_owned()))
    }

    /// All that can be seen of the id without changing it, less what passes with time.
    pub(super) async fn traces(&self) -> Result<String, Failure> {
        let head = self.store.resume(self.id()).await?.head;
        let mut traces = format!(
            "epoch {:?}, limit {:?}, held {:?}, paused {}, revision {:?}, ttl {:?}",
            head.epoch,
            head.limit,
            head.held,
            head.paused_ms > 0,
            head.revision,
            head.lease_ttl_ms
        );
        if self.store.capabilities().has(Capability::Operators) {
            let snapshot = self.snapshot().await?.map(|snapshot| {
                let levels: Vec<_> = snapshot.rules.iter().map(|rule| (&rule.rule, rule.level)).collect();
                format!(
                    "{:?}, {:?}, {:?}, resting {}, levels {levels:?}",
                    snapshot.policy, snapshot.limit, snapshot.by_class, snapshot.resting
                )
            });
            let leases: Vec<_> = self
                .views()
                .await?
                .into_iter()
                .map(|view| (view.token, view.owner, view.class, view.resting))
                .collect();
            traces.push_str(&format!(", snapshot {snapshot:?}, leases {leases:?}"));
        }
        Ok(traces)
    }
}

// ---- requests ------------------------------------------------------------------------------------------------------

pub(super) fn jobs(costs: &[u64]) -> AcquireRequest {
    let jobs = costs.iter().map(|cost| Job { costs: Costs { each: *cost, named: Vec::new() } }).collect();
    AcquireRequest { class: None, jobs, line: Line::default() }
}

pub(super) fn jobs_of_one(jobs: usize) -> AcquireRequest {
    AcquireRequest { class: None, jobs: vec![Job::default(); jobs], line: Line::default() }
}

/// A job with costs of its own for named rules.
pub(super) fn job_with(each: u64, named: &[(&str, u64)]) -> Result<AcquireRequest, Failure> {
    let named = named.iter().map(|(rule, cost)| Ok((name(rule)?, *cost))).collect::<Result<_, Failure>>()?;
    let job = Job { costs: Costs { each, named } };
    Ok(AcquireRequest { class: None, jobs: vec![job], line: Line::default() })
}

/// A queue of which so many wait, the oldest for so long.
pub(super) fn queue(jobs: usize, waiting: u32, waited_ms: u64) -> AcquireRequest {
    AcquireRequest { line: Line { waiting, waited_ms }, ..jobs_of_one(jobs) }
}

pub(super) fn scoped_jobs(class: Option<&Name>, jobs: Vec<ScopedJob>) -> ScopedRequest {
    ScopedRequest { class: class.cloned(), jobs, line: Line::default() }
}

/// A job of this cost, for one identity of each of these scopes.
pub(super) fn scoped_job(cost: u64, scopes: &[(&str, &str)]) -> Result<ScopedJob, Failure> {
    let scopes = scopes
        .iter()
        .map(|(scope, identity)| Ok((name(scope)?, Identity::new(identity)?)))
        .collect::<Result<_, Failure>>()?;
    Ok(ScopedJob { costs: Costs { each: cost, named: Vec::new() }, scopes })
}

pub(super) fn releases(tokens: &[Token], outcome: Outcome) -> Vec<Release> {
    tokens.iter().map(|token| Release { token: *token, outcome, retry_after_ms: None }).collect()
}

pub(super) fn renewals(tokens: &[Token]) -> Vec<Renewal> {
    tokens.iter().map(|token| Renewal { token: *token, class: None }).collect()
}

pub(super) fn name(text: &str) -> Result<Name, Failure> {
    Ok(Name::new("name", text)?)
}

pub(super) fn key(text: &str) -> RuleKey {
    RuleKey::from(text)
}

pub(super) fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

// ---- policies ------------------------------------------------------------------------------------------------------

pub(super) fn policy() -> Draft {
    Policy::draft()
}

/// One rule.
pub(super) fn ruled(rule: Rule) -> Draft {
    policy().rule(rule)
}

/// A limit that is known.
pub(super) fn fixed(limit: u32) -> Draft {
    policy().bound(Bound::Fixed(limit))
}

/// A limit that moves between these, with a window of 1 s, a cooldown of 2 s and no rest for the slot of a throttled
/// release.
pub(super) fn adaptive(min: u32, max: u32) -> Result<Draft, Failure> {
    growing(min, max, Growth::Additive)
}

pub(super) fn growing(min: u32, max: u32, growth: Growth) -> Result<Draft, Failure> {
    let aimd = Aimd::new().window(ms(1_000)).cooldown(ms(2_000));
    Ok(policy().bound(Bound::Adaptive(LimitPolicy::check(min, max, &aimd, Duration::ZERO, growth)?)))
}

// ---- answers -------------------------------------------------------------------------------------------------------

/// Fails unless the answer is an error of this code.
pub(super) fn refused<T: Debug>(
    answer: Result<Reply<T>, StoreError>,
    code: &str,
    what: impl std::fmt::Display,
) -> Result<StoreError, Failure> {
    match answer {
        Err(error) if error.code() == code => Ok(error),
        Err(error) => {
            Err(Failure(format!("{what}: expected an error {code}, got {}: {error}", error.code())))
        }
        Ok(reply) => Err(Failure(format!("{what}: expected an error {code}, got {:?}", reply.body))),
    }
}

/// Fails unless the tokens have these slots, in order.
pub(super) fn slots(tokens: &[Token], expected: &[u32], what: &str) -> Result<(), Failure> {
    let slots: Vec<u32> = tokens.iter().map(|token| token.slot).collect();
    same(slots.as_slice(), expected, what)
}

// ---- pushes --------------------------------------------------------------------------------------------------------

/// A subscription, and what came through it.
pub(super) struct Ear {
    hearing: Arc<Hearing>,
    subscription: Option<Subscription>,
}

impl Ear {
    /// Waits until it has heard of this, or fails.
    pub(super) async fn expect(
        &self,
        what: &str,
        is_it: impl Fn(&Wake) -> bool + Send,
    ) -> Result<Wake, Failure> {
        let heard = self.within(PUSHED_WITHIN, is_it).await;
        heard.ok_or_else(|| Failure(format!("{what} was not pushed; what was: {:?}", self.hearing.heard())))
    }

    pub(super) async fn expect_room(&self, what: &str) -> Result<(), Failure> {
        self.expect(what, is_room).await.map(|_| ())
    }

    async fn within(&self, most: Duration, is_it: impl Fn(&Wake) -> bool + Send) -> Option<Wake> {
        self.hearing.within(most, is_it).await
    }

    /// What it has heard, which it forgets.
    pub(super) fn take(&self) -> Vec<Wake> {
        self.hearing.take()
    }

    pub(super) fn forget(&self) {
        self.take();
    }

    /// How often it has been told of room, as far as everything that happened before is pushed: a pause that follows is
    /// waited for first.
    pub(super) async fn rooms(&self, worker: &Worker) -> Result<usize, Failure> {
        worker.pause(DAY).await?;
        self.expect("a pause", |wake| matches!(wake, Wake::Paused { .. })).await?;
        let rooms = self.take().iter().filter(|wake| is_room(wake)).count();
        worker.resume().await?;
        self.expect("the end of a pause", |wake| matches!(wake, Wake::Resumed)).await?;
        self.take();
        Ok(rooms)
    }

    pub(super) fn unsubscribe(&mut self) {
        self.subscription = None;
    }
}

fn is_room(wake: &Wake) -> bool {
    matches!(wake, Wake::Room { .. })
}
