//! Half-open: some real calls are let through, fleet-wide.

use crate::DriverId;

/// The permit of one trial call.
///
/// Spec: CB-4.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TrialPermit {
    /// Who holds it.
    pub driver: DriverId,
    /// The number under which it was asked for.
    pub ask: u64,
    /// Names it; no other grant of this circuit has it.
    pub fence: u64,
    /// The generation under which the call is made.
    pub generation: u64,
    /// Without renewal it is free again from this moment on, in ms of the store's clock.
    pub until_ms: u64,
}

/// What came of asking for a trial call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Trial {
    /// The call may be made.
    Granted(TrialPermit),
    /// The backoff still runs; it ends after this many milliseconds, at least 1.
    TooEarly {
        /// What is left of it.
        retry_ms: u64,
    },
    /// Nobody has said yet how long the wait before this attempt is: see
    /// [`CircuitState::schedule`](super::CircuitState::schedule).
    Unscheduled {
        /// The attempt.
        attempt: u64,
    },
    /// All permits are out; the first could lapse after this many milliseconds, at least 1.
    Full {
        /// How long it still lives.
        retry_ms: u64,
    },
    /// The circuit is closed, or its recovery is another.
    NotOffered,
}

/// The trials of one attempt.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Trials {
    /// In the order in which they were granted; at most as many as the policy has.
    out: Vec<TrialPermit>,
    pub(super) succeeded: u32,
}

impl Trials {
    pub(super) fn sweep(&mut self, now_ms: u64) {
        self.out.retain(|permit| now_ms < permit.until_ms);
    }

    /// How many are out or have succeeded; [`sweep`](Self::sweep) came first.
    pub(super) fn taken(&self) -> u32 {
        u32::try_from(self.out.len()).unwrap_or(u32::MAX).saturating_add(self.succeeded)
    }

    pub(super) fn first_end_ms(&self) -> Option<u64> {
        self.out.iter().map(|permit| permit.until_ms).min()
    }

    pub(super) fn out(&self) -> &[TrialPermit] {
        &self.out
    }

    pub(super) fn grant(&mut self, permit: TrialPermit) {
        self.out.push(permit);
    }

    /// The permit that was given for this `ask`, while it is out.
    pub(super) fn asked(&self, driver: DriverId, ask: u64, now_ms: u64) -> Option<TrialPermit> {
        let mine = |permit: &&TrialPermit| (permit.driver, permit.ask) == (driver, ask);
        self.out.iter().find(|permit| mine(permit) && now_ms < permit.until_ms).copied()
    }

    pub(super) fn take(&mut self, driver: DriverId, fence: u64, now_ms: u64) -> Option<TrialPermit> {
        self.sweep(now_ms);
        let place = self.out.iter().position(|permit| (permit.driver, permit.fence) == (driver, fence))?;
        Some(self.out.remove(place))
    }

    pub(super) fn renew(&mut self, driver: DriverId, fence: u64, until_ms: u64, now_ms: u64) -> Option<u64> {
        self.sweep(now_ms);
        let permit = self.out.iter_mut().find(|permit| (permit.driver, permit.fence) == (driver, fence))?;
        permit.until_ms = permit.until_ms.max(until_ms);
        Some(permit.until_ms)
    }

    pub(super) fn shift_back(&mut self, ms: u64) {
        for permit in &mut self.out {
            permit.until_ms = permit.until_ms.saturating_sub(ms);
        }
    }
}
