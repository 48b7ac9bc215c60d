//! The private listener: nobody gets a word in without a certificate of the cluster.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use ether_tls::{HandshakeError, Member, Published};
use ether_transfer::{HeadLimits, Line};
use ether_types::{Clock, Timestamp};
use http::{Request, StatusCode};
use hyper::body::Incoming;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::doorway::{Doorway, Place};
use crate::{message, socket};

/// The wall clock may be set forward while a connection sleeps: its certificate's end is looked at this often.
const LOOK: Duration = Duration::from_secs(30);

/// Who asks, by the certificate of the connection. Every request carries it in its extensions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller(pub Member);

/// Bounds of a private listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenerLimits {
    /// Connections that have not shown a certificate yet.
    pub unproved: usize,
    /// Of these, how many one address may have.
    pub unproved_each: usize,
    /// Connections of one boot.
    pub connections_each: usize,
    /// Bounds of a request's head.
    pub head: HeadLimits,
    /// How long requests that run may go on once the listener stops.
    pub drain: Duration,
}

impl Default for ListenerLimits {
    fn default() -> Self {
        Self {
            unproved: 128,
            unproved_each: 32,
            connections_each: 1_024,
            head: HeadLimits::default(),
            drain: Duration::from_secs(5),
        }
    }
}

/// What serving came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ListenerReport {
    /// Connections that were accepted, proved or not.
    pub accepted: u64,
    /// Connections that were cut off when the listener stopped.
    pub cut_off: usize,
}

/// A router behind mutual TLS.
#[derive(Clone)]
pub struct Listener {
    published: Published,
    router: Router,
    limits: ListenerLimits,
    clock: Arc<dyn Clock>,
    seats: Arc<Mutex<HashMap<Member, usize>>>,
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener")
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl Listener {
    /// Serves `router` to the boots that `published` trusts.
    pub fn new(published: Published, router: Router, limits: ListenerLimits, clock: Arc<dyn Clock>) -> Self {
        Self {
            published,
            router,
            limits,
            clock,
            seats: Arc::default(),
        }
    }

    /// Serves `listener` (made by [`crate::bind`]) until `stop`, then lets what runs finish for a while, then cuts it
    /// off. Returns once every connection is gone. Dropping the future cuts every connection off at once.
    pub async fn serve(&self, listener: TcpListener, stop: CancellationToken) -> ListenerReport {
        let doorway = Doorway::new(self.limits.unproved, self.limits.unproved_each);
        let mut connections = JoinSet::new();
        let mut report = ListenerReport::default();
        loop {
            let accepted = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(_) = connections.join_next() => continue,
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, address)) => {
                    report.accepted += 1;
                    let place = doorway.enter(address.ip());
                    let (listener, stop) = (self.clone(), stop.clone());
                    connections.spawn(async move { listener.connection(stream, place, stop).await });
                }
                Err(error) => {
                    tracing::warn!(%error, "a private connection was not accepted");
                    // Want of descriptors passes once some are closed, and is not to be asked about without pause.
                    self.clock.sleep(Duration::from_millis(50)).await;
                }
            }
        }
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

    async fn connection(&self, stream: TcpStream, place: Place, stop: CancellationToken) {
        if socket::tune(&stream).is_err() {
            return;
        }
        let address = stream.peer_addr().ok();
        let proved = tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = place.needed() => return,
            proved = self.published.accept(stream) => proved,
        };
        drop(place);
        let secured = match proved {
            Ok(secured) => secured,
            // A probe that hangs up is no event; whoever shows the wrong thing is.
            Err(HandshakeError::Io(error)) => {
                tracing::debug!(%error, ?address, "a private connection ended in its handshake");
                return;
            }
            Err(error) => {
                tracing::warn!(%error, ?address, "a private connection was refused");
                return;
            }
        };
        let (peer, until) = (secured.peer().clone(), secured.until());
        let Some(_seat) = self.seat(&peer) else {
            tracing::warn!(%peer, most = self.limits.connections_each, "a boot has as many connections as one may have");
            return;
        };
        let answer = |request: Request<Incoming>| {
            let (router, peer) = (self.router.clone(), peer.clone());
            let over = self.clock.now() >= until;
            async move {
                if over {
                    return certificate_over();
                }
                let mut request = request.map(Body::new);
                request.extensions_mut().insert(Caller(peer));
                let answered: Result<Response, Infallible> = router.oneshot(request).await;
                let Ok(response) = answered;
                response
            }
        };
        let over = async {
            tokio::select! {
                () = stop.cancelled() => {}
                () = self.over(until) => {}
            }
        };
        Line::new(secured, self.limits.head).serve(answer, over).await;
    }

    /// Completes once `until` has come by the wall clock.
    async fn over(&self, until: Timestamp) {
        loop {
            let left = until.saturating_since(self.clock.now());
            if left.is_zero() {
                return;
            }
            self.clock.sleep(left.min(LOOK)).await;
        }
    }

    fn seat(&self, peer: &Member) -> Option<Seat> {
        let mut seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = seats.entry(peer.clone()).or_default();
        if *taken >= self.limits.connections_each {
            return None;
        }
        *taken += 1;
        Some(Seat {
            seats: Arc::clone(&self.seats),
            peer: peer.clone(),
        })
    }
}

/// The answer to a request that began after the certificate's end.
fn certificate_over() -> Response {
    message::problem(
        StatusCode::UNAUTHORIZED,
        "certificate_over",
        "a certificate of this connection is over: connect again",
    )
}

/// One connection of a boot, counted for as long as it lives.
struct Seat {
    seats: Arc<Mutex<HashMap<Member, usize>>>,
    peer: Member,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(taken) = seats.get_mut(&self.peer) {
            *taken -= 1;
            if *taken == 0 {
                seats.remove(&self.peer);
            }
        }
    }
}
