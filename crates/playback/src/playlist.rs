//! HLS playlists as text, written once from the plan and kept with the playback (D1).
//!
//! Both are functions of a [`Presentation`] alone, so the text never changes between two fetches, and two
//! nodes that hold the same plan write the same bytes.

use std::fmt::{self, Write as _};

use ether_media::{MasteringKind, Rational, Ticks, Timeline};

/// What the playlists of one playback say.
#[derive(Clone, Debug, PartialEq)]
pub struct Presentation<'a> {
    /// Where every segment starts.
    pub timeline: &'a Timeline,
    /// The container of segments.
    pub container: Packaging,
    /// Whether every segment is known to start with a picture that needs none before it.
    pub independent: bool,
    /// RFC 6381 codec strings, in order.
    pub codecs: Vec<String>,
    /// Greatest bit rate of any segment, in bits a second.
    pub peak: u64,
    /// Average bit rate, in bits a second.
    pub average: u64,
    /// The picture, where there is one.
    pub picture: Option<Shown>,
    /// Where playing is to begin, where not at the start.
    pub start: Option<Ticks>,
    /// What child addresses carry.
    pub grant: &'a str,
}

/// What a player is told of the picture.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shown {
    /// Width in square pixels.
    pub width: u32,
    /// Height in square pixels.
    pub height: u32,
    /// Frames a second, where known.
    pub frame_rate: Option<Rational>,
    /// The dynamic range.
    pub range: MasteringKind,
}

/// The container of segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packaging {
    /// Fragmented MP4 with an initialization segment.
    Fmp4,
    /// MPEG transport stream.
    MpegTs,
}

impl Packaging {
    /// How the names of segments end.
    pub fn extension(self) -> &'static str {
        match self {
            Self::Fmp4 => "m4s",
            Self::MpegTs => "ts",
        }
    }

    /// `EXT-X-MAP` outside of trick play needs version 6 and fractional durations need 3; 7 is what players
    /// of fragmented MP4 are tested with.
    fn version(self) -> u8 {
        match self {
            Self::Fmp4 => 7,
            Self::MpegTs => 3,
        }
    }
}

/// The name of the one representation.
pub const REPRESENTATION: &str = "0";

/// The multivariant playlist: one variant, by a relative address.
pub fn multivariant(presentation: &Presentation<'_>) -> String {
    let mut text = String::with_capacity(512);
    text.push_str("#EXTM3U\n");
    line(
        &mut text,
        format_args!("#EXT-X-VERSION:{}", presentation.container.version()),
    );
    if presentation.independent {
        text.push_str("#EXT-X-INDEPENDENT-SEGMENTS\n");
    }
    start(&mut text, presentation);
    let _ = write!(
        text,
        "#EXT-X-STREAM-INF:BANDWIDTH={},AVERAGE-BANDWIDTH={},CODECS=\"{}\"",
        presentation.peak.max(1),
        presentation.average.clamp(1, presentation.peak.max(1)),
        presentation.codecs.join(",")
    );
    if let Some(shown) = &presentation.picture {
        let _ = write!(text, ",RESOLUTION={}x{}", shown.width, shown.height);
        if let Some(rate) = shown.frame_rate {
            let _ = write!(text, ",FRAME-RATE={:.3}", rate.as_f64());
        }
        match shown.range {
            MasteringKind::Sdr => {}
            MasteringKind::Pq => text.push_str(",VIDEO-RANGE=PQ"),
            MasteringKind::Hlg => text.push_str(",VIDEO-RANGE=HLG"),
        }
        text.push_str(",CLOSED-CAPTIONS=NONE");
    }
    text.push('\n');
    line(
        &mut text,
        format_args!("{REPRESENTATION}/index.m3u8?grant={}", presentation.grant),
    );
    text
}

/// The media playlist: complete from the first fetch on.
pub fn media(presentation: &Presentation<'_>) -> String {
    let timeline = presentation.timeline;
    let lengths: Vec<i64> = (0..timeline.len()).map(|n| micros(timeline, n)).collect();
    // A player may refuse a segment whose rounded duration exceeds this, so it is computed from the very
    // numbers that are written.
    let target = lengths.iter().map(|length| (length + 500_000) / 1_000_000).max();
    let mut text = String::with_capacity(256 + lengths.len() * (48 + presentation.grant.len()));
    text.push_str("#EXTM3U\n");
    line(
        &mut text,
        format_args!("#EXT-X-VERSION:{}", presentation.container.version()),
    );
    line(
        &mut text,
        format_args!("#EXT-X-TARGETDURATION:{}", target.unwrap_or(1).max(1)),
    );
    text.push_str("#EXT-X-MEDIA-SEQUENCE:0\n#EXT-X-PLAYLIST-TYPE:VOD\n");
    if presentation.independent {
        text.push_str("#EXT-X-INDEPENDENT-SEGMENTS\n");
    }
    start(&mut text, presentation);
    if presentation.container == Packaging::Fmp4 {
        line(
            &mut text,
            format_args!("#EXT-X-MAP:URI=\"header?grant={}\"", presentation.grant),
        );
    }
    let extension = presentation.container.extension();
    for (n, length) in lengths.iter().enumerate() {
        line(
            &mut text,
            format_args!("#EXTINF:{}.{:06},", length / 1_000_000, length % 1_000_000),
        );
        line(
            &mut text,
            format_args!("{n}.{extension}?grant={}", presentation.grant),
        );
    }
    text.push_str("#EXT-X-ENDLIST\n");
    text
}

/// Length of segment `n` in microseconds: the difference of two rounded bounds, so that the running sum of
/// what is written is never further from the bound than the rounding of that one bound.
fn micros(timeline: &Timeline, n: usize) -> i64 {
    let bound = |n: usize| timeline.start(n).to_timescale(1_000_000);
    bound(n.saturating_add(1)) - bound(n)
}

fn start(text: &mut String, presentation: &Presentation<'_>) {
    if let Some(at) = presentation.start.filter(|at| *at > Ticks::ZERO) {
        line(text, format_args!("#EXT-X-START:TIME-OFFSET={at},PRECISE=YES"));
    }
}

fn line(text: &mut String, content: fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = text.write_fmt(content);
    text.push('\n');
}

#[cfg(test)]
mod tests;
