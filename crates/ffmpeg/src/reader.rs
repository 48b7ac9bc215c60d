//! The thread that reads one run's pipe, cuts it into segments and holds FFmpeg back by not reading on.
//!
//! Nothing of a picture is kept in memory: its bytes go from the pipe to scratch space. Sound, some kilobytes a
//! second, waits for its segment to complete, so that every segment has the same layout whoever made it.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use ether_encoder::{Ended, MOST_RUNGS, Revision, SegmentContainer};
use ether_media::Ticks;

use crate::fragment;
use crate::init;
use crate::inventory::announced;
use crate::pipe::{Event, PipeError, PipeReader, PipeTrack, Sample};
use crate::scratch::{Blob, BlobReader, WriteError};
use crate::segmenter::{Frames, Lane, Placement, Segmenter, Table, Violation};
use crate::store::{Segment, Store};
use crate::strand::RungSet;
use crate::ts;

/// Most bytes of sound that wait for one segment: an hour of anything sane.
const MAX_SOUND: usize = 64 << 20;
/// How much shorter than promised a source may be without being called truncated.
const SHORT: Ticks = Ticks(Ticks::HZ);

/// What a run is to make.
#[derive(Clone, Debug)]
pub(crate) struct Job {
    pub(crate) run: u64,
    pub(crate) first: u32,
    /// The rungs that it makes.
    pub(crate) rungs: RungSet,
    /// Whether it makes sound; a run past the end of copied sound makes none.
    pub(crate) audio: bool,
    pub(crate) accept_late: bool,
    pub(crate) until: Option<u32>,
    pub(crate) reorder: Ticks,
    /// Whether silence is added to the sound where it ends before the picture.
    pub(crate) padded: bool,
    /// The source, and the state of it that was promised.
    pub(crate) source: (PathBuf, Revision),
    /// Where sound starts on the file's clock and the samples of its frames, where both are known.
    pub(crate) sound_frames: Option<(Ticks, u32)>,
}

/// How reading ended.
#[derive(Debug)]
pub(crate) enum ReaderEnd {
    /// The pipe is at its end; whether that is the end of the film depends on how FFmpeg exited.
    EndOfPipe(Box<Remainder>),
    /// The run began after its first segment.
    LandedLate,
    /// The run failed, or was told to end.
    Failed(Ended),
}

/// The segments that were open when the pipe ended, of every rung.
#[derive(Debug)]
pub(crate) struct Remainder {
    job: Job,
    store: Arc<Store>,
    rails: Vec<Rail>,
}

/// One rung of a run: the samples of its tracks, and the bytes of its segments.
#[derive(Debug)]
struct Rail {
    /// That of the picture first, where there is one.
    tracks: Vec<usize>,
    /// The initialization segment until the first picture proves it: without one FFmpeg's encoder was set up for
    /// pictures that it did not see, and describes those.
    unproved: Option<Vec<u8>>,
    segmenter: Segmenter,
    cutter: Cutter,
}

impl Remainder {
    /// Finishes what is open: FFmpeg exited by itself and said nothing was wrong.
    pub(crate) fn complete(mut self) -> Ended {
        let (first, until) = (self.job.first, self.job.until);
        let store = self.store;
        let (strand, end) = (&store.strand, store.timeline.end());
        let mut reached: Option<Ticks> = None;
        for rail in &mut self.rails {
            // Silence that was added past the end of the picture is not the film.
            let sounds = rail.segmenter.sounds_end().filter(|_| !self.job.padded);
            let own = rail.segmenter.produced().max(sounds);
            let own = own.unwrap_or(store.timeline.start(first as usize));
            let last = u32::try_from(store.timeline.segment_of(own - Ticks(1))).unwrap_or(u32::MAX);
            while let Some((number, table)) = rail.segmenter.pop_last() {
                if number > last || until.is_some_and(|until| number >= until) {
                    continue;
                }
                if let Err(ended) = rail.cutter.finish(number, &table) {
                    return ended;
                }
            }
            reached = Some(reached.map_or(own, |known| known.min(own)));
            let whole = self.job.audio || strand.audio.is_none();
            if let Some(init) = rail.unproved.take_if(|_| whole) {
                // Whoever waits for it has nothing better to expect, and it is not kept for others.
                store.update(|state| {
                    state.inits[rail.cutter.rung]
                        .get_or_insert(Bytes::from(init))
                        .len()
                });
            }
        }
        let reached = reached.unwrap_or(store.timeline.start(first as usize));
        // Copied sound may end before the picture; then there is nothing in its last segments, and they are there.
        if strand.video.is_none() && strand.picture && !strand.cut_short() && until.is_none() {
            let last = u32::try_from(store.timeline.len())
                .unwrap_or(u32::MAX)
                .saturating_sub(1);
            for rail in &mut self.rails {
                if rail.cutter.next() <= last
                    && let Err(ended) = rail.cutter.finish(last, &Table::default())
                {
                    return ended;
                }
            }
            return Ended::Complete;
        }
        let truncated = until.is_none() && (strand.cut_short() || reached + SHORT < end);
        store.update(|state| {
            let next = state.run.map_or(first, |view| view.behind());
            let missing = until.is_none() && (next as usize) < store.timeline.len();
            if missing {
                state.source_end = Some(state.source_end.map_or(reached, |known| known.min(reached)));
            }
        });
        if truncated {
            Ended::SourceTruncated { at: reached }
        } else {
            Ended::Complete
        }
    }

    fn fragment<R: Read>(&mut self, pipe: &mut PipeReader<R>, samples: &[Sample]) -> Result<(), Stop> {
        let mut samples = samples;
        while let Some(first) = samples.first() {
            let rail = self
                .rails
                .iter_mut()
                .find(|rail| rail.tracks.contains(&first.track));
            let Some(rail) = rail else {
                pipe.copy_to(u64::from(first.size), &mut io::sink())?;
                samples = &samples[1..];
                continue;
            };
            let own = samples
                .iter()
                .take_while(|s| rail.tracks.contains(&s.track))
                .count();
            let (now, later) = samples.split_at(own);
            let proved = now.iter().any(|s| rail.tracks.first() == Some(&s.track));
            if let Some(init) = rail.unproved.take_if(|_| proved) {
                publish_init(&self.store, &self.job, rail.cutter.rung, init)?;
            }
            rail.cutter.fragment(&mut rail.segmenter, pipe, now)?;
            samples = later;
        }
        let produced = self
            .rails
            .iter()
            .filter_map(|rail| rail.segmenter.produced())
            .min();
        let run = self.job.run;
        if let Some(view) = self.store.lock().run.as_mut().filter(|view| view.id == run) {
            view.produced = produced;
        }
        Ok(())
    }
}

/// Reads `pipe` to its end. Every early return drops the pipe, so that FFmpeg cannot block on it.
pub(crate) fn read(pipe: impl Read, store: Arc<Store>, job: Job, progress: &Progress) -> ReaderEnd {
    let mut pipe = PipeReader::new(pipe);
    let mut run: Option<Remainder> = None;
    let mut latest = Vec::new();
    loop {
        let step = match pipe.next() {
            Ok(Event::Tracks(tracks)) => begin(&store, &job, &tracks).map(|begun| run = Some(begun)),
            Ok(Event::Fragment(samples)) => match &mut run {
                Some(run) => {
                    let taken = run.fragment(&mut pipe, &samples);
                    progress.advance(&mut latest, &samples);
                    taken
                }
                None => Err(Stop::Ended(Ended::Unreadable)),
            },
            Ok(Event::End) => {
                return match run {
                    Some(run) => ReaderEnd::EndOfPipe(Box::new(run)),
                    None => ReaderEnd::Failed(Ended::Unreadable),
                };
            }
            Err(error) => Err(error.into()),
        };
        match step {
            Ok(()) => {}
            Err(Stop::LandedLate) => return ReaderEnd::LandedLate,
            Err(Stop::Ended(ended)) => return ReaderEnd::Failed(ended),
        }
    }
}

/// Why reading stops early.
enum Stop {
    LandedLate,
    Ended(Ended),
}

impl From<PipeError> for Stop {
    fn from(error: PipeError) -> Self {
        tracing::debug!(%error, "the encoder's pipe ended early");
        // A pipe that ends inside a box is that of a process that died; its exit says how.
        Stop::Ended(Ended::Unreadable)
    }
}

impl From<Violation> for Stop {
    fn from(violation: Violation) -> Self {
        match violation {
            Violation::LandedLate => Stop::LandedLate,
            Violation::Bound(segment) => Stop::Ended(Ended::BoundViolated { segment }),
        }
    }
}

/// Takes over the tracks.
fn begin(store: &Arc<Store>, job: &Job, tracks: &[PipeTrack]) -> Result<Remainder, Stop> {
    let strand = &store.strand;
    let all = |handler: &[u8; 4]| -> Vec<usize> {
        (0..tracks.len())
            .filter(|n| &tracks[*n].handler == handler)
            .collect()
    };
    let unreadable = || Stop::Ended(Ended::Unreadable);
    let pictures = if strand.video.is_some() {
        all(b"vide")
    } else {
        Vec::new()
    };
    let sound = all(b"soun").first().copied().filter(|_| job.audio);
    if strand.video.is_some() && pictures.len() != job.rungs.len() {
        return Err(unreadable());
    }
    let mut rails = Vec::new();
    // FFmpeg writes the tracks in the order of the outputs, which is that of the rungs.
    for (n, rung) in job.rungs.iter().enumerate() {
        let picture = pictures.get(n).copied();
        rails.push(rail(store, job, tracks, rung, picture, sound)?);
    }
    Ok(Remainder {
        job: job.clone(),
        store: store.clone(),
        rails,
    })
}

fn rail(
    store: &Arc<Store>,
    job: &Job,
    tracks: &[PipeTrack],
    rung: usize,
    video: Option<usize>,
    audio: Option<usize>,
) -> Result<Rail, Stop> {
    let unreadable = || Stop::Ended(Ended::Unreadable);
    let (picture, sound) = (video.map(|n| &tracks[n]), audio.map(|n| &tracks[n]));
    // What a playlist announced is what the encoder was told; one that gives something else is not used (D2).
    if let (Some(picture), Some(encode)) = (picture, store.strand.encode())
        && let Some(rung) = encode.rungs.get(rung)
        && !announced(picture, encode.codec, rung)
    {
        return Err(Stop::Ended(Ended::ConfigurationChanged));
    }
    let (mut layout, mut unproved) = (None, None);
    match store.strand.container {
        SegmentContainer::Fmp4 => {
            let anew = picture
                .filter(|_| store.strand.encode().is_some())
                .map(init::anew);
            let init = init::write(anew.as_ref().or(picture), sound, job.reorder);
            unproved = Some(init.ok_or_else(unreadable)?);
        }
        SegmentContainer::MpegTs => {
            let elementary = |track| ts::Elementary::of(track).ok_or_else(unreadable);
            layout = Some(ts::Layout {
                video: picture.map(elementary).transpose()?,
                audio: match sound {
                    Some(track) => Some((elementary(track)?, track.timescale)),
                    None => None,
                },
                reorder: job.reorder,
            });
        }
    }
    let lane = |n: usize| Lane {
        frames: None,
        track: n,
        timescale: tracks[n].timescale,
    };
    let frames = |scale: u32| {
        let frames = |(start, length): (Ticks, u32)| Frames {
            anchor: start.to_timescale(u64::from(scale)),
            length,
        };
        job.sound_frames.map(frames)
    };
    let segmenter = Segmenter::new(
        store.timeline.clone(),
        job.first,
        video.map(lane),
        audio.map(|n| Lane {
            frames: frames(tracks[n].timescale),
            ..lane(n)
        }),
        job.accept_late,
    );
    let cutter = Cutter {
        store: store.clone(),
        job: job.clone(),
        rung,
        layout,
        open: BTreeMap::new(),
    };
    Ok(Rail {
        tracks: video.into_iter().chain(audio).collect(),
        unproved,
        segmenter,
        cutter,
    })
}

fn publish_init(store: &Store, job: &Job, rung: usize, bytes: Vec<u8>) -> Result<(), Stop> {
    let whole = job.audio || store.strand.audio.is_none();
    store.update(|state| match &mut state.inits[rung.min(MOST_RUNGS - 1)] {
        // A run without the sound that ended already cannot describe it and has nothing to compare.
        _ if !whole => Ok(()),
        Some(pinned) if *pinned != bytes => Err(Stop::Ended(Ended::ConfigurationChanged)),
        Some(_) => Ok(()),
        unknown => {
            let bytes = Bytes::from(bytes);
            store.keep_init(rung, &bytes);
            *unknown = Some(bytes);
            Ok(())
        }
    })
}

/// The bytes of the segments that are being made.
#[derive(Debug)]
struct Cutter {
    store: Arc<Store>,
    job: Job,
    rung: usize,
    /// Set for transport streams.
    layout: Option<ts::Layout>,
    open: BTreeMap<u32, Open>,
}

#[derive(Debug)]
struct Open {
    pictures: Blob,
    sounds: Vec<u8>,
}

impl Cutter {
    fn fragment<R: Read>(
        &mut self,
        segmenter: &mut Segmenter,
        pipe: &mut PipeReader<R>,
        samples: &[Sample],
    ) -> Result<(), Stop> {
        let mut entered = None;
        for sample in samples {
            let placement = segmenter.place(sample)?;
            let size = u64::from(sample.size);
            match placement {
                Placement::Drop => pipe.copy_to(size, &mut io::sink())?,
                Placement::Video(number) | Placement::Audio(number) => {
                    if self.job.until.is_some_and(|until| number >= until) {
                        pipe.copy_to(size, &mut io::sink())?;
                        continue;
                    }
                    if entered != Some(number) {
                        // What is complete is handed over before this thread may be held back.
                        self.hand_over(segmenter)?;
                        if !self.enter(number) {
                            return Err(Stop::Ended(Ended::Stopped));
                        }
                    }
                    entered = Some(number);
                    self.keep(pipe, number, size, matches!(placement, Placement::Video(_)))?;
                }
            }
        }
        self.hand_over(segmenter)
    }

    /// The lowest segment that is not finished.
    fn next(&self) -> u32 {
        let view = self.store.lock().run.filter(|view| view.id == self.job.run);
        view.map_or(self.job.first, |view| view.next[self.rung])
    }

    fn hand_over(&mut self, segmenter: &mut Segmenter) -> Result<(), Stop> {
        while let Some((number, table)) = segmenter.pop_ready() {
            self.finish(number, &table).map_err(Stop::Ended)?;
        }
        Ok(())
    }

    fn enter(&self, number: u32) -> bool {
        self.store.enter(self.job.run, number)
    }

    fn keep<R: Read>(
        &mut self,
        pipe: &mut PipeReader<R>,
        number: u32,
        size: u64,
        picture: bool,
    ) -> Result<(), Stop> {
        let scratch = self.store.scratch.clone();
        let open = self.open.entry(number).or_insert_with(|| Open {
            pictures: Blob::new(scratch),
            sounds: Vec::new(),
        });
        if picture {
            let mut sink = Sink {
                blob: &mut open.pictures,
                store: &self.store,
                run: self.job.run,
                failed: None,
            };
            let copied = pipe.copy_to(size, &mut sink);
            if let Some(error) = sink.failed {
                return Err(Stop::Ended(ended_by(&error, number, &self.store)));
            }
            copied?;
        } else {
            if open.sounds.len() as u64 + size > MAX_SOUND as u64 {
                return Err(Stop::Ended(Ended::Unreadable));
            }
            pipe.copy_to(size, &mut open.sounds)?;
        }
        Ok(())
    }

    /// Completes segment `number` and hands it to whoever waits. Segments that were passed over without a
    /// picture or a sound, where one picture is shown for longer than a segment, are there and empty.
    fn finish(&mut self, number: u32, table: &Table) -> Result<(), Ended> {
        for empty in self.next()..number {
            self.complete(empty, &Table::default())?;
        }
        self.complete(number, table)
    }

    fn complete(&mut self, number: u32, table: &Table) -> Result<(), Ended> {
        // A file that changed while it was read may have given bytes of both states: none of them are served.
        let (path, revision) = &self.job.source;
        check_revision(path, *revision)?;
        let (run, rung) = (self.job.run, self.rung);
        let store = self.store.clone();
        let open = self.open.remove(&number);
        let open = open.unwrap_or_else(|| Open {
            pictures: Blob::new(store.scratch.clone()),
            sounds: Vec::new(),
        });
        let (mut blob, head, content_type) = match &self.layout {
            None => {
                let mut blob = open.pictures;
                let head = fragment::head(number, table, self.job.reorder);
                for bytes in [&open.sounds, &head] {
                    store
                        .append(run, &mut blob, bytes)
                        .map_err(|e| ended_by(&e, number, &store))?;
                }
                let kind = if store.strand.video.is_some() {
                    "video/mp4"
                } else {
                    "audio/mp4"
                };
                (blob, head.len() as u64, kind)
            }
            Some(layout) => (
                transport(&store, run, layout, number, table, &open)?,
                0,
                "video/mp2t",
            ),
        };
        let etag = format!("{}-{run}-{rung}-{number}", store.tag);
        blob.settle();
        let len = blob.len();
        let segment = Arc::new(Segment {
            blob,
            head,
            etag,
            content_type,
        });
        let finished = segment.clone();
        store.update(|state| {
            state.bytes_produced += len;
            state.segments.insert((number, rung), segment);
            if let Some(view) = state.run.as_mut().filter(|view| view.id == run) {
                view.next[rung] = view.next[rung].max(number + 1);
            }
        });
        // Whoever waits has it by now; keeping it may take a moment.
        store.keep(rung, number, &finished);
        Ok(())
    }
}

fn transport(
    store: &Arc<Store>,
    run: u64,
    layout: &ts::Layout,
    number: u32,
    table: &Table,
    open: &Open,
) -> Result<Blob, Ended> {
    let mut blob = Blob::new(store.scratch.clone());
    let mut pictures = io::BufReader::with_capacity(
        64 << 10,
        BlobReader {
            blob: &open.pictures,
            at: 0,
        },
    );
    let mut sink = Sink {
        blob: &mut blob,
        store,
        run,
        failed: None,
    };
    let mut out = io::BufWriter::with_capacity(188 * 348, &mut sink);
    let written = ts::write_segment(layout, number, table, &mut pictures, &open.sounds, &mut out);
    let written = written.and_then(|()| out.flush());
    drop(out);
    match (sink.failed, written) {
        (Some(error), _) => Err(ended_by(&error, number, store)),
        (None, Err(error)) => {
            tracing::warn!(%error, number, "a segment cannot be written as a transport stream");
            Err(Ended::Unreadable)
        }
        (None, Ok(())) => Ok(blob),
    }
}

/// How a run ends that cannot write segment `number`.
fn ended_by(error: &WriteError, number: u32, store: &Store) -> Ended {
    match error {
        WriteError::GivenUp => Ended::Stopped,
        WriteError::TooLarge => Ended::SegmentTooLarge {
            segment: number,
            scratch: store.scratch.limit(),
        },
        WriteError::Io(error) => {
            tracing::warn!(%error, "scratch space cannot be written");
            Ended::ScratchFull
        }
    }
}

/// Whether the file is still the one that the facts were read from, and no link to it. Takes one question to the
/// file system.
pub(crate) fn check_revision(path: &Path, promised: Revision) -> Result<(), Ended> {
    let metadata = std::fs::symlink_metadata(path).map_err(|_| Ended::SourceLost)?;
    if crate::revision_of(&metadata) == promised {
        Ok(())
    } else {
        Err(Ended::SourceChanged)
    }
}

/// Appends to a blob, waiting for room; keeps the reason where it cannot.
struct Sink<'a> {
    blob: &'a mut Blob,
    store: &'a Store,
    run: u64,
    failed: Option<WriteError>,
}

impl Write for Sink<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.store.append(self.run, self.blob, bytes) {
            Ok(()) => Ok(bytes.len()),
            Err(error) => {
                self.failed = Some(error);
                Err(io::ErrorKind::StorageFull.into())
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// How often the media of a run got on: what tells an encoder that works from one that only lives. Bytes alone
/// do not count.
#[derive(Debug, Default)]
pub(crate) struct Progress(AtomicU64);

impl Progress {
    /// Grows with every fragment that has a sample later than all before it in its track.
    pub(crate) fn steps(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Takes in a fragment; `latest` is how far each track had come before it.
    fn advance(&self, latest: &mut Vec<i64>, samples: &[Sample]) {
        let mut advanced = false;
        for sample in samples {
            if latest.len() <= sample.track {
                latest.resize(sample.track + 1, i64::MIN);
            }
            advanced |= sample.dts > latest[sample.track];
            latest[sample.track] = latest[sample.track].max(sample.dts);
        }
        if advanced {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}
