//! ASS scripts, written.

use std::fmt::Write as _;

use super::{Clock, Form, Line, Track};
use crate::ticks::Ticks;

/// The media type of an ASS file.
pub const MEDIA_TYPE: &str = "text/x-ssa; charset=utf-8";

/// The head of what has no script of its own: white text with an outline, on a canvas of the usual size.
const PLAIN: &str = "[Script Info]
ScriptType: v4.00+
PlayResX: 384
PlayResY: 288
ScaledBorderAndShadow: yes

[V4+ Styles]
Format: Name, Fontname, Fontsize, PrimaryColour, SecondaryColour, OutlineColour, BackColour, Bold, Italic, \
Underline, StrikeOut, ScaleX, ScaleY, Spacing, Angle, BorderStyle, Outline, Shadow, Alignment, MarginL, \
MarginR, MarginV, Encoding
Style: Default,Arial,16,&H00FFFFFF,&H00FFFFFF,&H00000000,&H00000000,0,0,0,0,100,100,0,0,1,1,0,2,10,10,10,1
";
const EVENTS: &str = "
[Events]
Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text
";

/// The whole of `track` as a script whose zero is the viewer's. Styles stay as they are; what shows nothing on
/// `clock` is left out.
pub fn file(track: &Track, clock: Clock) -> String {
    let mut text = head(&track.form);
    for (start, end, line) in track.shown(clock) {
        let (start, end) = (centis(start), centis(end));
        // Rounding must leave no line without a length.
        let end = end.max(start + 1);
        let fields = match track.form {
            Form::Ass { .. } => line.body.replace(['\n', '\r', '\0'], " "),
            Form::WebVtt => plain(line),
        };
        // The layer comes before the times, everything else after them.
        if let Some((layer, rest)) = fields.split_once(',') {
            let _ = writeln!(text, "Dialogue: {layer},{},{},{rest}", Time(start), Time(end));
        }
    }
    text
}

fn head(form: &Form) -> String {
    let header = match form {
        Form::Ass { header, .. } if header.contains("[V4") || header.contains("[v4") => header.as_str(),
        _ => PLAIN,
    };
    let mut text = String::with_capacity(header.len() + EVENTS.len());
    for line in header.lines() {
        if line.trim().eq_ignore_ascii_case("[events]") {
            break;
        }
        // Comments say who wrote the file, which is nobody any more.
        if !line.starts_with(';') {
            text.push_str(line.trim_end());
            text.push('\n');
        }
    }
    text.truncate(text.trim_end().len());
    text.push('\n');
    text.push_str(EVENTS);
    text
}

/// A WebVTT cue as the fields of a line: its tags that ASS has too, its others taken off.
fn plain(line: &Line) -> String {
    let mut said = String::with_capacity(line.body.len());
    let top = line
        .settings
        .split_whitespace()
        .any(|setting| setting == "line:0");
    if top {
        said.push_str("{\\an8}");
    }
    let mut rest = line.body.as_str();
    while let Some(at) = rest.find(['<', '&', '\n', '{', '}']) {
        said.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(end) = rest.strip_prefix('<').and_then(|inside| inside.find('>')) {
            let tag = &rest[1..=end];
            let name = tag.split(['.', ' ']).next().unwrap_or_default();
            if let Some(known) = ["b", "i", "u"].iter().find(|known| **known == name) {
                let _ = write!(said, "{{\\{known}1}}");
            } else if let Some(known) = ["/b", "/i", "/u"].iter().find(|known| **known == name) {
                let _ = write!(said, "{{\\{}0}}", &known[1..]);
            }
            rest = &rest[end + 2..];
            continue;
        }
        let known = [
            ("&amp;", "&"),
            ("&lt;", "<"),
            ("&gt;", ">"),
            ("&nbsp;", "\\h"),
            ("&lrm;", "\u{200e}"),
            ("&rlm;", "\u{200f}"),
            ("\n", "\\N"),
            ("{", "\\{"),
            ("}", "\\}"),
        ];
        match known.iter().find(|(written, _)| rest.starts_with(written)) {
            Some((written, meant)) => {
                said.push_str(meant);
                rest = &rest[written.len()..];
            }
            None => {
                let mut characters = rest.chars();
                said.extend(characters.next());
                rest = characters.as_str();
            }
        }
    }
    said.push_str(rest);
    format!("0,Default,,0,0,0,,{}", said.replace(['\r', '\0'], " "))
}

/// Hundredths of a second, which is all that a script can say.
fn centis(at: Ticks) -> i64 {
    at.to_timescale(100)
}

/// Hundredths as a script writes them.
struct Time(i64);

impl std::fmt::Display for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Time(centis) = *self;
        let (seconds, centis) = (centis / 100, centis % 100);
        let (minutes, seconds) = (seconds / 60, seconds % 60);
        write!(f, "{}:{:02}:{seconds:02}.{centis:02}", minutes / 60, minutes % 60)
    }
}
