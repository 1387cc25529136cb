//! Stays inside published limits, for each tenant and in all: `cargo run -p tidegate --example valve`.
//!
//! A provider of language models counts requests and tokens, and says how long to wait when it has had enough. A job
//! spends in every rule or in none; what it really used is settled when the answer is in; and a pause stops every
//! worker of the fleet.

use std::time::Duration;

use tidegate::{Concurrency, Job, MemoryStore, Outcome, Rule, Valve};

const MINUTE: Duration = Duration::from_secs(60);

#[tokio::main]
pub(crate) async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let valve = Valve::builder("llm-provider")
        .rule(Rule::token_bucket(500, MINUTE).named("requests"))
        .rule(Rule::sliding_window(200_000, MINUTE).named("tokens"))
        .rule(Rule::fixed_window(3, MINUTE).scoped("tenant"))
        .concurrency(Concurrency::Global(40))
        .build(MemoryStore::new())?;

    for (question, tenant) in ["acme", "acme", "acme", "acme", "umbrella", "umbrella"].iter().enumerate() {
        let job = Job::new().scope("tenant", *tenant).cost("tokens", 1_800).timeout(Duration::from_secs(2));
        let permit = match valve.acquire(job).await {
            Ok(permit) => permit,
            Err(error) => {
                println!("question {question} of {tenant}: {error}");
                continue;
            }
        };
        match call_provider(question).await {
            Ok(reply) => {
                println!("question {question} of {tenant}: {} tokens instead of 1800", reply.total_tokens);
                permit.settle("tokens", reply.total_tokens).release(Outcome::Success);
            }
            Err(TooManyRequests { retry_after }) => {
                println!("question {question} of {tenant}: everyone waits for {retry_after:?}");
                valve.pause(retry_after).await?; // every worker of the fleet stops now
                permit.release(Outcome::Throttled);
            }
        }
    }

    println!("{} of 6 questions were asked", valve.stats().granted);
    Ok(())
}

struct Reply {
    total_tokens: u64,
}

struct TooManyRequests {
    retry_after: Duration,
}

/// Stands in for the provider: at one of the questions it has had enough.
async fn call_provider(question: usize) -> Result<Reply, TooManyRequests> {
    match question {
        2 => Err(TooManyRequests { retry_after: Duration::from_millis(300) }),
        _ => Ok(Reply { total_tokens: 1_000 + 17 * question as u64 }),
    }
}
