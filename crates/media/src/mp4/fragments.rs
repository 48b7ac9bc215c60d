//! Movie fragments: what `moof` boxes add to the tracks of a `moov`.

use std::collections::BTreeMap;

use super::boxes::{Boxes, full};
use super::edits::Edit;
use crate::bits::{be32, be64};

/// A film of 40 hours with a keyframe each second has fewer.
const MAX_KEYFRAMES: usize = 1 << 20;

const NOT_SYNC: u32 = 0x1_0000;
const DEPENDS: u32 = 0x100_0000;

/// Defaults of a track's samples in fragments.
#[derive(Clone, Copy, Default)]
struct Defaults {
    duration: u32,
    size: u32,
    flags: u32,
}

/// What the fragments of one track add up to, in the track's timescale and before its edit list.
#[derive(Default)]
pub(super) struct Fragmented {
    defaults: Defaults,
    next: i64,
    pub(super) samples: u64,
    pub(super) bytes: u64,
    pub(super) first: Option<i64>,
    pub(super) end: Option<i64>,
    /// The most recent sample duration that was not zero.
    pub(super) step: u32,
    pub(super) keyframes: Vec<i64>,
    /// How far the most negative composition offset points back. FFmpeg moves everything forward by it, so
    /// that no frame is shown before it is decoded.
    pub(super) lead: i64,
    pub(super) overflow: bool,
}

/// All tracks of a fragmented file, by track id.
#[derive(Default)]
pub(super) struct Fragments {
    tracks: BTreeMap<u32, Fragmented>,
    /// Whether any fragment was read.
    pub(super) any: bool,
}

impl Fragments {
    /// Takes the tracks and defaults of an `mvex`.
    pub(super) fn new(mvex: &[u8]) -> Self {
        let mut fragments = Self::default();
        for (kind, body) in Boxes::new(mvex) {
            if &kind == b"trex"
                && let Some((_, _, rest)) = full(body)
                && let (Some(id), Some(duration), Some(size), Some(flags)) =
                    (be32(rest, 0), be32(rest, 8), be32(rest, 12), be32(rest, 16))
                && fragments.tracks.len() < 256
            {
                let defaults = Defaults {
                    duration,
                    size,
                    flags,
                };
                fragments.tracks.insert(
                    id,
                    Fragmented {
                        defaults,
                        ..Fragmented::default()
                    },
                );
            }
        }
        fragments
    }

    /// The fragments of track `id`.
    pub(super) fn track(&self, id: u32) -> Option<&Fragmented> {
        self.tracks.get(&id).filter(|t| t.samples > 0)
    }

    /// Where the next sample of track `id` would go, when the progressive part ends at `at`.
    pub(super) fn begin_at(&mut self, id: u32, at: i64) {
        if let Some(track) = self.tracks.get_mut(&id) {
            track.next = at;
        }
    }

    /// Adds one `moof` body.
    pub(super) fn add(&mut self, moof: &[u8]) {
        for (kind, traf) in Boxes::new(moof) {
            if &kind == b"traf" {
                self.any = true;
                // A fragment of an unknown track or without a header is nobody's.
                let _ = self.add_track(traf);
            }
        }
    }

    fn add_track(&mut self, traf: &[u8]) -> Option<()> {
        let boxes = Boxes::new(traf);
        let (_, flags, rest) = full(boxes.body(b"tfhd")?)?;
        let track = self.tracks.get_mut(&be32(rest, 0)?)?;
        let mut defaults = track.defaults;
        let mut at = 4;
        let mut field = |bit: u32, size: usize| {
            if flags & bit == 0 {
                return None;
            }
            at += size;
            be32(rest, at - size)
        };
        field(0x1, 8);
        field(0x2, 4);
        defaults.duration = field(0x8, 4).unwrap_or(defaults.duration);
        defaults.size = field(0x10, 4).unwrap_or(defaults.size);
        defaults.flags = field(0x20, 4).unwrap_or(defaults.flags);
        if let Some((version, _, rest)) = boxes.body(b"tfdt").and_then(full) {
            let time = if version == 1 {
                be64(rest, 0)?
            } else {
                u64::from(be32(rest, 0)?)
            };
            track.next = i64::try_from(time).ok()?;
        }
        for (kind, body) in boxes {
            if &kind == b"trun" {
                track.add_run(body, defaults)?;
            }
        }
        Some(())
    }
}

impl Fragmented {
    fn add_run(&mut self, trun: &[u8], defaults: Defaults) -> Option<()> {
        let (_, flags, rest) = full(trun)?;
        let count = be32(rest, 0)?;
        let mut at = 4;
        if flags & 0x1 != 0 {
            at += 4;
        }
        let first_flags = if flags & 0x4 != 0 {
            at += 4;
            Some(be32(rest, at - 4)?)
        } else {
            None
        };
        let columns = [0x100, 0x200, 0x400, 0x800];
        let row = 4 * columns.iter().filter(|c| flags & **c != 0).count();
        let rows = rest.get(at..)?;
        if row == 0 {
            // Every sample is the default: no rows to bound the count by.
            return self.add_default_run(count, first_flags, defaults);
        }
        for (index, cells) in rows.chunks_exact(row).take(count as usize).enumerate() {
            let mut at = 0;
            let mut cell = |bit: u32, default: u32| {
                if flags & bit == 0 {
                    return default;
                }
                at += 4;
                be32(cells, at - 4).unwrap_or(default)
            };
            let duration = cell(0x100, defaults.duration);
            let size = cell(0x200, defaults.size);
            let mut sample_flags = cell(0x400, defaults.flags);
            let offset = cell(0x800, 0) as i32;
            if index == 0 {
                sample_flags = first_flags.unwrap_or(sample_flags);
            }
            self.add_sample(duration, size, sample_flags, offset);
        }
        Some(())
    }

    fn add_default_run(&mut self, count: u32, first_flags: Option<u32>, defaults: Defaults) -> Option<()> {
        if count > 1 << 20 {
            return None;
        }
        for index in 0..count {
            let flags = if index == 0 {
                first_flags.unwrap_or(defaults.flags)
            } else {
                defaults.flags
            };
            self.add_sample(defaults.duration, defaults.size, flags, 0);
        }
        Some(())
    }

    fn add_sample(&mut self, duration: u32, size: u32, flags: u32, offset: i32) {
        let pts = self.next.saturating_add(i64::from(offset));
        self.first = Some(self.first.map_or(pts, |first| first.min(pts)));
        self.lead = self.lead.max(-i64::from(offset));
        let end = pts.saturating_add(i64::from(duration));
        self.end = Some(self.end.map_or(end, |last| last.max(end)));
        if flags & (NOT_SYNC | DEPENDS) == 0 {
            if self.keyframes.len() < MAX_KEYFRAMES {
                self.keyframes.push(pts);
            } else {
                self.overflow = true;
            }
        }
        if duration > 0 {
            self.step = duration;
        }
        self.samples += 1;
        self.bytes = self.bytes.saturating_add(u64::from(size));
        self.next = self.next.saturating_add(i64::from(duration));
    }
}

impl Fragmented {
    /// By how much earlier than its media time a sample is shown: the media time of the first shown edit,
    /// less the delay in front of it, less the lead.
    pub(super) fn shift(&self, edits: &[Edit]) -> i64 {
        let delay = super::edits::initial_delay(edits);
        let media = edits.iter().find_map(|e| e.media_time).unwrap_or(0);
        media.saturating_sub(delay).saturating_sub(self.lead)
    }
}
