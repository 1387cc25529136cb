//! The store: each operation is one run of a script.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use redis::Value;
use tidegate_core::{
    AcquireReply, AcquireRequest, Acquired, Answer, Capabilities, Capability, Cause, CircuitMember,
    CircuitPolicy, CircuitReply, CircuitRequest, DriverId, Exchange, ExchangeReply, HandOver, Id, Limit,
    Listener, Member, Name, Observation, Operators, PauseReply, Policy, Release, Renewal, Renewed, Reply,
    Restore, ScopedReply, ScopedRequest, Settled, Settlement, Store, StoreError, Subscription, Token, Wake,
    store::pause_millis, time::Moment,
};

use crate::{
    RedisStore, circuit,
    keys::Keys,
    pack::Reader,
    policy::{Base, Known, MOST_KEPT},
    reply::{self, Said},
    request::{Asked, Parts, Request, What},
    scripts::{Clock, Script, Scripts},
    wake::Handle,
    wire::{Call, Lane},
};

/// A clock for tests.
pub(crate) type TestClock = Arc<dyn Fn() -> Moment + Send + Sync>;

/// What the clones of a store have in common.
pub(crate) struct Shared {
    scripts: &'static Scripts,
    clock: Option<TestClock>,
    pub(crate) policies: Known<Policy>,
    pub(crate) circuits: Known<CircuitPolicy>,
    /// The last numbered requests of each driver, as they were sent: a repeat has to be read as the first answer was.
    sent: Mutex<HashMap<(Id, DriverId), LastSent>>,
}

/// The newest comes first.
type LastSent = [Option<Sent>; 2];

/// A request under a number.
struct Sent {
    number: u64,
    base: Base<Policy>,
    request: Arc<Request>,
}

/// How often a request is checked anew before that is taken for an endless loop.
pub(crate) const MOST_CHECKS: usize = 16;

impl Shared {
    pub(crate) fn new(clock: Option<TestClock>) -> Self {
        let goes_by = if clock.is_some() { Clock::Argument } else { Clock::Server };
        Self {
            scripts: Scripts::by(goes_by),
            clock,
            policies: Known::default(),
            circuits: Known::default(),
            sent: Mutex::default(),
        }
    }

    pub(crate) const fn scripts(&self) -> &'static Scripts {
        self.scripts
    }

    /// What was sent under this number already.
    fn sent(&self, member: &Member, number: Option<u64>) -> Option<(Base<Policy>, Arc<Request>)> {
        let sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let last = sent.get(&(member.id.clone(), member.driver))?;
        let same = last.iter().flatten().find(|sent| Some(sent.number) == number)?;
        Some((same.base.clone(), Arc::clone(&same.request)))
    }

    fn forget_sent(&self, member: &Member, number: Option<u64>) {
        let Some(number) = number else { return };
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = sent.get_mut(&(member.id.clone(), member.driver)) {
            for sent in last {
                sent.take_if(|sent| sent.number == number);
            }
        }
    }

    fn note_sent(&self, member: &Member, number: Option<u64>, base: &Base<Policy>, request: &Arc<Request>) {
        let Some(number) = number else { return };
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        if sent.len() >= MOST_KEPT {
            sent.clear();
        }
        let last = sent.entry((member.id.clone(), member.driver)).or_default();
        if last[0].as_ref().is_some_and(|newest| newest.number != number) {
            last.swap(0, 1);
        }
        last[0] = Some(Sent { number, base: base.clone(), request: Arc::clone(request) });
    }
}

impl RedisStore {
    pub(crate) fn keys(&self, id: &Id) -> Keys {
        Keys::of(&self.parts.prefix, id)
    }

    /// Runs a script; what it answers is bytes.
    pub(crate) async fn run(
        &self,
        script: &Script,
        keys: &[Vec<u8>],
        argument: &[u8],
        lane: Lane,
    ) -> Result<Vec<u8>, StoreError> {
        let mut args = vec![argument.to_vec()];
        if let Some(clock) = &self.shared.clock {
            args.push(clock().micros().to_string().into_bytes());
        }
        let call = Call { script, keys, args: &args, lane };
        match self.parts.wire.run(call).await? {
            Value::BulkString(bytes) => Ok(bytes),
            other => Err(StoreError::unavailable(
                Cause::Broken,
                format!("bytes were to be answered, not {other:?}"),
            )),
        }
    }

    async fn ask(&self, member: &Member, parts: &Parts<'_>) -> Result<Reply<ExchangeReply>, StoreError> {
        let own = self.shared.policies.stored(&member.policy);
        let keys = self.keys(&member.id);
        let mut base = self.shared.policies.base(&member.id, &own);
        let lane = if parts.what == What::Renew { Lane::Renewals } else { Lane::Commands };
        let number = parts.sequence.map(|sequence| sequence.number);
        let of = |base: &Base<Policy>| Request::of(member, &own, base, &keys, parts);
        // The same under the same number is a repeat.
        let again = self.shared.sent(member, number);
        let mut again = again.filter(|(base, request)| of(base).bytes == request.bytes);
        for _ in 0..MOST_CHECKS {
            let request = match again.take() {
                Some((_, request)) => request,
                None => {
                    let request = Arc::new(of(&base));
                    self.shared.note_sent(member, number, &base, &request);
                    request
                }
            };
            let answer = self.run(&self.shared.scripts.exchange, &request.keys, &request.bytes, lane).await?;
            let said = reply::read(&answer).inspect_err(|_| {
                // It was not carried out and never will be: its number may be another's.
                self.shared.forget_sent(member, number);
            })?;
            match said {
                Said::Done(reader) => return reply::exchange(reader, parts, &request),
                Said::Unchecked(pinned) => {
                    base = self.shared.policies.learn(&member.id, &own, pinned)?;
                }
            }
        }
        Err(does_not_stand_still())
    }

    /// Looks at an id where a request is refused, as every store does before it refuses.
    pub(crate) async fn or_look<T, E: Into<StoreError>>(
        &self,
        id: &Id,
        checked: Result<T, E>,
    ) -> Result<T, StoreError> {
        if checked.is_err() {
            self.simple(&self.shared.scripts.snapshot, id, Vec::new(), |_| Ok(())).await?;
        }
        checked.map_err(Into::into)
    }

    /// Runs a script that has an id alone, and reads what it says besides the head.
    pub(crate) async fn simple<T>(
        &self,
        script: &Script,
        id: &Id,
        argument: Vec<u8>,
        body: impl FnOnce(&mut Reader<'_>) -> Result<T, StoreError>,
    ) -> Result<Reply<T>, StoreError> {
        let answer = self.run(script, &[self.keys(id).main()], &argument, Lane::Commands).await?;
        let mut reader = done(&answer)?;
        Ok(Reply { head: reply::head(&mut reader)?, body: body(&mut reader)? })
    }
}

pub(crate) fn does_not_stand_still() -> StoreError {
    StoreError::unavailable(Cause::Broken, "the pinned policy does not stand still")
}

/// Takes a part out of an answer; where it was refused, the whole is.
fn part<T>(
    reply: Reply<ExchangeReply>,
    part: impl FnOnce(ExchangeReply) -> Result<T, StoreError>,
) -> Result<Reply<T>, StoreError> {
    let Reply { head, body } = reply;
    Ok(Reply { head, body: part(body)? })
}

/// What a script says that is not asked about a policy.
pub(crate) fn done(answer: &[u8]) -> Result<Reader<'_>, StoreError> {
    match reply::read(answer)? {
        Said::Done(reader) => Ok(reader),
        Said::Unchecked(_) => other_kind(),
    }
}

fn other_kind<T>() -> Result<T, StoreError> {
    Err(StoreError::unavailable(Cause::Broken, "an answer of another kind"))
}

impl Store for RedisStore {
    fn capabilities(&self) -> Capabilities {
        let all = [
            Capability::Leases,
            Capability::Adaptive,
            Capability::Scoped,
            Capability::Corrections,
            Capability::Circuit,
            Capability::Operators,
            Capability::Epoch,
            Capability::Exchange,
        ];
        let capabilities: Capabilities = all.into_iter().collect();
        if self.parts.wakes.is_some() { capabilities.with(Capability::Wake) } else { capabilities }
    }

    fn acquire<'a>(&'a self, member: &'a Member, request: &'a AcquireRequest) -> Answer<'a, AcquireReply> {
        Box::pin(async move {
            let parts = Parts { acquires: vec![Asked::Prefix(request)], ..Parts::none(What::Part) };
            part(self.ask(member, &parts).await?, |mut body| match body.acquired.pop() {
                Some(Ok(Acquired::Prefix(reply))) => Ok(reply),
                Some(Err(error)) => Err(error),
                _ => other_kind(),
            })
        })
    }

    fn acquire_scoped<'a>(
        &'a self,
        member: &'a Member,
        request: &'a ScopedRequest,
    ) -> Answer<'a, ScopedReply> {
        Box::pin(async move {
            let parts = Parts { acquires: vec![Asked::Scoped(request)], ..Parts::none(What::Part) };
            part(self.ask(member, &parts).await?, |mut body| match body.acquired.pop() {
                Some(Ok(Acquired::Scoped(reply))) => Ok(reply),
                Some(Err(error)) => Err(error),
                _ => other_kind(),
            })
        })
    }

    fn release<'a>(&'a self, member: &'a Member, releases: &'a [Release]) -> Answer<'a, ()> {
        Box::pin(async move {
            let parts = Parts { releases, ..Parts::none(What::Part) };
            part(self.ask(member, &parts).await?, |body| body.released)
        })
    }

    fn renew<'a>(
        &'a self,
        member: &'a Member,
        restore: Option<&'a Restore>,
        renewals: &'a [Renewal],
    ) -> Answer<'a, Renewed> {
        Box::pin(async move {
            let parts = Parts { restore, renewals, ..Parts::none(What::Renew) };
            part(self.ask(member, &parts).await?, |body| body.renewed)
        })
    }

    fn hand_over<'a>(&'a self, member: &'a Member, hand_overs: &'a [HandOver]) -> Answer<'a, Vec<Token>> {
        Box::pin(async move {
            let parts = Parts { hand_overs, ..Parts::none(What::HandOver) };
            part(self.ask(member, &parts).await?, |body| body.handed_over)
        })
    }

    fn settle<'a>(&'a self, member: &'a Member, settlements: &'a [Settlement]) -> Answer<'a, Vec<Settled>> {
        Box::pin(async move {
            let parts = Parts { settlements, ..Parts::none(What::Part) };
            part(self.ask(member, &parts).await?, |body| body.settled)
        })
    }

    fn observe<'a>(&'a self, member: &'a Member, observations: &'a [Observation]) -> Answer<'a, Vec<bool>> {
        Box::pin(async move {
            let parts = Parts { observations, ..Parts::none(What::Part) };
            part(self.ask(member, &parts).await?, |body| body.observed)
        })
    }

    fn exchange<'a>(&'a self, member: &'a Member, exchange: &'a Exchange) -> Answer<'a, ExchangeReply> {
        Box::pin(async move { self.ask(member, &Parts::of(exchange)).await })
    }

    fn circuit<'a>(
        &'a self,
        member: &'a CircuitMember,
        request: &'a CircuitRequest,
    ) -> Answer<'a, CircuitReply> {
        Box::pin(self.ask_circuit(member, request))
    }

    fn pause<'a>(&'a self, id: &'a Id, length: Duration) -> Answer<'a, PauseReply> {
        Box::pin(async move {
            let length_ms = self.or_look(id, pause_millis(length)).await?;
            let script = &self.shared.scripts.pause;
            let argument = length_ms.to_string().into_bytes();
            self.simple(script, id, argument, |reader| {
                Ok(PauseReply { left_ms: reader.number()?, extended: reader.flag()? })
            })
            .await
        })
    }

    fn resume<'a>(&'a self, id: &'a Id) -> Answer<'a, bool> {
        Box::pin(async move {
            self.simple(&self.shared.scripts.resume, id, Vec::new(), |reader| reader.flag()).await
        })
    }

    fn subscribe(&self, id: &Id, driver: DriverId, listener: Arc<dyn Listener>) -> Option<Subscription> {
        let keys = self.keys(id);
        let told = Arc::clone(&listener);
        let hears = move |_: &[u8], payload: &[u8]| tell(&*told, payload);
        let gap = move || listener.wake(Wake::Gap);
        let handle: Handle = self.parts.wakes.as_ref()?.subscribe(
            vec![keys.all(), keys.driver(driver)],
            Arc::new(hears),
            Arc::new(gap),
        );
        Some(Subscription::new(move || drop(handle)))
    }

    fn risks(&self) -> Vec<String> {
        self.parts.wire.risks()
    }

    fn operators(&self) -> Option<&dyn Operators> {
        Some(self)
    }
}

/// Passes on what was pushed; what cannot be read is a reason to look.
fn tell(listener: &dyn Listener, payload: &[u8]) {
    match read_push(payload) {
        Some((wake, times)) => (0..times).for_each(|_| listener.wake(wake.clone())),
        None => listener.wake(Wake::Gap),
    }
}

/// The most room that is told of at once, each slot by itself.
const MOST_ROOM: u32 = 100_000;

fn read_push(payload: &[u8]) -> Option<(Wake, u32)> {
    let mut words = std::str::from_utf8(payload).ok()?.split(' ');
    let wake = match words.next()? {
        "room" => {
            let times: u32 = words.next()?.parse().ok()?;
            let class = match words.next()? {
                "" => None,
                class => Some(Name::new("class", class).ok()?),
            };
            return Some((Wake::Room { class }, times.min(MOST_ROOM)));
        }
        "paused" => Wake::Paused { left_ms: words.next()?.parse().ok()? },
        "resumed" => Wake::Resumed,
        "limit" => Wake::Limit(Limit {
            value: words.next()?.parse().ok()?,
            moved_at: Moment::from_micros(words.next()?.parse().ok()?),
        }),
        "policy" => Wake::Policy { revision: words.next()?.parse().ok()? },
        "circuit" => Wake::Circuit(circuit::read_news(words)?),
        _ => return None,
    };
    Some((wake, 1))
}
