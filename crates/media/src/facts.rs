//! What is known of a file before anything is played: its streams, its duration and its keyframes.
//!
//! Facts are read once per file revision, kept in the database, and travel to whichever node encodes.
//! A fact that could not be read is absent; nothing here is guessed.

use serde::{Deserialize, Serialize};

use crate::ticks::Ticks;

/// Everything known of one file revision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Facts {
    /// The container that the bytes are in, whatever the file's name says.
    pub container: Container,
    /// Bytes in the file when it was read.
    pub size: u64,
    /// The presentation's length: the end of the longest stream less the start of the earliest, where known.
    pub duration: Option<Ticks>,
    /// The earliest presentation time of any audio or video stream, on the file's own clock.
    pub start: Ticks,
    /// The streams, in the order and with the indexes that FFmpeg gives them.
    pub streams: Vec<Stream>,
    /// Keyframes of [`Facts::main_video`], complete or absent.
    pub keyframes: Option<Keyframes>,
    /// Which reader found these facts.
    pub source: FactsSource,
    /// What could not be found, and why; empty when the facts are complete.
    pub gaps: Vec<Gap>,
}

/// A container format.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Container {
    /// MP4, MOV, 3GP and their fragmented forms.
    Mp4,
    /// Matroska.
    Matroska,
    /// WebM, the subset of Matroska.
    Webm,
    /// MPEG transport stream, M2TS included.
    MpegTs,
    /// Anything else, by FFmpeg's name for it (`avi`, `flac`, …).
    Other(String),
}

/// Which reader found the facts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FactsSource {
    /// The native readers alone.
    Native,
    /// `ffprobe` alone: the container has no native reader.
    Ffprobe,
    /// The native readers, completed by `ffprobe`.
    Both,
}

/// Something that could not be found. Remote encoders refuse what depends on it; local play tries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "what")]
pub enum Gap {
    /// The presentation's duration is not known, or only estimated from the bit rate.
    Duration,
    /// The main video has no complete keyframe index yet: `reason` is for people.
    Keyframes {
        /// Why, in a few words.
        reason: String,
    },
    /// The decoder configuration of stream `index` is missing or could not be read.
    CodecConfig {
        /// The stream's index.
        index: u32,
    },
    /// The times of stream `index` are damaged: it is listed as data, so that nobody chooses it.
    Times {
        /// The stream's index.
        index: u32,
    },
    /// The file ends before its own structure says it does.
    Truncated {
        /// Bytes that the structure announces.
        expected: u64,
    },
}

/// One stream of a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Stream {
    /// FFmpeg's index of the stream (`-map 0:<index>`).
    pub index: u32,
    /// The codec.
    pub codec: Codec,
    /// RFC 6381 codec string (`avc1.64001f`, `mp4a.40.2`), where the configuration gives one.
    pub codec_string: Option<String>,
    /// ISO 639-2 or BCP 47 language as the file has it; absent when it says `und` or nothing.
    pub language: Option<String>,
    /// The stream's title.
    pub title: Option<String>,
    /// Marked as the default of its kind.
    pub default: bool,
    /// Marked as forced.
    pub forced: bool,
    /// First presentation time on the file's own clock, edit lists applied, where known.
    pub start: Option<Ticks>,
    /// From the first presentation time to the end of the last sample, where known.
    pub duration: Option<Ticks>,
    /// Average bits a second, where the container states or implies it.
    pub bit_rate: Option<u64>,
    /// What is particular to the stream's kind.
    #[serde(flatten)]
    pub kind: StreamKind,
}

/// What is particular to a kind of stream.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum StreamKind {
    /// Moving pictures, or a still picture where [`VideoFacts::still`] is set.
    Video(VideoFacts),
    /// Sound.
    Audio(AudioFacts),
    /// Subtitles, text or pictures.
    Subtitle(SubtitleFacts),
    /// A font or other attached file.
    Attachment,
    /// Timecode, metadata and everything else.
    Data,
}

/// A codec, by FFmpeg's name where it has one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub enum Codec {
    /// H.264 / AVC.
    H264,
    /// H.265 / HEVC.
    Hevc,
    /// AV1.
    Av1,
    /// VP8.
    Vp8,
    /// VP9.
    Vp9,
    /// MPEG-2 video.
    Mpeg2Video,
    /// AAC in any profile.
    Aac,
    /// AC-3.
    Ac3,
    /// Enhanced AC-3.
    Eac3,
    /// MPEG audio layer III.
    Mp3,
    /// Opus.
    Opus,
    /// FLAC.
    Flac,
    /// Vorbis.
    Vorbis,
    /// DTS in any profile.
    Dts,
    /// Any other codec, by FFmpeg's name.
    Other(String),
}

impl Codec {
    /// FFmpeg's name of the codec (`h264`, `aac`, `subrip`, …).
    pub fn as_str(&self) -> &str {
        match self {
            Codec::H264 => "h264",
            Codec::Hevc => "hevc",
            Codec::Av1 => "av1",
            Codec::Vp8 => "vp8",
            Codec::Vp9 => "vp9",
            Codec::Mpeg2Video => "mpeg2video",
            Codec::Aac => "aac",
            Codec::Ac3 => "ac3",
            Codec::Eac3 => "eac3",
            Codec::Mp3 => "mp3",
            Codec::Opus => "opus",
            Codec::Flac => "flac",
            Codec::Vorbis => "vorbis",
            Codec::Dts => "dts",
            Codec::Other(name) => name,
        }
    }
}

impl From<String> for Codec {
    fn from(name: String) -> Self {
        match name.as_str() {
            "h264" => Codec::H264,
            "hevc" => Codec::Hevc,
            "av1" => Codec::Av1,
            "vp8" => Codec::Vp8,
            "vp9" => Codec::Vp9,
            "mpeg2video" => Codec::Mpeg2Video,
            "aac" => Codec::Aac,
            "ac3" => Codec::Ac3,
            "eac3" => Codec::Eac3,
            "mp3" => Codec::Mp3,
            "opus" => Codec::Opus,
            "flac" => Codec::Flac,
            "vorbis" => Codec::Vorbis,
            "dts" => Codec::Dts,
            _ => Codec::Other(name),
        }
    }
}

impl From<Codec> for String {
    fn from(codec: Codec) -> String {
        codec.as_str().to_owned()
    }
}

/// A ratio of two positive numbers; zero in either part means unknown and is never stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rational {
    /// Numerator.
    pub num: u32,
    /// Denominator.
    pub den: u32,
}

impl Rational {
    /// The ratio as a number.
    pub fn as_f64(self) -> f64 {
        f64::from(self.num) / f64::from(self.den)
    }
}

/// Facts of a video stream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct VideoFacts {
    /// A still picture (cover art), not a film.
    pub still: bool,
    /// Width in pixels of the decoded picture, cropping applied, before rotation.
    pub width: u32,
    /// Height in pixels of the decoded picture, cropping applied, before rotation.
    pub height: u32,
    /// Sample aspect ratio, where stated; absent means square.
    pub sample_aspect: Option<Rational>,
    /// How the picture is to be turned for showing.
    pub rotation: Rotation,
    /// The rate that the file claims; the frames themselves may vary.
    pub frame_rate: Option<Rational>,
    /// Whether the pictures are interlaced, where known.
    pub field_order: Option<FieldOrder>,
    /// Bits a sample (8, 10, 12), where known.
    pub bit_depth: Option<u8>,
    /// Chroma sampling, where known.
    pub chroma: Option<ChromaSampling>,
    /// Colour description.
    pub color: Color,
    /// `profile_idc` or the codec's own number for its profile, where known.
    pub profile: Option<u32>,
    /// `level_idc` or the codec's own number for its level, where known.
    pub level: Option<u32>,
    /// Number of frames that may precede one in decoding order and follow it in output order, where known.
    pub reorder: Option<u8>,
    /// Dolby Vision profile, where a record says so.
    pub dolby_vision: Option<u8>,
}

/// A turn of the shown picture, clockwise, after an optional mirroring about the vertical axis.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rotation {
    /// Degrees clockwise: 0, 90, 180 or 270.
    pub degrees: u16,
    /// Mirrored left to right before the turn.
    pub mirrored: bool,
}

impl Rotation {
    /// The turn of a display matrix, under which a point goes from (x, y) to (ax + cy, bx + dy) with y
    /// downwards. Turns that are not a quarter are rounded to one; a matrix that flattens turns nothing.
    pub fn from_matrix(a: f64, b: f64, c: f64, d: f64) -> Self {
        let determinant = a * d - b * c;
        if determinant == 0.0 || !determinant.is_finite() {
            return Self::default();
        }
        let mirrored = determinant < 0.0;
        let (cos, sin) = if mirrored { (d, -c) } else { (a, b) };
        let quarter = (sin.atan2(cos).to_degrees() / 90.0).round() as i64;
        Self {
            degrees: u16::try_from(quarter.rem_euclid(4) * 90).unwrap_or(0),
            mirrored,
        }
    }
}

/// The order of an interlaced picture's fields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FieldOrder {
    /// Not interlaced.
    Progressive,
    /// Interlaced, top field first.
    TopFirst,
    /// Interlaced, bottom field first.
    BottomFirst,
    /// Interlaced, order not known.
    Unknown,
}

/// Chroma sampling of a picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ChromaSampling {
    /// No colour.
    #[serde(rename = "400")]
    Mono,
    /// 4:2:0.
    #[serde(rename = "420")]
    Yuv420,
    /// 4:2:2.
    #[serde(rename = "422")]
    Yuv422,
    /// 4:4:4.
    #[serde(rename = "444")]
    Yuv444,
}

/// Colour description by the code points of ITU-T H.273; absent where unspecified (2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Color {
    /// Colour primaries (1 = BT.709, 9 = BT.2020).
    pub primaries: Option<u8>,
    /// Transfer characteristics (1 = BT.709, 16 = PQ, 18 = HLG).
    pub transfer: Option<u8>,
    /// Matrix coefficients (1 = BT.709, 9 = BT.2020 non-constant).
    pub matrix: Option<u8>,
    /// Full range samples.
    pub full_range: Option<bool>,
}

/// The kind of dynamic range a picture has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MasteringKind {
    /// Standard dynamic range.
    Sdr,
    /// Perceptual quantizer (HDR10 and relatives).
    Pq,
    /// Hybrid log-gamma.
    Hlg,
}

impl Color {
    /// The dynamic range that the transfer characteristics stand for.
    pub fn mastering(self) -> MasteringKind {
        match self.transfer {
            Some(16) => MasteringKind::Pq,
            Some(18) => MasteringKind::Hlg,
            _ => MasteringKind::Sdr,
        }
    }
}

/// Facts of an audio stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct AudioFacts {
    /// Samples a second as played, where known.
    pub sample_rate: Option<u32>,
    /// Channels as played, where known.
    pub channels: Option<u16>,
    /// FFmpeg's name of the layout (`stereo`, `5.1(side)`), where known.
    pub layout: Option<String>,
    /// AAC object type or the codec's own number for its profile, where known.
    pub profile: Option<u32>,
}

/// Facts of a subtitle stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SubtitleFacts {
    /// Text that can be converted, as opposed to pictures.
    pub text: bool,
    /// Marked as for the hard of hearing.
    pub hearing_impaired: bool,
}

/// The complete keyframes of one video stream, in presentation order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Keyframes {
    /// The stream they belong to.
    pub stream: u32,
    /// Presentation times on the file's own clock, edit lists applied; strictly increasing.
    pub times: Vec<Ticks>,
}

impl Facts {
    /// The film itself: the default moving picture, else the first one; never a still picture.
    pub fn main_video(&self) -> Option<&Stream> {
        let moving = |s: &&Stream| matches!(&s.kind, StreamKind::Video(v) if !v.still);
        let mut films = self.streams.iter().filter(moving);
        films.clone().find(|s| s.default).or_else(|| films.next())
    }

    /// The sound to play when no one chose: the default audio stream, else the first.
    pub fn main_audio(&self) -> Option<&Stream> {
        let mut sounds = self
            .streams
            .iter()
            .filter(|s| matches!(s.kind, StreamKind::Audio(_)));
        sounds.clone().find(|s| s.default).or_else(|| sounds.next())
    }

    /// The stream with FFmpeg's index `index`.
    pub fn stream(&self, index: u32) -> Option<&Stream> {
        self.streams.iter().find(|s| s.index == index)
    }
}

impl Facts {
    /// Puts in keyframes that were found later, and closes the gap that said they were missing.
    pub fn set_keyframes(&mut self, keyframes: Keyframes) {
        self.gaps.retain(|gap| !matches!(gap, Gap::Keyframes { .. }));
        self.keyframes = Some(keyframes);
    }
}

/// A picture codec beside a real film is a cover or a set of chapter pictures, muxed as a track.
pub(crate) fn mark_stills(streams: &mut [Stream]) {
    let is_picture = |s: &Stream| matches!(s.codec.as_str(), "mjpeg" | "png" | "bmp" | "webp" | "gif");
    if !streams.iter().any(|s| s.video().is_some() && !is_picture(s)) {
        return;
    }
    for stream in streams.iter_mut().filter(|s| is_picture(s)) {
        if let StreamKind::Video(video) = &mut stream.kind {
            video.still = true;
        }
    }
}

/// The earliest start of any sound or moving picture; zero where none is known.
pub(crate) fn earliest(streams: &[Stream]) -> Ticks {
    streams
        .iter()
        .filter(|s| match &s.kind {
            StreamKind::Video(video) => !video.still,
            StreamKind::Audio(_) => true,
            _ => false,
        })
        .filter_map(|s| s.start)
        .min()
        .unwrap_or_default()
}

/// From the earliest start to the latest end of all streams whose ends are known.
pub(crate) fn span(streams: &[Stream]) -> Option<Ticks> {
    let end = streams
        .iter()
        .filter_map(|s| Some(s.start? + s.duration?))
        .max()?;
    Some(end - earliest(streams))
}

impl Stream {
    /// The video facts, where this is a video stream.
    pub fn video(&self) -> Option<&VideoFacts> {
        if let StreamKind::Video(facts) = &self.kind {
            Some(facts)
        } else {
            None
        }
    }

    /// The audio facts, where this is an audio stream.
    pub fn audio(&self) -> Option<&AudioFacts> {
        if let StreamKind::Audio(facts) = &self.kind {
            Some(facts)
        } else {
            None
        }
    }
}
