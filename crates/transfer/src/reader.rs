//! Pieces of an open file, for as long as it is in the state that was promised.

use std::fs::File;
use std::future::Future;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use rustix::io::{Errno, ReadWriteFlags};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::buffer::{BUFFER, Buffer};
use crate::revision::Revision;

/// Reads that wait for a disk at once, over all transfers of a process: the permits that the semaphore of
/// [`FilePieces::new`] is meant to have.
pub const DISK_READS: usize = 32;

/// A part of an open file, piece by piece. What the page cache holds is read at once, the rest on the blocking pool.
///
/// A read that waits for a disk holds a clone of `F` until it ends, even where the pieces are dropped before: whoever
/// has to know that a file is closed gives an `F` that tells.
pub struct FilePieces<F = Arc<File>> {
    file: F,
    promised: Revision,
    range: Range<u64>,
    disk: Arc<Semaphore>,
    /// A read that waits for the disk.
    waiting: Option<Reading>,
    /// Whether the page cache is asked first; not every file system can say what is in it.
    cached: bool,
}

type Reading = Pin<Box<dyn Future<Output = io::Result<Bytes>> + Send>>;

impl<F: AsRef<File> + Clone + Send + 'static> FilePieces<F> {
    /// The bytes of `range`, which lies within the file as it was `promised`.
    pub fn new(file: F, promised: Revision, range: Range<u64>, disk: Arc<Semaphore>) -> Self {
        Self {
            file,
            promised,
            range,
            disk,
            waiting: None,
            cached: true,
        }
    }

    /// Bytes that are still to come.
    pub fn left(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// The next piece, of at most [`BUFFER`] bytes; `None` after the last.
    ///
    /// # Errors
    /// The file system's own; [`io::ErrorKind::UnexpectedEof`] for a file that became shorter; another for one that
    /// is not in the promised state any more. No byte that was read after a change is ever in a piece.
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.range.is_empty() {
            return Poll::Ready(None);
        }
        let wanted = usize::try_from(self.left()).map_or(BUFFER, |left| left.min(BUFFER));
        if self.waiting.is_none() && self.cached {
            match self.read_cached(wanted) {
                Ok(Some(piece)) => return Poll::Ready(Some(self.whole(piece))),
                Ok(None) => {}
                Err(error) => return Poll::Ready(Some(Err(error))),
            }
        }
        if self.waiting.is_none() {
            self.waiting = Some(self.read_disk(wanted));
        }
        let Some(reading) = self.waiting.as_mut() else {
            return Poll::Ready(None);
        };
        let read = ready!(reading.as_mut().poll(cx));
        self.waiting = None;
        Poll::Ready(Some(read.and_then(|piece| self.whole(piece))))
    }

    /// Reads what the page cache holds, without waiting for a disk; `None` where it holds nothing of it.
    fn read_cached(&mut self, wanted: usize) -> io::Result<Option<Bytes>> {
        let mut buffer = Buffer::take();
        let mut slices = [IoSliceMut::new(&mut buffer[..wanted])];
        match rustix::io::preadv2(
            self.file.as_ref(),
            &mut slices,
            self.range.start,
            ReadWriteFlags::NOWAIT,
        ) {
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
        let (file, at, disk) = (self.file.clone(), self.range.start, Arc::clone(&self.disk));
        Box::pin(async move {
            let permit = disk.acquire_owned().await.map_err(io::Error::other)?;
            let read = move |_permit: OwnedSemaphorePermit| {
                let mut buffer = Buffer::take();
                let read = rustix::io::pread(file.as_ref(), &mut buffer[..wanted], at)?;
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
        if Revision::of(self.file.as_ref())? != self.promised {
            return Err(io::Error::other("the file was changed while it was sent"));
        }
        self.range.start += piece.len() as u64;
        Ok(piece)
    }
}
