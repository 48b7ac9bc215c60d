//! Subtitles that are drawn into the picture, once for all its qualities.
//!
//! Text is drawn by libass, which FFmpeg hands the whole track at once, fonts included: every cue is there from
//! wherever a run begins, and times are those of the file.
//!
//! Pictures come as packets of the file like everything else, and one that is shown when a run begins was read
//! some seconds before. So a second reader of the same file begins [`BEFORE`] earlier. It decodes nothing but
//! the subtitles; the packets of its picture go nowhere and only tell how far it has come, which is what FFmpeg
//! needs to know that no subtitle is due.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use ether_media::{StreamKind, Ticks};

use super::Arguments;
use super::color::Meaning;
use crate::origin::protocols;
use crate::strand::Strand;

/// How long before a run begins its subtitles are read: longer than a subtitle is shown.
const BEFORE: Ticks = Ticks(20 * Ticks::HZ);
/// FFmpeg's number of the second reader's input.
const READER: usize = 1;

/// What is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Burn {
    /// Text: the track's position among the subtitle tracks of the file.
    Text(usize),
    /// Pictures: FFmpeg's index of the stream.
    Pictures(u32),
}

/// What is drawn on: a picture of the best quality, upright, in the encoder's sample format.
#[derive(Clone, Copy, Debug)]
pub(super) struct Canvas {
    pub(super) size: (u32, u32),
    /// Size of the source's picture, upright.
    pub(super) source: (u32, u32),
    pub(super) meaning: Meaning,
    /// Where the run begins on the file's clock, where that is not the file's own beginning.
    pub(super) cut: Option<Ticks>,
    /// Ten bits a sample.
    pub(super) deep: bool,
}

impl Burn {
    /// What is drawn into the picture of `strand`.
    pub(super) fn of(strand: &Strand) -> Option<Self> {
        let stream = strand.encode()?.burn?;
        let is_subtitle = |kind: &StreamKind| matches!(kind, StreamKind::Subtitle(_));
        let mut subtitles = strand.facts.streams.iter().filter(|s| is_subtitle(&s.kind));
        let position = subtitles.position(|s| s.index == stream)?;
        match &strand.facts.stream(stream)?.kind {
            StreamKind::Subtitle(facts) if facts.text => Some(Self::Text(position)),
            _ => Some(Self::Pictures(stream)),
        }
    }

    /// The second reader's input, where one is needed, of a run that reads from `seek`.
    pub(super) fn input(self, args: &mut Arguments, strand: &Strand, seek: Option<Ticks>, input: &OsStr) {
        let Self::Pictures(_) = self else { return };
        let at = seek.map(|at| at - BEFORE).filter(|at| *at > strand.facts.start);
        if let Some(at) = at {
            args.add("-noaccurate_seek -seek_timestamp 1 -ss");
            args.one(at.to_string());
        }
        args.add("-protocol_whitelist");
        args.one(protocols(input));
        args.add("-i");
        args.one(input);
    }

    /// How many inputs it takes.
    pub(super) fn inputs(self) -> usize {
        usize::from(matches!(self, Self::Pictures(_)))
    }

    /// The output that carries the second reader along, to be put last; `until` is where the run ends.
    pub(super) fn pace(self, args: &mut Arguments, strand: &Strand, until: Option<Ticks>) {
        let (Self::Pictures(_), Some(video)) = (self, &strand.video) else {
            return;
        };
        args.add("-map");
        args.one(format!("{READER}:{}", video.stream));
        args.add("-c copy");
        if let Some(until) = until {
            args.add("-to");
            args.one(until.to_string());
        }
        args.add("-f null -");
    }

    /// Draws it on what `graph` ends with.
    pub(super) fn draw(self, graph: &mut OsString, canvas: &Canvas, input: &OsStr) {
        let dimmed = canvas.dimmed();
        match self {
            Self::Text(position) if dimmed.is_none() => {
                graph.push(",");
                graph.push(text(position, input, ""));
            }
            Self::Text(position) => {
                // Drawn on nothing, so that it can be dimmed before it is laid over the picture.
                graph.push("[p0];[p0]split[p][c];[c]format=rgba,lutrgb=r=0:g=0:b=0:a=0,");
                graph.push(text(position, input, ":alpha=1"));
                graph.push(format!(",{}[q];[p][q]{}", canvas.film(None), canvas.overlay()));
            }
            Self::Pictures(stream) => {
                let (width, height) = canvas.fitted();
                graph.push(format!("[p];[{READER}:{stream}]"));
                // FFmpeg repeats what is shown for every packet that it reads. Before the run begins, only the
                // last of these count, and two a second are enough to have it.
                if let Some(cut) = canvas.cut {
                    graph.push(format!(
                        "select=gte(t\\,{})+gt(floor(t*2)\\,floor(prev_selected_t*2))+isnan(prev_selected_t),",
                        cut - Ticks(Ticks::HZ / 2)
                    ));
                }
                graph.push(format!("{}[q];", canvas.film(Some((width, height)))));
                graph.push(format!("[p][q]{}", canvas.overlay()));
            }
        }
    }
}

impl Canvas {
    /// The filter that makes white the white of paper, where the range is wide.
    fn dimmed(&self) -> Option<String> {
        let paper = self.meaning.paper();
        (paper < 1.0).then(|| format!("lutrgb=r=val*{paper}:g=val*{paper}:b=val*{paper}"))
    }

    /// What makes something to lay over the picture out of RGB.
    fn film(&self, size: Option<(String, String)>) -> String {
        let dimmed = self.dimmed().map(|filter| filter + ",").unwrap_or_default();
        let size = size.map_or(String::new(), |(w, h)| format!("w='{w}':h='{h}':flags=bilinear:"));
        let matrix = self.meaning.scaler_matrix();
        let format = if self.deep { "yuva420p10le" } else { "yuva420p" };
        format!("{dimmed}scale={size}out_color_matrix={matrix}:out_range=limited,format={format}")
    }

    fn overlay(&self) -> String {
        let format = if self.deep { "yuv420p10" } else { "yuv420" };
        format!("overlay=x=(W-w)/2:y=(H-h)/2:format={format}:eof_action=pass")
    }

    /// The size of subtitles whose own canvas is known only to FFmpeg. One that has the shape of the source's
    /// samples covers the picture, whatever shape those are shown in. Another one is from before the picture
    /// was cropped: it is fitted in whole, because lines often stand where the crop was made.
    fn fitted(&self) -> (String, String) {
        let ((width, height), (w, h)) = (self.size, self.source);
        let same = format!("eq(iw*{h},ih*{w})");
        let fit = |most: u32, other: u32, ratio: &str| {
            format!("if({same},{most},min({most},2*trunc({other}*{ratio}/2)))")
        };
        (fit(width, height, "iw*sar/ih"), fit(height, width, "ih/iw/sar"))
    }
}

fn text(position: usize, input: &OsStr, options: &str) -> OsString {
    let mut filter = OsString::from("subtitles=filename=");
    filter.push(escaped(input));
    filter.push(format!(":si={position}{options}"));
    filter
}

/// `text` so that neither the reader of a filter's options nor that of graphs takes any of it for its own.
fn escaped(text: &OsStr) -> OsString {
    let option = escape(text.as_bytes(), b"\\':= \t\r\n");
    OsString::from_vec(escape(&option, b"\\'[],; \t\r\n"))
}

fn escape(text: &[u8], special: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    for byte in text {
        if special.contains(byte) {
            out.push(b'\\');
        }
        out.push(*byte);
    }
    out
}
