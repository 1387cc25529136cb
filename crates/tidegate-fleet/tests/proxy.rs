//! The faulty line: what each fault does to connections, and what it leaves alone.

#![allow(clippy::unwrap_used)] // helpers of tests may say what they expect, too

use std::{
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

use tidegate_fleet::proxy::{Proxy, Way, Which};

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// A server that says back what it hears, and a proxy before it.
fn echo() -> io::Result<Proxy> {
    let server = TcpListener::bind("127.0.0.1:0")?;
    let addr = server.local_addr()?;
    thread::spawn(move || {
        for client in server.incoming().flatten() {
            thread::spawn(move || {
                let mut from = client.try_clone().unwrap();
                let mut to = client;
                let _ = io::copy(&mut from, &mut to);
            });
        }
    });
    Proxy::to(addr)
}

fn connect(proxy: &Proxy) -> io::Result<TcpStream> {
    let client = TcpStream::connect(proxy.addr())?;
    client.set_read_timeout(Some(Duration::from_secs(5)))?;
    Ok(client)
}

fn ask(client: &mut TcpStream, word: &str) -> io::Result<String> {
    client.write_all(word.as_bytes())?;
    hear(client, word.len())
}

fn hear(client: &mut TcpStream, length: usize) -> io::Result<String> {
    let mut answer = vec![0; length];
    client.read_exact(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

/// Whether nothing is to be heard for a while.
fn is_silent(client: &mut TcpStream) -> io::Result<bool> {
    client.set_read_timeout(Some(Duration::from_millis(100)))?;
    let heard = client.read(&mut [0]);
    client.set_read_timeout(Some(Duration::from_secs(5)))?;
    Ok(
        matches!(heard, Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)),
    )
}

fn is_broken(client: &mut TcpStream) -> bool {
    let broken =
        |error: &io::Error| !matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
    client.read(&mut [0]).map_or_else(|error| broken(&error), |length| length == 0)
}

fn until(what: &str, done: impl Fn() -> bool) {
    let start = Instant::now();
    while !done() {
        assert!(start.elapsed() < Duration::from_secs(5), "never: {what}");
        thread::yield_now();
    }
}

#[test]
fn without_a_fault_all_passes() -> Outcome {
    let proxy = echo()?;
    let mut client = connect(&proxy)?;
    let long = "word ".repeat(100_000);
    let mut writing = client.try_clone()?;
    let sent = long.clone();
    let writer = thread::spawn(move || writing.write_all(sent.as_bytes()));
    assert_eq!(hear(&mut client, long.len())?, long);
    writer.join().unwrap()?;
    client.shutdown(std::net::Shutdown::Write)?;
    assert!(is_broken(&mut client), "the end is passed on, and comes back");
    until("a closed connection off the list", || proxy.open() == 0);
    assert_eq!(proxy.accepted(), 1);
    Ok(())
}

#[test]
fn a_delay_is_for_each_way_and_keeps_the_order() -> Outcome {
    let proxy = echo()?;
    let mut client = connect(&proxy)?;
    ask(&mut client, "warm")?;
    for (way, at_least) in [(Way::Requests, 60), (Way::Replies, 60), (Way::Both, 120)] {
        proxy.delay(way, Duration::from_millis(60));
        let start = Instant::now();
        assert_eq!(ask(&mut client, "a b c")?, "a b c");
        assert!(start.elapsed() >= Duration::from_millis(at_least), "{way:?}: {:?}", start.elapsed());
        proxy.heal();
    }
    // Many in a row are delayed side by side, not one after the other.
    proxy.delay(Way::Both, Duration::from_millis(100));
    let start = Instant::now();
    for number in 0..100 {
        client.write_all(format!("{number:03} ").as_bytes())?;
    }
    let all: String = (0..100).map(|number| format!("{number:03} ")).collect();
    assert_eq!(hear(&mut client, 400)?, all);
    assert!(start.elapsed() >= Duration::from_millis(200));
    assert!(start.elapsed() < Duration::from_secs(5), "a hundred delays in a row would be 20 s");
    Ok(())
}

#[test]
fn a_black_hole_holds_up_and_loses_nothing() -> Outcome {
    let proxy = echo()?;
    for way in [Way::Requests, Way::Replies, Way::Both] {
        let mut client = connect(&proxy)?;
        ask(&mut client, "warm")?;
        proxy.blackhole(way);
        client.write_all(b"held")?;
        assert!(is_silent(&mut client)?, "{way:?}");
        let mut new = connect(&proxy)?;
        new.write_all(b"new")?;
        assert!(is_silent(&mut new)?, "{way:?}: accepted, and nothing more");
        proxy.heal();
        assert_eq!((hear(&mut client, 4)?, hear(&mut new, 3)?), ("held".into(), "new".into()), "{way:?}");
    }
    Ok(())
}

#[test]
fn a_cut_breaks_what_is_open_and_nothing_else() -> Outcome {
    let proxy = echo()?;
    let mut clients = [connect(&proxy)?, connect(&proxy)?];
    for client in &mut clients {
        ask(client, "warm")?;
    }
    assert_eq!(proxy.cut(), 2);
    assert!(clients.iter_mut().all(is_broken));
    until("cut connections off the list", || proxy.open() == 0);
    assert_eq!(ask(&mut connect(&proxy)?, "again")?, "again");
    assert_eq!(proxy.accepted(), 3);
    Ok(())
}

#[test]
fn only_the_subscription_is_cut() -> Outcome {
    let proxy = echo()?;
    let (mut commands, mut subscription) = (connect(&proxy)?, connect(&proxy)?);
    ask(&mut commands, "*1\r\n$4\r\nPING\r\n")?;
    ask(&mut subscription, "*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\na\r\n")?;
    assert_eq!((proxy.open(), proxy.subscribed()), (2, 1));
    assert_eq!(proxy.cut_only(Which::Subscribed), 1);
    assert!(is_broken(&mut subscription));
    assert_eq!(ask(&mut commands, "still")?, "still");
    until("the subscription off the list", || proxy.open() == 1);
    assert_eq!((proxy.cut_only(Which::Subscribed), proxy.cut_only(Which::Commands)), (0, 1));
    assert!(is_broken(&mut commands));
    Ok(())
}

#[test]
fn a_refusal_is_for_new_connections() -> Outcome {
    let proxy = echo()?;
    let mut client = connect(&proxy)?;
    ask(&mut client, "warm")?;
    proxy.refuse();
    assert_eq!(connect(&proxy).unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
    assert_eq!(ask(&mut client, "open")?, "open");
    proxy.heal();
    assert_eq!(ask(&mut connect(&proxy)?, "again")?, "again");
    Ok(())
}

#[test]
fn a_lost_answer_was_carried_out_and_breaks_its_connection() -> Outcome {
    let server = TcpListener::bind("127.0.0.1:0")?;
    let proxy = Proxy::to(server.local_addr()?)?;
    proxy.drop_replies(1);
    let mut client = connect(&proxy)?;
    client.write_all(b"ask")?;
    let (mut served, _) = server.accept()?;
    assert_eq!(hear(&mut served, 3)?, "ask", "the server has it");
    served.write_all(b"done")?;
    assert!(is_broken(&mut client), "the client never hears of it");
    assert_eq!(proxy.dropped_replies(), 1);

    let mut client = connect(&proxy)?;
    client.write_all(b"ask")?;
    let (mut served, _) = server.accept()?;
    served.write_all(b"done")?;
    assert_eq!(hear(&mut client, 4)?, "done", "only so many are lost");
    Ok(())
}

#[test]
fn a_subscription_loses_no_answers() -> Outcome {
    let proxy = echo()?;
    let subscribe = "*2\r\n$9\r\nsubscribe\r\n$1\r\na\r\n";
    let mut subscription = connect(&proxy)?;
    ask(&mut subscription, subscribe)?;
    proxy.drop_replies(1);
    assert_eq!(ask(&mut subscription, "push")?, "push");
    assert_eq!(proxy.dropped_replies(), 0);
    let mut commands = connect(&proxy)?;
    commands.write_all(b"ask")?;
    assert!(is_broken(&mut commands));
    Ok(())
}

#[test]
fn new_connections_can_be_led_elsewhere() -> Outcome {
    let proxy = echo()?;
    let other = TcpListener::bind("127.0.0.1:0")?;
    let mut old = connect(&proxy)?;
    ask(&mut old, "warm")?;
    proxy.lead_to(other.local_addr()?);
    let mut new = connect(&proxy)?;
    let (mut served, _) = other.accept()?;
    served.write_all(b"other")?;
    assert_eq!(hear(&mut new, 5)?, "other");
    assert_eq!(ask(&mut old, "old")?, "old");
    Ok(())
}
