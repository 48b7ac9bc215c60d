//! The ledger modelled whole and explored exhaustively within small bounds (P23).
//!
//! What runs here is the very [`decide`](crate::decide::decide) that runs under the database's lock. Around it
//! stand two controllers, one of which crashes and comes back under a new boot while requests of the old one
//! are still on the way; two workers that share a scope, one of which crashes while its process lives on; a
//! membership reconciler; and a clock that may move between any two steps.
//!
//! Nothing is assumed about the network: any request that any boot of a controller could ever have sent is
//! delivered at any time, any number of times, in any order, with its answer lost or not. That is more than
//! crashes, duplicates, delays and reorderings can do. Only two things are earned: a worker starts what the
//! ledger shows it as live, and a retirement needs an execution that has really ended.

mod also;
mod broken;
mod explore;
mod invariants;
mod system;

use std::sync::Arc;

use ether_testkit::postgres::{Durability, Server};

use crate::tests::model::also::Also;
use crate::tests::model::broken::Broken;
use crate::tests::model::explore::explore;
use crate::tests::model::system::{Bounds, Step, System};
use crate::tests::world::{LONG, Place, START, World, options};

/// One exploration each: reuse of sessions through two generations, a worker that crashes, and whatever else may
/// happen besides.
fn bounds() -> Vec<Bounds> {
    let of = |ticks, generations, crash, also| Bounds {
        ticks,
        generations,
        crash,
        also,
        shared: 2,
        renewals: false,
    };
    let renewing = |bounds| Bounds {
        renewals: true,
        ..bounds
    };
    // Room for one of two targets that share a scope.
    let crowded = |bounds| Bounds { shared: 1, ..bounds };
    let mut all = vec![
        of(1, 1, true, Also::Evidence),
        of(1, 1, false, Also::Pools),
        of(1, 1, true, Also::Ceiling),
        renewing(of(1, 1, false, Also::Back)),
        renewing(of(1, 1, false, Also::Within)),
        of(1, 2, false, Also::Nothing),
        renewing(of(1, 1, true, Also::Nothing)),
        renewing(crowded(of(2, 1, false, Also::Nothing))),
    ];
    if soak() {
        all.extend([
            renewing(of(2, 2, false, Also::Nothing)),
            of(1, 2, true, Also::Nothing),
            renewing(of(3, 1, true, Also::Nothing)),
            of(1, 2, false, Also::Evidence),
            of(1, 2, false, Also::Pools),
            of(2, 2, false, Also::Ceiling),
            renewing(of(2, 1, true, Also::Back)),
            renewing(of(2, 1, false, Also::Within)),
            renewing(crowded(of(2, 2, false, Also::Nothing))),
        ]);
    }
    all
}

fn soak() -> bool {
    std::env::var_os("ETHER_SOAK").is_some()
}

#[test]
fn every_reachable_state_keeps_the_invariants() {
    for bounds in bounds() {
        let found = explore(&bounds, Broken::Nothing);
        println!(
            "{bounds:?}: {} states, {} transitions",
            found.states, found.transitions
        );
        if let Some((why, trace)) = found.violation {
            panic!("{why}\n{trace:#?}");
        }
        // The bounds are worth something only while sessions, workers and reuse fit into them.
        assert!(found.states > 500, "only {} states", found.states);
    }
}

#[test]
fn every_broken_rule_is_caught() {
    for broken in Broken::ALL {
        let mut shows = bounds();
        shows.retain(|bounds| bounds.also == broken.shows_in() && (bounds.renewals || !broken.renews()));
        let caught = shows.iter().find_map(|bounds| {
            let found = explore(bounds, broken);
            found
                .violation
                .map(|(why, trace)| (why, trace.len(), found.states))
        });
        let Some((why, steps, states)) = caught else {
            panic!("{broken:?} went unnoticed");
        };
        println!("{broken:?}: {why} after {steps} steps, {states} states");
    }
}

/// The model is only worth what the real thing shares with it: the same steps on PostgreSQL give the same
/// answers, one by one and grouped into transactions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn traces_replayed_on_postgres_give_the_same_answers() {
    let Some(server) = Server::start(15, Durability::Fast) else {
        return;
    };
    let mut own = options();
    let system = System::new(Also::Nothing, 2);
    own.maximum_lease = system.ledger.own.published.maximum_lease;
    own.cluster = system.ledger.own.cluster.clone();
    own.clock_skew = system.ledger.own.published.clock_skew;
    let world = World::with(&Place::Postgres(Arc::new(server)), own).await;
    let wanted = if soak() { 1_500 } else { 60 };
    let mut replayed = 0;
    // A coordinator of the real ledger is not started again in the middle of a trace, and has no other's memory.
    let replayable = |bounds: &Bounds| !matches!(bounds.also, Also::Ceiling | Also::Within);
    let replayable = bounds().into_iter().filter(replayable);
    for bounds in replayable {
        let found = explore(&bounds, Broken::Nothing);
        // The states that were found last have the longest traces.
        for state in (found.states / 2..found.states).step_by((found.states / 2 / wanted).max(1)) {
            replay(&world, &bounds, &found.trace(state), replayed).await;
            replayed += 1;
        }
    }
    println!("{replayed} traces");
    world.audit().await;
}

/// The steps of `trace`, each after something that changes nothing: what was found by steps that did change
/// something has to be told from what is refused, repeated or looked at as well.
async fn replay(world: &World, bounds: &Bounds, trace: &[Step], number: usize) {
    let grouped = number % 2 == 1;
    empty(world).await;
    world.set_clock(START).await;
    let mut system = System::new(bounds.also, bounds.shared);
    let reservations = System::reservations(bounds);
    world.ledger.forget_clock();
    let preparation = System::preparation(bounds.shared);
    world.ledger.commands(preparation).await.unwrap();
    let mut waiting = (Vec::new(), Vec::new());
    for (at, step) in trace.iter().enumerate() {
        let idle: Vec<Step> = system
            .enabled(bounds, &reservations)
            .into_iter()
            .filter(|step| matches!(step, Step::Ask(asked) if system.leaves_as_is(asked) == Ok(true)))
            .collect();
        if let Some(Step::Ask(asked)) = idle.get((number + 7 * at) % idle.len().max(1)) {
            let asked = Step::Ask(asked.clone());
            let outcome = system.step(&asked, Broken::Nothing).unwrap().unwrap();
            let Step::Ask(command) = asked else {
                unreachable!("asked above")
            };
            waiting.0.push(*command);
            waiting.1.push(outcome);
        }
        let outcome = system.step(step, Broken::Nothing).unwrap();
        match (step, outcome) {
            (Step::Ask(command), Some(outcome)) => {
                waiting.0.push((**command).clone());
                waiting.1.push(outcome);
                if grouped {
                    continue;
                }
            }
            (Step::Tick | Step::Back, _) => {}
            _ => continue,
        }
        flush(world, &mut waiting, trace).await;
        world.set_clock(START + 1_000_000 * i64::from(system.clock)).await;
    }
    flush(world, &mut waiting, trace).await;
}

async fn flush(
    world: &World,
    waiting: &mut (Vec<crate::Command>, Vec<crate::outcome::Outcome>),
    trace: &[Step],
) {
    let (commands, expected) = std::mem::take(waiting);
    // The model knows the clock that the database remembers, and not the one that a process does.
    world.ledger.forget_clock();
    if !commands.is_empty() {
        let outcomes = world.ledger.commands(commands).await.unwrap();
        assert_eq!(outcomes, expected, "{trace:#?}");
    }
}

/// Empties the ledger between traces, under its own lock.
async fn empty(world: &World) {
    world
        .ledger
        .tables()
        .write::<_, ether_store::StoreError, _>(LONG, |tx| {
            Box::pin(async move {
                for table in ["sessions", "claims", "pools", "targets", "evidence"] {
                    let sql = ether_store::Sql::generated(format!("DELETE FROM placement_{table}"));
                    tx.execute(sql, &[]).await?;
                }
                tx.execute(
                    "UPDATE placement_meta SET total = 0, retired = 0, clock = 0, epoch = 0",
                    &[],
                )
                .await
            })
        })
        .await
        .unwrap();
}
