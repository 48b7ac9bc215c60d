//! Bytes on their way out of an encoder.

use std::fmt;
use std::future::Future;
use std::ops::Range;
use std::task::{Context, Poll};

use bytes::Bytes;

/// Pieces of a resource in order. Dropping it stops the work behind it.
///
/// An error ends the stream; whoever relays it must break the connection, never end it cleanly.
pub trait Pieces: Send {
    /// The next piece; `None` after the last.
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<std::io::Result<Bytes>>>;
}

/// An owned stream of pieces.
pub struct ByteStream(Box<dyn Pieces>);

impl ByteStream {
    /// Wraps `pieces`.
    pub fn new(pieces: impl Pieces + 'static) -> Self {
        Self(Box::new(pieces))
    }

    /// Polls for the next piece.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<std::io::Result<Bytes>>> {
        self.0.poll_next(cx)
    }

    /// The next piece. Cancel-safe: a piece is lost only with the stream itself.
    pub fn next_piece(&mut self) -> impl Future<Output = Option<std::io::Result<Bytes>>> + '_ {
        std::future::poll_fn(move |cx| self.poll_next(cx))
    }
}

impl fmt::Debug for ByteStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ByteStream")
    }
}

/// A finished resource, pinned: it can be read until this is dropped, whatever is evicted meanwhile.
pub struct Served {
    /// Bytes in the whole resource.
    pub len: u64,
    /// Strong entity tag without its quotes. Other bytes always have another tag.
    pub etag: String,
    /// The media type.
    pub content_type: &'static str,
    /// The bytes.
    pub media: Box<dyn ServedMedia>,
}

impl fmt::Debug for Served {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            len,
            etag,
            content_type,
            ..
        } = self;
        f.debug_struct("Served")
            .field("len", len)
            .field("etag", etag)
            .field("type", content_type)
            .finish()
    }
}

/// The bytes behind a [`Served`].
pub trait ServedMedia: Send {
    /// The bytes of `range`, which lies within the resource.
    fn stream(self: Box<Self>, range: Range<u64>) -> ByteStream;
}
