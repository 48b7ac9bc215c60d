//! Sessions, as playbacks are called in public: asked for, looked at, told what the viewer does, ended.

use std::ops::RangeInclusive;
use std::sync::Arc;

use axum::Json;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use ether_media::Ticks;
use ether_media::decision::{
    AudioChoice, AudioSupport, Client, Force, MIN_BIT_RATE, Protocol, SegmentKind, Sounds, VideoSupport,
    Wishes,
};
use ether_types::{ItemId, OperationId, PlaybackId};
use http::header::LOCATION;
use http::{HeaderMap, StatusCode};
use serde_json::json;

use super::App;
use super::auth::{Body, Known};
use super::error::ApiError;
use super::fields::{Fields, Read};
use super::resource::set;
use super::view;
use crate::auth::Principal;
use crate::lifecycle::{EndReason, ViewerState};
use crate::plan::SubtitleWish;
use crate::playback::Playback;
use crate::playbacks::NewPlayback;
use crate::ports::Position;

/// Entries that a player may list of each kind, and their length.
const MOST_LISTED: usize = 64;
const LONGEST_ENTRY: usize = 128;
/// Longest offset in seconds: a week.
const LONGEST_OFFSET: f64 = 7.0 * 24.0 * 3600.0;
/// Heights that may be asked for. No picture codec holds a greater one.
const HEIGHTS: RangeInclusive<u32> = 16..=16_384;
/// Bits a second that may be asked for.
const BIT_RATES: RangeInclusive<u64> = MIN_BIT_RATE..=100_000_000_000;
/// Channels that a player may have.
const CHANNELS: RangeInclusive<u16> = 1..=64;
/// Lengths of segments in seconds (E3).
const SEGMENTS: RangeInclusive<f64> = 1.0..=15.0;

pub(super) async fn create(
    State(app): State<Arc<App>>,
    Known(principal): Known,
    headers: HeaderMap,
    Body(wish): Body<NewPlayback>,
) -> Result<Response, ApiError> {
    let operation = match headers.get("idempotency-key") {
        None => None,
        Some(key) => {
            let key = key.to_str().ok().and_then(|key| OperationId::new(key).ok());
            Some(key.ok_or_else(|| {
                let allowed = "1 to 128 letters, digits, '-', '_' and '.'";
                ApiError::field("Idempotency-Key", "something else", allowed)
            })?)
        }
    };
    let playback = app.playbacks.create(&principal, wish, operation).await?;
    let mut response = (StatusCode::CREATED, Json(view::created(&playback))).into_response();
    set(
        response.headers_mut(),
        LOCATION,
        &format!("/ether/api/sessions/{}", playback.id()),
    );
    Ok(response)
}

impl Read for NewPlayback {
    fn read(fields: &Fields<'_>) -> Result<Self, ApiError> {
        let item = fields.needed("item", fields.text("item")?, "the id of an item")?;
        let item = ItemId::new(item).map_err(|_| ApiError::no_item(item))?;
        let defaults = Wishes::default();
        let segments = fields.choice(
            "container",
            &[
                ("fmp4", SegmentKind::Fmp4),
                ("ts", SegmentKind::MpegTs),
                ("mp4", SegmentKind::Fmp4),
                ("mpegts", SegmentKind::MpegTs),
            ],
        )?;
        let protocols = [
            ("hls", Protocol::Hls),
            ("*", Protocol::Hls),
            ("dash", Protocol::Dash),
            ("http", Protocol::Http),
        ];
        let protocol = fields.choice("protocol", &protocols)?.unwrap_or_default();
        if protocol == Protocol::Dash && segments == Some(SegmentKind::MpegTs) {
            let allowed = "fmp4, which is the container of DASH";
            return Err(ApiError::field("container", "of another protocol", allowed));
        }
        let sounds = fields.choice("sounds", &[("all", Sounds::All), ("one", Sounds::One)])?;
        let target = fields.number("segmentSeconds", SEGMENTS)?;
        let video = fields.choice(
            "video",
            &[
                ("auto", Force::Auto),
                ("copy", Force::Copy),
                ("encode", Force::Encode),
            ],
        )?;
        let video = video.unwrap_or(Force::Auto);
        let a_stream = "the index of a stream, or -1 for none";
        let audio = match fields.whole_said("audio", -1..=i64::from(u32::MAX), a_stream)? {
            None => AudioChoice::Main,
            Some(index) => u32::try_from(index).map_or(AudioChoice::Silent, AudioChoice::Stream),
        };
        // A number past every stream's is no track's; it is refused where the tracks are known.
        let subtitle = fields.whole_said("subtitle", -1..=i64::from(u32::MAX), a_stream)?;
        let subtitle = subtitle.and_then(|index| u32::try_from(index).ok());
        let drawn = fields.flag("burn")?;
        if let (Some(drawn), None) = (drawn, subtitle) {
            let allowed = "true or false, with `subtitle` saying which track";
            return Err(ApiError::field("burn", &drawn.to_string(), allowed));
        }
        let millis = fields.number("offsetMs", 0.0..=LONGEST_OFFSET * 1_000.0)?;
        let seconds = fields.number("offset", 0.0..=LONGEST_OFFSET)?;
        let start = millis.map(|millis| millis / 1_000.0).or(seconds).unwrap_or(0.0);
        // Whoever says how segments are to be, or what is to be done to the picture, wants segments; whoever
        // names another protocol than the usual one wants that.
        let direct =
            segments.is_none() && target.is_none() && video == Force::Auto && protocol == Protocol::Hls;
        Ok(Self {
            item,
            start: Ticks::from_secs_f64(start),
            client: match fields.object("client")? {
                Some(client) => Client::read(&client)?,
                None => Client::default(),
            },
            wishes: Wishes {
                target: target.map_or(defaults.target, Ticks::from_secs_f64),
                max_bit_rate: fields.whole("maxBitrate", BIT_RATES)?,
                max_height: fields.whole("maxHeight", HEIGHTS)?,
                video,
                drawn: defaults.drawn,
                audio,
                sounds: sounds.unwrap_or_default(),
                protocol,
                ladder: fields.flag("ladder")?.unwrap_or(defaults.ladder),
                segments: segments.unwrap_or(defaults.segments),
                direct,
            },
            subtitle: subtitle.map(|stream| SubtitleWish { stream, drawn }),
        })
    }
}

impl Read for Client {
    fn read(fields: &Fields<'_>) -> Result<Self, ApiError> {
        let defaults = Self::default();
        let list = |name| fields.list(name, MOST_LISTED, LONGEST_ENTRY);
        let known = |list: Vec<&str>| list.into_iter().filter_map(VideoSupport::parse).collect();
        let video = list("video")?.map(known);
        let known = |list: Vec<&str>| list.into_iter().filter_map(AudioSupport::parse).collect();
        let audio = list("audio")?.map(known);
        let containers = list("containers")?.unwrap_or_default();
        Ok(Self {
            video: video.unwrap_or(defaults.video),
            audio: audio.unwrap_or(defaults.audio),
            containers: containers.into_iter().map(Self::container).collect(),
            hdr: fields.flag("hdr")?.unwrap_or(defaults.hdr),
            max_height: fields.whole("maxHeight", HEIGHTS)?,
            audio_channels: fields
                .whole("audioChannels", CHANNELS)?
                .unwrap_or(defaults.audio_channels),
        })
    }
}

pub(super) async fn list(State(app): State<Arc<App>>, Known(principal): Known) -> Result<Response, ApiError> {
    let sessions = app.playbacks.list(&principal);
    let sessions: Vec<_> = sessions.iter().map(|playback| view::session(playback)).collect();
    // What became of the machine's devices is its owner's business.
    let devices = app.playbacks.device_counts().filter(|_| principal.is_owner());
    let capacity = view::capacity(&**app.playbacks.capacity());
    Ok(Json(json!({"sessions": sessions, "capacity": capacity, "devices": devices})).into_response())
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

pub(super) struct StateBody {
    /// What the viewer does; nothing any more where absent.
    viewer: Option<ViewerState>,
    position_ms: Option<u64>,
}

impl Read for StateBody {
    fn read(fields: &Fields<'_>) -> Result<Self, ApiError> {
        let states = [
            ("playing", Some(ViewerState::Playing)),
            ("paused", Some(ViewerState::Paused)),
            ("stopped", None),
        ];
        let viewer = fields.choice("state", &states)?;
        let position = fields.number("positionMs", 0.0..=LONGEST_OFFSET * 1_000.0)?;
        Ok(Self {
            viewer: fields.needed("state", viewer, "playing, paused, stopped")?,
            position_ms: position.map(|at| at as u64),
        })
    }
}

pub(super) async fn state(
    State(app): State<Arc<App>>,
    Known(principal): Known,
    Path(id): Path<String>,
    Body(body): Body<StateBody>,
) -> Result<StatusCode, ApiError> {
    let playback = find(&app, &id, &principal)?;
    let StateBody { viewer, position_ms } = body;
    if let (Some(reason), Some(_)) = (playback.sealed(), viewer) {
        return Err(ApiError::over(reason));
    }
    match viewer {
        Some(viewer) => playback.viewer(viewer).await,
        None => stop(&app, &playback).await,
    }
    if let Some(position_ms) = position_ms {
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
