//! Databases that are killed, full, read-only or held by a stuck client, and many controllers at once.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ether_store::{Bound, Options, Store, StoreError};
use ether_testkit::postgres::{Durability, Server};
use ether_types::{Fence, SystemClock};
use tokio::sync::oneshot;

use crate::bounds::EvidenceBody;
use crate::command::Command;
use crate::error::{Cause, LedgerError, Retirement, UnknownOutcome};
use crate::evidence::{Author, EvidenceKind};
use crate::ledger::Ledger;
use crate::outcome::{Authority, Outcome, Released, Reserved};
use crate::sql::Fault;
use crate::sql::schema::COMPONENT;
use crate::tests::faults::operations::{Operation, PATIENCE, Round, roomy};
use crate::tests::faults::process;
use crate::tests::world::{
    Judge, LONG, Mode, Place, World, ask, audit, boot, look, node, open_real, options, session,
};

/// Two lookups, one of an assignment that is over, are answered in one group with evidence about `fence` that the
/// database has no room for, or takes no more; `fault` is what whoever wrote it is told.
async fn neighbours_are_answered(world: &World, over: u32, fence: &Fence, fault: fn(&StoreError) -> bool) {
    let lookup = |slot| Command::Lookup {
        session: session(slot),
    };
    let record = |name: &str| Command::Record {
        fence: fence.clone(),
        author: Author::Source {
            node: node(name),
            boot: boot(name),
        },
        kind: EvidenceKind::Reaped,
        body: EvidenceBody::new("x".repeat(EvidenceBody::MAX_LEN)).unwrap(),
    };
    let group = vec![lookup(over), record("f1"), lookup(80_000), record("f2")];
    let mut answers = world.ledger.each_command(group).await.unwrap();
    for refused in [answers.remove(3), answers.remove(1)] {
        let refused = said(refused);
        let Fault::Store(error) = &*refused else {
            panic!("{refused}");
        };
        assert!(fault(error), "{error}");
    }
    match answers.as_slice() {
        [Ok(Outcome::Lookup(Some(record))), Ok(Outcome::Lookup(None))] => {
            assert_eq!(record.authority, Authority::Expired);
        }
        other => panic!("{other:?}"),
    }
    let record = world.ledger.lookup(session(over)).await.unwrap().unwrap();
    assert_eq!(record.authority, Authority::Expired);
}

/// What the database said behind an unknown outcome.
fn said<T: std::fmt::Debug>(outcome: Result<T, LedgerError>) -> Arc<Fault> {
    match outcome {
        Err(LedgerError::Unknown(UnknownOutcome {
            cause: Cause::Fault(fault),
        })) => fault,
        other => panic!("{other:?}"),
    }
}

fn soak() -> bool {
    std::env::var_os("ETHER_SOAK").is_some()
}

async fn many_controllers(location: &ether_store::Location, url: &str) {
    let (controllers, cycles) = (64, if soak() { 40 } else { 3 });
    let store = open_real(location).await;
    let (ledger, _) = Ledger::open(&store, options(), None).await.unwrap();
    let setup = World::around(store, ledger.clone(), location.clone());
    let setup = setup.ready().await;
    let jobs: Vec<_> = (0..controllers)
        .map(|index| process::spawn(&format!("controller {url} {index} {cycles}")))
        .collect();
    let tables = setup.ledger.tables().clone();
    // While they work, no look at the pools ever shows more in use than there is.
    let (stop, mut stopped) = oneshot::channel::<()>();
    let watch = tokio::spawn(async move {
        let mut looks = 0;
        while stopped.try_recv().is_err() {
            let sql = "SELECT scope FROM placement_pools WHERE used > capacity";
            assert!(
                tables.query(LONG, sql, Vec::new()).await.unwrap().is_empty(),
                "overbooked"
            );
            looks += 1;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        looks
    });
    for mut job in jobs {
        // Each gets its turns, whoever else asks.
        let ended = tokio::time::timeout(if soak() { 8 * PATIENCE } else { PATIENCE }, job.wait()).await;
        assert!(
            ended
                .expect("a controller waits without bound")
                .unwrap()
                .success()
        );
    }
    stop.send(()).unwrap();
    println!("{} looks", watch.await.unwrap());
    let usage = setup.ledger.usage().await.unwrap();
    assert_eq!(
        (usage.total, usage.retired),
        (controllers, controllers),
        "a row each, and nothing stranded"
    );
    assert_eq!(setup.used("slots").await, 0);
    setup.audit().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_sixty_four_controllers_on_one_postgres() {
    let Some(server) = Server::start(15, Durability::Fast) else {
        return;
    };
    let url = server.fresh_schema();
    many_controllers(&url.parse().unwrap(), &url).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heavy_sixty_four_controllers_on_one_sqlite_file() {
    let directory = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", directory.path().join("ledger.db").display());
    many_controllers(&url.parse().unwrap(), &url).await;
}

/// Reserves and retires through one session until told to stop, settling what has no answer by asking again.
async fn keep_going(ledger: Ledger, slot: u32, mut stop: tokio::sync::watch::Receiver<bool>) -> u64 {
    let mut cycles = 0;
    while !*stop.borrow_and_update() {
        let request = ask(slot, &format!("op-{cycles}"), cycles);
        let fence = loop {
            match ledger.reserve(request.clone()).await {
                Ok(Reserved::Granted(granted) | Reserved::Replayed(granted)) => break granted.fence,
                Err(LedgerError::Unknown(_)) => tokio::time::sleep(Duration::from_millis(5)).await,
                other => panic!("{other:?}"),
            }
        };
        loop {
            match ledger.retire(fence.clone(), None).await {
                Ok(Retirement::Proved {
                    released: Released::Retired { .. },
                    ..
                }) => break,
                Err(LedgerError::Unknown(_)) => tokio::time::sleep(Duration::from_millis(5)).await,
                other => panic!("{other:?}"),
            }
        }
        cycles += 1;
    }
    cycles
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_under_load_loses_and_doubles_nothing() {
    let Some(mut server) = Server::start(15, Durability::Fast) else {
        return;
    };
    let location = server.fresh_schema().parse().unwrap();
    let store = open_real(&location).await;
    let judge = Arc::new(Judge::default());
    let mut hasty = options();
    hasty.transaction_timeout = Duration::from_secs(2);
    hasty.lock_timeout = Duration::from_secs(2);
    let (ledger, _) = Ledger::open(&store, hasty, Some(judge)).await.unwrap();
    let world = roomy(World::around(store, ledger.clone(), location)).await;

    let (stop, stopped) = tokio::sync::watch::channel(false);
    let load: Vec<_> = (0..8)
        .map(|slot| tokio::spawn(keep_going(ledger.clone(), slot, stopped.clone())))
        .collect();
    for _ in 0..if soak() { 20 } else { 3 } {
        // Until the load has moved on since the last start.
        let before = world.ledger.usage().await.unwrap().revision;
        while world.ledger.usage().await.unwrap().revision < before + 20 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        server = tokio::task::spawn_blocking(move || {
            server.crash();
            server.run();
            server
        })
        .await
        .unwrap();
    }
    stop.send(true).unwrap();
    let mut done = 0;
    for (slot, load) in (0..8).zip(load) {
        let cycles = load.await.unwrap();
        let record = world.ledger.lookup(session(slot)).await.unwrap().unwrap();
        assert_eq!(
            record.fence.generation.get(),
            cycles,
            "one generation for each cycle of slot {slot}"
        );
        done += cycles;
    }
    println!("{done} cycles");
    assert_eq!(world.used("slots").await, 0);
    world.audit().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_sqlite_file_that_cannot_grow_or_be_written_says_so_and_recovers() {
    let world = roomy(World::new(&Place::File).await).await;
    let fence = world.grant(ask(0, "op", 0)).await.fence;
    world.grant(ask(4_000, "op", 0)).await;
    world.advance(Duration::from_secs(31)).await;
    let pragma = async |text: &'static str| {
        let tables = world.ledger.tables();
        tables
            .write::<_, StoreError, _>(LONG, move |tx| {
                Box::pin(async move { tx.query(text, &[]).await.map(drop) })
            })
            .await
            .unwrap();
    };
    pragma("PRAGMA max_page_count = 1").await;
    let mut full = None;
    for slot in 1..2_000 {
        match world.ledger.reserve(ask(slot, "op", 0)).await {
            Ok(Reserved::Granted(_)) => {}
            failed => {
                full = Some((slot, said(failed)));
                break;
            }
        }
    }
    let (slot, fault) = full.expect("the file grew on");
    assert!(matches!(&*fault, Fault::Store(StoreError::Full(_))), "{fault}");
    // Nor is there any for one more piece of evidence, once what was left has been used up. The bound is the
    // connection's, and one that has failed like this is not used again.
    let mut pieces = 0..40;
    let full = loop {
        pragma("PRAGMA max_page_count = 1").await;
        let n = pieces.next().expect("the file grew on");
        let author = Author::Source {
            node: node(&format!("n{n}")),
            boot: boot("b"),
        };
        let body = EvidenceBody::new("x".repeat(EvidenceBody::MAX_LEN)).unwrap();
        let recorded = world
            .ledger
            .record_evidence(fence.clone(), author, EvidenceKind::Reaped, body);
        if let failed @ Err(_) = recorded.await {
            break said(failed);
        }
    };
    assert!(
        matches!(&*full, Fault::Store(error) if error.is_unwritable()),
        "{full}"
    );
    pragma("PRAGMA max_page_count = 1").await;
    // What needs no room goes on, and with room the lost request goes through.
    world.advance(Duration::from_secs(31)).await;
    neighbours_are_answered(&world, 4_000, &fence, StoreError::is_unwritable).await;
    world.retire(&fence).await;
    pragma("PRAGMA max_page_count = 1000000").await;
    world.grant(ask(slot, "op", 0)).await;

    pragma("PRAGMA query_only = ON").await;
    let fault = said(world.ledger.reserve(ask(5_000, "op", 0)).await);
    assert!(
        matches!(&*fault, Fault::Store(StoreError::ReadOnly(_))),
        "{fault}"
    );
    assert_eq!(world.ledger.lookup_many(&[session(0)]).await.unwrap().len(), 1);
    // A consistent lookup takes the write lock, which such a connection does not get.
    said(world.ledger.lookup(session(0)).await);
    let store = world.open_again().await;
    let (again, _) = Ledger::open(&store, options(), None).await.unwrap();
    let granted = again.reserve(ask(5_000, "op", 0)).await.unwrap();
    assert!(matches!(granted, Reserved::Granted(_)), "{granted:?}");
    world.audit().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_that_is_read_only_says_so_and_recovers() {
    let Some(server) = Server::start(15, Durability::Fast) else {
        return;
    };
    let server = Arc::new(server);
    let world = roomy(World::new(&Place::Postgres(Arc::clone(&server))).await).await;
    let fence = world.grant(ask(0, "op", 0)).await.fence;
    world.advance(Duration::from_secs(31)).await;
    let read_only = |on: &str| {
        server.sql(&format!("ALTER SYSTEM SET default_transaction_read_only = {on}"));
        server.sql("SELECT pg_reload_conf()");
    };
    read_only("on");
    // The setting reaches a session when it next looks.
    let fault = loop {
        match world.ledger.set_target(target_of(&world)).await {
            Ok(_) => tokio::time::sleep(Duration::from_millis(5)).await,
            failed => break said(failed),
        }
    };
    assert!(
        matches!(&*fault, Fault::Store(StoreError::ReadOnly(_))),
        "{fault}"
    );
    let read_only = |error: &StoreError| matches!(error, StoreError::ReadOnly(_));
    neighbours_are_answered(&world, 0, &fence, read_only).await;
    assert!(look(&world.ledger, &[session(0)]).await[0].is_some());
    server.sql("SET default_transaction_read_only = off; ALTER SYSTEM RESET default_transaction_read_only");
    server.sql("SELECT pg_reload_conf()");
    while world.ledger.set_target(target_of(&world)).await.is_err() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    world.grant(ask(1, "op", 0)).await;
    world.audit().await;
}

/// A target that no call before has set, so that setting it is a write.
fn target_of(_: &World) -> crate::command::SetTarget {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    crate::command::SetTarget {
        target: ether_types::TargetId::new(format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed))).unwrap(),
        boot: crate::tests::world::boot("b"),
        expected: None,
        seen: crate::state::Revision::NONE,
        admission: crate::command::Admission::default(),
    }
}

/// A small file system of its own; `None` where this machine does not allow one.
struct Small(tempfile::TempDir);

impl Small {
    fn new(size: &str) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        mount(
            &["-t", "tmpfs", "-o", &format!("size={size},mode=0777"), "tmpfs"],
            directory.path(),
        )
        .then_some(Self(directory))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        run("umount", &["-l".as_ref(), self.0.path().as_os_str()]);
    }
}

fn mount(options: &[&str], at: &Path) -> bool {
    let mut words: Vec<&std::ffi::OsStr> = options.iter().map(std::ffi::OsStr::new).collect();
    words.push(at.as_os_str());
    run("mount", &words)
}

#[allow(clippy::disallowed_methods, reason = "a test sets up a file system to fill")]
fn run(program: &str, words: &[&std::ffi::OsStr]) -> bool {
    let output = std::process::Command::new(program).args(words).output();
    output.is_ok_and(|output| output.status.success())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_postgres_whose_disk_is_full_says_so_and_recovers() {
    let Some(small) = Small::new("1500k") else {
        let must = std::env::var("CI").is_ok_and(|ci| ci == "true" || ci == "1");
        assert!(
            !must,
            "no file system can be mounted here, and this must not be skipped"
        );
        println!("skipped: no file system can be mounted here");
        return;
    };
    let Some(server) = Server::start(15, Durability::Fast) else {
        return;
    };
    // The tables' own disk, apart from the log's: a full log stops the server itself.
    server.give(small.0.path());
    let place = small.0.path().display();
    server.sql(&format!("CREATE TABLESPACE small LOCATION '{place}'"));
    let url = format!("{}&options[default_tablespace]=small", server.fresh_schema());
    let store = open_real(&url.parse().unwrap()).await;
    let (ledger, _) = Ledger::open(&store, options(), Some(Arc::new(Judge::default())))
        .await
        .unwrap();
    let world = roomy(World::around(store, ledger, url.parse().unwrap())).await;
    let fence = world.grant(ask(0, "op", 0)).await.fence;
    let ballast = small.0.path().join("ballast");
    let filled = std::fs::write(&ballast, vec![0; 4 << 20]);
    assert!(filled.is_err(), "the disk is not small");
    let mut full = None;
    for slot in 1..5_000 {
        match world.ledger.reserve(ask(slot, "op", 0)).await {
            Ok(Reserved::Granted(_)) => {}
            failed => {
                full = Some((slot, said(failed)));
                break;
            }
        }
    }
    let (slot, fault) = full.expect("the disk never filled");
    assert!(matches!(&*fault, Fault::Store(StoreError::Full(_))), "{fault}");
    assert!(world.ledger.lookup(session(0)).await.unwrap().is_some());
    std::fs::remove_file(ballast).unwrap();
    world.retire(&fence).await;
    world.grant(ask(slot, "op", 0)).await;
    world.audit().await;
}

/// A client that holds the lock and stops: others wait for their bound, readers not at all, and the server
/// ends the transaction that stands idle.
async fn a_stuck_holder(location: ether_store::Location) {
    let store = open_real(&location).await;
    let judge = Arc::new(Judge::default());
    let mut hasty = options();
    hasty.lock_timeout = Duration::from_millis(100);
    let (ledger, _) = Ledger::open(&store, hasty, Some(judge)).await.unwrap();
    let (patient, _) = Ledger::open(&store, options(), None).await.unwrap();
    let world = roomy(World::around(store, ledger.clone(), location.clone())).await;
    world.grant(ask(0, "op", 0)).await;

    let short = Options {
        statement: Duration::from_secs(1),
        ..Options::default()
    };
    let other = Store::open(&location, short, Arc::new(SystemClock::new()))
        .await
        .unwrap();
    let other = other.component(&COMPONENT).await.unwrap();
    let (held, holds) = oneshot::channel();
    // On SQLite nobody but the holder's own bound ends it; on PostgreSQL the server does so before.
    let bound = Bound::of(Duration::from_secs(4));
    let stuck = tokio::spawn(async move {
        other
            .write::<(), StoreError, _>(bound, |_tx| {
                Box::pin(async move {
                    held.send(()).unwrap();
                    std::future::pending().await
                })
            })
            .await
    });
    holds.await.unwrap();
    let fault = said(ledger.reserve(ask(1, "op", 0)).await);
    let by_its_own = |bound: &Duration| *bound <= Duration::from_millis(100);
    assert!(
        matches!(&*fault, Fault::Store(StoreError::Busy(bound)) if by_its_own(bound)),
        "{fault}"
    );
    assert!(
        look(&ledger, &[session(0)]).await[0].is_some(),
        "readers do not wait"
    );
    let granted = patient.reserve(ask(1, "op", 0)).await.unwrap();
    assert!(matches!(granted, Reserved::Granted(_)), "{granted:?}");
    assert!(stuck.await.unwrap().is_err());
    audit(ledger.tables()).await;
}

/// The bound that passed.
fn ended_by(cause: &Cause) -> Option<Duration> {
    match cause {
        Cause::Timeout(bound) => Some(*bound),
        Cause::Fault(fault) => match &**fault {
            Fault::Store(StoreError::Busy(bound) | StoreError::Timeout(bound)) => Some(*bound),
            _ => None,
        },
        Cause::Ended => None,
    }
}

/// While the lock is held for good, every call that needs it ends without an outcome, and every other one is
/// answered.
async fn every_call_ends(location: ether_store::Location) {
    let store = open_real(&location).await;
    let (ledger, _) = Ledger::open(&store, options(), Some(Arc::new(Judge::default())))
        .await
        .unwrap();
    let world = roomy(World::around(store, ledger, location.clone())).await;
    for n in 0..2 {
        let operation = Operation::Reserve;
        Round { operation, n }.run(&world.ledger).await.unwrap();
    }
    let bound = Duration::from_millis(150);
    let mut hasty = options();
    hasty.transaction_timeout = bound;
    hasty.lock_timeout = bound;
    hasty.verify_timeout = bound;
    let judge = Arc::new(Judge::default());
    let (hasty, _) = Ledger::open(&open_real(&location).await, hasty, Some(judge.clone()))
        .await
        .unwrap();
    let tables = world.ledger.tables().clone();
    let (held, holds) = oneshot::channel();
    let (release, released) = oneshot::channel::<()>();
    let holder = tokio::spawn(async move {
        tables
            .write::<(), StoreError, _>(Bound::of(4 * PATIENCE), |_tx| {
                Box::pin(async move {
                    held.send(()).unwrap();
                    let _ = released.await;
                    Ok(())
                })
            })
            .await
    });
    holds.await.unwrap();
    for mode in [Mode::Accept, Mode::Refuse, Mode::Hang] {
        judge.set(mode);
        for operation in Operation::ALL {
            let round = Round { operation, n: 1 };
            let ended = tokio::time::timeout(PATIENCE, round.run(&hasty)).await;
            let ended = ended.unwrap_or_else(|_| panic!("{operation:?} waits without bound"));
            let locked = operation.mutates() || operation == Operation::Lookup;
            match ended {
                // It says which bound ended it: its own, and none of the many that are longer.
                Err(LedgerError::Unknown(unknown)) if locked => {
                    let kept = ended_by(&unknown.cause);
                    assert!(
                        kept.is_some_and(|kept| kept <= bound),
                        "{operation:?}: {unknown:?}"
                    );
                }
                Ok(()) if !locked => {}
                other => panic!("{operation:?}: {other:?}"),
            }
        }
    }
    release.send(()).unwrap();
    holder.await.unwrap().unwrap();
    audit(world.ledger.tables()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_ends_while_the_lock_is_held_on_postgres() {
    if let Some(server) = Server::start(15, Durability::Fast) {
        every_call_ends(server.fresh_schema().parse().unwrap()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_call_ends_while_the_lock_is_held_on_sqlite() {
    let directory = tempfile::tempdir().unwrap();
    every_call_ends(ether_store::Location::SqliteFile(
        directory.path().join("ledger.db"),
    ))
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stuck_holder_of_the_lock_on_postgres_is_bounded() {
    if let Some(server) = Server::start(15, Durability::Fast) {
        a_stuck_holder(server.fresh_schema().parse().unwrap()).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stuck_holder_of_the_lock_on_sqlite_is_bounded() {
    let directory = tempfile::tempdir().unwrap();
    a_stuck_holder(ether_store::Location::SqliteFile(
        directory.path().join("ledger.db"),
    ))
    .await;
}
