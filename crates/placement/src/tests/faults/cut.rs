//! The connection cut at every statement of every operation, COMMIT's answer included (P11): the outcome is
//! unknown, and the same operation again settles it. Nothing is charged twice, nothing is lost.

use std::sync::Arc;

use ether_store::faults::Cut;
use ether_testkit::postgres::{Durability, Server};

use crate::error::LedgerError;
use crate::ledger::Ledger;
use crate::tests::faults::operations::{Operation, Round, roomy, seed_ceiling};
use crate::tests::faults::process;
use crate::tests::faults::proxy::Proxy;
use crate::tests::world::{Judge, Place, World, open, options, session};

/// How a connection is cut.
enum Scissors {
    Wire(Proxy),
    Statements(ether_store::Store),
}

impl Scissors {
    fn arm(&self, nth: u32, after: bool) {
        match self {
            Scissors::Wire(proxy) => proxy.arm(nth, after),
            Scissors::Statements(store) => {
                store
                    .faults()
                    .arm(nth, if after { Cut::After } else { Cut::Before });
            }
        }
    }

    fn disarm(&self) -> bool {
        match self {
            Scissors::Wire(proxy) => proxy.disarm(),
            Scissors::Statements(store) => store.faults().disarm(),
        }
    }
}

/// Cuts `cut`, a ledger on the same database as `world`, at every statement of every operation.
async fn cut_everywhere(world: &World, cut: &Ledger, scissors: &Scissors) {
    let (mut slot, mut ceiling, mut epoch) = (0, 0, 0);
    for operation in Operation::ALL {
        // A round of raising goes on from where the one before left the ceiling, and one of rebasing likewise.
        let raising = operation == Operation::Raise;
        if raising {
            seed_ceiling(world).await;
        }
        for after in [false, true] {
            let mut unknown = 0;
            for nth in 0.. {
                assert!(nth < 60, "{operation:?} has no end");
                let n = match operation {
                    Operation::Raise => &mut ceiling,
                    Operation::Rebase => &mut epoch,
                    _ => &mut slot,
                };
                let round = Round { operation, n: *n };
                *n += 1;
                round.prepare(world).await;
                // Connections that are warm, so that the statements counted are those of the operation.
                cut.lookup(session(0)).await.unwrap();
                cut.usage().await.unwrap();
                let before = world.ledger.usage().await.unwrap();

                scissors.arm(nth, after);
                let outcome = round.run(cut).await;
                let hit = scissors.disarm();
                match &outcome {
                    // A connection that dies before anything happened is replaced without a word; what is
                    // answered has happened.
                    Ok(()) => {
                        let done = world.ledger.usage().await.unwrap().revision - before.revision;
                        assert_eq!(
                            done,
                            u64::from(operation.mutates()),
                            "{operation:?}, statement {nth}"
                        );
                    }
                    Err(LedgerError::Unknown(_)) if hit => unknown += 1,
                    Err(error) => panic!("{operation:?}, statement {nth}: {error}"),
                }
                // A lookup settles it, and the same operation again agrees with what that said.
                let so_far = world.ledger.usage().await.unwrap().revision - before.revision;
                if let Some(happened) = round.happened(&world.ledger).await {
                    assert_eq!(
                        so_far,
                        u64::from(happened),
                        "{operation:?}, statement {nth}, after {after}: {outcome:?}"
                    );
                }
                round.run(&world.ledger).await.unwrap();
                let settled = world.ledger.usage().await.unwrap();
                assert_eq!(
                    settled.revision - before.revision,
                    u64::from(operation.mutates()),
                    "{operation:?}, statement {nth}, after {after}: {outcome:?}"
                );
                if !hit {
                    println!("{operation:?}, answer lost {after}: {nth} statements, {unknown} unknown");
                    break;
                }
            }
            // Every operation has a statement after which nobody can know: COMMIT, for one.
            assert!(
                unknown > 0 || !operation.mutates(),
                "{operation:?} was never unknown"
            );
        }
    }
    world.audit().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_at_every_message_on_postgres_is_settled_by_a_retry() {
    let Some(server) = Server::start(15, Durability::Fast) else {
        return;
    };
    let server = Arc::new(server);
    let world = roomy(World::new(&Place::Postgres(Arc::clone(&server))).await).await;
    let proxy = Proxy::start(server.socket()).await;
    let url = proxy.url(&world.url);
    let store = open(&url.parse().unwrap(), &ether_types::ManualClock::default()).await;
    let (cut, _) = Ledger::open(&store, options(), Some(Arc::new(Judge::default())))
        .await
        .unwrap();
    cut_everywhere(&world, &cut, &Scissors::Wire(proxy)).await;
    let open = "SELECT COUNT(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'";
    assert_eq!(server.sql(open), "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cut_at_every_statement_on_sqlite_is_settled_by_a_retry() {
    let world = roomy(World::new(&Place::File).await).await;
    let store = world.open_again().await;
    let (cut, _) = Ledger::open(&store, options(), Some(Arc::new(Judge::default())))
        .await
        .unwrap();
    cut_everywhere(&world, &cut, &Scissors::Statements(store)).await;
}

/// A process that dies at any statement leaves a file that the next one settles.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_dies_at_any_statement_on_sqlite_is_settled_by_the_next() {
    let world = roomy(World::new(&Place::File).await).await;
    let mut n = 0;
    for operation in [Operation::Reserve, Operation::Renew, Operation::Retire] {
        for mode in ["before", "after"] {
            for nth in 0..40 {
                let round = Round { operation, n };
                n += 1;
                round.prepare(&world).await;
                let before = world.ledger.usage().await.unwrap().revision;
                let job = format!("die {} {operation:?} {} {nth} {mode}", world.location, round.n);
                let died = !process::run(&job).await;
                round.run(&world.ledger).await.unwrap();
                let after = world.ledger.usage().await.unwrap().revision;
                assert_eq!(after - before, 1, "{job}");
                if !died {
                    assert!(nth > 4, "{job}: too few statements to mean anything");
                    break;
                }
            }
        }
    }
    world.audit().await;
}
