//! Lock files that a child inherits, so that a later boot can prove that it is dead (D9).
//!
//! The lock belongs to the open file and not to a process: every descendant that kept the descriptor holds
//! it, in whatever process namespace it runs, and the kernel releases it when the last one is gone. Process
//! numbers, by contrast, mean nothing after a restart or in another container.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, Mode, OFlags, flock, fstat, open};
use rustix::io::Errno;

/// An exclusively locked regular file, to be given to [`Spec::hold`](crate::Spec::hold).
///
/// Dropping it unspawned releases the lock and leaves the (empty) file, which [`lock_state`] then finds
/// released.
#[derive(Debug)]
pub struct LockFile {
    path: PathBuf,
    fd: OwnedFd,
}

/// Why a lock file could not be made.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Some process holds this file's lock.
    #[error("{} is locked by a running process", path.display())]
    Held {
        /// The file.
        path: PathBuf,
    },
    /// Something other than a regular file is in the way.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// What is in the way.
        path: PathBuf,
    },
    /// The file could not be opened or locked.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

impl LockFile {
    /// Makes the file (mode 0600, never through a symbolic link) or opens the one that is there, and locks it
    /// without waiting.
    ///
    /// It must lie on a file system of this machine: what a network file system does with such locks when a
    /// client dies proves nothing.
    pub fn create(path: impl Into<PathBuf>) -> Result<Self, LockError> {
        let path = path.into();
        let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let fd = match open(&path, flags, Mode::RUSR | Mode::WUSR) {
            Ok(fd) => fd,
            Err(Errno::LOOP | Errno::ISDIR | Errno::NXIO) => return Err(LockError::NotAFile { path }),
            Err(source) => return Err(io_error(path, source)),
        };
        match is_regular(&fd) {
            Ok(true) => {}
            Ok(false) => return Err(LockError::NotAFile { path }),
            Err(source) => return Err(io_error(path, source)),
        }
        match flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { path, fd }),
            Err(Errno::WOULDBLOCK) => Err(LockError::Held { path }),
            Err(source) => Err(io_error(path, source)),
        }
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl AsFd for LockFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

fn io_error(path: PathBuf, source: Errno) -> LockError {
    LockError::Io {
        path,
        source: source.into(),
    }
}

fn is_regular(fd: &OwnedFd) -> Result<bool, Errno> {
    let mode = fstat(fd)?.st_mode;
    Ok(rustix::fs::FileType::from_raw_mode(mode).is_file())
}

/// What a lock file says about the process that inherited it.
#[derive(Debug)]
pub enum LockState {
    /// There is no such file, so it says nothing.
    Absent,
    /// Something that inherited it is alive.
    Held,
    /// Everything that inherited it is dead.
    Released(ReleaseProof),
}

/// Proof that no process holds a lock that a child inherited. Made by [`lock_state`] alone.
///
/// While it exists it holds the lock itself, so that nothing can take it in the meantime.
#[derive(Debug)]
pub struct ReleaseProof {
    path: PathBuf,
    _held: File,
}

impl ReleaseProof {
    /// The file whose lock was free.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the file, once what the proof was for has been recorded.
    pub fn remove(self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }
}

/// Asks whether anything that inherited the lock of the file at `path` is alive.
///
/// The answer holds for the kernel boot that it is asked on: after a reboot every lock is free, and every
/// process is dead. Fails where the file cannot be opened or is not a regular one; it waits for nothing.
pub fn lock_state(path: &Path) -> io::Result<LockState> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let fd = match open(path, flags, Mode::empty()) {
        Ok(fd) => fd,
        Err(Errno::NOENT) => return Ok(LockState::Absent),
        Err(e) => return Err(e.into()),
    };
    if !is_regular(&fd)? {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    match flock(&fd, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(LockState::Released(ReleaseProof {
            path: path.to_owned(),
            _held: fd.into(),
        })),
        Err(Errno::WOULDBLOCK) => Ok(LockState::Held),
        Err(e) => Err(e.into()),
    }
}
