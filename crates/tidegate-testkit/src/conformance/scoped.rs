//! Jobs with identities.
//!
//! Spec: ST-10, ST-11.

use tidegate_core::{Capability, Denial, Identity, Name, ScopedJob, rule::Rule};

use super::{
    Failure, Need, ensure,
    lab::{
        DAY, Lab, Worker, fixed, jobs, key, ms, name, policy, refused, ruled, scoped_job, scoped_jobs, slots,
    },
    same, trials_of_rules,
};
use crate::subject::Hook;

const SCOPED: Need = Need::Has(Capability::Scoped);
const LEASES: Need = Need::Has(Capability::Leases);
const OPERATORS: Need = Need::Has(Capability::Operators);
const CLOCK: Need = Need::Hook(Hook::Clock);

trials_of_rules! {
    "ST-10 every job is answered exactly once" [SCOPED] => st_10_exactly_once;
    "ST-10 a denial spends nothing, and later jobs are still tried" [SCOPED] => st_10_later_jobs;
    "ST-10 each denial has its own hint and its own rule" [SCOPED, CLOCK] => st_10_hints;
    "ST-10 a hint is exact for each identity" [SCOPED, CLOCK] => st_10_exact_hints;
    "ST-10 each denial has its own lease_blocked" [SCOPED, LEASES] => st_10_lease_blocked;
    "ST-10 a job without a slot spends nothing" [SCOPED, LEASES] => st_10_slots_spend_nothing;
    "ST-10 a pause denies every job" [SCOPED] => st_10_pause;
    "ST-10 one identity for every scope, no more and no less" [SCOPED] => st_10_scopes;
    "ST-10 a scoped rule is never passed by without identities" [SCOPED] => st_10_unscoped_acquire;
    "ST-10 repeated identities see the grants made earlier" [SCOPED] => st_10_repeated;
    "ST-10 the whole request is checked before anything is changed" [SCOPED] => st_10_checked_first;
    "ST-10 takes 1 to 128 jobs" [SCOPED] => st_10_how_many;
    "ST-10 16 rules and 128 jobs in one request" [SCOPED] => st_10_largest;
    "ST-10 rules without a scope are shared by all identities" [SCOPED] => st_10_shared_rules;
    "ST-10 two scopes hold at once" [SCOPED] => st_10_two_scopes;
    "ST-10 a revision carries the levels of identities over" [SCOPED] => st_10_revision;
    "ST-11 identities at rest are forgotten" [SCOPED, OPERATORS, CLOCK] => st_11_forgotten;
    "ST-11 what is forgotten was at rest" [SCOPED, CLOCK] => st_11_at_rest;
    "ST-11 identities are any text, and never collide" [SCOPED] => st_11_collide;
}

/// How many of these identities get a job of cost 1.
pub(super) async fn granted_to(
    worker: &Worker,
    scope: &str,
    identities: &[String],
) -> Result<usize, Failure> {
    let jobs = identities.iter().map(|identity| scoped_job(1, &[(scope, identity.as_str())]));
    let request = scoped_jobs(None, jobs.collect::<Result<_, _>>()?);
    Ok(worker.ask_scoped(&request).await?.body.grants.len())
}

/// Jobs of these costs, each for a tenant.
fn tenants(jobs: &[(u64, &str)]) -> Result<Vec<ScopedJob>, Failure> {
    jobs.iter().map(|(cost, tenant)| scoped_job(*cost, &[("tenant", *tenant)])).collect()
}

/// Which of the jobs were granted, and why the others were not.
struct Came {
    granted: Vec<usize>,
    denied: Vec<(usize, Denial)>,
}

async fn ask(worker: &Worker, jobs: &[(u64, &str)]) -> Result<Came, Failure> {
    let body = worker.ask_scoped(&scoped_jobs(None, tenants(jobs)?)).await?.body;
    let mut granted: Vec<usize> = body.grants.iter().map(|grant| grant.index).collect();
    granted.sort_unstable();
    let mut denied: Vec<_> = body.denied.into_iter().map(|denied| (denied.index, denied.denial)).collect();
    denied.sort_unstable_by_key(|(index, _)| *index);
    Ok(Came { granted, denied })
}

fn per_tenant(limit: u64) -> tidegate_core::policy::Draft {
    ruled(Rule::fixed_window(limit, ms(DAY)).scoped("tenant"))
}

async fn st_10_exactly_once(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&per_tenant(2))?;
    // The answer itself is checked as it is taken: each index once, among grants or denials.
    let came = ask(&worker, &[(1, "a"), (1, "a"), (1, "a"), (1, "b"), (2, "c"), (1, "a"), (0, "a")]).await?;
    same(came.granted, vec![0, 1, 3, 4, 6], "the jobs granted")?;
    same(came.denied.iter().map(|(index, _)| *index).collect(), vec![2, 5], "the jobs denied")
}

async fn st_10_later_jobs(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&per_tenant(5))?;
    let came = ask(&worker, &[(3, "a"), (3, "a"), (2, "a"), (1, "a"), (5, "b")]).await?;
    same(came.granted, vec![0, 2, 4], "the jobs granted: a cheaper one fits behind one that does not")?;
    let came = ask(&worker, &[(1, "a"), (1, "b"), (5, "c")]).await?;
    same(came.granted, vec![2], "the jobs granted when two tenants have spent all")
}

async fn st_10_hints(lab: &Lab) -> Result<(), Failure> {
    let rules = policy()
        .rule(Rule::token_bucket(10, ms(10_000)).scoped("tenant").named("bucket"))
        .rule(Rule::fixed_window(12, ms(60_000)).scoped("tenant").named("window"));
    let worker = lab.worker(&rules)?;
    let came = ask(&worker, &[(10, "a"), (10, "b"), (1, "a"), (2, "a"), (1, "b"), (1, "c")]).await?;
    same(came.granted, vec![0, 1, 5], "the jobs granted")?;
    let hints: Vec<(usize, u64)> =
        came.denied.iter().map(|(index, denial)| (*index, denial.hint_ms)).collect();
    same(hints, vec![(2, 1_000), (3, 2_000), (4, 1_000)], "the hints")?;
    for (index, denial) in came.denied {
        same(denial.rule, Some(key("named:bucket")), format_args!("the rule that denied job {index}"))?;
        ensure(!denial.lease_blocked, "a rate denial is not for slots")?;
    }
    lab.advance(5_000).await;
    let came = ask(&worker, &[(5, "a"), (2, "a"), (6, "b")]).await?;
    same(came.granted, vec![1], "the jobs granted after 5 s")?;
    for (index, denial) in came.denied {
        // For b the bucket denies as well, and would let it pass sooner.
        same(denial.hint_ms, 55_000, format_args!("the hint of job {index}"))?;
        same(
            denial.rule,
            Some(key("named:window")),
            format_args!("the rule that set the hint of job {index}"),
        )?;
    }
    Ok(())
}

async fn st_10_exact_hints(lab: &Lab) -> Result<(), Failure> {
    let rules = [
        ("bucket", Rule::token_bucket(7, ms(10_000)).burst(3)),
        ("fixed", Rule::fixed_window(3, ms(10_000))),
        ("sliding", Rule::sliding_window(3, ms(10_000))),
    ];
    for (id, rule) in rules {
        let worker = lab.worker_of(id, &ruled(rule.scoped("tenant")))?;
        for tenant in ["a", "b"] {
            same(ask(&worker, &[(3, tenant)]).await?.granted, vec![0], "a level that is full")?;
            lab.advance(777).await;
        }
        for tenant in ["a", "b", "a"] {
            let came = ask(&worker, &[(2, tenant)]).await?;
            let Some((_, denial)) = came.denied.first() else { continue };
            lab.advance(denial.hint_ms - 1).await;
            let early = ask(&worker, &[(2, tenant)]).await?;
            same(early.granted.len(), 0, format_args!("{id}: grants a millisecond before the hint"))?;
            lab.advance(1).await;
            let late = ask(&worker, &[(2, tenant)]).await?;
            same(
                late.granted,
                vec![0],
                format_args!("{id}: grants after the hint of {} ms", denial.hint_ms),
            )?;
        }
    }
    Ok(())
}

async fn st_10_lease_blocked(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(2).rule(Rule::fixed_window(2, ms(DAY)).scoped("tenant")))?;
    let request = scoped_jobs(None, tenants(&[(2, "a"), (1, "a"), (1, "b"), (1, "b"), (2, "b"), (1, "c")])?);
    let reply = worker.ask_scoped(&request).await?;
    let tokens: Vec<_> = reply.body.grants.iter().filter_map(|grant| grant.grant.lease).collect();
    slots(&tokens, &[0, 1], "slots of the two grants")?;
    let mut blocked: Vec<_> =
        reply.body.denied.iter().map(|denied| (denied.index, denied.denial.lease_blocked)).collect();
    blocked.sort_unstable();
    same(
        blocked,
        // a has spent all, and b has 1 left: only for slots is a job of cost 1 of b, and one of c, denied.
        vec![(1, false), (3, true), (4, false), (5, true)],
        "which denials are for slots",
    )?;
    for denied in &reply.body.denied {
        same(
            denied.denial.rule.is_none(),
            denied.denial.lease_blocked,
            format_args!("whether the denial of job {} names no rule", denied.index),
        )?;
    }
    Ok(())
}

async fn st_10_slots_spend_nothing(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&fixed(1).rule(Rule::fixed_window(3, ms(DAY)).scoped("tenant")))?;
    let reply = worker.ask_scoped(&scoped_jobs(None, tenants(&[(1, "a"), (2, "a"), (3, "b")])?)).await?;
    let tokens: Vec<_> = reply.body.grants.iter().filter_map(|grant| grant.grant.lease).collect();
    same(tokens.len(), 1, "grants under a limit of 1")?;
    worker.release(&tokens).await?;
    let came = ask(&worker, &[(3, "b")]).await?;
    same(came.granted, vec![0], "all of a level whose job had no slot")
}

async fn st_10_pause(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&per_tenant(2))?;
    worker.pause(DAY).await?;
    let reply = worker.ask_scoped(&scoped_jobs(None, tenants(&[(1, "a"), (0, "b"), (1, "b")])?)).await?;
    same((reply.body.grants.len(), reply.body.denied.len()), (0, 3), "grants and denials during a pause")?;
    ensure((1..=DAY).contains(&reply.head.paused_ms), "the rest of the pause is in the result")?;
    for denied in &reply.body.denied {
        same(denied.denial.hint_ms, reply.head.paused_ms, "the hint in a pause")?;
    }
    worker.resume().await?;
    same(ask(&worker, &[(2, "a"), (2, "b")]).await?.granted, vec![0, 1], "the jobs granted after it")
}

async fn st_10_scopes(lab: &Lab) -> Result<(), Failure> {
    let rules = policy()
        .rule(Rule::fixed_window(2, ms(DAY)).scoped("tenant").named("a"))
        .rule(Rule::fixed_window(2, ms(DAY)).scoped("model").named("b"));
    let worker = lab.worker(&rules)?;
    let good = || scoped_job(1, &[("tenant", "x"), ("model", "m")]);
    let wrong = [
        ("no identity", scoped_job(1, &[])?),
        ("one of two missing", scoped_job(1, &[("tenant", "x")])?),
        ("the other missing", scoped_job(1, &[("model", "m")])?),
        ("one too many", scoped_job(1, &[("tenant", "x"), ("model", "m"), ("region", "eu")])?),
        ("an unknown one instead", scoped_job(1, &[("tenant", "x"), ("region", "eu")])?),
        ("one twice", scoped_job(1, &[("tenant", "x"), ("tenant", "y"), ("model", "m")])?),
        ("one twice and the other missing", scoped_job(1, &[("tenant", "x"), ("tenant", "x")])?),
    ];
    for (what, job) in wrong {
        let request = scoped_jobs(None, vec![good()?, job]);
        refused(worker.ask_scoped(&request).await, "invalid_options", what)?;
    }
    let request =
        scoped_jobs(None, vec![good()?, scoped_job(1, &[("model", "m"), ("tenant", "x")])?, good()?]);
    let reply = worker.ask_scoped(&request).await?;
    same(reply.body.grants.len(), 2, "grants of a level that the refused requests have left whole")
}

async fn st_10_unscoped_acquire(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&per_tenant(2))?;
    refused(worker.ask(&jobs(&[1])).await, "invalid_options", "an acquire without identities")?;
    refused(worker.ask(&jobs(&[0])).await, "invalid_options", "an acquire of cost 0 without identities")?;
    let unscoped = lab.worker_of("trial2", &ruled(Rule::fixed_window(2, ms(DAY))))?;
    let request = scoped_jobs(None, vec![scoped_job(1, &[])?; 3]);
    same(
        unscoped.ask_scoped(&request).await?.body.grants.len(),
        2,
        "grants of jobs without scopes, and rules without",
    )
}

async fn st_10_repeated(lab: &Lab) -> Result<(), Failure> {
    let rules = [
        ("bucket", Rule::token_bucket(3, ms(365 * DAY))),
        ("fixed", Rule::fixed_window(3, ms(DAY))),
        ("sliding", Rule::sliding_window(3, ms(DAY))),
    ];
    for (id, rule) in rules {
        let worker = lab.worker_of(id, &ruled(rule.scoped("tenant")))?;
        let came = ask(&worker, &[(1, "a"), (1, "b"), (1, "a"), (1, "a"), (1, "a"), (1, "b")]).await?;
        same(came.granted, vec![0, 1, 2, 3, 5], "the jobs granted")?;
    }
    Ok(())
}

async fn st_10_checked_first(lab: &Lab) -> Result<(), Failure> {
    let rules = policy()
        .rule(Rule::fixed_window(4, ms(DAY)).scoped("tenant").named("a"))
        .rule(Rule::token_bucket(9, ms(365 * DAY)).named("b"));
    let worker = lab.worker(&rules)?;
    let good = || scoped_job(4, &[("tenant", "x")]);
    let too_dear = scoped_jobs(None, vec![good()?, scoped_job(5, &[("tenant", "y")])?]);
    let error = refused(worker.ask_scoped(&too_dear).await, "cost_exceeds_limit", "a cost above the limit")?;
    ensure(
        matches!(&error, tidegate_core::StoreError::CostExceedsLimit { index: 1, cost: 5, most: 4, .. }),
        format_args!("job 1, cost 5 and at most 4 are named: {error}"),
    )?;
    let unknown_class = scoped_jobs(Some(&name("z")?), vec![good()?]);
    refused(worker.ask_scoped(&unknown_class).await, "invalid_options", "an unknown class")?;
    let mut unknown_rule = good()?;
    unknown_rule.costs.named.push((name("c")?, 1));
    refused(
        worker.ask_scoped(&scoped_jobs(None, vec![good()?, unknown_rule])).await,
        "invalid_options",
        "a cost in an unknown rule",
    )?;
    let reply =
        worker.ask_scoped(&scoped_jobs(None, vec![good()?, scoped_job(4, &[("tenant", "y")])?])).await?;
    same(reply.body.grants.len(), 2, "grants of levels that the refused requests have left whole")
}

async fn st_10_how_many(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&per_tenant(200))?;
    for wrong in [0, 129, 512] {
        let request = scoped_jobs(None, vec![scoped_job(1, &[("tenant", "a")])?; wrong]);
        refused(worker.ask_scoped(&request).await, "invalid_options", format_args!("{wrong} jobs"))?;
    }
    let request = scoped_jobs(None, vec![scoped_job(1, &[("tenant", "a")])?; 128]);
    same(worker.ask_scoped(&request).await?.body.grants.len(), 128, "grants of 128 jobs")?;
    same(worker.ask_scoped(&request).await?.body.grants.len(), 72, "grants of what is left")
}

/// The names of 16 rules, and as many scopes.
fn sixteen() -> impl Iterator<Item = (u64, String)> {
    (0..16).map(|number| (number, format!("scope{number}")))
}

async fn st_10_largest(lab: &Lab) -> Result<(), Failure> {
    let draft = sixteen().fold(policy(), |draft, (number, scope)| {
        let rule = match number % 3 {
            0 => Rule::token_bucket(130 + number, ms(365 * DAY)),
            1 => Rule::fixed_window(130 + number, ms(DAY)),
            _ => Rule::sliding_window(130 + number, ms(DAY)),
        };
        draft.rule(rule.named(scope.clone()).scoped(scope))
    });
    let worker = lab.worker(&draft)?;
    let scopes: Vec<(Name, Identity)> = sixteen()
        .map(|(_, scope)| Ok((name(&scope)?, Identity::new(format!("one of {scope}"))?)))
        .collect::<Result<_, Failure>>()?;
    let job = ScopedJob { costs: tidegate_core::Costs::default(), scopes };
    let request = scoped_jobs(None, vec![job; 128]);
    same(worker.ask_scoped(&request).await?.body.grants.len(), 128, "grants of 128 jobs under 16 rules")?;
    let reply = worker.ask_scoped(&request).await?;
    same(reply.body.grants.len(), 2, "grants of the tightest of 16 rules")?;
    let reply = worker.ask_scoped(&request).await?;
    same(reply.body.grants.len(), 0, "grants after that")
}

async fn st_10_shared_rules(lab: &Lab) -> Result<(), Failure> {
    let rules = policy()
        .rule(Rule::fixed_window(3, ms(DAY)).scoped("tenant").named("each"))
        .rule(Rule::fixed_window(5, ms(DAY)).named("all"));
    let worker = lab.worker(&rules)?;
    let came = ask(&worker, &[(3, "a"), (1, "a"), (3, "b"), (2, "b"), (1, "c")]).await?;
    same(came.granted, vec![0, 3], "the jobs granted")?;
    let rules: Vec<_> = came.denied.into_iter().map(|(index, denial)| (index, denial.rule)).collect();
    let (each, all) = (Some(key("named:each")), Some(key("named:all")));
    same(rules, vec![(1, each), (2, all.clone()), (4, all)], "the rules that denied the others")
}

async fn st_10_two_scopes(lab: &Lab) -> Result<(), Failure> {
    let rules = policy()
        .rule(Rule::fixed_window(2, ms(DAY)).scoped("tenant").named("a"))
        .rule(Rule::fixed_window(3, ms(DAY)).scoped("model").named("b"));
    let worker = lab.worker(&rules)?;
    let pairs = [("x", "m"), ("x", "m"), ("x", "n"), ("y", "m"), ("y", "m"), ("y", "n"), ("m", "x")];
    let jobs = pairs.iter().map(|(tenant, model)| scoped_job(1, &[("tenant", *tenant), ("model", *model)]));
    let reply = worker.ask_scoped(&scoped_jobs(None, jobs.collect::<Result<_, _>>()?)).await?;
    let mut granted: Vec<usize> = reply.body.grants.iter().map(|grant| grant.index).collect();
    granted.sort_unstable();
    same(granted, vec![0, 1, 3, 5, 6], "the jobs granted")
}

async fn st_10_revision(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&per_tenant(5))?;
    same(ask(&worker, &[(4, "a"), (1, "b")]).await?.granted, vec![0, 1], "the jobs granted at first")?;
    let newer = lab.worker(&per_tenant(6).revision(1))?;
    let came = ask(&newer, &[(3, "a"), (2, "a"), (5, "b"), (6, "c")]).await?;
    same(came.granted, vec![1, 2, 3], "the jobs granted under a higher limit")?;
    let third = lab.worker(&per_tenant(9).revision(2))?;
    let came = ask(&third, &[(4, "a"), (3, "a"), (3, "c"), (9, "d")]).await?;
    same(came.granted, vec![1, 2, 3], "the jobs granted under the next one")
}

// ---- identities ----------------------------------------------------------------------------------------------------

async fn st_11_forgotten(lab: &Lab) -> Result<(), Failure> {
    let rules = [
        ("bucket", Rule::token_bucket(2, ms(1_000)).scoped("tenant")),
        ("fixed", Rule::fixed_window(2, ms(1_000)).scoped("tenant")),
        ("sliding", Rule::sliding_window(2, ms(1_000)).scoped("tenant")),
    ];
    for (id, rule) in rules {
        let worker = lab.worker_of(id, &ruled(rule))?;
        let identities: Vec<String> = (0..1_024).map(|number| format!("once {number}")).collect();
        for batch in identities.chunks(128) {
            same(granted_to(&worker, "tenant", batch).await?, batch.len(), "grants of identities seen once")?;
        }
        lab.advance(1_001).await;
        // A bounded step forgets a bounded number, so it takes some steps; by then one each is more than enough.
        let mut left = usize::MAX;
        for _ in 0..1_024 {
            let snapshot = worker.snapshot().await?;
            // A store that does not count them has nothing to show here.
            let kept = snapshot.iter().flat_map(|snapshot| &snapshot.rules);
            left = kept.map(|rule| rule.identities.unwrap_or(0)).sum();
            if left == 0 {
                break;
            }
            granted_to(&worker, "tenant", &["again".to_owned()]).await?;
            lab.advance(1_001).await;
        }
        same(left, 0, format_args!("identities of {id} that are remembered long after they came to rest"))?;
    }
    Ok(())
}

async fn st_11_at_rest(lab: &Lab) -> Result<(), Failure> {
    let worker = lab.worker(&ruled(Rule::token_bucket(10, ms(10_000)).scoped("tenant")))?;
    same(ask(&worker, &[(10, "a"), (1, "b")]).await?.granted, vec![0, 1], "the jobs granted at first")?;
    for second in 1..10 {
        lab.advance(1_000).await;
        // Others come and go meanwhile, and bring the store to sweep.
        let others: Vec<String> = (0..100).map(|number| format!("{second} {number}")).collect();
        granted_to(&worker, "tenant", &others).await?;
        let came = ask(&worker, &[(second + 1, "a"), (10, "b")]).await?;
        same(came.granted.first().copied(), (second == 1).then_some(1), "the jobs granted meanwhile")?;
        if second == 1 {
            // b was full again, and is empty now.
            same(came.denied.len(), 1, "the jobs denied")?;
        }
    }
    lab.advance(1_000).await;
    same(ask(&worker, &[(10, "a")]).await?.granted, vec![0], "all of a bucket that was left alone")
}

async fn st_11_collide(lab: &Lab) -> Result<(), Failure> {
    let odd = odd_identities();
    let rules = policy()
        .rule(Rule::fixed_window(1, ms(DAY)).scoped("tenant").named("a"))
        .rule(Rule::fixed_window(2, ms(DAY)).scoped("tenant").named("a.b"));
    for id in ["trial", "trial:a", "a"] {
        let worker = lab.worker_of(id, &rules)?;
        for batch in odd.chunks(128) {
            same(
                granted_to(&worker, "tenant", batch).await?,
                batch.len(),
                format_args!("first grants of {id}"),
            )?;
        }
        for batch in odd.chunks(128) {
            same(granted_to(&worker, "tenant", batch).await?, 0, format_args!("second grants of {id}"))?;
        }
    }
    Ok(())
}

/// Texts that a store could take for something else, or for each other.
fn odd_identities() -> Vec<String> {
    let mut odd: Vec<String> = [
        "a",
        "A",
        "a ",
        " a",
        "  a",
        "b",
        "a:b",
        "a:b:c",
        "a.b",
        "a/b",
        "a\\b",
        "a|b",
        "a,b",
        "a;b",
        "a b",
        "1:a",
        "2:ab",
        "named:a",
        "a:named",
        "{a}",
        "}a{",
        "{",
        "}",
        "\u{0}",
        "\u{0}a",
        "a\u{0}",
        "\n",
        "\r\n",
        "\t",
        "\u{1b}[0m",
        "'",
        "\"",
        "''",
        "'; drop table tidegate; --",
        "$1",
        "%s",
        "%",
        "_",
        "*",
        "?",
        "[a]",
        "^a$",
        "é",
        "e\u{301}",
        "ß",
        "ss",
        "🦀",
        "🦀🦀",
        "\u{202e}a",
        "\u{feff}a",
        "null",
        "nil",
        "true",
        "0",
        "00",
        "-1",
        "1e3",
        "9007199254740993",
        "9007199254740992",
        "tenant",
        "..",
        "../a",
    ]
    .map(str::to_owned)
    .to_vec();
    odd.push("x".repeat(256));
    odd.push("x".repeat(255));
    odd.push(format!("{}y", "x".repeat(255)));
    odd.push("é".repeat(128));
    odd.push("🦀".repeat(64));
    odd
}
