//! The text tracks of an item: which there are, what they are called, and when their lines are shown.

use ether_media::decision::{Decision, Protocol};
use ether_media::subtitles::Clock;
use ether_media::{StreamKind, Ticks};

use crate::language;
use crate::plan::Names;
use crate::ports::ItemDetail;
use crate::presentation::{Packaging, Text};

/// What transport streams' clock reads at the presentation's start (the contract of segments).
const TRANSPORT_ZERO: Ticks = Ticks(10 * Ticks::HZ);

/// The text tracks of `item`, those of the file first; `chosen` is the one that is shown unless another is chosen.
/// Nothing is shown by itself where nothing was chosen, except what is forced.
pub(crate) fn of(item: &ItemDetail, chosen: Option<u32>) -> Vec<Text> {
    let mut names = Names::default();
    let embedded = item.facts.streams.iter().filter_map(|stream| match &stream.kind {
        StreamKind::Subtitle(subtitle) if subtitle.text => Some((stream, subtitle.hearing_impaired)),
        _ => None,
    });
    let mut texts: Vec<Text> = Vec::new();
    for (stream, hearing_impaired) in embedded {
        let language = stream.language.as_deref().and_then(language::tag);
        let name = names.name(Some(stream), language.as_deref(), || "Subtitles".to_owned());
        texts.push(Text {
            stream: stream.index,
            name,
            language,
            default: chosen == Some(stream.index),
            forced: stream.forced,
            hearing_impaired,
        });
    }
    for sidecar in &item.sidecars {
        let language = sidecar.language.as_deref().and_then(language::tag);
        let otherwise = || match (&sidecar.title, &language) {
            (Some(title), _) => title.clone(),
            (None, Some(language)) => language.clone(),
            (None, None) => sidecar.name.clone(),
        };
        let name = names.name(None, None, otherwise);
        texts.push(Text {
            stream: sidecar.stream,
            name,
            language,
            default: chosen == Some(sidecar.stream),
            forced: sidecar.forced,
            hearing_impaired: sidecar.hearing_impaired,
        });
    }
    texts
}

/// When the lines of `stream` are shown by a player that was decided for so. Files beside a film count from what
/// its viewer sees first.
pub(crate) fn clock(item: &ItemDetail, decision: &Decision, stream: u32) -> Clock {
    let external = item.sidecars.iter().any(|sidecar| sidecar.stream == stream);
    let zero = match decision.protocol {
        _ if external => Ticks::ZERO,
        // Whoever gets the file itself counts from its earliest stream.
        None => item.facts.start,
        Some(Protocol::Hls | Protocol::Dash | Protocol::Http) => decision.timeline.origin(),
    };
    Clock {
        zero,
        end: decision.timeline.end(),
    }
}

/// What the clock in segments reads at the presentation's zero: the first frame is later than the clock's own
/// zero where sound begins before it.
pub(crate) fn media_clock(decision: &Decision, container: Option<Packaging>) -> Ticks {
    let lead = decision.timeline.lead();
    match container {
        Some(Packaging::MpegTs) => lead + TRANSPORT_ZERO,
        _ => lead,
    }
}
