//! The one way to ask about a file.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use ether_media::{Facts, FactsError, FileReader, Keyframes, Limits, ScanError, StreamKind, Ticks};
use ether_process::Spawner;
use ether_types::{Clock, Monotonic};
use tokio::sync::Semaphore;

use crate::error::{NotMedia, PictureError, ProbeError};
use crate::run::Runner;
use crate::{ffprobe, merge, picture};

/// How many `ffprobe`s run at once (S6).
const PROBES: usize = 2;
/// How many FFmpegs make pictures at once, besides.
const PICTURES: usize = 1;
/// How many files are read natively at once, and how many are scanned in full.
const READERS: usize = 4;
const SCANS: usize = 1;
/// The longest a native reading may take; a mount that stopped answering takes longer.
const NATIVE: Duration = Duration::from_secs(20);

/// Where the programs are.
#[derive(Clone, Debug)]
pub struct ProberOptions {
    /// `ffprobe`: an absolute path, or a bare name for `$PATH`.
    pub ffprobe: PathBuf,
    /// `ffmpeg`: an absolute path, or a bare name for `$PATH`.
    pub ffmpeg: PathBuf,
}

impl Default for ProberOptions {
    fn default() -> Self {
        Self {
            ffprobe: "ffprobe".into(),
            ffmpeg: "ffmpeg".into(),
        }
    }
}

/// Finds out what files are. Cheap to clone; clones share their bounds.
///
/// Every method may be cancelled by dropping its future: a program that runs for it is killed and reaped, and
/// reading stops at its next request. Only then does its turn go to the next.
#[derive(Clone)]
pub struct Prober {
    options: Arc<ProberOptions>,
    clock: Arc<dyn Clock>,
    probes: Runner,
    pictures: Runner,
    readers: Arc<Semaphore>,
    scans: Arc<Semaphore>,
}

impl Prober {
    /// A prober whose programs are started by `spawner`, and whose deadlines run on `clock`.
    pub fn new(options: ProberOptions, spawner: Spawner, clock: Arc<dyn Clock>) -> Self {
        let runner = |turns: usize| Runner {
            spawner: spawner.clone(),
            clock: Arc::clone(&clock),
            turns: Arc::new(Semaphore::new(turns)),
        };
        Self {
            options: Arc::new(options),
            probes: runner(PROBES),
            pictures: runner(PICTURES),
            readers: Arc::new(Semaphore::new(READERS)),
            scans: Arc::new(Semaphore::new(SCANS)),
            clock,
        }
    }

    /// The facts of an open file: natively, completed or replaced by `ffprobe` where something is missing.
    ///
    /// Where `ffprobe` only could have completed what was read natively and does not answer, the native facts
    /// stand with their gaps.
    ///
    /// # Errors
    /// [`ProbeError::NotMedia`] where the file is not something to play, and why; the others say what stood
    /// in the way of finding out.
    pub async fn facts(&self, file: Arc<File>) -> Result<Facts, ProbeError> {
        let size = file.metadata().map_err(ProbeError::Unreadable)?.len();
        let found = match self.native(Arc::clone(&file)).await {
            Ok(facts) if !merge::wants_more(&facts) => facts,
            Ok(facts) => match ffprobe::facts(&self.probes, &self.options.ffprobe, file, size).await {
                Ok(other) => merge::complete(facts, &other),
                Err(_) => facts,
            },
            Err(FactsError::Empty) => return Err(NotMedia::Empty.into()),
            Err(FactsError::Stopped) => return Err(ProbeError::TimedOut),
            Err(FactsError::Io(error)) => return Err(ProbeError::Unreadable(error)),
            Err(FactsError::Unrecognized | FactsError::Budget) => {
                ffprobe::facts(&self.probes, &self.options.ffprobe, file, size).await?
            }
            Err(FactsError::Times { container, what }) => {
                return Err(NotMedia::Damaged { container, what }.into());
            }
            Err(FactsError::Broken { container, what }) => {
                match ffprobe::facts(&self.probes, &self.options.ffprobe, file, size).await {
                    Ok(facts) if has_something_to_play(&facts) => facts,
                    // Both find nothing; the native words name what is wrong.
                    Ok(_) | Err(ProbeError::NotMedia(_)) => {
                        return Err(NotMedia::Damaged { container, what }.into());
                    }
                    Err(error) => return Err(error),
                }
            }
        };
        if has_something_to_play(&found) {
            Ok(found)
        } else {
            Err(NotMedia::NothingToPlay.into())
        }
    }

    /// Reads the whole file for the exact keyframes of `facts.main_video()` (D13), one file at a time.
    /// `progress` is told the bytes that are done.
    ///
    /// # Errors
    /// [`ScanError`]; [`ScanError::Stopped`] also where the runtime is going away.
    pub async fn scan_keyframes(
        &self,
        file: Arc<File>,
        facts: &Facts,
        mut progress: impl FnMut(u64) + Send + 'static,
    ) -> Result<Keyframes, ScanError> {
        let turn = Arc::clone(&self.scans).acquire_owned().await;
        let turn = turn.map_err(|_| ScanError::Stopped)?;
        let wanted = Wanted::default();
        let flag = Arc::clone(&wanted.0);
        let facts = facts.clone();
        let limits = Limits {
            stop: Some(Arc::new(move || !flag.load(Ordering::Relaxed))),
            ..Limits::default()
        };
        let task = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let mut reader = FileReader::new(file).map_err(ScanError::Io)?;
            ether_media::scan_keyframes(&mut reader, &facts, &limits, &mut progress)
        });
        let result = task.await.unwrap_or(Err(ScanError::Stopped));
        drop(wanted);
        result
    }

    /// A JPEG of the film at about `at` after its start, `width` pixels wide (clamped to 16 to 1920), upright
    /// and with square pixels; a frame that is not black where there is one near. A file without a film gives
    /// its cover.
    ///
    /// # Errors
    /// [`PictureError::NoPicture`] where there is neither; the others say what stood in the way.
    pub async fn still_picture(
        &self,
        file: Arc<File>,
        facts: &Facts,
        at: Ticks,
        width: u32,
    ) -> Result<Bytes, PictureError> {
        picture::make(&self.pictures, &self.options.ffmpeg, file, facts, at, width).await
    }

    async fn native(&self, file: Arc<File>) -> Result<Facts, FactsError> {
        let turn = Arc::clone(&self.readers).acquire_owned().await;
        let turn = turn.map_err(|_| FactsError::Stopped)?;
        let wanted = Wanted::default();
        let flag = Arc::clone(&wanted.0);
        let clock = Arc::clone(&self.clock);
        let late = clock.monotonic().saturating_add(NATIVE);
        let past = move |now: Monotonic| now >= late;
        let limits = Limits {
            stop: Some(Arc::new(move || {
                !flag.load(Ordering::Relaxed) || past(clock.monotonic())
            })),
            ..Limits::default()
        };
        let task = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            let mut reader = FileReader::new(file).map_err(FactsError::Io)?;
            ether_media::read_facts(&mut reader, &limits)
        });
        let result = task.await.unwrap_or(Err(FactsError::Stopped));
        drop(wanted);
        result
    }
}

fn has_something_to_play(facts: &Facts) -> bool {
    facts.streams.iter().any(|s| match &s.kind {
        StreamKind::Video(video) => !video.still,
        StreamKind::Audio(_) => true,
        _ => false,
    })
}

/// Tells blocking work that its result is no longer waited for.
struct Wanted(Arc<AtomicBool>);

impl Default for Wanted {
    fn default() -> Self {
        Self(Arc::new(AtomicBool::new(true)))
    }
}

impl Drop for Wanted {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}
