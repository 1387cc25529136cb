//! A faulty line: a TCP proxy between a client and its server, that fails in the ways in which networks do.
//!
//! It knows bytes, and of Redis only so much that it can tell a connection that subscribes from one that commands. What a
//! fault holds up is not lost: it arrives when the fault is over, as packets that are sent again would. What a cut
//! connection had on its way is lost.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::JoinHandle,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpListener, TcpSocket, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{Notify, oneshot, watch},
    time::{Instant, sleep_until},
};

/// A direction, or both.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Way {
    /// From the client to the server.
    Requests,
    /// From the server to the client.
    Replies,
    /// Both.
    Both,
}

impl Way {
    const fn includes(self, other: Self) -> bool {
        matches!(
            (self, other),
            (Self::Both, _) | (Self::Requests, Self::Requests) | (Self::Replies, Self::Replies)
        )
    }
}

/// Which connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Which {
    /// All of them.
    All,
    /// Those on which the client has subscribed to a channel (`SUBSCRIBE`, `SSUBSCRIBE` or `PSUBSCRIBE`).
    Subscribed,
    /// Those on which it has not.
    Commands,
}

/// How long closing or opening the port may take.
const DOOR: Duration = Duration::from_secs(10);

/// What goes wrong now.
#[derive(Clone, Copy, Debug, Default)]
struct Faults {
    request_delay: Duration,
    reply_delay: Duration,
    hold_requests: bool,
    hold_replies: bool,
}

impl Faults {
    const fn delay(&self, way: Way) -> Duration {
        if way.includes(Way::Requests) { self.request_delay } else { self.reply_delay }
    }

    const fn holds(&self, way: Way) -> bool {
        if way.includes(Way::Requests) { self.hold_requests } else { self.hold_replies }
    }
}

/// One connection of a client.
#[derive(Debug, Default)]
struct Line {
    subscribed: AtomicBool,
    cut: Notify,
}

#[derive(Debug, Default)]
struct Lines {
    open: BTreeMap<u64, Arc<Line>>,
    accepted: u64,
    refuses: bool,
    replies_to_drop: u32,
    replies_dropped: u64,
}

#[derive(Debug)]
struct Shared {
    lines: Mutex<Lines>,
    target: Mutex<SocketAddr>,
    faults: watch::Sender<Faults>,
    /// Tells the listener that it is to close or to open.
    door: Notify,
    is_open: AtomicBool,
}

impl Shared {
    fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the reply that is there is one of those to be dropped.
    fn drops_this_reply(&self, line: &Line) -> bool {
        let mut lines = self.lines();
        let drops = lines.replies_to_drop > 0 && !line.subscribed.load(Ordering::SeqCst);
        if drops {
            lines.replies_to_drop -= 1;
            lines.replies_dropped += 1;
        }
        drops
    }
}

/// A line to a server that fails when it is told to. It runs on a thread of its own, so that it goes on whatever a test's
/// executor does; dropping it cuts and closes everything.
///
/// # Examples
/// ```
/// use std::{io::{Read as _, Write as _}, net::{TcpListener, TcpStream}, time::Duration};
/// use tidegate_fleet::proxy::{Proxy, Way};
///
/// # fn main() -> std::io::Result<()> {
/// let server = TcpListener::bind("127.0.0.1:0")?;
/// let proxy = Proxy::to(server.local_addr()?)?;
///
/// let mut client = TcpStream::connect(proxy.addr())?;
/// client.write_all(b"ping")?;
/// let mut word = [0; 4];
/// server.accept()?.0.read_exact(&mut word)?;
/// assert_eq!((&word, proxy.accepted()), (b"ping", 1));
///
/// proxy.delay(Way::Both, Duration::from_millis(5)); // a slow line
/// proxy.blackhole(Way::Replies); // an answer that does not come
/// proxy.heal();
/// proxy.cut(); // every connection breaks
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    addr: SocketAddr,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// A proxy on a free port of loopback, before the server at `target`, without a fault.
    ///
    /// # Errors
    /// Where there is no port, or no thread.
    pub fn to(target: SocketAddr) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            lines: Mutex::default(),
            target: Mutex::new(target),
            faults: watch::Sender::new(Faults::default()),
            door: Notify::new(),
            is_open: AtomicBool::new(true),
        });
        let (stop, stopped) = oneshot::channel();
        let (bound, listens) = mpsc::channel();
        let of_thread = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("faulty proxy".to_owned()).spawn(move || {
            let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => return drop(bound.send(Err(error))),
            };
            runtime.block_on(async move {
                match listen(0) {
                    Ok((listener, addr)) => {
                        // Whoever asked is gone where this fails, and then `stopped` says so at once.
                        let _ = bound.send(Ok(addr));
                        tokio::select! {
                            () = serve(&of_thread, listener, addr) => {}
                            _ = stopped => {}
                        }
                    }
                    Err(error) => drop(bound.send(Err(error))),
                }
            });
        })?;
        let addr = listens.recv().map_err(|_| io::Error::other("the proxy's thread ended"))??;
        Ok(Self { shared, addr, stop: Some(stop), thread: Some(thread) })
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Leads new connections to another server: after a fail-over, for one. Those that are open stay where they are.
    pub fn lead_to(&self, target: SocketAddr) {
        *self.shared.target.lock().unwrap_or_else(PoisonError::into_inner) = target;
    }

    /// Delays everything that goes one way, or both ways, by `by` from now on. Order and throughput stay.
    pub fn delay(&self, way: Way, by: Duration) {
        self.shared.faults.send_modify(|faults| {
            if way.includes(Way::Requests) {
                faults.request_delay = by;
            }
            if way.includes(Way::Replies) {
                faults.reply_delay = by;
            }
        });
    }

    /// Delivers nothing one way, or both ways, until [`heal`](Self::heal). Connections stay open and new ones are accepted;
    /// what is sent meanwhile arrives afterwards.
    pub fn blackhole(&self, way: Way) {
        self.shared.faults.send_modify(|faults| {
            faults.hold_requests |= way.includes(Way::Requests);
            faults.hold_replies |= way.includes(Way::Replies);
        });
    }

    /// Refuses new connections, until [`heal`](Self::heal). Open ones stay: [`cut`](Self::cut) ends those.
    pub fn refuse(&self) {
        self.shared.lines().refuses = true;
        self.shared.door.notify_one();
        // The port is closed by the proxy's own thread; a caller may rely on it afterwards.
        self.until_door_is(false);
    }

    /// Ends delay, black hole and refusal, and drops no more replies. What was held up is delivered.
    pub fn heal(&self) {
        {
            let mut lines = self.shared.lines();
            lines.refuses = false;
            lines.replies_to_drop = 0;
        }
        self.shared.door.notify_one();
        self.until_door_is(true);
        self.shared.faults.send_replace(Faults::default());
    }

    fn until_door_is(&self, open: bool) {
        // Bounded, since another may have taken the port while it was closed.
        let start = std::time::Instant::now();
        while self.shared.is_open.load(Ordering::SeqCst) != open && start.elapsed() < DOOR {
            std::thread::yield_now();
        }
    }

    /// Breaks all open connections, with what they have on the way. New ones are accepted.
    pub fn cut(&self) -> usize {
        self.cut_only(Which::All)
    }

    /// Breaks some of the open connections, and says how many: that of a subscription alone, for one.
    pub fn cut_only(&self, which: Which) -> usize {
        let lines = self.shared.lines();
        let mut cut = 0;
        for line in lines.open.values() {
            let subscribed = line.subscribed.load(Ordering::SeqCst);
            if which == Which::All || subscribed == (which == Which::Subscribed) {
                line.cut.notify_one();
                cut += 1;
            }
        }
        cut
    }

    /// Loses the next `n` answers: the server has carried out what it was asked, the client never hears of it, and its
    /// connection breaks. Connections that have subscribed are left alone.
    pub fn drop_replies(&self, n: u32) {
        self.shared.lines().replies_to_drop = n;
    }

    /// How many answers were lost so.
    pub fn dropped_replies(&self) -> u64 {
        self.shared.lines().replies_dropped
    }

    /// How many connections were ever accepted.
    pub fn accepted(&self) -> u64 {
        self.shared.lines().accepted
    }

    /// How many connections are open.
    pub fn open(&self) -> usize {
        self.shared.lines().open.len()
    }

    /// How many of the open connections have subscribed.
    pub fn subscribed(&self) -> usize {
        self.shared.lines().open.values().filter(|line| line.subscribed.load(Ordering::SeqCst)).count()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there was shown there.
            let _ = thread.join();
        }
    }
}

/// Listens on a port of loopback, on a free one for 0.
fn listen(port: u16) -> io::Result<(TcpListener, SocketAddr)> {
    let socket = TcpSocket::new_v4()?;
    // So that the port can be taken again while old connections of it linger.
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port)))?;
    let listener = socket.listen(1_024)?;
    let addr = listener.local_addr()?;
    Ok((listener, addr))
}

/// Accepts connections, while it is not to refuse them.
async fn serve(shared: &Arc<Shared>, listener: TcpListener, addr: SocketAddr) {
    let mut listener = Some(listener);
    loop {
        if shared.lines().refuses {
            drop(listener.take());
            shared.is_open.store(false, Ordering::SeqCst);
            shared.door.notified().await;
            continue;
        }
        let Some(open) = &listener else {
            match listen(addr.port()) {
                Ok((again, _)) => {
                    listener = Some(again);
                    shared.is_open.store(true, Ordering::SeqCst);
                }
                // Another has the port for the moment.
                Err(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            }
            continue;
        };
        tokio::select! {
            () = shared.door.notified() => {}
            accepted = open.accept() => {
                if let Ok((client, _)) = accepted {
                    tokio::spawn(carry(Arc::clone(shared), client));
                }
            }
        }
    }
}

/// Takes a connection off the list however it ends.
struct Registered {
    shared: Arc<Shared>,
    number: u64,
    line: Arc<Line>,
}

impl Registered {
    fn new(shared: Arc<Shared>) -> Self {
        let line = Arc::<Line>::default();
        let mut lines = shared.lines();
        let number = lines.accepted;
        lines.accepted += 1;
        lines.open.insert(number, Arc::clone(&line));
        drop(lines);
        Self { shared, number, line }
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.shared.lines().open.remove(&self.number);
    }
}

/// Carries one connection until both sides are done, or it is cut.
async fn carry(shared: Arc<Shared>, client: TcpStream) {
    let registered = Registered::new(Arc::clone(&shared));
    let line = &registered.line;
    let both_ways = async {
        let target = *shared.target.lock().unwrap_or_else(PoisonError::into_inner);
        let server = TcpStream::connect(target).await?;
        client.set_nodelay(true)?;
        server.set_nodelay(true)?;
        let (from_client, to_client) = client.into_split();
        let (from_server, to_server) = server.into_split();
        tokio::try_join!(
            pass(Way::Requests, &shared, line, from_client, to_server),
            pass(Way::Replies, &shared, line, from_server, to_client),
        )
    };
    // What ends it here is what the client sees too: nobody else is to be told.
    tokio::select! {
        _ = both_ways => {}
        () = line.cut.notified() => {}
    }
}

/// What is on its way in one direction, each part with the moment before which it does not arrive; none is the end.
type OnTheWay = Mutex<VecDeque<(Instant, Option<Vec<u8>>)>>;

/// Passes on what goes one way. Reading does not wait for writing, so that a delay costs no throughput.
async fn pass(
    way: Way,
    shared: &Shared,
    line: &Line,
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
) -> io::Result<()> {
    let on_the_way = OnTheWay::default();
    let came = Notify::new();
    let lock = || on_the_way.lock().unwrap_or_else(PoisonError::into_inner);
    let read = async {
        let mut listening = Listening::default();
        loop {
            let mut bytes = vec![0; 16 * 1_024];
            let length = from.read(&mut bytes).await?;
            bytes.truncate(length);
            if way == Way::Requests && listening.hears_a_subscription(&bytes) {
                line.subscribed.store(true, Ordering::SeqCst);
            }
            if way == Way::Replies && length > 0 && shared.drops_this_reply(line) {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            let due = Instant::now() + shared.faults.borrow().delay(way);
            lock().push_back((due, (length > 0).then_some(bytes)));
            came.notify_one();
            if length == 0 {
                return Ok(());
            }
        }
    };
    let write = async {
        let mut faults = shared.faults.subscribe();
        loop {
            let next = lock().pop_front();
            let Some((due, part)) = next else {
                came.notified().await;
                continue;
            };
            sleep_until(due).await;
            // Fails only where the proxy is gone, and then this is gone too.
            let _ = faults.wait_for(|faults| !faults.holds(way)).await;
            match part {
                Some(bytes) => to.write_all(&bytes).await?,
                None => return to.shutdown().await,
            }
        }
    };
    tokio::try_join!(read, write).map(drop)
}

/// Looks for a command that subscribes, also where it comes in two parts.
#[derive(Default)]
struct Listening {
    last: Vec<u8>,
    heard: bool,
}

/// How a word looks on the wire, in upper case. The two longer ones end in the same letters, behind another one.
const SUBSCRIBES: [&[u8]; 3] = [b"\nSUBSCRIBE\r\n", b"\nSSUBSCRIBE\r\n", b"\nPSUBSCRIBE\r\n"];

impl Listening {
    fn hears_a_subscription(&mut self, bytes: &[u8]) -> bool {
        if self.heard {
            return false;
        }
        self.last.extend(bytes.iter().map(u8::to_ascii_uppercase));
        self.heard = SUBSCRIBES.iter().any(|word| self.last.windows(word.len()).any(|part| part == *word));
        let keep = self.last.len().saturating_sub(SUBSCRIBES[1].len());
        self.last.drain(..keep);
        self.heard
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_subscription_is_heard_in_parts_and_once() {
        let words = b"*1\r\n$4\r\nPING\r\n*2\r\n$10\r\nssubscribe\r\n$1\r\na\r\n";
        for at in 0..words.len() {
            let mut listening = Listening::default();
            let (first, second) = words.split_at(at);
            let heard = [first, second, second].map(|part| listening.hears_a_subscription(part));
            assert_eq!(heard.iter().filter(|heard| **heard).count(), 1, "split at {at}");
        }
        let mut listening = Listening::default();
        assert!(!listening.hears_a_subscription(b"*2\r\n$11\r\nUNSUBSCRIBE\r\n$1\r\na\r\n"));
        assert!(!listening.hears_a_subscription(b"*2\r\n$3\r\nGET\r\n$11\r\nsubscribed \r\n"));
    }
}
