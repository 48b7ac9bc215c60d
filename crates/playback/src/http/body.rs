//! Bodies of media: bytes of an open file, and bytes that an encoder hands over.
//!
//! Both know their exact length beforehand, and break the connection rather than end it early or late: a
//! client must see that a transfer failed (a clean last byte would be taken for the end of the segment).

use std::fs::File;
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use ether_encoder::{BUFFER, Buffer, ByteStream, Revision};
use http_body::{Body, Frame, SizeHint};
use rustix::io::{Errno, ReadWriteFlags};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::part;
use crate::playback::Hold;

/// Reads that wait for a disk at once, over all transfers.
pub(crate) const DISK_READS: usize = 32;

/// A part of an open file.
pub(crate) struct FileBody {
    file: Arc<File>,
    promised: Revision,
    range: Range<u64>,
    disk: Arc<Semaphore>,
    /// A read that waits for the disk.
    waiting: Option<Reading>,
    /// Whether the page cache is asked first; not every file system can say what is in it.
    cached: bool,
    _hold: Option<Hold>,
}

type Reading = Pin<Box<dyn Future<Output = io::Result<Bytes>> + Send>>;

impl FileBody {
    /// The bytes of `range`, which lies within the file as it was `promised`.
    pub(crate) fn new(
        file: Arc<File>,
        promised: Revision,
        range: Range<u64>,
        disk: Arc<Semaphore>,
        hold: Option<Hold>,
    ) -> Self {
        Self {
            file,
            promised,
            range,
            disk,
            waiting: None,
            cached: true,
            _hold: hold,
        }
    }

    /// Reads what the page cache holds, without waiting for a disk; `None` where it holds nothing of it.
    fn read_cached(&mut self, wanted: usize) -> io::Result<Option<Bytes>> {
        let mut buffer = Buffer::take();
        let mut slices = [IoSliceMut::new(&mut buffer[..wanted])];
        match rustix::io::preadv2(&self.file, &mut slices, self.range.start, ReadWriteFlags::NOWAIT) {
            Ok(read) => Ok(Some(buffer.filled(read))),
            Err(Errno::AGAIN | Errno::INTR) => Ok(None),
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                self.cached = false;
                Ok(None)
            }
            Err(error) => Err(error.into()),
        }
    }

    fn read_disk(&self, wanted: usize) -> Reading {
        let (file, at, disk) = (Arc::clone(&self.file), self.range.start, Arc::clone(&self.disk));
        Box::pin(async move {
            let permit = disk.acquire_owned().await.map_err(io::Error::other)?;
            let read = move |_permit: OwnedSemaphorePermit| {
                let mut buffer = Buffer::take();
                let read = rustix::io::pread(&file, &mut buffer[..wanted], at)?;
                Ok(buffer.filled(read))
            };
            tokio::task::spawn_blocking(move || read(permit))
                .await
                .map_err(io::Error::other)?
        })
    }

    /// Counts `piece` as sent, if the file is still what was promised.
    fn whole(&mut self, piece: Bytes) -> io::Result<Bytes> {
        if piece.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // Checked after the bytes were read: what was read before a change is whole, what comes after is not.
        if part::revision(&self.file)? != self.promised {
            return Err(io::Error::other("the file was changed while it was sent"));
        }
        self.range.start += piece.len() as u64;
        Ok(piece)
    }
}

impl Body for FileBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        if this.range.is_empty() {
            return Poll::Ready(None);
        }
        let left = this.range.end - this.range.start;
        let wanted = usize::try_from(left).map_or(BUFFER, |left| left.min(BUFFER));
        if this.waiting.is_none() && this.cached {
            match this.read_cached(wanted) {
                Ok(Some(piece)) => return Poll::Ready(Some(this.whole(piece).map(Frame::data))),
                Ok(None) => {}
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
        if this.waiting.is_none() {
            this.waiting = Some(this.read_disk(wanted));
        }
        let Some(reading) = this.waiting.as_mut() else {
            return Poll::Ready(None);
        };
        let read = ready!(reading.as_mut().poll(cx));
        this.waiting = None;
        let piece = read.and_then(|piece| this.whole(piece));
        Poll::Ready(Some(piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        self.range.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.range.end - self.range.start)
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
