//! The only place where folders are touched. Everything here blocks and runs on threads meant for that.
//!
//! Rules: nothing is ever opened through a symbolic link (the folder itself excepted, which its owner named);
//! a path is resolved beneath the opened folder and never by an absolute path; only what `stat` calls a
//! regular file is opened, without blocking, and it is checked again once it is open.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat, openat, openat2, statat};
use rustix::io::Errno;

use crate::name::RelPath;
use crate::problem::{Reason, SpecialKind};
use crate::revision::Revision;

/// The deepest directory that is entered, counted from the folder.
pub(crate) const MAX_DEPTH: usize = 64;

/// An opened folder.
#[derive(Debug)]
pub(crate) struct Root {
    fd: OwnedFd,
    pub(crate) identity: DirIdentity,
}

/// Which directory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct DirIdentity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
}

impl DirIdentity {
    #[allow(
        clippy::unnecessary_cast,
        reason = "the fields' types differ between platforms"
    )]
    fn from_stat(stat: &Stat) -> Self {
        Self {
            device: stat.st_dev as u64,
            inode: stat.st_ino as u64,
        }
    }
}

/// One entry of a directory.
#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) path: RelPath,
    pub(crate) kind: EntryKind,
}

/// What an entry is.
#[derive(Debug)]
pub(crate) enum EntryKind {
    Directory(DirIdentity),
    File(Revision),
    /// A link that stays inside the folder: what it leads to is met by itself.
    LinkInside,
    /// Not usable, for this reason.
    Problem(Reason),
}

/// One directory that was read to its end.
#[derive(Debug)]
pub(crate) struct Listing {
    pub(crate) identity: DirIdentity,
    pub(crate) entries: Vec<Entry>,
}

/// Hears of each directory right before it is read, so that a watch can be in place by then.
pub(crate) trait OnDirectory {
    /// `dir` of the folder is open as `fd`.
    fn entering(&self, dir: &RelPath, fd: &OwnedFd);
}

impl Root {
    /// Opens the folder at `path`.
    ///
    /// # Errors
    /// The operating system's; `NotADirectory` where it is something else.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let fd = rustix::fs::open(path, flags, Mode::empty())?;
        let identity = DirIdentity::from_stat(&rustix::fs::fstat(&fd)?);
        Ok(Self { fd, identity })
    }

    /// Opens the regular file at `path`, which lies beneath this folder and behind no symbolic link.
    ///
    /// # Errors
    /// The operating system's; `InvalidInput` where it is no regular file.
    pub(crate) fn open_file(&self, path: &RelPath) -> io::Result<(File, Revision)> {
        let parent = self.open_dir(&path.parent().unwrap_or_default())?;
        let name = file_name(path);
        // Opening a device can act on it, and opening a pipe can wait for a writer: look first.
        regular(&statat(&parent, name, AtFlags::SYMLINK_NOFOLLOW)?)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = File::from(openat(&parent, name, flags, Mode::empty())?);
        let stat = rustix::fs::fstat(&file)?;
        regular(&stat)?;
        Ok((file, Revision::from_stat(&stat)))
    }

    /// The revision of the regular file at `path`; `None` where there is none.
    ///
    /// # Errors
    /// The operating system could not say.
    pub(crate) fn revision(&self, path: &RelPath) -> io::Result<Option<Revision>> {
        let parent = match self.open_dir(&path.parent().unwrap_or_default()) {
            Ok(parent) => parent,
            Err(error) if absent(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        match statat(&parent, file_name(path), AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if regular(&stat).is_ok() => Ok(Some(Revision::from_stat(&stat))),
            Ok(_) => Ok(None),
            Err(error) if absent(&error.into()) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The identity of the directory at `path`; `None` where there is none.
    ///
    /// # Errors
    /// The operating system could not say.
    pub(crate) fn directory(&self, path: &RelPath) -> io::Result<Option<DirIdentity>> {
        match self.open_dir(path) {
            Ok(fd) => Ok(Some(DirIdentity::from_stat(&rustix::fs::fstat(&fd)?))),
            Err(error) if absent(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Reads the directory `dir` to its end.
    ///
    /// # Errors
    /// The operating system's, where the directory could not be read completely: then nothing may be
    /// concluded from what is not in it.
    pub(crate) fn list(&self, dir: &RelPath, on: &dyn OnDirectory) -> io::Result<Listing> {
        let fd = self.open_dir(dir)?;
        on.entering(dir, &fd);
        let identity = DirIdentity::from_stat(&rustix::fs::fstat(&fd)?);
        let mut entries = Vec::new();
        for entry in Dir::read_from(&fd)? {
            let entry = entry?;
            // "." and ".." are no children.
            let Some(path) = dir.child(entry.file_name().to_bytes()) else {
                continue;
            };
            match statat(&fd, entry.file_name(), AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => {
                    let kind = self.kind(&fd, &path, &stat);
                    entries.push(Entry { path, kind });
                }
                // Gone since it was listed.
                Err(Errno::NOENT) => {}
                Err(error) => entries.push(Entry {
                    kind: EntryKind::Problem(Reason::from_io(&error.into())),
                    path,
                }),
            }
        }
        Ok(Listing { identity, entries })
    }

    fn kind(&self, dir: &OwnedFd, path: &RelPath, stat: &Stat) -> EntryKind {
        let special = |what| EntryKind::Problem(Reason::SpecialFile { what });
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => EntryKind::File(Revision::from_stat(stat)),
            FileType::Directory => EntryKind::Directory(DirIdentity::from_stat(stat)),
            FileType::Symlink => self.link(dir, path),
            FileType::Fifo => special(SpecialKind::Pipe),
            FileType::Socket => special(SpecialKind::Socket),
            FileType::CharacterDevice | FileType::BlockDevice => special(SpecialKind::Device),
            FileType::Unknown => special(SpecialKind::Other),
        }
    }

    /// Where a symbolic link leads; nothing is opened for reading.
    fn link(&self, dir: &OwnedFd, path: &RelPath) -> EntryKind {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
        // BENEATH counts from the folder, so the link is resolved from there.
        match openat2(&self.fd, path.as_path(), flags, Mode::empty(), within) {
            Ok(_) => return EntryKind::LinkInside,
            Err(Errno::LOOP) => return EntryKind::Problem(Reason::LinkLoop),
            Err(_) => {}
        }
        match openat(dir, file_name(path), flags, Mode::empty()) {
            // An absolute link may well lead back inside, which BENEATH does not grant.
            Ok(target) => match self.holds(&target) {
                true => EntryKind::LinkInside,
                false => EntryKind::Problem(Reason::LinkOutside),
            },
            Err(Errno::LOOP) => EntryKind::Problem(Reason::LinkLoop),
            Err(Errno::NOENT | Errno::NOTDIR) => EntryKind::Problem(Reason::BrokenLink),
            Err(error) => EntryKind::Problem(Reason::from_io(&error.into())),
        }
    }

    fn holds(&self, target: &OwnedFd) -> bool {
        let place = |fd: &OwnedFd| std::fs::read_link(by_descriptor(fd));
        matches!((place(&self.fd), place(target)), (Ok(root), Ok(target)) if target.starts_with(&root))
    }

    fn open_dir(&self, dir: &RelPath) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let within = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        match openat2(&self.fd, dir.as_path(), flags, Mode::empty(), within) {
            // Kernels before 5.6 and some sandboxes have no openat2; AGAIN means that a rename raced it.
            Err(Errno::NOSYS | Errno::PERM | Errno::AGAIN) => step_down(&self.fd, dir, flags),
            opened => Ok(opened?),
        }
    }
}

/// One component at a time, none of them a link: what `RESOLVE_BENEATH` does, by hand.
fn step_down(root: &OwnedFd, dir: &RelPath, flags: OFlags) -> io::Result<OwnedFd> {
    let flags = flags | OFlags::NOFOLLOW;
    let mut at = openat(root, ".", flags, Mode::empty())?;
    if !dir.is_root() {
        for name in dir.as_path() {
            at = openat(&at, name, flags, Mode::empty())?;
        }
    }
    Ok(at)
}

fn file_name(path: &RelPath) -> &Path {
    path.as_path().file_name().map_or(Path::new("."), Path::new)
}

fn regular(stat: &Stat) -> io::Result<()> {
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::RegularFile => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file")),
    }
}

/// Whether the error says that there is nothing at that path, as opposed to that nobody knows.
pub(crate) fn absent(error: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(error),
        Some(Errno::NOENT | Errno::NOTDIR | Errno::LOOP)
    )
}

/// The directory `fd` by a name that needs no path; for calls that take a path only.
pub(crate) fn by_descriptor(fd: &impl AsFd) -> String {
    use std::os::fd::AsRawFd as _;
    format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn path(text: &str) -> RelPath {
        RelPath::from_text(text).unwrap()
    }

    #[test]
    fn neither_way_down_follows_a_link() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("real")).unwrap();
        std::fs::write(dir.path().join("real/film"), b"x").unwrap();
        symlink("real", dir.path().join("door")).unwrap();
        symlink("/etc", dir.path().join("out")).unwrap();
        symlink("film", dir.path().join("real/twin")).unwrap();
        let root = Root::open(dir.path()).unwrap();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        for door in ["door", "out", "door/.."] {
            let Some(door) = RelPath::from_text(door) else {
                continue;
            };
            assert!(root.open_dir(&door).is_err(), "{door}");
            assert!(step_down(&root.fd, &door, flags).is_err(), "{door}");
        }
        assert!(step_down(&root.fd, &path("real"), flags).is_ok());
        assert!(root.open_file(&path("real/film")).is_ok());
        assert!(root.open_file(&path("door/film")).is_err());
        assert!(root.open_file(&path("real/twin")).is_err());
        assert!(root.open_file(&path("out/passwd")).is_err());
        assert_eq!(root.revision(&path("door/film")).unwrap(), None);
    }

    #[test]
    fn a_pipe_is_never_opened() {
        let dir = tempfile::tempdir().unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            dir.path().join("pipe"),
            FileType::Fifo,
            Mode::from_raw_mode(0o600),
            0,
        )
        .unwrap();
        let root = Root::open(dir.path()).unwrap();
        let error = root.open_file(&path("pipe")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    }
}
