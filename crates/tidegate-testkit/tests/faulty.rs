//! Every fault of the faulty store, and that it does nothing wrong where it is told nothing.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::{
    future::ready,
    sync::{Arc, Mutex},
    time::Duration,
};

use tidegate_core::{
    Acquire, AcquireRequest, Acquired, Bound, Capability, Cause, CircuitAct, CircuitMember, CircuitPolicy,
    CircuitRequest, Costs, DriverId, Exchange, ExchangeReply, Id, Identity, Job, Line, Listener, Member,
    Name, OnSuperseded, Owner, Policy, Reply, Rule, ScopedJob, ScopedRequest, Store, StoreError, Wake,
    circuit::{Backoff, Recovery, Strategy},
};
use tidegate_testkit::{
    Kit, Subject, block_on,
    faulty::{Fault, Faulty, Garbage, Handle, Operation},
    reference::ModelStore,
};
use tokio::time::{Instant, timeout};

fn faulty() -> (Faulty<ModelStore>, Handle) {
    let store = Faulty::new(ModelStore::default()).sleeping(tokio::time::sleep);
    let handle = store.handle();
    (store, handle)
}

fn member(limit: u32) -> Member {
    let policy = Policy::draft().bound(Bound::Fixed(limit)).check().unwrap();
    member_of(policy)
}

fn member_of(policy: Policy) -> Member {
    Member {
        id: Id::new("my-provider-api").unwrap(),
        driver: DriverId(1),
        owner: Owner::new("test").unwrap(),
        policy: Arc::new(policy),
        on_superseded: OnSuperseded::Adopt,
        initial_limit: 1,
    }
}

fn circuit_member() -> CircuitMember {
    let (strategy, wait) = (Strategy::Consecutive { threshold: 3 }, Backoff::Constant(SOON));
    let policy = CircuitPolicy::draft(strategy, Recovery::health_check(), wait).check().unwrap();
    CircuitMember {
        id: Id::new("my-provider-api").unwrap(),
        driver: DriverId(1),
        policy: Arc::new(policy),
        on_superseded: OnSuperseded::Adopt,
    }
}

fn jobs(jobs: usize) -> AcquireRequest {
    AcquireRequest { class: None, jobs: vec![Job::default(); jobs], line: Line::default() }
}

/// How many of so many jobs are granted.
async fn granted(store: &Faulty<ModelStore>, member: &Member, wanted: usize) -> Result<usize, StoreError> {
    Ok(store.acquire(member, &jobs(wanted)).await?.body.grants.len())
}

const SOON: Duration = Duration::from_secs(3_600);

#[test]
fn un_1_without_faults_it_is_the_store_it_wraps() {
    let subject = || {
        let store = Faulty::new(ModelStore::default()).with_sync_path();
        let (clock, inner) = (store.inner().clock().clone(), store.inner().clone());
        let planted = inner.clone();
        Subject::new(store)
            .clock(&clock)
            .wipe(move || {
                inner.wipe();
                ready(())
            })
            .plant_layout(move |id, layout| {
                planted.plant_layout(&id, layout);
                ready(())
            })
    };
    let report = Kit::new(subject).filter("ST-15").run_blocking();
    report.assert();
    Kit::new(subject).filter("ST-13").run_blocking().assert();
    Kit::new(subject).filter("ST-14 the synchronous path").run_blocking().assert();
}

#[test]
fn un_1_a_synchronous_path_only_where_it_is_asked_for() {
    let id = Id::new("a").unwrap();
    let store = Faulty::new(ModelStore::default());
    assert!(!store.capabilities().has(Capability::Sync) && store.sync_path(&id).is_none());
    let store = store.with_sync_path();
    assert!(store.capabilities().has(Capability::Sync) && store.sync_path(&id).is_some());
}

#[tokio::test(start_paused = true)]
async fn un_1_an_error_is_not_carried_out() {
    let (store, handle) = faulty();
    let member = member(3);
    handle.script([
        Fault::None,
        Fault::disconnected(),
        Fault::Error(StoreError::unavailable(Cause::Refused, "full")),
    ]);
    assert_eq!(granted(&store, &member, 1).await, Ok(1));
    let error = granted(&store, &member, 1).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { cause: Cause::Disconnected, .. }));
    let error = granted(&store, &member, 1).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { cause: Cause::Refused, .. }));
    assert_eq!(granted(&store, &member, 9).await, Ok(2));
    assert_eq!((handle.calls(Operation::Acquire), handle.carried_out(Operation::Acquire)), (4, 2));
}

#[tokio::test(start_paused = true)]
async fn un_1_a_hang_is_never_answered_and_not_carried_out() {
    let (store, handle) = faulty();
    let member = member(3);
    handle.fail_next(1, Fault::Hang);
    assert!(timeout(SOON, granted(&store, &member, 1)).await.is_err());
    assert_eq!(granted(&store, &member, 9).await, Ok(3));
    assert_eq!(handle.carried_out(Operation::Acquire), 1);
}

#[tokio::test(start_paused = true)]
async fn un_1_what_is_slow_takes_its_time() {
    let (store, handle) = faulty();
    let member = member(3);
    let slow = Duration::from_millis(250);
    handle.script([Fault::SlowRequest(slow), Fault::SlowReply(slow)]);
    for _ in 0..2 {
        let begun = Instant::now();
        assert_eq!(granted(&store, &member, 1).await, Ok(1));
        assert_eq!(begun.elapsed(), slow);
    }
    // What is dropped on the way there never arrives; what is dropped on the way back has.
    handle.script([Fault::SlowRequest(slow), Fault::SlowReply(slow)]);
    assert!(timeout(slow / 2, granted(&store, &member, 1)).await.is_err());
    assert_eq!(handle.carried_out(Operation::Acquire), 2);
    assert!(timeout(slow / 2, granted(&store, &member, 1)).await.is_err());
    assert_eq!(handle.carried_out(Operation::Acquire), 3);
    assert_eq!(granted(&store, &member, 1).await, Ok(0));
}

#[test]
fn un_1_what_is_slow_takes_real_time_without_a_runtime() {
    let store = Faulty::new(ModelStore::default());
    store.handle().script([Fault::SlowReply(Duration::from_millis(20))]);
    let begun = std::time::Instant::now();
    assert!(block_on(store.resume(&Id::new("a").unwrap())).is_ok());
    assert!(begun.elapsed() >= Duration::from_millis(20));
}

#[tokio::test(start_paused = true)]
async fn un_4_a_lost_answer_was_carried_out() {
    let (store, handle) = faulty();
    let member = member(3);
    handle.script([Fault::LostThenError, Fault::LostThenHang]);
    let error = granted(&store, &member, 1).await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { cause: Cause::NoAnswer, .. }));
    assert!(timeout(SOON, granted(&store, &member, 1)).await.is_err());
    assert_eq!(granted(&store, &member, 9).await, Ok(1));
}

#[tokio::test(start_paused = true)]
async fn un_4_what_is_late_arrives_when_it_is_delivered() {
    let (store, handle) = faulty();
    let member = member(3);
    handle.script([Fault::Late, Fault::Late]);
    assert!(timeout(SOON, granted(&store, &member, 2)).await.is_err());
    assert!(timeout(SOON, store.pause(&member.id, SOON)).await.is_err());
    assert_eq!((handle.late(), handle.carried_out(Operation::Acquire)), (2, 0));
    assert_eq!(granted(&store, &member, 1).await, Ok(1));
    assert_eq!(handle.deliver().await, 2);
    assert_eq!(
        (handle.late(), handle.carried_out(Operation::Acquire), handle.carried_out(Operation::Pause)),
        (0, 2, 1)
    );
    assert!(store.resume(&member.id).await.unwrap().body, "the pause arrived");
    assert_eq!(granted(&store, &member, 1).await, Ok(0), "and so did both jobs");
}

#[tokio::test(start_paused = true)]
async fn un_4_what_is_delivered_twice_is_carried_out_twice() {
    let (store, handle) = faulty();
    let member = member(3);
    handle.script_of(Operation::Acquire, [Fault::Twice]);
    // A fault of one kind waits for its kind.
    assert!(store.resume(&member.id).await.is_ok());
    let reply = store.acquire(&member, &jobs(1)).await.unwrap();
    assert_eq!(reply.body.grants[0].lease.unwrap().slot, 1, "the second answer");
    assert_eq!((handle.calls(Operation::Acquire), handle.carried_out(Operation::Acquire)), (1, 2));
    assert_eq!(granted(&store, &member, 9).await, Ok(1));
    // An exchange with a number is carried out once all the same.
    let sequence = Some(tidegate_core::Sequence { number: 1, not_after: None });
    let other = Member { id: Id::new("other").unwrap(), ..member };
    let exchange = Exchange { sequence, acquires: vec![Acquire::Prefix(jobs(1))], ..Exchange::default() };
    handle.fail_next(1, Fault::Twice);
    store.exchange(&other, &exchange).await.unwrap();
    assert_eq!(granted(&store, &other, 9).await, Ok(2));
}

#[tokio::test(start_paused = true)]
async fn un_1_a_store_that_is_away_comes_back() {
    let (store, handle) = faulty();
    let member = member(3);
    handle.away();
    for _ in 0..5 {
        assert!(granted(&store, &member, 1).await.is_err());
    }
    handle.script([Fault::None]);
    assert_eq!(granted(&store, &member, 1).await, Ok(1), "what is scripted comes first");
    handle.away_with(Fault::Hang);
    assert!(timeout(SOON, granted(&store, &member, 1)).await.is_err());
    handle.back();
    assert_eq!(granted(&store, &member, 9).await, Ok(2));
    assert_eq!(handle.all_calls(), 8);
}

#[tokio::test(start_paused = true)]
async fn un_1_faults_at_random_come_from_their_seed() {
    let failures = |seed| async move {
        let (store, handle) = faulty();
        let member = member(1);
        handle.at_random(seed, 4, [Fault::disconnected(), Fault::LostThenError]);
        let mut failed = Vec::new();
        for call in 0..400 {
            if granted(&store, &member, 1).await.is_err() {
                failed.push(call);
            }
        }
        handle.heal();
        assert!(granted(&store, &member, 1).await.is_ok());
        failed
    };
    let failed = failures(5).await;
    assert!((60..140).contains(&failed.len()), "{} of 400", failed.len());
    assert_eq!(failed, failures(5).await);
    assert_ne!(failed, failures(6).await);
}

#[tokio::test(start_paused = true)]
async fn un_1_every_operation_can_fail() {
    let (store, handle) = faulty();
    let member = member(3);
    let id = &member.id;
    handle.away();
    let scoped = ScopedRequest { class: None, jobs: Vec::new(), line: Line::default() };
    assert!(store.acquire(&member, &jobs(1)).await.is_err());
    assert!(store.acquire_scoped(&member, &scoped).await.is_err());
    assert!(store.release(&member, &[]).await.is_err());
    assert!(store.renew(&member, None, &[]).await.is_err());
    assert!(store.hand_over(&member, &[]).await.is_err());
    assert!(store.settle(&member, &[]).await.is_err());
    assert!(store.observe(&member, &[]).await.is_err());
    assert!(store.exchange(&member, &Exchange::default()).await.is_err());
    assert!(store.pause(id, SOON).await.is_err());
    assert!(store.resume(id).await.is_err());
    assert!(store.circuit(&circuit_member(), &CircuitRequest::default()).await.is_err());
    for operation in Operation::ALL {
        assert_eq!((handle.calls(operation), handle.carried_out(operation)), (1, 0), "{operation:?}");
    }
    // And each can be late.
    handle.away_with(Fault::Late);
    let none = Duration::from_millis(1);
    assert!(timeout(none, store.acquire(&member, &jobs(1))).await.is_err());
    assert!(timeout(none, store.acquire_scoped(&member, &scoped)).await.is_err());
    assert!(timeout(none, store.release(&member, &[])).await.is_err());
    assert!(timeout(none, store.renew(&member, None, &[])).await.is_err());
    assert!(timeout(none, store.hand_over(&member, &[])).await.is_err());
    assert!(timeout(none, store.settle(&member, &[])).await.is_err());
    assert!(timeout(none, store.observe(&member, &[])).await.is_err());
    assert!(timeout(none, store.exchange(&member, &Exchange::default())).await.is_err());
    assert!(timeout(none, store.pause(id, SOON)).await.is_err());
    assert!(timeout(none, store.resume(id)).await.is_err());
    let (circuit, look) = (circuit_member(), CircuitRequest::default());
    assert!(timeout(none, store.circuit(&circuit, &look)).await.is_err());
    assert_eq!(handle.deliver().await, 11);
    for operation in Operation::ALL {
        assert_eq!(handle.carried_out(operation), 1, "{operation:?}");
    }
}

// ---- garbage -------------------------------------------------------------------------------------------------------

fn is_broken(asked: &Exchange, leased: bool, reply: &Reply<ExchangeReply>) -> bool {
    let error = asked.check(Some(leased), reply);
    matches!(error, Err(StoreError::Unavailable { cause: Cause::Broken, .. }))
}

#[tokio::test(start_paused = true)]
async fn un_1_garbage_breaks_the_contract_of_a_circuit() {
    for garbage in Garbage::ALL {
        for acts in [vec![], vec![CircuitAct::Elect], vec![CircuitAct::Recent, CircuitAct::Elect]] {
            let (store, handle) = faulty();
            let (member, asked) = (circuit_member(), CircuitRequest { acts });
            let sound = store.circuit(&member, &asked).await.unwrap();
            assert!(sound.body.check(&asked).is_ok() && sound.head.now.is_some());
            handle.fail_next(1, Fault::Garbage(garbage));
            let reply = store.circuit(&member, &asked).await.unwrap();
            let broken = reply.body.check(&asked).is_err() || reply.head.now.is_none();
            assert!(broken, "{garbage:?}: {reply:?}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn un_1_garbage_breaks_the_contract_of_a_prefix() {
    for garbage in Garbage::ALL {
        // All granted, some granted, none granted; with leases and without.
        for (limit, wanted) in [(9, 1), (9, 3), (2, 3), (0, 1), (0, 3)] {
            let (store, handle) = faulty();
            let member = if limit == 0 { paused(&store).await } else { member(limit) };
            let leased = member.policy.bound().is_some();
            if garbage == Garbage::TokenTwice && !leased {
                continue;
            }
            let asked = Exchange { acquires: vec![Acquire::Prefix(jobs(wanted))], ..Exchange::default() };
            handle.fail_next(2, Fault::Garbage(garbage));
            let reply = store.acquire(&member, &jobs(wanted)).await.unwrap();
            let acquired = vec![Ok(Acquired::Prefix(reply.body))];
            let reply =
                Reply { head: reply.head, body: ExchangeReply { acquired, ..ExchangeReply::default() } };
            assert!(is_broken(&asked, leased, &reply), "{garbage:?}, {limit}, {wanted}: {reply:?}");
            let reply = store.exchange(&member, &asked).await.unwrap();
            assert!(is_broken(&asked, leased, &reply), "{garbage:?}, {limit}, {wanted}: {reply:?}");
        }
    }
}

/// A member of an id that is paused, so that nothing is granted.
async fn paused(store: &Faulty<ModelStore>) -> Member {
    let member = member_of(Policy::draft().check().unwrap());
    store.pause(&member.id, SOON).await.unwrap();
    member
}

#[tokio::test(start_paused = true)]
async fn un_1_garbage_breaks_the_contract_of_scoped_jobs() {
    let scope = Name::new("scope", "tenant").unwrap();
    let job = |tenant: &str| ScopedJob {
        costs: Costs::default(),
        scopes: vec![(scope.clone(), Identity::new(tenant).unwrap())],
    };
    let rule = Rule::fixed_window(2, SOON).scoped("tenant");
    for garbage in Garbage::ALL {
        for tenants in [["a", "b", "c"], ["a", "a", "a"]] {
            let (store, handle) = faulty();
            let member =
                member_of(Policy::draft().bound(Bound::Fixed(9)).rule(rule.clone()).check().unwrap());
            let request =
                ScopedRequest { class: None, jobs: tenants.map(&job).to_vec(), line: Line::default() };
            let asked = Exchange { acquires: vec![Acquire::Scoped(request.clone())], ..Exchange::default() };
            handle.fail_next(2, Fault::Garbage(garbage));
            let reply = store.acquire_scoped(&member, &request).await.unwrap();
            let acquired = vec![Ok(Acquired::Scoped(reply.body))];
            let reply =
                Reply { head: reply.head, body: ExchangeReply { acquired, ..ExchangeReply::default() } };
            assert!(is_broken(&asked, true, &reply), "{garbage:?}: {reply:?}");
            let reply = store.exchange(&member, &asked).await.unwrap();
            assert!(is_broken(&asked, true, &reply), "{garbage:?}: {reply:?}");
        }
    }
}

// ---- subscriptions -------------------------------------------------------------------------------------------------

#[derive(Default)]
struct Heard(Mutex<Vec<Wake>>);

impl Listener for Heard {
    fn wake(&self, wake: Wake) {
        self.0.lock().unwrap().push(wake);
    }
}

#[tokio::test(start_paused = true)]
async fn st_13_a_subscription_passes_through_and_can_be_cut() {
    let (store, handle) = faulty();
    let id = Id::new("a").unwrap();
    let heard = Arc::new(Heard::default());
    let take = || std::mem::take(&mut *heard.0.lock().unwrap());
    let subscription = store.subscribe(&id, DriverId(1), Arc::clone(&heard) as Arc<dyn Listener>).unwrap();
    store.pause(&id, SOON).await.unwrap();
    assert!(matches!(take()[..], [Wake::Paused { .. }]));
    handle.cut();
    store.resume(&id).await.unwrap();
    assert_eq!(take(), []);
    handle.mend();
    assert_eq!(take(), [Wake::Gap]);
    store.pause(&id, SOON).await.unwrap();
    assert!(matches!(take()[..], [Wake::Paused { .. }]));
    drop(subscription);
    store.resume(&id).await.unwrap();
    handle.mend();
    assert_eq!(take(), []);
    let unheard = Faulty::new(ModelStore::default().without(Capability::Wake));
    assert!(unheard.subscribe(&id, DriverId(1), heard).is_none());
}
