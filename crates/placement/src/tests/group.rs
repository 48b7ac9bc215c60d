//! Grouping: who waits shares a transaction, nobody starves, and a line that is full says so.

use std::sync::Arc;
use std::time::Duration;

use ether_store::{Component, StoreError};
use ether_testkit::postgres::{Durability, Server};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::bounds::Quota;
use crate::command::Command;
use crate::error::LedgerError;
use crate::outcome::{Renewed, Reserved};
use crate::tests::faults::operations::roomy;
use crate::tests::world::{LONG, Place, World, ask, later, options, session};

/// The component's lock in somebody else's hands: whoever writes waits for it.
struct Held {
    release: oneshot::Sender<()>,
    holder: JoinHandle<Result<(), StoreError>>,
}

impl Held {
    async fn of(world: &World) -> Self {
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
        Self { release, holder }
    }

    async fn release(self) {
        self.release.send(()).unwrap();
        self.holder.await.unwrap().unwrap();
    }
}

/// A long renewal is taken in slices, and whoever comes meanwhile is served between two of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_renewal_lets_others_through() {
    let world = roomy(World::new(&Place::File).await).await;
    let granted = world.grant_all(4_096).await;
    let renewals = granted
        .iter()
        .map(|granted| (granted.fence.clone(), later(granted, Duration::from_secs(1))))
        .collect();
    let before = world.ledger.usage().await.unwrap().revision;
    let ledger = world.ledger.clone();
    let long = tokio::spawn(async move { ledger.renew_many(renewals).await.unwrap() });
    let mut between = 0;
    while !long.is_finished() {
        world.ledger.lookup(session(0)).await.unwrap();
        between += 1;
    }
    assert!(between > 1, "only {between} callers got through four slices");
    let transactions = world.ledger.usage().await.unwrap().revision - before;
    assert_eq!(transactions, 4, "a slice each");
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
    let lock = Held::of(&world).await;
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
    lock.release().await;
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

/// Who stopped waiting takes no room from whoever still does, however long the group under way takes; and what had not
/// begun by then never happens.
#[tokio::test]
async fn callers_who_gave_up_leave_the_line_to_others_and_nothing_behind() {
    let mut large = options();
    large.quota = Quota::MAX;
    let world = roomy(World::with(&Place::File, large).await).await;
    let lock = Held::of(&world).await;
    let ledger = world.ledger.clone();
    let first = tokio::spawn(async move { ledger.reserve(ask(0, "first", 0)).await });
    while !world.ledger.is_serving() {
        tokio::task::yield_now().await;
    }
    for slot in 1..=9_000 {
        let asked = tokio::time::timeout(Duration::ZERO, world.ledger.reserve(ask(slot, "gone", 0))).await;
        assert!(asked.is_err(), "slot {slot} was answered: {asked:?}");
    }
    let ledger = world.ledger.clone();
    let live = tokio::spawn(async move { ledger.reserve(ask(9_001, "live", 0)).await });
    tokio::task::yield_now().await;
    lock.release().await;
    for call in [first, live] {
        let answer = call.await.unwrap();
        assert!(matches!(answer, Ok(Reserved::Granted(_))), "{answer:?}");
    }
    assert_eq!(
        world.ledger.usage().await.unwrap().total,
        2,
        "what was given up never happened"
    );
    world.audit().await;
}

/// A request that finds no runtime to run on fails alone; the line goes on.
#[test]
fn a_request_outside_of_any_runtime_does_not_stop_the_line() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let world = runtime.block_on(async {
        let world = World::new(&Place::Memory).await;
        // Until whoever served the last request has handed the line back.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        world
    });
    let mut call = Box::pin(world.ledger.lookup(session(0)));
    let mut nobody = std::task::Context::from_waker(std::task::Waker::noop());
    let polled = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = call.as_mut().poll(&mut nobody);
    }));
    assert!(polled.is_err(), "there was a runtime after all");
    drop(call);
    let next = runtime.block_on(world.ledger.lookup(session(0)));
    assert_eq!(next.unwrap(), None);
    runtime.block_on(world.store.close());
}

/// The bound is one call's and not one transaction's: what could be renewed after it has passed is left alone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_long_renewal_keeps_to_one_bound() {
    let world = roomy(World::new(&Place::File).await).await;
    let granted = world.grant(ask(0, "op", 0)).await;
    let bound = Duration::from_millis(400);
    let mut hasty = options();
    hasty.transaction_timeout = bound;
    hasty.lock_timeout = bound;
    let (hasty, _) = world.join(hasty).await.unwrap();
    let tables = world.ledger.tables().clone();
    let (held, holds) = oneshot::channel();
    let (release, released) = oneshot::channel::<()>();
    let holder = tokio::spawn(async move {
        tables
            .write::<_, StoreError, _>(LONG, |_tx| {
                Box::pin(async move {
                    held.send(()).unwrap();
                    let _ = released.await;
                    Ok(())
                })
            })
            .await
    });
    holds.await.unwrap();
    let renewals: Vec<_> = (1..=8_000)
        .map(|step| {
            (
                granted.fence.clone(),
                later(&granted, Duration::from_millis(step)),
            )
        })
        .collect();
    let call = tokio::spawn(async move { hasty.renew_many(renewals).await.unwrap() });
    // The lock is free again once the bound has passed for certain; slices with a bound each would find it so.
    tokio::time::sleep(2 * bound).await;
    let _ = release.send(());
    holder.await.unwrap().unwrap();
    for answer in call.await.unwrap() {
        assert!(matches!(answer, Err(LedgerError::Unknown(_))), "{answer:?}");
    }
    let record = world.ledger.lookup(session(0)).await.unwrap().unwrap();
    assert_eq!(record.deadline, granted.initial_deadline);
}

/// Once the bound of a group has passed nobody waits for the rest of it any more: the database is left alone, and how
/// large groups may be is learned from what was tried, and not from single commands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_left_of_a_group_after_its_bound_is_not_tried() {
    let Some(server) = Server::start(15, Durability::Fast) else {
        return;
    };
    let world = World::new(&Place::Postgres(Arc::new(server))).await.ready().await;
    const HOLDER: Component = Component {
        name: "holder",
        migrations: &[],
    };
    let mut hasty = options();
    hasty.transaction_timeout = Duration::from_millis(500);
    let (hasty, _) = world.join(hasty).await.unwrap();
    let holder = world.open_again().await.component(&HOLDER).await.unwrap();
    let (held, holds) = oneshot::channel();
    let (release, released) = oneshot::channel::<()>();
    let hold = tokio::spawn(async move {
        holder
            .write::<(), StoreError, _>(LONG, |tx| {
                Box::pin(async move {
                    tx.execute("LOCK TABLE placement_sessions IN ACCESS EXCLUSIVE MODE", &[])
                        .await?;
                    held.send(()).unwrap();
                    let _ = released.await;
                    Ok(())
                })
            })
            .await
    });
    holds.await.unwrap();
    let lookups = |slots: std::ops::Range<u32>| -> Vec<Command> {
        slots
            .map(|slot| Command::Lookup {
                session: session(slot),
            })
            .collect()
    };
    for (size, limit) in [(1, 64), (100, 32)] {
        hasty.limit_groups(64);
        // Its caller stops waiting at the same instant; whoever is in the next group sees what came of it.
        let late = hasty.each_command(lookups(0..size)).await;
        assert!(late.is_err() || late.unwrap().iter().all(Result::is_err));
        let mut polls = 0;
        while hasty.is_serving() {
            polls += 1;
            assert!(polls < 2_000, "the group does not end");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(hasty.group_limit(), limit, "after {size} commands");
    }
    release.send(()).unwrap();
    hold.await.unwrap().unwrap();
}
