//! Levels of H.264 (ITU-T H.264, table A-1): how large, how fast and how thick a stream may be.

use crate::facts::Rational;

/// `level_idc`, macroblocks a second, macroblocks a frame, kbit/s in units of 1,000 for Baseline and Main.
const LEVELS: [(u8, u64, u64, u64); 13] = [
    (30, 40_500, 1_620, 10_000),
    (31, 108_000, 3_600, 14_000),
    (32, 216_000, 5_120, 20_000),
    (40, 245_760, 8_192, 20_000),
    (41, 245_760, 8_192, 50_000),
    (42, 522_240, 8_704, 50_000),
    (50, 589_824, 22_080, 135_000),
    (51, 983_040, 36_864, 240_000),
    (52, 2_073_600, 36_864, 240_000),
    (60, 4_177_920, 139_264, 240_000),
    (61, 8_355_840, 139_264, 480_000),
    (62, 16_711_680, 139_264, 800_000),
    (62, u64::MAX, u64::MAX, u64::MAX),
];

/// Rate assumed where the file claims none: no common film is faster.
const ASSUMED_RATE: Rational = Rational { num: 60, den: 1 };

/// The `level_idc` that a High profile encode of this size, rate and peak needs: what the encoder is told and
/// what playlists say (`avc1.6400LL`). Never below 3.0, which every player plays; 6.2 for anything beyond it.
pub fn h264_level(width: u32, height: u32, rate: Option<Rational>, max_bit_rate: u64) -> u8 {
    let rate = rate.filter(|r| r.num > 0 && r.den > 0).unwrap_or(ASSUMED_RATE);
    let blocks = |pixels: u32| u64::from(pixels.div_ceil(16));
    let (across, down) = (blocks(width), blocks(height));
    let frame = across * down;
    let second = frame
        .saturating_mul(u64::from(rate.num))
        .div_ceil(u64::from(rate.den));
    let fits = |&(_, per_second, per_frame, kilobits): &(u8, u64, u64, u64)| {
        // A.3.1: neither side may exceed the root of eight times the frame's macroblocks.
        let side = per_frame.saturating_mul(8);
        second <= per_second
            && frame <= per_frame
            && across.saturating_mul(across) <= side
            && down.saturating_mul(down) <= side
            // High profile carries 1.25 times the bits of Main.
            && max_bit_rate <= kilobits.saturating_mul(1_250)
    };
    LEVELS
        .iter()
        .find(|level| fits(level))
        .map_or(62, |level| level.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn rate(num: u32, den: u32) -> Option<Rational> {
        Some(Rational { num, den })
    }

    #[test]
    fn common_sizes_have_their_well_known_levels() {
        assert_eq!(h264_level(640, 360, rate(30, 1), 2_000_000), 30);
        assert_eq!(h264_level(1280, 720, rate(30, 1), 9_000_000), 31);
        assert_eq!(h264_level(1280, 720, rate(60, 1), 9_000_000), 32);
        assert_eq!(h264_level(1920, 1080, rate(24_000, 1_001), 15_600_000), 40);
        assert_eq!(h264_level(1920, 1080, rate(60, 1), 20_000_000), 42);
        assert_eq!(h264_level(3840, 2160, rate(30, 1), 40_000_000), 51);
        assert_eq!(h264_level(3840, 2160, rate(60, 1), 40_000_000), 52);
    }

    #[test]
    fn bits_alone_can_raise_the_level() {
        assert_eq!(h264_level(1280, 720, rate(30, 1), 17_500_000), 31);
        assert_eq!(h264_level(1280, 720, rate(30, 1), 17_500_001), 32);
    }

    #[test]
    fn an_unclaimed_rate_is_taken_as_fast_and_absurd_sizes_have_an_answer() {
        assert_eq!(h264_level(1920, 1080, None, 1), 42);
        assert_eq!(h264_level(u32::MAX, u32::MAX, rate(u32::MAX, 1), u64::MAX), 62);
        assert_eq!(h264_level(16, 16, rate(0, 0), 0), 30);
    }
}
