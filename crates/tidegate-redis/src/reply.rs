//! What the scripts answer.

use tidegate_core::{
    AcquireReply, Acquired, Denial, Epoch, ExchangeReply, Grant, Head, Limit, Marks, Policy, Renewed, Reply,
    ScopedDenial, ScopedGrant, ScopedReply, Settled, StoreError, Token,
    model::LAYOUT,
    store::Cause,
    time::{EXACT, Moment},
};

use crate::{
    pack::Reader,
    request::{Asked, Parts, Request},
};

/// What a script says before it says anything of its own.
pub(crate) enum Said<'a> {
    /// It was done.
    Done(Reader<'a>),
    /// The request was checked against another policy than the one that is pinned: this one, or none.
    Unchecked(Option<&'a [u8]>),
}

/// Reads how an answer begins.
pub(crate) fn read(bytes: &[u8]) -> Result<Said<'_>, StoreError> {
    let mut reader = Reader::of(bytes);
    // Values one after another; what is said of circuits is one list of them.
    reader.maybe_array()?;
    match reader.number()? {
        0 => Ok(Said::Done(reader)),
        1 => Ok(Said::Unchecked(if reader.absent()? { None } else { Some(reader.bytes()?) })),
        2 => Err(StoreError::TooLate { number: sequence(&mut reader)?, last: sequence(&mut reader)? }),
        3 => Err(StoreError::NewerLayout { found: reader.small()?, known: LAYOUT }),
        4 => {
            let what = String::from_utf8_lossy(reader.bytes()?).into_owned();
            let detail = format!("stored state made no sense ({what}); it was cleared");
            Err(StoreError::unavailable(Cause::Corrupt, detail))
        }
        _ => Err(StoreError::unavailable(Cause::Broken, "an answer that cannot be read")),
    }
}

/// A number of all 64 bits, in two halves.
fn sequence(reader: &mut Reader<'_>) -> Result<u64, StoreError> {
    Ok(reader.number()? << 32 | u64::from(reader.small()?))
}

pub(crate) fn head(reader: &mut Reader<'_>) -> Result<Head, StoreError> {
    let epoch = Some(reader.number()?).filter(|epoch| *epoch > 0).map(Epoch);
    let now = Some(Moment::from_micros(reader.number()?));
    let value = reader.some_number()?;
    let moved_at = Moment::from_micros(reader.number()?);
    let limit = match value {
        Some(value) => Some(Limit { value: small(value)?, moved_at }),
        None => None,
    };
    Ok(Head {
        epoch,
        now,
        limit,
        held: reader.some_number()?.map(small).transpose()?,
        paused_ms: reader.number()?,
        revision: reader.some_number()?.map(small).transpose()?,
        lease_ttl_ms: reader.some_number()?,
        stepped_back_ms: reader.number()?,
    })
}

fn small(number: u64) -> Result<u32, StoreError> {
    u32::try_from(number)
        .map_err(|_| StoreError::unavailable(Cause::Broken, format!("{number} where at most 2^32 can be")))
}

/// Reads the answer to an exchange.
pub(crate) fn exchange(
    mut reader: Reader<'_>,
    parts: &Parts<'_>,
    request: &Request,
) -> Result<Reply<ExchangeReply>, StoreError> {
    let head = head(&mut reader)?;
    let epoch = head.epoch.unwrap_or_default();
    let (mut settled, mut observed, mut live, mut handed_over) =
        <(Vec<_>, Vec<_>, Vec<_>, Vec<_>)>::default();
    if !reader.absent()? {
        reader.array_of(4)?;
        settled = many(&mut reader, |reader| Ok(Settled { cut: reader.number()? }))?;
        observed = many(&mut reader, Reader::flag)?;
        live = many(&mut reader, Reader::flag)?;
        for _ in 0..reader.array()? / 2 {
            handed_over.push(Token { epoch, slot: reader.small()?, fence: reader.number()? });
        }
    }
    let handed_over = match &request.handed_over {
        Ok(()) if handed_over.len() < parts.hand_overs.len() => Err(full()),
        Ok(()) => Ok(handed_over),
        Err(refused) => Err(refused.clone()),
    };
    let mut acquired = Vec::with_capacity(parts.acquires.len());
    for (asked, verdict) in parts.acquires.iter().zip(&request.acquired) {
        let answer = if reader.absent()? {
            None
        } else {
            Some(read_acquired(&mut reader, asked, epoch, &request.deciding)?)
        };
        acquired.push(verdict.clone().and_then(|()| answer.ok_or_else(full)));
    }
    let body = ExchangeReply {
        released: request.released.clone(),
        settled: request.settled.clone().map(|()| settled),
        observed: request.observed.clone().map(|()| observed),
        renewed: request.renewed.clone().map(|()| Renewed { live }),
        handed_over,
        acquired,
    };
    Ok(Reply { head, body })
}

/// Reads an array of what `one` reads.
pub(crate) fn many<'a, T>(
    reader: &mut Reader<'a>,
    one: impl Fn(&mut Reader<'a>) -> Result<T, StoreError>,
) -> Result<Vec<T>, StoreError> {
    let len = reader.array()?;
    let mut all = Vec::with_capacity(len);
    for _ in 0..len {
        all.push(one(reader)?);
    }
    Ok(all)
}

/// Leases can be given back and renewed where there is no room for new ones.
fn full() -> StoreError {
    StoreError::unavailable(
        Cause::Refused,
        "OOM: the server is full, and takes nothing new; raise maxmemory or free some of it",
    )
}

fn read_acquired(
    reader: &mut Reader<'_>,
    asked: &Asked<'_>,
    epoch: Epoch,
    policy: &Policy,
) -> Result<Acquired, StoreError> {
    match asked {
        Asked::Prefix(request) => {
            let broken = || StoreError::unavailable(Cause::Broken, "an acquire that cannot be read");
            let len = reader.array()?;
            let granted = usize::try_from(reader.number()?).unwrap_or(usize::MAX);
            let first_fence = reader.number()?;
            let others = reader.small()?;
            let (hint, lease_blocked, by) = (reader.some_number()?, reader.flag()?, reader.number()?);
            let denied = hint.map(|hint_ms| denial_of(hint_ms, lease_blocked, by, policy));
            let count = usize::try_from(reader.number()?).unwrap_or(usize::MAX);
            let leases = len.checked_sub(7).and_then(|left| left.checked_sub(count)).ok_or_else(broken)?;
            let mut marks = Vec::with_capacity(count);
            for _ in 0..count {
                marks.push(reader.number()?);
            }
            let mut slots = Vec::with_capacity(leases);
            for _ in 0..leases {
                slots.push(reader.small()?);
            }
            let mut slots = slots.into_iter().zip(first_fence..);
            let grants = request.jobs.iter().take(granted).map(|job| {
                for (mark, rule) in marks.iter_mut().zip(policy.rules()) {
                    let cost = job.costs.of(rule.name());
                    *mark = Some(*mark + cost).filter(|sum| *sum < EXACT).unwrap_or(cost);
                }
                let lease = slots.next().map(|(slot, fence)| Token { epoch, slot, fence });
                Grant { lease, marks: marks.iter().copied().collect() }
            });
            let grants: Vec<Grant> = grants.collect();
            if grants.len() < granted {
                return Err(StoreError::unavailable(Cause::Broken, "more grants than jobs"));
            }
            Ok(Acquired::Prefix(AcquireReply { grants, denied, others }))
        }
        Asked::Scoped(_) => {
            reader.array_of(3)?;
            let mut scoped = ScopedReply::default();
            for _ in 0..reader.array()? {
                let marks = reader.array()?.saturating_sub(3);
                let index = reader.small()? as usize;
                let slot = reader.some_number()?;
                let fence = reader.number()?;
                let lease = match slot {
                    Some(slot) => Some(Token { epoch, slot: small(slot)?, fence }),
                    None => None,
                };
                let mut all = Marks::default();
                for _ in 0..marks {
                    all.push(reader.number()?);
                }
                scoped.grants.push(ScopedGrant { index, grant: Grant { lease, marks: all } });
            }
            for _ in 0..reader.array()? {
                reader.array_of(4)?;
                let index = reader.small()? as usize;
                scoped.denied.push(ScopedDenial { index, denial: denial(reader, policy)? });
            }
            scoped.others = reader.small()?;
            Ok(Acquired::Scoped(scoped))
        }
    }
}

fn denial(reader: &mut Reader<'_>, policy: &Policy) -> Result<Denial, StoreError> {
    Ok(denial_of(reader.number()?, reader.flag()?, reader.number()?, policy))
}

/// A denial, with the number of the rule that denies, from 1.
fn denial_of(hint_ms: u64, lease_blocked: bool, by: u64, policy: &Policy) -> Denial {
    let by = usize::try_from(by).unwrap_or(usize::MAX);
    let rule = by.checked_sub(1).and_then(|at| policy.rules().get(at)).map(|rule| rule.key().clone());
    Denial { hint_ms, lease_blocked, rule }
}
