//! Playbacks: who may watch what, how it is sent to them, and the public HTTP surface.
//!
//! [`Playbacks`] owns every playback; each is one task that drives a pure state machine and owns the encoder
//! that runs for it until its end is proved. [`http`] is the surface that browsers and players see. What is
//! needed from the rest of a node comes in through [`ports`].

mod assets;
pub mod auth;
pub mod capacity;
pub mod cost;
pub mod grant;
pub mod http;
pub mod language;
mod lifecycle;
pub mod mpd;
pub mod part;
pub mod plan;
pub mod playback;
pub mod playbacks;
pub mod playlist;
pub mod ports;
pub mod presentation;
#[cfg(test)]
mod testing;
mod texts;
mod works;

pub use auth::{Auth, Principal};
pub use capacity::LocalCapacity;
pub use grant::{GrantKey, GrantKeys};
pub use lifecycle::{EndReason, LifeLimits, ViewerState};
pub use playback::{MediaError, Playback};
pub use playbacks::{CreateError, Limits, NewPlayback, Playbacks, ShutdownReport};
