//! The immutable request that creates an execution, and the names of what it makes.

use std::fmt;
use std::sync::Arc;

use ether_media::{Facts, MasteringKind, Rational, Ticks, Timeline};
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
    /// The sounds, in the file's order whichever of them a viewer chose, so that viewers with different choices make
    /// equal requests; at most [`MOST_SOUNDS`].
    pub audio: Vec<AudioTrack>,
    /// The text track that is taken out of the same input beside them, by FFmpeg's index of its stream (T14).
    pub subtitle: Option<u32>,
}

/// Most sounds that one request may offer.
pub const MOST_SOUNDS: usize = ether_media::decision::MOST_SOUNDS;
/// How long before the first frame sound may begin that shares a representation with the picture: about a frame.
const MOST_LEAD_TOGETHER: Ticks = Ticks(Ticks::HZ / 25);

/// Most qualities of one picture.
pub const MOST_RUNGS: usize = 8;

impl Request {
    /// Whether picture and sound come in representations of their own: always in DASH, and in HLS as soon as
    /// there is a choice of either, so that switching one never touches the other, or as sound begins well before
    /// the picture: some players take the first sample of a fragment that holds both for the presentation's zero,
    /// and would show everything later by as much. (In transport streams they do worse with sound of its own.)
    pub fn apart(&self) -> bool {
        match self.protocol {
            Protocol::Http { .. } => false,
            Protocol::Dash => true,
            Protocol::Hls { container } => {
                let early = container == SegmentContainer::Fmp4 && self.timeline.lead() > MOST_LEAD_TOGETHER;
                self.rungs() > 1 || self.audio.len() > 1 || (early && self.video.is_some())
            }
        }
    }

    /// What each representation holds, in the order of their numbers: the qualities of the picture from the
    /// best down, then the sounds. One representation holds both where they are not [apart](Self::apart).
    pub fn representations(&self) -> Vec<Representation> {
        let sounds = 0..self.audio.len();
        if !self.apart() {
            let video = self.video.is_some().then_some(0);
            let audio = sounds.into_iter().next();
            return vec![Representation { video, audio }];
        }
        let rung = |rung| Representation {
            video: Some(rung),
            audio: None,
        };
        let sound = |sound| Representation {
            video: None,
            audio: Some(sound),
        };
        (0..self.rungs()).map(rung).chain(sounds.map(sound)).collect()
    }

    /// What encodes the picture; the processor where nothing is encoded.
    pub fn device(&self) -> Device {
        match self.video.as_ref().map(|track| &track.action) {
            Some(VideoAction::Encode(encode)) => encode.device,
            _ => Device::Software,
        }
    }

    /// The same request for another device.
    #[must_use]
    pub fn on(&self, device: Device) -> Self {
        let mut request = self.clone();
        if let Some(VideoAction::Encode(encode)) = request.video.as_mut().map(|track| &mut track.action) {
            encode.device = device;
        }
        request
    }

    /// The same request with an encoded picture that describes itself at every keyframe.
    #[must_use]
    pub fn self_describing(&self) -> Self {
        let mut request = self.clone();
        if let Some(VideoAction::Encode(encode)) = request.video.as_mut().map(|track| &mut track.action) {
            encode.self_describing = true;
        }
        request
    }

    /// The subtitle stream that is drawn into the picture, where one is.
    pub fn drawn(&self) -> Option<u32> {
        match &self.video.as_ref()?.action {
            VideoAction::Encode(encode) => encode.burn,
            VideoAction::Copy => None,
        }
    }

    /// How many qualities of the picture there are; one where it is copied, none where there is no picture.
    pub fn rungs(&self) -> usize {
        match self.video.as_ref().map(|track| &track.action) {
            None => 0,
            Some(VideoAction::Copy) => 1,
            Some(VideoAction::Encode(encode)) => encode.rungs.len(),
        }
    }
}

/// What one representation holds, as positions in its [`Request`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Representation {
    /// Which quality of the picture.
    pub video: Option<usize>,
    /// Which of the sounds.
    pub audio: Option<usize>,
}

/// How the output is packaged. Part of the immutable start (T15).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "protocol")]
pub enum Protocol {
    /// HTTP Live Streaming.
    Hls {
        /// The container of its segments.
        container: SegmentContainer,
    },
    /// MPEG-DASH in fragmented MP4, picture and sound apart.
    Dash,
    /// One Matroska stream, sent as it is made.
    Http {
        /// Where on the timeline it begins.
        start: Ticks,
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
    /// What encodes it.
    pub device: Device,
    /// The qualities that are made, from the best down; 1 to [`MOST_RUNGS`].
    pub rungs: Vec<Rung>,
    /// The frame rate that the source claims, where it claims one.
    pub frame_rate: Option<RationalRate>,
    /// Whether fields are woven into whole pictures.
    pub deinterlace: bool,
    /// The dynamic range that comes out; a wider one of the source is mapped to it.
    pub range: MasteringKind,
    /// The subtitle stream that is drawn into the picture, by FFmpeg's index.
    pub burn: Option<u32>,
    /// Whether every keyframe also carries what the initialization segment says of it, so that a player which
    /// holds another encoder's can go on with it (D2).
    pub self_describing: bool,
}

/// One quality of an encoded picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Rung {
    /// Width of the output in square pixels, even, after rotation.
    pub width: u32,
    /// Height of the output in square pixels, even, after rotation.
    pub height: u32,
    /// Upper bound of the bit rate over one second, in bits a second.
    pub max_bit_rate: u64,
    /// The codec's own number of the level that the encoder is told to give, so that what a playlist announces
    /// is what comes (D2). The profile follows from the codec.
    pub level: u8,
}

/// What encodes a picture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "device")]
pub enum Device {
    /// The processor.
    #[default]
    Software,
    /// A Linux render node through VA-API.
    Vaapi {
        /// Its number: `renderD128` is 128.
        node: u16,
    },
    /// An NVIDIA card.
    Nvenc {
        /// Its number as CUDA counts.
        gpu: u8,
    },
    /// Intel Quick Sync on a render node.
    Qsv {
        /// The number of its render node.
        node: u16,
    },
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
    /// H.264 / AVC High, 8 bits, 4:2:0.
    H264,
    /// H.265 / HEVC Main 10, 10 bits, 4:2:0: what keeps a wide dynamic range.
    Hevc,
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
    /// Opus.
    Opus,
}

/// One thing that an execution can serve. Representations are numbered as [`Request::representations`] says.
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
    /// The whole text track that was asked for beside picture and sound, as an ASS file.
    Subtitles,
}

impl fmt::Display for Resource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Resource::Init { representation } => write!(f, "{representation}/init"),
            Resource::Segment {
                representation,
                number,
            } => write!(f, "{representation}/{number}"),
            Resource::Subtitles => f.write_str("subtitles"),
        }
    }
}
