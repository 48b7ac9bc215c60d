//! What FFmpeg sees of a granted film.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::response::Response;
use ether_peer::{Dialer, DialerLimits, Listener, ListenerLimits, Peer, bind};
use ether_testkit::house::member;
use ether_types::{Clock, SystemClock};
use http::header::{CONTENT_RANGE, ETAG, LOCATION};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

use super::stage::{Stage, ask, call, film, get};
use crate::wire::PREFIX;
use crate::{Gateway, GatewayLimits, Granted, Handle, InputFailure, OpenInputError};

fn system() -> Arc<dyn Clock> {
    Arc::new(SystemClock::new())
}

#[tokio::test]
async fn a_film_is_read_as_if_it_lay_here() {
    let stage = Stage::new(system()).await;
    let bytes = film(5 << 20);
    let granted = stage.granted("op", "a", &bytes).await;
    let tag = format!("\"{}\"", granted.revision.word());
    let input = stage.gateway.open(granted).await.unwrap();
    let url = input.url().to_owned();
    let whole = get(&url, "").await;
    assert_eq!((whole.status, whole.body == bytes), (200, true));
    assert_eq!(whole.header("accept-ranges"), Some("bytes"));
    assert_eq!(whole.header("etag"), Some(tag.as_str()));
    let head = ask(&url, "HEAD", None, "").await;
    assert_eq!((head.status, head.body.len()), (200, 0));
    assert_eq!(head.header("content-length"), Some("5242880"));
    for (range, from, to) in [
        ("0-0", 0, 1),
        ("16383-16384", 16_383, 16_385),
        ("5000000-", 5_000_000, 5 << 20),
        ("-7", (5 << 20) - 7, 5 << 20),
        ("1234567-2345678", 1_234_567, 2_345_679),
    ] {
        // Twice: once from the owner, once from what was kept of it.
        for _ in 0..2 {
            let part = get(&url, &format!("Range: bytes={range}\r\n")).await;
            assert_eq!(part.status, 206, "{range}");
            assert!(
                part.whole && part.body == bytes[from..to],
                "{range}: {}",
                part.head
            );
        }
    }
    assert_eq!(get(&url, "Range: bytes=5242880-\r\n").await.status, 416);
    let same = get(&url, &format!("Range: bytes=3-4\r\nIf-Range: {tag}\r\n")).await;
    assert_eq!(same.status, 206);
    let other = get(&url, "Range: bytes=3-4\r\nIf-Range: \"other\"\r\n").await;
    assert_eq!((other.status, other.body.len()), (200, bytes.len()));
    stage.end().await;
}

#[tokio::test]
async fn only_the_very_path_leads_to_a_film() {
    let stage = Stage::new(system()).await;
    let granted = stage.granted("op", "a", &film(10)).await;
    let input = stage.gateway.open(granted).await.unwrap();
    let url = input.url().to_owned();
    let path = url.rsplit_once('/').unwrap().1.to_owned();
    let mut wrong = path.clone();
    wrong.pop();
    for target in [
        "/".to_owned(),
        format!("/{wrong}"),
        format!("/{path}?x=1"),
        format!("/{path}/"),
        format!("//{path}"),
        format!("/x/../{path}"),
        format!("/%2e/{path}"),
        "*".to_owned(),
    ] {
        let heard = ask(&url, "GET", Some(&target), "").await;
        assert!(matches!(heard.status, 400 | 404), "{target}: {}", heard.head);
        assert!(heard.body.is_empty());
    }
    for method in ["POST", "PUT", "DELETE", "OPTIONS", "CONNECT"] {
        let heard = ask(&url, method, None, "").await;
        assert!(
            matches!(heard.status, 400 | 404 | 405),
            "{method}: {}",
            heard.head
        );
    }
    assert!(!format!("{input:?} {:?}", stage.gateway).contains(&path));
    assert_eq!(get(&url, "").await.body, film(10));
}

#[tokio::test]
async fn what_was_read_once_at_the_places_where_reading_began_costs_the_owner_nothing_more() {
    let stage = Stage::new(system()).await;
    let bytes = film(20 << 20);
    let granted = stage.granted("op", "a", &bytes).await;
    let input = stage.gateway.open(granted).await.unwrap();
    let places = ["0-98303", "20000000-20971519", "9999999-10010623"];
    let read = async || {
        for place in places {
            let part = get(input.url(), &format!("Range: bytes={place}\r\n")).await;
            let (from, last) = place.split_once('-').unwrap();
            let (from, last): (usize, usize) = (from.parse().unwrap(), last.parse().unwrap());
            assert!(part.body == bytes[from..=last], "{place}");
        }
    };
    read().await;
    read().await;
    read().await;
    input.seal();
    assert_eq!(input.done().await.answers(), 9);
    assert_eq!(stage.retired("op").await, 3);
}

#[tokio::test]
async fn a_sealed_input_is_done_when_its_last_reader_is_gone() {
    let stage = Stage::new(system()).await;
    let granted = stage.granted("op", "a", &film(16 << 20)).await;
    let input = stage.gateway.open(granted.clone()).await.unwrap();
    let mut stuck = call(input.url(), "GET", None, "").await;
    let mut first = [0; 1_024];
    stuck.read_exact(&mut first).await.unwrap();
    assert!(
        tokio::time::timeout(Duration::from_millis(20), input.done())
            .await
            .is_err(),
        "nothing is done before it is sealed"
    );
    input.seal();
    // Nobody else has had a turn since: the reader is still there, and nothing is proved.
    let mut done = Box::pin(input.done());
    let waits = std::future::poll_fn(|cx| Poll::Ready(done.as_mut().poll(cx).is_pending())).await;
    assert!(waits, "done is said of an input that is being read");
    assert_eq!(done.await.answers(), 1);
    assert_eq!(get(input.url(), "").await.status, 404);
    let mut rest = Vec::new();
    let _ = stuck.read_to_end(&mut rest).await;
    assert!(rest.len() < 16 << 20);
    // Another address of the same grant is another input.
    let again = stage.gateway.open(granted).await.unwrap();
    assert_ne!(again.url(), input.url());
    assert_eq!(ask(again.url(), "HEAD", None, "").await.status, 200);
}

#[tokio::test]
async fn a_film_that_changes_while_it_is_read_breaks_off_and_is_told() {
    let stage = Stage::new(system()).await;
    let bytes = film(16 << 20);
    let granted = stage.granted("op", "a", &bytes).await;
    let input = stage.gateway.open(granted).await.unwrap();
    let mut reading = call(input.url(), "GET", None, "").await;
    let mut came = vec![0; 1_024];
    reading.read_exact(&mut came).await.unwrap();
    let file = std::fs::File::options()
        .append(true)
        .open(stage.folder.path("a"))
        .unwrap();
    std::io::Write::write_all(&mut &file, b"more").unwrap();
    let _ = reading.read_to_end(&mut came).await;
    let start = came.windows(4).position(|four| four == b"\r\n\r\n").unwrap() + 4;
    let body = &came[start..];
    assert!(body.len() < bytes.len());
    assert!(body == &bytes[..body.len()], "not a byte of another state");
    assert_eq!(input.failure(), Some(InputFailure::Changed));
}

/// Passes bytes on between a worker and an owner, and breaks the first `breaks` connections after `after` bytes.
async fn relay(to: SocketAddr, breaks: usize, after: usize) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        for n in 0.. {
            let Ok((near, _)) = listener.accept().await else {
                return;
            };
            let far = TcpStream::connect(to).await.unwrap();
            tokio::spawn(async move {
                let (mut near_read, mut near_write) = near.into_split();
                let (mut far_read, mut far_write) = far.into_split();
                let up = tokio::spawn(async move {
                    let _ = tokio::io::copy(&mut near_read, &mut far_write).await;
                });
                let mut left = if n < breaks { after } else { usize::MAX };
                let mut buffer = vec![0; 64 << 10];
                while left > 0 {
                    let most = buffer.len().min(left);
                    let Ok(read) = far_read.read(&mut buffer[..most]).await else {
                        break;
                    };
                    if read == 0 || near_write.write_all(&buffer[..read]).await.is_err() {
                        break;
                    }
                    left -= read;
                }
                up.abort();
            });
        }
    });
    address
}

#[tokio::test]
async fn connections_that_break_on_the_way_are_taken_up_where_they_were() {
    let stage = Stage::new(system()).await;
    let bytes = film(12 << 20);
    let mut granted = stage.granted("op", "a", &bytes).await;
    granted.owner.address = relay(stage.owner.address, 4, 2_000_000).await;
    let input = stage.gateway.open(granted).await.unwrap();
    let heard = get(input.url(), "Range: bytes=100-\r\n").await;
    assert!(heard.whole, "{}", heard.head);
    assert!(heard.body == bytes[100..], "the same bytes, each once");
    assert_eq!(input.failure(), None);
}

#[tokio::test]
async fn an_owner_that_is_gone_is_told_apart_from_a_film_that_ends() {
    let limits = GatewayLimits {
        patience: Duration::ZERO,
        ..GatewayLimits::default()
    };
    let stage = Stage::with(system(), limits).await;
    let mut granted = stage.granted("op", "a", &film(12 << 20)).await;
    granted.owner.address = relay(stage.owner.address, usize::MAX, 2_000_000).await;
    let input = stage.gateway.open(granted).await.unwrap();
    let heard = get(input.url(), "").await;
    assert_eq!(heard.status, 200);
    assert!(!heard.whole, "a broken answer must not look like the film's end");
    assert_eq!(input.failure(), Some(InputFailure::Unreachable));
}

/// An owner that admits everybody and answers reads with `answer`.
async fn impostor(stage: &Stage, answer: fn() -> Response) -> Peer {
    let boot = member("attic", "a1");
    let router = Router::new()
        .route(
            &format!("{PREFIX}/grants/{{handle}}/bearers"),
            axum::routing::post(|| async {
                let admitted = format!(
                    "{{\"outcome\":\"admitted\",\"bearer\":\"{}\",\"lastsMillis\":60000}}",
                    "b".repeat(64)
                );
                Response::new(Body::from(admitted))
            }),
        )
        .fallback(move || async move { answer() });
    let socket = bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    let address = socket.local_addr().unwrap();
    let clock = Arc::clone(&stage.house.clock);
    let listener = Listener::new(
        stage.house.published(&boot),
        router,
        ListenerLimits::default(),
        clock,
    );
    let stop = stage.stop.clone();
    tokio::spawn(async move { listener.serve(socket, stop).await });
    Peer {
        member: boot,
        address,
    }
}

#[tokio::test]
async fn an_owner_that_redirects_or_sends_something_else_is_not_followed() {
    let stage = Stage::new(system()).await;
    let revision = stage.folder.write("a", &film(1_000));
    let answers: [fn() -> Response; 4] = [
        || {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = http::StatusCode::FOUND;
            response
                .headers_mut()
                .insert(LOCATION, "http://127.0.0.1:1/".parse().unwrap());
            response
        },
        || Response::new(Body::from(vec![1; 1_000])),
        || {
            let mut response = Response::new(Body::from(vec![1; 1_000]));
            *response.status_mut() = http::StatusCode::PARTIAL_CONTENT;
            response
                .headers_mut()
                .insert(ETAG, "\"another\"".parse().unwrap());
            response
                .headers_mut()
                .insert(CONTENT_RANGE, "bytes 0-999/1000".parse().unwrap());
            response
        },
        || {
            let mut response = Response::new(Body::empty());
            *response.status_mut() = http::StatusCode::INTERNAL_SERVER_ERROR;
            response
        },
    ];
    for answer in answers {
        let granted = Granted {
            owner: impostor(&stage, answer).await,
            handle: Handle::random().unwrap(),
            fence: stage.terms("op", "a", revision).fence,
            revision,
        };
        let input = stage.gateway.open(granted).await.unwrap();
        let heard = get(input.url(), "").await;
        assert!(!heard.whole && heard.body.is_empty(), "{heard:?}");
        assert_eq!(input.failure(), Some(InputFailure::Unexpected));
    }
}

#[tokio::test]
async fn a_gateway_gives_no_more_inputs_than_it_may_and_none_once_it_stopped() {
    let limits = GatewayLimits {
        inputs: 1,
        ..GatewayLimits::default()
    };
    let stage = Stage::with(system(), limits).await;
    let granted = stage.granted("op", "a", &film(10)).await;
    let input = stage.gateway.open(granted.clone()).await.unwrap();
    let full = stage.gateway.open(granted.clone()).await.unwrap_err();
    assert!(matches!(full, OpenInputError::Full { limit: 1 }), "{full:?}");
    drop(input);
    let input = stage.gateway.open(granted.clone()).await.unwrap();
    input.seal();
    input.done().await;
    let dialer = Dialer::new(
        stage.house.published(&stage.worker),
        DialerLimits::default(),
        Arc::clone(&stage.house.clock),
    );
    let clock = Arc::clone(&stage.house.clock);
    let other = Gateway::bind(dialer, limits, clock).await.unwrap();
    let stop = CancellationToken::new();
    stop.cancel();
    other.run(stop).await;
    let stopped = other.open(granted).await.unwrap_err();
    assert!(matches!(stopped, OpenInputError::Stopped), "{stopped:?}");
}
