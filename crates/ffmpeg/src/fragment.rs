//! The head of a fragmented MP4 segment: everything that precedes the samples' bytes.
//!
//! Decoding times are not FFmpeg's: they are the segment's own presentation times in increasing order. So a
//! segment starts decoding exactly where it starts showing, its durations add up to its declared length, and
//! two runs that saw the same packets write the same bytes. What reordering costs is a constant: it is added to
//! every offset from decoding to showing, so that none is negative, and the initialization segment's edit takes
//! it off again. Players that place segments by their first decoding time and players that place pictures by
//! when they are shown both find what the playlist says.

use ether_media::Ticks;

use crate::boxes::BoxWriter;
use crate::init::{AUDIO_ID, VIDEO_ID};
use crate::segmenter::{Picture, Sound, Table};

/// Sample flags of a keyframe: depends on no other.
const KEY: u32 = 0x0200_0000;
/// Sample flags of any other picture: depends on others and is no sync sample.
const DELTA: u32 = 0x0101_0000;

/// The head of segment `number`, whose pictures are reordered by at most `reorder`; the pictures' bytes follow it in decoding order, then the sounds'.
pub(crate) fn head(number: u32, table: &Table, reorder: Ticks) -> Vec<u8> {
    let picture_bytes: u64 = table.pictures.iter().map(|p| u64::from(p.size)).sum();
    let sound_bytes: u64 = table.sounds.iter().map(|s| u64::from(s.size)).sum();
    let mut w = BoxWriter::default();
    w.nested(b"styp", |w| {
        w.raw(b"msdh");
        w.u32(0);
        w.raw(b"msdhmsix");
    });
    let moof = w.bytes.len();
    let mut offsets = [None, None];
    w.nested(b"moof", |w| {
        w.full(b"mfhd", 0, 0, |w| w.u32(number.saturating_add(1)));
        if !table.pictures.is_empty() {
            w.nested(b"traf", |w| offsets[0] = Some(pictures(w, table, reorder)));
        }
        if !table.sounds.is_empty() {
            w.nested(b"traf", |w| offsets[1] = Some(sounds(w, table)));
        }
    });
    let body = picture_bytes + sound_bytes;
    let header = if body + 8 > u64::from(u32::MAX) { 16 } else { 8 };
    let first = (w.bytes.len() - moof + header) as u32;
    if let Some(at) = offsets[0] {
        w.patch_u32(at, first);
    }
    if let Some(at) = offsets[1] {
        w.patch_u32(
            at,
            first.saturating_add(u32::try_from(picture_bytes).unwrap_or(u32::MAX)),
        );
    }
    if header == 16 {
        w.u32(1);
        w.raw(b"mdat");
        w.u64(body + 16);
    } else {
        w.u32((body + 8) as u32);
        w.raw(b"mdat");
    }
    w.bytes
}

/// The decoding time and the duration of every picture of a segment, in decoding order.
pub(crate) fn decoding_times(table: &Table) -> Vec<(Ticks, Ticks)> {
    let mut shown: Vec<Ticks> = table.pictures.iter().map(|p| p.pts).collect();
    shown.sort_unstable();
    let end = table.next_picture.or_else(|| last_end(&table.pictures));
    (0..shown.len())
        .map(|n| {
            let next = shown.get(n + 1).copied().or(end).unwrap_or(shown[n]);
            (shown[n], Ticks((next - shown[n]).0.max(0)))
        })
        .collect()
}

fn last_end(pictures: &[Picture]) -> Option<Ticks> {
    pictures.iter().max_by_key(|p| p.pts).map(|p| p.pts + p.duration)
}

fn pictures(w: &mut BoxWriter, table: &Table, reorder: Ticks) -> usize {
    let times = decoding_times(table);
    track(w, VIDEO_ID, times.first().map_or(0, |(at, _)| at.0), None);
    let mut offset = 0;
    // Data offset, and for each sample: duration, size, flags, composition offset.
    w.full(b"trun", 1, 0x0f01, |w| {
        w.u32(table.pictures.len() as u32);
        offset = w.bytes.len();
        w.u32(0);
        for (picture, (decoded, duration)) in table.pictures.iter().zip(&times) {
            w.u32(u32::try_from(duration.0).unwrap_or(u32::MAX));
            w.u32(picture.size);
            w.u32(if picture.key { KEY } else { DELTA });
            let composition = (picture.pts - *decoded + reorder).0;
            w.i32(i32::try_from(composition).unwrap_or(0));
        }
    });
    offset
}

/// The duration of every sound of a segment: up to the next one, so that the sum never drifts from the clock.
pub(crate) fn sound_durations(table: &Table) -> impl Iterator<Item = (&Sound, u32)> {
    table.sounds.iter().enumerate().map(|(n, sound)| {
        let next = table.sounds.get(n + 1).map(|s| s.start).or(table.next_sound);
        let gap = next.map_or(i64::from(sound.duration), |next| next - sound.start);
        // A hole in the source is left as one: the piece lasts as long as it sounds.
        let longest = i64::from(sound.duration).saturating_mul(2);
        let gap = if gap > longest {
            i64::from(sound.duration)
        } else {
            gap.max(0)
        };
        (sound, u32::try_from(gap).unwrap_or(sound.duration))
    })
}

fn sounds(w: &mut BoxWriter, table: &Table) -> usize {
    track(
        w,
        AUDIO_ID,
        table.sounds.first().map_or(0, |s| s.start),
        Some(KEY),
    );
    let mut offset = 0;
    w.full(b"trun", 0, 0x0301, |w| {
        w.u32(table.sounds.len() as u32);
        offset = w.bytes.len();
        w.u32(0);
        for (sound, duration) in sound_durations(table) {
            w.u32(duration);
            w.u32(sound.size);
        }
    });
    offset
}

fn track(w: &mut BoxWriter, id: u32, decoded: i64, flags: Option<u32>) {
    // Offsets count from the start of the fragment's own table.
    const BASE_IS_MOOF: u32 = 0x02_0000;
    const DEFAULT_FLAGS: u32 = 0x20;
    w.full(
        b"tfhd",
        0,
        BASE_IS_MOOF | flags.map_or(0, |_| DEFAULT_FLAGS),
        |w| {
            w.u32(id);
            if let Some(flags) = flags {
                w.u32(flags);
            }
        },
    );
    w.full(b"tfdt", 1, 0, |w| w.u64(u64::try_from(decoded).unwrap_or(0)));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn picture(pts: i64, key: bool) -> Picture {
        Picture {
            pts: Ticks(pts),
            duration: Ticks(3_600),
            size: 10,
            key,
        }
    }

    #[test]
    fn durations_of_reordered_pictures_fill_the_segment_exactly() {
        let table = Table {
            pictures: vec![
                picture(0, true),
                picture(10_800, false),
                picture(3_600, false),
                picture(7_200, false),
            ],
            next_picture: Some(Ticks(14_400)),
            ..Table::default()
        };
        let times = decoding_times(&table);
        assert_eq!(times.first().unwrap().0, Ticks(0));
        assert_eq!(times.iter().map(|(_, d)| d.0).sum::<i64>(), 14_400);
    }

    #[test]
    fn a_hole_in_the_sound_is_not_stretched_over() {
        let sound = |start| Sound {
            start,
            duration: 1_024,
            size: 1,
        };
        let table = Table {
            sounds: vec![sound(0), sound(1_000), sound(9_000)],
            ..Table::default()
        };
        let durations: Vec<u32> = sound_durations(&table).map(|(_, d)| d).collect();
        assert_eq!(durations, [1_000, 1_024, 1_024]);
    }
}
