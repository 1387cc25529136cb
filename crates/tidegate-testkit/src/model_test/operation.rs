//! What is done to both sides, and how it reads.
//!
//! An operation names the leases and grants of earlier ones by where they came from. So it means the same on both
//! sides, and still means something where others were taken out.

use std::fmt;

use tidegate_core::{
    Acquire, AcquireRequest, HandOver, Name, Outcome, Queue, RuleKey, ScopedRequest, Token, circuit::Position,
};

use super::{
    said::Said,
    world::{Who, World},
};

/// An operation, with a number that it keeps.
#[derive(Clone, Debug)]
pub(super) struct Step {
    pub(super) serial: u32,
    pub(super) operation: Operation,
}

#[derive(Clone, Debug)]
pub(super) enum Operation {
    Acquire {
        who: Who,
        request: AcquireRequest,
    },
    Scoped {
        who: Who,
        request: ScopedRequest,
    },
    /// One job of cost 1 on the synchronous path, in brief.
    AcquireOne {
        who: Who,
        tier: usize,
    },
    ReleaseOne {
        who: Who,
        release: Given,
    },
    Release {
        who: Who,
        releases: Vec<Given>,
    },
    Renew {
        who: Who,
        restore: Option<Known>,
        renewals: Vec<Kept>,
    },
    HandOver {
        who: Who,
        hand_overs: Vec<HandOver>,
    },
    Settle {
        who: Who,
        settlements: Vec<Settling>,
    },
    Observe {
        who: Who,
        observations: Vec<Observing>,
    },
    Exchange {
        who: Who,
        number: Number,
        parts: Box<Parts>,
    },
    Pause {
        place: usize,
        ms: u64,
    },
    Resume {
        place: usize,
    },
    Snapshot {
        place: usize,
    },
    Leases {
        place: usize,
        after: Option<u32>,
        most: usize,
    },
    Evict {
        place: usize,
        lease: Lease,
    },
    SetLimit {
        place: usize,
        limit: u32,
    },
    Replace {
        who: Who,
    },
    Forget {
        place: usize,
    },
    /// The policy is one of the circuit's.
    Circuit {
        who: Who,
        said: Vec<Said>,
    },
    SetCircuit {
        place: usize,
        position: Position,
    },
    Advance {
        micros: u64,
    },
    StepBack {
        micros: u64,
    },
    Lose,
}

/// A lease by where it came from, or a token that was never given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Lease {
    Of(Origin),
    Never(Token),
}

/// The grant of that index, of the operation of that number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) struct Origin {
    pub(super) serial: u32,
    pub(super) index: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Given {
    pub(super) lease: Lease,
    pub(super) outcome: Outcome,
    pub(super) retry_after_ms: Option<u64>,
}

#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) lease: Lease,
    pub(super) class: Option<Name>,
}

/// What is restored: the epoch of so many epochs ago, and what is known of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) epochs_ago: usize,
    /// The limit of so many answers ago.
    pub(super) limit_ago: Option<usize>,
    pub(super) paused_ms: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Settling {
    pub(super) grant: Origin,
    pub(super) rule: RuleKey,
    pub(super) cost: u64,
    pub(super) actual: u64,
}

#[derive(Clone, Debug)]
pub(super) struct Observing {
    pub(super) grant: Origin,
    pub(super) rule: RuleKey,
    pub(super) remaining: u64,
    /// After its grant.
    pub(super) resets_in_ms: u64,
}

/// The number of an exchange, seen from the last one of its driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Number {
    None,
    Next,
    NextUntil {
        ms: u64,
    },
    NextTooLate,
    /// The last exchange again, whatever parts are written here.
    Repeat,
    Lower,
}

#[derive(Clone, Debug, Default)]
pub(super) struct Parts {
    pub(super) restore: Option<Known>,
    pub(super) releases: Vec<Given>,
    pub(super) settlements: Vec<Settling>,
    pub(super) observations: Vec<Observing>,
    pub(super) renewals: Vec<Kept>,
    pub(super) hand_overs: Vec<HandOver>,
    pub(super) acquires: Vec<Acquire>,
    pub(super) queues: Vec<Queue>,
}

impl Operation {
    /// What it is called in statistics.
    pub(super) const fn kind(&self) -> &'static str {
        match self {
            Self::Acquire { .. } => "acquire",
            Self::Scoped { .. } => "acquire_scoped",
            Self::AcquireOne { .. } => "acquire_one",
            Self::ReleaseOne { .. } => "release_one",
            Self::Release { .. } => "release",
            Self::Renew { .. } => "renew",
            Self::HandOver { .. } => "hand_over",
            Self::Settle { .. } => "settle",
            Self::Observe { .. } => "observe",
            Self::Exchange { .. } => "exchange",
            Self::Pause { .. } => "pause",
            Self::Resume { .. } => "resume",
            Self::Snapshot { .. } => "snapshot",
            Self::Leases { .. } => "leases",
            Self::Evict { .. } => "evict",
            Self::SetLimit { .. } => "set_limit",
            Self::Replace { .. } => "replace_policy",
            Self::Forget { .. } => "forget",
            Self::Circuit { .. } => "circuit",
            Self::SetCircuit { .. } => "set_circuit",
            Self::Advance { .. } => "advance",
            Self::StepBack { .. } => "step_back",
            Self::Lose => "lose",
        }
    }

    /// The same with less in it, one way each.
    pub(super) fn simpler(&self) -> Vec<Self> {
        match self {
            Self::Acquire { who, request } => shorter(&request.jobs)
                .map(|jobs| Self::Acquire { who: *who, request: AcquireRequest { jobs, ..request.clone() } })
                .collect(),
            Self::Scoped { who, request } => shorter(&request.jobs)
                .map(|jobs| Self::Scoped { who: *who, request: ScopedRequest { jobs, ..request.clone() } })
                .collect(),
            Self::Release { who, releases } => {
                shorter(releases).map(|releases| Self::Release { who: *who, releases }).collect()
            }
            Self::Renew { who, restore, renewals } => shorter(renewals)
                .map(|renewals| Self::Renew { who: *who, restore: *restore, renewals })
                .collect(),
            Self::HandOver { who, hand_overs } => {
                shorter(hand_overs).map(|hand_overs| Self::HandOver { who: *who, hand_overs }).collect()
            }
            Self::Settle { who, settlements } => {
                shorter(settlements).map(|settlements| Self::Settle { who: *who, settlements }).collect()
            }
            Self::Observe { who, observations } => {
                shorter(observations).map(|observations| Self::Observe { who: *who, observations }).collect()
            }
            Self::Exchange { who, number, parts } => {
                let smaller = parts.simpler().into_iter().map(Box::new);
                let mut all: Vec<Self> =
                    smaller.map(|parts| Self::Exchange { who: *who, number: *number, parts }).collect();
                if *number != Number::None && *number != Number::Repeat {
                    all.push(Self::Exchange { who: *who, number: Number::None, parts: parts.clone() });
                }
                all
            }
            Self::Circuit { who, said } => {
                let mut all: Vec<Self> =
                    shorter(said).map(|said| Self::Circuit { who: *who, said }).collect();
                for (at, one) in said.iter().enumerate() {
                    all.extend(one.simpler().map(|one| {
                        let mut said = said.clone();
                        said[at] = one;
                        Self::Circuit { who: *who, said }
                    }));
                }
                all
            }
            Self::Advance { micros } if *micros > 1_000 => {
                vec![Self::Advance { micros: micros / 1_000 * 1_000 }]
                    .into_iter()
                    .filter(|_| micros % 1_000 > 0)
                    .collect()
            }
            _ => Vec::new(),
        }
    }
}

/// The list without each of its items in turn, as long as one is left.
fn shorter<T: Clone>(list: &[T]) -> impl Iterator<Item = Vec<T>> + '_ {
    let most = if list.len() > 1 { list.len() } else { 0 };
    (0..most).map(|without| {
        let kept = list.iter().enumerate().filter(move |(at, _)| *at != without);
        kept.map(|(_, item)| item.clone()).collect()
    })
}

fn shorten<T>(list: &mut Vec<T>) {
    list.pop();
}

impl Parts {
    fn simpler(&self) -> Vec<Self> {
        let mut all = Vec::new();
        let mut without = |is_there: bool, take_out: fn(&mut Self)| {
            if is_there {
                let mut parts = self.clone();
                take_out(&mut parts);
                all.push(parts);
            }
        };
        without(self.restore.is_some(), |parts| parts.restore = None);
        without(!self.releases.is_empty(), |parts| shorten(&mut parts.releases));
        without(!self.settlements.is_empty(), |parts| shorten(&mut parts.settlements));
        without(!self.observations.is_empty(), |parts| shorten(&mut parts.observations));
        without(!self.renewals.is_empty(), |parts| shorten(&mut parts.renewals));
        without(!self.hand_overs.is_empty(), |parts| shorten(&mut parts.hand_overs));
        without(!self.queues.is_empty(), |parts| shorten(&mut parts.queues));
        without(!self.acquires.is_empty(), |parts| shorten(&mut parts.acquires));
        without(self.acquires.len() > 1, |parts| {
            parts.acquires.remove(0);
        });
        for (at, acquire) in self.acquires.iter().enumerate() {
            if acquire.jobs() > 1 {
                let mut parts = self.clone();
                match parts.acquires.get_mut(at) {
                    Some(Acquire::Prefix(request)) => shorten(&mut request.jobs),
                    Some(Acquire::Scoped(request)) => shorten(&mut request.jobs),
                    None => {}
                }
                all.push(parts);
            }
        }
        all
    }
}

// ---- reading -------------------------------------------------------------------------------------------------------

impl Step {
    /// A line for people.
    pub(super) fn read(&self, world: &World) -> String {
        format!("{:>6}. {}", self.serial, Reading { operation: &self.operation, world })
    }
}

struct Reading<'a> {
    operation: &'a Operation,
    world: &'a World,
}

impl Reading<'_> {
    fn who(&self, who: Who) -> String {
        let place = self.world.place(who.place);
        let refuses = if who.refuses { ", refusing newer ones" } else { "" };
        let revision = self.world.policy(who).revision();
        format!(
            "driver {} of `{}` (policy {} of revision {revision}{refuses})",
            who.driver, place.id, who.policy
        )
    }

    fn id(&self, place: usize) -> &str {
        self.world.place(place).id.as_str()
    }
}

impl fmt::Display for Reading<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.operation {
            Operation::Acquire { who, request } => {
                write!(f, "{} acquires {}", self.who(*who), Prefix(request))
            }
            Operation::Scoped { who, request } => {
                write!(f, "{} acquires {}", self.who(*who), Scoped(request))
            }
            Operation::AcquireOne { who, tier } => {
                let class = self.world.policy(*who).class(*tier);
                write!(f, "{} acquires one in brief, {}", self.who(*who), Class(class))
            }
            Operation::ReleaseOne { who, release } => {
                write!(f, "{} releases {release}, in brief", self.who(*who))
            }
            Operation::Release { who, releases } => {
                write!(f, "{} releases {}", self.who(*who), List(releases))
            }
            Operation::Renew { who, restore, renewals } => {
                write!(f, "{} renews {}", self.who(*who), List(renewals))?;
                restore.map_or(Ok(()), |known| write!(f, ", restoring {known}"))
            }
            Operation::HandOver { who, hand_overs } => {
                let classes: Vec<_> = hand_overs.iter().map(|it| Class(it.class.as_ref())).collect();
                write!(f, "{} hands over {}", self.who(*who), List(&classes))
            }
            Operation::Settle { who, settlements } => {
                write!(f, "{} settles {}", self.who(*who), List(settlements))
            }
            Operation::Observe { who, observations } => {
                write!(f, "{} observes {}", self.who(*who), List(observations))
            }
            Operation::Exchange { who, number, parts } => {
                write!(f, "{} exchanges {number}: {parts}", self.who(*who))
            }
            Operation::Pause { place, ms } => write!(f, "pause `{}` for {ms} ms", self.id(*place)),
            Operation::Resume { place } => write!(f, "resume `{}`", self.id(*place)),
            Operation::Snapshot { place } => write!(f, "snapshot of `{}`", self.id(*place)),
            Operation::Leases { place, after, most } => {
                write!(f, "{most} leases of `{}` after {after:?}", self.id(*place))
            }
            Operation::Evict { place, lease } => write!(f, "evict {lease} of `{}`", self.id(*place)),
            Operation::SetLimit { place, limit } => {
                write!(f, "set the limit of `{}` to {limit}", self.id(*place))
            }
            Operation::Replace { who } => {
                write!(f, "replace the policy of `{}` by policy {}", self.id(who.place), who.policy)
            }
            Operation::Circuit { who, said } => {
                let place = self.world.place(who.place);
                let revision = place.circuits[who.policy].revision();
                let refuses = if who.refuses { ", refusing newer ones" } else { "" };
                write!(
                    f,
                    "driver {} of the circuit `{}` (policy {} of revision {revision}{refuses}): {}",
                    who.driver,
                    place.id,
                    who.policy,
                    List(said)
                )
            }
            Operation::SetCircuit { place, position } => {
                write!(f, "set the circuit of `{}` {position:?}", self.id(*place))
            }
            Operation::Forget { place } => write!(f, "forget `{}`", self.id(*place)),
            Operation::Advance { micros } => write!(f, "the clock runs {} ms", Millis(*micros)),
            Operation::StepBack { micros } => write!(f, "the clock is set back {} ms", Millis(*micros)),
            Operation::Lose => f.write_str("all state is lost"),
        }
    }
}

struct Millis(u64);

impl fmt::Display for Millis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 % 1_000 {
            0 => write!(f, "{}", self.0 / 1_000),
            micros => write!(f, "{}.{micros:03}", self.0 / 1_000),
        }
    }
}

struct List<'a, T>(&'a [T]);

impl<T: fmt::Display> fmt::Display for List<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("nothing");
        }
        for (at, item) in self.0.iter().enumerate() {
            write!(f, "{}{item}", if at == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

struct Class<'a>(Option<&'a Name>);

impl fmt::Display for Class<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(class) => write!(f, "class {class}"),
            None => f.write_str("no class"),
        }
    }
}

struct Costs<'a>(&'a tidegate_core::Costs);

impl fmt::Display for Costs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.each)?;
        self.0.named.iter().try_for_each(|(rule, cost)| write!(f, " ({rule}: {cost})"))
    }
}

struct Prefix<'a>(&'a AcquireRequest);

impl fmt::Display for Prefix<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let costs: Vec<_> = self.0.jobs.iter().map(|job| Costs(&job.costs)).collect();
        let line = self.0.line;
        write!(f, "{}, costs {}", Class(self.0.class.as_ref()), List(&costs))?;
        write!(f, ", {} waiting for {} ms", line.waiting, line.waited_ms)
    }
}

struct Scoped<'a>(&'a ScopedRequest);

impl fmt::Display for Scoped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, ", Class(self.0.class.as_ref()))?;
        for (at, job) in self.0.jobs.iter().enumerate() {
            write!(f, "{}cost {} for", if at == 0 { "" } else { "; " }, Costs(&job.costs))?;
            job.scopes.iter().try_for_each(|(scope, identity)| write!(f, " {scope} {identity:?}"))?;
        }
        write!(f, ", {} waiting for {} ms", self.0.line.waiting, self.0.line.waited_ms)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "grant {} of {}", self.index, self.serial)
    }
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Of(origin) => write!(f, "{origin}"),
            Self::Never(token) => write!(f, "the unknown token {token}"),
        }
    }
}

impl fmt::Display for Given {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} as {}", self.lease, self.outcome.as_str())?;
        self.retry_after_ms.map_or(Ok(()), |ms| write!(f, " (retry after {ms} ms)"))
    }
}

impl fmt::Display for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.lease, Class(self.class.as_ref()))
    }
}

impl fmt::Display for Known {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the epoch of {} ago", self.epochs_ago)?;
        if let Some(answers) = self.limit_ago {
            write!(f, ", the limit of {answers} answers ago")?;
        }
        write!(f, ", paused for {} ms", self.paused_ms)
    }
}

impl fmt::Display for Settling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {} from {} to {}", self.grant, self.rule, self.cost, self.actual)
    }
}

impl fmt::Display for Observing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "after {}: {} left in {}, for {} ms",
            self.grant, self.remaining, self.rule, self.resets_in_ms
        )
    }
}

impl fmt::Display for Number {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("without a number"),
            Self::Next => f.write_str("under the next number"),
            Self::NextUntil { ms } => write!(f, "under the next number, within {ms} ms"),
            Self::NextTooLate => f.write_str("under the next number, a microsecond too late"),
            Self::Repeat => f.write_str("the same again"),
            Self::Lower => f.write_str("under the number before the last"),
        }
    }
}

impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        let mut part = |what: &str, text: String| parts.push(format!("{what} {text}"));
        if let Some(known) = self.restore {
            part("restores", known.to_string());
        }
        let lists = [
            ("releases", self.releases.is_empty(), List(&self.releases).to_string()),
            ("settles", self.settlements.is_empty(), List(&self.settlements).to_string()),
            ("observes", self.observations.is_empty(), List(&self.observations).to_string()),
            ("renews", self.renewals.is_empty(), List(&self.renewals).to_string()),
        ];
        for (what, is_empty, text) in lists {
            if !is_empty {
                part(what, text);
            }
        }
        for hand_over in &self.hand_overs {
            part("hands over", Class(hand_over.class.as_ref()).to_string());
        }
        for acquire in &self.acquires {
            let text = match acquire {
                Acquire::Prefix(request) => Prefix(request).to_string(),
                Acquire::Scoped(request) => Scoped(request).to_string(),
            };
            part("acquires", text);
        }
        for queue in &self.queues {
            let (class, line) = (Class(queue.class.as_ref()), queue.line);
            part("queues", format!("{class}, {} waiting for {} ms", line.waiting, line.waited_ms));
        }
        if parts.is_empty() { f.write_str("nothing") } else { f.write_str(&parts.join(" | ")) }
    }
}
