//! Additive increase, multiplicative decrease: up by a step, down by a factor.
//!
//! Two parties that steer this way end with equal shares (Chiu and Jain, 1989), and one is held in a sawtooth under
//! the ceiling.

use super::LimitPolicy;

/// The limit after a clean window: one step more, within the maximum.
///
/// Spec: AS-2.
pub(super) fn increased(policy: &LimitPolicy, value: u32) -> u32 {
    value.saturating_add(policy.increase_step).min(policy.max)
}

/// The limit after a throttle: `max(min, floor(value × factor))`.
///
/// Spec: AS-1.
pub(super) fn decreased(policy: &LimitPolicy, value: u32) -> u32 {
    policy.decrease_factor.floor_of(value).max(policy.min)
}
