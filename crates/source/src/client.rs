//! What a controller and a worker ask of an owner.

use std::ops::Range;
use std::time::Duration;

use bytes::Bytes;
use ether_peer::message::{self, MessageError, Problem, TooLong};
use ether_peer::{Dialer, Peer, PeerBody, SendError};
use http::header::{AUTHORIZATION, CONTENT_TYPE, IF_MATCH, RANGE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::grant::{Bearer, Handle};
use crate::wire::{
    Admit, AdmitAnswer, Extend, ExtendAnswer, PREFIX, Prepare, PrepareAnswer, Retire, RetirementAnswer,
};

/// How long a command may take to be answered.
const COMMAND: Duration = Duration::from_secs(5);
/// How long a read may take to begin.
const READ: Duration = Duration::from_secs(10);

/// Why an owner gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// It was not reached, or it is not known whether it was.
    #[error(transparent)]
    Send(#[from] SendError),
    /// Its answer is not understood.
    #[error("the owner's answer: {0}")]
    Answer(#[from] MessageError),
    /// The question is too long.
    #[error(transparent)]
    TooLong(#[from] TooLong),
    /// It refused to answer.
    #[error("the owner refused: {status} {code}")]
    Refused {
        /// The status.
        status: StatusCode,
        /// The owner's word for it.
        code: String,
    },
}

impl AskError {
    /// Whether the owner may have acted. Every command can be repeated with the same words to find out.
    pub fn may_have_arrived(&self) -> bool {
        match self {
            Self::Send(error) => error.may_have_arrived(),
            Self::Answer(_) => true,
            Self::TooLong(_) | Self::Refused { .. } => false,
        }
    }
}

/// One owner, as it is asked. Clones share the dialer's connections.
#[derive(Clone, Debug)]
pub struct OwnerClient {
    dialer: Dialer,
    owner: Peer,
}

impl OwnerClient {
    /// Asks `owner` through `dialer`.
    pub fn new(dialer: Dialer, owner: Peer) -> Self {
        Self { dialer, owner }
    }

    /// Who is asked.
    pub fn owner(&self) -> &Peer {
        &self.owner
    }

    /// Asks for a grant, as its controller. Cancelling leaves open whether there is one: retire the operation.
    ///
    /// # Errors
    /// [`AskError`].
    pub async fn prepare(&self, asked: &Prepare) -> Result<PrepareAnswer, AskError> {
        self.ask("/grants".to_owned(), asked).await
    }

    /// Asks for a bearer, as the worker that may read.
    ///
    /// # Errors
    /// [`AskError`].
    pub async fn admit(&self, grant: &Handle, asked: &Admit) -> Result<AdmitAnswer, AskError> {
        self.ask(format!("/grants/{}/bearers", grant.as_str()), asked)
            .await
    }

    /// Asks for a later deadline, as the worker that may read.
    ///
    /// # Errors
    /// [`AskError`]; the same words again tell what holds.
    pub async fn extend(&self, grant: &Handle, asked: &Extend) -> Result<ExtendAnswer, AskError> {
        self.ask(format!("/grants/{}/deadline", grant.as_str()), asked)
            .await
    }

    /// Asks for the end and its proof, as controller or worker. Never waits for readers: ask again.
    ///
    /// # Errors
    /// [`AskError`]; it proves nothing.
    pub async fn retire(&self, asked: &Retire) -> Result<RetirementAnswer, AskError> {
        self.ask("/retirements".to_owned(), asked).await
    }

    /// Begins to read `range` of the state that `tag` names. The answer's status is for the caller to judge.
    ///
    /// # Errors
    /// [`SendError`].
    pub async fn read(
        &self,
        grant: &Handle,
        bearer: &Bearer,
        tag: &str,
        range: &Range<u64>,
    ) -> Result<Response<PeerBody>, SendError> {
        let mut request = Request::new(Bytes::new());
        *request.uri_mut() = path(&format!("/grants/{}/bytes", grant.as_str()));
        let headers = request.headers_mut();
        let header = |text: String| HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static(""));
        let mut authorization = header(format!("Bearer {}", bearer.expose()));
        authorization.set_sensitive(true);
        headers.insert(AUTHORIZATION, authorization);
        headers.insert(IF_MATCH, header(format!("\"{tag}\"")));
        let last = range.end.saturating_sub(1);
        headers.insert(RANGE, header(format!("bytes={}-{last}", range.start)));
        self.dialer.send(&self.owner, request, READ).await
    }

    /// Keeps `spare` connections ready, so that the next reads need no handshake. Cancel-safe.
    ///
    /// # Errors
    /// [`SendError`].
    pub async fn keep_ready(&self, spare: usize) -> Result<(), SendError> {
        self.dialer.keep_ready(&self.owner, spare).await
    }

    async fn ask<T: DeserializeOwned>(&self, at: String, asked: &impl Serialize) -> Result<T, AskError> {
        let mut request = Request::new(message::write(asked)?);
        *request.method_mut() = Method::POST;
        *request.uri_mut() = path(&at);
        request
            .headers_mut()
            .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let answer = self.dialer.send(&self.owner, request, COMMAND).await?;
        let status = answer.status();
        if status != StatusCode::OK {
            let said = message::read::<Problem, _>(answer.into_body()).await;
            let code = said.map_or_else(|_| "unknown".to_owned(), |problem| problem.code);
            return Err(AskError::Refused { status, code });
        }
        Ok(message::read(answer.into_body()).await?)
    }
}

/// Handles are hexadecimal digits: what is made of them here is always a path.
fn path(at: &str) -> http::Uri {
    http::Uri::try_from(format!("{PREFIX}{at}")).unwrap_or_default()
}
