//! What playlists and manifests say of a playback: the same facts, whichever format writes them down.
//!
//! All text is a function of a [`Presentation`] alone, so it never changes between two fetches, and two nodes
//! that hold the same plan write the same bytes.

use ether_media::{MasteringKind, Rational, SoundGrid, Ticks, Timeline, decision::BitRate};

/// One playback as players are told of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Presentation<'a> {
    /// Where every segment starts.
    pub timeline: &'a Timeline,
    /// The container of segments.
    pub container: Packaging,
    /// Whether every segment is known to start with a picture that needs none before it.
    pub independent: bool,
    /// Whether pictures and sounds come in representations of their own.
    pub apart: bool,
    /// The qualities of the picture, from the best down.
    pub pictures: Vec<Shown>,
    /// The sounds, the one that is played first at the front.
    pub sounds: Vec<Heard>,
    /// The text tracks.
    pub texts: Vec<Text>,
    /// Where playing is to begin, where not at the start.
    pub start: Option<Ticks>,
    /// The playback, as addresses name it.
    pub session: &'a str,
    /// What child addresses carry.
    pub grant: &'a str,
}

/// One quality of the picture.
#[derive(Clone, Debug, PartialEq)]
pub struct Shown {
    /// RFC 6381 string.
    pub codec: String,
    /// Width in square pixels.
    pub width: u32,
    /// Height in square pixels.
    pub height: u32,
    /// Frames a second, where known.
    pub frame_rate: Option<Rational>,
    /// The dynamic range.
    pub range: MasteringKind,
    /// Bits a second of the stream itself.
    pub rate: BitRate,
}

/// One sound.
#[derive(Clone, Debug, PartialEq)]
pub struct Heard {
    /// The number of the representation that holds it.
    pub representation: usize,
    /// RFC 6381 string.
    pub codec: String,
    /// Its name for people, another for each sound.
    pub name: String,
    /// BCP 47 tag, where known.
    pub language: Option<String>,
    /// Channels, where known.
    pub channels: Option<u16>,
    /// Bits a second of the stream itself.
    pub rate: BitRate,
    /// Samples a second, where known.
    pub sample_rate: Option<u32>,
    /// Its frames, where all have one length.
    pub grid: Option<SoundGrid>,
}

/// One text track.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text {
    /// The stream, as addresses name it.
    pub stream: u32,
    /// Its name for people, another for each track.
    pub name: String,
    /// BCP 47 tag, where known.
    pub language: Option<String>,
    /// Marked as the default.
    pub default: bool,
    /// To be shown to everybody who understands the sound.
    pub forced: bool,
    /// For the hard of hearing.
    pub hearing_impaired: bool,
}

/// The container of segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packaging {
    /// Fragmented MP4 with an initialization segment.
    Fmp4,
    /// MPEG transport stream.
    MpegTs,
}

impl Packaging {
    /// How the names of segments end.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Fmp4 => "m4s",
            Self::MpegTs => "ts",
        }
    }

    /// What the container adds to the bits of `streams` streams: so many parts of a hundred, and so many bits a
    /// second for every stream, however thin it is (headers of samples, whole packets of 188 bytes).
    pub(crate) fn with_overhead(self, bits: u64, streams: u64) -> u64 {
        let (percent, each) = match self {
            Self::Fmp4 => (3, 16_000),
            Self::MpegTs => (10, 80_000),
        };
        bits.saturating_add(bits / 100 * percent)
            .saturating_add(each * streams)
    }
}

impl Presentation<'_> {
    /// The number of the representation that holds picture `n`.
    pub(crate) fn picture_number(&self, n: usize) -> usize {
        n
    }

    /// The number of the representation that holds the sound that is played first.
    pub(crate) fn first_sound(&self) -> usize {
        self.sounds.first().map_or(0, |sound| sound.representation)
    }
}
