//! One execution's scratch space: an unnamed file of fixed-size chunks, never larger than what was booked.
//!
//! The file has no name, so a crash leaves nothing behind: it goes with its last descriptor. Chunks of evicted
//! segments are used again; a segment that is still being sent keeps its chunks until the last reader is done.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rustix::fs::{Mode, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

/// Bytes of one chunk.
pub(crate) const CHUNK: u64 = 128 << 10;

/// The file and which of its chunks are taken.
#[derive(Debug)]
pub(crate) struct Scratch {
    file: Arc<File>,
    /// The first of its chunks in the file.
    base: u64,
    limit: u32,
    taken: Mutex<Taken>,
    freed: Condvar,
}

#[derive(Debug, Default)]
struct Taken {
    free: Vec<u32>,
    /// Chunks that were ever handed out.
    grown: u32,
    used: u32,
    /// Chunks of what is complete: they come back once nobody reads it any more.
    settled: u32,
    /// Raised by whoever wants waiters to look at their circumstances again.
    nudges: u64,
}

/// Why bytes could not be written.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// The caller's condition said to give up.
    #[error("writing was given up")]
    GivenUp,
    /// What is being written takes all of the space, and there is nothing else that could make room.
    #[error("what is written does not fit into the scratch space that was booked")]
    TooLarge,
    /// The file system refused: full, or failing.
    #[error("scratch space failed")]
    Io(#[from] io::Error),
}

impl Scratch {
    /// Scratch spaces of these many bytes, rounded down to whole chunks, next to each other in one file in `dir`.
    pub(crate) fn create(dir: &Path, limits: &[u64]) -> io::Result<Vec<Arc<Self>>> {
        let file = Arc::new(unnamed(dir)?);
        let mut base = 0;
        let space = |limit: &u64| {
            let limit = u32::try_from(limit / CHUNK).unwrap_or(u32::MAX);
            let space = Self {
                file: file.clone(),
                base,
                limit,
                taken: Mutex::default(),
                freed: Condvar::new(),
            };
            base += u64::from(limit);
            Arc::new(space)
        };
        Ok(limits.iter().map(space).collect())
    }

    /// Bytes that are taken.
    pub(crate) fn used(&self) -> u64 {
        u64::from(self.lock().used) * CHUNK
    }

    /// Bytes that may be taken.
    pub(crate) fn limit(&self) -> u64 {
        u64::from(self.limit) * CHUNK
    }

    /// Makes every waiting writer ask its condition again.
    pub(crate) fn nudge(&self) {
        self.lock().nudges += 1;
        self.freed.notify_all();
    }

    /// Takes a chunk. While there is none, asks `make_room`, which frees one elsewhere (then `Retry`), says to
    /// wait for one, or gives up. There is one writer at a time, so waiting makes sense only while something
    /// complete takes space.
    fn take(&self, make_room: &mut dyn FnMut() -> Room) -> Result<u32, WriteError> {
        loop {
            let nudges = {
                let mut taken = self.lock();
                if let Some(chunk) = taken.try_take(self.limit) {
                    return Ok(chunk);
                }
                taken.nudges
            };
            // Asked without the lock: making room frees chunks, which takes it.
            match make_room() {
                Room::GiveUp => return Err(WriteError::GivenUp),
                Room::Retry => {}
                Room::Wait => {
                    let mut taken = self.lock();
                    while taken.nudges == nudges && taken.used >= self.limit {
                        if taken.settled == 0 {
                            return Err(WriteError::TooLarge);
                        }
                        taken = self.freed.wait(taken).unwrap_or_else(PoisonError::into_inner);
                    }
                }
            }
        }
    }

    fn give_back(&self, chunks: &[u32], settled: bool) {
        let mut taken = self.lock();
        taken.free.extend_from_slice(chunks);
        taken.used -= chunks.len() as u32;
        if settled {
            taken.settled -= chunks.len() as u32;
        }
        drop(taken);
        self.freed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Taken {
    fn try_take(&mut self, limit: u32) -> Option<u32> {
        if self.used >= limit {
            return None;
        }
        let chunk = self.free.pop().unwrap_or_else(|| {
            self.grown += 1;
            self.grown - 1
        });
        self.used += 1;
        Some(chunk)
    }
}

/// What a writer without a chunk is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Retry,
    Wait,
    GiveUp,
}

/// A file without a name in `dir`; where the file system cannot make one, a named one is unlinked at once.
fn unnamed(dir: &Path) -> io::Result<File> {
    let mode = Mode::RUSR | Mode::WUSR;
    match rustix::fs::open(dir, OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC, mode) {
        Ok(file) => Ok(file.into()),
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::ISDIR | rustix::io::Errno::NOENT) => {
            let name = ether_types::id::random_hex().map_err(io::Error::other)?;
            let path = dir.join(format!(".{name}.part"));
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
            let file = File::from(rustix::fs::open(&path, flags, mode)?);
            std::fs::remove_file(&path)?;
            Ok(file)
        }
        Err(errno) => Err(errno.into()),
    }
}

/// Bytes in scratch space, in the order they were written. Dropping it gives its chunks back.
#[derive(Debug)]
pub(crate) struct Blob {
    scratch: Arc<Scratch>,
    chunks: Vec<u32>,
    len: u64,
    settled: bool,
}

impl Blob {
    pub(crate) fn new(scratch: Arc<Scratch>) -> Self {
        Self {
            scratch,
            chunks: Vec::new(),
            len: 0,
            settled: false,
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Says that it is complete: from now on a writer may wait for it to be dropped.
    pub(crate) fn settle(&mut self) {
        if !std::mem::replace(&mut self.settled, true) {
            self.scratch.lock().settled += self.chunks.len() as u32;
        }
    }

    /// Appends `bytes`, taking chunks as they are needed. Not for one that is settled.
    pub(crate) fn append(
        &mut self,
        mut bytes: &[u8],
        make_room: &mut dyn FnMut() -> Room,
    ) -> Result<(), WriteError> {
        while !bytes.is_empty() {
            let within = self.len % CHUNK;
            if within == 0 && self.len / CHUNK == self.chunks.len() as u64 {
                self.chunks.push(self.scratch.take(make_room)?);
            }
            let room = usize::try_from(CHUNK - within).unwrap_or(usize::MAX);
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.scratch.file.write_all_at(now, self.place(self.len))?;
            self.len += now.len() as u64;
            bytes = later;
        }
        Ok(())
    }

    /// Reads at `at` into `into`; the range must lie within the blob.
    pub(crate) fn read_at(&self, mut into: &mut [u8], mut at: u64) -> io::Result<()> {
        if at + into.len() as u64 > self.len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        while !into.is_empty() {
            let run = self.contiguous(at..at + into.len() as u64);
            let (now, later) = into.split_at_mut(usize::try_from(run).unwrap_or(usize::MAX));
            self.scratch.file.read_exact_at(now, self.place(at))?;
            at += run;
            into = later;
        }
        Ok(())
    }

    /// Reads what the page cache holds from `at` on, without waiting for a disk: as much as lies in one piece
    /// of the file, or `None` where that is nothing, or where the file system cannot tell.
    pub(crate) fn read_cached(&self, into: &mut [u8], at: u64) -> io::Result<Option<usize>> {
        let end = self.len.min(at.saturating_add(into.len() as u64));
        if at >= end {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let run = usize::try_from(self.contiguous(at..end)).unwrap_or(usize::MAX);
        let mut slices = [io::IoSliceMut::new(&mut into[..run])];
        match rustix::io::preadv2(
            &*self.scratch.file,
            &mut slices,
            self.place(at),
            ReadWriteFlags::NOWAIT,
        ) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(read) => Ok(Some(read)),
            Err(Errno::AGAIN | Errno::INTR | Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Where byte `at` of the blob lies in the file.
    fn place(&self, at: u64) -> u64 {
        (self.scratch.base + u64::from(self.chunks[(at / CHUNK) as usize])) * CHUNK + at % CHUNK
    }

    /// How many bytes from the start of `range` lie next to each other in the file.
    fn contiguous(&self, range: Range<u64>) -> u64 {
        let mut chunk = (range.start / CHUNK) as usize;
        let mut end = (range.start / CHUNK + 1) * CHUNK;
        while end < range.end && self.chunks[chunk + 1] == self.chunks[chunk] + 1 {
            chunk += 1;
            end += CHUNK;
        }
        end.min(range.end) - range.start
    }
}

impl Drop for Blob {
    fn drop(&mut self) {
        self.scratch.give_back(&self.chunks, self.settled);
    }
}

/// Reads a blob from its start.
pub(crate) struct BlobReader<'a> {
    pub(crate) blob: &'a Blob,
    pub(crate) at: u64,
}

impl io::Read for BlobReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.blob.len - self.at).unwrap_or(usize::MAX);
        let count = into.len().min(left);
        self.blob.read_at(&mut into[..count], self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(dir: &Path, limit: u64) -> Arc<Scratch> {
        Scratch::create(dir, &[limit]).unwrap().remove(0)
    }

    fn never() -> Room {
        Room::GiveUp
    }

    #[test]
    fn the_limit_holds_and_freed_chunks_are_used_again() {
        let dir = tempfile::tempdir().unwrap();
        let scratch = one(dir.path(), 3 * CHUNK + 5);
        assert_eq!(scratch.limit(), 3 * CHUNK);
        let mut first = Blob::new(scratch.clone());
        first.append(&vec![1; CHUNK as usize + 1], &mut never).unwrap();
        assert_eq!(scratch.used(), 2 * CHUNK);
        let mut second = Blob::new(scratch.clone());
        let full = second.append(&vec![2; 2 * CHUNK as usize], &mut never);
        assert!(matches!(full, Err(WriteError::GivenUp)));
        drop(first);
        second.append(&vec![3; CHUNK as usize], &mut never).unwrap();
        let mut read = vec![0; 2 * CHUNK as usize];
        second.read_at(&mut read, 0).unwrap();
        assert!(read[..CHUNK as usize].iter().all(|b| *b == 2));
        assert!(read[CHUNK as usize..].iter().all(|b| *b == 3));
        drop(second);
        assert_eq!(scratch.used(), 0);
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            0,
            "scratch has a name on disk"
        );
    }

    #[test]
    fn a_writer_without_room_goes_on_once_a_reader_lets_go() {
        let dir = tempfile::tempdir().unwrap();
        let scratch = one(dir.path(), CHUNK);
        let mut held = Blob::new(scratch.clone());
        held.append(&[7; 10], &mut never).unwrap();
        held.settle();
        let (waiting, waits) = std::sync::mpsc::sync_channel(1);
        let writer = std::thread::spawn({
            let scratch = scratch.clone();
            move || {
                let mut blob = Blob::new(scratch);
                blob.append(&[8; 10], &mut || {
                    let _ = waiting.try_send(());
                    Room::Wait
                })
            }
        });
        waits.recv().unwrap();
        drop(held);
        writer.join().unwrap().unwrap();
    }

    #[test]
    fn a_writer_does_not_wait_for_itself() {
        let dir = tempfile::tempdir().unwrap();
        let scratch = one(dir.path(), 2 * CHUNK);
        let mut complete = Blob::new(scratch.clone());
        complete.append(&[1; 10], &mut never).unwrap();
        complete.settle();
        drop(complete);
        let mut large = Blob::new(scratch);
        let written = large.append(&vec![2; 3 * CHUNK as usize], &mut || Room::Wait);
        assert!(matches!(written, Err(WriteError::TooLarge)));
    }

    #[test]
    fn reading_past_the_end_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let mut blob = Blob::new(one(dir.path(), CHUNK));
        blob.append(b"abc", &mut never).unwrap();
        assert!(blob.read_at(&mut [0; 4], 0).is_err());
        assert!(blob.read_at(&mut [0; 1], 3).is_err());
    }
}
