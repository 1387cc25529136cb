//! The metrics of a circuit breaker.

use std::time::Duration;

use metrics::{Counter, Gauge, Histogram};
use tidegate_core::{Id, circuit::Position};

use super::{CallResult, Kind, Metrics, Names, Recorder};
use crate::{CheckKind, Role};

/// The handles of one breaker.
pub(crate) struct CircuitFacade {
    calls: [Histogram; 2],
    blocked: Counter,
    /// By the kind of check, then by its result.
    check_times: [[Histogram; 2]; 2],
    checks: [[Counter; 2]; 2],
    changes: [Counter; 2],
    open: Gauge,
    leader: Gauge,
    store_errors: Counter,
    round_trip: Histogram,
}

const HELP: [(Kind, &str, &str); 9] = [
    (Kind::Seconds, "call_duration_seconds", "How long a call took, without its wait for a permit"),
    (Kind::Counter, "blocked_total", "Calls that an open circuit blocked"),
    (Kind::Seconds, "health_check_seconds", "How long a health check of this process took"),
    (Kind::Counter, "health_checks_total", "Health checks of this process"),
    (Kind::Counter, "circuit_changes_total", "Changes of the circuit that this process saw"),
    (Kind::Gauge, "circuit_open", "1 while the circuit is open, as this process knows it"),
    (Kind::Gauge, "circuit_leader", "1 while this process leads"),
    (Kind::Counter, "store_errors_total", "Operations of the store that failed"),
    (Kind::Seconds, "store_round_trip_seconds", "How long an exchange with the store took"),
];

impl CircuitFacade {
    /// Registers everything, counters at 0.
    pub(crate) fn new(metrics: &Metrics, id: &Id) -> Self {
        let names = Names { metrics, id };
        names.describe(&HELP);
        let labels =
            |kind: CheckKind, result: CallResult| [("type", kind.as_str()), ("result", result.as_str())];
        let zero = |name: &str| {
            let gauge = names.gauge(name, &[]);
            gauge.set(0.0);
            gauge
        };
        Self {
            calls: CallResult::ALL
                .map(|result| names.histogram("call_duration_seconds", &[("result", result.as_str())])),
            blocked: names.counter("blocked_total", &[]),
            check_times: CheckKind::ALL.map(|kind| {
                CallResult::ALL.map(|result| names.histogram("health_check_seconds", &labels(kind, result)))
            }),
            checks: CheckKind::ALL.map(|kind| {
                CallResult::ALL.map(|result| names.counter("health_checks_total", &labels(kind, result)))
            }),
            changes: ["closed", "open"].map(|to| names.counter("circuit_changes_total", &[("type", to)])),
            open: zero("circuit_open"),
            leader: zero("circuit_leader"),
            store_errors: names.counter("store_errors_total", &[]),
            round_trip: names.histogram("store_round_trip_seconds", &[]),
        }
    }
}

impl Recorder for CircuitFacade {
    fn called(&self, result: CallResult, took: Duration) {
        self.calls[result as usize].record(took);
    }

    fn blocked(&self) {
        self.blocked.increment(1);
    }

    fn checked(&self, kind: CheckKind, result: CallResult, took: Duration) {
        self.check_times[kind as usize][result as usize].record(took);
        self.checks[kind as usize][result as usize].increment(1);
    }

    fn circuit(&self, position: Position, changed: bool) {
        self.open.set(f64::from(u8::from(position == Position::Open)));
        if changed {
            self.changes[position as usize].increment(1);
        }
    }

    fn role(&self, role: Role) {
        self.leader.set(f64::from(u8::from(role == Role::Leader)));
    }

    fn exchanged(&self, took: Duration) {
        self.round_trip.record(took);
    }

    fn store_error(&self) {
        self.store_errors.increment(1);
    }
}
