//! Subtitles that a session has drawn into its picture, as its viewer sees them.

use serde_json::{Value, json};

use crate::bed::{Server, Setup};
use crate::films::picture;
use crate::play::Play;

const SIZE: (usize, usize) = (320, 180);

/// The number of the first subtitle track of the film `file`.
async fn track(server: &Server, file: &str) -> Value {
    let id = server.film(file).await["id"].as_str().unwrap().to_owned();
    let target = format!("/ether/api/items/{id}");
    let item = server
        .api(hyper::Method::GET, &target, None)
        .await
        .expect(200)
        .json();
    let mut streams = item["streams"].as_array().unwrap().iter();
    let found = streams.find(|stream| stream["kind"] == "subtitle");
    found.expect("a subtitle track")["index"].clone()
}

/// Whether something bright stands on the black of the film, a tenth into segment `n` of a second.
async fn stands(setup: &Setup, play: &Play<'_>, n: usize) -> bool {
    let file = play.range([n]).await.save(setup, "second");
    let seen = picture(&file, 0.1, SIZE.0, SIZE.1).await;
    let bright = seen.iter().filter(|sample| **sample > 100).count();
    bright > 10
}

/// Cases 11 and 12: cues stand from 40 to 42 s. A viewer begins before them, and amid one; each opens anew, so that
/// an encoder begins there.
async fn cues_are_seen_from_wherever_a_viewer_begins(file: &str, drawn: Value) {
    let setup = Setup::of(&[file]).forgetful();
    let server = setup.start().await;
    let track = track(&server, file).await;
    for (container, from, seconds) in [
        (
            "fmp4",
            38,
            vec![(38, false), (39, false), (40, true), (41, true), (42, false)],
        ),
        ("fmp4", 41, vec![(41, true), (42, false)]),
        ("ts", 41, vec![(41, true), (42, false)]),
    ] {
        let wish = json!({
            "subtitle": track, "burn": drawn, "container": container, "segmentSeconds": 1, "maxHeight": 180,
            "offsetMs": from * 1_000, "video": "auto",
        });
        let play = Play::open(&server, file, wish).await;
        assert_eq!(play.decision()["video"]["reasons"][0]["code"], "subtitle_drawn");
        for (second, seen) in seconds {
            let is = stands(&setup, &play, second).await;
            assert_eq!(is, seen, "{file} in {container} from {from} s, at {second} s");
        }
        play.stop().await;
    }
    server.stop().await;
}

#[tokio::test]
async fn heavy_case_11_text_is_drawn_in_for_who_asks() {
    cues_are_seen_from_wherever_a_viewer_begins("ass-cues.mkv", json!(true)).await;
}

#[tokio::test]
async fn heavy_case_12_pictures_are_drawn_in() {
    cues_are_seen_from_wherever_a_viewer_begins("pgs-cues.mkv", Value::Null).await;
}
