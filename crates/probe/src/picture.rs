//! The library's pictures: one frame of the film, or its cover.
//!
//! Films open with black, with logos and with titles, and some hold long white or empty stretches. Of a few
//! keyframes spread over a stretch, those are kept in which brightness and the spread of tones say that there is
//! something to see, and of these the one in which most varies: its JPEG is the largest. Where a stretch has
//! none, another is looked at.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use ether_media::{Facts, FieldOrder, MasteringKind, Stream, Ticks, VideoFacts};
use ether_process::Spec;

use crate::error::PictureError;
use crate::ffprobe::{FORMATS, PROTOCOLS};
use crate::run::{MAX_OUTPUT, Runner, Unfinished};

/// How much of the film is looked through at one place, in seconds. All of it is read, keyframes or not.
const LOOK: u32 = 40;
/// Mean brightness (of 255) under which a frame is called black; a black frame in video range has 16.
const DARK: u32 = 36;
/// Spread of tones (0 for one tone, 1 for all of them alike) under which a frame is called plain: an empty
/// one has 0, a title on black a few hundredths, drawn and filmed pictures have 0.4 and more.
const PLAIN: &str = "0.15";
/// Frames that are compared at most.
const FRAMES: u32 = 8;

/// How hard an attempt tries.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Attempt {
    /// The richest of some keyframes that are neither dark nor plain.
    Rich,
    /// The richest of some keyframes that are not dark.
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
    let attempts = if video.still {
        vec![(Attempt::Any, Ticks::ZERO)]
    } else {
        let rich = places(at, facts.duration).into_iter();
        let last = [
            (Attempt::Bright, at),
            (Attempt::Any, at),
            (Attempt::Any, Ticks::ZERO),
        ];
        rich.map(|at| (Attempt::Rich, at)).chain(last).collect()
    };
    let width = width.clamp(16, 1920) / 2 * 2;
    for (attempt, at) in attempts {
        let left = facts.duration.map(|duration| (duration - at).as_secs_f64());
        let step = left.map_or(f64::from(LOOK), |left| left.min(f64::from(LOOK))) / f64::from(FRAMES);
        let arguments = Arguments {
            program: program.to_owned(),
            stream: stream.clone(),
            filter: filter(video, width, attempt, step),
            frames: frames(video, width, attempt),
            attempt,
            at,
        };
        let finished = runner
            .run(Arc::clone(&file), move |url| arguments.spec(url))
            .await
            .map_err(unfinished)?;
        if let Some(richest) = jpegs(&finished.stdout).max_by_key(|jpeg| jpeg.len()) {
            return Ok(Bytes::copy_from_slice(richest));
        }
    }
    Err(PictureError::Undecodable)
}

/// Where to look for a picture: from `at` on, then at each fifth of the film and at its start, as far as they
/// were not looked through before.
fn places(at: Ticks, duration: Option<Ticks>) -> Vec<Ticks> {
    let mut places = vec![at];
    let whole = duration.unwrap_or_default();
    let fifths = (1..5).map(|n| Ticks(whole.0 / 5 * n));
    for place in fifths.chain([Ticks::ZERO]) {
        let look = Ticks(i64::from(LOOK) * Ticks::HZ);
        let seen = |from: &Ticks| (from.0..from.0 + look.0).contains(&place.0);
        if !places.iter().any(seen) {
            places.push(place);
        }
    }
    places
}

/// Frames that one attempt gives at most: as many as are compared, and as fit into what a tool may write.
fn frames(video: &VideoFacts, width: u32, attempt: Attempt) -> u32 {
    let height = size(video, width).map_or(width, |(_, height)| height);
    // A JPEG of this quality has less than a byte a pixel.
    let fit = MAX_OUTPUT / u64::from(width * height);
    match attempt {
        Attempt::Any => 1,
        _ => u32::try_from(fit).unwrap_or(FRAMES).clamp(1, FRAMES),
    }
}

/// The whole JPEGs in a row of them. Their markers stand nowhere else in them.
fn jpegs(mut row: &[u8]) -> impl Iterator<Item = &[u8]> {
    const FIRST: [u8; 2] = [0xff, 0xd8];
    const LAST: [u8; 2] = [0xff, 0xd9];
    std::iter::from_fn(move || {
        let end = row.windows(2).position(|pair| pair == LAST)? + LAST.len();
        let (jpeg, rest) = row.split_at_checked(end)?;
        row = rest;
        jpeg.starts_with(&FIRST).then_some(jpeg)
    })
}

struct Arguments {
    program: PathBuf,
    stream: Stream,
    filter: String,
    frames: u32,
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
        if self.attempt != Attempt::Any {
            spec.args(["-skip_frame", "nokey", "-t", &LOOK.to_string()]);
        }
        if self.at > Ticks::ZERO {
            spec.args(["-ss", &self.at.to_string()]);
        }
        spec.args(["-i", url, "-an", "-sn", "-dn"])
            .args(["-map", &format!("0:{}", self.stream.index)])
            .args(["-vf", &self.filter, "-frames:v", &self.frames.to_string()])
            .args(["-fps_mode", "passthrough"])
            .args(["-c:v", "mjpeg", "-q:v", "4", "-f", "image2pipe", "pipe:1"])
            .nice(15)
            .oom_score_adj(800);
        spec
    }
}

/// What is done to frames, of which those are looked at that are `step` seconds apart.
fn filter(video: &VideoFacts, width: u32, attempt: Attempt, step: f64) -> String {
    let mut chain: Vec<String> = Vec::new();
    if attempt != Attempt::Any {
        chain.push(format!(
            "select='isnan(prev_selected_t)+gte(t-prev_selected_t,{:.3})'",
            step.max(0.0)
        ));
    }
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
    if attempt != Attempt::Any && video.color.mastering() != MasteringKind::Sdr {
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
    if attempt != Attempt::Any {
        chain.push(format!(
            "signalstats,metadata=mode=select:key=lavfi.signalstats.YAVG:value={DARK}:function=greater"
        ));
    }
    if attempt == Attempt::Rich {
        chain.push(format!(
            "entropy,metadata=mode=select:key=lavfi.entropy.normalized_entropy.normal.Y:value={PLAIN}:\
             function=greater"
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_place_is_looked_through_twice() {
        let at = |seconds: i64| Ticks(seconds * Ticks::HZ);
        assert_eq!(places(at(10), Some(at(50))), [at(10), at(0)]);
        assert_eq!(places(at(0), Some(at(40))), [at(0)]);
        assert_eq!(places(at(10), None), [at(10), at(0)]);
        let hours = places(at(300), Some(at(6_000)));
        assert_eq!(
            hours,
            [at(300), at(1_200), at(2_400), at(3_600), at(4_800), at(0)]
        );
    }

    #[test]
    fn half_a_jpeg_is_none() {
        let row = [
            0xff, 0xd8, 1, 0xff, 0xd9, 0xff, 0xd8, 2, 3, 0xff, 0xd9, 0xff, 0xd8, 4,
        ];
        let found: Vec<usize> = jpegs(&row).map(<[u8]>::len).collect();
        assert_eq!(found, [5, 6]);
        assert_eq!(jpegs(b"no picture at all").count(), 0);
        assert_eq!(jpegs(&[]).count(), 0);
    }
}
