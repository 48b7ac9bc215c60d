//! Files that are cut, damaged or made to harm cost no more than their limits; good ones cost few requests.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use proptest::prelude::*;

use super::*;

/// Files over this are tried less often.
const LARGE: u64 = 3 << 20;

fn media() -> Vec<PathBuf> {
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let real =
        std::env::var_os("ETHER_MEDIA").map_or_else(|| repository.join("../shared/media"), PathBuf::from);
    let mut files = Vec::new();
    for dir in [real, repository.join("target/clips")] {
        let Ok(entries) = std::fs::read_dir(&dir) else {
            eprintln!("skipped: {} is not here", dir.display());
            continue;
        };
        files.extend(entries.filter_map(|e| Some(e.ok()?.path())).filter(|p| {
            let name = p.file_name().unwrap().to_string_lossy().into_owned();
            let media = [".mp4", ".3gp", ".mkv", ".webm", ".ts"]
                .iter()
                .any(|e| name.ends_with(e));
            media && !name.starts_with("part.")
        }));
    }
    files.sort();
    files
}

fn named(name: &str) -> Option<PathBuf> {
    let found = media()
        .into_iter()
        .find(|p| p.file_name().is_some_and(|n| n == name));
    if found.is_none() {
        eprintln!("skipped: {name} is not here");
    }
    found
}

fn file(path: &Path) -> FileReader {
    FileReader::new(Arc::new(File::open(path).unwrap())).unwrap()
}

/// A file with changes, that writes down what is asked of it.
struct Altered {
    file: FileReader,
    len: u64,
    bytes: BTreeMap<u64, u8>,
    /// The most that one answer brings.
    answer: usize,
    asked: RefCell<Vec<(u64, usize)>>,
}

impl Altered {
    fn new(path: &Path) -> Self {
        let file = file(path);
        Self {
            len: file.len(),
            file,
            bytes: BTreeMap::new(),
            answer: usize::MAX,
            asked: RefCell::default(),
        }
    }

    fn requests(&self) -> usize {
        self.asked.borrow().len()
    }

    fn volume(&self) -> u64 {
        self.asked.borrow().iter().map(|(_, size)| *size as u64).sum()
    }
}

impl ByteReader for Altered {
    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let rest = usize::try_from(self.len.saturating_sub(offset)).unwrap();
        let size = buf.len().min(rest).min(self.answer);
        self.asked.borrow_mut().push((offset, buf.len()));
        let n = self.file.read_at(offset, &mut buf[..size])?;
        for (at, byte) in self.bytes.range(offset..offset + n as u64) {
            buf[(at - offset) as usize] = *byte;
        }
        Ok(n)
    }

    fn len(&self) -> u64 {
        self.len
    }
}

/// A small generator of its own: the seed in a failure's message replays it.
struct Random(u64);

impl Random {
    fn next(&mut self, below: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % below.max(1)
    }
}

fn check(name: &str, reader: &mut Altered, limits: &Limits) {
    let found = read_facts(reader, limits);
    let volume = reader.volume();
    assert!(
        reader.requests() <= limits.requests as usize,
        "{name}: {} requests",
        reader.requests()
    );
    let most = limits.total_bytes + limits.index_bytes;
    assert!(volume <= most, "{name}: {volume} bytes read");
    if let Ok(facts) = found {
        assert!(
            facts.streams.len() <= 512,
            "{name}: {} streams",
            facts.streams.len()
        );
        if let Some(keyframes) = &facts.keyframes {
            assert!(keyframes.times.windows(2).all(|w| w[0] < w[1]), "{name}: order");
            assert_eq!(
                facts.main_video().map(|s| s.index),
                Some(keyframes.stream),
                "{name}"
            );
        }
        if reader.len < 1 << 20 {
            let _ = scan_keyframes(reader, &facts, limits, &mut |_| ());
        }
    }
}

/// The most memory this process ever had, in KiB.
fn peak() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn damaged_files_give_an_answer_within_the_limits() {
    for path in media() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let mut clean = Altered::new(&path);
        let _ = read_facts(&mut clean, &Limits::default());
        let asked = clean.asked.take();
        let mut random = Random(0x9e37_79b9_7f4a_7c15);
        for seed in 0..60 {
            let mut reader = Altered::new(&path);
            // Scanning is tried with the smallest files only: it is the same walk for all.
            let limits = Limits {
                whole_scan: if reader.len < 400_000 { 1 << 20 } else { 0 },
                ..Limits::default()
            };
            for _ in 0..=random.next(8) {
                // Where readers look is where damage matters: mostly the start of what they asked for.
                let (from, size) = asked[random.next(asked.len() as u64) as usize];
                let near = [64, 4096, size as u64][random.next(3) as usize];
                let at = from + random.next(near.min(size as u64));
                let byte = [0, 1, 0x7f, 0x80, 0xff, random.next(256) as u8][random.next(6) as usize];
                reader.bytes.insert(at, byte);
            }
            // The large clips differ from the small ones in length alone.
            if reader.len > LARGE && seed >= 6 {
                break;
            }
            let changes = format!("{name}: seed {seed}: {:?}", reader.bytes);
            check(&changes, &mut reader, &limits);
        }
    }
    assert!(peak() < 300 << 10, "{} KiB of memory", peak());
}

#[test]
fn cut_files_give_an_answer_and_say_that_they_are_cut() {
    for path in media() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let mut clean = Altered::new(&path);
        let _ = read_facts(&mut clean, &Limits::default());
        let whole = clean.len;
        let mut cuts: Vec<u64> = (0..64).step_by(7).chain([100, 188, 1000, 4096, 65_536]).collect();
        if whole <= LARGE {
            for (from, size) in clean.asked.take().into_iter().take(8) {
                cuts.extend([from, from + 1, from + 9, from + size as u64 - 1]);
            }
            cuts.extend((1..8).map(|n| whole * n / 8));
        }
        cuts.extend([whole - 1, whole.saturating_sub(200)]);
        for cut in cuts.into_iter().filter(|cut| *cut < whole) {
            let mut reader = Altered::new(&path);
            reader.len = cut;
            let limits = Limits {
                whole_scan: 0,
                ..Limits::default()
            };
            check(&format!("{name}: cut at {cut}"), &mut reader, &limits);
        }
        // What the head still describes when the tail is gone names the size it should have.
        let mut reader = Altered::new(&path);
        reader.len = whole * 9 / 10;
        if let Ok(facts) = read_facts(&mut reader, &Limits::default())
            && facts.container != Container::MpegTs
        {
            let told = facts
                .gaps
                .iter()
                .any(|g| matches!(g, crate::Gap::Truncated { expected } if *expected > reader.len));
            assert!(told, "{name}: {:?}", facts.gaps);
        }
    }
}

#[test]
fn an_index_costs_few_requests_wherever_it_lies() {
    for (name, most) in [
        ("moov-at-end.mp4", 3),
        ("long-h264-aac-362s.mp4", 2),
        ("ntsc.mkv", 3),
        ("three-languages.mkv", 5),
        ("late-clock.ts", 4),
    ] {
        let Some(path) = named(name) else {
            continue;
        };
        let mut reader = Altered::new(&path);
        let limits = Limits {
            whole_scan: 0,
            ..Limits::default()
        };
        read_facts(&mut reader, &limits).unwrap();
        let asked = reader.asked.take();
        assert!(asked.len() <= most, "{name}: {} requests: {asked:?}", asked.len());
    }
}

/// Overwrites the id of the last cue point with that of a void element.
fn without_last_cue(path: &Path) -> Altered {
    let bytes = std::fs::read(path).unwrap();
    let cues = bytes
        .windows(4)
        .rposition(|w| w == [0x1c, 0x53, 0xbb, 0x6b])
        .unwrap();
    let mut at = cues + 4 + bytes[cues + 4].leading_zeros() as usize + 1;
    if bytes[at] == 0xbf {
        // A checksum comes first.
        at += 6;
    }
    let mut last = at;
    // Cue points of FFmpeg are small: one byte of id, one of size.
    while bytes.get(at) == Some(&0xbb) {
        last = at;
        at += 2 + usize::from(bytes[at + 1] & 0x7f);
    }
    let mut reader = Altered::new(path);
    reader.bytes.insert(last as u64, 0xec);
    reader
}

#[test]
fn cues_that_leave_out_a_keyframe_are_not_taken_for_the_whole_list() {
    let Some(path) = named("ntsc.mkv") else {
        return;
    };
    let whole = read_facts(&mut file(&path), &Limits::default()).unwrap();
    let mut reader = without_last_cue(&path);
    let facts = read_facts(&mut reader, &Limits::default()).unwrap();
    assert_eq!(facts.keyframes, None);
    assert!(
        facts
            .gaps
            .iter()
            .any(|g| matches!(g, crate::Gap::Keyframes { .. })),
        "{:?}",
        facts.gaps
    );
    let mut told = Vec::new();
    let scanned = scan_keyframes(&mut reader, &facts, &Limits::default(), &mut |at| told.push(at)).unwrap();
    assert_eq!(Some(&scanned), whole.keyframes.as_ref());
    assert!(
        told.windows(2).all(|w| w[0] <= w[1]) && told.len() > 2,
        "{told:?}"
    );
    let mut later = facts.clone();
    later.set_keyframes(scanned);
    assert_eq!(later, whole);
}

#[test]
fn answers_in_small_pieces_change_nothing() {
    for name in ["h264-aac-vfr.mp4", "h264-ac3-ass.mkv", "h264-aac-cea608.ts"] {
        let Some(path) = named(name) else {
            continue;
        };
        let whole = read_facts(&mut file(&path), &Limits::default()).unwrap();
        let mut reader = Altered::new(&path);
        reader.answer = 997;
        assert_eq!(
            read_facts(&mut reader, &Limits::default()).unwrap(),
            whole,
            "{name}"
        );
    }
}

#[test]
fn a_stop_is_heard_at_the_next_request() {
    for name in ["moov-at-end.mp4", "ntsc.mkv", "late-clock.ts"] {
        let Some(path) = named(name) else {
            continue;
        };
        let left = Arc::new(AtomicU32::new(1));
        let limits = Limits {
            stop: Some(Arc::new(move || {
                left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1))
                    .is_err()
            })),
            ..Limits::default()
        };
        let mut reader = Altered::new(&path);
        let found = read_facts(&mut reader, &limits);
        assert!(matches!(found, Err(FactsError::Stopped)), "{name}: {found:?}");
        assert_eq!(reader.requests(), 1, "{name}");
    }
}

#[test]
fn an_index_over_the_bound_is_refused_before_it_is_read() {
    let Some(path) = named("moov-at-end.mp4") else {
        return;
    };
    let limits = Limits {
        index_bytes: 1000,
        ..Limits::default()
    };
    let mut reader = Altered::new(&path);
    assert!(matches!(
        read_facts(&mut reader, &limits),
        Err(FactsError::Budget)
    ));
}

#[test]
fn a_box_that_claims_the_whole_address_space_is_only_a_claim() {
    let mut bytes = Vec::new();
    bytes.extend_from_slice(&[0, 0, 0, 16]);
    bytes.extend_from_slice(b"ftypisom\0\0\0\0");
    bytes.extend_from_slice(&[0, 0, 0, 1]);
    bytes.extend_from_slice(b"moov");
    bytes.extend_from_slice(&u64::MAX.to_be_bytes());
    let found = read_facts(&mut bytes.as_slice(), &Limits::default());
    assert!(
        matches!(found, Err(FactsError::Broken { .. } | FactsError::Budget)),
        "{found:?}"
    );
}

#[test]
fn a_failing_disk_is_not_a_damaged_file() {
    struct Failing;
    impl ByteReader for Failing {
        fn read_at(&mut self, _: u64, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("the cable came out"))
        }
        fn len(&self) -> u64 {
            1 << 30
        }
    }
    assert!(matches!(
        read_facts(&mut Failing, &Limits::default()),
        Err(FactsError::Io(_))
    ));
    assert!(matches!(
        read_facts(&mut &b""[..], &Limits::default()),
        Err(FactsError::Empty)
    ));
}

proptest! {
    #[test]
    fn bytes_behind_any_magic_are_survived(
        magic in prop_oneof![
            Just(b"\0\0\0\x08ftyp\0\0\x10\0moov\0\0\0\x6cmvhd".to_vec()),
            Just(b"\x1a\x45\xdf\xa3\x84\x42\x82\x81w\x18\x53\x80\x67\x01\xff\xff\xff\xff\xff\xff\xff".to_vec()),
            Just(vec![0x47, 0x40, 0, 0x10]),
        ],
        rest in proptest::collection::vec(any::<u8>(), 0..4096),
    ) {
        let bytes = [magic, rest].concat();
        let _ = read_facts(&mut bytes.as_slice(), &Limits::default());
    }

    #[test]
    fn codec_headers_of_any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let _ = crate::h264::sps(&bytes);
        let _ = crate::h264::from_record(&bytes);
        let _ = crate::hevc::sps(&bytes);
        let _ = crate::hevc::from_record(&bytes, "hvc1");
        let _ = crate::av1::from_record(&bytes);
        let _ = crate::av1::from_obus(&bytes);
        let _ = crate::vpx::vp9_frame(&bytes);
        let _ = crate::vpx::vp9_record(&bytes);
        let _ = crate::vpx::vp8_frame(&bytes);
        let _ = crate::mpeg2::from_stream(&bytes);
        let _ = crate::sound::aac_config(&bytes);
        let _ = crate::sound::guess(&bytes);
        let _ = crate::sound::flac_info(&bytes);
        let _ = crate::sound::vorbis_private(&bytes);
        let _ = crate::still::identify(&bytes);
    }
}
