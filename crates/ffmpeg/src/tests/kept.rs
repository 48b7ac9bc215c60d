//! What was encoded once is served again without an encoder, and joins what is encoded after it.

use std::collections::HashSet;

use ether_encoder::{Encoder, Resource, Revision, VideoAction};

use crate::kept::Key;
use crate::strand::Strand;

use super::configuration::two_qualities;
use super::film::{COPY, ENCODE, Film, INIT, Shape, Studio, fetch, segment};

async fn bytes(served: ether_encoder::Served) -> Vec<u8> {
    let mut stream = served.media.stream(0..served.len);
    let mut bytes = Vec::new();
    while let Some(piece) = stream.next_piece().await {
        bytes.extend_from_slice(&piece.unwrap());
    }
    bytes
}

#[tokio::test]
async fn a_second_viewing_needs_no_encoder_until_it_goes_further() {
    let film = Film::clip("ntsc.mkv");
    let studio = Studio::keeping(64 << 20).await;
    let start = film.start(ENCODE, 64 << 20);
    let ask = |n| studio.encoder.kept(&start.request, &start.input, n);
    assert!(ask(INIT).is_none());
    let first = studio.start(&film, ENCODE, 64 << 20).await;
    let init = fetch(&*first, INIT).await.unwrap();
    let mut made = Vec::new();
    for n in 0..3 {
        made.push((
            fetch(&*first, segment(n)).await.unwrap(),
            first.finished(segment(n)).unwrap().etag,
        ));
    }
    first.retire().await.unwrap();

    assert_eq!(bytes(ask(INIT).unwrap()).await, init);
    let second = studio.start(&film, ENCODE, 64 << 20).await;
    for (n, (whole, etag)) in made.iter().enumerate() {
        let kept = ask(segment(n as u32)).unwrap();
        assert_eq!(
            (
                &bytes(kept).await,
                second.finished(segment(n as u32)).unwrap().etag
            ),
            (whole, etag.clone())
        );
        assert_eq!(&fetch(&*second, segment(n as u32)).await.unwrap(), whole);
    }
    assert_eq!(second.observe().runs, 0, "an encoder ran for what was kept");
    // What is far ahead was never made: an encoder makes it, with the same initialization segment.
    let further = fetch(&*second, segment(15)).await.unwrap();
    assert_eq!(second.observe().runs, 1);
    assert_eq!(fetch(&*second, INIT).await.unwrap(), init);
    let shape = Shape::read(&init, &further);
    assert_eq!(shape.pictures.len(), 72);
    studio.close(second).await;
}

/// Another quality, another state of the file, another cut are other representations; copies are not kept.
#[tokio::test]
async fn only_the_very_same_is_found() {
    let film = Film::clip("ntsc.mkv");
    let studio = Studio::keeping(64 << 20).await;
    let execution = studio.start(&film, ENCODE, 64 << 20).await;
    fetch(&*execution, segment(0)).await.unwrap();
    let start = film.start(ENCODE, 64 << 20);
    let found =
        |start: &ether_encoder::Start, n| studio.encoder.kept(&start.request, &start.input, n).is_some();
    // A viewer has it a moment before it is kept for others.
    while !found(&start, segment(0)) {
        tokio::time::sleep(std::time::Duration::from_millis(5)).await;
    }
    let other = |change: &dyn Fn(&mut ether_encoder::Request)| {
        let mut request = film.request(ENCODE);
        change(&mut request);
        film.start_request(request, 64 << 20)
    };
    let smaller = other(&|request| {
        if let Some(video) = &mut request.video
            && let VideoAction::Encode(encode) = &mut video.action
        {
            encode.rungs[0].max_bit_rate -= 1;
        }
    });
    let silent = other(&|request| request.audio.clear());
    let longer = other(&|request| {
        *request = film.request(super::film::Make { target: 4, ..ENCODE });
    });
    for (what, start) in [("rate", &smaller), ("silent", &silent), ("longer", &longer)] {
        assert!(!found(start, segment(0)), "{what}");
    }
    let mut changed = film.start(ENCODE, 64 << 20);
    let ether_encoder::Input::File { revision, .. } = &mut changed.input else {
        panic!("a film of this node");
    };
    revision.modified_nanos += 1;
    assert!(!found(&changed, segment(0)), "another state of the file");
    execution.retire().await.unwrap();

    let copy = studio.start(&film, COPY, 64 << 20).await;
    fetch(&*copy, segment(0)).await.unwrap();
    // Nobody writes any more.
    copy.retire().await.unwrap();
    assert!(
        !found(&film.start(COPY, 64 << 20), segment(0)),
        "copies are made anew"
    );

    let ladder = film.start_request(two_qualities(&film), 64 << 20);
    let of = |representation| Resource::Segment {
        representation,
        number: 0,
    };
    let best = studio.start_request(&film, two_qualities(&film), 64 << 20).await;
    fetch(&*best, of(0)).await.unwrap();
    best.retire().await.unwrap();
    assert!(found(&ladder, of(0)));
    assert!(!found(&ladder, of(1)), "another quality of one ladder");
    studio.shut().await;
}

/// Whatever changes the bytes of a segment changes its key, another FFmpeg among it.
#[test]
fn keys_differ_in_all_that_bytes_depend_on() {
    let film = Film::clip("ntsc.mkv");
    let strands = Strand::all(&two_qualities(&film));
    let file = Revision {
        size: 1,
        modified_nanos: 2,
        inode: 3,
        device: 4,
    };
    let others = [
        Revision { size: 9, ..file },
        Revision {
            modified_nanos: 9,
            ..file
        },
        Revision { inode: 9, ..file },
        Revision { device: 9, ..file },
    ];
    let mut keys = vec![
        Key::of(&strands[0], 0, file, file),
        Key::of(&strands[0], 1, file, file),
        Key::of(&strands[1], 0, file, file),
    ];
    for other in others {
        keys.push(Key::of(&strands[0], 0, other, file));
        keys.push(Key::of(&strands[0], 0, file, other));
    }
    let distinct: HashSet<Key> = keys.iter().flatten().copied().collect();
    assert_eq!(distinct.len(), keys.len());
}
