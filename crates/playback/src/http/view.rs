//! How things look in JSON.

use ether_media::decision::{AudioAction, AudioDecision, Decision, Mode, Reason, VideoAction, VideoDecision};
use ether_media::{Container, MasteringKind, Stream, StreamKind};
use serde::Serialize;
use serde_json::{Value, json};

use super::auth::grant_of;
use super::error::ApiError;
use super::subtitles;
use crate::part::Part;
use crate::playback::Playback;
use crate::ports::{
    Capacity, CapacityUsage, FolderState, FolderStatus, ItemDetail, ItemSummary, Listing, Problem,
    ScanProgress,
};

/// One item of a list.
#[derive(Serialize)]
struct ItemView<'a> {
    #[serde(flatten)]
    summary: &'a ItemSummary,
    picture: Option<String>,
}

/// A list of items.
#[derive(Serialize)]
pub(super) struct ListingView<'a> {
    items: Vec<ItemView<'a>>,
    /// What to ask for after, where there may be more.
    next: Option<&'a str>,
    scanning: bool,
    progress: ScanProgress,
    folders: Vec<FolderView<'a>>,
    problems: &'a [Problem],
}

/// How a folder is doing. Where it lies on the server's disks is the owner's alone to know.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FolderView<'a> {
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<&'a str>,
    state: FolderState,
    reason: Option<&'a str>,
}

pub(super) fn listing(listing: &Listing, limit: usize, owner: bool) -> ListingView<'_> {
    let full = listing.items.len() >= limit;
    ListingView {
        items: listing.items.iter().map(summary).collect(),
        next: listing.items.last().filter(|_| full).map(|item| item.id.as_str()),
        scanning: listing.scanning,
        progress: listing.progress,
        folders: listing
            .folders
            .iter()
            .map(|status| folder(status, owner))
            .collect(),
        problems: &listing.problems,
    }
}

fn folder(status: &FolderStatus, owner: bool) -> FolderView<'_> {
    FolderView {
        name: &status.name,
        path: owner.then_some(&*status.path),
        state: status.state,
        reason: status.reason.as_deref(),
    }
}

fn summary(summary: &ItemSummary) -> ItemView<'_> {
    let picture = summary
        .has_picture
        .then(|| format!("/ether/api/items/{}/picture", summary.id));
    ItemView { summary, picture }
}

/// Writing JSON of our own types cannot fail; this is what a client would be told if it did.
pub(super) fn unwritable() -> ApiError {
    ApiError::internal("the answer could not be written")
}

pub(super) fn item(detail: &ItemDetail) -> Value {
    let mut value = serde_json::to_value(summary(&detail.summary)).unwrap_or_default();
    let streams: Vec<Value> = detail.facts.streams.iter().map(stream).collect();
    if let Value::Object(fields) = &mut value {
        fields.insert("streams".into(), Value::Array(streams));
        fields.insert("container".into(), json!(container(&detail.facts.container)));
        fields.insert("size".into(), json!(detail.revision.size));
        fields.insert("direct".into(), json!(Part::of(detail).url()));
        fields.insert("gaps".into(), json!(detail.facts.gaps));
        fields.insert("subtitles".into(), Value::Array(subtitle_tracks(detail)));
    }
    value
}

/// Every subtitle track of an item, in its file and beside it.
fn subtitle_tracks(detail: &ItemDetail) -> Vec<Value> {
    let embedded = detail.facts.streams.iter().filter_map(|stream| {
        let StreamKind::Subtitle(subtitle) = &stream.kind else {
            return None;
        };
        Some(json!({
            "stream": stream.index,
            "language": stream.language,
            "title": stream.title,
            "default": stream.default,
            "forced": stream.forced,
            "hearingImpaired": subtitle.hearing_impaired,
            "external": false,
            "text": subtitle.text,
        }))
    });
    let beside = detail.sidecars.iter().map(|sidecar| {
        json!({
            "stream": sidecar.stream,
            "language": sidecar.language,
            "title": sidecar.title,
            "default": false,
            "forced": sidecar.forced,
            "hearingImpaired": sidecar.hearing_impaired,
            "external": true,
            "text": true,
        })
    });
    embedded.chain(beside).collect()
}

fn stream(stream: &Stream) -> Value {
    let mut value = json!({
        "index": stream.index,
        "codec": stream.codec.as_str(),
        "codecString": stream.codec_string,
        "language": stream.language,
        "title": stream.title,
        "default": stream.default,
        "forced": stream.forced,
        "bitRate": stream.bit_rate,
    });
    let more = match &stream.kind {
        StreamKind::Video(video) => json!({
            "kind": "video",
            "width": video.width,
            "height": video.height,
            "frameRate": video.frame_rate.map(|rate| rate.as_f64()),
            "hdr": video.color.mastering() != MasteringKind::Sdr,
            "still": video.still,
            "rotation": video.rotation.degrees,
            "bitDepth": video.bit_depth,
        }),
        StreamKind::Audio(audio) => json!({
            "kind": "audio",
            "channels": audio.channels,
            "layout": audio.layout,
            "sampleRate": audio.sample_rate,
        }),
        StreamKind::Subtitle(subtitle) => json!({
            "kind": "subtitle",
            "text": subtitle.text,
            "hearingImpaired": subtitle.hearing_impaired,
        }),
        StreamKind::Attachment => json!({"kind": "attachment"}),
        StreamKind::Data => json!({"kind": "data"}),
    };
    if let (Value::Object(value), Value::Object(more)) = (&mut value, more) {
        value.extend(more);
    }
    value
}

fn container(container: &Container) -> &str {
    match container {
        Container::Mp4 => "mp4",
        Container::Matroska => "matroska",
        Container::Webm => "webm",
        Container::MpegTs => "mpegts",
        Container::Other(name) => name,
    }
}

pub(super) fn created(playback: &Playback) -> Value {
    let url = &playback.edition().url;
    let (subtitles, fonts) = subtitles::listed(playback, grant_of(url.split_once('?').map(|at| at.1)));
    json!({
        "subtitles": subtitles,
        "fonts": fonts,
        "id": playback.id(),
        "url": url,
        "expiresAt": playback.expires_at(),
        "decision": decision(playback),
        "durationMs": playback.plan().decision.timeline.end().as_millis(),
        "segments": playback.plan().segments(),
    })
}

pub(super) fn capacity(capacity: &dyn Capacity) -> Value {
    let CapacityUsage {
        used,
        limit,
        waiting,
        open,
    } = capacity.usage();
    json!({
        "used": used,
        "limit": limit,
        "waiting": waiting,
        "open": open,
        "budgets": capacity.budgets(),
    })
}

pub(super) fn session(playback: &Playback) -> Value {
    let report = playback.report();
    let ended = report
        .ended
        .map(|reason| json!({"code": reason, "message": reason.to_string()}));
    let (subtitles, fonts) = subtitles::listed(playback, None);
    json!({
        "subtitles": subtitles,
        "fonts": fonts,
        "id": playback.id(),
        "epoch": playback.edition().epoch,
        "item": playback.item(),
        "title": playback.item.summary.title,
        "state": report.stage,
        "viewer": report.viewer,
        "createdAt": playback.created_at,
        "expiresAt": playback.expires_at(),
        "durationMs": playback.plan().decision.timeline.end().as_millis(),
        "segments": playback.plan().segments(),
        "startMs": playback.plan().start.as_millis(),
        "decision": decision(playback),
        "charged": report.charged,
        "viewers": report.viewers,
        "unproved": report.unproved,
        "encoding": report.encoding,
        "encoder": report.encoder,
        "failure": report.failure,
        "refusals": report.refusals,
        "ended": ended,
        "log": report.log,
    })
}

fn decision(playback: &Playback) -> Value {
    let decision: &Decision = &playback.plan().decision;
    let container = match (decision.segments, decision.protocol) {
        (Some(segments), _) => json!(segments),
        (None, Some(_)) => json!("matroska"),
        (None, None) => json!(container(&playback.item.facts.container)),
    };
    json!({
        "mode": decision.mode,
        "protocol": decision.protocol,
        "container": container,
        "video": decision.video.as_ref().map(|video| picture(video, decision.mode)),
        "qualities": qualities(decision),
        "audio": decision.audio.as_ref().map(|audio| sound(audio, decision.mode)),
        "sounds": decision.sounds().map(|audio| sound(audio, decision.mode)).collect::<Vec<_>>(),
        "reasons": reasons(&decision.reasons),
    })
}

fn picture(video: &VideoDecision, mode: Mode) -> Value {
    let action = match (&video.action, mode) {
        (_, Mode::Direct) => "direct",
        (VideoAction::Copy, _) => "copy",
        (VideoAction::Encode(_), _) => "encode",
    };
    json!({
        "stream": video.stream,
        "action": action,
        "codec": video.codec.as_str(),
        "codecString": video.codec_string,
        "width": video.shown.0,
        "height": video.shown.1,
        "bitRate": video.rate.peak,
        "hdr": video.range != MasteringKind::Sdr,
        "reasons": reasons(&video.reasons),
    })
}

/// Every quality of the picture, from the best down: what a player can switch between.
fn qualities(decision: &Decision) -> Vec<Value> {
    let quality = |(width, height): (u32, u32), codec_string: Option<&str>, peak: u64| json!({"width": width, "height": height, "codecString": codec_string, "bitRate": peak});
    let best = decision
        .video
        .iter()
        .map(|video| quality(video.shown, video.codec_string.as_deref(), video.rate.peak));
    let lower = decision.lower.iter().map(|lower| {
        let size = (lower.target.width, lower.target.height);
        quality(size, Some(&lower.codec_string), lower.rate.peak)
    });
    best.chain(lower).collect()
}

fn sound(audio: &AudioDecision, mode: Mode) -> Value {
    let action = match (&audio.action, mode) {
        (_, Mode::Direct) => "direct",
        (AudioAction::Copy, _) => "copy",
        (AudioAction::Encode(_), _) => "encode",
    };
    json!({
        "stream": audio.stream,
        "action": action,
        "codec": audio.codec.as_str(),
        "codecString": audio.codec_string,
        "channels": audio.channels,
        "reasons": reasons(&audio.reasons),
    })
}

fn reasons(reasons: &[Reason]) -> Vec<Value> {
    reasons
        .iter()
        .map(|reason| json!({"code": reason.code(), "text": reason.to_string()}))
        .collect()
}
