//! Reads a Matroska stream as it goes by, only to know up to when there is picture and sound, and whether it
//! ends where an element does.
//!
//! The stream is FFmpeg's own: its clock counts milliseconds, and its tracks are numbered from one in the order
//! in which they were mapped.

use ether_media::Ticks;

const SEGMENT: u32 = 0x1853_8067;
const CLUSTER: u32 = 0x1F43_B675;
const TIMESTAMP: u32 = 0xE7;
const BLOCK_GROUP: u32 = 0xA0;
const BLOCK: u32 = 0xA1;
const SIMPLE_BLOCK: u32 = 0xA3;
/// Tracks that a stream may have.
const TRACKS: usize = 2;
/// The longest beginning of an element that is looked at: identity, size, and of a block its track and time.
const LONGEST_HEAD: usize = 4 + 8 + 8 + 2;

/// What comes is not what FFmpeg writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stream is not Matroska")]
pub(super) struct NotMatroska;

/// The times of a track's blocks on the stream's own clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// Of the first one in the stream.
    pub(super) first: Ticks,
    /// Of the latest.
    pub(super) last: Ticks,
}

/// Follows a stream through all the pieces it comes in.
#[derive(Debug, Default)]
pub(super) struct Walker {
    /// The beginning of an element, as far as it has come.
    head: Vec<u8>,
    /// Bytes of the current element that are of no interest.
    skip: u64,
    /// Milliseconds.
    cluster: i64,
    spans: [Option<Span>; TRACKS],
}

/// What the beginning of an element says.
enum Read {
    /// Not enough of it is there.
    More,
    /// It is understood, and so many bytes of it are of no interest.
    Skip(u64),
}

impl Walker {
    /// Takes the next piece in.
    pub(super) fn push(&mut self, mut bytes: &[u8]) -> Result<(), NotMatroska> {
        while let Some((first, rest)) = bytes.split_first() {
            if self.skip > 0 {
                let step = usize::try_from(self.skip).unwrap_or(usize::MAX).min(bytes.len());
                self.skip -= step as u64;
                bytes = &bytes[step..];
                continue;
            }
            self.head.push(*first);
            bytes = rest;
            match self.read()? {
                Read::More if self.head.len() >= LONGEST_HEAD => return Err(NotMatroska),
                Read::More => {}
                Read::Skip(skip) => {
                    self.skip = skip;
                    self.head.clear();
                }
            }
        }
        Ok(())
    }

    /// Whether everything that was begun is there to its end.
    pub(super) fn is_whole(&self) -> bool {
        self.skip == 0 && self.head.is_empty()
    }

    /// The times of the `n`th track, counted from zero; `None` before its first block.
    pub(super) fn span(&self, n: usize) -> Option<Span> {
        self.spans.get(n).copied().flatten()
    }

    fn read(&mut self) -> Result<Read, NotMatroska> {
        let Some((id, at)) = identity(&self.head)? else {
            return Ok(Read::More);
        };
        let Some((size, width)) = number(&self.head[at..])? else {
            return Ok(Read::More);
        };
        let body = &self.head[at + width..];
        match (id, size) {
            // Their size matters to nobody: what is in them says itself where it ends.
            (SEGMENT | CLUSTER | BLOCK_GROUP, _) => Ok(Read::Skip(0)),
            (_, None) => Err(NotMatroska),
            (TIMESTAMP, Some(size)) => {
                if size > 8 {
                    return Err(NotMatroska);
                }
                if (body.len() as u64) < size {
                    return Ok(Read::More);
                }
                let millis = body.iter().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
                self.cluster = i64::try_from(millis).map_err(|_| NotMatroska)?;
                Ok(Read::Skip(0))
            }
            (BLOCK | SIMPLE_BLOCK, Some(size)) => {
                let Some((track, width)) = number(body)? else {
                    return Ok(Read::More);
                };
                let Some(offset) = body[width..].first_chunk::<2>() else {
                    return Ok(Read::More);
                };
                let rest = size.checked_sub(width as u64 + 2).ok_or(NotMatroska)?;
                let millis = self
                    .cluster
                    .saturating_add(i64::from(i16::from_be_bytes(*offset)));
                self.note(track.ok_or(NotMatroska)?, Ticks::from_timescale(millis, 1_000));
                Ok(Read::Skip(rest))
            }
            (_, Some(size)) => Ok(Read::Skip(size)),
        }
    }

    fn note(&mut self, track: u64, at: Ticks) {
        let n = usize::try_from(track).unwrap_or(0).wrapping_sub(1);
        if let Some(span) = self.spans.get_mut(n) {
            let known = span.get_or_insert(Span { first: at, last: at });
            known.last = known.last.max(at);
        }
    }
}

/// An element's identity, marker and all, and its width; `None` where more is needed.
fn identity(bytes: &[u8]) -> Result<Option<(u32, usize)>, NotMatroska> {
    let Some(first) = bytes.first() else {
        return Ok(None);
    };
    let width = first.leading_zeros() as usize + 1;
    if width > 4 {
        return Err(NotMatroska);
    }
    let whole = bytes.get(..width);
    Ok(whole.map(|bytes| {
        (
            bytes.iter().fold(0, |sum, byte| sum << 8 | u32::from(*byte)),
            width,
        )
    }))
}

/// A number of variable width, and its width; the number is `None` where it says that it is not known.
fn number(bytes: &[u8]) -> Result<Option<(Option<u64>, usize)>, NotMatroska> {
    let Some(first) = bytes.first() else {
        return Ok(None);
    };
    let width = first.leading_zeros() as usize + 1;
    if width > 8 {
        return Err(NotMatroska);
    }
    let Some(bytes) = bytes.get(..width) else {
        return Ok(None);
    };
    let raw = bytes.iter().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
    let mask = (1_u64 << (7 * width)) - 1;
    let value = raw & mask;
    Ok(Some(((value != mask).then_some(value), width)))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn millis(n: i64) -> Ticks {
        Ticks::from_timescale(n, 1_000)
    }

    /// A head, an element of no interest, and two clusters, one of a size that is not known.
    fn stream() -> Vec<u8> {
        let mut bytes = vec![0x1A, 0x45, 0xDF, 0xA3, 0x83, 1, 2, 3];
        bytes.extend([
            0x18, 0x53, 0x80, 0x67, 0x01, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF,
        ]);
        bytes.extend([0x16, 0x54, 0xAE, 0x6B, 0x40, 0x02, 9, 9]);
        bytes.extend([0x1F, 0x43, 0xB6, 0x75, 0xFF, 0xE7, 0x82, 0x03, 0xE8]);
        // Picture at 1040, then one shown earlier; sound at 990.
        bytes.extend([0xA3, 0x86, 0x81, 0, 40, 0x80, 7, 7]);
        bytes.extend([0xA0, 0x87, 0xA1, 0x85, 0x81, 0, 20, 0, 7]);
        bytes.extend([0xA3, 0x85, 0x82, 0xFF, 0xF6, 0, 7]);
        bytes.extend([0x1F, 0x43, 0xB6, 0x75, 0x8B, 0xE7, 0x82, 0x07, 0xD0]);
        bytes.extend([0xA3, 0x85, 0x81, 0, 5, 0, 7]);
        bytes
    }

    #[test]
    fn times_are_read_out_of_a_stream_in_pieces_of_any_size() {
        for size in [1, 2, 3, 7, 1_000] {
            let mut walker = Walker::default();
            for piece in stream().chunks(size) {
                walker.push(piece).unwrap();
            }
            let picture = Span {
                first: millis(1_040),
                last: millis(2_005),
            };
            let sound = Span {
                first: millis(990),
                last: millis(990),
            };
            assert_eq!((walker.span(0), walker.span(1)), (Some(picture), Some(sound)));
            assert!(walker.is_whole());
        }
    }

    #[test]
    fn a_stream_that_breaks_off_is_not_whole() {
        let bytes = stream();
        let mut walker = Walker::default();
        walker.push(&bytes[..bytes.len() - 1]).unwrap();
        assert!(!walker.is_whole());
        walker.push(&bytes[bytes.len() - 1..]).unwrap();
        assert!(walker.is_whole());
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut walker = Walker::default();
            for piece in bytes.chunks(11) {
                if walker.push(piece).is_err() {
                    break;
                }
                prop_assert!(walker.head.len() < LONGEST_HEAD);
            }
        }
    }
}
