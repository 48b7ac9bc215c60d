//! The immutable request that creates an execution, and the names of what it makes.

use std::fmt;
use std::sync::Arc;

use ether_media::{Facts, Rational, Timeline};
use serde::{Deserialize, Serialize};

/// Everything an encoder needs to know to make one playback's output, except where the bytes are.
///
/// Two requests that are equal describe the same representations with the same bounds; an input never
/// travels in one (T4).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Request {
    /// What is known of the source.
    pub facts: Arc<Facts>,
    /// How the output is packaged.
    pub protocol: Protocol,
    /// Where every segment starts.
    pub timeline: Arc<Timeline>,
    /// The picture, where there is one.
    pub video: Option<VideoTrack>,
    /// The sound, where there is any.
    pub audio: Option<AudioTrack>,
}

/// How the output is packaged. Part of the immutable start (T15).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "protocol")]
pub enum Protocol {
    /// HTTP Live Streaming with picture and sound in one representation.
    Hls {
        /// The container of its segments.
        container: SegmentContainer,
    },
}

/// The container of segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SegmentContainer {
    /// Fragmented MP4 with one initialization segment.
    Fmp4,
    /// MPEG transport stream.
    MpegTs,
}

/// The picture of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VideoTrack {
    /// FFmpeg's index of the source stream.
    pub stream: u32,
    /// What happens to it.
    pub action: VideoAction,
}

/// What happens to the picture.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "action")]
pub enum VideoAction {
    /// The source's own packets.
    Copy,
    /// Decoded and encoded anew.
    Encode(VideoEncode),
}

/// How the picture is encoded.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VideoEncode {
    /// The codec that comes out.
    pub codec: VideoCodec,
    /// Width of the output in square pixels, even, after rotation.
    pub width: u32,
    /// Height of the output in square pixels, even, after rotation.
    pub height: u32,
    /// Upper bound of the bit rate over one second, in bits a second.
    pub max_bit_rate: u64,
    /// The frame rate that the source claims, where it claims one.
    pub frame_rate: Option<RationalRate>,
    /// Whether fields are woven into whole pictures.
    pub deinterlace: bool,
    /// `level_idc` that the encoder is told to give, so that what a playlist announces is what comes (D2).
    /// The profile is always High.
    pub level: u8,
}

/// A frame rate as a hashable pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RationalRate {
    /// Frames.
    pub num: u32,
    /// In this many seconds.
    pub den: u32,
}

impl From<Rational> for RationalRate {
    fn from(rate: Rational) -> Self {
        Self {
            num: rate.num,
            den: rate.den,
        }
    }
}

impl From<RationalRate> for Rational {
    fn from(rate: RationalRate) -> Self {
        Self {
            num: rate.num,
            den: rate.den,
        }
    }
}

/// Codecs that ether encodes pictures to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VideoCodec {
    /// H.264 / AVC, 8 bits, 4:2:0.
    H264,
}

/// The sound of a request.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AudioTrack {
    /// FFmpeg's index of the source stream.
    pub stream: u32,
    /// What happens to it.
    pub action: AudioAction,
}

/// What happens to the sound.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "action")]
pub enum AudioAction {
    /// The source's own packets.
    Copy,
    /// Decoded and encoded anew.
    Encode(AudioEncode),
}

/// How the sound is encoded.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AudioEncode {
    /// The codec that comes out.
    pub codec: AudioCodec,
    /// Channels, 1 to 8.
    pub channels: u16,
    /// Samples a second, one that the codec allows.
    pub sample_rate: u32,
    /// Bits a second.
    pub bit_rate: u64,
}

/// Codecs that ether encodes sound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AudioCodec {
    /// AAC low complexity.
    Aac,
}

/// One thing that an execution can serve. The representation of HLS with one quality is always `0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "resource")]
pub enum Resource {
    /// The initialization segment of a representation.
    Init {
        /// Which representation.
        representation: u32,
    },
    /// Segment `number` of a representation, counted from zero.
    Segment {
        /// Which representation.
        representation: u32,
        /// Which segment.
        number: u32,
    },
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Resource::Init { representation } => write!(f, "{representation}/init"),
            Resource::Segment {
                representation,
                number,
            } => write!(f, "{representation}/{number}"),
        }
    }
}
