//! One suite for both engines: what a component may rely on.

use std::sync::Arc;
use std::time::Duration;

use ether_testkit::postgres::{Durability, Server};
use ether_types::SystemClock;

use crate::{
    Bound, Component, Location, MigrateError, Migration, Options, Sql, Store, StoreError, Tables, Value,
};

const SECONDS: Bound = Bound::of(Duration::from_secs(20));

const FIRST: Migration = Migration {
    version: 1,
    name: "words",
    sql: "CREATE TABLE demo_words (word TEXT NOT NULL PRIMARY KEY, count BIGINT);
          CREATE INDEX demo_words_count ON demo_words (count)",
};
const SECOND: Migration = Migration {
    version: 2,
    name: "notes",
    sql: "ALTER TABLE demo_words ADD COLUMN note TEXT NOT NULL DEFAULT ''",
};
const V1: Component = Component {
    name: "demo",
    migrations: &[FIRST],
};
const V2: Component = Component {
    name: "demo",
    migrations: &[FIRST, SECOND],
};

async fn open(location: &Location) -> Store {
    Store::open(location, Options::default(), Arc::new(SystemClock::new()))
        .await
        .unwrap()
}

async fn put(tables: &Tables, word: &'static str, count: Option<i64>) -> Result<u64, StoreError> {
    tables
        .write(SECONDS, move |tx| {
            Box::pin(async move {
                tx.execute(
                    "INSERT INTO demo_words (word, count) VALUES ($1, $2)",
                    &[Value::from(word), Value::from(count)],
                )
                .await
            })
        })
        .await
}

async fn count(tables: &Tables) -> i64 {
    let rows = tables
        .query(
            SECONDS,
            "SELECT CAST(COUNT(*) AS BIGINT) FROM demo_words",
            Vec::new(),
        )
        .await
        .unwrap();
    rows[0].integer(0).unwrap()
}

/// Everything that must hold on every engine; `again` says whether the place can be opened twice.
async fn suite(location: Location, again: bool) {
    let store = open(&location).await;
    let old = store.component(&V1).await.unwrap();
    assert_eq!(put(&old, "kept", Some(3)).await.unwrap(), 1);

    // A later binary adds its column to the row that is there, and runs twice without harm.
    let tables = store.component(&V2).await.unwrap();
    store.component(&V2).await.unwrap();
    let row = tables
        .query(SECONDS, "SELECT word, count, note FROM demo_words", Vec::new())
        .await
        .unwrap()
        .remove(0);
    assert_eq!(
        (
            row.text("word").unwrap(),
            row.opt_integer(1usize).unwrap(),
            row.text("note").unwrap()
        ),
        ("kept".to_owned(), Some(3), String::new())
    );

    // The earlier binary now refuses, and so does one whose first migration was edited.
    assert!(matches!(
        store.component(&V1).await,
        Err(MigrateError::Newer {
            found: 2,
            known: 1,
            ..
        })
    ));
    const EDITED: Component = Component {
        name: "demo",
        migrations: &[
            Migration {
                sql: "CREATE TABLE demo_words (word TEXT)",
                ..FIRST
            },
            SECOND,
        ],
    };
    assert!(matches!(
        store.component(&EDITED).await,
        Err(MigrateError::Changed { version: 1, .. })
    ));

    // A failing body, a broken constraint, and a body that hides its broken statement all leave nothing.
    assert!(matches!(
        put(&tables, "kept", None).await,
        Err(StoreError::Constraint(_))
    ));
    let hidden: Result<(), StoreError> = tables
        .write(SECONDS, |tx| {
            Box::pin(async move {
                tx.execute(
                    "INSERT INTO demo_words (word) VALUES ($1)",
                    &[Value::from("hidden")],
                )
                .await?;
                let _ = tx
                    .execute("INSERT INTO demo_words (word) VALUES ('kept')", &[])
                    .await;
                Ok(())
            })
        })
        .await;
    assert!(matches!(hidden, Err(StoreError::Aborted)), "{hidden:?}");
    let refused: Result<(), StoreError> = tables
        .write(SECONDS, |tx| {
            Box::pin(async move {
                tx.execute("INSERT INTO demo_words (word) VALUES ('refused')", &[])
                    .await?;
                Err(StoreError::Closed)
            })
        })
        .await;
    assert!(matches!(refused, Err(StoreError::Closed)));
    assert_eq!(count(&tables).await, 1);

    // A reader cannot write, whatever text it uses.
    let sneaky: Result<(), StoreError> = tables
        .read(SECONDS, |tx| {
            Box::pin(async move {
                let sql = "INSERT INTO demo_words (word) VALUES ('sneaky') RETURNING word";
                tx.query(sql, &[]).await.map(drop)
            })
        })
        .await;
    if again {
        assert!(matches!(sneaky, Err(StoreError::ReadOnly(_))), "{sneaky:?}");
        let sql = "INSERT INTO demo_words (word) VALUES ('sneaky') RETURNING word";
        let sneaky = tables.query(SECONDS, sql, Vec::new()).await;
        assert!(matches!(sneaky, Err(StoreError::ReadOnly(_))), "{sneaky:?}");
        assert_eq!(count(&tables).await, 1);
    }
    who_asks_first_may_refuse(&store).await;
    statements_together_are_those_statements(&tables).await;

    callers_that_give_up(&tables).await;
    a_panic_is_carried_over(&tables).await;
    if again {
        a_lock_that_is_held(&location, &tables).await;
    }
    store.close().await;
    assert!(matches!(
        tables.query(SECONDS, "SELECT 1", Vec::new()).await,
        Err(StoreError::Closed)
    ));
    assert!(matches!(
        put(&tables, "after the end", None).await,
        Err(StoreError::Closed)
    ));
    assert!(matches!(
        store.component(&V2).await,
        Err(MigrateError::Store(StoreError::Closed))
    ));
}

/// Few or many, statements that are run together change what each of them does, in their order, and end at the first
/// that fails.
async fn statements_together_are_those_statements(tables: &Tables) {
    let insert = "INSERT INTO demo_words (word, count) VALUES ($1, $2)";
    let together = async |counts: std::ops::Range<i64>, last: (&'static str, Vec<Value>)| {
        let mut all: Vec<(Sql, Vec<Value>)> = counts
            .map(|n| {
                (
                    Sql::from(insert),
                    vec![Value::from(format!("t{n}")), Value::from(n)],
                )
            })
            .collect();
        all.push((Sql::from(last.0), last.1));
        let run = tables.write::<_, StoreError, _>(SECONDS, move |tx| {
            Box::pin(async move { tx.execute_all(&all).await })
        });
        run.await
    };
    let before = count(tables).await;
    for many in [1, 3, 40] {
        let raise = "UPDATE demo_words SET count = count + $1 WHERE word LIKE $2";
        let changed = together(0..many, (raise, vec![Value::from(1), Value::from("t%")])).await;
        let mut expected = vec![1; usize::try_from(many).unwrap()];
        expected.push(u64::try_from(many).unwrap());
        assert_eq!(changed.unwrap(), expected);
        // The last of these stands already, and takes the others with it.
        let double = (insert, vec![Value::from("t0"), Value::from(0)]);
        let failed = together(many..2 * many, double).await;
        assert!(matches!(failed, Err(StoreError::Constraint(_))), "{failed:?}");
        let rows = "SELECT count FROM demo_words WHERE word LIKE 't%' ORDER BY count";
        let rows = tables.query(SECONDS, rows, Vec::new()).await.unwrap();
        let counts = rows.iter().map(|row| row.integer(0usize).unwrap());
        assert!(counts.eq(1..=many));
        let clear = "DELETE FROM demo_words WHERE word LIKE 't%'";
        let gone = together(0..0, (clear, Vec::new())).await.unwrap();
        assert_eq!(gone, [u64::try_from(many).unwrap()]);
    }
    assert_eq!(count(tables).await, before);
}

/// A check that disagrees is asked before anything is changed, and told what is there.
async fn who_asks_first_may_refuse(store: &Store) {
    const GUARDED: Component = Component {
        name: "guarded",
        migrations: &[Migration {
            version: 1,
            name: "a table",
            sql: "CREATE TABLE guarded_things (a TEXT)",
        }],
    };
    async fn asked(store: &Store, wanted: i64) -> Result<Tables, MigrateError> {
        let checked = store.component_if(&GUARDED, move |_tx, found| {
            Box::pin(async move {
                match found == wanted {
                    true => Ok(()),
                    false => Err(MigrateError::Gap {
                        component: "guarded",
                        version: found,
                    }),
                }
            })
        });
        checked.await
    }
    for _ in 0..2 {
        let refused = asked(store, 1).await.map(drop);
        assert!(
            matches!(refused, Err(MigrateError::Gap { version: 0, .. })),
            "{refused:?}"
        );
    }
    let tables = asked(store, 0).await.unwrap();
    asked(store, 1).await.unwrap();
    let rows = tables.query(SECONDS, "SELECT a FROM guarded_things", Vec::new());
    assert!(rows.await.unwrap().is_empty());
}

/// Cancelled at any moment, a caller leaves no open transaction and a lock that is free; who was answered finds what
/// was answered.
async fn callers_that_give_up(tables: &Tables) {
    let mut answered = Vec::new();
    for step in 0..60_u32 {
        let word = format!("given up {step}");
        let put = word.clone();
        let call = tables.write::<_, StoreError, _>(SECONDS, move |tx| {
            Box::pin(async move {
                tx.execute("INSERT INTO demo_words (word) VALUES ($1)", &[Value::from(put)])
                    .await
            })
        });
        let patience = Duration::from_micros(u64::from(step) * 40);
        if let Ok(changed) = tokio::time::timeout(patience, call).await {
            assert_eq!(changed.unwrap(), 1);
            answered.push(word);
        }
    }
    // The next writer waits for nobody: a transaction that was left open would keep the lock for ever.
    put(tables, "after", None).await.unwrap();
    let sql = "SELECT word FROM demo_words WHERE word = $1";
    for word in answered {
        let found = tables.query(SECONDS, sql, vec![Value::from(word.as_str())]);
        assert_eq!(
            found.await.unwrap().len(),
            1,
            "{word} was answered and is not there"
        );
    }
}

async fn a_panic_is_carried_over(tables: &Tables) {
    let before = count(tables).await;
    let tables_inside = tables.clone();
    let panicked = tokio::spawn(async move {
        let outcome: Result<(), StoreError> = tables_inside
            .write(SECONDS, |tx| {
                Box::pin(async move {
                    tx.execute("INSERT INTO demo_words (word) VALUES ('panic')", &[])
                        .await?;
                    panic!("on purpose");
                })
            })
            .await;
        outcome
    })
    .await;
    assert!(panicked.unwrap_err().is_panic());
    put(tables, "after the panic", None).await.unwrap();
    assert_eq!(count(tables).await, before + 1);
}

/// While another process holds the lock, a writer waits for its bound and no longer, and a reader not at all.
async fn a_lock_that_is_held(location: &Location, tables: &Tables) {
    let other = open(location).await.component(&V2).await.unwrap();
    let (held, is_held) = tokio::sync::oneshot::channel();
    let (release, released) = tokio::sync::oneshot::channel::<()>();
    let holder = tokio::spawn(async move {
        other
            .write::<(), StoreError, _>(SECONDS, |_tx| {
                Box::pin(async move {
                    held.send(()).unwrap();
                    released.await.unwrap();
                    Ok(())
                })
            })
            .await
    });
    is_held.await.unwrap();
    // Were it the whole call's bound that ends the wait, the holder's own would pass first, and the lock be free.
    let short = Bound {
        lock: Duration::from_millis(150),
        total: 3 * SECONDS.total,
    };
    let waited: Result<(), StoreError> = tables.write(short, |_tx| Box::pin(async { Ok(()) })).await;
    assert!(
        matches!(waited, Err(StoreError::Busy(bound)) if bound == short.lock),
        "{waited:?}"
    );
    assert!(count(tables).await > 0);
    release.send(()).unwrap();
    holder.await.unwrap().unwrap();
    put(tables, "after the lock", None).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_component_on_a_sqlite_file() {
    let directory = tempfile::tempdir().unwrap();
    suite(Location::SqliteFile(directory.path().join("a.db")), true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_component_in_sqlite_memory() {
    suite(Location::SqliteMemory, false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_component_on_postgres_that_restarts() {
    let Some(mut server) = Server::start(15, Durability::Fast) else {
        return;
    };
    suite(server.fresh_schema().parse().unwrap(), true).await;
    let idle = "SELECT COUNT(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%'";
    assert_eq!(server.sql(idle), "0");
    // Nobody is connected any more; a backend needs a moment to see that its client has left.
    let ours = "SELECT COUNT(*) FROM pg_stat_activity WHERE application_name = 'ether'";
    let mut looks = 0;
    while server.sql(ours) != "0" {
        looks += 1;
        assert!(looks < 100, "a closed store has left connections open");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }

    let store = open(&server.fresh_schema().parse().unwrap()).await;
    let tables = store.component(&V2).await.unwrap();
    put(&tables, "before", None).await.unwrap();
    server.crash();
    server.run();
    put(&tables, "after", None).await.unwrap();
    assert_eq!(count(&tables).await, 2);
}

/// A component waits for its own lock alone: neither another one's in the same schema is its, nor one of its name in
/// another schema.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_components_and_two_schemas_are_locks_of_their_own() {
    const OTHER: Component = Component {
        name: "other",
        migrations: &[],
    };
    let Some(server) = Server::start(15, Durability::Fast) else {
        return;
    };
    let here = open(&server.fresh_schema().parse().unwrap()).await;
    let there = open(&server.fresh_schema().parse().unwrap()).await;
    let demo = here.component(&V2).await.unwrap();
    let others = [
        here.component(&OTHER).await.unwrap(),
        there.component(&V2).await.unwrap(),
    ];
    let (held, is_held) = tokio::sync::oneshot::channel();
    let (release, released) = tokio::sync::oneshot::channel::<()>();
    let holder = tokio::spawn(async move {
        demo.write::<(), StoreError, _>(Bound::of(3 * SECONDS.total), |_tx| {
            Box::pin(async move {
                held.send(()).unwrap();
                released.await.unwrap();
                Ok(())
            })
        })
        .await
    });
    is_held.await.unwrap();
    for other in others {
        let wrote: Result<(), StoreError> = other.write(SECONDS, |_tx| Box::pin(async { Ok(()) })).await;
        wrote.unwrap();
    }
    release.send(()).unwrap();
    holder.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn processes_that_start_together_migrate_once() {
    let Some(server) = Server::start(15, Durability::Fast) else {
        return;
    };
    let location: Location = server.fresh_schema().parse().unwrap();
    let starts: Vec<_> = (0..8)
        .map(|_| {
            let location = location.clone();
            tokio::spawn(async move { open(&location).await.component(&V2).await.map(drop) })
        })
        .collect();
    for start in starts {
        start.await.unwrap().unwrap();
    }
}

#[test]
fn a_component_that_breaks_its_own_rules_is_refused() {
    for sql in [
        "CREATE TABLE other_words (a TEXT)",
        "create unique index if not exists x on demo_words (count)",
    ] {
        let migrations: &'static [Migration] = Box::leak(Box::new([Migration { sql, ..FIRST }]));
        let component = Component {
            name: "demo",
            migrations,
        };
        assert!(
            matches!(component.check(), Err(MigrateError::Component { .. })),
            "{sql}"
        );
    }
    let skipped = Component {
        name: "demo",
        migrations: &[SECOND],
    };
    assert!(skipped.check().is_err());
    assert!(V2.check().is_ok());
}

#[test]
fn a_password_is_never_shown() {
    let location: Location = "postgres://u:hunter2@db:5433/ether".parse().unwrap();
    assert_eq!(
        format!("{location} {location:?}"),
        "postgres://db:5433/ether postgres://db:5433/ether"
    );
    let broken = "postgres://u:hunter2@db:nonsense/"
        .parse::<Location>()
        .unwrap_err();
    assert!(!format!("{broken} {broken:?}").contains("hunter2"));
    assert!("mysql://x".parse::<Location>().is_err());
    assert!(matches!("sqlite::memory:".parse(), Ok(Location::SqliteMemory)));
    assert!(matches!("sqlite:///a/b.db".parse(), Ok(Location::SqliteFile(path)) if path.ends_with("a/b.db")));
    assert_eq!(Sql::from("x").as_str(), "x");
}
