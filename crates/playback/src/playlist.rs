//! HLS playlists as text, written once from the plan and kept with the playback (D1).

use std::fmt::{self, Write as _};

use ether_media::{MasteringKind, Ticks, Timeline};

use crate::presentation::{Packaging, Presentation, Shown};

/// The group of the sounds, and that of the text tracks.
const SOUNDS: &str = "sound";
const TEXTS: &str = "text";

/// `EXT-X-MAP` outside of trick play needs version 6 and fractional durations need 3; 7 is what players of
/// fragmented MP4 are tested with.
fn version(container: Packaging) -> u8 {
    match container {
        Packaging::Fmp4 => 7,
        Packaging::MpegTs => 3,
    }
}

/// The multivariant playlist: every quality, sound and text track, by relative addresses.
pub fn multivariant(presentation: &Presentation<'_>) -> String {
    let mut text = String::with_capacity(1024);
    text.push_str("#EXTM3U\n");
    line(
        &mut text,
        format_args!("#EXT-X-VERSION:{}", version(presentation.container)),
    );
    if presentation.independent {
        text.push_str("#EXT-X-INDEPENDENT-SEGMENTS\n");
    }
    start(&mut text, presentation);
    if presentation.apart {
        sounds(&mut text, presentation);
    }
    texts(&mut text, presentation);
    if presentation.pictures.is_empty() {
        variant(&mut text, presentation, None, presentation.first_sound());
    }
    for (n, shown) in presentation.pictures.iter().enumerate() {
        variant(
            &mut text,
            presentation,
            Some(shown),
            presentation.picture_number(n),
        );
    }
    text
}

/// One `EXT-X-MEDIA` for each sound. All are in one group: a player switches between them and keeps the picture.
fn sounds(text: &mut String, presentation: &Presentation<'_>) {
    for (n, sound) in presentation.sounds.iter().enumerate() {
        let _ = write!(
            text,
            "#EXT-X-MEDIA:TYPE=AUDIO,GROUP-ID=\"{SOUNDS}\",NAME=\"{}\"",
            quotable(&sound.name)
        );
        if let Some(language) = &sound.language {
            let _ = write!(text, ",LANGUAGE=\"{language}\"");
        }
        let default = if n == 0 { "YES" } else { "NO" };
        let _ = write!(text, ",DEFAULT={default},AUTOSELECT=YES");
        if let Some(channels) = sound.channels {
            let _ = write!(text, ",CHANNELS=\"{channels}\"");
        }
        let number = sound.representation;
        line(
            text,
            format_args!(",URI=\"{number}/index.m3u8?grant={}\"", presentation.grant),
        );
    }
}

/// One `EXT-X-MEDIA` for each text track.
fn texts(text: &mut String, presentation: &Presentation<'_>) {
    for track in &presentation.texts {
        let _ = write!(
            text,
            "#EXT-X-MEDIA:TYPE=SUBTITLES,GROUP-ID=\"{TEXTS}\",NAME=\"{}\"",
            quotable(&track.name)
        );
        if let Some(language) = &track.language {
            let _ = write!(text, ",LANGUAGE=\"{language}\"");
        }
        let word = |yes| if yes { "YES" } else { "NO" };
        // What is chosen by itself: what the file says, and what is forced.
        let default = word(track.default && !track.forced);
        let _ = write!(
            text,
            ",DEFAULT={default},AUTOSELECT=YES,FORCED={}",
            word(track.forced)
        );
        if track.hearing_impaired {
            text.push_str(
                ",CHARACTERISTICS=\"public.accessibility.transcribes-spoken-dialog,\
                 public.accessibility.describes-music-and-sound\"",
            );
        }
        line(
            text,
            format_args!(
                ",URI=\"../../../ether/api/sessions/{}/subtitles.m3u8?stream={}&grant={}\"",
                presentation.session, track.stream, presentation.grant
            ),
        );
    }
}

/// One quality, with the thickest and the average of the sounds that can be heard with it.
fn variant(text: &mut String, presentation: &Presentation<'_>, shown: Option<&Shown>, number: usize) {
    let heard = &presentation.sounds;
    let streams = u64::from(shown.is_some()) + u64::from(!heard.is_empty());
    let container = presentation.container;
    let sound_peak = heard.iter().map(|sound| sound.rate.peak).max().unwrap_or(0);
    // The average is that of what is played unless something else is chosen.
    let sound_average = heard.first().map_or(0, |sound| sound.rate.average);
    let peak = shown.map_or(0, |s| s.rate.peak).saturating_add(sound_peak);
    // An encoder holds its bound over any stretch but for what it saved up in its buffer, at most a second's worth:
    // a segment may have that much more.
    let saved = match presentation.independent {
        true => shown.map_or(0, |s| s.rate.peak) / longest(presentation.timeline).unsigned_abs().max(1),
        false => 0,
    };
    let peak = peak.saturating_add(saved);
    let average = shown.map_or(0, |s| s.rate.average).saturating_add(sound_average);
    let peak = container.with_overhead(peak, streams).max(1);
    let average = container.with_overhead(average, streams).clamp(1, peak);
    // Every codec that may come with this quality; one that a player lacks is not among them, for each was
    // chosen by what the player says it plays.
    let mut codecs: Vec<&str> = shown.map(|s| s.codec.as_str()).into_iter().collect();
    for sound in heard {
        if !codecs.contains(&sound.codec.as_str()) {
            codecs.push(&sound.codec);
        }
    }
    let _ = write!(
        text,
        "#EXT-X-STREAM-INF:BANDWIDTH={peak},AVERAGE-BANDWIDTH={average},CODECS=\"{}\"",
        codecs.join(",")
    );
    if let Some(shown) = shown {
        let _ = write!(text, ",RESOLUTION={}x{}", shown.width, shown.height);
        if let Some(rate) = shown.frame_rate {
            let _ = write!(text, ",FRAME-RATE={:.3}", rate.as_f64());
        }
        match shown.range {
            MasteringKind::Sdr => {}
            MasteringKind::Pq => text.push_str(",VIDEO-RANGE=PQ"),
            MasteringKind::Hlg => text.push_str(",VIDEO-RANGE=HLG"),
        }
    }
    if presentation.apart && !heard.is_empty() {
        let _ = write!(text, ",AUDIO=\"{SOUNDS}\"");
    }
    if !presentation.texts.is_empty() {
        let _ = write!(text, ",SUBTITLES=\"{TEXTS}\"");
    }
    if shown.is_some() {
        text.push_str(",CLOSED-CAPTIONS=NONE");
    }
    text.push('\n');
    line(
        text,
        format_args!("{number}/index.m3u8?grant={}", presentation.grant),
    );
}

/// The media playlist of any representation, complete from the first fetch on: all have the same bounds, and
/// addresses in it are relative to the representation's own.
pub fn media(presentation: &Presentation<'_>) -> String {
    let timeline = presentation.timeline;
    let lengths: Vec<i64> = (0..timeline.len()).map(|n| micros(timeline, n)).collect();
    let mut text = String::with_capacity(256 + lengths.len() * (48 + presentation.grant.len()));
    text.push_str("#EXTM3U\n");
    line(
        &mut text,
        format_args!("#EXT-X-VERSION:{}", version(presentation.container)),
    );
    line(
        &mut text,
        format_args!("#EXT-X-TARGETDURATION:{}", longest(timeline)),
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

/// The longest segment in whole seconds, at least one. A player may refuse a segment whose rounded duration exceeds
/// this, so it is computed from the very numbers that are written.
fn longest(timeline: &Timeline) -> i64 {
    let rounded = |n| (micros(timeline, n) + 500_000) / 1_000_000;
    (0..timeline.len()).map(rounded).max().unwrap_or(1).max(1)
}

/// Length of segment `n` in microseconds: the difference of two rounded bounds, so that the running sum of
/// what is written is never further from the bound than the rounding of that one bound.
fn micros(timeline: &Timeline, n: usize) -> i64 {
    let bound = |n: usize| timeline.start(n).to_timescale(1_000_000);
    bound(n.saturating_add(1)) - bound(n)
}

/// `name` as it may stand between quotes: an attribute has no way to escape anything.
fn quotable(name: &str) -> String {
    let kept = |c: char| match c {
        '"' => '\'',
        c if c.is_control() => ' ',
        c => c,
    };
    name.chars().map(kept).collect()
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
