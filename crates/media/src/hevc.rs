//! HEVC parameter sets and the keyframes of a byte stream.

use crate::bits::{Bits, be16, nal_units, unescape};
use crate::facts::FieldOrder;
use crate::h264::how_shown;
use crate::picture::{Picture, chroma_format, ratio};

const SPS_BYTES: usize = 4096;
const SPS_NAL: u8 = 33;

/// The parameter set of an `hvcC` record, and the record's codec string with the sample entry's `name`.
pub(crate) fn from_record(record: &[u8], name: &str) -> Option<Picture> {
    if record.len() < 23 {
        return None;
    }
    let mut picture = Picture::default();
    let mut at = 23;
    for _ in 0..record[22] {
        let kind = record.get(at)? & 0x3f;
        let count = be16(record, at + 1)?;
        at += 3;
        for _ in 0..count {
            let len = usize::from(be16(record, at)?);
            let nal = record.get(at + 2..at + 2 + len)?;
            at += 2 + len;
            if kind == SPS_NAL
                && picture.width == 0
                && let Some(found) = sps(nal)
            {
                picture = found;
            }
        }
    }
    picture.codec_string = codec_string(record.get(1..13)?, name);
    picture.profile = picture.profile.or(Some(u32::from(record[1] & 0x1f)));
    picture.level = picture.level.or(Some(u32::from(record[12])));
    Some(picture)
}

/// The first parameter set of an Annex B stream.
pub(crate) fn from_stream(stream: &[u8]) -> Option<Picture> {
    nal_units(stream)
        .filter(|nal| nal.first().is_some_and(|b| b >> 1 & 0x3f == SPS_NAL))
        .find_map(sps)
}

/// The codec string of the twelve bytes of a profile, tier and level.
fn codec_string(ptl: &[u8], name: &str) -> Option<String> {
    let space = ["", "A", "B", "C"][usize::from(ptl[0] >> 6)];
    let tier = if ptl[0] & 0x20 == 0 { 'L' } else { 'H' };
    let compatibility = crate::bits::be32(ptl, 1)?.reverse_bits();
    let mut text = format!(
        "{name}.{space}{}.{compatibility:X}.{tier}{}",
        ptl[0] & 0x1f,
        ptl[11]
    );
    let constraints = &ptl[5..11];
    let used = constraints
        .iter()
        .rposition(|b| *b != 0)
        .map_or(0, |last| last + 1);
    for byte in &constraints[..used] {
        text.push_str(&format!(".{byte:X}"));
    }
    Some(text)
}

/// Reads one sequence parameter set, NAL header included.
pub(crate) fn sps(nal: &[u8]) -> Option<Picture> {
    let payload = unescape(nal, SPS_BYTES);
    let ptl = payload.get(3..15)?.to_vec();
    let mut bits = Bits::new(payload.get(2..)?);
    let bits = &mut bits;
    bits.u(4)?;
    let sub_layers = bits.u(3)?;
    bits.flag()?;
    skip_profile_tier_level(bits, sub_layers)?;
    bits.ue()?;
    let chroma = bits.ue()?;
    if chroma == 3 {
        bits.flag()?;
    }
    let (mut width, mut height) = (bits.ue()?, bits.ue()?);
    if bits.flag()? {
        let (left, right, top, bottom) = (bits.ue()?, bits.ue()?, bits.ue()?, bits.ue()?);
        let unit_x = if matches!(chroma, 1 | 2) { 2 } else { 1 };
        let unit_y = if chroma == 1 { 2 } else { 1 };
        width = width.checked_sub(left.checked_add(right)?.checked_mul(unit_x)?)?;
        height = height.checked_sub(top.checked_add(bottom)?.checked_mul(unit_y)?)?;
    }
    if width == 0 || height == 0 || width > 1 << 16 || height > 1 << 16 {
        return None;
    }
    let depth = bits.ue()?.checked_add(8).filter(|d| *d <= 16)?;
    bits.ue()?;
    let order_bits = bits.ue()?.checked_add(4).filter(|b| *b <= 16)?;
    let every_layer = bits.flag()?;
    let mut reorder = 0;
    for _ in if every_layer { 0 } else { sub_layers }..=sub_layers {
        bits.ue()?;
        reorder = bits.ue()?;
        bits.ue()?;
    }
    let mut picture = Picture {
        width,
        height,
        bit_depth: u8::try_from(depth).ok(),
        chroma: chroma_format(chroma),
        profile: Some(u32::from(ptl[0] & 0x1f)),
        level: Some(u32::from(ptl[11])),
        reorder: u8::try_from(reorder).ok().filter(|r| *r <= 16),
        codec_string: codec_string(&ptl, "hvc1"),
        field_order: field_order(&ptl),
        ..Picture::default()
    };
    // A broken tail leaves what came before standing.
    let _ = tail(bits, order_bits, &mut picture);
    Some(picture)
}

/// Source scan flags of the general profile: progressive, interlaced, or silent.
fn field_order(ptl: &[u8]) -> Option<FieldOrder> {
    match ptl[5] >> 6 {
        2 => Some(FieldOrder::Progressive),
        1 => Some(FieldOrder::Unknown),
        _ => None,
    }
}

fn skip_profile_tier_level(bits: &mut Bits<'_>, sub_layers: u32) -> Option<()> {
    bits.skip(96)?;
    let mut present = Vec::with_capacity(8);
    for _ in 0..sub_layers {
        present.push((bits.flag()?, bits.flag()?));
    }
    if sub_layers > 0 {
        bits.skip(2 * (8 - sub_layers as usize))?;
    }
    for (profile, level) in present {
        bits.skip(if profile { 88 } else { 0 } + if level { 8 } else { 0 })?;
    }
    Some(())
}

fn tail(bits: &mut Bits<'_>, order_bits: u32, picture: &mut Picture) -> Option<()> {
    for _ in 0..6 {
        bits.ue()?;
    }
    if bits.flag()? && bits.flag()? {
        skip_scaling_lists(bits)?;
    }
    bits.skip(2)?;
    if bits.flag()? {
        bits.skip(8)?;
        bits.ue()?;
        bits.ue()?;
        bits.flag()?;
    }
    skip_short_term_sets(bits)?;
    if bits.flag()? {
        for _ in 0..bits.ue().filter(|n| *n <= 32)? {
            bits.skip(order_bits as usize + 1)?;
        }
    }
    bits.skip(2)?;
    if bits.flag()? {
        vui(bits, picture)?;
    }
    Some(())
}

fn skip_scaling_lists(bits: &mut Bits<'_>) -> Option<()> {
    for size in 0..4_u32 {
        for _ in (0..6).step_by(if size == 3 { 3 } else { 1 }) {
            if !bits.flag()? {
                bits.ue()?;
            } else {
                if size > 1 {
                    bits.se()?;
                }
                for _ in 0..64_u32.min(1 << (4 + 2 * size)) {
                    bits.se()?;
                }
            }
        }
    }
    Some(())
}

fn skip_short_term_sets(bits: &mut Bits<'_>) -> Option<()> {
    let sets = bits.ue().filter(|n| *n <= 64)?;
    let mut pictures = 0_u32;
    for index in 0..sets {
        if index > 0 && bits.flag()? {
            bits.flag()?;
            bits.ue()?;
            let mut kept = 0;
            for _ in 0..=pictures {
                let used = bits.flag()?;
                if used || bits.flag()? {
                    kept += 1;
                }
            }
            pictures = kept;
        } else {
            let (before, after) = (bits.ue()?, bits.ue()?);
            pictures = before.checked_add(after).filter(|n| *n <= 32)?;
            for _ in 0..pictures {
                bits.ue()?;
                bits.flag()?;
            }
        }
    }
    Some(())
}

fn vui(bits: &mut Bits<'_>, picture: &mut Picture) -> Option<()> {
    how_shown(bits, picture)?;
    bits.flag()?;
    if bits.flag()? {
        picture.field_order = Some(FieldOrder::Unknown);
    }
    bits.flag()?;
    if bits.flag()? {
        for _ in 0..4 {
            bits.ue()?;
        }
    }
    if bits.flag()? {
        let (units, scale) = (bits.u(32)?, bits.u(32)?);
        picture.frame_rate = ratio(u64::from(scale), u64::from(units));
    }
    Some(())
}

/// Whether an access unit, as NAL units in order, starts with a random access picture. `None` until its first
/// slice is seen.
pub(crate) fn is_keyframe<'a>(nals: impl Iterator<Item = &'a [u8]>) -> Option<bool> {
    for nal in nals {
        match nal.first().map(|b| b >> 1 & 0x3f) {
            Some(16..=23) => return Some(true),
            Some(0..=9) => return Some(false),
            _ => {}
        }
    }
    None
}
