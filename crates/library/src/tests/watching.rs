//! Changes are noticed by themselves.

use super::*;

async fn watching() -> World {
    let mut world = World::new().await;
    world.options.watch = true;
    world
}

async fn becomes(library: &Library, expected: &[&str]) {
    until(library, || async { files(library).await == expected }).await;
}

#[tokio::test]
async fn new_renamed_and_removed_files_are_noticed_as_it_happens() {
    let world = watching().await;
    world.write("films/one.mp4", &film(1));
    let library = world.open().await;
    assert_eq!(library.status().watching, Watching::Complete);
    world.write("films/two.mp4", &film(2));
    becomes(&library, &["one.mp4", "two.mp4"]).await;
    std::fs::rename(world.path("films/two.mp4"), world.path("films/zwei.mp4")).unwrap();
    becomes(&library, &["one.mp4", "zwei.mp4"]).await;
    world.write("films/new/deep/er/three.mp4", &film(3));
    becomes(&library, &["new/deep/er/three.mp4", "one.mp4", "zwei.mp4"]).await;
    // A directory that moves is watched at its new place.
    std::fs::rename(world.path("films/new"), world.path("films/neu")).unwrap();
    becomes(&library, &["neu/deep/er/three.mp4", "one.mp4", "zwei.mp4"]).await;
    world.write("films/neu/deep/er/four.mp4", &film(4));
    becomes(
        &library,
        &[
            "neu/deep/er/four.mp4",
            "neu/deep/er/three.mp4",
            "one.mp4",
            "zwei.mp4",
        ],
    )
    .await;
    std::fs::remove_dir_all(world.path("films/neu")).unwrap();
    std::fs::remove_file(world.path("films/one.mp4")).unwrap();
    becomes(&library, &["zwei.mp4"]).await;
    world.close(library).await;
}

#[tokio::test]
async fn a_directory_moved_out_and_back_is_found_with_its_items() {
    let world = watching().await;
    world.write("films/a/one.mp4", &film(1));
    let library = world.open().await;
    let id = item(&library, "a/one.mp4").await.id;
    std::fs::rename(world.path("films/a"), world.path("a")).unwrap();
    becomes(&library, &[]).await;
    std::fs::rename(world.path("a"), world.path("films/b")).unwrap();
    becomes(&library, &["b/one.mp4"]).await;
    assert_eq!(item(&library, "b/one.mp4").await.id, id);
    world.close(library).await;
}

#[tokio::test]
async fn what_no_event_tells_is_found_by_the_periodic_scan() {
    let world = World::new().await;
    let library = world.open().await;
    assert_eq!(library.status().watching, Watching::Off);
    world.write("films/one.mp4", &film(1));
    let started = world.clock.monotonic();
    until_later(&world, &library, Duration::from_secs(1), || async {
        files(&library).await == ["one.mp4"]
    })
    .await;
    let waited = world.clock.monotonic().saturating_since(started);
    assert!(
        waited >= Duration::from_secs(15 * 60 - 1),
        "found after {waited:?} without an event"
    );
    world.close(library).await;
}

#[tokio::test]
async fn a_folder_that_is_removed_and_made_again_is_noticed() {
    let world = watching().await;
    world.write("films/one.mp4", &film(1));
    let library = world.open().await;
    std::fs::rename(world.path("films"), world.path("away")).unwrap();
    until(&library, || async {
        library.status().folders[0].state == FolderState::Missing
    })
    .await;
    assert_eq!(files(&library).await, ["one.mp4"]);
    world.close(library).await;
}

#[tokio::test]
async fn closing_ends_the_watching_thread_and_is_harmless_twice() {
    let world = watching().await;
    let library = world.open().await;
    library.shutdown().await;
    library.shutdown().await;
    let threads = std::fs::read_dir("/proc/self/task").unwrap();
    let alive = threads
        .filter_map(|t| std::fs::read_to_string(t.ok()?.path().join("comm")).ok())
        .filter(|name| name.trim() == "library-watch")
        .count();
    assert_eq!(alive, 0);
    assert!(items(&library).await.is_empty(), "what is known still answers");
    world.close(library).await;
}
