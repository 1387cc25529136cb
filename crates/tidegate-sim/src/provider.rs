//! The provider: serves as many calls at once as its ceiling allows, and answers 429 to the rest.

use std::{cell::RefCell, collections::VecDeque, ops::RangeInclusive, time::Duration};

use fastrand::Rng;

use crate::{profile::Profile, timeline::VirtualClock};

/// How the provider behaves.
#[derive(Clone, Debug)]
pub(crate) struct Behaviour {
    pub(crate) profile: Profile,
    pub(crate) service: RangeInclusive<Duration>,
    pub(crate) reject_time: Duration,
    pub(crate) release_delay: Duration,
    pub(crate) unrelated_throttles: f64,
    pub(crate) failures: f64,
}

/// What a call gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// Served; its place was taken from one moment to another.
    Ok {
        from: Duration,
        to: Duration,
    },
    Throttled,
    Failed,
}

pub(crate) struct Provider {
    clock: VirtualClock,
    behaviour: Behaviour,
    state: RefCell<State>,
}

struct State {
    rng: Rng,
    in_flight: u32,
    max_in_flight: u32,
    /// When places come free whose answers are out already. In order, since all are late by the same.
    late: VecDeque<Duration>,
}

impl Provider {
    pub(crate) fn new(clock: VirtualClock, behaviour: Behaviour, seed: u64) -> Self {
        let state =
            State { rng: Rng::with_seed(seed), in_flight: 0, max_in_flight: 0, late: VecDeque::new() };
        Self { clock, behaviour, state: RefCell::new(state) }
    }

    /// The most calls that it ever served at once.
    pub(crate) fn max_in_flight(&self) -> u32 {
        self.state.borrow().max_in_flight
    }

    /// One call, to the last byte of its answer.
    pub(crate) async fn call(&self) -> Answer {
        let from = self.clock.elapsed();
        let Some((service, fails)) = self.admit(from) else {
            self.clock.wait(self.behaviour.reject_time).await;
            return Answer::Throttled;
        };
        self.clock.wait(service).await;
        let to = self.finish();
        if fails { Answer::Failed } else { Answer::Ok { from, to } }
    }

    /// Takes a place; says how long the call is to take, and whether it fails then.
    fn admit(&self, now: Duration) -> Option<(Duration, bool)> {
        let behaviour = &self.behaviour;
        let state = &mut *self.state.borrow_mut();
        while state.late.front().is_some_and(|at| *at <= now) {
            state.late.pop_front();
            state.in_flight -= 1;
        }
        let unrelated = chance(&mut state.rng, behaviour.unrelated_throttles);
        if unrelated || state.in_flight >= behaviour.profile.at(now) {
            return None;
        }
        state.in_flight += 1;
        state.max_in_flight = state.max_in_flight.max(state.in_flight);
        let service = within(&mut state.rng, &behaviour.service);
        Some((service, chance(&mut state.rng, behaviour.failures)))
    }

    /// Gives a place back, now or a little late; says when.
    fn finish(&self) -> Duration {
        let now = self.clock.elapsed();
        let state = &mut *self.state.borrow_mut();
        if self.behaviour.release_delay.is_zero() {
            state.in_flight -= 1;
            return now;
        }
        let at = now + self.behaviour.release_delay;
        state.late.push_back(at);
        at
    }
}

fn chance(rng: &mut Rng, share: f64) -> bool {
    share > 0.0 && rng.f64() < share
}

/// A duration of a range, each microsecond of it as likely as the other.
pub(crate) fn within(rng: &mut Rng, range: &RangeInclusive<Duration>) -> Duration {
    let micros = |duration: &Duration| u64::try_from(duration.as_micros()).unwrap_or(u64::MAX);
    Duration::from_micros(rng.u64(micros(range.start())..=micros(range.end())))
}
