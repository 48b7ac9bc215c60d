//! The placement ledger: who may run what on which device, and what that costs until it is proved over.
//!
//! [`decide`](decide::decide) is the whole policy, a pure function of a snapshot, a command and the database's
//! clock. [`Ledger`] is the shell around it: it loads the rows that the waiting commands need, decides them
//! one after the other, and writes what came out, all in one transaction under the component's lock. SQL
//! holds no policy, so that what the model checker explores is what runs.
//!
//! Nothing happens on its own (P1): no timer, no reclaim, no start-up cleanup. `docs/contracts/placement.md`
//! says for each fact who writes it, under which fence, and what a stale holder may still do.

pub mod bounds;
pub mod command;
pub mod decide;
mod error;
mod evidence;
mod ledger;
mod options;
pub mod outcome;
mod queue;
mod read;
mod sql;
pub mod state;
#[cfg(test)]
mod tests;
mod verify;

pub use bounds::{Capacity, Claims, EvidenceBody, Invalid, Lease, PageSize, Quota, Units};
pub use command::{Command, ReserveRequest};
pub use error::{Cause, LedgerError, OpenError, Retirement, UnknownOutcome, Unproven};
pub use evidence::{Author, EvidenceKind, PIECES, PIECES_OF_NODE, StoredEvidence};
pub use ledger::Ledger;
pub use options::Options;
pub use read::{Cursor, Kept, Owner, Page, Unretired};
pub use sql::schema::COMPONENT;
pub use sql::{Fault, Unreadable};
pub use state::Revision;
pub use verify::{Acceptance, Presented, Verdict, Verifier, VerifyError};
