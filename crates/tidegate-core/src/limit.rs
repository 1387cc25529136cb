//! A limit of concurrency that moves: up while there is demand and no complaint, down when the remote pushes back.
//!
//! Nobody knows the real ceiling of a dependency, and it moves. So the limit is steered by what callers report on
//! release, fleet-wide: [`LimitState`] gathers the evidence (demand, throttles, how long the limit has stood) and says
//! *when* it may move; a growth says *how far*. Each growth is one pure update in a file of its own, and knows nothing
//! of clocks, windows or cooldowns. Who may hold a lease under the limit is decided elsewhere (`share`).
//!
//! Every number here stays below 2^53, so that the same arithmetic can be done in Lua.

mod aimd;
mod probe;
mod slow_start;

use std::time::Duration;

use crate::{
    Fraction, Invalid,
    time::{LONGEST, ceil_millis},
};

/// The highest limit of concurrency, and the largest step towards it.
const MOST: u32 = 1_000_000;

/// The longest that the slot of a throttled release may rest.
const LONGEST_REST: Duration = Duration::from_secs(24 * 60 * 60);

/// How a limit rises.
///
/// Spec: AS-13.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[non_exhaustive]
pub enum Growth {
    /// One step per clean window: the sawtooth of AIMD.
    #[default]
    Additive,
    /// Doubles per clean window until the first throttle, then one step.
    SlowStart,
    /// Starts as `SlowStart`; after a decrease it returns quickly to just under what last worked, rests, and searches on.
    Probe,
}

impl Growth {
    /// The name by which it is stored and shown.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Additive => "additive",
            Self::SlowStart => "slow_start",
            Self::Probe => "probe",
        }
    }
}

/// The constants of additive increase and multiplicative decrease, as a person sets them.
///
/// Nothing is checked until [`LimitPolicy::check`].
///
/// Spec: AS-16.
#[must_use]
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Aimd {
    decrease_factor: f64,
    increase_step: u32,
    window: Duration,
    cooldown: Duration,
    tolerance: f64,
}

impl Aimd {
    /// The defaults.
    pub const fn new() -> Self {
        Self {
            decrease_factor: 0.5,
            increase_step: 1,
            window: Duration::from_secs(5),
            cooldown: Duration::from_secs(10),
            tolerance: 0.0,
        }
    }

    /// What the limit is multiplied by on a throttle: above 0 and below 1, 0.5 unless told.
    pub const fn decrease_factor(mut self, factor: f64) -> Self {
        self.decrease_factor = factor;
        self
    }

    /// What the limit grows by in a clean window: 1 to 1,000,000, 1 unless told.
    pub const fn increase_step(mut self, step: u32) -> Self {
        self.increase_step = step;
        self
    }

    /// At most one increase in this time: above 0, to 366 days, 5 s unless told.
    pub const fn window(mut self, window: Duration) -> Self {
        self.window = window;
        self
    }

    /// At most one decrease in this time: above 0, to 366 days, 10 s unless told.
    pub const fn cooldown(mut self, cooldown: Duration) -> Self {
        self.cooldown = cooldown;
        self
    }

    /// The share of a window's releases that may be throttled and change nothing: from 0 and below 1, 0 unless told.
    pub const fn tolerance(mut self, share: f64) -> Self {
        self.tolerance = share;
        self
    }
}

impl Default for Aimd {
    fn default() -> Self {
        Self::new()
    }
}

/// Between which bounds a limit moves, and how: checked, and part of the pinned policy.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LimitPolicy {
    /// The limit never falls below this; 1 to 1,000,000.
    pub min: u32,
    /// The limit never rises above this; `min` to 1,000,000.
    pub max: u32,
    /// What the limit is multiplied by on a throttle.
    pub decrease_factor: Fraction,
    /// What the limit grows by in a clean window.
    pub increase_step: u32,
    /// At most one increase in this many milliseconds.
    pub window_ms: u64,
    /// At most one decrease in this many milliseconds.
    pub cooldown_ms: u64,
    /// The share of a window's releases that may be throttled and change nothing.
    pub tolerance: Fraction,
    /// How many milliseconds the slot of a throttled release rests.
    pub throttle_rest_ms: u64,
    /// How the limit rises.
    pub growth: Growth,
}

impl LimitPolicy {
    /// Checks the options; parts of a millisecond count as a whole one.
    ///
    /// # Errors
    /// [`Invalid`] that names the first option out of its bounds.
    pub fn check(
        min: u32,
        max: u32,
        aimd: &Aimd,
        throttle_rest: Duration,
        growth: Growth,
    ) -> Result<Self, Invalid> {
        let max = count("max_limit", max, MOST, "1 to 1000000")?;
        let min = count("min_limit", min, max, "1 to max_limit")?;
        if throttle_rest > LONGEST_REST {
            return Err(Invalid::new("throttle_rest", throttle_rest, "0 to 24 hours"));
        }
        Ok(Self {
            min,
            max,
            decrease_factor: fraction("aimd.decrease_factor", aimd.decrease_factor, Fraction::from_ppm(1))?,
            increase_step: count("aimd.increase_step", aimd.increase_step, MOST, "1 to 1000000")?,
            window_ms: span("aimd.window", aimd.window)?,
            cooldown_ms: span("aimd.cooldown", aimd.cooldown)?,
            tolerance: fraction("aimd.tolerance", aimd.tolerance, Fraction::ZERO)?,
            throttle_rest_ms: ceil_millis(throttle_rest),
            growth,
        })
    }

    fn clamp(&self, value: u32) -> u32 {
        value.min(self.max).max(self.min)
    }
}

fn count(option: &str, value: u32, most: u32, allowed: &str) -> Result<u32, Invalid> {
    if (1..=most).contains(&value) { Ok(value) } else { Err(Invalid::new(option, value, allowed)) }
}

fn span(option: &str, value: Duration) -> Result<u64, Invalid> {
    if value.is_zero() || value > LONGEST {
        return Err(Invalid::new(option, value, "above 0, to 366 days"));
    }
    Ok(ceil_millis(value))
}

/// A fraction from `least` to just below the whole, also after it is rounded.
fn fraction(option: &str, value: f64, least: Fraction) -> Result<Fraction, Invalid> {
    Fraction::new(option, value).ok().filter(|f| (least..Fraction::ONE).contains(f)).ok_or_else(|| {
        let from = if least == Fraction::ZERO { "from 0" } else { "from 0.000001" };
        Invalid::new(option, value, format!("a number {from} to 0.999999"))
    })
}

/// Which way a limit moved; [`LimitState::value`] says where to.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Change {
    /// It rose.
    Increase,
    /// It fell.
    Decrease,
}

/// What a throttled release did.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Throttle {
    /// It lowered the limit.
    Decreased,
    /// It moved nothing, since a cooldown runs or the limit is at its minimum. The window has seen a throttle.
    Suppressed,
    /// It moved nothing, and the window has not seen a throttle: it lies within the tolerance.
    Tolerated,
}

/// A limit that moves, with the evidence for its next move.
///
/// Time is an argument, in milliseconds of the store's clock, which never runs back.
///
/// # The window
/// A release with success at `t` finds a *clean window* when the limit has stood for at least one `window`, and in
/// `(t − window, t]` there was demand and no throttle. Then the growth says how far the limit rises, and the next
/// window starts, also where it stays where it is: at its maximum, or in a rest of [`Growth::Probe`]. A window starts
/// as well at the seed, at every decrease, and whenever the limit or its growth is changed from outside. So a limit
/// rises at most once per window, and never while traffic is quiet.
///
/// # The tolerance
/// Releases, and the throttled ones among them, are counted in two buckets of one `window` each, the running one and
/// the one before it. A throttle is tolerated while, itself included, `throttled × 10^6 ≤ tolerance × releases` over
/// both buckets, with the tolerance in parts per million. So the share is that of the last one to two windows. A
/// decrease forgets the throttled ones, since it has answered them. Without a tolerance nothing is counted.
///
/// # Example: a provider that pushes back
/// ```
/// # use std::time::Duration;
/// # use tidegate_core::limit::{Aimd, Change, Growth, LimitPolicy, LimitState, Throttle};
/// let policy = LimitPolicy::check(1, 1_000, &Aimd::new(), Duration::ZERO, Growth::Additive)?;
/// let mut limit = LimitState::seed(&policy, 20, 0);
///
/// limit.demand(4_000);
/// assert_eq!(limit.success(&policy, 4_999), None);
/// assert_eq!(limit.success(&policy, 5_000), Some(Change::Increase));
/// assert_eq!(limit.value(), 21);
///
/// assert_eq!(limit.throttled(&policy, 6_000), Throttle::Decreased);
/// assert_eq!(limit.throttled(&policy, 6_001), Throttle::Suppressed);
/// assert_eq!(limit.value(), 10);
/// # Ok::<(), tidegate_core::Invalid>(())
/// ```
///
/// Spec: AS-1, AS-2, AS-3, AS-13.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LimitState {
    value: u32,
    /// When the running window started.
    since: u64,
    demand: Option<u64>,
    throttle: Option<u64>,
    decrease: Option<u64>,
    tally: Tally,
    course: Course,
}

impl LimitState {
    /// A limit that nothing is known of: it starts at `initial`, within the bounds, and its growth starts with it.
    ///
    /// One that was known before, and is restored, is [`set`](Self::set) after this.
    pub fn seed(policy: &LimitPolicy, initial: u32, now_ms: u64) -> Self {
        Self {
            value: policy.clamp(initial),
            since: now_ms,
            demand: None,
            throttle: None,
            decrease: None,
            tally: Tally { since: now_ms, now: Bucket::default(), before: Bucket::default() },
            course: Course::start(policy.growth),
        }
    }

    /// The limit in force.
    pub fn value(&self) -> u32 {
        self.value
    }

    /// An acquire was denied for slots, or a job waits while they are full.
    pub fn demand(&mut self, now_ms: u64) {
        self.demand = Some(now_ms);
    }

    /// A release with success: the limit rises if the window was clean.
    ///
    /// Spec: AS-2, AS-13.
    pub fn success(&mut self, policy: &LimitPolicy, now_ms: u64) -> Option<Change> {
        self.tally.release(policy, now_ms);
        if !self.is_clean(policy.window_ms, now_ms) {
            return None;
        }
        let next = self.course.clean(policy, self.value);
        self.since = now_ms;
        let before = std::mem::replace(&mut self.value, next);
        (next > before).then_some(Change::Increase)
    }

    /// A release with failure, which says nothing of the ceiling: it moves nothing, and counts as a release of which
    /// the tolerance is a share.
    ///
    /// Spec: AS-3.
    pub fn failure(&mut self, policy: &LimitPolicy, now_ms: u64) {
        self.tally.release(policy, now_ms);
    }

    /// Whether no success and no failure changes anything from now on, until there is new demand.
    pub(crate) fn is_quiet(&self, policy: &LimitPolicy, now_ms: u64) -> bool {
        policy.tolerance == Fraction::ZERO && !within(self.demand, policy.window_ms, now_ms)
    }

    /// A release that was throttled: the limit falls, at most once per cooldown.
    ///
    /// A throttle that the cooldown suppresses belongs to the event that lowered the limit, and leaves the growth
    /// alone. One at the minimum lowers nothing, so it starts no cooldown; but it ends a slow start.
    ///
    /// Spec: AS-1, AS-13.
    pub fn throttled(&mut self, policy: &LimitPolicy, now_ms: u64) -> Throttle {
        self.tally.release(policy, now_ms);
        if self.tally.tolerates(policy) {
            return Throttle::Tolerated;
        }
        self.throttle = Some(now_ms);
        if within(self.decrease, policy.cooldown_ms, now_ms) {
            return Throttle::Suppressed;
        }
        let next = self.course.throttled(policy, self.value);
        if next >= self.value {
            return Throttle::Suppressed;
        }
        self.value = next;
        self.since = now_ms;
        self.decrease = Some(now_ms);
        self.tally.forgive();
        Throttle::Decreased
    }

    /// Sets the limit, within the bounds, by an operator's hand or from what was known before it was lost.
    ///
    /// A window starts. A slow start ends, since this limit is known and not searched for; [`Growth::Probe`] goes on as if it
    /// had just returned to it, so it rests there before it searches on. A cooldown that runs goes on.
    pub fn set(&mut self, policy: &LimitPolicy, value: u32, now_ms: u64) {
        self.value = policy.clamp(value);
        self.since = now_ms;
        self.course.settle();
    }

    /// Takes the limit from one revision of its policy to the next.
    ///
    /// It is clamped to the new bounds, and a window starts if that moves it. Another growth starts anew, with a window.
    pub fn carry(&mut self, from: &LimitPolicy, to: &LimitPolicy, now_ms: u64) {
        let value = to.clamp(self.value);
        if from.growth != to.growth {
            self.course = Course::start(to.growth);
            self.since = now_ms;
        }
        if value != self.value {
            self.value = value;
            self.since = now_ms;
        }
    }

    /// Moves every stored moment back with the store's clock.
    ///
    /// Spec: ST-2.
    pub fn shift_back(&mut self, ms: u64) {
        for moment in [&mut self.since, &mut self.tally.since] {
            *moment = moment.saturating_sub(ms);
        }
        for moment in [&mut self.demand, &mut self.throttle, &mut self.decrease].into_iter().flatten() {
            *moment = moment.saturating_sub(ms);
        }
    }

    fn is_clean(&self, window_ms: u64, now_ms: u64) -> bool {
        !within(Some(self.since), window_ms, now_ms)
            && within(self.demand, window_ms, now_ms)
            && !within(self.throttle, window_ms, now_ms)
    }
}

/// Whether a moment lies in `(now − span, now]`.
fn within(moment: Option<u64>, span_ms: u64, now_ms: u64) -> bool {
    moment.is_some_and(|moment| now_ms.saturating_sub(moment) < span_ms)
}

/// Where a growth stands: what a clean window and a throttle make of the limit.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Course {
    Additive,
    SlowStart(slow_start::SlowStart),
    Probe(probe::Probe),
}

impl Course {
    fn start(growth: Growth) -> Self {
        match growth {
            Growth::Additive => Self::Additive,
            Growth::SlowStart => Self::SlowStart(slow_start::SlowStart::new()),
            Growth::Probe => Self::Probe(probe::Probe::new()),
        }
    }

    fn clean(&mut self, policy: &LimitPolicy, value: u32) -> u32 {
        match self {
            Self::Additive => aimd::increased(policy, value),
            Self::SlowStart(course) => course.clean(policy, value),
            Self::Probe(course) => course.clean(policy, value),
        }
    }

    fn throttled(&mut self, policy: &LimitPolicy, value: u32) -> u32 {
        match self {
            Self::Additive => aimd::decreased(policy, value),
            Self::SlowStart(course) => course.throttled(policy, value),
            Self::Probe(course) => course.throttled(policy, value),
        }
    }

    /// The limit has been set to one that is known.
    fn settle(&mut self) {
        match self {
            Self::Additive => {}
            Self::SlowStart(course) => *course = slow_start::SlowStart::Over,
            Self::Probe(course) => *course = probe::Probe::settled(),
        }
    }
}

/// Counts releases in two buckets of one window each.
///
/// The counts are of 32 bits and saturate, so that a count of both buckets in parts per million stays below 2^53.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Tally {
    /// When the running bucket started.
    since: u64,
    now: Bucket,
    before: Bucket,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
struct Bucket {
    releases: u32,
    throttled: u32,
}

impl Tally {
    fn release(&mut self, policy: &LimitPolicy, now_ms: u64) {
        if policy.tolerance > Fraction::ZERO {
            self.roll(policy.window_ms, now_ms);
            self.now.releases = self.now.releases.saturating_add(1);
        }
    }

    /// Counts the last release as a throttled one, and says whether it lies within the tolerance.
    fn tolerates(&mut self, policy: &LimitPolicy) -> bool {
        if policy.tolerance == Fraction::ZERO {
            return false;
        }
        self.now.throttled = self.now.throttled.saturating_add(1);
        let throttled = u64::from(self.now.throttled) + u64::from(self.before.throttled);
        let releases = u64::from(self.now.releases) + u64::from(self.before.releases);
        throttled * u64::from(Fraction::ONE.ppm()) <= u64::from(policy.tolerance.ppm()) * releases
    }

    fn forgive(&mut self) {
        self.now.throttled = 0;
        self.before.throttled = 0;
    }

    fn roll(&mut self, window_ms: u64, now_ms: u64) {
        let windows = now_ms.saturating_sub(self.since).checked_div(window_ms).unwrap_or(0);
        if windows > 0 {
            self.before = if windows == 1 { self.now } else { Bucket::default() };
            self.now = Bucket::default();
            self.since = self.since.saturating_add(windows.saturating_mul(window_ms));
        }
    }
}
