//! The exact command line of one run. Pure: a request, a first segment and a try give arguments.
//!
//! What the arguments rely on was checked with FFmpeg 5.1 and 9.0, and nothing of it is particular to one
//! version: input seeking by absolute time, timestamps passed through, forced keyframes by a list of absolute
//! times (an expression would count from the run's first frame), fragmented MP4 with absolute decode times.

use std::ffi::{OsStr, OsString};

use ether_encoder::{
    AudioAction, AudioCodec, AudioEncode, AudioTrack, Protocol, Request, SegmentContainer, VideoAction,
    VideoCodec, VideoEncode, VideoTrack,
};
use ether_media::{Codec, Container, Cut, Facts, Gap, Ticks, Timeline};

/// Samples of one AAC frame: the grid that encoded sound lies on, whatever run makes it.
const AAC_FRAME: i64 = 1_024;
/// Frames of sound that are encoded before the first one kept, so that it does not fade in.
const PREROLL_FRAMES: i64 = 2;
/// Most bounds in one run: the list of times must stay below what one argument may have (128 KiB).
const MAX_BOUNDS: usize = 6_000;
/// Extra distance before the first segment at which a try starts reading; the one after the last starts at the
/// beginning of the file.
const MARGINS: [Ticks; 3] = [Ticks(0), Ticks(10 * Ticks::HZ), Ticks(60 * Ticks::HZ)];
/// How much earlier than the picture sound may end without silence being added.
const SOUND_SLACK: Ticks = Ticks(Ticks::HZ / 10);
/// x264 keeps a pyramid of three B-frames, two frames deep; this is two frames at ten a second, for the slow
/// parts of variable rates.
const ENCODED_REORDER: Ticks = Ticks(Ticks::HZ / 5);
/// Frames of reordering in a copy that does not say: what encoders use, and one to spare.
const UNKNOWN_REORDER: u8 = 4;
/// Media time of one fragment in the pipe, in microseconds.
const FRAGMENT_MICROS: &str = "100000";

/// One run of FFmpeg.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The arguments, the program's name not among them.
    pub args: Vec<OsString>,
    /// Whether the run has sound; a run past the end of copied sound has none.
    pub sound: bool,
    /// The segment that the run ends before, where it does not go on to the end.
    pub until: Option<u32>,
    /// Whether silence is added to the sound where it ends before the picture.
    pub padded: bool,
    /// Whether it reads from the file's beginning: no later try can start earlier.
    pub from_start: bool,
}

/// The run that makes segment `first` and what follows; `attempt` counts the tries that started too late.
pub fn plan(request: &Request, first: u32, attempt: u32, input: &OsStr) -> Plan {
    let seek = seek(request, first, attempt);
    let bounds = request.timeline.len();
    let until = first as usize + MAX_BOUNDS;
    let until = (until < bounds && has_encoded_video(request)).then_some(until);
    let mut args = Arguments::default();
    args.add("-hide_banner -nostdin -nostats -loglevel warning");
    if let Some(at) = seek {
        args.add("-noaccurate_seek -seek_timestamp 1 -ss");
        args.one(at.to_string());
    }
    args.add("-copyts -protocol_whitelist file,pipe -i");
    args.one(file_url(input));
    let sound = sound(request, first);
    if let Some((audio, Sound::Silence)) = &sound
        && let AudioAction::Encode(encode) = &audio.action
    {
        args.add("-f lavfi -i");
        args.one(format!(
            "anullsrc=r={}:cl={}",
            encode.sample_rate,
            layout(encode.channels)
        ));
    }
    if let Some(video) = &request.video {
        args.add("-map");
        args.one(format!("0:{}", video.stream));
    }
    match &sound {
        Some((audio, Sound::Source)) => {
            args.add("-map");
            args.one(format!("0:{}", audio.stream));
        }
        Some((_, Sound::Silence)) => args.add("-map 1:a:0"),
        None => {}
    }
    args.add("-map_metadata -1 -map_chapters -1 -sn -dn");
    if let Some(video) = &request.video {
        video_arguments(&mut args, request, video, first, until);
    }
    if let Some((audio, from)) = &sound {
        audio_arguments(&mut args, request, audio, *from, first);
    }
    if let Some(until) = until {
        args.add("-to");
        args.one((request.timeline.origin() + request.timeline.start(until)).to_string());
    }
    args.add("-avoid_negative_ts disabled -max_muxing_queue_size 9999 -flush_packets 1 -strict -2 -f mp4");
    args.add(
        "-use_editlist 0 -movflags +delay_moov+default_base_moof+frag_keyframe+frag_discont -frag_duration",
    );
    args.add(FRAGMENT_MICROS);
    args.add("pipe:1");
    Plan {
        args: args.0,
        padded: matches!(sound, Some((_, Sound::Silence))) || needs_padding(request),
        sound: sound.is_some(),
        until: until.and_then(|n| u32::try_from(n).ok()),
        from_start: seek.is_none(),
    }
}

/// How much earlier than shown in order pictures must be decoded, so that none is shown before it is decoded.
/// A constant of the representation, whoever makes it.
pub(crate) fn reorder(request: &Request) -> Ticks {
    let Some(track) = &request.video else {
        return Ticks::ZERO;
    };
    match &track.action {
        VideoAction::Encode(_) => ENCODED_REORDER,
        VideoAction::Copy => {
            let facts = request.facts.stream(track.stream).and_then(|s| s.video());
            let frames = i64::from(facts.and_then(|f| f.reorder).unwrap_or(UNKNOWN_REORDER));
            let rate = facts.and_then(|f| f.frame_rate);
            let frame = rate.map_or(Ticks(3_750), |r| {
                Ticks::from_timescale(i64::from(r.den), u64::from(r.num))
            });
            Ticks(frames * frame.0.clamp(900, 9_000))
        }
    }
}

/// Where sound starts on the file's clock, and the samples of each of its frames; `None` where its codec has
/// frames of several lengths.
pub(crate) fn sound_frames(request: &Request) -> Option<(Ticks, u32)> {
    let audio = request.audio.as_ref()?;
    if let AudioAction::Encode(AudioEncode {
        codec: AudioCodec::Aac,
        ..
    }) = audio.action
    {
        return Some((
            request.timeline.origin() - request.timeline.lead(),
            AAC_FRAME as u32,
        ));
    }
    let stream = request.facts.stream(audio.stream)?;
    let length = match stream.codec {
        // A frame of HE-AAC is two of these.
        Codec::Aac => 1_024,
        Codec::Ac3 | Codec::Eac3 => 1_536,
        // A frame of a high sample rate is two of these.
        Codec::Mp3 => 576,
        _ => return None,
    };
    Some((stream.start?, length))
}

#[derive(Default)]
struct Arguments(Vec<OsString>);

impl Arguments {
    /// Arguments that hold no space.
    fn add(&mut self, words: &str) {
        self.0.extend(words.split(' ').map(OsString::from));
    }

    fn one(&mut self, word: impl Into<OsString>) {
        self.0.push(word.into());
    }
}

/// Names a file so that nothing in its name is taken for a protocol, an option or a pattern.
fn file_url(path: &OsStr) -> OsString {
    let mut url = OsString::from("file:");
    url.push(path);
    url
}

fn has_encoded_video(request: &Request) -> bool {
    matches!(
        request.video,
        Some(VideoTrack {
            action: VideoAction::Encode(_),
            ..
        })
    )
}

/// Where reading starts, on the file's clock; `None` for its beginning.
fn seek(request: &Request, first: u32, attempt: u32) -> Option<Ticks> {
    let margin = *MARGINS.get(attempt as usize)?;
    if first == 0 {
        return None;
    }
    let (timeline, facts) = (&request.timeline, &request.facts);
    let start = timeline.origin() + timeline.start(first as usize);
    let at = if has_encoded_video(request) {
        encode_seek(timeline, facts, start)
    } else {
        copy_seek(facts, start)
    };
    let at = at - margin;
    (at > facts.start).then_some(at)
}

/// Decoding needs the keyframe before the first frame, and a little sound before that frame.
fn encode_seek(timeline: &Timeline, facts: &Facts, start: Ticks) -> Ticks {
    let slack = if let Cut::Grid { slack, .. } = timeline.cut() {
        slack
    } else {
        Ticks::ZERO
    };
    let at = start - slack - Ticks(Ticks::HZ * 15 / 100);
    if facts.container != Container::MpegTs {
        return at;
    }
    // FFmpeg seeks in a transport stream by time alone and lands between keyframes: aim before one that is
    // known, else so far ahead that one lies in between.
    let known = facts
        .keyframes
        .as_ref()
        .and_then(|index| index.times.iter().rev().find(|t| **t <= at));
    known.copied().unwrap_or(at - Ticks(10 * Ticks::HZ)) - Ticks(Ticks::HZ / 2)
}

/// The index of MP4 holds every track apart, so reading can start at the keyframe itself. Elsewhere sound of
/// the same time may be stored before the keyframe.
fn copy_seek(facts: &Facts, start: Ticks) -> Ticks {
    match facts.container {
        Container::Mp4 => start,
        _ => start - Ticks(Ticks::HZ),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Sound {
    /// The source's.
    Source,
    /// Silence: the source's has ended, or a decoder would never see any of it.
    Silence,
}

fn sound(request: &Request, first: u32) -> Option<(&AudioTrack, Sound)> {
    let audio = request.audio.as_ref()?;
    let stream = request.facts.stream(audio.stream)?;
    let end = stream
        .start
        .zip(stream.duration)
        .map(|(start, duration)| start + duration);
    let from = request.timeline.origin() + request.timeline.start(first as usize);
    let over = end.is_some_and(|end| end <= from + Ticks(Ticks::HZ / 10));
    match (&audio.action, over && request.video.is_some()) {
        (AudioAction::Copy, true) => None,
        (AudioAction::Encode(_), true) if cut_short(&request.facts) => None,
        (AudioAction::Encode(_), true) => Some((audio, Sound::Silence)),
        (_, false) => Some((audio, Sound::Source)),
    }
}

fn video_arguments(
    args: &mut Arguments,
    request: &Request,
    video: &VideoTrack,
    first: u32,
    until: Option<usize>,
) {
    match &video.action {
        VideoAction::Copy => args.add("-c:v copy"),
        VideoAction::Encode(encode) => {
            args.add("-vf");
            args.one(video_filters(&request.timeline, encode, first));
            args.add("-fps_mode passthrough -enc_time_base 1:90000");
            x264_arguments(args, encode);
            let times = forced_keyframes(&request.timeline, first, until);
            if !times.is_empty() {
                args.add("-force_key_frames");
                args.one(times);
            }
        }
    }
}

fn video_filters(timeline: &Timeline, encode: &VideoEncode, first: u32) -> String {
    let mut filters = Vec::new();
    let slack = if let Cut::Grid { slack, .. } = timeline.cut() {
        slack
    } else {
        Ticks::ZERO
    };
    // The file's own beginning is never cut: its first frame is the first frame.
    if first > 0 {
        let from = timeline.origin() + timeline.start(first as usize) - slack;
        filters.push(format!("trim=start={from}"));
    }
    if encode.deinterlace {
        filters.push("bwdif=mode=send_frame:deint=interlaced".to_owned());
    }
    filters.push(format!("scale={}:{}:flags=bicubic", encode.width, encode.height));
    filters.push("setsar=1,format=yuv420p".to_owned());
    filters.join(",")
}

/// Settings of x264: `veryfast` with a constant quality of 21 under the plan's ceiling, one second of buffer.
/// The closed groups start where a segment does; x264 may add keyframes between at a change of scene.
fn x264_arguments(args: &mut Arguments, encode: &VideoEncode) {
    let VideoCodec::H264 = encode.codec;
    args.add("-c:v libx264 -preset veryfast -profile:v high -level:v");
    args.one(format!("{}.{}", encode.level / 10, encode.level % 10));
    args.add("-crf 21 -maxrate");
    args.one(encode.max_bit_rate.to_string());
    args.add("-bufsize");
    args.one(encode.max_bit_rate.to_string());
    args.add("-g 100000 -keyint_min 1 -forced-idr 1");
}

/// The times at which frames are forced to be keyframes, as FFmpeg compares them: at or after each.
fn forced_keyframes(timeline: &Timeline, first: u32, until: Option<usize>) -> String {
    let slack = if let Cut::Grid { slack, .. } = timeline.cut() {
        slack
    } else {
        Ticks::ZERO
    };
    let end = until.unwrap_or(timeline.len()).min(timeline.len());
    let times =
        (first as usize + 1..end).map(|n| (timeline.origin() + timeline.start(n) - slack).to_string());
    times.collect::<Vec<_>>().join(",")
}

fn audio_arguments(args: &mut Arguments, request: &Request, audio: &AudioTrack, from: Sound, first: u32) {
    match &audio.action {
        AudioAction::Copy => {
            args.add("-c:a copy");
            // Outside MP4 and Matroska, AAC comes in frames with headers of their own; what comes without passes.
            let stream = request.facts.stream(audio.stream);
            let framed = !matches!(
                request.facts.container,
                Container::Mp4 | Container::Matroska | Container::Webm
            );
            if framed && stream.is_some_and(|s| s.codec == Codec::Aac) {
                args.add("-bsf:a aac_adtstoasc");
            }
        }
        AudioAction::Encode(encode) => {
            let AudioCodec::Aac = encode.codec;
            args.add("-af");
            args.one(audio_filters(request, encode, from, first));
            args.add("-c:a aac -b:a");
            args.one(encode.bit_rate.to_string());
            args.add("-ar");
            args.one(encode.sample_rate.to_string());
        }
    }
}

/// Sound on one grid of AAC frames from the output's zero on, gaps filled and overlaps removed, silent to the
/// end where the source's ends before the picture does. There are two resamplers because `first_pts` counts
/// samples of the rate that goes in: the rate is changed before it.
fn audio_filters(request: &Request, encode: &AudioEncode, from: Sound, first: u32) -> String {
    let timeline = &request.timeline;
    let rate = u64::from(encode.sample_rate);
    let zero = (timeline.origin() - timeline.lead()).to_timescale(rate);
    let start = (timeline.start(first as usize) + timeline.lead()).to_timescale(rate);
    let frame = if first == 0 {
        0
    } else {
        (start / AAC_FRAME - PREROLL_FRAMES).max(0)
    };
    let first_sample = zero + frame * AAC_FRAME;
    let end = timeline.origin() + timeline.end();
    let layout = layout(encode.channels);
    match from {
        Sound::Source => {
            let mut filters = format!(
                "aresample={rate},aresample=async=1:min_hard_comp=0.02:first_pts={first_sample},\
                 aformat=sample_fmts=fltp:channel_layouts={layout}"
            );
            if needs_padding(request) {
                filters.push_str(&format!(",apad,atrim=end={end}"));
            }
            filters
        }
        Sound::Silence => {
            format!(
                "asetpts=N+{first_sample},atrim=end={end},aformat=sample_fmts=fltp:channel_layouts={layout}"
            )
        }
    }
}

/// Whether encoded sound may end before the picture does. Not where it is known to last, and not where the
/// file itself is cut short: silence would hide that.
fn needs_padding(request: &Request) -> bool {
    let Some(AudioTrack {
        stream,
        action: AudioAction::Encode(_),
    }) = &request.audio
    else {
        return false;
    };
    let stream = request.facts.stream(*stream);
    let end = stream
        .and_then(|s| s.start.zip(s.duration))
        .map(|(start, duration)| start + duration);
    let picture = request.timeline.origin() + request.timeline.end();
    request.video.is_some() && !cut_short(&request.facts) && end.is_none_or(|end| end + SOUND_SLACK < picture)
}

/// Whether the file ends before its own structure says it does.
pub(crate) fn cut_short(facts: &Facts) -> bool {
    facts.gaps.iter().any(|gap| matches!(gap, Gap::Truncated { .. }))
}

/// FFmpeg's name of the usual layout of so many channels.
fn layout(channels: u16) -> &'static str {
    match channels {
        1 => "mono",
        3 => "2.1",
        4 => "4.0",
        5 => "5.0",
        6 => "5.1",
        7 => "6.1",
        8 => "7.1",
        _ => "stereo",
    }
}

/// The container of the request's segments.
pub(crate) fn container(request: &Request) -> SegmentContainer {
    let Protocol::Hls { container } = request.protocol;
    container
}
