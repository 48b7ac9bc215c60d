//! Errors that name the thing, and programs that hang, flood or are not there.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use ether_media::{Container, FactsSource, Gap};
use ether_types::{Clock, ManualClock, Timestamp};

use super::{House, clips, house, house_with, named, open, real_files};
use crate::{NotMedia, ProbeError, ProberOptions};

fn file(dir: &Path, name: &str, content: &[u8]) -> Arc<std::fs::File> {
    let path = dir.join(name);
    std::fs::write(&path, content).unwrap();
    open(&path)
}

fn script(dir: &Path, body: &str) -> PathBuf {
    let path = dir.join("tool");
    std::fs::write(&path, format!("#!/bin/sh\n{body}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn with_ffprobe(ffprobe: PathBuf, clock: Arc<dyn Clock>) -> House {
    let options = ProberOptions {
        ffprobe,
        ..ProberOptions::default()
    };
    house_with(options, clock)
}

#[tokio::test]
async fn what_is_not_media_says_why() {
    let house = house();
    let dir = tempfile::tempdir().unwrap();
    let jpeg = [
        0xff, 0xd8, 0xff, 0xe0, 0, 16, b'J', b'F', b'I', b'F', 0, 1, 1, 0, 0, 1, 0, 1, 0, 0,
    ];
    let text = "a letter, and nothing but a letter\n".repeat(100);
    for (name, content, reason) in [
        ("empty.mp4", &b""[..], NotMedia::Empty),
        ("letter.mkv", text.as_bytes(), NotMedia::UnknownFormat),
        ("photo.jpg", &jpeg[..], NotMedia::UnknownFormat),
        ("zeros.ts", &[0; 100_000][..], NotMedia::UnknownFormat),
    ] {
        match house.prober.facts(file(dir.path(), name, content)).await {
            Err(ProbeError::NotMedia(found)) => assert_eq!(found, reason, "{name}"),
            other => panic!("{name}: {other:?}"),
        }
    }
    house.processes.shutdown().await;
}

/// The film `whole` with `value` in the first row of the times of track `track`: in its count, or in its length.
fn with_times(whole: &[u8], track: usize, of_length: bool, value: u32) -> Vec<u8> {
    let mut bytes = whole.to_vec();
    let names = whole.windows(4).enumerate().filter(|(_, name)| name == b"stts");
    let table = names.map(|(at, _)| at).nth(track).unwrap();
    let at = table + if of_length { 16 } else { 12 };
    bytes[at..at + 4].copy_from_slice(&value.to_be_bytes());
    bytes
}

/// FFmpeg believes whatever an index says, and would make a film of a single picture of such a one.
#[tokio::test]
async fn an_index_whose_times_no_film_has_is_damage_and_said_so() {
    let Some(path) = named(&clips(), "upright.mp4") else {
        return;
    };
    let house = house();
    let dir = tempfile::tempdir().unwrap();
    let whole = std::fs::read(path).unwrap();
    let facts = async |bytes: &[u8]| house.prober.facts(file(dir.path(), "film.mp4", bytes)).await;
    let right = facts(&whole).await.unwrap();
    assert_eq!(right.gaps, []);

    for length in [0, 0xffff, 0x7fff_ffff, 0x8000_0000, u32::MAX] {
        let found = facts(&with_times(&whole, 0, true, length)).await;
        assert!(
            matches!(found, Err(ProbeError::NotMedia(NotMedia::Damaged { .. }))),
            "pictures of {length}: {found:?}"
        );
    }
    // No more pictures than there are, whatever is counted; one that is missing is as long as the last.
    for count in [1, 0x7fff_ffff, u32::MAX] {
        let found = facts(&with_times(&whole, 0, false, count)).await.unwrap();
        assert_eq!((found.duration, found.gaps), (right.duration, vec![]), "{count}");
    }
    // The picture can be watched without its sound.
    let found = facts(&with_times(&whole, 1, true, 0x7fff_ffff)).await.unwrap();
    assert_eq!(found.gaps, [Gap::Times { index: 1 }]);
    assert!(found.main_audio().is_none());
    assert_eq!(found.main_video(), right.main_video());
    house.processes.shutdown().await;
}

#[tokio::test]
async fn a_recording_that_was_cut_before_its_index_is_damaged_not_unknown() {
    let Some(path) = named(&real_files(), "h264-noaudio-139s.mp4") else {
        return;
    };
    let house = house();
    let dir = tempfile::tempdir().unwrap();
    let mut whole = std::fs::read(path).unwrap();
    let moov = whole.windows(4).position(|w| w == b"moov").unwrap();
    whole.truncate(if moov < 4096 { moov + 100 } else { moov - 4 });
    let found = house.prober.facts(file(dir.path(), "cut.mp4", &whole)).await;
    assert!(
        matches!(
            &found,
            Err(ProbeError::NotMedia(NotMedia::Damaged {
                container: Container::Mp4,
                ..
            }))
        ),
        "{found:?}"
    );
    house.processes.shutdown().await;
}

#[tokio::test]
async fn a_playlist_in_disguise_leads_nowhere() {
    let house = house();
    let dir = tempfile::tempdir().unwrap();
    let victim = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let target = format!("http://{}/inside.ts", victim.local_addr().unwrap());
    let visits = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&visits);
    let door = tokio::spawn(async move {
        // Whoever comes is counted and turned away.
        while let Ok((guest, _)) = victim.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            drop(guest);
        }
    });
    let hls = format!("#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n{target}\n#EXT-X-ENDLIST\n");
    let concat = format!("ffconcat version 1.0\nfile '{target}'\n");
    for (name, content) in [("film.mp4", hls), ("film.mkv", concat)] {
        let found = house
            .prober
            .facts(file(dir.path(), name, content.as_bytes()))
            .await;
        assert!(
            matches!(found, Err(ProbeError::NotMedia(NotMedia::UnknownFormat))),
            "{name}: {found:?}"
        );
    }
    house.processes.shutdown().await;
    door.abort();
    assert_eq!(
        visits.load(Ordering::SeqCst),
        0,
        "the playlist's address was visited"
    );
}

#[tokio::test]
async fn what_has_no_native_reader_and_what_is_incomplete_comes_from_ffprobe() {
    let house = house();
    let files = real_files();
    if let Some(path) = named(&files, "mpeg4-mp3.avi") {
        let facts = house.prober.facts(open(&path)).await.unwrap();
        assert_eq!(facts.container, Container::Other("avi".into()));
        assert_eq!(facts.source, FactsSource::Ffprobe);
        assert_eq!(facts.main_video().unwrap().video().unwrap().width, 960);
        assert!(facts.gaps.iter().any(|g| matches!(g, Gap::Keyframes { .. })));
    }
    if let Some(path) = named(&files, "flac-cover.flac") {
        let facts = house.prober.facts(open(&path)).await.unwrap();
        assert!(facts.main_video().is_none(), "a cover is no film");
        assert!(facts.main_audio().is_some());
    }
    if let Some(path) = named(&files, "mpeg4visual-amr-70s.3gp") {
        let facts = house.prober.facts(open(&path)).await.unwrap();
        assert_eq!(facts.source, FactsSource::Both);
        assert_eq!(facts.gaps, []);
        assert!(facts.main_video().unwrap().video().unwrap().chroma.is_some());
        assert!(facts.keyframes.is_some());
    }
    house.processes.shutdown().await;
}

#[tokio::test]
async fn without_ffprobe_native_files_are_known_and_others_say_what_is_missing() {
    let house = with_ffprobe(
        "/nowhere/ffprobe".into(),
        Arc::new(ether_types::SystemClock::new()),
    );
    let dir = tempfile::tempdir().unwrap();
    let text = file(dir.path(), "x.avi", b"RIFF....AVI ");
    assert!(matches!(
        house.prober.facts(text).await,
        Err(ProbeError::Ffprobe(_))
    ));
    if let Some(path) = named(&real_files(), "mpeg4visual-amr-70s.3gp") {
        let facts = house.prober.facts(open(&path)).await.unwrap();
        assert_eq!(facts.source, FactsSource::Native);
        assert!(!facts.gaps.is_empty());
    }
    house.processes.shutdown().await;
}

async fn until(mut condition: impl FnMut() -> bool) {
    while !condition() {
        tokio::task::yield_now().await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn a_probe_that_hangs_is_ended_with_everything_it_started() {
    let clock = ManualClock::at(Timestamp::from_micros(0));
    let dir = tempfile::tempdir().unwrap();
    let tool = script(dir.path(), "sleep 1000 & exec sleep 1000");
    let house = with_ffprobe(tool, Arc::new(clock.clone()));
    let prober = house.prober.clone();
    let text = file(dir.path(), "x.bin", b"not media");
    let probe = tokio::spawn(async move { prober.facts(text).await });
    until(|| house.processes.alive() == 1 && clock.sleepers() >= 1).await;
    clock.advance(Duration::from_secs(19));
    tokio::task::yield_now().await;
    assert!(!probe.is_finished());
    clock.advance(Duration::from_secs(1));
    assert!(matches!(probe.await.unwrap(), Err(ProbeError::TimedOut)));
    until(|| house.processes.alive() == 0).await;
    house.processes.shutdown().await;
}

#[tokio::test]
async fn two_probes_run_at_once_and_waiting_counts_towards_the_deadline() {
    let clock = ManualClock::at(Timestamp::from_micros(0));
    let dir = tempfile::tempdir().unwrap();
    let tool = script(dir.path(), "echo started >> \"$0.log\"; exec sleep 1000");
    let log = dir.path().join("tool.log");
    let started = || std::fs::read_to_string(&log).unwrap_or_default().lines().count();
    let house = with_ffprobe(tool, Arc::new(clock.clone()));
    let text = file(dir.path(), "x.bin", b"not media");
    let probe = || {
        let (prober, text) = (house.prober.clone(), Arc::clone(&text));
        tokio::spawn(async move { prober.facts(text).await })
    };
    // Two hold the turns before the third asks, so that it is known which of them waits. A deadline is
    // polled by its caller only while that one waits for its turn.
    let (first, second) = (probe(), probe());
    until(|| started() == 2 && clock.sleepers() == 2).await;
    let last = probe();
    until(|| clock.sleepers() == 3).await;
    assert_eq!(
        (started(), house.processes.alive()),
        (2, 2),
        "the third has to wait"
    );
    // Two callers go away: a turn passes on only once its child is gone.
    first.abort();
    second.abort();
    until(|| started() == 3 || last.is_finished()).await;
    until(|| house.processes.alive() == 1).await;
    assert!(!last.is_finished());
    clock.advance(Duration::from_secs(20));
    let last = last.await.unwrap();
    assert!(matches!(last, Err(ProbeError::TimedOut)), "{last:?}");
    house.processes.shutdown().await;
}

#[tokio::test]
async fn a_probe_that_floods_is_stopped_at_its_bound() {
    let dir = tempfile::tempdir().unwrap();
    let tool = script(dir.path(), "exec yes");
    let house = with_ffprobe(tool, Arc::new(ManualClock::at(Timestamp::from_micros(0))));
    let found = house.prober.facts(file(dir.path(), "x.bin", b"not media")).await;
    assert!(matches!(found, Err(ProbeError::TooMuchOutput)), "{found:?}");
    until(|| house.processes.alive() == 0).await;
    house.processes.shutdown().await;
}

#[tokio::test]
async fn no_error_tells_the_loopback_address() {
    let dir = tempfile::tempdir().unwrap();
    let tool = script(dir.path(), "echo \"$@\" >&2; echo \"{\"; exit 3");
    let house = with_ffprobe(tool, Arc::new(ManualClock::at(Timestamp::from_micros(0))));
    let error = house
        .prober
        .facts(file(dir.path(), "x.bin", b"not media"))
        .await
        .unwrap_err();
    let text = format!("{error} {error:?}");
    assert!(!text.contains("http") && !text.contains("127.0.0.1"), "{text}");
    house.processes.shutdown().await;
}
