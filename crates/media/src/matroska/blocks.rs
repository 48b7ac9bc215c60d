//! Walks the blocks of clusters by their headers alone, passing over the payloads.

use super::ebml::{ElementHeader, HEADER_MAX, uint, vint};
use super::ids;
use crate::reader::{ReadError, Source};

/// One block, as its headers describe it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) track: u64,
    /// In units of the segment's timestamp scale.
    pub(super) time: i64,
    pub(super) key: bool,
    /// Frames in the block.
    pub(super) frames: u64,
    /// Length in the same units, where the block states it.
    pub(super) duration: Option<u64>,
    /// Where the first frame's data starts, when it is not laced.
    pub(super) data: u64,
    pub(super) size: u64,
}

/// Where walking stands.
pub(super) struct Walker {
    at: u64,
    end: u64,
    cluster: i64,
    group: Option<Group>,
    /// Bytes that a request brings at least.
    least: u64,
    /// The walk ended because the bytes made no sense, not because they ended.
    pub(super) broken: bool,
}

struct Group {
    end: u64,
    block: Option<Block>,
    reference: bool,
    duration: Option<u64>,
}

impl Walker {
    /// A walk from a cluster at `at` to `end`, in requests of `least` bytes.
    pub(super) fn new(at: u64, end: u64, least: u64) -> Self {
        Self {
            at,
            end,
            cluster: 0,
            group: None,
            least,
            broken: false,
        }
    }

    /// How far the walk has come.
    pub(super) fn position(&self) -> u64 {
        self.at
    }

    /// The next block, or `None` at the end.
    pub(super) fn next(&mut self, source: &mut Source<'_>) -> Result<Option<Block>, ReadError> {
        loop {
            if let Some(block) = self.finish_group() {
                return Ok(Some(block));
            }
            if self.at >= self.end {
                return Ok(None);
            }
            let bytes = source.fetch_ahead(self.at, HEADER_MAX + 16, self.least)?;
            let Some(header) = ElementHeader::parse(bytes) else {
                // A header that the file cuts off is an end; anything else is damage.
                self.broken = self.end - self.at > HEADER_MAX;
                return Ok(None);
            };
            let body = self.at + header.len as u64;
            let inside = bytes.get(header.len..).unwrap_or(&[]);
            match header.id {
                ids::CLUSTER => {
                    self.group = None;
                    self.cluster = 0;
                    self.at = body;
                    continue;
                }
                ids::BLOCK_GROUP => {
                    self.group = Some(Group {
                        end: body.saturating_add(header.size.unwrap_or(0)),
                        block: None,
                        reference: false,
                        duration: None,
                    });
                    self.at = body;
                    continue;
                }
                _ => {}
            }
            let Some(size) = header.size else {
                self.broken = true;
                return Ok(None);
            };
            self.at = body.saturating_add(size);
            if self.at > self.end {
                // What the file cuts off cannot be decoded.
                return Ok(None);
            }
            let value = || uint(inside.get(..size.min(8) as usize).unwrap_or(&[]));
            match header.id {
                ids::TIMESTAMP => self.cluster = i64::try_from(value()).unwrap_or(0),
                ids::SIMPLE_BLOCK => {
                    if let Some(block) = parse(inside, body, size, self.cluster) {
                        return Ok(Some(block));
                    }
                }
                ids::BLOCK => {
                    if let Some(group) = &mut self.group {
                        group.block = parse(inside, body, size, self.cluster);
                    }
                }
                ids::BLOCK_DURATION => {
                    if let Some(group) = &mut self.group {
                        group.duration = Some(value());
                    }
                }
                ids::REFERENCE_BLOCK => {
                    if let Some(group) = &mut self.group {
                        group.reference = true;
                    }
                }
                _ => {}
            }
        }
    }

    fn finish_group(&mut self) -> Option<Block> {
        if self
            .group
            .as_ref()
            .is_none_or(|g| self.at < g.end && self.at < self.end)
        {
            return None;
        }
        let group = self.group.take()?;
        let mut block = group.block?;
        block.key = !group.reference;
        block.duration = group.duration;
        Some(block)
    }
}

/// Reads a block's header: track, time relative to the cluster, flags.
fn parse(bytes: &[u8], body: u64, size: u64, cluster: i64) -> Option<Block> {
    let (track, len) = vint(bytes)?;
    let relative = i16::from_be_bytes(bytes.get(len..len + 2)?.try_into().ok()?);
    let flags = *bytes.get(len + 2)?;
    let head = len as u64 + 3;
    let laced = flags & 0x06 != 0;
    let frames = match bytes.get(len + 3) {
        Some(more) if laced => u64::from(*more) + 1,
        _ => 1,
    };
    Some(Block {
        track: track?,
        time: cluster.saturating_add(i64::from(relative)),
        key: flags & 0x80 != 0,
        frames,
        duration: None,
        data: body + head,
        // Laced blocks begin with a table of sizes: their data is not looked into.
        size: if laced { 0 } else { size.saturating_sub(head) },
    })
}
