//! What FFmpeg reads again and again: the places where it begins to read.
//!
//! Every run of an encoder opens its input anew: head, index, and then wherever it was told to go. The first bytes
//! after each place where reading began are kept, per state of a file, so that the next run finds them here instead
//! of a round trip away. What follows them is the film itself, which is read once, and is not kept.

use std::collections::{HashMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::{Bytes, BytesMut};
use ether_encoder::Revision;
use ether_types::NodeId;

/// Bytes of a block: whole blocks are kept, so reading begins at a multiple of it.
pub(super) const BLOCK: u64 = 16 << 10;
/// Bytes that are kept after a place where reading began.
const REACH: u64 = 4 << 20;

/// One state of one owner's file.
pub(super) type Film = (NodeId, Revision);

/// Blocks of all films, within one bound. Those that were asked for again stay longest.
pub(super) struct Index {
    limit: usize,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    blocks: HashMap<(Film, u64), Block>,
    /// In the order in which they are looked at when room is needed.
    order: VecDeque<(Film, u64)>,
    bytes: usize,
}

struct Block {
    bytes: Bytes,
    asked: bool,
}

impl Index {
    /// An index of at most `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            limit,
            kept: Mutex::default(),
        }
    }

    /// What is kept from `at` to the end of its block.
    pub(super) fn get(&self, film: &Film, at: u64) -> Option<Bytes> {
        let mut kept = self.lock();
        let block = kept.blocks.get_mut(&(film.clone(), at / BLOCK))?;
        block.asked = true;
        let skip = usize::try_from(at % BLOCK).ok()?;
        (skip < block.bytes.len()).then(|| block.bytes.slice(skip..))
    }

    fn put(&self, film: &Film, block: u64, bytes: Bytes) {
        let key = (film.clone(), block);
        let mut guard = self.lock();
        let kept = &mut *guard;
        if bytes.len() > self.limit || kept.blocks.contains_key(&key) {
            return;
        }
        while kept.bytes + bytes.len() > self.limit {
            let Some(oldest) = kept.order.pop_front() else {
                return;
            };
            match kept.blocks.get_mut(&oldest) {
                // Once round for whatever was asked for.
                Some(block) if block.asked => {
                    block.asked = false;
                    kept.order.push_back(oldest);
                }
                Some(_) => {
                    if let Some(gone) = kept.blocks.remove(&oldest) {
                        kept.bytes -= gone.bytes.len();
                    }
                }
                None => {}
            }
        }
        kept.bytes += bytes.len();
        kept.order.push_back(key.clone());
        kept.blocks.insert(key, Block { bytes, asked: false });
    }

    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.lock().bytes
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes the first bytes of one answer into the index.
pub(super) struct Filling {
    film: Film,
    block: u64,
    begun: BytesMut,
    left: u64,
    /// The film's length: its last block is short.
    len: u64,
}

impl Filling {
    /// Of an answer that begins at `block`.
    pub(super) fn new(film: Film, block: u64) -> Self {
        let len = film.1.size;
        Self {
            film,
            block,
            begun: BytesMut::new(),
            left: REACH,
            len,
        }
    }

    /// Takes the next bytes of the answer.
    pub(super) fn take(&mut self, index: &Index, mut bytes: &[u8]) {
        while self.left > 0 && !bytes.is_empty() {
            let whole = (self.len - self.block * BLOCK).min(BLOCK);
            let whole = usize::try_from(whole).unwrap_or(usize::MAX);
            let some = bytes.len().min(whole - self.begun.len());
            self.begun.extend_from_slice(&bytes[..some]);
            bytes = &bytes[some..];
            if self.begun.len() == whole {
                index.put(&self.film, self.block, self.begun.split().freeze());
                self.left = self.left.saturating_sub(BLOCK);
                self.block += 1;
                if self.block * BLOCK >= self.len {
                    self.left = 0;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn film(size: u64) -> Film {
        let revision = Revision {
            size,
            modified_nanos: 1,
            inode: 1,
            device: 1,
        };
        (NodeId::new("attic").unwrap(), revision)
    }

    fn content(len: usize) -> Vec<u8> {
        (0..len).map(|n| u8::try_from(n * 7 % 251).unwrap()).collect()
    }

    #[test]
    fn what_an_answer_began_with_is_found_again_byte_for_byte_and_the_rest_is_not_kept() {
        let size = REACH * 2 + 5;
        let film = film(size);
        let content = content(usize::try_from(size).unwrap());
        let index = Index::new(64 << 20);
        let mut filling = Filling::new(film.clone(), 0);
        for piece in content.chunks(10_007) {
            filling.take(&index, piece);
        }
        let mut end = Filling::new(film.clone(), size / BLOCK);
        end.take(&index, &content[usize::try_from(size / BLOCK * BLOCK).unwrap()..]);
        for at in [0, 1, BLOCK - 1, BLOCK, REACH - 1, size - 5, size - 1] {
            let found = index.get(&film, at).unwrap();
            let from = usize::try_from(at).unwrap();
            assert!(!found.is_empty());
            assert_eq!(found, content[from..from + found.len()], "{at}");
        }
        assert_eq!(index.get(&film, REACH), None);
        assert_eq!(index.get(&film, size), None);
        let other = (NodeId::new("other").unwrap(), film.1);
        assert_eq!(index.get(&other, 0), None);
    }

    #[test]
    fn the_bound_holds_and_what_is_asked_for_stays() {
        let film = film(1 << 30);
        let room = 8 * usize::try_from(BLOCK).unwrap();
        let index = Index::new(room);
        let block = vec![7; usize::try_from(BLOCK).unwrap()];
        for n in 0..64 {
            Filling::new(film.clone(), n * 10).take(&index, &block);
            assert!(index.get(&film, 0).is_some(), "{n}");
            assert!(index.bytes() <= room);
        }
    }
}
