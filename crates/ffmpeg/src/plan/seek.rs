//! Where a run begins to read: before the first thing that it keeps, and no further than it must.

use ether_media::{Container, Cut, Facts, Ticks, Timeline};

use crate::strand::Strand;

/// Extra distance before the first segment at which a try starts reading; the one after the last starts at the
/// beginning of the file.
const MARGINS: [Ticks; 3] = [Ticks(0), Ticks(10 * Ticks::HZ), Ticks(60 * Ticks::HZ)];
/// How much sound is decoded before the first that is kept: a decoder's first frame fades in, and encoders have a
/// run-up.
const SOUND_BEFORE: Ticks = Ticks(Ticks::HZ * 15 / 100);

/// Where reading starts, on the file's clock; `None` for its beginning.
///
/// `from` is where the output begins on the timeline, `None` for the film's own beginning.
pub(super) fn seek(strand: &Strand, from: Option<Ticks>, attempt: u32) -> Option<Ticks> {
    let margin = *MARGINS.get(attempt as usize)?;
    let (timeline, facts) = (&strand.timeline, &strand.facts);
    let start = timeline.origin() + from?;
    let at = if strand.encode().is_some() {
        encode_seek(timeline, facts, start)
    } else {
        copy_seek(strand, start)
    };
    let at = at - margin;
    (at > facts.start).then_some(at)
}

/// Decoding needs the keyframe before the first frame, and a little sound before that frame.
fn encode_seek(timeline: &Timeline, facts: &Facts, start: Ticks) -> Ticks {
    let slack = if let Cut::Grid { slack, .. } = timeline.cut() {
        slack
    } else {
        Ticks::ZERO
    };
    let at = start - slack - SOUND_BEFORE;
    if facts.container != Container::MpegTs {
        return at;
    }
    // FFmpeg seeks in a transport stream by time alone and lands between keyframes: aim before one that is
    // known, else so far ahead that one lies in between.
    let known = facts
        .keyframes
        .as_ref()
        .and_then(|index| index.times.iter().rev().find(|t| **t <= at));
    known.copied().unwrap_or(at - Ticks(10 * Ticks::HZ)) - Ticks(Ticks::HZ / 2)
}

/// The index of MP4 holds every track apart, so reading can start at the keyframe itself; at a little sound before it
/// only where that costs no group of pictures. Elsewhere sound of the same time may be stored before the keyframe.
fn copy_seek(strand: &Strand, start: Ticks) -> Ticks {
    match strand.facts.container {
        Container::Mp4 if strand.video.is_some() || strand.copies() => start,
        Container::Mp4 => start - SOUND_BEFORE,
        _ => start - Ticks(Ticks::HZ),
    }
}
