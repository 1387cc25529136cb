//! A store, watched from the client's side: what was sent when, and what was the answer.
//!
//! It passes everything on, and writes down what a history needs. A release is written down before it is sent and a grant
//! when it has come, so that a process which dies in between leaves records that claim too little, never too much.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tidegate::{
    Capabilities, Id, Operators, Store, Token,
    contract::{
        Acquire, AcquireReply, AcquireRequest, Acquired, Answer, Costs, DriverId, Exchange, ExchangeReply,
        Grant, HandOver, Head, Identity, Listener, Member, Name, Observation, PauseReply, Release, Renewal,
        Renewed, Restore, ScopedReply, ScopedRequest, Settled, Settlement, Subscription,
    },
};

use super::Log;
use crate::{
    clock,
    record::{Event, Lease, Spent},
};

/// The watched store. It has no synchronous path, since requests that do not travel have nothing to be watched.
pub(super) struct Watched {
    store: Arc<dyn Store>,
    log: Log,
    /// When exchanges that are not answered yet were first sent, by their driver and number.
    first_sent: Mutex<HashMap<(DriverId, u64), u64>>,
    deadlines: Mutex<HashMap<Lease, u64>>,
}

impl Watched {
    pub(super) fn new(store: Arc<dyn Store>, log: Log) -> Self {
        Self { store, log, first_sent: Mutex::default(), deadlines: Mutex::default() }
    }

    /// Until when a lease certainly lives, by what was answered so far.
    pub(super) fn deadline(&self, lease: Lease) -> Option<u64> {
        open(&self.deadlines).get(&lease).copied()
    }

    fn log(&self, event: Event) {
        self.log.write(event);
    }

    /// When an exchange was first sent: one that is sent again is answered as it was then.
    fn sent(&self, member: &Member, exchange: &Exchange) -> u64 {
        let now = clock::now();
        exchange.sequence.map_or(now, |sequence| {
            *open(&self.first_sent).entry((member.driver, sequence.number)).or_insert(now)
        })
    }

    fn kept(&self, member: &Member, head: &Head, sent: u64, lease: Lease) -> u64 {
        let ttl = head.lease_ttl_ms.unwrap_or_else(|| member.policy.lease_ttl_ms());
        let deadline = sent.saturating_add(ttl.saturating_mul(1_000));
        let mut deadlines = open(&self.deadlines);
        let known = deadlines.entry(lease).or_insert(deadline);
        *known = deadline.max(*known);
        *known
    }

    fn releasing(&self, releases: &[Release]) {
        for release in releases {
            self.log(Event::Releasing { lease: release.token.into() });
        }
    }

    fn freed(&self, releases: &[Release]) {
        for release in releases {
            let lease = release.token.into();
            open(&self.deadlines).remove(&lease);
            // A slot that rests is not free yet; how long it rests is the store's to know, so it is not said here.
            if release.outcome != tidegate::Outcome::Throttled {
                self.log(Event::Freed { lease });
            }
        }
    }

    fn admitted(&self, member: &Member, head: &Head, sent: u64, grant: &Grant, job: &Asked<'_>) {
        let lease = grant.lease.map(Lease::from);
        let deadline = lease.map(|lease| self.kept(member, head, sent, lease));
        let limit = head.limit.map(|limit| limit.value);
        let spent = member.policy.rules().iter().filter_map(|rule| {
            let cost = job.costs.of(rule.name());
            let identity = rule.scope().and_then(|scope| {
                job.scopes.iter().find(|(name, _)| name == scope).map(|(_, identity)| identity.to_string())
            });
            (cost > 0).then(|| Spent { rule: rule.key().to_string(), identity, cost })
        });
        self.log(Event::Admitted { sent, lease, deadline, limit, spent: spent.collect() });
    }

    fn prefix(
        &self,
        member: &Member,
        head: &Head,
        sent: u64,
        request: &AcquireRequest,
        reply: &AcquireReply,
    ) {
        for (job, grant) in request.jobs.iter().zip(&reply.grants) {
            self.admitted(member, head, sent, grant, &Asked { costs: &job.costs, scopes: &[] });
        }
    }

    fn scoped(&self, member: &Member, head: &Head, sent: u64, request: &ScopedRequest, reply: &ScopedReply) {
        for granted in &reply.grants {
            let Some(job) = request.jobs.get(granted.index) else { continue };
            let asked = Asked { costs: &job.costs, scopes: &job.scopes };
            self.admitted(member, head, sent, &granted.grant, &asked);
        }
    }

    fn renewed(&self, member: &Member, head: &Head, sent: u64, renewals: &[Renewal], renewed: &Renewed) {
        for (renewal, lives) in renewals.iter().zip(&renewed.live) {
            let lease = renewal.token.into();
            if *lives {
                let deadline = self.kept(member, head, sent, lease);
                self.log(Event::Renewed { sent, lease, deadline });
            } else {
                self.log(Event::Gone { lease });
            }
        }
    }

    fn handed_over(&self, member: &Member, head: &Head, sent: u64, tokens: &[Token]) {
        for &token in tokens {
            let lease = token.into();
            let deadline = self.kept(member, head, sent, lease);
            self.log(Event::HandedOver { sent, lease, deadline });
        }
    }

    fn crediting(&self, sent: u64, settlements: &[Settlement]) {
        for settlement in settlements {
            let identity = settlement.identity.as_ref().map(Identity::to_string);
            let cost = settlement.cost.saturating_sub(settlement.actual);
            if cost > 0 {
                let credit = Spent { rule: settlement.rule.to_string(), identity, cost };
                self.log(Event::Crediting { sent, credit });
            }
        }
    }

    fn exchanged(&self, member: &Member, sent: u64, exchange: &Exchange, head: &Head, reply: &ExchangeReply) {
        if let Some(sequence) = exchange.sequence {
            open(&self.first_sent).remove(&(member.driver, sequence.number));
        }
        if reply.released.is_ok() {
            self.freed(&exchange.releases);
        }
        if !exchange.settlements.is_empty() {
            self.log(Event::Credited { sent });
        }
        if let Ok(renewed) = &reply.renewed {
            self.renewed(member, head, sent, &exchange.renewals, renewed);
        }
        if let Ok(tokens) = &reply.handed_over {
            self.handed_over(member, head, sent, tokens);
        }
        for (asked, acquired) in exchange.acquires.iter().zip(&reply.acquired) {
            match (asked, acquired) {
                (Acquire::Prefix(request), Ok(Acquired::Prefix(reply))) => {
                    self.prefix(member, head, sent, request, reply);
                }
                (Acquire::Scoped(request), Ok(Acquired::Scoped(reply))) => {
                    self.scoped(member, head, sent, request, reply);
                }
                _ => {}
            }
        }
    }

    /// Says that a request was given up, unless it is told that there is an answer.
    fn under_way<'a>(&'a self, sent: u64, jobs: usize, renewals: &'a [Renewal]) -> UnderWay<'a> {
        UnderWay { watched: self, sent, jobs, renewals, answered: false }
    }
}

fn open<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What one job asked for.
struct Asked<'a> {
    costs: &'a Costs,
    scopes: &'a [(Name, Identity)],
}

struct UnderWay<'a> {
    watched: &'a Watched,
    sent: u64,
    jobs: usize,
    renewals: &'a [Renewal],
    answered: bool,
}

impl UnderWay<'_> {
    fn ends(&mut self, answered: bool) {
        self.answered = answered;
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        if !self.answered && (self.jobs > 0 || !self.renewals.is_empty()) {
            let renewals = self.renewals.iter().map(|renewal| renewal.token.into()).collect();
            let jobs = u32::try_from(self.jobs).unwrap_or(u32::MAX);
            self.watched.log(Event::Unanswered { sent: self.sent, jobs, renewals });
        }
    }
}

/// The store behind it, as one that is shared.
#[derive(Clone)]
pub(super) struct Shared(pub(super) Arc<Watched>);

impl Store for Shared {
    fn capabilities(&self) -> Capabilities {
        self.0.store.capabilities()
    }

    fn acquire<'a>(&'a self, member: &'a Member, request: &'a AcquireRequest) -> Answer<'a, AcquireReply> {
        Box::pin(async move {
            let sent = clock::now();
            let mut under_way = self.0.under_way(sent, request.jobs.len(), &[]);
            let answer = self.0.store.acquire(member, request).await;
            under_way.ends(answer.is_ok());
            answer.inspect(|reply| self.0.prefix(member, &reply.head, sent, request, &reply.body))
        })
    }

    fn pause<'a>(&'a self, id: &'a Id, length: std::time::Duration) -> Answer<'a, PauseReply> {
        self.0.store.pause(id, length)
    }

    fn resume<'a>(&'a self, id: &'a Id) -> Answer<'a, bool> {
        self.0.store.resume(id)
    }

    fn acquire_scoped<'a>(
        &'a self,
        member: &'a Member,
        request: &'a ScopedRequest,
    ) -> Answer<'a, ScopedReply> {
        Box::pin(async move {
            let sent = clock::now();
            let mut under_way = self.0.under_way(sent, request.jobs.len(), &[]);
            let answer = self.0.store.acquire_scoped(member, request).await;
            under_way.ends(answer.is_ok());
            answer.inspect(|reply| self.0.scoped(member, &reply.head, sent, request, &reply.body))
        })
    }

    fn release<'a>(&'a self, member: &'a Member, releases: &'a [Release]) -> Answer<'a, ()> {
        Box::pin(async move {
            self.0.releasing(releases);
            let answer = self.0.store.release(member, releases).await;
            answer.inspect(|_| self.0.freed(releases))
        })
    }

    fn renew<'a>(
        &'a self,
        member: &'a Member,
        restore: Option<&'a Restore>,
        renewals: &'a [Renewal],
    ) -> Answer<'a, Renewed> {
        Box::pin(async move {
            let sent = clock::now();
            let mut under_way = self.0.under_way(sent, 0, renewals);
            let answer = self.0.store.renew(member, restore, renewals).await;
            under_way.ends(answer.is_ok());
            answer.inspect(|reply| self.0.renewed(member, &reply.head, sent, renewals, &reply.body))
        })
    }

    fn hand_over<'a>(&'a self, member: &'a Member, hand_overs: &'a [HandOver]) -> Answer<'a, Vec<Token>> {
        Box::pin(async move {
            let sent = clock::now();
            let mut under_way = self.0.under_way(sent, hand_overs.len(), &[]);
            let answer = self.0.store.hand_over(member, hand_overs).await;
            under_way.ends(answer.is_ok());
            answer.inspect(|reply| self.0.handed_over(member, &reply.head, sent, &reply.body))
        })
    }

    fn settle<'a>(&'a self, member: &'a Member, settlements: &'a [Settlement]) -> Answer<'a, Vec<Settled>> {
        Box::pin(async move {
            let sent = clock::now();
            self.0.crediting(sent, settlements);
            let answer = self.0.store.settle(member, settlements).await;
            answer.inspect(|_| self.0.log(Event::Credited { sent }))
        })
    }

    fn observe<'a>(&'a self, member: &'a Member, observations: &'a [Observation]) -> Answer<'a, Vec<bool>> {
        self.0.store.observe(member, observations)
    }

    fn exchange<'a>(&'a self, member: &'a Member, exchange: &'a Exchange) -> Answer<'a, ExchangeReply> {
        Box::pin(async move {
            let sent = self.0.sent(member, exchange);
            self.0.releasing(&exchange.releases);
            self.0.crediting(sent, &exchange.settlements);
            let jobs = exchange.acquires.iter().map(Acquire::jobs).sum::<usize>() + exchange.hand_overs.len();
            let mut under_way = self.0.under_way(sent, jobs, &exchange.renewals);
            let answer = self.0.store.exchange(member, exchange).await;
            under_way.ends(answer.is_ok());
            answer.inspect(|reply| self.0.exchanged(member, sent, exchange, &reply.head, &reply.body))
        })
    }

    fn subscribe(&self, id: &Id, driver: DriverId, listener: Arc<dyn Listener>) -> Option<Subscription> {
        self.0.store.subscribe(id, driver, listener)
    }

    fn operators(&self) -> Option<&dyn Operators> {
        self.0.store.operators()
    }
}
