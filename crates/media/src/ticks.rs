//! Media time. One unit everywhere, so that two parts can never disagree by a conversion.

use std::fmt;
use std::ops::{Add, Neg, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A media time or a distance between two, in units of 1/90000 s.
///
/// 90 kHz is the clock of MPEG systems. It holds whole frames of the common rates (72 frames at 24000/1001
/// are exactly 270,270) and a millisecond exactly; anything finer is rounded to the nearest unit, about 6 µs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Ticks(pub i64);

impl Ticks {
    /// Units in one second.
    pub const HZ: i64 = 90_000;
    /// Time zero.
    pub const ZERO: Ticks = Ticks(0);

    /// `value` units of `1/timescale` s, rounded to the nearest tick (halves away from zero).
    /// Saturates at the ends of the range. A timescale of zero gives zero.
    pub fn from_timescale(value: i64, timescale: u64) -> Self {
        if timescale == 0 {
            return Self::ZERO;
        }
        Self(div_round(
            i128::from(value) * i128::from(Self::HZ),
            i128::from(timescale),
        ))
    }

    /// This time in units of `1/timescale` s, rounded to the nearest (halves away from zero).
    pub fn to_timescale(self, timescale: u64) -> i64 {
        div_round(i128::from(self.0) * i128::from(timescale), i128::from(Self::HZ))
    }

    /// `micros` microseconds.
    pub fn from_micros(micros: i64) -> Self {
        Self::from_timescale(micros, 1_000_000)
    }

    /// `seconds` seconds, rounded to the nearest tick; a value that is not finite gives zero.
    pub fn from_secs_f64(seconds: f64) -> Self {
        if seconds.is_finite() {
            Self((seconds * 90_000.0).round() as i64)
        } else {
            Self::ZERO
        }
    }

    /// This time in seconds.
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 90_000.0
    }

    /// This time in whole milliseconds, rounded to the nearest.
    pub fn as_millis(self) -> i64 {
        self.to_timescale(1_000)
    }

    /// This time as a duration; zero where it is negative.
    pub fn to_duration(self) -> Duration {
        Duration::from_micros(u64::try_from(self.to_timescale(1_000_000)).unwrap_or(0))
    }

    /// The distance from zero.
    pub fn abs(self) -> Self {
        Self(self.0.saturating_abs())
    }
}

fn div_round(numerator: i128, denominator: i128) -> i64 {
    let half = denominator / 2;
    let rounded = if numerator >= 0 {
        (numerator + half) / denominator
    } else {
        (numerator - half) / denominator
    };
    i64::try_from(rounded).unwrap_or(if rounded > 0 { i64::MAX } else { i64::MIN })
}

impl Add for Ticks {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0.saturating_add(other.0))
    }
}

impl Sub for Ticks {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl Neg for Ticks {
    type Output = Self;
    fn neg(self) -> Self {
        Self(self.0.saturating_neg())
    }
}

impl fmt::Display for Ticks {
    /// Seconds with six decimals, as playlists write durations.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let micros = self.to_timescale(1_000_000);
        let sign = if micros < 0 { "-" } else { "" };
        let micros = micros.unsigned_abs();
        write!(f, "{sign}{}.{:06}", micros / 1_000_000, micros % 1_000_000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn film_rate_segments_are_whole_numbers_of_ticks() {
        assert_eq!(Ticks::from_timescale(72 * 1001, 24_000), Ticks(270_270));
        assert_eq!(Ticks(270_270).to_string(), "3.003000");
    }

    #[test]
    fn rounding_is_to_the_nearest_on_both_sides_of_zero() {
        assert_eq!(Ticks::from_timescale(1, 1_000), Ticks(90));
        assert_eq!(Ticks::from_timescale(-1, 48_000), Ticks(-2));
        assert_eq!(Ticks::from_timescale(1, 48_000), Ticks(2));
        assert_eq!(Ticks(-45_000).to_string(), "-0.500000");
    }

    #[test]
    fn extremes_saturate() {
        assert_eq!(Ticks::from_timescale(i64::MAX, 1), Ticks(i64::MAX));
        assert_eq!(Ticks::from_timescale(5, 0), Ticks::ZERO);
        assert_eq!(Ticks(i64::MIN) - Ticks(1), Ticks(i64::MIN));
    }
}
