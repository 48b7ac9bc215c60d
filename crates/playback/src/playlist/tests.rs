//! A checker of the rules that players hold us to, and playlists of every shape run through it.

use proptest::prelude::*;

use ether_media::Rational;
use ether_media::decision::BitRate;

use super::*;
use crate::presentation::{Heard, Text};

const FILM: Rational = Rational {
    num: 24_000,
    den: 1_001,
};

fn rate(average: u64, peak: u64) -> BitRate {
    BitRate { average, peak }
}

fn picture(height: u32, peak: u64) -> Shown {
    Shown {
        codec: "avc1.640028".into(),
        width: height * 16 / 9,
        height,
        frame_rate: Some(FILM),
        range: MasteringKind::Sdr,
        rate: rate(peak / 2, peak),
    }
}

fn sound(name: &str, codec: &str) -> Heard {
    Heard {
        representation: 0,
        codec: codec.into(),
        name: name.into(),
        language: Some("de".into()),
        channels: Some(6),
        rate: rate(100_000, 200_000),
        sample_rate: Some(48_000),
        grid: None,
    }
}

fn presentation<'a>(timeline: &'a Timeline, container: Packaging) -> Presentation<'a> {
    Presentation {
        timeline,
        container,
        independent: true,
        apart: false,
        pictures: vec![picture(720, 8_000_000)],
        sounds: vec![sound("de", "mp4a.40.2")],
        texts: Vec::new(),
        start: None,
        session: "s1",
        grant: "gr_AN-t",
    }
}

/// What the text of a media playlist says, after it kept every rule of the format.
struct Parsed {
    micros: Vec<i64>,
    names: Vec<String>,
    target: i64,
    map: Option<String>,
}

/// Reads a media playlist as a strict player does.
fn check(text: &str) -> Parsed {
    assert!(!text.starts_with('\u{feff}') && text.is_ascii() && !text.contains('\r'));
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("#EXTM3U"));
    assert_eq!(text.lines().last(), Some("#EXT-X-ENDLIST"));
    let value = |tag: &str| {
        let found: Vec<&str> = text.lines().filter_map(|l| l.strip_prefix(tag)).collect();
        assert!(found.len() <= 1, "{tag} stands twice");
        found.first().map(|v| (*v).to_owned())
    };
    let target: i64 = value("#EXT-X-TARGETDURATION:").unwrap().parse().unwrap();
    assert_eq!(value("#EXT-X-MEDIA-SEQUENCE:").as_deref(), Some("0"));
    assert_eq!(value("#EXT-X-PLAYLIST-TYPE:").as_deref(), Some("VOD"));
    assert!(!text.contains("EXT-X-DISCONTINUITY") && !text.contains("EXT-X-STREAM-INF"));
    let version: u32 = value("#EXT-X-VERSION:").unwrap().parse().unwrap();
    let map = value("#EXT-X-MAP:");
    assert!(version >= if map.is_some() { 6 } else { 3 });
    let (mut micros, mut names, mut pending) = (Vec::new(), Vec::new(), None);
    for line in lines {
        if let Some(length) = line.strip_prefix("#EXTINF:") {
            let (whole, fraction) = length.strip_suffix(',').unwrap().split_once('.').unwrap();
            assert_eq!(fraction.len(), 6);
            let length = whole.parse::<i64>().unwrap() * 1_000_000 + fraction.parse::<i64>().unwrap();
            assert!(pending.replace(length).is_none(), "two durations for one segment");
        } else if !line.starts_with('#') {
            micros.push(pending.take().expect("a segment without a duration"));
            names.push(line.to_owned());
        }
    }
    assert!(pending.is_none());
    for length in &micros {
        assert!(
            (length + 500_000) / 1_000_000 <= target,
            "{length} exceeds {target}"
        );
    }
    Parsed {
        micros,
        names,
        target,
        map,
    }
}

#[test]
fn a_film_in_three_second_segments_declares_whole_frames() {
    let timeline = Timeline::grid(Ticks::ZERO, Ticks(90_000 * 120), Ticks(270_000), Some(FILM)).unwrap();
    let parsed = check(&media(&presentation(&timeline, Packaging::Fmp4)));
    assert_eq!(parsed.micros.len(), 40);
    assert!(parsed.micros[..39].iter().all(|m| *m == 3_003_000));
    assert_eq!(parsed.micros.iter().sum::<i64>(), 120_000_000);
    assert_eq!(parsed.target, 3);
    assert_eq!(parsed.names[7], "7.m4s?grant=gr_AN-t");
    assert_eq!(parsed.map.as_deref(), Some("URI=\"header?grant=gr_AN-t\""));
}

#[test]
fn transport_streams_have_no_initialization_segment() {
    let timeline = Timeline::grid(Ticks::ZERO, Ticks(90_000 * 20), Ticks(540_000), None).unwrap();
    let parsed = check(&media(&presentation(&timeline, Packaging::MpegTs)));
    assert!(parsed.map.is_none());
    assert_eq!(
        parsed.names,
        [
            "0.ts?grant=gr_AN-t",
            "1.ts?grant=gr_AN-t",
            "2.ts?grant=gr_AN-t",
            "3.ts?grant=gr_AN-t"
        ]
    );
}

#[test]
fn sparse_keyframes_are_declared_as_long_as_they_are() {
    let keyframes: Vec<Ticks> = (0..6).map(|n| Ticks(n * 20 * 90_000)).collect();
    let timeline = Timeline::keyframes(Ticks::ZERO, Ticks(120 * 90_000), Ticks(540_000), &keyframes).unwrap();
    let parsed = check(&media(&presentation(&timeline, Packaging::Fmp4)));
    assert_eq!((parsed.target, parsed.micros.len()), (20, 6));
}

fn twenty_seconds() -> Timeline {
    Timeline::grid(Ticks::ZERO, Ticks(90_000 * 20), Ticks(540_000), None).unwrap()
}

#[test]
fn the_multivariant_playlist_says_what_a_player_chooses_by() {
    let timeline = twenty_seconds();
    let text = multivariant(&presentation(&timeline, Packaging::Fmp4));
    // 8.2 Mbit/s and 4.1 on average, and what an encoder may have saved up, a second of the picture's 8 in six, with
    // three parts of a hundred and two streams' headers.
    assert_eq!(
        text,
        "#EXTM3U\n#EXT-X-VERSION:7\n#EXT-X-INDEPENDENT-SEGMENTS\n\
         #EXT-X-STREAM-INF:BANDWIDTH=9851332,AVERAGE-BANDWIDTH=4255000,CODECS=\"avc1.640028,mp4a.40.2\",\
         RESOLUTION=1280x720,FRAME-RATE=23.976,CLOSED-CAPTIONS=NONE\n0/index.m3u8?grant=gr_AN-t\n"
    );
}

#[test]
fn qualities_and_sounds_are_told_apart_and_belong_together() {
    let timeline = twenty_seconds();
    let mut several = presentation(&timeline, Packaging::Fmp4);
    several.apart = true;
    several.pictures.push(picture(360, 800_000));
    let mut surround = sound("Regie \"alt\"\n", "ac-3");
    (surround.language, surround.channels) = (None, None);
    surround.rate = rate(400_000, 500_000);
    // The one that is played first is not the file's first.
    (several.sounds[0].representation, surround.representation) = (3, 2);
    several.sounds.push(surround);
    several.texts.push(Text {
        stream: 4,
        name: "en".into(),
        language: Some("en".into()),
        default: true,
        forced: false,
        hearing_impaired: false,
    });
    let text = multivariant(&several);
    let lines: Vec<&str> = text.lines().skip(3).collect();
    assert_eq!(
        lines[..3],
        [
            "#EXT-X-MEDIA:TYPE=AUDIO,GROUP-ID=\"sound\",NAME=\"de\",LANGUAGE=\"de\",DEFAULT=YES,AUTOSELECT=YES,\
             CHANNELS=\"6\",URI=\"3/index.m3u8?grant=gr_AN-t\"",
            "#EXT-X-MEDIA:TYPE=AUDIO,GROUP-ID=\"sound\",NAME=\"Regie 'alt' \",DEFAULT=NO,AUTOSELECT=YES,\
             URI=\"2/index.m3u8?grant=gr_AN-t\"",
            "#EXT-X-MEDIA:TYPE=SUBTITLES,GROUP-ID=\"text\",NAME=\"en\",LANGUAGE=\"en\",DEFAULT=YES,\
             AUTOSELECT=YES,FORCED=NO,URI=\"../../../ether/api/sessions/s1/subtitles.m3u8?stream=4&grant=gr_AN-t\"",
        ]
    );
    for (n, variant) in lines[3..].chunks(2).enumerate() {
        assert!(
            variant[0].contains("CODECS=\"avc1.640028,mp4a.40.2,ac-3\""),
            "{variant:?}"
        );
        assert!(variant[0].contains(",AUDIO=\"sound\",SUBTITLES=\"text\",CLOSED-CAPTIONS=NONE"));
        assert_eq!(variant[1], format!("{n}/index.m3u8?grant=gr_AN-t"));
    }
    // The thickest sound counts: 800 and 500 kbit/s, and a second of the picture in six.
    assert!(text.contains(":BANDWIDTH=1508332,"), "{text}");
}

#[test]
fn wide_dynamic_range_and_sound_alone_are_declared() {
    let timeline = twenty_seconds();
    let mut hdr = presentation(&timeline, Packaging::Fmp4);
    hdr.pictures[0].range = MasteringKind::Hlg;
    assert!(multivariant(&hdr).contains(",VIDEO-RANGE=HLG,"));
    hdr.pictures.clear();
    hdr.independent = false;
    let sound = multivariant(&hdr);
    assert!(!sound.contains("RESOLUTION") && !sound.contains("INDEPENDENT") && !sound.contains("CAPTIONS"));
    hdr.apart = true;
    let sounds = multivariant(&hdr);
    assert!(sounds.contains(",AUDIO=\"sound\"\n0/index.m3u8"), "{sounds}");
}

#[test]
fn a_later_start_is_asked_for_in_both() {
    let timeline = Timeline::grid(Ticks::ZERO, Ticks(90_000 * 20), Ticks(540_000), None).unwrap();
    let mut later = presentation(&timeline, Packaging::Fmp4);
    later.start = Some(Ticks(90_000 * 7 + 45_000));
    let tag = "#EXT-X-START:TIME-OFFSET=7.500000,PRECISE=YES\n";
    assert!(multivariant(&later).contains(tag) && media(&later).contains(tag));
    check(&media(&later));
}

proptest! {
    #[test]
    fn every_playlist_keeps_the_rules_and_adds_up(
        length in 1_i64..90_000 * 8_000,
        target in 90_000_i64..=90_000 * 15,
        gaps in proptest::collection::vec(1_i64..90_000 * 30, 0..200),
        rate in proptest::option::of((1_u32..120_000, 1_u32..1_002)),
        copied in any::<bool>(),
        ts in any::<bool>(),
    ) {
        let mut at = 0;
        let keyframes: Vec<Ticks> = gaps.iter().map(|gap| { at += gap; Ticks(at) }).collect();
        let timeline = if copied {
            Timeline::keyframes(Ticks::ZERO, Ticks(length), Ticks(target), &keyframes).unwrap()
        } else {
            let rate = rate.map(|(num, den)| Rational { num, den });
            Timeline::grid(Ticks::ZERO, Ticks(length), Ticks(target), rate).unwrap()
        };
        let packaging = if ts { Packaging::MpegTs } else { Packaging::Fmp4 };
        let text = media(&presentation(&timeline, packaging));
        let parsed = check(&text);
        prop_assert_eq!(parsed.micros.len(), timeline.len());
        let mut declared = 0;
        for (n, length) in parsed.micros.iter().enumerate() {
            prop_assert_eq!(declared, timeline.start(n).to_timescale(1_000_000), "segment {}", n);
            declared += length;
        }
        prop_assert_eq!(declared, timeline.end().to_timescale(1_000_000));
        prop_assert_eq!(text, media(&presentation(&timeline, packaging)));
    }
}
