//! Presentation times of a track's samples under its edit list.
//!
//! What plays is what FFmpeg's demuxer gives out, so this follows its reading of edit lists exactly: initial
//! empty edits delay the track; the edit behind them starts at the keyframe at or before its media time; frames
//! in front of that time come out, since decoding needs them, at times before the edit; and where the first
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

/// Length of what follows that delay.
pub(super) fn shown(edits: &[Edit]) -> i64 {
    edits
        .iter()
        .skip_while(|e| e.media_time.is_none())
        .fold(0_i64, |sum, e| sum.saturating_add(e.duration))
}

/// Presentation times of the keyframes, sorted and distinct, in the track's timescale.
///
/// # Errors
/// Why there is no list that copying could be cut by. An edit list of several parts is one reason: frames that
/// belong to no part still come out between them, at times that overlap.
pub(super) fn keyframes(samples: &[Sample], edits: &[Edit]) -> Result<Vec<i64>, &'static str> {
    let parts: Vec<&Edit> = edits.iter().skip_while(|e| e.media_time.is_none()).collect();
    let mut times: Vec<i64> = match parts.as_slice() {
        [] => samples.iter().filter(|s| s.key).map(Sample::cts).collect(),
        [edit] => {
            place(samples, edit, initial_delay(edits)).ok_or("the edit list shows nothing of the film")?
        }
        _ => return Err("the edit list plays several parts of the film"),
    };
    times.sort_unstable();
    times.dedup();
    Ok(times)
}

/// The keyframes of one edit that starts after `delay`; `None` where no frame lies inside it.
fn place(samples: &[Sample], edit: &Edit, delay: i64) -> Option<Vec<i64>> {
    let media_time = edit.media_time.unwrap_or(0);
    let end = media_time.saturating_add(edit.duration);
    let from = entry(samples, media_time);
    let inside = |s: &Sample| s.cts() >= media_time && s.cts() < end;
    // The first frame inside the edit is decoded at the edit's start; those in front of it lead up to that.
    let base = samples.get(from..)?.iter().find(|s| inside(s))?.dts;
    let mut keys = Vec::new();
    let mut first_shown: Option<i64> = None;
    let mut key_after_end = false;
    for (index, sample) in samples.iter().enumerate().skip(from) {
        let pts = sample.cts().saturating_sub(base).saturating_add(delay);
        if inside(sample) {
            first_shown = Some(first_shown.map_or(pts, |first| first.min(pts)));
        }
        if sample.key {
            keys.push(pts);
        }
        let step = samples
            .get(index + 1)
            .map_or(edit.duration, |next| next.dts.saturating_sub(sample.dts));
        if sample.cts().saturating_add(step) >= end && sample.key {
            // One more keyframe: frames shown before this one may follow it in decoding order.
            if key_after_end {
                break;
            }
            key_after_end = true;
        }
    }
    let late = first_shown?.saturating_sub(delay).max(0);
    Some(keys.iter().map(|pts| pts.saturating_sub(late)).collect())
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Twelve frames of one unit, a keyframe every four, shown in the order in which they are decoded.
    fn film() -> Vec<Sample> {
        (0..12)
            .map(|n| Sample {
                dts: n,
                offset: 0,
                key: n % 4 == 0,
            })
            .collect()
    }

    fn edit(duration: i64, media_time: i64) -> Edit {
        Edit {
            duration,
            media_time: (media_time >= 0).then_some(media_time),
        }
    }

    #[test]
    fn reordering_that_an_edit_hides_starts_at_zero() {
        // Two frames of delay between decoding and showing, and the edit that takes them away.
        let samples: Vec<Sample> = film().into_iter().map(|s| Sample { offset: 2, ..s }).collect();
        assert_eq!(keyframes(&samples, &[]), Ok(vec![2, 6, 10]));
        assert_eq!(keyframes(&samples, &[edit(12, 2)]), Ok(vec![0, 4, 8]));
    }

    #[test]
    fn an_edit_inside_a_group_keeps_the_keyframe_that_it_needs() {
        assert_eq!(keyframes(&film(), &[edit(6, 6)]), Ok(vec![-2, 2]));
    }

    #[test]
    fn an_empty_edit_delays_everything() {
        assert_eq!(
            keyframes(&film(), &[edit(5, -1), edit(12, 0)]),
            Ok(vec![5, 9, 13])
        );
    }

    #[test]
    fn what_lies_behind_the_edit_is_not_listed() {
        let frames: Vec<Sample> = (0..40)
            .map(|n| Sample {
                dts: n,
                offset: 0,
                key: n % 4 == 0,
            })
            .collect();
        let listed = keyframes(&frames, &[edit(6, 0)]).unwrap();
        assert!(listed.starts_with(&[0, 4]) && listed.len() <= 4, "{listed:?}");
    }

    #[test]
    fn several_parts_give_no_list() {
        assert!(keyframes(&film(), &[edit(4, 0), edit(4, 8)]).is_err());
        assert!(keyframes(&film(), &[edit(4, 0), edit(4, -1), edit(4, 8)]).is_err());
    }

    #[test]
    fn times_at_the_ends_of_the_range_do_not_overflow() {
        let samples = [Sample {
            dts: i64::MAX,
            offset: i32::MAX,
            key: true,
        }];
        for edits in [
            vec![edit(i64::MAX, i64::MAX)],
            vec![edit(i64::MAX, -1), edit(i64::MAX, 0)],
            vec![edit(0, 0)],
        ] {
            let _ = keyframes(&samples, &edits);
        }
    }
}
