//! Leases: how many at once, whose slot, in which order.

use std::collections::{BTreeMap, HashMap};

use super::{Bound, Check, Findings, Held, History, Lease, Violation, tally::Tally};

pub(super) fn check(check: &Check, history: &History, findings: &mut Findings) {
    let mut in_order: Vec<&Held> = history.held.iter().collect();
    in_order.sort_by_key(|held| (held.lease.fence, held.granted));
    grants_above_the_limit(check, &in_order, findings);
    if let Bound::Fixed(bound) = check.bound {
        overlaps(check, bound, &history.held, findings);
    }
    slots(check, &in_order, findings);
    fences(&history.held, findings);
    tokens(history, findings);
    live_too_long(history, findings);
}

/// At each grant: those of lower fences that were certainly held when its answer was there were held when the store
/// decided, since they were granted before it and were not given back yet.
fn grants_above_the_limit(check: &Check, in_order: &[&Held], findings: &mut Findings) {
    let mut ends: Vec<u64> = in_order.iter().map(|held| held.certainly_until()).collect();
    ends.sort_unstable();
    let mut seen = Tally::new(ends.len());
    for (before, held) in (0_u32..).zip(in_order) {
        let ended = seen.up_to(ends.partition_point(|&end| end <= held.granted));
        seen.add(ends.partition_point(|&end| end < held.certainly_until()));
        let bound = match check.bound {
            Bound::Fixed(bound) => Some(bound),
            Bound::Adaptive { .. } => held.limit,
            Bound::None => None,
        };
        let Some(bound) = bound.filter(|_| !held.handed_over) else { continue };
        let extra = check.extra(held.asked, held.granted).unwrap_or(0);
        let live = before - ended + 1;
        if live > bound.saturating_add(extra) {
            let (at, lease) = (held.granted, held.lease);
            findings.0.push(Violation::Overfull { at, held: live, bound, lease });
        }
    }
}

/// The same by time alone, whatever the fences say. Leases that were handed over may be above the bound.
fn overlaps(check: &Check, bound: u32, held: &[Held], findings: &mut Findings) {
    let mut starts: Vec<&Held> = held.iter().filter(|held| held.granted < held.certainly_until()).collect();
    starts.sort_by_key(|held| held.granted);
    let mut ends: Vec<(u64, bool)> =
        starts.iter().map(|held| (held.certainly_until(), held.handed_over)).collect();
    ends.sort_unstable();
    let mut ended = ends.iter().peekable();
    let (mut live, mut handed_over) = (0_u32, 0_u32);
    for held in starts {
        while let Some((_, of_handed_over)) = ended.next_if(|(end, _)| *end <= held.granted) {
            live -= 1;
            handed_over -= u32::from(*of_handed_over);
        }
        live += 1;
        handed_over += u32::from(held.handed_over);
        let extra = check.extra(held.granted, held.granted).unwrap_or(0);
        if live > bound.saturating_add(extra).saturating_add(handed_over) {
            let violation = Violation::Overfull { at: held.granted, held: live, bound, lease: held.lease };
            // Mostly it is the one that was found by its fence already.
            let known = |known: &Violation| matches!(known, Violation::Overfull { lease, .. } if *lease == held.lease);
            if !findings.0.iter().rev().take(1_000).any(known) {
                findings.0.push(violation);
            }
        }
    }
}

/// A slot is one lease's at a time.
fn slots(check: &Check, in_order: &[&Held], findings: &mut Findings) {
    // Of those before, the one that is held longest.
    let mut longest: HashMap<u32, &Held> = HashMap::new();
    for held in in_order {
        let first = longest.get(&held.lease.slot).filter(|first| {
            first.certainly_until() > held.granted
                && first.lease != held.lease
                && check.extra(held.asked, held.granted).is_none()
        });
        if let Some(first) = first {
            findings.0.push(Violation::SlotTwice {
                first: first.lease,
                until: first.certainly_until(),
                second: held.lease,
                at: held.granted,
            });
        }
        let longest = longest.entry(held.lease.slot).or_insert(held);
        if held.certainly_until() > longest.certainly_until() {
            *longest = held;
        }
    }
}

/// A grant that was asked for when the answer to another was there came after it.
fn fences(held: &[Held], findings: &mut Findings) {
    let mut by_asking: Vec<&Held> = held.iter().collect();
    by_asking.sort_by_key(|held| held.asked);
    let mut by_grant: Vec<&Held> = held.iter().collect();
    by_grant.sort_by_key(|held| held.granted);
    let mut granted = by_grant.into_iter().peekable();
    let mut highest: Option<&Held> = None;
    for after in by_asking {
        while let Some(before) = granted.next_if(|before| before.granted < after.asked) {
            highest = highest.filter(|known| known.lease.fence >= before.lease.fence).or(Some(before));
        }
        if let Some(before) = highest.filter(|before| before.lease.fence >= after.lease.fence) {
            findings.0.push(Violation::FenceBack { before: before.lease, after: after.lease });
        }
    }
}

/// A token is one grant's, and one job's.
fn tokens(history: &History, findings: &mut Findings) {
    let mut twice = |leases: &mut dyn Iterator<Item = Lease>| {
        let mut times: BTreeMap<Lease, u32> = BTreeMap::new();
        leases.for_each(|lease| *times.entry(lease).or_default() += 1);
        let twice = times.into_iter().filter(|(_, times)| *times > 1);
        findings.0.extend(twice.map(|(lease, _)| Violation::GrantedTwice { lease }));
    };
    twice(&mut history.held.iter().map(|held| held.lease));
    twice(&mut history.uses.iter().map(|of| of.lease));
}

/// Nobody takes a lease for live when its time is over.
fn live_too_long(history: &History, findings: &mut Findings) {
    let deadlines: HashMap<Lease, u64> =
        history.held.iter().map(|held| (held.lease, held.deadline)).collect();
    for of in &history.uses {
        let Some(&deadline) = deadlines.get(&of.lease) else { continue };
        if of.live > deadline {
            findings.0.push(Violation::LiveTooLong {
                worker: of.worker,
                job: of.job,
                lease: of.lease,
                deadline,
                live: of.live,
            });
        }
    }
}
