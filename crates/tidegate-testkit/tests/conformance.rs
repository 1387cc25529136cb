//! The kit passes on the model, whatever of it is declared, and says what it did not run.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};

use tidegate_core::{Capabilities, Capability};
use tidegate_testkit::{
    Kit, Subject,
    conformance::{Need, Verdict, trials},
    reference::ModelStore,
};

#[test]
fn st_16_the_model_passes_with_all_capabilities() {
    let report = Kit::new(|| ModelStore::default().subject()).run_blocking();
    println!("{report}");
    report.assert();
    // Only what needs damaged state, and what is for stores that declare less.
    let skipped: Vec<_> = report.skipped().filter(|(_, why)| !why.contains("declares")).collect();
    assert_eq!(skipped.len(), 1, "{skipped:?}");
}

#[test]
fn st_16_a_store_of_the_required_operations_alone_passes() {
    let report = Kit::new(|| ModelStore::default().declaring(Capabilities::NONE).subject()).run_blocking();
    println!("{report}");
    report.assert();
    let passed: BTreeSet<_> = report.passed().collect();
    for refused in
        ["leases", "scoped jobs", "corrections", "operators", "a subscription", "a synchronous path"]
    {
        let trial = passed.iter().find(|name| name.starts_with(&format!("ST-19 {refused} that")));
        assert!(trial.is_some(), "{refused}: {report}");
    }
}

#[test]
fn st_16_the_model_passes_without_any_one_capability() {
    for capability in Capability::ALL {
        let store = move || {
            let store = ModelStore::default().without(capability);
            // A limit that moves is a limit of leases.
            let store =
                if capability == Capability::Leases { store.without(Capability::Adaptive) } else { store };
            store.subject()
        };
        let report = Kit::new(store).run_blocking();
        assert!(report.is_ok(), "without {capability}: {report}");
    }
}

#[test]
fn st_16_what_needs_no_hook_passes_without_any() {
    // On a clock that stands still, which the kit does not know.
    let report = Kit::new(|| Subject::new(ModelStore::default())).run_blocking();
    report.assert();
    assert!(report.skipped().any(|(_, reason)| reason == "the subject has no hook clock"), "{report}");
    assert!(report.passed().count() > 150, "{report}");
}

#[test]
fn st_16_every_rule_has_a_trial_of_its_name() {
    let names: Vec<&str> = trials().iter().map(|trial| trial.name).collect();
    let rules: BTreeSet<&str> = trials().iter().map(|trial| trial.rule()).collect();
    // ST-16 is the kit itself.
    let expected = (1..=21).filter(|number| *number != 16).map(|number| format!("ST-{number}"));
    for rule in expected.chain((1..=5).map(|number| format!("RU-{number}"))) {
        assert!(rules.contains(rule.as_str()), "{rule} has no trial");
    }
    for case in [1, 2, 3, 5, 6, 14, 15, 23, 25, 26, 35] {
        assert!(rules.contains(format!("CASE-{case}").as_str()), "case {case} has no trial");
    }
    let mut times: BTreeMap<&str, usize> = BTreeMap::new();
    names.iter().for_each(|name| *times.entry(name).or_default() += 1);
    assert!(times.values().all(|times| *times == 1), "a name twice: {times:?}");
}

#[test]
fn st_16_a_rule_or_a_part_of_a_name_is_run_alone() {
    let names = |filter: &str| -> Vec<&'static str> {
        Kit::new(|| ModelStore::default().subject())
            .filter(filter)
            .trials()
            .iter()
            .map(|trial| trial.name)
            .collect()
    };
    assert!(!names("ST-1").is_empty() && names("ST-1").iter().all(|name| name.starts_with("ST-1 ")));
    assert!(names("hint").iter().all(|name| name.contains("hint")) && names("hint").len() > 5);
    let report = Kit::new(|| ModelStore::default().subject()).filter("no such trial").run_blocking();
    assert!(!report.is_ok(), "nothing that ran is nothing that passed");
}

#[test]
fn st_16_a_trial_can_be_excepted_with_a_reason() {
    let report = Kit::new(|| ModelStore::default().subject())
        .filter("ST-3")
        .except("1 to 512", "not yet")
        .run_blocking();
    let skipped: Vec<_> = report.skipped().collect();
    assert_eq!(skipped, [("ST-3 takes 1 to 512 jobs", "not yet")]);
    assert!(report.to_string().contains("skipped  ST-3 takes 1 to 512 jobs: not yet"), "{report}");
}

#[test]
fn st_16_a_factory_that_panics_fails_its_trials() {
    let report = Kit::new(|| -> Subject { panic!("no server") }).filter("ST-3").run_blocking();
    assert!(report.failed().all(|(_, why)| why == "no store could be opened: no server"), "{report}");
    assert_eq!(report.passed().count(), 0);
}

#[test]
#[should_panic(expected = "the store does not keep the contract")]
fn st_16_a_report_with_a_failure_fails_its_test() {
    Kit::new(|| -> Subject { panic!("no server") }).filter("ST-3").run_blocking().assert();
}

#[tokio::test]
async fn st_16_the_kit_runs_in_a_runtime_and_spawns_there() {
    let factory = || async {
        ModelStore::default().subject().run_all(|tasks| async {
            let spawned: Vec<_> = tasks.into_iter().map(tokio::spawn).collect();
            for task in spawned {
                task.await.expect("a task panicked");
            }
        })
    };
    Kit::new(factory).filter("ST-1").run().await.assert();
}

#[test]
fn st_16_needs_say_what_is_missing() {
    assert_eq!(Need::Has(Capability::Leases).to_string(), "the store does not declare leases");
    assert_eq!(Need::Lacks(Capability::Leases).to_string(), "the store declares leases");
    let lacking = Kit::new(|| ModelStore::default().declaring(Capabilities::NONE).subject())
        .filter("ST-9")
        .run_blocking();
    let all_skipped = lacking.results.iter().all(|result| matches!(result.verdict, Verdict::Skipped(_)));
    assert!(all_skipped, "{lacking}");
}
