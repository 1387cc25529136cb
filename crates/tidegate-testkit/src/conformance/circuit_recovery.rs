//! How an open circuit recovers: the leader and its checks, trial calls, and idle probes.
//!
//! Spec: CB-3, CB-4, CB-10.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tidegate_core::{
    Capability, CircuitAct, Wake,
    circuit::{Backoff, CheckKind, Election, Judged, Position, Reported, Run, Strategy, Trial, Verdict, Why},
};

use super::{
    Failure, Need,
    circuit::processes,
    circuit_lab::{CIRCUIT, CLOCK, Process, constant, half_open, idle, in_a_row, strategy, waiting},
    ensure,
    lab::{DAY, Lab, ms},
    same, trials_of_rules,
};
use crate::task::{Task, lock};

const WAKE: Need = Need::Has(Capability::Wake);

trials_of_rules! {
    "CB-3 one process leads until its lease ends" [CIRCUIT, CLOCK] => cb_3_one_leads;
    "CB-3 a leader is renewed as long as it lives, and never backwards" [CIRCUIT, CLOCK] => cb_3_renewed;
    "CB-3 leadership that is given away is free at once" [CIRCUIT] => cb_3_resigns;
    "CB-3 of many that stand at once one leads" [CIRCUIT] => cb_3_at_once;
    "CB-3 the first success closes for all" [CIRCUIT] => cb_3_success;
    "CB-3 a failure leads to the next attempt after the next wait" [CIRCUIT, CLOCK] => cb_3_failure;
    "CB-3 attempts count from 1 at each opening" [CIRCUIT, CLOCK] => cb_3_from_1;
    "CB-3 a new leader goes on with number and moment" [CIRCUIT, CLOCK] => cb_3_goes_on;
    "CB-3 a verdict without the newest fence, generation and attempt changes nothing" [CIRCUIT] => cb_3_stale;
    "CB-3 a verdict that is told twice counts once" [CIRCUIT] => cb_3_twice;
    "CB-3 a wait of one's own is said once for each attempt" [CIRCUIT, CLOCK] => cb_3_schedule;
    "CB-3 the next attempt and a free seat are pushed" [CIRCUIT, WAKE] => cb_3_pushed;
    "CB-4 trial calls come after the backoff" [CIRCUIT, CLOCK] => cb_4_backoff;
    "CB-4 permits are counted over the whole fleet, and all must succeed" [CIRCUIT] => cb_4_all;
    "CB-4 of many that try at once as many may as there are permits" [CIRCUIT] => cb_4_at_once;
    "CB-4 the first failure ends all trials until after the next backoff" [CIRCUIT, CLOCK] => cb_4_failure;
    "CB-4 a permit that is given back is free at once" [CIRCUIT] => cb_4_given_back;
    "CB-4 the permit of a process that died is free after its TTL" [CIRCUIT, CLOCK] => cb_4_lapses;
    "CB-4 the permit of a long trial is kept by renewing" [CIRCUIT, CLOCK] => cb_4_renewed;
    "CB-4 the same question gets the same permit as long as that is out" [CIRCUIT] => cb_4_asked_again;
    "CB-4 a question that lapsed gets another permit" [CIRCUIT, CLOCK] => cb_4_asked_after;
    "CB-4 no trial is offered where none is to be made" [CIRCUIT] => cb_4_not_offered;
    "CB-4 trial calls wait for a wait of one's own" [CIRCUIT] => cb_4_unscheduled;
    "CB-10 an idle probe comes one interval after the last call, probe or change" [CIRCUIT, CLOCK] => cb_10_moment;
    "CB-10 a failing idle probe opens whatever the strategy" [CIRCUIT] => cb_10_opens;
    "CB-10 a probe that a call has put off is stale" [CIRCUIT, CLOCK] => cb_10_put_off;
    "CB-10 without an interval there is no idle probe" [CIRCUIT] => cb_10_none;
}

// ---- leading -------------------------------------------------------------------------------------------------------

async fn cb_3_one_leads(lab: &Lab) -> Result<(), Failure> {
    let a = lab.process_of(&in_a_row(2).leader_ttl(ms(2_000)))?;
    let (b, c) = (lab.beside(&a), lab.beside(&a));
    let first = a.leads().await?;
    same(first.until_ms, lab.now().millis() + 2_000, "until when it leads")?;
    same(b.follows().await?, 2_000, "how long another one follows")?;
    same(c.view().await?.leader, Some(first), "who leads, as a third one sees it")?;
    lab.advance(1_999).await;
    same(b.follows().await?, 1, "how long it follows just before the end")?;
    same(c.renews(first.fence).await?, None, "a renewal by another process")?;
    lab.advance(1).await;
    same(a.view().await?.leader, None, "who leads at the end of the lease")?;
    same(a.renews(first.fence).await?, None, "a renewal at the end of the lease")?;
    let second = b.leads().await?;
    ensure(second.fence > first.fence, format_args!("{} comes after {}", second.fence, first.fence))?;
    same(a.follows().await?, 2_000, "how long the first one follows")?;
    lab.advance(2_000).await;
    let third = b.leads().await?;
    ensure(third.fence > second.fence, "one that has lapsed gets another fence, as any other does")
}

async fn cb_3_renewed(lab: &Lab) -> Result<(), Failure> {
    let a = lab.process_of(&in_a_row(2).leader_ttl(ms(2_000)))?;
    let b = lab.beside(&a);
    let leader = a.leads().await?;
    let start = lab.now().millis();
    for _ in 0..3 {
        lab.advance(1_500).await;
        same(a.renews(leader.fence).await?, Some(lab.now().millis() + 2_000), "until when it leads now")?;
    }
    lab.advance(1_000).await;
    let again = a.leads().await?;
    same((again.fence, again.until_ms), (leader.fence, start + 7_500), "a leader that stands again")?;
    // A shorter TTL, of a newer policy, never ends what was promised.
    let shorter = a.with(&in_a_row(2).leader_ttl(ms(100)).revision(1))?;
    same(shorter.renews(leader.fence).await?, Some(start + 7_500), "a renewal with a shorter TTL")?;
    same(b.renews(leader.fence).await?, None, "a renewal by another process under this fence")?;
    same(a.renews(leader.fence + 1).await?, None, "a renewal under another fence")?;
    lab.advance(1_999).await;
    same(b.follows().await?, 1, "how long another one follows")
}

async fn cb_3_resigns(lab: &Lab) -> Result<(), Failure> {
    let a = lab.process_of(&in_a_row(2))?;
    let b = lab.beside(&a);
    let first = a.leads().await?;
    same(b.resigns(first.fence).await?, false, "whether another one held what it gives away")?;
    same(a.resigns(first.fence + 1).await?, false, "whether it was held under another fence")?;
    same(a.resigns(first.fence).await?, true, "whether it was held")?;
    same(a.resigns(first.fence).await?, false, "whether it was held the second time")?;
    same(b.view().await?.leader, None, "who leads")?;
    let second = b.leads().await?;
    ensure(second.fence > first.fence, format_args!("{} comes after {}", second.fence, first.fence))
}

async fn cb_3_at_once(lab: &Lab) -> Result<(), Failure> {
    let process = lab.process_of(&in_a_row(2))?;
    process.view().await?;
    let leaders = Arc::new(Mutex::new(Vec::new()));
    let tasks = processes(lab, &process).into_iter().map(|process| -> Task<'static, Result<(), Failure>> {
        let leaders = Arc::clone(&leaders);
        Box::pin(async move {
            for _ in 0..20 {
                if let Election::Leads(leader) = process.elects().await? {
                    lock(&leaders).push((leader.driver, leader.fence));
                }
            }
            Ok(())
        })
    });
    lab.at_once(tasks.collect()).await?;
    let mut leaders = std::mem::take(&mut *lock(&leaders));
    same(leaders.len(), 20, "elections that were won, all of them by the first")?;
    leaders.dedup();
    same(leaders.len(), 1, "leaders")
}

async fn cb_3_success(lab: &Lab) -> Result<(), Failure> {
    let a = lab.process_of(&in_a_row(2))?;
    let b = lab.beside(&a);
    let change = a.opens(2).await?;
    let leader = b.leads().await?;
    match b.checked(leader.fence, Verdict::Success).await? {
        Judged::Changed(closed) => {
            same((closed.to, closed.why), (Position::Closed, Why::Check), "the change by a success")?;
            same(closed.generation, change.generation + 1, "the generation after it")?;
        }
        judged => return Err(Failure(format!("a success closes the circuit, and came to {judged:?}"))),
    }
    for process in [&a, &b] {
        let view = process.view().await?;
        same((view.position, view.attempt, view.next_ms), (Position::Closed, None, None), "how it stands")?;
    }
    same(b.view().await?.leader.map(|leader| leader.fence), Some(leader.fence), "who leads after it")
}

fn growing() -> Backoff {
    Backoff::Exponential {
        initial: Duration::from_millis(100),
        multiplier: 2.0,
        max: Some(Duration::from_millis(300)),
    }
}

async fn cb_3_failure(lab: &Lab) -> Result<(), Failure> {
    let process = lab.process_of(&waiting(growing()))?;
    process.opens(2).await?;
    let leader = process.leads().await?;
    same(process.next_in().await?, Some(100), "the wait before attempt 1")?;
    let mut attempt = 1;
    for wait_ms in [100, 200, 300, 300] {
        lab.advance(wait_ms - 1).await;
        same(process.next_in().await?, Some(1), format_args!("what is left until attempt {attempt}"))?;
        lab.advance(8).await;
        let judged = process.checked(leader.fence, Verdict::Failure).await?;
        same(judged, Judged::Counted, format_args!("a failure of attempt {attempt}"))?;
        attempt += 1;
        let view = process.view().await?;
        same((view.position, view.attempt), (Position::Open, Some(attempt)), "the next attempt")?;
        let next = [100, 200, 300, 300, 300][usize::try_from(attempt - 1).unwrap_or(4)];
        same(process.next_in().await?, Some(next), format_args!("the wait before attempt {attempt}"))?;
    }
    Ok(())
}

async fn cb_3_from_1(lab: &Lab) -> Result<(), Failure> {
    let process = lab.process_of(&waiting(growing()))?;
    process.opens(2).await?;
    let leader = process.leads().await?;
    process.checked(leader.fence, Verdict::Failure).await?;
    process.checked(leader.fence, Verdict::Failure).await?;
    same(process.view().await?.attempt, Some(3), "the attempt after two failures")?;
    process.checked(leader.fence, Verdict::Success).await?;
    process.opens(2).await?;
    same(process.view().await?.attempt, Some(1), "the attempt of the next opening")?;
    same(process.next_in().await?, Some(100), "the wait before it")
}

async fn cb_3_goes_on(lab: &Lab) -> Result<(), Failure> {
    let a = lab.process_of(&waiting(growing()).leader_ttl(ms(150)))?;
    let b = lab.beside(&a);
    a.opens(2).await?;
    let first = a.leads().await?;
    lab.advance(100).await;
    a.checked(first.fence, Verdict::Failure).await?;
    lab.advance(60).await;
    let second = b.leads().await?;
    same(b.view().await?.attempt, Some(2), "the attempt that a new leader finds")?;
    same(b.next_in().await?, Some(140), "what is left of its wait")?;
    let judged = b.checked(second.fence, Verdict::Failure).await?;
    same(judged, Judged::Counted, "a failure by the new leader")?;
    same(b.next_in().await?, Some(300), "the wait before attempt 3")
}

async fn cb_3_stale(lab: &Lab) -> Result<(), Failure> {
    let a = lab.process_of(&in_a_row(2))?;
    let b = lab.beside(&a);
    let old = b.leads().await?;
    b.resigns(old.fence).await?;
    let leader = a.leads().await?;
    let change = a.opens(2).await?;
    a.checked(leader.fence, Verdict::Failure).await?;
    let before = a.view().await?;
    let (fence, generation) = (leader.fence, change.generation);
    let recovery = |attempt| CheckKind::Recovery { attempt };
    let stale = [
        ("of one that does not lead", &b, fence, generation, recovery(2)),
        ("of one that led before", &b, old.fence, generation, recovery(2)),
        ("under an older fence", &a, old.fence, generation, recovery(2)),
        ("under a fence that never was", &a, fence + 1, generation, recovery(2)),
        ("of an older generation", &a, fence, generation - 1, recovery(2)),
        ("of a later generation", &a, fence, generation + 1, recovery(2)),
        ("of an older attempt", &a, fence, generation, recovery(1)),
        ("of a later attempt", &a, fence, generation, recovery(3)),
        ("of an idle probe", &a, fence, generation, CheckKind::Idle { at_ms: before.next_ms.unwrap_or(0) }),
    ];
    for (what, process, fence, generation, kind) in stale {
        for verdict in [Verdict::Failure, Verdict::Success] {
            let judged = process.checks(fence, generation, kind, verdict).await?;
            same(judged, Judged::Stale, format_args!("a verdict {what}"))?;
            same(process.view().await?, before, format_args!("how it stands after a verdict {what}"))?;
        }
    }
    let judged = a.checks(fence, generation, recovery(2), Verdict::Success).await?;
    ensure(matches!(judged, Judged::Changed(_)), "the verdict of the check that is next counts")
}

async fn cb_3_twice(lab: &Lab) -> Result<(), Failure> {
    let process = lab.process_of(&in_a_row(2))?;
    let generation = process.opens(2).await?.generation;
    let fence = process.leads().await?.fence;
    let told = |attempt, verdict| process.checks(fence, generation, CheckKind::Recovery { attempt }, verdict);
    same(told(1, Verdict::Failure).await?, Judged::Counted, "a failure")?;
    same(told(1, Verdict::Failure).await?, Judged::Stale, "the same again")?;
    same(process.view().await?.attempt, Some(2), "the attempt after it")?;
    ensure(matches!(told(2, Verdict::Success).await?, Judged::Changed(_)), "a success closes")?;
    same(told(2, Verdict::Success).await?, Judged::Stale, "the same again")?;
    same(process.view().await?.generation, generation + 1, "the generation after it")
}

async fn cb_3_schedule(lab: &Lab) -> Result<(), Failure> {
    let process = lab.process_of(&waiting(Backoff::Custom))?;
    let closed = process.view().await?.generation;
    same(process.schedules(closed, 1, 500).await?, None, "a wait where it is closed")?;
    let generation = process.opens(2).await?.generation;
    same(process.view().await?.next_ms, None, "the moment of an attempt that nobody has scheduled")?;
    for (what, generation, attempt) in [
        ("of an older generation", closed, 1),
        ("of a later one", generation + 1, 1),
        ("of a later attempt", generation, 2),
        ("of no attempt", generation, 0),
    ] {
        same(process.schedules(generation, attempt, 500).await?, None, format_args!("a wait {what}"))?;
    }
    let at_ms = lab.now().millis() + 500;
    same(process.schedules(generation, 1, 500).await?, Some(at_ms), "the moment by the first to say it")?;
    lab.advance(100).await;
    same(process.schedules(generation, 1, 7).await?, Some(at_ms), "the moment by the second")?;
    same(process.view().await?.next_ms, Some(at_ms), "the moment, as it is shown")?;
    let leader = process.leads().await?;
    process.checked(leader.fence, Verdict::Failure).await?;
    let view = process.view().await?;
    same((view.attempt, view.next_ms), (Some(2), None), "the next attempt, which nobody has scheduled")?;
    same(process.schedules(generation, 1, 500).await?, None, "a wait of the attempt before")?;
    same(process.schedules(generation, 2, 0).await?, Some(lab.now().millis()), "no wait at all")
}

async fn cb_3_pushed(lab: &Lab) -> Result<(), Failure> {
    let a = lab.process_of(&waiting(constant(DAY)))?;
    let b = lab.beside(&a);
    let ear = lab.hears(&b).await?;
    a.opens(2).await?;
    ear.circuit("the opening", |view| view.is_open()).await?;
    ear.forget();
    let leader = a.leads().await?;
    a.renews(leader.fence).await?;
    a.checked(leader.fence, Verdict::Failure).await?;
    let view = ear.circuit("the next attempt", |view| view.attempt == Some(2)).await?;
    same(view.leader.map(|leader| leader.fence), Some(leader.fence), "who leads, as it is pushed")?;
    // That somebody leads is no news to those who do not.
    let told = ear.take().iter().filter(|wake| matches!(wake, Wake::Circuit(_))).count();
    same(told, 1, "pushes since the opening")?;
    a.resigns(leader.fence).await?;
    ear.circuit("a free seat", |view| view.leader.is_none()).await?;
    Ok(())
}

// ---- trying --------------------------------------------------------------------------------------------------------

/// Fails unless none is free now; gives how long that is so.
async fn full(process: &Process, ask: u64, what: &str) -> Result<u64, Failure> {
    match process.tries(ask).await? {
        Trial::Full { retry_ms } => Ok(retry_ms),
        trial => Err(Failure(format!("{what}: all permits are taken, and it came to {trial:?}"))),
    }
}

async fn cb_4_backoff(lab: &Lab) -> Result<(), Failure> {
    let a = lab.process_of(&half_open(1, 1_000, constant(100)))?;
    let b = lab.beside(&a);
    a.opens(2).await?;
    same(a.tries(1).await?, Trial::TooEarly { retry_ms: 100 }, "a trial at once")?;
    lab.advance(99).await;
    same(b.tries(1).await?, Trial::TooEarly { retry_ms: 1 }, "a trial a millisecond too early")?;
    lab.advance(1).await;
    let permit = b.permit(2).await?;
    same(permit.until_ms, lab.now().millis() + 1_000, "until when the permit lives")?;
    same((permit.driver, permit.ask), (b.member.driver, 2), "whose it is")?;
    same(permit.generation, a.view().await?.generation, "its generation")
}

async fn cb_4_all(lab: &Lab) -> Result<(), Failure> {
    let a = lab.process_of(&half_open(2, DAY, constant(0)))?;
    let b = lab.beside(&a);
    let generation = a.opens(2).await?.generation;
    let (first, second) = (a.permit(1).await?, b.permit(1).await?);
    ensure(first.fence != second.fence, "two permits have two fences")?;
    full(&b, 2, "a third trial").await?;
    same(b.tried(first.fence, Verdict::Success).await?, Judged::Stale, "a result by another process")?;
    same(a.tried(first.fence, Verdict::Success).await?, Judged::Counted, "the first success of two")?;
    same(a.tried(first.fence, Verdict::Success).await?, Judged::Stale, "the same again")?;
    full(&a, 2, "a trial where one has succeeded and one is out").await?;
    match b.tried(second.fence, Verdict::Success).await? {
        Judged::Changed(change) => {
            same((change.to, change.why), (Position::Closed, Why::Trials), "the change by the last success")?;
            same(change.generation, generation + 1, "the generation after it")
        }
        judged => Err(Failure(format!("the last success closes the circuit, and came to {judged:?}"))),
    }
}

async fn cb_4_at_once(lab: &Lab) -> Result<(), Failure> {
    let process = lab.process_of(&half_open(5, DAY, constant(0)))?;
    process.opens(2).await?;
    let granted = Arc::new(AtomicUsize::new(0));
    let tasks = processes(lab, &process).into_iter().map(|process| -> Task<'static, Result<(), Failure>> {
        let granted = Arc::clone(&granted);
        Box::pin(async move {
            for ask in 1..=20 {
                if let Trial::Granted(_) = process.tries(ask).await? {
                    granted.fetch_add(1, Ordering::SeqCst);
                }
            }
            Ok(())
        })
    });
    lab.at_once(tasks.collect()).await?;
    same(granted.load(Ordering::SeqCst), 5, "trials of 160 at once")
}

async fn cb_4_failure(lab: &Lab) -> Result<(), Failure> {
    let a = lab.process_of(&half_open(3, 60_000, growing()))?;
    let b = lab.beside(&a);
    let generation = a.opens(2).await?.generation;
    lab.advance(100).await;
    let (first, second, third) = (a.permit(1).await?, b.permit(1).await?, b.permit(2).await?);
    same(a.tried(first.fence, Verdict::Success).await?, Judged::Counted, "a success")?;
    same(b.tried(second.fence, Verdict::Failure).await?, Judged::Counted, "a failure")?;
    let view = a.view().await?;
    same((view.position, view.generation), (Position::Open, generation), "it is the same opening")?;
    same(view.attempt, Some(2), "the next attempt")?;
    same(b.tried(third.fence, Verdict::Success).await?, Judged::Stale, "a success of before the failure")?;
    same(b.keeps(third.fence).await?, None, "a permit of before the failure")?;
    same(b.tries(3).await?, Trial::TooEarly { retry_ms: 200 }, "a trial before the next backoff is over")?;
    lab.advance(200).await;
    for ask in 4..7 {
        let permit = b.permit(ask).await?;
        let judged = b.tried(permit.fence, Verdict::Success).await?;
        ensure(
            matches!(judged, Judged::Changed(_)) == (ask == 6),
            format_args!("the third success of this attempt closes, and {} came to {judged:?}", ask - 3),
        )?;
    }
    Ok(())
}

async fn cb_4_given_back(lab: &Lab) -> Result<(), Failure> {
    let a = lab.process_of(&half_open(1, DAY, constant(0)))?;
    let b = lab.beside(&a);
    a.opens(2).await?;
    let permit = a.permit(1).await?;
    let retry_ms = full(&b, 1, "a second trial").await?;
    ensure((1..=DAY).contains(&retry_ms), format_args!("{retry_ms} ms, of a TTL of a day"))?;
    same(b.gives_back(permit.fence).await?, false, "whether another one held what it gives back")?;
    same(a.gives_back(permit.fence).await?, true, "whether it was held")?;
    same(a.gives_back(permit.fence).await?, false, "whether it was held the second time")?;
    let next = b.permit(2).await?;
    ensure(next.fence > permit.fence, format_args!("{} comes after {}", next.fence, permit.fence))?;
    same(a.tried(permit.fence, Verdict::Success).await?, Judged::Stale, "a result of what was given back")
}

async fn cb_4_lapses(lab: &Lab) -> Result<(), Failure> {
    let a = lab.process_of(&half_open(1, 1_000, constant(0)))?;
    let b = lab.beside(&a);
    a.opens(2).await?;
    let permit = a.permit(1).await?;
    same(full(&b, 1, "a second trial").await?, 1_000, "how long it has to wait")?;
    lab.advance(999).await;
    same(full(&b, 2, "just before the end of the TTL").await?, 1, "how long it has to wait")?;
    lab.advance(1).await;
    b.permit(3).await?;
    same(a.tried(permit.fence, Verdict::Success).await?, Judged::Stale, "a result after the TTL")
}

async fn cb_4_renewed(lab: &Lab) -> Result<(), Failure> {
    let a = lab.process_of(&half_open(1, 1_000, constant(0)))?;
    let b = lab.beside(&a);
    a.opens(2).await?;
    let permit = a.permit(1).await?;
    for _ in 0..3 {
        lab.advance(900).await;
        let until_ms = lab.now().millis() + 1_000;
        same(b.keeps(permit.fence).await?, None, "a renewal by another process")?;
        same(a.keeps(permit.fence).await?, Some(until_ms), "until when the permit lives now")?;
    }
    lab.advance(999).await;
    same(full(&b, 1, "while it is kept").await?, 1, "how long another one has to wait")?;
    lab.advance(1).await;
    same(a.keeps(permit.fence).await?, None, "a renewal at the end of the TTL")
}

async fn cb_4_asked_again(lab: &Lab) -> Result<(), Failure> {
    let a = lab.process_of(&half_open(2, DAY, constant(0)))?;
    let b = lab.beside(&a);
    a.opens(2).await?;
    let permit = a.permit(7).await?;
    same(a.permit(7).await?, permit, "the permit of the same question")?;
    let other = b.permit(7).await?;
    ensure(other.fence != permit.fence, "the same number of another process is another question")?;
    same(a.permit(7).await?, permit, "the permit of the same question where all are taken")?;
    full(&a, 8, "another question").await?;
    a.gives_back(permit.fence).await?;
    let next = a.permit(7).await?;
    ensure(next.fence > other.fence, "a permit that was given back is not given again")
}

async fn cb_4_asked_after(lab: &Lab) -> Result<(), Failure> {
    let process = lab.process_of(&half_open(1, 1_000, constant(0)))?;
    process.opens(2).await?;
    let permit = process.permit(7).await?;
    lab.advance(999).await;
    same(process.permit(7).await?, permit, "the permit of the same question just before the end of its TTL")?;
    lab.advance(1).await;
    let next = process.permit(7).await?;
    ensure(next.fence > permit.fence, "a permit that has lapsed is not given again")
}

async fn cb_4_not_offered(lab: &Lab) -> Result<(), Failure> {
    let closed = lab.process_at("closed", &half_open(1, DAY, constant(0)))?;
    same(closed.tries(1).await?, Trial::NotOffered, "a trial where it is closed")?;
    let checks = lab.process_at("checks", &in_a_row(2))?;
    checks.opens(2).await?;
    same(checks.tries(1).await?, Trial::NotOffered, "a trial where the recovery is a health check")?;
    let generation = closed.opens(2).await?.generation;
    let leader = closed.leads().await?;
    let kind = CheckKind::Recovery { attempt: 1 };
    let judged = closed.checks(leader.fence, generation, kind, Verdict::Success).await?;
    same(judged, Judged::Stale, "a check where the recovery is half-open")
}

async fn cb_4_unscheduled(lab: &Lab) -> Result<(), Failure> {
    let process = lab.process_of(&half_open(1, DAY, Backoff::Custom))?;
    let generation = process.opens(2).await?.generation;
    same(process.tries(1).await?, Trial::Unscheduled { attempt: 1 }, "a trial that nobody has scheduled")?;
    process.schedules(generation, 1, DAY).await?;
    ensure(matches!(process.tries(1).await?, Trial::TooEarly { .. }), "a day's wait is not over")?;
    let other = lab.process_at("at once", &half_open(1, DAY, Backoff::Custom))?;
    let generation = other.opens(2).await?.generation;
    other.schedules(generation, 1, 0).await?;
    let permit = other.permit(1).await?;
    other.tried(permit.fence, Verdict::Failure).await?;
    same(other.tries(2).await?, Trial::Unscheduled { attempt: 2 }, "the next attempt")
}

// ---- idle ----------------------------------------------------------------------------------------------------------

async fn cb_10_moment(lab: &Lab) -> Result<(), Failure> {
    let process = lab.process_of(&idle(1_000))?;
    same(process.next_in().await?, Some(1_000), "the first probe after the start")?;
    lab.advance(400).await;
    process.reports(&[]).await?;
    same(process.next_in().await?, Some(600), "after a report without a call")?;
    process.reports(&[Run::successes(1)]).await?;
    same(process.next_in().await?, Some(1_000), "after a call")?;
    lab.advance(300).await;
    // A call is a call, whatever its results are good for.
    process.reports_of(0, &[Run::successes(1)]).await?;
    same(process.next_in().await?, Some(1_000), "after a call of another generation")?;
    lab.advance(1_005).await;
    let leader = process.leads().await?;
    same(process.checked(leader.fence, Verdict::Success).await?, Judged::Counted, "a probe that worked")?;
    same(process.next_in().await?, Some(1_000), "after a probe")?;
    lab.advance(10).await;
    process.checked(leader.fence, Verdict::Failure).await?;
    same(process.next_in().await?, Some(100), "the first attempt, where it failed")?;
    lab.advance(100).await;
    process.checked(leader.fence, Verdict::Success).await?;
    same(process.next_in().await?, Some(1_000), "after a closing")
}

async fn cb_10_opens(lab: &Lab) -> Result<(), Failure> {
    let a = lab.process_of(&idle(DAY))?;
    let b = lab.beside(&a);
    a.reports(&[Run::successes(500)]).await?;
    b.reports(&[Run::successes(500)]).await?;
    let leader = a.leads().await?;
    let before = b.view().await?;
    let kind = CheckKind::Idle { at_ms: before.next_ms.unwrap_or(0) };
    let by_b = b.checks(leader.fence, before.generation, kind, Verdict::Failure).await?;
    same(by_b, Judged::Stale, "a probe by one that does not lead")?;
    match a.checked(leader.fence, Verdict::Failure).await? {
        Judged::Changed(change) => {
            same((change.to, change.why), (Position::Open, Why::Check), "the change by a failing probe")?;
            same(change.generation, before.generation + 1, "its generation")
        }
        judged => Err(Failure(format!("a failing probe opens the circuit, and came to {judged:?}"))),
    }
}

async fn cb_10_put_off(lab: &Lab) -> Result<(), Failure> {
    let a = lab.process_of(&idle(1_000))?;
    let b = lab.beside(&a);
    let leader = a.leads().await?;
    lab.advance(1_000).await;
    let begun = a.view().await?;
    let kind = CheckKind::Idle { at_ms: begun.next_ms.unwrap_or(0) };
    lab.advance(1).await;
    same(b.reports(&[Run::successes(1)]).await?, Reported::Counted, "a call, while it is probed")?;
    for verdict in [Verdict::Failure, Verdict::Success] {
        let judged = a.checks(leader.fence, begun.generation, kind, verdict).await?;
        same(judged, Judged::Stale, "a probe that was put off")?;
    }
    same(a.next_in().await?, Some(1_000), "the next probe")?;
    lab.advance(1_000).await;
    let judged = a.checked(leader.fence, Verdict::Failure).await?;
    ensure(matches!(judged, Judged::Changed(_)), "a probe that nothing put off counts")
}

async fn cb_10_none(lab: &Lab) -> Result<(), Failure> {
    let drafts = [in_a_row(2), half_open(1, DAY, constant(0)), strategy(Strategy::Custom { keep: 1 })];
    for (index, draft) in drafts.iter().enumerate() {
        let process = lab.process_at(&format!("never {index}"), draft)?;
        let view = process.view().await?;
        same(view.next_ms, None, "the moment of an idle probe")?;
        let leader = process.leads().await?;
        for at_ms in [0, view.since_ms] {
            let kind = CheckKind::Idle { at_ms };
            let judged = process.checks(leader.fence, view.generation, kind, Verdict::Failure).await?;
            same(judged, Judged::Stale, "an idle probe")?;
        }
        same(process.does(CircuitAct::Recent).await.is_ok(), true, "whether it goes on")?;
    }
    Ok(())
}
