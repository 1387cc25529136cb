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

/// What the scripts go by for the time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Clock {
    /// The server's own.
    Server,
    /// The last argument, for tests.
    Argument,
}

/// All scripts of a store.
#[derive(Debug)]
pub(crate) struct Scripts {
    pub(crate) exchange: Script,
    pub(crate) pause: Script,
    pub(crate) resume: Script,
    pub(crate) snapshot: Script,
    pub(crate) leases_page: Script,
    pub(crate) evict: Script,
    pub(crate) set_limit: Script,
    pub(crate) replace_policy: Script,
    pub(crate) forget: Script,
}

impl Scripts {
    pub(crate) fn new(clock: Clock) -> Self {
        let clock = match clock {
            Clock::Server => include_str!("../lua/clock.lua"),
            Clock::Argument => include_str!("../lua/clock_settable.lua"),
        };
        // Each of them needs nearly all of the parts: every step sweeps, and many go over to another policy.
        let script = |own| {
            Script::of(&[
                clock,
                include_str!("../lua/state.lua"),
                include_str!("../lua/limit.lua"),
                include_str!("../lua/rules.lua"),
                include_str!("../lua/leases.lua"),
                include_str!("../lua/places.lua"),
                include_str!("../lua/policy.lua"),
                include_str!("../lua/step.lua"),
                own,
            ])
        };
        Self {
            exchange: script(include_str!("../lua/exchange.lua")),
            pause: script(include_str!("../lua/pause.lua")),
            resume: script(include_str!("../lua/resume.lua")),
            snapshot: script(include_str!("../lua/snapshot.lua")),
            leases_page: script(include_str!("../lua/leases_page.lua")),
            evict: script(include_str!("../lua/evict.lua")),
            set_limit: script(include_str!("../lua/set_limit.lua")),
            replace_policy: script(include_str!("../lua/replace_policy.lua")),
            forget: script(include_str!("../lua/forget.lua")),
        }
    }
}
