//! What can be asked of the ledger, each request bounded before it gets near a database (P21).

use std::collections::{BTreeMap, BTreeSet};

use ether_types::{
    BootId, ClusterId, Fence, Generation, NodeId, OperationId, Role, ScopeName, SessionId, TargetId,
    Timestamp,
};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use sha2::{Digest, Sha256};

use crate::bounds::{Capacity, Claims, EvidenceBody, Invalid, Lease, Quota, whole};
use crate::evidence::{Author, EvidenceKind, node_of};
use crate::state::Revision;

/// One request, as the decision sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Command {
    /// Persist a pool's capacity (P4).
    SetPool(SetPool),
    /// Persist what a target admits (P5).
    SetTarget(SetTarget),
    /// Take capacity for a new generation (P6 to P8).
    Reserve(ReserveRequest),
    /// Move a deadline forward (P9).
    Renew {
        /// The assignment.
        fence: Fence,
        /// The new deadline; see [`check_deadline`].
        deadline: Timestamp,
    },
    /// Read one session (P10).
    Lookup {
        /// Which.
        session: SessionId,
    },
    /// Release what an assignment holds, once its ending has been proved (P13).
    Retire {
        /// The assignment.
        fence: Fence,
    },
    /// Keep a piece of terminal evidence (P26).
    Record {
        /// The assignment it is about.
        fence: Fence,
        /// Who wrote it.
        author: Author,
        /// What it claims.
        kind: EvidenceKind,
        /// Its text.
        body: EvidenceBody,
    },
    /// Publish this coordinator, and seed or verify the fleet's ceiling (P18).
    Join {
        /// Whether another boot of this node gives way: the ledger was just opened by this one.
        takes_over: bool,
    },
    /// Take back what a coordinator published, once membership knows that it is gone.
    Withdraw {
        /// Its node.
        node: NodeId,
        /// The boot that is gone; a later one stays.
        boot: BootId,
    },
    /// Raise the fleet's ceiling (P19).
    Raise {
        /// The ceiling that the caller saw.
        expect: Quota,
        /// The new one.
        capacity: Quota,
    },
    /// Go by the database's clock again, after it was ahead and has been set right.
    Rebase {
        /// The epoch of the clock that the caller saw.
        epoch: u64,
    },
}

/// See [`Command::SetPool`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SetPool {
    /// The physical budget.
    pub scope: ScopeName,
    /// The role it is for.
    pub role: Role,
    /// Units from now on. Below the used ones it only denies new work.
    pub capacity: Capacity,
    /// The revision of the pool that the caller saw; [`Revision::NONE`] where it saw none. Whoever sets what
    /// stands already need not have seen it.
    pub seen: Revision,
}

/// For each enabled role its 1 to 16 distinct scopes. No role: no admission.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Admission(BTreeMap<Role, BTreeSet<ScopeName>>);

impl Admission {
    /// Accepts each role once, with 1 to 16 distinct scopes.
    ///
    /// # Errors
    /// [`Invalid`] for a role without scopes, with too many, with one twice, or named twice.
    pub fn new(roles: impl IntoIterator<Item = (Role, Vec<ScopeName>)>) -> Result<Self, Invalid> {
        let mut admission = BTreeMap::new();
        for (role, scopes) in roles {
            if !(1..=Claims::MAX).contains(&scopes.len()) {
                return Err(Invalid::new("scopes of a role", "1 to 16 scopes", scopes.len()));
            }
            let named = scopes.len();
            let scopes: BTreeSet<_> = scopes.into_iter().collect();
            if scopes.len() != named {
                return Err(Invalid::new("scopes of a role", "distinct scopes", role));
            }
            if admission.insert(role, scopes).is_some() {
                return Err(Invalid::new("roles of a target", "distinct roles", role));
            }
        }
        Ok(Self(admission))
    }

    /// The scopes by role.
    pub fn roles(&self) -> &BTreeMap<Role, BTreeSet<ScopeName>> {
        &self.0
    }
}

/// See [`Command::SetTarget`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SetTarget {
    /// The device.
    pub target: TargetId,
    /// The incarnation that is to admit work.
    pub boot: BootId,
    /// The incarnation that the caller saw; `None` where it saw no target.
    pub expected: Option<BootId>,
    /// The revision of that incarnation's policy that the caller saw; [`Revision::NONE`] where it saw no target.
    pub seen: Revision,
    /// What it admits.
    pub admission: Admission,
}

/// The fields of a reservation.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Reserve {
    /// The slot to assign.
    pub session: SessionId,
    /// The node whose slot it is.
    pub controller_node: NodeId,
    /// The reserving boot of that node.
    pub controller_boot: BootId,
    /// The device to use.
    pub target: TargetId,
    /// The incarnation of it that the caller means.
    pub target_boot: BootId,
    /// The role to use it in.
    #[serde(deserialize_with = "role")]
    pub role: Role,
    /// The idempotency key: one for each new generation, kept for every retry.
    pub operation: OperationId,
    /// The session's durable generation as the caller knows it; zero for one that was never used.
    #[serde(deserialize_with = "expected")]
    pub expected: Generation,
    /// Every scope of the target's role, and no other.
    pub claims: Claims,
    /// The first lease.
    pub lease: Lease,
}

/// A reservation whose fields fit together, with the digest that tells a retry from another request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ReserveRequest {
    reserve: Reserve,
    digest: String,
}

impl ReserveRequest {
    /// Accepts a reservation whose session is its controller's and whose generation has a successor.
    ///
    /// # Errors
    /// [`Invalid`] names the field and its range.
    pub fn new(reserve: Reserve) -> Result<Self, Invalid> {
        if reserve.session.controller() != &reserve.controller_node {
            return Err(Invalid::new(
                "session",
                "a slot of the controller node",
                &reserve.session,
            ));
        }
        check_target(&reserve.target)?;
        if reserve.expected.next().is_none() {
            return Err(Invalid::new("expected generation", EXPECTED, reserve.expected));
        }
        let digest = digest(&reserve);
        Ok(Self { reserve, digest })
    }

    /// The fields.
    pub fn reserve(&self) -> &Reserve {
        &self.reserve
    }

    /// SHA-256 over every field, the claims in one order, in hexadecimal.
    pub fn digest(&self) -> &str {
        &self.digest
    }

    /// The fence that granting this request creates.
    pub fn fence(&self, cluster: &ClusterId, generation: Generation) -> Fence {
        let r = &self.reserve;
        Fence {
            cluster: cluster.clone(),
            session: r.session.clone(),
            generation,
            controller_node: r.controller_node.clone(),
            controller_boot: r.controller_boot.clone(),
            target: r.target.clone(),
            target_boot: r.target_boot.clone(),
            role: r.role,
            operation: r.operation.clone(),
        }
    }
}

/// Accepts a target whose text begins with the node that it is a device of.
///
/// # Errors
/// [`Invalid`] names the form.
pub fn check_target(target: &TargetId) -> Result<(), Invalid> {
    match NodeId::new(node_of(target)) {
        Ok(_) => Ok(()),
        Err(_) => Err(Invalid::new("target", "<node> or <node>/<device>", target)),
    }
}

/// Accepts a fence that a reservation can have created: its generation is one or more.
///
/// # Errors
/// [`Invalid`] names the range.
pub fn check_fence(fence: &Fence) -> Result<(), Invalid> {
    if fence.generation == Generation::NEVER {
        return Err(Invalid::new(
            "generation of a fence",
            "1 to 9223372036854775807",
            fence.generation,
        ));
    }
    Ok(())
}

/// Accepts an instant as a deadline: after the epoch, so that no arithmetic on it can leave the range.
///
/// # Errors
/// [`Invalid`] names the range.
pub fn check_deadline(deadline: Timestamp) -> Result<Timestamp, Invalid> {
    const LAST: i64 = i64::MAX / 2;
    if (1..=LAST).contains(&deadline.as_micros()) {
        Ok(deadline)
    } else {
        Err(Invalid::new(
            "deadline",
            "1 to 4611686018427387903 us after the epoch",
            deadline.as_micros(),
        ))
    }
}

/// Checks that a clock epoch has a successor.
///
/// # Errors
/// [`Invalid`].
pub fn check_epoch(epoch: u64) -> Result<u64, Invalid> {
    if epoch < i64::MAX.unsigned_abs() {
        Ok(epoch)
    } else {
        Err(Invalid::new("clock epoch", "0 to 9223372036854775806", epoch))
    }
}

/// The generations that have a successor.
const EXPECTED: &str = "0 to 9223372036854775806";

fn expected<'de, D: Deserializer<'de>>(from: D) -> Result<Generation, D::Error> {
    let number = whole(from, "expected generation", EXPECTED)?;
    let generation = Generation::new(number).filter(|generation| generation.next().is_some());
    generation.ok_or_else(|| D::Error::custom(Invalid::new("expected generation", EXPECTED, number)))
}

fn role<'de, D: Deserializer<'de>>(from: D) -> Result<Role, D::Error> {
    let text = std::borrow::Cow::<'de, str>::deserialize(from)?;
    text.parse().map_err(D::Error::custom)
}

fn digest(reserve: &Reserve) -> String {
    let mut digest = Sha256::new();
    let mut field = |text: &str| {
        // Lengths stand before texts, so that two lists of fields never read alike.
        digest.update((text.len() as u64).to_be_bytes());
        digest.update(text.as_bytes());
    };
    field("ether placement reserve 1");
    field(&reserve.session.to_string());
    field(reserve.controller_node.as_str());
    field(reserve.controller_boot.as_str());
    field(reserve.target.as_str());
    field(reserve.target_boot.as_str());
    field(reserve.role.as_str());
    field(reserve.operation.as_str());
    field(&reserve.expected.to_string());
    field(&reserve.lease.get().as_micros().to_string());
    for (scope, units) in reserve.claims.iter() {
        field(scope.as_str());
        field(&units.to_string());
    }
    digest
        .finalize()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
