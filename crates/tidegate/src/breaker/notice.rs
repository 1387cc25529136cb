//! Who is told of what, when the lock is free again: by the task, so that all is told in its order.
//!
//! Spec: CB-6, OB-1, OB-2, BI-4.

use std::time::Duration;

use tidegate_core::{CircuitView, StoreError, circuit::Position};

use super::{CheckKind, Role, StateChange, circuit::Circuit};
use crate::{CallResult, Trouble, error::CheckError};

/// Something to tell, noted under the lock.
pub(super) enum Notice {
    /// How the circuit stood when it was first seen.
    Loaded(Position),
    Changed(CircuitView),
    Role(Role),
    Checked {
        kind: CheckKind,
        took: Duration,
        failed: Option<CheckError>,
    },
    Away(StoreError),
    Back(Duration),
    AtRisk(String),
    SetBack(Duration),
    Refused(StoreError),
    Undelivered(usize),
    StoreError,
    Exchanged(Duration),
}

impl Circuit {
    /// Tells all that was noted. Never panics, whatever the code does that is told.
    pub(super) fn tell(&self) {
        loop {
            let Some(notice) = self.lock().notices.pop_front() else { return };
            let id = &self.member.id;
            match notice {
                Notice::StoreError => self.hooks.record(id, |recorder| recorder.store_error()),
                Notice::Exchanged(took) => self.hooks.record(id, |recorder| recorder.exchanged(took)),
                Notice::Loaded(position) => {
                    self.hooks.record(id, |recorder| recorder.circuit(position, false));
                }
                change => {
                    // Subscribers of `tracing` are the user's code too.
                    self.hooks.guard(id, "tracing subscriber", || self.tell_change(change));
                }
            }
        }
    }

    fn tell_change(&self, change: Notice) {
        let id = &self.member.id;
        self.trace(&change);
        let _here = tracing::info_span!("tidegate", %id).entered();
        let report = |trouble| self.hooks.report(&trouble);
        let id = id.clone();
        match change {
            Notice::Changed(view) => {
                self.hooks.record(&id, |recorder| recorder.circuit(view.position, true));
                self.hooks.state_changed(&id, StateChange::of(&view));
            }
            Notice::Role(role) => {
                self.hooks.record(&id, |recorder| recorder.role(role));
                self.hooks.role_changed(&id, role);
            }
            Notice::Checked { kind, took, failed } => {
                let result = if failed.is_some() { CallResult::Failure } else { CallResult::Success };
                self.hooks.record(&id, |recorder| recorder.checked(kind, result, took));
                if let Some(source) = failed {
                    report(Trouble::CheckFailed { id, kind, source });
                }
            }
            Notice::Away(source) => report(Trouble::StoreAway { id, source }),
            Notice::Back(away) => report(Trouble::StoreBack { id, away }),
            Notice::AtRisk(risk) => report(Trouble::StoreAtRisk { id, risk }),
            Notice::SetBack(by) => report(Trouble::ClockSetBack { id, by }),
            Notice::Refused(source) => {
                report(Trouble::Refused { id, what: "what was said of a circuit", source })
            }
            Notice::Undelivered(dropped) => report(Trouble::Undelivered { id, dropped }),
            Notice::Loaded(_) | Notice::StoreError | Notice::Exchanged(_) => {}
        }
    }

    fn trace(&self, change: &Notice) {
        let id = &self.member.id;
        match change {
            Notice::Changed(view) => match view.position {
                Position::Open => tracing::warn!(%id, why = ?view.why, "circuit open"),
                Position::Closed => tracing::info!(%id, why = ?view.why, "circuit closed"),
            },
            Notice::Role(role) => tracing::debug!(%id, role = role.as_str(), "role"),
            Notice::Away(source) => tracing::warn!(%id, mode = "last known", %source, "the store went away"),
            Notice::Back(away) => tracing::info!(%id, mode = "shared", ?away, "the store is back"),
            _ => {}
        }
    }
}
