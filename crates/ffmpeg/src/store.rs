//! What a strand of an execution has made and what is asked of it: the state that its supervisor, its reader thread and
//! its viewers share. The lock is held for bookkeeping only, never over IO.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::ops::Range;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use bytes::Bytes;
use ether_encoder::{BUFFER, Buffer, ByteStream, Ended, MOST_RUNGS, Pieces, Refusal, Served, ServedMedia};
use ether_media::{Ticks, Timeline};
use ether_types::Monotonic;
use sha2::{Digest, Sha256};
use tokio::sync::{Notify, watch};
use tokio::task::JoinHandle;

use crate::kept::{Keeper, Key};
use crate::scratch::{Blob, Room, Scratch, WriteError};
use crate::strand::{RungSet, Strand};

/// Media time that is made ahead of what the viewer asked for last.
const AHEAD: Ticks = Ticks(30 * Ticks::HZ);
/// Segments that are made ahead whatever their length: the one being asked for must be able to complete.
const AHEAD_SEGMENTS: u32 = 2;
/// Segments behind the viewer that are kept while there is room for what comes.
const BEHIND: u32 = 1;
/// For how long it matters to whoever asks next that an encoder hung. Who comes later may have been away on purpose.
const NEWS: Duration = Duration::from_secs(30);

/// A finished segment: its head was written after the bytes it precedes.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) blob: Blob,
    /// Bytes of the head at the end of the blob; zero where the blob is in order.
    pub(crate) head: u64,
    pub(crate) etag: String,
    pub(crate) content_type: &'static str,
}

impl Segment {
    fn read_at(&self, into: &mut [u8], at: u64) -> io::Result<()> {
        let body = self.blob.len() - self.head;
        let from_head = usize::try_from(self.head.saturating_sub(at))
            .unwrap_or(usize::MAX)
            .min(into.len());
        let (head, rest) = into.split_at_mut(from_head);
        if !head.is_empty() {
            self.blob.read_at(head, body + at)?;
        }
        self.blob
            .read_at(rest, (at + from_head as u64).saturating_sub(self.head))
    }

    /// Reads some of the bytes from `at` on, where that needs no disk; `None` where it does.
    fn read_cached(&self, into: &mut [u8], at: u64) -> io::Result<Option<usize>> {
        match self.head.checked_sub(at) {
            None | Some(0) => self.blob.read_cached(into, at - self.head),
            Some(left) => {
                let left = usize::try_from(left).unwrap_or(usize::MAX).min(into.len());
                let body = self.blob.len() - self.head;
                self.blob.read_cached(&mut into[..left], body + at)
            }
        }
    }
}

/// The run that makes segments now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunView {
    pub(crate) id: u64,
    pub(crate) start: u32,
    /// The rungs that it makes.
    pub(crate) rungs: RungSet,
    /// The lowest segment that it has not finished, of each rung.
    pub(crate) next: [u32; MOST_RUNGS],
    /// The highest segment that it has begun.
    pub(crate) position: u32,
    pub(crate) held: bool,
    pub(crate) produced: Option<Ticks>,
}

impl RunView {
    /// The lowest segment that some rung of the run lacks.
    pub(crate) fn behind(&self) -> u32 {
        self.rungs
            .iter()
            .map(|rung| self.next[rung])
            .min()
            .unwrap_or(self.start)
    }
}

/// What a strand makes and viewers ask for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Piece {
    /// The initialization segment of a rung.
    Init { rung: usize },
    /// A segment of a rung.
    Segment { number: u32, rung: usize },
}

impl Piece {
    pub(crate) fn rung(self) -> usize {
        match self {
            Self::Init { rung } | Self::Segment { rung, .. } => rung,
        }
    }
}

/// How a run failed, for those who wait for what it was to make.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) run: u64,
    pub(crate) start: u32,
    pub(crate) ended: Ended,
    /// Set where another device can make it.
    pub(crate) refusal: Option<Refusal>,
    /// When it happened, as long as nobody was told.
    pub(crate) untold: Option<Monotonic>,
}

impl Failure {
    /// Whether somebody who asks at `now` is to hear of it although they did not wait for it. Whoever waited for an
    /// encoder that hung gave up long before it was found out, and comes back to ask: another one in silence would be
    /// waited for as long again.
    pub(crate) fn is_news(&self, now: Monotonic) -> bool {
        let recent = |at: Monotonic| now.saturating_since(at) <= NEWS;
        self.ended == Ended::Stalled && self.untold.is_some_and(recent)
    }
}

/// Everything that changes.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// The initialization segment of each rung.
    pub(crate) inits: [Option<Bytes>; MOST_RUNGS],
    /// By number, then by rung.
    pub(crate) segments: BTreeMap<(u32, usize), Arc<Segment>>,
    pub(crate) run: Option<RunView>,
    /// Runs started so far; the newest has this number.
    pub(crate) runs: u64,
    /// Runs up to this number are to end.
    pub(crate) stop: u64,
    /// The segment asked for last.
    pub(crate) cursor: u32,
    pub(crate) requested: Option<u32>,
    /// Who waits for what; a higher ticket asked later.
    pub(crate) wants: BTreeMap<u64, Piece>,
    pub(crate) tickets: u64,
    /// Where the source turned out to end, when it is before the presentation does.
    pub(crate) source_end: Option<Ticks>,
    pub(crate) failure: Option<Failure>,
    pub(crate) ended: Option<Ended>,
    pub(crate) bytes_produced: u64,
    /// The rungs of the newest run, and when a run was last started for one that its predecessor did not make.
    pub(crate) last_rungs: Option<RungSet>,
    pub(crate) switched: Option<Monotonic>,
    pub(crate) sealed: bool,
    pub(crate) retired: bool,
    pub(crate) log: Vec<String>,
}

/// The shared state of one strand of an execution.
#[derive(Debug)]
pub(crate) struct Store {
    pub(crate) strand: Strand,
    pub(crate) timeline: Arc<Timeline>,
    pub(crate) scratch: Arc<Scratch>,
    /// Where encoded segments are kept, and the key of each rung.
    keeper: Arc<Keeper>,
    keys: Vec<Option<Key>>,
    /// Random part of every entity tag, so that bytes of another execution never share one.
    pub(crate) tag: String,
    state: Mutex<State>,
    /// The reader thread waits here to be let on.
    gate: Condvar,
    /// Viewers wait here for something to have changed.
    changed: watch::Sender<u64>,
    /// The supervisor waits here for something to do.
    pub(crate) work: Notify,
}

impl Store {
    pub(crate) fn new(
        strand: Strand,
        scratch: Arc<Scratch>,
        (keeper, keys): (Arc<Keeper>, Vec<Option<Key>>),
        tag: String,
        first: u32,
    ) -> Self {
        let mut state = State {
            cursor: first,
            ..State::default()
        };
        // Whoever holds kept segments must be able to go on with new ones.
        for (init, key) in state.inits.iter_mut().zip(&keys) {
            *init = key.and_then(|key| keeper.init(key));
        }
        Self {
            timeline: strand.timeline.clone(),
            strand,
            scratch,
            keeper,
            keys,
            tag,
            state: Mutex::new(state),
            gate: Condvar::new(),
            changed: watch::Sender::new(0),
            work: Notify::new(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state and lets everyone look at it.
    pub(crate) fn update<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let result = change(&mut self.lock());
        self.gate.notify_all();
        self.scratch.nudge();
        self.changed.send_modify(|n| *n += 1);
        self.work.notify_one();
        result
    }

    pub(crate) fn watch(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    /// The highest segment that may be begun now.
    fn allowed(&self, cursor: u32) -> u32 {
        let ahead = self
            .timeline
            .segment_at(self.timeline.start(cursor as usize) + AHEAD);
        u32::try_from(ahead)
            .unwrap_or(u32::MAX)
            .max(cursor.saturating_add(AHEAD_SEGMENTS))
    }

    /// Blocks until `run` may begin segment `number`; false when the run is to end.
    pub(crate) fn enter(&self, run: u64, number: u32) -> bool {
        let mut state = self.lock();
        loop {
            if state.stop >= run {
                return false;
            }
            let held = number > self.allowed(state.cursor);
            if let Some(view) = state.run.as_mut().filter(|view| view.id == run) {
                view.held = held;
                if !held {
                    view.position = view.position.max(number);
                }
            }
            if !held {
                return true;
            }
            state = self.gate.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Appends to `blob` for `run`, which counts as held back for as long as there is no room.
    pub(crate) fn append(&self, run: u64, blob: &mut Blob, bytes: &[u8]) -> Result<(), WriteError> {
        let mut asked = false;
        let written = blob.append(bytes, &mut || {
            asked = true;
            self.make_room(run)
        });
        if asked && let Some(view) = self.lock().run.as_mut().filter(|view| view.id == run) {
            view.held = false;
        }
        written
    }

    /// What a writer of `run` without a chunk is to do: a segment that nobody needs soon makes room.
    fn make_room(&self, run: u64) -> Room {
        let victim = {
            let mut state = self.lock();
            if state.stop >= run {
                return Room::GiveUp;
            }
            let victim = self.victim(&state);
            if let Some(view) = state.run.as_mut().filter(|view| view.id == run) {
                view.held = victim.is_none();
            }
            victim.and_then(|key| state.segments.remove(&key))
        };
        // Its chunks come back when the last reader lets go of it, which may be now.
        match victim {
            Some(segment) => {
                drop(segment);
                Room::Retry
            }
            None => Room::Wait,
        }
    }

    /// The finished segment that is needed least: far behind the viewer first, then far ahead, at last what an
    /// earlier run left where this one will come.
    fn victim(&self, state: &State) -> Option<(u32, usize)> {
        let keep_from = state.cursor.saturating_sub(BEHIND);
        let before = |number: u32| state.segments.range(..(number, 0)).next().map(|(key, _)| *key);
        let beyond = self.allowed(state.cursor);
        let ahead = || {
            state
                .segments
                .range((beyond.saturating_add(1), 0)..)
                .next_back()
                .map(|(key, _)| *key)
        };
        let remade = || {
            let run = state.run?;
            let mut from_the_end = state.segments.keys().rev();
            let made_again =
                |(number, rung): &&(u32, usize)| !run.rungs.has(*rung) || *number > run.next[*rung];
            from_the_end.find(made_again).copied()
        };
        before(keep_from)
            .or_else(ahead)
            .or_else(|| before(state.cursor))
            .or_else(remade)
    }

    /// Keeps a finished segment for others.
    pub(crate) fn keep(&self, rung: usize, number: u32, segment: &Segment) {
        if let Some(Some(key)) = self.keys.get(rung) {
            self.keeper.put(*key, number, segment);
        }
    }

    /// Keeps an initialization segment for others.
    pub(crate) fn keep_init(&self, rung: usize, bytes: &Bytes) {
        if let Some(Some(key)) = self.keys.get(rung) {
            self.keeper.put_init(*key, bytes, init_etag(bytes));
        }
    }

    /// A piece that an earlier execution made, pinned.
    pub(crate) fn kept(&self, piece: Piece) -> Option<Served> {
        let key = (*self.keys.get(piece.rung())?)?;
        self.keeper.get(key, piece, self.strand.video.is_some())
    }

    /// A finished piece, pinned.
    pub(crate) fn finished(&self, piece: Piece) -> Option<Served> {
        let state = self.lock();
        match piece {
            Piece::Init { rung } => {
                let bytes = state.inits.get(rung)?.clone()?;
                let etag = init_etag(&bytes);
                Some(served_init(bytes, etag, self.strand.video.is_some()))
            }
            Piece::Segment { number, rung } => Some(served_segment(state.segments.get(&(number, rung))?)),
        }
    }
}

/// The entity tag of an initialization segment: equal bytes have equal tags, whoever made them, so that a player that
/// has them can be told from one that has others (D2).
fn init_etag(bytes: &[u8]) -> String {
    let hash = Sha256::digest(bytes);
    let mut tag = String::from("i-");
    for byte in &hash[..16] {
        let _ = write!(tag, "{byte:02x}");
    }
    tag
}

/// An initialization segment as it is sent.
pub(crate) fn served_init(bytes: Bytes, etag: String, picture: bool) -> Served {
    Served {
        len: bytes.len() as u64,
        etag,
        content_type: if picture { "video/mp4" } else { "audio/mp4" },
        media: Box::new(InitMedia(bytes)),
    }
}

/// A segment as it is sent.
pub(crate) fn served_segment(segment: &Arc<Segment>) -> Served {
    Served {
        len: segment.blob.len(),
        etag: segment.etag.clone(),
        content_type: segment.content_type,
        media: Box::new(SegmentMedia(segment.clone())),
    }
}

struct InitMedia(Bytes);

impl ServedMedia for InitMedia {
    fn stream(self: Box<Self>, range: Range<u64>) -> ByteStream {
        let whole = self.0.len();
        let clamp = |at: u64| usize::try_from(at).unwrap_or(whole).min(whole);
        ByteStream::new(Once(Some(self.0.slice(clamp(range.start)..clamp(range.end)))))
    }
}

struct Once(Option<Bytes>);

impl Pieces for Once {
    fn poll_next(&mut self, _: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        Poll::Ready(self.0.take().filter(|bytes| !bytes.is_empty()).map(Ok))
    }
}

struct SegmentMedia(Arc<Segment>);

impl ServedMedia for SegmentMedia {
    fn stream(self: Box<Self>, range: Range<u64>) -> ByteStream {
        let end = range.end.min(self.0.blob.len());
        ByteStream::new(SegmentPieces {
            segment: self.0,
            at: range.start,
            end,
            reading: None,
        })
    }
}

/// Reads a segment piece by piece: at once what the page cache holds, on the blocking pool what waits for a disk.
struct SegmentPieces {
    segment: Arc<Segment>,
    at: u64,
    end: u64,
    reading: Option<JoinHandle<io::Result<Bytes>>>,
}

impl SegmentPieces {
    /// The next piece, unless it waits for a disk.
    fn cached(&mut self) -> io::Result<Option<Bytes>> {
        let mut buffer = Buffer::take();
        let count = piece(self.at..self.end);
        let read = self.segment.read_cached(&mut buffer[..count], self.at)?;
        Ok(read.map(|read| buffer.filled(read)))
    }

    fn on_the_blocking_pool(&self) -> JoinHandle<io::Result<Bytes>> {
        let (segment, at, count) = (self.segment.clone(), self.at, piece(self.at..self.end));
        tokio::task::spawn_blocking(move || {
            let mut buffer = Buffer::take();
            segment.read_at(&mut buffer[..count], at)?;
            Ok(buffer.filled(count))
        })
    }
}

/// How many bytes of `left` are handed to a connection next.
fn piece(left: Range<u64>) -> usize {
    usize::try_from(left.end - left.start).map_or(BUFFER, |left| left.min(BUFFER))
}

impl Pieces for SegmentPieces {
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        if self.at >= self.end {
            return Poll::Ready(None);
        }
        let read = match &mut self.reading {
            None => self.cached().transpose(),
            Some(_) => None,
        };
        let read = match read {
            Some(read) => read,
            None => {
                if self.reading.is_none() {
                    self.reading = Some(self.on_the_blocking_pool());
                }
                let Some(reading) = &mut self.reading else {
                    return Poll::Ready(None);
                };
                let joined = ready!(Pin::new(reading).poll(cx));
                self.reading = None;
                joined.map_err(io::Error::other).and_then(|read| read)
            }
        };
        match &read {
            Ok(piece) => self.at += piece.len() as u64,
            Err(_) => self.at = self.end,
        }
        Poll::Ready(Some(read))
    }
}
