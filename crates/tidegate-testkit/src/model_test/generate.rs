//! Drawing operations at random, so that interesting things happen.

use std::collections::VecDeque;

use fastrand::Rng;
use tidegate_core::{
    Acquire, AcquireRequest, Capabilities, Capability, Costs, Epoch, HandOver, Identity, Job, Line, Name,
    Outcome, Policy, Queue, RuleKey, ScopedJob, ScopedRequest, Token,
};

mod circuit;

use super::{
    Options,
    operation::{Given, Kept, Known, Lease, Number, Observing, Operation, Origin, Parts, Settling, Step},
    pair::Pair,
    world::{DRIVERS, Who, World},
};

/// Grants of an id that operations are drawn for.
const REMEMBERED: usize = 24;

const DAY_MICROS: u64 = 86_400_000_000;

pub(super) struct Generator {
    random: Rng,
    capabilities: Capabilities,
    steps_back: bool,
    losses: bool,
    wipes: bool,
    serial: u32,
    /// The newest grants of each place, as far as they were seen.
    recent: Vec<VecDeque<Origin>>,
    last: Option<(usize, u32)>,
    /// The highest policy that workers of a place offer now; it rises in the course of a run.
    offered: Vec<usize>,
    /// Likewise for its circuit.
    circuits: Vec<usize>,
    /// The circuit that is used for a while, so that its permits do not lapse before their calls end.
    focus: Option<usize>,
}

impl Generator {
    pub(super) fn new(options: &Options, capabilities: Capabilities, wipes: bool) -> Self {
        Self {
            random: Rng::with_seed(options.seed),
            capabilities,
            steps_back: options.steps_back,
            losses: options.losses,
            wipes: wipes && options.losses,
            serial: 0,
            recent: Vec::new(),
            last: None,
            offered: Vec::new(),
            circuits: Vec::new(),
            focus: None,
        }
    }

    fn has(&self, capability: Capability) -> bool {
        self.capabilities.has(capability)
    }

    /// The next operation, after `pair` has done all before it.
    pub(super) fn next(&mut self, world: &World, pair: &Pair) -> Step {
        self.recent.resize_with(world.places.len(), VecDeque::new);
        self.offered.resize(world.places.len(), 0);
        self.circuits.resize(world.places.len(), 0);
        self.look_at_grants(pair);
        self.serial += 1;
        let place = self.random.usize(..world.gated);
        let operation = match self.focus(world) {
            Some(place) => self.circuit(world, pair, place),
            None => self.operation(world, pair, place),
        };
        self.last = Some((place, self.serial));
        Step { serial: self.serial, operation }
    }

    /// Remembers what the last operation was granted.
    fn look_at_grants(&mut self, pair: &Pair) {
        let Some((place, serial)) = self.last else { return };
        for index in 0.. {
            let origin = Origin { serial, index };
            if pair.granted(origin).is_none() {
                return;
            }
            let recent = &mut self.recent[place];
            recent.push_back(origin);
            if recent.len() > REMEMBERED {
                recent.pop_front();
            }
        }
    }

    fn operation(&mut self, world: &World, pair: &Pair, place: usize) -> Operation {
        let is_scoped = |who: Who| world.policy(who).is_scoped();
        match self.random.u32(0..1_000) {
            0..200 => return self.time(),
            200..210 => return Operation::Pause { place, ms: self.random.u64(1..120) },
            210..220 => return Operation::Resume { place },
            220..222 if self.wipes => return Operation::Lose,
            222..262 if self.has(Capability::Operators) => return self.by_hand(world, place),
            262..520 if self.has(Capability::Exchange) => return self.exchange(world, pair, place),
            520..640 if self.has(Capability::Leases) => {
                let who = self.who(world, place);
                return Operation::Release { who, releases: self.releases(place) };
            }
            640..690 if self.has(Capability::Leases) => {
                let who = self.who(world, place);
                let restore = self.restore();
                return Operation::Renew { who, restore, renewals: self.renewals(world, place) };
            }
            690..696 if self.has(Capability::Leases) => {
                let who = self.who(world, place);
                return Operation::HandOver { who, hand_overs: self.hand_overs(world, who) };
            }
            696..740 if self.has(Capability::Corrections) => {
                let who = self.who(world, place);
                return Operation::Settle { who, settlements: self.settlements(world, pair, place) };
            }
            740..770 if self.has(Capability::Corrections) => {
                let who = self.who(world, place);
                return Operation::Observe { who, observations: self.observations(world, place) };
            }
            _ => {}
        }
        let who = self.who(world, place);
        if self.has(Capability::Sync) && self.random.u32(0..4) == 0 {
            let mut releases = self.releases(place);
            return match releases.pop() {
                Some(release) if self.has(Capability::Leases) && self.random.bool() => {
                    Operation::ReleaseOne { who, release }
                }
                _ => Operation::AcquireOne {
                    who,
                    tier: self.random.usize(..=world.policy(who).classes().len()),
                },
            };
        }
        if self.has(Capability::Scoped) && (is_scoped(who) || self.random.u32(0..20) == 0) {
            Operation::Scoped { who, request: self.scoped_request(world, who) }
        } else {
            Operation::Acquire { who, request: self.request(world, who) }
        }
    }

    fn time(&mut self) -> Operation {
        if self.steps_back && self.random.u32(0..25) == 0 {
            let far = self.random.bool();
            let micros =
                if far { self.random.u64(1_000_001..4_000_000) } else { self.random.u64(1..=1_000_000) };
            return Operation::StepBack { micros };
        }
        let micros = match self.random.u32(0..1_000) {
            0..400 => self.random.u64(0..3_000),
            400..800 => self.random.u64(0..60) * 1_000,
            800..960 => self.random.u64(0..700_000),
            960..990 => self.random.u64(0..5_000_000),
            990..997 => self.random.u64(59_000_000..62_000_000),
            _ if self.losses => 31 * DAY_MICROS,
            _ => 20 * DAY_MICROS,
        };
        Operation::Advance { micros }
    }

    fn by_hand(&mut self, world: &World, place: usize) -> Operation {
        match self.random.u32(0..20) {
            0..6 => Operation::Snapshot { place },
            6..11 => {
                let after = self.random.bool().then(|| self.random.u32(0..4));
                Operation::Leases { place, after, most: self.random.usize(0..5) }
            }
            11..14 => Operation::Evict { place, lease: self.lease(place) },
            14..17 => Operation::SetLimit { place, limit: self.random.u32(0..14) },
            17..19 => Operation::Replace { who: self.who(world, place) },
            _ if self.losses => {
                self.offered[place] = 0;
                Operation::Forget { place }
            }
            _ => Operation::Snapshot { place },
        }
    }

    fn who(&mut self, world: &World, place: usize) -> Who {
        let policies = world.place(place).policies.len();
        // Mostly one policy, which is followed by the next once in a while; sometimes any other.
        if self.random.u32(0..400) == 0 {
            self.offered[place] = (self.offered[place] + 1) % policies;
        }
        let policy =
            if self.random.u32(0..12) == 0 { self.random.usize(..policies) } else { self.offered[place] };
        let driver = self.random.usize(..DRIVERS);
        Who { place, driver, policy, refuses: self.random.u32(0..15) == 0 }
    }

    // ---- acquiring -------------------------------------------------------------------------------------------------

    fn class(&mut self, policy: &Policy) -> Option<Name> {
        let classes = policy.classes().len();
        match self.random.u32(0..30) {
            0 => Name::new("class", "nobody").ok(),
            _ => policy.class(self.random.usize(..=classes)).cloned(),
        }
    }

    fn line(&mut self, jobs: usize) -> Line {
        if self.random.u32(0..3) == 0 {
            return Line::default();
        }
        let jobs = u32::try_from(jobs).unwrap_or(u32::MAX);
        Line { waiting: jobs + self.random.u32(0..3), waited_ms: self.random.u64(0..60) }
    }

    fn costs(&mut self, policy: &Policy) -> Costs {
        let each = match self.random.u32(0..20) {
            0..2 => 0,
            2..15 => 1,
            15..19 => self.random.u64(2..5),
            _ => self.random.u64(5..12),
        };
        let names: Vec<Name> = policy.rules().iter().filter_map(|rule| rule.name().cloned()).collect();
        let mut named = Vec::new();
        if self.random.u32(0..6) == 0 {
            let unknown = || Name::new("rule", "z").ok();
            let drawn =
                if names.is_empty() { None } else { names.get(self.random.usize(..names.len())).cloned() };
            let name = if self.random.u32(0..15) == 0 { unknown() } else { drawn };
            named.extend(name.map(|name| (name, self.random.u64(0..4))));
        }
        Costs { each, named }
    }

    fn jobs(&mut self) -> usize {
        match self.random.u32(0..40) {
            0 => 0,
            1..20 => 1,
            20..35 => self.random.usize(2..5),
            _ => self.random.usize(5..12),
        }
    }

    fn request(&mut self, world: &World, who: Who) -> AcquireRequest {
        let policy = world.policy(who);
        let jobs: Vec<Job> = (0..self.jobs()).map(|_| Job { costs: self.costs(policy) }).collect();
        AcquireRequest { class: self.class(policy), line: self.line(jobs.len()), jobs }
    }

    fn scoped_request(&mut self, world: &World, who: Who) -> ScopedRequest {
        let policy = world.policy(who);
        let jobs: Vec<ScopedJob> = (0..self.jobs()).map(|_| self.scoped_job(world, policy)).collect();
        ScopedRequest { class: self.class(policy), line: self.line(jobs.len()), jobs }
    }

    fn scoped_job(&mut self, world: &World, policy: &Policy) -> ScopedJob {
        let mut scopes: Vec<(Name, Identity)> = Vec::new();
        for (scope, identities) in world.scopes(policy) {
            let identity = identities[self.random.usize(..identities.len())].clone();
            scopes.push((scope.clone(), identity));
        }
        match self.random.u32(0..60) {
            0 => drop(scopes.pop()),
            1 => {
                let unknown = Name::new("scope", "region").ok();
                scopes.extend(unknown.zip(world.tenants.first().cloned()));
            }
            _ => {}
        }
        ScopedJob { costs: self.costs(policy), scopes }
    }

    // ---- holding ---------------------------------------------------------------------------------------------------

    fn origin(&mut self, place: usize) -> Option<Origin> {
        let recent = &self.recent[place];
        if recent.is_empty() { None } else { recent.get(self.random.usize(..recent.len())).copied() }
    }

    fn lease(&mut self, place: usize) -> Lease {
        let known = if self.random.u32(0..25) == 0 { None } else { self.origin(place) };
        known.map_or_else(
            || {
                let (slot, fence) = (self.random.u32(0..4), self.random.u64(0..4));
                Lease::Never(Token { epoch: Epoch(2), slot, fence })
            },
            Lease::Of,
        )
    }

    fn releases(&mut self, place: usize) -> Vec<Given> {
        (0..self.random.usize(1..5))
            .map(|_| {
                let outcome = match self.random.u32(0..10) {
                    0..6 => Outcome::Success,
                    6..8 => Outcome::Throttled,
                    _ => Outcome::Failure,
                };
                let retry_after_ms = (self.random.u32(0..5) == 0).then(|| self.random.u64(0..200));
                Given { lease: self.lease(place), outcome, retry_after_ms }
            })
            .collect()
    }

    fn renewals(&mut self, world: &World, place: usize) -> Vec<Kept> {
        let who = self.who(world, place);
        (0..self.random.usize(0..6))
            .map(|_| Kept { lease: self.lease(place), class: self.class(world.policy(who)) })
            .collect()
    }

    fn restore(&mut self) -> Option<Known> {
        if !self.has(Capability::Epoch) || self.random.bool() {
            return None;
        }
        Some(Known {
            epochs_ago: self.random.usize(0..3),
            limit_ago: self.random.bool().then(|| self.random.usize(0..6)),
            paused_ms: if self.random.u32(0..6) == 0 { self.random.u64(0..50) } else { 0 },
        })
    }

    fn hand_overs(&mut self, world: &World, who: Who) -> Vec<HandOver> {
        (0..self.random.usize(0..4)).map(|_| HandOver { class: self.class(world.policy(who)) }).collect()
    }

    // ---- correcting ------------------------------------------------------------------------------------------------

    fn rule(&mut self, world: &World, place: usize) -> RuleKey {
        let policies = &world.place(place).policies;
        let policy = &policies[if self.random.u32(0..8) == 0 {
            self.random.usize(..policies.len())
        } else {
            self.offered[place]
        }];
        let rules = policy.rules();
        if rules.is_empty() {
            RuleKey::from("named:z")
        } else {
            rules[self.random.usize(..rules.len())].key().clone()
        }
    }

    fn settlements(&mut self, world: &World, pair: &Pair, place: usize) -> Vec<Settling> {
        let mut settlements = Vec::new();
        for _ in 0..self.random.usize(1..4) {
            let Some(grant) = self.origin(place) else { continue };
            let rule = self.rule(world, place);
            let name = rule.as_str().strip_prefix("named:").and_then(|name| Name::new("rule", name).ok());
            let cost = pair.granted(grant).map_or(1, |granted| granted.cost(name.as_ref()));
            let actual = match self.random.u32(0..30) {
                0..10 => 0,
                10..27 => self.random.u64(0..8),
                27 => self.random.u64(0..200),
                28 => 1_000_000_000_000,
                _ => 1_000_000_000_001,
            };
            settlements.push(Settling { grant, rule, cost, actual });
        }
        settlements
    }

    fn observations(&mut self, world: &World, place: usize) -> Vec<Observing> {
        let mut observations = Vec::new();
        for _ in 0..self.random.usize(1..3) {
            let Some(grant) = self.origin(place) else { continue };
            observations.push(Observing {
                grant,
                rule: self.rule(world, place),
                remaining: self.random.u64(0..8),
                resets_in_ms: self.random.u64(0..1_500),
            });
        }
        observations
    }

    // ---- exchanging ------------------------------------------------------------------------------------------------

    fn exchange(&mut self, world: &World, pair: &Pair, place: usize) -> Operation {
        let who = self.who(world, place);
        let number = match self.random.u32(0..20) {
            0..6 => Number::None,
            6..14 => Number::Next,
            14 => Number::NextUntil { ms: self.random.u64(0..3) },
            15 => Number::NextTooLate,
            16..19 => Number::Repeat,
            _ => Number::Lower,
        };
        let mut parts = Parts::default();
        if self.has(Capability::Leases) {
            if self.random.u32(0..2) == 0 {
                parts.releases = self.releases(place);
            }
            if self.random.u32(0..6) == 0 {
                parts.renewals = self.renewals(world, place);
            }
            if self.random.u32(0..8) == 0 {
                parts.restore = self.restore();
            }
            if self.random.u32(0..40) == 0 {
                parts.hand_overs = self.hand_overs(world, who);
            }
        }
        if self.has(Capability::Corrections) {
            if self.random.u32(0..8) == 0 {
                parts.settlements = self.settlements(world, pair, place);
            }
            if self.random.u32(0..12) == 0 {
                parts.observations = self.observations(world, place);
            }
        }
        let acquires = [0, 1, 1, 1, 1, 2, 3][self.random.usize(..7)];
        for _ in 0..acquires {
            let acquire = if self.has(Capability::Scoped) && world.policy(who).is_scoped() {
                Acquire::Scoped(self.scoped_request(world, who))
            } else {
                Acquire::Prefix(self.request(world, who))
            };
            parts.acquires.push(acquire);
        }
        for _ in 0..self.random.usize(0..2) {
            let class = self.class(world.policy(who));
            parts.queues.push(Queue { class, line: self.line(1) });
        }
        Operation::Exchange { who, number, parts: Box::new(parts) }
    }
}
