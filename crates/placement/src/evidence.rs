//! Terminal evidence as the ledger keeps it until a retirement consumes it (P26).
//!
//! The ledger does not judge it: it records who wrote what for which fence, once for each author, and hands
//! all of it to the retirement verifier. Nobody's piece stands in another author's way, so that a wrong one
//! costs nothing but its place.

use ether_types::{BootId, Fence, NodeId, TargetId, Timestamp};
use serde::{Deserialize, Serialize};

use crate::bounds::EvidenceBody;

/// The kinds of proof that end an assignment (D4). There are no others: neither time nor silence is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EvidenceKind {
    /// The process was reaped, its pipes are at their end and every input is joined.
    Reaped,
    /// A stop was recorded before any start: a permanent barrier.
    Barrier,
    /// An operator attested that the host is fenced. It comes with the retirement itself and is never
    /// recorded ahead of it.
    Attested,
    /// The start was sealed, or came back with the proof that no process was spawned.
    NeverSpawned,
    /// The node's next boot proved that the old one's processes are gone.
    Succeeded,
}

impl EvidenceKind {
    /// Every kind.
    pub const ALL: [EvidenceKind; 5] = [
        EvidenceKind::Reaped,
        EvidenceKind::Barrier,
        EvidenceKind::Attested,
        EvidenceKind::NeverSpawned,
        EvidenceKind::Succeeded,
    ];

    /// The kind's one spelling.
    pub const fn as_str(self) -> &'static str {
        match self {
            EvidenceKind::Reaped => "reaped",
            EvidenceKind::Barrier => "barrier",
            EvidenceKind::Attested => "attested",
            EvidenceKind::NeverSpawned => "never-spawned",
            EvidenceKind::Succeeded => "succeeded",
        }
    }

    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }
}

/// Who wrote a piece of evidence. The caller has authenticated it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Author {
    /// The target: the fence's own boot of it, or the boot that has taken its place.
    Target {
        /// The writing process start.
        boot: BootId,
    },
    /// The owner of the source that the execution read; which one that is, the grant says and not the ledger.
    Source {
        /// The owner's node.
        node: NodeId,
        /// The writing process start.
        boot: BootId,
    },
}

impl Author {
    pub(crate) const fn part(&self) -> &'static str {
        match self {
            Author::Target { .. } => "target",
            Author::Source { .. } => "source",
        }
    }

    /// The writing process start.
    pub fn boot(&self) -> &BootId {
        match self {
            Author::Target { boot } | Author::Source { boot, .. } => boot,
        }
    }

    /// The author's node, where `target` is the target of the fence that it writes about.
    pub(crate) fn node<'a>(&'a self, target: &'a TargetId) -> &'a str {
        match self {
            Author::Target { .. } => node_of(target),
            Author::Source { node, .. } => node.as_str(),
        }
    }
}

/// The node whose device a target is: what stands before the first slash (D18).
pub(crate) fn node_of(target: &TargetId) -> &str {
    let text = target.as_str();
    text.split_once('/').map_or(text, |(node, _)| node)
}

/// Pieces that boots of one node may write about one assignment, as its target or as a source.
pub const PIECES_OF_NODE: usize = 8;
/// Pieces that are kept about one assignment in all.
pub const PIECES: usize = 64;

/// One recorded piece of evidence.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct StoredEvidence {
    /// The assignment that it is about.
    pub fence: Fence,
    /// Who wrote it.
    pub author: Author,
    /// What it claims.
    pub kind: EvidenceKind,
    /// Its text.
    pub body: EvidenceBody,
    /// When it was recorded, by the database's clock.
    pub at: Timestamp,
}
