//! A store that writes down what it grants: the memory store, watched from outside.
//!
//! It counts live leases by itself, from the grants and the releases that pass, so that the bound is held against a
//! count that is not the store's own.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tidegate::MemoryStore;
use tidegate_core::{
    AcquireReply, AcquireRequest, Acquired, Answer, Capabilities, DriverId, Exchange, ExchangeReply, Grant,
    HandOver, Head, Id, Listener, Member, Observation, Operators, PauseReply, Release, Renewal, Renewed,
    Reply, Restore, ScopedReply, ScopedRequest, Settled, Settlement, Store, StoreError, Subscription,
    SyncPath, Token, time::Moment,
};

/// What was seen of one id.
#[derive(Default)]
pub(crate) struct Book {
    /// The fence of each slot's live lease.
    slots: Vec<Option<u64>>,
    live: u32,
    /// How far live leases ever exceeded the limit in force at a grant.
    pub(crate) over_admission: u32,
    /// Each limit, and the moment since when it was seen.
    pub(crate) limits: Vec<(Moment, u32)>,
}

impl Book {
    fn head(&mut self, head: &Head) {
        let (Some(now), Some(limit)) = (head.now, head.limit) else { return };
        if self.limits.last().is_none_or(|(_, known)| *known != limit.value) {
            self.limits.push((now, limit.value));
        }
    }

    fn granted(&mut self, head: &Head, grants: impl Iterator<Item = Option<Token>>) {
        for token in grants.flatten() {
            let at = token.slot as usize;
            if self.slots.len() <= at {
                self.slots.resize(at + 1, None);
            }
            match self.slots.get_mut(at) {
                Some(slot @ None) => {
                    *slot = Some(token.fence);
                    self.live += 1;
                }
                // One slot twice: that is one too many, whatever the count.
                _ => self.over_admission = self.over_admission.max(1),
            }
            let limit = head.limit.map_or(0, |limit| limit.value);
            self.over_admission = self.over_admission.max(self.live.saturating_sub(limit));
        }
    }

    fn ended(&mut self, token: Token) {
        if let Some(slot) = self.slots.get_mut(token.slot as usize).filter(|slot| **slot == Some(token.fence))
        {
            *slot = None;
            self.live -= 1;
        }
    }
}

/// The watched store. A cheap clone of one thing.
#[derive(Clone)]
pub(crate) struct Audited {
    store: MemoryStore,
    book: Arc<Mutex<Book>>,
}

impl Audited {
    pub(crate) fn new(store: MemoryStore) -> Self {
        Self { store, book: Arc::default() }
    }

    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        open(&self.book)
    }

    pub(crate) fn store(&self) -> &MemoryStore {
        &self.store
    }
}

/// There is but one thread, and a panic in it ends the simulation.
fn open(book: &Mutex<Book>) -> MutexGuard<'_, Book> {
    book.lock().unwrap_or_else(PoisonError::into_inner)
}

fn tokens(grants: &[Grant]) -> impl Iterator<Item = Option<Token>> + '_ {
    grants.iter().map(|grant| grant.lease)
}

impl Book {
    fn acquired(&mut self, reply: &Reply<AcquireReply>) {
        self.head(&reply.head);
        self.granted(&reply.head, tokens(&reply.body.grants));
    }

    fn scoped(&mut self, reply: &Reply<ScopedReply>) {
        self.head(&reply.head);
        self.granted(&reply.head, reply.body.grants.iter().map(|granted| granted.grant.lease));
    }

    fn released(&mut self, head: &Head, releases: &[Release]) {
        releases.iter().for_each(|release| self.ended(release.token));
        self.head(head);
    }

    fn renewed(&mut self, renewals: &[Renewal], live: &[bool]) {
        for (renewal, _) in renewals.iter().zip(live).filter(|(_, live)| !**live) {
            self.ended(renewal.token);
        }
    }

    fn exchanged(&mut self, exchange: &Exchange, reply: &Reply<ExchangeReply>) {
        self.released(&reply.head, &exchange.releases);
        if let Ok(renewed) = &reply.body.renewed {
            self.renewed(&exchange.renewals, &renewed.live);
        }
        let handed_over = reply.body.handed_over.iter().flatten().copied().map(Some);
        self.granted(&reply.head, handed_over);
        for acquired in reply.body.acquired.iter().flatten() {
            self.granted(&reply.head, Acquired::grants(acquired).map(|(_, grant)| grant.lease));
        }
    }
}

/// The synchronous path, watched. What it does not pass on (the brief way for a single job) is asked for in full.
struct AuditedPath {
    path: Arc<dyn SyncPath>,
    book: Arc<Mutex<Book>>,
}

impl SyncPath for AuditedPath {
    fn now(&self) -> Moment {
        self.path.now()
    }

    fn acquire(&self, member: &Member, request: &AcquireRequest) -> Result<Reply<AcquireReply>, StoreError> {
        self.path.acquire(member, request).inspect(|reply| open(&self.book).acquired(reply))
    }

    fn acquire_scoped(
        &self,
        member: &Member,
        request: &ScopedRequest,
    ) -> Result<Reply<ScopedReply>, StoreError> {
        self.path.acquire_scoped(member, request).inspect(|reply| open(&self.book).scoped(reply))
    }

    fn release(&self, member: &Member, releases: &[Release]) -> Result<Reply<()>, StoreError> {
        self.path.release(member, releases).inspect(|reply| open(&self.book).released(&reply.head, releases))
    }

    fn exchange(&self, member: &Member, exchange: &Exchange) -> Result<Reply<ExchangeReply>, StoreError> {
        self.path.exchange(member, exchange).inspect(|reply| open(&self.book).exchanged(exchange, reply))
    }
}

impl Store for Audited {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    fn acquire<'a>(&'a self, member: &'a Member, request: &'a AcquireRequest) -> Answer<'a, AcquireReply> {
        Box::pin(async move {
            let reply = self.store.acquire(member, request).await?;
            self.book().acquired(&reply);
            Ok(reply)
        })
    }

    fn pause<'a>(&'a self, id: &'a Id, length: std::time::Duration) -> Answer<'a, PauseReply> {
        self.store.pause(id, length)
    }

    fn resume<'a>(&'a self, id: &'a Id) -> Answer<'a, bool> {
        self.store.resume(id)
    }

    fn acquire_scoped<'a>(
        &'a self,
        member: &'a Member,
        request: &'a ScopedRequest,
    ) -> Answer<'a, ScopedReply> {
        Box::pin(async move {
            let reply = self.store.acquire_scoped(member, request).await?;
            self.book().scoped(&reply);
            Ok(reply)
        })
    }

    fn release<'a>(&'a self, member: &'a Member, releases: &'a [Release]) -> Answer<'a, ()> {
        Box::pin(async move {
            let reply = self.store.release(member, releases).await?;
            self.book().released(&reply.head, releases);
            Ok(reply)
        })
    }

    fn renew<'a>(
        &'a self,
        member: &'a Member,
        restore: Option<&'a Restore>,
        renewals: &'a [Renewal],
    ) -> Answer<'a, Renewed> {
        Box::pin(async move {
            let reply = self.store.renew(member, restore, renewals).await?;
            self.book().renewed(renewals, &reply.body.live);
            Ok(reply)
        })
    }

    fn hand_over<'a>(&'a self, member: &'a Member, hand_overs: &'a [HandOver]) -> Answer<'a, Vec<Token>> {
        Box::pin(async move {
            let reply = self.store.hand_over(member, hand_overs).await?;
            self.book().granted(&reply.head, reply.body.iter().copied().map(Some));
            Ok(reply)
        })
    }

    fn settle<'a>(&'a self, member: &'a Member, settlements: &'a [Settlement]) -> Answer<'a, Vec<Settled>> {
        self.store.settle(member, settlements)
    }

    fn observe<'a>(&'a self, member: &'a Member, observations: &'a [Observation]) -> Answer<'a, Vec<bool>> {
        self.store.observe(member, observations)
    }

    fn exchange<'a>(&'a self, member: &'a Member, exchange: &'a Exchange) -> Answer<'a, ExchangeReply> {
        Box::pin(async move {
            let reply = self.store.exchange(member, exchange).await?;
            self.book().exchanged(exchange, &reply);
            Ok(reply)
        })
    }

    fn sync_path(&self, id: &Id) -> Option<Arc<dyn SyncPath>> {
        let path = self.store.sync_path(id)?;
        Some(Arc::new(AuditedPath { path, book: Arc::clone(&self.book) }))
    }

    fn subscribe(&self, id: &Id, driver: DriverId, listener: Arc<dyn Listener>) -> Option<Subscription> {
        self.store.subscribe(id, driver, listener)
    }

    fn operators(&self) -> Option<&dyn Operators> {
        self.store.operators()
    }
}

#[cfg(test)]
mod tests {
    use tidegate_core::{Epoch, Limit};

    use super::*;

    fn head(limit: u32) -> Head {
        let limit = Limit { value: limit, moved_at: Moment::default() };
        Head { limit: Some(limit), now: Some(Moment::from_millis(limit.value.into())), ..Head::default() }
    }

    fn token(slot: u32, fence: u64) -> Token {
        Token { epoch: Epoch(1), slot, fence }
    }

    fn grant(book: &mut Book, limit: u32, token: Token) {
        book.granted(&head(limit), std::iter::once(Some(token)));
    }

    #[test]
    fn as_4_a_grant_above_the_limit_is_seen() {
        let mut book = Book::default();
        grant(&mut book, 2, token(0, 1));
        grant(&mut book, 2, token(1, 2));
        assert_eq!(book.over_admission, 0);
        book.ended(token(0, 7));
        book.ended(token(0, 1));
        grant(&mut book, 2, token(0, 3));
        assert_eq!(book.over_admission, 0, "a slot that was given back may be given again");
        grant(&mut book, 2, token(2, 4));
        assert_eq!(book.over_admission, 1);
        grant(&mut book, 1, token(3, 5));
        assert_eq!(book.over_admission, 3, "four live leases under a limit of one");
    }

    #[test]
    fn st_9_a_slot_that_is_given_twice_is_seen() {
        let mut book = Book::default();
        grant(&mut book, 9, token(4, 1));
        grant(&mut book, 9, token(4, 2));
        assert_eq!(book.over_admission, 1);
    }

    #[test]
    fn a_limit_is_written_down_when_it_is_another() {
        let mut book = Book::default();
        [5, 5, 6, 6, 3].into_iter().for_each(|limit| book.head(&head(limit)));
        let limits: Vec<u32> = book.limits.iter().map(|(_, limit)| *limit).collect();
        assert_eq!(limits, [5, 6, 3]);
    }
}
