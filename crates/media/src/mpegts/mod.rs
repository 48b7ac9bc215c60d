//! MPEG transport streams, M2TS included.
//!
//! There is no index: streams and starts come from the first megabytes, the end from the last ones, and
//! keyframes from reading it all ([`scan`]). Times wrap at 33 bits and are put on one line.

mod packets;
mod psi;
mod scan;

pub(crate) use packets::packet_size;
pub(crate) use scan::scan;

use packets::{Layout, Line, PesHeader};
use psi::{Elementary, Tables};

use crate::facts::{
    AudioFacts, Codec, Container, Facts, FactsSource, Gap, Rational, Stream, StreamKind, earliest, span,
};
use crate::picture::{Picture, plausible, ratio};
use crate::reader::{FactsError, ScanError, Source};
use crate::sound::{self, Sound};
use crate::ticks::Ticks;
use crate::{h264, hevc, mpeg2};

/// How far into the file streams are looked for (FFmpeg's own bound is the same).
const HEAD: u64 = 5 << 20;
/// The first look at the end of the file; it doubles until every stream's end is seen.
const TAIL: u64 = 512 << 10;
const TAIL_MAX: u64 = 16 << 20;
/// Bytes of one PES packet that are kept for its codec's headers.
const KEPT: usize = 256 << 10;
/// Times kept to tell the frame rate by.
const TIMES: usize = 48;

fn broken(what: &'static str) -> FactsError {
    FactsError::Broken {
        container: Container::MpegTs,
        what,
    }
}

/// Reads the facts of a file whose packets have been recognised.
pub(crate) fn read(source: &mut Source<'_>) -> Result<Facts, FactsError> {
    let layout = layout(source)?;
    let mut head = Head::default();
    let from = layout.align(0);
    let to = HEAD.min(source.len());
    packets::walk(source, layout, from, to, |_, packet| {
        head.take(packet);
        !head.done()
    })?;
    head.finish();
    if head.tables.streams.is_empty() {
        return Err(broken("no program map in the first megabytes"));
    }
    let mut ends = vec![None; head.streams.len()];
    if let Some(line) = head.line {
        read_ends(source, layout, &head, line, &mut ends)?;
    }
    let mut facts = head.facts(source.len(), &ends);
    if let Some(index) = facts.main_video().map(|s| s.index) {
        let small = source.len() <= source.limits().whole_scan;
        let video = facts.streams[index as usize].clone();
        match small.then(|| scan(source, &video, &mut |_| ())) {
            Some(Ok(found)) => facts.keyframes = Some(found),
            Some(Err(ScanError::Stopped)) => return Err(FactsError::Stopped),
            Some(Err(ScanError::Io(error))) => return Err(FactsError::Io(error)),
            Some(Err(error)) => facts.gaps.push(Gap::Keyframes {
                reason: error.to_string(),
            }),
            None => facts.gaps.push(Gap::Keyframes {
                reason: "transport streams have no index".into(),
            }),
        }
    }
    Ok(facts)
}

fn layout(source: &mut Source<'_>) -> Result<Layout, FactsError> {
    packet_size(source.fetch(0, 4096)?).ok_or_else(|| broken("no packets"))
}

/// What the start of the file shows.
#[derive(Default)]
struct Head {
    tables: Tables,
    streams: Vec<Es>,
    line: Option<Line>,
}

/// One elementary stream, as the start of the file shows it.
struct Es {
    info: Elementary,
    first: Option<i64>,
    times: Vec<i64>,
    pes: Vec<u8>,
    open: bool,
    picture: Option<Picture>,
    sound: Option<Sound>,
    codec: Option<Codec>,
    tried: bool,
}

impl Es {
    fn new(info: Elementary) -> Self {
        Self {
            info,
            first: None,
            times: Vec::new(),
            pes: Vec::new(),
            open: false,
            picture: None,
            sound: None,
            codec: None,
            tried: false,
        }
    }

    /// A stream that its table does not name and whose data was not looked at yet.
    fn nameless(&self) -> bool {
        matches!(self.info.kind, StreamKind::Data) && self.info.codec.as_str() == "unknown" && !self.tried
    }

    fn configured(&self) -> bool {
        match self.info.kind {
            StreamKind::Video(_) => {
                self.picture.is_some()
                    || !matches!(self.info.codec, Codec::H264 | Codec::Hevc | Codec::Mpeg2Video)
            }
            StreamKind::Audio(_) => self.sound.is_some() || !has_frame_headers(&self.info.codec),
            _ => true,
        }
    }

    /// The frame rate that the codec's headers state.
    fn stated_rate(&self) -> Option<Rational> {
        plausible(self.picture.as_ref()?.frame_rate)
    }

    fn done(&self) -> bool {
        match self.info.kind {
            StreamKind::Video(_) => {
                let rate = self.stated_rate().is_some();
                self.first.is_some() && self.configured() && (rate || self.times.len() >= TIMES)
            }
            StreamKind::Audio(_) => self.first.is_some() && self.configured(),
            _ => !self.nameless(),
        }
    }

    /// Looks into the PES packet collected so far.
    fn configure(&mut self) {
        let bytes = std::mem::take(&mut self.pes);
        if (self.configured() && !self.nameless()) || bytes.is_empty() {
            return;
        }
        match self.info.kind {
            StreamKind::Video(_) => match self.info.codec {
                Codec::H264 => self.picture = h264::from_stream(&bytes),
                Codec::Hevc => self.picture = hevc::from_stream(&bytes),
                Codec::Mpeg2Video => {
                    if let Some(found) = mpeg2::from_stream(&bytes) {
                        if !found.is_mpeg2 {
                            self.codec = Some(Codec::Other("mpeg1video".into()));
                        }
                        self.picture = Some(found.picture);
                    }
                }
                _ => {}
            },
            StreamKind::Audio(_) => {
                self.sound = (0..bytes.len().min(8192))
                    .find_map(|at| sound::from_frame(&self.info.codec, &bytes[at..]));
                self.codec = self.sound.as_ref().and_then(|s| s.codec.clone());
            }
            StreamKind::Data => {
                self.tried = true;
                if let Some((codec, sound)) = sound::guess(&bytes) {
                    self.info.codec = codec;
                    self.info.kind = StreamKind::Audio(AudioFacts::default());
                    self.sound = Some(sound);
                }
            }
            _ => {}
        }
    }
}

fn has_frame_headers(codec: &Codec) -> bool {
    matches!(
        codec,
        Codec::Aac | Codec::Ac3 | Codec::Eac3 | Codec::Mp3 | Codec::Dts
    )
}

impl Head {
    fn done(&self) -> bool {
        self.tables.complete() && self.streams.iter().all(Es::done)
    }

    fn take(&mut self, packet: &packets::Packet<'_>) {
        self.tables.take(packet.pid, packet.starts, packet.payload);
        for info in self.tables.streams.iter().skip(self.streams.len()) {
            self.streams.push(Es::new(info.clone()));
        }
        let line = &mut self.line;
        for es in self.streams.iter_mut().filter(|es| es.info.pid == packet.pid) {
            if packet.starts {
                es.configure();
                es.open = true;
                let Some(header) = PesHeader::parse(packet.payload) else {
                    es.open = false;
                    continue;
                };
                if let Some(pts) = header.pts {
                    let line = line.get_or_insert_with(|| Line::from_first(header.dts.unwrap_or(pts)));
                    let time = line.place(pts);
                    es.first = es.first.or(Some(time));
                    if es.times.len() < TIMES {
                        es.times.push(time);
                    }
                }
                let payload = packet.payload.get(header.payload_at..).unwrap_or(&[]);
                es.pes.extend_from_slice(payload);
            } else if es.open && es.pes.len() < KEPT && (!es.configured() || es.nameless()) {
                es.pes.extend_from_slice(packet.payload);
            }
        }
    }

    fn finish(&mut self) {
        for es in &mut self.streams {
            es.configure();
        }
    }

    fn facts(&self, size: u64, ends: &[Option<i64>]) -> Facts {
        let mut gaps = Vec::new();
        let mut streams = Vec::with_capacity(self.streams.len());
        for (index, es) in self.streams.iter().enumerate() {
            if !es.configured() {
                gaps.push(Gap::CodecConfig { index: index as u32 });
            }
            streams.push(stream(index as u32, es, ends[index]));
        }
        let duration = span(&streams).filter(|d| *d > Ticks::ZERO);
        if duration.is_none() {
            gaps.push(Gap::Duration);
        }
        Facts {
            container: Container::MpegTs,
            size,
            duration,
            start: earliest(&streams),
            streams,
            keyframes: None,
            source: FactsSource::Native,
            gaps,
        }
    }
}

fn stream(index: u32, es: &Es, end: Option<i64>) -> Stream {
    let mut kind = es.info.kind.clone();
    let mut codec_string = None;
    let mut bit_rate = None;
    match &mut kind {
        StreamKind::Video(video) => {
            if let Some(picture) = &es.picture {
                picture.lay_over(video);
                codec_string = picture.codec_string.clone();
            }
            video.frame_rate = video.frame_rate.or(rate(es));
        }
        StreamKind::Audio(audio) => {
            if let Some(found) = &es.sound {
                found.lay_over(audio);
                codec_string = found.codec_string.clone();
                bit_rate = found.bit_rate;
            }
        }
        _ => {}
    }
    Stream {
        index,
        codec: es.codec.clone().unwrap_or_else(|| es.info.codec.clone()),
        codec_string,
        language: es.info.language.clone(),
        title: None,
        default: false,
        forced: false,
        start: es.first.map(Ticks),
        duration: es
            .first
            .zip(end)
            .filter(|(first, end)| end > first)
            .map(|(first, end)| Ticks(end - first)),
        bit_rate,
        kind,
    }
}

/// The frame rate that the distances of presentation times show.
fn rate(es: &Es) -> Option<Rational> {
    let step = step(es)?;
    // Times are rounded to the clock: the broadcast rates are meant where they are this near.
    const KNOWN: [(u64, u64); 9] = [
        (24_000, 1_001),
        (24, 1),
        (25, 1),
        (30_000, 1_001),
        (30, 1),
        (48, 1),
        (50, 1),
        (60_000, 1_001),
        (60, 1),
    ];
    KNOWN
        .into_iter()
        .find(|(num, den)| (90_000.0 * *den as f64 / *num as f64 - step).abs() < 0.75)
        .map_or_else(
            || ratio(90_000, step.round() as u64),
            |(num, den)| ratio(num, den),
        )
}

/// The usual distance of two presentation times: the median, so that neither loss nor jitter decides.
fn step(es: &Es) -> Option<f64> {
    let mut times = es.times.clone();
    times.sort_unstable();
    times.dedup();
    let mut steps: Vec<i64> = times.windows(2).map(|w| w[1] - w[0]).filter(|s| *s > 1).collect();
    if steps.len() < 3 {
        return None;
    }
    steps.sort_unstable();
    let middle = steps[steps.len() / 2];
    let near: Vec<i64> = steps.into_iter().filter(|s| (s - middle).abs() <= 2).collect();
    Some(near.iter().sum::<i64>() as f64 / near.len() as f64)
}

/// Finds the end of every stream in the last bytes of the file.
fn read_ends(
    source: &mut Source<'_>,
    layout: Layout,
    head: &Head,
    line: Line,
    ends: &mut [Option<i64>],
) -> Result<(), FactsError> {
    let size = source.len();
    let mut look = TAIL;
    loop {
        let from = layout.align(size.saturating_sub(look));
        let mut tails: Vec<Tail> = head.streams.iter().map(|_| Tail::default()).collect();
        packets::walk(source, layout, from, size, |_, packet| {
            for (es, tail) in head.streams.iter().zip(&mut tails) {
                if es.info.pid == packet.pid && !matches!(es.info.kind, StreamKind::Data) {
                    tail.take(es, packet, line);
                }
            }
            true
        })?;
        for ((es, tail), end) in head.streams.iter().zip(&mut tails).zip(ends.iter_mut()) {
            tail.finish(es);
            *end = tail.end;
        }
        let missing = head
            .streams
            .iter()
            .zip(ends.iter())
            .any(|(es, end)| es.first.is_some() && end.is_none() && has_length(es));
        if !missing || look >= TAIL_MAX || from <= layout.align(0) {
            return Ok(());
        }
        look *= 4;
    }
}

fn has_length(es: &Es) -> bool {
    matches!(es.info.kind, StreamKind::Video(_) | StreamKind::Audio(_))
}

/// One stream near the end of the file.
#[derive(Default)]
struct Tail {
    end: Option<i64>,
    pts: Option<i64>,
    payload: Vec<u8>,
}

impl Tail {
    fn take(&mut self, es: &Es, packet: &packets::Packet<'_>, line: Line) {
        if packet.starts {
            self.finish(es);
            let Some(header) = PesHeader::parse(packet.payload) else {
                return;
            };
            self.pts = header.pts.map(|pts| line.place(pts));
            if matches!(es.info.kind, StreamKind::Audio(_)) {
                let payload = packet.payload.get(header.payload_at..).unwrap_or(&[]);
                self.payload.extend_from_slice(payload);
            }
        } else if self.pts.is_some()
            && matches!(es.info.kind, StreamKind::Audio(_))
            && self.payload.len() < KEPT
        {
            self.payload.extend_from_slice(packet.payload);
        }
    }

    /// Ends the PES packet collected so far.
    fn finish(&mut self, es: &Es) {
        let payload = std::mem::take(&mut self.payload);
        let Some(pts) = self.pts.take() else {
            return;
        };
        let length = match es.info.kind {
            StreamKind::Video(_) => {
                let ticks = es
                    .stated_rate()
                    .map(|r| 90_000.0 / r.as_f64())
                    .or_else(|| step(es));
                ticks.map_or(0, |t| t.round() as i64)
            }
            StreamKind::Audio(_) => {
                let codec = es.codec.as_ref().unwrap_or(&es.info.codec);
                sound::length(codec, &payload).unwrap_or(0)
            }
            _ => 0,
        };
        let end = pts + length;
        self.end = Some(self.end.map_or(end, |e| e.max(end)));
    }
}
