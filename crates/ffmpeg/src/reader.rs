//! The thread that reads one run's pipe, cuts it into segments and holds FFmpeg back by not reading on.
//!
//! Nothing of a picture is kept in memory: its bytes go from the pipe to scratch space. Sound, some kilobytes a
//! second, waits for its segment to complete, so that every segment has the same layout whoever made it.

mod cutter;

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use ether_encoder::{Ended, MOST_RUNGS, SegmentContainer};
use ether_media::Ticks;

use crate::init;
use crate::inventory::announced;
use crate::origin::Origin;
use crate::pipe::{Event, PipeError, PipeReader, PipeTrack, Sample};
use crate::segmenter::{Frames, Lane, Segmenter, Table, Violation};
use crate::store::Store;
use crate::strand::RungSet;
use crate::ts;
use cutter::Cutter;

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
    pub(crate) source: Origin,
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
