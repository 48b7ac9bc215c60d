//! Streams without segments, as players open them: one address, Matroska as it is made, from any time on.

use std::time::Duration;

use hyper::Method;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::{sleep, timeout};

use crate::bed::{Server, Setup, program, run};
use crate::films::real_films;
use crate::processes::{SOON, until};
use crate::wire::ask;

/// The end of a chunked body that was sent to its end.
const LAST_CHUNK: &[u8] = b"\r\n0\r\n\r\n";

/// Asks for a stream of the film `file`.
async fn wish(server: &Server, file: &str, mut wish: Value) -> Value {
    wish["item"] = server.film(file).await["id"].clone();
    wish["protocol"] = json!("http");
    let answer = server.api(Method::POST, "/ether/api/sessions", Some(&wish)).await;
    let created = answer.expect(201).json();
    let url = created["url"].as_str().unwrap();
    assert!(url.contains("/start.mkv?grant="), "{url}");
    created
}

fn url(created: &Value) -> &str {
    created["url"].as_str().unwrap()
}

fn address(server: &Server, created: &Value) -> String {
    format!("http://{}{}", server.address, url(created))
}

/// A connection on which a stream was asked for, and the head of the answer.
async fn open(server: &Server, created: &Value) -> (TcpStream, String) {
    let mut stream = TcpStream::connect(server.address).await.unwrap();
    let request = format!(
        "GET {} HTTP/1.1\r\nHost: {}\r\nRange: bytes=0-\r\n\r\n",
        url(created),
        server.address
    );
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut head = Vec::new();
    let read = async {
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
    };
    timeout(SOON * 3, read).await.expect("an answer in time");
    (stream, String::from_utf8(head).unwrap().to_ascii_lowercase())
}

/// Everything that comes until the connection ends, however it does.
async fn rest(mut stream: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    let _ = timeout(SOON * 3, stream.read_to_end(&mut bytes))
        .await
        .expect("an end in time");
    bytes
}

/// Times of packets as FFmpeg's prober reads them over HTTP.
async fn probed(address: &str, entries: &str, selected: &str) -> Vec<f64> {
    let mut command = program("ffprobe");
    command.args([
        "-v",
        "error",
        "-select_streams",
        selected,
        "-show_entries",
        entries,
    ]);
    command.args(["-of", "default=nw=1:nk=1", address]);
    let output = run(&mut command).await;
    let said = String::from_utf8(output.stdout).unwrap();
    said.lines().filter_map(|line| line.trim().parse().ok()).collect()
}

#[tokio::test]
async fn players_open_a_stream_at_the_second_they_ask_for() {
    let setup = Setup::of(&["flash-beep.mkv"]);
    let server = setup.start().await;
    server.knows("flash-beep.mkv").await;
    for video in ["encode", "copy"] {
        let wished = json!({"offset": 27, "video": video, "maxHeight": 180});
        let wished = if video == "copy" {
            json!({"offset": 27, "video": video})
        } else {
            wished
        };
        let created = wish(&server, "flash-beep.mkv", wished).await;
        let address = address(&server, &created);
        let shown = probed(&address, "packet=pts_time", "v").await;
        // Its keyframes are ten seconds apart, and its first frame is shown at 21 ms.
        let (from, to) = if video == "encode" {
            (27.0, 27.05)
        } else {
            (20.0, 20.05)
        };
        assert!((from..to).contains(&shown[0]), "{video}: begins at {}", shown[0]);
        assert!(
            shown.iter().any(|at| *at > 119.9),
            "{video}: and goes on to the end"
        );
        let length = probed(&address, "format=duration", "v").await;
        assert!((length[0] - 120.0).abs() < 0.1, "{video}: {length:?}");
        let mut decode = program("ffmpeg");
        run(decode.args(["-v", "error", "-xerror", "-i", &address, "-f", "null", "-"])).await;
        let mut mpv = program("mpv");
        let quick = [
            "--no-config",
            "--vo=null",
            "--ao=null",
            "--untimed",
            "--msg-level=all=error",
            "--frames=200",
        ];
        run(mpv.args(quick).arg(&address)).await;
    }
    server.rests().await;
    server.stop().await;
}

#[tokio::test]
async fn a_stream_has_no_length_no_parts_and_nothing_to_keep_and_asking_what_it_is_starts_nothing() {
    let setup = Setup::of(&["flash-beep.mkv"]);
    let server = setup.start().await;
    let created = wish(&server, "flash-beep.mkv", json!({})).await;
    for _ in 0..2 {
        let head = ask(server.address, Method::HEAD, url(&created), &[], None)
            .await
            .expect(200);
        assert_eq!(head.header("content-type"), "video/x-matroska");
        assert_eq!(
            (head.header("accept-ranges"), head.header("cache-control")),
            ("none", "no-store")
        );
        assert_eq!(head.headers.get("content-length"), None);
    }
    assert!(server.encoders().is_empty());
    let (stream, head) = open(&server, &created).await;
    assert!(
        head.starts_with("http/1.1 200 "),
        "a range is not an error: {head}"
    );
    for line in [
        "content-type: video/x-matroska",
        "transfer-encoding: chunked",
        "accept-ranges: none",
        "cache-control: no-store",
    ] {
        assert!(head.contains(&format!("\r\n{line}\r\n")), "{line} in {head}");
    }
    assert!(
        !head.contains("content-length") && !head.contains("content-range"),
        "{head}"
    );
    assert!(
        rest(stream).await.ends_with(LAST_CHUNK),
        "the film ends, and so does the answer"
    );
    // Nothing of another protocol is at its addresses, and this is not at another's.
    let id = created["id"].as_str().unwrap();
    let grant = url(&created).split_once('?').unwrap().1;
    let playlist = format!("/sessions/media/{id}/index.m3u8?{grant}");
    server.get(&playlist).await.expect(404);
    server
        .get(&format!("/ether/api/sessions/{id}/start.mkv"))
        .await
        .expect(401);
    server.rests().await;
    server.stop().await;
}

#[tokio::test]
async fn an_encoder_that_dies_in_the_middle_breaks_the_answer_off_and_the_next_request_has_another() {
    let setup = Setup::of(&["ntsc.mkv"]);
    let server = setup.start().await;
    let created = wish(&server, "ntsc.mkv", json!({"video": "encode"})).await;
    let (stream, _) = open(&server, &created).await;
    let encoders = server.encoders();
    assert_eq!(encoders.len(), 1);
    kill_process(
        Pid::from_raw(encoders[0].pid.cast_signed()).unwrap(),
        Signal::KILL,
    )
    .unwrap();
    assert!(
        !rest(stream).await.ends_with(LAST_CHUNK),
        "it looked like the end of the film"
    );
    server.rests().await;
    let (mut again, head) = open(&server, &created).await;
    assert!(head.starts_with("http/1.1 200 "), "{head}");
    assert_ne!(again.read_u8().await.unwrap(), 0);
    server.stop().await;
}

#[tokio::test]
async fn a_player_that_vanishes_leaves_nothing_and_may_come_back() {
    let setup = Setup::of(&["ntsc.mkv"]);
    let server = setup.start().await;
    let created = wish(&server, "ntsc.mkv", json!({"video": "encode"})).await;
    for _ in 0..2 {
        let (stream, _) = open(&server, &created).await;
        assert_eq!(server.encoders().len(), 1);
        assert_eq!(server.scratch_bytes(), 0);
        // A reset, as a player that is killed sends it.
        stream.set_zero_linger().unwrap();
        drop(stream);
        server.rests().await;
    }
    let id = created["id"].as_str().unwrap();
    let session = server
        .api(Method::GET, &format!("/ether/api/sessions/{id}"), None)
        .await;
    assert_eq!(session.expect(200).json()["ended"], Value::Null);
    server.stop().await;
}

#[tokio::test]
async fn whoever_opens_a_stream_again_ends_the_one_before() {
    let setup = Setup::of(&["ntsc.mkv"]);
    let server = setup.start().await;
    let created = wish(&server, "ntsc.mkv", json!({"video": "encode"})).await;
    let (first, _) = open(&server, &created).await;
    let before = server.encoders();
    let (mut second, head) = open(&server, &created).await;
    assert!(head.starts_with("http/1.1 200 "), "{head}");
    assert!(!rest(first).await.ends_with(LAST_CHUNK));
    assert!(!before[0].lives());
    assert_eq!(server.encoders().len(), 1);
    second.read_u8().await.unwrap();
    // Stopping the session ends it too.
    let id = created["id"].as_str().unwrap();
    server
        .api(Method::DELETE, &format!("/ether/api/sessions/{id}"), None)
        .await
        .expect(204);
    assert!(!rest(second).await.ends_with(LAST_CHUNK));
    server.rests().await;
    server.stop().await;
}

/// Bytes of memory that a process holds.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() << 10
}

#[tokio::test]
async fn a_viewer_who_reads_slowly_costs_no_memory_and_no_disk() {
    // It is large enough to show: forty megabytes in a minute.
    let setup = Setup::of(&["moov-at-end.mp4"]);
    let server = setup.start().await;
    server.knows("moov-at-end.mp4").await;
    let created = wish(&server, "moov-at-end.mp4", json!({"video": "copy"})).await;
    let (mut stream, _) = open(&server, &created).await;
    let mut taken = vec![0; 64 << 10];
    stream.read_exact(&mut taken).await.unwrap();
    let before = resident(server.pid());
    let encoder = server.encoders()[0].clone();
    for _ in 0..20 {
        stream.read_exact(&mut taken).await.unwrap();
        sleep(Duration::from_millis(50)).await;
    }
    let grown = resident(server.pid()).saturating_sub(before);
    println!("{grown} bytes more are held after a slow read");
    assert!(grown < 8 << 20, "{grown} bytes more are held");
    assert_eq!(server.scratch_bytes(), 0);
    assert!(encoder.lives(), "it is held back");
    drop(stream);
    until("the encoder is gone", || !encoder.lives()).await;
    server.rests().await;
    server.stop().await;
}

#[tokio::test]
async fn heavy_real_films_stream_to_their_end_or_say_why_not() {
    let Some(folder) = real_films() else {
        return;
    };
    let setup = Setup::new().folders(&[&folder]);
    let server = setup.start().await;
    let library = server
        .library(|library| library["items"].as_array().is_some_and(|items| !items.is_empty()))
        .await;
    let mut failures = Vec::new();
    let mut items = library["items"].as_array().unwrap().clone();
    items.sort_by_key(|item| item["durationMs"].as_u64());
    // A stream is encoded from its first second to its last: the long films belong to the long tier.
    if std::env::var_os("ETHER_SOAK").is_none() {
        items.truncate(6);
    }
    for item in &items {
        let file = item["file"].as_str().unwrap();
        let wished = json!({"item": item["id"], "protocol": "http", "maxHeight": 240, "client": {
            "video": ["avc1.640033", "hvc1.2.4.L153.B0", "av01.0.08M.08", "vp09.00.40.08", "vp8"],
            "audio": ["mp4a.40.2", "opus", "flac", "mp3", "vorbis", "ac-3", "ec-3"],
        }});
        let answer = server
            .api(Method::POST, "/ether/api/sessions", Some(&wished))
            .await;
        if answer.status == 422 {
            println!("{file}: refused: {}", answer.code());
            assert_ne!(answer.code(), "");
            continue;
        }
        let created = answer.expect(201).json();
        let answer = server.get(url(&created)).await;
        let taken = setup.path("taken.mkv");
        std::fs::write(&taken, &answer.body).unwrap();
        let words = crate::films::complaints(&taken).await;
        let actions = (
            &created["decision"]["video"]["action"],
            &created["decision"]["audio"]["action"],
        );
        println!(
            "{file}: {} bytes, picture {}, sound {}",
            answer.body.len(),
            actions.0,
            actions.1
        );
        if answer.status != 200 || !words.is_empty() {
            failures.push(format!("{file}: {} {words}", answer.status));
        }
    }
    assert!(failures.is_empty(), "{failures:#?}");
    server.rests().await;
    server.stop().await;
}
