//! The only ways into a transaction: a component's tables, under the component's lock or for reading.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use ether_types::Timestamp;
use tokio::time::error::Elapsed;

use crate::connection::Connection;
use crate::error::{Cause, StoreError, connection_lost};
use crate::pool::{Deadline, Loan, Permit, Pool};
use crate::store::{Engine, Store};
use crate::tx::{ReadTx, Tx, TxFuture};
use crate::value::{Row, Sql, Value};

/// How long a ROLLBACK may take before its connection is given up instead.
const ROLLBACK_BOUND: Duration = Duration::from_secs(1);

/// How long one call may wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bound {
    /// For the component's lock.
    pub lock: Duration,
    /// For the whole call, the lock and the commit included.
    pub total: Duration,
}

impl Bound {
    /// The same bound for the lock and for the whole.
    pub const fn of(total: Duration) -> Self {
        Self { lock: total, total }
    }
}

/// The tables of one component, and the component's lock. Clones share both.
#[derive(Clone)]
pub struct Tables {
    store: Store,
    writer: Arc<Pool>,
    lock: i64,
}

impl std::fmt::Debug for Tables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tables")
            .field("store", &self.store)
            .field("lock", &self.lock)
            .finish_non_exhaustive()
    }
}

impl Tables {
    pub(crate) fn new(store: Store, writer: Arc<Pool>, lock: i64) -> Self {
        Self { store, writer, lock }
    }

    /// The store these tables are in.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Runs `body` in a transaction that holds the component's lock from before its first statement, and
    /// commits it when `body` returns `Ok`. An `Err` rolls back.
    ///
    /// The transaction runs on a task of its own: a caller that is cancelled abandons the answer, while the
    /// transaction still ends, one way or the other, within its bound. After a statement of `body` failed
    /// nothing is committed, whatever `body` returns.
    ///
    /// # Errors
    /// What `body` returns, or a [`StoreError`]. Only [`StoreError::UnknownCommit`] leaves open whether the
    /// transaction happened.
    ///
    /// # Panics
    /// A panic of `body` is carried over to the caller; its transaction is rolled back.
    pub async fn write<T, E, F>(&self, bound: Bound, body: F) -> Result<T, E>
    where
        F: for<'t> FnOnce(&'t mut Tx) -> TxFuture<'t, T, E> + Send + 'static,
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        let tables = self.clone();
        own_task(async move { tables.write_here(bound, body).await }).await
    }

    /// As [`Tables::write`], on the task of the caller: for one that is never dropped before this has ended, and spares
    /// the way to another task and back. Dropping it in the middle closes the connection, and whether the transaction
    /// was committed is then known to nobody.
    ///
    /// # Errors
    /// As [`Tables::write`].
    ///
    /// # Panics
    /// As [`Tables::write`].
    pub async fn write_here<T, E, F>(&self, bound: Bound, body: F) -> Result<T, E>
    where
        F: for<'t> FnOnce(&'t mut Tx) -> TxFuture<'t, T, E> + Send,
        T: Send,
        E: From<StoreError> + Send,
    {
        let deadline = Deadline::after(bound.total);
        let (loan, began) = self.begin_write(bound, &deadline).await?;
        let (connection, permit) = loan.split();
        let mut tx = Tx::new(ReadTx::new(connection, began, bound.total));
        let outcome = tokio::time::timeout(deadline.left(), catch_panic(async { body(&mut tx).await })).await;
        finish(&self.writer, tx.into_inner(), permit, outcome, &deadline).await
    }

    /// Runs `body` in a transaction that sees one state of the database and takes no lock. The database itself
    /// refuses a write in it, an in-memory one aside.
    ///
    /// # Errors
    /// As [`Tables::write`]; nothing is ever changed.
    ///
    /// # Panics
    /// As [`Tables::write`].
    pub async fn read<T, E, F>(&self, bound: Bound, body: F) -> Result<T, E>
    where
        F: for<'t> FnOnce(&'t mut ReadTx) -> TxFuture<'t, T, E> + Send + 'static,
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
    {
        let tables = self.clone();
        own_task(async move {
            let deadline = Deadline::after(bound.total);
            let (loan, began) = tables.begin_read(bound, &deadline).await?;
            let (connection, permit) = loan.split();
            let mut tx = ReadTx::new(connection, began, bound.total);
            let outcome =
                tokio::time::timeout(deadline.left(), catch_panic(async { body(&mut tx).await })).await;
            finish(&tables.store.inner.readers, tx, permit, outcome, &deadline).await
        })
        .await
    }

    /// One statement that reads, outside any transaction and without the lock.
    ///
    /// # Errors
    /// [`StoreError`]. Where a connection turns out to be dead the statement is tried again on a fresh one
    /// within the bound.
    pub async fn query(
        &self,
        bound: Bound,
        sql: impl Into<Sql>,
        values: Vec<Value>,
    ) -> Result<Vec<Row>, StoreError> {
        let readers = Arc::clone(&self.store.inner.readers);
        let sql = sql.into();
        own_task(async move {
            let deadline = Deadline::after(bound.total);
            let mut loan = readers.take(&deadline).await?;
            loop {
                let answer =
                    tokio::time::timeout(deadline.left(), loan.connection.query(&sql, &values)).await;
                match answer {
                    Ok(Ok(rows)) => {
                        readers.give_back_loan(loan);
                        return Ok(rows);
                    }
                    Ok(Err(error)) if connection_lost(&error) && !readers.is_only() => {
                        if deadline.left().is_zero() {
                            return Err(StoreError::from_driver(error, bound.total));
                        }
                        loan = readers.renew(loan, &deadline).await?;
                    }
                    Ok(Err(error)) => {
                        readers.give_back_loan(loan);
                        return Err(StoreError::from_driver(error, bound.total));
                    }
                    Err(_elapsed) => {
                        let (connection, permit) = loan.split();
                        abandon(&readers, connection, permit).await;
                        return Err(StoreError::Timeout(bound.total));
                    }
                }
            }
        })
        .await
    }

    /// The database's clock: the server's on PostgreSQL, else the one the store was opened with.
    ///
    /// # Errors
    /// As [`Tables::query`].
    pub async fn now(&self, bound: Bound) -> Result<Timestamp, StoreError> {
        if self.store.inner.engine == Engine::Sqlite {
            return Ok(self.store.inner.clock.now());
        }
        let sql = Sql::generated(format!("SELECT {}", crate::connection::POSTGRES_CLOCK));
        let rows = self.query(bound, sql, Vec::new()).await?;
        let row = rows.first().ok_or(StoreError::Row {
            column: "clock".to_owned(),
            source: sqlx::Error::RowNotFound,
        })?;
        Ok(Timestamp::from_micros(row.integer(0)?))
    }

    /// An expression for a SELECT list that reads the database's clock in the same statement, in microseconds;
    /// `None` where the database has none of its own and [`Tables::now`] answers without asking it.
    pub fn clock_sql(&self) -> Option<&'static str> {
        match self.store.inner.engine {
            Engine::Postgres { .. } => Some(crate::connection::POSTGRES_CLOCK),
            Engine::Sqlite => None,
        }
    }

    async fn begin_write(&self, bound: Bound, deadline: &Deadline) -> Result<(Loan, Timestamp), StoreError> {
        let lock_until = Deadline::after(bound.lock.min(bound.total));
        let mut loan = self.writer.take(&lock_until).await?;
        loop {
            let wait = lock_until.left().max(Duration::from_millis(1));
            let begin = loan.connection.begin_write(self.lock, wait, deadline.left());
            // SQLite waits for its lock inside one blocking call that nothing can interrupt; a little more
            // than that wait lets it answer by itself.
            let patience = deadline.left() + Duration::from_millis(250);
            let begun = tokio::time::timeout(patience, begin).await;
            let settled = self.settle_begin(&self.writer, begun, loan, deadline).await;
            let settled = settled.map_err(|error| match error {
                // It was the lock that was waited for, by the bound of its own.
                StoreError::Busy(_) => StoreError::Busy(lock_until.bound),
                error => error,
            });
            match settled? {
                Begun::Open(loan, began) => return Ok((loan, began)),
                Begun::Again(fresh) => loan = fresh,
            }
        }
    }

    async fn begin_read(&self, bound: Bound, deadline: &Deadline) -> Result<(Loan, Timestamp), StoreError> {
        let readers = &self.store.inner.readers;
        let mut loan = readers.take(deadline).await?;
        loop {
            let begin = loan.connection.begin_read(bound.lock, deadline.left());
            let begun = tokio::time::timeout(deadline.left(), begin).await;
            match self.settle_begin(readers, begun, loan, deadline).await? {
                Begun::Open(loan, began) => return Ok((loan, began)),
                Begun::Again(fresh) => loan = fresh,
            }
        }
    }

    async fn settle_begin(
        &self,
        pool: &Pool,
        begun: Result<Result<Option<i64>, sqlx::Error>, Elapsed>,
        loan: Loan,
        deadline: &Deadline,
    ) -> Result<Begun, StoreError> {
        let error = match begun {
            Ok(Ok(Some(micros))) => return Ok(Begun::Open(loan, Timestamp::from_micros(micros))),
            Ok(Ok(None)) => return Ok(Begun::Open(loan, self.store.inner.clock.now())),
            Ok(Err(error)) => error,
            Err(_elapsed) => {
                let (connection, permit) = loan.split();
                abandon(pool, connection, permit).await;
                return Err(StoreError::Timeout(deadline.bound));
            }
        };
        if connection_lost(&error) && !pool.is_only() && !deadline.left().is_zero() {
            return Ok(Begun::Again(pool.renew(loan, deadline).await?));
        }
        let (connection, permit) = loan.split();
        if connection_lost(&error) {
            abandon(pool, connection, permit).await;
        } else if connection.is_postgres() {
            // The server keeps the transaction in which the lock was refused.
            roll_back(pool, connection, permit).await;
        } else {
            // SQLite opened none, and the connection is as good as before.
            pool.give_back(connection, permit);
        }
        Err(StoreError::from_driver(error, deadline.bound))
    }
}

enum Begun {
    Open(Loan, Timestamp),
    /// The connection was dead before anything happened, and here is a fresh one.
    Again(Loan),
}

/// Runs `work` on a task of its own, so that its caller's cancellation never reaches a connection.
async fn own_task<T, E>(work: impl Future<Output = Result<T, E>> + Send + 'static) -> Result<T, E>
where
    T: Send + 'static,
    E: From<StoreError> + Send + 'static,
{
    match tokio::spawn(work).await {
        Ok(outcome) => outcome,
        Err(ended) if ended.is_panic() => std::panic::resume_unwind(ended.into_panic()),
        // The runtime is shutting down.
        Err(_cancelled) => Err(StoreError::Closed.into()),
    }
}

/// A panic of `work` as a value, so that its connection can be put in order before the panic goes on.
async fn catch_panic<O>(work: impl Future<Output = O> + Send) -> std::thread::Result<O> {
    let mut work = Box::pin(work);
    std::future::poll_fn(move |cx| {
        // The future is never polled again after it panicked, so that nobody sees it half-done.
        match catch_unwind(AssertUnwindSafe(|| work.as_mut().poll(cx))) {
            Ok(Poll::Pending) => Poll::Pending,
            Ok(Poll::Ready(output)) => Poll::Ready(Ok(output)),
            Err(panic) => Poll::Ready(Err(panic)),
        }
    })
    .await
}

/// Commits or rolls back, and decides what becomes of the connection.
async fn finish<T, E: From<StoreError>>(
    pool: &Pool,
    tx: ReadTx,
    permit: Permit,
    outcome: Result<std::thread::Result<Result<T, E>>, Elapsed>,
    deadline: &Deadline,
) -> Result<T, E> {
    let failed = tx.failed();
    let mut connection = tx.connection;
    let outcome = match outcome {
        Ok(Ok(outcome)) => Ok(outcome),
        Ok(Err(panic)) => {
            roll_back(pool, connection, permit).await;
            std::panic::resume_unwind(panic);
        }
        Err(elapsed) => Err(elapsed),
    };
    let value = match outcome {
        Ok(Ok(value)) if !failed && !deadline.left().is_zero() => value,
        Ok(Ok(_)) => {
            roll_back(pool, connection, permit).await;
            return Err(match failed {
                true => StoreError::Aborted,
                false => StoreError::Timeout(deadline.bound),
            }
            .into());
        }
        Ok(Err(error)) => {
            roll_back(pool, connection, permit).await;
            return Err(error);
        }
        Err(_elapsed) => {
            abandon(pool, connection, permit).await;
            return Err(StoreError::Timeout(deadline.bound).into());
        }
    };
    let cause = match tokio::time::timeout(deadline.left(), connection.commit()).await {
        Ok(Ok(())) => {
            pool.give_back(connection, permit);
            return Ok(value);
        }
        Ok(Err(error)) => Cause::Driver(error),
        Err(_elapsed) => Cause::Timeout(deadline.bound),
    };
    abandon(pool, connection, permit).await;
    Err(StoreError::UnknownCommit(cause).into())
}

/// Ends a transaction that is to leave nothing; the connection is kept only if that was answered.
async fn roll_back(pool: &Pool, mut connection: Connection, permit: Permit) {
    let answer = tokio::time::timeout(ROLLBACK_BOUND, connection.rollback()).await;
    match answer {
        Ok(Ok(())) => pool.give_back(connection, permit),
        _ => abandon(pool, connection, permit).await,
    }
}

/// Lets go of a connection in an unknown state. Only the one connection that is an in-memory database must
/// be kept, and there a rollback cannot be lost on any wire.
async fn abandon(pool: &Pool, mut connection: Connection, permit: Permit) {
    if pool.is_only() {
        let _ = connection.rollback().await;
        pool.give_back(connection, permit);
    }
}
