//! Doubling until the first throttle, then additive: what TCP does with a connection that it knows nothing of
//! (RFC 5681).

use super::{LimitPolicy, aimd};

/// Where a slow start stands.
///
/// Spec: AS-13.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SlowStart {
    /// Doubles per clean window.
    Doubling {
        /// The limit before the last doubling; 0 where there was none.
        before: u32,
    },
    /// Ended by a throttle, or by a limit that was set.
    Over,
}

impl SlowStart {
    pub(super) const fn new() -> Self {
        Self::Doubling { before: 0 }
    }

    /// The limit after a clean window. At the maximum nothing doubles, and what was before stays.
    pub(super) fn clean(&mut self, policy: &LimitPolicy, value: u32) -> u32 {
        match self {
            Self::Doubling { before } => {
                let next = value.saturating_mul(2).min(policy.max);
                if next > value {
                    *before = value;
                }
                next
            }
            Self::Over => aimd::increased(policy, value),
        }
    }

    /// The limit after a throttle. The first one returns it to what it was before the last doubling; where there was
    /// none, or where new bounds have since put the limit below that, it falls by the factor.
    pub(super) fn throttled(&mut self, policy: &LimitPolicy, value: u32) -> u32 {
        match std::mem::replace(self, Self::Over) {
            Self::Doubling { before } if 0 < before && before < value => before.max(policy.min),
            _ => aimd::decreased(policy, value),
        }
    }
}
