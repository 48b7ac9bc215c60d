//! Puts every sample that FFmpeg makes into the segment it belongs to, and knows when a segment is complete.
//!
//! Pure: it sees times and sizes, never bytes. The rules are the same from whatever segment a run starts:
//!
//! * a picture belongs to the segment whose bounding keyframe precedes it in decoding order;
//! * a piece of sound belongs to the segment in which it starts;
//! * what belongs before the run's first segment, or before the film, is dropped, and a run that begins too late
//!   says so.

use std::collections::BTreeMap;
use std::sync::Arc;

use ether_media::{Cut, Ticks, Timeline};

use crate::pipe::Sample;

/// How far a copied keyframe may lie from its bound: timestamps of one file read twice differ by rounding only.
const KEYFRAME_TOLERANCE: Ticks = Ticks(180);
/// How far picture and sound may be apart in FFmpeg's output, its own limit for interleaving included. What is
/// later than that does not come.
const PATIENCE: Ticks = Ticks(12 * Ticks::HZ);
/// How late the first picture of an encode may be before the run is taken to have started too late.
const LATE: Ticks = Ticks(Ticks::HZ / 4);

/// Where a sample goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    Drop,
    Video(u32),
    Audio(u32),
}

/// A broken promise about bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Violation {
    /// The run began after the start of its first segment.
    #[error("the run began after its first segment")]
    LandedLate,
    /// No keyframe stood where this segment starts.
    #[error("no keyframe stands where segment {0} starts")]
    Bound(u32),
}

/// One picture of a segment, on the media clock of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Picture {
    pub(crate) pts: Ticks,
    pub(crate) duration: Ticks,
    pub(crate) size: u32,
    pub(crate) key: bool,
}

/// One piece of sound of a segment, in units of the sound's timescale on the media clock of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sound {
    pub(crate) start: i64,
    pub(crate) duration: u32,
    pub(crate) size: u32,
}

/// The samples of one segment in decoding order, and what follows it where that is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) pictures: Vec<Picture>,
    pub(crate) sounds: Vec<Sound>,
    pub(crate) next_picture: Option<Ticks>,
    pub(crate) next_sound: Option<i64>,
}

/// A track of the pipe that a run produces.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lane {
    pub(crate) track: usize,
    pub(crate) timescale: u32,
    /// For sound whose frames all have the same length.
    pub(crate) frames: Option<Frames>,
}

/// The times of sound that comes in frames of one length, in units of its timescale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frames {
    /// Where the source's first frame starts.
    pub(crate) anchor: i64,
    /// Length of a frame; at least one.
    pub(crate) length: u32,
}

impl Lane {
    /// When a piece of sound starts, and how long it is. Containers round times, and FFmpeg smooths what was
    /// rounded in a way that depends on where it began to read; frames that follow each other have exact times.
    fn settle(&self, sample: &Sample) -> (i64, u32) {
        let Some(frames) = self.frames else {
            return (sample.pts, sample.duration);
        };
        let length = i64::from(frames.length);
        let nearest = (sample.pts - frames.anchor + length / 2).div_euclid(length);
        let exact = frames.anchor + nearest * length;
        let near = (exact - sample.pts).abs() <= i64::from(self.timescale / 500);
        if near {
            (exact, frames.length)
        } else {
            // Before what is given once more the muxer calls a frame one sample long.
            (sample.pts, sample.duration.max(frames.length))
        }
    }
}

#[derive(Debug)]
struct LaneState {
    lane: Lane,
    /// The segment that samples go to now.
    current: Option<u32>,
    /// Where the last piece of sound that came starts.
    last: Option<i64>,
}

/// The state machine of one run.
#[derive(Debug)]
pub(crate) struct Segmenter {
    timeline: Arc<Timeline>,
    first: u32,
    accept_late: bool,
    video: Option<LaneState>,
    audio: Option<LaneState>,
    open: BTreeMap<u32, Table>,
    /// Latest end of a picture, and of a piece of sound, that was kept.
    pictures_end: Option<Ticks>,
    sounds_end: Option<Ticks>,
}

impl Segmenter {
    /// A machine for a run that starts at segment `first`. `accept_late` is for the last try, when a source
    /// has no picture where one is expected.
    pub(crate) fn new(
        timeline: Arc<Timeline>,
        first: u32,
        video: Option<Lane>,
        audio: Option<Lane>,
        accept_late: bool,
    ) -> Self {
        let state = |lane| LaneState {
            lane,
            current: None,
            last: None,
        };
        Self {
            timeline,
            first,
            accept_late,
            video: video.map(state),
            audio: audio.map(state),
            open: BTreeMap::new(),
            pictures_end: None,
            sounds_end: None,
        }
    }

    /// Places the next sample of the pipe.
    pub(crate) fn place(&mut self, sample: &Sample) -> Result<Placement, Violation> {
        match (&self.video, &self.audio) {
            (Some(video), _) if video.lane.track == sample.track => self.place_picture(sample),
            (_, Some(audio)) if audio.lane.track == sample.track => Ok(self.place_sound(sample)),
            _ => Ok(Placement::Drop),
        }
    }

    /// The lowest open segment once nothing more can come for it.
    pub(crate) fn pop_ready(&mut self) -> Option<(u32, Table)> {
        let number = *self.open.keys().next()?;
        let passed = |lane: &Option<LaneState>| {
            lane.as_ref()
                .is_none_or(|l| l.current.is_some_and(|c| c > number))
        };
        let late = |other: Option<Ticks>| {
            let bound = self.timeline.start(number as usize + 1) + PATIENCE;
            other.is_some_and(|end| end > bound)
        };
        let pictures = passed(&self.video) || late(self.sounds_end);
        let sounds = passed(&self.audio) || late(self.pictures_end);
        if pictures && sounds {
            self.pop(number)
        } else {
            None
        }
    }

    /// The lowest open segment, complete or not: at the end of the pipe nothing more can come for any.
    pub(crate) fn pop_last(&mut self) -> Option<(u32, Table)> {
        let number = *self.open.keys().next()?;
        self.pop(number)
    }

    /// End of the last picture, or of the last sound where there is no picture, on the timeline.
    pub(crate) fn produced(&self) -> Option<Ticks> {
        if self.video.is_some() {
            self.pictures_end
        } else {
            self.sounds_end
        }
    }

    /// End of the last sound on the timeline.
    pub(crate) fn sounds_end(&self) -> Option<Ticks> {
        self.sounds_end
    }

    fn pop(&mut self, number: u32) -> Option<(u32, Table)> {
        let mut table = self.open.remove(&number)?;
        let later = self.open.values();
        table.next_picture = later.clone().find_map(|t| t.pictures.first()).map(|p| p.pts);
        table.next_sound = later.clone().find_map(|t| t.sounds.first()).map(|s| s.start);
        Some((number, table))
    }

    fn place_picture(&mut self, sample: &Sample) -> Result<Placement, Violation> {
        let Some(state) = &self.video else {
            return Ok(Placement::Drop);
        };
        let scale = u64::from(state.lane.timescale);
        let at = Ticks::from_timescale(sample.pts, scale) - self.timeline.origin();
        let duration = Ticks::from_timescale(i64::from(sample.duration), scale);
        let number = match state.current {
            None => match self.first_picture(sample.key, at)? {
                Some(number) => number,
                None => return Ok(Placement::Drop),
            },
            Some(current) => self.next_picture(current, sample.key, at)?,
        };
        if let Some(state) = &mut self.video {
            state.current = Some(number);
        }
        // A recording may begin amid a film: what follows its first keyframe and is shown before it needs what
        // nobody recorded.
        if !sample.key && at < -self.slack().max(KEYFRAME_TOLERANCE) {
            return Ok(Placement::Drop);
        }
        let end = at + duration;
        self.pictures_end = Some(self.pictures_end.map_or(end, |known| known.max(end)));
        let picture = Picture {
            pts: at + self.timeline.lead(),
            duration,
            size: sample.size,
            key: sample.key,
        };
        self.open.entry(number).or_default().pictures.push(picture);
        Ok(Placement::Video(number))
    }

    /// How much before its bound a picture may be shown.
    fn slack(&self) -> Ticks {
        match self.timeline.cut() {
            Cut::Grid { slack, .. } => slack,
            Cut::Keyframes => Ticks::ZERO,
        }
    }

    /// The segment that a keyframe at `at` starts or lies on the start of, if it is a bound.
    fn bound_at(&self, at: Ticks) -> Option<u32> {
        let number = match self.timeline.cut() {
            Cut::Grid { .. } => self.timeline.segment_of(at),
            Cut::Keyframes => {
                let number = self.timeline.segment_at(at + KEYFRAME_TOLERANCE);
                let off = (at - self.timeline.start(number)).abs();
                if off > KEYFRAME_TOLERANCE {
                    return None;
                }
                number
            }
        };
        u32::try_from(number).ok()
    }

    fn first_picture(&self, key: bool, at: Ticks) -> Result<Option<u32>, Violation> {
        if !key {
            return Ok(None);
        }
        let first = self.first;
        match self.bound_at(at) {
            Some(number) if number < first => Ok(None),
            Some(number) if number > first && !self.accept_late => Err(Violation::LandedLate),
            Some(_) if first > 0 && !self.accept_late && at > self.timeline.start(first as usize) + LATE => {
                Err(Violation::LandedLate)
            }
            Some(number) => Ok(Some(number)),
            None if self.timeline.segment_at(at) < first as usize => Ok(None),
            // The film begins with a keyframe that is not where its index says: nothing precedes it.
            None if first == 0 => Ok(Some(0)),
            None => Err(Violation::LandedLate),
        }
    }

    fn next_picture(&self, current: u32, key: bool, at: Ticks) -> Result<u32, Violation> {
        let last = u32::try_from(self.timeline.len().saturating_sub(1)).unwrap_or(u32::MAX);
        if key
            && let Some(number) = self.bound_at(at).map(|n| n.min(last))
            && number > current
        {
            let skipped = number > current + 1;
            // A copy that skips a bound has lost it. An encode skips where the source shows one picture for
            // longer than a segment.
            return match self.timeline.cut() {
                Cut::Keyframes if skipped => Err(Violation::Bound(current + 1)),
                _ => Ok(number),
            };
        }
        let beyond = self.timeline.segment_of(at).min(last as usize) > current as usize;
        if beyond && at > self.timeline.start(current as usize + 1) + KEYFRAME_TOLERANCE {
            return Err(Violation::Bound(current + 1));
        }
        Ok(current)
    }

    fn place_sound(&mut self, sample: &Sample) -> Placement {
        let Some(state) = &mut self.audio else {
            return Placement::Drop;
        };
        let scale = u64::from(state.lane.timescale);
        let zero = (self.timeline.origin() - self.timeline.lead()).to_timescale(scale);
        let (start, duration) = state.lane.settle(sample);
        // Where a source changes its channels, FFmpeg begins its filters anew and gives once more what it gave, each
        // piece stamped just after the one before.
        let before = state.last.replace(start);
        let again = |frames: Frames| before.is_some_and(|last| start < last + i64::from(frames.length / 8));
        if state.lane.frames.is_some_and(again) {
            return Placement::Drop;
        }
        let start = start - zero;
        let at = Ticks::from_timescale(start, scale) - self.timeline.lead();
        let number = u32::try_from(self.timeline.segment_at(at)).unwrap_or(u32::MAX);
        // A tick of patience: the sound's own clock and the picture's round apart.
        let too_early = at + self.timeline.lead() < Ticks(-1);
        if too_early || start < 0 || number < self.first {
            return Placement::Drop;
        }
        // Sound never goes back: a piece that starts a little before its predecessor's segment stays with it.
        let number = state.current.map_or(number, |current| number.max(current));
        state.current = Some(number);
        let end = at + Ticks::from_timescale(i64::from(duration), scale);
        self.sounds_end = Some(self.sounds_end.map_or(end, |known| known.max(end)));
        let sound = Sound {
            start,
            duration,
            size: sample.size,
        };
        self.open.entry(number).or_default().sounds.push(sound);
        Placement::Audio(number)
    }
}
