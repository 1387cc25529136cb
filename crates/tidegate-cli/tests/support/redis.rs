//! A Redis of one's own for a test: on a free port, in a folder of its own, ended with the test.

#![allow(
    dead_code,
    clippy::expect_used,
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests say what they expect as tests do"
)]

use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// How long anything may take that is waited for.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Redis {
    port: u16,
    password: Option<&'static str>,
    folder: PathBuf,
    child: Option<Child>,
}

/// Waits until something is so.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is_so() {
        assert!(start.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

impl Redis {
    pub(crate) fn start() -> Self {
        Self::with(None)
    }

    /// One that asks for this password.
    pub(crate) fn guarded(password: &'static str) -> Self {
        Self::with(Some(password))
    }

    fn with(password: Option<&'static str>) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let folder = std::env::temp_dir().join(format!("tidegate-demo-{}-{port}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let mut redis = Self { port, password, folder, child: None };
        redis.begin();
        redis
    }

    /// Begins, or begins again on the same port, with nothing kept.
    pub(crate) fn begin(&mut self) {
        let mut command = Command::new("redis-server");
        command.args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--save", ""]);
        if let Some(password) = self.password {
            command.args(["--requirepass", password]);
        }
        command.current_dir(&self.folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.child = Some(command.spawn().expect("redis-server is installed"));
        let expected = if self.password.is_some() { "-NOAUTH" } else { "+PONG" };
        until("the server answers", || self.ask("PING").is_ok_and(|answer| answer[0].starts_with(expected)));
    }

    pub(crate) fn end(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// The lines of an answer. An array is its elements, without their lengths.
    pub(crate) fn ask(&self, command: &str) -> io::Result<Vec<String>> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.write_all(format!("{command}\r\n").as_bytes())?;
        let mut reader = BufReader::new(stream);
        let first = line(&mut reader)?;
        let Some(count) = first.strip_prefix('*') else { return Ok(vec![first]) };
        (0..count.parse::<usize>().unwrap()).map(|_| bulk(&mut reader)).collect()
    }

    /// The keys that match a pattern.
    pub(crate) fn keys(&self, pattern: &str) -> Vec<String> {
        self.ask(&format!("KEYS {pattern}")).unwrap()
    }
}

fn line(reader: &mut BufReader<TcpStream>) -> io::Result<String> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}

fn bulk(reader: &mut BufReader<TcpStream>) -> io::Result<String> {
    let length: usize = line(reader)?.trim_start_matches('$').parse().unwrap();
    let mut text = vec![0; length + 2];
    reader.read_exact(&mut text)?;
    text.truncate(length);
    Ok(String::from_utf8_lossy(&text).into_owned())
}

impl Drop for Redis {
    fn drop(&mut self) {
        self.end();
        fs::remove_dir_all(&self.folder).ok();
    }
}
