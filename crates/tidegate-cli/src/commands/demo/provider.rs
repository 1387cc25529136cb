//! The provider: a real HTTP server that serves only so many calls at once, and tells nobody how many.
//!
//! A call over the ceiling is answered 429 with `Retry-After: 1` within a few milliseconds. Any other call takes a
//! place, is served after a while, and frees its place before its answer leaves: a caller that has the answer can
//! call again and finds the place free. A change of the ceiling stops no call that is being served.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{HeaderValue, RETRY_AFTER};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use hyper_util::server::graceful::GracefulShutdown;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use super::circuit::Outage;
use super::schedule::Schedule;

/// Where it says whether it works. Nobody is counted who asks there.
pub(super) const HEALTH: &str = "/health";
/// How long an answer of 429 takes, or one that it does not work.
const TURN_AWAY: Duration = Duration::from_millis(3);
/// The rest that an answer of 429 asks for, in seconds.
const RETRY_AFTER_SECONDS: &str = "1";
/// How long open connections may take to end.
const GRACE: Duration = Duration::from_secs(2);

/// A running provider.
pub(super) struct Provider {
    address: SocketAddr,
    books: Arc<Books>,
    stop: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

/// What a provider counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Counts {
    /// Calls served to their end.
    pub(super) served: u64,
    /// Calls answered 429.
    pub(super) throttled: u64,
    /// Calls being served now.
    pub(super) in_flight: u32,
    /// The most calls that were ever served at once.
    pub(super) max_in_flight: u32,
    /// The time that all served calls took together.
    pub(super) busy: Duration,
}

impl Counts {
    /// How long a served call took on average. `None` before the first.
    pub(super) fn mean_service(&self) -> Option<Duration> {
        let nanos = self.busy.as_nanos().checked_div(u128::from(self.served))?;
        u64::try_from(nanos).ok().map(Duration::from_nanos)
    }
}

impl Provider {
    /// Opens a free port of 127.0.0.1 and serves calls there, each in `latency` on average. The ceiling follows
    /// `schedule`, counted from `start`; so does the time in which it fails.
    ///
    /// # Errors
    ///
    /// No port could be opened.
    pub(super) async fn start(
        schedule: Schedule,
        latency: Duration,
        outage: Option<Outage>,
        start: Instant,
    ) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let books = Arc::new(Books { schedule, latency, outage, start, counts: Mutex::default() });
        let (stop, stopped) = oneshot::channel();
        let task = tokio::spawn(listen(listener, Arc::clone(&books), stopped));
        Ok(Self { address, books, stop, task })
    }

    /// Where it listens.
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it counted so far.
    #[cfg(test)]
    pub(super) fn counts(&self) -> Counts {
        *self.books.counts()
    }

    /// Takes no more calls, lets those under way end within a short grace, and says what it counted.
    pub(super) async fn stop(self) -> Counts {
        // A receiver that is gone has stopped already.
        let _ = self.stop.send(());
        // The task ends within its own grace; that it panicked would be no news to whoever called it.
        let _ = self.task.await;
        *self.books.counts()
    }
}

async fn listen(listener: TcpListener, books: Arc<Books>, mut stopped: oneshot::Receiver<()>) {
    let open = GracefulShutdown::new();
    // Dropping the set ends whatever is still open.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
            _ = &mut stopped => break,
        };
        let Ok((stream, _)) = accepted else {
            // Out of files, or a caller that left at once. The next try needs a moment.
            tokio::time::sleep(TURN_AWAY).await;
            continue;
        };
        let _ = stream.set_nodelay(true);
        let books = Arc::clone(&books);
        let service = service_fn(move |request| answer(Arc::clone(&books), request));
        let connection =
            http1::Builder::new().header_read_timeout(None).serve_connection(TokioIo::new(stream), service);
        connections.spawn(open.watch(connection));
    }
    drop(listener);
    let _ = tokio::time::timeout(GRACE, open.shutdown()).await;
}

async fn answer(books: Arc<Books>, request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    if books.outage.is_some_and(|outage| outage.is_on(books.start.elapsed())) {
        tokio::time::sleep(TURN_AWAY).await;
        let mut response = Response::new(Full::from("out of order\n"));
        *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
        return Ok(response);
    }
    if request.uri().path() == HEALTH {
        return Ok(Response::new(Full::from("well\n")));
    }
    let Some(place) = Books::admit(&books) else {
        tokio::time::sleep(TURN_AWAY).await;
        let mut response = Response::new(Full::from("too many calls at once\n"));
        *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static(RETRY_AFTER_SECONDS));
        return Ok(response);
    };
    tokio::time::sleep(spread(books.latency)).await;
    place.serve();
    Ok(Response::new(Full::from("served\n")))
}

/// A duration between half of `mean` and one and a half of it.
fn spread(mean: Duration) -> Duration {
    mean / 2 + mean.mul_f64(fastrand::f64())
}

/// What all connections share.
struct Books {
    schedule: Schedule,
    latency: Duration,
    outage: Option<Outage>,
    start: Instant,
    counts: Mutex<Counts>,
}

impl Books {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        // Counters are whole after every statement, so a panic elsewhere has not torn them.
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a call, if the ceiling of this moment has one; else the call is counted as throttled.
    fn admit(books: &Arc<Self>) -> Option<Place> {
        let mut counts = books.counts();
        if counts.in_flight >= books.schedule.at(books.start.elapsed()) {
            counts.throttled += 1;
            return None;
        }
        counts.in_flight += 1;
        counts.max_in_flight = counts.max_in_flight.max(counts.in_flight);
        Some(Place { books: Arc::clone(books), since: Instant::now() })
    }
}

/// A call that is being served. It frees its place however it ends, also when its caller has gone.
struct Place {
    books: Arc<Books>,
    since: Instant,
}

impl Place {
    /// The call was served to its end.
    fn serve(self) {
        let mut counts = self.books.counts();
        counts.served += 1;
        counts.busy += self.since.elapsed();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.books.counts().in_flight -= 1;
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, Empty};
    use hyper_util::client::legacy::Client;
    use hyper_util::client::legacy::connect::HttpConnector;
    use hyper_util::rt::TokioExecutor;

    use super::*;

    type TestClient = Client<HttpConnector, Empty<Bytes>>;

    fn client() -> TestClient {
        Client::builder(TokioExecutor::new()).build_http()
    }

    async fn call(client: TestClient, address: SocketAddr) -> (StatusCode, Option<String>, Bytes) {
        let response = client.get(format!("http://{address}/").parse().unwrap()).await.unwrap();
        let (head, body) = response.into_parts();
        let rest = head.headers.get(RETRY_AFTER).map(|value| value.to_str().unwrap().to_owned());
        (head.status, rest, body.collect().await.unwrap().to_bytes())
    }

    async fn at_once(calls: usize, provider: &Provider) -> Vec<(StatusCode, Option<String>, Bytes)> {
        let client = client();
        let mut all = tokio::task::JoinSet::new();
        for _ in 0..calls {
            all.spawn(call(client.clone(), provider.address()));
        }
        all.join_all().await
    }

    #[tokio::test]
    async fn a_call_over_the_ceiling_is_told_to_come_back() {
        let latency = Duration::from_millis(400);
        let provider = Provider::start(Schedule::constant(3), latency, None, Instant::now()).await.unwrap();
        let answers = at_once(8, &provider).await;
        let served = answers.iter().filter(|answer| answer.0 == StatusCode::OK).count();
        assert_eq!(served, 3);
        for (status, rest, body) in answers {
            if status == StatusCode::OK {
                assert_eq!((rest, &body[..]), (None, &b"served\n"[..]));
            } else {
                assert_eq!((status, rest.as_deref()), (StatusCode::TOO_MANY_REQUESTS, Some("1")));
            }
        }
        let counts = provider.stop().await;
        assert_eq!((counts.served, counts.throttled), (3, 5));
        assert_eq!((counts.max_in_flight, counts.in_flight), (3, 0));
        let mean = counts.mean_service().unwrap();
        assert!((latency / 2..latency * 2).contains(&mean), "{mean:?}");
    }

    #[tokio::test]
    async fn the_place_is_free_when_the_answer_is_there() {
        let latency = Duration::from_millis(1);
        let provider = Provider::start(Schedule::constant(1), latency, None, Instant::now()).await.unwrap();
        let client = client();
        for _ in 0..200 {
            assert_eq!(call(client.clone(), provider.address()).await.0, StatusCode::OK);
        }
        let counts = provider.stop().await;
        assert_eq!((counts.served, counts.throttled, counts.max_in_flight), (200, 0, 1));
    }

    #[tokio::test]
    async fn a_caller_that_leaves_frees_its_place() {
        let latency = Duration::from_secs(60);
        let provider = Provider::start(Schedule::constant(2), latency, None, Instant::now()).await.unwrap();
        let calls = tokio::time::timeout(Duration::from_millis(200), at_once(2, &provider)).await;
        assert!(calls.is_err());
        let freed = async {
            while provider.counts().in_flight > 0 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(5), freed).await.unwrap();
        let counts = provider.stop().await;
        assert_eq!((counts.served, counts.max_in_flight), (0, 2));
    }

    #[tokio::test]
    async fn a_change_of_the_ceiling_counts_from_its_moment() {
        let now = Instant::now();
        let start = now.checked_sub(Duration::from_secs(10)).unwrap();
        let schedule = Schedule::new(5, [(Duration::from_secs(10), 2)]);
        let provider = Provider::start(schedule, Duration::from_millis(200), None, start).await.unwrap();
        let answers = at_once(5, &provider).await;
        assert_eq!(answers.iter().filter(|answer| answer.0 == StatusCode::OK).count(), 2);
        provider.stop().await;
    }
}
