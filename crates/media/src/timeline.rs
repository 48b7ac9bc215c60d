//! The one function that decides where every segment starts.
//!
//! Playlists, encoders, segmenters and checks all read the same [`Timeline`], so that segment `n` has the
//! same bounds whoever makes it, from wherever it is started (E3).
//!
//! Two rules give the bounds:
//!
//! * **Copied video** is cut where it can be: bounds are the distinct first keyframes at or after each
//!   multiple of the target, counted from the first frame.
//! * **Encoded video**, and sound alone, lies on a grid of `n × step`. The step is the whole number of frames
//!   nearest to the target at the rate that the file claims; a frame belongs to segment `n` when it is shown
//!   no earlier than half a claimed frame before `n × step`. Where the claim is wrong (variable rate) segments
//!   still follow time and never accumulate an error.

use serde::{Deserialize, Serialize};

use crate::facts::Rational;
use crate::ticks::Ticks;

/// Shortest segment target that may be asked for.
pub const MIN_TARGET: Ticks = Ticks(Ticks::HZ);
/// Longest segment target that may be asked for.
pub const MAX_TARGET: Ticks = Ticks(15 * Ticks::HZ);
/// Segment target when nothing is asked for.
pub const DEFAULT_TARGET: Ticks = Ticks(6 * Ticks::HZ);

/// Most of the sound before the first frame that is kept.
pub const MAX_LEAD: Ticks = Ticks(Ticks::HZ / 2);

/// Most segments a timeline may have: 48 hours of the shortest target.
pub const MAX_SEGMENTS: usize = 48 * 3600;

/// The bounds of every segment of a representation, on a clock that starts at zero with the first frame.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Timeline {
    origin: Ticks,
    lead: Ticks,
    starts: Vec<Ticks>,
    end: Ticks,
    cut: Cut,
}

/// How the bounds came about, and so how a segmenter recognizes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "rule")]
pub enum Cut {
    /// Bounds are keyframes of the source.
    Keyframes,
    /// Bounds are `n × numerator/denominator` ticks; a frame up to `slack` early belongs to the segment.
    Grid {
        /// Numerator of the step in ticks.
        numerator: u64,
        /// Denominator of the step in ticks.
        denominator: u64,
        /// Half of a claimed frame.
        slack: Ticks,
    },
}

/// Why no timeline can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TimelineError {
    /// The target lies outside the allowed range.
    #[error("the segment target is {target} s; it may be 1 to 15 s")]
    Target {
        /// What was asked for.
        target: Ticks,
    },
    /// The presentation has no length.
    #[error("the presentation ends at {end} s, no later than it starts")]
    Empty {
        /// Its end on the timeline.
        end: Ticks,
    },
    /// The presentation is longer than ether cuts.
    #[error("the presentation would have more than {MAX_SEGMENTS} segments")]
    TooLong,
}

impl Timeline {
    /// The timeline of encoded video or of sound alone.
    ///
    /// `origin` is the file's clock at the first frame, `length` runs from there to the end of the last one,
    /// and `rate` is the frame rate that the file claims (absent for sound).
    ///
    /// # Errors
    /// [`TimelineError`] when the target or the length is out of range.
    pub fn grid(
        origin: Ticks,
        length: Ticks,
        target: Ticks,
        rate: Option<Rational>,
    ) -> Result<Self, TimelineError> {
        check(length, target)?;
        let (numerator, denominator, slack) = match rate {
            Some(rate) if rate.num > 0 && rate.den > 0 => {
                let frames = (target.as_secs_f64() * rate.as_f64()).round().max(1.0) as u64;
                let numerator = frames * u64::from(rate.den) * Ticks::HZ as u64;
                let frame = Ticks::from_timescale(i64::from(rate.den), u64::from(rate.num));
                (numerator, u64::from(rate.num), Ticks(frame.0 / 2))
            }
            _ => (target.0 as u64, 1, Ticks::ZERO),
        };
        let cut = Cut::Grid {
            numerator,
            denominator,
            slack,
        };
        let step = |n: usize| grid_start(n as u64, numerator, denominator);
        let mut starts = vec![Ticks::ZERO];
        // A tail shorter than the slack holds no frame of its own: a frame that starts there would have
        // been counted into it from before the end of the film.
        while step(starts.len()) + slack.max(Ticks(1)) < length {
            if starts.len() >= MAX_SEGMENTS {
                return Err(TimelineError::TooLong);
            }
            starts.push(step(starts.len()));
        }
        Ok(Self {
            origin,
            lead: Ticks::ZERO,
            starts,
            end: length,
            cut,
        })
    }

    /// The timeline of copied video, from its complete keyframes in increasing order on the file's clock.
    ///
    /// # Errors
    /// [`TimelineError`] when the target or the length is out of range.
    pub fn keyframes(
        origin: Ticks,
        length: Ticks,
        target: Ticks,
        keyframes: &[Ticks],
    ) -> Result<Self, TimelineError> {
        check(length, target)?;
        let mut starts = vec![Ticks::ZERO];
        let mut multiple = target.0;
        for keyframe in keyframes {
            let at = *keyframe - origin;
            if at.0 < multiple || at >= length {
                continue;
            }
            if starts.len() >= MAX_SEGMENTS {
                return Err(TimelineError::TooLong);
            }
            starts.push(at);
            multiple = (at.0 / target.0 + 1) * target.0;
        }
        Ok(Self {
            origin,
            lead: Ticks::ZERO,
            starts,
            end: length,
            cut: Cut::Keyframes,
        })
    }

    /// Makes room for sound that starts up to [`MAX_LEAD`] before the first frame, which starts at
    /// `sound_start` on the file's clock. Later sound, and sound alone, needs none.
    pub fn with_sound_from(mut self, sound_start: Ticks) -> Self {
        self.lead = Ticks((self.origin - sound_start).0.clamp(0, MAX_LEAD.0));
        self
    }

    /// How far the output's media clock is ahead of the timeline: the first frame is shown at this time, so
    /// that sound before it has a time of its own that is not negative.
    pub fn lead(&self) -> Ticks {
        self.lead
    }

    /// The file's clock at time zero of the timeline.
    pub fn origin(&self) -> Ticks {
        self.origin
    }

    /// The end of the presentation.
    pub fn end(&self) -> Ticks {
        self.end
    }

    /// How the bounds came about.
    pub fn cut(&self) -> Cut {
        self.cut
    }

    /// How many segments there are; at least one.
    pub fn len(&self) -> usize {
        self.starts.len()
    }

    /// Always false: a timeline has at least one segment.
    pub fn is_empty(&self) -> bool {
        self.starts.is_empty()
    }

    /// Start of segment `n`; the end of the presentation for any `n` past the last.
    pub fn start(&self, n: usize) -> Ticks {
        self.starts.get(n).copied().unwrap_or(self.end)
    }

    /// Length of segment `n`; zero past the last.
    pub fn duration(&self, n: usize) -> Ticks {
        self.start(n.saturating_add(1)) - self.start(n)
    }

    /// The segment that contains time `at`; the first for anything before, the last for anything after.
    pub fn segment_at(&self, at: Ticks) -> usize {
        self.starts
            .partition_point(|start| *start <= at)
            .saturating_sub(1)
    }

    /// The segment that a frame shown at `at` belongs to, the grid's slack taken into account.
    pub fn segment_of(&self, at: Ticks) -> usize {
        match self.cut {
            Cut::Grid { slack, .. } => self.segment_at(at + slack),
            Cut::Keyframes => self.segment_at(at),
        }
    }
}

fn grid_start(n: u64, numerator: u64, denominator: u64) -> Ticks {
    let exact = u128::from(n) * u128::from(numerator);
    let denominator = u128::from(denominator);
    Ticks(i64::try_from((exact + denominator / 2) / denominator).unwrap_or(i64::MAX))
}

fn check(length: Ticks, target: Ticks) -> Result<(), TimelineError> {
    if !(MIN_TARGET..=MAX_TARGET).contains(&target) {
        return Err(TimelineError::Target { target });
    }
    if length <= Ticks::ZERO {
        return Err(TimelineError::Empty { end: length });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const FILM: Rational = Rational {
        num: 24_000,
        den: 1_001,
    };

    fn seconds(s: f64) -> Ticks {
        Ticks::from_secs_f64(s)
    }

    #[test]
    fn a_film_rate_grid_has_whole_frames_and_never_drifts() {
        let timeline = Timeline::grid(Ticks::ZERO, seconds(120.0), seconds(3.0), Some(FILM)).unwrap();
        assert_eq!(timeline.len(), 40);
        for n in 0..39 {
            assert_eq!(timeline.duration(n), Ticks(270_270), "segment {n}");
        }
        assert_eq!(timeline.start(39) + timeline.duration(39), seconds(120.0));
    }

    /// Steps that are no whole number of ticks are rounded each for itself: three hours on, bounds are still frames.
    #[test]
    fn a_rate_that_divides_no_clock_does_not_drift_either() {
        let rate = Rational { num: 173, den: 10 };
        let timeline = Timeline::grid(Ticks::ZERO, seconds(10_800.0), seconds(3.0), Some(rate)).unwrap();
        assert!(timeline.len() > 3_500);
        for n in 0..timeline.len() {
            let exact = (n * 52 * 10 * 90_000) as f64 / 173.0;
            assert!((timeline.start(n).0 as f64 - exact).abs() <= 0.5, "segment {n}");
        }
    }

    #[test]
    fn keyframe_bounds_are_the_first_at_or_after_each_multiple() {
        let keyframes: Vec<Ticks> = [
            0.0, 6.52, 13.12, 18.92, 26.72, 30.6, 36.0, 42.4, 49.2, 54.0, 60.72, 69.2, 72.72, 80.0,
        ]
        .map(|s| seconds(s) + Ticks(540))
        .to_vec();
        let timeline = Timeline::keyframes(Ticks(540), seconds(90.0), seconds(6.0), &keyframes).unwrap();
        assert_eq!(
            (timeline.start(2), timeline.start(3)),
            (seconds(13.12), seconds(18.92))
        );
        assert_eq!(
            (timeline.start(6), timeline.start(7)),
            (seconds(36.0), seconds(42.4))
        );
    }

    #[test]
    fn sparse_keyframes_are_declared_as_they_are() {
        let keyframes: Vec<Ticks> = (0..6).map(|n| seconds(f64::from(n) * 20.0)).collect();
        let timeline = Timeline::keyframes(Ticks::ZERO, seconds(120.0), seconds(6.0), &keyframes).unwrap();
        assert_eq!(timeline.len(), 6);
        assert!((0..6).all(|n| timeline.duration(n) == seconds(20.0)));
    }

    #[test]
    fn a_tail_without_a_frame_makes_no_segment() {
        let step = Ticks(270_270);
        let timeline =
            Timeline::grid(Ticks::ZERO, Ticks(step.0 * 40 + 300), seconds(3.0), Some(FILM)).unwrap();
        assert_eq!(timeline.len(), 40);
        assert_eq!(timeline.duration(39), Ticks(step.0 + 300));
    }

    #[test]
    fn targets_out_of_range_are_refused() {
        let target = |t| Timeline::grid(Ticks::ZERO, seconds(60.0), t, None).unwrap_err();
        assert!(matches!(target(seconds(0.9)), TimelineError::Target { .. }));
        assert!(matches!(target(seconds(15.1)), TimelineError::Target { .. }));
        let empty = Timeline::grid(Ticks::ZERO, Ticks::ZERO, seconds(6.0), None);
        assert!(matches!(empty, Err(TimelineError::Empty { .. })));
    }

    proptest! {
        #[test]
        fn segments_tile_the_presentation(
            length in 1_i64..90_000 * 4_000,
            target in MIN_TARGET.0..=MAX_TARGET.0,
            gaps in proptest::collection::vec(1_i64..90_000 * 30, 0..200),
            grid in any::<bool>(),
        ) {
            let mut at = 0;
            let keyframes: Vec<Ticks> = gaps.iter().map(|gap| { at += gap; Ticks(at) }).collect();
            let timeline = if grid {
                Timeline::grid(Ticks(7), Ticks(length), Ticks(target), Some(FILM)).unwrap()
            } else {
                Timeline::keyframes(Ticks(0), Ticks(length), Ticks(target), &keyframes).unwrap()
            };
            let mut end = Ticks::ZERO;
            for n in 0..timeline.len() {
                prop_assert_eq!(timeline.start(n), end);
                prop_assert!(timeline.duration(n) > Ticks::ZERO);
                prop_assert_eq!(timeline.segment_at(timeline.start(n)), n);
                end = end + timeline.duration(n);
            }
            prop_assert_eq!(end, Ticks(length));
        }
    }
}
