//! Drawing what the processes of a circuit say, so that it opens, recovers and closes often.

use tidegate_core::{
    Capability, CircuitPolicy,
    circuit::{Batch, CheckedBackoff, CheckedRecovery, CheckedStrategy, Position, Run, Verdict},
    time::EXACT,
};

use super::{Generator, Operation, Pair};
use crate::model_test::{
    said::{Count, Fence, Heard, Kind, Past, Said},
    world::{CIRCUIT_DRIVERS, Who, World},
};

/// The driver that counts in large numbers.
const WILD: usize = CIRCUIT_DRIVERS - 1;

/// 366 days.
const LONGEST_MS: u64 = 366 * 86_400_000;

impl Generator {
    /// The circuit that the next operation is about, if it is about one.
    pub(super) fn focus(&mut self, world: &World) -> Option<usize> {
        if !self.has(Capability::Circuit) {
            return None;
        }
        if self.random.u32(0..14) == 0 {
            let places = world.circuits();
            self.focus = self.random.bool().then(|| places[self.random.usize(..places.len())]);
        }
        self.focus
    }

    pub(super) fn circuit(&mut self, world: &World, pair: &Pair, place: usize) -> Operation {
        let operators = self.has(Capability::Operators);
        match self.random.u32(0..200) {
            0..40 => return self.time(),
            40..44 if operators => {
                let position = if self.random.bool() { Position::Open } else { Position::Closed };
                return Operation::SetCircuit { place, position };
            }
            44..50 if operators => return Operation::Snapshot { place },
            50 if operators && self.losses => {
                self.circuits[place] = 0;
                return Operation::Forget { place };
            }
            // So that the clock of an id with nothing but a circuit is known again after a loss.
            51..60 if place >= world.gated => return Operation::Pause { place, ms: self.random.u64(1..9) },
            _ => {}
        }
        let heard = pair.circuit(place);
        let who = self.circuit_who(world, heard, place);
        let policy = &world.place(place).circuits[who.policy];
        let acts = match self.random.u32(0..300) {
            0 => 0,
            1 => 64,
            2 => 65,
            3..200 => 1,
            _ => self.random.usize(2..5),
        };
        let said = if acts >= 64 {
            vec![Said::Recent; acts]
        } else {
            (0..acts).map(|_| self.said(heard, who, policy, pair.now().millis())).collect()
        };
        Operation::Circuit { who, said }
    }

    fn circuit_who(&mut self, world: &World, heard: &Heard, place: usize) -> Who {
        let it = world.place(place);
        let policies = it.circuits.len();
        if self.random.u32(0..250) == 0 {
            self.circuits[place] = (self.circuits[place] + 1) % policies;
        }
        let policy =
            if self.random.u32(0..15) == 0 { self.random.usize(..policies) } else { self.circuits[place] };
        // The one that leads has the most to say.
        let leads = heard.view.and_then(|view| view.leader);
        let leads = leads.and_then(|leader| it.drivers.iter().position(|driver| *driver == leader.driver));
        let open = heard.view.is_some_and(|view| view.is_open());
        let half_open = matches!(it.circuits[policy].recovery(), CheckedRecovery::HalfOpen { .. });
        let tries = heard.tries.filter(|_| open && half_open);
        let driver = match tries.or(leads) {
            Some(driver) if self.random.u32(0..3) > 0 => driver,
            _ if self.random.u32(0..12) == 0 => WILD,
            _ => self.random.usize(..WILD),
        };
        Who { place, driver, policy, refuses: self.random.u32(0..15) == 0 }
    }

    fn said(&mut self, heard: &Heard, who: Who, policy: &CircuitPolicy, now_ms: u64) -> Said {
        let open = heard.view.is_some_and(|view| view.is_open());
        let due = heard.view.and_then(|view| view.next_ms).is_none_or(|next_ms| next_ms <= now_ms);
        let half_open = matches!(policy.recovery(), CheckedRecovery::HalfOpen { .. });
        let generation = self.past();
        match self.random.u32(0..100) {
            // Whatever it is, also where it makes no sense.
            0..16 => match self.random.u32(0..12) {
                0 => Said::Open { generation },
                1 => Said::Recent,
                2 => Said::Elect,
                3 => Said::Renew { fence: self.fence(who, false) },
                4 => Said::Resign { fence: self.fence(who, false) },
                5 => self.verdict(who, open),
                6 => self.verdict(who, !open),
                7 => self.schedule(),
                8 => Said::Trial { ask: self.count(who) },
                9 => Said::RenewTrial { fence: self.fence(who, true) },
                10 => Said::GiveBack { fence: self.fence(who, true) },
                _ => Said::TrialResult { fence: self.fence(who, true), verdict: self.result(50) },
            },
            16..32 => Said::Elect,
            32..37 => Said::Renew { fence: self.fence(who, false) },
            37..39 => Said::Resign { fence: self.fence(who, false) },
            39..42 => Said::Recent,
            42..46 if matches!(policy.strategy(), CheckedStrategy::Custom { .. }) => {
                Said::Open { generation }
            }
            42..50 if open && *policy.backoff() == CheckedBackoff::Custom => self.schedule(),
            50..94 if open && half_open => match self.random.u32(0..12) {
                0..4 => Said::Trial { ask: self.count(who) },
                4 => Said::RenewTrial { fence: self.fence(who, true) },
                5 => Said::GiveBack { fence: self.fence(who, true) },
                _ if heard.permits(who.driver) > 0 => {
                    Said::TrialResult { fence: self.fence(who, true), verdict: self.result(80) }
                }
                _ => Said::Trial { ask: Count::Next },
            },
            // A check that comes before its moment is a leader's fault, and it is as good as any other to a store.
            50..90 if open && (due || self.random.u32(0..4) == 0) => self.verdict(who, true),
            50..60 if !open => self.verdict(who, false),
            _ => self.report(who, policy),
        }
    }

    fn past(&mut self) -> Past {
        match self.random.u32(0..60) {
            0..50 => Past::Ago(0),
            50..56 => Past::Ago(self.random.usize(1..6)),
            56..58 => Past::Never(self.random.u64(0..4)),
            58 => Past::Never(EXACT - 1),
            _ => Past::Never(EXACT + self.random.u64(0..2)),
        }
    }

    fn fence(&mut self, who: Who, trial: bool) -> Fence {
        let of = if self.random.u32(0..15) == 0 { self.random.usize(..CIRCUIT_DRIVERS) } else { who.driver };
        let ago = if self.random.u32(0..5) == 0 { self.random.usize(1..5) } else { 0 };
        match self.random.u32(0..60) {
            0 => Fence::Never(self.random.u64(0..3)),
            1 => Fence::Never(EXACT - self.random.u64(0..2)),
            // One for the other.
            2 if trial => Fence::Leader { of, ago },
            2 => Fence::Trial { of, ago },
            _ if trial => Fence::Trial { of, ago },
            _ => Fence::Leader { of, ago },
        }
    }

    fn count(&mut self, who: Who) -> Count {
        match self.random.u32(0..40) {
            _ if who.driver == WILD && self.random.u32(0..3) == 0 => {
                Count::Exactly(EXACT - self.random.u64(0..4))
            }
            0..31 => Count::Next,
            31..36 => Count::Again,
            36..38 => Count::Lower,
            _ => Count::Exactly(self.random.u64(0..6)),
        }
    }

    fn result(&mut self, successes: u32) -> Verdict {
        if self.random.u32(0..100) < successes { Verdict::Success } else { Verdict::Failure }
    }

    fn verdict(&mut self, who: Who, recovery: bool) -> Said {
        let past = self.past();
        let (kind, successes) = if recovery { (Kind::Recovery(past), 40) } else { (Kind::Idle(past), 60) };
        let (fence, generation) = (self.fence(who, false), self.past());
        Said::Verdict { fence, generation, kind, verdict: self.result(successes) }
    }

    fn schedule(&mut self) -> Said {
        let wait_ms = match self.random.u32(0..40) {
            0 => LONGEST_MS,
            1 => LONGEST_MS + 1,
            2 => u64::MAX,
            3..6 => 0,
            _ => self.random.u64(1..60),
        };
        Said::Schedule { generation: self.past(), attempt: self.past(), wait_ms }
    }

    fn report(&mut self, who: Who, policy: &CircuitPolicy) -> Said {
        let (number, generation) = (self.count(who), self.past());
        // Where a strategy asks for many calls, it gets them.
        let times = match *policy.strategy() {
            CheckedStrategy::Consecutive { threshold } => threshold,
            CheckedStrategy::Count { minimum_calls, .. }
            | CheckedStrategy::Sampling { minimum_calls, .. } => minimum_calls,
            _ => 4,
        };
        let runs = match self.random.u32(0..400) {
            0..20 => 0,
            20 => 500,
            21 => 501,
            22 => 1_000,
            _ => self.random.usize(1..5),
        };
        let run = |random: &mut fastrand::Rng| Run {
            verdict: if random.u32(0..5) < 2 { Verdict::Failure } else { Verdict::Success },
            times: match random.u32(0..60) {
                0 => 1_000_000,
                1..4 => random.u32(1..2_000),
                4..30 => random.u32(1..=times.clamp(1, 1_000_000)),
                _ => random.u32(1..4),
            },
        };
        let runs = (0..runs).map(|_| run(&mut self.random)).collect();
        Said::Report { number, generation, batch: Batch::new(runs).unwrap_or_default() }
    }
}
