//! What a store is asked.

use std::time::Duration;

use crate::{
    Epoch, Identity, Invalid, Name, Policy, Token,
    rule::{CheckedRule, RuleKey},
    time::Moment,
};

use super::{Limit, StoreError};

/// The most jobs of one `acquire`.
pub const MOST_JOBS: usize = 512;
/// The most jobs of one `acquire_scoped`.
pub const MOST_SCOPED_JOBS: usize = 128;
/// The most tokens of one `release`, `renew` or `hand_over`, and the most corrections of one `settle` or `observe`.
pub const MOST_TOKENS: usize = 1_000;

/// What a caller reports of a call, on release.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Outcome {
    /// It went well.
    Success,
    /// The remote pushed back.
    Throttled,
    /// It failed for another reason; neutral.
    Failure,
}

impl Outcome {
    /// Its name in metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Throttled => "throttled",
            Self::Failure => "failure",
        }
    }
}

/// What a job spends in each rule: one cost for all, and others for named rules.
///
/// Spec: RU-2.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Costs {
    /// In every rule that `named` does not name.
    pub each: u64,
    /// In rules of these names; a name at most once.
    pub named: Vec<(Name, u64)>,
}

impl Default for Costs {
    fn default() -> Self {
        Self { each: 1, named: Vec::new() }
    }
}

impl Costs {
    /// The cost in a rule of this name (none for a rule without).
    pub fn of(&self, rule: Option<&Name>) -> u64 {
        let named = rule.and_then(|rule| self.named.iter().find(|(name, _)| name == rule));
        named.map_or(self.each, |(_, cost)| *cost)
    }

    /// Checks the costs of job `index`: names against the policy that the job was written for, amounts against the one
    /// that decides.
    ///
    /// # Errors
    /// `Invalid` for a name that no rule has, or that is there twice; `CostExceedsLimit` for a cost that cannot ever fit.
    pub fn check(&self, offered: &Policy, deciding: &Policy, index: usize) -> Result<(), StoreError> {
        for (at, (name, cost)) in self.named.iter().enumerate() {
            let refused = |allowed| Err(Invalid::new(format!("cost of {name}"), cost, allowed).into());
            if !offered.rules().iter().any(|rule| rule.name() == Some(name)) {
                return refused("a cost for a rule that the policy has");
            }
            if self.named.iter().take(at).any(|(earlier, _)| earlier == name) {
                return refused("one cost for each rule");
            }
        }
        for rule in deciding.rules() {
            let cost = self.of(rule.name());
            if cost > rule.most() {
                return Err(StoreError::CostExceedsLimit {
                    index,
                    rule: rule.key().clone(),
                    cost,
                    most: rule.most(),
                });
            }
        }
        Ok(())
    }
}

/// One job of a prefix acquire.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Job {
    /// What it spends.
    pub costs: Costs,
}

/// How a queue stands beyond the jobs of a request.
///
/// Spec: AS-12, AS-2.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Line {
    /// How many jobs, of those asked for now, would go on waiting if none were granted, with those behind them; 0 for
    /// one that tries once.
    pub waiting: u32,
    /// How long ago the oldest of them was first denied, in milliseconds; 0 where it was not.
    pub waited_ms: u64,
}

/// The head of one class's queue.
///
/// Spec: ST-3.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AcquireRequest {
    /// Whose queue it is; none for jobs without a class.
    pub class: Option<Name>,
    /// 1 to [`MOST_JOBS`] jobs, in order.
    pub jobs: Vec<Job>,
    /// How the queue stands.
    pub line: Line,
}

impl AcquireRequest {
    /// Refuses a queue without a head, or with too long a one.
    ///
    /// # Errors
    /// [`StoreError::Invalid`].
    ///
    /// Spec: ST-3.
    pub fn check_size(&self) -> Result<(), StoreError> {
        check_jobs(self.jobs.len(), MOST_JOBS)
    }

    /// Checks the request of a member that offers one policy, as another is to decide it; says in which tier it is.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] for a scope that is missing, an unknown class or cost;
    /// [`StoreError::CostExceedsLimit`].
    ///
    /// Spec: BI-1.
    pub fn check(&self, offered: &Policy, deciding: &Policy) -> Result<usize, StoreError> {
        if let Some(scope) = deciding.rules().iter().find_map(CheckedRule::scope) {
            return Err(Invalid::new("scope", "none", format!("one identity of {scope} for each job")).into());
        }
        let tier = tier_of(deciding, self.class.as_ref())?;
        for (index, job) in self.jobs.iter().enumerate() {
            job.costs.check(offered, deciding, index)?;
        }
        Ok(tier)
    }
}

/// One job of a scoped acquire.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScopedJob {
    /// What it spends.
    pub costs: Costs,
    /// One identity for every scope that a rule of the policy uses.
    pub scopes: Vec<(Name, Identity)>,
}

impl ScopedJob {
    /// The identity that this job names for a rule; none for a rule without a scope.
    pub fn identity(&self, rule: &CheckedRule) -> Option<&Identity> {
        let scope = rule.scope()?;
        self.scopes.iter().find(|(name, _)| name == scope).map(|(_, identity)| identity)
    }

    /// Checks a job's identities: none twice, none that the policy it was written for does not use, none missing for the
    /// one that decides.
    ///
    /// # Errors
    /// `Invalid` for the first scope that is not right.
    pub fn check_scopes(&self, offered: &Policy, deciding: &Policy) -> Result<(), StoreError> {
        for (at, (scope, identity)) in self.scopes.iter().enumerate() {
            let refused = |allowed| Err(Invalid::new(format!("scope {scope}"), identity, allowed).into());
            if self.scopes.iter().take(at).any(|(earlier, _)| earlier == scope) {
                return refused("one identity for each scope");
            }
            if !offered.rules().iter().any(|rule| rule.scope() == Some(scope)) {
                return refused("a scope that a rule of the policy uses");
            }
        }
        for scope in deciding.rules().iter().filter_map(CheckedRule::scope) {
            if !self.scopes.iter().any(|(named, _)| named == scope) {
                return Err(
                    Invalid::new(format!("scope {scope}"), "none", "one identity for each job").into()
                );
            }
        }
        Ok(())
    }
}

/// Jobs with identities, in order.
///
/// Spec: ST-10.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScopedRequest {
    /// The class of them all.
    pub class: Option<Name>,
    /// 1 to [`MOST_SCOPED_JOBS`] jobs.
    pub jobs: Vec<ScopedJob>,
    /// How the queue stands.
    pub line: Line,
}

impl ScopedRequest {
    /// Refuses a request without jobs, or with too many.
    ///
    /// # Errors
    /// [`StoreError::Invalid`].
    pub fn check_size(&self) -> Result<(), StoreError> {
        check_jobs(self.jobs.len(), MOST_SCOPED_JOBS)
    }

    /// As [`AcquireRequest::check`], with identities.
    ///
    /// # Errors
    /// As there.
    pub fn check(&self, offered: &Policy, deciding: &Policy) -> Result<usize, StoreError> {
        let tier = tier_of(deciding, self.class.as_ref())?;
        for (index, job) in self.jobs.iter().enumerate() {
            job.costs.check(offered, deciding, index)?;
            job.check_scopes(offered, deciding)?;
        }
        Ok(tier)
    }
}

fn check_jobs(given: usize, most: usize) -> Result<(), StoreError> {
    if (1..=most).contains(&given) {
        Ok(())
    } else {
        Err(Invalid::new("jobs", given, format!("1 to {most}")).into())
    }
}

fn tier_of(policy: &Policy, class: Option<&Name>) -> Result<usize, StoreError> {
    policy.tier(class).ok_or_else(|| {
        let names: Vec<&str> = policy.classes().iter().map(|class| class.name.as_str()).collect();
        let allowed =
            if names.is_empty() { "none: the policy has no classes".to_owned() } else { names.join(", ") };
        Invalid::new("class", class.map_or("", Name::as_str), allowed).into()
    })
}

/// A lease that is given back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Release {
    /// Which.
    pub token: Token,
    /// What came of it.
    pub outcome: Outcome,
    /// How long the remote asked to be left alone, in milliseconds, where it said so with `Throttled`.
    pub retry_after_ms: Option<u64>,
}

/// A lease that is kept.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Renewal {
    /// Which.
    pub token: Token,
    /// Its class, for a store that lost it.
    pub class: Option<Name>,
}

/// What a process knows of the state that a store has lost.
///
/// Spec: ST-18.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Restore {
    /// The epoch that it knew. Nothing is restored into that same epoch.
    pub epoch: Epoch,
    /// The newest limit that it knows.
    pub limit: Option<Limit>,
    /// What is left of the pause that it knows, in milliseconds.
    pub paused_ms: u64,
}

/// A lease that a process granted by itself.
///
/// Spec: UN-3.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HandOver {
    /// Its class.
    pub class: Option<Name>,
}

impl HandOver {
    /// Checks hand-overs to an id that a policy decides on.
    ///
    /// # Errors
    /// [`StoreError::Invalid`] for too many, or where nothing bounds concurrency.
    pub fn check(all: &[Self], deciding: &Policy) -> Result<(), StoreError> {
        at_most("hand_overs", all.len(), MOST_TOKENS)?;
        if deciding.bound().is_none() {
            return Err(Invalid::new("hand_overs", all.len(), "none without a bound on concurrency").into());
        }
        Ok(())
    }
}

/// A cost corrected to what was really used.
///
/// Spec: ST-12.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Settlement {
    /// In which rule; one that is no more is passed over.
    pub rule: RuleKey,
    /// For which identity, in a scoped rule.
    pub identity: Option<Identity>,
    /// When the store granted the job.
    pub granted_at: Moment,
    /// What was spent.
    pub cost: u64,
    /// What was used: 0 to 10^12.
    pub actual: u64,
}

impl Settlement {
    /// Checks settlements: how many, and how much they correct to.
    ///
    /// # Errors
    /// [`StoreError::Invalid`].
    pub fn check(all: &[Self]) -> Result<(), StoreError> {
        at_most("settlements", all.len(), MOST_TOKENS)?;
        for settlement in all {
            for (option, given) in [("actual", settlement.actual), ("cost", settlement.cost)] {
                if given > MOST_ACTUAL {
                    return Err(Invalid::new(option, given, "0 to 10^12").into());
                }
            }
        }
        Ok(())
    }
}

/// What the server says of its own quota.
///
/// Spec: VA-9.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Observation {
    /// Of which rule; one that is no more is passed over.
    pub rule: RuleKey,
    /// For which identity, in a scoped rule.
    pub identity: Option<Identity>,
    /// What is left.
    pub remaining: u64,
    /// Until when that holds, on the store's clock.
    pub reset_at: Moment,
    /// When the store granted the job whose answer said so.
    pub granted_at: Moment,
    /// The mark of that grant in this rule.
    pub mark: u64,
}

/// The most that a settlement can correct to.
const MOST_ACTUAL: u64 = 1_000_000_000_000;

/// Refuses a list that is too long.
///
/// # Errors
/// [`Invalid`] that names the option.
pub fn at_most(option: &str, given: usize, most: usize) -> Result<(), Invalid> {
    if given > most { Err(Invalid::new(option, given, format!("at most {most}"))) } else { Ok(()) }
}

/// The length of a pause in whole milliseconds, rounded up.
///
/// # Errors
/// [`Invalid`] for none at all, or more than 366 days.
pub fn pause_millis(length: Duration) -> Result<u64, Invalid> {
    if length.is_zero() || length > crate::time::LONGEST {
        return Err(Invalid::new("pause", length, "above 0, at most 366 days"));
    }
    Ok(crate::time::ceil_millis(length))
}
