//! MP4, MOV and 3GP, progressive and fragmented.
//!
//! Box headers lead to the index wherever it lies, so that a file with its index at the end costs two or three
//! requests. Streams get FFmpeg's indexes: one for each track and each cover picture, in file order.

mod boxes;
mod edits;
mod entry;
mod fragments;
pub(crate) mod track;

use boxes::{Boxes, Header, full};
use fragments::Fragments;
use track::Track;

use crate::bits::{be32, be64};
use crate::facts::{
    Codec, Container, Facts, FactsSource, Gap, Keyframes, Stream, StreamKind, VideoFacts, mark_stills,
};
use crate::reader::{FactsError, ReadError, ScanError, Source};
use crate::ticks::Ticks;
use crate::{sound, still};

/// Top-level boxes that are looked at before a film's fragments are given up.
const MAX_BOXES: usize = 100_000;
/// What one request for an index at the end brings: most are smaller.
const TAIL: u64 = 1 << 20;
/// What one request for a fragment's header brings.
const FRAGMENT: u64 = 8 << 10;
/// Bytes that hold any audio frame's header.
const FRAME: u64 = 4 << 10;
/// Streams beyond these are not looked at.
const MAX_STREAMS: usize = 256;

fn broken(what: &'static str) -> FactsError {
    FactsError::Broken {
        container: Container::Mp4,
        what,
    }
}

fn impossible_times() -> FactsError {
    FactsError::Times {
        container: Container::Mp4,
        what: "the index gives its samples times that do not fit the film's length",
    }
}

/// Reads the facts of a file whose first box has been recognised.
pub(crate) fn read(source: &mut Source<'_>) -> Result<Facts, FactsError> {
    let size = source.len();
    let (moov, after) = find_moov(source)?;
    let mut movie = Movie::parse(&moov)?;
    let mut gaps = Vec::new();
    if let Some(mvex) = Boxes::new(&moov).body(b"mvex") {
        let mut fragments = Fragments::new(mvex);
        for track in movie.tracks() {
            let end = track.timing().map_or(0, |t| t.duration);
            fragments.begin_at(track.id, end);
        }
        match read_fragments(source, after, &mut fragments) {
            Ok(expected) => gaps.extend(expected.map(|expected| Gap::Truncated { expected })),
            Err(ReadError::Budget) => movie.incomplete = true,
            Err(error) => return Err(error.into()),
        }
        movie.fragments = Some(fragments);
    } else if let Some(end) = movie.tracks().filter_map(Track::data_end).max()
        && end > size
    {
        gaps.push(Gap::Truncated { expected: end });
    }
    movie.look_at_first_frames(source)?;
    Ok(movie.facts(size, gaps))
}

/// The exact keyframes, whatever number of fragments has to be read.
pub(crate) fn scan(source: &mut Source<'_>, video: &Stream) -> Result<Keyframes, ScanError> {
    let facts = read(source).map_err(|error| match error {
        FactsError::Stopped => ScanError::Stopped,
        FactsError::Io(error) => ScanError::Io(error),
        _ => ScanError::Broken {
            what: "the index cannot be read",
        },
    })?;
    facts
        .keyframes
        .filter(|k| k.stream == video.index)
        .ok_or(ScanError::Unsupported)
}

/// The body of the `moov` box, and where the boxes behind it start.
fn find_moov(source: &mut Source<'_>) -> Result<(Vec<u8>, u64), FactsError> {
    let mut at = 0;
    let mut ahead = Source::LEAST;
    for _ in 0..MAX_BOXES {
        let Some(header) = Header::parse(source.fetch_ahead(at, 16, ahead)?) else {
            break;
        };
        let size = header.size.unwrap_or(source.len() - at);
        let end = at
            .checked_add(size)
            .ok_or_else(|| broken("a box larger than any file"))?;
        if &header.kind == b"moov" {
            let body = size - header.len as u64;
            if body > source.limits().index_bytes {
                return Err(FactsError::Budget);
            }
            let moov = source.fetch(at + header.len as u64, body)?.to_vec();
            if (moov.len() as u64) < body {
                return Err(broken("the file ends inside its index"));
            }
            return Ok((moov, end));
        }
        if end >= source.len() {
            break;
        }
        at = end;
        ahead = TAIL;
    }
    Err(broken(
        "no index: the recording was not finished, or the file is cut short",
    ))
}

/// Reads all fragments from `at` on. Returns the size that the file should have where it is cut short.
fn read_fragments(
    source: &mut Source<'_>,
    mut at: u64,
    fragments: &mut Fragments,
) -> Result<Option<u64>, ReadError> {
    for _ in 0..MAX_BOXES {
        let Some(header) = Header::parse(source.fetch_ahead(at, 16, FRAGMENT)?) else {
            return Ok(None);
        };
        let size = header.size.unwrap_or(source.len() - at);
        let Some(end) = at.checked_add(size) else {
            return Ok(None);
        };
        if &header.kind == b"moof" {
            let body = source.fetch_ahead(at + header.len as u64, size - header.len as u64, FRAGMENT)?;
            fragments.add(body);
        }
        if end > source.len() {
            return Ok(Some(end));
        }
        at = end;
    }
    Err(ReadError::Budget)
}

enum Part<'a> {
    Track(Box<Track<'a>>),
    /// A track that could not be read keeps its index.
    Unreadable,
    /// So does one that gives its samples times that no film has.
    Damaged,
    Cover(&'a [u8]),
}

struct Movie<'a> {
    parts: Vec<Part<'a>>,
    fragments: Option<Fragments>,
    fragment_duration: Option<Ticks>,
    /// Not all fragments were read.
    incomplete: bool,
}

impl<'a> Movie<'a> {
    fn parse(moov: &'a [u8]) -> Result<Self, FactsError> {
        let boxes = Boxes::new(moov);
        let timescale = boxes
            .body(b"mvhd")
            .and_then(full)
            .and_then(|(version, _, rest)| be32(rest, if version == 1 { 16 } else { 8 }))
            .filter(|t| *t > 0)
            .ok_or_else(|| broken("no movie header"))?;
        let length = boxes.body(b"mvhd").and_then(movie_length).unwrap_or(0);
        let mut parts = Vec::new();
        for (kind, body) in boxes.clone() {
            match &kind {
                b"trak" => parts.push(match Track::parse(body, timescale) {
                    Some(track) if track.has_impossible_times(length, timescale) => {
                        if matches!(track.entry.kind, StreamKind::Video(_)) {
                            return Err(impossible_times());
                        }
                        Part::Damaged
                    }
                    Some(track) => Part::Track(Box::new(track)),
                    None => Part::Unreadable,
                }),
                b"udta" => parts.extend(covers(body).into_iter().map(Part::Cover)),
                _ => {}
            }
        }
        parts.truncate(MAX_STREAMS);
        if !parts.iter().any(|p| matches!(p, Part::Track(_))) {
            let damaged = parts.iter().any(|p| matches!(p, Part::Damaged));
            return Err(if damaged {
                impossible_times()
            } else {
                broken("no track")
            });
        }
        let mehd = boxes
            .body(b"mvex")
            .and_then(|mvex| Boxes::new(mvex).body(b"mehd"));
        let fragment_duration = mehd.and_then(full).and_then(|(version, _, rest)| {
            let duration = if version == 1 {
                be64(rest, 0)?
            } else {
                u64::from(be32(rest, 0)?)
            };
            Some(Ticks::from_timescale(
                i64::try_from(duration).ok()?,
                u64::from(timescale),
            ))
        });
        Ok(Self {
            parts,
            fragments: None,
            fragment_duration,
            incomplete: false,
        })
    }

    /// Codecs without a configuration record say in their first frame what the sample entry may have wrong.
    fn look_at_first_frames(&mut self, source: &mut Source<'_>) -> Result<(), FactsError> {
        for part in &mut self.parts {
            let Part::Track(track) = part else {
                continue;
            };
            let open = match track.entry.codec {
                Codec::Mp3 | Codec::Dts => true,
                Codec::Ac3 | Codec::Eac3 => !track.entry.configured,
                _ => false,
            };
            let Some(at) = track.data_start().filter(|_| open) else {
                continue;
            };
            let frame = source.fetch_ahead(at, FRAME, FRAME)?;
            if let Some(found) = sound::from_frame(&track.entry.codec, frame)
                && let StreamKind::Audio(audio) = &mut track.entry.kind
            {
                found.lay_over(audio);
                track.entry.codec = found.codec.unwrap_or(track.entry.codec.clone());
                track.entry.codec_string = found.codec_string.or(track.entry.codec_string.take());
                track.entry.configured = true;
            }
        }
        Ok(())
    }

    fn tracks(&self) -> impl Iterator<Item = &Track<'a>> {
        self.parts.iter().filter_map(|part| match part {
            Part::Track(track) => Some(track.as_ref()),
            _ => None,
        })
    }

    fn facts(&self, size: u64, mut gaps: Vec<Gap>) -> Facts {
        let mut streams = Vec::with_capacity(self.parts.len());
        for (index, part) in self.parts.iter().enumerate() {
            let index = index as u32;
            let stream = match part {
                Part::Track(track) => {
                    if !track.entry.configured {
                        gaps.push(Gap::CodecConfig { index });
                    }
                    self.stream(index, track)
                }
                Part::Damaged => {
                    gaps.push(Gap::Times { index });
                    plain(index, Codec::Other("damaged".into()), StreamKind::Data)
                }
                Part::Unreadable => plain(index, Codec::Other("unknown".into()), StreamKind::Data),
                Part::Cover(data) => cover(index, data),
            };
            streams.push(stream);
        }
        mark_stills(&mut streams);
        let mut facts = Facts {
            container: Container::Mp4,
            size,
            duration: None,
            start: crate::facts::earliest(&streams),
            streams,
            keyframes: None,
            source: FactsSource::Native,
            gaps,
        };
        facts.duration = crate::facts::span(&facts.streams);
        if self.incomplete {
            facts.duration = self.fragment_duration;
        }
        if facts.duration.is_none_or(|d| d <= Ticks::ZERO) {
            facts.duration = None;
            facts.gaps.push(Gap::Duration);
        }
        if let Some(index) = facts.main_video().map(|s| s.index) {
            match self.keyframes(index) {
                Ok(times) => facts.keyframes = Some(Keyframes { stream: index, times }),
                Err(reason) => facts.gaps.push(Gap::Keyframes {
                    reason: reason.into(),
                }),
            }
        }
        facts
    }

    fn stream(&self, index: u32, track: &Track<'_>) -> Stream {
        let timescale = u64::from(track.timescale);
        let ticks = |value: i64| Ticks::from_timescale(value, timescale);
        let mut stream = plain(index, track.entry.codec.clone(), track.entry.kind.clone());
        stream.codec_string = track.entry.codec_string.clone();
        stream.language = track.language.clone();
        stream.title = track.title.clone();
        stream.default = track.enabled;
        let mut bytes = track.bytes();
        let mut frame_rate = track.frame_rate();
        if let Some(timing) = track.timing() {
            stream.start = Some(ticks(timing.start));
            stream.duration = Some(ticks(timing.duration));
        }
        if let Some(found) = self.fragments.as_ref().and_then(|f| f.track(track.id))
            && let (Some(first), Some(end)) = (found.first, found.end)
        {
            let shift = found.shift(&track.edits);
            let start = stream.start.unwrap_or_else(|| ticks(first.saturating_sub(shift)));
            stream.start = Some(start);
            stream.duration = Some(ticks(end.saturating_sub(shift)) - start).filter(|_| !self.incomplete);
            bytes = bytes.saturating_add(found.bytes);
            frame_rate = frame_rate.or(crate::picture::ratio(timescale, u64::from(found.step)));
        }
        stream.bit_rate = stream
            .duration
            .and_then(|d| bit_rate(bytes, d))
            .or(track.entry.bit_rate);
        if let StreamKind::Video(video) = &mut stream.kind {
            video.rotation = track.rotation;
            video.frame_rate = crate::picture::plausible(frame_rate).or(video.frame_rate);
            let chapters = self.tracks().any(|t| t.chapters.contains(&track.id));
            video.still = chapters || track.sample_count() == 1 && is_still_codec(&stream.codec);
        }
        stream
    }

    fn keyframes(&self, index: u32) -> Result<Vec<Ticks>, &'static str> {
        let Some(Part::Track(track)) = self.parts.get(index as usize) else {
            return Err("the film is not a track");
        };
        let mut times = if track.sample_count() > 0 {
            track.keyframes()?
        } else {
            Vec::new()
        };
        if let Some(fragments) = &self.fragments {
            if self.incomplete {
                return Err("too many fragments to read at once");
            }
            if let Some(found) = fragments.track(track.id) {
                if found.overflow {
                    return Err("more keyframes than any film has");
                }
                let shift = found.shift(&track.edits);
                times.extend(found.keyframes.iter().map(|t| t.saturating_sub(shift)));
            }
        }
        times.sort_unstable();
        let mut times: Vec<Ticks> = times
            .into_iter()
            .map(|t| Ticks::from_timescale(t, u64::from(track.timescale)))
            .collect();
        times.dedup();
        if times.is_empty() {
            return Err("the index marks no sample as a keyframe");
        }
        Ok(times)
    }
}

/// The length of the whole film in its own timescale, from a movie header.
fn movie_length(mvhd: &[u8]) -> Option<u64> {
    let (version, _, rest) = full(mvhd)?;
    match version {
        1 => be64(rest, 20).filter(|length| *length < u64::MAX),
        _ => be32(rest, 12).filter(|length| *length < u32::MAX).map(u64::from),
    }
}

fn is_still_codec(codec: &Codec) -> bool {
    matches!(codec, Codec::Other(name) if matches!(name.as_str(), "mjpeg" | "png" | "bmp" | "webp"))
}

fn bit_rate(bytes: u64, duration: Ticks) -> Option<u64> {
    let seconds = duration.as_secs_f64();
    (seconds > 0.0 && bytes > 0).then(|| (bytes as f64 * 8.0 / seconds) as u64)
}

fn plain(index: u32, codec: Codec, kind: StreamKind) -> Stream {
    Stream {
        index,
        codec,
        codec_string: None,
        language: None,
        title: None,
        default: false,
        forced: false,
        start: None,
        duration: None,
        bit_rate: None,
        kind,
    }
}

fn cover(index: u32, data: &[u8]) -> Stream {
    let (codec, size) = still::identify(data);
    let (width, height) = size.unwrap_or((0, 0));
    plain(
        index,
        codec,
        StreamKind::Video(VideoFacts {
            still: true,
            width,
            height,
            ..VideoFacts::default()
        }),
    )
}

/// Pictures in the metadata list, each with its data only.
fn covers(udta: &[u8]) -> Vec<&[u8]> {
    let Some(meta) = Boxes::new(udta).body(b"meta") else {
        return Vec::new();
    };
    // QuickTime writes a plain box, MP4 a full one.
    let list = Boxes::new(meta.get(4..).unwrap_or(&[]))
        .body(b"ilst")
        .or_else(|| Boxes::new(meta).body(b"ilst"));
    let Some(list) = list else {
        return Vec::new();
    };
    Boxes::new(list)
        .filter(|(kind, _)| kind == b"covr")
        .flat_map(|(_, covr)| Boxes::new(covr))
        .filter(|(kind, _)| kind == b"data")
        .filter_map(|(_, data)| data.get(8..))
        .filter(|data| still::identify(data).0 != Codec::Other("unknown".into()))
        .collect()
}
