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
