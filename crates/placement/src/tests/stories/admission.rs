//! Pools and targets (P4, P5).

use ether_types::Role;

use crate::bounds::Capacity;
use crate::command::{Admission, Reserve, SetPool, SetTarget};
use crate::outcome::{PoolSet, Refusal, Reserved, TargetSet};
use crate::state::Revision;
use crate::tests::world::{World, ask, boot, claims, scope};

pub(super) async fn a_target_admits_exactly_its_roles_boot_and_scopes(world: World) {
    let refused = |outcome| match outcome {
        Ok(Reserved::NotAdmitted(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        refused(world.ledger.reserve(ask(1, "op", 0)).await),
        Refusal::UnknownTarget
    );
    let world = world.ready().await;

    let other_boot = Reserve {
        target_boot: boot("w0"),
        ..ask(1, "op", 0)
    };
    assert_eq!(
        refused(world.ledger.reserve(other_boot).await),
        Refusal::OtherBoot { current: boot("w1") }
    );
    let other_role = Reserve {
        role: Role::Delivery,
        ..ask(1, "op", 0)
    };
    assert_eq!(
        refused(world.ledger.reserve(other_role).await),
        Refusal::Role(Role::Delivery)
    );
    let fewer = Reserve {
        claims: claims(&[("slots", 1)]),
        ..ask(1, "op", 0)
    };
    assert_eq!(
        refused(world.ledger.reserve(fewer).await),
        Refusal::Unclaimed(scope("scratch"))
    );
    let more = Reserve {
        claims: claims(&[("slots", 1), ("scratch", 1), ("more-slots", 1)]),
        ..ask(1, "op", 0)
    };
    assert_eq!(
        refused(world.ledger.reserve(more).await),
        Refusal::NotListed(scope("more-slots"))
    );

    // No role, no admission; running work is not revoked by it.
    let running = world.grant(ask(1, "op", 0)).await;
    assert_eq!(world.target("w/cpu", "w1", Some("w1"), &[]).await, Ok(()));
    assert_eq!(
        refused(world.ledger.reserve(ask(2, "op", 0)).await),
        Refusal::Role(Role::Transcode)
    );
    let record = world.ledger.lookup(running.fence.session).await.unwrap().unwrap();
    assert_eq!(record.authority, crate::outcome::Authority::Live);
    world.audit().await;
}

pub(super) async fn a_scope_without_a_pool_or_with_capacity_zero_denies(world: World) {
    let world = world.ready().await;
    let set = world.target("w/cpu", "w1", Some("w1"), &["slots", "unknown"]);
    assert_eq!(set.await, Ok(()));
    let unknown = Reserve {
        claims: claims(&[("slots", 1), ("unknown", 1)]),
        ..ask(1, "op", 0)
    };
    let outcome = world.ledger.reserve(unknown.clone()).await.unwrap();
    assert_eq!(
        outcome,
        Reserved::NoCapacity {
            scope: scope("unknown"),
            left: None
        }
    );
    world.pool("unknown", 0).await;
    let outcome = world.ledger.reserve(unknown.clone()).await.unwrap();
    assert_eq!(
        outcome,
        Reserved::NoCapacity {
            scope: scope("unknown"),
            left: Some(0)
        }
    );
    // A pool of another role is another budget.
    let delivery = SetPool {
        scope: scope("unknown"),
        role: Role::Delivery,
        capacity: Capacity::MAX,
        seen: Revision::NONE,
    };
    world.ledger.set_pool(delivery).await.unwrap();
    assert!(matches!(
        world.ledger.reserve(unknown).await.unwrap(),
        Reserved::NoCapacity { left: Some(0), .. }
    ));
    world.audit().await;
}

pub(super) async fn lowering_a_pool_denies_new_work_and_keeps_what_runs(world: World) {
    let world = world.ready().await;
    let first = world.grant(ask(1, "a", 0)).await;
    let second = world.grant(ask(2, "b", 0)).await;
    world.pool("slots", 500).await;
    assert_eq!(world.used("slots").await, 2_000);
    let denied = world.ledger.reserve(ask(3, "c", 0)).await.unwrap();
    assert!(
        matches!(denied, Reserved::NoCapacity { left: Some(0), .. }),
        "{denied:?}"
    );
    world.retire(&first.fence).await;
    let denied = world.ledger.reserve(ask(3, "c", 0)).await.unwrap();
    assert!(
        matches!(denied, Reserved::NoCapacity { left: Some(0), .. }),
        "{denied:?}"
    );
    world.retire(&second.fence).await;
    world.pool("slots", 1_000).await;
    world.grant(ask(3, "c", 0)).await;
    world.audit().await;
}

pub(super) async fn a_pool_is_settled_by_compare_and_swap(world: World) {
    let set = async |capacity: u64, seen: u64| {
        let set = SetPool {
            scope: scope("shared"),
            role: Role::Transcode,
            capacity: Capacity::new(capacity).unwrap(),
            seen: Revision::new(seen),
        };
        let told = |pool: crate::state::Pool| (pool.capacity.get(), pool.revision.get());
        match world.ledger.set_pool(set).await.unwrap() {
            PoolSet::Set { pool } => Ok(told(pool)),
            PoolSet::Mismatch { current } => Err(current.map(told)),
        }
    };
    assert_eq!(set(5, 4).await, Err(None));
    assert_eq!(set(5, 0).await, Ok((5, 1)));
    assert_eq!(set(6, 0).await, Err(Some((5, 1))));
    assert_eq!(set(6, 1).await, Ok((6, 2)));
    assert_eq!(set(6, 1).await, Ok((6, 2)), "the call whose answer was lost");
    assert_eq!(set(7, 1).await, Err(Some((6, 2))));
    // Back to what it was: whoever saw that the first time has not seen this.
    assert_eq!(set(5, 2).await, Ok((5, 3)));
    assert_eq!(
        set(6, 1).await,
        Err(Some((5, 3))),
        "a call that was long on its way"
    );
}

pub(super) async fn a_policy_that_was_long_on_its_way_undoes_no_newer_one(world: World) {
    let world = world.ready().await;
    let set = async |scopes: &[&str], seen: u64| {
        let scopes = scopes.iter().map(|name| scope(name)).collect();
        let set = SetTarget {
            target: ether_types::TargetId::new("w/cpu").unwrap(),
            boot: boot("w1"),
            expected: Some(boot("w1")),
            seen: Revision::new(seen),
            admission: Admission::new([(Role::Transcode, scopes)]).unwrap(),
        };
        match world.ledger.set_target(set).await.unwrap() {
            TargetSet::Set { revision } => Ok(revision.get()),
            TargetSet::Superseded { current } => Err(current.unwrap().revision.get()),
        }
    };
    assert_eq!(set(&["slots"], 1).await, Ok(2));
    assert_eq!(set(&["slots"], 1).await, Ok(2), "the same again");
    assert_eq!(set(&["scratch"], 2).await, Ok(3));
    assert_eq!(
        set(&["slots"], 1).await,
        Err(3),
        "the first of them, delivered once more"
    );
    let refused = world.ledger.reserve(ask(1, "op", 0)).await.unwrap();
    let unlisted = Reserved::NotAdmitted(Refusal::NotListed(scope("slots")));
    assert_eq!(refused, unlisted, "the newest policy stands");
}

pub(super) async fn an_incarnation_is_replaced_only_by_who_saw_it(world: World) {
    let stands = |current: &str| Err(Some(boot(current)));
    assert_eq!(
        world.target("w/cpu", "w1", Some("w0"), &["slots"]).await,
        Err(None)
    );
    assert_eq!(world.target("w/cpu", "w1", None, &["slots"]).await, Ok(()));
    assert_eq!(
        world.target("w/cpu", "w1", None, &["slots"]).await,
        Ok(()),
        "the same again"
    );
    // A start-up that saw nothing does not replace what lives.
    assert_eq!(world.target("w/cpu", "w2", None, &["slots"]).await, stands("w1"));
    assert_eq!(world.target("w/cpu", "w2", Some("w1"), &["slots"]).await, Ok(()));
    // The old incarnation's late update finds that it is one.
    assert_eq!(world.target("w/cpu", "w1", Some("w1"), &[]).await, stands("w2"));
    assert_eq!(
        world.target("w/cpu", "w3", Some("w1"), &["slots"]).await,
        stands("w2")
    );
}

pub(super) async fn a_policy_update_clears_no_claim(world: World) {
    let world = world.ready().await;
    let old = world.grant(ask(1, "a", 0)).await;
    for (seen, scopes) in [("w1", &["slots", "scratch"][..]), ("w2", &["slots"])] {
        assert_eq!(world.target("w/cpu", "w2", Some(seen), scopes).await, Ok(()));
    }
    assert_eq!(
        (world.used("slots").await, world.used("scratch").await),
        (1_000, 10)
    );
    // The next incarnation shares the budget with what the old one may still run.
    let next = |slot, operation| Reserve {
        target_boot: boot("w2"),
        claims: claims(&[("slots", 1_000)]),
        ..ask(slot, operation, 0)
    };
    world.grant(next(2, "b")).await;
    let full = world.ledger.reserve(next(3, "c")).await.unwrap();
    assert!(
        matches!(full, Reserved::NoCapacity { left: Some(0), .. }),
        "{full:?}"
    );
    // What is released is what was claimed, whatever the policy says by now.
    world.retire(&old.fence).await;
    assert_eq!(
        (world.used("slots").await, world.used("scratch").await),
        (1_000, 0)
    );
    world.audit().await;
}
