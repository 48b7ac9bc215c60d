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
mod replay;
mod system;

use std::sync::Arc;

use ether_testkit::postgres::{Durability, Server};

use crate::tests::model::also::Also;
use crate::tests::model::broken::Broken;
use crate::tests::model::explore::explore;
use crate::tests::model::replay::replay_on;
use crate::tests::model::system::Bounds;

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

/// Explores everything with `also`, and does again on PostgreSQL what was found.
async fn explored_and_replayed(also: Also) {
    let server = Server::start(15, Durability::Fast).map(Arc::new);
    for bounds in bounds().into_iter().filter(|bounds| bounds.also == also) {
        let found = explore(&bounds, Broken::Nothing);
        println!(
            "{bounds:?}: {} states, {} transitions",
            found.states, found.transitions
        );
        if let Some((why, trace)) = &found.violation {
            panic!("{why}\n{trace:#?}");
        }
        // The bounds are worth something only while sessions, workers and reuse fit into them.
        assert!(found.states > 500, "only {} states", found.states);
        if let Some(server) = &server {
            replay_on(server, &bounds, &found).await;
        }
    }
}

macro_rules! explorations {
    ($($name:ident: $also:ident),* $(,)?) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $name() {
                explored_and_replayed(Also::$also).await;
            }
        )*

        #[test]
        fn every_exploration_has_its_test() {
            let tested = [$(Also::$also),*];
            assert!(bounds().iter().all(|bounds| tested.contains(&bounds.also)));
        }
    };
}

explorations! {
    every_reachable_state_keeps_the_invariants: Nothing,
    every_reachable_state_with_evidence: Evidence,
    every_reachable_state_with_pools_that_change: Pools,
    every_reachable_state_under_a_ceiling: Ceiling,
    every_reachable_state_where_the_clock_goes_back: Back,
    every_reachable_state_where_a_step_of_the_clock_goes_by: Within,
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
