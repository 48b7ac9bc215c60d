//! Stories of grants, and histories of every order against what must hold after each step.

use std::time::Duration;

use ether_encoder::Revision;
use ether_types::{BootId, ClusterId, Fence, Generation, ItemId, NodeId, Role, SessionId, TargetId};
use proptest::prelude::*;

use super::*;
use crate::grant::Bearer;

const NOON: i64 = 1_700_000_000_000_000;
const MINUTE: Duration = Duration::from_secs(60);

fn member(node: &str, boot: &str) -> Member {
    Member {
        cluster: ClusterId::new("home").unwrap(),
        node: NodeId::new(node).unwrap(),
        boot: BootId::new(boot).unwrap(),
    }
}

fn fence(generation: u64) -> Fence {
    Fence {
        cluster: ClusterId::new("home").unwrap(),
        session: SessionId::new(NodeId::new("front").unwrap(), 3),
        generation: Generation::new(generation).unwrap(),
        controller_node: NodeId::new("front").unwrap(),
        controller_boot: BootId::new("f1").unwrap(),
        target: TargetId::new("gpu/gpu0").unwrap(),
        target_boot: BootId::new("g1").unwrap(),
        role: Role::Transcode,
        operation: OperationId::new("reserve-1").unwrap(),
    }
}

fn at(wall: Duration, monotonic: Duration) -> Instant {
    Instant {
        wall: Timestamp::from_micros(NOON).checked_add(wall).unwrap(),
        monotonic: Monotonic::from_origin(monotonic),
    }
}

/// Both clocks so long after noon.
fn after(passed: Duration) -> Instant {
    at(passed, passed)
}

fn terms(operation: &str) -> Terms {
    Terms {
        operation: OperationId::new(operation).unwrap(),
        session: fence(1).session,
        generation: fence(1).generation,
        fence: FenceHash::of(&fence(1)),
        controller: member("front", "f1"),
        worker: member("gpu", "g1"),
        item: ItemId::new("film").unwrap(),
        revision: Revision {
            size: 9,
            modified_nanos: 1,
            inode: 2,
            device: 3,
        },
        until: after(3 * MINUTE).wall,
    }
}

fn book() -> Book {
    Book::new(Limits {
        records: 4,
        open: 2,
        readers: 2,
        ..Limits::default()
    })
}

/// An open grant and a bearer that counts.
fn granted(book: &mut Book, operation: &str) -> (Handle, Bearer) {
    let handle = Handle::random().unwrap();
    let prepared = book.prepare(terms(operation), handle.clone(), after(Duration::ZERO));
    let Ok(Prepared::Open(opening)) = prepared else {
        panic!("{prepared:?}");
    };
    assert!(book.opened(&opening));
    let bearer = Bearer::random().unwrap();
    let worker = member("gpu", "g1");
    let hash = FenceHash::of(&fence(1));
    book.admit(&handle, &worker, hash, bearer.hash(), after(Duration::ZERO))
        .unwrap();
    (handle, bearer)
}

#[test]
fn the_same_preparation_is_the_same_grant_and_other_terms_are_a_conflict() {
    let mut book = book();
    let (handle, _) = granted(&mut book, "a");
    let again = book
        .prepare(terms("a"), Handle::random().unwrap(), after(MINUTE))
        .unwrap();
    assert!(
        matches!(&again, Prepared::Replayed { handle: same, opening: false, sealed: None, .. } if *same == handle),
        "{again:?}"
    );
    for other in [
        Terms {
            worker: member("gpu", "g2"),
            ..terms("a")
        },
        Terms {
            item: ItemId::new("other").unwrap(),
            ..terms("a")
        },
        Terms {
            fence: FenceHash::of(&fence(2)),
            ..terms("a")
        },
        Terms {
            until: after(2 * MINUTE).wall,
            ..terms("a")
        },
    ] {
        let refused = book.prepare(other, Handle::random().unwrap(), after(MINUTE));
        assert_eq!(refused, Err(PrepareError::Conflict));
    }
    let _ = book.retire(
        &OperationId::new("a").unwrap(),
        FenceHash::of(&fence(1)),
        &member("front", "f1"),
        after(MINUTE),
    );
    let again = book
        .prepare(terms("a"), Handle::random().unwrap(), after(MINUTE))
        .unwrap();
    assert!(
        matches!(
            again,
            Prepared::Replayed {
                sealed: Some(SealedBy::Request),
                ..
            }
        ),
        "a late request finds the end: {again:?}"
    );
}

#[test]
fn only_the_worker_boot_reads_and_only_with_a_bearer_that_counts() {
    let mut book = book();
    let (handle, bearer) = granted(&mut book, "a");
    let now = after(Duration::from_secs(1));
    let worker = member("gpu", "g1");
    for stranger in [member("gpu", "g2"), member("front", "f1"), member("other", "g1")] {
        let denied = book.read(&handle, &stranger, bearer.hash(), now).unwrap_err();
        assert_eq!(denied, Denied::NoSuchGrant, "{stranger}");
    }
    let guessed = book
        .read(&handle, &worker, Bearer::random().unwrap().hash(), now)
        .unwrap_err();
    assert_eq!(guessed, Denied::Bearer);
    let one = book.read(&handle, &worker, bearer.hash(), now).unwrap();
    let two = book.read(&handle, &worker, bearer.hash(), now).unwrap();
    let third = book.read(&handle, &worker, bearer.hash(), now).unwrap_err();
    assert_eq!(third, Denied::Readers { limit: 2 });
    assert!(
        !book.joined(one) && !book.joined(two),
        "the grant is open, and so is its file"
    );
    // Two newer ones push it out; one alone does not.
    let hash = FenceHash::of(&fence(1));
    let (next, last) = (Bearer::random().unwrap(), Bearer::random().unwrap());
    book.admit(&handle, &worker, hash, next.hash(), now).unwrap();
    let reading = book.read(&handle, &worker, bearer.hash(), now).unwrap();
    book.joined(reading);
    book.admit(&handle, &worker, hash, last.hash(), now).unwrap();
    assert_eq!(
        book.read(&handle, &worker, bearer.hash(), now).unwrap_err(),
        Denied::Bearer
    );
    let other = book.admit(&handle, &worker, FenceHash::of(&fence(2)), last.hash(), now);
    assert_eq!(other, Err(Denied::NoSuchGrant));
    // And by time, while the grant itself lives on.
    let extension = Extension {
        version: 1,
        previous: terms("a").until,
        until: after(9 * MINUTE).wall,
    };
    book.extend(&handle, &worker, hash, extension, now).unwrap();
    let late = after(Duration::from_secs(302));
    assert_eq!(
        book.read(&handle, &worker, last.hash(), late).unwrap_err(),
        Denied::Bearer
    );
}

#[test]
fn an_end_waits_for_its_readers_and_for_the_file() {
    let mut book = book();
    let (handle, bearer) = granted(&mut book, "a");
    let (operation, hash) = (OperationId::new("a").unwrap(), FenceHash::of(&fence(1)));
    let (worker, controller) = (member("gpu", "g1"), member("front", "f1"));
    let now = after(Duration::from_secs(1));
    let reading = book.read(&handle, &worker, bearer.hash(), now).unwrap();
    assert!(book.may_go_on(&reading, now));
    assert_eq!(book.ending(&operation), None);
    let stranger = book.retire(&operation, hash, &member("front", "f2"), now);
    assert_eq!(stranger, Err(Denied::NoSuchGrant));
    let pending = book.retire(&operation, hash, &controller, now).unwrap();
    assert_eq!(pending, RetireAnswer::Pending { readers: 1 });
    assert!(!book.may_go_on(&reading, now), "not one more piece");
    assert_eq!(
        book.read(&handle, &worker, bearer.hash(), now).unwrap_err(),
        Denied::Sealed
    );
    book.closed(&handle);
    assert!(
        matches!(book.ending(&operation), Some(RetireAnswer::Pending { .. })),
        "a reader holds it"
    );
    assert!(book.joined(reading));
    assert_eq!(
        book.ending(&operation),
        Some(RetireAnswer::Pending { readers: 0 }),
        "the file is open"
    );
    assert_eq!(book.expire(now), vec![handle.clone()]);
    book.closed(&handle);
    let Some(RetireAnswer::Proved(proof)) = book.ending(&operation) else {
        panic!("{:?}", book.ending(&operation));
    };
    assert_eq!((proof.answers, &proof.operation), (1, &operation));
    let again = book.retire(&operation, hash, &worker, now).unwrap();
    assert_eq!(again, RetireAnswer::Proved(proof));
}

#[test]
fn a_retired_operation_that_comes_late_makes_no_grant() {
    let mut book = book();
    let (operation, hash) = (OperationId::new("late").unwrap(), FenceHash::of(&fence(1)));
    let now = after(Duration::ZERO);
    let barred = book
        .retire(&operation, hash, &member("front", "f1"), now)
        .unwrap();
    assert!(
        matches!(barred, RetireAnswer::Proved(ref proof) if proof.answers == 0),
        "{barred:?}"
    );
    let late = book.prepare(terms("late"), Handle::random().unwrap(), now);
    assert_eq!(late, Err(PrepareError::Barred));
    assert_eq!(
        book.retire(&operation, hash, &member("front", "f1"), now),
        Ok(barred)
    );
    assert_eq!(
        book.retire(&operation, hash, &member("front", "f2"), now),
        Err(Denied::NoSuchGrant)
    );
}

#[test]
fn an_end_while_the_file_is_being_opened_waits_for_that() {
    let mut book = book();
    let (operation, hash) = (OperationId::new("a").unwrap(), FenceHash::of(&fence(1)));
    let now = after(Duration::ZERO);
    let handle = Handle::random().unwrap();
    let Ok(Prepared::Open(opening)) = book.prepare(terms("a"), handle.clone(), now) else {
        panic!("new");
    };
    let early = book.admit(
        &handle,
        &member("gpu", "g1"),
        hash,
        Bearer::random().unwrap().hash(),
        now,
    );
    assert_eq!(early, Err(Denied::Opening));
    let pending = book
        .retire(&operation, hash, &member("front", "f1"), now)
        .unwrap();
    assert_eq!(pending, RetireAnswer::Pending { readers: 0 });
    assert!(!book.opened(&opening), "whoever opened it has to close it");
    book.closed(&handle);
    assert!(matches!(book.ending(&operation), Some(RetireAnswer::Proved(_))));
    let Ok(Prepared::Open(failed)) = book.prepare(terms("b"), Handle::random().unwrap(), now) else {
        panic!("new");
    };
    book.not_opened(&failed);
    let operation = OperationId::new("b").unwrap();
    assert!(matches!(book.ending(&operation), Some(RetireAnswer::Proved(_))));
}

#[test]
fn a_clock_that_is_set_back_lengthens_nothing_and_one_that_is_set_forward_ends_early() {
    let worker = member("gpu", "g1");
    for (wall, monotonic, over) in [
        (2 * MINUTE, 2 * MINUTE, false),
        (3 * MINUTE, 3 * MINUTE, true),
        (Duration::ZERO, 3 * MINUTE, true),
        (3 * MINUTE, Duration::from_secs(1), true),
    ] {
        let mut book = book();
        let (handle, bearer) = granted(&mut book, "a");
        let now = at(wall, monotonic);
        let read = book.read(&handle, &worker, bearer.hash(), now);
        assert_eq!(read.is_err(), over, "{wall:?} {monotonic:?} {read:?}");
        if over {
            assert_eq!(read.unwrap_err(), Denied::Expired);
            // And no step back opens it again.
            let again = book.read(&handle, &worker, bearer.hash(), after(Duration::ZERO));
            assert_eq!(again.unwrap_err(), Denied::Expired);
        }
    }
}

#[test]
fn of_two_extensions_one_wins_and_its_replay_changes_nothing() {
    let mut book = book();
    let (handle, _) = granted(&mut book, "a");
    let (worker, hash, now) = (member("gpu", "g1"), FenceHash::of(&fence(1)), after(MINUTE));
    let first = terms("a").until;
    let wish = |version, previous, until: Duration| Extension {
        version,
        previous,
        until: after(until).wall,
    };
    let won = book
        .extend(&handle, &worker, hash, wish(1, first, 5 * MINUTE), now)
        .unwrap();
    assert_eq!((won.version, won.until), (1, after(5 * MINUTE).wall));
    let replay = book.extend(
        &handle,
        &worker,
        hash,
        wish(1, first, 5 * MINUTE),
        after(2 * MINUTE),
    );
    assert_eq!(replay, Ok(won));
    let lost = book.extend(&handle, &worker, hash, wish(1, first, 6 * MINUTE), now);
    assert_eq!(lost, Err(ExtendError::Conflict(won)));
    let ahead = book.extend(&handle, &worker, hash, wish(3, won.until, 6 * MINUTE), now);
    assert_eq!(ahead, Err(ExtendError::Conflict(won)));
    for until in [5 * MINUTE, MINUTE, 12 * MINUTE] {
        let refused = book.extend(&handle, &worker, hash, wish(2, won.until, until), now);
        assert!(
            matches!(refused, Err(ExtendError::Deadline { .. })),
            "{until:?} {refused:?}"
        );
    }
    let stranger = book.extend(
        &handle,
        &member("gpu", "g2"),
        hash,
        wish(2, won.until, 6 * MINUTE),
        now,
    );
    assert_eq!(stranger, Err(ExtendError::Denied(Denied::NoSuchGrant)));
    let late = book.extend(
        &handle,
        &worker,
        hash,
        wish(2, won.until, 9 * MINUTE),
        after(5 * MINUTE),
    );
    assert_eq!(late, Err(ExtendError::Denied(Denied::Expired)));
}

#[test]
fn full_books_say_so_and_go_on_serving_what_they_hold() {
    let mut book = book();
    let now = after(Duration::ZERO);
    let (handle, bearer) = granted(&mut book, "a");
    granted(&mut book, "b");
    let prepare = |book: &mut Book, operation: &str| {
        book.prepare(terms(operation), Handle::random().unwrap(), now)
            .map(|_| ())
    };
    assert_eq!(prepare(&mut book, "c"), Err(PrepareError::Open { limit: 2 }));
    for operation in ["x", "y"] {
        let operation = OperationId::new(operation).unwrap();
        book.retire(&operation, FenceHash::of(&fence(1)), &member("front", "f1"), now)
            .unwrap();
    }
    assert_eq!(book.used(), (4, 4));
    assert_eq!(prepare(&mut book, "c"), Err(PrepareError::Records { limit: 4 }));
    let unbarred = book.retire(
        &OperationId::new("z").unwrap(),
        FenceHash::of(&fence(1)),
        &member("front", "f1"),
        now,
    );
    assert_eq!(
        unbarred,
        Err(Denied::NoSuchGrant),
        "what cannot be recorded is no proof"
    );
    let reading = book
        .read(&handle, &member("gpu", "g1"), bearer.hash(), now)
        .unwrap();
    assert_eq!(book.stop(now).len(), 1, "the one that nobody reads");
    assert!(book.joined(reading));
    assert_eq!(
        prepare(&mut book, "a"),
        Ok(()),
        "what was asked before is still answered"
    );
}

#[test]
fn a_bearer_is_shown_by_nothing() {
    let bearer = Bearer::random().unwrap();
    let text = format!("{bearer:?} {:?}", bearer.hash());
    assert!(!text.contains(bearer.expose()) && text.len() < 40, "{text}");
}

#[derive(Clone, Debug)]
enum Step {
    Prepare(usize),
    Opened(usize),
    NotOpened(usize),
    Read(usize),
    Joined(usize),
    Extend(usize),
    Retire(usize),
    Closed(usize),
    Pass(u64),
    WallMoves(i64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let which = 0..3_usize;
    let step = prop_oneof![
        which.clone().prop_map(Step::Prepare),
        which.clone().prop_map(Step::Opened),
        which.clone().prop_map(Step::NotOpened),
        which.clone().prop_map(Step::Read),
        which.clone().prop_map(Step::Joined),
        which.clone().prop_map(Step::Extend),
        which.clone().prop_map(Step::Retire),
        which.prop_map(Step::Closed),
        (1..90_u64).prop_map(Step::Pass),
        (-400..400_i64).prop_map(Step::WallMoves),
    ];
    proptest::collection::vec(step, 1..60)
}

proptest! {
    /// In any order of anything: nobody begins to read under a grant that has ended; an end is proved only once
    /// every answer was joined and the file closed; a proof is never taken back; and capacity is never lost.
    #[test]
    fn ends_are_proved_and_final(steps in steps()) {
        let mut book = Book::new(Limits { open: 3, ..Limits::default() });
        let (hash, worker, controller) =
            (FenceHash::of(&fence(1)), member("gpu", "g1"), member("front", "f1"));
        let names = ["a", "b", "c"];
        let bearer = Bearer::random().unwrap();
        let mut handles: [Option<Handle>; 3] = [None, None, None];
        let mut openings: [Option<Opening>; 3] = [None, None, None];
        let mut open_files = [false; 3];
        let mut readings: [Vec<Reading>; 3] = Default::default();
        let mut proved: [Option<ReaderProof>; 3] = [None, None, None];
        let (mut wall, mut monotonic) = (0_i64, 0_u64);
        for step in steps {
            let now = Instant {
                wall: Timestamp::from_micros(NOON + wall * 1_000_000),
                monotonic: Monotonic::from_origin(Duration::from_secs(monotonic)),
            };
            match step {
                Step::Prepare(n) => {
                    if let Ok(Prepared::Open(opening)) = book.prepare(terms(names[n]), Handle::random().unwrap(), now) {
                        prop_assert!(handles[n].is_none() && proved[n].is_none(), "one grant an operation");
                        handles[n] = Some(opening.handle().clone());
                        openings[n] = Some(opening);
                    }
                }
                Step::Opened(n) => if let Some(opening) = openings[n].take() {
                    open_files[n] = true;
                    let usable = book.opened(&opening);
                    let admitted = book.admit(opening.handle(), &worker, hash, bearer.hash(), now);
                    prop_assert!(usable || admitted.is_err());
                },
                Step::NotOpened(n) => if let Some(opening) = openings[n].take() {
                    book.not_opened(&opening);
                },
                Step::Read(n) => if let Some(handle) = &handles[n]
                    && let Ok(reading) = book.read(handle, &worker, bearer.hash(), now)
                {
                    prop_assert!(open_files[n] && proved[n].is_none());
                    readings[n].push(reading);
                },
                Step::Joined(n) => if let Some(reading) = readings[n].pop() {
                    book.joined(reading);
                },
                Step::Extend(n) => if let Some(handle) = &handles[n] {
                    let wish = Extension { version: 1, previous: terms(names[n]).until, until: Timestamp::from_micros(NOON + 500_000_000) };
                    let extended = book.extend(handle, &worker, hash, wish, now);
                    prop_assert!(extended.is_err() || proved[n].is_none());
                },
                Step::Retire(n) => {
                    let operation = OperationId::new(names[n]).unwrap();
                    book.retire(&operation, hash, &controller, now).unwrap();
                }
                Step::Closed(n) => if let Some(handle) = &handles[n]
                    && openings[n].is_none() && readings[n].is_empty()
                    && book.expire(now).contains(handle)
                {
                    open_files[n] = false;
                    book.closed(handle);
                },
                Step::Pass(seconds) => { wall += i64::try_from(seconds).unwrap(); monotonic += seconds; }
                Step::WallMoves(seconds) => wall += seconds,
            }
            for n in 0..3 {
                let ending = book.ending(&OperationId::new(names[n]).unwrap());
                if let Some(RetireAnswer::Proved(proof)) = &ending {
                    prop_assert!(readings[n].is_empty() && openings[n].is_none() && !open_files[n]);
                    prop_assert!(proved[n].as_ref().is_none_or(|before| before == proof));
                    proved[n] = Some(proof.clone());
                } else {
                    prop_assert!(proved[n].is_none(), "a proof was taken back");
                }
            }
        }
    }
}
