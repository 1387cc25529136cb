//! From records to a history.

use std::collections::{BTreeMap, HashMap};

use super::{Admission, Credit, Held, History, Lease, Refusal, Unseen, Use};
use crate::record::{Event, Record, Spent};

/// A worker that died less than this after it refused a job may have had that job's request under way, in microseconds.
const UNDER_WAY: u64 = 2_000_000;

impl History {
    /// What the records of the workers of one id say.
    pub fn of(records: &[Record]) -> Self {
        let mut in_order: Vec<&Record> = records.iter().collect();
        in_order.sort_by_key(|record| record.at);
        let mut reading = Reading::default();
        in_order.into_iter().for_each(|record| reading.take(record));
        reading.end()
    }
}

#[derive(Default)]
struct Reading {
    history: History,
    /// Where in the history a lease is.
    held: HashMap<Lease, usize>,
    /// Where in the history a job's use is.
    uses: HashMap<(u32, u64), usize>,
    workers: BTreeMap<u32, Worker>,
}

#[derive(Default)]
struct Worker {
    /// When each job that waits had asked.
    waiting: HashMap<u64, u64>,
    /// Jobs that were refused, and when they had asked.
    refused: Vec<(u64, u64)>,
    last_seen: u64,
    /// Whether it ended as it was told to.
    stopped: bool,
}

impl Reading {
    fn take(&mut self, Record { at, worker: number, event }: &Record) {
        let (at, number) = (*at, *number);
        let worker = self.workers.entry(number).or_default();
        worker.last_seen = at;
        match event {
            Event::Started { .. } | Event::Killed | Event::Lost { .. } | Event::Trouble { .. } => {}
            // Of a breaker: `circuits` judges these.
            Event::Circuit { .. }
            | Event::Role { .. }
            | Event::Begun { .. }
            | Event::Ended { .. }
            | Event::Blocked { .. }
            | Event::Checking
            | Event::Checked { .. } => {}
            Event::Stopped => worker.stopped = true,
            Event::Called { job } => drop(worker.waiting.insert(*job, at)),
            Event::Granted { job, lease, .. } => {
                worker.waiting.remove(job);
                if let Some(lease) = *lease {
                    self.uses.insert((number, *job), self.history.uses.len());
                    self.history.uses.push(Use { worker: number, job: *job, lease, granted: at, live: 0 });
                }
            }
            Event::Refused { job, cause, local, timeout, .. } => {
                let called = worker.waiting.remove(job).unwrap_or(at);
                worker.refused.push((called, at));
                if cause.as_deref() == Some("slots") && !local {
                    let single = *timeout == 0;
                    let refusal = Refusal { worker: number, job: *job, called, refused: at, single };
                    self.history.refusals.push(refusal);
                }
            }
            Event::Live { job } => {
                if let Some(at_use) = self.uses.get(&(number, *job)) {
                    self.history.uses[*at_use].live = at;
                }
            }
            Event::Released { .. } => {}
            Event::Admitted { sent, lease, deadline, limit, spent } => {
                if let Some(lease) = *lease {
                    let deadline = deadline.unwrap_or(*sent);
                    self.grant(Held { limit: *limit, ..granted(number, lease, (*sent, at), deadline) });
                }
                let admissions = spent.iter().map(|spent| Admission {
                    rule: key(spent),
                    asked: *sent,
                    granted: at,
                    cost: spent.cost,
                });
                self.history.admissions.extend(admissions);
            }
            Event::HandedOver { sent, lease, deadline } => {
                self.grant(Held { handed_over: true, ..granted(number, *lease, (*sent, at), *deadline) });
            }
            Event::Renewed { lease, deadline, .. } => {
                if let Some(held) = self.held(*lease) {
                    held.deadline = held.deadline.max(*deadline);
                    held.kept = held.kept.max(at);
                }
            }
            Event::Gone { lease } => {
                if let Some(held) = self.held(*lease) {
                    held.gone.get_or_insert(at);
                }
            }
            Event::Releasing { lease } => {
                if let Some(held) = self.held(*lease) {
                    held.releasing.get_or_insert(at);
                }
            }
            Event::Freed { lease } => {
                if let Some(held) = self.held(*lease) {
                    held.freed.get_or_insert(at);
                }
            }
            Event::Crediting { sent, credit } => {
                let (rule, amount) = (key(credit), credit.cost);
                self.history.credits.push(Credit { rule, sent: *sent, answered: u64::MAX, amount });
            }
            Event::Credited { sent } => {
                let of_it = |credit: &&mut Credit| credit.sent == *sent && credit.answered == u64::MAX;
                self.history.credits.iter_mut().filter(of_it).for_each(|credit| credit.answered = at);
            }
            Event::Unanswered { sent, jobs, renewals } => {
                if *jobs > 0 {
                    self.history.unseen.push(Unseen { from: *sent, until: at, leases: *jobs });
                }
                for lease in renewals {
                    if let Some(held) = self.held(*lease) {
                        held.kept = held.kept.max(at);
                    }
                }
            }
        }
    }

    fn grant(&mut self, held: Held) {
        self.held.insert(held.lease, self.history.held.len());
        self.history.held.push(held);
    }

    fn held(&mut self, lease: Lease) -> Option<&mut Held> {
        self.held.get(&lease).map(|at| &mut self.history.held[*at])
    }

    fn end(mut self) -> History {
        for (number, worker) in self.workers.iter().filter(|(_, worker)| !worker.stopped) {
            // Its last requests may have been carried out without anyone to hear of it.
            let died = worker.last_seen;
            let just_refused =
                worker.refused.iter().filter(|(_, refused)| died.saturating_sub(*refused) < UNDER_WAY);
            let asked = worker.waiting.values().chain(just_refused.map(|(called, _)| called));
            self.history.unseen.extend(asked.map(|&from| Unseen { from, until: died, leases: 1 }));
            for held in self.history.held.iter_mut().filter(|held| held.worker == *number) {
                held.kept = held.kept.max(died);
            }
        }
        self.history
    }
}

fn granted(worker: u32, lease: Lease, (asked, granted): (u64, u64), deadline: u64) -> Held {
    Held {
        worker,
        lease,
        asked,
        granted,
        deadline,
        kept: granted,
        releasing: None,
        freed: None,
        gone: None,
        limit: None,
        handed_over: false,
    }
}

/// The key of a rule, with the identity behind it where it has a scope.
fn key(spent: &Spent) -> String {
    match &spent.identity {
        Some(identity) => format!("{}/{identity}", spent.rule),
        None => spent.rule.clone(),
    }
}
