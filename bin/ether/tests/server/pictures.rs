//! What a decoder makes of the pictures that are sent: their shape, and the first of them after a seek.

use serde_json::{Value, json};

use crate::bed::{Setup, program, run};
use crate::films::{complaints, packets};
use crate::play::Play;

/// The shape in which a player shows the first picture of a file, from its size and that of its samples.
async fn shape(file: &std::path::Path) -> f64 {
    let mut command = program("ffprobe");
    command.args([
        "-v",
        "error",
        "-select_streams",
        "v:0",
        "-of",
        "csv=p=0",
        "-show_entries",
    ]);
    command.arg("stream=width,height,sample_aspect_ratio").arg(file);
    let said = String::from_utf8(run(&mut command).await.stdout).unwrap();
    // A transport stream lists what it holds once more for its programme.
    let first = said.lines().next().unwrap();
    let fields: Vec<&str> = first.trim_end_matches(',').split(',').collect();
    let number = |text: &str| text.parse::<f64>().unwrap();
    let sample = match fields.get(2).and_then(|ratio| ratio.split_once(':')) {
        Some((num, den)) => number(num) / number(den),
        None => 1.0,
    };
    number(fields[0]) * sample / number(fields[1])
}

#[tokio::test]
async fn case_8_samples_that_are_not_square_are_shown_in_their_shape() {
    let setup = Setup::of(&["anamorphic.mkv"]).forgetful();
    let server = setup.start().await;
    for video in ["copy", "encode"] {
        for container in ["fmp4", "ts"] {
            let wish = json!({"video": video, "container": container});
            let play = Play::open(&server, "anamorphic.mkv", wish).await;
            let (width, height) = play
                .variant
                .attribute("RESOLUTION")
                .unwrap()
                .split_once('x')
                .unwrap();
            let said = width.parse::<f64>().unwrap() / height.parse::<f64>().unwrap();
            // From the beginning and from a seek, where a run is told anew.
            for n in [0, play.segments() / 2] {
                let seen = shape(&play.range([n]).await.save(&setup, "taken")).await;
                let wide = 16.0 / 9.0;
                assert!(
                    (seen - wide).abs() < 0.01,
                    "{video} to {container}, segment {n}: {seen}"
                );
                assert!(
                    (said - wide).abs() < 0.01,
                    "{video} to {container} is said to be {said}"
                );
            }
            play.stop().await;
        }
    }
    server.stop().await;
}

/// The film's groups are open: pictures before a keyframe refer to some that a seek does not have.
async fn open_groups_from_a_seek(wish: Value) {
    let setup = Setup::of(&["open-gop.mkv"]).forgetful();
    let server = setup.start().await;
    let mut wish = wish;
    wish["offsetMs"] = json!(21_000);
    wish["segmentSeconds"] = json!(3);
    let encoded = wish["video"] == "encode";
    let play = Play::open(&server, "open-gop.mkv", wish.clone()).await;
    let n = (0..play.segments())
        .rfind(|n| play.list.start(*n) <= 21.0)
        .unwrap();
    let cold = play.range([n, n + 1]).await.save(&setup, "cold");
    assert_eq!(
        play.seen().await["encoder"]["runStart"],
        n,
        "it was asked for cold"
    );
    assert_eq!(complaints(&cold).await, "", "a broken leading picture");
    let cold = packets(&cold).await.video;
    play.stop().await;
    let whole = Play::open(&server, "open-gop.mkv", wish).await;
    let whole = packets(&whole.range([0]).await.save(&setup, "first")).await.video;
    let first = cold.start() - whole.start();
    assert!(cold.0[0].key);
    let bound = play.list.start(n);
    if encoded {
        assert!(
            (21.0 - 0.001..21.1).contains(&first),
            "the first picture is of {first} s"
        );
        assert_eq!(cold.len(), 150, "six seconds, each picture once");
    } else {
        // Pictures that look back over the keyframe come with it and are shown before it.
        assert!(
            (bound - 0.5..bound + 0.05).contains(&first),
            "{first} s, and {bound} s is declared"
        );
    }
    server.stop().await;
}

#[tokio::test]
async fn heavy_case_4_an_open_group_is_encoded_from_a_seek() {
    open_groups_from_a_seek(json!({"video": "encode", "maxHeight": 180})).await;
}

#[tokio::test]
async fn case_4_an_open_group_is_copied_from_a_seek() {
    let client = json!({"video": ["hvc1.1.6.L93.B0"], "audio": ["mp4a.40.2"]});
    open_groups_from_a_seek(json!({"video": "copy", "client": client})).await;
}
