//! One bounded JSON message: the form of everything that two boots say to each other besides media.
//!
//! A message is read whole or not at all, and a type that is sent refuses fields that it does not know
//! (`deny_unknown_fields`): within one version of the protocol nothing is guessed.

use axum::body::Body as AnyBody;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::header::{CACHE_CONTROL, CONTENT_TYPE};
use http::{HeaderValue, StatusCode};
use http_body::Body;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Bytes that a message may have.
pub const MESSAGE: usize = 64 << 10;
/// Bytes of a [`Problem`]'s text that are kept.
const TEXT: usize = 1_024;

/// Why a message was not read.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// It is too long.
    #[error("a message has at most {MESSAGE} bytes")]
    TooLong,
    /// It broke off.
    #[error("the message broke off")]
    Broken,
    /// It is not what is spoken here.
    #[error("the message is not understood at line {line}, column {column}")]
    NotUnderstood {
        /// Its line.
        line: usize,
        /// The byte in it.
        column: usize,
    },
}

/// Why a message was not written.
#[derive(Debug, thiserror::Error)]
#[error("the message would have {bytes} bytes, and may have {MESSAGE}")]
pub struct TooLong {
    /// Its length.
    pub bytes: usize,
}

/// What a peer says where it has no answer of the expected form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Problem {
    /// One word that a program can act on.
    pub code: String,
    /// The same for people.
    pub message: String,
}

/// Reads `body` as one message.
///
/// Cancelling leaves the rest of the body unread.
///
/// # Errors
/// [`MessageError`]; nothing of a message that is not whole is used.
pub async fn read<T: DeserializeOwned, B: Body>(body: B) -> Result<T, MessageError>
where
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    if body.size_hint().lower() > MESSAGE as u64 {
        return Err(MessageError::TooLong);
    }
    let collected = Limited::new(body, MESSAGE).collect().await;
    let bytes = collected.map_err(|error| match error.is::<LengthLimitError>() {
        true => MessageError::TooLong,
        false => MessageError::Broken,
    })?;
    parse(&bytes.to_bytes())
}

/// Reads bytes as one message.
///
/// # Errors
/// [`MessageError::TooLong`], [`MessageError::NotUnderstood`].
pub fn parse<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, MessageError> {
    if bytes.len() > MESSAGE {
        return Err(MessageError::TooLong);
    }
    // Only the place is kept: what the parser says may quote what it read.
    serde_json::from_slice(bytes).map_err(|error| MessageError::NotUnderstood {
        line: error.line(),
        column: error.column(),
    })
}

/// Writes a message.
///
/// # Errors
/// [`TooLong`]; nothing is sent in parts.
pub fn write(message: &impl Serialize) -> Result<Bytes, TooLong> {
    let bytes = serde_json::to_vec(message).unwrap_or_default();
    match bytes.len() {
        1..=MESSAGE => Ok(bytes.into()),
        bytes => Err(TooLong { bytes }),
    }
}

/// An answer that is a message.
pub fn answer(status: StatusCode, message: &impl Serialize) -> Response {
    match write(message) {
        Ok(bytes) => json(status, bytes),
        Err(error) => problem(
            StatusCode::INTERNAL_SERVER_ERROR,
            "answer_too_long",
            &error.to_string(),
        ),
    }
}

/// An answer for whoever asked what cannot be answered.
pub fn problem(status: StatusCode, code: &'static str, text: &str) -> Response {
    let message = Problem {
        code: code.to_owned(),
        message: text.chars().take(TEXT / 4).collect(),
    };
    json(status, write(&message).unwrap_or_default())
}

fn json(status: StatusCode, bytes: Bytes) -> Response {
    let mut response = Response::new(AnyBody::from(bytes));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

impl IntoResponse for MessageError {
    fn into_response(self) -> Response {
        let (status, code) = match self {
            Self::TooLong => (StatusCode::PAYLOAD_TOO_LARGE, "message_too_long"),
            Self::Broken => (StatusCode::BAD_REQUEST, "message_broken"),
            Self::NotUnderstood { .. } => (StatusCode::BAD_REQUEST, "message_not_understood"),
        };
        problem(status, code, &self.to_string())
    }
}
