//! What a node is made of, joined: the composition roots and the adapters between crates of one floor.
//!
//! [`Standalone`] is a whole server on one machine. It reads as the order in which things come to be, and its
//! shutdown undoes them in reverse: nothing new is admitted, playbacks end with proof, the library rests, and
//! no child process is left.

mod data_dir;
pub mod doctor;
#[cfg(test)]
mod granted;
mod names;
mod ready;
mod shelf;
mod standalone;
mod texts;
mod tokens;

pub use data_dir::{DataDir, DataDirError, default_data_dir};
pub use ether_ffmpeg::HardwareWish;
pub use ready::ReadyLine;
pub use standalone::{Options, Standalone, StartError, Stopped};
