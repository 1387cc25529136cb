//! Each of these stores breaks one rule, and the trial of that rule says so.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod common;

use std::{
    future::ready,
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use common::{Mutant, Mutation};
use tidegate_core::{
    AcquireReply, AcquireRequest, Answer, Capabilities, Denial, Grant, Head, Id, Marks, Member, PauseReply,
    Reply, Store,
};
use tidegate_testkit::{Kit, Subject, conformance::Verdict, reference::ModelStore};

/// The mutations, each with the trial that it must fail.
const CAUGHT: &[(Mutation, &str)] = {
    use Mutation::*;
    &[
        (SkipsJobsThatDoNotFit, "ST-3 grants strictly in order"),
        (SpendsInPart, "ST-4 a job that one rule denies spends nothing in another"),
        (HintTooSmall, "ST-6 a hint is exact for a token bucket"),
        (HintTooLarge, "ST-6 a hint is exact for a sliding window"),
        (HintOfZero, "ST-6 a hint is positive and below 2^53 at any rate"),
        (TakesAnyPolicy, "ST-5 the first request pins the policy"),
        (ForgetsOnRevision, "ST-5 levels are carried over, within the new burst"),
        (ReleasesWhateverIsInTheSlot, "ST-9 a release frees its own slot, once"),
        (LeavesTheLowestSlotFree, "ST-9 a grant takes the lowest free slot"),
        (FencesThatDoNotGrow, "ST-9 a fence grows from grant to grant"),
        (SaysThatAllLive, "ST-9 renew says of each lease whether it lives, and the TTL in force"),
        (RunsRepeatsAgain, "ST-15 a number is carried out once, and a repeat answered alike"),
        (TakesLowerNumbers, "ST-15 a lower number is refused"),
        (NeverTooLate, "ST-15 an exchange past its time is refused"),
        (ShortensPauses, "ST-8 a pause is never shortened"),
        (GrantsInAPause, "ST-8 nothing is granted during a pause"),
        (BlamesSlotsAlways, "ST-7 full slots are told from a rate"),
        (ScopedStopsAtTheFirstDenial, "ST-10 a denial spends nothing, and later jobs are still tried"),
        (ScopedBeginsBeforeItHasChecked, "ST-10 the whole request is checked before anything is changed"),
        (IdentitiesEndAtAColon, "ST-11 identities are any text, and never collide"),
        (IdsIgnoreCase, "BI-3 odd ids never address each other's state"),
        (NeverSettles, "ST-12 what was not used is credited"),
        (RaisesByObserving, "VA-9 a level is never raised"),
        (HidesLeases, "ST-19 leases that are not declared are refused"),
        (OneEpochForEver, "ST-18 lost state has another epoch"),
        (LendsEverySlice, "AS-5 a reserved slice is never lent"),
        (WakesNobody, "AS-12 room goes to the one that waits longest"),
        (ServesWhoeverComes, "AS-12 room that was offered is not taken by one that came later"),
        (OffersWhatItHoldsBack, "AS-12 room that a safe start holds back is offered to nobody"),
        (DeafToResume, "ST-13 a pause and its end are pushed"),
        (ChargesForNothing, "RU-2 a cost of 0 passes without spending"),
        (DeniesWhatCanNeverFit, "RU-2 a cost above what a rule can ever hold is refused at once"),
        (OtherStateOnTheSynchronousPath, "ST-14 the synchronous path decides on the same state"),
        (ForgetsWithLeases, "ST-5 forget is refused while leases live"),
        (IdsInAnyOrder, "ST-20 ids come in pages, in their order"),
        (RestoresNoPause, "ST-18 a running pause is restored, and never shortened"),
        (TakesUpTheSlotOfAnother, "ST-18 a lease is lost whose slot is taken"),
        (PanicsOnAnEmptyRequest, "ST-3 takes 1 to 512 jobs"),
        (CountsReportsAgain, "CB-8 a report counts once, and one of a lower number not at all"),
        (GrantsATrialForEachAnswer, "CB-4 the same question gets the same permit as long as that is out"),
        (
            BelievesWhoeverChecked,
            "CB-3 a verdict without the newest fence, generation and attempt changes nothing",
        ),
        (CountsWhatIsOld, "CB-7 results of before a change never reopen"),
        (KeepsCircuitsToItself, "CB-2 an opening and a closing are pushed to every process"),
        (TakesAnyCircuitPolicy, "ST-5 another policy of a circuit is refused by its field"),
        (ProbesAreNeverPutOff, "CB-10 a probe that a call has put off is stale"),
    ]
};

#[test]
fn st_16_each_broken_store_fails_the_trial_of_its_rule() {
    let mut wrong = Vec::new();
    for (mutation, trial) in CAUGHT {
        let sound = Kit::new(|| ModelStore::default().subject()).filter(*trial).run_blocking();
        let broken = Kit::new(|| Mutant::subject(*mutation)).filter(*trial).run_blocking();
        let verdicts: Vec<_> = broken.results.iter().map(|result| &result.verdict).collect();
        println!("{mutation:?}\n{broken}\n");
        if sound.failed().next().is_some() || !matches!(verdicts.as_slice(), [Verdict::Failed(_)]) {
            wrong.push((mutation, trial, verdicts.into_iter().cloned().collect::<Vec<_>>()));
        }
    }
    assert!(wrong.is_empty(), "not caught by the trial of their rule: {wrong:#?}");
}

#[test]
fn st_1_a_store_that_looks_first_and_writes_then_is_caught() {
    let report = Kit::new(|| Subject::new(Racy::default()))
        .filter("ST-1 simultaneous acquires never exceed a rule")
        .run_blocking();
    assert!(report.failed().any(|(_, message)| message.contains("grants of the tightest rule")), "{report}");
}

#[test]
fn st_21_a_store_that_reads_any_layout_is_caught() {
    let report = Kit::new(|| ModelStore::default().subject().plant_layout(|_, _| ready(())))
        .filter("ST-21")
        .run_blocking();
    assert_eq!(report.failed().count(), 3, "{report}");
}

/// Looks whether a job fits, and writes that it came a moment later.
#[derive(Default)]
struct Racy {
    spent: AtomicU64,
}

impl Store for Racy {
    fn capabilities(&self) -> Capabilities {
        Capabilities::NONE
    }

    fn acquire<'a>(&'a self, member: &'a Member, request: &'a AcquireRequest) -> Answer<'a, AcquireReply> {
        let limit = member.policy.rules().iter().map(|rule| rule.limit()).min().unwrap_or(0);
        let spent = self.spent.load(Ordering::SeqCst);
        thread::sleep(Duration::from_micros(50));
        let mut body = AcquireReply::default();
        if spent < limit {
            self.spent.store(spent + 1, Ordering::SeqCst);
            body.grants = vec![Grant { lease: None, marks: Marks::default() }; request.jobs.len()];
        } else {
            body.denied = Some(Denial { hint_ms: 1_000, lease_blocked: false, rule: None });
        }
        Box::pin(ready(Ok(Reply { head: Head::default(), body })))
    }

    fn pause<'a>(&'a self, _: &'a Id, _: Duration) -> Answer<'a, PauseReply> {
        Box::pin(ready(Ok(Reply { head: Head::default(), body: PauseReply { left_ms: 1, extended: false } })))
    }

    fn resume<'a>(&'a self, _: &'a Id) -> Answer<'a, bool> {
        Box::pin(ready(Ok(Reply { head: Head::default(), body: false })))
    }
}
