//! Text tracks and fonts of a session: whole files, on the timeline that the session's player shows.
//!
//! Players fetch them with the session's grant, whoever is signed in with a token. A track that takes long to
//! read is sent as it is read, so that a player which waits has its first lines soon.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::response::Response;
use bytes::Bytes;
use ether_media::Ticks;
use ether_media::subtitles::{Clock, Line, ass, webvtt};
use ether_types::PlaybackId;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use http_body::Frame;
use serde_json::{Value, json};

use super::App;
use super::auth::{grant_of, granted};
use super::error::ApiError;
use super::fields::shown_text;
use super::resource::{Keep, in_memory};
use crate::grant::GrantScope;
use crate::playback::{Hold, Playback};
use crate::ports::{TextBatch, TextError, TextSource};
use crate::texts;

const PLAYLIST_TYPE: &str = "application/vnd.apple.mpegurl";
/// How long an answer waits for the whole track before it is sent as it is read.
const WHOLE: std::time::Duration = std::time::Duration::from_secs(4);

/// The session, to whoever holds its grant or a token that may see it.
async fn session(
    app: &App,
    id: &str,
    query: Option<&str>,
    headers: &HeaderMap,
) -> Result<Arc<Playback>, ApiError> {
    let id = PlaybackId::new(id).map_err(|_| ApiError::no_session())?;
    if let Some(grant) = grant_of(query) {
        // Grants of the file itself open the text that belongs to it too.
        let direct = app.playbacks.get(&id).is_some_and(|p| p.plan().making.is_none());
        let scope = if direct {
            GrantScope::File
        } else {
            GrantScope::Media
        };
        return granted(app, Some(grant), Some(id.as_str()), scope);
    }
    let principal = app.auth.principal(headers).await?;
    let playback = app
        .playbacks
        .visible(&id, &principal)
        .ok_or_else(ApiError::no_session)?;
    match playback.sealed() {
        Some(reason) => Err(ApiError::ended(format!("the session has ended: {reason}"))),
        None => Ok(playback),
    }
}

fn value<'a>(query: Option<&'a str>, name: &str) -> Option<&'a str> {
    let pairs = query
        .unwrap_or_default()
        .split('&')
        .filter_map(|pair| pair.split_once('='));
    pairs
        .into_iter()
        .find(|(key, _)| *key == name)
        .map(|(_, value)| value)
}

fn stream(query: Option<&str>) -> Result<u32, ApiError> {
    let allowed = "the number of a subtitle track";
    let text = value(query, "stream").ok_or_else(|| ApiError::field("stream", "missing", allowed))?;
    text.parse()
        .map_err(|_| ApiError::field("stream", &shown_text(text), allowed))
}

/// A text track that was asked for, opened.
struct Opened {
    playback: Arc<Playback>,
    hold: Hold,
    /// How its times become those of the presentation.
    clock: Clock,
    source: Box<dyn TextSource>,
}

/// The track that an address names by the session and `stream`.
async fn opened(app: &App, id: &str, query: Option<&str>, headers: &HeaderMap) -> Result<Opened, ApiError> {
    let playback = session(app, id, query, headers).await?;
    let stream = stream(query)?;
    let hold = playback.hold();
    Ok(Opened {
        clock: texts::clock(&playback.item, &playback.plan().decision, stream),
        source: app.texts.open(Arc::clone(&playback.item), stream).await?,
        hold,
        playback,
    })
}

pub(super) async fn vtt(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let query = query.as_deref();
    let Opened {
        playback,
        hold,
        clock,
        mut source,
    } = opened(&app, &id, query, &headers).await?;
    let plan = playback.plan();
    // Segments of HLS have a clock of their own, which the text must be tied to.
    let tied = value(query, "clock") == Some("media");
    let media = tied.then(|| texts::media_clock(&plan.decision, plan.packaging()));
    let whole = tokio::select! {
        biased;
        whole = source.whole() => Some(whole?),
        () = app.clock.sleep(WHOLE) => None,
    };
    Ok(match whole {
        Some(track) => {
            file(&method, &headers, webvtt::MEDIA_TYPE, move || {
                webvtt::file(&track, clock, media)
            })
            .await?
        }
        None if method == Method::HEAD => sent_as_read(Body::empty()),
        None => sent_as_read(Body::new(Cues::new(source, clock, media, hold))),
    })
}

pub(super) async fn script(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let mut opened = opened(&app, &id, query.as_deref(), &headers).await?;
    let (track, clock) = (opened.source.whole().await?, opened.clock);
    file(&method, &headers, ass::MEDIA_TYPE, move || {
        ass::file(&track, clock)
    })
    .await
}

/// The text that `write` gives, which takes a while for a track of many lines.
async fn file(
    method: &Method,
    headers: &HeaderMap,
    content_type: &str,
    write: impl FnOnce() -> String + Send + 'static,
) -> Result<Response, ApiError> {
    let text = tokio::task::spawn_blocking(write)
        .await
        .map_err(|_| super::view::unwritable())?;
    Ok(in_memory(
        method,
        headers,
        &text.into(),
        content_type,
        Keep::Revalidate,
    ))
}

/// The playlist of a text track in HLS: the whole track as its one segment, as long as the presentation.
pub(super) async fn playlist(
    State(app): State<Arc<App>>,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let query = query.as_deref();
    let playback = session(&app, &id, query, &headers).await?;
    let stream = stream(query)?;
    if !playback.plan().texts.iter().any(|text| text.stream == stream) {
        return Err(TextError::NoSuchTrack.into());
    }
    let _hold = playback.hold();
    let end = playback.plan().decision.timeline.end();
    let target = ((end.as_millis() + 500) / 1_000).max(1);
    let grant = grant_of(query)
        .map(|grant| format!("&grant={grant}"))
        .unwrap_or_default();
    let text = format!(
        "#EXTM3U\n#EXT-X-VERSION:7\n#EXT-X-TARGETDURATION:{target}\n#EXT-X-MEDIA-SEQUENCE:0\n\
         #EXT-X-PLAYLIST-TYPE:VOD\n#EXTINF:{end},\nsubtitles.vtt?stream={stream}&clock=media{grant}\n\
         #EXT-X-ENDLIST\n"
    );
    Ok(in_memory(
        &method,
        &headers,
        &text.into(),
        PLAYLIST_TYPE,
        Keep::Never,
    ))
}

pub(super) async fn font(
    State(app): State<Arc<App>>,
    Path((id, number)): Path<(String, String)>,
    RawQuery(query): RawQuery,
    method: Method,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let playback = session(&app, &id, query.as_deref(), &headers).await?;
    let number: u32 = number.parse().map_err(|_| ApiError::no_route())?;
    let _hold = playback.hold();
    let font = app.texts.font(Arc::clone(&playback.item), number).await?;
    Ok(in_memory(
        &method,
        &headers,
        &font,
        "application/octet-stream",
        Keep::Revalidate,
    ))
}

/// What a session says of its text tracks and fonts; addresses carry `grant` where there is one.
pub(super) fn listed(playback: &Playback, grant: Option<&str>) -> (Value, Value) {
    let grant = |first: char| {
        grant
            .map(|grant| format!("{first}grant={grant}"))
            .unwrap_or_default()
    };
    let at = format!("/ether/api/sessions/{}", playback.id());
    let text = |text: &crate::presentation::Text| {
        json!({
            "stream": text.stream,
            "name": text.name,
            "language": text.language,
            "default": text.default,
            "forced": text.forced,
            "hearingImpaired": text.hearing_impaired,
            "vtt": format!("{at}/subtitles.vtt?stream={}{}", text.stream, grant('&')),
            "ass": format!("{at}/subtitles.ass?stream={}{}", text.stream, grant('&')),
        })
    };
    let attached = playback.item.facts.streams.iter();
    let attached = attached.filter(|stream| stream.kind == ether_media::StreamKind::Attachment);
    let font = |stream: &ether_media::Stream| {
        json!({
            "stream": stream.index,
            "name": stream.title,
            "url": format!("{at}/fonts/{}{}", stream.index, grant('?')),
        })
    };
    let texts: Vec<Value> = playback.plan().texts.iter().map(text).collect();
    let fonts: Vec<Value> = attached.map(font).collect();
    (texts.into(), fonts.into())
}

fn sent_as_read(body: Body) -> Response {
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(webvtt::MEDIA_TYPE));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

type Waiting = Pin<Box<dyn Future<Output = (Box<dyn TextSource>, Result<TextBatch, TextError>)> + Send>>;

/// Cues as they are read. A track that cannot be read to its end breaks the connection: a clean end would be
/// taken for the track's.
struct Cues {
    head: Option<String>,
    writer: Option<webvtt::Writer>,
    clock: Clock,
    waiting: Option<Waiting>,
    _hold: Hold,
}

impl Cues {
    fn new(source: Box<dyn TextSource>, clock: Clock, media: Option<Ticks>, hold: Hold) -> Self {
        Self {
            head: Some(webvtt::head(media)),
            writer: None,
            clock,
            waiting: Some(next(source)),
            _hold: hold,
        }
    }

    fn cues(&mut self, batch: TextBatch) -> String {
        if let Some(form) = &batch.form {
            self.writer = Some(webvtt::Writer::new(form));
        }
        let writer = self.writer.as_ref();
        let cue = |line: &Line| writer.and_then(|writer| writer.cue(line, self.clock));
        batch.lines.iter().filter_map(cue).collect()
    }
}

fn next(mut source: Box<dyn TextSource>) -> Waiting {
    Box::pin(async move {
        let batch = source.next().await;
        (source, batch)
    })
}

impl http_body::Body for Cues {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, std::io::Error>>> {
        let this = self.get_mut();
        if let Some(head) = this.head.take() {
            return Poll::Ready(Some(Ok(Frame::data(head.into()))));
        }
        loop {
            let Some(waiting) = this.waiting.as_mut() else {
                return Poll::Ready(None);
            };
            let (source, batch) = ready!(waiting.as_mut().poll(cx));
            this.waiting = None;
            let batch = match batch {
                Ok(batch) => batch,
                Err(error) => {
                    tracing::warn!(%error, "a subtitle track was broken off");
                    return Poll::Ready(Some(Err(std::io::Error::other(error))));
                }
            };
            if !batch.complete {
                this.waiting = Some(next(source));
            }
            let text = this.cues(batch);
            if !text.is_empty() {
                return Poll::Ready(Some(Ok(Frame::data(text.into()))));
            }
        }
    }
}

impl From<TextError> for ApiError {
    fn from(error: TextError) -> Self {
        let text = error.to_string();
        let (status, code) = match error {
            TextError::NoSuchTrack => (StatusCode::NOT_FOUND, "no_such_stream"),
            TextError::Pictures => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "picture_subtitles"),
            TextError::Unreadable { .. } => (StatusCode::UNSUPPORTED_MEDIA_TYPE, "subtitles_unreadable"),
            TextError::Changed => (StatusCode::NOT_FOUND, "file_changed"),
            TextError::Gone => (StatusCode::NOT_FOUND, "file_gone"),
            TextError::Failed => (StatusCode::BAD_GATEWAY, "subtitles_failed"),
            TextError::Unavailable => {
                return Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", text)
                    .retry(std::time::Duration::from_secs(2));
            }
        };
        Self::new(status, code, text)
    }
}

/// A track that is there.
#[cfg(test)]
pub(crate) fn ready_track(track: ether_media::subtitles::Track) -> Box<dyn TextSource> {
    use ether_media::subtitles::Track;
    struct Ready(Arc<Track>);
    impl TextSource for Ready {
        fn whole(&mut self) -> ether_encoder::BoxFuture<'_, Result<Arc<Track>, TextError>> {
            Box::pin(std::future::ready(Ok(self.0.clone())))
        }

        fn next(&mut self) -> ether_encoder::BoxFuture<'_, Result<TextBatch, TextError>> {
            Box::pin(std::future::ready(Ok(TextBatch {
                form: Some(self.0.form.clone()),
                lines: self.0.lines.clone(),
                complete: true,
            })))
        }
    }
    Box::new(Ready(Arc::new(track)))
}
