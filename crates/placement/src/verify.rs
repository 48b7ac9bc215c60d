//! The retirement verifier: the trust boundary at which proof of an ending is judged (P13).
//!
//! The ledger asks it outside any transaction, within a bound, and then checks the whole fence again under
//! its lock. A verifier may accept exactly what D4 lists; expiry, silence and a dead node are not on it.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use ether_types::Fence;
use tokio::runtime::Handle;
use tokio::sync::{Semaphore, oneshot};

use crate::bounds::EvidenceBody;
use crate::error::Unproven;
use crate::evidence::{EvidenceKind, StoredEvidence};
use crate::sql::Unreadable;

/// Verdicts that are formed at once. Each has a thread, so that a verifier which never gives way holds up others
/// like it and nobody else.
const SEATS: usize = 16;

/// What a verifier is asked to judge.
#[derive(Clone, Debug)]
pub struct Presented {
    /// The assignment whose ending is to be proved.
    pub fence: Fence,
    /// What the caller brought along.
    pub offered: Option<EvidenceBody>,
    /// What the ledger kept for this fence.
    pub stored: Vec<StoredEvidence>,
    /// What was kept for this fence as well and cannot be read.
    pub unreadable: Vec<Unreadable>,
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
    /// Judges what is presented, on a thread that it may block. Where it takes longer than the ledger's bound it is
    /// dropped at its next await, and its answer counts for nothing.
    fn verify(&self, presented: Presented) -> Verdict<'_>;
}

/// Asks one verifier.
#[derive(Clone)]
pub(crate) struct Verdicts {
    verifier: Arc<dyn Verifier>,
    seats: Arc<Semaphore>,
}

impl Verdicts {
    pub(crate) fn of(verifier: Arc<dyn Verifier>) -> Self {
        Self {
            verifier,
            seats: Arc::new(Semaphore::new(SEATS)),
        }
    }

    /// The verifier's answer within `bound`, the wait for a thread included. Neither a panic of its, nor work that
    /// never yields, is the caller's. Cancelling this drops the verifier's work.
    pub(crate) async fn ask(&self, presented: Presented, bound: Duration) -> Result<Acceptance, Unproven> {
        let asked = async {
            // Nobody closes the seats.
            let seat = Arc::clone(&self.seats).acquire_owned().await.ok();
            let (interest, lost) = oneshot::channel::<()>();
            let (verifier, runtime) = (Arc::clone(&self.verifier), Handle::current());
            let verdict = tokio::task::spawn_blocking(move || {
                let _seat = seat;
                runtime.block_on(async move {
                    tokio::select! {
                        verdict = verifier.verify(presented) => Some(verdict),
                        _ = lost => None,
                    }
                })
            });
            let verdict = verdict.await;
            drop(interest);
            verdict
        };
        match tokio::time::timeout(bound, asked).await {
            Ok(Ok(Some(Ok(acceptance)))) => Ok(acceptance),
            Ok(Ok(Some(Err(refused)))) => Err(Unproven::Refused(refused)),
            Ok(Ok(None) | Err(_)) => Err(Unproven::Crashed),
            Err(_elapsed) => Err(Unproven::TimedOut(bound)),
        }
    }
}
