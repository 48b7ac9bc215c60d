//! The media model, the native readers of the containers people own, and the one function that decides
//! where every segment starts. Nothing here does IO beyond a byte reader handed in by the caller.

mod av1;
mod bits;
pub mod decision;
pub mod facts;
mod h264;
mod hevc;
mod matroska;
mod mp4;
mod mpeg2;
mod mpegts;
mod picture;
pub mod reader;
mod sound;
mod sound_grid;
mod still;
pub mod subtitles;
pub mod ticks;
pub mod timeline;
mod vpx;

pub use facts::{
    AudioFacts, ChromaSampling, Codec, Color, Container, Facts, FactsSource, FieldOrder, Gap, Keyframes,
    MasteringKind, Rational, Rotation, Stream, StreamKind, SubtitleFacts, VideoFacts,
};
pub use reader::{
    ByteReader, FactsError, FileReader, Limits, ScanError, StopCheck, read_facts, scan_keyframes,
};
pub use sound_grid::SoundGrid;
pub use ticks::Ticks;
pub use timeline::{Cut, Timeline, TimelineError};
