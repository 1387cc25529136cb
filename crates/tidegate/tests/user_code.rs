//! The user's own code can do what it likes: it runs outside every lock, and a panic in it is caught, reported and
//! changes nothing else.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::{
    future::Future,
    panic::panic_any,
    pin::pin,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use tidegate::{
    Acquire, AcquireResult, Adaptive, AdaptiveSemaphore, Concurrency, Direction, Job, LastCause, Outcome,
    Recorder, Release, Trouble, Valve,
};

#[path = "support/fleet.rs"]
mod fleet;

use fleet::{Fleet, ID, Mode, Remote, Troubles, Wire, id, ms, poll_once, settled};

/// Runs a test on a thread of its own; a deadlock is a failure, and not a test that never ends.
fn without_deadlock(test: impl FnOnce() + Send + 'static) {
    let (ended, ends) = mpsc::channel();
    let thread = std::thread::spawn(move || {
        test();
        let _ = ended.send(());
    });
    match ends.recv_timeout(Duration::from_secs(30)) {
        Ok(()) | Err(mpsc::RecvTimeoutError::Disconnected) => thread.join().expect("the test passes"),
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("a deadlock"),
    }
}

fn paused_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
}

/// A way back to a semaphore from code that was given to it before it was there.
#[derive(Clone, Default)]
struct WayBack {
    semaphore: Arc<OnceLock<AdaptiveSemaphore>>,
    visits: Arc<AtomicUsize>,
    inside: Arc<AtomicBool>,
}

impl WayBack {
    /// Does all that can be done without waiting.
    fn visit(&self) {
        let Some(semaphore) = self.semaphore.get() else { return };
        // What it does is told to recorders too, and would be without end.
        if self.visits() > 30 || self.inside.swap(true, Ordering::SeqCst) {
            return;
        }
        self.visits.fetch_add(1, Ordering::SeqCst);
        let _ = (semaphore.state(), format!("{semaphore:?}"), semaphore.clone());
        if let Poll::Ready(Ok(lease)) = poll_once(pin!(semaphore.try_acquire())) {
            let _ = lease.is_live();
            lease.release(Outcome::Success);
        }
        let mut waits = Box::pin(semaphore.acquire(Acquire::new()));
        let _ = poll_once(waits.as_mut());
        drop(waits);
        let _ = poll_once(pin!(semaphore.flush()));
        let _ = poll_once(pin!(semaphore.refresh()));
        self.inside.store(false, Ordering::SeqCst);
    }

    fn visits(&self) -> usize {
        self.visits.load(Ordering::SeqCst)
    }
}

impl Recorder for WayBack {
    fn acquired(&self, _: Option<&str>, _: AcquireResult, _: Duration) {
        self.visit();
    }

    fn released(&self, _: Option<&str>, _: Outcome, _: Duration) {
        self.visit();
    }

    fn denied(&self, _: LastCause) {
        self.visit();
    }

    fn limit(&self, _: u32, _: Direction) {
        self.visit();
    }

    fn load(&self, _: Option<&str>, _: u32, _: u32) {
        self.visit();
    }

    fn exchanged(&self, _: Duration) {
        self.visit();
    }

    fn store_error(&self) {
        self.visit();
    }
}

#[test]
fn bi_4_code_of_the_user_can_call_back_into_what_called_it() {
    for remote in [false, true] {
        without_deadlock(move || {
            paused_runtime().block_on(async {
                let fleet = Fleet::new();
                let ways: [WayBack; 4] = Default::default();
                let [recorder, on_change, on_error, classifier] = ways.clone();
                let builder = fleet
                    .builder(4)
                    .fallback_local(2)
                    .recorder(recorder)
                    .on_limit_change(move |_| on_change.visit())
                    .on_error(move |_| on_error.visit());
                let wire = Remote::new(&fleet, Wire::Yields);
                let semaphore = match remote {
                    true => builder.build(wire.clone()).unwrap(),
                    false => builder.build(fleet.store.clone()).unwrap(),
                };
                ways.iter().for_each(|way| assert!(way.semaphore.set(semaphore.clone()).is_ok()));
                for _ in 0..3 {
                    let call = || async { Err::<(), _>(()) };
                    let _ = semaphore
                        .with_lease(Acquire::new(), call)
                        .outcome_on_error(|()| {
                            classifier.visit();
                            Outcome::Throttled
                        })
                        .await;
                    tokio::time::sleep(ms(11_000)).await;
                }
                let lease = semaphore.acquire(Acquire::new()).await.unwrap();
                fleet.evict(lease.token().unwrap());
                lease.lost().await;
                if remote {
                    wire.set(Mode::Down);
                    drop(semaphore.acquire(Acquire::new()).await.unwrap());
                    wire.set(Mode::Up);
                    tokio::time::sleep(ms(5_000)).await;
                }
                settled().await;
                let visits = ways.each_ref().map(WayBack::visits);
                assert!(visits.iter().all(|visits| *visits > 0), "{visits:?}");
                tokio::time::timeout(ms(5_000), semaphore.flush()).await.unwrap();
                assert_eq!((semaphore.state().waiting, semaphore.state().in_flight), (0, 1));
                drop(lease);
                settled().await;
                assert_eq!(fleet.held(), 0);
            });
        });
    }
}

/// A waker that looks at the semaphore before it wakes anyone.
struct Curious {
    way: WayBack,
    waker: Waker,
}

impl Wake for Curious {
    fn wake(self: Arc<Self>) {
        self.way.visit();
        self.waker.wake_by_ref();
    }
}

#[test]
fn bi_4_a_waker_can_call_back_too() {
    without_deadlock(|| {
        paused_runtime().block_on(async {
            let fleet = Fleet::new();
            let semaphore = fleet.builder(1).max_limit(1).build(fleet.store.clone()).unwrap();
            let way = WayBack::default();
            assert!(way.semaphore.set(semaphore.clone()).is_ok());
            let held = semaphore.try_acquire().await.unwrap();
            let mut waits = Box::pin(semaphore.acquire(Acquire::new()));
            let got = std::future::poll_fn(|context| {
                let curious = Curious { way: way.clone(), waker: context.waker().clone() };
                waits.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::new(curious))))
            });
            let got = tokio::join!(got, async {
                settled().await;
                held.release(Outcome::Success);
            })
            .0
            .unwrap();
            // And one that waits for the loss of a lease.
            let mut lost = Box::pin(got.lost());
            let lost = std::future::poll_fn(|context| {
                let curious = Curious { way: way.clone(), waker: context.waker().clone() };
                lost.as_mut().poll(&mut Context::from_waker(&Waker::from(Arc::new(curious))))
            });
            let before = way.visits();
            assert!(before > 0);
            let _ = tokio::join!(lost, async {
                settled().await;
                fleet.evict(got.token().unwrap());
            });
            assert!(way.visits() > before);
        });
    });
}

/// Panics at each thing that it is told, and counts them.
#[derive(Clone, Default)]
struct Explosive(Arc<AtomicUsize>);

impl Explosive {
    fn explode(&self, what: &str) -> ! {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("recorder: {what}")
    }
}

impl Recorder for Explosive {
    fn acquired(&self, _: Option<&str>, _: AcquireResult, _: Duration) {
        self.explode("acquired")
    }

    fn released(&self, _: Option<&str>, _: Outcome, _: Duration) {
        self.explode("released")
    }

    fn denied(&self, _: LastCause) {
        self.explode("denied")
    }

    fn paused(&self) {
        self.explode("paused")
    }

    fn limit(&self, _: u32, _: Direction) {
        self.explode("limit")
    }

    fn load(&self, _: Option<&str>, _: u32, _: u32) {
        self.explode("load")
    }

    fn exchanged(&self, _: Duration) {
        self.explode("exchanged")
    }

    fn store_error(&self) {
        self.explode("store error")
    }
}

/// Counts what it is told.
#[derive(Clone, Default)]
struct Counting(Arc<AtomicUsize>);

impl Recorder for Counting {
    fn acquired(&self, _: Option<&str>, _: AcquireResult, _: Duration) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

fn panics(troubles: &Troubles) -> Vec<(&'static str, String)> {
    let panicked = |trouble| match trouble {
        Trouble::Panicked { id: of, place, message } => {
            assert_eq!(of, id());
            Some((place, message))
        }
        _ => None,
    };
    troubles.all().into_iter().filter_map(panicked).collect()
}

#[tokio::test(start_paused = true)]
async fn bi_4_a_recorder_that_panics_is_reported_and_changes_nothing_else() {
    for over_a_wire in [false, true] {
        let (fleet, troubles) = (Fleet::new(), Troubles::default());
        let (explosive, counting) = (Explosive::default(), Counting::default());
        let builder = Valve::builder(ID)
            .clock(fleet.clock)
            .concurrency(Concurrency::Adaptive(Adaptive::new(1)))
            .recorder(explosive.clone())
            .recorder(counting.clone())
            .on_error(troubles.note());
        let wire = Remote::new(&fleet, Wire::Short);
        let valve = match over_a_wire {
            true => builder.build(wire.clone()).unwrap(),
            false => builder.build(fleet.store.clone()).unwrap(),
        };
        let mut events = valve.events();
        let permit = valve.try_acquire(Job::new()).await.unwrap();
        assert!(valve.try_acquire(Job::new()).await.is_err());
        permit.release(Outcome::Throttled);
        valve.flush().await;
        valve.pause(ms(500)).await.unwrap();
        tokio::time::sleep(ms(5_000)).await;
        assert_eq!(events.next().await, Some(tidegate::Event::Paused { length: ms(500) }));
        assert_eq!(events.next().await, Some(tidegate::Event::Resumed), "events go on");
        if over_a_wire {
            wire.set(Mode::Down);
            assert_eq!(valve.refresh().await.unwrap_err().code(), "unavailable");
            wire.set(Mode::Up);
        }
        let said = panics(&troubles);
        assert_eq!(said.len(), explosive.0.load(Ordering::SeqCst), "each is reported");
        assert!(said.iter().all(|(place, _)| *place == "recorder"));
        let mut expected = vec!["acquired", "released", "denied", "paused", "limit", "load"];
        if over_a_wire {
            expected.extend(["exchanged", "store error"]);
        }
        for what in expected {
            assert!(
                said.iter().any(|(_, message)| *message == format!("recorder: {what}")),
                "{what}: {said:?}"
            );
        }
        assert_eq!(counting.0.load(Ordering::SeqCst), 2, "the next recorder is told all the same");
        valve.try_acquire(Job::new()).await.unwrap().release(Outcome::Success);
        valve.flush().await;
        assert_eq!((fleet.held(), valve.stats().in_flight, valve.stats().granted), (0, 0, 2));
    }
}

#[tokio::test(start_paused = true)]
async fn bi_4_a_callback_that_panics_is_reported_and_told_again_the_next_time() {
    let (fleet, troubles) = (Fleet::new(), Troubles::default());
    let semaphore = fleet
        .builder(16)
        .on_limit_change(|limit| panic!("limit {limit}"))
        .on_error(troubles.note())
        .build(fleet.store.clone())
        .unwrap();
    for _ in 0..2 {
        semaphore.try_acquire().await.unwrap().release(Outcome::Throttled);
        tokio::time::sleep(ms(11_000)).await;
    }
    let expected = [("on_limit_change", "limit 8".to_owned()), ("on_limit_change", "limit 4".to_owned())];
    assert_eq!(panics(&troubles), expected);
    assert_eq!(semaphore.state().limit, 4);
}

#[tokio::test(start_paused = true)]
async fn bi_4_a_classifier_that_panics_is_a_failure_and_the_error_comes_back() {
    struct Indecisive;
    impl From<Indecisive> for Release {
        fn from(_: Indecisive) -> Self {
            panic!("no idea")
        }
    }
    let (fleet, troubles) = (Fleet::new(), Troubles::default());
    let released = Arc::new(Mutex::new(Vec::new()));
    struct Outcomes(Arc<Mutex<Vec<Outcome>>>);
    impl Recorder for Outcomes {
        fn released(&self, _: Option<&str>, outcome: Outcome, _: Duration) {
            self.0.lock().unwrap().push(outcome);
        }
    }
    let recorder = Outcomes(Arc::clone(&released));
    let semaphore =
        fleet.builder(16).recorder(recorder).on_error(troubles.note()).build(fleet.store.clone()).unwrap();
    let call = || async { Err::<(), _>("mine") };
    let answer = semaphore
        .with_lease(Acquire::new(), call)
        .outcome_on_error(|error| -> Outcome { panic!("at {error}") })
        .await;
    assert_eq!(answer, Err(tidegate::CallError::Call("mine")));
    let answer = semaphore.with_lease(Acquire::new(), call).outcome_on_error(|_| Indecisive).await;
    assert_eq!(answer, Err(tidegate::CallError::Call("mine")));
    let expected = [("outcome_on_error", "at mine".to_owned()), ("outcome_on_error", "no idea".to_owned())];
    assert_eq!(panics(&troubles), expected);
    assert_eq!(*released.lock().unwrap(), [Outcome::Failure, Outcome::Failure]);
    assert_eq!((semaphore.state().limit, fleet.held()), (16, 0));
}

#[tokio::test(start_paused = true)]
async fn bi_4_a_panic_while_a_call_unwinds_lets_it_go_on_unwinding() {
    let (fleet, troubles) = (Fleet::new(), Troubles::default());
    let explosive = Explosive::default();
    let semaphore = fleet
        .builder(16)
        .recorder(explosive.clone())
        .on_error(troubles.note())
        .build(fleet.store.clone())
        .unwrap();
    let caller = semaphore.clone();
    let call = tokio::spawn(async move {
        let call = || async { panic!("the call's own") };
        let _: Result<(), tidegate::CallError<()>> = caller.with_lease(Acquire::new(), call).await;
    });
    let panic = call.await.unwrap_err().into_panic();
    assert_eq!(*panic.downcast_ref::<&str>().unwrap(), "the call's own");
    assert!(panics(&troubles).iter().any(|(_, message)| message == "recorder: released"));
    assert_eq!((semaphore.state().in_flight, fleet.held()), (0, 0));
}

/// A bomb that goes off when it is thrown away.
struct Bomb(Arc<AtomicUsize>);

impl Drop for Bomb {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("and another one")
    }
}

#[tokio::test(start_paused = true)]
async fn bi_4_whatever_is_thrown_is_caught() {
    let (fleet, troubles) = (Fleet::new(), Troubles::default());
    let dropped = Arc::new(AtomicUsize::new(0));
    let bombs = Arc::clone(&dropped);
    let semaphore = fleet
        .builder(16)
        .on_limit_change(move |limit| match limit {
            8 => panic_any(Bomb(Arc::clone(&bombs))),
            _ => panic_any(7_u32),
        })
        .on_error(troubles.note())
        .build(fleet.store.clone())
        .unwrap();
    for _ in 0..2 {
        semaphore.try_acquire().await.unwrap().release(Outcome::Throttled);
        tokio::time::sleep(ms(11_000)).await;
    }
    let expected =
        [("on_limit_change", "no message".to_owned()), ("on_limit_change", "no message".to_owned())];
    assert_eq!(panics(&troubles), expected);
    assert_eq!(dropped.load(Ordering::SeqCst), 1);
    assert_eq!(semaphore.state().limit, 4);
}
