//! A child's output as its reader holds it.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

use crate::child::Shared;

/// The reading end of one of a child's output pipes.
///
/// Reads block. Once the child's group is dead every read reaches end of file, so a thread that reads in a
/// loop ends by itself. Evidence of the child's end waits until this is at end of file or dropped.
#[derive(Debug)]
pub struct OutputPipe {
    file: File,
    /// `None` once this pipe has been reported closed.
    owner: Option<Arc<Shared>>,
}

impl OutputPipe {
    pub(crate) fn new(fd: OwnedFd, owner: Arc<Shared>) -> Self {
        Self {
            file: fd.into(),
            owner: Some(owner),
        }
    }

    /// Makes reads that would wait fail with [`io::ErrorKind::WouldBlock`] instead (or, with `false`, wait
    /// again). The child's end is not affected.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        let mut flags = fcntl_getfl(&self.file)?;
        flags.set(OFlags::NONBLOCK, nonblocking);
        Ok(fcntl_setfl(&self.file, flags)?)
    }

    fn closed(&mut self) {
        if let Some(owner) = self.owner.take() {
            owner.pipe_closed();
        }
    }
}

impl Read for OutputPipe {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read(buf)?;
        if read == 0 && !buf.is_empty() {
            self.closed();
        }
        Ok(read)
    }
}

impl AsFd for OutputPipe {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for OutputPipe {
    fn drop(&mut self) {
        self.closed();
    }
}
