//! One film's bytes on their way from the node that has them to the node that encodes them.
//!
//! The source owner grants one boot of another node one revision of one file, for one assignment and for a time
//! ([docs/contracts/source.md](../../../docs/contracts/source.md)). It proves, separately from the encoder, that
//! nobody reads any more. The policy is [`Book`], which is pure: it has neither files nor sockets nor a clock; [`Owner`]
//! gives it those, and speaks [`wire`] on the private listener. On the worker a [`Gateway`] stands between the grant
//! and FFmpeg; controllers and workers ask through an [`OwnerClient`].

mod book;
mod client;
mod gateway;
mod grant;
mod owner;
pub mod wire;

pub use book::{Book, Opening, Prepared, Reading, SealedBy};
pub use client::{AskError, OwnerClient};
pub use gateway::{Gateway, GatewayInput, GatewayLimits, Granted, InputFailure, InputProof, OpenInputError};
pub use grant::{
    Bearer, BearerHash, Denied, ExtendError, Extended, Extension, Handle, Instant, Limits, NotAHandle,
    PrepareError, ReaderProof, RetireAnswer, Terms,
};
pub use owner::{Assignments, Films, NotLive, Owner};

#[cfg(test)]
mod tests;
