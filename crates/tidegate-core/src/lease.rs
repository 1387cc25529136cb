//! Leases: slots that are held until a moment, by a token that names no other grant ever.
//!
//! [`Leases`] is a table by slot, dense from 0. A list runs through it in the order in which held leases end, so that
//! granting, renewing, releasing and finding the next to end touch a handful of words. Slots that rest, each as long as
//! its own release said, are kept in order beside it.
//!
//! Spec: ST-9, ST-17, AS-6.

use std::{collections::BTreeSet, fmt, str::FromStr};

use crate::{Invalid, Owner};

/// Names one life of an id's state: a state that was lost and made anew has another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Epoch(pub u64);

/// Names one lease, and never another: the epoch it was granted in, its slot and its fence.
///
/// As text it reads `epoch-slot-fence`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Token {
    /// The epoch of the grant.
    pub epoch: Epoch,
    /// The lowest number, from 0, that no other live lease had at the grant.
    pub slot: u32,
    /// Grows from grant to grant of an id, across lost state too.
    pub fence: u64,
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}-{}", self.epoch.0, self.slot, self.fence)
    }
}

impl FromStr for Token {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let refused = || Invalid::new("token", text, "epoch-slot-fence, three whole numbers");
        let mut parts = text.splitn(3, '-');
        let mut next = || parts.next().ok_or_else(refused);
        Ok(Self {
            epoch: Epoch(next()?.parse().map_err(|_| refused())?),
            slot: next()?.parse().map_err(|_| refused())?,
            fence: next()?.parse().map_err(|_| refused())?,
        })
    }
}

/// What is to be known of a lease that is granted or taken up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms<'a> {
    pub(crate) tier: usize,
    pub(crate) owner: &'a Owner,
    pub(crate) now_ms: u64,
    /// When it ends.
    pub(crate) ends_ms: u64,
}

/// A lease as people see it.
///
/// Spec: ST-20.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LeaseView {
    /// Its token.
    pub token: Token,
    /// Who holds it.
    pub owner: Owner,
    /// Its class.
    pub class: Option<crate::Name>,
    /// How long ago it was granted, in milliseconds.
    pub age_ms: u64,
    /// How long until it ends unless it is renewed, in milliseconds.
    pub left_ms: u64,
    /// Whether it was released as throttled and rests.
    pub resting: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Phase {
    Free,
    Held,
    Resting,
}

const NONE: u32 = u32::MAX;

#[derive(Clone, Debug)]
struct Slot {
    /// The highest fence given for this slot; the one of its lease while there is one.
    fence: u64,
    epoch: Epoch,
    /// Kept after the lease ends: the next one is likely of the same owner.
    owner: Option<Owner>,
    tier: usize,
    phase: Phase,
    granted_ms: u64,
    ends_ms: u64,
    earlier: u32,
    later: u32,
}

const EMPTY: Slot = Slot {
    fence: 0,
    epoch: Epoch(0),
    owner: None,
    tier: 0,
    phase: Phase::Free,
    granted_ms: 0,
    ends_ms: 0,
    earlier: NONE,
    later: NONE,
};

/// A list through the slots, in the order in which they end.
#[derive(Clone, Copy, Debug)]
struct Order {
    first: u32,
    last: u32,
}

impl Default for Order {
    fn default() -> Self {
        Self { first: NONE, last: NONE }
    }
}

impl Order {
    fn remove(&mut self, slots: &mut [Slot], at: u32) {
        let (earlier, later) = (slots[at as usize].earlier, slots[at as usize].later);
        match earlier {
            NONE => self.first = later,
            before => slots[before as usize].later = later,
        }
        match later {
            NONE => self.last = earlier,
            after => slots[after as usize].earlier = earlier,
        }
    }

    /// Puts a slot behind all that end no later. That is the last place unless a TTL has become shorter.
    fn insert(&mut self, slots: &mut [Slot], at: u32) {
        let ends_ms = slots[at as usize].ends_ms;
        let mut before = self.last;
        while before != NONE && slots[before as usize].ends_ms > ends_ms {
            before = slots[before as usize].earlier;
        }
        let after = if before == NONE { self.first } else { slots[before as usize].later };
        slots[at as usize].earlier = before;
        slots[at as usize].later = after;
        match before {
            NONE => self.first = at,
            before => slots[before as usize].later = at,
        }
        match after {
            NONE => self.last = at,
            after => slots[after as usize].earlier = at,
        }
    }
}

/// All leases of one id.
#[derive(Clone, Debug, Default)]
pub(crate) struct Leases {
    slots: Vec<Slot>,
    /// A bit per slot that is not free.
    taken: Vec<u64>,
    /// No word of `taken` before this one has a free bit.
    search_from: usize,
    held: Order,
    /// Slots that rest, by when that ends: each as long as its own release said.
    resting: BTreeSet<(u64, u32)>,
    /// Leases per tier, resting ones too; the last tier is that of jobs without a class.
    by_tier: Vec<u32>,
    count: u32,
    last_fence: u64,
}

impl Leases {
    /// A table without leases, whose fences go on above `last_fence`.
    pub(crate) fn new(tiers: usize, last_fence: u64) -> Self {
        Self { by_tier: vec![0; tiers], last_fence, ..Self::default() }
    }

    pub(crate) const fn last_fence(&self) -> u64 {
        self.last_fence
    }

    /// How many slots are taken, resting ones too.
    pub(crate) const fn count(&self) -> u32 {
        self.count
    }

    pub(crate) fn resting(&self) -> u32 {
        // There are no more than slots.
        u32::try_from(self.resting.len()).unwrap_or(u32::MAX)
    }

    pub(crate) fn by_tier(&self) -> &[u32] {
        &self.by_tier
    }

    /// Takes the lowest free slot.
    #[inline]
    pub(crate) fn grant(&mut self, epoch: Epoch, now_micros: u64, terms: Terms<'_>) -> Token {
        let slot = self.lowest_free();
        self.last_fence = (self.last_fence + 1).max(now_micros);
        let token = Token { epoch, slot, fence: self.last_fence };
        self.occupy((slot, epoch, token.fence), terms);
        token
    }

    /// Takes the token's own slot, for a lease of an earlier epoch, iff it is free and no higher fence was given for it.
    pub(crate) fn take_up(&mut self, token: Token, terms: Terms<'_>) -> bool {
        // No store has given such a fence, and there would be none above it.
        if token.slot >= crate::policy::MOST_LEASES || token.fence >= crate::time::EXACT {
            return false;
        }
        self.grow_to(token.slot);
        let slot = &self.slots[token.slot as usize];
        if slot.phase != Phase::Free || slot.fence > token.fence {
            return false;
        }
        self.last_fence = self.last_fence.max(token.fence);
        self.occupy((token.slot, token.epoch, token.fence), terms);
        true
    }

    /// Moves a live lease's end to one TTL from now, never backwards. False where it is not live.
    pub(crate) fn renew(&mut self, token: Token, now_ms: u64, ends_ms: u64) -> bool {
        let Some(at) = self.find(token, now_ms) else { return false };
        if ends_ms > self.slots[at as usize].ends_ms {
            self.held.remove(&mut self.slots, at);
            self.slots[at as usize].ends_ms = ends_ms;
            self.held.insert(&mut self.slots, at);
        }
        true
    }

    /// Ends a live lease; its slot is free after `rest_ms` more. False where it is not live.
    pub(crate) fn release(&mut self, token: Token, now_ms: u64, rest_ms: u64) -> bool {
        let Some(at) = self.find(token, now_ms) else { return false };
        if rest_ms == 0 {
            self.free(at);
        } else {
            self.held.remove(&mut self.slots, at);
            let slot = &mut self.slots[at as usize];
            slot.phase = Phase::Resting;
            slot.ends_ms = now_ms.saturating_add(rest_ms);
            self.resting.insert((slot.ends_ms, at));
        }
        true
    }

    /// Frees at most `most` slots whose time has passed; returns how many.
    pub(crate) fn sweep(&mut self, now_ms: u64, most: usize) -> usize {
        let mut swept = 0;
        while let Some(at) = self.first_over(now_ms).filter(|_| swept < most) {
            self.free(at);
            swept += 1;
        }
        swept
    }

    fn first_over(&self, now_ms: u64) -> Option<u32> {
        let Order { first, .. } = self.held;
        if self.slots.get(first as usize).is_some_and(|slot| slot.ends_ms <= now_ms) {
            return Some(first);
        }
        self.resting.first().filter(|(ends_ms, _)| *ends_ms <= now_ms).map(|(_, at)| *at)
    }

    /// When the next slot could come free by itself.
    pub(crate) fn next_end(&self) -> Option<u64> {
        let held = self.slots.get(self.held.first as usize).map(|slot| slot.ends_ms);
        let resting = self.resting.first().map(|(ends_ms, _)| *ends_ms);
        held.into_iter().chain(resting).min()
    }

    /// Frees a slot by its token, live or resting. False where there is none of that token.
    pub(crate) fn evict(&mut self, token: Token) -> bool {
        let there = self.slots.get(token.slot as usize).is_some_and(|slot| {
            slot.phase != Phase::Free && slot.fence == token.fence && slot.epoch == token.epoch
        });
        if there {
            self.free(token.slot);
        }
        there
    }

    /// Gives every lease the tier that `tier_of` says, out of `tiers`.
    pub(crate) fn retier(&mut self, tiers: usize, tier_of: impl Fn(usize) -> usize) {
        self.by_tier = vec![0; tiers];
        for slot in self.slots.iter_mut().filter(|slot| slot.phase != Phase::Free) {
            slot.tier = tier_of(slot.tier);
            self.by_tier[slot.tier] += 1;
        }
    }

    pub(crate) fn shift_back(&mut self, ms: u64) {
        for slot in &mut self.slots {
            slot.granted_ms = slot.granted_ms.saturating_sub(ms);
            slot.ends_ms = slot.ends_ms.saturating_sub(ms);
        }
        let resting = std::mem::take(&mut self.resting);
        self.resting = resting.into_iter().map(|(ends_ms, at)| (ends_ms.saturating_sub(ms), at)).collect();
    }

    /// The taken slots from `from` on, by slot: token, owner, tier, granted, ends, resting.
    pub(crate) fn iter(
        &self,
        from: u32,
    ) -> impl Iterator<Item = (Token, Option<&Owner>, usize, u64, u64, bool)> + '_ {
        self.slots.iter().zip(0u32..).skip(from as usize).filter(|(slot, _)| slot.phase != Phase::Free).map(
            |(slot, at)| {
                let token = Token { epoch: slot.epoch, slot: at, fence: slot.fence };
                let resting = slot.phase == Phase::Resting;
                (token, slot.owner.as_ref(), slot.tier, slot.granted_ms, slot.ends_ms, resting)
            },
        )
    }

    fn find(&self, token: Token, now_ms: u64) -> Option<u32> {
        let slot = self.slots.get(token.slot as usize)?;
        let live = slot.phase == Phase::Held
            && slot.fence == token.fence
            && slot.epoch == token.epoch
            && slot.ends_ms > now_ms;
        live.then_some(token.slot)
    }

    #[inline]
    fn occupy(&mut self, (at, epoch, fence): (u32, Epoch, u64), terms: Terms<'_>) {
        self.grow_to(at);
        let slot = &mut self.slots[at as usize];
        slot.fence = fence;
        slot.epoch = epoch;
        if slot.owner.as_ref().is_none_or(|owner| !owner.is_same_as(terms.owner)) {
            slot.owner = Some(terms.owner.clone());
        }
        slot.tier = terms.tier;
        slot.phase = Phase::Held;
        slot.granted_ms = terms.now_ms;
        slot.ends_ms = terms.ends_ms;
        self.held.insert(&mut self.slots, at);
        self.taken[at as usize / 64] |= 1 << (at % 64);
        self.by_tier[terms.tier] += 1;
        self.count += 1;
    }

    #[inline]
    fn free(&mut self, at: u32) {
        let phase = self.slots[at as usize].phase;
        match phase {
            Phase::Free => return,
            Phase::Held => self.held.remove(&mut self.slots, at),
            Phase::Resting => {
                self.resting.remove(&(self.slots[at as usize].ends_ms, at));
            }
        }
        let slot = &mut self.slots[at as usize];
        slot.phase = Phase::Free;
        self.by_tier[slot.tier] -= 1;
        self.count -= 1;
        let word = at as usize / 64;
        self.taken[word] &= !(1 << (at % 64));
        self.search_from = self.search_from.min(word);
    }

    fn lowest_free(&mut self) -> u32 {
        while self.taken.get(self.search_from) == Some(&u64::MAX) {
            self.search_from += 1;
        }
        let bit = self.taken.get(self.search_from).map_or(0, |word| word.trailing_ones());
        // At most MOST_LEASES / 64 words, so it fits.
        u32::try_from(self.search_from).unwrap_or(NONE / 64) * 64 + bit
    }

    fn grow_to(&mut self, at: u32) {
        let slots = at as usize + 1;
        if self.slots.len() < slots {
            self.slots.resize(slots, EMPTY);
            self.taken.resize(slots.div_ceil(64), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner() -> Owner {
        Owner::new("test").unwrap()
    }

    fn terms(owner: &Owner, now_ms: u64, ttl_ms: u64) -> Terms<'_> {
        Terms { tier: 0, owner, now_ms, ends_ms: now_ms.saturating_add(ttl_ms) }
    }

    #[test]
    fn st_9_a_grant_takes_the_lowest_free_slot_and_a_higher_fence() {
        let owner = owner();
        let mut leases = Leases::new(1, 0);
        let tokens: Vec<_> = (0..130).map(|_| leases.grant(Epoch(1), 5, terms(&owner, 0, 10))).collect();
        assert_eq!(tokens.iter().map(|t| t.slot).collect::<Vec<_>>(), (0..130).collect::<Vec<_>>());
        assert!(tokens.windows(2).all(|pair| pair[0].fence < pair[1].fence));
        assert!(leases.release(tokens[70], 0, 0) && leases.release(tokens[3], 0, 0));
        assert_eq!(leases.grant(Epoch(1), 5, terms(&owner, 0, 10)).slot, 3);
        assert_eq!(leases.grant(Epoch(1), 5, terms(&owner, 0, 10)).slot, 70);
        assert_eq!(leases.grant(Epoch(1), 9_000, terms(&owner, 0, 10)).fence, 9_000);
    }

    #[test]
    fn st_9_a_token_of_another_grant_changes_no_slot() {
        let owner = owner();
        let mut leases = Leases::new(1, 0);
        let first = leases.grant(Epoch(1), 5, terms(&owner, 0, 10));
        assert!(leases.release(first, 1, 0));
        let second = leases.grant(Epoch(1), 5, terms(&owner, 1, 10));
        assert_eq!(second.slot, first.slot);
        assert!(!leases.release(first, 2, 0));
        assert!(!leases.renew(first, 2, 10));
        assert!(!leases.release(Token { slot: 7_000, ..second }, 2, 0));
        assert!(!leases.release(second, 11, 0), "its time has passed");
        assert_eq!(leases.count(), 1);
        assert_eq!(leases.sweep(11, 1_000), 1);
        assert_eq!(leases.count(), 0);
    }

    #[test]
    fn st_17_leases_that_end_earlier_are_swept_first_whatever_the_order_of_grants() {
        let owner = owner();
        let mut leases = Leases::new(1, 0);
        let long = leases.grant(Epoch(1), 0, terms(&owner, 0, 100));
        let short = leases.grant(Epoch(1), 0, terms(&owner, 1, 10));
        let rests = leases.grant(Epoch(1), 0, terms(&owner, 2, 100));
        assert!(leases.release(rests, 3, 2));
        assert_eq!(leases.next_end(), Some(5));
        assert_eq!(leases.sweep(5, 10), 1);
        assert_eq!(leases.next_end(), Some(11));
        assert!(leases.renew(short, 10, 500) && leases.renew(long, 10, 20));
        assert_eq!(leases.next_end(), Some(100), "a renewal never moves an end backwards");
        assert_eq!(leases.sweep(1_000, 1), 1, "bounded");
        assert_eq!(leases.sweep(1_000, 10), 1);
    }

    #[test]
    fn st_18_a_lease_is_taken_up_only_where_its_slot_is_free_and_no_higher_fence_was_given() {
        let owner = owner();
        let mut leases = Leases::new(1, 0);
        let old = |slot, fence| Token { epoch: Epoch(1), slot, fence };
        let new = leases.grant(Epoch(2), 1_000, terms(&owner, 0, 10));
        assert!(!leases.take_up(old(0, 999), terms(&owner, 0, 10)), "its slot is taken");
        assert!(leases.take_up(old(5, 7), terms(&owner, 0, 10)));
        assert!(leases.release(old(5, 7), 0, 0));
        assert!(!leases.take_up(old(5, 6), terms(&owner, 0, 10)), "a higher fence was given");
        assert!(leases.release(new, 0, 0));
        assert!(!leases.take_up(old(0, 999), terms(&owner, 0, 10)), "a higher fence was given");
        assert!(!leases.take_up(old(NONE, 1), terms(&owner, 0, 10)), "no such slot");
        assert!(!leases.take_up(old(6, 1 << 53), terms(&owner, 0, 10)), "no such fence");
        assert!(leases.take_up(old(6, (1 << 53) - 1), terms(&owner, 0, 10)));
    }

    #[test]
    fn bi_3_a_token_that_is_no_token_is_refused() {
        assert_eq!("7-0-12".parse::<Token>().unwrap(), Token { epoch: Epoch(7), slot: 0, fence: 12 });
        for bad in ["", "1-2", "1-2-3-4", "-1-2-3", "a-b-c", "1--2"] {
            assert_eq!(bad.parse::<Token>().unwrap_err().option, "token", "{bad}");
        }
    }
}
