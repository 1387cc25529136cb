//! Shows that calls to one server outlive flushed scripts, cut connections, restarts and freezes.

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use tidegate_core::Cause;

use super::{COUNTS, call, cause, counting, counting_function, fixture::Server, heals, run, scanned, wire};
use crate::{
    scripts::Library,
    wire::{Given, Lane, Options, Wire},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn un_3_no_caller_meets_a_missing_script() {
    let server = Arc::new(Server::start(&[]));
    let wire = wire(&server.url());
    let done = Arc::new(AtomicBool::new(false));
    let (flushed, ends) = (server.clone(), done.clone());
    let flushing = std::thread::spawn(move || {
        let mut flushes = 0;
        while !ends.load(Ordering::Relaxed) {
            flushed.ask(&["SCRIPT", "FLUSH"]);
            flushed.ask(&["FUNCTION", "FLUSH"]);
            flushes += 1;
            std::thread::sleep(Duration::from_millis(5));
        }
        flushes
    });
    let mut tasks = Vec::new();
    for task in 0..8 {
        let wire = wire.clone();
        tasks.push(tokio::spawn(async move {
            let script = if task % 2 == 0 { counting() } else { counting_function() };
            for number in 0..500 {
                let lane = if number % 2 == 0 { Lane::Commands } else { Lane::Renewals };
                run(&wire, lane, &script, "count").await.unwrap();
            }
        }));
    }
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(call(&wire, "count").await.unwrap(), 8 * 500 + 1);
    done.store(true, Ordering::Relaxed);
    assert!(flushing.join().unwrap() > 2);
}

#[tokio::test]
async fn un_3_functions_are_used_where_the_server_has_them() {
    let server = Server::start(&[]);
    let wire = wire(&server.url());
    for count in 1..=5 {
        assert_eq!(call(&wire, "k").await.unwrap(), count);
    }
    // The first one was missing.
    assert_eq!((server.calls("fcall"), server.calls("evalsha")), (6, 0));
    assert_eq!(server.calls("function|load"), 1);
}

#[tokio::test]
async fn un_3_scripts_are_used_where_functions_are_refused() {
    let server = Server::start(&[]);
    for (allowed, calls) in [(&["-fcall"][..], 0), (&["-function|load"], 1), (&["-fcall", "-function"], 0)] {
        let user = ["ACL", "SETUSER", "some", "reset", "on", ">secret", "~*", "&*", "+@all"];
        server.ask(&[&user[..], allowed].concat());
        server.ask(&["CONFIG", "RESETSTAT"]);
        server.ask(&["DEL", "k"]);
        let wire = wire(&format!("redis://some:secret@127.0.0.1:{}", server.port));
        for count in 1..=3 {
            assert_eq!(call(&wire, "k").await.unwrap(), count);
        }
        // Once is enough to learn it.
        assert_eq!(server.calls("fcall"), calls, "{allowed:?}");
        assert!(server.calls("evalsha") >= 3, "{allowed:?}");
    }
    let old = Server::start(&["--rename-command", "FCALL", ""]);
    let wire = self::wire(&old.url());
    for count in 1..=3 {
        assert_eq!(call(&wire, "k").await.unwrap(), count);
    }
    assert!(old.calls("evalsha") >= 3);
}

#[tokio::test]
async fn case_32_a_full_server_runs_the_function_that_is_for_it() {
    let server = Server::start(&[]);
    let wire = wire(&server.url());
    let library = Library::of(&[], &[("count", COUNTS, false), ("full", "return 'full'", true)]);
    let script = counting().with(library.function("count", Some("full")));
    let ask = async || run(&wire, Lane::Commands, &script, "k").await;
    assert_eq!(ask().await.unwrap(), redis::Value::Int(1));
    server.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    assert_eq!(ask().await.unwrap(), redis::Value::BulkString(b"full".to_vec()));
    // Where the library is missing too it cannot be loaded, and the script is asked.
    server.ask(&["FUNCTION", "FLUSH"]);
    assert_eq!(cause(&ask().await.unwrap_err()), Cause::Refused);
    assert!(server.calls("evalsha") + server.calls("eval") > 0);
    server.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    assert_eq!(ask().await.unwrap(), redis::Value::Int(2));
}

#[tokio::test]
async fn un_3_a_killed_connection_is_replaced_by_the_next_call() {
    let server = Server::start(&[]);
    let wire = wire(&server.url());
    call(&wire, "k").await.unwrap();
    for _ in 0..3 {
        server.ask(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
        // The client's task may or may not have seen the end of the connection: one call may meet it.
        let first = call(&wire, "k").await;
        if let Err(error) = &first {
            assert_eq!(cause(error), Cause::Disconnected, "{error}");
            call(&wire, "k").await.unwrap();
        }
    }
    let one_to_ask = 1;
    let connected: i64 = server.info("connected_clients").unwrap().parse().unwrap();
    assert_eq!(connected, 1 + one_to_ask);
}

#[tokio::test]
async fn un_3_a_restarted_server_is_found_again() {
    let mut server = Server::start(&[]);
    let wire = wire(&server.url());
    call(&wire, "k").await.unwrap();
    server.end();
    let error = loop {
        match call(&wire, "k").await {
            Ok(_) => panic!("the server is gone"),
            Err(error) if error.to_string().contains("refused") => break error,
            Err(error) => assert_eq!(cause(&error), Cause::Disconnected, "{error}"),
        }
    };
    assert_eq!(cause(&error), Cause::Disconnected);
    server.begin();
    heals(&wire, "k", Duration::from_secs(2)).await;
}

#[tokio::test]
async fn case_31_a_frozen_server_is_noticed_and_found_again() {
    let server = Server::start(&[]);
    let wire = wire(&server.url());
    call(&wire, "k").await.unwrap();
    server.freeze();
    let start = Instant::now();
    while start.elapsed() < Duration::from_secs(4) {
        let error = call(&wire, "k").await.unwrap_err();
        assert_eq!(cause(&error), Cause::NoAnswer, "{error}");
    }
    server.thaw();
    heals(&wire, "k", Duration::from_secs(3)).await;
    for _ in 0..10 {
        call(&wire, "k").await.unwrap();
    }
}

#[tokio::test]
async fn un_1_attempts_to_connect_are_shared_and_spaced() {
    let server = Server::start(&[]);
    let wire = wire(&server.url());
    let mut tasks = Vec::new();
    for _ in 0..200 {
        let wire = wire.clone();
        tasks.push(tokio::spawn(async move { call(&wire, "k").await }));
    }
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    let received: i64 = server.info("total_connections_received").unwrap().parse().unwrap();
    // Two of them asked whether the server is there, and for this number.
    assert!(received <= 4, "{received}");
}

#[test]
fn a_store_is_used_by_runtimes_that_come_and_go() {
    let server = Server::start(&[]);
    let wire = wire(&server.url());
    for round in 1..=3 {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        assert_eq!(runtime.block_on(call(&wire, "k")).unwrap(), round);
    }
    // One that is alive but rests does not hold up another.
    let resting = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    resting.block_on(call(&wire, "k")).unwrap();
    let other = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    other.block_on(call(&wire, "k")).unwrap();
    resting.block_on(call(&wire, "k")).unwrap();
}

#[test]
fn as_14_renewals_go_on_while_the_callers_runtime_is_blocked() {
    let server = Server::start(&[]);
    let wire = wire(&server.url());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        call(&wire, "k").await.unwrap();
        // Nothing else runs on this runtime now; the renewals are asked for from a thread without any.
        let renewing = wire.clone();
        let renewed = std::thread::spawn(move || {
            let script = counting();
            (0..20)
                .map(|_| {
                    let renewal = run(&renewing, Lane::Renewals, &script, "renewed");
                    block_on(renewal).unwrap()
                })
                .count()
        });
        assert_eq!(renewed.join().unwrap(), 20);
    });
    assert_eq!(server.ask(&["GET", "renewed"]), redis::Value::BulkString(b"20".to_vec()));
}

/// Polls a future on this thread, without any runtime.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(std::thread::Thread);
    impl std::task::Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut future = std::pin::pin!(future);
    loop {
        match future.as_mut().poll(&mut std::task::Context::from_waker(&waker)) {
            std::task::Poll::Ready(value) => return value,
            std::task::Poll::Pending => std::thread::park(),
        }
    }
}

#[tokio::test]
async fn as_14_the_thread_ends_with_the_store() {
    let server = Server::start(&[]);
    let wire = wire(&server.url());
    run(&wire, Lane::Renewals, &counting(), "k").await.unwrap();
    let connected = || server.info("connected_clients").unwrap();
    // The server may still have one of those who asked it before.
    super::fixture::until("the thread has a connection", || connected() == "2");
    let clone = wire.clone();
    drop(wire);
    run(&clone, Lane::Renewals, &counting(), "k").await.unwrap();
    super::fixture::until("it has the same one", || connected() == "2");
    drop(clone);
    super::fixture::until("the connection is closed", || connected() == "1");
}

#[tokio::test]
async fn un_5_refusals_say_what_to_do() {
    let server = Server::start(&[]);
    let wire = wire(&server.url());
    call(&wire, "k").await.unwrap();
    server.ask(&["CONFIG", "SET", "maxmemory", "1"]);
    let error = call(&wire, "k").await.unwrap_err();
    assert_eq!(cause(&error), Cause::Refused, "{error}");
    assert!(error.to_string().contains("maxmemory"), "{error}");
    server.ask(&["CONFIG", "SET", "maxmemory", "0"]);
    call(&wire, "k").await.unwrap();
    server.ask(&["CONFIG", "SET", "min-replicas-to-write", "1"]);
    let error = call(&wire, "k").await.unwrap_err();
    assert_eq!(cause(&error), Cause::Refused, "{error}");
    assert!(error.to_string().contains("replicas"), "{error}");
    server.ask(&["CONFIG", "SET", "min-replicas-to-write", "0"]);
    server.ask(&["REPLICAOF", "127.0.0.1", "1"]);
    let error = call(&wire, "k").await.unwrap_err();
    assert_eq!(cause(&error), Cause::Refused, "{error}");
    assert!(error.to_string().contains("replica"), "{error}");
    server.ask(&["REPLICAOF", "NO", "ONE"]);
    heals(&wire, "k", Duration::from_secs(2)).await;
}

#[tokio::test]
async fn un_5_a_busy_server_is_left_alone() {
    let server = Arc::new(Server::start(&["--busy-reply-threshold", "100"]));
    let wire = wire(&server.url());
    call(&wire, "k").await.unwrap();
    let busy = server.clone();
    let script = "local t = redis.call('TIME'); local e = t[1] + 2; while tonumber(redis.call('TIME')[1]) <= e do end \
        return 'done'";
    let running = std::thread::spawn(move || busy.ask(&["EVAL", script, "0"]));
    let start = Instant::now();
    loop {
        match call(&wire, "k").await {
            Err(error) if cause(&error) == Cause::Refused => {
                assert!(error.to_string().contains("SCRIPT KILL"), "{error}");
                break;
            }
            _ => assert!(start.elapsed() < Duration::from_secs(2)),
        }
    }
    // It was not killed: it ends by itself.
    assert_eq!(running.join().unwrap(), redis::Value::BulkString(b"done".to_vec()));
    heals(&wire, "k", Duration::from_secs(2)).await;
}

#[tokio::test]
async fn keys_are_listed() {
    let server = Server::start(&[]);
    let wire = wire(&server.url());
    for number in 0..1_200 {
        run(&wire, Lane::Commands, &counting(), &format!("tidegate:{number}")).await.unwrap();
    }
    call(&wire, "other").await.unwrap();
    let keys: BTreeSet<Vec<u8>> = scanned(&wire, b"tidegate:*").await.into_iter().collect();
    assert_eq!(keys.len(), 1_200);
}

#[tokio::test]
async fn a_connection_that_was_there_is_used_and_left_open() {
    let server = Server::start(&[]);
    let client = redis::Client::open(server.url()).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let given = Given::new(Arc::new(connection.clone()), None);
    let wire = Wire::given(given, None, Options::default());
    assert_eq!(call(&wire, "k").await.unwrap(), 1);
    server.ask(&["SCRIPT", "FLUSH"]);
    run(&wire, Lane::Renewals, &counting(), "k").await.unwrap();
    let connected: i64 = server.info("connected_clients").unwrap().parse().unwrap();
    assert_eq!(connected, 2, "the given one, and the one that asks");
    assert_eq!(scanned(&wire, b"*").await, [b"k".to_vec()]);
    drop(wire);
    let answer: String = redis::cmd("PING").query_async(&mut connection).await.unwrap();
    assert_eq!(answer, "PONG");
}
