//! What is done to the picture before it is encoded.
//!
//! The chain has two parts: what every quality shares (the cut at the run's start, fields, dynamic range,
//! drawn subtitles), done once, and what makes one quality of it (size and sample format).

use std::ffi::{OsStr, OsString};

use ether_encoder::{Rung, VideoAction, VideoCodec, VideoEncode, VideoTrack};
use ether_media::{Container, Cut, Rotation, Ticks, Timeline, VideoFacts};

use super::Arguments;
use super::burn::{Burn, Canvas};
use super::codec::{self, Chain};
use super::color::{Conversion, Meaning};
use crate::strand::{RungSet, Strand};

/// Broken files show some pictures earlier than those before them: they would be crammed in behind.
const FORWARD: &str = "select=gt(t\\,prev_selected_t)+isnan(prev_selected_t)";
/// How much earlier than its film a frame may be shown through rounding alone.
const ROUNDING: Ticks = Ticks(Ticks::HZ / 500);
/// How long before a run's first frame fields are kept.
const FIELDS_AROUND: Ticks = Ticks(Ticks::HZ / 5);

/// Maps the picture to the outputs, filtered where it is encoded; nothing shown before `cut` on the timeline is
/// among it.
pub(super) fn map(
    args: &mut Arguments,
    strand: &Strand,
    video: &VideoTrack,
    rungs: RungSet,
    cut: Option<Ticks>,
    input: &OsStr,
) {
    let VideoAction::Encode(encode) = &video.action else {
        args.add("-map");
        return args.one(format!("0:{}", video.stream));
    };
    let rungs: Vec<&Rung> = rungs.iter().filter_map(|n| encode.rungs.get(n)).collect();
    let Some(best) = rungs.first() else { return };
    let unknown = VideoFacts::default();
    let facts = strand
        .facts
        .stream(video.stream)
        .and_then(|stream| stream.video());
    let look = Look::of(facts.unwrap_or(&unknown), encode, Chain::of(strand, encode));
    // The film begins with its first frame, except in a recording that begins amid one: what is decoded there
    // without all that it refers to may be shown earlier than the first whole picture.
    let amid = (strand.facts.container == Container::MpegTs)
        .then(|| Ticks::ZERO - slack(&strand.timeline).max(ROUNDING));
    let cut = cut.or(amid).map(|cut| strand.timeline.origin() + cut);
    let mut graph = OsString::from(format!(
        "[0:{}]{}",
        video.stream,
        look.shared(best, cut).join(",")
    ));
    if let Some(burn) = Burn::of(strand) {
        burn.draw(&mut graph, &look.canvas(best, cut), input);
    }
    let quality = |rung: &Rung| look.quality(rung).join(",");
    match rungs.as_slice() {
        [one] => graph.push(format!(",{}[v0]", quality(one))),
        several => {
            let pads: String = (0..several.len()).map(|n| format!("[s{n}]")).collect();
            graph.push(format!(",split={}{pads}", several.len()));
            for (n, rung) in several.iter().enumerate() {
                graph.push(format!(";[s{n}]{}[v{n}]", quality(rung)));
            }
        }
    }
    args.add("-filter_complex");
    args.one(graph);
    for n in 0..rungs.len() {
        args.add("-map");
        args.one(format!("[v{n}]"));
    }
}

/// How a source comes to look as it should.
struct Look<'a> {
    encode: &'a VideoEncode,
    source: &'a VideoFacts,
    meaning: Meaning,
    conversion: Conversion,
    /// Set where a device does all of it.
    chain: Option<Chain>,
}

impl<'a> Look<'a> {
    fn of(source: &'a VideoFacts, encode: &'a VideoEncode, chain: Option<Chain>) -> Self {
        let meaning = Meaning::of(source);
        Self {
            encode,
            source,
            chain,
            meaning,
            conversion: meaning.conversion(encode),
        }
    }

    /// The filters that all qualities share, subtitles apart; `cut` is on the file's clock.
    fn shared(&self, best: &Rung, cut: Option<Ticks>) -> Vec<String> {
        let mut filters = vec![FORWARD.to_owned()];
        if let Some(cut) = cut {
            // Fields are completed from the frames beside theirs, so those are still needed.
            let fields = if self.encode.deinterlace && self.chain.is_none() {
                FIELDS_AROUND
            } else {
                Ticks::ZERO
            };
            filters.push(format!("trim=start={}", cut - fields));
        }
        filters.push(self.meaning.marked());
        if let Some(chain) = self.chain {
            filters.extend(chain.shared(self.encode));
            return filters;
        }
        if self.encode.deinterlace {
            filters.push("bwdif=mode=send_frame:deint=interlaced".to_owned());
            filters.extend(cut.map(|cut| format!("trim=start={cut}")));
        }
        filters.extend(turn(self.source.rotation).map(str::to_owned));
        if self.conversion.is_dear() {
            filters.push(format!("scale={}:{}:flags=bicubic", best.width, best.height));
            filters.extend(self.conversion.filters());
        }
        if self.encode.burn.is_some() {
            filters.extend(self.sized(best));
            filters.push(format!("format={}", canvas_format(self.encode)));
        }
        filters
    }

    /// The filters that make one quality.
    fn quality(&self, rung: &Rung) -> Vec<String> {
        let mut filters = match (self.chain, self.encode.burn) {
            (Some(chain), _) => return chain.quality(self.encode, rung),
            // It has its colours and, in the best quality, its size already.
            (None, Some(_)) => vec![format!("scale={}:{}:flags=bicubic", rung.width, rung.height)],
            (None, None) => self.sized(rung),
        };
        filters.extend(codec::delivered(self.encode));
        filters.push(self.meaning.after(self.conversion).marked());
        filters
    }

    /// The size, in square pixels of limited range.
    fn sized(&self, rung: &Rung) -> Vec<String> {
        let (width, height, scaling) = (rung.width, rung.height, self.conversion.scaling());
        vec![
            format!("scale={width}:{height}:flags=bicubic:{scaling}"),
            "setsar=1".to_owned(),
        ]
    }

    /// What subtitles are drawn on.
    fn canvas(&self, best: &Rung, cut: Option<Ticks>) -> Canvas {
        let turned = matches!(self.source.rotation.degrees, 90 | 270);
        let (width, height) = (self.source.width, self.source.height);
        Canvas {
            size: (best.width, best.height),
            source: if turned { (height, width) } else { (width, height) },
            meaning: self.meaning.after(self.conversion),
            cut,
            deep: self.encode.codec == VideoCodec::Hevc,
        }
    }
}

/// The sample format that subtitles are drawn on.
fn canvas_format(encode: &VideoEncode) -> &'static str {
    match encode.codec {
        VideoCodec::H264 => "yuv420p",
        VideoCodec::Hevc => "yuv420p10le",
    }
}

/// The filters that turn a picture upright. FFmpeg's own are switched off: they are not the same in every version,
/// come before fields are woven, and know nothing of what was decided about the size. What was turned does not say
/// so any more: Matroska of newer versions would have players turn it again.
fn turn(rotation: Rotation) -> impl Iterator<Item = &'static str> {
    let mirrored = rotation.mirrored.then_some("hflip");
    let turned = match rotation.degrees {
        90 => Some("transpose=clock"),
        180 => Some("hflip,vflip"),
        270 => Some("transpose=cclock"),
        _ => None,
    };
    let forgotten = (rotation != Rotation::default()).then_some("sidedata=mode=delete:type=DISPLAYMATRIX");
    mirrored.into_iter().chain(turned).chain(forgotten)
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
