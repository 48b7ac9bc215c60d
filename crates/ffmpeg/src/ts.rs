//! Writes MPEG transport stream segments from the same samples that the MP4 segments hold.
//!
//! Every segment starts with its tables and a keyframe, and its continuity counters start at zero and come back
//! to zero: each stream's packets are a multiple of sixteen. So segments of different runs follow each other
//! without a jump, and a segment is the same whoever made it.

use std::io::{self, Read, Write};

use ether_media::Ticks;

use crate::boxes::{be16, find};
use crate::fragment::decoding_times;
use crate::init::decoder_config;
use crate::pipe::PipeTrack;
use crate::segmenter::Table;

/// The media clock's zero in transport streams: ten seconds, so that nothing precedes zero.
const OFFSET: i64 = 10 * Ticks::HZ;
/// How far the program clock runs ahead of decoding.
const CLOCK_LEAD: i64 = Ticks::HZ / 2;
const PACKET: usize = 188;
const PAT_PID: u16 = 0;
const PMT_PID: u16 = 0x1000;
const VIDEO_PID: u16 = 0x100;
const AUDIO_PID: u16 = 0x101;
/// Times in a stream have 33 bits.
const WRAP: i64 = 1 << 33;

/// How a track's samples become elementary stream data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Elementary {
    /// H.264: parameter sets to repeat before each keyframe, and the bytes of a length field.
    H264 { sets: Vec<u8>, length: usize },
    /// HEVC, likewise.
    Hevc { sets: Vec<u8>, length: usize },
    /// AAC: the fixed part of an ADTS header.
    Aac { profile: u8, rate: u8, channels: u8 },
    /// Frames that carry their own header.
    Plain {
        stream_type: u8,
        descriptor: &'static [u8],
    },
}

impl Elementary {
    /// How to write the samples of `track`; `None` for a codec that transport streams do not carry here.
    pub(crate) fn of(track: &PipeTrack) -> Option<Self> {
        let visual = || track.entry.get(78..);
        let sound = || track.entry.get(28..);
        match &track.entry_kind {
            b"avc1" | b"avc3" => h264(find(visual()?, b"avcC")?),
            b"hvc1" | b"hev1" => hevc(find(visual()?, b"hvcC")?),
            b"mp4a" => {
                let config = decoder_config(find(sound()?, b"esds")?)?;
                if config.is_mpeg_audio() {
                    return Some(Self::Plain {
                        stream_type: 0x03,
                        descriptor: &[],
                    });
                }
                aac(config.specific)
            }
            b".mp3" => Some(Self::Plain {
                stream_type: 0x03,
                descriptor: &[],
            }),
            b"ac-3" => Some(Self::Plain {
                stream_type: 0x81,
                descriptor: b"\x05\x04AC-3",
            }),
            b"ec-3" => Some(Self::Plain {
                stream_type: 0x87,
                descriptor: b"\x05\x04EAC3",
            }),
            _ => None,
        }
    }

    fn stream_type(&self) -> u8 {
        match self {
            Self::H264 { .. } => 0x1b,
            Self::Hevc { .. } => 0x24,
            Self::Aac { .. } => 0x0f,
            Self::Plain { stream_type, .. } => *stream_type,
        }
    }

    fn descriptor(&self) -> &'static [u8] {
        if let Self::Plain { descriptor, .. } = self {
            descriptor
        } else {
            &[]
        }
    }

    /// Appends `sample` as elementary stream data.
    fn write(&self, sample: &[u8], key: bool, out: &mut Vec<u8>) -> io::Result<()> {
        match self {
            Self::H264 { sets, length } => {
                out.extend_from_slice(&[0, 0, 0, 1, 9, 0xf0]);
                if key {
                    out.extend_from_slice(sets);
                }
                start_codes(sample, *length, out, |first| first & 0x1f == 9)
            }
            Self::Hevc { sets, length } => {
                out.extend_from_slice(&[0, 0, 0, 1, 0x46, 1, 0x50]);
                if key {
                    out.extend_from_slice(sets);
                }
                start_codes(sample, *length, out, |first| (first >> 1) & 0x3f == 35)
            }
            Self::Aac {
                profile,
                rate,
                channels,
            } => {
                let size = sample.len() + 7;
                if size > 0x1fff {
                    return Err(io::Error::new(
                        io::ErrorKind::InvalidData,
                        "an AAC frame over 8184 bytes",
                    ));
                }
                out.extend_from_slice(&[
                    0xff,
                    0xf1,
                    (profile << 6) | (rate << 2) | (channels >> 2),
                    ((channels & 3) << 6) | (size >> 11) as u8,
                    (size >> 3) as u8,
                    ((size as u8 & 7) << 5) | 0x1f,
                    0xfc,
                ]);
                out.extend_from_slice(sample);
                Ok(())
            }
            Self::Plain { .. } => {
                out.extend_from_slice(sample);
                Ok(())
            }
        }
    }
}

fn h264(avcc: &[u8]) -> Option<Elementary> {
    let length = usize::from(avcc.get(4)? & 3) + 1;
    let mut sets = Vec::new();
    let mut at = 5;
    for mask in [0x1f, 0xff] {
        let count = avcc.get(at)? & mask;
        at += 1;
        for _ in 0..count {
            at = parameter_set(avcc, at, &mut sets)?;
        }
    }
    Some(Elementary::H264 { sets, length })
}

fn hevc(hvcc: &[u8]) -> Option<Elementary> {
    let length = usize::from(hvcc.get(21)? & 3) + 1;
    let mut sets = Vec::new();
    let mut at = 23;
    for _ in 0..*hvcc.get(22)? {
        let kind = hvcc.get(at)? & 0x3f;
        let count = be16(hvcc, at + 1)?;
        at += 3;
        for _ in 0..count {
            let mut one = Vec::new();
            at = parameter_set(hvcc, at, &mut one)?;
            if (32..=34).contains(&kind) {
                sets.append(&mut one);
            }
        }
    }
    Some(Elementary::Hevc { sets, length })
}

fn parameter_set(config: &[u8], at: usize, sets: &mut Vec<u8>) -> Option<usize> {
    let size = usize::from(be16(config, at)?);
    let set = config.get(at + 2..at + 2 + size)?;
    sets.extend_from_slice(&[0, 0, 0, 1]);
    sets.extend_from_slice(set);
    Some(at + 2 + size)
}

fn aac(specific: &[u8]) -> Option<Elementary> {
    let word = be16(specific, 0)?;
    let object = (word >> 11) as u8;
    // ADTS names four object types; HE-AAC is signalled inside the frames of its low-complexity core.
    let profile = match object {
        1..=4 => object - 1,
        5 | 29 => 1,
        _ => return None,
    };
    let (rate, channels) = ((word >> 7) as u8 & 0xf, (word >> 3) as u8 & 0xf);
    (rate < 13 && channels < 8).then_some(Elementary::Aac {
        profile,
        rate,
        channels,
    })
}

/// Turns length-prefixed units into units with start codes, leaving out those that `skip` names.
fn start_codes(mut sample: &[u8], length: usize, out: &mut Vec<u8>, skip: fn(u8) -> bool) -> io::Result<()> {
    let broken = || io::Error::new(io::ErrorKind::InvalidData, "a picture whose units do not fit it");
    while !sample.is_empty() {
        let (size, rest) = sample.split_at_checked(length).ok_or_else(broken)?;
        let size = size
            .iter()
            .fold(0_usize, |size, byte| (size << 8) | usize::from(*byte));
        let (unit, rest) = rest.split_at_checked(size).ok_or_else(broken)?;
        if unit.first().is_some_and(|first| !skip(*first)) {
            out.extend_from_slice(&[0, 0, 0, 1]);
            out.extend_from_slice(unit);
        }
        sample = rest;
    }
    Ok(())
}

/// What a representation's segments have in common.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) video: Option<Elementary>,
    pub(crate) audio: Option<(Elementary, u32)>,
    /// How much earlier than shown pictures are decoded: the depth of their reordering in time.
    pub(crate) reorder: Ticks,
}

/// Writes segment `number`: pictures are read from `pictures` in decoding order, sound is in `sounds`.
pub(crate) fn write_segment(
    layout: &Layout,
    number: u32,
    table: &Table,
    pictures: &mut dyn Read,
    sounds: &[u8],
    out: &mut dyn Write,
) -> io::Result<()> {
    let mut mux = Mux::new(layout, number, out);
    mux.tables()?;
    let times = decoding_times(table);
    let mut sounds = Sounds {
        table,
        bytes: sounds,
        next: 0,
        at: 0,
    };
    let (mut sample, mut data) = (Vec::new(), Vec::new());
    for (n, (picture, (decoded, _))) in table.pictures.iter().zip(&times).enumerate() {
        let decoded = *decoded - layout.reorder;
        // In the order of decoding: FFmpeg's reader of HLS takes the first packet's decoding time for the start of all
        // segments, and finds no keyframe where a seek leads if later segments are decoded from earlier on.
        while sounds
            .next_start()
            .is_some_and(|start| layout.sound_time(start) <= decoded)
        {
            sounds.write_next(&mut mux, &mut data)?;
        }
        sample.resize(picture.size as usize, 0);
        pictures.read_exact(&mut sample)?;
        data.clear();
        if let Some(elementary) = &layout.video {
            elementary.write(&sample, picture.key, &mut data)?;
        }
        let unit = Unit {
            pts: picture.pts,
            dts: Some(decoded),
            key: picture.key,
        };
        mux.pes(Pid::Video, unit, &data, n + 1 == table.pictures.len())?;
    }
    while sounds.next_start().is_some() {
        sounds.write_next(&mut mux, &mut data)?;
    }
    Ok(())
}

/// The sounds of a segment that were not written yet.
struct Sounds<'a> {
    table: &'a Table,
    bytes: &'a [u8],
    next: usize,
    at: usize,
}

impl Sounds<'_> {
    fn next_start(&self) -> Option<i64> {
        self.table.sounds.get(self.next).map(|s| s.start)
    }

    fn write_next(&mut self, mux: &mut Mux<'_>, data: &mut Vec<u8>) -> io::Result<()> {
        let Some(sound) = self.table.sounds.get(self.next) else {
            return Ok(());
        };
        let end = self.at + sound.size as usize;
        let sample = self.bytes.get(self.at..end).ok_or(io::ErrorKind::UnexpectedEof)?;
        data.clear();
        if let Some((elementary, _)) = &mux.layout.audio {
            elementary.write(sample, true, data)?;
        }
        self.next += 1;
        self.at = end;
        let unit = Unit {
            pts: mux.layout.sound_time(sound.start),
            dts: None,
            key: true,
        };
        mux.pes(Pid::Audio, unit, data, self.next == self.table.sounds.len())
    }
}

/// When an access unit is shown and decoded, and whether decoding can start with it.
#[derive(Clone, Copy)]
struct Unit {
    pts: Ticks,
    dts: Option<Ticks>,
    key: bool,
}

impl Layout {
    fn sound_time(&self, start: i64) -> Ticks {
        let scale = self.audio.as_ref().map_or(1, |(_, scale)| *scale);
        Ticks::from_timescale(start, u64::from(scale))
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Pid {
    Video,
    Audio,
}

struct Mux<'a> {
    layout: &'a Layout,
    number: u32,
    out: &'a mut dyn Write,
    /// Packets written so far for picture and sound.
    counts: [u64; 2],
}

impl<'a> Mux<'a> {
    fn new(layout: &'a Layout, number: u32, out: &'a mut dyn Write) -> Self {
        Self {
            layout,
            number,
            out,
            counts: [0; 2],
        }
    }

    /// The program's tables, one packet each: their counters follow the segment's number.
    fn tables(&mut self) -> io::Result<()> {
        let mut pat = vec![0x00, 0xb0, 13, 0, 1, 0xc1, 0, 0, 0, 1];
        pat.extend_from_slice(&(0xe000 | PMT_PID).to_be_bytes());
        self.section(PAT_PID, pat)?;
        let layout = self.layout;
        let clock = if layout.video.is_some() {
            VIDEO_PID
        } else {
            AUDIO_PID
        };
        let mut streams = Vec::new();
        let video = layout.video.as_ref().map(|e| (VIDEO_PID, e));
        let audio = layout.audio.as_ref().map(|(e, _)| (AUDIO_PID, e));
        for (pid, elementary) in video.into_iter().chain(audio) {
            streams.push(elementary.stream_type());
            streams.extend_from_slice(&(0xe000 | pid).to_be_bytes());
            streams.extend_from_slice(&(0xf000 | elementary.descriptor().len() as u16).to_be_bytes());
            streams.extend_from_slice(elementary.descriptor());
        }
        let mut pmt = vec![0x02, 0xb0, (13 + streams.len()) as u8, 0, 1, 0xc1, 0, 0];
        pmt.extend_from_slice(&(0xe000 | clock).to_be_bytes());
        pmt.extend_from_slice(&[0xf0, 0]);
        pmt.extend_from_slice(&streams);
        self.section(PMT_PID, pmt)
    }

    fn section(&mut self, pid: u16, mut section: Vec<u8>) -> io::Result<()> {
        section.extend_from_slice(&crc32(&section).to_be_bytes());
        let mut packet = [0xff; PACKET];
        packet[..5].copy_from_slice(&[
            0x47,
            0x40 | (pid >> 8) as u8,
            pid as u8,
            0x10 | (self.number & 0xf) as u8,
            0,
        ]);
        packet[5..5 + section.len()].copy_from_slice(&section);
        self.out.write_all(&packet)
    }

    fn header(&mut self, pid: Pid, start: bool, control: u8) -> [u8; 4] {
        let (number, slot) = match pid {
            Pid::Video => (VIDEO_PID, 0),
            Pid::Audio => (AUDIO_PID, 1),
        };
        let counter = (self.counts[slot] & 0xf) as u8;
        self.counts[slot] += 1;
        let first = if start { 0x40 } else { 0 };
        [0x47, first | (number >> 8) as u8, number as u8, control | counter]
    }

    /// One access unit. The last of its stream is spread over so many packets that the stream's count comes
    /// to a multiple of sixteen.
    fn pes(&mut self, pid: Pid, unit: Unit, data: &[u8], last: bool) -> io::Result<()> {
        let pes = pes_header(pid, unit.pts, unit.dts, data.len());
        let field = self.adaptation(pid, unit);
        let mut payload = Payload { head: &pes, data };
        let first = PACKET - 4 - field.as_ref().map_or(0, |f| f.len() + 1);
        let mut packets = 1 + payload.left().saturating_sub(first).div_ceil(PACKET - 4);
        if last {
            let count = self.counts[usize::from(pid == Pid::Audio)] as usize + packets;
            packets += (16 - count % 16) % 16;
        }
        for n in 0..packets {
            let room = if n == 0 { first } else { PACKET - 4 };
            let share = if last {
                payload.left().div_ceil(packets - n).min(room)
            } else {
                room
            };
            self.packet(
                pid,
                n == 0,
                field.as_deref().filter(|_| n == 0),
                &mut payload,
                share,
            )?;
        }
        Ok(())
    }

    /// The adaptation field of a unit's first packet: the program clock, and where decoding can start.
    fn adaptation(&self, pid: Pid, unit: Unit) -> Option<Vec<u8>> {
        let clocked = pid == Pid::Video || self.layout.video.is_none();
        let random = if unit.key { 0x40 } else { 0 };
        if !clocked {
            return None;
        }
        let clock = (unit.dts.unwrap_or(unit.pts).0 + OFFSET - CLOCK_LEAD).rem_euclid(WRAP);
        Some(vec![
            0x10 | random,
            (clock >> 25) as u8,
            (clock >> 17) as u8,
            (clock >> 9) as u8,
            (clock >> 1) as u8,
            ((clock as u8 & 1) << 7) | 0x7e,
            0,
        ])
    }

    fn packet(
        &mut self,
        pid: Pid,
        start: bool,
        field: Option<&[u8]>,
        payload: &mut Payload<'_>,
        share: usize,
    ) -> io::Result<()> {
        let take = payload.left().min(share);
        let mut packet = [0xff; PACKET];
        let body = PACKET - take;
        if body > 4 {
            packet[..4].copy_from_slice(&self.header(pid, start, 0x30));
            packet[4] = (body - 5) as u8;
            if body > 5 {
                packet[5] = 0;
            }
            if let Some(field) = field {
                packet[5..5 + field.len()].copy_from_slice(field);
            }
        } else {
            packet[..4].copy_from_slice(&self.header(pid, start, 0x10));
        }
        payload.take(&mut packet[body..]);
        self.out.write_all(&packet)
    }
}

struct Payload<'a> {
    head: &'a [u8],
    data: &'a [u8],
}

impl Payload<'_> {
    fn left(&self) -> usize {
        self.head.len() + self.data.len()
    }

    fn take(&mut self, into: &mut [u8]) {
        let (head, data) = into.split_at_mut(self.head.len().min(into.len()));
        for (part, into) in [(&mut self.head, head), (&mut self.data, data)] {
            let (taken, rest) = part.split_at(into.len());
            into.copy_from_slice(taken);
            *part = rest;
        }
    }
}

fn pes_header(pid: Pid, pts: Ticks, dts: Option<Ticks>, size: usize) -> Vec<u8> {
    let (id, bound) = match pid {
        Pid::Video => (0xe0, false),
        Pid::Audio => (0xc0, true),
    };
    let dts = dts.filter(|dts| *dts != pts);
    let times = if dts.is_some() { 10 } else { 5 };
    let length = 3 + times + size;
    let length = if bound {
        u16::try_from(length).unwrap_or(0)
    } else {
        0
    };
    let mut header = vec![0, 0, 1, id, (length >> 8) as u8, length as u8, 0x80];
    header.push(if dts.is_some() { 0xc0 } else { 0x80 });
    header.push(times as u8);
    timestamp(&mut header, if dts.is_some() { 3 } else { 2 }, pts);
    if let Some(dts) = dts {
        timestamp(&mut header, 1, dts);
    }
    header
}

fn timestamp(header: &mut Vec<u8>, mark: u8, at: Ticks) {
    let t = (at.0 + OFFSET).rem_euclid(WRAP);
    header.push((mark << 4) | ((t >> 29) as u8 & 0x0e) | 1);
    header.push((t >> 22) as u8);
    header.push(((t >> 14) as u8 & 0xfe) | 1);
    header.push((t >> 7) as u8);
    header.push(((t << 1) as u8 & 0xfe) | 1);
}

/// The checksum of program tables (ISO/IEC 13818-1 annex A).
fn crc32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ (u32::from(*byte) << 24), |crc, _| {
            if crc & 0x8000_0000 != 0 {
                (crc << 1) ^ 0x04c1_1db7
            } else {
                crc << 1
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_checksum_is_the_standards() {
        // A section followed by its own checksum leaves nothing.
        let mut section = vec![
            0x00, 0xb0, 0x0d, 0x00, 0x01, 0xc1, 0x00, 0x00, 0x00, 0x01, 0xf0, 0x00,
        ];
        let crc = crc32(&section);
        section.extend_from_slice(&crc.to_be_bytes());
        assert_eq!(crc32(&section), 0);
    }
}
