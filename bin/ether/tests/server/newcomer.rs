//! What a person who does not know the server yet runs into, each with what it is told.

use std::os::unix::fs::symlink;
use std::path::Path;

use hyper::Method;
use serde_json::{Value, json};

use crate::bed::{Setup, clip, program};
use crate::play::Play;

/// An FFmpeg that answers questions about itself and fails at films, with words of its own.
fn failing(setup: &Setup) -> std::path::PathBuf {
    let text = r#"for word in "$@"; do case "$word" in *films*)
echo "[h264 @ 0x55d0c8a1] no frame in $word and /srv/secret/key: Invalid data" >&2
echo "see https://user:word@example.org/?token=abc" >&2
exit 69;; esac; done
exec ffmpeg "$@""#;
    setup.script("ffmpeg-failing", text)
}

#[tokio::test]
async fn an_encoder_that_fails_says_of_which_film_why_and_what_comes_next() {
    let setup = Setup::of(&["upright.mp4"]);
    let broken = failing(&setup);
    let setup = setup.arg("--ffmpeg").arg(broken);
    let server = setup.start().await;
    let play = Play::open(&server, "upright.mp4", json!({"video": "encode"})).await;
    let refused = server.get(&play.address(0)).await.expect(502);
    assert_eq!(refused.code(), "encoder_failed");
    let told = refused.json()["message"].as_str().unwrap().to_owned();
    for word in [
        "upright.mp4",
        "exit status 69",
        "no frame in",
        "Invalid data",
        "doctor",
        "Asking again",
    ] {
        assert!(told.contains(word), "{word:?} is not in {told:?}");
    }
    for secret in [
        "secret",
        "example.org",
        "token",
        "0x55",
        setup.films().to_str().unwrap(),
    ] {
        assert!(!refused.text().contains(secret), "{secret:?} is in {told:?}");
    }
    let seen = play.seen().await;
    assert_eq!(seen["state"], "failed", "{seen:#}");
    assert_eq!(seen["failure"]["code"], "encoder_failed", "{seen:#}");
    for secret in ["/srv/secret", "example.org", setup.films().to_str().unwrap()] {
        assert!(!seen.to_string().contains(secret), "{secret:?} is in {seen:#}");
    }
    server.get(&play.address(0)).await.expect(502);
    let third = server.get(&play.address(0)).await.expect(502);
    let wait: u64 = third.header("retry-after").parse().unwrap();
    assert!((1..=30).contains(&wait), "{wait}");
    // What was taken for it is others' while it rests.
    server.rests().await;
    server.stop().await;
}

#[tokio::test]
async fn a_film_of_a_folder_that_is_away_is_refused_by_the_folders_name() {
    let setup = Setup::of(&["upright.mp4"]);
    let away = setup.path("Holiday films");
    std::fs::create_dir(&away).unwrap();
    std::fs::copy(clip("rotated.mp4"), away.join("beach.mp4")).unwrap();
    let films = setup.films();
    let setup = setup.folders(&[&films, &away]);
    let server = setup.start().await;
    server.film("beach.mp4").await;
    std::fs::rename(&away, setup.path("elsewhere")).unwrap();
    let refused = Play::ask(&server, "beach.mp4", json!({})).await.expect(404);
    assert_eq!(refused.code(), "folder_missing");
    let told = refused.json()["message"].as_str().unwrap().to_owned();
    assert!(told.contains("Holiday films") && told.contains("mount"), "{told}");
    assert!(!told.contains(away.to_str().unwrap()), "{told}");
    std::fs::rename(setup.path("elsewhere"), &away).unwrap();
    Play::ask(&server, "beach.mp4", json!({})).await.expect(201);
    std::fs::remove_file(away.join("beach.mp4")).unwrap();
    let gone = Play::ask(&server, "beach.mp4", json!({})).await;
    // Where the watcher was faster, the film is not listed any more either.
    assert!(
        ["file_gone", "no_such_item"].contains(&gone.code().as_str()),
        "{}",
        gone.text()
    );
    server.stop().await;
}

/// A link out of the folder is not followed, not even one to the very film that stood in its place before.
#[tokio::test]
async fn a_film_that_was_moved_out_and_linked_back_is_not_served() {
    let setup = Setup::new();
    let film = setup.films().join("film.mp4");
    std::fs::copy(clip("upright.mp4"), &film).unwrap();
    let server = setup.start().await;
    let known = server.film("film.mp4").await;
    let play = Play::open(&server, "film.mp4", json!({"video": "copy"})).await;
    let target = format!("/ether/api/items/{}", known["id"].as_str().unwrap());
    let direct = server.api(Method::GET, &target, None).await.expect(200).json();
    let direct = direct["direct"].as_str().unwrap();
    server.api(Method::GET, direct, None).await.expect(200);
    let outside = setup.path("outside.mp4");
    std::fs::rename(&film, &outside).unwrap();
    symlink(&outside, &film).unwrap();
    let refused = server.api(Method::GET, direct, None).await;
    assert_eq!(refused.status, 404, "{}", refused.text());
    let refused = server.get(&play.address(0)).await;
    assert!(
        [410, 502].contains(&refused.status.as_u16()),
        "{}",
        refused.text()
    );
    let wish = json!({"item": known["id"]});
    let refused = server.api(Method::POST, "/ether/api/sessions", Some(&wish)).await;
    assert_eq!(refused.status, 404, "{}", refused.text());
    server.stop().await;
}

/// One finding of the doctor, and the status that it ends with.
async fn doctor(subject: &str, args: &[&str]) -> (i32, Value) {
    let mut command = program(env!("CARGO_BIN_EXE_ether"));
    command
        .args(["doctor", "--json", "--listen", "127.0.0.1:0"])
        .args(args);
    found(subject, command).await
}

async fn found(subject: &str, mut command: tokio::process::Command) -> (i32, Value) {
    let output = command.output().await.unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let findings: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let findings = findings.as_array().unwrap();
    let one = findings.iter().find(|finding| finding["subject"] == subject);
    let one = one.unwrap_or_else(|| panic!("nothing about {subject}: {text}"));
    (output.status.code().unwrap_or(-1), one.clone())
}

#[tokio::test]
async fn the_doctor_looks_at_folders_of_films() {
    let setup = Setup::of(&["upright.mp4"]);
    let (data, films) = (setup.data(), setup.films());
    let (data, films) = (data.to_str().unwrap(), films.to_str().unwrap());
    let (status, good) = doctor("media", &["--data-dir", data, "--media", films]).await;
    assert_eq!((status, &good["grade"]), (0, &json!("ok")), "{good:#}");
    assert!(
        good["found"].as_str().unwrap().contains("read and watched"),
        "{good:#}"
    );
    let (nowhere, file) = (setup.path("nowhere"), setup.films().join("upright.mp4"));
    for (path, word) in [(&nowhere, "does not exist"), (&file, "not a folder")] {
        let (status, bad) = doctor("media", &["--data-dir", data, "--media", path.to_str().unwrap()]).await;
        assert_eq!((status, &bad["grade"]), (6, &json!("failure")), "{bad:#}");
        assert!(bad["found"].as_str().unwrap().contains(word), "{bad:#}");
        assert!(bad["mend"].as_str().unwrap().len() > 20, "{bad:#}");
    }
    let mut command = program(env!("CARGO_BIN_EXE_ether"));
    command
        .args(["doctor", "--json", "--listen", "127.0.0.1:0", "--data-dir", data])
        .env("ETHER_SERVE_MEDIA", format!("{films}:{}", nowhere.display()));
    let (status, first) = found("media", command).await;
    assert_eq!(
        (status, &first["grade"]),
        (6, &json!("ok")),
        "the second is missing: {first:#}"
    );
}

#[tokio::test]
async fn the_doctor_tells_an_ffmpeg_that_hangs_from_one_that_is_missing() {
    let setup = Setup::new();
    let mute = setup.script("ffmpeg-mute", "exec sleep 60");
    let (mute, data) = (mute.to_str().unwrap(), setup.data());
    let data = data.to_str().unwrap();
    for (flag, subject) in [("--ffmpeg", "ffmpeg"), ("--ffprobe", "ffprobe")] {
        let (status, found) = doctor(subject, &["--data-dir", data, flag, mute]).await;
        assert_eq!((status, &found["grade"]), (5, &json!("failure")), "{found:#}");
        assert!(
            found["found"]
                .as_str()
                .unwrap()
                .contains("does not answer within"),
            "{found:#}"
        );
        let mend = found["mend"].as_str().unwrap();
        assert!(
            mend.contains("less busy") && !mend.contains("apt install"),
            "{mend}"
        );
    }
}

#[tokio::test]
async fn a_disk_without_room_for_scratch_is_a_failure_and_not_a_warning() {
    let setup = Setup::new();
    let scratch = setup.path("small disk");
    std::fs::create_dir(&scratch).unwrap();
    let mount = "mount -t tmpfs -o size=1m tmpfs \"$0\" && exec \"$@\"";
    let wrap = ["-m", "sh", "-c", mount, scratch.to_str().unwrap()];
    let tried = program("unshare").args(wrap).arg("true").output().await;
    if !tried.is_ok_and(|output| output.status.success()) {
        return eprintln!("skipped: no file system can be mounted here");
    }
    let mut command = program("unshare");
    command
        .args(wrap)
        .arg(env!("CARGO_BIN_EXE_ether"))
        .args(["doctor", "--json", "--listen", "127.0.0.1:0", "--data-dir"])
        .arg(setup.data())
        .arg("--scratch-dir")
        .arg(&scratch);
    let (status, found) = found("scratch", command).await;
    assert_eq!((status, &found["grade"]), (7, &json!("failure")), "{found:#}");
    assert!(
        found["mend"].as_str().unwrap().contains("--scratch-dir"),
        "{found:#}"
    );
}

#[tokio::test]
async fn a_scratch_directory_is_made_only_where_it_has_a_place() {
    let setup = Setup::new();
    let (leaf, deep) = (setup.path("scratch"), setup.path("no/such/place"));
    let setup = setup.arg("--scratch-dir").arg(&deep);
    let (status, told) = setup.refused().await;
    assert_eq!(status, 7, "{told}");
    for word in [deep.to_str().unwrap(), "--scratch-dir", "lie in"] {
        assert!(told.contains(word), "{word:?} is not in {told:?}");
    }
    assert!(
        !Path::new(&setup.path("no")).exists(),
        "nothing is made on the way"
    );
    let data = setup.data();
    let args = [
        "--data-dir",
        data.to_str().unwrap(),
        "--scratch-dir",
        deep.to_str().unwrap(),
    ];
    let (status, found) = doctor("scratch", &args).await;
    assert_eq!((status, &found["grade"]), (7, &json!("failure")), "{found:#}");
    let setup = Setup::of(&["upright.mp4"]);
    let setup = setup.arg("--scratch-dir").arg(&leaf);
    let server = setup.start().await;
    assert!(
        server.log().contains("scratch directory was made"),
        "{}",
        server.log()
    );
    server.stop().await;
}
