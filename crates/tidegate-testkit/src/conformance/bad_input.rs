//! What cannot be taken changes nothing, and what is odd stays apart.
//!
//! Spec: BI-1, BI-2, BI-3.

use std::time::Duration;

use tidegate_core::{
    Acquire, AcquireRequest, Capability, Class, Epoch, Exchange, HandOver, Line, Observation, Outcome,
    Release, Restore, Sequence, Settlement, Token, rule::Rule, time::Moment,
};

use super::{
    Failure, Need, ensure,
    lab::{
        DAY, Lab, Worker, adaptive, fixed, job_with, jobs, jobs_of_one, key, ms, name, policy, refused,
        releases, renewals, ruled, scoped_job, scoped_jobs,
    },
    same, trials_of_rules,
};

const LEASES: Need = Need::Has(Capability::Leases);
const ADAPTIVE: Need = Need::Has(Capability::Adaptive);
const SCOPED: Need = Need::Has(Capability::Scoped);
const CORRECTIONS: Need = Need::Has(Capability::Corrections);
const EXCHANGE: Need = Need::Has(Capability::Exchange);
const EPOCH: Need = Need::Has(Capability::Epoch);

trials_of_rules! {
    "BI-1 a refused acquire changes nothing" => bi_1_acquire;
    "BI-1 a refused acquire pins nothing" => bi_1_pins_nothing;
    "BI-1 a refused call of leases changes nothing" [LEASES] => bi_1_leases;
    "BI-1 a refused scoped acquire changes nothing" [SCOPED] => bi_1_scoped;
    "BI-1 a refused correction changes nothing" [CORRECTIONS] => bi_1_corrections;
    "BI-2 the largest numbers are refused or right" => bi_2_numbers;
    "BI-2 the largest numbers of leases are refused or right" [LEASES, ADAPTIVE] => bi_2_leases;
    "BI-2 a fence at the end of its range breaks nothing" [LEASES, EPOCH] => bi_2_fence;
    "BI-2 the largest numbers of corrections are refused or right" [CORRECTIONS] => bi_2_corrections;
    "BI-2 the largest numbers of an exchange are refused or right" [EXCHANGE] => bi_2_exchange;
    "BI-3 odd ids never address each other's state" => bi_3_ids;
    "BI-3 odd ids never address each other's leases" [LEASES] => bi_3_leases;
    "BI-3 an id and an identity are never taken for another pair" [SCOPED] => bi_3_pairs;
}

/// Asks for each of these, which must be refused, and compares all that can be seen before and after.
async fn unchanged_by(worker: &Worker, requests: Vec<(&str, &str, AcquireRequest)>) -> Result<(), Failure> {
    let before = worker.traces().await?;
    for (what, code, request) in requests {
        refused(worker.ask(&request).await, code, what)?;
        same(worker.traces().await?, before.clone(), format_args!("the id after {what}"))?;
    }
    Ok(())
}

/// Acquires that no policy with these rules takes.
fn wrong() -> Result<Vec<(&'static str, &'static str, AcquireRequest)>, Failure> {
    let (invalid, dear) = ("invalid_options", "cost_exceeds_limit");
    let classed = AcquireRequest { class: Some(name("nobody")?), ..jobs_of_one(1) };
    Ok(vec![
        ("no job", invalid, jobs(&[])),
        ("513 jobs", invalid, jobs_of_one(513)),
        ("an unknown class", invalid, classed),
        ("a cost in an unknown rule", invalid, job_with(1, &[("z", 1)])?),
        ("two costs in a rule", invalid, job_with(1, &[("a", 1), ("a", 2)])?),
        ("a cost above the limit", dear, jobs(&[1, 1, 11])),
        ("a cost above the limit of a named rule", dear, job_with(1, &[("a", 11)])?),
        ("the largest cost", dear, jobs(&[u64::MAX])),
    ])
}

async fn bi_1_acquire(lab: &Lab) -> Result<(), Failure> {
    let mut draft =
        policy().rule(Rule::fixed_window(10, ms(DAY)).named("a")).rule(Rule::token_bucket(10, ms(365 * DAY)));
    if lab.has(Capability::Leases) {
        draft = draft.bound(tidegate_core::Bound::Fixed(8));
    }
    let worker = lab.worker(&draft)?;
    same(worker.granted(3).await?, 3, "grants")?;
    unchanged_by(&worker, wrong()?).await?;
    worker.pause(DAY).await?;
    unchanged_by_in_pause(&worker).await?;
    worker.resume().await?;
    same(worker.granted(9).await?, if lab.has(Capability::Leases) { 5 } else { 7 }, "grants that are left")
}

/// As in [`unchanged_by`], but traces would end the pause.
async fn unchanged_by_in_pause(worker: &Worker) -> Result<(), Failure> {
    for (what, code, request) in wrong()? {
        refused(worker.ask(&request).await, code, what)?;
    }
    let reply = worker.acquire(1).await?;
    ensure(reply.head.paused_ms > DAY / 2, format_args!("{} ms are left of a day", reply.head.paused_ms))
}

async fn bi_1_pins_nothing(lab: &Lab) -> Result<(), Failure> {
    let draft = |limit| policy().rule(Rule::fixed_window(limit, ms(DAY)).named("a"));
    let (worker, other) = (lab.worker(&draft(10))?, lab.worker(&draft(12))?);
    for (what, code, request) in wrong()? {
        refused(worker.ask(&request).await, code, what)?;
    }
    same(other.granted(20).await?, 12, "grants of another policy, which is the first that is not refused")
}

async fn bi_1_leases(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(4).class(Class::unreserved("a")))?;
    let tokens = worker.leases(3).await?;
    let before = worker.traces().await?;
    let (store, member) = (&worker.store, &worker.member);
    let many: Vec<Token> = std::iter::repeat_n(tokens[0], 1_001).collect();
    refused(
        store.release(member, &releases(&many, Outcome::Success)).await,
        "invalid_options",
        "1,001 releases",
    )?;
    refused(store.renew(member, None, &renewals(&many)).await, "invalid_options", "1,001 renewals")?;
    let known = Restore { epoch: Epoch(1), limit: None, paused_ms: DAY };
    if lab.has(Capability::Epoch) {
        let answer = store.renew(member, Some(&known), &renewals(&many)).await;
        refused(answer, "invalid_options", "1,001 renewals after a loss")?;
    }
    let many = vec![HandOver { class: None }; 1_001];
    refused(store.hand_over(member, &many).await, "invalid_options", "1,001 hand-overs")?;
    same(worker.traces().await?, before, "the id after what was refused")?;
    same(worker.renew(&tokens).await?, vec![true; 3], "renewals of its leases")
}

async fn bi_1_scoped(lab: &Lab) -> Result<(), Failure> {
    let rules = policy()
        .rule(Rule::fixed_window(10, ms(DAY)).scoped("tenant").named("a"))
        .rule(Rule::fixed_window(10, ms(DAY)).named("b"));
    let worker = lab.worker(&rules)?;
    let good = || scoped_job(1, &[("tenant", "x")]);
    worker.ask_scoped(&scoped_jobs(None, vec![good()?])).await?;
    let before = worker.traces().await?;
    let mut unknown_rule = good()?;
    unknown_rule.costs.named.push((name("z")?, 0));
    let wrong = [
        ("no job", scoped_jobs(None, vec![])),
        ("129 jobs", scoped_jobs(None, vec![good()?; 129])),
        ("an unknown class", scoped_jobs(Some(&name("z")?), vec![good()?])),
        ("a job without its identity", scoped_jobs(None, vec![good()?, scoped_job(1, &[])?])),
        (
            "a job with an unknown scope",
            scoped_jobs(None, vec![good()?, scoped_job(1, &[("tenant", "x"), ("z", "x")])?]),
        ),
        ("a cost in an unknown rule", scoped_jobs(None, vec![good()?, unknown_rule])),
        ("a cost above the limit", scoped_jobs(None, vec![good()?, scoped_job(11, &[("tenant", "x")])?])),
    ];
    for (what, request) in wrong {
        let answer = worker.ask_scoped(&request).await;
        ensure(
            answer
                .as_ref()
                .is_err_and(|error| matches!(error.code(), "invalid_options" | "cost_exceeds_limit")),
            format_args!("{what}: expected to be refused, got {answer:?}"),
        )?;
        same(worker.traces().await?, before.clone(), format_args!("the id after {what}"))?;
    }
    let request = scoped_jobs(None, vec![good()?; 20]);
    same(worker.ask_scoped(&request).await?.body.grants.len(), 9, "grants that are left")
}

async fn bi_1_corrections(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(10, ms(DAY)).named("a")))?;
    let at = worker.ask(&jobs(&[10])).await?.head.now.unwrap_or_else(|| lab.now());
    let settlement =
        |actual| Settlement { rule: key("named:a"), identity: None, granted_at: at, cost: 10, actual };
    let before = worker.traces().await?;
    let (store, member) = (&worker.store, &worker.member);
    let wrong = [vec![settlement(0), settlement(1 << 53)], vec![settlement(0); 1_001]];
    for settlements in wrong {
        refused(
            store.settle(member, &settlements).await,
            "invalid_options",
            "a settlement that is not allowed",
        )?;
        same(worker.traces().await?, before.clone(), "the id after it")?;
    }
    same(worker.granted(1).await?, 0, "grants after it")
}

// ---- the largest numbers -------------------------------------------------------------------------------------------

async fn bi_2_numbers(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(10, ms(DAY))))?;
    let line = Line { waiting: u32::MAX, waited_ms: u64::MAX };
    let reply = worker.ask(&AcquireRequest { line, ..jobs_of_one(2) }).await?;
    same(reply.body.grants.len(), 2, "grants of a queue that is as long and as old as can be")?;
    let reply = worker.ask(&AcquireRequest { line, ..jobs_of_one(20) }).await?;
    same(reply.body.grants.len(), 8, "grants of what is left")?;
    for length in [Duration::MAX, Duration::from_secs(u64::MAX)] {
        refused(
            worker.store.pause(worker.id(), length).await,
            "invalid_options",
            "the longest pause there could be",
        )?;
    }
    refused(worker.ask(&jobs(&[u64::MAX; 512])).await, "cost_exceeds_limit", "512 jobs of the largest cost")?;
    Ok(())
}

async fn bi_2_leases(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&adaptive(1, 9)?)?.starting_at(u32::MAX);
    same(worker.granted(20).await?, 9, "grants of the largest initial limit")?;
    let token = Token { epoch: Epoch(u64::MAX), slot: u32::MAX, fence: u64::MAX };
    let release = Release { token, outcome: Outcome::Throttled, retry_after_ms: Some(u64::MAX) };
    worker.store.release(&worker.member, &[release; 3]).await?;
    same(worker.renew(&[token]).await?, vec![false], "the renewal of the largest token")?;
    let line = Line { waiting: u32::MAX, waited_ms: u64::MAX };
    let reply = worker.ask(&AcquireRequest { line, ..jobs_of_one(2) }).await?;
    same(reply.body.grants.len(), 0, "grants above the limit")?;
    let throttled = lab.worker_of("throttled", &adaptive(1, 9)?)?.starting_at(8);
    let token = throttled.lease().await?;
    let release = Release { token, outcome: Outcome::Throttled, retry_after_ms: Some(u64::MAX) };
    throttled.store.release(&throttled.member, &[release]).await?;
    same(throttled.granted(9).await?, 3, "grants beside a slot that rests for as long as it may")
}

async fn bi_2_fence(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(9))?;
    worker.leases(1).await?;
    let known = Restore { epoch: Epoch(u64::MAX), limit: None, paused_ms: 0 };
    for (slot, fence) in [(3, u64::MAX), (4, u64::MAX - 1), (u32::MAX, 5), (1_000_000, 5)] {
        // Refused, or taken up: either way the id goes on.
        let token = Token { epoch: Epoch(7), slot, fence };
        worker.take_up(&known, &[token]).await?;
        let tokens = worker.leases(1).await?;
        ensure(!tokens.is_empty(), "grants go on")?;
        worker.release(&[token]).await?;
        worker.release(&tokens).await?;
    }
    Ok(())
}

async fn bi_2_corrections(lab: &Lab) -> Result<(), Failure> {
    let worker =
        lab.worker(&ruled(Rule::token_bucket(1_000_000_000_000, ms(365 * DAY)).burst(1_000_000).named("a")))?;
    let at = worker.ask(&jobs(&[1_000_000])).await?.head.now.unwrap_or_else(|| lab.now());
    let last = Moment::from_micros(u64::MAX);
    for granted_at in [Moment::default(), at, last] {
        let settlement = Settlement {
            rule: key("named:a"),
            identity: None,
            granted_at,
            cost: 0,
            actual: 1_000_000_000_000,
        };
        let cut = worker.settle(settlement).await?;
        ensure(cut >= 1_000_000_000_000 - 20_000_000, format_args!("{cut} was cut of 10^12"))?;
    }
    for (remaining, reset_at, granted_at, mark) in [
        (u64::MAX, last, last, u64::MAX),
        (0, last, last, u64::MAX),
        (0, last, Moment::default(), 0),
        (u64::MAX, Moment::default(), last, 0),
    ] {
        let observation =
            Observation { rule: key("named:a"), identity: None, remaining, reset_at, granted_at, mark };
        worker.store.observe(&worker.member, &[observation]).await?;
    }
    let hint_ms = worker.denied(1).await?.hint_ms;
    ensure((1..1 << 53).contains(&hint_ms), format_args!("the hint is {hint_ms} ms"))
}

async fn bi_2_exchange(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(10, ms(DAY))))?;
    let last = Some(Moment::from_micros(u64::MAX));
    let exchange = Exchange {
        sequence: Some(Sequence { number: u64::MAX, not_after: last }),
        acquires: vec![Acquire::Prefix(jobs_of_one(3))],
        ..Exchange::default()
    };
    let reply = worker.exchange(&exchange).await?;
    same(worker.exchange(&exchange).await?.body, reply.body, "the answer to a repeat of the largest number")?;
    let lower = Exchange { sequence: Some(Sequence { number: u64::MAX - 1, not_after: None }), ..exchange };
    refused(worker.exchange(&lower).await, "too_late", "the number before it")?;
    same(worker.granted(20).await?, 7, "grants of what is left")
}

// ---- odd texts -----------------------------------------------------------------------------------------------------

/// Ids that a store could take for something else, or for each other.
fn odd_ids() -> Vec<String> {
    let mut odd: Vec<String> = [
        "a",
        "A",
        "a ",
        " a",
        "b",
        "a:b",
        "a:b:c",
        ":",
        "::",
        "a.b",
        "a/b",
        "a\\b",
        "a|b",
        "a,b",
        "a;b",
        "1:a",
        "2:ab",
        "*",
        "?",
        "[a]",
        "^a$",
        "'",
        "\"",
        "''",
        "'; drop table tidegate; --",
        "$1",
        "%s",
        "%",
        "_",
        "é",
        "e\u{301}",
        "🦀",
        "\u{202e}a",
        "\u{feff}a",
        "null",
        "true",
        "0",
        "00",
        "-1",
        "1e3",
        "9007199254740993",
        "9007199254740992",
        "..",
        "../a",
        "trial",
        "tidegate",
        "a\u{2028}b",
        "\u{a0}",
    ]
    .map(str::to_owned)
    .to_vec();
    odd.push("x".repeat(200));
    odd.push("x".repeat(199));
    odd.push(format!("{}y", "x".repeat(199)));
    odd.push("é".repeat(100));
    odd.push("🦀".repeat(50));
    odd
}

async fn bi_3_ids(lab: &Lab) -> Result<(), Failure> {
    let draft = ruled(Rule::fixed_window(2, ms(DAY)));
    let workers: Vec<Worker> =
        odd_ids().iter().map(|id| lab.worker_of(id, &draft)).collect::<Result<_, _>>()?;
    for expected in [1, 1, 0] {
        for worker in &workers {
            same(worker.granted(1).await?, expected, format_args!("grants of {:?}", worker.id()))?;
        }
    }
    for (index, worker) in workers.iter().enumerate() {
        if index % 2 == 0 {
            worker.pause(DAY).await?;
        }
    }
    for (index, worker) in workers.iter().enumerate() {
        let paused = worker.acquire(1).await?.head.paused_ms > 0;
        same(paused, index % 2 == 0, format_args!("whether {:?} is paused", worker.id()))?;
    }
    Ok(())
}

async fn bi_3_leases(lab: &Lab) -> Result<(), Failure> {
    let draft = fixed(2);
    let mut held = Vec::new();
    for id in odd_ids() {
        let worker = lab.worker_of(&id, &draft)?;
        held.push((worker.leases(2).await?, worker));
    }
    for (index, (tokens, worker)) in held.iter().enumerate() {
        if index % 2 == 0 {
            worker.release(&tokens[..1]).await?;
        }
    }
    for (index, (tokens, worker)) in held.iter().enumerate() {
        let lives = index % 2 != 0;
        same(worker.renew(tokens).await?, vec![lives, true], format_args!("who lives of {:?}", worker.id()))?;
    }
    Ok(())
}

async fn bi_3_pairs(lab: &Lab) -> Result<(), Failure> {
    let draft = policy()
        .rule(Rule::fixed_window(1, ms(DAY)).scoped("t").named("r"))
        .rule(Rule::fixed_window(1, ms(DAY)).scoped("t.u").named("r.s"));
    // Parts that join to the same text, wherever they are cut.
    let parts = ["a", "b", "a:b", "b:a", "a:", ":b", "1:a", "a:1", "a:r", "r:a", "t:a", "a:t"];
    let mut pairs = Vec::new();
    for id in parts {
        let worker = lab.worker_of(id, &draft)?;
        for one in parts {
            for other in parts {
                pairs.push((worker.clone(), one, other));
            }
        }
    }
    for (worker, one, other) in &pairs {
        // The first rule admits each identity once; with another of the second that is spent, nothing more.
        let fits = scoped_jobs(None, vec![scoped_job(1, &[("t", *one), ("t.u", *other)])?]);
        let granted = worker.ask_scoped(&fits).await?.body.grants.len();
        same(
            granted,
            usize::from(one == other),
            format_args!("grants of {:?}, {one:?} and {other:?}", worker.id()),
        )?;
    }
    Ok(())
}
