//! What is done to the sound.

use ether_encoder::{AudioAction, AudioCodec, AudioEncode, AudioTrack};
use ether_media::{Codec, Container, SoundGrid, Ticks};

use super::Arguments;
use crate::strand::Strand;

/// Samples of one AAC frame: the grid that encoded sound lies on, whatever run makes it.
const AAC_FRAME: i64 = 1_024;
/// Samples of one Opus frame of 20 ms, at the 48 kHz that Opus always has.
const OPUS_FRAME: i64 = 960;
/// Frames of sound that are encoded before the first one kept, so that it does not fade in.
const PREROLL_FRAMES: i64 = 2;
/// How much earlier than the picture sound may end without silence being added.
const SOUND_SLACK: Ticks = Ticks(Ticks::HZ / 10);

/// Channels are mixed down as ITU-R BS.775 has it: centre and surrounds 3 dB lower, the channel for effects left
/// out. That is as loud as the original and may be louder than what can be said, so peaks are turned down. A
/// tenth of a millisecond of looking ahead moves nothing that can be heard.
const LIMITER: &str = ",alimiter=limit=0.98:attack=0.1:release=100:level=0";

/// Samples of one frame of what is encoded.
fn frame(encode: &AudioEncode) -> i64 {
    match encode.codec {
        AudioCodec::Aac => AAC_FRAME,
        AudioCodec::Opus => OPUS_FRAME,
    }
}

/// Where sound starts on the file's clock, and the samples of each of its frames; `None` where its codec has
/// frames of several lengths.
pub(crate) fn sound_frames(strand: &Strand) -> Option<(Ticks, u32)> {
    let audio = strand.audio.as_ref()?;
    if let AudioAction::Encode(encode) = &audio.action {
        let timeline = &strand.timeline;
        let grid = match encode.codec {
            AudioCodec::Aac => SoundGrid::encoded_aac(encode.sample_rate),
            AudioCodec::Opus => SoundGrid::encoded_opus(timeline),
        };
        let zero = timeline.origin() - timeline.lead();
        return Some((grid.anchor.unwrap_or(zero), grid.length));
    }
    source_frames(strand, audio)
}

/// The same of the source's own frames.
fn source_frames(strand: &Strand, audio: &AudioTrack) -> Option<(Ticks, u32)> {
    let stream = strand.facts.stream(audio.stream)?;
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

/// The filter that gives frames the times that Matroska rounded to milliseconds: those of frames that follow each
/// other from the first one on. A run that began with a rounded time would have all its sound up to half a
/// millisecond off, which clicks where it follows another run's. Frames that are elsewhere, after a gap, keep the
/// times that they have.
fn unrounded(strand: &Strand, audio: &AudioTrack) -> String {
    let rounded = matches!(strand.facts.container, Container::Matroska | Container::Webm);
    match source_frames(strand, audio).filter(|_| rounded) {
        Some((start, length)) => {
            let nearest = format!("{start}*SR+{length}*round((PTS-{start}*SR)/{length})");
            format!("asetpts=if(lte(abs(PTS-st(0\\,{nearest}))\\,SR/900)\\,round(ld(0))\\,PTS),")
        }
        None => String::new(),
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sound {
    /// The source's.
    Source,
    /// Silence: the source's has ended, or a decoder would never see any of it.
    Silence,
}

/// The sound of an output that begins at `from` on the timeline, `None` for the film's own beginning.
pub(super) fn sound(strand: &Strand, from: Option<Ticks>) -> Option<(&AudioTrack, Sound)> {
    let audio = strand.audio.as_ref()?;
    let stream = strand.facts.stream(audio.stream)?;
    let end = stream
        .start
        .zip(stream.duration)
        .map(|(start, duration)| start + duration);
    let from = strand.timeline.origin() + from.unwrap_or_default();
    let over = end.is_some_and(|end| end <= from + Ticks(Ticks::HZ / 10));
    match (&audio.action, over && strand.picture) {
        (AudioAction::Copy, true) => None,
        (AudioAction::Encode(_), true) if strand.cut_short() => None,
        (AudioAction::Encode(_), true) => Some((audio, Sound::Silence)),
        (_, false) => Some((audio, Sound::Source)),
    }
}

/// Settings of the sound's encoder, and its filters.
pub(super) fn arguments(
    args: &mut Arguments,
    strand: &Strand,
    audio: &AudioTrack,
    source: Sound,
    from: Option<Ticks>,
) {
    match &audio.action {
        AudioAction::Copy => {
            args.add("-c:a copy");
            // Outside MP4 and Matroska, AAC comes in frames with headers of their own; what comes without passes.
            let stream = strand.facts.stream(audio.stream);
            let framed = !matches!(
                strand.facts.container,
                Container::Mp4 | Container::Matroska | Container::Webm
            );
            if framed && stream.is_some_and(|s| s.codec == Codec::Aac) {
                args.add("-bsf:a aac_adtstoasc");
            }
        }
        AudioAction::Encode(encode) => {
            args.add("-af");
            args.one(audio_filters(strand, audio, encode, source, from));
            args.add(match encode.codec {
                AudioCodec::Aac => "-c:a aac -b:a",
                AudioCodec::Opus => "-c:a libopus -frame_duration 20 -b:a",
            });
            args.one(encode.bit_rate.to_string());
            args.add("-ar");
            args.one(encode.sample_rate.to_string());
        }
    }
}

/// Sound on one grid of AAC frames from the output's zero on, gaps filled and overlaps removed, silent to the
/// end where the source's ends before the picture does. There are two resamplers because `first_pts` counts
/// samples of the rate that goes in: the rate is changed before it.
fn audio_filters(
    strand: &Strand,
    audio: &AudioTrack,
    encode: &AudioEncode,
    source: Sound,
    from: Option<Ticks>,
) -> String {
    let timeline = &strand.timeline;
    let rate = u64::from(encode.sample_rate);
    let zero = (timeline.origin() - timeline.lead()).to_timescale(rate);
    let length = frame(encode);
    let frame = from.map_or(0, |from| {
        let start = (from + timeline.lead()).to_timescale(rate);
        (start / length - PREROLL_FRAMES).max(0)
    });
    let first_sample = zero + frame * length;
    let end = timeline.origin() + timeline.end();
    let layout = layout(encode.channels);
    match source {
        Sound::Source => {
            let mut filters = unrounded(strand, audio);
            filters.push_str(&format!(
                "aresample={rate},aresample=async=1:min_hard_comp=0.02:first_pts={first_sample},\
                 aformat=sample_fmts=fltp:channel_layouts={layout}"
            ));
            if is_mixed_down(strand, encode) {
                filters.push_str(LIMITER);
            }
            if needs_padding(strand) {
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

/// Whether several channels may be added up.
fn is_mixed_down(strand: &Strand, encode: &AudioEncode) -> bool {
    let stream = strand
        .audio
        .as_ref()
        .and_then(|audio| strand.facts.stream(audio.stream));
    let channels = stream
        .and_then(|stream| stream.audio())
        .and_then(|facts| facts.channels);
    channels.is_none_or(|channels| channels > encode.channels)
}

/// Whether encoded sound may end before the picture does. Not where it is known to last, and not where the
/// file itself is cut short: silence would hide that.
pub(super) fn needs_padding(strand: &Strand) -> bool {
    let Some(AudioTrack {
        stream,
        action: AudioAction::Encode(_),
    }) = &strand.audio
    else {
        return false;
    };
    let stream = strand.facts.stream(*stream);
    let end = stream
        .and_then(|s| s.start.zip(s.duration))
        .map(|(start, duration)| start + duration);
    let picture = strand.timeline.origin() + strand.timeline.end();
    strand.picture && !strand.cut_short() && end.is_none_or(|end| end + SOUND_SLACK < picture)
}

/// FFmpeg's name of the usual layout of so many channels.
pub(super) fn layout(channels: u16) -> &'static str {
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
