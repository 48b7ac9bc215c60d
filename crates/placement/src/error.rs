//! Why a call to the ledger has no outcome, and what a retirement came to.

use std::sync::Arc;
use std::time::Duration;

use ether_store::{MigrateError, StoreError};
use ether_types::{ClusterId, Fence};

use crate::bounds::Invalid;
use crate::evidence::EvidenceKind;
use crate::outcome::Released;
use crate::read::Failed;
use crate::sql::{Fault, Unreadable};
use crate::verify::VerifyError;

/// There is no answer, and the change may have happened or not (P11). [`crate::Ledger::lookup`] and the same
/// operation again settle it: every command of the ledger may be repeated.
#[derive(Clone, Debug, thiserror::Error)]
#[error("the outcome is unknown: {cause}")]
pub struct UnknownOutcome {
    /// What happened to the answer.
    pub cause: Cause,
}

/// What happened to an answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Cause {
    /// It did not come within the transaction timeout.
    #[error("no answer within {0:?}")]
    Timeout(Duration),
    /// The transaction failed, or its COMMIT was not answered.
    #[error(transparent)]
    Fault(Arc<Fault>),
    /// The task that was to answer ended.
    #[error("the ledger's task ended")]
    Ended,
}

impl From<Cause> for UnknownOutcome {
    fn from(cause: Cause) -> Self {
        Self { cause }
    }
}

impl From<Fault> for UnknownOutcome {
    fn from(fault: Fault) -> Self {
        Cause::Fault(Arc::new(fault)).into()
    }
}

/// Why a call to the ledger has no outcome.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LedgerError {
    /// The request is not well formed; nothing was asked of the database.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// Too many requests wait; this one was not taken, and nothing was changed.
    #[error("the ledger has too many requests waiting")]
    Overloaded,
    /// The database does not hold this cluster's ledger, or the request names another cluster; nothing was
    /// changed. `None` where no coordinator has joined what is there.
    #[error("this is the ledger of {}", .0.as_ref().map_or("no cluster yet", ClusterId::as_str))]
    Foreign(Option<ClusterId>),
    /// There is no answer.
    #[error(transparent)]
    Unknown(#[from] UnknownOutcome),
}

/// Why a ledger could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// An option is out of its range.
    #[error(transparent)]
    Option(#[from] Invalid),
    /// Its tables are not usable.
    #[error(transparent)]
    Migrate(#[from] MigrateError),
    /// The database belongs to another cluster. Nothing in it was changed, its tables included.
    #[error("this ledger belongs to cluster {0}")]
    Foreign(ClusterId),
    /// A row of the ledger's own is not one that it can have written.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// Joining it had no outcome.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

impl From<Unreadable> for OpenError {
    fn from(unreadable: Unreadable) -> Self {
        OpenError::Fault(unreadable.into())
    }
}

impl From<StoreError> for OpenError {
    fn from(error: StoreError) -> Self {
        OpenError::Migrate(MigrateError::Store(error))
    }
}

/// The answer to [`crate::Ledger::retire`].
#[derive(Debug)]
pub enum Retirement {
    /// What came of it: the proof was accepted, or nothing was left to prove.
    Proved {
        /// What that released.
        released: Released,
        /// What the verifier accepted; `None` where it was not asked, or where somebody else's call came first.
        by: Option<EvidenceKind>,
    },
    /// Nothing was released: the ending is not proved.
    Unproven(Unproven),
}

/// Why an ending counts as unproved.
#[derive(Debug, thiserror::Error)]
pub enum Unproven {
    /// The ledger was opened without a verifier.
    #[error("no retirement verifier is configured")]
    NoVerifier,
    /// The verifier did not accept.
    #[error("the verifier did not accept: {0}")]
    Refused(VerifyError),
    /// The verifier did not answer within its bound.
    #[error("the verifier did not answer within {0:?}")]
    TimedOut(Duration),
    /// An earlier verdict about this very assignment, by the same offered proof, was not formed within the verifier's
    /// bound, and the verifier was not asked again meanwhile.
    #[error("the verifier still judges an earlier call about this assignment after {0:?}")]
    Underway(Duration),
    /// As many verdicts are being formed as may be at once, in all or about this target's node, and none ended within
    /// the verifier's bound: it was not asked.
    #[error("no place for another verdict became free within {0:?}")]
    NoSeat(Duration),
    /// The verifier answered about another assignment.
    #[error("the verifier answered about generation {} of {}", .0.generation, .0.session)]
    OtherFence(Box<Fence>),
    /// The verifier panicked.
    #[error("the verifier panicked")]
    Crashed,
}

impl From<Failed> for LedgerError {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Elsewhere(cluster) => LedgerError::Foreign(cluster),
            Failed::Fault(fault) => UnknownOutcome::from(fault).into(),
        }
    }
}
