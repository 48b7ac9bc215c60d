//! What an encoder offers, and the one pure predicate that compares a request with it (T5, T14).

use serde::{Deserialize, Serialize};

use crate::request::{Protocol, Request, VideoAction};

/// Explicit promises of an encoder. The default is HLS with ordinary segment seeks and nothing else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Capabilities {
    /// Adaptive ladders.
    pub abr: bool,
    /// DASH.
    pub dash: bool,
    /// Progressive Matroska over HTTP.
    pub http: bool,
    /// Subtitle text out of the same input.
    pub soft_subtitles: bool,
    /// Touch and playback state.
    pub controls: bool,
    /// Samples of the running encoder.
    pub observations: bool,
    /// Complete keyframe indexes of the source, and so copied video.
    pub keyframes: bool,
}

/// Why an encoder cannot take a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unsupported {
    /// Copied video needs a complete keyframe index, which this encoder does not take.
    #[error("the encoder takes no keyframe index, which copied video needs")]
    Keyframes,
    /// Copied video was asked for and the source has no complete keyframe index.
    #[error("stream {stream} has no complete keyframe index, which copied video needs")]
    NoIndex {
        /// FFmpeg's index of the stream.
        stream: u32,
    },
    /// The request names a stream that the source does not have, or one of another kind.
    #[error("the source has no {kind} stream {stream}")]
    NoSuchStream {
        /// `video` or `audio`.
        kind: &'static str,
        /// FFmpeg's index of the stream.
        stream: u32,
    },
    /// The request has neither picture nor sound.
    #[error("the request has neither picture nor sound")]
    Nothing,
    /// The encoder program lacks something that the plan needs.
    #[error("the encoder lacks {what}")]
    Missing {
        /// FFmpeg's name of it, such as `encoder libx264`.
        what: String,
    },
}

/// Whether an encoder with `capabilities` can take `request`. Pure; called before any reservation (T5).
///
/// # Errors
/// [`Unsupported`] with the first thing that stands in the way.
pub fn supports_request(request: &Request, capabilities: Capabilities) -> Result<(), Unsupported> {
    let Protocol::Hls { .. } = request.protocol;
    if request.video.is_none() && request.audio.is_none() {
        return Err(Unsupported::Nothing);
    }
    if let Some(track) = &request.video {
        let stream = track.stream;
        let found = request.facts.stream(stream).and_then(|s| s.video());
        found.ok_or(Unsupported::NoSuchStream {
            kind: "video",
            stream,
        })?;
        if matches!(track.action, VideoAction::Copy) {
            if !capabilities.keyframes {
                return Err(Unsupported::Keyframes);
            }
            let indexed = request
                .facts
                .keyframes
                .as_ref()
                .is_some_and(|index| index.stream == stream);
            if !indexed {
                return Err(Unsupported::NoIndex { stream });
            }
        }
    }
    if let Some(track) = &request.audio {
        let stream = track.stream;
        let found = request.facts.stream(stream).and_then(|s| s.audio());
        found.ok_or(Unsupported::NoSuchStream {
            kind: "audio",
            stream,
        })?;
    }
    Ok(())
}
