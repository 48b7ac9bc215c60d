//! What happens to the sound.

use super::client::Client;
use super::holder::Holder;
use super::reason::Reason;
use super::span::Span;
use super::{AudioAction, AudioDecision, AudioTarget, BitRate, Wishes};
use crate::facts::{Codec, Container, Facts, Gap, Stream};
use crate::ticks::Ticks;

/// Sample rates that AAC knows, of those that every player plays.
const AAC_RATES: [u32; 8] = [48_000, 44_100, 32_000, 24_000, 22_050, 16_000, 12_000, 8_000];

/// How much later than the picture copied sound may begin, and how much earlier it may end: players stall on
/// larger holes.
const LATE: Ticks = Ticks(Ticks::HZ / 2);
const EARLY: Ticks = Ticks(Ticks::HZ);

/// Share of a total bit rate that sound may take, as one part in this many.
pub(super) const SOUND_SHARE: u64 = 4;

/// Most channels that AAC is encoded to.
const MOST_CHANNELS: u16 = 8;

pub(super) fn decide(
    facts: &Facts,
    picture: Option<&Stream>,
    stream: &Stream,
    client: &Client,
    wishes: &Wishes,
    span: &Span,
) -> AudioDecision {
    let share = wishes.max_bit_rate.map(|total| total / SOUND_SHARE);
    match copyable(facts, picture, stream, client, Holder::of(wishes), share) {
        Ok(codec_string) => {
            // Beside a picture, sound of unknown rate is taken for a small part of the file.
            let whole = span.average(facts.size);
            let most = if picture.is_some() {
                whole / SOUND_SHARE
            } else {
                whole
            };
            let assumed = assumed_rate(stream);
            let average = stream.bit_rate.unwrap_or_else(|| assumed.min(most));
            // What nobody measured is promised with room: a player that got more than it was told would stall.
            let room = average.saturating_mul(5) / 4;
            let peak = stream.bit_rate.map_or(room.max(assumed), |_| room);
            AudioDecision {
                stream: stream.index,
                action: AudioAction::Copy,
                codec: stream.codec.clone(),
                codec_string,
                channels: stream.audio().and_then(|a| a.channels),
                rate: BitRate { average, peak },
                reasons: vec![Reason::ClientPlaysCodec],
            }
        }
        Err(why) => encode(stream, client, Holder::of(wishes), share, why),
    }
}

/// Whether the player plays the stream itself.
pub(super) fn playable(stream: &Stream, client: &Client) -> Result<(), Reason> {
    let known = client.audio.iter().any(|listed| listed.plays(&stream.codec));
    // Extended HE-AAC (object type 42) is another decoder altogether.
    let extended = stream.codec == Codec::Aac && stream.audio().and_then(|a| a.profile) == Some(42);
    if known && !extended {
        Ok(())
    } else {
        Err(Reason::CodecNotPlayable {
            codec: stream.codec.clone(),
        })
    }
}

fn copyable(
    facts: &Facts,
    picture: Option<&Stream>,
    stream: &Stream,
    client: &Client,
    holder: Holder,
    share: Option<u64>,
) -> Result<Option<String>, Reason> {
    playable(stream, client)?;
    if !holder.sounds(&stream.codec) {
        return Err(Reason::CodecNotInContainer {
            codec: stream.codec.clone(),
        });
    }
    let framed = !matches!(
        facts.container,
        Container::Mp4 | Container::Matroska | Container::Webm
    );
    // The head of a stream that is never gone back to has to say what only the first frame says here.
    if holder == Holder::Matroska && framed && stream.codec == Codec::Aac {
        return Err(Reason::NoDecoderConfig);
    }
    let index = stream.index;
    if facts.gaps.contains(&Gap::CodecConfig { index }) {
        return Err(Reason::NoDecoderConfig);
    }
    if picture.is_some_and(|picture| short(picture, stream)) {
        return Err(Reason::SoundShort);
    }
    if let Some((rate, limit)) = stream.bit_rate.zip(share).filter(|(rate, limit)| rate > limit) {
        return Err(Reason::BitRateTooHigh { rate, limit });
    }
    let string = stream.codec_string.as_deref().or(match stream.codec {
        Codec::Mp3 => Some("mp4a.40.34"),
        Codec::Ac3 => Some("ac-3"),
        Codec::Eac3 => Some("ec-3"),
        Codec::Opus => Some("opus"),
        Codec::Flac => Some("flac"),
        _ => None,
    });
    // Only playlists name codecs by strings.
    if string.is_none() && holder != Holder::Matroska {
        return Err(Reason::NoDecoderConfig);
    }
    Ok(string.map(str::to_owned))
}

/// Whether the sound is known to leave a hole at either end of the picture.
fn short(picture: &Stream, sound: &Stream) -> bool {
    let (Some(shown), Some(heard)) = (picture.start, sound.start) else {
        return false;
    };
    let ends = picture.duration.zip(sound.duration);
    heard - shown > LATE || ends.is_some_and(|(p, s)| (shown + p) - (heard + s) > EARLY)
}

/// Whether the sound is encoded to Opus: for players that do not play AAC.
fn to_opus(client: &Client, holder: Holder) -> bool {
    let plays = |codec: &Codec| client.audio.iter().any(|listed| listed.plays(codec));
    holder != Holder::MpegTs && plays(&Codec::Opus) && !plays(&Codec::Aac)
}

fn encode(
    stream: &Stream,
    client: &Client,
    holder: Holder,
    share: Option<u64>,
    why: Reason,
) -> AudioDecision {
    let opus = to_opus(client, holder);
    let source = stream.audio();
    let from = source.and_then(|a| a.channels).unwrap_or(2).max(1);
    let mut channels = from.min(client.audio_channels.clamp(1, MOST_CHANNELS));
    // Layouts of seven or of four channels and the like are not AAC's own; the next smaller common one is.
    channels = match channels {
        8 => 8,
        6 | 7 => 6,
        1 => 1,
        _ => 2,
    };
    let wanted = source.and_then(|a| a.sample_rate).unwrap_or(48_000);
    // Opus has one rate on its clock, whatever it codes.
    let sample_rate = if AAC_RATES.contains(&wanted) && !opus {
        wanted
    } else {
        48_000
    };
    let full = match channels {
        1 => 96_000,
        2 => 160_000,
        6 => 384_000,
        _ => 512_000,
    };
    let least = 24_000 * u64::from(channels);
    let bit_rate = share.map_or(full, |share| full.min(share.max(least)));
    let mut reasons = vec![why];
    if channels < from {
        reasons.push(Reason::ChannelsReduced { from, to: channels });
    }
    AudioDecision {
        stream: stream.index,
        action: AudioAction::Encode(AudioTarget {
            channels,
            sample_rate,
            bit_rate,
        }),
        codec: if opus { Codec::Opus } else { Codec::Aac },
        codec_string: Some(if opus { "opus" } else { "mp4a.40.2" }.to_owned()),
        channels: Some(channels),
        rate: BitRate {
            average: bit_rate,
            peak: bit_rate.saturating_mul(5) / 4,
        },
        reasons,
    }
}

/// Bits a second of sound whose rate the container does not state.
fn assumed_rate(stream: &Stream) -> u64 {
    let channels = u64::from(stream.audio().and_then(|a| a.channels).unwrap_or(2));
    let each = if stream.codec == Codec::Flac {
        500_000
    } else {
        96_000
    };
    channels * each
}
