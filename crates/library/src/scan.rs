//! One look at one folder: judge the folder, walk it, examine what is new, write down what became of it.
//!
//! Memory is bounded by the directories that wait, the largest single directory and the examinations under
//! way, not by the folder. A scan may end at any point and leaves nothing half done: findings are written in
//! whole batches, and what was not written is found again.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ether_types::Clock;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::catalog::{Catalog, CatalogError, Folder, KnownFile};
use crate::judge::{self, FolderVerdict, Restless};
use crate::marks::{Marks, Scope};
use crate::model::{FolderId, FolderState, Place, Status};
use crate::name::RelPath;
use crate::problem::Reason;
use crate::reader::MediaReader;
use crate::revision::Revision;
use crate::tree::{DirIdentity, Root, absent};
use crate::walk::Walk;
use crate::watch::Watcher;

/// Files of a folder that are looked for to recognize it under another number.
const RECOGNIZE: i64 = 32;

/// How long a scan waits for one operation on a folder. Reading a very large directory over a slow network
/// takes minutes and is no silence.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10 * 60);

/// Files that are watched for coming to rest; more wait for the next scan.
const MAX_RESTLESS: usize = 10_000;

/// Everything a scan works with.
pub(crate) struct Scanner {
    pub(crate) catalog: Catalog,
    pub(crate) reader: Arc<dyn MediaReader>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) status: watch::Sender<Status>,
    pub(crate) watcher: Option<Arc<Watcher>>,
    pub(crate) marks: Arc<Marks>,
    /// Every blocking job and every examination, so that the end of the library waits for all of them.
    pub(crate) work: TaskTracker,
    pub(crate) stop: CancellationToken,
    pub(crate) settle: Duration,
    pub(crate) examiners: usize,
    /// Files that were last seen changing.
    pub(crate) restless: Mutex<HashMap<Place, Restless>>,
    /// How many file operations of a folder nobody waits for any more.
    pub(crate) silent: Mutex<HashMap<FolderId, usize>>,
}

/// Why a scan ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ScanError {
    /// The library is closing.
    #[error("the library is closing")]
    Stopped,
    /// The folder's disk or share does not answer.
    #[error("its disk or share does not answer")]
    Silent,
    /// The tables.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

/// The folders as a scan sees them.
#[derive(Clone, Debug)]
pub(crate) struct Surroundings {
    /// Every folder this node ever had, by identity.
    pub(crate) folders: Arc<HashMap<FolderId, Folder>>,
    /// The directories of the configured folders: each is walked as itself only.
    pub(crate) roots: Arc<HashSet<DirIdentity>>,
}

impl Scanner {
    /// Looks at `folder` within `scope`.
    ///
    /// Cancelling this stops it between two batches; examinations under way end by themselves.
    pub(crate) async fn scan(
        self: &Arc<Self>,
        folder: &Folder,
        scope: Scope,
        around: &Surroundings,
    ) -> Result<FolderState, ScanError> {
        let path = folder.path.clone();
        let root = match self
            .on_disk(&folder.id, PATIENCE, move || Root::open(&path))
            .await?
        {
            Ok(root) => Arc::new(root),
            Err(error) if absent(&error) => return Ok(FolderState::Missing),
            Err(error) => return Ok(FolderState::Unreadable(Reason::from_io(&error))),
        };
        if let Some(twin) = self.twin(folder, root.identity, around) {
            return Ok(FolderState::Duplicate(twin));
        }
        let scope = match self.judge(folder, &root).await? {
            FolderVerdict::Known => scope,
            FolderVerdict::Doubtful => return Ok(FolderState::Doubtful),
            FolderVerdict::Adopt => {
                self.catalog.adopt(&folder.id, root.identity).await?;
                Scope::Full
            }
        };
        let identity = root.identity;
        let outcome = Walk::new(self, folder, Arc::clone(&root), around)
            .run(scope)
            .await;
        match outcome? {
            Some(error) => Ok(FolderState::Unreadable(Reason::from_io(&error))),
            None => {
                tracing::debug!(folder = %folder.path.display(), ?identity, "folder scanned");
                Ok(FolderState::Present)
            }
        }
    }

    async fn judge(self: &Arc<Self>, folder: &Folder, root: &Arc<Root>) -> Result<FolderVerdict, ScanError> {
        if folder.identity == Some(root.identity) {
            return Ok(FolderVerdict::Known);
        }
        let (films, some) = self.catalog.some_files(&folder.id, RECOGNIZE).await?;
        let recognized = self
            .on_disk(&folder.id, PATIENCE, {
                let root = Arc::clone(root);
                move || {
                    some.iter().any(|file| {
                        let now = root.revision(&file.place.path);
                        matches!(now, Ok(Some(now)) if now.same_clock(&file.remembered.revision))
                    })
                }
            })
            .await?;
        Ok(judge::folder(folder.identity, root.identity, films, recognized))
    }

    /// The path of a folder that was given before this one and is the same directory.
    fn twin(&self, folder: &Folder, identity: DirIdentity, around: &Surroundings) -> Option<String> {
        let earlier = around
            .folders
            .values()
            .filter(|other| other.active && other.id != folder.id && other.identity == Some(identity));
        // Of two that were never told apart the one with the lesser identity is scanned.
        earlier
            .filter(|other| folder.identity != Some(identity) || other.id < folder.id)
            .map(|other| crate::name::shown(std::os::unix::ffi::OsStrExt::as_bytes(other.path.as_os_str())))
            .next()
    }

    /// Whether it is proved that `file` is not at its place any more, or that its place is the one at which
    /// `found` was met, under another folder's name.
    pub(crate) async fn is_gone(
        self: &Arc<Self>,
        file: &KnownFile,
        found: (&Place, Revision),
        around: &Surroundings,
    ) -> Result<bool, ScanError> {
        if file.missing {
            return Ok(true);
        }
        let path = |place: &Place| {
            let folder = around.folders.get(&place.folder)?;
            Some(place.path.beneath(&folder.path))
        };
        // One folder was given inside another, or is not any more.
        if path(&file.place).is_some_and(|at| Some(at) == path(found.0)) {
            return Ok(true);
        }
        let Some(folder) = around.folders.get(&file.place.folder).cloned() else {
            return Ok(false);
        };
        let (id, file, found) = (folder.id.clone(), file.clone(), found.1);
        let gone = self.on_disk(&id, PATIENCE, move || match Root::open(&folder.path) {
            Ok(root) => {
                let trusted = !folder.active || folder.identity == Some(root.identity);
                trusted
                    && is_mounted(&root, &file.mount).unwrap_or(false)
                    && match root.revision(&file.place.path) {
                        // The very file, in a folder that was given up for another way to it.
                        Ok(Some(now)) if !folder.active && now == found => true,
                        Ok(Some(now)) => !now.same_file(&file.remembered.revision),
                        Ok(None) => true,
                        Err(_) => false,
                    }
            }
            // A folder that is configured may come back; one that is not was given up.
            Err(error) => !folder.active && absent(&error),
        });
        match gone.await {
            // Whoever does not answer proves nothing, and is no trouble of the one who asks.
            Err(ScanError::Silent) => Ok(false),
            gone => gone,
        }
    }

    /// Runs `job`, which touches `folder`, and waits for it for `limit` at most.
    ///
    /// A share whose server is gone lets a thread wait for ever, and nothing ends that. Such a thread is left
    /// to itself, nobody else is sent after it, and when it does come back the folder is looked at.
    pub(crate) async fn on_disk<T: Send + 'static>(
        self: &Arc<Self>,
        folder: &FolderId,
        limit: Duration,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ScanError> {
        if self.silent().contains_key(folder) {
            return Err(ScanError::Silent);
        }
        let mut running = self.work.spawn_blocking(job);
        let ended = tokio::select! {
            biased;
            ended = &mut running => ended,
            () = self.clock.sleep(limit) => {
                *self.silent().entry(folder.clone()).or_insert(0) += 1;
                let (scanner, folder) = (Arc::clone(self), folder.clone());
                self.work.spawn(async move {
                    let _ = running.await;
                    scanner.answered(&folder);
                });
                return Err(ScanError::Silent);
            }
        };
        match ended {
            Ok(value) => Ok(value),
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err(ScanError::Stopped),
        }
    }

    fn answered(&self, folder: &FolderId) {
        let mut silent = self.silent();
        if let Some(waiting) = silent.get_mut(folder) {
            *waiting -= 1;
            if *waiting == 0 {
                silent.remove(folder);
                self.marks.folder(folder);
            }
        }
    }

    fn silent(&self) -> MutexGuard<'_, HashMap<FolderId, usize>> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs `job` on a thread that may block, counted in [`Scanner::work`].
    pub(crate) async fn blocking<T: Send + 'static>(
        &self,
        job: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ScanError> {
        match self.work.spawn_blocking(job).await {
            Ok(value) => Ok(value),
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            Err(_) => Err(ScanError::Stopped),
        }
    }

    /// Whether the file at `place` was changing of late; remembers it if so.
    pub(crate) fn is_restless(&self, place: &Place, revision: &Revision) -> bool {
        let mut all = self.restless();
        let (wall, now) = (self.clock.now(), self.clock.monotonic());
        match judge::restless(revision, all.get(place), wall, now, self.settle) {
            Some(state) => {
                remember(&mut all, place, state);
                true
            }
            None => {
                all.remove(place);
                false
            }
        }
    }

    /// Remembers that the file at `place` changed just now, whatever its clock says.
    pub(crate) fn note_restless(&self, place: &Place, revision: &Revision) {
        let state = Restless {
            size: revision.size,
            mtime_ns: revision.mtime_ns,
            since: self.clock.monotonic(),
        };
        remember(&mut self.restless(), place, state);
    }

    /// Nobody waits for the file at `place` any more.
    pub(crate) fn rest(&self, place: &Place) {
        self.restless().remove(place);
    }

    /// The files that were last seen changing.
    pub(crate) fn restless(&self) -> MutexGuard<'_, HashMap<Place, Restless>> {
        self.restless.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn remember(all: &mut HashMap<Place, Restless>, place: &Place, state: Restless) {
    if all.len() < MAX_RESTLESS || all.contains_key(place) {
        all.insert(place.clone(), state);
    }
}

/// Whether a filesystem is mounted at `mount` below the folder; always so for the folder itself.
///
/// # Errors
/// The operating system could not say.
pub(crate) fn is_mounted(root: &Root, mount: &RelPath) -> io::Result<bool> {
    let Some(parent) = mount.parent() else {
        return Ok(true);
    };
    let (Some(at), Some(above)) = (root.directory(mount)?, root.directory(&parent)?) else {
        return Ok(false);
    };
    Ok(at.device != above.device)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::World;

    #[tokio::test]
    async fn a_share_that_does_not_answer_keeps_nobody_else_waiting() {
        let world = World::new().await;
        let library = world.open().await;
        let scanner = library.scanner();
        let (dead, alive) = (FolderId("dead".into()), FolderId("alive".into()));
        let (answer, asked) = std::sync::mpsc::sync_channel::<()>(0);
        let waiting = tokio::spawn({
            let (scanner, dead) = (Arc::clone(scanner), dead.clone());
            async move {
                scanner
                    .on_disk(&dead, PATIENCE, move || asked.recv().is_ok())
                    .await
            }
        });
        let sleepers = world.clock.sleepers();
        while world.clock.sleepers() == sleepers {
            tokio::task::yield_now().await;
        }
        world.clock.advance(PATIENCE);
        assert!(matches!(waiting.await.unwrap(), Err(ScanError::Silent)));
        // Nobody else is sent after it; others are served.
        assert!(matches!(
            scanner.on_disk(&dead, PATIENCE, || ()).await,
            Err(ScanError::Silent)
        ));
        assert!(scanner.on_disk(&alive, PATIENCE, || ()).await.is_ok());
        answer.send(()).unwrap();
        while scanner.on_disk(&dead, PATIENCE, || ()).await.is_err() {
            tokio::task::yield_now().await;
        }
        world.close(library).await;
    }
}
