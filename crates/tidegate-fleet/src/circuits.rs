//! What the workers of a breaker wrote down, held against a small state machine.
//!
//! - Generations only grow in a process, and all processes that saw one agree on what it was and when it was decided.
//! - After a process knows that the circuit is open, no call of it begins until it knows that it is closed.
//! - An opening by results has as many failures behind it as the strategy asks for, of calls that began under the
//!   generation before: never is a circuit opened by results from before the last change.
//! - Two processes do not lead at once, nor do their health checks overlap, but where one of them was frozen meanwhile.

use std::collections::{BTreeMap, HashMap};

use crate::record::{Event, Record};

/// A time in which a worker stood still.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Freeze {
    /// Which.
    pub worker: u32,
    /// From when.
    pub from: u64,
    /// Until when.
    pub to: u64,
}

/// A call has looked at the circuit a moment before its record is written; on a busy machine that moment is long. In
/// microseconds.
const NOTED_WITHIN: u64 = 100_000;

/// Judges the records of workers behind a breaker that opens after `threshold` failures in a row and recovers by health
/// checks. What was wrong, a sentence each.
pub fn judge(records: &[Record], threshold: usize, freezes: &[Freeze]) -> Vec<String> {
    let mut records: Vec<&Record> = records.iter().collect();
    records.sort_by_key(|record| record.at);
    let mut wrong = changes(&records);
    wrong.extend(calls(&records));
    wrong.extend(openings(&records, threshold));
    wrong.extend(leaders(&records, freezes));
    wrong.extend(checks(&records, freezes));
    wrong
}

fn changes(records: &[&Record]) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut last: HashMap<u32, u64> = HashMap::new();
    let mut known: BTreeMap<u64, (bool, u64)> = BTreeMap::new();
    for record in records {
        let Event::Circuit { open, decided, generation, .. } = record.event else { continue };
        let worker = record.worker;
        let before = last.insert(worker, generation).unwrap_or(0);
        if generation <= before {
            wrong.push(format!("worker {worker} went from generation {before} to {generation}"));
        }
        let first = *known.entry(generation).or_insert((open, decided));
        if first != (open, decided) {
            wrong.push(format!(
                "worker {worker} saw generation {generation} as {open} at {decided}, others {first:?}"
            ));
        }
    }
    wrong
}

fn calls(records: &[&Record]) -> Vec<String> {
    let mut open: HashMap<u32, u64> = HashMap::new();
    let mut wrong = Vec::new();
    for record in records {
        match record.event {
            Event::Circuit { open: true, .. } => {
                open.insert(record.worker, record.at);
            }
            Event::Circuit { open: false, .. } | Event::Started { .. } => {
                open.remove(&record.worker);
            }
            Event::Begun { job, .. } => {
                let since = open.get(&record.worker).filter(|since| record.at > **since + NOTED_WITHIN);
                if let Some(since) = since.filter(|_| !closes_soon(records, record)) {
                    let late = record.at - since;
                    wrong.push(format!(
                        "call {job} of worker {} began {late} us after it knew of the opening",
                        record.worker
                    ));
                }
            }
            _ => {}
        }
    }
    wrong
}

/// Whether a worker writes down right after this record that the circuit is closed: it has known for a moment.
fn closes_soon(records: &[&Record], record: &Record) -> bool {
    let after = records.partition_point(|other| other.at < record.at);
    let mut soon = records[after..].iter().take_while(|other| other.at <= record.at + NOTED_WITHIN);
    soon.any(|other| {
        other.worker == record.worker && matches!(other.event, Event::Circuit { open: false, .. })
    })
}

fn openings(records: &[&Record], threshold: usize) -> Vec<String> {
    let mut began: HashMap<(u32, u64), u64> = HashMap::new();
    let mut failures: HashMap<u64, usize> = HashMap::new();
    let mut wrong = Vec::new();
    let mut opened = BTreeMap::new();
    for record in records {
        match &record.event {
            Event::Begun { job, generation } => {
                began.insert((record.worker, *job), *generation);
            }
            Event::Ended { job, failed: true } => {
                if let Some(generation) = began.get(&(record.worker, *job)) {
                    *failures.entry(*generation).or_default() += 1;
                }
            }
            Event::Circuit { open: true, generation, why, .. } if why.contains("Results") => {
                // At the first process that knows: by then all that opened it was written.
                opened
                    .entry(*generation)
                    .or_insert_with(|| failures.get(&generation.saturating_sub(1)).copied().unwrap_or(0));
            }
            _ => {}
        }
    }
    for (generation, failures) in opened {
        if failures < threshold {
            wrong.push(format!("generation {generation} opened after {failures} failures of the one before"));
        }
    }
    wrong
}

/// A process writes down a moment later than it knows that it leads no more, while another may lead already.
fn leaders(records: &[&Record], freezes: &[Freeze]) -> Vec<String> {
    let leads = |event: &Event| match event {
        Event::Role { leads } => Some(*leads),
        Event::Killed | Event::Stopped => Some(false),
        _ => None,
    };
    at_once(records, freezes, leads, NOTED_WITHIN, "led")
}

fn checks(records: &[&Record], freezes: &[Freeze]) -> Vec<String> {
    let checks = |event: &Event| match event {
        Event::Checking => Some(true),
        Event::Checked { .. } | Event::Killed | Event::Stopped => Some(false),
        _ => None,
    };
    at_once(records, freezes, checks, 0, "checked")
}

/// What two workers did at once for longer than is room for, and neither of them was frozen.
fn at_once(
    records: &[&Record],
    freezes: &[Freeze],
    begins: impl Fn(&Event) -> Option<bool>,
    room: u64,
    did: &str,
) -> Vec<String> {
    let mut running: BTreeMap<u32, u64> = BTreeMap::new();
    let mut spans: Vec<(u32, u64, u64)> = Vec::new();
    for record in records {
        let worker = record.worker;
        match begins(&record.event) {
            Some(true) => {
                running.insert(worker, record.at);
            }
            Some(false) => spans.extend(running.remove(&worker).map(|from| (worker, from, record.at))),
            None => {}
        }
    }
    let end = records.last().map_or(0, |record| record.at);
    spans.extend(running.into_iter().map(|(worker, from)| (worker, from, end)));
    spans.sort_by_key(|(_, from, _)| *from);
    let frozen = |(worker, from, to): (u32, u64, u64)| {
        freezes.iter().any(|freeze| freeze.worker == worker && freeze.from < to && from < freeze.to)
    };
    let mut wrong = Vec::new();
    for (at, one) in spans.iter().enumerate() {
        for other in spans.iter().skip(at + 1).take_while(|other| other.1 + room < one.2) {
            if one.0 != other.0 && !frozen(*one) && !frozen(*other) {
                wrong.push(format!("workers {} and {} {did} at once, at {}", one.0, other.0, other.1));
            }
        }
    }
    wrong
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(at: u64, worker: u32, event: Event) -> Record {
        // Seconds apart, so that no room for noise hides anything.
        Record { at: at * 1_000_000, worker, event }
    }

    fn circuit(open: bool, generation: u64) -> Event {
        Event::Circuit { open, decided: generation * 10, generation, why: "Some(Results)".into() }
    }

    fn call(at: u64, worker: u32, job: u64, generation: u64) -> [Record; 2] {
        [
            record(at, worker, Event::Begun { job, generation }),
            record(at + 1, worker, Event::Ended { job, failed: true }),
        ]
    }

    /// Two failures of two workers open it, and it closes by a check of one.
    fn sound() -> Vec<Record> {
        let mut records =
            vec![record(0, 1, Event::Started { pid: 1 }), record(0, 2, Event::Started { pid: 2 })];
        records.extend(call(10, 1, 1, 7));
        records.extend(call(20, 2, 1, 7));
        records.push(record(30, 1, circuit(true, 8)));
        records.push(record(31, 2, circuit(true, 8)));
        records.push(record(40, 1, Event::Checking));
        records.push(record(50, 1, Event::Checked { ok: Some(true) }));
        records.push(record(60, 1, circuit(false, 9)));
        records.push(record(61, 2, circuit(false, 9)));
        records.extend(call(70, 1, 2, 9));
        records
    }

    #[test]
    fn cb_7_a_sound_history_has_no_fault_and_each_wrong_one_has_its_own() {
        assert_eq!(judge(&sound(), 2, &[]), Vec::<String>::new());
        let with = |more: Vec<Record>| judge(&[sound(), more].concat(), 2, &[]);
        let one = |wrong: &[String], part: &str| {
            assert!(wrong.len() == 1 && wrong[0].contains(part), "{part}: {wrong:?}");
        };
        one(&with(vec![record(62, 1, circuit(true, 9))])[..1], "from generation 9 to 9");
        let other = Event::Circuit { open: true, decided: 81, generation: 8, why: "Some(Check)".into() };
        one(&with(vec![record(32, 3, other)]), "others (true, 80)");
        one(&with(vec![record(35, 2, Event::Begun { job: 9, generation: 8 })]), "4000000 us after it knew");
        // One failure under the generation before, and any number under older ones.
        let late: Vec<Record> = (80..90).flat_map(|at| call(at, 2, at, 7)).collect();
        one(&with([late, vec![record(95, 1, circuit(true, 10))]].concat()), "after 1 failures");
        let beside = [record(45, 2, Event::Checking), record(48, 2, Event::Checked { ok: None })];
        one(&with(beside.to_vec()), "checked at once");
        let both = [sound(), beside.to_vec()].concat();
        let freeze = Freeze { worker: 1, from: 42_000_000, to: 49_000_000 };
        assert_eq!(judge(&both, 2, &[freeze]), Vec::<String>::new());
        let leads = |at, worker, leads| record(at, worker, Event::Role { leads });
        let follows = vec![leads(32, 1, true), leads(55, 1, false), leads(55, 2, true), leads(58, 2, false)];
        assert_eq!(with(follows), Vec::<String>::new());
        one(&with(vec![leads(32, 1, true), leads(50, 2, true), leads(55, 1, false)]), "led at once");
        assert_eq!(judge(&both, 2, &[Freeze { from: 50_000_000, to: 60_000_000, ..freeze }]).len(), 1);
    }

    #[test]
    fn cb_7_fewer_failures_than_the_threshold_are_a_fault() {
        let wrong = judge(&sound(), 3, &[]);
        assert!(wrong.len() == 1 && wrong[0].contains("after 2 failures"), "{wrong:?}");
    }
}
