//! The words of a grant.

use std::fmt;
use std::time::Duration;

use ether_encoder::Revision;
use ether_tls::Member;
use ether_types::id::random_hex;
use ether_types::{FenceHash, Generation, ItemId, Monotonic, OperationId, SessionId, Timestamp};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// A moment by both of a node's clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instant {
    /// The wall clock, which others' deadlines are written in.
    pub wall: Timestamp,
    /// The process's own clock, which nobody can set back.
    pub monotonic: Monotonic,
}

/// The stable name of a grant, under which everything about it is asked. It opens nothing by itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Handle(String);

/// A text that is no handle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a grant's handle has 32 lower-case hexadecimal digits")]
pub struct NotAHandle;

impl TryFrom<String> for Handle {
    type Error = NotAHandle;

    fn try_from(text: String) -> Result<Self, NotAHandle> {
        Self::parse(&text).ok_or(NotAHandle)
    }
}

impl From<Handle> for String {
    fn from(handle: Handle) -> Self {
        handle.0
    }
}

impl Handle {
    /// A fresh handle of 128 random bits.
    ///
    /// # Errors
    /// The operating system's generator is not available.
    pub fn random() -> Result<Self, getrandom::Error> {
        random_hex().map(Self)
    }

    /// A handle as it came in a message: 32 lower-case hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let digit = |b: u8| b.is_ascii_digit() || (b'a'..=b'f').contains(&b);
        (text.len() == 32 && text.bytes().all(digit)).then(|| Self(text.to_owned()))
    }

    /// The handle as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// A secret that lets the worker's boot read for a while. It is shown by nothing but [`Bearer::expose`].
#[derive(Clone)]
pub struct Bearer(String);

impl Bearer {
    /// A fresh bearer of 256 random bits.
    ///
    /// # Errors
    /// The operating system's generator is not available.
    pub fn random() -> Result<Self, getrandom::Error> {
        Ok(Self(random_hex()? + &random_hex()?))
    }

    /// A bearer as it came in a request; any text, since only its hash is compared.
    pub fn of(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// The text, for the request that carries it and for nothing else.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// What an owner keeps of it.
    pub fn hash(&self) -> BearerHash {
        BearerHash(Sha256::digest(self.0.as_bytes()).into())
    }
}

impl fmt::Debug for Bearer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Bearer(…)")
    }
}

/// SHA-256 of a bearer.
#[derive(Clone, Copy)]
pub struct BearerHash([u8; 32]);

impl BearerHash {
    pub(crate) fn is(&self, other: &Self) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl fmt::Debug for BearerHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerHash(…)")
    }
}

/// What a grant is asked for (S1). Equal terms are one request, however often it comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The controller's idempotency key.
    pub operation: OperationId,
    /// The logical session of the assignment that the bytes are for.
    pub session: SessionId,
    /// Its generation.
    pub generation: Generation,
    /// The assignment's whole fence.
    pub fence: FenceHash,
    /// Who asks.
    pub controller: Member,
    /// Who may read.
    pub worker: Member,
    /// Which film.
    pub item: ItemId,
    /// The state of its file that the plan was made from.
    pub revision: Revision,
    /// Until when.
    pub until: Timestamp,
}

/// Bounds of an owner's book.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Grants and sealed operations of a boot together; none is ever forgotten.
    pub records: usize,
    /// Grants that are not proved ended.
    pub open: usize,
    /// Answers at once on one grant: FFmpeg reads in one place and looks in another.
    pub readers: u32,
    /// The longest that a deadline may lie ahead.
    pub lease: Duration,
    /// How long a bearer counts.
    pub bearer: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            records: 65_536,
            open: 1_024,
            readers: 8,
            lease: Duration::from_secs(600),
            bearer: Duration::from_secs(300),
        }
    }
}

/// Why there is no grant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrepareError {
    /// The operation was used with other terms.
    #[error("the operation was used for another preparation")]
    Conflict,
    /// The operation was retired before it came.
    #[error("the operation was retired before it came")]
    Barred,
    /// The deadline is over, or further ahead than a lease may last.
    #[error("the deadline must be within {} seconds from now", most.as_secs())]
    Deadline {
        /// The longest lease.
        most: Duration,
    },
    /// The owner's records of this boot are full.
    #[error("the owner's {limit} records of this boot are used up")]
    Records {
        /// The bound.
        limit: usize,
    },
    /// Too many grants are open.
    #[error("{limit} grants are open, which is as many as may be")]
    Open {
        /// The bound.
        limit: usize,
    },
}

/// Why a command about a grant, or a read, is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Denied {
    /// There is no such grant for whoever asks: nobody learns of others' grants.
    #[error("there is no such grant")]
    NoSuchGrant,
    /// The file is not open yet.
    #[error("the source is still being opened")]
    Opening,
    /// The bearer counts no more, or never did.
    #[error("the bearer does not count")]
    Bearer,
    /// The grant has ended.
    #[error("the grant has ended")]
    Sealed,
    /// Its deadline is over.
    #[error("the grant's deadline is over")]
    Expired,
    /// It has as many readers as it may have.
    #[error("the grant has {limit} readers, which is as many as it may have")]
    Readers {
        /// The bound.
        limit: u32,
    },
}

/// A worker's wish to read for longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extension {
    /// One more than the version that it follows; the first is 1.
    pub version: u64,
    /// The deadline that it follows.
    pub previous: Timestamp,
    /// The deadline that is wished for.
    pub until: Timestamp,
}

/// What an extension came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Extended {
    /// The version that holds now.
    pub version: u64,
    /// The deadline that holds now.
    pub until: Timestamp,
}

/// Why a deadline stays where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExtendError {
    /// Whoever asks may not.
    #[error(transparent)]
    Denied(#[from] Denied),
    /// Another extension came first; this is what holds.
    #[error("version {} until {} holds", .0.version, .0.until)]
    Conflict(Extended),
    /// The new deadline is not later, or further ahead than a lease may last.
    #[error("the deadline must be later than {previous} and within {} seconds from now", most.as_secs())]
    Deadline {
        /// The deadline that holds.
        previous: Timestamp,
        /// The longest lease.
        most: Duration,
    },
}

/// Proof that nobody reads under a grant, or ever will (S5). Only a [`crate::Book`] makes one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReaderProof {
    pub(crate) operation: OperationId,
    pub(crate) fence: FenceHash,
    pub(crate) answers: u64,
}

impl ReaderProof {
    /// The operation that the grant came of.
    pub fn operation(&self) -> &OperationId {
        &self.operation
    }

    /// The assignment.
    pub fn fence(&self) -> FenceHash {
        self.fence
    }

    /// How many answers there were, all of them joined; none where the operation never made a grant.
    pub fn answers(&self) -> u64 {
        self.answers
    }
}

/// How far a retirement is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RetireAnswer {
    /// Sealed; so many readers, or the opening of the file, have not ended.
    Pending {
        /// Answers that are still being sent.
        readers: u32,
    },
    /// Ended.
    Proved(ReaderProof),
}
