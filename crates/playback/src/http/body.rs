//! Bodies of media: bytes of an open file, and bytes that an encoder hands over.
//!
//! Both know their exact length beforehand, and break the connection rather than end it early or late: a
//! client must see that a transfer failed (a clean last byte would be taken for the end of the segment).

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use ether_encoder::ByteStream;
use ether_transfer::FilePieces;
use http_body::{Body, Frame, SizeHint};

use crate::playback::Hold;

/// A part of an open file.
pub(crate) struct FileBody {
    reader: FilePieces,
    _hold: Option<Hold>,
}

impl FileBody {
    /// What `reader` reads, while `hold` is held.
    pub(crate) fn new(reader: FilePieces, hold: Option<Hold>) -> Self {
        Self { reader, _hold: hold }
    }
}

impl Body for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let piece = ready!(self.get_mut().reader.poll_next(cx));
        Poll::Ready(piece.map(|piece| piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.reader.left() == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.reader.left())
    }
}

/// Bytes that an encoder hands over.
pub(crate) struct MediaBody {
    stream: ByteStream,
    left: u64,
    _hold: Hold,
}

impl MediaBody {
    /// Exactly `len` bytes of `stream`.
    pub(crate) fn new(stream: ByteStream, len: u64, hold: Hold) -> Self {
        Self {
            stream,
            left: len,
            _hold: hold,
        }
    }
}

impl Body for MediaBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        if this.left == 0 {
            return Poll::Ready(None);
        }
        let piece = match ready!(this.stream.poll_next(cx)) {
            Some(Ok(bytes)) => match this.left.checked_sub(bytes.len() as u64) {
                Some(left) => {
                    this.left = left;
                    Ok(Frame::data(bytes))
                }
                None => Err(io::Error::other("more bytes came than were announced")),
            },
            Some(Err(error)) => Err(error),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        };
        if let Err(error) = &piece {
            tracing::warn!(%error, left = this.left, "a transfer was broken off");
        }
        Poll::Ready(Some(piece))
    }

    fn is_end_stream(&self) -> bool {
        self.left == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.left)
    }
}
