//! What a circuit keeps to as any other id does: its policy, its clock, its life, its operators, and what it refuses.
//!
//! Spec: BI-1, BI-3, ST-2, ST-5, ST-18, ST-20, ST-21, CB-12.

use tidegate_core::{
    Capability, CircuitAct, Id, StoreError, Wake,
    circuit::{Batch, CheckKind, Judged, MOST_RUNS, Position, Reported, Run, Strategy, Verdict, Why},
    rule::Rule,
    time::EXACT,
};

use super::{
    Failure, Need,
    circuit_lab::{CIRCUIT, CLOCK, Process, constant, half_open, in_a_row, now_of, share, strategy, waiting},
    ensure,
    lab::{DAY, Lab, ms, refused, ruled},
    same, trials_of_rules,
};
use crate::subject::Hook;

const OPERATORS: Need = Need::Has(Capability::Operators);
const WAKE: Need = Need::Has(Capability::Wake);
const WIPE: Need = Need::Hook(Hook::Wipe);
const LAYOUT: Need = Need::Hook(Hook::Layout);

trials_of_rules! {
    "BI-1 a refused request of a circuit changes nothing" [CIRCUIT] => bi_1_nothing;
    "BI-1 a refused request of a circuit pins nothing" [CIRCUIT] => bi_1_pins_nothing;
    "BI-2 the largest numbers of a circuit are taken" [CIRCUIT] => bi_2_largest;
    "BI-3 odd ids never address each other's circuits" [CIRCUIT] => bi_3_ids;
    "ST-2 a circuit's moments move back with its clock" [CIRCUIT, CLOCK] => st_2_moves_back;
    "ST-2 a circuit's clock that is a second behind stands still" [CIRCUIT, CLOCK] => st_2_stands_still;
    "ST-5 another policy of a circuit is refused by its field" [CIRCUIT] => st_5_differs;
    "ST-5 the policy of a circuit is pinned apart from what gates the calls" [CIRCUIT] => st_5_apart;
    "ST-5 a higher revision of a circuit's policy carries its state over" [CIRCUIT] => st_5_carries;
    "ST-5 a lower revision of a circuit's policy adopts or is refused" [CIRCUIT] => st_5_lower;
    "ST-5 a circuit without use is forgotten after 30 days" [CIRCUIT, CLOCK] => st_5_forgotten;
    "ST-13 a circuit is pushed to the listeners of its id alone" [CIRCUIT, WAKE] => st_13_one_id;
    "ST-18 a circuit that was lost is closed under a higher generation" [CIRCUIT, WIPE, CLOCK] => st_18_lost;
    "ST-19 a circuit that is declared is taken" [CIRCUIT] => st_19_taken;
    "ST-20 a snapshot shows the circuit" [CIRCUIT, OPERATORS] => st_20_snapshot;
    "ST-20 a circuit is opened and closed by hand" [CIRCUIT, OPERATORS] => st_20_by_hand;
    "ST-20 a circuit that is opened by hand is pushed" [CIRCUIT, OPERATORS, WAKE] => st_20_pushed;
    "ST-20 a circuit is not forgotten while leases of it live" [CIRCUIT, OPERATORS, CLOCK] => st_20_forget;
    "ST-21 a circuit of a newer layout is refused" [CIRCUIT, LAYOUT] => st_21_newer;
}

fn report(number: u64, generation: u64, runs: Vec<Run>) -> Result<CircuitAct, Failure> {
    Ok(CircuitAct::Report { number, generation, batch: Batch::new(runs)? })
}

/// Requests that no store takes, each with a good act first.
fn wrong(generation: u64) -> Result<Vec<(String, Vec<CircuitAct>)>, Failure> {
    let good = || report(1_000, generation, vec![Run::failures(1)]);
    let half = vec![Run::failures(1); MOST_RUNS / 2];
    let mut all = vec![
        ("65 acts".to_owned(), std::iter::once(good()?).chain(vec![CircuitAct::Elect; 64]).collect()),
        (
            "1,001 runs".to_owned(),
            vec![good()?, report(1_001, generation, half.clone())?, report(1_002, generation, half)?],
        ),
    ];
    let recovery = CheckKind::Recovery { attempt: 1 };
    let verdict = Verdict::Failure;
    for number in [EXACT, u64::MAX] {
        let acts = [
            report(number, generation, vec![])?,
            report(2_000, number, vec![])?,
            CircuitAct::Open { generation: number },
            CircuitAct::Renew { fence: number },
            CircuitAct::Resign { fence: number },
            CircuitAct::Verdict { fence: number, generation, kind: recovery, verdict },
            CircuitAct::Verdict { fence: 1, generation: number, kind: recovery, verdict },
            CircuitAct::Verdict {
                fence: 1,
                generation,
                kind: CheckKind::Recovery { attempt: number },
                verdict,
            },
            CircuitAct::Verdict { fence: 1, generation, kind: CheckKind::Idle { at_ms: number }, verdict },
            CircuitAct::Schedule { generation: number, attempt: 1, wait_ms: 1 },
            CircuitAct::Schedule { generation, attempt: number, wait_ms: 1 },
            CircuitAct::Schedule { generation, attempt: 1, wait_ms: number },
            CircuitAct::Trial { ask: number },
            CircuitAct::RenewTrial { fence: number },
            CircuitAct::GiveBack { fence: number },
            CircuitAct::TrialResult { fence: number, verdict },
        ];
        for act in acts {
            all.push((format!("{act:?}"), vec![good()?, act]));
        }
    }
    let schedule = CircuitAct::Schedule { generation, attempt: 1, wait_ms: 366 * DAY + 1 };
    all.push(("a wait of over 366 days".to_owned(), vec![good()?, schedule]));
    Ok(all)
}

async fn bi_1_nothing(lab: &Lab) -> Result<(), Failure> {
    let process = lab.process_of(&in_a_row(2))?;
    same(process.reports_as(1, &[Run::failures(1)]).await?, Reported::Counted, "the first failure of two")?;
    let before = process.view().await?;
    for (what, acts) in wrong(before.generation)? {
        refused(process.ask(&acts).await, "invalid_options", &what)?;
        same(process.view().await?, before, format_args!("how it stands after {what}"))?;
    }
    let reported = process.reports_as(2, &[Run::failures(1)]).await?;
    ensure(matches!(reported, Reported::Opened(_)), "the second failure that counts opens")
}

async fn bi_1_pins_nothing(lab: &Lab) -> Result<(), Failure> {
    let (process, other) = (lab.process_of(&in_a_row(2))?, lab.process_of(&in_a_row(3))?);
    for (what, acts) in wrong(1)? {
        refused(process.ask(&acts).await, "invalid_options", &what)?;
    }
    other.view().await?;
    refused(process.ask(&[]).await, "invalid_options", "a policy that was only refused before")?;
    Ok(())
}

async fn bi_2_largest(lab: &Lab) -> Result<(), Failure> {
    let process = lab.process_of(&strategy(Strategy::Consecutive { threshold: 1_000 }))?;
    let generation = process.view().await?.generation;
    let most = EXACT - 1;
    let runs: Vec<Run> = (0..1_000)
        .map(|run| if run % 2 == 0 { Run::successes(1_000_000) } else { Run::failures(999) })
        .collect();
    let verdict = Verdict::Success;
    let mut acts = vec![
        report(most, generation, runs)?,
        report(most, most, vec![])?,
        CircuitAct::Open { generation: most },
        CircuitAct::Renew { fence: most },
        CircuitAct::Resign { fence: most },
        CircuitAct::Verdict {
            fence: most,
            generation: most,
            kind: CheckKind::Recovery { attempt: most },
            verdict,
        },
        CircuitAct::Verdict { fence: most, generation: most, kind: CheckKind::Idle { at_ms: most }, verdict },
        CircuitAct::Schedule { generation: most, attempt: most, wait_ms: 366 * DAY },
        CircuitAct::Trial { ask: most },
        CircuitAct::RenewTrial { fence: most },
        CircuitAct::GiveBack { fence: most },
        CircuitAct::TrialResult { fence: most, verdict },
    ];
    acts.resize(64, CircuitAct::Recent);
    let did = process.ask(&acts).await?.body.did;
    same(did.len(), 64, "answers to 64 acts")?;
    same(&did[0], &tidegate_core::CircuitDid::Reported(Reported::Counted), "a report of 1,000 runs")?;
    let view = process.view().await?;
    same((view.position, view.generation), (Position::Closed, generation), "how it stands after that")?;
    let opened = process.ask(&[report(most, generation, vec![Run::failures(1)])?]).await?;
    ensure(!opened.body.view.is_open(), "the same number does not count twice")?;
    let waits = lab.process_at("waits", &waiting(tidegate_core::circuit::Backoff::Custom))?;
    let generation = waits.opens(2).await?.generation;
    let at_ms = waits.schedules(generation, 1, 366 * DAY).await?;
    same(at_ms, waits.view().await?.next_ms, "an attempt in 366 days")?;
    ensure(at_ms.is_some(), "a wait of 366 days is taken")
}

async fn bi_3_ids(lab: &Lab) -> Result<(), Failure> {
    let ids =
        ["a", "A", "a:b", "a:b:", "a b", " a", "é", "e\u{301}", "circuit", "a:circuit", "c:a", "0", "00"];
    let mut all = Vec::new();
    for id in ids {
        all.push(lab.process_at(id, &in_a_row(2))?);
    }
    for (at, process) in all.iter().enumerate() {
        ensure(!process.view().await?.is_open(), format_args!("{:?} is open before it failed", ids[at]))?;
        process.opens(2).await?;
        for (later, other) in ids.iter().zip(&all).skip(at + 1) {
            ensure(!other.view().await?.is_open(), format_args!("{:?} opened {later:?}", ids[at]))?;
        }
    }
    Ok(())
}

// ---- clock and life ------------------------------------------------------------------------------------------------

async fn st_2_moves_back(lab: &Lab) -> Result<(), Failure> {
    const HOUR: u64 = 3_600_000;
    let a = lab.process_of(&waiting(constant(10_000)).leader_ttl(ms(5_000)))?;
    let b = lab.beside(&a);
    a.opens(2).await?;
    let leader = a.leads().await?;
    lab.advance(1_000).await;
    let before = a.ask(&[]).await?;
    lab.step_back(HOUR).await;
    let after = b.ask(&[]).await?;
    same(after.head.stepped_back_ms, HOUR, "how far the clock was set back, as it is reported")?;
    same(now_of(&after)?, now_of(&before)? - HOUR, "the moment of the answer")?;
    same(a.ask(&[]).await?.head.stepped_back_ms, 0, "what is reported the second time")?;
    let view = after.body.view;
    same(view.generation, before.body.view.generation, "the generation, which is no moment")?;
    same(view.leader.map(|leader| leader.fence), Some(leader.fence), "the fence, which is no moment")?;
    same(b.next_in().await?, Some(9_000), "what is left of the wait")?;
    same(b.follows().await?, 4_000, "what is left of the leader's lease")?;
    lab.advance(4_000).await;
    let next = b.leads().await?;
    ensure(next.fence > leader.fence, "a fence grows on, whatever the clock shows")
}

async fn st_2_stands_still(lab: &Lab) -> Result<(), Failure> {
    let process = lab.process_of(&waiting(constant(10_000)))?;
    process.opens(2).await?;
    let before = now_of(&process.ask(&[]).await?)?;
    lab.step_back(1_000).await;
    let after = process.ask(&[]).await?;
    same((now_of(&after)?, after.head.stepped_back_ms), (before, 0), "the moment, a second behind")?;
    same(process.next_in().await?, Some(10_000), "what is left of the wait")
}

async fn st_18_lost(lab: &Lab) -> Result<(), Failure> {
    let a = lab.process_of(&in_a_row(2))?;
    let b = lab.beside(&a);
    let first = a.leads().await?;
    let change = a.opens(2).await?;
    lab.lose_all().await;
    let view = b.view().await?;
    same((view.position, view.leader), (Position::Closed, None), "how it stands after the loss")?;
    ensure(
        view.generation > change.generation,
        format_args!("generation {} comes after {}", view.generation, change.generation),
    )?;
    let reported = a.reports_of(change.generation, &[Run::failures(9)]).await?;
    same(reported, Reported::Dropped, "failures of before the loss")?;
    let kind = CheckKind::Recovery { attempt: 1 };
    let judged = a.checks(first.fence, change.generation, kind, Verdict::Success).await?;
    same(judged, Judged::Stale, "a verdict of before the loss")?;
    same(a.renews(first.fence).await?, None, "a leader of before the loss")?;
    let second = b.leads().await?;
    ensure(second.fence > first.fence, format_args!("{} comes after {}", second.fence, first.fence))
}

async fn st_5_forgotten(lab: &Lab) -> Result<(), Failure> {
    let process = lab.process_of(&in_a_row(2))?;
    let generation = process.opens(2).await?.generation;
    lab.advance(30 * DAY - 1).await;
    same(process.view().await?.generation, generation, "the generation a millisecond before 30 days")?;
    lab.advance(30 * DAY).await;
    // Nothing of it is left, not even its policy.
    let other = process.with(&in_a_row(3))?;
    let view = other.view().await?;
    ensure(!view.is_open() && view.generation > generation, "after 30 days it begins anew")
}

// ---- policy --------------------------------------------------------------------------------------------------------

async fn st_5_differs(lab: &Lab) -> Result<(), Failure> {
    let process = lab.process_of(&share(0.5, 10, 5))?;
    same(process.reports(&[Run::failures(4)]).await?, Reported::Counted, "four failures")?;
    let before = process.view().await?;
    let differ = [
        ("count.threshold", share(0.6, 10, 5)),
        ("count.size", share(0.5, 11, 5)),
        ("count.minimum_calls", share(0.5, 10, 6)),
        ("strategy", in_a_row(5)),
        ("min_reporters", share(0.5, 10, 5).min_reporters(2)),
        ("leader_ttl", share(0.5, 10, 5).leader_ttl(ms(1_000))),
        ("recovery", half_open(1, 1_000, constant(0))),
    ];
    for (field, draft) in differ {
        let other =
            process.with(&draft.leader_ttl(if field == "leader_ttl" { ms(1_000) } else { ms(DAY) }))?;
        // Of a policy of another kind more than one field differs; the first one is named.
        let expected = if field == "recovery" { "strategy" } else { field };
        let act = report(100, before.generation, vec![Run::failures(9)])?;
        let error = refused(other.ask(&[act]).await, "invalid_options", format_args!("another {field}"))?;
        ensure(
            matches!(&error, StoreError::PolicyDiffers { field, .. } if field == expected),
            format_args!("the error names {expected}: {error}"),
        )?;
        same(process.view().await?, before, format_args!("how it stands after another {field}"))?;
    }
    let reported = process.reports(&[Run::failures(1)]).await?;
    ensure(matches!(reported, Reported::Opened(_)), "the fifth failure opens it")
}

async fn st_5_apart(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::fixed_window(5, ms(DAY))).revision(7))?;
    let process = lab.process_of(&in_a_row(2))?;
    same(worker.granted(2).await?, 2, "grants under a policy of revision 7")?;
    let reply = process.ask(&[]).await?;
    same(reply.head.revision, Some(0), "the revision that a circuit's answers carry")?;
    process.opens(2).await?;
    same(worker.granted(9).await?, 3, "grants while the circuit is open, which is no affair of the store")?;
    same(worker.acquire(1).await?.head.revision, Some(7), "the revision that the others carry")?;
    ensure(process.view().await?.is_open(), "the circuit is open still")
}

async fn st_5_carries(lab: &Lab) -> Result<(), Failure> {
    let old = lab.process_of(&in_a_row(5))?;
    let new = old.with(&in_a_row(3).revision(1))?;
    same(old.reports(&[Run::failures(2)]).await?, Reported::Counted, "two failures")?;
    let before = old.view().await?;
    let leader = old.leads().await?;
    let reply = new.ask(&[]).await?;
    same(reply.head.revision, Some(1), "the revision after that")?;
    same(reply.body.view.generation, before.generation, "the generation after another revision")?;
    same(reply.body.view.leader.map(|leader| leader.fence), Some(leader.fence), "who leads after it")?;
    let reported = new.reports(&[Run::failures(1)]).await?;
    ensure(matches!(reported, Reported::Opened(_)), "three failures open it now, two of them of before")?;
    let other = old.with(&share(0.5, 10, 5).revision(2))?;
    let view = other.view().await?;
    same((view.position, view.why), (Position::Open, Some(Why::Results)), "it stays open under another one")
}

async fn st_5_lower(lab: &Lab) -> Result<(), Failure> {
    let old = lab.process_of(&in_a_row(5))?;
    let new = old.with(&in_a_row(2).revision(3))?;
    new.view().await?;
    let answer = old.clone().refusing().ask(&[CircuitAct::Elect]).await;
    let error = refused(answer, "policy_superseded", "a lower revision that will not adopt")?;
    same(error, StoreError::Superseded { own: 0, pinned: 3 }, "what is superseded by what")?;
    same(old.view().await?.leader, None, "who leads after what was refused")?;
    old.opens(2).await?;
    same(old.ask(&[]).await?.head.revision, Some(3), "the revision that decides")
}

// ---- pushes and operators ------------------------------------------------------------------------------------------

async fn st_13_one_id(lab: &Lab) -> Result<(), Failure> {
    let (a, b) = (lab.process_at("one", &in_a_row(2))?, lab.process_at("two", &in_a_row(2))?);
    let (at_a, at_b) = (lab.hears(&a).await?, lab.hears(&b).await?);
    let generation = a.opens(2).await?.generation;
    at_a.circuit("the opening", |view| view.generation == generation).await?;
    b.opens(2).await?;
    at_b.circuit("its own opening", |view| view.is_open()).await?;
    let told = at_b.take().iter().filter(|wake| matches!(wake, Wake::Circuit(_))).count();
    same(told, 1, "openings pushed to the listener of one of two ids")
}

async fn st_19_taken(lab: &Lab) -> Result<(), Failure> {
    let process = lab.process_of(&in_a_row(1))?;
    ensure(!process.view().await?.is_open(), "a circuit that nothing is known of is closed")?;
    process.opens(1).await?;
    Ok(())
}

async fn st_20_snapshot(lab: &Lab) -> Result<(), Failure> {
    let a = lab.process_of(&half_open(2, DAY, constant(0)).min_reporters(2))?;
    let (b, c) = (lab.beside(&a), lab.beside(&a));
    same(a.snapshot().await?, None, "the circuit of an id that has none")?;
    let page = lab.operators()?.ids(None, 10).await?.body.items;
    same(page, vec![], "ids after looking")?;
    b.reports(&[Run::failures(1)]).await?;
    c.reports(&[]).await?;
    let shown = a.snapshot().await?.ok_or_else(|| Failure("no circuit is shown".to_owned()))?;
    same(shown.policy, std::sync::Arc::clone(&a.member.policy), "its policy")?;
    same((shown.heard, shown.failing, shown.trials), (2, 1, 0), "heard, failing and trials")?;
    same(shown.view, a.view().await?, "how it stands")?;
    let page = lab.operators()?.ids(None, 10).await?.body.items;
    same(page, vec![a.id().clone()], "ids, one of which has a circuit alone")?;
    a.opens(1).await?;
    a.permit(1).await?;
    b.leads().await?;
    let shown = a.snapshot().await?.ok_or_else(|| Failure("no circuit is shown".to_owned()))?;
    same((shown.heard, shown.failing, shown.trials), (3, 0, 1), "heard, failing and trials of an open one")?;
    same(shown.view, c.view().await?, "how it stands then")
}

/// Sets the circuit, and says whether that changed it.
async fn set(lab: &Lab, process: &Process, position: Position) -> Result<bool, Failure> {
    Ok(lab.operators()?.set_circuit(process.id(), position).await?.body)
}

async fn st_20_by_hand(lab: &Lab) -> Result<(), Failure> {
    let process = lab.process_of(&in_a_row(2))?;
    same(set(lab, &process, Position::Open).await?, false, "whether an unknown circuit was opened")?;
    same(lab.operators()?.ids(None, 10).await?.body.items, vec![], "ids after that")?;
    let generation = process.view().await?.generation;
    same(set(lab, &process, Position::Closed).await?, false, "whether a closed one was closed")?;
    same(set(lab, &process, Position::Open).await?, true, "whether a closed one was opened")?;
    same(set(lab, &process, Position::Open).await?, false, "whether an open one was opened")?;
    let view = process.view().await?;
    same((view.position, view.why), (Position::Open, Some(Why::Operator)), "how it stands then")?;
    same((view.generation, view.attempt), (generation + 1, Some(1)), "its generation and attempt")?;
    let leader = process.leads().await?;
    let judged = process.checked(leader.fence, Verdict::Success).await?;
    ensure(matches!(judged, Judged::Changed(_)), "it recovers as from any other opening")?;
    process.opens(2).await?;
    same(set(lab, &process, Position::Closed).await?, true, "whether an open one was closed")?;
    let view = process.view().await?;
    same((view.position, view.generation), (Position::Closed, generation + 4), "how it stands at last")
}

async fn st_20_pushed(lab: &Lab) -> Result<(), Failure> {
    let process = lab.process_of(&in_a_row(2))?;
    process.view().await?;
    let ear = lab.hears(&process).await?;
    set(lab, &process, Position::Open).await?;
    let view = ear.circuit("an opening by hand", |view| view.is_open()).await?;
    same(view.why, Some(Why::Operator), "why it opened")?;
    set(lab, &process, Position::Closed).await?;
    ear.circuit("a closing by hand", |view| !view.is_open()).await?;
    Ok(())
}

async fn st_20_forget(lab: &Lab) -> Result<(), Failure> {
    let process = lab.process_of(&half_open(1, 60_000, constant(0)))?;
    let operators = lab.operators()?;
    let generation = process.opens(2).await?.generation;
    let leader = process.leads().await?;
    let permit = process.permit(1).await?;
    for (held, what) in [(2, "a leader and a trial"), (1, "a trial alone")] {
        let error = refused(operators.forget(process.id()).await, "leases_live", what)?;
        same(error, StoreError::LeasesLive { held }, what)?;
        process.resigns(leader.fence).await?;
    }
    ensure(process.view().await?.is_open(), "what is not forgotten is there still")?;
    process.gives_back(permit.fence).await?;
    lab.advance(100).await;
    same(operators.forget(process.id()).await?.body, true, "whether there was anything to forget")?;
    same(operators.forget(process.id()).await?.body, false, "whether there was anything the second time")?;
    let view = process.view().await?;
    ensure(!view.is_open() && view.generation > generation, "a forgotten circuit begins anew, and higher")?;
    // One whose leader has lapsed is free as well.
    process.leads().await?;
    lab.advance(2_000).await;
    same(operators.forget(process.id()).await?.body, true, "whether there was anything, after the TTL")
}

async fn st_21_newer(lab: &Lab) -> Result<(), Failure> {
    let (process, other) = (lab.process_of(&in_a_row(2))?, lab.process_at("trial2", &in_a_row(2))?);
    process.view().await?;
    other.view().await?;
    lab.plant_layout(&Id::new("trial")?, 1_000_000).await;
    let error =
        refused(process.ask(&[CircuitAct::Elect]).await, "newer_layout", "a circuit of a newer layout")?;
    ensure(
        matches!(error, StoreError::NewerLayout { found: 1_000_000, known } if known < 1_000_000),
        format_args!("the layout that was found, and the highest known one, are named: {error}"),
    )?;
    other.opens(2).await?;
    Ok(())
}
