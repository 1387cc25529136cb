//! What happened, judged by what is certain.
//!
//! Each process knows when it sent a request and when the answer was there; the store decided in between. So every lease
//! has two spans:
//!
//! - it is *certainly held* from the answer to its grant until the moment when its release is sent, its local deadline
//!   (counted from when the last request that renewed it was sent), or the store's word that it is gone;
//! - it is *possibly held* from the request for it until the store has its release, or until one TTL after the last answer
//!   that kept it.
//!
//! A dead process sends no release, so what it held is certainly held until the deadline: a slot that is given to another
//! before that comes back too early. What a checker finds by what is certain is a fault of what it watches, never of the
//! watching; what it finds by what is only possible would not be.
//!
//! # What is judged
//!
//! | violation | what was promised |
//! |---|---|
//! | [`Overfull`](Violation::Overfull) | no grant while as many are held as the limit says (`AS-4`) |
//! | [`SlotTwice`](Violation::SlotTwice) | a slot is given anew only after a release, or the deadline (`ST-9`, `AS-6`) |
//! | [`FenceBack`](Violation::FenceBack) | fences grow (`ST-9`) |
//! | [`GrantedTwice`](Violation::GrantedTwice) | a token names one grant, and one job has it (`ST-9`) |
//! | [`LiveTooLong`](Violation::LiveTooLong) | nobody takes a lease for live past its deadline (`AS-6`) |
//! | [`RefusedWithRoom`](Violation::RefusedWithRoom) | nobody waits in vain while there is room (`AS-12`, `AS-6`) |
//! | [`TooMuch`](Violation::TooMuch) | a rule admits no more than it says in any span (`RU-5`) |
//!
//! # What is allowed
//!
//! A store that loses its state (a flush, a fail-over that lost the last writes) cannot keep all of that; `ST-18` says how
//! far it may fall short. [`Check::lost_state`] allows exactly that: until the deadlines of the leases that lived
//! before, as many above the limit as these were; and one more burst or window of each rule.

mod holding;
mod rates;
mod read;
mod refusals;
mod tally;

use std::{fmt, time::Duration};

pub use self::rates::Rate;
use crate::clock::micros;
pub use crate::record::Lease;

/// A lease, as the process that held it saw it. Moments are in microseconds of one clock.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Held {
    /// By which worker.
    pub worker: u32,
    /// Its token.
    pub lease: Lease,
    /// When it was asked for.
    pub asked: u64,
    /// When the answer was there.
    pub granted: u64,
    /// Its local deadline: certainly not later than the store's own.
    pub deadline: u64,
    /// The last answer that kept it, or the moment when one was given up: the store ends it at most one TTL later.
    pub kept: u64,
    /// When its release was sent.
    pub releasing: Option<u64>,
    /// When the store was known to have its release.
    pub freed: Option<u64>,
    /// When the store said that it is gone.
    pub gone: Option<u64>,
    /// The limit in force at the grant, where it is known.
    pub limit: Option<u32>,
    /// Whether the process had granted it by itself: it counts, and it is no fault that it is there.
    pub handed_over: bool,
}

impl Held {
    /// Until when it is certainly held.
    pub fn certainly_until(&self) -> u64 {
        [self.releasing, self.gone].into_iter().flatten().fold(self.deadline, u64::min)
    }

    /// Until when it is possibly held, where a lease lives for `ttl` and a request may be under way for `lag`.
    fn possibly_until(&self, ttl: u64, lag: u64) -> u64 {
        let over = self.kept.saturating_add(ttl).saturating_add(lag);
        [self.freed, self.gone].into_iter().flatten().fold(over, u64::min)
    }
}

/// A job that was granted, as the task saw it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Use {
    /// In which worker.
    pub worker: u32,
    /// Its number there.
    pub job: u64,
    /// Its lease.
    pub lease: Lease,
    /// When it had it.
    pub granted: u64,
    /// When it was last seen to be live; 0 where it never was.
    pub live: u64,
}

/// A job that got nothing because all slots were taken, by the store's word.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// In which worker.
    pub worker: u32,
    /// Its number there.
    pub job: u64,
    /// When it asked.
    pub called: u64,
    /// When it was refused.
    pub refused: u64,
    /// Whether it was one try, without waiting.
    pub single: bool,
}

/// What may be held though no one has seen it: of a request that got no answer, of a worker that died.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unseen {
    /// From when on.
    pub from: u64,
    /// When it was given up: it ends at most one TTL later.
    pub until: u64,
    /// How many.
    pub leases: u32,
}

/// A job that a rule admitted.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Admission {
    /// The key of the rule, and the identity behind a slash where it has a scope.
    pub rule: String,
    /// When it was asked for.
    pub asked: u64,
    /// When the answer was there.
    pub granted: u64,
    /// What it spent.
    pub cost: u64,
}

/// What was given back to a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Credit {
    /// As of an admission.
    pub rule: String,
    /// When it was sent.
    pub sent: u64,
    /// When the answer was there; the last moment there is, where none ever was.
    pub answered: u64,
    /// How much.
    pub amount: u64,
}

/// All that happened to one id.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct History {
    /// The leases.
    pub held: Vec<Held>,
    /// The jobs that had them.
    pub uses: Vec<Use>,
    /// The jobs that got none.
    pub refusals: Vec<Refusal>,
    /// What nobody saw.
    pub unseen: Vec<Unseen>,
    /// What rules admitted.
    pub admissions: Vec<Admission>,
    /// What was given back to them.
    pub credits: Vec<Credit>,
}

/// How many leases may be held at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Bound {
    /// As many, always.
    Fixed(u32),
    /// As many as the limit in force at each grant says, and this many at least.
    Adaptive {
        /// The floor of the limit.
        min: u32,
    },
    /// Any number: nothing is judged but slots and fences.
    None,
}

/// A span of time in which more is allowed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Allowance {
    from: u64,
    until: u64,
    extra: u32,
}

/// What a history is held against.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate_fleet::history::{Bound, Check, History};
///
/// let check = Check::new(Bound::Fixed(4), Duration::from_secs(2)).patience(Duration::from_millis(700));
/// check.run(&History::default()).expect_none();
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Check {
    bound: Bound,
    ttl: u64,
    lag: u64,
    patience: u64,
    judges_single_tries: bool,
    allowances: Vec<Allowance>,
    losses: Vec<(u64, u64)>,
    outages: Vec<(u64, u64)>,
    rates: Vec<(String, Rate)>,
}

/// A request that was given up may be under way for so long, unless told.
const LAG: Duration = Duration::from_secs(1);

/// Room is found by a waiting job within this time, unless told: the longest wait of the safety net, and a round trip.
const PATIENCE: Duration = Duration::from_secs(1);

impl Check {
    /// Leases that live for `ttl`, of which no more than `bound` are held at once.
    pub fn new(bound: Bound, ttl: Duration) -> Self {
        Self {
            bound,
            ttl: micros(ttl),
            lag: micros(LAG),
            patience: micros(PATIENCE),
            judges_single_tries: false,
            allowances: Vec::new(),
            losses: Vec::new(),
            outages: Vec::new(),
            rates: Vec::new(),
        }
    }

    /// For how long a request may be under way after it was given up: 1 s unless told. More where a line delays more.
    pub fn lag(mut self, lag: Duration) -> Self {
        self.lag = micros(lag);
        self
    }

    /// How long there must have been room, without a break, before a waiting job that got none counts: 1 s unless told.
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = micros(patience);
        self
    }

    /// Judges jobs that try once too: where nobody waits, one that finds no room while there was some all along is a
    /// fault. Where others wait it need not be one, since it may not overtake them.
    pub fn single_tries(mut self) -> Self {
        self.judges_single_tries = true;
        self
    }

    /// Holds a rule's admissions against what it says. `rule` is its key, with a slash and the identity behind it where it
    /// has a scope.
    pub fn rate(mut self, rule: impl Into<String>, rate: Rate) -> Self {
        self.rates.push((rule.into(), rate));
        self
    }

    /// From `from` to `until` the store was away: nobody is expected to find room then.
    pub fn outage(mut self, from: u64, until: u64) -> Self {
        self.outages.push((from, until));
        self
    }

    /// Allows `extra` leases above the bound, and slots that are given anew, from `from` to `until`.
    pub fn allow(mut self, from: u64, until: u64, extra: u32) -> Self {
        self.allowances.push(Allowance { from, until, extra });
        self
    }

    /// As [`lost_state`](Self::lost_state), where no more than `most` leases lived at that moment: for a loss of which only a
    /// long span is known, in which many more came and went.
    pub fn lost_at_most(self, history: &History, from: u64, until: u64, most: u32) -> Self {
        let mut check = self.lost_state(history, from, until);
        if let Some(last) = check.allowances.last_mut() {
            last.extra = last.extra.min(most);
        }
        check
    }

    /// At some moment from `from` to `until` the store lost its state: allows what `ST-18` allows.
    pub fn lost_state(mut self, history: &History, from: u64, until: u64) -> Self {
        let end = |held: &Held| held.possibly_until(self.ttl, self.lag);
        let lived = history.held.iter().filter(|held| held.asked <= until && end(held) >= from);
        let (mut extra, mut over) = (0_u32, until);
        for held in lived {
            extra = extra.saturating_add(1);
            over = over.max(held.certainly_until());
        }
        self.losses.push((from, until));
        self.allow(from, over, extra)
    }

    /// The most leases that were certainly held at once in a moment for which more than the bound was allowed, and in one
    /// for which it was not.
    pub fn peaks(&self, history: &History) -> Peaks {
        let spans = history.held.iter().map(|held| (held.granted, held.certainly_until()));
        let spans = spans.filter(|(from, until)| from < until);
        // Where one ends as another begins, the end comes first.
        let mut steps: Vec<(u64, i64)> = spans.flat_map(|(from, until)| [(from, 1), (until, -1)]).collect();
        steps.sort_unstable();
        let (mut held, mut peaks) = (0_i64, Peaks::default());
        for (at, step) in steps {
            held += step;
            let count = u32::try_from(held).unwrap_or(0);
            let peak = if self.extra(at, at).is_some() { &mut peaks.allowed } else { &mut peaks.strict };
            *peak = count.max(*peak);
        }
        peaks
    }

    /// Judges.
    pub fn run(&self, history: &History) -> Findings {
        let mut findings = Findings::default();
        holding::check(self, history, &mut findings);
        refusals::check(self, history, &mut findings);
        for (rule, rate) in &self.rates {
            rates::check(rule, *rate, &self.losses, history, &mut findings);
        }
        findings
    }

    /// How much more than the bound is allowed at some moment from `from` to `until`; none where no allowance is.
    fn extra(&self, from: u64, until: u64) -> Option<u32> {
        let there =
            self.allowances.iter().filter(|allowance| allowance.from <= until && from <= allowance.until);
        there.map(|allowance| allowance.extra).max()
    }
}

/// The most leases that were certainly held at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Peaks {
    /// While the bound held as it stands.
    pub strict: u32,
    /// While more than the bound was allowed.
    pub allowed: u32,
}

/// What was promised and not kept. Moments are in microseconds of the records' clock.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Violation {
    /// More leases were certainly held at once than the bound allows.
    Overfull {
        /// When.
        at: u64,
        /// How many.
        held: u32,
        /// How many might be.
        bound: u32,
        /// The grant that was too much.
        lease: Lease,
    },
    /// A slot was given to another while it was certainly held.
    SlotTwice {
        /// The one that held it.
        first: Lease,
        /// Until when.
        until: u64,
        /// The one that got it.
        second: Lease,
        /// When.
        at: u64,
    },
    /// A grant has a fence that is no higher than that of one which was there before it was asked for.
    FenceBack {
        /// The one that was there before.
        before: Lease,
        /// The later one.
        after: Lease,
    },
    /// One token for two grants, or for two jobs.
    GrantedTwice {
        /// The token.
        lease: Lease,
    },
    /// A job took its lease for live when its deadline had passed.
    LiveTooLong {
        /// In which worker.
        worker: u32,
        /// Which job.
        job: u64,
        /// Its lease.
        lease: Lease,
        /// When it was over.
        deadline: u64,
        /// When it was seen to be live all the same.
        live: u64,
    },
    /// A job was refused for want of a slot, and there was one.
    RefusedWithRoom {
        /// In which worker.
        worker: u32,
        /// Which job.
        job: u64,
        /// From when on there was room.
        from: u64,
        /// Until when.
        until: u64,
    },
    /// A rule admitted more in a span than it may.
    TooMuch {
        /// Which.
        rule: String,
        /// The span.
        from: u64,
        /// Its end.
        until: u64,
        /// What was spent in it.
        spent: u64,
        /// What may be.
        most: u64,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overfull { at, held, bound, lease } => {
                write!(f, "{held} leases held at {at} where {bound} may be: {lease} was too much")
            }
            Self::SlotTwice { first, until, second, at } => {
                write!(
                    f,
                    "slot {} was held by {first} until {until}, and {second} had it at {at}",
                    first.slot
                )
            }
            Self::FenceBack { before, after } => {
                write!(f, "{after} was asked for when {before} was there, and has no higher fence")
            }
            Self::GrantedTwice { lease } => write!(f, "{lease} was granted twice"),
            Self::LiveTooLong { worker, job, lease, deadline, live } => write!(
                f,
                "worker {worker} took {lease} of job {job} for live at {live}: it was over at {deadline}"
            ),
            Self::RefusedWithRoom { worker, job, from, until } => write!(
                f,
                "job {job} of worker {worker} was refused for want of a slot: there was one from {from} to {until}"
            ),
            Self::TooMuch { rule, from, until, spent, most } => write!(
                f,
                "rule {rule} admitted {spent} from {from} to {until}, in {} us: {most} at most",
                until.saturating_sub(*from)
            ),
        }
    }
}

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[must_use = "what was found is to be looked at"]
pub struct Findings(pub Vec<Violation>);

/// How many violations are shown.
const SHOWN: usize = 20;

impl Findings {
    /// Whether all was kept.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// For tests that expect that all was kept.
    ///
    /// # Panics
    /// Where it was not, with what was found.
    #[track_caller]
    pub fn expect_none(&self) {
        assert!(self.is_empty(), "{self}");
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{} violations", self.0.len())?;
        for violation in self.0.iter().take(SHOWN) {
            writeln!(f, "  {violation}")?;
        }
        if self.0.len() > SHOWN {
            writeln!(f, "  and {} more", self.0.len() - SHOWN)?;
        }
        Ok(())
    }
}
