//! Answers that break the contract.
//!
//! Spec: UN-1.

use tidegate_core::{
    AcquireReply, Acquired, CircuitDid, CircuitReply, Denial, Epoch, Exchange, ExchangeReply, Grant, Marks,
    Member, Reply, ScopedDenial, ScopedGrant, ScopedReply, Token,
};

/// In which way an answer breaks the contract.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Garbage {
    /// A job is answered twice.
    IndexTwice,
    /// A job is not answered.
    IndexMissing,
    /// More jobs are granted than were asked for.
    MoreGrants,
    /// A lease is given twice.
    TokenTwice,
    /// A denial says to come again at once.
    ZeroHint,
    /// A job is granted, and the id is said to be paused.
    GrantInPause,
}

impl Garbage {
    /// All of them.
    pub const ALL: [Self; 6] = [
        Self::IndexTwice,
        Self::IndexMissing,
        Self::MoreGrants,
        Self::TokenTwice,
        Self::ZeroHint,
        Self::GrantInPause,
    ];

    pub(super) fn spoil_prefix(self, reply: &mut Reply<AcquireReply>, member: &Member, jobs: usize) {
        if self == Self::GrantInPause {
            reply.head.paused_ms = reply.head.paused_ms.max(1_000);
        }
        self.prefix(&mut reply.body, member, jobs);
    }

    pub(super) fn spoil_scoped(self, reply: &mut Reply<ScopedReply>, member: &Member, jobs: usize) {
        if self == Self::GrantInPause {
            reply.head.paused_ms = reply.head.paused_ms.max(1_000);
        }
        self.scoped(&mut reply.body, member, jobs);
    }

    /// The first acquire of it, if there is one that was answered.
    pub(super) fn spoil_exchange(self, reply: &mut Reply<ExchangeReply>, member: &Member, asked: &Exchange) {
        let answered = asked.acquires.iter().zip(&mut reply.body.acquired);
        for (acquire, part) in answered {
            match part {
                Ok(Acquired::Prefix(body)) => self.prefix(body, member, acquire.jobs()),
                Ok(Acquired::Scoped(body)) => self.scoped(body, member, acquire.jobs()),
                Err(_) => continue,
            }
            if self == Self::GrantInPause {
                reply.head.paused_ms = reply.head.paused_ms.max(1_000);
            }
            return;
        }
    }

    /// Of a circuit there are no grants: it is an answer too many or too few, a view that makes no sense, or no time.
    pub(super) fn spoil_circuit(self, reply: &mut Reply<CircuitReply>) {
        let body = &mut reply.body;
        match self {
            Self::IndexTwice | Self::MoreGrants => body.did.push(CircuitDid::GaveBack(true)),
            Self::IndexMissing | Self::TokenTwice if body.did.pop().is_some() => {}
            Self::ZeroHint => {
                let attempt = body.view.attempt;
                body.view.attempt = attempt.xor(Some(1));
            }
            _ => reply.head.now = None,
        }
    }

    fn prefix(self, reply: &mut AcquireReply, member: &Member, jobs: usize) {
        let denial = Denial { hint_ms: 1, lease_blocked: false, rule: None };
        match self {
            // Each index is implied here: the denial answers the last job, which was granted.
            Self::IndexTwice => {
                while reply.grants.len() < jobs {
                    reply.grants.push(invented(member));
                }
                reply.denied = Some(denial);
            }
            Self::IndexMissing => {
                if reply.denied.take().is_none() {
                    reply.grants.pop();
                }
            }
            Self::MoreGrants => {
                while reply.grants.len() <= jobs {
                    reply.grants.push(invented(member));
                }
            }
            Self::TokenTwice => {
                let first = reply.grants.first().cloned().unwrap_or_else(|| invented(member));
                while reply.grants.len() < 2 {
                    reply.grants.push(first.clone());
                }
                if let Some(second) = reply.grants.get_mut(1) {
                    second.lease = first.lease;
                }
                if reply.grants.len() >= jobs {
                    reply.denied = None;
                }
            }
            Self::ZeroHint => {
                if reply.denied.is_none() {
                    reply.grants.pop();
                }
                reply.denied = Some(Denial { hint_ms: 0, ..reply.denied.take().unwrap_or(denial) });
            }
            Self::GrantInPause => {
                if reply.grants.is_empty() {
                    reply.grants.push(invented(member));
                    if jobs == 1 {
                        reply.denied = None;
                    }
                }
            }
        }
    }

    fn scoped(self, reply: &mut ScopedReply, member: &Member, jobs: usize) {
        let denial = Denial { hint_ms: 1, lease_blocked: false, rule: None };
        match self {
            Self::IndexTwice => {
                let index = reply.grants.first().map_or(0, |granted| granted.index);
                reply.denied.push(ScopedDenial { index, denial });
            }
            Self::IndexMissing => {
                if reply.grants.pop().is_none() {
                    reply.denied.pop();
                }
            }
            Self::MoreGrants => {
                while reply.grants.len() <= jobs {
                    let index = reply.grants.len();
                    reply.grants.push(ScopedGrant { index, grant: invented(member) });
                }
            }
            Self::TokenTwice => {
                let first =
                    reply.grants.first().map_or_else(|| invented(member), |granted| granted.grant.clone());
                while reply.grants.len() < 2 {
                    let index = reply.denied.pop().map_or(0, |denied| denied.index);
                    reply.grants.push(ScopedGrant { index, grant: first.clone() });
                }
                if let Some(second) = reply.grants.get_mut(1) {
                    second.grant.lease = first.lease;
                }
            }
            Self::ZeroHint => match reply.denied.first_mut() {
                Some(denied) => denied.denial.hint_ms = 0,
                None => {
                    let index = reply.grants.pop().map_or(0, |granted| granted.index);
                    reply.denied.push(ScopedDenial { index, denial: Denial { hint_ms: 0, ..denial } });
                }
            },
            Self::GrantInPause => {
                if reply.grants.is_empty() {
                    let index = reply.denied.pop().map_or(0, |denied| denied.index);
                    reply.grants.push(ScopedGrant { index, grant: invented(member) });
                }
            }
        }
    }
}

/// A grant that no store made.
fn invented(member: &Member) -> Grant {
    let token = Token { epoch: Epoch(0), slot: 0, fence: 0 };
    Grant { lease: member.policy.bound().map(|_| token), marks: Marks::default() }
}
