//! The exact command line of each kind of run, kept as golden files: a change of one is a change to be read.
//! `ETHER_BLESS=1` writes them anew.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::Arc;

use ether_encoder::{
    AudioAction, AudioCodec, AudioEncode, AudioTrack, Device, Protocol, Request, Rung, SegmentContainer,
    VideoAction, VideoCodec, VideoEncode, VideoTrack,
};
use ether_media::{
    AudioFacts, Codec, Container, Facts, FactsSource, Gap, Keyframes, MasteringKind, Rational, Stream,
    StreamKind, Ticks, Timeline, VideoFacts,
};

use crate::plan::{plan, progressive};
use crate::strand::{RungSet, Strand};

const FILM: Rational = Rational {
    num: 24_000,
    den: 1_001,
};

fn seconds(s: f64) -> Ticks {
    Ticks::from_secs_f64(s)
}

fn stream(index: u32, codec: Codec, length: f64, kind: StreamKind) -> Stream {
    Stream {
        index,
        codec,
        codec_string: None,
        language: None,
        title: None,
        default: true,
        forced: false,
        start: Some(seconds(0.021)),
        duration: Some(seconds(length)),
        bit_rate: None,
        kind,
    }
}

fn facts(container: Container, sound: f64) -> Facts {
    let video = VideoFacts {
        width: 1920,
        height: 1080,
        frame_rate: Some(FILM),
        ..VideoFacts::default()
    };
    let audio = AudioFacts {
        sample_rate: Some(44_100),
        channels: Some(6),
        ..AudioFacts::default()
    };
    Facts {
        container,
        size: 1 << 20,
        duration: Some(seconds(20.0)),
        start: seconds(0.021),
        streams: vec![
            stream(0, Codec::H264, 20.0, StreamKind::Video(video)),
            stream(1, Codec::Ac3, sound, StreamKind::Audio(audio)),
        ],
        keyframes: Some(Keyframes {
            stream: 0,
            times: (0..5).map(|n| seconds(0.021 + 4.0 * f64::from(n))).collect(),
        }),
        source: FactsSource::Native,
        gaps: Vec::new(),
    }
}

fn request(facts: Facts, copy_video: bool, copy_audio: bool, deinterlace: bool) -> Request {
    let target = seconds(3.0);
    let (origin, length) = (seconds(0.021), seconds(20.0));
    let index = facts
        .keyframes
        .as_ref()
        .map(|index| index.times.clone())
        .unwrap_or_default();
    let timeline = if copy_video {
        Timeline::keyframes(origin, length, target, &index)
    } else {
        Timeline::grid(origin, length, target, Some(FILM))
    };
    let encode = VideoEncode {
        codec: VideoCodec::H264,
        device: Device::Software,
        rungs: vec![Rung {
            width: 1280,
            height: 720,
            max_bit_rate: 3_000_000,
            level: 31,
        }],
        frame_rate: Some(FILM.into()),
        deinterlace,
        range: MasteringKind::Sdr,
        burn: None,
        self_describing: false,
    };
    let aac = AudioEncode {
        codec: AudioCodec::Aac,
        channels: 2,
        sample_rate: 48_000,
        bit_rate: 160_000,
    };
    Request {
        facts: Arc::new(facts),
        protocol: Protocol::Hls {
            container: SegmentContainer::Fmp4,
        },
        timeline: Arc::new(timeline.unwrap()),
        video: Some(VideoTrack {
            stream: 0,
            action: if copy_video {
                VideoAction::Copy
            } else {
                VideoAction::Encode(encode)
            },
        }),
        audio: vec![AudioTrack {
            stream: 1,
            action: if copy_audio {
                AudioAction::Copy
            } else {
                AudioAction::Encode(aac)
            },
        }],
        subtitle: None,
    }
}

#[track_caller]
fn golden(name: &str, request: &Request, first: u32, attempt: u32) {
    golden_strand(name, &Strand::all(request)[0], RungSet::one(0), first, attempt);
}

#[track_caller]
fn golden_strand(name: &str, strand: &Strand, rungs: RungSet, first: u32, attempt: u32) {
    let plan = plan(
        strand,
        rungs,
        first,
        attempt,
        OsStr::new("file:/films/-odd 'name' 100%.mkv"),
    );
    compare(name, &plan.args);
}

#[track_caller]
fn compare(name: &str, args: &[std::ffi::OsString]) {
    let words = args.iter().map(|a| a.to_str().unwrap().to_owned());
    let text: String = words.collect::<Vec<_>>().join("\n") + "\n";
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("src/tests/plans")
        .join(format!("{name}.txt"));
    if std::env::var_os("ETHER_BLESS").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(
        text, kept,
        "{name}: read the change, then bless it with ETHER_BLESS=1"
    );
}

#[test]
fn encodes() {
    golden(
        "encode-start",
        &request(facts(Container::Matroska, 20.0), false, false, false),
        0,
        0,
    );
    golden(
        "encode-seek",
        &request(facts(Container::Matroska, 20.0), false, false, false),
        3,
        0,
    );
    golden(
        "encode-seek-again",
        &request(facts(Container::Matroska, 20.0), false, false, false),
        6,
        1,
    );
    golden(
        "encode-from-start-at-last",
        &request(facts(Container::Matroska, 20.0), false, false, false),
        3,
        3,
    );
    golden(
        "encode-deinterlaced",
        &request(facts(Container::Matroska, 20.0), false, false, true),
        0,
        0,
    );
    golden(
        "encode-video-copy-audio",
        &request(facts(Container::Matroska, 20.0), false, true, false),
        3,
        0,
    );
}

#[test]
fn sound_that_ends_early() {
    golden(
        "encode-padded",
        &request(facts(Container::Matroska, 9.0), false, false, false),
        1,
        0,
    );
    golden(
        "encode-silence",
        &request(facts(Container::Matroska, 9.0), false, false, false),
        4,
        0,
    );
    golden(
        "copy-without-sound",
        &request(facts(Container::Matroska, 9.0), true, true, false),
        3,
        0,
    );
    let mut cut = facts(Container::Matroska, 9.0);
    cut.gaps.push(Gap::Truncated { expected: 1 << 21 });
    golden("encode-cut-short", &request(cut, false, false, false), 4, 0);
}

#[test]
fn transport_streams_are_sought_by_a_known_keyframe_or_from_afar() {
    golden(
        "encode-ts-indexed",
        &request(facts(Container::MpegTs, 20.0), false, false, false),
        3,
        0,
    );
    let mut unindexed = facts(Container::MpegTs, 20.0);
    unindexed.keyframes = None;
    golden(
        "encode-ts-unindexed",
        &request(unindexed, false, false, false),
        6,
        0,
    );
}

#[test]
fn copies() {
    golden(
        "copy-start",
        &request(facts(Container::Matroska, 20.0), true, true, false),
        0,
        0,
    );
    golden(
        "copy-seek-matroska",
        &request(facts(Container::Matroska, 20.0), true, true, false),
        2,
        0,
    );
    golden(
        "copy-seek-mp4",
        &request(facts(Container::Mp4, 20.0), true, true, false),
        2,
        0,
    );
    golden(
        "copy-video-encode-audio",
        &request(facts(Container::Mp4, 20.0), true, false, false),
        2,
        0,
    );
}

#[test]
fn a_very_long_film_is_encoded_in_parts_that_fit_an_argument() {
    let mut film = request(facts(Container::Matroska, 20.0), false, true, false);
    let hours = Timeline::grid(Ticks::ZERO, seconds(24.0 * 3600.0), seconds(1.0), Some(FILM)).unwrap();
    film.timeline = Arc::new(hours);
    let strand = &Strand::all(&film)[0];
    let plan = plan(strand, RungSet::one(0), 10, 0, OsStr::new("file:film.mkv"));
    assert_eq!(plan.until, Some(6_010));
    let longest = plan.args.iter().map(|a| a.len()).max().unwrap();
    assert!(longest < 128 << 10, "an argument of {longest} bytes");
}

/// Four qualities of one picture come out of one decoding; two of them likewise; each sound has its own process.
#[test]
fn ladders() {
    let mut film = request(facts(Container::Matroska, 20.0), false, false, true);
    if let Some(VideoTrack {
        action: VideoAction::Encode(encode),
        ..
    }) = &mut film.video
    {
        let rung = |width, height, max_bit_rate, level| Rung {
            width,
            height,
            max_bit_rate,
            level,
        };
        encode.rungs.extend([
            rung(960, 540, 2_000_000, 31),
            rung(640, 360, 900_000, 30),
            rung(416, 234, 300_000, 21),
        ]);
    }
    let strands = Strand::all(&film);
    assert_eq!(strands.len(), 2);
    assert_eq!(strands[0].representations, [0, 1, 2, 3]);
    assert_eq!(strands[1].representations, [4]);
    let all = (0..4).map(RungSet::one).fold(RungSet::default(), RungSet::with);
    golden_strand("ladder-all", &strands[0], all, 2, 0);
    golden_strand("ladder-third", &strands[0], RungSet::one(2), 0, 0);
    golden_strand("ladder-sound", &strands[1], RungSet::one(0), 2, 0);
}

/// The encoding of `film`, to be changed.
fn encoding(film: &mut Request) -> &mut VideoEncode {
    match film.video.as_mut().map(|video| &mut video.action) {
        Some(VideoAction::Encode(encode)) => encode,
        _ => panic!("the picture is not encoded"),
    }
}

#[test]
fn wide_range_is_kept_by_ten_bits_of_hevc() {
    for (name, range, transfer) in [
        ("hevc-pq", MasteringKind::Pq, 16),
        ("hevc-hlg", MasteringKind::Hlg, 18),
        ("hevc-sdr", MasteringKind::Sdr, 1),
    ] {
        let mut film = request(facts(Container::Matroska, 20.0), false, false, false);
        if let StreamKind::Video(picture) = &mut Arc::make_mut(&mut film.facts).streams[0].kind {
            picture.color.transfer = Some(transfer);
        }
        let encode = encoding(&mut film);
        encode.codec = VideoCodec::Hevc;
        encode.range = range;
        encode.rungs[0].level = 93;
        golden(name, &film, 2, 0);
        if range == MasteringKind::Pq {
            golden("hevc-pq-self-describing", &film.self_describing(), 2, 0);
        }
    }
}

/// Plans of devices that this machine does not have: what is decoded, worked on and encoded there, and what is
/// left to the processor.
#[test]
fn devices() {
    let plain = request(facts(Container::Matroska, 20.0), false, true, false);
    golden("h264-self-describing", &plain.self_describing(), 2, 0);
    let (vaapi, nvenc, qsv) = (
        Device::Vaapi { node: 128 },
        Device::Nvenc { gpu: 1 },
        Device::Qsv { node: 129 },
    );
    let small = Rung {
        width: 640,
        height: 360,
        max_bit_rate: 900_000,
        level: 30,
    };
    for (name, device) in [("vaapi", vaapi), ("nvenc", nvenc), ("qsv", qsv)] {
        let mut film = request(facts(Container::Matroska, 20.0), false, true, true);
        encoding(&mut film).device = device;
        golden(&format!("{name}-h264-fields"), &film, 2, 0);

        encoding(&mut film).deinterlace = false;
        encoding(&mut film).rungs.push(small);
        let strand = &Strand::all(&film)[0];
        let both = RungSet::one(0).with(RungSet::one(1));
        golden_strand(&format!("{name}-h264-ladder"), strand, both, 0, 0);

        // A picture that has to be turned is worked on by the processor and uploaded.
        let mut turned = request(facts(Container::Mp4, 20.0), false, true, false);
        if let StreamKind::Video(picture) = &mut Arc::make_mut(&mut turned.facts).streams[0].kind {
            picture.rotation.degrees = 90;
        }
        encoding(&mut turned).device = device;
        golden(&format!("{name}-h264-turned"), &turned, 0, 0);

        if device == nvenc {
            golden("nvenc-h264-self-describing", &turned.self_describing(), 1, 0);
        }

        let mut wide = request(facts(Container::Matroska, 20.0), false, true, false);
        if let StreamKind::Video(picture) = &mut Arc::make_mut(&mut wide.facts).streams[0].kind {
            picture.color.transfer = Some(16);
        }
        let encode = encoding(&mut wide);
        encode.device = device;
        encode.codec = VideoCodec::Hevc;
        encode.range = MasteringKind::Pq;
        encode.rungs[0].level = 93;
        golden(&format!("{name}-hevc-pq"), &wide, 1, 0);
    }
}

/// Text is drawn from the file itself, pictures from a second reader of it, and silence is then the third input.
#[test]
fn subtitles_are_drawn_once() {
    let mut source = facts(Container::Matroska, 9.0);
    for (index, text) in [(2, true), (3, false)] {
        let facts = ether_media::SubtitleFacts {
            text,
            hearing_impaired: false,
        };
        let codec = Codec::Other(if text { "ass" } else { "hdmv_pgs_subtitle" }.to_owned());
        source
            .streams
            .push(stream(index, codec, 20.0, StreamKind::Subtitle(facts)));
    }
    for (name, track) in [("burn-text", 2), ("burn-pictures", 3)] {
        let mut film = request(source.clone(), false, false, false);
        if let Some(VideoAction::Encode(encode)) = film.video.as_mut().map(|video| &mut video.action) {
            encode.burn = Some(track);
        }
        golden(name, &film, 4, 0);
    }
}

/// A wide range becomes BT.709 once for all qualities, at the size of the best of them.
#[test]
fn wide_ranges_are_mapped_once() {
    for (name, transfer) in [("tone-map-pq", 16), ("tone-map-hlg", 18)] {
        let mut source = facts(Container::Matroska, 20.0);
        if let StreamKind::Video(video) = &mut source.streams[0].kind {
            video.color.transfer = Some(transfer);
        }
        let mut film = request(source, false, false, false);
        if let Some(VideoAction::Encode(encode)) = film.video.as_mut().map(|video| &mut video.action) {
            let lower = Rung {
                width: 640,
                height: 360,
                ..encode.rungs[0]
            };
            encode.rungs.push(lower);
        }
        let both = RungSet::one(0).with(RungSet::one(1));
        golden_strand(name, &Strand::all(&film)[0], both, 1, 0);
    }
}

/// A stream begins at any time; where it begins at a keyframe that is known, nothing before it is sent.
#[test]
fn streams() {
    let golden = |name: &str, request: &Request, start: f64, attempt: u32| {
        let strand = &Strand::all(request)[0];
        let stream = progressive(
            strand,
            seconds(start),
            attempt,
            OsStr::new("file:/films/film.mkv"),
        );
        compare(name, &stream.args);
        (stream.expected, stream.from_start)
    };
    let film = |copy_video, copy_audio| {
        let mut facts = facts(Container::Matroska, 20.0);
        facts.streams[1].language = Some("fre".into());
        let mut request = request(facts, copy_video, copy_audio, false);
        // Sound begins a little before the picture.
        request.timeline = Arc::new((*request.timeline).clone().with_sound_from(Ticks::ZERO));
        request
    };
    let at = |at: f64| Some(seconds(at));
    assert_eq!(
        golden("stream-encode", &film(false, true), 7.3, 0),
        (at(7.3), false)
    );
    assert_eq!(
        golden("stream-encode-start", &film(false, false), 0.0, 0),
        (None, true)
    );
    assert_eq!(
        golden("stream-copy", &film(true, true), 7.3, 1),
        (at(4.021), true)
    );
    assert_eq!(
        golden("stream-copy-start", &film(true, false), 0.5, 0),
        (at(0.021), true)
    );
    let mut unknown = film(true, true);
    Arc::make_mut(&mut unknown.facts).keyframes = None;
    assert_eq!(golden("stream-copy-unindexed", &unknown, 7.3, 0), (None, false));
}
