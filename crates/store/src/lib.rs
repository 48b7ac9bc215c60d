//! The one door to a database: SQLite (a file, or in memory) and PostgreSQL 14 to 17 behind the same calls.
//!
//! Nothing else in ether names an SQL driver. What this crate keeps for everybody:
//!
//! - a component's tables appear only through its own migrations, which are locked, checksummed and carry its
//!   prefix; a database written by a newer binary is refused;
//! - a writing transaction exists only inside [`Tables::write`], that is under the component's lock (P14);
//! - every wait has a bound, and a caller that gives up leaves no open transaction behind: connections are
//!   owned by the task that runs the transaction, never by the caller's future;
//! - an answer that never came is told apart from a refusal ([`StoreError::UnknownCommit`]).
//!
//! Statements are one `$1` text for both engines and use `TEXT` and `BIGINT` columns only.

mod connection;
mod error;
#[cfg(feature = "faults")]
pub mod faults;
mod location;
mod migrate;
mod pool;
mod store;
mod tables;
#[cfg(test)]
mod tests;
mod tx;
mod value;

pub use error::{Cause, MigrateError, OpenError, StoreError};
pub use location::{InvalidLocation, Location, PostgresLocation};
pub use migrate::{Component, Migration};
pub use pool::Deadline;
pub use store::{Engine, Options, Store};
pub use tables::{Bound, Tables};
pub use tx::{ReadTx, Tx, TxFuture};
pub use value::{Column, Row, Sql, Value};
