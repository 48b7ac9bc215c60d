//! Callers that give up at any await leave no open transaction and no poisoned connection.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use ether_testkit::postgres::{Durability, Server};

use crate::tests::faults::operations::{Operation, Round, roomy};
use crate::tests::world::{Place, World};

/// Polls `work` `times` times, letting everybody else run in between, and then drops it.
async fn give_up_after(times: u32, work: impl Future<Output = ()>) -> bool {
    let mut work: Pin<Box<dyn Future<Output = ()>>> = Box::pin(work);
    for _ in 0..times {
        let done = std::future::poll_fn(|cx| Poll::Ready(work.as_mut().poll(cx).is_ready())).await;
        if done {
            return true;
        }
        tokio::task::yield_now().await;
    }
    false
}

async fn cancelled_everywhere(place: &Place) {
    let world = roomy(World::new(place).await).await;
    let mut n = 0;
    for operation in Operation::ALL
        .into_iter()
        .filter(|operation| *operation != Operation::Raise)
    {
        for times in 0..8 {
            let round = Round { operation, n };
            n += 1;
            round.prepare(&world).await;
            let before = world.ledger.usage().await.unwrap().revision;
            let ledger = world.ledger.clone();
            give_up_after(times, async { round.run(&ledger).await.unwrap() }).await;
            // The next caller is served at once and settles what the first one left.
            round.run(&world.ledger).await.unwrap();
            let after = world.ledger.usage().await.unwrap().revision;
            assert_eq!(
                after - before,
                u64::from(operation.mutates()),
                "{operation:?} after {times} polls"
            );
        }
    }
    // Many at once, each with its own patience.
    let calls: Vec<_> = (0..64)
        .map(|slot| {
            let ledger = world.ledger.clone();
            let round = Round {
                operation: Operation::Reserve,
                n: 10_000 + slot,
            };
            tokio::spawn(async move {
                let patience = std::time::Duration::from_micros(u64::from(slot) * 30);
                let _ = tokio::time::timeout(patience, round.run(&ledger)).await;
            })
        })
        .collect();
    for call in calls {
        call.await.unwrap();
    }
    world
        .ledger
        .lookup(crate::tests::world::session(0))
        .await
        .unwrap();
    world.audit().await;
}

#[tokio::test]
async fn cancelled_callers_on_a_sqlite_file() {
    cancelled_everywhere(&Place::File).await;
}

#[tokio::test]
async fn cancelled_callers_in_sqlite_memory() {
    cancelled_everywhere(&Place::Memory).await;
}

#[tokio::test]
async fn cancelled_callers_on_postgres() {
    let Some(server) = Server::start(15, Durability::Fast) else {
        return;
    };
    let server = Arc::new(server);
    cancelled_everywhere(&Place::Postgres(Arc::clone(&server))).await;
    let open = "SELECT COUNT(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'";
    assert_eq!(server.sql(open), "0");
}
