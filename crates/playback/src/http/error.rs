//! Errors as clients see them: one status and one short word for each, all in this place.
//!
//! Each says what is wrong with what, and what to do about it. Whoever adds one states its mend too, and a test
//! walks all of them and holds their words against the published contract.

use std::fmt::Display;
use std::time::Duration;

use axum::Json;
use axum::response::{IntoResponse, Response};
use ether_encoder::{Ended, Resource, Unsupported};
use ether_media::decision::{CannotPlay, Reason};
use http::header::{CACHE_CONTROL, RETRY_AFTER, WWW_AUTHENTICATE};
use http::{HeaderValue, StatusCode};
use serde_json::{Map, Value, json};

use super::fields::shown_text;
use crate::auth::{SignInError, Unauthorized};
use crate::grant::GrantError;
use crate::lifecycle::EndReason;
use crate::plan::PlanError;
use crate::playback::{Failure, MediaError, capacity_code, encoder_code};
use crate::playbacks::CreateError;
use crate::ports::{CapacityRefusal, LibraryError, OpenError, TokensUnavailable};

/// The longest id that the library gives to an item.
const LONGEST_ID: usize = 32;

/// An error on its way to a client. Its text never holds a path of the machine, a token, a grant or an address.
#[derive(Debug)]
pub(crate) struct ApiError {
    pub(super) status: StatusCode,
    pub(super) code: &'static str,
    pub(super) message: String,
    retry_after: Option<Duration>,
    pub(super) fields: Map<String, Value>,
}

impl ApiError {
    /// An error whose `message` says what is wrong with what, and what mends it.
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            message: message.into(),
            retry_after: None,
            fields: Map::new(),
        }
    }

    /// An error that says `what` is wrong and what mends it.
    fn told(status: StatusCode, code: &'static str, what: impl Display, mend: impl Display) -> Self {
        Self::new(status, code, format!("{what}: {mend}"))
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
        Self::told(
            StatusCode::NOT_FOUND,
            "not_found",
            "there is nothing at this address",
            "media is at the addresses that a session and its playlists name, the page at /",
        )
    }

    pub(crate) fn method_not_allowed() -> Self {
        Self::told(
            StatusCode::METHOD_NOT_ALLOWED,
            "method_not_allowed",
            "this address does not take that method",
            "those that it takes are in the header Allow",
        )
    }

    pub(super) fn no_host() -> Self {
        Self::malformed("the header Host is missing, doubled or no text; a request names exactly one Host")
            .with("field", "Host")
            .with("allowed", "one name or address, with or without a port")
    }

    pub(super) fn foreign_host(host: &str) -> Self {
        Self::told(
            StatusCode::MISDIRECTED_REQUEST,
            "foreign_host",
            format_args!("this server does not answer to the name {}", shown_text(host)),
            "start ether with --host NAME, or use the server's address",
        )
    }

    pub(super) fn cross_site() -> Self {
        Self::told(
            StatusCode::FORBIDDEN,
            "cross_site",
            "a page of another site may not do this",
            "start ether with --origin URL to allow that site",
        )
    }

    pub(super) fn too_slow() -> Self {
        Self::told(
            StatusCode::REQUEST_TIMEOUT,
            "too_slow",
            "the request's body did not come in time",
            "send as many bytes as Content-Length says, within ten seconds",
        )
    }

    pub(super) fn too_large() -> Self {
        Self::told(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too_large",
            "the request's body is too large",
            "64 KiB are allowed",
        )
    }

    /// No item has the id `text`.
    pub(super) fn no_item(text: &str) -> Self {
        // Ids are shorter than any token that may have got into their place.
        let is_id = (1..=LONGEST_ID).contains(&text.len()) && text.bytes().all(|b| b.is_ascii_alphanumeric());
        let shown = if is_id { text.to_owned() } else { shown_text(text) };
        Self::told(
            StatusCode::NOT_FOUND,
            "no_such_item",
            format_args!("there is no item {shown}"),
            "GET /ether/api/library lists the items that there are",
        )
    }

    pub(super) fn no_picture() -> Self {
        Self::told(
            StatusCode::NOT_FOUND,
            "no_picture",
            "there is no picture of this item, and none could be made from its file",
            "show something in its place; `picture` is null once that is known",
        )
    }

    pub(crate) fn no_session() -> Self {
        Self::told(
            StatusCode::NOT_FOUND,
            "no_such_session",
            "there is no such session, or it is another viewer's",
            "ended ones are forgotten after a while; POST /ether/api/sessions makes one",
        )
    }

    pub(crate) fn owner_only() -> Self {
        Self::told(
            StatusCode::FORBIDDEN,
            "owner_only",
            "this token is a viewer's, and only the owner's may do this",
            "the owner's is in the file owner-token in the server's data directory",
        )
    }

    pub(super) fn owner_token() -> Self {
        Self::told(
            StatusCode::CONFLICT,
            "owner_token",
            "the owner's token is a file on the server and cannot be signed out",
            "forget it on this device; to make it count no more, remove owner-token and start ether again",
        )
    }

    pub(crate) fn wrong_scope() -> Self {
        Self::told(
            StatusCode::FORBIDDEN,
            "wrong_scope",
            "the grant in this address is for another session or for something else of it",
            "use the addresses as the session and its playlists give them",
        )
    }

    /// The session has ended, and not by anything that this server knows the reason of.
    pub(crate) fn ended(what: impl Display) -> Self {
        Self::told(
            StatusCode::GONE,
            "ended",
            what,
            "ask for another with POST /ether/api/sessions, which may begin where this one was left (`offsetMs`)",
        )
    }

    pub(super) fn over(reason: EndReason) -> Self {
        Self::ended(format_args!("the session has ended, as {reason}"))
    }

    /// Segment `number` of a session that has `segments`.
    pub(super) fn no_segment(number: u32, segments: usize) -> Self {
        let last = segments.saturating_sub(1);
        Self::told(
            StatusCode::NOT_FOUND,
            "no_such_segment",
            format_args!("the presentation ends before segment {number}"),
            format_args!("its segments are 0 to {last}"),
        )
        .with("allowed", format!("0 to {last}"))
    }

    /// No byte of the range that was asked for exists in `len` bytes.
    pub(super) fn no_range(len: u64) -> Self {
        let allowed = match len {
            0 => "no range at all: it has no bytes".to_owned(),
            _ => format!("bytes 0 to {}", len - 1),
        };
        Self::told(
            StatusCode::RANGE_NOT_SATISFIABLE,
            "no_such_range",
            format_args!("no byte of this range exists in {len} bytes"),
            format_args!("allowed is {allowed}"),
        )
        .with("field", "Range")
        .with("allowed", allowed)
    }

    pub(super) fn other_state() -> Self {
        Self::told(
            StatusCode::PRECONDITION_FAILED,
            "other_state",
            "this is not in the state that If-Match, If-None-Match or If-Unmodified-Since asks for",
            "the tag of its state is in the header ETag",
        )
    }

    /// A defect of the server: `what` did not work.
    pub(super) fn internal(what: &'static str) -> Self {
        Self::told(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            what,
            "that is a defect of the server; its log may say more",
        )
    }

    pub(super) fn retry(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }

    fn with(mut self, name: &str, value: impl Into<Value>) -> Self {
        self.fields.insert(name.to_owned(), value.into());
        self
    }

    fn later(code: &'static str, what: impl Display, mend: impl Display, after: Duration) -> Self {
        Self::told(StatusCode::SERVICE_UNAVAILABLE, code, what, mend).retry(after)
    }

    fn no_randomness(what: impl Display) -> Self {
        Self::told(
            StatusCode::INTERNAL_SERVER_ERROR,
            "no_randomness",
            what,
            "see whether the server's process may use getrandom and /dev/urandom",
        )
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
        // Their own words hold the mend.
        let text = error.to_string();
        let code = match error {
            Unauthorized::NoToken => "unauthorized",
            Unauthorized::UnknownToken => "token_unknown",
            Unauthorized::NoGrant => "grant_missing",
            Unauthorized::Unavailable(inner) => return inner.into(),
        };
        Self::new(StatusCode::UNAUTHORIZED, code, text)
    }
}

impl From<TokensUnavailable> for ApiError {
    fn from(error: TokensUnavailable) -> Self {
        Self::later("unavailable", error, DATABASE, Duration::from_secs(2))
    }
}

/// What mends a database that does not answer.
const DATABASE: &str = "ask again soon; if it stays so, the server's log says what its database lacks";

impl From<SignInError> for ApiError {
    fn from(error: SignInError) -> Self {
        let text = error.to_string();
        match error {
            SignInError::WrongCode => Self::new(StatusCode::UNAUTHORIZED, "wrong_code", text),
            SignInError::TooMany { retry_after } => Self::told(
                StatusCode::TOO_MANY_REQUESTS,
                "too_many_attempts",
                text,
                "wait as long as Retry-After says, or sign in with the owner's token",
            )
            .retry(retry_after),
            SignInError::Unavailable(inner) => inner.into(),
            SignInError::NoRandomness => Self::no_randomness(text),
        }
    }
}

impl From<GrantError> for ApiError {
    fn from(error: GrantError) -> Self {
        let (code, mend) = match error {
            GrantError::NotGenuine => (
                "unauthorized",
                "use the addresses as the session and its playlists give them; a session of a server that has lost \
                 its data directory is to be asked for anew",
            ),
            GrantError::Expired => (
                "grant_expired",
                "ask for a new session with POST /ether/api/sessions",
            ),
        };
        Self::told(StatusCode::UNAUTHORIZED, code, error, mend)
    }
}

impl From<LibraryError> for ApiError {
    fn from(error: LibraryError) -> Self {
        match error {
            LibraryError::NoSuchItem { item } => Self::no_item(item.as_str()),
            LibraryError::Unavailable => Self::later("unavailable", error, DATABASE, Duration::from_secs(2)),
        }
    }
}

impl From<CapacityRefusal> for ApiError {
    fn from(refusal: CapacityRefusal) -> Self {
        let mend = match refusal {
            CapacityRefusal::Encoders { .. } => {
                "end a session or ask again soon; --capacity says how much this machine takes"
            }
            CapacityRefusal::Scratch { .. } => {
                "end a session or ask again soon; --scratch says how much there is"
            }
            CapacityRefusal::QueueFull { .. } => "ask again soon",
            CapacityRefusal::Closed => "ask again when it is back",
            CapacityRefusal::None => "it was started with none; what players show as it is can be watched",
            CapacityRefusal::Unavailable => "ask again soon; if it stays so, the server's log says more",
        };
        Self::later(capacity_code(&refusal), refusal, mend, refusal.retry_after())
    }
}

impl From<PlanError> for ApiError {
    fn from(error: PlanError) -> Self {
        let (code, mend) = match &error {
            PlanError::CannotPlay(CannotPlay::Nothing) => (
                "nothing_to_play",
                "with `audio` -1 a film needs a picture; a file without either is no film",
            ),
            PlanError::CannotPlay(CannotPlay::NoSuchStream { .. }) => (
                "no_such_stream",
                "GET /ether/api/items/{id} lists the streams that there are",
            ),
            PlanError::CannotPlay(CannotPlay::CannotCopy { .. }) => (
                "cannot_copy",
                "leave `video` out, and the picture is encoded where it has to be",
            ),
            PlanError::CannotPlay(CannotPlay::LengthUnknown) => (
                "length_unknown",
                "it may be damaged or still being written; repackaging it (ffmpeg -c copy) mends this",
            ),
            PlanError::CannotPlay(CannotPlay::Timeline(_)) => (
                "cannot_cut",
                "ask for other `segmentSeconds`, or repackage the file (ffmpeg -c copy)",
            ),
            PlanError::CannotPlay(CannotPlay::NothingToDrawOn) => (
                "cannot_burn",
                "leave `burn` out; the text of what is only heard is offered beside it",
            ),
            PlanError::OnlyDrawn { .. } => (
                "cannot_burn",
                "leave `burn` out, and it is drawn in; with `subtitle` -1 nothing is",
            ),
            PlanError::NeverDrawn { .. } => (
                "cannot_burn",
                "leave `burn` out, and its text is offered beside the picture",
            ),
            PlanError::StartPastEnd { .. } => ("start_past_end", "ask for an earlier `offsetMs`"),
            PlanError::Unsupported(Unsupported::Missing { .. }) => (
                "encoder_lacks",
                "install an FFmpeg that has it; `ether doctor` lists what is missing",
            ),
            PlanError::Unsupported(_) => (
                "encoder_unsupported",
                "ask for it in another way: another `video`, `audio`, `subtitle` or `protocol`",
            ),
        };
        let answer = Self::told(StatusCode::UNPROCESSABLE_ENTITY, code, &error, mend);
        match error {
            PlanError::CannotPlay(CannotPlay::CannotCopy { why }) => {
                let answer = answer.with("reason", why.code());
                match why {
                    Reason::TooTall { height, .. } => answer.with("field", "maxHeight").with(
                        "allowed",
                        format!("a whole number from {height}, the picture's height"),
                    ),
                    Reason::BitRateTooHigh { rate, .. } => answer.with("field", "maxBitrate").with(
                        "allowed",
                        format!(
                            "a whole number from {rate}, the picture's bit rate, and what the sound takes"
                        ),
                    ),
                    Reason::SubtitleDrawn => answer.with("field", "video").with("allowed", "auto, encode"),
                    _ => answer,
                }
            }
            PlanError::OnlyDrawn { .. } => answer.with("field", "burn").with("allowed", "true, or left out"),
            PlanError::NeverDrawn { .. } | PlanError::CannotPlay(CannotPlay::NothingToDrawOn) => {
                answer.with("field", "burn").with("allowed", "false, or left out")
            }
            PlanError::StartPastEnd { end, .. } => answer
                .with("field", "offsetMs")
                .with("allowed", format!("less than {}", end.as_millis())),
            _ => answer,
        }
    }
}

impl From<CreateError> for ApiError {
    fn from(error: CreateError) -> Self {
        let text = error.to_string();
        match error {
            CreateError::Library(inner) => inner.into(),
            CreateError::Open(inner) => inner.into(),
            CreateError::Plan(inner) => inner.into(),
            CreateError::Capacity(inner) => inner.into(),
            CreateError::OperationConflict => Self::told(
                StatusCode::CONFLICT,
                "operation_conflict",
                text,
                "send the first request again, or a key of its own with this one",
            ),
            CreateError::OperationEnded { id, .. } => Self::told(
                StatusCode::GONE,
                "ended",
                text,
                "a new one needs a new Idempotency-Key",
            )
            .with("session", id.as_str()),
            CreateError::TooMany { .. } => Self::later(
                "too_many_sessions",
                text,
                "end one, or ask again later",
                Duration::from_secs(10),
            ),
            CreateError::TooManyOfYours { .. } => Self::told(
                StatusCode::TOO_MANY_REQUESTS,
                "too_many_of_yours",
                text,
                "end one, or ask again later",
            )
            .retry(Duration::from_secs(10)),
            CreateError::NoRandomness => Self::no_randomness(text),
        }
    }
}

impl From<MediaError> for ApiError {
    fn from(error: MediaError) -> Self {
        let text = error.to_string();
        match error {
            MediaError::Ended(reason) => Self::over(reason),
            MediaError::NoSuchResource { resource } => Self::told(
                StatusCode::NOT_FOUND,
                "no_such_segment",
                match resource {
                    Resource::Segment { number, .. } => {
                        format!("this session has no segment {number} of this kind")
                    }
                    _ => "this session has no such initialization segment".to_owned(),
                },
                "its playlists name those that there are",
            ),
            MediaError::SourceEnded { at, .. } => Self::told(
                StatusCode::NOT_FOUND,
                "source_ended",
                text,
                "what is there can be watched; copy the file anew for the rest",
            )
            .with("endMs", at.as_millis()),
            MediaError::NotReady => {
                Self::later("not_ready", text, "ask again, it comes", Duration::from_secs(1))
            }
            MediaError::NoCapacity(refusal) => refusal.into(),
            MediaError::Refused { refusal, retry_after } => Self::later(
                encoder_code(&refusal),
                text,
                "ask again soon, or end another session",
                retry_after,
            ),
            MediaError::Start(_) => Self::later(
                "encoder_not_started",
                text,
                "ask again soon; `ether doctor` looks for what keeps FFmpeg from starting",
                Duration::from_secs(2),
            ),
            MediaError::Failed(failure) => failed(&failure),
        }
    }
}

fn failed(failure: &Failure) -> ApiError {
    let status = match failure.ended {
        // May pass without anybody changing anything about the playback.
        Ended::ScratchFull => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::BAD_GATEWAY,
    };
    let answer = ApiError::new(status, failure.code(), failure.to_string())
        .with("film", failure.film.clone())
        .with("said", failure.said.clone())
        .with("times", failure.times);
    match (failure.rests, &failure.ended) {
        (Some(rests), _) => answer.retry(rests),
        (None, Ended::ScratchFull) => answer.retry(Duration::from_secs(5)),
        (None, _) => answer,
    }
}

impl From<OpenError> for ApiError {
    fn from(error: OpenError) -> Self {
        let (status, code, mend) = match &error {
            OpenError::FolderMissing { .. } => (
                StatusCode::NOT_FOUND,
                "folder_missing",
                "mount its disk or share again; its items are kept",
            ),
            OpenError::Changed { .. } => (
                StatusCode::NOT_FOUND,
                "file_changed",
                "take the new address from GET /ether/api/items/{id} once it was scanned",
            ),
            OpenError::Gone { .. } => (
                StatusCode::NOT_FOUND,
                "file_gone",
                "put it back, or scan the folders (POST /ether/api/library/scan) to have it forgotten; what is \
                 behind a link is not served",
            ),
            OpenError::Unreadable { .. } => (
                StatusCode::BAD_GATEWAY,
                "file_unreadable",
                "see that its disk answers and that the server's user may read it",
            ),
            OpenError::Library(inner) => return inner.clone().into(),
        };
        Self::told(status, code, &error, mend)
    }
}

#[cfg(test)]
mod tests;
