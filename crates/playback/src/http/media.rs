//! Playlists, initialization segments and segments of a playback.
//!
//! Playlists are the text that was written when the playback was made. Segments come from the encoder, held
//! until they are finished; a HEAD request never makes one.

use std::convert::Infallible;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use axum::body::Body;
use axum::extract::{FromRequestParts, Path};
use axum::response::Response;
use bytes::Bytes;
use ether_encoder::{Resource as Output, Served};
use http::header::{ACCEPT_RANGES, CACHE_CONTROL, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, StatusCode};

use super::App;
use super::auth::{grant_of, granted};
use super::body::MediaBody;
use super::error::ApiError;
use super::range::Entity;
use super::resource::{Keep, Resource, in_memory};
use crate::grant::GrantScope;
use crate::plan::Playlists;
use crate::playback::{Hold, Playback};
use crate::playlist::{Packaging, REPRESENTATION};

const PLAYLIST_TYPE: &str = "application/vnd.apple.mpegurl";

/// The longest number that a segment may have.
const MAX_DIGITS: usize = 7;

/// What a player's request for media comes with, besides its address.
pub(super) struct Asked {
    app: Arc<App>,
    query: Option<String>,
    method: Method,
    headers: HeaderMap,
}

impl FromRequestParts<Arc<App>> for Asked {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, Infallible> {
        Ok(Self {
            app: Arc::clone(app),
            query: parts.uri.query().map(str::to_owned),
            method: parts.method.clone(),
            headers: parts.headers.clone(),
        })
    }
}

impl Asked {
    /// The playback that the address names, where the request's grant opens its media.
    fn playback(&self, session: &str) -> Result<Arc<Playback>, ApiError> {
        let grant = grant_of(self.query.as_deref());
        granted(&self.app, grant, Some(session), GrantScope::Media)
    }

    /// One of the playlists, which count as a sign of life.
    fn playlist(
        &self,
        playback: &Playback,
        text: impl FnOnce(&Playlists) -> &Bytes,
    ) -> Result<Response, ApiError> {
        let playlists = playback.playlists.as_ref().ok_or_else(ApiError::no_route)?;
        let _hold = playback.hold();
        let text = text(playlists);
        Ok(in_memory(
            &self.method,
            &self.headers,
            text,
            PLAYLIST_TYPE,
            Keep::Never,
        ))
    }
}

pub(super) async fn multivariant(Path(session): Path<String>, asked: Asked) -> Result<Response, ApiError> {
    let playback = asked.playback(&session)?;
    asked.playlist(&playback, |playlists| &playlists.multivariant)
}

pub(super) async fn resource(
    Path((session, representation, name)): Path<(String, String, String)>,
    asked: Asked,
) -> Result<Response, ApiError> {
    let playback = asked.playback(&session)?;
    let packaging = playback.plan().packaging().ok_or_else(ApiError::no_route)?;
    if representation != REPRESENTATION {
        return Err(ApiError::no_route());
    }
    let wanted = match Named::parse(&name, packaging).ok_or_else(ApiError::no_route)? {
        Named::Playlist => return asked.playlist(&playback, |playlists| &playlists.media),
        Named::Init => Output::Init { representation: 0 },
        // Past the end there never is one: no encoder is asked about it.
        Named::Segment(number) if usize::try_from(number).is_ok_and(|n| n >= playback.plan().segments()) => {
            return Err(ApiError::new(
                StatusCode::NOT_FOUND,
                "no_such_segment",
                "the presentation ends before this segment",
            ));
        }
        Named::Segment(number) => Output::Segment {
            representation: 0,
            number,
        },
    };
    output(&asked.app, &playback, wanted, &asked.method, &asked.headers).await
}

async fn output(
    app: &App,
    playback: &Arc<Playback>,
    wanted: Output,
    method: &Method,
    headers: &HeaderMap,
) -> Result<Response, ApiError> {
    if *method == Method::HEAD {
        return Ok(match playback.finished(wanted) {
            Some(served) => respond(playback, wanted, served, method, headers, None),
            None => not_made_yet(playback),
        });
    }
    let hold = playback.hold();
    let served = playback.media(wanted, app.playbacks.limits().hold).await?;
    Ok(respond(playback, wanted, served, method, headers, Some(hold)))
}

fn respond(
    playback: &Playback,
    wanted: Output,
    served: Served,
    method: &Method,
    headers: &HeaderMap,
    hold: Option<Hold>,
) -> Response {
    let Served {
        len,
        etag,
        content_type,
        media,
    } = served;
    let resource = Resource {
        entity: Entity {
            len,
            etag: &etag,
            modified: Some(playback.dates.of(wanted, &etag, playback.clock.now())),
            dated: true,
        },
        content_type,
        keep: Keep::Revalidate,
    };
    resource.respond(method, headers, |range: Range<u64>| {
        let wanted = range.end - range.start;
        match hold {
            Some(hold) => Body::new(MediaBody::new(media.stream(range), wanted, hold)),
            None => Body::empty(),
        }
    })
}

/// What is known of a segment that nobody has made: that it will be there, and its type. Its length is not.
fn not_made_yet(playback: &Playback) -> Response {
    let content_type = match playback.plan().packaging() {
        Some(Packaging::MpegTs) => "video/mp2t",
        _ => "video/mp4",
    };
    let mut response = Response::new(Body::new(Unknown));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A body of unknown length, for answers to HEAD: an empty one would be announced as zero bytes long.
struct Unknown;

impl http_body::Body for Unknown {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
        Poll::Ready(None)
    }
}

/// What a name in a representation stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Named {
    Playlist,
    Init,
    Segment(u32),
}

impl Named {
    fn parse(name: &str, packaging: Packaging) -> Option<Self> {
        match (name, packaging) {
            ("index.m3u8", _) => return Some(Self::Playlist),
            ("header" | "init.mp4", Packaging::Fmp4) => return Some(Self::Init),
            _ => {}
        }
        let (number, extension) = name.split_once('.')?;
        let known = match packaging {
            Packaging::Fmp4 => matches!(extension, "m4s" | "mp4"),
            Packaging::MpegTs => extension == "ts",
        };
        let digits = (1..=MAX_DIGITS).contains(&number.len()) && number.bytes().all(|b| b.is_ascii_digit());
        (known && digits).then(|| number.parse().ok().map(Self::Segment))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_what_playlists_write_and_what_older_players_make_of_them() {
        let fmp4 = |name| Named::parse(name, Packaging::Fmp4);
        assert_eq!(fmp4("index.m3u8"), Some(Named::Playlist));
        assert_eq!(fmp4("header"), Some(Named::Init));
        assert_eq!(fmp4("7.m4s"), Some(Named::Segment(7)));
        assert_eq!(fmp4("00007.m4s"), Some(Named::Segment(7)));
        for other in [
            "7.ts",
            "7",
            ".m4s",
            "-1.m4s",
            "+7.m4s",
            "7.m4s.m4s",
            "12345678.m4s",
            "7.m3u8",
            "Header",
        ] {
            assert_eq!(fmp4(other), None, "{other}");
        }
        assert_eq!(Named::parse("header", Packaging::MpegTs), None);
        assert_eq!(Named::parse("3.ts", Packaging::MpegTs), Some(Named::Segment(3)));
    }
}
