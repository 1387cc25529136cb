//! A primary, a replica, and three sentinels that watch them.

use std::net::SocketAddr;

use super::{Options, Redis, Role, list};
use crate::servers::{ServerError, free_port, until};

/// What the sentinels call the group.
const NAME: &str = "tidegate";

/// After this long without an answer a sentinel takes a server to be down.
const DOWN_AFTER_MS: &str = "500";

/// One primary, one replica, three sentinels of which two must agree. Dropping it ends them all.
#[derive(Debug)]
pub struct Sentinel {
    data: [Redis; 2],
    sentinels: Vec<Redis>,
}

impl Sentinel {
    /// Starts them, and returns when the replica follows and the sentinels know each other, so that a fail-over could
    /// begin at once.
    ///
    /// # Errors
    /// As [`Redis::standalone`].
    pub fn start() -> Result<Self, ServerError> {
        Self::with(&Options::new())
    }

    /// As [`start`](Self::start), with options for the primary and the replica.
    ///
    /// # Errors
    /// As [`Redis::standalone`].
    pub fn with(options: &Options) -> Result<Self, ServerError> {
        // The replica is to follow at once, not after the moments in which more replicas might come.
        let options =
            options.clone().set("repl-diskless-sync-delay", "0").set("repl-ping-replica-period", "1");
        let primary = Redis::standalone(&options)?;
        let following = options.set("replicaof", format!("127.0.0.1 {}", primary.port));
        let replica = Redis::standalone(&following)?;
        until("a replica that follows", || {
            let role = replica.text(&["ROLE"])?;
            Ok(if role.contains("\nconnected\n") { Ok(()) } else { Err(role) })
        })?;

        let watch = watching(&primary);
        let sentinels: Vec<_> =
            (0..3).map(|_| Redis::start(&watch, Role::Sentinel, free_port)).collect::<Result<_, _>>()?;
        let group = Self { data: [primary, replica], sentinels };
        for sentinel in &group.sentinels {
            until("sentinels that know each other", || {
                let seen = sentinel.text(&["SENTINEL", "MASTER", NAME])?;
                let ready = field(&seen, "num-slaves") == Some("1")
                    && field(&seen, "num-other-sentinels") == Some("2")
                    && field(&seen, "flags") == Some("master");
                Ok(if ready { Ok(()) } else { Err(seen) })
            })?;
        }
        // A replica whose link has not been looked at yet is not good enough to be promoted.
        group.until_replica_can_be_promoted()?;
        Ok(group)
    }

    /// What clients call the group.
    pub fn name(&self) -> &'static str {
        NAME
    }

    /// The URL by which a store finds the primary.
    pub fn url(&self) -> String {
        format!("redis+sentinel://{}/{NAME}", list(&self.addrs()))
    }

    /// Where the sentinels listen.
    pub fn addrs(&self) -> Vec<SocketAddr> {
        self.sentinels.iter().map(Redis::addr).collect()
    }

    /// The sentinels, to freeze or kill one.
    pub fn sentinels(&mut self) -> &mut [Redis] {
        &mut self.sentinels
    }

    /// The two servers; the first was the primary at the start.
    pub fn servers(&mut self) -> &mut [Redis; 2] {
        &mut self.data
    }

    /// The primary, as the first sentinel sees it now.
    ///
    /// # Errors
    /// Where the sentinel gives no answer, or names none of the two.
    pub fn primary(&self) -> Result<&Redis, ServerError> {
        until("a primary that the sentinels name", || {
            let named = self.sentinels[0].text(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME])?;
            let port = named.rsplit('\n').next().and_then(|port| port.parse().ok());
            Ok(self.data.iter().find(|server| Some(server.port) == port).ok_or(named))
        })
    }

    /// Makes the replica the primary, with the old primary alive and its connections open, and returns when the new one
    /// takes writes, the sentinels name it, and the old one follows it: until then both take writes, and what the old one
    /// took is lost.
    ///
    /// # Errors
    /// Where no fail-over comes about.
    pub fn failover(&self) -> Result<(), ServerError> {
        let old = self.primary()?.port;
        // Refused for some moments after the last fail-over, and while the replica is not known to be good.
        until("a fail-over that begins", || {
            Ok(match self.sentinels[0].command(&["SENTINEL", "FAILOVER", NAME]) {
                Ok(_) => Ok(()),
                Err(ServerError::Command { source, .. }) => Err(source.to_string()),
                Err(other) => Err(other.to_string()),
            })
        })?;
        self.until_primary_is_not(old)?;
        until("an old primary that follows", || {
            // It breaks its connections on the way.
            let follows =
                |server: &&Redis| server.text(&["ROLE"]).is_ok_and(|role| role.contains("\nconnected\n"));
            let old = self.data.iter().find(|server| server.port == old);
            Ok(if old.as_ref().is_some_and(follows) { Ok(()) } else { Err("it follows nobody".to_owned()) })
        })
    }

    /// Returns when the sentinels name another primary than the server at `old` (a port), and it takes writes: after the
    /// old one was killed or frozen, for one.
    ///
    /// # Errors
    /// Where none comes about.
    pub fn until_primary_is_not(&self, old: u16) -> Result<(), ServerError> {
        until("another primary", || {
            let primary = self.primary()?;
            if primary.port == old {
                return Ok(Err(format!("the primary is still at port {old}")));
            }
            let role = primary.text(&["ROLE"])?;
            Ok(if role.starts_with("master") { Ok(()) } else { Err(role) })
        })
    }

    fn until_replica_can_be_promoted(&self) -> Result<(), ServerError> {
        for sentinel in &self.sentinels {
            until("a replica that can be promoted", || {
                let seen = sentinel.text(&["SENTINEL", "REPLICAS", NAME])?;
                let ready = field(&seen, "flags") == Some("slave")
                    && field(&seen, "master-link-status") == Some("ok")
                    && field(&seen, "slave-priority") == Some("100");
                Ok(if ready { Ok(()) } else { Err(seen) })
            })?;
        }
        Ok(())
    }
}

fn watching(primary: &Redis) -> Options {
    let mut watch = Options::new()
        .set("sentinel", format!("monitor {NAME} 127.0.0.1 {} 2", primary.port))
        .set("sentinel", format!("down-after-milliseconds {NAME} {DOWN_AFTER_MS}"))
        .set("sentinel", format!("failover-timeout {NAME} 3000"))
        .set("sentinel", format!("parallel-syncs {NAME} 1"));
    if let Some(password) = &primary.password {
        watch = watch.set("sentinel", format!("auth-pass {NAME} {password}"));
    }
    watch
}

/// The value of a field in an answer that lists names and values by turns.
fn field<'a>(answer: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = answer.lines();
    lines.find(|line| *line == name)?;
    lines.next()
}
