//! ISO base media boxes, read from memory and written to memory. Just what the pipe and our own segments need.

/// One box inside a buffer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BoxRef<'a> {
    pub(crate) kind: [u8; 4],
    pub(crate) body: &'a [u8],
}

/// The boxes that `bytes` consists of; stops at the first that does not fit.
pub(crate) fn boxes(mut bytes: &[u8]) -> impl Iterator<Item = BoxRef<'_>> {
    std::iter::from_fn(move || {
        let (header, size) = header(bytes)?;
        let size = usize::try_from(size).ok()?;
        let (whole, rest) = bytes.split_at_checked(size)?;
        bytes = rest;
        let kind = [whole[4], whole[5], whole[6], whole[7]];
        Some(BoxRef {
            kind,
            body: whole.get(header..)?,
        })
    })
}

/// The first box of `kind` in `bytes`.
pub(crate) fn find<'a>(bytes: &'a [u8], kind: &[u8; 4]) -> Option<&'a [u8]> {
    boxes(bytes).find(|b| &b.kind == kind).map(|b| b.body)
}

/// Length of the header and of the whole box at the start of `bytes`; a box to the end of the file is not
/// accepted, since nothing that ether reads from a pipe may have one.
fn header(bytes: &[u8]) -> Option<(usize, u64)> {
    let size = be32(bytes, 0)?;
    let (header, size) = if size == 1 {
        (16, be64(bytes, 8)?)
    } else {
        (8, u64::from(size))
    };
    (size >= header as u64 && bytes.len() >= header).then_some((header, size))
}

pub(crate) fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at + 2)?.try_into().ok().map(u16::from_be_bytes)
}

pub(crate) fn be32(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4)?.try_into().ok().map(u32::from_be_bytes)
}

pub(crate) fn be64(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_be_bytes)
}

/// Appends boxes to a buffer, filling in each size when its body is complete.
#[derive(Debug, Default)]
pub(crate) struct BoxWriter {
    pub(crate) bytes: Vec<u8>,
}

impl BoxWriter {
    pub(crate) fn nested(&mut self, kind: &[u8; 4], body: impl FnOnce(&mut Self)) {
        let at = self.bytes.len();
        self.u32(0);
        self.bytes.extend_from_slice(kind);
        body(self);
        let size = u32::try_from(self.bytes.len() - at).unwrap_or(u32::MAX);
        self.bytes[at..at + 4].copy_from_slice(&size.to_be_bytes());
    }

    pub(crate) fn full(&mut self, kind: &[u8; 4], version: u8, flags: u32, body: impl FnOnce(&mut Self)) {
        self.nested(kind, |w| {
            w.u32((u32::from(version) << 24) | (flags & 0x00ff_ffff));
            body(w);
        });
    }

    pub(crate) fn u16(&mut self, value: u16) {
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    pub(crate) fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    pub(crate) fn i32(&mut self, value: i32) {
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    pub(crate) fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_be_bytes());
    }

    pub(crate) fn raw(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    pub(crate) fn zeros(&mut self, count: usize) {
        self.bytes.resize(self.bytes.len() + count, 0);
    }

    /// Overwrites four bytes written earlier.
    pub(crate) fn patch_u32(&mut self, at: usize, value: u32) {
        self.bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
    }
}
