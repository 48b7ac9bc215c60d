//! Where a presentation begins on the file's clock, and how long it is.

use crate::facts::{Facts, Stream};
use crate::ticks::Ticks;

/// The part of the file's clock that is played.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span {
    /// First presentation time of the picture, or of the sound where there is no picture.
    pub(super) origin: Ticks,
    /// From there to the end of whichever ends later.
    pub(super) length: Ticks,
}

impl Span {
    /// Bits a second that `size` bytes make over the whole span.
    pub(super) fn average(&self, size: u64) -> u64 {
        let length = u128::try_from(self.length.0).unwrap_or(1).max(1);
        let bits = u128::from(size) * 8 * Ticks::HZ as u128;
        u64::try_from(bits / length).unwrap_or(u64::MAX)
    }
}

impl Facts {
    /// How long the file plays for whoever chooses nothing: the main picture with the main sound. The file's own
    /// duration may be another, as subtitles that end after everything else count there too.
    pub fn playing_time(&self) -> Option<Ticks> {
        of(self, self.main_video(), self.main_audio()).map(|span| span.length)
    }
}

/// The span of the chosen streams, where their end is known or the file's is.
pub(super) fn of(facts: &Facts, video: Option<&Stream>, audio: Option<&Stream>) -> Option<Span> {
    let origin = video.or(audio)?.start.unwrap_or(facts.start);
    let whole = facts.duration.map(|duration| facts.start + duration);
    let end = |stream: Option<&Stream>| {
        let stream = stream?;
        match (stream.start, stream.duration) {
            (start, Some(duration)) if duration > Ticks::ZERO => {
                Some(start.unwrap_or(facts.start) + duration)
            }
            _ => whole,
        }
    };
    let end = end(video).max(end(audio)).or(whole)?;
    let length = end - origin;
    (length > Ticks::ZERO).then_some(Span { origin, length })
}

/// How much longer or shorter a presentation may be for a viewer than what its own streams need, so that viewers who
/// choose different sounds share one picture: tracks of one film differ by a few of their frames.
const TOLERANCE: Ticks = Ticks(Ticks::HZ);

/// The span of `video` with any of several sounds, the same whichever of them is `chosen`, so that all viewers have the
/// same bounds. Who would wait for the end of a much longer sound, or miss it, keeps their `own`.
pub(super) fn alike<'a>(
    facts: &'a Facts,
    video: &'a Stream,
    others: impl Iterator<Item = &'a Stream>,
    chosen: Option<&'a Stream>,
    own: Span,
) -> Span {
    let mut others = others.peekable();
    let Some(main) = of(facts, Some(video), facts.main_audio()).filter(|_| others.peek().is_some()) else {
        return own;
    };
    let with = |sound| of(facts, Some(video), Some(sound)).map(|span| span.length);
    let lengths = others.chain(chosen).filter_map(with);
    let near = lengths.filter(|length| *length <= main.length + TOLERANCE);
    let length = near.fold(main.length, Ticks::max);
    let shared = own.length <= length && length - own.length <= TOLERANCE;
    Span {
        length: if shared { length } else { own.length },
        ..own
    }
}
