//! The command line of a stream that FFmpeg packages itself: Matroska, sent as it is made, from any time on.
//!
//! Its clock is the one of every other protocol: the first frame of the film is shown at the timeline's lead, so
//! whoever asks for second 30 gets what a player of segments shows at second 30, stamped with 30. An encoded
//! picture begins with the first frame at or after that. A copied one can only begin with a keyframe: it is the
//! last one at or before it where the index knows one, so that nothing that was asked for is missing; frames that
//! are shown before that keyframe would refer to pictures which are not there, and are left out. Sound begins
//! with the picture.

use std::ffi::{OsStr, OsString};

use ether_encoder::{AudioAction, VideoAction};
use ether_media::{Codec, Container, Ticks};

use super::burn::Burn;
use super::sound::{self, Sound};
use super::{Arguments, codec, seek, sources};
use crate::strand::{RungSet, Strand};

/// Longest cluster in milliseconds. A cluster is sent when it is complete.
const CLUSTER_MILLIS: &str = "100";
/// Seconds between two keyframes of an encoded picture, for players that go back in what they have; and frames
/// where the rate is not known.
const KEYFRAME_SECONDS: u32 = 5;
const KEYFRAME_FRAMES: u32 = 150;
/// Half a millisecond: Matroska's own clock rounds to whole ones.
const ROUNDING: Ticks = Ticks(Ticks::HZ / 2_000);

/// One run that makes a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Stream {
    /// The arguments, the program's name not among them.
    pub(crate) args: Vec<OsString>,
    /// When the first picture is expected on the output's clock, where that is known beforehand.
    pub(crate) expected: Option<Ticks>,
    /// Whether silence is added to the sound where it ends before the picture.
    pub(crate) padded: bool,
    /// Whether it reads from the file's beginning: no later try can start earlier.
    pub(crate) from_start: bool,
}

/// The stream of `strand` that begins at `start` on the output's clock; `attempt` counts the tries that began
/// too late.
pub(crate) fn progressive(strand: &Strand, start: Ticks, attempt: u32, input: &OsStr) -> Stream {
    let timeline = &strand.timeline;
    let asked = Some(start - timeline.lead()).filter(|asked| *asked > Ticks::ZERO);
    let copied = matches!(&strand.video, Some(video) if video.action == VideoAction::Copy);
    let keyframe = asked.filter(|_| copied).and_then(|asked| keyframe(strand, asked));
    let from = match keyframe {
        Some(keyframe) => Some(keyframe).filter(|keyframe| *keyframe > Ticks::ZERO),
        None => asked,
    };
    let seek = seek::seek(strand, from, attempt);
    let sound = sound::sound(strand, from);
    let mut args = sources(strand, RungSet::one(0), seek, from, sound.as_ref(), input);
    match strand.video.as_ref().map(|video| &video.action) {
        Some(VideoAction::Copy) => {
            args.add("-c:v copy -bsf:v");
            args.one(match keyframe {
                Some(keyframe) => earlier_than(timeline.origin() + keyframe),
                None => "noise=drop=lt(pts\\,startpts)".to_owned(),
            });
        }
        Some(VideoAction::Encode(encode)) => {
            args.add("-fps_mode passthrough -enc_time_base 1:90000");
            codec::video_arguments(&mut args, encode, RungSet::one(0));
            let rate = encode.frame_rate.filter(|rate| rate.num > 0 && rate.den > 0);
            let group = rate.map_or(KEYFRAME_FRAMES, |rate| {
                (rate.num.div_ceil(rate.den)).saturating_mul(KEYFRAME_SECONDS)
            });
            args.add("-g");
            args.one(group.to_string());
        }
        None => {}
    }
    if let Some((audio, source)) = &sound {
        sound::arguments(&mut args, strand, audio, *source, from);
        if audio.action == AudioAction::Copy {
            // With no index it is not known where the picture begins: sound then begins where reading does.
            let begin = if copied && keyframe.is_none() && asked.is_some() {
                None
            } else {
                Some(from.unwrap_or(-timeline.lead()))
            };
            if let Some(begin) = begin {
                args.add("-bsf:a");
                args.one(earlier_than(timeline.origin() + begin));
            }
        }
        let language = strand
            .facts
            .stream(audio.stream)
            .and_then(|s| s.language.as_deref());
        if let Some(language) = language.filter(|language| is_tag(language)) {
            args.add("-metadata:s:a:0");
            args.one(format!("language={language}"));
        }
    }
    finish(&mut args, strand);
    if let Some(burn) = Burn::of(strand) {
        burn.pace(&mut args, strand, None);
    }
    Stream {
        args: args.0,
        expected: strand.video.as_ref().and_then(|_| match (copied, keyframe) {
            (true, keyframe) => keyframe.map(|keyframe| keyframe + timeline.lead()),
            (false, _) => asked.map(|asked| asked + timeline.lead()),
        }),
        padded: matches!(sound, Some((_, Sound::Silence))) || sound::needs_padding(strand),
        from_start: seek.is_none(),
    }
}

/// Why no stream of `strand` can be made, whatever FFmpeg is installed.
pub(crate) fn obstacle(strand: &Strand) -> Option<&'static str> {
    let audio = strand.audio.as_ref()?;
    let stream = strand.facts.stream(audio.stream)?;
    let framed = !matches!(
        strand.facts.container,
        Container::Mp4 | Container::Matroska | Container::Webm
    );
    // What Matroska's head says of AAC stands in the first frame, and the head is gone by then.
    let headers = audio.action == AudioAction::Copy && stream.codec == Codec::Aac && framed;
    headers.then_some("a way to copy AAC with frame headers into a stream")
}

/// The container: one that is not gone back to, with the length of the whole film in its head.
fn finish(args: &mut Arguments, strand: &Strand) {
    let timeline = &strand.timeline;
    args.add("-metadata");
    args.one(format!("DURATION={}", timeline.end() + timeline.lead()));
    args.add("-avoid_negative_ts disabled -output_ts_offset");
    args.one((timeline.lead() - timeline.origin()).to_string());
    args.add("-max_muxing_queue_size 9999 -cluster_time_limit");
    args.add(CLUSTER_MILLIS);
    args.add("-flush_packets 1 -strict -2 -f matroska pipe:1");
}

/// The last keyframe at or before `asked`, on the timeline, where a complete index knows it.
fn keyframe(strand: &Strand, asked: Ticks) -> Option<Ticks> {
    let video = strand.video.as_ref()?;
    let index = strand
        .facts
        .keyframes
        .as_ref()
        .filter(|index| index.stream == video.stream)?;
    let origin = strand.timeline.origin();
    let at = |time: &&Ticks| **time <= origin + asked + ROUNDING;
    index.times.iter().rev().find(at).map(|time| *time - origin)
}

/// A filter of packets that leaves out what is shown before `at` on the file's clock.
fn earlier_than(at: Ticks) -> String {
    format!("noise=drop=lt(pts*tb\\,{})", at - ROUNDING)
}

/// Whether `text` is a language's code and nothing else.
fn is_tag(text: &str) -> bool {
    (2..=35).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-')
}
