//! The ledger as others call it.

use std::sync::Arc;
use std::time::Duration;

use ether_store::{Bound, MigrateError, Store};
use ether_types::{BootId, Fence, NodeId, SessionId, Timestamp};

use crate::bounds::{EvidenceBody, Invalid, Quota};
use crate::command::{Command, Reserve, ReserveRequest, SetPool, SetTarget, check_deadline};
use crate::evidence::{Author, EvidenceKind, StoredEvidence};
use crate::options::Options;
use crate::outcome::{
    Authority, Joined, Mismatch, Outcome, PoolSet, Raised, Record, Recorded, Released, Renewed, Reserved,
    TargetSet, Usage,
};
use crate::queue::Queue;
use crate::read::{self, Page, Unretired};
use crate::sql::Fault;
use crate::sql::schema::{COMPONENT, SCHEMA};
use crate::state::{Coordinator, Own};
use crate::verify::{Presented, Verifier, VerifyError};

/// Renewals in one transaction of [`Ledger::renew_many`]: few enough that whoever waits behind one slice
/// waits no longer than behind a group of other requests.
const SLICE: usize = 1_024;

/// There is no answer, and the change may have happened or not (P11). [`Ledger::lookup`] and the same
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
    /// The database belongs to another cluster.
    #[error("this ledger belongs to cluster {0}")]
    Foreign(ether_types::ClusterId),
    /// Joining it had no outcome.
    #[error(transparent)]
    Ledger(#[from] LedgerError),
}

/// The answer to [`Ledger::retire`].
#[derive(Debug)]
pub enum Retirement {
    /// The proof was accepted, and this is what came of it.
    Proved(Released),
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
    /// The verifier answered about another assignment.
    #[error("the verifier answered about generation {} of {}", .0.generation, .0.session)]
    OtherFence(Box<Fence>),
    /// The verifier panicked.
    #[error("the verifier panicked")]
    Crashed,
}

/// The placement ledger of one open store. Clones share it.
///
/// Every method may be cancelled: before its transaction began, nothing happens; after, it ends by itself
/// and its answer is lost, as an unknown outcome is. No cancellation leaves a transaction open.
#[derive(Clone)]
pub struct Ledger {
    queue: Arc<Queue>,
    options: Arc<Options>,
    verifier: Option<Arc<dyn Verifier>>,
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledger")
            .field("options", &self.options)
            .field("verifier", &self.verifier.is_some())
            .finish_non_exhaustive()
    }
}

impl Ledger {
    /// Opens the ledger in `store`: migrates its tables, publishes this coordinator and, where it is part of
    /// a fleet, seeds or verifies the fleet's ceiling (P18). How that went is returned beside it: a ceiling
    /// that differs closes the ledger to this coordinator's new work and to nothing else.
    ///
    /// Without a verifier nothing can be retired.
    ///
    /// # Errors
    /// [`OpenError`].
    pub async fn open(
        store: &Store,
        options: Options,
        verifier: Option<Arc<dyn Verifier>>,
    ) -> Result<(Self, Joined), OpenError> {
        options.check()?;
        let tables = store.component(&COMPONENT).await?;
        let own = Own {
            cluster: options.cluster.clone(),
            node: options.node.clone(),
            published: Coordinator {
                boot: options.boot.clone(),
                schema: SCHEMA,
                quota: options.quota.get(),
                maximum_lease: options.maximum_lease,
                // Published in whole microseconds, as everything in the database is (D5).
                transaction_timeout: whole_micros(options.transaction_timeout),
                lock_timeout: whole_micros(options.lock_timeout),
            },
            fleet: options.fleet,
        };
        let bound = Bound {
            lock: options.lock_timeout,
            total: options.transaction_timeout,
        };
        let ledger = Self {
            queue: Queue::new(tables, own, bound),
            options: Arc::new(options),
            verifier,
        };
        match ledger.join().await? {
            Joined::Foreign { cluster } => Err(OpenError::Foreign(cluster)),
            joined => Ok((ledger, joined)),
        }
    }

    /// Publishes this coordinator again and tells how the fleet's ceiling stands; where it could not be
    /// seeded before, this tries again.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub async fn join(&self) -> Result<Joined, LedgerError> {
        match self.one(Command::Join).await? {
            Outcome::Join(joined) => Ok(joined),
            other => Err(mixed_up(&other)),
        }
    }

    /// Takes back what `boot` of `node` published; only for a member that is known to be gone. Tells whether
    /// there was something to take back.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub async fn withdraw(&self, node: NodeId, boot: BootId) -> Result<bool, LedgerError> {
        match self.one(Command::Withdraw { node, boot }).await? {
            Outcome::Withdraw(gone) => Ok(gone),
            other => Err(mixed_up(&other)),
        }
    }

    /// Sets a pool's capacity (P4).
    ///
    /// # Errors
    /// [`LedgerError`].
    pub async fn set_pool(&self, set: SetPool) -> Result<PoolSet, LedgerError> {
        match self.one(Command::SetPool(set)).await? {
            Outcome::SetPool(set) => Ok(set),
            other => Err(mixed_up(&other)),
        }
    }

    /// Sets what a target admits (P5). Only the authenticated membership reconciler calls this.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub async fn set_target(&self, set: SetTarget) -> Result<TargetSet, LedgerError> {
        match self.one(Command::SetTarget(set)).await? {
            Outcome::SetTarget(set) => Ok(set),
            other => Err(mixed_up(&other)),
        }
    }

    /// Takes capacity for a new generation of a session, or finds that it was taken (P6 to P8).
    ///
    /// # Errors
    /// [`LedgerError`]; after an unknown outcome, the same request again settles it.
    pub async fn reserve(&self, reserve: Reserve) -> Result<Reserved, LedgerError> {
        let request = ReserveRequest::new(reserve)?;
        match self.one(Command::Reserve(request)).await? {
            Outcome::Reserve(reserved) => Ok(reserved),
            other => Err(mixed_up(&other)),
        }
    }

    /// Moves an assignment's deadline forward to the absolute `deadline` (P9).
    ///
    /// # Errors
    /// [`LedgerError`]; after an unknown outcome, the same call again settles it.
    pub async fn renew(&self, fence: Fence, deadline: Timestamp) -> Result<Renewed, LedgerError> {
        let deadline = check_deadline(deadline)?;
        match self.one(Command::Renew { fence, deadline }).await? {
            Outcome::Renew(renewed) => Ok(renewed),
            other => Err(mixed_up(&other)),
        }
    }

    /// Renews many assignments in few transactions, each row by the rules of [`Ledger::renew`] and with its
    /// own answer in the order given (P22). Between two slices whoever else waits gets a turn.
    ///
    /// # Errors
    /// [`Invalid`] for the first deadline that is out of range, before anything was renewed. What goes wrong
    /// later stands in the answers of the slice that it hit.
    pub async fn renew_many(
        &self,
        renewals: Vec<(Fence, Timestamp)>,
    ) -> Result<Vec<Result<Renewed, LedgerError>>, Invalid> {
        for (_, deadline) in &renewals {
            check_deadline(*deadline)?;
        }
        let mut answers = Vec::with_capacity(renewals.len());
        let mut renewals = renewals.into_iter();
        loop {
            let slice: Vec<Command> = renewals
                .by_ref()
                .take(SLICE)
                .map(|(fence, deadline)| Command::Renew { fence, deadline })
                .collect();
            if slice.is_empty() {
                return Ok(answers);
            }
            let size = slice.len();
            match self.many(slice).await {
                Ok(outcomes) => answers.extend(outcomes.into_iter().map(|outcome| match outcome {
                    Outcome::Renew(renewed) => Ok(renewed),
                    other => Err(mixed_up(&other)),
                })),
                Err(error) => answers.extend(std::iter::repeat_n(Err(error), size)),
            }
        }
    }

    /// What the ledger holds for a session, consistent with every mutation before it (P10, P14).
    ///
    /// # Errors
    /// [`LedgerError`].
    pub async fn lookup(&self, session: SessionId) -> Result<Option<Record>, LedgerError> {
        match self.one(Command::Lookup { session }).await? {
            Outcome::Lookup(found) => Ok(found.map(|record| *record)),
            other => Err(mixed_up(&other)),
        }
    }

    /// What the ledger holds for many sessions, without the lock: for authority reads that settle nothing
    /// (P25).
    ///
    /// # Errors
    /// [`UnknownOutcome`] where the database gave no answer.
    pub async fn lookup_many(&self, sessions: &[SessionId]) -> Result<Vec<Option<Record>>, UnknownOutcome> {
        let cluster = &self.options.cluster;
        Ok(read::lookup_many(self.queue.tables(), cluster, self.bound(), sessions).await?)
    }

    /// A page of what is not retired, without the lock (P25).
    ///
    /// # Errors
    /// As [`Ledger::lookup_many`].
    pub async fn unretired(&self, asked: Unretired) -> Result<Page, UnknownOutcome> {
        let cluster = &self.options.cluster;
        Ok(read::unretired(self.queue.tables(), cluster, self.bound(), asked).await?)
    }

    /// Rows, tombstones and the ceiling, without the lock (P17).
    ///
    /// # Errors
    /// As [`Ledger::lookup_many`].
    pub async fn usage(&self) -> Result<Usage, UnknownOutcome> {
        Ok(read::usage(self.queue.tables(), self.bound()).await?)
    }

    /// Raises the fleet's ceiling (P19). Coordinators whose own quota stays behind are closed to new work.
    ///
    /// # Errors
    /// [`LedgerError`]; [`Invalid`] where either number is not a ceiling.
    pub async fn raise_ceiling(&self, expect: Quota, capacity: Quota) -> Result<Raised, LedgerError> {
        let expect = Quota::ceiling(expect.get())?;
        let capacity = Quota::ceiling(capacity.get())?;
        match self.one(Command::Raise { expect, capacity }).await? {
            Outcome::Raise(raised) => Ok(raised),
            other => Err(mixed_up(&other)),
        }
    }

    /// Keeps a piece of terminal evidence until a retirement consumes it (P26). The caller has authenticated
    /// the author.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub async fn record_evidence(
        &self,
        fence: Fence,
        author: Author,
        kind: EvidenceKind,
        body: EvidenceBody,
    ) -> Result<Recorded, LedgerError> {
        let record = Command::Record {
            fence,
            author,
            kind,
            body,
        };
        match self.one(record).await? {
            Outcome::Record(recorded) => Ok(recorded),
            other => Err(mixed_up(&other)),
        }
    }

    /// The evidence kept for a fence, without the lock.
    ///
    /// # Errors
    /// As [`Ledger::lookup_many`].
    pub async fn evidence(&self, fence: &Fence) -> Result<Vec<StoredEvidence>, UnknownOutcome> {
        Ok(read::evidence(self.queue.tables(), self.bound(), fence).await?)
    }

    /// Releases what an assignment holds, once the verifier has accepted the proof of its ending (P13).
    ///
    /// The verifier is asked outside any transaction and within its bound; then the whole fence is checked
    /// again under the lock. Cancelling this drops the verifier's work, or loses the answer.
    ///
    /// # Errors
    /// [`LedgerError`]; repeating a retirement that succeeded succeeds.
    pub async fn retire(
        &self,
        fence: Fence,
        offered: Option<EvidenceBody>,
    ) -> Result<Retirement, LedgerError> {
        if let Some(settled) = self.settled(&fence).await? {
            return Ok(Retirement::Proved(settled));
        }
        let Some(verifier) = self.verifier.clone() else {
            return Ok(Retirement::Unproven(Unproven::NoVerifier));
        };
        let presented = Presented {
            fence: fence.clone(),
            offered,
            stored: self.evidence(&fence).await?,
        };
        let bound = self.options.verify_timeout;
        // On a task of its own, so that a panic, or work that never yields, stays the verifier's.
        let mut asked = Asked(tokio::spawn(async move { verifier.verify(presented).await }));
        let unproven = match tokio::time::timeout(bound, &mut asked.0).await {
            Ok(Ok(Ok(acceptance))) if acceptance.fence == fence => {
                return match self.one(Command::Retire { fence }).await? {
                    Outcome::Retire(released) => Ok(Retirement::Proved(released)),
                    other => Err(mixed_up(&other)),
                };
            }
            Ok(Ok(Ok(acceptance))) => Unproven::OtherFence(Box::new(acceptance.fence)),
            Ok(Ok(Err(refused))) => Unproven::Refused(refused),
            Ok(Err(_panic)) => Unproven::Crashed,
            Err(_elapsed) => Unproven::TimedOut(bound),
        };
        Ok(Retirement::Unproven(unproven))
    }

    /// What a retirement of `fence` comes to where nothing is left to prove: its evidence was consumed by the
    /// call that this one repeats. Neither answer can change any more, so no lock is needed.
    async fn settled(&self, fence: &Fence) -> Result<Option<Released>, UnknownOutcome> {
        let found = self.lookup_many(std::slice::from_ref(&fence.session)).await?;
        let Some(record) = found.into_iter().next().flatten() else {
            return Ok(None);
        };
        let current = record.fence.generation;
        if current > fence.generation {
            return Ok(Some(Released::Fenced(Mismatch::Superseded { current })));
        }
        let over = record.authority == Authority::Retired && record.fence == *fence;
        Ok(over.then_some(Released::Retired { already: true }))
    }

    #[cfg(test)]
    pub(crate) async fn commands(&self, commands: Vec<Command>) -> Result<Vec<Outcome>, LedgerError> {
        self.many(commands).await
    }

    #[cfg(test)]
    pub(crate) fn tables(&self) -> &ether_store::Tables {
        self.queue.tables()
    }

    fn bound(&self) -> Bound {
        Bound {
            lock: self.options.lock_timeout,
            total: self.options.transaction_timeout,
        }
    }

    async fn one(&self, command: Command) -> Result<Outcome, LedgerError> {
        let outcomes = self.many(vec![command]).await?;
        let outcome = outcomes.into_iter().next();
        outcome.ok_or_else(|| UnknownOutcome::from(Cause::Ended).into())
    }

    async fn many(&self, commands: Vec<Command>) -> Result<Vec<Outcome>, LedgerError> {
        let answer = self
            .queue
            .submit(commands)
            .map_err(|_full| LedgerError::Overloaded)?;
        let bound = self.options.transaction_timeout;
        let cause = match tokio::time::timeout(bound, answer).await {
            Ok(Ok(Ok(outcomes))) => return Ok(outcomes),
            Ok(Ok(Err(fault))) => Cause::Fault(fault),
            Ok(Err(_dropped)) => Cause::Ended,
            Err(_elapsed) => Cause::Timeout(bound),
        };
        Err(UnknownOutcome::from(cause).into())
    }
}

/// The verifier's task, which ends with whoever asked.
struct Asked(tokio::task::JoinHandle<Result<crate::verify::Acceptance, VerifyError>>);

impl Drop for Asked {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// An outcome of another command than the one that was asked: a defect of the queue.
fn mixed_up(_other: &Outcome) -> LedgerError {
    UnknownOutcome::from(Cause::Ended).into()
}

fn whole_micros(duration: Duration) -> Duration {
    Duration::from_micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX).max(1))
}
