//! The owner's routes on the private listener.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use axum::body::Body;
use axum::extract::{Path, State};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use bytes::Bytes;
use ether_encoder::Revision;
use ether_peer::Caller;
use ether_peer::message::{self, MESSAGE, MessageError};
use ether_transfer::{Entity, FilePieces, Head, head};
use http::header::{AUTHORIZATION, CACHE_CONTROL, RETRY_AFTER};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use http_body::{Body as HttpBody, Frame, SizeHint};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Granted, Lent, Reader, Shared};
use crate::grant::{Bearer, Denied, Handle};
use crate::wire::PREFIX;

pub(super) fn routes(owner: Arc<Shared>) -> Router {
    Router::new()
        .route(&format!("{PREFIX}/grants"), post(prepare))
        .route(&format!("{PREFIX}/grants/{{handle}}/bearers"), post(admit))
        .route(&format!("{PREFIX}/grants/{{handle}}/deadline"), post(extend))
        .route(&format!("{PREFIX}/grants/{{handle}}/bytes"), get(bytes))
        .route(&format!("{PREFIX}/retirements"), post(retire))
        .with_state(owner)
}

type Answer = Result<Response, MessageError>;

async fn prepare(
    State(owner): State<Arc<Shared>>,
    Extension(Caller(caller)): Extension<Caller>,
    body: Body,
) -> Answer {
    let asked = heard(body).await?;
    Ok(said(&owner.prepare(&caller, asked).await))
}

async fn admit(
    State(owner): State<Arc<Shared>>,
    Extension(Caller(caller)): Extension<Caller>,
    Path(handle): Path<String>,
    body: Body,
) -> Answer {
    let asked: crate::wire::Admit = heard(body).await?;
    let Some(handle) = Handle::parse(&handle) else {
        return Ok(denied(Denied::NoSuchGrant));
    };
    Ok(said(&owner.admit(&caller, &handle, asked.fence)))
}

async fn extend(
    State(owner): State<Arc<Shared>>,
    Extension(Caller(caller)): Extension<Caller>,
    Path(handle): Path<String>,
    body: Body,
) -> Answer {
    let asked = heard(body).await?;
    let Some(handle) = Handle::parse(&handle) else {
        return Ok(denied(Denied::NoSuchGrant));
    };
    Ok(said(&owner.extend(&caller, &handle, asked).await))
}

async fn retire(
    State(owner): State<Arc<Shared>>,
    Extension(Caller(caller)): Extension<Caller>,
    body: Body,
) -> Answer {
    let asked = heard(body).await?;
    Ok(said(&owner.retire(&caller, &asked)))
}

/// The bytes of the film, or a range of them, to the one boot that may read them.
async fn bytes(
    State(owner): State<Arc<Shared>>,
    Extension(Caller(caller)): Extension<Caller>,
    Path(handle): Path<String>,
    method: Method,
    headers: HeaderMap,
) -> Response {
    let Some(handle) = Handle::parse(&handle) else {
        return denied(Denied::NoSuchGrant);
    };
    let Some(bearer) = bearer(&headers) else {
        return denied(Denied::Bearer);
    };
    let granted = match owner.read(&caller, &handle, bearer.hash()) {
        Ok(granted) => granted,
        Err(why) => return denied(why),
    };
    let Granted {
        reader,
        file,
        revision,
        cut,
    } = granted;
    // Told before the first byte, where it can be told; a change in the middle can only break the answer.
    if Revision::of(file.as_ref()).ok() != Some(revision) {
        return message::problem(
            StatusCode::PRECONDITION_FAILED,
            "source_changed",
            "the file is not in the granted state any more",
        );
    }
    let tag = revision.word();
    let entity = Entity {
        len: revision.size,
        etag: &tag,
        modified: None,
        dated: false,
    };
    let Head {
        status,
        headers,
        body,
    } = head(&method, &headers, &entity, "application/octet-stream");
    let mut response = match body {
        None => Response::new(Body::empty()),
        Some(range) => {
            let pieces = FilePieces::new(file, revision, range, Arc::clone(&owner.disk));
            Response::new(Body::new(Sending { reader, pieces }))
        }
    };
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    response
        .headers_mut()
        .insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response.extensions_mut().insert(cut);
    response
}

/// The bytes of one answer, for as long as its grant lives.
struct Sending {
    // Joined before the file is let go.
    reader: Reader,
    pieces: FilePieces<Lent>,
}

impl HttpBody for Sending {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        let piece = ready!(this.pieces.poll_next(cx));
        if piece.is_some() && !this.reader.may_go_on() {
            return Poll::Ready(Some(Err(io::Error::other("the grant has ended"))));
        }
        Poll::Ready(piece.map(|piece| piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.pieces.left() == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.pieces.left())
    }
}

fn bearer(headers: &HeaderMap) -> Option<Bearer> {
    let text = headers.get(AUTHORIZATION)?.to_str().ok()?;
    let (scheme, bearer) = text.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| Bearer::of(bearer))
}

fn denied(why: Denied) -> Response {
    let (status, code) = match why {
        Denied::NoSuchGrant => (StatusCode::NOT_FOUND, "no_such_grant"),
        Denied::Opening => (StatusCode::SERVICE_UNAVAILABLE, "grant_opening"),
        Denied::Bearer => (StatusCode::UNAUTHORIZED, "bearer"),
        Denied::Sealed => (StatusCode::GONE, "grant_sealed"),
        Denied::Expired => (StatusCode::GONE, "grant_expired"),
        Denied::Readers { .. } => (StatusCode::TOO_MANY_REQUESTS, "grant_readers"),
    };
    let mut response = message::problem(status, code, &why.to_string());
    if matches!(why, Denied::Opening | Denied::Readers { .. }) {
        response
            .headers_mut()
            .insert(RETRY_AFTER, HeaderValue::from_static("1"));
    }
    response
}

async fn heard<T: DeserializeOwned>(body: Body) -> Result<T, MessageError> {
    message::read(body).await
}

fn said(answer: &impl Serialize) -> Response {
    debug_assert!(message::write(answer).is_ok_and(|bytes| bytes.len() <= MESSAGE));
    message::answer(StatusCode::OK, answer).into_response()
}
