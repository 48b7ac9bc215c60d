//! The DASH manifest as text, written once from the plan and kept with the playback (D1).
//!
//! Times in it are those that the segments hold: pictures start where the timeline says, sound with the first
//! of its frames that starts no earlier, each in a timescale of its own. What the media clock shows at the
//! presentation's zero is taken off by `presentationTimeOffset`.

use std::fmt::Write as _;

use ether_media::{MasteringKind, Ticks};

use crate::presentation::{Heard, Presentation, Shown};

/// From the manifest's own address to where media is.
const MEDIA: &str = "../../../../sessions/media";

/// The manifest: one period with the picture in one set, and every sound and text track in one of its own.
pub fn manifest(presentation: &Presentation<'_>) -> String {
    let length = duration(presentation.timeline.end());
    let mut text = String::with_capacity(2048 + presentation.timeline.len() * 32);
    text.push_str("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
    let _ = writeln!(
        text,
        "<MPD xmlns=\"urn:mpeg:dash:schema:mpd:2011\" type=\"static\" \
         profiles=\"urn:mpeg:dash:profile:isoff-live:2011\" mediaPresentationDuration=\"{length}\" \
         minBufferTime=\"PT4S\">"
    );
    let _ = writeln!(text, "<Period id=\"0\" start=\"PT0S\" duration=\"{length}\">");
    pictures(&mut text, presentation);
    for (n, sound) in presentation.sounds.iter().enumerate() {
        sound_set(&mut text, presentation, n, sound);
    }
    texts(&mut text, presentation);
    text.push_str("</Period>\n</MPD>\n");
    text
}

/// The picture with all its qualities, which share their bounds.
fn pictures(text: &mut String, presentation: &Presentation<'_>) {
    let Some(best) = presentation.pictures.first() else {
        return;
    };
    text.push_str(
        "<AdaptationSet id=\"0\" contentType=\"video\" mimeType=\"video/mp4\" segmentAlignment=\"true\"",
    );
    // Copied pictures may begin a segment with some that look back over its keyframe.
    if presentation.independent {
        text.push_str(" startWithSAP=\"1\"");
    }
    text.push_str(">\n");
    let transfer = match best.range {
        MasteringKind::Sdr => None,
        MasteringKind::Pq => Some(16),
        MasteringKind::Hlg => Some(18),
    };
    if let Some(transfer) = transfer {
        let cicp = [
            ("ColourPrimaries", 9),
            ("TransferCharacteristics", transfer),
            ("MatrixCoefficients", 9),
        ];
        for (what, value) in cicp {
            let _ = writeln!(
                text,
                "<SupplementalProperty schemeIdUri=\"urn:mpeg:mpegB:cicp:{what}\" value=\"{value}\"/>"
            );
        }
    }
    let timeline = presentation.timeline;
    let starts: Vec<i64> = (0..timeline.len())
        .map(|n| (timeline.start(n) + timeline.lead()).0)
        .collect();
    template(text, presentation, Ticks::HZ as u32, &starts);
    for (n, shown) in presentation.pictures.iter().enumerate() {
        quality(text, presentation, n, shown);
    }
    text.push_str("</AdaptationSet>\n");
}

fn quality(text: &mut String, presentation: &Presentation<'_>, n: usize, shown: &Shown) {
    let bandwidth = presentation.container.with_overhead(shown.rate.peak, 1).max(1);
    let _ = write!(
        text,
        "<Representation id=\"{}\" codecs=\"{}\" bandwidth=\"{bandwidth}\" width=\"{}\" height=\"{}\" sar=\"1:1\"",
        presentation.picture_number(n),
        escaped(&shown.codec),
        shown.width,
        shown.height
    );
    if let Some(rate) = shown.frame_rate {
        let _ = match rate.den {
            1 => write!(text, " frameRate=\"{}\"", rate.num),
            den => write!(text, " frameRate=\"{}/{den}\"", rate.num),
        };
    }
    text.push_str("/>\n");
}

fn sound_set(text: &mut String, presentation: &Presentation<'_>, n: usize, sound: &Heard) {
    let id = sound.representation;
    let _ = write!(
        text,
        "<AdaptationSet id=\"{}\" contentType=\"audio\" mimeType=\"audio/mp4\" segmentAlignment=\"true\" \
         startWithSAP=\"1\"",
        n + 1
    );
    if let Some(language) = &sound.language {
        let _ = write!(text, " lang=\"{}\"", escaped(language));
    }
    text.push_str(">\n");
    let role = if n == 0 { "main" } else { "alternate" };
    let _ = writeln!(
        text,
        "<Role schemeIdUri=\"urn:mpeg:dash:role:2011\" value=\"{role}\"/>\n<Label>{}</Label>",
        escaped(&sound.name)
    );
    let timeline = presentation.timeline;
    let (rate, starts) = match &sound.grid {
        Some(grid) => (grid.rate, grid.starts(timeline)),
        // Frames of several lengths: where they start is known only to within one.
        None => {
            let rate = sound.sample_rate.unwrap_or(48_000).max(1);
            let start = |n: usize| (timeline.start(n) + timeline.lead()).to_timescale(u64::from(rate));
            (rate, (0..timeline.len()).map(start).collect())
        }
    };
    template(text, presentation, rate, &starts);
    let bandwidth = presentation.container.with_overhead(sound.rate.peak, 1).max(1);
    let _ = write!(
        text,
        "<Representation id=\"{id}\" codecs=\"{}\" bandwidth=\"{bandwidth}\" audioSamplingRate=\"{rate}\">",
        escaped(&sound.codec)
    );
    if let Some(channels) = sound.channels {
        let _ = write!(
            text,
            "<AudioChannelConfiguration \
             schemeIdUri=\"urn:mpeg:dash:23003:3:audio_channel_configuration:2011\" value=\"{channels}\"/>"
        );
    }
    text.push_str("</Representation>\n</AdaptationSet>\n");
}

/// Addresses of segments and when each starts, in units of `1/rate` s on the media clock.
fn template(text: &mut String, presentation: &Presentation<'_>, rate: u32, starts: &[i64]) {
    let timeline = presentation.timeline;
    let offset = timeline.lead().to_timescale(u64::from(rate));
    let end = (timeline.end() + timeline.lead()).to_timescale(u64::from(rate));
    let address = |name: &str| {
        format!(
            "{MEDIA}/{}/$RepresentationID$/{name}?grant={}",
            escaped(presentation.session),
            escaped(presentation.grant)
        )
    };
    let extension = presentation.container.extension();
    let _ = writeln!(
        text,
        "<SegmentTemplate timescale=\"{rate}\" presentationTimeOffset=\"{offset}\" startNumber=\"0\" \
         initialization=\"{}\" media=\"{}\">\n<SegmentTimeline>",
        address("header"),
        address(&format!("$Number$.{extension}"))
    );
    let length = |n: usize| {
        let next = starts.get(n + 1).copied().unwrap_or(end);
        // A segment shorter than a frame of its sound still has a number and needs a place.
        (next - starts[n]).max(1)
    };
    let mut n = 0;
    while n < starts.len() {
        let each = length(n);
        let same = (n + 1..starts.len()).take_while(|m| length(*m) == each).count();
        let first = if n == 0 {
            format!(" t=\"{}\"", starts[0])
        } else {
            String::new()
        };
        let repeated = if same > 0 {
            format!(" r=\"{same}\"")
        } else {
            String::new()
        };
        let _ = writeln!(text, "<S{first} d=\"{each}\"{repeated}/>");
        n += same + 1;
    }
    text.push_str("</SegmentTimeline>\n</SegmentTemplate>\n");
}

/// One set for each text track: a whole file that is fetched when the track is chosen.
fn texts(text: &mut String, presentation: &Presentation<'_>) {
    for (n, track) in presentation.texts.iter().enumerate() {
        let id = 1 + presentation.sounds.len() + n;
        let _ = write!(
            text,
            "<AdaptationSet id=\"{id}\" contentType=\"text\" mimeType=\"text/vtt\""
        );
        if let Some(language) = &track.language {
            let _ = write!(text, " lang=\"{}\"", escaped(language));
        }
        let role = if track.forced {
            "forced-subtitle"
        } else {
            "subtitle"
        };
        let _ = writeln!(
            text,
            ">\n<Role schemeIdUri=\"urn:mpeg:dash:role:2011\" value=\"{role}\"/>\n<Label>{}</Label>\n\
             <Representation id=\"text-{stream}\" bandwidth=\"1000\"><BaseURL>subtitles.vtt?stream={stream}&amp;\
             grant={}</BaseURL></Representation>\n</AdaptationSet>",
            escaped(&track.name),
            escaped(presentation.grant),
            stream = track.stream
        );
    }
}

/// A length as XML Schema writes it.
fn duration(length: Ticks) -> String {
    let seconds = length.to_string();
    format!("PT{}S", seconds)
}

/// `text` as it may stand in an element and in an attribute. What XML 1.0 has no way to write is left out.
fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&apos;"),
            c if c.is_control() || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push(' '),
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests;
