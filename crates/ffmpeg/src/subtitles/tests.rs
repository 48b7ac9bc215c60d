//! Stories of films with text in them, read by the real FFmpeg.

use std::path::{Path, PathBuf};

use ether_encoder::{Encoder, Input, Offer, Resource, Revision, Unsupported, supports_request};
use ether_media::subtitles::{Clock as View, webvtt};
use ether_media::{Codec, Ticks};
use ether_process::Spec;
use ether_types::{ManualClock, Timestamp};

use super::*;
use crate::tests::film::{COPY, Film as Clip, Studio, clip, fetch, script};

const HOUR: View = View {
    zero: Ticks::ZERO,
    end: Ticks(3_600 * Ticks::HZ),
};

fn film(path: &Path) -> Film {
    let known = Clip::open(path.to_owned());
    Film {
        input: Input::File {
            revision: Revision::of_metadata(&std::fs::metadata(path).unwrap()),
            path: known.path,
        },
        facts: known.facts,
    }
}

fn text_tracks(film: &Film) -> Vec<u32> {
    let all = film.facts.streams.iter().map(|stream| stream.index);
    all.filter(|index| Subtitles::offers(&film.facts, *index).is_ok())
        .collect()
}

/// Runs FFmpeg to make a film for a story; it is the last argument.
async fn make(studio: &Studio, args: &[&str], name: &str) -> PathBuf {
    let path = studio.dir().join(name);
    let mut spec = Spec::new("ffmpeg");
    spec.args(["-v", "error", "-nostdin", "-y"]).args(args).arg(&path);
    let bounds = Bounds {
        stdin: None,
        max_output: 0,
        deadline: Duration::from_secs(60),
    };
    studio.spawner().run_bounded(spec, bounds).await.unwrap();
    path
}

/// A subtitle file with `count` cues, a second apart and half a second long.
fn numbered(count: usize) -> String {
    let cue = |n: usize| {
        let (h, m, s) = (n / 3600, n / 60 % 60, n % 60);
        format!(
            "{}\n{h:02}:{m:02}:{s:02},005 --> {h:02}:{m:02}:{s:02},505\ncue {n}\n\n",
            n + 1
        )
    };
    (0..count).map(cue).collect()
}

async fn whole(studio: &Studio, film: &Film, stream: u32) -> Result<Arc<Track>, SubtitleError> {
    studio.encoder.subtitles().open(film, stream)?.whole().await
}

async fn close(studio: Studio) {
    studio.encoder.subtitles().shutdown().await;
    studio.encoder.join().await;
    studio.shut().await;
}

#[tokio::test]
async fn every_text_track_of_real_films_is_read() {
    let Some(media) = media() else { return };
    let studio = Studio::open().await;
    for (name, tracks) in [
        ("h264-2xaac-8subrip.mkv", 8),
        ("h264-ac3-ass.mkv", 1),
        ("multi-video-multi-audio-movtext.mp4", 2),
    ] {
        let film = film(&media.join(name));
        let streams = text_tracks(&film);
        assert_eq!(streams.len(), tracks, "{name}");
        // One of the eight is empty: the film is a piece of a longer one.
        let mut spoken = 0;
        for stream in streams {
            let track = whole(&studio, &film, stream).await.unwrap();
            let text = webvtt::file(&track, HOUR, None);
            spoken += usize::from(text.contains("-->"));
            assert!(!text.contains("{\\"), "{name} {stream}: {text}");
        }
        assert!(spoken > 0 && spoken + 2 > tracks, "{name}: {spoken}");
    }
    close(studio).await;
}

fn media() -> Option<PathBuf> {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/media");
    let media = std::env::var_os("ETHER_MEDIA").map_or_else(beside, PathBuf::from);
    if media.is_dir() {
        return Some(media);
    }
    eprintln!("skipped: there are no real films here");
    None
}

/// The clip's lines appear at 40 and 50 s of its own clock; the same film on a late clock has them there too.
#[tokio::test]
async fn lines_are_on_the_files_own_clock_however_late_it_is() {
    let studio = Studio::open().await;
    let early = clip("ass-cues.mkv");
    let late = [
        "-i",
        early.to_str().unwrap(),
        "-map",
        "0",
        "-c",
        "copy",
        "-output_ts_offset",
        "40001.4",
    ];
    let late = make(&studio, &late, "late.mkv").await;
    let mut starts = Vec::new();
    for path in [early, late] {
        let film = film(&path);
        let track = whole(&studio, &film, text_tracks(&film)[0]).await.unwrap();
        starts.push(
            track
                .lines
                .iter()
                .map(|line| line.start.as_millis())
                .collect::<Vec<_>>(),
        );
        let clock = View {
            zero: film.facts.start,
            end: Ticks(60 * Ticks::HZ),
        };
        let text = webvtt::file(&track, clock, None);
        assert!(text.contains("CUE40") && text.contains("CUE50"), "{text}");
    }
    let shift = |n: usize| starts[1][n] - starts[0][n];
    assert_eq!(starts[0].len(), 2);
    assert!((40_001_390..=40_001_410).contains(&shift(0)), "{starts:?}");
    assert_eq!(shift(0), shift(1));
    close(studio).await;
}

#[tokio::test]
async fn twenty_tracks_and_many_viewers_take_one_reading() {
    let studio = Studio::open().await;
    let file = studio.dir().join("lines.srt");
    std::fs::write(&file, numbered(200)).unwrap();
    let film_path = clip("flash-beep.mkv");
    let (source, lines) = (film_path.to_str().unwrap(), file.to_str().unwrap());
    let mut args = vec!["-i", source, "-i", lines, "-map", "0"];
    args.extend(["-map", "1"].repeat(20));
    args.extend(["-c", "copy", "-c:s", "subrip"]);
    let film = film(&make(&studio, &args, "many.mkv").await);
    let streams = text_tracks(&film);
    assert_eq!(streams.len(), 20);
    let subtitles = studio.encoder.subtitles();
    let mut readings: Vec<Reading> = streams
        .iter()
        .map(|n| subtitles.open(&film, *n).unwrap())
        .collect();
    for reading in &mut readings {
        assert_eq!(reading.whole().await.unwrap().lines.len(), 200);
    }
    // A viewer who comes later finds it read.
    readings.push(subtitles.open(&film, streams[3]).unwrap());
    let first = &readings[0].job;
    assert!(readings.iter().all(|reading| Arc::ptr_eq(&reading.job, first)));
    // Times are kept to the millisecond.
    let track = readings[20].whole().await.unwrap();
    assert_eq!(track.lines[1].start.as_millis(), 1_005);
    drop(readings);
    close(studio).await;
}

#[tokio::test]
async fn lines_come_as_they_are_read_and_none_is_lost() {
    let studio = Studio::open().await;
    let film = film(&clip("ass-cues.mkv"));
    let mut reading = studio
        .encoder
        .subtitles()
        .open(&film, text_tracks(&film)[0])
        .unwrap();
    let (mut forms, mut said) = (0, Vec::new());
    loop {
        let batch = reading.next().await.unwrap();
        forms += usize::from(batch.form.is_some());
        said.extend(batch.lines.into_iter().map(|line| line.body));
        if batch.complete {
            break;
        }
    }
    assert_eq!((forms, said.len()), (1, 2));
    drop(reading);
    close(studio).await;
}

#[tokio::test]
async fn a_storm_of_cues_is_read() {
    let studio = Studio::open().await;
    let sidecar = beside("srt", numbered(30_000).as_bytes());
    let track = studio.encoder.subtitles().sidecar(&sidecar).await.unwrap();
    assert_eq!(track.lines.len(), 30_000);
    let view = View {
        end: Ticks(24 * 3_600 * Ticks::HZ),
        ..HOUR
    };
    assert_eq!(webvtt::file(&track, view, None).matches("-->").count(), 30_000);
    close(studio).await;
}

fn beside(suffix: &str, bytes: &[u8]) -> Sidecar {
    let content = bytes
        .iter()
        .fold(7_u64, |hash, byte| hash.wrapping_mul(31) + u64::from(*byte));
    Sidecar {
        bytes: Bytes::copy_from_slice(bytes),
        revision: Revision {
            size: bytes.len() as u64,
            modified_nanos: 0,
            inode: content,
            device: 0,
        },
        suffix: suffix.to_owned(),
    }
}

#[tokio::test]
async fn files_beside_films_are_read_in_their_formats_and_encodings() {
    let studio = Studio::open().await;
    let srt = "\u{feff}1\r\n00:00:02,000 --> 00:00:04,123\r\n<i>Où ça</i> &amp; {laughs}\r\n\r\n2\r\n\
               00:00:05,000 --> 00:00:06,000\r\n\r\n";
    let utf16: Vec<u8> = srt.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let (latin, ..) = encoding_rs::WINDOWS_1252.encode(srt.trim_start_matches('\u{feff}'));
    let said = "00:00:02.000 --> 00:00:04.123\n<i>Où ça</i> &amp; {laughs}\n\n";
    for bytes in [srt.as_bytes(), &utf16, &latin] {
        let track = studio
            .encoder
            .subtitles()
            .sidecar(&beside("srt", bytes))
            .await
            .unwrap();
        assert_eq!(webvtt::file(&track, HOUR, None), format!("WEBVTT\n\n{said}"));
    }
    let ass = b"[Script Info]\nScriptType: v4.00+\n\n[V4+ Styles]\nFormat: Name, Fontname, Fontsize\n\
        Style: D,DejaVu Sans,48\n\n[Events]\n\
        Format: Layer, Start, End, Style, Name, MarginL, MarginR, MarginV, Effect, Text\n\
        Dialogue: 0,0:00:40.00,0:00:42.00,D,,0,0,0,,CUE40\n";
    let sami =
        b"<SAMI><BODY><SYNC Start=2000><P Class=EN>Hello<SYNC Start=4000><P Class=EN>&nbsp;</BODY></SAMI>";
    let microdvd = b"{1}{1}25.000\n{50}{100}Hello|there\n";
    let vtt = b"WEBVTT\n\n00:02.000 --> 00:04.000 line:0\nHello\n";
    for (suffix, bytes, said) in [
        ("ass", &ass[..], "CUE40"),
        ("smi", sami, "00:00:02.000 --> 00:00:04.000\nHello"),
        ("sub", microdvd, "00:00:02.000 --> 00:00:04.000\nHello\nthere"),
        ("vtt", vtt, "00:00:02.000 --> 00:00:04.000 line:0\nHello"),
    ] {
        let track = studio
            .encoder
            .subtitles()
            .sidecar(&beside(suffix, bytes))
            .await
            .unwrap();
        let text = webvtt::file(&track, HOUR, None);
        assert!(text.contains(said), "{suffix}: {text}");
    }
    let nothing = studio
        .encoder
        .subtitles()
        .sidecar(&beside("ttml", b"<tt/>"))
        .await;
    assert!(matches!(nothing, Err(SubtitleError::Unreadable { .. })));
    close(studio).await;
}

/// Facts may be wrong about one track, and FFmpeg may lack a decoder; the others are read all the same.
#[tokio::test]
async fn a_track_that_cannot_be_read_costs_no_other() {
    let studio = Studio::open().await;
    let (text, pictures) = (clip("ass-cues.mkv"), clip("pgs-cues.mkv"));
    let (text, pictures) = (text.to_str().unwrap(), pictures.to_str().unwrap());
    let args = [
        "-i", text, "-i", pictures, "-map", "0:v", "-map", "1:s", "-map", "0:s", "-c", "copy",
    ];
    let mut film = film(&make(&studio, &args, "both.mkv").await);
    let subtitles = studio.encoder.subtitles();
    assert_eq!(subtitles.open(&film, 1).err(), Some(SubtitleError::Pictures));
    assert_eq!(subtitles.open(&film, 0).err(), Some(SubtitleError::NoSuchTrack));
    assert_eq!(subtitles.open(&film, 9).err(), Some(SubtitleError::NoSuchTrack));
    let facts = Arc::make_mut(&mut film.facts);
    facts.streams[1].codec = Codec::Other("subrip".into());
    if let StreamKind::Subtitle(subtitle) = &mut facts.streams[1].kind {
        subtitle.text = true;
    }
    let (mut lying, mut honest) = (
        subtitles.open(&film, 1).unwrap(),
        subtitles.open(&film, 2).unwrap(),
    );
    assert_eq!(lying.whole().await.err(), Some(SubtitleError::Failed));
    assert_eq!(honest.whole().await.unwrap().lines.len(), 2);
    drop((lying, honest));
    close(studio).await;
}

#[tokio::test]
async fn another_file_in_its_place_is_not_read_for_it() {
    let studio = Studio::open().await;
    let path = studio.dir().join("film.mkv");
    std::fs::copy(clip("ass-cues.mkv"), &path).unwrap();
    let film = film(&path);
    let stream = text_tracks(&film)[0];
    std::fs::write(&path, b"something else").unwrap();
    assert_eq!(
        whole(&studio, &film, stream).await.err(),
        Some(SubtitleError::SourceChanged)
    );
    std::fs::remove_file(&path).unwrap();
    assert_eq!(
        whole(&studio, &film, stream).await.err(),
        Some(SubtitleError::SourceLost)
    );
    close(studio).await;
}

#[tokio::test]
async fn fonts_come_out_as_they_were_attached() {
    let studio = Studio::open().await;
    let font: Vec<u8> = (0..70_000_u32).flat_map(|n| n.to_le_bytes()).collect();
    let path = studio.dir().join("a.ttf");
    std::fs::write(&path, &font).unwrap();
    let (source, path) = (clip("ass-cues.mkv"), path.to_str().unwrap().to_owned());
    let args = [
        "-i",
        source.to_str().unwrap(),
        "-map",
        "0",
        "-c",
        "copy",
        "-attach",
        &path,
        "-metadata:s:t",
        "mimetype=application/x-truetype-font",
    ];
    let film = film(&make(&studio, &args, "font.mkv").await);
    let index = film
        .facts
        .streams
        .iter()
        .find(|s| s.kind == StreamKind::Attachment)
        .unwrap()
        .index;
    let subtitles = studio.encoder.subtitles();
    for _ in 0..2 {
        assert_eq!(subtitles.font(&film, index).await.unwrap(), font);
    }
    assert_eq!(
        subtitles.font(&film, 0).await.err(),
        Some(SubtitleError::NoSuchTrack)
    );
    close(studio).await;
}

/// A program that says who it is and then gives nothing, as FFmpeg does on a share that hangs.
fn hanging(dir: &Path) -> (PathBuf, PathBuf) {
    let told = dir.join("pid");
    let text = format!(
        "echo $$ > '{0}.new'\nmv '{0}.new' '{0}'\nexec sleep 600",
        told.display()
    );
    (script(dir, "ffmpeg", &text), told)
}

async fn until<T>(mut found: impl FnMut() -> Option<T>) -> T {
    for _ in 0..2_000 {
        if let Some(found) = found() {
            return found;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("it did not come about within 20 seconds");
}

#[tokio::test]
async fn a_reading_that_nobody_waits_for_leaves_no_process() {
    let clock = ManualClock::at(Timestamp::from_micros(0));
    let studio = Studio::open().await;
    let (program, told) = hanging(studio.dir());
    let subtitles = Subtitles::new(program, studio.spawner(), Arc::new(clock.clone()));
    let film = film(&clip("ass-cues.mkv"));
    let stream = text_tracks(&film)[0];
    let (one, two) = (
        subtitles.open(&film, stream).unwrap(),
        subtitles.open(&film, stream).unwrap(),
    );
    let pid = until(|| std::fs::read_to_string(&told).ok()).await;
    let gone = || !Path::new("/proc").join(pid.trim()).exists();
    drop(one);
    // The other viewer still waits, however long.
    clock.advance(Duration::from_secs(60));
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!gone());
    drop(two);
    tokio::time::sleep(Duration::from_millis(50)).await;
    clock.advance(Duration::from_secs(60));
    until(|| gone().then_some(())).await;
    // Whoever comes then starts anew, and a server that stops ends that.
    std::fs::remove_file(&told).unwrap();
    let mut again = subtitles.open(&film, stream).unwrap();
    let pid = until(|| std::fs::read_to_string(&told).ok()).await;
    subtitles.shutdown().await;
    assert!(!Path::new("/proc").join(pid.trim()).exists());
    assert_eq!(again.whole().await.err(), Some(SubtitleError::Closing));
    assert_eq!(subtitles.open(&film, stream).err(), Some(SubtitleError::Closing));
    drop(again);
    close(studio).await;
}

#[tokio::test]
async fn an_execution_gives_its_text_track_on_its_own_timeline() {
    let studio = Studio::open().await;
    let known = Clip::clip("ass-cues.mkv");
    let mut request = known.request(COPY);
    let stream = known
        .facts
        .streams
        .iter()
        .find(|s| matches!(s.kind, StreamKind::Subtitle(_)))
        .unwrap()
        .index;
    request.subtitle = Some(stream);
    let start = known.start_request(request.clone(), 64 << 20);
    let started = studio.encoder.start(start).await;
    started.outcome.unwrap();
    let execution = started.execution;
    assert!(execution.finished(Resource::Subtitles).is_none());
    let text = String::from_utf8(fetch(&*execution, Resource::Subtitles).await.unwrap()).unwrap();
    assert!(text.contains("PlayResX: 640") && text.contains("CUE40"), "{text}");
    let origin = request.timeline.origin().as_millis();
    let dialogue = text.lines().find(|line| line.contains("CUE40")).unwrap();
    let shown = if origin == 0 { "0:00:40.0" } else { "0:00:39.9" };
    assert!(
        dialogue.contains(shown) || dialogue.contains("0:00:40.0"),
        "{dialogue}"
    );
    assert!(execution.finished(Resource::Subtitles).is_some());
    assert_eq!(execution.observe().runs, 0, "no encoder runs for text");
    execution.retire().await.unwrap();
    assert!(fetch(&*execution, Resource::Subtitles).await.is_err());
    drop(execution);
    // An encoder that does not offer it refuses, and one that does refuses pictures.
    let mut without = studio.encoder.capabilities();
    without.soft_subtitles = false;
    let refusal = Unsupported::NotOffered {
        what: Offer::SoftSubtitles,
    };
    assert_eq!(supports_request(&request, without), Err(refusal));
    let pictures = Clip::clip("pgs-cues.mkv");
    let mut request = pictures.request(COPY);
    request.subtitle = pictures
        .facts
        .streams
        .iter()
        .find(|s| matches!(s.kind, StreamKind::Subtitle(_)))
        .map(|s| s.index);
    assert!(matches!(
        studio.encoder.supports(&request),
        Err(Unsupported::NoSuchStream { .. })
    ));
    close(studio).await;
}
