//! The ledger's rows: their schema, how they are read and how they are written. No rule lives here.

mod batch;
pub(crate) mod load;
pub(crate) mod rows;
pub(crate) mod schema;
pub(crate) mod write;

use ether_store::StoreError;

use crate::decide::Defect;

/// Why a transaction of the ledger gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A row that the ledger itself cannot have written.
    #[error("column {column} of {table} holds what the ledger never writes")]
    Corrupt {
        /// Which table.
        table: &'static str,
        /// Which column.
        column: &'static str,
    },
    /// A decision that could not be made.
    #[error(transparent)]
    Defect(#[from] Defect),
    /// The ledger changed under a transaction that held its lock.
    #[error("the ledger's revision moved under its lock")]
    Revision,
}

pub(crate) use batch::{in_list, in_list_from, pad, rows_of, values_table};
