//! The initialization segment, written by us from decoder configuration and track facts (D2).
//!
//! FFmpeg's own differs between versions for the same arguments (bit-rate boxes, edit lists, vendor names), so
//! only what a decoder needs is taken over. Two runs of one representation must agree on these bytes exactly.

use ether_media::Ticks;

use crate::boxes::{BoxWriter, be16, boxes, find};
use crate::pipe::PipeTrack;

/// Track number of the picture in every segment.
pub(crate) const VIDEO_ID: u32 = 1;
/// Track number of the sound in every segment.
pub(crate) const AUDIO_ID: u32 = 2;

/// Bytes of fixed fields before the boxes of a visual and of an audio sample entry.
const VISUAL_FIXED: usize = 78;
const AUDIO_FIXED: usize = 28;

/// Configuration and description boxes that are carried over; everything else varies without meaning.
const KEPT: [&[u8; 4]; 16] = [
    b"avcC", b"hvcC", b"av1C", b"vpcC", b"esds", b"dac3", b"dec3", b"dOps", b"dfLa", b"pasp", b"colr",
    b"clli", b"mdcv", b"dvcC", b"dvvC", b"SmDm",
];

/// The initialization segment for the tracks of a pipe; `None` where a track has no usable configuration.
/// Pictures are shown `reorder` earlier than their samples' times say.
pub(crate) fn write(video: Option<&PipeTrack>, audio: Option<&PipeTrack>, reorder: Ticks) -> Option<Vec<u8>> {
    let video = video.map(|track| visual_entry(track).map(|entry| (track, entry)));
    let audio = audio.map(|track| audio_entry(track).map(|entry| (track, entry)));
    if video.as_ref().is_some_and(Option::is_none) || audio.as_ref().is_some_and(Option::is_none) {
        return None;
    }
    let (video, audio) = (video.flatten(), audio.flatten());
    let mut w = BoxWriter::default();
    w.nested(b"ftyp", |w| {
        w.raw(b"iso6");
        w.u32(1);
        w.raw(b"iso6cmfcmp41");
    });
    w.nested(b"moov", |w| {
        w.full(b"mvhd", 0, 0, |w| {
            w.zeros(8);
            w.u32(1_000);
            w.u32(0);
            w.u32(0x0001_0000);
            w.u16(0x0100);
            w.zeros(10);
            matrix(w);
            w.zeros(24);
            w.u32(AUDIO_ID + 1);
        });
        if let Some((track, entry)) = &video {
            let (width, height) = (be16(&track.entry, 24), be16(&track.entry, 26));
            let (timescale, handler) = (Ticks::HZ as u32, *b"vide");
            let size = (width.unwrap_or(0), height.unwrap_or(0));
            self::track(
                w,
                &Track {
                    id: VIDEO_ID,
                    timescale,
                    handler,
                    size,
                    entry,
                    skip: reorder,
                },
            );
        }
        if let Some((track, entry)) = &audio {
            let (timescale, handler) = (track.timescale, *b"soun");
            self::track(
                w,
                &Track {
                    id: AUDIO_ID,
                    timescale,
                    handler,
                    size: (0, 0),
                    entry,
                    skip: Ticks::ZERO,
                },
            );
        }
        w.nested(b"mvex", |w| {
            for id in video
                .iter()
                .map(|_| VIDEO_ID)
                .chain(audio.iter().map(|_| AUDIO_ID))
            {
                w.full(b"trex", 0, 0, |w| {
                    w.u32(id);
                    w.u32(1);
                    w.zeros(12);
                });
            }
        });
    });
    Some(w.bytes)
}

/// The track of a picture that was encoded anew. FFmpeg 5.1 passes on what its source said of Dolby Vision, which
/// it is no longer.
pub(crate) fn anew(track: &PipeTrack) -> PipeTrack {
    let (fixed, children) = track.entry.split_at(track.entry.len().min(VISUAL_FIXED));
    let mut w = BoxWriter::default();
    w.raw(fixed);
    for child in boxes(children).filter(|child| !matches!(&child.kind, b"dvcC" | b"dvvC")) {
        w.nested(&child.kind, |w| w.raw(child.body));
    }
    let mut anew = track.clone();
    anew.entry = w.bytes;
    anew
}

fn matrix(w: &mut BoxWriter) {
    for value in [0x0001_0000, 0, 0, 0, 0x0001_0000, 0, 0, 0, 0x4000_0000] {
        w.u32(value);
    }
}

/// What a track's description says.
struct Track<'a> {
    id: u32,
    timescale: u32,
    handler: [u8; 4],
    size: (u16, u16),
    entry: &'a [u8],
    /// Time of the samples at which showing begins, in the track's timescale.
    skip: Ticks,
}

fn track(w: &mut BoxWriter, track: &Track<'_>) {
    let Track {
        id,
        timescale,
        handler,
        size: (width, height),
        entry,
        skip,
    } = *track;
    let picture = &handler == b"vide";
    w.nested(b"trak", |w| {
        w.full(b"tkhd", 0, 7, |w| {
            w.zeros(8);
            w.u32(id);
            w.zeros(4 + 4 + 8);
            w.u16(0);
            w.u16(0);
            w.u16(if picture { 0 } else { 0x0100 });
            w.u16(0);
            matrix(w);
            w.u32(u32::from(width) << 16);
            w.u32(u32::from(height) << 16);
        });
        if skip > Ticks::ZERO {
            w.nested(b"edts", |w| {
                w.full(b"elst", 0, 0, |w| {
                    w.u32(1);
                    w.u32(0); // to the end, however long
                    w.u32(u32::try_from(skip.0).unwrap_or(0));
                    w.u32(0x0001_0000);
                });
            });
        }
        w.nested(b"mdia", |w| {
            w.full(b"mdhd", 0, 0, |w| {
                w.zeros(8);
                w.u32(timescale);
                w.u32(0);
                w.u16(0x55c4); // "und": languages are named by the playlists
                w.u16(0);
            });
            w.full(b"hdlr", 0, 0, |w| {
                w.u32(0);
                w.raw(&handler);
                w.zeros(12);
                w.raw(if picture { b"picture\0" } else { b"sound\0" });
            });
            w.nested(b"minf", |w| {
                if picture {
                    w.full(b"vmhd", 0, 1, |w| w.zeros(8));
                } else {
                    w.full(b"smhd", 0, 0, |w| w.zeros(4));
                }
                w.nested(b"dinf", |w| {
                    w.full(b"dref", 0, 0, |w| {
                        w.u32(1);
                        w.full(b"url ", 0, 1, |_| {});
                    });
                });
                w.nested(b"stbl", |w| {
                    w.full(b"stsd", 0, 0, |w| {
                        w.u32(1);
                        w.raw(entry);
                    });
                    w.full(b"stts", 0, 0, |w| w.u32(0));
                    w.full(b"stsc", 0, 0, |w| w.u32(0));
                    w.full(b"stsz", 0, 0, |w| w.zeros(8));
                    w.full(b"stco", 0, 0, |w| w.u32(0));
                });
            });
        });
    });
}

fn visual_entry(track: &PipeTrack) -> Option<Vec<u8>> {
    let fixed = track.entry.get(..VISUAL_FIXED)?;
    let kind = match &track.entry_kind {
        // The parameter sets are in the configuration, and only then do Apple's players take HEVC.
        b"hev1" => b"hvc1",
        b"avc3" => b"avc1",
        other => other,
    };
    let mut w = BoxWriter::default();
    w.nested(kind, |w| {
        w.raw(&fixed[..42]);
        w.zeros(32); // the compressor's name
        w.raw(&fixed[74..]);
        kept_boxes(w, &track.entry[VISUAL_FIXED..]);
    });
    Some(w.bytes)
}

fn audio_entry(track: &PipeTrack) -> Option<Vec<u8>> {
    let (fixed, children) = track.entry.split_at_checked(AUDIO_FIXED)?;
    let channels = channels(&track.entry_kind, children).or(be16(fixed, 16))?;
    let mut w = BoxWriter::default();
    w.nested(&track.entry_kind, |w| {
        w.raw(&fixed[..16]);
        w.u16(channels);
        w.raw(&fixed[18..]);
        kept_boxes(w, children);
    });
    Some(w.bytes)
}

/// The channel count that belongs into a sample entry, which players overrule by the configuration: versions of
/// FFmpeg write different ones.
fn channels(kind: &[u8; 4], children: &[u8]) -> Option<u16> {
    match kind {
        b"mp4a" => {
            let config = decoder_config(find(children, b"esds")?)?;
            match be16(config.specific, 0)? >> 3 & 0xf {
                0 => None,
                7 => Some(8),
                count => Some(count),
            }
        }
        b"Opus" => find(children, b"dOps")?.get(1).copied().map(u16::from),
        // ETSI TS 102 366 fixes it, whatever the stream holds.
        b"ac-3" | b"ec-3" => Some(2),
        _ => None,
    }
}

fn kept_boxes(w: &mut BoxWriter, children: &[u8]) {
    for child in boxes(children).filter(|c| KEPT.contains(&&c.kind)) {
        match decoder_config(child.body).filter(|_| &child.kind == b"esds") {
            Some(config) => esds(w, config),
            None => w.nested(&child.kind, |w| w.raw(child.body)),
        }
    }
}

/// What an elementary stream descriptor says to a decoder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DecoderConfig<'a> {
    object_type: u8,
    stream_type: u8,
    pub(crate) specific: &'a [u8],
}

impl DecoderConfig<'_> {
    /// MPEG-1 or MPEG-2 audio, as opposed to AAC.
    pub(crate) fn is_mpeg_audio(&self) -> bool {
        matches!(self.object_type, 0x69 | 0x6b)
    }
}

/// Reads the body of an `esds` box.
pub(crate) fn decoder_config(esds: &[u8]) -> Option<DecoderConfig<'_>> {
    let (tag, es, _) = descriptor(esds.get(4..)?)?;
    let flags = *es.get(2)?;
    if tag != 3 || flags & 0xe0 != 0 {
        return None;
    }
    let (tag, config, _) = descriptor(es.get(3..)?)?;
    if tag != 4 {
        return None;
    }
    let (object_type, stream_type) = (*config.first()?, *config.get(1)?);
    let specific = match descriptor(config.get(13..)?) {
        Some((5, specific, _)) => specific,
        _ => &[],
    };
    Some(DecoderConfig {
        object_type,
        stream_type,
        specific,
    })
}

/// Tag, body and rest of the descriptor at the start of `bytes`.
fn descriptor(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let tag = *bytes.first()?;
    let mut size = 0_usize;
    let mut at = 1;
    loop {
        let byte = *bytes.get(at)?;
        size = (size << 7) | usize::from(byte & 0x7f);
        at += 1;
        if byte & 0x80 == 0 {
            break;
        }
        if at > 4 {
            return None;
        }
    }
    let (body, rest) = bytes.get(at..)?.split_at_checked(size)?;
    Some((tag, body, rest))
}

/// An `esds` box without buffer sizes and bit rates: those are measurements of one run.
fn esds(w: &mut BoxWriter, config: DecoderConfig<'_>) {
    // Configurations are a few bytes; the one-byte size form holds 127.
    let Some(specific) = u8::try_from(config.specific.len()).ok().filter(|n| *n < 90) else {
        return;
    };
    let extra = if specific > 0 { specific + 2 } else { 0 };
    w.full(b"esds", 0, 0, |w| {
        w.raw(&[3, 3 + 2 + 13 + extra + 3, 0, 0, 0]);
        w.raw(&[4, 13 + extra, config.object_type, config.stream_type]);
        w.zeros(11);
        if specific > 0 {
            w.raw(&[5, specific]);
            w.raw(config.specific);
        }
        w.raw(&[6, 1, 2]);
    });
}
