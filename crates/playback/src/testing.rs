//! What the tests of this crate play with: facts of made-up films, a library, texts and tokens in memory, and an
//! encoder that follows a script. The real encoder is tried where both meet, in `node`.

mod films;
mod script;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use ether_encoder::{BoxFuture, Revision};
use ether_media::{Facts, subtitles::Track};
use ether_types::{ItemId, Timestamp};

pub(crate) use films::{facts, film_picture};
pub(crate) use script::Script;

use crate::ports::*;

/// Tokens in memory.
#[derive(Default)]
pub(crate) struct MemoryTokens(Mutex<Vec<(TokenHash, ViewerId)>>);

impl MemoryTokens {
    pub(crate) fn stored(&self) -> Vec<(TokenHash, ViewerId)> {
        self.0.lock().unwrap().clone()
    }
}

impl Tokens for MemoryTokens {
    fn find(&self, hash: TokenHash) -> BoxFuture<'_, Result<Option<ViewerId>, TokensUnavailable>> {
        let found = self
            .stored()
            .into_iter()
            .find(|(stored, _)| *stored == hash)
            .map(|(_, viewer)| viewer);
        Box::pin(async { Ok(found) })
    }

    fn insert(&self, viewer: NewViewer) -> BoxFuture<'_, Result<(), TokensUnavailable>> {
        self.0.lock().unwrap().push((viewer.hash, viewer.id));
        Box::pin(async { Ok(()) })
    }

    fn revoke(&self, viewer: ViewerId) -> BoxFuture<'_, Result<(), TokensUnavailable>> {
        self.0.lock().unwrap().retain(|(_, id)| *id != viewer);
        Box::pin(async { Ok(()) })
    }
}

/// A library in memory.
#[derive(Default)]
pub(crate) struct MemoryLibrary {
    pub(crate) items: Mutex<BTreeMap<ItemId, ItemDetail>>,
    pub(crate) positions: Mutex<BTreeMap<ItemId, Position>>,
    pub(crate) scans: AtomicU32,
    pub(crate) broken: std::sync::atomic::AtomicBool,
    /// Why it opens no file.
    pub(crate) refuses: Mutex<Option<OpenError>>,
}

impl MemoryLibrary {
    /// Adds a film whose file is `path`.
    pub(crate) fn add(&self, id: &str, path: PathBuf, facts: Facts) -> ItemId {
        let id = ItemId::new(id).unwrap();
        let revision = match std::fs::File::open(&path) {
            Ok(file) => Revision::of(&file).unwrap(),
            Err(_) => Revision {
                size: 0,
                modified_nanos: 0,
                inode: 0,
                device: 0,
            },
        };
        let summary = ItemSummary {
            id: id.clone(),
            title: "A film".into(),
            file: path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned(),
            folder: "films".into(),
            duration_ms: facts.duration.map(|d| d.as_millis() as u64),
            width: Some(1280),
            height: Some(720),
            video: Some("h264".into()),
            audio: Some("aac".into()),
            kind: ItemKind::Film,
            added_at: Timestamp::from_micros(1),
            position_ms: 0,
            finished: false,
            has_picture: true,
            warnings: Vec::new(),
        };
        let detail = ItemDetail {
            summary,
            facts: Arc::new(facts),
            path,
            revision,
            sidecars: Vec::new(),
        };
        self.items.lock().unwrap().insert(id.clone(), detail);
        id
    }

    fn check(&self) -> Result<(), LibraryError> {
        if self.broken.load(Ordering::SeqCst) {
            Err(LibraryError::Unavailable)
        } else {
            Ok(())
        }
    }
}

impl Library for MemoryLibrary {
    fn list(&self, page: Page) -> BoxFuture<'_, Result<Listing, LibraryError>> {
        let items = self.items.lock().unwrap();
        let after = |id: &ItemId| page.after.as_ref().is_none_or(|after| id > after);
        let items = items.iter().filter(|(id, _)| after(id)).take(page.limit);
        let listing = Listing {
            items: items.map(|(_, detail)| detail.summary.clone()).collect(),
            scanning: false,
            progress: ScanProgress { seen: 1, done: 1 },
            folders: vec![FolderStatus {
                name: "films".into(),
                path: "/films".into(),
                state: FolderState::Ok,
                reason: None,
            }],
            problems: vec![Problem {
                file: "notes.txt".into(),
                folder: "films".into(),
                reason: "it is not media".into(),
                code: "not_media".into(),
            }],
        };
        let checked = self.check();
        Box::pin(async { checked.map(|()| listing) })
    }

    fn item(&self, id: ItemId) -> BoxFuture<'_, Result<ItemDetail, LibraryError>> {
        let found = self
            .items
            .lock()
            .unwrap()
            .get(&id)
            .cloned()
            .ok_or(LibraryError::NoSuchItem { item: id });
        let checked = self.check();
        Box::pin(async { checked.and(found) })
    }

    fn picture(&self, id: ItemId) -> BoxFuture<'_, Result<Option<Picture>, LibraryError>> {
        let found = self
            .items
            .lock()
            .unwrap()
            .get(&id)
            .cloned()
            .ok_or(LibraryError::NoSuchItem { item: id });
        Box::pin(async move {
            Ok(found?.summary.has_picture.then(|| Picture {
                bytes: Bytes::from_static(b"a picture"),
                content_type: "image/jpeg",
            }))
        })
    }

    fn set_position(&self, id: ItemId, position: Position) -> BoxFuture<'_, Result<(), LibraryError>> {
        let known = self.items.lock().unwrap().contains_key(&id);
        let missing = id.clone();
        if known {
            self.positions.lock().unwrap().insert(id, position);
        }
        Box::pin(async move {
            known
                .then_some(())
                .ok_or(LibraryError::NoSuchItem { item: missing })
        })
    }

    fn open<'a>(&'a self, item: &'a ItemDetail) -> BoxFuture<'a, Result<Arc<std::fs::File>, OpenError>> {
        let file = item.summary.file.clone();
        let refused = self.refuses.lock().unwrap().clone();
        let regular = std::fs::symlink_metadata(&item.path).is_ok_and(|meta| meta.is_file());
        let opened = regular.then(|| std::fs::File::open(&item.path)).ok_or(());
        let opened = match (refused, opened.and_then(|opened| opened.map_err(|_| ()))) {
            (Some(error), _) => Err(error),
            (None, Err(_)) => Err(OpenError::Gone { file }),
            (None, Ok(opened)) => match Revision::of(&opened).unwrap() == item.revision {
                true => Ok(Arc::new(opened)),
                false => Err(OpenError::Changed { file }),
            },
        };
        Box::pin(std::future::ready(opened))
    }

    fn rescan(&self) -> BoxFuture<'_, Result<(), LibraryError>> {
        self.scans.fetch_add(1, Ordering::SeqCst);
        Box::pin(async { Ok(()) })
    }
}

/// Text tracks that are there, or are not for the reason that their number stands for.
#[derive(Default)]
pub(crate) struct MemoryTexts {
    /// Tracks by their number.
    pub(crate) tracks: Mutex<BTreeMap<u32, Result<Track, TextError>>>,
}

impl Texts for MemoryTexts {
    fn open(
        &self,
        _item: Arc<ItemDetail>,
        stream: u32,
    ) -> BoxFuture<'_, Result<Box<dyn TextSource>, TextError>> {
        let track = self.tracks.lock().unwrap().get(&stream).cloned();
        let track = track.unwrap_or(Err(TextError::NoSuchTrack));
        Box::pin(async move { track.map(crate::http::ready_track) })
    }

    fn font(&self, _item: Arc<ItemDetail>, stream: u32) -> BoxFuture<'_, Result<Bytes, TextError>> {
        let track = self.tracks.lock().unwrap().get(&stream).cloned();
        let font = match track {
            Some(Ok(_)) => Ok(Bytes::from_static(b"a font")),
            Some(Err(error)) => Err(error),
            None => Err(TextError::NoSuchTrack),
        };
        Box::pin(async move { font })
    }
}
