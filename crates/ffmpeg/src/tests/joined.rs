//! What a player shows that puts an initialization segment and every segment together: each picture at the time
//! at which the film itself shows it, and the sound beside it.
//!
//! Other stories compare segments with segments, and so agree with each other where all of them are wrong. This
//! one asks an FFmpeg that reads the joined file as any other, edit list and offsets included.

use std::path::{Path, PathBuf};

use ether_encoder::{Execution, Resource};
use ether_media::{Cut, Ticks};

use super::film::{COPY, ENCODE, Film, Make, Shape, Studio, fetch, with_both_majors};
use super::screening::{film, tool};

with_both_majors!(
    copied_pictures_are_shown_when_the_film_shows_them,
    encoded_pictures_are_shown_when_the_film_shows_them,
    recordings_show_nothing_before_they_begin,
);

/// Matroska rounds to milliseconds, each of two reads may round the other way.
const ROUNDING: Ticks = Ticks(120);

/// Films of six seconds that are not shown in the order of their packets, or not from their first packet on.
async fn films(studio: &Studio) -> Vec<Film> {
    let picture = "-f lavfi -i testsrc2=s=320x180:r=25:d=6 -f lavfi -i sine=f=700:r=48000:d=6 -c:v libx264 \
                   -preset veryfast -g 25 -bf 3 -b_strategy 0 -pix_fmt yuv420p -c:a aac";
    let mut films = Vec::new();
    for name in ["reordered.mkv", "reordered.mp4", "reordered.ts"] {
        films.push(film(studio, name, picture).await);
    }
    // Matroska has milliseconds: of a rate that does not divide them, frames are shown a little before their bounds.
    let odd = picture.replace("r=25:", "r=17.3:");
    films.push(film(studio, "odd-rate.mkv", &odd).await);
    // The picture is not what the file lists first.
    let last = format!("{picture} -map 1:a -map 0:v");
    films.push(film(studio, "picture-last.mkv", &last).await);
    let whole = studio.dir().join("reordered.mp4");
    let whole = whole.display();
    let others = [
        // Edits that begin at a keyframe, and between two.
        ("cut.mp4", format!("-ss 1 -i {whole} -c copy")),
        ("cut-between.mp4", format!("-ss 0.4 -i {whole} -c copy")),
        // An empty edit before the picture, and one before the sound.
        (
            "late-picture.mp4",
            format!("-itsoffset 0.3 -i {whole} -i {whole} -map 0:v -map 1:a -c copy"),
        ),
        (
            "late-sound.mp4",
            format!("-i {whole} -itsoffset 0.7 -i {whole} -map 0:v -map 1:a -c copy"),
        ),
    ];
    for (name, words) in others {
        films.push(film(studio, name, &words).await);
    }
    films
}

/// Recordings that begin amid a film. One that begins at a keyframe goes on with pictures which are shown before it
/// and need what nobody recorded, and which no player shows. Of one that begins between two, versions of FFmpeg show
/// what they can or nothing, up to the first keyframe.
async fn recordings(studio: &Studio) -> Vec<Film> {
    let encoders = [
        (
            "h264",
            "-c:v libx264 -preset veryfast -g 50 -bf 3 -b_strategy 0 -x264-params open-gop=1:scenecut=0",
        ),
        (
            "hevc",
            "-c:v libx265 -preset ultrafast -x265-params open-gop=1:keyint=50:bframes=4:log-level=error",
        ),
    ];
    let mut films = Vec::new();
    for ((name, encoder), kinds) in encoders.into_iter().zip([1, 2]) {
        // The sound begins later than the recording, so that nothing makes room for pictures before the film.
        let words = format!(
            "-f lavfi -i testsrc2=s=320x180:r=25:d=10 -itsoffset 5.5 -f lavfi -i sine=r=48000:d=4 {encoder} \
             -pix_fmt yuv420p -c:a aac"
        );
        let whole = film(studio, &format!("{name}-whole.ts"), &words).await.path;
        let bytes = std::fs::read(whole).unwrap();
        // The tables stand at the front; a packet of the picture's says where a keyframe begins.
        let begins = |p: &[u8]| {
            let pid = u16::from(p[1] & 0x1f) << 8 | u16::from(p[2]);
            pid == 0x100 && p[1] & 0x40 != 0 && p[3] & 0x20 != 0 && p[4] > 0 && p[5] & 0x40 != 0
        };
        let packets: Vec<&[u8]> = bytes.chunks_exact(188).collect();
        let (tables, packets) = packets.split_at(3);
        let second = packets.iter().enumerate().filter(|(_, p)| begins(p)).nth(1);
        let amid = second.map(|(at, _)| &packets[at..]).unwrap();
        for (begin, skipped) in [("key", 0), ("between", 88)][..kinds].iter().copied() {
            let path = studio.dir().join(format!("{name}-amid-{begin}.ts"));
            std::fs::write(&path, [tables, &amid[skipped..]].concat().concat()).unwrap();
            films.push(Film::open(path));
        }
    }
    films
}

const COPIED: Make = Make { target: 2, ..COPY };
const ENCODED: Make = Make { target: 2, ..ENCODE };

async fn copied_pictures_are_shown_when_the_film_shows_them(ffmpeg: &Path) {
    let studio = Studio::with(ffmpeg).await;
    for film in films(&studio).await {
        // What begins between two keyframes is not decided to be copied.
        if !film.path.ends_with("cut-between.mp4") {
            shown_alike(&studio, &film, COPIED).await;
        }
    }
    studio.shut().await;
}

async fn encoded_pictures_are_shown_when_the_film_shows_them(ffmpeg: &Path) {
    let studio = Studio::with(ffmpeg).await;
    let films = films(&studio).await;
    for name in [
        "reordered.mkv",
        "odd-rate.mkv",
        "picture-last.mkv",
        "cut-between.mp4",
        "late-picture.mp4",
    ] {
        let film = films.iter().find(|film| film.path.ends_with(name));
        shown_alike(&studio, film.unwrap(), ENCODED).await;
    }
    studio.shut().await;
}

async fn recordings_show_nothing_before_they_begin(ffmpeg: &Path) {
    let studio = Studio::with(ffmpeg).await;
    for film in recordings(&studio).await {
        let between = film.path.ends_with("hevc-amid-between.ts");
        shown_alike(&studio, &film, if between { ENCODED } else { COPIED }).await;
    }
    studio.shut().await;
}

/// Makes `film` from its last segment to its first, each by a run of its own, and compares what is shown.
async fn shown_alike(studio: &Studio, film: &Film, make: Make) {
    let name = film.path.file_name().unwrap().to_str().unwrap();
    let what = format!("{name}, {}", if make.copy_video { "copied" } else { "encoded" });
    let request = film.request(make);
    let apart = request.apart();
    let timeline = request.timeline.clone();
    let count = timeline.len() as u32;
    assert!(count >= 3, "{what}: only {count} segments");
    let execution = studio.start_request(film, request, 64 << 20).await;
    let (init, segments, joined) = join(studio, &*execution, 0, count).await;
    assert_eq!(execution.observe().runs, count, "{what}: runs");
    // Sound that begins well before the picture comes in a representation of its own.
    let heard = if apart {
        join(studio, &*execution, 1, count).await.2
    } else {
        joined.clone()
    };
    execution.retire().await.unwrap();

    let shift = timeline.lead() - timeline.origin();
    let mut pictures = (
        times(studio, &joined, "v:0", "frame").await,
        times(studio, &film.path, "v:0", "frame").await,
    );
    let between = name.ends_with("-amid-between.ts");
    if between {
        let first = film.facts.keyframes.as_ref().unwrap().times[0];
        pictures.0.retain(|at| *at >= first + shift);
        pictures.1.retain(|at| *at >= first);
    }
    same(&format!("{what}: pictures"), &pictures.0, &pictures.1, shift);
    if make.copy_audio {
        let mut sounds = (
            times(studio, &heard, "a:0", "packet").await,
            times(studio, &film.path, "a:0", "packet").await,
        );
        // What the film's own edits hide, and what comes before the output's clock, is not sent.
        sounds.1.retain(|at| *at + shift >= Ticks(-ROUNDING.0));
        same(&format!("{what}: sounds"), &sounds.0, &sounds.1, shift);
    }

    // Players that go by decoding times place a segment by its first. Where groups are open, some of a copied
    // segment's pictures are shown before its keyframe.
    let slack = match timeline.cut() {
        Cut::Grid { slack, .. } => slack,
        Cut::Keyframes => ROUNDING,
    };
    let open = make.copy_video && name.contains("-amid-");
    for (n, bytes) in segments.iter().enumerate() {
        let Some(first) = Shape::read(&init, bytes).pictures.first().copied() else {
            assert!(between, "{what}: segment {n} has no picture");
            continue;
        };
        let decoded = Ticks(first.0) - timeline.lead();
        let late = decoded - timeline.start(n);
        let early = if open && n > 0 {
            Ticks(Ticks::HZ / 5)
        } else {
            slack
        };
        assert!(
            -early <= late && (late <= slack || between),
            "{what}: segment {n} of {} is decoded from {decoded}",
            timeline.start(n)
        );
    }
}

/// Makes a representation from its last segment to its first: its initialization segment, its segments in order, and
/// the file that they are together.
async fn join(
    studio: &Studio,
    execution: &dyn Execution,
    representation: u32,
    count: u32,
) -> (Vec<u8>, Vec<Vec<u8>>, PathBuf) {
    let mut segments = Vec::new();
    for number in (0..count).rev() {
        let segment = Resource::Segment {
            representation,
            number,
        };
        segments.push(fetch(execution, segment).await.unwrap());
    }
    segments.reverse();
    let init = fetch(execution, Resource::Init { representation }).await.unwrap();
    let joined = studio.dir().join(format!("joined-{representation}.mp4"));
    std::fs::write(&joined, [init.clone(), segments.concat()].concat()).unwrap();
    (init, segments, joined)
}

#[track_caller]
fn same(what: &str, ours: &[Ticks], theirs: &[Ticks], shift: Ticks) {
    assert_eq!(ours.len(), theirs.len(), "{what}: how many");
    for (n, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        let wanted = *theirs + shift;
        assert!(
            (*ours - wanted).abs() <= ROUNDING,
            "{what}: number {n} is shown at {ours} and not at {wanted}"
        );
    }
}

/// When the frames or packets of a stream are shown, in order.
async fn times(studio: &Studio, file: &Path, stream: &str, of: &str) -> Vec<Ticks> {
    let entries = format!("{of}=pts_time");
    let args = [
        "-v",
        "error",
        "-select_streams",
        stream,
        "-show_entries",
        &entries,
        "-of",
        "csv=p=0",
    ];
    let args = args.iter().copied().chain([file.to_str().unwrap()]);
    let text = tool(studio, "ffprobe", &args.collect::<Vec<_>>()).await;
    let text = String::from_utf8(text).unwrap();
    let mut times: Vec<Ticks> = text
        .lines()
        .filter_map(|line| line.split(',').next()?.parse().ok())
        .map(Ticks::from_secs_f64)
        .collect();
    times.sort_unstable();
    times
}
