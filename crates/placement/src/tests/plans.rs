//! What the ledger asks does not cost more as it grows: every statement that it really sends is found in an index.

use std::collections::BTreeMap;
use std::time::Duration;

use ether_store::{Engine, Sql, StoreError, Tables, Value};
use ether_testkit::postgres::{Durability, Server};
use ether_types::NodeId;

use crate::bounds::{EvidenceBody, PageSize, Quota};
use crate::evidence::{Author, EvidenceKind};
use crate::outcome::Rebased;
use crate::read::{Owner, Unretired};
use crate::sql::rows::SESSION_COLUMNS;
use crate::tests::faults::operations::roomy;
use crate::tests::world::{LONG, Place, World, ask, boot, later, node, options, session};

/// Tables that must never be read from end to end. The ledger's own row is alone in its table, and coordinators
/// are as few as the nodes that run one.
const GROWING: [&str; 5] = ["sessions", "claims", "evidence", "pools", "targets"];

/// Indexes that hold what is unretired and nothing else: to read one from end to end costs no more with history.
const UNRETIRED: [&str; 2] = ["placement_sessions_controller", "placement_sessions_target"];

/// Fills every table that grows, most of the sessions being tombstones.
async fn fill(tables: &Tables) {
    let numbers = if tables.store().engine() == Engine::Sqlite {
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) SELECT"
    } else {
        "WITH n AS (SELECT i FROM generate_series(1, 20000) AS g(i)) SELECT"
    };
    let rows = [
        format!(
            "INSERT INTO placement_sessions ({SESSION_COLUMNS}) {numbers} 'z/' || i, 1, 'c', 'c1', 'w/cpu', 'w', \
             'w1', 'transcode', 'op', 'x', 'slots=1', 1, 1, CASE WHEN i % 1000 = 0 THEN 0 ELSE 1 END FROM n"
        ),
        format!("INSERT INTO placement_claims {numbers} 'z/' || i, 'slots', 'transcode', 1 FROM n"),
        format!(
            "INSERT INTO placement_pools (scope, role, capacity, used) {numbers} 'z/' || i, 'transcode', 1, 0 FROM n"
        ),
        format!("INSERT INTO placement_targets (target, boot, roles) {numbers} 'z/' || i, 'w1', '' FROM n"),
        format!(
            "INSERT INTO placement_evidence {numbers} 'z/' || i, 1, 'target', 'w', 'w1', 'reaped', '{{}}', 1 FROM n"
        ),
        "ANALYZE".to_owned(),
    ];
    tables
        .write::<_, StoreError, _>(LONG, move |tx| {
            Box::pin(async move {
                for text in rows {
                    tx.execute(Sql::generated(text), &[]).await?;
                }
                Ok(())
            })
        })
        .await
        .unwrap();
}

/// Every call of the ledger, those for many with some dozen.
async fn call_everything(world: &World) {
    let ledger = &world.ledger;
    world.pool("spare", 1).await;
    world.target("w/spare", "w1", None, &["spare"]).await.unwrap();
    let mut granted = Vec::new();
    for slot in 0..24 {
        granted.push(world.grant(ask(slot, "op", 0)).await);
    }
    let fence = granted[0].fence.clone();
    let to = |seconds| later(&granted[0], Duration::from_secs(seconds));
    ledger.renew(fence.clone(), to(1)).await.unwrap();
    let many = granted.iter().map(|granted| (granted.fence.clone(), to(2)));
    for renewed in ledger.renew_many(many.collect()).await.unwrap() {
        renewed.unwrap();
    }
    ledger.lookup(session(0)).await.unwrap();
    let sessions: Vec<_> = (0..24).map(session).collect();
    ledger.lookup_many(&sessions).await.unwrap();
    let target = Owner::Target {
        node: node("w"),
        boot: boot("w1"),
    };
    for owner in [Owner::Controller(NodeId::new("c").unwrap()), target] {
        for after in [None, Some(session(3).into())] {
            let asked = Unretired {
                owner: owner.clone(),
                after: after.clone(),
                limit: PageSize::new(10).unwrap(),
            };
            assert_eq!(ledger.unretired(asked).await.unwrap().records.len(), 10);
        }
    }
    for author in [
        Author::Target { boot: boot("w1") },
        Author::Source {
            node: node("files"),
            boot: boot("f1"),
        },
    ] {
        let body = EvidenceBody::new("{}").unwrap();
        let kind = EvidenceKind::Reaped;
        let recorded = ledger.record_evidence(fence.clone(), author, kind, body);
        recorded.await.unwrap();
    }
    assert_eq!(ledger.evidence(&fence).await.unwrap().pieces.len(), 2);
    world.retire(&fence).await;
    world.retire(&granted[1].fence).await;
    world.grant(ask(0, "again", 1)).await;
    ledger.usage().await.unwrap();
    ledger.join().await.unwrap();
    ledger.withdraw(node("nobody"), boot("n1")).await.unwrap();
    let quota = |value| Quota::ceiling(value).unwrap();
    ledger.raise_ceiling(quota(5_000), quota(5_001)).await.unwrap();
    let held = ledger.rebase_clock(0).await.unwrap();
    assert!(matches!(held, Rebased::Held { .. }), "{held:?}");
}

/// `statement` with its values written out: PostgreSQL plans it as it would with exactly these.
fn spelled_out(statement: &Sql, values: &[Value]) -> String {
    let mut text = statement.as_str().to_owned();
    for (n, value) in values.iter().enumerate().rev() {
        let literal = match value {
            Value::Text(Some(text)) => format!("'{text}'"),
            Value::Integer(Some(integer)) => integer.to_string(),
            Value::Text(None) => "CAST(NULL AS TEXT)".to_owned(),
            Value::Integer(None) => "CAST(NULL AS BIGINT)".to_owned(),
        };
        text = text.replace(&format!("${}", n + 1), &literal);
    }
    text
}

async fn plan(tables: &Tables, text: String) -> Vec<String> {
    let postgres = tables.store().engine() != Engine::Sqlite;
    let explain = if postgres { "EXPLAIN" } else { "EXPLAIN QUERY PLAN" };
    tables
        .write::<_, StoreError, _>(LONG, move |tx| {
            Box::pin(async move {
                let rows = tx.query(Sql::generated(format!("{explain} {text}")), &[]).await?;
                rows.iter()
                    .map(|row| row.text(if postgres { 0_usize } else { 3 }))
                    .collect()
            })
        })
        .await
        .unwrap()
}

/// The growing tables that `statement` calls by another name.
fn aliases(statement: &str) -> BTreeMap<String, &'static str> {
    let mut names = BTreeMap::new();
    let words: Vec<&str> = statement.split_whitespace().collect();
    for pair in words.windows(2) {
        let table = pair[0].strip_prefix("placement_");
        if let Some(table) = table.and_then(|table| GROWING.into_iter().find(|name| *name == table)) {
            names.insert(pair[1].to_owned(), table);
        }
    }
    names
}

/// The lines of `plan` that read a growing table from end to end.
fn scans<'p>(statement: &str, plan: &'p [String], postgres: bool) -> Vec<&'p String> {
    let aliases = aliases(statement);
    let growing = |name: &str| {
        let name = name.trim_end_matches(')');
        aliases.contains_key(name) || GROWING.iter().any(|table| name == format!("placement_{table}"))
    };
    plan.iter()
        .filter(|line| {
            if postgres {
                let table = line.split_once("Seq Scan on ").map(|(_, rest)| rest);
                return table.is_some_and(|rest| growing(rest.split(' ').next().unwrap()));
            }
            let table = line.strip_prefix("SCAN ");
            let of_all = |rest: &&str| !UNRETIRED.iter().any(|index| rest.ends_with(index));
            table
                .filter(of_all)
                .is_some_and(|rest| growing(rest.split(' ').next().unwrap()))
        })
        .collect()
}

async fn nothing_is_scanned(world: World) {
    let world = roomy(world).await;
    fill(world.ledger.tables()).await;
    world.store.faults().listen();
    call_everything(&world).await;
    let mut kinds = BTreeMap::new();
    for (statement, values) in world.store.faults().heard() {
        kinds.insert(statement.as_str().to_owned(), (statement, values));
    }
    let postgres = world.store.engine() != Engine::Sqlite;
    let (mut touched, mut indexed) = (std::collections::BTreeSet::new(), 0);
    for (text, (statement, values)) in &kinds {
        touched.extend(
            GROWING
                .into_iter()
                .filter(|table| text.contains(&format!("placement_{table}"))),
        );
        let plan = plan(world.ledger.tables(), spelled_out(statement, values)).await;
        let scans = scans(text, &plan, postgres);
        assert!(scans.is_empty(), "{text}\n{plan:#?}");
        indexed += usize::from(
            plan.iter()
                .any(|line| line.contains("Index") || line.contains("INDEX")),
        );
    }
    println!("{} statements, {indexed} through an index", kinds.len());
    // The list is only worth something while it is the real one.
    assert_eq!(touched.len(), GROWING.len(), "{touched:?}");
    assert!(
        kinds.len() >= 20 && indexed >= 12,
        "{} statements, {indexed} indexed",
        kinds.len()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_statement_scans_a_table_that_grows_on_sqlite() {
    let mut fleet = options();
    fleet.fleet = true;
    nothing_is_scanned(World::with(&Place::File, fleet).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_statement_scans_a_table_that_grows_on_postgres() {
    for major in [14, 17] {
        let Some(server) = Server::start(major, Durability::Fast) else {
            continue;
        };
        let mut fleet = options();
        fleet.fleet = true;
        nothing_is_scanned(World::with(&Place::Postgres(std::sync::Arc::new(server)), fleet).await).await;
    }
}

/// A plan that does scan is noticed.
#[tokio::test]
async fn a_scan_is_noticed() {
    let world = World::new(&Place::File).await;
    fill(world.ledger.tables()).await;
    let text = "SELECT s.deadline FROM placement_meta m JOIN placement_sessions s ON s.operation = 'x'";
    let plan = plan(world.ledger.tables(), text.to_owned()).await;
    assert_eq!(scans(text, &plan, false).len(), 1, "{plan:#?}");
}
