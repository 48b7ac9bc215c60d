//! Stories of the local encoder with real FFmpeg and real films.

mod endings;
mod film;
mod invariant;
mod plans;
mod stalls;
