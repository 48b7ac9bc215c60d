//! The ledger's rows: their schema, how they are read and how they are written. No rule lives here.

mod batch;
pub(crate) mod load;
pub(crate) mod rows;
pub(crate) mod schema;
pub(crate) mod write;

use ether_store::StoreError;

use crate::decide::Defect;

/// A row that the ledger cannot have written as it is. It is nobody's but its own fault: whatever needs it fails,
/// and nothing else does.
#[derive(Clone, Debug, PartialEq, Eq, Hash, thiserror::Error)]
#[error("column {column} of {table} holds what the ledger never writes, in the row of {row}")]
pub struct Unreadable {
    /// Which table.
    pub table: &'static str,
    /// Which column.
    pub column: &'static str,
    /// The key of the row, shortened where it is long.
    pub row: String,
}

/// Why a transaction of the ledger gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A row that the ledger itself cannot have written.
    #[error(transparent)]
    Corrupt(#[from] Unreadable),
    /// A newer program has changed the rules of this ledger: this one has to be upgraded.
    #[error("the ledger is at schema {found}, newer than this program's {known}: upgrade it")]
    Outdated {
        /// The ledger's schema.
        found: u64,
        /// The newest one known here.
        known: u64,
    },
    /// A decision that could not be made.
    #[error(transparent)]
    Defect(#[from] Defect),
    /// The ledger changed under a transaction that held its lock.
    #[error("the ledger's revision moved under its lock")]
    Revision,
}

pub(crate) use batch::{in_list, in_list_from, pad, rows_of, values_table};
