//! What the command says and how it ends: data on stdout, the rest on stderr, exit codes that scripts can use.

use std::io::{self, Write as _};
use std::process::ExitCode;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It did what it was asked: 0.
    Done,
    /// Something went wrong on the way: 1.
    Failed,
    /// It was asked for something that does not make sense, and started nothing: 64.
    Usage,
    /// Ctrl-C ended it early: 130.
    Interrupted,
}

impl Exit {
    /// The number that the shell sees.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Done => 0,
            Self::Failed => 1,
            Self::Usage => 64,
            Self::Interrupted => 130,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// Writes `text` to stdout and hands it over at once.
///
/// # Errors
///
/// The write failed. A reader that went away is such a failure too; [`explain`] takes it for a quiet end.
pub(crate) fn print(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Writes a line to stderr. Nobody is left to tell when that fails.
pub(crate) fn note(line: &str) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Says what went wrong, where that is worth saying, and how the command ends.
pub(crate) fn explain(error: &anyhow::Error) -> Exit {
    if let Some(usage) = error.downcast_ref::<clap::Error>() {
        let _ = usage.print();
        // Help and version come as errors too, and are none.
        return if usage.exit_code() == 0 { Exit::Done } else { Exit::Usage };
    }
    let gone = error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|e| e.kind() == io::ErrorKind::BrokenPipe)
    });
    if gone {
        // `tidegate ... | head` has seen enough.
        return Exit::Done;
    }
    note(&format!("error: {error:#}"));
    Exit::Failed
}

/// Whether colour is welcome: `NO_COLOR` unset or empty.
pub(crate) fn colour_is_welcome() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
