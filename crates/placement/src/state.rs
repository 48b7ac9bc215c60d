//! What a decision is made on: the rows of the ledger that were loaded for it.
//!
//! A row that was not loaded is not an absent row. Asking for one is a defect that ends the transaction
//! ([`NotLoaded`]); taking it for absent could grant a generation twice.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ether_types::{BootId, ClusterId, Fence, NodeId, Role, ScopeName, SessionId, TargetId, Timestamp};

use crate::bounds::{Capacity, Claims, Quota};
use crate::evidence::StoredEvidence;
use crate::sql::Unreadable;

/// A key that a decision needed and the shell had not loaded: a defect, never an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the {0} that a decision needs was not loaded")]
pub struct NotLoaded(pub(crate) &'static str);

/// The rows that were loaded, present or known to be absent.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Loaded<K: Ord, V> {
    what: &'static str,
    rows: BTreeMap<K, Option<V>>,
}

impl<K: Ord + Clone, V> Loaded<K, V> {
    /// No rows yet; `what` names them in a [`NotLoaded`].
    pub fn new(what: &'static str) -> Self {
        Self {
            what,
            rows: BTreeMap::new(),
        }
    }

    /// The row under `key`.
    ///
    /// # Errors
    /// [`NotLoaded`] where nobody asked the database for it.
    pub fn get(&self, key: &K) -> Result<Option<&V>, NotLoaded> {
        match self.rows.get(key) {
            Some(row) => Ok(row.as_ref()),
            None => Err(NotLoaded(self.what)),
        }
    }

    /// Records a row, or that there is none.
    pub fn set(&mut self, key: K, row: Option<V>) {
        self.rows.insert(key, row);
    }

    /// The rows that are present.
    pub fn present(&self) -> impl Iterator<Item = (&K, &V)> {
        self.rows
            .iter()
            .filter_map(|(key, row)| row.as_ref().map(|row| (key, row)))
    }
}

/// One session: its live assignment, or the tombstone of its last one (P16).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Session {
    /// The assignment's full identity; its generation is the floor below which nothing acts again.
    pub fence: Fence,
    /// SHA-256 over the reserving request, in hexadecimal.
    pub request: String,
    /// What was claimed. History once the session is retired.
    pub claims: Claims,
    /// The deadline that the reservation gave.
    pub initial_deadline: Timestamp,
    /// The deadline now.
    pub deadline: Timestamp,
    /// Whether its ending was proved and its claims released.
    pub retired: bool,
}

/// How often the policy of a pool or of a target was set: what whoever sets it next has to have seen, so that a
/// call that was long on its way undoes nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Revision(u64);

impl Revision {
    /// Of what was never set.
    pub const NONE: Revision = Revision(0);

    /// The `number`th revision.
    pub const fn new(number: u64) -> Self {
        Self(number)
    }

    /// Its number.
    pub const fn get(self) -> u64 {
        self.0
    }

    pub(crate) fn next(self) -> Option<Self> {
        self.0.checked_add(1).map(Self)
    }
}

/// One scope's budget for one role.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pool {
    /// Units that may be in use.
    pub capacity: Capacity,
    /// Units of all unretired claims. Over `capacity` only after that was lowered.
    pub used: u64,
    /// How often its capacity was set.
    pub revision: Revision,
}

/// What an incarnation of a target admits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Target {
    /// The incarnation that admits new work.
    pub boot: BootId,
    /// For each enabled role the scopes that an assignment must claim; a role that is not here admits
    /// nothing.
    pub roles: BTreeMap<Role, BTreeSet<ScopeName>>,
    /// How often this target was set.
    pub revision: Revision,
}

/// What a coordinator published about itself (P18).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Coordinator {
    /// Its process start.
    pub boot: BootId,
    /// The newest placement schema it knows.
    pub schema: u64,
    /// Its quota.
    pub quota: u64,
    /// Its maximum lease.
    pub maximum_lease: Duration,
    /// Its transaction timeout.
    pub transaction_timeout: Duration,
    /// Its lock timeout.
    pub lock_timeout: Duration,
    /// Its verify timeout.
    pub verify_timeout: Duration,
    /// How far it lets the database's clock stand behind.
    pub clock_skew: Duration,
}

/// What every coordinator published.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Coordinators {
    /// By node.
    pub rows: BTreeMap<NodeId, Coordinator>,
    /// Rows of other nodes that the ledger cannot have written.
    pub unreadable: Vec<Unreadable>,
}

/// The one row about the ledger itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Meta {
    /// Which authority this is; `None` before the first coordinator.
    pub cluster: Option<ClusterId>,
    /// Raised by every transaction that changes anything.
    pub revision: u64,
    /// Session rows.
    pub total: u64,
    /// Session rows that are tombstones.
    pub retired: u64,
    /// The fleet's ceiling, once seeded.
    pub ceiling: Option<Quota>,
    /// The latest instant that the ledger acted on: nothing is ever judged at an earlier one, so that a clock
    /// that is stepped back revives no authority.
    pub clock: Timestamp,
    /// How often an operator has set `clock` back to what the database's clock said.
    pub epoch: u64,
}

/// What the deciding coordinator brings along.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Own {
    /// The cluster it belongs to.
    pub cluster: ClusterId,
    /// Its node.
    pub node: NodeId,
    /// What it publishes.
    pub published: Coordinator,
    /// Whether its quota is to be the fleet's ceiling.
    pub fleet: bool,
}

/// A snapshot, as far as the waiting commands need it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The deciding coordinator.
    pub own: Own,
    /// The ledger's own row.
    pub meta: Meta,
    /// Sessions by identity.
    pub sessions: Loaded<SessionId, Session>,
    /// Pools by scope and role.
    pub pools: Loaded<(ScopeName, Role), Pool>,
    /// Targets by identity.
    pub targets: Loaded<TargetId, Target>,
    /// All evidence about the generation that a session's row has, by session.
    pub evidence: Loaded<SessionId, Vec<StoredEvidence>>,
    /// Every coordinator; `None` where they were not loaded.
    pub coordinators: Option<Coordinators>,
    /// The unretired assignment whose deadline is the latest, if there is one; `None` where it was not loaded.
    pub lasting: Option<Option<(Fence, Timestamp)>>,
}

impl State {
    /// An empty snapshot for `own`.
    pub fn new(own: Own, meta: Meta) -> Self {
        Self {
            own,
            meta,
            sessions: Loaded::new("session"),
            pools: Loaded::new("pool"),
            targets: Loaded::new("target"),
            evidence: Loaded::new("evidence"),
            coordinators: None,
            lasting: None,
        }
    }

    pub(crate) fn all_coordinators(&self) -> Result<&Coordinators, NotLoaded> {
        self.coordinators
            .as_ref()
            .ok_or(NotLoaded("list of coordinators"))
    }

    pub(crate) fn lasting(&self) -> Result<Option<&(Fence, Timestamp)>, NotLoaded> {
        let lasting = self.lasting.as_ref();
        Ok(lasting.ok_or(NotLoaded("latest deadline"))?.as_ref())
    }
}

/// One changed row, whole: the shell writes it as it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// The ledger's own row.
    Meta(Meta),
    /// A session's row.
    Session(Box<Session>),
    /// A pool's row.
    Pool(ScopeName, Role, Pool),
    /// A target's row.
    Target(TargetId, Target),
    /// A coordinator's row, or its removal.
    Coordinator(NodeId, Option<Coordinator>),
    /// A new piece of evidence.
    Evidence(Box<StoredEvidence>),
    /// All evidence of a session is consumed.
    EvidenceConsumed(SessionId),
}

impl State {
    /// The snapshot after `changes`, for the next command of the same transaction.
    pub fn apply(&mut self, changes: &[Change]) {
        for change in changes {
            match change {
                Change::Meta(meta) => self.meta = meta.clone(),
                Change::Session(session) => {
                    let key = session.fence.session.clone();
                    self.sessions.set(key, Some((**session).clone()));
                    // Which deadline is the latest now, only the rows can tell.
                    self.lasting = None;
                }
                Change::Pool(scope, role, pool) => self.pools.set((scope.clone(), *role), Some(*pool)),
                Change::Target(target, row) => self.targets.set(target.clone(), Some(row.clone())),
                Change::Coordinator(node, row) => {
                    let all = &mut self.coordinators.get_or_insert_default().rows;
                    match row {
                        Some(row) => all.insert(node.clone(), row.clone()),
                        None => all.remove(node),
                    };
                }
                Change::Evidence(evidence) => {
                    let session = &evidence.fence.session;
                    let kept = self.evidence.get(session).ok().flatten();
                    let mut kept = kept.cloned().unwrap_or_default();
                    kept.push((**evidence).clone());
                    self.evidence.set(session.clone(), Some(kept));
                }
                Change::EvidenceConsumed(session) => self.evidence.set(session.clone(), None),
            }
        }
    }
}
