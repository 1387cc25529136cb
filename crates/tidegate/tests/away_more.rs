//! The rarer turns of a store that is away: answers that break the contract on the synchronous path, answers that come
//! very late, pauses that could not be told, losses of much, and runtimes that end.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

#[path = "support/fleet.rs"]
mod fleet;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use fleet::{Fleet, Troubles, ms};
use tidegate::{
    Acquire, AcquireError, Adaptive, AdaptiveSemaphore, Aimd, Capabilities, Concurrency, ControlError, Id,
    Job, LastCause, MemoryStore, Outcome, Rule, SemaphoreBuilder, Store, StoreError, Trouble, Valve,
    ValveBuilder,
    contract::{
        AcquireReply, AcquireRequest, Acquired, Answer, Brief, Denial, Exchange, ExchangeReply, Member,
        PauseReply, Release, Renewal, Renewed, Reply, Restore, ScopedDenial, ScopedReply, ScopedRequest,
        SyncPath, time::Moment,
    },
};
use tidegate_testkit::faulty::{Fault, Faulty, Garbage, Handle, Operation};
use tokio::time::{Instant, sleep, timeout};

const SECOND: Duration = Duration::from_secs(1);

/// A store that stands in for a remote one, and what is done to it.
fn remote(fleet: &Fleet) -> (Faulty<MemoryStore>, Handle) {
    let store = Faulty::new(fleet.store.clone()).sleeping(tokio::time::sleep);
    let handle = store.handle();
    (store, handle)
}

fn semaphore(
    fleet: &Fleet,
    initial: u32,
    with: impl FnOnce(SemaphoreBuilder) -> SemaphoreBuilder,
) -> (AdaptiveSemaphore, Handle) {
    let (store, handle) = remote(fleet);
    (with(fleet.builder(initial)).build(store).unwrap(), handle)
}

fn valve(fleet: &Fleet, with: impl FnOnce(ValveBuilder) -> ValveBuilder) -> (Valve, Handle) {
    let (store, handle) = remote(fleet);
    (with(Valve::builder(fleet::ID)).clock(fleet.clock).build(store).unwrap(), handle)
}

fn within(timeout: u64) -> Acquire {
    Acquire::within(ms(timeout))
}

fn waits(timeout: u64) -> Job {
    Job::new().timeout(ms(timeout))
}

fn is_unavailable(error: &AcquireError) -> bool {
    matches!(error, AcquireError::Unavailable { .. })
}

// ---- answers that break the contract on the synchronous path --------------------------------------------------------

/// How the next answer of the synchronous path breaks the contract.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wrong {
    TwoGrants,
    NoAnswer,
    ZeroHint,
    GrantInPause,
}

/// The memory store with a synchronous path that answers wrongly when it is told to.
#[derive(Clone)]
struct Garbling {
    inner: MemoryStore,
    next: Arc<Mutex<Option<Wrong>>>,
}

struct GarblingPath {
    inner: Arc<dyn SyncPath>,
    next: Arc<Mutex<Option<Wrong>>>,
}

impl GarblingPath {
    fn take(&self) -> Option<Wrong> {
        self.next.lock().unwrap().take()
    }

    fn spoil(&self, wrong: Wrong, member: &Member, reply: &mut AcquireReply, paused_ms: &mut u64) {
        match wrong {
            Wrong::TwoGrants => {
                let request =
                    AcquireRequest { class: None, jobs: vec![<_>::default()], line: <_>::default() };
                let more = self.inner.acquire(member, &request).unwrap().body.grants;
                assert_eq!((reply.grants.len(), more.len()), (1, 1));
                reply.grants.extend(more);
            }
            Wrong::NoAnswer => (reply.grants, reply.denied) = (Vec::new(), None),
            Wrong::ZeroHint => {
                reply.grants.clear();
                reply.denied = Some(Denial { hint_ms: 0, lease_blocked: true, rule: None });
            }
            Wrong::GrantInPause => *paused_ms = 1_000,
        }
    }
}

impl SyncPath for GarblingPath {
    fn now(&self) -> Moment {
        self.inner.now()
    }

    fn acquire_one(&self, member: &Member, tier: usize, known: u64) -> Option<Brief> {
        let plain = self.next.lock().unwrap().is_none();
        if plain { self.inner.acquire_one(member, tier, known) } else { None }
    }

    fn acquire(&self, member: &Member, request: &AcquireRequest) -> Result<Reply<AcquireReply>, StoreError> {
        let mut reply = self.inner.acquire(member, request)?;
        if let Some(wrong) = self.take() {
            self.spoil(wrong, member, &mut reply.body, &mut reply.head.paused_ms);
        }
        Ok(reply)
    }

    fn acquire_scoped(
        &self,
        member: &Member,
        request: &ScopedRequest,
    ) -> Result<Reply<ScopedReply>, StoreError> {
        let mut reply = self.inner.acquire_scoped(member, request)?;
        match self.take() {
            None => {}
            Some(Wrong::TwoGrants) => {
                let more = self.inner.acquire_scoped(member, request).unwrap().body.grants;
                reply.body.grants.extend(more);
            }
            Some(Wrong::NoAnswer) => reply.body = ScopedReply::default(),
            Some(Wrong::ZeroHint) => {
                let denial = Denial { hint_ms: 0, lease_blocked: true, rule: None };
                reply.body =
                    ScopedReply { denied: vec![ScopedDenial { index: 0, denial }], ..ScopedReply::default() };
            }
            Some(Wrong::GrantInPause) => reply.head.paused_ms = 1_000,
        }
        Ok(reply)
    }

    fn release(&self, member: &Member, releases: &[Release]) -> Result<Reply<()>, StoreError> {
        self.inner.release(member, releases)
    }

    fn exchange(&self, member: &Member, exchange: &Exchange) -> Result<Reply<ExchangeReply>, StoreError> {
        let mut reply = self.inner.exchange(member, exchange)?;
        if exchange.acquires.is_empty() {
            return Ok(reply);
        }
        if let Some(wrong) = self.take() {
            for acquired in reply.body.acquired.iter_mut().flatten() {
                if let Acquired::Prefix(body) = acquired {
                    self.spoil(wrong, member, body, &mut reply.head.paused_ms);
                }
            }
        }
        Ok(reply)
    }
}

impl Store for Garbling {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn acquire<'a>(&'a self, member: &'a Member, request: &'a AcquireRequest) -> Answer<'a, AcquireReply> {
        self.inner.acquire(member, request)
    }

    fn pause<'a>(&'a self, id: &'a Id, length: Duration) -> Answer<'a, PauseReply> {
        self.inner.pause(id, length)
    }

    fn resume<'a>(&'a self, id: &'a Id) -> Answer<'a, bool> {
        self.inner.resume(id)
    }

    fn renew<'a>(
        &'a self,
        member: &'a Member,
        restore: Option<&'a Restore>,
        renewals: &'a [Renewal],
    ) -> Answer<'a, Renewed> {
        self.inner.renew(member, restore, renewals)
    }

    fn exchange<'a>(&'a self, member: &'a Member, exchange: &'a Exchange) -> Answer<'a, ExchangeReply> {
        self.inner.exchange(member, exchange)
    }

    fn sync_path(&self, id: &Id) -> Option<Arc<dyn SyncPath>> {
        let inner = self.inner.sync_path(id)?;
        Some(Arc::new(GarblingPath { inner, next: Arc::clone(&self.next) }))
    }
}

fn garbling(fleet: &Fleet) -> Garbling {
    Garbling { inner: fleet.store.clone(), next: Arc::default() }
}

const WRONG: [Wrong; 4] = [Wrong::TwoGrants, Wrong::NoAnswer, Wrong::ZeroHint, Wrong::GrantInPause];

#[tokio::test(start_paused = true)]
async fn un_1_a_wrong_answer_of_the_synchronous_path_is_a_store_error_and_its_leases_are_released() {
    for wrong in WRONG {
        let fleet = Fleet::new();
        let store = garbling(&fleet);
        let troubles = Troubles::default();
        let builder = AdaptiveSemaphore::builder(fleet::ID, 5).on_error(troubles.note());
        let semaphore = builder.build(store.clone()).unwrap();
        semaphore.acquire(within(1_000)).await.unwrap().release(Outcome::Success);
        *store.next.lock().unwrap() = Some(wrong);
        let error = semaphore.acquire(within(5_000)).await.unwrap_err();
        assert!(is_unavailable(&error), "{wrong:?}: {error:?}");
        assert_eq!(troubles.codes(), ["unavailable"], "{wrong:?}");
        let known_lost = u32::from(matches!(wrong, Wrong::NoAnswer | Wrong::ZeroHint));
        sleep(SECOND * 3).await;
        assert_eq!(troubles.codes(), ["unavailable", "available"], "{wrong:?}");
        assert_eq!(fleet.held(), known_lost, "{wrong:?}: what the answer names is given back");
        assert_eq!(semaphore.state().in_flight, 0, "{wrong:?}");
        semaphore.acquire(within(1_000)).await.unwrap().release(Outcome::Success);
    }
}

#[tokio::test(start_paused = true)]
async fn un_1_a_wrong_answer_about_a_scoped_job_is_a_store_error_and_its_leases_are_released() {
    for wrong in WRONG {
        let fleet = Fleet::new();
        let store = garbling(&fleet);
        let rule = Rule::token_bucket(100, SECOND).scoped("tenant");
        let builder = Valve::builder(fleet::ID).rule(rule).concurrency(Concurrency::Global(5));
        let valve = builder.build(store.clone()).unwrap();
        let job = || waits(5_000).scope("tenant", "acme");
        valve.acquire(job()).await.unwrap().release(Outcome::Success);
        *store.next.lock().unwrap() = Some(wrong);
        let error = valve.acquire(job()).await.unwrap_err();
        assert!(is_unavailable(&error), "{wrong:?}: {error:?}");
        let known_lost = u32::from(matches!(wrong, Wrong::NoAnswer | Wrong::ZeroHint));
        sleep(SECOND * 3).await;
        assert_eq!(fleet.held(), known_lost, "{wrong:?}: what the answer names is given back");
        valve.acquire(job()).await.unwrap().release(Outcome::Success);
    }
}

#[tokio::test(start_paused = true)]
async fn un_1_a_wrong_answer_to_an_exchange_on_the_spot_is_a_store_error_and_its_leases_are_released() {
    for wrong in WRONG {
        let fleet = Fleet::new();
        let store = garbling(&fleet);
        let semaphore = AdaptiveSemaphore::builder(fleet::ID, 2).build(store.clone()).unwrap();
        let first = semaphore.acquire(within(1_000)).await.unwrap();
        let second = semaphore.acquire(within(1_000)).await.unwrap();
        let waiting = tokio::spawn({
            let semaphore = semaphore.clone();
            async move { semaphore.acquire(within(20_000)).await }
        });
        fleet::settled().await;
        assert_eq!(semaphore.state().waiting, 1);
        // Both slots are free when the garbling path answers the one that waits.
        let other = fleet.process(2);
        *store.next.lock().unwrap() = Some(wrong);
        fleet.evict(fleet.leases()[1].token);
        first.release(Outcome::Success);
        let error = waiting.await.unwrap().unwrap_err();
        assert!(is_unavailable(&error), "{wrong:?}: {error:?}");
        drop(second);
        let known_lost = u32::from(matches!(wrong, Wrong::NoAnswer | Wrong::ZeroHint));
        sleep(SECOND * 3).await;
        assert_eq!(fleet.held(), known_lost, "{wrong:?}: what the answer names is given back");
        other.acquire(within(1_000)).await.unwrap().release(Outcome::Success);
        semaphore.acquire(within(1_000)).await.unwrap().release(Outcome::Success);
    }
}

// ---- answers that come very late -------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn un_4_an_answer_that_was_lost_for_long_brings_no_pause() {
    for (late, length, paused) in [(ms(500), 30, true), (SECOND * 10, 30, false)] {
        let fleet = Fleet::new();
        let (valve, handle) =
            valve(&fleet, |builder| builder.concurrency(Concurrency::Global(5)).fallback_local(1));
        // No push says how things stand: only answers do.
        handle.cut();
        valve.acquire(Job::new()).await.unwrap().release(Outcome::Success);
        valve.flush().await;
        let other = fleet.process_valve(5);
        other.pause(SECOND * length).await.unwrap();
        handle.script_of(Operation::Exchange, [Fault::LostThenError]);
        handle.away();
        let job = tokio::spawn({
            let valve = valve.clone();
            async move { valve.acquire(waits(20_000)).await }
        });
        sleep(late).await;
        other.resume().await.unwrap();
        // The answer is the one that was given in the pause; what comes after it says that there is none.
        let mut events = valve.events();
        handle.back();
        let heard = timeout(SECOND * 5, async {
            loop {
                if matches!(events.next().await, Some(tidegate::Event::Paused { .. })) {
                    return;
                }
            }
        });
        assert_eq!(heard.await.is_ok(), paused, "{late:?} after it was sent");
        drop(job.await.unwrap().unwrap());
    }
}

#[tokio::test(start_paused = true)]
async fn un_4_an_answer_that_was_lost_for_long_brings_no_limit_that_was_moved_since() {
    let fleet = Fleet::new();
    let limits = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&limits);
    let (process, handle) = semaphore(&fleet, 10, |builder| {
        builder.on_limit_change(move |limit| told.lock().unwrap().push(limit))
    });
    process.acquire(within(1_000)).await.unwrap().release(Outcome::Success);
    process.flush().await;
    fleet.set_limit(20);
    handle.script_of(Operation::Exchange, [Fault::LostThenError]);
    handle.away();
    process.acquire(within(1_000)).await.unwrap_err();
    sleep(SECOND * 5).await;
    // Heard of through the subscription, which still stands.
    fleet.set_limit(30);
    sleep(SECOND).await;
    handle.back();
    sleep(SECOND * 5).await;
    assert_eq!(process.state().limit, 30);
    assert_eq!(*limits.lock().unwrap(), [20, 30], "it never went back to what the late answer says");
}

#[tokio::test(start_paused = true)]
async fn un_4_an_answer_that_was_lost_for_long_denies_nobody() {
    let fleet = Fleet::new();
    let back_at = Arc::new(Mutex::new(None));
    let told = Arc::clone(&back_at);
    let (process, handle) = semaphore(&fleet, 2, |builder| {
        builder.fallback_local(1).on_error(move |trouble| {
            if matches!(trouble, Trouble::StoreBack { .. }) {
                *told.lock().unwrap() = Some(Instant::now());
            }
        })
    });
    // No push says that there is room.
    handle.cut();
    let other = fleet.process(2);
    let theirs = other.acquire(within(1_000)).await.unwrap();
    // What the store granted before counts for this process's own limit.
    let first = process.acquire(within(1_000)).await.unwrap();
    handle.script_of(Operation::Exchange, [Fault::LostThenError]);
    handle.away();
    let second = tokio::spawn({
        let process = process.clone();
        async move {
            let lease = process.acquire(within(30_000)).await;
            (lease, Instant::now())
        }
    });
    sleep(SECOND * 5).await;
    theirs.release(Outcome::Success);
    handle.back();
    let (second, granted_at) = second.await.unwrap();
    assert!(!second.unwrap().is_local());
    // It asks for itself, and does not wait for what the old denial says.
    assert_eq!(Some(granted_at), *back_at.lock().unwrap());
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn un_4_a_settlement_in_an_exchange_that_cannot_be_asked_for_again_is_not_sent_again() {
    let fleet = Fleet::new();
    let troubles = Troubles::default();
    let rule = Rule::token_bucket(100, Duration::from_secs(86_400)).named("tokens");
    let (valve, handle) = valve(&fleet, |builder| builder.rule(rule).on_error(troubles.note()));
    let permit = valve.acquire(Job::new().cost("tokens", 10)).await.unwrap();
    handle.script_of(Operation::Exchange, [Fault::Garbage(Garbage::MoreGrants)]);
    // Both go in one exchange, which is carried out, and whose answer breaks the contract.
    let mut asking = std::pin::pin!(valve.acquire(Job::new().cost("tokens", 1)));
    assert!(fleet::poll_once(asking.as_mut()).is_pending());
    permit.settle("tokens", 40).release(Outcome::Success);
    assert!(is_unavailable(&asking.await.unwrap_err()));
    sleep(SECOND * 5).await;
    valve.flush().await;
    assert_eq!(fleet.snapshot().rules[0].level, Some(59), "10 less, then 30 less and 1 less, once");
    assert!(troubles.codes().contains(&"undelivered"), "it is not known to have arrived");
}

#[tokio::test(start_paused = true)]
async fn un_4_a_grant_whose_time_has_passed_goes_to_nobody() {
    let fleet = Fleet::new();
    let (process, handle) =
        semaphore(&fleet, 5, |builder| builder.fallback_local(1).lease_ttl(SECOND * 2).op_timeout(SECOND));
    process.acquire(within(1_000)).await.unwrap().release(Outcome::Success);
    process.flush().await;
    handle.script_of(Operation::Exchange, [Fault::LostThenError]);
    handle.away();
    let first = process.acquire(within(1_000)).await.unwrap();
    assert!(first.is_local());
    assert_eq!(fleet.held(), 1, "what it asked the store for was granted, and lost on the way");
    // This one waits for the same, so that the lost grant would be its own.
    let second = tokio::spawn({
        let process = process.clone();
        async move { process.acquire(within(30_000)).await }
    });
    sleep(SECOND * 5).await;
    handle.back();
    let second = second.await.unwrap().unwrap();
    assert!(!second.is_local() && second.is_live(), "its own grant, not one that has lapsed");
    let grants = second.fence().unwrap();
    assert!(grants >= fleet.now().micros() - 3_000_000, "and not the old one");
    drop((first, second));
    process.flush().await;
    assert_eq!(fleet.held(), 0);
}

// ---- granted alone -----------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn un_3_a_permit_of_a_fallback_with_rules_alone_is_counted_where_the_policy_has_a_bound() {
    let adaptive = || Concurrency::Adaptive(Adaptive::new(3));
    for concurrency in [Concurrency::Global(3), adaptive()] {
        let fleet = Fleet::new();
        let rule = Rule::token_bucket(100, SECOND);
        let (valve, handle) = valve(&fleet, |builder| {
            builder.rule(rule.clone()).fallback_rule(rule.clone()).concurrency(concurrency)
        });
        handle.away();
        let mut alone = Vec::new();
        for _ in 0..4 {
            let permit = valve.acquire(Job::new()).await.unwrap();
            assert!(permit.is_local(), "rules alone bound no concurrency");
            alone.push(permit);
        }
        handle.back();
        sleep(SECOND * 3).await;
        assert_eq!(fleet.held(), 4, "counted, above the limit of 3");
        let error = valve.try_acquire(Job::new()).await.unwrap_err();
        assert!(
            matches!(error, AcquireError::Timeout { last: LastCause::Slots, local: false, .. }),
            "{error:?}"
        );
        sleep(SECOND * 60).await;
        assert_eq!(fleet.held(), 4, "and renewed");
        drop(alone);
        valve.flush().await;
        assert_eq!(fleet.held(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn un_3_a_permit_of_a_fallback_is_not_counted_where_the_policy_has_no_bound() {
    let fleet = Fleet::new();
    let rule = Rule::token_bucket(100, SECOND);
    let (valve, handle) = valve(&fleet, |builder| builder.rule(rule.clone()).fallback_rule(rule.clone()));
    valve.acquire(Job::new()).await.unwrap().release(Outcome::Success);
    handle.away();
    let alone = valve.acquire(Job::new()).await.unwrap();
    assert!(alone.is_local());
    handle.back();
    sleep(SECOND * 3).await;
    assert_eq!((fleet.held(), handle.calls(Operation::HandOver)), (0, 0));
    alone.release(Outcome::Success);
    valve.flush().await;
}

#[tokio::test(start_paused = true)]
async fn un_8_a_throttle_of_a_lease_granted_alone_lowers_the_limit_within_the_cooldown_and_not_after() {
    for (away_for, limit) in [(3, 5), (15, 10)] {
        let fleet = Fleet::new();
        let (process, handle) = semaphore(&fleet, 10, |builder| {
            builder.fallback_local(3).aimd(Aimd::new().cooldown(SECOND * 10))
        });
        // The limit is there before: it was seeded by the first.
        process.acquire(within(1_000)).await.unwrap().release(Outcome::Success);
        process.flush().await;
        handle.away();
        let alone = process.acquire(within(1_000)).await.unwrap();
        assert!(alone.is_local());
        alone.release(Outcome::Throttled);
        process.acquire(within(1_000)).await.unwrap().release(Outcome::Throttled);
        process.acquire(within(1_000)).await.unwrap().release(Outcome::Failure);
        sleep(SECOND * away_for).await;
        assert_eq!(fleet.limit(), 10, "not told yet");
        handle.back();
        process.flush().await;
        assert_eq!(fleet.limit(), limit, "told after {away_for} s, with a cooldown of 10 s");
        assert_eq!(fleet.held(), 0, "it held no slot there, and none rests");
    }
}

// ---- losses --------------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn st_18_more_leases_than_one_exchange_takes_are_all_taken_back_after_a_loss() {
    const LEASES: u32 = 2_300;
    let fleet = Fleet::new();
    let (process, _handle) = semaphore(&fleet, LEASES, |builder| builder.max_limit(10_000));
    let calls: Vec<_> = (0..LEASES)
        .map(|_| {
            let process = process.clone();
            tokio::spawn(async move { process.acquire(within(10_000)).await })
        })
        .collect();
    let mut leases = Vec::new();
    for call in calls {
        leases.push(call.await.unwrap().unwrap());
    }
    assert_eq!(fleet.held(), LEASES);
    sleep(SECOND * 12).await;
    fleet.store.wipe();
    sleep(SECOND * 45).await;
    assert_eq!(fleet.held(), LEASES, "all are counted again");
    assert!(leases.iter().all(tidegate::Lease::is_live));
    assert!(process.try_acquire().await.is_err(), "and the bound holds");
    drop(leases);
    process.flush().await;
    assert_eq!(fleet.held(), 0);
}

#[tokio::test(start_paused = true)]
async fn st_18_an_answer_of_a_state_that_was_lost_meanwhile_is_not_taken_for_another_loss() {
    let fleet = Fleet::new();
    let troubles = Troubles::default();
    let (process, handle) = semaphore(&fleet, 5, |builder| builder.on_error(troubles.note()));
    let before = process.acquire(within(1_000)).await.unwrap();
    handle.script_of(Operation::Exchange, [Fault::SlowReply(ms(700))]);
    let asking = tokio::spawn({
        let process = process.clone();
        async move { process.acquire(within(5_000)).await }
    });
    fleet::settled().await;
    assert_eq!(fleet.held(), 2, "granted, and on its way");
    sleep(ms(100)).await;
    fleet.store.wipe();
    // There is a new state, of which this process hears before the old answer comes.
    fleet.store.pause(&fleet::id(), ms(1)).await.unwrap();
    process.refresh().await.unwrap();
    assert_eq!(troubles.codes(), ["state_lost"]);
    let lease = asking.await.unwrap().unwrap();
    sleep(SECOND * 3).await;
    assert_eq!(troubles.codes(), ["state_lost"], "once");
    assert_eq!(fleet.held(), 2, "what the old state had granted is taken up too");
    assert!(before.is_live() && lease.is_live());
}

// ---- pauses --------------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn va_4_nobody_asks_for_a_grant_while_a_pause_of_this_process_is_unsent() {
    let fleet = Fleet::new();
    let (valve, handle) = valve(&fleet, |builder| builder.rule(Rule::token_bucket(1_000, SECOND)));
    valve.acquire(Job::new()).await.unwrap().release(Outcome::Success);
    handle.script_of(Operation::Pause, [Fault::Hang]);
    let telling = tokio::spawn({
        let valve = valve.clone();
        async move { valve.pause(SECOND * 20).await }
    });
    fleet::settled().await;
    let start = Instant::now();
    let once = valve.try_acquire(Job::new()).await.unwrap_err();
    assert!(matches!(once, AcquireError::Timeout { last: LastCause::Pause, .. }), "{once:?}");
    let waiting = tokio::spawn({
        let valve = valve.clone();
        async move { valve.acquire(waits(30_000)).await }
    });
    sleep(ms(900)).await;
    assert_eq!(fleet.snapshot().paused_ms, 0, "the store does not know yet");
    assert!(!waiting.is_finished(), "held back all the same");
    // Telling it fails, which is known to the caller, to whoever waits, and to nobody as a limit.
    let told = telling.await.unwrap().unwrap_err();
    assert!(matches!(told, ControlError::Unavailable { .. }), "{told:?}");
    assert!(is_unavailable(&waiting.await.unwrap().unwrap_err()));
    // It is probed, and told with what is left.
    sleep(ms(500)).await;
    let left = Duration::from_millis(fleet.snapshot().paused_ms);
    let over_in = SECOND * 20 - start.elapsed();
    assert!(left <= over_in && left + ms(2) >= over_in, "{left:?} are left of {over_in:?}");
    let permit = valve.acquire(waits(30_000)).await.unwrap();
    assert!(start.elapsed() >= SECOND * 20, "after {:?}", start.elapsed());
    drop(permit);
}

#[tokio::test(start_paused = true)]
async fn va_4_a_pause_while_the_store_is_away_holds_here_at_once_and_reaches_the_store_when_it_is_back() {
    for fallback in [None, Some(4)] {
        let fleet = Fleet::new();
        let (valve, handle) = valve(&fleet, |builder| {
            let builder = builder.concurrency(Concurrency::Global(5));
            match fallback {
                Some(limit) => builder.fallback_local(limit),
                None => builder,
            }
        });
        valve.acquire(Job::new()).await.unwrap().release(Outcome::Success);
        valve.flush().await;
        handle.away();
        let start = Instant::now();
        assert!(valve.pause(SECOND * 30).await.is_err());
        let error = valve.try_acquire(Job::new()).await.unwrap_err();
        match fallback {
            None => assert!(is_unavailable(&error), "{error:?}"),
            Some(_) => assert!(
                matches!(error, AcquireError::Timeout { last: LastCause::Pause, local: true, .. }),
                "{error:?}"
            ),
        }
        sleep(SECOND * 10).await;
        assert_eq!(fleet.snapshot().paused_ms, 0);
        handle.back();
        sleep(SECOND * 3).await;
        let left = Duration::from_millis(fleet.snapshot().paused_ms);
        let over_in = SECOND * 30 - start.elapsed();
        assert!(left <= over_in && left + ms(2) >= over_in, "{left:?} are left of {over_in:?}");
        let other = fleet.process_valve(5);
        let error = other.try_acquire(Job::new()).await.unwrap_err();
        assert!(matches!(error, AcquireError::Timeout { last: LastCause::Pause, .. }), "{error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn va_4_a_resume_while_the_store_is_away_fails_for_its_caller_and_ends_no_later_pause() {
    let fleet = Fleet::new();
    let (valve, handle) =
        valve(&fleet, |builder| builder.concurrency(Concurrency::Global(5)).fallback_local(5));
    valve.pause(SECOND * 30).await.unwrap();
    handle.away();
    let error = valve.resume().await.unwrap_err();
    assert!(matches!(error, ControlError::Unavailable { .. }), "{error:?}");
    assert!(valve.try_acquire(Job::new()).await.unwrap().is_local(), "this process goes on at once");
    handle.back();
    sleep(SECOND * 3).await;
    assert!(fleet.snapshot().paused_ms > 0, "it is for the caller to try again");
    assert!(valve.resume().await.unwrap());
    assert_eq!(fleet.snapshot().paused_ms, 0);
}

#[tokio::test(start_paused = true)]
async fn va_4_a_resume_whose_caller_is_gone_is_told_all_the_same() {
    let fleet = Fleet::new();
    let (valve, handle) = valve(&fleet, |builder| builder.concurrency(Concurrency::Global(5)));
    valve.pause(SECOND * 30).await.unwrap();
    handle.script_of(Operation::Resume, [Fault::Hang]);
    assert!(timeout(ms(10), valve.resume()).await.is_err());
    sleep(SECOND).await;
    assert_eq!(fleet.snapshot().paused_ms, 0);
}

// ---- which error ---------------------------------------------------------------------------------------------------------

#[tokio::test(start_paused = true)]
async fn un_5_a_job_whose_time_is_up_behind_a_hanging_exchange_met_an_outage_and_no_limit() {
    for hangs in [Fault::Hang, Fault::LostThenHang, Fault::SlowReply(ms(900))] {
        let fleet = Fleet::new();
        let (process, handle) = semaphore(&fleet, 1, |builder| builder);
        handle.script_of(Operation::Exchange, [hangs.clone()]);
        let first = tokio::spawn({
            let process = process.clone();
            async move { process.acquire(within(20_000)).await }
        });
        fleet::settled().await;
        let start = Instant::now();
        let second = process.acquire(within(100)).await;
        let answered = matches!(hangs, Fault::SlowReply(_));
        match second.unwrap_err() {
            // The store said something about those ahead of it, and about it, in time.
            AcquireError::Timeout { last: LastCause::Slots, local: false, .. } if answered => {}
            error if is_unavailable(&error) && !answered => {}
            error => panic!("{hangs:?}: {error:?}"),
        }
        assert!(start.elapsed() <= SECOND, "{hangs:?}: bounded by one operation, {:?}", start.elapsed());
        assert_eq!(first.await.unwrap().is_ok(), answered, "{hangs:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn un_5_a_job_that_a_bound_of_this_process_held_up_met_a_limit_though_the_store_hangs() {
    let fleet = Fleet::new();
    let (valve, handle) = valve(&fleet, |builder| {
        builder.rule(Rule::token_bucket(1_000, SECOND)).concurrency(Concurrency::Local(1))
    });
    let permit = valve.acquire(Job::new()).await.unwrap();
    handle.away_with(Fault::Hang);
    let error = valve.acquire(waits(100)).await.unwrap_err();
    assert!(matches!(error, AcquireError::Timeout { last: LastCause::Slots, .. }), "{error:?}");
    permit.release(Outcome::Success);
    let error = valve.acquire(waits(100)).await.unwrap_err();
    assert!(is_unavailable(&error), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn un_5_a_job_that_this_process_alone_has_denied_says_so_though_the_store_is_back() {
    let fleet = Fleet::new();
    let (process, handle) = semaphore(&fleet, 5, |builder| builder.fallback_local(1).op_timeout(SECOND * 30));
    handle.away();
    let first = process.acquire(within(1_000)).await.unwrap();
    let waits = |process: &AdaptiveSemaphore, timeout| {
        let process = process.clone();
        tokio::spawn(async move { process.acquire(within(timeout)).await })
    };
    // The second is denied here, and the third with it, without being asked for.
    let second = waits(&process, 20_000);
    fleet::settled().await;
    let third = waits(&process, 5_000);
    fleet::settled().await;
    handle.back();
    // The probe is answered, and what asks for both is not.
    handle.script_of(Operation::Exchange, [Fault::None, Fault::Hang]);
    let error = third.await.unwrap().unwrap_err();
    assert!(matches!(error, AcquireError::Timeout { last: LastCause::Slots, local: true, .. }), "{error:?}");
    assert_eq!(handle.scripted(), 0, "the store was back, and asked");
    second.abort();
    drop(first);
}

// ---- the task and the outbox -----------------------------------------------------------------------------------------------

#[test]
fn un_3_a_driver_whose_runtime_ended_is_started_again_by_the_next_caller_and_probes() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let store = Faulty::new(MemoryStore::new());
    let handle = store.handle();
    let semaphore = AdaptiveSemaphore::builder(fleet::ID, 2).build(store).unwrap();
    runtime().block_on(async {
        semaphore.acquire(within(1_000)).await.unwrap().release(Outcome::Success);
        handle.away();
        assert!(is_unavailable(&semaphore.acquire(within(1_000)).await.unwrap_err()));
    });
    // That runtime has ended, and with it the one that probes.
    let before = handle.all_calls();
    std::thread::sleep(ms(300));
    assert_eq!(handle.all_calls(), before, "no one is there to probe");
    handle.back();
    runtime().block_on(async {
        let granted = async {
            loop {
                match semaphore.acquire(within(1_000)).await {
                    Ok(lease) => return lease,
                    Err(error) => assert!(is_unavailable(&error), "{error:?}"),
                }
                sleep(ms(5)).await;
            }
        };
        timeout(SECOND * 10, granted).await.expect("someone probes").release(Outcome::Success);
        timeout(SECOND * 10, semaphore.flush()).await.expect("and delivers");
    });
}

#[tokio::test(start_paused = true)]
async fn un_8_what_waits_to_be_delivered_is_bounded_the_oldest_go_and_that_is_reported() {
    const KEPT: u64 = 100_000;
    const OVER: u64 = 250;
    let fleet = Fleet::new();
    let troubles = Troubles::default();
    let (process, handle) =
        semaphore(&fleet, 10, |builder| builder.fallback_local(2).on_error(troubles.note()));
    let counted = process.acquire(within(1_000)).await.unwrap();
    handle.away();
    assert!(process.acquire(within(1_000)).await.unwrap().is_local());
    // The oldest: its release is among those that go.
    counted.release(Outcome::Success);
    let undelivered = || {
        let all = troubles.all();
        let dropped = all.iter().filter_map(|trouble| match trouble {
            Trouble::Undelivered { dropped, .. } => u64::try_from(*dropped).ok(),
            _ => None,
        });
        dropped.collect::<Vec<_>>()
    };
    for _ in 1..KEPT {
        process.acquire(Acquire::once()).await.unwrap().release(Outcome::Throttled);
    }
    assert_eq!(undelivered(), [] as [u64; 0], "so many are kept");
    for _ in 0..OVER {
        process.acquire(Acquire::once()).await.unwrap().release(Outcome::Throttled);
    }
    assert_eq!(undelivered(), [1], "when it begins");
    let carried_out = handle.carried_out(Operation::Exchange);
    handle.back();
    process.flush().await;
    // What was granted in vain when the store went away is given back, and takes a place too.
    assert_eq!(undelivered(), [1, OVER - 1, 1], "and the rest when the store is back");
    assert!(handle.carried_out(Operation::Exchange) - carried_out >= KEPT / 1_000);
    assert_eq!(fleet.held(), 1, "its release went");
    sleep(SECOND * 31).await;
    assert_eq!(fleet.held(), 0, "its slot is back by its TTL");
}
