//! Reads the fragmented MP4 that FFmpeg writes to its pipe: the tracks once, then fragments of samples whose
//! bytes the caller takes in order, without any of them being held here.
//!
//! A pipe is read front to back, so a fragment's table always precedes its bytes. Decode times are signed:
//! encoder priming puts the first sound before zero, which the muxer writes as a huge unsigned number.

use std::io::{self, Read, Write};

use crate::boxes::{be32, be64, boxes, find};

/// Largest table (`moov`, `moof`) that is read into memory.
const MAX_TABLE: u64 = 8 << 20;
/// Most samples in one run of a fragment, which holds about a tenth of a second.
const MAX_SAMPLES: u32 = 1 << 16;
/// Bytes that are read from the pipe at once.
const BUFFER: usize = 256 << 10;

/// What stands in the pipe next.
#[derive(Debug)]
pub(crate) enum Event {
    /// The tracks. Comes once, before any fragment.
    Tracks(Vec<PipeTrack>),
    /// Samples in the order of their bytes; the caller takes the bytes of all of them before the next event.
    Fragment(Vec<Sample>),
    /// The pipe was closed between two boxes.
    End,
}

/// One track as FFmpeg describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PipeTrack {
    pub(crate) id: u32,
    pub(crate) handler: [u8; 4],
    pub(crate) timescale: u32,
    /// The one sample entry: its type and its body.
    pub(crate) entry_kind: [u8; 4],
    pub(crate) entry: Vec<u8>,
    defaults: Defaults,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Defaults {
    duration: u32,
    size: u32,
    flags: u32,
}

/// One sample; times in units of its track's timescale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Position of the track in [`Event::Tracks`].
    pub(crate) track: usize,
    pub(crate) dts: i64,
    pub(crate) pts: i64,
    pub(crate) duration: u32,
    pub(crate) key: bool,
    pub(crate) size: u32,
    offset: u64,
}

/// Why the pipe cannot be read on.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PipeError {
    #[error("the encoder's pipe failed")]
    Io(#[from] io::Error),
    #[error("the encoder's output is not understood: {0}")]
    Malformed(&'static str),
}

/// The reading end.
pub(crate) struct PipeReader<R> {
    source: R,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    tracks: Vec<PipeTrack>,
    /// Bytes of the announced samples that were not taken yet, and of what follows them in their box.
    pending: u64,
    /// Samples announced by a `moof` whose `mdat` was not reached yet.
    announced: Option<(u64, Vec<Sample>)>,
}

impl<R: Read> PipeReader<R> {
    pub(crate) fn new(source: R) -> Self {
        let buffer = vec![0; BUFFER].into_boxed_slice();
        Self {
            source,
            buffer,
            start: 0,
            end: 0,
            tracks: Vec::new(),
            pending: 0,
            announced: None,
        }
    }

    /// The next event. Blocks until FFmpeg has written it.
    pub(crate) fn next(&mut self) -> Result<Event, PipeError> {
        self.skip_pending()?;
        loop {
            let Some((kind, header, size)) = self.box_header()? else {
                return Ok(Event::End);
            };
            let body = size - header;
            match &kind {
                b"moov" => {
                    let table = self.table(body)?;
                    self.tracks = read_tracks(&table)?;
                    return Ok(Event::Tracks(self.tracks.clone()));
                }
                b"moof" => {
                    let table = self.table(body)?;
                    self.announced = Some((size, read_fragment(&table, &self.tracks)?));
                }
                b"mdat" => match self.announced.take() {
                    Some((moof, samples)) => {
                        self.pending = body;
                        check_layout(&samples, moof + header, body)?;
                        return Ok(Event::Fragment(samples));
                    }
                    None => self.skip(body)?,
                },
                _ => self.skip(body)?,
            }
        }
    }

    /// Moves the next `count` bytes of the fragment to `sink`.
    pub(crate) fn copy_to(&mut self, count: u64, sink: &mut dyn Write) -> Result<(), PipeError> {
        self.pending = self
            .pending
            .checked_sub(count)
            .ok_or(PipeError::Malformed("a sample past its box"))?;
        let mut left = count;
        while left > 0 {
            let available = self.fill()?;
            let take = usize::try_from(left).map_or(available, |left| left.min(available));
            sink.write_all(&self.buffer[self.start..self.start + take])?;
            self.start += take;
            left -= take as u64;
        }
        Ok(())
    }

    fn skip_pending(&mut self) -> Result<(), PipeError> {
        let left = std::mem::take(&mut self.pending);
        self.skip(left)
    }

    fn skip(&mut self, count: u64) -> Result<(), PipeError> {
        self.pending = count;
        self.copy_to(count, &mut io::sink())
    }

    /// Makes at least one byte available and says how many there are.
    fn fill(&mut self) -> Result<usize, PipeError> {
        if self.start == self.end {
            (self.start, self.end) = (0, self.read_more(0)?);
            if self.end == 0 {
                return Err(PipeError::Malformed("the output ends inside a box"));
            }
        }
        Ok(self.end - self.start)
    }

    fn read_more(&mut self, at: usize) -> Result<usize, PipeError> {
        loop {
            match self.source.read(&mut self.buffer[at..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                other => return Ok(other?),
            }
        }
    }

    /// Type, header length and whole length of the next box; `None` where the pipe ends before it.
    fn box_header(&mut self) -> Result<Option<([u8; 4], u64, u64)>, PipeError> {
        if !self.ensure(8)? {
            return Ok(None);
        }
        let head = &self.buffer[self.start..self.end];
        let kind = [head[4], head[5], head[6], head[7]];
        let short = be32(head, 0).unwrap_or(0);
        let (header, size) = if short == 1 {
            if !self.ensure(16)? {
                return Err(PipeError::Malformed("the output ends inside a box header"));
            }
            (16, be64(&self.buffer[self.start..self.end], 8).unwrap_or(0))
        } else {
            (8, u64::from(short))
        };
        if size < header {
            return Err(PipeError::Malformed("a box shorter than its header"));
        }
        self.start += header as usize;
        Ok(Some((kind, header, size)))
    }

    /// Whether `count` bytes are in the buffer, reading until they are; false only at a clean end.
    fn ensure(&mut self, count: usize) -> Result<bool, PipeError> {
        if self.start > 0 && self.buffer.len() - self.start < count {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        while self.end - self.start < count {
            if self.start == self.end {
                (self.start, self.end) = (0, 0);
            }
            let read = self.read_more(self.end)?;
            if read == 0 {
                return match self.end - self.start {
                    0 => Ok(false),
                    _ => Err(PipeError::Malformed("the output ends inside a box header")),
                };
            }
            self.end += read;
        }
        Ok(true)
    }

    fn table(&mut self, size: u64) -> Result<Vec<u8>, PipeError> {
        if size > MAX_TABLE {
            return Err(PipeError::Malformed("a table larger than 8 MiB"));
        }
        let mut table = Vec::with_capacity(size as usize);
        self.pending = size;
        self.copy_to(size, &mut table)?;
        Ok(table)
    }
}

fn check_layout(samples: &[Sample], first: u64, body: u64) -> Result<(), PipeError> {
    let mut expected = first;
    for sample in samples {
        if sample.offset != expected {
            return Err(PipeError::Malformed("samples that do not follow each other"));
        }
        expected += u64::from(sample.size);
    }
    if expected > first + body {
        return Err(PipeError::Malformed("samples past their box"));
    }
    Ok(())
}

fn read_tracks(moov: &[u8]) -> Result<Vec<PipeTrack>, PipeError> {
    let mut tracks = Vec::new();
    for trak in boxes(moov).filter(|b| &b.kind == b"trak") {
        tracks.push(read_track(trak.body).ok_or(PipeError::Malformed("a track without its description"))?);
    }
    if let Some(mvex) = find(moov, b"mvex") {
        for trex in boxes(mvex).filter(|b| &b.kind == b"trex") {
            let field = |at| be32(trex.body, at).unwrap_or(0);
            if let Some(track) = tracks.iter_mut().find(|t| t.id == field(4)) {
                track.defaults = Defaults {
                    duration: field(12),
                    size: field(16),
                    flags: field(20),
                };
            }
        }
    }
    Ok(tracks)
}

fn read_track(trak: &[u8]) -> Option<PipeTrack> {
    let tkhd = find(trak, b"tkhd")?;
    let id = be32(tkhd, if tkhd.first() == Some(&1) { 20 } else { 12 })?;
    let mdia = find(trak, b"mdia")?;
    let mdhd = find(mdia, b"mdhd")?;
    let timescale = be32(mdhd, if mdhd.first() == Some(&1) { 20 } else { 12 })?;
    let handler = find(mdia, b"hdlr")?.get(8..12)?.try_into().ok()?;
    let stsd = find(find(find(mdia, b"minf")?, b"stbl")?, b"stsd")?;
    let entry = boxes(stsd.get(8..)?).next()?;
    (timescale > 0).then(|| PipeTrack {
        id,
        handler,
        timescale,
        entry_kind: entry.kind,
        entry: entry.body.to_vec(),
        defaults: Defaults::default(),
    })
}

fn read_fragment(moof: &[u8], tracks: &[PipeTrack]) -> Result<Vec<Sample>, PipeError> {
    let mut samples = Vec::new();
    for traf in boxes(moof).filter(|b| &b.kind == b"traf") {
        read_track_fragment(traf.body, tracks, &mut samples)
            .ok_or(PipeError::Malformed("a fragment without its tables"))?;
    }
    samples.sort_by_key(|s| s.offset);
    Ok(samples)
}

fn read_track_fragment(traf: &[u8], tracks: &[PipeTrack], samples: &mut Vec<Sample>) -> Option<()> {
    let tfhd = find(traf, b"tfhd")?;
    let flags = be32(tfhd, 0)? & 0x00ff_ffff;
    let id = be32(tfhd, 4)?;
    let track = tracks.iter().position(|t| t.id == id)?;
    let mut defaults = tracks[track].defaults;
    let mut at = 8;
    // An absolute base offset means nothing in a pipe; the layout check refuses what relied on it.
    at += if flags & 0x1 != 0 { 8 } else { 0 };
    at += if flags & 0x2 != 0 { 4 } else { 0 };
    for (bit, field) in [
        (0x08, &mut defaults.duration),
        (0x10, &mut defaults.size),
        (0x20, &mut defaults.flags),
    ] {
        if flags & bit != 0 {
            *field = be32(tfhd, at)?;
            at += 4;
        }
    }
    let tfdt = find(traf, b"tfdt")?;
    let mut dts = match tfdt.first()? {
        0 => i64::from(be32(tfdt, 4)? as i32),
        _ => be64(tfdt, 4)? as i64,
    };
    for trun in boxes(traf).filter(|b| &b.kind == b"trun") {
        dts = read_run(trun.body, track, dts, defaults, samples)?;
    }
    Some(())
}

fn read_run(
    trun: &[u8],
    track: usize,
    mut dts: i64,
    defaults: Defaults,
    samples: &mut Vec<Sample>,
) -> Option<i64> {
    let word = be32(trun, 0)?;
    let (version, flags) = (word >> 24, word & 0x00ff_ffff);
    let count = be32(trun, 4)?;
    if count > MAX_SAMPLES {
        return None;
    }
    let mut at = 8;
    let mut next = |present: bool| -> Option<Option<u32>> {
        if !present {
            return Some(None);
        }
        let value = be32(trun, at)?;
        at += 4;
        Some(Some(value))
    };
    let mut offset = u64::from(next(flags & 0x1 != 0)??);
    let first_flags = next(flags & 0x4 != 0)?;
    for n in 0..count {
        let duration = next(flags & 0x100 != 0)?.unwrap_or(defaults.duration);
        let size = next(flags & 0x200 != 0)?.unwrap_or(defaults.size);
        let own = next(flags & 0x400 != 0)?;
        let composition = next(flags & 0x800 != 0)?.unwrap_or(0);
        let composition = if version == 0 {
            i64::from(composition)
        } else {
            i64::from(composition as i32)
        };
        let sample_flags = own.or(first_flags.filter(|_| n == 0)).unwrap_or(defaults.flags);
        let key = sample_flags & 0x0001_0000 == 0;
        let pts = dts.wrapping_add(composition);
        samples.push(Sample {
            track,
            dts,
            pts,
            duration,
            key,
            size,
            offset,
        });
        dts = dts.wrapping_add(i64::from(duration));
        offset += u64::from(size);
    }
    Some(dts)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::boxes::BoxWriter;

    /// A stream of one video track: a `moov`, then a fragment of `samples` samples of three bytes.
    fn stream(samples: u32) -> Vec<u8> {
        let mut w = BoxWriter::default();
        w.nested(b"moov", |w| {
            w.nested(b"trak", |w| {
                w.full(b"tkhd", 0, 7, |w| {
                    w.zeros(8);
                    w.u32(1);
                });
                w.nested(b"mdia", |w| {
                    w.full(b"mdhd", 0, 0, |w| {
                        w.zeros(8);
                        w.u32(90_000);
                    });
                    w.full(b"hdlr", 0, 0, |w| {
                        w.u32(0);
                        w.raw(b"vide");
                    });
                    w.nested(b"minf", |w| {
                        w.nested(b"stbl", |w| {
                            w.full(b"stsd", 0, 0, |w| {
                                w.u32(1);
                                w.nested(b"avc1", |w| w.zeros(78));
                            });
                        });
                    });
                });
            });
        });
        let head = |offset: u32, w: &mut BoxWriter| {
            w.nested(b"moof", |w| {
                w.nested(b"traf", |w| {
                    w.full(b"tfhd", 0, 0x02_0000, |w| w.u32(1));
                    w.full(b"tfdt", 1, 0, |w| w.u64((-7_i64) as u64));
                    w.full(b"trun", 1, 0x301, |w| {
                        w.u32(samples);
                        w.u32(offset);
                        for _ in 0..samples {
                            w.u32(3_600);
                            w.u32(3);
                        }
                    });
                });
            });
        };
        let mut measured = BoxWriter::default();
        head(0, &mut measured);
        head(measured.bytes.len() as u32 + 8, &mut w);
        w.nested(b"mdat", |w| w.zeros(3 * samples as usize));
        w.bytes
    }

    fn drain(bytes: &[u8]) -> Result<usize, PipeError> {
        let mut reader = PipeReader::new(bytes);
        let mut count = 0;
        loop {
            match reader.next()? {
                Event::Tracks(_) => {}
                Event::Fragment(samples) => {
                    for sample in samples {
                        reader.copy_to(u64::from(sample.size), &mut io::sink())?;
                        count += 1;
                    }
                }
                Event::End => return Ok(count),
            }
        }
    }

    #[test]
    fn a_time_before_zero_is_read_as_one() {
        let bytes = stream(2);
        let mut reader = PipeReader::new(bytes.as_slice());
        assert!(matches!(reader.next().unwrap(), Event::Tracks(tracks) if tracks.len() == 1));
        let Event::Fragment(samples) = reader.next().unwrap() else {
            panic!("no fragment")
        };
        assert_eq!((samples[0].dts, samples[1].dts), (-7, 3_593));
        assert!(matches!(reader.next().unwrap(), Event::End));
    }

    #[test]
    fn an_end_inside_a_box_is_an_error_and_one_between_boxes_is_not() {
        let bytes = stream(4);
        assert_eq!(drain(&bytes).unwrap(), 4);
        for cut in 1..bytes.len() {
            let whole_moov = be32(&bytes, 0).unwrap() as usize;
            let clean = [
                whole_moov,
                whole_moov + be32(&bytes, whole_moov).unwrap() as usize,
            ]
            .contains(&cut);
            assert_eq!(drain(&bytes[..cut]).is_ok(), clean, "cut at {cut}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_or_loop(
            flips in proptest::collection::vec((0_usize..600, any::<u8>()), 0..12),
            samples in 0_u32..20,
        ) {
            let mut bytes = stream(samples);
            for (at, value) in flips {
                let len = bytes.len();
                bytes[at % len] = value;
            }
            let _ = drain(&bytes);
        }
    }
}
