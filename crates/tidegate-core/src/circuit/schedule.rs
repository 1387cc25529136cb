//! The schedule of a circuit's attempts to recover: how long to wait before each.

use std::time::Duration;

use crate::{
    Invalid,
    time::{LONGEST, ceil_millis},
};

const MILLION: u64 = 1_000_000;

/// The largest factor by which a wait grows.
const MOST_MULTIPLIER: f64 = 1_000.0;

/// How long to wait before each attempt to recover, as a person writes it; checked with the policy.
///
/// Spec: CB-3, CB-12.
#[derive(Clone, Copy, PartialEq, Debug)]
#[non_exhaustive]
pub enum Backoff {
    /// Always as long: 0 to 366 days.
    Constant(Duration),
    /// Longer each time.
    Exponential {
        /// The wait before attempt 1: 0 to 366 days. Nothing stays nothing.
        initial: Duration,
        /// What each wait is multiplied by for the next: 1 to 1,000, in parts per million.
        multiplier: f64,
        /// No wait is longer; 366 days unless told.
        max: Option<Duration>,
    },
    /// One's own: a process says for each attempt how long the wait is.
    Custom,
}

/// A backoff that has been checked.
///
/// Each wait of an exponential one is the wait before it times the multiplier, rounded up to a whole millisecond: so it
/// grows wherever the multiplier is above 1, and is the same in every language.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate_core::circuit::{Backoff, CheckedBackoff};
///
/// let (initial, max) = (Duration::from_millis(100), Some(Duration::from_secs(2)));
/// let backoff = CheckedBackoff::check(&Backoff::Exponential { initial, multiplier: 1.5, max })?;
/// assert_eq!([1, 2, 3, 100].map(|attempt| backoff.wait_ms(attempt)), [Some(100), Some(150), Some(225), Some(2_000)]);
/// # Ok::<(), tidegate_core::Invalid>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CheckedBackoff {
    /// Always this many milliseconds.
    Constant(u64),
    /// Longer each time.
    Exponential {
        /// The wait before attempt 1, in milliseconds; at most `max_ms`.
        initial_ms: u64,
        /// The multiplier in parts per million: 1,000,000 to 1,000,000,000.
        multiplier_ppm: u32,
        /// No wait is longer, in milliseconds.
        max_ms: u64,
    },
    /// One's own.
    Custom,
}

impl CheckedBackoff {
    /// Checks a backoff; parts of a millisecond count as a whole one. An initial wait above the most is cut to it.
    ///
    /// # Errors
    /// [`Invalid`] that names the first option out of its bounds.
    pub fn check(backoff: &Backoff) -> Result<Self, Invalid> {
        Ok(match *backoff {
            Backoff::Constant(wait) => Self::Constant(wait_ms("backoff", wait)?),
            Backoff::Exponential { initial, multiplier, max } => {
                let max_ms = wait_ms("backoff.max", max.unwrap_or(LONGEST))?;
                if !(1.0..=MOST_MULTIPLIER).contains(&multiplier) {
                    return Err(Invalid::new("backoff.multiplier", multiplier, "a number from 1 to 1000"));
                }
                // 10^6 to 10^9 by the check above.
                #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
                let multiplier_ppm = (multiplier * 1_000_000.0).round() as u32;
                let initial_ms = wait_ms("backoff.initial", initial)?.min(max_ms);
                Self::Exponential { initial_ms, multiplier_ppm, max_ms }
            }
            Backoff::Custom => Self::Custom,
        })
    }

    /// The wait before attempt 1, in milliseconds; none where a process has to say it.
    pub const fn first_ms(&self) -> Option<u64> {
        match *self {
            Self::Constant(wait_ms) => Some(wait_ms),
            Self::Exponential { initial_ms, .. } => Some(initial_ms),
            Self::Custom => None,
        }
    }

    /// The wait that follows a wait of `wait_ms`; none where a process has to say it.
    pub fn after_ms(&self, wait_ms: u64) -> Option<u64> {
        match *self {
            Self::Constant(wait_ms) => Some(wait_ms),
            Self::Exponential { multiplier_ppm, max_ms, .. } => {
                let (wait_ms, multiplier_ppm) = (wait_ms.min(max_ms), u64::from(multiplier_ppm));
                // In two parts, so that neither product passes 2^53: 31,623 × 10^9 and 10^6 × 10^9.
                let (millions, rest) = (wait_ms / MILLION, wait_ms % MILLION);
                let longer = millions * multiplier_ppm + (rest * multiplier_ppm).div_ceil(MILLION);
                Some(longer.min(max_ms))
            }
            Self::Custom => None,
        }
    }

    /// The wait before an attempt, counted from 1, in milliseconds; none where a process has to say it. It goes through
    /// the attempts until waits grow no more; a store keeps the last wait instead, and asks for the next.
    pub fn wait_ms(&self, attempt: u64) -> Option<u64> {
        let mut wait_ms = self.first_ms()?;
        for _ in 1..attempt {
            let next_ms = self.after_ms(wait_ms)?;
            if next_ms == wait_ms {
                break;
            }
            wait_ms = next_ms;
        }
        Some(wait_ms)
    }
}

fn wait_ms(option: &str, wait: Duration) -> Result<u64, Invalid> {
    if wait > LONGEST {
        return Err(Invalid::new(option, wait, "0 to 366 days"));
    }
    Ok(ceil_millis(wait))
}
