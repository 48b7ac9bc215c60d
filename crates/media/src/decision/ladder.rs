//! Bit rates and sizes of encoded pictures.
//!
//! The averages are those of the H.264 ladder in Apple's "HLS Authoring Specification for Apple Devices"
//! (its 16:9 table, the higher of two rates where a size has two); the same text asks that a peak be at most
//! twice the average of a film, which is where [`PEAK`] comes from. Sizes past that table are ours.

use crate::facts::Rational;

/// Pixels of a rung and its average bit rate at up to 30 frames a second.
const RUNGS: [(u64, u64); 9] = [
    (416 * 234, 145_000),
    (640 * 360, 365_000),
    (768 * 432, 1_100_000),
    (960 * 540, 2_000_000),
    (1280 * 720, 4_500_000),
    (1920 * 1080, 7_800_000),
    // Past the published H.264 rows.
    (2560 * 1440, 12_000_000),
    (3840 * 2160, 20_000_000),
    (7680 * 4320, 50_000_000),
];

/// How much a peak may exceed the average.
pub(super) const PEAK: u64 = 2;

/// Most qualities of one picture, the best included.
pub const MOST_QUALITIES: usize = 5;

/// How many times fewer bits each quality has than the one above, as a fraction: a smaller step would be no
/// relief to a player that switches down.
const STEP: (u64, u64) = (3, 2);

/// Even sizes and peaks of the qualities below a picture of `size` with the peak `peak`, from the better down:
/// the published sizes below its own, each in the picture's own shape and with at most two thirds of the bits of
/// the one above it.
pub(super) fn below(size: (u32, u32), peak: u64, rate: Option<Rational>) -> Vec<((u32, u32), u64)> {
    let pixels = f64::from(size.0) * f64::from(size.1);
    let mut found: Vec<((u32, u32), u64)> = Vec::new();
    let (mut last, mut bits) = (size, peak);
    for (rung, _) in RUNGS.iter().rev() {
        let scale = (*rung as f64 / pixels).sqrt();
        if scale >= 1.0 || found.len() + 1 >= MOST_QUALITIES {
            continue;
        }
        let smaller = scaled(size, scale);
        let peak = average_bit_rate(smaller.0, smaller.1, rate).saturating_mul(PEAK);
        let lighter = peak.saturating_mul(STEP.0) <= bits.saturating_mul(STEP.1);
        if lighter && smaller.0 < last.0 && smaller.1 < last.1 {
            (last, bits) = (smaller, peak);
            found.push((smaller, peak));
        }
    }
    found
}

/// Average bits a second for an H.264 picture of `width` × `height`, interpolated between the rungs by the
/// number of pixels; faster film than 30 frames a second gets more, up to half as much again at 60.
pub fn average_bit_rate(width: u32, height: u32, rate: Option<Rational>) -> u64 {
    let pixels = u64::from(width) * u64::from(height);
    let above = RUNGS.partition_point(|rung| rung.0 < pixels);
    let base = match (above.checked_sub(1).map(|n| RUNGS[n]), RUNGS.get(above)) {
        (None, Some(lowest)) => lowest.1,
        (Some(low), Some(high)) => low.1 + (high.1 - low.1) * (pixels - low.0) / (high.0 - low.0).max(1),
        (Some(highest), None) => highest.1,
        (None, None) => 0,
    };
    let fps = rate.map_or(30.0, Rational::as_f64).clamp(30.0, 60.0);
    (base as f64 * (1.0 + (fps - 30.0) / 60.0)) as u64
}

/// The even size that a picture of `width` × `height` is encoded at: no larger than it is, within
/// `max_height`, and on the highest rung whose average fits `budget` bits a second.
pub(super) fn fit(
    (width, height): (u32, u32),
    max_height: Option<u32>,
    budget: Option<u64>,
    rate: Option<Rational>,
) -> (u32, u32) {
    let (mut width, mut height) = (even(width), even(height));
    if let Some(limit) = max_height.filter(|limit| height > *limit) {
        (width, height) = scaled((width, height), f64::from(limit) / f64::from(height));
    }
    let Some(budget) = budget else {
        return (width, height);
    };
    let full = (width, height);
    let pixels = f64::from(width) * f64::from(height);
    for (rung, _) in RUNGS.iter().rev() {
        if average_bit_rate(width, height, rate) <= budget {
            break;
        }
        let scale = (*rung as f64 / pixels).sqrt();
        if scale < 1.0 {
            (width, height) = scaled(full, scale);
        }
    }
    (width, height)
}

fn scaled((width, height): (u32, u32), scale: f64) -> (u32, u32) {
    let scale = |side: u32| even((f64::from(side) * scale).round() as u32);
    (scale(width), scale(height))
}

/// The nearest even number that is not larger, and at least 2.
fn even(side: u32) -> u32 {
    (side & !1).max(2)
}
