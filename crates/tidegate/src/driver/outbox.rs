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
    /// Whether it was reported that some are dropped.
    reported: bool,
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

    /// How many are kept.
    pub(super) fn len(&self) -> usize {
        self.releases.len() + self.settlements.len() + self.observations.len()
    }

    /// How many were dropped since the last report, where that is worth one: at once for the first, and then once for
    /// all when something was delivered.
    pub(super) fn dropped(&mut self, delivered: bool) -> Option<usize> {
        let due = self.dropped > 0 && (delivered || !self.reported);
        self.reported = if due { !delivered } else { self.reported && !delivered };
        due.then(|| std::mem::take(&mut self.dropped))
    }

    /// Moves as much as one exchange takes into it; says when each release was handed over. An outcome from before `old`
    /// says nothing of now.
    pub(super) fn fill(&mut self, exchange: &mut Exchange, old: Moment) -> Vec<Moment> {
        let releases = self.releases.len().min(MOST_TOKENS);
        let (releases, handed_over) =
            self.releases.drain(..releases).map(|(release, at)| (aged(release, at, old), at)).unzip();
        exchange.releases = releases;
        let settlements = self.settlements.len().min(MOST_TOKENS);
        exchange.settlements = self.settlements.drain(..settlements).collect();
        let observations = self.observations.len().min(MOST_TOKENS);
        exchange.observations = self.observations.drain(..observations).collect();
        handed_over
    }

    /// Puts back releases that were not delivered, or perhaps not: they are harmless twice.
    pub(super) fn put_back_releases(&mut self, releases: &[Release], handed_over: &[Moment]) {
        for (release, at) in releases.iter().zip(handed_over).rev() {
            self.releases.push_front((*release, *at));
        }
    }

    /// Puts back settlements that were certainly not carried out.
    pub(super) fn put_back_settlements(&mut self, settlements: &[Settlement]) {
        for settlement in settlements.iter().rev() {
            self.settlements.push_front(settlement.clone());
        }
    }

    /// Puts back observations that were certainly not carried out.
    pub(super) fn put_back_observations(&mut self, observations: &[Observation]) {
        for observation in observations.iter().rev() {
            self.observations.push_front(observation.clone());
        }
    }

    /// Gives up on what may or may not have been carried out, and must not be twice.
    pub(super) const fn give_up(&mut self, corrections: usize) {
        self.dropped += corrections;
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
