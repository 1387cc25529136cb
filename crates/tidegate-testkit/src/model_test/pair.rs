//! A store and the model side by side.

use std::{collections::HashMap, sync::Arc, time::Duration};

use tidegate_core::{
    Acquire, AcquireRequest, Acquired, Brief, Capability, Costs, Epoch, Exchange, ExchangeReply, Head,
    Identity, Job, Limit, Line, Listener, Marks, Model, Name, Observation, Release, Renewal, Reply, Restore,
    ScopedJob, Sequence, Settlement, Store, StoreError, Subscription, SyncPath, Token, Wake, time::Moment,
};

use super::{
    Stats,
    operation::{Given, Kept, Known, Lease, Number, Observing, Operation, Origin, Parts, Settling, Step},
    said::{self, Heard},
    translate::{Body, Names, plain},
    world::{DRIVERS, Who, World},
};
use crate::{clock::START, hearing::Hearing, subject::Subject};

/// What the two sides answered, where they differ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Mismatch {
    pub(super) model: String,
    pub(super) store: String,
}

impl Mismatch {
    fn of(model: impl Into<String>, store: impl Into<String>) -> Self {
        Self { model: model.into(), store: store.into() }
    }
}

/// A grant that both sides made.
#[derive(Clone, Debug)]
pub(super) struct Granted {
    pub(super) place: usize,
    /// The model's token.
    pub(super) lease: Option<Token>,
    pub(super) at: Moment,
    marks: Marks,
    costs: Costs,
    scopes: Vec<(Name, Identity)>,
}

/// What a job was asked with.
type Asked<'a> = (&'a Costs, &'a [(Name, Identity)]);

/// What is known of one place on both sides.
#[derive(Default)]
struct Side {
    names: Names,
    /// The model's epochs, oldest first.
    epochs: Vec<Epoch>,
    /// The limits that were answered, newest last.
    limits: Vec<Limit>,
    /// Whether it was ever asked.
    is_known: bool,
    /// Whether something was written since it was last lost or forgotten.
    is_settled: bool,
    circuit: Heard,
    ears: Vec<(Arc<Hearing>, Subscription)>,
    /// What the last brief answer said: the number of what was seen, and how the id stood.
    brief: (u64, Head),
}

/// The last exchange of a driver: what each side was sent.
struct Sent {
    /// A driver never goes over to another policy.
    who: Who,
    number: u64,
    model: Exchange,
    store: Exchange,
}

pub(super) struct Pair {
    subject: Subject,
    model: Model,
    now: Moment,
    highest: Moment,
    sides: Vec<Side>,
    grants: HashMap<Origin, Granted>,
    sent: HashMap<(usize, usize), Sent>,
    pushes: bool,
    stats: Stats,
}

impl Pair {
    /// Both sides, fresh, at the same moment; with listeners where the store pushes.
    pub(super) async fn new(world: &World, subject: Subject, pushes: bool) -> Self {
        subject.set_clock_to(START).await;
        let mut pair = Self {
            model: Model::new(),
            now: START,
            highest: START,
            sides: world.places.iter().map(|_| Side::default()).collect(),
            grants: HashMap::new(),
            sent: HashMap::new(),
            pushes,
            stats: Stats::default(),
            subject,
        };
        if pair.store().capabilities().has(Capability::Wake) {
            for place in 0..world.places.len() {
                pair.listen(world, place).await;
            }
        }
        pair
    }

    fn store(&self) -> &Arc<dyn Store> {
        self.subject.store()
    }

    pub(super) fn into_stats(self) -> Stats {
        self.stats
    }

    pub(super) fn circuit(&self, place: usize) -> &Heard {
        &self.sides[place].circuit
    }

    pub(super) fn now(&self) -> Moment {
        self.now
    }

    pub(super) fn granted(&self, origin: Origin) -> Option<&Granted> {
        self.grants.get(&origin)
    }

    /// All drivers of an id but the last are told what happens. Since a store may take a while to hear of that, both
    /// sides are paused until it has.
    async fn listen(&mut self, world: &World, place: usize) {
        let it = world.place(place);
        for driver in it.drivers.iter().take(DRIVERS - 1) {
            let ear = Arc::new(Hearing::default());
            let listener = Arc::clone(&ear) as Arc<dyn Listener>;
            let Some(subscription) = self.store().subscribe(&it.id, *driver, listener) else { continue };
            self.model.id(&it.id).listen(*driver);
            self.sides[place].ears.push((ear, subscription));
        }
        const DAY: Duration = Duration::from_secs(86_400);
        let _ = self.model.id(&it.id).pause(self.now, DAY);
        let _ = self.model.id(&it.id).resume(self.now);
        self.sides[place].is_known = true;
        self.sides[place].is_settled = true;
        let ears: Vec<_> = self.sides[place].ears.iter().map(|(ear, _)| Arc::clone(ear)).collect();
        for _ in 0..20 {
            let _ = self.store().pause(&it.id, DAY).await;
            let mut all = true;
            for ear in &ears {
                let soon = Duration::from_millis(100);
                all &= ear.within(soon, |wake| matches!(wake, Wake::Paused { .. })).await.is_some();
            }
            let _ = self.store().resume(&it.id).await;
            if all {
                for ear in &ears {
                    ear.within(Duration::from_secs(2), |wake| *wake == Wake::Resumed).await;
                }
                break;
            }
        }
        ears.iter().for_each(|ear| drop(ear.take()));
        self.model.id(&it.id).take_wakes();
    }

    /// Does one operation on both sides.
    pub(super) async fn perform(&mut self, world: &World, step: &Step) -> Result<(), Mismatch> {
        self.stats.operations += 1;
        *self.stats.by_kind.entry(step.operation.kind()).or_default() += 1;
        let place = self.operate(world, step).await?;
        match place {
            Some(place) => self.compare_pushes(world, place),
            None => Ok(()),
        }
    }

    async fn operate(&mut self, world: &World, step: &Step) -> Result<Option<usize>, Mismatch> {
        let (store, clock) = (Arc::clone(self.store()), self.now);
        let place = match &step.operation {
            Operation::Advance { micros } => {
                if *micros > said::SURELY_KEPT_MICROS {
                    self.sides.iter_mut().for_each(|side| side.circuit.is_settled = false);
                }
                self.set_clock(self.now.plus(Duration::from_micros(*micros))).await;
                return Ok(None);
            }
            Operation::StepBack { micros } => {
                // Where a store has written nothing since a loss, it cannot know that its clock ran back.
                if self
                    .sides
                    .iter()
                    .all(|side| (side.is_settled || !side.is_known) && side.circuit.knows_time())
                {
                    self.set_clock(Moment::from_micros(self.now.micros().saturating_sub(*micros))).await;
                }
                return Ok(None);
            }
            Operation::Lose => {
                self.outrun().await;
                self.subject.lose_all().await;
                self.model.wipe();
                for side in &mut self.sides {
                    side.is_settled = false;
                    side.circuit.is_settled = false;
                }
                return Ok(None);
            }
            Operation::Acquire { who, request } => {
                let member = world.member(*who);
                let model = self.model.id(&member.id).acquire(clock, &member, request);
                let answer = match self.sync_path(world, who.place, step.serial) {
                    Some(path) => path.acquire(&member, request),
                    None => store.acquire(&member, request).await,
                };
                let reply = self.same(who.place, model, answer)?;
                if let Some(reply) = reply {
                    let jobs: Vec<_> = request.jobs.iter().map(|job| (&job.costs, &[][..])).collect();
                    let acquired = Acquired::Prefix(reply.body);
                    self.keep_grants(who.place, step.serial, 0, reply.head, &acquired, &jobs);
                }
                who.place
            }
            Operation::Scoped { who, request } => {
                let member = world.member(*who);
                let model = self.model.id(&member.id).acquire_scoped(clock, &member, request);
                let answer = match self.sync_path(world, who.place, step.serial) {
                    Some(path) => path.acquire_scoped(&member, request),
                    None => store.acquire_scoped(&member, request).await,
                };
                let reply = self.same(who.place, model, answer)?;
                if let Some(reply) = reply {
                    let acquired = Acquired::Scoped(reply.body);
                    self.keep_grants(
                        who.place,
                        step.serial,
                        0,
                        reply.head,
                        &acquired,
                        &scoped(&request.jobs),
                    );
                }
                who.place
            }
            Operation::Release { who, releases } => {
                let member = world.member(*who);
                let (ours, theirs) = self.releases(who.place, releases);
                let model = self.model.id(&member.id).release(clock, &ours);
                let answer = match self.sync_path(world, who.place, step.serial) {
                    Some(path) => path.release(&member, &theirs),
                    None => store.release(&member, &theirs).await,
                };
                self.same(who.place, model, answer)?;
                who.place
            }
            Operation::Renew { who, restore, renewals } => {
                let member = world.member(*who);
                let (ours, theirs) = self.renewals(who.place, renewals);
                let restores = restore.and_then(|known| self.restore(who.place, known));
                let (of_model, of_store) = restores.unzip();
                let model = self.model.id(&member.id).renew(clock, &member, of_model.as_ref(), &ours);
                self.same(who.place, model, store.renew(&member, of_store.as_ref(), &theirs).await)?;
                who.place
            }
            Operation::HandOver { who, hand_overs } => {
                let member = world.member(*who);
                let model = self.model.id(&member.id).hand_over(clock, &member, hand_overs);
                let reply = self.same(who.place, model, store.hand_over(&member, hand_overs).await)?;
                if let Some(reply) = reply {
                    self.keep_tokens(who.place, step.serial, reply.head, &reply.body);
                }
                who.place
            }
            Operation::Settle { who, settlements } => {
                let member = world.member(*who);
                let settlements = self.settlements(who.place, settlements);
                let model = self.model.id(&member.id).settle(clock, &settlements);
                self.same(who.place, model, store.settle(&member, &settlements).await)?;
                who.place
            }
            Operation::Observe { who, observations } => {
                let member = world.member(*who);
                let observations = self.observations(world, who.place, observations);
                let model = self.model.id(&member.id).observe(clock, &observations);
                self.same(who.place, model, store.observe(&member, &observations).await)?;
                who.place
            }
            Operation::Exchange { who, number, parts } => {
                self.exchange(world, step.serial, *who, *number, parts).await?;
                who.place
            }
            Operation::Pause { place, ms } => {
                let (id, length) = (&world.place(*place).id, Duration::from_millis(*ms));
                let model = self.model.id(id).pause(clock, length);
                self.same(*place, model, store.pause(id, length).await)?;
                *place
            }
            Operation::Resume { place } => {
                let id = &world.place(*place).id;
                let model = self.model.id(id).resume(clock);
                self.same(*place, model, store.resume(id).await)?;
                *place
            }
            Operation::Circuit { who, said } => {
                let member = world.circuit_member(*who);
                let request = self.sides[who.place].circuit.request(*who, said);
                let model = self.model.id(&member.id).circuit(clock, &member, &request);
                let settled = self.sides[who.place].is_settled;
                let known = self.sides[who.place].is_known;
                let reply = self.same(who.place, model, store.circuit(&member, &request).await)?;
                let side = &mut self.sides[who.place];
                // The clock of a circuit is its own.
                (side.is_settled, side.is_known) = (settled, known);
                side.circuit.is_known = true;
                // A request that is refused may not have reached the store, and so not have told it the time.
                side.circuit.is_settled = reply.is_some();
                if let Some(reply) = reply {
                    side.circuit.answered(*who, &request, &reply.body);
                    for kind in said::kinds(&request, &reply.body) {
                        *self.stats.circuit.entry(kind).or_default() += 1;
                    }
                }
                who.place
            }
            Operation::AcquireOne { who, tier } => {
                self.acquire_one(world, step.serial, *who, *tier).await?;
                who.place
            }
            Operation::ReleaseOne { who, release } => {
                self.release_one(world, *who, release).await?;
                who.place
            }
            operation => return self.operate_by_hand(world, operation).await,
        };
        Ok(Some(place))
    }

    /// What operators do.
    async fn operate_by_hand(
        &mut self,
        world: &World,
        operation: &Operation,
    ) -> Result<Option<usize>, Mismatch> {
        if let Operation::Forget { .. } = operation {
            self.outrun().await;
        }
        let (store, clock) = (Arc::clone(self.store()), self.now);
        let Some(operators) = store.operators() else { return Ok(None) };
        let place = match operation {
            Operation::Snapshot { place } => {
                let id = &world.place(*place).id;
                let model = self.model.id(id).snapshot(clock, id);
                let reply = self.same(*place, model, operators.snapshot(id).await)?;
                let circuit = &mut self.sides[*place].circuit;
                circuit.is_known = true;
                circuit.is_settled =
                    reply.and_then(|reply| reply.body).is_some_and(|snapshot| snapshot.circuit.is_some());
                *place
            }
            Operation::Leases { place, after, most } => {
                let id = &world.place(*place).id;
                let model = self.model.id(id).leases(clock, *after, *most);
                self.same(*place, model, operators.leases(id, *after, *most).await)?;
                *place
            }
            Operation::Evict { place, lease } => {
                let id = &world.place(*place).id;
                let Some((ours, theirs)) = self.tokens(*place, *lease) else { return Ok(None) };
                let model = self.model.id(id).evict(clock, ours);
                self.same(*place, model, operators.evict(id, theirs).await)?;
                *place
            }
            Operation::SetLimit { place, limit } => {
                let id = &world.place(*place).id;
                let model = self.model.id(id).set_limit(clock, *limit);
                self.same(*place, model, operators.set_limit(id, *limit).await)?;
                *place
            }
            Operation::Replace { who } => {
                let (id, policy) = (&world.place(who.place).id, world.policy(*who));
                let model = self.model.id(id).replace_policy(clock, policy);
                self.same(who.place, model, operators.replace_policy(id, Arc::clone(policy)).await)?;
                who.place
            }
            Operation::Forget { place } => {
                let id = &world.place(*place).id;
                let model = self.model.id(id).forget(clock);
                let forgot = model.is_ok();
                self.sides[*place].circuit.is_known = true;
                self.same(*place, model, operators.forget(id).await)?;
                if forgot {
                    self.sides[*place].is_settled = false;
                    self.sides[*place].circuit.is_settled = false;
                }
                *place
            }
            Operation::SetCircuit { place, position } => {
                let id = &world.place(*place).id;
                let model = self.model.id(id).set_circuit(clock, *position);
                let (settled, known) = (self.sides[*place].is_settled, self.sides[*place].is_known);
                let reply = self.same(*place, model, operators.set_circuit(id, *position).await)?;
                let side = &mut self.sides[*place];
                (side.is_settled, side.is_known) = (settled, known);
                side.circuit.is_known = true;
                side.circuit.is_settled = reply.is_some_and(|reply| reply.head.revision.is_some());
                *place
            }
            _ => return Ok(None),
        };
        Ok(Some(place))
    }

    async fn exchange(
        &mut self,
        world: &World,
        serial: u32,
        who: Who,
        number: Number,
        parts: &Parts,
    ) -> Result<(), Mismatch> {
        let driver = (who.place, who.driver);
        let repeated = self.sent.get(&driver).filter(|_| number == Number::Repeat);
        let member = world.member(repeated.map_or(who, |sent| sent.who));
        let (mut ours, mut theirs) = self.exchanges(world, who.place, parts);
        let last = self.sent.get(&driver).map_or(0, |sent| sent.number);
        let numbered = |number, not_after| Some(Sequence { number, not_after });
        let sequence = match number {
            Number::None => None,
            Number::Next => numbered(last + 1, None),
            Number::NextUntil { ms } => numbered(last + 1, Some(self.now.plus(Duration::from_millis(ms)))),
            Number::NextTooLate => {
                numbered(last + 1, Some(Moment::from_micros(self.now.micros().saturating_sub(1))))
            }
            // A number is one exchange's alone: another under the same one would be a fault of the driver's.
            Number::Lower => last.checked_sub(1).and_then(|lower| numbered(lower, None)),
            Number::Repeat => match self.sent.get(&driver) {
                Some(sent) => {
                    (ours, theirs) = (sent.model.clone(), sent.store.clone());
                    ours.sequence
                }
                None => None,
            },
        };
        (ours.sequence, theirs.sequence) = (sequence, sequence);
        let clock = self.now;
        let store = Arc::clone(self.store());
        let model = self.model.id(&member.id).exchange(clock, &member, &ours);
        let was_done = model.is_ok();
        let answer = match self.sync_path(world, who.place, serial) {
            Some(path) => path.exchange(&member, &theirs),
            None => store.exchange(&member, &theirs).await,
        };
        let reply = self.same(who.place, model, answer)?;
        if let (Some(sequence), true) = (sequence, was_done && number != Number::Repeat) {
            let sent = Sent { who, number: sequence.number, model: ours.clone(), store: theirs };
            self.sent.insert(driver, sent);
        }
        if let Some(reply) = reply {
            self.keep_exchange(who.place, serial, reply, &ours);
        }
        Ok(())
    }

    // ---- the synchronous path --------------------------------------------------------------------------------------

    /// The synchronous path, for some of the operations.
    fn sync_path(&self, world: &World, place: usize, serial: u32) -> Option<Arc<dyn SyncPath>> {
        let is_one = serial.is_multiple_of(3);
        is_one.then(|| self.store().sync_path(&world.place(place).id)).flatten()
    }

    /// One job in brief. Where the store says nothing, nothing has changed, and the job is asked for in full.
    async fn acquire_one(
        &mut self,
        world: &World,
        serial: u32,
        who: Who,
        tier: usize,
    ) -> Result<(), Mismatch> {
        let member = world.member(who);
        let job = Job { costs: Costs::default() };
        let class = member.policy.class(tier).cloned();
        let request = AcquireRequest { class, jobs: vec![job], line: Line::default() };
        let (seen, _) = self.sides[who.place].brief;
        let store = Arc::clone(self.store());
        let path = store.sync_path(&member.id);
        let brief = path.and_then(|path| path.acquire_one(&member, tier, seen));
        let model = self.model.id(&member.id).acquire(self.now, &member, &request);
        let answer = match brief {
            None => store.acquire(&member, &request).await,
            Some(brief) => {
                let head = self.brief_head(who.place, &brief, &model);
                let grants = brief.grant.into_iter().collect();
                // How many others wait for a rate is not said in brief.
                let others = model.as_ref().map_or(0, |reply| reply.body.others);
                Ok(Reply { head, body: tidegate_core::AcquireReply { grants, denied: None, others } })
            }
        };
        if let Some(reply) = self.same(who.place, model, answer)? {
            let acquired = Acquired::Prefix(reply.body);
            let jobs: Vec<_> = request.jobs.iter().map(|job| (&job.costs, &[][..])).collect();
            self.keep_grants(who.place, serial, 0, reply.head, &acquired, &jobs);
        }
        Ok(())
    }

    async fn release_one(&mut self, world: &World, who: Who, given: &Given) -> Result<(), Mismatch> {
        let member = world.member(who);
        let (ours, theirs) = self.releases(who.place, std::slice::from_ref(given));
        let Some(release) = theirs.first() else { return Ok(()) };
        let (seen, _) = self.sides[who.place].brief;
        let store = Arc::clone(self.store());
        let path = store.sync_path(&member.id);
        let model = self.model.id(&member.id).release(self.now, &ours);
        // A release in brief may leave it to the next step to see that the clock was set back, or that what was kept is
        // outlived by now.
        let head = model.as_ref().map_or_else(|_| Head::default(), |reply| reply.head);
        let (_, known) = self.sides[who.place].brief;
        let as_known = head.stepped_back_ms == 0 && head.epoch == known.epoch;
        let brief = path.filter(|_| as_known).and_then(|path| path.release_one(release, seen));
        let answer = match brief {
            None => store.release(&member, &theirs).await,
            Some(brief) => {
                // Nor need it look at the clock where it comes to the same.
                let at = head.now.filter(|now| brief.now <= *now);
                let brief = Brief { now: at.unwrap_or(brief.now), ..brief };
                Ok(Reply { head: self.brief_head(who.place, &brief, &model), body: () })
            }
        };
        self.same(who.place, model, answer).map(|_| ())
    }

    /// How the id stands by a brief answer: as it is said, or as it was known. How many are held is not said, nor what
    /// is left of a pause, which a driver counts by itself.
    fn brief_head<T>(&mut self, place: usize, brief: &Brief, model: &Result<Reply<T>, StoreError>) -> Head {
        let known = &mut self.sides[place].brief;
        let paused_ms = model.as_ref().map_or(0, |reply| reply.head.paused_ms);
        let unsaid = Head { now: Some(brief.now), held: None, paused_ms, stepped_back_ms: 0, ..known.1 };
        let head = brief.head.as_deref().copied().unwrap_or(unsaid);
        *known = (brief.seen, head);
        head
    }

    fn keep_exchange(&mut self, place: usize, serial: u32, reply: Reply<ExchangeReply>, asked: &Exchange) {
        let mut from = 0;
        if let Ok(tokens) = &reply.body.handed_over {
            self.keep_tokens(place, serial, reply.head, tokens);
            from = tokens.len();
        }
        for (acquire, acquired) in asked.acquires.iter().zip(&reply.body.acquired) {
            let Ok(acquired) = acquired else { continue };
            let jobs: Vec<Asked<'_>> = match acquire {
                Acquire::Prefix(request) => request.jobs.iter().map(|job| (&job.costs, &[][..])).collect(),
                Acquire::Scoped(request) => scoped(&request.jobs),
            };
            self.keep_grants(place, serial, from, reply.head, acquired, &jobs);
            from += acquired.grants().count();
        }
    }

    // ---- comparing -------------------------------------------------------------------------------------------------

    /// Compares the answers, the store's in the model's words. Gives the model's.
    fn same<T: Body>(
        &mut self,
        place: usize,
        model: Result<Reply<T>, StoreError>,
        store: Result<Reply<T>, StoreError>,
    ) -> Result<Option<Reply<T>>, Mismatch> {
        let side = &mut self.sides[place];
        side.is_known = true;
        let model = match model {
            Ok(mut reply) => {
                reply.body.plain();
                Ok(reply)
            }
            Err(error) => Err(plain(error)),
        };
        let shown = || format!("{model:?}");
        let store = side.names.translate(&model, store).map_err(|why| Mismatch::of(shown(), why))?;
        if model != store {
            return Err(Mismatch::of(shown(), format!("{store:?}")));
        }
        match model {
            Err(_) => {
                self.stats.refused += 1;
                Ok(None)
            }
            Ok(reply) => {
                side.is_settled = reply.head.epoch.is_some();
                if let Some(epoch) = reply.head.epoch
                    && side.epochs.last() != Some(&epoch)
                {
                    side.epochs.push(epoch);
                }
                side.limits.extend(reply.head.limit.filter(|limit| side.limits.last() != Some(limit)));
                if side.limits.len() > 64 {
                    side.limits.drain(..32);
                }
                Ok(Some(reply))
            }
        }
    }

    /// What was pushed by the operation, to each driver that listens.
    fn compare_pushes(&mut self, world: &World, place: usize) -> Result<(), Mismatch> {
        let it = world.place(place);
        let pushes = self.model.id(&it.id).take_wakes();
        for ((ear, _), driver) in self.sides[place].ears.iter().zip(&it.drivers) {
            let heard = ear.take();
            if !self.pushes {
                continue;
            }
            let to_it = pushes.iter().filter(|(whom, _)| whom.is_none_or(|whom| whom == *driver));
            let expected: Vec<Wake> = to_it.map(|(_, wake)| wake.clone()).collect();
            if heard != expected {
                let pushed = |wakes: &[Wake]| format!("pushed to {driver:?}: {wakes:?}");
                return Err(Mismatch::of(pushed(&expected), pushed(&heard)));
            }
        }
        Ok(())
    }

    // ---- time ------------------------------------------------------------------------------------------------------

    async fn set_clock(&mut self, now: Moment) {
        self.now = now;
        self.highest = self.highest.max(now);
        self.subject.set_clock_to(now).await;
    }

    /// Sets the clock beyond all that was seen: a store that forgets cannot tell what it has forgotten from its clock
    /// otherwise, and would give a fence twice.
    async fn outrun(&mut self) {
        self.set_clock(self.highest.plus(Duration::from_millis(20))).await;
    }

    // ---- what was granted ------------------------------------------------------------------------------------------

    fn keep_grants(
        &mut self,
        place: usize,
        serial: u32,
        from: usize,
        head: Head,
        acquired: &Acquired,
        jobs: &[Asked<'_>],
    ) {
        let at = head.now.unwrap_or(self.now);
        for (number, (index, grant)) in acquired.grants().enumerate() {
            self.stats.granted += 1;
            let Some((costs, scopes)) = jobs.get(index) else { continue };
            self.keep(
                serial,
                from + number,
                Granted {
                    place,
                    lease: grant.lease,
                    at,
                    marks: grant.marks.clone(),
                    costs: (*costs).clone(),
                    scopes: scopes.to_vec(),
                },
            );
        }
        self.stats.denied += usize::from(acquired.denials().next().is_some());
    }

    fn keep_tokens(&mut self, place: usize, serial: u32, head: Head, tokens: &[Token]) {
        let at = head.now.unwrap_or(self.now);
        for (number, token) in tokens.iter().enumerate() {
            let (marks, costs) = (Marks::default(), Costs::default());
            self.keep(
                serial,
                number,
                Granted { place, lease: Some(*token), at, marks, costs, scopes: Vec::new() },
            );
        }
    }

    fn keep(&mut self, serial: u32, index: usize, granted: Granted) {
        if let Ok(index) = u32::try_from(index) {
            self.grants.insert(Origin { serial, index }, granted);
        }
    }

    // ---- requests for both sides -----------------------------------------------------------------------------------

    /// The tokens of a lease on both sides; none where its grant is not there.
    fn tokens(&self, place: usize, lease: Lease) -> Option<(Token, Token)> {
        let token = match lease {
            Lease::Never(token) => return Some((token, token)),
            Lease::Of(origin) => self.grants.get(&origin)?.lease?,
        };
        Some((token, self.sides[place].names.store_token(token)))
    }

    fn releases(&self, place: usize, releases: &[Given]) -> (Vec<Release>, Vec<Release>) {
        let both = releases.iter().filter_map(|given| {
            let (ours, theirs) = self.tokens(place, given.lease)?;
            let release =
                |token| Release { token, outcome: given.outcome, retry_after_ms: given.retry_after_ms };
            Some((release(ours), release(theirs)))
        });
        both.unzip()
    }

    fn renewals(&self, place: usize, renewals: &[Kept]) -> (Vec<Renewal>, Vec<Renewal>) {
        let both = renewals.iter().filter_map(|kept| {
            let (ours, theirs) = self.tokens(place, kept.lease)?;
            let renewal = |token| Renewal { token, class: kept.class.clone() };
            Some((renewal(ours), renewal(theirs)))
        });
        both.unzip()
    }

    fn restore(&self, place: usize, known: Known) -> Option<(Restore, Restore)> {
        let side = &self.sides[place];
        let epoch = side.epochs.iter().rev().nth(known.epochs_ago).copied().unwrap_or(Epoch(1));
        let limit = known.limit_ago.and_then(|ago| side.limits.iter().rev().nth(ago).copied());
        let restore = |epoch| Restore { epoch, limit, paused_ms: known.paused_ms };
        Some((restore(epoch), restore(side.names.store_epoch(epoch))))
    }

    fn settlements(&self, place: usize, settlements: &[Settling]) -> Vec<Settlement> {
        let known = settlements.iter().filter_map(|settling| {
            let grant = self.grants.get(&settling.grant).filter(|grant| grant.place == place)?;
            Some(Settlement {
                rule: settling.rule.clone(),
                identity: grant.scopes.first().map(|(_, identity)| identity.clone()),
                granted_at: grant.at,
                cost: settling.cost,
                actual: settling.actual,
            })
        });
        known.collect()
    }

    fn observations(&self, world: &World, place: usize, observations: &[Observing]) -> Vec<Observation> {
        let known = observations.iter().filter_map(|observing| {
            let grant = self.grants.get(&observing.grant).filter(|grant| grant.place == place)?;
            // Marks are in the order of the policy that granted; any of its orders will do to find the rule's.
            let policies = &world.place(place).policies;
            let at = policies
                .iter()
                .filter(|policy| grant.marks.get(policy.rules().len().saturating_sub(1)).is_some())
                .find_map(|policy| policy.rules().iter().position(|rule| *rule.key() == observing.rule));
            Some(Observation {
                rule: observing.rule.clone(),
                identity: grant.scopes.first().map(|(_, identity)| identity.clone()),
                remaining: observing.remaining,
                reset_at: grant.at.plus(Duration::from_millis(observing.resets_in_ms)),
                granted_at: grant.at,
                mark: at.and_then(|at| grant.marks.get(at)).unwrap_or(0),
            })
        });
        known.collect()
    }

    fn exchanges(&self, world: &World, place: usize, parts: &Parts) -> (Exchange, Exchange) {
        let (our_releases, their_releases) = self.releases(place, &parts.releases);
        let (our_renewals, their_renewals) = self.renewals(place, &parts.renewals);
        let (our_restore, their_restore) = parts.restore.and_then(|known| self.restore(place, known)).unzip();
        let ours = Exchange {
            sequence: None,
            restore: our_restore,
            releases: our_releases,
            settlements: self.settlements(place, &parts.settlements),
            observations: self.observations(world, place, &parts.observations),
            renewals: our_renewals,
            hand_overs: parts.hand_overs.clone(),
            acquires: parts.acquires.clone(),
            queues: parts.queues.clone(),
        };
        let theirs = Exchange {
            restore: their_restore,
            releases: their_releases,
            renewals: their_renewals,
            ..ours.clone()
        };
        (ours, theirs)
    }
}

impl Granted {
    /// What it spent in a rule of this name.
    pub(super) fn cost(&self, rule: Option<&Name>) -> u64 {
        self.costs.of(rule)
    }
}

fn scoped(jobs: &[ScopedJob]) -> Vec<Asked<'_>> {
    jobs.iter().map(|job| (&job.costs, job.scopes.as_slice())).collect()
}
