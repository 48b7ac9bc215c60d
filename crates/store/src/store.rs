//! Opening a database and its components.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ether_types::Clock;
use sha2::{Digest, Sha256};
use sqlx::ConnectOptions as _;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqliteSynchronous};

use crate::connection::{Connector, To};
use crate::error::{MigrateError, OpenError, StoreError};
use crate::location::Location;
use crate::migrate::{self, Component};
use crate::pool::{Deadline, Pool};
use crate::tables::{Bound, Tables};
use crate::tx::{Tx, TxFuture};

/// Settings of an open database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Connections for reading, 1 to 256. Each component has one more of its own for writing.
    pub readers: u32,
    /// The longest that a PostgreSQL server lets a statement of ours run, or a transaction of ours stand idle or its
    /// answers unread, 1 ms to 1 h: for the case that this process is gone or stopped. Calls have bounds of their
    /// own; a statement on SQLite runs in this process and has no other.
    pub statement: Duration,
    /// How long opening and migrating may take, 1 ms to 1 h.
    pub open: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            readers: 4,
            statement: Duration::from_secs(60),
            open: Duration::from_secs(60),
        }
    }
}

/// Which engine is behind the door.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// SQLite, in a file or in memory.
    Sqlite,
    /// PostgreSQL with its major version.
    Postgres {
        /// 14 or more.
        major: u32,
    },
}

/// An open database. Clones share it.
#[derive(Clone)]
pub struct Store {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) engine: Engine,
    pub(crate) options: Options,
    pub(crate) clock: Arc<dyn Clock>,
    /// The schema on PostgreSQL: locks of one name in two schemas are two locks.
    schema: String,
    connector: Connector,
    pub(crate) readers: Arc<Pool>,
    /// SQLite has one writer whatever the component is.
    writer: Option<Arc<Pool>>,
    /// PostgreSQL has one for each component that was opened, by the key of its lock; `None` once closed.
    writers: Mutex<Option<HashMap<i64, Arc<Pool>>>>,
}

impl Inner {
    fn writers(&self) -> MutexGuard<'_, Option<HashMap<i64, Arc<Pool>>>> {
        self.writers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connection that the writing transactions under `lock` take turns on.
    fn writer(&self, lock: i64) -> Result<Arc<Pool>, StoreError> {
        if let Some(writer) = &self.writer {
            return Ok(Arc::clone(writer));
        }
        let mut writers = self.writers();
        let writers = writers.as_mut().ok_or(StoreError::Closed)?;
        let writer = writers
            .entry(lock)
            .or_insert_with(|| Arc::new(Pool::new(self.connector.clone(), 1)));
        Ok(Arc::clone(writer))
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store")
            .field("engine", &self.inner.engine)
            .finish_non_exhaustive()
    }
}

impl Store {
    /// Opens the database at `location`.
    ///
    /// `clock` is the database's clock where the database has none of its own: SQLite's, which is this
    /// process's. On PostgreSQL the server's clock is asked.
    ///
    /// Cancelling this opens nothing; a SQLite file that was created stays.
    ///
    /// # Errors
    /// [`OpenError`]; nothing stays open.
    pub async fn open(
        location: &Location,
        options: Options,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        options.check()?;
        match location {
            Location::SqliteFile(path) => Self::open_file(path, options, clock).await,
            Location::SqliteMemory => Self::open_memory(options, clock).await,
            Location::Postgres(at) => {
                let connect =
                    at.0.clone()
                        .application_name("ether")
                        .options([
                            ("statement_timeout", options.statement.as_millis()),
                            // A process that stops between two statements must not keep the lock for ever.
                            (
                                "idle_in_transaction_session_timeout",
                                options.statement.as_millis(),
                            ),
                            ("tcp_user_timeout", options.statement.as_millis()),
                        ])
                        // A host that vanished without a word is found out within two minutes, where the server's
                        // system would ask for two hours before it looks.
                        .options([
                            ("tcp_keepalives_idle", 60),
                            ("tcp_keepalives_interval", 15),
                            ("tcp_keepalives_count", 4),
                        ])
                        .disable_statement_logging();
                Self::open_postgres(To::Postgres(Box::new(connect)).into(), options, clock).await
            }
        }
    }

    async fn open_file(path: &Path, options: Options, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        let deadline = Deadline::after(options.open);
        let base = SqliteConnectOptions::new()
            .filename(path)
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .busy_timeout(options.open)
            .disable_statement_logging();
        let connector = Connector::from(To::Sqlite(Box::new(base.create_if_missing(true))));
        let writer = Arc::new(Pool::new(connector.clone(), 1));
        writer.give_back_loan(writer.take(&deadline).await?);
        let readers = Arc::new(Pool::new(connector.reading(), options.readers));
        Ok(Self::assemble(
            Engine::Sqlite,
            options,
            clock,
            String::new(),
            connector,
            readers,
            Some(writer),
        ))
    }

    async fn open_memory(options: Options, clock: Arc<dyn Clock>) -> Result<Self, OpenError> {
        let connect = SqliteConnectOptions::new()
            .in_memory(true)
            .filename(":memory:")
            .disable_statement_logging();
        let connector = Connector::from(To::Sqlite(Box::new(connect)));
        let connection = connector
            .connect()
            .await
            .map_err(|error| StoreError::from_driver(error, options.open))?;
        let only = Arc::new(Pool::only(connection, connector.clone()));
        Ok(Self::assemble(
            Engine::Sqlite,
            options,
            clock,
            String::new(),
            connector,
            Arc::clone(&only),
            Some(only),
        ))
    }

    async fn open_postgres(
        connector: Connector,
        options: Options,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, OpenError> {
        let deadline = Deadline::after(options.open);
        let readers = Arc::new(Pool::new(connector.reading(), options.readers));
        let mut loan = readers.take(&deadline).await?;
        let facts = loan
            .connection
            .raw(
                "SELECT CAST(current_setting('server_version_num') AS BIGINT), \
                 CAST(current_schema() AS TEXT)"
                    .to_owned(),
            )
            .await
            .map_err(|error| StoreError::from_driver(error, options.open))?;
        readers.give_back_loan(loan);
        let facts = facts.first().ok_or(OpenError::NoSchema)?;
        let major = facts.integer(0)? / 10_000;
        let schema = facts.opt_text(1)?.ok_or(OpenError::NoSchema)?;
        let known = u32::try_from(major).unwrap_or(0);
        if known < 14 {
            return Err(OpenError::TooOld { found: major });
        }
        Ok(Self::assemble(
            Engine::Postgres { major: known },
            options,
            clock,
            schema,
            connector,
            readers,
            None,
        ))
    }

    fn assemble(
        engine: Engine,
        options: Options,
        clock: Arc<dyn Clock>,
        schema: String,
        connector: Connector,
        readers: Arc<Pool>,
        writer: Option<Arc<Pool>>,
    ) -> Self {
        Self {
            inner: Arc::new(Inner {
                engine,
                options,
                clock,
                schema,
                connector,
                readers,
                writer,
                writers: Mutex::new(Some(HashMap::new())),
            }),
        }
    }

    /// The switch that cuts this store's connections.
    #[cfg(feature = "faults")]
    pub fn faults(&self) -> &crate::faults::Faults {
        &self.inner.connector.faults
    }

    /// Which engine is behind the door.
    pub fn engine(&self) -> Engine {
        self.inner.engine
    }

    /// Brings `component`'s tables up to the newest version this binary knows, under the component's lock,
    /// and returns the way to them. Running it again, or from several processes at once, is harmless.
    ///
    /// Cancelling this leaves the tables as they were, or migrated: never in between.
    ///
    /// # Errors
    /// [`MigrateError`]; nothing was changed.
    pub async fn component(&self, component: &Component) -> Result<Tables, MigrateError> {
        self.component_if(component, |_tx, _found| Box::pin(async { Ok(()) }))
            .await
    }

    /// As [`Store::component`], once `check` has agreed. It runs under the component's lock, before anything is
    /// changed, and is told the version that the tables have: 0 where there are none yet. Its error leaves the
    /// database as it was.
    ///
    /// # Errors
    /// What `check` returns, or a [`MigrateError`]; nothing was changed.
    pub async fn component_if<E, F>(&self, component: &Component, check: F) -> Result<Tables, E>
    where
        F: for<'t> FnOnce(&'t mut Tx, i64) -> TxFuture<'t, (), E> + Send + 'static,
        E: From<MigrateError> + From<StoreError> + Send + 'static,
    {
        component.check()?;
        let lock = lock_key(&self.inner.schema, component.name);
        let tables = Tables::new(self.clone(), self.inner.writer(lock)?, lock);
        migrate::migrate(&tables, component, Bound::of(self.inner.options.open), check).await?;
        Ok(tables)
    }

    /// Waits for running transactions and closes every connection. Calls after this return
    /// [`StoreError::Closed`].
    pub async fn close(&self) {
        // First no new writers, then no old ones.
        let writers = self.inner.writers().take();
        self.inner.readers.close().await;
        for writer in writers.iter().flat_map(HashMap::values).chain(&self.inner.writer) {
            writer.close().await;
        }
    }
}

impl Options {
    fn check(&self) -> Result<(), OpenError> {
        if !(1..=256).contains(&self.readers) {
            return Err(OpenError::Option {
                option: "readers",
                range: "1 to 256",
                value: self.readers.to_string(),
            });
        }
        for (option, value) in [("statement", self.statement), ("open", self.open)] {
            if value < Duration::from_millis(1) || value > Duration::from_secs(3600) {
                return Err(OpenError::Option {
                    option,
                    range: "1 ms to 1 h",
                    value: format!("{value:?}"),
                });
            }
        }
        Ok(())
    }
}

/// The key of a component's advisory lock: 63 bits of a digest over schema and name.
fn lock_key(schema: &str, component: &str) -> i64 {
    let mut digest = Sha256::new();
    digest.update(b"ether component lock\0");
    digest.update(schema.as_bytes());
    digest.update(b"\0");
    digest.update(component.as_bytes());
    let digest = digest.finalize();
    digest
        .iter()
        .take(8)
        .fold(0_i64, |key, byte| (key << 8) | i64::from(*byte))
}
