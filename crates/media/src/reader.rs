//! How bytes of a file reach the native readers: few requests, each large enough to be worth its latency.
//!
//! A file may lie behind a network, where a request costs more than the bytes it brings. So the readers here
//! never read sequentially through what they do not need: they ask a `Source` for ranges, which keeps the
//! last two windows it read and charges every request to a budget. Sizes found in a file are claims by whoever
//! wrote it; nothing is allocated beyond [`Limits::index_bytes`] and the file's real length.

use std::io;
use std::sync::Arc;

use crate::facts::{Container, Facts, Keyframes};
use crate::{matroska, mp4, mpegts};

/// Random access to the bytes of one file revision.
pub trait ByteReader {
    /// Reads into `buf` from `offset`; zero bytes only at or past the end of the file.
    ///
    /// # Errors
    /// Whatever the source of the bytes reports; the caller does not retry.
    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;

    /// Bytes in the file.
    fn len(&self) -> u64;

    /// Whether the file has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl ByteReader for &[u8] {
    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let rest = usize::try_from(offset)
            .ok()
            .and_then(|at| self.get(at..))
            .unwrap_or(&[]);
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        Ok(n)
    }

    fn len(&self) -> u64 {
        <[u8]>::len(self) as u64
    }
}

/// A [`ByteReader`] over an open file. Positioned reads: the file's own cursor is neither used nor moved.
#[derive(Clone, Debug)]
pub struct FileReader {
    file: Arc<std::fs::File>,
    len: u64,
}

impl FileReader {
    /// Reads `file` at the length it has now.
    ///
    /// # Errors
    /// The file's length cannot be read.
    pub fn new(file: Arc<std::fs::File>) -> io::Result<Self> {
        let len = file.metadata()?.len();
        Ok(Self { file, len })
    }
}

impl ByteReader for FileReader {
    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        std::os::unix::fs::FileExt::read_at(&*self.file, buf, offset)
    }

    fn len(&self) -> u64 {
        self.len
    }
}

/// Asked between reads; `true` ends the reading with `Stopped`. Deadlines and cancellation both come in here.
pub type StopCheck = Arc<dyn Fn() -> bool + Send + Sync>;

/// What reading one file may cost.
#[derive(Clone)]
pub struct Limits {
    /// Largest index (an MP4 `moov`, a Matroska `Cues`) that is read, in bytes. Larger ones are a gap.
    pub index_bytes: u64,
    /// Bytes that [`read_facts`] may read in all.
    pub total_bytes: u64,
    /// Requests that [`read_facts`] may make in all.
    pub requests: u32,
    /// Files of at most this many bytes that have no index are scanned for keyframes at once.
    pub whole_scan: u64,
    /// Asked between reads.
    pub stop: Option<StopCheck>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            index_bytes: 16 << 20,
            total_bytes: 96 << 20,
            requests: 20_000,
            whole_scan: 16 << 20,
            stop: None,
        }
    }
}

impl std::fmt::Debug for Limits {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Limits")
            .field("index_bytes", &self.index_bytes)
            .field("total_bytes", &self.total_bytes)
            .field("requests", &self.requests)
            .field("whole_scan", &self.whole_scan)
            .field("stop", &self.stop.is_some())
            .finish()
    }
}

/// Why no facts could be read natively.
#[derive(Debug, thiserror::Error)]
pub enum FactsError {
    /// The file has no bytes.
    #[error("the file is empty")]
    Empty,
    /// No native reader knows this container; `ffprobe` may.
    #[error("the container is not one that is read natively")]
    Unrecognized,
    /// The container is known, but its structure is not what its own rules say.
    #[error("broken {container:?} structure: {what}")]
    Broken {
        /// The container that was recognised.
        container: Container,
        /// What is wrong, in a few words.
        what: &'static str,
    },
    /// The structure can be read and gives times that no film has. `ffprobe` would believe them.
    #[error("the times of this {container:?} file are damaged: {what}")]
    Times {
        /// The container that was recognised.
        container: Container,
        /// What is wrong, in a few words.
        what: &'static str,
    },
    /// The stop check said so.
    #[error("reading was stopped")]
    Stopped,
    /// The file needs more requests or bytes than the limits allow.
    #[error("reading the file needs more than its limits allow")]
    Budget,
    /// The bytes could not be read.
    #[error("the file could not be read")]
    Io(#[source] io::Error),
}

/// Why no complete keyframe list could be made.
#[derive(Debug, thiserror::Error)]
pub enum ScanError {
    /// The facts name no moving picture.
    #[error("the file has no film to scan")]
    NoVideo,
    /// There is no scanner for this container or codec.
    #[error("this container and codec cannot be scanned for keyframes")]
    Unsupported,
    /// The file no longer holds what the facts say, or its structure is broken.
    #[error("the file cannot be scanned: {what}")]
    Broken {
        /// What is wrong, in a few words.
        what: &'static str,
    },
    /// The stop check said so.
    #[error("scanning was stopped")]
    Stopped,
    /// The bytes could not be read.
    #[error("the file could not be read")]
    Io(#[source] io::Error),
}

/// Reads what the file says of itself. The container is told by its content, never by a name.
///
/// Blocking: call it where blocking is allowed. A missing part is a gap in the facts, not an error. Times are
/// what FFmpeg's tools report: a stream starts at its first presented sample, edit lists and codec delay
/// applied, on the file's own clock.
///
/// # Errors
/// [`FactsError`] where no facts at all can be given.
pub fn read_facts(reader: &mut dyn ByteReader, limits: &Limits) -> Result<Facts, FactsError> {
    if reader.is_empty() {
        return Err(FactsError::Empty);
    }
    let mut source = Source::new(reader, limits);
    let head = source.fetch(0, 4096)?;
    match sniff(head) {
        Some(Sniffed::Mp4) => mp4::read(&mut source),
        Some(Sniffed::Matroska) => matroska::read(&mut source),
        Some(Sniffed::MpegTs) => mpegts::read(&mut source),
        None => Err(FactsError::Unrecognized),
    }
}

/// Reads the whole file for the exact keyframes of `facts.main_video()` (D13).
///
/// Blocking, and as long as reading the file takes; `progress` is told how many bytes are done. Of `limits`
/// only [`Limits::stop`] and [`Limits::index_bytes`] apply. The list is the one FFmpeg's demuxer flags.
///
/// # Errors
/// [`ScanError`]; never a partial list.
pub fn scan_keyframes(
    reader: &mut dyn ByteReader,
    facts: &Facts,
    limits: &Limits,
    progress: &mut dyn FnMut(u64),
) -> Result<Keyframes, ScanError> {
    let video = facts.main_video().ok_or(ScanError::NoVideo)?;
    let unlimited = Limits {
        total_bytes: u64::MAX,
        requests: u32::MAX,
        ..limits.clone()
    };
    let mut source = Source::new(reader, &unlimited);
    match facts.container {
        Container::Matroska | Container::Webm => matroska::scan(&mut source, video, progress),
        Container::MpegTs => mpegts::scan(&mut source, video, progress),
        Container::Mp4 => mp4::scan(&mut source, video),
        Container::Other(_) => Err(ScanError::Unsupported),
    }
}

enum Sniffed {
    Mp4,
    Matroska,
    MpegTs,
}

fn sniff(head: &[u8]) -> Option<Sniffed> {
    if head.starts_with(&[0x1a, 0x45, 0xdf, 0xa3]) {
        return Some(Sniffed::Matroska);
    }
    let boxes: [&[u8; 4]; 10] = [
        b"ftyp", b"styp", b"moov", b"moof", b"mdat", b"free", b"skip", b"wide", b"pnot", b"sidx",
    ];
    if let Some(kind) = head.get(4..8)
        && boxes.iter().any(|b| kind == b.as_slice())
    {
        return Some(Sniffed::Mp4);
    }
    mpegts::packet_size(head).map(|_| Sniffed::MpegTs)
}

/// Why bytes did not come.
#[derive(Debug)]
pub(crate) enum ReadError {
    Stopped,
    Budget,
    Io(io::Error),
}

impl From<ReadError> for FactsError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Stopped => FactsError::Stopped,
            ReadError::Budget => FactsError::Budget,
            ReadError::Io(error) => FactsError::Io(error),
        }
    }
}

impl From<ReadError> for ScanError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Stopped => ScanError::Stopped,
            // A scan has no byte budget; only an index larger than its bound ends here.
            ReadError::Budget => ScanError::Broken {
                what: "an index is larger than its bound",
            },
            ReadError::Io(error) => ScanError::Io(error),
        }
    }
}

#[derive(Default)]
struct Window {
    at: u64,
    bytes: Vec<u8>,
}

impl Window {
    fn holds(&self, at: u64, len: u64) -> bool {
        at >= self.at && at.saturating_add(len) <= self.at + self.bytes.len() as u64
    }

    fn slice(&self, at: u64, len: usize) -> &[u8] {
        let from = usize::try_from(at - self.at).unwrap_or(usize::MAX);
        self.bytes.get(from..from + len).unwrap_or(&[])
    }
}

/// Windows onto a [`ByteReader`], with its budget.
pub(crate) struct Source<'a> {
    reader: &'a mut dyn ByteReader,
    limits: &'a Limits,
    len: u64,
    windows: [Window; 2],
    recent: usize,
    bytes: u64,
    requests: u32,
}

impl<'a> Source<'a> {
    /// The least that a request brings: smaller ones cost the same.
    pub(crate) const LEAST: u64 = 64 << 10;

    pub(crate) fn new(reader: &'a mut dyn ByteReader, limits: &'a Limits) -> Self {
        let len = reader.len();
        Self {
            reader,
            limits,
            len,
            windows: Default::default(),
            recent: 0,
            bytes: 0,
            requests: 0,
        }
    }

    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    pub(crate) fn limits(&self) -> &Limits {
        self.limits
    }

    /// `want` bytes at `at`, fewer only where the file ends.
    pub(crate) fn fetch(&mut self, at: u64, want: u64) -> Result<&[u8], ReadError> {
        self.fetch_ahead(at, want, Self::LEAST)
    }

    /// As [`Source::fetch`], reading at least `least` bytes when a request has to be made.
    pub(crate) fn fetch_ahead(&mut self, at: u64, want: u64, least: u64) -> Result<&[u8], ReadError> {
        let want = want.min(self.len.saturating_sub(at));
        if want == 0 {
            return Ok(&[]);
        }
        let size = usize::try_from(want).map_err(|_| ReadError::Budget)?;
        let hit = (0..2).find(|i| self.windows[*i].holds(at, want));
        let index = match hit {
            Some(index) => index,
            None => {
                let index = 1 - self.recent;
                self.fill(index, at, want.max(least))?;
                index
            }
        };
        self.recent = index;
        let window = &self.windows[index];
        // The file may have shrunk since its length was taken.
        let held = usize::try_from(window.at + window.bytes.len() as u64 - at).unwrap_or(0);
        Ok(window.slice(at, size.min(held)))
    }

    fn fill(&mut self, index: usize, at: u64, want: u64) -> Result<(), ReadError> {
        let want = want.min(self.len - at);
        if want > self.limits.index_bytes.max(Self::LEAST) {
            return Err(ReadError::Budget);
        }
        let size = usize::try_from(want).map_err(|_| ReadError::Budget)?;
        let window = &mut self.windows[index];
        window.bytes.clear();
        window.bytes.resize(size, 0);
        window.at = at;
        let mut filled = 0;
        while filled < size {
            if self.limits.stop.as_ref().is_some_and(|stop| stop()) {
                window.bytes.clear();
                return Err(ReadError::Stopped);
            }
            self.requests = self.requests.saturating_add(1);
            if self.requests > self.limits.requests || self.bytes > self.limits.total_bytes {
                window.bytes.clear();
                return Err(ReadError::Budget);
            }
            match self
                .reader
                .read_at(at + filled as u64, &mut window.bytes[filled..])
            {
                Ok(0) => break,
                Ok(n) => filled += n.min(size - filled),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => {
                    window.bytes.clear();
                    return Err(ReadError::Io(error));
                }
            }
        }
        window.bytes.truncate(filled);
        self.bytes = self.bytes.saturating_add(filled as u64);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
