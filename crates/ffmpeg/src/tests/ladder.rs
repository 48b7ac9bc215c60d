//! Several qualities of one picture, and sounds apart from it: every rung has the same bounds, whichever process
//! made it and with which others.

use ether_encoder::{Execution, Protocol, Request, Resource, Rung, VideoAction};

use super::film::{ENCODE, Film, Shape, Studio, fetch};

/// A request with three small qualities and every sound of `film`, `protocol` saying how they are packaged.
fn ladder(film: &Film, protocol: Protocol) -> Request {
    let mut request = film.request(ENCODE);
    request.protocol = protocol;
    if let Some(video) = &mut request.video
        && let VideoAction::Encode(encode) = &mut video.action
    {
        let rung = |width, height, max_bit_rate, level| Rung {
            width,
            height,
            max_bit_rate,
            level,
        };
        encode.rungs = vec![
            rung(320, 180, 400_000, 13),
            rung(256, 144, 250_000, 12),
            rung(192, 108, 150_000, 11),
        ];
    }
    let main = request.audio[0].clone();
    let sounds = film.facts.streams.iter().filter(|s| s.audio().is_some());
    request.audio = sounds
        .map(|s| ether_encoder::AudioTrack {
            stream: s.index,
            action: main.action.clone(),
        })
        .collect();
    request
}

fn init(representation: u32) -> Resource {
    Resource::Init { representation }
}

fn segment(representation: u32, number: u32) -> Resource {
    Resource::Segment {
        representation,
        number,
    }
}

async fn shape(execution: &dyn Execution, representation: u32, number: u32) -> Shape {
    let head = fetch(execution, init(representation)).await.unwrap();
    let body = fetch(execution, segment(representation, number)).await.unwrap();
    Shape::read(&head, &body)
}

#[tokio::test]
async fn rungs_share_their_bounds_whichever_run_makes_them() {
    let film = Film::clip("ntsc.mkv");
    let request = ladder(&film, Protocol::Dash);
    let studio = Studio::open().await;
    let together = studio.start_request(&film, request.clone(), 512 << 20).await;
    let apart = studio.start_request(&film, request.clone(), 512 << 20).await;
    for number in [3, 4, 9] {
        let (a, b, c) = tokio::join!(
            shape(&*together, 0, number),
            shape(&*together, 1, number),
            shape(&*together, 2, number)
        );
        assert_eq!(a.pictures.len(), 72, "a whole segment of film");
        let times = |shape: &Shape| shape.pictures.iter().map(|p| p.1).collect::<Vec<_>>();
        let mut shown = [times(&a), times(&b), times(&c)];
        shown.iter_mut().for_each(|times| times.sort_unstable());
        assert_eq!((&shown[0], &shown[1]), (&shown[1], &shown[2]), "segment {number}");
        assert!(a.sounds.is_empty(), "sound comes apart");
        let alone = shape(&*apart, 1, number).await;
        assert_eq!(
            b.difference(&alone),
            None,
            "segment {number} of the middle quality"
        );
    }
    let runs = together.observe().runs;
    assert!(
        runs <= 3,
        "{runs} processes for three places: qualities asked for together are made together"
    );
    together.retire().await.unwrap();
    studio.close(apart).await;
}

/// Case 19: another language is another process for sound and no other for the picture.
#[tokio::test]
async fn another_language_starts_no_second_encoder_of_the_picture() {
    let film = Film::clip("three-languages.mkv");
    let request = ladder(&film, Protocol::Dash);
    assert_eq!(request.audio.len(), 3);
    let studio = Studio::open().await;
    let execution = studio.start_request(&film, request, 512 << 20).await;
    let (_, first) = tokio::join!(shape(&*execution, 0, 4), shape(&*execution, 3, 4));
    assert_eq!(execution.observe().runs, 2);
    let second = shape(&*execution, 4, 4).await;
    assert_eq!(
        execution.observe().runs,
        3,
        "one more for the sound that was chosen"
    );
    assert_eq!(first.difference(&second), None, "sounds lie on one grid");
    assert!(first.pictures.is_empty());
    let _ = shape(&*execution, 0, 5).await;
    assert_eq!(execution.observe().runs, 3);
    studio.close(execution).await;
}

/// Sound that ends long before the picture is silent from there on, apart from the picture too.
#[tokio::test]
async fn sound_apart_lasts_as_long_as_the_picture() {
    let film = Film::clip("short-audio.mkv");
    let request = ladder(&film, Protocol::Dash);
    let last = request.timeline.len() as u32 - 1;
    let studio = Studio::open().await;
    let execution = studio.start_request(&film, request, 512 << 20).await;
    for number in [0, 13, 14, last] {
        let sound = shape(&*execution, 3, number).await;
        assert!(!sound.sounds.is_empty(), "segment {number} has no sound");
    }
    studio.close(execution).await;
}
