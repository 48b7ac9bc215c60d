//! HTTP between two boots, over nothing but mutual TLS.
//!
//! [`Listener`] serves a router to whoever proves to be a boot of the cluster, and tells each request who asks
//! ([`Caller`]). [`Dialer`] sends requests to the one boot that is meant: it follows no redirect, knows no proxy,
//! repeats nothing that may have arrived, and keeps no connection past the certificates that it began with. What is
//! said in a request or an answer, other than media, is one bounded [`message`].
//!
//! | fact | who says so | a stale holder may |
//! | --- | --- | --- |
//! | who asks | the certificate of the connection | begin no request once it is over |
//! | what an answer is worth | the boot that was dialled | nothing: another boot is another peer |
//! | whether a request arrived | its answer alone ([`SendError::may_have_arrived`]) | – |

mod dialer;
mod doorway;
mod listener;
pub mod message;
mod socket;
#[cfg(test)]
mod tests;

pub use dialer::{Dialer, DialerLimits, Peer, PeerBody, SendError};
pub use listener::{Caller, Listener, ListenerLimits, ListenerReport};
pub use socket::{WINDOW, bind};
