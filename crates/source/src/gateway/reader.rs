//! One answer to FFmpeg: what the index has, and then the owner's bytes as they come.

use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use ether_encoder::BoxFuture;
use ether_peer::PeerBody;
use ether_types::Monotonic;
use ether_types::clock::Sleep;
use http::header::{CONTENT_RANGE, ETAG};
use http::{HeaderMap, StatusCode};
use http_body::{Body, Frame, SizeHint};

use super::index::{BLOCK, Filling};
use super::{Input, InputFailure, Reader, Shared};
use crate::grant::Denied;

/// How long a reader waits before it asks again.
const AGAIN: Duration = Duration::from_millis(100);

/// The bytes of one range of an input.
pub(super) struct Reading {
    range: Range<u64>,
    state: State,
    /// When the last byte came, or when the wait for one began.
    since: Monotonic,
    /// Ends a wait for an owner that says nothing at all. It is looked at when it rings, and set anew.
    alarm: Option<Sleep>,
    shared: Arc<Shared>,
    reader: Reader,
}

enum State {
    /// Nobody has been asked yet.
    Looking,
    /// The owner is being asked.
    Asking(BoxFuture<'static, Result<Answer, Trouble>>),
    /// Its answer comes.
    Coming(Box<Answer>),
    /// It is asked again soon.
    Pausing(Sleep),
}

/// The owner's bytes from `at` on.
struct Answer {
    body: PeerBody,
    at: u64,
    filling: Filling,
}

/// Why the owner's bytes do not come.
enum Trouble {
    /// They may come later.
    Passing,
    /// They will not come.
    Lasting(InputFailure),
}

impl Reading {
    pub(super) fn new(reader: Reader, range: Range<u64>, shared: Arc<Shared>) -> Self {
        Self {
            range,
            state: State::Looking,
            since: shared.clock.monotonic(),
            alarm: None,
            shared,
            reader,
        }
    }

    fn input(&self) -> &Arc<Input> {
        &self.reader.0
    }

    /// The next bytes of the answer, if they are to be had from `bytes` that begin at `at`.
    fn piece(&mut self, at: u64, mut bytes: Bytes) -> Option<Bytes> {
        let skip = usize::try_from(self.range.start - at).unwrap_or(usize::MAX);
        bytes.advance(skip.min(bytes.len()));
        let most = usize::try_from(self.range.end - self.range.start).unwrap_or(usize::MAX);
        bytes.truncate(most);
        self.range.start += bytes.len() as u64;
        (!bytes.is_empty()).then_some(bytes)
    }

    /// Whether the owner has been silent for as long as a reader waits; otherwise this is asked again in time.
    fn is_silent(&mut self, cx: &mut Context<'_>) -> bool {
        let patience = self.shared.limits.patience;
        loop {
            let waited = self.shared.clock.monotonic().saturating_since(self.since);
            let Some(left) = patience.checked_sub(waited).filter(|left| !left.is_zero()) else {
                return true;
            };
            let alarm = self.alarm.get_or_insert_with(|| self.shared.clock.sleep(left));
            match alarm.as_mut().poll(cx) {
                Poll::Ready(()) => self.alarm = None,
                Poll::Pending => return false,
            }
        }
    }

    fn ask(&self) -> State {
        let (input, shared) = (Arc::clone(self.input()), Arc::clone(&self.shared));
        let at = self.range.start / BLOCK * BLOCK;
        let wanted = at..self.range.end;
        State::Asking(Box::pin(async move { ask(&input, &shared, wanted).await }))
    }

    /// Gives up, or waits for a moment, after `trouble`.
    fn after(&mut self, trouble: Trouble) -> Result<State, io::Error> {
        let now = self.shared.clock.monotonic();
        let failure = match trouble {
            Trouble::Lasting(failure) => failure,
            Trouble::Passing if now.saturating_since(self.since) >= self.shared.limits.patience => {
                InputFailure::Unreachable
            }
            Trouble::Passing => return Ok(State::Pausing(self.shared.clock.sleep(AGAIN))),
        };
        self.input().fail(failure);
        Err(io::Error::other(failure))
    }
}

impl Body for Reading {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        loop {
            if this.range.is_empty() {
                return Poll::Ready(None);
            }
            let next = match &mut this.state {
                State::Looking => {
                    let at = this.range.start;
                    let kept = this.shared.index.get(&this.input().film, at);
                    if let Some(piece) = kept.and_then(|bytes| this.piece(at, bytes)) {
                        return Poll::Ready(Some(Ok(Frame::data(piece))));
                    }
                    this.since = this.shared.clock.monotonic();
                    Ok(this.ask())
                }
                State::Asking(asking) => match ready!(asking.as_mut().poll(cx)) {
                    Ok(answer) => {
                        // One was taken, and may be given up in the middle.
                        this.shared.ready(&this.input().client);
                        Ok(State::Coming(Box::new(answer)))
                    }
                    Err(trouble) => this.after(trouble),
                },
                State::Coming(answer) => match Pin::new(&mut answer.body).poll_frame(cx) {
                    Poll::Pending => match this.is_silent(cx) {
                        true => this.after(Trouble::Passing),
                        false => return Poll::Pending,
                    },
                    Poll::Ready(Some(Ok(frame))) => {
                        let Ok(bytes) = frame.into_data() else { continue };
                        let at = answer.at;
                        answer.at += bytes.len() as u64;
                        answer.filling.take(&this.shared.index, &bytes);
                        this.since = this.shared.clock.monotonic();
                        if let Some(piece) = this.piece(at, bytes) {
                            return Poll::Ready(Some(Ok(Frame::data(piece))));
                        }
                        continue;
                    }
                    // It broke, or ended before what it announced; why shows when it is asked for again.
                    Poll::Ready(Some(Err(_)) | None) => this.after(Trouble::Passing),
                },
                State::Pausing(pause) => {
                    ready!(pause.as_mut().poll(cx));
                    Ok(this.ask())
                }
            };
            match next {
                Ok(state) => this.state = state,
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.range.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.range.end - self.range.start)
    }
}

/// Asks the owner for `wanted`.
async fn ask(input: &Input, shared: &Shared, wanted: Range<u64>) -> Result<Answer, Trouble> {
    let bearer = match input.bearer(&shared.clock).await {
        Ok(Ok(bearer)) => bearer,
        Ok(Err(Denied::NoSuchGrant | Denied::Sealed | Denied::Expired)) => {
            return Err(Trouble::Lasting(InputFailure::Ended));
        }
        Ok(Err(Denied::Opening | Denied::Bearer | Denied::Readers { .. })) | Err(_) => {
            return Err(Trouble::Passing);
        }
    };
    let read = input
        .client
        .read(&input.granted.handle, &bearer, &input.tag, &wanted)
        .await;
    let Ok(response) = read else {
        return Err(Trouble::Passing);
    };
    match response.status() {
        StatusCode::PARTIAL_CONTENT if is_what_was_asked(response.headers(), input, &wanted) => Ok(Answer {
            body: response.into_body(),
            at: wanted.start,
            filling: Filling::new(input.film.clone(), wanted.start / BLOCK),
        }),
        StatusCode::PRECONDITION_FAILED => Err(Trouble::Lasting(InputFailure::Changed)),
        StatusCode::NOT_FOUND | StatusCode::GONE => Err(Trouble::Lasting(InputFailure::Ended)),
        StatusCode::UNAUTHORIZED => {
            input.forget_bearer().await;
            Err(Trouble::Passing)
        }
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => Err(Trouble::Passing),
        // Redirections among them: nobody but the owner is asked.
        _ => Err(Trouble::Lasting(InputFailure::Unexpected)),
    }
}

/// Whether an answer is of the granted state and of the range that was asked for.
fn is_what_was_asked(headers: &HeaderMap, input: &Input, wanted: &Range<u64>) -> bool {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let size = input.granted.revision.size;
    text(ETAG) == Some(&format!("\"{}\"", input.tag))
        && text(CONTENT_RANGE) == Some(&format!("bytes {}-{}/{size}", wanted.start, wanted.end - 1))
}
