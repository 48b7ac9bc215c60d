//! What runs inside a transaction.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use ether_types::Timestamp;

use crate::connection::Connection;
use crate::error::StoreError;
use crate::value::{Row, Sql, Value};

/// The future of a transaction's body, see [`crate::Tables::write`].
pub type TxFuture<'t, T, E> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 't>>;

/// A writing transaction. It holds the component's lock until it ends.
pub struct Tx {
    read: ReadTx,
}

/// A transaction that reads one state of the database.
pub struct ReadTx {
    pub(crate) connection: Connection,
    began: Timestamp,
    bound: Duration,
    failed: bool,
}

impl ReadTx {
    pub(crate) fn new(connection: Connection, began: Timestamp, bound: Duration) -> Self {
        Self {
            connection,
            began,
            bound,
            failed: false,
        }
    }

    /// The database's clock, read when the transaction began; for a writing one that is right after its lock
    /// was got. On SQLite this is the clock the store was opened with.
    pub fn began(&self) -> Timestamp {
        self.began
    }

    /// Runs a statement and returns its rows.
    ///
    /// # Errors
    /// [`StoreError`]; the transaction cannot be committed after one, even where the caller goes on.
    pub async fn query(&mut self, sql: impl Into<Sql>, values: &[Value]) -> Result<Vec<Row>, StoreError> {
        // Set first and cleared by the answer: a statement whose future was dropped counts as failed.
        let failed_before = std::mem::replace(&mut self.failed, true);
        let rows = self.connection.query(&sql.into(), values).await;
        let rows = rows.map_err(|error| StoreError::from_driver(error, self.bound))?;
        self.failed = failed_before;
        Ok(rows)
    }

    /// Runs a statement and returns its first row, if it has one.
    ///
    /// # Errors
    /// As [`ReadTx::query`].
    pub async fn first(&mut self, sql: impl Into<Sql>, values: &[Value]) -> Result<Option<Row>, StoreError> {
        Ok(self.query(sql, values).await?.into_iter().next())
    }

    pub(crate) fn failed(&self) -> bool {
        self.failed
    }
}

impl Tx {
    pub(crate) fn new(read: ReadTx) -> Self {
        Self { read }
    }

    pub(crate) fn into_inner(self) -> ReadTx {
        self.read
    }

    /// As [`ReadTx::began`].
    pub fn began(&self) -> Timestamp {
        self.read.began
    }

    /// Runs a statement and returns its rows.
    ///
    /// # Errors
    /// As [`ReadTx::query`].
    pub async fn query(&mut self, sql: impl Into<Sql>, values: &[Value]) -> Result<Vec<Row>, StoreError> {
        self.read.query(sql, values).await
    }

    /// Runs a statement and returns its first row, if it has one.
    ///
    /// # Errors
    /// As [`ReadTx::query`].
    pub async fn first(&mut self, sql: impl Into<Sql>, values: &[Value]) -> Result<Option<Row>, StoreError> {
        self.read.first(sql, values).await
    }

    /// Runs a statement and returns how many rows it changed.
    ///
    /// # Errors
    /// As [`ReadTx::query`].
    pub async fn execute(&mut self, sql: impl Into<Sql>, values: &[Value]) -> Result<u64, StoreError> {
        let failed_before = std::mem::replace(&mut self.read.failed, true);
        let changed = self.read.connection.execute(&sql.into(), values).await;
        let changed = changed.map_err(|error| StoreError::from_driver(error, self.read.bound))?;
        self.read.failed = failed_before;
        Ok(changed)
    }

    /// Runs statements in their order, and tells how many rows each of them changed. The first that fails is the last
    /// one that was run. On SQLite a few statements together cost less than each by itself.
    ///
    /// # Errors
    /// As [`ReadTx::query`].
    pub async fn execute_all(&mut self, all: &[(Sql, Vec<Value>)]) -> Result<Vec<u64>, StoreError> {
        let failed_before = std::mem::replace(&mut self.read.failed, true);
        let changed = self.read.connection.execute_all(all).await;
        let changed = changed.map_err(|error| StoreError::from_driver(error, self.read.bound))?;
        self.read.failed = failed_before;
        Ok(changed)
    }

    /// Runs a text of several statements without parameters: a migration.
    pub(crate) async fn batch(&mut self, text: String) -> Result<(), StoreError> {
        let failed_before = std::mem::replace(&mut self.read.failed, true);
        let done = self.read.connection.raw(text).await;
        done.map_err(|error| StoreError::from_driver(error, self.read.bound))?;
        self.read.failed = failed_before;
        Ok(())
    }
}
