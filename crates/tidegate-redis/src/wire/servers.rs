//! The servers of one store: what is known of them, and the connections to them.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use redis::{
    AsyncConnectionConfig, Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, ErrorKind,
    IntoConnectionInfo, ProtocolVersion, PushInfo, RedisConnectionInfo, RedisResult, ServerErrorKind,
    TlsCertificates, Value,
    io::tcp::{TcpSettings, socket2::TcpKeepalive},
};
use rustls::crypto::CryptoProvider;
use tidegate_core::{Cause, StoreError};
use tokio::{sync::watch, time::timeout};

use super::{
    Address, Call, Line, Login, Place, Topology, check,
    check::{Expected, Report},
    line::{Ends, Flight, Slot, lock},
    slots::{Slots, text},
};
use crate::error;

/// Silence after which the network is asked whether the other side is still there, and how often.
const KEEPALIVE: Duration = Duration::from_secs(10);

/// How long sent bytes may stay without an acknowledgement before the connection is given up.
#[cfg(target_os = "linux")]
const UNACKNOWLEDGED: Duration = Duration::from_secs(10);

/// Takes what a server pushes.
pub(crate) type Hear = Arc<dyn Fn(PushInfo) + Send + Sync>;

/// Told of a risk, once.
pub(crate) type OnRisk = Arc<dyn Fn(&str) + Send + Sync>;

/// What can be set beside the URL.
#[derive(Clone)]
pub(crate) struct Options {
    pub(crate) connect_timeout: Duration,
    pub(crate) sentinel_login: Login,
    /// What a server's certificate is held against, in PEM, in place of the well-known authorities.
    pub(crate) authority: Option<Vec<u8>>,
    /// A certificate of one's own and its key, in PEM.
    pub(crate) certificate: Option<(Vec<u8>, Vec<u8>)>,
    pub(crate) on_risk: Option<OnRisk>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(1),
            sentinel_login: Login::default(),
            authority: None,
            certificate: None,
            on_risk: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("connect_timeout", &self.connect_timeout)
            .field("sentinel_login", &self.sentinel_login)
            .finish_non_exhaustive()
    }
}

/// The servers of one store.
pub(crate) struct Servers {
    pub(super) place: Place,
    pub(super) options: Options,
    /// Without a cluster: the connections to the primary.
    pub(super) main: Arc<Slot>,
    /// The sentinel that answered last.
    pub(super) sentinel: AtomicUsize,
    /// Where the sentinels said that the primary is.
    pub(super) primary: Mutex<Option<Address>>,
    /// On a cluster: the connections to each primary.
    pub(super) nodes: Mutex<HashMap<Address, Arc<Slot>>>,
    /// On a cluster: who serves what, as far as is known.
    pub(super) slots: Mutex<Option<Arc<Slots>>>,
    /// Whether there is reason to believe that it is no longer so.
    pub(super) stale: AtomicBool,
    pub(super) refreshed: Mutex<Option<Instant>>,
    pub(super) refresh: Flight<Result<Arc<Slots>, StoreError>>,
    /// Counts what became known of moves.
    pub(super) moves: watch::Sender<u64>,
    version: Mutex<Option<(u32, u32)>>,
    risks: Risks,
}

/// What was found that may lose state silently: each is logged and told once.
#[derive(Default)]
pub(super) struct Risks {
    known: Mutex<Vec<String>>,
    told: Option<OnRisk>,
}

impl Risks {
    pub(super) fn new(told: Option<OnRisk>) -> Self {
        Self { known: Mutex::default(), told }
    }

    pub(super) fn add(&self, risks: Vec<String>) {
        for risk in risks {
            {
                let mut known = lock(&self.known);
                if known.contains(&risk) {
                    continue;
                }
                known.push(risk.clone());
            }
            tracing::warn!(risk, "this store may lose state silently");
            if let Some(told) = &self.told {
                told(&risk);
            }
        }
    }

    pub(super) fn all(&self) -> Vec<String> {
        lock(&self.known).clone()
    }
}

impl Servers {
    pub(crate) fn new(place: Place, options: Options) -> Arc<Self> {
        Arc::new(Self {
            place,
            main: Arc::new(Slot::new()),
            sentinel: AtomicUsize::new(0),
            primary: Mutex::default(),
            nodes: Mutex::default(),
            slots: Mutex::default(),
            stale: AtomicBool::new(false),
            refreshed: Mutex::default(),
            refresh: Flight::new(),
            moves: watch::Sender::new(0),
            version: Mutex::default(),
            risks: Risks::new(options.on_risk.clone()),
            options,
        })
    }

    pub(crate) fn risks(&self) -> Vec<String> {
        self.risks.all()
    }

    pub(crate) fn topology(&self) -> &Topology {
        &self.place.topology
    }

    /// Whether the primary is there, as far as is known. Without a cluster.
    pub(crate) fn is_primary(&self, address: &Address) -> bool {
        lock(&self.primary).as_ref().is_none_or(|primary| primary == address)
    }

    /// Told whenever a primary is found to be elsewhere.
    pub(crate) fn moves(&self) -> watch::Receiver<u64> {
        self.moves.subscribe()
    }

    pub(super) fn moved(&self) {
        self.moves.send_modify(|moves| *moves += 1);
    }

    /// Whether messages go over shard channels: from Redis 7.0 on. None before a server was met.
    pub(crate) fn sharded(&self) -> Option<bool> {
        lock(&self.version).map(check::is_sharded)
    }

    /// Runs a script where its keys are.
    pub(crate) async fn run(self: &Arc<Self>, call: Call<'_>) -> Result<Value, StoreError> {
        if let Topology::Cluster { .. } = self.place.topology {
            return self.run_in_cluster(call).await;
        }
        let mut again = true;
        loop {
            let line = self.main().await?;
            match call.over(&line, false).await {
                Ok(value) => return Ok(value),
                Err(error) => {
                    let demoted = error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly);
                    if demoted {
                        // The server was a primary when it was met: the next call looks for the new one.
                        line.retire();
                    }
                    // Nothing was done there, so it may be asked for again elsewhere.
                    if demoted && again && matches!(self.place.topology, Topology::Sentinel { .. }) {
                        again = false;
                        continue;
                    }
                    return Err(error::unavailable(error, &line.address().to_string()));
                }
            }
        }
    }

    /// The connection to the primary, without a cluster.
    pub(super) async fn main(self: &Arc<Self>) -> Result<Arc<Line>, StoreError> {
        self.main.line(|| self.clone().dial_main(None)).await
    }

    /// A new connection to the primary, without a cluster.
    pub(crate) async fn dial_main(self: Arc<Self>, hear: Option<Hear>) -> Result<Line, StoreError> {
        match &self.place.topology {
            Topology::Single(address) => self.dial(address, Expected::Single, hear).await,
            Topology::Sentinel { sentinels, name } => self.dial_by_sentinel(sentinels, name, hear).await,
            Topology::Cluster { .. } => {
                Err(StoreError::unavailable(Cause::Broken, "a cluster has many primaries"))
            }
        }
    }

    /// Connects to every primary there is, and makes the checks.
    pub(crate) async fn open(self: &Arc<Self>) -> Result<(), StoreError> {
        self.primaries().await.map(drop)
    }

    /// The connections to all primaries.
    pub(crate) async fn primaries(self: &Arc<Self>) -> Result<Vec<Arc<Line>>, StoreError> {
        match self.place.topology {
            Topology::Cluster { .. } => self.all_nodes().await,
            _ => Ok(vec![self.main().await?]),
        }
    }

    /// Connects to a server and looks at what it is.
    pub(super) async fn dial(
        &self,
        address: &Address,
        expected: Expected,
        hear: Option<Hear>,
    ) -> Result<Line, StoreError> {
        let place = address.to_string();
        let work = async {
            let line = self.connect(address, &self.place.login, self.place.database, hear).await?;
            let report = look(&line, expected).await?;
            Ok((line, report))
        };
        let (line, report) = timeout(self.options.connect_timeout, work)
            .await
            .unwrap_or_else(|_| Err(error::no_answer(&place, self.connecting())))?;
        if let Some(version) = report.version {
            *lock(&self.version) = Some(version);
        }
        self.risks.add(report.risks);
        match report.fault {
            Some(fault) => Err(error::refused(&place, &fault)),
            None => Ok(line),
        }
    }

    /// Connects to a sentinel.
    pub(super) async fn dial_sentinel(&self, address: &Address) -> Result<Line, StoreError> {
        let work = self.connect(address, &self.options.sentinel_login, 0, None);
        timeout(self.options.connect_timeout, work)
            .await
            .unwrap_or_else(|_| Err(error::no_answer(&format!("sentinel {address}"), self.connecting())))
    }

    /// What is not answered while connecting. A server without TLS does not say that it has none.
    fn connecting(&self) -> &'static str {
        if self.place.tls { "connecting with TLS, which the server may not have" } else { "connecting" }
    }

    async fn connect(
        &self,
        address: &Address,
        login: &Login,
        database: i64,
        hear: Option<Hear>,
    ) -> Result<Line, StoreError> {
        let failed = |error| error::unavailable(error, &address.to_string());
        // RESP3, so that the client tells when a connection ends, and for subscriptions.
        let mut settings = RedisConnectionInfo::default()
            .set_protocol(ProtocolVersion::RESP3)
            .set_skip_set_lib_name()
            .set_db(database);
        if let Some(user) = &login.user {
            settings = settings.set_username(user);
        }
        if let Some(password) = &login.password {
            settings = settings.set_password(password);
        }
        let to = match address {
            Address::Tcp { host, port } if self.place.tls => {
                ConnectionAddr::TcpTls { host: host.clone(), port: *port, insecure: false, tls_params: None }
            }
            Address::Tcp { host, port } => ConnectionAddr::Tcp(host.clone(), *port),
            Address::Unix(path) => ConnectionAddr::Unix(path.clone()),
        };
        let info = to.into_connection_info().map_err(failed)?;
        let info = info.set_redis_settings(settings).set_tcp_settings(tcp_settings());
        let client = if self.place.tls { self.with_tls(info) } else { Client::open(info) }.map_err(failed)?;
        let gone = Arc::new(AtomicBool::new(false));
        let ends = Ends(gone.clone());
        let config = AsyncConnectionConfig::new()
            // Callers have timeouts of their own.
            .set_response_timeout(None)
            .set_connection_timeout(None)
            .set_push_sender(move |push: PushInfo| {
                // Held by the connection's task and dropped with it.
                let _ = &ends;
                if let Some(hear) = &hear {
                    hear(push);
                }
                Ok::<(), ()>(())
            });
        let connection =
            client.get_multiplexed_async_connection_with_config(&config).await.map_err(failed)?;
        Ok(Line::new(connection, address.clone(), gone))
    }

    fn with_tls(&self, info: ConnectionInfo) -> RedisResult<Client> {
        // The client takes whatever the process has set. Only where nobody has set anything, something is set here: it
        // would end in a panic.
        if CryptoProvider::get_default().is_none() {
            // Someone else was faster: as good.
            rustls::crypto::ring::default_provider().install_default().ok();
        }
        let Options { authority, certificate, .. } = &self.options;
        if authority.is_none() && certificate.is_none() {
            return Client::open(info);
        }
        let own = certificate.clone();
        let own = own.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
        Client::build_with_tls(info, TlsCertificates { client_tls: own, root_cert: authority.clone() })
    }
}

async fn look(line: &Line, expected: Expected) -> Result<Report, StoreError> {
    let place = || line.address().to_string();
    match line.ask(&redis::cmd("INFO")).await {
        Ok(answer) => match text(&answer) {
            Some(info) => Ok(check::judge(info, expected)),
            None => Ok(check::unseen("its answer cannot be read")),
        },
        Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoPerm) => {
            Ok(check::unseen(error.detail().unwrap_or("no permission")))
        }
        Err(error) => Err(error::unavailable(error, &place())),
    }
}

fn tcp_settings() -> TcpSettings {
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE);
    let settings = TcpSettings::default().set_keepalive(keepalive);
    #[cfg(target_os = "linux")]
    let settings = settings.set_user_timeout(UNACKNOWLEDGED);
    settings
}

/// The next of `count`, in turn.
pub(super) fn turn(from: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count).map(move |step| (from + step) % count)
}

pub(super) fn remember(which: &AtomicUsize, value: usize) {
    which.store(value, Relaxed);
}
