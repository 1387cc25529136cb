//! A process that ends when its value is dropped, and when the process that started it dies.

use std::{
    io::{self, Write},
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, ChildStdin, Command, Stdio},
    time::{Duration, Instant},
};

use rustix::process::{Pid, Signal, kill_process};

/// Reads a line from the one who started it. The end of the pipe without a line means that this one died: then it ends
/// the process and removes its folder, since nobody else will. In a group of its own, so that Ctrl-C does not end it first.
const WATCHDOG: &str = r#"read -r _ || { kill -KILL "$1" 2>/dev/null; [ -z "$2" ] || rm -rf -- "$2"; }"#;

/// A child process and its watchdog.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    watchdog: Child,
    leash: Option<ChildStdin>,
}

impl Process {
    /// Starts a command in a group of its own. `folder` goes when the process that starts it is killed.
    pub(crate) fn start(command: &mut Command, folder: Option<&Path>) -> io::Result<Self> {
        let mut child = command.process_group(0).spawn()?;
        let watchdog = Command::new("/bin/sh")
            .args(["-c", WATCHDOG, "watchdog", &child.id().to_string()])
            .arg(folder.unwrap_or(Path::new("")))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        match watchdog {
            Ok(mut watchdog) => {
                let leash = watchdog.stdin.take();
                Ok(Self { child, watchdog, leash })
            }
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The child, for its pipes.
    pub(crate) fn child(&mut self) -> &mut Child {
        &mut self.child
    }

    /// Whether it has ended by itself.
    pub(crate) fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Asks it to end, and ends it where it does not within `patience`. Says whether it ended by itself.
    pub(crate) fn end(&mut self, patience: Duration) -> bool {
        let start = Instant::now();
        let _ = signal(self.child.id(), Signal::TERM);
        while start.elapsed() < patience {
            if self.has_ended() {
                return true;
            }
            std::thread::sleep(super::LOOK);
        }
        self.kill();
        false
    }

    /// Ends it at once, as a crash would (SIGKILL).
    pub(crate) fn kill(&mut self) {
        // Both fail only where it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Freezes it (SIGSTOP), and returns when it stands still.
    pub(crate) fn freeze(&self) -> io::Result<()> {
        signal(self.child.id(), Signal::STOP)?;
        let start = Instant::now();
        while !is_frozen(self.child.id()) {
            if start.elapsed() > super::PATIENCE {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the process did not stand still"));
            }
            std::thread::sleep(super::LOOK);
        }
        Ok(())
    }

    /// Lets it go on (SIGCONT).
    pub(crate) fn thaw(&self) -> io::Result<()> {
        signal(self.child.id(), Signal::CONT)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
        if let Some(mut leash) = self.leash.take() {
            let _ = leash.write_all(b"done\n");
        }
        let _ = self.watchdog.wait();
    }
}

/// Sends a signal to a process that this one has started and not waited for, so that the number is still its own.
fn signal(pid: u32, signal: Signal) -> io::Result<()> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))?;
    Ok(kill_process(pid, signal)?)
}

/// Whether a process stands still, by the letter behind its name. Where the system does not say, the signal is trusted.
fn is_frozen(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return true };
    // The name is in brackets, and may have brackets and blanks of its own.
    stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
}
