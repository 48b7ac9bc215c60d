//! A connection whose peer must go on reading.
//!
//! A player that vanished without a word leaves a full send buffer behind, and with it an open segment, an
//! open file and a busy connection. Time runs only while a write waits; a peer that reads slowly and steadily
//! is served for as long as it likes.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use ether_types::Clock;
use ether_types::clock::Sleep;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

pub(super) struct Unstalled<T> {
    inner: T,
    patience: Duration,
    clock: Arc<dyn Clock>,
    /// Runs while a write waits.
    alarm: Option<Sleep>,
}

impl<T> Unstalled<T> {
    pub(super) fn new(inner: T, patience: Duration, clock: Arc<dyn Clock>) -> Self {
        Self {
            inner,
            patience,
            clock,
            alarm: None,
        }
    }

    fn watch<R>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<R>>) -> Poll<io::Result<R>> {
        if written.is_ready() {
            self.alarm = None;
            return written;
        }
        let (clock, patience) = (&self.clock, self.patience);
        let alarm = self.alarm.get_or_insert_with(|| clock.sleep(patience));
        match alarm.as_mut().poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(()) => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
        }
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Unstalled<T> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_read(cx, buf)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Unstalled<T> {
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
