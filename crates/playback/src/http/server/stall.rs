//! A connection whose peer must go on reading.
//!
//! A player that vanished without a word leaves a full send buffer behind, and with it an open segment, an
//! open file and a busy connection. Time runs only while a write waits; a peer that reads slowly and steadily
//! is served for as long as it likes. Whoever answers may have more patience: a player that pauses a stream reads
//! nothing of it, and has no other way to say so.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use ether_types::Clock;
use ether_types::clock::Sleep;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// What an answer may ask of its connection. Requests carry it in their extensions.
#[derive(Clone, Debug, Default)]
pub(crate) struct Wire(Arc<Wishes>);

#[derive(Debug, Default)]
struct Wishes {
    /// Milliseconds of patience instead of the server's own; zero where nobody asked.
    patience: AtomicU64,
    broken: AtomicBool,
}

impl Wire {
    /// The peer may take nothing for `patience`, for as long as what is returned lives.
    pub(crate) fn patient(&self, patience: Duration) -> Patient {
        let millis = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
        self.0.patience.store(millis.max(1), Ordering::Relaxed);
        Patient(self.clone())
    }

    /// The connection is to end so that nobody takes its end for that of the answer: without a length and without
    /// chunks (HTTP/1.0) a closed connection is the only sign of a whole one.
    pub(crate) fn break_off(&self) {
        self.0.broken.store(true, Ordering::Relaxed);
    }

    fn patience(&self, own: Duration) -> Duration {
        match self.0.patience.load(Ordering::Relaxed) {
            0 => own,
            millis => Duration::from_millis(millis),
        }
    }
}

/// More patience than usual; it ends when this is dropped.
#[derive(Debug)]
#[must_use = "the server's own patience counts again once this is dropped"]
pub(crate) struct Patient(Wire);

impl Drop for Patient {
    fn drop(&mut self) {
        self.0.0.patience.store(0, Ordering::Relaxed);
    }
}

pub(super) struct Unstalled {
    inner: TcpStream,
    patience: Duration,
    wire: Wire,
    clock: Arc<dyn Clock>,
    /// Runs while a write waits.
    alarm: Option<Sleep>,
}

impl Drop for Unstalled {
    fn drop(&mut self) {
        if self.wire.0.broken.load(Ordering::Relaxed) {
            // A reset instead of an end. Where it cannot be had the peer was told by everything else there is.
            let _ = self.inner.set_zero_linger();
        }
    }
}

impl Unstalled {
    pub(super) fn new(inner: TcpStream, patience: Duration, wire: Wire, clock: Arc<dyn Clock>) -> Self {
        Self {
            inner,
            patience,
            wire,
            clock,
            alarm: None,
        }
    }

    fn watch<R>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if written.is_ready() {
            self.alarm = None;
            return written;
        }
        let (clock, patience) = (&self.clock, self.wire.patience(self.patience));
        let alarm = self.alarm.get_or_insert_with(|| clock.sleep(patience));
        match alarm.as_mut().poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
        }
    }
}

impl AsyncRead for Unstalled {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(cx, buf)
    }
}

impl AsyncWrite for Unstalled {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.inner).poll_write(cx, buf);
        this.watch(cx, written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = Pin::new(&mut this.inner).poll_write_vectored(cx, bufs);
        this.watch(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.inner.is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A socket has nothing to flush: what waits is a write.
        Pin::new(&mut self.get_mut().inner).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let shut = Pin::new(&mut this.inner).poll_shutdown(cx);
        this.watch(cx, shut)
    }
}
