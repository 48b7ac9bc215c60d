//! Why a decision is what it is.

use std::fmt;

use crate::facts::{Codec, Container, MasteringKind};
use crate::ticks::Ticks;

/// One reason, with what a person needs to understand it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The player can play the file itself.
    ClientPlaysFile,
    /// The player can play the stream as it is.
    ClientPlaysCodec,
    /// It was asked for.
    Asked,
    /// A subtitle is drawn into the picture.
    SubtitleDrawn,
    /// The player does not say that it plays files in this container.
    ContainerNotPlayable {
        /// The file's container.
        container: Container,
    },
    /// A player would show another track of the file than the chosen one.
    OtherTrackFirst,
    /// The player does not play the codec.
    CodecNotPlayable {
        /// The stream's codec.
        codec: Codec,
    },
    /// Segments of the chosen container do not hold the codec.
    CodecNotInContainer {
        /// The stream's codec.
        codec: Codec,
    },
    /// The player does not play the codec in this profile.
    ProfileNotPlayable {
        /// The codec's own number of the profile.
        profile: u32,
    },
    /// The player does not play the codec at this level.
    LevelTooHigh {
        /// The codec's own number of the level.
        level: u32,
        /// The greatest that the player plays.
        limit: u32,
    },
    /// The player does not play samples of this depth.
    BitDepthNotPlayable {
        /// Bits a sample.
        depth: u8,
    },
    /// The player does not play this chroma sampling.
    ChromaNotPlayable,
    /// The player shows the standard dynamic range only.
    RangeNotPlayable {
        /// The stream's dynamic range.
        range: MasteringKind,
    },
    /// The stream carries Dolby Vision without a layer that other players can show.
    DolbyVision {
        /// The profile.
        profile: u8,
    },
    /// The picture is interlaced.
    Interlaced,
    /// The picture has to be turned or mirrored, which segments cannot ask of a player.
    Rotated,
    /// The complete keyframes of the stream are not known, so where it can be cut is not known.
    NoKeyframeIndex,
    /// The film begins between two keyframes, as trimmed recordings do, so there is nothing that a copy could
    /// begin with.
    StartsBetweenKeyframes,
    /// The keyframes are so far apart that a segment would be too long.
    KeyframesTooFarApart {
        /// Length of the longest segment that copying would give.
        longest: Ticks,
    },
    /// The stream's decoder configuration is not known.
    NoDecoderConfig,
    /// The stream takes more bits than were allowed.
    BitRateTooHigh {
        /// Bits a second that it takes.
        rate: u64,
        /// Bits a second that it may take.
        limit: u64,
    },
    /// The picture is taller than was allowed or than the player shows.
    TooTall {
        /// Its height as shown.
        height: u32,
        /// The greatest height.
        limit: u32,
    },
    /// The sound begins after the picture or ends before it; encoded, it is filled up with silence.
    SoundShort,
    /// The file ends before its own structure says it does; only segments can say where.
    FileNotWhole,
    /// Fewer channels are sent than the source has.
    ChannelsReduced {
        /// Channels of the source.
        from: u16,
        /// Channels that are sent.
        to: u16,
    },
}

impl Reason {
    /// A short word for programs that does not change.
    pub fn code(&self) -> &'static str {
        match self {
            Self::ClientPlaysFile => "client_plays_file",
            Self::ClientPlaysCodec => "client_plays_codec",
            Self::Asked => "asked",
            Self::SubtitleDrawn => "subtitle_drawn",
            Self::ContainerNotPlayable { .. } => "container_not_playable",
            Self::OtherTrackFirst => "other_track_first",
            Self::CodecNotPlayable { .. } => "codec_not_playable",
            Self::CodecNotInContainer { .. } => "codec_not_in_container",
            Self::ProfileNotPlayable { .. } => "profile_not_playable",
            Self::LevelTooHigh { .. } => "level_too_high",
            Self::BitDepthNotPlayable { .. } => "bit_depth_not_playable",
            Self::ChromaNotPlayable => "chroma_not_playable",
            Self::RangeNotPlayable { .. } => "range_not_playable",
            Self::DolbyVision { .. } => "dolby_vision",
            Self::Interlaced => "interlaced",
            Self::Rotated => "rotated",
            Self::NoKeyframeIndex => "no_keyframe_index",
            Self::StartsBetweenKeyframes => "starts_between_keyframes",
            Self::KeyframesTooFarApart { .. } => "keyframes_too_far_apart",
            Self::NoDecoderConfig => "no_decoder_config",
            Self::BitRateTooHigh { .. } => "bit_rate_too_high",
            Self::TooTall { .. } => "too_tall",
            Self::SoundShort => "sound_short",
            Self::FileNotWhole => "file_not_whole",
            Self::ChannelsReduced { .. } => "channels_reduced",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ClientPlaysFile => f.write_str("the player plays the file as it is"),
            Self::ClientPlaysCodec => f.write_str("the player plays the stream as it is"),
            Self::Asked => f.write_str("it was asked for"),
            Self::SubtitleDrawn => f.write_str("a subtitle is drawn into the picture"),
            Self::ContainerNotPlayable { container } => {
                write!(f, "the player does not play {} files", container_name(container))
            }
            Self::OtherTrackFirst => f.write_str("the player would show another track of the file"),
            Self::CodecNotPlayable { codec } => {
                write!(f, "the player does not play {}", codec.as_str())
            }
            Self::CodecNotInContainer { codec } => {
                write!(f, "segments of this container do not hold {}", codec.as_str())
            }
            Self::ProfileNotPlayable { profile } => {
                write!(f, "the player does not play profile {profile} of the codec")
            }
            Self::LevelTooHigh { level, limit } => {
                write!(
                    f,
                    "the stream has level {level} and the player goes up to {limit}"
                )
            }
            Self::BitDepthNotPlayable { depth } => {
                write!(f, "the player does not play samples of {depth} bits")
            }
            Self::ChromaNotPlayable => f.write_str("the player plays 4:2:0 colour only"),
            Self::RangeNotPlayable {
                range: MasteringKind::Hlg,
            } => f.write_str("the picture is HDR (HLG) and the player shows the standard range"),
            Self::RangeNotPlayable { .. } => {
                f.write_str("the picture is HDR (PQ) and the player shows the standard range")
            }
            Self::DolbyVision { profile } => {
                write!(
                    f,
                    "the picture is Dolby Vision profile {profile}, which the player does not show"
                )
            }
            Self::Interlaced => f.write_str("the picture is interlaced"),
            Self::Rotated => f.write_str("the picture has to be turned upright"),
            Self::NoKeyframeIndex => f.write_str("the file has no complete list of keyframes to cut at"),
            Self::StartsBetweenKeyframes => f.write_str("the film is trimmed to begin between two keyframes"),
            Self::KeyframesTooFarApart { longest } => {
                write!(
                    f,
                    "keyframes are up to {} s apart, too far to cut at",
                    longest.as_millis() / 1000
                )
            }
            Self::NoDecoderConfig => f.write_str("the file does not say how the stream is configured"),
            Self::BitRateTooHigh { rate, limit } => {
                write!(
                    f,
                    "it takes {} kbit/s and {} are allowed",
                    rate / 1000,
                    limit / 1000
                )
            }
            Self::TooTall { height, limit } => {
                write!(f, "the picture is {height} pixels tall and {limit} are allowed")
            }
            Self::SoundShort => {
                f.write_str("the sound is shorter than the picture and is filled up with silence")
            }
            Self::FileNotWhole => f.write_str("the file ends before its own structure says it does"),
            Self::ChannelsReduced { from, to } => write!(f, "{from} channels are mixed down to {to}"),
        }
    }
}

fn container_name(container: &Container) -> &str {
    match container {
        Container::Mp4 => "MP4",
        Container::Matroska => "Matroska",
        Container::Webm => "WebM",
        Container::MpegTs => "MPEG-TS",
        Container::Other(name) => name,
    }
}
