//! One film's bytes on their way from the node that has them to the node that encodes them.
//!
//! The source owner grants one boot of another node one revision of one file, for one assignment and for a time
//! ([docs/contracts/source.md](../../../docs/contracts/source.md)). It proves, separately from the encoder, that
//! nobody reads any more. The policy is [`Book`], which is pure: it has neither files nor sockets nor a clock.

mod book;
mod grant;

pub use book::{Book, Opening, Prepared, Reading, SealedBy};
pub use grant::{
    Bearer, BearerHash, Denied, ExtendError, Extended, Extension, Handle, Instant, Limits, PrepareError,
    ReaderProof, RetireAnswer, Terms,
};
