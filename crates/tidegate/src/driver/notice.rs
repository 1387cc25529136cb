//! Who is told of what, when the lock is free again.
//!
//! Changes of the limit, of a pause and of the mode are events of `tracing`. What callbacks log of anything lies in a
//! span `tidegate` with the id. What happens once per call is told to recorders alone.
//!
//! Spec: OB-1, OB-2, BI-4.

use std::time::Duration;

use tidegate_core::{Id, Name, StoreError, Token};

use super::Driver;
use crate::{Direction, LastCause, LeaseLost, Trouble, event::Event};

/// Something to tell, noted under the lock.
pub(super) enum Notice {
    Limit { limit: u32, direction: Direction },
    Paused(Duration),
    Resumed,
    Away(StoreError),
    Back(Duration),
    Lost(Token),
    StateLost,
    AtRisk(String),
    SetBack(Duration),
    DebtCut(u64),
    Refused(&'static str, StoreError),
    Undelivered(usize),
    Denied(LastCause),
    Load { tier: usize, in_flight: u32, queued: u32 },
    StoreError,
    Exchanged(Duration),
}

impl Driver {
    /// Tells it. Never panics, whatever the code does that is told.
    pub(super) fn tell(&self, notice: Notice) {
        let id = &self.member.id;
        let hooks = &self.hooks;
        match notice {
            Notice::Denied(cause) => hooks.record(id, |recorder| recorder.denied(cause)),
            Notice::StoreError => hooks.record(id, |recorder| recorder.store_error()),
            Notice::Exchanged(took) => hooks.record(id, |recorder| recorder.exchanged(took)),
            Notice::Load { tier, in_flight, queued } => {
                let class = self.member.policy.class(tier).map(Name::as_str);
                hooks.record(id, |recorder| recorder.load(class, in_flight, queued));
            }
            change => {
                // Subscribers of `tracing` are the user's code too.
                hooks.guard(id, "tracing subscriber", || self.tell_change(change));
            }
        }
    }

    fn tell_change(&self, change: Notice) {
        let id = &self.member.id;
        self.trace(&change);
        let _here = tracing::info_span!("tidegate", %id).entered();
        match change {
            Notice::Limit { limit, direction } => {
                self.hooks.record(id, |recorder| recorder.limit(limit, direction));
                if direction != Direction::Init {
                    self.hooks.limit_changed(id, limit);
                    self.emit(Event::LimitChanged { limit });
                }
            }
            Notice::Paused(length) => {
                self.hooks.record(id, |recorder| recorder.paused());
                self.emit(Event::Paused { length });
            }
            Notice::Resumed => self.emit(Event::Resumed),
            Notice::Away(source) => {
                self.emit(Event::StoreAway);
                self.hooks.report(&Trouble::StoreAway { id: id.clone(), source });
            }
            Notice::Back(away) => {
                self.emit(Event::StoreBack);
                self.hooks.report(&Trouble::StoreBack { id: id.clone(), away });
            }
            trouble => {
                if let Some(trouble) = trouble.into_trouble(id) {
                    self.hooks.report(&trouble);
                }
            }
        }
    }

    fn trace(&self, change: &Notice) {
        let id = &self.member.id;
        match change {
            Notice::Limit { limit, direction } => {
                tracing::debug!(%id, limit, direction = direction.as_str(), "limit");
            }
            Notice::Paused(length) => tracing::info!(%id, ?length, "paused"),
            Notice::Resumed => tracing::info!(%id, "resumed"),
            Notice::Away(source) => {
                let mode = if self.fallback.is_some() { "local" } else { "closed" };
                tracing::warn!(%id, mode, %source, "the store went away");
            }
            Notice::Back(away) => tracing::info!(%id, mode = "shared", ?away, "the store is back"),
            _ => {}
        }
    }

    fn emit(&self, event: Event) {
        // No one need listen.
        let _ = self.events.send(event);
    }
}

impl Notice {
    fn into_trouble(self, id: &Id) -> Option<Trouble> {
        Some(match self {
            Self::Lost(token) => Trouble::LeaseLost { id: id.clone(), source: LeaseLost::new(id, token) },
            Self::StateLost => Trouble::StateLost { id: id.clone() },
            Self::AtRisk(risk) => Trouble::StoreAtRisk { id: id.clone(), risk },
            Self::SetBack(by) => Trouble::ClockSetBack { id: id.clone(), by },
            Self::DebtCut(cut) => Trouble::DebtCut { id: id.clone(), cut },
            Self::Refused(what, source) => Trouble::Refused { id: id.clone(), what, source },
            Self::Undelivered(dropped) => Trouble::Undelivered { id: id.clone(), dropped },
            _ => return None,
        })
    }
}
