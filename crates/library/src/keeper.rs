//! The task that keeps the library up to date: it waits for marks, for the clock and for restless files, and
//! looks at one folder after the other. Nothing else writes findings down.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use ether_types::Monotonic;
use tokio::sync::Notify;

use crate::catalog::{CatalogError, Folder};
use crate::marks::{Scope, Taken};
use crate::model::{FolderId, FolderState, Place, Watching};
use crate::name::RelPath;
use crate::pictures::Pictures;
use crate::problem::Reason;
use crate::scan::{PATIENCE, ScanError, Scanner, Surroundings};
use crate::tree::{DirIdentity, Root};

/// The pause after a scan that could not be kept.
const AFTER_TROUBLE: Duration = Duration::from_secs(30);

/// The keeper's settings and what it works with.
pub(crate) struct Keeper {
    pub(crate) scanner: Arc<Scanner>,
    /// In the order they were given.
    pub(crate) folders: Vec<FolderId>,
    /// Directories that are never walked: where ether itself writes.
    pub(crate) private: HashSet<DirIdentity>,
    pub(crate) rescan: Duration,
    pub(crate) debounce: Duration,
    pub(crate) debounce_limit: Duration,
    pub(crate) grace: Duration,
    pub(crate) pictures: Arc<Pictures>,
    /// Rung after every scan.
    pub(crate) chores: Arc<Notify>,
}

impl Keeper {
    /// Runs until the library closes.
    pub(crate) async fn run(self) {
        if let Err(error) = self.pictures.tidy(&self.scanner).await {
            tracing::warn!(%error, "pictures of an earlier run could not be tidied");
        }
        let mut next = self.scanner.clock.monotonic();
        let mut trouble = false;
        loop {
            let stop = self.scanner.stop.clone();
            let taken = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                taken = self.wait(next, trouble) => taken,
            };
            let full = taken.all;
            let looked = self.look(taken).await;
            if full {
                // Counted from the end, so that a share that takes longer than this leaves time for the rest.
                next = self.scanner.clock.monotonic().saturating_add(self.rescan);
            }
            match looked {
                Ok(()) => trouble = false,
                Err(ScanError::Stopped) if stop.is_cancelled() => return,
                Err(error) => {
                    tracing::warn!(%error, "a scan could not be kept; it is tried again");
                    self.scanner
                        .status
                        .send_modify(|status| status.trouble = Some(error.to_string()));
                    self.scanner.marks.all(false);
                    trouble = true;
                }
            }
            self.scanner.status.send_modify(|status| {
                status.scanning = self.scanner.marks.pending().0 && !trouble;
                status.restless = self.scanner.restless().len();
                if let Some(watcher) = &self.scanner.watcher {
                    status.watching = watcher.state();
                } else if status.watching == Watching::Complete {
                    status.watching = Watching::Off;
                }
            });
            self.chores.notify_one();
        }
    }

    /// Waits until there is something to look at and it has come to rest.
    async fn wait(&self, next: Monotonic, trouble: bool) -> Taken {
        let Scanner { clock, marks, .. } = &*self.scanner;
        loop {
            let (pending, urgent) = marks.pending();
            if pending {
                if trouble && !urgent {
                    self.pause(AFTER_TROUBLE, AFTER_TROUBLE).await;
                } else if !urgent {
                    self.pause(self.debounce, self.debounce_limit).await;
                }
                // They go along, so that a stream of other changes cannot keep them from being looked at.
                self.mark_restless();
                if let Some(taken) = marks.take() {
                    return taken;
                }
            }
            let restless = !self.scanner.restless().is_empty();
            tokio::select! {
                () = marks.changed() => {}
                () = clock.sleep(next.saturating_since(clock.monotonic())) => {
                    marks.all(false);
                }
                () = clock.sleep(self.scanner.settle), if restless => self.mark_restless(),
            }
        }
    }

    /// Waits until no mark was set for `quiet`, at most for `limit`; not at all once someone waits.
    async fn pause(&self, quiet: Duration, limit: Duration) {
        let Scanner { clock, marks, .. } = &*self.scanner;
        let mut limit = clock.sleep(limit);
        loop {
            tokio::select! {
                () = marks.changed() => {
                    if marks.pending().1 {
                        return;
                    }
                }
                () = clock.sleep(quiet) => return,
                () = &mut limit => return,
            }
        }
    }

    fn mark_restless(&self) {
        let dirs: Vec<(FolderId, RelPath)> = self
            .scanner
            .restless()
            .keys()
            .map(|place| (place.folder.clone(), place.path.parent().unwrap_or_default()))
            .collect();
        for (folder, dir) in dirs {
            self.scanner.marks.shallow(&folder, dir);
        }
    }

    async fn look(&self, mut taken: Taken) -> Result<(), ScanError> {
        self.scanner.status.send_modify(|status| {
            status.scanning = true;
            status.progress = crate::model::Progress::default();
        });
        let mut failed = None;
        for (at, id) in self.folders.iter().enumerate() {
            let scope = match taken.all {
                true => Scope::Full,
                false => match taken.folders.remove(id) {
                    Some(scope) => scope,
                    None => continue,
                },
            };
            match self.look_at(id, scope).await {
                Ok(state) => self.folder_is(at, state),
                Err(ScanError::Stopped) if self.scanner.stop.is_cancelled() => {
                    return Err(ScanError::Stopped);
                }
                Err(ScanError::Silent) => self.folder_is(at, FolderState::Unreadable(Reason::Silent)),
                // One folder's trouble stops no other.
                Err(error) => failed = Some(error),
            }
        }
        let tidied = match self.drop_lost_restless().await {
            Ok(()) if taken.all => self.purge().await.map_err(ScanError::from),
            tidied => tidied,
        };
        let failed = failed.or(tidied.err());
        self.scanner.status.send_modify(|status| {
            status.finished = taken.request;
            if failed.is_none() {
                status.trouble = None;
            }
        });
        match failed {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    fn folder_is(&self, at: usize, state: FolderState) {
        self.scanner.status.send_modify(|status| {
            if let Some(folder) = status.folders.get_mut(at) {
                status.version += u64::from(folder.state != state);
                folder.state = state;
            }
        });
    }

    async fn look_at(&self, id: &FolderId, scope: Scope) -> Result<FolderState, ScanError> {
        // Read anew for each folder: the one before may have been adopted meanwhile.
        let folders: HashMap<FolderId, Folder> = self
            .scanner
            .catalog
            .folders()
            .await?
            .into_iter()
            .map(|f| (f.id.clone(), f))
            .collect();
        let Some(folder) = folders.get(id).cloned() else {
            return Err(CatalogError::Damaged { what: "folder" }.into());
        };
        let mut roots = self.private.clone();
        for other in folders.values().filter(|f| f.active) {
            let path = other.path.clone();
            let opened = self
                .scanner
                .on_disk(&other.id, PATIENCE, move || Root::open(&path));
            match opened.await {
                Ok(opened) => roots.extend(opened.ok().map(|root| root.identity)),
                Err(ScanError::Silent) => roots.extend(other.identity),
                Err(error) => return Err(error),
            }
        }
        let around = Surroundings {
            folders: Arc::new(folders),
            roots: Arc::new(roots),
        };
        self.scanner.scan(&folder, scope, &around).await
    }

    /// Files that were being written and are no more: nobody waits for them to rest.
    async fn drop_lost_restless(&self) -> Result<(), ScanError> {
        let waiting: Vec<_> = self.scanner.restless().keys().cloned().collect();
        if waiting.is_empty() {
            return Ok(());
        }
        for folder in self.scanner.catalog.folders().await? {
            let here: Vec<_> = waiting
                .iter()
                .filter(|p| p.folder == folder.id)
                .cloned()
                .collect();
            if here.is_empty() {
                continue;
            }
            let lost = move || -> Vec<Place> {
                let Ok(root) = Root::open(&folder.path) else {
                    return Vec::new();
                };
                let lost = |place: &Place| matches!(root.revision(&place.path), Ok(None));
                here.into_iter().filter(lost).collect()
            };
            match self.scanner.on_disk(&folder.id, PATIENCE, lost).await {
                Ok(lost) => lost.iter().for_each(|place| self.scanner.rest(place)),
                Err(ScanError::Silent) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn purge(&self) -> Result<(), CatalogError> {
        let Some(before) = self.scanner.clock.now().checked_sub(self.grace) else {
            return Ok(());
        };
        loop {
            let (purged, pictures) = self.scanner.catalog.purge(before).await?;
            self.pictures.remove(&self.scanner, pictures).await;
            if purged == 0 {
                return Ok(());
            }
        }
    }
}
