//! Where the primary is, as the sentinels say.

use std::{
    sync::{Arc, atomic::Ordering::Relaxed},
    time::Duration,
};

use redis::Value;
use tidegate_core::{Cause, StoreError};
use tokio::time::{sleep, timeout};

use super::{
    Address, Line, Topology,
    check::Expected,
    line::lock,
    servers::{Hear, Servers, remember, turn},
    slots::text,
};
use crate::error;

/// How often a sentinel is asked whether the primary has moved. A demoted primary may keep its connections open, so an
/// error alone does not tell.
const WATCH: Duration = Duration::from_secs(1);

impl Servers {
    /// Connects to the primary. Sentinels may disagree while a fail-over is under way, so each is asked until one names
    /// a server that says itself that it is the primary.
    pub(super) async fn dial_by_sentinel(
        &self,
        sentinels: &[Address],
        name: &str,
        hear: Option<Hear>,
    ) -> Result<Line, StoreError> {
        let mut tried: Vec<Address> = Vec::new();
        let mut last = None;
        for which in turn(self.sentinel.load(Relaxed), sentinels.len()) {
            let Some(sentinel) = sentinels.get(which) else { continue };
            let found = match self.dial_sentinel(sentinel).await {
                Ok(line) => self.asked(&line, name).await,
                Err(error) => Err(error),
            };
            let primary = match found {
                Ok(primary) => primary,
                // What a server said is worth more than that a sentinel is away.
                Err(error) => {
                    last = last.or(Some(error));
                    continue;
                }
            };
            if tried.contains(&primary) {
                continue;
            }
            match self.dial(&primary, Expected::Sentinel, hear.clone()).await {
                Ok(line) => {
                    remember(&self.sentinel, which);
                    self.found(primary);
                    return Ok(line);
                }
                Err(error) => last = Some(error),
            }
            tried.push(primary);
        }
        Err(last.unwrap_or_else(|| StoreError::unavailable(Cause::Disconnected, "no sentinel is known")))
    }

    /// Asks a sentinel for the primary.
    async fn asked(&self, line: &Line, name: &str) -> Result<Address, StoreError> {
        let place = format!("sentinel {}", line.address());
        let mut command = redis::cmd("SENTINEL");
        command.arg("GET-MASTER-ADDR-BY-NAME").arg(name);
        let answer = timeout(self.options.connect_timeout, line.ask(&command))
            .await
            .map_err(|_| error::no_answer(&place, "where the primary is"))?
            .map_err(|error| error::unavailable(error, &place))?;
        let found = match &answer {
            Value::Nil => {
                let unknown = format!("it knows no primary of the name {name:?}: check the URL");
                return Err(error::refused(&place, &unknown));
            }
            Value::Array(parts) => read_address(parts),
            _ => None,
        };
        found.ok_or_else(|| {
            StoreError::unavailable(Cause::Broken, format!("{place}: its answer cannot be read"))
        })
    }

    fn found(&self, primary: Address) {
        let mut known = lock(&self.primary);
        if known.as_ref() == Some(&primary) {
            return;
        }
        let first = known.is_none();
        *known = Some(primary.clone());
        drop(known);
        self.main.retire(|line| *line.address() == primary);
        if !first {
            tracing::info!(%primary, "the primary has moved");
            self.moved();
        }
    }

    /// Whether the primary moves without a word to those who use it.
    pub(super) fn needs_watch(&self) -> bool {
        matches!(self.place.topology, Topology::Sentinel { .. })
    }

    /// Follows the primary, as long as the store lives. Does nothing without sentinels.
    pub(crate) async fn watch(self: Arc<Self>) {
        let Topology::Sentinel { sentinels, name } = &self.place.topology else { return };
        let mut line: Option<Line> = None;
        loop {
            sleep(WATCH).await;
            let Some(known) = lock(&self.primary).clone() else { continue };
            let current = match line.take().filter(|line| !line.is_gone()) {
                Some(line) => line,
                None => {
                    let which = self.sentinel.load(Relaxed) % sentinels.len().max(1);
                    let Some(sentinel) = sentinels.get(which) else { return };
                    match self.dial_sentinel(sentinel).await {
                        Ok(line) => line,
                        Err(_) => {
                            remember(&self.sentinel, which + 1);
                            continue;
                        }
                    }
                }
            };
            let Ok(primary) = self.asked(&current, name).await else { continue };
            line = Some(current);
            // Followed only to a server that says itself that it is the primary.
            if primary != known && self.dial(&primary, Expected::Sentinel, None).await.is_ok() {
                self.found(primary);
            }
        }
    }
}

fn read_address(parts: &[Value]) -> Option<Address> {
    let [host, port] = parts else { return None };
    Some(Address::Tcp { host: text(host)?.to_owned(), port: text(port)?.parse().ok()? })
}
