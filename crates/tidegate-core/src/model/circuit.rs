//! Everything that a store keeps of the circuit of an id, and every step on it.
//!
//! A circuit is kept apart from what else belongs to its id: it has a policy, a clock that never runs back and a life of
//! its own, so neither can be lost with the other.

use std::sync::Arc;

use super::one::{BEHIND_MICROS, LAYOUT, PIN_TTL_MS};
use crate::{
    CircuitPolicy, CircuitState,
    circuit::Position,
    store::{
        CircuitAct, CircuitDid, CircuitMember, CircuitNews, CircuitReply, CircuitRequest, CircuitSnapshot,
        CircuitView, Head, Reply, StoreError,
    },
    time::{LAST, Moment, ceil_millis},
};

/// One circuit of a store, as a value.
#[derive(Clone, Debug, Default)]
pub(super) struct CircuitModel {
    layout: Option<u32>,
    last: Moment,
    life: Option<Life>,
}

#[derive(Clone, Debug)]
struct Life {
    policy: Arc<CircuitPolicy>,
    used_ms: u64,
    state: CircuitState,
}

#[derive(Clone, Copy)]
struct Step {
    now: Moment,
    stepped_back_ms: u64,
}

impl CircuitModel {
    /// One request, and what is to be pushed of it.
    pub(super) fn request(
        &mut self,
        clock: Moment,
        member: &CircuitMember,
        request: &CircuitRequest,
    ) -> Result<(Reply<CircuitReply>, Option<CircuitNews>), StoreError> {
        let step = self.begin(clock)?;
        let now_ms = step.now.millis();
        request.check()?;
        let policy = member.deciding(self.life.as_ref().map(|life| &life.policy))?;
        let life = self.life.get_or_insert_with(|| Life {
            state: CircuitState::new(&policy, now_ms),
            policy: Arc::clone(&policy),
            used_ms: now_ms,
        });
        life.used_ms = now_ms;
        if policy.revision() > life.policy.revision() {
            life.state.carry(&life.policy, &policy, now_ms);
            life.policy = policy;
        }
        let (before, led) = (life.told(), life.state.leader(now_ms).is_some());
        let did = request.acts.iter().map(|act| life.act(member, act, now_ms)).collect();
        let left = led && life.state.leader(now_ms).is_none();
        let news = (left || life.told() != before).then(|| life.news(step.now));
        let body = CircuitReply { view: life.view(now_ms), did };
        Ok((self.answer(step, body), news))
    }

    /// As [`Operators::set_circuit`](crate::Operators::set_circuit).
    pub(super) fn set(
        &mut self,
        clock: Moment,
        position: Position,
    ) -> Result<(Reply<bool>, Option<CircuitNews>), StoreError> {
        let step = self.begin(clock)?;
        let now_ms = step.now.millis();
        let changed = self.life.as_mut().and_then(|life| match position {
            Position::Open => life.state.force_open(&life.policy, now_ms),
            Position::Closed => life.state.force_close(&life.policy, now_ms),
        });
        let news = self.life.as_ref().filter(|_| changed.is_some()).map(|life| life.news(step.now));
        Ok((self.answer(step, changed.is_some()), news))
    }

    pub(super) fn snapshot(&mut self, clock: Moment) -> Result<Option<CircuitSnapshot>, StoreError> {
        let now_ms = self.begin(clock)?.now.millis();
        Ok(self.life.as_ref().map(|life| CircuitSnapshot {
            policy: Arc::clone(&life.policy),
            view: life.view(now_ms),
            heard: life.state.heard(now_ms),
            failing: life.state.failing(&life.policy, now_ms),
            trials: u32::try_from(life.state.trials().len()).unwrap_or(u32::MAX),
        }))
    }

    /// How many leases live: that of a leader, and those of trial calls.
    pub(super) fn leases(&mut self, clock: Moment) -> Result<u32, StoreError> {
        let now_ms = self.begin(clock)?.now.millis();
        let live = self
            .life
            .as_ref()
            .map_or(0, |life| life.state.trials().len() + usize::from(life.state.leader(now_ms).is_some()));
        Ok(u32::try_from(live).unwrap_or(u32::MAX))
    }

    /// Drops all that is kept.
    pub(super) fn wipe(&mut self) {
        self.life = None;
        self.layout = None;
    }

    pub(super) const fn plant_layout(&mut self, layout: u32) {
        self.layout = Some(layout);
    }

    pub(super) const fn is_used(&self) -> bool {
        self.life.is_some()
    }

    /// Settles what now is, and sweeps.
    fn begin(&mut self, clock: Moment) -> Result<Step, StoreError> {
        if let Some(found) = self.layout.filter(|found| *found > LAYOUT) {
            return Err(StoreError::NewerLayout { found, known: LAYOUT });
        }
        let clock = clock.min(LAST);
        let mut stepped_back_ms = 0;
        if self.last.micros() > clock.micros().saturating_add(BEHIND_MICROS) {
            stepped_back_ms = ceil_millis(self.last.since(clock));
            self.last = clock;
            if let Some(life) = &mut self.life {
                life.state.shift_back(stepped_back_ms);
                life.used_ms = life.used_ms.saturating_sub(stepped_back_ms);
            }
        }
        self.last = self.last.max(clock);
        let now_ms = self.last.millis();
        self.life = self.life.take().filter(|life| now_ms.saturating_sub(life.used_ms) < PIN_TTL_MS);
        if let Some(life) = &mut self.life {
            life.state.sweep(&life.policy, now_ms);
        }
        Ok(Step { now: self.last, stepped_back_ms })
    }

    fn answer<T>(&self, step: Step, body: T) -> Reply<T> {
        let revision = self.life.as_ref().map(|life| life.policy.revision());
        let Step { now, stepped_back_ms } = step;
        let head = Head { now: Some(now), revision, stepped_back_ms, ..Head::default() };
        Reply { head, body }
    }
}

impl Life {
    fn act(&mut self, member: &CircuitMember, act: &CircuitAct, now_ms: u64) -> CircuitDid {
        let (state, policy, driver) = (&mut self.state, &*self.policy, member.driver);
        match act {
            CircuitAct::Report { number, generation, batch } => {
                CircuitDid::Reported(state.report(policy, driver, *number, *generation, batch, now_ms))
            }
            CircuitAct::Open { generation } => {
                CircuitDid::Opened(state.strategy_opens(policy, *generation, now_ms))
            }
            CircuitAct::Recent => {
                CircuitDid::Recent { generation: state.generation(), runs: state.recent().collect() }
            }
            CircuitAct::Elect => CircuitDid::Elected(state.elect(policy, driver, now_ms)),
            CircuitAct::Renew { fence } => CircuitDid::Renewed(state.renew(policy, driver, *fence, now_ms)),
            CircuitAct::Resign { fence } => CircuitDid::Resigned(state.resign(driver, *fence, now_ms)),
            CircuitAct::Verdict { fence, generation, kind, verdict } => CircuitDid::Judged(
                state.check_verdict(policy, driver, *fence, *generation, *kind, *verdict, now_ms),
            ),
            CircuitAct::Schedule { generation, attempt, wait_ms } => {
                CircuitDid::Scheduled(state.schedule(*generation, *attempt, *wait_ms, now_ms))
            }
            CircuitAct::Trial { ask } => CircuitDid::Trial(state.try_half_open(policy, driver, *ask, now_ms)),
            CircuitAct::RenewTrial { fence } => {
                CircuitDid::RenewedTrial(state.renew_trial(policy, driver, *fence, now_ms))
            }
            CircuitAct::GiveBack { fence } => CircuitDid::GaveBack(state.give_back(driver, *fence, now_ms)),
            CircuitAct::TrialResult { fence, verdict } => {
                CircuitDid::Judged(state.half_open_result(policy, driver, *fence, *verdict, now_ms))
            }
        }
    }

    fn view(&self, now_ms: u64) -> CircuitView {
        CircuitView::of(&self.state, &self.policy, now_ms)
    }

    fn news(&self, now: Moment) -> CircuitNews {
        CircuitNews { view: self.view(now.millis()), now }
    }

    /// What others are told of when it changes in a step, as they are where nobody leads any more.
    fn told(&self) -> (u64, Option<u64>, Option<u64>) {
        let state = &self.state;
        (state.generation(), state.attempt(), state.next_attempt_ms())
    }
}
