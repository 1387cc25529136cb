//! A policy as it is stored: once for the scripts and for us.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use sha1_smol::Sha1;
use tidegate_core::{
    Bound, Class, Id, Policy, Rule, SafeStart, StoreError,
    limit::{Aimd, Growth, LimitPolicy},
    policy::CheckedClass,
    rule::Algorithm,
    store::Cause,
};

use crate::pack::{Packer, Reader};

/// A policy of either kind, as it is written and read.
pub(crate) trait Storable: Sized {
    fn revision(&self) -> u32;
    fn encode(&self) -> Vec<u8>;
    fn decode(bytes: &[u8]) -> Result<Self, StoreError>;
}

/// A policy with the bytes that are stored, and their digest.
#[derive(Debug)]
pub(crate) struct Stored<P> {
    pub(crate) policy: Arc<P>,
    pub(crate) bytes: Vec<u8>,
    pub(crate) digest: String,
}

impl<P: Storable> Stored<P> {
    fn of(policy: &Arc<P>) -> Self {
        let bytes = policy.encode();
        let digest = Sha1::from(&bytes).digest().to_string();
        Self { policy: Arc::clone(policy), bytes, digest }
    }

    /// Reads what is stored.
    pub(crate) fn read(bytes: &[u8]) -> Result<Self, StoreError> {
        let policy = Arc::new(P::decode(bytes)?);
        let digest = Sha1::from(bytes).digest().to_string();
        Ok(Self { policy, bytes: bytes.to_vec(), digest })
    }
}

/// The policies of this process, written out once each, by their addresses.
pub(crate) struct Shelf<P>(Mutex<HashMap<usize, Arc<Stored<P>>>>);

impl<P> Default for Shelf<P> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// With more than this on the shelf, those that nobody else has any more are taken off.
const MANY: usize = 256;

impl<P: Storable> Shelf<P> {
    pub(crate) fn stored(&self, policy: &Arc<P>) -> Arc<Stored<P>> {
        let address = Arc::as_ptr(policy).addr();
        let mut shelf = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stored) = shelf.get(&address) {
            return Arc::clone(stored);
        }
        if shelf.len() > MANY {
            shelf.retain(|_, stored| Arc::strong_count(&stored.policy) > 1);
        }
        let stored = Arc::new(Stored::of(policy));
        shelf.insert(address, Arc::clone(&stored));
        stored
    }
}

/// What the state of an id, or of a circuit, is thought to be pinned to.
#[derive(Debug)]
pub(crate) enum Base<P> {
    /// The member's own policy.
    Own,
    /// Nothing.
    Unpinned,
    /// Another policy.
    Pinned(Arc<Stored<P>>),
}

impl<P> Clone for Base<P> {
    fn clone(&self) -> Self {
        match self {
            Self::Own => Self::Own,
            Self::Unpinned => Self::Unpinned,
            Self::Pinned(pinned) => Self::Pinned(Arc::clone(pinned)),
        }
    }
}

impl<P: Storable> Base<P> {
    /// The digest of the policy that a request is checked against.
    pub(crate) fn digest<'a>(&'a self, own: &'a Stored<P>) -> &'a str {
        match self {
            Self::Own => &own.digest,
            Self::Unpinned => "",
            Self::Pinned(pinned) => &pinned.digest,
        }
    }

    /// Whether the member's own policy is to be pinned.
    pub(crate) fn takes(&self, own: &Stored<P>) -> bool {
        match self {
            Self::Own => false,
            Self::Unpinned => true,
            Self::Pinned(pinned) => own.policy.revision() > pinned.policy.revision(),
        }
    }
}

/// The policies of this process, and what other processes have pinned.
pub(crate) struct Known<P> {
    shelf: Shelf<P>,
    /// Ids that are pinned to another policy than a member's own, as far as was seen.
    pins: Mutex<HashMap<Id, Arc<Stored<P>>>>,
}

impl<P> Default for Known<P> {
    fn default() -> Self {
        Self { shelf: Shelf::default(), pins: Mutex::default() }
    }
}

/// How many ids are kept in mind.
pub(crate) const MOST_KEPT: usize = 10_000;

impl<P: Storable> Known<P> {
    pub(crate) fn stored(&self, policy: &Arc<P>) -> Arc<Stored<P>> {
        self.shelf.stored(policy)
    }

    /// What the id is pinned to, as far as was seen.
    pub(crate) fn base(&self, id: &Id, own: &Stored<P>) -> Base<P> {
        let pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        match pins.get(id) {
            Some(pinned) if pinned.digest != own.digest => Base::Pinned(Arc::clone(pinned)),
            _ => Base::Own,
        }
    }

    /// Takes in what the id is pinned to, as it was answered.
    pub(crate) fn learn(
        &self,
        id: &Id,
        own: &Stored<P>,
        pinned: Option<&[u8]>,
    ) -> Result<Base<P>, StoreError> {
        let pinned = pinned.map(Stored::read).transpose()?;
        let mut pins = self.pins.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(match pinned {
            None => {
                pins.remove(id);
                Base::Unpinned
            }
            Some(pinned) if pinned.digest == own.digest => {
                pins.remove(id);
                Base::Own
            }
            Some(pinned) => {
                if pins.len() >= MOST_KEPT {
                    pins.clear();
                }
                let pinned = Arc::new(pinned);
                pins.insert(id.clone(), Arc::clone(&pinned));
                Base::Pinned(pinned)
            }
        })
    }
}

impl Storable for Policy {
    fn revision(&self) -> u32 {
        self.revision()
    }

    fn encode(&self) -> Vec<u8> {
        encode(self)
    }

    fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        decode(bytes)
    }
}

fn encode(policy: &Policy) -> Vec<u8> {
    let mut packer = Packer::with_capacity(128);
    packer.array(7).number(policy.revision().into()).number(policy.lease_ttl_ms()).truth(policy.safe_start());
    match policy.bound() {
        None => packer.absent().absent(),
        Some(Bound::Fixed(limit)) => packer.number((*limit).into()).absent(),
        Some(Bound::Adaptive(adaptive)) => write_adaptive(packer.absent(), adaptive),
    };
    packer.array(policy.classes().len());
    for CheckedClass { name, share } in policy.classes() {
        packer.array(2).text(name.as_str()).number(share.ppm().into());
    }
    packer.array(policy.rules().len());
    for rule in policy.rules() {
        let (n, d) = rule.rate();
        packer.array(9).text(rule.key().as_str()).number(algorithm_number(rule.algorithm()));
        packer.number(rule.limit()).number(rule.interval_ms()).number(rule.burst()).number(n).number(d);
        packer.some_text(rule.name().map(|name| name.as_str()));
        packer.some_text(rule.scope().map(|scope| scope.as_str()));
    }
    packer.done()
}

fn write_adaptive<'a>(packer: &'a mut Packer, adaptive: &LimitPolicy) -> &'a mut Packer {
    packer.array(9).number(adaptive.min.into()).number(adaptive.max.into());
    packer.number(adaptive.decrease_factor.ppm().into()).number(adaptive.increase_step.into());
    packer.number(adaptive.window_ms).number(adaptive.cooldown_ms).number(adaptive.tolerance.ppm().into());
    packer.number(adaptive.throttle_rest_ms).number(growth_number(adaptive.growth))
}

fn decode(bytes: &[u8]) -> Result<Policy, StoreError> {
    let mut reader = Reader::of(bytes);
    reader.array_of(7)?;
    let mut draft = Policy::draft()
        .revision(reader.small()?)
        .lease_ttl(Duration::from_millis(reader.number()?))
        .safe_start(if reader.truth()? { SafeStart::On } else { SafeStart::Off });
    if !reader.absent()? {
        draft = draft.bound(Bound::Fixed(reader.small()?));
    }
    if !reader.absent()? {
        draft = draft.bound(Bound::Adaptive(read_adaptive(&mut reader)?));
    }
    for _ in 0..reader.array()? {
        reader.array_of(2)?;
        let (name, share) = (reader.text()?, reader.small()?);
        draft = draft.class(match share {
            0 => Class::unreserved(name),
            ppm => Class::reserved(name, fraction(ppm)),
        });
    }
    for _ in 0..reader.array()? {
        draft = draft.rule(read_rule(&mut reader)?);
    }
    draft.check().map_err(|invalid| corrupt(&invalid.to_string()))
}

fn read_adaptive(reader: &mut Reader<'_>) -> Result<LimitPolicy, StoreError> {
    reader.array_of(9)?;
    let (min, max, factor, step) = (reader.small()?, reader.small()?, reader.small()?, reader.small()?);
    let (window, cooldown, tolerance) = (reader.number()?, reader.number()?, reader.small()?);
    let (rest, growth) = (reader.number()?, reader.number()?);
    let aimd = Aimd::new()
        .decrease_factor(fraction(factor))
        .increase_step(step)
        .window(Duration::from_millis(window))
        .cooldown(Duration::from_millis(cooldown))
        .tolerance(fraction(tolerance));
    let growth = match growth {
        0 => Growth::Additive,
        1 => Growth::SlowStart,
        2 => Growth::Probe,
        _ => return Err(corrupt("an unknown growth")),
    };
    LimitPolicy::check(min, max, &aimd, Duration::from_millis(rest), growth)
        .map_err(|invalid| corrupt(&invalid.to_string()))
}

fn read_rule(reader: &mut Reader<'_>) -> Result<Rule, StoreError> {
    reader.array_of(9)?;
    reader.text()?;
    let algorithm = reader.number()?;
    let (limit, interval, burst) =
        (reader.number()?, Duration::from_millis(reader.number()?), reader.number()?);
    reader.number()?;
    reader.number()?;
    let mut rule = match algorithm {
        0 => Rule::token_bucket(limit, interval).burst(burst),
        1 => Rule::fixed_window(limit, interval),
        2 => Rule::sliding_window(limit, interval),
        _ => return Err(corrupt("an unknown algorithm")),
    };
    if let Some(name) = reader.some_text()? {
        rule = rule.named(name);
    }
    if let Some(scope) = reader.some_text()? {
        rule = rule.scoped(scope);
    }
    Ok(rule)
}

pub(crate) fn fraction(ppm: u32) -> f64 {
    f64::from(ppm) / 1_000_000.0
}

const fn algorithm_number(algorithm: Algorithm) -> u64 {
    match algorithm {
        Algorithm::TokenBucket => 0,
        Algorithm::FixedWindow => 1,
        Algorithm::SlidingWindow => 2,
    }
}

const fn growth_number(growth: Growth) -> u64 {
    match growth {
        Growth::SlowStart => 1,
        Growth::Probe => 2,
        _ => 0,
    }
}

pub(crate) fn corrupt(what: &str) -> StoreError {
    StoreError::unavailable(Cause::Corrupt, format!("the stored policy: {what}"))
}
