//! What is done to the picture before it is encoded.
//!
//! The chain has two parts: what every quality shares (the cut at the run's start, fields, dynamic range,
//! drawn subtitles), done once, and what makes one quality of it (size and sample format).

use ether_encoder::{Rung, VideoAction, VideoEncode, VideoTrack};
use ether_media::{Cut, Ticks, Timeline};

use super::Arguments;
use super::codec::{self, Chain};
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
    let chain = Chain::of(strand, encode);
    let shared = shared(strand, encode, chain, cut).join(",");
    let rung = |n: usize| {
        let rung = encode.rungs.get(n)?;
        let filters = match chain {
            Some(chain) => chain.quality(encode, rung),
            None => quality(encode, rung),
        };
        Some(filters.join(","))
    };
    let qualities: Vec<String> = rungs.iter().filter_map(rung).collect();
    let graph = match qualities.as_slice() {
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
            let mut graph = format!("[0:{}]{shared}split={count}{}", video.stream, pads("s"));
            for (n, quality) in several.iter().enumerate() {
                graph.push_str(&format!(";[s{n}]{quality}[v{n}]"));
            }
            graph
        }
    };
    args.add("-filter_complex");
    args.one(graph);
    for n in 0..qualities.len() {
        args.add("-map");
        args.one(format!("[v{n}]"));
    }
}

/// The filters that all qualities share.
fn shared(strand: &Strand, encode: &VideoEncode, chain: Option<Chain>, cut: Option<Ticks>) -> Vec<String> {
    let mut filters = Vec::new();
    // The file's own beginning is never cut: its first frame is the first frame.
    if let Some(cut) = cut {
        let cut = strand.timeline.origin() + cut;
        filters.push(format!("trim=start={cut}"));
    }
    if let Some(chain) = chain {
        filters.extend(chain.shared(encode));
        return filters;
    }
    if encode.deinterlace {
        filters.push("bwdif=mode=send_frame:deint=interlaced".to_owned());
    }
    filters
}

/// The filters that make one quality.
fn quality(encode: &VideoEncode, rung: &Rung) -> Vec<String> {
    let mut filters = vec![
        format!("scale={}:{}:flags=bicubic", rung.width, rung.height),
        "setsar=1".to_owned(),
    ];
    filters.extend(codec::delivered(encode));
    filters
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
