//! Stories of the local encoder with real FFmpeg and real films.

mod film;
mod invariant;
