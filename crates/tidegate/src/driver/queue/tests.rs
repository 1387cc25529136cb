//! The lines against a naive store, in random and in chosen situations.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use fastrand::Rng;
use tidegate_core::{Costs, Rule};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn at(ms: u64) -> Moment {
    Moment::from_millis(1_000_000 + ms)
}

fn name(name: &str) -> Name {
    Name::new("name", name).unwrap()
}

/// Buckets of `limit` per second, by name and, where it is given, by tenant.
fn policy(rules: &[(&str, u64, bool)]) -> Policy {
    let rules = rules.iter().map(|(name, limit, scoped)| {
        let rule = Rule::token_bucket(*limit, SECOND).burst(100).named(*name);
        if *scoped { rule.scoped("tenant") } else { rule }
    });
    rules.fold(Policy::draft(), tidegate_core::policy::Draft::rule).check().unwrap()
}

fn job(tenant: &str, costs: &[(&str, u64)]) -> Arc<ScopedJob> {
    let named = costs.iter().map(|(rule, cost)| (name(rule), *cost)).collect();
    let scopes = vec![(name("tenant"), Identity::new(tenant).unwrap())];
    Arc::new(ScopedJob { costs: Costs { each: 1, named }, scopes })
}

fn place(priority: i32, arrival: usize) -> Place {
    (Reverse(priority), arrival as u64, arrival)
}

/// A store that counts what it is asked: buckets in units of a millionth, and slots.
struct Oracle {
    levels: HashMap<(usize, Option<Identity>), (u64, Moment)>,
    slots: usize,
    held: usize,
    asked: usize,
    rounds: usize,
}

/// What a naive store says: granted, or the obstacle, the cost there and the hint in ms.
type Said = Option<(Obstacle, u64, u64)>;

impl Oracle {
    fn new(slots: usize) -> Self {
        Self { levels: HashMap::new(), slots, held: 0, asked: 0, rounds: 0 }
    }

    fn decide(&mut self, policy: &Policy, job: &ScopedJob, now: Moment) -> Said {
        self.asked += 1;
        let mut worst: Said = None;
        for (index, rule) in policy.rules().iter().enumerate() {
            let key = (index, job.identity(rule).cloned());
            let full = rule.burst() * 1_000_000;
            let level = self.levels.entry(key.clone()).or_insert((full, now));
            let since = u64::try_from(now.since(level.1).as_millis()).unwrap();
            *level = ((level.0 + since * rule.limit() * 1_000).min(full), now);
            let cost = job.costs.of(rule.name());
            let short = (cost * 1_000_000).saturating_sub(level.0);
            if short > 0 {
                let hint = short.div_ceil(rule.limit() * 1_000);
                if worst.as_ref().is_none_or(|(_, _, longest)| hint > *longest) {
                    worst = Some((Obstacle::Rule(index, key.1), cost, hint));
                }
            }
        }
        if worst.is_none() && self.held >= self.slots {
            worst = Some((Obstacle::Slots, 0, 300));
        }
        if worst.is_none() {
            self.held += 1;
            for (index, rule) in policy.rules().iter().enumerate() {
                let level = self.levels.get_mut(&(index, job.identity(rule).cloned())).unwrap();
                level.0 -= job.costs.of(rule.name()) * 1_000_000;
            }
        }
        worst
    }
}

/// A line and its store, with what a test knows of them.
struct Bench {
    policy: Policy,
    line: Line,
    oracle: Oracle,
    jobs: BTreeMap<Place, Arc<ScopedJob>>,
    /// The last denial of each job that waits: by what, what it costs there, until when, and since when by that.
    denied: HashMap<Place, (Obstacle, u64, Moment, Moment)>,
    /// All denials, also of those that are gone.
    facts: Vec<(Obstacle, u64, Moment)>,
    granted: Vec<Place>,
    most: usize,
    seed: u64,
}

impl Bench {
    fn new(policy: Policy, slots: usize, seed: u64) -> Self {
        let line = Line::new(&policy);
        let (oracle, most) = (Oracle::new(slots), 40);
        let (jobs, denied) = (BTreeMap::new(), HashMap::new());
        let (facts, granted) = (Vec::new(), Vec::new());
        Self { policy, line, oracle, jobs, denied, facts, granted, most, seed }
    }

    fn push(&mut self, place: Place, job: Arc<ScopedJob>) {
        self.line.push(place, &job);
        self.jobs.insert(place, job);
    }

    fn remove(&mut self, place: Place) {
        self.line.remove(place);
        self.jobs.remove(&place);
        self.denied.remove(&place);
    }

    fn audit(&self) {
        assert_eq!(self.line.len(), self.jobs.len(), "seed {}", self.seed);
        if let Line::Scoped(scoped) = &self.line {
            scoped.audit();
        }
    }

    fn shared(&self, one: &ScopedJob, other: &ScopedJob) -> bool {
        let mut rules = self.policy.rules().iter();
        rules.any(|rule| one.identity(rule) == other.identity(rule))
    }

    /// Whether a denial says that a job would be denied as well.
    fn covers(
        &self,
        (obstacle, cost, until): (&Obstacle, u64, Moment),
        job: &ScopedJob,
        now: Moment,
    ) -> bool {
        let meets = match obstacle {
            Obstacle::Slots => true,
            Obstacle::Rule(index, identity) => {
                let rule = &self.policy.rules()[*index];
                job.identity(rule) == identity.as_ref() && job.costs.of(rule.name()) >= cost
            }
            Obstacle::Unknown(_) => false,
        };
        meets && until > now
    }

    /// Asks as long as there is something to ask. Holds what comes to what the specification says.
    fn pump(&mut self, now: Moment) {
        let mut rounds = 0;
        self.facts.retain(|(_, _, until)| *until > now);
        while self.line.is_due(now) {
            rounds += 1;
            assert!(rounds <= 2 * self.jobs.len() + 3, "seed {}: it goes on asking", self.seed);
            let Asked { jobs: keys, denied } = self.line.ask(now, self.most, &self.policy);
            self.audit();
            let asked: Vec<Place> =
                self.jobs.keys().copied().filter(|place| keys.contains(&place.2)).collect();
            assert_eq!(asked.len(), keys.len());
            assert!(asked.iter().map(|place| place.2).eq(keys.iter().copied()), "seed {}: order", self.seed);
            if asked.is_empty() {
                assert!(
                    !self.line.is_due(now) || self.jobs.is_empty(),
                    "seed {}: due for nothing",
                    self.seed
                );
            }
            for (key, (until, _)) in denied {
                assert!(until >= now && !keys.contains(&key));
            }
            self.check_round(&asked, now);
            self.oracle.rounds += 1;
            for place in asked {
                let job = Arc::clone(&self.jobs[&place]);
                match self.oracle.decide(&self.policy, &job, now) {
                    None => {
                        self.granted.push(place);
                        self.remove(place);
                    }
                    Some((obstacle, cost, hint)) => self.deny(place, obstacle, cost, hint, now),
                }
            }
            self.audit();
        }
        match self.line.next_due() {
            Some(next) => assert!(next > now, "seed {}: {next:?} is not after {now:?}", self.seed),
            None => {
                assert!(self.jobs.is_empty(), "seed {}: nobody comes back for those that wait", self.seed)
            }
        }
    }

    fn deny(&mut self, place: Place, obstacle: Obstacle, cost: u64, hint: u64, now: Moment) {
        let until = now.plus(Duration::from_millis(hint));
        let since = match self.denied.get(&place) {
            Some((known, _, _, since)) if *known == obstacle => *since,
            _ => now,
        };
        let (rule, passed_for) = match &obstacle {
            Obstacle::Rule(index, _) => (self.policy.rules()[*index].name().cloned(), SECOND),
            _ => (None, Duration::ZERO),
        };
        self.denied.insert(place, (obstacle.clone(), cost, until, since));
        self.facts.push((obstacle.clone(), cost, until));
        self.line.deny(place, Denied { obstacle, rule, cost, until, passed_for }, now);
    }

    fn check_round(&self, asked: &[Place], now: Moment) {
        let seed = self.seed;
        for place in asked {
            let job = &self.jobs[place];
            let mut known = self.denied.values();
            let in_vain =
                known.any(|(obstacle, cost, until, _)| self.covers((obstacle, *cost, *until), job, now));
            assert!(!in_vain, "seed {seed}: {place:?} asks in vain");
        }
        if asked.len() < self.most {
            for (place, job) in self.jobs.iter().filter(|(place, _)| !asked.contains(place)) {
                let alone = !self.jobs.iter().any(|(other, them)| other != place && self.shared(job, them));
                let mut facts = self.facts.iter();
                let denied =
                    facts.any(|(obstacle, cost, until)| self.covers((obstacle, *cost, *until), job, now));
                assert!(!alone || denied, "seed {seed}: others hold {place:?} up");
            }
        }
        // With one rule alone, a job waits for nothing but that.
        if self.policy.rules().len() == 1 && self.oracle.slots == usize::MAX {
            let rule = &self.policy.rules()[0];
            for (barrier, (_, _, _, since)) in &self.denied {
                let is_old = now >= since.plus(SECOND);
                let identity = self.jobs[barrier].identity(rule);
                let spends =
                    |job: &ScopedJob| job.identity(rule) == identity && job.costs.of(rule.name()) > 0;
                // One that goes along and costs as much is denied where the barrier is.
                let goes_along = |job: &ScopedJob| {
                    asked.contains(barrier) && job.costs.of(rule.name()) >= self.denied[barrier].1
                };
                let passes = |place: &&Place| {
                    let job = &self.jobs[*place];
                    *place > barrier && spends(job) && !goes_along(job)
                };
                let passed = asked.iter().find(passes);
                assert!(!is_old || passed.is_none(), "seed {seed}: {passed:?} passes {barrier:?}");
            }
        }
    }
}

/// A random life of one line: arrivals, timeouts, slots that come free, pauses, until everyone has been served.
fn live(rules: &[(&str, u64, bool)], slots: usize, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let mut bench = Bench::new(policy(rules), slots, seed);
    let tenants = ["a", "b", "c", "d", "e"];
    let mut ends: BTreeSet<(u64, usize)> = BTreeSet::new();
    let mut timeouts: BTreeSet<(u64, Place)> = BTreeSet::new();
    let (mut now_ms, mut arrivals, mut served) = (0, 0, 0);
    let total = rng.usize(50..200);
    let mut next_arrival = 0;
    loop {
        let now = at(now_ms);
        while arrivals < total && next_arrival <= now_ms {
            let costs: Vec<(&str, u64)> = rules
                .iter()
                .map(|(name, ..)| (*name, if rng.u8(0..4) == 0 { rng.u64(0..=100) } else { rng.u64(0..4) }))
                .collect();
            let tenant = tenants[rng.usize(0..tenants.len()).min(rng.usize(0..tenants.len()))];
            let place = place(rng.i32(0..2) * rng.i32(0..3), arrivals);
            if rng.u8(0..5) == 0 {
                timeouts.insert((now_ms + rng.u64(0..5_000), place));
            }
            bench.push(place, job(tenant, &costs));
            arrivals += 1;
            if rng.bool() {
                next_arrival = now_ms + rng.u64(0..400);
            }
        }
        while let Some((_, place)) = timeouts.first().copied().filter(|(at, _)| *at <= now_ms) {
            timeouts.pop_first();
            bench.remove(place);
            bench.audit();
        }
        while ends.first().is_some_and(|(at, _)| *at <= now_ms) {
            ends.pop_first();
            bench.oracle.held -= 1;
            bench.denied.retain(|_, (obstacle, ..)| *obstacle != Obstacle::Slots);
            bench.line.room(now);
        }
        if rng.u8(0..100) == 0 {
            bench.line.pause(at(now_ms + 500), at(now_ms + 550));
            assert!(bench.jobs.is_empty() || !bench.line.is_due(now));
        }
        if rng.u8(0..200) == 0 {
            bench.line.unblock();
            bench.denied.clear();
        }
        let was_due = bench.line.is_due(now);
        bench.pump(now);
        assert!(was_due || bench.granted.len() == served);
        for granted in bench.granted.iter().skip(served) {
            if slots != usize::MAX {
                ends.insert((now_ms + rng.u64(1..2_000), granted.2));
            }
        }
        served = bench.granted.len();
        let next = bench.line.next_due().map(|next| u64::try_from(next.since(at(0)).as_millis()).unwrap());
        let arrival = (arrivals < total).then_some(next_arrival);
        let others =
            [next, arrival, timeouts.first().map(|first| first.0), ends.first().map(|first| first.0)];
        match others.into_iter().flatten().min() {
            Some(next) => now_ms = next.max(now_ms + 1),
            None => break,
        }
        assert!(now_ms < 3_600_000, "seed {seed}: {} wait for ever", bench.jobs.len());
    }
    assert!(bench.jobs.is_empty(), "seed {seed}");
}

fn lives(rules: &[(&str, u64, bool)], slots: usize) {
    let first = fastrand::u64(..);
    println!("seeds from {first}");
    (0..25).for_each(|life| live(rules, slots, first.wrapping_add(life)));
}

#[test]
fn va_2_a_scoped_line_loses_nobody_and_never_asks_in_vain() {
    lives(&[("tokens", 20, true)], usize::MAX);
}

#[test]
fn va_2_a_scoped_line_loses_nobody_under_several_rules() {
    lives(&[("tokens", 20, true), ("requests", 3, true), ("all", 40, false)], usize::MAX);
}

#[test]
fn va_2_a_scoped_line_loses_nobody_where_slots_are_short() {
    lives(&[("tokens", 30, true), ("all", 50, false)], 3);
}

#[test]
fn va_2_an_ordered_line_grants_strictly_in_order() {
    let first = fastrand::u64(..);
    println!("seeds from {first}");
    for seed in (0..20).map(|life| first.wrapping_add(life)) {
        let mut rng = Rng::with_seed(seed);
        let mut bench = Bench::new(policy(&[("all", 20, false)]), usize::MAX, seed);
        let mut now_ms = 0;
        for arrival in 0..100 {
            bench.push(place(rng.i32(0..3), arrival), job("a", &[("all", rng.u64(1..=100))]));
        }
        let mut expected: Vec<Place> = bench.jobs.keys().copied().collect();
        while !bench.jobs.is_empty() {
            let now = at(now_ms);
            if rng.u8(0..10) == 0 {
                let gone = *bench.jobs.keys().nth(rng.usize(0..bench.jobs.len())).unwrap();
                expected.retain(|place| *place != gone);
                bench.remove(gone);
            }
            while bench.line.is_due(now) {
                let asked = bench.line.ask(now, 1_000, &bench.policy);
                bench.oracle.rounds += 1;
                for key in asked.jobs {
                    let place = *bench.jobs.keys().find(|place| place.2 == key).unwrap();
                    let job = Arc::clone(&bench.jobs[&place]);
                    match bench.oracle.decide(&bench.policy, &job, now) {
                        None => {
                            bench.granted.push(place);
                            bench.remove(place);
                        }
                        Some((obstacle, cost, hint)) => {
                            bench.deny(place, obstacle, cost, hint, now);
                            break;
                        }
                    }
                }
            }
            if let Some(next) = bench.line.next_due() {
                assert!(next > now, "seed {seed}");
                now_ms = u64::try_from(next.since(at(0)).as_millis()).unwrap();
            }
        }
        assert_eq!(bench.granted, expected, "seed {seed}");
    }
}

fn scoped(rules: &[(&str, u64, bool)], slots: usize) -> Bench {
    Bench::new(policy(rules), slots, 0)
}

/// Uses up what a tenant has.
fn drain(bench: &mut Bench, tenant: &str, rule: &str, now: Moment) {
    bench.push(place(i32::MAX, 900_000), job(tenant, &[(rule, 100)]));
    bench.pump(now);
    bench.granted.clear();
}

#[test]
fn va_2_a_tenant_that_is_blocked_holds_nobody_up() {
    let mut bench = scoped(&[("tokens", 1, true)], usize::MAX);
    drain(&mut bench, "a", "tokens", at(0));
    (0..500).for_each(|arrival| bench.push(place(0, arrival), job("a", &[])));
    bench.push(place(0, 500), job("b", &[]));
    bench.pump(at(0));
    assert_eq!(bench.granted, [place(0, 500)]);
    // What was learnt of one holds for all that cost as much, also for one that comes first.
    bench.push(place(7, 501), job("a", &[]));
    let meets = bench.line.meets(next_place(9), &job("a", &[]), &bench.policy, at(1));
    assert_eq!(meets, Some((at(1_000), LastCause::Rate)));
    assert_eq!(bench.line.meets(next_place(0), &job("b", &[]), &bench.policy, at(1)), None);
    let asked = bench.line.ask(at(1), 128, &bench.policy);
    assert!(asked.jobs.is_empty());
    assert_eq!(asked.denied, [(501, (at(1_000), LastCause::Rate))]);
    assert_eq!(bench.line.known(place(7, 501), at(1)), Some((at(1_000), LastCause::Rate)));
    bench.pump(at(1_000));
    assert_eq!(bench.granted, [place(0, 500), place(7, 501)]);
}

#[test]
fn va_2_ten_thousand_of_one_tenant_ask_a_few_times_for_each_grant() {
    let mut bench = scoped(&[("tokens", 1, true)], usize::MAX);
    bench.most = 128;
    drain(&mut bench, "a", "tokens", at(0));
    (0..10_000).for_each(|arrival| bench.push(place(0, arrival), job("a", &[])));
    bench.oracle.asked = 0;
    bench.pump(at(0));
    assert!(bench.oracle.asked <= 128, "{} asked when it was known to be in vain", bench.oracle.asked);
    (bench.oracle.asked, bench.oracle.rounds) = (0, 0);
    for second in 1..=20 {
        assert_eq!(bench.line.next_due(), Some(at(second * 1_000)));
        bench.pump(at(second * 1_000));
        assert_eq!(bench.granted.len() as u64, second);
    }
    assert!(bench.granted.is_sorted());
    assert!(bench.oracle.asked <= 20 * 3, "{} questions for 20 grants", bench.oracle.asked);
    assert!(bench.oracle.rounds <= 20 * 2, "{} rounds for 20 grants", bench.oracle.rounds);
}

#[test]
fn va_2_a_wide_opening_is_used_in_few_rounds() {
    let mut bench = scoped(&[("tokens", 100, true)], usize::MAX);
    bench.most = 128;
    drain(&mut bench, "a", "tokens", at(0));
    (0..1_000).for_each(|arrival| bench.push(place(0, arrival), job("a", &[])));
    bench.pump(at(0));
    bench.oracle.rounds = 0;
    bench.pump(at(1_000));
    assert_eq!(bench.granted.len(), 100);
    assert!(bench.oracle.rounds <= 8, "{} rounds", bench.oracle.rounds);
}

#[test]
fn va_2_a_large_job_is_passed_for_one_interval_and_no_longer() {
    let mut bench = scoped(&[("tokens", 10, true)], usize::MAX);
    drain(&mut bench, "a", "tokens", at(0));
    bench.push(place(0, 0), job("a", &[("tokens", 50)]));
    bench.pump(at(0));
    // Small ones come all the time, of this tenant and of another.
    for turn in 1..=60_usize {
        let now = at(turn as u64 * 100);
        bench.push(place(0, 2 * turn), job("a", &[]));
        bench.push(place(0, 2 * turn + 1), job("b", &[]));
        bench.pump(now);
    }
    let small = |place: &&Place| place.1 > 0 && place.1.is_multiple_of(2);
    let large = bench.granted.iter().position(|place| place.1 == 0).expect("the large one goes in the end");
    let before = bench.granted.iter().take(large).filter(small).count();
    assert!((9..=10).contains(&before), "{before} small ones passed it within its second");
    let others = bench.granted.iter().filter(|place| place.1 % 2 == 1).count();
    assert_eq!(others, 60, "another tenant is not held up");
}

#[test]
fn va_2_a_large_job_that_is_tried_is_not_passed_in_the_same_request() {
    let mut bench = scoped(&[("tokens", 10, true)], usize::MAX);
    drain(&mut bench, "a", "tokens", at(0));
    bench.push(place(0, 0), job("a", &[("tokens", 50)]));
    bench.pump(at(0));
    bench.push(place(0, 1), job("a", &[]));
    bench.push(place(0, 2), job("b", &[]));
    let asked = bench.line.ask(at(5_000), 128, &bench.policy);
    assert_eq!(asked.jobs, [0, 2], "it waits for what becomes of the large one");
    bench.line.remove(place(0, 0));
    bench.line.remove(place(0, 2));
    assert!(bench.line.is_due(at(5_000)));
    assert_eq!(bench.line.ask(at(5_000), 128, &bench.policy).jobs, [1]);
}

#[test]
fn va_2_a_cost_of_nothing_is_not_held_up() {
    let mut bench = scoped(&[("tokens", 1, true)], usize::MAX);
    drain(&mut bench, "a", "tokens", at(0));
    bench.push(place(0, 0), job("a", &[]));
    bench.pump(at(0));
    bench.push(place(0, 1), job("a", &[("tokens", 0)]));
    bench.pump(at(1));
    assert_eq!(bench.granted, [place(0, 1)]);
}

#[test]
fn va_2_a_rule_for_all_holds_up_all_and_lets_them_go_in_order() {
    let mut bench = scoped(&[("all", 10, false), ("tokens", 100, true)], usize::MAX);
    drain(&mut bench, "z", "all", at(0));
    let tenants = ["a", "b", "c", "d"];
    (0..40).for_each(|arrival| bench.push(place(0, arrival), job(tenants[arrival % 4], &[])));
    bench.oracle.asked = 0;
    bench.pump(at(0));
    assert_eq!(bench.oracle.asked, 40);
    bench.push(place(0, 40), job("e", &[]));
    bench.pump(at(50));
    assert_eq!(bench.oracle.asked, 40, "it is known that there is nothing for anyone");
    bench.pump(at(1_000));
    let first: Vec<Place> = (0..10).map(|arrival| place(0, arrival)).collect();
    assert_eq!(bench.granted, first);
}

#[test]
fn va_3_jobs_that_come_while_slots_are_full_do_not_each_ask() {
    let mut bench = scoped(&[("tokens", 100, true)], 1);
    bench.push(place(0, 0), job("a", &[]));
    bench.pump(at(0));
    assert_eq!(bench.oracle.held, 1);
    bench.oracle.asked = 0;
    for arrival in 1..=100 {
        bench.push(place(0, arrival), job(["a", "b", "c"][arrival % 3], &[]));
        bench.pump(at(arrival as u64));
    }
    assert_eq!(bench.oracle.asked, 1, "one asks, and it is known for all");
    assert!(bench.line.waits_for_slots());
    assert_eq!(bench.line.known(place(0, 50), at(100)), Some((at(301), LastCause::Slots)));
    // The safety net: one question for all of them.
    bench.pump(at(301));
    assert_eq!(bench.oracle.asked, 2);
    // Room for one, which goes to the first of them.
    bench.oracle.held = 0;
    bench.denied.clear();
    assert!(bench.line.room(at(310)));
    bench.pump(at(310));
    assert_eq!(bench.granted.last(), Some(&place(0, 1)));
    assert!(bench.oracle.asked <= 5, "{}", bench.oracle.asked);
}

#[test]
fn as_12_who_waits_for_a_rate_waits_for_no_slot() {
    let mut bench = scoped(&[("tokens", 1, true)], 1);
    drain(&mut bench, "a", "tokens", at(0));
    (0..5).for_each(|arrival| bench.push(place(0, arrival), job("a", &[])));
    bench.pump(at(0));
    assert_eq!((bench.line.len(), bench.line.takers(), bench.line.head()), (5, 0, None));
    assert!(!bench.line.waits_for_slots());
    (5..8).for_each(|arrival| bench.push(place(0, arrival), job("b", &[])));
    assert_eq!((bench.line.len(), bench.line.takers(), bench.line.head()), (8, 3, Some(5)));
    bench.pump(at(1));
    assert!(bench.line.waits_for_slots());
    assert_eq!((bench.line.len(), bench.line.takers(), bench.line.head()), (8, 3, Some(5)));
}

#[test]
fn as_12_room_that_no_one_waits_for_is_passed_on() {
    let mut bench = scoped(&[("tokens", 1, true)], 1);
    assert!(!bench.line.room(at(0)), "nobody is here");
    drain(&mut bench, "a", "tokens", at(0));
    bench.oracle.held = 0;
    bench.push(place(0, 0), job("a", &[]));
    bench.pump(at(0));
    assert!(!bench.line.room(at(1)), "it waits for a rate");
    let mut ordered = Bench::new(policy(&[("all", 1, false)]), 1, 0);
    ordered.push(place(0, 0), job("a", &[("all", 100)]));
    ordered.pump(at(0));
    ordered.push(place(0, 1), job("a", &[]));
    ordered.line.ask(at(0), 9, &ordered.policy);
    ordered.deny(place(0, 1), Obstacle::Rule(0, None), 1, 1_000, at(0));
    assert!(!ordered.line.room(at(1)));
    ordered.deny(place(0, 1), Obstacle::Slots, 0, 1_000, at(1));
    assert!(ordered.line.room(at(2)));
}

#[test]
fn va_2_what_is_not_known_here_holds_up_one_job_alone() {
    let mut bench = scoped(&[("tokens", 100, true)], usize::MAX);
    bench.push(place(0, 0), job("a", &[]));
    assert_eq!(bench.line.ask(at(0), 9, &bench.policy).jobs, [0]);
    bench.deny(place(0, 0), Obstacle::Unknown(0), 0, 60_000, at(0));
    bench.push(place(0, 1), job("a", &[]));
    bench.pump(at(1));
    assert_eq!(bench.granted, [place(0, 1)]);
    assert_eq!(bench.line.next_due(), Some(at(60_000)));
    bench.pump(at(60_000));
    assert_eq!(bench.granted, [place(0, 1), place(0, 0)]);
}

#[test]
fn va_2_those_behind_one_that_is_refused_or_leaves_while_it_is_tried_go_on() {
    let mut bench = scoped(&[("tokens", 1, true)], usize::MAX);
    drain(&mut bench, "a", "tokens", at(0));
    (0..5).for_each(|arrival| bench.push(place(0, arrival), job("a", &[])));
    bench.pump(at(0));
    let asked = bench.line.ask(at(1_000), 9, &bench.policy);
    assert_eq!(asked.jobs, [0]);
    // No answer comes of it: it was cancelled, or its request was refused.
    bench.remove(place(0, 0));
    bench.audit();
    assert!(bench.line.is_due(at(1_000)));
    bench.pump(at(1_000));
    assert_eq!(bench.granted, [place(0, 1)]);
}

#[test]
fn va_3_an_ordered_line_asks_again_for_a_new_head_only_where_it_may_fit() {
    let mut bench = Bench::new(policy(&[("all", 1, false)]), usize::MAX, 0);
    bench.push(place(0, 0), job("a", &[("all", 100)]));
    bench.pump(at(0));
    let costs = [50, 50, 20, 90];
    for (arrival, cost) in costs.into_iter().enumerate() {
        bench.push(place(0, arrival + 1), job("a", &[("all", cost)]));
    }
    bench.line.ask(at(0), 9, &bench.policy);
    bench.deny(place(0, 1), Obstacle::Rule(0, None), 50, 50_000, at(0));
    assert!(!bench.line.is_due(at(1)));
    // Whoever comes at the end waits, whatever it costs.
    assert!(bench.line.meets(next_place(0), &job("a", &[]), &bench.policy, at(1)).is_some());
    // A new head that costs as much would be denied as well; one that costs less may fit.
    assert!(bench.line.meets(next_place(1), &job("a", &[("all", 50)]), &bench.policy, at(1)).is_some());
    assert!(bench.line.meets(next_place(1), &job("a", &[("all", 49)]), &bench.policy, at(1)).is_none());
    bench.remove(place(0, 1));
    assert!(!bench.line.is_due(at(1)), "the next costs as much");
    assert_eq!(bench.line.next_due(), Some(at(50_000)));
    bench.remove(place(0, 2));
    assert!(bench.line.is_due(at(1)), "the next costs less");
}

#[test]
fn va_4_a_pause_holds_a_line_until_it_is_over_or_extended_or_ended() {
    for rules in [&[("all", 10, false)], &[("tokens", 10, true)]] {
        let mut bench = Bench::new(policy(rules), usize::MAX, 0);
        bench.line.pause(at(1_000), at(1_100));
        assert_eq!(bench.line.next_due(), None, "nobody waits");
        bench.push(place(0, 0), job("a", &[]));
        bench.line.pause(at(1_000), at(1_100));
        assert!(!bench.line.is_due(at(0)));
        assert_eq!(bench.line.known(place(0, 0), at(0)), Some((at(1_100), LastCause::Pause)));
        let meets = bench.line.meets(next_place(5), &job("b", &[]), &bench.policy, at(0));
        assert_eq!(meets, Some((at(1_100), LastCause::Pause)));
        // The same pause, seen again.
        bench.line.pause(at(1_001), at(1_060));
        assert_eq!(bench.line.next_due(), Some(at(1_100)));
        // A longer one.
        bench.line.pause(at(5_000), at(5_500));
        assert_eq!(bench.line.next_due(), Some(at(5_500)));
        // Another, after the first was ended.
        bench.line.pause(at(2_000), at(2_010));
        assert_eq!(bench.line.next_due(), Some(at(2_010)));
        assert!(!bench.line.is_due(at(2_009)) && bench.line.is_due(at(2_010)));
        bench.line.resume();
        assert!(bench.line.is_due(at(0)));
    }
}
