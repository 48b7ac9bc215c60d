//! What the ledger answers. Everything a caller acts on is a value here; errors are left for the case that
//! there is no answer.

use std::fmt;
use std::time::Duration;

use ether_types::{BootId, ClusterId, Fence, Generation, NodeId, Role, ScopeName, Timestamp};

use crate::bounds::{Claims, Quota};
use crate::evidence::{EvidenceKind, StoredEvidence};
use crate::sql::Unreadable;
use crate::state::{Pool, Revision, Target};

/// Whether an assignment may act, by the database's clock at the moment of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Authority {
    /// Its deadline lies ahead.
    Live,
    /// Its deadline has passed. It holds its capacity all the same (P12).
    Expired,
    /// Its ending was proved and its capacity released.
    Retired,
}

/// An assignment as the ledger holds it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Record {
    /// Its full identity.
    pub fence: Fence,
    /// What was claimed; history once it is retired.
    pub claims: Claims,
    /// The deadline that the reservation gave, for ever the same.
    pub initial_deadline: Timestamp,
    /// The deadline now.
    pub deadline: Timestamp,
    /// Whether it may act.
    pub authority: Authority,
    /// The database's clock when that was judged.
    pub now: Timestamp,
}

/// What a reservation returns.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Assignment {
    /// The identity to carry everywhere.
    pub fence: Fence,
    /// What was claimed.
    pub claims: Claims,
    /// The first deadline. A replay gives this one, whatever was renewed since (P8).
    pub initial_deadline: Timestamp,
    /// Whether it may act now.
    pub authority: Authority,
    /// The database's clock when that was judged.
    pub now: Timestamp,
}

/// Why a fence is not the one the ledger holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Mismatch {
    /// The fence was issued by another cluster's ledger.
    Foreign {
        /// Whose ledger this is.
        cluster: ClusterId,
    },
    /// The ledger never issued this generation of this session.
    Absent,
    /// A later generation stands; this one was retired before that was granted.
    Superseded {
        /// The durable generation.
        current: Generation,
    },
    /// The generation is right and another field is not.
    Conflict {
        /// What the ledger holds.
        current: Box<Fence>,
    },
}

/// Why a target admits no such work.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// Nobody has set this target.
    UnknownTarget,
    /// Another incarnation of the target admits work.
    OtherBoot {
        /// The one that does.
        current: BootId,
    },
    /// The role is not enabled there.
    Role(Role),
    /// A scope that the target demands was not claimed.
    Unclaimed(ScopeName),
    /// A scope was claimed that the target does not list.
    NotListed(ScopeName),
}

/// The ledger may not remember another session (P17).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QuotaReached {
    /// Session rows.
    pub total: u64,
    /// Those of them that are tombstones.
    pub retired: u64,
    /// The quota.
    pub quota: u64,
}

impl fmt::Display for QuotaReached {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the ledger holds {} of {} sessions ({} retired): raise the ceiling, reuse session ids, or \
             archive the whole namespace after it was proved quiescent; tombstones are never deleted",
            self.total, self.quota, self.retired
        )
    }
}

/// The answer to a reservation.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Reserved {
    /// A new generation was granted.
    Granted(Assignment),
    /// This very request was granted before; nothing was reserved now. A retired one starts no work.
    Replayed(Assignment),
    /// The operation was used with another payload.
    Conflict {
        /// What stands under that operation.
        current: Box<Fence>,
    },
    /// The session's last assignment has not been proved over.
    Unretired {
        /// Which one holds it.
        holder: Box<Fence>,
    },
    /// A scope has no room, or no pool.
    NoCapacity {
        /// Which scope.
        scope: ScopeName,
        /// Units left in it; `None` where it has no pool for the role.
        left: Option<u64>,
    },
    /// The target does not admit it.
    NotAdmitted(Refusal),
    /// The session's durable generation is not the expected one: an older request stays fenced for ever.
    Superseded {
        /// The durable generation.
        current: Generation,
    },
    /// The lease is longer than this coordinator's maximum.
    LeaseTooLong {
        /// The longest lease.
        maximum: Duration,
    },
    /// The ledger is full.
    Quota(QuotaReached),
    /// The database's clock stands too far behind for a deadline to be worth anything: nothing new is granted.
    ClockBehind(ClockBehind),
    /// This coordinator's quota is not the fleet's ceiling: it is closed to new work (P18).
    CeilingMismatch {
        /// This coordinator's.
        own: Quota,
        /// The fleet's.
        fleet: Quota,
    },
}

/// The database's clock stands further behind the latest instant that the ledger acted on than is let pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ClockBehind {
    /// How far.
    pub behind: Duration,
    /// How far it may.
    pub skew: Duration,
}

impl fmt::Display for ClockBehind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the database's clock is {:?} behind the latest instant that the ledger acted on, and {:?} at most is \
             let pass: set the clock right, or retire what still runs and rebase the ledger",
            self.behind, self.skew
        )
    }
}

/// The answer to a renewal.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Renewed {
    /// The authority reaches to `deadline`.
    Renewed {
        /// The deadline now.
        deadline: Timestamp,
        /// Whether this call moved it; a deadline at or below the current one moves nothing (D6).
        moved: bool,
    },
    /// The authority had ended; nothing revives it.
    Expired {
        /// When it ended.
        deadline: Timestamp,
    },
    /// The assignment is retired.
    Retired,
    /// The deadline lies further ahead than the maximum lease.
    TooFar {
        /// The latest deadline that is possible now.
        latest: Timestamp,
    },
    /// The database's clock stands too far behind for a later deadline to be worth anything; the one that stands
    /// stays.
    ClockBehind(ClockBehind),
    /// The fence is not the one that the ledger holds.
    Fenced(Mismatch),
}

/// The answer to a retirement whose proof was accepted, or which needed none.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Released {
    /// The capacity is free.
    Retired {
        /// Whether it had been before this call.
        already: bool,
    },
    /// The fence is not the one that the ledger holds; nothing was released.
    Fenced(Mismatch),
}

/// The answer to evidence.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Recorded {
    /// It is kept until a retirement consumes it.
    Recorded,
    /// The very same was there already.
    Already,
    /// This author has written something else before; that stays.
    Conflict {
        /// What is kept.
        current: Box<StoredEvidence>,
    },
    /// The assignment is retired: there is nothing left to prove.
    Retired,
    /// The writing boot is neither the target's of the fence nor the one that took its place.
    NotAuthor,
    /// This author cannot claim this: nobody succeeds itself, and an attestation is an operator's, which comes
    /// with the retirement.
    NotTheirs {
        /// What was claimed.
        kind: EvidenceKind,
    },
    /// As many pieces are kept as may be: of this author's node, or in all. They stay, and a retirement that
    /// brings its own proof needs no place among them.
    Full {
        /// Pieces about this assignment.
        kept: usize,
    },
    /// The fence is not the one that the ledger holds.
    Fenced(Mismatch),
}

/// The answer to a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolSet {
    /// The pool has the capacity asked for.
    Set {
        /// The pool now.
        pool: Pool,
    },
    /// The pool is not the one that the caller saw; it is unchanged.
    Mismatch {
        /// What it is, or `None` where there is no pool.
        current: Option<Pool>,
    },
}

/// The answer to a target.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum TargetSet {
    /// The target admits what was asked for.
    Set {
        /// To be named by whoever sets it next.
        revision: Revision,
    },
    /// Another incarnation, or another policy of it, stands than the caller saw; nothing was changed.
    Superseded {
        /// What stands, or `None` where there is no target.
        current: Option<Box<Target>>,
    },
}

/// How the fleet's ceiling stands for one coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Ceiling {
    /// No fleet: the coordinator's own quota holds.
    Local,
    /// It is this coordinator's quota too.
    Matches(Quota),
    /// It is not: closed to new work.
    Differs {
        /// This coordinator's.
        own: Quota,
        /// The fleet's.
        fleet: Quota,
    },
    /// Not seeded, since these nodes run a placement schema that knows no ceiling, or somebody's row cannot be read.
    Blocked {
        /// Who stands in the way; empty where it is only rows that cannot be read.
        older: Vec<NodeId>,
    },
}

/// A published option in which two coordinators differ.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Difference {
    /// The other coordinator.
    pub node: NodeId,
    /// Which option.
    pub option: &'static str,
    /// Here; durations in microseconds.
    pub own: u64,
    /// There.
    pub theirs: u64,
}

/// The answer to a coordinator that joins.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Joined {
    /// Its options are published.
    Joined {
        /// How the ceiling stands.
        ceiling: Ceiling,
        /// Where other coordinators differ.
        differences: Vec<Difference>,
        /// Rows of other coordinators that the ledger cannot have written. Opening the ledger on such a node again
        /// mends its row.
        unreadable: Vec<Unreadable>,
    },
    /// A later boot of this node has joined since: nothing was published. Only opening the ledger takes over.
    Superseded {
        /// That boot.
        current: BootId,
    },
    /// The ledger belongs to another cluster.
    Foreign {
        /// Which one.
        cluster: ClusterId,
    },
}

/// The answer to raising the fleet's ceiling.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Raised {
    /// It stands at the capacity asked for.
    Raised {
        /// The ceiling.
        ceiling: Quota,
    },
    /// It was not what the caller saw.
    Mismatch {
        /// What it is, or `None` before it is seeded.
        current: Option<Quota>,
    },
    /// A ceiling only goes up.
    NotUpward {
        /// What it is.
        current: Quota,
    },
}

/// The answer to a rebase of the clock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Rebased {
    /// The ledger goes by the database's clock as it stands.
    Rebased {
        /// The epoch now.
        epoch: u64,
        /// Whether this call began it.
        moved: bool,
    },
    /// An assignment that has not been proved over lasts longer than what the clock says now: its authority, or
    /// the end of it, would be another one. Retire it first.
    Held {
        /// The one that lasts longest.
        holder: Box<Fence>,
        /// Until when.
        deadline: Timestamp,
    },
    /// The clock was rebased since the caller looked.
    Mismatch {
        /// The epoch that stands.
        current: u64,
    },
}

/// Rows of the ledger (P17).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Usage {
    /// Session rows.
    pub total: u64,
    /// Those of them that are tombstones.
    pub retired: u64,
    /// The fleet's ceiling, once seeded.
    pub ceiling: Option<Quota>,
    /// The counter that every mutation raises.
    pub revision: u64,
    /// How far the database's clock stands behind the latest instant that the ledger acted on, as far as this
    /// process knows. Zero but after that clock was stepped back; until it has caught up, time stands still here
    /// and nothing expires, and past the declared skew nothing is granted or renewed.
    pub behind: Duration,
    /// How often the clock was rebased.
    pub epoch: u64,
}

/// The answer to any command.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "each is the answer to the command of its name")]
pub enum Outcome {
    SetPool(PoolSet),
    SetTarget(TargetSet),
    Reserve(Reserved),
    Renew(Renewed),
    Lookup(Option<Box<Record>>),
    Retire(Released),
    Record(Recorded),
    Join(Joined),
    Withdraw(bool),
    Raise(Raised),
    Rebase(Rebased),
    /// The answer to any of them but a join where the ledger is not the coordinator's cluster's.
    Elsewhere(Option<ClusterId>),
}
