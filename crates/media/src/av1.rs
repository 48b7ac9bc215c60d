//! AV1 configuration records and sequence headers.

use crate::bits::Bits;
use crate::facts::{ChromaSampling, Color, FieldOrder};
use crate::picture::{Picture, color_code, matrix_code, ratio};

/// Reads an `av1C` record: its own fields, and the sequence header it carries, where it carries one.
pub(crate) fn from_record(record: &[u8]) -> Option<Picture> {
    if record.len() < 4 || record[0] != 0x81 {
        return None;
    }
    let mut bits = Bits::new(&record[1..4]);
    let bits = &mut bits;
    let (profile, level) = (bits.u(3)?, bits.u(5)?);
    let tier = bits.flag()?;
    let (high, twelve, mono) = (bits.flag()?, bits.flag()?, bits.flag()?);
    let (sub_x, sub_y) = (bits.flag()?, bits.flag()?);
    let depth = depth(high, twelve);
    let mut picture = Picture {
        bit_depth: Some(depth),
        chroma: Some(chroma(mono, sub_x, sub_y)),
        profile: Some(profile),
        level: Some(level),
        // Blocks of this codec come in the order in which they are shown.
        reorder: Some(0),
        ..Picture::default()
    };
    if let Some(found) = from_obus(&record[4..]) {
        picture = found;
    }
    picture.codec_string = Some(codec_string(profile, level, tier, depth));
    Some(picture)
}

/// The first sequence header among OBUs.
pub(crate) fn from_obus(mut obus: &[u8]) -> Option<Picture> {
    // Each turn consumes a header byte at least; temporal delimiters and metadata may come first.
    for _ in 0..32 {
        let header = *obus.first()?;
        let mut at = if header & 4 == 0 { 1 } else { 2 };
        let size = if header & 2 == 0 {
            obus.len().checked_sub(at)?
        } else {
            let (size, used) = leb128(obus.get(at..)?)?;
            at += used;
            usize::try_from(size).ok()?
        };
        let payload = obus.get(at..at.checked_add(size)?.min(obus.len()))?;
        if header >> 3 & 0xf == 1 {
            return sequence_header(payload);
        }
        obus = obus.get(at.checked_add(size)?..)?;
    }
    None
}

fn leb128(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0_u64;
    for (index, &byte) in bytes.iter().take(8).enumerate() {
        value |= u64::from(byte & 0x7f) << (7 * index);
        if byte & 0x80 == 0 {
            return Some((value, index + 1));
        }
    }
    None
}

fn codec_string(profile: u32, level: u32, tier: bool, depth: u8) -> String {
    format!(
        "av01.{profile}.{level:02}{}.{depth:02}",
        if tier { 'H' } else { 'M' }
    )
}

fn depth(high: bool, twelve: bool) -> u8 {
    match (high, twelve) {
        (false, _) => 8,
        (true, false) => 10,
        (true, true) => 12,
    }
}

fn chroma(mono: bool, sub_x: bool, sub_y: bool) -> ChromaSampling {
    match (mono, sub_x, sub_y) {
        (true, ..) => ChromaSampling::Mono,
        (_, true, true) => ChromaSampling::Yuv420,
        (_, true, false) => ChromaSampling::Yuv422,
        _ => ChromaSampling::Yuv444,
    }
}

fn sequence_header(payload: &[u8]) -> Option<Picture> {
    let mut bits = Bits::new(payload);
    let bits = &mut bits;
    let profile = bits.u(3)?;
    bits.flag()?;
    let reduced = bits.flag()?;
    let mut level = 0;
    let mut tier = false;
    let mut frame_rate = None;
    if reduced {
        level = bits.u(5)?;
    } else {
        let mut decoder_model = None;
        if bits.flag()? {
            let (units, scale) = (bits.u(32)?, bits.u(32)?);
            if bits.flag()? {
                let ticks = u64::from(bits.ue()?) + 1;
                frame_rate = ratio(u64::from(scale), u64::from(units) * ticks);
            }
            if bits.flag()? {
                decoder_model = Some(bits.u(5)? as usize + 1);
                bits.skip(32 + 5 + 5)?;
            }
        }
        let display_delay = bits.flag()?;
        for point in 0..=bits.u(5)? {
            bits.u(12)?;
            let point_level = bits.u(5)?;
            let point_tier = point_level > 7 && bits.flag()?;
            if point == 0 {
                (level, tier) = (point_level, point_tier);
            }
            if let Some(delay_bits) = decoder_model
                && bits.flag()?
            {
                bits.skip(2 * delay_bits + 1)?;
            }
            if display_delay && bits.flag()? {
                bits.u(4)?;
            }
        }
    }
    let (width_bits, height_bits) = (bits.u(4)? as usize + 1, bits.u(4)? as usize + 1);
    let (width, height) = (bits.u(width_bits)? + 1, bits.u(height_bits)? + 1);
    if !reduced && bits.flag()? {
        bits.skip(7)?;
    }
    bits.skip(3)?;
    if !reduced {
        bits.skip(4)?;
        let order_hint = bits.flag()?;
        if order_hint {
            bits.skip(2)?;
        }
        let screen_content = if bits.flag()? { 2 } else { bits.u(1)? };
        if screen_content > 0 && !bits.flag()? {
            bits.u(1)?;
        }
        if order_hint {
            bits.u(3)?;
        }
    }
    bits.skip(3)?;
    let mut picture = Picture {
        width,
        height,
        frame_rate,
        profile: Some(profile),
        level: Some(level),
        field_order: Some(FieldOrder::Progressive),
        // Blocks of this codec come in the order in which they are shown.
        reorder: Some(0),
        ..Picture::default()
    };
    color_config(bits, profile, &mut picture)?;
    picture.codec_string = Some(codec_string(profile, level, tier, picture.bit_depth?));
    Some(picture)
}

fn color_config(bits: &mut Bits<'_>, profile: u32, picture: &mut Picture) -> Option<()> {
    let high = bits.flag()?;
    let twelve = profile == 2 && high && bits.flag()?;
    let mono = profile != 1 && bits.flag()?;
    let (mut primaries, mut transfer, mut matrix) = (2, 2, 2);
    if bits.flag()? {
        (primaries, transfer, matrix) = (bits.u(8)?, bits.u(8)?, bits.u(8)?);
    }
    picture.bit_depth = Some(depth(high, twelve));
    let (full, sub_x, sub_y);
    if mono {
        full = bits.flag()?;
        (sub_x, sub_y) = (true, true);
    } else if (primaries, transfer, matrix) == (1, 13, 0) {
        full = true;
        (sub_x, sub_y) = (false, false);
    } else {
        full = bits.flag()?;
        (sub_x, sub_y) = match profile {
            0 => (true, true),
            1 => (false, false),
            _ if twelve => {
                let x = bits.flag()?;
                (x, x && bits.flag()?)
            }
            _ => (true, false),
        };
    }
    picture.chroma = Some(chroma(mono, sub_x, sub_y));
    picture.color = Color {
        primaries: color_code(primaries),
        transfer: color_code(transfer),
        matrix: matrix_code(matrix),
        full_range: Some(full),
    };
    Some(())
}
