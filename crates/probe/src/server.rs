//! Hands one open file to a child process: HTTP on the loopback address, one unguessable path, ranges.
//!
//! The child never learns the file's name, and what it reads is the file that was opened, whatever happens to
//! the name meanwhile. Nothing is read ahead: each piece is read when the socket takes the one before.

use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::fs::FileExt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use ether_types::id::random_hex;
use http::header::{ACCEPT_RANGES, ALLOW, CONTENT_LENGTH, CONTENT_RANGE, CONTENT_TYPE, RANGE};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body::{Body, Frame, SizeHint};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::{JoinHandle, JoinSet};

/// Bytes read at a time.
const PIECE: u64 = 256 << 10;
/// A demuxer uses one connection, and a second while it seeks.
const CONNECTIONS: usize = 4;

/// A running server for one file. Dropping it ends it; [`RangeServer::close`] also waits until it has.
pub(crate) struct RangeServer {
    url: String,
    stop: Option<oneshot::Sender<()>>,
    task: JoinHandle<()>,
    shared: Arc<Shared>,
}

struct Shared {
    file: Arc<File>,
    len: u64,
    path: String,
    /// The first failure to read the file, which the child can only take for damage.
    failure: Mutex<Option<io::Error>>,
}

impl RangeServer {
    /// Serves `file` at the length it has now.
    pub(crate) async fn start(file: Arc<File>) -> io::Result<Self> {
        let len = file.metadata()?.len();
        let secret = random_hex().map_err(io::Error::other)?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let path = format!("/{secret}");
        let url = format!("http://{address}{path}");
        let (stop, stopped) = oneshot::channel();
        let shared = Arc::new(Shared {
            file,
            len,
            path,
            failure: Mutex::new(None),
        });
        let task = tokio::spawn(serve(listener, Arc::clone(&shared), stopped));
        Ok(Self {
            url,
            stop: Some(stop),
            task,
            shared,
        })
    }

    /// Where the file is to be found.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Ends every connection and waits until none is left. Returns the first failure to read the file.
    pub(crate) async fn close(mut self) -> Option<io::Error> {
        drop(self.stop.take());
        let _ = (&mut self.task).await;
        self.shared
            .failure
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>, mut stopped: oneshot::Receiver<()>) {
    let slots = Arc::new(Semaphore::new(CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            biased;
            _ = &mut stopped => break,
            Some(_) = connections.join_next(), if !connections.is_empty() => continue,
            accepted = accept(&listener, &slots) => accepted,
        };
        let Ok((stream, slot)) = accepted else {
            // Out of descriptors, say: the child's own deadline bounds how long this goes on.
            tokio::task::yield_now().await;
            continue;
        };
        let shared = Arc::clone(&shared);
        connections.spawn(async move {
            let service = service_fn(move |request| {
                let answer = answer(&shared, &request);
                async move { Ok::<_, Infallible>(answer) }
            });
            let _ = http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service)
                .await;
            drop(slot);
        });
    }
    connections.shutdown().await;
}

async fn accept(
    listener: &TcpListener,
    slots: &Arc<Semaphore>,
) -> io::Result<(tokio::net::TcpStream, tokio::sync::OwnedSemaphorePermit)> {
    let slot = Arc::clone(slots)
        .acquire_owned()
        .await
        .map_err(io::Error::other)?;
    let (stream, _) = listener.accept().await?;
    Ok((stream, slot))
}

fn answer<B>(shared: &Arc<Shared>, request: &Request<B>) -> Response<FileBody> {
    if request.uri().path() != shared.path {
        return plain(StatusCode::NOT_FOUND, shared);
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let mut response = plain(StatusCode::METHOD_NOT_ALLOWED, shared);
        response
            .headers_mut()
            .insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return response;
    }
    let (status, from, to) = match range(request.headers(), shared.len) {
        Wanted::All => (StatusCode::OK, 0, shared.len),
        Wanted::Part(from, to) => (StatusCode::PARTIAL_CONTENT, from, to),
        Wanted::Impossible => {
            let mut response = plain(StatusCode::RANGE_NOT_SATISFIABLE, shared);
            insert(&mut response, CONTENT_RANGE, format!("bytes */{}", shared.len));
            return response;
        }
    };
    let body = if request.method() == Method::HEAD {
        FileBody::new(shared, 0, 0)
    } else {
        FileBody::new(shared, from, to)
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(ACCEPT_RANGES, HeaderValue::from_static("bytes"));
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(to - from));
    if status == StatusCode::PARTIAL_CONTENT {
        let last = to.saturating_sub(1);
        insert(
            &mut response,
            CONTENT_RANGE,
            format!("bytes {from}-{last}/{}", shared.len),
        );
    }
    response
}

fn insert(response: &mut Response<FileBody>, name: http::HeaderName, value: String) {
    if let Ok(value) = HeaderValue::from_str(&value) {
        response.headers_mut().insert(name, value);
    }
}

fn plain(status: StatusCode, shared: &Arc<Shared>) -> Response<FileBody> {
    let mut response = Response::new(FileBody::new(shared, 0, 0));
    *response.status_mut() = status;
    response
}

#[derive(Debug, PartialEq)]
enum Wanted {
    All,
    Part(u64, u64),
    Impossible,
}

/// Reads one range of bytes as half open; several ranges are answered with everything, as the standard allows.
fn range(headers: &HeaderMap, len: u64) -> Wanted {
    let spec = headers
        .get(RANGE)
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.strip_prefix("bytes="));
    let Some((from, to)) = spec.and_then(|spec| spec.split_once('-')) else {
        return Wanted::All;
    };
    let (from, to) = (from.trim(), to.trim());
    let part = match (from.parse::<u64>(), to.parse::<u64>()) {
        (Ok(from), Ok(last)) if from <= last => (from, last.saturating_add(1).min(len)),
        (Ok(from), Err(_)) if to.is_empty() => (from, len),
        (Err(_), Ok(last)) if from.is_empty() => (len.saturating_sub(last), len),
        _ => return Wanted::All,
    };
    if part.0 >= part.1 {
        return Wanted::Impossible;
    }
    Wanted::Part(part.0, part.1)
}

/// A part of the file, read piece by piece on the blocking pool.
struct FileBody {
    shared: Arc<Shared>,
    at: u64,
    to: u64,
    reading: Option<JoinHandle<io::Result<Bytes>>>,
}

impl FileBody {
    fn new(shared: &Arc<Shared>, at: u64, to: u64) -> Self {
        Self {
            shared: Arc::clone(shared),
            at,
            to,
            reading: None,
        }
    }
}

impl Body for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        if self.at >= self.to {
            return Poll::Ready(None);
        }
        let (at, size) = (self.at, PIECE.min(self.to - self.at));
        let shared = Arc::clone(&self.shared);
        let reading = self
            .reading
            .get_or_insert_with(|| tokio::task::spawn_blocking(move || read(&shared.file, at, size)));
        let piece = ready!(Pin::new(reading).poll(cx)).map_err(io::Error::other);
        self.reading = None;
        match piece.and_then(|read| read) {
            Ok(piece) => {
                self.at += piece.len() as u64;
                Poll::Ready(Some(Ok(Frame::data(piece))))
            }
            Err(error) => {
                let mut failure = self.shared.failure.lock().unwrap_or_else(PoisonError::into_inner);
                failure.get_or_insert_with(|| io::Error::new(error.kind(), error.to_string()));
                drop(failure);
                Poll::Ready(Some(Err(error)))
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        self.at >= self.to
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.to - self.at)
    }
}

fn read(file: &File, at: u64, size: u64) -> io::Result<Bytes> {
    let mut piece = vec![0; usize::try_from(size).map_err(io::Error::other)?];
    // A file that shrank meanwhile is an error here, and a broken answer for the child.
    file.read_exact_at(&mut piece, at)?;
    Ok(Bytes::from(piece))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(text: &str, len: u64) -> Wanted {
        let mut headers = HeaderMap::new();
        headers.insert(RANGE, HeaderValue::from_str(text).unwrap());
        range(&headers, len)
    }

    #[test]
    fn ranges_read_as_the_standard_says() {
        assert_eq!(wanted("bytes=0-", 10), Wanted::Part(0, 10));
        assert_eq!(wanted("bytes=3-5", 10), Wanted::Part(3, 6));
        assert_eq!(wanted("bytes=3-500", 10), Wanted::Part(3, 10));
        assert_eq!(wanted("bytes=-4", 10), Wanted::Part(6, 10));
        assert_eq!(wanted("bytes=-400", 10), Wanted::Part(0, 10));
        assert_eq!(wanted("bytes=10-", 10), Wanted::Impossible);
        assert_eq!(wanted("bytes=-0", 10), Wanted::Impossible);
        assert_eq!(wanted("bytes=5-3", 10), Wanted::All);
        assert_eq!(wanted("bytes=a-b", 10), Wanted::All);
        assert_eq!(wanted("lines=0-1", 10), Wanted::All);
        assert_eq!(wanted("bytes=0-18446744073709551615", 10), Wanted::Part(0, 10));
        assert_eq!(range(&HeaderMap::new(), 10), Wanted::All);
    }
}
