//! Pictures and keyframes, made while nobody waits.

use super::*;

fn pictures(world: &World) -> Vec<String> {
    names(&world.path("data/pictures"))
}

async fn all_ready(library: &Library) -> bool {
    items(library)
        .await
        .iter()
        .all(|item| item.picture == PictureState::Ready)
}

#[tokio::test]
async fn every_film_gets_a_picture_and_a_new_one_when_it_changes() {
    let world = World::new().await;
    world.write("films/one.mp4", &film(1));
    world.write("films/two.mkv", MATROSKA);
    let library = world.open().await;
    until(&library, || all_ready(&library)).await;
    let one = item(&library, "one.mp4").await.id;
    let picture = library.picture(&one).await.unwrap();
    assert!(picture.bytes.starts_with(&[0xff, 0xd8]), "a JPEG");
    assert_eq!(pictures(&world).len(), 2);
    world.write("films/one.mp4", MATROSKA);
    rescan(&library).await;
    until(&library, || all_ready(&library)).await;
    let next = library.picture(&one).await.unwrap();
    assert_ne!(next.etag, picture.etag);
    assert_eq!(pictures(&world).len(), 2, "the old one is deleted");
    world.close(library).await;
}

#[tokio::test]
async fn a_song_without_a_cover_has_no_picture_and_is_not_tried_again() {
    let world = World::new().await;
    world.write("films/song.flac", SONG);
    let library = world.open().await;
    until(&library, || async {
        items(&library).await[0].picture == PictureState::Failed
    })
    .await;
    let id = items(&library).await.remove(0).id;
    assert!(matches!(library.picture(&id).await, Err(PictureError::Failed(_))));
    assert!(pictures(&world).is_empty());
    world.close(library).await;
}

#[tokio::test]
async fn pictures_survive_a_restart_litter_does_not_and_a_lost_one_is_made_again() {
    let world = World::new().await;
    world.write("films/one.mp4", &film(1));
    let library = world.open().await;
    until(&library, || all_ready(&library)).await;
    let id = items(&library).await.remove(0).id;
    let etag = library.picture(&id).await.unwrap().etag;
    library.shutdown().await;
    world.write("data/pictures/0123.tmp", b"half a picture");
    world.write("data/pictures/0123.jpg", b"nobody's picture");
    let library = world.open().await;
    assert_eq!(library.picture(&id).await.unwrap().etag, etag);
    assert_eq!(pictures(&world), [format!("{etag}.jpg")]);
    std::fs::remove_file(world.path(&format!("data/pictures/{etag}.jpg"))).unwrap();
    assert!(matches!(library.picture(&id).await, Err(PictureError::NotYet)));
    until(&library, || async { library.picture(&id).await.is_ok() }).await;
    world.close(library).await;
}

#[tokio::test]
async fn pictures_stay_within_their_budget_and_the_longest_unused_goes_first() {
    let mut world = World::new().await;
    for number in 1..=3 {
        world.write(&format!("films/{number}.mp4"), &film(number));
    }
    let library = world.open().await;
    until(&library, || all_ready(&library)).await;
    let dir = world.path("data/pictures");
    let size = |name: &String| std::fs::metadata(dir.join(name)).unwrap().len();
    let bytes: u64 = pictures(&world).iter().map(size).sum();
    let stale = item(&library, "2.mp4").await.id;
    world.clock.advance(Duration::from_secs(7200));
    for name in ["1.mp4", "3.mp4"] {
        library.picture(&item(&library, name).await.id).await.unwrap();
    }
    library.shutdown().await;
    // Now there is room for three and no byte more: a fourth costs the one that nobody looked at.
    world.options.picture_bytes = bytes + 10;
    world.write("films/4.mp4", &film(4));
    let library = world.open().await;
    let fourth = item(&library, "4.mp4").await.id;
    assert!(matches!(
        library.picture(&fourth).await,
        Err(PictureError::NotYet)
    ));
    until(&library, || async { library.picture(&fourth).await.is_ok() }).await;
    until(&library, || async { pictures(&world).len() == 3 }).await;
    assert_eq!(item(&library, "2.mp4").await.picture, PictureState::Wanted);
    assert_eq!(
        library.item(&Viewer::owner(), &stale).await.unwrap().unwrap().id,
        stale
    );
    let left: u64 = pictures(&world).iter().map(size).sum();
    assert!(left <= bytes + 10);
    world.close(library).await;
}

#[tokio::test]
async fn keyframes_that_no_index_names_are_found_in_the_background() {
    let world = World::new().await;
    world.write("films/stream.ts", TRANSPORT);
    world.reader.forget_keyframes.store(true, Ordering::SeqCst);
    let library = world.open().await;
    let id = items(&library).await.remove(0).id;
    until(&library, || async {
        library.facts(&id).await.unwrap().unwrap().keyframes.is_some()
    })
    .await;
    let facts = library.facts(&id).await.unwrap().unwrap();
    assert!(facts.gaps.is_empty(), "{:?}", facts.gaps);
    assert_eq!(facts.keyframes.as_ref().unwrap().times.len(), 2);
    world.close(library).await;
}

/// Each session asks for what is not known of its film; a whole film is not read again for each.
#[tokio::test]
async fn keyframes_that_are_not_to_be_had_are_looked_for_once_and_not_for_every_viewer() {
    let world = World::new().await;
    world.write("films/stream.ts", TRANSPORT);
    world.reader.forget_keyframes.store(true, Ordering::SeqCst);
    world.reader.no_keyframes.store(true, Ordering::SeqCst);
    let library = world.open().await;
    let id = items(&library).await.remove(0).id;
    until(&library, || async {
        world.reader.searches.load(Ordering::SeqCst) > 0
    })
    .await;
    until(&library, || async { !library.status().chores }).await;
    for _ in 0..3 {
        library.detail(&Viewer::owner(), &id).await.unwrap();
    }
    // A picture that is made after them is made behind them, so by then they were dealt with.
    world.reader.forget_keyframes.store(false, Ordering::SeqCst);
    world.write("films/other.mp4", &film(2));
    rescan(&library).await;
    until(&library, || all_ready(&library)).await;
    until(&library, || async { !library.status().chores }).await;
    assert_eq!(world.reader.searches.load(Ordering::SeqCst), 1);
    world.close(library).await;
}

#[tokio::test]
async fn keyframes_of_a_film_that_changed_meanwhile_are_thrown_away() {
    let world = World::new().await;
    let path = world.write("films/stream.ts", TRANSPORT);
    world.reader.forget_keyframes.store(true, Ordering::SeqCst);
    let library = world.open().await;
    let id = items(&library).await.remove(0).id;
    until(&library, || async {
        library.facts(&id).await.unwrap().unwrap().keyframes.is_some()
    })
    .await;
    world.reader.shut();
    world.write("films/other.ts", &TRANSPORT[..188 * 80]);
    let request = library.rescan();
    world.reader.holding(1).await;
    world.reader.open();
    library.finished(request).await;
    world.reader.shut();
    std::fs::write(&path, &TRANSPORT[..188 * 90]).unwrap();
    let request = library.rescan();
    world.reader.holding(1).await;
    world.reader.open();
    library.finished(request).await;
    until(&library, || async { !library.status().chores }).await;
    let facts = library.facts(&id).await.unwrap().unwrap();
    let open = library.open(&id).await.unwrap();
    assert_eq!(facts.size, open.revision.size, "facts and file belong together");
    world.close(library).await;
}

#[tokio::test]
async fn closing_does_not_wait_for_background_work() {
    let world = World::new().await;
    world.write("films/one.mp4", &film(1));
    let library = world.start().await;
    library.finished(1).await;
    world.reader.shut();
    world.write("films/two.mp4", &film(2));
    let _ = library.rescan();
    world.reader.holding(1).await;
    library.shutdown().await;
    assert_eq!(
        *world.reader.held.borrow(),
        0,
        "nobody stands at the gate any more"
    );
    world.close(library).await;
}
