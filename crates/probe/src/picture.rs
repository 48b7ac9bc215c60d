//! The library's pictures: one frame of the film, or its cover.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use ether_media::{Facts, FieldOrder, MasteringKind, Stream, Ticks, VideoFacts};
use ether_process::Spec;

use crate::error::PictureError;
use crate::ffprobe::{FORMATS, PROTOCOLS};
use crate::run::{Runner, Unfinished};

/// How much of the film is looked through for a frame that is not black.
const LOOK: &str = "90";
/// Mean brightness (of 255) under which a frame is called black; a black frame in video range has 16.
const DARK: u32 = 36;

/// How hard an attempt tries.
#[derive(Clone, Copy, PartialEq)]
enum Attempt {
    /// A representative one of the keyframes that are not dark.
    Bright,
    /// Whatever can be decoded first.
    Any,
}

/// Makes a JPEG of the film at about `at` after its start, or of its cover.
pub(crate) async fn make(
    runner: &Runner,
    program: &Path,
    file: Arc<File>,
    facts: &Facts,
    at: Ticks,
    width: u32,
) -> Result<Bytes, PictureError> {
    let cover = || facts.streams.iter().find(|s| s.video().is_some_and(|v| v.still));
    let stream = facts.main_video().or_else(cover).ok_or(PictureError::NoPicture)?;
    let video = stream.video().ok_or(PictureError::NoPicture)?;
    // Input seeking counts from the file's first timestamp, as the offset does.
    let at = at.max(Ticks::ZERO);
    let attempts: &[(Attempt, Ticks)] = if video.still {
        &[(Attempt::Any, Ticks::ZERO)]
    } else {
        &[
            (Attempt::Bright, at),
            (Attempt::Any, at),
            (Attempt::Any, Ticks::ZERO),
        ]
    };
    let width = width.clamp(16, 1920) / 2 * 2;
    for (attempt, at) in attempts.iter().copied() {
        let arguments = Arguments {
            program: program.to_owned(),
            stream: stream.clone(),
            filter: filter(video, width, attempt),
            attempt,
            at,
        };
        let finished = runner
            .run(Arc::clone(&file), move |url| arguments.spec(url))
            .await
            .map_err(unfinished)?;
        if finished.stdout.starts_with(&[0xff, 0xd8]) {
            return Ok(Bytes::from(finished.stdout));
        }
    }
    Err(PictureError::Undecodable)
}

struct Arguments {
    program: PathBuf,
    stream: Stream,
    filter: String,
    attempt: Attempt,
    at: Ticks,
}

impl Arguments {
    fn spec(&self, url: &str) -> Spec {
        let mut spec = Spec::new(&self.program);
        spec.args(["-hide_banner", "-v", "error", "-nostdin"])
            .args(["-protocol_whitelist", PROTOCOLS, "-format_whitelist", FORMATS])
            // The turn is made here, once, from the facts.
            .args(["-threads", "1", "-noautorotate"]);
        if self.attempt == Attempt::Bright {
            spec.args(["-skip_frame", "nokey", "-t", LOOK]);
        }
        if self.at > Ticks::ZERO {
            spec.args(["-ss", &self.at.to_string()]);
        }
        spec.args(["-i", url, "-an", "-sn", "-dn"])
            .args(["-map", &format!("0:{}", self.stream.index)])
            .args(["-vf", &self.filter, "-frames:v", "1"])
            .args(["-c:v", "mjpeg", "-q:v", "4", "-f", "image2pipe", "pipe:1"])
            .nice(15)
            .oom_score_adj(800);
        spec
    }
}

fn filter(video: &VideoFacts, width: u32, attempt: Attempt) -> String {
    let mut chain: Vec<String> = Vec::new();
    let interlaced = matches!(
        video.field_order,
        Some(FieldOrder::TopFirst | FieldOrder::BottomFirst | FieldOrder::Unknown)
    );
    if interlaced {
        chain.push("yadif=deint=interlaced".into());
    }
    let turned = matches!(video.rotation.degrees, 90 | 270);
    chain.push(match size(video, width) {
        Some((w, h)) if turned => format!("scale={h}:{w}"),
        Some((w, h)) => format!("scale={w}:{h}"),
        None => format!("scale={width}:-2"),
    });
    if attempt == Attempt::Bright && video.color.mastering() != MasteringKind::Sdr {
        chain.push(
            "zscale=t=linear:npl=100,format=gbrpf32le,zscale=p=bt709,tonemap=hable:desat=0,\
             zscale=t=bt709:m=bt709:r=tv"
                .into(),
        );
    }
    chain.push("setsar=1,format=yuv420p".into());
    if video.rotation.mirrored {
        chain.push("hflip".into());
    }
    match video.rotation.degrees {
        90 => chain.push("transpose=clock".into()),
        180 => chain.push("hflip,vflip".into()),
        270 => chain.push("transpose=cclock".into()),
        _ => {}
    }
    if attempt == Attempt::Bright {
        chain.push(format!(
            "signalstats,metadata=mode=select:key=lavfi.signalstats.YAVG:value={DARK}:function=greater,thumbnail=n=8"
        ));
    }
    chain.push("format=yuvj420p".into());
    chain.join(",")
}

/// Width and height as shown: upright, with square pixels, both even.
fn size(video: &VideoFacts, width: u32) -> Option<(u32, u32)> {
    if video.width == 0 || video.height == 0 {
        return None;
    }
    let aspect = video.sample_aspect.map_or(1.0, |a| a.as_f64());
    let (mut w, mut h) = (f64::from(video.width) * aspect, f64::from(video.height));
    if matches!(video.rotation.degrees, 90 | 270) {
        (w, h) = (h, w);
    }
    let height = (f64::from(width) * h / w / 2.0).round().clamp(8.0, 2160.0) as u32 * 2;
    Some((width, height))
}

fn unfinished(unfinished: Unfinished) -> PictureError {
    match unfinished {
        Unfinished::Spawn(error) => PictureError::Ffmpeg(error),
        Unfinished::TimedOut => PictureError::TimedOut,
        Unfinished::TooMuchOutput => PictureError::TooMuchOutput,
        Unfinished::Loopback(error) | Unfinished::Unreadable(error) => PictureError::Loopback(error),
        Unfinished::Stopped => PictureError::Stopped,
    }
}
