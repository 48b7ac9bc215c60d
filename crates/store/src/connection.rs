//! One connection of either engine, and the few statements that differ between them.

use std::fmt::Write as _;
use std::time::Duration;

use futures_util::TryStreamExt as _;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use sqlx::sqlite::{SqliteConnectOptions, SqliteConnection};
use sqlx::{AssertSqlSafe, Connection as _, Either, Executor as _};

use crate::value::{Row, RowKind, Sql, Value};

/// How many values the statements may have that are sent to SQLite at once.
const JOINED: usize = 64;

/// How a new connection is made.
#[derive(Clone)]
pub(crate) struct Connector {
    pub(crate) to: To,
    #[cfg(feature = "faults")]
    pub(crate) faults: std::sync::Arc<crate::faults::Faults>,
}

#[derive(Clone)]
pub(crate) enum To {
    Sqlite(Box<SqliteConnectOptions>),
    Postgres(Box<PgConnectOptions>),
}

pub(crate) struct Connection {
    wire: Wire,
    /// SQLite's busy timeout as last set, so that it is not set again for nothing.
    busy: Option<Duration>,
    #[cfg(feature = "faults")]
    faults: std::sync::Arc<crate::faults::Faults>,
}

enum Wire {
    Sqlite(SqliteConnection),
    Postgres(PgConnection),
}

impl From<To> for Connector {
    fn from(to: To) -> Self {
        Self {
            to,
            #[cfg(feature = "faults")]
            faults: std::sync::Arc::default(),
        }
    }
}

impl Connector {
    /// The same place, by connections that the database itself keeps from writing.
    pub(crate) fn reading(&self) -> Self {
        let mut reading = self.clone();
        reading.to = match &self.to {
            To::Sqlite(options) => To::Sqlite(Box::new(
                options
                    .as_ref()
                    .clone()
                    .create_if_missing(false)
                    .pragma("query_only", "ON"),
            )),
            To::Postgres(options) => {
                let read_only = [("default_transaction_read_only", "on")];
                To::Postgres(Box::new(options.as_ref().clone().options(read_only)))
            }
        };
        reading
    }

    pub(crate) async fn connect(&self) -> Result<Connection, sqlx::Error> {
        let wire = match &self.to {
            To::Sqlite(options) => Wire::Sqlite(SqliteConnection::connect_with(options).await?),
            To::Postgres(options) => Wire::Postgres(PgConnection::connect_with(options).await?),
        };
        Ok(Connection {
            wire,
            busy: None,
            #[cfg(feature = "faults")]
            faults: self.faults.clone(),
        })
    }
}

impl Connection {
    pub(crate) fn is_postgres(&self) -> bool {
        matches!(self.wire, Wire::Postgres(_))
    }

    /// Runs a text without parameters, several statements included, and returns every row of all of them.
    pub(crate) async fn raw(&mut self, text: String) -> Result<Vec<Row>, sqlx::Error> {
        #[cfg(feature = "faults")]
        let due = self.faults.before()?;
        let done = self.raw_now(text).await;
        #[cfg(feature = "faults")]
        self.faults.after(due)?;
        done
    }

    async fn raw_now(&mut self, text: String) -> Result<Vec<Row>, sqlx::Error> {
        let query = sqlx::raw_sql(AssertSqlSafe(text));
        Ok(match &mut self.wire {
            Wire::Sqlite(wire) => rows(query.fetch_all(wire).await?, RowKind::Sqlite),
            Wire::Postgres(wire) => rows(query.fetch_all(wire).await?, RowKind::Postgres),
        })
    }

    pub(crate) async fn query(&mut self, sql: &Sql, values: &[Value]) -> Result<Vec<Row>, sqlx::Error> {
        #[cfg(feature = "faults")]
        let due = self.faults.note(sql, values).before()?;
        let done = self.query_now(sql, values).await;
        #[cfg(feature = "faults")]
        self.faults.after(due)?;
        done
    }

    async fn query_now(&mut self, sql: &Sql, values: &[Value]) -> Result<Vec<Row>, sqlx::Error> {
        Ok(match &mut self.wire {
            Wire::Sqlite(wire) => {
                let mut query = sqlx::query::<sqlx::Sqlite>(AssertSqlSafe(sql.0.clone()));
                for value in values {
                    query = match value {
                        Value::Text(text) => query.bind(text.clone()),
                        Value::Integer(integer) => query.bind(*integer),
                    };
                }
                rows(wire.fetch_all(query).await?, RowKind::Sqlite)
            }
            Wire::Postgres(wire) => {
                let mut query = sqlx::query::<sqlx::Postgres>(AssertSqlSafe(sql.0.clone()));
                for value in values {
                    query = match value {
                        Value::Text(text) => query.bind(text.as_deref()),
                        Value::Integer(integer) => query.bind(*integer),
                    };
                }
                rows(wire.fetch_all(query).await?, RowKind::Postgres)
            }
        })
    }

    pub(crate) async fn execute(&mut self, sql: &Sql, values: &[Value]) -> Result<u64, sqlx::Error> {
        #[cfg(feature = "faults")]
        let due = self.faults.note(sql, values).before()?;
        let done = self.execute_now(sql, values).await;
        #[cfg(feature = "faults")]
        self.faults.after(due)?;
        done
    }

    async fn execute_now(&mut self, sql: &Sql, values: &[Value]) -> Result<u64, sqlx::Error> {
        Ok(match &mut self.wire {
            Wire::Sqlite(wire) => {
                let mut query = sqlx::query::<sqlx::Sqlite>(AssertSqlSafe(sql.0.clone()));
                for value in values {
                    query = match value {
                        Value::Text(text) => query.bind(text.clone()),
                        Value::Integer(integer) => query.bind(*integer),
                    };
                }
                wire.execute(query).await?.rows_affected()
            }
            Wire::Postgres(wire) => {
                let mut query = sqlx::query::<sqlx::Postgres>(AssertSqlSafe(sql.0.clone()));
                for value in values {
                    query = match value {
                        Value::Text(text) => query.bind(text.as_deref()),
                        Value::Integer(integer) => query.bind(*integer),
                    };
                }
                wire.execute(query).await?.rows_affected()
            }
        })
    }

    /// Runs statements without answers in their order, and tells how many rows each of them changed. The first that
    /// fails is the last one.
    ///
    /// A SQLite connection lives on a thread of its own, and a message there and back costs more than most statements
    /// do: it is sent a handful of them at once.
    pub(crate) async fn execute_all(&mut self, all: &[(Sql, Vec<Value>)]) -> Result<Vec<u64>, sqlx::Error> {
        let mut changed = Vec::with_capacity(all.len());
        let values = all.iter().map(|(_, values)| values.len()).sum::<usize>();
        // The text of many rows is another one each time: it would only drive others out of the statements that are
        // kept prepared.
        let together = all.len() > 1 && values <= JOINED;
        if let Wire::Sqlite(wire) = &mut self.wire
            && together
        {
            #[cfg(feature = "faults")]
            for (sql, values) in all {
                self.faults.note(sql, values);
            }
            #[cfg(feature = "faults")]
            let mut due = self.faults.before()?;
            let mut query = sqlx::query::<sqlx::Sqlite>(AssertSqlSafe(joined(all)));
            for value in all.iter().flat_map(|(_, values)| values) {
                query = match value {
                    Value::Text(text) => query.bind(text.clone()),
                    Value::Integer(integer) => query.bind(*integer),
                };
            }
            let mut answers = wire.fetch_many(query);
            while let Some(answer) = answers.try_next().await? {
                if let Either::Left(done) = answer {
                    changed.push(done.rows_affected());
                    #[cfg(feature = "faults")]
                    {
                        self.faults.after(due)?;
                        due = changed.len() < all.len() && self.faults.further();
                    }
                }
            }
            return Ok(changed);
        }
        for (sql, values) in all {
            changed.push(self.execute(sql, values).await?);
        }
        Ok(changed)
    }

    /// Opens a writing transaction that holds the lock, before anything is read (P14).
    ///
    /// On PostgreSQL the whole opening is one message, and its last row is the server's clock read after the
    /// lock was got; on SQLite, whose clock is this process's own, the answer is `None`.
    pub(crate) async fn begin_write(
        &mut self,
        lock: i64,
        lock_wait: Duration,
        total: Duration,
    ) -> Result<Option<i64>, sqlx::Error> {
        if self.is_postgres() {
            // Each statement must see what was committed before the lock was granted, whatever the server's
            // default is: a snapshot that was taken while waiting for the lock would be stale. A holder that
            // falls silent loses the lock after the same bound, and so does one that no longer takes the answers it
            // asked for: no timeout of a statement reaches a server that is writing, the connection's own does (not
            // on a Unix socket, which has none). Zero would mean "for ever" to the server.
            let lock_ms = lock_wait.as_millis().max(1);
            let total_ms = total.as_millis().max(1);
            let text = format!(
                "BEGIN ISOLATION LEVEL READ COMMITTED; SET LOCAL lock_timeout = {lock_ms}; \
                 SET LOCAL statement_timeout = {total_ms}; \
                 SET LOCAL idle_in_transaction_session_timeout = {total_ms}; \
                 SET LOCAL tcp_user_timeout = {total_ms}; \
                 SELECT pg_advisory_xact_lock({lock}); SELECT {POSTGRES_CLOCK}"
            );
            let rows = self.raw(text).await?;
            return now_of(rows.last()).map(Some);
        }
        self.set_busy(lock_wait).await?;
        self.raw("BEGIN IMMEDIATE".to_owned()).await?;
        Ok(None)
    }

    /// Opens a transaction that reads one state of the database and cannot write.
    pub(crate) async fn begin_read(
        &mut self,
        wait: Duration,
        total: Duration,
    ) -> Result<Option<i64>, sqlx::Error> {
        if self.is_postgres() {
            let total_ms = total.as_millis().max(1);
            let text = format!(
                "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; SET LOCAL statement_timeout = {total_ms}; \
                 SELECT {POSTGRES_CLOCK}"
            );
            let rows = self.raw(text).await?;
            return now_of(rows.last()).map(Some);
        }
        self.set_busy(wait).await?;
        self.raw("BEGIN".to_owned()).await?;
        Ok(None)
    }

    async fn set_busy(&mut self, wait: Duration) -> Result<(), sqlx::Error> {
        // Rounded up to 64 ms so that a bound that shrinks by a little is not a statement of its own.
        let millis = wait.as_millis().min(600_000).next_multiple_of(64);
        let wait = Duration::from_millis(u64::try_from(millis).unwrap_or(600_000));
        if self.busy != Some(wait) {
            self.raw(format!("PRAGMA busy_timeout = {millis}")).await?;
            self.busy = Some(wait);
        }
        Ok(())
    }

    pub(crate) async fn commit(&mut self) -> Result<(), sqlx::Error> {
        self.raw("COMMIT".to_owned()).await.map(drop)
    }

    pub(crate) async fn rollback(&mut self) -> Result<(), sqlx::Error> {
        self.raw("ROLLBACK".to_owned()).await.map(drop)
    }

    /// Says goodbye, for at most a second; a connection that cannot is dropped.
    pub(crate) async fn close(self) {
        let goodbye = async {
            match self.wire {
                Wire::Sqlite(wire) => wire.close().await,
                Wire::Postgres(wire) => wire.close().await,
            }
        };
        // Nothing depends on the answer: the transaction before this one was settled already.
        let _ = tokio::time::timeout(Duration::from_secs(1), goodbye).await;
    }
}

/// The PostgreSQL server's clock in microseconds (P20). Unqualified, so that a test's schema may stand in
/// front of `pg_catalog` with a clock of its own.
pub(crate) const POSTGRES_CLOCK: &str =
    "CAST(FLOOR(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000) AS BIGINT)";

fn now_of(row: Option<&Row>) -> Result<i64, sqlx::Error> {
    row.and_then(|row| row.integer(0).ok())
        .ok_or_else(|| sqlx::Error::Protocol("the server's clock was not in its answer".to_owned()))
}

/// The texts as one, with every statement's parameters numbered behind those of the statements before it.
fn joined(all: &[(Sql, Vec<Value>)]) -> String {
    let mut text = String::with_capacity(all.iter().map(|(sql, _)| sql.0.len() + 8).sum());
    let mut before = 0;
    for (sql, values) in all {
        let mut parts = sql.0.split('$');
        text.push_str(parts.next().unwrap_or_default());
        for part in parts {
            let digits = part.len() - part.trim_start_matches(|c: char| c.is_ascii_digit()).len();
            let (number, rest) = part.split_at(digits);
            // Writing to a String does not fail.
            let _ = match number.parse::<usize>() {
                Ok(number) => write!(text, "${}{rest}", before + number),
                Err(_) => write!(text, "${part}"),
            };
        }
        text.push_str(";\n");
        before += values.len();
    }
    text
}

fn rows<R>(rows: Vec<R>, wrap: fn(R) -> RowKind) -> Vec<Row> {
    rows.into_iter().map(|row| Row(wrap(row))).collect()
}

#[cfg(test)]
mod tests {
    use super::joined;
    use crate::value::{Sql, Value};

    #[test]
    fn joined_statements_keep_their_own_parameters() {
        let all = [
            (
                Sql::from("UPDATE a SET b = $2 WHERE c = $1"),
                vec![Value::from(1), Value::from(2)],
            ),
            (Sql::from("DELETE FROM a"), Vec::new()),
            (
                Sql::from("INSERT INTO a VALUES ($1, $2), ($3, $11)"),
                vec![Value::from(3)],
            ),
        ];
        assert_eq!(
            joined(&all),
            "UPDATE a SET b = $2 WHERE c = $1;\nDELETE FROM a;\nINSERT INTO a VALUES ($3, $4), ($5, $13);\n"
        );
    }
}
