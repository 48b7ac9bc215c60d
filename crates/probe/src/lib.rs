//! Finds out what a file is: natively where its container is known, with `ffprobe` where it is not or where
//! something is missing (S6); and makes the library's pictures with FFmpeg.
//!
//! No program gets a file's name. `ffprobe` and FFmpeg read the one file that was already opened, through a
//! server of our own on the loopback address under an unguessable path, with the formats and protocols that
//! could lead them anywhere else switched off.

mod error;
mod ffprobe;
mod json;
mod merge;
mod picture;
mod prober;
mod run;
mod server;
#[cfg(test)]
mod tests;

pub use error::{NotMedia, PictureError, ProbeError};
pub use prober::{Prober, ProberOptions};
