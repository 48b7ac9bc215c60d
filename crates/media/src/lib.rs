//! The media model, the native readers of the containers people own, and the one function that decides
//! where every segment starts. Nothing here does IO beyond a byte reader handed in by the caller.

pub mod decision;
pub mod facts;
pub mod ticks;
pub mod timeline;

pub use facts::{
    AudioFacts, ChromaSampling, Codec, Color, Container, Facts, FactsSource, FieldOrder, Gap, Keyframes,
    MasteringKind, Rational, Rotation, Stream, StreamKind, SubtitleFacts, VideoFacts,
};
pub use ticks::Ticks;
pub use timeline::{Cut, Timeline, TimelineError};
