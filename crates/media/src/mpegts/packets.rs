//! Transport packets: finding them, reading them in order, and the times in front of their payloads.

use crate::reader::{ReadError, Source};

/// Bytes of a transport packet proper.
pub(super) const PACKET: usize = 188;
const SYNC: u8 = 0x47;
/// Bytes one request brings while packets are read in order.
const CHUNK: u64 = 1 << 20;

/// How packets lie in a file: their stride, and the first one's offset.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Layout {
    stride: usize,
    first: usize,
}

/// Tells packets by their sync bytes: plain ones, ones behind a 4-byte timecode (M2TS), ones before 16 bytes
/// of error correction.
pub(crate) fn packet_size(head: &[u8]) -> Option<Layout> {
    for stride in [188, 192, 204] {
        let wanted = (head.len() / stride).min(10);
        if wanted < 3 {
            continue;
        }
        for first in 0..stride {
            let count = (0..)
                .map_while(|n| head.get(first + n * stride))
                .take_while(|b| **b == SYNC)
                .count();
            if count >= wanted - 1 && count >= 3 {
                return Some(Layout { stride, first });
            }
        }
    }
    None
}

/// One packet's parts.
pub(super) struct Packet<'a> {
    pub(super) pid: u16,
    pub(super) starts: bool,
    pub(super) payload: &'a [u8],
}

impl<'a> Packet<'a> {
    /// Reads a packet of 188 bytes; `None` where it carries no readable payload.
    fn parse(packet: &'a [u8]) -> Option<Self> {
        let [_, a, b, c] = *packet.first_chunk::<4>()?;
        // Damaged or scrambled payloads are no payloads.
        if a & 0x80 != 0 || c & 0xc0 != 0 || c & 0x10 == 0 {
            return None;
        }
        let payload_at = if c & 0x20 == 0 {
            4
        } else {
            5 + usize::from(*packet.get(4)?)
        };
        Some(Self {
            pid: u16::from(a & 0x1f) << 8 | u16::from(b),
            starts: a & 0x40 != 0,
            payload: packet.get(payload_at..).filter(|p| !p.is_empty())?,
        })
    }
}

/// Reads the packets of `from..to` in order and gives each to `take`, which says whether to go on. Where sync
/// is lost, the next two sync bytes a stride apart are looked for. Returns where reading stopped.
pub(super) fn walk(
    source: &mut Source<'_>,
    layout: Layout,
    from: u64,
    to: u64,
    mut take: impl FnMut(u64, &Packet<'_>) -> bool,
) -> Result<u64, ReadError> {
    let to = to.min(source.len());
    let stride = layout.stride;
    let mut at = from;
    while at < to {
        let bytes = source.fetch_ahead(at, CHUNK.min(to - at), CHUNK.min(to - at))?;
        if bytes.is_empty() {
            break;
        }
        let mut offset = 0;
        while offset + PACKET <= bytes.len() {
            if bytes[offset] != SYNC {
                offset += 1;
                while offset < bytes.len()
                    && (bytes[offset] != SYNC || bytes.get(offset + stride).is_some_and(|b| *b != SYNC))
                {
                    offset += 1;
                }
                continue;
            }
            if let Some(packet) = Packet::parse(&bytes[offset..offset + PACKET])
                && !take(at + offset as u64, &packet)
            {
                return Ok(at + offset as u64);
            }
            offset += stride;
        }
        // The rest of a packet that the chunk cut off is read again with the next one.
        let next = at + offset as u64;
        if next + PACKET as u64 > to {
            return Ok(to);
        }
        at = next;
    }
    Ok(to)
}

impl Layout {
    /// The first packet at or after `at`.
    pub(super) fn align(self, at: u64) -> u64 {
        let first = self.first as u64;
        let stride = self.stride as u64;
        first + at.saturating_sub(first).div_ceil(stride) * stride
    }
}

/// A PES header: its times in 90 kHz, and where its payload starts.
pub(super) struct PesHeader {
    pub(super) pts: Option<i64>,
    pub(super) dts: Option<i64>,
    pub(super) payload_at: usize,
}

impl PesHeader {
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.get(..3)? != [0, 0, 1] {
            return None;
        }
        let id = *bytes.get(3)?;
        // These kinds have no optional header.
        if matches!(id, 0xbc | 0xbe | 0xbf | 0xf0..=0xf2 | 0xf8 | 0xff) {
            return Some(Self {
                pts: None,
                dts: None,
                payload_at: 6,
            });
        }
        let flags = *bytes.get(7)?;
        let payload_at = 9 + usize::from(*bytes.get(8)?);
        let pts = (flags & 0x80 != 0)
            .then(|| timestamp(bytes.get(9..14)?))
            .flatten();
        let dts = (flags & 0xc0 == 0xc0)
            .then(|| timestamp(bytes.get(14..19)?))
            .flatten();
        Some(Self { pts, dts, payload_at })
    }
}

fn timestamp(b: &[u8]) -> Option<i64> {
    let [a, b, c, d, e] = *b.first_chunk::<5>()?;
    Some(
        i64::from(a >> 1 & 7) << 30
            | i64::from(b) << 22
            | i64::from(c >> 1) << 15
            | i64::from(d) << 7
            | i64::from(e >> 1),
    )
}

/// Puts 33-bit times that wrap onto one line, the way FFmpeg does it: everything lies at most a minute before
/// the first time seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Line {
    reference: i64,
    negative: bool,
}

impl Line {
    const WRAP: i64 = 1 << 33;
    const MINUTE: i64 = 60 * 90_000;

    pub(super) fn from_first(first: i64) -> Self {
        Self {
            reference: first - Self::MINUTE,
            // A file that starts just before the wrap counts up to zero.
            negative: first >= Self::WRAP - Self::MINUTE,
        }
    }

    pub(super) fn place(self, time: i64) -> i64 {
        if self.negative && time >= self.reference {
            time - Self::WRAP
        } else if !self.negative && time < self.reference {
            time + Self::WRAP
        } else {
            time
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_film_that_wraps_in_the_middle_stays_on_one_line() {
        let line = Line::from_first(Line::WRAP - 120 * 90_000);
        assert_eq!(line.place(10), Line::WRAP + 10);
        let line = Line::from_first(Line::WRAP - 10);
        assert_eq!((line.place(Line::WRAP - 10), line.place(20)), (-10, 20));
        let line = Line::from_first(126_000);
        assert_eq!(line.place(125_000), 125_000);
    }

    #[test]
    fn the_three_layouts_are_told_apart() {
        for (stride, first) in [(188, 0), (192, 4), (204, 0), (188, 7)] {
            let mut bytes = vec![0_u8; 4096];
            for at in (first..4096).step_by(stride) {
                bytes[at] = SYNC;
            }
            assert_eq!(packet_size(&bytes), Some(Layout { stride, first }));
        }
        assert_eq!(packet_size(&[0; 4096]), None);
        assert_eq!(packet_size(&[SYNC; 100]), None);
    }
}
