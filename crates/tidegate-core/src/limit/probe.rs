//! Back quickly to just under what last worked, a rest there, then a search that starts small and doubles: the curve
//! of CUBIC (RFC 9438) in whole windows.
//!
//! A sawtooth spends most of its time far below the ceiling, and a throttle at every tooth. A limit that remembers
//! what worked spends it just below, and asks for more once in a while.

use super::{LimitPolicy, slow_start::SlowStart};

/// Clean windows that lift the limit after a decrease.
const LIFTS: u32 = 2;
/// Clean windows after which it has rested as well, for 24 of them.
const RESTED: u32 = LIFTS + 24;
/// The search doubles its step this often, which is past the highest limit.
const DOUBLINGS: u32 = 20;

/// Where a probe stands.
///
/// Spec: AS-13.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Probe {
    start: SlowStart,
    /// The highest limit that lasted a whole clean window since the last decrease; 0 for none.
    good: u32,
    /// Where the limit returns to after the last decrease.
    top: u32,
    /// Clean windows since the last decrease, the slow start's not counted.
    windows: u32,
}

impl Probe {
    pub(super) const fn new() -> Self {
        Self { start: SlowStart::new(), good: 0, top: 0, windows: 0 }
    }

    /// A limit that is known: the rest begins.
    pub(super) const fn settled() -> Self {
        Self { start: SlowStart::Over, good: 0, top: 0, windows: LIFTS }
    }

    /// The limit after a clean window; never less than before, also where a mild factor left it above `top`.
    pub(super) fn clean(&mut self, policy: &LimitPolicy, value: u32) -> u32 {
        self.good = self.good.max(value);
        if self.start != SlowStart::Over {
            return self.start.clean(policy, value);
        }
        let next = match self.windows {
            0 => self.top - self.top.saturating_sub(value) / 8,
            1 => self.top,
            LIFTS..RESTED => value,
            n => value.saturating_add(value.min(1 << (n - RESTED).min(DOUBLINGS))),
        };
        self.windows = (self.windows + 1).min(RESTED + DOUBLINGS);
        next.max(value).min(policy.max)
    }

    /// The limit after a throttle, and the way back: to what was good, if that was lower, else to one less than what
    /// was throttled.
    pub(super) fn throttled(&mut self, policy: &LimitPolicy, value: u32) -> u32 {
        let next = self.start.throttled(policy, value);
        if next < value {
            let top = if 0 < self.good && self.good < value { self.good } else { value - 1 };
            *self = Self { start: SlowStart::Over, good: 0, top, windows: 0 };
        }
        next
    }
}
