//! A bare loop of the statements of one ledger cycle on SQLite, by the driver that the ledger has, in this process.
//!
//! WAL with synchronous FULL, as the ledger has it; each of the three steps is one transaction that takes the write
//! lock first. Nothing is decided, checked or parsed: the rows that are read are dropped, and what is written is known
//! beforehand. The plain side is so no slower by a language or a driver of its own.

use std::path::Path;

use ether_types::{Clock as _, SystemClock};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection, SqliteJournalMode, SqliteSynchronous};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _};

use crate::harness::BenchError;

const SCHEMA: &str = "
    CREATE TABLE meta (id BIGINT NOT NULL PRIMARY KEY, cluster TEXT, revision BIGINT, total BIGINT, retired BIGINT,
        ceiling BIGINT, clock BIGINT, epoch BIGINT, known_schema BIGINT);
    INSERT INTO meta VALUES (1, 'bench', 0, 0, 0, NULL, 0, 0, 6);
    CREATE TABLE pools (scope TEXT, role TEXT, capacity BIGINT, used BIGINT, revision BIGINT,
        PRIMARY KEY (scope, role));
    INSERT INTO pools VALUES ('slots', 'transcode', 1000000, 0, 1), ('scratch', 'transcode', 1000000, 0, 1);
    CREATE TABLE targets (target TEXT NOT NULL PRIMARY KEY, boot TEXT, roles TEXT, revision BIGINT);
    INSERT INTO targets VALUES ('w/cpu', 'w1', 'transcode=scratch,slots', 1);
    CREATE TABLE sessions (session TEXT NOT NULL PRIMARY KEY, generation BIGINT NOT NULL,
        controller_node TEXT NOT NULL, controller_boot TEXT NOT NULL, target TEXT NOT NULL,
        target_node TEXT NOT NULL, target_boot TEXT NOT NULL, role TEXT NOT NULL, operation TEXT NOT NULL,
        request TEXT NOT NULL, claims TEXT NOT NULL, initial_deadline BIGINT NOT NULL, deadline BIGINT NOT NULL,
        retired BIGINT NOT NULL);
    CREATE INDEX sessions_controller ON sessions (controller_node, session) WHERE retired = 0;
    CREATE INDEX sessions_target ON sessions (target_node, target_boot, session) WHERE retired = 0;
    CREATE TABLE claims (session TEXT, scope TEXT, role TEXT, units BIGINT, PRIMARY KEY (session, scope));
    CREATE TABLE evidence (session TEXT, generation BIGINT, part TEXT, author_node TEXT, author_boot TEXT,
        kind TEXT, body TEXT, recorded BIGINT, PRIMARY KEY (session, generation, part, author_node, author_boot));
";

const META: &str = "m.cluster, m.revision, m.total, m.retired, m.ceiling, m.clock, m.epoch, m.known_schema";
const SESSION: &str = "s.session, s.generation, s.controller_node, s.controller_boot, s.target, s.target_node, \
     s.target_boot, s.role, s.operation, s.request, s.claims, s.initial_deadline, s.deadline, s.retired";
const TARGETS: &str = "SELECT CAST(0 AS BIGINT), target, boot, roles, CAST(0 AS BIGINT), CAST(0 AS BIGINT), revision \
     FROM targets WHERE target IN ($1)";
const POOLS: &str = "SELECT CAST(1 AS BIGINT), scope, role, '', capacity, used, revision FROM pools";

const PUT_META: &str = "UPDATE meta SET cluster = $1, revision = $2, total = $3, retired = $4, ceiling = $5, clock = $6, \
     epoch = $7 WHERE id = 1 AND revision = $8";
const PUT_SESSION: &str = "INSERT INTO sessions VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14) \
     ON CONFLICT (session) DO UPDATE SET generation = excluded.generation, \
     controller_node = excluded.controller_node, controller_boot = excluded.controller_boot, \
     target = excluded.target, target_node = excluded.target_node, target_boot = excluded.target_boot, \
     role = excluded.role, operation = excluded.operation, request = excluded.request, claims = excluded.claims, \
     initial_deadline = excluded.initial_deadline, deadline = excluded.deadline, retired = excluded.retired \
     WHERE sessions.generation <= excluded.generation";
const PUT_DEADLINE: &str = "UPDATE sessions SET deadline = moved.column2 FROM (VALUES ($1, $2)) AS moved \
     WHERE session = moved.column1";
const PUT_CLAIMS: &str =
    "INSERT INTO claims (session, scope, role, units) VALUES ($1, $2, $3, $4), ($5, $6, $7, $8)";
const PUT_POOLS: &str = "INSERT INTO pools (scope, role, capacity, used, revision) \
     VALUES ($1, $2, $3, $4, $5), ($6, $7, $8, $9, $10) ON CONFLICT (scope, role) DO UPDATE \
     SET capacity = excluded.capacity, used = excluded.used, revision = excluded.revision";

/// A database to loop over. As the ledger does, it looks at a proof's evidence on a connection for reading.
pub(crate) struct Bare {
    writer: SqliteConnection,
    reader: SqliteConnection,
    revision: i64,
    generation: i64,
}

enum Bind {
    Text(&'static str),
    Whole(i64),
    Null,
}

use Bind::{Null, Text, Whole};

const SESSION_KEY: &str = "c/1";

impl Bare {
    /// Makes a new database in `file`.
    pub(crate) async fn create(file: &Path) -> Result<Self, BenchError> {
        let options = SqliteConnectOptions::new()
            .filename(file)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .disable_statement_logging();
        let mut writer = options.connect().await?;
        writer.execute(sqlx::raw_sql(SCHEMA)).await?;
        let reader = options.pragma("query_only", "ON").connect().await?;
        Ok(Self {
            writer,
            reader,
            revision: 0,
            generation: 0,
        })
    }

    /// Reserve, renew and retire, `count` times.
    pub(crate) async fn cycles(&mut self, count: u64) -> Result<(), BenchError> {
        for _ in 0..count {
            self.reserve().await?;
            self.renew().await?;
            self.retire().await?;
        }
        Ok(())
    }

    async fn reserve(&mut self) -> Result<(), BenchError> {
        self.begin(false).await?;
        let scopes = "$2, $3, $4, $5";
        let sql = format!("{TARGETS} UNION ALL {POOLS} WHERE scope IN ({scopes})");
        let keys = ["w/cpu", "scratch", "slots", "slots", "slots"].map(Text);
        ask(&mut self.writer, sql, &keys).await?;
        self.generation += 1;
        self.put_meta(0).await?;
        self.put_session(600_000_000, 0).await?;
        let (session, role) = (SESSION_KEY, "transcode");
        let claims = [
            Text(session),
            Text("scratch"),
            Text(role),
            Whole(10),
            Text(session),
            Text("slots"),
            Text(role),
            Whole(1_000),
        ];
        run(&mut self.writer, PUT_CLAIMS, &claims).await?;
        self.put_pools(1_000, 10).await?;
        self.commit().await
    }

    async fn renew(&mut self) -> Result<(), BenchError> {
        self.begin(false).await?;
        self.put_meta(0).await?;
        let moved = [Text(SESSION_KEY), Whole(micros() + 660_000_000)];
        run(&mut self.writer, PUT_DEADLINE, &moved).await?;
        self.commit().await
    }

    async fn retire(&mut self) -> Result<(), BenchError> {
        let sql = format!(
            "SELECT {META}, {SESSION}, CAST(0 AS BIGINT), e.generation, e.part, e.author_node, e.author_boot, e.kind, \
             e.body, e.recorded FROM meta m LEFT JOIN sessions s ON s.session = $1 \
             LEFT JOIN evidence e ON e.session = s.session AND e.generation = s.generation \
             WHERE m.id = 1 ORDER BY e.part, e.author_node, e.author_boot"
        );
        ask(&mut self.reader, sql, &[Text(SESSION_KEY)]).await?;
        self.begin(true).await?;
        let sql = format!("{POOLS} WHERE scope IN ($1, $2, $3, $4)");
        let keys = ["scratch", "slots", "slots", "slots"].map(Text);
        ask(&mut self.writer, sql, &keys).await?;
        self.put_meta(1).await?;
        self.put_session(660_000_000, 1).await?;
        let sql = "DELETE FROM claims WHERE session IN ($1)";
        run(&mut self.writer, sql, &[Text(SESSION_KEY)]).await?;
        self.put_pools(0, 0).await?;
        self.commit().await
    }

    async fn begin(&mut self, evidenced: bool) -> Result<(), BenchError> {
        self.writer.execute(sqlx::raw_sql("BEGIN IMMEDIATE")).await?;
        let evidenced = match evidenced {
            false => "CAST(0 AS BIGINT)",
            true => {
                "CASE WHEN EXISTS (SELECT 1 FROM evidence e WHERE e.session = s.session) \
                 THEN CAST(1 AS BIGINT) ELSE CAST(0 AS BIGINT) END"
            }
        };
        let sql = format!(
            "SELECT {META}, {SESSION}, {evidenced} FROM meta m LEFT JOIN sessions s ON s.session IN ($1) \
             WHERE m.id = 1"
        );
        ask(&mut self.writer, sql, &[Text(SESSION_KEY)]).await
    }

    async fn commit(&mut self) -> Result<(), BenchError> {
        self.writer.execute(sqlx::raw_sql("COMMIT")).await?;
        Ok(())
    }

    async fn put_meta(&mut self, retired: i64) -> Result<(), BenchError> {
        let seen = self.revision;
        self.revision += 1;
        let values = [
            Text("bench"),
            Whole(self.revision),
            Whole(1),
            Whole(retired),
            Null,
            Whole(micros()),
            Whole(0),
            Whole(seen),
        ];
        run(&mut self.writer, PUT_META, &values).await
    }

    async fn put_session(&mut self, lease: i64, retired: i64) -> Result<(), BenchError> {
        let names = [SESSION_KEY, "c", "c1", "w/cpu", "w", "w1", "transcode", "op-1"];
        let [session, names @ ..] = names.map(Text);
        let now = micros();
        let values = [session, Whole(self.generation)].into_iter().chain(names).chain([
            Text("0000000000000000000000000000000000000000000000000000000000000000"),
            Text("scratch=10,slots=1000"),
            Whole(now + 600_000_000),
            Whole(now + lease),
            Whole(retired),
        ]);
        run(&mut self.writer, PUT_SESSION, &values.collect::<Vec<_>>()).await
    }

    async fn put_pools(&mut self, slots: i64, scratch: i64) -> Result<(), BenchError> {
        let role = "transcode";
        let values = [
            Text("scratch"),
            Text(role),
            Whole(1_000_000),
            Whole(scratch),
            Whole(1),
            Text("slots"),
            Text(role),
            Whole(1_000_000),
            Whole(slots),
            Whole(1),
        ];
        run(&mut self.writer, PUT_POOLS, &values).await
    }
}

async fn ask(connection: &mut SqliteConnection, sql: String, values: &[Bind]) -> Result<(), BenchError> {
    connection.fetch_all(bound(AssertSqlSafe(sql), values)).await?;
    Ok(())
}

async fn run(
    connection: &mut SqliteConnection,
    sql: &'static str,
    values: &[Bind],
) -> Result<(), BenchError> {
    match connection.execute(bound(sql, values)).await?.rows_affected() {
        0 => Err(BenchError::Other(format!("nothing was changed by {sql}"))),
        _ => Ok(()),
    }
}

fn bound(
    sql: impl sqlx::SqlSafeStr,
    values: &[Bind],
) -> sqlx::query::Query<'static, sqlx::Sqlite, sqlx::sqlite::SqliteArguments> {
    let mut query = sqlx::query(sql);
    for value in values {
        query = match *value {
            Text(text) => query.bind(text),
            Whole(whole) => query.bind(whole),
            Null => query.bind(None::<i64>),
        };
    }
    query
}

fn micros() -> i64 {
    SystemClock::new().now().as_micros()
}
