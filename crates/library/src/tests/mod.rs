//! Stories about the library, told with real folders, a real database and real readers.
//!
//! Time stands still unless a story moves it: the clock is a day ahead of the files' own, so that every file
//! is at rest. Waiting is for events, never for wall time.

mod absence;
mod background;
mod crash;
mod databases;
mod identity;
mod scanning;
mod serving;
mod watching;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use ether_media::{Facts, Keyframes};
use ether_probe::{Prober, ProberOptions};
use ether_process::{Config, Processes};
use ether_store::{Location, Store};
use ether_types::{Clock, ManualClock, NodeId, SystemClock};
use tokio::sync::watch;

use crate::*;

/// A short film with picture and sound, 7 KiB.
const FILM: &[u8] = include_bytes!("films/small.mp4");
const MATROSKA: &[u8] = include_bytes!("films/small.mkv");
const TRANSPORT: &[u8] = include_bytes!("films/small.ts");
const SONG: &[u8] = include_bytes!("films/tone.flac");

/// A film like no other of another number: a free box at its end tells them apart.
fn film(number: u32) -> Vec<u8> {
    let mut bytes = FILM.to_vec();
    bytes.extend_from_slice(&108_u32.to_be_bytes());
    bytes.extend_from_slice(b"free");
    bytes.extend_from_slice(&number.to_be_bytes().repeat(25));
    bytes
}

/// A temporary world: folders, a data directory, a database and the readers.
pub(crate) struct World {
    dir: tempfile::TempDir,
    pub(crate) clock: ManualClock,
    store: Store,
    reader: Arc<Reader>,
    processes: Processes,
    options: Options,
}

impl World {
    /// One empty folder `films`, no watching, the database in a file.
    pub(crate) async fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let location = Location::SqliteFile(dir.path().join("ether.db"));
        Self::at(dir, &location).await
    }

    async fn at(dir: tempfile::TempDir, location: &Location) -> Self {
        let tomorrow = SystemClock::new()
            .now()
            .checked_add(Duration::from_secs(86_400))
            .unwrap();
        let clock = ManualClock::at(tomorrow);
        let shared: Arc<dyn Clock> = Arc::new(clock.clone());
        let store = Store::open(location, ether_store::Options::default(), Arc::clone(&shared))
            .await
            .unwrap();
        let processes = Processes::start(Config::unguarded(Arc::clone(&shared))).unwrap();
        let prober = Prober::new(ProberOptions::default(), processes.spawner(), shared);
        let films = dir.path().join("films");
        std::fs::create_dir_all(&films).unwrap();
        let mut options = Options::new(NodeId::new("here").unwrap(), dir.path().join("data"), vec![films]);
        options.watch = false;
        options.debounce = Duration::ZERO;
        Self {
            dir,
            clock,
            store,
            reader: Arc::new(Reader::new(ProbeReader::new(prober))),
            processes,
            options,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes a file below the world's directory, with the directories it needs.
    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// Starts the library and waits for its first scan.
    pub(crate) async fn open(&self) -> Library {
        let library = self.start().await;
        library.finished(1).await;
        library
    }

    async fn start(&self) -> Library {
        let clock: Arc<dyn Clock> = Arc::new(self.clock.clone());
        let reader: Arc<dyn MediaReader> = self.reader.clone();
        Library::start(self.options.clone(), &self.store, reader, clock)
            .await
            .unwrap()
    }

    pub(crate) async fn close(self, library: Library) {
        library.shutdown().await;
        let _ = self.processes.shutdown().await;
        self.store.close().await;
    }
}

/// The real reader, with a counter and a gate.
struct Reader {
    real: ProbeReader,
    version: AtomicI64,
    reads: AtomicUsize,
    gate: watch::Sender<bool>,
    /// How many readings wait at the gate.
    held: watch::Sender<usize>,
    /// Takes the keyframes out of the facts, as if the file were too large to be read whole at once.
    forget_keyframes: AtomicBool,
    /// Fails as a reader does that ran out of time.
    slow: AtomicBool,
    /// Finds no keyframes, as in films whose container has no times.
    no_keyframes: AtomicBool,
    /// How often keyframes were looked for.
    searches: AtomicUsize,
}

impl Reader {
    fn new(real: ProbeReader) -> Self {
        Self {
            version: AtomicI64::new(real.version()),
            real,
            reads: AtomicUsize::new(0),
            gate: watch::channel(true).0,
            held: watch::channel(0).0,
            forget_keyframes: false.into(),
            slow: false.into(),
            no_keyframes: false.into(),
            searches: AtomicUsize::new(0),
        }
    }

    fn reads(&self) -> usize {
        self.reads.load(Ordering::SeqCst)
    }

    fn shut(&self) {
        self.gate.send_replace(false);
    }

    fn open(&self) {
        self.gate.send_replace(true);
    }

    /// Waits until `count` readings stand at the gate.
    async fn holding(&self, count: usize) {
        let _ = self
            .held
            .subscribe()
            .wait_for(|held| *held >= count)
            .await
            .unwrap();
    }

    async fn pass(&self) {
        struct Held<'a>(&'a watch::Sender<usize>);
        impl Drop for Held<'_> {
            fn drop(&mut self) {
                self.0.send_modify(|held| *held -= 1);
            }
        }
        self.held.send_modify(|held| *held += 1);
        let _held = Held(&self.held);
        let _ = self.gate.subscribe().wait_for(|open| *open).await.unwrap();
    }
}

impl MediaReader for Reader {
    fn version(&self) -> i64 {
        self.version.load(Ordering::SeqCst)
    }

    fn facts(&self, file: Arc<File>) -> BoxFuture<'_, Result<Facts, ReadFailure>> {
        Box::pin(async move {
            self.reads.fetch_add(1, Ordering::SeqCst);
            self.pass().await;
            if self.slow.load(Ordering::SeqCst) {
                return Err(ReadFailure::Problem(Reason::TimedOut));
            }
            let mut facts = self.real.facts(file).await?;
            if self.forget_keyframes.load(Ordering::SeqCst) {
                facts.keyframes = None;
                facts.gaps.push(ether_media::Gap::Keyframes {
                    reason: "no index".to_owned(),
                });
            }
            Ok(facts)
        })
    }

    fn keyframes(
        &self,
        file: Arc<File>,
        facts: Arc<Facts>,
    ) -> BoxFuture<'_, Result<Keyframes, ChoreFailure>> {
        Box::pin(async move {
            self.searches.fetch_add(1, Ordering::SeqCst);
            self.pass().await;
            if self.no_keyframes.load(Ordering::SeqCst) {
                return Err(ChoreFailure::Never("it holds no times".into()));
            }
            self.real.keyframes(file, facts).await
        })
    }

    fn picture(
        &self,
        file: Arc<File>,
        facts: Arc<Facts>,
        width: u32,
    ) -> BoxFuture<'_, Result<Bytes, ChoreFailure>> {
        Box::pin(async move {
            self.pass().await;
            self.real.picture(file, facts, width).await
        })
    }
}

/// Scans everything now.
async fn rescan(library: &Library) {
    library.finished(library.rescan()).await;
}

async fn items(library: &Library) -> Vec<Item> {
    library.list(&Viewer::owner(), None, 100_000).await.unwrap().items
}

async fn files(library: &Library) -> Vec<String> {
    let mut files: Vec<String> = items(library).await.into_iter().map(|item| item.file).collect();
    files.sort();
    files
}

/// The one item whose file is `file`.
async fn item(library: &Library, file: &str) -> Item {
    let all = items(library).await;
    let names: Vec<&str> = all.iter().map(|item| item.file.as_str()).collect();
    let found = all.iter().find(|item| item.file == file);
    found
        .unwrap_or_else(|| panic!("no {file} among {names:?}"))
        .clone()
}

/// The code of the problem of `file`.
async fn problem(library: &Library, file: &str) -> Option<&'static str> {
    let (problems, _) = library.problems(10_000).await.unwrap();
    problems.iter().find(|p| p.file == file).map(|p| p.reason.code())
}

/// Waits until `done` holds; looks again whenever the library's status changes.
async fn until<F: Future<Output = bool>>(library: &Library, done: impl Fn() -> F) {
    let mut status = library.subscribe();
    while !done().await {
        status.changed().await.unwrap();
    }
}

/// Moves the clock on, `step` at a time and only while the library rests, until `done` holds.
async fn until_later<F: Future<Output = bool>>(
    world: &World,
    library: &Library,
    step: Duration,
    done: impl Fn() -> F,
) {
    let seen = until(library, done);
    tokio::pin!(seen);
    loop {
        tokio::select! {
            biased;
            () = &mut seen => return,
            () = tokio::task::yield_now() => {
                // The readers' deadlines run on the same clock.
                if !library.status().scanning {
                    world.clock.advance(step);
                }
            }
        }
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
