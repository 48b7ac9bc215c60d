//! With which arguments FFmpeg gives text, and what it is given.

use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use ether_encoder::Revision;
use ether_media::subtitles::{Track, webvtt};
use ether_process::{Bounds, Spec};
use tokio::sync::Semaphore;

use super::matroska::{self, Event};
use super::{Film, SubtitleError, Tools, encoding, failed};
use crate::origin::protocols;

/// Seconds that FFmpeg adds to every time, so that none is negative, which Matroska cannot say.
pub(super) const SHIFT_SECONDS: i64 = 3_600;
/// Most bytes of a subtitle file.
const LARGEST_SIDECAR: usize = 16 << 20;
/// Most bytes that FFmpeg may make of one.
const LARGEST_TEXT: usize = 64 << 20;
/// How long that may take.
const SIDECAR_DEADLINE: Duration = Duration::from_secs(20);

/// A subtitle file that lies beside a film.
#[derive(Clone, Debug)]
pub struct Sidecar {
    /// Its content.
    pub bytes: Bytes,
    /// Its state.
    pub revision: Revision,
    /// The suffix of its name, in lower case.
    pub suffix: String,
}

/// Whether tracks of `codec` can be read as text.
pub(super) fn reads(codec: &str) -> bool {
    matches!(
        codec,
        "subrip"
            | "srt"
            | "ass"
            | "ssa"
            | "webvtt"
            | "mov_text"
            | "text"
            | "eia_608"
            | "microdvd"
            | "sami"
            | "realtext"
            | "subviewer"
            | "subviewer1"
            | "jacosub"
            | "pjs"
            | "vplayer"
            | "stl"
            | "mpl2"
    )
}

/// Whether tracks of `codec` are scripts, whose lines are taken as they are.
pub(super) fn is_script(codec: &str) -> bool {
    matches!(codec, "ass" | "ssa")
}

fn command(program: &Path) -> Spec {
    let mut spec = Spec::new(program);
    spec.args(["-hide_banner", "-nostdin", "-nostats", "-loglevel", "error"])
        .nice(10)
        .oom_score_adj(500);
    spec
}

fn outputs(spec: &mut Spec, copied: impl Iterator<Item = bool>) {
    for (n, copy) in copied.enumerate() {
        let codec = if copy { "copy" } else { "ass" };
        spec.args([format!("-c:s:{n}"), codec.to_owned()]);
    }
    spec.args([
        "-map_metadata",
        "-1",
        "-map_chapters",
        "-1",
        "-avoid_negative_ts",
        "disabled",
    ])
    .args(["-output_ts_offset", &SHIFT_SECONDS.to_string()])
    // Lines of one track do not wait for those of another.
    .args(["-max_interleave_delta", "1", "-flush_packets", "1"])
    .args([
        "-f",
        "matroska",
        "-live",
        "1",
        "-cluster_time_limit",
        "100",
        "pipe:1",
    ]);
}

/// One reading of `streams` of a film, each by its index and its codec.
pub(super) fn tracks(program: &Path, film: &Film, streams: &[(u32, String)]) -> Spec {
    let mut spec = command(program);
    let name = film.origin().name();
    spec.args(["-copyts", "-protocol_whitelist", protocols(&name), "-i"])
        .arg(name);
    for (index, _) in streams {
        spec.args(["-map".to_owned(), format!("0:{index}")]);
    }
    // WebVTT is taken as it is too: converting it would lose where its cues stand.
    outputs(
        &mut spec,
        streams
            .iter()
            .map(|(_, codec)| is_script(codec) || codec == "webvtt"),
    );
    spec.stdout_pipe();
    spec.redact(film.origin().redactor());
    spec
}

/// The file that is attached as stream `index`. FFmpeg gives it out as it opens the film.
pub(super) fn font(program: &Path, film: &Film, index: u32) -> Spec {
    let mut spec = command(program);
    let name = film.origin().name();
    spec.args(["-protocol_whitelist", protocols(&name)])
        .args([format!("-dump_attachment:{index}"), "pipe:1".to_owned()])
        .args(["-t", "0", "-i"])
        .arg(name)
        .args(["-f", "ffmetadata", "-y", "/dev/null"]);
    spec.redact(film.origin().redactor());
    spec
}

/// Reads a subtitle file: WebVTT by itself, all else through FFmpeg, as UTF-8.
pub(super) async fn sidecar(
    tools: &Tools,
    turns: &Semaphore,
    sidecar: &Sidecar,
) -> Result<Track, SubtitleError> {
    if sidecar.bytes.len() > LARGEST_SIDECAR {
        return Err(SubtitleError::TooMuch);
    }
    let text = encoding::text(&sidecar.bytes);
    if sidecar.suffix == "vtt" || text.trim_start_matches('\u{feff}').starts_with("WEBVTT") {
        return Ok(webvtt::read(&text));
    }
    let format = format(&sidecar.suffix, &text).ok_or_else(|| SubtitleError::Unreadable {
        codec: sidecar.suffix.clone(),
    })?;
    let script = is_script(format);
    let mut spec = command(&tools.program);
    spec.args([
        "-protocol_whitelist",
        "pipe",
        "-f",
        format,
        "-i",
        "pipe:0",
        "-map",
        "0:s:0",
    ]);
    outputs(&mut spec, std::iter::once(script));
    let bounds = Bounds {
        stdin: Some(text.into_owned().into_bytes()),
        max_output: LARGEST_TEXT,
        deadline: SIDECAR_DEADLINE,
    };
    let _turn = turns.acquire().await.map_err(|_| SubtitleError::Closing)?;
    let output = tools.spawner.run_bounded(spec, bounds).await.map_err(failed)?;
    let mut track = Track::default();
    matroska::read(
        &output.stdout[..],
        |_| script,
        |event| {
            match event {
                Event::Track { form, .. } => track.form = form,
                Event::Line { line, .. } => track.lines.push(shifted(matroska::formed(line, &track.form))),
            }
            true
        },
    )
    .map_err(|_| SubtitleError::Failed)?;
    Ok(track)
}

/// A line on its source's own clock.
pub(super) fn shifted(mut line: ether_media::subtitles::Line) -> ether_media::subtitles::Line {
    let shift = ether_media::Ticks(SHIFT_SECONDS * ether_media::Ticks::HZ);
    line.start = line.start - shift;
    line.end = line.end.map(|end| end - shift);
    line
}

/// FFmpeg's name of the format that files of this suffix have.
fn format(suffix: &str, text: &str) -> Option<&'static str> {
    match suffix {
        "srt" => Some("srt"),
        "ass" | "ssa" => Some("ass"),
        "smi" => Some("sami"),
        "sub" if text.trim_start().starts_with('{') => Some("microdvd"),
        "sub" => Some("subviewer"),
        _ => None,
    }
}
