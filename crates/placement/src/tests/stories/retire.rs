//! Retirement and its evidence (P13, P26, D4).

use std::sync::Arc;

use ether_types::Timestamp;
use tokio::sync::Semaphore;

use crate::bounds::EvidenceBody;
use crate::error::{Retirement, Unproven};
use crate::evidence::{Author, EvidenceKind};
use crate::ledger::Ledger;
use crate::outcome::{Authority, Mismatch, Recorded, Released};
use crate::tests::world::{Mode, START, World, ask, boot, node, options, session};

pub(super) async fn without_an_accepted_proof_nothing_is_released(world: World) {
    let world = world.ready().await;
    let fence = world.grant(ask(1, "a", 0)).await.fence;
    let other = world.grant(ask(2, "b", 0)).await.fence;
    let retire = || world.ledger.retire(fence.clone(), None);

    world.judge.set(Mode::Refuse);
    assert!(matches!(
        retire().await,
        Ok(Retirement::Unproven(Unproven::Refused(_)))
    ));
    let mut hasty = options();
    hasty.verify_timeout = std::time::Duration::from_millis(20);
    let (hasty, _) = world.join(hasty).await.unwrap();
    world.judge.set(Mode::Hang);
    let slow = hasty.retire(fence.clone(), None).await;
    assert!(matches!(slow, Ok(Retirement::Unproven(Unproven::TimedOut(_)))));
    world.judge.set(Mode::Panic);
    assert!(matches!(
        retire().await,
        Ok(Retirement::Unproven(Unproven::Crashed))
    ));
    world.judge.set(Mode::Other(Box::new(other.clone())));
    assert!(matches!(
        retire().await,
        Ok(Retirement::Unproven(Unproven::OtherFence(fence))) if *fence == other
    ));
    let (bare, _) = Ledger::open(&world.store, options(), None).await.unwrap();
    assert!(matches!(
        bare.retire(fence.clone(), None).await,
        Ok(Retirement::Unproven(Unproven::NoVerifier))
    ));

    assert_eq!(world.used("slots").await, 2_000);
    let record = world.ledger.lookup(session(1)).await.unwrap().unwrap();
    assert_eq!(record.authority, Authority::Live);
    world.judge.set(Mode::Accept);
    assert_eq!(world.retire(&fence).await, Released::Retired { already: false });
    assert_eq!(world.used("slots").await, 1_000);
    world.audit().await;
}

pub(super) async fn an_answer_after_the_assignment_moved_on_releases_nothing(world: World) {
    let world = world.ready().await;
    let first = world.grant(ask(1, "one", 0)).await.fence;
    let asked = Arc::new(Semaphore::new(0));
    let go = Arc::new(Semaphore::new(0));
    world
        .judge
        .set(Mode::Wait(Arc::clone(&asked), Arc::clone(&go), true));
    // One process has one verdict about an assignment at a time; another one has its own.
    let (ledger, _) = world.join(options()).await.unwrap();
    let fence = first.clone();
    let slow = tokio::spawn(async move { ledger.retire(fence, None).await.unwrap() });
    asked.acquire().await.unwrap().forget();

    // While the verifier thinks, the ledger is free: the session is retired, and assigned again.
    world.judge.set(Mode::Accept);
    world.retire(&first).await;
    let second = world.grant(ask(1, "two", 1)).await.fence;
    go.add_permits(1);
    let late = slow.await.unwrap();
    assert!(
        matches!(
            &late,
            Retirement::Proved { released: Released::Fenced(Mismatch::Superseded { current }), .. }
                if *current == second.generation
        ),
        "{late:?}"
    );
    assert_eq!(
        world.used("slots").await,
        1_000,
        "the second assignment keeps its units"
    );
    world.audit().await;
}

pub(super) async fn a_retirement_repeated_is_a_success(world: World) {
    let world = world.ready().await;
    let fence = world.grant(ask(1, "op", 0)).await.fence;
    assert_eq!(world.retire(&fence).await, Released::Retired { already: false });
    // The evidence is consumed by now, so that the verifier could not accept again, and need not.
    world.judge.set(Mode::Refuse);
    assert_eq!(world.retire(&fence).await, Released::Retired { already: true });
    assert_eq!(world.used("slots").await, 0);
    let usage = world.ledger.usage().await.unwrap();
    assert_eq!((usage.total, usage.retired), (1, 1));
    world.audit().await;
}

pub(super) async fn a_repetition_that_overtakes_the_verifier_is_a_success(world: World) {
    let world = world.ready().await;
    let fence = world.grant(ask(1, "op", 0)).await.fence;
    let asked = Arc::new(Semaphore::new(0));
    let go = Arc::new(Semaphore::new(0));
    world
        .judge
        .set(Mode::Wait(Arc::clone(&asked), Arc::clone(&go), false));
    let ((ledger, _), repeated) = (world.join(options()).await.unwrap(), fence.clone());
    let repeated = tokio::spawn(async move { ledger.retire(repeated, None).await.unwrap() });
    asked.acquire().await.unwrap().forget();
    // The call that it repeats succeeds first and consumes the evidence, which the verifier then misses.
    world.judge.set(Mode::Accept);
    assert_eq!(world.retire(&fence).await, Released::Retired { already: false });
    go.add_permits(1);
    let repeated = repeated.await.unwrap();
    assert!(
        matches!(
            repeated,
            Retirement::Proved {
                released: Released::Retired { already: true },
                ..
            }
        ),
        "{repeated:?}"
    );
    // What never was is told from what is not proved.
    world.judge.set(Mode::Refuse);
    let mut unknown = fence;
    unknown.session = session(9);
    let unknown = world.ledger.retire(unknown, None).await.unwrap();
    assert!(
        matches!(
            unknown,
            Retirement::Proved {
                released: Released::Fenced(Mismatch::Absent),
                ..
            }
        ),
        "{unknown:?}"
    );
    world.audit().await;
}

fn source(name: &str, incarnation: &str) -> Author {
    Author::Source {
        node: node(name),
        boot: boot(incarnation),
    }
}

pub(super) async fn a_liar_keeps_no_owner_out(world: World) {
    let world = world.ready().await;
    let fence = world.grant(ask(1, "op", 0)).await.fence;
    let record = |author: Author, text: &str| {
        let body = EvidenceBody::new(text).unwrap();
        world
            .ledger
            .record_evidence(fence.clone(), author, EvidenceKind::Reaped, body)
    };
    // Any node may write as a source; whose source it was the ledger cannot know.
    for author in [source("liar", "l1"), source("files", "f1"), source("files", "f2")] {
        assert_eq!(record(author, "{}").await.unwrap(), Recorded::Recorded);
    }
    // A boot's first word stays its word.
    assert!(matches!(
        record(source("files", "f1"), "[]").await.unwrap(),
        Recorded::Conflict { current } if current.author == source("files", "f1")
    ));
    let target = Author::Target { boot: boot("w1") };
    assert_eq!(record(target, "{}").await.unwrap(), Recorded::Recorded);
    world.retire(&fence).await;
    let seen = world.judge.seen.lock().unwrap().pop().unwrap();
    assert_eq!(seen.stored.len(), 4, "the verifier sees all of it");
}

pub(super) async fn places_for_evidence_are_bounded_and_the_retirement_needs_none(world: World) {
    let world = world.ready().await;
    let fence = world.grant(ask(1, "op", 0)).await.fence;
    let record = |author: Author| {
        let body = EvidenceBody::new("{}").unwrap();
        world
            .ledger
            .record_evidence(fence.clone(), author, EvidenceKind::Reaped, body)
    };
    for n in 0..7 {
        for m in 0..8 {
            let author = source(&format!("n{n}"), &format!("b{m}"));
            assert_eq!(record(author).await.unwrap(), Recorded::Recorded);
        }
        if n == 0 {
            let ninth = record(source("n0", "b8")).await.unwrap();
            assert_eq!(ninth, Recorded::Full { kept: 8 });
        }
    }
    // Eight of the sixty-four are the target's own, whoever else has written.
    assert_eq!(
        record(source("n7", "b0")).await.unwrap(),
        Recorded::Full { kept: 56 }
    );
    let target = Author::Target { boot: boot("w1") };
    assert_eq!(record(target).await.unwrap(), Recorded::Recorded);
    assert_eq!(record(source("n0", "b0")).await.unwrap(), Recorded::Already);
    let offered = EvidenceBody::new("the operator's word").unwrap();
    let retired = world.ledger.retire(fence.clone(), Some(offered)).await.unwrap();
    assert!(matches!(
        retired,
        Retirement::Proved {
            released: Released::Retired { already: false },
            ..
        }
    ));
    assert!(world.ledger.evidence(&fence).await.unwrap().pieces.is_empty());
}

pub(super) async fn what_an_ending_was_proved_by_is_told(world: World) {
    let world = world.ready().await;
    let fence = world.grant(ask(1, "op", 0)).await.fence;
    for (first, proof) in [(true, Some(EvidenceKind::Reaped)), (false, None)] {
        let retired = world.ledger.retire(fence.clone(), None).await.unwrap();
        assert!(
            matches!(
                &retired,
                Retirement::Proved { released: Released::Retired { already }, by }
                    if *already != first && *by == proof
            ),
            "{retired:?}"
        );
    }
}

pub(super) async fn what_is_nobodys_to_claim_is_refused(world: World) {
    let world = world.ready().await;
    let fence = world.grant(ask(1, "op", 0)).await.fence;
    let record = |author: Author, kind| {
        let body = EvidenceBody::new("{}").unwrap();
        world.ledger.record_evidence(fence.clone(), author, kind, body)
    };
    let target = |incarnation| Author::Target {
        boot: boot(incarnation),
    };
    let (attested, succeeded) = (EvidenceKind::Attested, EvidenceKind::Succeeded);
    world
        .target("w/cpu", "w2", Some("w1"), &["slots", "scratch"])
        .await
        .unwrap();
    for author in [target("w1"), target("w2"), source("files", "f1")] {
        let refused = record(author, attested).await.unwrap();
        assert_eq!(refused, Recorded::NotTheirs { kind: attested });
    }
    let itself = record(target("w1"), succeeded).await.unwrap();
    assert_eq!(itself, Recorded::NotTheirs { kind: succeeded });
    assert!(world.ledger.evidence(&fence).await.unwrap().pieces.is_empty());
    // Neither refusal took the place of the truth.
    for (author, kind) in [(target("w1"), EvidenceKind::Reaped), (target("w2"), succeeded)] {
        assert_eq!(record(author, kind).await.unwrap(), Recorded::Recorded);
    }
}

pub(super) async fn evidence_is_kept_once_and_consumed_by_the_retirement(world: World) {
    let world = world.ready().await;
    let fence = world.grant(ask(1, "op", 0)).await.fence;
    let target = Author::Target { boot: boot("w1") };
    let source = Author::Source {
        node: node("files"),
        boot: boot("f1"),
    };
    let body = |text: &str| EvidenceBody::new(text).unwrap();
    let record = |author: &Author, kind, text: &str| {
        world
            .ledger
            .record_evidence(fence.clone(), author.clone(), kind, body(text))
    };
    let reaped = EvidenceKind::Reaped;
    assert_eq!(
        record(&target, reaped, "{\"exit\":0}").await.unwrap(),
        Recorded::Recorded
    );
    assert_eq!(
        record(&target, reaped, "{\"exit\":0}").await.unwrap(),
        Recorded::Already
    );
    let second = record(&target, EvidenceKind::Barrier, "{}").await.unwrap();
    assert!(
        matches!(&second, Recorded::Conflict { current } if current.kind == reaped),
        "{second:?}"
    );
    assert_eq!(
        record(&source, reaped, "{\"readers\":0}").await.unwrap(),
        Recorded::Recorded
    );

    let kept = world.ledger.evidence(&fence).await.unwrap().pieces;
    assert_eq!(kept.len(), 2);
    assert!(
        kept.iter()
            .all(|e| e.fence == fence && e.at == Timestamp::from_micros(START))
    );
    assert!(
        kept.iter()
            .any(|e| e.author == source && e.body.as_str() == "{\"readers\":0}")
    );

    let offered = Some(body("{\"offered\":true}"));
    let retired = world.ledger.retire(fence.clone(), offered.clone()).await.unwrap();
    assert!(matches!(
        retired,
        Retirement::Proved {
            released: Released::Retired { already: false },
            ..
        }
    ));
    let seen = world.judge.seen.lock().unwrap().pop().unwrap();
    assert_eq!(
        (seen.fence, seen.offered, seen.stored),
        (fence.clone(), offered, kept)
    );
    assert!(
        world.ledger.evidence(&fence).await.unwrap().pieces.is_empty(),
        "consumed"
    );
    assert_eq!(record(&target, reaped, "{}").await.unwrap(), Recorded::Retired);

    // The next generation starts without a trace of it.
    let next = world.grant(ask(1, "next", 1)).await.fence;
    assert!(world.ledger.evidence(&next).await.unwrap().pieces.is_empty());
    assert!(matches!(
        record(&target, reaped, "{}").await.unwrap(),
        Recorded::Fenced(Mismatch::Superseded { .. })
    ));
    world.audit().await;
}

pub(super) async fn only_the_target_or_its_successor_speaks_for_it(world: World) {
    let world = world.ready().await;
    let fence = world.grant(ask(1, "op", 0)).await.fence;
    let record = |boot_id: &str| {
        let author = Author::Target { boot: boot(boot_id) };
        let body = EvidenceBody::new("{}").unwrap();
        world
            .ledger
            .record_evidence(fence.clone(), author, EvidenceKind::Succeeded, body)
    };
    assert_eq!(record("w2").await.unwrap(), Recorded::NotAuthor);
    assert_eq!(record("x1").await.unwrap(), Recorded::NotAuthor);
    world
        .target("w/cpu", "w2", Some("w1"), &["slots", "scratch"])
        .await
        .unwrap();
    assert_eq!(
        record("w2").await.unwrap(),
        Recorded::Recorded,
        "the boot that took its place"
    );
    assert_eq!(record("w3").await.unwrap(), Recorded::NotAuthor);
}
