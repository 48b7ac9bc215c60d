//! The local encoder: FFmpeg makes packets, ether cuts and stamps them.
//!
//! FFmpeg writes fragmented MP4 to a pipe. `plan` says with which arguments, `reader` cuts the packets into
//! segments by the rules of `segmenter`, `fragment`, `init` and `ts` write them out, `scratch` holds them
//! within what was booked, and `supervisor` starts and ends the processes. Segments come out the same whoever
//! makes them and wherever a run starts, which FFmpeg's own segmenters do not give after a seek. `subtitles`
//! reads text tracks, which are never cut. A stream that has no segments FFmpeg packages itself, and `progressive`
//! hands it on.

mod boxes;
pub mod devices;
mod execution;
mod fragment;
mod init;
pub mod inventory;
mod kept;
pub mod local;
mod meter;
mod origin;
mod oversight;
mod pipe;
mod plan;
mod progressive;
mod reader;
mod scratch;
mod segmenter;
mod step;
mod store;
mod strand;
pub mod subtitles;
mod supervisor;
mod text;
mod ts;

pub use devices::HardwareWish;
pub use inventory::{Inventory, InventoryError, Machine};
pub use local::{LocalEncoder, LocalOptions};
pub use subtitles::Subtitles;

#[cfg(test)]
mod tests;
