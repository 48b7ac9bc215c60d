//! Sessions, as playbacks are called in public: asked for, looked at, told what the viewer does, ended.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use ether_media::Ticks;
use ether_media::decision::{
    AudioChoice, AudioSupport, Client, Force, MIN_BIT_RATE, SegmentKind, VideoSupport, Wishes,
};
use ether_types::{ItemId, OperationId, PlaybackId};
use http::header::LOCATION;
use http::{HeaderMap, StatusCode};
use serde::Deserialize;
use serde_json::json;

use super::App;
use super::auth::{Body, Known};
use super::error::ApiError;
use super::resource::set;
use super::view;
use crate::auth::Principal;
use crate::lifecycle::{EndReason, ViewerState};
use crate::playback::Playback;
use crate::playbacks::NewPlayback;
use crate::ports::{LibraryError, Position};

/// Entries that a player may list of each kind, and their length.
const MOST_LISTED: usize = 64;
const LONGEST_ENTRY: usize = 128;
/// Longest offset in seconds: a week.
const LONGEST_OFFSET: f64 = 7.0 * 24.0 * 3600.0;
/// Smallest height that may be asked for.
const MIN_HEIGHT: u32 = 16;

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct CreateBody {
    item: String,
    protocol: Option<String>,
    offset_ms: Option<f64>,
    offset: Option<f64>,
    max_bitrate: Option<u64>,
    max_height: Option<u32>,
    audio: Option<i64>,
    subtitle: Option<i64>,
    segment_seconds: Option<f64>,
    container: Option<String>,
    video: Option<String>,
    client: Option<ClientBody>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct ClientBody {
    video: Option<Vec<String>>,
    audio: Option<Vec<String>>,
    containers: Option<Vec<String>>,
    #[serde(default)]
    hdr: bool,
    max_height: Option<u32>,
    audio_channels: Option<u16>,
}

pub(super) async fn create(
    State(app): State<Arc<App>>,
    Known(principal): Known,
    headers: HeaderMap,
    Body(body): Body<CreateBody>,
) -> Result<Response, ApiError> {
    let operation = match headers.get("idempotency-key") {
        None => None,
        Some(key) => {
            let key = key.to_str().ok().and_then(|key| OperationId::new(key).ok());
            Some(key.ok_or_else(|| {
                ApiError::malformed("Idempotency-Key has 1 to 128 letters, digits, '-', '_' and '.'")
            })?)
        }
    };
    let wish = body.wish()?;
    let playback = app.playbacks.create(&principal, wish, operation).await?;
    let mut response = (StatusCode::CREATED, Json(view::created(&playback))).into_response();
    set(
        response.headers_mut(),
        LOCATION,
        &format!("/ether/api/sessions/{}", playback.id()),
    );
    Ok(response)
}

impl CreateBody {
    fn wish(self) -> Result<NewPlayback, ApiError> {
        let item = ItemId::new(&self.item).map_err(|_| LibraryError::NoSuchItem)?;
        not_yet(self.protocol.as_deref(), self.subtitle)?;
        let defaults = Wishes::default();
        let segments = match self.container.as_deref() {
            None => None,
            Some("fmp4" | "mp4") => Some(SegmentKind::Fmp4),
            Some("ts" | "mpegts") => Some(SegmentKind::MpegTs),
            Some(_) => return Err(ApiError::malformed("container is fmp4 or ts")),
        };
        let target = match self.segment_seconds {
            None => None,
            Some(seconds) if (1.0..=15.0).contains(&seconds) => Some(Ticks::from_secs_f64(seconds)),
            Some(_) => return Err(ApiError::malformed("segmentSeconds is 1 to 15")),
        };
        let video = match self.video.as_deref() {
            None | Some("auto") => Force::Auto,
            Some("copy") => Force::Copy,
            Some("encode") => Force::Encode,
            Some(_) => return Err(ApiError::malformed("video is auto, copy or encode")),
        };
        let audio = match self.audio {
            None => AudioChoice::Main,
            Some(-1) => AudioChoice::Silent,
            Some(index) => AudioChoice::Stream(
                u32::try_from(index)
                    .map_err(|_| ApiError::malformed("audio is a stream's index, or -1 for none"))?,
            ),
        };
        if self.max_bitrate.is_some_and(|rate| rate < MIN_BIT_RATE) {
            return Err(ApiError::malformed("maxBitrate is at least 64000 bits a second"));
        }
        if self.max_height.is_some_and(|height| height < MIN_HEIGHT) {
            return Err(ApiError::malformed("maxHeight is at least 16"));
        }
        let start = match (self.offset_ms, self.offset) {
            (Some(millis), _) => millis / 1_000.0,
            (None, Some(seconds)) => seconds,
            (None, None) => 0.0,
        };
        if !(0.0..=LONGEST_OFFSET).contains(&start) {
            return Err(ApiError::malformed(
                "an offset is neither negative nor more than a week",
            ));
        }
        // Whoever says how segments are to be, or what is to be done to the picture, wants segments.
        let direct = segments.is_none() && target.is_none() && video == Force::Auto;
        Ok(NewPlayback {
            item,
            start: Ticks::from_secs_f64(start),
            client: match self.client {
                Some(client) => client.client()?,
                None => Client::default(),
            },
            wishes: Wishes {
                target: target.unwrap_or(defaults.target),
                max_bit_rate: self.max_bitrate,
                max_height: self.max_height,
                video,
                audio,
                segments: segments.unwrap_or(defaults.segments),
                direct,
            },
        })
    }
}

/// What is offered by other protocols and with subtitles is offered later, and said to be missing until then.
fn not_yet(protocol: Option<&str>, subtitle: Option<i64>) -> Result<(), ApiError> {
    match protocol {
        None | Some("hls" | "*") => {}
        Some("dash" | "http") => {
            return Err(ApiError::new(
                StatusCode::NOT_IMPLEMENTED,
                "protocol_not_offered",
                "this server does not offer that protocol yet; ask for hls",
            ));
        }
        Some(_) => return Err(ApiError::malformed("protocol is hls")),
    }
    if subtitle.is_some_and(|index| index != -1) {
        return Err(ApiError::new(
            StatusCode::NOT_IMPLEMENTED,
            "subtitles_not_offered",
            "this server does not offer subtitles yet",
        ));
    }
    Ok(())
}

impl ClientBody {
    fn client(self) -> Result<Client, ApiError> {
        let defaults = Client::default();
        let bounded = |list: Option<Vec<String>>| match list {
            Some(list)
                if list.len() > MOST_LISTED || list.iter().any(|entry| entry.len() > LONGEST_ENTRY) =>
            {
                Err(ApiError::malformed(
                    "a list of what a player plays has at most 64 entries of 128 characters",
                ))
            }
            list => Ok(list),
        };
        let (video, audio, containers) = (
            bounded(self.video)?,
            bounded(self.audio)?,
            bounded(self.containers)?,
        );
        let containers = containers.unwrap_or_default();
        Ok(Client {
            video: video.map_or(defaults.video, |list| {
                list.iter()
                    .filter_map(|entry| VideoSupport::parse(entry))
                    .collect()
            }),
            audio: audio.map_or(defaults.audio, |list| {
                list.iter()
                    .filter_map(|entry| AudioSupport::parse(entry))
                    .collect()
            }),
            containers: containers.iter().map(|name| Client::container(name)).collect(),
            hdr: self.hdr,
            max_height: self.max_height.filter(|height| *height >= MIN_HEIGHT),
            audio_channels: self.audio_channels.unwrap_or(defaults.audio_channels),
        })
    }
}

pub(super) async fn list(State(app): State<Arc<App>>, Known(principal): Known) -> Result<Response, ApiError> {
    let sessions = app.playbacks.list(&principal);
    let sessions: Vec<_> = sessions.iter().map(|playback| view::session(playback)).collect();
    let capacity = app.playbacks.capacity().usage();
    Ok(Json(json!({"sessions": sessions, "capacity": capacity})).into_response())
}

fn find(app: &App, id: &str, principal: &Principal) -> Result<Arc<Playback>, ApiError> {
    let id = PlaybackId::new(id).map_err(|_| ApiError::no_session())?;
    app.playbacks
        .visible(&id, principal)
        .ok_or_else(ApiError::no_session)
}

pub(super) async fn one(
    State(app): State<Arc<App>>,
    Known(principal): Known,
    Path(id): Path<String>,
) -> Result<Response, ApiError> {
    let playback = find(&app, &id, &principal)?;
    Ok(Json(view::session(&playback)).into_response())
}

pub(super) async fn end(
    State(app): State<Arc<App>>,
    Known(principal): Known,
    Path(id): Path<String>,
) -> Result<StatusCode, ApiError> {
    let playback = find(&app, &id, &principal)?;
    stop(&app, &playback).await;
    Ok(StatusCode::NO_CONTENT)
}

/// Ends the playback at once, and waits a while for proof that its encoder is gone.
async fn stop(app: &App, playback: &Playback) {
    tokio::select! {
        biased;
        () = playback.end(EndReason::Stopped) => {}
        () = app.clock.sleep(app.playbacks.limits().hold) => {}
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StateBody {
    state: String,
    position_ms: Option<f64>,
}

pub(super) async fn state(
    State(app): State<Arc<App>>,
    Known(principal): Known,
    Path(id): Path<String>,
    Body(body): Body<StateBody>,
) -> Result<StatusCode, ApiError> {
    let playback = find(&app, &id, &principal)?;
    let viewer = match body.state.as_str() {
        "playing" => Some(ViewerState::Playing),
        "paused" => Some(ViewerState::Paused),
        "stopped" => None,
        _ => return Err(ApiError::malformed("state is playing, paused or stopped")),
    };
    let position = match body.position_ms {
        None => None,
        Some(at) if (0.0..=LONGEST_OFFSET * 1_000.0).contains(&at) => Some(at as u64),
        Some(_) => {
            return Err(ApiError::malformed(
                "positionMs is neither negative nor more than a week",
            ));
        }
    };
    if let (Some(reason), Some(_)) = (playback.sealed(), viewer) {
        return Err(ApiError::ended(format!("the session has ended: {reason}")));
    }
    match viewer {
        Some(viewer) => playback.viewer(viewer).await,
        None => stop(&app, &playback).await,
    }
    if let Some(position_ms) = position {
        let position = Position {
            position_ms,
            finished: None,
        };
        app.library
            .set_position(playback.item().clone(), position)
            .await?;
    }
    Ok(StatusCode::NO_CONTENT)
}
