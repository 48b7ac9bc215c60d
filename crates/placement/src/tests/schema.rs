//! The schema: upgraded from every earlier version with data in it, and from one whose upgrade was cut short.

use std::sync::Arc;

use ether_store::faults::Cut;
use ether_store::{Component, MigrateError, Migration, Sql, Store, StoreError, Tables};
use ether_testkit::postgres::{Durability, Server};

use crate::error::OpenError;
use crate::evidence::{Author, EvidenceKind};
use crate::ledger::Ledger;
use crate::options::Options;
use crate::outcome::{Authority, Ceiling, Joined, Released, Reserved};
use crate::sql::rows::SESSION_COLUMNS;
use crate::sql::schema::COMPONENT;
use crate::tests::world::{LONG, Place, START, World, ask, audit, boot, node, options, session};

async fn run(tables: &Tables, texts: Vec<String>) {
    tables
        .write::<_, StoreError, _>(LONG, move |tx| {
            Box::pin(async move {
                for text in texts {
                    tx.execute(Sql::generated(text), &[]).await?;
                }
                Ok(())
            })
        })
        .await
        .unwrap();
}

/// Slots 1, 3 and 4 are taken and 2 is a tombstone, and another coordinator has published itself; from the
/// version that has them on, a ceiling stands and evidence is kept.
fn rows_of(version: usize) -> Vec<String> {
    let revision = if version >= 6 { "mutations" } else { "revision" };
    let mut texts = vec![
        "INSERT INTO placement_pools (scope, role, capacity, used) VALUES ('slots', 'transcode', 4000, 3000), \
         ('scratch', 'transcode', 100, 30)"
            .to_owned(),
        "INSERT INTO placement_targets (target, boot, roles) VALUES ('w/cpu', 'w1', 'transcode=scratch,slots')".to_owned(),
        format!("UPDATE placement_meta SET cluster = 'test', {revision} = 9, total = 4, retired = 1"),
        format!("INSERT INTO placement_coordinators (node, boot, known_schema, quota, maximum_lease, \
             transaction_timeout, lock_timeout) VALUES ('old', 'o1', {version}, 5000, 600000000, 1, 1)"),
    ];
    for (slot, operation, retired) in [(1, "live", 0), (2, "over", 1), (3, "three", 0), (4, "four", 0)] {
        let request = crate::ReserveRequest::new(ask(slot, operation, 0)).unwrap();
        let deadline = START + 30_000_000;
        texts.push(format!(
            "INSERT INTO placement_sessions ({SESSION_COLUMNS}) VALUES ('c/{slot}', 1, 'c', 'c1', 'w/cpu', \
             'w', 'w1', 'transcode', '{operation}', '{}', 'scratch=10,slots=1000', {deadline}, {deadline}, \
             {retired})",
            request.digest()
        ));
        if retired == 0 {
            texts.push(format!(
                "INSERT INTO placement_claims VALUES ('c/{slot}', 'slots', 'transcode', 1000), \
                 ('c/{slot}', 'scratch', 'transcode', 10)"
            ));
        }
    }
    if version >= 2 {
        texts.push("UPDATE placement_meta SET ceiling = 5000".to_owned());
    }
    if version >= 3 {
        // The third version let anybody claim anything, and had no node for a target.
        let target = if version == 3 { "NULL" } else { "'w'" };
        let mut pieces = vec![
            format!("'c/1', 1, 'target', {target}, 'w1', 'reaped', 'by the target', 7"),
            "'c/1', 1, 'source', 'files', 'f1', 'reaped', 'by the source', 8".to_owned(),
        ];
        if version == 3 {
            pieces.extend([
                "'c/2', 1, 'target', NULL, 'w1', 'reaped', 'about a tombstone', 9".to_owned(),
                "'c/3', 1, 'target', NULL, 'w1', 'attested', 'by nobody', 9".to_owned(),
                "'c/4', 1, 'target', NULL, 'w1', 'succeeded', 'by itself', 9".to_owned(),
                "'c/4', 2, 'source', 'files', 'f1', 'reaped', 'about another generation', 9".to_owned(),
            ]);
        }
        texts.extend(
            pieces
                .iter()
                .map(|piece| format!("INSERT INTO placement_evidence VALUES ({piece})")),
        );
    }
    texts
}

/// The first `version` migrations.
fn component(version: usize) -> &'static Component {
    Box::leak(Box::new(Component {
        name: "placement",
        migrations: &COMPONENT.migrations[..version],
    }))
}

/// The world's database as a binary of `version` would have left it.
async fn at_version(version: usize, world: &World) {
    let tables = [
        "meta",
        "pools",
        "targets",
        "sessions",
        "claims",
        "coordinators",
        "evidence",
        "migrations",
    ];
    let drop = tables.iter().map(|table| format!("DROP TABLE placement_{table}"));
    run(world.ledger.tables(), drop.collect()).await;
    let tables = world.store.component(component(version)).await.unwrap();
    run(&tables, rows_of(version)).await;
}

fn fleet() -> Options {
    let mut options = options();
    options.fleet = true;
    options
}

async fn open(store: &Store, world: &World) -> Result<(Ledger, Joined), OpenError> {
    Ledger::open(store, fleet(), Some(Arc::new(world.judge.clone()))).await
}

async fn upgraded_from(version: usize, world: World) {
    at_version(version, &world).await;
    let (ledger, joined) = open(&world.store, &world).await.unwrap();
    everything_is_there(version, &ledger, &joined).await;
    a_process_of_before_is_stopped(&ledger).await;
    // The earlier binary finds that it is one.
    if version < COMPONENT.migrations.len() {
        assert!(matches!(
            world.store.component(component(version)).await,
            Err(MigrateError::Newer { .. })
        ));
    }
}

/// A process that was running when the schema was changed asks for what is no longer there; one that was started
/// later finds the number.
async fn a_process_of_before_is_stopped(ledger: &Ledger) {
    let known = "SELECT known_schema FROM placement_meta";
    let known = ledger.tables().query(LONG, known, Vec::new()).await.unwrap();
    let newest = i64::try_from(COMPONENT.migrations.len()).unwrap();
    assert_eq!(known[0].integer(0usize).unwrap(), newest);
    // As every version before the sixth read and wrote the ledger's own row.
    for sql in [
        "SELECT m.revision FROM placement_meta m WHERE m.id = 1",
        "UPDATE placement_meta SET revision = 1 WHERE id = 1 AND revision = 0",
    ] {
        let old = ledger
            .tables()
            .write::<_, StoreError, _>(LONG, move |tx| {
                Box::pin(async move { tx.query(sql, &[]).await.map(drop) })
            })
            .await;
        assert!(matches!(old, Err(StoreError::Database(_))), "{old:?}");
    }
}

/// What the earlier version wrote holds under this one's rules.
async fn everything_is_there(version: usize, ledger: &Ledger, joined: &Joined) {
    audit(ledger.tables()).await;
    // Where no ceiling stood yet, the coordinator of that schema keeps one from being seeded.
    let expected = match version {
        1 => Ceiling::Blocked {
            older: vec![node("old")],
        },
        _ => Ceiling::Matches(options().quota),
    };
    assert!(
        matches!(joined, Joined::Joined { ceiling, .. } if *ceiling == expected),
        "{joined:?}"
    );
    let record = ledger.lookup(session(1)).await.unwrap().unwrap();
    assert_eq!(record.authority, Authority::Live);
    let kept = ledger.evidence(&record.fence).await.unwrap().pieces;
    if version >= 3 {
        let told: Vec<_> = kept
            .iter()
            .map(|piece| {
                (
                    piece.author.clone(),
                    piece.kind,
                    piece.body.as_str(),
                    piece.at.as_micros(),
                )
            })
            .collect();
        let source = Author::Source {
            node: node("files"),
            boot: boot("f1"),
        };
        let target = Author::Target { boot: boot("w1") };
        assert_eq!(
            told,
            [
                (source, EvidenceKind::Reaped, "by the source", 8),
                (target, EvidenceKind::Reaped, "by the target", 7)
            ]
        );
    } else {
        assert!(kept.is_empty());
    }
    for slot in [3, 4] {
        let record = ledger.lookup(session(slot)).await.unwrap().unwrap();
        let kept = ledger.evidence(&record.fence).await.unwrap().pieces;
        assert!(kept.is_empty(), "{kept:?}");
    }
    let replayed = ledger.reserve(ask(1, "live", 0)).await.unwrap();
    assert!(matches!(replayed, Reserved::Replayed(_)), "{replayed:?}");
    let reused = ledger.reserve(ask(2, "next", 1)).await.unwrap();
    assert!(matches!(reused, Reserved::Granted(_)), "{reused:?}");
    assert!(matches!(
        ledger.retire(record.fence.clone(), None).await.unwrap(),
        crate::Retirement::Proved {
            released: Released::Retired { already: false },
            ..
        }
    ));
    assert!(ledger.evidence(&record.fence).await.unwrap().pieces.is_empty());
    audit(ledger.tables()).await;
}

#[tokio::test]
async fn every_earlier_schema_is_upgraded_with_its_rows_on_sqlite() {
    for version in 1..=COMPONENT.migrations.len() {
        upgraded_from(version, World::new(&Place::Memory).await).await;
        upgraded_from(version, World::new(&Place::File).await).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_earlier_schema_is_upgraded_with_its_rows_on_postgres() {
    for major in [14, 17] {
        let Some(server) = Server::start(major, Durability::Fast) else {
            continue;
        };
        let place = Place::Postgres(Arc::new(server));
        for version in 1..=COMPONENT.migrations.len() {
            upgraded_from(version, World::new(&place).await).await;
        }
        a_broken_step_leaves_the_version_before(&World::new(&place).await).await;
        a_gap_is_refused(&World::new(&place).await).await;
    }
}

/// Another cluster's ledger is left at the version it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_ledger_is_not_upgraded() {
    let mut places = vec![Place::Memory, Place::File];
    places.extend(Server::start(15, Durability::Fast).map(|server| Place::Postgres(Arc::new(server))));
    for place in places {
        let world = World::new(&place).await;
        at_version(1, &world).await;
        run(
            world.ledger.tables(),
            vec!["UPDATE placement_meta SET cluster = 'elsewhere'".to_owned()],
        )
        .await;
        let refused = open(&world.store, &world).await.map(drop);
        assert!(
            matches!(&refused, Err(OpenError::Foreign(cluster)) if cluster.as_str() == "elsewhere"),
            "{refused:?}"
        );
        let applied = "SELECT version FROM placement_migrations";
        let applied = world.ledger.tables().query(LONG, applied, Vec::new());
        assert_eq!(applied.await.unwrap().len(), 1);
    }
}

/// An upgrade that is cut at any statement, its answer lost or not, has happened or not, and the next start
/// finishes it.
#[tokio::test]
async fn an_upgrade_cut_short_is_finished_by_the_next_start() {
    for cut in [Cut::Before, Cut::After] {
        for nth in 0.. {
            assert!(nth < 100, "the upgrade has no end");
            let world = World::new(&Place::File).await;
            at_version(1, &world).await;
            let store = world.open_again().await;
            store.faults().arm(nth, cut);
            let first = open(&store, &world).await;
            if !store.faults().disarm() {
                assert!(nth > 12, "{nth} statements are too few");
                first.unwrap();
                break;
            }
            let (ledger, joined) = open(&world.open_again().await, &world).await.unwrap();
            everything_is_there(1, &ledger, &joined).await;
        }
    }
}

/// A step whose second statement fails leaves nothing of its first.
async fn a_broken_step_leaves_the_version_before(world: &World) {
    at_version(COMPONENT.migrations.len(), world).await;
    let mut migrations = COMPONENT.migrations.to_vec();
    migrations.push(Migration {
        version: i64::try_from(migrations.len() + 1).unwrap(),
        name: "half",
        sql: "CREATE TABLE placement_half (a TEXT); INSERT INTO placement_nowhere VALUES (1)",
    });
    let broken: &'static Component = Box::leak(Box::new(Component {
        name: "placement",
        migrations: migrations.leak(),
    }));
    let failed = world.store.component(broken).await.map(drop);
    assert!(
        matches!(failed, Err(MigrateError::Statement { name: "half", .. })),
        "{failed:?}"
    );
    let half = world
        .ledger
        .tables()
        .query(LONG, "SELECT a FROM placement_half", Vec::new());
    assert!(half.await.is_err());
    let (ledger, joined) = open(&world.store, world).await.unwrap();
    everything_is_there(COMPONENT.migrations.len(), &ledger, &joined).await;
}

async fn a_gap_is_refused(world: &World) {
    let gap = "DELETE FROM placement_migrations WHERE version = 2".to_owned();
    run(world.ledger.tables(), vec![gap]).await;
    let refused = open(&world.store, world).await.map(drop);
    assert!(
        matches!(
            refused,
            Err(OpenError::Migrate(MigrateError::Gap { version: 2, .. }))
        ),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_broken_step_and_a_gap_are_refused_on_sqlite() {
    a_broken_step_leaves_the_version_before(&World::new(&Place::File).await).await;
    a_gap_is_refused(&World::new(&Place::File).await).await;
}

/// Shipped migrations never change; whoever edits one finds this first.
#[test]
fn shipped_migrations_are_as_they_were() {
    use sha2::{Digest, Sha256};
    let sums: Vec<String> = COMPONENT
        .migrations
        .iter()
        .map(|m| {
            Sha256::digest(m.sql)
                .iter()
                .take(8)
                .map(|b| format!("{b:02x}"))
                .collect()
        })
        .collect();
    assert_eq!(sums, SHIPPED);
}

const SHIPPED: [&str; 6] = [
    "9ce4d74ec49ef7b0",
    "8f6afc3bfe9461d6",
    "df22d502ce2e98ba",
    "538264555ed685bb",
    "01f273ffff2f5818",
    "d9160c501f31c87e",
];
