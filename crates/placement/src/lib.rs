//! The placement ledger: who may run what on which device, and what that costs until it is proved over.
//!
//! [`decide`](decide::decide) is the whole policy, a pure function of a snapshot, a command and the database's
//! clock. [`Ledger`] is the shell around it: it loads the rows that the waiting commands need, decides them
//! one after the other, and writes what came out, all in one transaction under the component's lock. SQL
//! holds no policy, so that what the model checker explores is what runs.
//!
//! Nothing happens on its own (P1): no timer, no reclaim, no start-up cleanup. `docs/contracts/placement.md`
//! says for each fact who writes it, under which fence, and what a stale holder may still do.
//!
//! # What a caller keeps to
//!
//! 1. **An error is no answer.** After [`LedgerError::Unknown`] the change may have happened. The same call again, with
//!    the same words, settles it: for a reservation that is the same operation and payload, for a renewal the same
//!    absolute deadline. Whoever takes a new operation instead may run two.
//! 2. **An outcome is a value.** Whatever else is refused is said by [`Reserved`](outcome::Reserved),
//!    [`Renewed`](outcome::Renewed), [`Retirement`] and their like, and has changed nothing.
//! 3. **The fence goes everywhere.** What was granted is named by [`Assignment::fence`](outcome::Assignment::fence), in
//!    the worker's record, in messages ([`Fence::reference`](ether_types::Fence::reference)) and on output. It is
//!    compared whole.
//! 4. **A replay starts nothing by itself.** [`Reserved::Replayed`](outcome::Reserved::Replayed) says that the grant was
//!    given before, and in [`authority`](outcome::Assignment::authority) whether it may act now.
//! 5. **Deadlines are the database's.** They are counted from the `now` of an answer and never from the caller's own
//!    clock, and a worker takes the cluster's clock skew off before it relies on one. A controller renews with more
//!    than two skews to spare.
//! 6. **Time frees nothing.** An assignment whose deadline has passed is stopped, and its capacity is taken until
//!    [`Ledger::retire`] has the proof that it ended. What counts as one the [`Verifier`] says, which is the caller's.
//! 7. **Who calls what:** [`Ledger::set_target`] the membership reconciler, [`Ledger::set_pool`] an operator or that
//!    reconciler, [`Ledger::record_evidence`] whoever has authenticated the author.
//!
//! # Example
//!
//! One worker with one budget, and one playback from its reservation to the proof that it is over.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Duration;
//!
//! use ether_placement::command::{Admission, Reserve, SetPool, SetTarget};
//! use ether_placement::outcome::{Authority, Released, Renewed, Reserved};
//! use ether_placement::{
//!     Acceptance, Author, Capacity, Claims, EvidenceBody, EvidenceKind, Lease, Ledger, LedgerError, Options,
//!     Presented, Retirement, Revision, Units, Verdict, Verifier,
//! };
//! use ether_store::{Location, Store};
//! use ether_types::{
//!     BootId, ClusterId, Generation, NodeId, OperationId, Role, ScopeName, SessionId, SystemClock, TargetId,
//! };
//!
//! /// Believes what the worker's own boot has put on record.
//! struct WorkersWord;
//!
//! impl Verifier for WorkersWord {
//!     fn verify(&self, presented: Presented) -> Verdict<'_> {
//!         Box::pin(async move {
//!             let boot = presented.fence.target_boot.clone();
//!             let worker = Author::Target { boot };
//!             let word = presented.stored.iter().find(|piece| piece.author == worker);
//!             let kind = word.ok_or("its worker has not said that it is over")?.kind;
//!             Ok(Acceptance { fence: presented.fence, kind })
//!         })
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // SQLite has no clock of its own and goes by this one; PostgreSQL goes by the server's.
//! let clock = Arc::new(SystemClock::new());
//! let store = Store::open(&Location::SqliteMemory, ether_store::Options::default(), clock).await?;
//! let (attic, boot) = (NodeId::new("attic")?, BootId::random()?);
//! let options = Options::new(ClusterId::new("home")?, attic.clone(), boot.clone());
//! let (ledger, _joined) = Ledger::open(&store, options, Some(Arc::new(WorkersWord))).await?;
//!
//! // The budget, and what the worker's device admits. Nobody has set either before.
//! let (slots, cellar) = (ScopeName::new("cellar/slots")?, TargetId::new("cellar/cpu")?);
//! let cellars_boot = BootId::new("cellar-1")?;
//! let pool = SetPool {
//!     scope: slots.clone(),
//!     role: Role::Transcode,
//!     capacity: Capacity::new(4_000)?,
//!     seen: Revision::NONE,
//! };
//! ledger.set_pool(pool).await?;
//! let target = SetTarget {
//!     target: cellar.clone(),
//!     boot: cellars_boot.clone(),
//!     expected: None,
//!     seen: Revision::NONE,
//!     admission: Admission::new([(Role::Transcode, vec![slots.clone()])])?,
//! };
//! ledger.set_target(target).await?;
//!
//! // The request is made once and kept until it is settled.
//! let reserve = Reserve {
//!     session: SessionId::new(attic.clone(), 0),
//!     controller_node: attic,
//!     controller_boot: boot,
//!     target: cellar,
//!     target_boot: cellars_boot.clone(),
//!     role: Role::Transcode,
//!     operation: OperationId::new("play-1")?,
//!     expected: Generation::NEVER,
//!     claims: Claims::new([(slots, Units::new(1_000)?)])?,
//!     lease: Lease::new(Duration::from_secs(180))?,
//! };
//! let granted = loop {
//!     match ledger.reserve(reserve.clone()).await {
//!         Ok(Reserved::Granted(granted)) => break granted,
//!         Ok(Reserved::Replayed(granted)) if granted.authority == Authority::Live => break granted,
//!         Ok(refused) => return Err(format!("no playback: {refused:?}").into()),
//!         // It may have happened, or not: the same again. (A real caller lets a moment pass, and gives up one day.)
//!         Err(LedgerError::Unknown(_)) => {}
//!         Err(error) => return Err(error.into()),
//!     }
//! };
//! let fence = granted.fence;
//!
//! // Here the worker starts. While it plays, its deadline is moved on, from the database's now.
//! let record = ledger.lookup(fence.session.clone()).await?.ok_or("no such session")?;
//! let until = record.now.checked_add(Duration::from_secs(240)).ok_or("the end of time")?;
//! let renewed = ledger.renew(fence.clone(), until).await?;
//! assert!(matches!(renewed, Renewed::Renewed { moved: true, .. }));
//!
//! // Nobody has proved that it is over, so nothing is released.
//! let early = ledger.retire(fence.clone(), None).await?;
//! assert!(matches!(early, Retirement::Unproven(_)));
//!
//! // The worker has reaped its process and says so; then the capacity comes back, once.
//! let worker = Author::Target { boot: cellars_boot };
//! let word = EvidenceBody::new("exit status 0")?;
//! ledger.record_evidence(fence.clone(), worker, EvidenceKind::Reaped, word).await?;
//! for already in [false, true] {
//!     let retired = ledger.retire(fence.clone(), None).await?;
//!     let Retirement::Proved { released, .. } = retired else {
//!         return Err("not proved".into());
//!     };
//!     assert_eq!(released, Released::Retired { already });
//! }
//! # Ok(())
//! # }
//! ```

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
