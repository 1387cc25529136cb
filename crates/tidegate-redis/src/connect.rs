//! Opening a store.

use std::{fmt, sync::Arc, time::Duration};

use tidegate_core::{Invalid, StoreError};

use crate::{
    store::{Shared, TestClock},
    wake::Wakes,
    wire::{Given, Login, Options, Place, Shareable, Wire},
};

/// What keys begin with where nothing else is set.
const PREFIX: &str = "tidegate";

/// The longest prefix, in bytes.
const LONGEST_PREFIX: usize = 64;

const CONNECT_TIMEOUTS: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(60)];

/// What a store is made of.
pub(crate) struct Parts {
    pub(crate) wire: Wire,
    /// None where only a connection was given: waiting is then polled.
    pub(crate) wakes: Option<Wakes>,
    pub(crate) prefix: String,
}

/// The store on Redis or Valkey. A cheap clone.
///
/// # URLs
/// - `redis://[[user]:password@]host[:port][/database]`: one server
/// - `redis+unix:///path/of/the.sock?db=0&user=…&pass=…`: one server on the same host
/// - `redis+sentinel://host:port,host:port/primary-name[/database]`: a primary that sentinels look after
/// - `redis+cluster://host:port,host:port`: a cluster, by some of its nodes
///
/// `rediss` in place of `redis` uses TLS, with the provider of cryptography that the process has set for rustls; where it
/// has set none by the first connection, `ring` is set. `valkey` and `valkeys` mean the same as `redis` and `rediss`.
/// Special characters of user and password are percent-encoded.
///
/// # Commands
/// A user of its own needs this and no more, for the prefix `tidegate`:
///
/// ```text
/// ACL SETUSER tidegate on >a-secret resetkeys ~tidegate:* resetchannels &tidegate:* -@all \
///   +fcall +function|load +evalsha +eval +hmget +hget +hset +hdel +get +set +del +pexpire +time +publish +spublish \
///   +subscribe +unsubscribe +ssubscribe +sunsubscribe +scan +info +ping
/// ```
///
/// Up to Redis 6.2 there are no `fcall`, `function|load`, `spublish`, `ssubscribe` and `sunsubscribe`, and the line goes
/// without them. Where `fcall` or `function|load` are refused, scripts are run in the place of functions, which costs the
/// server about twice the time. A cluster
/// needs `+cluster|slots` and `+asking` as well, a URL with a database `+select`. On a sentinel the user has a name of its
/// own and needs `+sentinel|get-master-addr-by-name` alone. `scan` serves lists of ids alone. Without `info` a store works,
/// and tells as a risk that it could not look at the server.
///
/// # Functions
/// From Redis 7.0 on, and on Valkey, work is done by a library of functions, which is loaded where it is missing. Its name
/// is `tidegate_` with a hash of its source, so that versions live side by side, and the server keeps it with its data.
/// Those of versions that are in use no more stay until `FUNCTION DELETE`; `FUNCTION LIST LIBRARYNAME tidegate_*` lists
/// them. One that is deleted too early is loaded again. A connection that was handed over runs scripts alone.
#[derive(Clone)]
pub struct RedisStore {
    pub(crate) parts: Arc<Parts>,
    pub(crate) shared: Arc<Shared>,
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("prefix", &self.parts.prefix).finish_non_exhaustive()
    }
}

impl RedisStore {
    /// Connects to the servers and looks whether they can serve.
    ///
    /// # Errors
    /// The URL cannot be read; or the servers cannot be reached, refuse the login, are older than Redis 6.2, or are not
    /// what the URL says: a cluster, a single server, a primary.
    ///
    /// # Cancel safety
    /// Nothing is left behind when the future is dropped, but a connection.
    pub async fn connect(url: &str) -> Result<Self, StoreError> {
        Self::builder(url).connect().await
    }

    /// Reads the URL and does nothing else: the first use connects and looks.
    ///
    /// Spec: UN-7.
    ///
    /// # Errors
    /// The URL cannot be read.
    pub fn lazy(url: &str) -> Result<Self, StoreError> {
        Self::builder(url).lazy()
    }

    /// More options than the URL has.
    pub fn builder(url: impl Into<String>) -> Builder {
        Builder { url: Some(url.into()), ..Builder::empty() }
    }

    /// Uses a connection that is there already, as it is: a `MultiplexedConnection`, a `ConnectionManager` or a
    /// `ClusterConnection` of the crate `redis`. It is never closed from here, and never replaced: take one that
    /// reconnects by itself.
    ///
    /// Renewals share it, so that work which blocks every executor thread holds them up; there is no subscription, so
    /// that waiting is polled. [`Builder::over`] has both, since it knows a URL too.
    pub fn from_connection<C>(connection: C) -> Builder
    where
        C: redis::aio::ConnectionLike + Clone + Send + Sync + 'static,
    {
        Builder { given: Some(Arc::new(connection)), ..Builder::empty() }
    }

    /// What was found so far that lets the servers lose state silently: eviction, missing replicas. Empty before the
    /// first use of a store that was opened lazily.
    ///
    /// Spec: UN-6.
    pub fn risks(&self) -> Vec<String> {
        self.parts.wire.risks()
    }

    fn of(parts: Parts, clock: Option<TestClock>) -> Self {
        Self { parts: Arc::new(parts), shared: Arc::new(Shared::new(clock)) }
    }
}

/// How to open a [`RedisStore`].
#[must_use]
pub struct Builder {
    url: Option<String>,
    given: Option<Arc<dyn Shareable>>,
    prefix: String,
    options: Options,
    clock: Option<TestClock>,
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder")
            .field("prefix", &self.prefix)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl Builder {
    fn empty() -> Self {
        Self { url: None, given: None, prefix: PREFIX.to_owned(), options: Options::default(), clock: None }
    }

    /// What every key and channel begins with: 1 to 64 bytes without braces and control characters. Stores of different
    /// prefixes share nothing. Default: `tidegate`.
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Sends commands over a connection that is there already (see [`RedisStore::from_connection`]). Renewals and the
    /// subscription have connections of their own, opened with the URL.
    pub fn over<C>(mut self, connection: C) -> Self
    where
        C: redis::aio::ConnectionLike + Clone + Send + Sync + 'static,
    {
        self.given = Some(Arc::new(connection));
        self
    }

    /// How to log in at the sentinels. An empty user is the default one. Default: not at all.
    pub fn sentinel_login(mut self, user: impl Into<String>, password: impl Into<String>) -> Self {
        let user = Some(user.into()).filter(|user| !user.is_empty());
        self.options.sentinel_login = Login { user, password: Some(password.into()) };
        self
    }

    /// Holds the servers' certificates against these authorities, in PEM, in place of the well-known ones. Only with
    /// TLS.
    pub fn authority(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.options.authority = Some(pem.into());
        self
    }

    /// Shows the servers a certificate, in PEM, with its key. Only with TLS. Default: none.
    pub fn certificate(mut self, pem: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.options.certificate = Some((pem.into(), key.into()));
        self
    }

    /// How long connecting to one server may take, with logging in: 10 ms to 60 s. Default: 1 s.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.options.connect_timeout = timeout;
        self
    }

    /// Told of each thing that lets the servers lose state silently, once, when it is found. It is logged as well.
    ///
    /// Spec: UN-6.
    pub fn on_risk(mut self, told: impl Fn(&str) + Send + Sync + 'static) -> Self {
        self.options.on_risk = Some(Arc::new(told));
        self
    }

    /// Has the scripts go by this clock in place of the server's, so that a test need not wait. Keys then live on for an
    /// hour at least.
    #[doc(hidden)]
    pub fn test_clock(
        mut self,
        now: impl Fn() -> tidegate_core::time::Moment + Send + Sync + 'static,
    ) -> Self {
        self.clock = Some(Arc::new(now));
        self
    }

    /// Connects; see [`RedisStore::connect`].
    ///
    /// # Errors
    /// As [`RedisStore::connect`], and where an option is out of bounds.
    pub async fn connect(self) -> Result<RedisStore, StoreError> {
        let store = self.lazy()?;
        store.parts.wire.open().await?;
        Ok(store)
    }

    /// Opens without I/O; see [`RedisStore::lazy`].
    ///
    /// # Errors
    /// The URL cannot be read, or an option is out of bounds.
    pub fn lazy(self) -> Result<RedisStore, StoreError> {
        let prefix = checked_prefix(self.prefix)?;
        let [least, most] = CONNECT_TIMEOUTS;
        if !(least..=most).contains(&self.options.connect_timeout) {
            return Err(Invalid::new("connect_timeout", self.options.connect_timeout, "10 ms to 60 s").into());
        }
        let place = self.url.as_deref().map(Place::read).transpose()?;
        let wire = match (self.given, place) {
            (Some(given), place) => {
                let given = Given::new(given, self.options.on_risk.clone());
                Wire::given(given, place, self.options)
            }
            (None, Some(place)) => Wire::to(place, self.options),
            (None, None) => return Err(Invalid::new("url", "", "a URL or a connection").into()),
        };
        let wakes = Wakes::of(&wire);
        Ok(RedisStore::of(Parts { wire, wakes, prefix }, self.clock))
    }
}

fn checked_prefix(prefix: String) -> Result<String, Invalid> {
    let odd = |c: char| c.is_control() || matches!(c, '{' | '}');
    if prefix.is_empty() || prefix.len() > LONGEST_PREFIX || prefix.contains(odd) {
        return Err(Invalid::new("prefix", prefix, "1 to 64 bytes without braces and control characters"));
    }
    Ok(prefix)
}
