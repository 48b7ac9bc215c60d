//! What is done to the picture before it is encoded.
//!
//! The chain has two parts: what every quality shares (the cut at the run's start, fields, dynamic range,
//! drawn subtitles), done once, and what makes one quality of it (size and sample format).

use ether_encoder::{Rung, VideoAction, VideoEncode, VideoTrack};
use ether_media::{Cut, Ticks, Timeline};

use super::Arguments;
use crate::strand::{RungSet, Strand};

/// Maps the picture to the outputs, filtered where it is encoded; nothing shown before `cut` on the timeline is
/// among it.
pub(super) fn map(
    args: &mut Arguments,
    strand: &Strand,
    video: &VideoTrack,
    rungs: RungSet,
    cut: Option<Ticks>,
) {
    let VideoAction::Encode(encode) = &video.action else {
        args.add("-map");
        return args.one(format!("0:{}", video.stream));
    };
    let shared = shared(strand, encode, cut).join(",");
    let rung = |n: usize| encode.rungs.get(n).map(|rung| quality(encode, rung).join(","));
    let qualities: Vec<String> = rungs.iter().filter_map(rung).collect();
    let chain = match qualities.as_slice() {
        [one] if shared.is_empty() => format!("[0:{}]{one}[v0]", video.stream),
        [one] => format!("[0:{}]{shared},{one}[v0]", video.stream),
        several => {
            let count = several.len();
            let pads = |name: &str| (0..count).map(|n| format!("[{name}{n}]")).collect::<String>();
            let shared = if shared.is_empty() {
                String::new()
            } else {
                shared + ","
            };
            let mut chain = format!("[0:{}]{shared}split={count}{}", video.stream, pads("s"));
            for (n, quality) in several.iter().enumerate() {
                chain.push_str(&format!(";[s{n}]{quality}[v{n}]"));
            }
            chain
        }
    };
    args.add("-filter_complex");
    args.one(chain);
    for n in 0..qualities.len() {
        args.add("-map");
        args.one(format!("[v{n}]"));
    }
}

/// The filters that all qualities share.
fn shared(strand: &Strand, encode: &VideoEncode, cut: Option<Ticks>) -> Vec<String> {
    let mut filters = Vec::new();
    // The file's own beginning is never cut: its first frame is the first frame.
    if let Some(cut) = cut {
        let cut = strand.timeline.origin() + cut;
        filters.push(format!("trim=start={cut}"));
    }
    if encode.deinterlace {
        filters.push("bwdif=mode=send_frame:deint=interlaced".to_owned());
    }
    filters
}

/// The filters that make one quality.
fn quality(_encode: &VideoEncode, rung: &Rung) -> Vec<String> {
    vec![
        format!("scale={}:{}:flags=bicubic", rung.width, rung.height),
        "setsar=1".to_owned(),
        "format=yuv420p".to_owned(),
    ]
}

/// The times at which frames are forced to be keyframes, as FFmpeg compares them: at or after each.
pub(super) fn forced_keyframes(timeline: &Timeline, first: u32, until: Option<usize>) -> String {
    let slack = slack(timeline);
    let end = until.unwrap_or(timeline.len()).min(timeline.len());
    let times =
        (first as usize + 1..end).map(|n| (timeline.origin() + timeline.start(n) - slack).to_string());
    times.collect::<Vec<_>>().join(",")
}

/// How much before a bound a frame may be shown and still belong to it.
pub(super) fn slack(timeline: &Timeline) -> Ticks {
    match timeline.cut() {
        Cut::Grid { slack, .. } => slack,
        Cut::Keyframes => Ticks::ZERO,
    }
}
