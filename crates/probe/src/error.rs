//! Why there are no facts or no picture, as sentences for people and variants for callers.
//!
//! None of them holds a URL or a program's own words: those name loopback paths and whatever a hostile file
//! put into its tags.

use std::io;
use std::process::ExitStatus;

use ether_media::Container;
use ether_process::SpawnError;

/// Why a file is not something to play.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotMedia {
    /// There are no bytes in it.
    #[error("the file is empty")]
    Empty,
    /// No reader knows its format.
    #[error("the file is not in a media format that can be read")]
    UnknownFormat,
    /// The format is known and the file is damaged or cut short.
    #[error("the file is damaged or incomplete: {what}")]
    Damaged {
        /// The container that was recognised.
        container: Container,
        /// What is wrong, in a few words.
        what: &'static str,
    },
    /// It holds neither sound nor moving pictures.
    #[error("the file holds neither sound nor moving pictures")]
    NothingToPlay,
}

/// Why no facts were found.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The file is not something to play; asking again will say the same.
    #[error(transparent)]
    NotMedia(#[from] NotMedia),
    /// The file's bytes could not be read.
    #[error("the file could not be read")]
    Unreadable(#[source] io::Error),
    /// `ffprobe` is needed for this file and could not be started.
    #[error("ffprobe is needed for this file and could not be started")]
    Ffprobe(#[source] SpawnError),
    /// Waiting for a turn and probing took longer than is allowed together.
    #[error("probing took too long")]
    TimedOut,
    /// `ffprobe` wrote more than is allowed.
    #[error("the file's description is too large")]
    TooMuchOutput,
    /// `ffprobe` ended in a way that says nothing about the file.
    #[error("ffprobe failed ({status})")]
    Failed {
        /// How it ended.
        status: ExitStatus,
    },
    /// `ffprobe` answered something that is not its documented output.
    #[error("ffprobe's answer could not be understood")]
    Answer(#[source] serde_json::Error),
    /// The loopback server that hands out the file could not be set up.
    #[error("the loopback server for probing could not be set up")]
    Loopback(#[source] io::Error),
    /// The runtime is going away.
    #[error("probing was stopped")]
    Stopped,
}

/// Why there is no picture of a file.
#[derive(Debug, thiserror::Error)]
pub enum PictureError {
    /// The file has neither a moving picture nor a cover.
    #[error("the file has no picture")]
    NoPicture,
    /// FFmpeg could not be started.
    #[error("ffmpeg could not be started")]
    Ffmpeg(#[source] SpawnError),
    /// Waiting for a turn and making the picture took longer than is allowed together.
    #[error("making the picture took too long")]
    TimedOut,
    /// The picture is larger than is allowed.
    #[error("the picture is too large")]
    TooMuchOutput,
    /// No frame could be decoded.
    #[error("no frame of the file could be decoded")]
    Undecodable,
    /// The loopback server that hands out the file could not be set up, or could not read the file.
    #[error("the file could not be handed to ffmpeg")]
    Loopback(#[source] io::Error),
    /// The runtime is going away.
    #[error("making the picture was stopped")]
    Stopped,
}
