//! What viewers see and hear of an execution: segments decoded by an FFmpeg that had no part in making them.

use std::path::Path;
use std::time::Duration;

use ether_encoder::{
    AudioAction, AudioCodec, AudioEncode, Execution, Request, Resource, Rung, VideoAction, VideoEncode,
};
use ether_process::{Bounds, Spec};

use super::film::Major;
use super::film::{ENCODE, Film, Make, Studio, fetch};

/// An encoder for each FFmpeg that is here.
pub(crate) async fn studios() -> Vec<Studio> {
    let mut studios = vec![Studio::open().await];
    if let Some(current) = Major::Current.program() {
        studios.push(Studio::with(&current).await);
    }
    studios
}

/// Runs `program`, which must succeed, and gives what it writes.
pub(crate) async fn tool(studio: &Studio, program: &str, args: &[&str]) -> Vec<u8> {
    let mut spec = Spec::new(program);
    spec.args(args).stdout_pipe();
    let bounds = Bounds {
        stdin: None,
        max_output: 64 << 20,
        deadline: Duration::from_secs(60),
    };
    let output = studio.spawner().run_bounded(spec, bounds).await.unwrap();
    assert!(
        output.evidence.status().success(),
        "{program} {args:?}: {:?}",
        output.stderr
    );
    output.stdout
}

/// A film that FFmpeg makes with `args`, all but the name of the file.
pub(crate) async fn film(studio: &Studio, name: &str, args: &str) -> Film {
    let path = studio.dir().join(name);
    let path = path.to_str().unwrap();
    let words = "-hide_banner -loglevel error -nostdin -y".split(' ');
    let args = words.chain(args.split_whitespace()).chain([path]);
    tool(studio, "ffmpeg", &args.collect::<Vec<_>>()).await;
    Film::open(path.into())
}

/// A real film, where the folder of them is here.
pub(crate) fn real(name: &str) -> Option<std::path::PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/media");
    let root = std::env::var_os("ETHER_MEDIA").map_or(root, Into::into);
    let path = root.join(name);
    if path.exists() {
        return Some(path);
    }
    eprintln!("skipped: {} is not here", path.display());
    None
}

/// A request for one small quality, one second a segment.
pub(crate) fn small(film: &Film, size: (u32, u32), change: impl FnOnce(&mut VideoEncode)) -> Request {
    let mut request = film.request(Make { target: 1, ..ENCODE });
    let Some(VideoAction::Encode(encode)) = request.video.as_mut().map(|video| &mut video.action) else {
        panic!("the film has no picture");
    };
    encode.rungs = vec![Rung {
        width: size.0,
        height: size.1,
        max_bit_rate: 4_000_000,
        level: 31,
    }];
    change(encode);
    request
}

/// The same without a picture, its sound encoded as `codec` with so many channels.
pub(crate) fn heard(film: &Film, codec: AudioCodec, channels: u16) -> Request {
    let mut request = film.request(Make { target: 1, ..ENCODE });
    request.video = None;
    request.audio[0].action = AudioAction::Encode(AudioEncode {
        codec,
        channels,
        sample_rate: 48_000,
        bit_rate: 64_000 * u64::from(channels),
    });
    request
}

/// The initialization segment and the segments `numbers` of `representation`, in a file.
pub(crate) async fn record(
    studio: &Studio,
    execution: &dyn Execution,
    representation: u32,
    numbers: impl IntoIterator<Item = u32>,
) -> std::path::PathBuf {
    let mut bytes = fetch(execution, Resource::Init { representation }).await.unwrap();
    let mut name = format!("record-{representation}");
    for number in numbers {
        let segment = Resource::Segment {
            representation,
            number,
        };
        bytes.extend(fetch(execution, segment).await.unwrap());
        name.push_str(&format!("-{number}"));
    }
    let path = studio.dir().join(name + ".mp4");
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Pictures as planes of samples, in the order in which they are shown.
pub(crate) struct Pictures {
    pub(crate) width: usize,
    pub(crate) height: usize,
    frames: Vec<Vec<u16>>,
}

impl Pictures {
    /// Decodes `file`, whose pictures have `size` and come out as `format` without being scaled.
    pub(crate) async fn of(studio: &Studio, file: &Path, size: (u32, u32), format: &str) -> Self {
        let bytes = tool(
            studio,
            "ffmpeg",
            &[
                "-hide_banner",
                "-loglevel",
                "error",
                "-nostdin",
                "-noautorotate",
                "-i",
                file.to_str().unwrap(),
                "-map",
                "0:v",
                "-fps_mode",
                "passthrough",
                "-pix_fmt",
                format,
                "-f",
                "rawvideo",
                "-",
            ],
        )
        .await;
        let samples: Vec<u16> = if format.ends_with("10le") {
            bytes
                .chunks_exact(2)
                .map(|b| u16::from_le_bytes([b[0], b[1]]))
                .collect()
        } else {
            bytes.into_iter().map(u16::from).collect()
        };
        let (width, height) = (size.0 as usize, size.1 as usize);
        let frame = width * height + 2 * width.div_ceil(2) * height.div_ceil(2);
        assert_eq!(samples.len() % frame, 0, "pictures of another size");
        let frames = samples.chunks_exact(frame).map(<[u16]>::to_vec).collect();
        Self {
            width,
            height,
            frames,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.frames.len()
    }

    /// Luma of picture `n` at a place.
    pub(crate) fn luma(&self, n: usize, x: usize, y: usize) -> f64 {
        f64::from(self.frames[n][y * self.width + x])
    }

    /// Luma and both chroma around a place of picture `n`, averaged over eight by eight samples.
    pub(crate) fn around(&self, n: usize, x: usize, y: usize) -> [f64; 3] {
        let frame = &self.frames[n];
        let (wide, high) = (self.width.div_ceil(2), self.height.div_ceil(2));
        let mean = |from: usize, stride: usize, x: usize, y: usize, side: usize| {
            let rows = (y - side / 2)..(y + side / 2);
            let sum: u32 = rows
                .flat_map(|row| &frame[from + row * stride + x - side / 2..][..side])
                .map(|s| u32::from(*s))
                .sum();
            f64::from(sum) / (side * side) as f64
        };
        let luma = self.width * self.height;
        [
            mean(0, self.width, x, y, 8),
            mean(luma, wide, x / 2, y / 2, 4),
            mean(luma + wide * high, wide, x / 2, y / 2, 4),
        ]
    }

    /// Mean of the luma of picture `n`.
    pub(crate) fn brightness(&self, n: usize) -> f64 {
        let luma = &self.frames[n][..self.width * self.height];
        luma.iter().map(|s| f64::from(*s)).sum::<f64>() / luma.len() as f64
    }

    /// Mean difference of all samples of picture `n` to those of another of the same size.
    pub(crate) fn distance(&self, n: usize, other: &Self, m: usize) -> f64 {
        let (a, b) = (&self.frames[n], &other.frames[m]);
        assert_eq!(a.len(), b.len());
        let sum: u64 = a.iter().zip(b).map(|(a, b)| u64::from(a.abs_diff(*b))).sum();
        sum as f64 / a.len() as f64
    }
}

/// What a stream says of its samples: range, matrix, transfer, primaries.
pub(crate) async fn tags(studio: &Studio, file: &Path) -> String {
    let entries = "stream=color_range,color_space,color_transfer,color_primaries";
    let args = [
        "-v",
        "error",
        "-select_streams",
        "v",
        "-show_entries",
        entries,
        "-of",
        "csv=p=0",
    ];
    let args = args.iter().copied().chain([file.to_str().unwrap()]);
    let text = tool(studio, "ffprobe", &args.collect::<Vec<_>>()).await;
    String::from_utf8(text).unwrap().trim().to_owned()
}

/// Sound as one row of samples for each channel, from the presentation's zero on, 48,000 a second.
pub(crate) async fn sound(studio: &Studio, file: &Path, channels: usize) -> Vec<Vec<f64>> {
    let args = "-hide_banner -loglevel error -nostdin -copyts -i";
    let after = "-map 0:a -af aresample=48000:async=1:first_pts=0 -f f32le -";
    let args = args
        .split(' ')
        .chain([file.to_str().unwrap()])
        .chain(after.split(' '));
    let bytes = tool(studio, "ffmpeg", &args.collect::<Vec<_>>()).await;
    let sample = |b: &[u8]| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let samples: Vec<f64> = bytes.chunks_exact(4).map(sample).collect();
    (0..channels)
        .map(|n| samples.iter().skip(n).step_by(channels).copied().collect())
        .collect()
}

/// How strong a tone of so many hertz is among `samples`, as the amplitude of its sine.
pub(crate) fn tone(samples: &[f64], hertz: f64) -> f64 {
    let step = 2.0 * std::f64::consts::PI * hertz / 48_000.0;
    let parts = samples.iter().enumerate().fold((0.0, 0.0), |(re, im), (n, s)| {
        let (sin, cos) = (step * n as f64).sin_cos();
        (re + s * cos, im + s * sin)
    });
    2.0 * parts.0.hypot(parts.1) / samples.len() as f64
}
