//! Bits of codec headers: big-endian fields, Exp-Golomb codes, and NAL units with their escapes removed.

/// Reads bits from the most significant one on. Every read past the end gives `None`.
#[derive(Clone)]
pub(crate) struct Bits<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Bits<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// Bits that are left.
    pub(crate) fn left(&self) -> usize {
        (self.bytes.len() * 8).saturating_sub(self.at)
    }

    /// Bits already read.
    pub(crate) fn position(&self) -> usize {
        self.at
    }

    /// An unsigned number of `n` bits, at most 32.
    pub(crate) fn u(&mut self, n: usize) -> Option<u32> {
        if n > 32 || self.left() < n {
            return None;
        }
        let mut value = 0_u64;
        for _ in 0..n {
            let byte = self.bytes[self.at / 8];
            value = value << 1 | u64::from(byte >> (7 - self.at % 8) & 1);
            self.at += 1;
        }
        u32::try_from(value).ok()
    }

    /// As [`Bits::u`], for fields of at most 8 bits.
    pub(crate) fn u8(&mut self, n: usize) -> Option<u8> {
        self.u(n).and_then(|v| u8::try_from(v).ok())
    }

    pub(crate) fn flag(&mut self) -> Option<bool> {
        self.u(1).map(|v| v == 1)
    }

    pub(crate) fn skip(&mut self, n: usize) -> Option<()> {
        if self.left() < n {
            return None;
        }
        self.at += n;
        Some(())
    }

    /// Unsigned Exp-Golomb.
    pub(crate) fn ue(&mut self) -> Option<u32> {
        let mut zeros = 0;
        while !self.flag()? {
            zeros += 1;
            if zeros > 31 {
                return None;
            }
        }
        let rest = self.u(zeros)?;
        u32::try_from((1_u64 << zeros) - 1 + u64::from(rest)).ok()
    }

    /// Signed Exp-Golomb.
    pub(crate) fn se(&mut self) -> Option<i64> {
        let code = i64::from(self.ue()?);
        Some(if code % 2 == 1 {
            (code + 1) / 2
        } else {
            -(code / 2)
        })
    }
}

/// The payload of a NAL unit with its emulation prevention bytes removed; at most `max` bytes of it.
pub(crate) fn unescape(nal: &[u8], max: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(nal.len().min(max));
    let mut zeros = 0;
    for &byte in nal.iter().take(max) {
        if zeros >= 2 && byte == 3 {
            zeros = 0;
            continue;
        }
        zeros = if byte == 0 { zeros + 1 } else { 0 };
        out.push(byte);
    }
    out
}

/// Where start codes (`00 00 01`) stand in a byte stream: each item is the offset after the code.
pub(crate) struct StartCodes<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> StartCodes<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }
}

impl Iterator for StartCodes<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        while self.at + 3 <= self.bytes.len() {
            let triple = &self.bytes[self.at..self.at + 3];
            if triple[2] > 1 {
                self.at += 3;
            } else if triple == [0, 0, 1] {
                self.at += 3;
                return Some(self.at);
            } else {
                self.at += 1;
            }
        }
        None
    }
}

/// NAL units of an Annex B byte stream, each from its header to the next start code. Zero bytes in front of the
/// next code stay: in MPEG-2 headers they may belong to the unit.
pub(crate) fn nal_units(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut codes = StartCodes::new(bytes).peekable();
    std::iter::from_fn(move || {
        let from = codes.next()?;
        let to = codes.peek().map_or(bytes.len(), |next| next - 3);
        bytes.get(from..to)
    })
}

/// Big-endian numbers at an offset, `None` past the end.
pub(crate) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(
        bytes.get(at..at.checked_add(2)?)?.try_into().ok()?,
    ))
}

pub(crate) fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(
        bytes.get(at..at.checked_add(4)?)?.try_into().ok()?,
    ))
}

pub(crate) fn be64(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(
        bytes.get(at..at.checked_add(8)?)?.try_into().ok()?,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn exp_golomb_codes_read_as_the_standards_table() {
        // 1, 010, 011, 00100 = 0, 1, 2, 3; signed 0, 1, -1, 2.
        let bytes = [0b1010_0110, 0b0100_0000];
        let mut bits = Bits::new(&bytes);
        assert_eq!(
            [bits.ue(), bits.ue(), bits.ue(), bits.ue()],
            [Some(0), Some(1), Some(2), Some(3)]
        );
        let mut bits = Bits::new(&bytes);
        assert_eq!(
            [bits.se(), bits.se(), bits.se(), bits.se()],
            [Some(0), Some(1), Some(-1), Some(2)]
        );
    }

    #[test]
    fn escapes_go_and_real_threes_stay() {
        assert_eq!(unescape(&[0, 0, 3, 1, 3, 0, 3], 99), [0, 0, 1, 3, 0, 3]);
    }

    #[test]
    fn nal_units_are_cut_at_both_lengths_of_start_code() {
        let stream = [9, 0, 0, 1, 0x67, 5, 0, 0, 0, 1, 0x68, 6];
        let units: Vec<&[u8]> = nal_units(&stream).collect();
        assert_eq!(units, [&[0x67, 5, 0][..], &[0x68, 6][..]]);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64), n in 0_usize..40) {
            let mut bits = Bits::new(&bytes);
            let _ = (bits.u(n), bits.ue(), bits.se(), bits.skip(n), bits.flag());
            let _ = nal_units(&bytes).count();
            let _ = unescape(&bytes, n);
        }
    }
}
