//! Circuits of all kinds, with short times, so that they open and close often.

use std::{sync::Arc, time::Duration};

use tidegate_core::{
    CircuitPolicy, Invalid,
    circuit::{Backoff, CircuitDraft, Recovery, Strategy},
    time::LONGEST,
};

use super::ms;

/// An id, and what its workers offer.
type Offered = (&'static str, Vec<Arc<CircuitPolicy>>);

/// The ids of circuits, each with what its workers offer: mostly higher and higher revisions.
pub(super) fn all() -> Result<Vec<Offered>, Invalid> {
    let checked = |drafts: &[CircuitDraft]| -> Result<Vec<_>, Invalid> {
        drafts.iter().map(|draft| draft.check().map(Arc::new)).collect()
    };
    Ok(vec![
        ("plain", checked(&consecutive())?),
        ("adaptive", checked(&count())?),
        ("sampling", checked(&sampling())?),
        ("custom", checked(&custom())?),
        ("huge", checked(&huge())?),
    ])
}

const fn health(idle_ms: Option<u64>) -> Recovery {
    let idle_interval = match idle_ms {
        Some(ms) => Some(Duration::from_millis(ms)),
        None => None,
    };
    Recovery::HealthCheck { check_timeout: Duration::from_millis(20), idle_interval }
}

const fn half_open(permits: u32, ttl_ms: u64) -> Recovery {
    Recovery::HalfOpen { permits, permit_ttl: Duration::from_millis(ttl_ms) }
}

fn growing(initial_ms: u64, multiplier: f64, max_ms: u64) -> Backoff {
    Backoff::Exponential { initial: ms(initial_ms), multiplier, max: Some(ms(max_ms)) }
}

fn consecutive() -> [CircuitDraft; 6] {
    let rows = |threshold| Strategy::Consecutive { threshold };
    let draft = CircuitPolicy::draft;
    [
        draft(rows(4), health(Some(120)), Backoff::Constant(ms(40))).leader_ttl(ms(150)),
        // The same revision, and another policy.
        draft(rows(4), health(Some(121)), Backoff::Constant(ms(40))).leader_ttl(ms(150)),
        draft(rows(2), health(Some(100)), growing(7, 1.7, 90)).leader_ttl(ms(100)).revision(1),
        draft(rows(3), half_open(2, 70), growing(7, 1.7, 90)).leader_ttl(ms(100)).revision(2),
        draft(
            Strategy::Count { threshold: 0.4, size: 6, minimum_calls: 3 },
            health(Some(300)),
            Backoff::Custom,
        )
        .leader_ttl(ms(200))
        .revision(3),
        draft(rows(1), health(None), Backoff::Constant(ms(0))).revision(4),
    ]
}

fn count() -> [CircuitDraft; 5] {
    let of = |threshold, size, minimum_calls| Strategy::Count { threshold, size, minimum_calls };
    let draft = CircuitPolicy::draft;
    [
        draft(of(0.5, 10, 4), half_open(2, 300), growing(30, 1.5, 100)).min_reporters(2),
        draft(of(0.5, 10, 5), half_open(2, 300), growing(30, 1.5, 100)).min_reporters(2),
        draft(of(0.75, 10, 4), half_open(3, 90), Backoff::Constant(ms(25))).revision(1),
        draft(of(0.333_333, 25, 9), half_open(1, 40), Backoff::Custom).min_reporters(3).revision(2),
        draft(of(1.0, 3, 1), health(Some(150)), growing(1, 1.001, 50)).leader_ttl(ms(120)).revision(3),
    ]
}

fn sampling() -> [CircuitDraft; 5] {
    let of = |threshold, duration, minimum_calls| Strategy::Sampling {
        threshold,
        duration: ms(duration),
        minimum_calls,
    };
    let draft = CircuitPolicy::draft;
    [
        draft(of(0.5, 200, 4), health(None), Backoff::Custom).leader_ttl(ms(180)),
        draft(of(0.5, 200, 4), half_open(1, 30), Backoff::Custom).leader_ttl(ms(180)),
        draft(of(0.25, 200, 6), health(Some(110)), growing(10, 2.0, 60)).leader_ttl(ms(180)).revision(1),
        draft(of(0.4, 30_000, 40), health(Some(900)), Backoff::Constant(ms(20))).min_reporters(2).revision(2),
        draft(of(0.000_001, 5, 1), half_open(2, 50), growing(5, 3.0, 45)).min_reporters(2).revision(3),
    ]
}

fn custom() -> [CircuitDraft; 4] {
    let draft = CircuitPolicy::draft;
    [
        draft(Strategy::Custom { keep: 12 }, half_open(3, 80), Backoff::Custom),
        draft(Strategy::Custom { keep: 13 }, half_open(3, 80), Backoff::Custom),
        draft(Strategy::Custom { keep: 5 }, half_open(1, 30), Backoff::Constant(ms(15)))
            .min_reporters(2)
            .revision(1),
        draft(Strategy::Custom { keep: 5 }, health(Some(130)), Backoff::Custom)
            .leader_ttl(ms(110))
            .revision(2),
    ]
}

/// Numbers at their bounds.
fn huge() -> [CircuitDraft; 4] {
    let day = Duration::from_secs(86_400);
    let many = Strategy::Sampling { threshold: 0.333_333, duration: LONGEST, minimum_calls: 3_000_000 };
    let draft = CircuitPolicy::draft;
    [
        draft(
            many,
            Recovery::HealthCheck { check_timeout: LONGEST, idle_interval: Some(LONGEST) },
            Backoff::Exponential { initial: ms(3), multiplier: 1_000.0, max: None },
        )
        .leader_ttl(day),
        draft(
            Strategy::Count { threshold: 0.9, size: 1_000, minimum_calls: 1_000 },
            Recovery::HalfOpen { permits: 1_000, permit_ttl: day },
            Backoff::Constant(ms(10)),
        )
        .min_reporters(u32::MAX)
        .revision(1),
        draft(Strategy::Consecutive { threshold: 1_000 }, health(Some(100)), Backoff::Constant(LONGEST))
            .leader_ttl(day)
            .revision(2_147_483_646),
        draft(Strategy::Custom { keep: 1_000 }, health(Some(100)), Backoff::Constant(ms(50)))
            .revision(2_147_483_647),
    ]
}
