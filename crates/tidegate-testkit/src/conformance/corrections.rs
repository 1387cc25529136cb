//! Costs corrected to what was really used, and levels lowered to what the server says.
//!
//! Spec: ST-12, VA-9.

use tidegate_core::{
    Capability, Identity, Observation, RuleKey, Settlement,
    rule::{Algorithm, Rule},
    time::Moment,
};

use super::{
    Failure, Need,
    deciding::hint_is_exact,
    ensure,
    lab::{DAY, Lab, Worker, jobs, key, ms, policy, refused, ruled, scoped_job, scoped_jobs},
    same, trials_of_rules,
};
use crate::subject::Hook;

const CORRECTIONS: Need = Need::Has(Capability::Corrections);
const SCOPED: Need = Need::Has(Capability::Scoped);
const CLOCK: Need = Need::Hook(Hook::Clock);

trials_of_rules! {
    "ST-12 what was not used is credited" [CORRECTIONS] => st_12_credit;
    "ST-12 what was used beyond is debited at once" [CORRECTIONS] => st_12_debit;
    "ST-12 jobs wait out a debt to the millisecond" [CORRECTIONS, CLOCK] => st_12_debt;
    "ST-12 debt is cut at ten bursts, and the cut is reported" [CORRECTIONS] => st_12_cut;
    "ST-12 a credit never goes above the burst" [CORRECTIONS] => st_12_never_above;
    "ST-12 a credit goes to the window that was charged" [CORRECTIONS, CLOCK] => st_12_past_window;
    "ST-12 a credit of a sliding window frees what was charged then" [CORRECTIONS, CLOCK] => st_12_sliding;
    "ST-12 a cost is corrected to up to 10^12" [CORRECTIONS] => st_12_bounds;
    "ST-12 several corrections in one call are each answered" [CORRECTIONS] => st_12_several;
    "ST-12 an unknown rule is passed over" [CORRECTIONS] => st_12_unknown;
    "ST-12 an identity is corrected alone" [CORRECTIONS, SCOPED] => st_12_identity;
    "ST-12 up to 1,000 corrections at once" [CORRECTIONS] => st_12_how_many;
    "VA-9 a level is lowered to what the server has left" [CORRECTIONS] => va_9_lowers;
    "VA-9 a level is never raised" [CORRECTIONS] => va_9_never_raises;
    "VA-9 what was admitted since that grant counts" [CORRECTIONS] => va_9_since;
    "VA-9 ignored once the reset has passed" [CORRECTIONS, CLOCK] => va_9_reset;
    "VA-9 ignored where a newer observation is there" [CORRECTIONS, CLOCK] => va_9_newer;
    "VA-9 an identity is lowered alone" [CORRECTIONS, SCOPED] => va_9_identity;
    "VA-9 an unknown rule is passed over, and 1,000 at once are taken" [CORRECTIONS] => va_9_bounds;
}

/// A grant, as a permit remembers it.
#[derive(Clone, Copy)]
struct Granted {
    at: Moment,
    cost: u64,
    mark: u64,
}

impl Granted {
    fn settled(self, rule: &RuleKey, actual: u64) -> Settlement {
        Settlement { rule: rule.clone(), identity: None, granted_at: self.at, cost: self.cost, actual }
    }

    fn observed(self, rule: &RuleKey, remaining: u64, reset_at: Moment) -> Observation {
        Observation {
            rule: rule.clone(),
            identity: None,
            remaining,
            reset_at,
            granted_at: self.at,
            mark: self.mark,
        }
    }
}

/// A job of this cost, which must be granted.
async fn grant(lab: &Lab, worker: &Worker, cost: u64) -> Result<Granted, Failure> {
    let reply = worker.ask(&jobs(&[cost])).await?;
    let at = reply.head.now.unwrap_or_else(|| lab.now());
    let granted = reply.body.grants.first().and_then(|grant| grant.marks.get(0));
    let mark = granted.ok_or_else(|| Failure(format!("a job of cost {cost} was denied, or has no mark")))?;
    Ok(Granted { at, cost, mark })
}

async fn observe(worker: &Worker, observation: Observation) -> Result<bool, Failure> {
    let lowered = worker.store.observe(&worker.member, &[observation]).await?.body;
    match lowered.as_slice() {
        [lowered] => Ok(*lowered),
        _ => Err(Failure(format!("one observation was answered by {}", lowered.len()))),
    }
}

/// A rule of each algorithm that holds this, and gives nothing back within a day.
fn each_algorithm(limit: u64) -> [(&'static str, Rule); 3] {
    [
        ("bucket", Rule::token_bucket(limit, ms(365 * DAY)).named("a")),
        ("fixed", Rule::fixed_window(limit, ms(DAY)).named("a")),
        ("sliding", Rule::sliding_window(limit, ms(DAY)).named("a")),
    ]
}

async fn st_12_credit(lab: &Lab) -> Result<(), Failure> {
    let rule = key("named:a");
    for (id, written) in each_algorithm(10) {
        let worker = lab.worker_of(id, &ruled(written))?;
        let (first, second) = (grant(lab, &worker, 6).await?, grant(lab, &worker, 4).await?);
        same(worker.granted(1).await?, 0, format_args!("{id}: grants of an empty level"))?;
        same(worker.settle(first.settled(&rule, 1)).await?, 0, format_args!("{id}: what was cut"))?;
        ensure(!worker.spends(6).await?, format_args!("{id}: more than was credited was granted"))?;
        ensure(worker.spends(5).await?, format_args!("{id}: what was credited was denied"))?;
        same(
            worker.settle(second.settled(&rule, 4)).await?,
            0,
            format_args!("{id}: what was cut of no change"),
        )?;
        same(
            worker.granted(1).await?,
            0,
            format_args!("{id}: grants after a settlement that changes nothing"),
        )?;
        same(worker.settle(second.settled(&rule, 0)).await?, 0, format_args!("{id}: what was cut"))?;
        same(worker.granted(9).await?, 4, format_args!("{id}: grants after a cost was given back whole"))?;
    }
    Ok(())
}

async fn st_12_debit(lab: &Lab) -> Result<(), Failure> {
    let rule = key("named:a");
    for (id, written) in each_algorithm(10) {
        let worker = lab.worker_of(id, &ruled(written))?;
        let first = grant(lab, &worker, 5).await?;
        let second = grant(lab, &worker, 1).await?;
        same(worker.settle(second.settled(&rule, 3)).await?, 0, format_args!("{id}: what was cut"))?;
        let third = grant(lab, &worker, 2).await?;
        same(worker.granted(1).await?, 0, format_args!("{id}: grants after a debit"))?;
        // Below zero: as much must come back before anything fits.
        same(worker.settle(third.settled(&rule, 7)).await?, 0, format_args!("{id}: what was cut"))?;
        same(worker.settle(first.settled(&rule, 0)).await?, 0, format_args!("{id}: what was cut"))?;
        same(worker.granted(1).await?, 0, format_args!("{id}: grants of a level that is at zero"))?;
        let again = Granted { cost: 2, ..third };
        same(worker.settle(again.settled(&rule, 0)).await?, 0, format_args!("{id}: what was cut"))?;
        same(worker.granted(9).await?, 2, format_args!("{id}: grants of a level that is above zero again"))?;
    }
    Ok(())
}

async fn st_12_debt(lab: &Lab) -> Result<(), Failure> {
    let rules = [
        ("bucket", Rule::token_bucket(10, ms(10_000)).named("a"), 6_000),
        ("fixed", Rule::fixed_window(10, ms(10_000)).named("a"), 10_000),
        ("sliding", Rule::sliding_window(10, ms(10_000)).named("a"), 10_000),
    ];
    for (id, written, hint_ms) in rules {
        let worker = lab.worker_of(id, &ruled(written))?;
        let granted = grant(lab, &worker, 10).await?;
        worker.settle(granted.settled(&key("named:a"), 15)).await?;
        same(
            hint_is_exact(lab, &worker, 1, id).await?,
            hint_ms,
            format_args!("{id}: the hint with a debt of 5"),
        )?;
    }
    Ok(())
}

async fn st_12_cut(lab: &Lab) -> Result<(), Failure> {
    let rule = key("named:a");
    for (id, written) in each_algorithm(10) {
        let worker = lab.worker_of(id, &ruled(written))?;
        let granted = grant(lab, &worker, 10).await?;
        let cut = worker.settle(granted.settled(&rule, 109)).await?;
        same(cut, 0, format_args!("{id}: what was cut of a debt of 99"))?;
        let cut = worker.settle(Granted { cost: 0, ..granted }.settled(&rule, 3)).await?;
        same(cut, 2, format_args!("{id}: what was cut of 3 more, where debt ends at 100"))?;
        let cut = worker.settle(Granted { cost: 0, ..granted }.settled(&rule, 1_000_000_000_000)).await?;
        same(cut, 1_000_000_000_000, format_args!("{id}: what was cut of 10^12 more"))?;
        // 110 are used, all at one moment where the clock stands still. After 101 are given back, one is left.
        if lab.is_timed() {
            worker.settle(Granted { cost: 101, ..granted }.settled(&rule, 0)).await?;
            same(
                worker.granted(9).await?,
                1,
                format_args!("{id}: grants when a debt of 100 was given back"),
            )?;
        }
    }
    Ok(())
}

async fn st_12_never_above(lab: &Lab) -> Result<(), Failure> {
    let rule = key("named:a");
    for (id, written) in each_algorithm(10) {
        let worker = lab.worker_of(id, &ruled(written))?;
        let granted = grant(lab, &worker, 3).await?;
        worker.settle(Granted { cost: 1_000, ..granted }.settled(&rule, 0)).await?;
        same(
            worker.granted(20).await?,
            10,
            format_args!("{id}: grants after more was credited than was spent"),
        )?;
    }
    Ok(())
}

async fn st_12_past_window(lab: &Lab) -> Result<(), Failure> {
    for (id, written) in
        [("fixed", Rule::fixed_window(10, ms(1_000))), ("sliding", Rule::sliding_window(10, ms(1_000)))]
    {
        let rule = written.check()?.key().clone();
        let worker = lab.worker_of(id, &ruled(written))?;
        let first = grant(lab, &worker, 10).await?;
        lab.advance(1_000).await;
        grant(lab, &worker, 10).await?;
        worker.settle(first.settled(&rule, 0)).await?;
        same(
            worker.granted(1).await?,
            0,
            format_args!("{id}: grants after a credit to a window that is over"),
        )?;
        lab.advance(999).await;
        same(worker.granted(1).await?, 0, format_args!("{id}: grants before the second window is over"))?;
        lab.advance(1).await;
        same(worker.granted(20).await?, 10, format_args!("{id}: grants of the next window"))?;
    }
    // A fixed window goes on after all of it was given back: its end is known from its start.
    let worker = lab.worker_of("goes on", &ruled(Rule::fixed_window(10, ms(1_000)).named("a")))?;
    let first = grant(lab, &worker, 10).await?;
    lab.advance(600).await;
    worker.settle(first.settled(&key("named:a"), 0)).await?;
    same(worker.granted(20).await?, 10, "grants after all was given back")?;
    same(worker.denied(1).await?.hint_ms, 400, "the hint of a window that began 600 ms ago")
}

async fn st_12_sliding(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::sliding_window(10, ms(1_000)).named("a")))?;
    let rule = key("named:a");
    let first = grant(lab, &worker, 4).await?;
    lab.advance(300).await;
    let second = grant(lab, &worker, 6).await?;
    worker.settle(second.settled(&rule, 1)).await?;
    same(worker.granted(20).await?, 5, "grants of what was given back")?;
    // Used: 4 at 0, 1 + 5 at 300. What is corrected upwards counts from now on.
    lab.advance(300).await;
    worker.settle(first.settled(&rule, 6)).await?;
    for (cost, hint_ms) in [(1, 400), (2, 400), (3, 700), (8, 700), (9, 1_000)] {
        same(worker.denied(cost).await?.hint_ms, hint_ms, format_args!("the hint of a job of cost {cost}"))?;
    }
    Ok(())
}

async fn st_12_bounds(lab: &Lab) -> Result<(), Failure> {
    let most = 1_000_000_000_000;
    let worker = lab.worker(&ruled(Rule::fixed_window(10, ms(DAY)).named("a")))?;
    let granted = grant(lab, &worker, 4).await?;
    let before = worker.traces().await?;
    for (cost, actual) in [(4, most + 1), (4, u64::MAX), (most + 1, 0), (u64::MAX, u64::MAX)] {
        let right = granted.settled(&key("named:a"), 0);
        let wrong = Granted { cost, ..granted }.settled(&key("named:a"), actual);
        refused(
            worker.store.settle(&worker.member, &[right, wrong]).await,
            "invalid_options",
            format_args!("a cost of {cost} corrected to {actual}"),
        )?;
        same(worker.traces().await?, before.clone(), "the id after a settlement that was refused")?;
    }
    same(worker.granted(9).await?, 6, "grants that the refused settlements have left")
}

async fn st_12_several(lab: &Lab) -> Result<(), Failure> {
    let rules = policy()
        .rule(Rule::fixed_window(10, ms(DAY)).named("a"))
        .rule(Rule::token_bucket(20, ms(365 * DAY)).named("b"));
    let worker = lab.worker(&rules)?;
    let reply = worker.ask(&jobs(&[10])).await?;
    let at = reply.head.now.unwrap_or_else(|| lab.now());
    let granted = Granted { at, cost: 10, mark: 0 };
    let settlements = [
        granted.settled(&key("named:a"), 500),
        granted.settled(&key("named:b"), 2),
        granted.settled(&key("named:z"), 2),
    ];
    let settled = worker.store.settle(&worker.member, &settlements).await?.body;
    same(settled.iter().map(|settled| settled.cut).collect(), vec![390, 0, 0], "what was cut of each")?;
    // b has 18 left, and a is far below zero.
    same(worker.denied(1).await?.rule, Some(key("named:a")), "the rule that denies after that")?;
    worker.settle(Granted { cost: 110, ..granted }.settled(&key("named:a"), 0)).await?;
    ensure(worker.spends(10).await?, "10 of the first rule, and of 18 of the second")?;
    same(worker.store.settle(&worker.member, &[]).await?.body, vec![], "answers to no settlement")
}

async fn st_12_unknown(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(10, ms(DAY)).named("a")))?;
    let granted = grant(lab, &worker, 10).await?;
    let unknown = ["named:b", "named:A", "a", "", "named:a ", "fixed_window:86400000", "named:a\u{0}"];
    for rule in unknown {
        same(
            worker.settle(granted.settled(&key(rule), 0)).await?,
            0,
            format_args!("what was cut of {rule:?}"),
        )?;
    }
    let scoped = Settlement { identity: Some(Identity::new("x")?), ..granted.settled(&key("named:a"), 0) };
    same(worker.settle(scoped).await?, 0, "what was cut for an identity of a rule without a scope")?;
    same(worker.granted(1).await?, 0, "grants after corrections of rules that there are not")?;
    let unused = lab.worker_of("unused", &policy())?;
    same(unused.settle(granted.settled(&key("named:a"), 0)).await?, 0, "what was cut on an id never used")
}

async fn st_12_identity(lab: &Lab) -> Result<(), Failure> {
    for (id, written) in each_algorithm(10) {
        let worker = lab.worker_of(id, &ruled(written.scoped("tenant")))?;
        let jobs = vec![scoped_job(10, &[("tenant", "x")])?, scoped_job(10, &[("tenant", "y")])?];
        let reply = worker.ask_scoped(&scoped_jobs(None, jobs)).await?;
        let at = reply.head.now.unwrap_or_else(|| lab.now());
        let settlement = |identity: &str, cost, actual| -> Result<Settlement, Failure> {
            let identity = Some(Identity::new(identity)?);
            Ok(Settlement { rule: key("named:a"), identity, granted_at: at, cost, actual })
        };
        worker.settle(settlement("x", 10, 7)?).await?;
        worker.settle(Settlement { identity: None, ..settlement("x", 10, 0)? }).await?;
        worker.settle(settlement("z", 0, 4)?).await?;
        for (identity, left) in [("x", 3), ("y", 0), ("z", 6)] {
            let granted =
                super::scoped::granted_to(&worker, "tenant", &vec![identity.to_owned(); 20]).await?;
            same(granted, left, format_args!("{id}: grants of {identity}"))?;
        }
    }
    Ok(())
}

async fn st_12_how_many(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(2_000, ms(DAY)).named("a")))?;
    let granted = Granted { cost: 2, ..grant(lab, &worker, 2_000).await? };
    let settlement = granted.settled(&key("named:a"), 1);
    refused(
        worker.store.settle(&worker.member, &vec![settlement.clone(); 1_001]).await,
        "invalid_options",
        "1,001 settlements",
    )?;
    same(worker.granted(1).await?, 0, "grants after settlements that were refused")?;
    let settled = worker.store.settle(&worker.member, &vec![settlement; 1_000]).await?.body;
    same(settled.len(), 1_000, "answers to 1,000 settlements")?;
    same(worker.granted(512).await? + worker.granted(512).await?, 1_000, "grants of what was given back")
}

// ---- observations --------------------------------------------------------------------------------------------------

async fn va_9_lowers(lab: &Lab) -> Result<(), Failure> {
    for (id, written) in each_algorithm(100) {
        let worker = lab.worker_of(id, &ruled(written))?;
        let granted = grant(lab, &worker, 1).await?;
        let reset = granted.at.plus(ms(DAY / 2));
        let seen = |remaining| granted.observed(&key("named:a"), remaining, reset);
        ensure(observe(&worker, seen(40)).await?, format_args!("{id}: 99 are lowered to 40"))?;
        ensure(!observe(&worker, seen(40)).await?, format_args!("{id}: 40 are not lowered to 40"))?;
        ensure(observe(&worker, seen(39)).await?, format_args!("{id}: 40 are lowered to 39"))?;
        same(worker.granted(100).await?, 39, format_args!("{id}: grants of 39"))?;
        ensure(
            !observe(&worker, seen(0)).await?,
            format_args!("{id}: an empty level is lowered no further"),
        )?;
        same(worker.granted(1).await?, 0, format_args!("{id}: grants of an empty level"))?;
    }
    Ok(())
}

async fn va_9_never_raises(lab: &Lab) -> Result<(), Failure> {
    for (id, written) in each_algorithm(10) {
        let worker = lab.worker_of(id, &ruled(written))?;
        let granted = grant(lab, &worker, 8).await?;
        let reset = granted.at.plus(ms(DAY / 2));
        for remaining in [3, 10, 1_000_000, u64::MAX] {
            let seen = granted.observed(&key("named:a"), remaining, reset);
            ensure(!observe(&worker, seen).await?, format_args!("{id}: 2 are not raised to {remaining}"))?;
        }
        same(worker.granted(9).await?, 2, format_args!("{id}: grants of 2"))?;
    }
    Ok(())
}

async fn va_9_since(lab: &Lab) -> Result<(), Failure> {
    for (id, written) in each_algorithm(100) {
        let worker = lab.worker_of(id, &ruled(written))?;
        let first = grant(lab, &worker, 10).await?;
        let second = grant(lab, &worker, 5).await?;
        same(second.mark, first.mark + 5, format_args!("{id}: the mark of the second grant"))?;
        grant(lab, &worker, 7).await?;
        let reset = first.at.plus(ms(DAY / 2));
        // The server answered the first job, and knows nothing of the 12 that were admitted since.
        ensure(
            observe(&worker, first.observed(&key("named:a"), 50, reset)).await?,
            format_args!("{id}: lowered"),
        )?;
        same(worker.granted(100).await?, 38, format_args!("{id}: grants of 50 less 12"))?;
        let seen = second.observed(&key("named:a"), 20, reset);
        ensure(!observe(&worker, seen).await?, format_args!("{id}: 20 less the 45 admitted since are none"))?;
        same(worker.granted(1).await?, 0, format_args!("{id}: grants of none"))?;
    }
    Ok(())
}

async fn va_9_reset(lab: &Lab) -> Result<(), Failure> {
    for (id, written) in each_algorithm(100) {
        let worker = lab.worker_of(id, &ruled(written))?;
        let granted = grant(lab, &worker, 1).await?;
        lab.advance(1_000).await;
        let seen = |reset| granted.observed(&key("named:a"), 5, reset);
        ensure(!observe(&worker, seen(lab.now())).await?, format_args!("{id}: ignored at the reset"))?;
        ensure(!observe(&worker, seen(granted.at)).await?, format_args!("{id}: ignored after the reset"))?;
        ensure(
            observe(&worker, seen(lab.now().plus(ms(1)))).await?,
            format_args!("{id}: taken a millisecond before the reset"),
        )?;
        same(worker.granted(100).await?, 5, format_args!("{id}: grants of 5"))?;
    }
    Ok(())
}

async fn va_9_newer(lab: &Lab) -> Result<(), Failure> {
    for (id, written) in each_algorithm(100) {
        let worker = lab.worker_of(id, &ruled(written))?;
        let first = grant(lab, &worker, 1).await?;
        let second = grant(lab, &worker, 1).await?;
        lab.advance(10).await;
        let third = grant(lab, &worker, 1).await?;
        let reset = first.at.plus(ms(DAY / 2));
        let seen = |granted: Granted, remaining| granted.observed(&key("named:a"), remaining, reset);
        ensure(observe(&worker, seen(second, 60)).await?, format_args!("{id}: the second grant's is taken"))?;
        ensure(
            !observe(&worker, seen(first, 10)).await?,
            format_args!("{id}: the first grant's comes too late"),
        )?;
        ensure(observe(&worker, seen(third, 50)).await?, format_args!("{id}: the third grant's is newer"))?;
        ensure(
            !observe(&worker, seen(second, 9)).await?,
            format_args!("{id}: the second grant's comes too late"),
        )?;
        same(worker.granted(100).await?, 50, format_args!("{id}: grants of 50"))?;
    }
    Ok(())
}

async fn va_9_identity(lab: &Lab) -> Result<(), Failure> {
    for (id, written) in each_algorithm(10) {
        let algorithm: Algorithm = written.check()?.algorithm();
        let worker = lab.worker_of(id, &ruled(written.scoped("tenant")))?;
        let jobs = vec![scoped_job(1, &[("tenant", "x")])?, scoped_job(1, &[("tenant", "y")])?];
        let reply = worker.ask_scoped(&scoped_jobs(None, jobs)).await?;
        let at = reply.head.now.unwrap_or_else(|| lab.now());
        let mark = reply.body.grants.first().and_then(|granted| granted.grant.marks.get(0));
        let granted = Granted { at, cost: 1, mark: mark.unwrap_or(0) };
        let seen = |identity: &str, remaining| -> Result<Observation, Failure> {
            let identity = Some(Identity::new(identity)?);
            Ok(Observation { identity, ..granted.observed(&key("named:a"), remaining, at.plus(ms(DAY / 2))) })
        };
        ensure(observe(&worker, seen("x", 4)?).await?, format_args!("{algorithm}: 9 of x are lowered to 4"))?;
        ensure(
            observe(&worker, Observation { mark: 0, ..seen("z", 2)? }).await?,
            format_args!("{algorithm}: a level that is not kept is lowered too"),
        )?;
        let unscoped = Observation { identity: None, ..seen("x", 0)? };
        ensure(!observe(&worker, unscoped).await?, format_args!("{algorithm}: no identity, no level"))?;
        for (identity, left) in [("x", 4), ("y", 9), ("z", 2)] {
            let granted =
                super::scoped::granted_to(&worker, "tenant", &vec![identity.to_owned(); 20]).await?;
            same(granted, left, format_args!("{algorithm}: grants of {identity}"))?;
        }
    }
    Ok(())
}

async fn va_9_bounds(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(10, ms(DAY)).named("a")))?;
    let granted = grant(lab, &worker, 1).await?;
    let seen = |rule: &str| granted.observed(&key(rule), 0, granted.at.plus(ms(DAY / 2)));
    for rule in ["named:b", "", "a"] {
        ensure(!observe(&worker, seen(rule)).await?, format_args!("the rule {rule:?} is passed over"))?;
    }
    refused(
        worker.store.observe(&worker.member, &vec![seen("named:a"); 1_001]).await,
        "invalid_options",
        "1,001 observations",
    )?;
    same(worker.granted(1).await?, 1, "grants after what was passed over and refused")?;
    let answers = worker.store.observe(&worker.member, &vec![seen("named:b"); 1_000]).await?.body;
    same(answers, vec![false; 1_000], "answers to 1,000 observations")
}
