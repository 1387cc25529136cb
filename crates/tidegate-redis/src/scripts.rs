//! The scripts: parts of Lua, put together once.

use sha1_smol::Sha1;

/// A script, with the name that a server knows it by.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    source: String,
    sha: String,
}

impl Script {
    /// Puts a script together from its parts.
    pub(crate) fn of(parts: &[&str]) -> Self {
        let source = parts.concat();
        let sha = Sha1::from(&source).hexdigest();
        Self { source, sha }
    }

    /// What is sent to load it.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// What is sent to run it.
    pub(crate) fn sha(&self) -> &str {
        &self.sha
    }
}
