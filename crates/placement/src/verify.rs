//! The retirement verifier: the trust boundary at which proof of an ending is judged (P13).
//!
//! The ledger asks it outside any transaction, within a bound, and then checks the whole fence again under
//! its lock. A verifier may accept exactly what D4 lists; expiry, silence and a dead node are not on it.

use std::collections::HashMap;
use std::future::Future;
use std::hash::Hash;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ether_store::Deadline;
use ether_types::Fence;
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::timeout;

use crate::bounds::EvidenceBody;
use crate::error::Unproven;
use crate::evidence::{EvidenceKind, StoredEvidence, node_of};
use crate::sql::Unreadable;

/// Verdicts that are formed at once. Each has a thread, so that a verifier which never gives way holds up others
/// like it and nobody else.
const SEATS: usize = 16;
/// How many of them may be about assignments on one target node, so that one whose proofs never end leaves seats for
/// the others. By one proof of one assignment's ending there is one.
const SHARE: usize = 4;

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
    /// What can be said without waiting for anything and without keeping the thread: an operator's attestation, or a
    /// proof that is only compared. `None`, as by default, asks [`Verifier::verify`] for it. This takes nobody's turn,
    /// so that it is said even while other verdicts do not end.
    fn at_once(&self, _presented: &Presented) -> Option<Result<Acceptance, VerifyError>> {
        None
    }

    /// Judges what is presented, on a thread that it may block. Where it takes longer than the ledger's bound it is
    /// dropped at its next await, and its answer counts for nothing.
    fn verify(&self, presented: Presented) -> Verdict<'_>;
}

/// Asks one verifier.
#[derive(Clone)]
pub(crate) struct Verdicts {
    verifier: Arc<dyn Verifier>,
    /// By what is to be proved, and by what the caller brought along for it: an attestation does not wait behind a
    /// verdict without one.
    proofs: Turns<(Fence, Option<EvidenceBody>)>,
    nodes: Turns<String>,
    seats: Turns<()>,
}

impl Verdicts {
    pub(crate) fn of(verifier: Arc<dyn Verifier>) -> Self {
        Self {
            verifier,
            proofs: Turns::of(1),
            nodes: Turns::of(SHARE),
            seats: Turns::of(SEATS),
        }
    }

    /// The verifier's answer within `bound`, the wait for a thread included. Neither a panic of its, nor work that
    /// never yields, is the caller's. Cancelling this drops the verifier's work.
    pub(crate) async fn ask(&self, presented: Presented, bound: Duration) -> Result<Acceptance, Unproven> {
        // A verifier that panics is left as it is: what it says counts for nothing, and nothing of it is looked at.
        match catch_unwind(AssertUnwindSafe(|| self.verifier.at_once(&presented))) {
            Ok(None) => {}
            Ok(Some(verdict)) => return verdict.map_err(Unproven::Refused),
            Err(_panic) => return Err(Unproven::Crashed),
        }
        let deadline = Deadline::after(bound);
        let proof = (presented.fence.clone(), presented.offered.clone());
        let node = node_of(&presented.fence.target).to_owned();
        // Who waits for the narrower turn holds none of the wider ones.
        let Ok(own) = timeout(deadline.left(), self.proofs.take(proof)).await else {
            return Err(Unproven::Underway(bound));
        };
        let seat = async { (self.nodes.take(node).await, self.seats.take(()).await) };
        let Ok(seat) = timeout(deadline.left(), seat).await else {
            return Err(Unproven::NoSeat(bound));
        };
        let (interest, lost) = oneshot::channel::<()>();
        let (verifier, runtime) = (Arc::clone(&self.verifier), Handle::current());
        let verdict = tokio::task::spawn_blocking(move || {
            // Kept for as long as the verifier has the thread, whoever still waits for it.
            let _held = (own, seat);
            runtime.block_on(async move {
                tokio::select! {
                    verdict = verifier.verify(presented) => Some(verdict),
                    _ = lost => None,
                }
            })
        });
        let verdict = timeout(deadline.left(), verdict).await;
        drop(interest);
        match verdict {
            Ok(Ok(Some(Ok(acceptance)))) => Ok(acceptance),
            Ok(Ok(Some(Err(refused)))) => Err(Unproven::Refused(refused)),
            Ok(Ok(None) | Err(_)) => Err(Unproven::Crashed),
            Err(_elapsed) => Err(Unproven::TimedOut(bound)),
        }
    }
}

/// So many turns at once for each key. A key that nobody has or wants a turn of is forgotten.
struct Turns<K> {
    at_once: usize,
    keys: Arc<Mutex<HashMap<K, Arc<Semaphore>>>>,
}

impl<K> Clone for Turns<K> {
    fn clone(&self) -> Self {
        Self {
            at_once: self.at_once,
            keys: Arc::clone(&self.keys),
        }
    }
}

impl<K: Eq + Hash + Clone> Turns<K> {
    fn of(at_once: usize) -> Self {
        Self {
            at_once,
            keys: Arc::default(),
        }
    }

    /// A turn of `key`, once there is one. Dropping this gives the place in the line back.
    async fn take(&self, key: K) -> Turn<K> {
        let turns = {
            let mut keys = lock(&self.keys);
            let turns = keys.entry(key.clone());
            Arc::clone(turns.or_insert_with(|| Arc::new(Semaphore::new(self.at_once))))
        };
        // Whoever stops waiting leaves by the same door as who had a turn.
        let mut turn = Turn {
            key,
            keys: Arc::clone(&self.keys),
            permit: None,
        };
        // Nobody closes these.
        turn.permit = turns.acquire_owned().await.ok();
        turn
    }
}

/// One turn of a key, or the wait for it.
struct Turn<K: Eq + Hash> {
    key: K,
    keys: Arc<Mutex<HashMap<K, Arc<Semaphore>>>>,
    permit: Option<OwnedSemaphorePermit>,
}

impl<K: Eq + Hash> Drop for Turn<K> {
    fn drop(&mut self) {
        let mut keys = lock(&self.keys);
        // A permit holds its semaphore, and so does each wait for one.
        self.permit = None;
        if keys
            .get(&self.key)
            .is_some_and(|turns| Arc::strong_count(turns) == 1)
        {
            keys.remove(&self.key);
        }
    }
}

fn lock<K>(keys: &Mutex<HashMap<K, Arc<Semaphore>>>) -> MutexGuard<'_, HashMap<K, Arc<Semaphore>>> {
    keys.lock().unwrap_or_else(PoisonError::into_inner)
}
