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
use ether_encoder::{Representation, Resource as Output, Served};
use ether_transfer::Entity;
use http::header::{ACCEPT_RANGES, CACHE_CONTROL, CONTENT_TYPE};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method};

use super::App;
use super::auth::{grant_of, granted};
use super::body::MediaBody;
use super::error::ApiError;
use super::resource::{Keep, Resource, in_memory};
use crate::grant::GrantScope;
use crate::plan::Playlists;
use crate::playback::{Hold, Playback};
use crate::presentation::Packaging;

const PLAYLIST_TYPE: &str = "application/vnd.apple.mpegurl";
const MANIFEST_TYPE: &str = "application/dash+xml";

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

    /// One of the playlists or the manifest, which count as a sign of life. Where the playback's protocol has no
    /// such thing there is nothing at the address.
    fn text(
        &self,
        playback: &Playback,
        content_type: &str,
        choose: impl FnOnce(&Playlists) -> Option<&Bytes>,
    ) -> Result<Response, ApiError> {
        let edition = playback.edition();
        let text = edition.playlists.as_ref().and_then(choose);
        let text = text.ok_or_else(ApiError::no_route)?;
        let _hold = playback.hold();
        Ok(in_memory(
            &self.method,
            &self.headers,
            text,
            content_type,
            Keep::Never,
        ))
    }
}

pub(super) async fn multivariant(Path(session): Path<String>, asked: Asked) -> Result<Response, ApiError> {
    let playback = asked.playback(&session)?;
    asked.text(&playback, PLAYLIST_TYPE, |playlists| match playlists {
        Playlists::Hls { multivariant, .. } => Some(multivariant),
        Playlists::Dash { .. } => None,
    })
}

pub(super) async fn manifest(Path(session): Path<String>, asked: Asked) -> Result<Response, ApiError> {
    let playback = asked.playback(&session)?;
    asked.text(&playback, MANIFEST_TYPE, |playlists| match playlists {
        Playlists::Dash { manifest } => Some(manifest),
        Playlists::Hls { .. } => None,
    })
}

pub(super) async fn resource(
    Path((session, representation, name)): Path<(String, String, String)>,
    asked: Asked,
) -> Result<Response, ApiError> {
    let playback = asked.playback(&session)?;
    let plan = playback.plan();
    let packaging = plan.packaging().ok_or_else(ApiError::no_route)?;
    let (representation, held) = held(&plan.representations(), &representation)?;
    let wanted = match Named::parse(&name, packaging).ok_or_else(ApiError::no_route)? {
        Named::Playlist => {
            return asked.text(&playback, PLAYLIST_TYPE, |playlists| match playlists {
                Playlists::Hls { media, .. } => Some(media),
                Playlists::Dash { .. } => None,
            });
        }
        Named::Init => Output::Init { representation },
        // Past the end there never is one: no encoder is asked about it.
        Named::Segment(number) if usize::try_from(number).is_ok_and(|n| n >= plan.segments()) => {
            return Err(ApiError::no_segment(number, plan.segments()));
        }
        Named::Segment(number) => Output::Segment {
            representation,
            number,
        },
    };
    output(&asked, &playback, wanted, content_type(packaging, held)).await
}

/// The representation that an address names by its number as playlists write it, and what it holds.
fn held(all: &[Representation], name: &str) -> Result<(u32, Representation), ApiError> {
    let number: Option<u32> = name.parse().ok().filter(|n: &u32| n.to_string() == name);
    let held = number.and_then(|n| Some((n, *all.get(usize::try_from(n).ok()?)?)));
    held.ok_or_else(ApiError::no_route)
}

/// The type of segments that were not made yet.
fn content_type(packaging: Packaging, held: Representation) -> &'static str {
    match (packaging, held.video) {
        (Packaging::MpegTs, _) => "video/mp2t",
        (Packaging::Fmp4, Some(_)) => "video/mp4",
        (Packaging::Fmp4, None) => "audio/mp4",
    }
}

async fn output(
    asked: &Asked,
    playback: &Arc<Playback>,
    wanted: Output,
    content_type: &'static str,
) -> Result<Response, ApiError> {
    let Asked {
        app, method, headers, ..
    } = asked;
    if *method == Method::HEAD {
        return Ok(match playback.finished(wanted) {
            Some(served) => respond(playback, wanted, served, method, headers, None),
            None => not_made_yet(content_type),
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
fn not_made_yet(content_type: &'static str) -> Response {
    let mut response = Response::new(Body::new(Unknown));
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

/// A body of unknown length, for answers to HEAD: an empty one would be announced as zero bytes long.
pub(super) struct Unknown;

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
    fn representations_have_one_name_each() {
        let one = |video, audio| Representation { video, audio };
        let all = [one(Some(0), None), one(None, Some(0))];
        assert_eq!(held(&all, "1").unwrap(), (1, all[1]));
        for other in ["2", "01", "+1", "-1", "", "1 ", "text-1"] {
            assert!(held(&all, other).is_err(), "{other:?}");
        }
    }

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
