//! An item follows its film.

use super::*;

#[tokio::test]
async fn a_renamed_or_moved_film_keeps_its_item_its_position_and_its_facts() {
    let world = World::new().await;
    world.write("films/old name.mp4", &film(1));
    world.write("films/a/two.mp4", &film(2));
    let library = world.open().await;
    let viewer = Viewer::owner();
    let first = item(&library, "old name.mp4").await.id;
    let second = item(&library, "a/two.mp4").await.id;
    library
        .set_position(&viewer, &first, 1_234, Some(true))
        .await
        .unwrap();
    let reads = world.reader.reads();
    std::fs::rename(world.path("films/old name.mp4"), world.path("films/New Name.mp4")).unwrap();
    std::fs::rename(world.path("films/a"), world.path("films/b")).unwrap();
    rescan(&library).await;
    let renamed = item(&library, "New Name.mp4").await;
    assert_eq!((renamed.id, renamed.title.as_str()), (first, "New Name"));
    assert_eq!((renamed.position_ms, renamed.finished), (1_234, true));
    assert_eq!(item(&library, "b/two.mp4").await.id, second);
    assert_eq!(items(&library).await.len(), 2);
    assert_eq!(world.reader.reads(), reads, "the bytes did not change");
    world.close(library).await;
}

#[tokio::test]
async fn a_film_copied_to_another_place_and_deleted_is_the_same_item() {
    let mut world = World::new().await;
    let old = world.write("films/film.mp4", &film(1));
    world.options.folders.push(world.path("other"));
    let library = world.open().await;
    let id = item(&library, "film.mp4").await.id;
    // Another inode, another time, another folder.
    world.write("other/moved.mp4", &film(1));
    std::fs::remove_file(old).unwrap();
    rescan(&library).await;
    assert_eq!(files(&library).await, ["moved.mp4"]);
    assert_eq!(item(&library, "moved.mp4").await.id, id);
    world.close(library).await;
}

#[tokio::test]
async fn a_copy_of_a_film_that_stays_is_another_item() {
    let world = World::new().await;
    world.write("films/film.mp4", &film(1));
    let library = world.open().await;
    let id = item(&library, "film.mp4").await.id;
    world.write("films/copy.mp4", &film(1));
    rescan(&library).await;
    assert_eq!(item(&library, "film.mp4").await.id, id);
    assert_ne!(item(&library, "copy.mp4").await.id, id);
    world.close(library).await;
}

#[tokio::test]
async fn two_films_that_trade_names_keep_their_items() {
    let world = World::new().await;
    world.write("films/a.mp4", &film(1));
    world.write("films/b.mp4", &film(2));
    let library = world.open().await;
    let (a, b) = (item(&library, "a.mp4").await.id, item(&library, "b.mp4").await.id);
    let at = |name: &str| world.path(&format!("films/{name}"));
    std::fs::rename(at("a.mp4"), at("t.mp4")).unwrap();
    std::fs::rename(at("b.mp4"), at("a.mp4")).unwrap();
    std::fs::rename(at("t.mp4"), at("b.mp4")).unwrap();
    rescan(&library).await;
    rescan(&library).await;
    assert_eq!(item(&library, "a.mp4").await.id, b);
    assert_eq!(item(&library, "b.mp4").await.id, a);
    assert_eq!(items(&library).await.len(), 2);
    world.close(library).await;
}

#[tokio::test]
async fn a_replaced_film_is_the_same_item_with_a_new_stamp_and_new_facts() {
    let world = World::new().await;
    let path = world.write("films/film.mp4", &film(1));
    let library = world.open().await;
    let id = item(&library, "film.mp4").await.id;
    let before = library.detail(&Viewer::owner(), &id).await.unwrap();
    let next = world.write("films/.next", MATROSKA);
    std::fs::rename(next, path).unwrap();
    // Until it is scanned nobody gets bytes of the one with facts of the other.
    assert!(matches!(library.open(&id).await, Err(OpenError::Changed { .. })));
    rescan(&library).await;
    let after = library.detail(&Viewer::owner(), &id).await.unwrap();
    assert_eq!(after.part, before.part);
    assert!(after.changestamp > before.changestamp);
    assert_eq!(after.item.container, "matroska");
    assert!(library.open(&id).await.is_ok());
    let stale = library.open_part(&before.part, before.changestamp).await;
    assert!(matches!(stale, Err(OpenError::Changed { .. })));
    assert!(library.open_part(&after.part, after.changestamp).await.is_ok());
    world.close(library).await;
}

#[tokio::test]
async fn a_rename_in_the_middle_of_a_scan_loses_nothing() {
    let world = World::new().await;
    for number in 0..6 {
        world.write(&format!("films/{number}.mp4"), &film(number));
    }
    let library = world.open().await;
    let before: Vec<_> = items(&library).await.into_iter().map(|item| item.id).collect();
    world.write("films/new.mp4", &film(100));
    world.reader.shut();
    let request = library.rescan();
    world.reader.holding(1).await;
    for number in 0..6 {
        let from = world.path(&format!("films/{number}.mp4"));
        std::fs::rename(from, world.path(&format!("films/renamed {number}.mp4"))).unwrap();
    }
    std::fs::rename(world.path("films/new.mp4"), world.path("films/newer.mp4")).unwrap();
    world.reader.open();
    library.finished(request).await;
    rescan(&library).await;
    let after: Vec<_> = items(&library).await.into_iter().map(|item| item.id).collect();
    assert_eq!(after.len(), 7);
    for id in before {
        assert!(after.contains(&id), "an item was lost");
    }
    world.close(library).await;
}

#[tokio::test]
async fn a_removed_film_leaves_the_list_and_comes_back_as_itself_within_the_grace() {
    let world = World::new().await;
    let path = world.write("films/film.mp4", &film(1));
    let library = world.open().await;
    let viewer = Viewer::owner();
    let id = item(&library, "film.mp4").await.id;
    library.set_position(&viewer, &id, 700, None).await.unwrap();
    std::fs::remove_file(&path).unwrap();
    rescan(&library).await;
    assert!(items(&library).await.is_empty());
    assert!(matches!(library.open(&id).await, Err(OpenError::NoSuchItem)));
    world.clock.advance(Duration::from_secs(29 * 86_400));
    rescan(&library).await;
    world.write("films/elsewhere/back.mp4", &film(1));
    rescan(&library).await;
    let back = item(&library, "elsewhere/back.mp4").await;
    assert_eq!((back.id, back.position_ms), (id.clone(), 700));
    std::fs::remove_file(world.path("films/elsewhere/back.mp4")).unwrap();
    rescan(&library).await;
    world.clock.advance(Duration::from_secs(31 * 86_400));
    rescan(&library).await;
    world.write("films/film.mp4", &film(1));
    rescan(&library).await;
    let new = item(&library, "film.mp4").await;
    assert_ne!(new.id, id);
    assert_eq!(new.position_ms, 0);
    assert!(!library.set_position(&viewer, &id, 1, None).await.unwrap());
    world.close(library).await;
}

#[tokio::test]
async fn giving_a_directory_of_a_folder_as_a_folder_of_its_own_and_back_keeps_the_items() {
    let mut world = World::new().await;
    world.write("films/series/one.mp4", &film(1));
    let library = world.open().await;
    let id = item(&library, "series/one.mp4").await.id;
    library.shutdown().await;
    // In either order of scanning.
    for order in 0..2 {
        world.options.folders = vec![world.path("films"), world.path("films/series")];
        world.options.folders.rotate_left(order);
        let library = world.open().await;
        assert_eq!(item(&library, "one.mp4").await.id, id);
        assert_eq!(items(&library).await.len(), 1);
        library.shutdown().await;
        world.options.folders = vec![world.path("films")];
        let library = world.open().await;
        assert_eq!(item(&library, "series/one.mp4").await.id, id);
        assert_eq!(items(&library).await.len(), 1);
        library.shutdown().await;
    }
    let library = world.open().await;
    world.close(library).await;
}

#[tokio::test]
async fn a_filesystem_that_numbers_its_files_anew_changes_nothing() {
    let world = World::new().await;
    let path = world.write("films/film.mp4", &film(1));
    let library = world.open().await;
    let before = library
        .detail(&Viewer::owner(), &items(&library).await[0].id)
        .await
        .unwrap();
    let modified = std::fs::metadata(&path).unwrap().modified().unwrap();
    let copy = world.write("films/.copy", &film(1));
    std::fs::File::options()
        .append(true)
        .open(&copy)
        .unwrap()
        .set_modified(modified)
        .unwrap();
    std::fs::rename(&copy, &path).unwrap();
    assert!(library.open(&before.item.id).await.is_ok());
    let reads = world.reader.reads();
    rescan(&library).await;
    let after = library.detail(&Viewer::owner(), &before.item.id).await.unwrap();
    assert_ne!(after.revision.inode, before.revision.inode);
    assert_eq!(
        (after.changestamp, world.reader.reads()),
        (before.changestamp, reads)
    );
    // Other bytes under the same size and time are another revision all the same.
    let other = world.write("films/.other", &film(2));
    std::fs::File::options()
        .append(true)
        .open(&other)
        .unwrap()
        .set_modified(modified)
        .unwrap();
    std::fs::rename(&other, &path).unwrap();
    assert!(matches!(
        library.open(&before.item.id).await,
        Err(OpenError::Changed { .. })
    ));
    world.close(library).await;
}
