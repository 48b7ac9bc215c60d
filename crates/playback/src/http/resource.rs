//! The one way in which anything with bytes, a tag and a type is answered.

use std::ops::Range;

use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use ether_transfer::{Entity, Head, head};
use http::header::{CACHE_CONTROL, HeaderName};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use sha2::{Digest, Sha256};

use super::error::ApiError;

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
        let Head {
            status,
            headers: mut out,
            body: sent,
        } = head(method, headers, &self.entity, self.content_type);
        let refused = match status {
            StatusCode::PRECONDITION_FAILED => Some(ApiError::other_state()),
            StatusCode::RANGE_NOT_SATISFIABLE => Some(ApiError::no_range(self.entity.len)),
            _ => None,
        };
        if let Some(refused) = refused {
            let mut response = refused.into_response();
            response.headers_mut().extend(out);
            return response;
        }
        out.insert(CACHE_CONTROL, self.keep.header());
        let mut response = Response::new(sent.map_or_else(Body::empty, body));
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
