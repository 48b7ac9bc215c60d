//! Callers that give up at any await leave no open transaction and no poisoned connection.

use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;

use ether_testkit::postgres::{Durability, Server};

use crate::tests::faults::operations::{Operation, Round, roomy};
use crate::tests::world::{Place, World};

/// Polls `work` whenever it has something to go on with, and drops it instead of polling it once more than
/// `times`: each await that waits is reached, the last ones too. Tells whether it ended first.
async fn give_up_after(times: u32, work: impl Future<Output = ()>) -> bool {
    let mut work: Pin<Box<dyn Future<Output = ()>>> = Box::pin(work);
    let mut left = times;
    std::future::poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(false);
        }
        left -= 1;
        work.as_mut().poll(cx).map(|()| true)
    })
    .await
}

async fn cancelled_everywhere(place: &Place) {
    let world = roomy(World::new(place).await).await;
    let (mut slot, mut epoch) = (0, 0);
    for operation in Operation::ALL
        .into_iter()
        .filter(|operation| *operation != Operation::Raise)
    {
        for times in 0.. {
            assert!(times < 64, "{operation:?} has no end");
            let n = match operation {
                Operation::Rebase => &mut epoch,
                _ => &mut slot,
            };
            let round = Round { operation, n: *n };
            *n += 1;
            round.prepare(&world).await;
            let before = world.ledger.usage().await.unwrap().revision;
            let ledger = world.ledger.clone();
            let ended = give_up_after(times, async { round.run(&ledger).await.unwrap() }).await;
            // The next caller is served at once and settles what the first one left.
            round.run(&world.ledger).await.unwrap();
            let after = world.ledger.usage().await.unwrap().revision;
            assert_eq!(
                after - before,
                u64::from(operation.mutates()),
                "{operation:?} after {times} polls"
            );
            if ended {
                // A retirement waits for its reading and its transaction; its verifier, on a thread of its own, may
                // have answered by the time it is looked at.
                let waits = if operation == Operation::Retire { 3 } else { 2 };
                assert!(times >= waits, "{operation:?} ended after {times} polls");
                break;
            }
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
