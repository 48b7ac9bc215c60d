//! Every kind of film played from beginning to end: what arrives is what the file holds, picture for picture.

use serde_json::{Value, json};

use crate::bed::{Setup, clip};
use crate::films::{Packet, Packets, complaints, packets};
use crate::play::{Play, Taken};

/// Audio may be cut at its own frames: the longest that the clips have, MP2's at 44.1 kHz, and the rounding of
/// Matroska's milliseconds.
const SOUND_FRAME: f64 = 1_152.0 / 44_100.0 + 0.002;

/// How the sound of a film fares.
#[derive(Clone, Copy, PartialEq)]
enum Sound {
    /// It lasts as long as the film's own.
    Kept,
    /// It is made as long as the picture, in silence.
    Padded,
}

/// What is done with picture and sound.
type Actions = (&'static str, &'static str);

const COPIED: Actions = ("copy", "copy");
const ENCODED: Actions = ("encode", "encode");
const PICTURE_ENCODED: Actions = ("encode", "copy");
const SOUND_ENCODED: Actions = ("copy", "encode");

async fn plays_whole(name: &str, wish: Value, actions: Actions) {
    check(name, wish, actions, Sound::Kept).await;
}

async fn check(name: &str, wish: Value, actions: Actions, sound: Sound) {
    let setup = Setup::of(&[name]);
    let server = setup.start().await;
    server.knows(name).await;
    let play = Play::open(&server, name, wish).await;
    let action = |kind: &str| play.decision()[kind]["action"].as_str().unwrap_or_default();
    assert_eq!(
        (action("video"), action("audio")),
        actions,
        "{:#}",
        play.decision()
    );
    let taken = play.whole().await;
    let file = taken.save(&setup, "taken");
    assert_eq!(complaints(&file).await, "");
    let (mine, source) = (packets(&file).await, packets(&clip(name)).await);
    let stream = |kind: &str| play.decision()[kind]["stream"].as_u64().unwrap_or(u64::MAX);
    let source = Packets {
        video: source.video.only(stream("video")),
        audio: source.audio.only(stream("audio")),
    };
    agrees_in_pictures(&play, &mine, &source);
    agrees_in_sound(&play, &mine, &source, sound);
    segments_follow_the_list(&play, &taken, &mine);
    let listed = server.film(name).await["durationMs"].as_f64().unwrap() / 1_000.0;
    assert!(
        (listed - play.list.length()).abs() < source.video.longest_step(),
        "{listed} s are listed, {} s are played",
        play.list.length()
    );
    play.stop().await;
    server.rests().await;
    server.stop().await;
}

fn agrees_in_pictures(play: &Play<'_>, mine: &Packets, source: &Packets) {
    let frame = source.video.longest_step();
    assert_eq!(mine.video.len(), source.video.len(), "pictures");
    let length = |packets: &Packets| packets.video.end() - packets.video.start();
    let off = (length(mine) - length(source)).abs();
    assert!(off < frame, "{off} s longer or shorter than the film");
    let declared = play.list.length();
    assert!(
        (declared - length(source)).abs() < frame,
        "{declared} s are declared of {}",
        length(source)
    );
    let told = play.created["durationMs"].as_f64().unwrap() / 1_000.0;
    assert!(
        (declared - told).abs() < frame,
        "{declared} s are declared, {told} s are told"
    );
}

fn agrees_in_sound(play: &Play<'_>, mine: &Packets, source: &Packets, sound: Sound) {
    if source.audio.len() == 0 {
        return assert_eq!(mine.audio.len(), 0);
    }
    let lag = |packets: &Packets| packets.audio.start() - packets.video.start();
    // What sounds before the first picture is not shown.
    let off = (lag(mine) - lag(source).max(0.0)).abs();
    assert!(
        off < SOUND_FRAME,
        "sound starts {} s after the picture, {} s in the film",
        lag(mine),
        lag(source)
    );
    let end = |packets: &Packets| packets.audio.end() - packets.video.start();
    let wanted = if sound == Sound::Padded {
        source.video.end() - source.video.start()
    } else {
        end(source)
    };
    // Nor is what sounds after the last picture, where the film's sound is longer.
    let off = end(mine) - wanted;
    assert!(
        off.abs() < 2.0 * SOUND_FRAME,
        "sound ends at {}, in the film at {wanted}",
        end(mine)
    );
    if play.decision()["audio"]["action"] == "copy" {
        let shift = shift_of_copied_sound(mine, source);
        assert!(
            shift.abs() < 0.003,
            "copied sound is {shift} s late against the picture"
        );
    }
}

/// How much later against the first picture a piece of copied sound is than in the film. Pieces are known by
/// how the sizes of a row of them differ; a transport stream adds the same head to each.
fn shift_of_copied_sound(mine: &Packets, source: &Packets) -> f64 {
    let row = 40.min(mine.audio.len() - 1);
    let changes = |packets: &Packets| -> Vec<i64> {
        let pairs = packets.audio.0.windows(2);
        pairs
            .map(|pair| pair[1].size.cast_signed() - pair[0].size.cast_signed())
            .collect()
    };
    let (ours, theirs) = (changes(mine), changes(source));
    let at = theirs
        .windows(row)
        .position(|changes| changes == &ours[..row])
        .expect("the same sound");
    let time = |packets: &Packets, n: usize| packets.audio.0[n].pts - packets.video.start();
    time(mine, 0) - time(source, at)
}

/// Every segment begins with a keyframe, where the list says.
fn segments_follow_the_list(play: &Play<'_>, taken: &Taken, mine: &Packets) {
    let frame = mine.video.step();
    let mut first: Vec<Option<&Packet>> = vec![None; play.segments()];
    for packet in &mine.video.0 {
        first[taken.segment_at(packet.position.unwrap())].get_or_insert(packet);
    }
    for (n, first) in first.into_iter().enumerate() {
        let first = first.unwrap_or_else(|| panic!("segment {n} has no picture"));
        let (declared, real) = (play.list.start(n), first.pts - mine.video.start());
        assert!(
            (declared - real).abs() < frame,
            "segment {n} is declared at {declared} and is at {real}"
        );
        assert!(first.key, "segment {n} begins with no keyframe");
    }
}

#[tokio::test]
async fn ntsc_copied() {
    plays_whole("ntsc.mkv", json!({}), COPIED).await;
}

#[tokio::test]
async fn ntsc_copied_to_transport_streams() {
    plays_whole("ntsc.mkv", json!({"container": "ts"}), COPIED).await;
}

#[tokio::test]
async fn heavy_three_languages_encoded_to_transport_streams() {
    plays_whole(
        "three-languages.mkv",
        json!({"video": "encode", "container": "ts", "audio": 2}),
        PICTURE_ENCODED,
    )
    .await;
}

#[tokio::test]
async fn irregular_keyframes_copied() {
    plays_whole("irregular-keyframes.mkv", json!({}), SOUND_ENCODED).await;
}

#[tokio::test]
async fn sparse_keyframes_copied() {
    plays_whole("sparse-keyframes.mp4", json!({}), COPIED).await;
}

#[tokio::test]
async fn heavy_open_gop_hevc_encoded() {
    plays_whole("open-gop.mkv", json!({"maxHeight": 180}), PICTURE_ENCODED).await;
}

#[tokio::test]
async fn open_gop_hevc_copied_to_a_player_that_shows_it() {
    let client = json!({"video": ["hvc1.1.6.L93.B0"], "audio": ["mp4a.40.2"]});
    plays_whole("open-gop.mkv", json!({"client": client}), COPIED).await;
}

#[tokio::test]
async fn late_clock_copied() {
    plays_whole("late-clock.ts", json!({}), SOUND_ENCODED).await;
}

#[tokio::test]
async fn heavy_late_clock_encoded() {
    plays_whole(
        "late-clock.ts",
        json!({"video": "encode", "maxHeight": 180}),
        ENCODED,
    )
    .await;
}

#[tokio::test]
async fn vfr_copied() {
    plays_whole("vfr.mkv", json!({}), COPIED).await;
}

#[tokio::test]
async fn heavy_interlaced_encoded() {
    plays_whole("interlaced.ts", json!({"maxHeight": 288}), ENCODED).await;
}

#[tokio::test]
async fn anamorphic_copied() {
    plays_whole("anamorphic.mkv", json!({}), COPIED).await;
}

#[tokio::test]
async fn heavy_odd_size_encoded() {
    plays_whole("odd-size.mkv", json!({}), PICTURE_ENCODED).await;
}

#[tokio::test]
async fn film_with_subtitles_copied() {
    plays_whole("ass-cues.mkv", json!({}), COPIED).await;
}

#[tokio::test]
async fn surround_side_with_its_sound_encoded() {
    plays_whole("surround-side.mkv", json!({}), SOUND_ENCODED).await;
}

#[tokio::test]
async fn moov_at_end_copied() {
    plays_whole("moov-at-end.mp4", json!({}), COPIED).await;
}

#[tokio::test]
async fn upright_and_short_copied() {
    plays_whole("upright.mp4", json!({"segmentSeconds": 1}), COPIED).await;
}

#[tokio::test]
async fn a_soundtrack_that_was_chosen_copied() {
    plays_whole("three-languages.mkv", json!({"audio": 3}), COPIED).await;
}

#[tokio::test]
async fn flash_beep_copied() {
    plays_whole("flash-beep.mkv", json!({}), COPIED).await;
}

/// Sound that ends early is made as long as the picture: no player has to wait for what does not come.
#[tokio::test]
async fn short_audio_copied_with_silence_after_it() {
    check("short-audio.mkv", json!({}), SOUND_ENCODED, Sound::Padded).await;
}
