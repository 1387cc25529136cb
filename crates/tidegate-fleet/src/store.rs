//! Stores by their URL: the one place that knows which there are.

use std::{fmt, sync::Arc};

use tidegate::{
    Capabilities, Id, MemoryStore, Operators, Store, StoreError, Token,
    contract::{
        AcquireReply, AcquireRequest, Answer, DriverId, Exchange, ExchangeReply, HandOver, Listener, Member,
        Observation, PauseReply, Release, Renewal, Renewed, Restore, ScopedReply, ScopedRequest, Settled,
        Settlement, Subscription, SyncPath,
    },
};
use tidegate_redis::RedisStore;

/// Why no store could be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Nothing here opens URLs of this kind.
    #[error("no store for {scheme:?} in {url:?}: there are {}", SCHEMES.join(", "))]
    UnknownScheme {
        /// The URL, without a password.
        url: String,
        /// What stands before its colon.
        scheme: String,
    },
    /// The store could not be opened.
    #[error("cannot open {url:?}")]
    Store {
        /// The URL, without a password.
        url: String,
        /// Why.
        #[source]
        source: StoreError,
    },
}

/// The kinds of URL that [`open_store`] takes.
pub const SCHEMES: &[&str] = &["memory", "redis", "rediss", "redis+sentinel", "redis+cluster"];

/// Opens the store at a URL. One in memory is a new one each time, and serves this process only.
///
/// # Errors
/// [`OpenError`] for a URL of an unknown kind, and for a store that refuses to be opened so.
///
/// # Examples
/// ```
/// use tidegate_fleet::store::open_store;
///
/// assert!(open_store("memory://").is_ok());
/// assert!(open_store("gopher://127.0.0.1").err().is_some_and(|error| error.to_string().contains("gopher")));
/// ```
pub fn open_store(url: &str) -> Result<Arc<dyn Store>, OpenError> {
    let scheme = url.split_once(':').map_or(url, |(scheme, _)| scheme);
    match scheme {
        "memory" => Ok(Arc::new(MemoryStore::new())),
        "redis" | "rediss" | "redis+sentinel" | "redis+cluster" => match RedisStore::lazy(url) {
            Ok(store) => Ok(Arc::new(store)),
            Err(source) => Err(OpenError::Store { url: without_password(url), source }),
        },
        // A new kind of store gets its arm here, and its name in `SCHEMES`.
        _ => Err(OpenError::UnknownScheme { url: without_password(url), scheme: scheme.to_owned() }),
    }
}

/// A URL that can be shown.
fn without_password(url: &str) -> String {
    match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if at > scheme => format!("{}://...{}", &url[..scheme], &url[at..]),
        _ => url.to_owned(),
    }
}

/// A store of whatever kind, where one of a known kind is asked for. A cheap clone of one thing.
#[derive(Clone)]
pub struct AnyStore(pub Arc<dyn Store>);

impl fmt::Debug for AnyStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("AnyStore").field(&self.0.capabilities()).finish()
    }
}

impl Store for AnyStore {
    fn capabilities(&self) -> Capabilities {
        self.0.capabilities()
    }

    fn acquire<'a>(&'a self, member: &'a Member, request: &'a AcquireRequest) -> Answer<'a, AcquireReply> {
        self.0.acquire(member, request)
    }

    fn pause<'a>(&'a self, id: &'a Id, length: std::time::Duration) -> Answer<'a, PauseReply> {
        self.0.pause(id, length)
    }

    fn resume<'a>(&'a self, id: &'a Id) -> Answer<'a, bool> {
        self.0.resume(id)
    }

    fn acquire_scoped<'a>(
        &'a self,
        member: &'a Member,
        request: &'a ScopedRequest,
    ) -> Answer<'a, ScopedReply> {
        self.0.acquire_scoped(member, request)
    }

    fn release<'a>(&'a self, member: &'a Member, releases: &'a [Release]) -> Answer<'a, ()> {
        self.0.release(member, releases)
    }

    fn renew<'a>(
        &'a self,
        member: &'a Member,
        restore: Option<&'a Restore>,
        renewals: &'a [Renewal],
    ) -> Answer<'a, Renewed> {
        self.0.renew(member, restore, renewals)
    }

    fn hand_over<'a>(&'a self, member: &'a Member, hand_overs: &'a [HandOver]) -> Answer<'a, Vec<Token>> {
        self.0.hand_over(member, hand_overs)
    }

    fn settle<'a>(&'a self, member: &'a Member, settlements: &'a [Settlement]) -> Answer<'a, Vec<Settled>> {
        self.0.settle(member, settlements)
    }

    fn observe<'a>(&'a self, member: &'a Member, observations: &'a [Observation]) -> Answer<'a, Vec<bool>> {
        self.0.observe(member, observations)
    }

    fn exchange<'a>(&'a self, member: &'a Member, exchange: &'a Exchange) -> Answer<'a, ExchangeReply> {
        self.0.exchange(member, exchange)
    }

    fn sync_path(&self, id: &Id) -> Option<Arc<dyn SyncPath>> {
        self.0.sync_path(id)
    }

    fn subscribe(&self, id: &Id, driver: DriverId, listener: Arc<dyn Listener>) -> Option<Subscription> {
        self.0.subscribe(id, driver, listener)
    }

    fn operators(&self) -> Option<&dyn Operators> {
        self.0.operators()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_store_is_named_and_a_password_is_not() {
        let error = open_store("gopher://me:secret@127.0.0.1:70/").err().map(|error| error.to_string());
        let error = error.unwrap_or_default();
        assert!(error.contains("gopher") && error.contains("memory") && !error.contains("secret"), "{error}");
        assert!(matches!(open_store(""), Err(OpenError::UnknownScheme { .. })));
    }
}
