//! The scripts: parts of Lua, put together once.

use std::sync::Arc;

use sha1_smol::Sha1;

/// A script, with the name that a server knows it by. A cheap clone.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    source: Arc<str>,
    sha: Arc<str>,
}

impl Script {
    /// Puts a script together from its parts.
    pub(crate) fn of(parts: &[&str]) -> Self {
        let source = parts.concat();
        let sha = Sha1::from(&source).digest().to_string();
        Self { source: source.into(), sha: sha.into() }
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
