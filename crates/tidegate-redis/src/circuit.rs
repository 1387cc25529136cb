//! The circuit of an id: one run of a script for all that a process has to say about it.
//!
//! Spec: section 4.

use std::time::Duration;

use tidegate_core::{
    Cause, CircuitMember, CircuitPolicy, CircuitReply, CircuitRequest, DriverId, Head, Id, Reply, StoreError,
    circuit::{
        Backoff, Change, CheckKind, CheckedBackoff, CheckedRecovery, CheckedStrategy, Election, Judged,
        Leader, Position, Recovery, Reported, Run, Strategy, Trial, TrialPermit, Verdict, Why,
    },
    store::{CircuitAct, CircuitDid, CircuitNews, CircuitSnapshot, CircuitView},
    time::Moment,
};

use crate::{
    RedisStore,
    pack::{Packer, Reader},
    policy::{Base, Storable, Stored, corrupt, fraction},
    reply::{self, Said, many},
    request::write_offer,
    scripts::Script,
    store::{MOST_CHECKS, does_not_stand_still, done},
    wire::Lane,
};

type Read<T> = Result<T, StoreError>;

impl RedisStore {
    pub(crate) async fn ask_circuit(
        &self,
        member: &CircuitMember,
        request: &CircuitRequest,
    ) -> Read<Reply<CircuitReply>> {
        if let Err(refused) = request.check() {
            // It is looked at before anything is refused, as in every store.
            self.circuit_snapshot(&member.id).await?;
            return Err(refused);
        }
        let known = &self.shared.circuits;
        let own = known.stored(&member.policy);
        let mut base = known.base(&member.id, &own);
        let keys = [self.keys(&member.id).circuit()];
        let renews =
            |act: &CircuitAct| matches!(act, CircuitAct::Renew { .. } | CircuitAct::RenewTrial { .. });
        let only_renews = !request.acts.is_empty() && request.acts.iter().all(renews);
        let lane = if only_renews { Lane::Renewals } else { Lane::Commands };
        for _ in 0..MOST_CHECKS {
            let refused = match &base {
                Base::Own | Base::Unpinned => None,
                Base::Pinned(pinned) => member.deciding(Some(&pinned.policy)).err(),
            };
            let bytes = write(member.driver, request, &own, &base, refused.is_some());
            let script = &self.shared.scripts().circuit;
            let answer = self.run(script, &keys, &bytes, lane).await?;
            match reply::read(&answer)? {
                Said::Unchecked(pinned) => base = known.learn(&member.id, &own, pinned)?,
                Said::Done(_) if let Some(refused) = refused => return Err(refused),
                Said::Done(mut reader) => {
                    let head = read_head(&mut reader)?;
                    let view = read_view(&mut reader)?;
                    reader.array_of(request.acts.len())?;
                    let did = request.acts.iter().map(|act| read_did(&mut reader, act, member.driver));
                    let body = CircuitReply { did: did.collect::<Read<_>>()?, view };
                    return Ok(Reply { head, body });
                }
            }
        }
        Err(does_not_stand_still())
    }

    pub(crate) async fn circuit_snapshot(&self, id: &Id) -> Read<Option<CircuitSnapshot>> {
        let read = |reader: &mut Reader<'_>| {
            if reader.absent()? {
                return Ok(None);
            }
            reader.array_of(5)?;
            Ok(Some(CircuitSnapshot {
                policy: Stored::read(reader.bytes()?)?.policy,
                view: read_view(reader)?,
                heard: reader.small()?,
                failing: reader.small()?,
                trials: reader.small()?,
            }))
        };
        let script = &self.shared.scripts().circuit_snapshot;
        Ok(self.of_circuit(script, id, &[], read).await?.body)
    }

    pub(crate) async fn move_circuit(&self, id: &Id, position: Position) -> Read<Reply<bool>> {
        let open: &[u8] = if position == Position::Open { b"1" } else { b"0" };
        self.of_circuit(&self.shared.scripts().set_circuit, id, open, |reader| reader.flag()).await
    }

    /// Runs a script that has a circuit alone, and reads what it says besides the head.
    async fn of_circuit<T>(
        &self,
        script: &Script,
        id: &Id,
        argument: &[u8],
        body: impl FnOnce(&mut Reader<'_>) -> Read<T>,
    ) -> Read<Reply<T>> {
        let answer = self.run(script, &[self.keys(id).circuit()], argument, Lane::Commands).await?;
        let mut reader = done(&answer)?;
        Ok(Reply { head: read_head(&mut reader)?, body: body(&mut reader)? })
    }
}

// ---- requests --------------------------------------------------------------------------------------------------------

fn write(
    driver: DriverId,
    request: &CircuitRequest,
    own: &Stored<CircuitPolicy>,
    base: &Base<CircuitPolicy>,
    is_refused: bool,
) -> Vec<u8> {
    let mut packer = Packer::with_capacity(128 + own.bytes.len());
    packer.array(5).text(base.digest(own));
    if base.takes(own) {
        write_offer(&mut packer, own)
    } else {
        packer.absent()
    };
    packer.truth(is_refused).bytes(&driver.0.to_be_bytes()).array(request.acts.len());
    for act in &request.acts {
        write_act(&mut packer, act);
    }
    packer.done()
}

/// The numbers are those of `lua/circuit_request.lua`.
fn write_act(packer: &mut Packer, act: &CircuitAct) {
    let failed = |verdict: Verdict| verdict == Verdict::Failure;
    match act {
        CircuitAct::Report { number, generation, batch } => {
            packer.array(4).number(0).number(*number).number(*generation).array(batch.runs().len());
            for run in batch.runs() {
                let times = i64::from(run.times);
                packer.signed(if failed(run.verdict) { -times } else { times });
            }
            packer
        }
        CircuitAct::Open { generation } => packer.array(2).number(1).number(*generation),
        CircuitAct::Recent => packer.array(1).number(2),
        CircuitAct::Elect => packer.array(1).number(3),
        CircuitAct::Renew { fence } => packer.array(2).number(4).number(*fence),
        CircuitAct::Resign { fence } => packer.array(2).number(5).number(*fence),
        CircuitAct::Verdict { fence, generation, kind, verdict } => {
            let (is_idle, which) = match kind {
                CheckKind::Recovery { attempt } => (false, *attempt),
                CheckKind::Idle { at_ms } => (true, *at_ms),
            };
            packer.array(6).number(6).number(*fence).number(*generation).truth(is_idle).number(which);
            packer.truth(failed(*verdict))
        }
        CircuitAct::Schedule { generation, attempt, wait_ms } => {
            packer.array(4).number(7).number(*generation).number(*attempt).number(*wait_ms)
        }
        CircuitAct::Trial { ask } => packer.array(2).number(8).number(*ask),
        CircuitAct::RenewTrial { fence } => packer.array(2).number(9).number(*fence),
        CircuitAct::GiveBack { fence } => packer.array(2).number(10).number(*fence),
        CircuitAct::TrialResult { fence, verdict } => {
            packer.array(3).number(11).number(*fence).truth(failed(*verdict))
        }
    };
}

// ---- answers ---------------------------------------------------------------------------------------------------------

fn unreadable<T>() -> Read<T> {
    Err(StoreError::unavailable(Cause::Broken, "an answer about a circuit that cannot be read"))
}

fn read_head(reader: &mut Reader<'_>) -> Read<Head> {
    reader.array_of(3)?;
    let now = Some(Moment::from_micros(reader.number()?));
    let revision = reader.some_number()?;
    let stepped_back_ms = reader.number()?;
    let revision = match revision.map(u32::try_from).transpose() {
        Ok(revision) => revision,
        Err(_) => return unreadable(),
    };
    Ok(Head { now, revision, stepped_back_ms, ..Head::default() })
}

fn read_view(reader: &mut Reader<'_>) -> Read<CircuitView> {
    reader.array_of(8)?;
    let (generation, why, since_ms) = (reader.number()?, reader.number()?, reader.number()?);
    let (attempt, next_ms) = (reader.number()?, reader.some_number()?);
    let driver = if reader.absent()? { None } else { Some(read_driver(reader)?) };
    let (fence, until_ms) = (reader.number()?, reader.number()?);
    let leader = driver.map(|driver| Leader { driver, fence, until_ms });
    view(generation, why, since_ms, attempt, next_ms, leader).map_or_else(unreadable, Ok)
}

fn read_driver(reader: &mut Reader<'_>) -> Read<DriverId> {
    match reader.bytes()?.try_into() {
        Ok(bytes) => Ok(DriverId(u128::from_be_bytes(bytes))),
        Err(_) => unreadable(),
    }
}

fn view(
    generation: u64,
    why: u64,
    since_ms: u64,
    attempt: u64,
    next_ms: Option<u64>,
    leader: Option<Leader>,
) -> Option<CircuitView> {
    let why = if why == 0 { None } else { Some(why_of(why)?) };
    let attempt = Some(attempt).filter(|attempt| *attempt > 0);
    let position = if attempt.is_some() { Position::Open } else { Position::Closed };
    Some(CircuitView { generation, position, why, since_ms, attempt, next_ms, leader })
}

const fn why_of(number: u64) -> Option<Why> {
    Some(match number {
        1 => Why::Results,
        2 => Why::Check,
        3 => Why::Trials,
        4 => Why::Operator,
        _ => return None,
    })
}

/// A change, or the number that stands in its place.
fn read_change(reader: &mut Reader<'_>) -> Read<Result<Change, u64>> {
    if reader.is_number() {
        return Ok(Err(reader.number()?));
    }
    reader.array_of(3)?;
    let to = if reader.flag()? { Position::Open } else { Position::Closed };
    match why_of(reader.number()?) {
        Some(why) => Ok(Ok(Change { to, why, generation: reader.number()? })),
        None => unreadable(),
    }
}

fn read_judged(reader: &mut Reader<'_>) -> Read<Judged> {
    Ok(match read_change(reader)? {
        Ok(change) => Judged::Changed(change),
        Err(0) => Judged::Stale,
        Err(_) => Judged::Counted,
    })
}

fn read_did(reader: &mut Reader<'_>, act: &CircuitAct, driver: DriverId) -> Read<CircuitDid> {
    Ok(match act {
        CircuitAct::Report { .. } => CircuitDid::Reported(match read_change(reader)? {
            Ok(change) => Reported::Opened(change),
            Err(0) => Reported::Dropped,
            Err(_) => Reported::Counted,
        }),
        CircuitAct::Open { .. } => {
            CircuitDid::Opened(if reader.absent()? { None } else { read_change(reader)?.ok() })
        }
        CircuitAct::Recent => {
            reader.array_of(2)?;
            CircuitDid::Recent { generation: reader.number()?, runs: read_runs(reader.bytes()?) }
        }
        CircuitAct::Elect => CircuitDid::Elected(if reader.is_number() {
            Election::Follows { retry_ms: reader.number()? }
        } else {
            reader.array_of(2)?;
            Election::Leads(Leader { driver, fence: reader.number()?, until_ms: reader.number()? })
        }),
        CircuitAct::Renew { .. } => CircuitDid::Renewed(reader.some_number()?),
        CircuitAct::Resign { .. } => CircuitDid::Resigned(reader.flag()?),
        CircuitAct::Verdict { .. } | CircuitAct::TrialResult { .. } => {
            CircuitDid::Judged(read_judged(reader)?)
        }
        CircuitAct::Schedule { .. } => CircuitDid::Scheduled(reader.some_number()?),
        CircuitAct::Trial { ask } => CircuitDid::Trial(read_trial(reader, driver, *ask)?),
        CircuitAct::RenewTrial { .. } => CircuitDid::RenewedTrial(reader.some_number()?),
        CircuitAct::GiveBack { .. } => CircuitDid::GaveBack(reader.flag()?),
    })
}

fn read_trial(reader: &mut Reader<'_>, driver: DriverId, ask: u64) -> Read<Trial> {
    let numbers = many(reader, Reader::number)?;
    Ok(match numbers[..] {
        [0, fence, generation, until_ms] => {
            Trial::Granted(TrialPermit { driver, ask, fence, generation, until_ms })
        }
        [1, retry_ms] => Trial::TooEarly { retry_ms },
        [2, attempt] => Trial::Unscheduled { attempt },
        [3, retry_ms] => Trial::Full { retry_ms },
        [4] => Trial::NotOffered,
        _ => return unreadable(),
    })
}

/// Each run in two bytes: how often, twice, and one for failures.
fn read_runs(bytes: &[u8]) -> Vec<Run> {
    let run = |pair: &[u8; 2]| {
        let run = u16::from_le_bytes(*pair);
        let verdict = if run % 2 == 1 { Verdict::Failure } else { Verdict::Success };
        Run { verdict, times: (run / 2).into() }
    };
    bytes.as_chunks().0.iter().map(run).collect()
}

/// What is pushed of a circuit, as `tell` of `lua/circuit.lua` writes it.
pub(crate) fn read_news<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<CircuitNews> {
    let mut next = || words.next();
    let number = |word: Option<&str>| -> Option<u64> { word?.parse().ok() };
    let now = Moment::from_micros(number(next())?);
    let (generation, why, since_ms, attempt) =
        (number(next())?, number(next())?, number(next())?, number(next())?);
    let next_ms = match next()? {
        "-1" => None,
        moment => Some(moment.parse().ok()?),
    };
    let driver = match next()? {
        "-" => None,
        driver => Some(DriverId(u128::from_str_radix(driver, 16).ok()?)),
    };
    let (fence, until_ms) = (number(next())?, number(next())?);
    let leader = driver.map(|driver| Leader { driver, fence, until_ms });
    Some(CircuitNews { view: view(generation, why, since_ms, attempt, next_ms, leader)?, now })
}

// ---- the policy ------------------------------------------------------------------------------------------------------

impl Storable for CircuitPolicy {
    fn revision(&self) -> u32 {
        self.revision()
    }

    fn encode(&self) -> Vec<u8> {
        let mut packer = Packer::with_capacity(64);
        packer.array(6).number(self.revision().into()).number(self.leader_ttl_ms());
        // A kind that is not known here is written as nothing, which no script takes.
        packer.number(self.min_reporters().into());
        match *self.strategy() {
            CheckedStrategy::Consecutive { threshold } => packer.array(2).number(0).number(threshold.into()),
            CheckedStrategy::Count { threshold, size, minimum_calls } => {
                packer.array(4).number(1).number(threshold.ppm().into());
                packer.number(size.into()).number(minimum_calls.into())
            }
            CheckedStrategy::Sampling { threshold, duration_ms, minimum_calls } => {
                packer.array(4).number(2).number(threshold.ppm().into());
                packer.number(duration_ms).number(minimum_calls.into())
            }
            CheckedStrategy::Custom { keep } => packer.array(2).number(3).number(keep.into()),
            _ => packer.array(0),
        };
        match *self.recovery() {
            CheckedRecovery::HealthCheck { check_timeout_ms, idle_interval_ms } => {
                packer.array(3).number(0).number(check_timeout_ms).some_number(idle_interval_ms)
            }
            CheckedRecovery::HalfOpen { permits, permit_ttl_ms } => {
                packer.array(3).number(1).number(permits.into()).number(permit_ttl_ms)
            }
            _ => packer.array(0),
        };
        match *self.backoff() {
            CheckedBackoff::Constant(wait_ms) => packer.array(2).number(0).number(wait_ms),
            CheckedBackoff::Exponential { initial_ms, multiplier_ppm, max_ms } => {
                packer.array(4).number(1).number(initial_ms).number(multiplier_ppm.into()).number(max_ms)
            }
            CheckedBackoff::Custom => packer.array(1).number(2),
            _ => packer.array(0),
        };
        packer.done()
    }

    fn decode(bytes: &[u8]) -> Read<Self> {
        let mut reader = Reader::of(bytes);
        reader.array_of(6)?;
        let (revision, leader_ttl, min_reporters) = (reader.small()?, reader.number()?, reader.small()?);
        let strategy = read_strategy(&mut reader)?;
        let recovery = read_recovery(&mut reader)?;
        let backoff = read_backoff(&mut reader)?;
        let draft = Self::draft(strategy, recovery, backoff).revision(revision).min_reporters(min_reporters);
        draft.leader_ttl(millis(leader_ttl)).check().map_err(|invalid| corrupt(&invalid.to_string()))
    }
}

const fn millis(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

fn read_strategy(reader: &mut Reader<'_>) -> Read<Strategy> {
    let parts = many(reader, Reader::number)?;
    let small = |part: u64| u32::try_from(part).map_err(|_| corrupt("a number of a strategy"));
    Ok(match parts[..] {
        [0, threshold] => Strategy::Consecutive { threshold: small(threshold)? },
        [1, ppm, size, minimum_calls] => Strategy::Count {
            threshold: fraction(small(ppm)?),
            size: small(size)?,
            minimum_calls: small(minimum_calls)?,
        },
        [2, ppm, duration, minimum_calls] => Strategy::Sampling {
            threshold: fraction(small(ppm)?),
            duration: millis(duration),
            minimum_calls: small(minimum_calls)?,
        },
        [3, keep] => Strategy::Custom { keep: small(keep)? },
        _ => return Err(corrupt("an unknown strategy")),
    })
}

fn read_recovery(reader: &mut Reader<'_>) -> Read<Recovery> {
    reader.array_of(3)?;
    Ok(match reader.number()? {
        0 => Recovery::HealthCheck {
            check_timeout: millis(reader.number()?),
            idle_interval: reader.some_number()?.map(millis),
        },
        1 => Recovery::HalfOpen { permits: reader.small()?, permit_ttl: millis(reader.number()?) },
        _ => return Err(corrupt("an unknown recovery")),
    })
}

fn read_backoff(reader: &mut Reader<'_>) -> Read<Backoff> {
    let parts = many(reader, Reader::number)?;
    Ok(match parts[..] {
        [0, wait] => Backoff::Constant(millis(wait)),
        [1, initial, ppm, max] => Backoff::Exponential {
            initial: millis(initial),
            multiplier: fraction(u32::try_from(ppm).map_err(|_| corrupt("a multiplier"))?),
            max: Some(millis(max)),
        },
        [2] => Backoff::Custom,
        _ => return Err(corrupt("an unknown backoff")),
    })
}
