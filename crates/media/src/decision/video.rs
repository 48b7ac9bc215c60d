//! What happens to the picture.

use super::client::{Client, VideoSupport};
use super::h264::h264_level;
use super::hevc::hevc_level;
use super::holder::Holder;
use super::ladder;
use super::reason::Reason;
use super::sound::SOUND_SHARE;
use super::span::Span;
use super::{
    BitRate, CannotPlay, Force, LONGEST_COPIED_SEGMENT, Quality, VideoAction, VideoDecision, VideoTarget,
    Wishes,
};
use crate::facts::{
    ChromaSampling, Codec, Facts, FieldOrder, Gap, MasteringKind, Rational, Rotation, Stream, VideoFacts,
};
use crate::ticks::Ticks;
use crate::timeline::{Timeline, TimelineError};

/// Smallest bit rate that a picture is encoded at, whatever was asked for.
const LEAST: u64 = 40_000;
/// How much earlier than its film a keyframe may be through rounding alone.
const ROUNDING: Ticks = Ticks(Ticks::HZ / 500);

/// The picture at its best, its lesser qualities, and where all of them are cut.
type Decided = (VideoDecision, Vec<Quality>, Timeline);

/// Decides about `stream`, with `sound` bits a second already spoken for.
pub(super) fn decide(
    facts: &Facts,
    stream: &Stream,
    client: &Client,
    wishes: &Wishes,
    span: &Span,
    sound: u64,
) -> Result<Decided, CannotPlay> {
    let Some(video) = stream.video() else {
        return Err(CannotPlay::Nothing);
    };
    let source = Source {
        facts,
        stream,
        video,
        span,
    };
    if wishes.drawn {
        let why = Reason::SubtitleDrawn;
        return match wishes.video {
            Force::Copy => Err(CannotPlay::CannotCopy { why }),
            Force::Auto | Force::Encode => source.encode(client, wishes, sound, why).map_err(Into::into),
        };
    }
    if wishes.video != Force::Encode {
        match source.copy(client, wishes, sound) {
            Ok(Ok((copied, timeline))) => return Ok((copied, Vec::new(), timeline)),
            Ok(Err(error)) => return Err(error.into()),
            Err(why) if wishes.video == Force::Copy => return Err(CannotPlay::CannotCopy { why }),
            Err(why) => return source.encode(client, wishes, sound, why).map_err(Into::into),
        }
    }
    source
        .encode(client, wishes, sound, Reason::Asked)
        .map_err(Into::into)
}

/// The size that a player shows: square pixels, upright.
pub(super) fn shown(video: &VideoFacts) -> (u32, u32) {
    let width = match video.sample_aspect {
        Some(Rational { num, den }) if num > 0 && den > 0 => {
            let stretched = (u64::from(video.width) * u64::from(num) + u64::from(den) / 2) / u64::from(den);
            u32::try_from(stretched).unwrap_or(u32::MAX)
        }
        _ => video.width,
    };
    match video.rotation.degrees {
        90 | 270 => (video.height, width),
        _ => (width, video.height),
    }
}

/// The claimed rate, unless it is a container's clock rather than a rate.
pub(super) fn usable_rate(rate: Option<Rational>) -> Option<Rational> {
    rate.filter(|r| r.num > 0 && r.den > 0 && (1.0..=300.0).contains(&r.as_f64()))
}

/// Whether the player shows the stream as it is.
pub(super) fn playable(
    stream: &Stream,
    video: &VideoFacts,
    client: &Client,
    max_height: Option<u32>,
) -> Result<(), Reason> {
    supported(stream, video, &client.video)?;
    let range = video.color.mastering();
    if range != MasteringKind::Sdr && !client.hdr {
        return Err(Reason::RangeNotPlayable { range });
    }
    // Profile 5 has no base layer that a plain decoder shows in its right colours.
    if let Some(profile @ 5) = video.dolby_vision {
        return Err(Reason::DolbyVision { profile });
    }
    let interlaced = video.field_order.is_some_and(|o| o != FieldOrder::Progressive);
    if interlaced {
        return Err(Reason::Interlaced);
    }
    let height = shown(video).1;
    match height_limit(client, max_height) {
        Some(limit) if height > limit => Err(Reason::TooTall { height, limit }),
        _ => Ok(()),
    }
}

fn height_limit(client: &Client, max_height: Option<u32>) -> Option<u32> {
    [client.max_height, max_height].into_iter().flatten().min()
}

/// Compares the stream with what the player lists; the reason is that of the nearest entry.
fn supported(stream: &Stream, video: &VideoFacts, listed: &[VideoSupport]) -> Result<(), Reason> {
    let codec = &stream.codec;
    let mut nearest = Reason::CodecNotPlayable { codec: codec.clone() };
    for entry in listed.iter().filter(|entry| entry.codec == *codec) {
        match entry_plays(entry, video) {
            Ok(()) => return Ok(()),
            Err(why) => nearest = why,
        }
    }
    Err(nearest)
}

fn entry_plays(entry: &VideoSupport, video: &VideoFacts) -> Result<(), Reason> {
    if let Some(depth) = video.bit_depth.filter(|depth| *depth > entry.bit_depth) {
        return Err(Reason::BitDepthNotPlayable { depth });
    }
    if !chroma_within(&entry.codec, entry.profile, video.chroma) {
        return Err(Reason::ChromaNotPlayable);
    }
    if let Some(profile) = video.profile.filter(|p| !profile_within(entry, *p)) {
        return Err(Reason::ProfileNotPlayable { profile });
    }
    match (video.level, entry.level) {
        (Some(level), Some(limit)) if level > limit => Err(Reason::LevelTooHigh { level, limit }),
        _ => Ok(()),
    }
}

fn chroma_within(codec: &Codec, profile: u32, chroma: Option<ChromaSampling>) -> bool {
    use ChromaSampling::{Mono, Yuv420, Yuv422, Yuv444};
    match (chroma, codec) {
        (None | Some(Mono | Yuv420), _) => true,
        (Some(Yuv422), Codec::H264) => matches!(profile, 122 | 244),
        (Some(Yuv444), Codec::H264) => profile == 244,
        (Some(_), Codec::Hevc) => profile == 4,
        (Some(Yuv444), Codec::Av1) => matches!(profile, 1 | 2),
        (Some(Yuv422), Codec::Av1) => profile == 2,
        (Some(_), Codec::Vp9) => matches!(profile, 1 | 3),
        (Some(_), _) => false,
    }
}

fn profile_within(entry: &VideoSupport, profile: u32) -> bool {
    match entry.codec {
        // Each plays its own and those it contains: Baseline, Main, High, High 10, High 4:2:2, High 4:4:4.
        Codec::H264 => {
            let rank = |p: u32| match p {
                66 => Some(0),
                77 => Some(1),
                100 => Some(2),
                110 => Some(3),
                122 => Some(4),
                244 => Some(5),
                _ => None,
            };
            match (rank(profile), rank(entry.profile)) {
                (Some(stream), Some(listed)) => stream <= listed,
                _ => profile == entry.profile,
            }
        }
        Codec::Hevc => profile == entry.profile || (profile == 1 && matches!(entry.profile, 2 | 4)),
        _ => profile == entry.profile,
    }
}

struct Source<'a> {
    facts: &'a Facts,
    stream: &'a Stream,
    video: &'a VideoFacts,
    span: &'a Span,
}

impl Source<'_> {
    /// The decision to copy, or the first thing in the way of it.
    fn copy(
        &self,
        client: &Client,
        wishes: &Wishes,
        sound: u64,
    ) -> Result<Result<(VideoDecision, Timeline), TimelineError>, Reason> {
        // What is insisted on is not held against what the player listed: the asker knows better.
        let insisted = wishes.video == Force::Copy;
        if !insisted {
            playable(self.stream, self.video, client, wishes.max_height)?;
        }
        // What the asker says of the size in the same breath counts: nothing that is asked for is passed over.
        let height = shown(self.video).1;
        if let Some(limit) = wishes.max_height.filter(|limit| height > *limit) {
            return Err(Reason::TooTall { height, limit });
        }
        let codec = &self.stream.codec;
        let holder = Holder::of(wishes);
        if !holder.pictures(codec) {
            return Err(Reason::CodecNotInContainer { codec: codec.clone() });
        }
        if self.video.rotation != Rotation::default() {
            return Err(Reason::Rotated);
        }
        let index = self.stream.index;
        if self.facts.gaps.contains(&Gap::CodecConfig { index }) {
            return Err(Reason::NoDecoderConfig);
        }
        // Only playlists name codecs by strings.
        let codec_string = self.codec_string();
        if codec_string.is_none() && holder != Holder::Matroska {
            return Err(Reason::NoDecoderConfig);
        }
        let rate = self.rate(sound);
        if let Some(total) = wishes.max_bit_rate {
            let limit = total.saturating_sub(sound);
            if rate > limit {
                return Err(Reason::BitRateTooHigh { rate, limit });
            }
        }
        let timeline = match holder {
            // What is never cut needs no places to cut at.
            Holder::Matroska => Timeline::grid(self.span.origin, self.span.length, wishes.target, None),
            Holder::Fmp4 | Holder::MpegTs => self.keyframe_timeline(wishes, insisted)?,
        };
        let timeline = match timeline {
            Ok(timeline) => timeline,
            Err(error) => return Ok(Err(error)),
        };
        let reason = if insisted {
            Reason::Asked
        } else {
            Reason::ClientPlaysCodec
        };
        let decision = VideoDecision {
            stream: self.stream.index,
            action: VideoAction::Copy,
            codec: codec.clone(),
            codec_string,
            shown: shown(self.video),
            frame_rate: usable_rate(self.video.frame_rate),
            range: self.video.color.mastering(),
            rate: BitRate {
                average: rate,
                peak: rate.saturating_mul(ladder::PEAK),
            },
            reasons: vec![reason],
        };
        Ok(Ok((decision, timeline)))
    }

    /// The timeline of a copy, or why there is none that players can use.
    fn keyframe_timeline(
        &self,
        wishes: &Wishes,
        insisted: bool,
    ) -> Result<Result<Timeline, TimelineError>, Reason> {
        let index = self.facts.keyframes.as_ref();
        let index = index
            .filter(|k| k.stream == self.stream.index && !k.times.is_empty())
            .ok_or(Reason::NoKeyframeIndex)?;
        let span = self.span;
        // An edit list hides what leads up to its start. A copy has no way of hiding it: it would show more than the
        // film, and its first segment late.
        if index
            .times
            .first()
            .is_some_and(|first| *first + ROUNDING < span.origin)
        {
            return Err(Reason::StartsBetweenKeyframes);
        }
        let timeline = match Timeline::keyframes(span.origin, span.length, wishes.target, &index.times) {
            Ok(timeline) => timeline,
            Err(error) => return Ok(Err(error)),
        };
        let longest = (0..timeline.len()).map(|n| timeline.duration(n)).max();
        if let Some(longest) = longest.filter(|l| *l > LONGEST_COPIED_SEGMENT && !insisted) {
            return Err(Reason::KeyframesTooFarApart { longest });
        }
        Ok(Ok(timeline))
    }

    fn encode(
        &self,
        client: &Client,
        wishes: &Wishes,
        sound: u64,
        why: Reason,
    ) -> Result<Decided, TimelineError> {
        let rate = usable_rate(self.video.frame_rate);
        let budget = wishes
            .max_bit_rate
            .map(|total| total.saturating_sub(sound).max(LEAST));
        let limit = height_limit(client, wishes.max_height);
        let (width, height) = ladder::fit(shown(self.video), limit, budget, rate);
        let average = ladder::average_bit_rate(width, height, rate);
        let peak = average.saturating_mul(ladder::PEAK);
        let peak = budget.map_or(peak, |budget| peak.min(budget));
        let wide = self.wide(client, Holder::of(wishes), hevc_level(width, height, rate, peak));
        let quality = |(width, height), peak| self.quality((width, height), peak, rate, wide);
        let best = quality((width, height), peak);
        let lower = match wishes.ladder && Holder::of(wishes) != Holder::Matroska {
            true => ladder::below((width, height), peak, rate),
            false => Vec::new(),
        };
        let lower = lower
            .into_iter()
            .map(|(size, peak)| quality(size, peak))
            .collect();
        let decision = VideoDecision {
            stream: self.stream.index,
            action: VideoAction::Encode(best.target),
            codec: if wide.is_some() { Codec::Hevc } else { Codec::H264 },
            codec_string: Some(best.codec_string),
            shown: (width, height),
            frame_rate: rate,
            range: wide.unwrap_or(MasteringKind::Sdr),
            rate: best.rate,
            reasons: vec![why],
        };
        let timeline = Timeline::grid(self.span.origin, self.span.length, wishes.target, rate)?;
        Ok((decision, lower, timeline))
    }

    /// The wide dynamic range that an encode keeps: the source's own, where the player shows it and plays
    /// ten-bit HEVC at `level` in this container. Profile 5 of Dolby Vision has no colours to keep.
    fn wide(&self, client: &Client, holder: Holder, level: u8) -> Option<MasteringKind> {
        let range = self.video.color.mastering();
        let plays = client.video.iter().any(|entry| {
            entry.codec == Codec::Hevc
                && entry.bit_depth >= 10
                && entry.level.is_none_or(|limit| u32::from(level) <= limit)
        });
        let kept = range != MasteringKind::Sdr && self.video.dolby_vision != Some(5);
        (kept && client.hdr && plays && holder != Holder::MpegTs).then_some(range)
    }

    /// One quality of the encoded picture.
    fn quality(
        &self,
        (width, height): (u32, u32),
        peak: u64,
        rate: Option<Rational>,
        wide: Option<MasteringKind>,
    ) -> Quality {
        let range = self.video.color.mastering();
        let (level, codec_string) = match wide {
            // Main 10, Main tier; progressive pictures that are whole frames, which x265 says of them.
            Some(_) => {
                let level = hevc_level(width, height, rate, peak);
                (level, format!("hvc1.2.4.L{level}.90"))
            }
            None => {
                let level = h264_level(width, height, rate, peak);
                (level, format!("avc1.6400{level:02x}"))
            }
        };
        let interlaced = self
            .video
            .field_order
            .is_some_and(|o| o != FieldOrder::Progressive);
        Quality {
            target: VideoTarget {
                width,
                height,
                max_bit_rate: peak,
                level,
                deinterlace: interlaced,
                tone_map: wide.is_none()
                    && (range != MasteringKind::Sdr || self.video.dolby_vision == Some(5)),
            },
            codec_string,
            // How much of the bound is used only the pictures know: the bound is what can be said beforehand.
            rate: BitRate { average: peak, peak },
        }
    }

    /// Bits a second of the stream: stated, or what the file leaves for it.
    fn rate(&self, sound: u64) -> u64 {
        let whole = self.span.average(self.facts.size);
        let rest = || whole.saturating_sub(sound.min(whole / SOUND_SHARE));
        self.stream.bit_rate.unwrap_or_else(rest)
    }

    fn codec_string(&self) -> Option<String> {
        let stated = self.stream.codec_string.clone();
        stated.or_else(
            || match (&self.stream.codec, self.video.profile, self.video.level) {
                (Codec::H264, Some(profile), Some(level)) if profile < 256 && level < 256 => {
                    Some(format!("avc1.{profile:02x}00{level:02x}"))
                }
                _ => None,
            },
        )
    }
}
