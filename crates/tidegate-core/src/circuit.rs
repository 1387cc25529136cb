//! Whether to call at all: one circuit for the whole fleet, closed or open.
//!
//! Processes report what came of their calls, and the store decides, in one step, for all of them. [`CircuitState`] is
//! what a store keeps of one circuit, and every method of it is one such step: it takes the policy and *now*, in whole
//! milliseconds of the store's clock, and says what changed. A moment that lies before an earlier one is taken as the
//! clock standing still. Every number stays below 2^53, so that Lua and SQL come to the same answer.
//!
//! - `results` decides when to open by the last calls, `sampling` by those of the last while;
//! - `reporters` knows how many processes there are, and how many of them fail;
//! - `leader` is the lease of the process that checks, `trials` are the permits of half-open;
//! - `policy` is what must be the same in every worker, `schedule` how long to wait before each attempt.
//!
//! Spec: section 4.

mod leader;
mod policy;
mod reporters;
mod results;
mod sampling;
mod schedule;
mod trials;

pub use self::{
    leader::{Election, Leader},
    policy::{
        CheckedRecovery, CheckedStrategy, CircuitDraft, CircuitPolicy, LEADER_TTL, MOST_PERMITS,
        MOST_RESULTS, Recovery, Strategy,
    },
    reporters::{HEARD_MS, MOST_REPORTERS},
    results::{Batch, MOST_RUNS, MOST_TIMES, Run, Verdict},
    schedule::{Backoff, CheckedBackoff},
    trials::{Trial, TrialPermit},
};

use self::{reporters::Reporters, results::Results, trials::Trials};
use crate::{DriverId, time::EXACT};

/// A change of state.
///
/// Spec: CB-2, CB-6.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Change {
    /// What it became.
    pub to: Position,
    /// Why.
    pub why: Why,
    /// The generation that begins with it.
    pub generation: u64,
}

/// Closed or open; there is no third.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Position {
    /// Calls run.
    Closed,
    /// Calls are blocked.
    Open,
}

/// What changed a circuit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Why {
    /// Results, by the strategy.
    Results,
    /// A check, of recovery or idle.
    Check,
    /// The trial calls of half-open.
    Trials,
    /// An operator.
    Operator,
}

/// What became of a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reported {
    /// Its results were of another generation, or told before, or the circuit is open: they changed nothing.
    Dropped,
    /// Its results were taken in.
    Counted,
    /// They opened the circuit; those behind the run that did were dropped.
    Opened(Change),
}

/// Which check a verdict is about.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CheckKind {
    /// Of an open circuit.
    Recovery {
        /// The attempt, from 1 at each opening. So a verdict that is told twice counts once.
        attempt: u64,
    },
    /// Of a closed circuit that nobody has called for a while.
    Idle {
        /// The moment at which it was to come, in ms of the store's clock. So one that a call has put off since counts
        /// in nothing.
        at_ms: u64,
    },
}

/// What became of a verdict, or of the result of a trial call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Judged {
    /// Without the newest fence, of another generation or attempt, or of no check that there is: it changed nothing.
    Stale,
    /// It was counted, and the circuit stays as it is.
    Counted,
    /// It changed the circuit.
    Changed(Change),
}

/// The check that comes next.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NextCheck {
    /// What for.
    pub kind: CheckKind,
    /// When, in ms of the store's clock; none where a process has to [schedule](CircuitState::schedule) it.
    pub at_ms: Option<u64>,
}

/// What a store keeps of one circuit.
///
/// # Generations
/// The generation grows by one at each change. It starts at the moment when the state is made, in ms, as a fence does:
/// so it grows across lost state too, as long as changes are fewer than milliseconds. Whatever comes back under another
/// generation than the present one was begun before the last change, and changes nothing.
///
/// # Example: three failures in a row
/// ```
/// # use std::time::Duration;
/// # use tidegate_core::{DriverId, circuit::*};
/// let backoff = Backoff::Constant(Duration::from_secs(5));
/// let policy =
///     CircuitPolicy::draft(Strategy::Consecutive { threshold: 3 }, Recovery::health_check(), backoff).check()?;
/// let mut circuit = CircuitState::new(&policy, 1_000);
/// let (process, began) = (DriverId(7), circuit.generation());
///
/// let two = Batch::new(vec![Run::failures(2)])?;
/// assert_eq!(circuit.report(&policy, process, 1, began, &two, 2_000), Reported::Counted);
/// assert!(matches!(circuit.report(&policy, process, 2, began, &two, 2_001), Reported::Opened(_)));
///
/// let Election::Leads(leader) = circuit.elect(&policy, process, 2_002) else { unreachable!() };
/// assert_eq!(circuit.next_check(&policy).and_then(|check| check.at_ms), Some(7_001));
/// let (generation, kind) = (circuit.generation(), CheckKind::Recovery { attempt: 1 });
/// circuit.renew(&policy, process, leader.fence, 4_000);
/// circuit.renew(&policy, process, leader.fence, 5_500);
/// circuit.check_verdict(&policy, process, leader.fence, generation, kind, Verdict::Success, 7_010);
/// assert!(!circuit.is_open());
/// # Ok::<(), tidegate_core::Invalid>(())
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CircuitState {
    generation: u64,
    since_ms: u64,
    /// What the last change was for; none before the first.
    why: Option<Why>,
    /// The attempts to recover, while it is open.
    opening: Option<Opening>,
    results: Results,
    reporters: Reporters,
    leader: Option<Leader>,
    /// The last fence given, to a leader or to a trial.
    fence: u64,
    /// The last call of any process, or the last idle probe.
    stirred_ms: Option<u64>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
struct Opening {
    attempt: u64,
    /// The wait before this attempt, and the moment of it; none of both while nobody has said them.
    wait_ms: Option<u64>,
    next_ms: Option<u64>,
    trials: Trials,
}

impl Opening {
    fn new(attempt: u64, wait_ms: Option<u64>, now_ms: u64) -> Self {
        let next_ms = wait_ms.map(|wait_ms| later(now_ms, wait_ms));
        Self { attempt, wait_ms, next_ms, trials: Trials::default() }
    }

    /// The attempt failed, and the next one comes after the next wait.
    fn failed(&mut self, backoff: &CheckedBackoff, now_ms: u64) {
        let wait_ms = match self.wait_ms {
            Some(wait_ms) => backoff.after_ms(wait_ms),
            None => backoff.first_ms(),
        };
        *self = Self::new((self.attempt + 1).min(EXACT - 1), wait_ms, now_ms);
    }
}

impl CircuitState {
    /// A circuit that nothing is known of: closed.
    pub fn new(policy: &CircuitPolicy, now_ms: u64) -> Self {
        Self {
            generation: now_ms.clamp(1, EXACT / 2),
            since_ms: now_ms,
            why: None,
            opening: None,
            results: Results::new(policy.strategy()),
            reporters: Reporters::default(),
            leader: None,
            fence: 0,
            stirred_ms: None,
        }
    }

    /// The generation: what a call begins under, and is reported with. Spec: CB-7.
    pub const fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether calls are blocked.
    pub const fn is_open(&self) -> bool {
        self.opening.is_some()
    }

    /// The moment of the last change, or of the start.
    pub const fn since_ms(&self) -> u64 {
        self.since_ms
    }

    /// What the last change was for; none before the first.
    pub const fn why(&self) -> Option<Why> {
        self.why
    }

    /// Whether calls run.
    pub const fn position(&self) -> Position {
        if self.is_open() { Position::Open } else { Position::Closed }
    }

    /// The number of the next attempt to recover, while the circuit is open.
    pub fn attempt(&self) -> Option<u64> {
        self.opening.as_ref().map(|opening| opening.attempt)
    }

    /// The moment of the next attempt, while the circuit is open and somebody has said it.
    pub fn next_attempt_ms(&self) -> Option<u64> {
        self.opening.as_ref().and_then(|opening| opening.next_ms)
    }

    /// Who leads, if anyone does.
    pub fn leader(&self, now_ms: u64) -> Option<Leader> {
        self.leader.filter(|leader| leader.is_live(now_ms))
    }

    /// The permits of trial calls that are out, also those that have lapsed and are not swept yet.
    pub fn trials(&self) -> &[TrialPermit] {
        self.opening.as_ref().map_or(&[], |opening| opening.trials.out())
    }

    /// The recent results of the whole fleet since the last change, oldest first; for `Count`, and for a strategy of
    /// one's own. Spec: CB-1.
    pub fn recent(&self) -> impl Iterator<Item = Run> {
        self.results.recent()
    }

    /// How many processes were heard in the last 10 s: up to 1,000. Spec: CB-8, CB-9.
    pub fn heard(&self, now_ms: u64) -> u32 {
        self.reporters.heard(now_ms)
    }

    /// How many processes have a failure within the last 10 s, or the duration of `Sampling`, since the last change.
    /// Spec: CB-9.
    pub fn failing(&self, policy: &CircuitPolicy, now_ms: u64) -> u32 {
        self.reporters.failing(failure_span_ms(policy), now_ms)
    }

    /// Takes in what came of a process's calls that began under `generation`.
    ///
    /// The process counts as heard, and its calls as calls, whatever their generation. The strategy is asked after each
    /// run; it opens only where enough processes fail. Each `number` of a process counts once, and a lower one not at
    /// all, as long as it is heard: so a report whose answer was lost can be told again.
    ///
    /// Spec: CB-1, CB-7, CB-8, CB-9.
    pub fn report(
        &mut self,
        policy: &CircuitPolicy,
        driver: DriverId,
        number: u64,
        generation: u64,
        batch: &Batch,
        now_ms: u64,
    ) -> Reported {
        self.reporters.sweep(failure_span_ms(policy), now_ms);
        if !self.reporters.hear(driver, number, now_ms) {
            return Reported::Dropped;
        }
        if !batch.runs().is_empty() {
            self.stirred_ms = self.stirred_ms.max(Some(now_ms));
        }
        if generation != self.generation || self.is_open() {
            return Reported::Dropped;
        }
        let most = match policy.strategy() {
            CheckedStrategy::Count { size, .. } => size.div_ceil(self.heard(now_ms).max(1)),
            _ => u32::MAX,
        };
        // Asked at most twice a batch, before and after its first failure, however many runs it has.
        let mut enough = None;
        let mut failed = false;
        for (run, left) in batch.runs().iter().zip(batch.thinned(most)) {
            if run.verdict == Verdict::Failure && !failed {
                failed = true;
                enough = None;
                self.reporters.fail(driver, now_ms);
            }
            if left.times > 0
                && self.results.add(policy.strategy(), left, now_ms)
                && *enough.get_or_insert_with(|| self.enough_fail(policy, now_ms))
            {
                return Reported::Opened(self.open(policy, Why::Results, now_ms));
            }
        }
        Reported::Counted
    }

    /// A strategy of one's own opens the circuit, having seen the [recent](Self::recent) results of `generation`. None
    /// where that is another, where there is no result, or where too few processes fail.
    ///
    /// Spec: CB-1, CB-9.
    pub fn strategy_opens(&mut self, policy: &CircuitPolicy, generation: u64, now_ms: u64) -> Option<Change> {
        let may = matches!(policy.strategy(), CheckedStrategy::Custom { .. })
            && generation == self.generation
            && !self.is_open()
            && self.recent().next().is_some()
            && self.enough_fail(policy, now_ms);
        may.then(|| self.open(policy, Why::Results, now_ms))
    }

    /// Stands for election. A leader that lives is renewed; one that has lapsed gets a new fence, as any other does.
    ///
    /// Spec: CB-3.
    pub fn elect(&mut self, policy: &CircuitPolicy, driver: DriverId, now_ms: u64) -> Election {
        let until_ms = later(now_ms, policy.leader_ttl_ms());
        match self.leader(now_ms) {
            Some(leader) if leader.driver != driver => {
                Election::Follows { retry_ms: leader.until_ms - now_ms }
            }
            leads => {
                let fence = leads.map_or_else(|| self.next_fence(now_ms), |leader| leader.fence);
                let until_ms = leads.map_or(until_ms, |leader| leader.until_ms.max(until_ms));
                let leader = Leader { driver, fence, until_ms };
                self.leader = Some(leader);
                Election::Leads(leader)
            }
        }
    }

    /// Renews the leader's lease, and gives the moment until which it lives; none where it does not any more. It never
    /// moves backwards.
    ///
    /// Spec: CB-3, AS-6.
    pub fn renew(
        &mut self,
        policy: &CircuitPolicy,
        driver: DriverId,
        fence: u64,
        now_ms: u64,
    ) -> Option<u64> {
        let until_ms = later(now_ms, policy.leader_ttl_ms());
        let leader = self
            .leader
            .as_mut()
            .filter(|leader| leader.is_live(now_ms) && (leader.driver, leader.fence) == (driver, fence))?;
        leader.until_ms = leader.until_ms.max(until_ms);
        Some(leader.until_ms)
    }

    /// Gives leadership away at once; whether it was held.
    ///
    /// Spec: CB-3, CB-11.
    pub fn resign(&mut self, driver: DriverId, fence: u64, now_ms: u64) -> bool {
        let held = self.leads(driver, fence, now_ms);
        if held {
            self.leader = None;
        }
        held
    }

    /// Takes in what the leader's check came to.
    ///
    /// A success closes an open circuit; a failure there leads to the next attempt. A failing idle probe opens at once,
    /// whatever the strategy and the reporters. An attempt is begun when its moment has come; that is the leader's to
    /// keep.
    ///
    /// Spec: CB-3, CB-10.
    #[allow(clippy::too_many_arguments)] // each of them can make it stale
    pub fn check_verdict(
        &mut self,
        policy: &CircuitPolicy,
        driver: DriverId,
        fence: u64,
        generation: u64,
        kind: CheckKind,
        verdict: Verdict,
        now_ms: u64,
    ) -> Judged {
        if !self.leads(driver, fence, now_ms) || generation != self.generation {
            return Judged::Stale;
        }
        let CheckedRecovery::HealthCheck { idle_interval_ms, .. } = policy.recovery() else {
            return Judged::Stale;
        };
        let idle_ms = idle_interval_ms.map(|interval_ms| self.idle_ms(interval_ms));
        match (kind, self.opening.as_mut(), verdict) {
            (CheckKind::Recovery { attempt }, Some(opening), verdict) if attempt == opening.attempt => {
                match verdict {
                    Verdict::Success => Judged::Changed(self.close(policy, Why::Check, now_ms)),
                    Verdict::Failure => {
                        opening.failed(policy.backoff(), now_ms);
                        Judged::Counted
                    }
                }
            }
            (CheckKind::Idle { at_ms }, None, verdict) if idle_ms == Some(at_ms) => match verdict {
                Verdict::Success => {
                    self.stirred_ms = self.stirred_ms.max(Some(now_ms));
                    Judged::Counted
                }
                Verdict::Failure => Judged::Changed(self.open(policy, Why::Check, now_ms)),
            },
            _ => Judged::Stale,
        }
    }

    /// Says how long the wait before an attempt is, from now, where the backoff is one's own. The first to say it
    /// counts. Gives the moment of the attempt; none where that is another attempt, or nothing was to be said.
    ///
    /// Spec: CB-3.
    pub fn schedule(&mut self, generation: u64, attempt: u64, wait_ms: u64, now_ms: u64) -> Option<u64> {
        let open = self.opening.as_mut().filter(|_| generation == self.generation)?;
        if open.attempt != attempt {
            return None;
        }
        if open.next_ms.is_none() {
            *open = Opening::new(attempt, Some(wait_ms), now_ms);
        }
        open.next_ms
    }

    /// Asks for a trial call while the circuit is open.
    ///
    /// At most so many are out or have succeeded as the policy has permits. A process numbers what it asks: the same
    /// `ask` gets the same permit as long as that is out, so one whose answer was lost can be asked again.
    ///
    /// Spec: CB-4.
    pub fn try_half_open(
        &mut self,
        policy: &CircuitPolicy,
        driver: DriverId,
        ask: u64,
        now_ms: u64,
    ) -> Trial {
        let CheckedRecovery::HalfOpen { permits, permit_ttl_ms } = *policy.recovery() else {
            return Trial::NotOffered;
        };
        let Some(opening) = self.opening.as_mut() else { return Trial::NotOffered };
        if let Some(permit) = opening.trials.asked(driver, ask, now_ms) {
            return Trial::Granted(permit);
        }
        match opening.next_ms {
            None => return Trial::Unscheduled { attempt: opening.attempt },
            Some(next_ms) if now_ms < next_ms => return Trial::TooEarly { retry_ms: next_ms - now_ms },
            Some(_) => opening.trials.sweep(now_ms),
        }
        if opening.trials.taken() >= permits {
            // There is always one out, since the circuit closes when all have succeeded.
            let first_ms = opening.trials.first_end_ms().unwrap_or(now_ms);
            return Trial::Full { retry_ms: first_ms.saturating_sub(now_ms).max(1) };
        }
        let fence = self.next_fence(now_ms);
        let until_ms = later(now_ms, permit_ttl_ms);
        let permit = TrialPermit { driver, ask, fence, generation: self.generation, until_ms };
        if let Some(opening) = self.opening.as_mut() {
            opening.trials.grant(permit);
        }
        Trial::Granted(permit)
    }

    /// Keeps the permit of a trial call that takes long, and gives the moment until which it lives; none where it does
    /// not any more.
    ///
    /// Spec: CB-4.
    pub fn renew_trial(
        &mut self,
        policy: &CircuitPolicy,
        driver: DriverId,
        fence: u64,
        now_ms: u64,
    ) -> Option<u64> {
        let CheckedRecovery::HalfOpen { permit_ttl_ms, .. } = *policy.recovery() else { return None };
        let opening = self.opening.as_mut()?;
        opening.trials.renew(driver, fence, later(now_ms, permit_ttl_ms), now_ms)
    }

    /// Gives back the permit of a trial call that was not made, or came to nothing; it is free at once. Whether it was
    /// held.
    ///
    /// Spec: CB-4.
    pub fn give_back(&mut self, driver: DriverId, fence: u64, now_ms: u64) -> bool {
        self.opening.as_mut().and_then(|opening| opening.trials.take(driver, fence, now_ms)).is_some()
    }

    /// Takes in what came of a trial call. When as many as there are permits have succeeded the circuit closes; the
    /// first failure ends all trials, and the next ones come after the next backoff.
    ///
    /// Spec: CB-4.
    pub fn half_open_result(
        &mut self,
        policy: &CircuitPolicy,
        driver: DriverId,
        fence: u64,
        verdict: Verdict,
        now_ms: u64,
    ) -> Judged {
        let CheckedRecovery::HalfOpen { permits, .. } = *policy.recovery() else { return Judged::Stale };
        let Some(opening) = self.opening.as_mut() else { return Judged::Stale };
        if opening.trials.take(driver, fence, now_ms).is_none() {
            return Judged::Stale;
        }
        match verdict {
            Verdict::Failure => opening.failed(policy.backoff(), now_ms),
            Verdict::Success => {
                opening.trials.succeeded += 1;
                if opening.trials.succeeded >= permits {
                    return Judged::Changed(self.close(policy, Why::Trials, now_ms));
                }
            }
        }
        Judged::Counted
    }

    /// Opens by an operator's hand. It recovers as from any other opening. None where it is open already.
    ///
    /// Spec: ST-20.
    pub fn force_open(&mut self, policy: &CircuitPolicy, now_ms: u64) -> Option<Change> {
        (!self.is_open()).then(|| self.open(policy, Why::Operator, now_ms))
    }

    /// Closes by an operator's hand. None where it is closed already.
    ///
    /// Spec: ST-20.
    pub fn force_close(&mut self, policy: &CircuitPolicy, now_ms: u64) -> Option<Change> {
        self.is_open().then(|| self.close(policy, Why::Operator, now_ms))
    }

    /// Takes the circuit from one revision of its policy to the next; it stays closed or open, under its generation.
    ///
    /// Results start anew where the strategy keeps others. With another backoff, the attempt that is next keeps its
    /// number, waits as a first one from now, and no longer than it would have. With another recovery, the trials
    /// start anew.
    ///
    /// Spec: ST-5.
    pub fn carry(&mut self, from: &CircuitPolicy, to: &CircuitPolicy, now_ms: u64) {
        if !Results::fits(from.strategy(), to.strategy()) {
            self.results = Results::new(to.strategy());
        }
        let Some(opening) = self.opening.as_mut() else { return };
        if from.recovery() != to.recovery() {
            opening.trials = Trials::default();
        }
        if from.backoff() != to.backoff() {
            let first_ms = to.backoff().first_ms();
            let anew_ms = first_ms.map(|wait_ms| later(now_ms, wait_ms));
            opening.next_ms = match (opening.next_ms, anew_ms) {
                (Some(next_ms), Some(anew_ms)) => Some(next_ms.min(anew_ms)),
                (next_ms, anew_ms) => next_ms.or(anew_ms),
            };
            opening.wait_ms = first_ms.or(opening.wait_ms);
        }
    }

    /// The check that a leader makes next, if this policy has one: the attempt to recover, or the idle probe. An idle
    /// probe comes one interval after the last call, idle probe, closing or start, whichever was the latest.
    ///
    /// Spec: CB-3, CB-10.
    pub fn next_check(&self, policy: &CircuitPolicy) -> Option<NextCheck> {
        let CheckedRecovery::HealthCheck { idle_interval_ms, .. } = *policy.recovery() else { return None };
        match &self.opening {
            Some(opening) => {
                let kind = CheckKind::Recovery { attempt: opening.attempt };
                Some(NextCheck { kind, at_ms: opening.next_ms })
            }
            None => idle_interval_ms.map(|interval_ms| {
                let at_ms = self.idle_ms(interval_ms);
                NextCheck { kind: CheckKind::Idle { at_ms }, at_ms: Some(at_ms) }
            }),
        }
    }

    /// When the next idle probe comes.
    fn idle_ms(&self, interval_ms: u64) -> u64 {
        later(self.stirred_ms.unwrap_or(0).max(self.since_ms), interval_ms)
    }

    /// The moment of what comes next by itself: a check, the next trials, the end of the leader's lease, or of the
    /// first trial permit. What is past is due now. [`sweep`](Self::sweep) ends what has ended.
    pub fn due_ms(&self, policy: &CircuitPolicy) -> Option<u64> {
        let check_ms = self.next_check(policy).and_then(|check| check.at_ms);
        let leader_ms = self.leader.map(|leader| leader.until_ms);
        let half_open = matches!(policy.recovery(), CheckedRecovery::HalfOpen { .. });
        let trials_ms = self
            .opening
            .as_ref()
            .filter(|_| half_open)
            .and_then(|opening| opening.trials.first_end_ms().or(opening.next_ms));
        [check_ms, leader_ms, trials_ms].into_iter().flatten().min()
    }

    /// Lets go what has ended: leases, processes not heard any more, results that are too old. It changes no answer.
    ///
    /// Spec: ST-17.
    pub fn sweep(&mut self, policy: &CircuitPolicy, now_ms: u64) {
        self.leader = self.leader(now_ms);
        self.reporters.sweep(failure_span_ms(policy), now_ms);
        self.results.sweep(policy.strategy(), now_ms);
        if let Some(opening) = self.opening.as_mut() {
            opening.trials.sweep(now_ms);
        }
    }

    /// Moves every stored moment back with the store's clock. Generation and fence are no moments, and stay.
    ///
    /// Spec: ST-2.
    pub fn shift_back(&mut self, ms: u64) {
        let back = |moment: &mut u64| *moment = moment.saturating_sub(ms);
        back(&mut self.since_ms);
        self.stirred_ms.iter_mut().for_each(back);
        self.leader.iter_mut().for_each(|leader| back(&mut leader.until_ms));
        if let Some(opening) = self.opening.as_mut() {
            opening.next_ms.iter_mut().for_each(back);
            opening.trials.shift_back(ms);
        }
        self.results.shift_back(ms);
        self.reporters.shift_back(ms);
    }

    fn leads(&self, driver: DriverId, fence: u64, now_ms: u64) -> bool {
        self.leader(now_ms).is_some_and(|leader| (leader.driver, leader.fence) == (driver, fence))
    }

    /// Whether so many processes have a recent failure as the policy asks for, of those that were heard. One is no
    /// condition: what the strategy looks back on may be older than what is recent, and its word is enough then.
    fn enough_fail(&self, policy: &CircuitPolicy, now_ms: u64) -> bool {
        let needed = policy.min_reporters().min(self.heard(now_ms));
        needed <= 1 || self.failing(policy, now_ms) >= needed
    }

    fn open(&mut self, policy: &CircuitPolicy, why: Why, now_ms: u64) -> Change {
        self.opening = Some(Opening::new(1, policy.backoff().first_ms(), now_ms));
        self.change(policy, Position::Open, why, now_ms)
    }

    fn close(&mut self, policy: &CircuitPolicy, why: Why, now_ms: u64) -> Change {
        self.opening = None;
        self.change(policy, Position::Closed, why, now_ms)
    }

    fn change(&mut self, policy: &CircuitPolicy, to: Position, why: Why, now_ms: u64) -> Change {
        self.generation = (self.generation + 1).min(EXACT - 1);
        self.since_ms = now_ms;
        self.why = Some(why);
        self.results = Results::new(policy.strategy());
        self.reporters.forgive();
        Change { to, why, generation: self.generation }
    }

    fn next_fence(&mut self, now_ms: u64) -> u64 {
        self.fence = (self.fence + 1).max(now_ms).min(EXACT - 1);
        self.fence
    }
}

/// How long a failure of a process is recent. Spec: CB-9.
const fn failure_span_ms(policy: &CircuitPolicy) -> u64 {
    match policy.strategy() {
        CheckedStrategy::Sampling { duration_ms, .. } => *duration_ms,
        _ => HEARD_MS,
    }
}

/// A moment that is as much later, below 2^53.
fn later(moment_ms: u64, by_ms: u64) -> u64 {
    moment_ms.saturating_add(by_ms).min(EXACT - 1)
}
