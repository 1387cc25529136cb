//! The policy: what must be the same in every worker of an id.
//!
//! A [`Draft`] is what a worker is configured with; [`Draft::check`] turns it into a [`Policy`], with every default
//! filled in and every list in one order, so that two workers compare equal exactly when they mean the same.
//!
//! Spec: ST-5.

use std::{sync::Arc, time::Duration};

use crate::{
    Fraction, Invalid, Name, StoreError,
    limit::LimitPolicy,
    rule::{self, CheckedRule, Rule},
    time,
};

/// The most classes of one policy.
pub const MOST_CLASSES: usize = 16;
/// The highest limit of concurrency.
pub const MOST_LEASES: u32 = 1_000_000;
/// The highest revision.
pub const MOST_REVISION: u32 = i32::MAX.unsigned_abs();
/// The lease TTL where none is given.
pub const LEASE_TTL: Duration = Duration::from_secs(30);

/// A named tier of a concurrency bound, as a person writes it; checked with the policy.
///
/// Spec: AS-5.
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Class {
    name: String,
    share: Option<f64>,
}

impl Class {
    /// A class with a slice of `ceil(share × limit)` that no other class can take. `share` lies in (0, 1), and the
    /// shares of a policy sum to less than 1.
    pub fn reserved(name: impl Into<String>, share: f64) -> Self {
        Self { name: name.into(), share: Some(share) }
    }

    /// A class with no slice of its own.
    pub fn unreserved(name: impl Into<String>) -> Self {
        Self { name: name.into(), share: None }
    }
}

/// A class that has been checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckedClass {
    /// Its name.
    pub name: Name,
    /// Its reserved share; zero for an unreserved class.
    pub share: Fraction,
}

/// How many leases may be live at once.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Bound {
    /// A limit that is known: 1 to 1,000,000.
    Fixed(u32),
    /// A limit that moves with the outcomes.
    Adaptive(LimitPolicy),
}

/// What a worker of a lower revision does when it meets a newer policy. It concerns one process: no part of the policy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnSuperseded {
    /// Goes on under the newer policy.
    #[default]
    Adopt,
    /// Gets `PolicySuperseded`.
    Refuse,
}

/// A policy before it is checked.
#[derive(Clone, Debug)]
#[must_use]
pub struct Draft {
    revision: u32,
    rules: Vec<Rule>,
    bound: Option<Bound>,
    lease_ttl: Duration,
    classes: Vec<Class>,
    safe_start: bool,
}

impl Default for Draft {
    fn default() -> Self {
        Self {
            revision: 0,
            rules: Vec::new(),
            bound: None,
            lease_ttl: LEASE_TTL,
            classes: Vec::new(),
            safe_start: false,
        }
    }
}

impl Draft {
    /// The revision: 0 unless told, to 2^31 − 1. A higher one replaces the pinned policy.
    pub fn revision(mut self, revision: u32) -> Self {
        self.revision = revision;
        self
    }

    /// Adds a rate rule; at most 16.
    pub fn rule(mut self, rule: Rule) -> Self {
        self.rules.push(rule);
        self
    }

    /// Bounds the leases that may be live at once.
    pub fn bound(mut self, bound: Bound) -> Self {
        self.bound = Some(bound);
        self
    }

    /// The lease TTL: 100 ms to 24 h, 30 s unless told.
    pub fn lease_ttl(mut self, ttl: Duration) -> Self {
        self.lease_ttl = ttl;
        self
    }

    /// Adds a class; at most 16.
    pub fn class(mut self, class: Class) -> Self {
        self.classes.push(class);
        self
    }

    /// Whether the id's first use waits one TTL, its buckets start empty and its windows full; off unless told.
    pub fn safe_start(mut self, safe_start: SafeStart) -> Self {
        self.safe_start = safe_start == SafeStart::On;
        self
    }

    /// Checks it all.
    ///
    /// # Errors
    /// [`Invalid`] for the first option that cannot be taken.
    pub fn check(&self) -> Result<Policy, Invalid> {
        if self.revision > MOST_REVISION {
            return Err(Invalid::new("revision", self.revision, "0 to 2147483647"));
        }
        let rules = rule::check_all(&self.rules)?;
        if let Some(Bound::Fixed(limit)) = self.bound
            && !(1..=MOST_LEASES).contains(&limit)
        {
            return Err(Invalid::new("limit", limit, "1 to 1000000"));
        }
        if !(Duration::from_millis(100)..=Duration::from_secs(86_400)).contains(&self.lease_ttl) {
            return Err(Invalid::new("lease_ttl", self.lease_ttl, "100 ms to 24 h"));
        }
        let classes = check_classes(&self.classes)?;
        if !classes.is_empty() && self.bound.is_none() {
            return Err(Invalid::new("class", &classes[0].name, "classes only with a bound on concurrency"));
        }
        Ok(Policy {
            revision: self.revision,
            rules,
            bound: self.bound.clone(),
            lease_ttl_ms: time::ceil_millis(self.lease_ttl),
            classes,
            safe_start: self.safe_start,
        })
    }
}

/// Whether an id that is new, or whose state was lost, holds back at first.
///
/// Spec: ST-18.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SafeStart {
    /// Grants at once.
    #[default]
    Off,
    /// Waits one TTL, with buckets empty and windows full.
    On,
}

fn check_classes(classes: &[Class]) -> Result<Vec<CheckedClass>, Invalid> {
    if classes.len() > MOST_CLASSES {
        return Err(Invalid::new("classes", classes.len(), "at most 16"));
    }
    let mut checked = Vec::with_capacity(classes.len());
    for class in classes {
        let name = Name::new("class", &class.name)?;
        let share = match class.share {
            None => Fraction::ZERO,
            Some(given) => {
                let option = format!("class {name}: share");
                let allowed = "a number above 0 and below 1 (0.000001 at least)";
                match Fraction::new(&option, given) {
                    Ok(share) if share > Fraction::ZERO && share < Fraction::ONE => share,
                    _ => return Err(Invalid::new(option, given, allowed)),
                }
            }
        };
        checked.push(CheckedClass { name, share });
    }
    checked.sort_by(|a, b| a.name.cmp(&b.name));
    if let Some(twice) = checked.windows(2).find(|pair| pair[0].name == pair[1].name) {
        return Err(Invalid::new("class", &twice[0].name, "each class once"));
    }
    let sum: u32 = checked.iter().map(|class| class.share.ppm()).sum();
    if sum >= Fraction::ONE.ppm() {
        let given = f64::from(sum) / f64::from(Fraction::ONE.ppm());
        return Err(Invalid::new("classes: sum of shares", given, "below 1"));
    }
    Ok(checked)
}

/// A policy: checked, complete, and in one order. Compared whole when it is offered to an id.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Policy {
    revision: u32,
    rules: Vec<CheckedRule>,
    bound: Option<Bound>,
    lease_ttl_ms: u64,
    classes: Vec<CheckedClass>,
    safe_start: bool,
}

/// Where an offered policy differs from the pinned one of the same revision.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Difference {
    /// The field, as it is called where it is set.
    pub field: String,
    /// What the id is pinned to.
    pub pinned: String,
    /// What was offered.
    pub offered: String,
}

impl Policy {
    /// A policy with every default, to be filled in and checked.
    pub fn draft() -> Draft {
        Draft::default()
    }

    /// The revision.
    pub const fn revision(&self) -> u32 {
        self.revision
    }

    /// The rate rules, in the order of their keys.
    pub fn rules(&self) -> &[CheckedRule] {
        &self.rules
    }

    /// The bound on concurrency, where there is one.
    pub const fn bound(&self) -> Option<&Bound> {
        self.bound.as_ref()
    }

    /// The constants of an adaptive bound.
    pub const fn adaptive(&self) -> Option<&LimitPolicy> {
        match &self.bound {
            Some(Bound::Adaptive(adaptive)) => Some(adaptive),
            _ => None,
        }
    }

    /// The lease TTL in milliseconds.
    pub const fn lease_ttl_ms(&self) -> u64 {
        self.lease_ttl_ms
    }

    /// The classes, in the order of their names.
    pub fn classes(&self) -> &[CheckedClass] {
        &self.classes
    }

    /// Whether the id's first use holds back.
    pub const fn safe_start(&self) -> bool {
        self.safe_start
    }

    /// Whether a rule is split by a scope.
    pub fn is_scoped(&self) -> bool {
        self.rules.iter().any(|rule| rule.scope().is_some())
    }

    /// The place of a class among the tiers: classes in their order, and one more for jobs without a class.
    pub fn tier(&self, class: Option<&Name>) -> Option<usize> {
        match class {
            None => Some(self.classes.len()),
            Some(name) => self.classes.iter().position(|class| class.name == *name),
        }
    }

    /// The class of a tier; none for the tier of jobs without a class.
    pub fn class(&self, tier: usize) -> Option<&Name> {
        self.classes.get(tier).map(|class| &class.name)
    }

    /// The shares of the tiers, in order; the last is that of jobs without a class.
    pub fn shares(&self) -> impl Iterator<Item = Fraction> + Clone {
        (0..=self.classes.len())
            .map(|tier| self.classes.get(tier).map_or(Fraction::ZERO, |class| class.share))
    }

    /// The first field in which `offered` differs from this pinned policy; the revision is no such field.
    pub fn difference(&self, offered: &Self) -> Option<Difference> {
        // Nearly always they are equal, and nothing need be written out to see that.
        if self == offered {
            return None;
        }
        let bound = |policy: &Self| bound_fields(policy.bound.as_ref());
        let mut fields = vec![
            ("lease_ttl".to_owned(), millis(self.lease_ttl_ms), millis(offered.lease_ttl_ms)),
            ("safe_start".to_owned(), self.safe_start.to_string(), offered.safe_start.to_string()),
        ];
        fields.extend(paired(&bound(self), &bound(offered)));
        fields.extend(paired(&class_fields(&self.classes), &class_fields(&offered.classes)));
        fields.extend(paired(&rule_fields(&self.rules), &rule_fields(&offered.rules)));
        fields
            .into_iter()
            .find(|(_, pinned, offered)| pinned != offered)
            .map(|(field, pinned, offered)| Difference { field, pinned, offered })
    }
}

const ABSENT: &str = "none";

fn millis(ms: u64) -> String {
    format!("{ms} ms")
}

/// The fields of both sides by name; one that a side lacks reads as absent there.
fn paired(pinned: &[(String, String)], offered: &[(String, String)]) -> Vec<(String, String, String)> {
    let value = |side: &[(String, String)], field: &str| {
        side.iter()
            .find(|(name, _)| name == field)
            .map_or_else(|| ABSENT.to_owned(), |(_, value)| value.clone())
    };
    let names = pinned
        .iter()
        .chain(offered.iter().filter(|(name, _)| !pinned.iter().any(|(known, _)| known == name)));
    names.map(|(name, _)| (name.clone(), value(pinned, name), value(offered, name))).collect()
}

fn bound_fields(bound: Option<&Bound>) -> Vec<(String, String)> {
    let fields = match bound {
        None => vec![],
        Some(Bound::Fixed(limit)) => vec![("concurrency", "fixed".to_owned()), ("limit", limit.to_string())],
        Some(Bound::Adaptive(adaptive)) => vec![
            ("concurrency", "adaptive".to_owned()),
            ("min_limit", adaptive.min.to_string()),
            ("max_limit", adaptive.max.to_string()),
            ("aimd.decrease_factor", adaptive.decrease_factor.to_string()),
            ("aimd.increase_step", adaptive.increase_step.to_string()),
            ("aimd.window", millis(adaptive.window_ms)),
            ("aimd.cooldown", millis(adaptive.cooldown_ms)),
            ("aimd.tolerance", adaptive.tolerance.to_string()),
            ("throttle_rest", millis(adaptive.throttle_rest_ms)),
            ("growth", adaptive.growth.as_str().to_owned()),
        ],
    };
    fields.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn class_fields(classes: &[CheckedClass]) -> Vec<(String, String)> {
    let share = |class: &CheckedClass| match class.share {
        Fraction::ZERO => "unreserved".to_owned(),
        share => share.to_string(),
    };
    classes.iter().map(|class| (format!("class {}: share", class.name), share(class))).collect()
}

fn rule_fields(rules: &[CheckedRule]) -> Vec<(String, String)> {
    let mut fields = Vec::with_capacity(rules.len() * 5);
    for rule in rules {
        let mut field =
            |name: &str, value: String| fields.push((format!("rule {}: {name}", rule.key()), value));
        field("algorithm", rule.algorithm().as_str().to_owned());
        field("limit", rule.limit().to_string());
        field("interval", millis(rule.interval_ms()));
        field("burst", rule.burst().to_string());
        field("scope", rule.scope().map_or_else(|| ABSENT.to_owned(), Name::to_string));
    }
    fields
}

/// The policy and what else is the same in all requests of one driver: built once, and shared by them.
#[derive(Clone, Debug)]
pub struct Member {
    /// The id that it works on.
    pub id: crate::Id,
    /// Which driver asks.
    pub driver: DriverId,
    /// Who holds its leases, as people see it.
    pub owner: crate::Owner,
    /// The policy that it was configured with.
    pub policy: Arc<Policy>,
    /// What it does when it meets a newer policy.
    pub on_superseded: OnSuperseded,
    /// What an adaptive limit starts from where the store has none; ignored for any other bound.
    pub initial_limit: u32,
}

impl Member {
    /// The policy that its requests are decided by, where `pinned` is what the store has.
    ///
    /// # Errors
    /// [`StoreError::PolicyDiffers`] from the pinned one of the same revision; [`StoreError::Superseded`] by a higher one,
    /// where it refuses that.
    ///
    /// Spec: ST-5.
    pub fn deciding(&self, pinned: Option<&Arc<Policy>>) -> Result<Arc<Policy>, StoreError> {
        deciding(&self.policy, pinned, self.on_superseded)
    }
}

/// What can be pinned, and replaced by a higher revision.
pub(crate) trait Pinnable {
    fn revision(&self) -> u32;
    fn difference(&self, offered: &Self) -> Option<Difference>;
}

impl Pinnable for Policy {
    fn revision(&self) -> u32 {
        self.revision()
    }

    fn difference(&self, offered: &Self) -> Option<Difference> {
        self.difference(offered)
    }
}

/// Which of two policies decides.
///
/// Spec: ST-5.
pub(crate) fn deciding<P: Pinnable>(
    offered: &Arc<P>,
    pinned: Option<&Arc<P>>,
    on_superseded: OnSuperseded,
) -> Result<Arc<P>, StoreError> {
    let Some(pinned) = pinned else { return Ok(Arc::clone(offered)) };
    if Arc::ptr_eq(pinned, offered) || offered.revision() > pinned.revision() {
        return Ok(Arc::clone(offered));
    }
    if offered.revision() < pinned.revision() {
        return match on_superseded {
            OnSuperseded::Adopt => Ok(Arc::clone(pinned)),
            OnSuperseded::Refuse => {
                Err(StoreError::Superseded { own: offered.revision(), pinned: pinned.revision() })
            }
        };
    }
    match pinned.difference(offered) {
        None => Ok(Arc::clone(pinned)),
        Some(difference) => Err(StoreError::PolicyDiffers {
            field: difference.field,
            pinned: difference.pinned,
            offered: difference.offered,
        }),
    }
}

/// Names one driver (a process's queue for one id): 128 random bits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct DriverId(pub u128);
