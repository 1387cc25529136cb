//! Servers for tests: each on a free port, in a folder of its own, ended with the test.

#![allow(dead_code, clippy::unwrap_used, clippy::panic)]

use std::{
    fs,
    net::TcpListener,
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// How long a server may take to do what it is told.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Server {
    pub(crate) port: u16,
    arguments: Vec<String>,
    pub(crate) folder: PathBuf,
    child: Option<Child>,
}

/// A port that nobody uses, whose port for the cluster bus is free as well.
pub(crate) fn free_port() -> u16 {
    loop {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let Some(bus) = port.checked_add(10_000) else { continue };
        if TcpListener::bind(("127.0.0.1", bus)).is_ok() {
            return port;
        }
    }
}

/// Waits until something is so.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Server {
    pub(crate) fn start(arguments: &[&str]) -> Self {
        let port = free_port();
        let folder = std::env::temp_dir().join(format!("tidegate-redis-{}-{port}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
        let mut server = Self { port, arguments, folder, child: None };
        server.begin();
        server
    }

    /// A sentinel that looks after a primary, with a quorum of one.
    pub(crate) fn sentinel(primary: u16) -> Self {
        let port = free_port();
        let folder = std::env::temp_dir().join(format!("tidegate-redis-{}-{port}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let settings = format!(
            "port {port}\nbind 127.0.0.1\nsentinel monitor main 127.0.0.1 {primary} 1\n\
             sentinel down-after-milliseconds main 1000\nsentinel failover-timeout main 5000\n"
        );
        fs::write(folder.join("sentinel.conf"), settings).unwrap();
        let mut server = Self { port, arguments: vec!["--sentinel".to_owned()], folder, child: None };
        server.begin();
        server
    }

    /// Begins, or begins again on the same port.
    pub(crate) fn begin(&mut self) {
        let mut command = Command::new("redis-server");
        if self.arguments.iter().any(|argument| argument == "--sentinel") {
            command.arg(self.folder.join("sentinel.conf"));
        } else {
            command.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        }
        command.args(&self.arguments).current_dir(&self.folder).stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn().unwrap());
        let asks_for_login = self.arguments.iter().any(|argument| argument == "--requirepass");
        until("the server answers", || match self.try_ask(&["PING"]) {
            Ok(_) => true,
            Err(error) => asks_for_login && error.code() == Some("NOAUTH"),
        });
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub(crate) fn try_ask(&self, words: &[&str]) -> redis::RedisResult<redis::Value> {
        let client = redis::Client::open(self.url())?;
        let mut connection = client.get_connection_with_timeout(Duration::from_secs(1))?;
        connection.set_read_timeout(Some(Duration::from_secs(5)))?;
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(*word);
        }
        command.query(&mut connection)
    }

    pub(crate) fn ask(&self, words: &[&str]) -> redis::Value {
        self.try_ask(words).unwrap()
    }

    /// A fact of `INFO`; none while the server does not answer.
    pub(crate) fn info(&self, name: &str) -> Option<String> {
        let info: String = redis::from_redis_value(self.try_ask(&["INFO"]).ok()?).ok()?;
        info.lines().find_map(|line| line.strip_prefix(&format!("{name}:")).map(str::to_owned))
    }

    /// How often a command was called, as far as it was not refused at once.
    pub(crate) fn calls(&self, command: &str) -> u64 {
        let redis::Value::BulkString(info) = self.ask(&["INFO", "commandstats"]) else { panic!("no text") };
        let info = String::from_utf8(info).unwrap();
        let begins = format!("cmdstat_{command}:calls=");
        let line = info.lines().find_map(|line| line.strip_prefix(&begins));
        line.map_or(0, |line| line.split(',').next().unwrap().parse().unwrap())
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.as_ref().unwrap().id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().unwrap().success());
    }

    /// Has the server do nothing, with its connections open.
    pub(crate) fn freeze(&self) {
        self.signal("-STOP");
    }

    pub(crate) fn thaw(&self) {
        self.signal("-CONT");
    }

    pub(crate) fn end(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().ok();
            child.wait().ok();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
        fs::remove_dir_all(&self.folder).ok();
    }
}

/// Three nodes that serve a third of the slots each.
pub(crate) fn cluster() -> Vec<Server> {
    let settings = ["--cluster-enabled", "yes", "--cluster-node-timeout", "2000"];
    let nodes: Vec<Server> = (0..3).map(|_| Server::start(&settings)).collect();
    for (node, (first, last)) in nodes.iter().zip([(0, 5460), (5461, 10922), (10923, 16383)]) {
        node.ask(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &last.to_string()]);
    }
    for node in &nodes[1..] {
        node.ask(&["CLUSTER", "MEET", "127.0.0.1", &nodes[0].port.to_string()]);
    }
    until("the cluster is whole", || {
        nodes.iter().all(|node| {
            let info: String = redis::from_redis_value(node.ask(&["CLUSTER", "INFO"])).unwrap();
            info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3")
        })
    });
    nodes
}

/// The name of a node of a cluster.
pub(crate) fn node_name(node: &Server) -> String {
    redis::from_redis_value(node.ask(&["CLUSTER", "MYID"])).unwrap()
}
