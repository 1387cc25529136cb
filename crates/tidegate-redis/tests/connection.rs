//! Shows that opening a store says what is wrong and what to do about it, and what may be lost silently.

#![allow(clippy::unwrap_used, clippy::panic)]

#[path = "../src/tests/fixture.rs"]
mod fixture;

use std::{
    io::{BufRead, BufReader, Write},
    net::TcpListener,
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use fixture::{Server, free_port, until};
use tidegate_core::{Cause, StoreError};
use tidegate_redis::RedisStore;

async fn fault(url: &str) -> (Cause, String) {
    let error = RedisStore::connect(url).await.unwrap_err();
    match &error {
        StoreError::Unavailable { cause, .. } => (*cause, error.to_string()),
        other => panic!("{other}"),
    }
}

fn with_login(server: &Server, login: &str) -> String {
    format!("redis://{login}@127.0.0.1:{}", server.port)
}

#[tokio::test]
async fn bi_1_a_wrong_url_is_refused_before_anything_else() {
    for url in ["", "127.0.0.1", "http://127.0.0.1", "redis://", "redis://host:x", "redis+sentinel://host"] {
        let error = RedisStore::lazy(url).unwrap_err();
        assert!(matches!(&error, StoreError::Invalid(_)), "{error}");
        assert!(error.to_string().contains("redis://"), "{error}");
        assert_eq!(RedisStore::connect(url).await.unwrap_err(), error);
    }
}

#[test]
fn bi_1_options_have_bounds() {
    let with = |prefix: &str| RedisStore::builder("redis://host").prefix(prefix).lazy();
    for prefix in ["a", "with space", "ü:x", &"x".repeat(64)] {
        with(prefix).unwrap();
    }
    for prefix in ["", "a{b", "a}b", "a\nb", &"x".repeat(65), &"ü".repeat(33)] {
        assert!(matches!(with(prefix), Err(StoreError::Invalid(_))), "{prefix:?}");
    }
    let with = |timeout| RedisStore::builder("redis://host").connect_timeout(timeout).lazy();
    with(Duration::from_millis(10)).unwrap();
    with(Duration::from_secs(60)).unwrap();
    with(Duration::from_millis(9)).unwrap_err();
    with(Duration::from_millis(60_001)).unwrap_err();
}

#[tokio::test]
async fn un_7_opening_lazily_does_no_io() {
    let nobody = free_port();
    let store = RedisStore::lazy(&format!("redis://127.0.0.1:{nobody}")).unwrap();
    assert!(store.risks().is_empty());
    let (cause, text) = fault(&format!("redis://127.0.0.1:{nobody}")).await;
    assert_eq!(cause, Cause::Disconnected);
    assert!(text.contains(&nobody.to_string()), "{text}");
}

#[tokio::test]
async fn a_server_that_does_not_answer_is_given_up() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    let start = Instant::now();
    let timeout = Duration::from_millis(100);
    let error = RedisStore::builder(url).connect_timeout(timeout).connect().await.unwrap_err();
    assert!(matches!(error, StoreError::Unavailable { cause: Cause::NoAnswer, .. }), "{error}");
    assert!(start.elapsed() >= timeout);
}

#[tokio::test]
async fn a_refused_login_is_told() {
    let server = Server::start(&["--requirepass", "p@ss/word"]);
    for url in [server.url(), with_login(&server, ":mistaken"), with_login(&server, "nobody:mistaken")] {
        let (cause, text) = fault(&url).await;
        assert_eq!(cause, Cause::Refused, "{text}");
        assert!(text.contains("check the user and password"), "{text}");
        assert!(!text.contains("mistaken"), "{text}");
    }
    RedisStore::connect(&with_login(&server, ":p%40ss%2Fword")).await.unwrap();
    RedisStore::connect(&with_login(&server, "default:p%40ss%2Fword")).await.unwrap();
}

#[tokio::test]
async fn a_database_that_is_not_there_is_told() {
    let server = Server::start(&["--databases", "2"]);
    RedisStore::connect(&format!("{}/1", server.url())).await.unwrap();
    let (cause, text) = fault(&format!("{}/2", server.url())).await;
    assert_eq!(cause, Cause::Refused, "{text}");
}

#[tokio::test]
async fn what_a_url_says_must_be_so() {
    let node = Server::start(&["--cluster-enabled", "yes"]);
    let (cause, text) = fault(&node.url()).await;
    assert_eq!(cause, Cause::Refused);
    assert!(text.contains("redis+cluster://"), "{text}");
    let single = Server::start(&[]);
    let (cause, text) = fault(&format!("redis+cluster://127.0.0.1:{}", single.port)).await;
    assert_eq!(cause, Cause::Refused);
    assert!(text.contains("no cluster"), "{text}");
    let (cause, text) = fault(&format!("rediss://127.0.0.1:{}", single.port)).await;
    assert_eq!(cause, Cause::NoAnswer, "{text}");
    assert!(text.contains("TLS"), "{text}");
    assert!(RedisStore::lazy("redis+cluster://host/1").is_err());
}

#[tokio::test]
async fn tls_is_used_and_certificates_are_looked_at() {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned(), "localhost".to_owned()]).unwrap();
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let folder = std::env::temp_dir().join(format!("tidegate-redis-tls-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = |name: &str| folder.join(name).to_str().unwrap().to_owned();
    std::fs::write(path("cert"), &certificate).unwrap();
    std::fs::write(path("key"), &key).unwrap();
    let port = free_port();
    let server = Server::start(&[
        "--tls-port",
        &port.to_string(),
        "--tls-cert-file",
        &path("cert"),
        "--tls-key-file",
        &path("key"),
        "--tls-ca-cert-file",
        &path("cert"),
    ]);
    let url = format!("rediss://127.0.0.1:{port}");
    // Nobody knows its authority, and it wants a certificate itself.
    let (cause, text) = fault(&url).await;
    assert_eq!(cause, Cause::Disconnected);
    assert!(text.contains("certificate"), "{text}");
    RedisStore::builder(&url).authority(certificate.clone()).connect().await.unwrap_err();
    let builder = RedisStore::builder(&url).authority(certificate.clone());
    builder.certificate(certificate, key).connect().await.unwrap();
    drop(server);
    std::fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn sentinels_have_a_login_of_their_own() {
    let primary = Server::start(&[]);
    let sentinel = Server::sentinel(primary.port);
    sentinel.ask(&["ACL", "SETUSER", "looker", "on", ">secret", "+sentinel|get-master-addr-by-name"]);
    sentinel.ask(&["ACL", "SETUSER", "default", "off"]);
    let url = format!("redis+sentinel://127.0.0.1:{}/main", sentinel.port);
    let (cause, text) = fault(&url).await;
    assert_eq!(cause, Cause::Refused, "{text}");
    RedisStore::builder(url).sentinel_login("looker", "secret").connect().await.unwrap();
}

#[tokio::test]
async fn un_6_a_replica_is_refused_with_where_its_primary_is() {
    let primary = Server::start(&[]);
    let port = primary.port.to_string();
    let replica = Server::start(&["--replicaof", "127.0.0.1", &port]);
    let (cause, text) = fault(&replica.url()).await;
    assert_eq!(cause, Cause::Refused);
    assert!(text.contains("replica") && text.contains(&port), "{text}");
}

#[tokio::test]
async fn un_6_what_may_be_lost_silently_is_told_once() {
    let primary = Server::start(&["--maxmemory-policy", "allkeys-lru", "--maxmemory", "100mb"]);
    let replica = Server::start(&["--replicaof", "127.0.0.1", &primary.port.to_string()]);
    until("the replica follows", || primary.info("connected_slaves").as_deref() == Some("1"));
    let told = Arc::new(Mutex::new(Vec::new()));
    let tells = told.clone();
    let builder = RedisStore::builder(primary.url());
    let builder = builder.on_risk(move |risk| tells.lock().unwrap().push(risk.to_owned()));
    let store = builder.connect().await.unwrap();
    let risks = store.risks();
    assert_eq!(risks.len(), 2, "{risks:?}");
    assert!(risks[0].contains("allkeys-lru") && risks[1].contains("min-replicas-to-write"), "{risks:?}");
    assert_eq!(*told.lock().unwrap(), risks);
    drop(replica);
    let sound = Server::start(&[]);
    assert!(RedisStore::connect(&sound.url()).await.unwrap().risks().is_empty());
}

#[tokio::test]
async fn un_6_a_server_that_will_not_be_looked_at_is_used_and_told_of() {
    let server = Server::start(&[]);
    server.ask(&[
        "ACL",
        "SETUSER",
        "few",
        "on",
        ">secret",
        "~tidegate:*",
        "&tidegate:*",
        "+evalsha",
        "+eval",
    ]);
    let store = RedisStore::connect(&with_login(&server, "few:secret")).await.unwrap();
    assert_eq!(store.risks().len(), 1);
    assert!(store.risks()[0].contains("could not be checked"), "{:?}", store.risks());
    server.ask(&["ACL", "SETUSER", "few", "+info"]);
    let store = RedisStore::connect(&with_login(&server, "few:secret")).await.unwrap();
    assert!(store.risks().is_empty());
}

#[tokio::test]
async fn a_connection_that_was_there_is_looked_at_too() {
    let node = Server::start(&["--cluster-enabled", "yes"]);
    let client = redis::Client::open(node.url()).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    let error = RedisStore::from_connection(connection).connect().await.unwrap_err();
    assert!(error.to_string().contains("cluster"), "{error}");
    let server = Server::start(&["--maxmemory-policy", "volatile-ttl"]);
    let client = redis::Client::open(server.url()).unwrap();
    let connection = client.get_multiplexed_async_connection().await.unwrap();
    let store = RedisStore::from_connection(connection.clone()).prefix("own").connect().await.unwrap();
    assert_eq!(store.risks().len(), 1);
    RedisStore::builder(server.url()).over(connection).connect().await.unwrap();
}

#[tokio::test]
async fn a_socket_of_the_same_host_works() {
    // In the folder of the server, which is gone with it.
    let server = Server::start(&["--unixsocket", "own.sock"]);
    let path = server.folder.join("own.sock");
    let path = path.to_str().unwrap();
    RedisStore::connect(&format!("redis+unix://{path}?db=1")).await.unwrap();
    let (cause, _) = fault(&format!("redis+unix://{path}.not")).await;
    assert_eq!(cause, Cause::Disconnected);
}

/// A server that answers `HELLO` and `INFO` as it is told to.
fn pretender(hello: &'static str, info: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("redis://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
        while let Some(Ok(line)) = lines.next() {
            let answer = match line.as_str() {
                "HELLO" => hello.to_owned(),
                "INFO" => format!("${}\r\n{info}\r\n", info.len()),
                _ => continue,
            };
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    url
}

#[tokio::test]
async fn a_server_that_is_too_old_is_told_so() {
    let hello = "%1\r\n+proto\r\n:3\r\n";
    let (cause, text) = fault(&pretender(hello, "redis_version:6.0.16\r\nrole:master\r\n")).await;
    assert_eq!(cause, Cause::Refused);
    assert!(text.contains("6.0.16") && text.contains("6.2"), "{text}");
    let unknown = "-ERR unknown command `HELLO`, with args beginning with: `3`, \r\n";
    let (cause, text) = fault(&pretender(unknown, "")).await;
    assert_eq!(cause, Cause::Refused, "{text}");
    assert!(text.contains("6.2"), "{text}");
    // Valkey says which Redis it is compatible with.
    let valkey = "redis_version:7.2.4\r\nserver_name:valkey\r\nvalkey_version:8.0.1\r\nrole:master\r\n";
    RedisStore::connect(&pretender(hello, valkey)).await.unwrap();
}
