//! Reservations (P6 to P8).

use std::time::Duration;

use ether_types::{Generation, OperationId, TargetId, Timestamp};

use crate::bounds::Lease;
use crate::command::Reserve;
use crate::outcome::{Authority, Mismatch, Renewed, Reserved};
use crate::tests::world::{START, World, ask, ask_gpu, boot, claims, later, node, session};

pub(super) async fn the_first_assignment_is_generation_one(world: World) {
    let world = world.ready().await;
    let granted = world.grant(ask(1, "op", 0)).await;
    assert_eq!(granted.fence.generation, Generation::new(1).unwrap());
    assert_eq!(granted.fence.cluster.as_str(), "test");
    assert_eq!(granted.authority, Authority::Live);
    assert_eq!(
        granted.initial_deadline,
        Timestamp::from_micros(START + 30_000_000)
    );
    assert_eq!(
        (world.used("slots").await, world.used("scratch").await),
        (1_000, 10)
    );
    assert_eq!(world.ledger.usage().await.unwrap().total, 1);
    world.audit().await;
}

pub(super) async fn all_scopes_or_none_are_charged(world: World) {
    let world = world.ready().await;
    let greedy = Reserve {
        claims: claims(&[("slots", 1), ("scratch", 101)]),
        ..ask(1, "op", 0)
    };
    let refused = world.ledger.reserve(greedy).await.unwrap();
    assert!(
        matches!(&refused, Reserved::NoCapacity { scope, left: Some(100) } if scope.as_str() == "scratch"),
        "{refused:?}"
    );
    assert_eq!((world.used("slots").await, world.used("scratch").await), (0, 0));
    assert_eq!(
        world.ledger.usage().await.unwrap().total,
        0,
        "a refusal leaves no row"
    );
    assert!(world.ledger.lookup(session(1)).await.unwrap().is_none());
}

pub(super) async fn capacity_shared_by_two_targets_is_never_exceeded(world: World) {
    let world = world.ready().await;
    world.pool("scratch", 25).await;
    world.grant(ask(1, "a", 0)).await;
    world.grant(ask_gpu(2, "b", 0)).await;
    let third = world.ledger.reserve(ask_gpu(3, "c", 0)).await.unwrap();
    assert!(
        matches!(third, Reserved::NoCapacity { left: Some(5), .. }),
        "{third:?}"
    );
    world.audit().await;
}

pub(super) async fn the_same_request_again_returns_the_first_answer(world: World) {
    let world = world.ready().await;
    let first = world.grant(ask(1, "op", 0)).await;
    world
        .ledger
        .renew(first.fence.clone(), later(&first, Duration::from_secs(60)))
        .await
        .unwrap();
    world.advance(Duration::from_secs(40)).await;

    // The order of the claims is no part of the request.
    let again = Reserve {
        claims: claims(&[("scratch", 10), ("slots", 1_000)]),
        ..ask(1, "op", 0)
    };
    let Reserved::Replayed(replayed) = world.ledger.reserve(again.clone()).await.unwrap() else {
        panic!("not a replay");
    };
    assert_eq!(replayed.fence, first.fence);
    assert_eq!(
        replayed.initial_deadline, first.initial_deadline,
        "no renewal is inherited"
    );
    assert_eq!(
        replayed.authority,
        Authority::Live,
        "judged by the renewed deadline"
    );
    assert_eq!(world.used("slots").await, 1_000);

    // Neither a target that is gone, nor a pool that is full, changes what was granted.
    world.target("w/cpu", "w2", Some("w1"), &[]).await.unwrap();
    world.pool("slots", 0).await;
    assert!(matches!(
        world.ledger.reserve(again.clone()).await.unwrap(),
        Reserved::Replayed(_)
    ));

    world.retire(&first.fence).await;
    let Reserved::Replayed(replayed) = world.ledger.reserve(again).await.unwrap() else {
        panic!("not a replay");
    };
    assert_eq!(
        replayed.authority,
        Authority::Retired,
        "a retired replay starts nothing"
    );
    assert_eq!(world.used("slots").await, 0);
    world.audit().await;
}

pub(super) async fn the_same_operation_with_another_payload_is_a_conflict(world: World) {
    let world = world.ready().await;
    let first = world.grant(ask(1, "op", 0)).await;
    let same = ask(1, "op", 0);
    let changed = [
        Reserve {
            controller_boot: boot("c2"),
            ..same.clone()
        },
        ask_gpu(1, "op", 0),
        Reserve {
            target: TargetId::new("w/gpu0").unwrap(),
            ..same.clone()
        },
        Reserve {
            target_boot: boot("w2"),
            ..same.clone()
        },
        Reserve {
            role: ether_types::Role::Delivery,
            ..same.clone()
        },
        Reserve {
            expected: Generation::new(1).unwrap(),
            ..same.clone()
        },
        Reserve {
            claims: claims(&[("slots", 999), ("scratch", 10)]),
            ..same.clone()
        },
        Reserve {
            claims: claims(&[("slots", 1_000)]),
            ..same.clone()
        },
        Reserve {
            claims: claims(&[("slots", 1_000), ("scratch-2", 10)]),
            ..same.clone()
        },
        Reserve {
            lease: Lease::new(Duration::from_secs(31)).unwrap(),
            ..same
        },
    ];
    for request in changed {
        let outcome = world.ledger.reserve(request.clone()).await.unwrap();
        assert!(
            matches!(&outcome, Reserved::Conflict { current } if **current == first.fence),
            "{request:?} gave {outcome:?}"
        );
    }
    assert_eq!(world.used("slots").await, 1_000);
    world.audit().await;
}

pub(super) async fn a_session_is_reused_only_after_its_retirement(world: World) {
    let world = world.ready().await;
    let first = world.grant(ask(1, "one", 0)).await;
    let early = world.ledger.reserve(ask(1, "two", 1)).await.unwrap();
    assert!(
        matches!(&early, Reserved::Unretired { holder } if **holder == first.fence),
        "{early:?}"
    );
    world.retire(&first.fence).await;
    let second = world.grant(ask_gpu(1, "two", 1)).await;
    assert_eq!(second.fence.generation, Generation::new(2).unwrap());
    assert_eq!(
        (world.used("slots").await, world.used("more-slots").await),
        (0, 1_000)
    );
    let usage = world.ledger.usage().await.unwrap();
    assert_eq!((usage.total, usage.retired), (1, 0), "the row is reused");
    world.audit().await;
}

pub(super) async fn requests_of_older_generations_stay_fenced(world: World) {
    let world = world.ready().await;
    let first = world.grant(ask(1, "one", 0)).await;
    world.retire(&first.fence).await;
    world.grant(ask(1, "two", 1)).await;

    // The first request, delivered once more after all this, neither reserves nor confuses.
    let current = Generation::new(2).unwrap();
    assert_eq!(
        world.ledger.reserve(ask(1, "one", 0)).await.unwrap(),
        Reserved::Superseded { current }
    );
    assert_eq!(
        world.ledger.reserve(ask(1, "new", 0)).await.unwrap(),
        Reserved::Superseded { current }
    );
    assert_eq!(
        world.ledger.reserve(ask(1, "ahead", 7)).await.unwrap(),
        Reserved::Superseded { current }
    );
    let renewed = world
        .ledger
        .renew(first.fence, Timestamp::from_micros(START + 1))
        .await
        .unwrap();
    assert_eq!(renewed, Renewed::Fenced(Mismatch::Superseded { current }));
    assert_eq!(world.used("slots").await, 1_000);
    world.audit().await;
}

pub(super) async fn a_lease_over_the_maximum_is_refused(world: World) {
    let world = world.ready().await;
    let long = Reserve {
        lease: Lease::new(Duration::from_secs(601)).unwrap(),
        ..ask(1, "op", 0)
    };
    assert_eq!(
        world.ledger.reserve(long).await.unwrap(),
        Reserved::LeaseTooLong {
            maximum: Duration::from_secs(600)
        }
    );
    assert_eq!(world.ledger.usage().await.unwrap().total, 0);
    let longest = Reserve {
        lease: Lease::new(Duration::from_secs(600)).unwrap(),
        ..ask(1, "op", 0)
    };
    let granted = world.grant(longest).await;
    assert_eq!(
        granted.initial_deadline,
        Timestamp::from_micros(START + 600_000_000)
    );
}

pub(super) async fn many_callers_at_once_share_transactions_and_never_overbook(world: World) {
    let world = world.ready().await;
    world.pool("scratch", 1_000).await;
    world.pool("slots", 33_000).await;
    let before = world.ledger.usage().await.unwrap().revision;
    let calls: Vec<_> = (0..40)
        .map(|slot| {
            let ledger = world.ledger.clone();
            tokio::spawn(async move { ledger.reserve(ask(slot, "op", 0)).await.unwrap() })
        })
        .collect();
    let mut granted = 0;
    for call in calls {
        match call.await.unwrap() {
            Reserved::Granted(_) => granted += 1,
            Reserved::NoCapacity { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(granted, 33);
    let transactions = world.ledger.usage().await.unwrap().revision - before;
    assert!(
        transactions <= 16,
        "{transactions} transactions for 33 grants at once"
    );
    world.audit().await;

    // An operation under one key from two callers is one assignment.
    let same = OperationId::new("both").unwrap();
    let twin = Reserve {
        operation: same,
        ..ask_gpu(99, "x", 0)
    };
    let (a, b) = tokio::join!(world.ledger.reserve(twin.clone()), world.ledger.reserve(twin));
    let outcomes = [a.unwrap(), b.unwrap()];
    assert_eq!(
        outcomes
            .iter()
            .filter(|o| matches!(o, Reserved::Granted(_)))
            .count(),
        1
    );
    assert_eq!(
        outcomes
            .iter()
            .filter(|o| matches!(o, Reserved::Replayed(_)))
            .count(),
        1
    );
    assert_eq!(node("c").as_str(), "c");
    world.audit().await;
}
