//! One HTTP/1.1 connection whose answer can be cut off in the middle.
//!
//! A body is not polled while its peer takes nothing, so it cannot notice that it has to end. Whoever answers leaves a
//! [`Cut`] with the response instead; when that is made, the whole connection is dropped, and with it the body and
//! whatever the body holds.

use std::convert::Infallible;
use std::error::Error;
use std::future::Future;
use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Ends the connection of the answer that carries it in its extensions, wherever that answer is.
#[derive(Clone, Debug, Default)]
pub struct Cut(CancellationToken);

impl Cut {
    /// A cut that is not made yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Drops the connections of all answers that carry this one, now and later. A peer sees a broken answer and never
    /// a short one.
    pub fn make(&self) {
        self.0.cancel();
    }

    /// Waits until it is made. Cancel-safe.
    pub fn made(&self) -> impl Future<Output = ()> + '_ {
        self.0.cancelled()
    }
}

/// Bounds of a request's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadLimits {
    /// How long a head may take, and a connection may stay open without one.
    pub time: Duration,
    /// Bytes, at least 8,192.
    pub bytes: usize,
    /// Fields.
    pub fields: usize,
}

impl Default for HeadLimits {
    fn default() -> Self {
        Self {
            time: Duration::from_secs(75),
            bytes: 16 << 10,
            fields: 64,
        }
    }
}

/// A connection that is to be served.
#[derive(Debug)]
pub struct Line<S> {
    stream: S,
    head: HeadLimits,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> Line<S> {
    /// Serves `stream`, whose heads are bounded by `head`.
    pub fn new(stream: S, head: HeadLimits) -> Self {
        Self { stream, head }
    }

    /// Answers requests with `answer` until the peer leaves, an answer is cut, or `over` completes: then the request
    /// that runs is still answered, and no other.
    ///
    /// Cancelling drops the connection and what is being sent.
    pub async fn serve<F, R, B>(self, answer: F, over: impl Future<Output = ()>)
    where
        F: Fn(Request<Incoming>) -> R,
        R: Future<Output = Response<B>>,
        B: Body<Data = Bytes> + 'static,
        B::Error: Into<Box<dyn Error + Send + Sync>>,
    {
        let (running, mut cut) = watch::channel(Cut::new());
        let service = service_fn(|request| {
            let answered = answer(request);
            let running = &running;
            async move {
                let mut response = answered.await;
                // An answer without one gets its own, so that it does not end by that of the answer before it.
                let own = response.extensions_mut().remove::<Cut>().unwrap_or_default();
                running.send_replace(own);
                Ok::<_, Infallible>(response)
            }
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.head.time)
            .max_headers(self.head.fields)
            .max_header_size(self.head.bytes)
            .serve_connection(TokioIo::new(self.stream), service);
        let mut connection = std::pin::pin!(connection);
        let mut over = std::pin::pin!(over);
        let mut ending = false;
        loop {
            let current = cut.borrow_and_update().clone();
            tokio::select! {
                biased;
                () = current.made() => return,
                // Peers vanish all the time; what they asked for is dropped with the connection.
                _ = connection.as_mut() => return,
                _ = cut.changed() => {}
                () = over.as_mut(), if !ending => {
                    ending = true;
                    connection.as_mut().graceful_shutdown();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use http_body_util::Full;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    /// Counts itself out when it is dropped, and is longer than any socket's buffer.
    struct Endless(Arc<AtomicUsize>);

    impl Drop for Endless {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    impl Body for Endless {
        type Data = Bytes;
        type Error = Infallible;

        fn poll_frame(
            self: std::pin::Pin<&mut Self>,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Option<Result<http_body::Frame<Bytes>, Infallible>>> {
            std::task::Poll::Ready(Some(Ok(http_body::Frame::data(Bytes::from_static(&[7; 4_096])))))
        }
    }

    #[tokio::test]
    async fn an_answer_that_nobody_takes_ends_when_it_is_cut() {
        let (mut peer, stream) = tokio::io::duplex(1_024);
        let (bodies, cut) = (Arc::new(AtomicUsize::new(0)), Cut::new());
        let (counted, made) = (Arc::clone(&bodies), cut.clone());
        let serving = tokio::spawn(async move {
            let answer = |_: Request<Incoming>| {
                counted.fetch_add(1, Ordering::SeqCst);
                let mut response = Response::new(Endless(Arc::clone(&counted)));
                response.extensions_mut().insert(made.clone());
                async move { response }
            };
            Line::new(stream, HeadLimits::default())
                .serve(answer, std::future::pending())
                .await;
        });
        peer.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            .await
            .unwrap();
        let mut first = [0; 64];
        peer.read_exact(&mut first).await.unwrap();
        // The peer takes no more: the body waits for room, and is not polled.
        cut.make();
        serving.await.unwrap();
        assert_eq!(bodies.load(Ordering::SeqCst), 0);
    }

    #[tokio::test]
    async fn the_cut_of_an_answer_that_was_sent_does_not_touch_the_next() {
        let (mut peer, stream) = tokio::io::duplex(1_024);
        let cut = Cut::new();
        let made = cut.clone();
        let (over, mut ends) = tokio::sync::oneshot::channel::<()>();
        let serving = tokio::spawn(async move {
            let answer = |request: Request<Incoming>| {
                let mut response = Response::new(Full::new(Bytes::from_static(b"ok")));
                if request.uri().path() == "/first" {
                    response.extensions_mut().insert(made.clone());
                }
                async move { response }
            };
            Line::new(stream, HeadLimits::default())
                .serve(answer, async {
                    let _ = (&mut ends).await;
                })
                .await;
        });
        let mut answer = [0; 256];
        for path in ["/first", "/second", "/third"] {
            let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
            peer.write_all(request.as_bytes()).await.unwrap();
            let read = peer.read(&mut answer).await.unwrap();
            assert!(answer[..read].starts_with(b"HTTP/1.1 200"), "{path}");
            if path == "/second" {
                cut.make();
            }
        }
        drop(over);
        serving.await.unwrap();
        assert_eq!(peer.read(&mut answer).await.unwrap(), 0);
    }
}
