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

use std::os::unix::fs::MetadataExt;

use ether_encoder::Revision;

pub use devices::HardwareWish;
pub use inventory::{Inventory, InventoryError, Machine};
pub use local::{LocalEncoder, LocalOptions};
pub use subtitles::Subtitles;

/// The revision of a file, from what the file system says of it.
pub fn revision_of(metadata: &std::fs::Metadata) -> Revision {
    let nanos = i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
    Revision {
        size: metadata.size(),
        modified_nanos: i64::try_from(nanos).unwrap_or(i64::MAX),
        inode: metadata.ino(),
        device: metadata.dev(),
    }
}

#[cfg(test)]
mod tests;
