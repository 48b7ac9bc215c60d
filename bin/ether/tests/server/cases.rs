//! Cases that people hit with software of this kind, each with what must happen instead.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hyper::Method;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use crate::bed::{Setup, clip};
use crate::films::{Track, beeps, complaints, difference, flashes, packets, picture, shown_size};
use crate::play::{Play, Taken};
use crate::processes::until;

/// Frame length of the clips with 24000/1001 frames a second.
const NTSC_FRAME: f64 = 1_001.0 / 24_000.0;

/// The newest FFmpeg that the set-up fetches, as arguments of the server; `None` where it is not there.
fn current_ffmpeg(setup: Setup) -> Option<Setup> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/ffmpeg-current");
    let Ok(folder) = folder.canonicalize() else {
        eprintln!(
            "skipped: there is no {} (`make setup` fetches it)",
            folder.display()
        );
        return None;
    };
    let program = |name: &str| folder.join(name).into_os_string();
    Some(
        setup
            .arg("--ffmpeg")
            .arg(program("ffmpeg"))
            .arg("--ffprobe")
            .arg(program("ffprobe")),
    )
}

/// Packets by the segment that holds them: time in microseconds, size, whether it is a keyframe.
fn by_segment(track: &Track, taken: &Taken) -> BTreeMap<usize, Vec<(i64, u64, bool)>> {
    let mut segments: BTreeMap<usize, Vec<_>> = BTreeMap::new();
    for packet in &track.0 {
        let micros = (packet.pts * 1e6).round() as i64;
        let n = taken.segment_at(packet.position.unwrap());
        segments
            .entry(n)
            .or_default()
            .push((micros, packet.size, packet.key));
    }
    segments
}

/// First time shown in each segment, counted from the first of all.
fn starts(track: &Track, taken: &Taken) -> Vec<f64> {
    let segments = by_segment(track, taken);
    let first = |packets: &Vec<(i64, u64, bool)>| packets.iter().map(|packet| packet.0).min().unwrap();
    segments
        .values()
        .map(|packets| first(packets) as f64 / 1e6 - track.start())
        .collect()
}

async fn fractional_frame_rates_do_not_drift(setup: Setup) {
    let server = setup.start().await;
    let wish = json!({"video": "encode", "segmentSeconds": 3, "maxHeight": 180});
    let play = Play::open(&server, "ntsc.mkv", wish).await;
    let taken = play.whole().await;
    let file = taken.save(&setup, "taken");
    assert_eq!(complaints(&file).await, "");
    let (mine, source) = (packets(&file).await.video, packets(&clip("ntsc.mkv")).await.video);
    assert_eq!(mine.len(), source.len());
    let counts: Vec<usize> = by_segment(&mine, &taken).values().map(Vec::len).collect();
    let (last, full) = counts.split_last().unwrap();
    assert!(
        full.iter().all(|frames| *frames == 72) && *last <= 72,
        "{counts:?}"
    );
    for (n, shown) in starts(&mine, &taken).into_iter().enumerate() {
        let declared = play.list.start(n);
        assert!(
            (declared - shown).abs() < NTSC_FRAME,
            "segment {n}: {declared} declared, {shown} shown"
        );
    }
    let full = &play.list.segments[..play.segments() - 1];
    assert!(
        full.iter().all(|segment| (segment.seconds - 3.003).abs() < 1e-4),
        "{full:?}"
    );
    let end = mine.end() - mine.start();
    assert!((end - (source.end() - source.start())).abs() < NTSC_FRAME);
    assert!((end - play.list.length()).abs() < NTSC_FRAME);
}

#[tokio::test]
async fn heavy_case_1_fractional_frame_rates_do_not_drift() {
    fractional_frame_rates_do_not_drift(Setup::of(&["ntsc.mkv"])).await;
}

#[tokio::test]
async fn heavy_case_1_fractional_frame_rates_do_not_drift_with_the_current_ffmpeg() {
    if let Some(setup) = current_ffmpeg(Setup::of(&["ntsc.mkv"])) {
        fractional_frame_rates_do_not_drift(setup).await;
    }
}

async fn a_cold_segment_is_the_one_that_a_run_from_the_start_makes(setup: Setup) {
    let setup = setup.forgetful();
    let server = setup.start().await;
    let wish = || json!({"video": "copy"});
    let whole = Play::open(&server, "irregular-keyframes.mkv", wish()).await;
    for (n, at) in [(2, 13.12), (3, 18.92), (6, 36.0), (7, 42.4)] {
        let start = whole.list.start(n);
        assert!(
            (start - at).abs() < 0.002,
            "segment {n} is declared at {start}, not at {at}"
        );
    }
    let all = whole.whole().await;
    whole.stop().await;
    let play = Play::open(&server, "irregular-keyframes.mkv", wish()).await;
    let cold = play.range(2..9).await;
    let (all_file, cold_file) = (all.save(&setup, "all"), cold.save(&setup, "cold"));
    let (from_start, from_seek) = (packets(&all_file).await, packets(&cold_file).await);
    let pictures = by_segment(&from_start.video, &all);
    assert_eq!(pictures.len(), play.segments());
    for (n, packets) in by_segment(&from_seek.video, &cold) {
        assert_eq!(packets, pictures[&n], "pictures of segment {n}");
        let at = packets.iter().map(|packet| packet.0).min().unwrap() as f64 / 1e6 - from_start.video.start();
        assert!(
            (at - play.list.start(n)).abs() < 0.002,
            "segment {n} starts at {at}"
        );
    }
    let sound = by_segment(&from_start.audio, &all);
    for (n, packets) in by_segment(&from_seek.audio, &cold) {
        // Encoded sound has its times, and not every bit, from the frame grid.
        let times = |packets: &[(i64, u64, bool)]| packets.iter().map(|packet| packet.0).collect::<Vec<_>>();
        assert_eq!(times(&packets), times(&sound[&n]), "sound of segment {n}");
    }
}

#[tokio::test]
async fn case_2_a_cold_segment_is_the_one_that_a_run_from_the_start_makes() {
    a_cold_segment_is_the_one_that_a_run_from_the_start_makes(Setup::of(&["irregular-keyframes.mkv"])).await;
}

#[tokio::test]
async fn case_2_a_cold_segment_is_the_one_from_the_start_with_the_current_ffmpeg() {
    if let Some(setup) = current_ffmpeg(Setup::of(&["irregular-keyframes.mkv"])) {
        a_cold_segment_is_the_one_that_a_run_from_the_start_makes(setup).await;
    }
}

#[tokio::test]
async fn case_3_sparse_keyframes_are_not_passed_off_as_a_grid() {
    let setup = Setup::of(&["sparse-keyframes.mp4"]);
    let server = setup.start().await;
    let play = Play::open(&server, "sparse-keyframes.mp4", json!({"video": "copy"})).await;
    let lengths: Vec<f64> = play.list.segments.iter().map(|segment| segment.seconds).collect();
    assert_eq!((lengths, play.list.target), (vec![20.0; 6], 20));
    let cold = play.range([3]).await;
    let file = cold.save(&setup, "cold");
    let video = packets(&file).await.video;
    assert_eq!(video.len(), 500, "twenty seconds of pictures");
}

#[tokio::test]
async fn heavy_case_6_a_varying_frame_rate_stays_as_it_is() {
    let setup = Setup::of(&["vfr.mkv"]);
    let server = setup.start().await;
    let play = Play::open(&server, "vfr.mkv", json!({"video": "encode", "maxHeight": 180})).await;
    let taken = play.whole().await;
    let file = taken.save(&setup, "taken");
    assert_eq!(complaints(&file).await, "");
    let (mine, source) = (packets(&file).await.video, packets(&clip("vfr.mkv")).await.video);
    assert!(mine.len().abs_diff(2_160) <= 2, "{} pictures", mine.len());
    let (rare, often) = (1.0 / 12.0, 1.0 / 60.0);
    for (n, shown) in starts(&mine, &taken).into_iter().enumerate() {
        let declared = play.list.start(n);
        assert!(
            (declared - shown).abs() < rare,
            "segment {n}: {declared} declared, {shown} shown"
        );
        assert!(
            (declared - 6.0 * n as f64).abs() < rare,
            "segment {n} is declared at {declared}"
        );
    }
    let last = |track: &Track| track.0.iter().map(|packet| packet.pts).fold(0.0, f64::max) - track.start();
    assert!(
        (last(&mine) - last(&source)).abs() < often,
        "{} instead of {}",
        last(&mine),
        last(&source)
    );
}

#[tokio::test]
async fn case_13_a_cover_is_not_the_film() {
    let setup = Setup::of(&["cover-first.mkv"]).forgetful();
    let server = setup.start().await;
    for wish in [json!({}), json!({"video": "encode"})] {
        let again = wish.clone();
        let play = Play::open(&server, "cover-first.mkv", wish).await;
        assert_eq!(play.decision()["video"]["stream"], 1, "{:#}", play.decision());
        assert_eq!(play.variant.attribute("RESOLUTION"), Some("640x360"));
        let taken = play.whole().await;
        let file = taken.save(&setup, "taken");
        assert_eq!(shown_size(&file).await, (640, 360));
        let video = packets(&file).await.video;
        assert_eq!(video.len(), 500);
        assert!(
            video.0.iter().all(|packet| packet.stream == video.0[0].stream),
            "one picture track"
        );
        for encoder in server.encoders() {
            let words: Vec<_> = encoder
                .words
                .iter()
                .map(|word| String::from_utf8_lossy(word))
                .collect();
            assert!(
                !words.iter().any(|word| word == "0:0"),
                "the cover is read: {words:?}"
            );
        }
        // From the middle, too, where a run is told anew what to read.
        let middle = play.segments() / 2;
        play.stop().await;
        let play = Play::open(&server, "cover-first.mkv", again).await;
        let file = play.range([middle]).await.save(&setup, "middle");
        assert_eq!(shown_size(&file).await, (640, 360));
        assert!(packets(&file).await.video.len() > 1, "a film moves");
        play.stop().await;
    }
}

#[tokio::test]
async fn case_14_sound_that_ends_early_ends_nothing_else() {
    let setup = Setup::of(&["short-audio.mkv"]);
    let server = setup.start().await;
    let play = Play::open(&server, "short-audio.mkv", json!({"offsetMs": 54_000})).await;
    assert_eq!(play.variant.begin, Some(54.0));
    let first = (0..play.segments())
        .rfind(|n| play.list.start(*n) <= 54.0)
        .unwrap();
    let taken = play.range(first..play.segments()).await;
    let file = taken.save(&setup, "taken");
    assert_eq!(complaints(&file).await, "");
    let mine = packets(&file).await;
    let frame = mine.video.step();
    let length = mine.video.end() - mine.video.start();
    let left = play.list.length() - play.list.start(first);
    assert!(
        (length - left).abs() < frame,
        "{length} s of pictures, {left} s are left"
    );
    assert!((play.list.length() - 60.0).abs() < frame);
    if mine.audio.len() > 0 {
        assert!(
            (mine.audio.end() - mine.video.end()).abs() < 0.1,
            "sound that is there lasts as long"
        );
    }
}

#[tokio::test]
async fn case_16_a_file_that_is_cut_short_ends_where_it_ends() {
    let setup = Setup::of(&["truncated.mkv"]);
    let server = setup.start().await;
    let play = Play::open(
        &server,
        "truncated.mkv",
        json!({"video": "copy", "container": "fmp4"}),
    )
    .await;
    let taken = play.whole().await;
    let file = taken.save(&setup, "taken");
    assert_eq!(complaints(&file).await, "");
    let video = packets(&file).await.video;
    let length = video.end() - video.start();
    assert!((60.0..80.0).contains(&length), "{length} s are in the file");
    assert!(
        (length - play.list.length()).abs() < 2.0 * NTSC_FRAME,
        "{length} s of {}",
        play.list.length()
    );
    let seen = play.seen().await;
    let ended = &seen["encoder"]["ended"];
    assert_eq!(
        ended["code"], "source_truncated",
        "not called a success: {seen:#}"
    );
    assert!(
        ended["message"]
            .as_str()
            .unwrap()
            .contains("shorter than it says"),
        "{seen:#}"
    );
    assert_ne!(
        server.film("truncated.mkv").await["warnings"],
        json!([]),
        "whoever chooses it is warned"
    );
    // Whoever asks for more is told so at once, and no encoder starts for it.
    assert_eq!(
        server.get(&play.address_past_end()).await.expect(404).code(),
        "no_such_segment"
    );
    until("the encoder is gone", || server.encoders().is_empty()).await;
    play.stop().await;
    server.rests().await;
}

#[tokio::test]
async fn case_18_a_rotated_film_is_upright_exactly_once() {
    let setup = Setup::of(&["rotated.mp4"]);
    let server = setup.start().await;
    let (width, height) = (90, 160);
    // The file as a player that heeds its rotation shows it.
    let source = clip("rotated.mp4");
    assert_eq!(shown_size(&source).await, (360, 640));
    let upright = picture(&source, 4.0, width, height).await;
    let mut upside_down = upright.clone();
    upside_down.reverse();
    let bar = difference(&upright, &upside_down) / 4.0;
    let wishes = [
        json!({"container": "fmp4"}),
        json!({"video": "encode"}),
        json!({"container": "ts"}),
        json!({"video": "encode", "container": "ts"}),
    ];
    for wish in wishes {
        let play = Play::open(&server, "rotated.mp4", wish.clone()).await;
        let file = play.whole().await.save(&setup, "taken");
        assert_eq!(
            shown_size(&file).await,
            (360, 640),
            "{wish}: {:#}",
            play.decision()
        );
        let shown = picture(&file, 4.0, width, height).await;
        let off = difference(&upright, &shown);
        assert!(off < bar, "{wish}: {off} off, and no more than {bar} are allowed");
        play.stop().await;
    }
}

async fn flash_and_beep(container: &str) {
    let setup = Setup::of(&["flash-beep.mkv"]);
    let server = setup.start().await;
    let wish = json!({"video": "encode", "container": container, "segmentSeconds": 3, "offsetMs": 27_000});
    let play = Play::open(&server, "flash-beep.mkv", wish).await;
    let action = |kind: &str| play.decision()[kind]["action"].clone();
    assert_eq!(
        (action("video"), action("audio")),
        (json!("encode"), json!("copy"))
    );
    let first = (0..play.segments())
        .rfind(|n| play.list.start(*n) <= 27.0)
        .unwrap();
    let file = play.range(first..first + 3).await.save(&setup, "taken");
    let zero = packets(&file).await.video.start() - play.list.start(first);
    let [flash] = flashes(&file).await[..] else {
        panic!("one flash")
    };
    let [beep] = beeps(&file).await[..] else {
        panic!("one beep")
    };
    let (flash, beep) = (flash - zero, beep - zero);
    assert!(
        (flash - 30.0).abs() < 0.04 && (beep - 30.0).abs() < 0.04,
        "flash at {flash}, beep at {beep}"
    );
    assert!((flash - beep).abs() < 0.04, "flash at {flash}, beep at {beep}");
}

#[tokio::test]
async fn case_20_picture_and_sound_stay_together_after_a_seek() {
    flash_and_beep("fmp4").await;
}

#[tokio::test]
async fn case_20_picture_and_sound_stay_together_after_a_seek_in_transport_streams() {
    flash_and_beep("ts").await;
}

#[tokio::test]
async fn case_22_requests_at_once_share_one_encoder() {
    let setup = Setup::of(&["ntsc.mkv"]);
    let server = setup.start().await;
    let play = Play::open(&server, "ntsc.mkv", json!({"video": "encode", "maxHeight": 180})).await;
    let n = 8;
    let (a, b, c, d, again) = tokio::join!(
        play.segment(n),
        play.segment(n + 1),
        play.segment(n + 2),
        play.segment(n + 3),
        play.segment(n),
    );
    assert!(a == again, "two viewers of one segment got different bytes");
    let seen = play.seen().await;
    assert_eq!(
        (&seen["encoder"]["runs"], &seen["encoder"]["runStart"]),
        (&json!(1), &json!(n)),
        "{seen:#}"
    );
    let mut apart = vec![a, b, c, d];
    apart.dedup();
    assert_eq!(apart.len(), 4);
    assert!(play.segment(n).await == again, "and so does whoever comes later");
}

#[tokio::test]
async fn case_23_a_pause_keeps_the_place() {
    let setup = Setup::of(&["ntsc.mkv"]);
    let server = setup.start().await;
    let play = Play::open(&server, "ntsc.mkv", json!({"video": "encode", "maxHeight": 180})).await;
    play.segment(3).await;
    play.says("paused", 20_000).await;
    assert_eq!(play.seen().await["viewer"], "paused");
    // The machine takes the encoder away meanwhile.
    for encoder in server.encoders() {
        let pid = rustix::process::Pid::from_raw(encoder.pid.cast_signed()).unwrap();
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
        until("the encoder is gone", || !encoder.lives()).await;
    }
    play.says("playing", 20_000).await;
    let mut later = play.fetch(12).await;
    if later.status != 200 {
        assert_ne!(later.code(), "", "a failure has its word");
        later = play.fetch(12).await;
    }
    later.expect(200);
    assert_eq!(server.film("ntsc.mkv").await["positionMs"], 20_000);
}

/// Asks for a segment and resets the connection before the answer.
async fn vanish(address: std::net::SocketAddr, target: &str) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.set_zero_linger().unwrap();
    let request = format!("GET {target} HTTP/1.1\r\nHost: {address}\r\n\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    stream.flush().await.unwrap();
}

#[tokio::test]
async fn case_29_a_player_that_vanishes_leaves_nothing() {
    let setup = Setup::of(&["ntsc.mkv"]);
    let server = setup.start().await;
    let play = Play::open(&server, "ntsc.mkv", json!({"video": "encode"})).await;
    for n in [0, 10, 19] {
        vanish(server.address, &play.address(n)).await;
    }
    let segment = play.segment(5).await;
    assert!(!segment.is_empty(), "whoever goes on watching is served");
    until("scratch is held while it plays", || server.scratch_bytes() > 0).await;
    play.stop().await;
    server.rests().await;
    let gone = server.get(&play.address(5)).await.expect(410);
    assert_eq!(gone.code(), "ended");
    play.stop().await;
}

#[tokio::test]
async fn asking_starts_no_encoder_and_a_head_request_neither() {
    let setup = Setup::of(&["ntsc.mkv"]);
    let server = setup.start().await;
    let play = Play::open(&server, "ntsc.mkv", json!({"video": "encode"})).await;
    play.by(Method::HEAD, 0).await.expect(200);
    let past = server.get(&play.address_past_end()).await.expect(404);
    assert_eq!(past.code(), "no_such_segment");
    assert_eq!(
        (server.encoders().len(), &play.seen().await["state"]),
        (0, &json!("idle"))
    );
}

/// A file that is replaced while it plays gives bytes of the one or of the other, never of both.
#[tokio::test]
async fn a_film_that_is_replaced_is_not_mixed() {
    let setup = Setup::new();
    let film = |name: &str| -> PathBuf { setup.films().join(name) };
    std::fs::copy(clip("irregular-keyframes.mkv"), film("film.mkv")).unwrap();
    let server = setup.start().await;
    let play = Play::open(&server, "film.mkv", json!({"video": "copy"})).await;
    play.segment(0).await;
    std::fs::copy(clip("ntsc.mkv"), film(".other.part")).unwrap();
    std::fs::rename(film(".other.part"), film("film.mkv")).unwrap();
    let mut n = 1;
    let refused = loop {
        let answer = play.fetch(n).await;
        if answer.status != 200 || n + 1 == play.segments() {
            break answer;
        }
        n += 1;
    };
    assert_eq!(refused.status, 410, "{}", refused.text());
    let seen: Value = play.seen().await;
    assert_eq!(seen["ended"]["code"], "source_changed", "{seen:#}");
    server.rests().await;
}
