//! The schema: upgraded from every earlier version with data in it, and read through indexes only.

use std::sync::Arc;

use ether_store::{Component, Engine, MigrateError, Sql, StoreError, Tables, Value};
use ether_testkit::postgres::{Durability, Server};

use crate::ledger::Ledger;
use crate::outcome::{Authority, Released, Reserved};
use crate::read::{BY_CONTROLLER, BY_TARGET};
use crate::sql::rows::SESSION_COLUMNS;
use crate::sql::schema::COMPONENT;
use crate::sql::{in_list, values_table};
use crate::tests::world::{LONG, Place, START, World, ask, audit, open, options, session};

/// A live and a retired session as the first schema's binary left them.
const OLD_ROWS: &str = "
INSERT INTO placement_pools VALUES ('slots', 'transcode', 2000, 1000), ('scratch', 'transcode', 100, 10);
INSERT INTO placement_targets VALUES ('w/cpu', 'w1', 'transcode=scratch,slots');
INSERT INTO placement_claims VALUES ('c/1', 'slots', 'transcode', 1000), ('c/1', 'scratch', 'transcode', 10);
UPDATE placement_meta SET cluster = 'test', revision = 9, total = 2, retired = 1";

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

fn old_session(slot: u32, operation: &str, retired: i64) -> String {
    let request = crate::ReserveRequest::new(ask(slot, operation, 0)).unwrap();
    let deadline = START + 30_000_000;
    format!(
        "INSERT INTO placement_sessions ({SESSION_COLUMNS}) VALUES ('c/{slot}', 1, 'c', 'c1', 'w/cpu', 'w', \
         'w1', 'transcode', '{operation}', '{}', 'scratch=10,slots=1000', {deadline}, {deadline}, {retired})",
        request.digest()
    )
}

async fn upgraded_from(version: usize, world: World) {
    // The world's own ledger is not used: this one is made at `version` and then opened by this binary.
    let store = world.store.clone();
    let tables = world.ledger.tables().clone();
    let old: &'static Component = Box::leak(Box::new(Component {
        name: "placement",
        migrations: &COMPONENT.migrations[..version],
    }));
    let drop = [
        "meta",
        "pools",
        "targets",
        "sessions",
        "claims",
        "coordinators",
        "evidence",
        "migrations",
    ];
    run(
        &tables,
        drop.iter().map(|t| format!("DROP TABLE placement_{t}")).collect(),
    )
    .await;
    let tables = store.component(old).await.unwrap();
    let mut texts: Vec<String> = OLD_ROWS.split(';').map(str::to_owned).collect();
    texts.push(old_session(1, "live", 0));
    texts.push(old_session(2, "over", 1));
    run(&tables, texts).await;

    let judge = Arc::new(world.judge.clone());
    let (ledger, _) = Ledger::open(&store, options(), Some(judge)).await.unwrap();
    audit(ledger.tables()).await;
    let record = ledger.lookup(session(1)).await.unwrap().unwrap();
    assert_eq!(record.authority, Authority::Live);
    let replayed = ledger.reserve(ask(1, "live", 0)).await.unwrap();
    assert!(matches!(replayed, Reserved::Replayed(_)), "{replayed:?}");
    let reused = ledger.reserve(ask(2, "next", 1)).await.unwrap();
    assert!(matches!(reused, Reserved::Granted(_)), "{reused:?}");
    assert!(matches!(
        ledger.retire(record.fence, None).await.unwrap(),
        crate::Retirement::Proved(Released::Retired { already: false })
    ));
    audit(ledger.tables()).await;
    // The earlier binary finds that it is one.
    if version < COMPONENT.migrations.len() {
        assert!(matches!(
            store.component(old).await,
            Err(MigrateError::Newer { .. })
        ));
    }
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
    }
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

const SHIPPED: [&str; 3] = ["9ce4d74ec49ef7b0", "8f6afc3bfe9461d6", "df22d502ce2e98ba"];

/// The statements whose cost must not grow with the ledger, with as many parameters as they have.
fn statements() -> Vec<(String, usize)> {
    let renewals = values_table(16, 2);
    vec![
        (
            format!(
                "SELECT {SESSION_COLUMNS} FROM placement_sessions WHERE session IN ({})",
                in_list(16)
            ),
            16,
        ),
        (
            format!(
                "UPDATE placement_sessions SET deadline = moved.column2 FROM (VALUES {renewals}) AS moved \
                 WHERE session = moved.column1"
            ),
            32,
        ),
        (
            format!("DELETE FROM placement_claims WHERE session IN ({})", in_list(4)),
            4,
        ),
        (
            format!("DELETE FROM placement_evidence WHERE session IN ({})", in_list(4)),
            4,
        ),
        (
            format!(
                "SELECT {SESSION_COLUMNS} FROM placement_sessions WHERE {BY_CONTROLLER} ORDER BY session LIMIT 10"
            ),
            2,
        ),
        (
            format!(
                "SELECT {SESSION_COLUMNS} FROM placement_sessions WHERE {BY_TARGET} ORDER BY session LIMIT 10"
            ),
            3,
        ),
    ]
}

async fn plans_use_indexes(tables: &Tables) {
    let many = if tables.store().engine() == Engine::Sqlite {
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) SELECT"
    } else {
        "WITH n AS (SELECT i FROM generate_series(1, 20000) AS g(i)) SELECT"
    };
    let rows = format!(
        "INSERT INTO placement_sessions ({SESSION_COLUMNS}) {many} 'c/' || i, 1, 'c', 'c1', 'w/cpu', 'w', 'w1', \
         'transcode', 'op', 'x', 'slots=1', 1, 1, CASE WHEN i % 1000 = 0 THEN 0 ELSE 1 END FROM n"
    );
    run(tables, vec![rows, "ANALYZE".to_owned()]).await;
    for (statement, parameters) in statements() {
        let postgres = tables.store().engine() != Engine::Sqlite;
        // PostgreSQL plans a prepared statement only with values at hand; literals stand in for them here.
        let mut text = statement.clone();
        for n in (1..=parameters).rev() {
            let number = statement.starts_with("UPDATE") && n % 2 == 0;
            let literal = if number {
                "5".to_owned()
            } else {
                format!("'c/{n}'")
            };
            text = text.replace(&format!("${n}"), &literal);
        }
        let explain = if postgres { "EXPLAIN" } else { "EXPLAIN QUERY PLAN" };
        let plan = tables
            .write::<_, StoreError, _>(LONG, move |tx| {
                Box::pin(async move {
                    let rows = tx.query(Sql::generated(format!("{explain} {text}")), &[]).await?;
                    let mut lines = Vec::new();
                    for row in rows {
                        lines.push(row.text(if postgres { 0_usize } else { 3 })?);
                    }
                    Ok(lines.join("\n"))
                })
            })
            .await
            .unwrap();
        let scans = if postgres {
            plan.contains("Seq Scan on placement_sessions")
        } else {
            plan.lines().any(|line| line.starts_with("SCAN placement_"))
        };
        assert!(!scans, "{statement}\n{plan}");
        let indexed = plan.contains("Index") || plan.contains("INDEX");
        let small = statement.starts_with("DELETE");
        assert!(indexed || (postgres && small), "{statement}\n{plan}");
    }
    // Each group reads the ledger's own row by its key.
    let meta = tables.query(
        LONG,
        "SELECT id FROM placement_meta WHERE id = $1",
        vec![Value::from(1)],
    );
    assert_eq!(meta.await.unwrap().len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_statement_scans_the_sessions() {
    let world = World::new(&Place::File).await;
    plans_use_indexes(world.ledger.tables()).await;
    if let Some(server) = Server::start(14, Durability::Fast) {
        let store = open(
            &server.fresh_schema().parse().unwrap(),
            &ether_types::ManualClock::default(),
        )
        .await;
        let (ledger, _) = Ledger::open(&store, options(), None).await.unwrap();
        plans_use_indexes(ledger.tables()).await;
    }
}
