//! Stories of the local encoder with real FFmpeg and real films.

mod accepted;
mod burning;
mod colors;
mod configuration;
mod copied;
mod damaged;
mod endings;
pub(crate) mod film;
pub(crate) mod hardware;
mod invariant;
mod joined;
mod kept;
mod ladder;
mod pictures;
mod plans;
mod progressive;
mod screening;
mod seams;
mod sounds;
mod stalls;
