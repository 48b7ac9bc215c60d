//! `ffprobe`'s JSON as facts. Fields that are absent, or that say "unknown" in one of its ways, stay absent.

use std::collections::BTreeMap;

use ether_media::{
    AudioFacts, ChromaSampling, Codec, Color, Container, Facts, FactsSource, FieldOrder, Gap, Rational,
    Rotation, Stream, StreamKind, SubtitleFacts, Ticks, VideoFacts,
};
use serde::Deserialize;

/// More streams than any file has that people play.
const MAX_STREAMS: usize = 256;

/// Longest text kept of a tag, in characters.
const TEXT: usize = 256;

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    streams: Vec<RawStream>,
    format: RawFormat,
}

#[derive(Deserialize)]
struct RawFormat {
    #[serde(default)]
    format_name: String,
    duration: Option<String>,
}

#[derive(Deserialize)]
struct RawStream {
    index: u32,
    #[serde(default)]
    codec_name: Option<String>,
    #[serde(default)]
    codec_type: String,
    profile: Option<String>,
    width: Option<u32>,
    height: Option<u32>,
    sample_aspect_ratio: Option<String>,
    pix_fmt: Option<String>,
    level: Option<i64>,
    has_b_frames: Option<u8>,
    color_range: Option<String>,
    color_space: Option<String>,
    color_transfer: Option<String>,
    color_primaries: Option<String>,
    field_order: Option<String>,
    r_frame_rate: Option<String>,
    start_time: Option<String>,
    duration: Option<String>,
    bit_rate: Option<String>,
    sample_rate: Option<String>,
    channels: Option<u16>,
    channel_layout: Option<String>,
    #[serde(default)]
    disposition: BTreeMap<String, i64>,
    #[serde(default)]
    tags: BTreeMap<String, String>,
    #[serde(default)]
    side_data_list: Vec<SideData>,
}

#[derive(Deserialize)]
struct SideData {
    displaymatrix: Option<String>,
    dv_profile: Option<u8>,
}

/// Reads an answer to `-show_format -show_streams -of json` about a file of `size` bytes.
pub(crate) fn facts(answer: &[u8], size: u64) -> Result<Facts, serde_json::Error> {
    let mut answer: Answer = serde_json::from_slice(answer)?;
    answer.streams.truncate(MAX_STREAMS);
    let mut streams: Vec<Stream> = answer.streams.iter().map(stream).collect();
    mark_stills(&mut streams);
    let start = streams
        .iter()
        .filter(|s| s.audio().is_some() || s.video().is_some_and(|v| !v.still))
        .filter_map(|s| s.start)
        .min()
        .unwrap_or_default();
    let duration = time(answer.format.duration.as_ref()).filter(|d| *d > Ticks::ZERO);
    let mut facts = Facts {
        container: container(&answer.format.format_name),
        size,
        duration,
        start,
        streams,
        keyframes: None,
        source: FactsSource::Ffprobe,
        gaps: Vec::new(),
    };
    if duration.is_none() {
        facts.gaps.push(Gap::Duration);
    }
    if facts.main_video().is_some() {
        facts.gaps.push(Gap::Keyframes {
            reason: "the container has no index that is read natively".into(),
        });
    }
    let unconfigured = facts.streams.iter().filter(|s| match &s.kind {
        StreamKind::Video(video) => video.width == 0 || video.height == 0,
        StreamKind::Audio(audio) => audio.sample_rate.is_none() || audio.channels.is_none(),
        _ => false,
    });
    let unconfigured: Vec<Gap> = unconfigured
        .map(|s| Gap::CodecConfig { index: s.index })
        .collect();
    facts.gaps.extend(unconfigured);
    Ok(facts)
}

fn container(names: &str) -> Container {
    let first = names.split(',').next().unwrap_or("");
    match first {
        "mov" => Container::Mp4,
        "matroska" => Container::Matroska,
        "mpegts" => Container::MpegTs,
        other => Container::Other(other.to_owned()),
    }
}

fn stream(raw: &RawStream) -> Stream {
    let flag = |name: &str| raw.disposition.get(name).is_some_and(|v| *v != 0);
    let tag = |name: &str| {
        let found = raw.tags.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found
            .map(|(_, value)| value.chars().take(TEXT).collect())
            .filter(|v: &String| !v.is_empty())
    };
    let codec = Codec::from(raw.codec_name.clone().unwrap_or_else(|| "unknown".into()));
    Stream {
        index: raw.index,
        codec,
        codec_string: None,
        language: tag("language").filter(|l| l != "und"),
        title: tag("title"),
        default: flag("default"),
        forced: flag("forced"),
        start: time(raw.start_time.as_ref()),
        duration: time(raw.duration.as_ref()).filter(|d| *d > Ticks::ZERO),
        bit_rate: number(raw.bit_rate.as_ref()),
        kind: kind(raw, &flag),
    }
}

fn kind(raw: &RawStream, flag: &dyn Fn(&str) -> bool) -> StreamKind {
    match raw.codec_type.as_str() {
        "video" => StreamKind::Video(video(raw, flag("attached_pic"))),
        "audio" => StreamKind::Audio(AudioFacts {
            sample_rate: number(raw.sample_rate.as_ref()),
            channels: raw.channels.filter(|c| *c > 0),
            layout: known(raw.channel_layout.as_ref()).map(str::to_owned),
            profile: known(raw.profile.as_ref()).and_then(aac_profile),
        }),
        "subtitle" => StreamKind::Subtitle(SubtitleFacts {
            text: raw.codec_name.as_deref().is_some_and(is_text),
            hearing_impaired: flag("hearing_impaired"),
        }),
        "attachment" => StreamKind::Attachment,
        _ => StreamKind::Data,
    }
}

fn video(raw: &RawStream, still: bool) -> VideoFacts {
    let format = known(raw.pix_fmt.as_ref()).unwrap_or("");
    VideoFacts {
        still,
        width: raw.width.unwrap_or(0),
        height: raw.height.unwrap_or(0),
        sample_aspect: ratio(raw.sample_aspect_ratio.as_ref(), ':'),
        rotation: raw
            .side_data_list
            .iter()
            .find_map(|side| side.displaymatrix.as_deref().and_then(rotation))
            .unwrap_or_default(),
        frame_rate: ratio(raw.r_frame_rate.as_ref(), '/')
            .filter(|r| (0.1..=300.0).contains(&r.as_f64()))
            .filter(|_| !still),
        field_order: match raw.field_order.as_deref() {
            Some("progressive") => Some(FieldOrder::Progressive),
            // FFmpeg writes "tb" and "bt" for fields that are stored line by line, the earlier one first.
            Some("tt" | "tb") => Some(FieldOrder::TopFirst),
            Some("bb" | "bt") => Some(FieldOrder::BottomFirst),
            _ => None,
        },
        bit_depth: bit_depth(format),
        chroma: chroma(format),
        color: Color {
            primaries: known(raw.color_primaries.as_ref()).and_then(primaries),
            transfer: known(raw.color_transfer.as_ref()).and_then(transfer),
            matrix: known(raw.color_space.as_ref()).and_then(matrix),
            full_range: match raw.color_range.as_deref() {
                Some("tv") => Some(false),
                Some("pc") => Some(true),
                _ => None,
            },
        },
        profile: None,
        level: raw.level.and_then(|l| u32::try_from(l).ok()),
        reorder: raw.has_b_frames,
        dolby_vision: raw.side_data_list.iter().find_map(|side| side.dv_profile),
    }
}

/// A picture codec beside a real film is a cover, flagged or not.
fn mark_stills(streams: &mut [Stream]) {
    let picture = |s: &Stream| matches!(s.codec.as_str(), "mjpeg" | "png" | "bmp" | "webp" | "gif");
    let film = streams
        .iter()
        .any(|s| s.video().is_some_and(|v| !v.still) && !picture(s));
    for stream in streams.iter_mut().filter(|s| film && picture(s)) {
        if let StreamKind::Video(video) = &mut stream.kind {
            video.still = true;
        }
    }
}

/// A value that is there and does not say it is unknown.
fn known(text: Option<&String>) -> Option<&str> {
    text.map(String::as_str)
        .filter(|t| !matches!(*t, "" | "unknown" | "N/A" | "und" | "reserved"))
}

fn number<T: std::str::FromStr>(text: Option<&String>) -> Option<T> {
    known(text)?.parse().ok()
}

fn time(text: Option<&String>) -> Option<Ticks> {
    let seconds: f64 = number(text)?;
    (seconds.abs() < 1e10).then(|| Ticks::from_secs_f64(seconds))
}

fn ratio(text: Option<&String>, separator: char) -> Option<Rational> {
    let (num, den) = known(text)?.split_once(separator)?;
    let (num, den) = (num.parse().ok()?, den.parse().ok()?);
    (num > 0 && den > 0).then_some(Rational { num, den })
}

/// The matrix as it is printed: three lines of an offset and three numbers in 16.16.
fn rotation(matrix: &str) -> Option<Rotation> {
    let rows: Vec<Vec<f64>> = matrix
        .lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(_, cells)| {
            cells
                .split_whitespace()
                .filter_map(|cell| cell.parse().ok())
                .collect()
        })
        .collect();
    let cell = |row: usize, column: usize| rows.get(row)?.get(column).copied();
    Some(Rotation::from_matrix(
        cell(0, 0)?,
        cell(0, 1)?,
        cell(1, 0)?,
        cell(1, 1)?,
    ))
}

/// The depth in a pixel format's name: its digits before the byte order.
fn bit_depth(format: &str) -> Option<u8> {
    if format.is_empty() {
        return None;
    }
    let stem = format.trim_end_matches("le").trim_end_matches("be");
    for (suffix, depth) in [("p9", 9), ("p10", 10), ("p12", 12), ("p14", 14), ("p16", 16)] {
        if stem.ends_with(suffix) {
            return Some(depth);
        }
    }
    match stem {
        "p010" | "gray10" | "v210" => Some(10),
        "p012" | "gray12" => Some(12),
        "gray16" | "rgb48" | "rgba64" | "p016" => Some(16),
        _ => Some(8),
    }
}

fn chroma(format: &str) -> Option<ChromaSampling> {
    let has = |part: &str| format.contains(part);
    if has("420p") || matches!(format, "nv12" | "nv21" | "p010le") {
        Some(ChromaSampling::Yuv420)
    } else if has("422") {
        Some(ChromaSampling::Yuv422)
    } else if has("444") || has("rgb") || has("gbr") || has("bgr") {
        Some(ChromaSampling::Yuv444)
    } else if has("gray") {
        Some(ChromaSampling::Mono)
    } else {
        None
    }
}

fn is_text(codec: &str) -> bool {
    matches!(
        codec,
        "subrip"
            | "srt"
            | "ass"
            | "ssa"
            | "webvtt"
            | "mov_text"
            | "text"
            | "ttml"
            | "eia_608"
            | "microdvd"
            | "sami"
    )
}

fn aac_profile(name: &str) -> Option<u32> {
    Some(match name {
        "Main" => 1,
        "LC" => 2,
        "SSR" => 3,
        "LTP" => 4,
        "HE-AAC" => 5,
        "HE-AACv2" => 29,
        _ => return None,
    })
}

fn primaries(name: &str) -> Option<u8> {
    Some(match name {
        "bt709" => 1,
        "bt470m" => 4,
        "bt470bg" => 5,
        "smpte170m" => 6,
        "smpte240m" => 7,
        "film" => 8,
        "bt2020" => 9,
        "smpte428" => 10,
        "smpte431" => 11,
        "smpte432" => 12,
        "ebu3213" => 22,
        _ => return None,
    })
}

fn transfer(name: &str) -> Option<u8> {
    Some(match name {
        "bt709" => 1,
        "bt470m" => 4,
        "bt470bg" => 5,
        "smpte170m" => 6,
        "smpte240m" => 7,
        "linear" => 8,
        "log100" => 9,
        "log316" => 10,
        "iec61966-2-4" => 11,
        "bt1361e" => 12,
        "iec61966-2-1" => 13,
        "bt2020-10" => 14,
        "bt2020-12" => 15,
        "smpte2084" => 16,
        "smpte428" => 17,
        "arib-std-b67" => 18,
        _ => return None,
    })
}

fn matrix(name: &str) -> Option<u8> {
    Some(match name {
        "gbr" => 0,
        "bt709" => 1,
        "fcc" => 4,
        "bt470bg" => 5,
        "smpte170m" => 6,
        "smpte240m" => 7,
        "ycgco" => 8,
        "bt2020nc" => 9,
        "bt2020c" => 10,
        "smpte2085" => 11,
        "ictcp" => 14,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(streams: &str) -> Facts {
        let text = format!(r#"{{"streams":[{streams}],"format":{{"format_name":"avi","duration":"2.5"}}}}"#);
        facts(text.as_bytes(), 7).unwrap()
    }

    #[test]
    fn what_says_unknown_in_any_way_is_absent() {
        let facts = read(
            r#"{"index":0,"codec_type":"video","codec_name":"mpeg4","width":64,"height":48,"level":-99,
               "sample_aspect_ratio":"0:1","r_frame_rate":"90000/1","start_time":"N/A","duration":"0.0",
               "color_space":"unknown","color_transfer":"reserved","field_order":"unknown"}"#,
        );
        let stream = &facts.streams[0];
        let video = stream.video().unwrap();
        assert_eq!((stream.start, stream.duration), (None, None));
        assert_eq!(
            (video.level, video.sample_aspect, video.frame_rate),
            (None, None, None)
        );
        assert_eq!((video.field_order, video.color), (None, Color::default()));
    }

    #[test]
    fn a_display_matrix_turns_the_picture_clockwise() {
        let matrix = |rows: &str| {
            let side =
                format!(r#"{{"side_data_type":"Display Matrix","displaymatrix":"{rows}","rotation":-90}}"#);
            let facts = read(&format!(
                r#"{{"index":0,"codec_type":"video","codec_name":"h264","width":4,"height":2,"side_data_list":[{side}]}}"#
            ));
            facts.streams[0].video().unwrap().rotation
        };
        let right = matrix(
            r"\n00000000:            0       65536           0\n00000001:       -65536           0           0\n00000002:            0           0  1073741824\n",
        );
        assert_eq!((right.degrees, right.mirrored), (90, false));
        let transposed = matrix(
            r"\n00000000:            0       65536           0\n00000001:        65536           0           0\n00000002:            0           0  1073741824\n",
        );
        assert_eq!((transposed.degrees, transposed.mirrored), (270, true));
    }

    #[test]
    fn a_cover_is_still_whether_it_is_flagged_or_muxed_as_a_track() {
        let cover = r#"{"index":0,"codec_type":"video","codec_name":"png","width":9,"height":9}"#;
        let film = r#"{"index":1,"codec_type":"video","codec_name":"mpeg4","width":64,"height":48}"#;
        let facts = read(&format!("{cover},{film}"));
        assert_eq!(facts.main_video().map(|s| s.index), Some(1));
        // Motion JPEG by itself is a film.
        let facts = read(&cover.replace("png", "mjpeg"));
        assert!(facts.main_video().is_some());
        let flagged = cover.replace("\"png\"", "\"png\",\"disposition\":{\"attached_pic\":1}");
        assert!(read(&flagged).main_video().is_none());
    }

    #[test]
    fn hostile_answers_are_errors_or_facts_and_never_a_panic() {
        for text in [
            "",
            "{}",
            "[]",
            r#"{"format":{}}"#,
            r#"{"streams":[{}],"format":{}}"#,
        ] {
            let _ = facts(text.as_bytes(), 0);
        }
        let facts = read(
            r#"{"index":4294967295,"codec_type":"audio","sample_rate":"-1","channels":0,"start_time":"1e300"}"#,
        );
        assert_eq!(facts.streams[0].start, None);
        assert_eq!(facts.gaps, [Gap::CodecConfig { index: u32::MAX }]);
    }
}
