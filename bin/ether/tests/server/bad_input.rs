//! What goes wrong has an error of its own that names the thing and its mend, and stops nothing else.

use std::ffi::OsStr;
use std::net::TcpListener;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::PathBuf;

use hyper::Method;
use serde_json::json;

use crate::bed::{Setup, clip, program};
use crate::films::{complaints, packets};
use crate::play::Play;
use crate::wire::ask;

/// A server that must not start: with this status, and words that say what and how.
async fn refused(setup: &Setup, status: i32, words: &[&str]) {
    let (found, text) = setup.refused().await;
    assert_eq!(found, status, "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
}

#[tokio::test]
async fn a_folder_that_does_not_exist_is_named() {
    let setup = Setup::new();
    let folder = setup.path("no such folder");
    let setup = setup.folders(&[&folder]);
    refused(
        &setup,
        6,
        &[folder.to_str().unwrap(), "does not exist", "--media"],
    )
    .await;
}

#[tokio::test]
async fn a_file_is_not_a_folder() {
    let setup = Setup::of(&["upright.mp4"]);
    let file = setup.films().join("upright.mp4");
    let setup = setup.folders(&[&file]);
    refused(&setup, 6, &[file.to_str().unwrap(), "is not a folder", "--media"]).await;
}

#[tokio::test]
async fn a_missing_ffmpeg_is_named_with_what_installs_it() {
    let setup = Setup::new().arg("--ffmpeg").arg("/no/such/ffmpeg");
    refused(&setup, 5, &["/no/such/ffmpeg", "--ffmpeg"]).await;
}

#[tokio::test]
async fn an_ffmpeg_that_is_too_old_is_told_so() {
    let setup = Setup::new();
    let old = setup.script(
        "ffmpeg-old",
        "echo 'ffmpeg version 4.4.2-0 Copyright (c) 2000-2021 the FFmpeg developers'",
    );
    let setup = setup.arg("--ffmpeg").arg(old);
    refused(&setup, 5, &["ffmpeg-old", "FFmpeg 4", "5.1 or later"]).await;
}

#[tokio::test]
async fn a_program_that_is_no_ffmpeg_is_named_with_what_to_name_instead() {
    let setup = Setup::new().arg("--ffmpeg").arg("/bin/true");
    refused(&setup, 5, &["/bin/true", "does not answer as FFmpeg", "--ffmpeg"]).await;
}

#[tokio::test]
async fn an_ffmpeg_that_says_nothing_is_given_up_in_its_own_words() {
    let setup = Setup::new();
    let mute = setup.script("ffmpeg-mute", "exec sleep 60");
    let setup = setup.arg("--ffmpeg").arg(mute);
    refused(&setup, 5, &["ffmpeg-mute", "does not answer within", "--ffmpeg"]).await;
    // One that only slept the first time it was asked is none of those.
    let setup = Setup::of(&["upright.mp4"]);
    let woken = setup.path("woken");
    let text = format!(
        "[ -e {0} ] || {{ touch {0}; exec sleep 60; }}\nexec ffmpeg \"$@\"",
        woken.display()
    );
    let sleeper = setup.script("ffmpeg-asleep", &text);
    let server = setup.arg("--ffmpeg").arg(sleeper).start().await;
    server.stop().await;
}

#[tokio::test]
async fn a_port_in_use_is_named() {
    let busy = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = busy.local_addr().unwrap().to_string();
    let setup = Setup::new().arg("--listen").arg(&address);
    refused(&setup, 4, &[&address, "in use", "--listen"]).await;
}

#[tokio::test]
async fn a_data_directory_in_use_is_named_and_its_user_goes_on() {
    let setup = Setup::of(&["upright.mp4"]);
    let server = setup.start().await;
    refused(&setup, 3, &[setup.data().to_str().unwrap(), "--data-dir"]).await;
    let play = Play::open(&server, "upright.mp4", json!({"video": "copy"})).await;
    play.segment(0).await;
    server.stop().await;
}

#[tokio::test]
async fn a_data_directory_that_cannot_be_made_is_named() {
    let setup = Setup::new();
    std::fs::write(setup.data(), b"a file").unwrap();
    refused(&setup, 7, &[setup.data().to_str().unwrap(), "--data-dir"]).await;
}

/// Root may read everything, so the server runs as nobody.
#[tokio::test]
async fn a_folder_that_cannot_be_read_is_reported_and_the_others_play() {
    const NOBODY: u32 = 65_534;
    let setup = Setup::of(&["upright.mp4"]);
    let words = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"];
    let mut reach = program(words[0]);
    reach
        .args(&words[1..])
        .arg(env!("CARGO_BIN_EXE_ether"))
        .arg("--version");
    if !reach.output().await.is_ok_and(|output| output.status.success()) {
        return eprintln!("skipped: this user cannot run the server as nobody");
    }
    let (locked, root) = (setup.path("locked"), setup.path(""));
    std::fs::create_dir(&locked).unwrap();
    std::fs::copy(clip("rotated.mp4"), locked.join("film.mp4")).unwrap();
    std::fs::set_permissions(&locked, PermissionsExt::from_mode(0o700)).unwrap();
    std::fs::set_permissions(&root, PermissionsExt::from_mode(0o755)).unwrap();
    std::fs::create_dir(setup.data()).unwrap();
    chown(setup.data(), Some(NOBODY), Some(NOBODY)).unwrap();
    let films = setup.films();
    let setup = setup.folders(&[&locked, &films]).through(words);
    let server = setup.start().await;
    let library = server
        .library(|library| library["folders"][0]["state"] == "unreadable")
        .await;
    let folder = &library["folders"][0];
    assert_eq!(folder["path"], locked.to_str().unwrap());
    assert!(
        folder["reason"].as_str().is_some_and(|reason| !reason.is_empty()),
        "{folder:#}"
    );
    Play::open(&server, "upright.mp4", json!({"video": "copy"}))
        .await
        .segment(0)
        .await;
    server.stop().await;
}

#[tokio::test]
async fn files_that_are_no_films_are_listed_with_their_reason() {
    let setup = Setup::of(&["upright.mp4"]);
    let film = std::fs::read(clip("moov-at-end.mp4")).unwrap();
    setup.write(
        "text.mkv",
        b"This is not a film, whatever its name says. It is not even long.",
    );
    setup.write("empty.mp4", b"");
    // Its index stands at the end, which is not there.
    setup.write("beheaded.mp4", &film[..film.len() / 10]);
    setup.write(
        "noise.ts",
        &(0..40_000_u32)
            .map(|n| (n.wrapping_mul(2_654_435_761) >> 24) as u8)
            .collect::<Vec<_>>(),
    );
    std::os::unix::fs::symlink("nowhere.mkv", setup.films().join("dangling.mkv")).unwrap();
    let server = setup.start().await;
    let library = server
        .library(|library| library["problems"].as_array().unwrap().len() >= 5)
        .await;
    let problems = library["problems"].as_array().unwrap();
    for file in [
        "text.mkv",
        "empty.mp4",
        "beheaded.mp4",
        "noise.ts",
        "dangling.mkv",
    ] {
        let problem = problems.iter().find(|problem| problem["file"] == file);
        let problem = problem.unwrap_or_else(|| panic!("{file} is not listed: {problems:#?}"));
        assert!(
            problem["reason"].as_str().is_some_and(|reason| reason.len() > 10),
            "{problem:#}"
        );
        assert!(
            problem["code"].as_str().is_some_and(|code| !code.is_empty()),
            "{problem:#}"
        );
    }
    assert_eq!(library["items"].as_array().unwrap().len(), 1, "{library:#}");
    Play::open(&server, "upright.mp4", json!({"video": "copy"}))
        .await
        .segment(0)
        .await;
    server.stop().await;
}

#[tokio::test]
async fn films_of_any_name_play_through() {
    let names: [&[u8]; 9] = [
        b"two words.mp4",
        b"quote's \"and\" `more`.mp4",
        b"100% %41 %2e%2e.mp4",
        b"new\nline.mp4",
        "Стрáнные имена 映画 é.mp4".as_bytes(),
        b"-dash -i.mp4",
        b"colon: file:other.mp4",
        b"no \xff text.mp4",
        b"pattern %03d [x] ?.mp4",
    ];
    let setup = Setup::new();
    let folder = setup.films().join("-sub #folder;&");
    std::fs::create_dir(&folder).unwrap();
    for name in names {
        std::fs::copy(clip("upright.mp4"), folder.join(OsStr::from_bytes(name))).unwrap();
    }
    let server = setup.start().await;
    let library = server
        .library(|library| library["items"].as_array().unwrap().len() == names.len())
        .await;
    let file = std::fs::read(clip("upright.mp4")).unwrap();
    for item in library["items"].as_array().unwrap() {
        let name = &item["file"];
        for (video, pictures) in [("copy", 250), ("encode", 250)] {
            let wish = json!({"item": item["id"], "video": video, "maxHeight": 90, "container": "fmp4"});
            let wish = if video == "copy" {
                json!({"item": item["id"], "video": "copy"})
            } else {
                wish
            };
            let created = server
                .api(Method::POST, "/ether/api/sessions", Some(&wish))
                .await
                .expect(201)
                .json();
            let play = Play::of(&server, created).await;
            let taken = play.whole().await.save(&setup, "taken");
            assert_eq!(packets(&taken).await.video.len(), pictures, "{name}: {video}");
            play.stop().await;
        }
        let target = format!("/ether/api/items/{}", item["id"].as_str().unwrap());
        let detail = server.api(Method::GET, &target, None).await.expect(200).json();
        let direct = server
            .api(Method::GET, detail["direct"].as_str().unwrap(), None)
            .await
            .expect(200);
        assert!(direct.body == file, "{name}: the file itself");
    }
    server.stop().await;
}

#[tokio::test]
async fn whoever_may_not_ask_is_told_so_and_nothing_else() {
    let setup = Setup::of(&["upright.mp4"]);
    let server = setup.start().await;
    let play = Play::open(&server, "upright.mp4", json!({"video": "copy"})).await;
    let at = server.address;
    let get = |target: &'static str, headers: &'static [(&'static str, &'static str)]| {
        ask(at, Method::GET, target, headers, None)
    };
    let none = get("/ether/api/library", &[]).await.expect(401);
    assert_eq!(
        (none.code().as_str(), none.header("www-authenticate")),
        ("unauthorized", "Bearer realm=\"ether\"")
    );
    let wrong = get("/ether/api/library", &[("authorization", "Bearer wrong")])
        .await
        .expect(401);
    assert_eq!(wrong.code(), "token_unknown");
    // An id that exists and one that does not look alike to whoever has no token.
    let known = format!(
        "/ether/api/items/{}",
        server.film("upright.mp4").await["id"].as_str().unwrap()
    );
    let (known, unknown) = (
        server.get(&known).await.expect(401),
        get("/ether/api/items/0000", &[]).await.expect(401),
    );
    assert_eq!(known.body, unknown.body);
    let foreign = get("/ether/api/library", &[("host", "films.example")])
        .await
        .expect(421);
    assert_eq!(foreign.code(), "foreign_host");
    let foreign = get("/", &[("host", "127.0.0.1.example:80")]).await.expect(421);
    assert!(foreign.json()["message"].as_str().unwrap().len() > 10);
    let bare = play.address(0);
    let bare = bare.split('?').next().unwrap();
    server.get(bare).await.expect(401);
    server.get(&format!("{bare}?grant=AAAA")).await.expect(401);
    for answer in [none, wrong] {
        assert!(!answer.text().contains(&server.token));
    }
}

#[tokio::test]
async fn what_is_not_there_is_told_so_and_the_play_goes_on() {
    let setup = Setup::of(&["upright.mp4"]);
    let server = setup.start().await;
    let wish = json!({"item": "00000000000000000000000000000000"});
    let unknown = server
        .api(Method::POST, "/ether/api/sessions", Some(&wish))
        .await
        .expect(404);
    assert_eq!(unknown.code(), "no_such_item");
    let play = Play::open(&server, "upright.mp4", json!({"video": "copy"})).await;
    let past = server.get(&play.address_past_end()).await.expect(404);
    assert_eq!(
        (past.code().as_str(), past.header("cache-control")),
        ("no_such_segment", "no-store")
    );
    let unknown = server
        .api(Method::GET, "/ether/api/sessions/0000", None)
        .await
        .expect(404);
    assert_eq!(unknown.code(), "no_such_session");
    let wish = json!({"offsetMs": 3_600_000});
    assert_eq!(
        Play::ask(&server, "upright.mp4", wish).await.expect(422).code(),
        "start_past_end"
    );
    play.segment(0).await;
}

#[tokio::test]
async fn a_full_disk_is_told_as_one_and_other_playbacks_go_on() {
    let setup = Setup::of(&["moov-at-end.mp4", "three-languages.mkv"]);
    let scratch: PathBuf = setup.path("small disk");
    std::fs::create_dir(&scratch).unwrap();
    // A disk that only this server sees, and that ends with it.
    let mount = "mount -t tmpfs -o size=12m tmpfs \"$0\" && exec \"$@\"";
    let wrap = ["unshare", "-m", "sh", "-c", mount, scratch.to_str().unwrap()];
    let tried = program(wrap[0]).args(&wrap[1..]).arg("true").output().await;
    if !tried.is_ok_and(|output| output.status.success()) {
        return eprintln!("skipped: no file system can be mounted here");
    }
    let setup = setup.through(wrap).arg("--scratch-dir").arg(&scratch);
    let server = setup.start().await;
    let small = Play::open(
        &server,
        "three-languages.mkv",
        json!({"video": "encode", "maxHeight": 90}),
    )
    .await;
    small.segment(0).await;
    let large = Play::open(
        &server,
        "moov-at-end.mp4",
        json!({"video": "copy", "segmentSeconds": 15}),
    )
    .await;
    // Twelve megabits a second: a segment alone is larger than the disk.
    let full = large.fetch(1).await;
    assert_eq!(
        (full.status.as_u16(), full.code().as_str()),
        (503, "scratch_full"),
        "{}",
        full.text()
    );
    assert!(!full.header("retry-after").is_empty(), "{:?}", full.headers);
    let seen = large.seen().await;
    assert_eq!(seen["encoder"]["ended"]["code"], "scratch_full", "{seen:#}");
    large.stop().await;
    // Where the other one wanted room in the very moment that there was none, its encoder ended too: it says so, and
    // asking again is enough once the room is back.
    let last = small.segments() - 1;
    loop {
        let answer = small.fetch(last).await;
        if answer.status == 200 {
            break;
        }
        assert_eq!(answer.code(), "scratch_full", "{}", answer.text());
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
    }
    let rest = small.whole().await.save(&setup, "rest");
    assert_eq!(complaints(&rest).await, "");
    server.stop().await;
}

#[tokio::test]
async fn a_missing_ffprobe_is_named_with_what_installs_it() {
    let setup = Setup::new().arg("--ffprobe").arg("/no/such/ffprobe");
    refused(&setup, 5, &["/no/such/ffprobe", "--ffprobe"]).await;
}
