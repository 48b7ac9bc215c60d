//! What viewers would notice if a decision were wrong.

mod offers;

use super::*;
use crate::facts::{
    AudioFacts, ChromaSampling, Color, Container, FactsSource, FieldOrder, Gap, Keyframes, Rotation,
    StreamKind, VideoFacts,
};

fn seconds(s: f64) -> Ticks {
    Ticks::from_secs_f64(s)
}

fn stream(index: u32, codec: Codec, codec_string: &str, kind: StreamKind) -> Stream {
    Stream {
        index,
        codec,
        codec_string: (!codec_string.is_empty()).then(|| codec_string.to_owned()),
        language: None,
        title: None,
        default: false,
        forced: false,
        start: Some(Ticks::ZERO),
        duration: Some(seconds(60.0)),
        bit_rate: None,
        kind,
    }
}

fn picture() -> VideoFacts {
    VideoFacts {
        width: 1280,
        height: 720,
        frame_rate: Some(Rational {
            num: 24_000,
            den: 1_001,
        }),
        bit_depth: Some(8),
        chroma: Some(ChromaSampling::Yuv420),
        profile: Some(100),
        level: Some(40),
        ..VideoFacts::default()
    }
}

fn sound() -> StreamKind {
    StreamKind::Audio(AudioFacts {
        sample_rate: Some(48_000),
        channels: Some(2),
        layout: Some("stereo".into()),
        profile: Some(2),
    })
}

/// A minute of H.264 and AAC with a keyframe every two seconds.
fn film() -> Facts {
    film_of(picture())
}

fn film_of(video: VideoFacts) -> Facts {
    Facts {
        container: Container::Matroska,
        size: 30_000_000,
        duration: Some(seconds(60.0)),
        start: Ticks::ZERO,
        streams: vec![
            stream(0, Codec::H264, "avc1.640028", StreamKind::Video(video)),
            stream(1, Codec::Aac, "mp4a.40.2", sound()),
        ],
        keyframes: Some(Keyframes {
            stream: 0,
            times: (0..30).map(|n| seconds(f64::from(n) * 2.0)).collect(),
        }),
        source: FactsSource::Native,
        gaps: Vec::new(),
    }
}

fn browser() -> Client {
    Client::default()
}

fn player_of_everything() -> Client {
    let video = [
        "avc1.640034",
        "hvc1.2.4.L186.B0",
        "av01.0.19M.10",
        "vp09.02.62.10",
    ];
    let audio = ["mp4a.40.2", "mp3", "ac-3", "ec-3", "opus", "flac"];
    Client {
        video: video.iter().filter_map(|v| VideoSupport::parse(v)).collect(),
        audio: audio.iter().filter_map(|a| AudioSupport::parse(a)).collect(),
        containers: vec![Container::Mp4, Container::Matroska],
        hdr: true,
        max_height: None,
        audio_channels: 6,
    }
}

fn plain(facts: &Facts) -> Decision {
    decide(facts, &browser(), &Wishes::default()).unwrap()
}

fn video(decision: &Decision) -> &VideoDecision {
    decision.video.as_ref().unwrap()
}

fn target(decision: &Decision) -> VideoTarget {
    match video(decision).action {
        VideoAction::Encode(target) => target,
        VideoAction::Copy => panic!("copied: {:?}", video(decision).reasons),
    }
}

fn why(decision: &Decision) -> &'static str {
    video(decision).reasons[0].code()
}

#[test]
fn what_a_list_says_of_a_length_is_what_is_played() {
    let mut film = film();
    let subtitle = StreamKind::Subtitle(crate::facts::SubtitleFacts::default());
    let mut titles = stream(2, Codec::Other("mov_text".into()), "", subtitle);
    titles.duration = Some(seconds(90.0));
    film.streams.push(titles);
    film.duration = Some(seconds(90.0));
    assert_eq!(film.playing_time(), Some(seconds(60.0)));
    let played = decide(&film, &browser(), &Wishes::default()).unwrap();
    assert_eq!(Some(played.timeline.end()), film.playing_time());
    film.streams.truncate(1);
    film.streams[0].duration = None;
    assert_eq!(
        film.playing_time(),
        Some(seconds(90.0)),
        "where no stream says, the file does"
    );
}

#[test]
fn a_film_that_browsers_play_is_copied_with_bounds_at_its_keyframes() {
    let decision = plain(&film());
    assert_eq!(decision.mode, Mode::Copy);
    assert_eq!(why(&decision), "client_plays_codec");
    assert_eq!(decision.audio.unwrap().action, AudioAction::Copy);
    assert_eq!(decision.timeline.cut(), crate::timeline::Cut::Keyframes);
}

#[test]
fn the_file_is_handed_over_only_to_a_player_that_says_it_plays_such_files() {
    assert_eq!(plain(&film()).mode, Mode::Copy);
    let direct = decide(&film(), &player_of_everything(), &Wishes::default()).unwrap();
    assert_eq!((direct.mode, direct.segments), (Mode::Direct, None));
    // One that is cut short would be shown to the end that its head announces.
    let mut cut = film();
    cut.gaps.push(Gap::Truncated { expected: 1 << 40 });
    let decision = decide(&cut, &player_of_everything(), &Wishes::default()).unwrap();
    assert_eq!(decision.mode, Mode::Copy);
    assert_eq!(decision.reasons, [Reason::FileNotWhole]);
    let segments = Wishes {
        direct: false,
        ..Wishes::default()
    };
    let copied = decide(&film(), &player_of_everything(), &segments).unwrap();
    assert_eq!(copied.mode, Mode::Copy);
}

#[test]
fn a_file_whose_first_track_is_not_the_chosen_one_is_not_handed_over() {
    let mut facts = film();
    facts.streams.push(stream(2, Codec::Aac, "mp4a.40.2", sound()));
    let second = Wishes {
        audio: AudioChoice::Stream(2),
        ..Wishes::default()
    };
    let decision = decide(&facts, &player_of_everything(), &second).unwrap();
    assert_eq!(decision.mode, Mode::Copy);
    assert_eq!(decision.reasons[0].code(), "other_track_first");
    assert_eq!(decision.audio.unwrap().stream, 2);
}

#[test]
fn cover_art_is_never_taken_for_the_film() {
    let mut facts = film();
    let cover = VideoFacts {
        still: true,
        width: 600,
        height: 900,
        ..VideoFacts::default()
    };
    facts.streams[0].index = 1;
    facts.streams[1].index = 2;
    facts.streams.insert(
        0,
        Stream {
            default: true,
            ..stream(0, Codec::Other("mjpeg".into()), "", StreamKind::Video(cover))
        },
    );
    facts.keyframes.as_mut().unwrap().stream = 1;
    let decision = plain(&facts);
    assert_eq!(
        (video(&decision).stream, video(&decision).shown),
        (1, (1280, 720))
    );
    let everything = decide(&facts, &player_of_everything(), &Wishes::default()).unwrap();
    assert_eq!(
        everything.mode,
        Mode::Copy,
        "a player would show the cover of the file"
    );
}

#[test]
fn music_with_a_cover_is_sound_alone() {
    let mut facts = film();
    facts.streams[0].kind = StreamKind::Video(VideoFacts {
        still: true,
        ..picture()
    });
    let decision = plain(&facts);
    assert!(decision.video.is_none());
    assert_eq!(decision.mode, Mode::Copy);
}

#[test]
fn what_a_browser_cannot_decode_is_encoded_and_the_reason_is_named() {
    type Change = fn(&mut VideoFacts);
    let cases: [(&str, Change); 6] = [
        ("bit_depth_not_playable", |v| v.bit_depth = Some(10)),
        ("chroma_not_playable", |v| v.chroma = Some(ChromaSampling::Yuv444)),
        ("profile_not_playable", |v| v.profile = Some(122)),
        ("level_too_high", |v| v.level = Some(60)),
        ("interlaced", |v| v.field_order = Some(FieldOrder::TopFirst)),
        ("rotated", |v| v.rotation.degrees = 90),
    ];
    for (code, change) in cases {
        let mut facts = picture();
        change(&mut facts);
        let decision = plain(&film_of(facts));
        assert_eq!((decision.mode, why(&decision)), (Mode::Encode, code));
        assert!(matches!(
            decision.timeline.cut(),
            crate::timeline::Cut::Grid { .. }
        ));
    }
}

#[test]
fn picture_and_sound_are_decided_apart() {
    let mut facts = film();
    facts.streams[1].codec = Codec::Dts;
    let StreamKind::Audio(audio) = &mut facts.streams[1].kind else {
        panic!("the sound")
    };
    audio.channels = Some(6);
    let decision = plain(&facts);
    assert_eq!(decision.mode, Mode::Encode);
    assert_eq!(video(&decision).action, VideoAction::Copy);
    assert_eq!(
        decision.timeline.cut(),
        crate::timeline::Cut::Keyframes,
        "copied pictures keep their bounds"
    );
    let audio = decision.audio.unwrap();
    let AudioAction::Encode(target) = audio.action else {
        panic!("copied DTS")
    };
    assert_eq!((target.channels, target.sample_rate), (2, 48_000));
    let codes: Vec<_> = audio.reasons.iter().map(Reason::code).collect();
    assert_eq!(codes, ["codec_not_playable", "channels_reduced"]);
    let surround = decide(
        &facts,
        &player_of_everything(),
        &Wishes {
            direct: false,
            ..Wishes::default()
        },
    )
    .unwrap();
    assert_eq!(surround.audio.unwrap().channels, Some(6));
}

#[test]
fn without_a_complete_list_of_keyframes_nothing_is_guessed() {
    let mut facts = film();
    facts.keyframes = None;
    let decision = plain(&facts);
    assert_eq!(
        (decision.mode, why(&decision)),
        (Mode::Encode, "no_keyframe_index")
    );
    let copy = Wishes {
        video: Force::Copy,
        ..Wishes::default()
    };
    let refused = decide(&facts, &browser(), &copy).unwrap_err();
    assert_eq!(
        refused,
        CannotPlay::CannotCopy {
            why: Reason::NoKeyframeIndex
        }
    );
}

/// A phone's trimmed recording: 0.4 s of the group that it begins in are decoded and never shown.
#[test]
fn a_film_that_begins_between_keyframes_is_encoded() {
    let mut facts = film();
    let times = &mut facts.keyframes.as_mut().unwrap().times;
    times[0] = times[0] - seconds(0.4);
    let decision = plain(&facts);
    assert_eq!(
        (decision.mode, why(&decision)),
        (Mode::Encode, "starts_between_keyframes")
    );
    let times = &mut facts.keyframes.as_mut().unwrap().times;
    times[0] = times[0] + seconds(0.399);
    assert_eq!(plain(&facts).mode, Mode::Copy, "a millisecond is rounding");
}

#[test]
fn sparse_keyframes_are_copied_until_a_segment_would_be_too_long() {
    let mut facts = film();
    facts.keyframes.as_mut().unwrap().times = (0..3).map(|n| seconds(f64::from(n) * 20.0)).collect();
    let decision = plain(&facts);
    assert_eq!(
        (decision.mode, decision.timeline.duration(0)),
        (Mode::Copy, seconds(20.0))
    );
    facts.keyframes.as_mut().unwrap().times = vec![Ticks::ZERO];
    assert_eq!(why(&plain(&facts)), "keyframes_too_far_apart");
}

#[test]
fn a_stream_of_unknown_configuration_is_not_copied() {
    let mut facts = film();
    facts.gaps = vec![Gap::CodecConfig { index: 0 }];
    assert_eq!(why(&plain(&facts)), "no_decoder_config");
    facts.gaps.clear();
    facts.streams[0].codec_string = None;
    assert_eq!(
        video(&plain(&facts)).codec_string.as_deref(),
        Some("avc1.640028"),
        "profile and level suffice"
    );
    let StreamKind::Video(v) = &mut facts.streams[0].kind else {
        panic!("the picture")
    };
    v.level = None;
    assert_eq!(why(&plain(&facts)), "no_decoder_config");
}

#[test]
fn hdr_goes_untouched_to_an_hdr_screen_and_is_mapped_for_any_other() {
    let hdr = VideoFacts {
        bit_depth: Some(10),
        profile: Some(2),
        level: Some(120),
        color: Color {
            primaries: Some(9),
            transfer: Some(16),
            matrix: Some(9),
            full_range: Some(false),
        },
        ..picture()
    };
    let mut facts = film_of(hdr);
    facts.streams[0].codec = Codec::Hevc;
    facts.streams[0].codec_string = Some("hvc1.2.4.L120.B0".into());
    let wishes = Wishes {
        direct: false,
        ..Wishes::default()
    };
    let screen = decide(&facts, &player_of_everything(), &wishes).unwrap();
    assert_eq!(
        (video(&screen).action, video(&screen).range),
        (VideoAction::Copy, MasteringKind::Pq)
    );
    let standard = Client {
        hdr: false,
        ..player_of_everything()
    };
    let mapped = decide(&facts, &standard, &wishes).unwrap();
    assert_eq!(why(&mapped), "range_not_playable");
    assert!(target(&mapped).tone_map);
    assert_eq!(video(&mapped).range, MasteringKind::Sdr);
}

#[test]
fn anamorphic_pictures_are_shown_wide_copied_or_encoded() {
    let wide = VideoFacts {
        width: 720,
        height: 576,
        sample_aspect: Some(Rational { num: 64, den: 45 }),
        ..picture()
    };
    let copied = plain(&film_of(wide.clone()));
    assert_eq!(
        (video(&copied).action, video(&copied).shown),
        (VideoAction::Copy, (1024, 576))
    );
    let encode = Wishes {
        video: Force::Encode,
        ..Wishes::default()
    };
    let encoded = decide(&film_of(wide), &browser(), &encode).unwrap();
    assert_eq!((target(&encoded).width, target(&encoded).height), (1024, 576));
}

#[test]
fn turned_pictures_come_out_upright_and_even() {
    let turned = VideoFacts {
        width: 853,
        height: 479,
        rotation: Rotation {
            degrees: 270,
            mirrored: false,
        },
        ..picture()
    };
    let decision = plain(&film_of(turned));
    assert_eq!((target(&decision).width, target(&decision).height), (478, 852));
}

#[test]
fn segments_hold_only_what_their_container_can() {
    let mut facts = film();
    facts.streams[0].codec = Codec::Av1;
    facts.streams[0].codec_string = Some("av01.0.08M.08".into());
    let StreamKind::Video(v) = &mut facts.streams[0].kind else {
        panic!("the picture")
    };
    (v.profile, v.level) = (Some(0), Some(8));
    facts.streams[1].codec = Codec::Opus;
    facts.streams[1].codec_string = Some("opus".into());
    let mut wishes = Wishes {
        direct: false,
        ..Wishes::default()
    };
    assert_eq!(
        decide(&facts, &player_of_everything(), &wishes).unwrap().mode,
        Mode::Copy
    );
    wishes.segments = SegmentKind::MpegTs;
    let packed = decide(&facts, &player_of_everything(), &wishes).unwrap();
    assert_eq!(why(&packed), "codec_not_in_container");
    assert_eq!(packed.audio.unwrap().codec, Codec::Aac);
}

#[test]
fn a_narrow_line_gets_a_smaller_picture_and_thinner_sound() {
    let wishes = Wishes {
        max_bit_rate: Some(1_500_000),
        ..Wishes::default()
    };
    let decision = decide(&film(), &browser(), &wishes).unwrap();
    assert_eq!(why(&decision), "bit_rate_too_high");
    let target = target(&decision);
    assert_eq!((target.width, target.height), (768, 432));
    let sound = decision.audio.as_ref().unwrap();
    assert!(target.max_bit_rate + sound.rate.peak <= 1_500_000);
    assert!(
        decide(
            &film(),
            &browser(),
            &Wishes {
                max_bit_rate: Some(20_000_000),
                ..wishes
            }
        )
        .unwrap()
        .mode
            == Mode::Copy
    );
}

#[test]
fn the_presentation_runs_to_the_end_of_the_longer_stream_from_the_first_picture() {
    let mut facts = film();
    facts.streams[0].start = Some(seconds(10.5));
    facts.streams[1].start = Some(seconds(10.0));
    facts.streams[1].duration = Some(seconds(41.0));
    let short_sound = plain(&facts);
    assert_eq!(short_sound.timeline.origin(), seconds(10.5));
    assert_eq!(short_sound.timeline.end(), seconds(60.0));
    facts.streams[1].duration = Some(seconds(70.0));
    assert_eq!(plain(&facts).timeline.end(), seconds(69.5));
}

#[test]
fn sound_that_leaves_a_hole_is_encoded_so_that_silence_can_fill_it() {
    let with = |start: f64, length: f64| {
        let mut facts = film();
        facts.streams[1].start = Some(seconds(start));
        facts.streams[1].duration = Some(seconds(length));
        let decision = plain(&facts);
        assert_eq!(video(&decision).action, VideoAction::Copy);
        decision.audio.unwrap().reasons[0].code()
    };
    assert_eq!(with(0.4, 59.0), "client_plays_codec");
    assert_eq!(with(0.6, 59.4), "sound_short");
    assert_eq!(with(0.0, 41.0), "sound_short");
}

#[test]
fn a_file_without_a_length_or_without_anything_to_play_says_so() {
    let mut facts = film();
    facts.duration = None;
    facts.streams[0].duration = None;
    facts.streams[1].duration = None;
    let refused = decide(&facts, &browser(), &Wishes::default()).unwrap_err();
    assert_eq!(refused, CannotPlay::LengthUnknown);
    facts.streams.clear();
    let refused = decide(&facts, &browser(), &Wishes::default()).unwrap_err();
    assert_eq!(refused, CannotPlay::Nothing);
    let absent = Wishes {
        audio: AudioChoice::Stream(0),
        ..Wishes::default()
    };
    let refused = decide(&film(), &browser(), &absent).unwrap_err();
    assert_eq!(
        refused,
        CannotPlay::NoSuchStream {
            kind: "audio",
            stream: 0
        }
    );
}
