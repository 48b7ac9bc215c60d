//! Requests at the edge of what may cross to another machine.

use std::sync::Arc;

use ether_media::{
    AudioFacts, Codec, Container, Facts, FactsSource, Keyframes, MasteringKind, Stream, SubtitleFacts,
    Timeline, VideoFacts,
};

use super::*;
use crate::request::{
    AudioAction, AudioTrack, Device, Protocol, Rung, SegmentContainer, VideoAction, VideoCodec, VideoEncode,
    VideoTrack,
};

const TEXT: u32 = 2;
const PICTURES: u32 = 3;
/// No stream: how a file beside the film would have to be written.
const BESIDE: u32 = 1_000_000;

/// A film of a minute with picture, sound, a text track and a track of pictures.
fn request(protocol: Protocol) -> Request {
    let length = Ticks(60 * Ticks::HZ);
    let stream = |index, codec, kind| Stream {
        index,
        codec,
        codec_string: None,
        language: None,
        title: None,
        default: true,
        forced: false,
        start: Some(Ticks::ZERO),
        duration: Some(length),
        bit_rate: None,
        kind,
    };
    let subtitle = |text| {
        StreamKind::Subtitle(SubtitleFacts {
            text,
            hearing_impaired: false,
        })
    };
    let facts = Facts {
        container: Container::Matroska,
        size: 1_000_000,
        duration: Some(length),
        start: Ticks::ZERO,
        streams: vec![
            stream(0, Codec::H264, StreamKind::Video(VideoFacts::default())),
            stream(1, Codec::Aac, StreamKind::Audio(AudioFacts::default())),
            stream(TEXT, Codec::Other("ass".into()), subtitle(true)),
            stream(
                PICTURES,
                Codec::Other("hdmv_pgs_subtitle".into()),
                subtitle(false),
            ),
        ],
        keyframes: None,
        source: FactsSource::Native,
        gaps: Vec::new(),
    };
    Request {
        timeline: Arc::new(Timeline::grid(Ticks::ZERO, length, Ticks(6 * Ticks::HZ), None).unwrap()),
        facts: Arc::new(facts),
        protocol,
        video: Some(VideoTrack {
            stream: 0,
            action: VideoAction::Encode(VideoEncode {
                codec: VideoCodec::H264,
                device: Device::Software,
                rungs: vec![Rung {
                    width: 640,
                    height: 360,
                    max_bit_rate: 1_000_000,
                    level: 30,
                }],
                frame_rate: None,
                deinterlace: false,
                range: MasteringKind::Sdr,
                burn: None,
                self_describing: false,
            }),
        }),
        audio: vec![AudioTrack {
            stream: 1,
            action: AudioAction::Copy,
        }],
        subtitle: None,
    }
}

fn hls() -> Request {
    request(Protocol::Hls {
        container: SegmentContainer::Fmp4,
    })
}

fn everything() -> Capabilities {
    Capabilities {
        abr: true,
        dash: true,
        http: true,
        soft_subtitles: true,
        controls: true,
        observations: true,
        keyframes: true,
        burned_subtitles: true,
    }
}

fn burning(mut request: Request, stream: u32) -> Request {
    if let Some(VideoAction::Encode(encode)) = request.video.as_mut().map(|track| &mut track.action) {
        encode.burn = Some(stream);
    }
    request
}

fn with_text(mut request: Request, stream: u32) -> Request {
    request.subtitle = Some(stream);
    request
}

fn indexed(mut request: Request, times: impl IntoIterator<Item = i64>) -> Request {
    Arc::make_mut(&mut request.facts).keyframes = Some(Keyframes {
        stream: 0,
        times: times.into_iter().map(Ticks).collect(),
    });
    request
}

fn copied(mut request: Request) -> Request {
    if let Some(video) = &mut request.video {
        video.action = VideoAction::Copy;
    }
    request
}

#[test]
fn what_may_cross_to_another_machine_is_what_the_rule_says() {
    let all = everything();
    let no_text = Capabilities {
        soft_subtitles: false,
        ..all
    };
    let no_index = Capabilities {
        keyframes: false,
        ..all
    };
    let dash = || request(Protocol::Dash);
    let http = || request(Protocol::Http { start: Ticks::ZERO });
    let local_only = Err(Unsupported::LocalOnly {
        what: Offer::BurnedSubtitles,
    });
    let no_such = Err(Unsupported::NoSuchStream {
        kind: "subtitle",
        stream: BESIDE,
    });
    let not_offered = |what| Err(Unsupported::NotOffered { what });
    let not_carried = |points| Err(Unsupported::IndexNotCarried { stream: 0, points });
    let many = || 0..=MOST_POINTS as i64;
    let cases = [
        ("an encode", hls(), Capabilities::default(), Ok(())),
        ("DASH", dash(), all, Ok(())),
        ("a stream", http(), all, Ok(())),
        ("text drawn in", burning(hls(), TEXT), all, local_only.clone()),
        (
            "pictures drawn in",
            burning(hls(), PICTURES),
            all,
            local_only.clone(),
        ),
        ("drawn into a stream", burning(http(), TEXT), all, local_only),
        ("text beside HLS", with_text(hls(), TEXT), all, Ok(())),
        ("text beside DASH", with_text(dash(), TEXT), all, Ok(())),
        (
            "text beside a stream",
            with_text(http(), TEXT),
            all,
            Err(Unsupported::TextBesideStream),
        ),
        (
            "text that is not offered",
            with_text(hls(), TEXT),
            no_text,
            not_offered(Offer::SoftSubtitles),
        ),
        (
            "text of pictures",
            with_text(hls(), PICTURES),
            all,
            Err(Unsupported::NotText { stream: PICTURES }),
        ),
        ("text beside the film", with_text(hls(), BESIDE), all, no_such),
        ("an index", copied(indexed(hls(), [0, 6])), all, Ok(())),
        (
            "an index that is not taken",
            copied(indexed(hls(), [0, 6])),
            no_index,
            Err(Unsupported::Keyframes),
        ),
        (
            "an index that is not taken, of what is encoded",
            indexed(hls(), [0, 6]),
            no_index,
            Err(Unsupported::Keyframes),
        ),
        (
            "the largest index",
            copied(indexed(hls(), many().skip(1))),
            all,
            Ok(()),
        ),
        (
            "an index too large",
            copied(indexed(hls(), many())),
            all,
            not_carried(MOST_POINTS + 1),
        ),
        (
            "an index before zero",
            copied(indexed(hls(), [-1, 6])),
            all,
            not_carried(2),
        ),
        (
            "an index in disorder",
            copied(indexed(hls(), [6, 0])),
            all,
            not_carried(2),
        ),
        (
            "copying without an index",
            copied(hls()),
            all,
            Err(Unsupported::NoIndex { stream: 0 }),
        ),
        (
            "DASH that is not offered",
            dash(),
            Capabilities::default(),
            not_offered(Offer::Dash),
        ),
        (
            "a stream that is not offered",
            http(),
            Capabilities::default(),
            not_offered(Offer::Http),
        ),
    ];
    for (what, request, capabilities, expected) in cases {
        assert_eq!(admits_remote(&request, capabilities), expected, "{what}");
    }
}

/// The same on this machine, but for what is done only here.
#[test]
fn what_is_drawn_in_is_taken_here_and_text_beside_a_stream_nowhere() {
    let here = |request: Request| supports_request(&request, everything());
    assert_eq!(here(burning(hls(), PICTURES)), Ok(()));
    let stream = with_text(request(Protocol::Http { start: Ticks::ZERO }), TEXT);
    assert_eq!(here(stream), Err(Unsupported::TextBesideStream));
}

/// A request has no field for what must not cross: one that is sent all the same is not read.
#[test]
fn what_has_no_field_does_not_cross() {
    let written = serde_json::to_value(hls()).unwrap();
    let known: Vec<&str> = written.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(
        known,
        ["audio", "facts", "protocol", "subtitle", "timeline", "video"],
        "a new field has to be judged by the rule first"
    );
    let sound = written["audio"][0].as_object().unwrap();
    let known: Vec<&str> = sound.keys().map(String::as_str).collect();
    assert_eq!(known, ["action", "stream"]);
}
