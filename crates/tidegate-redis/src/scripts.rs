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
    function: Option<Function>,
}

/// The same as a function of a library: from Redis 7.0 on. A cheap clone.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    /// What is sent to load the library.
    pub(crate) library: Arc<str>,
    /// What is sent to call the function.
    pub(crate) name: Arc<str>,
    /// The function that a full server still runs, where the other is refused.
    pub(crate) when_full: Option<Arc<str>>,
}

impl Script {
    /// Puts a script together from its parts.
    pub(crate) fn of(parts: &[&str]) -> Self {
        let source = with_values(&parts.concat());
        let sha = Sha1::from(&source).digest().to_string();
        Self { source: source.into(), sha: sha.into(), function: None }
    }

    /// Has it run as a function where the server has functions.
    pub(crate) fn with(self, function: Function) -> Self {
        Self { function: Some(function), ..self }
    }

    /// What runs it at less cost, where the server has functions.
    pub(crate) fn function(&self) -> Option<&Function> {
        self.function.as_ref()
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

/// A library of functions, put together from the same parts as the scripts.
///
/// A script makes its functions anew whenever it runs, which takes longer than what they do; those of a library are made
/// once. Its name and theirs have a hash of the source, so that versions live side by side.
#[derive(Debug)]
pub(crate) struct Library {
    source: Arc<str>,
    name: String,
}

impl Library {
    /// Puts a library together: what its functions have in common, then each with its name, what it does, and whether a
    /// full server is to run it.
    pub(crate) fn of(common: &[&str], functions: &[(&str, &str, bool)]) -> Self {
        let mut source = include_str!("../lua/library.lua").to_owned();
        source.push_str(&common.concat());
        for (name, body, on_full) in functions {
            let flags = if *on_full { "'allow-oom'" } else { "" };
            source.push_str(&format!(
                "register{{ function_name = LIBRARY_NAME .. '_{name}', flags = {{ {flags} }}, \
                 callback = called(function()\n{body}\nend) }}\n"
            ));
        }
        let source = with_values(&source);
        let name = format!("tidegate_{}", Sha1::from(&source).digest());
        let source = format!("#!lua name={name}\nlocal LIBRARY_NAME = '{name}'\n{source}");
        Self { source: source.into(), name }
    }

    /// One of its functions, and the one that takes its place on a full server.
    pub(crate) fn function(&self, name: &str, when_full: Option<&str>) -> Function {
        let full = |name: &str| format!("{}_{name}", self.name).into();
        Function { library: self.source.clone(), name: full(name), when_full: when_full.map(full) }
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
    pub(crate) circuit: Script,
    pub(crate) set_circuit: Script,
    pub(crate) circuit_snapshot: Script,
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
        let hash = [clock, include_str!("../lua/hash.lua")].concat();
        let first = [
            include_str!("../lua/state.lua"),
            include_str!("../lua/leases.lua"),
            include_str!("../lua/step.lua"),
        ]
        .concat();
        let more = [
            include_str!("../lua/limit.lua"),
            include_str!("../lua/rules.lua"),
            include_str!("../lua/places.lua"),
            include_str!("../lua/leases_more.lua"),
            include_str!("../lua/policy.lua"),
        ];
        let request = include_str!("../lua/exchange_request.lua");
        let exchange = include_str!("../lua/exchange.lua");
        let exchange_more = include_str!("../lua/exchange_more.lua");
        let step = include_str!("../lua/exchange_step.lua");
        let circuit = include_str!("../lua/circuit.lua");
        let circuit_request = include_str!("../lua/circuit_request.lua");
        let circuit_step = include_str!("../lua/circuit_step.lua");
        let circuit_more = [
            include_str!("../lua/circuit_reporters.lua"),
            include_str!("../lua/circuit_results.lua"),
            include_str!("../lua/circuit_trials.lua"),
            include_str!("../lua/circuit_carry.lua"),
        ];
        let circuits = [circuit, &circuit_more.concat(), circuit_request].concat();
        let library = Library::of(
            &[&hash, &first, &more.concat(), request, exchange, exchange_more, &circuits],
            &[
                // A full server refuses a function as a whole, unless it is marked. So what only gives back, keeps or looks is.
                ("exchange", step, false),
                ("exchange_full", include_str!("../lua/exchange_full.lua"), true),
                ("pause", include_str!("../lua/pause.lua"), false),
                ("resume", include_str!("../lua/resume.lua"), true),
                ("snapshot", include_str!("../lua/snapshot.lua"), true),
                ("leases_page", include_str!("../lua/leases_page.lua"), true),
                ("evict", include_str!("../lua/evict.lua"), true),
                ("set_limit", include_str!("../lua/set_limit.lua"), true),
                ("replace_policy", include_str!("../lua/replace_policy.lua"), false),
                ("forget", include_str!("../lua/forget.lua"), true),
                ("circuit", circuit_step, false),
                ("circuit_full", include_str!("../lua/circuit_full.lua"), true),
                ("set_circuit", include_str!("../lua/set_circuit.lua"), true),
                ("circuit_snapshot", include_str!("../lua/circuit_snapshot.lua"), true),
            ],
        );
        let parts = include_str!("../lua/parts.lua");
        let later = |part: &str| format!("M.more(function()\n{part}\nend)\n");
        let more = more.map(later).concat();
        let circuit_more = circuit_more.map(later).concat();
        let of_circuits = |name: &str, own: &str| {
            Script::of(&[parts, &hash, circuit, &circuit_more, own]).with(library.function(name, None))
        };
        let script = |name: &str, own: &str| {
            Script::of(&[parts, &hash, &first, &more, own]).with(library.function(name, None))
        };
        let exchange =
            Script::of(&[parts, &hash, &first, request, &more, &later(exchange_more), exchange, step]);
        let forget = [&more, circuit, &circuit_more, include_str!("../lua/forget.lua")].concat();
        Self {
            exchange: exchange.with(library.function("exchange", Some("exchange_full"))),
            pause: script("pause", include_str!("../lua/pause.lua")),
            resume: script("resume", include_str!("../lua/resume.lua")),
            snapshot: script("snapshot", include_str!("../lua/snapshot.lua")),
            leases_page: script("leases_page", include_str!("../lua/leases_page.lua")),
            evict: script("evict", include_str!("../lua/evict.lua")),
            set_limit: script("set_limit", include_str!("../lua/set_limit.lua")),
            replace_policy: script("replace_policy", include_str!("../lua/replace_policy.lua")),
            forget: Script::of(&[parts, &hash, &first, &forget]).with(library.function("forget", None)),
            circuit: of_circuits("circuit", &[circuit_request, circuit_step].concat())
                .with(library.function("circuit", Some("circuit_full"))),
            set_circuit: of_circuits("set_circuit", include_str!("../lua/set_circuit.lua")),
            circuit_snapshot: of_circuits("circuit_snapshot", include_str!("../lua/circuit_snapshot.lua")),
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
