//! A memory store that writes down what it decides, and what must hold of that in the end.

// Each test file uses a part of this.
#![allow(dead_code)]

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use tidegate::{
    Capabilities, Id, MemoryStore, Operators, Store, Token,
    contract::{
        Acquire, AcquireReply, AcquireRequest, Acquired, Answer, DriverId, Epoch, Exchange, ExchangeReply,
        HandOver, Listener, Member, Observation, PauseReply, Release, Renewal, Renewed, Reply, Restore,
        ScopedReply, ScopedRequest, Settled, Settlement, Subscription, rule::RuleKey, time::Moment,
    },
};

/// What the store did, and when on its clock.
#[derive(Clone, Debug)]
pub(crate) enum What {
    /// A job got a permit, under this limit.
    Granted { token: Option<Token>, cost: u64, limit: Option<u32> },
    /// So much of a grant's cost was given back in a rule; all of it, where nobody took the grant.
    GivenBack { rule: RuleKey, units: u64, all: bool },
    /// Jobs of a process were denied, and told to come again at that moment.
    Denied { process: usize, slots: bool, until: Moment },
    /// The id was paused until then.
    Paused(Moment),
    /// All was lost.
    Wiped,
}

#[derive(Default)]
struct Log {
    events: Vec<(Moment, What)>,
    /// Exchanges that were carried out: a repeat is answered, and does nothing.
    done: HashSet<(Option<Epoch>, DriverId, u64)>,
}

/// What all processes of a fleet write into. A cheap clone of one thing.
#[derive(Clone, Default)]
pub(crate) struct Book(Arc<Mutex<Log>>);

impl Book {
    pub(crate) fn note(&self, at: Moment, what: What) {
        self.open().events.push((at, what));
    }

    pub(crate) fn events(&self) -> Vec<(Moment, What)> {
        self.open().events.clone()
    }

    fn open(&self) -> MutexGuard<'_, Log> {
        self.0.lock().expect("no panic")
    }

    fn note_exchange(&self, process: usize, member: &Member, asked: &Exchange, reply: &Reply<ExchangeReply>) {
        let Some(now) = reply.head.now else { return };
        let mut log = self.open();
        if let Some(sequence) = asked.sequence
            && !log.done.insert((reply.head.epoch, member.driver, sequence.number))
        {
            return;
        }
        if reply.body.settled.is_ok() {
            for settlement in asked.settlements.iter().filter(|it| it.actual < it.cost) {
                let units = settlement.cost - settlement.actual;
                let (rule, all) = (settlement.rule.clone(), settlement.actual == 0);
                log.events.push((now, What::GivenBack { rule, units, all }));
            }
        }
        let limit = reply.head.limit.map(|limit| limit.value);
        for (acquire, acquired) in asked.acquires.iter().zip(&reply.body.acquired) {
            let (Acquire::Prefix(request), Ok(acquired)) = (acquire, acquired) else { continue };
            for (index, grant) in acquired.grants() {
                let cost = request.jobs[index].costs.each;
                log.events.push((now, What::Granted { token: grant.lease, cost, limit }));
            }
            if let Acquired::Prefix(AcquireReply { denied: Some(denied), .. }) = acquired {
                let until = now.plus(Duration::from_millis(denied.hint_ms));
                log.events.push((now, What::Denied { process, slots: denied.lease_blocked, until }));
            }
        }
    }
}

/// The memory store as one process has it, with all that it decides written down.
pub(crate) struct Recorded {
    pub(crate) inner: MemoryStore,
    pub(crate) book: Book,
    pub(crate) process: usize,
}

impl Store for Recorded {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn acquire<'a>(&'a self, member: &'a Member, request: &'a AcquireRequest) -> Answer<'a, AcquireReply> {
        self.inner.acquire(member, request)
    }

    fn acquire_scoped<'a>(
        &'a self,
        member: &'a Member,
        request: &'a ScopedRequest,
    ) -> Answer<'a, ScopedReply> {
        self.inner.acquire_scoped(member, request)
    }

    fn release<'a>(&'a self, member: &'a Member, releases: &'a [Release]) -> Answer<'a, ()> {
        self.inner.release(member, releases)
    }

    fn renew<'a>(
        &'a self,
        member: &'a Member,
        restore: Option<&'a Restore>,
        renewals: &'a [Renewal],
    ) -> Answer<'a, Renewed> {
        self.inner.renew(member, restore, renewals)
    }

    fn hand_over<'a>(&'a self, member: &'a Member, hand_overs: &'a [HandOver]) -> Answer<'a, Vec<Token>> {
        self.inner.hand_over(member, hand_overs)
    }

    fn settle<'a>(&'a self, member: &'a Member, settlements: &'a [Settlement]) -> Answer<'a, Vec<Settled>> {
        self.inner.settle(member, settlements)
    }

    fn observe<'a>(&'a self, member: &'a Member, observations: &'a [Observation]) -> Answer<'a, Vec<bool>> {
        self.inner.observe(member, observations)
    }

    fn exchange<'a>(&'a self, member: &'a Member, exchange: &'a Exchange) -> Answer<'a, ExchangeReply> {
        let answer = self.inner.exchange(member, exchange);
        Box::pin(async move {
            let reply = answer.await?;
            self.book.note_exchange(self.process, member, exchange, &reply);
            Ok(reply)
        })
    }

    fn pause<'a>(&'a self, id: &'a Id, length: Duration) -> Answer<'a, PauseReply> {
        let answer = self.inner.pause(id, length);
        Box::pin(async move {
            let reply = answer.await?;
            if let Some(now) = reply.head.now {
                self.book.note(now, What::Paused(now.plus(Duration::from_millis(reply.body.left_ms))));
            }
            Ok(reply)
        })
    }

    fn resume<'a>(&'a self, id: &'a Id) -> Answer<'a, bool> {
        self.inner.resume(id)
    }

    fn subscribe(&self, id: &Id, driver: DriverId, listener: Arc<dyn Listener>) -> Option<Subscription> {
        self.inner.subscribe(id, driver, listener)
    }

    fn operators(&self) -> Option<&dyn Operators> {
        self.inner.operators()
    }
}

/// A lease that was certainly someone's own from its grant until at least then.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold {
    pub(crate) slot: u32,
    pub(crate) fence: u64,
    pub(crate) until: Moment,
}

/// Checks that those who held a lease for certain were never more than the limit that the last of them was granted
/// under. After a loss, those from before it may come on top until their deadlines, unless the start is safe.
/// Says how near it came, in parts per hundred.
pub(crate) fn check_holds(
    events: &[(Moment, What)],
    holds: &[Hold],
    ttl: Duration,
    safe: bool,
) -> Result<u64, String> {
    let mut until = HashMap::new();
    for hold in holds {
        if until.insert((hold.slot, hold.fence), hold.until).is_some() {
            return Err(format!("slot {} with fence {} was held twice", hold.slot, hold.fence));
        }
    }
    let mut most = 0;
    let mut held: Vec<(Moment, Token, Moment)> = Vec::new();
    let mut wiped_at: Option<Moment> = None;
    for (at, what) in events {
        match what {
            What::Wiped => wiped_at = Some(*at),
            What::Granted { token: Some(token), limit: Some(limit), .. } => {
                held.retain(|(_, _, until)| until > at);
                // One that nobody took is held by nobody for certain.
                let Some(until) = until.get(&(token.slot, token.fence)) else { continue };
                held.push((*at, *token, *until));
                let excused = wiped_at.filter(|wiped| !safe && *at < wiped.plus(ttl));
                let counts = |granted: Moment| excused.is_none_or(|wiped| granted >= wiped);
                let now = held.iter().filter(|(granted, ..)| counts(*granted)).count();
                most = most.max(u64::try_from(now).unwrap() * 100 / u64::from(*limit));
                if now > *limit as usize {
                    return Err(format!("{now} held under a limit of {limit} at {at:?}: {held:?}"));
                }
            }
            _ => {}
        }
    }
    Ok(most)
}

/// How much a rule lets through.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bound {
    /// A bucket of that capacity, and so much per interval.
    Bucket { burst: u64, limit: u64, interval: Duration },
    /// So much in every span of that length.
    Window { limit: u64, interval: Duration },
}

/// Checks that what was admitted under a rule, less what was given back, never was more than the rule allows over any
/// span of time; and one burst or window more for each loss in it, unless the start is safe. Says how near it came, in
/// parts per hundred.
pub(crate) fn check_rule(
    events: &[(Moment, What)],
    key: &str,
    bound: Bound,
    safe: bool,
) -> Result<u64, String> {
    let spent = |what: &What| match what {
        What::Granted { cost, .. } => Some(i128::from(*cost)),
        What::GivenBack { rule, units, .. } if rule.as_str() == key => Some(-i128::from(*units)),
        What::Wiped if !safe => Some(-i128::from(bound.most())),
        _ => None,
    };
    let all: Vec<(u64, i128)> =
        events.iter().filter_map(|(at, what)| Some((at.millis(), spent(what)?))).collect();
    let most = match bound {
        Bound::Bucket { burst, limit, interval } => {
            // The worst span that ends here, counted in parts of one unit.
            let parts = i128::try_from(interval.as_millis()).unwrap();
            let (mut used, mut last) = (0, 0);
            let mut most = 0;
            for (at, units) in &all {
                used = (used - i128::from(at - last) * i128::from(limit)).max(0);
                used = (used + units * parts).max(0);
                last = *at;
                most = most.max(used);
                if used > i128::from(burst) * parts {
                    return Err(format!("{} over a burst of {burst} at {at} ms", used / parts));
                }
            }
            most / parts
        }
        Bound::Window { limit, interval } => {
            let interval = u64::try_from(interval.as_millis()).unwrap();
            let mut most = 0;
            for (last, (at, _)) in all.iter().enumerate() {
                let span = all[..=last].iter().rev().take_while(|(earlier, _)| earlier + interval > *at);
                let used = span.map(|(_, units)| units).sum::<i128>();
                most = most.max(used);
                if used > i128::from(limit) {
                    return Err(format!("{used} in a window of {limit} at {at} ms"));
                }
            }
            most
        }
    };
    Ok(u64::try_from(most * 100 / i128::from(bound.most())).unwrap())
}

impl Bound {
    fn most(self) -> u64 {
        match self {
            Self::Bucket { burst, .. } => burst,
            Self::Window { limit, .. } => limit,
        }
    }
}
