//! What is said between a source owner and those who read from it: version 1.
//!
//! Every message is JSON of at most 64 KiB, with no field that is not named here (variants without fields have braces:
//! only then does the decoder refuse others). An outcome that somebody acts on is
//! an answer and not a status: statuses are for what was not understood, not allowed, or not reached.

use std::time::Duration;

use ether_encoder::Revision;
use ether_tls::Member;
use ether_types::{BootId, FenceHash, Generation, ItemId, NodeId, OperationId, SessionId, Timestamp};
use serde::{Deserialize, Serialize, Serializer};

use crate::book::SealedBy;
use crate::grant::{Bearer, Denied, Extended, Handle};

/// Where version 1 begins.
pub const PREFIX: &str = "/ether/source/v1";

/// A boot of the cluster that the connection belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Boot {
    /// Its node.
    pub node: NodeId,
    /// Its process start.
    pub boot: BootId,
}

impl Boot {
    /// As whoever shares `known`'s cluster knows it.
    pub fn in_the_cluster_of(self, known: &Member) -> Member {
        Member {
            cluster: known.cluster.clone(),
            node: self.node,
            boot: self.boot,
        }
    }
}

impl From<&Member> for Boot {
    fn from(member: &Member) -> Self {
        Self {
            node: member.node.clone(),
            boot: member.boot.clone(),
        }
    }
}

/// A controller asks for a grant: `POST /grants`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Prepare {
    /// The idempotency key.
    pub operation: OperationId,
    /// The assignment's session.
    pub session: SessionId,
    /// The assignment's generation.
    pub generation: Generation,
    /// The assignment's whole fence.
    pub fence: FenceHash,
    /// Who may read.
    pub worker: Boot,
    /// Which film.
    pub item: ItemId,
    /// The state of its file.
    pub revision: Revision,
    /// Until when, in microseconds since 1970.
    pub until: Timestamp,
}

/// The answer to [`Prepare`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "outcome",
    rename_all = "kebab-case",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
pub enum PrepareAnswer {
    /// The grant holds.
    Granted {
        /// Its name.
        handle: Handle,
        /// What holds.
        held: Extended,
    },
    /// The file is still being opened; the same request asks again.
    Opening {
        /// The grant's name.
        handle: Handle,
    },
    /// There is no file to read; the grant has ended.
    NotOpened {
        /// Why.
        why: NotOpened,
    },
    /// The grant has ended.
    Ended {
        /// By whom.
        by: SealedBy,
    },
    /// The operation was used for another preparation.
    Conflict {},
    /// The operation was retired before it came.
    Barred {},
    /// The deadline is over or too far ahead.
    Deadline {
        /// The longest lease, in milliseconds.
        most_millis: u64,
    },
    /// The owner takes no more, of its records or of open grants.
    Full {
        /// The bound.
        limit: u64,
        /// Whether it is the bound of what is open, which passes; records are used up until the owner restarts.
        passes: bool,
    },
    /// The ledger knows of no such live assignment.
    NotAssigned {},
    /// The ledger cannot be asked just now.
    Unavailable {},
}

/// Why a file was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "kebab-case")]
pub enum NotOpened {
    /// There is no such item here.
    #[error("the owner has no such item")]
    NoItem,
    /// Its file is in another state than the promised one.
    #[error("the file has changed")]
    Changed,
    /// It cannot be read now: an unmounted folder, or missing rights.
    #[error("the file cannot be read now")]
    Unreadable,
}

/// A worker asks for a bearer: `POST /grants/<handle>/bearers`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Admit {
    /// The assignment's whole fence.
    pub fence: FenceHash,
}

/// The answer to [`Admit`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(
    tag = "outcome",
    rename_all = "kebab-case",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
pub enum AdmitAnswer {
    /// The bearer counts now.
    Admitted {
        /// What a read shows.
        #[serde(serialize_with = "exposed")]
        bearer: Bearer,
        /// For how long it counts, in milliseconds.
        lasts_millis: u64,
    },
    /// None was given.
    Denied {
        /// Why.
        why: Denied,
    },
}

/// A worker asks to read for longer: `POST /grants/<handle>/deadline`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Extend {
    /// The assignment's whole fence.
    pub fence: FenceHash,
    /// One more than the version that it follows.
    pub version: u64,
    /// The deadline that it follows.
    pub previous: Timestamp,
    /// The deadline that is wished for.
    pub until: Timestamp,
}

/// The answer to [`Extend`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "outcome",
    rename_all = "kebab-case",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
pub enum ExtendAnswer {
    /// This holds.
    Extended {
        /// What holds.
        held: Extended,
    },
    /// Another extension came first.
    Conflict {
        /// What holds.
        held: Extended,
    },
    /// The deadline is not later, or too far ahead.
    Deadline {
        /// The deadline that holds.
        previous: Timestamp,
        /// The longest lease, in milliseconds.
        most_millis: u64,
    },
    /// Whoever asks may not.
    Denied {
        /// Why.
        why: Denied,
    },
    /// The ledger knows of no such live assignment.
    NotAssigned {},
    /// The ledger cannot be asked just now.
    Unavailable {},
}

/// A controller or worker asks for the end, and for its proof: `POST /retirements`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Retire {
    /// The operation that made the grant, or never will.
    pub operation: OperationId,
    /// The assignment's whole fence.
    pub fence: FenceHash,
}

/// The answer to [`Retire`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "outcome",
    rename_all = "kebab-case",
    rename_all_fields = "camelCase",
    deny_unknown_fields
)]
pub enum RetirementAnswer {
    /// Sealed; not all have ended.
    Pending {
        /// Answers that are still being sent.
        readers: u32,
    },
    /// Nobody reads, and nobody will.
    Proved {
        /// Answers that there were, all joined.
        answers: u64,
    },
    /// Whoever asks has no part in it, or the owner has no room to bar what never came.
    Unknown {},
}

pub(crate) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// The one place where a bearer is written down: the answer to the worker that it is for.
fn exposed<S: Serializer>(bearer: &Bearer, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(bearer.expose())
}

impl<'de> Deserialize<'de> for Bearer {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        if (16..=256).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Ok(Self::of(&text));
        }
        // Its text stays out of the error.
        Err(serde::de::Error::custom(
            "a bearer has 16 to 256 letters and digits",
        ))
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::*;

    /// Version 1 as it was first spoken: one message a line, in the order of this file.
    const GOLDEN: &str = include_str!("wire/golden.txt");

    /// Reads a line as `T`, writes it again as it was, and refuses it with one field more.
    fn speaks<T: Serialize + DeserializeOwned>(line: &str) {
        let message: T = serde_json::from_str(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        assert_eq!(serde_json::to_string(&message).unwrap(), line);
        let more = line.replacen('{', "{\"more\":1,", 1).replace(",}", "}");
        assert!(serde_json::from_str::<T>(&more).is_err(), "{more}");
    }

    #[test]
    fn version_1_is_what_it_was_and_knows_no_other_field() {
        for (n, line) in GOLDEN.lines().enumerate() {
            match n {
                0 => speaks::<Prepare>(line),
                1..=15 => speaks::<PrepareAnswer>(line),
                16 => speaks::<Admit>(line),
                17..=19 => speaks::<AdmitAnswer>(line),
                20 => speaks::<Extend>(line),
                21..=26 => speaks::<ExtendAnswer>(line),
                27 => speaks::<Retire>(line),
                _ => speaks::<RetirementAnswer>(line),
            }
        }
        assert_eq!(GOLDEN.lines().count(), 31);
    }

    #[test]
    fn what_leaves_its_bounds_is_not_read_and_no_bearer_is_quoted() {
        let first = GOLDEN.lines().next().unwrap();
        for (from, to) in [
            ("\"op-1\"", "\"op 1\""),
            ("\"front/3\"", "\"front/03\""),
            ("\"generation\":7", "\"generation\":18446744073709551615"),
            ("0001020304", "000102030G"),
            ("\"item\":\"film\"", "\"item\":\"../film\""),
            ("\"size\":9", "\"size\":-9"),
            ("1700000000000000", "1.7e15"),
        ] {
            let wrong = first.replacen(from, to, 1);
            assert_ne!(wrong, first);
            assert!(serde_json::from_str::<Prepare>(&wrong).is_err(), "{wrong}");
        }
        let admitted = GOLDEN.lines().nth(17).unwrap();
        let long = admitted.replace(&"b".repeat(32), &"s".repeat(300));
        let error = serde_json::from_str::<AdmitAnswer>(&long)
            .unwrap_err()
            .to_string();
        assert!(error.contains("16 to 256") && !error.contains("sss"), "{error}");
        let good: AdmitAnswer = serde_json::from_str(admitted).unwrap();
        assert!(!format!("{good:?}").contains("bbb"));
    }
}
