//! Requests to one boot of one node.
//!
//! A connection belongs to the boot that proved itself on it. One that is idle is used again, one whose answer was not
//! read to its end is dropped with it, and a few are kept ready where asked for, since an answer that is given up in
//! the middle (a player that seeks) costs its connection.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use ether_tls::{HandshakeError, Member, Published};
use ether_types::{Clock, Monotonic, Timestamp};
use http::header::HOST;
use http::{HeaderValue, Request, Response};
use http_body::{Body, Frame, SizeHint};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper_util::rt::TokioIo;
use tokio_util::task::AbortOnDropHandle;

use crate::socket;

/// Where a boot can be reached.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Peer {
    /// The boot.
    pub member: Member,
    /// Its private listener.
    pub address: SocketAddr,
}

/// Bounds of a dialer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DialerLimits {
    /// How long a TCP connection may take to come about; the handshake has [`ether_tls::HANDSHAKE`].
    pub connect: Duration,
    /// Idle connections that are kept to one peer.
    pub idle: usize,
    /// How long one is kept. Shorter than a listener keeps it, so that it is seldom closed under a request.
    pub idle_time: Duration,
}

impl Default for DialerLimits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(5),
            idle: 8,
            idle_time: Duration::from_secs(45),
        }
    }
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum SendError {
    /// The peer cannot be reached.
    #[error("the peer cannot be reached: {0}")]
    Connect(#[source] io::Error),
    /// It did not take a connection in time.
    #[error("the peer took no connection within {} ms", within.as_millis())]
    ConnectTimedOut {
        /// The bound.
        within: Duration,
    },
    /// The peer is not who was dialled, or does not want to talk.
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// The connection failed before its answer began.
    #[error("the connection failed before the answer: {0}")]
    Lost(#[source] hyper::Error),
    /// The answer did not begin in time.
    #[error("the peer did not answer within {} ms", within.as_millis())]
    TimedOut {
        /// The bound.
        within: Duration,
    },
}

impl SendError {
    /// Whether the peer may have acted on the request.
    pub fn may_have_arrived(&self) -> bool {
        matches!(self, Self::Lost(_) | Self::TimedOut { .. })
    }
}

/// Sends requests to peers. Clones share their connections; all are dropped with the last clone.
#[derive(Clone)]
pub struct Dialer {
    inner: Arc<Inner>,
}

struct Inner {
    published: Published,
    limits: DialerLimits,
    clock: Arc<dyn Clock>,
    idle: Mutex<HashMap<Peer, Vec<Idle>>>,
}

struct Idle {
    open: Open,
    since: Monotonic,
}

/// A connection that nobody uses just now.
struct Open {
    sender: SendRequest<Full<Bytes>>,
    /// The end of the certificates that it began with.
    until: Timestamp,
    _driver: AbortOnDropHandle<()>,
}

impl std::fmt::Debug for Dialer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dialer")
            .field("limits", &self.inner.limits)
            .finish_non_exhaustive()
    }
}

impl Dialer {
    /// A dialer that shows what is published.
    pub fn new(published: Published, limits: DialerLimits, clock: Arc<dyn Clock>) -> Self {
        Self {
            inner: Arc::new(Inner {
                published,
                limits,
                clock,
                idle: Mutex::default(),
            }),
        }
    }

    /// Sends `request`, whose address is a path, to `peer`, and waits `within` for the answer's head. It is sent once;
    /// a connection that turns out to be closed before it took a byte is replaced by a new one.
    ///
    /// Cancelling drops the connection; the peer may have acted.
    ///
    /// # Errors
    /// [`SendError`]; ask it whether the request may have arrived.
    pub async fn send(
        &self,
        peer: &Peer,
        request: Request<Bytes>,
        within: Duration,
    ) -> Result<Response<PeerBody>, SendError> {
        let mut request = request.map(Full::new);
        request
            .headers_mut()
            .insert(HOST, HeaderValue::from_static("ether.internal"));
        while let Some(mut open) = self.inner.take(peer) {
            match self.inner.bounded(within, open.sender.ready()).await {
                Some(Ok(())) => {}
                // It was closed while it was idle; nothing was sent on it.
                Some(Err(_)) | None => continue,
            }
            let answered = self.inner.bounded(within, open.sender.try_send_request(request));
            match answered.await {
                None => return Err(SendError::TimedOut { within }),
                Some(Ok(response)) => return Ok(self.answer(peer, open, response)),
                Some(Err(mut error)) => match error.take_message() {
                    Some(unsent) => request = unsent,
                    None => return Err(SendError::Lost(error.into_error())),
                },
            }
        }
        let mut open = self.inner.connect(peer).await?;
        let answered = self.inner.bounded(within, open.sender.send_request(request));
        match answered.await {
            None => Err(SendError::TimedOut { within }),
            Some(Err(error)) => Err(SendError::Lost(error)),
            Some(Ok(response)) => Ok(self.answer(peer, open, response)),
        }
    }

    /// Makes connections until `spare` to `peer` are idle, at most as many as may be kept. Cancel-safe.
    ///
    /// # Errors
    /// [`SendError`]; those that were made stay.
    pub async fn keep_ready(&self, peer: &Peer, spare: usize) -> Result<(), SendError> {
        let spare = spare.min(self.inner.limits.idle);
        while self.inner.count(peer) < spare {
            let open = self.inner.connect(peer).await?;
            self.inner.put(peer, open);
        }
        Ok(())
    }

    /// Idle connections to `peer` that can be used now.
    pub fn ready(&self, peer: &Peer) -> usize {
        self.inner.count(peer)
    }

    fn answer(&self, peer: &Peer, open: Open, response: Response<Incoming>) -> Response<PeerBody> {
        response.map(|body| {
            let mut body = PeerBody {
                body,
                back: Some((open, peer.clone(), Arc::downgrade(&self.inner))),
            };
            body.give_back_at_the_end();
            body
        })
    }
}

impl Inner {
    async fn connect(&self, peer: &Peer) -> Result<Open, SendError> {
        let within = self.limits.connect;
        let connected = self.bounded(within, socket::connect(peer.address)).await;
        let stream = connected
            .ok_or(SendError::ConnectTimedOut { within })?
            .map_err(SendError::Connect)?;
        let secured = self.published.connect(stream, &peer.member).await?;
        let until = secured.until();
        let (sender, connection) = http1::handshake(TokioIo::new(secured))
            .await
            .map_err(SendError::Lost)?;
        let driver = tokio::spawn(async move {
            // Its failure is told to whoever waits for an answer.
            let _ = connection.await;
        });
        Ok(Open {
            sender,
            until,
            _driver: AbortOnDropHandle::new(driver),
        })
    }

    async fn bounded<T>(&self, within: Duration, work: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            done = work => Some(done),
            () = self.clock.sleep(within) => None,
        }
    }

    /// The connection that was used last: the others may then grow old and go.
    fn take(&self, peer: &Peer) -> Option<Open> {
        let mut idle = self.lock();
        self.forget_old(&mut idle);
        idle.get_mut(peer)?.pop().map(|idle| idle.open)
    }

    fn put(&self, peer: &Peer, open: Open) {
        let since = self.clock.monotonic();
        let mut idle = self.lock();
        let kept = idle.entry(peer.clone()).or_default();
        kept.push(Idle { open, since });
        if kept.len() > self.limits.idle {
            kept.remove(0);
        }
    }

    fn count(&self, peer: &Peer) -> usize {
        let mut idle = self.lock();
        self.forget_old(&mut idle);
        idle.get(peer).map_or(0, Vec::len)
    }

    fn forget_old(&self, idle: &mut HashMap<Peer, Vec<Idle>>) {
        let (now, wall) = (self.clock.monotonic(), self.clock.now());
        idle.retain(|_, kept| {
            kept.retain(|idle| {
                let young = now.saturating_since(idle.since) < self.limits.idle_time;
                young && wall < idle.open.until && !idle.open.sender.is_closed()
            });
            !kept.is_empty()
        });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Peer, Vec<Idle>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The body of an answer. Read to its end it gives the connection back; dropped before, it closes it, which is how
/// the peer learns that nobody wants the rest.
pub struct PeerBody {
    body: Incoming,
    back: Option<(Open, Peer, Weak<Inner>)>,
}

impl PeerBody {
    fn give_back_at_the_end(&mut self) {
        if !self.body.is_end_stream() {
            return;
        }
        if let Some((open, peer, inner)) = self.back.take()
            && let Some(inner) = inner.upgrade()
        {
            inner.put(&peer, open);
        }
    }
}

impl std::fmt::Debug for PeerBody {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PeerBody")
    }
}

impl Body for PeerBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        match &frame {
            Some(Ok(_)) => self.give_back_at_the_end(),
            Some(Err(_)) => self.back = None,
            None => {
                // The end of a body without a length shows only here.
                if let Some((open, peer, inner)) = self.back.take()
                    && let Some(inner) = inner.upgrade()
                {
                    inner.put(&peer, open);
                }
            }
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
