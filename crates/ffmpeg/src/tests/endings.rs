//! Bursts, ends and misfortunes: one encoder at a time, an answer for everyone, nothing left behind.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use ether_encoder::{Encoder, EncoderState, Ended, SegmentContainer, ServeError};
use ether_media::Ticks;

use super::film::{
    COPY, ENCODE, Film, INIT, Make, Shape, Studio, clip, fetch, ffmpegs_reading, script, segment,
};
use super::screening::tool;

const ROOMY: u64 = 512 << 20;

#[tokio::test]
async fn a_cold_burst_starts_one_encoder() {
    let film = Film::clip("ntsc.mkv");
    let studio = Studio::open().await;
    let execution = studio.start(&film, ENCODE, ROOMY).await;
    let (a, b, c, d, again) = tokio::join!(
        fetch(&*execution, segment(12)),
        fetch(&*execution, segment(10)),
        fetch(&*execution, segment(13)),
        fetch(&*execution, segment(11)),
        fetch(&*execution, segment(10)),
    );
    for answer in [&a, &c, &d] {
        assert!(answer.is_ok());
    }
    assert_eq!(b.unwrap(), again.unwrap());
    assert_eq!(execution.observe().runs, 1);
    studio.close(execution).await;
}

#[tokio::test]
async fn an_encoder_is_held_back_by_what_is_fetched_and_ends_on_request() {
    let film = Film::clip("ntsc.mkv");
    let studio = Studio::open().await;
    let execution = studio.start(&film, Make { target: 6, ..COPY }, ROOMY).await;
    fetch(&*execution, segment(0)).await.unwrap();
    while execution.observe().state != EncoderState::HeldBack {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let ahead = execution.observe().produced.unwrap();
    assert!(
        ahead < Ticks(45 * Ticks::HZ),
        "{ahead} s were made for a viewer at 0"
    );
    execution.retire().await.unwrap();
    assert!(matches!(
        execution.serve(segment(1)).await,
        Err(ServeError::Retired)
    ));
    assert_eq!(execution.observe().scratch_used, 0);
    studio.close(execution).await;
}

#[tokio::test]
async fn scratch_is_never_more_than_booked_and_a_slow_viewer_gets_everything() {
    let film = Film::clip("moov-at-end.mp4");
    let studio = Studio::open().await;
    let limit = 64 << 20;
    let execution = studio.start(&film, COPY, limit).await;
    let init = fetch(&*execution, INIT).await.unwrap();
    let count = film.request(COPY).timeline.len() as u32;
    let mut frames = 0;
    for n in 0..count {
        let bytes = fetch(&*execution, segment(n)).await.unwrap();
        frames += Shape::read(&init, &bytes).pictures.len();
        let seen = execution.observe();
        assert!(seen.scratch_used <= seen.scratch_limit && seen.scratch_limit <= limit);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(frames, 1_500);
    assert_eq!(
        execution.observe().runs,
        1,
        "the encoder was not held back but started over"
    );
    studio.close(execution).await;
}

#[tokio::test]
async fn a_viewer_who_goes_back_a_little_is_served_from_full_scratch() {
    let film = Film::clip("moov-at-end.mp4");
    let studio = Studio::open().await;
    // Room for two of its six segments, and half of another.
    let execution = studio.start(&film, COPY, 36 << 20).await;
    for number in [0, 1, 2] {
        fetch(&*execution, segment(number)).await.unwrap();
    }
    // What was made ahead fills it when the viewer turns back.
    while execution.observe().state != EncoderState::HeldBack {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    for number in [1, 2, 3, 1, 0] {
        let bytes = fetch(&*execution, segment(number)).await;
        assert!(bytes.is_ok(), "segment {number}: {bytes:?}");
    }
    studio.close(execution).await;
}

#[tokio::test]
async fn a_segment_that_is_larger_than_scratch_is_an_end_and_not_a_wait() {
    let film = Film::clip("moov-at-end.mp4");
    let studio = Studio::open().await;
    let execution = studio.start(&film, COPY, 12 << 20).await;
    for number in [0, 3] {
        let large = ServeError::Ended {
            ended: Ended::SegmentTooLarge {
                segment: number,
                scratch: 12 << 20,
            },
        };
        assert_eq!(fetch(&*execution, segment(number)).await, Err(large));
    }
    studio.close(execution).await;
}

#[tokio::test]
async fn a_truncated_source_is_served_to_its_end_and_not_called_a_success() {
    let film = Film::clip("truncated.mkv");
    let studio = Studio::open().await;
    // The reader may know where the file really ends, or only what its head announces: play what was announced.
    let mut announced = Film::clip("truncated.mkv");
    let facts = std::sync::Arc::make_mut(&mut announced.facts);
    for stream in &mut facts.streams {
        stream.duration = Some(Ticks(120 * Ticks::HZ));
    }
    // Or nothing says that anything is missing, until it is missed.
    let mut unsaid = Film::clip("truncated.mkv");
    let facts = std::sync::Arc::make_mut(&mut unsaid.facts);
    *facts = (*announced.facts).clone();
    facts.gaps.clear();
    for (film, make) in [
        (&film, COPY),
        (&announced, COPY),
        (&unsaid, COPY),
        (&film, ENCODE),
        (&announced, ENCODE),
        (&unsaid, ENCODE),
    ] {
        let execution = studio.start(film, make, ROOMY).await;
        let count = film.request(make).timeline.len() as u32;
        let mut ended = None;
        let mut served = 0;
        for n in 0..count {
            match fetch(&*execution, segment(n)).await {
                Ok(_) => served += 1,
                Err(ServeError::SourceEnded { at }) => {
                    ended = Some(at);
                    break;
                }
                Err(other) => panic!("segment {n}: {other:?}"),
            }
        }
        // The viewer's answer comes a moment before the process is proved gone and its end is written down.
        while execution.observe().ended.is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let seen = execution.observe();
        let Some(Ended::SourceTruncated { at }) = seen.ended else {
            panic!("{seen:?}")
        };
        assert!((70..76).contains(&(at.as_millis() / 1000)), "ended at {at}");
        if let Some(ended) = ended {
            assert!((ended - at).abs() < Ticks(9_000), "{ended} and {at}");
            // Whatever lies past the end is answered at once, and no encoder is started for it.
            let past = fetch(&*execution, segment(count - 1)).await;
            assert!(matches!(past, Err(ServeError::SourceEnded { .. })));
            assert_eq!(execution.observe().runs, seen.runs);
        } else {
            // A copy's keyframes stop where the source does, so its last segment is the one cut short.
            assert!(
                make.copy_video || film.facts.main_video().unwrap().duration < Some(Ticks(80 * Ticks::HZ))
            );
        }
        assert!(served > 10);
        execution.retire().await.unwrap();
    }
    studio.encoder.join().await;
}

#[tokio::test]
async fn a_replaced_source_is_never_mixed_in() {
    let studio = Studio::open().await;
    let path = studio.dir().join("film.mkv");
    std::fs::copy(clip("irregular-keyframes.mkv"), &path).unwrap();
    let film = Film::open(path.clone());
    let execution = studio.start(&film, COPY, ROOMY).await;
    fetch(&*execution, segment(0)).await.unwrap();
    std::fs::copy(clip("ntsc.mkv"), studio.dir().join("other")).unwrap();
    std::fs::rename(studio.dir().join("other"), &path).unwrap();
    let answer = fetch(&*execution, segment(10)).await;
    assert_eq!(
        answer,
        Err(ServeError::Ended {
            ended: Ended::SourceChanged
        })
    );
    std::fs::remove_file(&path).unwrap();
    let answer = fetch(&*execution, segment(9)).await;
    assert_eq!(
        answer,
        Err(ServeError::Ended {
            ended: Ended::SourceLost
        })
    );
    studio.close(execution).await;
}

#[tokio::test]
async fn a_killed_encoder_is_reported_and_the_next_request_starts_another() {
    let studio = Studio::open().await;
    let film = Film::clip("ntsc.mkv").known_in(studio.dir());
    let execution = studio.start(&film, Make { target: 6, ..ENCODE }, ROOMY).await;
    fetch(&*execution, INIT).await.unwrap();
    let waiting = tokio::spawn({
        let execution = execution.clone();
        async move { fetch(&*execution, segment(3)).await }
    });
    while execution.observe().requested != Some(3) {
        tokio::task::yield_now().await;
    }
    for pid in ffmpegs_reading(&film.path) {
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
    let answer = waiting.await.unwrap();
    assert!(
        matches!(
            answer,
            Err(ServeError::Ended {
                ended: Ended::Failed { signal: Some(9), .. }
            }) | Ok(_)
        ),
        "{answer:?}"
    );
    assert!(fetch(&*execution, segment(3)).await.is_ok());
    studio.close(execution).await;
    assert!(ffmpegs_reading(&film.path).is_empty());
}

#[tokio::test]
async fn a_failing_encoder_says_why_without_paths() {
    let studio = Studio::open().await;
    let path = studio.dir().join("secret name.mkv");
    // A film whose picture cannot be decoded at all: its head, then nothing that FFmpeg understands.
    std::fs::copy(clip("ntsc.mkv"), &path).unwrap();
    let mut film = Film::open(path.clone());
    let facts = std::sync::Arc::make_mut(&mut film.facts);
    for stream in &mut facts.streams {
        stream.index += 5;
    }
    if let Some(index) = &mut facts.keyframes {
        index.stream += 5;
    }
    let execution = studio.start(&film, ENCODE, ROOMY).await;
    let answer = fetch(&*execution, segment(0)).await;
    assert!(
        matches!(
            answer,
            Err(ServeError::Ended {
                ended: Ended::Failed { status: Some(1), .. }
            })
        ),
        "{answer:?}"
    );
    let seen = execution.observe();
    assert!(!seen.log.is_empty());
    assert!(!seen.log.join("\n").contains("secret name"), "{:?}", seen.log);
    studio.close(execution).await;
}

#[tokio::test]
async fn a_full_disk_is_its_own_end_and_playing_goes_on_once_there_is_room() {
    let film = Film::clip("moov-at-end.mp4");
    let studio = Studio::open().await;
    let disk = studio.dir().join("disk");
    std::fs::create_dir(&disk).unwrap();
    if run(
        &studio,
        "mount",
        &[
            "-t",
            "tmpfs",
            "-o",
            "size=24m",
            "ether-test",
            disk.to_str().unwrap(),
        ],
    )
    .await
    .is_err()
    {
        eprintln!("skipped: this user may not mount a small file system");
        return;
    }
    std::fs::write(disk.join("ballast"), vec![1; 16 << 20]).unwrap();
    let small = studio.elsewhere(&disk).await;
    let started = small.start(film.start(COPY, ROOMY)).await;
    let execution = started.execution;
    let answer = fetch(&*execution, segment(0)).await;
    std::fs::remove_file(disk.join("ballast")).unwrap();
    let again = fetch(&*execution, segment(0)).await;
    execution.retire().await.unwrap();
    drop(execution);
    small.join().await;
    run(&studio, "umount", &[disk.to_str().unwrap()]).await.unwrap();
    assert_eq!(
        answer,
        Err(ServeError::Ended {
            ended: Ended::ScratchFull
        })
    );
    assert!(again.is_ok(), "playing does not go on once there is room");
}

async fn run(studio: &Studio, program: &str, args: &[&str]) -> Result<(), ether_process::RunError> {
    let mut spec = ether_process::Spec::new(program);
    spec.args(args);
    let bounds = ether_process::Bounds {
        stdin: None,
        max_output: 4096,
        deadline: Duration::from_secs(20),
    };
    studio.spawner().run_bounded(spec, bounds).await.map(|_| ())
}

#[tokio::test]
async fn transport_streams_hold_the_same_pictures_and_join_without_a_break() {
    for make in [COPY, ENCODE] {
        let film = Film::clip(if make.copy_video {
            "irregular-keyframes.mkv"
        } else {
            "ntsc.mkv"
        });
        let make = Make {
            container: SegmentContainer::MpegTs,
            target: 6,
            ..make
        };
        let studio = Studio::open().await;
        let execution = studio.start(&film, make, ROOMY).await;
        let count = film.request(make).timeline.len() as u32;
        let joined = studio.dir().join("joined.ts");
        let mut all = Vec::new();
        // Two runs: the second half is made first.
        let mut parts: Vec<(u32, Vec<u8>)> = Vec::new();
        for n in (count / 2..count).chain(0..count / 2) {
            let bytes = fetch(&*execution, segment(n)).await.unwrap();
            assert_eq!(bytes.len() % 188, 0);
            parts.push((n, bytes));
        }
        parts.sort_by_key(|(n, _)| *n);
        for (_, bytes) in parts {
            all.extend_from_slice(&bytes);
        }
        std::fs::write(&joined, &all).unwrap();
        assert!(std::fs::metadata(&joined).unwrap().size() > 0);
        let report = probe(&studio, &joined).await;
        let frames: Vec<&str> = report.lines().filter(|l| l.starts_with("video,")).collect();
        let expected = if make.copy_video { 2_250 } else { 2_877 };
        assert!(frames.len().abs_diff(expected) <= 1, "{} frames", frames.len());
        let times: Vec<f64> = frames
            .iter()
            .filter_map(|l| l.split(',').nth(1)?.parse().ok())
            .collect();
        let mut sorted = times.clone();
        sorted.sort_by(f64::total_cmp);
        let longest = sorted.windows(2).map(|w| w[1] - w[0]).fold(0.0, f64::max);
        assert!(longest < 0.05, "a hole of {longest} s");
        assert!((sorted[0] - 10.0).abs() < 0.1, "starts at {}", sorted[0]);
        studio.close(execution).await;
    }
}

/// Every packet as `type,pts`, from an FFmpeg that must have nothing to complain about.
async fn probe(studio: &Studio, file: &std::path::Path) -> String {
    let mut spec = ether_process::Spec::new("ffprobe");
    spec.args([
        "-v",
        "warning",
        "-show_entries",
        "packet=codec_type,pts_time",
        "-of",
        "csv=p=0",
    ]);
    spec.arg(file).stdout_pipe();
    let bounds = ether_process::Bounds {
        stdin: None,
        max_output: 16 << 20,
        deadline: Duration::from_secs(60),
    };
    let output = studio.spawner().run_bounded(spec, bounds).await.unwrap();
    assert!(output.stderr.is_empty(), "{:?}", output.stderr);
    String::from_utf8(output.stdout).unwrap()
}

/// A file whose bytes from `BAD_FROM` on the disk does not give: what the C library's `read` says of it.
const BAD_DISK: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

ssize_t read(int file, void *to, size_t count) {
    static ssize_t (*next)(int, void *, size_t);
    if (!next) next = (ssize_t (*)(int, void *, size_t))dlsym(RTLD_NEXT, "read");
    off_t bad = atoll(getenv("BAD_FROM")), at = lseek(file, 0, SEEK_CUR);
    struct stat about;
    if (at >= 0 && fstat(file, &about) == 0 && S_ISREG(about.st_mode) && about.st_size > bad) {
        if (at >= bad) { errno = EIO; return -1; }
        if (at + (off_t)count > bad) count = bad - at;
    }
    return next(file, to, count);
}
"#;

/// The real FFmpeg on a disk that fails in the middle of every film, as long as there is a file `bad` in `dir`.
async fn on_a_bad_disk(dir: &std::path::Path, bad_from: u64) -> std::path::PathBuf {
    let (source, library) = (dir.join("disk.c"), dir.join("disk.so"));
    std::fs::write(&source, BAD_DISK).unwrap();
    let processes = ether_process::Processes::start(ether_process::Config::unguarded(std::sync::Arc::new(
        ether_types::SystemClock::new(),
    )))
    .unwrap();
    let mut spec = ether_process::Spec::new("cc");
    spec.pass_env("PATH");
    spec.args(["-shared", "-fPIC", "-o"])
        .arg(&library)
        .arg(&source)
        .arg("-ldl");
    let bounds = ether_process::Bounds {
        stdin: None,
        max_output: 1 << 20,
        deadline: Duration::from_secs(60),
    };
    processes.spawner().run_bounded(spec, bounds).await.unwrap();
    processes.shutdown().await;
    std::fs::write(dir.join("bad"), "").unwrap();
    let text = format!(
        "case \" $* \" in *\" pipe:1 \"*) [ -e {} ] && export BAD_FROM={bad_from} LD_PRELOAD={} ;; esac\n\
         exec ffmpeg \"$@\"",
        dir.join("bad").display(),
        library.display()
    );
    script(dir, "ffmpeg", &text)
}

/// FFmpeg takes a read error for the end of the film and says that all went well. Viewers are told that the file
/// cannot be read, what came before it is whole, and once it can be read the rest is there.
#[tokio::test]
async fn a_disk_that_fails_is_not_the_end_of_the_film() {
    let films = tempfile::tempdir().unwrap();
    let avi = avi(films.path()).await;
    for (film, make, least) in [
        (Film::clip("ntsc.mkv"), COPY, 2),
        (Film::clip("ntsc.mkv"), ENCODE, 2),
        (Film::clip("interlaced.ts"), ENCODE, 2),
        // Without the index at its end FFmpeg reads next to nothing of it.
        (avi, ENCODE, 0),
    ] {
        let name = film.path.display().to_string();
        let dir = tempfile::tempdir().unwrap();
        let bad_from = std::fs::metadata(&film.path).unwrap().size() / 4;
        let program = on_a_bad_disk(dir.path(), bad_from).await;
        let studio = Studio::with(&program).await;
        let execution = studio.start(&film, make, ROOMY).await;
        let mut number = 0;
        let lost = loop {
            match fetch(&*execution, segment(number)).await {
                Ok(_) => number += 1,
                Err(error) => break error,
            }
        };
        let expected = ServeError::Ended {
            ended: Ended::SourceLost,
        };
        assert_eq!(lost, expected, "{name}");
        assert!(number >= least, "{name}: what could be read was served");
        assert_eq!(execution.observe().ended, Some(Ended::SourceLost));
        std::fs::remove_file(dir.path().join("bad")).unwrap();
        let mended = fetch(&*execution, segment(number)).await.unwrap();
        studio.close(execution).await;
        // The segment that the error cut short was not taken for a whole one.
        let sound = Studio::open().await;
        let whole = sound.start(&film, make, ROOMY).await;
        assert_eq!(fetch(&*whole, segment(number)).await.unwrap().len(), mended.len());
        sound.close(whole).await;
    }
}

/// A film in AVI, which has no native reader: its facts are those of the same film in Matroska.
async fn avi(dir: &std::path::Path) -> Film {
    let studio = Studio::open().await;
    let path = dir.join("film.avi");
    let clip = clip("short-audio.mkv");
    let args = "-v error -i".split(' ').chain([clip.to_str().unwrap()]);
    let args = args.chain("-map 0:v -t 30 -c:v mpeg4 -q:v 5".split(' '));
    tool(
        &studio,
        "ffmpeg",
        &args.chain([path.to_str().unwrap()]).collect::<Vec<_>>(),
    )
    .await;
    let mut film = Film::clip("short-audio.mkv");
    let facts = std::sync::Arc::make_mut(&mut film.facts);
    facts.streams.retain(|stream| stream.video().is_some());
    facts.container = ether_media::Container::Other("avi".to_owned());
    facts.keyframes = None;
    for stream in &mut facts.streams {
        (stream.index, stream.duration) = (0, Some(Ticks(30 * Ticks::HZ)));
    }
    studio.shut().await;
    Film { path, ..film }
}

#[tokio::test]
async fn a_stream_from_a_disk_that_fails_is_broken_off() {
    let film = Film::clip("ntsc.mkv");
    let dir = tempfile::tempdir().unwrap();
    let half = std::fs::metadata(&film.path).unwrap().size() / 2;
    let program = on_a_bad_disk(dir.path(), half).await;
    let studio = Studio::with(&program).await;
    let request = ether_encoder::Request {
        protocol: ether_encoder::Protocol::Http { start: Ticks::ZERO },
        ..film.request(COPY)
    };
    let execution = studio.start_request(&film, request, 0).await;
    let mut stream = execution.stream().await.unwrap();
    let broken = loop {
        match std::future::poll_fn(|cx| stream.poll_next(cx)).await {
            Some(Ok(_)) => {}
            Some(Err(_)) => break true,
            None => break false,
        }
    };
    assert!(broken, "it looks like the end of the film");
    drop(stream);
    assert_eq!(execution.observe().ended, Some(Ended::SourceLost));
    studio.close(execution).await;
}
