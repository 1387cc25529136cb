//! When the circuit of the fleet was open, as its processes saw it.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::fleet::Call;

/// A time in which the provider fails every call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Outage {
    pub(super) at: Duration,
    pub(super) lasts: Duration,
}

impl Outage {
    /// Whether it is on at a moment.
    pub(super) fn is_on(&self, moment: Duration) -> bool {
        moment >= self.at && moment < self.at.saturating_add(self.lasts)
    }
}

/// A process saw the circuit change. Moments are counted from the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Turn {
    pub(super) open: bool,
    /// Which change it is: the same in all processes.
    pub(super) generation: u64,
    /// When the store decided it. Processes put the start at moments that lie a little apart, and so this, too.
    pub(super) decided: Duration,
    /// When this process knew.
    pub(super) seen: Duration,
}

/// One opening of the circuit, up to its closing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Opening {
    pub(super) from: Duration,
    /// When the last process knew.
    pub(super) everywhere: Duration,
    /// None where it was still open at the end.
    pub(super) to: Option<Duration>,
}

/// The openings of a run, in their order.
pub(super) fn openings(turns: &[Turn]) -> Vec<Opening> {
    let mut turns = turns.to_vec();
    turns.sort_by_key(|turn| (turn.generation, turn.seen));
    let mut openings: Vec<(u64, Opening)> = Vec::new();
    for turn in turns {
        match openings.last_mut() {
            Some((generation, last)) if turn.open && *generation == turn.generation => {
                last.from = last.from.min(turn.decided);
                last.everywhere = last.everywhere.max(turn.seen);
            }
            Some((_, last)) if !turn.open => last.to = last.to.or(Some(turn.decided)),
            _ if turn.open => {
                let opening = Opening { from: turn.decided, everywhere: turn.seen, to: None };
                openings.push((turn.generation, opening));
            }
            _ => {}
        }
    }
    openings.into_iter().map(|(_, opening)| opening).collect()
}

/// What the circuit came to: the part of `--json` that `--breaker` adds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Outcome {
    pub(super) blocked: u64,
    pub(super) opened_at_s: Option<f64>,
    pub(super) closed_at_s: Option<f64>,
    pub(super) calls_while_open: usize,
    pub(super) open_reached_all_ms: Option<f64>,
}

impl Outcome {
    pub(super) fn new(blocked: u64, turns: &[Turn], calls: &[Call]) -> Self {
        let openings = openings(turns);
        let seconds = |moment: Duration| (moment.as_secs_f64() * 1e3).round() / 1e3;
        let began_within = |opening: &Opening| {
            let to = opening.to.unwrap_or(Duration::MAX);
            let began = calls.iter().filter_map(|call| call.lease).map(|lease| lease.granted);
            began.filter(|began| *began > opening.everywhere && *began < to).count()
        };
        let reached = openings.iter().map(|opening| opening.everywhere.saturating_sub(opening.from));
        Self {
            blocked,
            opened_at_s: openings.first().map(|opening| seconds(opening.from)),
            closed_at_s: openings.last().and_then(|opening| opening.to).map(seconds),
            calls_while_open: openings.iter().map(began_within).sum(),
            open_reached_all_ms: reached.max().map(|took| (took.as_secs_f64() * 1e4).round() / 10.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{audit::Held, fleet::Answer};
    use super::*;

    fn ms(millis: u64) -> Duration {
        Duration::from_millis(millis)
    }

    fn turn(open: bool, decided: u64, seen: u64) -> Turn {
        Turn { open, generation: decided, decided: ms(decided), seen: ms(seen) }
    }

    #[test]
    fn processes_whose_starts_lie_a_little_apart_saw_the_same_opening() {
        let apart = |turn: Turn, by: u64| Turn { decided: turn.decided + Duration::from_micros(by), ..turn };
        let turns = [
            turn(true, 8_000, 8_004),
            apart(turn(true, 8_000, 8_002), 3),
            apart(turn(false, 9_000, 9_001), 2),
            turn(false, 9_000, 9_003),
        ];
        let openings = openings(&turns);
        assert_eq!(openings.len(), 1);
        assert_eq!((openings[0].from, openings[0].everywhere), (ms(8_000), ms(8_004)));
        assert_eq!(Outcome::new(0, &turns, &[call(9_500)]).calls_while_open, 0);
    }

    fn call(granted: u64) -> Call {
        let lease = Held { fence: granted, limit: 9, granted: ms(granted), released: ms(granted + 10) };
        Call { waited: ms(0), lease: Some(lease), answered: ms(granted + 10), answer: Answer::Ok }
    }

    #[test]
    fn an_opening_is_everywhere_when_the_last_process_knows() {
        let turns = [
            turn(true, 8_000, 8_004),
            turn(false, 12_000, 12_001),
            turn(true, 8_000, 8_002),
            turn(false, 12_000, 12_003),
        ];
        let opening = Opening { from: ms(8_000), everywhere: ms(8_004), to: Some(ms(12_000)) };
        assert_eq!(openings(&turns), [opening]);
        let calls = [call(8_003), call(8_004), call(8_005), call(11_999), call(12_000), call(12_001)];
        let outcome = Outcome::new(7, &turns, &calls);
        assert_eq!(
            outcome,
            Outcome {
                blocked: 7,
                opened_at_s: Some(8.0),
                closed_at_s: Some(12.0),
                calls_while_open: 2,
                open_reached_all_ms: Some(4.0),
            }
        );
    }

    #[test]
    fn one_that_is_open_at_the_end_has_no_closing() {
        let turns = [turn(true, 1_000, 1_001), turn(false, 2_000, 2_000), turn(true, 3_000, 3_009)];
        let outcome = Outcome::new(1, &turns, &[call(4_000)]);
        assert_eq!((outcome.opened_at_s, outcome.closed_at_s), (Some(1.0), None));
        assert_eq!((outcome.calls_while_open, outcome.open_reached_all_ms), (1, Some(9.0)));
        let never = Outcome::new(0, &[], &[call(4_000)]);
        assert_eq!((never.opened_at_s, never.open_reached_all_ms, never.calls_while_open), (None, None, 0));
    }

    #[test]
    fn an_outage_is_on_for_as_long_as_it_lasts() {
        let outage = Outage { at: ms(100), lasts: ms(50) };
        assert!(
            !outage.is_on(ms(99)) && outage.is_on(ms(100)) && outage.is_on(ms(149)) && !outage.is_on(ms(150))
        );
    }
}
