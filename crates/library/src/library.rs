//! The library as the rest of ether holds it.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use ether_media::Facts;
use ether_store::Store;
use ether_types::{Clock, ItemId};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::catalog::{Catalog, CatalogError, Folder};
use crate::chores::{Chore, Chores, Wanted};
use crate::keeper::Keeper;
use crate::marks::Marks;
use crate::model::{
    Detail, FolderId, FolderState, FolderStatus, Item, Listing, Opened, PartId, Problem, Progress, Sidecar,
    Status, Viewer, Watching,
};
use crate::name::shown;
use crate::open::{OpenError, open_known, whereabouts};
use crate::options::{Options, StartError, normalized};
use crate::pictures::{KeepError, Picture, PictureRow, Pictures};
use crate::problem::Reason;
use crate::reader::MediaReader;
use crate::scan::{ScanError, Scanner};
use crate::schema::COMPONENT;
use crate::shelf::ShelfItem;
use crate::sidecar;
use crate::tree::Root;
use crate::watch::Watcher;

/// Items in one page, at most.
const MAX_PAGE: u32 = 100_000;

/// Why an item has no picture to show.
#[derive(Debug, thiserror::Error)]
pub enum PictureError {
    /// There is no such item, or it is not listed.
    #[error("there is no such item in the library")]
    NoSuchItem,
    /// It is not made yet; it is made next.
    #[error("the picture is being made")]
    NotYet,
    /// It cannot be made from this revision of the film.
    #[error("no picture could be made: {0}")]
    Failed(String),
    /// Its file cannot be read.
    #[error("the picture cannot be read: {0}")]
    File(#[source] io::Error),
    /// The library is closing.
    #[error("the library is closing")]
    Closing,
    /// The database.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

/// The library. Clones share it; it closes with [`Library::shutdown`], or unjoined with its last clone.
#[derive(Clone)]
pub struct Library {
    inner: Arc<Inner>,
}

struct Inner {
    scanner: Arc<Scanner>,
    pictures: Arc<Pictures>,
    wanted: Arc<Wanted>,
    bell: Arc<Notify>,
    folders: Vec<(FolderId, String)>,
    strangers: Vec<PathBuf>,
    tasks: Mutex<Vec<JoinHandle<()>>>,
    _closes: DropGuard,
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Library")
            .field("folders", &self.inner.folders)
            .finish_non_exhaustive()
    }
}

impl Library {
    /// Opens the library in `store` and begins to scan in the background; what is known is there at once.
    ///
    /// Cancelling this may leave the tables migrated and the folders configured.
    ///
    /// # Errors
    /// [`StartError`]. A folder that does not exist is none: it is reported by [`Library::status`].
    pub async fn start(
        options: Options,
        store: &Store,
        reader: Arc<dyn MediaReader>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, StartError> {
        let paths = normalized(&options.folders)?;
        let dir = options.data_dir.join("pictures");
        let made = std::fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&dir);
        made.map_err(|source| StartError::Pictures {
            path: dir.clone(),
            source,
        })?;
        let catalog = Catalog {
            tables: store.component(&COMPONENT).await?,
            node: options.node.clone(),
        };
        let folders = catalog.configure(paths).await?;
        let stop = CancellationToken::new();
        let marks = Arc::new(Marks::default());
        let (watcher, watching) = watcher(&options, &folders, &marks);
        let (status, _) = watch::channel(Status {
            scanning: true,
            progress: Progress::default(),
            folders: folders
                .iter()
                .map(|folder| FolderStatus {
                    path: printable(&folder.path),
                    state: FolderState::Unseen,
                })
                .collect(),
            restless: 0,
            watching,
            trouble: None,
            // Differs from every earlier run's, so that a list kept by a client is not taken for this one.
            version: clock.now().as_micros().unsigned_abs(),
            finished: 0,
            chores: false,
        });
        let scanner = Arc::new(Scanner {
            catalog,
            reader,
            clock,
            status,
            watcher,
            marks: Arc::clone(&marks),
            work: TaskTracker::new(),
            stop: stop.clone(),
            settle: options.settle,
            examiners: options.examiners.max(1),
            restless: Mutex::default(),
            silent: Mutex::default(),
        });
        let pictures = Arc::new(Pictures {
            dir,
            budget: options.picture_bytes,
        });
        let (wanted, bell) = (Arc::new(Wanted::default()), Arc::new(Notify::new()));
        marks.all(true);
        let keeper = Keeper {
            scanner: Arc::clone(&scanner),
            folders: folders.iter().map(|folder| folder.id.clone()).collect(),
            private: Root::open(&options.data_dir)
                .ok()
                .map(|root| root.identity)
                .into_iter()
                .collect(),
            rescan: options.rescan,
            debounce: options.debounce,
            debounce_limit: options.debounce.saturating_mul(10),
            grace: options.grace,
            pictures: Arc::clone(&pictures),
            chores: Arc::clone(&bell),
        };
        let chores = Chores {
            scanner: Arc::clone(&scanner),
            pictures: Arc::clone(&pictures),
            wanted: Arc::clone(&wanted),
            bell: Arc::clone(&bell),
            width: options.picture_width,
        };
        let tasks = vec![
            supervised(&scanner, "scanning", keeper.run()),
            supervised(&scanner, "background work", chores.run()),
        ];
        Ok(Self {
            inner: Arc::new(Inner {
                scanner,
                pictures,
                wanted,
                bell,
                folders: folders
                    .iter()
                    .map(|f| (f.id.clone(), printable(&f.path)))
                    .collect(),
                strangers: folders
                    .iter()
                    .filter(|f| f.identity.is_none())
                    .map(|f| f.path.clone())
                    .collect(),
                tasks: Mutex::new(tasks),
                _closes: stop.drop_guard(),
            }),
        })
    }

    /// Up to `limit` items (1 to 100,000) after the item `after`, in the order of their titles. An `after`
    /// that is not known gives an empty page.
    ///
    /// # Errors
    /// The database's.
    pub async fn list(
        &self,
        viewer: &Viewer,
        after: Option<&ItemId>,
        limit: u32,
    ) -> Result<Listing, CatalogError> {
        let limit = limit.clamp(1, MAX_PAGE);
        let catalog = &self.inner.scanner.catalog;
        let mut items = catalog.list(viewer, after, i64::from(limit) + 1).await?;
        let more = items.len() > limit as usize;
        items.truncate(limit as usize);
        Ok(Listing {
            items: items.into_iter().map(|item| self.named(item)).collect(),
            more,
        })
    }

    /// The item `id` for a list; `None` where it is not listed.
    ///
    /// # Errors
    /// The database's.
    pub async fn item(&self, viewer: &Viewer, id: &ItemId) -> Result<Option<Item>, CatalogError> {
        let item = self.inner.scanner.catalog.item(viewer, id).await?;
        Ok(item.map(|item| self.named(item)))
    }

    /// The item `id` with everything that playing it needs, its file as it is now where that can be told.
    /// Facts that still lack their keyframes are completed next.
    ///
    /// # Errors
    /// [`OpenError::NoSuchItem`], [`OpenError::Catalog`].
    pub async fn detail(&self, viewer: &Viewer, id: &ItemId) -> Result<Detail, OpenError> {
        let Inner { scanner, .. } = &*self.inner;
        let item = self.item(viewer, id).await?.ok_or(OpenError::NoSuchItem)?;
        let known = scanner.catalog.file_of(id).await?.ok_or(OpenError::NoSuchItem)?;
        let facts = scanner.catalog.facts(id).await?.ok_or(OpenError::NoSuchItem)?;
        let (_, path) = whereabouts(scanner, &known).await?;
        // Filesystems get other numbers at every mount. Where the file is not to be had, what is known of it
        // still is; opening it will say the rest.
        let opened = open_known(scanner, &known).await;
        let revision = opened.map_or(known.remembered.revision, |opened| opened.revision);
        if facts
            .gaps
            .iter()
            .any(|gap| matches!(gap, ether_media::Gap::Keyframes { .. }))
        {
            self.want(Chore::Index, id);
        }
        Ok(Detail {
            item,
            facts,
            part: known.id,
            changestamp: known.stamp.unsigned_abs(),
            path,
            revision,
        })
    }

    /// Everything known of the item's file; `None` where there is no such item.
    ///
    /// # Errors
    /// The database's.
    pub async fn facts(&self, id: &ItemId) -> Result<Option<Arc<Facts>>, CatalogError> {
        self.inner.scanner.catalog.facts(id).await
    }

    /// Opens the item's file and checks that it is the one that the facts describe.
    ///
    /// Cancelling this closes what it opened.
    ///
    /// # Errors
    /// [`OpenError`].
    pub async fn open(&self, id: &ItemId) -> Result<Opened, OpenError> {
        let scanner = &self.inner.scanner;
        let known = scanner.catalog.file_of(id).await?.ok_or(OpenError::NoSuchItem)?;
        open_known(scanner, &known).await
    }

    /// Opens a file for direct play.
    ///
    /// Cancelling this closes what it opened.
    ///
    /// # Errors
    /// As [`Library::open`]; [`OpenError::Changed`] also where `changestamp` is not the current one.
    pub async fn open_part(&self, part: &PartId, changestamp: u64) -> Result<Opened, OpenError> {
        let scanner = &self.inner.scanner;
        let known = scanner.catalog.file(part).await?.ok_or(OpenError::NoSuchItem)?;
        if known.stamp.unsigned_abs() != changestamp {
            return Err(OpenError::Changed {
                file: known.place.path.to_string(),
            });
        }
        open_known(scanner, &known).await
    }

    /// The subtitle files that go with the item's by their names, in the order of their names: beside it, and in
    /// a folder beside it that is named as such folders are. Looked for anew each time.
    ///
    /// A directory that cannot be read, or does not answer soon, has none to offer.
    ///
    /// # Errors
    /// [`OpenError::NoSuchItem`], [`OpenError::Closing`], [`OpenError::Catalog`].
    pub async fn sidecars(&self, id: &ItemId) -> Result<Vec<Sidecar>, OpenError> {
        let scanner = &self.inner.scanner;
        let known = scanner.catalog.file_of(id).await?.ok_or(OpenError::NoSuchItem)?;
        sidecar::find(scanner, &known).await
    }

    /// The content of one of the item's [`sidecars`](Self::sidecars), which must be in the state that was found
    /// then.
    ///
    /// # Errors
    /// [`OpenError`]; [`OpenError::Changed`] where it is not in that state any more, [`OpenError::Unreadable`]
    /// where it is larger than any subtitle file.
    pub async fn read_sidecar(&self, id: &ItemId, sidecar: &Sidecar) -> Result<Bytes, OpenError> {
        let scanner = &self.inner.scanner;
        let known = scanner.catalog.file_of(id).await?.ok_or(OpenError::NoSuchItem)?;
        sidecar::read(scanner, &known, sidecar).await
    }

    /// The item's picture. One that is not made yet is made next.
    ///
    /// # Errors
    /// [`PictureError`].
    pub async fn picture(&self, id: &ItemId) -> Result<Picture, PictureError> {
        let Inner {
            scanner, pictures, ..
        } = &*self.inner;
        let (picture, used) = match scanner.catalog.picture(id).await? {
            Some(PictureRow::Ready { id, used }) => (id, used),
            Some(PictureRow::Failed(reason)) => return Err(PictureError::Failed(reason)),
            None => {
                let known = scanner.catalog.file_of(id).await?;
                known.ok_or(PictureError::NoSuchItem)?;
                self.want(Chore::Picture, id);
                return Err(PictureError::NotYet);
            }
        };
        match pictures.read(scanner, &picture).await {
            Ok(Some(bytes)) => {
                // Without this it may be evicted a little early; no reason to fail.
                let _ = scanner.catalog.picture_used(id, used, scanner.clock.now()).await;
                Ok(Picture { bytes, etag: picture })
            }
            Ok(None) => {
                scanner.catalog.picture_lost(id).await?;
                self.want(Chore::Picture, id);
                Err(PictureError::NotYet)
            }
            Err(KeepError::File(error)) => Err(PictureError::File(error)),
            Err(KeepError::Catalog(error) | KeepError::Scan(ScanError::Catalog(error))) => {
                Err(PictureError::Catalog(error))
            }
            Err(KeepError::Scan(ScanError::Stopped | ScanError::Silent)) => Err(PictureError::Closing),
        }
    }

    /// Remembers where `viewer` is in `id`, in milliseconds. `finished` absent leaves that as it is. `false`
    /// where there is no such item. The 10,000 latest positions of each viewer are kept.
    ///
    /// Cancelling this leaves it done or not done.
    ///
    /// # Errors
    /// The database's.
    pub async fn set_position(
        &self,
        viewer: &Viewer,
        id: &ItemId,
        position_ms: u64,
        finished: Option<bool>,
    ) -> Result<bool, CatalogError> {
        let scanner = &self.inner.scanner;
        let position = i64::try_from(position_ms).unwrap_or(i64::MAX);
        let now = scanner.clock.now();
        scanner
            .catalog
            .set_position(viewer, id, position, finished, now)
            .await
    }

    /// What is not offered and why, the latest first, up to `limit`; and how many there are. Files that are
    /// still being written are among them.
    ///
    /// # Errors
    /// The database's.
    pub async fn problems(&self, limit: u32) -> Result<(Vec<Problem>, u64), CatalogError> {
        let scanner = &self.inner.scanner;
        let (kept, count) = scanner.catalog.problems(i64::from(limit)).await?;
        let mut restless: Vec<Problem> = scanner
            .restless()
            .keys()
            .map(|place| Problem {
                file: place.path.to_string(),
                folder: self.folder_name(&place.folder),
                reason: Reason::BeingWritten,
            })
            .collect();
        restless.sort_by(|a, b| a.file.cmp(&b.file));
        let count = count + restless.len() as u64;
        let kept = kept.into_iter().map(|problem| Problem {
            folder: self.folder_name(&problem.folder),
            file: problem.file,
            reason: problem.reason,
        });
        let problems = restless.into_iter().chain(kept).take(limit as usize).collect();
        Ok((problems, count))
    }

    /// The folders that had never been seen when this library was started. One of these that does not exist
    /// is most likely a slip of the pen; any other that does not is most likely not mounted.
    pub fn strangers(&self) -> &[PathBuf] {
        &self.inner.strangers
    }

    /// What the library is doing now.
    pub fn status(&self) -> Status {
        self.inner.scanner.status.borrow().clone()
    }

    /// What the library is doing, as it changes.
    pub fn subscribe(&self) -> watch::Receiver<Status> {
        self.inner.scanner.status.subscribe()
    }

    /// Asks for a scan of everything, at once. Returns what [`Library::finished`] waits for.
    pub fn rescan(&self) -> u64 {
        self.inner.scanner.marks.all(true)
    }

    /// Waits until the scan that `request` asked for is over, or the library closes. Cancel-safe.
    pub async fn finished(&self, request: u64) {
        let mut status = self.subscribe();
        tokio::select! {
            () = self.inner.scanner.stop.cancelled() => {}
            _ = status.wait_for(|status| status.finished >= request) => {}
        }
    }

    /// The owner's word that the directory that stands at the `index`th folder's path is the right one,
    /// although it is not the one known: what is not in it is gone. `None` where there is no such folder.
    ///
    /// # Errors
    /// The database's.
    pub async fn accept_folder(&self, index: usize) -> Result<Option<u64>, CatalogError> {
        let Some((folder, _)) = self.inner.folders.get(index) else {
            return Ok(None);
        };
        self.inner.scanner.catalog.disown(folder).await?;
        Ok(Some(self.rescan()))
    }

    /// Ends every task, thread and process of the library and waits for them. Repeating it is harmless; reads
    /// still answer afterwards. A file operation that the kernel does not end (a dead network share) is waited
    /// for as long as it takes: callers bound it.
    pub async fn shutdown(&self) {
        let scanner = &self.inner.scanner;
        scanner.stop.cancel();
        let tasks = match self.inner.tasks.lock() {
            Ok(mut tasks) => std::mem::take(&mut *tasks),
            Err(poisoned) => std::mem::take(&mut *poisoned.into_inner()),
        };
        for task in tasks {
            if let Err(error) = task.await {
                tracing::error!(%error, "a task of the library ended by itself");
            }
        }
        if let Some(watcher) = scanner.watcher.clone() {
            let _ = scanner.blocking(move || watcher.stop()).await;
        }
        scanner.work.close();
        scanner.work.wait().await;
    }

    #[cfg(test)]
    pub(crate) fn scanner(&self) -> &Arc<Scanner> {
        &self.inner.scanner
    }

    fn want(&self, chore: Chore, id: &ItemId) {
        if self.inner.wanted.push(chore, id) {
            self.inner.bell.notify_one();
        }
    }

    fn named(&self, item: ShelfItem) -> Item {
        Item {
            folder: self.folder_name(&item.folder),
            ..item.item
        }
    }

    fn folder_name(&self, id: &FolderId) -> String {
        let folder = self.inner.folders.iter().find(|(folder, _)| folder == id);
        folder.map(|(_, path)| path.clone()).unwrap_or_default()
    }
}

/// Runs a task of the library. One that ends by a defect says so in the status, and nobody waits for it.
fn supervised(
    scanner: &Arc<Scanner>,
    what: &'static str,
    task: impl Future<Output = ()> + Send + 'static,
) -> JoinHandle<()> {
    let scanner = Arc::clone(scanner);
    let task = tokio::spawn(task);
    tokio::spawn(async move {
        if let Err(error) = task.await {
            tracing::error!(%error, "the library's {what} was ended by a defect");
            scanner.status.send_modify(|status| {
                status.trouble = Some(format!(
                    "{what} was ended by a defect: restart ether and report it"
                ));
                status.scanning = false;
                status.finished = u64::MAX;
            });
        }
    })
}

fn watcher(options: &Options, folders: &[Folder], marks: &Arc<Marks>) -> (Option<Arc<Watcher>>, Watching) {
    if !options.watch {
        return (None, Watching::Off);
    }
    let paths = folders.iter().map(|f| (f.id.clone(), f.path.clone())).collect();
    match Watcher::start(Arc::clone(marks), paths) {
        Ok(watcher) => (Some(Arc::new(watcher)), Watching::Complete),
        Err(error) => (None, Watching::Unavailable(error.to_string())),
    }
}

fn printable(path: &Path) -> String {
    shown(path.as_os_str().as_bytes())
}
