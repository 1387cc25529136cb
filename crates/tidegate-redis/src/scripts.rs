//! The scripts: parts of Lua, put together once.

use std::{
    collections::HashMap,
    sync::{Arc, LazyLock},
};

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
        let source = with_values(&parts.concat());
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
    /// The scripts that go by a clock: put together once, since they are always the same.
    pub(crate) fn by(clock: Clock) -> &'static Self {
        static BY_SERVER: LazyLock<Scripts> = LazyLock::new(|| Scripts::new(Clock::Server));
        static BY_ARGUMENT: LazyLock<Scripts> = LazyLock::new(|| Scripts::new(Clock::Argument));
        match clock {
            Clock::Server => &BY_SERVER,
            Clock::Argument => &BY_ARGUMENT,
        }
    }

    fn new(clock: Clock) -> Self {
        let clock = match clock {
            Clock::Server => include_str!("../lua/clock.lua"),
            Clock::Argument => include_str!("../lua/clock_settable.lua"),
        };
        let script = |request: &str, rarer: &str, own: &str| {
            let more = [
                include_str!("../lua/limit.lua"),
                include_str!("../lua/rules.lua"),
                include_str!("../lua/places.lua"),
                include_str!("../lua/leases_more.lua"),
                rarer,
                include_str!("../lua/policy.lua"),
            ];
            let more = more.map(|part| format!("M.more(function()\n{part}\nend)\n")).concat();
            Script::of(&[
                include_str!("../lua/parts.lua"),
                clock,
                include_str!("../lua/state.lua"),
                include_str!("../lua/leases.lua"),
                include_str!("../lua/step.lua"),
                request,
                &more,
                own,
            ])
        };
        let exchange = script(
            include_str!("../lua/exchange_request.lua"),
            include_str!("../lua/exchange_more.lua"),
            include_str!("../lua/exchange.lua"),
        );
        Self {
            exchange,
            pause: script("", "", include_str!("../lua/pause.lua")),
            resume: script("", "", include_str!("../lua/resume.lua")),
            snapshot: script("", "", include_str!("../lua/snapshot.lua")),
            leases_page: script("", "", include_str!("../lua/leases_page.lua")),
            evict: script("", "", include_str!("../lua/evict.lua")),
            set_limit: script("", "", include_str!("../lua/set_limit.lua")),
            replace_policy: script("", "", include_str!("../lua/replace_policy.lua")),
            forget: script("", "", include_str!("../lua/forget.lua")),
        }
    }
}

/// Puts constants (`local NAME <const> = value`) in by their values: a local that functions use costs every run of a script
/// for each of them.
fn with_values(source: &str) -> String {
    let mut values = HashMap::new();
    let mut left = String::with_capacity(source.len());
    for line in source.lines() {
        let constant =
            line.trim_start().strip_prefix("local ").and_then(|rest| rest.split_once(" <const> = "));
        match constant {
            Some((name, value)) => {
                values.insert(name, value);
            }
            None => {
                left.push_str(line);
                left.push('\n');
            }
        }
    }
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let mut put_in = String::with_capacity(left.len());
    let mut rest = left.as_str();
    while !rest.is_empty() {
        let word = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
        let (first, others) = rest.split_at(word.max(rest.chars().next().map_or(0, char::len_utf8)));
        put_in.push_str(values.get(first).copied().unwrap_or(first));
        rest = others;
    }
    put_in
}
