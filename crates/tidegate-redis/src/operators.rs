//! Looking into the store, and setting it right.
//!
//! Spec: ST-20.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use tidegate_core::{
    Answer, Cause, Head, Id, Invalid, LeaseView, Name, Operators, Owner, Page, Policy, Reply, RuleLevel,
    Snapshot, StoreError, Token, circuit::Position, store::page_size, time::EXACT,
};

use crate::{
    RedisStore,
    keys::Keys,
    pack::{Packer, Reader},
    policy::Stored,
    reply::{self, many},
    request::write_offer,
    store::done,
    wire::{Lane, lock},
};

impl Operators for RedisStore {
    fn ids<'a>(&'a self, after: Option<&'a Id>, most: usize) -> Answer<'a, Page<Id>> {
        Box::pin(async move {
            page_size(most)?;
            // Only as many as make the page and show whether there are more, however many ids there are.
            let first: Arc<Mutex<BTreeSet<Id>>> = Arc::default();
            let found = {
                let (first, prefix, after) = (Arc::clone(&first), self.parts.prefix.clone(), after.cloned());
                move |key: Vec<u8>| {
                    let id = Keys::id(&prefix, &key);
                    if let Some(id) = id.filter(|id| after.as_ref().is_none_or(|after| id > after)) {
                        let mut first = lock(&first);
                        first.insert(id);
                        if first.len() > most + 1 {
                            first.pop_last();
                        }
                    }
                }
            };
            self.parts.wire.scan(&Keys::pattern(&self.parts.prefix), found).await?;
            let first = std::mem::take(&mut *lock(&first));
            let more = first.len() > most;
            let items = first.into_iter().take(most).collect();
            Ok(Reply { head: Head::default(), body: Page { items, more } })
        })
    }

    fn snapshot<'a>(&'a self, id: &'a Id) -> Answer<'a, Option<Snapshot>> {
        Box::pin(async move {
            let script = &self.shared.scripts().snapshot;
            let reply = self.simple(script, id, Vec::new(), read_snapshot).await?;
            let head = reply.head;
            let circuit = self.circuit_snapshot(id).await?;
            if reply.body.is_none() && circuit.is_none() {
                return Ok(Reply { head, body: None });
            }
            let seen = reply.body.unwrap_or_default();
            let body = Snapshot {
                id: id.clone(),
                epoch: head.epoch,
                by_class: by_class(&seen),
                rules: levels(&seen),
                policy: seen.policy,
                limit: head.limit,
                held: seen.held,
                resting: seen.resting,
                waiting: seen.waiting,
                paused_ms: head.paused_ms,
                circuit,
            };
            Ok(Reply { head, body: Some(body) })
        })
    }

    fn leases<'a>(&'a self, id: &'a Id, after: Option<u32>, most: usize) -> Answer<'a, Page<LeaseView>> {
        Box::pin(async move {
            self.or_look(id, page_size(most)).await?;
            let from = after.map_or(0, |after| u64::from(after) + 1);
            let mut packer = Packer::default();
            packer.array(2).number(from).number(most as u64);
            let script = &self.shared.scripts().leases_page;
            self.simple(script, id, packer.done(), |reader| {
                Ok(Page { items: many(reader, read_lease)?, more: reader.flag()? })
            })
            .await
        })
    }

    fn evict<'a>(&'a self, id: &'a Id, token: Token) -> Answer<'a, bool> {
        Box::pin(async move {
            let given = token.fence < EXACT && token.epoch.0 < EXACT;
            let mut packer = Packer::default();
            packer.array(3).some_number(given.then_some(token.slot.into()));
            packer.number(token.fence).number(token.epoch.0);
            self.simple(&self.shared.scripts().evict, id, packer.done(), |reader| reader.flag()).await
        })
    }

    fn set_limit<'a>(&'a self, id: &'a Id, limit: u32) -> Answer<'a, u32> {
        Box::pin(async move {
            let script = &self.shared.scripts().set_limit;
            let refused = |allowed: String| Err(Invalid::new("limit", limit, allowed).into());
            self.simple(script, id, limit.to_string().into_bytes(), |reader| {
                if !reader.is_number() {
                    reader.array_of(2)?;
                    let (least, most) = (reader.number()?, reader.number()?);
                    return refused(format!("{least} to {most}, as the policy says"));
                }
                match reader.number()? {
                    0 => Ok(limit),
                    1 => refused("a limit of an id that is in use".to_owned()),
                    _ => refused(
                        "an adaptive limit; a fixed one is set by a policy of a higher revision".to_owned(),
                    ),
                }
            })
            .await
        })
    }

    fn replace_policy<'a>(&'a self, id: &'a Id, policy: Arc<Policy>) -> Answer<'a, ()> {
        Box::pin(async move {
            let mut packer = Packer::default();
            write_offer(&mut packer, &self.shared.policies.stored(&policy));
            let script = &self.shared.scripts().replace_policy;
            self.simple(script, id, packer.done(), |reader| {
                if reader.absent()? {
                    return Ok(());
                }
                Err(match reader.some_number()? {
                    None => Invalid::new("id", "an id without a policy", "an id that is in use"),
                    Some(pinned) => {
                        let allowed = format!("above {pinned}, which is pinned");
                        Invalid::new("revision", policy.revision(), allowed)
                    }
                }
                .into())
            })
            .await
        })
    }

    fn set_circuit<'a>(&'a self, id: &'a Id, position: Position) -> Answer<'a, bool> {
        Box::pin(self.move_circuit(id, position))
    }

    fn forget<'a>(&'a self, id: &'a Id) -> Answer<'a, bool> {
        Box::pin(async move {
            let keys = self.keys(id);
            let keys = [keys.main(), keys.circuit()];
            let answer = self.run(&self.shared.scripts().forget, &keys, &[], Lane::Commands).await?;
            let mut reader = done(&answer)?;
            let head = reply::head(&mut reader)?;
            match reader.small()? {
                0 => Ok(Reply { head, body: reader.flag()? }),
                held => Err(StoreError::LeasesLive { held }),
            }
        })
    }
}

/// How an id stands without its circuit, as the script says it.
#[derive(Default)]
struct Seen {
    policy: Option<Arc<Policy>>,
    held: u32,
    resting: u32,
    by_tier: Vec<u32>,
    waiting: u32,
    levels: Vec<Option<i64>>,
}

fn read_snapshot(reader: &mut Reader<'_>) -> Result<Option<Seen>, StoreError> {
    if reader.absent()? {
        return Ok(None);
    }
    reader.array_of(6)?;
    let policy = if reader.absent()? { None } else { Some(Stored::<Policy>::read(reader.bytes()?)?.policy) };
    Ok(Some(Seen {
        policy,
        held: reader.small()?,
        resting: reader.small()?,
        by_tier: many(reader, Reader::small)?,
        waiting: reader.small()?,
        levels: many(reader, |reader| if reader.absent()? { Ok(None) } else { reader.signed().map(Some) })?,
    }))
}

fn by_class(seen: &Seen) -> Vec<(Option<Name>, u32)> {
    let tiers = seen.by_tier.iter().enumerate();
    tiers
        .map(|(tier, held)| (seen.policy.as_ref().and_then(|policy| policy.class(tier)).cloned(), *held))
        .collect()
}

fn levels(seen: &Seen) -> Vec<RuleLevel> {
    let rules = seen.policy.iter().flat_map(|policy| policy.rules());
    rules
        .zip(&seen.levels)
        .map(|(rule, level)| RuleLevel { rule: rule.key().clone(), level: *level, identities: None })
        .collect()
}

/// An owner as far as it can be read: a name that was damaged must not keep the others from being seen.
fn read_owner(bytes: &[u8]) -> Result<Owner, StoreError> {
    let owner = std::str::from_utf8(bytes).ok().and_then(|text| Owner::new(text).ok());
    owner.map_or_else(|| Owner::new("(unreadable)"), Ok).map_err(StoreError::from)
}

fn read_lease(reader: &mut Reader<'_>) -> Result<LeaseView, StoreError> {
    let corrupt = |_| StoreError::unavailable(Cause::Corrupt, "a class that none can have");
    reader.array_of(8)?;
    let (slot, fence) = (reader.small()?, reader.number()?);
    let token = Token { epoch: tidegate_core::Epoch(reader.number()?), slot, fence };
    let owner = read_owner(reader.bytes()?)?;
    let class = match reader.some_text()? {
        Some(class) => Some(Name::new("class", class).map_err(corrupt)?),
        None => None,
    };
    Ok(LeaseView {
        token,
        owner,
        class,
        age_ms: reader.number()?,
        left_ms: reader.number()?,
        resting: reader.flag()?,
    })
}
