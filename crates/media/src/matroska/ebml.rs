//! EBML: element headers and values, within slices that are already in memory.

/// Element ids are written with their length marker, as the specifications print them.
pub(super) struct ElementHeader {
    pub(super) id: u32,
    /// Bytes of the header itself.
    pub(super) len: usize,
    /// Bytes of the body; absent where the size is unknown.
    pub(super) size: Option<u64>,
}

/// Bytes that always hold a header.
pub(super) const HEADER_MAX: u64 = 12;

impl ElementHeader {
    pub(super) fn parse(bytes: &[u8]) -> Option<Self> {
        let first = *bytes.first()?;
        let id_len = first.leading_zeros() as usize + 1;
        if id_len > 4 {
            return None;
        }
        let id = bytes
            .get(..id_len)?
            .iter()
            .fold(0_u32, |id, b| id << 8 | u32::from(*b));
        let (size, size_len) = vint(bytes.get(id_len..)?)?;
        Some(Self {
            id,
            len: id_len + size_len,
            size,
        })
    }
}

/// A variable-length number, `None` inside where all its bits are ones, and the bytes it took.
pub(super) fn vint(bytes: &[u8]) -> Option<(Option<u64>, usize)> {
    let first = *bytes.first()?;
    let len = first.leading_zeros() as usize + 1;
    if len > 8 {
        return None;
    }
    let mask = if len == 8 { 0 } else { 0xff >> len };
    let value = bytes
        .get(1..len)?
        .iter()
        .fold(u64::from(first & mask), |value, b| value << 8 | u64::from(*b));
    let unknown = value == (1_u64 << (7 * len)) - 1;
    Some(((!unknown).then_some(value), len))
}

/// Walks sibling elements. One that claims more than its parent holds is cut to what is there.
#[derive(Clone)]
pub(super) struct Elements<'a> {
    bytes: &'a [u8],
}

impl<'a> Elements<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    pub(super) fn body(&self, id: u32) -> Option<&'a [u8]> {
        self.clone().find(|(found, _)| *found == id).map(|(_, body)| body)
    }
}

impl<'a> Iterator for Elements<'a> {
    type Item = (u32, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let header = ElementHeader::parse(self.bytes)?;
        let rest = &self.bytes[header.len..];
        let len = header
            .size
            .and_then(|size| usize::try_from(size).ok())
            .unwrap_or(rest.len())
            .min(rest.len());
        self.bytes = &rest[len..];
        Some((header.id, &rest[..len]))
    }
}

pub(super) fn uint(body: &[u8]) -> u64 {
    body.iter().take(8).fold(0, |value, b| value << 8 | u64::from(*b))
}

pub(super) fn float(body: &[u8]) -> Option<f64> {
    let value = match body.len() {
        4 => f64::from(f32::from_be_bytes(body.try_into().ok()?)),
        8 => f64::from_be_bytes(body.try_into().ok()?),
        _ => return None,
    };
    value.is_finite().then_some(value)
}

/// A text without its padding; at most `max` bytes of it.
pub(super) fn text(body: &[u8], max: usize) -> String {
    let body = &body[..body.len().min(max)];
    String::from_utf8_lossy(body).trim_end_matches('\0').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_the_specification_writes_them() {
        assert_eq!(vint(&[0x82]), Some((Some(2), 1)));
        assert_eq!(vint(&[0x40, 0x02]), Some((Some(2), 2)));
        assert_eq!(vint(&[0xff]), Some((None, 1)));
        assert_eq!(
            vint(&[0x01, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
            Some((None, 8))
        );
        assert_eq!(vint(&[0x00, 1, 2, 3, 4, 5, 6, 7, 8]), None);
        assert_eq!(vint(&[0x40]), None);
    }
}
