//! Ids, the policies that workers offer for them, and who the workers are.

use std::{sync::Arc, time::Duration};

use tidegate_core::{
    Bound, Capabilities, Capability, CircuitMember, CircuitPolicy, Class, DriverId, Id, Identity, Invalid,
    Member, Name, OnSuperseded, Owner, Policy, SafeStart,
    limit::{Aimd, Growth, LimitPolicy},
    policy::Draft,
    rule::Rule,
};

mod circuits;

/// Drivers of each id.
pub(super) const DRIVERS: usize = 3;

/// Drivers of each circuit; the first are those of the id.
pub(super) const CIRCUIT_DRIVERS: usize = 5;

/// All that a run has to do with.
pub(super) struct World {
    pub(super) places: Vec<Place>,
    /// How many of the places gate calls; those behind them have only a circuit.
    pub(super) gated: usize,
    pub(super) tenants: Vec<Identity>,
    pub(super) models: Vec<Identity>,
}

/// One id.
pub(super) struct Place {
    pub(super) id: Id,
    pub(super) policies: Vec<Arc<Policy>>,
    pub(super) drivers: Vec<DriverId>,
    /// What the workers of its circuit offer; none where it has none.
    pub(super) circuits: Vec<Arc<CircuitPolicy>>,
    owners: Vec<Owner>,
}

/// Who asks: a driver, with the policy that it was configured with.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Who {
    pub(super) place: usize,
    pub(super) driver: usize,
    pub(super) policy: usize,
    pub(super) refuses: bool,
}

impl World {
    pub(super) fn new(capabilities: Capabilities) -> Result<Self, Invalid> {
        let leases = capabilities.has(Capability::Leases);
        let adaptive = leases && capabilities.has(Capability::Adaptive);
        let mut places = vec![Place::new(0, "plain", &plain())?];
        if leases {
            places.push(Place::new(1, "fixed", &fixed())?);
        }
        if adaptive {
            places.push(Place::new(2, "adaptive", &adaptives()?)?);
            places.push(Place::new(3, "safe", &safe()?)?);
        }
        if capabilities.has(Capability::Scoped) {
            places.push(Place::new(4, "scoped", &scoped(leases))?);
        }
        let gated = places.len();
        if capabilities.has(Capability::Circuit) {
            for (number, (id, policies)) in (10..).zip(circuits::all()?) {
                // Some circuits have an id of their own, the others are beside what gates the calls.
                match places.iter_mut().find(|place| place.id.as_str() == id) {
                    Some(place) => place.circuits = policies,
                    None => {
                        let mut place = Place::new(number, id, &[])?;
                        place.circuits = policies;
                        places.push(place);
                    }
                }
            }
        }
        let identities =
            |names: &[&str]| names.iter().map(Identity::new).collect::<Result<Vec<_>, Invalid>>();
        Ok(Self {
            places,
            gated,
            tenants: identities(&["acme", "a:b", "{x}"])?,
            models: identities(&["m", "acme"])?,
        })
    }

    pub(super) fn place(&self, place: usize) -> &Place {
        // Every operation names a place of the world that it was drawn in.
        &self.places[place]
    }

    pub(super) fn policy(&self, who: Who) -> &Arc<Policy> {
        &self.place(who.place).policies[who.policy]
    }

    pub(super) fn member(&self, who: Who) -> Member {
        let place = self.place(who.place);
        Member {
            id: place.id.clone(),
            driver: place.drivers[who.driver],
            owner: place.owners[who.driver].clone(),
            policy: Arc::clone(self.policy(who)),
            on_superseded: if who.refuses { OnSuperseded::Refuse } else { OnSuperseded::Adopt },
            initial_limit: [3, 1, 9][who.driver],
        }
    }

    /// A process of a circuit; `policy` is one of the circuit's.
    pub(super) fn circuit_member(&self, who: Who) -> CircuitMember {
        let place = self.place(who.place);
        CircuitMember {
            id: place.id.clone(),
            driver: place.drivers[who.driver],
            policy: Arc::clone(&place.circuits[who.policy]),
            on_superseded: if who.refuses { OnSuperseded::Refuse } else { OnSuperseded::Adopt },
        }
    }

    /// The places that have a circuit.
    pub(super) fn circuits(&self) -> Vec<usize> {
        let places = self.places.iter().enumerate();
        places.filter(|(_, place)| !place.circuits.is_empty()).map(|(at, _)| at).collect()
    }

    /// The scopes that a policy uses, each with the identities that there are of it.
    pub(super) fn scopes<'a>(&'a self, policy: &'a Policy) -> Vec<(&'a Name, &'a [Identity])> {
        let mut scopes: Vec<(&Name, &[Identity])> = Vec::new();
        for scope in policy.rules().iter().filter_map(|rule| rule.scope()) {
            if scopes.iter().all(|(known, _)| *known != scope) {
                scopes.push((scope, if scope.as_str() == "tenant" { &self.tenants } else { &self.models }));
            }
        }
        scopes
    }
}

impl Place {
    fn new(number: u128, id: &str, drafts: &[Draft]) -> Result<Self, Invalid> {
        let owners = (0..DRIVERS).map(|driver| Owner::new(format!("{id}:{driver}")));
        Ok(Self {
            id: Id::new(id)?,
            policies: drafts.iter().map(|draft| draft.check().map(Arc::new)).collect::<Result<_, _>>()?,
            drivers: (0..CIRCUIT_DRIVERS)
                .map(|driver| DriverId((number << 64) | (driver as u128 + 1)))
                .collect(),
            circuits: Vec::new(),
            owners: owners.collect::<Result<_, _>>()?,
        })
    }
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn plain() -> [Draft; 5] {
    let bucket = || Rule::token_bucket(5, ms(1_000)).burst(4);
    let window = || Rule::fixed_window(6, ms(500)).named("a");
    let sliding = || Rule::sliding_window(7, ms(700)).named("b");
    [
        Policy::draft().rule(bucket()).rule(window()).rule(sliding()),
        // The same revision, and another policy.
        Policy::draft().rule(bucket()).rule(window()),
        Policy::draft()
            .revision(1)
            .rule(bucket().burst(2))
            .rule(Rule::fixed_window(9, ms(500)).named("a"))
            .rule(sliding()),
        Policy::draft()
            .revision(2)
            .rule(Rule::sliding_window(3, ms(90)).named("a"))
            .rule(bucket())
            .rule(Rule::token_bucket(7, ms(11)).burst(40).named("b")),
        Policy::draft().revision(5).lease_ttl(ms(100_000)),
    ]
}

fn fixed() -> [Draft; 4] {
    let rule = || Rule::token_bucket(20, ms(400)).burst(9).named("a");
    let classes = |draft: Draft| {
        draft
            .class(Class::reserved("gold", 0.3))
            .class(Class::reserved("silver", 0.2))
            .class(Class::unreserved("tin"))
    };
    [
        classes(Policy::draft().bound(Bound::Fixed(6)).lease_ttl(ms(300)).rule(rule())),
        classes(Policy::draft().revision(1).bound(Bound::Fixed(3)).lease_ttl(ms(150)).rule(rule())),
        Policy::draft()
            .revision(2)
            .bound(Bound::Fixed(5))
            .lease_ttl(ms(300))
            .class(Class::reserved("gold", 0.9)),
        Policy::draft().revision(3).rule(rule()),
    ]
}

fn limit(min: u32, max: u32, aimd: Aimd, rest_ms: u64, growth: Growth) -> Result<Bound, Invalid> {
    LimitPolicy::check(min, max, &aimd, ms(rest_ms), growth).map(Bound::Adaptive)
}

fn adaptives() -> Result<[Draft; 4], Invalid> {
    let aimd = || Aimd::new().window(ms(40)).cooldown(ms(90));
    let gold = |draft: Draft| draft.class(Class::reserved("gold", 0.4)).lease_ttl(ms(400));
    Ok([
        gold(Policy::draft().bound(limit(1, 12, aimd(), 15, Growth::Additive)?)),
        gold(Policy::draft().revision(1).bound(limit(2, 20, aimd(), 0, Growth::Probe)?)),
        gold(Policy::draft().revision(2).bound(limit(
            1,
            9,
            aimd().tolerance(0.2).increase_step(2),
            30,
            Growth::Additive,
        )?)),
        gold(Policy::draft().revision(3).bound(Bound::Fixed(4))),
    ])
}

fn safe() -> Result<[Draft; 3], Invalid> {
    let aimd = || Aimd::new().window(ms(30)).cooldown(ms(60)).decrease_factor(0.7);
    let rule = || Rule::token_bucket(30, ms(1_000)).burst(12);
    let draft = || Policy::draft().safe_start(SafeStart::On).lease_ttl(ms(100)).rule(rule());
    Ok([
        draft().bound(limit(1, 30, aimd(), 10, Growth::SlowStart)?),
        draft().rule(Rule::fixed_window(25, ms(200)).named("a")).revision(1).bound(limit(
            3,
            10,
            aimd(),
            10,
            Growth::SlowStart,
        )?),
        Policy::draft().lease_ttl(ms(200)).rule(rule()).revision(2).bound(Bound::Fixed(7)),
    ])
}

fn scoped(leases: bool) -> [Draft; 4] {
    let bounded = |draft: Draft| {
        if leases {
            draft.bound(Bound::Fixed(8)).lease_ttl(ms(250)).class(Class::reserved("gold", 0.25))
        } else {
            draft
        }
    };
    let tenant = |rule: Rule| rule.scoped("tenant");
    [
        bounded(
            Policy::draft()
                .rule(tenant(Rule::fixed_window(4, ms(300)).named("a")))
                .rule(Rule::token_bucket(40, ms(500)).burst(15)),
        ),
        bounded(
            Policy::draft()
                .revision(1)
                .rule(tenant(Rule::fixed_window(6, ms(300)).named("a")))
                .rule(Rule::token_bucket(9, ms(800)).burst(5).named("b").scoped("model"))
                .rule(Rule::token_bucket(40, ms(500)).burst(15)),
        ),
        bounded(
            Policy::draft()
                .revision(2)
                .rule(tenant(Rule::sliding_window(5, ms(400)).named("a")))
                .rule(Rule::token_bucket(9, ms(800)).burst(8).named("b").scoped("model")),
        ),
        Policy::draft()
            .revision(3)
            .safe_start(SafeStart::On)
            .rule(tenant(Rule::sliding_window(3, ms(400)).named("a")))
            .rule(tenant(Rule::token_bucket(9, ms(300)).burst(3).named("c"))),
    ]
}
