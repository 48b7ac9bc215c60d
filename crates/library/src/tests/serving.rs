//! What viewers ask of the library.

use std::os::unix::fs::symlink;

use ether_types::ItemId;

use super::*;

#[tokio::test]
async fn pages_follow_each_other_without_gaps_and_positions_are_each_viewers_own() {
    let world = World::new().await;
    for number in 0..25 {
        world.write(&format!("films/Film {number}.mp4"), &film(number));
    }
    let library = world.open().await;
    let (anna, bert): (Viewer, Viewer) = ("anna".parse().unwrap(), "bert".parse().unwrap());
    let (mut after, mut titles) = (None, Vec::new());
    loop {
        let page = library.list(&anna, after.as_ref(), 7).await.unwrap();
        titles.extend(page.items.iter().map(|item| item.title.clone()));
        after = page.items.last().map(|item| item.id.clone());
        if !page.more {
            break;
        }
    }
    let expected: Vec<String> = (0..25).map(|number| format!("Film {number}")).collect();
    assert_eq!(titles, expected);
    let unknown = ItemId::new("nobody").unwrap();
    assert!(
        library
            .list(&anna, Some(&unknown), 7)
            .await
            .unwrap()
            .items
            .is_empty()
    );
    let id = item(&library, "Film 3.mp4").await.id;
    assert!(library.set_position(&anna, &id, 5_000, None).await.unwrap());
    assert!(library.set_position(&anna, &id, 6_000, Some(true)).await.unwrap());
    assert!(library.set_position(&anna, &id, 100, None).await.unwrap());
    let seen = library.item(&anna, &id).await.unwrap().unwrap();
    assert_eq!((seen.position_ms, seen.finished), (100, true));
    let fresh = library.item(&bert, &id).await.unwrap().unwrap();
    assert_eq!((fresh.position_ms, fresh.finished), (0, false));
    assert!(!library.set_position(&anna, &unknown, 1, None).await.unwrap());
    assert!(library.set_position(&anna, &id, u64::MAX, None).await.unwrap());
    assert!("no spaces".parse::<Viewer>().is_err() && "".parse::<Viewer>().is_err());
    world.close(library).await;
}

#[tokio::test]
async fn nothing_outside_the_folder_is_ever_opened() {
    let world = World::new().await;
    world.write("films/dir/film.mp4", &film(1));
    world.write("secret/film.mp4", &film(1));
    let library = world.open().await;
    let id = item(&library, "dir/film.mp4").await.id;
    assert!(library.open(&id).await.is_ok());
    // Between the scan and the viewer's request someone puts a link in the way.
    std::fs::rename(world.path("films/dir"), world.path("kept")).unwrap();
    symlink(world.path("secret"), world.path("films/dir")).unwrap();
    assert!(matches!(library.open(&id).await, Err(OpenError::Gone { .. })));
    std::fs::remove_file(world.path("films/dir")).unwrap();
    std::fs::rename(world.path("kept"), world.path("films/dir")).unwrap();
    let film = world.path("films/dir/film.mp4");
    std::fs::remove_file(&film).unwrap();
    symlink(world.path("secret/film.mp4"), &film).unwrap();
    assert!(matches!(library.open(&id).await, Err(OpenError::Gone { .. })));
    // A pipe there must not make anyone wait.
    std::fs::remove_file(&film).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o644);
    rustix::fs::mknodat(rustix::fs::CWD, &film, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    assert!(matches!(library.open(&id).await, Err(OpenError::Gone { .. })));
    world.close(library).await;
}

#[tokio::test]
async fn an_open_film_says_when_it_changed_underneath() {
    let world = World::new().await;
    let path = world.write("films/film.mp4", &film(1));
    let library = world.open().await;
    let id = item(&library, "film.mp4").await.id;
    let opened = library.open(&id).await.unwrap();
    assert_eq!(Revision::of(&opened.file).unwrap(), opened.revision);
    std::fs::write(&path, film(2)).unwrap();
    assert_ne!(Revision::of(&opened.file).unwrap(), opened.revision);
    // Opening it for someone else asks for the scan that makes it playable again.
    assert!(matches!(library.open(&id).await, Err(OpenError::Changed { .. })));
    until(&library, || async { library.open(&id).await.is_ok() }).await;
    world.close(library).await;
}

#[tokio::test]
async fn subtitles_beside_a_film_are_found_when_they_are_asked_for() {
    let world = World::new().await;
    world.write("films/d/The Film.mp4", &film(1));
    let library = world.open().await;
    let id = item(&library, "d/The Film.mp4").await.id;
    assert!(library.sidecars(&id).await.unwrap().is_empty());
    world.write("films/d/The Film.en.forced.srt", b"1\n");
    world.write("films/d/The Film 2.srt", b"1\n");
    world.write("films/d/Subs/2_German.srt", b"22\n");
    let found = library.sidecars(&id).await.unwrap();
    let told = |n: usize| {
        (
            found[n].name.as_str(),
            found[n].language.as_deref(),
            found[n].forced,
        )
    };
    assert_eq!(found.len(), 2, "{found:?}");
    assert_eq!(told(0), ("2_German.srt", Some("ger"), false));
    assert_eq!(told(1), ("The Film.en.forced.srt", Some("en"), true));
    assert_eq!(&library.read_sidecar(&id, &found[0]).await.unwrap()[..], b"22\n");
    // A second film shares the folder: its files must be named after the one they belong to.
    world.write("films/d/Another.mp4", &film(2));
    world.write("films/d/Subs/The Film/en.vtt", b"WEBVTT\n");
    let shared = library.sidecars(&id).await.unwrap();
    let names: Vec<&str> = shared.iter().map(|sidecar| sidecar.name.as_str()).collect();
    assert_eq!(names, ["The Film.en.forced.srt", "en.vtt"]);
    assert_eq!(
        shared[0].number, found[1].number,
        "a number stays as long as the name does"
    );
    // Renamed, rewritten, removed: nothing of the old state is given out.
    let file = world.path("films/d/The Film.en.forced.srt");
    std::fs::rename(&file, world.path("films/d/The Film.fr.srt")).unwrap();
    let gone = library.read_sidecar(&id, &shared[0]).await;
    assert!(matches!(gone, Err(OpenError::Gone { .. })));
    let renamed = library.sidecars(&id).await.unwrap();
    assert_eq!(renamed[0].language.as_deref(), Some("fr"));
    std::fs::write(world.path("films/d/The Film.fr.srt"), b"longer\n").unwrap();
    let changed = library.read_sidecar(&id, &renamed[0]).await;
    assert!(matches!(changed, Err(OpenError::Changed { .. })));
    // Nothing is read through a link that took its place.
    world.write("secret.srt", b"secret\n");
    std::fs::remove_file(world.path("films/d/The Film.fr.srt")).unwrap();
    symlink(world.path("secret.srt"), world.path("films/d/The Film.fr.srt")).unwrap();
    assert_eq!(library.sidecars(&id).await.unwrap().len(), 1);
    assert!(library.read_sidecar(&id, &renamed[0]).await.is_err());
    world.close(library).await;
}

#[tokio::test]
async fn a_film_that_is_cut_short_says_so_in_the_list() {
    let world = World::new().await;
    world.write("films/cut.mkv", &MATROSKA[..6000]);
    let library = world.open().await;
    let cut = item(&library, "cut.mkv").await;
    assert!(
        cut.warnings.iter().any(|w| w.contains("ends early")),
        "{:?}",
        cut.warnings
    );
    world.close(library).await;
}

#[tokio::test]
async fn a_viewers_oldest_positions_make_room_for_new_ones() {
    let world = World::new().await;
    world.write("films/film.mp4", &film(1));
    let library = world.open().await;
    let tables = world.store.component(&COMPONENT).await.unwrap();
    let bound = ether_store::Bound::of(Duration::from_secs(60));
    let filled = tables.write(bound, |tx| {
        Box::pin(async move {
            let sql = "INSERT INTO library_positions (viewer, item, position_ms, finished, updated) \
                       VALUES ('anna', $1, 0, 0, $2)";
            for number in 0..10_000_i64 {
                let item = ether_store::Value::from(format!("item-{number}"));
                tx.execute(sql, &[item, ether_store::Value::from(number)]).await?;
            }
            Ok::<_, ether_store::StoreError>(())
        })
    });
    filled.await.unwrap();
    let anna: Viewer = "anna".parse().unwrap();
    let id = items(&library).await.remove(0).id;
    assert!(library.set_position(&anna, &id, 77, None).await.unwrap());
    assert_eq!(library.item(&anna, &id).await.unwrap().unwrap().position_ms, 77);
    let count = "SELECT CAST(COUNT(*) AS BIGINT), CAST(MIN(updated) AS BIGINT) FROM library_positions";
    let rows = tables.query(bound, count, Vec::new()).await.unwrap();
    assert_eq!(
        (rows[0].integer(0).unwrap(), rows[0].integer(1).unwrap()),
        (10_000, 1)
    );
    world.close(library).await;
}
