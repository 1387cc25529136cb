//! A Redis of one's own for a test.

use std::{
    net::TcpListener,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use redis::Connection;

/// A server that is stopped with this.
pub(crate) struct Server {
    child: Child,
    port: u16,
    _dir: tempfile::TempDir,
}

impl Server {
    /// Starts one that keeps nothing, with these options as well.
    pub(crate) fn start(options: &[&str]) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let dir = tempfile::tempdir().unwrap();
        let child = Command::new("redis-server")
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--daemonize", "no"])
            .args(options)
            .arg("--dir")
            .arg(dir.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed");
        let server = Self { child, port, _dir: dir };
        let since = Instant::now();
        while server.try_connection().is_none() {
            assert!(since.elapsed() < Duration::from_secs(10), "the server did not start");
            std::thread::sleep(Duration::from_millis(10));
        }
        server
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    fn try_connection(&self) -> Option<Connection> {
        let client = redis::Client::open(self.url()).unwrap();
        let mut connection = client.get_connection().ok()?;
        redis::cmd("PING").query::<String>(&mut connection).ok().map(|_| connection)
    }

    // Not every test asks the server itself.
    #[allow(dead_code)]
    pub(crate) fn connection(&self) -> Connection {
        self.try_connection().expect("the server answers")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
