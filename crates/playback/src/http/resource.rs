//! The one way in which anything with bytes, a tag and a type is answered.

use std::ops::Range;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{
    ACCEPT_RANGES, CACHE_CONTROL, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, ETAG, HeaderName,
    LAST_MODIFIED,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use sha2::{Digest, Sha256};

use super::error::ApiError;
use super::range::{Answer, Entity, answer, http_date};

/// How long the answer may be kept by whoever gets it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keep {
    /// Not at all.
    Never,
    /// As long as it is asked every time whether it still holds.
    Revalidate,
    /// By shared caches too, on the same condition: it holds nothing of anybody's.
    RevalidatePublic,
}

impl Keep {
    fn header(self) -> HeaderValue {
        HeaderValue::from_static(match self {
            Self::Never => "no-store",
            Self::Revalidate => "private, no-cache",
            Self::RevalidatePublic => "no-cache",
        })
    }
}

/// What is known of a resource before its bytes are.
#[derive(Debug)]
pub(crate) struct Resource<'a> {
    pub(crate) entity: Entity<'a>,
    pub(crate) content_type: &'a str,
    pub(crate) keep: Keep,
}

impl Resource<'_> {
    /// The answer to a request; `body` is asked for the bytes of a range, and only for those that are sent.
    pub(crate) fn respond(
        &self,
        method: &Method,
        headers: &HeaderMap,
        body: impl FnOnce(Range<u64>) -> Body,
    ) -> Response {
        let len = self.entity.len;
        let answered = answer(method, headers, &self.entity);
        let refused = match answered {
            Answer::PreconditionFailed => Some(ApiError::other_state()),
            Answer::Unsatisfiable => Some(ApiError::no_range(len)),
            Answer::Full | Answer::Partial(_) | Answer::NotModified => None,
        };
        let (status, range) = match answered {
            Answer::Full => (StatusCode::OK, Some(0..len)),
            Answer::Partial(range) => (StatusCode::PARTIAL_CONTENT, Some(range)),
            Answer::NotModified => (StatusCode::NOT_MODIFIED, None),
            Answer::PreconditionFailed => (StatusCode::PRECONDITION_FAILED, None),
            Answer::Unsatisfiable => (StatusCode::RANGE_NOT_SATISFIABLE, None),
        };
        let mut out = HeaderMap::new();
        set(&mut out, ETAG, &format!("\"{}\"", self.entity.etag));
        out.insert(CACHE_CONTROL, self.keep.header());
        out.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
        if let Some(modified) = self.entity.modified {
            set(&mut out, LAST_MODIFIED, &http_date(modified));
        }
        if status == StatusCode::RANGE_NOT_SATISFIABLE {
            set(&mut out, CONTENT_RANGE, &format!("bytes */{len}"));
        }
        if let Some(refused) = refused {
            let mut response = refused.into_response();
            // What describes the error and its body wins over what describes the resource.
            out.remove(CACHE_CONTROL);
            response.headers_mut().extend(out);
            return response;
        }
        let content = match range {
            Some(range) => {
                set(&mut out, CONTENT_TYPE, self.content_type);
                set(&mut out, CONTENT_LENGTH, &(range.end - range.start).to_string());
                if status == StatusCode::PARTIAL_CONTENT {
                    set(
                        &mut out,
                        CONTENT_RANGE,
                        &format!("bytes {}-{}/{len}", range.start, range.end - 1),
                    );
                }
                if method == Method::HEAD {
                    Body::empty()
                } else {
                    body(range)
                }
            }
            None => Body::empty(),
        };
        let mut response = Response::new(content);
        *response.status_mut() = status;
        *response.headers_mut() = out;
        response
    }
}

/// Bytes in memory, whose tag is their hash.
pub(crate) fn in_memory(
    method: &Method,
    headers: &HeaderMap,
    bytes: &Bytes,
    content_type: &str,
    keep: Keep,
) -> Response {
    in_memory_tagged(method, headers, bytes, &digest(bytes), content_type, keep)
}

/// Bytes in memory, whose tag is known.
pub(crate) fn in_memory_tagged(
    method: &Method,
    headers: &HeaderMap,
    bytes: &Bytes,
    etag: &str,
    content_type: &str,
    keep: Keep,
) -> Response {
    let resource = Resource {
        entity: Entity {
            len: bytes.len() as u64,
            etag,
            modified: None,
            dated: false,
        },
        content_type,
        keep,
    };
    let slice = |range: Range<u64>| {
        let at = |n: u64| usize::try_from(n).unwrap_or(bytes.len());
        Body::from(bytes.slice(at(range.start)..at(range.end)))
    };
    resource.respond(method, headers, slice)
}

/// A tag for `bytes`: other bytes have another.
pub(crate) fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

pub(crate) fn set(headers: &mut HeaderMap, name: HeaderName, value: &str) {
    if let Ok(value) = HeaderValue::from_str(value) {
        headers.insert(name, value);
    }
}
