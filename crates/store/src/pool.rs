//! A small pool of connections that are owned while they are used.
//!
//! The driver's own pool hands connections to callers' futures, and a `BEGIN` that is dropped half way comes
//! back to it as an open transaction. Here a connection leaves the pool only into a task that finishes what
//! it began, and returns only after its transaction was answered; in every other case it is dropped, which
//! closes it. A server that restarted is therefore met with fresh connections, never with stale state.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ether_types::{Clock, Monotonic, SystemClock};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::connection::{Connection, Connector};
use crate::error::{StoreError, connection_lost, of_a_file};

/// How long to wait before a refused connection is tried again.
const RECONNECT_PAUSE: Duration = Duration::from_millis(40);

pub(crate) struct Pool {
    connector: Connector,
    permits: Arc<Semaphore>,
    size: u32,
    idle: Mutex<Vec<Connection>>,
    /// An in-memory database is its one connection: it is never replaced, since the replacement would be
    /// another, empty database.
    only: bool,
}

/// A connection on loan, together with the right to it.
pub(crate) struct Loan {
    pub(crate) connection: Connection,
    fresh: bool,
    permit: Permit,
}

/// The right to one connection of a pool.
pub(crate) struct Permit(OwnedSemaphorePermit);

impl Loan {
    pub(crate) fn split(self) -> (Connection, Permit) {
        (self.connection, self.permit)
    }
}

/// The moment at which one call has to give up, on the process's own monotonic clock: a bound on real IO is
/// real time, whatever clock decides authority.
#[derive(Clone, Debug)]
pub struct Deadline {
    clock: SystemClock,
    at: Monotonic,
    pub(crate) bound: Duration,
}

impl Deadline {
    /// `bound` from now.
    pub fn after(bound: Duration) -> Self {
        let clock = SystemClock::new();
        let at = clock.monotonic().saturating_add(bound);
        Self { clock, at, bound }
    }

    /// How much of the bound is left; zero once it has passed.
    pub fn left(&self) -> Duration {
        self.at.saturating_since(self.clock.monotonic())
    }

    /// The whole bound that this deadline was made with.
    pub fn bound(&self) -> Duration {
        self.bound
    }

    /// Moves the deadline back by `by`, which was spent on something that has a bound of its own.
    pub fn extend(&mut self, by: Duration) {
        self.at = self.at.saturating_add(by);
    }
}

impl Pool {
    pub(crate) fn new(connector: Connector, size: u32) -> Self {
        Self {
            connector,
            permits: Arc::new(Semaphore::new(size as usize)),
            size,
            idle: Mutex::new(Vec::new()),
            only: false,
        }
    }

    /// The pool of an in-memory database.
    pub(crate) fn only(connection: Connection, connector: Connector) -> Self {
        let pool = Self {
            only: true,
            ..Self::new(connector, 1)
        };
        pool.put(connection);
        pool
    }

    pub(crate) fn is_only(&self) -> bool {
        self.only
    }

    /// A connection, idle or new, within the deadline. Cancelling this takes nothing.
    pub(crate) async fn take(&self, deadline: &Deadline) -> Result<Loan, StoreError> {
        let waiting = Arc::clone(&self.permits).acquire_owned();
        let permit = match tokio::time::timeout(deadline.left(), waiting).await {
            Ok(Ok(permit)) => Permit(permit),
            Ok(Err(_closed)) => return Err(StoreError::Closed),
            Err(_elapsed) => return Err(StoreError::Busy(deadline.bound)),
        };
        let idle = self.lock().pop();
        if let Some(connection) = idle {
            return Ok(Loan {
                connection,
                fresh: false,
                permit,
            });
        }
        if self.only {
            return Err(StoreError::Closed);
        }
        Ok(Loan {
            connection: self.connect(deadline).await?,
            fresh: true,
            permit,
        })
    }

    /// Puts a fresh connection in the place of one that turned out to be dead. The idle ones of the same age
    /// are let go with it, so that a restarted server costs one failure and not one for each.
    pub(crate) async fn renew(&self, loan: Loan, deadline: &Deadline) -> Result<Loan, StoreError> {
        // One that was new and dies at once points at a server that is not ready yet.
        if loan.fresh {
            tokio::time::sleep(RECONNECT_PAUSE.min(deadline.left())).await;
        }
        let (_dead, permit) = loan.split();
        self.lock().clear();
        Ok(Loan {
            connection: self.connect(deadline).await?,
            fresh: true,
            permit,
        })
    }

    async fn connect(&self, deadline: &Deadline) -> Result<Connection, StoreError> {
        loop {
            let left = deadline.left();
            let error = match tokio::time::timeout(left, self.connector.connect()).await {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(error)) => error,
                Err(_elapsed) => return Err(StoreError::Timeout(deadline.bound)),
            };
            // A server that is starting, restarting or out of slots may be back within the bound; a file that
            // cannot be opened stays so.
            if of_a_file(&error) || !connection_lost(&error) || deadline.left() <= RECONNECT_PAUSE {
                return Err(StoreError::from_driver(error, deadline.bound));
            }
            tokio::time::sleep(RECONNECT_PAUSE).await;
        }
    }

    /// Takes back a connection whose last transaction was answered.
    pub(crate) fn give_back(&self, connection: Connection, permit: Permit) {
        // The connection first, the right to it after: whoever gets the permit finds the connection.
        self.put(connection);
        drop(permit.0);
    }

    pub(crate) fn give_back_loan(&self, loan: Loan) {
        let (connection, permit) = loan.split();
        self.give_back(connection, permit);
    }

    fn put(&self, connection: Connection) {
        self.lock().push(connection);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for every connection on loan and closes them all; later calls find the pool closed.
    pub(crate) async fn close(&self) {
        let all = self.permits.acquire_many(self.size).await;
        self.permits.close();
        drop(all);
        let idle = std::mem::take(&mut *self.lock());
        for connection in idle {
            connection.close().await;
        }
    }
}
