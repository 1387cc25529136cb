//! All that a driver has for an id, in one go.
//!
//! Spec: ST-15.

use crate::{Member, Name, Token, time::Moment};

use super::{
    AcquireReply, AcquireRequest, Capability, Cause, Denial, Grant, HandOver, Head, Line, Observation,
    Release, Renewal, Renewed, Reply, Restore, ScopedReply, ScopedRequest, Settled, Settlement, Store,
    StoreError,
};

/// One round trip of a driver. The parts are done in the order of the fields; each answers for itself.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Exchange {
    /// Its number, so that it is carried out once however often it arrives.
    pub sequence: Option<Sequence>,
    /// What to restore where the store lost its state.
    pub restore: Option<Restore>,
    /// Leases given back.
    pub releases: Vec<Release>,
    /// Costs corrected.
    pub settlements: Vec<Settlement>,
    /// What servers said of their quotas.
    pub observations: Vec<Observation>,
    /// Leases kept.
    pub renewals: Vec<Renewal>,
    /// Leases granted while the store was away.
    pub hand_overs: Vec<HandOver>,
    /// At most one for each class.
    pub acquires: Vec<Acquire>,
    /// How the queues stand that acquire nothing now. A driver that names no queue of a class waits for nothing there.
    pub queues: Vec<Queue>,
}

/// The number of an exchange.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sequence {
    /// Grows by one with each exchange of a driver.
    pub number: u64,
    /// Not to be carried out after this moment of the store's clock.
    pub not_after: Option<Moment>,
}

/// An acquire within an exchange.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Acquire {
    /// The head of a queue, in order.
    Prefix(AcquireRequest),
    /// Jobs with identities.
    Scoped(ScopedRequest),
}

impl Acquire {
    /// Whose queue it is.
    pub const fn class(&self) -> Option<&Name> {
        match self {
            Self::Prefix(request) => request.class.as_ref(),
            Self::Scoped(request) => request.class.as_ref(),
        }
    }

    /// How the queue stands.
    pub const fn line(&self) -> Line {
        match self {
            Self::Prefix(request) => request.line,
            Self::Scoped(request) => request.line,
        }
    }

    /// How many jobs it asks for.
    pub const fn jobs(&self) -> usize {
        match self {
            Self::Prefix(request) => request.jobs.len(),
            Self::Scoped(request) => request.jobs.len(),
        }
    }
}

/// A queue that acquires nothing in this exchange.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Queue {
    /// Its class.
    pub class: Option<Name>,
    /// How it stands.
    pub line: Line,
}

/// What came of an exchange, part by part.
#[derive(Clone, PartialEq, Debug)]
pub struct ExchangeReply {
    /// The releases.
    pub released: Result<(), StoreError>,
    /// The settlements, in order.
    pub settled: Result<Vec<Settled>, StoreError>,
    /// The observations, in order: whether each lowered a level.
    pub observed: Result<Vec<bool>, StoreError>,
    /// The renewals.
    pub renewed: Result<Renewed, StoreError>,
    /// The hand-overs, in order.
    pub handed_over: Result<Vec<Token>, StoreError>,
    /// The acquires, in order.
    pub acquired: Vec<Result<Acquired, StoreError>>,
}

impl Default for ExchangeReply {
    fn default() -> Self {
        Self {
            released: Ok(()),
            settled: Ok(Vec::new()),
            observed: Ok(Vec::new()),
            renewed: Ok(Renewed::default()),
            handed_over: Ok(Vec::new()),
            acquired: Vec::new(),
        }
    }
}

/// What came of an acquire.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Acquired {
    /// The head of a queue.
    Prefix(AcquireReply),
    /// Jobs with identities.
    Scoped(ScopedReply),
}

impl Acquired {
    /// The grants, each with the index of its job.
    pub fn grants(&self) -> impl Iterator<Item = (usize, &Grant)> {
        let (prefix, scoped) = match self {
            Self::Prefix(reply) => (reply.grants.as_slice(), [].as_slice()),
            Self::Scoped(reply) => ([].as_slice(), reply.grants.as_slice()),
        };
        prefix.iter().enumerate().chain(scoped.iter().map(|granted| (granted.index, &granted.grant)))
    }

    /// The denials, each with the index of its job.
    pub fn denials(&self) -> impl Iterator<Item = (usize, &Denial)> {
        let (prefix, scoped) = match self {
            Self::Prefix(reply) => {
                (reply.denied.as_ref().map(|denied| (reply.grants.len(), denied)), [].as_slice())
            }
            Self::Scoped(reply) => (None, reply.denied.as_slice()),
        };
        prefix.into_iter().chain(scoped.iter().map(|denied| (denied.index, &denied.denial)))
    }
}

impl Exchange {
    /// Whether it asks for nothing, and only looks.
    pub fn is_empty(&self) -> bool {
        *self == Self { sequence: self.sequence, ..Self::default() }
    }

    /// Checks an answer against the contract. `leased` says whether a lease belongs to each grant, where that is known.
    ///
    /// # Errors
    /// `Unavailable` with [`Cause::Broken`], for an index twice or missing, more grants than jobs, a token twice, a hint
    /// of zero, a grant during a pause, or parts that do not match.
    ///
    /// Spec: UN-1.
    pub fn check(&self, leased: Option<bool>, reply: &Reply<ExchangeReply>) -> Result<(), StoreError> {
        let broken = |what: &str| Err(StoreError::unavailable(Cause::Broken, what));
        let body = &reply.body;
        if body.acquired.len() != self.acquires.len() {
            return broken("one answer for each acquire");
        }
        let counts = [
            (body.settled.as_ref().map(Vec::len), self.settlements.len(), "one answer for each settlement"),
            (
                body.observed.as_ref().map(Vec::len),
                self.observations.len(),
                "one answer for each observation",
            ),
            (
                body.renewed.as_ref().map(|renewed| renewed.live.len()),
                self.renewals.len(),
                "one answer for each renewal",
            ),
            (body.handed_over.as_ref().map(Vec::len), self.hand_overs.len(), "one token for each hand-over"),
        ];
        for (given, asked, what) in counts {
            if given.is_ok_and(|given| given != asked) {
                return broken(what);
            }
        }
        let mut tokens: Vec<Token> = body.handed_over.as_ref().map_or_else(|_| Vec::new(), Clone::clone);
        for (asked, acquired) in self.acquires.iter().zip(&body.acquired) {
            let Ok(acquired) = acquired else { continue };
            check_acquired(asked, acquired, reply.head.paused_ms > 0).or_else(broken)?;
            for (_, grant) in acquired.grants() {
                if leased.is_some_and(|leased| grant.lease.is_some() != leased) {
                    return broken("a lease with each grant where concurrency is bounded, and nowhere else");
                }
                tokens.extend(grant.lease);
            }
        }
        tokens.sort_unstable();
        if tokens.windows(2).any(|pair| pair[0] == pair[1]) {
            return broken("a token twice");
        }
        Ok(())
    }
}

fn check_acquired(asked: &Acquire, acquired: &Acquired, paused: bool) -> Result<(), &'static str> {
    let jobs = asked.jobs();
    let granted = acquired.grants().count();
    if granted > jobs {
        return Err("more grants than jobs");
    }
    if paused && granted > 0 {
        return Err("a grant during a pause");
    }
    if acquired.denials().any(|(_, denial)| denial.hint_ms == 0 || denial.hint_ms >= crate::time::EXACT) {
        return Err("a hint out of range");
    }
    match (asked, acquired) {
        (Acquire::Prefix(_), Acquired::Prefix(reply)) => {
            if (granted < jobs) != reply.denied.is_some() {
                return Err("a denial exactly where a job is left");
            }
        }
        (Acquire::Scoped(_), Acquired::Scoped(_)) => {
            let mut seen = vec![false; jobs];
            for index in
                acquired.grants().map(|(index, _)| index).chain(acquired.denials().map(|(index, _)| index))
            {
                match seen.get_mut(index) {
                    Some(seen) if !*seen => *seen = true,
                    _ => return Err("an index twice or out of range"),
                }
            }
            if seen.iter().any(|seen| !seen) {
                return Err("a job without an answer");
            }
        }
        _ => return Err("an answer of the kind that was asked for"),
    }
    Ok(())
}

/// The parts of an exchange, each by its own operation: what a store does that has nothing better.
pub(super) async fn one_by_one<S: Store + ?Sized>(
    store: &S,
    member: &Member,
    exchange: &Exchange,
) -> Result<Reply<ExchangeReply>, StoreError> {
    let mut seen = Parts::default();
    let mut body = ExchangeReply::default();
    if !exchange.releases.is_empty() {
        body.released = seen.part(store.release(member, &exchange.releases).await)?;
    }
    if !exchange.settlements.is_empty() {
        body.settled = seen.part(store.settle(member, &exchange.settlements).await)?;
    }
    if !exchange.observations.is_empty() {
        body.observed = seen.part(store.observe(member, &exchange.observations).await)?;
    }
    if !exchange.renewals.is_empty() || exchange.restore.is_some() {
        body.renewed = seen.part(store.renew(member, exchange.restore.as_ref(), &exchange.renewals).await)?;
    }
    if !exchange.hand_overs.is_empty() {
        body.handed_over = seen.part(store.hand_over(member, &exchange.hand_overs).await)?;
    }
    for acquire in &exchange.acquires {
        let acquired = match acquire {
            Acquire::Prefix(request) => {
                seen.part(store.acquire(member, request).await.map(|reply| reply.map(Acquired::Prefix)))?
            }
            Acquire::Scoped(request) => seen
                .part(store.acquire_scoped(member, request).await.map(|reply| reply.map(Acquired::Scoped)))?,
        };
        seen.granted |= acquired.as_ref().is_ok_and(|acquired| acquired.grants().next().is_some());
        body.acquired.push(acquired);
    }
    if !seen.asked {
        seen.look(store, member).await?;
    }
    Ok(Reply { head: seen.head, body })
}

#[derive(Default)]
struct Parts {
    head: Head,
    asked: bool,
    answered: bool,
    granted: bool,
}

impl Parts {
    /// Takes a part's answer: the newest head counts. A store that is away before it did anything did nothing; one that
    /// goes away later answers for the rest by its error.
    fn part<T>(&mut self, answer: Result<Reply<T>, StoreError>) -> Result<Result<T, StoreError>, StoreError> {
        self.asked = true;
        match answer {
            Ok(reply) => {
                self.answered = true;
                self.head = reply.head;
                if self.granted {
                    // Those grants came before the pause; the next answer tells of it.
                    self.head.paused_ms = 0;
                }
                Ok(Ok(reply.body))
            }
            Err(error) if error.is_unavailable() && !self.answered => Err(error),
            Err(error) => Ok(Err(error)),
        }
    }

    /// Asks for nothing, where the store has an operation that can.
    async fn look<S: Store + ?Sized>(&mut self, store: &S, member: &Member) -> Result<(), StoreError> {
        let capabilities = store.capabilities();
        if capabilities.has(Capability::Leases) {
            self.part(store.renew(member, None, &[]).await)?.map(drop)
        } else if capabilities.has(Capability::Corrections) {
            self.part(store.settle(member, &[]).await)?.map(drop)
        } else {
            Ok(())
        }
    }
}
