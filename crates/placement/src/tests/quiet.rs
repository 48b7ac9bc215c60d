//! Nothing happens on its own (P1): a ledger that is asked nothing asks nothing of its database, its verifier or its
//! runtime, however long it stands and whatever there is that an eager one could see to.

use std::sync::Arc;
use std::time::Duration;

use ether_store::Store;
use ether_testkit::postgres::{Durability, Server};
use ether_types::Fence;

use crate::bounds::EvidenceBody;
use crate::evidence::{Author, EvidenceKind};
use crate::ledger::Ledger;
use crate::outcome::{Authority, Recorded};
use crate::tests::world::{Mode, Place, START, World, ask, boot, node, options, session};

const HOUR: Duration = Duration::from_secs(3_600);

/// What would show that something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Doings {
    messages: u64,
    tasks: usize,
    connections: usize,
}

impl Doings {
    fn of(store: &Store, world: &World) -> Self {
        Self {
            messages: store.faults().messages(),
            tasks: tokio::runtime::Handle::current().metrics().num_alive_tasks(),
            connections: connections(world),
        }
    }
}

/// Connections to the world's database, whoever has them.
fn connections(world: &World) -> usize {
    match &world.place {
        // It is its one connection.
        Place::Memory => 1,
        Place::File => {
            let open = std::fs::read_dir("/proc/self/fd").unwrap();
            let names = open.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
            let file = world.url.trim_start_matches("sqlite:");
            names.filter(|name| name.as_os_str() == file).count()
        }
        Place::Postgres(server) => {
            let ours = "SELECT COUNT(*) FROM pg_stat_activity WHERE application_name = 'ether'";
            server.sql(ours).parse().unwrap()
        }
    }
}

/// Gives every task that is left its turns.
async fn settle() {
    for _ in 0..1_000 {
        tokio::task::yield_now().await;
    }
}

/// Lets an hour go by on the database's clock and on the runtime's.
async fn an_hour(world: &World) {
    match &world.place {
        // Past the stores, whose messages are counted.
        Place::Postgres(server) => {
            let schema = world.url.rsplit('=').next().unwrap();
            let schema = schema.trim_end_matches(",pg_catalog");
            let after = START + i64::try_from(HOUR.as_micros()).unwrap();
            server.sql(&format!("UPDATE {schema}.sim_now SET micros = {after}"));
        }
        _ => world.advance(HOUR).await,
    }
    tokio::time::pause();
    tokio::time::advance(HOUR).await;
    settle().await;
    tokio::time::resume();
}

/// An assignment whose time is about to end, and whose ending is on record.
async fn left_behind(world: &World) -> Fence {
    let fence = world.grant(ask(1, "op", 0)).await.fence;
    let author = Author::Target { boot: boot("w1") };
    let body = EvidenceBody::new("{}").unwrap();
    let recorded = world
        .ledger
        .record_evidence(fence.clone(), author, EvidenceKind::Reaped, body);
    assert_eq!(recorded.await.unwrap(), Recorded::Recorded);
    fence
}

async fn nothing_happens_on_its_own(place: Place) {
    let world = World::new(&place).await.ready().await;
    world.judge.set(Mode::Proof);
    let fence = left_behind(&world).await;
    settle().await;
    let store = match place {
        Place::Memory => world.store.clone(),
        _ => world.open_again().await,
    };
    let idle = Doings::of(&store, &world);

    // Two in one process are two, and share what the store has.
    let mut ledgers = Vec::new();
    for name in ["d", "e"] {
        let mut own = options();
        own.node = node(name);
        let verifier = Arc::new(world.judge.clone());
        let (ledger, _) = Ledger::open(&store, own, Some(verifier)).await.unwrap();
        ledgers.push(ledger);
    }
    settle().await;
    let opened = Doings::of(&store, &world);
    assert_eq!(opened.tasks, idle.tasks, "opening left a task behind");
    assert!(
        opened.connections <= idle.connections + 1,
        "{idle:?}, then {opened:?}"
    );

    an_hour(&world).await;
    assert_eq!(Doings::of(&store, &world), opened, "something happened by itself");
    assert!(
        world.judge.seen.lock().unwrap().is_empty(),
        "a verdict nobody asked for"
    );

    // Everything stands as it was left, for who asks; and who asks leaves nothing running.
    for ledger in &ledgers {
        let record = ledger.lookup(session(1)).await.unwrap().unwrap();
        assert_eq!(
            (record.fence, record.authority),
            (fence.clone(), Authority::Expired)
        );
        assert_eq!(ledger.evidence(&fence).await.unwrap().pieces.len(), 1);
    }
    assert_eq!(world.used("slots").await, 1_000);
    settle().await;
    let asked = Doings::of(&store, &world);
    assert_eq!(asked.tasks, idle.tasks, "asking left a task behind");
    assert!(asked.messages > opened.messages, "the messages are not counted");
    an_hour(&world).await;
    drop(ledgers);
    settle().await;
    assert_eq!(Doings::of(&store, &world), asked);
    world.audit().await;
}

#[tokio::test]
async fn nothing_happens_on_its_own_in_sqlite_memory() {
    nothing_happens_on_its_own(Place::Memory).await;
}

#[tokio::test]
async fn nothing_happens_on_its_own_on_a_sqlite_file() {
    nothing_happens_on_its_own(Place::File).await;
}

#[tokio::test]
async fn nothing_happens_on_its_own_on_postgres() {
    if let Some(server) = Server::start(15, Durability::Fast) {
        nothing_happens_on_its_own(Place::Postgres(Arc::new(server))).await;
    }
}
