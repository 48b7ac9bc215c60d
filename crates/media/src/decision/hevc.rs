//! Levels of HEVC (ITU-T H.265, tables A.8 and A.9, Main tier).

use crate::facts::Rational;

/// `general_level_idc`, samples of a picture, samples a second, kbit/s in units of 1,000.
const LEVELS: [(u8, u64, u64, u64); 11] = [
    (90, 552_960, 16_588_800, 6_000),
    (93, 983_040, 33_177_600, 10_000),
    (120, 2_228_224, 66_846_720, 12_000),
    (123, 2_228_224, 133_693_440, 20_000),
    (150, 8_912_896, 267_386_880, 25_000),
    (153, 8_912_896, 534_773_760, 40_000),
    (156, 8_912_896, 1_069_547_520, 60_000),
    (180, 35_651_584, 1_069_547_520, 60_000),
    (183, 35_651_584, 2_139_095_040, 120_000),
    (186, 35_651_584, 4_278_190_080, 240_000),
    (186, u64::MAX, u64::MAX, u64::MAX),
];

/// Rate assumed where the file claims none: no common film is faster.
const ASSUMED_RATE: Rational = Rational { num: 60, den: 1 };

/// The `general_level_idc` that a Main tier encode of this size, rate and peak needs: what the encoder is told
/// and what playlists say. Never below 3.0; 6.2 for anything beyond it.
pub fn hevc_level(width: u32, height: u32, rate: Option<Rational>, max_bit_rate: u64) -> u8 {
    let rate = rate.filter(|r| r.num > 0 && r.den > 0).unwrap_or(ASSUMED_RATE);
    // Pictures are coded in whole blocks of eight samples.
    let side = |pixels: u32| u64::from(pixels.div_ceil(8)) * 8;
    let (across, down) = (side(width), side(height));
    let frame = across.saturating_mul(down);
    let second = frame
        .saturating_mul(u64::from(rate.num))
        .div_ceil(u64::from(rate.den));
    let fits = |&(_, picture, per_second, kilobits): &(u8, u64, u64, u64)| {
        // A.4.1: neither side may exceed the root of eight times the picture.
        let longest = picture.saturating_mul(8);
        frame <= picture
            && second <= per_second
            && across.saturating_mul(across) <= longest
            && down.saturating_mul(down) <= longest
            && max_bit_rate <= kilobits.saturating_mul(1_000)
    };
    LEVELS
        .iter()
        .find(|level| fits(level))
        .map_or(186, |level| level.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn common_sizes_have_their_well_known_levels() {
        let rate = |num| Some(Rational { num, den: 1 });
        assert_eq!(hevc_level(1280, 720, rate(30), 9_000_000), 93);
        assert_eq!(hevc_level(1920, 1080, rate(24), 10_000_000), 120);
        assert_eq!(hevc_level(1920, 1080, rate(24), 15_600_000), 123);
        assert_eq!(hevc_level(1920, 1080, rate(60), 12_000_000), 123);
        assert_eq!(hevc_level(3840, 2160, rate(24), 25_000_000), 150);
        assert_eq!(hevc_level(3840, 2160, rate(60), 40_000_000), 153);
        assert_eq!(hevc_level(u32::MAX, u32::MAX, rate(u32::MAX), u64::MAX), 186);
        assert_eq!(hevc_level(16, 16, None, 0), 90);
    }
}
