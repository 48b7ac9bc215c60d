//! What is offered beside the one picture and the one sound: ladders, other sounds, other containers and codecs; and
//! what holds of every decision.

use proptest::prelude::*;

use super::*;

fn ladder() -> Wishes {
    Wishes {
        video: Force::Encode,
        ladder: true,
        ..Wishes::default()
    }
}

#[test]
fn a_ladder_has_steps_that_are_worth_switching_for_and_none_above_the_source() {
    let full = film_of(VideoFacts {
        width: 1920,
        height: 1080,
        ..picture()
    });
    let decision = decide(&full, &browser(), &ladder()).unwrap();
    let sizes: Vec<u32> = decision.lower.iter().map(|q| q.target.height).collect();
    assert_eq!(
        (video(&decision).shown.1, sizes),
        (1080, vec![720, 540, 432, 360])
    );
    let strings: Vec<&str> = decision.lower.iter().map(|q| q.codec_string.as_str()).collect();
    assert_eq!(
        strings,
        ["avc1.64001f", "avc1.64001f", "avc1.64001e", "avc1.64001e"]
    );
    let held = Wishes {
        max_height: Some(540),
        ..ladder()
    };
    let decision = decide(&full, &browser(), &held).unwrap();
    assert!(decision.lower.iter().all(|q| q.target.height < 540));
    let copied = Wishes {
        video: Force::Auto,
        ..ladder()
    };
    assert!(decide(&film(), &browser(), &copied).unwrap().lower.is_empty());
    let progressive = Wishes {
        protocol: Protocol::Http,
        ..ladder()
    };
    assert!(decide(&full, &browser(), &progressive).unwrap().lower.is_empty());
}

/// Three languages: stereo AAC, surround DTS, and AAC that begins early.
fn polyglot() -> Facts {
    let mut facts = film();
    facts.streams[0].start = Some(seconds(0.5));
    facts.streams[1].start = Some(seconds(0.5));
    let mut second = stream(2, Codec::Dts, "", sound());
    second.start = Some(seconds(0.4));
    let mut third = stream(3, Codec::Aac, "mp4a.40.2", sound());
    third.start = Some(seconds(0.2));
    facts.streams.extend([second, third]);
    facts
}

#[test]
fn every_sound_is_offered_and_the_clock_begins_with_the_earliest() {
    let decision = plain(&polyglot());
    let streams = |d: &Decision| d.sounds().map(|a| a.stream).collect::<Vec<_>>();
    assert_eq!(streams(&decision), [1, 2, 3]);
    assert_eq!(decision.other_audio[0].codec, Codec::Aac, "DTS is encoded");
    assert_eq!(decision.other_audio[1].action, AudioAction::Copy);
    assert_eq!(decision.timeline.lead(), seconds(0.3));
    let chosen = |wishes| streams(&decide(&polyglot(), &browser(), &wishes).unwrap());
    let third = Wishes {
        audio: AudioChoice::Stream(3),
        ..Wishes::default()
    };
    assert_eq!(chosen(third), [3, 1, 2]);
    let alone = Wishes {
        sounds: Sounds::One,
        ..third
    };
    assert_eq!(chosen(alone), [3]);
    let silent = Wishes {
        audio: AudioChoice::Silent,
        ..Wishes::default()
    };
    assert_eq!(chosen(silent), [0_u32; 0]);
    let progressive = Wishes {
        protocol: Protocol::Http,
        ..Wishes::default()
    };
    assert_eq!(chosen(progressive), [1]);
}

/// Viewers of one film who choose different sounds, or none, get one picture: the same bounds, and sounds that are made
/// in one order.
#[test]
fn what_is_made_is_the_same_whichever_sound_is_chosen() {
    // As tracks of one film do, they end within a few frames of each other.
    let mut facts = polyglot();
    for (stream, end) in facts.streams.iter_mut().zip([60.0, 60.1, 60.7, 59.9]) {
        stream.duration = Some(seconds(end) - stream.start.unwrap());
    }
    let made = |facts: &Facts, protocol, audio, sounds| {
        let wishes = Wishes {
            protocol,
            audio,
            sounds,
            direct: false,
            ..Wishes::default()
        };
        let decision = decide(facts, &browser(), &wishes).unwrap();
        let sounds: Vec<u32> = decision.made_sounds().iter().map(|a| a.stream).collect();
        (sounds, decision.timeline)
    };
    use AudioChoice::{Main, Silent, Stream};
    let hls = |audio| made(&facts, Protocol::Hls, audio, Sounds::All);
    let dash = |audio, sounds| made(&facts, Protocol::Dash, audio, sounds);
    for (main, others) in [
        (hls(Main), vec![hls(Stream(2)), hls(Stream(3)), hls(Silent)]),
        (
            dash(Main, Sounds::All),
            vec![
                dash(Stream(3), Sounds::All),
                dash(Stream(2), Sounds::One),
                dash(Silent, Sounds::All),
            ],
        ),
    ] {
        assert_eq!(main.0, [1, 2, 3]);
        assert_eq!(main.1.end(), seconds(60.7 - 0.5), "to the end of the longest");
        for other in others {
            assert_eq!(other, main);
        }
    }
    // What comes in one piece with its picture is made for those who wish the same.
    assert_eq!(made(&facts, Protocol::Hls, Stream(2), Sounds::One).0, [2]);
    assert_eq!(made(&facts, Protocol::Http, Stream(2), Sounds::All).0, [2]);
    // A sound that goes on long after everything else is heard to its end, and nobody else waits for that.
    facts.streams[3].duration = Some(seconds(90.0));
    let hls = |audio| made(&facts, Protocol::Hls, audio, Sounds::All).1.end();
    assert_eq!((hls(Main), hls(Stream(2))), (seconds(60.2), seconds(60.2)));
    assert_eq!(hls(Stream(3)), seconds(90.2 - 0.5));
}

#[test]
fn a_stream_in_matroska_keeps_what_segments_cannot_hold() {
    let mut facts = film();
    facts.keyframes = None;
    facts.streams[1] = stream(1, Codec::Other("pcm_s24le".into()), "", sound());
    let mut client = browser();
    client.audio.extend(AudioSupport::parse("pcm"));
    let http = Wishes {
        protocol: Protocol::Http,
        ..Wishes::default()
    };
    let decision = decide(&facts, &client, &http).unwrap();
    assert_eq!(decision.mode, Mode::Copy);
    assert_eq!(
        (decision.protocol, decision.segments),
        (Some(Protocol::Http), None)
    );
    let hls = decide(&facts, &client, &Wishes::default()).unwrap();
    assert_eq!(why(&hls), "no_keyframe_index");
    assert_eq!(hls.audio.unwrap().reasons[0].code(), "codec_not_in_container");
    // AAC of a transport stream describes itself in every frame and nowhere else.
    let mut framed = film();
    framed.container = Container::MpegTs;
    let sound = |wishes: &Wishes| decide(&framed, &client, wishes).unwrap().audio.unwrap();
    assert_eq!(sound(&http).reasons[0].code(), "no_decoder_config");
    assert_eq!(sound(&Wishes::default()).action, AudioAction::Copy);
    // DASH has one container, whatever was said of the segments of HLS.
    let dash = Wishes {
        protocol: Protocol::Dash,
        segments: SegmentKind::MpegTs,
        ..Wishes::default()
    };
    let dash = decide(&facts, &client, &dash).unwrap();
    assert_eq!(dash.segments, Some(SegmentKind::Fmp4));
}

#[test]
fn players_of_opus_that_do_not_play_aac_get_opus() {
    let mut facts = film();
    facts.streams[1] = stream(1, Codec::Dts, "", sound());
    let mut client = browser();
    client.audio = AudioSupport::parse("opus").into_iter().collect();
    let audio = decide(&facts, &client, &Wishes::default())
        .unwrap()
        .audio
        .unwrap();
    assert_eq!(
        (audio.codec, audio.codec_string.as_deref()),
        (Codec::Opus, Some("opus"))
    );
    client.audio.extend(AudioSupport::parse("mp4a.40.2"));
    let audio = decide(&facts, &client, &Wishes::default())
        .unwrap()
        .audio
        .unwrap();
    assert_eq!(audio.codec, Codec::Aac);
}

#[test]
fn a_wide_range_is_kept_for_who_shows_it_and_mapped_for_who_does_not() {
    let mut wide = picture();
    wide.bit_depth = Some(10);
    wide.color.transfer = Some(16);
    let facts = film_of(wide);
    let encode = Wishes {
        video: Force::Encode,
        direct: false,
        ..Wishes::default()
    };
    let kept = decide(&facts, &player_of_everything(), &encode).unwrap();
    assert_eq!(
        (&video(&kept).codec, video(&kept).range),
        (&Codec::Hevc, MasteringKind::Pq)
    );
    assert_eq!(video(&kept).codec_string.as_deref(), Some("hvc1.2.4.L93.90"));
    assert!(!target(&kept).tone_map);
    let mut low = player_of_everything();
    low.video = vec![VideoSupport::parse("hvc1.2.4.L90.B0").unwrap()];
    for client in [browser(), low] {
        let mapped = decide(&facts, &client, &encode).unwrap();
        assert_eq!(
            (&video(&mapped).codec, video(&mapped).range),
            (&Codec::H264, MasteringKind::Sdr)
        );
        assert!(target(&mapped).tone_map);
    }
}

proptest! {
    #[test]
    fn every_quality_is_smaller_and_much_lighter_than_the_one_above(
        width in 2_u32..8_192,
        height in 2_u32..8_192,
        max_bit_rate in proptest::option::of(MIN_BIT_RATE..100_000_000),
    ) {
        let facts = film_of(VideoFacts { width, height, ..picture() });
        let decision = decide(&facts, &browser(), &Wishes { max_bit_rate, ..ladder() }).unwrap();
        prop_assert!(decision.lower.len() < MOST_QUALITIES);
        let mut above = target(&decision);
        for quality in &decision.lower {
            let target = quality.target;
            prop_assert!(target.width < above.width && target.height < above.height);
            prop_assert!(target.width.is_multiple_of(2) && target.height.is_multiple_of(2));
            prop_assert!(target.max_bit_rate * 3 <= above.max_bit_rate * 2);
            above = target;
        }
    }
}

proptest! {
    #[test]
    fn encoded_sizes_are_even_and_never_above_what_is_shown(
        width in 2_u32..8_192,
        height in 2_u32..8_192,
        aspect in proptest::option::of((1_u32..200, 1_u32..200)),
        degrees in proptest::sample::select(vec![0_u16, 90, 180, 270]),
        max_height in proptest::option::of(16_u32..4_320),
        max_bit_rate in proptest::option::of(MIN_BIT_RATE..100_000_000),
    ) {
        let facts = film_of(VideoFacts {
            width,
            height,
            sample_aspect: aspect.map(|(num, den)| Rational { num, den }),
            rotation: Rotation { degrees, mirrored: false },
            ..picture()
        });
        let wishes = Wishes { video: Force::Encode, max_height, max_bit_rate, ..Wishes::default() };
        let decision = decide(&facts, &browser(), &wishes).unwrap();
        let shown = super::video::shown(facts.streams[0].video().unwrap());
        let target = target(&decision);
        prop_assert!(target.width.is_multiple_of(2) && target.height.is_multiple_of(2));
        prop_assert!(target.width <= shown.0.max(2) && target.height <= shown.1.max(2));
        prop_assert!(max_height.is_none_or(|limit| target.height <= limit));
        prop_assert!(target.max_bit_rate > 0);
        if let Some(limit) = max_bit_rate.filter(|limit| *limit >= 500_000) {
            let sound = decision.audio.as_ref().map_or(0, |a| a.rate.peak);
            prop_assert!(target.max_bit_rate + sound <= limit);
        }
    }
}
