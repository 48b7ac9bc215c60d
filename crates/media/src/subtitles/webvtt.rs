//! WebVTT, written and read.

use std::fmt::Write as _;

use super::markup::{self, Looks};
use super::style::Styles;
use super::{Clock, Form, Line, Track};
use crate::ticks::Ticks;

/// The media type of a WebVTT file.
pub const MEDIA_TYPE: &str = "text/vtt; charset=utf-8";

/// Longest line of a WebVTT file that is read, in bytes; a longer one is cut.
const LONGEST: usize = 16_384;

/// The head of a file. `media_clock` says what the segments' clock, in 90 kHz, reads at the file's zero (RFC 8216,
/// section 3.5); players that take the file by itself ignore it.
pub fn head(media_clock: Option<Ticks>) -> String {
    match media_clock {
        None => "WEBVTT\n\n".to_owned(),
        Some(at) => format!(
            "WEBVTT\nX-TIMESTAMP-MAP=LOCAL:00:00:00.000,MPEGTS:{}\n\n",
            at.0.max(0)
        ),
    }
}

/// The whole of `track` as a file whose zero is the viewer's.
pub fn file(track: &Track, clock: Clock, media_clock: Option<Ticks>) -> String {
    let writer = Writer::new(&track.form);
    let mut text = head(media_clock);
    let mut before: Option<(Ticks, Ticks, String)> = None;
    for (start, end, line) in track.shown(clock) {
        let Some(payload) = writer.payload(line) else {
            continue;
        };
        let cue = (start, end, payload);
        if before.as_ref() != Some(&cue) {
            push(&mut text, &cue);
            before = Some(cue);
        }
    }
    text
}

/// Writes the cues of one track.
#[derive(Debug)]
pub struct Writer {
    styles: Option<(Styles, bool)>,
}

impl Writer {
    /// A writer of lines of this form.
    pub fn new(form: &Form) -> Self {
        Self {
            styles: match form {
                Form::WebVtt => None,
                Form::Ass { header, comments } => Some((Styles::of(header), *comments)),
            },
        }
    }

    /// One line as a cue, with the blank line after it; `None` where it shows nothing on `clock`.
    pub fn cue(&self, line: &Line, clock: Clock) -> Option<String> {
        let (start, end) = clock.span(line.start, super::ends(line, None))?;
        let mut text = String::new();
        push(&mut text, &(start, end, self.payload(line)?));
        Some(text)
    }

    /// Settings and text of a cue, as they stand after its times; `None` where it says nothing.
    fn payload(&self, line: &Line) -> Option<String> {
        let (settings, text) = match &self.styles {
            None => (line.settings.clone(), tidy(&line.body)?),
            Some((styles, comments)) => converted(&line.body, styles, *comments)?,
        };
        let space = if settings.is_empty() { "" } else { " " };
        Some(format!("{space}{settings}\n{text}"))
    }
}

fn push(text: &mut String, (start, end, payload): &(Ticks, Ticks, String)) {
    // Rounding must leave no cue without a length.
    let (start, end) = (start.as_millis(), end.as_millis());
    let end = end.max(start + 1);
    let _ = write!(text, "{} --> {}{payload}\n\n", Time(start), Time(end));
}

/// Milliseconds as WebVTT writes them.
struct Time(i64);

impl std::fmt::Display for Time {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Time(millis) = *self;
        let (seconds, millis) = (millis / 1_000, millis % 1_000);
        let (minutes, seconds) = (seconds / 60, seconds % 60);
        write!(
            f,
            "{:02}:{:02}:{seconds:02}.{millis:03}",
            minutes / 60,
            minutes % 60
        )
    }
}

/// The fields of an ASS line as a cue's settings and text.
fn converted(body: &str, styles: &Styles, comments: bool) -> Option<(String, String)> {
    let mut fields = body.splitn(8, ',');
    let style = styles.get(fields.nth(1)?);
    let said = fields.nth(5)?;
    let parsed = markup::parse(said, style, styles, comments);
    let mut text = String::with_capacity(said.len() + 8);
    for (looks, run) in &parsed.runs {
        // Tags end with their line, so that each line stands for itself and blank ones can be left out.
        for (n, part) in run.split('\n').enumerate() {
            if n > 0 {
                text.push('\n');
            }
            styled(&mut text, *looks, part, comments);
        }
    }
    let text = tidy(&text)?;
    let place = parsed.place.unwrap_or(style.place);
    Some((place.settings().to_owned(), text))
}

fn styled(text: &mut String, looks: Looks, part: &str, script: bool) {
    if part.trim().is_empty() {
        text.push_str(part);
        return;
    }
    let tags = [(looks.bold, "b"), (looks.italic, "i"), (looks.underlined, "u")];
    for (_, tag) in tags.iter().filter(|(on, _)| *on) {
        let _ = write!(text, "<{tag}>");
    }
    escape(text, part, script);
    for (_, tag) in tags.iter().rev().filter(|(on, _)| *on) {
        let _ = write!(text, "</{tag}>");
    }
}

/// Plain text as WebVTT writes it. What came from formats that are written like HTML may still hold tags and
/// entities that nobody converted.
fn escape(text: &mut String, mut part: &str, script: bool) {
    while let Some(at) = part.find(['<', '>', '&', '\u{a0}']) {
        text.push_str(&part[..at]);
        part = &part[at..];
        if !script {
            if let Some(length) = html_tag(part) {
                part = &part[length..];
                continue;
            }
            if let Some((length, character)) = entity(part) {
                escape_one(text, character);
                part = &part[length..];
                continue;
            }
        }
        let mut rest = part.chars();
        if let Some(character) = rest.next() {
            escape_one(text, character);
        }
        part = rest.as_str();
    }
    text.push_str(part);
}

fn escape_one(text: &mut String, character: char) {
    match character {
        '<' => text.push_str("&lt;"),
        '>' => text.push_str("&gt;"),
        '&' => text.push_str("&amp;"),
        '\u{a0}' => text.push_str("&nbsp;"),
        // A character that breaks the line breaks the cue.
        '\n' | '\r' | '\0' => text.push(' '),
        other => text.push(other),
    }
}

/// Length of the tag that `text` begins with, where it is one that subtitles are known to hold.
fn html_tag(text: &str) -> Option<usize> {
    const KNOWN: [&str; 15] = [
        "b", "i", "u", "s", "font", "span", "p", "br", "c", "v", "lang", "ruby", "rt", "em", "strong",
    ];
    let end = text.bytes().take(512).position(|byte| byte == b'>')?;
    let inside = text.get(1..end)?.trim_start_matches('/');
    let letters = |c: char| !c.is_ascii_alphabetic();
    let name = inside.split(letters).next()?.to_ascii_lowercase();
    KNOWN.contains(&name.as_str()).then_some(end + 1)
}

/// The character that the entity at the start of `text` stands for, and the entity's length.
fn entity(text: &str) -> Option<(usize, char)> {
    const NAMED: [(&str, char); 8] = [
        ("amp", '&'),
        ("lt", '<'),
        ("gt", '>'),
        ("quot", '"'),
        ("apos", '\''),
        ("nbsp", '\u{a0}'),
        ("lrm", '\u{200e}'),
        ("rlm", '\u{200f}'),
    ];
    let end = text.bytes().take(12).position(|byte| byte == b';')?;
    let name = text.get(1..end).filter(|_| text.starts_with('&'))?;
    let character = match name.strip_prefix('#') {
        Some(number) => match number.strip_prefix(['x', 'X']) {
            Some(hex) => u32::from_str_radix(hex, 16).ok().and_then(char::from_u32),
            None => number.parse().ok().and_then(char::from_u32),
        },
        None => NAMED.iter().find(|(known, _)| *known == name).map(|(_, c)| *c),
    };
    Some((end + 1, character?))
}

/// A payload without what would end it early or make it longer than what is seen; `None` where nothing is left.
fn tidy(text: &str) -> Option<String> {
    let lines = text
        .lines()
        .map(str::trim_end)
        .filter(|line| !line.trim().is_empty());
    // Only cues' times may hold an arrow.
    let text = lines
        .collect::<Vec<_>>()
        .join("\n")
        .replace("-->", "--&gt;")
        .replace('\0', "");
    (!text.trim().is_empty()).then_some(text)
}

/// Reads a WebVTT file, as forgivingly as browsers do: what is no cue is skipped.
pub fn read(text: &str) -> Track {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    let mut track = Track {
        form: Form::WebVtt,
        lines: Vec::new(),
    };
    let mut lines = text.split('\n').map(|line| cut(line, LONGEST)).peekable();
    while let Some(line) = lines.next() {
        let Some((start, end, settings)) = timing(line) else {
            continue;
        };
        let mut body = String::new();
        while let Some(line) = lines.next_if(|line| !line.is_empty() && timing(line).is_none()) {
            if !body.is_empty() {
                body.push('\n');
            }
            body.push_str(line);
        }
        track.lines.push(Line {
            start,
            end: Some(end),
            settings: settings.to_owned(),
            body,
        });
    }
    track
}

fn cut(line: &str, most: usize) -> &str {
    let mut end = line.len().min(most);
    while !line.is_char_boundary(end) {
        end -= 1;
    }
    &line[..end]
}

fn timing(line: &str) -> Option<(Ticks, Ticks, &str)> {
    let (start, rest) = line.split_once("-->")?;
    let rest = rest.trim_start();
    let (end, settings) = rest.split_once([' ', '\t']).unwrap_or((rest, ""));
    Some((time(start.trim())?, time(end)?, settings.trim()))
}

/// `01:02:03.004`, with or without hours.
fn time(text: &str) -> Option<Ticks> {
    let (whole, millis) = text.split_once('.')?;
    let digits = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let mut seconds = 0_i64;
    let parts: Vec<&str> = whole.split(':').collect();
    if !(2..=3).contains(&parts.len()) || millis.len() != 3 || !digits(millis) {
        return None;
    }
    for part in parts {
        if part.is_empty() || part.len() > 6 || !digits(part) {
            return None;
        }
        seconds = seconds * 60 + part.parse::<i64>().ok()?;
    }
    let millis = seconds * 1_000 + millis.parse::<i64>().ok()?;
    Some(Ticks::from_timescale(millis, 1_000))
}
