//! The library as playbacks know it.

use std::sync::Arc;
use std::time::Duration;

use ether_encoder::{BoxFuture, Revision};
use ether_library::{
    CatalogError, Detail, FolderState as State, Item, Kind, OpenError, PictureError, PictureState, Viewer,
};
use ether_playback::ports::{
    FolderState, FolderStatus, ItemDetail, ItemKind, ItemSummary, Library, LibraryError, Listing, Page,
    Picture, Position, Problem, ScanProgress, Sidecar,
};
use ether_types::{Clock, ItemId};

/// Problems that one answer lists, at most.
const PROBLEMS: u32 = 200;

/// How long a request for a picture that is being made is held, and how often it is looked for meanwhile.
const PICTURE_PATIENCE: Duration = Duration::from_secs(5);
const PICTURE_LOOK: Duration = Duration::from_millis(200);

/// Joins [`ether_library::Library`] to the port.
pub(crate) struct Shelf {
    pub(crate) library: Arc<ether_library::Library>,
    pub(crate) clock: Arc<dyn Clock>,
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
            Ok(Listing {
                items: listing.items.into_iter().map(summary).collect(),
                scanning: status.scanning,
                progress: ScanProgress {
                    seen: status.progress.seen,
                    done: status.progress.done,
                },
                folders: status.folders.into_iter().map(folder).collect(),
                problems: problems.into_iter().map(problem).collect(),
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
                        ..detail(known)
                    })
                }
                Err(OpenError::Catalog(error)) => Err(unavailable(&error)),
                Err(OpenError::Closing) => Err(LibraryError::Unavailable),
                Err(_) => Err(LibraryError::NoSuchItem),
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
                    Err(PictureError::NoSuchItem) => return Err(LibraryError::NoSuchItem),
                    Err(PictureError::Failed(_) | PictureError::File(_)) => return Ok(None),
                }
            }
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
                Ok(false) => Err(LibraryError::NoSuchItem),
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

fn summary(item: Item) -> ItemSummary {
    ItemSummary {
        id: item.id,
        title: item.title,
        file: item.file,
        folder: item.folder,
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

fn detail(known: Detail) -> ItemDetail {
    let ether_library::Revision {
        size,
        mtime_ns,
        inode,
        device,
    } = known.revision;
    ItemDetail {
        summary: summary(known.item),
        facts: known.facts,
        path: known.path,
        revision: Revision {
            size,
            modified_nanos: mtime_ns,
            inode,
            device,
        },
        sidecars: Vec::new(),
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

fn folder(status: ether_library::FolderStatus) -> FolderStatus {
    let reason = status.state.to_string();
    let (state, reason) = match status.state {
        State::Present | State::Unseen => (FolderState::Ok, None),
        State::Missing | State::Doubtful => (FolderState::Missing, Some(reason)),
        State::Unreadable(_) | State::Duplicate(_) => (FolderState::Unreadable, Some(reason)),
    };
    FolderStatus {
        path: status.path,
        state,
        reason,
    }
}

fn problem(problem: ether_library::Problem) -> Problem {
    Problem {
        file: problem.file,
        folder: problem.folder,
        code: problem.reason.code().to_owned(),
        reason: problem.reason.to_string(),
    }
}
