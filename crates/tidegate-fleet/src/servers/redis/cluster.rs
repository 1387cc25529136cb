//! Shards without replicas, and slots that move between them, by halves where a test wants to look at the middle.

use std::net::{SocketAddr, TcpListener};

use super::{Options, Redis, Role, ServerError, list};
use crate::servers::{free_port, local, until};

/// How many slots a cluster has.
const SLOTS: u16 = 16_384;

/// How long a migration of one key may take, in milliseconds.
const MIGRATE_MS: &str = "5000";

/// Primaries that share the slots evenly, each without a replica. Dropping it ends them all.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Redis>,
    names: Vec<String>,
}

/// A slot on its way from one node to another: between [`Cluster::begin_move`] and [`Cluster::end_move`] the old owner
/// answers `ASK` for what is not there any more, and `TRYAGAIN` for a command whose keys are on both sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a slot stays on its way until the move is ended"]
pub struct Move {
    slot: u16,
    from: usize,
    to: usize,
}

impl Cluster {
    /// Starts `primaries` (1 at least), and returns when all agree on who has which slots.
    ///
    /// # Errors
    /// As [`Redis::standalone`].
    pub fn start(primaries: usize) -> Result<Self, ServerError> {
        Self::with(primaries, &Options::new())
    }

    /// As [`start`](Self::start), with options for all of them.
    ///
    /// # Errors
    /// As [`Redis::standalone`].
    pub fn with(primaries: usize, options: &Options) -> Result<Self, ServerError> {
        let mut nodes = Vec::new();
        let options = options.clone().set("cluster-enabled", "yes").set("cluster-node-timeout", "1000");
        for _ in 0..primaries.max(1) {
            nodes.push(Redis::start(&options, Role::Data, port_with_bus)?);
        }
        let names = nodes.iter().map(|node| node.text(&["CLUSTER", "MYID"])).collect::<Result<_, _>>()?;
        let cluster = Self { nodes, names };
        cluster.share_slots()?;
        Ok(cluster)
    }

    fn share_slots(&self) -> Result<(), ServerError> {
        let count = self.nodes.len();
        let first = |node: usize| usize::from(SLOTS) * node / count;
        for (at, node) in self.nodes.iter().enumerate() {
            // Each has an epoch of its own before they meet, so that no two begin by settling who is first.
            node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &(at + 1).to_string()])?;
            let slots: Vec<String> = (first(at)..first(at + 1)).map(|slot| slot.to_string()).collect();
            let words: Vec<&str> =
                ["CLUSTER", "ADDSLOTS"].into_iter().chain(slots.iter().map(String::as_str)).collect();
            node.command(&words)?;
            self.nodes[0].command(&["CLUSTER", "MEET", "127.0.0.1", &node.port.to_string()])?;
        }
        let known = format!("cluster_known_nodes:{count}");
        let size = format!("cluster_size:{count}");
        for node in &self.nodes {
            until("a cluster that is whole", || {
                let info = node.text(&["CLUSTER", "INFO"])?;
                let whole =
                    info.contains("cluster_state:ok") && info.contains(&known) && info.contains(&size);
                Ok(if whole { Ok(()) } else { Err(info) })
            })?;
        }
        Ok(())
    }

    /// The nodes.
    pub fn nodes(&self) -> &[Redis] {
        &self.nodes
    }

    /// The nodes, to kill or restart one.
    pub fn nodes_mut(&mut self) -> &mut [Redis] {
        &mut self.nodes
    }

    /// The URL by which a store finds the nodes.
    pub fn url(&self) -> String {
        format!("redis+cluster://{}", list(&self.addrs()))
    }

    /// Where the nodes listen.
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.nodes.iter().map(Redis::addr).collect()
    }

    /// The slot of a key.
    ///
    /// # Errors
    /// Where the first node gives no answer.
    pub fn slot_of(&self, key: &str) -> Result<u16, ServerError> {
        let slot = self.nodes[0].text(&["CLUSTER", "KEYSLOT", key])?;
        slot.parse().map_err(|_| ServerError::NotInTime {
            what: "the slot of a key".to_owned(),
            after: std::time::Duration::ZERO,
            last: slot,
        })
    }

    /// Which node has a slot, as that node itself sees it.
    ///
    /// # Errors
    /// Where a node gives no answer, or none has it.
    pub fn owner_of(&self, slot: u16) -> Result<usize, ServerError> {
        until("a slot that somebody has", || {
            let mut seen = String::new();
            for (at, node) in self.nodes.iter().enumerate() {
                let nodes = node.text(&["CLUSTER", "NODES"])?;
                let own = nodes.lines().find(|line| line.contains("myself")).unwrap_or_default();
                if slots(own).any(|(first, last)| (first..=last).contains(&slot)) {
                    return Ok(Ok(at));
                }
                seen = nodes;
            }
            Ok(Err(seen))
        })
    }

    /// Moves a slot, with all that is in it.
    ///
    /// # Errors
    /// Where a node refuses a step of it.
    pub fn move_slot(&self, slot: u16, from: usize, to: usize) -> Result<(), ServerError> {
        let moving = self.begin_move(slot, from, to)?;
        self.move_keys(moving, usize::MAX)?;
        self.end_move(moving)
    }

    /// Begins to move a slot. What is in it stays until it is moved.
    ///
    /// # Errors
    /// Where a node refuses it.
    pub fn begin_move(&self, slot: u16, from: usize, to: usize) -> Result<Move, ServerError> {
        let number = slot.to_string();
        self.nodes[to].command(&["CLUSTER", "SETSLOT", &number, "IMPORTING", &self.names[from]])?;
        self.nodes[from].command(&["CLUSTER", "SETSLOT", &number, "MIGRATING", &self.names[to]])?;
        Ok(Move { slot, from, to })
    }

    /// Moves at most `most` keys of a slot, and says how many it were.
    ///
    /// # Errors
    /// Where a node refuses it.
    pub fn move_keys(&self, moving: Move, most: usize) -> Result<usize, ServerError> {
        let (from, to) = (&self.nodes[moving.from], self.nodes[moving.to].port.to_string());
        let mut moved = 0;
        while moved < most {
            let batch = (most - moved).min(100).to_string();
            let keys = from.text(&["CLUSTER", "GETKEYSINSLOT", &moving.slot.to_string(), &batch])?;
            let keys: Vec<&str> = keys.lines().collect();
            if keys.is_empty() {
                break;
            }
            let mut words = vec!["MIGRATE", "127.0.0.1", &to, "", "0", MIGRATE_MS];
            if let Some(password) = &from.password {
                words.extend(["AUTH", password]);
            }
            words.push("KEYS");
            words.extend(&keys);
            // A key that ended meanwhile is no fault: `NOKEY`.
            from.command(&words)?;
            moved += keys.len();
        }
        Ok(moved)
    }

    /// Ends a move: the new owner has the slot, and all are told. What was not moved by then is lost to clients, so
    /// [`move_keys`](Self::move_keys) comes first.
    ///
    /// # Errors
    /// Where a node refuses it.
    pub fn end_move(&self, moving: Move) -> Result<(), ServerError> {
        let slot = moving.slot.to_string();
        let words = ["CLUSTER", "SETSLOT", &slot, "NODE", &self.names[moving.to]];
        // The new owner first: between the two steps both would send clients to the other.
        self.nodes[moving.to].command(&words)?;
        self.nodes[moving.from].command(&words)?;
        for (_, node) in
            self.nodes.iter().enumerate().filter(|(at, _)| *at != moving.to && *at != moving.from)
        {
            node.command(&words)?;
        }
        Ok(())
    }
}

/// How far above its port a node talks to the others.
const BUS: u16 = 10_000;

/// A free port whose bus port is free too.
fn port_with_bus() -> Result<u16, ServerError> {
    until("two free ports", || {
        let port = free_port()?;
        let bus = port.checked_add(BUS).filter(|bus| TcpListener::bind(local(*bus)).is_ok());
        Ok(bus.map(|_| port).ok_or_else(|| format!("{port} is no such port")))
    })
}

/// The slots of a node's line: single ones and spans. One on its way is in brackets, and is not among them.
fn slots(line: &str) -> impl Iterator<Item = (u16, u16)> + '_ {
    line.split_whitespace().skip(8).filter_map(|span| match span.split_once('-') {
        Some((first, last)) => Some((first.parse().ok()?, last.parse().ok()?)),
        None => span.parse().ok().map(|slot| (slot, slot)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_of_a_node_are_read_without_those_on_their_way() {
        let line = "07c3 127.0.0.1:1@2 myself,master - 0 142 2 connected 0-5460 7000 [93->-292f] [77-<-e7d1]";
        assert_eq!(slots(line).collect::<Vec<_>>(), [(0, 5460), (7000, 7000)]);
        assert_eq!(slots("07c3 127.0.0.1:1@2 myself,master - 0 142 2 connected").count(), 0);
    }
}
