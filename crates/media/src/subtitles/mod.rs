//! Text subtitles: what a track says and when, and the two forms in which it is given out.
//!
//! A [`Track`] keeps its lines as they came, on the clock of their source. Where a line is shown follows from the
//! timeline of whoever watches, so a track is read once and written out for each viewer: as WebVTT by
//! [`webvtt`], as an ASS script by [`ass`].

pub mod ass;
mod markup;
mod style;
pub mod webvtt;

use crate::ticks::Ticks;

/// Longest time that a line without an end of its own is shown.
const UNENDED: Ticks = Ticks(5 * Ticks::HZ);

/// A text track, as far as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Track {
    /// How its lines are written.
    pub form: Form,
    /// Its lines, in the order in which they were read.
    pub lines: Vec<Line>,
}

/// How the lines of a track are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// As fields of an ASS script's `Dialogue`, without its times.
    Ass {
        /// The script up to its events: information and styles.
        header: String,
        /// Whether a text in braces that holds no tag is a comment, as in scripts; in what was converted from
        /// another format it is what is said.
        comments: bool,
    },
    /// As the payload of WebVTT cues.
    WebVtt,
}

impl Default for Form {
    fn default() -> Self {
        Form::Ass {
            header: String::new(),
            comments: true,
        }
    }
}

/// One line: something that is shown for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// When it appears, on the source's clock.
    pub start: Ticks,
    /// When it goes; absent where the source does not say.
    pub end: Option<Ticks>,
    /// Settings of a WebVTT cue (`line:0 align:start`); empty elsewhere.
    pub settings: String,
    /// In ASS `Layer,Style,Name,MarginL,MarginR,MarginV,Effect,Text`; in WebVTT the cue's payload.
    pub body: String,
}

impl Line {
    /// Bytes that the line takes in memory, about.
    pub fn weight(&self) -> usize {
        size_of::<Self>() + self.settings.len() + self.body.len()
    }
}

/// How a source's clock becomes the clock that a viewer sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// The source's clock at the viewer's zero.
    pub zero: Ticks,
    /// The end of the presentation on the viewer's clock; nothing is shown after it.
    pub end: Ticks,
}

impl Clock {
    /// When a line is shown on the viewer's clock; `None` where that is never.
    fn span(self, start: Ticks, end: Ticks) -> Option<(Ticks, Ticks)> {
        let start = (start - self.zero).max(Ticks::ZERO);
        let end = (end - self.zero).min(self.end);
        (start < end).then_some((start, end))
    }
}

impl Track {
    /// Its lines with the times at which they are shown on `clock`, in the order in which they appear; lines
    /// that appear at once stay in theirs. Lines that say the same over the same time are one: scripts draw a
    /// line several times to give it a shadow.
    pub fn shown(&self, clock: Clock) -> Vec<(Ticks, Ticks, &Line)> {
        let mut order: Vec<&Line> = self.lines.iter().collect();
        order.sort_by_key(|line| line.start);
        let mut shown = Vec::with_capacity(order.len());
        for (n, line) in order.iter().enumerate() {
            let next = order.get(n + 1).map(|next| next.start);
            if let Some((start, end)) = clock.span(line.start, ends(line, next)) {
                shown.push((start, end, *line));
            }
        }
        shown
    }
}

/// When `line` goes, where the one after it appears at `next`.
fn ends(line: &Line, next: Option<Ticks>) -> Ticks {
    line.end.unwrap_or_else(|| {
        let longest = line.start + UNENDED;
        next.filter(|next| *next > line.start)
            .map_or(longest, |next| next.min(longest))
    })
}

#[cfg(test)]
mod tests;
