//! Who is at the other end: mutual TLS between the boots of a cluster's nodes, and nothing else.
//!
//! Every node shows a certificate that names one boot of one node in one cluster ([`Member`]). Both sides of a
//! connection check the other's against the cluster's roots, and then know exactly which process start they talk
//! to; whoever connects says beforehand which one it must be. There is TLS 1.3 and no resumption, since a ticket
//! would stand in for the proof. No other crate builds a TLS configuration or reads a certificate.
//!
//! | fact | who says so | a stale holder may |
//! | --- | --- | --- |
//! | which boot a certificate names | the [`Authority`] that signed it | show it until it expires |
//! | which roots are trusted | the [`Credentials`] that were published last | finish its connections |
//! | what may be presented | [`Published`], after [`Credentials::validate`] | nothing new |

mod authority;
mod certificate;
mod credentials;
mod member;
mod published;

pub use authority::{Authority, AuthorityError, Issue, IssueError, Issued, Lifetime};
pub use credentials::{Credentials, InvalidCredentials};
pub use member::{Member, NotAMember};
pub use published::{HANDSHAKE, HandshakeError, PublishError, Published, Secured};

#[cfg(test)]
mod tests;
