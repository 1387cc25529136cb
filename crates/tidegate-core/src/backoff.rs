//! How long to wait before the next attempt.

use std::time::Duration;

/// A schedule of attempts whose waits double up to a most.
///
/// # Examples
/// ```
/// use std::time::Duration;
/// use tidegate_core::backoff::Doubling;
///
/// let probes = Doubling::new(Duration::from_millis(100), Duration::from_secs(2));
/// assert_eq!(probes.wait(0), Duration::from_millis(100));
/// assert_eq!(probes.wait(3), Duration::from_millis(800));
/// assert_eq!(probes.wait(u64::MAX), Duration::from_secs(2));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Doubling {
    first: Duration,
    most: Duration,
}

impl Doubling {
    /// Waits `first` before the first attempt, twice as long before each later one, and never longer than `most`. A
    /// first wait of zero stays zero.
    pub const fn new(first: Duration, most: Duration) -> Self {
        Self { first, most }
    }

    /// The wait before attempt `attempt`, counted from 0.
    pub fn wait(&self, attempt: u64) -> Duration {
        if self.first.is_zero() {
            return Duration::ZERO;
        }
        let doublings = u32::try_from(attempt).unwrap_or(u32::MAX);
        let wait = 2_u32.checked_pow(doublings).and_then(|times| self.first.checked_mul(times));
        wait.unwrap_or(self.most).min(self.most)
    }

    /// The wait before an attempt, spread between its half and the whole, so that processes that failed together do not
    /// come back together. `part` says where: 0 is the half, `u32::MAX` the whole.
    pub fn spread(&self, attempt: u64, part: u32) -> Duration {
        let wait = self.wait(attempt);
        let half = wait / 2;
        // At most the other half, and a half of any wait times 2^32 fits 128 bits.
        let nanos = (wait - half).as_nanos() * u128::from(part) / u128::from(u32::MAX);
        half + Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).min(wait - half)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every attempt up to a hundred, then in longer and longer strides to ten million, then the last there is.
    fn attempts() -> impl Iterator<Item = u64> {
        (0..100).chain((100..10_000_000).step_by(997)).chain([10_000_000, u64::MAX])
    }

    #[test]
    fn case_24_a_wait_of_nothing_stays_nothing() {
        let none = Doubling::new(Duration::ZERO, Duration::from_secs(2));
        assert!(attempts().all(|attempt| none.wait(attempt).is_zero() && none.spread(attempt, 7).is_zero()));
    }

    #[test]
    fn case_24_waits_grow_stay_finite_and_within_their_most() {
        let most_of = [Duration::from_secs(2), Duration::from_nanos(1), Duration::MAX];
        for (first, most) in
            [Duration::from_millis(100), Duration::from_nanos(1), Duration::from_secs(86_400)]
                .into_iter()
                .flat_map(|first| most_of.map(|most| (first, most)))
        {
            let backoff = Doubling::new(first, most);
            let mut before = Duration::ZERO;
            for attempt in attempts() {
                let wait = backoff.wait(attempt);
                assert!(
                    before <= wait && wait <= most,
                    "{first:?} to {most:?}: attempt {attempt} waits {wait:?}"
                );
                before = wait;
            }
            assert_eq!(backoff.wait(0), first.min(most));
            assert_eq!(before, most);
        }
    }

    #[test]
    fn case_24_a_spread_lies_between_the_half_and_the_whole() {
        let backoff = Doubling::new(Duration::from_millis(100), Duration::from_secs(2));
        for attempt in attempts() {
            let wait = backoff.wait(attempt);
            for part in [0, 1, u32::MAX / 3, u32::MAX - 1, u32::MAX] {
                let spread = backoff.spread(attempt, part);
                assert!(wait / 2 <= spread && spread <= wait, "attempt {attempt}, part {part}: {spread:?}");
            }
            assert_eq!((backoff.spread(attempt, 0), backoff.spread(attempt, u32::MAX)), (wait / 2, wait));
        }
    }
}
