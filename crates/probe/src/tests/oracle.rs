//! What is read natively is what `ffprobe` says, for every file there is.

use std::path::Path;

use ether_media::{Facts, FileReader, Gap, Limits, ScanError, Stream, StreamKind, Ticks};

use super::{House, clips, house, open, real_files, tool};
use crate::json;

/// A millisecond, and what rounding to Matroska's milliseconds adds.
const CLOSE: Ticks = Ticks(100);

#[tokio::test]
async fn native_facts_agree_with_ffprobe_for_every_file() {
    let house = house();
    let mut checked = 0;
    for path in real_files().iter().chain(&clips()) {
        checked += u32::from(facts_agree(&house, path).await);
    }
    eprintln!("compared {checked} files");
    house.processes.shutdown().await;
}

#[tokio::test]
async fn keyframe_lists_are_the_packets_that_ffprobe_flags() {
    let house = house();
    for path in real_files().iter().chain(&clips()) {
        keyframes_agree(&house, path).await;
    }
    house.processes.shutdown().await;
}

/// Both the index and a full scan of `path` list what `ffprobe` flags.
pub(super) async fn keyframes_agree(house: &House, path: &Path) {
    let mut reader = FileReader::new(open(path)).unwrap();
    let Ok(facts) = ether_media::read_facts(&mut reader, &Limits::default()) else {
        return;
    };
    let Some(video) = facts.main_video() else {
        return;
    };
    let theirs = flagged(house, path, video.index).await;
    let name = path.display();
    let listed = facts.keyframes.clone();
    if let Some(listed) = &listed {
        same_times(path, "index", &listed.times, &theirs);
    } else {
        assert!(
            facts.gaps.iter().any(|g| matches!(g, Gap::Keyframes { .. })),
            "{name}"
        );
    }
    let mut last = 0;
    match ether_media::scan_keyframes(&mut reader, &facts, &Limits::default(), &mut |at| last = at) {
        Ok(scanned) => {
            assert_eq!(scanned.stream, video.index, "{name}");
            assert!(last <= facts.size, "{name}");
            same_times(path, "scan", &scanned.times, &theirs);
        }
        Err(ScanError::Unsupported) => assert!(listed.is_some(), "{name}: no list at all"),
        Err(error) => panic!("{name}: {error}"),
    }
}

/// The facts of `path` are what `ffprobe` says; `false` where there is no native reader for it.
pub(super) async fn facts_agree(house: &House, path: &Path) -> bool {
    let mut reader = FileReader::new(open(path)).unwrap();
    let Ok(facts) = ether_media::read_facts(&mut reader, &Limits::default()) else {
        return false;
    };
    compare(path, &facts, &ask(house, path).await);
    true
}

async fn ask(house: &House, path: &Path) -> Facts {
    let path_text = path.to_str().unwrap();
    let args = [
        "-v",
        "error",
        "-show_format",
        "-show_streams",
        "-of",
        "json",
        path_text,
    ];
    let answer = tool(house, "ffprobe", &args).await;
    json::facts(&answer, 0).unwrap()
}

async fn flagged(house: &House, path: &Path, index: u32) -> Vec<Ticks> {
    let index = index.to_string();
    let args = [
        "-v",
        "error",
        "-select_streams",
        &index,
        "-show_entries",
        "packet=pts_time,flags",
        "-of",
        "csv=p=0",
        path.to_str().unwrap(),
    ];
    let text = String::from_utf8(tool(house, "ffprobe", &args).await).unwrap();
    let mut times: Vec<Ticks> = text
        .lines()
        .filter_map(|line| line.split_once(','))
        .filter(|(_, flags)| flags.starts_with('K'))
        .filter_map(|(time, _)| time.parse().ok().map(Ticks::from_secs_f64))
        .collect();
    times.sort_unstable();
    times.dedup();
    times
}

fn same_times(path: &Path, from: &str, ours: &[Ticks], theirs: &[Ticks]) {
    let name = path.display();
    assert_eq!(ours.len(), theirs.len(), "{name}: {from}: number of keyframes");
    assert!(
        ours.windows(2).all(|w| w[0] < w[1]),
        "{name}: {from}: not increasing"
    );
    for (a, b) in ours.iter().zip(theirs) {
        assert!(
            (*a - *b).abs() <= Ticks(1),
            "{name}: {from}: {a} where ffprobe has {b}"
        );
    }
}

fn compare(path: &Path, ours: &Facts, theirs: &Facts) {
    let name = path.display();
    assert_eq!(
        ours.streams.len(),
        theirs.streams.len(),
        "{name}: number of streams"
    );
    assert_eq!(
        ours.main_video().map(|s| s.index),
        theirs.main_video().map(|s| s.index),
        "{name}: the film"
    );
    for (a, b) in ours.streams.iter().zip(&theirs.streams) {
        same_stream(&format!("{name}: stream {}", a.index), a, b);
    }
    let transport = ours.container == ether_media::Container::MpegTs;
    if let (Some(a), Some(b)) = (ours.duration, theirs.duration) {
        // The movie header counts in milliseconds and rounds up, and leaves out delays; FFmpeg loses a
        // transport stream's last sound packet.
        let delayed = ours
            .streams
            .iter()
            .filter_map(|s| s.start)
            .max()
            .unwrap_or_default();
        let slack = if transport {
            Ticks(20_000)
        } else {
            Ticks(180) + delayed.abs()
        };
        assert!((a - b).abs() <= slack, "{name}: lasts {a}, ffprobe says {b}");
    } else {
        assert!(theirs.duration.is_none(), "{name}: no duration");
    }
}

fn same_stream(name: &str, a: &Stream, b: &Stream) {
    assert_eq!(a.index, b.index, "{name}");
    assert_eq!(a.codec, b.codec, "{name}: codec");
    assert_eq!(a.language, b.language, "{name}: language");
    assert_eq!(
        (a.default, a.forced),
        (b.default, b.forced),
        "{name}: default, forced"
    );
    let seen = !matches!(
        a.kind,
        StreamKind::Subtitle(_) | StreamKind::Data | StreamKind::Attachment
    );
    if let (Some(a), Some(b)) = (a.start, b.start) {
        assert!((a - b).abs() <= CLOSE, "{name}: starts {a}, ffprobe says {b}");
    } else if seen && !a.video().is_some_and(|v| v.still) {
        panic!("{name}: starts {:?}, ffprobe says {:?}", a.start, b.start);
    }
    if let (Some(a_length), Some(b_length)) = (a.duration, b.duration) {
        // FFmpeg counts a delay into a track's length, and loses a transport stream's last sound packet.
        let delay = a.start.unwrap_or_default().abs();
        let lost = if a.audio().is_some() { Ticks(20_000) } else { CLOSE };
        assert!(
            (a_length - b_length).abs() <= lost.max(delay + CLOSE),
            "{name}: lasts {a_length}, ffprobe says {b_length}"
        );
    }
    match (&a.kind, &b.kind) {
        (StreamKind::Video(a), StreamKind::Video(b)) => {
            assert_eq!((a.width, a.height), (b.width, b.height), "{name}: size");
            assert_eq!(a.rotation, b.rotation, "{name}: rotation");
            assert_eq!(a.still, b.still, "{name}: still");
            let square = |r: Option<ether_media::Rational>| r.map_or((1, 1), |r| (r.num, r.den));
            assert_eq!(
                square(a.sample_aspect),
                square(b.sample_aspect),
                "{name}: sample aspect"
            );
            assert_eq!(a.dolby_vision, b.dolby_vision, "{name}: Dolby Vision");
            agree(name, "bit depth", a.bit_depth, b.bit_depth);
            agree(name, "chroma", a.chroma, b.chroma);
            agree(name, "level", a.level, b.level);
            agree(name, "reorder", a.reorder, b.reorder);
            agree(name, "field order", a.field_order, b.field_order);
            agree(name, "primaries", a.color.primaries, b.color.primaries);
            agree(name, "transfer", a.color.transfer, b.color.transfer);
            agree(name, "matrix", a.color.matrix, b.color.matrix);
            agree(name, "range", a.color.full_range, b.color.full_range);
        }
        (StreamKind::Audio(a), StreamKind::Audio(b)) => {
            assert_eq!(a.sample_rate, b.sample_rate, "{name}: rate");
            assert_eq!(a.channels, b.channels, "{name}: channels");
            agree(name, "layout", a.layout.as_ref(), b.layout.as_ref());
            agree(name, "profile", a.profile, b.profile);
        }
        (a, b) => assert_eq!(
            std::mem::discriminant(a),
            std::mem::discriminant(b),
            "{name}: kind"
        ),
    }
}

/// What both know has to be the same.
fn agree<T: PartialEq + std::fmt::Debug>(name: &str, what: &str, a: Option<T>, b: Option<T>) {
    if a.is_some() && b.is_some() {
        assert_eq!(a, b, "{name}: {what}");
    }
}
