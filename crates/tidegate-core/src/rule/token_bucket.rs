//! The token bucket: fills at a steady rate, and a job takes its cost out.
//!
//! The rate is n tokens every d milliseconds, in lowest terms. What has come of the next token is a whole number of
//! parts of 1/d, of which n come each millisecond, so nothing is ever rounded and nothing drifts. A rule is only built
//! where `(n + 1) × d` and the longest time to fill are below 2^53 (Spec: RU-3).

use super::{CheckedRule, Counts};

/// A bucket that holds `burst − missing + fraction / d` tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TokenBucket {
    /// The whole tokens that a full bucket has and this one has not; more than the burst is debt.
    missing: u64,
    /// What has come of the next token, in parts of 1/d: below d, and 0 when the bucket is full.
    fraction: u64,
    /// The moment up to which tokens have come in.
    at_ms: u64,
}

impl TokenBucket {
    pub(super) const fn full(at_ms: u64) -> Self {
        Self { missing: 0, fraction: 0, at_ms }
    }

    /// The time until `tokens` more have come: `⌈(tokens × d − fraction) / n⌉`, with the turns of d taken out first, in
    /// each of which n tokens come.
    fn comes_in(&self, rule: &CheckedRule, tokens: u64) -> u64 {
        let (n, d) = rule.rate();
        let (turns, rest) = (tokens / n, tokens % n);
        let whole = turns.saturating_mul(d);
        match rest {
            // The fraction is less than d, so this is above 0 where there is a turn.
            0 => whole.saturating_sub(self.fraction / n),
            _ => whole.saturating_add(rest.saturating_mul(d).saturating_sub(self.fraction).div_ceil(n)),
        }
    }
}

impl Counts for TokenBucket {
    fn advance(&mut self, rule: &CheckedRule, now_ms: u64) {
        if now_ms <= self.at_ms {
            return;
        }
        let (n, d) = rule.rate();
        let elapsed = now_ms - self.at_ms;
        let (turns, rest) = (elapsed / d, elapsed % d);
        // So many turns fill it for certain; with fewer, `turns × n` is at most what is missing.
        if self.missing == 0 || turns > self.missing / n {
            *self = Self::full(now_ms);
            return;
        }
        let parts = self.fraction.saturating_add(rest.saturating_mul(n));
        let tokens = turns.saturating_mul(n).saturating_add(parts / d);
        *self = match self.missing.saturating_sub(tokens) {
            0 => Self::full(now_ms),
            missing => Self { missing, fraction: parts % d, at_ms: now_ms },
        };
    }

    fn used(&self) -> u64 {
        self.missing
    }

    fn rests(&self) -> bool {
        self.missing == 0
    }

    fn frees_in(&self, rule: &CheckedRule, _now_ms: u64, amount: u64) -> u64 {
        self.comes_in(rule, amount)
    }

    fn add(&mut self, _rule: &CheckedRule, _now_ms: u64, amount: u64) {
        self.missing = self.missing.saturating_add(amount);
    }

    fn lower(&mut self, rule: &CheckedRule, now_ms: u64, amount: u64) {
        self.add(rule, now_ms, amount);
        self.fraction = 0;
    }

    fn give_back(&mut self, _granted_ms: u64, amount: u64) {
        self.missing = self.missing.saturating_sub(amount);
        if self.missing == 0 {
            self.fraction = 0;
        }
    }

    fn rests_at(&self, rule: &CheckedRule) -> u64 {
        self.at_ms.saturating_add(self.comes_in(rule, self.missing))
    }

    fn shift_back(&mut self, ms: u64) {
        self.at_ms = self.at_ms.saturating_sub(ms);
    }

    fn carry(&mut self, from: &CheckedRule, to: &CheckedRule) {
        // The level stays: the old burst less what was missing is the new burst less what will be.
        let missing = self.missing.saturating_add(to.burst()).saturating_sub(from.burst());
        self.missing = missing.min(to.most_used());
        // Parts of another 1/d are given up, which is less than a token.
        if self.missing == 0 || from.rate().1 != to.rate().1 {
            self.fraction = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Rule;
    use super::*;

    fn rule(limit: u64, interval_ms: u64, burst: u64) -> CheckedRule {
        Rule::token_bucket(limit, Duration::from_millis(interval_ms)).burst(burst).check().unwrap()
    }

    #[test]
    fn ru_5_token_bucket_fills_without_rounding() {
        let rule = rule(3, 1_000, 3);
        let mut bucket = TokenBucket { missing: 3, fraction: 0, at_ms: 0 };
        for now_ms in 1..=333 {
            bucket.advance(&rule, now_ms);
        }
        assert_eq!(bucket, TokenBucket { missing: 3, fraction: 999, at_ms: 333 });
        bucket.advance(&rule, 334);
        assert_eq!(bucket, TokenBucket { missing: 2, fraction: 2, at_ms: 334 });
        bucket.advance(&rule, 1_000);
        assert_eq!(bucket, TokenBucket::full(1_000));
    }

    #[test]
    fn ru_5_token_bucket_that_was_left_alone_for_ages_is_full() {
        let rule = rule(1_000_000_000_000, 1, 1_000_000_000_000);
        let mut bucket = TokenBucket { missing: 11_000_000_000_000, fraction: 0, at_ms: 0 };
        bucket.advance(&rule, u64::MAX);
        assert_eq!(bucket, TokenBucket::full(u64::MAX));
    }

    #[test]
    fn st_6_a_fraction_makes_the_hint_of_a_token_bucket_shorter() {
        // 7 tokens every 10 ms; after 1 ms, 7 parts of 10 are there.
        let rule = rule(7, 10, 20);
        let bucket = TokenBucket { missing: 20, fraction: 7, at_ms: 1 };
        assert_eq!(bucket.comes_in(&rule, 1), 1);
        assert_eq!(bucket.comes_in(&rule, 7), 9);
        assert_eq!(bucket.comes_in(&rule, 8), 11);
        assert_eq!(bucket.comes_in(&rule, 14), 19);
        assert_eq!(TokenBucket { fraction: 6, ..bucket }.comes_in(&rule, 7), 10);
    }

    #[test]
    fn st_5_token_bucket_keeps_its_level_under_a_new_burst() {
        let (small, large) = (rule(10, 1_000, 10), rule(10, 1_000, 100));
        let mut bucket = TokenBucket { missing: 4, fraction: 50, at_ms: 0 };
        bucket.carry(&small, &large);
        assert_eq!(bucket, TokenBucket { missing: 94, fraction: 50, at_ms: 0 });
        bucket.carry(&large, &small);
        assert_eq!(bucket, TokenBucket { missing: 4, fraction: 50, at_ms: 0 });
        bucket.carry(&small, &rule(10, 1_000, 5));
        assert_eq!(bucket, TokenBucket::full(0));
    }
}
