//! What an encoder offers, and the one pure predicate that compares a request with it (T5, T14).

use ether_media::StreamKind;
use serde::{Deserialize, Serialize};

use crate::remote::MOST_POINTS;
use crate::request::{MOST_RUNGS, MOST_SOUNDS, Protocol, Request, VideoAction};

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
    /// Subtitles drawn into the picture.
    pub burned_subtitles: bool,
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
        /// `video`, `audio` or `subtitle`.
        kind: &'static str,
        /// FFmpeg's index of the stream.
        stream: u32,
    },
    /// The request needs something that this encoder does not offer.
    #[error("the encoder does not offer {what}")]
    NotOffered {
        /// What.
        what: Offer,
    },
    /// A list of the request is longer or shorter than it may be.
    #[error("the request has {count} {what}; {least} to {most} are allowed")]
    Count {
        /// `qualities` or `sounds`.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// The fewest.
        least: usize,
        /// The most.
        most: usize,
    },
    /// It is done only on the machine that holds the source (T14).
    #[error("{what} can be had only on the machine that holds the film")]
    LocalOnly {
        /// What.
        what: Offer,
    },
    /// Text beside a stream that is sent as it is made: such a stream is all that there is.
    #[error("a progressive stream has no text beside it")]
    TextBesideStream,
    /// The text of a track was asked for that has none, but pictures.
    #[error("subtitle stream {stream} has pictures and no text")]
    NotText {
        /// FFmpeg's index of the stream.
        stream: u32,
    },
    /// The keyframe index cannot travel: it has too many points, or they are not in order (T24).
    #[error(
        "the keyframe index of stream {stream} has {points} points; up to {MOST_POINTS} in order, none of them negative, can travel"
    )]
    IndexNotCarried {
        /// FFmpeg's index of the stream.
        stream: u32,
        /// How many points it has.
        points: usize,
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
    /// Whether the encoder program has something that the plan needs could not be found out. It denies work
    /// from other machines and never local play (T22).
    #[error("whether the encoder has {what} is not known")]
    NotKnown {
        /// FFmpeg's name of it.
        what: String,
    },
}

/// What an encoder may offer or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Offer {
    /// Several qualities of one picture.
    AdaptiveLadders,
    /// DASH.
    Dash,
    /// Progressive Matroska.
    Http,
    /// The text of a subtitle track.
    SoftSubtitles,
    /// Subtitles drawn into the picture.
    BurnedSubtitles,
}

impl std::fmt::Display for Offer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::AdaptiveLadders => "adaptive ladders",
            Self::Dash => "DASH",
            Self::Http => "progressive Matroska",
            Self::SoftSubtitles => "the text of subtitles",
            Self::BurnedSubtitles => "subtitles drawn into the picture",
        })
    }
}

/// Whether an encoder with `capabilities` can take `request`. Pure; called before any reservation (T5).
///
/// # Errors
/// [`Unsupported`] with the first thing that stands in the way.
pub fn supports_request(request: &Request, capabilities: Capabilities) -> Result<(), Unsupported> {
    let offers = [
        (request.rungs() > 1, capabilities.abr, Offer::AdaptiveLadders),
        (
            matches!(request.protocol, Protocol::Dash),
            capabilities.dash,
            Offer::Dash,
        ),
        (
            matches!(request.protocol, Protocol::Http { .. }),
            capabilities.http,
            Offer::Http,
        ),
        (
            request.subtitle.is_some(),
            capabilities.soft_subtitles,
            Offer::SoftSubtitles,
        ),
        (
            request.drawn().is_some(),
            capabilities.burned_subtitles,
            Offer::BurnedSubtitles,
        ),
    ];
    if let Some((.., what)) = offers
        .into_iter()
        .find(|(needed, offered, _)| *needed && !offered)
    {
        return Err(Unsupported::NotOffered { what });
    }
    if request.video.is_none() && request.audio.is_empty() {
        return Err(Unsupported::Nothing);
    }
    if request.subtitle.is_some() && matches!(request.protocol, Protocol::Http { .. }) {
        return Err(Unsupported::TextBesideStream);
    }
    check_video(request, capabilities)?;
    // A stream sent as it is made has one picture and one sound.
    let most = match request.protocol {
        Protocol::Http { .. } => 1,
        _ => MOST_SOUNDS,
    };
    if request.audio.len() > most {
        return Err(Unsupported::Count {
            what: "sounds",
            count: request.audio.len(),
            least: 0,
            most,
        });
    }
    for track in &request.audio {
        check_stream(request, "audio", track.stream, |kind| {
            matches!(kind, StreamKind::Audio(_))
        })?;
    }
    for stream in [request.subtitle, request.drawn()].into_iter().flatten() {
        check_stream(request, "subtitle", stream, |kind| {
            matches!(kind, StreamKind::Subtitle(_))
        })?;
    }
    Ok(())
}

fn check_video(request: &Request, capabilities: Capabilities) -> Result<(), Unsupported> {
    let Some(track) = &request.video else {
        return Ok(());
    };
    let stream = track.stream;
    check_stream(request, "video", stream, |kind| {
        matches!(kind, StreamKind::Video(_))
    })?;
    let progressive = matches!(request.protocol, Protocol::Http { .. });
    match &track.action {
        // A stream that is not cut needs no list of where it can be.
        VideoAction::Copy if progressive => {}
        VideoAction::Copy => {
            if !capabilities.keyframes {
                return Err(Unsupported::Keyframes);
            }
            let index = request.facts.keyframes.as_ref();
            if index.is_none_or(|index| index.stream != stream) {
                return Err(Unsupported::NoIndex { stream });
            }
        }
        VideoAction::Encode(encode) => {
            let source = request.facts.stream(stream).and_then(|stream| stream.video());
            // What a decoder gives of it has colours of its own, and only the metadata beside them says which.
            if source.and_then(|video| video.dolby_vision) == Some(5) {
                return Err(Unsupported::Missing {
                    what: "the colours of Dolby Vision profile 5".to_owned(),
                });
            }
            let (count, most) = (encode.rungs.len(), if progressive { 1 } else { MOST_RUNGS });
            if !(1..=most).contains(&count) {
                return Err(Unsupported::Count {
                    what: "qualities",
                    count,
                    least: 1,
                    most,
                });
            }
        }
    }
    Ok(())
}

fn check_stream(
    request: &Request,
    kind: &'static str,
    stream: u32,
    is: impl Fn(&StreamKind) -> bool,
) -> Result<(), Unsupported> {
    let found = request.facts.stream(stream).filter(|s| is(&s.kind));
    found
        .map(|_| ())
        .ok_or(Unsupported::NoSuchStream { kind, stream })
}
