//! Streams without segments: where they begin, what they hold, how they are held back, and how they end.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use ether_encoder::{
    ByteStream, Encoder, EncoderState, Ended, Execution, Protocol, Request, ServeError, Start, Unsupported,
};
use ether_media::Ticks;
use ether_process::{Bounds, RunError, Spec};
use ether_types::{ManualClock, Timestamp};
use rustix::process::{Signal, kill_process};

use super::film::{COPY, ENCODE, Film, INIT, Make, Studio, ffmpegs_reading};

/// Nobody waits longer for anything here.
const SOON: Duration = Duration::from_secs(60);
const COPY_PICTURE: Make = Make {
    copy_audio: false,
    ..COPY
};
const COPY_SOUND: Make = Make {
    copy_audio: true,
    ..ENCODE
};

fn seconds(s: f64) -> Ticks {
    Ticks::from_secs_f64(s)
}

fn stream_of(film: &Film, make: Make, start: f64) -> Request {
    Request {
        protocol: Protocol::Http {
            start: seconds(start),
        },
        ..film.request(make)
    }
}

/// A stream that is being watched.
struct Show {
    film: Film,
    studio: Studio,
    execution: Arc<dyn Execution>,
}

impl Show {
    async fn of(film: Film, make: Make, start: f64) -> Self {
        Self::with(film, make, start, Studio::open().await).await
    }

    async fn with(film: Film, make: Make, start: f64, studio: Studio) -> Self {
        let film = if film.path.starts_with(studio.dir()) {
            film
        } else {
            film.known_in(studio.dir())
        };
        let request = stream_of(&film, make, start);
        let execution = studio.start_request(&film, request, 0).await;
        Self {
            film,
            studio,
            execution,
        }
    }

    async fn stream(&self) -> ByteStream {
        self.try_stream().await.unwrap()
    }

    async fn try_stream(&self) -> Result<ByteStream, ServeError> {
        tokio::time::timeout(SOON, self.execution.stream())
            .await
            .expect("an answer in time")
    }

    /// The whole stream in a file.
    async fn saved(&self) -> PathBuf {
        let (bytes, end) = drain(self.stream().await).await;
        end.unwrap();
        let path = self.studio.dir().join("stream.mkv");
        std::fs::write(&path, bytes).unwrap();
        path
    }

    /// The stream up to a time that is given in seconds, in a file.
    async fn saved_until(&self, seconds: f64) -> PathBuf {
        let mut stream = self.stream().await;
        let mut bytes = Vec::new();
        let enough = Some(Ticks::from_secs_f64(seconds));
        loop {
            // What was read of the pipe before anyone took a piece may be all that is wanted, and is to be taken.
            let seen = self.execution.observe();
            if seen.produced >= enough && bytes.len() as u64 >= seen.bytes_produced {
                break;
            }
            bytes.extend(stream.next_piece().await.expect("more").unwrap());
        }
        let path = self.studio.dir().join("part.mkv");
        std::fs::write(&path, bytes).unwrap();
        path
    }

    async fn close(self) {
        self.studio.close(self.execution).await;
        assert!(ffmpegs_reading(&self.film.path).is_empty());
    }
}

/// Everything that comes, and how it ends.
async fn drain(mut stream: ByteStream) -> (Vec<u8>, std::io::Result<()>) {
    let mut bytes = Vec::new();
    loop {
        let next = tokio::time::timeout(SOON, stream.next_piece()).await;
        match next.expect("the next piece in time") {
            Some(Ok(piece)) => bytes.extend_from_slice(&piece),
            Some(Err(error)) => return (bytes, Err(error)),
            None => return (bytes, Ok(())),
        }
    }
}

async fn ended(execution: &dyn Execution) -> Ended {
    loop {
        if let Some(ended) = execution.observe().ended {
            return ended;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// What a program says, its complaints included.
async fn said(studio: &Studio, program: &str, args: &[&str]) -> String {
    let mut spec = Spec::new(program);
    spec.args(args).stdout_pipe();
    let bounds = Bounds {
        stdin: None,
        max_output: 16 << 20,
        deadline: 3 * SOON,
    };
    let output = studio.spawner().run_bounded(spec, bounds).await;
    let output = output.unwrap_or_else(|error| {
        let lines = match &error {
            RunError::Failed { stderr, .. } => stderr.as_slice(),
            _ => &[],
        };
        panic!("{program} {args:?}: {error}, {lines:?}")
    });
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Times at which frames of a stream are shown or sounded, as a player decodes them.
async fn frames(studio: &Studio, path: &Path, streams: &str) -> Vec<f64> {
    let args = [
        "-v",
        "error",
        "-select_streams",
        streams,
        "-show_entries",
        "frame=best_effort_timestamp_time",
        "-of",
        "default=nw=1:nk=1",
        path.to_str().unwrap(),
    ];
    let said = said(studio, "ffprobe", &args).await;
    let mut times: Vec<f64> = said.lines().filter_map(|line| line.trim().parse().ok()).collect();
    times.sort_by(f64::total_cmp);
    times
}

/// Whether FFmpeg decodes all of it and finds nothing to complain about.
async fn decodes(studio: &Studio, path: &Path) {
    let path = path.to_str().unwrap();
    let args = [
        "-v",
        "error",
        "-xerror",
        "-err_detect",
        "explode",
        "-i",
        path,
        "-f",
        "null",
        "-",
    ];
    said(studio, "ffmpeg", &args).await;
}

/// When the picture first lights up and when the sound first starts after `from`.
async fn flash_and_beep(studio: &Studio, path: &Path, from: f64) -> (f64, f64) {
    let path = path.to_str().unwrap();
    // Not to the very end: the stream was cut there in the middle of a packet.
    let args = |kind: &'static str, filter: &'static str| {
        let filters = filter_option(kind);
        [
            "-v", "error", "-copyts", "-i", path, "-map", kind, filters, filter, "-to", "32", "-f", "null",
            "-",
        ]
    };
    let number = |line: &str, name: &str| -> Option<f64> {
        line.split(name).nth(1)?.split_whitespace().next()?.parse().ok()
    };
    let picture = args(
        "0:v",
        "signalstats,metadata=print:key=lavfi.signalstats.YAVG:file=-",
    );
    let mut shown = 0.0;
    let mut flash = None;
    for line in said(studio, "ffmpeg", &picture).await.lines() {
        shown = number(line, "pts_time:").unwrap_or(shown);
        let bright = number(line, "YAVG=").is_some_and(|light| light > 100.0);
        if bright && shown >= from && flash.is_none() {
            flash = Some(shown);
        }
    }
    let sound = args(
        "0:a",
        "asetnsamples=240,astats=metadata=1:reset=1,ametadata=print:key=lavfi.astats.Overall.RMS_level:file=-",
    );
    let mut beep = None;
    for line in said(studio, "ffmpeg", &sound).await.lines() {
        shown = number(line, "pts_time:").unwrap_or(shown);
        let loud = number(line, "RMS_level=").is_some_and(|level| level > -30.0);
        if loud && shown >= from && beep.is_none() {
            beep = Some(shown);
        }
    }
    (flash.expect("a flash"), beep.expect("a beep"))
}

fn filter_option(kind: &str) -> &'static str {
    if kind == "0:v" { "-vf" } else { "-af" }
}

#[tokio::test]
async fn an_encoded_picture_begins_within_a_frame_of_what_was_asked_for() {
    let show = Show::of(Film::clip("open-gop.mkv"), ENCODE, 21.0).await;
    let path = show.saved().await;
    decodes(&show.studio, &path).await;
    let shown = frames(&show.studio, &path, "v").await;
    assert!((21.0..21.041).contains(&shown[0]), "first shown at {}", shown[0]);
    let heard = frames(&show.studio, &path, "a").await;
    assert!((20.9..21.05).contains(&heard[0]), "first heard at {}", heard[0]);
    assert_eq!(ended(&*show.execution).await, Ended::Complete);
    let seen = show.execution.observe();
    assert_eq!((seen.runs, seen.scratch_used), (1, 0));
    show.close().await;
}

#[tokio::test]
async fn a_copied_picture_begins_with_the_last_keyframe_before_and_nothing_broken_leads_it() {
    let film = Film::clip("open-gop.mkv");
    let index = &film.facts.keyframes.as_ref().unwrap().times;
    let keyframe = index
        .iter()
        .rev()
        .find(|time| **time <= seconds(21.0))
        .unwrap()
        .as_secs_f64();
    let show = Show::of(film, COPY, 21.0).await;
    let path = show.saved().await;
    decodes(&show.studio, &path).await;
    let shown = frames(&show.studio, &path, "v").await;
    assert!(
        (shown[0] - keyframe).abs() < 0.002,
        "{} is not {keyframe}",
        shown[0]
    );
    // The film goes on to its end, every frame of it.
    let lacking = shown.windows(2).find(|pair| pair[1] - pair[0] > 0.045);
    assert_eq!(lacking, None);
    assert!(shown.last().unwrap() > &59.9);
    let heard = frames(&show.studio, &path, "a").await;
    assert!((heard[0] - keyframe).abs() < 0.05, "first heard at {}", heard[0]);
    show.close().await;
}

#[tokio::test]
async fn flash_and_beep_stay_together_whatever_is_copied() {
    for make in [COPY_SOUND, ENCODE, COPY, COPY_PICTURE] {
        let show = Show::of(Film::clip("flash-beep.mkv"), make, 27.0).await;
        let path = show.saved_until(33.0).await;
        let (flash, beep) = flash_and_beep(&show.studio, &path, 27.0).await;
        assert!((flash - 30.02).abs() < 0.045, "{make:?}: flash at {flash}");
        assert!(
            (flash - beep).abs() < 0.04,
            "{make:?}: flash at {flash}, beep at {beep}"
        );
        show.close().await;
    }
}

#[tokio::test]
async fn the_clock_is_the_presentation_s_and_the_head_says_how_long_it_is() {
    // This one's own clock starts at eleven hours.
    let show = Show::of(Film::clip("late-clock.ts"), ENCODE, 5.0).await;
    let path = show.saved().await;
    let shown = frames(&show.studio, &path, "v").await;
    assert!((5.0..5.05).contains(&shown[0]), "first shown at {}", shown[0]);
    let name = path.to_str().unwrap();
    let duration = said(
        &show.studio,
        "ffprobe",
        &[
            "-v",
            "error",
            "-show_entries",
            "format=duration",
            "-of",
            "default=nw=1:nk=1",
            name,
        ],
    )
    .await;
    let duration: f64 = duration.trim().parse().unwrap();
    let timeline = show.film.request(ENCODE).timeline;
    let whole = (timeline.end() + timeline.lead()).as_secs_f64();
    assert!((duration - whole).abs() < 0.01, "{duration} is not {whole}");
    show.close().await;
}

#[tokio::test]
async fn a_copied_film_is_all_there_from_its_first_frame() {
    for clip in ["sparse-keyframes.mp4", "irregular-keyframes.mkv", "interlaced.ts"] {
        let show = Show::of(Film::clip(clip), COPY, 0.0).await;
        let path = show.saved().await;
        let (copied, source) = (
            frames(&show.studio, &path, "v:0").await,
            frames(&show.studio, &show.film.path, "v:0").await,
        );
        assert_eq!(copied.len(), source.len(), "{clip}");
        assert!(copied[0] < 0.5, "{clip} begins at {}", copied[0]);
        show.close().await;
    }
}

#[tokio::test]
async fn an_execution_gives_its_stream_once_and_nothing_else() {
    let show = Show::of(Film::clip("ntsc.mkv"), COPY, 0.0).await;
    assert!(matches!(
        show.execution.serve(INIT).await,
        Err(ServeError::OtherProtocol)
    ));
    assert_eq!(show.execution.observe().state, EncoderState::Idle);
    let stream = show.stream().await;
    assert_eq!(ffmpegs_reading(&show.film.path).len(), 1);
    assert!(matches!(show.try_stream().await, Err(ServeError::Retired)));
    // Whoever watched it is gone: so is the encoder, without anybody asking.
    drop(stream);
    assert_eq!(ended(&*show.execution).await, Ended::Stopped);
    assert!(ffmpegs_reading(&show.film.path).is_empty());
    show.close().await;
}

#[tokio::test]
async fn retiring_breaks_off_a_stream_that_nobody_reads() {
    let show = Show::of(Film::clip("ntsc.mkv"), COPY, 0.0).await;
    let stream = show.stream().await;
    let retired = tokio::time::timeout(SOON, show.execution.retire()).await;
    assert_eq!(retired.expect("proved in time").unwrap().runs, 1);
    assert!(ffmpegs_reading(&show.film.path).is_empty());
    assert!(
        drain(stream).await.1.is_err(),
        "it looked like the end of the film"
    );
    show.close().await;
}

#[tokio::test]
async fn an_encoder_that_is_killed_breaks_the_stream_off() {
    let show = Show::of(Film::clip("ntsc.mkv"), ENCODE, 0.0).await;
    let mut stream = show.stream().await;
    stream.next_piece().await.unwrap().unwrap();
    kill_process(ffmpegs_reading(&show.film.path)[0], Signal::KILL).unwrap();
    let (_, end) = drain(stream).await;
    assert!(end.is_err(), "it looked like the end of the film");
    let killed = Ended::Failed {
        status: None,
        signal: Some(9),
    };
    assert_eq!(ended(&*show.execution).await, killed);
    show.close().await;
}

#[tokio::test]
async fn a_truncated_film_is_sent_to_its_last_frame_and_then_broken_off() {
    for make in [COPY, ENCODE] {
        let show = Show::of(Film::clip("truncated.mkv"), make, 60.0).await;
        let (bytes, end) = drain(show.stream().await).await;
        assert!(end.is_err(), "it looked like the end of the film");
        let path = show.studio.dir().join("part.mkv");
        std::fs::write(&path, bytes).unwrap();
        let shown = frames(&show.studio, &path, "v").await;
        let Ended::SourceTruncated { at } = ended(&*show.execution).await else {
            panic!("{:?}", show.execution.observe())
        };
        assert!((70.0..76.0).contains(&at.as_secs_f64()), "ended at {at}");
        assert!(shown.last().unwrap() > &(at.as_secs_f64() - 1.0));
        show.close().await;
    }
}

#[tokio::test]
async fn a_film_that_is_rewritten_or_gone_is_not_mixed_with_another() {
    let studio = Studio::open().await;
    let own = studio.dir().join("own.mkv");
    std::fs::copy(super::film::clip("flash-beep.mkv"), &own).unwrap();
    let show = Show::with(Film::open(own.clone()), ENCODE, 0.0, studio).await;
    let mut stream = show.stream().await;
    stream.next_piece().await.unwrap().unwrap();
    let file = std::fs::File::options().write(true).open(&own).unwrap();
    file.set_modified(std::time::SystemTime::UNIX_EPOCH).unwrap();
    assert!(drain(stream).await.1.is_err());
    assert_eq!(ended(&*show.execution).await, Ended::SourceChanged);
    // A later one is refused before anything is sent, and so is one of a file that is gone.
    for (lose, why) in [(false, Ended::SourceChanged), (true, Ended::SourceLost)] {
        if lose {
            std::fs::remove_file(&own).unwrap();
        }
        let start = Start {
            request: Arc::new(stream_of(&show.film, ENCODE, 0.0)),
            input: ether_encoder::Input::File {
                path: own.clone(),
                revision: ether_encoder::Revision {
                    size: 1,
                    modified_nanos: 1,
                    inode: 1,
                    device: 1,
                },
            },
            scratch: 0,
            first: 0,
        };
        let again = show.studio.encoder.start(start).await;
        again.outcome.unwrap();
        let refused = again.execution.stream().await;
        assert_eq!(refused.unwrap_err(), ServeError::Ended { ended: why });
        again.execution.retire().await.unwrap();
    }
    show.close().await;
}

#[tokio::test]
async fn a_film_that_ffmpeg_cannot_read_is_an_error_and_not_an_empty_stream() {
    let studio = Studio::open().await;
    let broken = studio.dir().join("broken.mkv");
    std::fs::write(&broken, b"not a film at all, whatever its name says").unwrap();
    let mut film = Film::clip("ntsc.mkv");
    film.path = broken;
    let show = Show::with(film, COPY, 0.0, studio).await;
    let refused = show.try_stream().await.unwrap_err();
    assert!(
        matches!(
            refused,
            ServeError::Ended {
                ended: Ended::Failed { status: Some(_), .. }
            }
        ),
        "{refused:?}"
    );
    let log = show.execution.observe().log.join("\n");
    assert!(
        log.contains("Invalid data") && !log.contains("broken.mkv"),
        "{log}"
    );
    show.close().await;
}

/// What an encoder has in its pipe, in bytes.
fn piped(pid: rustix::process::Pid) -> u64 {
    let output = std::fs::File::open(format!("/proc/{}/fd/1", pid.as_raw_nonzero())).unwrap();
    rustix::io::ioctl_fionread(output).unwrap()
}

#[tokio::test]
async fn a_viewer_who_does_not_read_holds_the_encoder_back_for_as_long_as_they_like() {
    let clock = ManualClock::at(Timestamp::from_micros(0));
    let studio = Studio::timed("ffmpeg".as_ref(), Arc::new(clock.clone())).await;
    let show = Show::with(Film::clip("ntsc.mkv"), COPY, 0.0, studio).await;
    let mut stream = show.stream().await;
    let piece = stream.next_piece().await.unwrap().unwrap();
    let pid = ffmpegs_reading(&show.film.path)[0];
    // Its pipe fills up, and nothing of it is taken out.
    let mut before = 0;
    while piped(pid) == 0 || piped(pid) != before {
        before = piped(pid);
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let seen = show.execution.observe();
    assert_eq!(seen.state, EncoderState::HeldBack);
    assert!(
        seen.bytes_produced <= piece.len() as u64 + (256 << 10),
        "{} bytes",
        seen.bytes_produced
    );
    assert!(before <= 1 << 20, "{before} bytes in the pipe");
    // An hour, in which it would long have counted as stalled if it were its turn.
    for _ in 0..360 {
        clock.advance(Duration::from_secs(10));
        tokio::task::yield_now().await;
    }
    assert_eq!(show.execution.observe().ended, None);
    let (rest, end) = drain(stream).await;
    end.unwrap();
    assert!(rest.len() as u64 > before);
    show.close().await;
}

#[tokio::test]
async fn an_encoder_that_hangs_while_it_is_waited_for_is_given_up() {
    let clock = ManualClock::at(Timestamp::from_micros(0));
    let studio = Studio::timed("ffmpeg".as_ref(), Arc::new(clock.clone())).await;
    let show = Show::with(Film::clip("ntsc.mkv"), ENCODE, 0.0, studio).await;
    let stream = show.stream().await;
    let pid = ffmpegs_reading(&show.film.path)[0];
    kill_process(pid, Signal::STOP).unwrap();
    let reading = tokio::spawn(drain(stream));
    let execution = show.execution.clone();
    while execution.observe().state != EncoderState::Running || piped(pid) > 0 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for second in 0..45 {
        assert!(second > 29 || !reading.is_finished(), "given up after {second} s");
        clock.advance(Duration::from_secs(1));
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }
    assert!(reading.await.unwrap().1.is_err());
    assert_eq!(ended(&*show.execution).await, Ended::Stalled);
    show.close().await;
}

#[tokio::test]
async fn sound_with_headers_in_each_frame_is_not_promised_as_a_copy() {
    let studio = Studio::open().await;
    let mut film = Film::clip("interlaced.ts");
    let facts = Arc::make_mut(&mut film.facts);
    let sound = facts
        .streams
        .iter_mut()
        .find(|stream| stream.audio().is_some())
        .unwrap();
    sound.codec = ether_media::Codec::Aac;
    let refused = studio.encoder.supports(&stream_of(&film, COPY, 0.0));
    assert!(matches!(refused, Err(Unsupported::Missing { .. })), "{refused:?}");
    assert_eq!(
        studio.encoder.supports(&stream_of(&film, COPY_PICTURE, 0.0)),
        Ok(())
    );
}
