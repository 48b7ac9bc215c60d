//! What holds the streams on their way to a player, and which codecs it holds.

use super::{Protocol, SegmentKind, Wishes};
use crate::facts::Codec;

/// A container of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// Fragmented MP4, in segments.
    Fmp4,
    /// MPEG transport stream, in segments.
    MpegTs,
    /// Matroska, in one stream that is never cut.
    Matroska,
}

impl Holder {
    /// The container that `wishes` lead to.
    pub(super) fn of(wishes: &Wishes) -> Self {
        match (wishes.protocol, wishes.segments) {
            (Protocol::Http, _) => Self::Matroska,
            (Protocol::Dash, _) | (Protocol::Hls, SegmentKind::Fmp4) => Self::Fmp4,
            (Protocol::Hls, SegmentKind::MpegTs) => Self::MpegTs,
        }
    }

    /// The kind of its segments, where it has any.
    pub(super) fn segments(self) -> Option<SegmentKind> {
        match self {
            Self::Fmp4 => Some(SegmentKind::Fmp4),
            Self::MpegTs => Some(SegmentKind::MpegTs),
            Self::Matroska => None,
        }
    }

    /// Whether it holds pictures of `codec`.
    pub(super) fn pictures(self, codec: &Codec) -> bool {
        match self {
            Self::Fmp4 => matches!(codec, Codec::H264 | Codec::Hevc | Codec::Av1 | Codec::Vp9),
            Self::MpegTs => matches!(codec, Codec::H264 | Codec::Hevc),
            Self::Matroska => !matches!(codec, Codec::Other(_)),
        }
    }

    /// Whether it holds sound of `codec`.
    pub(super) fn sounds(self, codec: &Codec) -> bool {
        use Codec::{Aac, Ac3, Eac3, Flac, Mp3, Opus};
        match self {
            Self::Fmp4 => matches!(codec, Aac | Ac3 | Eac3 | Mp3 | Opus | Flac),
            Self::MpegTs => matches!(codec, Aac | Mp3 | Ac3 | Eac3),
            Self::Matroska => match codec {
                Codec::Other(name) => name.starts_with("pcm_"),
                _ => true,
            },
        }
    }
}
