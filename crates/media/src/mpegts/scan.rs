//! The keyframes of a transport stream, from reading all of it.

use super::packets::{self, Line, PesHeader};
use super::psi::Tables;
use crate::bits::nal_units;
use crate::facts::{Codec, Keyframes, Stream};
use crate::reader::{ScanError, Source};
use crate::ticks::Ticks;
use crate::{h264, hevc, mpeg2};

/// A picture's headers lie within this much of its PES packet.
const KEPT: usize = 256 << 10;
const MAX_KEYFRAMES: usize = 1 << 20;
/// PES packets that are read to their end to see that each holds one picture.
const CHECKED: u32 = 200;

/// Reads the whole file for the keyframes of `video`.
pub(crate) fn scan(
    source: &mut Source<'_>,
    video: &Stream,
    progress: &mut dyn FnMut(u64),
) -> Result<Keyframes, ScanError> {
    let scans = match &video.codec {
        Codec::H264 | Codec::Hevc | Codec::Mpeg2Video => true,
        Codec::Other(name) => name == "mpeg1video",
        _ => false,
    };
    if !scans {
        return Err(ScanError::Unsupported);
    }
    let layout =
        packets::packet_size(source.fetch(0, 4096)?).ok_or(ScanError::Broken { what: "no packets" })?;
    let mut state = State {
        codec: video.codec.clone(),
        index: video.index as usize,
        tables: Tables::default(),
        line: None,
        pid: None,
        pes: None,
        seen: 0,
        times: Vec::new(),
        untimed: false,
        crowded: false,
    };
    let size = source.len();
    let mut told = 0;
    packets::walk(source, layout, layout.align(0), size, |at, packet| {
        state.take(packet);
        if at - told > 4 << 20 {
            told = at;
            progress(at);
        }
        !state.failed()
    })?;
    state.finish();
    if state.crowded {
        return Err(ScanError::Unsupported);
    }
    if state.untimed {
        return Err(ScanError::Broken {
            what: "a keyframe without a time",
        });
    }
    if state.times.is_empty() {
        return Err(ScanError::Broken {
            what: "no keyframe found",
        });
    }
    progress(size);
    state.times.sort_unstable();
    state.times.dedup();
    Ok(Keyframes {
        stream: video.index,
        times: state.times,
    })
}

struct State {
    codec: Codec,
    index: usize,
    tables: Tables,
    line: Option<Line>,
    pid: Option<u16>,
    pes: Option<Pes>,
    seen: u32,
    times: Vec<Ticks>,
    /// A keyframe had no time.
    untimed: bool,
    /// Several pictures share a PES packet: only the first has a time.
    crowded: bool,
}

struct Pes {
    pts: Option<i64>,
    bytes: Vec<u8>,
    key: Option<bool>,
}

impl State {
    fn failed(&self) -> bool {
        self.untimed || self.crowded || self.times.len() >= MAX_KEYFRAMES
    }

    fn take(&mut self, packet: &packets::Packet<'_>) {
        if self.pid.is_none() {
            self.tables.take(packet.pid, packet.starts, packet.payload);
            self.pid = self.tables.streams.get(self.index).map(|s| s.pid);
        }
        // The line is laid by the first time of any stream, as for the facts.
        if self.line.is_none()
            && packet.starts
            && self.tables.streams.iter().any(|s| s.pid == packet.pid)
            && let Some(header) = PesHeader::parse(packet.payload)
            && let Some(first) = header.dts.or(header.pts)
        {
            self.line = Some(Line::from_first(first));
        }
        if Some(packet.pid) != self.pid {
            return;
        }
        let payload = if packet.starts {
            self.finish();
            let Some(header) = PesHeader::parse(packet.payload) else {
                self.pes = None;
                return;
            };
            self.pes = Some(Pes {
                pts: header.pts.zip(self.line).map(|(pts, line)| line.place(pts)),
                bytes: Vec::new(),
                key: None,
            });
            packet.payload.get(header.payload_at..).unwrap_or(&[])
        } else {
            packet.payload
        };
        let checked = self.seen < CHECKED;
        let Some(pes) = &mut self.pes else {
            return;
        };
        if (pes.key.is_some() && !checked) || pes.bytes.len() > KEPT {
            return;
        }
        pes.bytes.extend_from_slice(payload);
        if pes.key.is_none() {
            pes.key = is_keyframe(&self.codec, &pes.bytes);
        }
    }

    fn finish(&mut self) {
        let Some(pes) = self.pes.take() else {
            return;
        };
        self.seen = self.seen.saturating_add(1);
        if self.seen < CHECKED && pictures(&self.codec, &pes.bytes) > 1 {
            self.crowded = true;
        }
        if pes.key == Some(true) {
            match pes.pts {
                Some(pts) => self.times.push(Ticks(pts)),
                None => self.untimed = true,
            }
        }
    }
}

fn is_keyframe(codec: &Codec, bytes: &[u8]) -> Option<bool> {
    let units = nal_units(bytes);
    match codec {
        Codec::H264 => h264::is_keyframe(units),
        Codec::Hevc => hevc::is_keyframe(units),
        _ => mpeg2::is_keyframe(units),
    }
}

/// Pictures that start in a PES packet, counting the two fields of one frame once.
fn pictures(codec: &Codec, bytes: &[u8]) -> usize {
    let mut after_picture = false;
    let mut count = 0;
    for unit in nal_units(bytes) {
        let (starts, is_picture) = match (codec, unit.first()) {
            (Codec::H264, Some(b)) => (b & 0x1f == 9, matches!(b & 0x1f, 1 | 5)),
            (Codec::Hevc, Some(b)) => (b >> 1 & 0x3f == 35, b >> 1 & 0x3f < 32),
            (_, Some(b)) => (matches!(b, 0xb3 | 0xb8), *b == 0),
            _ => (false, false),
        };
        if is_picture && !after_picture {
            count += 1;
            after_picture = true;
        } else if starts && after_picture {
            after_picture = false;
        }
    }
    count
}
