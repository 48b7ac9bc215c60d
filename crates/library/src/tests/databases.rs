//! The same library on SQLite and PostgreSQL, and with many items.

use ether_testkit::postgres::{Durability, Server};

use super::*;

#[tokio::test]
async fn the_library_lives_on_postgresql_as_on_sqlite() {
    let Some(server) = Server::start(15, Durability::Fast) else {
        return;
    };
    let location: Location = server.fresh_schema().parse().unwrap();
    let mut world = World::at(tempfile::tempdir().unwrap(), &location).await;
    world.options.folders.push(world.path("songs"));
    let paths = ["films/Part 10.mp4", "films/Part 2.mp4", "films/a/[b] 100%.mp4"];
    for (number, path) in paths.iter().enumerate() {
        world.write(path, &film(number as u32));
    }
    world.write("songs/song.flac", SONG);
    world.write("films/notes.txt", b"buy milk");
    world.write("films/lies.mp4", &b"no film at all ".repeat(100));
    let library = world.open().await;
    let viewer = Viewer::owner();
    let mut titles = Vec::new();
    let mut after = None;
    loop {
        let page = library.list(&viewer, after.as_ref(), 1).await.unwrap();
        after = page.items.last().map(|item| item.id.clone());
        titles.extend(page.items.into_iter().map(|item| item.title));
        if !page.more {
            break;
        }
    }
    assert_eq!(titles, ["[b] 100%", "Part 2", "Part 10", "song"]);
    assert_eq!(library.problems(10).await.unwrap().1, 2);
    let two = item(&library, "Part 2.mp4").await.id;
    let ten = item(&library, "Part 10.mp4").await.id;
    assert!(library.set_position(&viewer, &two, 42, Some(true)).await.unwrap());
    assert!(library.set_position(&viewer, &two, 43, None).await.unwrap());
    // A trade of names, a removal, a replacement, a mended problem.
    let at = |name: &str| world.path(&format!("films/{name}"));
    std::fs::rename(at("Part 2.mp4"), at("t")).unwrap();
    std::fs::rename(at("Part 10.mp4"), at("Part 2.mp4")).unwrap();
    std::fs::rename(at("t"), at("Part 10.mp4")).unwrap();
    std::fs::remove_file(at("a/[b] 100%.mp4")).unwrap();
    world.write("films/lies.mp4", MATROSKA);
    rescan(&library).await;
    assert_eq!(library.status().trouble, None);
    assert_eq!(item(&library, "Part 10.mp4").await.id, two);
    assert_eq!(item(&library, "Part 2.mp4").await.id, ten);
    assert_eq!(item(&library, "Part 10.mp4").await.position_ms, 43);
    assert_eq!(
        files(&library).await,
        ["Part 10.mp4", "Part 2.mp4", "lies.mp4", "song.flac"]
    );
    assert_eq!(library.problems(10).await.unwrap().1, 1);
    until(&library, || async {
        items(&library)
            .await
            .iter()
            .all(|item| item.picture != PictureState::Wanted)
    })
    .await;
    assert!(library.picture(&two).await.is_ok());
    world.clock.advance(Duration::from_secs(31 * 86_400));
    rescan(&library).await;
    assert_eq!(library.status().trouble, None);
    library.shutdown().await;
    world.options.folders.pop();
    let library = world.open().await;
    assert_eq!(files(&library).await, ["Part 10.mp4", "Part 2.mp4", "lies.mp4"]);
    assert!(library.accept_folder(0).await.unwrap().is_some());
    world.close(library).await;
    drop(server);
}
