//! Everything that can go wrong between the ledger and its database.

mod cancel;
mod cut;
pub(super) mod operations;
mod outage;
mod process;
mod proxy;
mod stalled;
