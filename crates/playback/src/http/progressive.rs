//! The stream of a playback that has no segments: Matroska, sent as it is made.
//!
//! A player that pauses reads nothing more, and holds the encoder back by that for as long as a paused session may
//! last. It has no length and no parts: a range is not an error and not answered either. Asking what it is starts
//! nothing; each request for its bytes begins it anew, and ends the one that was sent before.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::{Extension, Path, RawQuery, State};
use axum::response::Response;
use bytes::Bytes;
use ether_encoder::{ByteStream, Protocol};
use http::header::{ACCEPT_RANGES, CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, Method, Version};
use http_body::Frame;

use super::App;
use super::auth::{grant_of, granted};
use super::error::ApiError;
use super::media::Unknown;
use super::server::{Patient, Wire};
use crate::grant::GrantScope;
use crate::playback::{Hold, Playback, Show};

pub(super) async fn stream(
    State(app): State<Arc<App>>,
    Path(session): Path<String>,
    RawQuery(query): RawQuery,
    method: Method,
    version: Version,
    wire: Option<Extension<Wire>>,
) -> Result<Response, ApiError> {
    let grant = grant_of(query.as_deref());
    let playback = granted(&app, grant, Some(&session), GrantScope::Media)?;
    let making = playback.plan().making.as_ref().ok_or_else(ApiError::no_route)?;
    let Protocol::Http { .. } = making.request.protocol else {
        return Err(ApiError::no_route());
    };
    let content_type = match making.request.video {
        Some(_) => "video/x-matroska",
        None => "audio/x-matroska",
    };
    let body = if method == Method::HEAD {
        Body::new(Unknown)
    } else {
        let hold = playback.hold();
        let show = Playback::show(&playback, app.playbacks.limits().hold).await?;
        let wire = wire.map(|Extension(wire)| wire);
        let paused = app.playbacks.limits().life.paused;
        Body::new(StreamBody {
            show,
            _hold: hold,
            _patient: wire.as_ref().map(|wire| wire.patient(paused)),
            // A client of HTTP/1.1 knows by the chunk that is missing.
            closes: wire.filter(|_| version < Version::HTTP_11),
        })
    };
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("none"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(response)
}

/// A stream of unknown length. It ends cleanly where the stream does; every error breaks the connection.
struct StreamBody {
    show: Show,
    _hold: Hold,
    _patient: Option<Patient>,
    /// The connection, where its end is that of the answer.
    closes: Option<Wire>,
}

impl StreamBody {
    fn stream(&mut self) -> &mut ByteStream {
        &mut self.show.stream
    }
}

impl http_body::Body for StreamBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        let piece = std::task::ready!(this.stream().poll_next(cx));
        if let Some(Err(error)) = &piece {
            if let Some(wire) = &this.closes {
                wire.break_off();
            }
            tracing::warn!(%error, "a stream was broken off");
        }
        Poll::Ready(piece.map(|piece| piece.map(Frame::data)))
    }
}
