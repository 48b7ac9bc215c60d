//! Two boots talk, and everybody else is kept out: real sockets, real TLS.

use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body as AnyBody;
use axum::routing::{get, post};
use axum::{Extension, Router};
use bytes::Bytes;
use ether_testkit::house::{House, member};
use ether_tls::Member;
use ether_types::{Clock, ManualClock, SystemClock, Timestamp};
use http::{Method, Request, StatusCode};
use http_body::{Body, Frame};
use http_body_util::BodyExt as _;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::*;

const SOON: Duration = Duration::from_secs(20);

fn dialer(house: &House, member: &Member) -> Dialer {
    Dialer::new(
        house.published(member),
        DialerLimits::default(),
        Arc::clone(&house.clock),
    )
}

fn serve(house: &House, member: &Member, router: Router) -> Served {
    serve_at(house, member, router, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
}

fn serve_at(house: &House, member: &Member, router: Router, address: SocketAddr) -> Served {
    let socket = bind(address).unwrap();
    let peer = Peer {
        member: member.clone(),
        address: socket.local_addr().unwrap(),
    };
    let limits = ListenerLimits {
        drain: Duration::ZERO,
        ..ListenerLimits::default()
    };
    let clock = Arc::clone(&house.clock);
    let listener = Listener::new(house.published(member), router, limits, clock);
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let task = tokio::spawn(async move { listener.serve(socket, stopped).await });
    Served { peer, stop, task }
}

struct Served {
    peer: Peer,
    stop: CancellationToken,
    task: JoinHandle<ListenerReport>,
}

impl Served {
    async fn stop(self) -> ListenerReport {
        self.stop.cancel();
        self.task.await.unwrap()
    }
}

fn system() -> Arc<dyn Clock> {
    Arc::new(SystemClock::new())
}

fn ask(path: &str) -> Request<Bytes> {
    Request::builder().uri(path).body(Bytes::new()).unwrap()
}

fn who() -> Router {
    Router::new().route(
        "/who",
        get(|Extension(Caller(member)): Extension<Caller>| async move { member.uri() }),
    )
}

async fn text(response: http::Response<PeerBody>) -> String {
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Never ends, and counts itself out when it is dropped.
struct Endless(Arc<AtomicUsize>);

impl Body for Endless {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        Poll::Ready(Some(Ok(Frame::data(Bytes::from_static(&[1; 16_384])))))
    }
}

impl Drop for Endless {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

fn endless(alive: &Arc<AtomicUsize>) -> Router {
    let alive = Arc::clone(alive);
    Router::new().route(
        "/endless",
        get(move || async move {
            alive.fetch_add(1, Ordering::SeqCst);
            AnyBody::new(Endless(alive))
        }),
    )
}

/// Waits for what another task is about to do; the bound is that of the test runner.
async fn until(mut done: impl FnMut() -> bool) {
    while !done() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

#[tokio::test]
async fn a_request_is_answered_to_a_known_boot_and_its_connection_used_again() {
    let house = House::new(system());
    let (a, b) = (member("attic", "1"), member("cellar", "1"));
    let served = serve(&house, &b, who());
    let dialer = dialer(&house, &a);
    for _ in 0..5 {
        let answer = dialer.send(&served.peer, ask("/who"), SOON).await.unwrap();
        assert_eq!(text(answer).await, a.uri());
    }
    let report = served.stop().await;
    assert_eq!(report.accepted, 1);
}

#[tokio::test]
async fn a_boot_that_restarted_on_the_same_address_gets_no_request_meant_for_the_old_one() {
    let house = House::new(system());
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&asked);
    let router = Router::new().fallback(move || async move {
        counted.fetch_add(1, Ordering::SeqCst);
        "heard"
    });
    let served = serve(&house, &member("cellar", "2"), router);
    let old = Peer {
        member: member("cellar", "1"),
        address: served.peer.address,
    };
    let dialer = dialer(&house, &member("attic", "1"));
    let refused = dialer.send(&old, ask("/who"), SOON).await.unwrap_err();
    assert!(
        matches!(
            refused,
            SendError::Handshake(ether_tls::HandshakeError::OtherBoot)
        ),
        "{refused:?}"
    );
    assert!(!refused.may_have_arrived());
    dialer.send(&served.peer, ask("/who"), SOON).await.unwrap();
    assert_eq!(asked.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn whoever_shows_nothing_or_another_authoritys_certificate_is_not_answered() {
    let house = House::new(system());
    let served = serve(&house, &member("cellar", "1"), who());
    let stranger = House::new(system());
    let theirs = dialer(&stranger, &member("attic", "1"));
    let refused = theirs.send(&served.peer, ask("/who"), SOON).await.unwrap_err();
    assert!(matches!(refused, SendError::Handshake(_)), "{refused:?}");

    let mut plain = TcpStream::connect(served.peer.address).await.unwrap();
    plain
        .write_all(b"GET /who HTTP/1.1\r\nHost: x\r\n\r\n")
        .await
        .unwrap();
    let mut heard = Vec::new();
    let _ = plain.read_to_end(&mut heard).await;
    assert!(!heard.starts_with(b"HTTP"), "{heard:?}");
}

#[tokio::test]
async fn a_crowd_that_says_nothing_does_not_keep_a_peer_out() {
    let house = House::new(system());
    let served = serve(&house, &member("cellar", "1"), who());
    let mut crowd = Vec::new();
    for _ in 0..300 {
        crowd.push(TcpStream::connect(served.peer.address).await.unwrap());
    }
    let dialer = dialer(&house, &member("attic", "1"));
    let answer = dialer.send(&served.peer, ask("/who"), SOON).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    // All but one address's share of the doorway was let go: their sockets are at their end.
    let mut gone = 0;
    for silent in &mut crowd[..250] {
        let mut byte = [0];
        gone += usize::from(matches!(silent.read(&mut byte).await, Ok(0) | Err(_)));
    }
    assert_eq!(gone, 250);
}

#[tokio::test]
async fn an_answer_that_is_given_up_ends_at_the_other_side() {
    let house = House::new(system());
    let alive = Arc::new(AtomicUsize::new(0));
    let served = serve(&house, &member("cellar", "1"), endless(&alive));
    let dialer = dialer(&house, &member("attic", "1"));
    let mut answer = dialer.send(&served.peer, ask("/endless"), SOON).await.unwrap();
    answer.body_mut().frame().await.unwrap().unwrap();
    assert_eq!(alive.load(Ordering::SeqCst), 1);
    drop(answer);
    until(|| alive.load(Ordering::SeqCst) == 0).await;
    assert_eq!(
        dialer.ready(&served.peer),
        0,
        "a connection in the middle of an answer is no spare"
    );
}

#[tokio::test]
async fn spare_connections_are_made_ahead_and_used() {
    let house = House::new(system());
    let served = serve(&house, &member("cellar", "1"), who());
    let dialer = dialer(&house, &member("attic", "1"));
    dialer.keep_ready(&served.peer, 3).await.unwrap();
    dialer.keep_ready(&served.peer, 3).await.unwrap();
    assert_eq!(dialer.ready(&served.peer), 3);
    let answer = dialer.send(&served.peer, ask("/who"), SOON).await.unwrap();
    assert_eq!(dialer.ready(&served.peer), 2);
    text(answer).await;
    assert_eq!(dialer.ready(&served.peer), 3);
    assert_eq!(served.stop().await.accepted, 3);
}

#[tokio::test]
async fn a_connection_that_was_closed_while_idle_costs_no_request() {
    let house = House::new(system());
    let boot = member("cellar", "1");
    let first = serve(&house, &boot, who());
    let peer = first.peer.clone();
    let dialer = dialer(&house, &member("attic", "1"));
    dialer.keep_ready(&peer, 2).await.unwrap();
    first.stop().await;
    let again = serve_at(&house, &boot, who(), peer.address);
    let answer = dialer.send(&peer, ask("/who"), SOON).await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    again.stop().await;
    let gone = dialer.send(&peer, ask("/who"), SOON).await.unwrap_err();
    assert!(matches!(gone, SendError::Connect(_)), "{gone:?}");
    assert!(!gone.may_have_arrived());
}

#[tokio::test]
async fn no_request_begins_on_a_connection_whose_certificate_is_over() {
    let clock = ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000));
    let house = House::new(Arc::new(clock.clone()));
    let boot = member("cellar", "1");
    let served = serve(&house, &boot, who());
    let dialer = dialer(&house, &member("attic", "1"));
    text(dialer.send(&served.peer, ask("/who"), SOON).await.unwrap()).await;
    assert_eq!(dialer.ready(&served.peer), 1);
    clock.step_wall(12 * 3_600_000_000);
    assert_eq!(dialer.ready(&served.peer), 0, "it would be refused");
    let over = dialer.send(&served.peer, ask("/who"), SOON).await.unwrap_err();
    assert!(
        matches!(over, SendError::Handshake(ether_tls::HandshakeError::OwnExpired)),
        "{over:?}"
    );
}

#[tokio::test]
async fn a_listener_refuses_requests_past_a_certificate_whatever_the_peers_clock_says() {
    let behind = ManualClock::at(Timestamp::from_micros(1_700_000_000_000_000));
    let right = ManualClock::at(behind.now());
    let house = House::new(Arc::new(right.clone()));
    let served = serve(&house, &member("cellar", "1"), who());
    let late: Arc<dyn Clock> = Arc::new(behind.clone());
    let dialer = Dialer::new(
        house.published_by(&member("attic", "1"), &late),
        DialerLimits::default(),
        late,
    );
    text(dialer.send(&served.peer, ask("/who"), SOON).await.unwrap()).await;
    right.step_wall(12 * 3_600_000_000);
    let answer = dialer.send(&served.peer, ask("/who"), SOON).await.unwrap();
    assert_eq!(answer.status(), StatusCode::UNAUTHORIZED);
    let problem: message::Problem = message::read(answer.into_body()).await.unwrap();
    assert_eq!(problem.code, "certificate_over");
}

#[tokio::test]
async fn a_listener_that_stops_cuts_off_what_does_not_end() {
    let house = House::new(system());
    let alive = Arc::new(AtomicUsize::new(0));
    let served = serve(&house, &member("cellar", "1"), endless(&alive));
    let dialer = dialer(&house, &member("attic", "1"));
    let mut answer = dialer.send(&served.peer, ask("/endless"), SOON).await.unwrap();
    answer.body_mut().frame().await.unwrap().unwrap();
    let report = served.stop().await;
    assert_eq!(report.cut_off, 1);
    assert_eq!(alive.load(Ordering::SeqCst), 0);
    while let Some(frame) = answer.body_mut().frame().await {
        if frame.is_err() {
            return;
        }
    }
    panic!("an answer that was cut off must not look whole");
}

#[derive(Debug, Serialize, Deserialize, PartialEq)]
#[serde(deny_unknown_fields)]
struct Greeting {
    name: String,
}

#[tokio::test]
async fn messages_are_bounded_and_understood_whole_or_not_at_all() {
    let house = House::new(system());
    let router = Router::new().route(
        "/greet",
        post(
            async |body: AnyBody| match message::read::<Greeting, _>(body).await {
                Ok(greeting) => message::answer(StatusCode::OK, &greeting),
                Err(error) => axum::response::IntoResponse::into_response(error),
            },
        ),
    );
    let served = serve(&house, &member("cellar", "1"), router);
    let dialer = dialer(&house, &member("attic", "1"));
    let long = format!("{{\"name\":\"{}\"}}", "x".repeat(message::MESSAGE));
    for (sent, status, code) in [
        ("{\"name\":\"a\"}", StatusCode::OK, None),
        (
            "{\"name\":\"a\",\"more\":1}",
            StatusCode::BAD_REQUEST,
            Some("message_not_understood"),
        ),
        (
            "{\"name\":\"a\"} x",
            StatusCode::BAD_REQUEST,
            Some("message_not_understood"),
        ),
        ("", StatusCode::BAD_REQUEST, Some("message_not_understood")),
        (&long, StatusCode::PAYLOAD_TOO_LARGE, Some("message_too_long")),
    ] {
        let request = Request::builder()
            .method(Method::POST)
            .uri("/greet")
            .body(Bytes::from(sent.to_owned()))
            .unwrap();
        let answer = dialer.send(&served.peer, request, SOON).await.unwrap();
        assert_eq!(answer.status(), status, "{code:?}");
        match code {
            None => {
                let greeting: Greeting = message::read(answer.into_body()).await.unwrap();
                assert_eq!(greeting.name, "a");
            }
            Some(code) => {
                let problem: message::Problem = message::read(answer.into_body()).await.unwrap();
                assert_eq!(problem.code, code);
                assert!(!problem.message.contains("xxx"));
            }
        }
    }
    let whole = Greeting {
        name: "x".repeat(message::MESSAGE),
    };
    assert!(message::write(&whole).is_err());
}
