//! Stores that break a rule each.

// Each test uses a part of it. Helpers of tests are in no test by the lint's count.
#![allow(dead_code, clippy::unwrap_used)]

use std::{
    future::ready,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tidegate_core::{
    AcquireReply, AcquireRequest, Answer, Capabilities, Capability, CircuitAct, CircuitMember, CircuitPolicy,
    CircuitReply, CircuitRequest, Denial, DriverId, Epoch, Exchange, ExchangeReply, HandOver, Head, Id,
    Identity, LeaseView, Listener, Member, Observation, Operators, Page, PauseReply, Policy, Release,
    Renewal, Renewed, Reply, Restore, RuleKey, ScopedDenial, ScopedReply, ScopedRequest, Sequence, Settled,
    Settlement, Snapshot, Store, StoreError, Subscription, SyncPath, Token, Wake,
    circuit::{CheckKind, Position},
};
use tidegate_testkit::{Subject, reference::ModelStore};

#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Mutation {
    SkipsJobsThatDoNotFit,
    SpendsInPart,
    HintTooSmall,
    HintTooLarge,
    HintOfZero,
    TakesAnyPolicy,
    ForgetsOnRevision,
    ReleasesWhateverIsInTheSlot,
    LeavesTheLowestSlotFree,
    FencesThatDoNotGrow,
    SaysThatAllLive,
    RunsRepeatsAgain,
    TakesLowerNumbers,
    NeverTooLate,
    ShortensPauses,
    GrantsInAPause,
    BlamesSlotsAlways,
    ScopedStopsAtTheFirstDenial,
    ScopedBeginsBeforeItHasChecked,
    IdentitiesEndAtAColon,
    IdsIgnoreCase,
    NeverSettles,
    RaisesByObserving,
    HidesLeases,
    OneEpochForEver,
    LendsEverySlice,
    WakesNobody,
    ServesWhoeverComes,
    OffersWhatItHoldsBack,
    DeafToResume,
    ChargesForNothing,
    DeniesWhatCanNeverFit,
    OtherStateOnTheSynchronousPath,
    ForgetsWithLeases,
    IdsInAnyOrder,
    RestoresNoPause,
    TakesUpTheSlotOfAnother,
    PanicsOnAnEmptyRequest,
    CountsReportsAgain,
    GrantsATrialForEachAnswer,
    BelievesWhoeverChecked,
    CountsWhatIsOld,
    KeepsCircuitsToItself,
    TakesAnyCircuitPolicy,
    ProbesAreNeverPutOff,
}

/// The model, with one thing wrong.
pub(crate) struct Mutant {
    inner: ModelStore,
    other: ModelStore,
    mutation: Mutation,
    pinned: Mutex<Option<Arc<Policy>>>,
    circuit: Mutex<Option<Arc<CircuitPolicy>>>,
    /// Another number each time.
    serial: AtomicU64,
}

impl Mutant {
    pub(crate) fn subject(mutation: Mutation) -> Subject {
        let inner = ModelStore::default();
        let other = ModelStore::at(inner.clock());
        let (clock, wiped) = (inner.clock().clone(), inner.clone());
        let mutant = Self {
            inner,
            other,
            mutation,
            pinned: Mutex::default(),
            circuit: Mutex::default(),
            serial: AtomicU64::new(1),
        };
        Subject::new(mutant).clock(&clock).wipe(move || {
            wiped.wipe();
            ready(())
        })
    }

    fn is(&self, mutation: Mutation) -> bool {
        self.mutation == mutation
    }

    fn id(&self, id: &Id) -> Id {
        let id = id.as_str();
        Id::new(if self.is(Mutation::IdsIgnoreCase) { id.to_lowercase() } else { id.to_owned() }).unwrap()
    }

    fn member(&self, member: &Member) -> Member {
        Member { id: self.id(&member.id), ..member.clone() }
    }

    fn head(&self, head: &mut Head) {
        if self.is(Mutation::OneEpochForEver) {
            head.epoch = Some(Epoch(7));
        }
    }

    /// A token as it is shown.
    fn shown(&self, token: &mut Token) {
        if self.is(Mutation::LeavesTheLowestSlotFree) {
            token.slot += 1;
        }
        if self.is(Mutation::FencesThatDoNotGrow) {
            token.fence = u64::from(token.slot);
        }
    }

    fn denial(&self, denial: &mut Denial) {
        match self.mutation {
            Mutation::HintTooSmall => denial.hint_ms = denial.hint_ms.saturating_sub(1).max(1),
            Mutation::HintTooLarge => denial.hint_ms += 1,
            Mutation::HintOfZero => denial.hint_ms = 0,
            Mutation::BlamesSlotsAlways => denial.lease_blocked = true,
            _ => {}
        }
    }

    async fn one_by_one(
        &self,
        member: &Member,
        request: &AcquireRequest,
    ) -> Result<Reply<AcquireReply>, StoreError> {
        let mut all: Option<Reply<AcquireReply>> = None;
        for job in &request.jobs {
            let request = AcquireRequest { jobs: vec![job.clone()], ..request.clone() };
            let reply = self.inner.acquire(member, &request).await?;
            let all = all.get_or_insert(Reply { head: reply.head, body: AcquireReply::default() });
            all.body.grants.extend(reply.body.grants);
            all.body.denied = reply.body.denied.or(all.body.denied.take());
        }
        all.ok_or_else(|| StoreError::unavailable(tidegate_core::Cause::Broken, "no job"))
    }

    async fn acquired(
        &self,
        member: &Member,
        request: &AcquireRequest,
    ) -> Result<Reply<AcquireReply>, StoreError> {
        match self.mutation {
            Mutation::SkipsJobsThatDoNotFit => return self.one_by_one(member, request).await,
            Mutation::TakesAnyPolicy => {
                let pinned = self.pinned.lock().unwrap().get_or_insert_with(|| member.policy.clone()).clone();
                let member = Member { policy: pinned, ..member.clone() };
                return self.inner.acquire(&member, request).await;
            }
            Mutation::ForgetsOnRevision => {
                let pinned = self.pinned.lock().unwrap().replace(member.policy.clone());
                if pinned.is_some_and(|pinned| pinned.revision() < member.policy.revision()) {
                    self.inner.wipe();
                }
            }
            Mutation::GrantsInAPause => {
                self.inner.resume(&member.id).await?;
            }
            Mutation::LendsEverySlice => {
                let class = member.policy.classes().first().map(|class| class.name.clone());
                let request = AcquireRequest { class, ..request.clone() };
                return self.inner.acquire(member, &request).await;
            }
            Mutation::ServesWhoeverComes => {
                let mut request = request.clone();
                // As if it had waited longest.
                request.line.waited_ms = request.line.waited_ms.max(1 << 40);
                return self.inner.acquire(member, &request).await;
            }
            Mutation::ChargesForNothing => {
                let mut request = request.clone();
                request.jobs.iter_mut().for_each(|job| job.costs.each = job.costs.each.max(1));
                return self.inner.acquire(member, &request).await;
            }
            Mutation::PanicsOnAnEmptyRequest => assert!(!request.jobs.is_empty(), "an empty request"),
            _ => {}
        }
        let answer = self.inner.acquire(member, request).await;
        if self.is(Mutation::SpendsInPart) {
            self.spend_elsewhere(member, &answer).await;
        }
        match answer {
            Err(StoreError::CostExceedsLimit { rule, .. }) if self.is(Mutation::DeniesWhatCanNeverFit) => {
                let denied = Some(Denial { hint_ms: 1_000, lease_blocked: false, rule: Some(rule) });
                Ok(Reply { head: Head::default(), body: AcquireReply { denied, ..AcquireReply::default() } })
            }
            answer => answer,
        }
    }

    /// Spends the cost of a denied job in the rules that did not deny it.
    async fn spend_elsewhere(&self, member: &Member, answer: &Result<Reply<AcquireReply>, StoreError>) {
        let Ok(reply) = answer else { return };
        let denied = reply.body.denied.as_ref().and_then(|denied| denied.rule.clone());
        let Some(denied) = denied else { return };
        for rule in member.policy.rules().iter().filter(|rule| *rule.key() != denied) {
            let rule: RuleKey = rule.key().clone();
            let at = reply.head.now.unwrap();
            let settlement = Settlement { rule, identity: None, granted_at: at, cost: 0, actual: 1 };
            self.inner.settle(member, &[settlement]).await.unwrap();
        }
    }

    async fn scoped(
        &self,
        member: &Member,
        request: &ScopedRequest,
    ) -> Result<Reply<ScopedReply>, StoreError> {
        match self.mutation {
            Mutation::ScopedStopsAtTheFirstDenial => {
                let mut all: Option<Reply<ScopedReply>> = None;
                let mut over = false;
                for (index, job) in request.jobs.iter().enumerate() {
                    if over {
                        let denial = Denial { hint_ms: 1, lease_blocked: false, rule: None };
                        let all = all.as_mut().unwrap();
                        all.body.denied.push(ScopedDenial { index, denial });
                        continue;
                    }
                    let request = ScopedRequest { jobs: vec![job.clone()], ..request.clone() };
                    let reply = self.inner.acquire_scoped(member, &request).await?;
                    let all = all.get_or_insert(Reply { head: reply.head, body: ScopedReply::default() });
                    all.body.grants.extend(reply.body.grants.into_iter().map(|mut granted| {
                        granted.index = index;
                        granted
                    }));
                    over = !reply.body.denied.is_empty();
                    all.body.denied.extend(reply.body.denied.into_iter().map(|mut denied| {
                        denied.index = index;
                        denied
                    }));
                }
                Ok(all.unwrap())
            }
            Mutation::ScopedBeginsBeforeItHasChecked => {
                let answer = self.inner.acquire_scoped(member, request).await;
                if let (Err(_), Some(job)) = (&answer, request.jobs.first()) {
                    let request = ScopedRequest { jobs: vec![job.clone()], ..request.clone() };
                    let _ = self.inner.acquire_scoped(member, &request).await;
                }
                answer
            }
            Mutation::IdentitiesEndAtAColon => {
                let mut request = request.clone();
                for (_, identity) in request.jobs.iter_mut().flat_map(|job| &mut job.scopes) {
                    let cut =
                        identity.as_str().split(':').next().filter(|cut| !cut.is_empty()).unwrap_or(":");
                    *identity = Identity::new(cut).unwrap();
                }
                self.inner.acquire_scoped(member, &request).await
            }
            _ => self.inner.acquire_scoped(member, request).await,
        }
    }

    async fn released(&self, member: &Member, releases: &[Release]) -> Result<Reply<()>, StoreError> {
        if self.is(Mutation::ReleasesWhateverIsInTheSlot) {
            for release in releases {
                let page = self.inner.leases(&member.id, None, 1_000).await?.body.items;
                if let Some(view) = page.iter().find(|view| view.token.slot == release.token.slot) {
                    self.inner.evict(&member.id, view.token).await?;
                }
            }
        }
        self.inner.release(member, releases).await
    }

    async fn renewed(
        &self,
        member: &Member,
        restore: Option<&Restore>,
        renewals: &[Renewal],
    ) -> Result<Reply<Renewed>, StoreError> {
        let restore = restore.copied().map(|mut restore| {
            if self.is(Mutation::RestoresNoPause) {
                restore.paused_ms = 0;
            }
            restore
        });
        if self.is(Mutation::TakesUpTheSlotOfAnother) && restore.is_some() {
            for renewal in renewals {
                for view in self.inner.leases(&member.id, None, 1_000).await?.body.items {
                    if view.token.slot == renewal.token.slot {
                        self.inner.evict(&member.id, view.token).await?;
                        // As if the slot had never had a higher fence.
                    }
                }
            }
            let mut reply = self.inner.renew(member, restore.as_ref(), renewals).await?;
            reply.body.live.fill(true);
            return Ok(reply);
        }
        let mut reply = self.inner.renew(member, restore.as_ref(), renewals).await?;
        if self.is(Mutation::SaysThatAllLive) {
            reply.body.live.fill(true);
        }
        Ok(reply)
    }

    async fn circuit_asked(
        &self,
        member: &CircuitMember,
        request: &CircuitRequest,
    ) -> Result<Reply<CircuitReply>, StoreError> {
        let (mut member, mut request) = (member.clone(), request.clone());
        if self.is(Mutation::TakesAnyCircuitPolicy) {
            let mut pinned = self.circuit.lock().unwrap();
            member.policy = Arc::clone(pinned.get_or_insert_with(|| Arc::clone(&member.policy)));
        }
        let concerned = [
            Mutation::CountsReportsAgain,
            Mutation::GrantsATrialForEachAnswer,
            Mutation::BelievesWhoeverChecked,
            Mutation::CountsWhatIsOld,
            Mutation::ProbesAreNeverPutOff,
        ];
        // What is refused stays refused.
        if concerned.contains(&self.mutation) && request.check().is_ok() {
            let view = self.inner.circuit(&member, &CircuitRequest::default()).await?.body.view;
            for act in &mut request.acts {
                match (self.mutation, act) {
                    (Mutation::CountsReportsAgain, CircuitAct::Report { number, .. })
                    | (Mutation::GrantsATrialForEachAnswer, CircuitAct::Trial { ask: number }) => {
                        *number = self.serial.fetch_add(1, Ordering::Relaxed);
                    }
                    (Mutation::CountsWhatIsOld, CircuitAct::Report { generation, .. }) => {
                        *generation = view.generation;
                    }
                    (Mutation::BelievesWhoeverChecked, CircuitAct::Verdict { fence, .. }) => {
                        if let Some(leader) = view.leader {
                            (member.driver, *fence) = (leader.driver, leader.fence);
                        }
                    }
                    (
                        Mutation::ProbesAreNeverPutOff,
                        CircuitAct::Verdict { kind: CheckKind::Idle { at_ms }, .. },
                    ) => *at_ms = view.next_ms.unwrap_or(*at_ms),
                    _ => {}
                }
            }
        }
        self.inner.circuit(&member, &request).await
    }
}

impl Store for Mutant {
    fn capabilities(&self) -> Capabilities {
        let all = self.inner.capabilities();
        if self.is(Mutation::HidesLeases) {
            all.without(Capability::Leases).without(Capability::Adaptive)
        } else {
            all
        }
    }

    fn acquire<'a>(&'a self, member: &'a Member, request: &'a AcquireRequest) -> Answer<'a, AcquireReply> {
        Box::pin(async move {
            let mut reply = self.acquired(&self.member(member), request).await?;
            self.head(&mut reply.head);
            reply
                .body
                .grants
                .iter_mut()
                .filter_map(|grant| grant.lease.as_mut())
                .for_each(|token| self.shown(token));
            reply.body.denied.iter_mut().for_each(|denied| self.denial(denied));
            Ok(reply)
        })
    }

    fn pause<'a>(&'a self, id: &'a Id, length: Duration) -> Answer<'a, PauseReply> {
        Box::pin(async move {
            let id = self.id(id);
            if self.is(Mutation::ShortensPauses) {
                self.inner.resume(&id).await?;
            }
            self.inner.pause(&id, length).await
        })
    }

    fn resume<'a>(&'a self, id: &'a Id) -> Answer<'a, bool> {
        Box::pin(async move { self.inner.resume(&self.id(id)).await })
    }

    fn acquire_scoped<'a>(
        &'a self,
        member: &'a Member,
        request: &'a ScopedRequest,
    ) -> Answer<'a, ScopedReply> {
        Box::pin(async move { self.scoped(&self.member(member), request).await })
    }

    fn release<'a>(&'a self, member: &'a Member, releases: &'a [Release]) -> Answer<'a, ()> {
        Box::pin(async move { self.released(&self.member(member), releases).await })
    }

    fn renew<'a>(
        &'a self,
        member: &'a Member,
        restore: Option<&'a Restore>,
        renewals: &'a [Renewal],
    ) -> Answer<'a, Renewed> {
        Box::pin(async move { self.renewed(&self.member(member), restore, renewals).await })
    }

    fn hand_over<'a>(&'a self, member: &'a Member, hand_overs: &'a [HandOver]) -> Answer<'a, Vec<Token>> {
        self.inner.hand_over(member, hand_overs)
    }

    fn settle<'a>(&'a self, member: &'a Member, settlements: &'a [Settlement]) -> Answer<'a, Vec<Settled>> {
        if self.is(Mutation::NeverSettles) {
            let answers = vec![Settled::default(); settlements.len()];
            return Box::pin(async move {
                let reply = self.inner.settle(member, &[]).await?;
                Ok(reply.map(|_| answers))
            });
        }
        self.inner.settle(member, settlements)
    }

    fn observe<'a>(&'a self, member: &'a Member, observations: &'a [Observation]) -> Answer<'a, Vec<bool>> {
        Box::pin(async move {
            if self.is(Mutation::RaisesByObserving) {
                for seen in observations {
                    let (rule, granted_at) = (seen.rule.clone(), seen.granted_at);
                    let cost = seen.remaining.min(1_000);
                    let credit =
                        Settlement { rule, identity: seen.identity.clone(), granted_at, cost, actual: 0 };
                    self.inner.settle(member, &[credit]).await?;
                }
            }
            self.inner.observe(member, observations).await
        })
    }

    fn exchange<'a>(&'a self, member: &'a Member, exchange: &'a Exchange) -> Answer<'a, ExchangeReply> {
        Box::pin(async move {
            let mut exchange = exchange.clone();
            exchange.sequence = exchange.sequence.and_then(|sequence| match self.mutation {
                Mutation::RunsRepeatsAgain => None,
                Mutation::TakesLowerNumbers if sequence.number < 5 => None,
                Mutation::NeverTooLate => Some(Sequence { not_after: None, ..sequence }),
                _ => Some(sequence),
            });
            self.inner.exchange(member, &exchange).await
        })
    }

    fn circuit<'a>(
        &'a self,
        member: &'a CircuitMember,
        request: &'a CircuitRequest,
    ) -> Answer<'a, CircuitReply> {
        Box::pin(self.circuit_asked(member, request))
    }

    fn sync_path(&self, id: &Id) -> Option<Arc<dyn SyncPath>> {
        let other = self.is(Mutation::OtherStateOnTheSynchronousPath);
        if other { self.other.sync_path(id) } else { self.inner.sync_path(id) }
    }

    fn subscribe(&self, id: &Id, driver: DriverId, listener: Arc<dyn Listener>) -> Option<Subscription> {
        self.inner.subscribe(id, driver, Arc::new(Filter { listener, mutation: self.mutation }))
    }

    fn operators(&self) -> Option<&dyn Operators> {
        Some(self)
    }
}

impl Operators for Mutant {
    fn ids<'a>(&'a self, after: Option<&'a Id>, most: usize) -> Answer<'a, Page<Id>> {
        Box::pin(async move {
            let mut page = self.inner.ids(after, most).await?;
            if self.is(Mutation::IdsInAnyOrder) {
                page.body.items.reverse();
            }
            Ok(page)
        })
    }

    fn snapshot<'a>(&'a self, id: &'a Id) -> Answer<'a, Option<Snapshot>> {
        self.inner.snapshot(id)
    }

    fn leases<'a>(&'a self, id: &'a Id, after: Option<u32>, most: usize) -> Answer<'a, Page<LeaseView>> {
        self.inner.leases(id, after, most)
    }

    fn evict<'a>(&'a self, id: &'a Id, token: Token) -> Answer<'a, bool> {
        self.inner.evict(id, token)
    }

    fn set_limit<'a>(&'a self, id: &'a Id, limit: u32) -> Answer<'a, u32> {
        self.inner.set_limit(id, limit)
    }

    fn replace_policy<'a>(&'a self, id: &'a Id, policy: Arc<Policy>) -> Answer<'a, ()> {
        self.inner.replace_policy(id, policy)
    }

    fn set_circuit<'a>(&'a self, id: &'a Id, position: Position) -> Answer<'a, bool> {
        self.inner.set_circuit(id, position)
    }

    fn forget<'a>(&'a self, id: &'a Id) -> Answer<'a, bool> {
        Box::pin(async move {
            if self.is(Mutation::ForgetsWithLeases) {
                for view in self.inner.leases(id, None, 1_000).await?.body.items {
                    self.inner.evict(id, view.token).await?;
                }
            }
            self.inner.forget(id).await
        })
    }
}

/// Keeps back what is to be pushed.
struct Filter {
    listener: Arc<dyn Listener>,
    mutation: Mutation,
}

impl Listener for Filter {
    fn wake(&self, wake: Wake) {
        let kept_back = match wake {
            Wake::Room { .. } => self.mutation == Mutation::WakesNobody,
            Wake::Resumed => self.mutation == Mutation::DeafToResume,
            Wake::Circuit(_) => self.mutation == Mutation::KeepsCircuitsToItself,
            _ => false,
        };
        if !kept_back {
            let resumed = wake == Wake::Resumed;
            self.listener.wake(wake);
            if resumed && self.mutation == Mutation::OffersWhatItHoldsBack {
                self.listener.wake(Wake::Room { class: None });
            }
        }
    }
}
