//! What this boot shows now, and the connections that are made with it.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::{Arc, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::Duration;

use ether_types::{Clock, Timestamp};
use rustls::pki_types::CertificateDer;
use rustls::{AlertDescription, CertificateError, CommonState};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};

use crate::certificate;
use crate::credentials::Credentials;
use crate::member::{Member, NotAMember};

/// How long a handshake may take.
pub const HANDSHAKE: Duration = Duration::from_secs(10);

/// Why no connection came about.
#[derive(Debug, thiserror::Error)]
pub enum HandshakeError {
    /// The peer did not finish within [`HANDSHAKE`].
    #[error("the peer did not finish the handshake within {} seconds", HANDSHAKE.as_secs())]
    TimedOut,
    /// The peer showed no certificate.
    #[error("the peer showed no certificate")]
    NoCertificate,
    /// The peer's certificate is not from a trusted root.
    #[error("the peer's certificate does not lead to a trusted root")]
    Untrusted,
    /// The peer's certificate is over, or not valid yet, by this node's clock.
    #[error("the peer's certificate is not valid now")]
    Expired,
    /// The peer is not the boot that was dialled.
    #[error("the peer is not the boot that was dialled")]
    OtherBoot,
    /// The peer's certificate names no member.
    #[error("the peer is no member: {0}")]
    NotAMember(#[from] NotAMember),
    /// The peer belongs to another cluster.
    #[error("the peer belongs to another cluster")]
    OtherCluster,
    /// The peer refused this node.
    #[error("the peer refused this node: {0:?}")]
    Refused(AlertDescription),
    /// The peer does not speak what is spoken here: TLS 1.3 with certificates on both sides.
    #[error("the peer does not speak TLS 1.3 as it is spoken here: {0}")]
    Protocol(rustls::Error),
    /// The own credentials have expired: nothing is shown any more.
    #[error("the own certificate has expired")]
    OwnExpired,
    /// The connection failed.
    #[error("the connection failed during the handshake: {0}")]
    Io(#[source] io::Error),
}

/// Why credentials were not published.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PublishError {
    /// They are another boot's: a process has one identity for as long as it lives.
    #[error("the credentials are those of {0}")]
    OtherMember(Box<Member>),
    /// They end before those that are published, so publishing them would shorten what peers were promised.
    #[error("the credentials end before those that are in use")]
    EndsEarlier,
}

/// The credentials that are shown and trusted now. Clones share them.
///
/// New ones replace the old for connections that begin afterwards; those that exist go on with what they began with
/// and end by [`Secured::until`].
#[derive(Clone)]
pub struct Published {
    current: Arc<RwLock<Arc<Credentials>>>,
    clock: Arc<dyn Clock>,
}

impl fmt::Debug for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Published").field(&self.current()).finish()
    }
}

impl Published {
    /// Publishes the first credentials of this boot.
    pub fn new(first: Credentials, clock: Arc<dyn Clock>) -> Self {
        Self {
            current: Arc::new(RwLock::new(Arc::new(first))),
            clock,
        }
    }

    /// What is published now.
    pub fn current(&self) -> Arc<Credentials> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces what is published.
    ///
    /// # Errors
    /// [`PublishError`]; what was published stays.
    pub fn publish(&self, next: Credentials) -> Result<(), PublishError> {
        let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
        if next.member() != current.member() {
            return Err(PublishError::OtherMember(Box::new(next.member().clone())));
        }
        if next.not_after() < current.not_after() {
            return Err(PublishError::EndsEarlier);
        }
        *current = Arc::new(next);
        Ok(())
    }

    /// Answers whoever connected with `stream`, and finds out who it is.
    ///
    /// Cancelling drops the connection.
    ///
    /// # Errors
    /// [`HandshakeError`]; the connection is gone.
    pub async fn accept<S>(&self, stream: S) -> Result<Secured<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let own = self.usable()?;
        let handshake = TlsAcceptor::from(Arc::clone(&own.server)).accept(stream);
        let stream = self.bounded(handshake).await?;
        let peer = self.peer(&own, stream.get_ref().1)?;
        Ok(Secured::new(TlsStream::Server(stream), peer))
    }

    /// Connects through `stream` to `to`, and to nobody else.
    ///
    /// The peer may still refuse this node once this returns: in TLS 1.3 the client speaks last, so whether it was
    /// accepted shows with the first byte that the peer sends. Cancelling drops the connection.
    ///
    /// # Errors
    /// [`HandshakeError`]; the connection is gone.
    pub async fn connect<S>(&self, stream: S, to: &Member) -> Result<Secured<S>, HandshakeError>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let own = self.usable()?;
        if to.cluster != own.member().cluster {
            return Err(HandshakeError::OtherCluster);
        }
        let connector = TlsConnector::from(Arc::clone(&own.client));
        let stream = self.bounded(connector.connect(to.server_name()?, stream)).await?;
        let peer = self.peer(&own, stream.get_ref().1)?;
        if peer.0 != *to {
            return Err(HandshakeError::OtherBoot);
        }
        Ok(Secured::new(TlsStream::Client(stream), peer))
    }

    fn usable(&self) -> Result<Arc<Credentials>, HandshakeError> {
        let own = self.current();
        if self.clock.now() >= own.not_after() {
            return Err(HandshakeError::OwnExpired);
        }
        Ok(own)
    }

    async fn bounded<T>(&self, handshake: impl Future<Output = io::Result<T>>) -> Result<T, HandshakeError> {
        tokio::select! {
            biased;
            done = handshake => done.map_err(failure),
            () = self.clock.sleep(HANDSHAKE) => Err(HandshakeError::TimedOut),
        }
    }

    /// Whom a finished handshake proved, and until when that counts.
    fn peer(&self, own: &Credentials, state: &CommonState) -> Result<(Member, Timestamp), HandshakeError> {
        let leaf: &CertificateDer<'_> = state
            .peer_certificates()
            .and_then(<[_]>::first)
            .ok_or(HandshakeError::NoCertificate)?;
        let member = certificate::member(leaf)?;
        if member.cluster != own.member().cluster {
            return Err(HandshakeError::OtherCluster);
        }
        let facts = certificate::facts(leaf).ok_or(NotAMember::Unreadable)?;
        // The verifier lets the last second pass; then there would be a connection that is over as it begins.
        if self.clock.now() >= facts.not_after {
            return Err(HandshakeError::Expired);
        }
        Ok((member, facts.not_after.min(own.not_after())))
    }
}

/// What a failed handshake's error says, in words that a caller can act on.
fn failure(error: io::Error) -> HandshakeError {
    let tls = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>())
        .cloned();
    match tls {
        None => HandshakeError::Io(error),
        Some(rustls::Error::NoCertificatesPresented) => HandshakeError::NoCertificate,
        Some(rustls::Error::AlertReceived(alert)) => HandshakeError::Refused(alert),
        Some(rustls::Error::InvalidCertificate(invalid)) => match invalid {
            CertificateError::Expired
            | CertificateError::ExpiredContext { .. }
            | CertificateError::NotValidYet
            | CertificateError::NotValidYetContext { .. } => HandshakeError::Expired,
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                HandshakeError::OtherBoot
            }
            _ => HandshakeError::Untrusted,
        },
        Some(other) => HandshakeError::Protocol(other),
    }
}

/// A connection whose other end is known.
pub struct Secured<S> {
    stream: TlsStream<S>,
    peer: Member,
    until: Timestamp,
}

impl<S> Secured<S> {
    fn new(stream: TlsStream<S>, (peer, until): (Member, Timestamp)) -> Self {
        Self { stream, peer, until }
    }

    /// The boot at the other end.
    pub fn peer(&self) -> &Member {
        &self.peer
    }

    /// The instant at which the first of the two certificates is over. No new request may begin on the connection
    /// from then on.
    pub fn until(&self) -> Timestamp {
        self.until
    }

    /// The transport under it.
    pub fn transport(&self) -> &S {
        self.stream.get_ref().0
    }
}

impl<S> fmt::Debug for Secured<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Secured")
            .field("peer", &self.peer)
            .field("until", &self.until)
            .finish_non_exhaustive()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Secured<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Secured<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
