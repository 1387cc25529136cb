//! Deciding alone while the store is away: a limit and rules of this process's own.
//!
//! The limit bounds all that runs in this process, what the store had granted before it went away included; so it needs
//! no leases, and holds however often the store comes and goes. The rules are kept by the same model as everywhere.
//!
//! Spec: UN-2, VA-7.

use std::sync::Arc;

use tidegate_core::{
    Acquire, AcquireReply, AcquireRequest, Acquired, Bound, Class, Denial, DriverId, Exchange, ExchangeReply,
    Head, IdModel, Invalid, Member, Policy, Reply, ScopedDenial, ScopedGrant, ScopedJob, ScopedReply,
    ScopedRequest, Settlement, StoreError, policy::Draft, share, time::Moment,
};

/// What a process decides by when the store is away.
#[derive(Clone, Debug)]
pub(crate) struct Fallback {
    /// The limit with its classes, and the rules.
    policy: Arc<Policy>,
    /// The rules alone.
    rules: Arc<Policy>,
    limit: Option<u32>,
}

impl Fallback {
    /// A fixed limit per process, with the shares of `classes`, and rules of its own; either may be absent. `policy` is
    /// the one in whose place it decides.
    pub(crate) fn check(
        policy: &Policy,
        rules: Draft,
        classes: Vec<Class>,
        limit: Option<u32>,
    ) -> Result<Self, Invalid> {
        let alone = rules.check()?;
        for scope in alone.rules().iter().filter_map(|rule| rule.scope()) {
            if !policy.rules().iter().any(|rule| rule.scope() == Some(scope)) {
                return Err(Invalid::new("scope", scope, "a scope that a rule of the valve uses"));
            }
        }
        let policy = match limit {
            Some(limit) => {
                classes.into_iter().fold(rules.bound(Bound::Fixed(limit)), Draft::class).check()?
            }
            // Shares are shares of a limit; where there is none, all classes are alike.
            None => alone.clone(),
        };
        Ok(Self { policy: Arc::new(policy), rules: Arc::new(alone), limit })
    }
}

/// What this process keeps while it decides alone. The levels last from one time to the next: a store that comes and
/// goes opens no rule anew.
pub(super) struct Local {
    fallback: Fallback,
    model: IdModel,
    member: Member,
}

/// How this process stands.
#[derive(Clone, Copy)]
pub(super) struct Standing<'a> {
    pub(super) now: Moment,
    /// Permits held, in each tier.
    pub(super) in_flight: &'a [u32],
    /// What is left of a pause, in milliseconds.
    pub(super) paused_ms: u64,
}

/// A job that was denied a slot asks again when one is freed, and at the latest after this.
const LOOK_AGAIN_MS: u64 = 500;

impl Local {
    pub(super) fn new(member: &Member, fallback: &Fallback) -> Self {
        let member = Member { policy: Arc::clone(&fallback.rules), driver: DriverId(0), ..member.clone() };
        Self { fallback: fallback.clone(), model: IdModel::default(), member }
    }

    pub(super) fn policy(&self) -> &Policy {
        &self.fallback.policy
    }

    /// Decides on the acquires of an exchange; it has nothing else.
    pub(super) fn exchange(&mut self, standing: Standing<'_>, exchange: &Exchange) -> Reply<ExchangeReply> {
        let Standing { now, in_flight, paused_ms } = standing;
        let tiers = self.fallback.policy.classes().len() + 1;
        let mut taken =
            if tiers == in_flight.len() { in_flight.to_vec() } else { vec![in_flight.iter().sum::<u32>()] };
        let mut body = ExchangeReply::default();
        for acquire in &exchange.acquires {
            let acquired = match acquire {
                _ if paused_ms > 0 => Ok(paused(acquire, paused_ms)),
                Acquire::Prefix(request) => self.prefix(now, request, &mut taken).map(Acquired::Prefix),
                Acquire::Scoped(request) => self.scoped(now, request, &mut taken).map(Acquired::Scoped),
            };
            body.acquired.push(acquired);
        }
        Reply { head: Head { now: Some(now), paused_ms, ..Head::default() }, body }
    }

    /// Credits what a permit spent that nobody took.
    pub(super) fn settle_back(&mut self, now: Moment, job: &ScopedJob, granted_at: Moment) {
        let spent = self.member.policy.rules().iter().map(|rule| Settlement {
            rule: rule.key().clone(),
            identity: job.identity(rule).cloned(),
            granted_at,
            cost: job.costs.of(rule.name()),
            actual: 0,
        });
        let spent: Vec<Settlement> = spent.collect();
        // At most 16 rules, and costs that were granted: nothing in it can be refused.
        let _ = self.model.settle(now, &spent);
    }

    fn prefix(
        &mut self,
        now: Moment,
        request: &AcquireRequest,
        taken: &mut [u32],
    ) -> Result<AcquireReply, StoreError> {
        let rules = Arc::clone(&self.member.policy);
        for (index, job) in request.jobs.iter().enumerate() {
            job.costs.check(&rules, &rules, index)?;
        }
        let tier = self.tier(request.class.as_ref());
        let mut reply = AcquireReply::default();
        for job in &request.jobs {
            if self.room(taken, tier) == 0 {
                reply.denied = Some(no_slot());
                break;
            }
            let single = AcquireRequest { class: None, jobs: vec![job.clone()], line: request.line };
            let answer = self.model.acquire(now, &self.member, &single)?.body;
            if answer.grants.is_empty() {
                reply.denied = answer.denied;
                break;
            }
            taken[tier] += 1;
            reply.grants.extend(answer.grants);
        }
        Ok(reply)
    }

    fn scoped(
        &mut self,
        now: Moment,
        request: &ScopedRequest,
        taken: &mut [u32],
    ) -> Result<ScopedReply, StoreError> {
        let rules = Arc::clone(&self.member.policy);
        for (index, job) in request.jobs.iter().enumerate() {
            job.costs.check(&rules, &rules, index)?;
            job.check_scopes(&rules, &rules)?;
        }
        let tier = self.tier(request.class.as_ref());
        let mut reply = ScopedReply::default();
        for (index, job) in request.jobs.iter().enumerate() {
            if self.room(taken, tier) == 0 {
                reply.denied.push(ScopedDenial { index, denial: no_slot() });
                continue;
            }
            let single = ScopedRequest { class: None, jobs: vec![job.clone()], line: request.line };
            let answer = self.model.acquire_scoped(now, &self.member, &single)?.body;
            let granted = answer.grants.into_iter().map(|granted| ScopedGrant { index, ..granted });
            let before = reply.grants.len();
            reply.grants.extend(granted);
            taken[tier] += u32::from(reply.grants.len() > before);
            reply.denied.extend(answer.denied.into_iter().map(|denied| ScopedDenial { index, ..denied }));
        }
        Ok(reply)
    }

    fn tier(&self, class: Option<&tidegate_core::Name>) -> usize {
        self.fallback.policy.tier(class).unwrap_or(self.fallback.policy.classes().len())
    }

    /// How many more jobs of a tier may run here.
    fn room(&self, taken: &[u32], tier: usize) -> u32 {
        let Some(limit) = self.fallback.limit else { return u32::MAX };
        share::room(limit, self.fallback.policy.shares().zip(taken.iter().copied()), tier)
    }
}

const fn no_slot() -> Denial {
    Denial { hint_ms: LOOK_AGAIN_MS, lease_blocked: true, rule: None }
}

fn paused(acquire: &Acquire, paused_ms: u64) -> Acquired {
    let denial = Denial { hint_ms: paused_ms, lease_blocked: false, rule: None };
    match acquire {
        Acquire::Prefix(_) => {
            Acquired::Prefix(AcquireReply { denied: Some(denial), ..AcquireReply::default() })
        }
        Acquire::Scoped(request) => {
            let jobs = 0..request.jobs.len();
            let denied = jobs.map(|index| ScopedDenial { index, denial: denial.clone() }).collect();
            Acquired::Scoped(ScopedReply { denied, ..ScopedReply::default() })
        }
    }
}
