//! One track of a `moov`: what it holds and when its samples are shown.

use super::boxes::{Boxes, Kind, Table, full};
use super::edits::{self, Edit, Sample};
use super::entry::{self, Entry};
use crate::bits::{be16, be32, be64};
use crate::facts::{Rational, Rotation, StreamKind};
use crate::picture::ratio;

/// More samples than any film has; a track that claims more gets no keyframe list.
const MAX_SAMPLES: u64 = 2 << 20;
/// Longest text kept of a title, in bytes.
const TITLE: usize = 512;
/// How much longer than twice its claim a track may be, in seconds.
const MINUTE: u64 = 60;
/// More edits than any editor writes.
const MAX_EDITS: usize = 4096;

/// A parsed `trak`.
pub(super) struct Track<'a> {
    pub(super) id: u32,
    pub(super) enabled: bool,
    pub(super) rotation: Rotation,
    pub(super) timescale: u32,
    pub(super) media_duration: u64,
    pub(super) language: Option<String>,
    pub(super) title: Option<String>,
    pub(super) entry: Entry,
    pub(super) edits: Vec<Edit>,
    /// Tracks that hold this one's chapters: titles, or pictures.
    pub(super) chapters: Vec<u32>,
    tables: Tables<'a>,
}

#[derive(Default)]
struct Tables<'a> {
    durations: Table<'a, 2>,
    offsets: Table<'a, 2>,
    sync: Option<Table<'a, 1>>,
    partial_sync: Table<'a, 1>,
    sizes: Sizes<'a>,
    chunks: Table<'a, 3>,
    places32: Table<'a, 1>,
    places64: Table<'a, 2>,
    random_access: Vec<(u32, bool)>,
}

#[derive(Default)]
struct Sizes<'a> {
    count: u64,
    fixed: u32,
    table: Table<'a, 1>,
}

/// When a track plays, in its own timescale.
pub(super) struct Timing {
    pub(super) start: i64,
    pub(super) duration: i64,
}

impl<'a> Track<'a> {
    /// Reads a `trak` body; `movie_timescale` is that of the edit list.
    pub(super) fn parse(trak: &'a [u8], movie_timescale: u32) -> Option<Self> {
        let trak = Boxes::new(trak);
        let mdia = Boxes::new(trak.body(b"mdia")?);
        let handler: Kind = mdia
            .body(b"hdlr")
            .and_then(|b| b.get(8..12)?.try_into().ok())
            .unwrap_or(*b"\0\0\0\0");
        let (timescale, media_duration, language) = media_header(mdia.body(b"mdhd")?)?;
        let minf = Boxes::new(mdia.body(b"minf").unwrap_or(&[]));
        let stbl = Boxes::new(minf.body(b"stbl").unwrap_or(&[]));
        let (enabled, id, rotation) = trak.body(b"tkhd").and_then(header)?;
        let edits = trak
            .body(b"edts")
            .and_then(|edts| Boxes::new(edts).body(b"elst"))
            .and_then(|elst| edit_list(elst, timescale, movie_timescale))
            .unwrap_or_default();
        let chapters = trak
            .body(b"tref")
            .and_then(|tref| Boxes::new(tref).body(b"chap"))
            .map(|ids| (0..16).map_while(|n| be32(ids, 4 * n)).collect())
            .unwrap_or_default();
        let title = trak
            .body(b"udta")
            .and_then(|udta| Boxes::new(udta).body(b"name"))
            .map(|name| {
                String::from_utf8_lossy(&name[..name.len().min(TITLE)])
                    .trim_matches('\0')
                    .to_owned()
            })
            .filter(|name| !name.is_empty());
        Some(Self {
            id,
            enabled,
            rotation,
            timescale,
            media_duration,
            language,
            title,
            entry: entry::read(stbl.body(b"stsd").unwrap_or(&[]), &handler),
            edits,
            chapters,
            tables: Tables::parse(&stbl),
        })
    }

    /// Samples that the tables describe.
    pub(super) fn sample_count(&self) -> u64 {
        self.tables.sizes.count
    }

    /// First presented time and length of the progressive part; `None` where it holds no samples.
    pub(super) fn timing(&self) -> Option<Timing> {
        if self.sample_count() == 0 || self.tables.durations.is_empty() {
            return None;
        }
        let mut media = self.media_duration;
        let sum = self.tables.durations.iter().fold(0_u64, |sum, [count, delta]| {
            sum.saturating_add(u64::from(count) * u64::from(delta))
        });
        if sum > 0 {
            media = media.min(sum);
        }
        let media = i64::try_from(media).unwrap_or(i64::MAX);
        if self.edits.iter().any(|e| e.media_time.is_some()) {
            return Some(Timing {
                start: edits::initial_delay(&self.edits),
                duration: media.min(edits::shown(&self.edits)),
            });
        }
        let offset = self.tables.offsets.get(0).map_or(0, |[_, offset]| offset as i32);
        Some(Timing {
            start: i64::from(offset),
            duration: media,
        })
    }

    /// Whether picture or sound has times that no film has: far beyond every length that the file claims for it, or
    /// pictures that are all shown at once. `movie` is the length of the whole film in `timescale`, zero where it
    /// says none.
    ///
    /// FFmpeg believes such an index, and makes a film of one picture of it or ends amid a frame. Lengths are often a
    /// little wrong, and some writers give a track's in the movie's timescale.
    pub(super) fn has_impossible_times(&self, movie: u64, timescale: u32) -> bool {
        let video = match &self.entry.kind {
            StreamKind::Video(_) => true,
            StreamKind::Audio(_) => false,
            _ => return false,
        };
        let own = Some(self.media_duration).filter(|length| *length < u64::MAX);
        let movie = rescale(movie, self.timescale, timescale);
        let claimed = own.unwrap_or(0).max(u64::try_from(movie).unwrap_or(0));
        if self.sample_count() < 2 || self.tables.durations.is_empty() || claimed == 0 {
            return false;
        }
        let (mut left, mut sum, mut last) = (self.sample_count(), 0_u64, 0);
        for [count, delta] in self.tables.durations.iter() {
            let count = u64::from(count).min(left);
            left -= count;
            last = u64::from(delta);
            sum = sum.saturating_add(count * last);
        }
        // The last run goes on for ever.
        sum = sum.saturating_add(left.saturating_mul(last));
        let most = claimed
            .saturating_mul(2)
            .saturating_add(MINUTE * u64::from(self.timescale));
        sum > most || video && sum == 0
    }

    /// Keyframe times of the progressive part, or why there is no complete list.
    pub(super) fn keyframes(&self) -> Result<Vec<i64>, &'static str> {
        let count = self.sample_count();
        if count > MAX_SAMPLES {
            return Err("more samples than any film has");
        }
        if self.tables.sync.is_some_and(|t| t.is_empty()) {
            return Err("the index marks no sample as a keyframe");
        }
        let samples = self.samples(usize::try_from(count).unwrap_or(0));
        edits::keyframes(&samples, &self.edits)
    }

    fn samples(&self, count: usize) -> Vec<Sample> {
        let mut durations = Runs::new(self.tables.durations);
        let mut offsets = Runs::new(self.tables.offsets);
        let mut sync = self.tables.sync.map(|t| t.iter().map(|[n]| n).peekable());
        let mut partial = self.tables.partial_sync.iter().map(|[n]| n).peekable();
        let mut groups = self.tables.random_access.iter();
        let mut group = groups.next().copied();
        let mut dts = 0_i64;
        (1..=count as u32)
            .map(|number| {
                let mut key = match &mut sync {
                    None => true,
                    Some(sync) => next_is(sync, number),
                };
                key |= next_is(&mut partial, number);
                if let Some((left, is_random_access)) = &mut group {
                    key |= *is_random_access;
                    *left -= 1;
                    if *left == 0 {
                        group = groups.next().copied();
                    }
                }
                let sample = Sample {
                    dts,
                    offset: offsets.next_or_zero() as i32,
                    key,
                };
                dts = dts.saturating_add(i64::from(durations.next_or_last()));
                sample
            })
            .collect()
    }

    /// The most frequent sample duration as a frame rate.
    pub(super) fn frame_rate(&self) -> Option<Rational> {
        let mut best = (0_u64, 0_u32);
        let mut last: Option<(u32, u64)> = None;
        for [count, delta] in self.tables.durations.iter().take(1 << 16) {
            // Neighbouring runs of one delta are common; distinct ones that alternate are counted apart.
            let total = match last {
                Some((d, sum)) if d == delta => sum + u64::from(count),
                _ => u64::from(count),
            };
            last = Some((delta, total));
            if total > best.0 {
                best = (total, delta);
            }
        }
        ratio(u64::from(self.timescale), u64::from(best.1))
    }

    /// Bytes of all samples.
    pub(super) fn bytes(&self) -> u64 {
        let sizes = &self.tables.sizes;
        if sizes.fixed > 0 {
            return sizes.count.saturating_mul(u64::from(sizes.fixed));
        }
        sizes
            .table
            .iter()
            .fold(0_u64, |sum, [size]| sum.saturating_add(u64::from(size)))
    }

    /// Where the first sample lies in the file.
    pub(super) fn data_start(&self) -> Option<u64> {
        let t = &self.tables;
        match t.places32.get(0) {
            Some([at]) => Some(u64::from(at)),
            None => t
                .places64
                .get(0)
                .map(|[high, low]| u64::from(high) << 32 | u64::from(low)),
        }
    }

    /// Where the last chunk of the track ends in the file.
    pub(super) fn data_end(&self) -> Option<u64> {
        let t = &self.tables;
        let last = if t.places64.is_empty() {
            u64::from(t.places32.get(t.places32.len().checked_sub(1)?)?[0])
        } else {
            let [high, low] = t.places64.get(t.places64.len() - 1)?;
            u64::from(high) << 32 | u64::from(low)
        };
        let [_, in_chunk, _] = t.chunks.get(t.chunks.len().checked_sub(1)?)?;
        let size = if t.sizes.fixed > 0 {
            u64::from(t.sizes.fixed) * u64::from(in_chunk)
        } else {
            let from = t.sizes.table.len().saturating_sub(in_chunk as usize);
            (from..t.sizes.table.len()).fold(0_u64, |sum, i| {
                sum + t.sizes.table.get(i).map_or(0, |[size]| u64::from(size))
            })
        };
        last.checked_add(size)
    }
}

fn next_is(numbers: &mut std::iter::Peekable<impl Iterator<Item = u32>>, number: u32) -> bool {
    // A table that is out of order never moves back.
    while numbers.next_if(|n| *n < number).is_some() {}
    numbers.next_if_eq(&number).is_some()
}

impl<'a> Tables<'a> {
    fn parse(stbl: &Boxes<'a>) -> Self {
        let mut tables = Tables::default();
        for (kind, body) in stbl.clone() {
            match &kind {
                b"stts" => tables.durations = Table::parse(body).unwrap_or_default(),
                b"ctts" => tables.offsets = Table::parse(body).unwrap_or_default(),
                b"stss" => tables.sync = Table::parse(body),
                b"stps" => tables.partial_sync = Table::parse(body).unwrap_or_default(),
                b"stsz" => tables.sizes = sizes(body).unwrap_or_default(),
                b"stz2" => tables.sizes = compact_sizes(body).unwrap_or_default(),
                b"stsc" => tables.chunks = Table::parse(body).unwrap_or_default(),
                b"stco" => tables.places32 = Table::parse(body).unwrap_or_default(),
                b"co64" => tables.places64 = Table::parse(body).unwrap_or_default(),
                b"sbgp" => {
                    if let Some(groups) = random_access_groups(body) {
                        tables.random_access = groups;
                    }
                }
                _ => {}
            }
        }
        tables
    }
}

fn sizes(body: &[u8]) -> Option<Sizes<'_>> {
    let fixed = be32(body, 4)?;
    let table = Table::parse(body.get(4..)?)?;
    let count = if fixed > 0 {
        u64::from(be32(body, 8)?)
    } else {
        table.len() as u64
    };
    Some(Sizes { count, fixed, table })
}

/// Compact sizes: only their number matters here.
fn compact_sizes(body: &[u8]) -> Option<Sizes<'_>> {
    Some(Sizes {
        count: u64::from(be32(body, 8)?),
        ..Sizes::default()
    })
}

/// Runs of samples in the random access grouping, which marks keyframes that are not sync samples.
fn random_access_groups(body: &[u8]) -> Option<Vec<(u32, bool)>> {
    let (version, _, rest) = full(body)?;
    if rest.get(..4)? != b"rap " {
        return None;
    }
    // The table's own header is four bytes further for version 1.
    let at = if version == 1 { 4 } else { 0 };
    let table: Table<'_, 2> = Table::parse(body.get(4 + at..)?)?;
    Some(
        table
            .iter()
            .filter(|[count, _]| *count > 0)
            .map(|[count, index]| (count, index > 0))
            .collect(),
    )
}

struct Runs<'a> {
    table: Table<'a, 2>,
    index: usize,
    current: Option<[u32; 2]>,
    left: u32,
}

impl<'a> Runs<'a> {
    fn new(table: Table<'a, 2>) -> Self {
        let mut runs = Self {
            table,
            index: 0,
            current: None,
            left: 0,
        };
        runs.load();
        runs
    }

    /// Steps over runs of no samples.
    fn load(&mut self) {
        while self.left == 0 {
            let Some(row) = self.table.get(self.index) else {
                return;
            };
            self.index += 1;
            self.current = Some(row);
            self.left = row[0];
        }
    }

    fn advance(&mut self) {
        self.left = self.left.saturating_sub(1);
        self.load();
    }

    /// The value of the next sample; the last run goes on for ever.
    fn next_or_last(&mut self) -> u32 {
        let value = self.current.map_or(0, |row| row[1]);
        self.advance();
        value
    }

    /// The value of the next sample; zero behind the last run.
    fn next_or_zero(&mut self) -> u32 {
        if self.left == 0 {
            return 0;
        }
        self.next_or_last()
    }
}

fn media_header(mdhd: &[u8]) -> Option<(u32, u64, Option<String>)> {
    let (version, _, rest) = full(mdhd)?;
    let (timescale, duration, code) = if version == 1 {
        (be32(rest, 16)?, be64(rest, 20)?, be16(rest, 28)?)
    } else {
        let duration = be32(rest, 12)?;
        // All ones means unknown.
        let duration = if duration == u32::MAX {
            u64::MAX
        } else {
            u64::from(duration)
        };
        (be32(rest, 8)?, duration, be16(rest, 16)?)
    };
    (timescale > 0).then(|| (timescale, duration, language(code)))
}

fn language(code: u16) -> Option<String> {
    // Codes below this are Macintosh languages; only the ones old films carry are named.
    if code < 0x400 {
        const MAC: [&str; 12] = [
            "eng", "fra", "ger", "ita", "dut", "sve", "spa", "dan", "por", "nor", "heb", "jpn",
        ];
        return MAC.get(usize::from(code)).map(|s| (*s).to_owned());
    }
    let letters: String = [10, 5, 0]
        .map(|shift| char::from((code >> shift & 0x1f) as u8 + 0x60))
        .iter()
        .collect();
    (letters != "und" && letters.bytes().all(|b| b.is_ascii_lowercase())).then_some(letters)
}

fn header(tkhd: &[u8]) -> Option<(bool, u32, Rotation)> {
    let (version, flags, rest) = full(tkhd)?;
    let (id, matrix_at) = if version == 1 {
        (be32(rest, 16)?, 48)
    } else {
        (be32(rest, 8)?, 36)
    };
    let cell = |index: usize| Some(f64::from(be32(rest, matrix_at + 4 * index)? as i32));
    let rotation = match (cell(0), cell(1), cell(3), cell(4)) {
        (Some(a), Some(b), Some(c), Some(d)) => Rotation::from_matrix(a, b, c, d),
        _ => Rotation::default(),
    };
    Some((flags & 1 == 1, id, rotation))
}

fn edit_list(elst: &[u8], timescale: u32, movie_timescale: u32) -> Option<Vec<Edit>> {
    let (version, _, rest) = full(elst)?;
    let count = usize::try_from(be32(rest, 0)?).ok()?;
    let rows = rest.get(4..)?;
    let size = if version == 1 { 20 } else { 12 };
    let edits = rows
        .chunks_exact(size)
        .take(count.min(MAX_EDITS))
        .filter_map(|row| {
            let (duration, media_time) = if version == 1 {
                (be64(row, 0)?, be64(row, 8)? as i64)
            } else {
                (u64::from(be32(row, 0)?), i64::from(be32(row, 4)? as i32))
            };
            Some(Edit {
                duration: rescale(duration, timescale, movie_timescale),
                media_time: (media_time >= 0).then_some(media_time),
            })
        })
        .collect();
    Some(edits)
}

fn rescale(value: u64, to: u32, from: u32) -> i64 {
    if from == 0 {
        return 0;
    }
    let scaled = (u128::from(value) * u128::from(to) + u128::from(from) / 2) / u128::from(from);
    i64::try_from(scaled).unwrap_or(i64::MAX)
}
