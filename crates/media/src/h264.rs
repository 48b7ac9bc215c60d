//! H.264 parameter sets and the keyframes of a byte stream.

use crate::bits::{Bits, nal_units, unescape};
use crate::facts::{Color, FieldOrder, Rational};
use crate::picture::{Picture, chroma_format, color_code, matrix_code, numbered_aspect, ratio};

/// Parameter sets are at most a few hundred bytes; a longer one is not read further.
const SPS_BYTES: usize = 4096;

/// The first parameter set of an `avcC` record, and the record's codec string.
pub(crate) fn from_record(record: &[u8]) -> Option<Picture> {
    if record.first() != Some(&1) {
        return None;
    }
    let count = record.get(5)? & 0x1f;
    let mut picture = Picture::default();
    if count > 0 {
        let len = usize::from(crate::bits::be16(record, 6)?);
        picture = sps(record.get(8..8 + len)?)?;
    }
    let [profile, constraints, level] = record.get(1..4)?.try_into().ok()?;
    picture.codec_string = Some(codec_string(profile, constraints, level));
    picture.profile = picture.profile.or(Some(u32::from(profile)));
    picture.level = picture.level.or(Some(u32::from(level)));
    Some(picture)
}

/// The first parameter set of an Annex B stream.
pub(crate) fn from_stream(stream: &[u8]) -> Option<Picture> {
    nal_units(stream)
        .filter(|nal| nal.first().is_some_and(|b| b & 0x1f == 7))
        .find_map(sps)
}

fn codec_string(profile: u8, constraints: u8, level: u8) -> String {
    format!("avc1.{profile:02x}{constraints:02x}{level:02x}")
}

/// Reads one sequence parameter set, NAL header included.
pub(crate) fn sps(nal: &[u8]) -> Option<Picture> {
    let payload = unescape(nal, SPS_BYTES);
    let mut bits = Bits::new(payload.get(1..)?);
    let bits = &mut bits;
    let (profile, constraints, level) = (bits.u8(8)?, bits.u8(8)?, bits.u8(8)?);
    bits.ue()?;
    let mut chroma = 1;
    let mut separate_planes = false;
    let mut depth = 8;
    if matches!(
        profile,
        100 | 110 | 122 | 244 | 44 | 83 | 86 | 118 | 128 | 138 | 139 | 134 | 135
    ) {
        chroma = bits.ue()?;
        if chroma == 3 {
            separate_planes = bits.flag()?;
        }
        depth = bits.ue()?.checked_add(8).filter(|d| *d <= 14)?;
        bits.ue()?;
        bits.flag()?;
        if bits.flag()? {
            for index in 0..if chroma == 3 { 12 } else { 8 } {
                if bits.flag()? {
                    skip_scaling_list(bits, if index < 6 { 16 } else { 64 })?;
                }
            }
        }
    }
    bits.ue()?;
    let order_type = bits.ue()?;
    match order_type {
        0 => {
            bits.ue()?;
        }
        1 => {
            bits.flag()?;
            bits.se()?;
            bits.se()?;
            for _ in 0..bits.ue()?.min(255) {
                bits.se()?;
            }
        }
        _ => {}
    }
    bits.ue()?;
    bits.flag()?;
    let width = (bits.ue()?.checked_add(1)?).checked_mul(16)?;
    let map_units = (bits.ue()?.checked_add(1)?).checked_mul(16)?;
    let frames_only = bits.flag()?;
    let height = map_units.checked_mul(if frames_only { 1 } else { 2 })?;
    if !frames_only {
        bits.flag()?;
    }
    bits.flag()?;
    let (mut crop_x, mut crop_y) = (0, 0);
    if bits.flag()? {
        let (left, right, top, bottom) = (bits.ue()?, bits.ue()?, bits.ue()?, bits.ue()?);
        let array = if separate_planes { 0 } else { chroma };
        let unit_x = if matches!(array, 1 | 2) { 2 } else { 1 };
        let unit_y = (if array == 1 { 2 } else { 1 }) * if frames_only { 1 } else { 2 };
        crop_x = left.checked_add(right)?.checked_mul(unit_x)?;
        crop_y = top.checked_add(bottom)?.checked_mul(unit_y)?;
    }
    let mut picture = Picture {
        width: width.checked_sub(crop_x).filter(|w| *w > 0)?,
        height: height.checked_sub(crop_y).filter(|h| *h > 0)?,
        field_order: Some(if frames_only {
            FieldOrder::Progressive
        } else {
            FieldOrder::Unknown
        }),
        bit_depth: u8::try_from(depth).ok(),
        chroma: chroma_format(chroma),
        profile: Some(u32::from(profile)),
        level: Some(u32::from(level)),
        codec_string: Some(codec_string(profile, constraints, level)),
        // Baseline has no B slices, and order type 2 says that output follows decoding.
        reorder: (profile == 66 || order_type == 2).then_some(0),
        ..Picture::default()
    };
    if bits.flag()? {
        // A broken tail of the optional part leaves what came before standing.
        let _ = vui(bits, &mut picture);
    }
    Some(picture)
}

fn skip_scaling_list(bits: &mut Bits<'_>, size: u32) -> Option<()> {
    let (mut last, mut next) = (8_i64, 8_i64);
    for _ in 0..size {
        if next != 0 {
            next = (last + bits.se()? + 256) % 256;
        }
        if next != 0 {
            last = next;
        }
    }
    Some(())
}

fn vui(bits: &mut Bits<'_>, picture: &mut Picture) -> Option<()> {
    how_shown(bits, picture)?;
    if bits.flag()? {
        let (units, scale) = (bits.u(32)?, bits.u(32)?);
        bits.flag()?;
        picture.frame_rate = ratio(u64::from(scale), u64::from(units) * 2);
    }
    let nal_hrd = bits.flag()?;
    if nal_hrd {
        skip_hrd(bits)?;
    }
    let vcl_hrd = bits.flag()?;
    if vcl_hrd {
        skip_hrd(bits)?;
    }
    if nal_hrd || vcl_hrd {
        bits.flag()?;
    }
    bits.flag()?;
    if bits.flag()? {
        bits.flag()?;
        for _ in 0..4 {
            bits.ue()?;
        }
        picture.reorder = u8::try_from(bits.ue()?).ok().filter(|r| *r <= 16);
    }
    Some(())
}

/// How a picture is to be shown, with which the usability information of H.264 and HEVC alike begins: aspect
/// ratio, overscan, signal type, place of the colour samples.
pub(crate) fn how_shown(bits: &mut Bits<'_>, picture: &mut Picture) -> Option<()> {
    picture.sample_aspect = aspect(bits)?;
    if bits.flag()? {
        bits.flag()?;
    }
    picture.color = signal_type(bits)?;
    if bits.flag()? {
        bits.ue()?;
        bits.ue()?;
    }
    Some(())
}

fn aspect(bits: &mut Bits<'_>) -> Option<Option<Rational>> {
    if !bits.flag()? {
        return Some(None);
    }
    match bits.u(8)? {
        255 => {
            let (num, den) = (bits.u(16)?, bits.u(16)?);
            Some(ratio(u64::from(num), u64::from(den)))
        }
        idc => Some(numbered_aspect(idc)),
    }
}

fn signal_type(bits: &mut Bits<'_>) -> Option<Color> {
    let mut color = Color::default();
    if bits.flag()? {
        bits.u(3)?;
        color.full_range = Some(bits.flag()?);
        if bits.flag()? {
            color.primaries = color_code(bits.u(8)?);
            color.transfer = color_code(bits.u(8)?);
            color.matrix = matrix_code(bits.u(8)?);
        }
    }
    Some(color)
}

fn skip_hrd(bits: &mut Bits<'_>) -> Option<()> {
    let count = bits.ue()?.min(31) + 1;
    bits.u(8)?;
    for _ in 0..count {
        bits.ue()?;
        bits.ue()?;
        bits.flag()?;
    }
    bits.skip(20)
}

/// Whether an access unit, as NAL units in order, is one that decoding can start at: an IDR picture, or one
/// with a recovery point. `None` until its first slice is seen.
pub(crate) fn is_keyframe<'a>(nals: impl Iterator<Item = &'a [u8]>) -> Option<bool> {
    let mut recovery = false;
    for nal in nals {
        match nal.first().map(|b| b & 0x1f) {
            Some(5) => return Some(true),
            Some(1 | 2) => return Some(recovery),
            Some(6) => recovery |= has_recovery_point(nal),
            _ => {}
        }
    }
    None
}

fn has_recovery_point(sei: &[u8]) -> bool {
    let payload = unescape(sei.get(1..).unwrap_or(&[]), SPS_BYTES);
    let mut at = 0;
    // Each message: type and size in runs of 255, then its payload; the last byte is the stop bit.
    while at + 2 < payload.len() + 1 {
        let (mut kind, mut size) = (0_usize, 0_usize);
        for value in [&mut kind, &mut size] {
            loop {
                let Some(&byte) = payload.get(at) else {
                    return false;
                };
                at += 1;
                *value += usize::from(byte);
                if byte != 255 {
                    break;
                }
            }
        }
        if kind == 6 {
            return true;
        }
        at += size;
    }
    false
}
