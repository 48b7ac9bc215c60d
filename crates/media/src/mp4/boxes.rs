//! Boxes within a slice, and the time structure that their tables make.

use crate::bits::{be32, be64};

/// A box's type.
pub(super) type Kind = [u8; 4];

/// Walks sibling boxes. A box that claims more than its parent holds is cut to what is there.
#[derive(Clone)]
pub(super) struct Boxes<'a> {
    bytes: &'a [u8],
}

impl<'a> Boxes<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// The body of the first box of this kind.
    pub(super) fn body(&self, kind: &Kind) -> Option<&'a [u8]> {
        self.clone().find(|(k, _)| k == kind).map(|(_, body)| body)
    }
}

impl<'a> Iterator for Boxes<'a> {
    type Item = (Kind, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let header = Header::parse(self.bytes)?;
        let end = match header.size {
            Some(size) => usize::try_from(size).unwrap_or(usize::MAX).min(self.bytes.len()),
            None => self.bytes.len(),
        };
        let body = self.bytes.get(header.len..end)?;
        self.bytes = &self.bytes[end..];
        Some((header.kind, body))
    }
}

/// A box's header.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) kind: Kind,
    /// Bytes of the header itself.
    pub(super) len: usize,
    /// Bytes of the whole box; absent where it reaches to the end of the file.
    pub(super) size: Option<u64>,
}

impl Header {
    /// Reads the header at the start of `bytes`; `None` where there is none or its size is impossible.
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let kind = bytes.get(4..8)?.try_into().ok()?;
        let (len, size) = match be32(bytes, 0)? {
            0 => (8, None),
            1 => (16, Some(be64(bytes, 8)?)),
            size => (8, Some(u64::from(size))),
        };
        if size.is_some_and(|size| size < len as u64) {
            return None;
        }
        Some(Self { kind, len, size })
    }
}

/// Version and flags of a full box, and what follows them.
pub(super) fn full(body: &[u8]) -> Option<(u8, u32, &[u8])> {
    let word = be32(body, 0)?;
    Some(((word >> 24) as u8, word & 0xff_ffff, body.get(4..)?))
}

/// A table of `count` rows of `N` big-endian words, behind its full-box header and count. Rows that the box
/// does not hold do not exist, whatever the count says.
#[derive(Clone, Copy, Default)]
pub(super) struct Table<'a, const N: usize> {
    rows: &'a [u8],
}

impl<'a, const N: usize> Table<'a, N> {
    pub(super) fn parse(body: &'a [u8]) -> Option<Self> {
        let count = usize::try_from(be32(body, 4)?).ok()?;
        let rows = body.get(8..)?;
        let len = count.checked_mul(4 * N)?.min(rows.len() / (4 * N) * (4 * N));
        Some(Self { rows: &rows[..len] })
    }

    pub(super) fn len(&self) -> usize {
        self.rows.len() / (4 * N)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    pub(super) fn get(&self, index: usize) -> Option<[u32; N]> {
        let row = self.rows.get(index.checked_mul(4 * N)?..)?.get(..4 * N)?;
        Some(std::array::from_fn(|i| be32(row, 4 * i).unwrap_or(0)))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = [u32; N]> + use<'a, N> {
        self.rows
            .chunks_exact(4 * N)
            .map(|row| std::array::from_fn(|i| be32(row, 4 * i).unwrap_or(0)))
    }
}
