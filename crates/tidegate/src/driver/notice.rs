//! Who is told of what, when the lock is free again.

use std::time::Duration;

use tidegate_core::{Id, StoreError};

use super::Driver;
use crate::{Direction, LastCause, LeaseLost, Trouble, event::Event};

/// Something to tell, noted under the lock.
pub(super) enum Notice {
    Limit { limit: u32, direction: Direction },
    Paused(Duration),
    Resumed,
    Away(StoreError),
    Back(Duration),
    Lost(LeaseLost),
    StateLost,
    SetBack(Duration),
    DebtCut(u64),
    Refused(&'static str, StoreError),
    Undelivered(usize),
    Denied(LastCause),
    StoreError,
    Exchanged(Duration),
}

impl Driver {
    pub(super) fn tell(&self, notice: Notice) {
        let id = &self.member.id;
        match notice {
            Notice::Limit { limit, direction } => {
                tracing::debug!(%id, limit, direction = direction.as_str(), "limit");
                self.hooks.record(id, |recorder| recorder.limit(limit, direction));
                if direction != Direction::Init {
                    self.hooks.limit_changed(id, limit);
                    self.emit(Event::LimitChanged { limit });
                }
            }
            Notice::Paused(length) => {
                tracing::info!(%id, ?length, "paused");
                self.hooks.record(id, |recorder| recorder.paused());
                self.emit(Event::Paused { length });
            }
            Notice::Resumed => {
                tracing::info!(%id, "resumed");
                self.emit(Event::Resumed);
            }
            Notice::Away(source) => {
                self.emit(Event::StoreAway);
                self.hooks.report(&Trouble::StoreAway { id: id.clone(), source });
            }
            Notice::Back(away) => {
                self.emit(Event::StoreBack);
                self.hooks.report(&Trouble::StoreBack { id: id.clone(), away });
            }
            Notice::Denied(cause) => self.hooks.record(id, |recorder| recorder.denied(cause)),
            Notice::StoreError => self.hooks.record(id, |recorder| recorder.store_error()),
            Notice::Exchanged(took) => self.hooks.record(id, |recorder| recorder.exchanged(took)),
            trouble => {
                if let Some(trouble) = trouble.into_trouble(id) {
                    self.hooks.report(&trouble);
                }
            }
        }
    }

    fn emit(&self, event: Event) {
        // No one need listen.
        let _ = self.events.send(event);
    }
}

impl Notice {
    fn into_trouble(self, id: &Id) -> Option<Trouble> {
        let id = id.clone();
        Some(match self {
            Self::Lost(source) => Trouble::LeaseLost { id, source },
            Self::StateLost => Trouble::StateLost { id },
            Self::SetBack(by) => Trouble::ClockSetBack { id, by },
            Self::DebtCut(cut) => Trouble::DebtCut { id, cut },
            Self::Refused(what, source) => Trouble::Refused { id, what, source },
            Self::Undelivered(dropped) => Trouble::Undelivered { id, dropped },
            _ => return None,
        })
    }
}
