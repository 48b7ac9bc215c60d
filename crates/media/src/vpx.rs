//! VP8 and VP9: the headers of their first frames and the records that containers carry for VP9.

use crate::bits::Bits;
use crate::facts::{ChromaSampling, Color, FieldOrder};
use crate::picture::{Picture, color_code, matrix_code};

/// The size in a VP8 keyframe's header.
pub(crate) fn vp8_frame(frame: &[u8]) -> Option<Picture> {
    let tag = *frame.first()?;
    if tag & 1 != 0 || frame.get(3..6)? != [0x9d, 0x01, 0x2a] {
        return None;
    }
    let size = |at: usize| {
        Some(u32::from(
            u16::from_le_bytes([*frame.get(at)?, *frame.get(at + 1)?]) & 0x3fff,
        ))
    };
    Some(Picture {
        width: size(6)?,
        height: size(8)?,
        bit_depth: Some(8),
        chroma: Some(ChromaSampling::Yuv420),
        profile: Some(u32::from(tag >> 1 & 7)),
        codec_string: Some("vp8".into()),
        field_order: Some(FieldOrder::Progressive),
        // Blocks of this codec come in the order in which they are shown.
        reorder: Some(0),
        ..Picture::default()
    })
}

/// The uncompressed header of a VP9 keyframe.
pub(crate) fn vp9_frame(frame: &[u8]) -> Option<Picture> {
    let mut bits = Bits::new(frame);
    let bits = &mut bits;
    if bits.u(2)? != 2 {
        return None;
    }
    let (low, high) = (bits.u(1)?, bits.u(1)?);
    let profile = high << 1 | low;
    if profile == 3 {
        bits.flag()?;
    }
    let (show_existing, inter) = (bits.flag()?, bits.flag()?);
    bits.skip(2)?;
    if show_existing || inter || bits.u(24)? != 0x49_8342 {
        return None;
    }
    let depth = if profile >= 2 {
        if bits.flag()? { 12 } else { 10 }
    } else {
        8
    };
    let space = bits.u(3)?;
    let (full, chroma);
    if space == 7 {
        full = true;
        chroma = ChromaSampling::Yuv444;
        if profile & 1 == 1 {
            bits.flag()?;
        }
    } else {
        full = bits.flag()?;
        chroma = if profile & 1 == 1 {
            let (x, y) = (bits.flag()?, bits.flag()?);
            bits.flag()?;
            match (x, y) {
                (true, true) => ChromaSampling::Yuv420,
                (true, false) => ChromaSampling::Yuv422,
                _ => ChromaSampling::Yuv444,
            }
        } else {
            ChromaSampling::Yuv420
        };
    }
    // VP9's own numbers for colour spaces: 1 = BT.601, 2 = BT.709, 3 = SMPTE 170, 4 = SMPTE 240, 5 = BT.2020.
    let matrix = match space {
        1 => Some(5),
        2 => Some(1),
        3 => Some(6),
        4 => Some(7),
        5 => Some(9),
        7 => Some(0),
        _ => None,
    };
    Some(Picture {
        width: bits.u(16)? + 1,
        height: bits.u(16)? + 1,
        bit_depth: Some(depth),
        chroma: Some(chroma),
        color: Color {
            matrix,
            full_range: Some(full),
            ..Color::default()
        },
        profile: Some(profile),
        // Blocks of this codec come in the order in which they are shown.
        reorder: Some(0),
        ..Picture::default()
    })
}

/// A `vpcC` record of version 1, its four version bytes included.
pub(crate) fn vp9_record(record: &[u8]) -> Option<Picture> {
    if record.first() != Some(&1) {
        return None;
    }
    let (profile, level, packed) = (*record.get(4)?, *record.get(5)?, *record.get(6)?);
    let depth = packed >> 4;
    let chroma = match packed >> 1 & 7 {
        0 | 1 => ChromaSampling::Yuv420,
        2 => ChromaSampling::Yuv422,
        _ => ChromaSampling::Yuv444,
    };
    Some(Picture {
        bit_depth: Some(depth),
        chroma: Some(chroma),
        color: Color {
            primaries: color_code(u32::from(*record.get(7)?)),
            transfer: color_code(u32::from(*record.get(8)?)),
            matrix: matrix_code(u32::from(*record.get(9)?)),
            full_range: Some(packed & 1 == 1),
        },
        profile: Some(u32::from(profile)),
        level: Some(u32::from(level)).filter(|l| *l > 0),
        codec_string: Some(vp9_string(profile, level, depth)),
        // Blocks of this codec come in the order in which they are shown.
        reorder: Some(0),
        ..Picture::default()
    })
}

/// The profile, level and depth that WebM's `CodecPrivate` for VP9 lists as (id, length, value).
pub(crate) fn vp9_private(private: &[u8]) -> (Option<u8>, Option<u8>) {
    let (mut profile, mut level) = (None, None);
    for feature in private.chunks_exact(3) {
        match feature {
            [1, 1, value] => profile = Some(*value),
            [2, 1, value] => level = Some(*value),
            _ => {}
        }
    }
    (profile, level)
}

/// The codec string. A level of zero (unknown) is replaced by what the picture's size alone demands.
pub(crate) fn vp9_string(profile: u8, level: u8, depth: u8) -> String {
    let level = if level == 0 { 10 } else { level };
    format!("vp09.{profile:02}.{level:02}.{depth:02}")
}

/// The lowest VP9 level whose picture size and sample rate hold `width` x `height` at `fps`.
pub(crate) fn vp9_level(width: u32, height: u32, fps: f64) -> u8 {
    // Level x 10, samples in a picture, samples in a second (VP9 levels, table of the level definitions).
    const TABLE: [(u8, u64, u64); 14] = [
        (10, 36_864, 829_440),
        (11, 73_728, 2_764_800),
        (20, 122_880, 4_608_000),
        (21, 245_760, 9_216_000),
        (30, 552_960, 20_736_000),
        (31, 983_040, 36_864_000),
        (40, 2_228_224, 83_558_400),
        (41, 2_228_224, 160_432_128),
        (50, 8_912_896, 311_951_360),
        (51, 8_912_896, 588_251_136),
        (52, 8_912_896, 1_176_502_272),
        (60, 35_651_584, 1_176_502_272),
        (61, 35_651_584, 2_353_004_544),
        (62, 35_651_584, 4_706_009_088),
    ];
    let picture = u64::from(width) * u64::from(height);
    let rate = (picture as f64 * fps) as u64;
    TABLE
        .iter()
        .find(|(_, size, samples)| picture <= *size && rate <= *samples)
        .map_or(62, |(level, ..)| *level)
}
