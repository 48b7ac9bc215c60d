//! Errors as clients see them: one status and one short word for each, all in this place.

use std::fmt::Display;
use std::time::Duration;

use axum::Json;
use axum::response::{IntoResponse, Response};
use ether_encoder::{Ended, Unsupported};
use ether_media::decision::CannotPlay;
use http::header::{CACHE_CONTROL, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use serde_json::{Map, Value, json};

use crate::auth::{SignInError, Unauthorized};
use crate::grant::GrantError;
use crate::part::OpenError;
use crate::plan::PlanError;
use crate::playback::{MediaError, capacity_code, encoder_code, ended_words};
use crate::playbacks::CreateError;
use crate::ports::{CapacityRefusal, LibraryError, TokensUnavailable};

/// An error on its way to a client. Its text never holds a path, a token, a grant or an address.
#[derive(Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    code: &'static str,
    message: String,
    retry_after: Option<Duration>,
    fields: Map<String, Value>,
}

impl ApiError {
    pub(crate) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            retry_after: None,
            fields: Map::new(),
        }
    }

    pub(crate) fn malformed(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "malformed", message)
    }

    /// The field `name` holds `shown`, or is missing, where `allowed` is what may stand there.
    pub(crate) fn field(name: &str, shown: &str, allowed: impl Display) -> Self {
        let allowed = allowed.to_string();
        Self::malformed(format!("`{name}` is {shown}; allowed is: {allowed}"))
            .with("field", name)
            .with("allowed", allowed)
    }

    pub(crate) fn no_route() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "not_found",
            "there is nothing at this address",
        )
    }

    pub(crate) fn no_session() -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "no_such_session",
            "there is no such session",
        )
    }

    pub(crate) fn owner_only() -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            "owner_only",
            "only the owner's token may do this",
        )
    }

    pub(crate) fn wrong_scope() -> Self {
        Self::new(
            StatusCode::FORBIDDEN,
            "wrong_scope",
            "the grant is for something else",
        )
    }

    pub(crate) fn ended(message: impl Into<String>) -> Self {
        Self::new(StatusCode::GONE, "ended", message)
    }

    pub(super) fn retry(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.fields.insert(name.to_owned(), value.into());
        self
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut body = Map::new();
        body.insert("code".into(), json!(self.code));
        body.insert("message".into(), json!(self.message));
        body.extend(self.fields);
        let mut response = (self.status, Json(Value::Object(body))).into_response();
        let headers = response.headers_mut();
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        if let Some(after) = self.retry_after {
            // Whole seconds, and never "at once".
            let seconds = after.as_millis().div_ceil(1000).max(1);
            if let Ok(value) = HeaderValue::from_str(&seconds.to_string()) {
                headers.insert(RETRY_AFTER, value);
            }
        }
        if self.status == StatusCode::UNAUTHORIZED {
            headers.insert(
                WWW_AUTHENTICATE,
                HeaderValue::from_static("Bearer realm=\"ether\""),
            );
        }
        response
    }
}

impl From<Unauthorized> for ApiError {
    fn from(error: Unauthorized) -> Self {
        match error {
            Unauthorized::NoToken => Self::new(StatusCode::UNAUTHORIZED, "unauthorized", error.to_string()),
            Unauthorized::UnknownToken => {
                Self::new(StatusCode::UNAUTHORIZED, "token_unknown", error.to_string())
            }
            Unauthorized::NoGrant => Self::new(StatusCode::UNAUTHORIZED, "grant_missing", error.to_string()),
            Unauthorized::Unavailable(inner) => inner.into(),
        }
    }
}

impl From<TokensUnavailable> for ApiError {
    fn from(error: TokensUnavailable) -> Self {
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", error.to_string())
            .retry(Duration::from_secs(2))
    }
}

impl From<SignInError> for ApiError {
    fn from(error: SignInError) -> Self {
        let text = error.to_string();
        match error {
            SignInError::WrongCode => Self::new(StatusCode::UNAUTHORIZED, "wrong_code", text),
            SignInError::TooMany { retry_after } => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_attempts", text).retry(retry_after)
            }
            SignInError::Unavailable(inner) => inner.into(),
            SignInError::NoRandomness => Self::new(StatusCode::INTERNAL_SERVER_ERROR, "no_randomness", text),
        }
    }
}

impl From<GrantError> for ApiError {
    fn from(error: GrantError) -> Self {
        let code = match error {
            GrantError::NotGenuine => "unauthorized",
            GrantError::Expired => "grant_expired",
        };
        Self::new(StatusCode::UNAUTHORIZED, code, error.to_string())
    }
}

impl From<LibraryError> for ApiError {
    fn from(error: LibraryError) -> Self {
        let text = error.to_string();
        match error {
            LibraryError::NoSuchItem => Self::new(StatusCode::NOT_FOUND, "no_such_item", text),
            LibraryError::Unavailable => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "unavailable", text).retry(Duration::from_secs(2))
            }
        }
    }
}

impl From<CapacityRefusal> for ApiError {
    fn from(refusal: CapacityRefusal) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            capacity_code(&refusal),
            refusal.to_string(),
        )
        .retry(refusal.retry_after())
    }
}

impl From<PlanError> for ApiError {
    fn from(error: PlanError) -> Self {
        let text = error.to_string();
        let code = match &error {
            PlanError::CannotPlay(CannotPlay::Nothing) => "nothing_to_play",
            PlanError::CannotPlay(CannotPlay::NoSuchStream { .. }) => "no_such_stream",
            PlanError::CannotPlay(CannotPlay::CannotCopy { .. }) => "cannot_copy",
            PlanError::CannotPlay(CannotPlay::LengthUnknown) => "length_unknown",
            PlanError::CannotPlay(CannotPlay::Timeline(_)) => "cannot_cut",
            PlanError::StartPastEnd { .. } => "start_past_end",
            PlanError::Unsupported(Unsupported::Missing { .. }) => "encoder_lacks",
            PlanError::Unsupported(_) => "encoder_unsupported",
        };
        let answer = Self::new(StatusCode::UNPROCESSABLE_ENTITY, code, text);
        match error {
            PlanError::CannotPlay(CannotPlay::CannotCopy { why }) => answer.with("reason", why.code()),
            _ => answer,
        }
    }
}

impl From<CreateError> for ApiError {
    fn from(error: CreateError) -> Self {
        let text = error.to_string();
        match error {
            CreateError::Library(inner) => inner.into(),
            CreateError::Plan(inner) => inner.into(),
            CreateError::Capacity(inner) => inner.into(),
            CreateError::OperationConflict => Self::new(StatusCode::CONFLICT, "operation_conflict", text),
            CreateError::TooMany { .. } => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "too_many_sessions", text)
                    .retry(Duration::from_secs(10))
            }
            CreateError::TooManyOfYours { .. } => {
                Self::new(StatusCode::TOO_MANY_REQUESTS, "too_many_of_yours", text)
                    .retry(Duration::from_secs(10))
            }
            CreateError::NoRandomness => Self::new(StatusCode::INTERNAL_SERVER_ERROR, "no_randomness", text),
        }
    }
}

impl From<MediaError> for ApiError {
    fn from(error: MediaError) -> Self {
        let text = error.to_string();
        let unavailable = StatusCode::SERVICE_UNAVAILABLE;
        match error {
            MediaError::Ended(_) => Self::ended(text),
            MediaError::NoSuchResource => Self::new(StatusCode::NOT_FOUND, "no_such_segment", text),
            MediaError::SourceEnded { at } => {
                Self::new(StatusCode::NOT_FOUND, "source_ended", text).with("endMs", at.as_millis())
            }
            MediaError::NotReady => Self::new(unavailable, "not_ready", text).retry(Duration::from_secs(1)),
            MediaError::NoCapacity(refusal) => refusal.into(),
            MediaError::Refused { refusal, retry_after } => {
                Self::new(unavailable, encoder_code(&refusal), text).retry(retry_after)
            }
            MediaError::Start(_) => {
                Self::new(unavailable, "encoder_not_started", text).retry(Duration::from_secs(2))
            }
            MediaError::EncoderEnded { ended } => {
                let (code, why) = ended_words(&ended);
                match ended {
                    // The one that may pass without anybody changing anything about the playback.
                    Ended::ScratchFull => Self::new(unavailable, code, why).retry(Duration::from_secs(5)),
                    _ => Self::new(StatusCode::BAD_GATEWAY, code, why),
                }
            }
        }
    }
}

impl From<OpenError> for ApiError {
    fn from(error: OpenError) -> Self {
        let text = error.to_string();
        match error {
            OpenError::Changed => Self::new(StatusCode::NOT_FOUND, "file_changed", text),
            OpenError::Gone => Self::new(StatusCode::NOT_FOUND, "file_gone", text),
            OpenError::Unreadable(_) => Self::new(StatusCode::BAD_GATEWAY, "file_unreadable", text),
        }
    }
}
