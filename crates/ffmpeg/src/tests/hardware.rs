//! Encoding devices that are full or broken while they are used: FFmpeg's own failures where it gives them here,
//! and its own words for the rest. The processor takes over, with the reason.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ether_encoder::{
    ChoiceReason, Device, Encoder, EncoderState, Ended, Protocol, Refusal, Rejection, Request, ServeError,
    VideoCodec,
};
use ether_media::Ticks;
use ether_types::{ManualClock, Timestamp};

use super::film::{ENCODE, Film, INIT, Studio, fetch, script, segment};
use crate::inventory::{Trial, Verdict};
use crate::{HardwareWish, Inventory, LocalEncoder, LocalOptions};

const ROOMY: u64 = 256 << 20;

/// An encoder that believes in `device`, as if it had passed its trial.
fn believer(studio: &Studio, ffmpeg: Option<PathBuf>, device: Device) -> LocalEncoder {
    let request = Film::clip("ntsc.mkv").request(ENCODE);
    let stream = stream_of(&request);
    let requests = [stream.on(device), stream, request.on(device), request];
    let trial = Trial {
        device,
        codec: VideoCodec::H264,
        verdict: Verdict::Works,
        tried_at: Timestamp::from_micros(0),
    };
    let inventory = Inventory::with_all_for(&requests, vec![trial]).of_program(ffmpeg);
    LocalEncoder::new(LocalOptions {
        inventory,
        scratch: studio.dir().to_owned(),
        spawner: studio.spawner(),
        clock: studio.clock.clone(),
        hardware: HardwareWish::Auto,
        kept: 0,
    })
}

/// The same as one stream from its beginning.
fn stream_of(request: &Request) -> Request {
    Request {
        protocol: Protocol::Http { start: Ticks::ZERO },
        ..request.clone()
    }
}

fn passed_over(encoder: &LocalEncoder, film: &Film) -> Option<Rejection> {
    let choice = encoder.choose(&film.request(ENCODE));
    assert_eq!(choice.device, Device::Software, "{choice:?}");
    choice.reasons.into_iter().find_map(|reason| match reason {
        ChoiceReason::Rejected { why, .. } => Some(why),
        _ => None,
    })
}

/// The real FFmpeg without the device: it fails as it does, is tried anew and marked lost, and the processor
/// encodes.
#[tokio::test]
async fn a_device_that_fails_is_lost_and_the_processor_takes_over() {
    let film = Film::clip("ntsc.mkv");
    let studio = Studio::open().await;
    for device in [
        Device::Vaapi { node: 128 },
        Device::Nvenc { gpu: 0 },
        Device::Qsv { node: 128 },
    ] {
        let encoder = believer(&studio, None, device);
        let request = film.request(ENCODE);
        assert_eq!(encoder.choose(&request).device, device);
        let started = encoder.start(film.start_request(request.on(device), ROOMY)).await;
        started.outcome.unwrap();
        let execution = started.execution;
        let answer = fetch(&*execution, segment(3)).await;
        let Err(ServeError::Refused { refusal, .. }) = answer else {
            panic!("{device}: {answer:?}")
        };
        assert_eq!(refusal, Refusal::DeviceLost);
        let seen = execution.observe();
        assert!(matches!(seen.ended, Some(Ended::Failed { .. })), "{seen:?}");
        assert_eq!(seen.device, device);
        assert!(seen.hardware());
        execution.retire().await.unwrap();

        // The new trial has failed too by the time that the encoder has nothing more to do.
        encoder.join().await;
        let Some(Rejection::Lost { said }) = passed_over(&encoder, &film) else {
            panic!("{device} is not lost")
        };
        assert!(!said.is_empty());
        let started = encoder.start(film.start_request(request.clone(), ROOMY)).await;
        started.outcome.unwrap();
        fetch(&*started.execution, segment(3)).await.unwrap();
        started.execution.retire().await.unwrap();
        encoder.join().await;
        let counts = encoder.device_counts().unwrap();
        assert_eq!((counts.hardware, counts.failed, counts.software), (1, 1, 1));
        assert_eq!((counts.fallbacks, counts.full), (1, 0));

        // A stream of which nothing was sent yet is refused just so.
        let request = stream_of(&request).on(device);
        let started = encoder.start(film.start_request(request, 0)).await;
        started.outcome.unwrap();
        let answer = started.execution.stream().await.map(|_| ());
        let Err(ServeError::Refused { refusal, .. }) = answer else {
            panic!("{device}: {answer:?}")
        };
        assert_eq!(refusal, Refusal::DeviceLost);
        started.execution.retire().await.unwrap();
        encoder.join().await;
    }
}

/// What stands for a card: FFmpeg's processor, told what the card would be told and describing its pictures in other
/// bytes than the plans for the processor do.
const CARD: &str = r#"
count=$#
while [ "$count" -gt 0 ]; do
    word=$1
    shift
    count=$((count - 1))
    case "$word" in
    -init_hw_device | -filter_hw_device | -hwaccel | -hwaccel_device | -hwaccel_output_format | -gpu | -tune | -rc | -rc-lookahead | -b_ref_mode)
        shift
        count=$((count - 1))
        ;;
    h264_nvenc) set -- "$@" libx264 -coder 0 ;;
    p4) set -- "$@" veryfast ;;
    *scale_cuda*)
        word=$(printf %s "$word" | sed 's/format=nv12|cuda,hwupload,//; s/scale_cuda=w=\([0-9]*\):h=\([0-9]*\):format=nv12/scale=\1:\2,format=yuv420p/g')
        set -- "$@" "$word"
        ;;
    *) set -- "$@" "$word" ;;
    esac
done
"#;

/// A program that stands for FFmpeg on a machine with a card: `before` is run when the card is asked for, `after` once
/// the card's arguments are the processor's. Everything else is left to the real FFmpeg.
pub(crate) fn with_a_card(dir: &Path, before: &str, after: &str) -> PathBuf {
    let text = format!(
        "case \" $* \" in\n*\" h264_nvenc \"*) ;;\n*) exec ffmpeg \"$@\" ;;\nesac\n{before}{CARD}{after}"
    );
    script(dir, "ffmpeg-with-a-card", &text)
}

/// A card that takes one session: the second is refused in the words of FFmpeg's NVENC.
fn one_session(dir: &Path) -> PathBuf {
    let before = r#"
if ! mkdir "$(dirname "$0")/taken" 2>/dev/null; then
    echo "[h264_nvenc @ 0x5581d3e0a2c0] OpenEncodeSessionEx failed: out of memory (10): (no details)" >&2
    echo "[h264_nvenc @ 0x5581d3e0a2c0] No capable devices found" >&2
    echo "Error initializing output stream 0:0 -- Error while opening encoder for output stream #0:0" >&2
    exit 1
fi
"#;
    with_a_card(dir, before, r#"exec ffmpeg "$@""#)
}

/// A card that dies in the middle of a segment.
fn dying(dir: &Path, bytes: u32) -> PathBuf {
    let after = format!(
        r#"ffmpeg "$@" 2>/dev/null | head -c {bytes}
echo "[h264_nvenc @ 0x5581d3e0a2c0] EncodePicture failed!: device lost (-17)" >&2
exit 1"#
    );
    with_a_card(dir, "", &after)
}

/// Pictures of parts of a presentation as FFmpeg shows them, each as a number of its own, and whether it complained.
async fn shown(studio: &Studio, parts: &[&[u8]]) -> (Vec<String>, bool) {
    let file = studio.dir().join("joined.mp4");
    std::fs::write(&file, parts.concat()).unwrap();
    let line = format!(
        "-v error -i {} -map 0:v -fps_mode passthrough -f framemd5 -",
        file.display()
    );
    let mut spec = ether_process::Spec::new("ffmpeg");
    spec.args(line.split(' ')).stdout_pipe();
    let bounds = ether_process::Bounds {
        stdin: None,
        max_output: 1 << 20,
        deadline: Duration::from_secs(60),
    };
    let output = studio.spawner().run_bounded(spec, bounds).await.unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    let hashes = lines.lines().filter(|line| !line.starts_with('#'));
    let hash = |line: &str| line.rsplit(' ').next().unwrap_or_default().to_owned();
    (hashes.map(hash).collect(), !output.stderr.is_empty())
}

/// A player that has the card's initialization segment, and only that, shows what the processor makes after the card
/// died exactly as one that began with the processor (D2).
#[tokio::test]
async fn pictures_after_a_card_died_are_shown_with_its_initialization_segment() {
    let film = Film::clip("ntsc.mkv");
    let studio = Studio::open().await;
    let card = Device::Nvenc { gpu: 0 };
    let encoder = believer(&studio, Some(dying(studio.dir(), 400_000)), card);
    let request = film.request(ENCODE);
    let started = encoder.start(film.start_request(request.on(card), ROOMY)).await;
    let first = started.execution;
    let init = fetch(&*first, INIT).await.unwrap();
    let mut made = Vec::new();
    let lost = loop {
        match fetch(&*first, segment(made.len() as u32)).await {
            Ok(bytes) => made.push(bytes),
            Err(error) => break error,
        }
    };
    assert!(!made.is_empty(), "it died before its first segment: {lost:?}");
    let Err(ServeError::Refused { refusal, .. }) = Err::<(), _>(lost.clone()) else {
        panic!("{lost:?}")
    };
    assert_eq!(refusal, Refusal::DeviceLost);
    first.retire().await.unwrap();

    let next = made.len() as u32;
    for (again, goes_on) in [(request.self_describing(), true), (request, false)] {
        let started = encoder.start(film.start_request(again, ROOMY)).await;
        started.outcome.unwrap();
        let own_init = fetch(&*started.execution, INIT).await.unwrap();
        assert_ne!(
            own_init, init,
            "the card described its pictures as the processor does"
        );
        let more = fetch(&*started.execution, segment(next)).await.unwrap();
        let (alone, _) = shown(&studio, &[&own_init, &more]).await;
        assert!(alone.len() > 60, "{} pictures", alone.len());
        let joined: Vec<&[u8]> = std::iter::once(&init)
            .chain(&made)
            .chain([&more])
            .map(Vec::as_slice)
            .collect();
        let (pictures, complained) = shown(&studio, &joined).await;
        // Without their own description they are not what they were.
        assert_eq!(pictures.ends_with(&alone) && !complained, goes_on);
        started.execution.retire().await.unwrap();
    }
    encoder.join().await;
}

/// Case 31.
#[tokio::test]
async fn one_session_too_many_is_want_of_capacity_and_the_running_one_goes_on() {
    let film = Film::clip("ntsc.mkv");
    let studio = Studio::open().await;
    let card = Device::Nvenc { gpu: 0 };
    let encoder = believer(&studio, Some(one_session(studio.dir())), card);
    let request = film.request(ENCODE);
    assert_eq!(encoder.choose(&request).device, card);
    let first = encoder
        .start(film.start_request(request.on(card), ROOMY))
        .await
        .execution;
    fetch(&*first, segment(0)).await.unwrap();

    let second = encoder
        .start(film.start_request(request.on(card), ROOMY))
        .await
        .execution;
    let refused = fetch(&*second, segment(0)).await;
    let Err(ServeError::Refused { refusal, retry_after }) = refused else {
        panic!("{refused:?}")
    };
    assert_eq!(refusal, Refusal::Device);
    assert!(!retry_after.is_zero());
    second.retire().await.unwrap();
    // Chosen anew, the same request is the processor's, and it can be read why.
    assert_eq!(passed_over(&encoder, &film), Some(Rejection::Full));
    let third = encoder.start(film.start_request(request, ROOMY)).await.execution;
    fetch(&*third, segment(0)).await.unwrap();
    third.retire().await.unwrap();

    // The first noticed nothing: the same run serves on.
    fetch(&*first, segment(1)).await.unwrap();
    let seen = first.observe();
    assert_eq!((seen.runs, seen.device), (1, card));
    assert!(matches!(
        seen.state,
        EncoderState::Running | EncoderState::HeldBack
    ));
    let counts = encoder.device_counts().unwrap();
    assert_eq!((counts.full, counts.failed, counts.fallbacks), (1, 0, 1));
    first.retire().await.unwrap();
    encoder.join().await;
}

/// Case 32: bytes are no progress. What stands for FFmpeg here writes boxes and elements without any media, for ever.
#[tokio::test]
async fn an_encoder_that_writes_and_never_gets_on_is_given_up() {
    for stream in [false, true] {
        writes_and_never_gets_on(stream).await;
    }
}

async fn writes_and_never_gets_on(stream: bool) {
    let dir = tempfile::tempdir().unwrap();
    let text = r#"
case " $* " in
*" matroska pipe:1 "*) while printf '\354\201\000'; do sleep 0.01; done ;;
*" pipe:1 "*) while printf '\000\000\000\010free'; do sleep 0.01; done ;;
*) exec ffmpeg "$@" ;;
esac"#;
    let program = script(dir.path(), "ffmpeg", text);
    let clock = ManualClock::at(Timestamp::from_micros(0));
    let studio = Studio::timed(&program, Arc::new(clock.clone())).await;
    let film = Film::clip("ntsc.mkv");
    let request = film.request(ENCODE);
    let request = if stream { stream_of(&request) } else { request };
    let execution = studio.start_request(&film, request, ROOMY).await;
    let waiting = tokio::spawn({
        let execution = execution.clone();
        async move {
            if stream {
                execution.stream().await.map(|_| ())
            } else {
                fetch(&*execution, segment(3)).await.map(|_| ())
            }
        }
    });
    while execution.observe().state != EncoderState::Running {
        tokio::time::sleep(Duration::from_millis(5)).await;
        clock.advance(Duration::from_millis(10));
    }
    let seconds = async |count: u32| {
        for _ in 0..count {
            clock.advance(Duration::from_secs(1));
            // The supervisor shares this thread, the reader of the pipe has its own.
            for _ in 0..10 {
                tokio::task::yield_now().await;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    seconds(28).await;
    assert!(!waiting.is_finished(), "given up before its time");
    // How much of that was gone before the process was there is not known.
    while !waiting.is_finished() {
        seconds(1).await;
    }
    let stalled = ServeError::Ended {
        ended: Ended::Stalled,
    };
    assert_eq!(waiting.await.unwrap(), Err(stalled));
    studio.close_under(&clock, execution).await;
}
