//! A fence on the wire (D3): the four identities by which both sides name an execution, and one hash of everything.
//!
//! A message need not repeat the nine fields, since whoever acts on it has the fence from the ledger and never from
//! the caller. It says which fence it means, so exactly that two which differ anywhere are never taken for each other.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Fence, Generation, assigned};
use crate::id::{BootId, SessionId};

/// What names one execution between a controller and a worker. No two assignments have the same: a boot is never used
/// again, and neither is a session's generation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExecutionId {
    /// The controller's boot that reserved it.
    pub controller_boot: BootId,
    /// The worker's boot that it was reserved on: the fence's target boot.
    pub worker_boot: BootId,
    /// The session that it is for.
    pub session: SessionId,
    /// Which of the session's assignments it is; never [`Generation::NEVER`].
    #[serde(deserialize_with = "assigned")]
    pub generation: Generation,
}

/// SHA-256 over all nine fields of a fence. It commits to the fence and proves nothing: whoever knows the fence can
/// compute it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FenceHash([u8; 32]);

/// A text that is not the hash of a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the hash of a fence has 64 digits, each 0 to 9 or a to f")]
pub struct InvalidFenceHash;

/// The fence that a message says it is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FenceRef {
    /// By what both sides name it.
    pub execution: ExecutionId,
    /// The hash of all of it.
    pub fence: FenceHash,
}

impl Fence {
    /// What names this assignment's execution.
    pub fn execution(&self) -> ExecutionId {
        ExecutionId {
            controller_boot: self.controller_boot.clone(),
            worker_boot: self.target_boot.clone(),
            session: self.session.clone(),
            generation: self.generation,
        }
    }

    /// What a message about this assignment says.
    pub fn reference(&self) -> FenceRef {
        FenceRef {
            execution: self.execution(),
            fence: FenceHash::of(self),
        }
    }
}

impl FenceRef {
    /// Whether the message means `held`, a fence that its receiver has from the ledger.
    pub fn is_of(&self, held: &Fence) -> bool {
        *self == held.reference()
    }
}

impl FenceHash {
    /// The hash of `fence`. Each field stands behind its length, so that no two fences read alike.
    pub fn of(fence: &Fence) -> Self {
        // A field that is added has to be added here.
        let Fence {
            cluster,
            session,
            generation,
            controller_node,
            controller_boot,
            target,
            target_boot,
            role,
            operation,
        } = fence;
        let mut hash = Sha256::new();
        hash.update(b"ether fence v1\0");
        for field in [
            cluster.as_str(),
            &session.to_string(),
            &generation.to_string(),
            controller_node.as_str(),
            controller_boot.as_str(),
            target.as_str(),
            target_boot.as_str(),
            role.as_str(),
            operation.as_str(),
        ] {
            hash.update((field.len() as u64).to_be_bytes());
            hash.update(field.as_bytes());
        }
        Self(hash.finalize().into())
    }

    /// The 32 bytes, for what is hashed over this in turn.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for FenceHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for FenceHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FenceHash({self})")
    }
}

impl FromStr for FenceHash {
    type Err = InvalidFenceHash;

    fn from_str(text: &str) -> Result<Self, InvalidFenceHash> {
        let digit = |byte: u8| match byte {
            b'0'..=b'9' => Ok(byte - b'0'),
            b'a'..=b'f' => Ok(byte - b'a' + 10),
            _ => Err(InvalidFenceHash),
        };
        let (pairs, rest) = text.as_bytes().as_chunks::<2>();
        let mut hash = [0; 32];
        if pairs.len() != hash.len() || !rest.is_empty() {
            return Err(InvalidFenceHash);
        }
        for (byte, [high, low]) in hash.iter_mut().zip(pairs) {
            *byte = digit(*high)? << 4 | digit(*low)?;
        }
        Ok(Self(hash))
    }
}

impl TryFrom<String> for FenceHash {
    type Error = InvalidFenceHash;
    fn try_from(text: String) -> Result<Self, InvalidFenceHash> {
        text.parse()
    }
}

impl From<FenceHash> for String {
    fn from(hash: FenceHash) -> String {
        hash.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::{ClusterId, NodeId, OperationId, TargetId};
    use crate::role::Role;

    fn fence() -> Fence {
        Fence {
            cluster: ClusterId::new("home").unwrap(),
            session: SessionId::new(NodeId::new("attic").unwrap(), 7),
            generation: Generation::new(3).unwrap(),
            controller_node: NodeId::new("attic").unwrap(),
            controller_boot: BootId::new("attic-1").unwrap(),
            target: TargetId::new("cellar/gpu0").unwrap(),
            target_boot: BootId::new("cellar-2").unwrap(),
            role: Role::Transcode,
            operation: OperationId::new("play-12").unwrap(),
        }
    }

    /// The fence with each of its fields changed in turn.
    fn others() -> Vec<Fence> {
        let boot = |text: &str| BootId::new(text).unwrap();
        let changes: [&dyn Fn(&mut Fence); 10] = [
            &|f| f.cluster = ClusterId::new("away").unwrap(),
            &|f| f.session = SessionId::new(NodeId::new("attic").unwrap(), 8),
            &|f| f.generation = Generation::new(4).unwrap(),
            &|f| f.controller_node = NodeId::new("attic2").unwrap(),
            &|f| f.controller_boot = boot("attic-2"),
            &|f| f.target = TargetId::new("cellar/gpu1").unwrap(),
            &|f| f.target_boot = boot("cellar-3"),
            &|f| f.role = Role::Delivery,
            &|f| f.operation = OperationId::new("play-13").unwrap(),
            // One letter moved over the border between two fields.
            &|f| {
                f.controller_node = NodeId::new("attica").unwrap();
                f.controller_boot = boot("ttic-1");
            },
        ];
        let changed = changes.map(|change| {
            let mut other = fence();
            change(&mut other);
            other
        });
        changed.into()
    }

    /// Both ends of a wire compute it, and they may be of different versions: these were computed by another program.
    #[test]
    fn the_hash_of_a_fence_is_the_same_for_ever() {
        assert_eq!(
            FenceHash::of(&fence()).to_string(),
            "0a7bf24b72f3e8d143dafdbee0c0774141a889f7775b81b97694bd144e61d1d3"
        );
        let least = Fence {
            cluster: ClusterId::new("c").unwrap(),
            session: SessionId::new(NodeId::new("a").unwrap(), 0),
            generation: Generation::new(1).unwrap(),
            controller_node: NodeId::new("a").unwrap(),
            controller_boot: BootId::new("a1").unwrap(),
            target: TargetId::new("w").unwrap(),
            target_boot: BootId::new("w1").unwrap(),
            role: Role::Source,
            operation: OperationId::new("o").unwrap(),
        };
        assert_eq!(
            FenceHash::of(&least).to_string(),
            "bb2d57f87104ae6d6b870d11b1e65b2cb9e2937549779bf7b7d4bb66632efc67"
        );
        let most = Fence {
            session: SessionId::new(NodeId::new("n".repeat(64)).unwrap(), u32::MAX),
            generation: Generation::MAX,
            operation: OperationId::new("o".repeat(128)).unwrap(),
            ..least
        };
        assert_eq!(
            FenceHash::of(&most).to_string(),
            "309c37ab4248225422db8762183292f13c11d6be3aa6296a1597d8008955afcf"
        );
    }

    #[test]
    fn a_reference_is_to_no_fence_that_differs_anywhere() {
        let named = fence().reference();
        assert!(named.is_of(&fence()));
        for other in others() {
            assert!(!named.is_of(&other), "{other:?}");
            assert_ne!(FenceHash::of(&other), named.fence, "{other:?}");
        }
        // The hash alone is not enough, nor are the four identities.
        let mixed = FenceRef {
            execution: others()[1].execution(),
            ..named
        };
        assert!(!mixed.is_of(&fence()) && !mixed.is_of(&others()[1]));
    }

    #[test]
    fn a_reference_has_one_form_on_the_wire() {
        let named = fence().reference();
        let form = serde_json::to_value(&named).unwrap();
        let wanted = serde_json::json!({
            "execution": {
                "controllerBoot": "attic-1",
                "workerBoot": "cellar-2",
                "session": "attic/7",
                "generation": 3,
            },
            "fence": named.fence.to_string(),
        });
        assert_eq!(form, wanted);
        assert_eq!(serde_json::from_value::<FenceRef>(form.clone()).unwrap(), named);

        let text = named.fence.to_string();
        let longer = format!("{text}0");
        for bad in [
            &text[..63],
            &longer,
            &text.to_uppercase(),
            &text.replace('0', "g"),
            "",
        ] {
            let mut form = form.clone();
            form["fence"] = bad.into();
            let error = serde_json::from_value::<FenceRef>(form).unwrap_err().to_string();
            assert!(error.contains("64 digits"), "{bad}: {error}");
        }
        let mut never = form.clone();
        never["execution"]["generation"] = 0.into();
        let error = serde_json::from_value::<FenceRef>(never).unwrap_err().to_string();
        assert!(error.contains("1 to 9223372036854775807"), "{error}");
        let mut more = form;
        more["execution"]["node"] = "attic".into();
        assert!(serde_json::from_value::<FenceRef>(more).is_err());
    }
}
