//! DASH as its players see it: a manifest whose times are those of the segments, and media that FFmpeg's own
//! reader takes from it.

use std::collections::{BTreeMap, BTreeSet};

use hyper::body::Bytes;
use serde_json::{Value, json};

use crate::bed::{Server, Setup, clip, program, run};
use crate::films::{packets, real_films};
use crate::play::{Play, join, patiently};

/// Frame length of the clip with 24000/1001 frames a second.
const NTSC_FRAME: f64 = 1_001.0 / 24_000.0;

/// A manifest and where it came from.
pub(crate) struct Manifest {
    /// The address that the session was given.
    pub(crate) url: String,
    pub(crate) session: Value,
    pub(crate) text: String,
    pub(crate) sets: Vec<Set>,
}

/// One adaptation set.
pub(crate) struct Set {
    pub(crate) kind: String,
    pub(crate) language: Option<String>,
    pub(crate) timescale: u64,
    pub(crate) offset: u64,
    /// Start and length of every segment in units of the timescale.
    pub(crate) segments: Vec<(u64, u64)>,
    /// Numbers of the representations.
    pub(crate) representations: Vec<String>,
    media: String,
    initialization: String,
}

impl Manifest {
    /// Asks for the film `file` in DASH with `wish`.
    pub(crate) async fn open(server: &Server, file: &str, mut wish: Value) -> Result<Self, Value> {
        wish["protocol"] = json!("dash");
        wish["sounds"] = json!("all");
        let answer = Play::ask(server, file, wish).await;
        if answer.status != 201 {
            return Err(answer.json());
        }
        let session = answer.json();
        let url = session["url"].as_str().unwrap().to_owned();
        let first = server.get(&url).await.expect(200);
        assert_eq!(first.header("content-type"), "application/dash+xml");
        let text = first.text();
        assert_eq!(
            server.get(&url).await.expect(200).text(),
            text,
            "a manifest never changes"
        );
        // Text is one file, not segments.
        let segmented = |set: &&str| !set.contains("contentType=\"text\"");
        let sets = text
            .split("<AdaptationSet ")
            .skip(1)
            .filter(segmented)
            .map(set)
            .collect();
        Ok(Self {
            url,
            session,
            text,
            sets,
        })
    }

    /// The set of the picture.
    pub(crate) fn picture(&self) -> &Set {
        self.sets.iter().find(|set| set.kind == "video").unwrap()
    }

    /// The sets of the sounds.
    pub(crate) fn sounds(&self) -> Vec<&Set> {
        self.sets.iter().filter(|set| set.kind == "audio").collect()
    }

    /// The initialization segment of a representation.
    pub(crate) async fn init(&self, server: &Server, set: &Set, representation: &str) -> Bytes {
        let address = set.initialization.replace("$RepresentationID$", representation);
        let address = join(&self.url, &address);
        patiently(server, &address).await.expect(200).body
    }

    /// Segment `n` of a representation.
    pub(crate) async fn segment(&self, server: &Server, set: &Set, representation: &str, n: usize) -> Bytes {
        let address = set.media.replace("$RepresentationID$", representation);
        let address = join(&self.url, &address.replace("$Number$", &n.to_string()));
        let answer = patiently(server, &address).await;
        assert_eq!(
            answer.status,
            200,
            "{representation}/{n} of {}: {}",
            self.url,
            answer.text()
        );
        assert_eq!(answer.header("content-type"), format!("{}/mp4", set.kind));
        answer.body
    }
}

impl Set {
    /// Seconds on the presentation's clock.
    pub(crate) fn seconds(&self, at: u64) -> f64 {
        (at as f64 - self.offset as f64) / self.timescale as f64
    }
}

fn set(text: &str) -> Set {
    let tag = |name: &str| {
        let from = text.find(&format!("<{name} "));
        let from = from.unwrap_or_else(|| panic!("no {name} in {text}"));
        text[from..].split('>').next().unwrap()
    };
    let template = tag("SegmentTemplate");
    let value = |tag: &str, name: &str| attribute(tag, name).unwrap_or_else(|| panic!("no {name} in {tag}"));
    let number = |tag: &str, name: &str| value(tag, name).parse::<u64>().unwrap();
    assert_eq!(number(template, "startNumber"), 0);
    let mut segments: Vec<(u64, u64)> = Vec::new();
    for s in text.split("<S ").skip(1) {
        let s = format!(" {}", s.split('>').next().unwrap());
        let next = segments.last().map(|(start, length)| start + length);
        let mut at = attribute(&s, "t").map_or_else(|| next.unwrap(), |t| t.parse().unwrap());
        assert!(next.is_none_or(|next| next == at), "a gap or an overlap at {s}");
        let length = number(&s, "d");
        let repeated = attribute(&s, "r").map_or(0, |r| r.parse::<u64>().unwrap());
        for _ in 0..=repeated {
            segments.push((at, length));
            at += length;
        }
    }
    let head = format!(" {}", text.split('>').next().unwrap());
    let representations = text.split("<Representation").skip(1);
    Set {
        kind: value(&head, "contentType"),
        language: attribute(&head, "lang"),
        timescale: number(template, "timescale"),
        offset: number(template, "presentationTimeOffset"),
        segments,
        representations: representations.map(|tag| value(tag, "id")).collect(),
        media: value(template, "media").replace("&amp;", "&"),
        initialization: value(template, "initialization").replace("&amp;", "&"),
    }
}

fn attribute(tag: &str, name: &str) -> Option<String> {
    let from = tag.find(&format!(" {name}=\""))? + name.len() + 3;
    tag[from..].split('"').next().map(str::to_owned)
}

/// What the head of a segment with one track says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    /// Its first decoding time.
    pub(crate) start: u64,
    /// Its samples.
    pub(crate) samples: u32,
}

/// Reads the head of a segment.
pub(crate) fn head(segment: &[u8]) -> Head {
    let moof = find(segment, b"moof").expect("a fragment");
    let traf = find(moof, b"traf").expect("a track");
    let tfdt = find(traf, b"tfdt").expect("a time");
    let trun = find(traf, b"trun").expect("samples");
    assert_eq!(tfdt[0], 1, "a time of 64 bits");
    Head {
        start: u64::from_be_bytes(tfdt[4..12].try_into().unwrap()),
        samples: u32::from_be_bytes(trun[4..8].try_into().unwrap()),
    }
}

fn find<'a>(mut bytes: &'a [u8], kind: &[u8; 4]) -> Option<&'a [u8]> {
    while bytes.len() >= 8 {
        let size = u32::from_be_bytes(bytes[..4].try_into().unwrap()) as usize;
        let (one, rest) = bytes.split_at_checked(size.max(8))?;
        if &one[4..8] == kind {
            return Some(&one[8..]);
        }
        bytes = rest;
    }
    None
}

/// The units a second of the track that an initialization segment describes.
pub(crate) fn timescale(init: &[u8]) -> u64 {
    let moov = find(init, b"moov").expect("a description");
    let mdia = find(find(moov, b"trak").expect("a track"), b"mdia").unwrap();
    let mdhd = find(mdia, b"mdhd").unwrap();
    u64::from(u32::from_be_bytes(mdhd[12..16].try_into().unwrap()))
}

#[tokio::test]
async fn heavy_case_1_dash_declares_what_its_segments_hold() {
    let setup = Setup::of(&["ntsc.mkv"]);
    let server = setup.start().await;
    let wish = json!({"video": "encode", "segmentSeconds": 3, "maxHeight": 180});
    let play = Manifest::open(&server, "ntsc.mkv", wish).await.unwrap();
    let picture = play.picture();
    let last = picture.segments.len() - 1;
    let mut frames = 0;
    for (n, (start, length)) in picture.segments.iter().enumerate() {
        let held = head(&play.segment(&server, picture, "0", n).await);
        let off = held.start.abs_diff(*start) as f64 / picture.timescale as f64;
        assert!(off < NTSC_FRAME / 2.0, "segment {n}: {start} declared, {held:?}");
        frames += held.samples;
        if n < last {
            assert_eq!((held.samples, *length), (72, 270_270), "segment {n}");
        }
    }
    let source = packets(&clip("ntsc.mkv")).await;
    assert_eq!(frames as usize, source.video.len());
    let end = picture.segments[last];
    let end = picture.seconds(end.0 + end.1);
    assert!((end - (source.video.end() - source.video.start())).abs() < NTSC_FRAME);
    let sound = play.sounds()[0];
    let number = &sound.representations[0];
    assert_eq!(
        timescale(&play.init(&server, sound, number).await),
        sound.timescale
    );
    for (n, (start, _)) in sound.segments.iter().enumerate() {
        let held = head(&play.segment(&server, sound, number, n).await);
        assert_eq!(held.start, *start, "sound of segment {n}");
    }
    server.stop().await;
}

#[tokio::test]
async fn heavy_ffmpeg_reads_a_manifest_to_its_end() {
    let setup = Setup::of(&["three-languages.mkv"]);
    let server = setup.start().await;
    let wish = json!({"video": "encode", "ladder": true});
    let play = Manifest::open(&server, "three-languages.mkv", wish)
        .await
        .unwrap();
    assert!(play.picture().representations.len() > 1);
    let languages: Vec<_> = play
        .sounds()
        .iter()
        .map(|sound| sound.language.clone().unwrap())
        .collect();
    assert_eq!(languages, ["en", "fr", "ja"]);
    let url = format!("http://{}{}", server.address, play.url);
    let mut probe = program("ffprobe");
    probe.args([
        "-v",
        "error",
        "-of",
        "csv=p=0",
        "-show_entries",
        "stream=index,codec_type",
        &url,
    ]);
    let output = run(&mut probe).await;
    // Each stream is listed twice, once in its program.
    let kinds = String::from_utf8(output.stdout).unwrap();
    let streams: BTreeSet<&str> = kinds.lines().filter(|line| !line.is_empty()).collect();
    let count = |kind: &str| streams.iter().filter(|line| line.ends_with(kind)).count();
    assert_eq!(count("video"), play.picture().representations.len(), "{kinds}");
    assert_eq!(count("audio"), 3, "{kinds}");
    let mut decode = program("ffmpeg");
    decode.args([
        "-nostdin", "-v", "error", "-i", &url, "-map", "0:v:0", "-map", "0:a:2",
    ]);
    decode.args(["-f", "framecrc", "-"]);
    let output = run(&mut decode).await;
    assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    let frames = String::from_utf8(output.stdout).unwrap();
    let pictures = frames.lines().filter(|line| line.starts_with("0,")).count();
    assert_eq!(pictures, 750, "thirty seconds of 25 frames");
    server.stop().await;
}

/// The first, a middle and the last segment of every representation of every real film start where the
/// manifest says.
#[tokio::test]
async fn heavy_real_films_keep_the_times_of_their_manifests() {
    let Some(folder) = real_films() else {
        return;
    };
    let setup = Setup::new().folders(&[&folder]);
    let server = setup.start().await;
    let library = server
        .library(|library| !library["items"].as_array().unwrap().is_empty())
        .await;
    let client = json!({
        "video": ["avc1.640033", "av01.0.08M.08", "vp09.00.40.08"],
        "audio": ["mp4a.40.2", "opus", "flac", "mp3"],
    });
    let mut failures = BTreeMap::new();
    let files = library["items"].as_array().unwrap().iter();
    for file in files.map(|item| item["file"].as_str().unwrap()) {
        match Manifest::open(&server, file, json!({"client": client.clone(), "maxHeight": 360})).await {
            Err(refused) => {
                assert!(refused["code"].is_string(), "{file}: {refused}");
                println!("{file}: {refused}");
            }
            Ok(play) => {
                let wrong = misplaced(&server, &play).await;
                println!("{file}: {} sets, {wrong:?}", play.sets.len());
                if !wrong.is_empty() {
                    failures.insert(file.to_owned(), wrong);
                }
                let target = format!("/ether/api/sessions/{}", play.session["id"].as_str().unwrap());
                server.api(hyper::Method::DELETE, &target, None).await.expect(204);
            }
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
    server.rests().await;
    server.stop().await;
}

/// Segments that start elsewhere than declared, in words.
async fn misplaced(server: &Server, play: &Manifest) -> Vec<String> {
    let mut wrong = Vec::new();
    for set in &play.sets {
        for number in &set.representations {
            let scale = timescale(&play.init(server, set, number).await);
            let last = set.segments.len() - 1;
            for n in [0, last / 2, last] {
                let bytes = play.segment(server, set, number, n).await;
                let declared = set.segments[n].0 as f64 / set.timescale as f64;
                // Sound that ends before the picture leaves its last segments empty.
                let Some(moof) = find(&bytes, b"moof") else {
                    continue;
                };
                if find(moof, b"traf").is_none() {
                    continue;
                }
                let held = head(&bytes).start as f64 / scale as f64;
                // Pictures of varying rate lie within a frame of the bound, sound within one of its frames.
                if (held - declared).abs() > 0.1 {
                    wrong.push(format!(
                        "{} {number}/{n}: {declared} declared, {held} held",
                        set.kind
                    ));
                }
            }
        }
    }
    wrong
}
