//! Encoded segments that outlive the executions that made them, within a budget of disk space (D20).
//!
//! A film that was watched before, or that somebody else watches further along, is served from here without an
//! encoder. What was copied is not kept: making it anew costs less than keeping it.

use std::collections::{BTreeMap, HashMap};
use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use ether_encoder::{Input, Request, Resource, Revision, Served, VideoAction};
use sha2::{Digest, Sha256};

use crate::scratch::{Blob, Room, Scratch};
use crate::store::{Piece, Segment, served_init, served_segment};
use crate::strand::Strand;

/// Which representation of which state of which file, made by which FFmpeg.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key([u8; 32]);

impl Key {
    /// The key of one rung of a strand; `None` where nothing is encoded.
    ///
    /// The other rungs do not matter: the same quality is the same in every ladder.
    pub(crate) fn of(strand: &Strand, rung: usize, source: Revision, program: Revision) -> Option<Self> {
        if strand.copies() {
            return None;
        }
        let mut alone = strand.clone();
        if let Some(video) = &mut alone.video
            && let VideoAction::Encode(encode) = &mut video.action
        {
            let rung = *encode.rungs.get(rung)?;
            encode.rungs = vec![rung];
        }
        let text = serde_json::to_vec(&(&alone, source, program)).ok()?;
        Some(Self(Sha256::digest(text).into()))
    }
}

/// The keeper. Holds no file when its budget is zero.
#[derive(Debug, Default)]
pub(crate) struct Keeper {
    scratch: Option<Arc<Scratch>>,
    shelves: Mutex<Shelves>,
}

#[derive(Debug, Default)]
struct Shelves {
    by_key: HashMap<Key, Shelf>,
    /// Rises with every use.
    uses: u64,
}

/// One representation.
#[derive(Debug, Default)]
struct Shelf {
    init: Option<(Bytes, String)>,
    segments: BTreeMap<u32, Arc<Segment>>,
    used: u64,
}

impl Keeper {
    /// Keeps up to `budget` bytes in `dir`, in a file without a name: nothing of it outlives the process.
    pub(crate) fn new(dir: &Path, budget: u64) -> io::Result<Self> {
        let scratch = match budget {
            0 => None,
            budget => Scratch::create(dir, &[budget])?.pop(),
        };
        Ok(Self {
            scratch,
            shelves: Mutex::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, Shelves> {
        self.shelves.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes that are kept.
    #[cfg(test)]
    pub(crate) fn used(&self) -> u64 {
        self.scratch.as_ref().map_or(0, |scratch| scratch.used())
    }

    /// The initialization segment that every run of this representation must agree with (D2).
    pub(crate) fn init(&self, key: Key) -> Option<Bytes> {
        let shelves = self.lock();
        let (bytes, _) = shelves.by_key.get(&key)?.init.as_ref()?;
        Some(bytes.clone())
    }

    /// A piece of a representation, pinned.
    pub(crate) fn get(&self, key: Key, piece: Piece, picture: bool) -> Option<Served> {
        let mut shelves = self.lock();
        shelves.uses += 1;
        let used = shelves.uses;
        let shelf = shelves.by_key.get_mut(&key)?;
        shelf.used = used;
        match piece {
            Piece::Init { .. } => {
                let (bytes, etag) = shelf.init.clone()?;
                Some(served_init(bytes, etag, picture))
            }
            Piece::Segment { number, .. } => shelf.segments.get(&number).map(served_segment),
        }
    }

    /// Remembers an initialization segment; the first one counts.
    pub(crate) fn put_init(&self, key: Key, bytes: &Bytes, etag: String) {
        if self.scratch.is_some() {
            let mut shelves = self.lock();
            let shelf = shelves.by_key.entry(key).or_default();
            shelf.init.get_or_insert_with(|| (bytes.clone(), etag));
        }
    }

    /// Keeps a copy of a finished segment, in place of what was used least recently. What does not fit, or
    /// cannot be written, is not kept: whoever needs it has it made.
    pub(crate) fn put(&self, key: Key, number: u32, segment: &Segment) {
        let Some(scratch) = &self.scratch else { return };
        if segment.blob.len() > scratch.limit() / 4 || self.has(key, number) {
            return;
        }
        let copied = self.copy(scratch, key, number, segment);
        let kept = match copied {
            Ok(kept) => kept,
            Err(error) => {
                tracing::debug!(%error, "a segment is not kept");
                return;
            }
        };
        let mut shelves = self.lock();
        shelves.uses += 1;
        let used = shelves.uses;
        let shelf = shelves.by_key.entry(key).or_default();
        shelf.used = used;
        shelf.segments.entry(number).or_insert_with(|| Arc::new(kept));
    }

    fn has(&self, key: Key, number: u32) -> bool {
        let shelves = self.lock();
        shelves
            .by_key
            .get(&key)
            .is_some_and(|shelf| shelf.segments.contains_key(&number))
    }

    fn copy(&self, scratch: &Arc<Scratch>, key: Key, number: u32, segment: &Segment) -> io::Result<Segment> {
        let mut blob = Blob::new(scratch.clone());
        let mut reader = crate::scratch::BlobReader {
            blob: &segment.blob,
            at: 0,
        };
        let mut piece = vec![0; 128 << 10];
        loop {
            let count = reader.read(&mut piece)?;
            if count == 0 {
                break;
            }
            let mut make_room = || {
                if self.evict(key, number) {
                    Room::Retry
                } else {
                    Room::GiveUp
                }
            };
            blob.append(&piece[..count], &mut make_room)
                .map_err(|error| io::Error::other(error.to_string()))?;
        }
        Ok(Segment {
            blob,
            head: segment.head,
            etag: segment.etag.clone(),
            content_type: segment.content_type,
        })
    }

    /// Gives up one segment of what was used least recently; of the representation that is being made itself,
    /// the one farthest from `number`.
    fn evict(&self, key: Key, number: u32) -> bool {
        let mut shelves = self.lock();
        let full = |shelf: &&mut Shelf| !shelf.segments.is_empty();
        let oldest = shelves
            .by_key
            .iter_mut()
            .filter(|(_, shelf)| full(shelf))
            .min_by_key(|(_, shelf)| shelf.used);
        let Some((victim, shelf)) = oldest else {
            return false;
        };
        let (first, last) = (shelf.segments.keys().next(), shelf.segments.keys().next_back());
        let (Some(first), Some(last)) = (first.copied(), last.copied()) else {
            return false;
        };
        let farthest = if *victim == key && number.abs_diff(first) >= number.abs_diff(last) {
            first
        } else {
            last
        };
        let gone = shelf.segments.remove(&farthest);
        let victim = *victim;
        if shelf.segments.is_empty() && victim != key {
            shelves.by_key.remove(&victim);
        }
        drop(shelves);
        // Its chunks come back when the last reader lets go, which may be now; then the caller tries again.
        gone.is_some()
    }
}

/// Finds kept pieces of a request that no execution serves now.
pub(crate) fn find(
    keeper: &Keeper,
    request: &Request,
    input: &Input,
    program: Revision,
    resource: Resource,
) -> Option<Served> {
    keeper.scratch.as_ref()?;
    let (representation, number) = match resource {
        Resource::Init { representation } => (representation, None),
        Resource::Segment {
            representation,
            number,
        } => (representation, Some(number)),
        Resource::Subtitles => return None,
    };
    let strands = Strand::all(request);
    let strand = strands
        .iter()
        .find(|strand| strand.rung_of(representation).is_some())?;
    let rung = strand.rung_of(representation)?;
    let Input::File { revision, .. } = input else {
        return None;
    };
    let key = Key::of(strand, rung, *revision, program)?;
    let piece = match number {
        None => Piece::Init { rung },
        Some(number) => Piece::Segment { number, rung },
    };
    keeper.get(key, piece, strand.video.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::CHUNK;

    fn segment(dir: &Path, byte: u8, len: usize) -> Segment {
        let scratch = Scratch::create(dir, &[64 * CHUNK]).unwrap().remove(0);
        let mut blob = Blob::new(scratch);
        blob.append(&vec![byte; len], &mut || Room::GiveUp).unwrap();
        Segment {
            blob,
            head: 0,
            etag: format!("e{byte}"),
            content_type: "video/mp4",
        }
    }

    fn key(n: u8) -> Key {
        Key([n; 32])
    }

    async fn read(served: Served) -> Vec<u8> {
        let mut stream = served.media.stream(0..served.len);
        let mut bytes = Vec::new();
        while let Some(piece) = stream.next_piece().await {
            bytes.extend_from_slice(&piece.unwrap());
        }
        bytes
    }

    #[tokio::test]
    async fn the_budget_holds_and_what_was_used_least_recently_goes_first() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = Keeper::new(dir.path(), 8 * CHUNK).unwrap();
        let whole = |n: u32| Piece::Segment { number: n, rung: 0 };
        for n in 0..4 {
            keeper.put(key(1), n, &segment(dir.path(), n as u8, CHUNK as usize));
            keeper.put(key(2), n, &segment(dir.path(), 100 + n as u8, CHUNK as usize));
        }
        assert_eq!(keeper.used(), 8 * CHUNK);
        let first = keeper.get(key(1), whole(0), true).unwrap();
        for n in 4..6 {
            keeper.put(key(3), n, &segment(dir.path(), n as u8, CHUNK as usize));
        }
        assert!(keeper.used() <= 8 * CHUNK);
        assert!(
            keeper.get(key(2), whole(3), true).is_none(),
            "the end of what nobody used"
        );
        assert_eq!(
            read(keeper.get(key(2), whole(0), true).unwrap()).await,
            vec![100; CHUNK as usize]
        );
        assert_eq!(
            (first.etag.clone(), read(first).await),
            ("e0".into(), vec![0; CHUNK as usize])
        );
        assert!(keeper.get(key(3), whole(5), true).is_some());
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            0,
            "it has no name on disk"
        );
    }

    /// One enormous segment is no reason to forget everything else.
    #[tokio::test]
    async fn what_is_larger_than_a_quarter_of_the_budget_pushes_nothing_out() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = Keeper::new(dir.path(), 8 * CHUNK).unwrap();
        let whole = |n: u32| Piece::Segment { number: n, rung: 0 };
        for n in 0..8 {
            keeper.put(key(1), n, &segment(dir.path(), n as u8, CHUNK as usize));
        }
        for (n, chunks) in [(0, 3), (1, 8), (2, 40)] {
            keeper.put(key(2), n, &segment(dir.path(), 50, chunks * CHUNK as usize));
            assert!(keeper.get(key(2), whole(n), true).is_none(), "{chunks} of 8");
        }
        assert!((0..8).all(|n| keeper.get(key(1), whole(n), true).is_some()));
    }

    /// A film larger than the budget keeps what is near the viewer; a segment that is being sent stays whole.
    #[tokio::test]
    async fn a_large_film_keeps_what_is_near_and_readers_keep_what_they_read() {
        let dir = tempfile::tempdir().unwrap();
        let keeper = Keeper::new(dir.path(), 4 * CHUNK).unwrap();
        let whole = |n: u32| Piece::Segment { number: n, rung: 0 };
        keeper.put(key(1), 0, &segment(dir.path(), 9, CHUNK as usize));
        let pinned = keeper.get(key(1), whole(0), true).unwrap();
        for n in 1..20 {
            keeper.put(key(1), n, &segment(dir.path(), n as u8, CHUNK as usize));
        }
        assert!(keeper.get(key(1), whole(19), true).is_some());
        assert!(keeper.get(key(1), whole(0), true).is_none());
        assert_eq!(read(pinned).await, vec![9; CHUNK as usize]);
        assert!(keeper.used() <= 4 * CHUNK);
    }
}
