//! The exact command line of one run. Pure: a strand, a first segment, rungs and a try give arguments.
//!
//! What the arguments rely on was checked with FFmpeg 5.1 and 9.0, and nothing of it is particular to one
//! version: input seeking by absolute time, timestamps passed through, forced keyframes by a list of absolute
//! times (an expression would count from the run's first frame), fragmented MP4 with absolute decode times.

mod burn;
pub(crate) mod codec;
mod color;
mod picture;
mod progressive;
mod seek;
mod sound;

use std::ffi::{OsStr, OsString};

use ether_encoder::{AudioAction, AudioTrack, VideoAction};
use ether_media::Ticks;

use crate::origin::protocols;
use crate::strand::{RungSet, Strand};
use burn::Burn;
pub(crate) use progressive::{Stream, obstacle, progressive};
pub(crate) use sound::sound_frames;
use sound::{Sound, layout};

/// Most bounds in one run: the list of times must stay below what one argument may have (128 KiB).
const MAX_BOUNDS: usize = 6_000;
/// x264 keeps a pyramid of three B-frames, two frames deep; this is two frames at ten a second, for the slow
/// parts of variable rates.
const ENCODED_REORDER: Ticks = Ticks(Ticks::HZ / 5);
/// Frames of reordering in a copy that does not say: what encoders use, and one to spare.
const UNKNOWN_REORDER: u8 = 4;
/// Media time of one fragment in the pipe, in microseconds.
const FRAGMENT_MICROS: &str = "100000";

/// One run of FFmpeg.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The arguments, the program's name not among them.
    pub(crate) args: Vec<OsString>,
    /// Whether the run has sound; a run past the end of copied sound has none.
    pub(crate) sound: bool,
    /// The segment that the run ends before, where it does not go on to the end.
    pub(crate) until: Option<u32>,
    /// Whether silence is added to the sound where it ends before the picture.
    pub(crate) padded: bool,
    /// Whether it reads from the file's beginning: no later try can start earlier.
    pub(crate) from_start: bool,
}

/// The run that makes segment `first` and what follows of the qualities `rungs`; `attempt` counts the tries
/// that started too late.
pub(crate) fn plan(strand: &Strand, rungs: RungSet, first: u32, attempt: u32, input: &OsStr) -> Plan {
    let from = (first > 0).then(|| strand.timeline.start(first as usize));
    let seek = seek::seek(strand, from, attempt);
    let bounds = strand.timeline.len();
    let until = first as usize + MAX_BOUNDS;
    let until = (until < bounds && strand.encode().is_some()).then_some(until);
    let burn = Burn::of(strand);
    let sound = sound::sound(strand, from);
    // A frame that is shown a little early belongs to the segment all the same.
    let cut = from.map(|from| from - picture::slack(&strand.timeline));
    let mut args = sources(strand, rungs, seek, cut, sound.as_ref(), input);
    match strand.video.as_ref().map(|video| &video.action) {
        Some(VideoAction::Copy) => args.add("-c:v copy"),
        Some(VideoAction::Encode(encode)) => {
            args.add("-fps_mode passthrough -enc_time_base 1:90000");
            codec::video_arguments(&mut args, encode, rungs);
            let times = picture::forced_keyframes(&strand.timeline, first, until);
            if !times.is_empty() {
                codec::keyframe_arguments(&mut args, encode, rungs, &times);
            }
        }
        None => {}
    }
    if let Some((audio, source)) = &sound {
        sound::arguments(&mut args, strand, audio, *source, from);
    }
    let end = until.map(|until| strand.timeline.origin() + strand.timeline.start(until));
    if let Some(end) = end {
        args.add("-to");
        args.one(end.to_string());
    }
    args.add("-avoid_negative_ts disabled -max_muxing_queue_size 9999 -flush_packets 1 -strict -2 -f mp4");
    args.add(
        "-use_editlist 0 -movflags +delay_moov+default_base_moof+frag_keyframe+frag_discont -frag_duration",
    );
    args.add(FRAGMENT_MICROS);
    args.add("pipe:1");
    if let Some(burn) = burn {
        burn.pace(&mut args, strand, end);
    }
    Plan {
        args: args.0,
        padded: matches!(sound, Some((_, Sound::Silence))) || sound::needs_padding(strand),
        sound: sound.is_some(),
        until: until.and_then(|n| u32::try_from(n).ok()),
        from_start: seek.is_none(),
    }
}

/// Everything up to the outputs' own settings: what is read from where on, and which streams of it are mapped,
/// the picture first. Nothing shown before `cut` on the timeline is among an encoded picture.
fn sources(
    strand: &Strand,
    rungs: RungSet,
    seek: Option<Ticks>,
    cut: Option<Ticks>,
    sound: Option<&(&AudioTrack, Sound)>,
    input: &OsStr,
) -> Arguments {
    let mut args = Arguments::default();
    args.add("-hide_banner -nostdin -nostats -loglevel warning");
    codec::device_arguments(&mut args, strand.device());
    codec::decoder_arguments(&mut args, strand);
    let burn = Burn::of(strand);
    if strand.encode().is_some() {
        args.add("-noautorotate");
    }
    if let Some(at) = seek {
        args.add("-noaccurate_seek -seek_timestamp 1 -ss");
        args.one(at.to_string());
    }
    args.add("-copyts -protocol_whitelist");
    args.one(protocols(input));
    args.add("-i");
    args.one(input);
    if let Some(burn) = burn {
        burn.input(&mut args, strand, seek, input);
    }
    if let Some((audio, Sound::Silence)) = sound
        && let AudioAction::Encode(encode) = &audio.action
    {
        args.add("-f lavfi -i");
        args.one(format!(
            "anullsrc=r={}:cl={}",
            encode.sample_rate,
            layout(encode.channels)
        ));
    }
    if let Some(video) = &strand.video {
        picture::map(&mut args, strand, video, rungs, cut, input);
    }
    match sound {
        Some((audio, Sound::Source)) => {
            args.add("-map");
            args.one(format!("0:{}", audio.stream));
        }
        Some((_, Sound::Silence)) => {
            args.add("-map");
            args.one(format!("{}:a:0", 1 + burn.map_or(0, Burn::inputs)));
        }
        None => {}
    }
    args.add("-map_metadata -1 -map_chapters -1 -sn -dn");
    args
}

/// How much earlier than shown in order pictures must be decoded, so that none is shown before it is decoded.
/// A constant of the representation, whoever makes it.
pub(crate) fn reorder(strand: &Strand) -> Ticks {
    let Some(track) = &strand.video else {
        return Ticks::ZERO;
    };
    match &track.action {
        VideoAction::Encode(_) => ENCODED_REORDER,
        VideoAction::Copy => {
            let facts = strand.facts.stream(track.stream).and_then(|s| s.video());
            let frames = i64::from(facts.and_then(|f| f.reorder).unwrap_or(UNKNOWN_REORDER));
            let rate = facts.and_then(|f| f.frame_rate);
            let frame = rate.map_or(Ticks(3_750), |r| {
                Ticks::from_timescale(i64::from(r.den), u64::from(r.num))
            });
            Ticks(frames * frame.0.clamp(900, 9_000))
        }
    }
}

/// Arguments that are being put together.
#[derive(Default)]
pub(crate) struct Arguments(pub(crate) Vec<OsString>);

impl Arguments {
    /// Arguments that hold no space.
    pub(crate) fn add(&mut self, words: &str) {
        self.0.extend(words.split(' ').map(OsString::from));
    }

    pub(crate) fn one(&mut self, word: impl Into<OsString>) {
        self.0.push(word.into());
    }
}
