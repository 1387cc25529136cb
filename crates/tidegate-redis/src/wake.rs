//! The subscription: one connection to each primary that has channels of this store, whatever becomes of it.
//!
//! Messages are an optimisation. What is lost while a connection is away is told as a gap.
//!
//! Spec: ST-13.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    hash::{BuildHasher, Hasher, RandomState},
    sync::{Arc, Mutex},
    time::Duration,
};

use redis::{PushInfo, PushKind, RedisError, Value};
use tokio::{
    sync::{mpsc, watch},
    time::{sleep, timeout},
};

use crate::wire::{Address, Line, Servers, Thread, Topology, Wire, lock, redirection, slot_of};

/// Told of each message: channel and payload. Called in order, on the thread of the store; it returns at once.
pub(crate) type Hears = Arc<dyn Fn(&[u8], &[u8]) + Send + Sync>;

/// Told that a subscription is there, or there again: what was said before is not known.
pub(crate) type Gap = Arc<dyn Fn() + Send + Sync>;

/// The first and the longest wait before a connection is opened again.
const FIRST_WAIT: Duration = Duration::from_millis(100);
const LONGEST_WAIT: Duration = Duration::from_secs(2);

/// How often an idle connection is asked whether it is there, and how long it may take to answer.
const PING: Duration = Duration::from_secs(2);
const DEADLINE: Duration = Duration::from_secs(2);

/// How many channels are asked for in one write.
const BATCH: usize = 256;

/// The subscriptions of a store. A cheap clone.
#[derive(Clone)]
pub(crate) struct Wakes(Arc<Hub>);

struct Hub {
    /// Keeps the thread, once it was started.
    wire: Wire,
    book: Arc<Book>,
    /// Whether there is someone who looks after the connections.
    started: Mutex<Option<Arc<Thread>>>,
}

/// Who wants to hear what.
struct Book {
    pages: Mutex<Pages>,
    /// Counts the changes of what is wanted.
    changes: watch::Sender<u64>,
}

#[derive(Default)]
struct Pages {
    next: u64,
    listeners: HashMap<u64, Listening>,
    channels: HashMap<Vec<u8>, Vec<u64>>,
    /// The channels that are subscribed to, each with the connection that has it.
    live: HashMap<Vec<u8>, u64>,
}

struct Listening {
    channels: Vec<Vec<u8>>,
    hears: Hears,
    gap: Gap,
    /// Whether it was told that all its channels are there.
    told: bool,
}

/// A subscription; dropping it ends it.
#[must_use]
pub(crate) struct Handle {
    number: u64,
    book: Arc<Book>,
    /// The thread lives while there is someone to tell.
    _thread: Option<Arc<Thread>>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.book.remove(self.number);
    }
}

impl Wakes {
    /// None where it is not known how to open a connection.
    pub(crate) fn of(wire: &Wire) -> Option<Self> {
        wire.servers()?;
        let book = Arc::new(Book { pages: Mutex::default(), changes: watch::Sender::new(0) });
        Some(Self(Arc::new(Hub { wire: wire.clone(), book, started: Mutex::default() })))
    }

    /// Has `hears` told what is said on the channels, from the next `gap` on. Returns at once.
    pub(crate) fn subscribe(&self, channels: Vec<Vec<u8>>, hears: Hears, gap: Gap) -> Handle {
        let thread = self.thread();
        let number = self.0.book.add(Listening { channels, hears, gap, told: false });
        Handle { number, book: self.0.book.clone(), _thread: thread }
    }

    fn thread(&self) -> Option<Arc<Thread>> {
        let mut started = lock(&self.0.started);
        if started.is_none() {
            let servers = self.0.wire.servers()?.clone();
            match self.0.wire.thread() {
                Ok(thread) => {
                    thread.spawn(look_after(self.0.book.clone(), servers));
                    *started = Some(thread);
                }
                Err(error) => tracing::warn!(%error, "no subscription: waiting is polled"),
            }
        }
        started.clone()
    }
}

impl Book {
    fn add(&self, listening: Listening) -> u64 {
        let mut pages = lock(&self.pages);
        let number = pages.next;
        pages.next += 1;
        for channel in &listening.channels {
            pages.channels.entry(channel.clone()).or_default().push(number);
        }
        pages.listeners.insert(number, listening);
        drop(pages);
        self.changed();
        number
    }

    fn remove(&self, number: u64) {
        let mut pages = lock(&self.pages);
        let Some(gone) = pages.listeners.remove(&number) else { return };
        for channel in &gone.channels {
            if let Some(numbers) = pages.channels.get_mut(channel) {
                numbers.retain(|other| *other != number);
                if numbers.is_empty() {
                    pages.channels.remove(channel);
                }
            }
        }
        drop(pages);
        self.changed();
        // What a listener holds is dropped here, outside the lock.
        drop(gone);
    }

    fn changed(&self) {
        self.changes.send_modify(|changes| *changes += 1);
    }

    fn wanted(&self) -> Vec<Vec<u8>> {
        lock(&self.pages).channels.keys().cloned().collect()
    }

    /// Passes a message on. Listeners are called outside the lock: they may unsubscribe.
    fn said(&self, channel: &[u8], payload: &[u8]) {
        let told: Vec<Hears> = {
            let pages = lock(&self.pages);
            let numbers = pages.channels.get(channel).map(Vec::as_slice).unwrap_or_default();
            numbers
                .iter()
                .filter_map(|number| pages.listeners.get(number))
                .map(|listening| listening.hears.clone())
                .collect()
        };
        for hears in told {
            hears(channel, payload);
        }
    }

    /// Notes that a connection has these channels.
    fn has(&self, connection: u64, channels: impl IntoIterator<Item = Vec<u8>>) {
        let mut pages = lock(&self.pages);
        pages.live.extend(channels.into_iter().map(|channel| (channel, connection)));
    }

    /// Notes that a connection has lost these channels.
    fn lost<'a>(&self, connection: u64, channels: impl IntoIterator<Item = &'a Vec<u8>>) {
        let mut pages = lock(&self.pages);
        let Pages { listeners, channels: known, live, .. } = &mut *pages;
        for channel in channels {
            if live.get(channel) != Some(&connection) {
                continue;
            }
            live.remove(channel);
            for number in known.get(channel).into_iter().flatten() {
                if let Some(listening) = listeners.get_mut(number) {
                    listening.told = false;
                }
            }
        }
    }

    /// Tells those who have all their channels and do not know it yet.
    fn tell(&self) {
        let gaps: Vec<Gap> = {
            let mut pages = lock(&self.pages);
            let Pages { listeners, live, .. } = &mut *pages;
            listeners
                .values_mut()
                .filter(|listening| !listening.told)
                .filter(|listening| listening.channels.iter().all(|channel| live.contains_key(channel)))
                .map(|listening| {
                    listening.told = true;
                    listening.gap.clone()
                })
                .collect()
        };
        for gap in gaps {
            gap();
        }
    }
}

/// Where channels are: a node of a cluster, or else the primary.
type Where = Option<Arc<Address>>;

type Wanted = Arc<BTreeSet<Vec<u8>>>;

/// Sees to it that each channel has a connection to the primary that serves it.
async fn look_after(book: Arc<Book>, servers: Arc<Servers>) {
    let mut changes = book.changes.subscribe();
    let mut moves = servers.moves();
    let mut connections: HashMap<Where, watch::Sender<Wanted>> = HashMap::new();
    let mut next = 0;
    let mut wait = FIRST_WAIT;
    loop {
        changes.borrow_and_update();
        moves.borrow_and_update();
        let (mut places, all) = sorted(book.wanted(), &servers).await;
        // A place without channels is told so by the end of its channel.
        connections.retain(|place, _| places.contains_key(place));
        for (place, wanted) in places.drain() {
            let wanted = Arc::new(wanted);
            match connections.get(&place) {
                Some(told) => {
                    told.send_if_modified(|known| {
                        let differs = *known != wanted;
                        *known = wanted;
                        differs
                    });
                }
                None => {
                    let (told, heard) = watch::channel(wanted);
                    next += 1;
                    let connection = Connection {
                        number: next,
                        place: place.clone(),
                        wanted: heard,
                        book: book.clone(),
                        servers: servers.clone(),
                    };
                    tokio::spawn(connection.keep());
                    connections.insert(place, told);
                }
            }
        }
        book.tell();
        let pause = jittered(wait);
        let again = async move {
            match all {
                true => std::future::pending().await,
                false => sleep(pause).await,
            }
        };
        wait = if all { FIRST_WAIT } else { LONGEST_WAIT.min(wait * 2) };
        tokio::select! {
            _ = changes.changed() => {}
            _ = moves.changed() => {}
            () = again => {}
        }
    }
}

/// Says which channel is where, and whether that is known of all.
async fn sorted(channels: Vec<Vec<u8>>, servers: &Arc<Servers>) -> (HashMap<Where, BTreeSet<Vec<u8>>>, bool) {
    let mut places: HashMap<Where, BTreeSet<Vec<u8>>> = HashMap::new();
    let mut all = true;
    let is_cluster = matches!(servers.topology(), Topology::Cluster { .. });
    for channel in channels {
        let place = if is_cluster {
            match servers.owner(slot_of(&channel)).await {
                Ok(owner) => Some(owner),
                Err(_) => {
                    all = false;
                    continue;
                }
            }
        } else {
            None
        };
        places.entry(place).or_default().insert(channel);
    }
    (places, all)
}

/// One connection for subscriptions, opened again as often as it takes.
struct Connection {
    number: u64,
    place: Where,
    wanted: watch::Receiver<Wanted>,
    book: Arc<Book>,
    servers: Arc<Servers>,
}

/// Why a connection is not used any more.
enum End {
    /// Nobody wants it.
    Unwanted,
    /// It was cut, or is of no use.
    Cut,
}

impl Connection {
    async fn keep(mut self) {
        let mut wait = FIRST_WAIT;
        loop {
            let leaving = Arc::new(Mutex::new(HashSet::new()));
            let (tell, mut told) = mpsc::unbounded_channel();
            let hear = hear(self.book.clone(), leaving.clone(), tell);
            let dialled = match &self.place {
                Some(node) => self.servers.clone().dial_node((**node).clone(), Some(hear)).await,
                None => self.servers.clone().dial_main(Some(hear)).await,
            };
            match dialled {
                Ok(line) => {
                    let mut has = BTreeSet::new();
                    let served = self.serve(&line, &leaving, &mut told, &mut has, &mut wait).await;
                    self.book.lost(self.number, &has);
                    if let End::Unwanted = served {
                        return;
                    }
                }
                Err(error) => tracing::debug!(%error, "the subscription waits for its server"),
            }
            if self.wanted.has_changed().is_err() {
                return;
            }
            sleep(jittered(wait)).await;
            wait = LONGEST_WAIT.min(wait * 2);
        }
    }

    async fn serve(
        &mut self,
        line: &Line,
        leaving: &Mutex<HashSet<Vec<u8>>>,
        told: &mut mpsc::UnboundedReceiver<()>,
        has: &mut BTreeSet<Vec<u8>>,
        wait: &mut Duration,
    ) -> End {
        // Where the version may not be asked for, the answer tells.
        let mut sharded = self.servers.sharded().unwrap_or(true);
        let mut moves = self.servers.moves();
        let mut warned = false;
        'look: loop {
            let (join, leave) =
                if sharded { ("SSUBSCRIBE", "SUNSUBSCRIBE") } else { ("SUBSCRIBE", "UNSUBSCRIBE") };
            let wanted = self.wanted.borrow_and_update().clone();
            let missing: Vec<Vec<u8>> = wanted.difference(has).cloned().collect();
            let needless: Vec<Vec<u8>> = has.difference(&wanted).cloned().collect();
            for batch in missing.chunks(BATCH) {
                let Some(answers) = ask(line, join, batch).await else { return End::Cut };
                let mut joined = Vec::new();
                for (channel, answer) in batch.iter().zip(answers) {
                    match answer {
                        // Asked for again with the next look at the connection, unless it is elsewhere by then.
                        Value::ServerError(error) => {
                            let error = RedisError::from(error);
                            if sharded && is_unknown(&error) {
                                sharded = false;
                                continue 'look;
                            }
                            if !self.moved(line, channel, &error) && !warned {
                                warned = true;
                                tracing::warn!(%error, "a subscription is refused: waiting is polled meanwhile");
                            }
                        }
                        _ => {
                            has.insert(channel.clone());
                            joined.push(channel.clone());
                        }
                    }
                }
                self.book.has(self.number, joined);
            }
            for batch in needless.chunks(BATCH) {
                lock(leaving).extend(batch.iter().cloned());
                self.book.lost(self.number, batch);
                for channel in batch {
                    has.remove(channel);
                }
                if ask(line, leave, batch).await.is_none() {
                    return End::Cut;
                }
            }
            *wait = FIRST_WAIT;
            self.book.tell();
            tokio::select! {
                changed = self.wanted.changed() => if changed.is_err() { return End::Unwanted },
                // Something, or the end of the connection, which is the same: it is opened again.
                _ = told.recv() => return End::Cut,
                _ = moves.changed() => if !self.is_right(line) { return End::Cut },
                () = sleep(PING) => {
                    let answer = timeout(DEADLINE, line.ask(&redis::cmd("PING"))).await;
                    if !matches!(answer, Ok(Ok(_))) {
                        return End::Cut;
                    }
                }
            }
        }
    }

    /// Whether a connection still leads to where it should.
    fn is_right(&self, line: &Line) -> bool {
        self.place.is_some() || self.servers.is_primary(line.address())
    }

    /// Whether a channel was refused because it is elsewhere, which is noted.
    fn moved(&self, line: &Line, channel: &[u8], error: &RedisError) -> bool {
        match error.redirect_node().and_then(|(to, _)| redirection(to, line.address())) {
            Some(to) => {
                self.servers.learn(slot_of(channel), to);
                true
            }
            None => false,
        }
    }
}

/// Takes what a connection pushes. Channels that the server takes away by itself, and the end of the connection, are
/// told.
fn hear(
    book: Arc<Book>,
    leaving: Arc<Mutex<HashSet<Vec<u8>>>>,
    tell: mpsc::UnboundedSender<()>,
) -> Arc<dyn Fn(PushInfo) + Send + Sync> {
    Arc::new(move |push| match (push.kind, push.data.as_slice()) {
        (
            PushKind::Message | PushKind::SMessage,
            [Value::BulkString(channel), Value::BulkString(payload), ..],
        ) => book.said(channel, payload),
        // Not asked for: its slot is moved away. The client takes this for the answer to whatever was asked last, so
        // the connection is not used any more.
        (PushKind::SUnsubscribe, [Value::BulkString(channel), ..]) if !lock(&leaving).remove(channel) => {
            tell.send(()).ok();
        }
        _ => {}
    })
}

/// Whether a server does not know the command.
fn is_unknown(error: &RedisError) -> bool {
    error.detail().is_some_and(|detail| detail.starts_with("unknown command"))
}

/// Asks for each channel on its own: each is refused or confirmed on its own then.
async fn ask(line: &Line, what: &str, channels: &[Vec<u8>]) -> Option<Vec<Value>> {
    let mut commands = redis::Pipeline::with_capacity(channels.len());
    for channel in channels {
        commands.cmd(what).arg(channel.as_slice());
    }
    timeout(DEADLINE, line.ask_all(&commands, 0, channels.len())).await.ok()?.ok()
}

/// Between half of a wait and all of it, so that a fleet does not come back in step.
fn jittered(wait: Duration) -> Duration {
    let chance = RandomState::new().build_hasher().finish() % 512;
    wait * u32::try_from(512 + chance).unwrap_or(1024) / 1024
}
