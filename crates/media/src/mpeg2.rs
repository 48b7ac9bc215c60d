//! MPEG-2 video sequence headers and the keyframes of a byte stream. MPEG-1 streams, which lack the sequence
//! extension, are told apart.

use crate::bits::{Bits, nal_units};
use crate::facts::{Color, FieldOrder};
use crate::picture::{Picture, chroma_format, color_code, matrix_code, ratio};

/// A picture and whether the stream is MPEG-2 (as opposed to MPEG-1).
pub(crate) struct Sequence {
    pub(crate) picture: Picture,
    pub(crate) is_mpeg2: bool,
}

/// Reads the first sequence header of a stream, with the extensions and the picture that follow it.
pub(crate) fn from_stream(stream: &[u8]) -> Option<Sequence> {
    let mut sequence: Option<Sequence> = None;
    let mut aspect = 0;
    let mut display = (0, 0);
    let mut progressive = true;
    for unit in nal_units(stream) {
        let body = unit.get(1..)?;
        match (unit[0], &mut sequence) {
            (0xb3, None) => {
                let (picture, code) = header(body)?;
                aspect = code;
                sequence = Some(Sequence {
                    picture,
                    is_mpeg2: false,
                });
            }
            (0xb5, Some(found)) => match body.first().map(|b| b >> 4) {
                Some(1) => progressive = extension(body, found)?,
                Some(2) => display = display_extension(body, &mut found.picture).unwrap_or_default(),
                Some(8) => {
                    found.picture.field_order = field_order(body, progressive);
                    break;
                }
                _ => {}
            },
            // Slices: the picture's header is over.
            (0x01..=0xaf, Some(_)) => break,
            _ => {}
        }
    }
    let mut sequence = sequence?;
    if sequence.is_mpeg2 {
        let picture = &mut sequence.picture;
        picture.sample_aspect = sample_aspect(aspect, picture.width, picture.height, display);
        if progressive {
            picture.field_order = Some(FieldOrder::Progressive);
        }
    }
    Some(sequence)
}

fn header(body: &[u8]) -> Option<(Picture, u32)> {
    let mut bits = Bits::new(body);
    let (width, height, aspect, rate) = (bits.u(12)?, bits.u(12)?, bits.u(4)?, bits.u(4)?);
    let frame_rate = match rate {
        1 => ratio(24_000, 1_001),
        2 => ratio(24, 1),
        3 => ratio(25, 1),
        4 => ratio(30_000, 1_001),
        5 => ratio(30, 1),
        6 => ratio(50, 1),
        7 => ratio(60_000, 1_001),
        8 => ratio(60, 1),
        _ => None,
    };
    if width == 0 || height == 0 {
        return None;
    }
    let picture = Picture {
        width,
        height,
        frame_rate,
        bit_depth: Some(8),
        chroma: chroma_format(1),
        ..Picture::default()
    };
    Some((picture, aspect))
}

/// Returns whether the sequence is progressive.
fn extension(body: &[u8], sequence: &mut Sequence) -> Option<bool> {
    let mut bits = Bits::new(body);
    bits.u(4)?;
    bits.flag()?;
    let (profile, level) = (bits.u(3)?, bits.u(4)?);
    let progressive = bits.flag()?;
    let picture = &mut sequence.picture;
    picture.chroma = chroma_format(bits.u(2)?);
    picture.width |= bits.u(2)? << 12;
    picture.height |= bits.u(2)? << 12;
    bits.skip(12 + 1 + 8)?;
    let low_delay = bits.flag()?;
    let (num, den) = (bits.u(2)? + 1, bits.u(5)? + 1);
    if let Some(rate) = picture.frame_rate {
        picture.frame_rate = ratio(
            u64::from(rate.num) * u64::from(num),
            u64::from(rate.den) * u64::from(den),
        );
    }
    picture.profile = Some(profile);
    picture.level = Some(level);
    picture.reorder = Some(u8::from(!low_delay));
    sequence.is_mpeg2 = true;
    Some(progressive)
}

/// Returns the display size.
fn display_extension(body: &[u8], picture: &mut Picture) -> Option<(u32, u32)> {
    let mut bits = Bits::new(body);
    bits.u(4)?;
    bits.u(3)?;
    if bits.flag()? {
        picture.color = Color {
            primaries: color_code(bits.u(8)?),
            transfer: color_code(bits.u(8)?),
            matrix: matrix_code(bits.u(8)?),
            full_range: None,
        };
    }
    let width = bits.u(14)?;
    bits.flag()?;
    Some((width, bits.u(14)?))
}

fn field_order(body: &[u8], progressive_sequence: bool) -> Option<FieldOrder> {
    let mut bits = Bits::new(body);
    bits.skip(4 + 16 + 2)?;
    let structure = bits.u(2)?;
    let top_first = bits.flag()?;
    bits.skip(6)?;
    let progressive_frame = {
        bits.flag()?;
        bits.flag()?
    };
    Some(match (progressive_sequence, structure) {
        (true, _) => FieldOrder::Progressive,
        (false, 1) => FieldOrder::TopFirst,
        (false, 2) => FieldOrder::BottomFirst,
        (false, _) if progressive_frame => FieldOrder::Progressive,
        (false, _) if top_first => FieldOrder::TopFirst,
        (false, _) => FieldOrder::BottomFirst,
    })
}

/// The header gives the shown picture's aspect, of the display size or of the coded one: broadcasters differ.
/// Like FFmpeg, the display size is believed only where it leads to one of the usual aspects.
fn sample_aspect(code: u32, width: u32, height: u32, display: (u32, u32)) -> Option<crate::facts::Rational> {
    let (num, den) = match code {
        1 => return ratio(1, 1),
        2 => (4_u64, 3_u64),
        3 => (16, 9),
        4 => (221, 100),
        _ => return None,
    };
    let (w, h) = (u64::from(width), u64::from(height));
    let (dw, dh) = (u64::from(display.0), u64::from(display.1));
    if dw > 0 && dh > 0 {
        let usual = ratio(num * dh * w, den * dw * h).map(|r| (r.num, r.den));
        if matches!(usual, Some((4, 3) | (16, 9))) {
            return ratio(num * dh, den * dw);
        }
    }
    ratio(num * h, den * w)
}

/// Whether the access unit at the start of `stream` is an I picture. `None` until a picture header is seen.
pub(crate) fn is_keyframe<'a>(units: impl Iterator<Item = &'a [u8]>) -> Option<bool> {
    for unit in units {
        if unit.first() == Some(&0) {
            return unit.get(2).map(|b| b >> 3 & 7 == 1);
        }
    }
    None
}
