//! Where real films are, and what FFmpeg's own tools see in a file: the independent witness of everything that is
//! served.

use std::path::{Path, PathBuf};

use crate::bed::{program, run};

/// Where the real films are: `ETHER_MEDIA`, else a folder beside the repository. Says so where there is none.
pub(crate) fn real_films() -> Option<PathBuf> {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/media");
    let folder = std::env::var_os("ETHER_MEDIA").map_or(beside, PathBuf::from);
    let found = folder.is_dir().then_some(folder);
    if found.is_none() {
        eprintln!("skipped: no real films (set ETHER_MEDIA to a folder of them)");
    }
    found
}

/// One packet.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Packet {
    pub(crate) stream: u64,
    pub(crate) pts: f64,
    pub(crate) duration: Option<f64>,
    pub(crate) size: u64,
    pub(crate) position: Option<u64>,
    pub(crate) key: bool,
}

/// Packets of one kind, in the order of the file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Track(pub(crate) Vec<Packet>);

impl Track {
    /// Time of the first picture that is shown, or of the first sound.
    pub(crate) fn start(&self) -> f64 {
        self.0
            .iter()
            .map(|packet| packet.pts)
            .fold(f64::INFINITY, f64::min)
    }

    /// Where the last one ends.
    pub(crate) fn end(&self) -> f64 {
        let ends = self
            .0
            .iter()
            .map(|packet| packet.pts + packet.duration.unwrap_or_else(|| self.step()));
        ends.fold(f64::NEG_INFINITY, f64::max)
    }

    /// The usual distance of two.
    pub(crate) fn step(&self) -> f64 {
        let mut times: Vec<f64> = self.0.iter().map(|packet| packet.pts).collect();
        times.sort_by(f64::total_cmp);
        let mut steps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
        steps.sort_by(f64::total_cmp);
        steps.get(steps.len() / 2).copied().unwrap_or(0.0)
    }

    /// The largest distance of two.
    pub(crate) fn longest_step(&self) -> f64 {
        let mut times: Vec<f64> = self.0.iter().map(|packet| packet.pts).collect();
        times.sort_by(f64::total_cmp);
        times.windows(2).map(|pair| pair[1] - pair[0]).fold(0.0, f64::max)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Of several streams of one kind, this one.
    pub(crate) fn only(&self, stream: u64) -> Self {
        Self(
            self.0
                .iter()
                .filter(|packet| packet.stream == stream)
                .cloned()
                .collect(),
        )
    }
}

/// The pictures and the sound of a file.
pub(crate) struct Packets {
    pub(crate) video: Track,
    pub(crate) audio: Track,
}

/// Lists the packets of a file.
pub(crate) async fn packets(file: &Path) -> Packets {
    let mut command = program("ffprobe");
    command.args(["-v", "error", "-of", "csv", "-show_entries"]);
    command
        .arg("packet=codec_type,stream_index,pts_time,duration_time,size,pos,flags")
        .arg(file);
    let output = run(&mut command).await;
    let (mut video, mut audio) = (Vec::new(), Vec::new());
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let fields: Vec<&str> = line.split(',').collect();
        let ["packet", kind, stream, pts, duration, size, position, flags, ..] = fields[..] else {
            continue;
        };
        let packet = Packet {
            stream: stream.parse().unwrap(),
            pts: pts.parse().unwrap_or(f64::NAN),
            duration: duration.parse().ok(),
            size: size.parse().unwrap(),
            position: position.parse().ok(),
            key: flags.starts_with('K'),
        };
        match kind {
            "video" => video.push(packet),
            "audio" => audio.push(packet),
            _ => {}
        }
    }
    Packets {
        video: Track(video),
        audio: Track(audio),
    }
}

/// What a decoding of the whole file complains about. Smoothing, which nobody sees here, is left out.
pub(crate) async fn complaints(file: &Path) -> String {
    let mut command = program("ffmpeg");
    command
        .args(["-nostdin", "-v", "error", "-skip_loop_filter", "all", "-i"])
        .arg(file)
        // Counted in frames of the claimed rate, times that a container rounded to milliseconds may fall together.
        .args(["-enc_time_base", "-1", "-f", "null", "-"]);
    let output = run(&mut command).await;
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A decoded picture as small grey samples, `width` by `height`, the first at or after `seconds`.
pub(crate) async fn picture(file: &Path, seconds: f64, width: usize, height: usize) -> Vec<u8> {
    let mut command = program("ffmpeg");
    command.args(["-nostdin", "-v", "error", "-i"]).arg(file);
    command.args([
        "-ss",
        &seconds.to_string(),
        "-frames:v",
        "1",
        "-pix_fmt",
        "gray",
        "-f",
        "rawvideo",
    ]);
    command.args(["-vf", &format!("scale={width}:{height}"), "-"]);
    let picture = run(&mut command).await.stdout;
    assert_eq!(picture.len(), width * height);
    picture
}

/// The size in which a decoder shows the file, rotation applied.
pub(crate) async fn shown_size(file: &Path) -> (usize, usize) {
    let mut command = program("ffmpeg");
    command.args(["-nostdin", "-v", "error", "-i"]).arg(file);
    command.args([
        "-frames:v",
        "1",
        "-f",
        "image2pipe",
        "-c:v",
        "pgm",
        "-pix_fmt",
        "gray",
        "-",
    ]);
    let head = run(&mut command).await.stdout;
    let head = String::from_utf8_lossy(&head[..20]).into_owned();
    let mut words = head.split_ascii_whitespace().skip(1);
    let mut number = || words.next().unwrap().parse().unwrap();
    (number(), number())
}

/// Mean difference of two pictures, 0 to 255.
pub(crate) fn difference(one: &[u8], other: &[u8]) -> f64 {
    assert_eq!(one.len(), other.len());
    let sum: u64 = one
        .iter()
        .zip(other)
        .map(|(a, b)| u64::from(a.abs_diff(*b)))
        .sum();
    sum as f64 / one.len() as f64
}

/// Times at which pictures turn from dark to bright.
pub(crate) async fn flashes(file: &Path) -> Vec<f64> {
    let keys = measured(
        file,
        "-vf",
        "signalstats,metadata=print:key=lavfi.signalstats.YAVG:file=-",
    )
    .await;
    rises(&keys, 120.0)
}

/// Times at which sound begins after silence, in blocks of five milliseconds or less.
pub(crate) async fn beeps(file: &Path) -> Vec<f64> {
    let filter = "aresample=48000,asetnsamples=240,astats=metadata=1:reset=1,\
                  ametadata=print:key=lavfi.astats.Overall.RMS_level:file=-";
    let keys = measured(file, "-af", filter).await;
    rises(&keys, -12.0)
}

/// What a filter measured: time and value, on the file's clock.
async fn measured(file: &Path, kind: &str, filter: &str) -> Vec<(f64, f64)> {
    let mut command = program("ffmpeg");
    command
        .args(["-nostdin", "-v", "error", "-copyts", "-i"])
        .arg(file);
    command.args([
        kind,
        filter,
        if kind == "-vf" { "-an" } else { "-vn" },
        "-f",
        "null",
        "/dev/null",
    ]);
    let text = String::from_utf8(run(&mut command).await.stdout).unwrap();
    let (mut found, mut time) = (Vec::new(), f64::NAN);
    for line in text.lines() {
        if let Some((_, seconds)) = line.split_once("pts_time:") {
            time = seconds.trim().parse().unwrap();
        } else if let Some((_, value)) = line.split_once('=') {
            found.push((
                time,
                if value == "-inf" {
                    -200.0
                } else {
                    value.parse().unwrap()
                },
            ));
        }
    }
    found
}

fn rises(values: &[(f64, f64)], bar: f64) -> Vec<f64> {
    let above = |value: f64| value > bar;
    let pairs = values
        .windows(2)
        .filter(|pair| !above(pair[0].1) && above(pair[1].1));
    pairs.map(|pair| pair[1].0).collect()
}
