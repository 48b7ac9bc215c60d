//! What the ledger keeps to when something around it is not as it should be: a clock that steps back, a database
//! of somebody else, a row that nobody can have written.

use std::time::Duration;

use ether_store::StoreError;
use ether_types::{ClusterId, Fence, Generation, Timestamp};

use crate::bounds::{EvidenceBody, PageSize};
use crate::command::{Command, ReserveRequest};
use crate::decide::Defect;
use crate::error::{Cause, LedgerError, Retirement, UnknownOutcome};
use crate::evidence::{Author, EvidenceKind};
use crate::ledger::Ledger;
use crate::outcome::{
    Authority, ClockBehind, Mismatch, Outcome, Rebased, Recorded, Released, Renewed, Reserved,
};
use crate::read::{Owner, Unretired};
use crate::sql::schema::COMPONENT;
use crate::sql::{Fault, Unreadable};
use crate::tests::world::{LONG, START, World, ask, ask_gpu, boot, look, node, options, session};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_micros(START + seconds * 1_000_000)
}

/// Changes rows behind the ledger's back.
pub(super) async fn meddle(world: &World, sql: &'static str) {
    let changed = world.ledger.tables().write::<_, StoreError, _>(LONG, move |tx| {
        Box::pin(async move { tx.execute(sql, &[]).await })
    });
    assert!(changed.await.unwrap() > 0, "{sql}");
}

/// A coordinator that has seen nothing yet.
async fn fresh(world: &World) -> Ledger {
    let mut fresh = options();
    fresh.node = node("fresh");
    world.join(fresh).await.unwrap().0
}

pub(super) async fn a_clock_that_steps_back_revives_nothing(world: World) {
    let world = world.ready().await;
    let told = world.grant(ask(1, "told", 0)).await;
    world.advance(Duration::from_secs(31)).await;
    let record = world.ledger.lookup(session(1)).await.unwrap().unwrap();
    assert_eq!(record.authority, Authority::Expired);

    // A process that has seen nothing of it learns from the ledger how late it has been.
    world.set_clock(START + 28_000_000).await;
    let fresh = fresh(&world).await;
    for ledger in [&fresh, &world.ledger] {
        let renewed = ledger.renew(told.fence.clone(), at(60)).await.unwrap();
        assert_eq!(renewed, Renewed::Expired { deadline: at(30) });
        let record = ledger.lookup(session(1)).await.unwrap().unwrap();
        assert_eq!((record.authority, record.now), (Authority::Expired, at(31)));
        let seen = look(ledger, &[session(1)]).await.remove(0).unwrap();
        assert_eq!((seen.authority, seen.now), (Authority::Expired, at(31)));
    }
    // Time stands still until the clock has caught up, and says so.
    let usage = fresh.usage().await.unwrap();
    assert_eq!(usage.behind, Duration::from_secs(3));
    let Reserved::Granted(late) = fresh.reserve(ask(2, "late", 0)).await.unwrap() else {
        panic!("not granted");
    };
    assert_eq!(late.initial_deadline, at(61));
    assert!(matches!(
        fresh.renew(late.fence, at(31 + 601)).await.unwrap(),
        Renewed::TooFar { latest } if latest == at(31 + 600)
    ));
    world.set_clock(START + 40_000_000).await;
    assert_eq!(fresh.usage().await.unwrap().behind, Duration::ZERO);
    let record = fresh.lookup(session(2)).await.unwrap().unwrap();
    assert_eq!((record.authority, record.now), (Authority::Live, at(40)));
    world.audit().await;
}

const YEAR: i64 = 365 * 86_400;

pub(super) async fn a_clock_that_was_ahead_lets_nothing_begin_until_it_is_rebased(world: World) {
    let world = world.ready().await;
    let told = world.grant(ask(1, "told", 0)).await.fence;
    world.set_clock(at(YEAR).as_micros()).await;
    let record = world.ledger.lookup(session(1)).await.unwrap().unwrap();
    assert_eq!(record.authority, Authority::Expired);
    let ahead = world.grant(ask(2, "ahead", 0)).await;
    assert_eq!(ahead.initial_deadline, at(YEAR + 30));

    world.set_clock(at(10).as_micros()).await;
    let closed = ClockBehind {
        behind: Duration::from_secs(YEAR.unsigned_abs() - 10),
        skew: Duration::from_secs(5),
    };
    let fresh = fresh(&world).await;
    for (slot, ledger) in [(3, &world.ledger), (4, &fresh)] {
        assert_eq!(ledger.usage().await.unwrap().behind, closed.behind);
        let refused = ledger.reserve(ask_gpu(slot, "op", 0)).await.unwrap();
        assert_eq!(refused, Reserved::ClockBehind(closed));
        let renewed = ledger.renew(ahead.fence.clone(), at(YEAR + 60)).await.unwrap();
        assert_eq!(renewed, Renewed::ClockBehind(closed));
        // What was, is answered as ever.
        let same = ledger.renew(ahead.fence.clone(), at(YEAR + 30)).await.unwrap();
        assert!(matches!(same, Renewed::Renewed { moved: false, .. }), "{same:?}");
        let replayed = ledger.reserve(ask(2, "ahead", 0)).await.unwrap();
        assert!(matches!(replayed, Reserved::Replayed(_)), "{replayed:?}");
        assert!(ledger.lookup(session(2)).await.unwrap().is_some());
    }
    assert!(closed.to_string().contains("31535990s"), "{closed}");

    // Who has seen the epoch may end it, once nothing depends on what the clock said.
    for (holder, deadline) in [(&ahead.fence, at(YEAR + 30)), (&told, at(30))] {
        let held = Rebased::Held {
            holder: Box::new(holder.clone()),
            deadline,
        };
        assert_eq!(fresh.rebase_clock(0).await.unwrap(), held);
        world.retire(holder).await;
    }
    assert_eq!(
        fresh.rebase_clock(7).await.unwrap(),
        Rebased::Mismatch { current: 0 }
    );
    for moved in [true, false] {
        let rebased = fresh.rebase_clock(0).await.unwrap();
        assert_eq!(rebased, Rebased::Rebased { epoch: 1, moved });
    }
    // Whoever saw the clock ahead goes by the new epoch as well, and takes nobody back with it.
    for (slot, ledger) in [(3, &world.ledger), (4, &fresh)] {
        let usage = ledger.usage().await.unwrap();
        assert_eq!((usage.behind, usage.epoch), (Duration::ZERO, 1));
        let Reserved::Granted(granted) = ledger.reserve(ask_gpu(slot, "op", 0)).await.unwrap() else {
            panic!("not granted");
        };
        assert_eq!(granted.initial_deadline, at(40));
    }
    // And time goes on as it did.
    world.set_clock(at(41).as_micros()).await;
    for (slot, ledger) in [(3, &fresh), (4, &world.ledger)] {
        let seen = look(ledger, &[session(slot)]).await.remove(0).unwrap();
        assert_eq!((seen.authority, seen.now), (Authority::Expired, at(41)));
        let record = ledger.lookup(session(slot)).await.unwrap().unwrap();
        assert_eq!((record.authority, record.now), (Authority::Expired, at(41)));
        let Reserved::Granted(granted) = ledger.reserve(ask_gpu(slot + 4, "op", 0)).await.unwrap() else {
            panic!("not granted");
        };
        assert_eq!(granted.initial_deadline, at(71));
        assert_eq!(ledger.usage().await.unwrap().behind, Duration::ZERO);
    }
    let none = fresh.rebase_clock(u64::MAX).await;
    assert!(matches!(none, Err(LedgerError::Invalid(_))), "{none:?}");
    world.audit().await;
}

pub(super) async fn a_rebase_waits_for_what_lasts_longer(world: World) {
    let world = world.ready().await;
    let granted = world.grant(ask(1, "op", 0)).await;
    world.set_clock(at(YEAR).as_micros()).await;
    let record = world.ledger.lookup(session(1)).await.unwrap().unwrap();
    assert_eq!(record.authority, Authority::Expired);
    // By the clock as it is now the assignment lives on: to let it would be to revive it.
    world.set_clock(at(29).as_micros()).await;
    let held = world.ledger.rebase_clock(0).await.unwrap();
    assert!(matches!(held, Rebased::Held { .. }), "{held:?}");
    // Over by both clocks it is in nobody's way, and keeps what it holds.
    world.set_clock(at(30).as_micros()).await;
    let rebased = world.ledger.rebase_clock(0).await.unwrap();
    assert!(matches!(rebased, Rebased::Rebased { moved: true, .. }));
    let record = world.ledger.lookup(session(1)).await.unwrap().unwrap();
    assert_eq!((record.authority, record.now), (Authority::Expired, at(30)));
    let renewed = world.ledger.renew(granted.fence, at(60)).await.unwrap();
    assert_eq!(renewed, Renewed::Expired { deadline: at(30) });
    assert_eq!(world.used("slots").await, 1_000);
    world.audit().await;
}

pub(super) async fn what_a_process_saw_without_the_lock_it_does_not_unsee(world: World) {
    let world = world.ready().await;
    let granted = world.grant(ask(1, "op", 0)).await;
    let before = world.ledger.usage().await.unwrap().revision;
    world.advance(Duration::from_secs(31)).await;
    let seen = look(&world.ledger, &[session(1)]).await.remove(0);
    assert_eq!(seen.unwrap().authority, Authority::Expired);
    assert_eq!(world.ledger.usage().await.unwrap().revision, before, "a look");
    // Told under the lock from this process's memory alone: written down only where the clock could be as far off,
    // and then no more than what was told.
    for (clock, told) in [(10, 0), (28, 1)] {
        world.set_clock(at(clock).as_micros()).await;
        let renewed = world.ledger.renew(granted.fence.clone(), at(60)).await.unwrap();
        assert_eq!(renewed, Renewed::Expired { deadline: at(30) });
        assert_eq!(world.ledger.usage().await.unwrap().revision, before + told);
    }
    let record = fresh(&world).await.lookup(session(1)).await.unwrap().unwrap();
    assert_eq!((record.authority, record.now), (Authority::Expired, at(30)));
}

pub(super) async fn one_processs_glimpse_of_a_wrong_clock_ends_nobodys_authority(world: World) {
    let world = world.ready().await;
    let kept = world.grant(ask(1, "kept", 0)).await.fence;
    let other = fresh(&world).await;
    world.advance(Duration::from_secs(3_600)).await;
    let seen = look(&world.ledger, &[session(1)]).await.remove(0).unwrap();
    assert_eq!(seen.authority, Authority::Expired);
    world.set_clock(at(1).as_micros()).await;

    // Whoever had the glimpse keeps to it, tells it, changes other things, and grants nothing.
    let record = world.ledger.lookup(session(1)).await.unwrap().unwrap();
    assert_eq!((record.authority, record.now), (Authority::Expired, at(3_600)));
    let renewed = world.ledger.renew(kept.clone(), at(60)).await.unwrap();
    assert_eq!(renewed, Renewed::Expired { deadline: at(30) });
    world.pool("spare", 1).await;
    let by = Author::Target { boot: boot("w1") };
    let body = EvidenceBody::new("{}").unwrap();
    let recorded = world
        .ledger
        .record_evidence(kept.clone(), by, EvidenceKind::Reaped, body);
    assert_eq!(recorded.await.unwrap(), Recorded::Recorded);
    assert_eq!(other.evidence(&kept).await.unwrap().pieces[0].at, at(1));
    let closed = world.ledger.reserve(ask_gpu(2, "op", 0)).await.unwrap();
    assert!(matches!(closed, Reserved::ClockBehind(_)), "{closed:?}");
    let behind = world.ledger.usage().await.unwrap().behind;
    assert_eq!(behind, Duration::from_secs(3_599));

    // Everybody else, and the same process once it is started again, goes by the clock.
    let (again, _) = world.join(options()).await.unwrap();
    for (ledger, slot, deadline) in [(&other, 3, at(40)), (&again, 4, at(50))] {
        assert_eq!(ledger.usage().await.unwrap().behind, Duration::ZERO);
        let record = ledger.lookup(session(1)).await.unwrap().unwrap();
        assert_eq!((record.authority, record.now), (Authority::Live, at(1)));
        let renewed = ledger.renew(kept.clone(), deadline).await.unwrap();
        assert!(
            matches!(renewed, Renewed::Renewed { moved: true, .. }),
            "{renewed:?}"
        );
        let granted = ledger.reserve(ask_gpu(slot, "op", 0)).await.unwrap();
        assert!(matches!(granted, Reserved::Granted(_)), "{granted:?}");
    }
    world.audit().await;
}

pub(super) async fn a_replay_that_tells_an_end_is_kept_to_by_everybody(world: World) {
    let world = world.ready().await;
    let first = world.grant(ask(1, "op", 0)).await;
    world.set_clock(at(31).as_micros()).await;
    let replayed = world.ledger.reserve(ask(1, "op", 0)).await.unwrap();
    assert!(
        matches!(&replayed, Reserved::Replayed(told) if told.authority == Authority::Expired),
        "{replayed:?}"
    );
    world.set_clock(at(28).as_micros()).await;
    let renewed = fresh(&world).await.renew(first.fence, at(60)).await.unwrap();
    assert_eq!(renewed, Renewed::Expired { deadline: at(30) });
}

pub(super) async fn every_request_is_refused_where_the_ledger_is_another_clusters(world: World) {
    let world = world.ready().await;
    let fence = world.grant(ask(1, "op", 0)).await.fence;
    let foreign = Fence {
        cluster: ClusterId::new("elsewhere").unwrap(),
        ..fence.clone()
    };
    let mismatch = Mismatch::Foreign {
        cluster: fence.cluster.clone(),
    };
    // A fence of elsewhere is told so, whatever its generation is.
    let later = Fence {
        generation: Generation::new(7).unwrap(),
        ..foreign.clone()
    };
    for fence in [&foreign, &later] {
        let renewed = world.ledger.renew(fence.clone(), at(60)).await.unwrap();
        assert_eq!(renewed, Renewed::Fenced(mismatch.clone()));
        assert!(matches!(
            world.ledger.retire(fence.clone(), None).await.unwrap(),
            Retirement::Proved {
                released: Released::Fenced(Mismatch::Foreign { .. }),
                ..
            }
        ));
        assert!(matches!(
            world.ledger.evidence(fence).await,
            Err(LedgerError::Foreign(Some(_)))
        ));
    }

    // And the database itself may turn out to be somebody else's.
    for (sql, owner) in [
        (
            "UPDATE placement_meta SET cluster = 'elsewhere'",
            Some(ClusterId::new("elsewhere").unwrap()),
        ),
        ("UPDATE placement_meta SET cluster = NULL", None),
    ] {
        meddle(&world, sql).await;
        let l = &world.ledger;
        let body = EvidenceBody::new("{}").unwrap();
        let by = Author::Target { boot: boot("w1") };
        let page = Unretired {
            owner: Owner::Controller(node("nobody")),
            after: None,
            limit: PageSize::MAX,
        };
        let renewals = vec![(fence.clone(), at(60))];
        let many = l.renew_many(renewals).await.unwrap().remove(0).map(drop);
        let answers = [
            l.reserve(ask(1, "op", 0)).await.map(drop),
            l.reserve(ask(2, "new", 0)).await.map(drop),
            l.renew(fence.clone(), at(60)).await.map(drop),
            many,
            l.lookup(session(1)).await.map(drop),
            l.lookup_many(&[session(77)]).await.map(drop),
            l.unretired(page).await.map(drop),
            l.usage().await.map(drop),
            l.evidence(&fence).await.map(drop),
            l.retire(fence.clone(), None).await.map(drop),
            l.record_evidence(fence.clone(), by, EvidenceKind::Reaped, body)
                .await
                .map(drop),
            l.withdraw(node("c"), boot("c1")).await.map(drop),
        ];
        for (n, answer) in answers.into_iter().enumerate() {
            assert!(
                matches!(&answer, Err(LedgerError::Foreign(found)) if *found == owner),
                "call {n}: {answer:?}"
            );
        }
    }
    meddle(&world, "UPDATE placement_meta SET cluster = 'test'").await;
    let record = world.ledger.lookup(session(1)).await.unwrap().unwrap();
    assert_eq!((record.authority, record.deadline), (Authority::Live, at(30)));
    world.audit().await;
}

/// What each of `commands`, sent as one group, came to: whether it has an outcome, and else its fault.
async fn each(world: &World, commands: Vec<Command>) -> Vec<Result<Outcome, String>> {
    let answers = world.ledger.each_command(commands).await.unwrap();
    let told = |answer| match answer {
        Ok(outcome) => Ok(outcome),
        Err(LedgerError::Unknown(UnknownOutcome {
            cause: Cause::Fault(fault),
        })) => Err(match &*fault {
            Fault::Corrupt(bad) => format!("{}.{} {}", bad.table, bad.column, bad.row),
            Fault::Defect(Defect::Accounting) => "accounting".to_owned(),
            Fault::Store(StoreError::Constraint(_)) => "constraint".to_owned(),
            other => panic!("{other}"),
        }),
        Err(other) => panic!("{other}"),
    };
    answers.into_iter().map(told).collect()
}

pub(super) async fn one_bad_row_fails_only_who_asked_for_it(world: World) {
    let world = world.ready().await;
    world.pool("slots", 100_000).await;
    world.pool("scratch", 1_000).await;
    let mut fences = Vec::new();
    for slot in 0..8 {
        fences.push(world.grant(ask(slot, "op", 0)).await.fence);
    }
    // One row does not parse, one retirement would take back more than is in use, and one claim was left behind.
    meddle(
        &world,
        "UPDATE placement_sessions SET claims = 'x' WHERE session = 'c/2'",
    )
    .await;
    meddle(
        &world,
        "UPDATE placement_sessions SET claims = 'scratch=900,slots=1' WHERE session = 'c/5'",
    )
    .await;
    meddle(
        &world,
        "INSERT INTO placement_claims VALUES ('c/30', 'slots', 'transcode', 1)",
    )
    .await;
    let reserve = |slot| Command::Reserve(ReserveRequest::new(ask(slot, "new", 0)).unwrap());
    let renew = |slot: usize| Command::Renew {
        fence: fences[slot].clone(),
        deadline: at(60),
    };
    let retire = |slot: usize| Command::Retire {
        fence: fences[slot].clone(),
    };
    let group = vec![
        renew(0),
        renew(2),
        reserve(20),
        reserve(30),
        retire(1),
        retire(5),
        renew(3),
        renew(2),
        reserve(21),
    ];
    let answers = each(&world, group).await;
    let faults: Vec<_> = answers
        .iter()
        .map(|a| a.as_ref().err().map(String::as_str))
        .collect();
    assert_eq!(
        faults,
        [
            None,
            Some("placement_sessions.claims c/2"),
            None,
            Some("constraint"),
            None,
            Some("accounting"),
            None,
            Some("placement_sessions.claims c/2"),
            None
        ]
    );
    assert!(matches!(answers[2], Ok(Outcome::Reserve(Reserved::Granted(_)))));
    assert!(matches!(
        answers[4],
        Ok(Outcome::Retire(Released::Retired { already: false }))
    ));
    // A long renewal keeps its answers apart as well.
    let renewals = fences.iter().map(|fence| (fence.clone(), at(90))).collect();
    let renewed = world.ledger.renew_many(renewals).await.unwrap();
    let failed: Vec<_> = (0..8).filter(|slot| renewed[*slot].is_err()).collect();
    assert_eq!(failed, [2]);
    assert!(matches!(renewed[1], Ok(Renewed::Retired)));
    assert!(matches!(renewed[7], Ok(Renewed::Renewed { moved: true, .. })));
}

pub(super) async fn evidence_about_another_generation_stands_in_nobodys_way(world: World) {
    let world = world.ready().await;
    let fence = world.grant(ask(1, "op", 0)).await.fence;
    meddle(
        &world,
        "INSERT INTO placement_evidence VALUES ('c/1', 7, 'target', 'w', 'w1', 'nonsense', 'x', 1), \
         ('c/99', 1, 'target', 'w', 'w1', 'reaped', 'x', 1)",
    )
    .await;
    let by = Author::Target { boot: boot("w1") };
    let body = EvidenceBody::new("{}").unwrap();
    let recorded = world
        .ledger
        .record_evidence(fence.clone(), by, EvidenceKind::Reaped, body);
    assert_eq!(recorded.await.unwrap(), Recorded::Recorded);
    assert_eq!(world.ledger.evidence(&fence).await.unwrap().pieces.len(), 1);
    assert_eq!(world.retire(&fence).await, Released::Retired { already: false });
    let left = "SELECT session FROM placement_evidence WHERE session = 'c/1'";
    let left = world.ledger.tables().query(LONG, left, Vec::new());
    assert!(left.await.unwrap().is_empty(), "all of it is consumed");
}

pub(super) async fn an_unreadable_row_hides_nobody_else(world: World) {
    let world = world.ready().await;
    world.pool("slots", 100_000).await;
    let mut fences = Vec::new();
    for slot in 1..4 {
        fences.push(world.grant(ask(slot, "op", 0)).await.fence);
    }
    for sql in [
        "UPDATE placement_sessions SET claims = 'x' WHERE session = 'c/2'",
        "INSERT INTO placement_evidence VALUES ('c/1', 1, 'source', 'files', 'f1', 'nonsense', 'x', 1)",
    ] {
        meddle(&world, sql).await;
    }
    let guilty = |bad: &Unreadable| (bad.table, bad.column, bad.row.clone());
    let claims = ("placement_sessions", "claims", "c/2".to_owned());
    // A page names the row and goes on, even where the row ends it.
    let (mut slots, mut named, mut after) = (Vec::new(), Vec::new(), None);
    loop {
        let asked = Unretired {
            owner: Owner::Controller(node("c")),
            after,
            limit: PageSize::new(2).unwrap(),
        };
        let page = world.ledger.unretired(asked).await.unwrap();
        slots.extend(page.records.iter().map(|record| record.fence.session.slot()));
        named.extend(page.unreadable.iter().map(guilty));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!((slots, named), (vec![1, 3], vec![claims.clone()]));
    let asked = [session(1), session(2), session(3)];
    let seen = world.ledger.lookup_many(&asked).await.unwrap();
    assert!(matches!((&seen[0], &seen[2]), (Ok(Some(_)), Ok(Some(_)))));
    assert_eq!(guilty(seen[1].as_ref().unwrap_err()), claims);

    // A piece that nobody can have written keeps out no other one, and no retirement.
    let by = Author::Target { boot: boot("w1") };
    let body = EvidenceBody::new("{}").unwrap();
    let recorded = world
        .ledger
        .record_evidence(fences[0].clone(), by, EvidenceKind::Reaped, body);
    assert_eq!(recorded.await.unwrap(), Recorded::Recorded);
    let kept = world.ledger.evidence(&fences[0]).await.unwrap();
    let kind = ("placement_evidence", "kind", "c/1".to_owned());
    assert_eq!(kept.pieces.len(), 1);
    assert_eq!(kept.unreadable.iter().map(guilty).collect::<Vec<_>>(), [kind]);
    assert_eq!(
        world.retire(&fences[0]).await,
        Released::Retired { already: false }
    );
    let shown = world.judge.seen.lock().unwrap().pop().unwrap();
    assert_eq!((shown.stored.len(), shown.unreadable.len()), (1, 1));
}

pub(super) async fn a_newer_programs_ledger_is_left_alone(world: World) {
    let world = world.ready().await;
    let granted = world.grant(ask(1, "op", 0)).await;
    let before = world.ledger.usage().await.unwrap();
    meddle(&world, "UPDATE placement_meta SET known_schema = 99").await;
    let l = &world.ledger;
    let answers = [
        l.reserve(ask(2, "op", 0)).await.map(drop),
        l.renew(granted.fence.clone(), at(60)).await.map(drop),
        l.retire(granted.fence.clone(), None).await.map(drop),
        l.lookup(session(1)).await.map(drop),
        l.lookup_many(&[session(1)]).await.map(drop),
        l.usage().await.map(drop),
        l.join().await.map(drop),
    ];
    for (call, answer) in answers.into_iter().enumerate() {
        let outdated = matches!(
            &answer,
            Err(LedgerError::Unknown(UnknownOutcome { cause: Cause::Fault(fault) }))
                if matches!(**fault, Fault::Outdated { found: 99, .. })
        );
        assert!(outdated, "call {call}: {answer:?}");
    }
    let now = i64::try_from(COMPONENT.migrations.len()).unwrap();
    let back = world.ledger.tables().write::<_, StoreError, _>(LONG, move |tx| {
        Box::pin(async move {
            let sql = "UPDATE placement_meta SET known_schema = $1";
            tx.execute(sql, &[ether_store::Value::from(now)]).await
        })
    });
    back.await.unwrap();
    assert_eq!(world.ledger.usage().await.unwrap(), before);
}
