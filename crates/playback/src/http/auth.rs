//! Tokens and grants as requests carry them, and bodies read within bounds.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequest, FromRequestParts, Request};
use bytes::Bytes;
use ether_types::PlaybackId;
use http::StatusCode;
use http::request::Parts;

use super::App;
use super::error::ApiError;
use super::fields::{self, Read};
use crate::auth::{Principal, Unauthorized};
use crate::grant::{GrantScope, Surface};
use crate::playback::Playback;

/// How long a body may take to come in.
const BODY_PATIENCE: Duration = Duration::from_secs(10);

/// Whoever holds the token that came with the request.
pub(crate) struct Known(pub(crate) Principal);

impl FromRequestParts<Arc<App>> for Known {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        Ok(Self(app.auth.principal(&parts.headers).await?))
    }
}

/// The owner.
pub(crate) struct Owner;

impl FromRequestParts<Arc<App>> for Owner {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        match app.auth.principal(&parts.headers).await? {
            Principal::Owner => Ok(Self),
            Principal::Viewer(_) => Err(ApiError::owner_only()),
        }
    }
}

/// A JSON body, read within its bounds whatever it says its type is. Errors name the field.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: Read> FromRequest<Arc<App>> for Body<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, ApiError> {
        let bytes = tokio::select! {
            biased;
            bytes = Bytes::from_request(request, app) => bytes,
            () = app.clock.sleep(BODY_PATIENCE) => {
                return Err(ApiError::too_slow());
            }
        };
        let bytes = bytes.map_err(|rejection| match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => ApiError::too_large(),
            _ => {
                ApiError::malformed("the request's body broke off; it must be as long as Content-Length says")
            }
        })?;
        fields::read(&bytes).map(Self)
    }
}

/// The grant in a request's address.
pub(crate) fn grant_of(query: Option<&str>) -> Option<&str> {
    query?
        .split('&')
        .find_map(|pair| pair.strip_prefix("grant="))
        .filter(|grant| !grant.is_empty())
}

/// The playback whose media `grant` opens, which must be the one that the address names where it names one.
pub(crate) fn granted(
    app: &App,
    grant: Option<&str>,
    named: Option<&str>,
    scope: GrantScope,
) -> Result<Arc<Playback>, ApiError> {
    let grant = grant.ok_or(Unauthorized::NoGrant)?;
    let grant = app.playbacks.keys().verify(grant, app.clock.now())?;
    if let Some(named) = named {
        let named = PlaybackId::new(named).map_err(|_| ApiError::no_session())?;
        if named != grant.playback {
            return Err(ApiError::wrong_scope());
        }
    }
    if grant.surface != Surface::Native || grant.scope != scope {
        return Err(ApiError::wrong_scope());
    }
    // A genuine grant is proof that the playback was there once.
    let Some(playback) = app.playbacks.get(&grant.playback) else {
        return Err(ApiError::ended("the session has ended and was forgotten"));
    };
    if let Some(reason) = playback.sealed() {
        return Err(ApiError::over(reason));
    }
    // Every epoch so far has the same timeline, and its addresses stay good. One that never was is nobody's.
    if grant.epoch > playback.edition().epoch {
        return Err(ApiError::ended("the session has no such epoch"));
    }
    Ok(playback)
}
