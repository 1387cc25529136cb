//! The throw-away servers: they start, freeze, die, come back, fail over and move slots, and leave nothing behind.

use std::{path::Path, process::Command, time::Duration};

use redis::Value;
use tidegate_fleet::servers::{
    ServerError,
    redis::{Cluster, Options, Redis, Sentinel},
};

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn has(server: &Redis, key: &str) -> Result<bool, ServerError> {
    Ok(server.command(&["EXISTS", key])? == Value::Int(1))
}

#[test]
fn a_server_starts_and_ends_with_its_value() -> Outcome {
    let server = Redis::standalone(&Options::new())?;
    server.command(&["SET", "a", "1"])?;
    let pid = server.pid().unwrap();
    assert!(Path::new(&format!("/proc/{pid}")).exists());
    drop(server);
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
    Ok(())
}

#[test]
fn a_restart_loses_what_is_in_memory_and_keeps_what_is_on_disk() -> Outcome {
    for (options, kept) in [(Options::new(), false), (Options::new().append_only(), true)] {
        let mut server = Redis::standalone(&options)?;
        let addr = server.addr();
        server.command(&["SET", "a", "1"])?;
        server.restart()?;
        assert_eq!((server.addr(), has(&server, "a")?), (addr, kept), "after a restart: {options:?}");
        server.command(&["SET", "b", "1"])?;
        server.kill();
        assert!(server.command(&["PING"]).is_err(), "nobody answers for a server that was killed");
        server.resume()?;
        assert_eq!((server.addr(), has(&server, "b")?), (addr, kept), "after a kill: {options:?}");
    }
    Ok(())
}

#[test]
fn a_frozen_server_answers_what_it_was_asked_when_it_thaws() -> Outcome {
    let server = Redis::standalone(&Options::new())?;
    let mut connection = server.connection()?;
    connection.set_read_timeout(Some(Duration::from_millis(100)))?;
    server.freeze()?;
    assert!(redis::cmd("SET").arg("late").arg(1).query::<()>(&mut connection).unwrap_err().is_timeout());
    server.thaw()?;
    // It carries out what it was sent while it stood still, in the order in which it came.
    let start = std::time::Instant::now();
    while !has(&server, "late")? {
        assert!(start.elapsed() < Duration::from_secs(5), "what came while it was frozen was lost");
    }
    Ok(())
}

#[test]
fn options_and_settings_are_taken() -> Outcome {
    let options = Options::new()
        .set("maxmemory", "8mb")
        .set("maxmemory-policy", "noeviction")
        .password("no: @ /")
        .set("user", "reader on >secret ~* &* +@read +ping");
    let server = Redis::standalone(&options)?;
    let mut by_url = redis::Client::open(server.url())?.get_connection()?;
    assert_eq!(redis::cmd("PING").query::<String>(&mut by_url)?, "PONG");
    let bare = format!("redis://{}/", server.addr());
    let refused = redis::Client::open(bare)?
        .get_connection()
        .and_then(|mut connection| redis::cmd("PING").query::<String>(&mut connection))
        .unwrap_err();
    assert_eq!(refused.code(), Some("NOAUTH"));
    let reader = format!("redis://reader:secret@{}/", server.addr());
    let mut reader = redis::Client::open(reader)?.get_connection()?;
    let refused = redis::cmd("SET").arg("a").arg(1).query::<()>(&mut reader).unwrap_err();
    assert_eq!(refused.code(), Some("NOPERM"));

    server.config_set("maxmemory", "1mb")?;
    server.command(&["SET", "a", "1"]).unwrap_err();
    server.config_set("maxmemory", "0")?;
    server.command(&["SET", "a", "1"])?;
    server.flush()?;
    assert!(!has(&server, "a")?);
    Ok(())
}

#[test]
fn an_option_that_is_not_taken_is_shown_with_the_servers_own_words() {
    let error = Redis::standalone(&Options::new().set("no-such-setting", "1")).unwrap_err();
    assert!(matches!(&error, ServerError::Ended { log, .. } if log.contains("no-such-setting")), "{error}");
}

/// Not a test by itself: the part of `a_missing_program_is_named_with_its_package` that has none.
#[test]
#[ignore = "is started without a program"]
fn to_be_started() {
    if let Err(error) = Redis::standalone(&Options::new()) {
        println!("said: {error}");
    }
}

#[test]
fn a_missing_program_is_named_with_its_package() -> Outcome {
    let test = Command::new(std::env::current_exe()?)
        .args(["--ignored", "--exact", "--nocapture", "to_be_started"])
        .env("TIDEGATE_REDIS_SERVER", "/nowhere/redis-server")
        .output()?;
    let said = String::from_utf8_lossy(&test.stdout);
    assert!(said.contains("redis-server is missing"), "{said}");
    assert!(said.contains("apt-get install redis-server"), "{said}");
    Ok(())
}

/// Not a test by itself: the part of `a_server_ends_with_a_test_that_is_killed` that is killed.
#[test]
#[ignore = "waits to be killed"]
fn to_be_killed() {
    let server = Redis::standalone(&Options::new()).unwrap();
    println!("pid {} at {}", server.pid().unwrap(), server.command(&["CONFIG", "GET", "dir"]).is_ok());
    loop {
        std::thread::park();
    }
}

#[test]
fn a_server_ends_with_a_test_that_is_killed() -> Outcome {
    use std::io::{BufRead as _, BufReader};

    let mut test = Command::new(std::env::current_exe()?)
        .args(["--ignored", "--exact", "--nocapture", "to_be_killed"])
        .stdout(std::process::Stdio::piped())
        .spawn()?;
    let lines = BufReader::new(test.stdout.take().unwrap()).lines();
    let pid = lines.map_while(Result::ok).find_map(|line| {
        let (_, rest) = line.split_once("pid ")?;
        rest.split(' ').next()?.parse::<u32>().ok()
    });
    test.kill()?;
    test.wait()?;
    let pid = pid.expect("the number of the server's process");
    let start = std::time::Instant::now();
    while Path::new(&format!("/proc/{pid}/exe")).exists() {
        assert!(start.elapsed() < Duration::from_secs(10), "server {pid} outlives the test that started it");
        std::thread::yield_now();
    }
    Ok(())
}

#[test]
fn a_fail_over_makes_the_replica_the_primary() -> Outcome {
    let mut group = Sentinel::start()?;
    let old = group.primary()?.addr();
    assert_eq!(old, group.servers()[0].addr());
    assert_eq!(group.addrs().len(), 3);
    group.primary()?.command(&["SET", "a", "1"])?;
    assert_eq!(group.primary()?.command(&["WAIT", "1", "5000"])?, Value::Int(1));

    group.failover()?;
    let new = group.primary()?.addr();
    assert_eq!(new, group.servers()[1].addr());
    assert!(has(group.primary()?, "a")?, "what was replicated is there");
    group.primary()?.command(&["SET", "b", "1"])?;
    group.servers()[0].command(&["PING"])?;
    Ok(())
}

#[test]
fn a_killed_primary_is_replaced() -> Outcome {
    let mut group = Sentinel::start()?;
    let old = group.primary()?.addr();
    group.servers()[0].kill();
    group.until_primary_is_not(old.port())?;
    group.primary()?.command(&["SET", "a", "1"])?;
    Ok(())
}

#[test]
fn a_slot_moves_and_its_middle_can_be_seen() -> Outcome {
    let cluster = Cluster::start(3)?;
    assert_eq!(cluster.addrs().len(), 3);
    let slot = cluster.slot_of("{x}a")?;
    let from = cluster.owner_of(slot)?;
    let to = (from + 1) % 3;
    let node = &cluster.nodes()[from];
    for key in ["{x}a", "{x}b", "{x}c"] {
        node.command(&["SET", key, "1"])?;
    }
    let code = |result: Result<Value, ServerError>| match result {
        Err(ServerError::Command { source, .. }) => source.code().map(str::to_owned),
        _ => None,
    };

    let moving = cluster.begin_move(slot, from, to)?;
    node.command(&["MGET", "{x}a", "{x}b"])?;
    assert_eq!(code(node.command(&["GET", "{x}absent"])).as_deref(), Some("ASK"));
    assert_eq!(cluster.move_keys(moving, 1)?, 1);
    assert_eq!(code(node.command(&["MGET", "{x}a", "{x}b", "{x}c"])).as_deref(), Some("TRYAGAIN"));
    assert_eq!(cluster.owner_of(slot)?, from);
    assert_eq!(cluster.move_keys(moving, usize::MAX)?, 2);
    cluster.end_move(moving)?;
    assert_eq!(cluster.owner_of(slot)?, to);
    assert_eq!(code(node.command(&["GET", "{x}a"])).as_deref(), Some("MOVED"));
    cluster.nodes()[to].command(&["MGET", "{x}a", "{x}b", "{x}c"])?;

    cluster.move_slot(slot, to, from)?;
    assert_eq!(cluster.owner_of(slot)?, from);
    assert!(has(node, "{x}a")? && has(node, "{x}c")?);
    Ok(())
}
