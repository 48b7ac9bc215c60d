//! Grouping: who waits shares a transaction, nobody starves, and a line that is full says so.

use std::time::Duration;

use ether_store::StoreError;
use tokio::sync::oneshot;

use crate::bounds::Quota;
use crate::ledger::LedgerError;
use crate::outcome::{Renewed, Reserved};
use crate::tests::faults::operations::roomy;
use crate::tests::world::{LONG, Place, World, ask, later, options, session};

/// A long renewal is taken in slices, and whoever comes meanwhile is served between two of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_renewal_lets_others_through() {
    let world = roomy(World::new(&Place::File).await).await;
    let granted = world.grant(ask(0, "op", 0)).await;
    let renewals: Vec<_> = (1..=10_000)
        .map(|step| {
            (
                granted.fence.clone(),
                later(&granted, Duration::from_millis(step)),
            )
        })
        .collect();
    let ledger = world.ledger.clone();
    let long = tokio::spawn(async move { ledger.renew_many(renewals).await.unwrap() });
    let mut between = 0;
    while !long.is_finished() {
        world.ledger.lookup(session(0)).await.unwrap();
        between += 1;
    }
    assert!(between > 3, "only {between} callers got through ten slices");
    for answer in long.await.unwrap() {
        assert!(matches!(answer.unwrap(), Renewed::Renewed { moved: true, .. }));
    }
    world.audit().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_line_that_is_full_takes_no_more_and_loses_nothing() {
    let mut large = options();
    large.quota = Quota::MAX;
    let world = roomy(World::with(&Place::File, large).await).await;
    let tables = world
        .open_again()
        .await
        .component(&crate::COMPONENT)
        .await
        .unwrap();
    let (held, holds) = oneshot::channel();
    let (release, released) = oneshot::channel::<()>();
    let holder = tokio::spawn(async move {
        tables
            .write::<_, StoreError, _>(LONG, |_tx| {
                Box::pin(async move {
                    held.send(()).unwrap();
                    released.await.unwrap();
                    Ok(())
                })
            })
            .await
    });
    holds.await.unwrap();
    let calls: Vec<_> = (0..9_000)
        .map(|slot| {
            let ledger = world.ledger.clone();
            tokio::spawn(async move { ledger.reserve(ask(slot, "op", 0)).await })
        })
        .collect();
    // All are in the line or turned away once the last of them has been polled.
    while !calls.iter().any(|call| call.is_finished()) {
        tokio::task::yield_now().await;
    }
    release.send(()).unwrap();
    holder.await.unwrap().unwrap();
    let (mut granted, mut turned_away) = (0, 0);
    for call in calls {
        match call.await.unwrap() {
            Ok(Reserved::Granted(_)) => granted += 1,
            Err(LedgerError::Overloaded) => turned_away += 1,
            other => panic!("{other:?}"),
        }
    }
    assert!(
        turned_away > 0 && granted > 8_000,
        "{granted} granted, {turned_away} turned away"
    );
    assert_eq!(world.ledger.usage().await.unwrap().total, granted);
    world.audit().await;
}
