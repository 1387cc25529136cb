//! The levels of a policy's rules: one for a rule of its own, one for each identity of a scoped rule.
//!
//! A level at its resting value is not kept. A rule that a revision changes gets a new generation; levels of the older
//! ones are carried over when they are next asked for, so that a revision costs the same however many identities there
//! are.
//!
//! Spec: ST-5, ST-11.

use std::collections::HashMap;

use crate::{
    Identity, Policy,
    rule::{CheckedRule, RuleState},
    store::RuleLevel,
};

use super::due::{Due, Item};

#[derive(Clone, Debug)]
struct Generation {
    number: u32,
    rule: CheckedRule,
    /// When it took over from the one before.
    since_ms: u64,
    levels: HashMap<Identity, RuleState>,
}

#[derive(Clone, Debug)]
struct Lineage {
    /// The rule's own level, where it has no scope.
    own: Option<RuleState>,
    /// The current generation comes last.
    generations: Vec<Generation>,
}

impl Lineage {
    /// Takes an identity's level out of an older generation, and carries it through all that came after, each at the
    /// moment when it came.
    fn carried(&mut self, identity: &Identity) -> Option<RuleState> {
        let older = self.generations.len().checked_sub(1)?;
        let (at, mut level) = (0..older).rev().find_map(|at| {
            let level = self.generations.get_mut(at)?.levels.remove(identity)?;
            Some((at, level))
        })?;
        for pair in self.generations.get(at..)?.windows(2) {
            if let [was, is] = pair {
                level = level.carry(&was.rule, &is.rule, is.since_ms);
            }
        }
        Some(level)
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Levels {
    /// In the order of the policy's rules.
    rules: Vec<Lineage>,
    next_generation: u32,
    /// With a safe start, the moment from which a level that is not kept counts as spent out.
    spent_out_at: Option<u64>,
}

impl Levels {
    pub(super) fn new(policy: &Policy, now_ms: u64) -> Self {
        let mut levels = Self {
            rules: Vec::new(),
            next_generation: 0,
            spent_out_at: policy.safe_start().then_some(now_ms),
        };
        let rules = policy.rules().iter().map(|rule| levels.fresh(rule, now_ms)).collect();
        levels.rules = rules;
        levels
    }

    fn fresh(&mut self, rule: &CheckedRule, now_ms: u64) -> Lineage {
        let own = rule.scope().is_none().then(|| self.initial(rule, now_ms));
        Lineage { own, generations: vec![self.generation(rule, now_ms)] }
    }

    fn generation(&mut self, rule: &CheckedRule, since_ms: u64) -> Generation {
        self.next_generation = self.next_generation.wrapping_add(1);
        Generation { number: self.next_generation, rule: rule.clone(), since_ms, levels: HashMap::new() }
    }

    /// The level of a rule or an identity that nothing is kept of.
    fn initial(&self, rule: &CheckedRule, now_ms: u64) -> RuleState {
        match self.spent_out_at {
            Some(born_ms) => RuleState::spent_out(rule, born_ms),
            None => RuleState::resting(rule, now_ms),
        }
    }

    /// Goes over to the rules of another policy, carrying over what stays comparable.
    pub(super) fn carry(&mut self, from: &Policy, to: &Policy, now_ms: u64) {
        let mut old: Vec<Option<Lineage>> = std::mem::take(&mut self.rules).into_iter().map(Some).collect();
        let mut rules = Vec::with_capacity(to.rules().len());
        for rule in to.rules() {
            let kept = from.rules().iter().position(|was| {
                was.key() == rule.key() && was.scope() == rule.scope() && was.carries_over_to(rule)
            });
            let lineage = kept.and_then(|at| Some((from.rules().get(at)?, old.get_mut(at)?.take()?)));
            rules.push(match lineage {
                None => self.fresh(rule, now_ms),
                Some((was, lineage)) if was == rule => lineage,
                Some((was, mut lineage)) => {
                    lineage.own = lineage.own.map(|level| level.carry(was, rule, now_ms));
                    let first =
                        lineage.generations.iter().position(|generation| !generation.levels.is_empty());
                    lineage.generations.drain(..first.unwrap_or(lineage.generations.len()));
                    lineage.generations.push(self.generation(rule, now_ms));
                    lineage
                }
            });
        }
        self.rules = rules;
    }

    /// The own level of the rule at `index`; none for a scoped rule.
    pub(super) fn own(&mut self, index: usize) -> Option<&mut RuleState> {
        self.rules.get_mut(index)?.own.as_mut()
    }

    /// Calls `with` on the level of an identity, and keeps it if `with` says that it changed.
    pub(super) fn with_identity<T>(
        &mut self,
        index: usize,
        identity: &Identity,
        now_ms: u64,
        due: &mut Due,
        with: impl FnOnce(&CheckedRule, &mut RuleState) -> (T, Changed),
    ) -> Option<T> {
        let spent_out_at = self.spent_out_at;
        let lineage = self.rules.get_mut(index)?;
        let carried = lineage.carried(identity);
        let current = lineage.generations.last_mut()?;
        if let Some(level) = current.levels.get_mut(identity) {
            return Some(with(&current.rule, level).0);
        }
        let was_kept = carried.is_some();
        let mut level = carried.unwrap_or_else(|| match spent_out_at {
            Some(born_ms) => RuleState::spent_out(&current.rule, born_ms),
            None => RuleState::resting(&current.rule, now_ms),
        });
        let (answer, changed) = with(&current.rule, &mut level);
        if was_kept || changed == Changed::Yes {
            let at_ms = level.rests_at(&current.rule);
            current.levels.insert(identity.clone(), level);
            due.put(at_ms, Item::Level { generation: current.number, identity: identity.clone() });
        }
        Some(answer)
    }

    /// Forgets an identity's level that rests, or says when to look again, and under which generation.
    pub(super) fn forget_resting(
        &mut self,
        number: u32,
        identity: &Identity,
        now_ms: u64,
    ) -> Option<(u64, u32)> {
        let of =
            |lineage: &&mut Lineage| lineage.generations.iter().any(|generation| generation.number == number);
        let lineage = self.rules.iter_mut().find(of)?;
        let carried = lineage.carried(identity);
        let generation = lineage.generations.last_mut()?;
        if let Some(level) = carried {
            generation.levels.insert(identity.clone(), level);
        } else if generation.number != number {
            // It was carried over when it was asked for, and has an entry under that generation.
            return None;
        }
        let rests_at = generation.levels.get(identity)?.rests_at(&generation.rule);
        if rests_at > now_ms {
            return Some((rests_at, generation.number));
        }
        generation.levels.remove(identity);
        let kept = generation.levels.len();
        if generation.levels.capacity() > 1_024 && kept < generation.levels.capacity() / 4 {
            generation.levels.shrink_to(kept * 2);
        }
        None
    }

    /// Whether nothing is kept that could still deny a job, as far as it was swept.
    pub(super) fn rest(&self, policy: &Policy, now_ms: u64) -> bool {
        policy.rules().iter().zip(&self.rules).all(|(rule, lineage)| {
            lineage.own.as_ref().is_none_or(|level| level.rests_at(rule) <= now_ms)
                && lineage.generations.iter().all(|generation| generation.levels.is_empty())
        })
    }

    pub(super) fn shift_back(&mut self, ms: u64) {
        self.spent_out_at = self.spent_out_at.map(|at| at.saturating_sub(ms));
        for lineage in &mut self.rules {
            lineage.own.iter_mut().for_each(|level| level.shift_back(ms));
            for generation in &mut lineage.generations {
                generation.since_ms = generation.since_ms.saturating_sub(ms);
                generation.levels.values_mut().for_each(|level| level.shift_back(ms));
            }
        }
    }

    pub(super) fn view(&mut self, policy: &Policy, now_ms: u64) -> Vec<RuleLevel> {
        let rules = policy.rules().iter().zip(&mut self.rules);
        rules
            .map(|(rule, lineage)| RuleLevel {
                rule: rule.key().clone(),
                level: lineage.own.as_mut().map(|level| level.level(rule, now_ms)),
                identities: Some(lineage.generations.iter().map(|generation| generation.levels.len()).sum()),
            })
            .collect()
    }
}

/// Whether a level was changed and is to be kept.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Changed {
    Yes,
    No,
}
