//! Nobody is refused for want of a slot while there was one, by all that may have been held.

use super::{Bound, Check, Findings, History, Violation};

pub(super) fn check(check: &Check, history: &History, findings: &mut Findings) {
    let room = match check.bound {
        Bound::Fixed(bound) | Bound::Adaptive { min: bound } => spans_of_room(check, bound, history),
        Bound::None => return,
    };
    for refusal in &history.refusals {
        if refusal.single && !check.judges_single_tries {
            continue;
        }
        // One that waits for less than the patience, or not at all, must have had room all along.
        let all_along = refusal.refused.saturating_sub(refusal.called);
        let enough = if refusal.single { all_along } else { check.patience.min(all_along) };
        let first = room.partition_point(|(_, until)| *until <= refusal.called);
        let had = room[first..]
            .iter()
            .take_while(|(from, _)| *from <= refusal.refused)
            .map(|(from, until)| (*from.max(&refusal.called), *until.min(&refusal.refused)))
            .find(|(from, until)| until.saturating_sub(*from) >= enough);
        if let Some((from, until)) = had {
            let (worker, job) = (refusal.worker, refusal.job);
            findings.0.push(Violation::RefusedWithRoom { worker, job, from, until });
        }
    }
}

/// When fewer than `bound` were possibly held, and the store was there: spans in order, from the first moment there is
/// to the last.
fn spans_of_room(check: &Check, bound: u32, history: &History) -> Vec<(u64, u64)> {
    // The moment, and by how much it changes what may be held.
    let mut changes: Vec<(u64, i64)> = Vec::new();
    let mut held = |from: u64, until: u64, leases: u32| {
        if until > from {
            changes.push((from, i64::from(leases)));
            changes.push((until, -i64::from(leases)));
        }
    };
    for lease in &history.held {
        held(lease.asked, lease.possibly_until(check.ttl, check.lag), 1);
    }
    for unseen in &history.unseen {
        held(unseen.from, unseen.until.saturating_add(check.ttl).saturating_add(check.lag), unseen.leases);
    }
    // A store that is away is as good as full.
    for (from, until) in &check.outages {
        held(*from, *until, bound);
    }
    changes.sort_unstable();

    let bound = i64::from(bound);
    let mut spans = Vec::new();
    let mut since = (bound > 0).then_some(0);
    let mut count = 0;
    let mut changes = changes.into_iter().peekable();
    while let Some((at, by)) = changes.next() {
        count += by;
        // All that changes in one moment changes together.
        if changes.peek().is_some_and(|(next, _)| *next == at) {
            continue;
        }
        match since {
            Some(from) if count >= bound => {
                spans.extend((at > from).then_some((from, at)));
                since = None;
            }
            None if count < bound => since = Some(at),
            _ => {}
        }
    }
    spans.extend(since.map(|from| (from, u64::MAX)));
    spans
}
