//! Films that a bad disk or a broken download has been at, given to the real FFmpeg in every protocol: whatever their
//! bytes do to it, whoever asks has an answer, and nothing is left of it.
//!
//! Each is damaged by its own seed, so that one that fails is made again by `ETHER_DAMAGE=SEED`. The short tier
//! damages 120 and takes half a minute of a processor; `ETHER_SOAK=1` damages two thousand.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ether_encoder::{Encoder, Execution, Protocol, Request, Resource, SegmentContainer, VideoAction};
use ether_media::Ticks;
use ether_testkit::damage::{Dice, damage};

use super::film::{COPY, ENCODE, Film, Make, Studio, fetch, ffmpegs_reading};
use super::screening::{real, studios};

const SHORT: u64 = 120;
const SOAK: u64 = 2_000;
/// Stories among which the seeds are shared out, so that none takes long on a busy machine.
const PARTS: u64 = 3;
/// The largest film that is damaged: every seed copies one.
const LARGEST: u64 = 4 << 20;
const SCRATCH: u64 = 64 << 20;
/// How long what was told to end may take until it is gone.
const SOON: Duration = Duration::from_secs(30);

#[tokio::test]
async fn heavy_damaged_films_are_answered_and_leave_nothing() {
    damaged(0).await;
}

#[tokio::test]
async fn heavy_other_damaged_films_are_answered_and_leave_nothing() {
    damaged(1).await;
}

#[tokio::test]
async fn heavy_more_damaged_films_are_answered_and_leave_nothing() {
    damaged(2).await;
}

/// Plays the films of every seed that leaves `rest`.
async fn damaged(rest: u64) {
    let films = films();
    let alone: Option<u64> = std::env::var("ETHER_DAMAGE")
        .ok()
        .map(|seed| seed.parse().unwrap());
    let soaks = std::env::var_os("ETHER_SOAK").is_some();
    let seeds = alone.map_or(0..if soaks { SOAK } else { SHORT }, |seed| seed..seed + 1);
    let seeds = seeds.filter(|seed| seed % PARTS == rest);
    let studios = studios().await;
    let mut answers: BTreeMap<String, u64> = BTreeMap::new();
    for seed in seeds {
        let mut dice = Dice(seed);
        let film = &films[dice.below(films.len())];
        let mut bytes = std::fs::read(film).unwrap();
        damage(&mut bytes, &mut dice);
        let studio = &studios[dice.below(studios.len())];
        // A failed assertion shows which film it was.
        eprintln!("ETHER_DAMAGE={seed}: {}", film.file_name().unwrap().display());
        let path = studio.dir().join(format!("damaged-{seed}"));
        std::fs::write(&path, bytes).unwrap();
        for answer in play(studio, &path, &mut dice).await {
            *answers.entry(answer).or_default() += 1;
        }
        std::fs::remove_file(&path).unwrap();
    }
    println!("{answers:#?}");
    if alone.is_none() {
        for expected in ["unreadable facts", "segment"] {
            assert!(
                answers.contains_key(expected),
                "none gave {expected}: {answers:?}"
            );
        }
    }
    for studio in studios {
        let dir = studio.dir().to_owned();
        studio.encoder.join().await;
        studio.shut().await;
        assert_eq!(held_open(&dir), Vec::<PathBuf>::new(), "scratch is left");
    }
}

/// Real films and clips that are small.
fn films() -> Vec<PathBuf> {
    let clips = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/clips");
    let real = real("SOURCES.md").and_then(|path| path.parent().map(Path::to_owned));
    let folders = [Some(clips), real];
    let entries = folders
        .into_iter()
        .flatten()
        .flat_map(|dir| std::fs::read_dir(dir).unwrap());
    let film = |path: &PathBuf| {
        let kind = path.extension().and_then(|extension| extension.to_str());
        let no_film = matches!(kind, None | Some("md" | "jpg" | "ass" | "sup" | "lock"));
        !no_film && std::fs::metadata(path).is_ok_and(|file| file.len() <= LARGEST)
    };
    let mut films: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).filter(film).collect();
    assert!(
        !films.is_empty(),
        "there are no films to damage: run `make clips`"
    );
    films.sort_unstable_by(|a, b| a.file_name().cmp(&b.file_name()));
    films
}

/// Plays what can be played of the film and ends it, and says what came of it.
async fn play(studio: &Studio, path: &Path, dice: &mut Dice) -> Vec<String> {
    let opened = path.to_owned();
    let Ok(Ok(film)) = tokio::task::spawn_blocking(move || Film::try_open(opened))
        .await
        .map_err(|e| {
            assert!(!e.is_panic(), "a reader panicked");
        })
    else {
        return vec!["unreadable facts".to_owned()];
    };
    let copy_video = dice.below(2) == 0;
    let make = Make {
        copy_video,
        copy_audio: dice.below(2) == 0,
        target: 2,
        ..if copy_video { COPY } else { ENCODE }
    };
    let Some(mut request) = film.try_request(make) else {
        return vec!["no timeline".to_owned()];
    };
    if let Some(VideoAction::Encode(encode)) = request.video.as_mut().map(|video| &mut video.action) {
        (encode.rungs[0].width, encode.rungs[0].height) = (96, 54);
        encode.deinterlace = dice.below(2) == 0;
    }
    request.protocol = match dice.below(4) {
        0 => Protocol::Dash,
        1 => Protocol::Http {
            start: Ticks(dice.below(4) as i64 * Ticks::HZ),
        },
        2 => Protocol::Hls {
            container: SegmentContainer::MpegTs,
        },
        _ => request.protocol,
    };
    if let Err(why) = studio.encoder.supports(&request) {
        let why = format!("{why:?}");
        return vec![format!(
            "unsupported: {}",
            why.split([' ', '{', '(']).next().unwrap_or_default()
        )];
    }
    let started = studio
        .encoder
        .start(film.start_request(request.clone(), SCRATCH))
        .await;
    let mut answers = Vec::new();
    if let Err(why) = &started.outcome {
        answers.push(format!("not started: {why:?}"));
    } else if let Protocol::Http { .. } = request.protocol {
        answers.push(stream(&*started.execution).await);
    } else {
        answers.extend(segments(&*started.execution, &request, dice).await);
    }
    let log = started.execution.observe().log.join("\n");
    assert!(!log.contains("damaged-"), "the film's name is in {log}");
    tokio::time::timeout(SOON, started.execution.retire())
        .await
        .expect("what is retired ends")
        .unwrap();
    assert_eq!(
        started.execution.observe().scratch_used,
        0,
        "scratch is still booked"
    );
    assert!(ffmpegs_reading(path).is_empty(), "an encoder is left");
    answers
}

/// Asks for the first segment, one anywhere, and the last, of any representation.
async fn segments(execution: &dyn Execution, request: &Request, dice: &mut Dice) -> Vec<String> {
    let count = request.timeline.len();
    let mut answers = Vec::new();
    for number in [0, dice.below(count), count - 1] {
        let resource = Resource::Segment {
            representation: dice.below(request.representations().len()) as u32,
            number: number as u32,
        };
        answers.push(match fetch(execution, resource).await {
            Ok(_) => "segment".to_owned(),
            Err(error) => {
                let error = format!("{error:?}");
                let words: Vec<&str> = error
                    .split([' ', '{', '('])
                    .filter(|word| !word.is_empty())
                    .collect();
                words[..words.len().min(3)].join(" ")
            }
        });
    }
    answers
}

/// Reads at most two megabytes of a stream.
async fn stream(execution: &dyn Execution) -> String {
    let bound = Duration::from_secs(60);
    let stream = tokio::time::timeout(bound, execution.stream()).await;
    let mut stream = match stream.expect("an answer within a minute") {
        Ok(stream) => stream,
        Err(error) => return format!("no stream: {error:?}"),
    };
    let mut bytes = 0;
    while bytes < 2 << 20 {
        let piece = tokio::time::timeout(bound, stream.next_piece()).await;
        match piece.expect("a piece within a minute") {
            Some(Ok(piece)) => bytes += piece.len(),
            Some(Err(_)) => return "broken stream".to_owned(),
            None => break,
        }
    }
    "stream".to_owned()
}

/// What this process holds open in `dir`, names that are gone among it.
fn held_open(dir: &Path) -> Vec<PathBuf> {
    let links = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
    let targets = links.filter_map(|link| std::fs::read_link(link.path()).ok());
    targets.filter(|target| target.starts_with(dir)).collect()
}
