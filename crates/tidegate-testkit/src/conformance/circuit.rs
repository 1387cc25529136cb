//! When a circuit opens: strategies, results of the past, thinning, and one bad machine.
//!
//! Spec: CB-1, CB-2, CB-7, CB-8, CB-9.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use tidegate_core::{
    Capability, CircuitAct, CircuitDid, CircuitState,
    circuit::{Batch, Position, Reported, Run, Strategy, Verdict, Why},
};

use super::{
    Failure, Need,
    circuit_lab::{CIRCUIT, CLOCK, Process, in_a_row, now_of, share, strategy},
    ensure,
    lab::{Lab, ms},
    same, trials_of_rules,
};
use crate::task::{Task, lock};

const WAKE: Need = Need::Has(Capability::Wake);

trials_of_rules! {
    "CB-1 failures in a row open at exactly their threshold" [CIRCUIT] => cb_1_in_a_row;
    "CB-1 results of several processes count in the order in which they arrive" [CIRCUIT] => cb_1_order;
    "CB-1 a share of the last calls opens at exactly its threshold" [CIRCUIT] => cb_1_share;
    "CB-1 nothing opens before there are so many calls" [CIRCUIT] => cb_1_minimum;
    "CB-1 results behind the last so many count no more" [CIRCUIT] => cb_1_size;
    "CB-1 sampling looks back for exactly its duration" [CIRCUIT, CLOCK] => cb_1_sampling;
    "CB-1 sampling many results opens when the model does" [CIRCUIT, CLOCK] => cb_1_many_samples;
    "CB-1 a strategy of one's own sees the recent results of the fleet" [CIRCUIT] => cb_1_custom;
    "CB-1 without a result nothing opens" [CIRCUIT] => cb_1_no_result;
    "CB-2 the fleet opens once, and every process learns of it" [CIRCUIT] => cb_2_once;
    "CB-2 an opening and a closing are pushed to every process" [CIRCUIT, WAKE] => cb_2_pushed;
    "CB-2 of many that report at once one opens the circuit" [CIRCUIT] => cb_2_at_once;
    "CB-7 results of before a change never reopen" [CIRCUIT] => cb_7_old;
    "CB-8 a batch is judged after each run, in its order" [CIRCUIT] => cb_8_order;
    "CB-8 a report counts once, and one of a lower number not at all" [CIRCUIT] => cb_8_number;
    "CB-8 a number is forgotten with a process that is silent for 10 s" [CIRCUIT, CLOCK] => cb_8_forgotten;
    "CB-8 one busy process does not fill the window alone" [CIRCUIT] => cb_8_thinned;
    "CB-8 a process counts as heard for 10 s" [CIRCUIT, CLOCK] => cb_8_heard;
    "CB-9 one bad machine does not open, and a second one does" [CIRCUIT] => cb_9_one;
    "CB-9 no more processes are asked for than were heard" [CIRCUIT] => cb_9_few;
    "CB-9 a failure is recent for 10 s" [CIRCUIT, CLOCK] => cb_9_recent;
}

const fn ok(times: u32) -> Run {
    Run::successes(times)
}

const fn bad(times: u32) -> Run {
    Run::failures(times)
}

/// Fails unless the report was counted, and opened nothing.
async fn counted(process: &Process, runs: &[Run], what: &str) -> Result<(), Failure> {
    same(process.reports(runs).await?, Reported::Counted, what)
}

/// Fails unless the report opens the circuit.
async fn opened(process: &Process, runs: &[Run], what: &str) -> Result<(), Failure> {
    let before = process.view().await?;
    match process.reports(runs).await? {
        Reported::Opened(change) => {
            same(change.generation, before.generation + 1, format_args!("the generation after {what}"))?;
            same(
                (change.to, change.why),
                (Position::Open, Why::Results),
                format_args!("the change by {what}"),
            )
        }
        other => Err(Failure(format!("{what} opens the circuit, and came to {other:?}"))),
    }
}

async fn cb_1_in_a_row(lab: &Lab) -> Result<(), Failure> {
    let process = lab.process_of(&in_a_row(3))?;
    counted(&process, &[bad(2)], "two failures").await?;
    counted(&process, &[ok(1)], "a success").await?;
    counted(&process, &[bad(2)], "two failures after a success").await?;
    opened(&process, &[bad(1)], "the third failure in a row").await?;
    let one = lab.process_at("one", &in_a_row(1))?;
    counted(&one, &[ok(1_000_000)], "successes alone").await?;
    opened(&one, &[bad(1)], "the only failure").await
}

async fn cb_1_order(lab: &Lab) -> Result<(), Failure> {
    let a = lab.process_of(&in_a_row(3))?;
    let (b, c) = (lab.beside(&a), lab.beside(&a));
    counted(&a, &[bad(1)], "a failure of a first process").await?;
    counted(&b, &[bad(1)], "one of a second").await?;
    counted(&c, &[ok(1)], "a success of a third").await?;
    counted(&b, &[bad(1)], "a failure after that").await?;
    counted(&a, &[bad(1)], "a second one").await?;
    opened(&c, &[bad(1)], "the third in a row, whoever it is of").await
}

async fn cb_1_share(lab: &Lab) -> Result<(), Failure> {
    let below = lab.process_at("below", &share(0.5, 10, 4))?;
    counted(&below, &[ok(5), bad(4)], "four failures of nine calls").await?;
    opened(&below, &[bad(1)], "five failures of ten calls").await?;
    let third = lab.process_at("third", &share(0.3, 10, 10))?;
    counted(&third, &[ok(8), bad(2)], "two failures of ten").await?;
    opened(&third, &[bad(1)], "three failures of the last ten").await
}

async fn cb_1_minimum(lab: &Lab) -> Result<(), Failure> {
    let process = lab.process_of(&share(0.5, 10, 4))?;
    counted(&process, &[bad(3)], "three failures, where four calls are needed").await?;
    opened(&process, &[ok(1)], "the fourth call, which worked").await
}

async fn cb_1_size(lab: &Lab) -> Result<(), Failure> {
    let process = lab.process_of(&share(1.0, 4, 2))?;
    counted(&process, &[ok(1), bad(3)], "three failures of the last four").await?;
    opened(&process, &[bad(1)], "four failures of the last four").await
}

fn sampling(duration_ms: u64, threshold: f64, minimum_calls: u32) -> tidegate_core::circuit::CircuitDraft {
    strategy(Strategy::Sampling { threshold, duration: ms(duration_ms), minimum_calls })
}

async fn cb_1_sampling(lab: &Lab) -> Result<(), Failure> {
    let still = lab.process_at("still", &sampling(1_000, 0.5, 4))?;
    let over = lab.process_at("over", &sampling(1_000, 0.5, 4))?;
    counted(&still, &[bad(2)], "two failures").await?;
    counted(&over, &[bad(2)], "two failures").await?;
    lab.advance(999).await;
    counted(&still, &[ok(1)], "three calls, where four are needed").await?;
    opened(&still, &[ok(1)], "half of the calls of the last 1,000 ms").await?;
    lab.advance(1).await;
    counted(&over, &[ok(2), bad(1)], "three calls, after the first ones are too old").await?;
    counted(&over, &[ok(1)], "one failure of four calls").await?;
    counted(&over, &[bad(1)], "two of five").await?;
    opened(&over, &[bad(1)], "three of six").await
}

async fn cb_1_many_samples(lab: &Lab) -> Result<(), Failure> {
    // Over 512 of them within the duration share samples, which every store must do in the same way. Some of 10 ms are
    // apart by 7, and so share one; others are not.
    let process = lab.process_of(&sampling(5_120, 0.4, 300))?;
    let policy = Arc::clone(&process.member.policy);
    let reply = process.ask(&[]).await?;
    let mut model = CircuitState::new(&policy, now_of(&reply)?);
    let offset = reply.body.view.generation.wrapping_sub(model.generation());
    let (mut openings, mut number) = (0, 0);
    for round in 0_u64..2_600 {
        lab.advance([1, 3, 2, 7, 1][usize::try_from(round % 5).unwrap_or(0)]).await;
        // So many of ten fail, and their share in the duration passes the threshold slowly, with samples that are old.
        let failing = [1, 3, 5, 8, 2][usize::try_from(round / 520).unwrap_or(0)];
        let verdict = if round * 7 % 10 < failing { Verdict::Failure } else { Verdict::Success };
        number += 1;
        let batch = Batch::new(vec![Run { verdict, times: 1 }])?;
        let generation = model.generation();
        let act =
            CircuitAct::Report { number, generation: generation.wrapping_add(offset), batch: batch.clone() };
        let reply = process.ask(&[act]).await?;
        let now_ms = now_of(&reply)?;
        let expected = model.report(&policy, process.member.driver, number, generation, &batch, now_ms);
        let is_open = |reported: &Reported| matches!(reported, Reported::Opened(_));
        let got = match reply.body.did.first() {
            Some(CircuitDid::Reported(got)) => *got,
            other => return Err(Failure(format!("a report was answered by {other:?}"))),
        };
        same(is_open(&got), is_open(&expected), format_args!("whether report {number} opens"))?;
        if is_open(&got) {
            openings += 1;
            let leader = process.leads().await?;
            process.checked(leader.fence, Verdict::Success).await?;
            model.force_close(&policy, now_ms);
        }
    }
    ensure(openings > 0, "the trial's own failures never reach the threshold")
}

async fn cb_1_custom(lab: &Lab) -> Result<(), Failure> {
    let a = lab.process_of(&strategy(Strategy::Custom { keep: 5 }))?;
    let b = lab.beside(&a);
    counted(&a, &[bad(900), ok(1)], "whatever there is").await?;
    counted(&b, &[ok(1), bad(1)], "and more").await?;
    let (generation, runs) = b.recent().await?;
    same(runs, vec![bad(2), ok(2), bad(1)], "the last five results, oldest first")?;
    same(generation, a.view().await?.generation, "the generation that they are of")?;
    let opens = |generation| a.does(CircuitAct::Open { generation });
    same(opens(generation + 1).await?, CircuitDid::Opened(None), "an opening of another generation")?;
    same(opens(generation - 1).await?, CircuitDid::Opened(None), "an opening of an older generation")?;
    match opens(generation).await? {
        CircuitDid::Opened(Some(change)) => same(change.why, Why::Results, "why it opened")?,
        did => return Err(Failure(format!("the strategy opens, and came to {did:?}"))),
    }
    same(opens(generation).await?, CircuitDid::Opened(None), "the same opening again")?;
    same(a.recent().await?, (generation + 1, vec![]), "what is recent after the change")
}

async fn cb_1_no_result(lab: &Lab) -> Result<(), Failure> {
    let process = lab.process_of(&strategy(Strategy::Custom { keep: 5 }))?;
    let generation = process.view().await?.generation;
    counted(&process, &[], "a report without a result").await?;
    let open = CircuitAct::Open { generation };
    same(process.does(open.clone()).await?, CircuitDid::Opened(None), "an opening without a result")?;
    counted(&process, &[ok(1)], "a success").await?;
    ensure(
        matches!(process.does(open).await?, CircuitDid::Opened(Some(_))),
        "a strategy of one's own may open after any result",
    )?;
    let others = [in_a_row(1), share(0.000_001, 1, 1), sampling(1_000, 0.000_001, 1)];
    for (index, draft) in others.iter().enumerate() {
        let process = lab.process_at(&format!("other {index}"), draft)?;
        counted(&process, &[], "a report without a result").await?;
        let generation = process.view().await?.generation;
        let opened = process.does(CircuitAct::Open { generation }).await?;
        same(opened, CircuitDid::Opened(None), "an opening that is not by its strategy")?;
    }
    Ok(())
}

async fn cb_2_once(lab: &Lab) -> Result<(), Failure> {
    let a = lab.process_of(&in_a_row(2))?;
    let b = lab.beside(&a);
    let generation = b.view().await?.generation;
    let change = a.opens(2).await?;
    same(b.reports_of(generation, &[bad(9)]).await?, Reported::Dropped, "failures of before the opening")?;
    same(b.reports_of(change.generation, &[bad(9)]).await?, Reported::Dropped, "failures while it is open")?;
    for process in [&a, &b] {
        let view = process.view().await?;
        same((view.position, view.generation), (Position::Open, generation + 1), "how it stands for each")?;
        same((view.why, view.attempt), (Some(Why::Results), Some(1)), "why it opened, and its attempt")?;
    }
    Ok(())
}

async fn cb_2_pushed(lab: &Lab) -> Result<(), Failure> {
    let a = lab.process_of(&in_a_row(2))?;
    let b = lab.beside(&a);
    let (at_a, at_b) = (lab.hears(&a).await?, lab.hears(&b).await?);
    let change = a.opens(2).await?;
    for ear in [&at_a, &at_b] {
        let view = ear.circuit("the opening", |view| view.is_open()).await?;
        same((view.generation, view.attempt), (change.generation, Some(1)), "how it stands in the push")?;
    }
    let leader = b.leads().await?;
    b.checked(leader.fence, Verdict::Success).await?;
    for ear in [&at_a, &at_b] {
        let closed = |view: &tidegate_core::CircuitView| !view.is_open();
        let view = ear.circuit("the closing", closed).await?;
        same((view.generation, view.why), (change.generation + 1, Some(Why::Check)), "the closing pushed")?;
    }
    Ok(())
}

const PROCESSES: usize = 8;

/// Half of them at the store's other handle.
pub(super) fn processes(lab: &Lab, process: &Process) -> Vec<Process> {
    (0..PROCESSES)
        .map(|number| Process { store: lab.handle(number % 2 == 0), ..lab.beside(process) })
        .collect()
}

async fn cb_2_at_once(lab: &Lab) -> Result<(), Failure> {
    let process = lab.process_of(&in_a_row(200))?;
    let generation = process.view().await?.generation;
    let changes = Arc::new(Mutex::new(Vec::new()));
    let counted = Arc::new(AtomicU64::new(0));
    let tasks = processes(lab, &process).into_iter().map(|process| -> Task<'static, Result<(), Failure>> {
        let (changes, counted) = (Arc::clone(&changes), Arc::clone(&counted));
        Box::pin(async move {
            for _ in 0..50 {
                match process.reports_of(generation, &[bad(1)]).await? {
                    Reported::Opened(change) => lock(&changes).push(change),
                    Reported::Counted => drop(counted.fetch_add(1, Ordering::SeqCst)),
                    Reported::Dropped => {}
                }
            }
            Ok(())
        })
    });
    lab.at_once(tasks.collect()).await?;
    let changes = std::mem::take(&mut *lock(&changes));
    same(changes.len(), 1, "openings by 400 failures at once")?;
    same(changes[0].generation, generation + 1, "its generation")?;
    same(counted.load(Ordering::SeqCst), 199, "failures that counted before the one that opened")
}

async fn cb_7_old(lab: &Lab) -> Result<(), Failure> {
    let process = lab.process_of(&in_a_row(2))?;
    let old = process.view().await?.generation;
    let open = process.opens(2).await?.generation;
    let leader = process.leads().await?;
    process.checked(leader.fence, Verdict::Success).await?;
    for generation in [old, open, open + 2, 0] {
        let reported = process.reports_of(generation, &[bad(9)]).await?;
        same(
            reported,
            Reported::Dropped,
            format_args!("failures of generation {generation}, now {}", open + 1),
        )?;
    }
    same(process.view().await?.generation, open + 1, "the generation after them")?;
    same(process.reports_of(open + 1, &[bad(1)]).await?, Reported::Counted, "one failure of this one")?;
    ensure(
        matches!(process.reports_of(open + 1, &[bad(1)]).await?, Reported::Opened(_)),
        "two failures of this generation open it",
    )
}

async fn cb_8_order(lab: &Lab) -> Result<(), Failure> {
    let process = lab.process_of(&in_a_row(3))?;
    counted(&process, &[bad(2), ok(1), bad(2), ok(1)], "never three in a row").await?;
    opened(&process, &[ok(1), bad(3), ok(5)], "three in a row amid others").await?;
    let recent = lab.process_at("recent", &share(0.6, 100, 5))?;
    opened(&recent, &[ok(2), bad(3), ok(90)], "three of five at some moment of a batch").await
}

async fn cb_8_number(lab: &Lab) -> Result<(), Failure> {
    let a = lab.process_of(&in_a_row(4))?;
    let b = lab.beside(&a);
    same(a.reports_as(5, &[bad(1)]).await?, Reported::Counted, "report 5")?;
    same(a.reports_as(5, &[bad(1)]).await?, Reported::Dropped, "report 5 again")?;
    same(a.reports_as(4, &[bad(1)]).await?, Reported::Dropped, "report 4 after it")?;
    same(a.reports_as(0, &[bad(1)]).await?, Reported::Dropped, "report 0")?;
    same(b.reports_as(5, &[bad(1)]).await?, Reported::Counted, "report 5 of another process")?;
    same(a.reports_as(6, &[bad(1)]).await?, Reported::Counted, "report 6")?;
    ensure(
        matches!(a.reports_as(1_000, &[bad(1)]).await?, Reported::Opened(_)),
        "the fourth failure that counts opens",
    )
}

async fn cb_8_forgotten(lab: &Lab) -> Result<(), Failure> {
    let a = lab.process_of(&in_a_row(9))?;
    let b = lab.beside(&a);
    for process in [&a, &b] {
        same(process.reports_as(5, &[bad(1)]).await?, Reported::Counted, "report 5")?;
        // A failure is remembered no longer than its process, but a success is a cleaner start for both.
        same(process.reports_as(6, &[ok(1)]).await?, Reported::Counted, "report 6")?;
    }
    lab.advance(9_999).await;
    same(a.reports_as(1, &[bad(1)]).await?, Reported::Dropped, "report 1 after 9,999 ms")?;
    lab.advance(1).await;
    same(b.reports_as(1, &[bad(1)]).await?, Reported::Counted, "report 1 after 10,000 ms")
}

async fn cb_8_thinned(lab: &Lab) -> Result<(), Failure> {
    let a = lab.process_of(&share(0.9, 10, 10))?;
    let (b, c) = (lab.beside(&a), lab.beside(&a));
    counted(&b, &[], "a second process").await?;
    counted(&a, &[ok(90), bad(10)], "a hundred results").await?;
    same(a.recent().await?.1, vec![ok(4), bad(1)], "five of ten for each of two, failures rounded up")?;
    counted(&c, &[], "a third process").await?;
    counted(&b, &[bad(1_000_000)], "a million failures").await?;
    same(b.recent().await?.1, vec![ok(4), bad(5)], "four of ten for each of three")?;
    counted(&c, &[ok(1), bad(1)], "fewer than its part").await?;
    same(b.recent().await?.1, vec![ok(3), bad(5), ok(1), bad(1)], "the last ten of all")
}

async fn cb_8_heard(lab: &Lab) -> Result<(), Failure> {
    for (wait_ms, left) in [(9_999, 5), (10_000, 9)] {
        let a = lab.process_at(&format!("after {wait_ms}"), &share(1.0, 10, 10))?;
        let b = lab.beside(&a);
        counted(&b, &[], "a second process").await?;
        lab.advance(wait_ms).await;
        counted(&a, &[bad(9)], "nine failures").await?;
        let runs = a.recent().await?.1;
        same(runs, vec![bad(left)], format_args!("what counts {wait_ms} ms after the second was heard"))?;
    }
    Ok(())
}

async fn cb_9_one(lab: &Lab) -> Result<(), Failure> {
    let a = lab.process_of(&in_a_row(3).min_reporters(2))?;
    let b = lab.beside(&a);
    counted(&b, &[], "a process that is well").await?;
    counted(&a, &[bad(500)], "500 failures of one process").await?;
    counted(&b, &[ok(1)], "a success of the other").await?;
    counted(&a, &[bad(500)], "500 more").await?;
    opened(&b, &[bad(1)], "a failure of a second process").await
}

async fn cb_9_few(lab: &Lab) -> Result<(), Failure> {
    let alone = lab.process_at("alone", &in_a_row(3).min_reporters(5))?;
    opened(&alone, &[bad(3)], "the only process").await?;
    let a = lab.process_at("three", &in_a_row(3).min_reporters(5))?;
    let (b, c) = (lab.beside(&a), lab.beside(&a));
    counted(&b, &[], "a second process").await?;
    counted(&c, &[], "a third process").await?;
    counted(&a, &[bad(3)], "one of three").await?;
    counted(&b, &[bad(3)], "two of three").await?;
    opened(&c, &[bad(1)], "all of three, where five are asked for").await
}

async fn cb_9_recent(lab: &Lab) -> Result<(), Failure> {
    for (wait_ms, opens) in [(9_999, true), (10_000, false)] {
        let a = lab.process_at(&format!("after {wait_ms}"), &in_a_row(3).min_reporters(2))?;
        let b = lab.beside(&a);
        counted(&b, &[], "a second process").await?;
        counted(&a, &[bad(1)], "a failure").await?;
        lab.advance(wait_ms - 1_000).await;
        counted(&a, &[], "a process that is there").await?;
        lab.advance(1_000).await;
        if opens {
            opened(&b, &[bad(2)], "failures of a second one within 10 s").await?;
        } else {
            counted(&b, &[bad(2)], "failures of a second one after 10 s").await?;
            opened(&a, &[bad(1)], "another one of the first").await?;
        }
    }
    Ok(())
}
