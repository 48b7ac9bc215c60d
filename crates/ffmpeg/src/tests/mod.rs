//! Stories of the local encoder with real FFmpeg and real films.

mod endings;
mod film;
mod invariant;
mod kept;
mod ladder;
mod plans;
mod stalls;
