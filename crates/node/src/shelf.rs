//! The library as playbacks know it.

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use ether_encoder::{BoxFuture, Revision};
use ether_library::{
    CatalogError, Detail, FolderState as State, Item, Kind, OpenError as Refused, PictureError, PictureState,
    Viewer,
};
use ether_playback::ports::{
    FolderState, FolderStatus, ItemDetail, ItemKind, ItemSummary, Library, LibraryError, Listing, OpenError,
    Page, Picture, Position, Problem, ScanProgress, Sidecar,
};
use ether_types::{Clock, ItemId};

use crate::names::Names;

/// Problems that one answer lists, at most.
const PROBLEMS: u32 = 200;

/// How long a request for a picture that is being made is held, and how often it is looked for meanwhile.
const PICTURE_PATIENCE: Duration = Duration::from_secs(5);
const PICTURE_LOOK: Duration = Duration::from_millis(200);

/// Joins [`ether_library::Library`] to the port. Its own words name folders by their paths; whoever asks over the
/// network hears their names.
pub(crate) struct Shelf {
    pub(crate) library: Arc<ether_library::Library>,
    pub(crate) clock: Arc<dyn Clock>,
}

impl Shelf {
    fn names(&self) -> Names {
        let status = self.library.status();
        Names::of(status.folders.into_iter().map(|folder| folder.path))
    }

    /// Why the library does not open `file`.
    fn refused(&self, error: Refused, item: &ItemId) -> OpenError {
        match error {
            Refused::NoSuchItem => LibraryError::NoSuchItem { item: item.clone() }.into(),
            Refused::FolderMissing { folder } => OpenError::FolderMissing {
                folder: self.names().name(&folder),
            },
            Refused::Gone { file } => OpenError::Gone { file },
            Refused::Changed { file } => OpenError::Changed { file },
            Refused::Unreadable { file, reason } => OpenError::Unreadable {
                file,
                reason: reason.to_string(),
            },
            Refused::Closing => LibraryError::Unavailable.into(),
            Refused::Catalog(error) => unavailable(&error).into(),
        }
    }
}

impl Library for Shelf {
    fn list(&self, page: Page) -> BoxFuture<'_, Result<Listing, LibraryError>> {
        Box::pin(async move {
            let limit = u32::try_from(page.limit).unwrap_or(u32::MAX);
            let viewer = Viewer::owner();
            let listing = self.library.list(&viewer, page.after.as_ref(), limit).await;
            let listing = listing.map_err(|error| unavailable(&error))?;
            let (problems, _) = self
                .library
                .problems(PROBLEMS)
                .await
                .map_err(|error| unavailable(&error))?;
            let status = self.library.status();
            let names = Names::of(status.folders.iter().map(|folder| folder.path.clone()));
            Ok(Listing {
                items: listing
                    .items
                    .into_iter()
                    .map(|item| summary(item, &names))
                    .collect(),
                scanning: status.scanning,
                progress: ScanProgress {
                    seen: status.progress.seen,
                    done: status.progress.done,
                },
                folders: status
                    .folders
                    .into_iter()
                    .map(|status| folder(status, &names))
                    .collect(),
                problems: problems.into_iter().map(|found| problem(found, &names)).collect(),
            })
        })
    }

    fn item(&self, id: ItemId) -> BoxFuture<'_, Result<ItemDetail, LibraryError>> {
        Box::pin(async move {
            match self.library.detail(&Viewer::owner(), &id).await {
                Ok(known) => {
                    // A film plays without what lies beside it.
                    let sidecars = self.library.sidecars(&id).await.unwrap_or_default();
                    Ok(ItemDetail {
                        sidecars: sidecars.into_iter().map(sidecar).collect(),
                        ..detail(known, &self.names())
                    })
                }
                Err(Refused::Catalog(error)) => Err(unavailable(&error)),
                Err(Refused::Closing) => Err(LibraryError::Unavailable),
                Err(_) => Err(LibraryError::NoSuchItem { item: id }),
            }
        })
    }

    fn picture(&self, id: ItemId) -> BoxFuture<'_, Result<Option<Picture>, LibraryError>> {
        Box::pin(async move {
            let until = self.clock.monotonic().saturating_add(PICTURE_PATIENCE);
            loop {
                match self.library.picture(&id).await {
                    Ok(picture) => {
                        return Ok(Some(Picture {
                            bytes: picture.bytes,
                            content_type: "image/jpeg",
                        }));
                    }
                    // It is being made, and first in line because it was asked for.
                    Err(PictureError::NotYet) if self.clock.monotonic() < until => {
                        self.clock.sleep(PICTURE_LOOK).await;
                    }
                    Err(PictureError::NotYet | PictureError::Closing | PictureError::Catalog(_)) => {
                        return Err(LibraryError::Unavailable);
                    }
                    Err(PictureError::NoSuchItem) => return Err(LibraryError::NoSuchItem { item: id }),
                    Err(PictureError::Failed(_) | PictureError::File(_)) => return Ok(None),
                }
            }
        })
    }

    fn open<'a>(&'a self, item: &'a ItemDetail) -> BoxFuture<'a, Result<Arc<File>, OpenError>> {
        Box::pin(async move {
            let id = &item.summary.id;
            let opened = self
                .library
                .open(id)
                .await
                .map_err(|error| self.refused(error, id))?;
            if revision(opened.revision) != item.revision {
                let file = item.summary.file.clone();
                return Err(OpenError::Changed { file });
            }
            Ok(opened.file)
        })
    }

    fn set_position(&self, id: ItemId, position: Position) -> BoxFuture<'_, Result<(), LibraryError>> {
        Box::pin(async move {
            let viewer = Viewer::owner();
            // Nobody left a film after its end.
            let known = self
                .library
                .item(&viewer, &id)
                .await
                .map_err(|error| unavailable(&error))?;
            let end = known.and_then(|item| item.duration_ms).unwrap_or(u64::MAX);
            let position = Position {
                position_ms: position.position_ms.min(end),
                ..position
            };
            let set = self
                .library
                .set_position(&viewer, &id, position.position_ms, position.finished);
            match set.await {
                Ok(true) => Ok(()),
                Ok(false) => Err(LibraryError::NoSuchItem { item: id }),
                Err(error) => Err(unavailable(&error)),
            }
        })
    }

    fn rescan(&self) -> BoxFuture<'_, Result<(), LibraryError>> {
        self.library.rescan();
        Box::pin(std::future::ready(Ok(())))
    }
}

fn unavailable(error: &CatalogError) -> LibraryError {
    tracing::warn!(%error, "the library's tables failed");
    LibraryError::Unavailable
}

fn summary(item: Item, names: &Names) -> ItemSummary {
    ItemSummary {
        id: item.id,
        title: item.title,
        file: item.file,
        folder: names.name(&item.folder),
        duration_ms: item.duration_ms,
        width: item.width,
        height: item.height,
        video: item.video,
        audio: item.audio,
        kind: match item.kind {
            Kind::Film => ItemKind::Film,
            Kind::Music => ItemKind::Music,
        },
        added_at: item.added,
        position_ms: item.position_ms,
        finished: item.finished,
        has_picture: item.picture != PictureState::Failed,
        warnings: item.warnings,
    }
}

fn detail(known: Detail, names: &Names) -> ItemDetail {
    ItemDetail {
        summary: summary(known.item, names),
        facts: known.facts,
        path: known.path,
        revision: revision(known.revision),
        sidecars: Vec::new(),
    }
}

fn revision(known: ether_library::Revision) -> Revision {
    let ether_library::Revision {
        size,
        mtime_ns,
        inode,
        device,
    } = known;
    Revision {
        size,
        modified_nanos: mtime_ns,
        inode,
        device,
    }
}

fn sidecar(sidecar: ether_library::Sidecar) -> Sidecar {
    Sidecar {
        stream: sidecar.number,
        name: sidecar.name,
        language: sidecar.language,
        title: sidecar.title,
        forced: sidecar.forced,
        hearing_impaired: sidecar.hearing_impaired,
    }
}

fn folder(status: ether_library::FolderStatus, names: &Names) -> FolderStatus {
    let state = match status.state {
        State::Duplicate(of) => State::Duplicate(names.name(&of)),
        state => state,
    };
    let reason = state.to_string();
    let (state, reason) = match state {
        State::Present | State::Unseen => (FolderState::Ok, None),
        State::Missing | State::Doubtful => (FolderState::Missing, Some(reason)),
        State::Unreadable(_) | State::Duplicate(_) => (FolderState::Unreadable, Some(reason)),
    };
    FolderStatus {
        name: names.name(&status.path),
        path: status.path,
        state,
        reason,
    }
}

fn problem(problem: ether_library::Problem, names: &Names) -> Problem {
    Problem {
        file: problem.file,
        folder: names.name(&problem.folder),
        code: problem.reason.code().to_owned(),
        reason: problem.reason.to_string(),
    }
}
