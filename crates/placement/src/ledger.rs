//! The ledger as others call it.

use std::sync::Arc;
use std::time::Duration;

use ether_store::{Bound, Deadline, Store, Tx};
use ether_types::{BootId, ClusterId, Fence, NodeId, SessionId, Timestamp};

use crate::bounds::{EvidenceBody, Invalid, Quota};
use crate::command::{
    Command, Reserve, ReserveRequest, SetPool, SetTarget, check_deadline, check_epoch, check_fence,
    check_target,
};
use crate::decide::settled;
use crate::error::{Cause, LedgerError, OpenError, Retirement, UnknownOutcome, Unproven};
use crate::evidence::{Author, EvidenceKind};
use crate::options::Options;
use crate::outcome::{
    Joined, Mismatch, Outcome, PoolSet, Raised, Rebased, Record, Recorded, Released, Renewed, Reserved,
    TargetSet, Usage,
};
use crate::queue::Queue;
use crate::read::{Kept, Page, Reader, Unretired};
use crate::sql::schema::{COMPONENT, SCHEMA};
use crate::sql::{Unreadable, rows};
use crate::state::{Coordinator, Own};
use crate::verify::{Presented, Verdicts, Verifier};

/// The placement ledger of one open store. Clones share it.
///
/// Every method may be cancelled: before its transaction began, nothing happens; after, it ends by itself
/// and its answer is lost, as an unknown outcome is. No cancellation leaves a transaction open.
///
/// Every method answers within the transaction timeout, however many transactions it takes; [`Ledger::retire`]
/// within that and the verifier's own.
#[derive(Clone)]
pub struct Ledger {
    queue: Arc<Queue>,
    options: Arc<Options>,
    verdicts: Option<Verdicts>,
}

impl std::fmt::Debug for Ledger {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ledger")
            .field("options", &self.options)
            .field("verifier", &self.verdicts.is_some())
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
        let cluster = options.cluster.clone();
        let check = store.component_if(&COMPONENT, move |tx, found| {
            Box::pin(async move { belongs(tx, found, &cluster).await })
        });
        let tables = check.await?;
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
                verify_timeout: whole_micros(options.verify_timeout),
                clock_skew: options.clock_skew,
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
            verdicts: verifier.map(Verdicts::of),
        };
        match ledger.publish(true).await? {
            Joined::Foreign { cluster } => Err(OpenError::Foreign(cluster)),
            joined => Ok((ledger, joined)),
        }
    }

    /// Publishes this coordinator again and tells how the fleet's ceiling stands; where it could not be
    /// seeded before, this tries again. Where a later boot of the same node has opened the ledger since, that one's
    /// options stand.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub async fn join(&self) -> Result<Joined, LedgerError> {
        self.publish(false).await
    }

    async fn publish(&self, takes_over: bool) -> Result<Joined, LedgerError> {
        match self.one(Command::Join { takes_over }).await? {
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
        check_target(&set.target)?;
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
        check_fence(&fence)?;
        let deadline = check_deadline(deadline)?;
        match self.one(Command::Renew { fence, deadline }).await? {
            Outcome::Renew(renewed) => Ok(renewed),
            other => Err(mixed_up(&other)),
        }
    }

    /// Renews many assignments in few transactions, each row by the rules of [`Ledger::renew`] and with its
    /// own answer in the order given (P22). Between two slices whoever else waits gets a turn. What is not
    /// reached within the bound of the one call is not renewed.
    ///
    /// # Errors
    /// [`Invalid`] for the first fence or deadline that is out of range, before anything was renewed. What goes
    /// wrong later stands in the answers that it hit.
    pub async fn renew_many(
        &self,
        renewals: Vec<(Fence, Timestamp)>,
    ) -> Result<Vec<Result<Renewed, LedgerError>>, Invalid> {
        for (fence, deadline) in &renewals {
            check_fence(fence)?;
            check_deadline(*deadline)?;
        }
        let deadline = self.deadline();
        let mut answers = Vec::with_capacity(renewals.len());
        let mut renewals = renewals.into_iter();
        loop {
            let slice: Vec<Command> = renewals
                .by_ref()
                // As many as share a transaction, so that whoever waits behind one slice waits no longer than
                // behind a group of other requests.
                .take(self.queue.limit())
                .map(|(fence, deadline)| Command::Renew { fence, deadline })
                .collect();
            if slice.is_empty() {
                return Ok(answers);
            }
            let size = slice.len();
            match self.many(slice, &deadline).await {
                Ok(outcomes) => answers.extend(outcomes.into_iter().map(|outcome| match outcome? {
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

    /// What the ledger holds for many sessions, in their order, without the lock: for authority reads that settle
    /// nothing (P25). A row that cannot be read is the answer of its session alone.
    ///
    /// # Errors
    /// [`LedgerError`].
    pub async fn lookup_many(
        &self,
        sessions: &[SessionId],
    ) -> Result<Vec<Result<Option<Record>, Unreadable>>, LedgerError> {
        Ok(self.reader(&self.deadline()).lookup_many(sessions).await?)
    }

    /// A page of what is not retired, without the lock (P25).
    ///
    /// # Errors
    /// As [`Ledger::lookup_many`].
    pub async fn unretired(&self, asked: Unretired) -> Result<Page, LedgerError> {
        Ok(self.reader(&self.deadline()).unretired(asked).await?)
    }

    /// Rows, tombstones, the ceiling and the state of the clock, without the lock (P17).
    ///
    /// # Errors
    /// As [`Ledger::lookup_many`].
    pub async fn usage(&self) -> Result<Usage, LedgerError> {
        Ok(self.reader(&self.deadline()).usage().await?)
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

    /// Lets the ledger go by the database's clock as it stands, after that clock was ahead and has been set right.
    /// `epoch` is what [`Ledger::usage`] showed. Nothing that has not been proved over may last longer than what the
    /// clock says now, so that nothing comes back to life and nothing keeps a deadline that was never meant.
    ///
    /// # Errors
    /// [`LedgerError`]; [`Invalid`] for an epoch that has no successor. After an unknown outcome, the same call again
    /// settles it.
    pub async fn rebase_clock(&self, epoch: u64) -> Result<Rebased, LedgerError> {
        let epoch = check_epoch(epoch)?;
        match self.one(Command::Rebase { epoch }).await? {
            Outcome::Rebase(rebased) => Ok(rebased),
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
        check_fence(&fence)?;
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
    pub async fn evidence(&self, fence: &Fence) -> Result<Kept, LedgerError> {
        check_fence(fence)?;
        if fence.cluster != self.options.cluster {
            return Err(LedgerError::Foreign(Some(self.options.cluster.clone())));
        }
        let (_, kept) = self.reader(&self.deadline()).evidence(fence).await?;
        Ok(kept)
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
        check_fence(&fence)?;
        let cluster = &self.options.cluster;
        let mut deadline = self.deadline();
        let (found, kept) = self.reader(&deadline).evidence(&fence).await?;
        match settled(cluster, found.as_ref(), &fence) {
            // Without the lock this may be older than the assignment.
            None | Some(Released::Fenced(Mismatch::Absent)) => {}
            Some(released) => return Ok(Retirement::Proved { released, by: None }),
        }
        let asked = Deadline::after(self.options.verify_timeout);
        let verdict = self.verdict(&fence, offered, kept).await;
        // The verifier's time is its own.
        deadline.extend(asked.bound().saturating_sub(asked.left()));
        let unproven = match verdict {
            Ok(kind) => {
                let retire = self.many(vec![Command::Retire { fence }], &deadline);
                return match first(retire.await?)? {
                    Outcome::Retire(released) => {
                        let ours = matches!(released, Released::Retired { already: false });
                        let by = ours.then_some(kind);
                        Ok(Retirement::Proved { released, by })
                    }
                    other => Err(mixed_up(&other)),
                };
            }
            Err(unproven) => unproven,
        };
        // Meanwhile the call that this one repeats may have succeeded, and consumed the evidence that the
        // verifier missed. Only under the lock can it be said that it has not.
        let session = fence.session.clone();
        let lookup = self.many(vec![Command::Lookup { session }], &deadline);
        match first(lookup.await?)? {
            Outcome::Lookup(found) => Ok(match settled(cluster, found.as_deref(), &fence) {
                Some(released) => Retirement::Proved { released, by: None },
                None => Retirement::Unproven(unproven),
            }),
            other => Err(mixed_up(&other)),
        }
    }

    /// What the verifier accepts as the proof of the fence's ending.
    async fn verdict(
        &self,
        fence: &Fence,
        offered: Option<EvidenceBody>,
        kept: Kept,
    ) -> Result<EvidenceKind, Unproven> {
        let verdicts = self.verdicts.as_ref().ok_or(Unproven::NoVerifier)?;
        let presented = Presented {
            fence: fence.clone(),
            offered,
            stored: kept.pieces,
            unreadable: kept.unreadable,
        };
        let accepted = verdicts.ask(presented, self.options.verify_timeout).await?;
        match accepted.fence == *fence {
            true => Ok(accepted.kind),
            false => Err(Unproven::OtherFence(Box::new(accepted.fence))),
        }
    }

    #[cfg(test)]
    pub(crate) async fn commands(&self, commands: Vec<Command>) -> Result<Vec<Outcome>, LedgerError> {
        self.each_command(commands).await?.into_iter().collect()
    }

    #[cfg(test)]
    pub(crate) async fn each_command(
        &self,
        commands: Vec<Command>,
    ) -> Result<Vec<Result<Outcome, LedgerError>>, LedgerError> {
        self.many(commands, &self.deadline()).await
    }

    /// Forgets the clock that this process has seen, for tests that go back in time on purpose.
    #[cfg(test)]
    pub(crate) fn forget_clock(&self) {
        self.queue.latest.forget();
    }

    /// Groups of at most `limit` commands, as after some that did not end within the bound.
    #[cfg(test)]
    pub(crate) fn limit_groups(&self, limit: usize) {
        self.queue.limit_to(limit);
    }

    /// Waits so long for verdicts from here on, in the same turns.
    #[cfg(test)]
    pub(crate) fn wait_for_verdicts(&mut self, bound: Duration) {
        Arc::make_mut(&mut self.options).verify_timeout = bound;
    }

    /// Whether commands wait or are under way.
    #[cfg(test)]
    pub(crate) fn is_serving(&self) -> bool {
        self.queue.is_served()
    }

    #[cfg(test)]
    pub(crate) fn group_limit(&self) -> usize {
        self.queue.limit()
    }

    #[cfg(test)]
    pub(crate) fn tables(&self) -> &ether_store::Tables {
        self.queue.tables()
    }

    /// When a call that begins now has to be answered.
    fn deadline(&self) -> Deadline {
        Deadline::after(self.options.transaction_timeout)
    }

    fn reader<'l>(&'l self, deadline: &'l Deadline) -> Reader<'l> {
        Reader {
            tables: self.queue.tables(),
            cluster: &self.options.cluster,
            latest: &self.queue.latest,
            deadline,
        }
    }

    async fn one(&self, command: Command) -> Result<Outcome, LedgerError> {
        first(self.many(vec![command], &self.deadline()).await?)
    }

    async fn many(
        &self,
        commands: Vec<Command>,
        deadline: &Deadline,
    ) -> Result<Vec<Result<Outcome, LedgerError>>, LedgerError> {
        let late = || UnknownOutcome::from(Cause::Timeout(deadline.bound()));
        let left = deadline.left();
        if left.is_zero() {
            return Err(late().into());
        }
        let answer = self
            .queue
            .submit(commands)
            .map_err(|_full| LedgerError::Overloaded)?;
        match tokio::time::timeout(left, answer).await {
            Ok(Ok(answers)) => Ok(answers
                .into_iter()
                .map(|answer| match answer {
                    Ok(Outcome::Elsewhere(cluster)) => Err(LedgerError::Foreign(cluster)),
                    Ok(outcome) => Ok(outcome),
                    Err(fault) => Err(UnknownOutcome::from(Cause::Fault(fault)).into()),
                })
                .collect()),
            Ok(Err(_dropped)) => Err(UnknownOutcome::from(Cause::Ended).into()),
            Err(_elapsed) => Err(late().into()),
        }
    }
}

/// Refuses a database of another cluster, before any of its tables is touched. `found` is the version they have.
async fn belongs(tx: &mut Tx, found: i64, cluster: &ClusterId) -> Result<(), OpenError> {
    if found == 0 {
        return Ok(());
    }
    let sql = "SELECT cluster FROM placement_meta WHERE id = 1";
    let row = tx.first(sql, &[]).await?;
    let row = row.ok_or_else(|| rows::corrupt("placement_meta", "id", "the ledger itself"))?;
    match row.opt_text(0)? {
        None => Ok(()),
        Some(found) if found == cluster.as_str() => Ok(()),
        Some(found) => {
            let found = ClusterId::new(found)
                .map_err(|_| rows::corrupt("placement_meta", "cluster", "the ledger itself"))?;
            Err(OpenError::Foreign(found))
        }
    }
}

fn first(answers: Vec<Result<Outcome, LedgerError>>) -> Result<Outcome, LedgerError> {
    let answer = answers.into_iter().next();
    answer.unwrap_or_else(|| Err(UnknownOutcome::from(Cause::Ended).into()))
}

/// An outcome of another command than the one that was asked: a defect of the queue.
fn mixed_up(_other: &Outcome) -> LedgerError {
    UnknownOutcome::from(Cause::Ended).into()
}

fn whole_micros(duration: Duration) -> Duration {
    Duration::from_micros(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX).max(1))
}
