//! Presentation times of a track's samples under its edit list.
//!
//! What plays is what FFmpeg's demuxer gives out, so this follows its reading of edit lists exactly: initial
//! empty edits delay the track; every other edit starts at the keyframe at or before its media time; frames in
//! front of that time come out (they are needed for decoding) at times before the edit; and where the first
//! shown frame would be late by more than the empty edits, everything moves forward by the difference.

/// One edit: its length in the track's timescale and where in the media it starts; `None` is an empty edit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Edit {
    pub(super) duration: i64,
    pub(super) media_time: Option<i64>,
}

/// One sample, in decoding order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    /// Decoding time in the track's timescale.
    pub(super) dts: i64,
    /// Composition offset.
    pub(super) offset: i32,
    pub(super) key: bool,
}

impl Sample {
    fn cts(&self) -> i64 {
        self.dts.saturating_add(i64::from(self.offset))
    }
}

/// Length of the edits that delay the start of the track.
pub(super) fn initial_delay(edits: &[Edit]) -> i64 {
    edits
        .iter()
        .take_while(|e| e.media_time.is_none())
        .fold(0_i64, |sum, e| sum.saturating_add(e.duration))
}

/// Length of what is shown.
pub(super) fn shown(edits: &[Edit]) -> i64 {
    edits
        .iter()
        .filter(|e| e.media_time.is_some())
        .fold(0_i64, |sum, e| sum.saturating_add(e.duration))
}

/// Presentation times of the keyframes, sorted and distinct, in the track's timescale.
pub(super) fn keyframes(samples: &[Sample], edits: &[Edit]) -> Vec<i64> {
    let mut times: Vec<i64> = if edits.is_empty() {
        samples.iter().filter(|s| s.key).map(Sample::cts).collect()
    } else {
        let mut out = Vec::new();
        let correction = arrange(samples, edits, &mut out);
        out.iter()
            .filter(|p| p.key)
            .map(|p| p.pts.saturating_sub(correction))
            .collect()
    };
    times.sort_unstable();
    times.dedup();
    times
}

struct Placed {
    pts: i64,
    key: bool,
}

/// Places the samples of every edit and returns by how much all of them are late.
fn arrange(samples: &[Sample], edits: &[Edit], out: &mut Vec<Placed>) -> i64 {
    let mut edit_start = 0_i64;
    let mut delay = 0_i64;
    let mut found = false;
    let mut first_shown: Option<i64> = None;
    for edit in edits {
        let start = edit_start;
        edit_start = edit_start.saturating_add(edit.duration);
        let Some(media_time) = edit.media_time else {
            if !found {
                delay = delay.saturating_add(edit.duration);
            }
            continue;
        };
        found = true;
        // A hostile list repeats the whole track in every one of thousands of edits.
        if out.len() > samples.len().saturating_mul(4) {
            break;
        }
        let end = media_time.saturating_add(edit.duration);
        place(
            samples,
            media_time,
            end,
            start,
            edit.duration,
            out,
            &mut first_shown,
        );
    }
    first_shown.map_or(0, |first| first.saturating_sub(delay)).max(0)
}

fn place(
    samples: &[Sample],
    media_time: i64,
    end: i64,
    start: i64,
    duration: i64,
    out: &mut Vec<Placed>,
    first_shown: &mut Option<i64>,
) {
    let from = entry(samples, media_time);
    let mut dts = start;
    let mut begun = false;
    let mut early: Vec<i64> = Vec::new();
    let mut key_after_end = false;
    for (index, sample) in samples.iter().enumerate().skip(from) {
        let step = samples
            .get(index + 1)
            .map_or(duration, |next| next.dts.saturating_sub(sample.dts));
        let offset = i64::from(sample.offset);
        let cts = sample.cts();
        let inside = cts >= media_time && cts < end;
        if inside {
            let pts = dts.saturating_add(offset);
            *first_shown = Some(first_shown.map_or(pts, |first| first.min(pts)));
            if !begun {
                begun = true;
                move_back(out, dts, &early, samples, index);
            }
        } else if !begun {
            early.push(step);
        }
        out.push(Placed {
            pts: dts.saturating_add(offset),
            key: sample.key,
        });
        if begun {
            dts = dts.saturating_add(step);
        }
        if cts.saturating_add(step) >= end && sample.key {
            // One more keyframe: frames shown before this one may follow it in decoding order.
            if key_after_end {
                break;
            }
            key_after_end = true;
        }
    }
}

/// Frames in front of the edit get decoding times that lead up to it.
fn move_back(out: &mut [Placed], start: i64, early: &[i64], samples: &[Sample], index: usize) {
    let mut dts = start;
    for (back, step) in early.iter().rev().enumerate() {
        dts = dts.saturating_sub(*step);
        let (Some(placed), Some(sample)) = (
            out.len().checked_sub(back + 1).and_then(|at| out.get_mut(at)),
            index.checked_sub(back + 1).and_then(|at| samples.get(at)),
        ) else {
            return;
        };
        placed.pts = dts.saturating_add(i64::from(sample.offset));
    }
}

/// Where reading for an edit starts: the last keyframe shown at or before it, else the last sample, else the
/// first one.
fn entry(samples: &[Sample], media_time: i64) -> usize {
    let last = samples.partition_point(|s| s.dts <= media_time);
    let before = &samples[..last];
    before
        .iter()
        .rposition(|s| s.key && s.cts() <= media_time)
        .unwrap_or(last.saturating_sub(1))
}
