//! Deadlines, fences and lookups (P9, P10, P12, P22, P25).

use std::time::Duration;

use ether_types::{ClusterId, Fence, Generation, OperationId, Role, TargetId, Timestamp};

use crate::bounds::{EvidenceBody, PageSize};
use crate::error::Retirement;
use crate::evidence::{Author, EvidenceKind};
use crate::outcome::{Authority, Mismatch, Recorded, Released, Renewed, Reserved};
use crate::read::{Owner, Unretired};
use crate::tests::world::{START, World, ask, ask_gpu, boot, later, look, node, session};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(START + seconds * 1_000_000)
}

pub(super) async fn a_deadline_only_moves_forward_and_within_the_maximum(world: World) {
    let world = world.ready().await;
    let fence = world.grant(ask(1, "op", 0)).await.fence;
    let renew = |to: Timestamp| world.ledger.renew(fence.clone(), to);
    let moved = |deadline, moved| Renewed::Renewed { deadline, moved };

    assert_eq!(renew(at(60)).await.unwrap(), moved(at(60), true));
    assert_eq!(
        renew(at(60)).await.unwrap(),
        moved(at(60), false),
        "the same again"
    );
    assert_eq!(
        renew(at(40)).await.unwrap(),
        moved(at(60), false),
        "a late older one"
    );
    assert_eq!(renew(at(1)).await.unwrap(), moved(at(60), false));
    let latest = at(600);
    assert_eq!(
        renew(latest.checked_add(Duration::from_micros(1)).unwrap())
            .await
            .unwrap(),
        Renewed::TooFar { latest }
    );
    assert_eq!(renew(latest).await.unwrap(), moved(latest, true));
    let record = world.ledger.lookup(session(1)).await.unwrap().unwrap();
    assert_eq!((record.initial_deadline, record.deadline), (at(30), latest));
}

pub(super) async fn expired_authority_is_never_revived(world: World) {
    let world = world.ready().await;
    let granted = world.grant(ask(1, "op", 0)).await;
    // Up to the deadline and not at it.
    world.advance(Duration::from_micros(29_999_999)).await;
    let record = world.ledger.lookup(session(1)).await.unwrap().unwrap();
    assert_eq!(record.authority, Authority::Live);
    world.advance(Duration::from_micros(1)).await;
    let deadline = granted.initial_deadline;
    for to in [later(&granted, Duration::from_secs(1)), deadline, at(1)] {
        let renewed = world.ledger.renew(granted.fence.clone(), to).await.unwrap();
        assert_eq!(renewed, Renewed::Expired { deadline });
    }
    let record = world.ledger.lookup(session(1)).await.unwrap().unwrap();
    assert_eq!(
        (record.authority, record.deadline),
        (Authority::Expired, deadline)
    );
    world.retire(&granted.fence).await;
    let renewed = world.ledger.renew(granted.fence, at(60)).await.unwrap();
    assert_eq!(renewed, Renewed::Retired);
}

pub(super) async fn expiry_frees_nothing(world: World) {
    let world = world.ready().await;
    world.grant(ask(1, "a", 0)).await;
    world.grant(ask(2, "b", 0)).await;
    world.advance(Duration::from_secs(365 * 86_400)).await;
    let full = world.ledger.reserve(ask(3, "c", 0)).await.unwrap();
    assert!(
        matches!(full, Reserved::NoCapacity { left: Some(0), .. }),
        "{full:?}"
    );
    let again = world.ledger.reserve(ask(1, "d", 1)).await.unwrap();
    assert!(matches!(again, Reserved::Unretired { .. }), "{again:?}");
    // Nor does a start-up.
    let (restarted, _) = world.join(crate::tests::world::options()).await.unwrap();
    let full = restarted.reserve(ask(3, "c", 0)).await.unwrap();
    assert!(
        matches!(full, Reserved::NoCapacity { left: Some(0), .. }),
        "{full:?}"
    );
    assert_eq!(world.used("slots").await, 2_000);
    world.audit().await;
}

/// `fence` with one field changed, in every way a stale or confused holder could have it.
fn variants(fence: &Fence) -> Vec<Fence> {
    let f = || fence.clone();
    vec![
        Fence {
            cluster: ClusterId::new("other").unwrap(),
            ..f()
        },
        Fence {
            controller_node: node("d"),
            ..f()
        },
        Fence {
            controller_boot: boot("c2"),
            ..f()
        },
        Fence {
            target: TargetId::new("w/gpu0").unwrap(),
            ..f()
        },
        Fence {
            target_boot: boot("w2"),
            ..f()
        },
        Fence {
            role: Role::Delivery,
            ..f()
        },
        Fence {
            operation: OperationId::new("other").unwrap(),
            ..f()
        },
    ]
}

pub(super) async fn every_field_of_the_fence_counts(world: World) {
    let world = world.ready().await;
    let fence = world.grant(ask(1, "op", 0)).await.fence;
    let conflict = Mismatch::Conflict {
        current: Box::new(fence.clone()),
    };
    let foreign = Mismatch::Foreign {
        cluster: fence.cluster.clone(),
    };
    let mut wrong: Vec<(Fence, Mismatch)> = variants(&fence)
        .into_iter()
        .map(|variant| match variant.cluster == fence.cluster {
            true => (variant, conflict.clone()),
            false => (variant, foreign.clone()),
        })
        .collect();
    let absent = [
        Fence {
            session: session(2),
            ..fence.clone()
        },
        Fence {
            generation: Generation::new(2).unwrap(),
            ..fence.clone()
        },
    ];
    wrong.extend(absent.map(|variant| (variant, Mismatch::Absent)));
    for (variant, mismatch) in wrong {
        let renewed = world.ledger.renew(variant.clone(), at(60)).await.unwrap();
        assert_eq!(renewed, Renewed::Fenced(mismatch.clone()), "renewing {variant:?}");
        let retired = world.ledger.retire(variant.clone(), None).await.unwrap();
        assert!(
            matches!(&retired, Retirement::Proved { released: Released::Fenced(m), .. } if *m == mismatch),
            "retiring {variant:?} gave {retired:?}"
        );
        let author = Author::Target {
            boot: variant.target_boot.clone(),
        };
        let body = EvidenceBody::new("{}").unwrap();
        let recorded = world
            .ledger
            .record_evidence(variant.clone(), author, EvidenceKind::Reaped, body);
        assert_eq!(
            recorded.await.unwrap(),
            Recorded::Fenced(mismatch),
            "recording {variant:?}"
        );
    }
    let record = world.ledger.lookup(session(1)).await.unwrap().unwrap();
    assert_eq!((record.authority, record.deadline), (Authority::Live, at(30)));
    world.audit().await;
}

pub(super) async fn renewing_many_answers_row_by_row(world: World) {
    let world = world.ready().await;
    world.pool("scratch", 100_000).await;
    world.pool("more-slots", 2_000_000).await;
    let calls: Vec<_> = (0..600)
        .map(|slot| {
            let ledger = world.ledger.clone();
            tokio::spawn(async move { ledger.reserve(ask_gpu(slot, "op", 0)).await.unwrap() })
        })
        .collect();
    let mut fences = Vec::new();
    for call in calls {
        match call.await.unwrap() {
            Reserved::Granted(granted) => fences.push(granted.fence),
            other => panic!("{other:?}"),
        }
    }
    world.retire(&fences[3]).await;
    let mut renewals: Vec<_> = fences.iter().map(|fence| (fence.clone(), at(90))).collect();
    renewals[5].0.operation = OperationId::new("other").unwrap();
    renewals[7].1 = at(10_000);
    renewals[599].1 = at(20);
    // One fence twice in a call: the second finds what the first did.
    renewals.push((fences[0].clone(), at(90)));

    let before = world.ledger.usage().await.unwrap().revision;
    let answers = world.ledger.renew_many(renewals).await.unwrap();
    assert_eq!(answers.len(), 601);
    let moved = |deadline, moved| Renewed::Renewed { deadline, moved };
    for (slot, answer) in answers.into_iter().enumerate() {
        let expected = match slot {
            3 => Renewed::Retired,
            5 => Renewed::Fenced(Mismatch::Conflict {
                current: Box::new(fences[5].clone()),
            }),
            7 => Renewed::TooFar { latest: at(600) },
            599 => moved(at(30), false),
            600 => moved(at(90), false),
            _ => moved(at(90), true),
        };
        assert_eq!(answer.unwrap(), expected, "row {slot}");
    }
    assert!(
        world.ledger.usage().await.unwrap().revision - before <= 2,
        "few transactions"
    );
    let sessions: Vec<_> = fences.iter().map(|fence| fence.session.clone()).collect();
    let records = look(&world.ledger, &sessions).await;
    for (slot, record) in records.into_iter().enumerate() {
        let expected = if matches!(slot, 3 | 5 | 7 | 599) {
            at(30)
        } else {
            at(90)
        };
        assert_eq!(record.unwrap().deadline, expected, "row {slot}");
    }
}

pub(super) async fn lookups_tell_authority_by_the_databases_clock(world: World) {
    let world = world.ready().await;
    let live = world.grant(ask(1, "a", 0)).await.fence;
    let over = world.grant(ask(2, "b", 0)).await.fence;
    world.ledger.renew(live.clone(), at(100)).await.unwrap();
    world.advance(Duration::from_secs(31)).await;
    let gone = world.grant(ask_gpu(3, "c", 0)).await.fence;
    world.retire(&gone).await;

    let asked = [session(9), session(2), session(1), session(3), session(1)];
    let found = look(&world.ledger, &asked).await;
    let authority: Vec<_> = found.iter().map(|r| r.as_ref().map(|r| r.authority)).collect();
    let (live_, over_, gone_) = (
        Some(Authority::Live),
        Some(Authority::Expired),
        Some(Authority::Retired),
    );
    assert_eq!(authority, [None, over_, live_, gone_, live_]);
    assert_eq!(found[1].as_ref().unwrap().fence, over);
    assert_eq!(
        found[3].as_ref().unwrap().claims.len(),
        2,
        "claims stay as history"
    );
    for (record, session) in found.into_iter().zip(asked) {
        let settled = world.ledger.lookup(session).await.unwrap();
        assert_eq!(settled, record, "both ways of reading agree");
        assert!(settled.is_none_or(|record| record.now == at(31)));
    }
    assert!(world.ledger.lookup_many(&[]).await.unwrap().is_empty());
}

pub(super) async fn unretired_assignments_come_in_pages(world: World) {
    let world = world.ready().await;
    world.pool("slots", 100_000).await;
    for slot in 0..5 {
        world.grant(ask(slot, "op", 0)).await;
    }
    world.grant(ask_gpu(5, "op", 0)).await;
    let retired = world.ledger.lookup(session(2)).await.unwrap().unwrap();
    world.retire(&retired.fence).await;
    // Expired work is unretired all the same, and so is that of an incarnation that was replaced.
    world.advance(Duration::from_secs(40)).await;
    world
        .target("w/cpu", "w2", Some("w1"), &["slots", "scratch"])
        .await
        .unwrap();

    let pages = async |owner: Owner, limit: u64| {
        let mut sizes = Vec::new();
        let mut slots = Vec::new();
        let mut after = None;
        loop {
            let asked = Unretired {
                owner: owner.clone(),
                after,
                limit: PageSize::new(limit).unwrap(),
            };
            let page = world.ledger.unretired(asked).await.unwrap();
            sizes.push(page.records.len());
            slots.extend(page.records.iter().map(|record| record.fence.session.slot()));
            after = page.next;
            if after.is_none() {
                return (sizes, slots);
            }
        }
    };
    let w1 = Owner::Target {
        node: node("w"),
        boot: boot("w1"),
    };
    assert_eq!(pages(w1.clone(), 2).await, (vec![2, 2], vec![0, 1, 3, 4]));
    assert_eq!(pages(w1, 3).await, (vec![3, 1], vec![0, 1, 3, 4]));
    assert_eq!(
        pages(Owner::Controller(node("c")), 1_000).await,
        (vec![5], vec![0, 1, 3, 4, 5])
    );
    assert_eq!(pages(Owner::Controller(node("d")), 5).await, (vec![0], vec![]));
    let other = Owner::Target {
        node: node("w"),
        boot: boot("w2"),
    };
    assert_eq!(pages(other, 5).await, (vec![0], vec![]));
}
