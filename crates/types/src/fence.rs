//! The fence: every identity that must match before anything acts (D3).

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::id::{BootId, ClusterId, NodeId, OperationId, SessionId, TargetId};
use crate::role::Role;

mod wire;

pub use wire::{ExecutionId, FenceHash, FenceRef, InvalidFenceHash};

/// Durable counter of a session's assignments. Zero means never assigned; the first assignment is one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Generation(u64);

/// A number that is no generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a generation is 0 to 9223372036854775807, not {0}")]
pub struct InvalidGeneration(pub u64);

impl TryFrom<u64> for Generation {
    type Error = InvalidGeneration;
    fn try_from(value: u64) -> Result<Self, InvalidGeneration> {
        Self::new(value).ok_or(InvalidGeneration(value))
    }
}

impl From<Generation> for u64 {
    fn from(generation: Generation) -> u64 {
        generation.0
    }
}

impl Generation {
    /// The state of a session that was never assigned.
    pub const NEVER: Generation = Generation(0);
    /// The largest generation that a database's signed 64-bit column holds.
    pub const MAX: Generation = Generation(i64::MAX as u64);

    /// Generation `value`, or `None` past [`Generation::MAX`].
    pub const fn new(value: u64) -> Option<Self> {
        if value <= Self::MAX.0 {
            Some(Self(value))
        } else {
            None
        }
    }

    /// The number itself.
    pub const fn get(self) -> u64 {
        self.0
    }

    /// The generation after this one, or `None` at the end of the range.
    pub const fn next(self) -> Option<Self> {
        Self::new(self.0.saturating_add(1))
    }
}

impl std::fmt::Display for Generation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// One assignment's complete identity. Two fences are the same authority only when every field is equal.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fence {
    /// The shared authority that issued the assignment.
    pub cluster: ClusterId,
    /// The reusable slot that is assigned.
    pub session: SessionId,
    /// Which assignment of that slot this is; never [`Generation::NEVER`].
    #[serde(deserialize_with = "assigned")]
    pub generation: Generation,
    /// The node whose broker owns the session.
    pub controller_node: NodeId,
    /// The boot of that node which reserved it.
    pub controller_boot: BootId,
    /// The encoding device that the capacity was taken from.
    pub target: TargetId,
    /// The boot of the node that owns the device.
    pub target_boot: BootId,
    /// The role that the capacity was taken for.
    pub role: Role,
    /// The idempotency key under which it was reserved.
    pub operation: OperationId,
}

/// A generation that was granted; none is before the first.
fn assigned<'de, D: Deserializer<'de>>(from: D) -> Result<Generation, D::Error> {
    let generation = Generation::deserialize(from)?;
    match generation == Generation::NEVER {
        true => Err(D::Error::custom(
            "the generation of a fence is 1 to 9223372036854775807, not 0",
        )),
        false => Ok(generation),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generations_stop_at_the_end_of_the_database_column() {
        assert_eq!(Generation::NEVER.next(), Generation::new(1));
        assert_eq!(Generation::MAX.next(), None);
        assert_eq!(Generation::new(u64::MAX), None);
        let past = serde_json::from_str::<Generation>("9223372036854775808").unwrap_err();
        assert!(past.to_string().contains("0 to 9223372036854775807"), "{past}");
        assert_eq!(
            serde_json::from_str::<Generation>("7").unwrap(),
            Generation::new(7).unwrap()
        );
    }

    #[test]
    fn a_fence_names_a_generation_that_was_granted() {
        let text = |generation: u64| {
            format!(
                "{{\"cluster\":\"c\",\"session\":\"a/0\",\"generation\":{generation},\"controllerNode\":\"a\",\
                 \"controllerBoot\":\"a1\",\"target\":\"w/cpu\",\"targetBoot\":\"w1\",\"role\":\"transcode\",\
                 \"operation\":\"o\"}}"
            )
        };
        assert!(serde_json::from_str::<Fence>(&text(1)).is_ok());
        let never = serde_json::from_str::<Fence>(&text(0)).unwrap_err().to_string();
        assert!(never.contains("1 to 9223372036854775807"), "{never}");
    }
}
