//! Rate rules: how much may start per unit of time.
//!
//! A [`Rule`] is what a person writes. Checked, it is a [`CheckedRule`], and a [`RuleState`] is what a store keeps for
//! it. Every decision is integer arithmetic in whole milliseconds, and every number on the way stays below 2^53, so
//! that Lua and SQL come to the same answer.
//!
//! The three algorithms count one thing, what is *used* of the most that a rule can hold: what a bucket lacks, what a
//! window has admitted. This module decides by that number; the algorithms say how it grows and shrinks.

mod fixed_window;
mod sliding_window;
mod token_bucket;

use std::{fmt, sync::Arc, time::Duration};

use self::{fixed_window::FixedWindow, sliding_window::SlidingWindow, token_bucket::TokenBucket};
use crate::{
    Invalid, Name,
    time::{EXACT, LONGEST},
};

/// The most rules that one policy can have. Spec: RU-4.
pub const MOST_RULES: usize = 16;

/// The largest limit, burst or settled cost. Spec: RU-3, ST-12.
pub const MOST_UNITS: u64 = 1_000_000_000_000;

/// Debt is cut at this many bursts (or limits of a window). Spec: ST-12.
const DEBT: u64 = 10;

/// How a rule counts. Spec: RU-5.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Algorithm {
    /// Fills at limit per interval, holds at most the burst; a job takes its cost out.
    TokenBucket,
    /// At most the limit in each window; a window starts with the first job and lasts one interval.
    FixedWindow,
    /// At most the limit in every span of one interval.
    SlidingWindow,
}

impl Algorithm {
    /// The name of it in keys and snapshots: `token_bucket`, `fixed_window` or `sliding_window`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::TokenBucket => "token_bucket",
            Self::FixedWindow => "fixed_window",
            Self::SlidingWindow => "sliding_window",
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One rate bound, as a person writes it. Nothing is refused before [`check`](Self::check).
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate_core::rule::Rule;
///
/// # fn main() -> Result<(), tidegate_core::Invalid> {
/// let minute = Duration::from_secs(60);
/// let requests = Rule::sliding_window(500, minute).check()?;
/// let tokens = Rule::token_bucket(30_000, minute).burst(5_000).named("tokens").scoped("tenant").check()?;
///
/// assert_eq!(requests.key(), "sliding_window:60000");
/// assert_eq!(tokens.key(), "named:tokens");
/// assert_eq!(tokens.most(), 5_000);
/// # Ok(())
/// # }
/// ```
#[must_use]
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Rule {
    algorithm: Algorithm,
    limit: u64,
    interval: Duration,
    burst: Option<u64>,
    name: Option<String>,
    scope: Option<String>,
}

impl Rule {
    /// A bucket that fills at `limit` per `interval` and holds [`burst`](Self::burst), by default `limit`.
    ///
    /// The limit is 1 to 10^12, the interval 1 ms to 366 days in whole milliseconds. Spec: RU-3, RU-5.
    pub const fn token_bucket(limit: u64, interval: Duration) -> Self {
        Self::new(Algorithm::TokenBucket, limit, interval)
    }

    /// At most `limit` in each window of `interval`, which starts with the first job of any cost.
    ///
    /// The limit is 1 to 10^12, the interval 1 ms to 366 days in whole milliseconds. Spec: RU-3, RU-5.
    pub const fn fixed_window(limit: u64, interval: Duration) -> Self {
        Self::new(Algorithm::FixedWindow, limit, interval)
    }

    /// At most `limit` in every span of `interval`.
    ///
    /// The limit is 1 to 10^12, the interval 1 ms to 366 days in whole milliseconds. Spec: RU-3, RU-5.
    pub const fn sliding_window(limit: u64, interval: Duration) -> Self {
        Self::new(Algorithm::SlidingWindow, limit, interval)
    }

    const fn new(algorithm: Algorithm, limit: u64, interval: Duration) -> Self {
        Self { algorithm, limit, interval, burst: None, name: None, scope: None }
    }

    /// The most that a token bucket holds: 1 to 10^12, by default its limit. A window takes none.
    pub const fn burst(mut self, burst: u64) -> Self {
        self.burst = Some(burst);
        self
    }

    /// Names the rule, so that a job can give it a cost of its own: 1 to 64 of `A-Z a-z 0-9 _ . -`. Spec: RU-1, RU-2.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.name = Some(name.into());
        self
    }

    /// Splits the rule by a dimension, with a state for each identity: 1 to 64 of `A-Z a-z 0-9 _ . -`. Spec: ST-10.
    pub fn scoped(mut self, scope: impl Into<String>) -> Self {
        self.scope = Some(scope.into());
        self
    }

    /// Checks the rule.
    ///
    /// # Errors
    /// [`Invalid`] for a limit, interval, burst, name or scope out of its bounds, for a burst on a window (Spec: RU-1),
    /// and for a bucket that could not stay exact below 2^53 (Spec: RU-3).
    pub fn check(&self) -> Result<CheckedRule, Invalid> {
        let name = self.name.as_ref().map(|name| Name::new("rule.name", name)).transpose()?;
        let scope = self.scope.as_ref().map(|scope| Name::new("rule.scope", scope)).transpose()?;
        let limit = units("rule.limit", self.limit)?;
        let interval_ms = whole_millis(self.interval)?;
        let burst = match (self.burst, self.algorithm) {
            (None, _) => limit,
            (Some(burst), Algorithm::TokenBucket) => units("rule.burst", burst)?,
            (Some(burst), window) => {
                return Err(Invalid::new(
                    "rule.burst",
                    burst,
                    format!("none on a {window}, which holds its limit"),
                ));
            }
        };
        let key = match &name {
            Some(name) => format!("named:{name}"),
            None => format!("{}:{interval_ms}", self.algorithm),
        };
        let shared = common_divisor(limit, interval_ms);
        let (n, d) = (limit / shared, interval_ms / shared);
        let rule = CheckedRule {
            key: RuleKey(key.into()),
            algorithm: self.algorithm,
            limit,
            interval_ms,
            burst,
            n,
            d,
            name,
            scope,
        };
        if rule.algorithm == Algorithm::TokenBucket { rule.exact() } else { Ok(rule) }
    }
}

fn units(option: &str, given: u64) -> Result<u64, Invalid> {
    if (1..=MOST_UNITS).contains(&given) { Ok(given) } else { Err(Invalid::new(option, given, "1 to 10^12")) }
}

fn whole_millis(interval: Duration) -> Result<u64, Invalid> {
    let whole = interval.subsec_nanos().is_multiple_of(1_000_000);
    u64::try_from(interval.as_millis())
        .ok()
        .filter(|_| whole && !interval.is_zero() && interval <= LONGEST)
        .ok_or_else(|| Invalid::new("rule.interval", interval, "1 ms to 366 days, in whole milliseconds"))
}

/// The greatest common divisor of two numbers that are not both 0.
const fn common_divisor(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// The key of a rule: `named:{name}`, or `{algorithm}:{interval_ms}` for one without a name. A cheap clone.
///
/// Spec: RU-1.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleKey(Arc<str>);

impl RuleKey {
    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<&str> for RuleKey {
    fn from(key: &str) -> Self {
        Self(key.into())
    }
}

impl PartialEq<str> for RuleKey {
    fn eq(&self, other: &str) -> bool {
        &*self.0 == other
    }
}

impl fmt::Display for RuleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for RuleKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&*self.0, f)
    }
}

/// A rule that has been checked. A cheap clone; ordered by its key.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CheckedRule {
    // First, so that rules are ordered by it.
    key: RuleKey,
    algorithm: Algorithm,
    limit: u64,
    interval_ms: u64,
    burst: u64,
    n: u64,
    d: u64,
    name: Option<Name>,
    scope: Option<Name>,
}

impl CheckedRule {
    /// How it counts.
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// How much per interval: 1 to 10^12.
    pub const fn limit(&self) -> u64 {
        self.limit
    }

    /// The interval in milliseconds: 1 to 31,622,400,000 (366 days).
    pub const fn interval_ms(&self) -> u64 {
        self.interval_ms
    }

    /// What a bucket holds, and for a window its limit: 1 to 10^12.
    pub const fn burst(&self) -> u64 {
        self.burst
    }

    /// `limit / interval` in lowest terms: `(n, d)`, n units every d milliseconds. Spec: RU-3.
    pub const fn rate(&self) -> (u64, u64) {
        (self.n, self.d)
    }

    /// Its name, if it has one.
    pub const fn name(&self) -> Option<&Name> {
        self.name.as_ref()
    }

    /// The dimension that splits it, if one does.
    pub const fn scope(&self) -> Option<&Name> {
        self.scope.as_ref()
    }

    /// What tells it from the other rules of a policy: `named:{name}`, or `{algorithm}:{interval_ms}`. Spec: RU-1.
    pub const fn key(&self) -> &RuleKey {
        &self.key
    }

    /// The largest cost that it can ever hold; a job of a larger one is refused at once. Spec: RU-2.
    pub const fn most(&self) -> u64 {
        self.burst
    }

    /// Whether a level of this rule is carried over to `newer`: where algorithm and interval are the same. Spec: ST-5.
    pub fn carries_over_to(&self, newer: &Self) -> bool {
        self.algorithm == newer.algorithm && self.interval_ms == newer.interval_ms
    }

    /// The most that can be used of it, debt included: below 2^44.
    const fn most_used(&self) -> u64 {
        self.burst.saturating_mul(1 + DEBT)
    }

    /// Refuses a bucket whose arithmetic could pass 2^53. Spec: RU-3.
    ///
    /// The two largest numbers in it are `(n + 1) × d`, the parts that come within one `d`, and the time in which the
    /// burst and the deepest debt come back.
    fn exact(self) -> Result<Self, Invalid> {
        let (n, d, exact) = (u128::from(self.n), u128::from(self.d), u128::from(EXACT));
        if (n + 1) * d >= exact {
            let given = format_args!("{} per {} ms", self.limit, self.interval_ms);
            let allowed = format!(
                "a limit and an interval with a larger common divisor: \
                 in lowest terms it is {n} per {d} ms, and ({n} + 1) × {d} is not below 2^53"
            );
            return Err(Invalid::new("rule.limit", given, allowed));
        }
        let most = (exact - 1) * n / (d * u128::from(1 + DEBT));
        if u128::from(self.burst) > most {
            let allowed = format!("1 to {most} at this rate: eleven bursts have to come back within 2^53 ms");
            return Err(Invalid::new("rule.burst", self.burst, allowed));
        }
        Ok(self)
    }
}

/// Checks all rules of a policy; the result is in the order of their keys, whatever order they came in.
///
/// # Errors
/// [`Invalid`] for more than 16 rules (Spec: RU-4), for one that does not pass [`Rule::check`], and for two of the same
/// key (Spec: RU-1; a scope is no part of it).
pub fn check_all(rules: &[Rule]) -> Result<Vec<CheckedRule>, Invalid> {
    if rules.len() > MOST_RULES {
        return Err(Invalid::new("rules", rules.len(), "at most 16 rules"));
    }
    let mut checked = rules.iter().map(Rule::check).collect::<Result<Vec<_>, _>>()?;
    checked.sort_unstable();
    match checked.iter().zip(checked.iter().skip(1)).find(|(one, next)| one.key == next.key) {
        Some((twin, _)) => {
            let allowed =
                "rules of different keys: name one of the two (a name is used once, whatever the scope)";
            Err(Invalid::new("rules", &twin.key, allowed))
        }
        None => Ok(checked),
    }
}

/// What a server said of its own quota, in its answer to a permit's call. Spec: VA-9.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Observed {
    /// What it has left, in the units of the rule.
    pub remaining: u64,
    /// The moment when its quota starts anew, in ms of the store's clock.
    pub reset_ms: u64,
    /// The moment when the permit was granted, in ms of the store's clock.
    pub granted_ms: u64,
    /// [`RuleState::mark`] right after that grant.
    pub mark: u64,
}

/// What a store keeps of one rule, or of one identity of a scoped rule.
///
/// Moments are whole milliseconds of the store's clock, which never runs back (ST-2); one that does is taken as
/// standing still. A state must be given the rule that it was made for, or another that it was
/// [carried](Self::carry) to.
///
/// A state at rest is no different from none at all, so it can be forgotten at any time from
/// [`rests_at`](Self::rests_at) on. Spec: ST-11, ST-17.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleState {
    usage: Usage,
    /// All cost that was admitted since `rested_ms`.
    spent: u64,
    /// The last moment when the state was seen at rest. Its past before that may have been forgotten, so it must not
    /// count where it has not been.
    rested_ms: u64,
    /// The permit of the newest observation: when it was granted, and its mark.
    newest: Option<(u64, u64)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Usage {
    TokenBucket(TokenBucket),
    FixedWindow(FixedWindow),
    SlidingWindow(SlidingWindow),
}

/// What the algorithms have in common. Moments given to one of them never run back.
trait Counts {
    /// Lets time pass until `now_ms`. Every other call is made with the same moment after this.
    fn advance(&mut self, rule: &CheckedRule, now_ms: u64);

    /// How much is used. A job is denied where its cost would bring this above the most that the rule can hold.
    fn used(&self) -> u64;

    /// Whether it is as if nothing had ever happened.
    fn rests(&self) -> bool;

    /// The time in ms until at least `amount` less is used: exact to the millisecond, where so much is used at all.
    fn frees_in(&self, rule: &CheckedRule, now_ms: u64, amount: u64) -> u64;

    /// Uses `amount` more, above 0.
    fn add(&mut self, rule: &CheckedRule, now_ms: u64, amount: u64);

    /// Brings what is left down by `amount`, above 0, to a whole number.
    fn lower(&mut self, rule: &CheckedRule, now_ms: u64, amount: u64) {
        self.add(rule, now_ms, amount);
    }

    /// Gives back `amount` of what was used at `granted_ms`, as far as it still counts.
    fn give_back(&mut self, granted_ms: u64, amount: u64);

    /// The moment from which it rests if nothing else happens.
    fn rests_at(&self, rule: &CheckedRule) -> u64;

    /// Moves every stored moment back.
    fn shift_back(&mut self, ms: u64);

    /// Goes on under another rule of the same algorithm and interval.
    fn carry(&mut self, _from: &CheckedRule, _to: &CheckedRule) {}
}

/// Calls the same of whichever algorithm it is.
macro_rules! each {
    ($usage:expr, $counts:ident => $call:expr) => {
        match $usage {
            Usage::TokenBucket($counts) => $call,
            Usage::FixedWindow($counts) => $call,
            Usage::SlidingWindow($counts) => $call,
        }
    };
}

impl RuleState {
    /// The state of a rule that nothing has happened to: a full bucket, an empty window.
    pub fn resting(rule: &CheckedRule, now_ms: u64) -> Self {
        let usage = match rule.algorithm {
            Algorithm::TokenBucket => Usage::TokenBucket(TokenBucket::full(now_ms)),
            Algorithm::FixedWindow => Usage::FixedWindow(FixedWindow::default()),
            Algorithm::SlidingWindow => Usage::SlidingWindow(SlidingWindow::default()),
        };
        Self { usage, spent: 0, rested_ms: now_ms, newest: None }
    }

    /// The state that a lost one must be taken for where nothing may be admitted twice: an empty bucket, a full
    /// window, as of `born_ms`. Spec: ST-18 (`safe_start`).
    pub fn spent_out(rule: &CheckedRule, born_ms: u64) -> Self {
        let mut state = Self::resting(rule, born_ms);
        each!(&mut state.usage, it => it.add(rule, born_ms, rule.most()));
        state
    }

    /// Whether a job of this cost fits now. Spends nothing; a cost of 0 always fits.
    ///
    /// The cost must be at most [`CheckedRule::most`]: more never fits, whatever the hint says.
    ///
    /// # Errors
    /// The hint: after how many milliseconds it would fit if nothing else happened, 1 to 2^53 − 1, exactly. Spec: ST-6.
    pub fn room(&mut self, rule: &CheckedRule, now_ms: u64, cost: u64) -> Result<(), u64> {
        self.advance(rule, now_ms);
        let too_much = self.used().saturating_add(cost).saturating_sub(rule.most());
        if cost == 0 || too_much == 0 {
            return Ok(());
        }
        Err(each!(&self.usage, it => it.frees_in(rule, now_ms, too_much)).clamp(1, EXACT - 1))
    }

    /// Spends the cost of a job, after [`room`](Self::room) has said at the same moment that it fits. A cost of 0
    /// changes nothing. Spec: RU-2.
    pub fn spend(&mut self, rule: &CheckedRule, now_ms: u64, cost: u64) {
        self.advance(rule, now_ms);
        if cost == 0 {
            return;
        }
        each!(&mut self.usage, it => it.add(rule, now_ms, cost));
        // Begins again before it could lose a unit. A mark above it is then taken like one of a forgotten state.
        self.spent = Some(self.spent.saturating_add(cost)).filter(|&sum| sum < EXACT).unwrap_or(cost);
    }

    /// Corrects the cost of a job that was granted at `granted_ms` to what it really was, and says how much of it was
    /// cut, because the debt would be above ten bursts. Spec: ST-12.
    ///
    /// More is debited at once. Less is credited to where it was spent, as far as that still counts.
    pub fn settle(
        &mut self,
        rule: &CheckedRule,
        now_ms: u64,
        granted_ms: u64,
        cost: u64,
        actual: u64,
    ) -> u64 {
        self.advance(rule, now_ms);
        let (more, less) = (actual.saturating_sub(cost), cost.saturating_sub(actual));
        let debited = more.min(rule.most_used().saturating_sub(self.used()));
        if debited > 0 {
            each!(&mut self.usage, it => it.add(rule, now_ms, debited));
        }
        if less > 0 {
            each!(&mut self.usage, it => it.give_back(granted_ms, less));
        }
        more - debited
    }

    /// Lowers what is left to what the server says, less what was admitted since the permit's grant, and says whether
    /// that lowered it. Never raises it; ignored once the reset has passed, or where the observation of a newer permit
    /// is there. Spec: VA-9.
    pub fn observe(&mut self, rule: &CheckedRule, now_ms: u64, seen: &Observed) -> bool {
        self.advance(rule, now_ms);
        // A grant of before the clock was set back can seem to come; it must not outrank all that follow.
        let permit = (seen.granted_ms.min(now_ms), seen.mark);
        if now_ms >= seen.reset_ms || self.newest > Some(permit) {
            return false;
        }
        self.newest = Some(permit);
        let forgotten = seen.granted_ms < self.rested_ms || seen.mark > self.spent;
        let since = if forgotten { self.spent } else { self.spent - seen.mark };
        let used = rule.most().saturating_sub(seen.remaining.saturating_sub(since));
        let lowered = used.saturating_sub(self.used());
        if lowered > 0 {
            each!(&mut self.usage, it => it.lower(rule, now_ms, lowered));
        }
        lowered > 0
    }

    /// What is left: the whole part of a bucket's level, the limit of a window less what it has used. Debt is below 0.
    pub fn level(&mut self, rule: &CheckedRule, now_ms: u64) -> i64 {
        self.advance(rule, now_ms);
        let signed = |units: u64| i64::try_from(units).unwrap_or(i64::MAX);
        signed(rule.most()) - signed(self.used())
    }

    /// The running total of what was admitted, by which an observation tells what came after its permit. Below 2^53;
    /// begins again when the state has come to rest. Spec: VA-9.
    pub const fn mark(&self) -> u64 {
        self.spent
    }

    /// The moment in ms from which the state is at rest if nothing else happens; one that is not after now means that
    /// it is, and can be forgotten. Spec: ST-11.
    pub fn rests_at(&self, rule: &CheckedRule) -> u64 {
        each!(&self.usage, it => it.rests_at(rule))
    }

    /// Moves all stored moments back, when the store's clock was set back; none goes below 0. Spec: ST-2.
    pub fn shift_back(&mut self, ms: u64) {
        each!(&mut self.usage, it => it.shift_back(ms));
        self.rested_ms = self.rested_ms.saturating_sub(ms);
        self.newest = self.newest.map(|(granted_ms, mark)| (granted_ms.saturating_sub(ms), mark));
    }

    /// The state under the rule of a newer revision: carried over where algorithm and interval are the same, else at
    /// rest. Spec: ST-5.
    ///
    /// A bucket keeps its level, within the new burst, but a full one stays full: it may have been forgotten as well. A
    /// window keeps what was admitted, however much less the new limit is.
    #[must_use]
    pub fn carry(mut self, from: &CheckedRule, to: &CheckedRule, now_ms: u64) -> Self {
        self.advance(from, now_ms);
        if !from.carries_over_to(to) || each!(&self.usage, it => it.rests()) {
            return Self::resting(to, now_ms);
        }
        each!(&mut self.usage, it => it.carry(from, to));
        self
    }

    fn advance(&mut self, rule: &CheckedRule, now_ms: u64) {
        each!(&mut self.usage, it => it.advance(rule, now_ms));
        // What was forgotten here and what was only at rest must give the same answers from now on.
        if each!(&self.usage, it => it.rests()) {
            self.spent = 0;
            self.rested_ms = self.rested_ms.max(now_ms);
            self.newest = None;
        }
    }

    fn used(&self) -> u64 {
        each!(&self.usage, it => it.used())
    }
}
