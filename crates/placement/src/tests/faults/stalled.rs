//! Databases and helpers that do not refuse and do not get on either: a peer that reads no more, groups that are more
//! than fits a bound, a verifier that never yields.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ether_store::{Bound, Component, StoreError};
use ether_testkit::postgres::{Durability, Server};
use ether_types::{Fence, NodeId};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, oneshot};

use crate::bounds::EvidenceBody;
use crate::error::{Retirement, Unproven};
use crate::evidence::EvidenceKind;
use crate::ledger::Ledger;
use crate::outcome::{Released, Renewed, Reserved};
use crate::tests::faults::operations::{PATIENCE, roomy};
use crate::tests::world::{
    Judge, Mode, Place, World, ask, ask_gpu, later, look, node, open_real, options, session,
};
use crate::verify::{Acceptance, Presented, Verdict, Verifier, VerifyError};

/// Relays one connection after the other to `port` of this machine; once `stalled`, it reads from the server no more
/// and keeps every connection open.
async fn relay(port: u16, stalled: Arc<AtomicBool>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let here = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        let mut open = tokio::task::JoinSet::new();
        while let Ok((client, _)) = listener.accept().await {
            let stalled = Arc::clone(&stalled);
            let server = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            open.spawn(async move {
                let (mut from_client, mut to_client) = client.into_split();
                let (mut from_server, mut to_server) = server.into_split();
                let asks = async {
                    let _ = tokio::io::copy(&mut from_client, &mut to_server).await;
                    // A client that leaves is not told of either.
                    std::future::pending::<()>().await;
                };
                let answers = async {
                    let mut buffer = vec![0; 16 << 10];
                    loop {
                        if stalled.load(Ordering::SeqCst) {
                            std::future::pending::<()>().await;
                        }
                        let Ok(read @ 1..) =
                            tokio::io::AsyncReadExt::read(&mut from_server, &mut buffer).await
                        else {
                            return;
                        };
                        if to_client.write_all(&buffer[..read]).await.is_err() {
                            std::future::pending::<()>().await;
                        }
                    }
                };
                tokio::join!(asks, answers);
            });
        }
    });
    here
}

/// A ledger at `url` that waits for as long as a slow machine may need.
async fn patient(url: &str) -> Ledger {
    let mut patient = options();
    patient.lock_timeout = PATIENCE;
    patient.transaction_timeout = PATIENCE;
    let store = open_real(&url.parse().unwrap()).await;
    Ledger::open(&store, patient, None).await.unwrap().0
}

/// Whoever holds the lock and takes no answers any more loses it: the server cannot look at a timeout of its own
/// while it writes to somebody who does not read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_whose_peer_reads_no_more_loses_the_lock() {
    let Some(mut server) = Server::start(15, Durability::Fast) else {
        return;
    };
    let (server, port) = tokio::task::spawn_blocking(move || {
        let port = server.listen();
        (server, port)
    })
    .await
    .unwrap();
    let url = server.fresh_schema();
    let ledger = patient(&url).await;

    let stalled = Arc::new(AtomicBool::new(false));
    let through = relay(port, Arc::clone(&stalled)).await;
    let search_path = url.split_once("&options").unwrap().1;
    let location =
        format!("postgres://postgres@127.0.0.1:{through}/postgres?sslmode=disable&options{search_path}");
    let holder = open_real(&location.parse().unwrap()).await;
    let holder = holder.component(&crate::COMPONENT).await.unwrap();
    let (held, holds) = oneshot::channel();
    let hold = tokio::spawn(async move {
        holder
            .write::<(), StoreError, _>(Bound::of(Duration::from_secs(2)), |tx| {
                Box::pin(async move {
                    held.send(()).unwrap();
                    stalled.store(true, Ordering::SeqCst);
                    // More than all the buffers between the two hold.
                    let sql = "SELECT repeat('x', 1000) FROM generate_series(1, 200000)";
                    tx.query(sql, &[]).await.map(drop)
                })
            })
            .await
    });
    holds.await.unwrap();
    assert!(ledger.lookup(session(0)).await.unwrap().is_none());
    assert!(hold.await.unwrap().is_err());
}

/// A process that stands still in the middle of a transaction loses the lock: none of its own bounds ends it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_freezes_loses_the_lock() {
    let Some(server) = Server::start(15, Durability::Fast) else {
        return;
    };
    let url = server.fresh_schema();
    let ledger = patient(&url).await;
    let (held, holds) = oneshot::channel();
    let (thaw, thawed) = std::sync::mpsc::sync_channel::<()>(1);
    let frozen = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(async {
            let holder = open_real(&url.parse().unwrap()).await;
            let holder = holder.component(&crate::COMPONENT).await.unwrap();
            holder
                .write::<(), StoreError, _>(Bound::of(Duration::from_secs(1)), |_tx| {
                    Box::pin(async move {
                        held.send(()).unwrap();
                        // The thread's only runtime stands still with it, timers included.
                        let _ = thawed.recv();
                        Ok(())
                    })
                })
                .await
        })
    });
    holds.await.unwrap();
    assert!(ledger.lookup(session(0)).await.unwrap().is_none());
    thaw.send(()).unwrap();
    let outcome = tokio::task::spawn_blocking(move || frozen.join().unwrap());
    assert!(outcome.await.unwrap().is_err(), "committed without the lock");
}

/// Who waited for the lock decides on what was committed meanwhile, whatever the server does by default.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_servers_default_isolation_is_not_ours() {
    let Some(server) = Server::start(15, Durability::Fast) else {
        return;
    };
    server.sql("ALTER SYSTEM SET default_transaction_isolation = 'serializable'");
    server.sql("SELECT pg_reload_conf()");
    let world = roomy(World::new(&Place::Postgres(Arc::new(server))).await).await;
    let mut loads = Vec::new();
    for by in 0..4_u32 {
        let (ledger, _) = world.join(options()).await.unwrap();
        loads.push(tokio::spawn(async move {
            for slot in 0..12 {
                let reserved = ledger.reserve(ask(100 * by + slot, "op", 0)).await.unwrap();
                assert!(matches!(reserved, Reserved::Granted(_)), "{reserved:?}");
            }
        }));
    }
    for load in loads {
        load.await.unwrap();
    }
    world.audit().await;
}

/// A group that is more than the database does within the bound is not tried again as it is, whether its statements
/// take so long or its COMMIT.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_that_do_not_fit_the_bound_get_through_in_smaller_groups() {
    renewals_get_through("TRIGGER slow BEFORE UPDATE ON placement_sessions").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_whose_commit_does_not_fit_the_bound_get_through_in_smaller_groups() {
    let at_the_end =
        "CONSTRAINT TRIGGER slow AFTER UPDATE ON placement_sessions DEFERRABLE INITIALLY DEFERRED";
    renewals_get_through(at_the_end).await;
}

async fn renewals_get_through(trigger: &str) {
    let Some(server) = Server::start(15, Durability::Fast) else {
        return;
    };
    let server = Arc::new(server);
    let world = roomy(World::new(&Place::Postgres(Arc::clone(&server))).await).await;
    let granted = world.grant_all(400).await;
    let renewals: Vec<_> = granted
        .iter()
        .map(|granted| (granted.fence.clone(), later(granted, Duration::from_secs(60))))
        .collect();
    let schema = world
        .url
        .rsplit('=')
        .next()
        .unwrap()
        .split(',')
        .next()
        .unwrap()
        .to_owned();
    server.sql(&format!(
        "SET search_path = {schema};
         CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS
             'BEGIN PERFORM pg_sleep(0.01); RETURN NEW; END';
         CREATE {trigger} FOR EACH ROW EXECUTE FUNCTION slow()"
    ));
    // Four seconds of work, and two for each call.
    let mut hasty = options();
    hasty.transaction_timeout = Duration::from_secs(2);
    let (hasty, _) = world.join(hasty).await.unwrap();
    let mut calls = 0;
    loop {
        calls += 1;
        assert!(calls < 20, "the renewals never get through");
        let answers = hasty.renew_many(renewals.clone()).await.unwrap();
        if calls == 1 {
            let mut polls = 0;
            while hasty.is_serving() {
                polls += 1;
                assert!(polls < 4_000, "the group does not end");
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert!(hasty.group_limit() < 400, "{} as before", hasty.group_limit());
        }
        if answers.iter().all(Result::is_ok) {
            assert!(
                answers
                    .iter()
                    .all(|answer| matches!(answer, Ok(Renewed::Renewed { .. })))
            );
            break;
        }
    }
    println!("{calls} calls");
    world.audit().await;
}

/// Judges for as long as it is told to, and never gives way.
struct Busy(Arc<AtomicBool>);

impl Verifier for Busy {
    fn verify(&self, presented: Presented) -> Verdict<'_> {
        Box::pin(async move {
            while self.0.load(Ordering::SeqCst) {
                std::hint::spin_loop();
            }
            Judge::default().verify(presented).await
        })
    }
}

/// On the one thread of this test everything else would stand still behind such a verifier.
#[tokio::test]
async fn a_verifier_that_never_yields_holds_up_nobody() {
    let world = World::new(&Place::Memory).await.ready().await;
    let fence = world.grant(ask(1, "op", 0)).await.fence;
    let busy = Arc::new(AtomicBool::new(true));
    let mut hasty = options();
    hasty.verify_timeout = Duration::from_millis(20);
    let verifier: Arc<dyn Verifier> = Arc::new(Busy(Arc::clone(&busy)));
    let (ledger, _) = Ledger::open(&world.store, hasty, Some(verifier)).await.unwrap();
    let retired = ledger.retire(fence.clone(), None).await.unwrap();
    assert!(
        matches!(retired, Retirement::Unproven(Unproven::TimedOut(_))),
        "{retired:?}"
    );
    assert!(ledger.lookup(session(1)).await.unwrap().is_some());
    assert_eq!(world.used("slots").await, 1_000);
    busy.store(false, Ordering::SeqCst);
    world.retire(&fence).await;
}

/// Judges nothing about one node before it is told to, and everything else at once.
struct Stuck(NodeId, Arc<AtomicBool>);

impl Verifier for Stuck {
    fn verify(&self, presented: Presented) -> Verdict<'_> {
        Box::pin(async move {
            let of_the_node = presented.fence.target.as_str().starts_with(self.0.as_str());
            while of_the_node && self.1.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            Judge::default().verify(presented).await
        })
    }
}

/// Lets what holds on go on, at the latest.
struct LetGo(Arc<AtomicBool>);

impl Drop for LetGo {
    fn drop(&mut self) {
        self.0.store(false, Ordering::SeqCst);
    }
}

/// The verifier has a bound of its own: however much of it a verdict took, the call's own is left for what follows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_verdict_that_takes_longer_than_a_transaction_may_still_retires() {
    let world = World::new(&Place::Memory).await.ready().await;
    let fence = world.grant(ask(1, "op", 0)).await.fence;
    let (asked, go) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    world
        .judge
        .set(Mode::Wait(Arc::clone(&asked), Arc::clone(&go), true));
    let mut brief = options();
    brief.transaction_timeout = Duration::from_secs(3);
    let bound = brief.transaction_timeout;
    let (ledger, _) = world.join(brief).await.unwrap();
    let retire = tokio::spawn(async move { ledger.retire(fence, None).await });
    asked.acquire().await.unwrap().forget();
    // The bound of a transaction passes while the verifier thinks.
    tokio::time::sleep(bound).await;
    go.add_permits(1);
    let retired = retire.await.unwrap();
    assert!(
        matches!(
            retired,
            Ok(Retirement::Proved {
                released: Released::Retired { already: false },
                ..
            })
        ),
        "{retired:?}"
    );
}

/// Proofs about one node that never end keep nobody from retiring what another one ran, and each of them is asked
/// for once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stuck_verdicts_of_one_node_leave_room_for_the_others() {
    let world = roomy(World::new(&Place::Memory).await).await;
    let mut stuck = Vec::new();
    for slot in 0..20 {
        stuck.push(world.grant(ask(slot, "op", 0)).await.fence);
    }
    let healthy = world.grant(ask_gpu(50, "op", 0)).await.fence;
    let hold = Arc::new(AtomicBool::new(true));
    // A test that fails ends as well.
    let _let_go = LetGo(Arc::clone(&hold));
    let mut hasty = options();
    hasty.verify_timeout = Duration::from_millis(200);
    let verifier: Arc<dyn Verifier> = Arc::new(Stuck(node("w"), Arc::clone(&hold)));
    let (ledger, _) = Ledger::open(&world.store, hasty, Some(verifier)).await.unwrap();
    let retire = |fence: &Fence| {
        let (ledger, fence) = (ledger.clone(), fence.clone());
        tokio::spawn(async move { ledger.retire(fence, None).await.unwrap() })
    };
    let calls: Vec<_> = stuck.iter().map(retire).collect();
    let mut asked = Vec::new();
    for (fence, call) in stuck.iter().zip(calls) {
        match call.await.unwrap() {
            Retirement::Unproven(Unproven::TimedOut(_)) => asked.push(fence.clone()),
            Retirement::Unproven(Unproven::NoSeat(_)) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!((1..=4).contains(&asked.len()), "{} verdicts", asked.len());
    let again = retire(&asked[0]).await.unwrap();
    assert!(
        matches!(again, Retirement::Unproven(Unproven::Underway(_))),
        "{again:?}"
    );
    // A slow machine may make it late, not impossible.
    let mut calls = 0;
    while !matches!(retire(&healthy).await.unwrap(), Retirement::Proved { .. }) {
        calls += 1;
        assert!(calls < 20, "one node's verdicts stop another's retirement");
    }
    hold.store(false, Ordering::SeqCst);
    for fence in &stuck {
        let mut calls = 0;
        while !matches!(retire(fence).await.unwrap(), Retirement::Proved { .. }) {
            calls += 1;
            assert!(calls < 20, "seats were lost");
        }
    }
    world.audit().await;
}

/// Never done with a proof that was found, at once with one that an operator brings.
struct Attested {
    /// Whether what is brought is judged without waiting.
    at_once: bool,
    hold: Arc<AtomicBool>,
}

impl Attested {
    fn accepts(presented: &Presented) -> Option<Result<Acceptance, VerifyError>> {
        let offered = presented.offered.as_ref()?;
        (offered.as_str() == "fenced").then(|| {
            Ok(Acceptance {
                fence: presented.fence.clone(),
                kind: EvidenceKind::Attested,
            })
        })
    }
}

impl Verifier for Attested {
    fn at_once(&self, presented: &Presented) -> Option<Result<Acceptance, VerifyError>> {
        Self::accepts(presented).filter(|_| self.at_once)
    }

    fn verify(&self, presented: Presented) -> Verdict<'_> {
        Box::pin(async move {
            if let Some(accepted) = Self::accepts(&presented) {
                return accepted;
            }
            while self.hold.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err("there is no proof".into())
        })
    }
}

/// What an operator attests about an assignment passes a verdict about it that never ends; judged at once, it does so
/// even where such verdicts have every place of the node.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attestation_passes_verdicts_that_are_stuck() {
    for (at_once, stuck) in [(false, 1), (true, 4)] {
        let world = roomy(World::new(&Place::Memory).await).await;
        let hold = Arc::new(AtomicBool::new(true));
        let _let_go = LetGo(Arc::clone(&hold));
        let verifier: Arc<dyn Verifier> = Arc::new(Attested { at_once, hold });
        let mut hasty = options();
        hasty.verify_timeout = Duration::from_millis(20);
        let (hasty, _) = Ledger::open(&world.store, hasty, Some(Arc::clone(&verifier)))
            .await
            .unwrap();
        let mut fences = Vec::new();
        for slot in 0..stuck {
            let fence = world.grant(ask(slot, "op", 0)).await.fence;
            let retired = hasty.retire(fence.clone(), None).await.unwrap();
            assert!(
                matches!(retired, Retirement::Unproven(Unproven::TimedOut(_))),
                "{retired:?}"
            );
            fences.push(fence);
        }
        let offered = EvidenceBody::new("fenced").unwrap();
        let mut patient = hasty.clone();
        patient.wait_for_verdicts(PATIENCE);
        let retired = patient.retire(fences[0].clone(), Some(offered)).await.unwrap();
        assert!(
            matches!(
                retired,
                Retirement::Proved {
                    by: Some(EvidenceKind::Attested),
                    ..
                }
            ),
            "{retired:?}"
        );
        world.audit().await;
    }
}

/// Whoever looks while a transaction is on its way sees a later clock than that one was begun at: the clock has not
/// gone back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_transaction_takes_no_later_look_for_a_step_of_the_clock() {
    let Some(server) = Server::start(15, Durability::Fast) else {
        return;
    };
    let server = Arc::new(server);
    let world = World::new(&Place::Postgres(Arc::clone(&server)))
        .await
        .ready()
        .await;
    world.grant(ask(1, "op", 0)).await;
    const HOLDER: Component = Component {
        name: "holder",
        migrations: &[],
    };
    let holder = world.open_again().await.component(&HOLDER).await.unwrap();
    let (held, holds) = oneshot::channel();
    let (release, released) = oneshot::channel::<()>();
    let hold = tokio::spawn(async move {
        holder
            .write::<(), StoreError, _>(Bound::of(PATIENCE), |tx| {
                Box::pin(async move {
                    tx.execute("LOCK TABLE placement_pools IN ACCESS EXCLUSIVE MODE", &[])
                        .await?;
                    held.send(()).unwrap();
                    let _ = released.await;
                    Ok(())
                })
            })
            .await
    });
    holds.await.unwrap();
    let ledger = world.ledger.clone();
    let slow = tokio::spawn(async move { ledger.reserve(ask(2, "op", 0)).await.unwrap() });
    // It has read the clock once it waits for the pools.
    let waits = "SELECT COUNT(*) FROM pg_locks WHERE NOT granted AND locktype = 'relation'";
    while server.sql(waits) != "1" {
        assert!(!slow.is_finished(), "it does not wait");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    world.advance(Duration::from_secs(6)).await;
    assert!(look(&world.ledger, &[session(1)]).await[0].is_some());
    release.send(()).unwrap();
    hold.await.unwrap().unwrap();
    let granted = slow.await.unwrap();
    assert!(matches!(granted, Reserved::Granted(_)), "{granted:?}");
}
