//! Signing a device in with a code, and out again.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use http::StatusCode;
use serde_json::json;

use super::App;
use super::auth::{Body, Known};
use super::error::ApiError;
use super::fields::{Fields, Read};
use super::guard::Ends;
use crate::auth::Principal;

pub(super) struct SignInBody {
    code: String,
}

impl Read for SignInBody {
    fn read(fields: &Fields<'_>) -> Result<Self, ApiError> {
        let code = fields.secret("code")?.to_owned();
        Ok(Self { code })
    }
}

pub(super) async fn sign_in(
    State(app): State<Arc<App>>,
    ends: Option<Extension<Ends>>,
    Body(body): Body<SignInBody>,
) -> Result<Response, ApiError> {
    let from = ends.map(|Extension(ends)| ends.peer.ip());
    let token = app.auth.sign_in(&body.code, from).await?;
    Ok(Json(json!({"token": token.expose()})).into_response())
}

pub(super) async fn sign_out(
    State(app): State<Arc<App>>,
    Known(principal): Known,
) -> Result<StatusCode, ApiError> {
    match principal {
        Principal::Viewer(viewer) => {
            app.auth.sign_out(viewer).await?;
            Ok(StatusCode::NO_CONTENT)
        }
        Principal::Owner => Err(ApiError::owner_token()),
    }
}
