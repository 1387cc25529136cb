//! A cluster: who serves a key, and following it when it moves.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use redis::{ErrorKind, ServerErrorKind, Value};
use tidegate_core::{Cause, StoreError};
use tokio::time::{sleep, timeout};

use super::{
    Address, Call, Line, Topology,
    check::Expected,
    line::{Slot, lock},
    servers::{Hear, Servers},
    slots::{self, Slots, slot_of},
};
use crate::error;

/// How often one call is sent on before it is given up.
const HOPS: usize = 8;

/// How long one call waits, in all, for keys that are on their way. Well below a caller's usual timeout, so that the
/// caller hears that they are moving, and not that nobody answers.
const PATIENCE: Duration = Duration::from_millis(400);

/// The first and the longest wait of a call for keys that are on their way.
const FIRST_WAIT: Duration = Duration::from_millis(10);
const LONGEST_WAIT: Duration = Duration::from_millis(100);

/// How often the nodes are asked at most who serves what.
const REFRESH: Duration = Duration::from_millis(100);

impl Servers {
    pub(super) async fn run_in_cluster(self: &Arc<Self>, call: Call<'_>) -> Result<Value, StoreError> {
        let slot = call.keys.first().map_or(0, |key| slot_of(key));
        let mut asked: Option<Address> = None;
        let mut waited = Duration::ZERO;
        let mut wait = FIRST_WAIT;
        let mut hops = 0;
        loop {
            let asking = asked.is_some();
            let address = match asked.take() {
                Some(address) => Arc::new(address),
                None => self.owner(slot).await?,
            };
            let line = match self.node(&address).await {
                Ok(line) => line,
                Err(error) => {
                    hops += 1;
                    let owner = self.refreshed().await.ok().and_then(|slots| slots.primary(slot).cloned());
                    if hops < HOPS && owner.is_some_and(|owner| owner != address) {
                        continue;
                    }
                    return Err(error);
                }
            };
            let error = match call.over(&line, asking).await {
                Ok(value) => return Ok(value),
                Err(error) => error,
            };
            match error.kind() {
                ErrorKind::Server(ServerErrorKind::Moved) => {
                    match error.redirect_node().and_then(|(to, _)| slots::redirection(to, &address)) {
                        Some(to) => self.learn(slot, to),
                        None => drop(self.refreshed().await),
                    }
                }
                ErrorKind::Server(ServerErrorKind::Ask) => {
                    asked = error.redirect_node().and_then(|(to, _)| slots::redirection(to, &address));
                }
                ErrorKind::Server(ServerErrorKind::TryAgain) if waited < PATIENCE => {
                    sleep(wait).await;
                    waited += wait;
                    wait = LONGEST_WAIT.min(wait * 2);
                    // Waiting is bounded by itself.
                    continue;
                }
                ErrorKind::Server(ServerErrorKind::ReadOnly) if hops == 0 => drop(self.refreshed().await),
                _ => {
                    let elsewhere = matches!(
                        error.kind(),
                        ErrorKind::Server(ServerErrorKind::ClusterDown | ServerErrorKind::ReadOnly)
                    );
                    if elsewhere || error::is_cut(&error) {
                        self.stale.store(true, Relaxed);
                    }
                    return Err(error::unavailable(error, &address.to_string()));
                }
            }
            hops += 1;
            if hops >= HOPS {
                return Err(error::unavailable(error, &address.to_string()));
            }
        }
    }

    /// Who serves a slot, as far as is known. Waits only where nothing is known: what has moved meanwhile is said by the
    /// node that served it.
    pub(crate) async fn owner(self: &Arc<Self>, slot: u16) -> Result<Arc<Address>, StoreError> {
        let known = self.known();
        if let Some(owner) = known.as_ref().and_then(|slots| slots.primary(slot)) {
            if self.stale.load(Relaxed) {
                let servers = self.clone();
                tokio::spawn(async move { drop(servers.refreshed().await) });
            }
            return Ok(owner.clone());
        }
        let slots = self.refreshed().await?;
        slots.primary(slot).cloned().ok_or_else(|| {
            StoreError::unavailable(Cause::Migrating, format!("no node of the cluster serves slot {slot}"))
        })
    }

    pub(super) fn known(&self) -> Option<Arc<Slots>> {
        lock(&self.slots).clone()
    }

    /// Notes that a slot has moved.
    pub(crate) fn learn(&self, slot: u16, to: Address) {
        self.stale.store(true, Relaxed);
        let mut slots = lock(&self.slots);
        let Some(known) = &*slots else { return };
        if known.primary(slot).is_some_and(|owner| **owner == to) {
            return;
        }
        *slots = Some(Arc::new(known.with(slot, to)));
        drop(slots);
        self.moved();
    }

    /// Asks the nodes who serves what, unless it was done a moment ago.
    pub(crate) async fn refreshed(self: &Arc<Self>) -> Result<Arc<Slots>, StoreError> {
        let lately = lock(&self.refreshed).is_some_and(|when| when.elapsed() < REFRESH);
        if lately && let Some(known) = self.known() {
            return Ok(known);
        }
        let work = || {
            let servers = self.clone();
            async move { servers.ask_who_serves_what().await }
        };
        self.refresh.join(work).await.unwrap_or_else(|| {
            Err(StoreError::unavailable(Cause::Disconnected, "the tokio runtime of the connection has ended"))
        })
    }

    async fn ask_who_serves_what(self: &Arc<Self>) -> Result<Arc<Slots>, StoreError> {
        let Topology::Cluster { seeds } = &self.place.topology else {
            return Err(StoreError::unavailable(Cause::Broken, "this is no cluster"));
        };
        let mut nodes: Vec<Address> = Vec::new();
        // Nodes that serve come first: seeds may be long gone.
        let known = self.known().map(|slots| slots.primaries()).unwrap_or_default();
        for node in known.iter().map(|node| &**node).chain(seeds) {
            if !nodes.contains(node) {
                nodes.push(node.clone());
            }
        }
        let turn = self.sentinel.load(Relaxed) % nodes.len().max(1);
        nodes.rotate_left(turn);
        let mut last = None;
        for node in nodes {
            match self.ask_node(&node).await {
                Ok(slots) => return Ok(self.replace(slots)),
                Err(error) => {
                    // The next time begins with another node.
                    self.sentinel.fetch_add(1, Relaxed);
                    last = Some(error);
                }
            }
        }
        *lock(&self.refreshed) = Some(Instant::now());
        Err(last.unwrap_or_else(|| StoreError::unavailable(Cause::Disconnected, "no node is known")))
    }

    async fn ask_node(self: &Arc<Self>, node: &Address) -> Result<Slots, StoreError> {
        let place = node.to_string();
        let work = async {
            let line = self.node(node).await?;
            let mut command = redis::cmd("CLUSTER");
            command.arg("SLOTS");
            let answer = line.ask(&command).await.map_err(|error| error::unavailable(error, &place))?;
            Slots::read(&answer, node).ok_or_else(|| {
                StoreError::unavailable(
                    Cause::Migrating,
                    format!("{place}: it knows no slots of a cluster yet"),
                )
            })
        };
        // Half of what a connection may take: a node that hangs must not hold up the others.
        timeout(self.options.connect_timeout / 2, work)
            .await
            .unwrap_or_else(|_| Err(error::no_answer(&place, "CLUSTER SLOTS")))
    }

    fn replace(&self, slots: Slots) -> Arc<Slots> {
        let slots = Arc::new(slots);
        let primaries = slots.primaries();
        *lock(&self.slots) = Some(slots.clone());
        *lock(&self.refreshed) = Some(Instant::now());
        self.stale.store(false, Relaxed);
        lock(&self.nodes).retain(|address, _| primaries.iter().any(|primary| **primary == *address));
        self.moved();
        slots
    }

    /// The connection to a node.
    pub(super) async fn node(self: &Arc<Self>, address: &Address) -> Result<Arc<Line>, StoreError> {
        let slot = lock(&self.nodes).entry(address.clone()).or_insert_with(|| Arc::new(Slot::new())).clone();
        slot.line(|| self.clone().dial_node(address.clone(), None)).await
    }

    /// A new connection to a node.
    pub(crate) async fn dial_node(
        self: Arc<Self>,
        address: Address,
        hear: Option<Hear>,
    ) -> Result<Line, StoreError> {
        let dialled = self.dial(&address, Expected::Cluster, hear).await;
        if dialled.is_err() {
            // Perhaps another node has taken its place.
            self.stale.store(true, Relaxed);
        }
        dialled
    }

    pub(super) async fn all_nodes(self: &Arc<Self>) -> Result<Vec<Arc<Line>>, StoreError> {
        let slots = self.refreshed().await?;
        let mut lines = Vec::new();
        for primary in slots.primaries() {
            lines.push(self.node(&primary).await?);
        }
        Ok(lines)
    }
}
