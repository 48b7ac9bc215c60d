//! Matroska and WebM.
//!
//! The head of the file, its seek index, its cues and its last cluster are read; what lies between is not,
//! unless [`scan`] is asked for every block's header. FFmpeg's stream indexes are those of the track entries,
//! then the attached files, both in file order.

mod blocks;
mod ebml;
mod files;
mod ids;
mod index;
mod tracks;

use std::collections::BTreeMap;

use blocks::{Block, Walker};
use ebml::{ElementHeader, Elements, HEADER_MAX, float, text, uint};
use files::AttachedFile;
use index::{Cue, SeekHead, TrackTags};
use tracks::Track;

use crate::facts::{
    Container, Facts, FactsSource, Gap, Keyframes, Stream, StreamKind, earliest, mark_stills, span,
};
use crate::reader::{FactsError, ReadError, ScanError, Source};
use crate::ticks::Ticks;

const MAX_ELEMENTS: usize = 4096;
const MAX_TRACKS: usize = 256;
/// How much of the first clusters is looked at for the first block of every track.
const HEAD_BLOCKS: u64 = 4 << 20;
/// How much of it is looked at for the first block of a subtitle track.
const HEAD_NEAR: u64 = 64 << 10;
/// How much of the last cluster is looked at for the end of every track.
const TAIL_BLOCKS: u64 = 32 << 20;
/// How many clusters at the end are looked at.
const LAST_CLUSTERS: usize = 4;
/// How much one request of that brings.
const TAIL_STEP: u64 = 1 << 20;
/// How much one request of a full scan brings.
const SCAN_STEP: u64 = 512 << 10;
/// Bytes of a first block that hold any codec's headers.
const FIRST_DATA: u64 = 4 << 10;

fn broken(what: &'static str) -> FactsError {
    FactsError::Broken {
        container: Container::Matroska,
        what,
    }
}

/// Reads the facts of a file whose EBML header has been recognised.
pub(crate) fn read(source: &mut Source<'_>) -> Result<Facts, FactsError> {
    let mut segment = Segment::open(source)?;
    segment.read_head(source)?;
    segment.follow_seeks(source)?;
    if segment.tracks.is_empty() {
        return Err(broken("no track"));
    }
    let mut seen = Seen::default();
    segment.look_at_first_blocks(source, &mut seen)?;
    segment.look_at_last_blocks(source, &mut seen)?;
    let mut facts = segment.facts(source.len(), &seen);
    if facts.keyframes.is_none()
        && source.len() <= source.limits().whole_scan
        && let Some(index) = facts.main_video().map(|s| s.index)
    {
        match segment.scan(source, index, &mut |_| ()) {
            Ok(found) => facts.set_keyframes(found),
            Err(ScanError::Stopped) => return Err(FactsError::Stopped),
            Err(ScanError::Io(error)) => return Err(FactsError::Io(error)),
            Err(_) => {}
        }
    }
    Ok(facts)
}

/// The exact keyframes of `video`, from every block's header.
pub(crate) fn scan(
    source: &mut Source<'_>,
    video: &Stream,
    progress: &mut dyn FnMut(u64),
) -> Result<Keyframes, ScanError> {
    let broken = |_| ScanError::Broken {
        what: "the file's head cannot be read",
    };
    let mut segment = Segment::open(source).map_err(broken)?;
    segment.read_head(source).map_err(broken)?;
    segment.follow_seeks(source).map_err(broken)?;
    segment.scan(source, video.index, progress)
}

struct Segment {
    webm: bool,
    start: u64,
    /// Where the segment says it ends.
    end: Option<u64>,
    /// Nanoseconds of one timestamp unit.
    scale: u64,
    duration: Option<f64>,
    tracks: Vec<Track>,
    files: Vec<AttachedFile>,
    cues: Option<Vec<Cue>>,
    tags: BTreeMap<u64, TrackTags>,
    seeks: Vec<(u32, u64)>,
    done: Vec<u64>,
    first_cluster: Option<u64>,
}

/// What was seen of each track's blocks.
#[derive(Default)]
struct Seen {
    tracks: BTreeMap<u64, SeenTrack>,
}

#[derive(Default)]
struct SeenTrack {
    first: Option<i64>,
    /// The latest end of a block near the file's end, in timestamp units.
    end: Option<i64>,
    /// Keyframe times that were met on the way.
    keys: Vec<i64>,
}

impl Segment {
    fn open(source: &mut Source<'_>) -> Result<Self, FactsError> {
        let head = source.fetch(0, 4096)?;
        let ebml = ElementHeader::parse(head)
            .filter(|h| h.id == ids::EBML)
            .ok_or_else(|| broken("no EBML header"))?;
        let size = ebml
            .size
            .filter(|s| *s < 4096)
            .ok_or_else(|| broken("a damaged EBML header"))?;
        let body_end = ebml.len + size as usize;
        let body = head
            .get(ebml.len..body_end)
            .ok_or_else(|| broken("the file ends in its header"))?;
        let webm = Elements::new(body)
            .body(ids::DOC_TYPE)
            .is_some_and(|t| text(t, 16) == "webm");
        let mut at = body_end as u64;
        for _ in 0..16 {
            let header =
                ElementHeader::parse(source.fetch(at, HEADER_MAX)?).ok_or_else(|| broken("no segment"))?;
            let body = at + header.len as u64;
            if header.id == ids::SEGMENT {
                return Ok(Self {
                    webm,
                    start: body,
                    end: header.size.and_then(|s| body.checked_add(s)),
                    scale: 1_000_000,
                    duration: None,
                    tracks: Vec::new(),
                    files: Vec::new(),
                    cues: None,
                    tags: BTreeMap::new(),
                    seeks: Vec::new(),
                    done: Vec::new(),
                    first_cluster: None,
                });
            }
            at = header
                .size
                .and_then(|s| body.checked_add(s))
                .ok_or_else(|| broken("no segment"))?;
        }
        Err(broken("no segment"))
    }

    /// Where reading has to stop.
    fn limit(&self, source: &Source<'_>) -> u64 {
        self.end.unwrap_or(u64::MAX).min(source.len())
    }

    /// Reads the elements in front of the first cluster.
    fn read_head(&mut self, source: &mut Source<'_>) -> Result<(), FactsError> {
        let mut at = self.start;
        for _ in 0..MAX_ELEMENTS {
            if at >= self.limit(source) {
                return Ok(());
            }
            let Some(header) = ElementHeader::parse(source.fetch(at, HEADER_MAX)?) else {
                return Ok(());
            };
            if header.id == ids::CLUSTER {
                self.first_cluster = Some(at);
                return Ok(());
            }
            let Some(end) = header
                .size
                .and_then(|size| size.checked_add(at + header.len as u64))
            else {
                return Ok(());
            };
            self.read_element(source, at)?;
            at = end;
        }
        Ok(())
    }

    /// Reads what the seek index names and the head did not hold.
    fn follow_seeks(&mut self, source: &mut Source<'_>) -> Result<(), FactsError> {
        // An index may name a second index, which may name the rest.
        let mut index = 0;
        while let Some(&(id, position)) = self.seeks.get(index) {
            index += 1;
            let Some(at) = self.start.checked_add(position) else {
                continue;
            };
            if index > 64 || at >= self.limit(source) {
                continue;
            }
            if id == ids::CLUSTER {
                self.first_cluster = self.first_cluster.or(Some(at));
            } else if id != ids::CHAPTERS {
                match self.read_element(source, at) {
                    // An index that is too large to read is one that is not there.
                    Err(FactsError::Budget) => {}
                    other => other?,
                }
            }
        }
        Ok(())
    }

    /// Reads the element at `at`, once.
    fn read_element(&mut self, source: &mut Source<'_>, at: u64) -> Result<(), FactsError> {
        if self.done.contains(&at) {
            return Ok(());
        }
        self.done.push(at);
        let Some(header) = ElementHeader::parse(source.fetch(at, HEADER_MAX)?) else {
            return Ok(());
        };
        let Some(size) = header.size else {
            return Ok(());
        };
        let body = at + header.len as u64;
        if header.id == ids::ATTACHMENTS {
            return files::read(source, body, size, &mut self.files);
        }
        if !matches!(
            header.id,
            ids::INFO | ids::TRACKS | ids::SEEK_HEAD | ids::CUES | ids::TAGS
        ) {
            return Ok(());
        }
        let bytes = source.fetch(body, size)?;
        let cut = (bytes.len() as u64) < size;
        match header.id {
            ids::INFO => {
                let info = Elements::new(bytes);
                self.scale = info.body(ids::TIMESTAMP_SCALE).map_or(1_000_000, uint).max(1);
                self.duration = info.body(ids::DURATION).and_then(float).filter(|d| *d > 0.0);
            }
            ids::TRACKS if self.tracks.is_empty() => {
                self.tracks = Elements::new(bytes)
                    .filter(|(id, _)| *id == ids::TRACK_ENTRY)
                    .filter_map(|(_, body)| Track::parse(body))
                    .take(MAX_TRACKS)
                    .collect();
            }
            ids::SEEK_HEAD => self.seeks.extend(SeekHead::parse(bytes)),
            ids::CUES if !cut && self.cues.is_none() => self.cues = Some(index::cues(bytes)),
            ids::TAGS if !cut => self.tags.extend(index::tags(bytes)),
            _ => {}
        }
        Ok(())
    }

    /// Meets the first block of every track, as far as they lie near the start.
    fn look_at_first_blocks(&mut self, source: &mut Source<'_>, seen: &mut Seen) -> Result<(), FactsError> {
        let Some(first) = self.first_cluster else {
            return Ok(());
        };
        let limit = self.limit(source);
        let mut walker = Walker::new(first, limit, Source::LEAST);
        while walker.position().saturating_sub(first) < HEAD_BLOCKS {
            let Some(block) = walker.next(source)? else {
                break;
            };
            let entry = seen.tracks.entry(block.track).or_default();
            if block.key && entry.keys.len() < 64 {
                entry.keys.push(block.time);
            }
            if entry.first.is_none() {
                entry.first = Some(block.time);
                let data = source.fetch(block.data, block.size.min(FIRST_DATA))?;
                if let Some(track) = self.tracks.iter_mut().find(|t| t.number == block.track) {
                    track.see_first_block(data);
                }
            }
            let all = if walker.position().saturating_sub(first) < HEAD_NEAR {
                self.tracks.iter().all(|t| seen.tracks.contains_key(&t.number))
            } else {
                self.sounds_and_films()
                    .all(|t| seen.tracks.contains_key(&t.number))
            };
            if all {
                break;
            }
        }
        Ok(())
    }

    /// Finds where every track ends, from the last cluster that the cues name.
    fn look_at_last_blocks(&self, source: &mut Source<'_>, seen: &mut Seen) -> Result<(), FactsError> {
        let limit = self.limit(source);
        let last = self
            .cues
            .iter()
            .flatten()
            .filter_map(|cue| self.start.checked_add(cue.cluster))
            .filter(|at| *at < limit)
            .max();
        let mut next = match last {
            Some(at) => Some(at),
            None => self.find_last_cluster(source, limit)?,
        };
        // The last cluster may hold no block of some track, as where the file is cut.
        for _ in 0..LAST_CLUSTERS {
            let Some(at) = next.filter(|at| limit - at <= TAIL_BLOCKS) else {
                return Ok(());
            };
            self.look_at_blocks_from(at, source, seen)?;
            let all = self.sounds_and_films().all(|track| {
                let seen = seen.tracks.get(&track.number);
                seen.is_none_or(|s| s.first.is_none() || s.end.is_some())
            });
            if all {
                return Ok(());
            }
            next = self.find_last_cluster(source, at)?;
        }
        Ok(())
    }

    fn look_at_blocks_from(
        &self,
        at: u64,
        source: &mut Source<'_>,
        seen: &mut Seen,
    ) -> Result<(), FactsError> {
        let mut walker = Walker::new(at, self.limit(source), TAIL_STEP);
        loop {
            match walker.next(source) {
                Ok(Some(block)) => {
                    let length = self.length(&block);
                    let entry = seen.tracks.entry(block.track).or_default();
                    let end = block.time.saturating_add(length);
                    entry.end = Some(entry.end.map_or(end, |e| e.max(end)));
                    if block.key && entry.keys.len() < 256 {
                        entry.keys.push(block.time);
                    }
                }
                // Ends are worth a look, not a failure.
                Ok(None) | Err(ReadError::Budget) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The last cluster before `before`: its id, followed by an element that clusters begin with.
    fn find_last_cluster(&self, source: &mut Source<'_>, before: u64) -> Result<Option<u64>, FactsError> {
        let Some(first) = self.first_cluster else {
            return Ok(None);
        };
        let limit = self.limit(source);
        let mut end = before.min(limit);
        while end > first && limit - end < TAIL_BLOCKS {
            let from = end.saturating_sub(TAIL_STEP).max(first);
            // An id that the border of two steps cuts is found with the earlier one.
            let bytes = source.fetch_ahead(from, (end - from + HEADER_MAX).min(limit - from), TAIL_STEP)?;
            let places = &bytes[..bytes.len().min((end - from) as usize + 3)];
            let found = places.windows(4).rposition(|w| w == ids::CLUSTER.to_be_bytes());
            if let Some(at) = found
                && let Some(header) = ElementHeader::parse(&bytes[at..])
                && matches!(bytes.get(at + header.len), Some(0xe7 | 0xec | 0xbf))
            {
                return Ok(Some(from + at as u64));
            }
            end = from;
        }
        Ok(None)
    }

    /// A block's length in timestamp units, zero where not known.
    fn length(&self, block: &Block) -> i64 {
        let stated = block.duration.and_then(|d| i64::try_from(d).ok());
        stated.unwrap_or_else(|| {
            let frame = self
                .tracks
                .iter()
                .find(|t| t.number == block.track)
                .and_then(|t| t.frame)
                .unwrap_or(0)
                .saturating_mul(block.frames);
            i64::try_from((frame.saturating_add(self.scale / 2)) / self.scale).unwrap_or(0)
        })
    }

    fn sounds_and_films(&self) -> impl Iterator<Item = &Track> {
        self.tracks
            .iter()
            .filter(|t| matches!(t.kind, StreamKind::Audio(_) | StreamKind::Video(_)))
    }

    fn ticks(&self, time: i64) -> Ticks {
        let nanos = i128::from(time) * i128::from(self.scale);
        Ticks::from_timescale(i64::try_from(nanos).unwrap_or(i64::MAX), 1_000_000_000)
    }

    /// A track's delay in timestamp units, as FFmpeg subtracts it from every timestamp.
    fn delay(&self, track: &Track) -> i64 {
        i64::try_from((track.delay + self.scale / 2) / self.scale).unwrap_or(0)
    }

    fn facts(&self, size: u64, seen: &Seen) -> Facts {
        let mut gaps = Vec::new();
        if let Some(expected) = self.end.filter(|end| *end > size) {
            gaps.push(Gap::Truncated { expected });
        }
        let mut streams: Vec<Stream> = Vec::with_capacity(self.tracks.len() + self.files.len());
        for track in &self.tracks {
            let index = streams.len() as u32;
            if !track.configured {
                gaps.push(Gap::CodecConfig { index });
            }
            streams.push(self.stream(index, track, seen));
        }
        mark_stills(&mut streams);
        for file in &self.files {
            streams.push(file.stream(streams.len() as u32));
        }
        // The segment's duration counts from zero, wherever its first block lies.
        let lead = earliest(&streams).max(Ticks::ZERO);
        let duration = self
            .duration
            .map(|d| Ticks::from_secs_f64(d * self.scale as f64 / 1e9) - lead)
            .filter(|d| *d > Ticks::ZERO)
            // A recording whose writer never came back to fill it in ends where its blocks do.
            .or_else(|| span(&streams).filter(|d| *d > Ticks::ZERO));
        if duration.is_none() {
            gaps.push(Gap::Duration);
        }
        let mut facts = Facts {
            container: if self.webm {
                Container::Webm
            } else {
                Container::Matroska
            },
            size,
            duration,
            start: earliest(&streams),
            streams,
            keyframes: None,
            source: FactsSource::Native,
            gaps,
        };
        if let Some(index) = facts.main_video().map(|s| s.index) {
            match self.keyframes(index, seen) {
                Ok(keyframes) => facts.keyframes = Some(keyframes),
                Err(reason) => facts.gaps.push(Gap::Keyframes {
                    reason: reason.into(),
                }),
            }
        }
        facts
    }

    fn stream(&self, index: u32, track: &Track, seen: &Seen) -> Stream {
        let mut stream = Stream {
            index,
            codec: track.codec.clone(),
            codec_string: track.codec_string.clone(),
            language: track.language.clone(),
            title: track.title.clone(),
            default: track.default,
            forced: track.forced,
            start: None,
            duration: None,
            bit_rate: track.bit_rate,
            kind: track.kind.clone(),
        };
        let seen = seen.tracks.get(&track.number);
        let tags = self.tags.get(&track.uid);
        if let Some(first) = seen.and_then(|s| s.first) {
            stream.start = Some(self.ticks(first.saturating_sub(self.delay(track))));
        }
        // The last blocks tell the end; where they were not seen, the writer's statistics do.
        let end = seen
            .and_then(|s| s.end)
            .map(|end| self.ticks(end.saturating_sub(self.delay(track))))
            .or_else(|| tags.and_then(|t| t.duration));
        if let (Some(start), Some(end)) = (stream.start, end)
            && end > start
        {
            stream.duration = Some(end - start);
        }
        stream.bit_rate = stream.bit_rate.or_else(|| tags.and_then(|t| t.bit_rate));
        stream
    }

    /// The keyframes that the cues list, where nothing speaks against their being all.
    fn keyframes(&self, index: u32, seen: &Seen) -> Result<Keyframes, &'static str> {
        let Some(track) = self.tracks.get(index as usize) else {
            return Err("the film is not a track");
        };
        let cues = self.cues.as_ref().ok_or("the file has no cues")?;
        let mut units: Vec<i64> = cues
            .iter()
            .filter(|cue| cue.track == track.number)
            .filter_map(|cue| i64::try_from(cue.time).ok())
            .collect();
        units.sort_unstable();
        units.dedup();
        if units.is_empty() {
            return Err("the cues list no keyframe of the film");
        }
        let met = seen.tracks.get(&track.number);
        let missing = |time: &i64| units.binary_search(time).is_err();
        if met.is_some_and(|s| s.keys.iter().any(missing)) {
            return Err("the cues do not list every keyframe");
        }
        let delay = self.delay(track);
        let mut times: Vec<Ticks> = units.iter().map(|t| self.ticks(t - delay)).collect();
        times.dedup();
        Ok(Keyframes { stream: index, times })
    }

    fn scan(
        &self,
        source: &mut Source<'_>,
        index: u32,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Keyframes, ScanError> {
        let track = self.tracks.get(index as usize).ok_or(ScanError::NoVideo)?;
        let first = self
            .first_cluster
            .ok_or(ScanError::Broken { what: "no cluster" })?;
        let delay = self.delay(track);
        let mut walker = Walker::new(first, self.limit(source), SCAN_STEP);
        let mut times = Vec::new();
        let mut told = 0;
        while let Some(block) = walker.next(source)? {
            if block.track == track.number && block.key {
                if times.len() >= index::MAX_CUES {
                    return Err(ScanError::Broken {
                        what: "more keyframes than any film has",
                    });
                }
                times.push(self.ticks(block.time.saturating_sub(delay)));
            }
            if walker.position() - told > 4 << 20 {
                told = walker.position();
                progress(told);
            }
        }
        if walker.broken {
            return Err(ScanError::Broken {
                what: "damage between two blocks",
            });
        }
        progress(walker.position().min(self.limit(source)));
        times.sort_unstable();
        times.dedup();
        Ok(Keyframes { stream: index, times })
    }
}
