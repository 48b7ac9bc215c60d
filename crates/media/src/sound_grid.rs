//! Where the pieces of sound that open each segment start, exactly.
//!
//! A manifest that lists times must list those that the segments hold. Pictures start where the timeline says;
//! sound starts with the first of its frames that starts no earlier. Where all frames have one length that is
//! known beforehand, without a packet read.

use crate::facts::{Codec, Stream};
use crate::ticks::Ticks;
use crate::timeline::Timeline;

/// Samples of one frame of encoded AAC.
const AAC_FRAME: u32 = 1_024;
/// Samples of one frame of encoded Opus: 20 ms of the 48 kHz that Opus always has.
const OPUS_FRAME: u32 = 960;

/// How much earlier than its sound a frame of encoded Opus is stamped: the 312 samples that the encoder looks
/// ahead.
const OPUS_AHEAD: Ticks = Ticks(585);

/// Frames of one length that follow each other without a hole, in samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoundGrid {
    /// Samples a second; at least one.
    pub rate: u32,
    /// Samples of a frame; at least one.
    pub length: u32,
    /// Where the first frame starts on the file's clock; absent for encoded sound, which starts with the
    /// output's media clock.
    pub anchor: Option<Ticks>,
}

impl SoundGrid {
    /// The grid of AAC that is encoded at `rate` samples a second.
    pub fn encoded_aac(rate: u32) -> Self {
        Self {
            rate,
            length: AAC_FRAME,
            anchor: None,
        }
    }

    /// The grid of Opus that is encoded for `timeline`. The first frame, which is stamped before the output's
    /// clock begins, is not kept.
    pub fn encoded_opus(timeline: &Timeline) -> Self {
        Self {
            rate: 48_000,
            length: OPUS_FRAME,
            anchor: Some(timeline.origin() - timeline.lead() - OPUS_AHEAD),
        }
    }

    /// The grid of a source's own packets, where all of them have one length.
    pub fn of(stream: &Stream) -> Option<Self> {
        let audio = stream.audio()?;
        let rate = audio.sample_rate.filter(|rate| *rate > 0)?;
        let length = match stream.codec {
            // HE-AAC, with and without parametric stereo, doubles what it codes.
            Codec::Aac if matches!(audio.profile, Some(5 | 29)) => 2_048,
            Codec::Aac => AAC_FRAME,
            Codec::Ac3 | Codec::Eac3 => 1_536,
            Codec::Mp3 if rate < 32_000 => 576,
            Codec::Mp3 => 1_152,
            _ => return None,
        };
        Some(Self {
            rate,
            length,
            anchor: Some(stream.start?),
        })
    }

    /// The first start in each segment of `timeline`, in samples on the output's media clock, on which the
    /// timeline's zero lies at its lead. Increasing; two are equal only where a segment is shorter than a
    /// frame, and so holds none.
    pub fn starts(&self, timeline: &Timeline) -> Vec<i64> {
        let rate = u64::from(self.rate.max(1));
        let length = i64::from(self.length.max(1));
        let zero = (timeline.origin() - timeline.lead()).to_timescale(rate);
        let anchor = self.anchor.map_or(0, |anchor| anchor.to_timescale(rate) - zero);
        // Frames from before the clock are dropped.
        let first = (length - 1 - anchor).div_euclid(length).max(0);
        let start = |frame: i64| anchor + frame * length;
        let from = |n: usize| {
            let bound = timeline.start(n);
            let reaches = |frame: i64| Ticks::from_timescale(start(frame), rate) - timeline.lead() >= bound;
            let exact = (bound + timeline.lead()).to_timescale(rate) - anchor;
            // Rounding between the clocks may put the frame one off either way.
            let mut frame = (exact.div_euclid(length) - 1).max(first);
            while !reaches(frame) {
                frame += 1;
            }
            start(frame)
        };
        (0..timeline.len())
            .map(|n| if n == 0 { start(first) } else { from(n) })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::facts::Rational;
    use proptest::prelude::*;

    #[test]
    fn encoded_sound_of_a_film_starts_each_segment_with_a_whole_frame() {
        let film = Some(Rational {
            num: 24_000,
            den: 1_001,
        });
        let timeline = Timeline::grid(Ticks::ZERO, Ticks(90_000 * 60), Ticks(270_000), film).unwrap();
        let grid = SoundGrid {
            rate: 48_000,
            length: AAC_FRAME,
            anchor: None,
        };
        let starts = grid.starts(&timeline);
        // 3.003 s are 144,144 samples: the 141st frame starts at 144,384.
        assert_eq!(starts[..3], [0, 144_384, 288_768]);
    }

    #[test]
    fn encoded_opus_is_stamped_ahead_of_the_clock() {
        let timeline = Timeline::grid(Ticks(900_001), Ticks(900_000), Ticks(540_000), None)
            .unwrap()
            .with_sound_from(Ticks(890_000));
        let starts = SoundGrid::encoded_opus(&timeline).starts(&timeline);
        assert_eq!(starts[0], 960 - 312);
        assert!(starts.iter().all(|start| (start + 312) % 960 == 0), "{starts:?}");
    }

    #[test]
    fn frames_before_the_clock_are_not_counted() {
        let timeline = Timeline::grid(Ticks(900_000), Ticks(900_000), Ticks(540_000), None).unwrap();
        let grid = SoundGrid {
            rate: 48_000,
            length: 1_536,
            anchor: Some(Ticks(0)),
        };
        // Ten seconds are 312.5 frames.
        assert_eq!(grid.starts(&timeline)[0], 768);
    }

    proptest! {
        /// What a segmenter does with every frame in turn gives the same starts.
        #[test]
        fn starts_are_those_of_the_frames_put_into_segments_one_by_one(
            length in 1_i64..90_000 * 300,
            target in 90_000_i64..=90_000 * 15,
            origin in -900_000_i64..9_000_000,
            early in 0_i64..40_000,
            late in proptest::option::of(-90_000_i64..45_000),
            rate in proptest::sample::select(vec![8_000_u32, 22_050, 24_000, 44_100, 48_000, 96_000]),
            frame in proptest::sample::select(vec![576_u32, 960, 1_024, 1_152, 1_536, 2_048]),
            film in any::<bool>(),
        ) {
            let film = film.then_some(Rational { num: 24_000, den: 1_001 });
            let timeline = Timeline::grid(Ticks(origin), Ticks(length), Ticks(target), film)
                .unwrap()
                .with_sound_from(Ticks(origin - early));
            let grid = SoundGrid { rate, length: frame, anchor: late.map(|late| Ticks(origin + late)) };
            let scale = u64::from(rate);
            let zero = (timeline.origin() - timeline.lead()).to_timescale(scale);
            let mut at = grid.anchor.map_or(0, |anchor| anchor.to_timescale(scale) - zero);
            let mut seen: Vec<Option<i64>> = vec![None; timeline.len()];
            loop {
                let shown = Ticks::from_timescale(at, scale) - timeline.lead();
                if shown >= timeline.end() {
                    break;
                }
                if at >= 0 {
                    seen[timeline.segment_at(shown)].get_or_insert(at);
                }
                at += i64::from(frame);
            }
            let starts = grid.starts(&timeline);
            prop_assert_eq!(starts.len(), seen.len());
            for (n, (said, seen)) in starts.iter().zip(&seen).enumerate() {
                if let Some(seen) = seen {
                    prop_assert_eq!(said, seen, "segment {}", n);
                }
            }
            prop_assert!(starts.is_sorted());
        }
    }
}
