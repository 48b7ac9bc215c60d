//! The retirement verifier: the trust boundary at which proof of an ending is judged (P13).
//!
//! The ledger asks it outside any transaction, within a bound, and then checks the whole fence again under
//! its lock. A verifier may accept exactly what D4 lists; expiry, silence and a dead node are not on it.

use std::future::Future;
use std::pin::Pin;

use ether_types::Fence;

use crate::bounds::EvidenceBody;
use crate::evidence::{EvidenceKind, StoredEvidence};

/// What a verifier is asked to judge.
#[derive(Clone, Debug)]
pub struct Presented {
    /// The assignment whose ending is to be proved.
    pub fence: Fence,
    /// What the caller brought along.
    pub offered: Option<EvidenceBody>,
    /// What the ledger kept for this fence.
    pub stored: Vec<StoredEvidence>,
}

/// A verifier's acceptance. It names the fence it judged: an answer about another one releases nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Acceptance {
    /// The assignment whose ending was proved.
    pub fence: Fence,
    /// By what.
    pub kind: EvidenceKind,
}

/// Why a verifier did not accept.
pub type VerifyError = Box<dyn std::error::Error + Send + Sync>;

/// The future of a verifier's answer.
pub type Verdict<'v> = Pin<Box<dyn Future<Output = Result<Acceptance, VerifyError>> + Send + 'v>>;

/// Judges proofs of retirement.
pub trait Verifier: Send + Sync + 'static {
    /// Judges what is presented. It is dropped where it takes longer than the ledger's bound.
    fn verify(&self, presented: Presented) -> Verdict<'_>;
}
