//! Changes as the kernel tells them, on one thread of its own.
//!
//! A directory is watched from the moment a scan opens it and before it is read, so that no change falls
//! between; a general watcher would walk every tree a second time and could not promise that. What is told is
//! never believed, only marked for a look. Where the queue overflows, everything is marked; where the system
//! grants no more watches, the periodic scans remain and the status says so.

use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::{self, Read as _, Seek as _};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags};
use rustix::io::Errno;

use crate::marks::Marks;
use crate::model::{FolderId, Watching};
use crate::name::RelPath;
use crate::sieve;
use crate::tree::{OnDirectory, by_descriptor};

/// The running watcher. [`Watcher::stop`] ends and joins its thread.
#[derive(Debug)]
pub(crate) struct Watcher {
    shared: Arc<Shared>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

#[derive(Debug)]
struct Shared {
    inotify: OwnedFd,
    stop: OwnedFd,
    marks: Arc<Marks>,
    folders: Vec<(FolderId, PathBuf)>,
    watches: Mutex<HashMap<i32, (FolderId, RelPath)>>,
    limit_reached: AtomicBool,
    stopping: AtomicBool,
}

impl Watcher {
    /// Starts watching nothing yet; directories come with [`Watcher::of`].
    ///
    /// # Errors
    /// The kernel grants no queue, or the thread does not start.
    pub(crate) fn start(marks: Arc<Marks>, folders: Vec<(FolderId, PathBuf)>) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            inotify: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?,
            stop: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            marks,
            folders,
            watches: Mutex::default(),
            limit_reached: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
        });
        let thread = std::thread::Builder::new()
            .name("library-watch".to_owned())
            .spawn({
                let shared = Arc::clone(&shared);
                move || shared.run()
            })?;
        Ok(Self {
            shared,
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Whether everything is watched.
    pub(crate) fn state(&self) -> Watching {
        match self.shared.limit_reached.load(Ordering::Relaxed) {
            true => Watching::LimitReached,
            false => Watching::Complete,
        }
    }

    /// What watches the directories of `folder`.
    pub(crate) fn of<'a>(&'a self, folder: &'a FolderId) -> FolderWatch<'a> {
        FolderWatch {
            watcher: self,
            folder,
        }
    }

    /// Ends the thread and joins it. Blocks for as long as one reaction to a change takes.
    pub(crate) fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        // The counter can only be too full when a stop was asked for before.
        let _ = rustix::io::write(&self.shared.stop, &1_u64.to_ne_bytes());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Puts watches on the directories of one folder.
pub(crate) struct FolderWatch<'a> {
    watcher: &'a Watcher,
    folder: &'a FolderId,
}

impl OnDirectory for FolderWatch<'_> {
    fn entering(&self, dir: &RelPath, fd: &OwnedFd) {
        self.watcher.shared.add(self.folder, dir, fd);
    }
}

/// Watches nothing.
pub(crate) struct NoWatch;

impl OnDirectory for NoWatch {
    fn entering(&self, _: &RelPath, _: &OwnedFd) {}
}

impl Shared {
    fn add(&self, folder: &FolderId, dir: &RelPath, fd: &OwnedFd) {
        let what = WatchFlags::CREATE
            | WatchFlags::DELETE
            | WatchFlags::MOVED_FROM
            | WatchFlags::MOVED_TO
            | WatchFlags::CLOSE_WRITE
            | WatchFlags::ATTRIB
            | WatchFlags::DELETE_SELF
            | WatchFlags::MOVE_SELF
            | WatchFlags::ONLYDIR
            | WatchFlags::EXCL_UNLINK;
        // By descriptor: what is watched is what is read, wherever its path leads by now. The lock is held
        // across the call so that an event cannot arrive before its watch is known.
        let mut watches = self.watches();
        match inotify::add_watch(&self.inotify, by_descriptor(fd), what) {
            Ok(wd) => {
                watches.insert(wd, (folder.clone(), dir.clone()));
            }
            // Gone meanwhile, or not ours to watch: its parent tells.
            Err(Errno::NOENT | Errno::ACCESS) => {}
            Err(_) => self.limit_reached.store(true, Ordering::Relaxed),
        }
    }

    fn run(&self) {
        let mut mounts = Mounts::open(&self.folders);
        let mut buffer = vec![MaybeUninit::uninit(); 64 * 1024];
        while !self.stopping.load(Ordering::Relaxed) {
            let mut fds = vec![
                PollFd::new(&self.inotify, PollFlags::IN),
                PollFd::new(&self.stop, PollFlags::IN),
            ];
            if let Some(mounts) = &mounts {
                fds.push(PollFd::new(&mounts.table, PollFlags::PRI));
            }
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::warn!(%error, "folders are no longer watched");
                    self.limit_reached.store(true, Ordering::Relaxed);
                    return;
                }
            }
            let mounts_changed = fds.get(2).is_some_and(|fd| !fd.revents().is_empty());
            let told = !fds[0].revents().is_empty();
            drop(fds);
            if mounts_changed && mounts.as_mut().is_some_and(Mounts::changed) {
                self.marks.all(false);
            }
            if told {
                self.read(&mut buffer);
            }
        }
    }

    fn read(&self, buffer: &mut [MaybeUninit<u8>]) {
        let mut reader = inotify::Reader::new(&self.inotify, buffer);
        // Until the queue is empty; the buffer is whole events at any time.
        while let Ok(event) = reader.next() {
            let name = event.file_name().map(|name| name.to_bytes().to_vec());
            self.react(event.wd(), event.events(), name.as_deref());
        }
    }

    fn react(&self, wd: i32, events: ReadFlags, name: Option<&[u8]>) {
        if events.contains(ReadFlags::QUEUE_OVERFLOW) {
            tracing::info!("more changes than the kernel could queue: every folder is scanned");
            self.marks.all(false);
            return;
        }
        let mut watches = self.watches();
        let Some((folder, dir)) = watches.get(&wd).cloned() else {
            return;
        };
        if events.intersects(ReadFlags::IGNORED) {
            watches.remove(&wd);
        }
        let Some(name) = name else {
            // About the directory itself. Its parent tells too, except of the folder's own directory.
            let vanished = ReadFlags::UNMOUNT | ReadFlags::DELETE_SELF | ReadFlags::MOVE_SELF;
            if events.intersects(vanished) && (dir.is_root() || events.contains(ReadFlags::UNMOUNT)) {
                self.marks.folder(&folder);
            }
            return;
        };
        let directory = events.contains(ReadFlags::ISDIR);
        let shown = match directory {
            true => sieve::walks(name),
            false => sieve::file(name, u64::MAX) != sieve::Sieved::Ignored,
        };
        let Some(path) = dir.child(name).filter(|_| shown) else {
            return;
        };
        if directory && events.contains(ReadFlags::MOVED_FROM) {
            self.forget_below(&mut watches, &folder, &path);
        }
        drop(watches);
        if directory && events.intersects(ReadFlags::CREATE | ReadFlags::MOVED_TO) {
            self.marks.deep(&folder, path);
        }
        self.marks.shallow(&folder, dir);
    }

    /// A directory that left takes its watches along; where it comes back it is watched anew.
    fn forget_below(
        &self,
        watches: &mut HashMap<i32, (FolderId, RelPath)>,
        folder: &FolderId,
        path: &RelPath,
    ) {
        watches.retain(|wd, (f, dir)| {
            let left = f == folder && (dir == path || dir.below(path).is_some());
            if left {
                let _ = inotify::remove_watch(&self.inotify, *wd);
            }
            !left
        });
    }

    fn watches(&self) -> MutexGuard<'_, HashMap<i32, (FolderId, RelPath)>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The part of the mount table that concerns the folders. Mounting and unmounting tell no watch.
struct Mounts {
    table: File,
    folders: Vec<PathBuf>,
    before: BTreeSet<String>,
}

impl Mounts {
    fn open(folders: &[(FolderId, PathBuf)]) -> Option<Self> {
        let table = File::open("/proc/self/mountinfo").ok()?;
        let mut mounts = Self {
            table,
            folders: folders.iter().map(|(_, path)| path.clone()).collect(),
            before: BTreeSet::new(),
        };
        mounts.changed();
        Some(mounts)
    }

    fn changed(&mut self) -> bool {
        let mut text = Vec::new();
        // A table that cannot be read says nothing; the periodic scans remain.
        if self.table.rewind().is_err() || self.table.read_to_end(&mut text).is_err() {
            return false;
        }
        let text = String::from_utf8_lossy(&text);
        let now: BTreeSet<String> = text
            .lines()
            .filter(|line| {
                let Some(at) = line.split(' ').nth(4).map(unescape) else {
                    return false;
                };
                self.folders
                    .iter()
                    .any(|f| f.starts_with(&at) || at.starts_with(f))
            })
            .map(str::to_owned)
            .collect();
        let changed = now != self.before;
        self.before = now;
        changed
    }
}

/// A path of the mount table, in which blanks and backslashes are octal.
fn unescape(text: &str) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let octal = tail
            .get(..3)
            .filter(|d| *first == b'\\' && d.iter().all(u8::is_ascii_digit));
        match octal.and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(*first);
                rest = tail;
            }
        }
    }
    Path::new(&std::ffi::OsString::from_vec(bytes)).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mount_table_is_read_with_its_escapes() {
        assert_eq!(unescape("/mnt/my\\040films"), Path::new("/mnt/my films"));
        assert_eq!(unescape("/a\\134b\\9"), Path::new("/a\\b\\9"));
    }

    #[test]
    fn a_directory_that_cannot_be_watched_is_said() {
        let mut shared = Shared {
            // Takes no watches, as an exhausted limit does.
            inotify: eventfd(0, EventfdFlags::CLOEXEC).unwrap(),
            stop: eventfd(0, EventfdFlags::CLOEXEC).unwrap(),
            marks: Arc::default(),
            folders: Vec::new(),
            watches: Mutex::default(),
            limit_reached: AtomicBool::new(false),
            stopping: AtomicBool::new(false),
        };
        let dir = tempfile::tempdir().unwrap();
        let fd = OwnedFd::from(File::open(dir.path()).unwrap());
        shared.add(&FolderId("f".into()), &RelPath::root(), &fd);
        assert!(*shared.limit_reached.get_mut());
    }

    #[test]
    fn an_overflow_marks_everything() {
        let marks = Arc::new(Marks::default());
        let watcher = Watcher::start(Arc::clone(&marks), Vec::new()).unwrap();
        watcher.shared.react(-1, ReadFlags::QUEUE_OVERFLOW, None);
        assert!(marks.take().unwrap().all);
        watcher.stop();
        watcher.stop();
    }
}
