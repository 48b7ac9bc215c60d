//! The text of subtitle tracks, out of films and out of the files beside them.
//!
//! FFmpeg reads a film once for all of its text tracks; whoever asks for one of them meanwhile joins. What was
//! read is kept, within a budget, by the state of the file that it came from, so that a second viewer or another
//! language costs nothing. A reading that nobody waits for is given up.
//!
//! This is a part of the local encoder and not a crate of its own: the encoder's own port gives out a track too
//! ([`ether_encoder::Resource::Subtitles`]), and both share what was read.

mod arguments;
mod encoding;
mod job;
mod matroska;
mod shelf;
#[cfg(test)]
mod tests;

use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use ether_encoder::{Input, Revision};
use ether_media::subtitles::{Form, Line, Track};
use ether_media::{Facts, StreamKind};
use ether_process::{Bounds, RunError, Spawner};
use ether_types::Clock;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

pub use arguments::Sidecar;
use job::{Job, Task};
use shelf::Shelf;

use crate::origin::Origin;

/// Readings that run at once, over all films.
const AT_ONCE: usize = 2;
/// Bytes of lines that are kept of films that were read.
const KEPT: usize = 48 << 20;
/// Bytes of fonts that are kept.
const KEPT_FONTS: usize = 32 << 20;
/// Most bytes of one font.
const LARGEST_FONT: usize = 32 << 20;
/// How long getting a font may take.
const FONT_DEADLINE: Duration = Duration::from_secs(20);

/// A film whose text is read.
#[derive(Clone, Debug)]
pub struct Film {
    /// Where it is, and the state of it that was promised.
    pub input: Input,
    /// What is known of it.
    pub facts: Arc<Facts>,
}

/// What was read of which film. A revision names a file of this node; of another one's, the gateway's address does.
type FilmKey = (Revision, Option<Arc<str>>);

impl Film {
    pub(crate) fn origin(&self) -> Origin {
        Origin::new(self.input.clone())
    }

    fn key(&self) -> FilmKey {
        match &self.input {
            Input::File { revision, .. } => (*revision, None),
            Input::Gateway(gateway) => (gateway.revision(), Some(gateway.url().into())),
        }
    }
}

/// Why there is no text.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubtitleError {
    /// There is no such track.
    #[error("there is no such subtitle track")]
    NoSuchTrack,
    /// The track holds pictures, which are not text; they can be drawn into the film's picture.
    #[error("the subtitle track holds pictures and no text")]
    Pictures,
    /// The track is text in a format that this FFmpeg does not read.
    #[error("subtitles in the format {codec} cannot be read")]
    Unreadable {
        /// FFmpeg's name of the format.
        codec: String,
    },
    /// The file is not the one that was promised.
    #[error("the file was changed since it was scanned")]
    SourceChanged,
    /// The file is not there any more.
    #[error("the file is not there any more")]
    SourceLost,
    /// There is more text than any film has.
    #[error("the track holds more text than is read")]
    TooMuch,
    /// It took longer than is allowed.
    #[error("reading the track took too long")]
    TooSlow,
    /// FFmpeg could not read it.
    #[error("FFmpeg could not read the track")]
    Failed,
    /// The server is stopping.
    #[error("the server is stopping")]
    Closing,
}

/// What readings need.
#[derive(Clone)]
pub(crate) struct Tools {
    pub(crate) program: PathBuf,
    pub(crate) spawner: Spawner,
    pub(crate) clock: Arc<dyn Clock>,
}

/// Reads text tracks and keeps what it read.
#[derive(Clone)]
pub struct Subtitles(Arc<Inner>);

struct Inner {
    tools: Tools,
    turns: Arc<Semaphore>,
    closing: watch::Sender<bool>,
    films: Mutex<Shelf<FilmKey, Arc<Job>>>,
    sidecars: Mutex<Shelf<Revision, Arc<Track>>>,
    fonts: Mutex<Shelf<(FilmKey, u32), Bytes>>,
    tasks: Mutex<JoinSet<()>>,
}

impl Subtitles {
    /// Nothing read yet. `program` is FFmpeg.
    pub fn new(program: PathBuf, spawner: Spawner, clock: Arc<dyn Clock>) -> Self {
        Self(Arc::new(Inner {
            tools: Tools {
                program,
                spawner,
                clock,
            },
            turns: Arc::new(Semaphore::new(AT_ONCE)),
            closing: watch::Sender::new(false),
            films: Mutex::new(Shelf::new(KEPT)),
            sidecars: Mutex::new(Shelf::new(KEPT / 4)),
            fonts: Mutex::new(Shelf::new(KEPT_FONTS)),
            tasks: Mutex::default(),
        }))
    }

    /// Whether stream `index` of `facts` can be given as text.
    ///
    /// # Errors
    /// [`SubtitleError::NoSuchTrack`], [`SubtitleError::Pictures`] or [`SubtitleError::Unreadable`].
    pub fn offers(facts: &Facts, index: u32) -> Result<(), SubtitleError> {
        let stream = facts.stream(index).ok_or(SubtitleError::NoSuchTrack)?;
        match &stream.kind {
            StreamKind::Subtitle(subtitle) if !subtitle.text => Err(SubtitleError::Pictures),
            StreamKind::Subtitle(_) if !arguments::reads(stream.codec.as_str()) => {
                Err(SubtitleError::Unreadable {
                    codec: stream.codec.as_str().to_owned(),
                })
            }
            StreamKind::Subtitle(_) => Ok(()),
            _ => Err(SubtitleError::NoSuchTrack),
        }
    }

    /// Begins to read text track `stream` of `film`, or joins whoever does, or finds it read.
    ///
    /// Dropping the reading withdraws the interest in it; a reading that nobody is interested in is given up.
    ///
    /// # Errors
    /// As [`Subtitles::offers`], and [`SubtitleError::Closing`].
    pub fn open(&self, film: &Film, stream: u32) -> Result<Reading, SubtitleError> {
        Self::offers(&film.facts, stream)?;
        if *self.0.closing.borrow() {
            return Err(SubtitleError::Closing);
        }
        let mut films = lock(&self.0.films);
        let key = film.key();
        let known = films.get(&key).cloned();
        if let Some(reading) = known.and_then(|job| job.join(stream)) {
            return Ok(reading);
        }
        let job = Arc::new(Job::new(&film.facts));
        let reading = job.join(stream).ok_or(SubtitleError::NoSuchTrack)?;
        films.put(key.clone(), job.clone(), 0);
        drop(films);
        let task = Task {
            job,
            film: film.clone(),
            tools: self.0.tools.clone(),
            turns: self.0.turns.clone(),
            closing: self.0.closing.subscribe(),
        };
        let mut tasks = lock(&self.0.tasks);
        while tasks.try_join_next().is_some() {}
        let inner = Arc::downgrade(&self.0);
        tasks.spawn(async move {
            let job = task.job.clone();
            task.run().await;
            if let Some(inner) = inner.upgrade() {
                inner.settle(key, &job);
            }
        });
        Ok(reading)
    }

    /// The whole of a subtitle file that lies beside a film.
    ///
    /// Cancelling ends the FFmpeg that may be at work on it.
    ///
    /// # Errors
    /// [`SubtitleError`].
    pub async fn sidecar(&self, sidecar: &Sidecar) -> Result<Arc<Track>, SubtitleError> {
        if let Some(track) = lock(&self.0.sidecars).get(&sidecar.revision) {
            return Ok(track.clone());
        }
        let track = Arc::new(arguments::sidecar(&self.0.tools, &self.0.turns, sidecar).await?);
        let weight = track.lines.iter().map(Line::weight).sum();
        lock(&self.0.sidecars).put(sidecar.revision, track.clone(), weight);
        Ok(track)
    }

    /// The file that is attached to `film` as stream `index`: a font.
    ///
    /// Cancelling ends the FFmpeg that may be at work on it.
    ///
    /// # Errors
    /// [`SubtitleError`].
    pub async fn font(&self, film: &Film, index: u32) -> Result<Bytes, SubtitleError> {
        let attached = film
            .facts
            .stream(index)
            .filter(|s| s.kind == StreamKind::Attachment);
        attached.ok_or(SubtitleError::NoSuchTrack)?;
        if let Some(font) = lock(&self.0.fonts).get(&(film.key(), index)) {
            return Ok(font.clone());
        }
        let _turn = self.0.turns.acquire().await.map_err(|_| SubtitleError::Closing)?;
        job::check(film).await?;
        let spec = arguments::font(&self.0.tools.program, film, index);
        let bounds = Bounds {
            stdin: None,
            max_output: LARGEST_FONT,
            deadline: FONT_DEADLINE,
        };
        let output = self
            .0
            .tools
            .spawner
            .run_bounded(spec, bounds)
            .await
            .map_err(failed)?;
        job::check(film).await?;
        let font = Bytes::from(output.stdout);
        lock(&self.0.fonts).put((film.key(), index), font.clone(), font.len());
        Ok(font)
    }

    /// Ends every reading and waits until nothing of them is left. Nothing can be read after it.
    pub async fn shutdown(&self) {
        self.0.closing.send_replace(true);
        let mut tasks = std::mem::take(&mut *lock(&self.0.tasks));
        while tasks.join_next().await.is_some() {}
    }
}

impl Inner {
    /// Keeps what `job` read within the budget, or forgets it where it was not read to its end.
    fn settle(&self, key: FilmKey, job: &Arc<Job>) {
        let mut films = lock(&self.films);
        if films.get(&key).is_none_or(|kept| !Arc::ptr_eq(kept, job)) {
            return;
        }
        match job.weight() {
            Some(weight) => films.put(key, job.clone(), weight),
            None => films.forget(&key),
        }
    }
}

/// An interest in one track of a film that is being read, or was.
pub struct Reading {
    job: Arc<Job>,
    stream: u32,
    seen: usize,
    told: bool,
    changes: watch::Receiver<u64>,
}

/// What came since the last look.
#[derive(Debug, Default)]
pub struct Batch {
    /// How the lines are written; with the first batch only.
    pub form: Option<Form>,
    /// The lines that came.
    pub lines: Vec<Line>,
    /// Whether these are the last.
    pub complete: bool,
}

impl Reading {
    /// Waits until the whole track is read. Cancelling forgets the wait and nothing else.
    ///
    /// # Errors
    /// [`SubtitleError`].
    pub async fn whole(&mut self) -> Result<Arc<Track>, SubtitleError> {
        loop {
            self.changes.borrow_and_update();
            if let Some(track) = self.job.finished(self.stream) {
                return track;
            }
            if self.changes.changed().await.is_err() {
                return Err(SubtitleError::Closing);
            }
        }
    }

    /// Waits until there are lines that this reading has not given yet, or the track is at its end. Cancelling
    /// loses nothing.
    ///
    /// # Errors
    /// [`SubtitleError`].
    pub async fn next(&mut self) -> Result<Batch, SubtitleError> {
        loop {
            self.changes.borrow_and_update();
            if let Some(mut batch) = self.job.since(self.stream, self.seen)? {
                self.seen += batch.lines.len();
                if self.told {
                    batch.form = None;
                }
                self.told = true;
                return Ok(batch);
            }
            if self.changes.changed().await.is_err() {
                return Err(SubtitleError::Closing);
            }
        }
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.job.leave();
    }
}

/// Why FFmpeg gave nothing.
fn failed(error: RunError) -> SubtitleError {
    match error {
        RunError::TooMuchOutput { .. } => SubtitleError::TooMuch,
        RunError::DeadlineExceeded { .. } => SubtitleError::TooSlow,
        RunError::Spawn(error) => {
            tracing::warn!(%error, "FFmpeg cannot be started for subtitles");
            SubtitleError::Failed
        }
        RunError::Failed { .. } => SubtitleError::Failed,
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
