//! Program tables: which streams a transport stream has, in FFmpeg's order.

use std::collections::BTreeMap;

use crate::bits::be16;
use crate::facts::{AudioFacts, Codec, StreamKind, SubtitleFacts, VideoFacts};

const MAX_SECTION: usize = 4096;
const MAX_PROGRAMS: usize = 64;
const MAX_STREAMS: usize = 256;

/// One elementary stream of a program map.
#[derive(Clone, Debug)]
pub(super) struct Elementary {
    pub(super) pid: u16,
    pub(super) codec: Codec,
    pub(super) kind: StreamKind,
    pub(super) language: Option<String>,
}

/// Collects tables from their packets.
#[derive(Default)]
pub(super) struct Tables {
    sections: BTreeMap<u16, Vec<u8>>,
    /// Map pids in the association's order; `true` once read.
    maps: Vec<(u16, bool)>,
    pub(super) streams: Vec<Elementary>,
}

impl Tables {
    /// Whether every program's map was read.
    pub(super) fn complete(&self) -> bool {
        !self.maps.is_empty() && self.maps.iter().all(|(_, read)| *read)
    }

    /// Takes a packet that may belong to a table.
    pub(super) fn take(&mut self, pid: u16, starts: bool, payload: &[u8]) {
        let is_map = self.maps.iter().any(|(map, read)| *map == pid && !read);
        if pid != 0 && !is_map {
            return;
        }
        let section = self.sections.entry(pid).or_default();
        if starts {
            section.clear();
            let skip = payload.first().map_or(0, |p| usize::from(*p) + 1);
            section.extend_from_slice(payload.get(skip..).unwrap_or(&[]));
        } else if !section.is_empty() && section.len() < MAX_SECTION {
            section.extend_from_slice(payload);
        }
        let Some(body) = complete_section(section) else {
            return;
        };
        let body = body.to_vec();
        self.sections.remove(&pid);
        if pid == 0 {
            self.association(&body);
        } else if body.first() == Some(&2) {
            for (map, read) in &mut self.maps {
                *read |= *map == pid;
            }
            self.map(&body);
        }
    }

    fn association(&mut self, section: &[u8]) {
        let end = section.len().saturating_sub(4);
        for entry in section.get(8..end).unwrap_or(&[]).chunks_exact(4) {
            let program = be16(entry, 0).unwrap_or(0);
            let pid = be16(entry, 2).unwrap_or(0) & 0x1fff;
            let known = self.maps.iter().any(|(map, _)| *map == pid);
            if program != 0 && !known && self.maps.len() < MAX_PROGRAMS {
                self.maps.push((pid, false));
            }
        }
    }

    fn map(&mut self, section: &[u8]) {
        let end = section.len().saturating_sub(4);
        let body = section.get(..end).unwrap_or(&[]);
        let program_len = usize::from(be16(body, 10).unwrap_or(0) & 0xfff);
        let Some(program) = body.get(12..12 + program_len) else {
            return;
        };
        let bluray = descriptors(program).any(|(tag, d)| tag == 5 && d.starts_with(b"HDMV"));
        let mut rest = &body[12 + program_len..];
        while let Some(info) = rest.get(..5) {
            let pid = be16(info, 1).unwrap_or(0) & 0x1fff;
            let len = usize::from(be16(info, 3).unwrap_or(0) & 0xfff);
            let data = rest.get(5..5 + len).unwrap_or(&rest[5..]);
            if self.streams.len() < MAX_STREAMS && !self.streams.iter().any(|s| s.pid == pid) {
                let stream = elementary(pid, info[0], data, bluray);
                let lossless = bluray && info[0] == 0x83;
                self.streams.push(stream.clone());
                if lossless {
                    // The same pid carries an AC-3 version, which FFmpeg gives a stream of its own.
                    self.streams.push(Elementary {
                        codec: Codec::Ac3,
                        ..stream
                    });
                }
            }
            rest = rest.get(5 + len..).unwrap_or(&[]);
        }
    }
}

/// The section at the start of `bytes`, once all of it is there.
fn complete_section(bytes: &[u8]) -> Option<&[u8]> {
    let len = usize::from(be16(bytes, 1)? & 0xfff) + 3;
    bytes.get(..len)
}

fn descriptors(mut bytes: &[u8]) -> impl Iterator<Item = (u8, &[u8])> {
    std::iter::from_fn(move || {
        let [tag, len] = *bytes.first_chunk::<2>()?;
        let body = bytes.get(2..2 + usize::from(len))?;
        bytes = &bytes[2 + usize::from(len)..];
        Some((tag, body))
    })
}

fn elementary(pid: u16, kind: u8, info: &[u8], bluray: bool) -> Elementary {
    let (codec, kind) = identify(kind, info, bluray);
    let language = descriptors(info)
        .find(|(tag, _)| matches!(tag, 0x0a | 0x56 | 0x59))
        .and_then(|(_, d)| d.get(..3))
        .map(|code| String::from_utf8_lossy(code).to_ascii_lowercase())
        .filter(|code| code != "und" && code.bytes().all(|b| b.is_ascii_lowercase()));
    Elementary {
        pid,
        codec,
        kind,
        language,
    }
}

fn identify(kind: u8, info: &[u8], bluray: bool) -> (Codec, StreamKind) {
    let other = |name: &str| Codec::Other(name.into());
    let video = |codec| (codec, StreamKind::Video(VideoFacts::default()));
    let audio = |codec| (codec, StreamKind::Audio(AudioFacts::default()));
    let subtitle = |name: &str, text| {
        let facts = SubtitleFacts {
            text,
            hearing_impaired: false,
        };
        (other(name), StreamKind::Subtitle(facts))
    };
    if bluray {
        match kind {
            0x80 => return audio(other("pcm_bluray")),
            0x82 | 0x85 | 0x86 | 0xa2 => return audio(Codec::Dts),
            0x83 => return audio(other("truehd")),
            0x84 | 0xa1 => return audio(Codec::Eac3),
            0x90 => return subtitle("hdmv_pgs_subtitle", false),
            0x92 => return subtitle("hdmv_text_subtitle", false),
            _ => {}
        }
    }
    match kind {
        0x01 | 0x02 => video(Codec::Mpeg2Video),
        0x03 | 0x04 => audio(Codec::Mp3),
        0x0f => audio(Codec::Aac),
        0x10 => video(other("mpeg4")),
        0x11 => audio(other("aac_latm")),
        0x1b | 0x20 => video(Codec::H264),
        0x24 => video(Codec::Hevc),
        0x81 => audio(Codec::Ac3),
        0x87 => audio(Codec::Eac3),
        0x8a => audio(Codec::Dts),
        0xea => video(other("vc1")),
        _ => private(kind, info),
    }
}

/// The channels of an Opus stream stand in an extension descriptor.
fn opus(info: &[u8]) -> AudioFacts {
    let channels = descriptors(info)
        .find(|(tag, body)| *tag == 0x7f && body.first() == Some(&0x80))
        .and_then(|(_, body)| body.get(1).copied())
        .filter(|code| (1..=8).contains(code));
    crate::sound::opus_facts(channels.map_or(0, u16::from))
}

/// Private data is told by its descriptors.
fn private(kind: u8, info: &[u8]) -> (Codec, StreamKind) {
    let other = |name: &str| Codec::Other(name.into());
    let audio = |codec| (codec, StreamKind::Audio(AudioFacts::default()));
    let subtitle = |name: &str, text| {
        let facts = SubtitleFacts {
            text,
            hearing_impaired: false,
        };
        (other(name), StreamKind::Subtitle(facts))
    };
    for (tag, body) in descriptors(info) {
        match (tag, body.get(..4)) {
            (0x05, Some(b"AC-3")) => return audio(Codec::Ac3),
            (0x05, Some(b"EAC3")) => return audio(Codec::Eac3),
            (0x05, Some(b"DTS1" | b"DTS2" | b"DTS3")) => return audio(Codec::Dts),
            (0x05, Some(b"Opus")) => return (Codec::Opus, StreamKind::Audio(opus(info))),
            (0x05, Some(b"BSSD")) => return audio(other("s302m")),
            (0x05, Some(b"HEVC")) => {
                return (Codec::Hevc, StreamKind::Video(VideoFacts::default()));
            }
            (0x05, Some(b"VC-1")) => {
                return (other("vc1"), StreamKind::Video(VideoFacts::default()));
            }
            (0x26, _) if kind == 0x15 => return (other("timed_id3"), StreamKind::Data),
            (0x6a, _) if kind == 6 => return audio(Codec::Ac3),
            (0x7a, _) if kind == 6 => return audio(Codec::Eac3),
            (0x7b, _) if kind == 6 => return audio(Codec::Dts),
            (0x56, _) if kind == 6 => return subtitle("dvb_teletext", false),
            (0x59, _) if kind == 6 => return subtitle("dvb_subtitle", false),
            _ => {}
        }
    }
    let name = match kind {
        0x86 => "scte_35",
        _ => "unknown",
    };
    (other(name), StreamKind::Data)
}
