//! Facts of made-up films.

use ether_media::{
    AudioFacts, ChromaSampling, Codec, Container, Facts, FactsSource, Keyframes, Rational, Stream,
    StreamKind, Ticks, VideoFacts,
};

/// The picture of a film at 24 frames a second that browsers play.
pub(crate) fn film_picture(width: u32, height: u32) -> VideoFacts {
    VideoFacts {
        width,
        height,
        frame_rate: Some(Rational { num: 24, den: 1 }),
        bit_depth: Some(8),
        chroma: Some(ChromaSampling::Yuv420),
        profile: Some(100),
        level: Some(51),
        ..VideoFacts::default()
    }
}

/// A film of `seconds` with a keyframe every two.
pub(crate) fn facts(picture: VideoFacts, seconds: u32) -> Facts {
    let length = Ticks(i64::from(seconds) * Ticks::HZ);
    let stream = |index, codec, text: &str, kind| Stream {
        index,
        codec,
        codec_string: Some(text.to_owned()),
        language: None,
        title: None,
        default: true,
        forced: false,
        start: Some(Ticks::ZERO),
        duration: Some(length),
        bit_rate: None,
        kind,
    };
    let sound = AudioFacts {
        sample_rate: Some(48_000),
        channels: Some(2),
        layout: Some("stereo".into()),
        profile: Some(2),
    };
    Facts {
        container: Container::Mp4,
        size: 1_000_000,
        duration: Some(length),
        start: Ticks::ZERO,
        streams: vec![
            stream(0, Codec::H264, "avc1.640033", StreamKind::Video(picture)),
            stream(1, Codec::Aac, "mp4a.40.2", StreamKind::Audio(sound)),
        ],
        keyframes: Some(Keyframes {
            stream: 0,
            times: (0..seconds.div_ceil(2))
                .map(|n| Ticks(i64::from(n) * 2 * Ticks::HZ))
                .collect(),
        }),
        source: FactsSource::Native,
        gaps: Vec::new(),
    }
}
