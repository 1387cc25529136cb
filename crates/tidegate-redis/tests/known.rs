//! What a library knows of an id from an earlier call gives way to what another writer has written since, in the same
//! microsecond too.

// Helpers of tests are in no test by the lint's count.
#![allow(clippy::expect_used, clippy::panic, clippy::unwrap_used)]

use std::sync::Arc;

use tidegate_core::{
    Acquire, AcquireRequest, Acquired, Bound, Costs, DriverId, Exchange, ExchangeReply, Id, Job, Line,
    Member, OnSuperseded, Outcome, Owner, Policy, Release, Reply, Sequence, Store as _, StoreError, Token,
    store::Cause, time::Moment,
};
use tidegate_fleet::servers::redis::{Options, Redis};
use tidegate_redis::RedisStore;

/// A server, a store that uses its functions, and one that may not, on a clock that stands still.
struct Lab {
    server: Redis,
    library: RedisStore,
    scripts: RedisStore,
    member: Member,
}

impl Lab {
    fn start() -> Self {
        let server = Redis::standalone(&Options::new()).unwrap();
        let user = "ACL SETUSER tidegate on >a-secret ~* &* +@all -fcall -function";
        server.command(&user.split(' ').collect::<Vec<_>>()).unwrap();
        let open = |url: String| {
            let now = Moment::from_micros(1_700_000_000_000_000);
            RedisStore::builder(url).test_clock(move || now).lazy().unwrap()
        };
        let member = Member {
            id: Id::new("known").unwrap(),
            driver: DriverId(7),
            owner: Owner::new("owner").unwrap(),
            policy: Arc::new(Policy::draft().bound(Bound::Fixed(9)).check().unwrap()),
            on_superseded: OnSuperseded::Adopt,
            initial_limit: 1,
        };
        let library = open(server.url());
        let scripts = open(format!("redis://tidegate:a-secret@{}", server.addr()));
        Self { server, library, scripts, member }
    }

    async fn exchange(
        &self,
        store: &RedisStore,
        number: u64,
        released: &[Token],
        asked: usize,
    ) -> Result<Reply<ExchangeReply>, StoreError> {
        let jobs = vec![Job { costs: Costs::default() }; asked];
        let acquire = Acquire::Prefix(AcquireRequest { class: None, jobs, line: Line::default() });
        let release =
            |token: &Token| Release { token: *token, outcome: Outcome::Success, retry_after_ms: None };
        let exchange = Exchange {
            sequence: Some(Sequence { number, not_after: None }),
            releases: released.iter().map(release).collect(),
            acquires: if asked > 0 { vec![acquire] } else { Vec::new() },
            ..Exchange::default()
        };
        store.exchange(&self.member, &exchange).await
    }

    /// The leases that are granted, and how many are held then.
    async fn granted(
        &self,
        store: &RedisStore,
        number: u64,
        released: &[Token],
        asked: usize,
    ) -> (Vec<Token>, Option<u32>) {
        let reply = self.exchange(store, number, released, asked).await.unwrap();
        let leases = |acquired: &Result<Acquired, StoreError>| -> Vec<Token> {
            let acquired = acquired.as_ref().unwrap();
            acquired.grants().map(|(_, grant)| grant.lease.unwrap()).collect()
        };
        (reply.body.acquired.iter().flat_map(leases).collect(), reply.head.held)
    }
}

#[tokio::test]
async fn st_16_what_scripts_wrote_is_read_by_a_library_that_knows_the_id() {
    let lab = Lab::start();
    let (one, held) = lab.granted(&lab.library, 1, &[], 2).await;
    assert_eq!((one.len(), held), (2, Some(2)));
    let (two, held) = lab.granted(&lab.scripts, 2, &one[..1], 3).await;
    assert_eq!((two.len(), held), (3, Some(4)));
    // The lowest slot is free no more, and the others are those of two writers.
    let (three, held) = lab.granted(&lab.library, 3, &two[1..2], 1).await;
    assert_eq!((three.len(), held), (1, Some(4)));
    assert_eq!(three[0].slot, two[1].slot);
    assert!(three[0].fence > two[2].fence, "{three:?} after {two:?}");
    // Given back already, and all that is left.
    let (_, held) = lab.granted(&lab.library, 4, &one[..1], 0).await;
    assert_eq!(held, Some(4));
    let (_, held) = lab.granted(&lab.library, 5, &[one[1], two[0], two[2], three[0]], 0).await;
    assert_eq!(held, Some(0));
}

#[tokio::test]
async fn st_15_numbers_that_scripts_took_are_known_to_a_library_that_knows_earlier_ones() {
    let lab = Lab::start();
    lab.granted(&lab.library, 1, &[], 1).await;
    // They change nothing of the state, but that they were.
    lab.granted(&lab.scripts, 2, &[], 0).await;
    lab.granted(&lab.scripts, 3, &[], 0).await;
    let late = lab.exchange(&lab.library, 2, &[], 1).await;
    assert!(matches!(late, Err(StoreError::TooLate { number: 2, last: 3 })), "{late:?}");
    assert_eq!(lab.granted(&lab.library, 4, &[], 1).await.1, Some(2));
    let late = lab.exchange(&lab.library, 3, &[], 1).await;
    assert!(matches!(late, Err(StoreError::TooLate { number: 3, last: 4 })), "{late:?}");
}

#[tokio::test]
async fn case_17_what_was_damaged_is_not_taken_for_what_was_written() {
    for field in ["s", "d", "m0", "0", "c1"] {
        let lab = Lab::start();
        let (held, _) = lab.granted(&lab.library, 1, &[], 2).await;
        let mut connection = lab.server.connection().unwrap();
        let key = format!("tidegate:{{{}}}", lab.member.id);
        let raw: Vec<u8> = redis::cmd("HGET").arg(&key).arg(field).query(&mut connection).unwrap();
        assert!(!raw.is_empty(), "{field} is kept");
        let noise = vec![0; 7];
        redis::cmd("HSET").arg(&key).arg(field).arg(noise).exec(&mut connection).unwrap();
        let answer = lab.exchange(&lab.library, 2, &held[..1], 1).await;
        let is_corrupt = matches!(answer, Err(StoreError::Unavailable { cause: Cause::Corrupt, .. }));
        assert!(is_corrupt, "{field}: {answer:?}");
        // It begins anew.
        assert_eq!(lab.granted(&lab.library, 3, &[], 1).await.1, Some(1), "{field}");
    }
}

#[tokio::test]
async fn un_3_a_write_that_is_refused_clears_nothing() {
    let lab = Lab::start();
    for (store, user, number) in [(&lab.library, "default", 1), (&lab.scripts, "tidegate", 4)] {
        let (leases, held) = lab.granted(store, number, &[], 2).await;
        lab.server.command(&["ACL", "SETUSER", user, "-hset"]).unwrap();
        let refused = lab.exchange(store, number + 1, &leases[..1], 0).await;
        let is_corrupt = matches!(refused, Err(StoreError::Unavailable { cause: Cause::Corrupt, .. }));
        assert!(refused.is_err() && !is_corrupt, "{user}: {refused:?}");
        lab.server.command(&["ACL", "SETUSER", user, "+hset"]).unwrap();
        // Nor does anything stay that was not written.
        let (_, still) = lab.granted(store, number + 2, &[], 0).await;
        assert_eq!(still, held, "{user}");
    }
}
