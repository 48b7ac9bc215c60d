//! Segment `n` is the same whoever makes it: a run from the start against runs from anywhere, by each of the
//! FFmpegs and by one after the other.

use std::path::Path;

use ether_media::{Rational, StreamKind, Ticks};

use super::film::{COPY, ENCODE, Film, INIT, Major, Make, Shape, Studio, fetch, segment, with_both_majors};

with_both_majors!(
    film_rate_encodes_are_declared_as_they_are,
    copies_of_irregular_keyframes_keep_their_bounds,
    sparse_keyframes_are_copied_as_they_are,
    variable_rates_follow_time,
    rates_that_are_not_what_they_claim_follow_time,
    open_groups_are_copied_whole,
    a_clock_that_starts_late_gives_a_timeline_from_zero,
    an_index_at_the_end_is_copied_alike,
    sound_that_ends_early_is_followed_by_silence,
    encoded_sound_has_one_grid_whoever_makes_it,
);

/// Makes every segment in order, then again in an order that restarts the encoder all the time, and compares.
async fn same_from_anywhere(ffmpeg: &Path, name: &str, make: Make) -> Vec<Shape> {
    film_same_from_anywhere(ffmpeg, name, &Film::clip(name), make).await
}

async fn film_same_from_anywhere(ffmpeg: &Path, name: &str, film: &Film, make: Make) -> Vec<Shape> {
    let request = film.request(make);
    let count = request.timeline.len() as u32;
    let studio = Studio::with(ffmpeg).await;
    let straight = studio.start(film, make, 512 << 20).await;
    let init = fetch(&*straight, INIT).await.unwrap();
    let mut shapes = Vec::new();
    let mut bytes = Vec::new();
    for n in 0..count {
        let segment = fetch(&*straight, segment(n)).await.unwrap();
        shapes.push(Shape::read(&init, &segment));
        bytes.push(segment);
    }
    assert_eq!(straight.observe().runs, 1, "{name}: the straight run restarted");
    straight.retire().await.unwrap();

    let jumping = studio.start(film, make, 512 << 20).await;
    // A stride that visits every segment and never the one that would come next.
    let stride = (2..count.max(3))
        .rev()
        .find(|s| gcd(*s, count) == 1 && *s < count)
        .unwrap_or(1);
    let mut n = count / 2;
    // Encoding is dear: a few restarts show what many do.
    for _ in 0..count.min(if make.copy_video { 12 } else { 5 }) {
        n = (n + stride) % count;
        let again = fetch(&*jumping, segment(n)).await.unwrap();
        let difference = shapes[n as usize].difference(&Shape::read(&init, &again));
        assert_eq!(difference, None, "{name} {make:?}: segment {n} differs");
        if make.copy_video && make.copy_audio {
            assert!(
                again == bytes[n as usize],
                "{name}: the bytes of copied segment {n} differ"
            );
        }
    }
    assert_eq!(
        fetch(&*jumping, INIT).await.unwrap(),
        init,
        "{name}: the initialization segment differs"
    );
    studio.close(jumping).await;
    shapes
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Pictures follow each other without a hole, and every segment starts where it is declared to, within `slack`.
fn tiles(film: &Film, make: Make, shapes: &[Shape], slack: Ticks) {
    let timeline = film.request(make).timeline;
    let zero = shapes[0].first_shown().unwrap();
    for (n, shape) in shapes.iter().enumerate() {
        assert!(shape.pictures[0].3, "segment {n} does not start with a keyframe");
        let start = shape.first_shown().unwrap() - zero;
        let off = (Ticks(start) - timeline.start(n)).abs();
        assert!(
            off < slack,
            "segment {n} declared at {} starts at {}",
            timeline.start(n),
            Ticks(start)
        );
        let end: i64 = shape.pictures[0].0 + shape.pictures.iter().map(|p| i64::from(p.2)).sum::<i64>();
        if let Some(next) = shapes.get(n + 1) {
            assert_eq!(end, next.pictures[0].0, "a hole or an overlap after segment {n}");
        } else {
            let length = Ticks(end - shapes[0].pictures[0].0);
            let off = (length - timeline.end()).abs();
            assert!(
                off < slack,
                "the film ends at {} instead of {}",
                length,
                timeline.end()
            );
        }
    }
}

const FRAME_25: Ticks = Ticks(3_600);
const FRAME_FILM: Ticks = Ticks(3_754);

async fn film_rate_encodes_are_declared_as_they_are(ffmpeg: &Path) {
    let shapes = same_from_anywhere(ffmpeg, "ntsc.mkv", ENCODE).await;
    assert!(shapes[..shapes.len() - 1].iter().all(|s| s.pictures.len() == 72));
    tiles(&Film::clip("ntsc.mkv"), ENCODE, &shapes, FRAME_FILM);
}

async fn copies_of_irregular_keyframes_keep_their_bounds(ffmpeg: &Path) {
    let shapes = same_from_anywhere(ffmpeg, "irregular-keyframes.mkv", COPY).await;
    let film = Film::clip("irregular-keyframes.mkv");
    tiles(&film, COPY, &shapes, Ticks(90));
    let start = |n: usize| Ticks(shapes[n].first_shown().unwrap() - shapes[0].first_shown().unwrap());
    assert_eq!((start(2).as_millis(), start(3).as_millis()), (13_120, 18_920));
    assert_eq!((start(6).as_millis(), start(7).as_millis()), (36_000, 42_400));
    let packets: usize = shapes.iter().map(|s| s.pictures.len()).sum();
    assert_eq!(packets, 2_250);
}

async fn sparse_keyframes_are_copied_as_they_are(ffmpeg: &Path) {
    let shapes = same_from_anywhere(ffmpeg, "sparse-keyframes.mp4", COPY).await;
    let film = Film::clip("sparse-keyframes.mp4");
    assert_eq!(
        (shapes.len(), film.request(COPY).timeline.duration(0)),
        (6, Ticks(20 * Ticks::HZ))
    );
    tiles(&film, COPY, &shapes, Ticks(90));
}

async fn variable_rates_follow_time(ffmpeg: &Path) {
    let shapes = same_from_anywhere(ffmpeg, "vfr.mkv", ENCODE).await;
    let frames: usize = shapes.iter().map(|s| s.pictures.len()).sum();
    assert!((2_150..=2_170).contains(&frames), "{frames} frames");
    // One frame of the slow half, 12 a second.
    tiles(&Film::clip("vfr.mkv"), ENCODE, &shapes, Ticks(Ticks::HZ / 12));
}

/// Of 24 frames a second that claim to be 25, some are shown a little before a bound and belong to what follows it.
async fn rates_that_are_not_what_they_claim_follow_time(ffmpeg: &Path) {
    let mut film = Film::clip("ntsc.mkv");
    let facts = std::sync::Arc::make_mut(&mut film.facts);
    for stream in &mut facts.streams {
        if let StreamKind::Video(video) = &mut stream.kind {
            video.frame_rate = Some(Rational { num: 25, den: 1 });
        }
    }
    let shapes = film_same_from_anywhere(ffmpeg, "ntsc.mkv", &film, ENCODE).await;
    tiles(&film, ENCODE, &shapes, FRAME_FILM);
}

async fn open_groups_are_copied_whole(ffmpeg: &Path) {
    let shapes = same_from_anywhere(ffmpeg, "open-gop.mkv", COPY).await;
    let frames: usize = shapes.iter().map(|s| s.pictures.len()).sum();
    assert_eq!(frames, 1_500);
}

async fn a_clock_that_starts_late_gives_a_timeline_from_zero(ffmpeg: &Path) {
    for make in [COPY, ENCODE] {
        let shapes = same_from_anywhere(ffmpeg, "late-clock.ts", make).await;
        tiles(&Film::clip("late-clock.ts"), make, &shapes, FRAME_25);
        let (picture, sound) = (shapes[0].first_shown().unwrap(), shapes[0].sounds[0].0);
        assert!(picture < 45_000, "{make:?} starts at {picture}");
        // The source's sound starts 11 ms before its picture; encoded sound is cut to its grid, not moved.
        if make.copy_audio {
            let ahead = Ticks(picture) - Ticks::from_timescale(sound, 44_100);
            assert!((ahead - Ticks(983)).abs() < Ticks(180), "sound is {ahead} ahead");
        }
    }
}

async fn an_index_at_the_end_is_copied_alike(ffmpeg: &Path) {
    let shapes = same_from_anywhere(ffmpeg, "moov-at-end.mp4", COPY).await;
    tiles(&Film::clip("moov-at-end.mp4"), COPY, &shapes, FRAME_25);
}

async fn sound_that_ends_early_is_followed_by_silence(ffmpeg: &Path) {
    let shapes = same_from_anywhere(ffmpeg, "short-audio.mkv", ENCODE).await;
    let film = Film::clip("short-audio.mkv");
    tiles(&film, ENCODE, &shapes, FRAME_25);
    for (n, pair) in shapes.windows(2).enumerate() {
        let end = pair[0].sounds.last().map(|(at, d)| at + i64::from(*d));
        assert_eq!(
            end,
            pair[1].sounds.first().map(|s| s.0),
            "sound breaks after segment {n}"
        );
    }
    let (at, duration) = *shapes.last().unwrap().sounds.last().unwrap();
    assert!(at + i64::from(duration) >= 59 * 48_000, "sound ends at {at}");
}

async fn encoded_sound_has_one_grid_whoever_makes_it(ffmpeg: &Path) {
    let shapes = same_from_anywhere(ffmpeg, "flash-beep.mkv", Make { target: 6, ..ENCODE }).await;
    let sounds: Vec<(i64, u32)> = shapes.iter().flat_map(|s| s.sounds.iter().copied()).collect();
    for pair in sounds.windows(2) {
        assert_eq!(pair[0].0 + i64::from(pair[0].1), pair[1].0);
    }
}

#[tokio::test]
async fn another_major_version_makes_the_same_segments() {
    let Some(current) = Major::Current.program() else {
        return;
    };
    for (name, make) in [
        ("irregular-keyframes.mkv", COPY),
        ("ntsc.mkv", Make { target: 6, ..ENCODE }),
    ] {
        let film = Film::clip(name);
        let (debian, other) = (Studio::open().await, Studio::with(&current).await);
        let (a, b) = (
            debian.start(&film, make, 512 << 20).await,
            other.start(&film, make, 512 << 20).await,
        );
        let init = (fetch(&*a, INIT).await.unwrap(), fetch(&*b, INIT).await.unwrap());
        for n in [0, 4, 5, 1] {
            let first = Shape::read(&init.0, &fetch(&*a, segment(n)).await.unwrap());
            let second = Shape::read(&init.1, &fetch(&*b, segment(n)).await.unwrap());
            if make.copy_video {
                assert_eq!(first.difference(&second), None, "{name}: segment {n}");
            } else {
                // Encoders may choose other pictures to depend on; what is shown when, and the sound, are ours.
                let shown = |s: &Shape| {
                    let mut times: Vec<i64> = s.pictures.iter().map(|p| p.1).collect();
                    times.sort_unstable();
                    times
                };
                assert_eq!(shown(&first), shown(&second), "{name}: segment {n}");
                assert_eq!(first.sounds, second.sounds, "{name}: segment {n}");
            }
        }
        if make.copy_video {
            assert!(
                init.0 == init.1,
                "{name}: the initialization segment depends on the version"
            );
        }
        debian.close(a).await;
        other.close(b).await;
    }
}
