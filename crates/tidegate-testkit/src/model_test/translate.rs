//! A store's epochs and fences, in the model's.
//!
//! Each of the store's stands for one of the model's and the other way round, and of an id's fences the store's grow as
//! the model's do.

use std::collections::HashMap;

use tidegate_core::{
    AcquireReply, Acquired, CircuitReply, Epoch, ExchangeReply, Head, Invalid, LeaseView, Page, PauseReply,
    Renewed, Reply, ScopedReply, Settled, Snapshot, StoreError, Token,
};

/// What stands for what, of one id.
#[derive(Default)]
pub(super) struct Names {
    epochs: Both<Epoch>,
    fences: Both<u64>,
    /// The newest fence, the model's and the store's.
    newest: (u64, u64),
}

struct Both<T> {
    of_store: HashMap<T, T>,
    of_model: HashMap<T, T>,
}

impl<T> Default for Both<T> {
    fn default() -> Self {
        Self { of_store: HashMap::new(), of_model: HashMap::new() }
    }
}

impl<T: Copy + Eq + std::hash::Hash> Both<T> {
    /// Notes a pair where neither is known. True where it is new.
    fn learn(&mut self, model: T, store: T) -> bool {
        let is_new = !self.of_model.contains_key(&model) && !self.of_store.contains_key(&store);
        if is_new {
            self.of_model.insert(model, store);
            self.of_store.insert(store, model);
        }
        is_new
    }
}

impl Names {
    /// The store's token for one of the model's; itself where it is unknown to both.
    pub(super) fn store_token(&self, model: Token) -> Token {
        Token {
            epoch: self.store_epoch(model.epoch),
            fence: self.fences.of_model.get(&model.fence).copied().unwrap_or(model.fence),
            ..model
        }
    }

    pub(super) fn store_epoch(&self, model: Epoch) -> Epoch {
        self.epochs.of_model.get(&model).copied().unwrap_or(model)
    }

    fn learn(&mut self, model: Token, store: Token) -> Result<(), String> {
        self.epochs.learn(model.epoch, store.epoch);
        let (newest, last) = self.newest;
        if self.fences.learn(model.fence, store.fence) && model.fence > newest {
            if store.fence <= last {
                return Err(format!("the fence {} came after {last}", store.fence));
            }
            self.newest = (model.fence, store.fence);
        }
        Ok(())
    }

    /// Learns from a pair of answers, and gives the store's in the model's words.
    pub(super) fn translate<T: Body>(
        &mut self,
        model: &Result<Reply<T>, StoreError>,
        store: Result<Reply<T>, StoreError>,
    ) -> Result<Result<Reply<T>, StoreError>, String> {
        let mut reply = match store {
            Err(error) => return Ok(Err(plain(error))),
            Ok(reply) => reply,
        };
        if let Ok(model) = model {
            if let (Some(model), Some(store)) = (model.head.epoch, reply.head.epoch) {
                self.epochs.learn(model, store);
            }
            reply.head = fill(reply.head, &model.head);
            reply.body.overlook(&model.body);
            let mut tokens = Vec::new();
            model.body.clone().visit(&mut |token| tokens.push(*token));
            let mut tokens = tokens.into_iter();
            let mut learned = Ok(());
            reply.body.visit(&mut |token| {
                if let (Some(model), Ok(())) = (tokens.next(), &learned) {
                    learned = self.learn(model, *token);
                }
            });
            learned?;
        }
        let epochs = &self.epochs.of_store;
        let model_epoch = |epoch: Epoch| epochs.get(&epoch).copied().unwrap_or(epoch);
        reply.head.epoch = reply.head.epoch.map(model_epoch);
        reply.body.visit(&mut |token| {
            token.epoch = model_epoch(token.epoch);
            token.fence = self.fences.of_store.get(&token.fence).copied().unwrap_or(token.fence);
        });
        reply.body.epochs(&mut |epoch| *epoch = model_epoch(*epoch));
        reply.body.plain();
        Ok(Ok(reply))
    }
}

/// What a store does not know, or does not keep, may be missing from its answers.
fn fill(store: Head, model: &Head) -> Head {
    Head {
        epoch: store.epoch.or(model.epoch),
        now: store.now.or(model.now),
        held: store.held.or(model.held),
        lease_ttl_ms: store.lease_ttl_ms.or(model.lease_ttl_ms),
        ..store
    }
}

/// An error without the words for what would have been allowed, which each store may choose.
pub(super) fn plain(error: StoreError) -> StoreError {
    match error {
        StoreError::Invalid(invalid) => StoreError::Invalid(Invalid::new(invalid.option, "", "")),
        error => error,
    }
}

/// A body of an answer: what in it is a store's own.
pub(super) trait Body: Clone + PartialEq + std::fmt::Debug {
    /// Every token in it, in order.
    fn visit(&mut self, _: &mut dyn FnMut(&mut Token)) {}

    /// Every epoch in it that is not of a token.
    fn epochs(&mut self, _: &mut dyn FnMut(&mut Epoch)) {}

    /// Makes the errors in it [`plain`].
    fn plain(&mut self) {}

    /// Takes over what need not be the same.
    fn overlook(&mut self, _model: &Self) {}
}

impl Body for () {}
impl Body for bool {}
impl Body for u32 {}
impl Body for PauseReply {}
impl Body for Renewed {}
// A circuit's generations and fences are moments in whole milliseconds, so they are the same at the same moments.
impl Body for CircuitReply {}
impl Body for Vec<Settled> {}
impl Body for Vec<bool> {}

impl Body for Vec<Token> {
    fn visit(&mut self, visit: &mut dyn FnMut(&mut Token)) {
        self.iter_mut().for_each(visit);
    }
}

impl Body for AcquireReply {
    fn visit(&mut self, visit: &mut dyn FnMut(&mut Token)) {
        self.grants.iter_mut().filter_map(|grant| grant.lease.as_mut()).for_each(visit);
    }
}

impl Body for ScopedReply {
    fn visit(&mut self, visit: &mut dyn FnMut(&mut Token)) {
        self.grants.iter_mut().filter_map(|granted| granted.grant.lease.as_mut()).for_each(visit);
    }

    fn overlook(&mut self, _: &Self) {
        // Each index once; in which order is the store's own affair.
        self.grants.sort_by_key(|granted| granted.index);
        self.denied.sort_by_key(|denied| denied.index);
    }
}

impl Body for ExchangeReply {
    fn visit(&mut self, visit: &mut dyn FnMut(&mut Token)) {
        if let Ok(tokens) = &mut self.handed_over {
            tokens.iter_mut().for_each(&mut *visit);
        }
        for acquired in self.acquired.iter_mut().flatten() {
            match acquired {
                Acquired::Prefix(reply) => reply.visit(visit),
                Acquired::Scoped(reply) => reply.visit(visit),
            }
        }
    }

    fn plain(&mut self) {
        plain_part(&mut self.released);
        plain_part(&mut self.settled);
        plain_part(&mut self.observed);
        plain_part(&mut self.renewed);
        plain_part(&mut self.handed_over);
        self.acquired.iter_mut().for_each(plain_part);
    }

    fn overlook(&mut self, model: &Self) {
        for (store, model) in self.acquired.iter_mut().zip(&model.acquired) {
            if let (Ok(Acquired::Scoped(store)), Ok(Acquired::Scoped(model))) = (store, model) {
                store.overlook(model);
            }
        }
    }
}

fn plain_part<T>(part: &mut Result<T, StoreError>) {
    if let Err(error) = part {
        *error = plain(error.clone());
    }
}

impl Body for Page<LeaseView> {
    fn visit(&mut self, visit: &mut dyn FnMut(&mut Token)) {
        self.items.iter_mut().map(|view| &mut view.token).for_each(visit);
    }
}

impl Body for Option<Snapshot> {
    fn epochs(&mut self, visit: &mut dyn FnMut(&mut Epoch)) {
        self.iter_mut().filter_map(|snapshot| snapshot.epoch.as_mut()).for_each(visit);
    }

    fn overlook(&mut self, model: &Self) {
        let (Some(store), Some(model)) = (self, model) else { return };
        // When what is over is swept away is the store's own affair, and so is who it has heard of.
        store.waiting = model.waiting;
        for (store, model) in store.rules.iter_mut().zip(&model.rules) {
            store.identities = model.identities;
        }
    }
}
