//! What waits to be delivered to the store: kept until the store answers, within a bound.
//!
//! Spec: UN-8.

use std::collections::VecDeque;

use tidegate_core::{Exchange, Observation, Outcome, Release, Settlement, store::MOST_TOKENS, time::Moment};

/// The most of each kind that is kept.
const MOST_KEPT: usize = 100_000;

#[derive(Default)]
pub(super) struct Outbox {
    releases: VecDeque<(Release, Moment)>,
    settlements: VecDeque<Settlement>,
    observations: VecDeque<Observation>,
    /// Dropped since the last report.
    dropped: usize,
}

impl Outbox {
    pub(super) fn is_empty(&self) -> bool {
        self.releases.is_empty() && self.settlements.is_empty() && self.observations.is_empty()
    }

    pub(super) fn release(&mut self, release: Release, now: Moment) {
        self.releases.push_back((release, now));
        self.dropped += keep_last(&mut self.releases);
    }

    pub(super) fn settle(&mut self, settlement: Settlement) {
        self.settlements.push_back(settlement);
        self.dropped += keep_last(&mut self.settlements);
    }

    pub(super) fn observe(&mut self, observation: Observation) {
        self.observations.push_back(observation);
        self.dropped += keep_last(&mut self.observations);
    }

    pub(super) fn take_dropped(&mut self) -> usize {
        std::mem::take(&mut self.dropped)
    }

    /// Moves as much as one exchange takes into it. An outcome from before `old` says nothing of now.
    pub(super) fn fill(&mut self, exchange: &mut Exchange, old: Moment) {
        let releases = self.releases.len().min(MOST_TOKENS);
        exchange.releases =
            self.releases.drain(..releases).map(|(release, at)| aged(release, at, old)).collect();
        let settlements = self.settlements.len().min(MOST_TOKENS);
        exchange.settlements = self.settlements.drain(..settlements).collect();
        let observations = self.observations.len().min(MOST_TOKENS);
        exchange.observations = self.observations.drain(..observations).collect();
    }

    /// Puts back what an exchange did not deliver.
    pub(super) fn put_back(&mut self, exchange: &Exchange, sent: Moment, corrections: bool) {
        for release in exchange.releases.iter().rev() {
            self.releases.push_front((*release, sent));
        }
        if corrections {
            for settlement in exchange.settlements.iter().rev() {
                self.settlements.push_front(settlement.clone());
            }
            for observation in exchange.observations.iter().rev() {
                self.observations.push_front(observation.clone());
            }
        }
    }
}

fn aged(release: Release, at: Moment, old: Moment) -> Release {
    if at < old { Release { outcome: Outcome::Failure, retry_after_ms: None, ..release } } else { release }
}

fn keep_last<T>(kept: &mut VecDeque<T>) -> usize {
    let over = kept.len().saturating_sub(MOST_KEPT);
    kept.drain(..over);
    over
}
