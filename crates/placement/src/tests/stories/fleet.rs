//! The quota, the fleet's ceiling, and what coordinators publish (P17 to P19).

use std::time::Duration;

use ether_types::ClusterId;

use crate::bounds::Quota;
use crate::error::{Cause, LedgerError, OpenError, UnknownOutcome};
use crate::options::Options;
use crate::outcome::{Ceiling, Joined, Raised, Renewed, Reserved};
use crate::sql::Fault;
use crate::tests::stories::guard::meddle;
use crate::tests::world::{LONG, World, ask, boot, later, node, options, session};

fn quota(value: u64) -> Quota {
    Quota::new(value).unwrap()
}

/// A coordinator on a node of its own.
fn other(name: &str, ceiling: u64) -> Options {
    let mut options = options();
    options.node = node(name);
    options.boot = boot(name);
    options.quota = quota(ceiling);
    options.fleet = true;
    options
}

fn ceiling(joined: &Joined) -> &Ceiling {
    match joined {
        Joined::Joined { ceiling, .. } => ceiling,
        foreign => panic!("{foreign:?}"),
    }
}

pub(super) async fn a_full_ledger_says_what_can_be_done(world: World) {
    let mut small = options();
    small.quota = quota(2);
    let world = world.ready().await;
    let (ledger, _) = world.join(small).await.unwrap();
    let first = world.grant(ask(1, "a", 0)).await;
    world.grant(ask(2, "b", 0)).await;
    world.retire(&first.fence).await;
    let full = ledger.reserve(ask(3, "c", 0)).await.unwrap();
    let Reserved::Quota(reached) = full else {
        panic!("{full:?}");
    };
    assert_eq!((reached.total, reached.retired, reached.quota), (2, 1, 2));
    let message = reached.to_string();
    for way in [
        "raise the ceiling",
        "reuse session ids",
        "archive the whole namespace",
    ] {
        assert!(message.contains(way), "{message}");
    }
    // A session that is there may be used again.
    let again = ledger.reserve(ask(1, "again", 1)).await.unwrap();
    assert!(matches!(again, Reserved::Granted(_)), "{again:?}");
    world.audit().await;
}

pub(super) async fn another_clusters_ledger_is_refused(world: World) {
    let mut foreign = options();
    foreign.cluster = ClusterId::new("elsewhere").unwrap();
    let refused = world.join(foreign).await;
    assert!(matches!(&refused, Err(OpenError::Foreign(cluster)) if cluster.as_str() == "test"));
}

pub(super) async fn the_ceiling_is_seeded_once_and_a_differing_coordinator_closes(world: World) {
    let world = world.ready().await;
    assert_eq!(*ceiling(&world.joined), Ceiling::Local);
    let running = world.grant(ask(1, "a", 0)).await;

    let (first, joined) = world.join(other("f1", 5_000)).await.unwrap();
    assert_eq!(*ceiling(&joined), Ceiling::Matches(quota(5_000)), "seeded");
    assert_eq!(first.usage().await.unwrap().ceiling, Some(quota(5_000)));
    let (second, joined) = world.join(other("f2", 6_000)).await.unwrap();
    let (own, fleet) = (quota(6_000), quota(5_000));
    assert_eq!(*ceiling(&joined), Ceiling::Differs { own, fleet });

    // Closed to new generations, and to nothing else.
    let closed = second.reserve(ask(2, "b", 0)).await.unwrap();
    assert_eq!(closed, Reserved::CeilingMismatch { own, fleet });
    assert!(matches!(
        second.reserve(ask(1, "a", 0)).await.unwrap(),
        Reserved::Replayed(_)
    ));
    let deadline = later(&running, Duration::from_secs(5));
    assert!(matches!(
        second.renew(running.fence.clone(), deadline).await.unwrap(),
        Renewed::Renewed { moved: true, .. }
    ));
    assert!(second.lookup(session(1)).await.unwrap().is_some());
    assert!(matches!(
        second.retire(running.fence, None).await.unwrap(),
        crate::Retirement::Proved { .. }
    ));
    // A session that is there already is no way around it.
    let reused = second.reserve(ask(1, "again", 1)).await.unwrap();
    assert_eq!(reused, Reserved::CeilingMismatch { own, fleet });
    assert!(matches!(
        first.reserve(ask(2, "b", 0)).await.unwrap(),
        Reserved::Granted(_)
    ));
    world.audit().await;
}

pub(super) async fn an_older_live_schema_keeps_the_ceiling_unseeded(world: World) {
    let world = world.ready().await;
    // A coordinator of the first schema, which knows no ceiling, has published itself.
    world
        .ledger
        .tables()
        .write::<_, ether_store::StoreError, _>(LONG, |tx| {
            Box::pin(async move {
                let sql = "INSERT INTO placement_coordinators VALUES ('old', 'o1', 1, 9000, 1, 1, 1, 1, 1)";
                tx.execute(sql, &[]).await
            })
        })
        .await
        .unwrap();
    let (ledger, joined) = world.join(other("f1", 5_000)).await.unwrap();
    let older = vec![node("old")];
    assert_eq!(*ceiling(&joined), Ceiling::Blocked { older });
    assert_eq!(ledger.usage().await.unwrap().ceiling, None);
    assert!(matches!(
        ledger.reserve(ask(1, "a", 0)).await.unwrap(),
        Reserved::Granted(_)
    ));

    // Only who knows that it is gone takes it off the list, and only that boot of it.
    assert!(!ledger.withdraw(node("old"), boot("o2")).await.unwrap());
    assert!(ledger.withdraw(node("old"), boot("o1")).await.unwrap());
    assert!(!ledger.withdraw(node("old"), boot("o1")).await.unwrap());
    let joined = ledger.join().await.unwrap();
    assert_eq!(*ceiling(&joined), Ceiling::Matches(quota(5_000)));
}

pub(super) async fn the_ceiling_rises_by_compare_and_swap_only(world: World) {
    let unseeded = world
        .ledger
        .raise_ceiling(quota(5_000), quota(6_000))
        .await
        .unwrap();
    assert_eq!(unseeded, Raised::Mismatch { current: None });
    let (ledger, _) = world.join(other("f1", 5_000)).await.unwrap();
    let raise = |from, to| ledger.raise_ceiling(quota(from), quota(to));
    let current = quota(5_000);
    assert_eq!(
        raise(4_096, 6_000).await.unwrap(),
        Raised::Mismatch {
            current: Some(current)
        }
    );
    assert_eq!(raise(5_000, 4_999).await.unwrap(), Raised::NotUpward { current });
    let raised = Raised::Raised {
        ceiling: quota(6_000),
    };
    assert_eq!(raise(5_000, 6_000).await.unwrap(), raised);
    assert_eq!(raise(5_000, 6_000).await.unwrap(), raised, "the same again");
    assert!(raise(6_000, 4_095).await.is_err());
    assert_eq!(ledger.usage().await.unwrap().ceiling, Some(quota(6_000)));
    // Whoever still has the old number is closed to new work from here on.
    let closed = world.ready().await.ledger.reserve(ask(1, "a", 0)).await.unwrap();
    assert!(matches!(closed, Reserved::CeilingMismatch { .. }), "{closed:?}");
}

pub(super) async fn a_stale_boot_takes_nothing_over(world: World) {
    let published = async || {
        let sql = "SELECT boot FROM placement_coordinators WHERE node = 'c'";
        let rows = world.ledger.tables().query(LONG, sql, Vec::new()).await.unwrap();
        rows.iter()
            .map(|row| row.text(0usize).unwrap())
            .collect::<Vec<_>>()
    };
    let mut next = options();
    next.boot = boot("c2");
    let (next, _) = world.join(next).await.unwrap();
    assert_eq!(published().await, ["c2"]);
    let current = boot("c2");
    assert_eq!(world.ledger.join().await.unwrap(), Joined::Superseded { current });
    assert!(matches!(next.join().await.unwrap(), Joined::Joined { .. }));
    assert_eq!(published().await, ["c2"]);
}

pub(super) async fn an_unreadable_coordinator_stops_nobody_else(world: World) {
    let world = world.ready().await;
    let (broken, _) = world.join(other("f1", 5_000)).await.unwrap();
    let sql = "UPDATE placement_coordinators SET known_schema = -1 WHERE node = 'f1'";
    meddle(&world, sql).await;
    meddle(&world, "UPDATE placement_meta SET ceiling = NULL").await;

    // Whose schema cannot be read may be one that knows no ceiling.
    let (second, joined) = world.join(other("f2", 5_000)).await.unwrap();
    let unreadable = |joined: &Joined| match joined {
        Joined::Joined { unreadable, .. } => unreadable
            .iter()
            .map(|bad| (bad.column, bad.row.clone()))
            .collect(),
        other => panic!("{other:?}"),
    };
    let bad: Vec<_> = unreadable(&joined);
    assert_eq!(bad, [("known_schema", "f1".to_owned())]);
    assert_eq!(*ceiling(&joined), Ceiling::Blocked { older: Vec::new() });
    assert!(matches!(
        world.ledger.join().await.unwrap(),
        Joined::Joined { .. }
    ));
    assert!(second.withdraw(node("f2"), boot("f2")).await.unwrap());
    // What depends on the row itself says so.
    for fault in [
        broken.join().await.map(drop).unwrap_err(),
        second
            .withdraw(node("f1"), boot("f1"))
            .await
            .map(drop)
            .unwrap_err(),
    ] {
        let LedgerError::Unknown(UnknownOutcome {
            cause: Cause::Fault(fault),
        }) = fault
        else {
            panic!("{fault:?}");
        };
        assert!(
            matches!(&*fault, Fault::Corrupt(bad) if bad.row == "f1"),
            "{fault}"
        );
    }

    // Its next start writes the row anew.
    let (_first, joined) = world.join(other("f1", 5_000)).await.unwrap();
    assert_eq!(unreadable(&joined), []);
    assert_eq!(*ceiling(&joined), Ceiling::Matches(quota(5_000)));
}

pub(super) async fn options_that_differ_are_reported(world: World) {
    let mut differs = other("f1", 5_000);
    differs.maximum_lease = Duration::from_secs(300);
    differs.lock_timeout = Duration::from_nanos(2_000_500);
    differs.verify_timeout = Duration::from_secs(2);
    differs.clock_skew = Duration::from_secs(1);
    let (_ledger, joined) = world.join(differs).await.unwrap();
    let Joined::Joined { differences, .. } = joined else {
        panic!("foreign");
    };
    let differences: Vec<_> = differences
        .iter()
        .map(|d| (d.node.as_str(), d.option, d.own, d.theirs))
        .collect();
    assert_eq!(
        differences,
        [
            ("c", "maximum lease", 300_000_000, 600_000_000),
            ("c", "lock timeout", 2_000, 30_000_000),
            ("c", "verify timeout", 2_000_000, 30_000_000),
            ("c", "clock skew", 1_000_000, 5_000_000),
        ]
    );
}

pub(super) async fn every_mutation_raises_the_revision_and_no_reading_does(world: World) {
    let world = world.ready().await;
    let revision = async || world.ledger.usage().await.unwrap().revision;
    let mut last = revision().await;
    let granted = world.grant(ask(1, "a", 0)).await;
    for step in 0..4 {
        let now = revision().await;
        assert!(now > last, "step {step} went unnoticed");
        last = now;
        match step {
            0 => {
                let deadline = later(&granted, Duration::from_secs(1));
                world.ledger.renew(granted.fence.clone(), deadline).await.unwrap();
            }
            1 => world.pool("slots", 1_999).await,
            2 => drop(world.retire(&granted.fence).await),
            _ => {}
        }
    }
    world.ledger.lookup(session(1)).await.unwrap();
    world.ledger.reserve(ask(1, "a", 0)).await.unwrap();
    world.retire(&granted.fence).await;
    assert_eq!(revision().await, last);
}
