//! From many operations to few.

use super::{
    Difference, Options, answered, open,
    operation::{Operation, Step},
    pair::{Mismatch, Pair},
    world::World,
};
use crate::{subject::Factory, task::caught};

/// As few of the operations as still show a difference, each as small as it can be.
pub(super) async fn shrunk(
    factory: &impl Factory,
    options: &Options,
    world: &World,
    drawn: Vec<Step>,
    mismatch: Mismatch,
) -> Difference {
    let mut shrinking =
        Shrinking { factory, options, world, left: options.replays, steps: drawn.clone(), mismatch };
    shrinking.take_operations_out().await;
    shrinking.make_operations_smaller().await;
    shrinking.take_operations_out().await;
    shrinking.join_steps_of_the_clock().await;
    let Shrinking { steps, mismatch, .. } = shrinking;
    Difference {
        seed: options.seed,
        operations: steps.iter().map(|step| step.read(world)).collect(),
        drawn: drawn.len(),
        model: mismatch.model,
        store: mismatch.store,
    }
}

struct Shrinking<'a, F> {
    factory: &'a F,
    options: &'a Options,
    world: &'a World,
    /// Replays that are left.
    left: usize,
    /// The fewest so far; the last one differs.
    steps: Vec<Step>,
    mismatch: Mismatch,
}

impl<F: Factory> Shrinking<'_, F> {
    /// Takes out halves, quarters and so on, down to single operations, as long as a difference is left.
    async fn take_operations_out(&mut self) {
        let mut chunk = self.steps.len().div_ceil(2);
        while chunk > 0 && self.left > 0 {
            let mut at = 0;
            let mut was_cut = false;
            while at < self.steps.len() && self.left > 0 {
                let mut fewer = self.steps.clone();
                fewer.drain(at..(at + chunk).min(self.steps.len()));
                if self.differs(fewer).await {
                    was_cut = true;
                } else {
                    at += chunk;
                }
            }
            // Once nothing more can be taken out one by one, that is all.
            chunk = match chunk {
                1 if was_cut => 1,
                _ => chunk / 2,
            };
        }
    }

    async fn make_operations_smaller(&mut self) {
        let mut at = 0;
        while at < self.steps.len() && self.left > 0 {
            let mut was_cut = false;
            for operation in self.steps[at].operation.simpler() {
                let mut smaller = self.steps.clone();
                smaller[at].operation = operation;
                if self.differs(smaller).await {
                    was_cut = true;
                    break;
                }
            }
            if !was_cut {
                at += 1;
            }
        }
    }

    /// Lets the clock run once where it runs several times in a row.
    async fn join_steps_of_the_clock(&mut self) {
        let mut at = 1;
        while at < self.steps.len() {
            let (before, here) = (&self.steps[at - 1].operation, &self.steps[at].operation);
            if let (Operation::Advance { micros: first }, Operation::Advance { micros: second }) =
                (before, here)
            {
                let micros = first + second;
                let mut fewer = self.steps.clone();
                fewer.remove(at - 1);
                fewer[at - 1].operation = Operation::Advance { micros };
                if self.differs(fewer).await {
                    continue;
                }
            }
            at += 1;
        }
    }

    /// Keeps these operations, up to the first that differs, if one does.
    async fn differs(&mut self, mut steps: Vec<Step>) -> bool {
        if steps.is_empty() || self.left == 0 {
            return false;
        }
        self.left -= 1;
        let Ok(subject) = open(self.factory, self.options.seed).await else { return false };
        let mut pair = Pair::new(self.world, subject, self.options.pushes).await;
        for at in 0..steps.len() {
            if let Err(mismatch) = answered(caught(pair.perform(self.world, &steps[at])).await) {
                steps.truncate(at + 1);
                self.steps = steps;
                self.mismatch = mismatch;
                return true;
            }
        }
        false
    }
}
