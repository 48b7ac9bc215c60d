//! What a video codec's own headers say of its pictures, whichever codec and container they came from.

use crate::facts::{ChromaSampling, Color, FieldOrder, Rational, VideoFacts};

/// Facts found in a codec's headers; absent where the headers are silent.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Picture {
    pub(crate) width: u32,
    pub(crate) height: u32,
    pub(crate) sample_aspect: Option<Rational>,
    pub(crate) frame_rate: Option<Rational>,
    pub(crate) field_order: Option<FieldOrder>,
    pub(crate) bit_depth: Option<u8>,
    pub(crate) chroma: Option<ChromaSampling>,
    pub(crate) color: Color,
    pub(crate) profile: Option<u32>,
    pub(crate) level: Option<u32>,
    pub(crate) reorder: Option<u8>,
    pub(crate) codec_string: Option<String>,
}

impl Picture {
    /// Lays these facts over those of the container.
    ///
    /// The decoder obeys its own headers, so they win for the size and the colour; a sample aspect that the
    /// container states wins over the codec's, as players do it.
    pub(crate) fn lay_over(&self, facts: &mut VideoFacts) {
        if self.width > 0 && self.height > 0 {
            facts.width = self.width;
            facts.height = self.height;
        }
        facts.sample_aspect = facts.sample_aspect.or(self.sample_aspect);
        facts.frame_rate = facts.frame_rate.or(plausible(self.frame_rate));
        // A codec that only knows it is interlaced does not outweigh a container that knows the order.
        facts.field_order = match (self.field_order, facts.field_order) {
            (Some(FieldOrder::Unknown) | None, Some(stated)) => Some(stated),
            (found, _) => found,
        };
        facts.bit_depth = self.bit_depth.or(facts.bit_depth);
        facts.chroma = self.chroma.or(facts.chroma);
        facts.color = Color {
            primaries: self.color.primaries.or(facts.color.primaries),
            transfer: self.color.transfer.or(facts.color.transfer),
            matrix: self.color.matrix.or(facts.color.matrix),
            full_range: self.color.full_range.or(facts.color.full_range),
        };
        facts.profile = self.profile.or(facts.profile);
        facts.level = self.level.or(facts.level);
        facts.reorder = self.reorder.or(facts.reorder);
    }
}

/// A frame rate that cameras and encoders make; headers hold nonsense often enough.
pub(crate) fn plausible(rate: Option<Rational>) -> Option<Rational> {
    rate.filter(|r| (0.1..=300.0).contains(&r.as_f64()))
}

/// `num:den` in lowest terms, or `None` where a part is zero.
pub(crate) fn ratio(num: u64, den: u64) -> Option<Rational> {
    if num == 0 || den == 0 {
        return None;
    }
    let (mut a, mut b) = (num, den);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    Some(Rational {
        num: u32::try_from(num / a).ok()?,
        den: u32::try_from(den / a).ok()?,
    })
}

/// A code point of H.273, absent where it says unspecified or reserved (0 and 2); for matrices zero is RGB.
pub(crate) fn color_code(value: u32) -> Option<u8> {
    match value {
        0 | 2 | 256.. => None,
        value => u8::try_from(value).ok(),
    }
}

/// A matrix code point: zero stands for RGB, two for unspecified.
pub(crate) fn matrix_code(value: u32) -> Option<u8> {
    u8::try_from(value).ok().filter(|v| *v != 2)
}

pub(crate) fn chroma_format(idc: u32) -> Option<ChromaSampling> {
    match idc {
        0 => Some(ChromaSampling::Mono),
        1 => Some(ChromaSampling::Yuv420),
        2 => Some(ChromaSampling::Yuv422),
        3 => Some(ChromaSampling::Yuv444),
        _ => None,
    }
}

/// The sample aspect ratios that H.264 and HEVC number (their common table E-1).
pub(crate) fn numbered_aspect(idc: u32) -> Option<Rational> {
    const TABLE: [(u32, u32); 16] = [
        (1, 1),
        (12, 11),
        (10, 11),
        (16, 11),
        (40, 33),
        (24, 11),
        (20, 11),
        (32, 11),
        (80, 33),
        (18, 11),
        (15, 11),
        (64, 33),
        (160, 99),
        (4, 3),
        (3, 2),
        (2, 1),
    ];
    let index = usize::try_from(idc.checked_sub(1)?).ok()?;
    TABLE.get(index).map(|&(num, den)| Rational { num, den })
}
