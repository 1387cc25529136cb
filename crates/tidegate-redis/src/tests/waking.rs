//! Shows that subscriptions come back wherever their server goes, and say what they may have missed.

use std::{
    sync::{
        Arc,
        mpsc::{Receiver, RecvTimeoutError, channel},
    },
    time::Duration,
};

use super::{
    call,
    cluster::move_slot,
    fixture::{Server, cluster, until},
    scanned, wire,
};
use crate::{
    wake::{Handle, Wakes},
    wire::slot_of,
};

#[derive(Debug, PartialEq)]
enum Heard {
    Gap,
    Message(String, String),
}

struct Ear {
    handle: Handle,
    heard: Receiver<Heard>,
}

const PATIENCE: Duration = Duration::from_secs(15);

impl Ear {
    fn of(wakes: &Wakes, channels: &[&str]) -> Self {
        let (tell, heard) = channel();
        let gap = tell.clone();
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
        let channels = channels.iter().map(|channel| channel.as_bytes().to_vec()).collect();
        let handle = wakes.subscribe(
            channels,
            Arc::new(move |channel, payload| {
                tell.send(Heard::Message(text(channel), text(payload))).ok();
            }),
            Arc::new(move || {
                gap.send(Heard::Gap).ok();
            }),
        );
        Self { handle, heard }
    }

    fn next(&self) -> Heard {
        self.heard.recv_timeout(PATIENCE).unwrap()
    }

    fn is_silent(&self) -> bool {
        self.heard.recv_timeout(Duration::from_millis(200)) == Err(RecvTimeoutError::Timeout)
    }
}

fn message(channel: &str, payload: &str) -> Heard {
    Heard::Message(channel.to_owned(), payload.to_owned())
}

#[test]
fn st_13_messages_reach_those_who_listen_and_no_others() {
    let server = Server::start(&[]);
    let wire = wire(&server.url());
    let wakes = Wakes::of(&wire).unwrap();
    let one = Ear::of(&wakes, &["a", "b"]);
    let other = Ear::of(&wakes, &["b"]);
    assert_eq!((one.next(), other.next()), (Heard::Gap, Heard::Gap));
    server.ask(&["SPUBLISH", "a", "1"]);
    server.ask(&["SPUBLISH", "b", "2"]);
    assert_eq!(one.next(), message("a", "1"));
    assert_eq!(one.next(), message("b", "2"));
    assert_eq!(other.next(), message("b", "2"));
    assert!(other.is_silent());
    drop(one.handle);
    let subscribed = || server.info("pubsubshard_channels").unwrap();
    let of = |channel| server.ask(&["PUBSUB", "SHARDNUMSUB", channel]);
    until("the channel is left", || of("a") == of("nobody's") || subscribed() == "1");
    server.ask(&["SPUBLISH", "b", "3"]);
    assert_eq!(other.next(), message("b", "3"));
    // A third one on a channel that is there already is told so too.
    let third = Ear::of(&wakes, &["b"]);
    assert_eq!(third.next(), Heard::Gap);
    assert!(other.is_silent());
    // The connection is closed with the last of the store.
    drop((other, third, wakes, wire));
    until("the connection is closed", || server.info("connected_clients").as_deref() == Some("1"));
}

#[test]
fn st_13_a_cut_subscription_comes_back_and_tells_of_the_gap() {
    let mut server = Server::start(&[]);
    let wakes = Wakes::of(&wire(&server.url())).unwrap();
    let ear = Ear::of(&wakes, &["a"]);
    assert_eq!(ear.next(), Heard::Gap);
    server.ask(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    assert_eq!(ear.next(), Heard::Gap);
    server.ask(&["SPUBLISH", "a", "1"]);
    assert_eq!(ear.next(), message("a", "1"));
    server.end();
    server.begin();
    assert_eq!(ear.next(), Heard::Gap);
    server.ask(&["SPUBLISH", "a", "2"]);
    assert_eq!(ear.next(), message("a", "2"));
    server.freeze();
    std::thread::sleep(Duration::from_secs(5));
    server.thaw();
    assert_eq!(ear.next(), Heard::Gap);
    server.ask(&["SPUBLISH", "a", "3"]);
    assert_eq!(ear.next(), message("a", "3"));
}

#[tokio::test]
async fn a_user_with_the_listed_commands_is_enough() {
    let server = Server::start(&[]);
    let user = ["ACL", "SETUSER", "few", "on", ">secret", "~tidegate:*", "resetchannels", "&tidegate:*"];
    let commands = [
        "+fcall",
        "+function|load",
        "+evalsha",
        "+eval",
        "+info",
        "+ping",
        "+scan",
        "+ssubscribe",
        "+sunsubscribe",
        "+select",
        "+incr",
    ];
    server.ask(&[&user[..], &commands[..]].concat());
    let wire = wire(&format!("redis://few:secret@127.0.0.1:{}/1", server.port));
    let ran = |name: &str| server.calls(name);
    call(&wire, "tidegate:k").await.unwrap();
    server.ask(&["SCRIPT", "FLUSH"]);
    server.ask(&["FUNCTION", "FLUSH"]);
    call(&wire, "tidegate:k").await.unwrap();
    assert_eq!((ran("function|load"), ran("evalsha")), (2, 0));
    assert_eq!(scanned(&wire, b"tidegate:*").await.len(), 1);
    assert!(wire.risks().is_empty());
    let ear = Ear::of(&Wakes::of(&wire).unwrap(), &["tidegate:a"]);
    assert_eq!(ear.next(), Heard::Gap);
}

#[test]
fn st_13_a_subscription_waits_for_its_server() {
    let mut server = Server::start(&[]);
    server.end();
    let wakes = Wakes::of(&wire(&server.url())).unwrap();
    let ear = Ear::of(&wakes, &["a"]);
    assert!(ear.is_silent());
    server.begin();
    assert_eq!(ear.next(), Heard::Gap);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn st_13_channels_of_a_cluster_are_followed_to_where_they_move() {
    let nodes = cluster();
    let wire = wire(&format!("redis+cluster://127.0.0.1:{}", nodes[0].port));
    let wakes = Wakes::of(&wire).unwrap();
    let channel = "{moved}";
    let slot = slot_of(channel.as_bytes());
    let owner = usize::from(slot / 5461).min(2);
    let (from, to) = (&nodes[owner], &nodes[(owner + 1) % 3]);
    let ear = Ear::of(&wakes, &[channel]);
    let all = Ear::of(&wakes, &["{1}", "{2}", "{3}", "{4}", "{5}", "{6}"]);
    assert_eq!((ear.next(), all.next()), (Heard::Gap, Heard::Gap));
    for channel in ["{1}", "{2}", "{3}", "{4}", "{5}", "{6}"] {
        let node = &nodes[usize::from(slot_of(channel.as_bytes()) / 5461).min(2)];
        node.ask(&["SPUBLISH", channel, "x"]);
        assert_eq!(all.next(), message(channel, "x"));
    }
    from.ask(&["SPUBLISH", channel, "1"]);
    assert_eq!(ear.next(), message(channel, "1"));
    move_slot(from, to, &[&nodes[(owner + 2) % 3]], slot);
    assert_eq!(ear.next(), Heard::Gap);
    // The subscription may come back more than once while the move spreads.
    until("messages come from the new owner", || {
        to.ask(&["SPUBLISH", channel, "2"]);
        ear.heard.recv_timeout(Duration::from_millis(500)) == Ok(message(channel, "2"))
    });
    call(&wire, "{moved}").await.unwrap();
}
