//! Nothing outlives the server, however it ends, and whatever it knew is there at the next start.

use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;

use hyper::Method;
use rustix::process::Signal;
use serde_json::json;

use crate::bed::{Server, Setup};
use crate::play::Play;
use crate::processes::{Process, descendants, readers, until};
use crate::wire::ask;

/// Plays until an encoder runs; every process that descends from the server by then.
async fn while_it_encodes(server: &Server) -> Vec<Process> {
    let play = Play::open(server, "ntsc.mkv", json!({"video": "encode"})).await;
    play.segment(2).await;
    until("an encoder runs", || !server.encoders().is_empty()).await;
    let family = descendants(server.pid());
    assert!(family.iter().any(|process| process.runs("ffmpeg")), "{family:?}");
    family
}

async fn all_gone(setup: &Setup, family: &[Process]) {
    until("every child is gone", || !family.iter().any(Process::lives)).await;
    assert_eq!(readers(&setup.films()), [], "something reads the films still");
    let left = std::fs::read_dir(setup.data().join("scratch")).map(Iterator::count);
    assert_eq!(left.ok(), Some(0), "scratch files with names were left");
}

/// An encoder that does not end by itself when nobody reads what it makes any more.
fn stubborn(setup: &Setup) -> PathBuf {
    let text = "case \"$*\" in *pipe:1*) ffmpeg \"$@\"; exec sleep 1000;; *) exec ffmpeg \"$@\";; esac";
    setup.script("stubborn/ffmpeg", text)
}

#[tokio::test]
async fn a_server_that_is_killed_takes_its_encoders_with_it() {
    let setup = Setup::of(&["ntsc.mkv"]);
    let ffmpeg = stubborn(&setup);
    let setup = setup.arg("--ffmpeg").arg(ffmpeg);
    let mut server = setup.start().await;
    let family = while_it_encodes(&server).await;
    server.signal(Signal::KILL);
    let (status, _) = server.exit().await;
    assert_eq!(status.signal(), Some(9));
    all_gone(&setup, &family).await;
}

#[tokio::test]
async fn a_server_that_is_told_to_end_ends_cleanly() {
    for signal in [Signal::TERM, Signal::INT] {
        let setup = Setup::of(&["ntsc.mkv"]);
        let mut server = setup.start().await;
        let family = while_it_encodes(&server).await;
        server.signal(signal);
        let (status, said) = server.exit().await;
        assert_eq!((status.code(), said.as_str()), (Some(0), ""), "{}", server.log());
        // Not soon: by now.
        assert!(
            !family
                .iter()
                .any(|process| process.runs("ffmpeg") && process.lives()),
            "{family:?}"
        );
        all_gone(&setup, &family).await;
    }
}

#[tokio::test]
async fn a_second_signal_ends_it_at_once() {
    let setup = Setup::of(&["ntsc.mkv"]);
    let mut server = setup.start().await;
    let family = while_it_encodes(&server).await;
    // Held still, so that both are there before it can have done anything about the first.
    server.signal(Signal::STOP);
    server.signal(Signal::TERM);
    server.signal(Signal::INT);
    server.signal(Signal::CONT);
    let (status, _) = server.exit().await;
    assert_eq!(status.code(), Some(130), "{}", server.log());
    all_gone(&setup, &family).await;
}

#[tokio::test]
async fn a_server_whose_guardian_was_killed_ends_cleanly_all_the_same() {
    let setup = Setup::of(&["ntsc.mkv"]);
    let mut server = setup.start().await;
    let family = while_it_encodes(&server).await;
    let guardian = family
        .iter()
        .find(|process| process.words.iter().any(|word| word == b"__guardian"));
    let pid = rustix::process::Pid::from_raw(guardian.expect("a guardian").pid.cast_signed()).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    until("another guardian", || {
        let now = descendants(server.pid());
        let mut guardians = now
            .iter()
            .filter(|process| process.words.iter().any(|word| word == b"__guardian"));
        guardians.any(|process| Some(process.pid) != guardian.map(|guardian| guardian.pid))
    })
    .await;
    server.signal(Signal::KILL);
    server.exit().await;
    all_gone(&setup, &family).await;
}

#[tokio::test]
async fn a_crash_loses_no_library_no_token_and_no_position() {
    let setup = Setup::of(&["ntsc.mkv", "upright.mp4"]);
    let tools = setup.script(
        "bin/xdg-open",
        "echo \"$1\" > \"$0.part\"; mv \"$0.part\" \"$0.url\"",
    );
    let path = format!(
        "{}:{}",
        tools.parent().unwrap().display(),
        std::env::var("PATH").unwrap()
    );
    let setup = setup.arg("--open").env("PATH", path);
    let mut server = setup.start().await;
    assert!(
        !server.ready.contains('#'),
        "a log gets no code: {:?}",
        server.ready
    );
    assert!(
        !server.ready.contains('#'),
        "a log has no code: {:?}",
        server.ready
    );
    // The browser gets it, and it works once.
    let opened = setup.path("bin/xdg-open.url");
    until("the page is opened", || opened.exists()).await;
    let url = std::fs::read_to_string(&opened).unwrap();
    let (_, code) = url.trim().split_once("/#code=").expect("a code in the fragment");
    let sign_in = json!({"code": code});
    let address = server.address;
    let try_it = || ask(address, Method::POST, "/ether/api/sign-in", &[], Some(&sign_in));
    let viewer = try_it().await.expect(200).json()["token"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_eq!(try_it().await.expect(401).code(), "wrong_code");

    let ids = [
        server.film("ntsc.mkv").await["id"].clone(),
        server.film("upright.mp4").await["id"].clone(),
    ];
    let position = format!("/ether/api/items/{}/position", ids[0].as_str().unwrap());
    let body = json!({"positionMs": 61_500, "finished": false});
    server.api(Method::PUT, &position, Some(&body)).await.expect(204);
    let owner = server.token.clone();
    while_it_encodes(&server).await;
    server.kill().await;
    drop(server);

    // The file was renamed while nobody watched.
    std::fs::rename(setup.films().join("ntsc.mkv"), setup.films().join("renamed.mkv")).unwrap();
    let server = setup.start().await;
    assert_eq!(server.token, owner, "the owner's token stays");
    let film = server.film("renamed.mkv").await;
    assert_eq!((&film["id"], &film["positionMs"]), (&ids[0], &json!(61_500)));
    assert_eq!(server.film("upright.mp4").await["id"], ids[1]);
    let library = server.library(|_| true).await;
    assert_eq!(library["items"].as_array().unwrap().len(), 2, "{library:#}");
    let bearer = format!("Bearer {viewer}");
    let headers = [("authorization", bearer.as_str())];
    ask(server.address, Method::GET, "/ether/api/library", &headers, None)
        .await
        .expect(200);
    assert_eq!(server.scratch_bytes(), 0, "nothing is left to tidy");
    Play::open(&server, "renamed.mkv", json!({}))
        .await
        .segment(1)
        .await;
    server.stop().await;
}
