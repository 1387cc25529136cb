//! The random model test passes on the model, and finds and shrinks what differs.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

mod common;

use common::{Mutant, Mutation};
use tidegate_core::{Capabilities, Capability};
use tidegate_testkit::{
    Subject, block_on,
    model_test::{Difference, Options, Stats, run, run_blocking},
    reference::ModelStore,
};

#[track_caller]
fn agreed(run: Result<Stats, Difference>) -> Stats {
    run.unwrap_or_else(|difference| panic!("{difference}"))
}

#[test]
fn st_16_the_model_does_as_the_model() {
    for seed in 0..2 {
        let options = Options::seeded(seed).operations(20_000).comparing_pushes();
        let factory = || ModelStore::default().without(Capability::Sync).subject();
        let stats = agreed(run_blocking(&factory, &options));
        assert_eq!(stats.operations, 20_000);
        // What is rare in the world is common here.
        let kinds = [
            "acquire",
            "acquire_scoped",
            "exchange",
            "release",
            "renew",
            "settle",
            "observe",
            "hand_over",
            "pause",
        ];
        for kind in kinds.into_iter().chain(["evict", "set_limit", "forget", "lose", "step_back", "snapshot"])
        {
            assert!(stats.by_kind.get(kind).is_some_and(|times| *times > 10), "{kind}: {stats:?}");
        }
        assert!(stats.granted > 2_000 && stats.denied > 1_000 && stats.refused > 500, "{stats:?}");
    }
}

#[test]
fn st_16_circuits_come_to_every_answer_that_there_is() {
    let kinds = [
        "report dropped",
        "report counted",
        "report opened",
        "strategy opened",
        "strategy did not open",
        "no recent results",
        "recent results",
        "leads",
        "follows",
        "renewed",
        "leads no more",
        "resigned",
        "nothing to resign",
        "trial stale",
        "trial counted",
        "trial closed",
        "idle probe stale",
        "idle probe counted",
        "idle probe opened",
        "check stale",
        "check counted",
        "check closed",
        "scheduled",
        "nothing to schedule",
        "trial granted",
        "trial too early",
        "trial unscheduled",
        "trials full",
        "trial not offered",
        "trial renewed",
        "trial lost",
        "gave back",
        "nothing to give back",
    ];
    for seed in 20..22 {
        let options = Options::seeded(seed).operations(30_000).comparing_pushes();
        let stats = agreed(run_blocking(&|| ModelStore::default().subject(), &options));
        println!("seed {seed}: {:#?}", stats.circuit);
        for kind in kinds {
            assert!(
                stats.circuit.get(kind).is_some_and(|times| *times >= 5),
                "seed {seed}, {kind}: {stats:?}"
            );
        }
        assert_eq!(stats.circuit.len(), kinds.len(), "{stats:?}");
        assert!(stats.by_kind.get("set_circuit").is_some_and(|times| *times > 50), "{stats:?}");
    }
}

#[test]
fn st_14_the_synchronous_path_does_as_the_model() {
    let options = Options::seeded(3).operations(20_000).comparing_pushes();
    let stats = agreed(run_blocking(&|| ModelStore::default().subject(), &options));
    assert!(stats.by_kind.get("acquire_one").is_some_and(|times| *times > 100), "{stats:?}");
}

#[test]
fn st_19_the_model_does_as_the_model_whatever_is_declared() {
    let none = Capabilities::NONE;
    let leases = none.with(Capability::Leases);
    let all: Capabilities = Capability::ALL.into_iter().filter(|it| *it != Capability::Sync).collect();
    let declared = [
        none,
        leases,
        leases.with(Capability::Adaptive),
        none.with(Capability::Scoped),
        none.with(Capability::Corrections).with(Capability::Exchange),
        all.without(Capability::Exchange),
        all.without(Capability::Epoch),
        all.without(Capability::Wake),
    ];
    for (seed, declared) in (0..).zip(declared) {
        let options = Options::seeded(seed).operations(2_000);
        let factory = || ModelStore::default().declaring(declared).subject();
        run_blocking(&factory, &options).unwrap_or_else(|difference| panic!("{declared:?}: {difference}"));
    }
}

#[test]
fn st_16_the_same_seed_draws_the_same() {
    let stats = |seed| agreed(run_blocking(&plain, &Options::seeded(seed).operations(500)));
    assert_eq!(stats(7), stats(7));
    assert_ne!(stats(7), stats(8));
}

fn plain() -> Subject {
    ModelStore::default().without(Capability::Sync).subject()
}

#[test]
fn st_16_steps_back_and_losses_can_be_left_out() {
    let options = Options::seeded(9).operations(3_000).without_steps_back().without_losses();
    let stats = agreed(run_blocking(&plain, &options));
    for kind in ["step_back", "lose", "forget"] {
        assert_eq!(stats.by_kind.get(kind), None, "{stats:?}");
    }
}

#[test]
fn st_16_a_difference_is_found_and_shrunk() {
    let differ = [
        (Mutation::HintTooLarge, 3, "hint_ms"),
        (Mutation::NeverSettles, 6, ""),
        (Mutation::ShortensPauses, 3, "left_ms"),
        (Mutation::GrantsInAPause, 4, ""),
        (Mutation::FencesThatDoNotGrow, 4, "the fence"),
        (Mutation::RunsRepeatsAgain, 4, ""),
        (Mutation::ReleasesWhateverIsInTheSlot, 5, "held"),
        (Mutation::LendsEverySlice, 6, ""),
        (Mutation::TakesAnyPolicy, 3, ""),
        (Mutation::OtherStateOnTheSynchronousPath, 4, ""),
        (Mutation::CountsReportsAgain, 4, "Counted"),
        (Mutation::GrantsATrialForEachAnswer, 8, ""),
        (Mutation::BelievesWhoeverChecked, 5, ""),
        (Mutation::CountsWhatIsOld, 3, ""),
        (Mutation::TakesAnyCircuitPolicy, 3, ""),
        (Mutation::ProbesAreNeverPutOff, 6, ""),
        (Mutation::PanicsOnAnEmptyRequest, 2, "it panicked: an empty request"),
    ];
    for (mutation, most, contains) in differ {
        let options = Options::seeded(11).operations(20_000);
        let run = run_blocking(&|| Mutant::subject(mutation), &options);
        let difference = run.map(|stats| panic!("{mutation:?} was not found: {stats:?}")).unwrap_err();
        println!("{mutation:?}: {difference}\n");
        assert_eq!(difference.seed, 11);
        assert!(difference.operations.len() <= most, "{mutation:?}: {difference}");
        assert!(difference.drawn >= difference.operations.len(), "{mutation:?}: {difference}");
        let told = format!("{} {}", difference.model, difference.store);
        assert!(told.contains(contains), "{mutation:?}: {difference}");
    }
}

#[test]
fn st_16_what_is_shrunk_is_bounded() {
    let options = Options::seeded(11).operations(5_000).replays(0);
    let difference = run_blocking(&|| Mutant::subject(Mutation::HintTooLarge), &options).unwrap_err();
    assert_eq!(difference.operations.len(), difference.drawn);
}

#[test]
fn st_16_without_a_clock_it_is_not_held() {
    let unheld = block_on(run(&|| Subject::new(ModelStore::default()), &Options::seeded(1))).unwrap_err();
    assert!(unheld.to_string().contains("no hook clock"), "{unheld}");
    let factory = || -> Subject { panic!("no server") };
    let unopened = run_blocking(&factory, &Options::seeded(1)).unwrap_err();
    assert!(unopened.to_string().contains("no store could be opened: no server"), "{unopened}");
}
