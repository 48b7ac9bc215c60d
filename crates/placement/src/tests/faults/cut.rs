//! The connection cut at every statement of every operation, COMMIT's answer included (P11): the outcome is
//! unknown, and the same operation again settles it. Nothing is charged twice, nothing is lost.

use std::sync::Arc;

use ether_store::faults::Cut;
use ether_testkit::postgres::{Durability, Server};

use crate::error::LedgerError;
use crate::ledger::Ledger;
use crate::tests::faults::operations::{Operation, Round, roomy, seed_ceiling};
use crate::tests::faults::process;
use crate::tests::faults::proxy::{Moment, Proxy};
use crate::tests::world::{Judge, Place, World, open, options, session};

/// How a connection is cut.
enum Scissors {
    Wire(Proxy),
    Statements(ether_store::Store),
}

impl Scissors {
    fn moments(&self) -> &'static [Moment] {
        match self {
            Scissors::Wire(_) => &[Moment::Asked, Moment::Answered, Moment::Torn],
            // Between the answers to what one message carries as well.
            Scissors::Statements(_) => &[Moment::Asked, Moment::Answered],
        }
    }

    fn arm(&self, nth: u32, moment: Moment) {
        match self {
            Scissors::Wire(proxy) => proxy.arm(nth, moment),
            Scissors::Statements(store) => {
                let asked = moment == Moment::Asked;
                store
                    .faults()
                    .arm(nth, if asked { Cut::Before } else { Cut::After });
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

/// At how many places each operation could be cut at each moment.
#[derive(Default)]
struct Places(Vec<(Operation, Moment, u32)>);

impl Places {
    fn of(&self, operation: Operation, moment: Moment) -> u32 {
        let place = self
            .0
            .iter()
            .find(|place| (place.0, place.1) == (operation, moment));
        place.unwrap().2
    }
}

/// Cuts `cut`, a ledger on the same database as `world`, at every statement of every operation.
async fn cut_everywhere(world: &World, cut: &Ledger, scissors: &Scissors) -> Places {
    let mut places = Places::default();
    let (mut slot, mut ceiling, mut epoch) = (0, 0, 0);
    for operation in Operation::ALL {
        // A round of raising goes on from where the one before left the ceiling, and one of rebasing likewise.
        let raising = operation == Operation::Raise;
        if raising {
            seed_ceiling(world).await;
        }
        for &moment in scissors.moments() {
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

                scissors.arm(nth, moment);
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
                            "{operation:?}, {moment:?} {nth}"
                        );
                    }
                    Err(LedgerError::Unknown(_)) if hit => unknown += 1,
                    Err(error) => panic!("{operation:?}, {moment:?} {nth}: {error}"),
                }
                // A lookup settles it, and the same operation again agrees with what that said.
                let so_far = world.ledger.usage().await.unwrap().revision - before.revision;
                if let Some(happened) = round.happened(&world.ledger).await {
                    assert_eq!(
                        so_far,
                        u64::from(happened),
                        "{operation:?}, {moment:?} {nth}: {outcome:?}"
                    );
                }
                round.run(&world.ledger).await.unwrap();
                let settled = world.ledger.usage().await.unwrap();
                assert_eq!(
                    settled.revision - before.revision,
                    u64::from(operation.mutates()),
                    "{operation:?}, {moment:?} {nth}: {outcome:?}"
                );
                if !hit {
                    println!("{operation:?}, {moment:?}: {nth} cuts, {unknown} unknown");
                    places.0.push((operation, moment, nth));
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
    places
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
    let places = cut_everywhere(&world, &cut, &Scissors::Wire(proxy)).await;
    // The opening of a transaction is one message of many statements, and cut behind each of them.
    let lookup = |moment| places.of(Operation::Lookup, moment);
    assert!(lookup(Moment::Torn) > lookup(Moment::Asked) + 4);
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
    let places = cut_everywhere(&world, &cut, &Scissors::Statements(store)).await;
    // A transaction's writes are one message, the only one with more than one answer; many of them are one each.
    let more = |operation| {
        let count = |moment| places.of(operation, moment);
        count(Moment::Answered) - count(Moment::Asked)
    };
    assert!(more(Operation::Reserve) > 1 && more(Operation::Retire) > 1);
    assert_eq!(more(Operation::ReserveWide), 0);
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
                    // Its opening, what it reads, what it writes, and its COMMIT.
                    assert!(nth > 3, "{job}: too few statements to mean anything");
                    break;
                }
            }
        }
    }
    world.audit().await;
}
