//! Real films from many hands: each plays through, or is refused with a reason that has a name.

use serde_json::json;

use crate::bed::{Server, Setup};
use crate::films::{complaints, real_films};
use crate::play::Play;

#[tokio::test]
async fn heavy_real_films_play_through_or_say_why_not() {
    let Some(folder) = real_films() else {
        return;
    };
    let setup = Setup::new().folders(&[&folder]);
    let server = setup.start().await;
    let library = server
        .library(|library| !library["items"].as_array().unwrap().is_empty())
        .await;
    let mut files: Vec<String> = std::fs::read_dir(&folder)
        .unwrap()
        .filter_map(|entry| entry.unwrap().file_name().into_string().ok())
        .filter(|name| !name.ends_with(".md") && !name.ends_with(".txt"))
        .collect();
    files.sort();
    let (mut table, mut failures) = (String::new(), Vec::new());
    for file in &files {
        let listed = library["items"]
            .as_array()
            .unwrap()
            .iter()
            .any(|item| item["file"] == file.as_str());
        let outcome = if listed {
            play_through(&setup, &server, file).await
        } else {
            let problems = library["problems"].as_array().unwrap();
            let problem = problems.iter().find(|problem| problem["file"] == file.as_str());
            problem
                .map(|problem| format!("not listed: {}", problem["reason"]))
                .ok_or("neither listed nor a problem".into())
        };
        let (mark, words) = match outcome {
            Ok(words) => ("ok  ", words),
            Err(words) => {
                failures.push(format!("{file}: {words}"));
                ("FAIL", words)
            }
        };
        table.push_str(&format!("{mark} {file:<50} {words}\n"));
    }
    println!("{table}");
    assert!(failures.is_empty(), "{failures:#?}");
    server.rests().await;
    server.stop().await;
}

/// Plays all of it as a browser that shows what Chromium shows; how it was played, or why not.
async fn play_through(setup: &Setup, server: &Server, file: &str) -> Result<String, String> {
    let client = json!({
        "video": ["avc1.640033", "av01.0.08M.08", "vp09.00.40.08"],
        "audio": ["mp4a.40.2", "opus", "flac", "mp3"],
    });
    let answer = Play::ask(server, file, json!({"client": client})).await;
    if answer.status == 422 {
        let error = answer.json();
        let (code, message) = (
            error["code"].as_str().unwrap_or(""),
            error["message"].as_str().unwrap_or(""),
        );
        return if code.is_empty() || message.is_empty() {
            Err(format!("refused without a reason: {error}"))
        } else {
            Ok(format!("refused: {code}: {message}"))
        };
    }
    let play = Play::of(server, answer.expect(201).json()).await;
    let listed = server.film(file).await["durationMs"]
        .as_f64()
        .unwrap_or(f64::INFINITY)
        / 1_000.0;
    // A frame of the slowest film among them.
    if (listed - play.list.length()).abs() > 0.1 {
        let length = play.list.length();
        return Err(format!("{listed} s are listed and {length} s are played"));
    }
    for (kind, shown) in [
        ("video", &["h264", "av1", "vp9"][..]),
        ("audio", &["aac", "opus", "flac", "mp3"]),
    ] {
        let codec = play.decision()[kind]["codec"].as_str();
        if codec.is_some_and(|codec| !shown.contains(&codec)) {
            return Err(format!("sent as {codec:?}, which was not asked for"));
        }
    }
    let action = |kind: &str| {
        play.decision()[kind]["action"]
            .as_str()
            .unwrap_or("none")
            .to_owned()
    };
    let mut complaints = heard(setup, &play).await?;
    if let Some(sound) = play.sound().await {
        complaints += &heard(setup, &sound).await?;
    }
    play.stop().await;
    if complaints.is_empty() {
        let (video, audio) = (action("video"), action("audio"));
        Ok(format!(
            "{} segments, picture: {video}, sound: {audio}",
            play.segments()
        ))
    } else {
        Err(format!(
            "decoding complains: {}",
            complaints.lines().take(3).collect::<Vec<_>>().join(" | ")
        ))
    }
}

/// Takes every segment of a playlist; what decoding them all complains of.
async fn heard(setup: &Setup, play: &Play<'_>) -> Result<String, String> {
    let mut bytes = play.init().await.to_vec();
    for n in 0..play.segments() {
        let answer = play.fetch(n).await;
        if answer.status != 200 {
            return Err(format!(
                "segment {n} of {}: {} {}",
                play.segments(),
                answer.status,
                answer.text()
            ));
        }
        bytes.extend_from_slice(&answer.body);
    }
    let taken = setup.path("taken");
    std::fs::write(&taken, &bytes).unwrap();
    Ok(complaints(&taken).await)
}
