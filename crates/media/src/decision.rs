//! How one file reaches one viewer: as it is, repackaged, or encoded anew; picture and sound decided apart.
//!
//! A pure function of what is known of the file, what the viewer's player says it can show, and what the
//! viewer wishes. Every choice carries its reasons, as words for people and as codes for programs, because
//! "why is this being encoded?" is the question that owners ask most.

mod client;
mod h264;
mod hevc;
mod holder;
mod ladder;
mod reason;
mod sound;
mod span;
#[cfg(test)]
mod tests;
mod video;

use serde::Serialize;

use crate::facts::{Codec, Facts, Gap, MasteringKind, Rational, Stream, StreamKind};
use crate::ticks::Ticks;
use crate::timeline::{DEFAULT_TARGET, Timeline, TimelineError};

pub use client::{AudioSupport, Client, VideoSupport};
pub use h264::h264_level;
pub use hevc::hevc_level;
pub use ladder::{MOST_QUALITIES, average_bit_rate};
pub use reason::Reason;

/// Longest copied segment that is offered. Beyond it a player cannot start or seek in reasonable time, and a
/// segment may not fit the scratch space, so the picture is encoded instead.
pub const LONGEST_COPIED_SEGMENT: Ticks = Ticks(30 * Ticks::HZ);

/// Most sounds that are made of one film.
pub const MOST_SOUNDS: usize = 32;

/// Smallest total bit rate that may be asked for, in bits a second.
pub const MIN_BIT_RATE: u64 = 64_000;

/// What a viewer wishes beyond what the player can show.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wishes {
    /// Length that segments aim at.
    pub target: Ticks,
    /// Most bits a second for picture and sound together.
    pub max_bit_rate: Option<u64>,
    /// Greatest shown height in pixels.
    pub max_height: Option<u32>,
    /// What must happen to the picture.
    pub video: Force,
    /// Whether a subtitle is drawn into the picture, which is then encoded.
    pub drawn: bool,
    /// Which sound is wanted first.
    pub audio: AudioChoice,
    /// Which sounds are offered beside it.
    pub sounds: Sounds,
    /// How the presentation reaches the player.
    pub protocol: Protocol,
    /// Whether an encoded picture is offered in several qualities.
    pub ladder: bool,
    /// The container of HLS segments; the other protocols have one of their own.
    pub segments: SegmentKind,
    /// Whether the file itself may be handed over.
    pub direct: bool,
}

impl Default for Wishes {
    fn default() -> Self {
        Self {
            target: DEFAULT_TARGET,
            max_bit_rate: None,
            max_height: None,
            video: Force::Auto,
            drawn: false,
            audio: AudioChoice::Main,
            sounds: Sounds::All,
            protocol: Protocol::Hls,
            ladder: false,
            segments: SegmentKind::Fmp4,
            direct: true,
        }
    }
}

/// What must happen to the picture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Force {
    /// Whatever fits best.
    #[default]
    Auto,
    /// It is copied, or the request fails.
    Copy,
    /// It is encoded.
    Encode,
}

/// Which sound is wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AudioChoice {
    /// The file's main sound, if it has any.
    #[default]
    Main,
    /// None.
    Silent,
    /// The stream with this index.
    Stream(u32),
}

/// Which sounds are offered beside the one that is played first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sounds {
    /// Every other one of the file.
    #[default]
    All,
    /// None.
    One,
}

/// How a presentation reaches a player.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    /// HTTP Live Streaming.
    #[default]
    Hls,
    /// MPEG-DASH in fragmented MP4, picture and sounds apart.
    Dash,
    /// One Matroska stream with one picture and one sound, sent as it is made.
    Http,
}

/// The container of segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SegmentKind {
    /// Fragmented MP4.
    Fmp4,
    /// MPEG transport stream.
    #[serde(rename = "ts")]
    MpegTs,
}

/// The heaviest thing that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The file itself is handed over.
    Direct,
    /// Packets are repackaged into segments.
    Copy,
    /// Something is decoded and encoded anew.
    Encode,
}

/// The answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// The heaviest thing that is done.
    pub mode: Mode,
    /// The picture at its best, where there is one.
    pub video: Option<VideoDecision>,
    /// Lesser qualities of the same encoded picture, from the better down.
    pub lower: Vec<Quality>,
    /// The sound that is played first, where there is any.
    pub audio: Option<AudioDecision>,
    /// The other sounds on offer, in the file's order.
    pub other_audio: Vec<AudioDecision>,
    /// Sounds that this viewer is not offered and that belong to what is made all the same, so that it is the same
    /// for viewers who choose otherwise. One that nobody asks for costs nothing.
    pub unheard: Vec<AudioDecision>,
    /// How it is sent; absent when the file itself is handed over.
    pub protocol: Option<Protocol>,
    /// The container of segments; absent when there are none.
    pub segments: Option<SegmentKind>,
    /// Where every segment starts. A file that is handed over has one too: seeking and progress need its
    /// length.
    pub timeline: Timeline,
    /// Reasons that concern the whole.
    pub reasons: Vec<Reason>,
}

/// What happens to the picture.
#[derive(Clone, Debug, PartialEq)]
pub struct VideoDecision {
    /// FFmpeg's index of the source stream.
    pub stream: u32,
    /// Whether it is kept or encoded.
    pub action: VideoAction,
    /// The codec that the viewer gets.
    pub codec: Codec,
    /// RFC 6381 string of what the viewer gets; always there unless the file itself is handed over.
    pub codec_string: Option<String>,
    /// Width and height that a player shows, in square pixels.
    pub shown: (u32, u32),
    /// Frames a second, where the file claims a usable number.
    pub frame_rate: Option<Rational>,
    /// Dynamic range of what the viewer gets.
    pub range: MasteringKind,
    /// Estimated average and peak, in bits a second.
    pub rate: BitRate,
    /// Why.
    pub reasons: Vec<Reason>,
}

/// Whether the picture is kept or encoded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum VideoAction {
    /// The source's own packets.
    Copy,
    /// Decoded and encoded to the codec that the decision names: H.264 High profile with 8 bits, or HEVC Main 10
    /// where a wide dynamic range is kept; 4:2:0 either way.
    Encode(VideoTarget),
}

/// One lesser quality of an encoded picture. Codec, frame rate and dynamic range are those of the best.
#[derive(Clone, Debug, PartialEq)]
pub struct Quality {
    /// What the encoder is to make.
    pub target: VideoTarget,
    /// RFC 6381 string of what the viewer gets.
    pub codec_string: String,
    /// Estimated average and peak, in bits a second.
    pub rate: BitRate,
}

impl Decision {
    /// Every sound on offer, the one that is played first at the front.
    pub fn sounds(&self) -> impl Iterator<Item = &AudioDecision> {
        self.audio.iter().chain(&self.other_audio)
    }

    /// Every sound that is made where it is asked for, in the file's order, whichever is played first and whether this
    /// viewer is offered it or not.
    pub fn made_sounds(&self) -> Vec<&AudioDecision> {
        let mut made: Vec<&AudioDecision> = self.sounds().chain(&self.unheard).collect();
        made.sort_by_key(|sound| sound.stream);
        made
    }
}

/// What the encoder is to make of the picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct VideoTarget {
    /// Even width in square pixels, upright.
    pub width: u32,
    /// Even height in square pixels, upright.
    pub height: u32,
    /// Most bits in any second.
    pub max_bit_rate: u64,
    /// The codec's own number of the output's level: `level_idc` of H.264, `general_level_idc` of HEVC.
    pub level: u8,
    /// Whether fields are woven into pictures.
    pub deinterlace: bool,
    /// Whether a wide dynamic range is mapped to the standard one.
    pub tone_map: bool,
}

/// What happens to the sound.
#[derive(Clone, Debug, PartialEq)]
pub struct AudioDecision {
    /// FFmpeg's index of the source stream.
    pub stream: u32,
    /// Whether it is kept or encoded.
    pub action: AudioAction,
    /// The codec that the viewer gets.
    pub codec: Codec,
    /// RFC 6381 string of what the viewer gets; always there unless the file itself is handed over.
    pub codec_string: Option<String>,
    /// Channels that the viewer gets, where known.
    pub channels: Option<u16>,
    /// Estimated average and peak, in bits a second.
    pub rate: BitRate,
    /// Why.
    pub reasons: Vec<Reason>,
}

/// Whether the sound is kept or encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AudioAction {
    /// The source's own packets.
    Copy,
    /// Decoded and encoded to the codec that the decision names: AAC low complexity, or Opus.
    Encode(AudioTarget),
}

/// What the encoder is to make of the sound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AudioTarget {
    /// Channels, 1 to 8.
    pub channels: u16,
    /// Samples a second.
    pub sample_rate: u32,
    /// Bits a second.
    pub bit_rate: u64,
}

/// Bits a second. Estimates for what is copied, bounds for what is encoded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BitRate {
    /// Over the whole presentation.
    pub average: u64,
    /// Over any one segment.
    pub peak: u64,
}

/// Why nothing can be played.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CannotPlay {
    /// The file has neither moving pictures nor sound, or none is wanted.
    #[error("there is nothing to play: no moving picture and no sound")]
    Nothing,
    /// A chosen stream does not exist or is of another kind.
    #[error("the file has no {kind} stream {stream}")]
    NoSuchStream {
        /// `audio` or `video`.
        kind: &'static str,
        /// The index that was asked for.
        stream: u32,
    },
    /// A subtitle is to be drawn in, and there is no picture.
    #[error("there is no picture that a subtitle could be drawn into")]
    NothingToDrawOn,
    /// Copying was insisted on and cannot be.
    #[error("the picture cannot be copied: {why}")]
    CannotCopy {
        /// The first thing in the way.
        why: Reason,
    },
    /// How long the presentation is cannot be found out, so no complete playlist can be written.
    #[error("the file does not say how long it is")]
    LengthUnknown,
    /// The presentation cannot be cut into segments.
    #[error(transparent)]
    Timeline(#[from] TimelineError),
}

/// Decides how `facts` reach a player that is `client`, within `wishes`.
///
/// # Errors
/// [`CannotPlay`], which no other player would mend, except for what was insisted on.
pub fn decide(facts: &Facts, client: &Client, wishes: &Wishes) -> Result<Decision, CannotPlay> {
    let video = facts.main_video();
    let audio = chosen_audio(facts, wishes.audio)?;
    if video.is_none() && audio.is_none() {
        return Err(CannotPlay::Nothing);
    }
    let span = span::of(facts, video, audio).ok_or(CannotPlay::LengthUnknown)?;

    let mut reasons = Vec::new();
    if wishes.drawn {
        if video.is_none() {
            return Err(CannotPlay::NothingToDrawOn);
        }
        reasons.push(Reason::SubtitleDrawn);
    } else if wishes.direct {
        match direct(facts, video, audio, client, wishes, &span) {
            Ok(decision) => return Ok(decision?),
            Err(why) => reasons.push(why),
        }
    }

    let Made { others, unheard } = Made::of(facts, audio, wishes);
    let span = match video {
        Some(video) => span::alike(facts, video, others.iter().chain(&unheard).copied(), audio, span),
        None => span,
    };
    let sound = |stream| sound::decide(facts, video, stream, client, wishes, &span);
    let other_audio: Vec<AudioDecision> = others.iter().map(|stream| sound(stream)).collect();
    let unheard_audio = unheard.iter().map(|stream| sound(stream)).collect();
    let audio_decision = audio.map(sound);
    // One sound is fetched at a time: a bound on the whole has to hold with the thickest of them.
    let sound_rate = audio_decision
        .iter()
        .chain(&other_audio)
        .map(|s| s.rate.peak)
        .max();
    let (picture, lower, timeline) = match video {
        Some(stream) => {
            let sound_rate = sound_rate.unwrap_or(0);
            let (picture, lower, timeline) = video::decide(facts, stream, client, wishes, &span, sound_rate)?;
            (Some(picture), lower, timeline)
        }
        None => {
            let timeline = Timeline::grid(span.origin, span.length, wishes.target, None)?;
            (None, Vec::new(), timeline)
        }
    };
    // All sounds share one clock, which begins early enough for the earliest.
    let heard_or_not = audio.into_iter().chain(others).chain(unheard);
    let earliest = heard_or_not.filter_map(|s| s.start).min();
    let timeline = match earliest {
        Some(start) => timeline.with_sound_from(start),
        None => timeline,
    };
    let encodes = picture
        .as_ref()
        .is_some_and(|v| matches!(v.action, VideoAction::Encode(_)))
        || audio_decision
            .iter()
            .chain(&other_audio)
            .any(|a| matches!(a.action, AudioAction::Encode(_)));
    Ok(Decision {
        mode: if encodes { Mode::Encode } else { Mode::Copy },
        video: picture,
        lower,
        audio: audio_decision,
        other_audio,
        unheard: unheard_audio,
        protocol: Some(wishes.protocol),
        segments: holder::Holder::of(wishes).segments(),
        timeline,
        reasons,
    })
}

/// The sounds that are made beside the one that is played first.
#[derive(Default)]
struct Made<'a> {
    /// The viewer is offered them.
    others: Vec<&'a Stream>,
    /// The viewer is not. They are there where sounds come apart from the picture, so that whoever wishes silence, or
    /// no choice, has the same picture from the same encoder as everybody else.
    unheard: Vec<&'a Stream>,
}

impl<'a> Made<'a> {
    fn of(facts: &'a Facts, chosen: Option<&'a Stream>, wishes: &Wishes) -> Self {
        let of_the_file: Vec<&Stream> = facts.streams.iter().filter(|s| s.audio().is_some()).collect();
        let choice = of_the_file.len() > 1;
        // One sound alone comes together with the picture where the protocol allows it.
        let apart = match wishes.protocol {
            Protocol::Http => false,
            Protocol::Dash => true,
            Protocol::Hls => choice && (chosen.is_none() || wishes.sounds == Sounds::All),
        };
        let mut made = Self::default();
        if apart {
            let offered = chosen.is_some() && wishes.sounds == Sounds::All;
            let beside = if offered {
                &mut made.others
            } else {
                &mut made.unheard
            };
            let others = |stream: &&Stream| chosen.is_none_or(|chosen| chosen.index != stream.index);
            let room = MOST_SOUNDS - usize::from(chosen.is_some());
            beside.extend(of_the_file.into_iter().filter(others).take(room));
        }
        made
    }
}

fn chosen_audio(facts: &Facts, choice: AudioChoice) -> Result<Option<&Stream>, CannotPlay> {
    match choice {
        AudioChoice::Main => Ok(facts.main_audio()),
        AudioChoice::Silent => Ok(None),
        AudioChoice::Stream(index) => {
            let found = facts.stream(index).filter(|s| s.audio().is_some());
            found.map(Some).ok_or(CannotPlay::NoSuchStream {
                kind: "audio",
                stream: index,
            })
        }
    }
}

/// The decision to hand the file over, or the first thing that stands in the way of it.
fn direct(
    facts: &Facts,
    video: Option<&Stream>,
    audio: Option<&Stream>,
    client: &Client,
    wishes: &Wishes,
    span: &span::Span,
) -> Result<Result<Decision, TimelineError>, Reason> {
    if !client.plays_container(&facts.container) {
        return Err(Reason::ContainerNotPlayable {
            container: facts.container.clone(),
        });
    }
    // A player takes the head at its word and would show a film that goes on in silence and darkness.
    if facts.gaps.iter().any(|gap| matches!(gap, Gap::Truncated { .. })) {
        return Err(Reason::FileNotWhole);
    }
    // A player shows the first tracks of a file and cannot be told otherwise.
    let first = |chosen: Option<&Stream>, same: fn(&StreamKind) -> bool| {
        facts.streams.iter().find(|s| same(&s.kind)).map(|s| s.index) == chosen.map(|s| s.index)
    };
    if !first(video, |k| matches!(k, StreamKind::Video(_)))
        || !first(audio, |k| matches!(k, StreamKind::Audio(_)))
    {
        return Err(Reason::OtherTrackFirst);
    }
    let whole = span.average(facts.size);
    if let Some(limit) = wishes.max_bit_rate.filter(|limit| whole > *limit) {
        return Err(Reason::BitRateTooHigh { rate: whole, limit });
    }
    let rate = BitRate {
        average: whole,
        peak: whole,
    };
    let picture = match video {
        Some(stream) => {
            let facts = stream.video().ok_or(Reason::OtherTrackFirst)?;
            video::playable(stream, facts, client, wishes.max_height)?;
            Some(VideoDecision {
                stream: stream.index,
                action: VideoAction::Copy,
                codec: stream.codec.clone(),
                codec_string: stream.codec_string.clone(),
                shown: video::shown(facts),
                frame_rate: video::usable_rate(facts.frame_rate),
                range: facts.color.mastering(),
                rate,
                reasons: vec![Reason::ClientPlaysFile],
            })
        }
        None => None,
    };
    let sound = match audio {
        Some(stream) => {
            sound::playable(stream, client)?;
            Some(AudioDecision {
                stream: stream.index,
                action: AudioAction::Copy,
                codec: stream.codec.clone(),
                codec_string: stream.codec_string.clone(),
                channels: stream.audio().and_then(|a| a.channels),
                rate,
                reasons: vec![Reason::ClientPlaysFile],
            })
        }
        None => None,
    };
    let timeline = Timeline::grid(span.origin, span.length, wishes.target, None);
    Ok(timeline.map(|timeline| Decision {
        mode: Mode::Direct,
        video: picture,
        lower: Vec::new(),
        audio: sound,
        other_audio: Vec::new(),
        unheard: Vec::new(),
        protocol: None,
        segments: None,
        timeline,
        reasons: vec![Reason::ClientPlaysFile],
    }))
}
