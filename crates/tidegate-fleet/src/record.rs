//! What a worker writes down, a line of JSON each: moments in microseconds of the machine's one clock.

use serde::{Deserialize, Serialize};
use tidegate::Token;

/// One thing that one worker saw.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Record {
    /// When it was written: for a request before it went out, for an answer after it was there.
    pub at: u64,
    /// By which worker.
    pub worker: u32,
    /// What.
    #[serde(flatten)]
    pub event: Event,
}

/// What there is to see. Jobs are numbered from 0 in each worker.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Event {
    /// The worker begins.
    Started {
        /// Its process.
        pid: u32,
    },
    /// The worker ends as it was told to, with nothing left that it holds or owes to the store.
    Stopped,
    /// Its process was ended from outside. Written by the one who did it, when it was dead.
    Killed,

    // What a task sees.
    /// A job asks for a permit.
    Called {
        /// Which.
        job: u64,
    },
    /// It has one.
    Granted {
        /// Which.
        job: u64,
        /// Its lease, where concurrency is bounded fleet-wide and the store granted it.
        lease: Option<Lease>,
        /// Whether the process granted it by itself, while the store was away.
        local: bool,
        /// The limit in force at the grant, of a semaphore.
        limit: Option<u32>,
        /// Until when the lease was known to live at that moment.
        deadline: Option<u64>,
    },
    /// It got none.
    Refused {
        /// Which.
        job: u64,
        /// The code of the error.
        code: String,
        /// What it says, with its causes.
        why: String,
        /// What denied it last, for a timeout.
        cause: Option<String>,
        /// Whether the process decided that by itself, while the store was away.
        local: bool,
        /// How long it would have waited.
        timeout: u64,
    },
    /// The lease was seen to be live, at the moment of the record or later.
    Live {
        /// Whose.
        job: u64,
    },
    /// The job hands its permit back; written before that.
    Released {
        /// Which.
        job: u64,
        /// With what.
        outcome: String,
    },
    /// The job was told that its lease is lost.
    Lost {
        /// Which.
        job: u64,
    },
    /// Trouble that no caller waits to hear of.
    Trouble {
        /// The code of it.
        code: String,
        /// What it says, with its causes.
        why: String,
    },

    // What a process with a circuit breaker sees.
    /// It knows of a change of the circuit.
    Circuit {
        /// Whether it is open now.
        open: bool,
        /// When the store decided that, by the store's clock.
        decided: u64,
        /// The generation that begins.
        generation: u64,
        /// What for.
        why: String,
    },
    /// It leads, or leads no more.
    Role {
        /// Whether it leads.
        leads: bool,
    },
    /// A call runs.
    Begun {
        /// Which.
        job: u64,
        /// The generation under which it began, or a later one.
        generation: u64,
    },
    /// A call is at its end.
    Ended {
        /// Which.
        job: u64,
        /// Whether it failed.
        failed: bool,
    },
    /// A call was blocked.
    Blocked {
        /// Which.
        job: u64,
    },
    /// A health check begins.
    Checking,
    /// A health check is at its end.
    Checked {
        /// Whether it went well; none where it was dropped.
        ok: Option<bool>,
    },

    // What passes between the process and its store.
    /// The store granted a job; the record is of the moment when the answer was there.
    Admitted {
        /// When the request was sent, first of all where it was sent again.
        sent: u64,
        /// Its lease, where concurrency is bounded fleet-wide.
        lease: Option<Lease>,
        /// Until when it certainly lives, unless it is renewed.
        deadline: Option<u64>,
        /// The limit in force.
        limit: Option<u32>,
        /// What it spent in each rule, by the rule's key, and the identity where the rule has a scope.
        spent: Vec<Spent>,
    },
    /// The store counts a lease that the process had granted by itself.
    HandedOver {
        /// When the request was sent.
        sent: u64,
        /// The lease.
        lease: Lease,
        /// Until when it certainly lives, unless it is renewed.
        deadline: u64,
    },
    /// A lease lives on.
    Renewed {
        /// When the request was sent.
        sent: u64,
        /// Which.
        lease: Lease,
        /// Until when it certainly lives, unless it is renewed again.
        deadline: u64,
    },
    /// The store says that a lease lives no more.
    Gone {
        /// Which.
        lease: Lease,
    },
    /// A lease is about to be given back to the store.
    Releasing {
        /// Which.
        lease: Lease,
    },
    /// The store has a lease back.
    Freed {
        /// Which.
        lease: Lease,
    },
    /// A cost is about to be corrected to less: what is credited may be spent again.
    Crediting {
        /// When that was first sent.
        sent: u64,
        /// In which rule, and how much.
        credit: Spent,
    },
    /// The store has corrected costs.
    Credited {
        /// When the corrections were sent.
        sent: u64,
    },
    /// A request was given up without an answer; what it asked for may have been done, or may yet be.
    Unanswered {
        /// When it was sent.
        sent: u64,
        /// How many jobs it asked for.
        jobs: u32,
        /// Which leases it would have renewed.
        renewals: Vec<Lease>,
    },
}

/// The token of a lease, in parts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct Lease {
    /// The life of the id's state in which it was granted.
    pub epoch: u64,
    /// Its place.
    pub slot: u32,
    /// Its number.
    pub fence: u64,
}

impl From<Token> for Lease {
    fn from(token: Token) -> Self {
        Self { epoch: token.epoch.0, slot: token.slot, fence: token.fence }
    }
}

impl std::fmt::Display for Lease {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}-{}", self.epoch, self.slot, self.fence)
    }
}

/// What a job spent in one rule.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Spent {
    /// The key of the rule.
    pub rule: String,
    /// For whom, where the rule has a scope.
    pub identity: Option<String>,
    /// How much.
    pub cost: u64,
}

impl Record {
    /// The line of it.
    ///
    /// # Errors
    /// What `serde_json` says; none is known.
    pub fn to_line(&self) -> serde_json::Result<String> {
        serde_json::to_string(self).map(|line| line + "\n")
    }

    /// Reads a line.
    ///
    /// # Errors
    /// What is not a record's line: the last one of a worker that was killed may be half a line.
    pub fn from_line(line: &str) -> serde_json::Result<Self> {
        serde_json::from_str(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_all_of_a_record() {
        let lease = Lease { epoch: u64::MAX, slot: 3, fence: 1 << 60 };
        let records = [
            Event::Started { pid: 7 },
            Event::Stopped,
            Event::Granted { job: 1, lease: Some(lease), local: false, limit: Some(4), deadline: Some(9) },
            Event::Admitted {
                sent: 1,
                lease: None,
                deadline: None,
                limit: None,
                spent: vec![Spent { rule: "named:a".into(), identity: Some("{é}\n".into()), cost: 5 }],
            },
            Event::Unanswered { sent: 2, jobs: 3, renewals: vec![lease] },
        ]
        .map(|event| Record { at: u64::MAX, worker: 2, event });
        for record in records {
            let line = record.to_line().unwrap();
            assert_eq!(line.matches('\n').count(), 1, "{line}");
            assert_eq!(Record::from_line(&line).unwrap(), record);
        }
        assert!(Record::from_line(r#"{"at":1,"worker":2,"event":"sto"#).is_err());
    }
}
