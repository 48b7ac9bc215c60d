//! The accept loop: connections within bounds, none left behind.
//!
//! Own, because the bounds are the point: how long a request's head may take and an idle connection may stay
//! open, how many connections there are, how long a peer may refuse to read, and when stopping ends.
//!
//! A head that is no HTTP, or too large, never becomes a request: hyper answers it itself, with a status and no body
//! (400, 414, 431), and offers no place to say more. Every answer that is made here has a JSON body.

mod seats;
mod stall;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use ether_types::Clock;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use super::guard::Ends;
use seats::{Admission, Seat, Seats};
use stall::Unstalled;
pub(super) use stall::{Patient, Wire};

/// Connections that were told to make room and are not gone yet.
const LEAVING: usize = 64;
/// How long a connection that has to make room may take to finish sending.
const FAREWELL: Duration = Duration::from_secs(1);
/// The answer to an address that has its share of connections, each busy.
const CROWDED: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\n\
Content-Length: 103\r\nRetry-After: 1\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n\
{\"code\":\"too_many_connections\",\"message\":\"this address has as many busy connections as one may have\"}";

/// Bounds of a server's connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Connections at once. One more takes the place of an idle one; where none is idle, it waits.
    pub connections: usize,
    /// Of these, how many one address may have.
    pub connections_each: usize,
    /// How long a request's head may take, and an idle connection may stay open.
    pub head: Duration,
    /// Bytes that a request's head may have, and fields in it.
    pub head_bytes: usize,
    /// Fields that a request's head may have.
    pub head_fields: usize,
    /// How long a peer may take none of what it asked for.
    pub stall: Duration,
    /// How long requests that run may go on once the server stops.
    pub drain: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            connections: 512,
            connections_each: 256,
            head: Duration::from_secs(30),
            head_bytes: 32 * 1024,
            head_fields: 100,
            stall: Duration::from_secs(60),
            drain: Duration::from_secs(5),
        }
    }
}

/// What serving came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerReport {
    /// Connections that were served.
    pub connections: u64,
    /// Connections that were turned away, as their address had its share.
    pub turned_away: u64,
    /// Connections that were cut off when the server stopped.
    pub cut_off: usize,
}

/// A router behind an accept loop.
#[derive(Clone)]
pub struct Server {
    router: Router,
    limits: ServerLimits,
    clock: Arc<dyn Clock>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Serves `router` within `limits`.
    pub fn new(router: Router, limits: ServerLimits, clock: Arc<dyn Clock>) -> Self {
        Self {
            router,
            limits,
            clock,
        }
    }

    /// Serves `listener` until `stop`, then lets what runs finish for a while, then cuts it off. Returns once
    /// every connection is gone. Dropping the future cuts every connection off at once.
    pub async fn serve(&self, listener: TcpListener, stop: CancellationToken) -> ServerReport {
        let seats = Seats::new(self.limits.connections, self.limits.connections_each);
        let mut connections = JoinSet::new();
        let mut report = ServerReport::default();
        // Kept over the rounds of the loop: what waits for its seat must not be dropped when another leaves.
        let mut accepting = Box::pin(accept(&listener, &seats));
        loop {
            let leaving = connections.len() >= self.limits.connections.saturating_add(LEAVING);
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(_) = connections.join_next() => continue,
                accepted = accepting.as_mut(), if !leaving => accepted,
            };
            accepting.set(accept(&listener, &seats));
            match accepted {
                Ok((_, _, None)) => report.turned_away += 1,
                Ok((stream, peer, Some(seat))) => {
                    report.connections += 1;
                    let (server, stop) = (self.clone(), stop.clone());
                    connections.spawn(async move { server.connection(stream, peer, seat, stop).await });
                }
                Err(error) => {
                    // A connection that was reset before it was accepted costs nothing; want of descriptors
                    // passes once some are closed, and is not to be asked about in a busy loop.
                    tracing::warn!(%error, "a connection was not accepted");
                    if !matches!(
                        error.kind(),
                        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
                    ) {
                        self.clock.sleep(Duration::from_millis(100)).await;
                    }
                }
            }
        }
        drop(accepting);
        drop(listener);
        let mut deadline = self.clock.sleep(self.limits.drain);
        loop {
            tokio::select! {
                biased;
                joined = connections.join_next() => if joined.is_none() {
                    return report;
                },
                () = &mut deadline => {
                    report.cut_off = connections.len();
                    connections.shutdown().await;
                    return report;
                }
            }
        }
    }

    async fn connection(&self, stream: TcpStream, peer: SocketAddr, seat: Seat, stop: CancellationToken) {
        let Ok(local) = stream.local_addr() else {
            return;
        };
        // Small answers go out at once; without it a playlist waits for the peer's delayed acknowledgement.
        let _ = stream.set_nodelay(true);
        let ends = Ends { local, peer };
        let (router, asked) = (self.router.clone(), &seat);
        let wire = Wire::default();
        let answering = wire.clone();
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let (router, running, wire) = (router.clone(), asked.running(), answering.clone());
            async move {
                let mut request = request.map(Body::new);
                request.extensions_mut().insert(ends);
                request.extensions_mut().insert(wire);
                let Ok(answered) = router.oneshot(request).await;
                Ok::<_, Infallible>(answered.map(|body| running.until_sent(body)))
            }
        });
        let stream = Unstalled::new(stream, self.limits.stall, wire, Arc::clone(&self.clock));
        let io = TokioIo::new(stream);
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.limits.head)
            .max_headers(self.limits.head_fields)
            .max_header_size(self.limits.head_bytes)
            .serve_connection(io, service);
        let mut connection = std::pin::pin!(connection);
        let ended = tokio::select! {
            biased;
            ended = connection.as_mut() => ended,
            () = stop.cancelled() => {
                connection.as_mut().graceful_shutdown();
                connection.await
            }
            () = seat.asked_to_leave() => {
                if !seat.was_used() {
                    return;
                }
                connection.as_mut().graceful_shutdown();
                loop {
                    tokio::select! {
                        biased;
                        ended = connection.as_mut() => break ended,
                        // A request that came in the same moment is still answered; half of one is not.
                        () = self.clock.sleep(FAREWELL) => if !seat.is_busy() {
                            return;
                        },
                    }
                }
            }
        };
        if let Err(error) = ended {
            // Peers vanish all the time; what they asked for was dropped with the connection.
            tracing::debug!(%error, "a connection ended early");
        }
    }
}

/// The next connection with its seat, once there is room for one; without one where its address has its share.
/// Cancelling drops a connection that waits for its seat.
async fn accept(
    listener: &TcpListener,
    seats: &Arc<Seats>,
) -> io::Result<(TcpStream, SocketAddr, Option<Seat>)> {
    let (stream, peer) = listener.accept().await?;
    loop {
        match seats.admit(peer.ip()) {
            Admission::Seated(seat) => return Ok((stream, peer, Some(seat))),
            Admission::Full => seats.freed().await,
            Admission::Crowded => {
                // As a courtesy, and only where it can go out at once.
                let mut stream = stream.into_std()?;
                let _ = io::Write::write(&mut stream, CROWDED);
                return Ok((TcpStream::from_std(stream)?, peer, None));
            }
        }
    }
}
