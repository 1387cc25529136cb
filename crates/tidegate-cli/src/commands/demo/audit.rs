//! The proof that the limit held: a look at every grant, after the fact.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// One lease, as its holder saw it. Moments are counted from the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Held {
    /// Numbers the grants in the order in which the store made them.
    pub(super) fence: u64,
    /// The limit in force at the grant.
    pub(super) limit: u32,
    /// When the holder had the answer. The store made the grant before that.
    pub(super) granted: Duration,
    /// When the holder began to give the lease back. The store took it back after that.
    pub(super) released: Duration,
}

/// How far live leases ever exceeded the limit in force at a grant.
///
/// A lease of a smaller fence was granted before. Where its release began after the answer to this grant was
/// there, it was held for certain when the store decided. So what is counted here was really held, whatever was
/// under way, and a result above 0 is a fault of the store and not of the measurement.
pub(super) fn over_admission(leases: &[Held]) -> u32 {
    let mut in_order = leases.to_vec();
    in_order.sort_by_key(|lease| (lease.fence, lease.granted));
    let mut ends: Vec<_> = leases.iter().map(|lease| lease.released).collect();
    ends.sort_unstable();

    let mut seen = Tally::new(ends.len());
    let mut most = 0;
    for (before, lease) in in_order.iter().enumerate() {
        let ended = seen.up_to(ends.partition_point(|&end| end <= lease.granted));
        let live = before - ended + 1;
        let limit = usize::try_from(lease.limit).unwrap_or(usize::MAX);
        most = most.max(live.saturating_sub(limit));
        seen.add(ends.partition_point(|&end| end < lease.released));
    }
    u32::try_from(most).unwrap_or(u32::MAX)
}

/// Counts by place, with sums over the places before one in logarithmic time (a Fenwick tree).
struct Tally(Vec<usize>);

impl Tally {
    fn new(places: usize) -> Self {
        Self(vec![0; places + 1])
    }

    /// One more at `place`, counted from 0.
    fn add(&mut self, place: usize) {
        let mut node = place + 1;
        while let Some(count) = self.0.get_mut(node) {
            *count += 1;
            node += node & node.wrapping_neg();
        }
    }

    /// The sum over the first `places` places.
    fn up_to(&self, places: usize) -> usize {
        let mut sum = 0;
        let mut node = places;
        while node > 0 {
            sum += self.0[node];
            node &= node - 1;
        }
        sum
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(fence: u64, limit: u32, granted: u64, released: u64) -> Held {
        let (granted, released) = (Duration::from_millis(granted), Duration::from_millis(released));
        Held { fence, limit, granted, released }
    }

    /// The definition, word for word.
    fn naive(leases: &[Held]) -> u32 {
        let excess = |g: &Held| {
            let before = leases.iter().filter(|h| h.fence < g.fence && h.released > g.granted).count();
            u32::try_from(before + 1).unwrap().saturating_sub(g.limit)
        };
        leases.iter().map(excess).max().unwrap_or(0)
    }

    #[test]
    fn nothing_held_is_nothing_exceeded() {
        assert_eq!(over_admission(&[]), 0);
    }

    #[test]
    fn a_full_limit_is_not_exceeded() {
        let leases = [held(1, 2, 0, 10), held(2, 2, 1, 20), held(3, 2, 11, 30)];
        assert_eq!(over_admission(&leases), 0);
    }

    #[test]
    fn one_too_many_is_seen() {
        let leases = [held(1, 2, 0, 10), held(2, 2, 1, 20), held(3, 2, 9, 30)];
        assert_eq!(over_admission(&leases), 1);
    }

    #[test]
    fn a_release_under_way_counts_for_the_store() {
        // The third grant may have been decided after the first release, since its answer came after that.
        let leases = [held(1, 2, 0, 10), held(2, 2, 1, 20), held(3, 2, 10, 30)];
        assert_eq!(over_admission(&leases), 0);
    }

    #[test]
    fn the_order_is_the_stores_and_not_that_of_the_answers() {
        // The answer to the first grant was seen last; it was granted into an empty store all the same.
        let late = [held(1, 1, 5, 10), held(2, 1, 11, 20)];
        assert_eq!(over_admission(&late), 0);
        let both = [held(2, 1, 4, 20), held(1, 1, 5, 10)];
        assert_eq!(over_admission(&both), 1);
    }

    #[test]
    fn a_lower_limit_is_exceeded_only_by_a_new_grant() {
        // Holders from before a decrease are no excess; a grant above the new limit is.
        let holders = [held(1, 4, 0, 100), held(2, 4, 0, 100), held(3, 4, 0, 100), held(4, 4, 0, 100)];
        assert_eq!(over_admission(&holders), 0);
        let one_more: Vec<_> = holders.into_iter().chain([held(5, 2, 50, 60)]).collect();
        assert_eq!(over_admission(&one_more), 3);
    }

    #[test]
    fn it_is_the_definition_in_less_time() {
        let mut random = fastrand::Rng::with_seed(7);
        for round in 0..500 {
            let leases: Vec<_> = (0..random.u64(0..40))
                .map(|fence| {
                    let granted = random.u64(0..60);
                    held(fence, random.u32(1..8), granted, granted + random.u64(0..30))
                })
                .collect();
            assert_eq!(over_admission(&leases), naive(&leases), "round {round}: {leases:?}");
        }
    }

    #[test]
    fn a_long_run_takes_no_time() {
        let leases: Vec<_> = (0..200_000).map(|n| held(n + 1, 10, n, n + 10)).collect();
        assert_eq!(over_admission(&leases), 0);
    }
}
