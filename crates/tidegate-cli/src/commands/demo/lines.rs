//! What the demo and its processes say to each other: a line of JSON each, over stdin and stdout.

use std::time::{Duration, Instant, SystemTime};

use serde::{Deserialize, Serialize};

use super::fleet::{Event, Setup, View};

/// What a process is told. When nothing more can come, since its parent is gone, it ends.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Order {
    /// Connect to the store. It is told here, since arguments can be read by others.
    Open { url: String },
    /// Call, until told otherwise.
    Call {
        setup: Setup,
        id: String,
        target: String,
        /// What moments are counted from.
        start: SystemTime,
    },
    /// Finish the calls that are under way.
    Finish,
    /// Stop now.
    Cut,
}

/// What a process says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Word {
    /// Its store is open.
    Ready,
    /// It could not begin.
    Refused {
        why: String,
    },
    Event(Event),
    /// How it stands.
    View(View),
    /// It gave everything back, and ends.
    Done,
}

/// Both clocks at one moment, as near as they can be looked at. Clocks that only run on have no meaning elsewhere.
fn clocks() -> (Instant, SystemTime) {
    let look = || {
        let before = Instant::now();
        let wall = SystemTime::now();
        (before.elapsed(), before, wall)
    };
    // Of many looks, the one that nothing came between.
    let (_, instant, wall) = (0..32).map(|_| look()).min_by_key(|&(gap, ..)| gap).unwrap_or_else(look);
    (instant, wall)
}

/// A moment of this process, for others on this machine.
pub(super) fn to_wall(moment: Instant) -> SystemTime {
    let (instant, wall) = clocks();
    wall.checked_sub(instant.saturating_duration_since(moment)).unwrap_or(wall)
}

/// A moment that another process on this machine told a moment ago.
pub(super) fn from_wall(moment: SystemTime) -> Instant {
    let (instant, wall) = clocks();
    let passed = wall.duration_since(moment).unwrap_or(Duration::ZERO);
    instant.checked_sub(passed).unwrap_or(instant)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_is_the_same_in_every_process() {
        let moment = Instant::now();
        let back = from_wall(to_wall(moment));
        let apart = back.max(moment) - back.min(moment);
        // Far less than an exchange with a store takes at its fastest, unless somebody sets the wall clock.
        assert!(apart < Duration::from_millis(1), "{apart:?}");
    }

    #[test]
    fn what_is_said_is_one_line() {
        let word = Word::Event(Event::Failure { why: "two\nlines".into() });
        let line = serde_json::to_string(&word).unwrap();
        assert!(!line.contains('\n'), "{line}");
        assert!(
            matches!(serde_json::from_str(&line), Ok(Word::Event(Event::Failure { why })) if why == "two\nlines")
        );
    }
}
