//! A connection that was there before: used as it is, and never closed.

use std::any::Any;
use std::sync::Arc;

use redis::{Cmd, RedisResult, Value, aio::ConnectionLike};
use tidegate_core::StoreError;
use tokio::sync::OnceCell;

use super::{
    Call, check,
    check::Expected,
    first_cursor, is_unknown_script, plain, scan_from,
    servers::{OnRisk, Risks},
    slots::text,
    take_keys,
};
use crate::error;

const PLACE: &str = "the given connection";

/// A connection that people had already.
pub(crate) struct Given {
    connection: Arc<dyn Shareable>,
    /// Holds what was learned of the version, once the checks were made.
    checked: OnceCell<Option<(u32, u32)>>,
    risks: Risks,
}

/// A connection that many callers can use at once.
pub(crate) trait Shareable: Send + Sync {
    fn shared(&self) -> Box<dyn ConnectionLike + Send>;

    fn is_cluster(&self) -> bool;
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Shareable for C {
    fn shared(&self) -> Box<dyn ConnectionLike + Send> {
        Box::new(self.clone())
    }

    fn is_cluster(&self) -> bool {
        (self as &dyn Any).is::<redis::cluster_async::ClusterConnection>()
    }
}

impl Given {
    pub(crate) fn new(connection: Arc<dyn Shareable>, on_risk: Option<OnRisk>) -> Self {
        Self { connection, checked: OnceCell::new(), risks: Risks::new(on_risk) }
    }

    async fn ask(&self, command: &Cmd) -> RedisResult<Value> {
        self.connection.shared().req_packed_command(command).await.and_then(plain)
    }

    pub(super) fn risks(&self) -> Vec<String> {
        self.risks.all()
    }

    pub(super) async fn run(&self, call: Call<'_>) -> Result<Value, StoreError> {
        self.open().await?;
        let outcome = match self.ask(&call.by_name()).await {
            Err(error) if is_unknown_script(&error) => self.ask(&call.by_source()).await,
            outcome => outcome,
        };
        outcome.map_err(|error| error::unavailable(error, PLACE))
    }

    /// Makes the checks, once.
    pub(super) async fn open(&self) -> Result<(), StoreError> {
        self.checked.get_or_try_init(|| self.check()).await.map(drop)
    }

    async fn check(&self) -> Result<Option<(u32, u32)>, StoreError> {
        // A cluster's connection sends INFO to all nodes at once and answers in a form of its own.
        if self.connection.is_cluster() {
            return Ok(None);
        }
        let report = match self.ask(&redis::cmd("INFO")).await {
            Ok(answer) => match text(&answer) {
                Some(info) => check::judge(info, Expected::Single),
                None => check::unseen("its answer cannot be read"),
            },
            Err(error) if error.code() == Some("NOPERM") => check::unseen("no permission"),
            Err(error) => return Err(error::unavailable(error, PLACE)),
        };
        self.risks.add(report.risks);
        match report.fault {
            Some(fault) => Err(error::refused(PLACE, &fault)),
            None => Ok(report.version),
        }
    }

    pub(super) async fn scan(
        &self,
        pattern: &[u8],
        each: &mut (dyn FnMut(Vec<u8>) + Send),
    ) -> Result<(), StoreError> {
        if self.connection.is_cluster() {
            return Err(error::refused(
                PLACE,
                "the keys of a cluster are listed only where the store has its URL too: use RedisStore::builder",
            ));
        }
        let mut cursor = first_cursor();
        while let Some(at) = cursor {
            let answer = self.ask(&scan_from(&at, pattern)).await;
            cursor = take_keys(answer.map_err(|error| error::unavailable(error, PLACE))?, each)?;
        }
        Ok(())
    }
}
