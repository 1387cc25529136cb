//! One step, also where many ask at once.
//!
//! Spec: ST-1.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU32, AtomicUsize, Ordering},
};

use tidegate_core::{Acquire, Capability, Exchange, Outcome, Sequence, Token, rule::Rule};

use super::{
    Failure, Need, ensure,
    lab::{DAY, Lab, Worker, fixed, jobs_of_one, ms, policy, ruled, scoped_job, scoped_jobs, slots},
    same, trials_of_rules,
};
use crate::task::{Task, lock};

trials_of_rules! {
    "ST-1 simultaneous acquires never exceed a rule" => st_1_rules;
    "ST-1 simultaneous acquires never exceed the limit" [Need::Has(Capability::Leases)] => st_1_limit;
    "ST-1 a slot and a cost are taken in one step" [Need::Has(Capability::Leases)] => st_1_both;
    "ST-1 simultaneous scoped acquires never exceed the rule of an identity"
        [Need::Has(Capability::Scoped)] => st_1_scoped;
    "ST-1 of two policies at once one is pinned" => st_1_one_policy;
    "ST-1 a number that comes many times at once is carried out once"
        [Need::Has(Capability::Exchange)] => st_1_one_number;
}

const PROCESSES: usize = 8;

/// Half of them through the store's other handle.
fn processes(lab: &Lab, worker: &Worker) -> Result<Vec<Worker>, Failure> {
    (0..PROCESSES)
        .map(|process| {
            let peer = lab.peer_of(worker)?;
            Ok(if process % 2 == 0 { peer } else { Worker { store: Arc::clone(&worker.store), ..peer } })
        })
        .collect()
}

/// How many of so many acquires of one job each process gets, all of them at the same time.
pub(super) async fn granted_at_once(lab: &Lab, worker: &Worker, each: usize) -> Result<usize, Failure> {
    let granted = Arc::new(AtomicUsize::new(0));
    let tasks = processes(lab, worker)?.into_iter().map(|process| -> Task<'static, Result<(), Failure>> {
        let granted = Arc::clone(&granted);
        Box::pin(async move {
            for _ in 0..each {
                granted.fetch_add(process.granted(1).await?, Ordering::SeqCst);
            }
            Ok(())
        })
    });
    lab.at_once(tasks.collect()).await?;
    Ok(granted.load(Ordering::SeqCst))
}

async fn st_1_rules(lab: &Lab) -> Result<(), Failure> {
    let rules = policy()
        .rule(Rule::token_bucket(100, ms(365 * DAY)))
        .rule(Rule::fixed_window(80, ms(DAY)))
        .rule(Rule::sliding_window(120, ms(DAY)));
    let worker = lab.worker(&rules)?;
    same(granted_at_once(lab, &worker, 50).await?, 80, "grants of the tightest rule")?;
    same(worker.granted(1).await?, 0, "grants after that")
}

/// Counts what is certainly held: from the answer of the grant to the call of the release.
#[derive(Default)]
struct Held {
    now: AtomicU32,
    most: AtomicU32,
}

impl Held {
    fn more(&self, leases: u32) {
        let now = self.now.fetch_add(leases, Ordering::SeqCst) + leases;
        self.most.fetch_max(now, Ordering::SeqCst);
    }

    fn less(&self, leases: u32) {
        self.now.fetch_sub(leases, Ordering::SeqCst);
    }
}

async fn hold_and_release(process: Worker, held: Arc<Held>, rounds: u32) -> Result<(), Failure> {
    for round in 0..rounds {
        let reply = process.acquire(if round % 3 == 0 { 2 } else { 1 }).await?;
        let tokens: Vec<Token> = reply.body.grants.iter().filter_map(|grant| grant.lease).collect();
        let leases = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
        held.more(leases);
        let live = process.renew(&tokens).await?;
        ensure(live.iter().all(|live| *live), "a lease that was just granted does not live")?;
        held.less(leases);
        process.report(&tokens, Outcome::Failure).await?;
    }
    Ok(())
}

async fn st_1_limit(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(7))?;
    let held = Arc::new(Held::default());
    let tasks = processes(lab, &worker)?.into_iter().map(|process| -> Task<'static, Result<(), Failure>> {
        Box::pin(hold_and_release(process, Arc::clone(&held), 60))
    });
    lab.at_once(tasks.collect()).await?;
    let most = held.most.load(Ordering::SeqCst);
    ensure(most <= 7, format_args!("{most} leases were held at once under a limit of 7"))?;
    let tokens = worker.leases(7).await?;
    slots(&tokens, &[0, 1, 2, 3, 4, 5, 6], "slots after all was released")?;
    same(worker.granted(1).await?, 0, "grants above the limit")
}

async fn st_1_both(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(5).rule(Rule::fixed_window(60, ms(DAY))))?;
    same(granted_at_once(lab, &worker, 20).await?, 5, "grants up to the limit")?;
    // A denied job has spent nothing, however many were denied at once.
    ensure(
        worker.denied(55).await?.lease_blocked,
        "full slots deny what the rule has left after five grants",
    )?;
    ensure(!worker.denied(56).await?.lease_blocked, "the rule denies more than it has left")
}

async fn st_1_one_policy(lab: &Lab) -> Result<(), Failure> {
    let drafts = [ruled(Rule::fixed_window(50, ms(DAY))), ruled(Rule::fixed_window(60, ms(DAY)))];
    let granted = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let mut tasks: Vec<Task<'static, Result<(), Failure>>> = Vec::new();
    for (index, worker) in processes(lab, &lab.worker(&drafts[0])?)?.into_iter().enumerate() {
        let other = lab.worker(&drafts[index / 2 % 2])?;
        let worker = Worker { member: other.member, ..worker };
        let granted = Arc::clone(&granted);
        tasks.push(Box::pin(async move {
            for _ in 0..20 {
                match worker.ask(&jobs_of_one(1)).await {
                    Ok(reply) => {
                        granted[index / 2 % 2].fetch_add(reply.body.grants.len(), Ordering::SeqCst);
                    }
                    Err(error) => same(error.code(), "invalid_options", "the error of the other policy")?,
                }
            }
            Ok(())
        }));
    }
    lab.at_once(tasks).await?;
    let granted: Vec<usize> = granted.iter().map(|granted| granted.load(Ordering::SeqCst)).collect();
    ensure(
        granted == [50, 0] || granted == [0, 60],
        format_args!("one policy admits 50 or 60 and the other nothing, not {granted:?}"),
    )
}

async fn st_1_one_number(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(100, ms(DAY))))?;
    let answers = Arc::new(Mutex::new(Vec::new()));
    let exchange = Arc::new(Exchange {
        sequence: Some(Sequence { number: 1, not_after: None }),
        acquires: vec![Acquire::Prefix(jobs_of_one(7))],
        ..Exchange::default()
    });
    let tasks = processes(lab, &worker)?.into_iter().map(|process| -> Task<'static, Result<(), Failure>> {
        // One driver, whose packets come through all of the handles.
        let process = Worker { member: worker.member.clone(), ..process };
        let (exchange, answers) = (Arc::clone(&exchange), Arc::clone(&answers));
        Box::pin(async move {
            let body = process.exchange(&exchange).await?.body;
            lock(&answers).push(body);
            Ok(())
        })
    });
    lab.at_once(tasks.collect()).await?;
    let answers = std::mem::take(&mut *lock(&answers));
    ensure(answers.windows(2).all(|pair| pair[0] == pair[1]), "each delivery is answered alike")?;
    same(worker.granted(200).await?, 93, "grants of what one of them has left")
}

async fn st_1_scoped(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(9, ms(DAY)).scoped("tenant")))?;
    let granted = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
    let tasks = processes(lab, &worker)?.into_iter().map(|process| -> Task<'static, Result<(), Failure>> {
        let granted = Arc::clone(&granted);
        Box::pin(async move {
            for _ in 0..10 {
                let jobs = vec![scoped_job(1, &[("tenant", "a")])?, scoped_job(1, &[("tenant", "b")])?];
                let reply = process.ask_scoped(&scoped_jobs(None, jobs)).await?;
                for grant in &reply.body.grants {
                    if let Some(granted) = granted.get(grant.index) {
                        granted.fetch_add(1, Ordering::SeqCst);
                    }
                }
            }
            Ok(())
        })
    });
    lab.at_once(tasks.collect()).await?;
    let granted: Vec<usize> = granted.iter().map(|granted| granted.load(Ordering::SeqCst)).collect();
    same(granted, vec![9, 9], "grants of each identity")
}
