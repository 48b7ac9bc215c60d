//! Lays what `ffprobe` found into the places that native reading left open.

use ether_media::{AudioFacts, Facts, FactsSource, Gap, Stream, StreamKind, VideoFacts};

/// Whether there is anything that `ffprobe` could add.
pub(crate) fn wants_more(facts: &Facts) -> bool {
    facts.gaps.iter().any(|gap| match gap {
        Gap::Duration => true,
        // A cover's codec is described well enough by its size.
        Gap::CodecConfig { index } => facts
            .stream(*index)
            .is_some_and(|s| s.video().is_none_or(|v| !v.still)),
        Gap::Keyframes { .. } | Gap::Times { .. } | Gap::Truncated { .. } => false,
    })
}

/// Native facts, completed. What was read natively stands; only what is absent is filled in.
pub(crate) fn complete(mut native: Facts, other: &Facts) -> Facts {
    let same = native.streams.len() == other.streams.len();
    let mut closed = Vec::new();
    for stream in &mut native.streams {
        // Where the two count streams differently, nothing of one is known to belong to the other.
        let Some(found) = other.stream(stream.index).filter(|_| same) else {
            continue;
        };
        if fill(stream, found) {
            closed.push(stream.index);
        }
    }
    if native.duration.is_none() {
        native.duration = other.duration;
    }
    let still_open = |index: u32| other.gaps.contains(&Gap::CodecConfig { index });
    let estimated = other.gaps.contains(&Gap::Duration);
    native.gaps.retain(|gap| match gap {
        Gap::Duration => native.duration.is_none() || estimated,
        Gap::CodecConfig { index } => !closed.contains(index) || still_open(*index),
        _ => true,
    });
    native.source = FactsSource::Both;
    native
}

/// Fills in one stream; says whether the two describe the same kind.
fn fill(stream: &mut Stream, found: &Stream) -> bool {
    let codec_known = stream.codec.as_str() != "unknown";
    if !codec_known {
        stream.codec = found.codec.clone();
    }
    stream.language = stream.language.take().or_else(|| found.language.clone());
    stream.title = stream.title.take().or_else(|| found.title.clone());
    stream.start = stream.start.or(found.start);
    stream.duration = stream.duration.or(found.duration);
    stream.bit_rate = stream.bit_rate.or(found.bit_rate);
    match (&mut stream.kind, &found.kind) {
        (StreamKind::Video(native), StreamKind::Video(found)) => fill_video(native, found),
        (StreamKind::Audio(native), StreamKind::Audio(found)) => fill_audio(native, found),
        (StreamKind::Data, kind) if !codec_known => stream.kind = kind.clone(),
        (native, kind) => return std::mem::discriminant(native) == std::mem::discriminant(kind),
    }
    true
}

fn fill_video(native: &mut VideoFacts, found: &VideoFacts) {
    if native.width == 0 || native.height == 0 {
        (native.width, native.height) = (found.width, found.height);
    }
    native.sample_aspect = native.sample_aspect.or(found.sample_aspect);
    native.frame_rate = native.frame_rate.or(found.frame_rate);
    native.field_order = native.field_order.or(found.field_order);
    native.bit_depth = native.bit_depth.or(found.bit_depth);
    native.chroma = native.chroma.or(found.chroma);
    native.color.primaries = native.color.primaries.or(found.color.primaries);
    native.color.transfer = native.color.transfer.or(found.color.transfer);
    native.color.matrix = native.color.matrix.or(found.color.matrix);
    native.color.full_range = native.color.full_range.or(found.color.full_range);
    native.level = native.level.or(found.level);
    native.reorder = native.reorder.or(found.reorder);
    native.dolby_vision = native.dolby_vision.or(found.dolby_vision);
}

fn fill_audio(native: &mut AudioFacts, found: &AudioFacts) {
    native.sample_rate = native.sample_rate.or(found.sample_rate);
    native.channels = native.channels.or(found.channels);
    native.layout = native.layout.take().or_else(|| found.layout.clone());
    native.profile = native.profile.or(found.profile);
}

#[cfg(test)]
mod tests {
    use ether_media::{Codec, Container, Ticks};

    use super::*;

    fn facts(width: u32, gaps: Vec<Gap>) -> Facts {
        let video = VideoFacts {
            width,
            height: 2,
            ..VideoFacts::default()
        };
        let stream = Stream {
            index: 0,
            codec: Codec::Other("mpeg4".into()),
            codec_string: None,
            language: None,
            title: None,
            default: true,
            forced: false,
            start: None,
            duration: None,
            bit_rate: None,
            kind: StreamKind::Video(video),
        };
        Facts {
            container: Container::Mp4,
            size: 1,
            duration: Some(Ticks(9)),
            start: Ticks(0),
            streams: vec![stream],
            keyframes: None,
            source: FactsSource::Native,
            gaps,
        }
    }

    #[test]
    fn what_was_read_natively_stands_and_what_was_open_is_filled() {
        let native = facts(4, vec![Gap::CodecConfig { index: 0 }]);
        let mut other = facts(5, Vec::new());
        if let StreamKind::Video(video) = &mut other.streams[0].kind {
            video.bit_depth = Some(8);
        }
        assert!(wants_more(&native));
        let found = complete(native, &other);
        let video = found.streams[0].video().unwrap();
        assert_eq!((video.width, video.bit_depth), (4, Some(8)));
        assert_eq!((found.gaps.len(), found.source), (0, FactsSource::Both));
    }

    #[test]
    fn an_estimated_duration_stays_marked_as_one() {
        let mut native = facts(4, vec![Gap::Duration]);
        native.duration = None;
        let found = complete(native, &facts(4, vec![Gap::Duration]));
        assert_eq!(found.duration, Some(Ticks(9)));
        assert_eq!(found.gaps, [Gap::Duration]);
    }

    #[test]
    fn nothing_is_taken_over_where_the_streams_are_counted_differently() {
        let native = facts(4, vec![Gap::CodecConfig { index: 0 }]);
        let mut other = facts(5, Vec::new());
        other.streams.push(other.streams[0].clone());
        let found = complete(native, &other);
        assert_eq!(found.gaps, [Gap::CodecConfig { index: 0 }]);
    }
}
