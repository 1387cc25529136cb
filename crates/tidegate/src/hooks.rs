//! The user's own code: where it is kept, and how it is called.
//!
//! It runs outside every lock; a panic in it is caught, reported and changes nothing else. Subscribers of `tracing` count
//! as such code.
//!
//! Spec: BI-4.

use std::{
    any::Any,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

use tidegate_core::Id;

use crate::{Role, StateChange, Trouble, telemetry::Recorder};

pub(crate) type OnError = Arc<dyn Fn(&Trouble) + Send + Sync>;
pub(crate) type OnLimitChange = Arc<dyn Fn(u32) + Send + Sync>;
pub(crate) type OnStateChange = Arc<dyn Fn(StateChange) + Send + Sync>;
pub(crate) type OnRoleChange = Arc<dyn Fn(Role) + Send + Sync>;

/// What a primitive was given to call.
#[derive(Clone, Default)]
pub(crate) struct Hooks {
    pub(crate) on_error: Option<OnError>,
    pub(crate) on_limit_change: Option<OnLimitChange>,
    pub(crate) on_state_change: Option<OnStateChange>,
    pub(crate) on_role_change: Option<OnRoleChange>,
    pub(crate) recorders: Vec<Arc<dyn Recorder>>,
}

impl Hooks {
    /// Reports trouble: to `on_error`, or to `tracing` where there is none. Never panics.
    pub(crate) fn report(&self, trouble: &Trouble) {
        match &self.on_error {
            Some(on_error) => {
                if let Err(panic) = caught(|| on_error(trouble)) {
                    // A subscriber that panics as well has had its chance.
                    let _ = caught(|| {
                        tracing::error!(code = "panicked", place = "on_error", panic, "{trouble}");
                    });
                }
            }
            // A change of mode is an event by itself.
            None if matches!(trouble, Trouble::StoreAway { .. } | Trouble::StoreBack { .. }) => {}
            None => {
                let source = std::error::Error::source(trouble).map(tracing::field::display);
                let _ = caught(|| tracing::warn!(code = trouble.code(), source, "{trouble}"));
            }
        }
    }

    pub(crate) fn limit_changed(&self, id: &Id, limit: u32) {
        if let Some(on_limit_change) = &self.on_limit_change {
            self.guard(id, "on_limit_change", || on_limit_change(limit));
        }
    }

    pub(crate) fn state_changed(&self, id: &Id, change: StateChange) {
        if let Some(on_state_change) = &self.on_state_change {
            self.guard(id, "on_state_change", || on_state_change(change));
        }
    }

    pub(crate) fn role_changed(&self, id: &Id, role: Role) {
        if let Some(on_role_change) = &self.on_role_change {
            self.guard(id, "on_role_change", || on_role_change(role));
        }
    }

    /// Tells the recorders.
    pub(crate) fn record(&self, id: &Id, record: impl Fn(&dyn Recorder)) {
        for recorder in &self.recorders {
            self.guard(id, "recorder", || record(&**recorder));
        }
    }

    pub(crate) const fn records(&self) -> bool {
        !self.recorders.is_empty()
    }

    /// Runs user code; none where it panicked, which is reported.
    pub(crate) fn guard<T>(&self, id: &Id, place: &'static str, code: impl FnOnce() -> T) -> Option<T> {
        match caught(code) {
            Ok(value) => Some(value),
            Err(message) => {
                self.report(&Trouble::Panicked { id: id.clone(), place, message });
                None
            }
        }
    }
}

/// Runs code; what it said where it panicked.
fn caught<T>(code: impl FnOnce() -> T) -> Result<T, String> {
    // What the code left half done is its own; nothing of ours is borrowed by it.
    catch_unwind(AssertUnwindSafe(code)).map_err(|panic| {
        let message = said(&*panic).to_owned();
        // What was thrown can be anything, and panic in turn when it is dropped.
        if let Err(again) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
            std::mem::forget(again);
        }
        message
    })
}

/// What a panic said.
pub(crate) fn said(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
