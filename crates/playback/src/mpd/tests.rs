//! A reader of manifests that holds them to what players rely on, and manifests of every shape run through it.

use ether_media::decision::BitRate;
use ether_media::{Rational, SoundGrid, Timeline};
use proptest::prelude::*;

use super::*;
use crate::presentation::{Packaging, Text};

const FILM: Rational = Rational {
    num: 24_000,
    den: 1_001,
};

fn picture(height: u32) -> Shown {
    Shown {
        codec: "avc1.640028".into(),
        width: height * 16 / 9,
        height,
        frame_rate: Some(FILM),
        range: MasteringKind::Sdr,
        rate: BitRate {
            average: 1_000_000,
            peak: 2_000_000,
        },
    }
}

fn sound(representation: usize, name: &str) -> Heard {
    Heard {
        representation,
        codec: "mp4a.40.2".into(),
        name: name.into(),
        language: Some("en".into()),
        channels: Some(2),
        rate: BitRate {
            average: 160_000,
            peak: 200_000,
        },
        sample_rate: Some(48_000),
        grid: Some(SoundGrid::encoded_aac(48_000)),
    }
}

fn presentation(timeline: &Timeline) -> Presentation<'_> {
    Presentation {
        timeline,
        container: Packaging::Fmp4,
        independent: true,
        apart: true,
        pictures: vec![picture(720), picture(360)],
        sounds: vec![sound(2, "English"), sound(3, "<Commentary> & \"more\"")],
        texts: Vec::new(),
        start: None,
        session: "s1",
        grant: "gr_AN-t",
    }
}

/// Timescale, offset, and the start and length of every segment of a template.
struct Listed {
    timescale: i64,
    offset: i64,
    segments: Vec<(i64, i64)>,
}

fn attribute<'a>(tag: &'a str, name: &str) -> Option<&'a str> {
    let from = tag.find(&format!(" {name}=\""))? + name.len() + 3;
    tag[from..].split('"').next()
}

fn number(tag: &str, name: &str) -> Option<i64> {
    attribute(tag, name).map(|value| value.parse().unwrap())
}

/// Every template in turn.
fn read(text: &str) -> Vec<Listed> {
    let mut lists: Vec<Listed> = Vec::new();
    for tag in text.split('<').skip(1) {
        if tag.starts_with("SegmentTemplate") {
            lists.push(Listed {
                timescale: number(tag, "timescale").unwrap(),
                offset: number(tag, "presentationTimeOffset").unwrap(),
                segments: Vec::new(),
            });
        }
        if tag.starts_with("S ") {
            let list = lists.last_mut().unwrap();
            let last = list.segments.last().map(|(start, length)| start + length);
            let mut at = number(tag, "t").or(last).unwrap();
            assert!(last.is_none_or(|last| last == at), "a gap or an overlap");
            let length = number(tag, "d").unwrap();
            assert!(length > 0);
            for _ in 0..=number(tag, "r").unwrap_or(0) {
                list.segments.push((at, length));
                at += length;
            }
        }
    }
    lists
}

#[test]
fn a_film_is_one_set_of_qualities_and_one_for_each_sound() {
    let timeline = Timeline::grid(Ticks::ZERO, Ticks(90_000 * 60), Ticks(270_000), Some(FILM)).unwrap();
    let text = manifest(&presentation(&timeline));
    let addresses = "initialization=\"../../../../sessions/media/s1/$RepresentationID$/header?grant=gr_AN-t\" \
                     media=\"../../../../sessions/media/s1/$RepresentationID$/$Number$.m4s?grant=gr_AN-t\"";
    assert_eq!(text.matches(addresses).count(), 3, "{text}");
    assert_eq!(text.matches("<AdaptationSet ").count(), 3);
    let ids: Vec<&str> = text
        .split("<Representation ")
        .skip(1)
        .map(|tag| tag.split('"').nth(1).unwrap())
        .collect();
    assert_eq!(ids, ["0", "1", "2", "3"]);
    assert!(text.contains("type=\"static\"") && text.contains("mediaPresentationDuration=\"PT60.000000S\""));
    assert!(text.contains("frameRate=\"24000/1001\"") && text.contains("startWithSAP=\"1\""));
    assert!(text.contains("<Label>&lt;Commentary&gt; &amp; &quot;more&quot;</Label>"));
    let lists = read(&text);
    assert_eq!(lists[0].segments[..2], [(0, 270_270), (270_270, 270_270)]);
    assert_eq!(lists[1].segments[..2], [(0, 144_384), (144_384, 144_384)]);
}

/// Copied pictures may look back over a keyframe; a player that was told otherwise would show garbage.
#[test]
fn only_pictures_that_look_back_at_none_are_said_to_start_segments() {
    let timeline = Timeline::grid(Ticks::ZERO, Ticks(90_000 * 9), Ticks(270_000), None).unwrap();
    let mut copied = presentation(&timeline);
    copied.independent = false;
    copied.sounds.clear();
    assert!(!manifest(&copied).contains("startWithSAP"));
}

#[test]
fn sound_before_the_first_picture_is_taken_off_by_the_offset() {
    let timeline = Timeline::grid(Ticks(90_000), Ticks(90_000 * 9), Ticks(270_000), Some(FILM))
        .unwrap()
        .with_sound_from(Ticks(45_000));
    let lists = read(&manifest(&presentation(&timeline)));
    assert_eq!((lists[0].offset, lists[0].segments[0].0), (45_000, 45_000));
    assert_eq!((lists[1].offset, lists[1].segments[0].0), (24_000, 0));
}

#[test]
fn wide_range_and_text_tracks_are_declared() {
    let timeline = Timeline::grid(Ticks::ZERO, Ticks(90_000 * 9), Ticks(270_000), None).unwrap();
    let mut wide = presentation(&timeline);
    wide.pictures[0].range = MasteringKind::Pq;
    wide.texts.push(Text {
        stream: 5,
        name: "a & b".into(),
        language: None,
        default: false,
        forced: true,
        hearing_impaired: false,
    });
    let text = manifest(&wide);
    assert!(text.contains("cicp:TransferCharacteristics\" value=\"16\""));
    assert!(text.contains("<BaseURL>subtitles.vtt?stream=5&amp;grant=gr_AN-t</BaseURL>"));
    assert!(text.contains("value=\"forced-subtitle\"/>\n<Label>a &amp; b</Label>"));
}

proptest! {
    #[test]
    fn segments_tile_the_presentation_and_never_drift_from_the_timeline(
        length in 90_000_i64..90_000 * 4_000,
        target in 90_000_i64..=90_000 * 15,
        early in 0_i64..45_000,
        name in "\\PC{0,30}",
    ) {
        let timeline = Timeline::grid(Ticks::ZERO, Ticks(length), Ticks(target), Some(FILM))
            .unwrap()
            .with_sound_from(Ticks(-early));
        let mut one = presentation(&timeline);
        one.sounds[0].name = name;
        let text = manifest(&one);
        prop_assert!(!text.chars().any(|c| c.is_control() && c != '\n'));
        let lists = read(&text);
        prop_assert_eq!(lists.len(), 3);
        for list in &lists {
            prop_assert_eq!(list.segments.len(), timeline.len());
            let frame = 1_024 * 90_000 / 48_000 + 2;
            for (n, (start, _)) in list.segments.iter().enumerate() {
                let at = Ticks::from_timescale(start - list.offset, list.timescale as u64);
                let late = (at - timeline.start(n)).0;
                let most = if list.timescale == 90_000 { 0 } else { frame };
                prop_assert!(n == 0 || (0..=most).contains(&late), "segment {}: {}", n, late);
            }
        }
    }
}
