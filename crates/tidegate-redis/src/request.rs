//! What is asked of the script for exchanges, and what of it is refused before.

use std::{collections::HashMap, sync::Arc};

use tidegate_core::{
    Acquire, AcquireRequest, Costs, Exchange, HandOver, Identity, Invalid, Member, Name, Observation,
    Outcome, Policy, Queue, Release, Renewal, Restore, RuleKey, ScopedRequest, Sequence, Settlement,
    StoreError, Token,
    policy::MOST_CLASSES,
    store::{MOST_TOKENS, at_most},
    time::EXACT,
};

use crate::{
    keys::{Keys, driver_name},
    pack::Packer,
    policy::{Base, Storable, Stored},
};

/// What is asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    /// A single part.
    Part,
    /// A whole exchange, which says how all queues stand.
    Exchange,
    /// A renewal.
    Renew,
    /// A hand-over.
    HandOver,
}

/// An acquire of either kind.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Asked<'a> {
    Prefix(&'a AcquireRequest),
    Scoped(&'a ScopedRequest),
}

impl<'a> Asked<'a> {
    const fn class(self) -> Option<&'a Name> {
        match self {
            Self::Prefix(request) => request.class.as_ref(),
            Self::Scoped(request) => request.class.as_ref(),
        }
    }

    fn check(self, member: &Member, deciding: &Result<Arc<Policy>, StoreError>) -> Result<(), StoreError> {
        match self {
            Self::Prefix(request) => request.check_size()?,
            Self::Scoped(request) => request.check_size()?,
        }
        let deciding = deciding.as_ref().map_err(Clone::clone)?;
        match self {
            Self::Prefix(request) => request.check(&member.policy, deciding),
            Self::Scoped(request) => request.check(&member.policy, deciding),
        }
        .map(drop)
    }
}

/// The parts of an exchange.
#[derive(Clone, Debug)]
pub(crate) struct Parts<'a> {
    pub(crate) what: What,
    pub(crate) sequence: Option<Sequence>,
    pub(crate) restore: Option<&'a Restore>,
    pub(crate) releases: &'a [Release],
    pub(crate) settlements: &'a [Settlement],
    pub(crate) observations: &'a [Observation],
    pub(crate) renewals: &'a [Renewal],
    pub(crate) hand_overs: &'a [HandOver],
    pub(crate) acquires: Vec<Asked<'a>>,
    pub(crate) queues: &'a [Queue],
}

impl<'a> Parts<'a> {
    /// None of them.
    pub(crate) const fn none(what: What) -> Self {
        Self {
            what,
            sequence: None,
            restore: None,
            releases: &[],
            settlements: &[],
            observations: &[],
            renewals: &[],
            hand_overs: &[],
            acquires: Vec::new(),
            queues: &[],
        }
    }

    pub(crate) fn of(exchange: &'a Exchange) -> Self {
        let acquires = exchange.acquires.iter().map(|acquire| match acquire {
            Acquire::Prefix(request) => Asked::Prefix(request),
            Acquire::Scoped(request) => Asked::Scoped(request),
        });
        Self {
            what: What::Exchange,
            sequence: exchange.sequence,
            restore: exchange.restore.as_ref(),
            releases: &exchange.releases,
            settlements: &exchange.settlements,
            observations: &exchange.observations,
            renewals: &exchange.renewals,
            hand_overs: &exchange.hand_overs,
            acquires: acquires.collect(),
            queues: &exchange.queues,
        }
    }
}

/// A part is refused, or asked.
type Verdict = Result<(), StoreError>;

/// A request that was checked and written out.
pub(crate) struct Request {
    pub(crate) keys: Vec<Vec<u8>>,
    pub(crate) bytes: Vec<u8>,
    /// The policy that decides.
    pub(crate) deciding: Arc<Policy>,
    pub(crate) released: Verdict,
    pub(crate) settled: Verdict,
    pub(crate) observed: Verdict,
    pub(crate) renewed: Verdict,
    pub(crate) handed_over: Verdict,
    pub(crate) acquired: Vec<Verdict>,
}

impl Request {
    pub(crate) fn of(
        member: &Member,
        own: &Stored<Policy>,
        base: &Base<Policy>,
        keys: &Keys,
        parts: &Parts<'_>,
    ) -> Self {
        let deciding = match base {
            Base::Own | Base::Unpinned => Ok(Arc::clone(&member.policy)),
            Base::Pinned(pinned) => member.deciding(Some(&pinned.policy)),
        };
        let too_many = |option, given| at_most(option, given, MOST_TOKENS).map_err(StoreError::from);
        let mut request = Self {
            keys: vec![keys.main()],
            bytes: Vec::new(),
            released: too_many("releases", parts.releases.len()),
            settled: Settlement::check(parts.settlements),
            observed: too_many("observations", parts.observations.len()),
            renewed: too_many("renewals", parts.renewals.len()),
            handed_over: check_hand_overs(parts, &deciding),
            acquired: check_acquires(member, parts, &deciding),
            deciding: deciding.unwrap_or_else(|_| Arc::clone(&member.policy)),
        };
        if parts.sequence.is_some() {
            request.keys.push(keys.answer(member.driver));
        }
        let mut places = Places { keys, known: HashMap::new() };
        request.bytes = request.write(member, own, base, parts, &mut places);
        request
    }

    fn write(
        &mut self,
        member: &Member,
        own: &Stored<Policy>,
        base: &Base<Policy>,
        parts: &Parts<'_>,
        places: &mut Places<'_>,
    ) -> Vec<u8> {
        let mut packer = Packer::with_capacity(256 + own.bytes.len());
        // Values one after another, with no list around them: a table would cost the script more than they do.
        match parts.sequence {
            Some(sequence) => {
                write_sequence(&mut packer, sequence.number);
                packer.some_number(sequence.not_after.map(|moment| moment.micros()));
            }
            None => {
                packer.absent().number(0).no_number();
            }
        }
        write_restore(&mut packer, parts.restore);
        write_releases(&mut packer, if self.released.is_ok() { parts.releases } else { &[] });
        let settlements = if self.settled.is_ok() { parts.settlements } else { &[] };
        packer.list(settlements.len() * 5);
        for settlement in settlements {
            packer.text(settlement.rule.as_str());
            packer.number(places.of(&mut self.keys, &settlement.rule, settlement.identity.as_ref()));
            packer.number(settlement.granted_at.millis()).number(settlement.cost).number(settlement.actual);
        }
        let observations = if self.observed.is_ok() { parts.observations } else { &[] };
        packer.list(observations.len() * 6);
        for seen in observations {
            packer.text(seen.rule.as_str());
            packer.number(places.of(&mut self.keys, &seen.rule, seen.identity.as_ref()));
            packer.number(seen.remaining).number(seen.reset_at.millis());
            packer.number(seen.granted_at.millis()).number(seen.mark);
        }
        let renewals = if self.renewed.is_ok() { parts.renewals } else { &[] };
        packer.list(renewals.len() * 3);
        for renewal in renewals {
            write_token(&mut packer, renewal.token);
        }
        if parts.restore.is_some() {
            packer.array(renewals.len());
            for renewal in renewals {
                packer.some_text(renewal.class.as_ref().map(Name::as_str));
            }
        } else {
            packer.absent();
        }
        let hand_overs = if self.handed_over.is_ok() { parts.hand_overs } else { &[] };
        packer.list(hand_overs.len());
        for hand_over in hand_overs {
            packer.some_text(hand_over.class.as_ref().map(Name::as_str));
        }
        self.write_acquires(&mut packer, parts, places);
        packer.list(parts.queues.len() * 3);
        for queue in parts.queues {
            packer.some_text(queue.class.as_ref().map(Name::as_str));
            packer.number(queue.line.waiting.into()).number(queue.line.waited_ms);
        }
        packer.text(base.digest(own));
        let offers = base.takes(own) || parts.restore.is_some();
        if offers {
            write_offer(&mut packer, own)
        } else {
            packer.absent()
        };
        packer.number(member.initial_limit.into());
        packer.text(&driver_name(member.driver)).text(member.owner.as_str());
        let verdicts = [&self.released, &self.settled, &self.observed, &self.renewed, &self.handed_over];
        let refused = verdicts.into_iter().chain(&self.acquired).any(Result::is_err);
        packer.number(match parts.what {
            What::Exchange => 1,
            // Nothing is left to do but to look.
            _ if refused => 4,
            What::Part => 0,
            What::Renew => 2,
            What::HandOver => 3,
        });
        // What is refused depends on it as well.
        let leases = parts.what == What::HandOver || !parts.hand_overs.is_empty();
        packer.truth(leases || !parts.acquires.is_empty());
        packer.done()
    }

    fn write_acquires(&mut self, packer: &mut Packer, parts: &Parts<'_>, places: &mut Places<'_>) {
        packer.list(parts.acquires.len());
        for (asked, verdict) in parts.acquires.iter().zip(&self.acquired) {
            let class = asked.class().map(Name::as_str);
            if verdict.is_err() {
                packer.array(2).some_text(class).no_number();
                continue;
            }
            match asked {
                Asked::Prefix(request) => {
                    let runs = runs(request);
                    packer.array(4 + runs.len() * (1 + self.deciding.rules().len())).some_text(class);
                    packer.number(request.line.waiting.into()).number(request.line.waited_ms).number(0);
                    for (count, costs) in runs {
                        packer.number(count);
                        for rule in self.deciding.rules() {
                            packer.number(costs.of(rule.name()));
                        }
                    }
                }
                Asked::Scoped(request) => {
                    packer.array(5).some_text(class);
                    packer.number(request.line.waiting.into()).number(request.line.waited_ms).number(1);
                    packer.array(request.jobs.len());
                    for job in &request.jobs {
                        packer.array(self.deciding.rules().len() * 2);
                        for rule in self.deciding.rules() {
                            packer.number(job.costs.of(rule.name()));
                            packer.number(places.of(&mut self.keys, rule.key(), job.identity(rule)));
                        }
                    }
                }
            }
        }
    }
}

/// A number of all 64 bits, in two halves: a script's own numbers are exact below 2^53.
fn write_sequence(packer: &mut Packer, number: u64) {
    packer.number(number >> 32).number(number & 0xffff_ffff);
}

fn check_hand_overs(parts: &Parts<'_>, deciding: &Result<Arc<Policy>, StoreError>) -> Verdict {
    if parts.hand_overs.is_empty() && parts.what != What::HandOver {
        return Ok(());
    }
    at_most("hand_overs", parts.hand_overs.len(), MOST_TOKENS)?;
    HandOver::check(parts.hand_overs, deciding.as_ref().map_err(Clone::clone)?)
}

fn check_acquires(
    member: &Member,
    parts: &Parts<'_>,
    deciding: &Result<Arc<Policy>, StoreError>,
) -> Vec<Verdict> {
    let checked = parts.acquires.iter().enumerate().map(|(index, asked)| {
        // There is no more than one for each class and one without, so this looks at few.
        let again = index > MOST_CLASSES
            || parts.acquires.iter().take(index).any(|earlier| earlier.class() == asked.class());
        if again {
            return Err(Invalid::new("acquires", index, "at most one for each class").into());
        }
        asked.check(member, deciding)
    });
    checked.collect()
}

/// Jobs of the same costs that follow each other.
fn runs(request: &AcquireRequest) -> Vec<(u64, &Costs)> {
    let mut runs: Vec<(u64, &Costs)> = Vec::with_capacity(1);
    for job in &request.jobs {
        match runs.last_mut() {
            Some((count, costs)) if **costs == job.costs => *count += 1,
            _ => runs.push((1, &job.costs)),
        }
    }
    runs
}

fn write_restore(packer: &mut Packer, restore: Option<&Restore>) {
    let Some(restore) = restore else {
        packer.absent();
        return;
    };
    packer.array(4);
    // No state has an epoch that large.
    packer.some_number(Some(restore.epoch.0).filter(|epoch| *epoch < EXACT));
    packer.some_number(restore.limit.map(|limit| limit.value.into()));
    packer.number(restore.limit.map_or(0, |limit| limit.moved_at.micros()));
    packer.number(restore.paused_ms.min(tidegate_core::time::ceil_millis(tidegate_core::time::LONGEST)));
}

fn write_releases(packer: &mut Packer, releases: &[Release]) {
    if releases.is_empty() {
        packer.absent();
        return;
    }
    let mut doubles = Vec::with_capacity(releases.len() * 5);
    for Release { token, outcome, retry_after_ms } in releases {
        let outcome = match outcome {
            Outcome::Success => 0.0,
            Outcome::Throttled => 1.0,
            Outcome::Failure => 2.0,
        };
        let slot = if is_given(*token) { f64::from(token.slot) } else { -1.0 };
        doubles.extend([slot, double(token.fence), double(token.epoch.0), outcome]);
        doubles.push(retry_after_ms.map_or(-1.0, double));
    }
    packer.doubles(&doubles);
}

/// A number as a script has it, which is exact below 2^53; a larger one is taken as the largest of those.
fn double(number: u64) -> f64 {
    number.min(EXACT - 1) as f64
}

/// Whether a store can have given a token.
fn is_given(token: Token) -> bool {
    token.fence < EXACT && token.epoch.0 < EXACT
}

/// A token; one that no store has given names no slot.
fn write_token(packer: &mut Packer, token: Token) {
    packer
        .some_number(is_given(token).then_some(token.slot.into()))
        .number(token.fence)
        .number(token.epoch.0);
}

pub(crate) fn write_offer<'a, P: Storable>(packer: &'a mut Packer, own: &Stored<P>) -> &'a mut Packer {
    packer.array(3).bytes(&own.bytes).text(&own.digest).number(own.policy.revision().into())
}

/// Where in the keys the levels of identities are.
struct Places<'a> {
    keys: &'a Keys,
    known: HashMap<Vec<u8>, u64>,
}

impl Places<'_> {
    /// The place of an identity's key, from 1; 0 for none.
    fn of(&mut self, keys: &mut Vec<Vec<u8>>, rule: &RuleKey, identity: Option<&Identity>) -> u64 {
        let Some(identity) = identity else { return 0 };
        let key = self.keys.identity(rule, identity);
        *self.known.entry(key).or_insert_with_key(|key| {
            keys.push(key.clone());
            keys.len() as u64
        })
    }
}
