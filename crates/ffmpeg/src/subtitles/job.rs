//! One reading of a film's text tracks, and whoever is interested in it.

use std::collections::BTreeMap;
use std::io::BufReader;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ether_encoder::Ended;
use ether_media::subtitles::{Line, Track};
use ether_media::{Facts, StreamKind};
use tokio::sync::{Notify, Semaphore, oneshot, watch};

use super::matroska::{self, Broken, Event};
use super::{Batch, Film, Reading, SubtitleError, Tools, arguments, lock};

/// Bytes of lines that are read of one film.
const MOST: usize = 64 << 20;
/// How long one reading may take: a film of a hundred gigabytes over a slow network.
const DEADLINE: Duration = Duration::from_secs(40 * 60);
/// How long a reading goes on when nobody is interested in it any more: players ask again.
const LINGER: Duration = Duration::from_secs(15);

/// What is read, as far as it was.
pub(super) struct Job {
    state: Mutex<State>,
    /// Grows with everything that happens.
    changes: watch::Sender<u64>,
    readers: AtomicUsize,
    /// Told when the last one leaves.
    left: Notify,
}

#[derive(Default)]
struct State {
    tracks: BTreeMap<u32, Progress>,
    weight: usize,
    /// How everything ended, where it has.
    ended: Option<Result<(), SubtitleError>>,
}

/// One track.
#[derive(Default)]
struct Progress {
    codec: String,
    track: Track,
    /// The track when it is whole, or why it never will be.
    end: Option<Result<Arc<Track>, SubtitleError>>,
}

impl Job {
    /// The text tracks of a film, none of them read.
    pub(super) fn new(facts: &Facts) -> Self {
        let text = facts.streams.iter().filter(|stream| {
            matches!(&stream.kind, StreamKind::Subtitle(subtitle) if subtitle.text)
                && arguments::reads(stream.codec.as_str())
        });
        let progress = |codec: &str| Progress {
            codec: codec.to_owned(),
            ..Progress::default()
        };
        let tracks = text.map(|stream| (stream.index, progress(stream.codec.as_str())));
        Self {
            state: Mutex::new(State {
                tracks: tracks.collect(),
                ..State::default()
            }),
            changes: watch::Sender::new(0),
            readers: AtomicUsize::new(0),
            left: Notify::new(),
        }
    }

    /// An interest in a track; `None` where it has none, or where reading it failed and is to be tried anew.
    pub(super) fn join(self: &Arc<Self>, stream: u32) -> Option<Reading> {
        let state = lock(&self.state);
        let progress = state.tracks.get(&stream)?;
        if matches!(progress.end, Some(Err(_))) || matches!(state.ended, Some(Err(_))) {
            return None;
        }
        self.readers.fetch_add(1, Ordering::SeqCst);
        Some(Reading {
            job: self.clone(),
            stream,
            seen: 0,
            told: false,
            changes: self.changes.subscribe(),
        })
    }

    pub(super) fn leave(&self) {
        if self.readers.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.left.notify_one();
        }
    }

    /// The track, or why there is none; `None` while it is read.
    pub(super) fn finished(&self, stream: u32) -> Option<Result<Arc<Track>, SubtitleError>> {
        let state = lock(&self.state);
        let end = state
            .tracks
            .get(&stream)
            .and_then(|progress| progress.end.clone());
        end.or_else(|| match &state.ended {
            Some(Err(error)) => Some(Err(error.clone())),
            _ => None,
        })
    }

    /// What came of a track since `seen` lines were; `None` where that is nothing.
    pub(super) fn since(&self, stream: u32, seen: usize) -> Result<Option<Batch>, SubtitleError> {
        let state = lock(&self.state);
        let progress = state.tracks.get(&stream).ok_or(SubtitleError::NoSuchTrack)?;
        let (track, complete) = match (&progress.end, &state.ended) {
            (Some(Ok(track)), _) => (&**track, true),
            (Some(Err(error)), _) | (None, Some(Err(error))) => return Err(error.clone()),
            (None, _) => (&progress.track, false),
        };
        let lines = track.lines.get(seen..).unwrap_or_default();
        if lines.is_empty() && !complete {
            return Ok(None);
        }
        Ok(Some(Batch {
            form: Some(track.form.clone()),
            lines: lines.to_vec(),
            complete,
        }))
    }

    /// Bytes that it keeps, where it was read to its end.
    pub(super) fn weight(&self) -> Option<usize> {
        let state = lock(&self.state);
        // Something that weighs nothing would never make room.
        matches!(state.ended, Some(Ok(()))).then_some(state.weight + 1_024)
    }

    fn update<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let out = change(&mut lock(&self.state));
        self.changes.send_modify(|n| *n += 1);
        out
    }

    /// Waits until nobody is interested and nobody has been for a while.
    async fn deserted(&self, tools: &Tools) {
        loop {
            while self.readers.load(Ordering::SeqCst) > 0 {
                self.left.notified().await;
            }
            tools.clock.sleep(LINGER).await;
            if self.readers.load(Ordering::SeqCst) == 0 {
                return;
            }
        }
    }
}

/// Reads what a job is about.
pub(super) struct Task {
    pub(super) job: Arc<Job>,
    pub(super) film: Film,
    pub(super) tools: Tools,
    pub(super) turns: Arc<Semaphore>,
    pub(super) closing: watch::Receiver<bool>,
}

impl Task {
    /// Reads to the end, or until nobody is interested any more, or the server stops. Nothing of FFmpeg is left
    /// when this returns.
    pub(super) async fn run(mut self) {
        let ended = self.read().await;
        self.job.update(|state| {
            for progress in state.tracks.values_mut() {
                if let (None, Ok(())) = (&progress.end, &ended) {
                    progress.end = Some(Ok(Arc::new(std::mem::take(&mut progress.track))));
                }
            }
            state.ended = Some(ended);
        });
    }

    async fn read(&mut self) -> Result<(), SubtitleError> {
        let turns = self.turns.clone();
        let job = self.job.clone();
        let tools = self.tools.clone();
        let _turn = tokio::select! {
            biased;
            turn = turns.acquire() => turn.map_err(|_| SubtitleError::Closing)?,
            () = job.deserted(&tools) => return Err(SubtitleError::Closing),
            () = closed(&mut self.closing) => return Err(SubtitleError::Closing),
        };
        check(&self.film).await?;
        let all: Vec<(u32, String)> = {
            let state = lock(&self.job.state);
            let tracks = state.tracks.iter();
            tracks
                .map(|(index, progress)| (*index, progress.codec.clone()))
                .collect()
        };
        let mut ended = self.pass(&all).await;
        if ended == Err(SubtitleError::Failed) && all.len() > 1 {
            // One track that cannot be read must not cost the others.
            ended = Ok(());
            for one in &all {
                self.job.update(|state| {
                    let progress = state.tracks.entry(one.0).or_default();
                    state.weight -= progress.track.lines.iter().map(Line::weight).sum::<usize>();
                    progress.track = Track::default();
                });
                match self.pass(std::slice::from_ref(one)).await {
                    Ok(()) => {}
                    Err(SubtitleError::Failed) => self.job.update(|state| {
                        state.tracks.entry(one.0).or_default().end = Some(Err(SubtitleError::Failed));
                    }),
                    Err(error) => return Err(error),
                }
            }
        }
        ended?;
        check(&self.film).await
    }

    /// One FFmpeg over the film, for `streams`.
    async fn pass(&mut self, streams: &[(u32, String)]) -> Result<(), SubtitleError> {
        let spec = arguments::tracks(&self.tools.program, &self.film, streams);
        let mut child = self.tools.spawner.spawn(spec).await.map_err(|error| {
            tracing::warn!(%error, "FFmpeg cannot be started for subtitles");
            SubtitleError::Failed
        })?;
        let pipe = child.take_stdout().ok_or(SubtitleError::Failed)?;
        let (done, mut reader) = oneshot::channel();
        let filler = Filler {
            job: self.job.clone(),
            streams: streams.to_vec(),
        };
        let thread = std::thread::Builder::new()
            .name("ether-subtitles".to_owned())
            .stack_size(256 << 10);
        let spawned = thread.spawn(move || {
            // Whoever waits for the end may be gone, which needs no answer.
            let _ = done.send(filler.fill(BufReader::with_capacity(64 << 10, pipe)));
        });
        if spawned.is_err() {
            child.terminate(Duration::ZERO).await;
            return Err(SubtitleError::Failed);
        }
        let (job, tools) = (self.job.clone(), self.tools.clone());
        let read = tokio::select! {
            biased;
            read = &mut reader => Some(read.unwrap_or(Err(SubtitleError::Failed))),
            () = job.deserted(&tools) => None,
            () = closed(&mut self.closing) => None,
            () = tools.clock.sleep(DEADLINE) => Some(Err(SubtitleError::TooSlow)),
        };
        if read != Some(Ok(())) {
            child.kill();
        }
        if !matches!(
            read,
            Some(Ok(()) | Err(SubtitleError::TooMuch | SubtitleError::Failed))
        ) {
            // Its thread sees the end of the pipe; evidence waits for that.
            let _ = reader.await;
        }
        let evidence = child.retired().await;
        match read {
            None => Err(SubtitleError::Closing),
            Some(Err(error)) => Err(error),
            Some(Ok(())) if evidence.status().success() => Ok(()),
            Some(Ok(())) => {
                tracing::debug!(status = %evidence.status(), lines = ?child.stderr_lines(), "subtitles were not read");
                Err(SubtitleError::Failed)
            }
        }
    }
}

/// Puts what comes out of a pipe where it belongs.
struct Filler {
    job: Arc<Job>,
    streams: Vec<(u32, String)>,
}

impl Filler {
    fn of(&self, number: u64) -> Option<&(u32, String)> {
        self.streams.get(usize::try_from(number).ok()?.checked_sub(1)?)
    }

    fn fill(&self, pipe: impl std::io::Read) -> Result<(), SubtitleError> {
        let mut weight = 0;
        let script = |number| {
            self.of(number)
                .is_some_and(|(_, codec)| arguments::is_script(codec))
        };
        let read = matroska::read(pipe, script, |event| {
            match event {
                Event::Track { number, form } => {
                    if let Some((index, _)) = self.of(number) {
                        self.job.update(|state| {
                            let progress = state.tracks.entry(*index).or_default();
                            progress.track.form = form;
                        });
                    }
                }
                Event::Line { number, line } => {
                    if let Some((index, _)) = self.of(number) {
                        weight = self.job.update(|state| {
                            let progress = state.tracks.entry(*index).or_default();
                            let line = matroska::formed(line, &progress.track.form);
                            let line = arguments::shifted(line);
                            state.weight += line.weight();
                            progress.track.lines.push(line);
                            state.weight
                        });
                    }
                }
            }
            weight <= MOST
        });
        match read {
            Ok(()) if weight > MOST => Err(SubtitleError::TooMuch),
            Ok(()) => Ok(()),
            Err(Broken::TooLarge) => Err(SubtitleError::TooMuch),
            Err(Broken::Io) => Err(SubtitleError::Failed),
        }
    }
}

async fn closed(closing: &mut watch::Receiver<bool>) {
    // A sender that is gone belongs to a service that is: nobody can ask it for anything any more.
    let _ = closing.wait_for(|closing| *closing).await;
}

/// Whether the film is still the one that was promised. A network mount may take its time.
pub(super) async fn check(film: &Film) -> Result<(), SubtitleError> {
    match film.origin().check_apart().await {
        Ok(()) => Ok(()),
        Err(Ended::SourceChanged) => Err(SubtitleError::SourceChanged),
        _ => Err(SubtitleError::SourceLost),
    }
}
